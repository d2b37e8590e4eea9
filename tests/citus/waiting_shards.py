"""Shards whose new node waits until the old one has sent what it has."""

from __future__ import annotations

import psycopg

from waiting import wait_until

from .citus_cluster import Citus, Node


def waits_for(node: Node) -> dict[int, list[str] | None]:
    """Returns destinations of the old node that a shard's new node waits for; None if they are not known yet."""
    return dict(node.execute("SELECT shard, waits_for::text[] FROM outbox.arriving_shard"))


def wait_nobody_waits(citus: Citus) -> None:
    wait_until(
        lambda: [waits_for(node) for node in citus.nodes], lambda seen: not any(seen), timeout=180,
        what="no node to wait for another", ignoring=(psycopg.OperationalError,),
    )  # fmt: skip
