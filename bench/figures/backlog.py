"""Cost of an event in a backlog of 10 million, against a backlog of 10 thousand.

The relay is held (SIGSTOP) while the backlog is made and let go then, so that both sizes are measured
in the same way and without the start of a worker. Small backlogs are measured many times before and
after each large one; each large one is compared with the median of those around it.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import Figure, Goal
from workload import Bench

SMALL = 10_000
SMALL_RUNS = 40
PER = 100


@dataclass
class Cost:
    """Nanoseconds per event."""

    elapsed: float
    processor: float
    first: float = 0  # seconds until the first of them was delivered


@contextmanager
def held(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def processor_time(process: int) -> int:
    """Returns nanoseconds; /proc/<pid>/stat counts ticks only."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


def cost_of_backlog(bench: Bench, events: int, **fill: int) -> Cost:
    bench.wait_until_idle()
    relay = bench.relay_pid()
    before = bench.delivered()
    with held(relay):
        bench.fill(events, PER, **fill)
        used = processor_time(relay)
        start = time.monotonic_ns()
    first = 0
    while (delivered := bench.delivered()) < before + events:  # a look takes 0.1 ms, the small backlog about 10 ms
        if first == 0 and delivered > before:
            first = time.monotonic_ns() - start
    elapsed = time.monotonic_ns() - start
    return Cost(elapsed / events, (processor_time(relay) - used) / events, first / 1e9)


def costs_of_backlog(bench: Bench, events: int, runs: int, **fill: int) -> list[Cost]:
    """Starts with an empty log, and does not count the first run: the log is a new file."""
    bench.wait_until_idle()
    bench.sql.execute("TRUNCATE outbox.event")
    cost_of_backlog(bench, SMALL, **fill)
    return [cost_of_backlog(bench, events, **fill) for _ in range(runs)]


def measure(bench: Bench) -> Figure:
    rounds = 3
    large = 1_000_000 if bench.quick else 10_000_000
    bench.touch_memory()

    costs: dict[str, list[Cost]] = {"small": [], "large": []}
    ratios: list[Cost] = []
    with bench.destination("null:"):
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            around = bench.undisturbed(lambda: costs_of_backlog(bench, SMALL, SMALL_RUNS))
            costs["large"] += bench.undisturbed(lambda: costs_of_backlog(bench, large, 1))
            around += bench.undisturbed(lambda: costs_of_backlog(bench, SMALL, SMALL_RUNS))
            costs["small"] += around
            ratios.append(
                Cost(
                    costs["large"][-1].elapsed / median(c.elapsed for c in around),
                    costs["large"][-1].processor / median(c.processor for c in around),
                )
            )
            bench.say(
                f"round {turn + 1} of {rounds}: {ratios[-1].elapsed:.2f}, processor time {ratios[-1].processor:.2f}"
            )

    figure = Figure("backlog", f"Cost of an event with a backlog of {large:,}, over that with {SMALL:,}")
    goal = Goal(1.1, 1.0, less_is_better=True)
    figure.add("time", [ratio.elapsed for ratio in ratios], "ratio", goal)
    figure.add("processor time of the relay", [ratio.processor for ratio in ratios], "ratio", goal)
    for size, label in {"large": f"{large:,}", "small": f"{SMALL:,}"}.items():
        figure.add(f"time, backlog of {label}", [c.elapsed for c in costs[size]], "ns/event")
        figure.add(f"processor time, backlog of {label}", [c.processor for c in costs[size]], "ns/event")
    figure.notes = [f"transactions of {PER} events; the relay runs already", bench.disturbances()]
    return figure
