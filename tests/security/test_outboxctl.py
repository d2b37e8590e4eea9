"""outboxctl as a superuser in databases of others: their owners' code must not run as a superuser."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from database import Database, NewDatabase
from served import Served
from test_console import TOKEN, Client

from .attacker import NewRole
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


class Victim:
    """A database of a role that wants to be a superuser."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database = database
        self.owner = owner
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")

    @property
    def conninfo(self) -> str:
        return self.database.cluster.conninfo(self.database.name)

    def set_trap(self, trap: str) -> None:
        strike = f"BEGIN SET ROLE NONE; ALTER ROLE {self.owner} SUPERUSER; RETURN NULL; END"
        if trap == "replaced":
            self.database.execute(f"CREATE EXTENSION pg_inbox; ALTER FUNCTION inbox.metrics OWNER TO {self.owner}")
            self.database.execute(f"GRANT ALL ON SCHEMA inbox TO {self.owner}")
        with self.database.cluster.connect(self.database.name, user=self.owner) as mine:
            if trap == "replaced":
                mine.execute(
                    f"CREATE OR REPLACE FUNCTION inbox.metrics() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$"
                )
            elif trap == "search_path":
                self.database.execute("CREATE EXTENSION pg_inbox")
                mine.execute(f"""CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
                    CREATE FUNCTION trap.strike(name, text) RETURNS boolean LANGUAGE plpgsql AS $$
                      BEGIN ALTER ROLE {self.owner} SUPERUSER; RETURN true; EXCEPTION WHEN OTHERS THEN RETURN true; END $$;
                    CREATE OPERATOR trap.= (LEFTARG = name, RIGHTARG = text, FUNCTION = trap.strike);
                    CREATE FUNCTION trap.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE FUNCTION trap.to_regproc(text) RETURNS regproc LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE FUNCTION trap.to_regclass(text) RETURNS regclass LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE VIEW trap.pg_database AS SELECT *, trap.strike(datname, '') FROM pg_catalog.pg_database;
                    ALTER DATABASE {self.database.name} SET search_path = trap, pg_catalog""")
            else:
                schema = trap
                mine.execute(f"""CREATE SCHEMA {schema};
                    CREATE FUNCTION {schema}.strike() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE FUNCTION {schema}.metrics() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE FUNCTION {schema}.health() RETURNS text LANGUAGE plpgsql AS $$ {strike} $$;
                    CREATE VIEW {schema}.status AS SELECT {schema}.strike() AS destination, {schema}.strike() AS consumer""")

    @property
    def has_won(self) -> bool:
        return self.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.owner,))


@pytest.fixture
def victim(new_database: NewDatabase, new_role: NewRole) -> Iterator[Victim]:
    victim = Victim(new_database(extension=False), new_role())
    yield victim
    victim.database.execute(f"ALTER DATABASE {victim.database.name} RESET ALL")


REFUSAL = 'is or can become a superuser, and pg_outbox or pg_inbox in database "{}" belongs to roles that are not'


@pytest.mark.parametrize("trap", ["replaced", "search_path", "outbox", "inbox"])
@pytest.mark.parametrize("all", [True, False], ids=["all", "named"])
def test_a_superuser_that_serves_does_not_run_the_code_of_owners(
    database: Database, victim: Victim, serve: Serve, tmp_path: Path, trap: str, all: bool
) -> None:
    victim.set_trap(trap)
    place = ["--all", "-d", database.cluster.conninfo(database.name)] if all else ["-d", victim.conninfo]
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    served = serve(*place, "--console", "--console-write", "--token-file", str(token))
    up = served.up()
    assert not victim.has_won
    assert up[victim.database.name] == (1 if trap == "search_path" else 0)
    if all:
        assert up[database.name] == 1, "whatever is wrong with another one"
    client = Client(served.url).log_in()
    shown = {row["database"]: row.get("error", "") for row in client.get("overview")}
    client.get("event", event_id="00000000-0000-7000-8000-000000000001")
    errors = served.stop()
    assert not victim.has_won
    if trap != "search_path":
        assert REFUSAL.format(victim.database.name) in errors
        assert REFUSAL.format(victim.database.name) in shown[victim.database.name]
        assert "outbox.grant_monitor()" in shown[victim.database.name]


def test_the_name_of_a_database_is_no_connection_string(
    database: Database, new_role: NewRole, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a role with CREATEDB leads the program, with its password, to a server of its choice."""
    cluster = database.cluster
    with Peer(lambda session: session.stay()) as peer:
        name = f"host=127.0.0.1 port={peer.port} sslmode=disable"
        with cluster.connect(database.name, user=new_role("CREATEDB")) as creator:
            creator.execute(f'CREATE DATABASE "{name}"')
        for variable, value in {"PGHOST": str(cluster.directory), "PGPORT": str(cluster.port), "PGUSER": "postgres",
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
        done = subprocess.run(
            [program, "-d", database.cluster.conninfo(database.name), "-d", victim.conninfo, *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not victim.has_won
        assert done.returncode == 1 and REFUSAL.format(victim.database.name) in done.stderr, (command, done)


def test_a_role_with_no_more_than_its_rights_may_look_at_the_databases_of_others(
    victim: Victim, new_role: NewRole, serve: Serve
) -> None:
    """The owner of a database installs the inbox."""
    monitor = new_role()
    with victim.database.cluster.connect(victim.database.name, user=victim.owner) as mine:
        mine.execute("CREATE EXTENSION pg_inbox")
        mine.execute(f"SELECT inbox.grant_monitor('{monitor}')")
    assert serve("-d", victim.conninfo).up() == {victim.database.name: 0}
    assert serve("-d", victim.database.cluster.conninfo(victim.database.name, monitor)).up() == {
        victim.database.name: 1
    }
    with victim.database.cluster.connect(victim.database.name, user=victim.owner) as mine:
        mine.execute("DROP EXTENSION pg_inbox")
