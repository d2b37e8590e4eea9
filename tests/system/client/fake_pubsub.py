"""A server that speaks Pub/Sub's subscriber interface as a test scripts it, and remembers what it was sent.

The test plays the service: it takes a stream, sends messages on it and ends it. Calls are answered
with success unless the test has said otherwise.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

from sinks import servers
from waiting import wait_until

servers.add_clients_to_path()

import google.rpc.code_pb2 as rpc_code  # noqa: E402
import google.rpc.error_details_pb2 as rpc_details  # noqa: E402
import google.rpc.status_pb2 as rpc_status  # noqa: E402
import grpc  # noqa: E402
from google import pubsub_v1  # noqa: E402
from google.protobuf import any_pb2, empty_pb2  # noqa: E402
from grpc_status import rpc_status as rich_status  # noqa: E402

SERVICE = "google.pubsub.v1.Subscriber"


@dataclass
class Request:
    method: str
    request: Any
    at: float = field(default_factory=time.monotonic)

    @property
    def ack_ids(self) -> list[str]:
        return list(self.request.ack_ids)


class Failure(Exception):
    """The error that answers a call. `ack_ids` has the error of each, as ErrorInfo."""

    def __init__(self, code: str, ack_ids: dict[str, str] | None = None) -> None:
        self.code = code
        self.ack_ids = ack_ids or {}

    def abort(self, context: grpc.ServicerContext) -> None:
        if not self.ack_ids:
            context.abort(grpc.StatusCode[self.code], "as the test wants it")
        detail = any_pb2.Any()
        detail.Pack(rpc_details.ErrorInfo(reason="r", domain="d", metadata=self.ack_ids))
        status = rpc_status.Status(code=rpc_code.Code.Value(self.code), message="some", details=[detail])
        context.abort_with_status(rich_status.to_status(status))


class FakeStream:
    """One StreamingPull, from the service's side."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context = context
        self.requests: list[Request] = []
        self.outgoing: queue.Queue[Any] = queue.Queue()
        self.closed = threading.Event()  # by the client, or by end()

    @property
    def first(self) -> Any:
        return wait_until(lambda: self.requests, what="the first request of a stream")[0].request

    def send(self, *messages: dict[str, Any], exactly_once: bool = False, ordered: bool = False) -> None:
        """Messages: dict(id=, data=, key=, attributes=); their ack id is `ack-<id>` unless given."""
        self.outgoing.put(
            pubsub_v1.StreamingPullResponse(
                received_messages=[received(**message) for message in messages],
                subscription_properties={
                    "exactly_once_delivery_enabled": exactly_once,
                    "message_ordering_enabled": ordered,
                },
            )
        )

    def end(self, code: str) -> None:
        self.outgoing.put(Failure(code))

    def responses(self) -> Iterator[Any]:
        while True:
            response = self.outgoing.get()
            if response is None:
                return
            if isinstance(response, Failure):
                self.closed.set()
                if response.code != "OK":
                    response.abort(self.context)
                return
            yield response

    def read(self, requests: Iterator[Any]) -> None:
        try:
            for request in requests:
                self.requests.append(Request("StreamingPull", request))
        except Exception:  # the client has gone
            pass
        self.closed.set()
        self.outgoing.put(None)


def received(
    id: str, *, data: bytes = b"x", key: str = "", ack_id: str | None = None, attributes: dict[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    message = {"data": data, "message_id": id, "ordering_key": key, "attributes": attributes or {}}
    return {"ack_id": ack_id or f"ack-{id}", "message": message}


class FakePubSub:
    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.requests: list[Request] = []  # the unary ones
        self.metadata: list[dict[str, str]] = []  # of all calls
        self.streams: list[FakeStream] = []
        self._answers: dict[str, list[Callable[[Any], None]]] = {}
        self._lock = threading.Lock()
        self._credentials = credentials
        self.port = 0
        self.start()

    def start(self) -> None:
        """Starts, also after stop(), on the same port."""
        self._server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self._handlers(),))
        address = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials)
        # Streams opened while the previous server was being stopped are gone with it.
        self._next_stream = itertools.count(len(self.streams))
        self._server.start()

    def stop(self) -> None:
        for stream in self.streams:
            stream.end("UNAVAILABLE")
        self._server.stop(None).wait()

    # For the test -----------------------------------------------------------------------------------

    def next_stream(self) -> FakeStream:
        """Waits for the next stream that the source opens."""
        number = next(self._next_stream)
        wait_until(lambda: len(self.streams) > number, what=f"the source to open stream {number + 1}")
        return self.streams[number]

    def fail(self, method: str, *failures: Failure) -> None:
        """Returns the next calls of the method."""
        self._answers.setdefault(method, []).extend(raising(failure) for failure in failures)

    # Requests of the source ---------------------------------------------------------------------

    def calls(self, method: str) -> list[Request]:
        return [request for request in self.requests if request.method == method]

    def acked(self) -> list[str]:
        return [ack_id for call in self.calls("Acknowledge") for ack_id in call.ack_ids]

    def nacked(self) -> list[str]:
        return [i for call in self.calls("ModifyAckDeadline") if not seconds(call) for i in call.ack_ids]

    def extensions(self, ack_id: str) -> list[Request]:
        calls = self.calls("ModifyAckDeadline")
        return [call for call in calls if seconds(call) and ack_id in call.ack_ids]

    # gRPC -----------------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        def unary(method: str, kind: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: self._answer(method, request, context),
                request_deserializer=kind.deserialize,
                response_serializer=lambda response: response.SerializeToString(),
            )

        handlers = {
            "Acknowledge": unary("Acknowledge", pubsub_v1.AcknowledgeRequest),
            "ModifyAckDeadline": unary("ModifyAckDeadline", pubsub_v1.ModifyAckDeadlineRequest),
            "Seek": unary("Seek", pubsub_v1.SeekRequest),
            "CreateSnapshot": unary("CreateSnapshot", pubsub_v1.CreateSnapshotRequest),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(
                self._pull,
                request_deserializer=pubsub_v1.StreamingPullRequest.deserialize,
                response_serializer=pubsub_v1.StreamingPullResponse.serialize,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _pull(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.metadata.append(dict(context.invocation_metadata()))
        stream = FakeStream(context)
        threading.Thread(target=stream.read, args=(requests,), daemon=True).start()
        self.streams.append(stream)
        yield from stream.responses()

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self.metadata.append(dict(context.invocation_metadata()))
        with self._lock:
            self.requests.append(Request(method, request))
            once = self._answers.get(method)
            answer = once.pop(0) if once else None
        try:
            if answer is not None:
                answer(request)
        except Failure as failure:
            failure.abort(context)
        return empty_pb2.Empty()


def seconds(call: Request) -> int:
    return call.request.ack_deadline_seconds


def raising(failure: Failure) -> Callable[[Any], None]:
    def answer(request: Any) -> None:
        raise failure

    return answer
