"""Behaviour that every sink must have, also when servers fail. conftest.py lists the sinks."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from cluster import Cluster, Installation, MakeCluster
from database import Database, create_database
from receiver import Exchange, Gate, Request, answer, reset
from waiting import SECOND, Stopwatch, wait_until

from .aws_sinks import AwsSink
from .conftest import SINKS, MakeSink
from .sink import Message, Sink


@pytest.fixture
def db(database: Database) -> Database:
    return database


def in_trouble(db: Database) -> list[tuple[str, int, str]]:
    return db.execute("SELECT aggregate_id, version, state FROM outbox.delivery ORDER BY position")


def enqueue_keys(db: Database, keys: Iterable[str], count: int) -> list[str]:
    """Enqueues version 1 of all keys, version 2 of all keys, ..., in one transaction."""
    rows = db.execute(
        "SELECT outbox.enqueue('item', key, 'changed', jsonb_build_object('n', n), version => n) "
        "FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS key",
        (count, list(keys)),
    )
    return [str(row[0]) for row in rows]


def enqueue_bytes(db: Database, key: str, payload: bytes, version: int = 1) -> str:
    return str(
        db.value(
            "SELECT outbox.enqueue('item', %s, 'changed', %s::bytea, 'application/x-thing', version => %s)",
            (key, payload, version),
        )
    )


def allow_any_size(db: Database) -> None:
    db.execute("SET outbox.max_payload_size = '64MB'")


def enqueue_without_key(db: Database, count: int) -> list[str]:
    rows = db.execute(
        "SELECT outbox.enqueue('item', n::text, 'changed', '{}', version => n, ordering_key => '') "
        "FROM generate_series(1, %s) AS n",
        (count,),
    )
    return [str(row[0]) for row in rows]


def first_versions(messages: list[Message]) -> dict[str, list[int]]:
    """Returns versions per key in the order of arrival, without duplicates."""
    once = {message.event_id: message for message in reversed(messages)}.values()
    ordered = sorted(once, key=messages.index)
    return {
        key: [m.version or 0 for m in ordered if m.aggregate_id == key] for key in {m.aggregate_id for m in ordered}
    }


def assert_arrived(sink: Sink, ids: list[str], *, times: int = 1) -> None:
    """Checks that exactly these events arrived, with at most this number of copies, and keys in order."""
    messages = sink.wait_for(ids)
    sink.database.wait_settled()
    counts = Counter(message.event_id for message in sink.messages())
    assert set(counts) == set(ids), "something arrived that was not enqueued"
    often = {id: n for id, n in counts.items() if n > (1 if sink.deduplicates else times)}
    assert not often, f"arrived too often: {often}"
    if "order" not in sink.cannot:
        assert_in_order(messages)
    if "requests" not in sink.cannot:
        for _, batch in batches(sink):
            sink.check_batch(batch)


def assert_in_order(messages: list[Message]) -> None:
    for key, versions in first_versions(messages).items():
        assert versions == sorted(versions), f"{key} came in the order {versions}"


def batches(sink: Sink) -> list[tuple[Request, list[Message]]]:
    """Returns the requests with events that the proxy has seen, in order."""
    carried = [(request, sink.carried(request)) for request in sink.proxy.requests]
    return [(request, messages) for request, messages in carried if messages]


def assert_one_request_per_key(sink: Sink) -> None:
    """Checks that no request began before the previous one with the same key had ended."""
    ended: dict[str, float] = {}
    for request, messages in batches(sink):
        for key in {message.aggregate_id for message in messages}:
            assert ended.get(key, 0.0) <= request.began, f"{key} was in two requests at the same time"
            ended[key] = request.ended or float("inf")


# -------------------------------------------------------------------------------------------------
# Content of events
# -------------------------------------------------------------------------------------------------

UNICODE = 'Grüße, Ωmega, 日本, 𝄞 "quoted" \\ / <&> % + end'

CONTENT: dict[str, tuple[str, bytes | None]] = {
    "json": ("application/json", f'{{"title":{json.dumps(UNICODE, ensure_ascii=False)}}}'.encode()),
    "text": ("text/plain; charset=utf-8", UNICODE.encode()),
    "a line end": ("text/plain", b"one\r\ntwo\n"),
    "a control character": ("text/plain", b"a\x01b"),
    "not a character": ("text/plain", "\uffff".encode()),
    "bytes": ("application/octet-stream", bytes(range(256)) * 4),
    "broken UTF-8": ("text/plain", b"\xc3\x28"),
    "white space": ("text/plain", b" "),
    "a dash": ("text/plain", b"-"),
    "long": ("text/plain", (UNICODE * 5000)[:100_000].encode()),
    "empty": ("text/plain", b""),
    "nothing": ("application/json", None),
}


def enqueue_content(sink: Sink, db: Database) -> dict[str, Message]:
    """Enqueues an event for each of CONTENT; returns the expected events by id."""
    occurred_at = datetime(2026, 1, 31, 10, 20, 30, 123456, UTC)
    expected = {}
    for n, (what, (content_type, payload)) in enumerate(CONTENT.items()):
        headers = {"tenant": UNICODE, "traceparent": "00-1-2-01", "count": n}
        event_id = str(
            db.value(
                "SELECT outbox.enqueue('item', %s, 'item.changed', %s::bytea, %s, version => %s, "
                "schema_version => 3, headers => %s, occurred_at => %s)",
                (what, payload, content_type, n, json.dumps(headers), occurred_at),
            )
        )
        expected[event_id] = sink.as_carried(
            Message(
                event_id, "item.changed", "item", what, n, 3, occurred_at, content_type, what,
                {**headers, "count": str(n)}, payload,
            )
        )  # fmt: skip
    return expected


KEYS = ["a b", "ключ 𝄞", "k" * 300, "", '"\\']


def enqueue_keys_of_any_text(db: Database) -> dict[str, str]:
    """Enqueues four events for each of KEYS. Returns the key of each event by id. Events without a key are each alone."""
    rows = db.execute(
        "SELECT outbox.enqueue('item', CASE key WHEN '' THEN 'none ' || n ELSE k::text END, 'changed', '{}', "
        "version => n, ordering_key => key)::text, key "
        "FROM generate_series(1, 4) AS n, unnest(%s::text[]) WITH ORDINALITY AS keys (key, k)",
        (KEYS,),
    )
    return dict(rows)


@pytest.mark.core
@pytest.mark.other_servers
def test_everything_of_an_event_arrives_once_and_every_key_in_order(sink: Sink, db: Database) -> None:
    """One delivery: any content, any text as ordering key, keys with few and with many events."""
    sink.add_topic()
    sink.create()
    expected = enqueue_content(sink, db)
    bare = str(db.value("SELECT outbox.enqueue('item', 'a', 'changed', '{}')"))
    key_of = enqueue_keys_of_any_text(db)
    many = enqueue_keys(db, [f"k{n}" for n in range(20)], 8) + enqueue_keys(db, ["late"], 20)
    assert_arrived(sink, [*expected, bare, *key_of, *many])
    for message in sink.messages():
        if message.event_id in expected:
            assert message == expected[message.event_id]
        elif message.event_id == bare:
            assert (message.version, message.headers, message.payload) == (None, {}, b"{}")
        elif message.event_id in key_of:
            as_enqueued = replace(message, ordering_key=key_of[message.event_id])
            assert message.ordering_key == sink.as_carried(as_enqueued).ordering_key
    if "requests" not in sink.cannot:
        assert_one_request_per_key(sink)
        assert_in_order([message for _, messages in batches(sink) for message in messages])


# Every control character, and what some protocols take for no character, for an end or for a line end.
ODD_TEXTS = [
    *("".join(map(chr, codes)) for codes in (range(1, 32), range(32, 127), [127], range(128, 160))),
    "\ufffe", "\uffff", "\ufdd0", "\U0001ffff", "\u2028\u2029", "\xa0", "e\u0301", " ",
]  # fmt: skip


def enqueue_odd_texts(sink: Sink, db: Database) -> dict[str, Message]:
    """Enqueues events with each of ODD_TEXTS as key, as id and, where a header may have it, in a header."""
    occurred_at = datetime(2026, 1, 31, 10, 20, 30, 123456, UTC)
    expected = {}
    for n, text in enumerate(ODD_TEXTS):
        for key, id, header in ((text, f"{n}", ""), ("", f"{n} {text}", ""), ("", f"{n}", text)):
            if any(c < " " or c == "\x7f" for c in header):
                continue
            headers = {"odd": header} if header else {}
            event_id = str(
                db.value(
                    "SELECT outbox.enqueue('item', %s, 'changed', '{}'::bytea, 'application/json', version => %s, schema_version => 3, "
                    "ordering_key => %s, headers => %s, occurred_at => %s)",
                    (id, n, key, json.dumps(headers), occurred_at),
                )
            )
            expected[event_id] = sink.as_carried(
                Message(event_id, "changed", "item", id, n, 3, occurred_at, "application/json", key, headers, b"{}")
            )
    return expected


def test_a_text_arrives_as_it_is_or_is_refused(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.create()
    expected = enqueue_odd_texts(sink, db)
    dead = "SELECT event_id::text, last_error FROM outbox.delivery WHERE state = 'DEAD'"

    def left() -> set[str]:
        return set(expected) - {m.event_id for m in sink.messages()} - {id for id, _ in db.execute(dead)}

    wait_until(left, lambda ids: not ids, what="each to arrive or to be refused")
    for message in sink.messages():
        assert message == expected[message.event_id]
    refused = dict(db.execute(dead))
    assert bool(refused) == sink.refuses_texts, refused
    assert not set(refused) & {message.event_id for message in sink.messages()}
    assert all(refused.values()), "refused without a reason"


def test_everything_of_an_event_arrives_as_a_cloud_event(sink: Sink, db: Database) -> None:
    sink.add_topic()
    for format in sink.cloud_events:
        sink.create(format=format, start="end")
        expected = enqueue_content(sink, db)
        arrived = {message.event_id: message for message in sink.wait_for(list(expected))}
        for event_id, message in expected.items():
            assert arrived[event_id] == message, format
        db.execute("DROP SERVER d CASCADE")


# -------------------------------------------------------------------------------------------------
# Order and concurrency
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("parallel")
@pytest.mark.needs("requests")
def test_keys_go_side_by_side_and_each_has_one_request_at_a_time(sink: Sink, db: Database) -> None:
    sink.add_topic()
    gate = sink.proxy.hold_answers(times=4)
    sink.create(**sink.small_batches)
    keys = [f"k{n}" for n in range(40)]
    ids = enqueue_keys(db, keys, 3)
    wait_until(lambda: len(gate.holding), lambda seen: seen == 4, what="four requests at the same time")
    held = {m.aggregate_id for r, ms in batches(sink) if r.number in gate.holding for m in ms}
    ids += enqueue_keys(db, held, 1)  # it must wait
    enqueue_keys(db, ["other"], 1)
    wait_until(
        lambda: [m.aggregate_id for m in sink.messages()], lambda seen: "other" in seen,
        what="a key that nobody holds",
    )  # fmt: skip
    assert_one_request_per_key(sink)
    gate.open()
    sink.wait_for(ids)
    db.wait_settled()
    assert_one_request_per_key(sink)


# -------------------------------------------------------------------------------------------------
# Batches
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("batches")
def test_a_backlog_goes_in_batches_within_the_limit(sink: Sink, db: Database) -> None:
    sink.add_topic()
    gate = sink.proxy.hold_answers(times=1)
    sink.create(batch_size=str(sink.batch_limit), max_connections="1")
    ids = enqueue_without_key(db, 1)
    wait_until(lambda: gate.holding, what="the first request")
    ids += enqueue_without_key(db, 2 * sink.batch_limit)
    wait_until(db.status, lambda s: s["in_flight"] == len(ids), what="a backlog behind it")
    gate.open()
    assert_arrived(sink, ids)
    assert [len(messages) for _, messages in batches(sink)] == [1, sink.batch_limit, sink.batch_limit]


@pytest.mark.needs("batches")
def test_of_a_refused_batch_only_the_offender_is_in_trouble(sink: Sink, db: Database) -> None:
    def has_the_offender(request: Request) -> bool:
        return any(message.version == 7 for message in sink.carried(request))

    sink.add_topic()
    sink.proxy.on(has_the_offender, sink.refuse_batch())
    ids = enqueue_without_key(db, 20)
    sink.create(retry_base="1h", retry_max="1h")
    offender = ids.pop(6)
    wait_until(lambda: in_trouble(db), what="the offender in trouble")
    assert_arrived(sink, ids)
    assert [str(row[0]) for row in db.execute("SELECT event_id FROM outbox.delivery")] == [offender]


@pytest.mark.needs("batches")
@pytest.mark.needs("limits")
def test_a_batch_keeps_below_the_limit_in_bytes(sink: Sink, db: Database) -> None:
    sink.add_topic()
    allow_any_size(db)
    payload = b"x" * (sink.size_limit() // 4)
    rows = db.execute(
        "SELECT outbox.enqueue('item', n::text, 'changed', %s::bytea, 'text/plain', ordering_key => '') "
        "FROM generate_series(1, %s) AS n",
        (payload, 2 * sink.batch_bytes() // len(payload) + 1),
    )
    sink.create()
    assert_arrived(sink, [str(row[0]) for row in rows])
    for _, messages in batches(sink):
        assert sum(len(message.payload or b"") for message in messages) < sink.batch_bytes()


@pytest.mark.needs("partial")
def test_entries_that_fail_are_sent_again_and_no_others(sink: AwsSink, db: Database) -> None:
    sink.add_topic()
    sink.refuse(lambda m: m.version == 2, for_good=False, times=2)
    ids = enqueue_keys(db, [f"k{n}" for n in range(10)], 4)
    sink.create()
    assert_arrived(sink, ids)
    assert in_trouble(db) == []


@pytest.mark.needs("partial")
@pytest.mark.needs("refusals")
def test_an_entry_that_is_refused_for_good_is_a_dead_letter(sink: AwsSink, db: Database) -> None:
    sink.add_topic()
    sink.refuse(lambda m: (m.aggregate_id, m.version) == ("k3", 2), for_good=True, times=None)
    ids = enqueue_keys(db, [f"k{n}" for n in range(10)], 4)
    sink.create(on_dead_letter="block")
    wait_until(lambda: in_trouble(db), what="the event in trouble")
    db.wait_settled()
    first, *others = in_trouble(db)
    behind = [("k3", 3, "PENDING"), ("k3", 4, "PENDING")]
    assert first == ("k3", 2, "DEAD")
    assert others == behind if "order" not in sink.cannot else set(others) <= set(behind)
    assert "not this one" in db.value("SELECT last_error FROM outbox.delivery WHERE state = 'DEAD'")
    trouble = {str(row[0]) for row in db.execute("SELECT event_id FROM outbox.delivery")}
    assert_arrived(sink, [id for id in ids if id not in trouble])


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("throttling")
def test_it_waits_as_long_as_it_is_asked_to(sink: Sink, db: Database) -> None:
    sink.add_topic()
    rule = sink.proxy.on(sink.proxy.carries, sink.throttle(2), times=1)
    sink.create()
    ids = enqueue_keys(db, ["a"], 3)
    wait_until(lambda: db.status()["state"], lambda seen: seen == "throttled", what="throttling")
    ids += enqueue_keys(db, ["b", "c"], 3)
    assert_arrived(sink, ids)
    first, second, *_ = [request for request, _ in batches(sink)]
    assert first is rule.met[0] and first.ended is not None
    waited = second.began - first.ended
    assert waited >= 1.9, f"the next request came after {waited:.1f} s"
    assert in_trouble(db) == []
    assert db.value("SELECT count(*) FROM outbox.receipt") == 0


def test_a_request_that_gets_lost_is_sent_again(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.proxy.lose_requests(2)
    sink.create()
    ids = enqueue_keys(db, ["a", "b", "c"], 4)
    assert_arrived(sink, ids)
    assert in_trouble(db) == []


def test_an_answer_that_gets_lost_repeats_at_most_its_request(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.proxy.lose_answers(1)
    sink.create()
    ids = enqueue_keys(db, ["a", "b", "c"], 4)
    db.wait_settled()
    assert_arrived(sink, ids, times=2)
    assert in_trouble(db) == []


@pytest.mark.timing
@pytest.mark.core
@pytest.mark.worker
def test_nothing_is_confirmed_before_the_answer(sink: Sink, db: Database) -> None:
    """Also a relay that is asked to end meanwhile takes nothing for granted, and does not wait."""
    sink.add_topic()
    gate = sink.proxy.hold_answers()
    sink.create(request_timeout="1h")
    ids = enqueue_keys(db, ["a"], 3)
    wait_until(lambda: gate.holding, what="an answer that does not come")
    relay = db.wait_for_worker("relay")
    assert db.published() == 0 and db.status()["in_flight"] == len(ids)
    watch = Stopwatch()
    assert db.value("SELECT pg_terminate_backend(%s, 60000)", (relay,))
    assert watch.seconds < 2 * SECOND
    db.wait_for_worker("relay", other_than=relay)
    assert db.published() == 0
    sink.proxy.forget_rules()
    gate.open()
    db.wait_settled()
    assert_arrived(sink, ids, times=2)


def test_an_answer_that_comes_too_late_is_a_failure(sink: Sink, db: Database) -> None:
    sink.add_topic()
    gate = sink.proxy.hold_answers(times=1)
    sink.create(request_timeout="3s")  # the second attempt has to be in time
    ids = enqueue_keys(db, ["a"], 3)
    wait_until(lambda: len(gate.holding), what="an answer that does not come")
    wait_until(lambda: "time" in (db.status()["last_error"] or ""), what="the relay to give up on it")
    gate.open()
    sink.proxy.forget_rules()
    db.wait_settled()
    assert_arrived(sink, ids, times=2)
    assert in_trouble(db) == []


CONNECTIONS = ("round_trip_p50", "round_trip_p99", "client_queue", "connects", "disconnects")


def test_figures_of_connections(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.create()
    sink.wait_for(enqueue_keys(db, ["a", "b"], 3))
    if not sink.counts_connections:
        assert [db.status()[name] for name in CONNECTIONS] == [None] * len(CONNECTIONS)
        return
    first = wait_until(db.status, lambda s: s["client_queue"] == 0, what="an empty queue")
    assert first["connects"] > 0
    assert first["round_trip_p50"] <= first["round_trip_p99"]
    sink.proxy.refuse_connections()
    ids = enqueue_keys(db, ["a"], 3)
    wait_until(db.status, lambda s: s["disconnects"] > first["disconnects"], what="a connection that has ended")
    wait_until(
        lambda: "client library: " in db.log_of_relay(),
        what="a line of the library in the log: a connection was refused",
    )  # fmt: skip
    sink.proxy.listen()
    sink.wait_for(ids)
    wait_until(db.status, lambda s: s["connects"] > first["connects"], what="another connection")
    for name in ("round_trip_seconds", "client_queue", "connects_total", "disconnects_total"):
        assert f'outbox_{name}{{database="{db.name}",destination="d"' in db.value("SELECT outbox.metrics()")


@pytest.mark.core
def test_a_destination_that_goes_and_comes_back(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.create()
    ids = enqueue_keys(db, ["a", "b"], 3)
    sink.wait_for(ids)
    sink.proxy.refuse_connections()
    ids += [id for key in "ab" for id in db.enqueue(key, 3, first=4)]
    wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
    sink.proxy.listen()
    assert_arrived(sink, ids, times=2)
    assert in_trouble(db) == []


@pytest.mark.needs("topics")
def test_a_topic_that_is_missing_is_the_destinations_failure(sink: Sink, db: Database) -> None:
    sink.create()
    ids = enqueue_keys(db, ["a", "b"], 2)
    status = wait_until(db.status, lambda s: s["state"] == "backing off", what="a back-off")
    assert in_trouble(db) == []
    assert "item" in status["last_error"], "the error does not name what is missing"
    sink.proxy.refuse_connections()  # so that nothing is published before there is a reader
    sink.add_topic()
    sink.proxy.listen()
    assert_arrived(sink, ids)
    assert in_trouble(db) == []


@pytest.mark.core
@pytest.mark.needs("limits")
def test_an_event_that_is_too_large_is_a_dead_letter(sink: Sink, db: Database) -> None:
    sink.add_topic()
    allow_any_size(db)
    too_large = b"x" * (sink.size_limit() + 1)
    sink.create(on_dead_letter="block")
    ids = enqueue_keys(db, ["a", "b"], 1)
    with db.connection.transaction():
        enqueue_bytes(db, "a", too_large, 2)
        ids += db.enqueue("b", 3, first=2)
        behind = db.enqueue("a", first=3)
    wait_until(
        lambda: in_trouble(db), lambda seen: seen == [("a", 2, "DEAD"), ("a", 3, "PENDING")],
        what="the dead letter and what waits behind it",
    )  # fmt: skip
    assert db.value("SELECT last_error FROM outbox.delivery WHERE state = 'DEAD'")
    assert_arrived(sink, ids)
    db.execute("ALTER SERVER d OPTIONS (SET on_dead_letter 'release')")
    assert_arrived(sink, ids + behind)
    assert in_trouble(db) == [("a", 2, "DEAD")]


# -------------------------------------------------------------------------------------------------
# Destinations that fail in part
# -------------------------------------------------------------------------------------------------


def enqueue_type(db: Database, type: str, keys: int, count: int, *, first: int = 1) -> list[str]:
    """Enqueues events of an aggregate type, which has a topic of its own."""
    rows = db.execute(
        "SELECT outbox.enqueue(%s, %s || k::text, 'changed', '{}', version => n) "
        "FROM generate_series(%s::bigint, %s::bigint) AS n, generate_series(1, %s) AS k",
        (type, type, first, first + count - 1, keys),
    )
    return [str(row[0]) for row in rows]


def is_about(sink: Sink, aggregate_type: str) -> Callable[[Request], bool]:
    return lambda request: any(m.aggregate_type == aggregate_type for m in sink.carried(request))


def charged(db: Database) -> list[tuple[str, int, str, int]]:
    return db.execute(
        "SELECT aggregate_id, version, state, attempts FROM outbox.delivery "
        "WHERE attempts > 0 OR state NOT IN ('RETRY', 'PENDING')"
    )


@pytest.mark.other_servers
@pytest.mark.needs("topics")
def test_one_of_several_topics_is_missing(sink: Sink, db: Database) -> None:
    """The others go on. Events for the missing one wait in order, without a counted attempt."""
    for there in ("a.events", "c.events"):
        sink.add_topic(there)
    sink.create()
    with db.connection.transaction():
        ids, missing, others = (enqueue_type(db, type, 4, 3) for type in ("a", "b", "c"))
    ids += others
    sink.wait_for(ids)
    status = wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a topic to be down")
    assert re.search("b.events", status["last_error"]), "the error does not name what is missing"
    ids += [id for type in ("a", "c") for id in enqueue_type(db, type, 4, 2, first=4)]
    sink.wait_for(ids)
    assert not set(missing) & {message.event_id for message in sink.messages()}
    assert charged(db) == []
    sink.proxy.refuse_connections()  # so that nothing is published before there is a reader
    sink.add_topic("b.events")
    sink.proxy.listen()
    assert_arrived(sink, ids + missing, times=2)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")
    wait_until(lambda: db.status()["lanes_down"], lambda down: down == 0, what="all topics to work")


# Less than the tests below enqueue.
SMALL_MEMORY = {"outbox.max_in_flight": "40"}


def sinks_with_topics(installation: Installation, cluster: Cluster, make: MakeSink) -> list[Sink]:
    """Runs each sink in a database of its own."""
    needed = {"topics", "requests"}
    kinds = [k for k in SINKS if not needed & set(k.cannot) and installation.has_module(k.module)]
    return [make(kind, create_database(cluster, kind.name)) for kind in kinds]


@pytest.mark.long
@pytest.mark.slow
def test_what_waits_for_a_missing_topic_leaves_memory(
    installation: Installation, make_cluster: MakeCluster, make_sink: MakeSink
) -> None:
    """Another topic has events meanwhile, so that it is known not to be an outage."""
    for sink in sinks_with_topics(installation, make_cluster(SMALL_MEMORY), make_sink):
        db = sink.database
        sink.add_topic("a.events")
        gate = Gate()
        sink.proxy.on(is_about(sink, "a"), sink.proxy.held(gate), times=1)
        sink.create()
        ids = [str(db.value("SELECT outbox.enqueue('a', 'held', 'changed', '{}', version => 1)"))]
        wait_until(lambda: gate.holding, what=f"a request of {sink.name} that hangs")
        missing = enqueue_type(db, "b", 20, 6)
        wait_until(
            lambda: db.value("SELECT count(*) FROM outbox.delivery WHERE state = 'RETRY'"),
            what=f"events in outbox.delivery of {sink.name}",
        )
        ids += enqueue_type(db, "a", 10, 3)
        sink.wait_for(ids)  # the held one has been taken, and is not confirmed
        assert charged(db) == []
        gate.open()
        db.wait_published(len(ids))
        sink.proxy.refuse_connections()  # so that nothing is published before there is a reader
        sink.add_topic("b.events")
        sink.proxy.listen()
        assert_arrived(sink, missing + ids, times=2)
        wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")


def test_a_backlog_for_a_missing_topic_does_not_stop_others(
    installation: Installation, make_cluster: MakeCluster, make_sink: MakeSink
) -> None:
    sink, *_ = sinks_with_topics(installation, make_cluster(SMALL_MEMORY), make_sink)
    sink.add_topic("a.events")
    sink.create()
    enqueue_type(sink.database, "b", 20, 6)
    wait_until(sink.database.status, lambda s: s["lanes_down"] > 0, what="a topic to be down")
    sink.wait_for(enqueue_type(sink.database, "a", 10, 3))


@pytest.mark.needs("topics")
@pytest.mark.needs("throttling")
def test_one_of_several_topics_is_throttled(sink: Sink, db: Database) -> None:
    """Only this topic pauses for the time it asks for."""
    for topic in ("a.events", "b.events"):
        sink.add_topic(topic)
    sink.proxy.on(is_about(sink, "b"), sink.throttle(1))
    sink.create()
    throttled = enqueue_type(db, "b", 3, 2)
    status = wait_until(db.status, lambda s: s["state"] == "throttled", what="throttling")
    assert status["throttled"] > 0
    ids = enqueue_type(db, "a", 10, 5)
    sink.wait_for(ids)
    assert not set(throttled) & {message.event_id for message in sink.messages()}
    assert db.status()["lanes_down"] == 0
    sink.proxy.forget_rules()
    assert_arrived(sink, throttled + ids)
    assert in_trouble(db) == []


@pytest.mark.long
@pytest.mark.needs("throttling")
def test_requests_that_are_throttled_at_random(sink: Sink, db: Database) -> None:
    dice = random.Random(1)
    sink.add_topic()
    rule = sink.proxy.on(lambda r: sink.proxy.carries(r) and dice.random() < 0.2, sink.throttle(0))
    ids = enqueue_keys(db, [f"k{n}" for n in range(50)], 5)
    sink.create()
    assert_arrived(sink, ids)
    assert len(rule.met) == 0 or db.status()["throttled"] > 0
    assert in_trouble(db) == []


@pytest.mark.long
@pytest.mark.needs("requests")
def test_requests_that_are_lost_at_random(sink: Sink, db: Database) -> None:
    """The cause is unknown, so an event lost three times may have a counted attempt; none becomes a dead letter."""
    dice = random.Random(1)
    sink.add_topic()
    sink.proxy.on(lambda r: sink.proxy.carries(r) and dice.random() < 0.2, reset)
    ids = enqueue_keys(db, [f"k{n}" for n in range(50)], 5)
    sink.create(retry_base="50ms", retry_max="50ms")
    assert_arrived(sink, ids)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")


# -------------------------------------------------------------------------------------------------
# Restarts
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker
def test_a_relay_that_ends_in_the_middle(sink: Sink, db: Database) -> None:
    sink.add_topic()
    gate = sink.proxy.hold_answers()
    sink.create()
    ids = enqueue_keys(db, [f"k{n}" for n in range(10)], 4)
    wait_until(lambda: len(gate.holding), what="a request under way")
    relay = db.wait_for_worker("relay")
    db.execute("SELECT pg_terminate_backend(%s)", (relay,))
    db.wait_for_worker("relay", other_than=relay)
    sink.proxy.forget_rules()
    gate.open()
    db.wait_settled()
    assert_arrived(sink, ids, times=2)


@pytest.mark.long
@pytest.mark.worker
def test_a_server_that_is_killed_in_the_middle(
    installation: Installation, make_cluster: MakeCluster, make_sink: MakeSink
) -> None:
    """Tests all sinks at once, because a crash takes time."""
    cluster = make_cluster()
    built = [kind for kind in SINKS if installation.has_module(kind.module)]
    sinks = [make_sink(kind, create_database(cluster, kind.name)) for kind in built]
    gates: list[Gate] = []
    for sink in sinks:
        sink.add_topic()
        gates.append(sink.proxy.hold_answers(times=1))
        sink.create()
    ids = [enqueue_keys(sink.database, [f"k{n}" for n in range(10)], 4) for sink in sinks]
    for sink, gate in zip(sinks, gates):
        wait_until(lambda: len(gate.holding), what=f"a request of {sink.name} under way")
    cluster.kill_and_recover(sinks[0].database.wait_for_worker("relay"))
    for gate in gates:
        gate.open()
    for sink in sinks:
        sink.proxy.forget_rules()
    for sink, enqueued in zip(sinks, ids):
        sink.database.wait_settled(timeout=40)
        assert_arrived(sink, enqueued, times=2)


# -------------------------------------------------------------------------------------------------
# Secrets
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("secrets")
def test_credentials_that_expire_are_the_destinations_failure(sink: Sink, db: Database) -> None:
    sink.add_topic()
    sink.create_with_credentials()
    ids = enqueue_keys(db, ["a"], 2)
    sink.wait_for(ids)
    sink.proxy.on(lambda request: sink.uses_credentials(request, 1), sink.refuse_credentials())
    ids += [id for key in "ab" for id in db.enqueue(key, 3, first=3)]
    wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
    assert in_trouble(db) == []
    sink.renew_credentials(2)
    assert_arrived(sink, ids)
    assert sink.uses_credentials(batches(sink)[-1][0], 2)


@pytest.mark.needs("secrets")
def test_secrets_are_seen_nowhere(sink: Sink, db: Database) -> None:
    """Also not when they are refused, or when an answer repeats them."""
    seen = ""
    sink.add_topic()
    for behave in (repeat_the_request, sink.refuse_credentials()):
        sink.proxy.on(sink.proxy.carries, behave)
        if not seen:
            sink.create_with_credentials()
        ids = db.enqueue("a", 3)
        wait_until(lambda: db.status()["state"], lambda s: s == "backing off", what="a back-off")
        seen += all_that_can_be_read(db)
        sink.proxy.forget_rules()
        sink.wait_for(ids)
        db.wait_settled()
    sink.renew_credentials(2)
    with pytest.raises(psycopg.Error) as wrong:
        sink.database.execute("ALTER SERVER d OPTIONS (SET url 'ftp://nowhere')")
    seen = str(wrong.value) + db.cluster.log_since(db.cluster.test_began) + all_that_can_be_read(db)
    for secret in sink.secrets():
        assert secret not in seen, f"{secret!r} can be seen"


async def repeat_the_request(exchange: Exchange) -> None:
    lines = [f"{name}: {value}" for name, value in exchange.request.header_list]
    await answer(500, body="\n".join(sorted(lines)).encode())(exchange)


def all_that_can_be_read(db: Database) -> str:
    relations = db.execute(
        "SELECT format('outbox.%I', relname) FROM pg_class "
        "WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v')"
    )
    others = [("pg_stat_activity",), ("pg_foreign_server",)]
    return "\n".join(str(db.execute(f"SELECT t::text FROM {relation} AS t")) for (relation,) in relations + others)
