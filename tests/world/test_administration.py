"""What administrators do to a server and its databases, while events flow.

Users of other queues have reported each of these. What is done is a line of DEEDS, what captured tables tell of it a line
of CHANGES. In brackets: the reports.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from cluster import Cluster, MakeCluster, as_server_user, make_directory, run
from database import Database, NewDatabase, create_database
from receiver import Receiver
from waiting import wait_until

CURRENT = "SELECT number FROM outbox.ring WHERE current"


@dataclass
class World:
    database: Database
    receiver: Receiver

    def arrive(self, version: int) -> None:
        """Enqueues an event, and waits until it and all before it have arrived in order."""
        self.database.enqueue(first=version)
        wait_until(
            lambda: list(dict.fromkeys(self.receiver.versions("a"))), lambda seen: version in seen,
            what=f"version {version} to arrive",
        )  # fmt: skip
        assert list(dict.fromkeys(self.receiver.versions("a"))) == list(range(1, version + 1))


@pytest.fixture
def world(database: Database, receiver: Receiver, http: None) -> World:
    database.add_destination("d", receiver.url())
    world = World(database, receiver)
    world.arrive(1)
    return world


# -------------------------------------------------------------------------------------------------
# Deeds
# -------------------------------------------------------------------------------------------------


def make_tablespace(world: World) -> str:
    """It ends with the server."""
    directory = make_directory("tablespace", beside=world.database.cluster.directory)
    name = f"space_of_{world.database.name}"
    world.database.execute(f"CREATE TABLESPACE {name} LOCATION '{directory}'")
    return name


def move_tables(world: World) -> None:
    space = make_tablespace(world)
    tables = world.database.execute(
        "SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'"
    )
    assert len(tables) > 10
    for (table,) in tables:
        world.database.execute(f"ALTER TABLE {table} SET TABLESPACE {space}")


def move_database(world: World) -> None:
    """timescaledb#1078: workers kept the database busy."""
    space, name = make_tablespace(world), world.database.name
    world.database.disconnect()
    world.database.cluster.execute(f"ALTER DATABASE {name} SET TABLESPACE {space}")


def end_all_sessions(world: World) -> None:
    world.database.cluster.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = %s OR backend_type = 'pg_outbox launcher'", (world.database.name,),
    )  # fmt: skip
    world.database.disconnect()


def forbid_ddl(world: World) -> None:
    """Event triggers that refuse all that they can; the log moves on without what they see."""
    world.database.execute("""
        CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no DDL: %', tg_tag; END $$""")
    before = world.database.value(CURRENT)
    for event in ("ddl_command_end", "sql_drop", "table_rewrite", "ddl_command_start"):
        world.database.execute(f"CREATE EVENT TRIGGER refuse_{event} ON {event} EXECUTE FUNCTION public.refuse()")
    with pytest.raises(psycopg.errors.RaiseException):
        world.database.execute("CREATE TABLE public.refused ()")
    world.database.configure({"outbox.segment_age": "1s"})
    world.arrive(2)
    wait_until(lambda: world.database.value(CURRENT), lambda now: now != before, what="the next segment")


def forbid_temporary_files(world: World) -> None:
    world.database.execute(f"ALTER DATABASE {world.database.name} SET temp_file_limit = 0")
    end_all_sessions(world)


Deed = Callable[[World], None]
DEEDS: dict[str, Deed] = {
    "tables in a tablespace": move_tables,
    "all sessions ended": end_all_sessions,
    "event triggers": forbid_ddl,
    "no temporary files": forbid_temporary_files,
}


@pytest.fixture
def settings_are_restored(shared_cluster: Cluster) -> Iterator[None]:
    settings = dict(shared_cluster.settings)
    yield
    if shared_cluster.settings != settings:
        shared_cluster.configure_and_wait(settings)


@pytest.mark.parametrize("name", DEEDS)
def test_events_arrive_in_order_after(settings_are_restored: None, world: World, name: str) -> None:
    DEEDS[name](world)
    versions = world.receiver.versions("a")
    for version in (max(versions) + 1, max(versions) + 2):
        world.arrive(version)


@pytest.mark.extension("outbox-relay keeps its session in the database")
@pytest.mark.worker
def test_a_database_moves_to_a_tablespace_while_workers_run(world: World) -> None:
    move_database(world)
    world.arrive(2)


@pytest.mark.extension("the owner of a destination to PostgreSQL needs a password there")
def test_the_database_of_a_receiver_is_renamed_while_its_destination_is_paused(
    database: Database, new_database: NewDatabase
) -> None:
    """timescaledb#1043, and as docs/operations.md says: a session that was ended is not begun again before the resume."""
    inbox = new_database(extension=False)
    inbox.execute("CREATE EXTENSION pg_inbox; SELECT inbox.create_consumer('c')")
    received = "SELECT array_agg(version ORDER BY version) FROM inbox.message"
    database.add_destination("d", inbox.inbox_url(f"127.0.0.1:{inbox.cluster.port}"), consumer="c")
    database.enqueue(first=1)
    wait_until(lambda: inbox.value(received), lambda seen: seen == [1], what="the first event")
    database.pause()
    database.enqueue(first=2)
    inbox.disconnect()
    sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND application_name = 'pg_outbox d'"
    assert inbox.cluster.execute(sessions, (inbox.name,)) == [(1,)]
    wait_until(
        lambda: inbox.cluster.execute(f"ALTER DATABASE {inbox.name} RENAME TO renamed_receiver") == [],
        what="the database to be renamed", ignoring=(psycopg.errors.ObjectInUse,),
    )  # fmt: skip
    inbox.cluster.execute(f"ALTER DATABASE renamed_receiver RENAME TO {inbox.name}")
    database.execute("SELECT outbox.resume('d')")
    wait_until(lambda: inbox.value(received), lambda seen: seen == [1, 2], what="the second event")


@pytest.mark.extension("its servers have no prepared transactions")
def test_events_of_a_prepared_transaction_follow_its_commit(world: World) -> None:
    """malthe/pq#20: it could not be prepared. Others do not wait for it, and no setting of sessions ends it."""
    world.database.execute(f"ALTER DATABASE {world.database.name} SET idle_in_transaction_session_timeout = '1ms'")
    prepared = world.database.connect()
    prepared.execute("SET idle_in_transaction_session_timeout = 0; BEGIN")
    prepared.execute("SELECT outbox.enqueue('item', 'b', 'changed', '{}', version => 1)")
    prepared.execute("PREPARE TRANSACTION 'of administration'")
    prepared.close()
    world.arrive(2)
    assert world.receiver.versions("b") == []
    world.database.execute("COMMIT PREPARED 'of administration'")
    wait_until(lambda: world.receiver.versions("b"), what="the prepared event to arrive")
    world.arrive(3)


# -------------------------------------------------------------------------------------------------
# Captured tables
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Statements by a role without rights on pg_outbox, after those that make a captured table t."""

    table: str
    statements: str
    events: list[str]
    rows: str = ""  # of COPY t FROM STDIN WITH (FREEZE), afterwards
    capture: str = ""


CHANGES = {
    # pgcopydb#765: it copies with FREEZE into tables that it has emptied.
    "COPY FREEZE": Change(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (9, 9)", "TRUNCATE t",
        ["TTruncated public.t", "TCreated 1", "TCreated 2"], rows="1\t1\n2\t2\n", capture=", on_truncate => 'announce'",
    ),
    # Nexuq#411: an event was refused by the policies of rows.
    "row security": Change(
        """CREATE TABLE t (id int PRIMARY KEY, n int, tenant text DEFAULT current_setting('app.tenant'));
           ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
           CREATE POLICY own ON t USING (tenant = current_setting('app.tenant', true))""",
        """SET LOCAL app.tenant = 'one'; INSERT INTO t VALUES (1, 1);
           SET LOCAL app.tenant = 'two'; INSERT INTO t VALUES (2, 1); UPDATE t SET n = 2; DELETE FROM t""",
        ["TCreated 1", "TCreated 2", "TUpdated 2", "TDeleted 2"],
    ),
    "statement triggers": Change(
        """CREATE TABLE t (id int PRIMARY KEY, n int);
           CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
           BEGIN UPDATE public.t SET n = (SELECT count(*) FROM came) WHERE id = 1; RETURN NULL; END $$;
           CREATE TRIGGER count_rows AFTER INSERT ON t REFERENCING NEW TABLE AS came
               FOR EACH STATEMENT EXECUTE FUNCTION count_rows()""",
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 3) AS n",
        ["TCreated 1", "TCreated 2", "TCreated 3", "TUpdated 1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_captured_tables_tell_of(database: Database, name: str) -> None:
    change = CHANGES[name]
    role = f"user_of_{database.name}"
    database.execute(f"{change.table}; CREATE ROLE {role} LOGIN; GRANT ALL ON t TO {role}")
    try:
        database.execute(f"SELECT outbox.capture('t'{change.capture})")
        with database.cluster.connect(database.name, role) as user, user.transaction():
            user.execute(change.statements)
            if change.rows:
                with user.cursor().copy("COPY t FROM STDIN WITH (FREEZE)") as copy:
                    copy.write(change.rows)
        told = database.execute("SELECT event_type || ' ' || aggregate_id FROM outbox.event ORDER BY position")
        assert [row[0] for row in told] == change.events
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# -------------------------------------------------------------------------------------------------
# Transaction ids
# -------------------------------------------------------------------------------------------------

STEPS = (2_000_000_000, 4_000_000_000, 4_294_967_200)  # none may be more than 2^31 after the oldest id


def skip_to(cluster: Cluster, next_id: int, oldest: int) -> None:
    cluster.stop()
    clog = cluster.data / "pg_xact" / f"{next_id // 2**20:04X}"
    if not clog.exists():
        clog.write_bytes(bytes(2**18))
        shutil.chown(clog, Path(cluster.data).owner())
    program = str(cluster.installation.bin_directory / "pg_resetwal")
    run(as_server_user([program, "-D", str(cluster.data), "-x", str(next_id), "-u", str(oldest)]))
    cluster.start()


def freeze(cluster: Cluster) -> None:
    cluster.execute("UPDATE pg_database SET datallowconn = true WHERE datname = 'template0'")
    for (name,) in cluster.execute("SELECT datname FROM pg_database"):
        with cluster.connect(name) as connection:
            connection.execute("VACUUM (FREEZE)")
    cluster.execute("UPDATE pg_database SET datallowconn = false WHERE datname = 'template0'")


def test_transaction_ids_pass_four_billion(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    """Ids of 32 bits begin again. Transactions that are open then, or were read before, are known on."""
    cluster = make_cluster({"autovacuum": "off", "outbox.poll_max": "100ms", "outbox.poll_min": "100ms"})
    database = create_database(cluster)
    database.add_destination("d", receiver.url())
    database.add_destination("fetched", "pull:")
    world = World(database, receiver)
    world.arrive(1)
    oldest = 700
    for step in STEPS:
        database.disconnect()
        skip_to(cluster, step, oldest)
        freeze(cluster)
        oldest = step
    world.arrive(2)
    with database.connect() as late:
        late.execute("BEGIN")
        late.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}', version => 1)")
        version = 2
        while database.value("SELECT pg_current_xact_id()::text::bigint") < 2**32 + 20:
            version += 1
            database.enqueue(first=version)
        world.arrive(version + 1)
        assert receiver.versions("late") == []
        late.execute("COMMIT")
    wait_until(lambda: receiver.versions("late"), what="the event of the open transaction")
    fetched: list[str] = []
    while batch := database.execute("SELECT token, event_id::text FROM outbox.fetch('fetched', 1000)"):
        fetched += [row[1] for row in batch]
        for token in {row[0] for row in batch}:
            database.execute("SELECT outbox.ack(%s)", (token,))
    assert sorted(fetched) == sorted(set(receiver.ids())) and len(fetched) == version + 2
    database.wait_saved()
    assert database.health() == []
