"""Late events with old versions: the replica does not go back."""

from __future__ import annotations

import pytest

from .replica import MakeReplicaDrill, ReplicaDrill

NOBODY = 99

# The database compares versions. Brokers differ here only in whether they keep the order of a key.
pytestmark = pytest.mark.parametrize("make_replica_drill", ["pull", "nats"], indirect=True)


def enqueue(drill: ReplicaDrill, key: str, version: int, type: str = "changed") -> str:
    """Enqueues an event behind all others of its key."""
    return str(
        drill.database.value(
            "SELECT outbox.enqueue('item', %s::text, %s::text, jsonb_build_object('writer', %s::int), version => %s)",
            (key, type, NOBODY, version),
        )
    )


def version_of(drill: ReplicaDrill, key: str) -> int:
    return drill.database.value("SELECT version FROM aggregate WHERE id = %s::int", (key,))


def keys_there(drill: ReplicaDrill) -> list[str]:
    rows = drill.database.execute("SELECT id::text FROM aggregate WHERE version > 0 ORDER BY id")
    return [key for (key,) in rows]


def test_late_lower_versions_are_not_applied(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.consume()
    late = []
    with drill.load():
        for _ in range(40):
            drill.wait_applied(5)
            key = drill.random.choice(keys_there(drill))
            late.append(enqueue(drill, key, drill.random.randrange(version_of(drill, key))))
    drill.conclude(others=late)


@pytest.mark.long
def test_lower_versions_do_not_restore_a_removed_row(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    drill.consume()
    with drill.load():
        drill.wait_applied(100)
    drill.wait_all_applied()
    others = []
    drill.removed = {"1", "2", "3", "4"}
    for key in sorted(drill.removed):
        last = version_of(drill, key)
        others.append(enqueue(drill, key, last + 2, "removed"))
        others += [enqueue(drill, key, version) for version in (last + 1, last)]
    # A late removal does not affect newer rows.
    others.append(enqueue(drill, "5", version_of(drill, "5") - 1, "removed"))
    drill.wait_all_applied(others)
    # Its next two versions are below that of the removal, the third inserts it again.
    drill.removed.remove("4")
    for _ in range(3):
        drill.database.execute("SELECT change(4, 0)")
    drill.conclude(others=others)
