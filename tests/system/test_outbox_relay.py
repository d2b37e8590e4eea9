"""The program outbox-relay against databases with the extension."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation, as_server_user
from database import Database, NewDatabase, enqueue
from receiver import Receiver
from waiting import wait_until


class RelayProcess:
    """A running outbox-relay."""

    def __init__(self, program: Path, databases: list[Database], log: Path, *options: str) -> None:
        self.log_path = log
        config = log.with_suffix(".toml")
        config.write_text("".join(f"[databases.{d.name}]\nurl = \"{d.cluster.conninfo(d.name)}\"\n" for d in databases))
        config.chmod(0o644)
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [str(program), "--config", str(config), *options], stdout=output, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        """Ends it as a service manager does, and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


StartRelay = Callable[..., RelayProcess]


@pytest.fixture
def start_relay(installation: Installation, tmp_path: Path) -> Iterator[StartRelay]:
    program = next(installation.stage.rglob("bin/outbox-relay"), None)
    if program is None:
        pytest.skip("NOT TESTED: outbox-relay is not part of this build")
    started: list[RelayProcess] = []

    def start(*databases: Database, options: tuple[str, ...] = ()) -> RelayProcess:
        log = tmp_path / f"relay_{len(started)}.log"
        started.append(RelayProcess(program, list(databases), log, *options))
        return started[-1]

    yield start
    for relay in started:
        relay.destroy()
        print(relay.log())


def test_delivers(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database)
    for number in range(10):
        database.enqueue(str(number))
    wait_until(lambda: len(receiver.events()), lambda count: count == 10, what="10 events")
    database.wait_settled()
    assert relay.stop() == 0
    assert database.value("SELECT count(*) FROM outbox.relay") == 0
