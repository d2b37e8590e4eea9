"""Effect of a hanging destination on another one: the same drain with and without it.

The hanging one accepts connections and never answers, with its limit of events in flight.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from drain import Drain, drain
from report import Figure, Goal
from workload import Bench, wait_until


@contextmanager
def hanging(bench: Bench) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with bench.destination(url, called="hanging", request_timeout="1h"):
            wait_until(lambda: hangs(bench), 30, "requests hang")
            yield
            if not hangs(bench):
                raise RuntimeError(f"the other destination did not hang: {bench.status()}")


def hangs(bench: Bench) -> bool:
    return bench.sql.execute(
        "SELECT state = 'delivering' AND unsettled > 1000 AND delivered = 0 FROM outbox.workers() "
        "WHERE kind = 'relay' AND name = 'hanging'"
    ).fetchone() == (True,)


def alone(bench: Bench, events: int) -> Drain:
    bench.clear_log()
    bench.fill(events, 100)
    return drain(bench, events, "null:")


def beside_one_that_hangs(bench: Bench, events: int) -> Drain:
    bench.clear_log()
    bench.fill(events, 100)
    with hanging(bench):
        return drain(bench, events, "null:")


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, events = (3, 1_000_000) if bench.quick else (7, 3_000_000)
    bench.touch_memory()
    beside: list[float] = []
    ratios: list[float] = []
    alone_rates = [bench.undisturbed(lambda: alone(bench, events)).rate]
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        beside.append(bench.undisturbed(lambda: beside_one_that_hangs(bench, events)).rate)
        alone_rates.append(bench.undisturbed(lambda: alone(bench, events)).rate)
        ratios.append(beside[-1] / (sum(alone_rates[-2:]) / 2))
        bench.say(f"round {turn + 1} of {rounds}: {ratios[-1]:.2f}")

    figure = Figure("isolation", f"Drain of {events:,} events while another destination hangs, over alone")
    figure.add("beside one that hangs / alone", ratios, "ratio", Goal(0.95, 1.0))
    figure.add("beside one that hangs", beside, "events/s")
    figure.add("alone", alone_rates, "events/s")
    figure.notes = ["null: drains; an http destination waits for answers", bench.disturbances()]
    return figure
