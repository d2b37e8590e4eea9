"""Common begin and end of drills: a database that writers write to, and records outside of it.

Writers are processes of their own (noting_writer.py), which record the outcome of their events.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from cluster import Cluster, Installation, make_directory
from database import Database, create_database
from ledger import SETUP, Entry
from processes import wait_until_handles

AGGREGATES = 24
WRITERS = 3

# Queries whose results are printed when a drill fails, usually after waiting in vain for something.
STATE = (
    "SELECT * FROM pg_prepared_xacts",
    "SELECT pid, backend_type, application_name, state, wait_event, xact_start, pg_blocking_pids(pid), left(query, 200)"
    "  FROM pg_stat_activity WHERE datname IS NOT NULL",
    "SELECT * FROM outbox.cursor",
    "SELECT * FROM outbox.relay",
    "SELECT * FROM outbox.transaction",
    "SELECT count(*), min(position), max(position) FROM outbox.event",
    "SELECT destination, count(*) FROM outbox.delivery GROUP BY 1",
)


def new_seed() -> int:
    return int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))


class Writing:
    reports: list[str] = []  # of all drills of the test that runs
    replaces_edition = False

    def __init__(self, cluster: Cluster, name: str, seed: int | None = None) -> None:
        self.name = name
        self.cluster = cluster
        self.notes = make_directory("notes")
        self.writers: list[subprocess.Popen[str]] = []
        self.seed = new_seed() if seed is None else seed
        self.random = random.Random(self.seed)
        print(f"OUTBOX_TEST_SEED={self.seed}")
        self.database = self.make_database(cluster)
        self.database.execute(SETUP.format(aggregates=AGGREGATES))

    def make_database(self, cluster: Cluster) -> Database:
        return create_database(cluster)

    def close(self) -> None:
        for process in self.writers:
            process.kill()
            process.wait()
        shutil.rmtree(self.notes, ignore_errors=True)

    @contextmanager
    def load(self, *, conninfo: str | None = None) -> Iterator[None]:
        """Runs writers in the block; after it they have stopped."""
        conninfo = conninfo or self.cluster.conninfo(self.database.name)
        program = Path(__file__).with_name("noting_writer.py")
        search = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.writers = [
            subprocess.Popen(
                [sys.executable, str(program), str(self.notes / str(number)), conninfo, str(number),
                 str(self.seed + number), str(AGGREGATES)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, **search},
            )
            for number in range(WRITERS)
        ]  # fmt: skip
        for process in self.writers:
            wait_until_handles(process, signal.SIGTERM)
        try:
            yield
        except BaseException:
            self.print_state()
            raise
        for process in self.writers:
            process.terminate()
        for process in self.writers:
            output, _ = process.communicate(timeout=90)
            assert process.returncode == 0, f"a writer failed:\n{output}"

    def print_state(self) -> None:
        """For a drill that fails: a writer that has ended may have left locks that the others wait for."""
        for number, process in enumerate(self.writers):
            if process.poll() is not None:
                print(f"---- writer {number} has ended with {process.returncode}:\n{process.communicate()[0]}")
        for query in STATE:
            print(f"---- {query}")
            try:
                print(*self.database.execute(query), sep="\n")
            except psycopg.Error as error:
                print(error)

    def replace_edition(self, installation: Installation, to: str) -> None:
        program = str(installation.build / "tools/outboxctl/outboxctl")
        conninfo = self.cluster.conninfo(self.database.name)
        done = subprocess.run(
            [program, "migrate-edition", "--to", to, "--yes", "--lock-timeout", "120", "-d", conninfo],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert self.database.value("SELECT outbox_internal.edition()") == to

    def noted_as(self, what: str) -> set[str]:
        lines = [
            line.rstrip("\n").split("\t") for path in self.notes.iterdir() for line in path.read_text().splitlines()
        ]
        return {event for kind, event in lines if kind == what}

    def check_ledger(self, ledger: list[Entry], rolled_back: set[str], acknowledged_lasts: bool) -> None:
        """Checks that the table `ledger` matches the records of the writers."""
        committed = {entry.event_id for entry in ledger}
        assert not committed & rolled_back, "what was rolled back is there"
        replaced = self.noted_as("replaced")
        assert not committed & replaced, "a transaction that failed is there"
        assert self.replaces_edition or not replaced, "transactions failed because pg_outbox had gone"
        if acknowledged_lasts:
            missing = self.noted_as("committed") - committed
            assert not missing, f"the server forgot what it had said was committed: {missing}"
        versions: dict[str, list[int]] = {}
        for entry in ledger:
            versions.setdefault(entry.key, []).append(entry.version)
        for key, found in versions.items():
            assert sorted(found) == list(range(1, len(found) + 1)), f"gaps in key {key}"
