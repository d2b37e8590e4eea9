"""The broker or the database of a consumer fails and comes back, twice under load."""

from __future__ import annotations

from .replica import MakeReplicaDrill
from .routes import with_deaths

TIMES = 2


def test_an_absent_database_loses_nothing(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.consume()
    with drill.load():
        for _ in range(TIMES):
            drill.wait_applied(drill.random.choice([1, 50, 150]))
            drill.replica.stop("immediate")
            drill.wait_committed(50)
            drill.replica.start()
        drill.wait_applied(50)
    drill.conclude()
    assert drill.totals["database_reconnects"] >= TIMES


@with_deaths  # of streams
def test_an_absent_broker_loses_nothing(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    for _ in range(2):
        drill.consume()
    with drill.load():
        for _ in range(TIMES):
            drill.wait_applied(drill.random.choice([1, 50, 150]))
            with drill.route.broker_away():
                pass
        drill.wait_applied(50)
    drill.conclude()
