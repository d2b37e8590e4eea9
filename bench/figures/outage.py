"""Effect of 5 million events for a destination that is down on the rate of enqueues.

Three databases of one server take turns: in one the destination is down, in one it is healthy and keeps
up, and in one there is none and the log is empty. The last is what events cost with nobody around.
"""

import socket
from contextlib import ExitStack

from figures.enqueue import CLIENTS, ENQUEUE, Slice, Variant, run_clients
from report import Figure, Goal
from workload import Bench, wait_until

EVENT = Variant("event", ENQUEUE)


def database(bench: Bench, name: str) -> Bench:
    bench.sql.execute(f"CREATE DATABASE {name}")
    return Bench(bench.cluster, bench.programs, bench.quick, name)


def has_failed(down: Bench) -> bool:
    return down.status()["state"] == "backing off"


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds, backlog = (3, 3, 500_000) if bench.quick else (7, 5, 5_000_000)
    down, empty = database(bench, "down"), database(bench, "empty")
    bench.touch_memory()
    down.fill(backlog, 100)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        refused = probe.getsockname()[1]  # no process listens there any more

    def slice_of(where: Bench) -> Slice:
        if where is empty:
            empty.clear_log()
        return bench.undisturbed(lambda: run_clients(where, EVENT, seconds))

    runs: dict[str, list[Slice]] = {"down": [], "healthy": [], "empty": []}
    with ExitStack() as stack:
        stack.enter_context(down.destination(f"http://127.0.0.1:{refused}/"))
        stack.enter_context(bench.destination("null:"))
        wait_until(lambda: has_failed(down), 60, "the destination is found to be down")
        for where in (down, bench, empty):
            slice_of(where)
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            order = [("down", down), ("healthy", bench), ("empty", empty)]
            for _, where in order:
                run_clients(where, EVENT, 2)  # after a checkpoint the first change of a page costs more
            for name, where in order[turn % 3 :] + order[: turn % 3]:
                runs[name].append(slice_of(where))
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{name} {values[-1].rate:,.0f} tps" for name, values in runs.items())
            )
        if not has_failed(down):
            raise RuntimeError(f"the destination was not down all the time: {down.status()}")

    def ratios(other: str) -> list[float]:
        return [a.rate / b.rate for a, b in zip(runs["down"], runs[other])]

    figure = Figure("outage", f"Enqueueing with a backlog of {backlog:,} and the destination down")
    figure.add("down / healthy, relay draining to null:", ratios("healthy"), "ratio", Goal(0.97, 1.0))
    figure.add("down / empty log, no destination", ratios("empty"), "ratio", Goal(0.97, 1.0))
    figure.add(
        "the latter by processor time",
        [b.processor / a.processor for a, b in zip(runs["down"], runs["empty"])],
        "ratio",
    )
    for name, values in runs.items():
        figure.add(name, [value.rate for value in values], "tps")
    figure.notes = [
        f"{CLIENTS} clients, transactions that change a row and enqueue an event of 512 bytes, "
        f"{rounds} rounds of {seconds - 1} s slices; all in one server",
        bench.disturbances(),
    ]
    return figure
