"""A server that accepts connections and never answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from cluster import Installation

# By module: a destination whose server is asked for a login, or for an answer, before it gets an event.
LOGINS: Mapping[str, str] = {
    "http": "http://127.0.0.1:{port}/",
    "kafka": "kafka://127.0.0.1:{port}",
    "mqtt": "mqtt://127.0.0.1:{port}",
    "nats": "nats://127.0.0.1:{port}",
    "postgresql": "postgresql://somebody@127.0.0.1:{port}/x",
    "rabbitmq": "amqp://127.0.0.1:{port}",
    "redis": "redis://127.0.0.1:{port}",
}


class SilentServer:
    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.port: int = listener.getsockname()[1]

    def url(self, installation: Installation, module: str) -> str:
        """Returns the place of a destination of LOGINS."""
        if not installation.has_module(f"pg_outbox_{module}"):
            pytest.skip(f"NOT TESTED: the module {module} is not built")
        return LOGINS[module].format(port=self.port)

    def accept(self) -> socket.socket:
        """Waits for a client, which is connected as long as the result exists."""
        connection, _ = self.listener.accept()
        connection.settimeout(180)
        return connection


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(180)
        yield SilentServer(listener)
