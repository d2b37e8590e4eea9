"""docs/debezium.md: Debezium's connector and Outbox Event Router get what a destination gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import debezium
from cluster import Cluster, MakeCluster
from database import Database, create_database
from debezium import Debezium, Record
from ledger import SETUP, check, read_ledger
from sinks.servers import NotInstalled
from test_ledger import AGGREGATES, writers
from waiting import wait_until

pytestmark = pytest.mark.long

HEADERS = ["event_type", "aggregate_type", "aggregate_id", "version", "schema_version", "content_type"]


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster({"wal_level": "logical"})


# (database, option=value, ...) -> Debezium
MakeReader = Callable[..., Debezium]


@pytest.fixture
def make_reader(tmp_path: Path) -> Iterator[MakeReader]:
    """Makes an engine as the page says, with these options changed; it is not started."""
    made: list[Debezium] = []

    def make(database: Database, **options: str) -> Debezium:
        debezium.set_up(database)
        try:
            made.append(Debezium(database, tmp_path, **options))
        except NotInstalled as error:
            pytest.skip(f"NOT TESTED: {error}")
        return made[-1]

    yield make
    for reader in made:
        reader.kill()


@pytest.fixture
def reader(cluster: Cluster, make_reader: MakeReader) -> Debezium:
    return make_reader(create_database(cluster)).start()


class Puller:
    """A pull destination that is fetched from all the time."""

    def __init__(self, database: Database) -> None:
        database.add_destination("d", "pull:")
        self.events: list[dict[str, Any]] = []
        self._database = database
        self._error: psycopg.Error | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._pull, daemon=True)
        self._thread.start()

    def _pull(self) -> None:
        try:
            with self._database.connect() as connection:
                connection.row_factory = dict_row
                while not self._closing.wait(0.01):
                    self._turn(connection)
        except psycopg.Error as error:
            self._error = error

    def _turn(self, connection: psycopg.Connection) -> None:
        events = connection.execute("SELECT * FROM outbox.fetch('d')").fetchall()
        if events:
            connection.execute("SELECT outbox.ack(%s)", (events[0]["token"],))
            self.events += events

    def ids(self) -> set[str]:
        return {str(event["event_id"]) for event in list(self.events)}

    def wait_for(self, ids: set[str]) -> None:
        wait_until(lambda: self._error or not ids - self.ids(), what=f"{len(ids)} events fetched")
        assert self._error is None, self._error

    def close(self) -> None:
        self._closing.set()
        self._thread.join(60)


@pytest.fixture
def puller(reader: Debezium) -> Iterator[Puller]:
    puller = Puller(reader.database)
    yield puller
    puller.close()


def compare(record: Record, event: dict[str, Any]) -> None:
    """Compares an event as both received it."""
    assert (record.id, record.topic, record.key, record.value) == (
        str(event["event_id"]), event["topic"], event["ordering_key"], event["payload"],
    )  # fmt: skip
    for name in HEADERS:
        expected = None if event[name] is None else str(event[name])
        assert record.headers[name] == expected, f"header {name} of {record}"
    headers = record.headers["headers"]
    assert (None if headers is None else json.loads(headers)) == event["headers"]


def wait_empty(database: Database, segment: int) -> None:
    wait_until(
        lambda: database.value(f"SELECT pg_relation_size('outbox.event_{segment}')"), lambda size: size == 0,
        what=f"segment {segment} to be emptied",
    )  # fmt: skip


@pytest.mark.slow
def test_it_gets_what_a_destination_gets(reader: Debezium, puller: Puller) -> None:
    """Across rotations, stops and a crash of Debezium, with savepoints and prepared transactions."""
    database = reader.database
    database.execute(SETUP.format(aggregates=AGGREGATES))

    def committed() -> set[str]:
        return {entry.event_id for entry in read_ledger(database.connection)}

    def write(more: int) -> None:
        enough = len(committed()) + more
        wait_until(lambda: len(committed()), lambda n: n >= enough, what=f"{more} more events committed")

    with writers(database, 2):
        write(300)
        database.move_to_segment(1)
        write(100)
        reader.stop()
        write(100)
        database.move_to_segment(2)
        write(100)
        puller.wait_for(committed())
        wait_empty(database, 0)  # events that it has not read yet do not prevent this
        reader.start()
        write(300)
        reader.kill()
        write(100)
        reader.start()
        write(100)
    ledger = read_ledger(database.connection)
    ids = {entry.event_id for entry in ledger}
    reader.wait_for(ids)
    puller.wait_for(ids)

    records = reader.records()
    verdict = check(ledger, [record.id for record in records])
    print(verdict)
    verdict.hold(restarts=1)  # one of its two restarts was a crash
    events = {str(event["event_id"]): event for event in puller.events}
    for record in records:
        compare(record, events[record.id])


def test_every_kind_of_event(reader: Debezium, puller: Puller) -> None:
    database = reader.database
    with database.connect() as connection, connection.transaction():
        for statement in (
            "enqueue('order', '1', 'OrderPlaced', '{\"total\": 1.50}', version => 7, "
            'headers => \'{"trace": "ä", "n": 1}\')',
            "enqueue('order', '1', 'OrderForgotten', NULL::jsonb)",
            "enqueue('image', 'ü/2', 'ImageTaken', '\\x00ff80'::bytea, 'image/png', topic => 'images')",
            "enqueue('image', '3', 'ImageTaken', ''::bytea, 'image/png', ordering_key => '')",
            "enqueue('order', '4', 'OrderPlaced', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 10000) AS n)), ordering_key => 'customer 5')",
            "enqueue('order', '4', 'OrderPaid', '{}', source_event_id => '00000000-0000-0000-0000-000000000001')",
            "enqueue('order', '4', 'OrderPaid', '{}', occurred_at => '2026-01-01 12:00+01', schema_version => 3)",
        ):
            connection.execute(f"SELECT outbox.{statement}".encode())
    ids = {str(event_id) for (event_id,) in database.execute("SELECT event_id FROM outbox.event")}
    puller.wait_for(ids)
    reader.wait_for(ids)
    assert len(ids) == 7
    events = {str(event["event_id"]): event for event in puller.events}
    records = reader.records()
    assert len(records) == 7
    for record in records:
        compare(record, events[record.id])
    assert [record.headers["source_event_id"] for record in records] == [
        *[None] * 5, "00000000-0000-0000-0000-000000000001", None,
    ]  # fmt: skip
    assert records[-1].headers["occurred_at"] == "2026-01-01T11:00:00.000000Z"


def add_event_for_one(database: Database, number: int) -> str:
    """Writes events for one destination, as a backfill does, into the current segment."""
    return str(
        database.value(
            "INSERT INTO outbox.event_0 SELECT (jsonb_populate_record(e, "
            "jsonb_build_object('only_to', %s::int, 'event_id', gen_random_uuid()))).* "
            "FROM outbox.event_0 AS e WHERE version = 1 AND only_to IS NULL RETURNING event_id",
            (number,),
        )
    )


def test_what_is_for_one_destination_is_left_out(reader: Debezium) -> None:
    database = reader.database
    (first,) = database.enqueue("a")
    add_event_for_one(database, 1)
    (last,) = database.enqueue("a", first=2)
    reader.wait_for({last})
    assert [record.id for record in reader.records()] == [first, last]


def test_rows_of_a_backfill_for_it_alone(reader: Debezium) -> None:
    """Uses a destination in its place, and the filter of the page."""
    database = reader.database
    debezium.set_up_for_it_alone(database)
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, 2500) AS n")
    database.add_destination("other", "pull:")
    database.execute("SELECT outbox.capture('item')")
    database.execute("SELECT outbox.backfill('item', destination => 'debezium')")
    database.execute("SELECT outbox.backfill('item', destination => 'other')")
    ended = "SELECT every(finished_at IS NOT NULL) FROM outbox.backfill_progress"
    wait_until(lambda: database.value(ended), what="both backfills to be finished")
    (last,) = database.enqueue("a")
    reader.wait_for({last})
    *rows, _ = reader.records()
    assert {record.headers["event_type"] for record in rows} == {"ItemSnapshot"}
    assert [json.loads(record.value or b"")["id"] for record in rows] == list(range(1, 2501))


def test_it_can_begin_with_what_is_in_the_log(cluster: Cluster, make_reader: MakeReader) -> None:
    database = create_database(cluster)
    (first,) = database.enqueue("a")
    add_event_for_one(database, 1)
    database.move_to_segment(1)
    (second,) = database.enqueue("a", first=2)
    reader = make_reader(database, **debezium.connector_with_log()).start()
    (third,) = database.enqueue("a", first=3)
    reader.wait_for({first, second, third})
    assert [record.id for record in reader.records()] == [first, second, third]


def test_heartbeats_free_the_slot_while_there_are_no_events(reader: Debezium) -> None:
    database = reader.database
    database.execute("CREATE TABLE busy AS SELECT generate_series(1, 1000)")
    here = database.value("SELECT pg_current_wal_insert_lsn()")

    def behind() -> int:
        database.execute("SELECT txid_current()")
        return database.value(
            "SELECT confirmed_flush_lsn < %s FROM pg_replication_slots WHERE slot_name = 'outbox'", (here,)
        )

    wait_until(behind, lambda it_is: not it_is, what="the slot to get past what is no event")
    assert debezium.HEARTBEATS in {line["topic"] for line in reader.lines()}


def test_debezium_server_is_set_up_alike() -> None:
    """Its options have other names for the same values."""
    expected = {name: value for name, value in debezium.connector().items() if "converter" not in name}
    of_server = {}
    for name, value in debezium.server().items():
        if name.startswith(("debezium.source.", "debezium.transforms")):
            of_server[name.removeprefix("debezium.").removeprefix("source.")] = value
    assert {name: value for name, value in of_server.items() if not name.startswith("offset.")} == expected
