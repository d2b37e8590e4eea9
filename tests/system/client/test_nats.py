"""Only NATS has these: confirmed acknowledgements, and consumers of a kind that cannot be used."""

from __future__ import annotations

import pytest

from sinks import servers
from waiting import wait_until

from .conftest import Consume, MakeSource
from .consumer import Target
from .nats_source import CurrentNatsSource, NatsSource
from .source import payloads

servers.add_clients_to_path()


@pytest.fixture(
    params=[NatsSource, pytest.param(CurrentNatsSource, marks=pytest.mark.long)], ids=["distribution", "current"]
)
def kind(request: pytest.FixtureRequest) -> type[NatsSource]:
    return request.param


def test_a_message_is_acknowledged_once(kind: type[NatsSource], make_source: MakeSource) -> None:
    stream = make_source(kind)
    stream.send("1", "2")
    reader = stream.read()
    reader.ack(*reader.receive(2))
    stream.wait_settled()
    assert stream.commands == [b"+ACK", b"+ACK"]


def test_an_acknowledgement_without_an_answer_is_repeated(kind: type[NatsSource], make_source: MakeSource) -> None:
    """Also one whose connection was lost before."""
    stream = make_source(kind)
    stream.send("1", "2", "3")
    reader = stream.read(double_ack=1)
    first, *others = reader.receive(3)
    stream.proxy.lose_answers(1)
    reader.ack(first)
    wait_until(lambda: stream.commands.count(b"+ACK"), lambda count: count >= 2, what="the second attempt")
    stream.cut()
    reader.wait_logged("nats://", 2)
    reader.ack(*others)
    stream.mend()
    stream.wait_settled()


def test_close_gives_back_what_is_held(kind: type[NatsSource], make_source: MakeSource) -> None:
    """A request that waits for messages must not get it, however late the server learns of the end."""
    stream = make_source(kind)
    stream.send("1", "2", "3")
    reader = stream.read()
    one, _ = reader.take(2)
    reader.ack(one)
    ends = stream.proxy.hold_ends()
    reader.close()
    assert sorted(payloads(stream.read().receive(2))) == ["2", "3"]
    ends.open()
    reader.open()  # it may be opened again
    reader.close()


@pytest.mark.parametrize(
    ("consumer", "words"),
    [({"deliver_subject": "x"}, "a pull consumer is needed"), ({"ack_policy": "all"}, '"explicit" is needed')],
)
def test_a_consumer_of_another_kind_is_refused(
    kind: type[NatsSource], make_source: MakeSource, consumer: dict[str, str], words: str
) -> None:
    error = make_source(kind, **consumer).read(opened=False).command("open")
    assert words in error["error"] and not error["transient"]


def test_messages_that_were_deleted_before_they_were_delivered(
    kind: type[NatsSource], make_source: MakeSource, target: Target, consume: Consume
) -> None:
    """The limit of the stream has passed the consumer. They are counted."""
    stream = make_source(kind)
    options = {**stream.consumer_options(), "housekeeping_interval": 200}
    consumer = consume(**options)
    ids = stream.send_events(1, range(1, 3))
    target.wait_applied(ids)
    stream.wait_settled()
    consumer.stop()
    stream.limit(3)
    ids += stream.send_events(1, range(3, 13))
    consumer = consume(**options)
    target.wait_applied(ids[:2] + ids[-3:])
    consumer.wait_logged("7 messages were deleted before they were delivered")
    gaps = "SELECT subscription, skipped, recreated FROM inbox.gaps"
    wait_until(lambda: target.execute(gaps), lambda seen: seen == [(stream.subscription, 7, 0)], what="the gap")


def test_the_end_of_a_stream_is_kept_over_a_restart(
    kind: type[NatsSource], make_source: MakeSource, target: Target, consume: Consume
) -> None:
    """It is the end when the durable consumer was made, although no message has come since then."""
    stream = make_source(kind, deliver_policy="new")
    stream.send("before")
    stream.recreate_consumer()
    consumer = consume(**stream.consumer_options())
    wait_until(lambda: stream.state().num_waiting, what="the first process to ask for messages")
    consumer.kill()
    # Otherwise the server may send it a message, which it then keeps for as long as an acknowledgement may take.
    wait_until(lambda: not stream.state().num_waiting, what="the server to notice that it is gone")
    ids = stream.send_events(5, range(1, 3))
    consume(**stream.consumer_options())
    target.wait_applied(ids)


def test_only_the_consumer_was_made_again(
    kind: type[NatsSource], make_source: MakeSource, target: Target, consume: Consume
) -> None:
    """It delivers old messages, which have no effect. Later it is known, although there are no new ones."""
    stream = make_source(kind)
    consumer = consume(**stream.consumer_options())
    ids = stream.send_events(1, range(1, 4))
    target.wait_applied(ids)
    stream.wait_settled()
    consumer.stop()
    stream.recreate_consumer()
    consumer = consume(**stream.consumer_options())
    stream.wait_settled()
    consumer.stop()
    consumer = consume(**stream.consumer_options(on_recreated="stop"))
    ids += stream.send_events(1, [4])
    target.wait_applied(ids)
