"""A fetcher for the ledger tests: appends the id of every event it "sends" to a file.

Run as a program: fetcher.py CONNINFO DESTINATION FILE SEED. It survives the server, refuses an event
now and then, lets a lease run out now and then, and stops at SIGTERM.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import psycopg

REFUSED = 0.02
STALLED = 0.002
LEASE = "1s"


class Fetcher:
    def __init__(self, conninfo: str, destination: str, path: str, seed: int) -> None:
        self.conninfo = conninfo
        self.destination = destination
        self.sent = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.random = random.Random(seed)
        self.stopping = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.on_stop)
        while not self.stopping:
            try:
                with psycopg.connect(self.conninfo, autocommit=True) as connection:
                    while not self.stopping:
                        self.turn(connection)
            except psycopg.OperationalError:
                time.sleep(0.02)  # the server restarts

    def on_stop(self, *_: object) -> None:
        self.stopping = True

    def turn(self, connection: psycopg.Connection) -> None:
        size = self.random.choice((1, 7, 100))
        rows = connection.execute(
            "SELECT token, event_id FROM outbox.fetch(%s, %s, %s)", (self.destination, size, LEASE)
        ).fetchall()
        if not rows:
            time.sleep(0.01)
            return
        try:
            self.deliver(connection, rows)
        except psycopg.Error as error:
            if error.sqlstate != "OL001":
                raise

    def deliver(self, connection: psycopg.Connection, rows: list[tuple]) -> None:
        token, skipped = rows[0][0], set()
        for _, event_id in rows:
            if event_id in skipped:
                continue
            if self.random.random() < STALLED:
                return  # without settling, so that the lease runs out
            if self.random.random() < REFUSED:
                behind = connection.execute("SELECT outbox.nack(%s, %s, 'no')", (token, event_id)).fetchall()
                skipped.update(row[0] for row in behind)
                continue
            os.write(self.sent, f"{event_id}\n".encode())
        connection.execute("SELECT outbox.ack(%s)", (token,))


if __name__ == "__main__":
    Fetcher(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
