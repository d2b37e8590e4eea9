"""Debezium's engine on the log, as docs/debezium.md sets it up, and the records that it makes."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import REPOSITORY, run
from database import Database
from sinks.servers import INSTALLED, NotInstalled, java
from waiting import wait_until

LIBRARIES = INSTALLED / "debezium"
PAGE = REPOSITORY / "docs/debezium.md"
HEARTBEATS = "__debezium-heartbeat.shop"


@dataclass(frozen=True)
class Record:
    topic: str
    key: str | None
    headers: dict[str, str | None]
    value: bytes | None

    @property
    def id(self) -> str:
        event_id = self.headers["id"]
        assert event_id is not None
        return event_id


def of_page(language: str) -> list[str]:
    """The blocks of the page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def set_up(database: Database) -> None:
    psql(database, of_page("sql")[0])


def set_up_for_it_alone(database: Database) -> None:
    """Creates a destination in its place, and a publication that includes events only for that one."""
    psql(database, of_page("sql")[1])


def psql(database: Database, commands: str) -> None:
    conninfo = database.cluster.conninfo(database.name)
    run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", conninfo], input=commands)


def connector() -> dict[str, str]:
    """The configuration for Kafka Connect."""
    return json.loads(of_page("json")[0])


def connector_with_log() -> dict[str, str]:
    """Options that make it begin with the events in the log."""
    return json.loads(of_page("json")[1])


def server() -> dict[str, str]:
    """The configuration for Debezium Server."""
    return dict(line.split("=", 1) for line in of_page("properties")[0].splitlines())


class Debezium:
    """The engine. Its slot and its file of offsets remain between runs."""

    def __init__(self, database: Database, directory: Path, **changes: str) -> None:
        if not (LIBRARIES / "Reader.class").exists():
            raise NotInstalled(f"there is no {LIBRARIES / 'Reader.class'}")
        self.database = database
        self.output = directory / "records"
        self.log = directory / "log"
        self.properties = directory / "properties"
        self.process: subprocess.Popen[bytes] | None = None
        own = {
            "name": "shop",
            "database.hostname": "127.0.0.1",
            "database.port": str(database.cluster.port),
            "database.dbname": database.name,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "100",
            "heartbeat.interval.ms": "500",
            "poll.interval.ms": "20",
        }
        pairs = {**connector(), **own, **changes}
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in pairs.items()))
        self.output.touch()

    def start(self) -> Debezium:
        """Starts the engine; returns when it reads."""
        assert self.process is None
        command = [*java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{LIBRARIES}:{LIBRARIES}/*",
                   "Reader", str(self.properties)]  # fmt: skip
        with self.output.open("ab") as output, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=log,
            )  # fmt: skip
        wait_until(self.reads, timeout=180, what="Debezium to read the slot")
        return self

    def reads(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.said()
        return bool(self.database.value("SELECT active FROM pg_replication_slots WHERE slot_name = 'outbox'"))

    def stop(self) -> None:
        """Stops the engine, which confirms what it has read."""
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, how: int) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    # ---- records --------------------------------------------------------------------------------

    def lines(self) -> list[dict]:
        """Returns complete records: a killed process may leave half a line."""
        found = []
        for line in self.output.read_text().splitlines(keepends=True):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                assert self.process is None or not line.endswith("\n"), line
        return found

    def records(self) -> list[Record]:
        """Returns records of events, in the order in which they were written."""
        return [
            Record(
                line["topic"], line["key"], line["headers"],
                None if line["value"] is None else base64.b64decode(line["value"]),
            )
            for line in self.lines() if line["topic"] != HEARTBEATS
        ]  # fmt: skip

    def wait_for(self, ids: set[str]) -> None:
        """Waits until it has written these."""
        try:
            wait_until(
                lambda: ids - {record.id for record in self.records()}, lambda missing: not missing,
                timeout=120, what=f"Debezium to write {len(ids)} events",
            )  # fmt: skip
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None
