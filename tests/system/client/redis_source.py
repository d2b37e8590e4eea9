"""A stream of Redis with a group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cluster import Installation
from database import Database
from sinks.fault_proxy import RedisProxy
from sinks.redis_server import RedisServer
from waiting import wait_until

from .source import Reader, Source

numbers = itertools.count(1)


class RedisSource(Source):
    kind = "redis"
    server = "durable_redis"
    another = {"consumer": "d", "prefetch": 10}
    most_held = 20  # handed out, and waiting
    comes_again_in_order = True
    said_when_cut = ("redis://", 2)
    missing = ({"streams": "nowhere"}, "NOGROUP")

    def __init__(self, installation: Installation, server: RedisServer, *, group: str | None = "g") -> None:
        super().__init__(installation)
        self.broker = server
        self.proxy = RedisProxy(server.port)
        self.client = server.client(decode_responses=True)
        self.name = self.topic = f"s{next(numbers)}"
        self.subscription = f"redis://{self.name}/g"
        self.places = itertools.count(1)
        if group:
            self.client.xgroup_create(self.name, group, "0", mkstream=True)

    def options(self) -> dict[str, object]:
        return {
            "servers": f"127.0.0.1:{self.proxy.port}", "streams": self.name, "group": "g", "consumer": "c",
            "min_idle": 3_600_000, "retry_base": 1, "retry_max": 20,
        }  # fmt: skip

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        more = {"ordering_key": key} if key else {}
        return [self.client.xadd(self.name, {**attributes, **more, "payload": body}) for body in bodies]

    def send_anonymous(self, *bodies: str) -> None:
        for body in bodies:
            self.client.xadd(self.name, {"payload": body}, id=f"{next(self.places)}-0")

    def recreate(self) -> None:
        self.client.delete(self.name)
        self.client.xgroup_create(self.name, "g", "0", mkstream=True)
        self.places = itertools.count(1)

    def pending(self) -> dict[str, int]:
        """Returns the number of pending entries of each consumer that has some."""
        summary = self.client.xpending(self.name, "g")
        return {one["name"]: one["pending"] for one in summary["consumers"]}

    def held(self) -> int:
        return sum(self.pending().values())

    def left(self) -> int:
        (group,) = self.client.xinfo_groups(self.name)
        return group["pending"] + len(self.client.xrange(self.name, f"({group['last-delivered-id']}", "+"))

    def add_destination(self, database: Database) -> None:
        database.add_destination("d", f"redis://127.0.0.1:{self.broker.port}", stream=self.name)

    def wrong_logins(self) -> list[tuple[Mapping[str, object], str]]:
        return [({"user": "alice", "password": "s3cret-of-bob"}, "WRONGPASS")]

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        return {"min_idle": seconds * 1000}

    def wait_extended(self, reader: Reader) -> None:
        """Another reader tries to take over entries meanwhile."""
        before = [self.calls(command) for command in ("xclaim", "xautoclaim")]

        def more() -> list[int]:
            return [self.calls(command) - n for command, n in zip(("xclaim", "xautoclaim"), before)]

        wait_until(more, lambda counts: min(counts) >= 4, what="several extensions and attempts to take over")

    def calls(self, command: str) -> int:
        return self.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def restart(self) -> list[str]:
        self.broker.kill()
        self.broker.start()
        wait_until(self.client.ping, what="the client beside it", ignoring=(Exception,))
        return []

    def close(self) -> None:
        super().close()
        self.proxy.close()
