"""The ways from the producer's database to a consumer.

A route makes the destination, knows what a consumer has to be told to read it, and lies on a wire.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from database import Database
from sinks.servers import Server
from waiting import wait_until

from .wires import PubSubWire, PullWire, Wire

# Longer than anything of a drill that is not meant to be, shorter than one wants to wait.
LEASE_SECONDS = 3


class Route:
    wire: Wire
    lease_seconds = LEASE_SECONDS
    server: str | None = None  # a fixture
    keeps_order = True  # of a key
    sends_again = False  # what nobody gave back

    def consumer_options(self) -> dict[str, object]:
        raise NotImplementedError

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        """In the block nobody can be reached; nothing that was committed is lost."""
        raise NotImplementedError
        yield

    def extensions(self, event_id: str) -> int:
        """How often somebody has asked for more time for this event, as seen on the wire."""
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
        # It is the consumer who gives up.
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
        self.database.wait_settled("d", timeout=60)


class PubSubRoute(Route):
    """The broker is an emulator, which forgets everything when it ends: so it is the way to it that does.

    Google's never sends those messages of an ordering key again that a client held who died: so it gets a
    subscription without order. What is late in it must not take the replica back.
    """

    server = "pub_sub_server"
    keeps_order = False
    sends_again = True  # also what was extended in time, when it is busy
    projects = itertools.count(1)

    def __init__(self, database: Database, server: Server | None) -> None:
        assert server is not None
        self.wire = PubSubWire(server.grpc_port)
        self.project = f"drill-{next(self.projects)}"
        self.make_subscription(server)
        database.add_destination(
            "d", f"pubsub://{self.project}", emulator_host=f"127.0.0.1:{server.port}"
        )

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
        # Google's emulator sends what a dead client held into its dead stream, deadline after deadline.
        wait_until(
            lambda: len(event_ids - set(self.wire.acked)), lambda missing: missing == 0, timeout=240,
            what="an acknowledgement of all events on the wire",
        )  # fmt: skip


class OrderedPubSubRoute(PubSubRoute):
    """pstest has one message of a key under way at a time."""

    server = "pub_sub_fake"
    keeps_order = True
    sends_again = False


ROUTES: dict[str, type[Route]] = {
    "pull": PullRoute, "pubsub": PubSubRoute, "pubsub_ordered": OrderedPubSubRoute
}  # fmt: skip
