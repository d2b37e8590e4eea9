"""Publications of updates and deletes, such as Debezium's default FOR ALL TABLES: our tables can still be changed."""

from __future__ import annotations

import pytest

from database import SQL_EDITION, Database, NewDatabase
from waiting import wait_until


@pytest.fixture
def published(new_database: NewDatabase) -> Database:
    database = new_database()
    database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    return database


def without_identity(database: Database, schema: str) -> list[tuple]:
    return database.execute(f"SELECT relation::text FROM {schema}_internal.without_identity()")


def test_rows_of_every_table_have_an_identity(new_database: NewDatabase) -> None:
    database = new_database()
    assert without_identity(database, "outbox") == []
    receiver = new_database(extension=False)
    receiver.execute("CREATE EXTENSION pg_inbox")
    assert without_identity(receiver, "inbox") == []
    # The function sees such a table.
    receiver.execute("CREATE TABLE inbox.more (n integer)")
    assert without_identity(receiver, "inbox") == [("inbox.more",)]


def test_deliveries_and_operators_steps_go_on(published: Database) -> None:
    published.add_destination("d", "null:")
    published.enqueue("a", 3)
    published.wait_published(3)
    published.execute("SELECT outbox.pause('d'); SELECT outbox.resume('d'); SELECT outbox.seek('d', 'beginning')")
    published.wait_published(6)
    published.execute("SELECT outbox.replay('d')")
    published.wait_published(9)
    published.execute("CREATE TABLE item (id integer PRIMARY KEY); INSERT INTO item SELECT generate_series(1, 5)")
    published.execute("SELECT outbox.capture('item', 'Item', topic => 'item.events')")
    id = published.value("SELECT outbox.backfill('item')")
    wait_until(
        lambda: published.value("SELECT state FROM outbox.backfill_progress WHERE id = %s", (id,)),
        lambda state: state == "finished", what="the backfill to finish",
    )  # fmt: skip
    published.wait_settled()
    published.drop_destination("d")
    published.add_destination("p", "pull:")
    published.enqueue("b", 2)
    tokens = published.execute("SELECT DISTINCT token FROM outbox.fetch('p', 10)")
    assert tokens and all(published.execute("SELECT outbox.ack(%s)", token) for token in tokens)


def test_consumers_go_on(new_database: NewDatabase) -> None:
    receiver = new_database(extension=False)
    receiver.execute("CREATE EXTENSION pg_inbox")
    receiver.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    receiver.execute(
        "SELECT inbox.receive('c', 'test', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[1::bigint], ARRAY[1::bigint],"
        " ARRAY[1], ARRAY[NULL::uuid], ARRAY['t'], ARRAY['t'], ARRAY['k'], ARRAY['Thing'], ARRAY['k'],"
        " ARRAY['application/json'], ARRAY[NULL::jsonb], ARRAY[convert_to('{}', 'UTF8')])"
    )
    assert receiver.value("SELECT count(*) FROM inbox.claim('c', 10)") == 1
    receiver.execute("SELECT inbox.prune()")


@pytest.mark.skipif(SQL_EDITION, reason="the owner of the edition may do as it likes")
def test_health_names_a_publication_that_stops_deliveries(published: Database) -> None:
    published.execute("ALTER TABLE outbox.cursor REPLICA IDENTITY DEFAULT")
    finding = next(found for found in published.health() if found.what == "no replica identity")
    assert (
        finding.why
        == 'publication "everything" sends updates and deletes, and tables have no replica identity: outbox.cursor'
    )
    published.execute(finding.what_to_do)
    assert published.health() == []
