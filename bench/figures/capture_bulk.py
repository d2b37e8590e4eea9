"""Cost of capture for a statement that changes 100,000 rows, and the memory of its backend."""

import time
from dataclasses import dataclass

from figures.capture import CAPTURE, create_table
from figures.memory import memory_of
from report import Figure, Goal
from workload import Bench

ROWS = 100_000


@dataclass
class Run:
    seconds: float
    memory: float  # MiB, highest of the backend, without shared memory


def update(bench: Bench, table: str, rows: int) -> Run:
    """Uses a new session, so that its memory is fresh; the table has no dead rows."""
    bench.sql.execute(f"VACUUM {table}")
    bench.clear_log()
    bench.sql.execute("CHECKPOINT")
    with bench.cluster.connect(bench.database) as session:
        session.execute(f"SELECT sum(balance) FROM {table}")
        start = time.monotonic()
        session.execute(f"UPDATE {table} SET balance = balance + 1, version = version + 1 WHERE id <= {rows}")
        seconds = time.monotonic() - start
        return Run(seconds, memory_of(session.info.backend_pid).peak)


def measure(bench: Bench) -> Figure:
    rounds, many = (3, 300_000) if bench.quick else (7, 1_000_000)
    ways = {"plain": "without capture", "changed": "captured, what changed", "whole": "captured, the whole row"}
    for table in ways:
        create_table(bench, table, many, fillfactor=100)
    for table, on_update in (("changed", "changed"), ("whole", "full")):
        bench.sql.execute(CAPTURE.format(name=table, on_update=on_update))
    bench.touch_memory()

    runs: dict[str, list[Run]] = {table: [] for table in ways}
    for table in ways:
        update(bench, table, ROWS)
    for turn in range(rounds):
        order = list(ways)
        for table in order[turn % 3 :] + order[: turn % 3]:
            runs[table].append(bench.undisturbed(lambda: update(bench, table, ROWS)))
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{ways[table]} {values[-1].seconds:.2f} s" for table, values in runs.items())
        )
    larger = {table: update(bench, table, many) for table in ways}

    def ratios(table: str) -> list[float]:
        return [plain.seconds / captured.seconds for plain, captured in zip(runs["plain"], runs[table])]

    figure = Figure(
        "capture_bulk", f"UPDATE of {ROWS:,} rows of a captured table, as a share of the same without capture"
    )
    figure.add("captured, what changed", ratios("changed"), "of baseline", Goal(0.6, 0.7))
    figure.add("captured, the whole row", ratios("whole"), "of baseline")
    for table, label in ways.items():
        figure.add(label, [run.seconds for run in runs[table]], "s")
    for table, label in ways.items():
        figure.add(f"memory of the backend, {label}", [run.memory for run in runs[table]], "MiB")
    for table, label in ways.items():
        figure.add(f"the same with {many:,} rows, {label}", larger[table].memory, "MiB")
    figure.notes = [
        "one session, a new one each time; vacuumed, after a checkpoint; rows of nine columns, of which two change",
        bench.disturbances(),
    ]
    return figure
