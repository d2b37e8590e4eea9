"""What only Google's emulator of Pub/Sub has: several messages of a key at a time, exactly once, snapshots."""

from __future__ import annotations

import pytest

from sinks import servers

from .conftest import MakeSource
from .pubsub_source import EmulatorSource
from .source import by_key, payloads

pytestmark = pytest.mark.long

servers.add_clients_to_path()
pytestmark = pytest.mark.long


def texts(count: int, first: int = 1) -> list[str]:
    return [f"{n}" for n in range(first, first + count)]


def test_every_message_comes_in_the_order_of_its_key(make_source: MakeSource) -> None:
    topic = make_source(EmulatorSource)
    keys = "abcdefgh"
    for first in range(1, 101, 10):
        for key in keys:
            topic.send(*texts(10, first), key=key)
    reader = topic.read()
    messages = reader.receive(800)
    assert by_key(messages) == {key: texts(100) for key in keys}
    reader.ack(*messages)
    reader.wait_stats(acked=800, leased=0)
    reader.close()
    reader.open()
    assert reader.poll(wait=1) == []


def test_what_was_not_settled_at_the_end_comes_again_in_order(make_source: MakeSource) -> None:
    topic = make_source(EmulatorSource, ack_deadline_seconds=600)
    topic.send(*texts(30), key="a")
    reader = topic.read()
    reader.wait_stats(waiting=30)
    reader.ack(*reader.take(10))
    reader.take(10)
    reader.close()
    reader.open()
    assert payloads(reader.receive(20)) == texts(20, first=11)


def test_exactly_once(make_source: MakeSource) -> None:
    topic = make_source(EmulatorSource, enable_exactly_once_delivery=True)
    topic.send(*texts(50), key="a")
    reader = topic.read()
    messages = reader.receive(50)
    assert payloads(messages) == texts(50)
    reader.ack(*messages)
    reader.wait_stats(acked=50, refused=0, lost_acks=0)


def test_seek_to_a_snapshot(make_source: MakeSource) -> None:
    topic = make_source(EmulatorSource, retain_acked_messages=True)
    topic.send(*texts(10), key="a")
    reader = topic.read()
    reader.ack(*reader.receive(10))
    reader.wait_stats(acked=10)
    snapshot = f"snapshot-{topic.project}"
    reader.command("create_snapshot", snapshot)
    topic.send(*texts(10, first=11), key="a")
    reader.ack(*reader.receive(10))
    reader.wait_stats(acked=20)
    reader.command("seek_to_snapshot", snapshot)
    again = reader.receive(10)
    assert payloads(again) == texts(10, first=11)
    reader.ack(*again)
    reader.wait_stats(acked=30)
