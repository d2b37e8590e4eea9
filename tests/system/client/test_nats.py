"""The NATS source against real servers: messages that are held, settled and given back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from cluster import Installation
from sinks import servers
from sinks.nats_server import NatsServer, current, distributions, nats
from waiting import wait_until

from .consumer import Target
from .nats_source import NatsSource, Stream
from .sqs_source import payloads

servers.add_clients_to_path()

MakeStream = Callable[..., Stream]
MakeSource = Callable[..., NatsSource]


@pytest.fixture(scope="module", params=[distributions, current], ids=["distribution", "current"])
def server(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    try:
        with nats(request.param()) as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def make_stream(server: NatsServer) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(**consumer: object) -> Stream:
        made.append(Stream(server, **consumer))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


@pytest.fixture
def stream(make_stream: MakeStream) -> Stream:
    return make_stream()


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[NatsSource] = []

    def make(stream: Stream, /, *, opened: bool = True, **options: object) -> NatsSource:
        made.append(NatsSource(installation, stream, options))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_a_message_becomes_a_delivery(stream: Stream, make_source: MakeSource) -> None:
    id, began = "0193c0de-0000-7000-8000-00000000000a", time.time()
    stream.send("café", key="k%201", event_id=id, event_type="Changed", aggregate_type="item", aggregate_id="7",
                version="3", content_type="text/plain", other="caf%C3%A9")  # fmt: skip
    (delivery,) = make_source(stream).receive(1)
    expected = {
        "event_id": id, "type": "Changed", "aggregate_type": "item", "aggregate_id": "7", "version": 3,
        "content_type": "text/plain", "payload": "café", "topic": f"{stream.name}.item", "key": "k 1",
        "headers": {"other": "café"}, "source": f"nats://{stream.name}/c", "message_id": "1",
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert began - 1 <= delivery["published_at"] / 1e6 <= time.time() + 1


def test_messages_of_other_senders_keep_their_id(stream: Stream, make_source: MakeSource) -> None:
    stream.send("not of ours")
    source = make_source(stream)
    (first,) = source.receive(1)
    source.nack(first)
    (second,) = source.receive(1)
    assert first["event_id"] == second["event_id"] != ""
    assert second["payload"] == "not of ours"


def test_many_messages_come_within_the_budget(stream: Stream, make_source: MakeSource) -> None:
    stream.send(*map(str, range(100)))
    source = make_source(stream, prefetch=10)
    received = source.receive(10, most=10)
    assert stream.state().num_ack_pending <= 30  # handed out, waiting, and on their way
    while len(received) < 100:
        more = source.command("receive", 10, 1000)
        source.ack(*more)
        received += more
    source.ack(*received[:10])
    assert payloads(received) == [str(n) for n in range(100)]
    stream.wait_settled()


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double_ack", [0, 1])
def test_what_is_acknowledged_does_not_come_again(stream: Stream, make_source: MakeSource, double_ack: int) -> None:
    stream.send("1", "2")
    source = make_source(stream, double_ack=double_ack)
    source.ack(*source.receive(2))
    stream.wait_settled()
    assert stream.commands == [b"+ACK", b"+ACK"]


def test_a_key_comes_again_in_its_order(stream: Stream, make_source: MakeSource) -> None:
    """A message received behind one that is given back must not be handled before it."""
    stream.send("1", "2", "3", "4", key="a")
    stream.send("x", "y", key="b")
    source = make_source(stream)
    one, two = [*source.receive(1, most=1), *source.receive(1, most=1)]  # the source holds the others
    stream.send("5", key="a")
    source.nack(one, two)
    received = source.receive(7)
    source.ack(*received)
    assert [d["payload"] for d in received if d["key"] == "a"] == ["1", "2", "3", "4", "5"]
    assert [d["payload"] for d in received if d["key"] == "b"] == ["x", "y"]
    stream.wait_settled()


def test_what_is_held_stays_held(make_stream: MakeStream, make_source: MakeSource) -> None:
    stream = make_stream(ack_wait=1)
    stream.send("in hand", "with the source")
    source = make_source(stream)
    (delivery,) = source.receive(1, most=1)
    wait_until(lambda: stream.commands.count(b"+WPI"), lambda count: count >= 10, what="several extensions")
    (other,) = source.receive(1)
    source.ack(delivery, other)
    stream.wait_settled()
    assert stream.state().delivered.consumer_seq >= 2


def test_after_a_crash_messages_come_again(make_stream: MakeStream, make_source: MakeSource) -> None:
    stream = make_stream(ack_wait=1)
    stream.send("1")
    crashed = make_source(stream)
    crashed.receive(1)
    crashed.kill()
    assert payloads(make_source(stream).receive(1)) == ["1"]


def test_close_gives_back_what_is_held(stream: Stream, make_source: MakeSource) -> None:
    stream.send("1", "2", "3")
    source = make_source(stream)
    one, _ = [*source.receive(1, most=1), *source.receive(1, most=1)]
    source.ack(one)
    source.close()
    assert sorted(payloads(make_source(stream).receive(2))) == ["2", "3"]
    source.open()  # it may be opened again
    source.close()


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double_ack", [0, 1])
def test_claims_outlive_a_connection(stream: Stream, make_source: MakeSource, double_ack: int) -> None:
    stream.send("1", "2")
    source = make_source(stream, double_ack=double_ack)
    received = source.receive(2)
    stream.proxy.refuse_connections()
    wait_until(source.log, lambda log: log.count("nats://") >= 2, what="attempts to connect")
    source.ack(*received)
    stream.proxy.listen()
    stream.wait_settled()
    stream.send("3")
    assert payloads(source.receive(1)) == ["3"]


def test_an_acknowledgement_without_an_answer_is_repeated(stream: Stream, make_source: MakeSource) -> None:
    stream.send("1")
    source = make_source(stream, double_ack=1)
    received = source.receive(1)
    stream.proxy.lose_answers(1)
    source.ack(*received)
    wait_until(lambda: stream.commands.count(b"+ACK"), lambda count: count >= 2, what="the second attempt")
    stream.wait_settled()


def test_a_consumer_that_does_not_exist(stream: Stream, make_source: MakeSource) -> None:
    source = make_source(stream, opened=False, consumer="another")
    answer = source.command("open")
    assert "consumer not found" in answer["error"] and not answer["transient"]


def test_a_consumer_that_pushes(make_stream: MakeStream, make_source: MakeSource) -> None:
    source = make_source(make_stream(deliver_subject="x"), opened=False)
    answer = source.command("open")
    assert "a pull consumer is needed" in answer["error"] and not answer["transient"]


def test_acknowledgements_must_be_explicit(make_stream: MakeStream, make_source: MakeSource) -> None:
    source = make_source(make_stream(ack_policy="all"), opened=False)
    answer = source.command("open")
    assert '"explicit" is needed' in answer["error"] and not answer["transient"]


def test_no_server(stream: Stream, make_source: MakeSource) -> None:
    stream.proxy.refuse_connections()
    source = make_source(stream, opened=False)
    assert source.command("open")["transient"]
    stream.proxy.listen()
    source.open()
    stream.send("1")
    assert payloads(source.receive(1)) == ["1"]


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


def send_events(stream: Stream, keys: int, versions: range) -> list[str]:
    ids = []
    for version in versions:
        for key in range(keys):
            ids.append(str(uuid.uuid4()))
            stream.send("{}", key=f"k{key}", event_id=ids[-1], event_type="changed", version=str(version))
    return ids


def versions_of(target: Target) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, version in target.execute("SELECT key, version FROM applied ORDER BY number"):
        found.setdefault(key, []).append(version)
    return found


def test_a_consumer_applies_each_event_once_and_in_order(
    stream: Stream, make_source: MakeSource, target: Target
) -> None:
    """Also those that come again because one before them failed."""
    ids = send_events(stream, 10, range(1, 6))
    target.poison(ids[0])
    target.set_policy(retry_base="10 ms", retry_max="10 ms", max_attempts=1000)
    make_source(stream, opened=False, conninfo=target.conninfo)
    wait_until(target.applied, lambda seen: len(seen) >= 45, what="the events of other keys")
    wait_until(target.attempts, lambda count: count > 50, what="some attempts")
    target.cure()
    target.wait_applied(ids)
    assert all(versions == sorted(versions) for versions in versions_of(target).values())
    stream.wait_settled()


def test_consumers_that_are_killed(make_stream: MakeStream, make_source: MakeSource, target: Target) -> None:
    """Every event is applied, and once."""
    stream = make_stream(ack_wait=1)
    ids: list[str] = []
    for round in range(5):
        ids += send_events(stream, 10, range(1 + 10 * round, 11 + 10 * round))
        applied = len(target.applied())
        consumer = make_source(stream, opened=False, conninfo=target.conninfo)
        wait_until(target.applied, lambda seen: len(seen) > applied, what="an event", timeout=60)
        consumer.process.kill()
        consumer.process.wait()
    make_source(stream, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids)
    stream.wait_settled()


def test_a_server_that_is_killed(
    make_stream: MakeStream, make_source: MakeSource, target: Target, server: NatsServer
) -> None:
    stream = make_stream(ack_wait=1)
    make_source(stream, opened=False, conninfo=target.conninfo)
    ids = send_events(stream, 10, range(1, 11))
    wait_until(target.applied, what="an event")
    server.kill()
    server.start()
    wait_until(lambda: stream.state(), what="the client beside it", ignoring=(Exception,))
    ids += send_events(stream, 10, range(11, 21))
    target.wait_applied(ids)
    stream.wait_settled()
