"""Events tell the contents of tables of every shape, after statements of every kind.

A model of a consumer reads the log in its order, and applies an event if its version is newer, as
inbox.apply() and inbox.remove() do. A table is a line of SHAPES, a statement a line of STATEMENTS.

Versions come from a sequence in steps of two, because the event of a delete has one more than the row. One session changes
tables with a version column: a session that waits for a delete would insert a version that is too low. The server refuses
rows that are inserted again with their old version.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import errors

from cluster import SQL_EDITION
from database import Database, NewDatabase
from test_inbox_projection import in_threads

COLUMNS = "id int NOT NULL, part int NOT NULL DEFAULT 1, title text, shown boolean NOT NULL DEFAULT true, version bigint NOT NULL DEFAULT nextval('public.versions')"
KEYS = 12  # few, so that rows come and go


@dataclass(frozen=True)
class Shape:
    """A table `item` with COLUMNS, and how it is captured."""

    ddl: str
    capture: str = ""
    key: tuple[str, ...] = ("id",)
    condition: str = "true"
    sessions: int = 2


PARTITIONS = """;
    CREATE TABLE item_low PARTITION OF item FOR VALUES FROM (MINVALUE) TO (3);
    CREATE TABLE item_middle (title text, gone int, version bigint NOT NULL DEFAULT nextval('versions'), part int NOT NULL DEFAULT 1,
                              shown boolean NOT NULL DEFAULT true, id int NOT NULL);
    ALTER TABLE item_middle DROP COLUMN gone;
    ALTER TABLE item ATTACH PARTITION item_middle FOR VALUES FROM (3) TO (6);
    CREATE TABLE item_rest PARTITION OF item DEFAULT
"""

SHAPES = {
    "key": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id))"),
    "key of two": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id, part))", key=("id", "part")),
    "unique index": Shape(f"CREATE TABLE item ({COLUMNS}); CREATE UNIQUE INDEX ON item (id)", "aggregate_id => '{id}'"),
    "rows of aggregates": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id))", "aggregate_id => '{part}'"),
    "condition": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id))", "condition => 'shown', on_delete => 'old'", condition="shown"),
    "partitions by key": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id)) PARTITION BY RANGE (id) {PARTITIONS}"),
    "partitions by a part of the key": Shape(
        f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id, part)) PARTITION BY RANGE (part) {PARTITIONS}", key=("id", "part")
    ),
    "other schema": Shape(
        f"CREATE SCHEMA other; CREATE TABLE other.item ({COLUMNS}, PRIMARY KEY (id)); SET search_path = other, public"
    ),
    "key beside a deferrable one": Shape(
        f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (part) DEFERRABLE INITIALLY DEFERRED); CREATE UNIQUE INDEX ON item (id)",
        "aggregate_id => '{id}'",
    ),
    "version column": Shape(f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id))", "version => 'version'", sessions=1),
    "version column and partitions": Shape(
        f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id)) PARTITION BY RANGE (id) {PARTITIONS}", "version => 'version'", sessions=1
    ),
    "version column and condition": Shape(
        f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id))", "version => 'version', condition => 'shown'", condition="shown", sessions=1
    ),
}  # fmt: skip

STATEMENTS = {
    "insert": "INSERT INTO item (id, part, title, shown) VALUES (%(id)s, %(part)s, %(title)s, %(flag)s)",
    "insert if absent": "INSERT INTO item (id, part, title, shown) VALUES (%(id)s, %(part)s, %(title)s, %(flag)s) ON CONFLICT DO NOTHING",
    "insert several": "INSERT INTO item (id, part, title) SELECT n, n + 20, %(title)s FROM generate_series(%(id)s, %(id)s + 3) AS n WHERE n NOT IN (SELECT id FROM item)",
    "update": "UPDATE item SET title = %(title)s, version = nextval('public.versions') WHERE id %% 3 = %(id)s %% 3",
    "update nothing": "UPDATE item SET title = title WHERE id = %(id)s",
    "show or hide": "UPDATE item SET shown = NOT shown, version = nextval('public.versions') WHERE id %% 4 = %(id)s %% 4",
    "move to another part": "UPDATE item SET part = %(part)s, version = nextval('public.versions') WHERE id = %(id)s",
    "shift up": "UPDATE item SET id = id + 1, version = nextval('public.versions') WHERE id = %(id)s",
    "shift all up": "UPDATE item SET id = id + 1, version = nextval('public.versions') WHERE id < 100",
    "shift all down": "UPDATE item SET id = id - 1, version = nextval('public.versions') WHERE id > -100",
    "step aside": "UPDATE item SET id = -1000, version = nextval('public.versions') WHERE id = %(id)s",
    "step back": "UPDATE item SET id = %(id)s, version = nextval('public.versions') WHERE id = -1000",
    "delete": "DELETE FROM item WHERE id %% 5 = %(id)s %% 5",
    "replace": "WITH gone AS (DELETE FROM item WHERE id = %(id)s RETURNING *) INSERT INTO item SELECT id + 1000, part + 1000, title, shown, version FROM gone",
    "take back": "WITH gone AS (DELETE FROM item WHERE id >= 1000 RETURNING *) INSERT INTO item SELECT id - 1000, part - 1000, title, shown, nextval('public.versions') FROM gone",
    "delete and insert": "DO $$ DECLARE r item; BEGIN FOR r IN DELETE FROM item WHERE id = %(id)s RETURNING * LOOP r.title := 'again'; INSERT INTO item SELECT (r).*; END LOOP; END $$",
    "merge": "MERGE INTO item USING (VALUES (%(id)s)) AS s(id) ON item.id = s.id WHEN MATCHED AND item.part > 3 THEN DELETE "
             "WHEN MATCHED THEN UPDATE SET title = 'merged', version = nextval('public.versions') WHEN NOT MATCHED THEN INSERT (id, part) VALUES (s.id, %(part)s)",
}  # fmt: skip

# Errors that random statements may get.
REFUSED = (
    errors.IntegrityError, errors.DeadlockDetected, errors.SerializationFailure, errors.CardinalityViolation,
    errors.ObjectNotInPrerequisiteState,
)  # fmt: skip


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


def projection(database: Database, key: tuple[str, ...]) -> dict[tuple, dict[str, Any]]:
    rows: dict[tuple, dict[str, Any]] = {}
    removed: dict[tuple, int] = {}
    versions: dict[tuple, int] = {}
    events = database.execute(
        "SELECT event_type, coalesce(version, position), convert_from(payload, 'UTF8') FROM outbox.event ORDER BY position"
    )
    for event_type, version, payload in events:
        data = json.loads(payload)
        name = tuple(data[column] for column in key)
        if version <= max(versions.get(name, -1), removed.get(name, -1)):
            continue
        if event_type.endswith("Deleted"):
            rows.pop(name, None)
            versions.pop(name, None)
            removed[name] = version
        else:
            rows[name] = data
            versions[name] = version
    return rows


def table(database: Database, shape: Shape) -> dict[tuple, dict[str, Any]]:
    rows = database.execute(f"SELECT to_jsonb(i) FROM item AS i WHERE {shape.condition}")
    return {tuple(row[column] for column in shape.key): row for (row,) in rows}


def change_at_random(connection: psycopg.Connection, dice: random.Random, text: str) -> None:
    for _ in range(dice.randint(1, 4)):
        statement = dice.choice(list(STATEMENTS.values()))
        values = {
            "id": dice.randrange(KEYS),
            "part": dice.randrange(8),
            "title": f"{text}{dice.random()}",
            "flag": dice.random() < 0.7,
        }
        if statement.startswith("DO"):
            statement = statement.replace("%(id)s", str(values["id"]))
            connection.execute(statement)
        else:
            connection.execute(statement, values)
    if dice.random() < 0.15:
        connection.rollback()
    else:
        connection.commit()


def change_and_compare(database: Database, shape: Shape, text: str = "") -> None:
    """Titles begin with the text."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    database.execute("CREATE SEQUENCE versions INCREMENT BY 2")
    database.execute(shape.ddl)
    if "search_path" in shape.ddl:
        database.execute(f"ALTER DATABASE {database.name} SET search_path = other, public")
        database.disconnect()
    database.execute(f"SELECT outbox.capture('item', {shape.capture})".replace(", )", ")"))

    def work(session: int) -> None:
        dice = random.Random(seed + session)
        with database.connect() as connection:
            connection.execute("SET deadlock_timeout = '10ms'; SET client_encoding = 'UTF8'")
            connection.autocommit = False
            for _ in range(300 // shape.sessions):
                try:
                    change_at_random(connection, dice, text)
                except REFUSED:
                    connection.rollback()

    in_threads(shape.sessions, work)
    has = table(database, shape)
    assert has, f"nothing is left to compare: seed {seed}"
    assert projection(database, shape.key) == has, f"seed {seed}"


@pytest.mark.parametrize("name", SHAPES)
def test_events_tell_what_the_table_has(new_database: NewDatabase, name: str) -> None:
    change_and_compare(new_database({"outbox.on_stale_version": "error"}), SHAPES[name])


# -------------------------------------------------------------------------------------------------
# Refusals and warnings of captures
# -------------------------------------------------------------------------------------------------

DEFERRABLE = {
    "primary key": ("rank int PRIMARY KEY DEFERRABLE, name text", ""),
    "initially deferred": ("rank int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name text", ""),
    "aggregate id": ("rank int NOT NULL UNIQUE DEFERRABLE, name text", ", aggregate_id => '{rank}'"),
    "key beside an id that is not unique": (
        "rank int PRIMARY KEY DEFERRABLE, team int NOT NULL",
        ", aggregate_id => '{team}'",
    ),
}


@pytest.mark.parametrize("kind", DEFERRABLE)
def test_a_key_that_two_rows_may_have_for_a_while_is_refused(database: Database, kind: str) -> None:
    columns, arguments = DEFERRABLE[kind]
    database.execute(f"CREATE TABLE ranked ({columns})")
    with pytest.raises(errors.InvalidTableDefinition, match="deferrable key"):
        database.execute(f"SELECT outbox.capture('ranked'{arguments})")


def test_a_key_that_is_replaced_is_told(database: Database) -> None:
    database.execute("CREATE TABLE invoice (tenant int NOT NULL, id int PRIMARY KEY); SELECT outbox.capture('invoice')")
    unique = "SELECT key_is_unique FROM outbox.captures"
    assert database.value(unique) is True
    with heard(database) as notices:
        database.execute("ALTER TABLE invoice DROP CONSTRAINT invoice_pkey, ADD PRIMARY KEY (tenant, id)")
    if not SQL_EDITION:
        assert notices == ["rows of table public.invoice may have the same key in events"]
    assert database.value(unique) is False
    told = [finding[1:3] for finding in database.health()]
    assert ("table public.invoice", "key not unique") in told
    database.execute("SELECT outbox.capture('invoice', replace => true)")
    assert database.value(unique) is True
    database.execute("ALTER TABLE invoice DROP CONSTRAINT invoice_pkey, ADD CONSTRAINT other UNIQUE (id)")
    assert database.value(unique) is True, "the id alone tells rows apart"
    database.execute("ALTER TABLE invoice DROP CONSTRAINT other")
    assert database.value(unique) is False


def test_a_key_keeps_its_name_when_its_columns_are_renamed(database: Database) -> None:
    database.execute("CREATE TABLE invoice (id int PRIMARY KEY); SELECT outbox.capture('invoice')")
    database.execute("ALTER TABLE invoice RENAME id TO number")
    assert database.value("SELECT key_is_unique FROM outbox.captures") is True
    assert "key not unique" not in [finding.what for finding in database.health()]


def test_tables_of_one_name_are_told_apart(database: Database) -> None:
    for schema in ("t1", "t2"):
        database.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, schema text)")
    with heard(database) as notices:
        database.execute("SELECT outbox.capture('t1.orders')")
        assert notices == []
        database.execute("SELECT outbox.capture('t2.orders', headers => '{\"note\": \"note\"}')")
        assert notices == ["events of table t2.orders have the same topic and types as those of table t1.orders"]
        database.execute("SELECT outbox.capture('orders', aggregate_type => 'orders')")
    database.execute(
        "INSERT INTO t1.orders VALUES (1); INSERT INTO t2.orders VALUES (1, 'x'); INSERT INTO orders VALUES (1)"
    )
    headers = "SELECT headers FROM outbox.event ORDER BY position"
    assert database.execute(headers) == [({"tableschema": "t1"},), ({"tableschema": "t2", "note": "x"},), (None,)]
    database.execute("ALTER SCHEMA t1 RENAME TO t3")
    database.execute("DELETE FROM t3.orders")
    assert database.execute(headers)[-1] == ({"tableschema": "t3"},)
    database.execute("SELECT outbox.capture('t2.orders', with_schema => true, replace => true)")
    database.execute("DELETE FROM t2.orders")
    assert database.execute(
        "SELECT topic, aggregate_type, event_type FROM outbox.event ORDER BY position DESC LIMIT 1"
    ) == [("t2.orders.events", "t2.orders", "T2OrdersDeleted")]


# Statements of one transaction after which a row has a version that consumers pass over.
STALE = {
    "moved as pg_partman does": "CREATE TEMP TABLE moved ON COMMIT DROP AS SELECT * FROM item; DELETE FROM item; INSERT INTO item SELECT * FROM moved",
    "moved in one statement": "WITH gone AS (DELETE FROM item WHERE id = 1 RETURNING *) INSERT INTO item SELECT id, part, title, shown, version FROM gone",
    "raised by too little": "DELETE FROM item WHERE id = 1; INSERT INTO item (id, version) VALUES (1, 2)",
    "a key of another row": "DELETE FROM item WHERE id = 2; UPDATE item SET id = 2, version = version + 1 WHERE id = 1",
    "shown again": "UPDATE item SET shown = false, version = 2 WHERE id = 1; UPDATE item SET shown = true WHERE id = 1",
}  # fmt: skip
FRESH = {
    "raised": "DELETE FROM item WHERE id = 1; INSERT INTO item (id, version) VALUES (1, 3)",
    "other keys": "DELETE FROM item WHERE id = 1; INSERT INTO item (id, version) VALUES (4, 1)",
}  # fmt: skip


@pytest.fixture
def items(database: Database) -> Database:
    database.execute(
        "CREATE TABLE item (id int PRIMARY KEY, part int, title text, shown boolean NOT NULL DEFAULT true, version int NOT NULL DEFAULT 1);"
        "INSERT INTO item (id) VALUES (1), (2), (3); SELECT outbox.capture('item', version => 'version', condition => 'shown')"
    )
    return database


@pytest.mark.parametrize("case", {**STALE, **FRESH})
def test_a_row_that_comes_again_with_a_stale_version_is_told(items: Database, case: str) -> None:
    with heard(items) as notices, items.connection.transaction():
        items.execute({**STALE, **FRESH}[case])
    assert notices == (['version column "version" of table "item" did not rise'] if case in STALE else [])


@pytest.mark.extension("is told by event triggers, which only superusers can create")
def test_rows_that_come_or_go_with_a_partition_are_told(database: Database) -> None:
    database.execute(
        "CREATE TABLE item (id int PRIMARY KEY) PARTITION BY RANGE (id); SELECT outbox.capture('item');"
        "CREATE TABLE full_one (id int PRIMARY KEY); INSERT INTO full_one VALUES (1); CREATE TABLE empty_one (id int PRIMARY KEY)"
    )
    with heard(database) as notices:
        database.execute("ALTER TABLE item ATTACH PARTITION empty_one FOR VALUES FROM (10) TO (20)")
        assert notices == []
        database.execute("ALTER TABLE item ATTACH PARTITION full_one FOR VALUES FROM (0) TO (10)")
        assert notices == ["rows that table public.full_one has already give no events"]
        database.execute("ALTER TABLE item DETACH PARTITION full_one")
        assert notices[1:] == ["rows of table public.full_one give no events of their removal"]


@contextmanager
def heard(database: Database) -> Iterator[list[str]]:
    """Collects notices and warnings."""
    notices: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        notices.append(notice.message_primary or "")

    database.connection.add_notice_handler(hear)
    yield notices
    database.connection.remove_notice_handler(hear)
