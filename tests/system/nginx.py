"""A real nginx on a port of 127.0.0.1, with its requests in the access log."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from cluster import free_port, make_directory
from waiting import wait_until

PROGRAM = Path("/usr/sbin/nginx")

# To be formatted: {main} for the beginning of a configuration, {paths} for that of its http block.
MAIN = "daemon off; pid {root}/nginx.pid; error_log {root}/error.log; {user}"
PATHS = """keepalive_requests 100000;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;"""


def need() -> None:
    if not PROGRAM.exists():
        pytest.skip("NOT TESTED: nginx is not installed")


class Nginx:
    def __init__(self, configuration: str, root: Path | None = None, **values: object) -> None:
        self.root = root or make_directory("nginx")
        user = "user postgres;" if os.geteuid() == 0 else ""
        values |= {"root": self.root, "main": MAIN.format(root=self.root, user=user),
                   "paths": PATHS.format(root=self.root)}  # fmt: skip
        for _ in range(3):  # somebody may take the port between our choice and its use
            self.port = free_port()
            (self.root / "nginx.conf").write_text(configuration.format(port=self.port, **values))
            self.process = subprocess.Popen(
                [PROGRAM, "-e", str(self.root / "error.log"), "-c", str(self.root / "nginx.conf")]
            )
            wait_until(lambda: self.process.poll() is not None or self.answers(), what="nginx to answer")
            if self.process.poll() is None:
                return
        raise AssertionError(f"nginx did not start:\n{(self.root / 'error.log').read_text()}")

    def answers(self) -> bool:
        """Returns the pid of nginx, which writes its file after it has bound the port."""
        if not (self.root / "nginx.pid").exists():
            return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def log(self) -> list[list[str]]:
        """Returns the words of each line; nginx logs a request after its answer."""
        lines = (self.root / "access.log").read_text().split("\n")[:-1]
        return [line.split() for line in lines]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)
