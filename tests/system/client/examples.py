"""The examples, run by the commands of their page, and a shop that they copy."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psycopg

from cluster import REPOSITORY, Cluster
from database import Database
from waiting import wait_until

T = TypeVar("T")


class Page:
    """The commands of a page, by their headings."""

    def __init__(self, path: str, directory: Path, environment: dict[str, str]) -> None:
        self.path = REPOSITORY / path
        self.directory = directory
        self.environment = environment
        self.running: list[Program] = []

    def commands(self, heading: str, language: str = "sh") -> list[str]:
        sections = re.split(r"^## (.*)\n", self.path.read_text(), flags=re.MULTILINE)
        text = dict(zip(sections[1::2], sections[2::2]))[heading]
        return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.directory, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{self.path.name}: {command}\n{done.stdout}"
        return done.stdout

    def start(self, command: str, *options: str, **environment: str) -> Program:
        command = " ".join([command.strip(), *options])
        self.running.append(Program(command, self.directory, {**self.environment, **environment}))
        return self.running[-1]

    def close(self) -> None:
        for program in self.running:
            program.kill()


class Program:
    """A program that runs until it is told to end."""

    def __init__(self, command: str, directory: Path, environment: dict[str, str]) -> None:
        self.log_file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"], cwd=directory, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log_file,
        )  # fmt: skip

    def stop(self) -> str:
        """Sends SIGTERM; returns the program's output."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, f"ended with {self.process.returncode}:\n{self.log()}"
        return output

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def wait_until(self, fetch: Callable[[], T], predicate: Callable[[T], object] = bool, *, what: str) -> T:
        """Waits; a failure shows the program's output as well."""
        try:
            # Google's emulator may take minutes to send again what it had sent to a program that was killed.
            return wait_until(fetch, predicate, timeout=240, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.process.args}:\n{self.log()}") from None

    def log(self) -> str:
        self.log_file.seek(0)
        return self.log_file.read()


# Video, version, event, title
Change = tuple[str, int, str, str]


class Shop(Database):
    """The example's shop, with a ledger of its committed changes."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.ledger: list[Change] = []
        self._ids: list[str] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Starts to change videos all the time."""
        self._closing.clear()
        self._thread = threading.Thread(target=self._sell, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._closing.set()
            self._thread.join(60)
            assert not self._thread.is_alive()

    def sell(self, count: int) -> None:
        """Waits until the shop has made this number of further changes."""
        enough = len(self.ledger) + count
        wait_until(lambda: len(self.ledger), lambda n: n >= enough, what=f"{count} changes in the shop")

    def _sell(self) -> None:
        with self.connect() as connection:
            while not self._closing.wait(0.005):
                self._change(connection)

    def _change(self, connection: psycopg.Connection) -> None:
        title, choice = f"Take {len(self.ledger)}", random.random()
        if not self._ids or choice < 0.1:
            event = "VideoCreated"
            statement = "INSERT INTO video (title, duration_seconds) VALUES (%s, 60)"
            parameters = [title]
        elif choice < 0.95:
            event = "VideoUpdated"
            statement = "UPDATE video SET title = %s WHERE video_id = %s"
            parameters = [title, random.choice(self._ids)]
        else:
            event = "VideoDeleted"
            statement = "DELETE FROM video WHERE video_id = %s"
            parameters = [random.choice(self._ids)]
        row = connection.execute(f"{statement} RETURNING video_id::text, version", parameters).fetchone()
        assert row is not None
        video_id, version = row
        if event == "VideoCreated":
            self._ids.append(video_id)
        elif event == "VideoDeleted":
            self._ids.remove(video_id)
            version += 1
        self.ledger.append((video_id, version, event, title))

    def videos(self) -> list[tuple]:
        return self.execute("SELECT * FROM video ORDER BY video_id")


class Catalog(Database):
    def videos(self) -> list[tuple]:
        return self.execute("SELECT * FROM catalog_read.video ORDER BY video_id")

    def history(self) -> list[tuple[str, int, str]]:
        """Returns the history in the order in which it was applied."""
        return self.execute(
            "SELECT video_id::text, version, event_type FROM catalog_read.video_history ORDER BY number"
        )

    def applied(self) -> int:
        return self.value("SELECT count(*) FROM catalog_read.video_history")

    def wait_applied(self, count: int, program: Program) -> None:
        what = f"{count} events to be applied"
        program.wait_until(self.applied, lambda seen: seen >= count, what=what)
