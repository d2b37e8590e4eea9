"""The log is on a disk that fills up: a small file system of its own, as a tablespace.

conftest.py leaves this out, and says so, where nobody may mount one, as in many containers.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cluster import SUPERUSER, make_directory
from database import Database
from waiting import wait_until

from .drill import MakeDrill

SIZE, SIZE_LATER = "768k", "1024k"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    path = make_directory("disk")
    owner = pwd.getpwnam(SUPERUSER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    options = f"size={SIZE},mode=700,uid={owner.pw_uid},gid={owner.pw_gid}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)
    path.rmdir()


def move_log(database: Database, disk: Path) -> None:
    database.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
    for number in range(4):
        database.execute(f"ALTER TABLE outbox.event_{number} SET TABLESPACE small")
    indexes = database.execute(
        "SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN "
        "(SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.event'::regclass)"
    )
    for (index,) in indexes:
        database.execute(f"ALTER INDEX {index} SET TABLESPACE small")


def is_full(database: Database) -> bool:
    """Runs a producer whose transaction fails, but whose session goes on."""
    with database.connect() as producer:
        try:
            with producer.transaction(force_rollback=True):
                for _ in range(100):
                    producer.execute("SELECT change(1, 99)")
        except psycopg.errors.DiskFull:
            assert producer.execute("SELECT count(*) FROM ledger WHERE writer = 99").fetchone() == (0,)
            producer.execute("UPDATE aggregate SET version = version WHERE id = 1")  # without events
            return True
    return False


# "No space left on device", or "wrote only 4096 of 8192 bytes" when two processes share the last pages.
@pytest.mark.worker_errors(r"could not extend file .*: (No space left on device|wrote only \d+ of \d+ bytes)")
def test_a_full_disk_of_the_log_loses_no_committed_event(make_drill: MakeDrill, small_disk: Path) -> None:
    """Meanwhile transactions of producers fail, and committed events are delivered. A little
    room is enough to go on: TRUNCATE needs some before it frees any."""
    drill = make_drill()
    move_log(drill.database, small_disk)
    drill.suffering.refuse_connections()
    with drill.load():
        wait_until(lambda: is_full(drill.database), timeout=180, what="the disk to be full")
        drill.database.wait_settled("calm")
        drill.suffering.listen()
        drill.database.wait_settled("suffering")
        subprocess.run(["mount", "-o", f"remount,size={SIZE_LATER}", str(small_disk)], check=True)
        drill.wait_for_arrivals(500, at=drill.calm)
    drill.conclude()
