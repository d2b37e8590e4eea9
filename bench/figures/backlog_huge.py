"""Cost of an event in a backlog of 100 million small ones, against a backlog of 10 thousand: see backlog.

It takes half an hour, most of it to write the backlog, and 60 GB of disk.
"""

import shutil
from statistics import median

from figures.backlog import SMALL, SMALL_RUNS, cost_of_backlog, costs_of_backlog
from report import Figure, Goal
from workload import Bench, Unavailable

SETTINGS = {"max_wal_size": "4GB", "min_wal_size": "1GB"}
SIZE = 64  # bytes of a payload
NEEDED = 60 << 30


def measure(bench: Bench) -> Figure:
    if shutil.disk_usage(bench.cluster.root).free < NEEDED:
        raise Unavailable(f"it needs {NEEDED >> 30} GiB of disk")
    large = 5_000_000 if bench.quick else 100_000_000
    bench.touch_memory()
    with bench.destination("null:"):
        around = costs_of_backlog(bench, SMALL, SMALL_RUNS, size=SIZE)
        huge = cost_of_backlog(bench, large, size=SIZE)
        around += costs_of_backlog(bench, SMALL, SMALL_RUNS, size=SIZE)

    figure = Figure("backlog_huge", f"Cost of an event with a backlog of {large:,}, over that with {SMALL:,}")
    goal = Goal(1.1, 1.0, less_is_better=True)
    figure.add("time", huge.elapsed / median(one.elapsed for one in around), "ratio", goal)
    figure.add("processor time of the relay", huge.processor / median(one.processor for one in around), "ratio", goal)
    figure.add("time", huge.elapsed, "ns/event")
    figure.add(f"time, backlog of {SMALL:,}", [one.elapsed for one in around], "ns/event")
    figure.add("time to the first delivery", huge.first, "s")
    figure.notes = [
        f"payloads of {SIZE} bytes, transactions of 100 events; the relay runs already; one run",
        bench.disturbances(),
    ]
    return figure
