"""Debezium's embedded engine, which reads an outbox table, as a process of a figure.

`scripts/test.sh system` installs it into the build directory.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from figures.drain_http import free_port
from recorded import cpu_seconds
from workload import KEYS, Bench, Unavailable, payload, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent

# Debezium reads the WAL, over TCP.
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "port": str(free_port()),
    "wal_sender_timeout": "0",  # the engine sleeps while others are measured
}

FILL = """
CREATE PROCEDURE fill_table(events integer, per integer, payload text) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. events / per LOOP
        INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
        SELECT gen_random_uuid(), 'account', 'a' || (i * 7919 + n) % {keys}, 'AccountChanged', i,
               convert_to(payload, 'UTF8')
          FROM generate_series(1, per) AS n;
        COMMIT;
    END LOOP;
END $$;
"""


def installed(bench: Bench, name: str) -> Path:
    libraries = bench.programs.parent / "servers" / name
    if not libraries.exists():
        raise Unavailable(f"{libraries} is not there; scripts/test.sh system installs it")
    return libraries


def of_page(language: str) -> str:
    """The first block of the page in this language: the table, and the connector."""
    page = (REPOSITORY / "docs/from-debezium.md").read_text()
    return re.search(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE).group(1)


def create_outbox_table(bench: Bench) -> None:
    bench.sql.execute(of_page("sql"))
    bench.sql.execute(FILL.format(keys=KEYS))


@dataclass
class Engine:
    """The engine with the configuration of docs/from-debezium.md, run by a program of tests/debezium."""

    bench: Bench
    name: str
    program: str = "tests/debezium/ToNull.java"
    options: dict[str, str | None] = field(default_factory=dict)
    size: int = 200  # of payloads
    process: subprocess.Popen | None = None
    records: int = 0  # that it has written, or will have
    log: Path = Path()

    def properties(self) -> dict[str, str]:
        """Properties that only this program needs."""
        return {}

    def command(self) -> list:
        """Writes the configuration; returns the command."""
        libraries = installed(self.bench, "debezium")
        directory = self.bench.cluster.root / f"debezium-{self.name}"
        directory.mkdir()
        own = {
            "name": "bench",
            "database.hostname": "127.0.0.1",
            "database.port": SETTINGS["port"],
            "database.user": "postgres",
            "database.dbname": self.bench.database,
            "topic.prefix": self.name,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "1000",
            "heartbeat.interval.ms": "500",
            "topic.heartbeat.prefix": "heartbeat",
            "message.prefix.exclude.list": "heartbeat,bench",  # also what makes the relay's events durable
            "transforms.outbox.route.topic.replacement": self.name,
        }
        pairs = {**json.loads(of_page("json")), **own, **self.properties(), **self.options}
        configuration = directory / "properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in pairs.items() if value is not None))
        self.log = directory / "log"
        return [
            "java",
            "-Xmx1g",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.io.debezium.metrics.stats=error",  # thousands of lines
            "-cp",
            f"{libraries}/*",
            REPOSITORY / self.program,
            configuration,
        ]

    def __enter__(self) -> "Engine":
        command = self.command()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self.wait_until(self.reads, 60, "Debezium reads")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not self.reads(), 10, "the slot is free")
        self.bench.sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def wait_until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            wait_until(reached, seconds, what)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.log.read_text()[-5000:]}") from error

    def reads(self) -> bool:
        return self.bench.sql.execute("SELECT FROM pg_replication_slots WHERE active").rowcount > 0

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stops the process for the duration of the block, after it has read all of the WAL."""
        here = self.bench.sql.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        self.wait_until(
            lambda: (
                self.bench.sql.execute(
                    "SELECT FROM pg_replication_slots WHERE confirmed_flush_lsn >= %s", [here]
                ).rowcount
                > 0
            ),
            120,
            "Debezium has read the WAL",
        )
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def fill_table(self, events: int) -> None:
        """Commits rows in transactions of 100, in two sessions."""
        self.bench.sql.execute("TRUNCATE app_outbox")
        self.bench.sql.execute("CHECKPOINT")
        script = self.bench.cluster.root / "fill_table.sql"
        script.write_text(f"CALL fill_table({events // 2}, 100, '{payload(self.size)}');\n")
        environment = os.environ | {"PGOPTIONS": "-c synchronous_commit=off"}
        self.bench.pgbench(["-t", "1", "-c", "2", "-j", "2", "-f", script], environment)

    def more(self, events: int) -> int:
        """Returns the number of records that it has written when it has written this many more."""
        self.records += events
        return self.records

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)


class IntoNull(Engine):
    """Its records go nowhere. ToNull.java tells when it had how many of them."""

    def drain(self, events: int) -> tuple[float, float]:
        """Reads rows that wait for it; returns the rate, and its seconds of processor time."""
        with self.asleep():
            self.fill_table(events)
        used, before, target = self.cpu_seconds(), self.records, self.more(events)
        self.wait_until(lambda: self._told()[-1][1] >= target, 300, f"{events} rows are read")
        used = self.cpu_seconds() - used
        seen = [one for one in self._told() if one[1] > before]
        first, last = seen[0], seen[-1]
        if first[0] == last[0]:
            raise RuntimeError(f"{events} rows are too few: they came in one batch")
        return (last[1] - first[1]) / (last[0] - first[0]), used

    def _told(self) -> list[tuple[float, int]]:
        lines = [line.split() for line in self.log.read_text().splitlines() if line.startswith("read ")]
        return [(float(line[1]), int(line[2])) for line in lines if len(line) == 3] or [(0.0, 0)]
