"""Nothing lost, nothing invented, no key out of order: see ledger.py.

Several writers commit, roll back and prepare while processes are killed. At the end the
receiver must have got exactly what the ledger says.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from cluster import Cluster, MakeCluster
from database import Database, create_database
from ledger import SETUP, Entry, Verdict, check, check_log, read_ledger, writer_command
from long_run import all_in_long_run
from processes import wait_until_handles
from receiver import Receiver, answer, close_unanswered, cut_off, reset
from waiting import wait_until

AGGREGATES = 40
WRITERS = 5


@contextmanager
def writers(
    database: Database, count: int = WRITERS, *, conninfo: str | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Writers at work; after the block they have stopped."""
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}")
    conninfo = conninfo or database.cluster.conninfo(database.name)
    processes = [
        subprocess.Popen(
            writer_command(conninfo, number, seed + number, AGGREGATES),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    try:
        for process in processes:
            wait_until_handles(process, signal.SIGTERM)
        yield processes
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            output, _ = process.communicate(timeout=90)
            assert process.returncode == 0, f"a writer failed:\n{output}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def set_up(cluster: Cluster, receiver: Receiver, **options: str) -> Database:
    database = create_database(cluster)
    database.execute(SETUP.format(aggregates=AGGREGATES))
    database.add_destination("d", receiver.url(), **options)
    database.wait_for_worker("relay", "d")
    return database


def wait_for_new_arrivals(receiver: Receiver, more: int) -> None:
    """Waits until this number of further events has arrived, without duplicates."""

    def arrived() -> int:
        return len(set(receiver.ids()))

    goal = arrived() + more
    wait_until(arrived, lambda seen: seen >= goal, timeout=180, what=f"{more} more events")


def conclude(
    database: Database,
    receiver: Receiver,
    *,
    restarts: int = 0,
    repeats: bool = False,
    log_is_kept: bool = True,
) -> Verdict:
    """Waits until the last event has arrived, and compares."""
    ledger = read_ledger(database.connection)
    committed = {entry.event_id for entry in ledger}
    with suppress(AssertionError):  # the checker gives a better message
        wait_until(
            lambda: len(committed.difference(receiver.ids())), lambda missing: missing == 0,
            what="all events of the ledger to arrive",
        )  # fmt: skip
    if log_is_kept:
        check_log(database.connection)
    verdict = check(ledger, receiver.ids())
    print(verdict)
    verdict.hold(restarts=restarts, repeats=repeats)
    database.wait_settled()
    return verdict


# -------------------------------------------------------------------------------------------------
# The checker itself
# -------------------------------------------------------------------------------------------------


def test_the_checker_finds_what_is_wrong() -> None:
    ledger = [Entry(f"{key}{n}", key, n) for key in "ab" for n in (1, 2, 3, 4)]
    right = [entry.event_id for entry in ledger]
    check(ledger, right).hold()
    check(ledger, right[:3] + right).hold(restarts=1)
    check(ledger, [right[0], *right]).hold(repeats=True)

    for arrivals, restarts, complaint in (
        (right[:-1], 0, "lost"),
        (right[1:], 0, "lost"),
        ([*right, "x"], 0, "invented"),
        (["a2", "a1", *right[2:]], 9, "arrived when"),
        ([*right[:2], "a1", *right[2:]], 0, "allowed steps back"),
        ([*right[:2], "a1", "a2", "a1", *right[2:]], 1, "allowed steps back"),
        ([*right, right[-1]], 0, "nothing may arrive twice"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            check(ledger, arrivals).hold(restarts=restarts)
    with pytest.raises(AssertionError, match="nothing was committed"):
        check([], []).hold()


# -------------------------------------------------------------------------------------------------
# Working and failing destinations
# -------------------------------------------------------------------------------------------------


def test_ledger_in_calm(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    database = set_up(make_cluster(), receiver)
    with writers(database):
        wait_for_new_arrivals(receiver, 4000)
    conclude(database, receiver)


@pytest.mark.long
def test_ledger_with_batches(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    database = set_up(make_cluster(), receiver, format="batched", batch_size="50")
    with writers(database):
        wait_for_new_arrivals(receiver, 4000)
    conclude(database, receiver)


@pytest.mark.long
@pytest.mark.slow
def test_ledger_with_a_destination_that_fails(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    """A request that fails after it took effect arrives twice; no event arrives out of order."""
    settings = {"outbox.backoff_min": "1ms", "outbox.backoff_max": "20ms"}
    database = set_up(make_cluster(settings), receiver)
    dice = random.Random(5)
    for behave in (answer(500), answer(429), close_unanswered, reset, cut_off(b"HTTP/1.1 20")):
        receiver.on(lambda request: dice.random() < 0.01, behave)
    with writers(database):
        for _ in range(3):
            wait_for_new_arrivals(receiver, 800)
            receiver.refuse_connections()
            receiver.listen()
    receiver.forget_rules()
    assert conclude(database, receiver, repeats=True).twice > 0, "the destination did not fail"


# -------------------------------------------------------------------------------------------------
# Killed
# -------------------------------------------------------------------------------------------------


def kill_relay(cluster: Cluster, database: Database) -> None:
    cluster.kill_and_recover(database.wait_for_worker("relay", "d"))


def kill_writing_backend(cluster: Cluster, database: Database) -> None:
    def a_backend_that_writes() -> int | None:
        rows = cluster.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
        )
        return rows[0][0] if rows else None

    pid = wait_until(a_backend_that_writes, what="a backend in the middle of a transaction")
    assert pid is not None
    cluster.kill_and_recover(pid)


def kill_postmaster(cluster: Cluster, database: Database) -> None:
    cluster.kill_postmaster()
    cluster.start()


KILLS = {"relay": kill_relay, "backend": kill_writing_backend, "postmaster": kill_postmaster}
TIMES = 3


def kill_while_writers_write(
    victim: str, cluster: Cluster, database: Database, receiver: Receiver, *, arrivals: int
) -> None:
    """Kills repeatedly: before, between and after this number of events arrives."""
    with writers(database):
        for _ in range(TIMES):
            wait_for_new_arrivals(receiver, arrivals)
            KILLS[victim](cluster, database)
        wait_for_new_arrivals(receiver, arrivals)


@pytest.mark.slow
@pytest.mark.parametrize("synchronous_commit", all_in_long_run(["on", "off"], short=["off"]))
@pytest.mark.parametrize("victim", list(KILLS))
def test_ledger_with_kills(
    make_cluster: MakeCluster,
    receiver: Receiver,
    http: None,
    victim: str,
    synchronous_commit: str,
) -> None:
    """A crash forgets some asynchronous commits: no event of those may have arrived."""
    settings = {
        "synchronous_commit": synchronous_commit,
        "outbox.cursor_flush_interval": "100ms",  # so that saved cursors matter
    }
    if synchronous_commit == "off":
        settings["wal_writer_delay"] = "10s"  # so that a crash really loses commits
    cluster = make_cluster(settings)
    database = set_up(cluster, receiver)
    kill_while_writers_write(victim, cluster, database, receiver, arrivals=500)
    conclude(database, receiver, restarts=TIMES)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("victim", list(KILLS))
def test_ledger_while_the_log_is_emptied(
    make_cluster: MakeCluster, receiver: Receiver, http: None, victim: str
) -> None:
    """Segments are reused all the time, also those to which an old transaction writes."""
    settings = {"outbox.segment_size": "64kB", "outbox.cursor_flush_interval": "100ms"}
    cluster = make_cluster(settings)
    database = set_up(cluster, receiver)
    kill_while_writers_write(victim, cluster, database, receiver, arrivals=1500)
    verdict = conclude(database, receiver, restarts=TIMES, log_is_kept=False)
    kept = database.value("SELECT count(*) FROM outbox.event")
    assert kept < verdict.committed, "nothing was emptied"
