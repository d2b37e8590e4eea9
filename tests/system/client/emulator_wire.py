"""A proxy between a consumer and Google's emulator of Pub/Sub that passes on everything.

With one difference, for a fault of the emulator: when a stream is cancelled, or its client dies, it goes
on sending the ordering keys of this stream there, so that no client gets them any more. Only
a stream whose client has closed its sending side ends. So the proxy closes that side.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from sinks import servers


class EmulatorWire:
    def __init__(self, emulator: str) -> None:
        servers.add_clients_to_path()
        import grpc

        self.grpc = grpc
        self._channel = grpc.insecure_channel(emulator, [("grpc.max_receive_message_length", -1)])
        self._server = grpc.server(futures.ThreadPoolExecutor(64), handlers=(Handler(self),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def unary(self, method: str, request: bytes, context: Any) -> bytes:
        try:
            return self._channel.unary_unary(method)(request, timeout=180)
        except self.grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def stream(self, method: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def receive() -> None:  # to the end, even if no client listens
            try:
                for answer in self._channel.stream_stream(method)(until_gone(requests)):
                    answers.put(answer)
                answers.put(None)
            except self.grpc.RpcError as error:
                answers.put(error)

        threading.Thread(target=receive, daemon=True).start()
        while isinstance(answer := answers.get(), bytes):
            yield answer
        if answer is not None:
            context.abort(answer.code(), answer.details())


def until_gone(requests: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from requests
    except Exception:  # all that gRPC says is that there will be no more
        return


class Handler:
    """Handles any call; gRPC uses it as a grpc.GenericRpcHandler."""

    def __init__(self, wire: EmulatorWire) -> None:
        self.wire = wire

    def service(self, call: Any) -> Any:
        grpc, wire, method = self.wire.grpc, self.wire, call.method
        if method.endswith("/StreamingPull"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: wire.stream(method, requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: wire.unary(method, request, context))
