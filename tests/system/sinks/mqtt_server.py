"""Brokers of MQTT: mosquitto, with listeners for all that a client can be asked to show, and mochi.

    direct   plain text, for the tests themselves
    tls      TLS
    mutual   TLS, with a certificate of the client
    login    plain text with a user and a password, bound by access lists

mosquitto keeps its state when it ends, and loses it when it is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from certificates import Certificates, make_certificates
from cluster import free_port
from waiting import wait_until

from .servers import INSTALLED, Ended, NotInstalled, end

USERS = {"alice": "s3cret-of-alice", "bob": "s3cret-of-bob"}
MAX_PACKET = 1_000_000
PORTS = ("direct", "tls", "mutual", "login")

CONFIGURATION = """
user {user}
per_listener_settings true
max_packet_size {max_packet}
max_queued_messages 1000000
max_queued_bytes 0
listener {direct} 127.0.0.1
allow_anonymous true
{settings}

listener {tls} 127.0.0.1
allow_anonymous true
certfile {certificates.certificate}
keyfile {certificates.key}

listener {mutual} 127.0.0.1
allow_anonymous true
certfile {certificates.certificate}
keyfile {certificates.key}
cafile {certificates.authority}
require_certificate true

listener {login} 127.0.0.1
allow_anonymous false
password_file {directory}/passwords
acl_file {directory}/access
"""

ACCESS = """
user alice
topic readwrite #
topic deny forbidden/#
user bob
topic read #
"""


class MqttServer:
    """A broker."""

    def __init__(self) -> None:
        self.ports = {"direct": free_port()}
        self.process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-mqtt-"))
        self.directory.chmod(0o755)  # PostgreSQL reads a certificate
        self.log = self.directory / "log"

    @property
    def port(self) -> int:
        return self.ports["direct"]

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command()],
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self.answers, timeout=180, what="the broker to answer")

    def answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Ended(f"the broker has ended:\n{self.log.read_text(errors='replace')[-5000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def stop(self) -> None:
        """Lets it save what it has."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def remove(self) -> None:
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Mosquitto(MqttServer):
    def __init__(self, settings: str = "") -> None:
        super().__init__()
        self.ports |= {name: free_port() for name in PORTS if name not in self.ports}
        self.certificates: Certificates = make_certificates(self.directory)
        self.configuration = self.directory / "mosquitto.conf"
        self.configuration.write_text(
            CONFIGURATION.format(
                **self.ports, user=os.environ.get("USER", "root"), certificates=self.certificates,
                directory=self.directory, settings=settings, max_packet=MAX_PACKET,
            )
        )  # fmt: skip
        (self.directory / "access").write_text(ACCESS)
        passwords = self.directory / "passwords"
        passwords.touch(mode=0o600)
        for name, password in USERS.items():
            subprocess.run(["mosquitto_passwd", "-b", str(passwords), name, password], check=True)

    def command(self) -> list[str]:
        return [program("mosquitto"), "-c", str(self.configuration)]


class Mochi(MqttServer):
    def command(self) -> list[str]:
        return [str(INSTALLED / "mochi_broker"), str(self.port)]


def program(name: str) -> str:
    """Debian installs it in a directory that is not in the path of all users."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        raise NotInstalled(f"{name} is not installed")
    return found


@contextmanager
def running(server: MqttServer) -> Iterator[MqttServer]:
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def mosquitto(settings: str = "") -> Iterator[Mosquitto]:
    program("mosquitto")
    server = Mosquitto(settings)
    with running(server):
        yield server


@contextmanager
def mochi() -> Iterator[MqttServer]:
    if not (INSTALLED / "mochi_broker").exists():
        raise NotInstalled(f"there is no {INSTALLED / 'mochi_broker'}")
    with running(Mochi()) as server:
        yield server
