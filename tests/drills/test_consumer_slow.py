"""A handler that takes longer than the lease of its event: the lease is extended, and no other consumer gets the event."""

from __future__ import annotations

from .replica import MakeReplicaDrill

LEASE_SECONDS = 6  # it is extended when a third to two thirds are over


def test_a_handler_longer_than_its_lease_applies_once(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.route.lease_seconds = LEASE_SECONDS
    drill.slow_down(2.5 * LEASE_SECONDS, "7", 3)
    for _ in range(2):
        drill.consume()
    with drill.load():
        drill.wait_applied(200)
        slow = "SELECT count(*) FROM ledger WHERE aggregate = 7 AND version = 3"
        drill.wait(lambda: drill.database.value(slow), bool, "the slow event to be committed")
    committed = drill.conclude().committed
    if drill.route.has_leases:
        assert drill.route.extensions(drill.event_id("7", 3)) >= 2
    if not drill.route.sends_again:
        assert drill.totals["received"] == committed, "something came twice"
