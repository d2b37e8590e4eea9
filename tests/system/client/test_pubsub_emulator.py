"""The Pub/Sub source against Google's emulator, or pstest where that is absent."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import Installation
from database import Database
from sinks import servers
from sinks.conftest import pub_sub_fake, pub_sub_server  # noqa: F401
from sinks.servers import Server
from waiting import Stopwatch, stays, wait_until

from .conftest import Consume
from .consumer import Target
from .pubsub_source import PubSubSource, payloads

pytestmark = pytest.mark.long

servers.add_clients_to_path()


class Topic:
    """A topic with a subscription, in a project of the test's own."""

    def __init__(self, server: Server, project: str, **subscription: Any) -> None:
        import grpc
        from google import pubsub_v1
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        self.server = server
        self.project = project
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self.publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self.name = f"projects/{project}/topics/topic"
        self.publisher.create_topic(request={"name": self.name})
        self.subscriber.create_subscription(
            request={
                "name": f"projects/{project}/subscriptions/sub",
                "topic": self.name,
                "ack_deadline_seconds": 10,
                **subscription,
            }
        )

    def publish(self, texts: list[str], key: str = "") -> None:
        messages = [{"data": text.encode(), "ordering_key": key} for text in texts]
        self.publisher.publish(request={"topic": self.name, "messages": messages})

    def options(self) -> dict[str, object]:
        address = f"127.0.0.1:{self.server.grpc_port}"
        return {"project": self.project, "subscription": "sub", "emulator_host": address}

    def close(self) -> None:
        self.channel.close()


MakeTopic = Callable[..., Topic]
Read = Callable[..., PubSubSource]


@pytest.fixture
def make_topic(pub_sub_server: Server, request: pytest.FixtureRequest) -> Iterator[MakeTopic]:  # noqa: F811
    made: list[Topic] = []

    def make(server: Server = pub_sub_server, **subscription: Any) -> Topic:
        made.append(Topic(server, f"test-{uuid.uuid4().hex[:12]}", **subscription))
        return made[-1]

    yield make
    for topic in made:
        topic.close()


@pytest.fixture
def read(installation: Installation) -> Iterator[Read]:
    if not (installation.programs / "pubsub_source").exists():
        pytest.skip("NOT TESTED: the Pub/Sub source is not part of this build")
    made: list[PubSubSource] = []

    def read(topic: Topic, *, min_ack_deadline: int = 600) -> PubSubSource:
        """Reads with long leases, so that only messages that were given back come again."""
        made.append(PubSubSource(installation, **topic.options(), min_ack_deadline=min_ack_deadline).open())
        return made[-1]

    yield read
    for source in made:
        source.kill()


@pytest.fixture
def several_of_a_key() -> None:
    """Skips servers that hand out only one message of a key before its acknowledgement."""
    if servers.emulator_jar() is None:
        pytest.skip("NOT TESTED: pstest hands out one message of a key at a time")


def by_key(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        keys[message["key"]].append(message["payload"])
    return dict(keys)


def texts(count: int, first: int = 1) -> list[str]:
    return [f"{n}" for n in range(first, first + count)]


@pytest.mark.usefixtures("several_of_a_key")
def test_every_message_comes_in_the_order_of_its_key(make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(enable_message_ordering=True)
    keys = "abcdefgh"
    for first in range(1, 101, 10):
        for key in keys:
            topic.publish(texts(10, first), key)
    source = read(topic)
    messages = source.wait_for(800)
    assert by_key(messages) == {key: texts(100) for key in keys}
    source.ack(messages)
    source.wait_stats(acked=800, leased=0)
    source.close()
    assert source.open().receive(wait=1) == []


def test_while_it_is_held_a_message_does_not_come_again(
    make_topic: MakeTopic,
    read: Read,
    pub_sub_fake: Server,  # noqa: F811
) -> None:
    """Uses pstest, because a busy emulator of Google redelivers even extended messages."""
    topic = make_topic(pub_sub_fake)
    topic.publish(texts(3))
    source, other = (read(topic, min_ack_deadline=10) for _ in range(2))
    seen = wait_both(source, other, 3)
    watch = Stopwatch()
    stays(lambda: source.receive() + other.receive(), [], seconds=13, what="messages that come again")
    assert watch.seconds > 10, "their deadline was 10 s"
    for each, messages in seen.items():
        each.ack(messages)


def wait_both(one: PubSubSource, other: PubSubSource, count: int) -> dict[PubSubSource, list[dict]]:
    seen: dict[PubSubSource, list[dict]] = {one: [], other: []}

    def more() -> int:
        for source, messages in seen.items():
            messages += source.receive()
        return sum(map(len, seen.values()))

    wait_until(more, lambda n: n >= count, what=f"{count} messages")
    return seen


@pytest.mark.usefixtures("several_of_a_key")
def test_what_is_given_back_comes_again_in_order(make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(enable_message_ordering=True)
    topic.publish(texts(20), "a")
    topic.publish(texts(20), "b")
    source = read(topic)
    source.wait_stats(waiting=40)
    first = source.receive(10)
    source.nack([m for m in first if m["key"] == first[0]["key"]])
    again = source.wait_for(40 - sum(m["key"] != first[0]["key"] for m in first))
    kept = [m for m in first if m["key"] != first[0]["key"]]
    assert by_key(kept + again) == {"a": texts(20), "b": texts(20)}
    source.ack(kept + again)
    source.wait_stats(leased=0)
    assert source.receive(wait=0.5) == []


def test_what_a_process_held_that_was_killed_comes_again(make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic()
    topic.publish(texts(5))
    killed = read(topic, min_ack_deadline=10)
    messages = killed.wait_for(5)
    killed.ack(messages[:2])
    killed.wait_stats(acked=2)
    killed.kill()
    # Google's emulator, when it is busy, sends them into the dead stream a few more times, each for one deadline.
    again = read(topic).wait_for(3, timeout=150)
    assert sorted(payloads(again)) == sorted(payloads(messages[2:]))


@pytest.mark.usefixtures("several_of_a_key")
def test_what_was_not_settled_at_the_end_comes_again_at_once(make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(enable_message_ordering=True, ack_deadline_seconds=600)
    topic.publish(texts(30), "a")
    source = read(topic)
    source.wait_stats(waiting=30)
    source.ack(source.receive(10))
    source.receive(10)
    source.close()
    again = source.open().wait_for(20, timeout=60)  # a tenth of its deadline
    assert payloads(again) == texts(20, first=11)


@pytest.mark.usefixtures("several_of_a_key")
def test_exactly_once(make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(enable_exactly_once_delivery=True, enable_message_ordering=True)
    topic.publish(texts(50), "a")
    source = read(topic)
    messages = source.wait_for(50)
    assert payloads(messages) == texts(50)
    source.ack(messages)
    source.wait_stats(acked=50, refused=0, lost_acks=0)


def test_seek_to_a_snapshot(make_topic: MakeTopic, read: Read) -> None:
    if servers.emulator_jar() is None:
        pytest.skip("NOT TESTED: pstest has no snapshots")
    topic = make_topic(retain_acked_messages=True, enable_message_ordering=True)
    topic.publish(texts(10), "a")
    source = read(topic)
    source.ack(source.wait_for(10))
    source.wait_stats(acked=10)
    snapshot = f"snapshot-{topic.project}"
    source.command("create_snapshot", snapshot)
    topic.publish(texts(10, first=11), "a")
    source.ack(source.wait_for(10))
    source.wait_stats(acked=20)
    source.command("seek_to_snapshot", snapshot)
    again = source.wait_for(10)
    assert payloads(again) == texts(10, first=11)
    source.ack(again)
    source.wait_stats(acked=30)


# -------------------------------------------------------------------------------------------------
# From an outbox to a consumer
# -------------------------------------------------------------------------------------------------


def add_destination(database: Database, topic: Topic, **options: str) -> None:
    address = f"127.0.0.1:{topic.server.port}"
    database.add_destination("d", f"pubsub://{topic.project}", emulator_host=address, topic="topic", **options)


def start_consumer(consume: Consume, topic: Topic, **options: object) -> Any:
    where = topic.options()
    place = f"{where['project']}/{where['subscription']}"
    return consume(pubsub=place, emulator_host=where["emulator_host"], **options)


def versions(target: Target, key: str) -> list[int]:
    rows = target.execute("SELECT version FROM applied WHERE key = %s ORDER BY number", (key,))
    return [version for (version,) in rows]


@pytest.mark.parametrize("format", ["attributes", "binary", "structured"])
def test_from_the_outbox(
    make_topic: MakeTopic, database: Database, target: Target, consume: Consume, format: str
) -> None:
    topic = make_topic(enable_message_ordering=True)
    add_destination(database, topic, format=format)
    ids = [id for key in "abc" for id in database.enqueue(key, 20)]
    consumer = start_consumer(consume, topic)
    target.wait_applied(ids)
    for key in "abc":
        assert versions(target, key) == list(range(1, 21))
    sent = database.execute("SELECT event_id, event_type, convert_from(payload, 'UTF8') FROM outbox.event ORDER BY 1")
    assert target.execute("SELECT event_id, type, payload FROM applied ORDER BY 1") == sent
    consumer.stop()
    (offset,) = target.execute("SELECT subscription, publish_time > now() - interval '1 hour' FROM inbox.offsets")
    assert offset == (f"pubsub://{topic.project}/sub", True)


def test_a_key_whose_event_fails_keeps_its_order(
    make_topic: MakeTopic, database: Database, target: Target, consume: Consume
) -> None:
    topic = make_topic(enable_message_ordering=True)
    add_destination(database, topic)
    ids = database.enqueue("a", 30)
    target.poison(ids[10])
    others = database.enqueue("b", 30)
    consumer = start_consumer(consume, topic, max_attempts=1000, retry_base=20, retry_max=50)
    target.wait_applied(ids[:10] + others)
    attempts = target.attempts()
    wait_until(target.attempts, lambda n: n >= attempts + 3, what="further attempts")
    target.cure()
    target.wait_applied(ids + others)
    assert versions(target, "a") == versions(target, "b") == list(range(1, 31))
    consumer.stop()
