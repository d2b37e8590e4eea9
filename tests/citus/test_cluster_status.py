"""outbox.cluster_status: the destinations of all nodes."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import errors
from psycopg.rows import dict_row

from conftest import numbers
from database import Database, create_database
from receiver import Receiver, answer, subject
from waiting import wait_until

from .citus_cluster import Citus, CitusServers, MakeCitus


def status(node: Database) -> dict[int, dict[str, Any]]:
    """Returns the rows by port of the node; each has one destination or none."""
    with node.connect() as connection:
        rows = connection.cursor(row_factory=dict_row).execute("TABLE outbox.cluster_status").fetchall()
    by_port = {row["node_port"]: row for row in rows}
    assert len(by_port) == len(rows)
    return by_port


def test_any_node_shows_the_destinations_of_all(citus: Citus) -> None:
    citus.coordinator.add_destination("d", "null:")
    for number, node in enumerate(citus.nodes):
        node.enqueue(count=1 + number)
        node.wait_published(1 + number)
        wait_until(lambda: node.status()["state"], lambda seen: seen == "idle", what="the relay to be idle")
    for node in citus.nodes:
        rows = status(node)
        assert {port: (row["group_id"], row["destination"], row["state"], row["published"], row["dead_letters"], row["error"])
                for port, row in rows.items()} == {
                    node.port: (node.group, "d", "idle", 1 + number, 0, None) for number, node in enumerate(citus.nodes)}  # fmt: skip
        assert {row["node_name"] for row in rows.values()} == {"127.0.0.1"}


def test_the_columns_are_those_of_the_node(citus: Citus, receiver: Receiver) -> None:
    receiver.on(subject("bad"), answer(400))
    receiver.on(subject("late"), answer(503))
    citus.coordinator.add_destination("d", receiver.url(), max_attempts="1")
    worker = citus.workers[0]
    worker.enqueue("bad")
    wait_until(lambda: status(citus.coordinator)[worker.port]["dead_letters"], what="a dead letter")
    worker.enqueue("late")
    row = wait_until(
        lambda: status(citus.coordinator)[worker.port],
        lambda row: row["pending_at_most"] == 1 and row["state"] == "backing off" and row["what_to_do"],
        what="the destination to fail",
    )  # fmt: skip
    theirs = worker.status()
    assert row["last_error"] == theirs["last_error"] and "503" in row["last_error"]
    assert row["failures"] > 0 and row["oldest_pending_age"] <= theirs["oldest_pending_age"]
    assert row["what_to_do"] in [
        finding.what_to_do for finding in worker.health() if finding.object == 'destination "d"'
    ]
    assert status(citus.coordinator)[citus.coordinator.port]["dead_letters"] == 0


def test_a_node_without_destinations_has_a_row(citus: Citus) -> None:
    assert [(row["destination"], row["error"]) for row in status(citus.coordinator).values()] == [(None, None)] * 3


def test_a_node_that_cannot_be_asked_has_a_row_with_the_reason(make_citus: MakeCitus) -> None:
    citus = make_citus()
    citus.coordinator.add_destination("d", "null:")
    down = citus.workers[0]
    down.disconnect()
    down.cluster.stop()
    rows = status(citus.coordinator)
    assert rows[down.port]["error"] == f"failed to connect to 127.0.0.1:{down.port}"
    assert rows[down.port]["destination"] is None
    assert [row["destination"] for port, row in rows.items() if port != down.port] == ["d", "d"]


def test_a_node_with_an_older_version_has_a_row_with_the_reason(citus: Citus) -> None:
    citus.coordinator.add_destination("d", "null:")
    older = citus.workers[1]
    older.execute_here("ALTER FUNCTION outbox_internal.node_status() RENAME TO another_version")
    rows = status(citus.coordinator)
    assert "outbox_internal.node_status() does not exist" in rows[older.port]["error"]
    assert rows[older.port]["destination"] is None
    assert rows[citus.coordinator.port]["destination"] == "d"


def test_monitors_see_it_on_the_nodes_where_they_may(citus: Citus) -> None:
    citus.coordinator.add_destination("d", "null:")
    name = f"monitor_{citus.name}"
    citus.coordinator.execute(f"CREATE ROLE {name} LOGIN")
    try:

        def seen() -> list[tuple[object, object]]:
            with citus.coordinator.cluster.connect(citus.name, name) as connection:
                return connection.execute(
                    "SELECT destination, error FROM outbox.cluster_status ORDER BY group_id"
                ).fetchall()

        with pytest.raises(errors.InsufficientPrivilege, match="outbox"):
            seen()
        for node in (citus.coordinator, citus.workers[0]):
            node.execute("SELECT outbox.grant_monitor(%s)", (name,))
        assert seen() == [("d", None), ("d", None), (None, "ERROR:  permission denied for schema outbox_internal")]
    finally:
        for node in citus.nodes:
            node.execute_here(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_without_citus_it_shows_the_server(citus_servers: CitusServers) -> None:
    cluster = citus_servers.clusters[0]
    name = f"alone_{next(numbers)}"
    database = create_database(cluster, name)
    try:
        database.add_destination("d", "null:")
        database.enqueue()
        database.wait_published(1)
        (row,) = status(database).values()
        assert (row["node_name"], row["node_port"], row["group_id"]) == ("localhost", cluster.port, 0)
        assert (row["destination"], row["published"], row["error"]) == ("d", 1, None)
    finally:
        database.disconnect()
        cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")
