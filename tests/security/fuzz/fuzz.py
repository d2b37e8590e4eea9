"""Common parts of all fuzzers: seeds, time, counts, and checks of the server.

A fuzzer is a program, and a test that pytest runs for half a minute. It plays rounds, each in a database of its
own, and all that a round does follows from its seed. A server that crashes, hangs or cannot be reached is
a failure, and so is what the fuzzer itself asks for at the end of a round. Then the seed of the round and
its last statements are printed.

    functions.py [--minutes 60] [--seed 4711] [-k superuser]

As tests they read OUTBOX_FUZZ_MINUTES (for each program, default: 0.5) and OUTBOX_TEST_SEED.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

sys.path[:0] = [str(Path(__file__).parents[2] / "system"), str(Path(__file__).parents[2])]

import psycopg  # noqa: E402
import pytest  # noqa: E402
from psycopg.pq import DiagnosticField, ExecStatus  # noqa: E402

from cluster import CRASH, Cluster  # noqa: E402
from database import Database  # noqa: E402
from waiting import wait_until  # noqa: E402

STATEMENT_TIMEOUT = 1.0
HANGS = 90.0  # a statement that runs for this long after its timeout cannot be cancelled
STATEMENTS_SHOWN = 40

# For log_min_messages LOG is above ERROR: lines about crashes are logged, the many errors of clients are not.
SETTINGS = {
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "autovacuum_naptime": "1s",
    "temp_file_limit": "256MB",
    "max_worker_processes": "60",
    "outbox.poll_min": "100ms",
    "outbox.poll_max": "1s",
}

# Errors of the server itself: two sessions change the same catalog row.
SERVERS_OWN = re.compile(r"tuple (concurrently (updated|deleted)|already updated by self)")

ENDED_AS_TOLD = re.compile(r"terminating connection due to (idle-|administrator command)")


class Failure(AssertionError):
    """A fuzzer found a failure."""


class Fuzz:
    """One run of a fuzzer on a server of its own."""

    reports: list[str] = []  # of the test that runs

    def __init__(self, cluster: Cluster, name: str, *, share: int = 1) -> None:
        """`share` is the number of tests among which the minutes of the program are divided."""
        self.cluster = cluster
        self.name = name
        self.seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
        self.first_seed = self.seed
        self.random = random.Random(self.seed)
        self.ends = time.monotonic() + 60 * float(os.environ.get("OUTBOX_FUZZ_MINUTES", "0.5")) / share
        self.statements: deque[str] = deque(maxlen=STATEMENTS_SHOWN)
        self.calls = 0
        self.rounds = 0
        self.crashes = 0
        self.most_log = 0  # bytes in a round
        self.errors: Counter[str] = Counter()
        self.internal: Counter[str] = Counter()  # messages of errors that name a bug: XX000 and its kin
        self.read_to = cluster.log_size()
        self.log_before: WeakKeyDictionary[psycopg.Connection, int] = WeakKeyDictionary()
        print(f"OUTBOX_TEST_SEED={self.seed}", flush=True)

    # ---- rounds ---------------------------------------------------------------------------------

    def rounds_to_play(self) -> Iterator[int]:
        """Numbers of rounds until the time is over; at least one. Each has a seed of its own."""
        while self.rounds == 0 or self.is_time():
            self.random = random.Random(self.seed)
            self.rounds += 1
            yield self.rounds
            self.watch()
            self.seed += 1000

    def is_time(self) -> bool:
        return time.monotonic() < self.ends

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Wraps a whole run: prints the counts, and after a failure the seed that repeats it."""
        try:
            yield
        except BaseException as error:
            print(f"\n{self.name}: OUTBOX_TEST_SEED={self.seed} repeats this round. Last statements:")
            for statement in self.statements:
                print("   ", statement)
            if not isinstance(error, Failure):
                with suppress(Failure):
                    self.watch()
            raise
        finally:
            self.report()

    def report(self) -> None:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{what} {n}" for what, n in counts.most_common()) or "none"

        line = (
            f"{self.name} [seed {self.first_seed}]: {self.rounds} rounds, {self.calls} calls, {self.crashes} crashes; "
            f"errors: {listed(self.errors)}"
        )
        if self.internal:
            line += f"; internal: {listed(self.internal)}"
        if self.most_log:
            line += f"; at most {self.most_log} bytes of log in a round"
        Fuzz.reports.append(line)
        print(line, flush=True)

    # ---- statements -----------------------------------------------------------------------------

    def connect(self, database: str, user: str = "postgres", **settings: str) -> psycopg.Connection:
        """A session whose statements end after a second."""
        values = {"statement_timeout": f"{STATEMENT_TIMEOUT}s", "lock_timeout": "500ms", **settings}
        options = " ".join(f"-c {name}={value}" for name, value in values.items())
        log_before = self.cluster.log_size()
        try:
            connection = psycopg.connect(
                f"host={self.cluster.directory} port={self.cluster.port} user={user} dbname={database} "
                f"connect_timeout=20 options='{options}'",
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.OperationalError:
            self.watch()
            raise
        self.log_before[connection] = log_before
        return connection

    def run(self, connection: psycopg.Connection, statement: str) -> list[tuple[str | None, ...]] | None:
        """Runs a statement and returns its rows as text, or None after an error, which is counted."""
        self.calls += 1
        self.statements.append(f"{connection.info.user}: {statement}")
        watchdog = threading.Timer(STATEMENT_TIMEOUT + HANGS, self.end_hanging, [connection.info.backend_pid])
        watchdog.start()
        try:
            # Not psycopg's own way: its types do not have all the values that come back.
            result = connection.pgconn.exec_(statement.encode(errors="surrogateescape"))
        finally:
            watchdog.cancel()
        if connection.closed:
            self.mourn(connection)
            return None
        if result.status == ExecStatus.FATAL_ERROR:
            state = result.error_field(DiagnosticField.SQLSTATE) or b"unknown"
            message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
            self.count_error(state.decode(), message.decode(errors="replace"))
            return None
        return [
            tuple(text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def mourn(self, connection: psycopg.Connection) -> None:
        """Checks a session that has ended: fails unless the server ended it on request."""
        message = connection.pgconn.error_message.decode(errors="replace")
        self.count_error("session lost", message)
        # The server's last message is lost if this side was sending. The log may have been read beyond it.
        log = self.cluster.log_since(self.log_before.get(connection, self.read_to))
        if ENDED_AS_TOLD.search(message) or ENDED_AS_TOLD.search(log):
            return
        with suppress(AssertionError):  # the postmaster may not have logged it yet
            wait_until(lambda: CRASH.search(self.cluster.log_since(self.read_to)), timeout=6, what="a crash")
        self.watch()
        raise Failure(f"the session was lost: {message}")

    def count_error(self, state: str, message: str) -> None:
        self.errors[state] += 1
        if state.startswith("XX") and not SERVERS_OWN.search(message):
            self.internal[re.sub(r"\d+", "N", message)[:200]] += 1

    def end_hanging(self, pid: int) -> None:
        """Lets the session go on, which then fails. The server restarts."""
        print(f"\n{self.name}: backend {pid} does not end its statement; see where it was (gdb -p, wchan)")
        with suppress(OSError):
            print(Path(f"/proc/{pid}/wchan").read_text(), Path(f"/proc/{pid}/status").read_text())
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    # ---- the server -----------------------------------------------------------------------------

    def new_log(self) -> str:
        text, self.read_to = self.cluster.log_since(self.read_to), self.cluster.log_size()
        return text

    def watch(self) -> None:
        """Fails if the server has crashed, or cannot be reached."""
        lines = self.new_log().splitlines()
        bad = [number for number, line in enumerate(lines) if CRASH.search(line)]
        if bad:
            self.crashes += len(bad)
            around = "\n".join(lines[max(0, bad[0] - 5) : bad[0] + 5])
            raise Failure(f"the server crashed; its log:\n{around}")
        try:
            self.cluster.wait_ready(timeout=180)
        except AssertionError as error:
            raise Failure(f"the server cannot be reached: {error}") from None

    def check_internal(self, allowed: str = r"(?!)") -> None:
        """Fails if there was an error that names a bug, other than those allowed."""
        bad = [message for message in self.internal if not re.search(allowed, message)]
        if bad:
            raise Failure(f"internal errors: {bad}")

    @contextmanager
    def database(self, name: str = "fuzz", *, extensions: bool = True) -> Iterator[Database]:
        """Creates a database for a round."""
        self.drop_database(name)
        self.cluster.execute(f"CREATE DATABASE {name}")
        database = Database(self.cluster, name)
        if extensions:
            database.execute("CREATE EXTENSION pg_outbox; CREATE EXTENSION pg_inbox")
        yield database
        database.disconnect()

    def drop_database(self, name: str) -> None:
        def drop() -> bool:
            with self.cluster.connect("template1") as connection:
                connection.execute("SET session_replication_role = replica")
                prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = %s"
                for (gid,) in connection.execute(prepared, (name,)).fetchall():
                    with self.cluster.connect(name) as inside:
                        inside.execute("ROLLBACK PREPARED '" + gid.replace("'", "''") + "'")
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                return True

        try:
            wait_until(drop, what=f"database {name} to be dropped", ignoring=(psycopg.Error,))
        except AssertionError as error:
            self.watch()
            raise Failure(str(error)) from None


def main(file: str) -> None:
    """Runs a fuzzer as a program: pytest with the options as its environment."""
    parser = argparse.ArgumentParser(description=f"{Path(file).stem}: see fuzz.py")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("-k", default="", help="which of its tests")
    options = parser.parse_args()
    if options.minutes is not None:
        os.environ["OUTBOX_FUZZ_MINUTES"] = str(options.minutes)
    if options.seed is not None:
        os.environ["OUTBOX_TEST_SEED"] = str(options.seed)
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", "-k", options.k, file]
    raise SystemExit(pytest.main(arguments))


# The fixture `new_fuzz`: (name, share=1, settings={}) -> Fuzz
NewFuzz = Callable[..., Fuzz]


def new_roles(cluster: Cluster, *names: str) -> None:
    """Roles live as long as the server: the next round uses them again."""
    for name in names:
        if not cluster.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)):
            cluster.execute(f"CREATE ROLE {name} LOGIN")
        cluster.execute(f"ALTER ROLE {name} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS")


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
