"""Rate at which the log is read and settled: a backlog to a destination that confirms at once.

The destination is made when the events wait. Compared with the relay of the usual outbox table and a
consumer of PgQ, both in C++, which publish nowhere either. The outbox table's relay is stopped after
some seconds; it would not see the end of the backlog.
"""

from drain import Drain, drain
from figures.enqueue import PEERS
from report import Figure, Goal
from workload import Bench, payload

GOAL = Goal(300_000, 1_000_000)
CHUNK = 10_000  # events between two ticks of PgQ
KIND_BACKLOG = 10_000


def drain_log(bench: Bench, events: int, per: int) -> Drain:
    bench.clear_log()
    bench.fill(events, per)
    return drain(bench, events, "null:", 300)


def fill_outbox_table(bench: Bench, events: int) -> None:
    bench.sql.execute("TRUNCATE app_outbox")
    bench.sql.execute(
        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, "
        "occurred_at) SELECT gen_random_uuid(), 'account', 'a' || i %% 10000, 'AccountChanged', i, "
        "%s::text::bytea, clock_timestamp() FROM generate_series(1, %s) AS i",
        [payload(), events],
    )
    bench.sql.execute("VACUUM ANALYZE app_outbox")


def drain_outbox_table(bench: Bench, events: int, mark: str, seconds: float) -> float:
    fill_outbox_table(bench, events)
    result = bench.program("seed_relay", bench.cluster.conninfo(), mark, str(seconds))
    return result["events"] / result["seconds"]


def drain_pgq(bench: Bench, events: int) -> float:
    bench.sql.execute("SELECT pgq.register_consumer('bench', 'bench')")
    for _ in range(events // CHUNK):
        bench.sql.execute(
            "SELECT count(pgq.insert_event('bench', 'AccountChanged', %s)) FROM generate_series(1, %s)",
            [payload(), CHUNK],
        )
        bench.sql.execute("SELECT pgq.force_tick('bench'), pgq.ticker('bench')")
    result = bench.program("pgq_consumer", bench.cluster.conninfo(), "bench", "bench")
    if result["events"] != events:
        raise RuntimeError(f"PgQ delivered {result['events']} of {events} events")
    bench.sql.execute("SELECT pgq.unregister_consumer('bench', 'bench')")
    return result["events"] / result["seconds"]


def measure(bench: Bench) -> Figure:
    rounds = 3
    events = 200_000 if bench.quick else 1_000_000
    seconds = 2 if bench.quick else 5
    bench.sql.execute(PEERS)
    bench.touch_memory()

    hundreds: list[Drain] = []
    singles: list[Drain] = []
    peers: dict[str, list[float]] = {}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        hundreds.append(bench.undisturbed(lambda: drain_log(bench, events, 100)))
        singles.append(bench.undisturbed(lambda: drain_log(bench, events, 1)))
        bench.clear_log()
        for label, run in {
            "PgQ consumer, batches of 10,000": lambda: drain_pgq(bench, events),
            "outbox table, marked per row": lambda: drain_outbox_table(bench, events, "row", seconds),
            "outbox table, marked per batch": lambda: drain_outbox_table(bench, events, "batch", seconds),
            "outbox table, per row, 10 k backlog": lambda: drain_outbox_table(bench, KIND_BACKLOG, "row", seconds),
            "outbox table, per batch, 10 k backlog": lambda: drain_outbox_table(bench, KIND_BACKLOG, "batch", seconds),
        }.items():
            peers.setdefault(label, []).append(bench.undisturbed(run))
        bench.say(
            f"round {turn + 1} of {rounds}: {hundreds[-1].rate:,.0f}/s by hundreds, "
            f"{singles[-1].rate:,.0f}/s one by one"
        )

    figure = Figure("drain_null", f"Drain of {events:,} events to null:", logarithmic=True)
    figure.add("committed 100 at a time", [run.rate for run in hundreds], "events/s", GOAL)
    figure.add("committed one by one", [run.rate for run in singles], "events/s", GOAL)
    figure.add("100 at a time, from CREATE SERVER on", [run.overall for run in hundreds], "events/s")
    figure.add("one by one, from CREATE SERVER on", [run.overall for run in singles], "events/s")
    for label, rates in peers.items():
        figure.add(label, rates, "events/s")
    figure.add("CREATE SERVER to first delivery", [run.start_up for run in hundreds + singles], "s")
    figure.notes = ["512-byte events; rates are from the first delivery to the last", bench.disturbances()]
    return figure
