"""A disk that is full for tables and indexes: of the log, of the inbox, and of a table that a handler writes.

No event is lost or given up, none is out of order, and all goes on when there is room again, without a step of an operator.
tests/drills/test_disk_full.py has a file system that is really full, where one may be mounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cluster import MakeCluster
from database import Database, create_database
from waiting import wait_until

pytestmark = [
    pytest.mark.extension("handlers run in the server"),
    pytest.mark.worker_errors("could not extend file .*: No space left on device"),
]
NO_SPACE = "No space left on device"
HANDLER = """
    CREATE TABLE public.applied (number bigserial, version bigint);
    CREATE TABLE public.wide (text text);
    CREATE FUNCTION public.handle(event inbox.message) RETURNS void LANGUAGE sql AS $$
        INSERT INTO public.wide SELECT repeat('wide', 500) FROM generate_series(1, 8);
        INSERT INTO public.applied (version) VALUES (event.version) $$;
    SELECT inbox.subscribe('c', '*', 'public.handle');
    SELECT inbox.set_policy('c', max_attempts => 3, retry_base => '1 ms', retry_max => '10 ms')"""


class Disk:
    def __init__(self, make_cluster: MakeCluster) -> None:
        self.cluster = make_cluster(started=False)
        self.file = self.cluster.directory / "full"
        programs: Path = self.cluster.installation.programs
        self.cluster.environment = {"LD_PRELOAD": str(programs / "disk_full.so"), "OUTBOX_DISK_FULL": str(self.file)}
        self.cluster.start()
        self.sender = create_database(self.cluster, "sender")
        self.receiver = create_database(self.cluster, "receiver", extension=False)
        self.receiver.execute("CREATE EXTENSION pg_inbox")
        self.receiver.execute(HANDLER)
        self.sender.add_destination("d", self.receiver.inbox_url(), consumer="c")
        self.sent = 0
        self.send(1)
        self.all_are_applied()

    def fill(self, path: str = "") -> None:
        """Lets no file grow, or only those of this path."""
        self.file.write_text(path)
        self.file.chmod(0o644)

    def send(self, count: int) -> None:
        self.sender.enqueue(count=count, first=self.sent + 1)
        self.sent += count

    def send_while_paused(self, count: int) -> None:
        self.sender.pause()
        self.send(count)

    def all_are_applied(self) -> None:
        """Each once, in order."""
        versions = list(range(1, self.sent + 1))
        applied = "SELECT version FROM public.applied ORDER BY number"
        wait_until(
            lambda: [row[0] for row in self.receiver.execute(applied)], lambda seen: seen == versions,
            what=f"{self.sent} events to be applied, each once and in order",
        )  # fmt: skip
        assert self.receiver.value("SELECT count(*) FROM inbox.dead_letter") == 0
        assert self.sender.value("SELECT count(*) FROM outbox.dead_letter") == 0


@pytest.fixture
def disk(make_cluster: MakeCluster) -> Iterator[Disk]:
    yield Disk(make_cluster)


def test_the_disk_of_the_log_is_full(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(psycopg.errors.DiskFull):
        disk.sender.enqueue("refused", 1000)
    disk.file.unlink()
    disk.send(100)
    disk.all_are_applied()


def test_the_disk_of_the_inbox_is_full(disk: Disk) -> None:
    disk.send_while_paused(1000)
    disk.fill()
    disk.sender.execute("SELECT outbox.resume('d')")
    wait_until(lambda: disk.sender.status()["last_error"], lambda said: said and NO_SPACE in said, what="the error")
    disk.file.unlink()
    disk.all_are_applied()


def test_the_disk_of_a_table_of_a_handler_is_full(disk: Disk) -> None:
    disk.fill(path_of(disk.receiver, "public.wide"))
    disk.send(100)
    attempts = "SELECT attempts FROM inbox.waiting_keys"
    wait_until(
        lambda: disk.receiver.value(attempts), lambda seen: seen and seen > 5,
        what="more attempts than make a dead letter",
    )  # fmt: skip
    assert NO_SPACE in disk.receiver.value("SELECT error FROM inbox.waiting_keys")
    disk.file.unlink()
    disk.all_are_applied()


def path_of(database: Database, table: str) -> str:
    return "/" + database.value("SELECT pg_relation_filepath(%s)", (table,))
