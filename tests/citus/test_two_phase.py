"""Transactions that enqueue on several nodes, while processes are killed between PREPARE and COMMIT PREPARED.

The PREPARE of the second worker waits in a deferred trigger, so the first worker has prepared and knows no outcome. Polls
are an hour apart: an event of a transaction that was in doubt arrives because COMMIT PREPARED wakes the relay.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from processes import stop_process
from receiver import Receiver
from waiting import wait_until

from .citus_cluster import Citus, Node
from .two_phase import AGGREGATES, SETTINGS, Transaction, TwoPhase, change

MakeCitus = Callable[..., Citus]


@pytest.fixture
def drill(make_citus: MakeCitus, receiver: Receiver) -> TwoPhase:
    drill = TwoPhase(make_citus(SETTINGS), receiver)
    drill.hold_prepare_on(drill.citus.workers[1])
    return drill


@pytest.fixture
def coordinator(drill: TwoPhase) -> Node:
    return drill.citus.coordinator


@pytest.fixture
def first(drill: TwoPhase) -> Node:
    return drill.citus.workers[0]


@pytest.fixture
def second(drill: TwoPhase) -> Node:
    return drill.citus.workers[1]


def begin(drill: TwoPhase) -> Transaction:
    """Starts a transaction that changes the first aggregate of each worker; returns when the first worker has prepared."""
    first, second = drill.citus.workers
    transaction = Transaction(drill.citus.coordinator, drill.keys_on(first)[0], drill.keys_on(second)[0])
    drill.wait_prepared(first, 1)
    drill.wait_waiting(second)
    return transaction


def change_one(node: Node, key: int) -> str:
    with node.connect() as connection:
        return change(connection, key)


def events(node: Node) -> int:
    return node.value("SELECT count(*) FROM outbox.event")


def test_what_the_coordinator_has_not_decided_is_undone(
    drill: TwoPhase, coordinator: Node, first: Node, second: Node
) -> None:
    with drill.held(second):
        transaction = begin(drill)
        drill.kill(coordinator, transaction.pid)
        assert transaction.end() is not None
    drill.wait_prepared(second, 1)  # it goes on without its client
    # Events of other aggregates do not wait for a transaction in doubt.
    change_one(coordinator, drill.keys_on(first)[1])
    change_one(coordinator, drill.keys_on(second)[1])
    drill.wait_arrived(2)
    assert (drill.prepared(first), drill.prepared(second)) == (1, 1)
    assert drill.recover() == 2
    account, ledger = drill.conclude()
    assert account.committed == 2 and {entry.version for entry in ledger} == {1}


@pytest.mark.parametrize("what", ["backend", "postmaster"])
def test_what_the_coordinator_has_committed_is_delivered_when_the_worker_is_back(
    drill: TwoPhase, coordinator: Node, first: Node, second: Node, what: str
) -> None:
    with drill.held(second):
        transaction = begin(drill)
        backend = drill.preparing_backend(first)
        stop_process(backend)  # COMMIT PREPARED does not reach it
    drill.wait_decided()
    drill.wait_arrived(1)
    if what == "backend":
        drill.kill(first, backend)
    else:
        stop_process(first.cluster.postmaster)
        first.cluster.kill(backend)
        drill.kill_postmaster(first)
    assert transaction.end() is None, "the coordinator has committed"
    assert (drill.prepared(first), events(first), events(second)) == (1, 0, 1)
    # An event of another aggregate does not wait, one of the same aggregate does, by the lock of its row.
    change_one(coordinator, drill.keys_on(first)[1])
    drill.wait_arrived(2)
    later = Transaction(coordinator, drill.keys_on(first)[0])
    assert drill.recover() == 1
    assert later.end() is None
    account, ledger = drill.conclude()
    assert account.committed == 4
    assert sorted(entry.version for entry in ledger) == [1, 1, 1, 2]


def test_what_a_coordinator_has_committed_before_it_died_is_delivered(
    drill: TwoPhase, coordinator: Node, first: Node, second: Node
) -> None:
    with drill.held(second):
        transaction = begin(drill)
        backend = drill.preparing_backend(first)
        stop_process(backend)
    drill.wait_decided()
    drill.kill(coordinator, transaction.pid)
    drill.kill(first, backend)
    assert transaction.end() is not None, "the client does not know the outcome"
    assert (drill.prepared(first), events(first), events(second)) == (1, 0, 1)
    assert drill.recover() == 1
    account, _ = drill.conclude()
    assert account.committed == 2


def test_a_worker_that_dies_in_prepare_undoes_the_transaction(
    drill: TwoPhase, coordinator: Node, first: Node, second: Node
) -> None:
    with drill.held(second):
        transaction = begin(drill)
        drill.kill(second, drill.wait_waiting(second))
        assert transaction.end() is not None
        assert (drill.prepared(first), drill.prepared(second)) == (0, 0)
    change_one(coordinator, drill.keys_on(first)[0])
    account, ledger = drill.conclude()
    assert account.committed == 1 and {entry.version for entry in ledger} == {1}


# -------------------------------------------------------------------------------------------------
# Random kills
# -------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Changes aggregates of several nodes in transactions, through any node, until it is told to stop."""

    def __init__(self, citus: Citus, seed: int) -> None:
        super().__init__(daemon=True)
        self.citus = citus
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    with self.random.choice(self.citus.nodes).connect() as connection:
                        while not self.stopping.is_set():
                            self.transaction(connection)
                except psycopg.Error:
                    self.stopping.wait(0.05)  # a server restarts, or Citus has noticed that one did
        except BaseException as failure:
            self.failure = failure

    def transaction(self, connection: psycopg.Connection) -> None:
        """In ascending order of keys, so that writers do not deadlock."""
        keys = sorted(self.random.sample(range(1, AGGREGATES + 1), self.random.randint(1, 4)))
        undo = self.random.random() < 0.15
        with connection.transaction(force_rollback=undo):
            ids = [change(connection, key) for key in keys]
        (self.rolled_back if undo else self.committed).update(ids)

    def end(self) -> None:
        self.stopping.set()
        self.join(timeout=60)
        assert not self.is_alive() and self.failure is None, f"a writer failed: {self.failure}"


def backend_of(node: Node, condition: str, dice: random.Random) -> int | None:
    rows = node.cluster.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND backend_xid IS NOT NULL "
        f"AND datname = %s AND {condition}", (node.name,),
    )  # fmt: skip
    return dice.choice(rows)[0] if rows else None


def kill_something(drill: TwoPhase, dice: random.Random) -> str:
    node = dice.choice(drill.citus.nodes)
    what = dice.choice(["session", "session", "part of a transaction", "part of a transaction", "relay", "postmaster"])
    if what == "postmaster":
        drill.kill_postmaster(node)
        return what
    if what == "relay":
        pid = node.wait_for_worker("relay", "d")
    else:
        condition = "application_name" + (" NOT" if what == "session" else "") + " LIKE 'citus_internal%%'"
        node, pid = wait_until(
            lambda: next(((n, pid) for n in dice.sample(drill.citus.nodes, 3) if (pid := backend_of(n, condition, dice))), None),
            what=f"a {what}",
        )
    drill.kill(node, pid, what)
    return what


@pytest.mark.slow
def test_random_kills_lose_and_invent_nothing(make_citus: MakeCitus, receiver: Receiver) -> None:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}")
    dice = random.Random(seed)
    drill = TwoPhase(make_citus({**SETTINGS, "citus.recover_2pc_interval": "500ms"}), receiver)
    writers = [Writer(drill.citus, seed + number) for number in range(3)]
    kinds: Counter[str] = Counter()
    in_doubt = 0
    for _ in range(10):
        arrived = len(receiver.requests) + dice.choice([5, 40, 150])
        wait_until(lambda: len(receiver.requests), lambda seen: seen >= arrived, what="more events to arrive")
        kinds[kill_something(drill, dice)] += 1
        in_doubt += sum(drill.prepared(node) for node in drill.citus.nodes)
    for writer in writers:
        writer.end()
    for node in drill.citus.nodes:
        wait_until(
            lambda: (drill.recover(node), drill.prepared(node))[1] if node is not None else 0, lambda left: left == 0,
            what="nothing to be in doubt", ignoring=(psycopg.Error,),
        )  # fmt: skip
    account, ledger = drill.conclude(set().union(*(writer.rolled_back for writer in writers)))
    committed = {entry.event_id for entry in ledger}
    missing = set().union(*(writer.committed for writer in writers)) - committed
    assert not missing, f"not in the ledger although COMMIT had succeeded: {missing}"
    print(f"{account}; kills: {dict(kinds)}; prepared right after a kill: {in_doubt}")
