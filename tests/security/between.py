"""A proxy between a client and a server, to do something between two statements of the client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Between:
    """Does `then` once, before the server gets the first message that has `text`."""

    def __init__(self, server_port: int, text: bytes, then: Callable[[], object]) -> None:
        self.text, self.then = text, then
        self.has_done = False
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for source, sink, look in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=(source, sink, look), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, look: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if look and self.text in data and not self.has_done:
                    self.has_done = True
                    self.then()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
