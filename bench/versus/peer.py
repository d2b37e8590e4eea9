"""A system that commits events or jobs with the data and hands them to a consumer.

All of them are compared in these figures: a statement that puts one event into a transaction, a backlog, and a
consumer that says how many events it has had. The consumer of a queue is a process, which prints the
number of each event as it gets it; ours delivers to `null:`, or to an HTTP receiver for latencies.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from figures.latency import SESSIONS
from workload import Bench, wait_until

RATE = 1000  # events per second, for latencies
FAIL_EVERY = 100  # attempts, of which the last fails
AT_ONCE = 0.98  # of a backlog: fewer than those whose first attempt succeeds

# 512 bytes, with the member that consumers look for.
PAYLOAD = '{"number": 1, "title": "' + "x" * 486 + '"}'

# The rest of the transaction of an application.
CHANGE = "UPDATE account SET version = version + 1 WHERE id = {id}::int"


@dataclass
class Consumer:
    """Delivers from now on, until the end of the block it was made in."""

    count: Callable[[], int]  # events delivered so far
    processes: Callable[[], list[int]]


@dataclass
class Peer:
    name: str
    settings: str  # the page of its own documentation that the settings come from
    call: str  # the statement of an event; {id} is the text of an account's number, {payload} a text
    bench: Bench
    notes: list[str] = field(default_factory=list)
    backlog: int = 100_000  # events of a drain, fewer for a peer that would take minutes

    def stage(self) -> None:
        """Installs what it needs beside the server; raises Unavailable."""

    def prepare(self) -> None:
        """Makes its objects in the database."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the processes that the peer needs during the comparison."""
        yield

    def change_and_call(self) -> str:
        """One statement that changes a row, too; $1 is the number of an account and $2 the payload."""
        call = self.call if self.call.startswith("WITH ") else f"WITH {self.call}"
        separator = ", " if self.call.startswith("WITH ") else " "
        return f"WITH change AS ({CHANGE}){separator}{call[len('WITH ') :]}".format(id="$1::text", payload="$2::text")

    def clear(self) -> None:
        """Empties it."""

    def fill(self, events: int) -> None:
        """Commits a backlog, 100 events a transaction, from two sessions."""
        statement = self.call.format(id="(random() * 9999)::int::text", payload=f"'{PAYLOAD}'")
        script = self.bench.cluster.root / "fill.sql"
        script.write_text("BEGIN;\n" + f"{statement};\n" * 100 + "COMMIT;\n")
        environment = os.environ | {"PGOPTIONS": "-c synchronous_commit=off"}
        self.bench.pgbench(["-t", str(events // 200), "-c", "2", "-j", "2", "-f", script], environment)
        self.bench.sql.execute("SELECT pg_logical_emit_message(true, 'bench', 'flush')")

    @contextmanager
    def deliver(self) -> Iterator[Consumer]:
        raise NotImplementedError

    def goodput(self, events: int) -> float:
        """Returns the rate of a backlog when one attempt in a hundred fails, over that without."""
        raise NotImplementedError

    @staticmethod
    def goodput_of(rate: Callable[[bool], float]) -> float:
        before, failing, after = rate(False), rate(True), rate(False)
        return failing / ((before + after) / 2)

    def most_of(self, events: int, delivery: AbstractContextManager[Consumer]) -> float:
        """Returns the rate of a backlog that waits when `delivery` begins, up to the events that wait for another attempt."""
        self.clear()
        self.fill(events)
        with delivery as consumer:
            return rate_of(consumer, int(AT_ONCE * events), 120)[0]

    def drain(self, events: int) -> tuple[float, float]:
        """Returns the rate of a backlog from its first event to its last, and the most memory."""
        self.clear()
        self.fill(events)
        with self.deliver() as consumer:
            return rate_of(consumer, events, 120)

    def latency(self, seconds: int) -> dict:
        """Returns what the program latency prints, at RATE events per second."""
        raise NotImplementedError

    def tables(self) -> str:
        """A condition on pg_class c, for the tables that events go through."""
        raise NotImplementedError


class Process:
    """A consumer that prints "ready", and the number of each event on a line of its own."""

    def __init__(self, command: list, environment: dict[str, str] | None = None) -> None:
        self.count = 0
        self.ready = threading.Event()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout.readline() == b"ready\n", "the consumer has ended"
        self.ready.set()
        while block := os.read(self.process.stdout.fileno(), 1 << 16):
            self.count += block.count(b"\n")

    def __enter__(self) -> "Process":
        wait_until(self.ready.is_set, 60, "the consumer is ready")
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()


class Queue(Peer):
    """A peer whose consumer is a process."""

    def command(self) -> list:
        raise NotImplementedError

    def environment(self) -> dict[str, str] | None:
        return None

    @contextmanager
    def deliver(self, failing: bool = False) -> Iterator[Consumer]:
        """With `failing` one attempt in a hundred fails, and is made again when the peer says so."""
        environment = self.environment()
        if failing:
            environment = (environment or os.environ) | {"FAIL_EVERY": str(FAIL_EVERY)}
        with Process(self.command(), environment) as process:
            yield Consumer(lambda: process.count, lambda: [process.process.pid])

    def goodput(self, events: int) -> float:
        return self.goodput_of(lambda failing: self.most_of(events, self.deliver(failing)))

    def latency(self, seconds: int) -> dict:
        self.clear()
        with subprocess.Popen(self.command(), stdout=subprocess.PIPE, env=self.environment()) as consumer:
            try:
                output = subprocess.check_output(
                    [
                        self.bench.programs / "latency_beside",
                        self.bench.cluster.conninfo(self.bench.database),
                        str(RATE),
                        str(seconds),
                        str(SESSIONS),
                        self.change_and_call(),
                    ],
                    stdin=consumer.stdout,
                    text=True,
                    timeout=seconds + 120,
                )
            finally:
                consumer.kill()
        return json.loads(output)


class LoopInCpp(Queue):
    """Its consumer is the program peer_consumer."""

    kind = ""  # the first argument

    def command(self) -> list:
        return [self.bench.programs / "peer_consumer", self.kind, self.bench.cluster.conninfo()]


def memory(processes: list[int]) -> float:
    """Returns MiB that belong to these processes alone, of files and shared memory not counted."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except FileNotFoundError:
            continue  # it has ended
        for line in lines:
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return total / 1024


def rate_of(consumer: Consumer, events: int, seconds: float) -> tuple[float, float]:
    """Returns events per second from the first to the last, and the most memory in MiB."""
    start, seen, most = time.monotonic(), [], 0.0
    while not seen or seen[-1][1] < events:
        time.sleep(0.02)
        now, count = time.monotonic(), consumer.count()
        if count > 0:
            seen.append((now, count))
            most = max(most, memory(consumer.processes()))
        if now - start > seconds:
            break
    if len(seen) < 2 or seen[-1][1] < events:
        raise RuntimeError(f"not {events} events within {seconds} s: {seen[-1:]}")
    # Between two looks at which events were left, so that it does not depend on how often we look.
    first, last = seen[0], seen[-2] if len(seen) > 2 else seen[-1]
    return (last[1] - first[1]) / (last[0] - first[0]), most
