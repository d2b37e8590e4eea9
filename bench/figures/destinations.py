"""Processor time of many relays that read one log, over that of one relay times their number.

All destinations are `null:` and select all events. A backlog waits while they are paused; a stream comes
while all are idle.
"""

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from figures.backlog import processor_time
from report import Figure, Goal
from workload import Bench, payload, wait_until

GOAL = Goal(0.6, 0.4, less_is_better=True)
MANY = 16
STREAM = 1000  # transactions a second, one event each


@dataclass
class Work:
    """Work of all relays together."""

    processor: float  # microseconds an event and destination
    rate: float  # events a second and destination


def relays(bench: Bench) -> list[tuple[int, int, str]]:
    return bench.sql.execute("SELECT pid, delivered, state FROM outbox.workers() WHERE kind = 'relay'").fetchall()


@contextmanager
def destinations(bench: Bench, count: int):
    with ExitStack() as stack:
        for i in range(count):
            stack.enter_context(bench.destination("null:", called=f"sink{i}"))
        wait_for(bench, "idle", count)
        yield


def wait_for(bench: Bench, state: str, count: int) -> None:
    wait_until(lambda: [relay[2] for relay in relays(bench)] == [state] * count, 30, f"all relays are {state}")


def deliver(bench: Bench, count: int, events: int, send) -> Work:
    before = relays(bench)
    used = sum(processor_time(pid) for pid, _, _ in before)
    wanted = sum(delivered for _, delivered, _ in before) + count * events
    start = time.monotonic()
    send()
    wait_until(
        lambda: sum(delivered for _, delivered, _ in relays(bench)) >= wanted,
        120,
        "all events are delivered",
        pause=0.01,
    )
    elapsed = time.monotonic() - start
    used = sum(processor_time(pid) for pid, _, _ in before) - used
    return Work(used / events / count / 1e3, events / elapsed)


def backlog(bench: Bench, count: int, events: int) -> Work:
    bench.clear_log()
    with destinations(bench, count):
        bench.sql.execute("SELECT outbox.pause(srvname) FROM pg_foreign_server")
        wait_for(bench, "paused", count)
        bench.fill(events, 100)
        return deliver(
            bench, count, events, lambda: bench.sql.execute("SELECT outbox.resume(srvname) FROM pg_foreign_server")
        )


def stream(bench: Bench, count: int, events: int) -> Work:
    bench.clear_log()
    script = bench.cluster.root / "stream.sql"
    script.write_text(
        f"SELECT outbox.enqueue('account', 'a' || (random() * 10000)::int, 'AccountChanged', '{payload()}');\n"
    )
    with destinations(bench, count):
        return deliver(
            bench,
            count,
            events,
            lambda: bench.pgbench(["-t", str(events // 4), "-c", "4", "-R", str(STREAM), "-f", script]),
        )


def measure(bench: Bench) -> Figure:
    rounds, waiting, streamed = (3, 200_000, 4_000) if bench.quick else (7, 1_000_000, 20_000)
    bench.touch_memory()
    kinds = {"backlog": (backlog, waiting), "stream": (stream, streamed)}
    results: dict[tuple[str, int], list[Work]] = {}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for kind, (run, events) in kinds.items():
            for count in (1, 2, MANY):
                results.setdefault((kind, count), []).append(bench.undisturbed(lambda: run(bench, count, events)))
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + "; ".join(
                f"{kind} " + ", ".join(f"{results[kind, count][-1].processor:.2f}" for count in (1, 2, MANY)) + " µs"
                for kind in kinds
            )
        )

    figure = Figure("destinations", f"Processor time of {MANY} relays / {MANY} times that of one")
    for kind in kinds:
        for count in (MANY, 2):
            ratios = [many.processor / one.processor for many, one in zip(results[kind, count], results[kind, 1])]
            figure.add(f"{kind}, {count} destinations", ratios, "ratio", GOAL if count == MANY else None)
    for (kind, count), works in results.items():
        figure.add(f"{kind}, {count}: an event and destination", [work.processor for work in works], "µs")
    for count in (1, 2, MANY):
        figure.add(f"backlog, {count}: each", [work.rate for work in results["backlog", count]], "events/s")
    figure.notes = [
        f"backlog: {waiting:,} events of 512 bytes, 100 a transaction; stream: {STREAM:,} events/s, one a transaction",
        bench.disturbances(),
    ]
    return figure
