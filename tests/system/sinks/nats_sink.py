"""The nats sink, read back with nats-py. Each topic has a stream of its own."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from database import Database

from .fault_proxy import NatsProxy
from .nats_server import NatsClient, NatsServer
from .sink import STRUCTURED, Message, Sink, message_of, message_of_cloud_event, message_of_document

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version", "schema_version",
                "occurred_at", "content_type", "ordering_key", "Nats-Msg-Id"}  # fmt: skip


class NatsSink(Sink):
    name = "nats"
    module = "pg_outbox_nats"
    server = "nats_server"
    deduplicates = True
    cannot = {
        "requests": "messages are one stream of bytes, without requests",
        "parallel": "there is one connection",
        "batches": "each event is a message of its own",
        "partial": "test_nats.py has streams that refuse some",
        "throttling": "the server asks for no pause",
        "secrets": "test_nats.py has what a server can ask for",
    }
    cloud_events = ("binary", "structured")
    proxy: NatsProxy

    def __init__(self, database: Database, server: NatsServer) -> None:
        super().__init__(database)
        self.broker = server
        self.proxy = server.proxy
        self.client = NatsClient(server.port)
        self._last: dict[str, int] = {}  # sequences, by stream

    def url(self) -> str:
        return f"nats://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"subject": f"{self.place}.{{topic}}", "connect_timeout": "1s"}

    def stream_of(self, topic: str = "item.events") -> str:
        return f"{self.place}-{topic.replace('.', '_')}"

    def add_topic(self, name: str = "item.events", **configuration: Any) -> None:
        subjects = configuration.pop("subjects", [f"{self.place}.{name}"])
        self.client.add_stream(self.stream_of(name), subjects, **configuration)
        self._last[self.stream_of(name)] = 0

    def records(self) -> list[Any]:
        """Returns the messages since the last call."""
        found = []
        for stream, last in self._last.items():
            new = self.client.messages(stream, last)
            if new:
                self._last[stream] = new[-1].seq
            found += new
        return found

    def receive(self) -> list[Message]:
        return [message_of_record(record) for record in self.records()]

    def close(self) -> None:
        self.proxy.forget_rules()
        self.client.close()

    def size_limit(self) -> int:
        return 1024 * 1024


class CurrentNatsSink(NatsSink):
    name = "nats-current"
    server = "nats_current_server"


def message_of_record(record: Any) -> Message:
    headers = {name: unquote(value, errors="strict") for name, value in record.headers.items()}
    if headers.get("Content-Type", "").startswith(STRUCTURED):
        message = message_of_document(record.data)
    elif "ce-id" in headers:
        attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
        message = message_of_cloud_event(attributes, attributes.get("datacontenttype"), record.data)
    else:
        others = {name: value for name, value in headers.items() if name not in OF_THE_EVENT}
        message = message_of(
            headers, ordering_key=headers.get("ordering_key", ""), headers=others, payload=record.data or None
        )
    assert headers["Nats-Msg-Id"] == message.event_id
    return message
