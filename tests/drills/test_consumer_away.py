"""What a consumer stands between is gone, and comes back, several times under load."""

from __future__ import annotations

import pytest

from .replica import MakeReplicaDrill
from .routes import ROUTES_WITH_DEATHS

TIMES = 4


def test_database_away(make_replica_drill: MakeReplicaDrill) -> None:
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


@pytest.mark.parametrize("make_replica_drill", ROUTES_WITH_DEATHS, indirect=True)  # of streams
def test_broker_away(make_replica_drill: MakeReplicaDrill) -> None:
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
