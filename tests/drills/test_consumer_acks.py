"""Acknowledgements get lost: applied events come again, and have no effect."""

from __future__ import annotations

from .replica import MakeReplicaDrill
from .routes import with_deaths


@with_deaths
def test_lost_acknowledgements_change_nothing_twice(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    consumer = drill.consume()
    wire = drill.route.wire
    with drill.load():
        drill.wait_applied(100)
        with wire.acks_lost():
            drill.wait(lambda: wire.lost_acks, lambda n: n >= 4, "acknowledgements to be lost")
            # Acknowledgements that it has not sent yet are lost.
            drill.kill(consumer)
        drill.consume()
        drill.wait_applied(100)
    drill.conclude()
    assert drill.totals["duplicates"] > 0 or not drill.route.repeats
