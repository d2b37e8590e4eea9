"""The Pub/Sub source against a scripted service: its requests and their times."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation
from sinks import servers
from waiting import SECOND, Stopwatch, stays, wait_until

from .pubsub_source import PubSubSource, SourceFailed, payloads

servers.add_clients_to_path()
pytest.importorskip("grpc_status", reason="NOT TESTED: scripts/test.sh installs Google's library")

import grpc  # noqa: E402

from .fake_pubsub import SUBSCRIPTION, Failure, FakePubSub, seconds  # noqa: E402

NEVER = 3_600_000

REOPENED = ["ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN",
            "CANCELLED", "OK"]  # fmt: skip
FATAL = ["NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "FAILED_PRECONDITION"]


@pytest.fixture
def fake() -> Iterator[FakePubSub]:
    fake = FakePubSub()
    yield fake
    fake.stop()


# (option=value, ...) -> an open source, which reads SUBSCRIPTION of the fake
Read = Callable[..., PubSubSource]


@pytest.fixture
def make_source(installation: Installation) -> Iterator[Read]:
    if not (installation.programs / "pubsub_source").exists():
        pytest.skip("NOT TESTED: the Pub/Sub source is not part of this build")
    made: list[PubSubSource] = []

    def make(**options: object) -> PubSubSource:
        made.append(PubSubSource(installation, **options))
        return made[-1]

    yield make
    for source in made:
        source.kill()


@pytest.fixture
def read(fake: FakePubSub, make_source: Read) -> Read:
    def read(**options: object) -> PubSubSource:
        options = {"heartbeat": NEVER, "emulator_host": f"127.0.0.1:{fake.port}", **options}
        return make_source(project="p", subscription="sub", **options).open()

    return read


def numbered(count: int, first: int = 1, **fields: object) -> list[dict]:
    return [{"id": str(n), "data": str(n).encode(), **fields} for n in range(first, first + count)]


def wait_acked(fake: FakePubSub, *ack_ids: str) -> None:
    wait_until(lambda: sorted(fake.acked()), lambda ids: ids == sorted(ack_ids), what=f"acks of {ack_ids}")


def wait_nacked(fake: FakePubSub, *ack_ids: str) -> None:
    """Expects the messages in this order."""
    wait_until(fake.nacked, lambda ids: ids == list(ack_ids), what=f"{ack_ids} to be given back")


# -------------------------------------------------------------------------------------------------
# The stream
# -------------------------------------------------------------------------------------------------


def test_the_first_request_says_what_is_read_and_how_much(fake: FakePubSub, read: Read) -> None:
    read(max_outstanding_messages=7, max_outstanding_bytes=10_000, min_ack_deadline=30, client_id="me")
    first = fake.next_stream().first
    assert first.subscription == SUBSCRIPTION
    assert (first.max_outstanding_messages, first.max_outstanding_bytes) == (7, 10_000)
    assert (first.stream_ack_deadline_seconds, first.client_id) == (30, "me")


def test_an_idle_stream_is_kept_alive_and_nothing_else_is_done(fake: FakePubSub, read: Read) -> None:
    began = time.monotonic()
    source = read(heartbeat=100)
    stream = fake.next_stream()
    wait_until(lambda: len(stream.requests), lambda n: n >= 5, what="four heartbeats")
    for heartbeat in stream.requests[1:]:
        assert not heartbeat.request.subscription and not heartbeat.request.client_id
    times = [heartbeat.at - began for heartbeat in stream.requests[1:]]  # one may be late, the next in time
    early = [time for n, time in enumerate(times, 1) if time < 0.1 * n]
    assert not early, f"heartbeats are 0.1 s apart, not {times}"
    assert fake.requests == []
    assert source.stats()["streams"] == 1


def test_a_message_as_a_delivery(fake: FakePubSub, read: Read) -> None:
    source = read(topic="video.events")
    attributes = {"event_id": "00112233-4455-6677-8899-aabbccddeeff", "event_type": "VideoUpdated"}
    fake.next_stream().send({"id": "17", "data": b"{}", "key": "v1", "attributes": attributes}, {"id": "18"})
    event, other = source.wait_for(2)
    assert event["source"] == source.receive() or event["source"] == "pubsub://p/sub"
    assert (event["event_id"], event["type"]) == (attributes["event_id"], "VideoUpdated")
    assert (event["message_id"], event["key"], event["payload"]) == ("17", "v1", "{}")
    assert event["topic"] == other["topic"] == "video.events"
    assert event["size"] > len("{}") + sum(map(len, attributes.values()))


@pytest.mark.parametrize("code", REOPENED)
def test_a_stream_that_ends_is_opened_again(fake: FakePubSub, read: Read, code: str) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    held = source.wait_for(1)
    stream.end(code)
    again = fake.next_stream()
    assert again.first.client_id == stream.first.client_id
    assert again.first.subscription == SUBSCRIPTION
    again.send({"id": "2"})
    source.ack(held + source.wait_for(1))
    wait_acked(fake, "ack-1", "ack-2")


@pytest.mark.parametrize("code", FATAL)
def test_a_subscription_that_cannot_be_used_is_an_error(fake: FakePubSub, read: Read, code: str) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    source.wait_stats(waiting=1)
    stream.end(code)
    assert payloads(source.wait_for(1)) == ["x"], "what was read before is handed out first"
    with pytest.raises(SourceFailed, match=f"cannot read {SUBSCRIPTION}: {code}: as the test wants it") as error:
        source.receive(wait=20)
    assert not error.value.transient
    stays(lambda: len(fake.streams), 1, seconds=0.5, what="streams")


def test_pauses_between_streams_that_fail_grow(fake: FakePubSub, read: Read) -> None:
    source = read()
    for _ in range(5):
        fake.next_stream().end("UNAVAILABLE")
    watch = Stopwatch()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    source.wait_for(1)
    # Each is a random part of 0.2 s, 0.4 s, ..., 3.2 s.
    assert watch.seconds < 3.2 + 2 * SECOND
    warnings = [line for line in source.log().splitlines() if line.startswith("warning: the stream ended")]
    assert len(warnings) == 4, "the first is nothing special"
    stream.end("UNAVAILABLE")
    watch = Stopwatch()
    fake.next_stream()
    assert watch.seconds < 2 * SECOND, "after a good stream the pauses are short again"


def test_a_service_that_is_away_comes_back(fake: FakePubSub, read: Read) -> None:
    fake.stop()
    source = read()
    wait_until(source.log, lambda log: "UNAVAILABLE" in log, what="the log to say that nobody answers")
    assert source.receive() == []
    fake.start()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    held = source.wait_for(1)
    fake.stop()
    source.ack(held)
    fake.start()
    fake.next_stream().send({"id": "2"})
    source.ack(source.wait_for(1))
    wait_acked(fake, "ack-1", "ack-2")


# -------------------------------------------------------------------------------------------------
# Leases
# -------------------------------------------------------------------------------------------------


def test_what_comes_is_leased_at_once(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.next_stream().send(*numbered(3))
    source.wait_stats(extended=3, waiting=3)
    (call,) = fake.calls("ModifyAckDeadline")
    assert (call.request.subscription, seconds(call)) == (SUBSCRIPTION, 10)
    assert call.ack_ids == ["ack-1", "ack-2", "ack-3"]


def test_leases_are_extended_until_a_message_is_settled(fake: FakePubSub, read: Read) -> None:
    source = read(min_ack_deadline=4, max_ack_deadline=4)
    fake.next_stream().send(*numbered(3))
    first, second, third = source.wait_for(3)
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= 3, what="two extensions of the second")
    source.ack([first])
    source.nack([third])
    wait_acked(fake, "ack-1")
    wait_nacked(fake, "ack-3")
    settled = len(fake.calls("ModifyAckDeadline"))
    wait_until(
        lambda: len(fake.extensions("ack-2")), lambda n: n >= 5, what="more extensions of the second"
    )
    later = [call.ack_ids for call in fake.calls("ModifyAckDeadline")[settled:]]
    assert later == [["ack-2"]] * len(later), "what is settled is not extended any more"
    times = [call.at for call in fake.extensions("ack-2")]
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) < 4 * SECOND, f"every lease of 4 s is extended before it ends: {gaps}"
    assert min(gaps) > 0.5, f"and not all the time: {gaps}"


def test_leases_are_extended_while_there_is_no_stream(fake: FakePubSub, read: Read) -> None:
    source = read(min_ack_deadline=1, max_ack_deadline=1)
    stream = fake.next_stream()
    stream.send(*numbered(1))
    source.wait_for(1)
    for _ in range(3):
        stream.end("UNAVAILABLE")
        stream = fake.next_stream()
    before = len(fake.extensions("ack-1"))
    wait_until(lambda: len(fake.extensions("ack-1")), lambda n: n >= before + 2, what="extensions")


def test_an_extension_that_fails_is_tried_again(fake: FakePubSub, read: Read) -> None:
    source = read(min_ack_deadline=600)
    fake.fail("ModifyAckDeadline", Failure("UNAVAILABLE"), Failure("INTERNAL"))
    fake.next_stream().send(*numbered(2))
    source.wait_stats(extended=2)
    assert [call.ack_ids for call in fake.calls("ModifyAckDeadline")] == [["ack-1", "ack-2"]] * 3


def test_a_message_that_is_held_too_long_is_left(fake: FakePubSub, read: Read) -> None:
    source = read(min_ack_deadline=1, max_ack_deadline=1, max_lease=2)
    fake.next_stream().send(*numbered(1))
    held = source.wait_for(1)
    source.wait_stats(expired=1)
    count = len(fake.extensions("ack-1"))
    stays(lambda: len(fake.extensions("ack-1")), count, seconds=1.5, what="extensions")
    assert "held for longer than max_lease" in source.log()
    source.ack(held)
    wait_acked(fake, "ack-1")


# -------------------------------------------------------------------------------------------------
# Acknowledgements
# -------------------------------------------------------------------------------------------------


def test_acknowledgements_are_gathered(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.next_stream().send(*numbered(300))
    messages = source.wait_for(300)
    watch = Stopwatch()
    for message in messages:
        source.ack([message])
    source.wait_stats(acked=300, leased=0)
    assert sorted(fake.acked()) == sorted(f"ack-{n}" for n in range(1, 301))
    assert len(fake.calls("Acknowledge")) <= watch.seconds / 0.01 + 1, "each is gathered for 10 ms"
    assert {call.request.subscription for call in fake.calls("Acknowledge")} == {SUBSCRIPTION}


def test_requests_are_no_larger_than_the_service_takes(fake: FakePubSub, read: Read) -> None:
    source = read(max_outstanding_messages=10_000, min_ack_deadline=600)
    stream = fake.next_stream()
    stream.send(*numbered(2500))
    stream.send(*(dict(m, ack_id=f"{m['id']:0>1000}") for m in numbered(1500, first=2501)))
    source.ack(source.wait_for(4000))
    source.wait_stats(acked=4000)
    for method in "Acknowledge", "ModifyAckDeadline":
        calls = fake.calls(method)
        assert sum(len(call.ack_ids) for call in calls) == 4000
        assert max(len(call.ack_ids) for call in calls) == 1000
        size = max(type(call.request).pb(call.request).ByteSize() for call in calls)
        assert 400_000 < size < 524_288


def test_acknowledgements_that_fail_are_sent_again(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.fail("Acknowledge", *(Failure(c) for c in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED")))
    fake.next_stream().send(*numbered(1))
    source.ack(source.wait_for(1))
    stats = source.wait_stats(acked=1)
    assert fake.acked() == ["ack-1"] * 5
    assert stats["lost_acks"] == 0


def test_acknowledgements_do_not_wait_for_one_that_is_tried_again(fake: FakePubSub, read: Read) -> None:
    source = read()

    def refuse_the_first(request: object) -> None:
        if "ack-1" in request.ack_ids:  # type: ignore[attr-defined]
            raise Failure("UNAVAILABLE")

    fake.answer_always("Acknowledge", refuse_the_first)
    fake.next_stream().send(*numbered(2))
    first, second = source.wait_for(2)
    source.ack([first])
    wait_until(lambda: len(fake.acked()), lambda n: n >= 3, what="two more attempts")
    source.ack([second])
    source.wait_stats(acked=1)
    fake.answer_always("Acknowledge", None)
    source.wait_stats(acked=2)


def test_an_acknowledgement_that_is_refused_is_counted(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.fail("Acknowledge", Failure("PERMISSION_DENIED"))
    fake.next_stream().send(*numbered(2))
    first, second = source.wait_for(2)
    source.ack([first])
    source.wait_stats(lost_acks=1)
    source.wait_logged("warning: cannot acknowledge 1 messages: PERMISSION_DENIED")
    source.ack([second])
    source.wait_stats(acked=1, lost_acks=1)


def test_what_is_not_held_is_not_settled(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(3))
    first, second, third = source.wait_for(3)
    source.ack([first])
    source.ack([first])
    source.nack([first])
    source.close()
    source.open()
    source.ack([second])
    source.nack([third])
    fake.next_stream().send(*numbered(1, first=4))
    source.ack(source.wait_for(1))
    wait_acked(fake, "ack-1", "ack-4")
    wait_nacked(fake, "ack-2", "ack-3")


# -------------------------------------------------------------------------------------------------
# Order
# -------------------------------------------------------------------------------------------------


def test_what_is_given_back_takes_along_what_follows_in_its_key(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(3, key="a"), *numbered(1, first=4, key="b"), *numbered(2, first=5, key="a"), ordered=True)
    stream.send(*numbered(1, first=7), ordered=True)
    source.wait_stats(waiting=7)
    received = source.receive(2)
    source.nack(received[1:])
    wait_nacked(fake, "ack-2", "ack-3", "ack-5", "ack-6")
    assert payloads(source.wait_for(2)) == ["4", "7"], "other keys and none are not concerned"
    stats = source.stats()
    assert (stats["nacked"], stats["overtaken"], stats["leased"]) == (1, 4 - 1, 3)


def test_what_overtakes_a_message_that_was_given_back_is_given_back(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(1, key="a"), ordered=True)
    source.nack(source.wait_for(1))
    # Sent before the service knew that the message was given back.
    stream.send(*numbered(2, first=2, key="a"), *numbered(1, first=4, key="b"), ordered=True)
    assert payloads(source.wait_for(1)) == ["4"]
    wait_nacked(fake, "ack-1", "ack-2", "ack-3")
    # Now the service sends the key again from the first message on.
    stream.send(*numbered(3, key="a"), *numbered(1, first=5, key="a"), ordered=True)
    assert payloads(source.wait_for(4)) == ["1", "2", "3", "5"]


def test_when_the_first_went_elsewhere_its_key_goes_on(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(2, key="a"), ordered=True)
    source.nack(source.wait_for(2))
    stream.send(*numbered(2, first=2, key="a"), ordered=True)
    assert payloads(source.wait_for(2)) == ["2", "3"]


def test_without_order_nothing_is_taken_along(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(3, key="a"))
    source.wait_stats(waiting=3)
    source.nack(source.receive(1))
    stream.send(*numbered(1, first=4, key="a"))
    assert payloads(source.wait_for(3)) == ["2", "3", "4"]
    wait_nacked(fake, "ack-1")


def test_a_message_is_not_extended_after_it_was_given_back(fake: FakePubSub, read: Read) -> None:
    """An extension that arrives later would delay its redelivery."""
    source = read(min_ack_deadline=1, max_ack_deadline=1)
    fake.fail("ModifyAckDeadline", Failure("UNAVAILABLE"))
    fake.next_stream().send(*numbered(2))
    first, _ = source.wait_for(2)
    source.nack([first])
    wait_nacked(fake, "ack-1")
    given_back = len(fake.calls("ModifyAckDeadline"))
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= 4, what="extensions of the other")
    assert all("ack-1" not in call.ack_ids for call in fake.calls("ModifyAckDeadline")[given_back:])


# -------------------------------------------------------------------------------------------------
# Flow control
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_outstanding_messages": 10}, {"max_outstanding_bytes": 200_000}])
def test_no_more_is_read_than_there_is_room_for(fake: FakePubSub, read: Read, limit: dict[str, int]) -> None:
    source = read(**limit)
    stream = fake.next_stream()
    for message in numbered(600):
        stream.send(dict(message, data=message["data"].ljust(20_000)))
    wait_until(lambda: source.stats()["waiting"], lambda n: n >= 10, what="as many messages as may wait")
    stays(lambda: source.stats()["waiting"], 10, seconds=0.5, what="messages that wait")
    assert stream.sent < 500, "the service was held back"
    messages = source.wait_for(600)
    assert [text.strip() for text in payloads(messages)] == [str(n) for n in range(1, 601)]
    source.ack(messages)
    source.wait_stats(acked=600, waiting=0, leased=0, streams=1)


def test_a_paused_stream_that_ends_is_noticed(fake: FakePubSub, read: Read) -> None:
    source = read(max_outstanding_messages=5)
    stream = fake.next_stream()
    stream.send(*numbered(5))
    source.wait_stats(waiting=5)
    stream.end("UNAVAILABLE")
    source.ack(source.wait_for(5))
    fake.next_stream().send(*numbered(1, first=6))
    assert payloads(source.wait_for(1)) == ["6"]


# -------------------------------------------------------------------------------------------------
# Exactly once
# -------------------------------------------------------------------------------------------------


def test_exactly_once_a_message_is_handed_out_when_its_lease_is_sure(fake: FakePubSub, read: Read) -> None:
    confirmed = threading.Event()
    fake.answer_always("ModifyAckDeadline", lambda request: confirmed.wait(20))
    source = read()
    fake.next_stream().send(*numbered(2), exactly_once=True)
    wait_until(lambda: fake.calls("ModifyAckDeadline"), what="the leases to be asked for")
    assert source.receive(wait=0.3) == []
    confirmed.set()
    assert payloads(source.wait_for(2)) == ["1", "2"]
    assert seconds(fake.calls("ModifyAckDeadline")[0]) == 60


def test_exactly_once_what_is_not_ours_is_not_handed_out(fake: FakePubSub, read: Read) -> None:
    source = read()
    permanent = {"ack-2": "PERMANENT_FAILURE_INVALID_ACK_ID"}
    fake.fail("ModifyAckDeadline", Failure("FAILED_PRECONDITION", permanent))
    stream = fake.next_stream()
    stream.send(*numbered(2, key="a"), *numbered(1, first=3, key="b"), *numbered(1, first=4, key="a"),
                exactly_once=True, ordered=True)  # fmt: skip
    assert payloads(source.wait_for(2)) == ["1", "3"]
    wait_nacked(fake, "ack-4")  # it must not overtake the second
    stream.send(dict(numbered(1, first=2, key="a")[0], ack_id="again-2"), exactly_once=True, ordered=True)
    assert payloads(source.wait_for(1)) == ["2"]
    assert source.stats()["refused"] == 1


def test_exactly_once_a_lease_that_may_have_failed_is_given_back(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.fail("ModifyAckDeadline", Failure("UNAVAILABLE"))
    stream = fake.next_stream()
    stream.send(*numbered(2), exactly_once=True)
    source.wait_stats(refused=2, waiting=0)
    wait_nacked(fake, "ack-1", "ack-2")


def test_exactly_once_acknowledgements_are_confirmed_one_by_one(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.next_stream().send(*numbered(4), exactly_once=True)
    messages = source.wait_for(4)
    fake.fail(
        "Acknowledge",
        Failure("FAILED_PRECONDITION", {
            "ack-1": "PERMANENT_FAILURE_INVALID_ACK_ID",
            "ack-2": "TRANSIENT_FAILURE_UNORDERED_ACK_ID",
            "ack-3": "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE",
            "retry": "of no id",
        }),
        Failure("UNAVAILABLE", {"ack-3": "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"}),
    )  # fmt: skip
    source.ack(messages)
    stats = source.wait_stats(acked=3, lost_acks=1)
    assert [call.ack_ids for call in fake.calls("Acknowledge")] == [
        ["ack-1", "ack-2", "ack-3", "ack-4"], ["ack-2", "ack-3"], ["ack-3"]
    ]  # fmt: skip
    assert stats["leased"] == 0
    assert "PERMANENT_FAILURE_INVALID_ACK_ID" in source.log()


def test_exactly_once_a_lease_that_is_lost_is_not_asked_for_again(fake: FakePubSub, read: Read) -> None:
    source = read(min_ack_deadline=1, max_ack_deadline=1)
    stream = fake.next_stream()
    stream.send(*numbered(2), exactly_once=True)
    first, second = source.wait_for(2)
    fake.fail("ModifyAckDeadline", Failure("FAILED_PRECONDITION", {"ack-1": "PERMANENT_FAILURE_INVALID_ACK_ID"}))
    source.wait_stats(expired=1, leased=1)
    asked = len(fake.extensions("ack-1"))
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= asked + 2, what="further extensions")
    assert len(fake.extensions("ack-1")) == asked
    source.ack([first, second])
    wait_acked(fake, "ack-2")


# -------------------------------------------------------------------------------------------------
# Seek
# -------------------------------------------------------------------------------------------------


def test_seek_to_a_time(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(3))
    source.wait_stats(waiting=3)
    held = source.receive(1)
    ended_before: list[bool] = []
    fake.answer_always("Seek", lambda request: ended_before.append(stream.closed.is_set()))
    source.command("seek", 1_700_000_000_123_456)
    (call,) = fake.calls("Seek")
    assert call.request.subscription == SUBSCRIPTION
    assert call.request.time.isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert ended_before == [True], "what the service sends after it must not come on the old stream"
    # Messages read before and not received are sent again if they are after the seek.
    wait_nacked(fake, "ack-2", "ack-3")
    fake.next_stream().send(*numbered(1, first=7))
    assert payloads(source.wait_for(1)) == ["7"]
    source.ack(held)
    wait_acked(fake, "ack-1")
    assert "warning" not in source.log()


def test_what_comes_too_late_on_an_old_stream_is_given_back(fake: FakePubSub, read: Read) -> None:
    source = read(max_outstanding_messages=1)
    stream = fake.next_stream()
    for message in numbered(4):
        stream.send(message)
    source.wait_stats(waiting=1)
    source.command("seek", 0)
    wait_until(lambda: sorted(fake.nacked()), lambda ids: ids == [f"ack-{n}" for n in range(1, 5)],
               what="all to be given back")  # fmt: skip
    assert source.receive() == []


def test_seek_to_a_snapshot(fake: FakePubSub, read: Read) -> None:
    source = read()
    source.command("create_snapshot", "before")
    source.command("seek_to_snapshot", "before")
    (created,) = fake.calls("CreateSnapshot")
    (sought,) = fake.calls("Seek")
    assert created.request.name == sought.request.snapshot == "projects/p/snapshots/before"
    assert created.request.subscription == sought.request.subscription == SUBSCRIPTION


def test_a_source_that_is_not_open_can_be_moved(fake: FakePubSub, make_source: Read) -> None:
    source = make_source(project="p", subscription="sub", emulator_host=f"127.0.0.1:{fake.port}")
    source.command("create_snapshot", "before")
    source.command("seek", 0)
    assert len(fake.calls("CreateSnapshot")) == len(fake.calls("Seek")) == 1
    assert fake.streams == []


@pytest.mark.parametrize("code, transient", [("UNIMPLEMENTED", False), ("NOT_FOUND", False), ("UNAVAILABLE", True)])
def test_a_seek_that_fails(fake: FakePubSub, read: Read, code: str, transient: bool) -> None:
    source = read()
    fake.next_stream()
    fake.fail("Seek", Failure(code))
    with pytest.raises(SourceFailed, match=f"cannot seek {SUBSCRIPTION}: {code}") as error:
        source.command("seek", 0)
    assert error.value.transient == transient
    fake.next_stream().send(*numbered(1))
    source.wait_for(1)


# -------------------------------------------------------------------------------------------------
# Closing
# -------------------------------------------------------------------------------------------------


def test_close_sends_what_is_to_be_sent_and_gives_back_the_rest(fake: FakePubSub, read: Read) -> None:
    source = read()
    stream = fake.next_stream()
    stream.send(*numbered(6))
    source.wait_stats(waiting=6)
    received = source.receive(4)
    source.ack(received[:2])
    source.close()
    wait_acked(fake, "ack-1", "ack-2")
    wait_nacked(fake, "ack-3", "ack-4", "ack-5", "ack-6")
    wait_until(stream.closed.is_set, what="the stream to end")
    assert source.receive() == []
    assert source.stats()["leased"] == 0
    source.open()
    fake.next_stream().send(*numbered(1, first=7))
    assert payloads(source.wait_for(1)) == ["7"]
    assert source.stats()["received"] == 7, "counters go on"


def test_close_waits_no_longer_than_it_may(fake: FakePubSub, read: Read) -> None:
    over = threading.Event()
    source = read()
    fake.next_stream().send(*numbered(2))
    messages = source.wait_for(2)
    source.wait_stats(extended=2)
    for method in "Acknowledge", "ModifyAckDeadline":
        fake.answer_always(method, lambda request: over.wait(60))
    source.ack(messages[:1])
    watch = Stopwatch()
    source.close(0.5)
    assert 0.4 < watch.seconds < 0.5 + 2 * SECOND
    over.set()


def test_close_while_the_service_is_away(fake: FakePubSub, read: Read) -> None:
    source = read(max_outstanding_messages=2)
    fake.next_stream().send(*numbered(2))
    source.wait_stats(waiting=2)
    fake.stop()
    watch = Stopwatch()
    source.close(0.5)
    assert watch.seconds < 0.5 + 2 * SECOND
    fake.start()


def test_close_ends_a_receive_that_is_under_way(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.next_stream()
    watch = Stopwatch()
    assert source.command("close_during_receive", 60_000) == []
    assert watch.seconds < 10


# -------------------------------------------------------------------------------------------------
# Its process
# -------------------------------------------------------------------------------------------------


def test_its_threads_leave_signals_to_the_program(fake: FakePubSub, read: Read) -> None:
    source = read()
    fake.next_stream().send(*numbered(100))
    source.ack(source.wait_for(100))
    source.wait_stats(acked=100)
    tasks = list(Path(f"/proc/{source.process.pid}/task").iterdir())
    assert len(tasks) > 2
    for task in tasks:
        if int(task.name) == source.process.pid:
            continue
        try:
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if lines["Threads"] == "0":
            continue  # it is ending: what it blocked is gone, and the kernel shows zeroes
        blocked = int(lines["SigBlk"], 16)
        assert all(blocked >> (number - 1) & 1 for number in (1, 2, 10, 12, 15, 17)), lines


def test_idle_it_takes_no_time(fake: FakePubSub, read: Read) -> None:
    source = read(heartbeat=30_000)
    fake.next_stream().send(*numbered(10))
    source.wait_for(10)
    source.wait_stats(extended=10)

    def ticks() -> int:
        fields = Path(f"/proc/{source.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    watch = Stopwatch()
    wait_until(lambda: watch.seconds, lambda s: s > 3, what="three seconds")
    assert ticks() - before <= 5, "hundredths of a second"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"project": ""}, "project is empty"),
        ({"min_ack_deadline": 700}, "from 1 s to 600 s"),
        ({"min_ack_deadline": 20, "max_ack_deadline": 10}, "from 1 s to 600 s"),
        ({"max_outstanding_messages": 0}, "max_outstanding_messages is 0"),
    ],
)
def test_options_are_checked(make_source: Read, options: dict[str, object], message: str) -> None:
    source = make_source(**{"project": "p", "subscription": "sub", **options})
    source.process.wait(20)
    assert message in source.log()


# -------------------------------------------------------------------------------------------------
# TLS, credentials
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def secure_fake(tmp_path: Path) -> Iterator[FakePubSub]:
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "tls.key",
            "-out", tmp_path / "tls.crt")  # fmt: skip
    pair = ((tmp_path / "tls.key").read_bytes(), (tmp_path / "tls.crt").read_bytes())
    fake = FakePubSub(grpc.ssl_server_credentials([pair]))
    yield fake
    fake.stop()


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def key_file(directory: Path) -> Path:
    openssl("genpkey", "-algorithm", "RSA", "-out", directory / "service.pem")
    file = directory / "key.json"
    file.write_text(
        json.dumps({
            "type": "service_account", "project_id": "p", "private_key_id": "k1", "client_id": "1",
            "client_email": "reader@p.iam.gserviceaccount.com", "token_uri": "https://localhost/",
            "private_key": (directory / "service.pem").read_text(),
        })
    )  # fmt: skip
    return file


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_key_of_a_service_account(
    secure_fake: FakePubSub, make_source: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options = {"endpoint": f"localhost:{secure_fake.port}", "ca_file": tmp_path / "tls.crt"}
    if how == "option":
        options["key_file"] = key_file(tmp_path)
    else:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file(tmp_path)))
        monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(tmp_path / "tls.crt"))
        del options["ca_file"]
    source = make_source(project="p", subscription="sub", **options).open()
    secure_fake.next_stream().send(*numbered(1))
    source.ack(source.wait_for(1))
    wait_acked(secure_fake, "ack-1")
    for metadata in secure_fake.metadata:
        token = metadata["authorization"].removeprefix("Bearer ")
        header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2])
        assert (header["alg"], header["kid"]) == ("RS256", "k1")
        assert claims["iss"] == claims["sub"] == "reader@p.iam.gserviceaccount.com"
        assert claims["aud"].startswith("https://localhost")


def test_a_certificate_that_is_not_trusted(secure_fake: FakePubSub, make_source: Read, tmp_path: Path) -> None:
    source = make_source(
        project="p", subscription="sub", endpoint=f"localhost:{secure_fake.port}", key_file=key_file(tmp_path)
    ).open()
    wait_until(source.log, lambda log: "UNAVAILABLE" in log, what="the log to say that nobody can be reached")
    assert secure_fake.streams == []


@pytest.mark.parametrize("text", [None, "", "{}", '{"type": "service_account"}'])
def test_an_invalid_key_file_is_an_error(make_source: Read, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "key.json"
    if text is not None:
        file.write_text(text)
    source = make_source(project="p", subscription="sub", key_file=file)
    with pytest.raises(SourceFailed, match="key.json") as error:
        source.open()
    assert not error.value.transient
