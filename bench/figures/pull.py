"""Rate of four relays outside the server, against the relay of the usual outbox table.

Both find the same number of events waiting and publish nowhere. The latter is stopped after some
seconds; it would not see the end of the backlog. There is one of it: several claim the same rows from
each other, for its claim does not look at whether somebody has them.
"""

from figures.drain_null import drain_outbox_table
from figures.enqueue import PEERS
from report import Figure
from workload import Bench

FETCHERS = 4


def fetchers(bench: Bench, events: int) -> float:
    bench.clear_log()
    bench.fill(events, 1)
    with bench.destination("pull:"):
        result = bench.program("fetcher", bench.cluster.conninfo(), "sink", str(FETCHERS), str(events))
    if result["events"] != events:
        raise RuntimeError(f"{result['events']} of {events} events were fetched")
    return result["events"] / result["seconds"]


def measure(bench: Bench) -> Figure:
    rounds, events, seconds = (3, 50_000, 2) if bench.quick else (5, 200_000, 5)
    bench.sql.execute(PEERS)
    bench.touch_memory()
    rates: dict[str, list[float]] = {}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for label, run in {
            f"fetch and ack, {FETCHERS} fetchers": lambda: fetchers(bench, events),
            "outbox table, marked per row": lambda: drain_outbox_table(bench, events, "row", seconds),
            "outbox table, marked per batch": lambda: drain_outbox_table(bench, events, "batch", seconds),
        }.items():
            rates.setdefault(label, []).append(bench.undisturbed(run))
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{label} {values[-1]:,.0f}/s" for label, values in rates.items())
        )

    figure = Figure("pull", f"Relays outside the server, a backlog of {events:,} events", logarithmic=True)
    for label, values in rates.items():
        figure.add(label, values, "events/s")
    figure.notes = [
        "events committed one by one; 100 events a fetch, 200 a claim of the outbox table",
        bench.disturbances(),
    ]
    return figure
