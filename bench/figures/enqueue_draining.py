"""Cost of an event for the transaction that commits it, with a relay that drains and without: a part of `enqueue`, in a minute."""

from dataclasses import replace

from figures.enqueue import VARIANTS, compare
from report import Figure, Goal
from workload import Bench

GOAL = Goal(0.82, 0.85)


def measure(bench: Bench) -> Figure:
    alone, draining = (v for v in VARIANTS if v.label.startswith("outbox.enqueue") and v.events == 1)
    return compare(
        bench,
        "enqueue_draining",
        "Transaction with an event while the relay drains",
        [alone, replace(draining, goal=GOAL)],
    )
