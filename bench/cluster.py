"""A private PostgreSQL server with the extensions of a build, in a temporary directory.

The build is staged into that directory, so nothing on the machine is changed. Started by root, the
server runs as the user postgres.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "extension_destdir": "{root}/stage",
    "unix_socket_directories": "{root}",
    "max_worker_processes": "32",
    "outbox.allowed_hosts": "127.0.0.1, localhost",
    "shared_buffers": "1GB",
    # A checkpoint or vacuum of one figure must not run during a slice of another.
    "max_wal_size": "32GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


class Cluster:
    def __init__(self, build: Path, settings: dict[str, str], preload: Sequence[str] = ()):
        """`preload`: other extensions that need to be preloaded, where the server has them."""
        self.build = build
        self.pg_config = Path(self._pg_config_program())
        libraries = [name for name in preload if self.has_extension(name)]
        self.settings = SETTINGS | settings | {"shared_preload_libraries": ",".join([*libraries, "$libdir/pg_outbox"])}
        self.bin = Path(self._pg_config("--bindir"))
        self.root = Path(tempfile.mkdtemp(prefix="outbox-bench-"))
        self.log = self.root / "log"
        self._owner: dict = {}
        self._server: subprocess.Popen | None = None

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def conninfo(self, database: str = "bench") -> str:
        return f"host={self.root} port={self.settings['port']} user=postgres dbname={database}"

    def connect(self, database: str = "bench") -> psycopg.Connection:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def process_id(self) -> int:
        return self._server.pid

    def has_extension(self, name: str) -> bool:
        """Whether a package has installed another extension for this server."""
        return Path(self._pg_config("--sharedir"), "extension", f"{name}.control").exists()

    def libraries(self) -> Path:
        """Directory of the staged modules of the extensions."""
        return Path(f"{self.root}/stage{self._pg_config('--pkglibdir')}")

    def _pg_config_program(self) -> str:
        cache = (self.build / "CMakeCache.txt").read_text()
        return re.search(r"^PG_CONFIG:\w+=(.+)$", cache, re.MULTILINE).group(1)

    def _pg_config(self, option: str) -> str:
        return subprocess.check_output([self.pg_config, option], text=True).strip()

    def _start(self) -> None:
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.root, account.pw_uid, account.pw_gid)
            self._owner = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        subprocess.run(
            ["cmake", "--install", self.build],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"DESTDIR": str(self.root / "stage")},
        )
        data = self.root / "data"
        subprocess.run(
            [
                self.bin / "initdb",
                "--no-sync",
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale",
                "C.UTF-8",
                "-D",
                data,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **self._owner,
        )
        with open(data / "postgresql.conf", "a") as conf:
            conf.writelines(f"{name} = '{value.format(root=self.root)}'\n" for name, value in self.settings.items())
        with open(self.log, "w") as log:
            self._server = subprocess.Popen(
                [self.bin / "postgres", "-D", data], stdout=log, stderr=log, cwd="/", **self._owner
            )
        self._wait_until_up()
        with self.connect("postgres") as connection:
            connection.execute("CREATE DATABASE bench")

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError as error:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start: {error}\n{self.log.read_text()}") from error
            time.sleep(0.05)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)  # its data is not needed any more
            self._server.wait()
        shutil.rmtree(self.root, ignore_errors=True)
