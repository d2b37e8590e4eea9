"""A hostile destination, and limits on its effects."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import psycopg
from psycopg import sql

from database import Database
from processes import process_exists, status_of
from waiting import SECOND, Stopwatch, wait_until

MOST_MEMORY = 64 << 20
MOST_LOG_A_MINUTE = 1_000_000


def peak(pid: int) -> int:
    """Returns the peak memory of the process in bytes."""
    return int(status_of(f"/proc/{pid}")["VmHWM"].split()[0]) << 10


def seconds_to_end(pid: int) -> float:
    """Sends SIGTERM; returns the time until the process ends."""
    watch = Stopwatch()
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: process_exists(pid), lambda there: not there, what=f"process {pid} to end")
    return watch.seconds


@dataclass
class Damage:
    memory: int
    log: str
    log_seconds: float
    seconds_to_end: float
    error: str | None

    def assert_bearable(self, mode: str) -> None:
        assert self.memory < MOST_MEMORY, f"{mode}: {self.memory >> 20} MiB"
        assert self.seconds_to_end < SECOND, f"{mode}: {self.seconds_to_end:.2f} s to end"
        most = max(1.0, self.log_seconds / 60) * MOST_LOG_A_MINUTE
        assert len(self.log) < most, f"{mode}: {len(self.log)} bytes of log in {self.log_seconds:.1f} s"
        assert_harmless(self.log, mode)
        assert_harmless(self.error or "", mode)


def assert_harmless(text: str, mode: str) -> None:
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\ufffd"]
    assert not bad, f"{mode}: {bad[:5]!r} in {text[:2000]!r}"
    assert "\n2026-01-01" not in text, f"{mode}: forged lines"


class Target:
    """A database whose destinations are attacked one after the other."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, name: str, url: str, mapping: dict[str, str] | None = None, **options: str) -> int:
        """Adds a destination with the topic of its name; returns the pid of its relay."""
        options = {"topics": name, "request_timeout": "2s", "connect_timeout": "2s", **options}
        self.database.execute("BEGIN")
        self.database.add_destination(name, url, **options)
        if mapping:
            pairs = [sql.SQL("{} {}").format(sql.Identifier(k), sql.Literal(v)) for k, v in mapping.items()]
            self.database.execute(
                sql.SQL("CREATE USER MAPPING FOR CURRENT_USER SERVER {} OPTIONS ({})").format(
                    sql.Identifier(name), sql.SQL(", ").join(pairs)
                )
            )
        self.database.execute("COMMIT")
        return self.database.wait_for_worker("relay", name)

    def tried(self, name: str) -> bool:
        row = self.database.execute(
            "SELECT failures > 0 OR delivered > 0 FROM outbox.workers() WHERE kind = 'relay' AND name = %s", (name,)
        )
        return bool(row and row[0][0])

    def error(self, name: str) -> str | None:
        return self.database.value("SELECT last_error FROM outbox.status WHERE destination = %s", (name,))

    def suffer(self, name: str, url: str, mapping: dict[str, str] | None = None, **options: str) -> Damage:
        """Enqueues events until it has answered or failed; then ends its relay."""
        cluster = self.database.cluster
        log_before, watch = cluster.log_size(), Stopwatch()
        pid = self.create(name, url, mapping, **options)
        before = peak(pid)
        self.database.enqueue(name, 3, topic=name)
        wait_until(
            lambda: self.tried(name), what=f"an attempt to deliver to {name}",
            ignoring=(psycopg.OperationalError,),
        )  # fmt: skip
        memory = peak(pid) - before
        error = self.error(name)
        seconds = seconds_to_end(pid)
        self.database.execute(sql.SQL("DROP SERVER {} CASCADE").format(sql.Identifier(name)))
        return Damage(memory, cluster.log_since(log_before), watch.seconds, seconds, error)
