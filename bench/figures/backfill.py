"""Rate of a backfill to null:, and of a workload on the same table meanwhile."""

import time
from contextlib import contextmanager

from figures.capture import CAPTURE, create_table
from figures.enqueue import CLIENTS, Slice, run_script
from report import Figure, Goal
from workload import Bench, wait_until

MUST = 50_000  # rows per second
UPDATE = "UPDATE item SET balance = balance + 1, version = version + 1 WHERE id = :id;\n"


def start(bench: Bench, rate: int | None = None) -> int:
    return bench.sql.execute("SELECT outbox.backfill('item', rate => %s)", [rate]).fetchone()[0]


def progress(bench: Bench, task: int) -> tuple[str, int]:
    """Returns the state and the number of rows done."""
    state, rows, error = bench.sql.execute(
        "SELECT state, rows_done, last_error FROM outbox.backfill_progress WHERE id = %s", [task]
    ).fetchone()
    if state == "failed":
        raise RuntimeError(f"the backfill failed: {error}")
    return state, rows


@contextmanager
def prepared(bench: Bench):
    """Prepares an empty log and a destination that confirms all events at once."""
    bench.clear_log()
    bench.sql.execute("VACUUM item")
    bench.sql.execute("CHECKPOINT")
    with bench.destination("null:"):
        bench.wait_until_idle()
        yield


def rows_per_second(bench: Bench, rows: int) -> float:
    """Measures the time from the call until the last event is delivered."""
    with prepared(bench):
        began = time.monotonic()
        task = start(bench)
        wait_until(lambda: progress(bench, task)[0] == "finished", 600, "the backfill is finished", pause=0.02)
        wait_until(lambda: bench.delivered() >= rows, 60, "its events are delivered", pause=0.01)
        return rows / (time.monotonic() - began)


def workload(bench: Bench, seconds: int) -> Slice:
    with prepared(bench):
        return run_script(bench, UPDATE, seconds)


def workload_beside(bench: Bench, seconds: int) -> tuple[Slice, float]:
    """Measures the workload beside a backfill with the required rate; returns also the rate it reached."""
    with prepared(bench):
        task = start(bench, MUST)
        wait_until(lambda: progress(bench, task)[1] >= MUST, 30, "the burst it begins with is over")
        rows, began = progress(bench, task)[1], time.monotonic()
        slice = run_script(bench, UPDATE, seconds)
        state, done = progress(bench, task)
        elapsed = time.monotonic() - began
        if state == "finished":
            raise RuntimeError(f"the backfill of {done:,} rows was over before the workload was")
        bench.sql.execute("SELECT outbox.cancel_backfill(%s)", [task])
        return slice, (done - rows) / elapsed


def measure(bench: Bench) -> Figure:
    rounds, rows, seconds = (3, 500_000, 3) if bench.quick else (5, 1_000_000, 6)
    create_table(bench, "item", rows)
    bench.sql.execute(CAPTURE.format(name="item", on_update="changed"))
    bench.touch_memory()
    rows_per_second(bench, rows), workload(bench, 2)

    alone: list[float] = []
    workloads = [bench.undisturbed(lambda: workload(bench, seconds))]
    limited: list[tuple[Slice, float]] = []
    ratios: list[float] = []
    for turn in range(rounds):
        alone.append(bench.undisturbed(lambda: rows_per_second(bench, rows)))
        limited.append(bench.undisturbed(lambda: workload_beside(bench, seconds)))
        workloads.append(bench.undisturbed(lambda: workload(bench, seconds)))
        ratios.append(limited[-1][0].rate / ((workloads[-2].rate + workloads[-1].rate) / 2))
        bench.say(f"round {turn + 1} of {rounds}: {alone[-1]:,.0f} rows/s, workload {ratios[-1]:.2f}")

    figure = Figure("backfill", f"Backfill of {rows:,} rows, and a workload beside it", logarithmic=True)
    figure.add("alone", alone, "rows/s", Goal(MUST, 2 * MUST))
    figure.add(f"beside the workload, limited to {MUST:,}", [rate for _, rate in limited], "rows/s")
    figure.add("workload beside it / alone", ratios, "ratio", Goal(0.9, 1.0))
    figure.add("workload beside it", [slice.rate for slice, _ in limited], "tps")
    figure.add("workload alone", [slice.rate for slice in workloads], "tps")
    figure.notes = [
        f"{CLIENTS} clients that change single rows of the captured table; snapshot events of whole rows of nine columns; "
        "null: drains all the time",
        bench.disturbances(),
    ]
    return figure
