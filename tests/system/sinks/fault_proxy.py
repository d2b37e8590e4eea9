"""Proxies between a relay and a server that simulate failures of networks and servers.

`FaultProxy` is for HTTP: a `Receiver` (tests/system/receiver.py) that passes on what no rule says
otherwise about. All its behaviours answer for the server, which then never sees the request; those
made here let the server have it:

    proxy.on(everything, reset, times=1)                      lost before the server had it
    proxy.on(everything, proxy.taken_then(reset), times=1)    done, but the answer is lost

`TcpProxy` does the same to a connection of the PostgreSQL protocol, around COMMIT; `KafkaProxy` to
connections of Kafka's, for requests that have records, and `MqttProxy` to those of MQTT, for messages, and `NatsProxy` to those of NATS, and `AmqpProxy` to those of RabbitMQ, for messages and
confirmations; `RedisProxy` to transactions of Redis.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from cluster import free_port
from receiver import Behaviour, Exchange, Gate, Receiver, Request, Rule, answer, everything, reset

# Headers about the connection, not about what it carries.
OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def with_body(self, body: bytes) -> Answer:
        return replace(self, body=body)


class FaultProxy(Receiver):
    def __init__(self, server_port: int, carries: Callable[[Request], bool] = everything) -> None:
        """`carries` tells whether a request carries events; the faults below affect only these."""
        self.server_port = server_port
        self.carries = carries
        self.taken: list[Request] = []  # those the server has answered
        self._threads = ThreadPoolExecutor(64)
        self._asked: set[Future[Answer]] = set()  # of the server, which has not answered
        super().__init__()

    def rule_for(self, request: Request) -> Rule:
        return super().rule_for(request) or Rule(everything, self.passing, None)

    def close(self) -> None:
        super().close()
        self._threads.shutdown(cancel_futures=True)

    async def ask(self, request: Request) -> Answer:
        """Returns the server's answer."""
        asked = self._threads.submit(ask, self.server_port, request)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        answered = await asyncio.wrap_future(asked)
        self.taken.append(request)
        return answered

    def refuse_connections(self) -> None:
        """Waits until the server has answered earlier requests, even if the answers are dropped."""
        super().refuse_connections()
        wait(list(self._asked))

    # ---- faults that every sink must survive ------------------------------------------------------

    def lose_requests(self, times: int) -> None:
        """Resets the connection, so that the server never gets the request."""
        self.on(self.carries, reset, times=times)

    def lose_answers(self, times: int) -> None:
        """Lets the server do it, then resets the connection."""
        self.on(self.carries, self.taken_then(reset), times=times)

    def hold_answers(self, times: int | None = None) -> Gate:
        """Lets the server do it, and holds the answer until the gate is opened."""
        gate = Gate()
        self.on(self.carries, self.held(gate), times=times)
        return gate

    # ---- behaviours -------------------------------------------------------------------------------

    async def passing(self, exchange: Exchange) -> None:
        await reply(await self.ask(exchange.request))(exchange)

    def taken_then(self, then: Behaviour) -> Behaviour:
        async def behave(exchange: Exchange) -> None:
            await self.ask(exchange.request)
            await then(exchange)

        return behave

    def held(self, gate: Gate) -> Behaviour:
        async def behave(exchange: Exchange) -> None:
            answered = await self.ask(exchange.request)
            await gate.held(reply(answered))(exchange)

        return behave

    def changed(
        self,
        change_request: Callable[[Request], Request],
        change_answer: Callable[[Request, Answer], Answer],
    ) -> Behaviour:
        """Changes the request for the server, and the answer for the relay."""

        async def behave(exchange: Exchange) -> None:
            answered = await self.ask(change_request(exchange.request))
            await reply(change_answer(exchange.request, answered))(exchange)

        return behave


def ask(port: int, request: Request) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        headers = [(n, v) for n, v in request.header_list if n.lower() not in OF_THE_CONNECTION]
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in [*headers, ("Content-Length", str(len(request.body)))]:
            connection.putheader(name, value)
        connection.endheaders(request.body)
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def reply(answered: Answer) -> Behaviour:
    headers = [(n, v) for n, v in answered.headers if n.lower() not in OF_THE_CONNECTION]
    return answer(answered.status, headers, answered.body)


# -------------------------------------------------------------------------------------------------
# TCP
# -------------------------------------------------------------------------------------------------


class TcpProxy:
    """Passes bytes, one thread per direction."""

    def __init__(self, server_port: int, port: int | None = None) -> None:
        """`port`: where it listens."""
        self.server_port = server_port
        self._lock = threading.Lock()
        self._requests_to_lose = 0
        self._answers_to_lose = 0
        self._gate: Gate | None = None
        self._end_gate: Gate | None = None
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = port or free_port()  # it may listen again later
        self.listen()

    # ---- questions of tests -----------------------------------------------------------------------

    def lose_requests(self, times: int) -> None:
        """Resets the connection before the server gets COMMIT."""
        self._requests_to_lose = times

    def lose_answers(self, times: int) -> None:
        """Resets the connection after the server has committed."""
        self._answers_to_lose = times

    def hold_answers(self, times: int | None = None) -> Gate:
        """Holds the server's answers from its next COMMIT on until the gate is opened."""
        assert times in (None, 1), "the connection is one: what follows is held as well"
        self._gate = Gate()
        return self._gate

    def hold_ends(self) -> Gate:
        """Until the gate is opened, neither side learns that the other one has ended a connection."""
        self._end_gate = Gate()
        return self._end_gate

    def forget_rules(self) -> None:
        self._requests_to_lose = self._answers_to_lose = 0
        self._gate = self._end_gate = None

    def refuse_connections(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for sock in list(self._sockets):
            abort(sock)

    def listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept, self._listener)

    def close(self) -> None:
        self.refuse_connections()

    # ---- inside -----------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # nobody listens any more
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                abort(client)
                continue
            for sock in (client, server):  # what is sent before a RST must not wait in a buffer, which is dropped then
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets |= {client, server}
            self._connected(client, server)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        self._start(self._pass, client, server, self._loses_request)
        self._start(self._pass, server, client, self._loses_answer)

    def _read(self, source: socket.socket) -> bytes:
        """Returns the next part to be passed on, or an empty one at the end."""
        return source.recv(65536)

    def _pass(self, source: socket.socket, target: socket.socket, loses: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while (data := self._read(source)) and not loses(data):
                if not sent(target, data):
                    return  # the other direction passes on why the target has ended, and then its end
        if self._end_gate is not None:
            self._end_gate.hold_thread()
        for sock in (source, target):
            abort(sock)
            self._sockets.discard(sock)

    def _loses_request(self, data: bytes) -> bool:
        return b"COMMIT" in data and self._loses_this_request()

    def _loses_this_request(self) -> bool:
        with self._lock:
            lose = self._requests_to_lose > 0
            self._requests_to_lose -= lose
        return lose

    def _loses_answer(self, data: bytes) -> bool:
        return b"COMMIT\0" in data and self._loses_this_answer()

    def _loses_this_answer(self) -> bool:
        gate = self._gate
        if gate is not None:
            gate.hold_thread()
        with self._lock:
            lose = self._answers_to_lose > 0
            self._answers_to_lose -= lose
        return lose


# Kinds of requests to Kafka.
PRODUCE = b"\0\0"
OFFSET_COMMIT = b"\0\x08"
END_TXN = b"\0\x1a"


class KafkaProxy(TcpProxy):
    """Passes requests and answers, each of which begins with its size. Rules are for one kind of request."""

    kind = PRODUCE

    @contextmanager
    def watching(self, kind: bytes) -> Iterator[None]:
        self.kind = kind
        try:
            yield
        finally:
            self.forget_rules()
            self.kind = PRODUCE

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        watched: set[bytes] = set()  # ids of requests of the kind that have no answer yet

        def loses_request(data: bytes) -> bool:
            if data[4:6] != self.kind:
                return False
            watched.add(data[8:12])
            return self._loses_this_request()

        def loses_answer(data: bytes) -> bool:
            if data[4:8] not in watched:
                return False
            watched.discard(data[4:8])
            return self._loses_this_answer()

        self._start(self._pass, client, server, loses_request)
        self._start(self._pass, server, client, loses_answer)

    def _read(self, source: socket.socket) -> bytes:
        size = read_exactly(source, 4)
        return size and size + read_exactly(source, int.from_bytes(size, "big"))


class MqttProxy(TcpProxy):
    """Passes packets of MQTT. Requests are PUBLISH; their last answers are PUBACK or PUBCOMP."""

    PUBLISH, PUBACK, PUBCOMP = 3, 4, 7

    def _read(self, source: socket.socket) -> bytes:
        packet = read_exactly(source, 1)
        size = shift = 0
        while packet:
            byte = read_exactly(source, 1)
            if not byte:
                return b""
            packet += byte
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                return packet + read_exactly(source, size)
        return b""

    def _loses_request(self, data: bytes) -> bool:
        return data[0] >> 4 == self.PUBLISH and self._loses_this_request()

    def _loses_answer(self, data: bytes) -> bool:
        return data[0] >> 4 in (self.PUBACK, self.PUBCOMP) and self._loses_this_answer()


class NatsProxy(TcpProxy):
    """Passes commands one by one. Rules are for messages that are published with headers, and for answers."""

    def __init__(self, server_port: int, port: int | None = None) -> None:
        self._rests: dict[socket.socket, bytearray] = {}  # read and not passed on, by source
        super().__init__(server_port, port)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        self._start(self._pass, client, server, self._loses_request)
        self._start(self._pass, server, client, self._loses_answer)

    def _pass(self, source: socket.socket, target: socket.socket, loses: Callable[[bytes], bool]) -> None:
        self._rests[source] = bytearray()
        super()._pass(source, target, loses)
        del self._rests[source]

    def _read(self, source: socket.socket) -> bytes:
        rest = self._rests[source]
        while not (size := size_of_nats_command(rest)) or len(rest) < size:
            more = source.recv(65536)
            if not more:
                return b""
            rest += more
        command = bytes(rest[:size])
        del rest[:size]
        return command

    def _loses_request(self, data: bytes) -> bool:
        return data.startswith(b"HPUB ") and self._loses_this_request()

    def _loses_answer(self, data: bytes) -> bool:
        return data.startswith((b"MSG ", b"HMSG ")) and self._loses_this_answer()


def size_of_nats_command(data: bytes | bytearray) -> int:
    """Returns the size of the first command, with its payload, or 0 if its line is not complete."""
    end = data.find(b"\r\n") + 2
    if end < 2 or not data.startswith((b"PUB ", b"HPUB ", b"MSG ", b"HMSG ")):
        return end if end >= 2 else 0
    return end + int(data[:end].split()[-1]) + 2


# Beginnings of frames of AMQP: a method, and its class and number.
METHOD = b"\x01"
PUBLISH = b"\0\x3c\0\x28"
ANSWERS_TO_MESSAGES = (b"\0\x3c\0\x50", b"\0\x3c\0\x78", b"\0\x3c\0\x32")  # ack, nack, return


class AmqpProxy(TcpProxy):
    """Passes frames. Rules are for messages, and for answers to them."""

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        self._start(self._greet, client, server)

    def _greet(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            server.sendall(read_exactly(client, 8))  # which is not a frame
        super()._connected(client, server)

    def _read(self, source: socket.socket) -> bytes:
        head = read_exactly(source, 7)
        return head and head + read_exactly(source, int.from_bytes(head[3:7], "big") + 1)

    def _loses_request(self, data: bytes) -> bool:
        return data[:1] == METHOD and data[7:11] == PUBLISH and self._loses_this_request()

    def _loses_answer(self, data: bytes) -> bool:
        return data[:1] == METHOD and data[7:11] in ANSWERS_TO_MESSAGES and self._loses_this_answer()


class RedisProxy(TcpProxy):
    """Passes commands and answers one by one. A request is lost before MULTI passes; an answer is one that
    confirms events.
    """

    def __init__(self, server_port: int, port: int | None = None) -> None:
        self._readers: dict[socket.socket, RespReader] = {}
        super().__init__(server_port, port)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        asked: deque[bytes] = deque()  # commands that have no answer yet

        def loses_request(data: bytes) -> bool:
            name = data.split(b"\r\n", 3)[2].upper()
            if name == b"MULTI" and self._loses_this_request():
                return True
            asked.append(name)
            return False

        def loses_answer(data: bytes) -> bool:
            return bool(asked) and asked.popleft() in (b"EXEC", b"XREVRANGE") and self._loses_this_answer()

        for sock in (client, server):
            self._readers[sock] = RespReader(sock)
        self._start(self._pass, client, server, loses_request)
        self._start(self._pass, server, client, loses_answer)

    def _read(self, source: socket.socket) -> bytes:
        return self._readers[source].read()


class RespReader:
    """Reads commands or answers of Redis."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._data = b""  # received and not returned

    def read(self) -> bytes:
        """Returns the bytes of the next one, or none if the connection ended before."""
        while (end := self._end_of(0)) < 0:
            more = self._source.recv(1 << 20)
            if not more:
                return b""
            self._data += more
        whole, self._data = self._data[:end], self._data[end:]
        return whole

    def _end_of(self, start: int) -> int:
        """Returns the end of the value that begins there, or -1 if it is not complete."""
        line_end = self._data.find(b"\r\n", start) + 2
        kind = self._data[start : start + 1]
        if line_end < 2 or kind not in (b"*", b"$"):
            return line_end if line_end >= 2 else -1
        size = int(self._data[start + 1 : line_end])
        if size < 0:
            return line_end
        if kind == b"$":
            end = line_end + size + 2
            return end if end <= len(self._data) else -1
        for _ in range(size):
            line_end = self._end_of(line_end)
            if line_end < 0:
                return -1
        return line_end


def read_exactly(source: socket.socket, count: int) -> bytes:
    """Returns no bytes if the connection ended before."""
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


def sent(target: socket.socket, data: bytes) -> bool:
    """Returns False if the peer has ended the connection."""
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def abort(sock: socket.socket) -> None:
    """Closes it with a RST, and wakes the thread that reads from it."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)
    except OSError:
        pass
    sock.close()
