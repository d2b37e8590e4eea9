"""A writer of the ledger test that also records, outside the server, the outcome of its events.

    committed      the server said so; that must last
    rolled back    must never arrive
    replaced       rolled back too, because the edition of pg_outbox was replaced while it waited

Events of transactions with an unknown end, or that were prepared or did not wait for the disk,
are not recorded: only the table `ledger` has them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ledger import Writer

# Errors of functions of the SQL edition that were replaced while a statement waited for a lock.
REPLACED = ("cache lookup failed for function", "could not open relation with OID")

# The pause of each writer leaves processor time to the receivers and the tests.
PAUSE = 0.004


class NotingWriter(Writer):
    def __init__(self, notes: str, *arguments: str) -> None:
        conninfo, number, seed, aggregates = arguments
        super().__init__(conninfo, int(number), int(seed), int(aggregates))
        self.notes = open(notes, "a", buffering=1)
        self.events: list[str] = []  # of the transaction under way
        self.durable = True

    def note(self, what: str, events: list[str]) -> None:
        self.notes.write("".join(f"{what}\t{event}\n" for event in events))

    def transaction(self, connection: psycopg.Connection) -> None:
        time.sleep(self.random.random() * 2 * PAUSE)
        self.events = []
        self.durable = True
        prepared = self.prepared
        try:
            super().transaction(connection)
        except (psycopg.errors.InternalError_, psycopg.errors.SerializationFailure) as error:
            if isinstance(error, psycopg.errors.InternalError_) and not str(error).startswith(REPLACED):
                raise
            connection.rollback()
            self.resolve_prepared(connection)  # if it failed after PREPARE, its events exist
            self.note("replaced", ["what failed", *(self.events if self.prepared == prepared else [])])

    def change(self, connection: psycopg.Connection, aggregate: int) -> None:
        row = connection.execute("SELECT change(%s, %s)", (aggregate, self.number)).fetchone()
        assert row is not None
        self.events.append(str(row[0]))

    def commit(self, connection: psycopg.Connection) -> None:
        super().commit(connection)
        if self.durable:
            self.note("committed", self.events)

    def rolled_back(self, connection: psycopg.Connection) -> None:
        super().rolled_back(connection)
        self.note("rolled back", self.events)

    def asynchronous(self, connection: psycopg.Connection) -> None:
        self.durable = False
        super().asynchronous(connection)

    @contextmanager
    def savepoint(self, connection: psycopg.Connection) -> Iterator[None]:
        before = len(self.events)
        back = self.random.random() < 0.5
        with connection.transaction(force_rollback=back):
            yield
        if back:
            self.note("rolled back", self.events[before:])
            del self.events[before:]

    def with_savepoints(self, connection: psycopg.Connection) -> None:
        connection.execute("SELECT")  # otherwise each of the outer blocks is a transaction
        for aggregate in self.some_aggregates(4):
            with self.savepoint(connection):
                self.change(connection, aggregate)
                if self.random.random() < 0.3:
                    with self.savepoint(connection):
                        self.change(connection, aggregate)
        self.commit(connection)


if __name__ == "__main__":
    NotingWriter(*sys.argv[1:]).run()
