"""A Citus cluster whose transactions change rows and enqueue on several nodes, and the record of what was committed.

The ledger is a distributed table: the function `change` counts an aggregate up, enqueues an event, and writes the event into
the ledger, on the node of the aggregate and in one transaction. A transaction that changes aggregates of both workers ends
in PREPARE TRANSACTION on each and, when the coordinator has committed, COMMIT PREPARED.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from drills.account import Account, Attempt, Kill, attempts_of, balance
from drills.drill import REPEATS_WINDOW
from drills.drill import SETTINGS as DRILL_SETTINGS
from ledger import Entry, read_ledger
from receiver import Receiver
from waiting import wait_until

from .citus_cluster import Citus, Node

# Citus recovers when a test says so.
SETTINGS = {**DRILL_SETTINGS, "citus.recover_2pc_interval": "-1"}

AGGREGATES = 24
SETUP = [
    "CREATE TABLE aggregate (id int PRIMARY KEY, version bigint NOT NULL)",
    "CREATE TABLE ledger (event_id uuid, aggregate int, version bigint NOT NULL, PRIMARY KEY (aggregate, event_id))",
    "SELECT create_distributed_table('aggregate', 'id')",
    "SELECT create_distributed_table('ledger', 'aggregate', colocate_with => 'aggregate')",
    f"INSERT INTO aggregate SELECT n, 0 FROM generate_series(1, {AGGREGATES}) AS n",
    """
CREATE FUNCTION change(which int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
    event uuid;
BEGIN
    UPDATE aggregate SET version = version + 1 WHERE id = which RETURNING version INTO new_version;
    event := outbox.enqueue('item', which::text, 'changed', jsonb_build_object('n', new_version), version => new_version);
    INSERT INTO ledger VALUES (event, which, new_version);
    RETURN event;
END $$
    """,
    "SELECT create_distributed_function('change(int)', 'which', colocate_with => 'aggregate', force_delegation => true)",
]

# PREPARE waits in a deferred trigger until a test lets go of a lock.
LOCK = 4711
HOLD_PREPARE = f"""
CREATE FUNCTION wait_in_prepare() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({LOCK});
    RETURN NULL;
END $$;
"""


def change(connection: psycopg.Connection, aggregate: int) -> str:
    """Changes an aggregate. Citus delegates the call to its node if the number is part of the statement."""
    row = connection.execute(f"SELECT change({aggregate})").fetchone()
    assert row is not None
    return str(row[0])


class Transaction(threading.Thread):
    """Runs statements in one transaction, in a thread that waits for the end of its COMMIT."""

    def __init__(self, node: Node, *statements: str) -> None:
        super().__init__(daemon=True)
        self.connection = node.connect()
        self.statements = statements
        self.error: psycopg.Error | None = None
        self.start()

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    def run(self) -> None:
        try:
            with self.connection.transaction():
                for statement in self.statements:
                    self.connection.execute(statement)
        except psycopg.Error as error:
            self.error = error

    def end(self) -> psycopg.Error | None:
        """Waits for the end; returns the error that the client saw."""
        self.join(timeout=180)
        assert not self.is_alive(), "the transaction does not end"
        self.connection.close()
        return self.error


@dataclass
class TwoPhase:
    citus: Citus
    receiver: Receiver
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        for statement in SETUP:
            self.citus.coordinator.execute(statement)
        self.citus.coordinator.add_destination("d", self.receiver.url())
        for node in self.citus.nodes:
            node.wait_for_worker("relay", "d")

    def keys_on(self, node: Node) -> list[int]:
        return [key for key in range(1, AGGREGATES + 1) if self.citus.shard_node("aggregate", key) is node]

    # ---- transactions in doubt ------------------------------------------------------------------

    def hold_prepare_on(self, node: Node) -> None:
        """Makes transactions that change the ledger wait in PREPARE while `held` is entered."""
        shards = self.citus.coordinator.execute(
            "SELECT shard_name('ledger', shardid) FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) "
            "WHERE logicalrelid = 'ledger'::regclass AND groupid = %s", (node.group,),
        )  # fmt: skip
        node.execute_here(HOLD_PREPARE, *(
            f"CREATE CONSTRAINT TRIGGER wait_in_prepare AFTER INSERT ON {shard} DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait_in_prepare()" for (shard,) in shards
        ))  # fmt: skip

    @contextmanager
    def held(self, node: Node) -> Iterator[None]:
        with node.connect() as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
            yield

    def prepared(self, node: Node) -> int:
        """Returns the number of transactions in doubt on a node."""
        return node.value("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")

    def wait_prepared(self, node: Node, count: int) -> None:
        wait_until(
            lambda: self.prepared(node), lambda seen: seen == count, what=f"{count} prepared on node {node.group}"
        )

    def wait_waiting(self, node: Node) -> int:
        """Waits until a PREPARE waits for the lock; returns its process."""
        return wait_until(
            lambda: node.value("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", (LOCK,)),
            what=f"a PREPARE that waits on node {node.group}",
        )  # fmt: skip

    def preparing_backend(self, node: Node) -> int:
        """Returns the process that has prepared and waits for the verdict."""
        return node.value(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'citus_internal%' AND datname = current_database() "
            "AND query LIKE 'PREPARE TRANSACTION%' AND state = 'idle'"
        )

    def wait_decided(self) -> None:
        """Waits until the coordinator has committed."""
        coordinator = self.citus.coordinator
        wait_until(
            lambda: coordinator.value("SELECT count(*) FROM pg_dist_transaction"), what="the commit of the coordinator"
        )

    def recover(self, node: Node | None = None) -> int:
        """Ends transactions in doubt whose coordinator is this node. A new session has no connections that a kill has ended."""
        with (node or self.citus.coordinator).connect() as connection:
            row = connection.execute("SELECT recover_prepared_transactions()").fetchone()
        assert row is not None
        return row[0]

    # ---- kills ----------------------------------------------------------------------------------

    @contextmanager
    def noted(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.kills.append(Kill(what, began, time.monotonic()))

    def kill(self, node: Node, pid: int, what: str = "backend") -> None:
        with self.noted(what):
            node.cluster.kill_and_recover(pid)

    def kill_postmaster(self, node: Node) -> None:
        with self.noted("postmaster"):
            node.cluster.kill_postmaster()
            node.cluster.start()

    # ---- the end --------------------------------------------------------------------------------

    def wait_arrived(self, count: int) -> None:
        """Waits until this number of different events has arrived."""
        wait_until(lambda: len(set(self.receiver.ids())), lambda seen: seen == count, what=f"{count} events to arrive")

    def attempts(self) -> list[Attempt]:
        return attempts_of(self.receiver.events())

    def conclude(self, rolled_back: set[str] = frozenset()) -> tuple[Account, list[Entry]]:
        """Compares what was committed with what has arrived, when no transaction is in doubt and all is settled."""
        for node in self.citus.nodes:
            assert self.prepared(node) == 0, f"a transaction is in doubt on node {node.group}"
        ledger = read_ledger(self.citus.coordinator.connection)
        committed = {entry.event_id for entry in ledger}
        wait_until(
            lambda: len(committed.difference(self.receiver.ids())), lambda missing: missing == 0,
            what="all committed events to arrive",
        )  # fmt: skip
        for node in self.citus.nodes:
            node.wait_settled()
        account = balance(
            ledger, self.attempts(), dead=set(), rolled_back=set(rolled_back), max_attempts=1, kills=self.kills,
            window=REPEATS_WINDOW, behind=16 * int(SETTINGS["outbox.max_in_flight"]) + 512,
        )  # fmt: skip
        account.hold(restarts=len(self.kills))
        return account, ledger
