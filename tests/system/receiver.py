"""A scripted HTTP receiver: it records every request, and answers by rules.

    receiver = Receiver()
    receiver.on(subject("42"), answer(503), times=2)     # 42 fails twice, everything else is fine
    ... receiver.requests, receiver.events() ...

HTTP/1.1 with keep-alive, over plain TCP, one request at a time per connection. It runs in a thread
of its own with an event loop; requests without a rule are answered 204 on the spot, so that it keeps
up with tens of thousands of requests per second.

A *behaviour* is an async function of an `Exchange`; those in the lower part of this file do what
servers do when they fail. Tests may add their own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from waiting import wait_until

Headers = Iterable[tuple[str, str]]

REASONS = {100: "Continue", 103: "Early Hints", 200: "OK", 204: "No Content", 302: "Found",
           400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable"}  # fmt: skip
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass
class Request:
    number: int  # in the order of arrival
    connection: int
    method: str
    target: str
    header_list: list[tuple[str, str]]
    body: bytes
    began: float  # monotonic; when the last byte of it had arrived
    ended: float | None = None  # when its answer was written, or its connection was closed
    status: int | None = None  # of the answer; None if no complete answer was written

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.header_list}

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Event:
    """An event as it arrived, in any format."""

    id: str
    attributes: dict[str, str]  # CloudEvents attributes, without prefix, percent-decoded
    data: bytes | Any  # binary: bytes; JSON formats: the value
    request: Request

    @property
    def subject(self) -> str:
        return self.attributes["subject"]

    @property
    def version(self) -> int:
        return int(self.attributes["aggregateversion"])

    @property
    def position(self) -> int:
        return int(self.attributes["sequence"])


def events_of(request: Request) -> list[Event]:
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("application/cloudevents-batch+json"):
        return [json_event(item, request) for item in request.json()]
    if content_type.startswith("application/cloudevents+json"):
        return [json_event(request.json(), request)]
    attributes = {
        name[3:]: urllib.parse.unquote(value) for name, value in request.headers.items() if name.startswith("ce-")
    }
    return [Event(attributes["id"], attributes, request.body, request)]


def json_event(item: dict[str, Any], request: Request) -> Event:
    attributes = {k: str(v) for k, v in item.items() if k not in ("data", "data_base64")}
    return Event(item["id"], attributes, item.get("data", item.get("data_base64")), request)


@dataclass
class Rule:
    predicate: Callable[[Request], bool]
    behave: Behaviour
    times: int | None  # number of times that it still applies; None for always
    met: list[Request] = field(default_factory=list)


class Exchange:
    """One request and the connection its answer goes to."""

    def __init__(self, request: Request, connection: _Connection) -> None:
        self.request = request
        self._connection = connection

    @property
    def transport(self) -> asyncio.Transport:
        return self._connection.transport

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def answered(self, status: int) -> None:
        """Marks the answer as complete."""
        self.request.status = status

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        """Closes the connection with a RST."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


class Receiver:
    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.AbstractServer | None = None
        self._place: socket.socket | None = None  # keeps the port while the server is stopped
        self.port = 0
        self.requests: list[Request] = []
        self.connections = 0  # opened so far
        self.open_connections: set[_Connection] = set()
        self._rules: list[Rule] = []
        self._decoded: list[Event] = []
        self._decoded_requests = 0
        self.listen()

    # ---- questions of tests -------------------------------------------------------------------

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def on(self, predicate: Callable[[Request], bool], behave: Behaviour, *, times: int | None = None) -> Rule:
        """Adds a rule for requests that match the predicate; the first matching rule applies."""
        rule = Rule(predicate, behave, times)
        self._rules = [*self._rules, rule]
        return rule

    def forget_rules(self) -> None:
        """Removes all rules, so that every answer is 204 again."""
        self._rules = []

    def events(self) -> list[Event]:
        """Returns all events that arrived, in order, with duplicates."""
        arrived = len(self.requests)
        for request in self.requests[self._decoded_requests : arrived]:
            self._decoded.extend(events_of(request))
        self._decoded_requests = arrived
        return list(self._decoded)

    def ids(self) -> list[str]:
        return [event.id for event in self.events()]

    def subjects(self) -> list[str]:
        return [event.subject for event in self.events()]

    def versions(self, key: str) -> list[int]:
        return [event.version for event in self.events() if event.subject == key]

    def wait_for_requests(self, count: int, *, timeout: float = 180) -> None:
        wait_until(
            lambda: len(self.requests), lambda seen: seen >= count, timeout=timeout,
            what=f"{count} requests",
        )  # fmt: skip

    def refuse_connections(self) -> None:
        """Stops listening, and closes open connections."""
        self._run(self._stop_listening())

    def listen(self) -> None:
        """Listens on the same port again."""
        self._run(self._start_listening())

    def close(self) -> None:
        self._run(self._stop_listening())
        self._leave_place()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=180)

    async def _start_listening(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Connection(self), self.address, self.port, backlog=512, reuse_port=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._leave_place()

    async def _stop_listening(self) -> None:
        if self._server is not None:
            # Before the server closes: otherwise another process may take the port.
            self._place = socket.socket(self._server.sockets[0].family)
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind((self.address, self.port))
            self._server.close()
            self._server = None
        for connection in list(self.open_connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets connection_lost run

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    def rule_for(self, request: Request) -> Rule | None:
        for rule in self._rules:
            if rule.times != 0 and rule.predicate(request):
                if rule.times is not None:
                    rule.times -= 1
                rule.met.append(request)
                return rule
        return None


class _Connection(asyncio.Protocol):
    """Parses requests, and answers them one after the other."""

    transport: asyncio.Transport

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.buffer = b""
        self.current: Request | None = None
        self.task: asyncio.Task[None] | None = None
        self.continued = False  # 100 Continue was sent for the request in the buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.number = self.receiver.connections
        self.receiver.connections += 1
        self.receiver.open_connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.receiver.open_connections.discard(self)
        if self.task is not None:
            self.task.cancel()
        if self.current is not None:
            self.current.ended = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.proceed()

    def proceed(self) -> None:
        while self.current is None and not self.transport.is_closing():
            request = self.take_request()
            if request is None:
                return
            self.current = request
            self.receiver.requests.append(request)
            rule = self.receiver.rule_for(request)
            if rule is None:
                self.transport.write(NO_CONTENT)
                request.status = 204
                self.finish()
            else:
                self.task = asyncio.ensure_future(self.behave(rule, request))

    async def behave(self, rule: Rule, request: Request) -> None:
        await rule.behave(Exchange(request, self))
        self.finish()
        self.proceed()

    def finish(self) -> None:
        if self.current is not None:
            self.current.ended = time.monotonic()
        self.current = None
        self.task = None

    def take_request(self) -> Request | None:
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        first, *lines = self.buffer[:head_end].decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (h.partition(":") for h in lines)]
        by_name = {name.lower(): value for name, value in headers}
        body_begin = head_end + 4
        body_end = body_begin + int(by_name.get("content-length", 0))
        if len(self.buffer) < body_end:
            if by_name.get("expect", "").lower() == "100-continue" and not self.continued:
                self.continued = True
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = self.buffer[body_begin:body_end]
        self.buffer = self.buffer[body_end:]
        self.continued = False
        method, target, _ = first.split(" ", 2)
        return Request(
            number=len(self.receiver.requests), connection=self.number, method=method,
            target=target, header_list=headers, body=body, began=time.monotonic(),
        )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Predicates
# -------------------------------------------------------------------------------------------------


def everything(request: Request) -> bool:
    return True


def subject(*names: str) -> Callable[[Request], bool]:
    """Matches requests in binary format about one of these aggregates."""
    return lambda request: request.headers.get("ce-subject") in names


def path(name: str) -> Callable[[Request], bool]:
    return lambda request: request.target == name


# -------------------------------------------------------------------------------------------------
# Behaviours
# -------------------------------------------------------------------------------------------------


def head(status: int, headers: Headers = ()) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answer(status: int = 204, headers: Headers = (), body: bytes = b"") -> Behaviour:
    has_body = status >= 200 and status not in (204, 304)
    length = [("Content-Length", str(len(body)))] if has_body else []

    async def behave(exchange: Exchange) -> None:
        exchange.write(head(status, [*headers, *length]) + body)
        exchange.answered(status)
        if any(h.lower() == "connection" and v.lower() == "close" for h, v in headers):
            exchange.close()

    return behave


def delayed(seconds: float, then: Behaviour = answer()) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await then(exchange)

    return behave


class Gate:
    """Holds requests until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.holding: set[int] = set()  # numbers of the requests

    def open(self) -> None:
        self._open.set()

    def hold_thread(self) -> None:
        self.holding.add(-1)
        self._open.wait()
        self.holding.discard(-1)

    def held(self, then: Behaviour = answer()) -> Behaviour:
        async def behave(exchange: Exchange) -> None:
            self.holding.add(exchange.request.number)
            try:
                while not self._open.is_set():
                    await asyncio.sleep(0.005)
            finally:  # the client may have gone
                self.holding.discard(exchange.request.number)
            await then(exchange)

        return behave


def close_unanswered(exchange: Exchange) -> Awaitable[None]:
    return cut_off(b"")(exchange)


def cut_off(beginning: bytes) -> Behaviour:
    """Sends the beginning of an answer, and closes the connection."""

    async def behave(exchange: Exchange) -> None:
        exchange.write(beginning)
        exchange.close()

    return behave


async def reset(exchange: Exchange) -> None:
    exchange.reset()


def raw(status: int, data: bytes, *, close: bool = False) -> Behaviour:
    """Answers with these bytes, which mean `status`."""

    async def behave(exchange: Exchange) -> None:
        exchange.write(data)
        exchange.answered(status)
        if close:
            exchange.close()

    return behave


def chunked(status: int, parts: list[bytes]) -> Behaviour:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])
    return raw(status, head(status, [("Transfer-Encoding", "chunked")]) + chunks)


def dripping(status: int, headers: Headers, interval: float) -> Behaviour:
    """Sends an answer byte by byte."""

    async def behave(exchange: Exchange) -> None:
        for byte in head(status, [*headers, ("Content-Length", "0")]):
            exchange.write(bytes([byte]))
            await asyncio.sleep(interval)
        exchange.answered(status)

    return behave


def after_interim(*statuses: int, then: Behaviour = answer()) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        for status in statuses:
            exchange.write(head(status))
        await then(exchange)

    return behave
