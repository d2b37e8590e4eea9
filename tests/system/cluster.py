"""A private PostgreSQL server of the tests, with the extension from a build directory.

`Installation` stages the build where the server can read it; `Cluster` is one data directory and
the processes on it. The server is a child of the test process and is told to stop when that dies,
so that nothing stays behind, whatever happens to pytest.

A root user runs the server as `postgres`. Sockets and data live in a temporary directory, in memory if there is enough.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg

from passwords import lines_with_passwords
from processes import children_of, describe_process, process_exists, stop_process
from waiting import Stopwatch, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SUPERUSER = "postgres"

# True if databases have the SQL edition of pg_outbox, on servers without its library. outbox-relay serves all
# destinations then, and tests with the marks `extension` and `worker` are left out.
SQL_EDITION = os.environ.get("OUTBOX_TEST_EDITION") == "sql"

# Settings of every cluster of the tests. Polls are an hour apart, so that a test passes only if
# the wake-up reached the relay. Data survives a killed process, but not a power failure.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "max_connections": "80",
    "max_worker_processes": "40",
    "max_prepared_transactions": "40",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %b %d ",
    "log_checkpoints": "off",
    "log_min_messages": "warning",
    "autovacuum_naptime": "1h",
    "outbox.poll_min": "1h",
    "outbox.poll_max": "1h",
    "outbox.backoff_max": "1s",
    "outbox.allowed_hosts": "127.0.0.1, localhost",
    "outbox.allow_drop_with_undelivered": "on",
}
# Where transactions can be prepared, enqueues wake no relay of the SQL edition.
SETTINGS_OF_SQL_EDITION = {"shared_preload_libraries": "", "max_prepared_transactions": "0"} if SQL_EDITION else {}

# Lines of the log that no test may cause unless it says so.
CRASH = re.compile(
    r"PANIC:|was terminated by signal|stack smashing|TRAP:|FailedAssertion|AddressSanitizer"
    r"|runtime error:|terminate called|double free|free\(\): invalid|corrupted"
    r"|SIGKILL to recalcitrant children"
    r"|(reference|refcount|snapshot|file) leak|was not closed|still referenced"
    r"|problem in alloc set|detected write past"
)
TERMINATED_PROCESS = re.compile(r"\(PID (\d+)\) was terminated by signal (\d+)")
WORKER_ERROR = re.compile(r"\] pg_outbox [a-z]+ \S* ?(ERROR|PANIC):")
# A keeper waits 500 ms for locks on the tables of pg_inbox, and looks again later. A test may hold them for longer.
LOOKS_AGAIN = re.compile(r"\] pg_outbox keeper \S* ?ERROR:  canceling statement due to lock timeout")


def as_server_user(command: list[str]) -> list[str]:
    """Returns the command run as a user that the server accepts; it ends with this process."""
    prefix = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        prefix += [f"--reuid={SUPERUSER}", f"--regid={SUPERUSER}", "--init-groups"]
    return [*prefix, *command]


MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 8 << 30  # many times the size of all servers of a run


def place_of_data() -> str | None:
    """Returns a directory in memory for data directories, or None (temporary files) if memory is scarce.

    A new database has hundreds of files. On a disk, creating and removing them takes longer than most tests.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return None
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    free = min(shutil.disk_usage(MEMORY).free, int(sizes["MemAvailable"]) << 10)
    return str(MEMORY) if free >= ENOUGH_MEMORY else None


def make_directory(purpose: str, *, beside: Path | None = None) -> Path:
    """A temporary directory that belongs to the server's user; `beside` a server, which removes it."""
    path = Path(tempfile.mkdtemp(prefix=f"outbox-{purpose}-", dir=beside or place_of_data()))
    if os.geteuid() == 0:
        user = pwd.getpwnam(SUPERUSER)
        os.chown(path, user.pw_uid, user.pw_gid)
    return path


def run(command: list[str], **keywords: object) -> str:
    result = subprocess.run(command, cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **keywords)
    assert result.returncode == 0, f"{' '.join(command)}:\n{result.stdout}"
    return result.stdout


class Installation:
    """The build, staged, and an initialised data directory to copy."""

    def __init__(self, pg_config: str | None = None, build: str | None = None) -> None:
        self.pg_config = pg_config or os.environ.get("PG_CONFIG", "pg_config")
        self.build = Path(build or os.environ.get("OUTBOX_BUILD", REPOSITORY / "build")).resolve()
        assert (self.build / "CMakeCache.txt").exists(), (
            f"{self.build} is no build directory; set OUTBOX_BUILD, or run "
            f"cmake -S {REPOSITORY} -B {self.build} && cmake --build {self.build}"
        )
        # The programs of the client may be of another build, such as one with a sanitizer.
        self.programs = Path(os.environ.get("OUTBOX_CLIENT_BUILD", self.build)) / "tests/programs"
        self.bin_directory = Path(self.ask("--bindir"))
        self.stage = Path(tempfile.mkdtemp(prefix="outbox-stage-"))
        self.directory = make_directory("template")
        try:
            run(
                ["cmake", "--install", str(self.build)],
                env={**os.environ, "DESTDIR": str(self.stage)},
            )
            run(["chmod", "-R", "a+rX", str(self.stage)])
            self.settings = self.settings_to_find_extension()
            self.template = self.directory / "data"
            self.run_program(
                "initdb",
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                f"--username={SUPERUSER}",
                "-D",
                str(self.template),
            )
            if os.environ.get("OUTBOX_TEST_PUBLICATION"):
                self.publish_everything()
        except BaseException:
            self.remove()
            raise

    def publish_everything(self) -> None:
        """Every database has a publication of all tables, as Debezium makes it."""
        program = [str(self.bin_directory / "postgres"), "--single", "-D", str(self.template), "template1"]
        statement = "CREATE PUBLICATION everything FOR ALL TABLES;\n"
        subprocess.run(as_server_user(program), input=statement, text=True, check=True, capture_output=True)

    def ask(self, option: str) -> str:
        return run([self.pg_config, option]).strip()

    @property
    def major(self) -> int:
        """Major version of the server."""
        version = re.match(r"PostgreSQL (\d+)", self.ask("--version"))
        assert version is not None
        return int(version[1])

    def run_program(self, name: str, *arguments: str) -> str:
        return run(as_server_user([str(self.bin_directory / name), *arguments]))

    def settings_to_find_extension(self) -> dict[str, str]:
        """Returns settings with which this server finds extensions and modules in the stage."""
        known = {
            line.split("\t")[0] for line in run([str(self.bin_directory / "postgres"), "--describe-config"]).split("\n")
        }
        if "extension_destdir" in known:  # Debian's patch
            return {
                "extension_destdir": str(self.stage),
                "shared_preload_libraries": "$libdir/pg_outbox",
            }
        if "extension_control_path" in known:  # PostgreSQL 18
            return {
                "extension_control_path": f"{self.stage}{self.ask('--sharedir')}:$system",
                "dynamic_library_path": f"{self.stage}{self.ask('--pkglibdir')}:$libdir",
                "shared_preload_libraries": "pg_outbox",
            }
        # This server looks only in its own directories: the extension must be installed there.
        return {"shared_preload_libraries": "$libdir/pg_outbox"}

    def module(self, name: str) -> Path:
        """Returns the file that the server loads. outbox-relay has its own copies of modules."""
        return Path(f"{self.stage}{self.ask('--pkglibdir')}", f"{name}.so")

    def has_module(self, name: str) -> bool:
        return self.module(name).exists()

    def has_extension(self, name: str) -> bool:
        return any(self.stage.rglob(f"{name}.control"))

    def remove(self) -> None:
        shutil.rmtree(self.stage, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)


class Cluster:
    """One server, which is not started by the constructor."""

    all: list[Cluster] = []  # those whose log is still to be checked

    def __init__(
        self,
        installation: Installation,
        settings: Mapping[str, str] | None = None,
        *,
        data_from: list[str] | None = None,  # command that creates the data directory, without its path
    ) -> None:
        self.installation = installation
        self.directory = make_directory("cluster")
        self.data = self.directory / "data"
        self.log_path = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}  # variables of the server, besides those of this process
        self.port = 0
        self.starts = 0  # of the server, recoveries included: older connections are dead
        self.killed: set[tuple[int, int]] = set()  # process, signal
        self.checked_to = 0  # both are places in the log
        self.test_began = 0
        self.final_log: bytes | None = None
        self.settings = {**DEFAULT_SETTINGS, **installation.settings, **SETTINGS_OF_SQL_EDITION, **(settings or {})}
        self.log_path.touch()
        command = data_from or ["cp", "-a", str(installation.template)]
        run(as_server_user([*command, str(self.data)]))
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'test.conf'\n")
        Cluster.all.append(self)

    # ---- settings -------------------------------------------------------------------------------

    def write_settings(self) -> None:
        own = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
        }
        path = self.data / "test.conf"
        path.write_text("".join(f"{name} = '{quoted(value)}'\n" for name, value in {**self.settings, **own}.items()))
        path.chmod(0o644)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Changes settings of the running server and reloads them."""
        self.settings |= settings
        self.reload()

    def reload(self) -> None:
        self.write_settings()
        os.kill(self.postmaster, signal.SIGHUP)

    def configure_and_wait(self, settings: Mapping[str, str]) -> None:
        """Runs with exactly these settings; returns when new processes have them."""

        def loaded() -> object:
            return self.execute("SELECT pg_conf_load_time()")

        before = loaded()
        self.settings = dict(settings)
        self.reload()
        wait_until(loaded, lambda seen: seen != before, what="the server to load its settings")

    # ---- processes ------------------------------------------------------------------------------

    @property
    def postmaster(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def start(self, *arguments: str) -> Cluster:
        assert self.process is None
        for _ in range(3):  # somebody may take the port between our choice and its use
            self.port = self.port or free_port()
            self.write_settings()
            began = self.log_size()
            with self.log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    as_server_user(
                        [str(self.installation.bin_directory / "postgres"), "-D", str(self.data),
                         *arguments]
                    ),
                    cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**os.environ, **self.environment},
                )  # fmt: skip
            try:
                self.wait_ready()
                return self
            except ServerEnded:
                self.process = None
                if "could not bind" not in self.log_since(began):
                    break
                self.port = 0
        raise AssertionError(f"the server did not start:\n{self.log_since(began)}")

    def wait_ready(self, timeout: float = 180) -> None:
        def attempt() -> bool:
            if self.process is None or self.process.poll() is not None:
                raise ServerEnded
            with self.connect():
                return True

        wait_until(
            attempt, timeout=timeout, what="the server to accept connections",
            ignoring=(psycopg.OperationalError,),
        )  # fmt: skip
        self.starts += 1

    def stop(self, mode: str = "fast", timeout: float = 180) -> float:
        """Stops the server, and returns how many seconds that took."""
        assert self.process is not None
        signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        watch = Stopwatch()
        os.kill(self.postmaster, signals[mode])
        self.process.wait(timeout)
        self.process = None
        return watch.seconds

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self, pid: int, by: signal.Signals = signal.SIGKILL) -> None:
        """Sends SIGKILL or another signal to a process of the server, which the log may report."""
        self.killed.add((pid, int(by)))
        os.kill(pid, by)

    def kill_and_recover(self, pid: int, by: signal.Signals = signal.SIGKILL) -> None:
        """Sends SIGKILL to one process, and waits until the server has restarted all others."""
        began = self.log_size()
        self.kill(pid, by)
        wait_until(
            lambda: self.log_since(began),
            lambda text: "database system is ready to accept connections" in text,
            timeout=180, what=f"the server to recover from the death of process {pid}",
        )  # fmt: skip
        self.wait_ready()

    def kill_postmaster(self) -> None:
        """Sends SIGKILL to the postmaster; returns when all its children have ended."""
        assert self.process is not None
        stop_process(self.postmaster)  # so that it starts no further children
        children = children_of(self.postmaster)
        os.kill(self.postmaster, signal.SIGKILL)
        self.process.wait()
        self.process = None
        wait_until(
            lambda: [describe_process(pid) for pid in children if process_exists(pid)],
            lambda left: not left,
            what="all processes of the server to end after the postmaster",
        )  # fmt: skip
        # The kernel's list of children may lack some, if others end while it is read.
        wait_until(self._uses_of_shared_memory, lambda uses: uses == 0, what="the server's shared memory to be free")

    def _uses_of_shared_memory(self) -> int:
        identity = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        segments = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
        return sum(int(columns[6]) for columns in segments if columns[1] == identity)

    def promote(self) -> None:
        with self.connect() as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    def make_standby(self, settings: Mapping[str, str] | None = None) -> Cluster:
        """Returns a streaming standby of this server, which is not started."""
        base_backup = [
            str(self.installation.bin_directory / "pg_basebackup"), "-h", str(self.directory),
            "-p", str(self.port), "-U", SUPERUSER, "-X", "stream", "-c", "fast", "-R", "--no-sync",
            "-D",
        ]  # fmt: skip
        return Cluster(self.installation, {**self.settings, **(settings or {})}, data_from=base_backup)

    # ---- connections ----------------------------------------------------------------------------

    def conninfo(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return (
            f"host={self.directory} port={self.port} user={user} dbname={database} "
            f"connect_timeout=60 options='-c statement_timeout=180s'"
        )

    def connect(self, database: str = "postgres", user: str = SUPERUSER) -> psycopg.Connection:
        return psycopg.connect(self.conninfo(database, user), autocommit=True)

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple]:
        """Runs a statement in the database postgres, over a connection of its own."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def workers(self) -> list[tuple[str, str | None, int]]:
        """Returns background workers of pg_outbox in the whole cluster: type, database, pid."""
        return self.execute(
            "SELECT backend_type, datname, pid FROM pg_stat_activity "
            "WHERE starts_with(backend_type, 'pg_outbox ') ORDER BY 1, 2, 3"
        )

    def workers_in(self, database: str) -> list[str]:
        """Returns the kinds of workers connected to a database."""
        return [kind.split()[1] for kind, name, _ in self.workers() if name == database]

    def wait_for_workers(self, database: str, *kinds: str, timeout: float = 180) -> None:
        """Waits until exactly these kinds of workers are connected to the database."""
        wait_until(
            lambda: self.workers_in(database), lambda seen: seen == sorted(kinds), timeout=timeout,
            what=f"exactly {list(kinds) or 'no workers'} in {database}",
        )  # fmt: skip

    def describe(self) -> str:
        """Returns the state of sessions, workers and destinations for the report of a failure."""
        try:
            sessions = self.execute(
                "SELECT datname, pid, application_name, state, now() - query_start AS since, wait_event_type, wait_event, "
                "       pg_blocking_pids(pid) AS blocked_by, left(query, 200) AS query "
                "  FROM pg_stat_activity WHERE datname IS NOT NULL OR starts_with(backend_type, 'pg_outbox ')"
            )
            lines = [str(tuple(map(str, row))) for row in sessions]
            for (name,) in self.execute("SELECT datname FROM pg_database WHERE datallowconn"):
                with self.connect(name) as connection, suppress(psycopg.Error):
                    status = connection.execute("SELECT row_to_json(s) FROM outbox.status AS s")
                    lines += [f"{name}: {row[0]}" for row in status]
            return "\n".join(lines)
        except (psycopg.Error, AssertionError) as error:
            return f"cannot be asked: {error}"

    # ---- log ------------------------------------------------------------------------------------

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.final_log is None else len(self.final_log)

    def log_since(self, offset: int) -> str:
        if self.final_log is not None:
            return self.final_log[offset:].decode(errors="replace")
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def log(self) -> str:
        return self.log_since(0)

    def complaints(self, allowed: list[str]) -> list[str]:
        """Returns new lines of the log that are unexpected, or have a password in them.

        `allowed` has patterns of expected worker errors.
        """
        lines = []
        new, self.checked_to = self.log_since(self.checked_to), self.log_size()
        for line in new.splitlines():
            terminated = TERMINATED_PROCESS.search(line)
            if terminated and (int(terminated[1]), int(terminated[2])) in self.killed:
                continue
            suspicious = CRASH.search(line) or WORKER_ERROR.search(line)
            if suspicious and not LOOKS_AGAIN.search(line) and not any(re.search(pattern, line) for pattern in allowed):
                lines.append(line)
        return lines + lines_with_passwords(new)

    # ---- end ------------------------------------------------------------------------------------

    def destroy(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop("immediate")
        self.final_log = self.log_path.read_bytes()
        shutil.rmtree(self.directory, ignore_errors=True)


# The fixture `make_cluster`: (settings, started=True) -> Cluster
MakeCluster = Callable[..., Cluster]


class ServerEnded(Exception):
    """The postmaster ended during the wait for it."""


def quoted(value: str) -> str:
    return value.replace("'", "''")


def free_port() -> int:
    """Returns a port of 127.0.0.1 that stays free until this process ends, also while a server restarts.

    It is below those that the system gives to connections. A socket with a name of its own tells other
    test processes that it is taken.
    """
    ends = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(min(10_000, ends - 5_000), ends), k=1_000):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0outbox-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        claimed_ports.append(claim)
        return port
    raise AssertionError("no free port")


claimed_ports: list[socket.socket] = []
