"""A shard moves: the node that receives it sends nothing before the old node has sent what it has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
import pytest

from outbox_relay import OutboxRelay
from processes import stop_process
from receiver import Gate, Receiver, answer, subject
from waiting import SECOND, stays, wait_until

from .background import Background
from .citus_cluster import HOST, Citus, MakeCitus, NewCitus, Node
from .things import SHARD_HAS_MOVED, Things, arrived, of_node, versions
from .waiting_shards import wait_nobody_waits, waits_for

MODES = ("force_logical", "block_writes")
MOVED_NOTHING = psycopg.errors.ObjectInUse


@dataclass
class Scene:
    """A key whose shard is about to move from `old` to `new`. All nodes have the destinations d and e."""

    citus: Citus
    things: Things
    receiver: Receiver
    old: Node
    new: Node
    key: int

    @contextmanager
    def held(self, path: str = "/d") -> Iterator[None]:
        """During the block an event of the key is not answered at a destination of the old node."""
        gate = Gate()
        self.receiver.on(of_node(self.old, path), gate.held())
        self.change()
        wait_until(lambda: gate.holding, what="an event of the old node to be held")
        try:
            yield
        finally:
            gate.open()

    def change(self) -> None:
        self.things.change(self.key)

    def move(self, mode: str = "block_writes") -> None:
        self.things.move(self.key, self.new, mode)

    @contextmanager
    def copying(self) -> Iterator[Background]:
        """During the block the shard is there on the new node, and copying has to wait for a transaction."""
        with self.old.connect() as connection, connection.transaction():
            connection.execute("SELECT pg_current_xact_id()")
            move = self.things.start_move(self.key, self.new)
            try:
                wait_until(
                    lambda: self.things.shard_of(self.key) in waits_for(self.new), what="the shard to be created"
                )
                yield move
            except BaseException:
                move.cancel()
                raise

    def arrived(self, path: str = "/d") -> list[int]:
        return versions(self.receiver, self.key, path)

    def wait_arrived(self, expected: list[int], path: str = "/d", *, within: float = 60) -> None:
        wait_until(
            lambda: self.arrived(path), lambda seen: seen == expected, timeout=within,
            what=f"versions {expected} of the key at {path}",
        )  # fmt: skip

    def wait_waiting(self, *destinations: str) -> None:
        """Waits until the new node waits for exactly these destinations of the old one."""
        shard = self.things.shard_of(self.key)
        wait_until(
            lambda: waits_for(self.new).get(shard), lambda seen: seen == list(destinations),
            what=f"the new node to wait for {destinations}",
        )  # fmt: skip

    def stays_waiting(self, path: str = "/d") -> None:
        """Checks that version 2, which is of the new node, is not sent."""
        stays(lambda: 2 in self.arrived(path), False, seconds=1, what="version 2 has arrived")


def scene_of(citus: Citus, receiver: Receiver) -> Scene:
    things = Things(citus)
    for name in ("d", "e"):
        citus.coordinator.add_destination(name, receiver.url(f"/{name}"))
    old, new = citus.workers[:2]
    return Scene(citus, things, receiver, old, new, things.key_on(old))


@pytest.fixture
def scene(citus: Citus, receiver: Receiver) -> Scene:
    return scene_of(citus, receiver)


# -------------------------------------------------------------------------------------------------
# Waiting
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize("mode", MODES)
def test_events_of_the_new_node_wait_for_those_of_the_old(scene: Scene, mode: str) -> None:
    with scene.held():
        scene.move(mode)
        scene.change()
        scene.wait_arrived([1, 2], "/e")  # other destinations go on
        scene.wait_waiting("d")
        scene.stays_waiting()
    scene.wait_arrived([1, 2], within=5 * SECOND)
    wait_nobody_waits(scene.citus)


def test_the_coordinator_waits_and_is_waited_for(scene: Scene) -> None:
    worker, scene.new = scene.new, scene.citus.coordinator
    with scene.held():
        scene.move()
        scene.change()
        scene.wait_arrived([1, 2], "/e")
        scene.stays_waiting()
    scene.wait_arrived([1, 2])
    wait_nobody_waits(scene.citus)
    scene.receiver.forget_rules()
    scene.old, scene.new = scene.citus.coordinator, worker
    with scene.held():
        scene.move()
        scene.change()
        scene.wait_arrived([1, 2, 3, 4], "/e")
        stays(scene.arrived, [1, 2, 3], seconds=1, what="events of the key")
    scene.wait_arrived([1, 2, 3, 4])


def test_a_paused_destination_holds_the_same_on_the_new_node_until_it_is_skipped(scene: Scene) -> None:
    scene.old.pause("d")
    scene.change()
    scene.move()
    scene.change()
    scene.wait_waiting("d")
    scene.stays_waiting()
    scene.new.execute("SELECT outbox.skip_shard(%s, 'the old node is late')", (min(waits_for(scene.new)),))
    scene.wait_arrived([2])
    assert not waits_for(scene.new), "all that came with it is skipped"
    scene.old.execute("SELECT outbox.resume('d')")
    scene.wait_arrived([2, 1])


def test_a_shard_that_nothing_waits_for_is_not_skipped(scene: Scene) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject):
        scene.new.execute("SELECT outbox.skip_shard(%s)", (scene.things.shard_of(scene.key),))


def refuse_key_of(scene: Scene, destination: str = "d") -> None:
    """The receiver refuses events of the key from the old node, which tries them again and again."""
    scene.citus.coordinator.change_destination(destination, retry_base="50ms", retry_max="50ms", max_attempts="10000")
    of_old, of_key = of_node(scene.old, f"/{destination}"), subject(str(scene.key))
    scene.receiver.on(lambda request: of_old(request) and of_key(request), answer(400))
    scene.change()
    wait_until(lambda: scene.old.value("SELECT count(*) FROM outbox.delivery WHERE state = 'RETRY'"), what="a retry")


def in_trouble(node: Node) -> int:
    return node.value("SELECT count(*) FROM outbox.delivery")


def test_only_the_key_of_an_event_in_trouble_waits(scene: Scene) -> None:
    other = next(
        key for key in scene.things.keys
        if key != scene.key and scene.things.shard_of(key) == scene.things.shard_of(scene.key)
    )  # fmt: skip
    refuse_key_of(scene)
    scene.things.change(other)
    scene.move()
    scene.change()
    scene.things.change(other)
    wait_until(
        lambda: versions(scene.receiver, other), lambda seen: seen == [1, 2], what="the events of another key to arrive"
    )
    scene.wait_arrived([1, 2], "/e")
    wait_until(lambda: in_trouble(scene.new), lambda count: count == 2, what="the event of the key to be held")
    scene.stays_waiting()
    assert scene.new.execute("SELECT ordering_key FROM outbox.blocked_key") == [(str(scene.key),)]
    scene.receiver.forget_rules()
    wait_until(scene.arrived, lambda seen: seen[-1] == 2, what="version 2 to arrive")
    assert scene.arrived()[-2:] == [1, 2]
    wait_nobody_waits(scene.citus)
    wait_until(lambda: in_trouble(scene.new), lambda count: count == 0, what="no key to be held")


def test_a_key_that_waits_can_be_skipped(scene: Scene) -> None:
    refuse_key_of(scene)
    scene.move()
    scene.change()
    wait_until(lambda: in_trouble(scene.new), lambda count: count == 2, what="the event of the key to be held")
    scene.new.execute("SELECT outbox.skip_shard(%s)", (scene.things.shard_of(scene.key),))
    wait_until(scene.arrived, lambda seen: seen[-1] == 2, what="version 2 to arrive")
    wait_until(lambda: in_trouble(scene.new), lambda count: count == 0, what="no key to be held")


def test_a_key_in_trouble_moves_on(scene: Scene) -> None:
    """The third node learns from the second one what the first one has in trouble."""
    refuse_key_of(scene)
    scene.move()
    scene.change()
    wait_until(lambda: in_trouble(scene.new), lambda count: count == 2, what="the event of the key to be held")
    scene.things.move(scene.key, scene.citus.coordinator, "block_writes")
    scene.change()
    wait_until(lambda: in_trouble(scene.citus.coordinator), lambda count: count == 3, what="the third event to be held")
    scene.stays_waiting()
    scene.receiver.forget_rules()
    wait_until(scene.arrived, lambda seen: seen[-1] == 3, what="version 3 to arrive")
    assert scene.arrived()[-3:] == [1, 2, 3]
    wait_nobody_waits(scene.citus)


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_key_in_trouble_moves_in_a_circle(scene: Scene, nodes: int) -> None:
    """Each node has an event of the key behind that of the node before, and the first one has the first and the last."""
    refuse_key_of(scene)
    stations = [*(scene.new, scene.citus.coordinator)[: nodes - 1], scene.old]
    for version, node in enumerate(stations, start=2):
        scene.things.move(scene.key, node, "block_writes")
        scene.change()
        held = "SELECT count(*) FROM outbox.delivery WHERE version = %s"
        wait_until(lambda: node.value(held, (version,)), what=f"version {version} to be held")
    scene.receiver.forget_rules()
    last = nodes + 1
    wait_until(scene.arrived, lambda seen: seen[-1] == last, what=f"version {last} to arrive")
    assert scene.arrived()[-last:] == list(range(1, last + 1))
    wait_nobody_waits(scene.citus)
    assert [in_trouble(node) for node in scene.citus.nodes] == [0] * len(scene.citus.nodes)


def test_a_relay_outside_waits_for_an_event_in_trouble(scene: Scene) -> None:
    scene.citus.coordinator.add_destination("x", scene.receiver.url("/x"), relay="external")
    relays = [OutboxRelay(node.cluster, scene.citus.name).start() for node in (scene.old, scene.new)]
    try:
        refuse_key_of(scene, "x")
        scene.move()
        scene.change()
        scene.wait_waiting("x")
        scene.stays_waiting("/x")
        scene.receiver.forget_rules()
        wait_until(lambda: scene.arrived("/x"), lambda seen: seen[-1] == 2, what="version 2 to arrive")
    finally:
        for relay in relays:
            relay.close()


def test_a_dead_letter_is_not_waited_for(scene: Scene) -> None:
    scene.citus.coordinator.change_destination("d", max_attempts="1")
    scene.receiver.on(of_node(scene.old), answer(400))
    scene.change()
    wait_until(
        lambda: scene.old.value("SELECT count(*) FROM outbox.delivery WHERE state = 'DEAD'"), what="a dead letter"
    )
    scene.move()
    scene.change()
    scene.wait_arrived([1, 2])
    wait_nobody_waits(scene.citus)


def test_health_names_the_node_that_is_waited_for(scene: Scene) -> None:
    with scene.held():
        scene.move()
        scene.wait_waiting("d")
        [finding] = wait_until(scene.new.health, what="a finding")
        assert finding.object == 'destination "d"' and finding.what == "waits for shard"
        assert f"{HOST}:{scene.old.port}" in finding.why
        assert not [finding for node in scene.citus.nodes if node is not scene.new for finding in node.health()]
    wait_nobody_waits(scene.citus)
    wait_until(scene.new.health, lambda seen: seen == [], what="no finding to be left")


# -------------------------------------------------------------------------------------------------
# Other kinds of relays
# -------------------------------------------------------------------------------------------------


def test_a_pull_destination_waits(scene: Scene) -> None:
    scene.citus.coordinator.add_destination("p", "pull:")
    fetch = "SELECT token, version FROM outbox.fetch('p', 100, '1h')"
    scene.change()
    [(token, version)] = wait_until(lambda: scene.old.execute(fetch), what="an event to fetch")
    assert version == 1
    scene.move()
    scene.change()
    scene.wait_waiting("p")
    assert scene.new.execute(fetch) == []
    scene.old.execute("SELECT outbox.ack(%s)", (token,))
    rows = wait_until(lambda: scene.new.execute(fetch), what="an event to fetch")
    assert [version for _, version in rows] == [2]


def test_a_relay_outside_waits(scene: Scene) -> None:
    scene.citus.coordinator.add_destination("x", scene.receiver.url("/x"), relay="external")
    relays = [OutboxRelay(node.cluster, scene.citus.name).start() for node in (scene.old, scene.new)]
    try:
        with scene.held("/x"):
            scene.move()
            scene.change()
            scene.wait_waiting("x")
            scene.stays_waiting("/x")
        scene.wait_arrived([1, 2], "/x")
    finally:
        for relay in relays:
            relay.close()


def wait_live(scene: Scene, node: Node, path: str) -> None:
    """If events come before the relay knows of an endpoint, it gets a cursor of its own, which no node waits for."""
    [event] = node.enqueue("of anybody")
    wait_until(
        lambda: [seen.id for seen in arrived(scene.receiver, path)],
        lambda ids: event in ids,
        what=f"an event at {path}",
    )
    wait_until(
        lambda: node.value("SELECT state FROM outbox.endpoint_status"),
        lambda state: state == "live",
        what="a live endpoint",
    )


def test_endpoints_wait(scene: Scene) -> None:
    scene.citus.coordinator.add_destination("hooks", "endpoints:")
    for node in scene.citus.nodes:
        node.execute(
            "INSERT INTO outbox.endpoint (server, name, url, topics) VALUES ('hooks', 'h', %s, '*')",
            (scene.receiver.url("/h"),),
        )
        wait_live(scene, node, "/h")
    # An answer that is held would do for five seconds only: then the endpoint falls back.
    scene.old.pause("hooks")
    scene.change()
    scene.move()
    scene.change()
    scene.wait_waiting("hooks")
    scene.stays_waiting("/h")
    scene.old.execute("SELECT outbox.resume('hooks')")
    scene.wait_arrived([1, 2], "/h")


# -------------------------------------------------------------------------------------------------
# Before the shard has moved, and when it has not
# -------------------------------------------------------------------------------------------------


def test_nothing_waits_while_rows_are_copied(scene: Scene) -> None:
    with scene.held():
        with scene.copying() as move:
            [event] = scene.new.enqueue("of the new node")
            wait_until(lambda: event in scene.receiver.ids(), what="an event of the new node")
            scene.wait_arrived([1])
        move.end()
        scene.change()
        scene.wait_arrived([1, 2], "/e")
        scene.stays_waiting()
    scene.wait_arrived([1, 2])


def test_a_cancelled_move_leaves_nothing(scene: Scene) -> None:
    with scene.copying() as move:
        move.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            move.end()
    scene.citus.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
    wait_nobody_waits(scene.citus)
    scene.old.pause("d")
    [event] = scene.new.enqueue("of the new node")
    wait_until(lambda: event in scene.receiver.ids(), what="an event of the new node")
    scene.old.execute("SELECT outbox.resume('d')")
    scene.move()  # the next one goes well
    scene.change()
    scene.wait_arrived([1])


def test_a_node_that_waits_sends_no_shard_on(scene: Scene) -> None:
    with scene.held():
        scene.move()
        with pytest.raises(MOVED_NOTHING) as refusal:
            scene.things.move(scene.key, scene.citus.coordinator, "block_writes")
        assert f"{HOST}:{scene.new.port} waits for events" in str(refusal.value)
        with pytest.raises(MOVED_NOTHING):  # not even back
            scene.things.move(scene.key, scene.old, "force_logical")
        assert scene.things.node_of(scene.key) is scene.new
    wait_nobody_waits(scene.citus)
    scene.things.move(scene.key, scene.old)
    scene.change()
    scene.wait_arrived([1, 2])


def test_nodes_that_exchange_shards_do_not_wait_for_each_other(citus: Citus, receiver: Receiver) -> None:
    """Each node begins to receive a shard before it can know that the other one does."""
    citus.coordinator.add_destination("d", receiver.url())
    citus.create_distributed_table("thing", "id int PRIMARY KEY", "id")
    # The one in the earlier era begins a new one when it gets a shard, and can be stopped there.
    first, second = sorted(citus.workers, key=lambda node: node.value("SELECT outbox_internal.era()"))
    keys = {node: citus.key_on("thing", node) for node in citus.workers}
    for node, key in keys.items():
        node.pause("d")
        node.enqueue(str(key))
    with first.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE outbox.position_gap")
        to_first = Background(citus.coordinator, citus.move_command("thing", keys[second], first, "block_writes"))
        wait_until(
            lambda: first.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"),
            what="the shard to be created on the first node, in a transaction that has not committed",
        )
        to_second = Background(citus.coordinator, citus.move_command("thing", keys[first], second, "block_writes"))
        wait_until(lambda: to_second.ended or waits_for(second), what="the shard to be created on the second node")
    for move in (to_first, to_second):
        with suppress(MOVED_NOTHING):
            move.end()
    for node in keys:
        node.execute("SELECT outbox.resume('d')")
    subjects = {str(key) for key in keys.values()}
    wait_until(receiver.subjects, lambda seen: set(seen) == subjects, what="the events of both nodes")


def test_a_function_that_waited_for_the_move_on_the_old_node_fails(scene: Scene) -> None:
    with scene.citus.coordinator.connect() as connection:
        with connection.transaction():
            connection.execute(scene.citus.move_command("thing", scene.key, scene.new, "block_writes"))
            change = Background(scene.citus.coordinator, f"SELECT change({scene.key})")
            wait_until(
                lambda: scene.old.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"),
                what="the function to wait on the old node",
            )
        with pytest.raises(SHARD_HAS_MOVED):
            change.end()
    assert scene.old.event_ids() == []
    scene.change()
    scene.wait_arrived([1])


def test_copies_of_a_reference_table_hold_nothing(new_citus: NewCitus, receiver: Receiver) -> None:
    citus = new_citus(workers=1)
    old, new = citus.workers[0], citus.all_nodes[2]
    citus.coordinator.execute("CREATE TABLE country (id int PRIMARY KEY)")
    citus.coordinator.execute("SELECT create_reference_table('country')")
    citus.coordinator.add_destination("d", receiver.url("/d"))
    for node in (citus.coordinator, old):
        node.pause("d")
        node.enqueue("held")
    citus.add(new)
    citus.coordinator.execute("SELECT replicate_reference_tables('block_writes')")
    assert new.value("SELECT count(*) FROM country") == 0
    assert not waits_for(new)
    [event] = new.enqueue("of the new node")
    wait_until(receiver.ids, lambda seen: seen == [event], what="the event of the new node")


# -------------------------------------------------------------------------------------------------
# Nodes that are gone, and moves in doubt
# -------------------------------------------------------------------------------------------------


def test_a_removed_node_is_not_waited_for(scene: Scene) -> None:
    scene.old.pause("d")
    scene.change()
    scene.citus.coordinator.execute("SELECT citus_drain_node(%s, %s, 'block_writes')", (HOST, scene.old.port))
    scene.new = scene.things.node_of(scene.key)
    scene.change()
    scene.wait_waiting("d")
    scene.stays_waiting()
    scene.citus.coordinator.execute("SELECT citus_remove_node(%s, %s)", (HOST, scene.old.port))
    scene.wait_arrived([2])
    wait_until(lambda: waits_for(scene.new), lambda seen: not seen, what="no shard to be waited for")


@pytest.mark.worker_errors("cannot be asked")
def test_a_node_that_cannot_be_asked_is_waited_for(make_citus: MakeCitus, receiver: Receiver) -> None:
    scene = scene_of(make_citus(), receiver)
    scene.old.pause("d")
    scene.change()
    scene.move()
    scene.old.cluster.stop("immediate")
    scene.things.change(scene.key, through=scene.new)
    scene.new.wait_for_worker("relay", "d")
    stays(scene.arrived, [], seconds=1, what="events of the key")
    assert any(finding.what == "waits for shard" for finding in scene.new.health())
    scene.old.cluster.start()
    scene.wait_waiting("d")
    scene.old.execute("SELECT outbox.resume('d')")
    scene.wait_arrived([1, 2])


# Runs in a transaction that is prepared on a node, there, when the test says so.
GO_ON = 4711
WAIT_TO_PREPARE = """
SET citus.enable_ddl_propagation = off;
SET citus.enable_manual_changes_to_shards = on;
CREATE FUNCTION wait_to_prepare() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({go_on});
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wait_to_prepare AFTER DELETE ON {shard} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_to_prepare();
"""


@contextmanager
def in_doubt(scene: Scene) -> Iterator[None]:
    """Moves the shard; during the block all nodes have committed that, but the new one."""
    scene.citus.create_distributed_table("other", "id int PRIMARY KEY", "id", colocate_with="none")
    other = scene.citus.key_on("other", scene.old)
    scene.citus.coordinator.execute("INSERT INTO other VALUES (%s)", (other,))
    with scene.old.connect() as connection:
        connection.execute(WAIT_TO_PREPARE.format(go_on=GO_ON, shard=scene.citus.shard_name("other", other)))
        connection.execute("SELECT pg_advisory_lock(%s)", (GO_ON,))
        move = Background(
            scene.citus.coordinator,
            f"BEGIN; DELETE FROM other WHERE id = {other}; "
            f"{scene.citus.move_command('thing', scene.key, scene.new, 'block_writes')}; COMMIT",
        )
        [(pid,)] = wait_until(
            lambda: scene.new.execute(
                "SELECT a.pid FROM pg_stat_activity AS a, pg_prepared_xacts AS p "
                "WHERE a.datname = current_database() AND p.database = a.datname AND a.query ~ '^PREPARE TRANSACTION' "
                "AND strpos(a.query, p.gid) > 0"
            ),
            lambda seen: len(seen) == 1, what="the move to be prepared on the new node",
        )  # fmt: skip
        stop_process(pid)
        try:
            connection.execute("SELECT pg_advisory_unlock(%s)", (GO_ON,))
            wait_until(
                lambda: scene.things.node_of(scene.key),
                lambda node: node is scene.new,
                what="the coordinator to commit",
            )
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        move.end()


def test_a_move_in_doubt_holds(scene: Scene) -> None:
    """The new node is the last to commit the move, long after all others."""
    with scene.held():
        with in_doubt(scene):
            [event] = scene.new.enqueue("of the new node")
            stays(lambda: event in scene.receiver.ids(), False, seconds=1, what="the event has arrived")
            findings = scene.new.execute("SELECT what, why || what_to_do FROM outbox.health('1 ms')")
            assert {what for what, _ in findings} == {"waits for shard"}, findings
            assert all("recover_prepared_transactions" in help for _, help in findings), findings
            assert scene.new.value("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == 1
        scene.change()
        scene.wait_arrived([1, 2], "/e")
        scene.stays_waiting()
    scene.wait_arrived([1, 2])
    wait_until(lambda: event in scene.receiver.ids(), what="the other event of the new node")
