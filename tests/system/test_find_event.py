"""A single event is found by its id without reading the log, also beside blocks without events."""

from __future__ import annotations

import pytest

from database import Database

# Ids of version 7 whose times are 10 ms apart, each as if enqueued then. About seven fit into a block.
ENQUEUE = """
    SELECT outbox.enqueue('item', n::text, 'changed', to_jsonb(repeat('x', 900)),
                          event_id => overlay(overlay(lpad(to_hex(1700000000000 + 10 * n), 12, '0') PLACING '-' FROM 9 FOR 0)
                                              PLACING '-7000-8000-' || lpad(to_hex(n), 12, '0') FROM 14 FOR 0)::uuid)
      FROM generate_series(%s + 1, %s + %s) AS n
"""


def enqueue(database: Database, after: int, count: int, *, rolls_back: bool = False) -> list[str]:
    with database.connection.transaction(force_rollback=rolls_back):
        return [str(row[0]) for row in database.execute(ENQUEUE, (after, after, count))]


@pytest.mark.parametrize("lost", [[], [0], [1], [0, 1], [0, 1, 2]], ids=str)
def test_it_is_found_beside_events_that_were_rolled_back(database: Database, lost: list[int]) -> None:
    """`lost`: where 1,000 of them are: before, between and behind the others."""
    kept: list[str] = []
    for place in range(3):
        if place in lost:
            enqueue(database, 12_000 * place, 1000, rolls_back=True)
        if place < 2:
            kept += enqueue(database, 12_000 * place + 6000, 6000)
    for id in (kept[0], kept[5999], kept[6000], kept[-1]):
        assert database.value("SELECT event_id::text FROM outbox.find_event(%s)", (id,)) == id
        read = database.blocks_read(f"SELECT outbox.find_event('{id}')")
        assert read < 800, f"{read} blocks, of at least 1,700"
