"""A shard moves: the node that receives it sends nothing before the old node has sent what it has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from receiver import Gate, Receiver
from waiting import SECOND, stays, wait_until

from .citus_cluster import Citus, Node
from .things import Things, of_node, versions

MODES = ("force_logical", "block_writes")


@dataclass
class Scene:
    """A key whose shard is about to move from `old` to `new`. All nodes have the destinations d and e."""

    citus: Citus
    things: Things
    receiver: Receiver
    old: Node
    new: Node
    key: int

    def hold_old(self) -> Gate:
        """Leaves an event of the key unanswered at destination d of the old node."""
        gate = Gate()
        self.receiver.on(of_node(self.old), gate.held())
        self.things.change(self.key)
        wait_until(lambda: gate.holding, what="the event of the old node to be held")
        return gate

    def move(self, mode: str = "block_writes") -> None:
        self.things.move(self.key, self.new, mode)

    def arrived(self, path: str = "/d") -> list[int]:
        return versions(self.receiver, self.key, path)

    def wait_arrived(self, expected: list[int], path: str = "/d", *, within: float = 60) -> None:
        wait_until(
            lambda: self.arrived(path), lambda seen: seen == expected, timeout=within,
            what=f"versions {expected} of the key at {path}",
        )  # fmt: skip

    def wait_nothing_arrives(self) -> None:
        wait_until(
            lambda: self.new.value("SELECT count(*) FROM outbox.arriving_shard"), lambda seen: seen == 0,
            what="no shard to be waited for",
        )  # fmt: skip


@pytest.fixture
def scene(citus: Citus, receiver: Receiver) -> Scene:
    things = Things(citus)
    for name in ("d", "e"):
        citus.coordinator.add_destination(name, receiver.url(f"/{name}"))
    old, new = citus.workers
    return Scene(citus, things, receiver, old, new, things.key_on(old))


@pytest.mark.parametrize("mode", MODES)
def test_events_of_the_new_node_wait_for_those_of_the_old(scene: Scene, mode: str) -> None:
    gate = scene.hold_old()
    scene.move(mode)
    scene.things.change(scene.key)
    scene.wait_arrived([1, 2], "/e")  # other destinations go on
    stays(scene.arrived, [1], seconds=1, what="events of the key at the destination that is held")
    gate.open()
    scene.wait_arrived([1, 2], within=5 * SECOND)
    scene.wait_nothing_arrives()
