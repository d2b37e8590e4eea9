"""Redis servers of the tests' own: one, a primary with replicas, a cluster, Sentinels.

Each is a process on a free port of 127.0.0.1 with a directory of its own, and ends with the test process.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import free_port
from waiting import wait_until

from .servers import Ended, NotInstalled, end

# Limit of an argument, and so of a payload; the default is 512 MiB.
LONGEST_ARGUMENT = 1 << 20


class RedisServer:
    """`settings` are those of redis.conf; a list has a line for each value. With `sentinel` it is one, which
    has these settings.
    """

    def __init__(self, *, sentinel: list[str] | None = None, **settings: str | list[str]) -> None:
        if shutil.which("redis-server") is None:
            raise NotInstalled("there is no redis-server")
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-redis-"))
        self.port = free_port()
        self.sentinel = sentinel is not None
        self.log = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        ours: dict[str, str | list[str]] = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory)}
        if not self.sentinel:
            ours |= {"save": '""', "repl-diskless-sync-delay": "0"}
        lines = [f"sentinel {line}" for line in sentinel or []]
        for name, value in {**ours, **settings}.items():
            for one in value if isinstance(value, list) else [value]:
                lines.append(f"{name.replace('_', '-')} {one}")
        self.configuration = self.directory / "redis.conf"
        self.configuration.write_text("\n".join(lines) + "\n")
        self._connected: list[Any] = []

    def client(self, **options: Any) -> Any:
        """An independent client, which keeps bytes."""
        import redis

        client = redis.Redis(host="127.0.0.1", port=self.port, **options)
        self._connected.append(client)
        return client

    def start(self) -> None:
        with self.log.open("ab") as output:
            mode = ["--sentinel"] if self.sentinel else []
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "redis-server", str(self.configuration), *mode],
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self.answers, timeout=180, what="Redis to answer")

    def answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Ended(f"Redis has ended:\n{self.log.read_text(errors='replace')}")
        return "Ready to accept connections" in (said := self.log.read_text(errors="replace")) or (
            self.sentinel and "+monitor" in said
        )

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)
        self.log.write_text("")

    def remove(self) -> None:
        for client in self._connected:
            client.close()
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def redis(*, sentinel: list[str] | None = None, **settings: str | list[str]) -> Iterator[RedisServer]:
    server = RedisServer(sentinel=sentinel, **settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def shared_redis() -> Iterator[RedisServer]:
    """The one that most tests use."""
    with redis(proto_max_bulk_len=str(LONGEST_ARGUMENT)) as server:
        yield server
