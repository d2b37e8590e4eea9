"""outboxctl migrate-edition: from the extension to the SQL edition and back, with all that is in it."""

from __future__ import annotations

import json
import stat
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster import Installation, MakeCluster
from database import Database, NewDatabase
from outbox_relay import OutboxRelay
from receiver import Receiver
from waiting import wait_until

Migrate = Callable[..., str]


def connect(database: Database, role: str) -> psycopg.Connection:
    return database.cluster.connect(database.name, role)


# Tables that are not taken along as they are: tools/outboxctl/migrate_edition/find.sql says why.
LEFT_BEHIND = {"relay", "relay_lease", "relay_status", "upkeep", "home", "setting", "destination_config", "fetcher"}


@pytest.fixture
def migrate(installation: Installation) -> Migrate:
    def run(database: Database, to: str, *arguments: str, user: str = "postgres", lock_timeout: int = 60) -> str:
        """Returns the exit code and output of outboxctl."""
        if "--check" not in arguments:
            arguments = ("--yes", *arguments)
        done = subprocess.run(
            [str(installation.build / "tools/outboxctl/outboxctl"), "migrate-edition", "--to", to,
             "--lock-timeout", str(lock_timeout), *arguments, "-d", database.cluster.conninfo(database.name, user)],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}{done.stderr}".strip()

    return run


def edition_of(database: Database) -> str:
    return database.value("SELECT outbox_internal.edition()")


# -------------------------------------------------------------------------------------------------
# A database with something of everything
# -------------------------------------------------------------------------------------------------

ROLES = ("producer", "fetching", "operator", "monitor", "relaying", "shop", "reader")


class World:
    """pg_outbox with a backlog, trouble, captured tables, views and rights. Nobody delivers."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.roles = {name: f"{name}_{database.name}" for name in ROLES}
        for role in self.roles.values():
            database.execute(f"CREATE ROLE {role} LOGIN")
        database.add_destination("audit", "null:", max_attempts="3", relay="external")
        database.add_destination("search", "https://127.0.0.1:9/events", topics="item.*, shop.*", relay="external")
        database.execute("CREATE USER MAPPING FOR PUBLIC SERVER search OPTIONS (token 'a \"secret\"')")
        database.execute("SELECT outbox.pause('search')")
        database.add_destination("taken", "pull:", topics="item.*", lanes="2")
        self.tables()
        self.rights()
        self.events()
        self.trouble()

    def remove(self) -> None:
        for role in self.roles.values():
            self.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")

    def as_role(self, name: str) -> psycopg.Connection:
        return connect(self.database, self.roles[name])

    def tables(self) -> None:
        shop = self.roles["shop"]
        self.database.execute(
            f"SELECT outbox.grant_capture('{shop}', 'shop.*'), outbox.grant_produce('{shop}', 'shop.*')"
        )
        self.database.execute(f"CREATE SCHEMA shop AUTHORIZATION {shop}; GRANT USAGE ON SCHEMA shop TO PUBLIC")
        with self.as_role("shop") as session:
            session.execute("SET search_path = shop")
            session.execute('CREATE TABLE orders (id int PRIMARY KEY, state text, "Amount" int, note text)')
            session.execute(
                "SELECT outbox.capture('orders', topic => 'shop.orders', condition => 'state <> ''draft''', "
                "on_truncate => 'announce', exclude => '{note}', on_update => 'diff')"
            )
            session.execute("CREATE TABLE parts (id int, part text, PRIMARY KEY (part, id)) PARTITION BY LIST (part)")
            session.execute("CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a')")
            session.execute("CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b')")
            session.execute("SELECT outbox.capture('parts', topic => 'shop.parts', fire => 'always')")
            session.execute('ALTER TABLE parts_b DISABLE TRIGGER "00_outbox_capture_update"')
            session.execute("CREATE TABLE parents (id int PRIMARY KEY)")
            session.execute("CREATE TABLE children () INHERITS (parents)")
            session.execute("ALTER TABLE children ADD PRIMARY KEY (id)")
            session.execute("SELECT outbox.capture('parents', topic => 'shop.parents', on_truncate => 'refuse')")
            self.make_view()
            session.execute("CREATE VIEW of_carts AS SELECT id, payload FROM shop.outbox WHERE aggregate_type = 'cart'")
            session.execute(f"GRANT INSERT, SELECT ON shop.outbox TO {self.roles['producer']}")
        self.database.execute("CREATE VIEW shop.figures AS SELECT destination, state, held_keys FROM outbox.status")

    def make_view(self) -> None:
        shop = self.roles["shop"]
        self.database.execute(
            f"GRANT SELECT ON outbox.event_progress TO {shop}"
        )  # the view shows the log with its rights
        self.database.execute(
            "SELECT outbox.create_outbox_view('shop.outbox', 'seed', 'text/plain', 'shop.{aggregate_type}', 'all')"
        )
        self.database.execute(f"ALTER VIEW shop.outbox OWNER TO {shop}")

    def rights(self) -> None:
        roles = self.roles
        self.database.execute(f"SELECT outbox.grant_produce('{roles['producer']}', 'item.*, shop.*')")
        self.database.execute(f"SELECT outbox.grant_operate('{roles['operator']}')")
        self.database.execute(f"SELECT outbox.grant_monitor('{roles['monitor']}')")
        self.database.execute(f"SELECT outbox.grant_relay('{roles['relaying']}')")
        self.database.execute(f"SELECT outbox.grant_fetch('{roles['fetching']}')")
        self.database.execute(f"GRANT USAGE ON FOREIGN SERVER taken TO {roles['fetching']}")
        self.database.execute("SELECT outbox.revoke_monitor('pg_monitor')")
        self.database.execute(f"GRANT SELECT ON outbox.event TO {roles['reader']} WITH GRANT OPTION")
        self.database.execute(f"GRANT SELECT (destination, paused) ON outbox.cursor TO {roles['reader']}")
        self.database.execute(f"GRANT USAGE ON SCHEMA outbox TO {roles['reader']}")
        self.database.execute(f"GRANT EXECUTE ON FUNCTION outbox.event_status TO {roles['reader']}")

    def events(self) -> None:
        for segment in (0, 2):
            self.database.move_to_segment(segment)
            with self.database.connect() as session:
                for key in ("a", "b", "c"):
                    session.execute(
                        "SELECT outbox.enqueue('item', %s, 'changed', '{}', version => n) FROM generate_series(1, 20) AS n",
                        (f"{key}{segment}",),
                    )
        self.database.execute("SELECT outbox.enqueue('item', 's', 'made', '{}', source_event_id => gen_random_uuid())")
        with self.as_role("shop") as session:
            session.execute("INSERT INTO shop.orders VALUES (1, 'new', 5, 'secret'), (2, 'draft', 6, 'secret')")
            session.execute("INSERT INTO shop.parts VALUES (1, 'a'), (2, 'b')")
            session.execute("SELECT outbox.backfill('shop.parts', max_pending => 1)")
            session.execute("SELECT outbox.cancel_backfill(max(id)) FROM outbox.backfill_progress")
            session.execute("INSERT INTO shop.orders VALUES (3, 'new', 5, '')")
        self.database.execute(  # as if a row had been locked, and a destination took events exactly once
            "INSERT INTO outbox.backfill_row SELECT id, 'shop.parts_a', '{part,id}', '{a,1}' FROM outbox.backfill_task"
        )
        self.database.execute("INSERT INTO outbox.transaction VALUES ('audit', 0, 1, '{[1,3)}', '{}')")
        self.database.add_destination("hooks", "endpoints:", topics="nothing", relay="external")
        self.database.execute(
            "INSERT INTO outbox.endpoint (server, name, url, topics) VALUES ('hooks', 'acme', 'https://127.0.0.1:9/', 'a.*')"
        )
        self.database.execute("INSERT INTO outbox.position_gap VALUES (1000000000000, 1)")
        self.database.execute("INSERT INTO outbox.receipt_0 VALUES (gen_random_uuid(), 'audit', 1, now(), 'm1')")
        self.database.execute("INSERT INTO outbox.receipt_1 VALUES (gen_random_uuid(), 'audit', 2, now())")

    def trouble(self) -> None:
        """Makes retries, dead letters, held keys and a batch under a lease at the pull destination."""
        with self.as_role("fetching") as session:
            rows = session.execute(
                "SELECT token, event_id, ordering_key FROM outbox.fetch('taken', 30, '1 day')"
            ).fetchall()
            for row in (rows[0], rows[-1]):
                session.execute("SELECT outbox.nack(%s, %s, 'no', %s)", (row[0], row[1], row is rows[-1]))
            self.token = session.execute("SELECT token FROM outbox.fetch('taken', 5, '1 day')").fetchone()[0]


@pytest.fixture
def world(database: Database, http: None) -> Iterator[World]:
    world = World(database)
    yield world
    world.remove()


# -------------------------------------------------------------------------------------------------
# Rows that are compared
# -------------------------------------------------------------------------------------------------

TABLES = """
    SELECT c.relname FROM pg_class AS c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
       AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid)
"""
# Relays lose their leases, and OIDs of servers change.
FORGOTTEN = {"cursor": "- '{lease,relay,relay_locks,server}'::text[]", "producer": "- 'patterns'"}

PRIVILEGES = """
    SELECT o.kind, o.name, coalesce(r.rolname, 'PUBLIC'), a.privilege_type, a.is_grantable
      FROM (SELECT 'schema', nspname::text, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM pg_namespace
             WHERE nspname IN ('outbox', 'outbox_internal')
            UNION ALL
            SELECT 'function', oid::regprocedure::text, proowner, coalesce(proacl, acldefault('f', proowner)) FROM pg_proc
             WHERE pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
            UNION ALL
            SELECT 'relation', oid::regclass::text, relowner, coalesce(relacl, acldefault('r', relowner)) FROM pg_class
             WHERE relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND relkind IN ('r', 'v', 'S')
            UNION ALL
            SELECT 'column', attrelid::regclass || '.' || attname, relowner, attacl FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
             WHERE relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND attacl IS NOT NULL
            UNION ALL
            SELECT 'server', srvname, srvowner, srvacl FROM pg_foreign_server) AS o(kind, name, owner, acl)
     CROSS JOIN LATERAL aclexplode(o.acl) AS a
      LEFT JOIN pg_roles AS r ON r.oid = a.grantee
     WHERE a.grantee <> o.owner
"""
USER_OBJECTS = """
    SELECT tgrelid::regclass || ' ' || tgname, tgenabled::text || ' ' || pg_get_triggerdef(oid)
      FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'outbox.%%' AND tgrelid::regclass::text LIKE 'shop.%%'
    UNION ALL
    SELECT oid::regclass::text, concat(relowner::regrole, relacl, reloptions, pg_get_viewdef(oid)) FROM pg_class
     WHERE relnamespace = 'shop'::regnamespace AND relkind = 'v'
    UNION ALL
    SELECT c.oid::regclass || '.' || a.attname, pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef AS d
      JOIN pg_class AS c ON c.oid = d.adrelid JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.adnum
     WHERE c.relnamespace = 'shop'::regnamespace
"""
SERVERS = """
    SELECT srvname, array_to_string(ARRAY(SELECT o FROM unnest(srvoptions) AS o ORDER BY o), ' ') FROM pg_foreign_server
"""


def names_of(rows: list[tuple]) -> set[str]:
    return {name for (name,) in rows}


def rows_of(database: Database) -> dict[str, list[str]]:
    """Rows of all tables by table, with a row of each sequence."""
    tables = names_of(database.execute(TABLES)) - LEFT_BEHIND
    found = {
        name: sorted(
            json.dumps(row, sort_keys=True)
            for (row,) in database.execute(f"SELECT to_jsonb(r) {FORGOTTEN.get(name, '')} FROM ONLY outbox.{name} AS r")
        )
        for name in tables
    }
    for name in ("event_position", "destination_number", "operation_id"):
        found[name] = [str(row) for row in database.execute(f"SELECT last_value, is_called FROM outbox.{name}")]
    return found


def all_of(database: Database) -> dict[str, Any]:
    return {
        **rows_of(database),
        "privileges": sorted(database.execute(PRIVILEGES)),
        "objects": sorted(database.execute(USER_OBJECTS)),
        "servers": sorted(database.execute(SERVERS)),
        "settings": sorted(database.execute("SELECT name, setting FROM pg_settings WHERE name LIKE 'outbox.%'")),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, was in before.items():
        missing = [row for row in was if row not in after[name]]
        added = [row for row in after[name] if row not in was]
        assert (missing, added) == ([], []), f"{name} has changed"


# -------------------------------------------------------------------------------------------------
# Everything goes along
# -------------------------------------------------------------------------------------------------


def test_there_and_back_everything_is_the_same(world: World, migrate: Migrate, tmp_path: Path) -> None:
    database = world.database
    before = all_of(database)
    empty = {name for name, rows in before.items() if rows == []}
    assert empty <= {"event_1", "event_3", "arriving_key", "arriving_shard", "expression"}, (
        "the world of this test has to have rows in every table"
    )

    said = migrate(database, "sql", "--credentials", str(tmp_path / "secrets"))
    assert said.startswith("0 pg_outbox is the SQL edition now"), said
    in_sql = rows_of(database)
    assert_same({name: before[name] for name in in_sql}, in_sql)
    assert names_of(database.execute(TABLES)) - set(before) == LEFT_BEHIND

    said = migrate(database, "native")
    assert said.startswith("0 pg_outbox is the extension now"), said
    assert_same(before, all_of(database))
    assert database.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outbox_migration%'") == []


def test_credentials_become_a_part_of_relay_toml(world: World, migrate: Migrate, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    assert migrate(world.database, "sql", "--credentials", str(file)).startswith("0 ")
    assert tomllib.loads(file.read_text()) == {
        "credentials": {"search": {"token": 'a "secret"', "urls": ["https://127.0.0.1:9/events"]}}
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert world.database.value("SELECT options FROM outbox.destination_config WHERE name = 'search'") == {
        "url": "https://127.0.0.1:9/events", "topics": "item.*, shop.*",
    }  # fmt: skip


def test_a_file_that_exists_is_not_overwritten(world: World, migrate: Migrate, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("mine")
    said = migrate(world.database, "sql", "--credentials", str(file))
    assert said.startswith("1 ") and "could not create file" in said and "File exists" in said
    assert file.read_text() == "mine" and edition_of(world.database) == "native"


def topics_since(database: Database, position: int) -> list[tuple]:
    return database.execute(
        "SELECT topic, event_type, convert_from(payload, 'UTF8') FROM outbox.event WHERE position > %s ORDER BY position",
        (position,),
    )


def use_everything(world: World) -> list[tuple]:
    """Tables, views and rights as before; returns what came into the log."""
    before = world.database.last_position()
    with world.as_role("shop") as session:
        session.execute("UPDATE shop.orders SET state = 'new' WHERE id = 2")  # into the condition
        session.execute("UPDATE shop.orders SET note = 'more' WHERE id = 2")  # nothing captured changes
        session.execute("DELETE FROM shop.orders WHERE id = 1")
        session.execute("INSERT INTO shop.orders VALUES (9, 'draft')")
        session.execute("UPDATE shop.parts SET id = 10 WHERE part = 'a'")
        session.execute("UPDATE shop.parts SET id = 10 WHERE part = 'b'")  # that trigger is disabled
        session.execute("INSERT INTO shop.children VALUES (1)")
        session.execute("TRUNCATE shop.orders")
        with pytest.raises(psycopg.Error, match="TRUNCATE|truncate"):
            session.execute("TRUNCATE shop.parents")
        session.execute("UPDATE shop.orders SET state = 'x'; DELETE FROM shop.parts; DELETE FROM shop.children")
        session.execute("INSERT INTO shop.parts VALUES (1, 'a'), (2, 'b')")
        session.execute("INSERT INTO shop.orders VALUES (1, 'new', 5, 'secret'), (2, 'draft', 6, 'secret')")
    with world.as_role("producer") as session:
        session.execute("SELECT outbox.enqueue('item', 'p', 'changed', '{}')")
        session.execute(
            "INSERT INTO shop.outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
            "VALUES (gen_random_uuid(), 'cart', '1', 'made', 1, 'text')"
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT outbox.enqueue('other', 'p', 'changed', '{}')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT outbox.pause('audit')")
    with world.as_role("operator") as session:
        session.execute("SELECT outbox.pause('audit'), outbox.resume('audit')")
    with world.as_role("monitor") as session:
        session.execute("SELECT * FROM outbox.status")
    with world.as_role("relaying") as session:
        session.execute("SELECT * FROM outbox_internal.relay_destinations()")
    with world.as_role("reader") as session:
        assert session.execute("SELECT count(*) FROM outbox.event").fetchone() is not None
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT lease FROM outbox.cursor")
    assert world.database.value("SELECT count(*) FROM shop.figures") == 4
    assert world.database.value("SELECT count(*) FROM shop.of_carts WHERE payload = 'text'") > 0
    return topics_since(world.database, before)


def test_everything_works_as_before(world: World, migrate: Migrate, tmp_path: Path) -> None:
    natively = use_everything(world)
    assert {topic for topic, _, _ in natively} == {
        "shop.orders",
        "shop.parts",
        "shop.parents",
        "item.events",
        "shop.cart",
    }
    assert migrate(world.database, "sql", "--credentials", str(tmp_path / "secrets")).startswith("0 ")
    in_sql = use_everything(world)
    assert [(topic, kind, json.loads(data) if data.startswith("{") else data) for topic, kind, data in in_sql] == [
        (topic, kind, json.loads(data) if data.startswith("{") else data) for topic, kind, data in natively
    ]
    assert migrate(world.database, "native").startswith("0 ")
    assert [row[:2] for row in use_everything(world)] == [row[:2] for row in natively]


def test_a_fetcher_keeps_its_batch(world: World, migrate: Migrate, tmp_path: Path) -> None:
    assert migrate(world.database, "sql", "--credentials", str(tmp_path / "secrets")).startswith("0 ")
    with world.as_role("fetching") as session:
        assert session.execute("SELECT outbox.ack(%s)", (world.token,)).fetchone() == (5,)
        token = session.execute("SELECT token FROM outbox.fetch('taken', 5, '1 day')").fetchone()[0]
    assert migrate(world.database, "native").startswith("0 ")
    with world.as_role("fetching") as session:
        assert session.execute("SELECT outbox.ack(%s)", (token,)).fetchone() == (5,)
    with world.as_role("monitor") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("SELECT * FROM outbox.fetch('taken')")


def test_settings_of_the_server_become_rows(new_database: NewDatabase, migrate: Migrate) -> None:
    database = new_database({"outbox.retry_max": "7min", "outbox.max_log_size": "3GB", "outbox.receipts": "on"})
    usual = database.cluster.settings
    assert migrate(database, "sql").startswith("0 ")
    rows = dict(database.execute("SELECT name, value FROM outbox.setting"))
    assert rows["retry_max"] == "7min" and rows["max_log_size"] == "3GB" and rows["receipts"] == "on"
    assert "retention" not in rows or "outbox.retention" in usual
    assert database.value("SELECT outbox_internal.setting_number('retry_max')") == 420000


def test_an_owner_without_rights_on_the_server(world: World, migrate: Migrate) -> None:
    """It owns the SQL edition, and keeps what it could do when that becomes the extension."""
    database, shop = world.database, world.roles["shop"]
    database.execute("DROP USER MAPPING FOR PUBLIC SERVER search")
    assert f'role "{shop}" may not create schemas' in migrate(database, "sql", "--owner", shop)
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {shop}")
    database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {world.roles['reader']}")
    said = migrate(database, "sql", "--owner", shop)
    assert said.startswith("0 ") and f"Role {world.roles['reader']} could create destinations" in said
    assert (
        database.value("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox.event_2'::regclass") == shop
    )
    use_everything(world)
    with world.as_role("shop") as session:
        session.execute("SELECT outbox.enqueue('anything', '1', 'made', '{}'), outbox.grant_monitor('pg_monitor')")
    assert "must be superuser" in migrate(database, "native", user=shop)
    said = migrate(database, "native")
    assert said.startswith("0 ") and f'Role "{shop}" owned the SQL edition' in said
    use_everything(world)
    with world.as_role("shop") as session:
        session.execute("SELECT outbox.enqueue('anything', '1', 'made', '{}'), outbox.pause('audit')")
        session.execute("ALTER SERVER audit OPTIONS (SET max_attempts '4')")
        session.execute("SELECT * FROM outbox.status")


def test_a_backfill_under_way_goes_on(database: Database, migrate: Migrate) -> None:
    database.add_destination("d", "null:")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 60); SELECT outbox.capture('t')"
    )
    database.execute("SELECT outbox.backfill('t', batch => 10, rate => 40)")
    done = "SELECT rows_done FROM outbox.backfill_task"
    wait_until(lambda: database.value(done), what="its first rows")
    assert migrate(database, "sql").startswith("0 ")
    wait_until(
        lambda: database.execute("SELECT outbox_internal.maintain()") and database.value("SELECT state FROM outbox.backfill_task"),
        lambda state: state == "finished", what="the backfill to finish",
    )  # fmt: skip
    keys = database.execute(
        "SELECT aggregate_id::int FROM outbox.event WHERE event_type = 'TSnapshot' ORDER BY position"
    )
    assert keys == [(n,) for n in range(1, 61)]


# -------------------------------------------------------------------------------------------------
# Refusals
# -------------------------------------------------------------------------------------------------

# By name: a statement of a user, and the reason of the refusal.
OF_BOTH = {
    "function": (
        "CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM outbox.event; END",
        "function public.f() depends on pg_outbox",
    ),
    "argument": ("CREATE FUNCTION f(outbox.new_event) RETURNS int LANGUAGE sql AS 'SELECT 1'", "function public.f(outbox.new_event) depends"),
    "materialized view": ("CREATE MATERIALIZED VIEW v AS SELECT * FROM outbox.event", "depends on pg_outbox"),
    "child": ("CREATE TABLE archive () INHERITS (outbox.event)", "table public.archive depends on pg_outbox"),
    "publication": ("CREATE PUBLICATION p FOR TABLE outbox.event_0", "publication of table outbox.event_0"),
    "policy": ("CREATE POLICY p ON outbox.event", "policy p on table outbox.event depends"),
    "table": ("CREATE TABLE outbox.mine ()", "table outbox.mine does not belong to pg_outbox"),
    "procedure": ("CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function outbox.mine() does not belong"),
    "index": ("CREATE INDEX mine ON outbox.delivery (aggregate_id)", "index outbox.mine does not belong"),
    "trigger": (
        "CREATE TRIGGER mine BEFORE UPDATE ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "trigger mine on table outbox.delivery does not belong",
    ),
    "column": ("ALTER TABLE outbox.delivery ADD mine int", "do not have the same columns in both editions: delivery"),
    "lost triggers": (
        "CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t'); DROP TRIGGER \"00_outbox_capture_update\" ON t",
        "captured table public.t has lost triggers",
    ),
    "its own trigger": (
        "CREATE TABLE t (id int); CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION outbox.capture_row()",
        "trigger x on table public.t depends",
    ),
}  # fmt: skip
OF_NATIVE = {
    "secret": (
        "CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'https://127.0.0.1/', relay 'external'); "
        "CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (token 'x')",
        'destination "d" has secrets in a user mapping',
    ),
    "fetchers": (
        "CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:'); GRANT USAGE ON FOREIGN SERVER d TO PUBLIC",
        'all roles may fetch from destination "d"',
    ),
    "setting": ("SET outbox.max_payload_size = '2MB'; ALTER ROLE postgres IN DATABASE {database} SET outbox.max_payload_size = '2MB'",
                "setting outbox.max_payload_size is set for a role"),
    "backfill": (
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO pg_monitor; SELECT outbox.grant_produce('pg_monitor'), outbox.capture('t'); "
        "INSERT INTO outbox.backfill_task (id, relation, role, batch, max_pending, state, parts, rows_estimated) "
        "VALUES (1, 't', 'postgres', 1, 1, 'paused', '{{t}}', 1)",
        "backfill 1 is not finished",
    ),
}  # fmt: skip
OF_SQL = {
    "credentials": (
        """INSERT INTO outbox.destination_config VALUES ('d', '{{"url": "https://127.0.0.1/", "credentials": "other"}}')""",
        "destination \"d\" has the option credentials 'other'",
    ),
    "options": (
        """SET session_replication_role = replica;
           INSERT INTO outbox.destination_config VALUES ('d', '{{"url": "https://127.0.0.1/", "maximum": "5"}}')""",
        'destination "d" is misconfigured: invalid option "maximum"',
    ),
    "server": (
        """INSERT INTO outbox.destination_config VALUES ('d', '{{"url": "null:"}}');
           CREATE FOREIGN DATA WRAPPER other; CREATE SERVER d FOREIGN DATA WRAPPER other""",
        'foreign server "d" exists',
    ),
    "setting": ("INSERT INTO outbox.setting VALUES ('retry_max', '3min')", 'setting "retry_max" is \'3min\' here'),
    "larger payloads": (
        "INSERT INTO outbox.setting VALUES ('max_payload_size', '2MB')", "SET outbox.max_payload_size = '2MB'"
    ),
    "restored": ("UPDATE outbox.home SET system_identifier = 1", "the log was restored from another cluster"),
}  # fmt: skip


def break_things(database: Database, *statements: str) -> None:
    for statement in statements:
        with database.connect() as session:
            session.execute(statement.format(database=database.name))  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("name", [*OF_BOTH, *(f"native: {name}" for name in OF_NATIVE)])
def test_refused_on_the_way_to_sql(database: Database, migrate: Migrate, name: str) -> None:
    statement, reason = {**OF_BOTH, **{f"native: {name}": it for name, it in OF_NATIVE.items()}}[name]
    break_things(database, statement)
    refused(database, migrate, "sql", reason)


@pytest.mark.long
@pytest.mark.parametrize("name", [*OF_BOTH, *(f"sql: {name}" for name in OF_SQL)])
def test_refused_on_the_way_to_native(database: Database, migrate: Migrate, name: str) -> None:
    statement, reason = {**OF_BOTH, **{f"sql: {name}": it for name, it in OF_SQL.items()}}[name]
    assert migrate(database, "sql").startswith("0 ")
    break_things(database, statement)
    refused(database, migrate, "native", reason)


def refused(database: Database, migrate: Migrate, to: str, *reasons: str, lock_timeout: int = 60) -> str:
    database.enqueue("a", 3)
    before = rows_of(database)
    said = migrate(database, to, lock_timeout=lock_timeout)
    assert said.startswith("1 outboxctl: ERROR:") and "HINT:" in said
    assert all(reason in said for reason in reasons), said
    assert rows_of(database) == before and edition_of(database) != to
    assert database.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outbox_migration%'") == []
    return said


def test_all_reasons_at_once(database: Database, migrate: Migrate) -> None:
    chosen = [
        OF_BOTH["function"],
        OF_BOTH["table"],
        OF_BOTH["lost triggers"],
        OF_NATIVE["secret"],
        OF_NATIVE["fetchers"],
    ]
    break_things(
        database, *(statement.replace(" d ", " e ") if n == 4 else statement for n, (statement, _) in enumerate(chosen))
    )
    said = refused(database, migrate, "sql", *(reason for _, reason in chosen[:4]), 'from destination "e"')
    assert said.count("ERROR:") == 5
    assert migrate(database, "sql", "--check") == said


def test_what_is_not_there_or_there_already(new_database: NewDatabase, migrate: Migrate) -> None:
    database = new_database()
    assert "the extension of pg_outbox is installed here already" in migrate(database, "native")
    assert "pg_outbox is not installed in this database" in migrate(new_database(extension=False), "sql")
    database.execute("UPDATE pg_extension SET extversion = '0.0.9' WHERE extname = 'pg_outbox'")
    assert "version 0.0.9 of pg_outbox is installed here" in migrate(database, "sql")


def test_a_server_without_the_library(make_cluster: MakeCluster, installation: Installation, migrate: Migrate) -> None:
    cluster = make_cluster({"shared_preload_libraries": ""})
    cluster.execute("CREATE DATABASE db")
    database = Database(cluster, "db")
    database.execute((installation.build / "sql/pg_outbox--sql.sql").read_text().partition("ON_ERROR_STOP on")[2])
    assert "has not loaded the library" in refused(database, migrate, "native")


def test_a_check_changes_nothing_and_waits_for_nobody(world: World, migrate: Migrate) -> None:
    world.database.execute("DROP USER MAPPING FOR PUBLIC SERVER search")
    before = all_of(world.database)
    with world.database.connect() as session, session.transaction():
        session.execute("SELECT outbox.enqueue('item', 'open', 'made', '{}')")
        said = migrate(world.database, "sql", "--check")
        raise_nothing = migrate(world.database, "sql", "--check", "--json")
        session.execute("SELECT outbox.enqueue('item', 'open', 'made', '{}')")
        raise psycopg.Rollback()
    assert said.startswith("0 pg_outbox can become the SQL edition") and "destinations" in said
    assert json.loads(raise_nothing.removeprefix("0 "))["moved"]["destinations"] == 4
    before["event_position"] = all_of(world.database)["event_position"]
    assert_same(before, all_of(world.database))


def test_a_check_names_destinations_that_will_stop(database: Database, migrate: Migrate) -> None:
    """A superuser lends them what the SQL edition, which belongs to nobody of that kind, cannot."""
    for name, url, options, secrets in [
        ("own_password", "postgresql://127.0.0.1:9/x", "", "password 'p'"),
        ("no_password", "postgresql:///x?sslrootcert=/ca.pem", "", "\"user\" 'u'"),
        ("system", "postgresql:///x?sslrootcert=system", "", "password 'p'"),
        ("own_keys", "sqs://eu-west-1", "", "access_key_id 'a', secret_access_key 's'"),
        ("no_keys", "sqs://eu-west-1", "", ""),
        ("trusting", "rediss://127.0.0.1:9", ", ca_file '/ca.pem'", "password 'p'"),
        ("web", "https://127.0.0.1:9/", "", ""),
    ]:
        database.execute(
            f"CREATE SERVER {name} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url '{url}', relay 'external'{options})"
        )
        if secrets:
            database.execute(f"CREATE USER MAPPING FOR PUBLIC SERVER {name} OPTIONS ({secrets})")
    said = json.loads(migrate(database, "sql", "--check", "--json", "--credentials", "/none").removeprefix("0 "))
    stopping = [line for line in said["advice"] if "will stop" in line]
    assert [line.split('"')[1] for line in stopping] == ["no_keys", "no_password", "no_password", "trusting"]
    assert "it has no access_key_id" in stopping[0]
    assert "it has no password" in stopping[1]
    assert 'names a file ("sslrootcert")' in stopping[2]
    assert '"ca_file" names a file' in stopping[3]


def test_a_check_that_cannot_lock_the_tables_says_who_is_in_the_way(database: Database, migrate: Migrate) -> None:
    with database.connect() as session, session.transaction():
        session.execute("LOCK TABLE outbox.delivery IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM
        pid = session.info.backend_pid
        said = migrate(database, "sql", "--check", lock_timeout=1)
    assert said.startswith("1 ") and f"session {pid} of role" in said, said
    assert migrate(database, "sql", "--check").startswith("0 ")


def test_without_a_terminal_it_requires_yes(database: Database, installation: Installation) -> None:
    done = subprocess.run(
        [str(installation.build / "tools/outboxctl/outboxctl"), "migrate-edition", "--to", "sql",
         "-d", database.cluster.conninfo(database.name)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1 and "Use --yes" in done.stderr and edition_of(database) == "native"


# -------------------------------------------------------------------------------------------------
# Failures and locks
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker_errors("data_corrupted")  # in the script, which the server logs
@pytest.mark.parametrize("tag", ["DROP TRIGGER", "DROP SERVER", "CREATE VIEW", "CREATE TRIGGER", "GRANT"])
def test_a_failure_in_the_middle_changes_nothing(world: World, migrate: Migrate, tmp_path: Path, tag: str) -> None:
    database, file = world.database, tmp_path / "secrets"
    database.execute(
        "CREATE FUNCTION fail() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$"
    )
    before = all_of(database)
    database.execute(f"CREATE EVENT TRIGGER fail ON ddl_command_start WHEN tag IN ('{tag}') EXECUTE FUNCTION fail()")
    assert "ERROR:  not now" in migrate(database, "sql", "--credentials", str(file))
    assert not file.exists()
    database.execute("DROP EVENT TRIGGER fail")
    assert_same(before, all_of(database))


LATER = {
    "as most": "SELECT outbox.enqueue('item', '2', 'made', '{}')",
    "large": "SELECT outbox.enqueue('item', '2', 'made', to_jsonb(repeat('x', 2000)))",
    "with the id of a source": "SELECT outbox.enqueue('item', '2', 'made', '{}', source_event_id => gen_random_uuid())",
    "of a producer": "SET ROLE producer_{database}; SELECT outbox.enqueue('item', '2', 'made', '{}')",
}


@pytest.mark.long
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("to", ["sql", "native"])
def test_writers_that_come_while_it_waits_are_not_in_the_way(
    world: World, migrate: Migrate, tmp_path: Path, to: str, later: str
) -> None:
    """It waits for a transaction. Another that begins meanwhile must hold nothing that it needs next:
    otherwise it would never succeed beside a steady stream of writers."""
    database = world.database
    if to == "native":
        assert migrate(database, "sql", "--credentials", str(tmp_path / "first")).startswith("0 ")
    secrets = ["--credentials", str(tmp_path / "secrets")] if to == "sql" else []
    said: list[str] = []
    failed: list[str] = []

    def come_later() -> None:
        try:
            second.execute(LATER[later].replace("{database}", database.name))
        except psycopg.Error as error:
            failed.append(f"{error.sqlstate} {error.diag.message_primary}")

    threads = [
        # Without time for a second attempt.
        threading.Thread(target=lambda: said.append(migrate(database, to, *secrets, lock_timeout=0))),
        threading.Thread(target=come_later),
    ]
    with database.connect() as first, database.connect() as second:
        first.execute("BEGIN; SELECT outbox.enqueue('item', '1', 'made', '{}')")
        database.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '10min'")  # it waits for most of that
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND (application_name = 'outboxctl' OR pid = %s)"
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(
                lambda: database.value(waiting, (second.info.backend_pid,)), lambda seen, number=number: seen == number,
                what=f"{number} to wait",
            )  # fmt: skip
        first.execute("COMMIT")
        for thread in threads:
            thread.join()
    assert said[0].startswith("0 "), said
    assert not failed or failed[0].startswith(GONE), failed


@pytest.mark.long
@pytest.mark.parametrize("to", ["sql", "native"])
def test_an_open_transaction_is_in_the_way(database: Database, migrate: Migrate, to: str) -> None:
    if to == "native":
        assert migrate(database, "sql").startswith("0 ")
    with database.connect() as session, session.transaction():
        session.execute("SELECT outbox.enqueue('item', '1', 'made', '{}')")
        pid = session.info.backend_pid
        said = refused(
            database,
            migrate,
            to,
            "could not lock the tables of pg_outbox within 1 s",
            f"session {pid} of role",
            lock_timeout=1,
        )
        assert "Nothing has changed." in said
        session.execute("SELECT outbox.enqueue('item', '2', 'made', '{}')")
    assert migrate(database, to).startswith("0 ")
    assert database.value("SELECT count(*) FROM outbox.event WHERE aggregate_id IN ('1', '2')") == 2


def test_a_prepared_transaction_is_in_the_way(
    new_database: NewDatabase, make_cluster: MakeCluster, migrate: Migrate
) -> None:
    cluster = make_cluster({"max_prepared_transactions": "2"})
    cluster.execute("CREATE DATABASE db")
    database = Database(cluster, "db")
    database.create_extension()
    database.execute("BEGIN; SELECT outbox.enqueue('item', '1', 'made', '{}'); PREPARE TRANSACTION 'p'")
    refused(database, migrate, "sql", "prepared transaction 'p' of role \"postgres\"", lock_timeout=1)
    database.execute("COMMIT PREPARED 'p'")
    assert migrate(database, "sql").startswith("0 ")
    assert database.value("SELECT count(*) FROM outbox.event WHERE aggregate_id = '1'") == 1


# -------------------------------------------------------------------------------------------------
# Deliveries go on
# -------------------------------------------------------------------------------------------------


def test_relays_go_on_where_they_were(database: Database, migrate: Migrate, receiver: Receiver, http: None) -> None:
    """The worker of the server, then outbox-relay, then the worker: no event comes twice, none is left out."""
    database.add_destination("d", receiver.url())
    sent = database.enqueue("a", 10)
    wait_until_saved(database)
    with outbox_relay_of(database):
        assert migrate(database, "sql").startswith("0 ")
        sent += database.enqueue("a", 10, first=11)
        wait_until_saved(database)
        assert migrate(database, "native").startswith("0 ")
        sent += database.enqueue("a", 10, first=21)
        wait_until_saved(database)
    database.execute("ALTER SERVER d OPTIONS (DROP relay)")
    database.wait_for_worker("relay", "d")
    sent += database.enqueue("a", 10, first=31)
    receiver.wait_for_requests(40)
    assert receiver.ids() == sent
    assert receiver.versions("a") == list(range(1, 41))


def wait_until_saved(database: Database) -> None:
    last = database.last_position()
    wait_until(
        lambda: database.value("SELECT position FROM outbox.cursor WHERE destination = 'd'"), lambda seen: seen >= last,
        what=f"the cursor at position {last}",
    )  # fmt: skip


@contextmanager
def outbox_relay_of(database: Database) -> Iterator[OutboxRelay]:
    relay = OutboxRelay(database.cluster, database.name, options='lease = "5s"').start()
    try:
        yield relay
    finally:
        relay.close()


# -------------------------------------------------------------------------------------------------
# Those that wait meanwhile
# -------------------------------------------------------------------------------------------------

STALL = """
    CREATE TABLE public.go (x int); GRANT ALL ON public.go TO PUBLIC;
    CREATE FUNCTION public.stall() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$;
    CREATE EVENT TRIGGER stall ON ddl_command_start WHEN tag IN ('DROP TRIGGER') EXECUTE FUNCTION public.stall();
"""
WAITING = {
    "enqueue": ("producer", "SELECT outbox.enqueue('item', 'waits', 'changed', '{}')"),
    "captured table": ("shop", "INSERT INTO shop.orders VALUES (77, 'new')"),
    "view": (
        "producer",
        "INSERT INTO shop.outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
        "VALUES (gen_random_uuid(), 'cart', 'waits', 'made', 1, 'text')",
    ),
    "fetch": ("fetching", "SELECT * FROM outbox.fetch('taken', 3, '1 day')"),
    "status": ("monitor", "SELECT * FROM outbox.status"),
}
# Errors that they may see, once. docs/editions.md lists them.
GONE = (
    "40001 pg_outbox was replaced or removed by a concurrent transaction",
    "XX000 could not open relation with OID", "XX000 cache lookup failed for function", "42703 column p.patterns does not exist",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("to", ["sql", "native"])
def test_those_that_wait_fail_at_most_once(world: World, migrate: Migrate, tmp_path: Path, to: str) -> None:
    database = world.database
    if to == "native":
        assert migrate(database, "sql", "--credentials", str(tmp_path / "first")).startswith("0 ")
    database.execute(STALL)
    said: list[str] = []
    secrets = ["--credentials", str(tmp_path / "secrets")] if to == "sql" else []
    migration = threading.Thread(target=lambda: said.append(migrate(database, to, *secrets)))
    sessions = {name: world.as_role(role) for name, (role, _) in WAITING.items()}
    for session in sessions.values():
        session.execute("SET application_name = 'waits'")
        session.execute("SELECT 1")
    outcomes: dict[str, str] = {}

    def run(name: str) -> None:
        try:
            sessions[name].execute(WAITING[name][1])
            outcomes[name] = "done"
        except psycopg.Error as error:
            outcomes[name] = f"{error.sqlstate} {error.diag.message_primary}"

    threads = [threading.Thread(target=run, args=(name,)) for name in WAITING]
    migration.start()
    stalled = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outboxctl' AND wait_event = 'PgSleep'"
    with database.connect() as watcher:
        wait_until(lambda: watcher.execute(stalled).fetchone(), lambda row: row == (1,), what="the migration to stall")
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waits' AND wait_event_type = 'Lock'"
        wait_until(
            lambda: watcher.execute(waiting).fetchone(),
            lambda row: row == (len(WAITING),),
            what="all to wait",
            timeout=20,
        )
        watcher.execute("INSERT INTO public.go VALUES (1)")
    for thread in (migration, *threads):
        thread.join()
    assert said[0].startswith("0 "), said
    for name, (_, statement) in WAITING.items():
        if outcomes[name] != "done":
            assert outcomes[name].startswith(GONE), f"{name} saw {outcomes[name]}"
            sessions[name].execute(statement)  # in the same session
        sessions[name].close()
    for key in ("waits", "77"):
        rows = database.execute("SELECT topic FROM outbox.event WHERE aggregate_id = %s", (key,))
        assert len(rows) == (2 if key == "waits" else 1)
    database.execute("DROP EVENT TRIGGER stall; DROP FUNCTION stall; DROP TABLE go")
