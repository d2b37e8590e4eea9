"""Cost of an INSERT into a view of the log, against the outbox table with the same columns."""

from dataclasses import dataclass

from figures.enqueue import CLIENTS, INSERT, PEERS, Slice, run_script
from report import Figure, Goal
from workload import Bench, payload

UPDATE = "UPDATE account SET version = version + 1 WHERE id = :id;"


@dataclass(frozen=True)
class Transaction:
    label: str
    text: str  # variants differ in {insert}
    goal: Goal | None = None


TRANSACTIONS = [
    Transaction("an INSERT", "{insert}\n", Goal(0.9, 1.1)),
    Transaction("an UPDATE and an INSERT", f"BEGIN;\n{UPDATE}\n{{insert}}\nEND;\n"),
]
INSERTS = {"table": INSERT, "view": INSERT.replace("app_outbox", "outbox_view")}


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 2) if bench.quick else (7, 4)
    for statement in PEERS.split(";\n"):
        if "app_outbox" in statement:
            bench.sql.execute(statement)
    bench.sql.execute("SELECT outbox.create_outbox_view('outbox_view', 'seed')")
    bench.touch_memory()

    def one_slice(transaction: Transaction, into: str, seconds: int) -> Slice:
        bench.sql.execute("TRUNCATE app_outbox")
        bench.clear_log()
        slice = run_script(bench, transaction.text.format(insert=INSERTS[into]), seconds, payload())
        rows = bench.sql.execute(
            f"SELECT count(*) FROM {'app_outbox' if into == 'table' else 'outbox.event'}"
        ).fetchone()[0]
        if rows == 0:
            raise RuntimeError(f"nothing was inserted into the {into}")
        return slice

    def slice_of(transaction: Transaction, into: str, seconds: int) -> Slice:
        return bench.undisturbed(lambda: one_slice(transaction, into, seconds))

    runs: dict[tuple[Transaction, str], list[Slice]] = {(t, into): [] for t in TRANSACTIONS for into in INSERTS}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for transaction, into in runs:
            slice_of(transaction, into, 2)  # after a checkpoint the first change of a page costs more
        for transaction in TRANSACTIONS:
            for into in list(INSERTS)[:: -1 if turn % 2 else 1]:
                runs[transaction, into].append(slice_of(transaction, into, seconds))
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{t.label} {runs[t, 'view'][-1].rate / runs[t, 'table'][-1].rate:.2f}" for t in TRANSACTIONS)
        )

    figure = Figure("outbox_view", "INSERT into a view of the log, as a share of that into the outbox table")
    for transaction in TRANSACTIONS:
        pairs = list(zip(runs[transaction, "view"], runs[transaction, "table"]))
        figure.add(
            transaction.label, [view.rate / table.rate for view, table in pairs], "of the table", transaction.goal
        )
        figure.add(
            f"{transaction.label}, by processor time",
            [table.processor / view.processor for view, table in pairs],
            "of the table",
        )
    for (transaction, into), slices in runs.items():
        figure.add(f"{transaction.label}, {into}", [slice.rate for slice in slices], "tps")
    figure.notes = [
        f"{CLIENTS} clients, pgbench -M prepared, payload of 512 bytes as a parameter, {rounds} rounds of "
        f"{seconds - 1} s slices; the table has two partial indexes, and nobody reads it",
        bench.disturbances(),
    ]
    return figure
