"""A worker that crashes makes the server restart. It must not do so again and again."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database, create_database
from waiting import Stopwatch, wait_until

from .attacker import NewAttacker


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster()


def crash(cluster: Cluster, pid: int, by: signal.Signals = signal.SIGSEGV) -> None:
    cluster.kill_and_recover(pid, by)


def keeper_of(database: Database) -> int | None:
    pids = [
        pid for kind, name, pid in database.cluster.workers()
        if (kind, name) == ("pg_outbox keeper", database.name)
    ]  # fmt: skip
    return pids[0] if pids else None


def wait_for_keeper(database: Database) -> int:
    pid = wait_until(
        lambda: keeper_of(database), what=f"a keeper of {database.name}",
        ignoring=(psycopg.OperationalError,),
    )  # fmt: skip
    assert pid is not None
    return pid


def held_back(database: Database) -> dict[str, Any] | None:
    cursor = database.connection.execute(
        "SELECT *, next_try - since AS pause FROM outbox.absent_workers() WHERE state = 'held back'"
    )
    row = cursor.fetchone()
    return dict(zip([column.name for column in cursor.description or []], row)) if row else None


def delivers(database: Database) -> None:
    database.enqueue()
    database.wait_settled()


def two_databases(cluster: Cluster) -> tuple[Database, Database]:
    sick, well = create_database(cluster, "sick"), create_database(cluster, "well")
    for database in (sick, well):
        database.add_destination("d", "null:")
        delivers(database)
    return sick, well


# Pauses double: on a slow machine one of the later ones is long enough to look at it.
MOST_CRASHES = 8


def pause_of(crashes: int) -> float:
    return 2.0 ** (crashes - 2)


@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_only_the_worker_that_crashed_twice_in_a_row_is_held_back(cluster: Cluster, by: signal.Signals) -> None:
    """S6"""
    sick, well = two_databases(cluster)
    sick.add_destination("other", "null:")
    for crashes in range(1, MOST_CRASHES + 1):
        crash(cluster, sick.wait_for_worker("relay", "d"), by)
        held = held_back(sick)
        if crashes == 1:
            assert held is None, "the first time may be bad luck"
        if held is None:
            continue
        assert (held["kind"], held["name"], held["crashes"]) == ("relay", "d", crashes)
        assert held["pause"].total_seconds() == pause_of(crashes)
        findings = sick.health()
        shown = sick.status("d")["state"]
        # The others start at once, while this one waits.
        sick.wait_for_worker("relay", "other")
        delivers(well)
        if sick.value("SELECT clock_timestamp()") < held["next_try"]:
            break
    else:
        pytest.fail("it was never held back, or the others as well")
    assert shown == "held back"
    (why,) = [f.why for f in findings if f[:3] == ("failing", 'destination "d"', "held back")]
    assert f"its relay has crashed {crashes} times in a row" in why
    sick.wait_for_worker("relay", "d")
    assert sick.value("SELECT clock_timestamp()") >= held["next_try"]
    assert held_back(sick) is None
    delivers(sick)


def test_a_keeper_that_crashes_holds_back_its_database_only(cluster: Cluster) -> None:
    """S6: the time between crashes grows, and other databases are served."""
    sick, well = two_databases(cluster)
    for crashes in range(1, MOST_CRASHES + 1):
        crash(cluster, wait_for_keeper(sick))
        delivers(well)
        held = held_back(sick)
        workers = sick.workers()
        if held is not None and held_back(sick) is not None:
            break
    else:
        pytest.fail("it was never held back")
    assert (held["kind"], held["crashes"]) == ("keeper", crashes)
    assert held["pause"].total_seconds() == pause_of(crashes)
    assert workers == [], "without a keeper there is nobody"
    assert well.health() == []
    assert "pg_outbox keeper sick is held back until" in cluster.log()
    wait_for_keeper(sick)
    delivers(sick)


def test_workers_that_take_turns_in_crashing_hold_back_their_database(cluster: Cluster) -> None:
    """S6"""
    sick, well = two_databases(cluster)
    for number in range(MOST_CRASHES + 2):
        sick.add_destination(f"d{number}", "null:")
    for number in range(MOST_CRASHES + 2):
        crash(cluster, sick.wait_for_worker("relay", f"d{number}"))
        held = held_back(sick)
        if held is not None:
            break
    else:
        pytest.fail("it was never held back")
    assert held["kind"] == "keeper" and held["crashes"] == number + 1 >= 5
    delivers(well)


def test_crashes_of_other_processes_are_not_counted(cluster: Cluster) -> None:
    """S6: a worker that was told to quit because of another's crash is not blamed."""
    sick, well = two_databases(cluster)
    for _ in range(3):
        with well.connect() as connection:
            crash(cluster, connection.info.backend_pid)
        assert held_back(sick) is None
        assert held_back(well) is None
        sick.wait_for_worker("relay", "d")
        well.wait_for_worker("relay", "d")


def test_notes_of_crashes_outlive_a_server_that_does_not_start_over_by_itself(
    make_cluster: MakeCluster,
) -> None:
    """S6: a service manager starts the server again, with restart_after_crash = off."""
    cluster = make_cluster({"restart_after_crash": "off"})
    sick, well = two_databases(cluster)
    for crashes in range(1, MOST_CRASHES + 1):
        cluster.kill(sick.wait_for_worker("relay", "d"), signal.SIGSEGV)
        assert cluster.process is not None
        cluster.process.wait(60)
        cluster.process = None
        cluster.start()
        held = held_back(sick)
        if held is not None:
            break
    else:
        pytest.fail("it was never held back")
    assert held["crashes"] == crashes > 1
    delivers(well)
    # After a repair nobody has to wait.
    sick.disconnect()
    well.disconnect()
    cluster.restart("fast")
    assert held_back(sick) is None
    delivers(sick)


def test_notes_that_are_damaged_are_ignored(make_cluster: MakeCluster) -> None:
    """S6"""
    cluster = make_cluster({"restart_after_crash": "off"})
    sick, _ = two_databases(cluster)
    path = cluster.data / "pg_stat" / "pg_outbox.crashes"
    for content in (b"", b"x" * 100, os.urandom(10_000)):
        cluster.kill(sick.wait_for_worker("relay", "d"), signal.SIGSEGV)
        assert cluster.process is not None
        cluster.process.wait(60)
        cluster.process = None
        assert path.stat().st_size < 16_384 and path.stat().st_mode & 0o077 == 0
        path.write_bytes(content)
        cluster.start()
        assert held_back(sick) is None
        assert not path.exists()
    delivers(sick)


# -------------------------------------------------------------------------------------------------
# Workers that end with an error
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker_errors("role .* is not permitted to log in")
def test_health_reports_a_worker_that_fails_repeatedly(database: Database, new_attacker: NewAttacker) -> None:
    """S6, class 4: its role may not log in any more."""
    database.execute("CREATE EXTENSION pg_inbox")
    role = new_attacker("inbox.grant_read")
    role.execute("CREATE FUNCTION f(m inbox.message) RETURNS void LANGUAGE sql AS $$ $$")
    role.execute("SELECT inbox.subscribe('c', '*', 'f')")
    processor = database.wait_for_worker("processor", "c")
    database.execute(f"ALTER ROLE {role.role} NOLOGIN")
    database.execute("SELECT pg_terminate_backend(%s)", (processor,))
    wait_until(
        lambda: [found[:3] for found in database.health()],
        lambda seen: ("degraded", 'consumer "c"', "ends early") in seen,
        what="a processor that ends to be shown",
    )  # fmt: skip


def test_a_role_cannot_have_workers_started_without_bound(
    make_cluster: MakeCluster,
) -> None:
    """S6: each commit can wake the keeper, which does not start the worker each time."""
    cluster = make_cluster({"log_min_messages": "debug1"})
    watch = Stopwatch()
    database = create_database(cluster, "db", extension=False)
    cluster.execute("CREATE ROLE low LOGIN")
    with cluster.connect("db", user="low") as connection:
        for _ in range(500):
            connection.execute("SELECT set_config('inbox.wake', 'subscriptions', true)")
    started = cluster.log().count('starting background worker process "pg_outbox keeper db"')
    assert started <= 5 + watch.seconds / 2
    database.create_extension()
    cluster.wait_for_workers("db", "keeper")
