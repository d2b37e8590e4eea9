"""The consumer kills itself, at each point in the life of an event (tests/programs/dying.hpp)."""

from __future__ import annotations

import pytest

from .replica import MakeReplicaDrill, ReplicaDrill
from .routes import with_deaths


def die(drill: ReplicaDrill, point: str) -> None:
    with drill.load():
        drill.wait_dead(drill.consume(die=point, after=150))
        drill.consume()
        drill.wait_applied(150)
    drill.conclude()


@with_deaths
@pytest.mark.parametrize("point", ["received", "committed", "acked"])
def test_a_crash_anywhere_applies_each_event_once(make_replica_drill: MakeReplicaDrill, point: str) -> None:
    drill = make_replica_drill()
    die(drill, point)
    if point == "committed" and drill.route.repeats:
        assert drill.totals["duplicates"] > 0, "what was committed and not acknowledged comes again"


# A broker cannot tell this from a death before the handler, unless offsets are saved in that transaction.
@pytest.mark.parametrize("make_replica_drill", ["pull", "kafka_database", "rabbitmq_stream"], indirect=True)
def test_a_crash_before_the_commit_applies_each_event_once(make_replica_drill: MakeReplicaDrill) -> None:
    die(make_replica_drill(), "handled")
