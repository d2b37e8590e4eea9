"""Only RabbitMQ has these: values of AMQP, limits, one active consumer, streams."""

from __future__ import annotations

from typing import Any

import pytest

from waiting import wait_until

from .conftest import Consume, MakeSource
from .consumer import Target
from .rabbitmq_source import ClassicRabbitmqSource, RabbitmqSource, RabbitmqStreamSource
from .source import payloads

KINDS = {"quorum": RabbitmqSource, "classic": ClassicRabbitmqSource, "stream": RabbitmqStreamSource}
QUEUES = ["quorum", "classic"]
EVENT = "0193c0de-0000-7000-8000-00000000000a"

of_all_kinds = pytest.mark.parametrize("queue", list(KINDS), indirect=True)
of_queues = pytest.mark.parametrize("queue", QUEUES, indirect=True)
of_a_stream = pytest.mark.parametrize("queue", ["stream"], indirect=True)


@pytest.fixture(params=["quorum"])
def queue(make_source: MakeSource, request: pytest.FixtureRequest) -> RabbitmqSource:
    return make_source(KINDS[request.param])


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_values_of_headers_become_texts(queue: RabbitmqSource) -> None:
    headers = {"event_id": EVENT, "text": "café", "number": 5, "flag": True, "table": {"a": 1}}
    queue.publish("", headers, message_id="m", type="placed", timestamp=1_700_000_000)
    (delivery,) = queue.read().receive(1)
    assert delivery["headers"] == {"text": "café", "number": "5", "flag": "true"}
    assert (delivery["type"], delivery["published_at"]) == ("placed", 1_700_000_000_000_000)


def test_cloud_events_of_other_senders(queue: RabbitmqSource) -> None:
    for mark in ":_":
        queue.publish("{}", {f"cloudEvents{mark}{name}": value for name, value in
                             {"id": "1", "specversion": "1.0", "source": "/shop/order", "type": "placed"}.items()},
                      content_type="application/json")  # fmt: skip
    one, two = queue.read().receive(2)
    assert one["event_id"] == two["event_id"]
    assert (one["type"], one["aggregate_type"]) == ("placed", "order")


def test_messages_without_an_id_are_told_apart(queue: RabbitmqSource) -> None:
    for _ in range(2):
        queue.publish("same", {})
    reader = queue.read()
    one, two = reader.receive(2)
    assert one["event_id"] != two["event_id"]
    reader.wait_logged("without a message_id")
    assert reader.log().count("without a message_id") == 1


@of_queues
def test_a_large_message(queue: RabbitmqSource) -> None:
    """It comes in many frames."""
    body = "".join(map(str, range(250_000)))
    queue.send(body, "")
    one, two = queue.read().receive(2)
    assert (one["payload"], two["payload"]) == (body, None)


def test_a_message_that_is_too_large(queue: RabbitmqSource) -> None:
    """It ends the source, and stays in the queue."""
    queue.send("x" * 1001)
    reader = queue.read(opened=False, max_message_size=1000)
    error = reader.error()
    assert "a message has 1001 bytes, and max_message_size is 1000" in error["error"] and not error["transient"]
    reader.close()
    assert len(queue.read().receive(1)) == 1


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


@of_queues
def test_figures_of_messages_that_come_again(queue: RabbitmqSource) -> None:
    """The server does not know of what a consumer gives back."""
    queue.send("1", "2", "3")
    crashed = queue.read()
    crashed.nack(*crashed.receive(3))
    received = crashed.receive(3)
    assert crashed.stats()["redelivered"] == 0
    crashed.kill()
    reader = queue.read()
    received = reader.receive(3)
    stats = reader.stats()
    assert (stats["received"], stats["redelivered"], stats["outstanding"]) == (3, 3, 3)
    assert stats["most_failed_deliveries"] == (1 if queue.queue_type == "quorum" else 0)
    reader.ack(*received)
    reader.wait_stats(acked=3, outstanding=0)


def test_the_delivery_limit_of_a_queue(make_source: MakeSource) -> None:
    """Attempts in the consumer do not count against it, crashes do."""
    queue = make_source(RabbitmqSource, delivery_limit=2)
    queue.send("1")
    reader = queue.read()
    for _ in range(10):
        reader.nack(*reader.receive(1))
    for _ in range(2):
        reader.kill()
        reader = queue.read()
        reader.receive(1)
    reader.kill()
    wait_until(queue.left, lambda count: count == 0, what="the queue to drop the message")


# -------------------------------------------------------------------------------------------------
# One active consumer
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("quorum", marks=pytest.mark.long), "classic"])
def test_a_single_active_consumer(make_source: MakeSource, kind: str) -> None:
    queue = make_source(KINDS[kind], single_active_consumer=True)
    active, standby = queue.read(), queue.read()
    queue.send("1", "2")
    received = active.receive(2)
    assert active.stats()["is_active"] and not standby.stats()["is_active"]
    assert standby.poll() == []
    active.ack(received[0])
    wait_until(queue.left, lambda count: count == 1, what="the acknowledgement to arrive")
    active.kill()
    assert payloads(standby.receive(1)) == ["2"]
    assert standby.stats()["is_active"]


def test_a_queue_that_is_deleted(queue: RabbitmqSource) -> None:
    """The server cancels the consumer. It consumes again when the queue is back."""
    reader = queue.read()
    queue.channel.queue_delete(queue.name)
    error = reader.receive_error()
    assert "NOT_FOUND" in error["error"] and error["transient"]
    assert "cancelled the consumer" in reader.log()
    queue.channel.queue_declare(queue.name, durable=True, arguments=queue.arguments)
    queue.send("1")
    reader.open()
    assert payloads(reader.receive(1)) == ["1"]


# -------------------------------------------------------------------------------------------------
# Streams
# -------------------------------------------------------------------------------------------------


@of_a_stream
def test_a_stream_is_read_from_the_saved_offset(queue: RabbitmqSource) -> None:
    queue.send(*map(str, range(10)))
    assert payloads(queue.read().receive(10)) == [str(n) for n in range(10)]
    later = queue.read(saved=7)
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
def test_a_stream_is_read_again_after_a_lost_connection(queue: RabbitmqSource) -> None:
    """From the first message that is not applied."""
    queue.send(*map(str, range(4)))
    reader = queue.read()
    received = reader.receive(4)
    reader.ack(received[0], received[2])
    queue.cut()
    reader.wait_logged("rabbitmq://", 2)
    queue.mend()
    assert payloads(reader.receive(3)) == ["1", "2", "3"]


@of_a_stream
def test_the_end_of_a_stream(queue: RabbitmqSource) -> None:
    queue.send("before")
    reader = queue.read(start="latest")
    queue.send("after")
    assert payloads(reader.receive(1)) == ["after"]


@of_a_stream
def test_a_stream_goes_back(queue: RabbitmqSource) -> None:
    queue.send("1", "2")
    reader = queue.read()
    first = reader.receive(2)
    reader.ack(*first)
    assert reader.command("seek", 0) == {}
    assert reader.command("recall") == [0, 1]
    again = reader.receive(2)
    assert payloads(again) == ["1", "2"]
    reader.ack(first[0])  # too late: it is of the time before
    assert reader.command("moved") == [f"rabbitmq:///{queue.name} 0"]
    reader.ack(*again)
    assert reader.command("moved") == [f"rabbitmq:///{queue.name} 2"]


def test_a_queue_cannot_go_back(queue: RabbitmqSource) -> None:
    answer = queue.read().command("seek", 0)
    assert "cannot go back" in answer["error"] and not answer["transient"]


@of_a_stream
def test_a_stream_that_was_made_again_and_is_shorter(queue: RabbitmqSource) -> None:
    """The message before the saved offset does not come. So the source looks at the end of the stream."""
    queue.send(*"123")
    reader = queue.read(opened=False, saved=1000, request_timeout=500)
    wait_until(lambda: reader.command("open"), lambda answer: answer == {}, what="the stream to be open")
    assert payloads(reader.receive(3)) == ["1", "2", "3"]
    assert "made again or cut back: the last message of the stream has offset 2" in reader.log()
    stopped = queue.read(opened=False, saved=1000, request_timeout=500, on_recreated="stop")
    error = wait_until(
        lambda: stopped.command("open"), lambda answer: not answer["transient"], what="an error for good"
    )
    assert "inbox.reset_offset()" in error["error"]


@of_a_stream
def test_the_end_of_a_stream_is_kept(queue: RabbitmqSource, target: Target, consume: Consume) -> None:
    """It is the end at the first start, although no message has come then."""
    queue.send("before")
    options = queue.consumer_options(start="latest")
    consumer = consume(**options)
    begin = "SELECT message_id FROM inbox.offsets WHERE subscription = %s"
    wait_until(lambda: target.execute(begin, (queue.subscription,)), what="the beginning to be saved")
    consumer.kill()
    ids = queue.send_events(5, range(1, 3))
    consume(**options)
    wait_until(lambda: set(ids) <= set(target.applied()), what="the events after the first start")


@of_a_stream
def test_a_stream_is_reset_while_nobody_reads_it(queue: RabbitmqSource, target: Target, consume: Consume) -> None:
    ids = queue.send_events(5, range(1, 3))
    first = consume(**queue.consumer_options())
    target.wait_applied(ids)
    first.stop()
    target.execute("SELECT inbox.forget('c', '-infinity', 'again')")
    target.execute("DELETE FROM applied")
    target.execute("SELECT inbox.reset_offset('c', %s, 'epoch', 'again')", (queue.subscription,))
    consume(**queue.consumer_options(), housekeeping_interval=200)
    target.wait_applied(ids)


def test_messages_that_were_deleted_before_they_were_read(
    make_source: MakeSource, target: Target, consume: Consume
) -> None:
    """The retention of the stream has passed the offset. They are counted."""
    queue = make_source(RabbitmqStreamSource, max_length_bytes=40_000, stream_max_segment_size_bytes=10_000)
    options = {**queue.consumer_options(), "housekeeping_interval": 200}
    first = consume(**options)
    ids = queue.send_events(1, range(1, 3))
    target.wait_applied(ids)
    first.stop()
    before = queue.sent
    wait_until(lambda: queue.send("x" * 5000) and first_offset(queue), lambda offset: offset > before + 5,
               what="messages to be deleted")  # fmt: skip
    gone = first_offset(queue) - before
    consume(**options).wait_logged("messages were deleted before they were applied")
    wait_until(lambda: target.execute("SELECT skipped FROM inbox.gaps"), what="the gap to be reported")
    assert target.value("SELECT skipped FROM inbox.gaps") >= gone


def first_offset(queue: RabbitmqSource) -> int:
    """Returns the offset of the first message of a stream."""
    reader = queue.read(saved="")
    offset = int(reader.take(1)[0]["message_id"])
    reader.kill()
    return offset


@of_all_kinds
def test_senders_that_count_their_messages(queue: RabbitmqSource) -> None:
    """Two applications may use the same id, and the log warns of ids that are counted."""
    import pika

    for app in ("a", "b"):
        properties = pika.BasicProperties(message_id="1", app_id=app, delivery_mode=2)
        queue.channel.basic_publish("", queue.name, app.encode(), properties, mandatory=True)
    reader = queue.read()
    first, second = reader.receive(2)
    assert first["event_id"] != second["event_id"]
    reader.wait_logged("their sender counts them")
    assert reader.log().count("their sender counts them") == 1


@of_all_kinds
@pytest.mark.parametrize(("options", "ids"), [({}, 3), ({"counted_ids_are_unique": 1}, 1)], ids=["", "unique"])
def test_senders_that_count_their_messages_and_give_no_name(
    queue: RabbitmqSource, options: dict[str, int], ids: int
) -> None:
    """Messages of two senders, or of one that has started again. Each has the same id when it comes again."""
    import pika

    for body in ("a", "b", "c"):
        properties = pika.BasicProperties(message_id="1", delivery_mode=2)
        queue.channel.basic_publish("", queue.name, body.encode(), properties, mandatory=True)
    reader = queue.read(**options)
    received = reader.receive(3)
    assert len({message["event_id"] for message in received}) == ids
    reader.wait_logged("their sender counts them")
    assert reader.log().count("their sender counts them") == 1
    reader.kill()
    again = queue.read(**options).receive(3)
    assert [message["event_id"] for message in again] == [message["event_id"] for message in received]


@of_all_kinds
def test_the_kind_of_the_queue_is_wrong(queue: RabbitmqSource) -> None:
    reader = queue.read(opened=False, is_stream=int(queue.queue_type != "stream"))
    error = reader.command("open")
    if not error:  # it is seen with the first message
        queue.send("1")
        error = reader.receive_error()
    assert "stream" in error["error"] and not error["transient"]


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


def test_an_acknowledgement_that_takes_too_long(queue: RabbitmqSource) -> None:
    """The server closes the channel, and the message comes over another one."""
    server = queue.broker
    queue.send("1")
    server.control("eval", "application:set_env(rabbit, consumer_timeout, 100).")
    server.control("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
    try:
        reader = queue.read()
        (first,) = reader.receive(1)
        reader.wait_logged("PRECONDITION_FAILED")
    finally:
        server.control("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
        server.control("eval", "application:set_env(rabbit, channel_tick_interval, 60000).")
    assert reader.command("recall") == [0]
    reader.ack(first)
    reader.kill()
    again = queue.read().receive(1)
    assert payloads(again) == ["1"]


def test_tls_with_a_client_certificate(queue: RabbitmqSource) -> None:
    server = queue.broker
    certificate, key = server.client
    options: dict[str, Any] = {"server": f"127.0.0.1:{server.tls}", "tls": 1}
    untrusted = queue.read(opened=False, **options).command("open")
    assert "certificate" in untrusted["error"]
    queue.send("1")
    reader = queue.read(**options, ca_file=server.certificates.authority, certificate=certificate, private_key=key)
    assert payloads(reader.receive(1)) == ["1"]


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


@of_a_stream
def test_the_offset_is_saved_with_the_effect(queue: RabbitmqSource, target: Target, consume: Consume) -> None:
    """What was applied is not read again."""
    ids = queue.send_events(10, range(1, 11))
    first = consume(**queue.consumer_options())
    target.wait_applied(ids)
    first.stop()
    saved = "SELECT message_id FROM inbox.offsets WHERE subscription = %s"
    assert target.value(saved, (queue.subscription,)) == "100"
    attempts = target.attempts()
    ids += queue.send_events(10, range(11, 12))
    consume(**queue.consumer_options())
    target.wait_applied(ids)
    assert target.attempts() == attempts + 10
