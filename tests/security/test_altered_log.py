"""What the owner of the extension can do to its tables: an error, never the end of the server."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from database import Database

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
def test_captures_without_what_they_must_have_are_refused(database: Database, name: str) -> None:
    """S28"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t')")
    database.execute(f"ALTER TABLE outbox.captured ALTER {name} DROP NOT NULL; UPDATE outbox.captured SET {name} = NULL")
    with pytest.raises(errors.NullValueNotAllowed, match=f'null value in column "{name}"'):
        database.execute("INSERT INTO t VALUES (1)")


def test_producers_that_were_altered_are_refused(database: Database) -> None:
    """S28"""
    database.execute("ALTER TABLE outbox.producer ALTER topics DROP NOT NULL; ALTER TABLE outbox.producer DROP CONSTRAINT producer_topics_check")
    database.execute("INSERT INTO outbox.producer (role, topics) VALUES ('pg_monitor', NULL)")
    with database.connect() as connection:
        connection.execute("GRANT USAGE ON SCHEMA outbox TO pg_monitor; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO pg_monitor")
        connection.execute("SET ROLE pg_monitor")
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied for topic"):
            connection.execute(ENQUEUE)


def test_snapshots_of_what_cannot_be_are_refused(database: Database) -> None:
    """S28"""
    database.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p PARTITION OF t DEFAULT")
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
                            database.execute(f"SELECT outbox.{call}")
                        except psycopg.Error as error:
                            assert not database.connection.broken, (call, error)
    for call in ("write_snapshot(NULL, NULL, NULL, NULL)", "write_snapshots(NULL, NULL, NULL, NULL, NULL)"):
        with pytest.raises(errors.NullValueNotAllowed):
            database.execute(f"SELECT outbox.{call}")
    for table in ("t", "p", "v", "s", "p_pkey", "pg_class"):
        database.execute(f"SELECT outbox.estimate_rows('{table}')")
    database.execute(f"SELECT outbox.write_snapshot('p', {columns}, ARRAY['1'], NULL)")
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
