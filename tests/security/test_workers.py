"""Effects of roles on workers of others, and the time in which workers end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from cluster import MakeCluster
from database import Database, create_database
from processes import process_exists
from receiver import Receiver
from waiting import SECOND, Stopwatch, wait_until

from .attacker import NewRole


def delivers(database: Database) -> None:
    database.enqueue()
    database.wait_settled()


def pids_of(database: Database) -> tuple[int | None, int | None]:
    return database.pid("keeper"), database.pid("relay")


def served(database: Database) -> tuple[int | None, int | None]:
    database.add_destination("d", "null:")
    delivers(database)
    return pids_of(database)


# -------------------------------------------------------------------------------------------------
# Statements about databases
# -------------------------------------------------------------------------------------------------


def test_create_database_does_not_disturb_databases_that_the_role_may_not_copy(
    database: Database, new_role: NewRole
) -> None:
    """S19"""
    pids = served(database)
    with database.cluster.connect(user=new_role("CREATEDB")) as creator:
        for statement in (
            f"CREATE DATABASE x TEMPLATE {database.name}",
            f"DROP DATABASE {database.name}",
            f"ALTER DATABASE {database.name} RENAME TO x",
            f"ALTER DATABASE {database.name} SET TABLESPACE pg_default",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                creator.execute(statement)
    assert pids_of(database) == pids
    delivers(database)


def test_a_rename_that_is_refused_stops_no_worker(database: Database, new_role: NewRole) -> None:
    """S19"""
    pids = served(database)
    owner = new_role()
    database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")
    try:
        with database.cluster.connect(user=owner) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"ALTER DATABASE {database.name} RENAME TO x")
        assert pids_of(database) == pids
    finally:
        database.execute(f"ALTER DATABASE {database.name} OWNER TO postgres")


def test_a_statement_refused_in_a_transaction_block_stops_no_worker(
    database: Database,
) -> None:
    """S19"""
    pids = served(database)
    with database.cluster.connect() as connection:
        for statement in (
            f"CREATE DATABASE x TEMPLATE {database.name}",
            f"DROP DATABASE {database.name}",
            f"ALTER DATABASE {database.name} SET TABLESPACE pg_default",
        ):
            connection.execute("BEGIN; SAVEPOINT s")
            with pytest.raises(psycopg.errors.ActiveSqlTransaction):
                connection.execute(statement)
            connection.execute("ROLLBACK TO s")
            assert pids_of(database) == pids
            delivers(database)
            connection.execute("ROLLBACK")


def test_workers_return_when_the_statement_ends_not_the_transaction(database: Database) -> None:
    """S19: the owner leaves the transaction open in which renaming its database has failed."""
    cluster = database.cluster
    served(database)
    with database.connect() as guest, cluster.connect() as connection:  # the guest's connection blocks the statement
        guest.execute("SELECT 1")
        connection.execute("BEGIN; SAVEPOINT s")
        with pytest.raises(psycopg.errors.ObjectInUse):
            connection.execute(f"ALTER DATABASE {database.name} RENAME TO x")
        connection.execute("ROLLBACK TO s")
        cluster.wait_for_workers(database.name, "keeper", "relay")
        delivers(database)
        connection.execute("ROLLBACK")


def test_a_database_that_is_renamed_in_a_transaction_is_served_when_that_ends(
    database: Database,
) -> None:
    """S19"""
    cluster, name = database.cluster, database.name
    served(database)
    database.disconnect()
    cluster.wait_for_workers(name, "keeper", "relay")
    with cluster.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(f"ALTER DATABASE {name} RENAME TO {name}_x")
        connection.execute("ROLLBACK")
    cluster.wait_for_workers(name, "keeper", "relay")
    delivers(database)


def test_the_launcher_does_not_wait_for_databases_whose_owners_lock_them(
    make_cluster: MakeCluster,
) -> None:
    """S19: keepers that cannot even connect do not keep others from being started."""
    cluster = make_cluster()
    names = [f"locked_{n}" for n in range(6)]
    sessions = []
    for name in names:
        create_database(cluster, name).disconnect()
        cluster.wait_for_workers(name, "keeper")
    for name in names:
        sessions.append(cluster.connect())
        sessions[-1].execute("BEGIN")
        sessions[-1].execute(f"ALTER DATABASE {name} RENAME TO {name}_x")
    try:
        database = create_database(cluster, "other")
        database.add_destination("d", "null:")
        delivers(database)
    finally:
        for session in sessions:
            session.close()


# -------------------------------------------------------------------------------------------------
# Locks of owners
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker_errors("canceling statement due to lock timeout")
def test_a_locked_inbox_does_not_hold_up_the_destinations_of_others(
    database: Database,
) -> None:
    """S24: pg_inbox is trusted, so its tables can belong to anybody who may create extensions."""
    database.execute("CREATE EXTENSION pg_inbox")
    database.wait_for_worker("keeper")
    with database.connect() as owner, owner.transaction():
        owner.execute("LOCK TABLE inbox.consumer IN ACCESS EXCLUSIVE MODE")
        keeper = database.pid("keeper")
        database.add_destination("d", "null:")
        delivers(database)
        assert database.pid("keeper") == keeper


# -------------------------------------------------------------------------------------------------
# SIGTERM
# -------------------------------------------------------------------------------------------------


def ends_within_a_second(pid: int) -> None:
    watch = Stopwatch()
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: process_exists(pid), lambda seen: not seen, timeout=20, what=f"process {pid} to end")
    assert watch.seconds < 1 * SECOND, f"it took {watch.seconds:.2f} s"


def wait_for_activity(
    database: Database, kind: str, condition: str, *, otherwise: Callable[[], object] = lambda: None
) -> int:
    """Waits until a worker does the work that the test interrupts. `otherwise` gives it more work."""

    def look() -> list[tuple]:
        rows = database.cluster.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s "
            f"AND backend_type = 'pg_outbox {kind}' AND {condition}", (database.name,),
        )  # fmt: skip
        if not rows:
            otherwise()
        return rows

    rows = wait_until(look, what=f"a {kind} in {database.name} with {condition}")
    return int(rows[0][0])


WAITS_FOR_LOCK = "wait_event_type = 'Lock'"


@pytest.fixture
def locked(database: Database) -> Iterator[Database]:
    """A database with a table `locked` that another session has locked."""
    database.execute("CREATE TABLE public.locked (id int PRIMARY KEY)")
    with holding(database, "LOCK TABLE public.locked"):
        yield database


@contextmanager
def holding(database: Database, statement: str) -> Iterator[None]:
    """Another session has run a statement in a transaction that is still open."""
    with database.connect() as locker, locker.transaction(force_rollback=True):
        locker.execute(statement)
        yield


HANDLERS = {
    "an endless loop": ("LOOP END LOOP", "state = 'active'"),
    "a sleep": ("PERFORM pg_sleep(1000)", "wait_event = 'PgSleep'"),
    "a long query": ("PERFORM count(*) FROM generate_series(1, 1000000000)", "state = 'active'"),
    "a lock": ("PERFORM FROM public.locked", WAITS_FOR_LOCK),
    "errors that it catches": (
        "LOOP BEGIN PERFORM pg_sleep(1000); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP",
        "wait_event = 'PgSleep'",
    ),
}  # fmt: skip


def process_a_message(database: Database, body: str) -> None:
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute(
        f"CREATE FUNCTION public.handle(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
    )
    database.execute("SELECT inbox.subscribe('c', '*', 'public.handle')")
    database.execute(
        "INSERT INTO inbox.message (consumer_id, event_id, occurred_at, topic, aggregate_type, "
        "aggregate_id, event_type) SELECT id, gen_random_uuid(), now(), 't', 'a', '1', 'X' "
        "FROM inbox.consumer"
    )
    database.execute("SELECT inbox_internal.wake('messages')")


@pytest.mark.timing
@pytest.mark.parametrize("name", HANDLERS)
def test_a_processor_ends_in_the_middle_of_a_handler(locked: Database, name: str) -> None:
    """S13"""
    body, condition = HANDLERS[name]
    process_a_message(locked, body)
    condition += " AND query = 'processing a message'"
    ends_within_a_second(wait_for_activity(locked, "processor", condition))


@pytest.mark.timing
def test_a_backfill_ends_while_it_waits_for_a_lock(database: Database) -> None:
    """S13"""
    database.execute("CREATE TABLE public.slow (id int PRIMARY KEY)")
    database.execute("INSERT INTO public.slow SELECT generate_series(1, 1000)")
    database.execute("SELECT outbox.capture('public.slow')")
    served(database)
    id = database.value("SELECT outbox.backfill('public.slow', batch => 1, rate => 10)")
    database.wait_for_worker("backfill")
    with holding(database, "LOCK TABLE public.slow"):
        ends_within_a_second(wait_for_activity(database, "backfill", WAITS_FOR_LOCK))
    database.execute("SELECT outbox.cancel_backfill(%s)", (id,))


@pytest.mark.timing
def test_a_keeper_ends_while_it_waits_for_a_lock(database: Database) -> None:
    """S13"""
    served(database)
    with holding(database, "LOCK TABLE outbox.backfill_task"):
        database.execute("ALTER SERVER d OPTIONS (ADD topics 'x')")
        ends_within_a_second(wait_for_activity(database, "keeper", WAITS_FOR_LOCK))


@pytest.mark.timing
@pytest.mark.parametrize("tables", ["cursor", "event_0, outbox.event_1, outbox.event_2, outbox.event_3"])
def test_a_relay_ends_while_it_waits_for_a_lock(database: Database, tables: str) -> None:
    """S13"""
    served(database)
    database.pause()
    database.enqueue(count=10)
    with database.connect() as locker, locker.transaction(force_rollback=True):
        locker.execute(f"LOCK TABLE outbox.{tables}")
        if tables == "cursor":
            os.kill(database.wait_for_worker("relay"), signal.SIGHUP)
        else:
            database.execute("SELECT outbox.resume('d')")
        ends_within_a_second(wait_for_activity(database, "relay", WAITS_FOR_LOCK))


@pytest.mark.timing
def test_a_relay_ends_in_the_middle_of_a_large_window(database: Database) -> None:
    """S13"""
    served(database)
    database.pause()
    database.enqueue(count=200_000)
    database.execute("SELECT outbox.resume('d')")
    ends_within_a_second(wait_for_activity(
        database, "relay", "query = 'reading the log'", otherwise=lambda: database.enqueue(count=20_000)
    ))  # fmt: skip
    database.wait_settled()


@pytest.mark.timing
def test_a_relay_ends_while_receivers_are_silent(database: Database, receiver: Receiver, http: None) -> None:
    """S13"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        patient = {"request_timeout": "1h", "connect_timeout": "1h"}
        database.add_destination("h", f"http://127.0.0.1:{port}/", **patient)
        database.add_destination("s", f"https://127.0.0.1:{port}/", **patient)
        database.add_destination("p", f"postgresql://127.0.0.1:{port}/x", **patient)
        database.enqueue(count=100)
        for name in ("h", "s", "p"):
            wait_until(
                lambda: database.status(name)["in_flight"], lambda seen: seen > 0,
                what=f"events in flight to {name}",
            )  # fmt: skip
            ends_within_a_second(database.wait_for_worker("relay", name))


@pytest.mark.timing
def test_a_check_ends_while_its_peer_is_silent(database: Database, http: None) -> None:
    """S13"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        database.add_destination("s", url, request_timeout="1h", connect_timeout="1h")
        with database.connect() as asker, ThreadPoolExecutor() as pool:
            answer = pool.submit(asker.execute, "SELECT * FROM outbox.check_destination('s')")
            ends_within_a_second(wait_for_activity(database, "check", "true"))
            with pytest.raises(psycopg.Error, match="ended early"):
                answer.result()


@pytest.mark.timing
def test_workers_end_while_their_extension_is_being_dropped(database: Database) -> None:
    """S13"""
    served(database)
    pids = pids_of(database)
    with holding(database, "DROP EXTENSION pg_outbox CASCADE"):
        os.kill(database.cluster.postmaster, signal.SIGHUP)
        for pid in pids:
            assert pid is not None
            ends_within_a_second(pid)
    delivers(database)


@pytest.mark.timing
def test_a_fast_shutdown_is_fast_whatever_workers_do(make_cluster: MakeCluster) -> None:
    """S13"""
    cluster = make_cluster()
    databases = []
    for number, (body, condition) in enumerate(HANDLERS.values()):
        database = create_database(cluster, f"db_{number}")
        database.execute("CREATE TABLE public.locked (id int PRIMARY KEY)")
        databases.append(database)
        served(database)
    locker = databases[3].connect()
    locker.execute("BEGIN; LOCK TABLE public.locked")
    for database, (body, condition) in zip(databases, HANDLERS.values()):
        process_a_message(database, body)
        wait_for_activity(database, "processor", f"{condition} AND query = 'processing a message'")
    for database in databases:
        database.disconnect()
    seconds = cluster.stop("fast")
    locker.close()
    assert seconds < 1.5 * SECOND, f"the server took {seconds:.2f} s to stop"


def test_names_of_destinations_make_no_lines_of_the_log(database: Database) -> None:
    """PostgreSQL indents further lines of a message, but not each reader of a log knows that."""
    name = "a\n2026-01-01 forged\u202e\x1b[2J"
    database.add_destination(name, "http://127.0.0.1:1/", request_timeout="1s", max_attempts="1")
    database.enqueue()
    cluster = database.cluster
    wait_until(lambda: database.value("SELECT last_error FROM outbox.status WHERE failures > 0"), what="a failure")
    (pid,) = [pid for kind, _, pid in cluster.workers() if kind == "pg_outbox relay"]
    cluster.execute("SELECT pg_terminate_backend(%s)", (pid,))  # PostgreSQL logs the name of the worker
    shown = 'destination "a 2026-01-01 forged  [2J" failed'
    log = wait_until(
        lambda: cluster.log_since(cluster.test_began), lambda log: shown in log, what="its line in the log"
    )
    database.drop_destination(name)
    assert not [line for line in log.splitlines() if line.lstrip().startswith("2026-01-01")]
    assert "\x1b" not in log and "\u202e" not in log
