"""Tables altered by the owner of the extension: they cause errors, but never end the server."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from database import Database
from waiting import wait_until

ENQUEUE = "SELECT outbox.enqueue('a', '1', 'E', '{}')"
BATCH = "SELECT outbox.enqueue(ARRAY[ROW('a', '1', 'E', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)]::outbox.new_event[])"


@pytest.mark.worker_errors("was altered")
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox.event ADD COLUMN zz text NOT NULL DEFAULT 'x'",
        "ALTER TABLE outbox.event ADD COLUMN zz int",
        "ALTER TABLE outbox.event_0 ADD COLUMN zz text DEFAULT 'x'",
    ],
)
def test_events_are_refused_where_the_log_was_altered(database: Database, change: str) -> None:
    """S28"""
    database.execute(ENQUEUE)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t')")
    database.execute(change)
    for statement in (ENQUEUE, BATCH, "INSERT INTO t VALUES (1)"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="was altered"):
            database.execute(statement)


@pytest.mark.worker_errors("was altered")
def test_events_are_accepted_again_when_the_columns_are_gone(database: Database) -> None:
    """S28"""
    database.execute("ALTER TABLE outbox.event ADD COLUMN zz text NOT NULL DEFAULT 'x'")
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        database.execute(ENQUEUE)
    database.execute("ALTER TABLE outbox.event DROP COLUMN zz")
    database.execute(ENQUEUE)
    database.execute(BATCH)
    assert database.value("SELECT count(*) FROM outbox.event") == 2


@pytest.mark.parametrize(
    "name", ["aggregate_type", "aggregate_id", "row_key", "topic", "excluded", "on_update", "on_delete", "conditional",
             "insert_type", "snapshot_type", "old_values"],
)  # fmt: skip
def test_captures_with_missing_values_are_refused(database: Database, name: str) -> None:
    """S28"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t')")
    database.execute(
        f"ALTER TABLE outbox.captured ALTER {name} DROP NOT NULL; UPDATE outbox.captured SET {name} = NULL"
    )
    with pytest.raises(errors.NullValueNotAllowed, match=f'null value in column "{name}"'):
        database.execute("INSERT INTO t VALUES (1)")


def test_producers_that_were_altered_are_refused(database: Database) -> None:
    """S28"""
    database.execute(
        "ALTER TABLE outbox.producer ALTER topics DROP NOT NULL; ALTER TABLE outbox.producer DROP CONSTRAINT producer_topics_check"
    )
    database.execute("INSERT INTO outbox.producer (role, topics) VALUES ('pg_monitor', NULL)")
    with database.connect() as connection:
        connection.execute(
            "GRANT USAGE ON SCHEMA outbox, outbox_internal TO pg_monitor; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO pg_monitor"
        )
        connection.execute("SET ROLE pg_monitor")
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied for topic"):
            connection.execute(ENQUEUE)


def test_impossible_snapshots_are_refused(database: Database) -> None:
    """S28"""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p PARTITION OF t DEFAULT"
    )
    database.execute("SELECT outbox.capture('t'); CREATE VIEW v AS SELECT 1 AS id; CREATE SEQUENCE s")
    database.execute("INSERT INTO t VALUES (1)")
    columns = "ARRAY['id']::name[]"
    for table in ("t", "p", "v", "s", "p_pkey"):
        for key in ("NULL", "ARRAY[NULL]::text[]", "ARRAY[]::text[]", "ARRAY['1', '2']", "ARRAY['x']", "ARRAY[['1']]"):
            for names in ("NULL", columns, "ARRAY[NULL]::name[]", "ARRAY['gone']::name[]", "ARRAY[]::name[]"):
                for only_to in ("NULL", "1"):
                    for call in (
                        f"write_snapshot('{table}', {names}, {key}, {only_to})",
                        f"write_snapshots('{table}', {names}, {key}, 10, {only_to})",
                        f"write_snapshots('{table}', {names}, {key}, NULL, {only_to})",
                    ):
                        try:
                            database.execute(f"SELECT outbox_internal.{call}")
                        except psycopg.Error as error:
                            assert not database.connection.broken, (call, error)
    for call in ("write_snapshot(NULL, NULL, NULL, NULL)", "write_snapshots(NULL, NULL, NULL, NULL, NULL)"):
        with pytest.raises(errors.NullValueNotAllowed):
            database.execute(f"SELECT outbox_internal.{call}")
    for table in ("t", "p", "v", "s", "p_pkey", "pg_class"):
        database.execute(f"SELECT outbox_internal.estimate_rows('{table}')")
    database.execute(f"SELECT outbox_internal.write_snapshot('p', {columns}, ARRAY['1'], NULL)")
    assert database.value("SELECT count(*) FROM outbox.event WHERE event_type = 'TSnapshot'") >= 1


def test_events_of_a_type_that_was_altered_are_refused(database: Database) -> None:
    """S28"""
    attributes = ", ".join(f"ADD ATTRIBUTE zz{n} text" for n in range(40))
    database.execute(f"ALTER TYPE outbox.new_event {attributes}")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="was altered"):
        database.execute("SELECT outbox.enqueue(ARRAY[jsonb_populate_record(NULL::outbox.new_event, "
                         "'{\"aggregate_type\": \"a\", \"aggregate_id\": \"1\", \"event_type\": \"E\"}')])")  # fmt: skip
    database.execute("ALTER TYPE outbox.new_event " + ", ".join(f"DROP ATTRIBUTE zz{n}" for n in range(40)))
    database.execute(BATCH)


WITHOUT_CONSTRAINTS = """
    DO $$ DECLARE c record; BEGIN
        FOR c IN SELECT conname, conrelid::regclass AS place FROM pg_constraint WHERE conrelid IN ('outbox.{0}'::regclass) LOOP
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', c.place, c.conname); END LOOP;
        FOR c IN SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.{0}'::regclass AND attnotnull AND attnum > 0 LOOP
            EXECUTE format('ALTER TABLE outbox.{0} ALTER %I DROP NOT NULL', c.attname); END LOOP;
    END $$
"""


def why_absent(database: Database, name: str) -> list[tuple]:
    return database.execute("SELECT state, deaths > 0 FROM outbox.absent_workers() WHERE name = %s", (name,))


@pytest.mark.worker_errors("null value in column|was altered|terminating background worker")
@pytest.mark.parametrize(
    "name", ["topic", "aggregate_type", "aggregate_id", "event_type", "ordering_key", "content_type", "event_id", "occurred_at", "schema_version"],
)  # fmt: skip
def test_events_with_missing_values_are_named_and_wait(database: Database, name: str) -> None:
    """S28"""
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 'a.*')")
    database.pause()
    database.execute(ENQUEUE)
    (position, whole) = database.execute(f"SELECT position, {name}::text FROM outbox.event")[0]
    database.execute(WITHOUT_CONSTRAINTS.format("event"))
    since = database.cluster.log_size()
    database.execute(f"UPDATE outbox.event SET {name} = NULL; SELECT outbox.resume('d')")
    wait_until(
        lambda: why_absent(database, "d"),
        lambda rows: rows == [("failing", True)],
        what="a relay that fails and is shown",
    )
    log = database.cluster.log_since(since)
    assert f'null value in column "{name}" of an event' in log
    assert f"event at position {position} of outbox.event_0" in log
    # After the repair, delivery goes on.
    database.execute(f"UPDATE outbox.event SET {name} = '{whole}'; SELECT outbox.resume('d')")
    wait_until(
        lambda: database.value("SELECT published FROM outbox.status WHERE destination = 'd'"),
        lambda n: n == 1,
        what="the event to be published",
    )


@pytest.mark.worker_errors("null value in column|was altered|terminating background worker")
@pytest.mark.parametrize("name", ["done", "position", "system_identifier", "number", "paused"])
def test_cursors_with_missing_values_are_an_error(database: Database, name: str) -> None:
    """S28"""
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    database.execute(ENQUEUE)
    wait_until(
        lambda: database.value("SELECT published FROM outbox.status WHERE destination = 'd'"),
        lambda n: n == 1,
        what="the event to be published",
    )
    database.execute(WITHOUT_CONSTRAINTS.format("cursor"))
    database.execute(f"UPDATE outbox.cursor SET lease = 77, {name} = NULL")
    since = database.cluster.log_size()
    database.execute("ALTER SERVER d OPTIONS (ADD topics 'a.*')")
    wait_until(
        lambda: f'null value in column "{name}"' in database.cluster.log_since(since),
        bool,
        what="an error of the relay",
    )


def test_a_cursor_without_a_token_gets_another(database: Database) -> None:
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    database.execute(ENQUEUE)
    published = "SELECT published FROM outbox.status WHERE destination = 'd'"
    wait_until(lambda: database.value(published), lambda n: n == 1, what="the event to be published")
    database.execute(WITHOUT_CONSTRAINTS.format("cursor"))
    database.execute("UPDATE outbox.cursor SET lease = NULL")
    database.execute("ALTER SERVER d OPTIONS (ADD topics '*')")
    token = "SELECT lease FROM outbox.cursor WHERE destination = 'd'"
    wait_until(lambda: database.value(token), lambda lease: lease is not None, what="another token")
    database.execute(ENQUEUE)
    wait_until(lambda: database.value(published), lambda n: n == 2, what="the next event to be published")


@pytest.mark.worker_errors("null value in column|was altered|terminating background worker")
def test_backfills_with_missing_values_are_an_error(database: Database) -> None:
    """S28"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); SELECT outbox.capture('t')")
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    database.execute(WITHOUT_CONSTRAINTS.format("backfill_task"))
    database.execute("INSERT INTO outbox.backfill_task (state) VALUES ('running')")
    database.execute(ENQUEUE)
    wait_until(
        lambda: database.value("SELECT published FROM outbox.status WHERE destination = 'd'"),
        lambda n: n == 1,
        what="the event to be published",
    )


@pytest.mark.worker_errors("unexpected outcome|terminating background worker")
@pytest.mark.parametrize("result", ["record", "SETOF record"])
def test_functions_that_were_replaced_are_an_error(database: Database, result: str) -> None:
    """S28"""
    since = database.cluster.log_size()
    database.execute("ALTER FUNCTION outbox_internal.relay_begin RENAME TO gone")
    database.execute(
        "CREATE FUNCTION outbox_internal.relay_begin(integer, bigint, text, OUT outcome integer, OUT recorded integer,"
        f" OUT held_keys integer, OUT paused integer) RETURNS {result} LANGUAGE sql AS 'SELECT 7, 7, 7, 7'"
    )
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    wait_until(lambda: "unexpected outcome" in database.cluster.log_since(since), bool, what="an error of the relay")


def test_source_events_are_not_claimed_by_another_function(database: Database) -> None:
    """S28"""
    database.execute(
        "ALTER EXTENSION pg_outbox DROP FUNCTION outbox_internal.claim_source_event; DROP FUNCTION outbox_internal.claim_source_event"
    )
    database.execute(
        "CREATE FUNCTION outbox_internal.claim_source_event(uuid, text, text, text, uuid) RETURNS integer LANGUAGE sql AS 'SELECT 7'"
    )
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="was altered"):
        database.execute("SELECT outbox.enqueue('a', '1', 'E', '{}', source_event_id => gen_random_uuid())")


@pytest.mark.worker_errors("was altered|must have a row|terminating background worker")
@pytest.mark.parametrize("name", ["ring", "event_0", "producer"])
def test_views_in_the_place_of_tables_are_refused(database: Database, name: str) -> None:
    """S28"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t')")
    database.execute(ENQUEUE)
    database.execute(
        f"ALTER TABLE outbox.{name} RENAME TO gone; CREATE VIEW outbox.{name} AS SELECT * FROM outbox.gone"
    )
    with database.connect() as connection:
        if name == "producer":
            connection.execute(
                "GRANT USAGE ON SCHEMA outbox, outbox_internal TO pg_monitor; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO pg_monitor; SET ROLE pg_monitor"
            )
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="was altered"):
            connection.execute(ENQUEUE)


MISSING = "captures do not follow this statement: table outbox.captured does not exist"
# Statements that have nothing to do with a capture.
DDL = [
    "CREATE TABLE x (id int PRIMARY KEY)",
    "ALTER TABLE x ADD COLUMN v text",
    "CREATE SCHEMA y CREATE TABLE z (i int)",
    "ALTER TYPE pair ADD ATTRIBUTE b int",
    "DROP TABLE x",
    "DROP SCHEMA y CASCADE",
]


@pytest.mark.parametrize(
    "instead",
    [
        "SELECT",
        "CREATE VIEW outbox.captured AS SELECT * FROM outbox.gone",
        "CREATE VIEW outbox.captured AS SELECT 1 / 0 AS relation",
    ],
)
def test_ddl_works_if_the_table_of_captures_is_missing(database: Database, instead: str) -> None:
    """A warning says that captures do not follow; no change of a captured table lacks its event."""
    database.execute(
        "CREATE TYPE pair AS (a int); CREATE TABLE t (id int PRIMARY KEY, v text); SELECT outbox.capture('t')"
    )
    database.execute("INSERT INTO t VALUES (1, 'a')")
    heard: list[str] = []
    with database.connect() as connection:
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
        connection.execute(f"ALTER TABLE outbox.captured RENAME TO gone; {instead}")
        for statement in DDL:
            heard.clear()
            connection.execute(statement)
            assert MISSING in heard, statement
        connection.execute("ALTER TABLE t RENAME COLUMN v TO w")
        with pytest.raises((errors.UndefinedTable, errors.ObjectNotInPrerequisiteState)):
            connection.execute("INSERT INTO t VALUES (2, 'b')")
        connection.execute("DROP VIEW IF EXISTS outbox.captured; ALTER TABLE outbox.gone RENAME TO captured")
        connection.execute("ALTER TABLE t ADD COLUMN more text")  # which follows the column that was renamed
        heard.clear()
        connection.execute("INSERT INTO t VALUES (2, 'b')")
    assert heard == []
    assert database.execute("SELECT convert_from(payload, 'UTF8') FROM outbox.event ORDER BY position") == [
        ('{"id":1,"v":"a"}',), ('{"id":2,"w":"b"}',)
    ]  # fmt: skip


@pytest.mark.parametrize("statement", ["SELECT outbox.capture('t', replace => true)", "SELECT outbox.uncapture('t')"])
def test_captures_are_not_written_without_their_table(database: Database, statement: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t'); ALTER TABLE outbox.captured RENAME TO gone"
    )
    with pytest.raises((errors.UndefinedTable, errors.UndefinedObject), match="outbox.captured"):
        database.execute(statement)


@pytest.mark.worker_errors("was altered|out of range|terminating background worker")
def test_odd_values_are_delivered_or_refused(database: Database) -> None:
    """S28"""
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    database.execute("CREATE SERVER h FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://127.0.0.1:1/')")
    database.pause("d")
    database.pause("h")
    for _ in range(8):
        database.execute(ENQUEUE)
    database.execute(WITHOUT_CONSTRAINTS.format("event"))
    for n, change in enumerate([
        "headers = '[1, {}]'", "headers = '7'", "headers = 'null'", "position = -5", "occurred_at = 'infinity'", "occurred_at = '-infinity'",
        "headers = (SELECT jsonb_object_agg(i, 'x') FROM generate_series(1, 500) AS i)", "schema_version = -1, version = -1, topic = '', aggregate_id = repeat('x', 1000000)",
    ]):  # fmt: skip
        database.execute(
            f"UPDATE outbox.event SET {change} WHERE ctid = (SELECT ctid FROM outbox.event ORDER BY xid OFFSET {n} LIMIT 1)"
        )
    database.execute("SELECT outbox.resume('d'), outbox.resume('h')")
    wait_until(
        lambda: database.value("SELECT published FROM outbox.status WHERE destination = 'd'"),
        lambda n: n >= 7,
        what="the events to be published",
    )
