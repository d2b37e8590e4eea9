"""A hostile PostgreSQL server against programs that are its clients: outboxctl, outbox-relay and the C++ client.

test_peers_postgresql.py has the destination `postgresql:`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation
from database import Database
from long_run import all_in_long_run
from waiting import wait_until

from .peers import hostile_postgresql
from .peers.attack import MOST_MEMORY, assert_harmless, peak
from .peers.peer import Peer

PASSWORD = "s3cret-s3cret-1"
MODES = {**hostile_postgresql.CLIENT_MODES, "quotes of the password": hostile_postgresql.quoting(PASSWORD.encode())}
# More than any other mode: what is long, what does not end, and what quotes secrets.
SHORT = ["no columns", "hostile arrays", "endless parameters", "a huge value", "quotes of the password"]
# An answer of 64 MiB, which libpq may hold twice.
MOST_OF_RELAY = 192 << 20
MOST_OF_OTHERS = 400 << 20  # 128 MiB, which libpq may hold twice while it needs more


class Client:
    """A program whose output is a file."""

    def __init__(self, command: list[str], output: Path, variables: dict[str, str]) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, env={**os.environ, **variables}
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def assert_well(client: Client, mode: str, most: int) -> None:
    """It has not crashed, and shows no secret, nothing forged, and not more than it should."""
    assert client.process.poll() is None or client.process.returncode >= 0, f"{mode}: {client.process.returncode}"
    text = client.text
    assert PASSWORD not in text, f"{mode}: {text[:2000]}"
    assert_harmless(text, mode)
    assert len(text) < 100_000, f"{mode}: {len(text)} bytes of output"


def watch(client: Client, until: Callable[[], bool], mode: str, most: int) -> None:
    """Waits, and fails as soon as the program needs more memory than it may."""

    def look() -> bool:
        try:
            used = peak(client.process.pid)
        except (FileNotFoundError, KeyError, IndexError, ProcessLookupError):
            used = 0  # it has ended
        assert used < most, f"{mode}: {used >> 20} MiB"
        return client.has_ended() or until()

    wait_until(look, what=f"the program to have had enough of: {mode}", timeout=120)


Start = Callable[..., Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Client] = []

    def make(*command: object, **variables: str) -> Client:
        started.append(Client([str(part) for part in command], tmp_path / f"output{len(started)}", variables))
        return started[-1]

    yield make
    for client in started:
        client.close()


@pytest.mark.parametrize("mode", all_in_long_run(MODES, short=SHORT))
def test_outbox_relay_and_its_database(installation: Installation, start: Start, tmp_path: Path, mode: str) -> None:
    """It still serves its other databases, and says why it has no connection to this one."""
    with Peer(MODES[mode]) as peer:
        (tmp_path / "relay.toml").write_text(
            f"[databases.evil]\nurl = 'postgresql://u:{PASSWORD}@127.0.0.1:{peer.port}/x?sslmode=disable'\n"
        )
        client = start(installation.build / "relay/outbox-relay", "--config", tmp_path / "relay.toml")
        watch(client, lambda: "warning [evil]" in client.text, mode, MOST_OF_RELAY)
        client.process.terminate()
        watch(client, client.has_ended, mode, MOST_OF_RELAY)
    assert_well(client, mode, MOST_OF_RELAY)
    assert client.process.returncode == 0, client.text


@pytest.mark.parametrize("mode", all_in_long_run(MODES, short=SHORT))
@pytest.mark.parametrize("command", all_in_long_run(["status", "doctor", "inbox status"], short=["status"]))
def test_outboxctl(installation: Installation, start: Start, mode: str, command: str) -> None:
    with Peer(MODES[mode]) as peer:
        conninfo = (
            f"host=127.0.0.1 port={peer.port} user=u password={PASSWORD} dbname=x sslmode=disable connect_timeout=2"
        )
        client = start(installation.build / "tools/outboxctl/outboxctl", "-d", conninfo, *command.split())
        watch(client, lambda: False, mode, MOST_OF_OTHERS)
    assert_well(client, mode, MOST_OF_OTHERS)


@pytest.mark.parametrize("mode", ["mute", "mute after the start", "endless parameters"])
def test_a_hostile_host_is_passed_over(database: Database, start: Start, mode: str) -> None:
    """As by libpq, which lets the last one send for ever."""
    cluster = database.cluster
    with Peer(hostile_postgresql.MODES[mode]) as peer:
        conninfo = (
            f"host=127.0.0.1,127.0.0.1 port={peer.port},{cluster.port} user=postgres password={PASSWORD} "
            f"dbname={database.name} sslmode=disable connect_timeout=2"
        )
        client = start(cluster.installation.build / "tools/outboxctl/outboxctl", "-d", conninfo, "status")
        watch(client, lambda: False, mode, MOST_OF_OTHERS)
        assert peer.connections == 1
    assert client.process.returncode == 0, client.text


# -------------------------------------------------------------------------------------------------
# The C++ client
# -------------------------------------------------------------------------------------------------

EVIL = f"host=127.0.0.1 port={{}} user=u password={PASSWORD} dbname=x sslmode=disable connect_timeout=2"
NOWHERE = "host=/nowhere dbname=x connect_timeout=2"


def stop_client(client: Client, mode: str, most: int) -> None:
    assert client.process.stdin is not None
    client.process.stdin.close()
    watch(client, client.has_ended, mode, most)
    assert client.process.returncode >= 0, client.process.returncode
    assert PASSWORD not in client.text


# The application connects to its own database, and trusts it not to send without end.
TRUSTED_MODES = [*hostile_postgresql.ROWS, "quotes of the password", "echo of the password", "no length"]


@pytest.mark.parametrize(
    "mode", all_in_long_run(TRUSTED_MODES, short=["no columns", "hostile arrays", "quotes of the password"])
)
def test_the_client_and_its_inbox(installation: Installation, start: Start, mode: str) -> None:
    """It tries again, or ends with an error."""
    with Peer(MODES[mode]) as peer:
        client = start(installation.programs / "consume", EVIL.format(peer.port), "name=c")
        watch(client, lambda: peer.sent > 80, mode, MOST_OF_OTHERS)  # a login, and an answer
        stop_client(client, mode, MOST_OF_OTHERS)


@pytest.mark.parametrize("mode", all_in_long_run(MODES, short=[*SHORT, "endless notices", "a huge error"]))
def test_the_client_and_a_database_of_others(installation: Installation, start: Start, mode: str) -> None:
    """Its source connects again, and says why. It may wait for the rest of an answer that only looks like one."""
    with Peer(MODES[mode]) as peer:
        pull = [f"pull={EVIL.format(peer.port)}", "destination=d"]
        client = start(installation.programs / "consume", NOWHERE, "name=c", *pull)
        is_finite = mode in hostile_postgresql.ROWS
        watch(client, lambda: peer.sent > 80 if is_finite else peer.connections > 2, mode, MOST_OF_OTHERS)
        stop_client(client, mode, MOST_OF_OTHERS)
    assert_well(client, mode, MOST_OF_OTHERS)


def test_parameters_reported_by_a_database_of_others_take_bounded_memory(
    installation: Installation, start: Start
) -> None:
    """Each answer has a few new ones."""
    mode = "a few parameters in each answer"
    with Peer(hostile_postgresql.answering_with_parameters(1)) as peer:
        pull = [f"pull={EVIL.format(peer.port)}", "destination=d", f"max_answer={1 << 20}"]
        client = start(installation.programs / "consume", NOWHERE, "name=c", *pull)
        watch(client, lambda: peer.connections > 3, mode, MOST_MEMORY)
        stop_client(client, mode, MOST_MEMORY)
