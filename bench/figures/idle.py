"""Activity of an idle system: one database, one destination, nothing to deliver, for a minute.

The minute begins when the last event is delivered, while the relay still looks for more at short
intervals. Wake-ups are voluntary context switches of launcher, keeper and relay.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from report import Figure, Goal
from workload import Bench, payload, wait_until

PRELOAD = ["pg_stat_statements"]
SETTINGS = {
    "pg_stat_statements.track": "all",
}


@dataclass
class Counters:
    wakeups: dict[str, int]
    statements: int
    transactions: int


def read_counters(observer: psycopg.Connection) -> Counters:
    wakeups = {}
    for process, kind in observer.execute(
        "SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type LIKE 'pg_outbox%'"
    ):
        status = Path(f"/proc/{process}/status").read_text()
        wakeups[kind] = int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    statements = observer.execute(
        "SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s "
        "JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = 'bench'"
    ).fetchone()[0]
    transactions = observer.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'"
    ).fetchone()[0]
    return Counters(wakeups, int(statements), transactions)


def measure(bench: Bench) -> Figure:
    seconds = 15 if bench.quick else 60
    with bench.cluster.connect("postgres") as observer:
        observer.execute("CREATE EXTENSION pg_stat_statements")
        with bench.destination("null:"):
            bench.wait_until_idle()
            bench.sql.execute("SELECT outbox.enqueue('account', 'a1', 'AccountChanged', %s)", [payload()])
            wait_until(lambda: bench.delivered() == 1, 10, "the event is delivered")
            time.sleep(2)  # until the cursor is saved and all statistics are written
            before = read_counters(observer)
            time.sleep(seconds)
            after = read_counters(observer)

    figure = Figure("idle", f"An idle destination for {seconds} s")
    counts = {kind: after.wakeups[kind] - before.wakeups[kind] for kind in after.wakeups}
    figure.add("wake-ups of all workers", sum(counts.values()), "wake-ups", Goal(9, 0, less_is_better=True))
    for kind, count in counts.items():
        figure.add(f"of the {kind}", count, "wake-ups")
    figure.add("statements", after.statements - before.statements, "", Goal(0, 0, less_is_better=True))
    figure.add("transactions, of looking into the log", after.transactions - before.transactions, "")
    return figure
