"""Shared parts of all figures: the event, filling the log, and watching the relay."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psycopg
import psycopg.rows

from cluster import Cluster
from machine import Watch

T = TypeVar("T")

ACCOUNTS = 100_000
KEYS = 10_000

# While others use more of the machine than this, slices wait or are measured again.
MOST_FOR_OTHERS = 0.03
QUIET = 1.0  # seconds without others before a slice begins: they come in bursts

# Fills the log; several sessions may call it at the same time. `per` events a transaction. Ordering key:
# null for the aggregate's id, '' for no order.
SCHEMA = f"""
CREATE TABLE account (id integer PRIMARY KEY, version bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO account SELECT i, 0 FROM generate_series(1, {ACCOUNTS}) AS i;
CREATE PROCEDURE fill(events integer, per integer, payload jsonb, ordering_key text, keys integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. events / per LOOP
        IF per = 1 THEN
            PERFORM outbox.enqueue('account', 'a' || i % keys, 'AccountChanged', payload, i,
                                   ordering_key => ordering_key);
        ELSE
            PERFORM outbox.enqueue(ARRAY(
                SELECT ROW('account', 'a' || (i::bigint * 7919 + n) % keys, 'AccountChanged', payload, i,
                           NULL, ordering_key, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event
                  FROM generate_series(1, per) AS n));
        END IF;
        COMMIT;
    END LOOP;
END $$;
"""


def payload(size: int = 512) -> str:
    """Returns a JSON object of exactly this size in bytes."""
    event = {"account_id": "a_123456", "balance": 1234567, "owner": ""}
    event["owner"] = "x" * (size - len(json.dumps(event)))
    return json.dumps(event)


def wait_until(reached: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(pause)


class Unavailable(Exception):
    """The program or server that a figure measures is missing."""


@dataclass
class Bench:
    """Tools that a figure uses."""

    cluster: Cluster
    programs: Path
    quick: bool
    database: str = "bench"
    slices: int = 0
    disturbed: int = 0
    credentials: dict[str, str] = field(default_factory=dict)  # for destinations made from now on

    def __post_init__(self) -> None:
        self.patience = 30 if self.quick else 900
        self.sql = self.cluster.connect(self.database)
        self.install()
        self.sql.execute(SCHEMA)

    def install(self) -> None:
        self.sql.execute("CREATE EXTENSION pg_outbox")

    def need_extension(self, name: str) -> None:
        if not self.cluster.has_extension(name):
            raise Unavailable(f"the server does not have the extension {name}")

    def say(self, text: str) -> None:
        print(f"    {text}", flush=True)

    def program(self, name: str, *arguments: str) -> dict:
        """Runs a helper program to its end, and returns its output, parsed as JSON."""
        output = subprocess.check_output([self.programs / name, *arguments], text=True)
        return json.loads(output)

    def undisturbed(self, measure: Callable[[], T]) -> T:
        """Returns the result of a `measure` during which others left the machine alone.

        Waits and repeats it until then, or until the patience for this figure is used up.
        """
        self.slices += 1
        while True:
            start = time.monotonic()
            while self.patience > 0 and Watch.of(QUIET) > MOST_FOR_OTHERS:
                self.patience -= QUIET
            watch = Watch()
            result = measure()
            if watch.others() <= MOST_FOR_OTHERS:
                return result
            self.patience -= time.monotonic() - start
            if self.patience <= 0:
                self.disturbed += 1
                return result

    def disturbances(self) -> str:
        return (
            f"others used more than {MOST_FOR_OTHERS:.0%} of the machine during "
            f"{self.disturbed} of {self.slices} slices"
        )

    def pgbench(self, arguments: list, environment: dict | None = None) -> str:
        """Runs pgbench to its end; returns its report and its progress messages."""
        run = subprocess.run(
            [self.cluster.bin / "pgbench", "-n", *arguments, self.cluster.conninfo(self.database)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if run.returncode != 0:
            raise RuntimeError(f"pgbench failed: {run.stderr[-2000:]}")
        return run.stdout + run.stderr

    def touch_memory(self) -> None:
        """Uses every buffer once and leaves WAL segments to reuse.

        A page of shared memory costs a page fault at its first use, and a new WAL segment is written
        twice: both would count for the first insert.
        """
        pages = self.sql.execute("SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers'")
        self.sql.execute("CREATE TABLE filler (page text)")
        self.sql.execute("ALTER TABLE filler ALTER page SET STORAGE PLAIN")
        self.sql.execute(
            "INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, %s)", [pages.fetchone()[0]]
        )
        self.sql.execute("DROP TABLE filler")
        self.sql.execute("CHECKPOINT")

    def need_sink(self, kind: str) -> None:
        library = self.cluster.libraries() / f"pg_outbox_{kind}.so"
        if not library.exists():
            raise Unavailable(f"the {kind} sink is not built")

    # -- the log ------------------------------------------------------------------------------

    def fill(
        self, events: int, per: int, sessions: int = 2, size: int = 512, ordered: bool = True, keys: int = KEYS
    ) -> None:
        """Puts events into the log in committed transactions of `per`."""
        script = self.cluster.root / "fill.sql"
        script.write_text(
            f"CALL fill({events // sessions}, {per}, '{payload(size)}', "
            f"{'NULL' if ordered else chr(39) * 2}, {keys});\n"
        )
        environment = os.environ | {"PGOPTIONS": "-c synchronous_commit=off"}
        self.pgbench(["-t", "1", "-c", str(sessions), "-j", str(sessions), "-f", script], environment)
        # A relay waits until the events are on disk, which is not to be measured.
        self.sql.execute("SELECT pg_logical_emit_message(true, 'bench', 'flush')")

    def clear_log(self) -> None:
        self.sql.execute("TRUNCATE outbox.event, outbox.cursor")

    # -- the relay ----------------------------------------------------------------------------

    @contextmanager
    def destination(self, url: str, called: str = "sink", **options: str):
        """Creates a destination for the duration of the block."""

        def listed(options: dict[str, str]) -> str:
            quoted = {name: value.replace("'", "''") for name, value in options.items()}
            return ", ".join(f"{name} '{value}'" for name, value in quoted.items())

        self.sql.execute("BEGIN")
        self.sql.execute(
            f"CREATE SERVER {called} FOREIGN DATA WRAPPER pg_outbox OPTIONS ({listed({'url': url} | options)})"
        )
        if self.credentials:
            self.sql.execute(
                f"CREATE USER MAPPING FOR CURRENT_USER SERVER {called} OPTIONS ({listed(self.credentials)})"
            )
        self.sql.execute("COMMIT")
        try:
            yield
        finally:
            self.sql.execute(f"DROP SERVER {called} CASCADE")
            wait_until(lambda: self.relay_pid(called) is None, 10, "the relay has ended")

    def relay_pid(self, called: str = "sink") -> int | None:
        row = self.sql.execute(
            "SELECT pid FROM outbox.workers() WHERE kind = 'relay' AND name = %s", [called]
        ).fetchone()
        return row and row[0]

    def delivered(self) -> int:
        row = self.sql.execute(
            "SELECT delivered FROM outbox.workers() WHERE kind = 'relay' AND name = 'sink'"
        ).fetchone()
        return row[0] if row else 0

    def delivered_bytes(self) -> int:
        """Bytes of payloads delivered since the relay started."""
        return self.sql.execute(
            "SELECT delivered_bytes FROM outbox.workers() WHERE kind = 'relay' AND name = 'sink'"
        ).fetchone()[0]

    def wait_until_idle(self) -> None:
        wait_until(lambda: self.status()["state"] == "idle", 30, "the relay is idle")

    def status(self) -> dict:
        with self.sql.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute("SELECT * FROM outbox.status").fetchone()
