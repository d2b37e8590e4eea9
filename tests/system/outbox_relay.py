"""Processes of outbox-relay, and the wire between one and its database, which a test can cut."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cluster import REPOSITORY, Cluster, make_directory
from passwords import assert_no_passwords
from processes import state_of, stop_process
from waiting import wait_until

PROGRAM = Path(os.environ.get("OUTBOX_BUILD", REPOSITORY / "build")).resolve() / "relay/outbox-relay"
CRASHES = ("AddressSanitizer", "runtime error:", "terminate called", "stack smashing", "double free")


class Wire:
    """Passes bytes between a relay and the server. Cut, it keeps connections open and passes nothing."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.whole = threading.Event()
        self.whole.set()
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.whole.clear()

    def mend(self) -> None:
        self.whole.set()

    def close(self) -> None:
        self.mend()
        for end in (self.listener, *self.sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                if self.listener.fileno() < 0:
                    return
                with suppress(OSError, UnboundLocalError):
                    client.close()
                continue
            self.sockets += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.whole.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class OutboxRelay:
    """One process. `options` are lines of relay.toml, those of the database are in `of_database`."""

    def __init__(
        self, cluster: Cluster, *databases: str, name: str = "relay", options: str = "", of_database: str = "",
        wire: Wire | None = None, port: int | None = None, arguments: tuple[str, ...] = (), user: str = "postgres",
        trusted: bool = True, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.environment = environment or {}  # besides those of this process
        self.directory = make_directory("relay")
        self.arguments = arguments
        port = port or (wire.port if wire else cluster.port)
        lines = [f'name = "{name}"', options]
        for database in databases:
            lines += [
                f"[databases.{database}]",
                f'url = "postgresql://{user}@127.0.0.1:{port}/{database}"',
                f"trusted = {str(trusted).lower()}",
                of_database,
            ]
        self.configuration = self.directory / "relay.toml"
        self.configuration.write_text("\n".join(lines) + "\n")
        self.log = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.expects_crash = False

    def start(self) -> OutboxRelay:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(PROGRAM), "--config", str(self.configuration), *self.arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment},
            )  # fmt: skip
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, (
            f"{self.name} has ended by itself ({self.process.returncode}):\n{self.text()[-5000:]}"
        )
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        stop_process(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        wait_until(lambda: state_of(self.pid), lambda state: state != "T", what="the relay to go on")

    def end(self, timeout: float = 180) -> int:
        """Asks it to end, and returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout)

    def wait(self, timeout: float = 180) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def close(self) -> None:
        """Fails if it has crashed."""
        code = None
        if self.process is not None:
            code = self.process.poll()
            self.process.kill()
            self.process.wait()
        text = self.text()
        print(f"---- log of {self.name}, {self.configuration.parent}\n{text}")  # shown if the test fails
        shutil.rmtree(self.directory, ignore_errors=True)
        crashed = (code is not None and code < 0 and code != -signal.SIGKILL) or any(mark in text for mark in CRASHES)
        assert not crashed, f"{self.name} has crashed ({code}):\n{text[-5000:]}"
        assert_no_passwords(text, self.name)
