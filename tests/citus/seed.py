"""The seed of a random test, shown by one that fails."""

from __future__ import annotations

import os
import random


def new_seed() -> int:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}")
    return seed
