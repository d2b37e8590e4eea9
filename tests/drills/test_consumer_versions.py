"""Events that come late and say what was true once: the replica does not go back."""

from __future__ import annotations

from .replica import MakeReplicaDrill, ReplicaDrill
from .writing import AGGREGATES

NOBODY = 99


def enqueue(drill: ReplicaDrill, key: str, version: int, type: str = "changed") -> str:
    """Behind whatever the key has in the log."""
    return str(
        drill.database.value(
            "SELECT outbox.enqueue('item', %s::text, %s::text, jsonb_build_object('writer', %s::int), "
            "version => %s)",
            (key, type, NOBODY, version),
        )
    )


def version_of(drill: ReplicaDrill, key: str) -> int:
    return drill.database.value("SELECT version FROM aggregate WHERE id = %s::int", (key,))


def test_lower_versions_come_late(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.consume()
    late = []
    with drill.load():
        for _ in range(40):
            drill.wait_applied(5)
            key = str(drill.random.randint(1, AGGREGATES))
            late.append(enqueue(drill, key, drill.random.randint(0, version_of(drill, key))))
    drill.conclude(others=late)


def test_lower_versions_come_after_a_removal(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.consume()
    with drill.load():
        drill.wait_applied(100)
    drill.wait_all_applied()
    others = []
    drill.removed = {"1", "2", "3", "4"}
    for key in drill.removed:
        last = version_of(drill, key)
        others.append(enqueue(drill, key, last + 2, "removed"))
        others += [enqueue(drill, key, version) for version in (last + 1, last, last + 2)]
        # A removal that comes late does no harm to what is newer.
        others.append(enqueue(drill, "5", version_of(drill, "5") - 1, "removed"))
    drill.wait_all_applied(others)
    drill.removed.remove("4")
    others.append(enqueue(drill, "4", version_of(drill, "4") + 3))
    drill.database.execute(
        "UPDATE aggregate SET version = version + 3 WHERE id = 4"
    )
    drill.conclude(others=others)
