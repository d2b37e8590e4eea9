"""The kafka sink with exactly_once: what a consumer that reads only committed records gets. More kills
are in tests/drills/test_exactly_once.py."""

from __future__ import annotations

from collections import Counter
from random import randbytes
from uuid import uuid4

import pytest

from cluster import MakeCluster
from database import Database, create_database
from waiting import wait_until

from .conftest import MakeSink
from .fault_proxy import END_TXN
from .kafka_sink import KafkaSink
from .test_conformance import assert_in_order, enqueue_keys, in_trouble

LINES = 3


@pytest.fixture
def db(database: Database) -> Database:
    return database


def make_kafka(make_sink: MakeSink, database: Database) -> KafkaSink:
    sink = make_sink(KafkaSink, database)
    assert isinstance(sink, KafkaSink)
    sink.add_topic()
    return sink


@pytest.fixture
def kafka(db: Database, make_sink: MakeSink) -> KafkaSink:
    sink = make_kafka(make_sink, db)
    create(sink)
    return sink


def create(sink: KafkaSink) -> None:
    sink.create(exactly_once="on", connect_timeout="10s", retry_base="10ms", retry_max="100ms")


def assert_once(kafka: KafkaSink, ids: list[str]) -> None:
    """They are settled, so whatever was sent has arrived."""
    kafka.database.wait_settled(timeout=120)
    messages = kafka.wait_for(ids)
    assert Counter(message.event_id for message in messages) == Counter(ids)
    assert_in_order(messages)


def transactions(db: Database) -> list[tuple]:
    return db.execute("SELECT line, positions::text, retries::text FROM outbox.transaction")


def test_events_arrive_once_and_leave_the_last_numbers(kafka: KafkaSink, db: Database) -> None:
    ids = [id for n in range(10) for id in enqueue_keys(db, [f"a{n}", f"b{n}", f"c{n}"], 10)]
    assert_once(kafka, ids)
    wait_until(
        lambda: transactions(db),
        lambda rows: all(row[1:] == ("{}", "{}") for row in rows) and len({line for line, *_ in rows}) == len(rows),
        what="one row without events for each line",
    )  # fmt: skip
    db.execute("DROP SERVER d CASCADE")
    assert transactions(db) == []


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_commit_without_an_answer(kafka: KafkaSink, db: Database, lost: str) -> None:
    """It took effect or not; the relay finds out before it goes on."""
    ids = enqueue_keys(db, ["a", "b"], 3)
    assert_once(kafka, ids)
    with kafka.proxy.watching(END_TXN):
        kafka.proxy.lose_requests(3) if lost == "request" else kafka.proxy.lose_answers(3)
        for key in ("a", "b", "c"):
            ids += db.enqueue(key, 20, first=101)
        assert_once(kafka, ids)
    assert in_trouble(db) == []


def test_a_refused_event_leaves_the_transaction(db: Database, make_sink: MakeSink) -> None:
    kafka = make_sink(KafkaSink, db)
    assert isinstance(kafka, KafkaSink)
    kafka.add_topic(**{"max.message.bytes": "20000"})
    create(kafka)
    statement = "SELECT outbox.enqueue('item', %s, 'changed', %s::bytea, 'text/plain', version => %s)"
    with db.connection.transaction():
        ids = [str(db.value(statement, (key, b"x" * 100, 1))) for key in "abc"]
        db.value(statement, ("large", randbytes(30_000), 1))
        ids += [str(db.value(statement, (key, b"x" * 100, 2))) for key in "abc"]
    kafka.wait_for(ids)
    wait_until(lambda: in_trouble(db), lambda found: found == [("large", 1, "DEAD")], what="a dead letter")
    assert_once(kafka, ids)


def test_a_missing_topic_holds_its_own_events_only(kafka: KafkaSink, db: Database) -> None:
    held = [str(db.value("SELECT outbox.enqueue('other', 'o', 'changed', '{}')")) for _ in range(3)]
    ids = enqueue_keys(db, ["a", "b"], 20)
    kafka.wait_for(ids)
    wait_until(db.status, lambda status: status["lanes_down"] > 0, what="a topic to be down")
    kafka.add_topic("other.events")
    assert_once(kafka, ids + held)


def test_a_broker_that_is_away_at_the_start_is_the_destinations_failure(db: Database, make_sink: MakeSink) -> None:
    kafka = make_kafka(make_sink, db)
    kafka.proxy.refuse_connections()
    try:
        create(kafka)
        ids = enqueue_keys(db, ["a"], 5)
        wait_until(
            db.status, lambda status: status["state"] == "backing off" and status["last_error"],
            what="a failure with its reason",
        )  # fmt: skip
    finally:
        kafka.proxy.listen()
    assert_once(kafka, ids)


def test_another_producer_with_our_id_fences_us_off(kafka: KafkaSink, db: Database) -> None:
    """The relay of a former primary would do so. Our relay takes over again."""
    from confluent_kafka import Producer

    ids = enqueue_keys(db, ["a", "b"], 10)
    assert_once(kafka, ids)
    group = wait_until(lambda: [name for name in kafka.groups() if f".{db.name}." in name], what="our group")[0]
    others = []
    for line in range(LINES):
        id = f"{group.rpartition('.')[0]}.{line}"
        others.append(Producer({"bootstrap.servers": kafka.broker.address, "transactional.id": id, "log_level": 0}))
        others[-1].init_transactions()
    ids += enqueue_keys(db, ["c", "d"], 10)
    assert_once(kafka, ids)


def test_a_seek_delivers_again(kafka: KafkaSink, db: Database) -> None:
    ids = enqueue_keys(db, ["a", "b"], 5)
    assert_once(kafka, ids)
    db.execute("SELECT outbox.seek('d', 'beginning')")
    counts = wait_until(
        lambda: Counter(message.event_id for message in kafka.messages()),
        lambda seen: all(seen[id] == 2 for id in ids), what="all events for the second time",
    )  # fmt: skip
    assert set(counts) == set(ids)


# -------------------------------------------------------------------------------------------------
# Crashes with a cursor that was never saved
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def unsaved(make_cluster: MakeCluster, make_sink: MakeSink) -> KafkaSink:
    """The cursor is saved after the first event, and then for an hour no more."""
    cluster = make_cluster({"outbox.cursor_flush_interval": "1ms"})
    # Clusters of tests are copies, with one system identifier.
    kafka = make_kafka(make_sink, create_database(cluster, f"db_{uuid4().hex[:12]}"))
    create(kafka)
    enqueue_keys(kafka.database, ["first"], 1)
    saved = "SELECT position FROM outbox.cursor WHERE destination = 'd'"
    wait_until(lambda: kafka.database.value(saved), lambda position: position == 1, what="the cursor to be saved")
    cluster.configure_and_wait({**cluster.settings, "outbox.cursor_flush_interval": "1h"})
    kafka.messages()
    return kafka


def crash(db: Database) -> None:
    db.disconnect()
    db.cluster.kill_postmaster()


def test_after_a_crash_kafka_knows_what_it_has(unsaved: KafkaSink) -> None:
    db = unsaved.database
    ids = enqueue_keys(db, ["a", "b"], 10)
    unsaved.wait_for(ids)
    for n in range(3):
        crash(db)
        db.cluster.start()
        ids += enqueue_keys(db, [f"c{n}"], 5)
        unsaved.wait_for(ids)
    messages = [message for message in unsaved.messages() if message.ordering_key != "first"]
    assert Counter(message.event_id for message in messages) == Counter(ids)
    assert_in_order(messages)
    assert "arrive twice" not in db.cluster.log_since(db.cluster.test_began)


def test_if_kafka_has_forgotten_it_the_server_log_says_so(unsaved: KafkaSink) -> None:
    db = unsaved.database
    ids = [id for n in range(3) for id in enqueue_keys(db, [f"a{n}", f"b{n}"], 10)]
    unsaved.wait_for(ids)
    crash(db)
    groups = [name for name in unsaved.groups() if f".{db.name}." in name]
    assert groups
    for future in unsaved.admin.delete_consumer_groups(groups).values():
        future.result()
    db.cluster.start()
    wait_until(
        lambda: db.cluster.log_since(db.cluster.test_began),
        lambda log: "does not know any more whether it has" in log and "some may arrive twice" in log,
        what="a warning",
    )  # fmt: skip
    ids += enqueue_keys(db, ["c"], 5)
    messages = wait_until(
        unsaved.messages, lambda all: {message.event_id for message in all} >= set(ids), what="all events",
    )  # fmt: skip
    assert_in_order(messages)
