"""PgBouncer in front of a server, which gives its sessions to transactions."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess

from cluster import Cluster, as_server_user, free_port, make_directory
from waiting import wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


def keeps_statements() -> bool:
    """True if this version can keep prepared statements of its clients."""
    if PROGRAM is None:
        return False
    version = re.search(
        r"PgBouncer (\d+)\.(\d+)", subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
    )
    return version is not None and (int(version[1]), int(version[2])) >= (1, 21)


# Lines of its configuration with which prepared statements are lost, and kept.
STATEMENTS_LOST = "max_prepared_statements = 0" if keeps_statements() else ""
STATEMENTS_KEPT = "max_prepared_statements = 100"


class Pooler:
    """Connects to the server by TCP. `options` are lines of its section [pgbouncer], `roles` may log in."""

    def __init__(self, cluster: Cluster, options: str = "", roles: tuple[str, ...] = ("postgres",)) -> None:
        self.folder = make_directory("pooler")
        self.port = free_port()
        users = self.folder / "users"
        users.write_text("".join(f'"{role}" ""\n' for role in roles))
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={cluster.port}\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = trust\nauth_file = {users}\nunix_socket_dir =\n"
            f"{options}\n"
        )
        for file in (users, config):
            file.chmod(0o644)
        assert PROGRAM is not None
        self.process = subprocess.Popen(
            as_server_user([PROGRAM, str(config)]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(
            lambda: socket.create_connection(("127.0.0.1", self.port), 1).close(), lambda _: True,
            what="PgBouncer to listen", ignoring=(OSError,),
        )  # fmt: skip

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
