"""Each node of a Citus cluster has a log and relays of its own."""

from __future__ import annotations

from receiver import Receiver
from waiting import wait_until

from .citus_cluster import Citus


def test_a_destination_made_on_the_coordinator_is_served_by_each_node(citus: Citus, receiver: Receiver) -> None:
    citus.coordinator.add_destination("d", receiver.url())
    ids = [node.enqueue(str(node.group))[0] for node in citus.nodes]
    wait_until(lambda: sorted(receiver.ids()), lambda seen: seen == sorted(ids), what="the event of each node to arrive")
