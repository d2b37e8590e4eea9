"""Cost of the check that an event is new, against an INSERT of its id into a plain table.

Both are one statement in a transaction of its own, which waits for the disk.
"""

from report import Figure, Goal
from workload import Bench

SESSIONS = 4
BARE = "INSERT INTO seen (event_id) VALUES ($1) ON CONFLICT DO NOTHING"
CHECK = "SELECT inbox.begin_event('catalog', $1)"


def setup(bench: Bench) -> None:
    bench.sql.execute("CREATE EXTENSION pg_inbox")
    bench.sql.execute("CREATE TABLE seen (event_id uuid PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now())")


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 3) if bench.quick else (7, 5)
    setup(bench)
    bench.touch_memory()

    def rate(statement: str, per_transaction: int) -> float:
        result = bench.program("checker", bench.cluster.conninfo(), statement, str(SESSIONS), str(seconds),
                               str(per_transaction))
        return result["statements"] / result["seconds"]

    rows = {}
    for per_transaction in (1, 100):
        rate(BARE, per_transaction)
        ratios, bare, check = [], [], []
        for turn in range(rounds):
            bench.sql.execute("TRUNCATE seen, inbox.processed")
            bench.sql.execute("CHECKPOINT")
            pair = [BARE, CHECK] if turn % 2 else [CHECK, BARE]
            rates = {statement: bench.undisturbed(lambda: rate(statement, per_transaction)) for statement in pair}
            bare.append(rates[BARE])
            check.append(rates[CHECK])
            ratios.append(rates[CHECK] / rates[BARE])
            bench.say(f"{per_transaction} a transaction, round {turn + 1} of {rounds}: {ratios[-1]:.2f}")
        rows[per_transaction] = (ratios, bare, check)

    figure = Figure("inbox_check", "Asking the inbox about an event, as a share of a bare insert of its id")
    figure.add("check / insert", rows[1][0], "of insert", Goal(0.9, 0.95))
    figure.add("100 a transaction, check / insert", rows[100][0], "of insert")
    for per_transaction, (_, bare, check) in rows.items():
        figure.add(f"check, {per_transaction} a transaction", check, "events/s")
        figure.add(f"insert, {per_transaction} a transaction", bare, "events/s")
    figure.notes = [f"{SESSIONS} sessions; a transaction waits for the disk", bench.disturbances()]
    return figure
