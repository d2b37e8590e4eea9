"""outboxctl migrate-edition runs as a superuser on tables of others: their owner's code must not run as a superuser."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from database import Database, NewDatabase

from .attacker import NewRole
from .between import Between

# By the owner: functions that note whether they run as a superuser, at once or at the end of the transaction. A
# sequence forgets nothing when the transaction is rolled back.
EVIL = """
    CREATE SCHEMA evil;
    GRANT USAGE ON SCHEMA evil TO PUBLIC;
    CREATE SEQUENCE evil.struck;
    GRANT ALL ON SEQUENCE evil.struck TO PUBLIC;
    CREATE TABLE evil.later (n int);
    CREATE FUNCTION evil.strike() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
      IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN
        PERFORM pg_catalog.nextval('evil.struck');
      END IF; END $$;
    CREATE FUNCTION evil.strike_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.strike(); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER later AFTER INSERT ON evil.later DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION evil.strike_later();
    CREATE FUNCTION evil.go() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
      PERFORM evil.strike();
      IF current_setting('transaction_read_only')::boolean THEN RETURN true; END IF; -- no subtransaction there
      BEGIN INSERT INTO evil.later VALUES (1); EXCEPTION WHEN OTHERS THEN NULL; END;
      BEGIN SET ROLE NONE; PERFORM evil.strike(); EXCEPTION WHEN OTHERS THEN NULL; END;
      RETURN true; END $$;
    CREATE FUNCTION evil.text(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM evil.go(); RETURN $1; END $$;
    CREATE FUNCTION evil.is_true(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN evil.go(); END $$;
    CREATE DOMAIN evil.number AS int CHECK (evil.go());
    CREATE TYPE evil.mood AS ENUM ('a');
    CREATE FUNCTION evil.to_json(evil.mood) RETURNS json LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.go(); RETURN '1'; END $$;
    CREATE CAST (evil.mood AS json) WITH FUNCTION evil.to_json(evil.mood);
"""
CONDITION = "the condition of the captured table {} calls code of a role that is not a superuser"
LITERAL = "'{1}'::evil.number[] IS NOT NULL"

# By name: what the owner of an SQL edition does, and what the refusal says; None if nothing is refused.
TRAPS = {
    "statistics": ("CREATE STATISTICS evil.s ON (evil.text('const')), name FROM outbox.destination_config",
                   "statistics object evil.s depends on pg_outbox"),
    "statistics of rows": ("CREATE STATISTICS evil.s ON (evil.text('const')), destination FROM outbox.cursor", "statistics object evil.s"),
    "index": ("DROP INDEX outbox.cursor_destination; CREATE INDEX cursor_destination ON outbox.cursor (evil.text('const'))",
              "index outbox.cursor_destination calls code"),
    "predicate": ("DROP INDEX outbox.delivery_due; CREATE INDEX delivery_due ON outbox.delivery (destination) WHERE evil.is_true('const')",
                  "index outbox.delivery_due calls code"),
    "cast": ("ALTER TABLE outbox.setting ADD COLUMN z evil.mood DEFAULT 'a'; INSERT INTO outbox.setting VALUES ('retention', '1d')",
             'column "z" of table outbox.setting has the type evil.mood'),
    "domain": ("ALTER TABLE outbox.home ADD COLUMN z evil.number", 'column "z" of table outbox.home has the type evil.number'),
    "child": ("CREATE TABLE evil.child () INHERITS (outbox.captured); CREATE STATISTICS evil.s ON (evil.text('const')), topic FROM evil.child",
              "table evil.child depends on pg_outbox"),
    "view": ("ALTER TABLE outbox.setting RENAME TO upkeep_2; CREATE VIEW outbox.setting AS SELECT evil.text('name') AS name, '1' AS value",
             "table outbox.setting is not a plain table"),
    "rule": ("ALTER TABLE outbox.fetcher RENAME TO fetcher_2; CREATE TABLE outbox.fetcher AS SELECT * FROM outbox.fetcher_2 LIMIT 0; "
             "CREATE RULE \"_RETURN\" AS ON SELECT TO outbox.fetcher DO INSTEAD SELECT * FROM outbox.fetcher_2 WHERE evil.go()",
             "table outbox.fetcher is not a plain table"),
    "policy": ("CREATE POLICY p ON outbox.captured USING (evil.go()); ALTER TABLE outbox.captured ENABLE ROW LEVEL SECURITY",
               "policy p on table outbox.captured depends"),
    "check": ("ALTER TABLE outbox.captured ADD CHECK (evil.is_true('const')); ALTER DATABASE {database} SET constraint_exclusion = on", None),
    "default": ("ALTER TABLE outbox.setting ALTER value SET DEFAULT evil.text('const')", None),
    "trigger": ("CREATE TRIGGER mine BEFORE UPDATE ON outbox.cursor FOR EACH ROW EXECUTE FUNCTION evil.strike_later()",
                "trigger mine on table outbox.cursor does not belong"),
    "filter": ("SET session_replication_role = replica; INSERT INTO outbox.destination_config VALUES "
               "('d', jsonb_build_object('url', 'null:', 'filter', $f$" + LITERAL + "$f$))", None),
    "view of its own": (f"CREATE VIEW evil.mine AS SELECT event_id, {LITERAL} AS x FROM outbox.event", None),
    "trigger of a view": (
        "CREATE VIEW evil.mine AS SELECT event_id FROM outbox.event; CREATE TRIGGER t BEFORE UPDATE ON evil.mine FOR EACH STATEMENT "
        f"WHEN ({LITERAL}) EXECUTE FUNCTION outbox.refuse_change()", "trigger t on view evil.mine depends on pg_outbox"),
    "condition": ("CREATE TABLE evil.t (id int PRIMARY KEY); "
                  f"SELECT outbox.capture('evil.t', condition => $f$ {LITERAL} $f$)", None),
}  # fmt: skip


class Edition:
    """The SQL edition of a role that wants to be a superuser, in its own database."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database, self.owner = database, owner
        self.program = str(database.cluster.installation.build / "tools/outboxctl/outboxctl")
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")

    def install(self) -> None:
        done = subprocess.run(
            [self.program, "install", "--edition", "sql", "-d", self.database.cluster.conninfo(self.database.name, self.owner)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.database.set_in_database(self.database.cluster.settings)

    def as_owner(self, statements: str) -> None:
        with self.database.cluster.connect(self.database.name, self.owner) as mine:
            for statement in statements.split("; ") if "$$" not in statements else [statements]:
                mine.execute(statement)  # type: ignore[arg-type]

    def migrate(self, *arguments: str, to: str = "native", conninfo: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, "migrate-edition", "--to", to, *arguments, "-d", conninfo or self.database.cluster.conninfo(self.database.name)],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=180,
        )  # fmt: skip

    @property
    def has_won(self) -> bool:
        return self.database.value("SELECT is_called FROM evil.struck")


@pytest.fixture
def edition(new_database: NewDatabase, new_role: NewRole) -> Iterator[Edition]:
    edition = Edition(new_database(extension=False), new_role())
    yield edition
    edition.database.execute(f"ALTER DATABASE {edition.database.name} RESET ALL")


@pytest.mark.worker_errors("evil")
@pytest.mark.parametrize("trap", TRAPS)
def test_the_owner_of_an_sql_edition_runs_nothing_as_the_superuser_that_migrates(edition: Edition, trap: str) -> None:
    statements, reason = TRAPS[trap]
    edition.install()
    edition.as_owner(EVIL)
    if "session_replication_role" in statements:  # which only a superuser sets; an owner disables the trigger
        statements = statements.replace(
            "SET session_replication_role = replica", "ALTER TABLE outbox.destination_config DISABLE TRIGGER ALL"
        ).replace("DISABLE TRIGGER ALL", "DISABLE TRIGGER USER")
    edition.as_owner(statements.replace("{database}", edition.database.name))
    for arguments in ("--check",), ("--yes",):
        done = edition.migrate(*arguments)
        assert not edition.has_won, (arguments, done)
        assert (done.returncode, reason is None or reason in done.stderr) == (0 if reason is None else 1, True), done


def test_nothing_is_added_between_the_comparison_and_the_reading(edition: Edition) -> None:
    edition.install()
    edition.as_owner(EVIL)
    failed: list[str | None] = []

    def set_trap() -> None:
        try:
            edition.as_owner("SET lock_timeout = '1s'; " + TRAPS["statistics"][0])
        except psycopg.Error as error:
            failed.append(error.sqlstate)

    for text, expected in (
        (b"SELECT outbox_migration.foresee()", "55P03"),
        (b"SELECT outbox_migration.put_aside()", "55P03"),
    ):
        between = Between(edition.database.cluster.port, text, set_trap)
        conninfo = f"host=127.0.0.1 port={between.port} user=postgres dbname={edition.database.name}"
        done = edition.migrate("--check" if b"foresee" in text else "--yes", conninfo=conninfo)
        between.close()
        assert between.has_done and failed.pop() == expected, failed
        assert done.returncode == 0 and not edition.has_won, done


@pytest.mark.parametrize("harmless", ["state <> 'draft'", "mood = 'a'"])
def test_a_condition_that_calls_nothing_of_its_owner_goes_along(
    database: Database, new_role: NewRole, harmless: str
) -> None:
    edition = Edition(database, new_role())
    edition.as_owner(EVIL)
    database.execute(f"SELECT outbox.grant_capture('{edition.owner}')")
    edition.as_owner("CREATE TABLE evil.t (id int PRIMARY KEY, state text, mood evil.mood)")
    edition.as_owner(f"SELECT outbox.capture('evil.t', condition => $f$ {harmless} $f$)")
    done = edition.migrate("--yes", to="sql")
    assert done.returncode == 0 and not edition.has_won, done


def test_a_condition_with_code_of_its_owner_is_refused_on_the_way_to_sql(database: Database, new_role: NewRole) -> None:
    edition = Edition(database, new_role())
    edition.as_owner(EVIL)
    database.execute(f"SELECT outbox.grant_capture('{edition.owner}')")
    edition.as_owner("CREATE TABLE evil.t (id int PRIMARY KEY)")
    edition.as_owner(f"SELECT outbox.capture('evil.t', condition => $f$ {LITERAL} $f$)")
    done = edition.migrate("--yes", to="sql")
    assert done.returncode == 1 and not edition.has_won
    assert CONDITION.format("evil.t") in done.stderr, done


def test_a_condition_is_not_given_to_a_partition_of_a_superuser(edition: Edition) -> None:
    edition.install()
    edition.as_owner(EVIL)
    edition.as_owner("CREATE TABLE evil.p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    edition.as_owner("CREATE TABLE evil.q PARTITION OF evil.p FOR VALUES FROM (0) TO (9)")
    edition.as_owner(f"SELECT outbox.capture('evil.p', condition => $f$ {LITERAL} $f$)")
    edition.database.execute("ALTER TABLE evil.q OWNER TO postgres")
    done = edition.migrate("--yes")
    assert done.returncode == 1 and not edition.has_won, done
    assert CONDITION.format("evil.p") in done.stderr, done


def test_an_edition_of_a_role_without_rights_is_migrated(edition: Edition) -> None:
    """What it may do afterwards is in tests/system/test_migrate_edition.py."""
    edition.install()
    edition.as_owner(
        """INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:", "filter": "topic <> ''x''"}')"""
    )
    edition.as_owner("SELECT outbox.enqueue('item', '1', 'made', '{}')")
    done = edition.migrate("--yes")
    assert done.returncode == 0, done.stderr
    database = edition.database
    assert database.execute("SELECT srvname, pg_get_userbyid(srvowner)::text FROM pg_foreign_server") == [
        ("d", edition.owner)
    ]
    assert not database.value("SELECT has_foreign_data_wrapper_privilege(%s, 'pg_outbox', 'USAGE')", (edition.owner,))
    assert database.value("SELECT count(*) FROM outbox.event") == 1
    database.execute("DROP EXTENSION pg_outbox CASCADE")
