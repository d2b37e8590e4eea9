"""Random steps of an operator: nothing is lost, nothing passes another event of its key, and no figure is wrong.

OUTBOX_TEST_SEED repeats a run, as far as the order of processes allows.
"""

from __future__ import annotations

import os
import random

import pytest

from database import NewDatabase

from .world import World

SECONDS = 8 if os.environ.get("OUTBOX_TEST_SHORT") else 60
# Cursors are saved and windows are read in parts all the time. All events stay in the log, for destinations that
# are made again.
SETTINGS = {"outbox.cursor_flush_interval": "100ms", "outbox.max_in_flight": "20", "outbox.retention": "1h",
            "outbox.segment_size": "64kB"}  # fmt: skip


@pytest.mark.slow
def test_random_steps_lose_nothing(new_database: NewDatabase, http: None) -> None:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}")
    world = World(new_database(SETTINGS), seed)
    try:
        with world.writers():
            world.operate(SECONDS)
        world.conclude()
        arrived = {place.name: len(place.arrivals()) for place in world.places}
        print(f"{len(world.taken)} steps, committed {len(world.ledger())}, arrived {arrived}")
    finally:
        world.close()
