"""Routes from the producer's database to a consumer.

A route makes the destination, knows what a consumer has to be told to read it, and lies on a wire.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from database import Database
from sinks.kafka_server import KafkaServer
from sinks.nats_server import NatsClient, NatsServer
from sinks.rabbitmq_server import RabbitmqServer
from sinks.redis_server import RedisServer
from sinks.servers import Server
from waiting import wait_until

from .wires import KafkaWire, NatsWire, PubSubWire, PullWire, RabbitmqWire, RedisWire, Wire

# Longer than unintended pauses of a drill, and short enough to wait for.
LEASE_SECONDS = 3


class Route:
    wire: Wire
    lease_seconds = LEASE_SECONDS
    server: str | None = None  # a fixture
    program: str | None = None  # that is built where this source is
    keeps_order = True  # of a key
    sends_again = False  # messages that were not given back
    repeats = True  # of messages that were applied and not acknowledged
    has_leases = True  # otherwise messages belong to a connection

    def consumer_options(self) -> dict[str, object]:
        raise NotImplementedError

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        """In the block the broker cannot be reached; no committed event is lost."""
        raise NotImplementedError
        yield

    def extensions(self, event_id: str) -> int:
        """Returns the number of lease extensions for this event, as seen on the wire."""
        raise NotImplementedError

    def wait_settled(self, event_ids: set[str]) -> None:
        """Waits until all these are acknowledged."""
        raise NotImplementedError

    def close(self) -> None:
        self.wire.close()


class PullRoute(Route):
    """The broker is the producer's database."""

    def __init__(self, database: Database, server: Server | None) -> None:
        self.database = database
        # The consumer gives up first.
        database.add_destination("d", "pull:", retry_base="10ms", retry_max="100ms", max_attempts="1000")
        database.execute("CREATE ROLE fetcher LOGIN")
        database.execute("GRANT USAGE ON FOREIGN SERVER d TO fetcher")
        database.execute("SELECT outbox.grant_fetch('fetcher')")
        self.wire = PullWire(database.cluster.port)

    def consumer_options(self) -> dict[str, object]:
        return {
            "pull": f"host=127.0.0.1 port={self.wire.port} user=fetcher dbname={self.database.name} "
                    f"sslmode=disable gssencmode=disable connect_timeout=20",
            "lease": self.lease_seconds * 1000,
        }  # fmt: skip

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        self.database.cluster.stop("immediate")
        try:
            yield
        finally:
            self.database.cluster.start()

    def extensions(self, event_id: str) -> int:
        return self.wire.calls["extend"]

    def wait_settled(self, event_ids: set[str]) -> None:
        self.database.wait_settled("d", timeout=180)


class PubSubRoute(Route):
    """The broker is Google's pstest, which forgets everything when it ends. So the connection to it is cut instead.

    The subscription has no order: late events must not set the replica back.
    """

    server = "pub_sub_fake"
    program = "pubsub_source"
    keeps_order = False
    projects = itertools.count(1)

    def __init__(self, database: Database, server: Server | None) -> None:
        assert server is not None
        self.wire = PubSubWire(server.grpc_port)
        self.project = f"drill-{next(self.projects)}"
        self.make_subscription(server)
        database.add_destination("d", f"pubsub://{self.project}", emulator_host=f"127.0.0.1:{server.port}")

    def make_subscription(self, server: Server) -> None:
        import grpc
        from google import pubsub_v1
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        topic = f"projects/{self.project}/topics/item.events"
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=channel))
            subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
            publisher.create_topic(request={"name": topic})
            subscriber.create_subscription(
                request={
                    "name": f"projects/{self.project}/subscriptions/replica",
                    "topic": topic,
                    "enable_message_ordering": self.keeps_order,
                    "ack_deadline_seconds": 10,
                }
            )

    def consumer_options(self) -> dict[str, object]:
        return {
            "pubsub": f"{self.project}/replica",
            "emulator_host": f"127.0.0.1:{self.wire.port}",
            "ack_deadline": self.lease_seconds,
        }

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        self.wire.stop()
        try:
            yield
        finally:
            self.wire.start()

    def extensions(self, event_id: str) -> int:
        return self.wire.extended[event_id] - self.wire.delivered[event_id]

    def wait_settled(self, event_ids: set[str]) -> None:
        def missing() -> set[str]:
            return event_ids - set(self.wire.acked)

        try:
            wait_until(
                lambda: len(missing()), lambda left: left == 0, timeout=120,
                what="an acknowledgement of all events on the wire",
            )  # fmt: skip
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.wire.describe(missing())}") from None


class OrderedPubSubRoute(PubSubRoute):
    """pstest has one message of a key under way at a time."""

    keeps_order = True


class EmulatorRoute(PubSubRoute):
    """Google's emulator."""

    server = "pub_sub_server"
    sends_again = True  # even messages that were extended in time, when it is busy


class KafkaRoute(Route):
    """A lease is the time without a poll or a heartbeat after which the group gives partitions to others."""

    server = "kafka_behind_a_wire"
    program = "kafka_source"
    sends_again = True  # messages that were received and not begun when their partition goes to another process
    partitions = 6
    numbers = itertools.count(1)

    def __init__(self, database: Database, server: KafkaServer) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        assert isinstance(server.proxy, KafkaWire)
        self.broker = server
        self.wire: KafkaWire = server.proxy
        self.wire.calls.clear()
        self.wire.lost_acks = 0
        name = f"drill-{next(self.numbers)}"
        self.topic, self.group = f"{name}-item.events", name
        self.address = {"bootstrap.servers": server.address, "log_level": 0}
        self.admin = AdminClient(self.address)
        self.admin.create_topics([NewTopic(self.topic, self.partitions, 1)])[self.topic].result()
        self.database = database
        database.add_destination("d", f"kafka://{server.address}", topic=f"{name}-{{topic}}")

    def consumer_options(self) -> dict[str, object]:
        return {
            "kafka": f"127.0.0.1:{self.wire.port}", "kafka_group": self.group, "kafka_topics": self.topic,
            "kafka_session_timeout": self.lease_seconds * 1000,
            "kafka_max.poll.interval.ms": self.lease_seconds * 1000, "kafka_commit_interval": 100,
        }  # fmt: skip

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        self.wire.refuse_connections()
        try:
            yield
        finally:
            self.wire.listen()

    def extensions(self, event_id: str) -> int:
        return self.wire.calls[KafkaWire.HEARTBEAT]

    def wait_settled(self, event_ids: set[str]) -> None:
        """Waits until the offsets of all records are committed."""
        from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

        self.database.wait_settled("d", timeout=180)
        places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        reader = Consumer({**self.address, "group.id": f"{self.group}-reader"})
        try:
            ends = {place.partition: reader.get_watermark_offsets(place, timeout=20)[1] for place in places}
        finally:
            reader.close()
        request = ConsumerGroupTopicPartitions(self.group, places)

        def committed() -> dict[int, int]:
            answer = self.admin.list_consumer_group_offsets([request])[self.group].result()
            return {each.partition: max(each.offset, 0) for each in answer.topic_partitions}

        wait_until(committed, lambda seen: seen == ends, timeout=120, what=f"offsets to be {ends}")


class KafkaDatabaseRoute(KafkaRoute):
    """Reading continues from the offsets in the database, so applied messages are not read again."""

    repeats = False

    def consumer_options(self) -> dict[str, object]:
        return {**super().consumer_options(), "kafka_offsets_in_database": 1}


class CutRoute(Route):
    """The broker stays; the connection to it is cut."""

    wire: NatsWire | RabbitmqWire

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        self.wire.refuse_connections()
        try:
            yield
        finally:
            self.wire.listen()


class NatsRoute(CutRoute):
    """A lease is the ack_wait of the consumer. Several processes share its messages regardless of keys."""

    server = "nats_server"
    keeps_order = False
    sends_again = True  # messages that were on their way when a connection ended
    numbers = itertools.count(1)

    def __init__(self, database: Database, server: NatsServer) -> None:
        self.wire = NatsWire(server.port)
        self.client = NatsClient(server.port)
        self.stream = f"drill-{next(self.numbers)}"
        self.client.add_stream(self.stream, [f"{self.stream}.>"])
        self.database = database
        database.add_destination("d", f"nats://127.0.0.1:{server.port}", subject=f"{self.stream}.{{topic}}")

    def consumer_options(self) -> dict[str, object]:
        from nats.js.api import ConsumerConfig

        config = ConsumerConfig(durable_name="replica", ack_wait=self.lease_seconds, ack_policy="explicit")
        self.client.run(self.client.jetstream.add_consumer(self.stream, config))
        return {
            "nats": f"127.0.0.1:{self.wire.port}", "nats_stream": self.stream, "nats_consumer": "replica",
            "nats_retry_base": 1, "nats_retry_max": 20,
        }  # fmt: skip

    def extensions(self, event_id: str) -> int:
        return self.wire.extended

    def wait_settled(self, event_ids: set[str]) -> None:
        self.database.wait_settled("d", timeout=180)

        def left() -> int:
            state = self.client.run(self.client.jetstream.consumer_info(self.stream, "replica"))
            return state.num_pending + state.num_ack_pending

        wait_until(left, lambda count: count == 0, timeout=120, what="all messages to be acknowledged")

    def close(self) -> None:
        self.client.close()
        super().close()


class RabbitmqRoute(CutRoute):
    """A quorum queue with a single active consumer: the other ones wait until it has gone."""

    server = "rabbitmq_server"
    program = "rabbitmq_source"
    has_leases = False
    is_stream = False
    numbers = itertools.count(1)

    def __init__(self, database: Database, server: RabbitmqServer) -> None:
        self.wire = RabbitmqWire(server.port)
        self.broker = server
        self.queue = f"drill-{next(self.numbers)}"
        connection = server.connect()
        connection.channel().queue_declare(self.queue, durable=True, arguments=self.arguments())
        connection.close()
        self.database = database
        database.add_destination("d", f"amqp://127.0.0.1:{server.port}", routing_key=self.queue)

    def arguments(self) -> dict[str, object]:
        return {"x-queue-type": "quorum", "x-single-active-consumer": True}

    def consumer_options(self) -> dict[str, object]:
        return {
            "rabbitmq": f"127.0.0.1:{self.wire.port}", "rabbitmq_queue": self.queue,
            "rabbitmq_is_stream": int(self.is_stream), "rabbitmq_retry_base": 1, "rabbitmq_retry_max": 20,
        }  # fmt: skip

    def wait_settled(self, event_ids: set[str]) -> None:
        self.database.wait_settled("d", timeout=180)
        if not self.is_stream:
            wait_until(
                lambda: self.broker.messages(self.queue), lambda count: count == 0, timeout=120,
                what="all messages to be acknowledged",
            )  # fmt: skip


class RabbitmqStreamRoute(RabbitmqRoute):
    """The offset in the database is the one that counts. Each consumer reads all of the stream."""

    is_stream = True
    repeats = False
    numbers = itertools.count(1001)

    def arguments(self) -> dict[str, object]:
        return {"x-queue-type": "stream"}


class RedisRoute(Route):
    """Redis is killed, and has written all it confirmed. Consumers of a group share a stream regardless of keys."""

    server = "durable_redis"
    program = "redis_source"
    keeps_order = False
    repeats = False  # acknowledgements are sent once more before anything is read
    numbers = itertools.count(1)

    def __init__(self, database: Database, server: RedisServer) -> None:
        self.broker = server
        self.wire: RedisWire = RedisWire(server.port)
        self.stream = f"drill-{next(self.numbers)}"
        self.client = server.client(decode_responses=True)
        self.database = database
        database.add_destination("d", f"redis://127.0.0.1:{server.port}", stream=self.stream)

    def consumer_options(self) -> dict[str, object]:
        return {"redis": f"127.0.0.1:{self.wire.port}", "redis_streams": self.stream, "redis_group": "g",
                "redis_consumer": f"c{next(self.numbers)}", "redis_create_group_from": "0",
                "redis_min_idle": self.lease_seconds * 1000, "redis_retry_base": 1, "redis_retry_max": 100}  # fmt: skip

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        self.broker.kill()
        try:
            yield
        finally:
            self.broker.start()

    def extensions(self, event_id: str) -> int:
        return self.wire.calls[b"XCLAIM"]

    def wait_settled(self, event_ids: set[str]) -> None:
        self.database.wait_settled("d", timeout=180)

        def left() -> int:
            (group,) = self.client.xinfo_groups(self.stream)
            return group["pending"] + len(self.client.xrange(self.stream, f"({group['last-delivered-id']}", "+", 1))

        wait_until(
            left, lambda count: count == 0, timeout=120, what="acknowledgements of all entries", ignoring=(Exception,)
        )


ROUTES: dict[str, type[Route]] = {
    "pull": PullRoute, "pubsub": PubSubRoute, "pubsub_ordered": OrderedPubSubRoute, "emulator": EmulatorRoute,
    "kafka": KafkaRoute, "kafka_database": KafkaDatabaseRoute, "nats": NatsRoute,
    "rabbitmq": RabbitmqRoute, "rabbitmq_stream": RabbitmqStreamRoute,
    "redis": RedisRoute,
}  # fmt: skip
# Google's emulator goes on sending into streams that are gone, deadline after deadline, for a very
# long time. So drills in which consumers or their streams die are marked and do not use it.
SHORT_ROUTES = ["pull", "nats"]  # of the short run
ROUTES_WITHOUT_DEATHS = ["pull", "pubsub_ordered", "emulator", "kafka", "nats", "rabbitmq", "redis"]
with_deaths = pytest.mark.parametrize(
    "make_replica_drill",
    ["pull", "pubsub", "pubsub_ordered", "kafka", "kafka_database", "nats", "rabbitmq", "rabbitmq_stream", "redis"],
    indirect=True,
)
