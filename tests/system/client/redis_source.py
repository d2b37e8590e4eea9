"""The Redis source under test (tests/programs/redis_source.cpp), and a stream with a group that it reads."""

from __future__ import annotations

import itertools
import subprocess
import tempfile

from cluster import Installation
from sinks.fault_proxy import RedisProxy
from sinks.redis_server import RedisServer
from waiting import wait_until

from .nats_source import NatsSource

numbers = itertools.count(1)


class Stream:
    """A stream of the test's own with a group, behind a proxy, and redis-py beside it."""

    def __init__(self, server: RedisServer, *, group: str | None = "g") -> None:
        self.server = server
        self.proxy = RedisProxy(server.port)
        self.client = server.client(decode_responses=True)
        self.name = f"s{next(numbers)}"
        self.group = "g"
        if group:
            self.client.xgroup_create(self.name, group, "0", mkstream=True)

    def send(self, *bodies: str, key: str = "", **fields: str) -> list[str]:
        more = {"ordering_key": key} if key else {}
        return [self.client.xadd(self.name, {**fields, **more, "payload": body}) for body in bodies]

    def pending(self) -> dict[str, int]:
        """Returns the number of pending entries of each consumer that has some."""
        summary = self.client.xpending(self.name, self.group)
        return {one["name"]: one["pending"] for one in summary["consumers"]}

    def deliveries(self) -> list[int]:
        """Returns how many times each pending entry was delivered."""
        return [one["times_delivered"] for one in self.client.xpending_range(self.name, self.group, "-", "+", 1000)]

    def wait_settled(self) -> None:
        """Waits until all entries of the stream are acknowledged."""

        def left() -> int:
            (group,) = self.client.xinfo_groups(self.name)
            behind = self.client.xrange(self.name, f"({group['last-delivered-id']}", "+", 1)
            return group["pending"] + len(behind)

        wait_until(left, lambda count: count == 0, what=f"{self.name} to be settled", ignoring=(Exception,))

    def close(self) -> None:
        self.proxy.close()


class RedisSource(NatsSource):
    def __init__(self, installation: Installation, stream: Stream, options: dict[str, object]) -> None:
        defaults = {
            "servers": f"127.0.0.1:{stream.proxy.port}", "streams": stream.name, "group": stream.group, "consumer": "c",
            "retry_base": 1, "retry_max": 20,
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in {**defaults, **options}.items()]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(installation.programs / "redis_source"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def wait_logged(self, text: str) -> None:
        wait_until(self.log, lambda log: text in log, what=f'"{text}" in the log')
