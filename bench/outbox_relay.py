"""outbox-relay, which delivers from outside of the server, and databases with the SQL edition."""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from machine import seconds_of
from workload import Bench, Unavailable, wait_until


@dataclass
class SqlEdition(Bench):
    """A database without the extension."""

    database: str = "plain"

    def install(self) -> None:
        script = self.programs.parent / "sql" / "pg_outbox--sql.sql"
        if not script.exists():
            raise Unavailable(f"{script} is not there")
        subprocess.run(
            [
                self.cluster.bin / "psql",
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                self.cluster.conninfo(self.database),
                "-f",
                script,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.sql.execute("INSERT INTO outbox.setting VALUES ('allowed_hosts', '127.0.0.1, localhost')")

    @contextmanager
    def destination(self, url: str, called: str = "sink", **options: str):
        pairs = [item for pair in ({"url": url} | options).items() for item in pair]
        self.sql.execute("INSERT INTO outbox.destination_config VALUES (%s, jsonb_object(%s::text[]))", [called, pairs])
        try:
            yield
        finally:
            self.sql.execute("DELETE FROM outbox.destination_config WHERE name = %s", [called])


class NativeEdition(Bench):
    """A database with the extension, whose destinations are served by outbox-relay."""

    def destination(self, url: str, called: str = "sink", **options: str):
        return super().destination(url, called, relay="external", **options)


def sql_edition(bench: Bench, database: str = "plain") -> SqlEdition:
    return beside(bench, SqlEdition, database)


def native_edition(bench: Bench, database: str = "native") -> NativeEdition:
    return beside(bench, NativeEdition, database)


def beside(bench: Bench, edition: type, database: str) -> Bench:
    """Makes another database of the same server. Its slices are counted with the others."""
    bench.sql.execute(f"CREATE DATABASE {database}")
    made = edition(bench.cluster, bench.programs, bench.quick, database)
    made.undisturbed = bench.undisturbed
    return made


@dataclass
class Used:
    """Cost of one run of the program with --once, from its start to its end."""

    seconds: float
    relay: float  # seconds of processor time: of the program
    server: float  # and of the server, with all its processes
    peak: float  # most resident memory of the program, MiB
    most_seen: float  # highest value that `look` returned


class OutboxRelay:
    """The program, with a configuration for these databases."""

    def __init__(self, *databases: Bench, options: str = "") -> None:
        self.bench = databases[0]
        self.databases = databases
        self.options = options  # lines for each database
        self.process: subprocess.Popen | None = None
        root = self.bench.cluster.root
        self.configuration = root / "relay.toml"
        self.log = root / "relay.log"

    def command(self, *arguments: str) -> list:
        program = self.bench.programs.parent / "relay" / "outbox-relay"
        if not program.exists():
            raise Unavailable(f"{program} is not built")
        cluster = self.bench.cluster
        self.configuration.write_text(
            "\n".join(
                f"[databases.{each.database}]\n"
                f'url = "postgresql:///{each.database}?host={cluster.root}&port={cluster.settings["port"]}&user=postgres"\n'
                "trusted = true\n"
                f"{self.options}\n"
                for each in self.databases
            )
        )
        self.configuration.chmod(0o600)
        return [program, "--config", self.configuration, *arguments]

    def once(self, look: Callable[[], float] = lambda: 0, limit: float = 300) -> Used:
        """Runs it until everything is delivered. Calls `look` again and again."""
        server = self.bench.cluster.process_id()
        before, most, start = seconds_of(server), 0.0, time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command("--once"), stdout=log, stderr=log)
        while True:
            ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - start > limit:
                self.process.kill()
            most = max(most, look())
            time.sleep(0.01)
        seconds = time.monotonic() - start
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if status != 0:
            raise RuntimeError(f"outbox-relay ended with {self.process.returncode}: {self.told()}")
        # The server counts the time of sessions that have ended.
        wait_until(
            lambda: (
                self.bench.sql.execute(
                    "SELECT FROM pg_stat_activity WHERE application_name LIKE 'outbox-relay%'"
                ).rowcount
                == 0
            ),
            10,
            "the sessions of outbox-relay have ended",
            pause=0.01,
        )
        return Used(seconds, usage.ru_utime + usage.ru_stime, seconds_of(server) - before, usage.ru_maxrss / 1024, most)

    def told(self) -> str:
        return self.log.read_text()[-3000:]

    def __enter__(self) -> "OutboxRelay":
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        if self.process.wait(30) != 0:
            raise RuntimeError(f"outbox-relay ended with {self.process.returncode}: {self.told()}")

    @property
    def pid(self) -> int:
        return self.process.pid
