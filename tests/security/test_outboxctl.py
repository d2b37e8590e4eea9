"""outboxctl as a superuser in databases of others: their owners' code must not run as a superuser."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from database import MONITOR, Database, NewDatabase
from served import Served
from test_console import TOKEN, Client

from .attacker import NewRole
from .between import Between
from .peers.peer import Peer

Serve = Callable[..., Served]


@pytest.fixture
def program(database: Database) -> str:
    return str(database.cluster.installation.build / "tools/outboxctl/outboxctl")


@pytest.fixture
def serve(program: str) -> Iterator[Serve]:
    running: list[Served] = []

    def start(*arguments: str) -> Served:
        running.append(Served(program, *arguments))
        return running[-1]

    yield start
    for served in running:
        if served.process.poll() is None:
            served.stop()


# By the role `owner`: functions and operators that statements without a schema would find.
TRAPS_IN_PATH = """
    CREATE SCHEMA trap;
    GRANT USAGE ON SCHEMA trap TO PUBLIC;
    CREATE FUNCTION trap.strike() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
      ALTER ROLE {owner} SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END $f$;
    DO $$ DECLARE one record; BEGIN
      FOR one IN
          SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, format_type(p.prorettype, NULL) AS result
            FROM pg_proc AS p
           WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
             AND p.proname = ANY ('{{abs,clock_timestamp,current_database,current_setting,date_trunc,has_function_privilege,now,
                                   pg_blocking_pids,pg_current_snapshot,pg_get_userbyid,pg_size_pretty,quote_ident,round,to_char,
                                   to_json,to_regclass,to_regnamespace,to_regproc,to_timestamp}}')
      LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.strike(); RETURN NULL; END $f$',
                       one.proname, one.arguments, one.result);
      END LOOP;
      FOR one IN SELECT * FROM unnest('{{=,<>,<,>,>=}}'::text[]) AS name,
                      unnest('{{text,name,integer,bigint,oid,timestamptz,interval}}'::text[]) AS type LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s, %2$s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.strike(); RETURN true; END $f$;
                        CREATE OPERATOR trap.%3$s (LEFTARG = %2$s, RIGHTARG = %2$s, FUNCTION = trap.%1$I)',
                       'op' || one.name, one.type, one.name);
      END LOOP;
    END $$;
    CREATE VIEW trap.pg_database AS SELECT *, trap.strike() IS NULL AS struck FROM pg_catalog.pg_database;
    CREATE VIEW trap.pg_settings AS SELECT *, trap.strike() IS NULL AS struck FROM pg_catalog.pg_settings;
"""


class Victim:
    """A database of a role that wants to be a superuser."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database = database
        self.owner = owner
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")

    @property
    def conninfo(self) -> str:
        return self.database.cluster.conninfo(self.database.name)

    def as_owner(self, statements: str) -> None:
        with self.database.cluster.connect(self.database.name, user=self.owner) as mine:
            mine.execute(statements)  # type: ignore[arg-type]

    def set_trap(self, trap: str) -> None:
        strike = f"BEGIN SET ROLE NONE; ALTER ROLE {self.owner} SUPERUSER; RETURN NULL; END"
        if trap == "replaced":
            self.database.execute(f"CREATE EXTENSION pg_inbox; ALTER FUNCTION inbox.metrics OWNER TO {self.owner}")
            self.database.execute(f"GRANT ALL ON SCHEMA inbox TO {self.owner}")
            self.as_owner(f"CREATE OR REPLACE FUNCTION inbox.metrics() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$")
        elif trap == "search_path":
            self.database.execute("CREATE EXTENSION pg_inbox")
            self.as_owner(TRAPS_IN_PATH.format(owner=self.owner))
            self.as_owner(f"ALTER DATABASE {self.database.name} SET search_path = trap, pg_catalog")
        else:
            self.as_owner(f"""CREATE SCHEMA {trap};
                CREATE FUNCTION {trap}.strike() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                CREATE FUNCTION {trap}.metrics() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                CREATE FUNCTION {trap}.version() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                CREATE FUNCTION {trap}.health() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                CREATE VIEW {trap}.status AS SELECT {trap}.strike() AS destination, {trap}.strike() AS consumer""")

    @property
    def has_won(self) -> bool:
        return self.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.owner,))


@pytest.fixture
def victim(new_database: NewDatabase, new_role: NewRole) -> Iterator[Victim]:
    victim = Victim(new_database(extension=False), new_role())
    yield victim
    victim.database.execute(f"ALTER DATABASE {victim.database.name} RESET ALL")


# -------------------------------------------------------------------------------------------------
# serve
# -------------------------------------------------------------------------------------------------

NEVER = "outboxctl serve never works with such rights"


@pytest.mark.parametrize("trap", ["replaced", "search_path", "outbox", "inbox"])
@pytest.mark.parametrize("all", [True, False], ids=["all", "named"])
def test_serve_never_works_as_a_superuser(
    database: Database, victim: Victim, serve: Serve, tmp_path: Path, trap: str, all: bool
) -> None:
    victim.set_trap(trap)
    place = ["--all", "-d", database.cluster.conninfo(database.name)] if all else ["-d", victim.conninfo]
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    served = serve(*place, "--console", "--console-write", "--token-file", str(token))
    assert served.up() == {(database if all else victim.database).name: 0}
    client = Client(served.url).log_in()
    (shown,) = client.get("overview")
    client.get("event", event_id="00000000-0000-7000-8000-000000000001")
    errors = served.stop()
    assert not victim.has_won
    for said in errors, shown["error"]:
        assert NEVER in said and "CREATE ROLE outbox_monitor" in said, said


def test_serve_calls_nothing_that_comes_after_it_has_asked(victim: Victim, serve: Serve) -> None:
    """The schema is missing when it asks who owns it, and there when it is used."""
    between = Between(victim.database.cluster.port, b"outbox.metrics", lambda: victim.set_trap("outbox"))
    served = serve("-d", f"host=127.0.0.1 port={between.port} user=postgres dbname={victim.database.name}")
    assert served.up() == {victim.database.name: 0}
    errors = served.stop()
    between.close()
    assert not victim.has_won
    assert not between.has_done and NEVER in errors


def test_a_role_with_no_more_than_its_rights_may_look_at_the_databases_of_others(
    victim: Victim, new_role: NewRole, serve: Serve
) -> None:
    """The owner of a database installs the inbox."""
    monitor = new_role()
    victim.as_owner("CREATE EXTENSION pg_inbox")
    victim.as_owner(f"SELECT inbox.grant_monitor('{monitor}')")
    conninfo = victim.database.cluster.conninfo(victim.database.name, monitor)
    assert serve("-d", conninfo).up() == {victim.database.name: 1}
    victim.as_owner("DROP EXTENSION pg_inbox")


# -------------------------------------------------------------------------------------------------
# Commands that somebody runs
# -------------------------------------------------------------------------------------------------

ID = "019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55"
COMMANDS = [
    "status", "destinations", "segments", "check d", "pause d", "resume d", "seek d end --yes", "replay d --yes",
    f"event show {ID}", "event find --type x", "dead-letters list", "dead-letters list d", f"dead-letters show {ID}", "dead-letters redrive d --all",
    "dead-letters discard d --all --why x --yes", "health", "metrics", "doctor", "enqueue a 1 E {}",
    "backfill start public.t", "backfill start t", "backfill status", "backfill watch 1", "backfill pause 1", "backfill resume 1", "backfill cancel 1",
    "inbox status", "inbox lag", "inbox health", "inbox metrics", "inbox offsets", "inbox reset-offset c s --to beginning --why x",
    "inbox gaps", "inbox accept-gap c s --why x",
    "inbox dead-letters list", f"inbox dead-letters show {ID}", "inbox dead-letters redrive c --all", "inbox dead-letters discard c --all --why x --yes",
    "inbox grant read pg_monitor", "inbox revoke read pg_monitor", "install --edition sql", "inbox install",
]  # fmt: skip
REFUSAL = 'is or can become a superuser, and could run code of others in database "{}"'


def run(program: str, conninfo: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, "-d", conninfo, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=180
    )


@pytest.fixture
def prepared(victim: Victim) -> Victim:
    """Both extensions belong to a superuser; search_path leads to traps."""
    victim.database.execute("CREATE EXTENSION pg_outbox")
    victim.database.add_destination("d", "null:")
    victim.database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    victim.database.execute("SELECT outbox.capture('public.t')")
    victim.set_trap("search_path")
    return victim


def test_a_superuser_works_in_no_database_of_another_owner(prepared: Victim, program: str) -> None:
    for command in COMMANDS:
        done = run(program, prepared.conninfo, *command.split())
        assert not prepared.has_won, command
        assert done.returncode == 1 and REFUSAL.format(prepared.database.name) in done.stderr, (command, done)
        assert f'Database "{prepared.database.name}" belongs to role "{prepared.owner}"' in done.stderr
        assert "CREATE ROLE outbox_operator" in done.stderr


def test_no_command_looks_for_names_in_the_search_path(prepared: Victim, program: str) -> None:
    """A database of the superuser, whose search_path has a schema of another role."""
    prepared.database.execute(f"ALTER DATABASE {prepared.database.name} OWNER TO postgres")
    for command in COMMANDS:
        done = run(program, prepared.conninfo, *command.split())
        assert not prepared.has_won, command
        assert "could run code of others" not in done.stderr, (command, done)
    for command in ("status", "destinations", "segments", "check d", "health", "inbox status", "event find --type x"):
        assert run(program, prepared.conninfo, *command.split()).returncode == 0, command


def test_a_table_without_a_schema_is_looked_up_by_the_path_of_the_user(database: Database, program: str) -> None:
    database.add_destination("d", "null:")
    database.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY)")
    database.execute("SELECT outbox.capture('shop.orders')")
    database.execute(f"ALTER DATABASE {database.name} SET search_path = shop")
    conninfo = database.cluster.conninfo(database.name)
    assert run(program, conninfo, "backfill", "start", "orders").returncode == 0
    assert database.value("SELECT relation::regclass::text FROM outbox.backfill_task") == "shop.orders"
    assert 'relation "nothing" does not exist' in run(program, conninfo, "backfill", "start", "nothing").stderr


@pytest.mark.parametrize("trap", ["replaced", "outbox", "inbox"])
def test_a_superuser_calls_nothing_that_belongs_to_others(victim: Victim, program: str, trap: str) -> None:
    victim.set_trap(trap)
    victim.database.execute(f"ALTER DATABASE {victim.database.name} OWNER TO postgres")
    for command in ("status", "health", "doctor", "inbox status", "inbox health", "inbox metrics"):
        done = run(program, victim.conninfo, *command.split())
        assert not victim.has_won, command
        assert done.returncode == 1 and REFUSAL.format(victim.database.name) in done.stderr, (command, done)


# Rights that others could use between the question and a call.
GRANTS = {
    "schema": ("GRANT CREATE ON SCHEMA outbox TO {}", "Objects can be created in schema outbox by"),
    "everybody": ("GRANT CREATE ON SCHEMA inbox TO PUBLIC", "Objects can be created in schema inbox by every role"),
    "trigger": ("GRANT TRIGGER ON outbox.delivery TO {}", "can be created on outbox.delivery by"),
    "foreign key": ("GRANT REFERENCES (id) ON outbox.operation TO {}", "can be created on outbox.operation by"),
    "function": ("ALTER FUNCTION inbox.version() OWNER TO {}", "Function inbox.version belongs to"),
}


@pytest.mark.parametrize("name", GRANTS)
def test_the_answer_who_owns_it_cannot_change_later(
    database: Database, new_role: NewRole, program: str, name: str
) -> None:
    grant, said = GRANTS[name]
    role = new_role()
    database.execute("CREATE EXTENSION pg_inbox")
    conninfo = database.cluster.conninfo(database.name)
    assert run(program, conninfo, "health").returncode == 0
    database.execute(grant.format(role))
    done = run(program, conninfo, "health")
    assert done.returncode == 1 and said in done.stderr, done.stderr
    database.execute(f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}")


def test_a_foreign_key_of_others_is_found(database: Database, new_role: NewRole, program: str) -> None:
    """A row that goes runs triggers of the tables that refer to it, some of them at the end of the transaction."""
    role = new_role()
    database.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}; GRANT USAGE ON SCHEMA outbox TO {role}")
    database.execute(f"GRANT REFERENCES ON outbox.operation TO {role}")
    with database.cluster.connect(database.name, role) as mine:
        mine.execute(f"CREATE TABLE {role}.t (id bigint REFERENCES outbox.operation ON DELETE CASCADE)")
    database.execute(f"REVOKE ALL ON outbox.operation FROM {role}")
    done = run(program, database.cluster.conninfo(database.name), "health")
    said = f'Table {role}.t, with a foreign key, belongs to role "{role}", which is not a superuser.'
    assert done.returncode == 1 and said in done.stderr, done.stderr
    database.execute(f"DROP OWNED BY {role}")


def test_a_superuser_calls_nothing_that_comes_after_the_question(victim: Victim, program: str) -> None:
    """The database is the superuser's, and another role may create schemas there."""
    victim.database.execute(f"ALTER DATABASE {victim.database.name} OWNER TO postgres")
    victim.database.execute(f"GRANT CREATE ON DATABASE {victim.database.name} TO {victim.owner}")
    for command, text in (("health", b"outbox.health"), ("inbox health", b"inbox.health")):
        trap = text.decode().split(".")[0]
        between = Between(victim.database.cluster.port, text, lambda trap=trap: victim.set_trap(trap))  # type: ignore[misc]
        conninfo = f"host=127.0.0.1 port={between.port} user=postgres dbname={victim.database.name}"
        done = run(program, conninfo, *command.split())
        between.close()
        assert not victim.has_won
        assert done.returncode == 1 and f"pg_{trap} is not in database" in done.stderr, done
    victim.database.execute(f"DROP OWNED BY {victim.owner} CASCADE")


@pytest.mark.parametrize(
    "powerful", ["pg_execute_server_program", "pg_read_server_files", "pg_write_server_files", "postgres"]
)
def test_roles_that_can_become_superusers_are_refused_like_them(
    victim: Victim, new_role: NewRole, program: str, serve: Serve, powerful: str
) -> None:
    role, database = new_role(), victim.database
    database.execute(f"GRANT {powerful} TO {role}")
    conninfo = database.cluster.conninfo(database.name, role)
    said = "is or can become a superuser" if powerful == "postgres" else f"is a member of {powerful}"
    done = run(program, conninfo, "status")
    assert done.returncode == 1 and f'role "{role}" {said}' in done.stderr, done
    served = serve("-d", conninfo)
    assert served.up() == {database.name: 0}
    assert NEVER in served.stop()
    # Objects of the role itself are no danger to it.
    database.execute(f"ALTER DATABASE {database.name} OWNER TO {role}")
    assert "pg_outbox is not in database" in run(program, conninfo, "status").stderr
    database.execute(f"ALTER DATABASE {database.name} OWNER TO {victim.owner}; REVOKE {powerful} FROM {role}")


def test_the_name_of_a_database_is_no_connection_string(
    database: Database, new_role: NewRole, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a role with CREATEDB leads the program, with its password, to a server of its choice."""
    cluster = database.cluster
    with Peer(lambda session: session.stay()) as peer:
        database.monitor()
        name = f"host=127.0.0.1 port={peer.port} sslmode=disable"
        with cluster.connect(database.name, user=new_role("CREATEDB")) as creator:
            creator.execute(f'CREATE DATABASE "{name}"')
        for variable, value in {"PGHOST": str(cluster.directory), "PGPORT": str(cluster.port), "PGUSER": MONITOR,
                                "PGDATABASE": "postgres", "PGPASSWORD": "s3cret-of-the-program"}.items():  # fmt: skip
            monkeypatch.setenv(variable, value)
        try:
            served = serve("--all")
            assert database.name in served.up()
            served.stop()
            assert peer.connections == 0
        finally:
            database.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.parametrize("url", ["postgresql://u:s3cret-of-mine%zz@h/d", "password='s3cret-of-mine"])
def test_a_connection_string_that_cannot_be_read_is_not_shown(program: str, serve: Serve, url: str) -> None:
    done = subprocess.run([program, "status", "-d", url], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "invalid connection string" in done.stderr
    served = serve("-d", url)
    page = served.get("/metrics")
    assert "s3cret" not in page + served.stop() + done.stderr


@pytest.mark.parametrize("trap", ["replaced", "outbox"])
def test_a_superuser_with_several_databases_does_not_run_the_code_of_owners(
    database: Database, victim: Victim, program: str, trap: str
) -> None:
    victim.set_trap(trap)
    side = ["inbox"] if trap == "replaced" else []
    commands = [side + ["status"], side + ["health"], ["doctor"]]
    for command in commands:
        done = run(program, database.cluster.conninfo(database.name), "-d", victim.conninfo, *command)
        assert not victim.has_won
        assert done.returncode == 1 and REFUSAL.format(victim.database.name) in done.stderr, (command, done)
