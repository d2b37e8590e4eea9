"""A distributed table whose rows change by a function that runs where the shard stands, and enqueues there.

The function counts the version of the row up, enqueues an event with this version, and notes it in the distributed
table `ledger`, in one transaction. So the committed versions of a key are 1, 2, 3, ..., wherever its shard stands.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from receiver import Event, Receiver, Request
from waiting import wait_until

from .background import Background
from .citus_cluster import HOST, Citus, Node

FUNCTION = """
CREATE FUNCTION change(which int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
    event uuid;
BEGIN
    UPDATE thing SET version = version + 1 WHERE id = which RETURNING version INTO new_version;
    PERFORM outbox.require_shard('thing', which::text);
    event := outbox.enqueue('thing', which::text, 'changed', version => new_version,
                            payload => jsonb_build_object('node', (SELECT groupid FROM pg_dist_local_group)));
    INSERT INTO ledger VALUES (which, new_version, event);
    RETURN event;
END $$
"""

# The function ran on a node from which the shard has moved. Nothing of it has committed.
SHARD_HAS_MOVED = psycopg.errors.SerializationFailure


class Things:
    def __init__(self, citus: Citus, count: int = 32) -> None:
        self.citus = citus
        self.keys = range(1, count + 1)
        # The coordinator has shards, too.
        coordinator = citus.coordinator
        coordinator.execute(
            "SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', true)", (HOST, coordinator.port)
        )
        citus.create_distributed_table("thing", "id int PRIMARY KEY, version bigint NOT NULL", "id")
        citus.create_distributed_table(
            "ledger", "id int, version bigint, event_id uuid NOT NULL, PRIMARY KEY (id, version)", "id",
            colocate_with="thing",
        )  # fmt: skip
        coordinator.execute("INSERT INTO thing SELECT n, 0 FROM generate_series(1, %s) AS n", (count,))
        coordinator.execute(FUNCTION)
        coordinator.execute("SELECT create_distributed_function('change(int)', 'which', colocate_with => 'thing')")

    def change(self, key: int, *, through: Node | None = None) -> str:
        """Changes the row of a key, on the node of its shard; returns the id of the event."""
        return wait_until(
            lambda: str((through or self.citus.coordinator).value(f"SELECT change({key})")),
            what=f"key {key} to change", ignoring=(SHARD_HAS_MOVED,),
        )  # fmt: skip

    def key_on(self, node: Node, *, other_than: tuple[int, ...] = ()) -> int:
        """Returns a key whose shard stands on the node."""
        return next(key for key in self.keys if key not in other_than and self.node_of(key) is node)

    def node_of(self, key: int) -> Node:
        return self.citus.shard_node("thing", key)

    def shard_of(self, key: int) -> int:
        return self.citus.shard_id("thing", key)

    def move(self, key: int, to: Node, mode: str = "force_logical") -> None:
        self.citus.move("thing", key, to, mode)

    def start_move(self, key: int, to: Node, mode: str = "force_logical") -> Background:
        return Background(self.citus.coordinator, self.citus.move_command("thing", key, to, mode))


def of_node(node: Node, path: str = "/d") -> Callable[[Request], bool]:
    """Matches requests of the relay of a node."""
    group = node.group
    return lambda request: request.target == path and request.json().get("node") == group


def arrived(receiver: Receiver, path: str = "/d") -> list[Event]:
    return [event for event in receiver.events() if event.request.target == path]


def versions(receiver: Receiver, key: int, path: str = "/d") -> list[int]:
    """Returns the versions of a key in the order of their arrival, those that are held included."""
    return [event.version for event in arrived(receiver, path) if event.subject == str(key)]
