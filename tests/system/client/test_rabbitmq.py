"""The RabbitMQ source against a real server: queues and streams, messages held, settled and given back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import Installation
from database import Database
from sinks import servers
from sinks.rabbitmq_server import RabbitmqServer, rabbitmq
from waiting import wait_until

from .consumer import Target
from .rabbitmq_source import KINDS, PROBE, Queue, RabbitmqSource
from .sqs_source import payloads

MakeQueue = Callable[..., Queue]
MakeSource = Callable[..., RabbitmqSource]

QUEUES = ["quorum", "classic"]


@pytest.fixture(scope="module")
def server(installation: Installation) -> Iterator[RabbitmqServer]:
    if not (installation.programs / "rabbitmq_source").exists():
        pytest.skip("NOT TESTED: the RabbitMQ source is not part of this build")
    try:
        with rabbitmq() as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def make_queue(server: RabbitmqServer) -> Iterator[MakeQueue]:
    made: list[Queue] = []

    def make(kind: str = "quorum", **arguments: object) -> Queue:
        made.append(Queue(server, kind, **arguments))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.fixture(params=["quorum"])
def queue(make_queue: MakeQueue, request: pytest.FixtureRequest) -> Queue:
    return make_queue(request.param)


of_all_kinds = pytest.mark.parametrize("queue", KINDS, indirect=True)
of_queues = pytest.mark.parametrize("queue", QUEUES, indirect=True)
of_a_stream = pytest.mark.parametrize("queue", ["stream"], indirect=True)


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[RabbitmqSource] = []

    def make(queue: Queue, /, *, opened: bool = True, **options: object) -> RabbitmqSource:
        made.append(RabbitmqSource(installation, queue, options))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


def error_of(source: RabbitmqSource) -> dict[str, Any]:
    """Of a source that has something to receive at once, so that open() may throw already."""
    return source.command("open") or source.receive_error()


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


@of_all_kinds
def test_a_message_becomes_a_delivery(queue: Queue, make_source: MakeSource) -> None:
    id, began = "0193c0de-0000-7000-8000-00000000000a", time.time()
    queue.publish("café", {"event_id": id, "event_type": "Changed", "aggregate_type": "item", "aggregate_id": "7",
                           "version": "3", "ordering_key": "k 1", "other": "café", "number": 5, "flag": True,
                           "table": {"a": 1}}, content_type="text/plain", message_id=id)  # fmt: skip
    (delivery,) = make_source(queue).receive(1)
    expected = {
        "event_id": id, "type": "Changed", "aggregate_type": "item", "aggregate_id": "7", "version": 3,
        "content_type": "text/plain", "payload": "café", "topic": queue.name, "key": "k 1",
        "headers": {"other": "café", "number": "5", "flag": "true"}, "source": f"rabbitmq:///{queue.name}",
        "message_id": "0" if queue.kind == "stream" else id,
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert began - 1 <= delivery["published_at"] / 1e6 <= time.time() + 1


def test_cloud_events_of_other_senders(queue: Queue, make_source: MakeSource) -> None:
    for mark in ":_":
        queue.publish("{}", {f"cloudEvents{mark}{name}": value for name, value in
                             {"id": "1", "specversion": "1.0", "source": "/shop/order", "type": "placed"}.items()},
                      content_type="application/json")  # fmt: skip
    one, two = make_source(queue).receive(2)
    assert one["event_id"] == two["event_id"]
    assert (one["type"], one["aggregate_type"]) == ("placed", "order")


def test_messages_of_other_senders_keep_their_id(queue: Queue, make_source: MakeSource) -> None:
    queue.publish("not of ours", {}, message_id="7", type="placed", timestamp=1_700_000_000)
    source = make_source(queue)
    (first,) = source.receive(1)
    source.kill()
    (second,) = make_source(queue).receive(1)
    assert first["event_id"] == second["event_id"] != ""
    assert second["payload"] == "not of ours"
    assert (second["type"], second["published_at"]) == ("placed", 1_700_000_000_000_000)


def test_messages_without_an_id_are_told_apart(queue: Queue, make_source: MakeSource) -> None:
    queue.send("same", "same")
    source = make_source(queue)
    one, two = source.receive(2)
    assert one["event_id"] != two["event_id"]
    wait_until(source.log, lambda log: log.count("without a message_id") == 1, what="a warning")


@of_all_kinds
def test_many_messages_come_within_the_budget(queue: Queue, make_source: MakeSource) -> None:
    queue.send(*map(str, range(100)))
    source = make_source(queue, prefetch=10)
    received = source.receive(10, most=10)
    if queue.kind != "stream":  # a stream sends whole chunks
        wait_until(queue.ready, lambda count: count == 90, what="messages that stay in the queue")
        assert source.command("receive", 10, 100) == []
    while len(received) < 100:
        source.ack(*received[-10:])
        received += source.receive(10, most=10)
    source.ack(*received[-10:])
    assert payloads(received) == [str(n) for n in range(100)]
    queue.wait_settled()
    stats = source.stats()
    assert (stats["received"], stats["acked"], stats["redelivered"], stats["outstanding"]) == (100, 100, 0, 0)


@of_queues
def test_a_large_message(queue: Queue, make_source: MakeSource) -> None:
    """It comes in many frames."""
    body = "".join(map(str, range(250_000)))
    queue.send(body, "")
    one, two = make_source(queue).receive(2)
    assert (one["payload"], two["payload"]) == (body, None)


def test_a_message_that_is_too_large(queue: Queue, make_source: MakeSource) -> None:
    """It ends the source, and stays in the queue."""
    queue.send("x" * 1001)
    source = make_source(queue, opened=False, max_message_size=1000)
    error = error_of(source)
    assert "a message has 1001 bytes, and max_message_size is 1000" in error["error"] and not error["transient"]
    source.close()
    assert len(make_source(queue).receive(1)) == 1


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


@of_queues
def test_what_is_acknowledged_does_not_come_again(queue: Queue, make_source: MakeSource) -> None:
    queue.send(*"12345")
    source = make_source(queue)
    received = source.receive(5)
    source.ack(received[1], received[4])
    source.ack(received[0], received[3])
    source.close()
    (left,) = make_source(queue).receive(1)
    assert left["payload"] == "3"


@of_all_kinds
def test_a_key_comes_again_in_its_order(queue: Queue, make_source: MakeSource) -> None:
    """A message received behind one that is given back must not be handled before it."""
    queue.send("1", "2", "3", "4", key="a")
    queue.send("x", "y", key="b")
    source = make_source(queue)
    one, two = [*source.receive(1, most=1), *source.receive(1, most=1)]  # the source holds the others
    queue.send("5", key="a")
    source.nack(one, two)
    received = source.receive(7)
    source.ack(*received)
    assert [d["payload"] for d in received if d["key"] == "a"] == ["1", "2", "3", "4", "5"]
    assert [d["payload"] for d in received if d["key"] == "b"] == ["x", "y"]
    queue.wait_settled()
    assert source.stats()["redelivered"] == 0  # the server does not know of it


@of_queues
def test_after_a_crash_messages_come_again_in_their_order(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1", "2", "3")
    crashed = make_source(queue)
    crashed.receive(3)
    crashed.kill()
    source = make_source(queue)
    assert payloads(source.receive(3)) == ["1", "2", "3"]
    stats = source.stats()
    assert stats["redelivered"] == 3
    assert stats["most_failed_deliveries"] == (1 if queue.kind == "quorum" else 0)


@of_queues
def test_close_gives_back_what_is_held(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1", "2", "3")
    source = make_source(queue)
    one, _ = [*source.receive(1, most=1), *source.receive(1, most=1)]
    source.ack(one)
    source.close()
    wait_until(queue.ready, lambda count: count == 2, what="the messages to be back")
    assert sorted(payloads(make_source(queue).receive(2))) == ["2", "3"]
    source.open()  # it may be opened again
    source.close()
    assert "may be lost" not in source.log()


def test_the_delivery_limit_of_a_queue(make_queue: MakeQueue, make_source: MakeSource) -> None:
    """Attempts in the consumer do not count against it, crashes do."""
    queue = make_queue(delivery_limit=2)
    queue.send("1")
    source = make_source(queue)
    for _ in range(10):
        source.nack(*source.receive(1))
    for _ in range(2):
        source.kill()
        source = make_source(queue)
        source.receive(1)
    source.kill()
    wait_until(queue.left, lambda count: count == 0, what="the queue to drop the message")


# -------------------------------------------------------------------------------------------------
# One active consumer
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUEUES)
def test_a_single_active_consumer(make_queue: MakeQueue, make_source: MakeSource, kind: str) -> None:
    queue = make_queue(kind, single_active_consumer=True)
    active, standby = make_source(queue), make_source(queue)
    queue.send("1", "2")
    received = active.receive(2)
    assert active.stats()["is_active"] and not standby.stats()["is_active"]
    assert standby.command("receive", 10, 0) == []
    active.ack(received[0])
    wait_until(queue.left, lambda count: count == 1, timeout=60, what="the acknowledgement to arrive")
    active.kill()
    assert payloads(standby.receive(1)) == ["2"]
    assert standby.stats()["is_active"]


def test_a_queue_that_is_deleted(queue: Queue, make_source: MakeSource) -> None:
    """The server cancels the consumer. It consumes again when the queue is back."""
    source = make_source(queue)
    queue.channel.queue_delete(queue.name)
    error = source.receive_error()
    assert "NOT_FOUND" in error["error"] and error["transient"]
    assert "cancelled the consumer" in source.log()
    queue.channel.queue_declare(queue.name, durable=True, arguments=queue.arguments)
    queue.send("1")
    source.open()
    assert payloads(source.receive(1)) == ["1"]


# -------------------------------------------------------------------------------------------------
# Streams
# -------------------------------------------------------------------------------------------------


@of_a_stream
def test_a_stream_is_read_from_the_saved_offset(queue: Queue, make_source: MakeSource) -> None:
    queue.send(*map(str, range(10)))
    assert payloads(make_source(queue).receive(10)) == [str(n) for n in range(10)]
    later = make_source(queue, saved=7)
    received = later.receive(3)
    assert [d["message_id"] for d in received] == ["7", "8", "9"]
    assert later.command("positions", "1") == []
    assert later.command("positions", "0") == [f"rabbitmq:///{queue.name} 8"]
    later.ack(received[0], received[2])
    assert later.command("moved") == []  # saved before
    later.ack(received[1])
    assert later.command("moved") == [f"rabbitmq:///{queue.name} 10"]
    assert later.command("moved") == []


@of_a_stream
def test_a_stream_is_read_again_after_a_lost_connection(queue: Queue, make_source: MakeSource) -> None:
    """From the first message that is not applied."""
    queue.send(*map(str, range(4)))
    source = make_source(queue)
    received = source.receive(4)
    source.ack(received[0], received[2])
    queue.proxy.refuse_connections()
    wait_until(source.log, lambda log: log.count("rabbitmq://") >= 2, what="attempts to connect")
    queue.proxy.listen()
    assert payloads(source.receive(3)) == ["1", "2", "3"]


@of_a_stream
def test_the_end_of_a_stream(queue: Queue, make_source: MakeSource) -> None:
    queue.send("before")
    source = make_source(queue, start="latest")
    queue.send("after")
    assert payloads(source.receive(1)) == ["after"]


@of_a_stream
def test_a_stream_goes_back(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1", "2")
    source = make_source(queue)
    first = source.receive(2)
    source.ack(*first)
    assert source.command("seek", 0) == {}
    assert source.command("recall") == [0, 1]
    again = source.receive(2)
    assert payloads(again) == ["1", "2"]
    source.ack(first[0])  # too late: it is of the time before
    assert source.command("moved") == [f"rabbitmq:///{queue.name} 0"]
    source.ack(*again)
    assert source.command("moved") == [f"rabbitmq:///{queue.name} 2"]


def test_a_queue_cannot_go_back(queue: Queue, make_source: MakeSource) -> None:
    answer = make_source(queue).command("seek", 0)
    assert "cannot go back" in answer["error"] and not answer["transient"]


@of_a_stream
def test_a_stream_that_was_created_again(queue: Queue, make_source: MakeSource) -> None:
    """Its offsets begin anew, so that the saved one means nothing. It does not stop in silence."""
    queue.send(*"123")
    source = make_source(queue, opened=False, saved=1000, request_timeout=300)
    error = source.command("open")
    assert "created again" in error["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_the_queue_is_wrong(make_queue: MakeQueue, make_source: MakeSource, kind: str) -> None:
    queue = make_queue(kind)
    source = make_source(queue, opened=False, is_stream=int(kind != "stream"))
    error = source.command("open")
    if not error:  # it is seen with the first message
        queue.send("1")
        error = source.receive_error()
    assert "stream" in error["error"] and not error["transient"]


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


@of_queues
def test_deliveries_of_a_lost_connection_are_recalled(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1", "2")
    source = make_source(queue)
    received = source.receive(2)
    queue.proxy.refuse_connections()
    wait_until(source.log, lambda log: log.count("rabbitmq://") >= 2, what="attempts to connect")
    assert source.command("recall") == [0, 1]
    source.ack(*received)  # the server knows nothing of it
    queue.proxy.listen()
    again = source.receive(2)
    assert payloads(again) == ["1", "2"]
    source.ack(*again)
    queue.send("3")
    assert payloads(source.receive(1)) == ["3"]


def test_an_acknowledgement_that_takes_too_long(
    make_queue: MakeQueue, make_source: MakeSource, server: RabbitmqServer
) -> None:
    """The server closes the channel, and the message comes over another one."""
    queue = make_queue()
    queue.send("1")
    server.control("eval", "application:set_env(rabbit, consumer_timeout, 100).")
    server.control("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
    try:
        source = make_source(queue)
        (first,) = source.receive(1)
        wait_until(source.log, lambda log: "PRECONDITION_FAILED" in log, what="the channel to be closed")
    finally:
        server.control("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
        server.control("eval", "application:set_env(rabbit, channel_tick_interval, 60000).")
    assert source.command("recall") == [0]
    source.ack(first)
    source.kill()
    again = make_source(queue).receive(1)
    assert payloads(again) == ["1"]


def test_a_queue_that_does_not_exist(queue: Queue, make_source: MakeSource) -> None:
    answer = make_source(queue, opened=False, queue="another").command("open")
    assert "NOT_FOUND - no queue 'another'" in answer["error"] and not answer["transient"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "alice", "password": "wrong"}, "ACCESS_REFUSED"),
        ({"virtual_host": "nowhere"}, "NOT_ALLOWED"),
        ({"user": "carol", "password": "s3cret-of-alice"}, "ACCESS_REFUSED"),
    ],
)
def test_refusals(queue: Queue, make_source: MakeSource, options: dict[str, object], words: str) -> None:
    source = make_source(queue, opened=False, **options)
    answer = source.command("open")
    assert words in answer["error"] and not answer["transient"]
    assert "s3cret" not in answer["error"] + source.log()


def test_no_server(queue: Queue, make_source: MakeSource) -> None:
    queue.proxy.refuse_connections()
    source = make_source(queue, opened=False)
    assert source.command("open")["transient"]
    queue.proxy.listen()
    source.open()
    queue.send("1")
    assert payloads(source.receive(1)) == ["1"]


def test_tls_with_a_client_certificate(queue: Queue, make_source: MakeSource, server: RabbitmqServer) -> None:
    certificate, key = server.client
    options: dict[str, Any] = {"server": f"127.0.0.1:{server.tls}", "tls": 1}
    untrusted = make_source(queue, opened=False, **options).command("open")
    assert "certificate" in untrusted["error"]
    queue.send("1")
    source = make_source(
        queue, **options, ca_file=server.certificates.authority, certificate=certificate, private_key=key
    )
    assert payloads(source.receive(1)) == ["1"]


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


def send_events(queue: Queue, keys: int, versions: range) -> list[str]:
    ids = []
    for version in versions:
        for key in range(keys):
            ids.append(str(uuid.uuid4()))
            queue.send("{}", key=f"k{key}", event_id=ids[-1], event_type="changed", version=str(version))
    return ids


def versions_of(target: Target) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, version in target.execute("SELECT key, version FROM applied ORDER BY number"):
        found.setdefault(key, []).append(version)
    return found


@of_all_kinds
def test_a_consumer_applies_each_event_once_and_in_order(queue: Queue, make_source: MakeSource, target: Target) -> None:
    """Also those that come again because one before them failed."""
    ids = send_events(queue, 10, range(1, 6))
    target.poison(ids[0])
    target.set_policy(retry_base="10 ms", retry_max="10 ms", max_attempts=1000)
    make_source(queue, opened=False, conninfo=target.conninfo)
    wait_until(target.applied, lambda seen: len(seen) >= 45, what="the events of other keys")
    wait_until(target.attempts, lambda count: count > 50, what="some attempts")
    target.cure()
    target.wait_applied(ids)
    assert all(versions == sorted(versions) for versions in versions_of(target).values())
    queue.wait_settled()


@of_all_kinds
def test_poison_becomes_a_dead_letter(queue: Queue, make_source: MakeSource, target: Target) -> None:
    ids = send_events(queue, 1, range(1, 4))
    target.poison(ids[0])
    target.set_policy(retry_base="10 ms", retry_max="10 ms", max_attempts=3)
    make_source(queue, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids[1:])
    assert [(id, attempts) for id, attempts, *_ in target.dead_letters()] == [(ids[0], 3)]
    queue.wait_settled()


@of_all_kinds
def test_consumers_that_are_killed(queue: Queue, make_source: MakeSource, target: Target) -> None:
    """Every event is applied, and once."""
    ids: list[str] = []
    for round in range(5):
        ids += send_events(queue, 10, range(1 + 10 * round, 11 + 10 * round))
        applied = len(target.applied())
        consumer = make_source(queue, opened=False, conninfo=target.conninfo)
        wait_until(target.applied, lambda seen: len(seen) > applied, what="an event", timeout=60)
        consumer.process.kill()
        consumer.process.wait()
    make_source(queue, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids)
    queue.wait_settled()


@of_a_stream
def test_the_offset_is_saved_with_the_effect(queue: Queue, make_source: MakeSource, target: Target) -> None:
    """What was applied is not read again."""
    ids = send_events(queue, 10, range(1, 11))
    first = make_source(queue, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids)
    first.process.communicate(timeout=60)
    saved = "SELECT message_id FROM inbox.offsets WHERE subscription = %s"
    assert target.value(saved, (f"rabbitmq:///{queue.name}",)) == "100"
    attempts = target.attempts()
    ids += send_events(queue, 10, range(11, 12))
    make_source(queue, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids)
    assert target.attempts() == attempts + 10


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic"])  # others may take minutes to come back on a single node of 3.10
def test_a_server_that_is_killed(
    make_queue: MakeQueue, make_source: MakeSource, target: Target, server: RabbitmqServer, kind: str
) -> None:
    queue = make_queue(kind)
    make_source(queue, opened=False, conninfo=target.conninfo)
    ids = send_events(queue, 10, range(1, 11))
    wait_until(target.applied, what="an event")
    server.sync()
    server.kill()
    server.start()
    wait_until(queue.takes_messages, what="the queue to take messages")
    ids += [PROBE, *send_events(queue, 10, range(11, 21))]
    target.wait_applied(ids)
    queue.wait_settled()


@pytest.mark.long
@of_all_kinds
def test_a_server_that_restarts(queue: Queue, make_source: MakeSource, target: Target, server: RabbitmqServer) -> None:
    make_source(queue, opened=False, conninfo=target.conninfo)
    ids = send_events(queue, 10, range(1, 11))
    wait_until(target.applied, what="an event")
    server.control("stop_app")
    server.control("start_app")
    wait_until(queue.takes_messages, what="the queue to take messages")
    ids += [PROBE, *send_events(queue, 10, range(11, 21))]
    target.wait_applied(ids)
    queue.wait_settled()


# -------------------------------------------------------------------------------------------------
# From an outbox
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["attributes", "binary", "structured"])
def test_from_an_outbox_to_an_inbox(
    queue: Queue, make_source: MakeSource, database: Database, server: RabbitmqServer, format: str
) -> None:
    """What the sink writes, the source reads."""
    database.add_destination("d", f"amqp://127.0.0.1:{server.port}", routing_key=queue.name, format=format)
    id = database.value(
        "SELECT outbox.enqueue('video', 'v-1', 'VideoPublished', '{\"a\": 1}', version => 3,"
        " ordering_key => 'k ä', headers => '{\"tenant\": \"é\"}')"
    )
    (delivery,) = make_source(queue).receive(1)
    expected = {
        "event_id": str(id), "type": "VideoPublished", "aggregate_type": "video", "aggregate_id": "v-1", "version": 3,
        "key": "k ä", "content_type": "application/json", "payload": '{"a": 1}',
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert delivery["headers"]["tenant"] == "é"
    if format != "attributes":
        assert delivery["topic"] == "video.events"
