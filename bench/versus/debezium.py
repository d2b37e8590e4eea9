"""Debezium's engine, which reads the WAL: the rows of an outbox table, or messages in the WAL itself."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import debezium
from versus.peer import Consumer, Process, rate_of
from versus.tables import Table
from workload import Unavailable, wait_until

# Without an outbox table and its transformation.
MESSAGES = {
    name: None
    for name in (
        "transforms",
        "transforms.outbox.type",
        "transforms.outbox.route.by.field",
        "transforms.outbox.route.topic.replacement",
        "transforms.outbox.table.field.event.key",
        "transforms.outbox.table.field.event.type",
        "transforms.outbox.table.fields.additional.placement",
        "message.prefix.exclude.list",
    )
} | {"message.prefix.include.list": "outbox"}


@dataclass
class Engine(Table):
    options: dict[str, str | None] = field(default_factory=dict)
    started: ClassVar[int] = 0  # engines, which have a directory each

    def stage(self) -> None:
        debezium.installed(self.bench, "debezium")

    def prepare(self) -> None:
        super().prepare()
        self.bench.sql.execute("DROP PUBLICATION IF EXISTS debezium")
        self.bench.sql.execute("CREATE PUBLICATION debezium FOR TABLE app_outbox WITH (publish = 'insert')")

    def clear(self) -> None:
        wait_until(
            lambda: self.bench.sql.execute("SELECT FROM pg_replication_slots WHERE active").rowcount == 0,
            30,
            "the slot is free",
        )
        self.bench.sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        super().clear()

    def command(self) -> list:
        Engine.started += 1
        return debezium.Engine(
            self.bench, f"versus{Engine.started}", "bench/versus/ToNumbers.java", self.options
        ).command()

    def drain(self, events: int) -> tuple[float, float]:
        """The engine is warm, and sleeps while the backlog is made."""
        self.clear()
        with Process(self.command()) as process:
            pid = process.process.pid
            consumer = Consumer(lambda: process.count, lambda: [pid])
            self.fill(events)
            wait_until(lambda: process.count >= events, 120, "Debezium has read the events that warm it up")
            os.kill(pid, signal.SIGSTOP)
            try:
                self.fill(events)
            finally:
                os.kill(pid, signal.SIGCONT)
            rest = Consumer(lambda: consumer.count() - events, consumer.processes)
            return rate_of(rest, events, 120)

    @contextmanager
    def deliver(self) -> Iterator[Consumer]:
        self.clear()
        with super().deliver() as consumer:
            yield consumer

    def goodput(self, events: int) -> float:
        raise Unavailable(
            "Debezium's engine does not try an event again: that is the program's, and all behind it waits"
        )
