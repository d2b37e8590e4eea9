"""Hostile peers: a socket on loopback, and a thread per connection that runs one of the named modes.

A mode is a function that gets a `Session` and talks until it has nothing more to say or the other side has had enough.
Everything is bounded: a peer ends with `close()`, and sends no more than `MOST` bytes over a connection.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

MOST = 4 << 30
PIECE = 1 << 16


class Enough(Exception):
    """The peer is closed, or has sent all it may."""


class Session:
    """One connection."""

    def __init__(self, peer: Peer, connection: socket.socket) -> None:
        self.peer = peer
        self.connection = connection
        self.random = random.Random(peer.seed)
        self.sent = 0
        self._input = b""

    def send(self, data: bytes) -> None:
        if self.peer.closed.is_set() or self.sent > MOST:
            raise Enough
        for at in range(0, len(data), PIECE):  # the time limit of the socket is for each of them
            piece = data[at : at + PIECE]
            self.connection.sendall(piece)
            self.sent += len(piece)
            self.peer.sent += len(piece)

    def flood(self, data: bytes) -> None:
        """Sends the same bytes for ever, in large pieces."""
        piece = data * max(1, PIECE // len(data))
        while True:
            self.send(piece)

    def drip(self, data: bytes, pause: float = 0.02) -> None:
        """Sends the data byte by byte."""
        for i in range(len(data)):
            self.send(data[i : i + 1])
            self.rest(pause)

    def rest(self, seconds: float) -> None:
        if self.peer.closed.wait(seconds):
            raise Enough

    def stay(self) -> None:
        """Sends nothing until the other side closes the connection."""
        while True:
            with suppress(TimeoutError):
                if not self.connection.recv(PIECE):
                    raise Enough
            self.rest(0)

    def receive(self, size: int) -> bytes:
        while len(self._input) < size:
            self._more()
        data, self._input = self._input[:size], self._input[size:]
        return data

    def receive_until(self, end: bytes) -> bytes:
        while end not in self._input:
            self._more()
        data, _, self._input = self._input.partition(end)
        return data + end

    def _more(self) -> None:
        while True:
            if self.peer.closed.is_set():
                raise Enough
            with suppress(TimeoutError):
                data = self.connection.recv(PIECE)
                if not data:
                    raise Enough
                self._input += data
                return


Mode = Callable[[Session], None]


class Peer:
    """Listens on 127.0.0.1 and runs `mode` on each connection."""

    def __init__(self, mode: Mode, *, seed: int = 1, tls: ssl.SSLContext | None = None) -> None:
        self.mode = mode
        self.seed = seed
        self.tls = tls
        self.connections = 0
        self.sent = 0
        self.closed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.2)
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        while not self.closed.is_set():
            with suppress(OSError):
                connection, _ = self.listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self.threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, Enough, ValueError):
            with connection:
                # Both a waiting peer and one that cannot send notice close().
                connection.settimeout(0.5)
                if self.tls is not None:
                    connection.settimeout(5)
                    connection = self.tls.wrap_socket(connection, server_side=True)
                    connection.settimeout(0.5)
                with connection:
                    self.mode(Session(self, connection))

    def close(self) -> None:
        self.closed.set()
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pick(modes: Mapping[str, Mode], chance: random.Random) -> str:
    return chance.choice(sorted(modes))
