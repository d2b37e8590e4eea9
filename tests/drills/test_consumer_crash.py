"""The consumer kills itself, at each point in the life of an event (tests/programs/dying.hpp)."""

from __future__ import annotations

import pytest

from .replica import MakeReplicaDrill
from .routes import with_deaths


@with_deaths
@pytest.mark.parametrize("point", ["received", "handled", "committed", "acked"])
def test_killed(make_replica_drill: MakeReplicaDrill, point: str) -> None:
    drill = make_replica_drill()
    with drill.load():
        drill.wait_dead(drill.consume(die=point, after=150))
        drill.consume()
        drill.wait_applied(150)
    drill.conclude()
    if point == "committed" and drill.route.repeats:
        assert drill.totals["duplicates"] > 0, "what was committed and not acknowledged comes again"
