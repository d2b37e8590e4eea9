"""The rabbitmq sink, read back with pika. Queues are told apart by their names."""

from __future__ import annotations

from typing import Any

from database import Database

from .fault_proxy import AmqpProxy
from .rabbitmq_server import RabbitmqServer
from .sink import STRUCTURED, Message, Sink, message_of, message_of_cloud_event, message_of_document

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                "schema_version", "occurred_at", "content_type", "ordering_key"}  # fmt: skip
NO_REQUESTS = "messages follow each other on one connection, without requests"


class RabbitmqSink(Sink):
    name = "rabbitmq"
    module = "pg_outbox_rabbitmq"
    server = "rabbitmq_server"
    cannot = {
        "requests": NO_REQUESTS,
        "parallel": NO_REQUESTS,
        "batches": NO_REQUESTS,
        "partial": "test_rabbitmq.py has messages that are refused one by one",
        "throttling": "test_rabbitmq.py has a server that blocks connections, and queues that are full",
        "secrets": "a password is sent once for a connection: test_rabbitmq.py",
    }
    cloud_events = ("binary", "structured")
    proxy: AmqpProxy

    def __init__(self, database: Database, server: RabbitmqServer) -> None:
        super().__init__(database)
        self.broker = server
        self.proxy = server.proxy
        self.connection = server.connect()
        self.channel = self.connection.channel()
        self.queues: list[str] = []

    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"routing_key": f"{self.place}-{{topic}}", "connect_timeout": "5s"}

    def add_topic(self, name: str = "item.events", **arguments: Any) -> None:
        queue = f"{self.place}-{name}"
        self.channel.queue_declare(queue, durable=True, arguments=arguments)
        self.queues.append(queue)

    def receive(self) -> list[Message]:
        return [message_of_delivery(*received) for queue in self.queues for received in self.take_all(queue)]

    def take_all(self, queue: str) -> list[tuple[Any, bytes]]:
        """The messages of a queue, with their properties."""
        import pika

        taken = []
        while True:
            try:
                method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                # A server that starts may accept connections before it has found all queues again.
                if error.reply_code != 404:
                    raise
                self.channel = self.connection.channel()
                return taken
            if method is None:
                return taken
            taken.append((properties, body))

    def close(self) -> None:
        self.proxy.forget_rules()
        self.connection.close()

    def size_limit(self) -> int:
        return 16 * 1024 * 1024


def message_of_delivery(properties: Any, body: bytes) -> Message:
    headers = properties.headers or {}
    assert properties.delivery_mode == 2
    if (properties.content_type or "").startswith(STRUCTURED):
        message = message_of_document(body)
    elif "cloudEvents_id" in headers:
        prefix = "cloudEvents_"
        attributes = {name[len(prefix) :]: value for name, value in headers.items() if name.startswith(prefix)}
        message = message_of_cloud_event(attributes, properties.content_type, body)
    else:
        others = {name: value for name, value in headers.items() if name not in OF_THE_EVENT}
        assert headers.get("content_type") == properties.content_type
        message = message_of(
            headers, ordering_key=headers.get("ordering_key", ""), headers=others, payload=body or None
        )
    assert properties.message_id == message.event_id
    assert properties.type == message.event_type
    assert properties.timestamp == int(message.occurred_at.timestamp())
    return message
