"""Each node of a Citus cluster has a log and relays of its own, and destinations are those of the coordinator.

Polls are an hour apart: relays start, and events arrive, only because their workers are woken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg import errors

from receiver import Receiver
from waiting import wait_until

from .citus_cluster import EXTENSIONS, Citus, MakeCitus, NewCitus, Node

ORDERS = "id int PRIMARY KEY, quantity int NOT NULL"
PLACE = """
CREATE FUNCTION place(id int, quantity int) RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO orders VALUES (id, quantity);
    RETURN outbox.enqueue('order', id::text, 'placed', jsonb_build_object('quantity', quantity), version => 1);
END $$
"""


def wait_for(receiver: Receiver, ids: Sequence[str]) -> None:
    """Waits until these events have arrived and no others."""
    wait_until(
        lambda: sorted(receiver.ids()), lambda seen: seen == sorted(ids), what=f"events {ids} and no others to arrive"
    )


def wait_for_relays(citus: Citus, destination: str = "d") -> None:
    for node in citus.nodes:
        node.wait_for_worker("relay", destination)


@pytest.fixture
def orders(citus: Citus) -> Citus:
    """A cluster with a distributed table, and a function that inserts into it and enqueues on the node of the row."""
    citus.create_distributed_table("orders", ORDERS, "id")
    citus.coordinator.execute(PLACE)
    citus.coordinator.execute(
        "SELECT create_distributed_function('place(int,int)', 'id', colocate_with => 'orders', force_delegation => true)"
    )
    return citus


def place(connection: psycopg.Connection, key: int) -> str:
    """The key is part of the statement: Citus delegates a call only if it knows the key when it plans."""
    row = connection.execute(f"SELECT place({key}, 1)").fetchone()
    assert row is not None
    return str(row[0])


# -------------------------------------------------------------------------------------------------
# Destinations
# -------------------------------------------------------------------------------------------------


def test_a_destination_made_on_the_coordinator_is_served_by_each_node(citus: Citus, receiver: Receiver) -> None:
    citus.coordinator.add_destination("d", receiver.url())
    ids = [node.enqueue(f"node {node.group}")[0] for node in citus.nodes]
    wait_for(receiver, ids)
    for node, id in zip(citus.nodes, ids):
        assert node.event_ids() == [id]
        node.wait_published(1)


def test_a_change_of_a_destination_reaches_each_node(citus: Citus, receiver: Receiver) -> None:
    citus.coordinator.add_destination("d", receiver.url("/before"))
    wait_for_relays(citus)
    citus.coordinator.change_destination("d", url=receiver.url("/after"))
    for node in citus.nodes:
        wait_until(
            lambda: node.enqueue(f"{node.port}") and {(event.request.target, event.subject) for event in receiver.events()},
            lambda seen: ("/after", f"{node.port}") in seen, what=f"node {node.group} to use the new url",
        )  # fmt: skip


def test_a_destination_that_is_renamed_keeps_its_cursors(citus: Citus, receiver: Receiver) -> None:
    citus.coordinator.add_destination("d", receiver.url())
    ids = [node.enqueue()[0] for node in citus.nodes]
    wait_for(receiver, ids)
    for node in citus.nodes:
        node.wait_saved()
    citus.coordinator.execute("ALTER SERVER d RENAME TO e")
    wait_for_relays(citus, "e")
    ids += [node.enqueue()[0] for node in citus.nodes]
    wait_for(receiver, ids)


def test_a_destination_that_is_dropped_ends_on_each_node(citus: Citus) -> None:
    citus.coordinator.add_destination("d", "null:")
    wait_for_relays(citus)
    citus.coordinator.drop_destination("d")
    for node in citus.nodes:
        node.cluster.wait_for_workers(node.name, "keeper")
        assert node.destinations() == []
        assert node.value("SELECT count(*) FROM outbox.cursor") == 0


def test_credentials_are_set_on_each_node(citus: Citus, receiver: Receiver) -> None:
    citus.coordinator.add_destination("d", receiver.url())
    citus.coordinator.execute("""
        SELECT run_command_on_all_nodes($$
            CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (token 'secret') $$)""")
    for node in citus.nodes:
        node.enqueue(str(node.group))
    wait_until(
        lambda: {event.subject: event.request.headers.get("authorization") for event in receiver.events()},
        lambda seen: len(seen) == 3, what="an event of each node",
    )  # fmt: skip
    assert {request.headers.get("authorization") for request in receiver.requests} == {"Bearer secret"}


def test_a_worker_refuses_to_change_what_the_cluster_shares(citus: Citus) -> None:
    citus.coordinator.add_destination("d", "null:")
    for statement in (
        "CREATE SERVER e FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')",
        "DROP SERVER d",
        "DROP EXTENSION pg_outbox CASCADE",
    ):
        with pytest.raises(psycopg.Error, match="operation is not allowed on this node"):
            citus.workers[0].execute(statement)


# -------------------------------------------------------------------------------------------------
# Events
# -------------------------------------------------------------------------------------------------


def test_an_event_is_in_the_log_of_the_node_that_enqueued_it(orders: Citus, receiver: Receiver) -> None:
    orders.coordinator.add_destination("d", receiver.url())
    placed = {}
    for worker in orders.workers:
        placed[worker] = [place(orders.coordinator.connection, orders.key_on("orders", worker))]
    on_coordinator = orders.coordinator.enqueue()
    for node, ids in [*placed.items(), (orders.coordinator, on_coordinator)]:
        assert node.event_ids() == ids
    wait_for(receiver, [*on_coordinator, *(id for ids in placed.values() for id in ids)])


def test_events_of_one_transaction_are_in_the_logs_of_several_nodes(orders: Citus, receiver: Receiver) -> None:
    orders.coordinator.add_destination("d", receiver.url())
    keys = [orders.key_on("orders", worker) for worker in orders.workers]
    with orders.coordinator.connect() as connection, connection.transaction():
        ids = [place(connection, key) for key in keys]
        ids += [str(connection.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}'::jsonb)").fetchone()[0])]
    assert len(set(ids)) == 3
    for node, id in zip([*orders.workers, orders.coordinator], ids):
        assert node.event_ids() == [id]
    wait_for(receiver, ids)


def test_a_transaction_that_rolls_back_leaves_nothing_on_any_node(orders: Citus, receiver: Receiver) -> None:
    orders.coordinator.add_destination("d", receiver.url())
    keys = [orders.key_on("orders", worker) for worker in orders.workers]
    with orders.coordinator.connect() as connection:
        connection.execute("BEGIN")
        for key in keys:
            place(connection, key)
        connection.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}'::jsonb)")
        connection.execute("ROLLBACK")
    assert orders.on_all("SELECT count(*) FROM outbox.event") == [[(0,)]] * 3
    wait_for(receiver, [node.enqueue()[0] for node in orders.nodes])


def test_a_node_that_refuses_at_commit_undoes_the_events_of_all(orders: Citus) -> None:
    """A deferred constraint on the shard of one worker fails when Citus prepares there."""
    first, second = (orders.key_on("orders", worker) for worker in orders.workers)
    orders.workers[1].execute_here(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$",
        f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {orders.shard_name('orders', second)} "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with orders.coordinator.connect() as connection, pytest.raises(errors.RaiseException, match="refused at commit"):
        with connection.transaction():
            place(connection, first)
            place(connection, second)
    assert orders.on_all("SELECT count(*) FROM outbox.event") == [[(0,)]] * 3
    assert orders.coordinator.value("SELECT count(*) FROM orders") == 0


# -------------------------------------------------------------------------------------------------
# Extensions and nodes
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extensions", [EXTENSIONS, EXTENSIONS[::-1]], ids=["citus_first", "pg_outbox_first"])
def test_the_extensions_may_be_created_in_any_order(
    new_citus: NewCitus, receiver: Receiver, extensions: Sequence[str]
) -> None:
    citus = new_citus(extensions=extensions)
    citus.coordinator.add_destination("d", receiver.url())
    wait_for(receiver, [node.enqueue()[0] for node in citus.nodes])


def test_the_extension_is_created_and_dropped_on_all_nodes(new_citus: NewCitus, receiver: Receiver) -> None:
    citus = new_citus(extensions=["citus"])
    citus.coordinator.execute("CREATE EXTENSION pg_outbox")
    citus.coordinator.add_destination("d", receiver.url())
    wait_for(receiver, [node.enqueue()[0] for node in citus.nodes])
    citus.coordinator.execute("DROP EXTENSION pg_outbox CASCADE")
    assert citus.on_all("SELECT count(*) FROM pg_extension WHERE extname = 'pg_outbox'") == [[(0,)]] * 3
    for node in citus.nodes:
        node.cluster.wait_for_workers(node.name)


def test_the_extension_is_not_dropped_while_a_worker_has_undelivered_events(
    make_citus: MakeCitus, receiver: Receiver
) -> None:
    citus = make_citus({"outbox.allow_drop_with_undelivered": "off"})
    citus.coordinator.add_destination("d", receiver.url())
    wait_for_relays(citus)
    receiver.refuse_connections()
    citus.workers[0].enqueue()
    with pytest.raises(
        errors.ObjectNotInPrerequisiteState, match='events of extension "pg_outbox" are not delivered: 1'
    ):
        citus.coordinator.execute("DROP EXTENSION pg_outbox CASCADE")
    assert citus.on_all("SELECT count(*) FROM pg_foreign_server") == [[(1,)]] * 3


def test_a_node_that_is_added_later_gets_extension_and_destinations(new_citus: NewCitus, receiver: Receiver) -> None:
    citus = new_citus(extensions=["citus"], workers=1)
    citus.coordinator.execute("CREATE EXTENSION pg_outbox")
    citus.coordinator.add_destination("d", receiver.url())
    added = citus.all_nodes[2]
    citus.add(added)
    wait_for(receiver, added.enqueue())


def test_a_node_that_is_removed_delivers_what_it_has(orders: Citus, receiver: Receiver) -> None:
    orders.coordinator.add_destination("d", receiver.url())
    wait_for_relays(orders)
    removed = orders.workers[1]
    ids = [place(orders.coordinator.connection, orders.key_on("orders", removed))]
    orders.coordinator.execute("SELECT citus_drain_node(%s, %s, 'block_writes')", ("127.0.0.1", removed.port))
    orders.coordinator.execute("SELECT citus_remove_node(%s, %s)", ("127.0.0.1", removed.port))
    ids += removed.enqueue()
    wait_for(receiver, ids)


# -------------------------------------------------------------------------------------------------
# Roles
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def role(citus: Citus) -> Iterator[str]:
    """A role that all nodes have. Roles are of servers, so it is dropped after the test."""
    name = f"app_{citus.name}"
    citus.coordinator.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    for node in citus.nodes:
        node.execute_here(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def grant_on_all_nodes(citus: Citus, role: str, right: str) -> None:
    rows = citus.coordinator.execute(
        f"SELECT success, result FROM run_command_on_all_nodes($$SELECT outbox.grant_{right}('{role}')$$)"
    )
    assert [row for row in rows if not row[0]] == []


def may_produce(node: Node, role: str) -> bool:
    with node.cluster.connect(node.name, role) as connection:
        try:
            connection.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}'::jsonb)")
        except errors.InsufficientPrivilege:
            return False
    return True


def test_a_right_is_granted_on_the_node_where_the_statement_runs(citus: Citus, role: str) -> None:
    citus.workers[0].execute("SELECT outbox.grant_produce(%s)", (role,))
    assert [may_produce(node, role) for node in citus.nodes] == [False, True, False]
    citus.workers[0].execute("SELECT outbox.revoke_produce(%s)", (role,))
    citus.coordinator.execute("SELECT outbox.grant_produce(%s)", (role,))
    assert [may_produce(node, role) for node in citus.nodes] == [True, False, False]
    grant_on_all_nodes(citus, role, "produce")
    assert [may_produce(node, role) for node in citus.nodes] == [True, True, True]


def test_a_grant_leaves_the_settings_of_the_session_as_they_were(citus: Citus, role: str) -> None:
    with citus.coordinator.connect() as connection, connection.transaction():
        connection.execute("SELECT outbox.grant_produce(%s)", (role,))
        assert connection.execute("SHOW citus.enable_ddl_propagation").fetchone() == ("on",)


def test_a_role_without_other_rights_enqueues_on_the_node_of_its_rows(
    orders: Citus, role: str, receiver: Receiver
) -> None:
    orders.coordinator.add_destination("d", receiver.url())
    orders.coordinator.execute(f"GRANT SELECT, INSERT ON orders TO {role}")
    grant_on_all_nodes(orders, role, "produce")
    with orders.coordinator.cluster.connect(orders.name, role) as connection:
        ids = [place(connection, orders.key_on("orders", worker)) for worker in orders.workers]
    for worker, id in zip(orders.workers, ids):
        assert worker.event_ids() == [id]
    wait_for(receiver, ids)
