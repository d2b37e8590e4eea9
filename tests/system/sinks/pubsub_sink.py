"""The pubsub sink, read back with Google's own client. Each sink has a project of its own."""

from __future__ import annotations

import base64
import json

from database import Database
from receiver import Behaviour, Request, answer

from .fault_proxy import FaultProxy
from .servers import Server
from .sink import (
    STRUCTURED,
    Message,
    Sink,
    message_of,
    message_of_cloud_event,
    message_of_document,
)

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                "schema_version", "occurred_at", "content_type"}  # fmt: skip


def publishes(request: Request) -> bool:
    return request.target.partition("?")[0].endswith(":publish")


class PubSubSink(Sink):
    name = "pubsub"
    module = "pg_outbox_pubsub"
    server = "pub_sub_server"
    cannot = {"partial": "a request is taken or refused as a whole"}
    batch_limit = 1000
    cloud_events = ("binary", "structured")
    proxy: FaultProxy

    def __init__(self, database: Database, server: Server) -> None:
        import grpc
        from google import pubsub_v1
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        super().__init__(database)
        self.project = self.place
        self.proxy = FaultProxy(server.port, publishes)
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{server.grpc_port}",
            [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        publisher = PublisherGrpcTransport(channel=self._channel)
        subscriber = SubscriberGrpcTransport(channel=self._channel)
        self._publisher = pubsub_v1.PublisherClient(transport=publisher)
        self._subscriber = pubsub_v1.SubscriberClient(transport=subscriber)
        self._subscriptions: list[str] = []

    def url(self) -> str:
        return f"pubsub://{self.project}"

    def options(self) -> dict[str, str]:
        return {"emulator_host": f"127.0.0.1:{self.proxy.port}"}

    def add_topic(self, name: str = "item.events") -> None:
        """Creates a topic with a subscription, which gets later messages."""
        topic = f"projects/{self.project}/topics/{name}"
        subscription = f"projects/{self.project}/subscriptions/{name}"
        self._publisher.create_topic(request={"name": topic})
        self._subscriber.create_subscription(
            request={
                "name": subscription,
                "topic": topic,
                "enable_message_ordering": True,
                "ack_deadline_seconds": 60,
            }
        )
        self._subscriptions.append(subscription)

    def receive(self) -> list[Message]:
        received: list[Message] = []
        for subscription in self._subscriptions:
            while True:
                pull = {"subscription": subscription, "max_messages": 1000, "return_immediately": True}
                messages = self._subscriber.pull(request=pull, timeout=20).received_messages
                if not messages:
                    break
                self._subscriber.acknowledge(
                    request={"subscription": subscription, "ack_ids": [m.ack_id for m in messages]}
                )
                received += [
                    message_of_pub_sub(dict(m.message.attributes), m.message.ordering_key, m.message.data)
                    for m in messages
                ]
        return received

    def close(self) -> None:
        super().close()
        self._channel.close()

    def carried(self, request: Request) -> list[Message]:
        if not publishes(request):
            return []
        return [
            message_of_pub_sub(m.get("attributes", {}), m.get("orderingKey", ""), base64.b64decode(m.get("data", "")))
            for m in request.json()["messages"]
        ]

    def check_batch(self, messages: list[Message]) -> None:
        super().check_batch(messages)
        assert sum(len(message.payload or b"") for message in messages) <= self.size_limit()
        keys = {message.ordering_key for message in messages}
        assert len(keys) == 1, f"several ordering keys in one request: {keys}"

    def refuse_batch(self) -> Behaviour:
        return self.error(400, "INVALID_ARGUMENT")

    def throttle(self, seconds: int) -> Behaviour:
        return self.error(429, "RESOURCE_EXHAUSTED", [("Retry-After", str(seconds))])

    def size_limit(self) -> int:
        return 10_000_000

    def credentials(self, number: int = 1) -> dict[str, str]:
        return {"token": f"ya29.s3cret-token-{number}"}

    def refuse_credentials(self) -> Behaviour:
        return self.error(401, "UNAUTHENTICATED")

    def create_with_credentials(self) -> None:
        """Creates the destination for the real service; emulators get no credentials."""
        self.database.add_destination("d", f"{self.url()}?endpoint=http://127.0.0.1:{self.proxy.port}")
        self.map_credentials()

    def error(self, code: int, status: str, headers: list[tuple[str, str]] | None = None) -> Behaviour:
        body = {"error": {"code": code, "message": "as the test wants it", "status": status}}
        return answer(code, headers or [], json.dumps(body).encode())


class PubSubFakeSink(PubSubSink):
    """The same sink with Google's other fake."""

    name = "pubsub_fake"
    server = "pub_sub_fake"


def message_of_pub_sub(attributes: dict[str, str], key: str, data: bytes) -> Message:
    content_type = attributes.get("content-type")
    if content_type and content_type.startswith(STRUCTURED):
        return message_of_document(data)
    if "ce-id" in attributes:
        prefixed = {name[3:]: v for name, v in attributes.items() if name.startswith("ce-")}
        return message_of_cloud_event(prefixed, content_type, data)
    headers = {name: value for name, value in attributes.items() if name not in OF_THE_EVENT}
    return message_of(attributes, ordering_key=key, headers=headers, payload=data or None)
