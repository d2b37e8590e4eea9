"""Transactions that enqueue on several nodes, while processes are killed between PREPARE and COMMIT PREPARED.

The PREPARE of the second worker waits in a deferred trigger, so the first worker has prepared and knows no outcome. Polls
are an hour apart: an event of a transaction that was in doubt arrives because COMMIT PREPARED wakes the relay.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter

import psycopg
import pytest

from processes import stop_process
from receiver import Receiver
from waiting import wait_until

from .citus_cluster import Citus, MakeCitus, Node
from .two_phase import AGGREGATES, SETTINGS, Transaction, TwoPhase, change

# Citus writes what other nodes say into the log of the node that has asked, also that one of their processes was killed.
pytestmark = pytest.mark.worker_errors("DETAIL:  The postmaster has commanded this server process to roll back")


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
    changes = [f"SELECT change({drill.keys_on(worker)[0]})" for worker in (first, second)]
    transaction = Transaction(drill.citus.coordinator, *changes)
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
    later = Transaction(coordinator, f"SELECT change({drill.keys_on(first)[0]})")
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
    drill.wait_arrived(1)  # so the other worker knows the outcome
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


ENQUEUE = "SELECT outbox.enqueue('item', 'a', 'changed', '{}'::jsonb)"


@pytest.mark.parametrize("enqueues", ["first", "last"])
def test_rows_of_one_worker_are_not_committed_without_the_event_of_the_coordinator(
    drill: TwoPhase, coordinator: Node, second: Node, enqueues: str
) -> None:
    """Citus by itself would commit in one phase, and the rows first."""
    insert = f"INSERT INTO ledger VALUES (gen_random_uuid(), {drill.keys_on(second)[0]}, 0)"
    with drill.held(second):
        transaction = Transaction(coordinator, *([ENQUEUE, insert] if enqueues == "first" else [insert, ENQUEUE]))
        waits = drill.wait_waiting(second)
        drill.kill(coordinator, transaction.pid)
        assert transaction.end() is not None
    wait_until(
        lambda: second.value("SELECT count(*) FROM pg_locks WHERE pid = %s", (waits,)), lambda locks: locks == 0,
        what="the transaction of the worker to go on",
    )  # fmt: skip
    drill.recover()
    assert (second.value("SELECT count(*) FROM ledger"), events(coordinator)) == (0, 0)


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
        """Changes keys in ascending order, so that writers do not deadlock."""
        keys = sorted(self.random.sample(range(1, AGGREGATES + 1), self.random.randint(1, 4)))
        undo = self.random.random() < 0.15
        with connection.transaction(force_rollback=undo):
            ids = [change(connection, key) for key in keys]
        (self.rolled_back if undo else self.committed).update(ids)

    def end(self) -> None:
        self.stopping.set()
        self.join(timeout=180)
        assert not self.is_alive() and self.failure is None, f"a writer failed: {self.failure}"


def backend_of(node: Node, condition: str, dice: random.Random) -> int | None:
    rows = node.cluster.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND backend_xid IS NOT NULL "
        f"AND datname = %s AND {condition}", (node.name,),
    )  # fmt: skip
    return dice.choice(rows)[0] if rows else None


def end_all_in_doubt(drill: TwoPhase) -> None:
    """Each node is the coordinator of the transactions of its sessions."""

    def left() -> int:
        for node in drill.citus.nodes:
            drill.recover(node)
        return sum(drill.prepared(node) for node in drill.citus.nodes)

    wait_until(left, lambda seen: seen == 0, what="no transaction to be in doubt", ignoring=(psycopg.Error,))


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
            lambda: next(
                ((n, pid) for n in dice.sample(drill.citus.nodes, 3) if (pid := backend_of(n, condition, dice))), None
            ),
            what=f"a {what}",
        )
    try:
        drill.kill(node, pid, what)
    except ProcessLookupError:
        return "nothing"  # it had ended
    return what


PANIC_OF_CITUS = r"PANIC:  cannot abort transaction \d+, it was already committed"


def check_panics(node: Node) -> None:
    """Citus raises an error if its postmaster dies while it tells workers that the transaction has committed."""
    log = node.cluster.log()
    for pid in re.findall(rf"\[(\d+)\].*{PANIC_OF_CITUS}", log):
        assert re.search(rf"\[{pid}\].*ERROR:  postmaster was shut down, exiting", log), (
            f"another error in COMMIT, process {pid}"
        )


@pytest.mark.slow
@pytest.mark.worker_errors(PANIC_OF_CITUS)
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
    end_all_in_doubt(drill)
    account, ledger = drill.conclude(set().union(*(writer.rolled_back for writer in writers)))
    committed = {entry.event_id for entry in ledger}
    missing = set().union(*(writer.committed for writer in writers)) - committed
    assert not missing, f"not in the ledger although COMMIT had succeeded: {missing}"
    for node in drill.citus.nodes:
        check_panics(node)
    print(f"{account}; kills: {dict(kinds)}; prepared right after a kill: {in_doubt}")
