"""A topic and a subscription of Pub/Sub, in a project of the test's own."""

from __future__ import annotations

import uuid
from typing import Any

from cluster import Installation
from database import Database
from sinks.servers import Server
from waiting import wait_until

from .source import Reader, Source


class PubSubSource(Source):
    """With Google's pstest, which hands out one message of a key at a time. Readers have long leases, so that only
    messages that were given back come again.
    """

    kind = "pubsub"
    server = "pub_sub_fake"
    cannot = {
        "prefetch": "tests/unit/client/pubsub/session_test.cpp has the limit",
        "cut": "test_pubsub_source.py has a service that goes and comes back",
        "logins": "servers of tests accept anything; test_pubsub_source.py has TLS and keys",
        "kills": "the drills do so: a lease takes 10 s at least",
        "restarts": "servers of tests forget everything",
        "recreate": "the service names its messages, also of a topic that was made again",
        "incarnations": "a subscription has no offsets",
    }
    dear = {"leases": "a lease takes 10 s at least"}
    missing = ({"subscription": "another"}, "NOT_FOUND")

    def __init__(self, installation: Installation, server: Server, **subscription: Any) -> None:
        import grpc
        from google import pubsub_v1
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        super().__init__(installation)
        self.broker = server
        self.project = f"test-{uuid.uuid4().hex[:12]}"
        self.topic = "sub"
        self.subscription = f"pubsub://{self.project}/sub"
        self.address = f"127.0.0.1:{server.grpc_port}"
        self.channel = grpc.insecure_channel(self.address)
        self.publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self.name = f"projects/{self.project}/topics/topic"
        self.publisher.create_topic(request={"name": self.name})
        subscriber.create_subscription(
            request={
                "name": f"projects/{self.project}/subscriptions/sub", "topic": self.name,
                "enable_message_ordering": True, "ack_deadline_seconds": 10, **subscription,
            }
        )  # fmt: skip

    def options(self) -> dict[str, object]:
        return {
            "project": self.project, "subscription": "sub", "emulator_host": self.address, "min_ack_deadline": 600,
        }  # fmt: skip

    def consumer_options(self, **options: object) -> dict[str, object]:
        return {"pubsub": f"{self.project}/sub", "emulator_host": self.address, **options}

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        messages = [{"data": body.encode(), "ordering_key": key, "attributes": attributes} for body in bodies]
        return list(self.publisher.publish(request={"topic": self.name, "messages": messages}).message_ids)

    def left(self) -> int:
        """Only readers tell; the server does not."""
        return sum(reader.stats()["leased"] for reader in self.readers if reader.process.poll() is None)

    def add_destination(self, database: Database) -> None:
        address = f"127.0.0.1:{self.broker.port}"
        database.add_destination("d", f"pubsub://{self.project}", emulator_host=address, topic="topic")

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        return {"min_ack_deadline": 10, "max_ack_deadline": 10}

    def wait_extended(self, reader: Reader) -> None:
        before = reader.stats()["extended"]
        wait_until(
            lambda: reader.stats()["extended"] - before, lambda n: n >= 6, what="three extensions of two messages"
        )

    def close(self) -> None:
        super().close()
        self.channel.close()


class EmulatorSource(PubSubSource):
    """With Google's emulator."""

    server = "emulator_server"
    cannot = {
        **PubSubSource.cannot,
        "leases": "when it is busy, it sends even messages again that were extended in time",
        "crashes": "it goes on sending into streams that are gone, deadline after deadline",
    }
