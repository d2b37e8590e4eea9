"""A processor outside the server, for tests that kill and stop it: claims messages, writes the effect of
each in the transaction that completes it, and fails some. A message with the key `deadly` ends it.

Run as a program: claimer.py CONNINFO CONSUMER NAME SEED FAULTS. It survives the server, and stops at
SIGTERM. With FAULTS 1, it refuses a message now and then, and lets a lease run out now and then; with 0,
neither.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import NamedTuple

import psycopg

REFUSED = 0.02
STALLED = 0.002
LEASE = "1s"
LEASE_LOST = "IL001"


class Message(NamedTuple):
    token: object
    event_id: object
    key: str
    version: int


class Claimer:
    def __init__(self, conninfo: str, consumer: str, name: str, seed: int, faults: int) -> None:
        self.conninfo = conninfo
        self.consumer = consumer
        self.name = name
        self.random = random.Random(seed)
        self.refused, self.stalled = REFUSED * faults, STALLED * faults
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
        size = self.random.choice((3, 7, 100))
        rows = connection.execute(
            "SELECT token, event_id, ordering_key, version FROM inbox.claim(%s, %s, %s)",
            (self.consumer, size, LEASE),
        ).fetchall()
        if not rows:
            time.sleep(0.01)
        held = set()
        for message in map(Message._make, rows):
            if message.key in held:
                continue
            if self.random.random() < self.stalled:
                return  # without settling, so that the lease runs out
            try:
                self.handle(connection, message)
            except psycopg.errors.RaiseException as error:
                held.add(message.key)
                self.give_up(connection, message, str(error))
            except psycopg.Error as error:
                if error.sqlstate != LEASE_LOST:
                    raise
                held.add(message.key)

    def give_up(self, connection: psycopg.Connection, message: Message, error: str) -> None:
        try:
            connection.execute("SELECT inbox.fail(%s, %s, %s)", (message.token, message.event_id, error))
        except psycopg.Error as lost:  # the lease may have ended while it was handled
            if lost.sqlstate != LEASE_LOST:
                raise

    def handle(self, connection: psycopg.Connection, message: Message) -> None:
        if message.key == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        with connection.transaction():
            row = connection.execute("SELECT inbox.complete(%s, %s)", (message.token, message.event_id)).fetchone()
            if row == (False,):
                return  # a duplicate
            connection.execute(
                "INSERT INTO applied (event_id, key, version, who) VALUES (%s, %s, %s, %s)",
                (message.event_id, message.key, message.version, self.name),
            )
            if self.random.random() < self.refused:
                connection.execute("DO 'BEGIN RAISE EXCEPTION ''no''; END'")


if __name__ == "__main__":
    Claimer(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])).run()
