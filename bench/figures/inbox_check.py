"""Cost of the check that an event is new, against an INSERT of its id into a plain table.

A transaction, which waits for the disk, has one id or a hundred: as many statements sent at once, or one
statement with an array of the ids.
"""

from report import Figure, Goal
from workload import Bench

SESSIONS = 4
MANY = 100
BARE = "INSERT INTO seen (event_id) VALUES ($1) ON CONFLICT DO NOTHING"
BARE_ARRAY = "INSERT INTO seen (event_id) SELECT id FROM unnest($1::uuid[]) AS id ON CONFLICT DO NOTHING"
CHECK = "SELECT inbox.begin_event('catalog', $1)"
CHECK_ARRAY = "SELECT inbox.begin_events('catalog', $1)"


def setup(bench: Bench) -> None:
    bench.sql.execute("CREATE EXTENSION pg_inbox")
    bench.sql.execute("CREATE TABLE seen (event_id uuid PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now())")


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 3) if bench.quick else (7, 5)
    setup(bench)
    bench.touch_memory()

    def rate(statement: str, per_transaction: int) -> float:
        result = bench.program(
            "checker", bench.cluster.conninfo(), statement, str(SESSIONS), str(seconds), str(per_transaction)
        )
        return result["statements"] / result["seconds"]

    def compare(per_transaction: int, statements: list[str]) -> dict[str, list[float]]:
        """Returns the rates of ids of these statements, which take turns."""
        rates: dict[str, list[float]] = {statement: [] for statement in statements}
        rate(statements[0], per_transaction)
        for turn in range(rounds):
            bench.sql.execute("TRUNCATE seen, inbox.processed")
            bench.sql.execute("CHECKPOINT")
            for statement in statements if turn % 2 else reversed(statements):
                rates[statement].append(bench.undisturbed(lambda: rate(statement, per_transaction)))
            bench.say(f"{per_transaction} a transaction, round {turn + 1} of {rounds}")
        return rates

    def shares(rates: dict[str, list[float]], of: str, reference: str) -> list[float]:
        return [a / b for a, b in zip(rates[of], rates[reference])]

    one = compare(1, [BARE, CHECK])
    many = compare(MANY, [BARE, BARE_ARRAY, CHECK, CHECK_ARRAY])
    figure = Figure("inbox_check", "Asking the inbox about an event, as a share of a bare insert of its id")
    figure.add("begin_event / insert", shares(one, CHECK, BARE), "of insert", Goal(0.9, 0.95))
    figure.add(f"{MANY} a transaction, begin_event / insert", shares(many, CHECK, BARE), "of insert")
    figure.add(f"begin_events({MANY}) / {MANY} inserts", shares(many, CHECK_ARRAY, BARE), "of insert", Goal(0.7, 0.85))
    figure.add(
        f"begin_events({MANY}) / one insert of an array",
        shares(many, CHECK_ARRAY, BARE_ARRAY),
        "of insert",
        Goal(0.7, 0.85),
    )
    for per_transaction, rates in ((1, one), (MANY, many)):
        for statement, samples in rates.items():
            figure.add(f"{per_transaction} a transaction: {statement.split(' ON ')[0]}", samples, "events/s")
    figure.notes = [f"{SESSIONS} sessions; a transaction waits for the disk", bench.disturbances()]
    return figure
