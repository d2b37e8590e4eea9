"""A sink for the conformance suite: how to create a destination, and how to read events from it."""

from __future__ import annotations

import base64
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar

from database import Database
from receiver import Behaviour, Request
from waiting import wait_until

from .fault_proxy import FaultProxy, TcpProxy


@dataclass(frozen=True)
class Message:
    """An event as an independent client received it; None for parts that it does not have."""

    event_id: str
    event_type: str
    aggregate_type: str
    aggregate_id: str
    version: int | None
    schema_version: int | None
    occurred_at: datetime
    content_type: str | None
    ordering_key: str | None
    headers: dict[str, str]
    payload: bytes | None


def message_of(
    attributes: Mapping[str, str],
    *,
    ordering_key: str | None,
    headers: Mapping[str, Any],
    payload: bytes | None,
) -> Message:
    """Makes an event from attributes that have the names of its columns."""

    def number(name: str) -> int | None:
        return int(attributes[name]) if name in attributes else None

    return Message(
        event_id=attributes["event_id"],
        event_type=attributes["event_type"],
        aggregate_type=attributes["aggregate_type"],
        aggregate_id=attributes["aggregate_id"],
        version=number("version"),
        schema_version=number("schema_version"),
        occurred_at=datetime.fromisoformat(attributes["occurred_at"]),
        content_type=attributes.get("content_type"),
        ordering_key=ordering_key,
        headers={name: as_text(value) for name, value in headers.items()},
        payload=payload,
    )


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -------------------------------------------------------------------------------------------------
# CloudEvents
# -------------------------------------------------------------------------------------------------

STRUCTURED = "application/cloudevents+json"
OF_CLOUD_EVENTS = {"specversion", "id", "type", "source", "subject", "time", "partitionkey", "sequence",
                   "aggregateversion", "schemaversion", "topic", "sourceeventid",
                   "datacontenttype"}  # fmt: skip


def message_of_cloud_event(attributes: Mapping[str, str], content_type: str | None, payload: bytes | None) -> Message:
    version = attributes.get("aggregateversion")
    return Message(
        event_id=attributes["id"],
        event_type=attributes["type"],
        aggregate_type=attributes["source"].rpartition("/")[2],
        aggregate_id=attributes["subject"],
        version=int(version) if version else None,
        schema_version=int(attributes["schemaversion"]),
        occurred_at=datetime.fromisoformat(attributes["time"]),
        content_type=content_type,
        ordering_key=attributes.get("partitionkey", ""),
        headers={name: v for name, v in attributes.items() if name not in OF_CLOUD_EVENTS},
        payload=payload or None,
    )


def message_of_document(text: bytes) -> Message:
    """Reads one event as JSON, with its payload in compact form."""
    document = json.loads(text)
    payload = None
    if "data_base64" in document:
        payload = base64.b64decode(document.pop("data_base64"), validate=True)
    elif "data" in document:
        data = document.pop("data")
        payload = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    attributes = {name: as_text(value) for name, value in document.items()}
    return message_of_cloud_event(attributes, attributes.get("datacontenttype"), payload)


# Abilities that a sink may lack and list in `cannot`.
ABILITIES: Mapping[str, str] = {
    "requests": "the proxy can tell requests apart, and read the events in them",
    "order": "readers get the events of a key in order, also when something failed",
    "parallel": "keys travel side by side",
    "batches": "a request carries several events",
    "partial": "a request can be taken in part",
    "refusals": "an entry of a request can be refused for good",
    "topics": "events go to places that may be missing",
    "throttling": "the destination can ask to be left alone for a while",
    "limits": "an event can be too large",
    "secrets": "there are credentials",
}

numbers = itertools.count(1)


class Sink(ABC):
    """One destination, called d, behind a proxy."""

    name: ClassVar[str]
    module: ClassVar[str]
    server: ClassVar[str | None] = None  # the fixture with the server it needs
    # ABILITIES that it lacks, with the reason; tests that need them leave it out.
    cannot: ClassVar[Mapping[str, str]] = {}
    # True if an event sent twice after a lost answer is one message.
    deduplicates: ClassVar[bool] = False
    batch_limit: ClassVar[int] = 1  # events in one request
    small_batches: ClassVar[Mapping[str, str]] = {}  # options with which several requests are needed
    counts_connections: ClassVar[bool] = False  # its client library does
    cloud_events: ClassVar[tuple[str, ...]] = ()  # its formats of CloudEvents
    refuses_texts: ClassVar[bool] = False  # its protocol does not allow some characters
    proxy: FaultProxy | TcpProxy

    def __init__(self, database: Database) -> None:
        self.database = database
        self.place = f"test-{next(numbers)}"  # part of the server for this sink only
        self._messages: list[Message] = []

    @abstractmethod
    def url(self) -> str: ...

    def options(self) -> dict[str, str]:
        return {}

    def add_topic(self, name: str = "item.events") -> None:
        """Creates the place where events of this topic go, and its reader."""

    def create(self, destination: str = "d", **options: str) -> None:
        self.database.add_destination(destination, self.url(), **{**self.options(), **options})

    @abstractmethod
    def receive(self) -> list[Message]:
        """Returns events since the last call, in the order in which readers get them."""

    def messages(self) -> list[Message]:
        self._messages += self.receive()
        return self._messages

    def wait_for(self, ids: list[str], *, timeout: float = 20) -> list[Message]:
        """Waits until all these events have arrived; returns all events, with duplicates."""

        def missing() -> set[str]:
            return set(ids) - {message.event_id for message in self.messages()}

        wait_until(missing, lambda seen: not seen, timeout=timeout, what=f"{len(ids)} events to arrive")
        return self._messages

    def as_carried(self, message: Message) -> Message:
        """Returns the event as this sink carries it, for sinks that drop empty parts."""
        content_type = None if message.payload is None else message.content_type
        return replace(message, content_type=content_type, payload=message.payload or None)

    def close(self) -> None:
        self.proxy.close()

    # ---- exceptions: `cannot` ---------------------------------------------------------------------

    def carried(self, request: Request) -> list[Message]:
        """`requests`: returns the events in a recorded request."""
        raise NotImplementedError

    def check_batch(self, messages: list[Message]) -> None:
        """`requests`: checks what a server may accept but must not be sent."""
        assert len(messages) <= self.batch_limit

    def refuse_batch(self) -> Behaviour:
        """`batches`: returns the answer to a request with one bad event."""
        raise NotImplementedError

    def throttle(self, seconds: int) -> Behaviour:
        """`throttling`: returns an answer that asks for a pause of this length."""
        raise NotImplementedError

    def size_limit(self) -> int:
        """`limits`: returns a payload size that is always refused."""
        raise NotImplementedError

    def batch_bytes(self) -> int:
        """`limits`: returns the limit of all payloads of a request."""
        return self.size_limit()

    def credentials(self, number: int = 1) -> dict[str, str]:
        """`secrets`: returns options of a user mapping, different for each number."""
        raise NotImplementedError

    def secrets(self) -> list[str]:
        """Returns secrets; the id of an access key is not one."""
        both = [*self.credentials(1).items(), *self.credentials(2).items()]
        return [value for name, value in both if name != "access_key_id"]

    def refuse_credentials(self) -> Behaviour:
        """`secrets`: returns the answer to expired credentials."""
        raise NotImplementedError

    def create_with_credentials(self) -> None:
        self.create()
        self.map_credentials()

    def map_credentials(self, destination: str = "d") -> None:
        options = ", ".join(f"{name} '{value}'" for name, value in self.credentials().items())
        self.database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER {destination} OPTIONS ({options})")

    def renew_credentials(self, number: int) -> None:
        options = ", ".join(f"SET {name} '{v}'" for name, v in self.credentials(number).items())
        self.database.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({options})")

    def uses_credentials(self, request: Request, number: int) -> bool:
        """Returns whether the secret or its id is in the request as it should be."""
        named = next(iter(self.credentials(number).values()))
        return named in request.headers.get("authorization", "")
