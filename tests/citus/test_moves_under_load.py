"""Shards move between all nodes while clients change rows and the node that gives a shard away has a backlog.

The distributed table `ledger` says what committed, the receiver what arrived. Nothing may be lost, invented or out of
order per key, and the positions of a key must rise, on whatever node its events were enqueued.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from ledger import Entry, check
from receiver import Gate, Receiver, delayed
from waiting import wait_until

from .citus_cluster import Citus, MakeCitus, Node
from .seed import new_seed
from .things import SHARD_HAS_MOVED, Things, arrived, of_node
from .waiting_shards import wait_nobody_waits, waits_for

DESTINATIONS = ("d", "e")
CLIENTS = 4
MOVES = 10
MODES = ("force_logical", "block_writes")
BUDGET = 40  # seconds for the moves of a test
# Citus reports the end of another server also as an internal error.
SERVER_LOST = (psycopg.OperationalError, psycopg.errors.InternalError_)
CANNOT_MOVE_NOW = psycopg.errors.ObjectInUse  # the node waits for events of another shard


class Client(threading.Thread):
    """Changes rows, one after the other, through any node; survives moves and servers."""

    def __init__(self, things: Things, seed: int) -> None:
        super().__init__(daemon=True)
        self.things = things
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.changes = 0
        self.failures: Counter[str] = Counter()  # by SQLSTATE
        self.error: Exception | None = None  # that ended it

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.session()
        except Exception as error:
            self.error = error

    def session(self) -> None:
        try:
            with self.random.choice(self.things.citus.nodes).connect() as connection:
                for _ in range(20):
                    self.change(connection)
        except SERVER_LOST as error:
            self.failures[error.sqlstate or "connection lost"] += 1

    def change(self, connection: psycopg.Connection) -> None:
        try:
            connection.execute(f"SELECT change({self.random.choice(self.things.keys)})")
            self.changes += 1
        except SHARD_HAS_MOVED as error:
            self.failures[error.sqlstate] += 1


def kill_relay_of_old(old: Node, new: Node) -> None:
    old.cluster.kill_and_recover(old.wait_for_worker("relay", "d"))


def kill_relay_of_new(old: Node, new: Node) -> None:
    new.cluster.kill_and_recover(new.wait_for_worker("relay", "d"))


def kill_keeper_of_new(old: Node, new: Node) -> None:
    new.cluster.kill_and_recover(new.wait_for_worker("keeper"))


def kill_postmaster_of_new(old: Node, new: Node) -> None:
    new.cluster.kill_postmaster()
    new.cluster.start()


def kill_postmaster_of_old(old: Node, new: Node) -> None:
    old.cluster.kill_postmaster()
    old.cluster.start()


KILLS = (kill_relay_of_old, kill_keeper_of_new, kill_postmaster_of_new, kill_relay_of_new, kill_postmaster_of_old)


class Drill:
    def __init__(self, citus: Citus, receiver: Receiver) -> None:
        self.seed = new_seed()
        self.random = random.Random(self.seed)
        self.citus = citus
        self.receiver = receiver
        self.things = Things(citus)
        for name in DESTINATIONS:
            citus.coordinator.add_destination(name, receiver.url(f"/{name}"))
        for node in citus.nodes:
            for name in DESTINATIONS:
                node.wait_for_worker("relay", name)
        self.moves = 0

    # ---- load -----------------------------------------------------------------------------------

    @contextmanager
    def load(self) -> Iterator[list[Client]]:
        """Clients at work; after the block they have stopped."""
        clients = [Client(self.things, self.seed + number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield clients
        finally:
            for client in clients:
                client.stopping.set()
            for client in clients:
                client.join(180)
        failures = sum((client.failures for client in clients), Counter())
        print(f"moves: {self.moves}, changes: {sum(client.changes for client in clients)}, failures: {failures}")
        assert not any(client.is_alive() for client in clients), "a client hangs"
        errors = [client.error for client in clients if client.error is not None]
        assert not errors, f"clients failed: {errors}"

    def wait_changes(self, node: Node, key: int, beyond: int) -> None:
        """Waits until clients have changed rows of a shard on the node."""
        shard = self.things.shard_of(key)
        keys = [str(key) for key in self.things.keys if self.things.shard_of(key) == shard]
        wait_until(
            lambda: node.value(
                "SELECT count(*) FROM outbox.event WHERE position > %s AND aggregate_id = ANY (%s)", (beyond, keys)
            ),
            lambda seen: seen > 0, timeout=180, what="changes of the shard on its new node",
        )  # fmt: skip

    # ---- moves ----------------------------------------------------------------------------------

    def some_move(self) -> tuple[int, Node, Node]:
        """Returns a key, the node where its shard stands, and another one."""
        key = self.random.choice(self.things.keys)
        old = self.things.node_of(key)
        return key, old, self.random.choice([node for node in self.citus.nodes if node is not old])

    def move(self, key: int, to: Node) -> None:
        if self.things.node_of(key) is to:
            return
        mode = self.random.choice(MODES)
        # After a crash, Citus first has to clean up what an earlier attempt has left.
        wait_until(
            lambda: self.things.node_of(key) is to or self.things.move(key, to, mode) is None,
            what="the shard to move", ignoring=(CANNOT_MOVE_NOW, *SERVER_LOST),
        )  # fmt: skip
        self.moves += 1

    def move_with_backlog(self, between: Callable[[Node, Node], None] = lambda old, new: None) -> None:
        """Moves a shard while the old node's requests are not answered; they are soon after clients have changed rows
        on the new node."""
        key, old, new = self.some_move()
        last = new.last_position()
        gate = Gate()
        self.receiver.on(of_node(old), gate.held())
        try:
            wait_until(lambda: gate.holding, what="a backlog of the old node")
            self.move(key, new)
            self.wait_changes(new, key, last)
            between(old, new)
            self.citus.coordinator.disconnect()  # its session would go on with a connection to a dead server
        finally:
            self.receiver.forget_rules()
            gate.open()

    def cut_off_move(self, key: int, new: Node, victim: Node) -> None:
        """Begins to move a shard, and kills a server after the shard was created on the new node."""
        if self.things.node_of(key) is new:
            return  # an earlier one was not cut off in time
        shard = self.things.shard_of(key)
        wait_nobody_waits(self.citus)
        move = self.things.start_move(key, new)
        wait_until(lambda: shard in waits_for(new), what="the shard to be created")
        victim.cluster.kill_postmaster()
        victim.cluster.start()
        with suppress(psycopg.Error):
            move.end()
        self.citus.coordinator.disconnect()

    def move_slowly(self) -> None:
        """Moves a shard while the old node's requests are answered late."""
        key, old, new = self.some_move()
        self.receiver.on(of_node(old), delayed(0.05))
        try:
            self.move(key, new)
        finally:
            self.receiver.forget_rules()

    def move_all_to(self, node: Node) -> None:
        for key in self.things.keys:
            if self.things.node_of(key) is not node:
                self.move(key, node)

    # ---- end ------------------------------------------------------------------------------------

    def ledger(self) -> list[Entry]:
        rows = self.citus.coordinator.execute("SELECT event_id, id, version FROM ledger")
        return [Entry(str(event), str(key), version) for event, key, version in rows]

    def conclude(self, *, restarts: int = 0) -> None:
        """Checks each destination after everything has arrived."""
        wait_nobody_waits(self.citus)
        ledger = self.ledger()
        for name in DESTINATIONS:
            self.wait_all_arrived(ledger, f"/{name}")
            verdict = check(ledger, [event.id for event in arrived(self.receiver, f"/{name}")])
            print(f"{name}: {verdict}")
            verdict.hold(restarts=restarts)
        self.check_positions(ledger)

    def wait_all_arrived(self, ledger: list[Entry], path: str) -> None:
        wait_until(
            lambda: len({event.id for event in arrived(self.receiver, path)}), lambda seen: seen >= len(ledger),
            timeout=180, what=f"{len(ledger)} events at {path}",
        )  # fmt: skip

    def check_positions(self, ledger: list[Entry]) -> None:
        """Each event has one position, no two have the same, and those of a key rise with the version."""
        positions: dict[str, set[int]] = {}
        for event in self.receiver.events():
            positions.setdefault(event.id, set()).add(event.position)
        ambiguous = {event: seen for event, seen in positions.items() if len(seen) > 1}
        assert not ambiguous, f"events with several positions: {ambiguous}"
        position = {event: seen.pop() for event, seen in positions.items()}
        shared = [number for number, times in Counter(position.values()).items() if times > 1]
        assert not shared, f"{len(shared)} positions of several events: {shared[:10]}"
        last: dict[str, int] = {}
        for entry in sorted(ledger, key=lambda entry: entry.version):
            assert position[entry.event_id] > last.get(entry.key, 0), (
                f"the positions of key {entry.key} fall at {entry}"
            )
            last[entry.key] = position[entry.event_id]


@pytest.mark.slow
def test_shards_move_again_and_again(citus: Citus, receiver: Receiver) -> None:
    drill = Drill(citus, receiver)
    with drill.load():
        until = time.monotonic() + BUDGET
        while drill.moves < MOVES or (time.monotonic() < until and drill.moves < 3 * MOVES):
            drill.random.choice((drill.move_with_backlog, drill.move_slowly))()
    drill.conclude()


@pytest.mark.slow
def test_a_rebalance(citus: Citus, receiver: Receiver) -> None:
    drill = Drill(citus, receiver)
    crowded = drill.citus.workers[0]
    with drill.load():
        drill.move_all_to(crowded)
        wait_nobody_waits(citus)
        gate = Gate()
        receiver.on(of_node(crowded), gate.held())
        wait_until(lambda: gate.holding, what="a backlog of the crowded node")
        citus.coordinator.execute("SELECT rebalance_table_shards('thing', shard_transfer_mode => 'force_logical')")
        assert {drill.things.node_of(key) for key in drill.things.keys} == set(citus.nodes)
        gate.open()
    drill.conclude()


@pytest.mark.slow
@pytest.mark.worker_errors("possibly corrupted shared memory")  # a node shows why another has ended a session
@pytest.mark.worker_errors("cannot be asked")
@pytest.mark.worker_errors("keeper +ERROR:  postmaster was shut down, exiting")  # Citus, while it asks for the keeper
def test_servers_crash_while_shards_are_waited_for(make_citus: MakeCitus, receiver: Receiver) -> None:
    drill = Drill(make_citus({"citus.recover_2pc_interval": "1s"}), receiver)
    with drill.load():
        for kill in KILLS:
            drill.move_with_backlog(kill)
    drill.conclude(restarts=len(KILLS))


@pytest.mark.slow
@pytest.mark.worker_errors("possibly corrupted shared memory")
@pytest.mark.worker_errors("cannot be asked")
@pytest.mark.worker_errors("keeper +ERROR:  postmaster was shut down, exiting")  # Citus, while it asks for the keeper
def test_servers_crash_while_shards_are_copied(make_citus: MakeCitus, receiver: Receiver) -> None:
    drill = Drill(make_citus({"citus.recover_2pc_interval": "1s"}), receiver)
    crashes = 0
    with drill.load():
        for _ in range(2):
            key, old, new = drill.some_move()
            for victim in (new, old, drill.citus.coordinator):
                drill.cut_off_move(key, new, victim)
                crashes += 1
            drill.move(key, new)
    drill.conclude(restarts=crashes)


@pytest.mark.slow
def test_two_shards_move_at_a_time(citus: Citus, receiver: Receiver) -> None:
    drill = Drill(citus, receiver)
    by_shard = {drill.things.shard_of(key): key for key in drill.things.keys}
    receiver.on(of_node(citus.workers[0]), delayed(0.02))
    with drill.load():
        until = time.monotonic() + BUDGET
        while time.monotonic() < until:
            moves = []
            for key in drill.random.sample(list(by_shard.values()), 2):
                to = drill.random.choice([node for node in citus.nodes if node is not drill.things.node_of(key)])
                moves.append(drill.things.start_move(key, to, drill.random.choice(MODES)))
            for move in moves:
                with suppress(CANNOT_MOVE_NOW, psycopg.errors.InternalError_, psycopg.errors.DeadlockDetected):
                    move.end()
                    drill.moves += 1
        receiver.forget_rules()
    drill.conclude()
