"""The ledger test: what was committed, written down independently, against what arrived.

Run as a program this file is one writer: it changes aggregates until it is told to stop (SIGTERM).
Every change locks the aggregate's row, counts its version up, enqueues an event, and notes the
event in the table `ledger`, all in one transaction. So the committed versions of a key are 1, 2,
3, ... without a gap, in the order of their commits, and the ledger has the event of each version. A
rolled-back change leaves no row, and another change gets its version.

`check` compares the ledger with the arrivals:

    lost           in the ledger, never arrived
    invented       arrived, not in the ledger: rolled back, or forgotten by a crash
    out of order   a version that arrived for the first time before one below it
    twice          arrived again; fine after a failure, and counted
    steps back     how often a key went back to a lower version; a relay that starts over may do so
                   once per key, nothing else may
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from waiting import comes_true, wait_until

SETUP = """
CREATE TABLE aggregate (id int PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE ledger (event_id uuid PRIMARY KEY, aggregate int NOT NULL, version bigint NOT NULL,
                     writer int NOT NULL);
INSERT INTO aggregate SELECT n, 0 FROM generate_series(1, {aggregates}) AS n;
CREATE FUNCTION change(which int, writer int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
    event uuid;
BEGIN
    UPDATE aggregate SET version = version + 1 WHERE id = which RETURNING version INTO new_version;
    event := outbox.enqueue('item', which::text, 'changed',
                            jsonb_build_object('writer', writer), version => new_version);
    INSERT INTO ledger VALUES (event, which, new_version, writer);
    RETURN event;
END $$;
"""


# -------------------------------------------------------------------------------------------------
# A writer
# -------------------------------------------------------------------------------------------------


class Writer:
    """Changes aggregates in transactions of many kinds; survives the server."""

    def __init__(self, conninfo: str, number: int, seed: int, aggregates: int) -> None:
        self.conninfo = conninfo
        self.number = number
        self.random = random.Random(seed)
        self.aggregates = aggregates
        self.stopping = False
        self.committed = 0
        self.prepared = 0

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.on_stop)
        while not self.stopping:
            try:
                with psycopg.connect(self.conninfo) as connection:
                    self.resolve_prepared(connection)
                    while not self.stopping:
                        self.transaction(connection)
            except psycopg.OperationalError:
                time.sleep(0.02)  # the server restarts
        self.finish()

    def on_stop(self, *_: object) -> None:
        self.stopping = True

    def finish(self) -> None:
        """Leaves no prepared transaction behind."""

        def attempt() -> bool:
            with psycopg.connect(self.conninfo) as connection:
                self.resolve_prepared(connection)
            return True

        wait_until(
            attempt, timeout=180, what="the last prepared transactions to be resolved",
            ignoring=(psycopg.OperationalError,),
        )  # fmt: skip

    # ---- transactions ---------------------------------------------------------------------------

    def transaction(self, connection: psycopg.Connection) -> None:
        kinds = {
            self.plain: 60, self.with_savepoints: 15, self.rolled_back: 8, self.long: 1,
            self.two_phase: 8, self.asynchronous: 6,
        }  # fmt: skip
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        try:
            kind(connection)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled):
            connection.rollback()
            self.resolve_prepared(connection)  # otherwise its locks would stop everybody

    def some_aggregates(self, most: int) -> list[int]:
        """Locks in ascending order, so that writers cannot deadlock."""
        count = self.random.randint(1, most)
        return sorted(self.random.sample(range(1, self.aggregates + 1), count))

    def change(self, connection: psycopg.Connection, aggregate: int) -> None:
        connection.execute("SELECT change(%s, %s)", (aggregate, self.number))

    def commit(self, connection: psycopg.Connection) -> None:
        connection.commit()
        self.committed += 1

    def plain(self, connection: psycopg.Connection) -> None:
        for aggregate in self.some_aggregates(3):
            self.change(connection, aggregate)
        self.commit(connection)

    def with_savepoints(self, connection: psycopg.Connection) -> None:
        connection.execute("SELECT")  # otherwise each of the outer blocks is a transaction
        for aggregate in self.some_aggregates(4):
            with connection.transaction(force_rollback=self.random.random() < 0.5):
                self.change(connection, aggregate)
                if self.random.random() < 0.3:
                    with connection.transaction(force_rollback=self.random.random() < 0.5):
                        self.change(connection, aggregate)
        self.commit(connection)

    def rolled_back(self, connection: psycopg.Connection) -> None:
        for aggregate in self.some_aggregates(3):
            self.change(connection, aggregate)
        connection.rollback()

    def long(self, connection: psycopg.Connection) -> None:
        """Stays open while the others go on, unless all of them wait for this one."""
        self.change(connection, self.random.randint(1, self.aggregates))
        begin = self.last_position(connection)
        comes_true(lambda: self.stopping or self.last_position(connection) > begin + 100, seconds=0.3)
        self.commit(connection)

    @staticmethod
    def last_position(connection: psycopg.Connection) -> int:
        row = connection.execute("SELECT last_value FROM outbox.event_position").fetchone()
        assert row is not None
        return row[0]

    def asynchronous(self, connection: psycopg.Connection) -> None:
        connection.execute("SET LOCAL synchronous_commit = off")
        self.plain(connection)

    def two_phase(self, connection: psycopg.Connection) -> None:
        for aggregate in self.some_aggregates(2):
            self.change(connection, aggregate)
        self.prepared += 1
        outcome = self.random.choice(("commit", "commit", "rollback"))
        name = f"{outcome} {self.number} {self.prepared}"
        connection.execute(f"PREPARE TRANSACTION '{name}'")
        connection.commit()
        # Some time passes. Nothing that might wait for the prepared transaction's locks is done.
        self.last_position(connection)
        connection.rollback()
        self.resolve_prepared(connection)

    def resolve_prepared(self, connection: psycopg.Connection) -> None:
        """Ends this writer's prepared transactions in the way that their names say."""
        connection.autocommit = True
        try:
            names = connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() "
                "AND split_part(gid, ' ', 2) = %s",
                (str(self.number),),
            ).fetchall()
            for (name,) in names:
                connection.execute(f"{name.split()[0].upper()} PREPARED '{name}'")
                self.committed += name.startswith("commit")
        finally:
            if not connection.closed:
                connection.autocommit = False


# -------------------------------------------------------------------------------------------------
# The checker
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An event in the ledger."""

    event_id: str
    key: str
    version: int


@dataclass
class Verdict:
    committed: int = 0
    arrived: int = 0
    lost: list[Entry] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    twice: int = 0
    steps_back: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"committed {self.committed}, arrived {self.arrived}, lost {len(self.lost)}, "
            f"invented {len(self.invented)}, out of order {len(self.out_of_order)}, "
            f"twice {self.twice}, most steps back of a key {self.most_steps_back}"
        )

    @property
    def most_steps_back(self) -> int:
        return max(self.steps_back.values(), default=0)

    def hold(self, *, restarts: int = 0, repeats: bool = False) -> None:
        """Fails unless all promises hold.

        `restarts`: number of times that a relay may have started over; `repeats`: whether the destination
        failed now and then, so that events with an unknown outcome were sent again.
        """
        assert self.committed > 0, "nothing was committed: this run shows nothing"
        assert not self.lost, f"{self}\nlost: {self.lost[:10]}"
        assert not self.invented, f"{self}\ninvented: {self.invented[:10]}"
        assert not self.out_of_order, f"{self}\n" + "\n".join(self.out_of_order[:10])
        assert self.most_steps_back <= restarts, f"{self}\nallowed steps back: {restarts}"
        assert self.twice == 0 or restarts > 0 or repeats, f"{self}\nnothing may arrive twice"


def read_ledger(connection: psycopg.Connection) -> list[Entry]:
    rows = connection.execute("SELECT event_id, aggregate, version FROM ledger").fetchall()
    return [Entry(str(event_id), str(aggregate), version) for event_id, aggregate, version in rows]


def check_log(connection: psycopg.Connection) -> None:
    """Checks that the log has the events of the ledger, and that versions of a key are 1, 2, 3, ..."""
    unequal = connection.execute(
        "SELECT l.event_id, e.event_id "
        "FROM ledger AS l FULL JOIN outbox.event AS e USING (event_id) "
        "WHERE l.event_id IS NULL OR e.event_id IS NULL "
        "OR (l.aggregate::text, l.version) <> (e.aggregate_id, e.version) LIMIT 10"
    ).fetchall()
    assert not unequal, f"ledger and log differ: {unequal}"
    gaps = connection.execute(
        "SELECT aggregate, count(*), count(DISTINCT version), min(version), max(version) "
        "FROM ledger GROUP BY 1 HAVING count(*) <> max(version) OR min(version) <> 1 "
        "OR count(DISTINCT version) <> count(*)"
    ).fetchall()
    assert not gaps, f"the writers themselves are wrong: {gaps}"


def check(ledger: list[Entry], arrivals: list[str]) -> Verdict:
    """`arrivals` are ids of events in the order of their arrival."""
    verdict = Verdict(committed=len(ledger), arrived=len(arrivals))
    by_id = {entry.event_id: entry for entry in ledger}
    seen: set[str] = set()
    highest: Counter[str] = Counter()  # of each key, of those that arrived
    last: Counter[str] = Counter()
    for event_id in arrivals:
        entry = by_id.get(event_id)
        if entry is None:
            verdict.invented.append(event_id)
            continue
        key = entry.key
        if event_id in seen:
            verdict.twice += 1
        elif entry.version != highest[key] + 1:
            verdict.out_of_order.append(
                f"key {key}: version {entry.version} arrived when {highest[key]} was the highest"
            )
        seen.add(event_id)
        if entry.version < last[key]:
            verdict.steps_back[key] += 1
        last[key] = entry.version
        highest[key] = max(highest[key], entry.version)
    verdict.lost = [entry for entry in ledger if entry.event_id not in seen]
    return verdict


def writer_command(conninfo: str, number: int, seed: int, aggregates: int) -> list[str]:
    program = str(Path(__file__).resolve())
    return [sys.executable, program, conninfo, str(number), str(seed), str(aggregates)]


if __name__ == "__main__":
    writer = Writer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    writer.run()
    print(writer.committed)
