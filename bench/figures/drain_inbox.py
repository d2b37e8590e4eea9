"""Rate of events into the inbox of another database, against a bare loader of the same rows.

The loader has read the rows into memory and made its batches before the clock runs. It inserts into the
same table, in batches of the same size, one transaction each, with as many of them under way.
"""

from drain import Drain, drain
from report import Figure, Goal
from workload import Bench

BATCH = 1000  # the postgresql sink's own default; checked below
UNDER_WAY = 4


def setup(bench: Bench) -> None:
    bench.sql.execute("CREATE DATABASE target")
    with bench.cluster.connect("target") as target:
        target.execute("CREATE EXTENSION pg_inbox")
        target.execute("SELECT inbox_internal.consumer_id('loader')")
        target.execute("CREATE ROLE sender LOGIN")
        target.execute("SELECT inbox.grant_send('sender')")


def empty_inbox(bench: Bench) -> int:
    """Returns the number of messages."""
    with bench.cluster.connect("target") as target:
        count = target.execute("SELECT count(*) FROM inbox.message").fetchone()[0]
        target.execute("TRUNCATE inbox.message")
        return count


def largest_batch(bench: Bench) -> int:
    """Returns the number of rows per transaction among the messages in the inbox."""
    with bench.cluster.connect("target") as target:
        return target.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM inbox.message GROUP BY xmin) AS batches"
        ).fetchone()[0]


def relay(bench: Bench, events: int) -> Drain:
    empty_inbox(bench)
    run = drain(bench, events, "postgresql://sender@/target", pause=0.05)
    if largest_batch(bench) != BATCH:
        raise RuntimeError(f"the sink's batches are {largest_batch(bench)} rows, the loader's {BATCH}")
    if (arrived := empty_inbox(bench)) != events:
        raise RuntimeError(f"{arrived} of {events} events are in the inbox")
    return run


def loader(bench: Bench, events: int) -> float:
    empty_inbox(bench)
    result = bench.program(
        "loader", bench.cluster.conninfo(), bench.cluster.conninfo("target"), str(BATCH), str(UNDER_WAY)
    )
    if (arrived := empty_inbox(bench)) != events:
        raise RuntimeError(f"{arrived} of {events} rows are in the inbox")
    return result["events"] / result["seconds"]


def measure(bench: Bench) -> Figure:
    bench.need_sink("postgresql")
    rounds, events = (3, 50_000) if bench.quick else (7, 200_000)
    setup(bench)
    bench.touch_memory()
    runs: list[Drain] = []
    loads: list[float] = []
    ratios: list[float] = []
    bench.clear_log()
    bench.fill(events, 100)
    before = bench.undisturbed(lambda: loader(bench, events))
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        bench.clear_log()
        bench.fill(events, 100)
        runs.append(bench.undisturbed(lambda: relay(bench, events)))
        loads.append(bench.undisturbed(lambda: loader(bench, events)))
        ratios.append(runs[-1].rate / ((before + loads[-1]) / 2))
        before = loads[-1]
        bench.say(f"round {turn + 1} of {rounds}: {ratios[-1]:.2f}")

    figure = Figure("drain_inbox", "Drain to another database's inbox, as a share of a bare loader")
    figure.add("relay / loader", ratios, "of loader", Goal(0.7, 0.9))
    figure.add("relay", [run.rate for run in runs], "events/s")
    figure.add("loader", loads, "events/s")
    figure.notes = [
        f"batches of {BATCH} rows, a transaction each, {UNDER_WAY} under way; "
        "512-byte payload; both databases on one server",
        bench.disturbances(),
    ]
    return figure
