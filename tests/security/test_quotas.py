"""S18: no role can take all background workers."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database, NewDatabase, create_database
from waiting import wait_until

QUOTA = 4

HANDLE = """
    CREATE FUNCTION {0}.handle(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$"""


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    cluster = make_cluster({"outbox.max_workers_per_role": str(QUOTA), "max_worker_processes": "20"})
    cluster.execute("CREATE ROLE greedy LOGIN; CREATE ROLE modest LOGIN")
    return cluster


def make_database(cluster: Cluster, name: str) -> Database:
    database = create_database(cluster, name)
    database.execute("CREATE EXTENSION pg_inbox")
    for role in ("greedy", "modest"):
        database.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        database.execute(f"SELECT outbox.grant_capture('{role}'), inbox.grant_read('{role}')")
        database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {role}")
    return database


@pytest.fixture
def database(cluster: Cluster) -> Database:
    return make_database(cluster, "db")


def session(database: Database, role: str) -> psycopg.Connection:
    connection = database.cluster.connect(database.name, user=role)
    connection.execute(f"SET search_path = {role}, public")
    return connection


def subscribe(database: Database, role: str, count: int, first: int = 1) -> None:
    with session(database, role) as connection:
        if connection.execute("SELECT to_regproc('handle')").fetchone() == (None,):
            connection.execute(HANDLE.format(role))
        for number in range(first, first + count):
            connection.execute("SELECT inbox.subscribe(%s, '*', 'handle')", (f"{role}_{number}",))


def alive(database: Database, kind: str, prefix: str = "") -> list[str]:
    return [w.name for w in database.workers() if w.kind == kind and w.name.startswith(prefix)]


def wait_alive(database: Database, kind: str, count: int, prefix: str = "") -> list[str]:
    return wait_until(
        lambda: alive(database, kind, prefix), lambda seen: len(seen) == count,
        what=f"{count} workers of kind {kind} {prefix}",
    )  # fmt: skip


def waiting(database: Database, kind: str) -> int:
    return database.value("SELECT count(*) FROM outbox.absent_workers() WHERE state = 'waiting' AND kind = %s", (kind,))


def wait_waiting(database: Database, kind: str, count: int) -> None:
    wait_until(
        lambda: waiting(database, kind), lambda seen: seen == count,
        what=f"{count} of kind {kind} to wait",
    )  # fmt: skip


def no_room(database: Database) -> list[str]:
    return [
        f"{found.why}. {found.what_to_do}"
        for found in database.health()
        if found[:3] == ("degraded", "server", "no room for workers")
    ]


def test_processors_of_one_role_leave_workers_for_other_roles(cluster: Cluster, database: Database) -> None:
    """S18"""
    subscribe(database, "greedy", 30)
    wait_alive(database, "processor", QUOTA, "greedy")
    wait_waiting(database, "processor", 30 - QUOTA)
    assert any(
        reason.startswith(f'processor workers wait for room: {30 - QUOTA}, the first for consumer "greedy_')
        and "Role greedy has as many as outbox.max_workers_per_role (4) allows" in reason
        for reason in no_room(database)
    )
    subscribe(database, "modest", 2)
    wait_alive(database, "processor", 2, "modest")
    other = create_database(cluster, "other")
    other.add_destination("d", "null:")
    other.enqueue()
    other.wait_settled()
    assert len(alive(database, "processor", "greedy")) == QUOTA


def test_a_waiting_worker_starts_when_another_ends(cluster: Cluster, database: Database) -> None:
    """S18"""
    subscribe(database, "greedy", QUOTA)
    first = wait_alive(database, "processor", QUOTA)
    other = make_database(cluster, "other")
    subscribe(other, "greedy", 1, first=100)
    wait_waiting(other, "processor", 1)
    assert alive(other, "processor") == [], "the number is that of all databases"
    with session(database, "greedy") as connection:
        connection.execute("SELECT inbox.unsubscribe(%s, '*', 'handle')", (first[0],))
    wait_alive(other, "processor", 1)
    wait_waiting(other, "processor", 0)


def test_destinations_count_for_their_owner(database: Database) -> None:
    """S18"""
    database.add_destination("own", "null:")
    with session(database, "greedy") as connection:
        for number in range(10):
            connection.execute(f"CREATE SERVER g{number} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    wait_alive(database, "relay", QUOTA, "g")
    wait_waiting(database, "relay", 10 - QUOTA)
    states = database.execute("SELECT DISTINCT state FROM outbox.status WHERE pid IS NULL AND destination LIKE 'g%'")
    assert states == [("waiting",)]
    database.enqueue()
    database.wait_settled("own")
    for name in alive(database, "relay", "g"):
        database.execute(f"DROP SERVER {name}")
    wait_alive(database, "relay", QUOTA, "g")
    wait_waiting(database, "relay", 10 - 2 * QUOTA)


def test_backfills_leave_workers_for_the_destinations_of_their_role(database: Database) -> None:
    """S18"""
    database.add_destination("d", "null:")
    database.pause()
    with session(database, "greedy") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 20)")
        connection.execute("SELECT outbox.capture('t')")
        connection.execute("SELECT outbox.backfill('t', batch => 1, max_pending => 1) FROM generate_series(1, 12)")
    wait_alive(database, "backfill", QUOTA // 2)
    wait_waiting(database, "backfill", 12 - QUOTA // 2)
    ids = [id for (id,) in database.execute("SELECT id FROM outbox.backfill_progress ORDER BY id")]
    assert sorted(int(name) for name in alive(database, "backfill")) == ids[: QUOTA // 2]
    assert any("backfill workers wait for room: 10, " in reason for reason in no_room(database))
    subscribe(database, "greedy", 1)
    wait_alive(database, "processor", 1)
    # The next ones start one after the other.
    database.execute("SELECT outbox.resume('d')")
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.backfill_progress WHERE state = 'running'"),
        lambda running: running == 0, what="all backfills to end",
    )  # fmt: skip
    assert waiting(database, "backfill") == 0


def test_superusers_have_no_limit(database: Database) -> None:
    """S18: no other role can make a worker count for a superuser."""
    for number in range(QUOTA + 2):
        database.add_destination(f"d{number}", "null:")
    wait_alive(database, "relay", QUOTA + 2)
    assert waiting(database, "relay") == 0


def test_a_raised_limit_takes_effect_at_once(cluster: Cluster, database: Database) -> None:
    """S18"""
    subscribe(database, "greedy", QUOTA + 3)
    wait_waiting(database, "processor", 3)
    cluster.configure({"outbox.max_workers_per_role": "6"})
    wait_alive(database, "processor", 6)
    cluster.configure({"outbox.max_workers_per_role": "0"})
    wait_alive(database, "processor", QUOTA + 3)
    wait_waiting(database, "processor", 0)


def test_a_role_has_at_most_half_of_what_the_server_has(make_cluster: MakeCluster) -> None:
    """S18: also without any setting."""
    cluster = make_cluster({"max_worker_processes": "8"})
    cluster.execute("CREATE ROLE greedy LOGIN; CREATE ROLE modest LOGIN")
    database = make_database(cluster, "db")
    subscribe(database, "greedy", 20)
    wait_alive(database, "processor", 4)
    wait_waiting(database, "processor", 16)


def test_max_workers_per_database_limits_a_database(cluster: Cluster, database: Database) -> None:
    """S18: the owner of a database may be able to become many roles, each with a limit of its own."""
    cluster.configure({"outbox.max_workers_per_database": "3"})
    for number in range(5):
        database.add_destination(f"d{number}", "null:")
    wait_alive(database, "relay", 3)
    wait_waiting(database, "relay", 2)
    assert any("Increase outbox.max_workers_per_database" in reason for reason in no_room(database))
    other = create_database(cluster, "other")
    other.add_destination("d", "null:")
    other.enqueue()
    other.wait_settled()
    database.execute("DROP SERVER d0, d1")
    wait_alive(database, "relay", 3)


def check_until_one_is_refused(
    pool: ThreadPoolExecutor, sessions: list[psycopg.Connection]
) -> list[Future[psycopg.Cursor]]:
    """Begins a check of the destination s in each session. Returns the answers of those that go on."""
    answers = [pool.submit(session.execute, "SELECT * FROM outbox.check_destination('s')") for session in sessions]
    (refused,) = wait_until(
        lambda: [answer for answer in answers if answer.done()], lambda done: len(done) == 1,
        what="one check to be refused",
    )  # fmt: skip
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="too many destinations"):
        refused.result()
    return [answer for answer in answers if answer is not refused]


def test_checks_do_not_take_all_workers(new_database: NewDatabase) -> None:
    """S18: a check of a silent peer keeps a background worker until its session ends."""
    database = new_database()
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        database.add_destination("s", f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x")
        sessions = [database.connect() for _ in range(5)]
        answers = check_until_one_is_refused(pool, sessions)
        for session in sessions:
            session.cancel()
        for answer in answers:
            with pytest.raises(psycopg.Error):
                answer.result()
        # No check is left over.
        database.add_destination("null", "null:")
        assert database.execute("SELECT ok FROM outbox.check_destination('null')")
        for session in sessions:
            session.close()


def test_one_role_does_not_keep_others_from_checking(cluster: Cluster, database: Database) -> None:
    for role in ("greedy", "modest"):
        database.execute(
            f"GRANT USAGE ON SCHEMA outbox TO {role}; GRANT EXECUTE ON FUNCTION outbox.check_destination TO {role}"
        )
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        database.add_destination("s", f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x", connect_timeout="24h")
        database.add_destination("null", "null:")
        sessions = [session(database, "greedy") for _ in range(3)]
        answers = check_until_one_is_refused(pool, sessions)
        with session(database, "modest") as other:
            assert other.execute("SELECT bool_and(ok) FROM outbox.check_destination('null')").fetchone() == (True,)
        for connection in sessions:
            connection.cancel()
        for answer in answers:
            with pytest.raises(psycopg.errors.QueryCanceled):
                answer.result()
        for connection in sessions:
            connection.close()


@pytest.mark.long
def test_a_check_ends_however_long_the_destination_may_take(database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database.add_destination("s", f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x", connect_timeout="24h")
        *_, (subject, ok, detail) = database.execute("SELECT * FROM outbox.check_destination('s')")
        assert (subject, ok) == ("connection", False) and "did not end within a minute" in detail


def make_inboxes(cluster: Cluster, count: int, role: str = "creator") -> list[str]:
    """Databases of a role with CREATEDB, which has nothing else."""
    cluster.execute(f"CREATE ROLE {role} LOGIN CREATEDB")
    names = [f"{role}_{number}" for number in range(count)]
    for name in names:
        with cluster.connect("postgres", user=role) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with cluster.connect(name, user=role) as connection:
            connection.execute("CREATE EXTENSION pg_inbox")
    return names


def subscribe_in(cluster: Cluster, name: str) -> None:
    with cluster.connect(name, user=name.partition("_")[0]) as connection:
        connection.execute("CREATE SCHEMA mine; SET search_path = mine")
        connection.execute(HANDLE.format("mine"))
        connection.execute("SELECT inbox.subscribe('c', '*', 'handle')")


def workers_launched(database: Database) -> int:
    """Returns how many workers a parallel query gets."""
    with database.connect() as connection:
        connection.execute(
            "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; "
            "CREATE TABLE many AS SELECT generate_series(1, 100000) AS n; ANALYZE many"
        )
        plan = str(connection.execute("EXPLAIN (ANALYZE, FORMAT JSON) SELECT sum(n) FROM many").fetchall())
    return int(plan.partition("'Workers Launched': ")[2].partition(",")[0])


def workers_of(cluster: Cluster, role: str) -> list[str]:
    kinds = "SELECT backend_type FROM pg_stat_activity WHERE backend_type ~ '^pg_outbox' AND datname ~ %s ORDER BY 1"
    return [kind.removeprefix("pg_outbox ") for (kind,) in cluster.execute(kinds, (f"^{role}_",))]


def wait_for_workers_of(cluster: Cluster, role: str, *kinds: str) -> None:
    wait_until(
        lambda: workers_of(cluster, role), lambda seen: seen == list(kinds), what=f"{role} to have {kinds or 'no workers'}",
    )  # fmt: skip


def test_databases_of_one_role_leave_workers_to_others(make_cluster: MakeCluster) -> None:
    """Each of them has a keeper, because it has a consumer."""
    cluster = make_cluster({"max_worker_processes": "16"})
    for name in make_inboxes(cluster, 16):
        subscribe_in(cluster, name)
    share = ["keeper"] * 4 + ["processor"] * 4
    wait_for_workers_of(cluster, "creator", *share)
    database = create_database(cluster)
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_settled()
    assert "could not start pg_outbox keeper creator_15: its role has too many workers" in cluster.log()
    waiting = Database(cluster, "creator_15")
    waiting.create_extension()
    (found,) = [found for found in waiting.health() if found.what == "no room for workers"]
    assert found.severity == "failing" and found.why.startswith("keeper workers wait for room: 1")
    assert found.what_to_do.startswith("Role creator has as many as outbox.max_workers_per_role")
    waiting.disconnect()
    (other,) = make_inboxes(cluster, 1, "modest")
    subscribe_in(cluster, other)
    wait_for_workers_of(cluster, "modest", "keeper", "processor")
    assert workers_launched(database) > 0
    assert workers_of(cluster, "creator") == share


def test_a_database_with_nothing_to_do_takes_no_worker(make_cluster: MakeCluster) -> None:
    """An empty pg_inbox is not worth a keeper, until a consumer subscribes."""
    cluster = make_cluster({"max_worker_processes": "8"})
    names = make_inboxes(cluster, 24)
    wait_for_workers_of(cluster, "creator")
    database = create_database(cluster)
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_settled()
    assert workers_launched(database) > 0
    assert no_room(database) == []
    subscribe_in(cluster, names[7])
    cluster.wait_for_workers(names[7], "keeper", "processor")


def test_a_consumer_of_which_nobody_told_is_found(make_cluster: MakeCluster) -> None:
    """Such as one that was prepared before a restart: a database without a keeper is looked at now and then."""
    cluster = make_cluster({"outbox.poll_max": "200ms"})
    (name,) = make_inboxes(cluster, 1)
    wait_for_workers_of(cluster, "creator")
    with cluster.connect(name, user="creator") as connection:
        for table in ("consumer", "subscription"):
            connection.execute(f"ALTER TABLE inbox.{table} DISABLE TRIGGER wake_keeper")
    subscribe_in(cluster, name)
    cluster.wait_for_workers(name, "keeper", "processor")
