"""The redis sink, read back with redis-py. Streams are told apart by their names."""

from __future__ import annotations

from typing import Any

from database import Database

from .fault_proxy import RedisProxy
from .redis_server import LONGEST_ARGUMENT, RedisServer
from .sink import STRUCTURED, Message, Sink, message_of, message_of_cloud_event, message_of_document

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                "schema_version", "occurred_at", "content_type", "ordering_key", "payload"}  # fmt: skip
PIPELINED = "a connection carries many transactions at the same time"


class RedisSink(Sink):
    name = "redis"
    module = "pg_outbox_redis"
    server = "redis_server"
    cannot = {
        "requests": PIPELINED,
        "parallel": PIPELINED,
        "batches": PIPELINED,
        "partial": "Redis takes a transaction or refuses it",
        "topics": "the first event of a stream creates it",
        "throttling": "test_redis.py has a server without memory; no answer asks for a pause of some length",
        "secrets": "test_redis.py has users and passwords",
    }
    deduplicates = True
    cloud_events = ("binary", "structured")
    proxy: RedisProxy

    def __init__(self, database: Database, server: RedisServer) -> None:
        super().__init__(database)
        self.redis = server
        self.proxy = RedisProxy(server.port)
        self.client = server.client()
        self._next: dict[bytes, bytes] = {}  # by stream: "(" and the id of the last entry

    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"stream": f"{self.place}-{{topic}}", "connect_timeout": "1s"}

    def stream(self, topic: str = "item.events") -> str:
        return f"{self.place}-{topic}"

    def entries(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Returns the entries that have arrived since the last call."""
        received = []
        for stream in sorted(self.client.scan_iter(match=f"{self.place}-*", count=10_000)):
            for id, fields in self.client.xrange(stream, min=self._next.get(stream, b"-")):
                self._next[stream] = b"(" + id
                received.append((id, fields))
        return received

    def receive(self) -> list[Message]:
        return [message_of_entry(fields) for _, fields in self.entries()]

    def close(self) -> None:
        super().close()
        for stream in self.client.scan_iter(match=f"{self.place}-*", count=10_000):
            self.client.delete(stream)

    def size_limit(self) -> int:
        return LONGEST_ARGUMENT


def message_of_entry(fields: dict[bytes, bytes]) -> Message:
    texts = {name.decode(): value for name, value in fields.items()}
    text: dict[str, Any] = {name: value.decode() for name, value in texts.items() if name not in ("payload", "data")}
    content_type = text.get("content-type")
    if content_type and content_type.startswith(STRUCTURED):
        message = message_of_document(texts["data"])
        assert message.event_id == text["ce_id"]
        return message
    if "ce_id" in text:
        attributes = {name[3:]: value for name, value in text.items() if name.startswith("ce_")}
        return message_of_cloud_event(attributes, content_type, texts.get("data"))
    others = {name: value for name, value in text.items() if name not in OF_THE_EVENT}
    return message_of(
        text, ordering_key=text.get("ordering_key", ""), headers=others, payload=texts.get("payload") or None
    )
