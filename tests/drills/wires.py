"""Proxies between a consumer and its source of events, which see messages and can drop them.

    PullWire      the protocol of PostgreSQL, to the producer's server
    PubSubWire    gRPC, to Pub/Sub; it can also be gone
    KafkaWire     the protocol of Kafka; it can also be gone
    NatsWire      the protocol of NATS; it can also be gone
    RabbitmqWire  AMQP, to RabbitMQ; it can also be gone
    RedisWire     the protocol of Redis

All pass on everything until they are told otherwise.
"""

from __future__ import annotations

import datetime
import itertools
import re
import socket
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any

from sinks import servers
from sinks.fault_proxy import METHOD, AmqpProxy, KafkaProxy, NatsProxy, RedisProxy, TcpProxy, abort
from sinks.fault_proxy import RespReader as RedisReader


class Wire:
    port: int
    losing_acks = False
    lost_acks = 0

    @contextmanager
    def acks_lost(self) -> Iterator[None]:
        """Drops one message before the other side gets it, then the answer of the next one, and so on."""
        self.losing_acks = True
        try:
            yield
        finally:
            self.losing_acks = False

    def close(self) -> None:
        raise NotImplementedError


# -------------------------------------------------------------------------------------------------
# PostgreSQL
# -------------------------------------------------------------------------------------------------


class PullWire(Wire):
    """Loses an acknowledgement together with its connection."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.calls: Counter[str] = Counter()  # of functions of pg_outbox, that the server was sent
        self.sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self.sockets):
            abort(sock)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                abort(client)
                continue
            PullConnection(self, client, server)


class PullConnection:
    def __init__(self, wire: PullWire, client: socket.socket, server: socket.socket) -> None:
        self.wire = wire
        self.client = client
        self.server = server
        self.functions: dict[bytes, str] = {}  # that prepared statements call, by their names
        self.to_be_lost = False  # the next answer
        wire.sockets |= {client, server}
        for target in (self.pass_requests, self.pass_answers):
            threading.Thread(target=self.run, args=(target,), daemon=True).start()

    def run(self, target: Any) -> None:
        with suppress(OSError, EOFError):
            target()
        for sock in (self.client, self.server):
            abort(sock)
            self.wire.sockets.discard(sock)

    def pass_requests(self) -> None:
        self.server.sendall(self.message(kind=b""))
        while True:
            kind = self.exactly(1)
            message = self.message(kind)
            if kind == b"P":
                self.note_statement(message)
            if kind == b"B" and not self.pass_on(self.function_of(message)):
                return
            self.server.sendall(message)

    def pass_answers(self) -> None:
        while data := self.server.recv(65536):
            if self.to_be_lost:
                return
            self.client.sendall(data)

    def pass_on(self, function: str) -> bool:
        if function == "ack" and self.wire.losing_acks:
            self.wire.lost_acks += 1
            if self.wire.lost_acks % 2:
                return False
            self.to_be_lost = True
        self.wire.calls[function] += 1
        return True

    # ---- the protocol ---------------------------------------------------------------------------

    def exactly(self, size: int) -> bytes:
        data = self.client.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise EOFError
        return data

    def message(self, kind: bytes) -> bytes:
        """Reads the rest of a message. The first message of a connection has no kind; TLS is not requested."""
        size = self.exactly(4)
        return kind + size + self.exactly(struct.unpack("!i", size)[0] - 4)

    def note_statement(self, message: bytes) -> None:
        name, statement = message[5:].split(b"\0")[:2]
        found = re.search(rb"outbox\.(\w+)", statement)
        self.functions[name] = found[1].decode() if found else ""

    def function_of(self, message: bytes) -> str:
        return self.functions.get(message[5:].split(b"\0")[1], "")


# -------------------------------------------------------------------------------------------------
# Pub/Sub
# -------------------------------------------------------------------------------------------------

SUBSCRIBER = "/google.pubsub.v1.Subscriber/"


class PubSubWire(Wire):
    """A lost acknowledgement is answered with success, as the service may do."""

    def __init__(self, server_port: int) -> None:
        servers.add_clients_to_path()
        import grpc
        from google import pubsub_v1

        self.grpc, self.pubsub = grpc, pubsub_v1
        self.delivered: Counter[str] = Counter()  # by event id
        self.extended: Counter[str] = Counter()  # leases, the first of each message included
        self.acked: Counter[str] = Counter()  # that the service was sent
        self.events: dict[str, str] = {}  # ids, by ack id
        self.way_of: dict[str, list[str]] = defaultdict(list)  # by event id: sightings with their times
        self.streams = itertools.count(1)
        self.open_streams: set[int] = set()
        self.port = 0
        self.server_port = server_port
        self._channel = self.connect(server_port)
        self.start()

    def connect(self, port: int) -> Any:
        return self.grpc.insecure_channel(
            f"127.0.0.1:{port}",
            [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        )

    def start(self) -> None:
        """Starts, also after stop(), on the same port."""
        self._server = self.grpc.server(
            futures.ThreadPoolExecutor(64), handlers=(Handler(self),), options=[("grpc.so_reuseport", 0)]
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def close(self) -> None:
        self.stop()
        self._channel.close()

    # ---- calls, as bytes ------------------------------------------------------------------------

    def unary(self, method: str, request: bytes, context: Any) -> bytes:
        if method == SUBSCRIBER + "ModifyAckDeadline":
            self.note_deadline(self.pubsub.ModifyAckDeadlineRequest.deserialize(request))
        loses_answer = False
        if method == SUBSCRIBER + "Acknowledge":
            ack_ids = self.pubsub.AcknowledgeRequest.deserialize(request).ack_ids
            if self.losing_acks:
                self.lost_acks += 1
                if self.lost_acks % 2:
                    return b""
                loses_answer = True
            self.acked.update(self.events[ack_id] for ack_id in ack_ids)
            for ack_id in ack_ids:
                self.note(ack_id, "acknowledged")
        try:
            answer = self._channel.unary_unary(method)(request, timeout=180)
        except self.grpc.RpcError as error:
            context.abort(error.code(), error.details())
        if loses_answer:
            context.abort(self.grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return answer

    def note_deadline(self, request: Any) -> None:
        for ack_id in request.ack_ids:
            self.note(ack_id, f"its deadline set to {request.ack_deadline_seconds} s")
        if request.ack_deadline_seconds > 0:
            self.extended.update(self.events[ack_id] for ack_id in request.ack_ids)

    def stream(self, method: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        # It ends like a stream whose client was killed: with its connection.
        way = TcpProxy(self.server_port)
        if not context.add_callback(way.close):
            way.close()
        number = next(self.streams)
        self.open_streams.add(number)
        with self.connect(way.port) as channel:
            try:
                for answer in channel.stream_stream(method)(until_ended(requests)):
                    self.note_messages(number, self.pubsub.StreamingPullResponse.deserialize(answer))
                    yield answer
            except self.grpc.RpcError as error:
                context.abort(error.code(), error.details())
            finally:
                self.open_streams.discard(number)

    def note_messages(self, stream: int, response: Any) -> None:
        for received in response.received_messages:
            event_id = received.message.attributes["event_id"]
            self.events[received.ack_id] = event_id
            self.delivered[event_id] += 1
            self.note(received.ack_id, f"sent into stream {stream}")

    def note(self, ack_id: str, what: str) -> None:
        self.way_of[self.events[ack_id]].append(f"{datetime.datetime.now():%H:%M:%S.%f} {what}")

    def describe(self, event_ids: set[str]) -> str:
        """Describes the outcome of some events."""
        lines = [f"streams that are open: {sorted(self.open_streams)}"]
        for event_id in sorted(event_ids)[:5]:
            lines += [f"{event_id}:", *(f"    {line}" for line in self.way_of[event_id][-30:])]
        return "\n".join(lines)


def until_ended(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Ends a stream and ignores its error, which gRPC would report."""
    with suppress(Exception):
        yield from requests


class Handler:
    """Handles any call; gRPC uses it as a grpc.GenericRpcHandler."""

    def __init__(self, wire: PubSubWire) -> None:
        self.wire = wire

    def service(self, call: Any) -> Any:
        grpc, wire, method = self.wire.grpc, self.wire, call.method
        if method == SUBSCRIBER + "StreamingPull":
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: wire.stream(method, requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: wire.unary(method, request, context))


# -------------------------------------------------------------------------------------------------
# Kafka
# -------------------------------------------------------------------------------------------------


class KafkaWire(Wire, KafkaProxy):
    """Loses a commit of offsets together with its connection. Brokers name it as their own address."""

    OFFSET_COMMIT, HEARTBEAT = b"\0\x08", b"\0\x0c"

    def __init__(self, server_port: int) -> None:
        self.calls: Counter[bytes] = Counter()  # by the key of the API
        super().__init__(server_port)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        answers_to_lose: set[bytes] = set()  # by the ids of their requests

        def loses_request(data: bytes) -> bool:
            self.calls[data[4:6]] += 1
            if data[4:6] != self.OFFSET_COMMIT or not self.losing_acks:
                return False
            self.lost_acks += 1
            if self.lost_acks % 2:
                return True
            answers_to_lose.add(data[8:12])
            return False

        self._start(self._pass, client, server, loses_request)
        self._start(self._pass, server, client, lambda data: data[4:8] in answers_to_lose)

    def close(self) -> None:
        """It stays, as the server does."""


# -------------------------------------------------------------------------------------------------
# Brokers that do not answer acknowledgements
# -------------------------------------------------------------------------------------------------


class NatsWire(Wire, NatsProxy):
    """Loses an acknowledgement together with its connection."""

    def __init__(self, server_port: int) -> None:
        self.extended = 0
        super().__init__(server_port)

    def _loses_request(self, data: bytes) -> bool:
        self.extended += data.endswith(b"+WPI\r\n")
        loses = self.losing_acks and data.endswith(b"+ACK\r\n")
        self.lost_acks += loses
        return loses

    def close(self) -> None:
        NatsProxy.close(self)


class RabbitmqWire(Wire, AmqpProxy):
    """Loses an acknowledgement together with its connection."""

    ACK = b"\0\x3c\0\x50"

    def _loses_request(self, data: bytes) -> bool:
        loses = self.losing_acks and data[:1] == METHOD and data[7:11] == self.ACK
        self.lost_acks += loses
        return loses

    def close(self) -> None:
        AmqpProxy.close(self)


# -------------------------------------------------------------------------------------------------
# Redis
# -------------------------------------------------------------------------------------------------


class RedisWire(Wire, RedisProxy):
    """Loses an acknowledgement together with its connection."""

    def __init__(self, server_port: int) -> None:
        self.calls: Counter[bytes] = Counter()  # by the name of the command
        super().__init__(server_port)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        asked: deque[bool] = deque()  # for each command without an answer, whether its answer is to be lost

        def loses_request(data: bytes) -> bool:
            name = data.split(b"\r\n", 3)[2].upper()
            self.calls[name] += 1
            is_ack = name == b"XACK" and self.losing_acks
            self.lost_acks += is_ack
            if is_ack and self.lost_acks % 2:
                return True
            asked.append(is_ack)
            return False

        for sock in (client, server):
            self._readers[sock] = RedisReader(sock)
        self._start(self._pass, client, server, loses_request)
        self._start(self._pass, server, client, lambda data: asked.popleft())

    def close(self) -> None:
        RedisProxy.close(self)
