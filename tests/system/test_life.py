"""The life of a database: renamed and dropped destinations, dump and restore, copies,
promotion, a library and SQL objects of different versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random, randrange
from threading import Thread

import psycopg
import pytest

from cluster import SUPERUSER, Cluster, MakeCluster
from database import Database, create_database
from ledger import check, check_log, read_ledger
from receiver import Receiver, Request, answer
from test_ledger import set_up, wait_for_new_arrivals, writers
from waiting import stays, wait_until

# Cursors are saved soon.
SETTINGS = {"outbox.cursor_flush_interval": "50ms"}


def rows(database: Database, table: str) -> list[tuple]:
    return database.execute(f"SELECT * FROM outbox.{table} AS t ORDER BY t::text")


def fail(database: Database, destination: str, event_id: str, *, permanent: bool) -> None:
    """Records a refused event as a relay does; its retry is due in five minutes."""
    database.execute(
        "SELECT outbox_internal.fail_events(%s, ARRAY[e.xid], ARRAY[e.position], ARRAY['no'], ARRAY[%s]) "
        "FROM outbox.event AS e WHERE e.event_id = %s",
        (destination, permanent, event_id),
    )
    database.execute("UPDATE outbox.delivery SET next_retry_at = now() + interval '5 minutes' WHERE state = 'RETRY'")


# -------------------------------------------------------------------------------------------------
# Renaming and dropping destinations
# -------------------------------------------------------------------------------------------------


def destinations_known(connection: psycopg.Connection) -> tuple[set[str], set[str]]:
    """Returns destinations with a cursor, and destinations with events in trouble."""
    cursors = connection.execute("SELECT destination FROM outbox.cursor").fetchall()
    in_trouble = connection.execute("SELECT destination FROM outbox.delivery").fetchall()
    return {name for (name,) in cursors}, {name for (name,) in in_trouble}


@pytest.fixture
def with_trouble(database: Database) -> Database:
    """Destinations d and e, which have cursors and a dead letter each."""
    (event,) = database.enqueue()
    for name in ("d", "e"):
        database.add_destination(name, "null:")
        database.wait_published(1, name)
        fail(database, name, event, permanent=True)
    return database


def test_a_rename_takes_everything_along_in_its_own_transaction(with_trouble: Database) -> None:
    with with_trouble.connect() as connection:
        with connection.transaction(force_rollback=True):
            connection.execute("ALTER SERVER d RENAME TO renamed")
            assert destinations_known(connection) == ({"renamed", "e"}, {"renamed", "e"})
        assert destinations_known(connection) == ({"d", "e"}, {"d", "e"})
        with connection.transaction():
            for old, new in (("d", "x"), ("e", "d"), ("x", "e")):
                connection.execute(f"ALTER SERVER {old} RENAME TO {new}")
        servers = connection.execute(
            "SELECT c.destination, s.srvname FROM outbox.cursor AS c JOIN pg_foreign_server AS s ON s.oid = c.server"
        ).fetchall()
    assert sorted(servers) == [("d", "d"), ("e", "e")]
    with_trouble.enqueue()
    with_trouble.wait_settled("d")
    with_trouble.wait_settled("e")
    assert destinations_known(with_trouble.connection) == ({"d", "e"}, {"d", "e"})


# As after pg_upgrade, before a relay has started: oids are those of the old cluster.
EXCHANGE_SERVERS = """
    UPDATE outbox.cursor AS c SET server = s.oid
      FROM pg_foreign_server AS s WHERE s.srvname <> c.destination"""


def test_a_rename_is_followed_when_the_cursor_knows_another_server(with_trouble: Database) -> None:
    with with_trouble.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute(EXCHANGE_SERVERS)
        connection.execute("ALTER SERVER d RENAME TO renamed")
        assert destinations_known(connection) == ({"renamed", "e"}, {"renamed", "e"})


def test_a_drop_takes_everything_along_in_its_own_transaction(with_trouble: Database) -> None:
    role = f"{with_trouble.name}_owner"
    with with_trouble.connect() as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            for statements in (
                ["DROP SERVER d"],
                ["CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (user 'x')", "DROP SERVER d CASCADE"],
                [f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {role}",
                 f"ALTER SERVER d OWNER TO {role}", f"DROP OWNED BY {role} CASCADE"],
            ):  # fmt: skip
                with connection.transaction(force_rollback=True):
                    for statement in statements:
                        connection.execute(statement)
                    assert destinations_known(connection) == ({"e"}, {"e"}), statements
                assert destinations_known(connection) == ({"d", "e"}, {"d", "e"})
        finally:
            connection.execute(f"DROP ROLE {role}")


def test_an_extension_that_is_dropped_and_created_again_starts_over(
    with_trouble: Database,
) -> None:
    with_trouble.execute("DROP EXTENSION pg_outbox CASCADE")
    with_trouble.create_extension()
    with_trouble.add_destination("d", "null:")
    with_trouble.enqueue(count=3)
    with_trouble.wait_published(3)
    assert destinations_known(with_trouble.connection) == ({"d"}, set())
    assert with_trouble.last_position() == 3


# -------------------------------------------------------------------------------------------------
# Dropping the extension with events that are not delivered
# -------------------------------------------------------------------------------------------------

DROPS = [
    "DROP EXTENSION pg_outbox CASCADE",
    "DROP EXTENSION IF EXISTS pg_outbox CASCADE",
    "DROP SCHEMA outbox CASCADE",
    "DROP EXTENSION plpgsql CASCADE",
    "DO $$ BEGIN DROP EXTENSION pg_outbox CASCADE; END $$",
    "DROP OWNED BY {owner} CASCADE",
]


@pytest.fixture
def guarded(database: Database) -> Iterator[Database]:
    """The extension belongs to a superuser of its own, whose events nothing may drop by accident."""
    owner = f"{database.name}_owner"
    database.execute("DROP EXTENSION pg_outbox")
    database.execute(f"CREATE ROLE {owner} SUPERUSER; SET ROLE {owner}")
    database.create_extension()
    database.execute("RESET ROLE; SET outbox.allow_drop_with_undelivered = off")
    yield database
    database.execute("RESET outbox.allow_drop_with_undelivered")
    database.execute(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")


def notices_of(database: Database, statement: str) -> list[str]:
    """Returns warnings with their details; the statement is rolled back."""
    notices: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity == "WARNING":
            notices.append(f"{notice.message_primary} {notice.message_detail}")

    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.add_notice_handler(note)
        connection.execute("SET LOCAL outbox.allow_drop_with_undelivered = on")
        connection.execute(statement)
        assert connection.execute("SELECT to_regclass('outbox.event')").fetchone() == (None,)
    return notices


def test_a_drop_of_undelivered_events_is_refused_until_a_superuser_allows_it(guarded: Database) -> None:
    owner = f"{guarded.name}_owner"
    guarded.add_destination("d", "pull:")
    guarded.add_destination("other", "pull:", topics="other.*")
    first, _, _ = guarded.enqueue(count=3)
    fail(guarded, "d", first, permanent=True)
    for statement in DROPS:
        statement = statement.format(owner=owner)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refusal:
            guarded.execute(statement)
        assert refusal.value.diag.message_primary == 'events of extension "pg_outbox" are not delivered: 3', statement
        assert refusal.value.diag.message_detail == "d: 2 waiting, 1 dead letters."
        assert "outbox.allow_drop_with_undelivered" in refusal.value.diag.message_hint
        assert notices_of(guarded, statement) == [
            'dropped extension "pg_outbox" with events that were not delivered: 3 d: 2 waiting, 1 dead letters.'
        ], statement
    guarded.execute("DROP SERVER other; DROP SERVER d")
    with pytest.raises(psycopg.Error, match="not delivered: 3"):
        guarded.execute("DROP EXTENSION pg_outbox")


def test_a_drop_without_undelivered_events_needs_no_setting(guarded: Database) -> None:
    guarded.add_destination("d", "pull:", start="end")
    guarded.add_destination("other", "pull:", topics="other.*")
    assert notices_of(guarded, "DROP EXTENSION pg_outbox CASCADE") == []
    guarded.execute("DROP EXTENSION pg_outbox CASCADE")
    guarded.create_extension()


def test_a_drop_counts_the_events_of_a_transaction_that_it_waits_for(guarded: Database) -> None:
    guarded.add_destination("d", "pull:")
    with guarded.connect() as producer, guarded.connect() as dropper:
        with producer.transaction():
            producer.execute("SELECT outbox.enqueue('order', '1', 'Placed', NULL::jsonb)")
            dropper.execute("SET outbox.allow_drop_with_undelivered = off")
            dropping = Thread(target=lambda: refused.append(refusal_of(dropper)))
            refused: list[str] = []
            dropping.start()
            wait_until(
                lambda: guarded.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                    (dropper.info.backend_pid,),
                ),
                lambda count: count == 1,
                what="the drop to wait for the producer",
            )
        dropping.join()
    assert refused == ['events of extension "pg_outbox" are not delivered: 1']


def refusal_of(connection: psycopg.Connection) -> str:
    with pytest.raises(psycopg.Error) as refusal:
        connection.execute("DROP EXTENSION pg_outbox CASCADE")
    return refusal.value.diag.message_primary or ""


def test_a_role_that_may_not_drop_the_extension_does_not_lock_the_log(guarded: Database) -> None:
    guarded.enqueue()
    stranger = f"{guarded.name}_stranger"
    guarded.execute(f"CREATE ROLE {stranger}")
    try:
        with guarded.connect() as reader, guarded.connect() as connection:
            connection.execute(f"SET ROLE {stranger}")
            with reader.transaction():
                reader.execute("SELECT FROM outbox.event")
                for statement in DROPS:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(statement.format(owner=f"{guarded.name}_owner"))
            for setting in ("on", "off"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SET outbox.allow_drop_with_undelivered = {setting}")
    finally:
        guarded.execute(f"DROP ROLE {stranger}")


def test_a_damaged_extension_can_be_dropped(guarded: Database) -> None:
    guarded.execute("ALTER TABLE outbox.delivery RENAME TO lost")
    with pytest.raises(psycopg.Error, match="not delivered: unknown"):
        guarded.execute("DROP EXTENSION pg_outbox CASCADE")
    (warning,) = notices_of(guarded, "DROP EXTENSION pg_outbox CASCADE")
    assert "unknown" in warning and "outbox.delivery" in warning


# -------------------------------------------------------------------------------------------------
# A database with a backlog
# -------------------------------------------------------------------------------------------------


def use_up_xids(cluster: Cluster) -> None:
    cluster.execute("DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


@dataclass
class Backlog:
    """Two destinations, `ahead` and `behind`, that have settled different parts of a log. No server
    listens at either, until open()."""

    database: Database
    ahead: Receiver
    behind: Receiver
    unsettled: dict[str, list[str]]
    trouble: list[tuple]
    source_events: list[tuple]

    def open(self) -> None:
        """Starts to record arrivals."""
        self.arrived = {"ahead": len(self.ahead.events()), "behind": len(self.behind.events())}
        for receiver in (self.ahead, self.behind):
            receiver.forget_rules()
            receiver.listen()

    def arrivals(self, destination: str) -> list[str]:
        receiver = self.ahead if destination == "ahead" else self.behind
        return receiver.ids()[self.arrived[destination] :]

    def hold(self, database: Database, *, duplicates: bool = False, in_order: bool = True) -> None:
        """Checks that unsettled and new events arrive in `database`, in order, and no others."""
        wait_until(
            lambda: database.execute("SELECT 1 FROM pg_foreign_server"), lambda found: len(found) == 2,
            what="the restored destinations",
        )  # fmt: skip
        last = database.last_position()
        new = database.enqueue("new", 3)
        first_new = database.value("SELECT min(position) FROM outbox.event WHERE aggregate_id = 'new'")
        assert first_new > last
        for destination, unsettled in self.unsettled.items():
            database.wait_for_worker("relay", destination)
            database.wait_settled(destination)
            arrived = self.arrivals(destination)
            if duplicates:
                assert set(arrived) >= {*unsettled, *new}, destination
            else:
                assert sorted(arrived) == sorted([*unsettled, *new]), destination
            for key in ("a", "late", "p", "new"):
                receiver = self.ahead if destination == "ahead" else self.behind
                versions = list(dict.fromkeys(receiver.versions(key)))
                assert not in_order or versions == sorted(versions), f"{destination}, key {key}"
        trouble = rows(database, "delivery")
        if duplicates:  # events delivered again may wait behind it
            assert [row for row in self.trouble if row not in trouble] == []
        else:
            assert trouble == self.trouble
        assert rows(database, "source_event") == self.source_events


def wait_unsettled(database: Database, destination: str, count: int) -> list[str]:
    """Waits until this number of events is not settled by the saved cursor."""
    found = wait_until(
        lambda: database.unsettled(destination), lambda seen: len(seen) == count,
        what=f"{count} events to be unsettled at {destination}",
    )  # fmt: skip
    return list(found.values())


def make_backlog(database: Database, ahead: Receiver, behind: Receiver) -> Backlog:
    database.move_to_segment(3)  # restored last, though its events are the first
    database.add_destination("ahead", ahead.url())
    database.add_destination("behind", behind.url(), start="end")
    with database.connect() as late, late.transaction():
        # Its position is low, and no destination has settled it.
        late.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}', version => 1)")

        (first, second, *_) = database.enqueue("a", 5)
        wait_unsettled(database, "ahead", 0)
        wait_unsettled(database, "behind", 0)
        fail(database, "ahead", first, permanent=True)
        fail(database, "behind", second, permanent=False)
        database.execute(
            "SELECT outbox.enqueue('item', 'a', 'changed', '{}', version => 6, source_event_id => gen_random_uuid())"
        )

        # `behind` stops in the middle of a window.
        def from_the_fourth_on(request: Request) -> bool:
            return request.headers["ce-subject"] == "p" and int(request.headers["ce-aggregateversion"]) >= 4

        behind.on(from_the_fourth_on, answer(503))
        database.enqueue("p", 10)
        wait_unsettled(database, "ahead", 0)
        wait_unsettled(database, "behind", 7)
        # Before what is late can be sent: it would be confirmed, though not settled yet.
        ahead.refuse_connections()
        behind.refuse_connections()
    database.move_to_segment(1)
    database.enqueue("p", 4, first=11)
    unsettled = {
        "ahead": wait_unsettled(database, "ahead", 5),
        "behind": wait_unsettled(database, "behind", 12),
    }
    assert database.value("SELECT count(*) FROM outbox.event_1") == 4
    assert database.value("SELECT upto IS NOT NULL FROM outbox.cursor WHERE destination = 'behind'")
    return Backlog(
        database, ahead, behind, unsettled,
        rows(database, "delivery"), rows(database, "source_event"),
    )  # fmt: skip


@pytest.fixture
def receivers(http: None) -> Iterator[tuple[Receiver, Receiver]]:
    both = Receiver(), Receiver()
    yield both
    for receiver in both:
        receiver.close()


# -------------------------------------------------------------------------------------------------
# Dump and restore
# -------------------------------------------------------------------------------------------------


def program(cluster: Cluster, name: str, *arguments: str) -> None:
    cluster.installation.run_program(
        name, "-h", str(cluster.directory), "-p", str(cluster.port), "-U", SUPERUSER, *arguments
    )


@dataclass
class Way:
    """A way to dump and to restore."""

    dump: list[str]
    restore: Callable[[Cluster, str, str], None]


def by_psql(*options: str) -> Callable[[Cluster, str, str], None]:
    def restore(cluster: Cluster, database: str, dump: str) -> None:
        program(cluster, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", *options,
                "-d", database, "-f", dump)  # fmt: skip

    return restore


def by_pg_restore(*options: str) -> Callable[[Cluster, str, str], None]:
    def restore(cluster: Cluster, database: str, dump: str) -> None:
        program(cluster, "pg_restore", "--exit-on-error", *options, "-d", database, dump)

    return restore


WAYS = {
    "psql": Way(["-Fp"], by_psql()),
    "pg_restore": Way(["-Fc"], by_pg_restore()),
    "one transaction": Way(["-Fc"], by_pg_restore("--single-transaction")),
    "inserts": Way(["-Fp", "--inserts"], by_psql()),
}


def dump(cluster: Cluster, database: str, options: list[str]) -> str:
    path = str(cluster.directory / "dump")
    program(cluster, "pg_dump", *options, "-f", path, database)
    return path


@pytest.mark.parametrize("further", ["old", "new"])  # which cluster has used more xids
@pytest.mark.parametrize("way", list(WAYS))
def test_a_dump_goes_on_in_another_cluster(
    make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver], way: str, further: str
) -> None:
    old, new = make_cluster(SETTINGS), make_cluster(SETTINGS)
    use_up_xids(old if further == "old" else new)
    backlog = make_backlog(create_database(old), *receivers)
    path = dump(old, "db", WAYS[way].dump)
    old.stop()
    backlog.open()
    database = create_database(new, extension=False)
    WAYS[way].restore(new, "db", path)
    backlog.hold(database)


def test_a_parallel_restore_loses_nothing(make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver]) -> None:
    old, new = make_cluster(SETTINGS), make_cluster(SETTINGS)
    backlog = make_backlog(create_database(old), *receivers)
    path = dump(old, "db", ["-Fd", "-j", "4"])
    old.stop()
    backlog.open()
    database = create_database(new, extension=False)
    by_pg_restore("-j", "4")(new, "db", path)
    backlog.hold(database, duplicates=True)


def test_a_dump_goes_on_in_another_database_of_the_cluster(
    make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver]
) -> None:
    cluster = make_cluster(SETTINGS)
    source = create_database(cluster, "source")
    backlog = make_backlog(source, *receivers)
    path = dump(cluster, "source", ["-Fc"])
    source.disconnect()
    cluster.execute("DROP DATABASE source")
    backlog.open()
    database = create_database(cluster, "target", extension=False)
    by_pg_restore()(cluster, "target", path)
    backlog.hold(database)


@pytest.mark.long
def test_a_restored_database_can_be_dumped_and_restored_again(
    make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver]
) -> None:
    """This happens before it has delivered anything."""
    cluster = make_cluster(SETTINGS)
    backlog = make_backlog(create_database(cluster, "first"), *receivers)
    for old, new in (("first", "second"), ("second", "third")):
        path = dump(cluster, old, ["-Fc"])
        backlog.database.disconnect()
        cluster.execute(f"DROP DATABASE {old}")
        backlog.database = create_database(cluster, new, extension=False)
        by_pg_restore()(cluster, new, path)
        cluster.wait_for_workers(new, "keeper", "relay", "relay")
    backlog.open()
    backlog.hold(backlog.database)


@pytest.mark.long
@pytest.mark.parametrize("first", ["events", "cursors"])
def test_in_whatever_order_a_dump_comes_nothing_is_lost(
    make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver], first: str
) -> None:
    """Relays may run in between."""
    cluster = make_cluster(SETTINGS)
    source = create_database(cluster, "source")
    backlog = make_backlog(source, *receivers)
    path = dump(cluster, "source", ["-Fc"])
    source.disconnect()
    cluster.execute("DROP DATABASE source")
    backlog.open()
    database = create_database(cluster, "target", extension=False)
    by_pg_restore("--section=pre-data")(cluster, "target", path)
    parts = [["cursor", "delivery", "source_event", "event_position"], ["event_3"], ["event_1"]]
    if first == "events":
        parts.reverse()
    for tables in parts:
        options = [option for table in tables for option in ("-t", table)]
        by_pg_restore("--data-only", *options)(cluster, "target", path)
        for destination in ("ahead", "behind"):
            # Workers that ended soon after they began are given a pause.
            database.wait_for_worker("relay", destination)
    backlog.hold(database, duplicates=True, in_order=False)


class History:
    """A random history of another cluster: transactions that enqueue, and destinations of which
    each has settled what a snapshot had seen, and of the next window the part up to a position."""

    def __init__(self, random: Random) -> None:
        self.events: list[tuple[int, int]] = []  # xid, position
        self.cursors: dict[str, tuple[str, str | None, int]] = {}  # done, upto, position
        self.unsettled: dict[str, set[int]] = {}
        next_xid = random.choice([750, 10_000, 5_000_000_000])
        in_progress: set[int] = set()
        seen: list[tuple[int, set[int]]] = []  # snapshots: the next xid, and the xids in progress
        for _ in range(60):
            if random.random() < 0.5:
                in_progress.add(next_xid)
                next_xid += 1
            elif in_progress:
                in_progress.remove(random.choice(sorted(in_progress)))
            if in_progress and random.random() < 0.7:
                event = random.choice(sorted(in_progress)), len(self.events) + 1
                self.events.append(event)
            seen.append((next_xid, set(in_progress)))
        for name in ("a", "b", "c", "d"):
            first, second = sorted(random.sample(range(len(seen)), 2))
            partly = random.random() < 0.5
            position = random.randint(0, len(self.events))
            done, upto = seen[first], seen[second] if partly else None
            self.cursors[name] = (as_text(done), as_text(upto) if upto else None, position)
            self.unsettled[name] = {
                place
                for xid, place in self.events
                if not finished(xid, done) and not (upto and finished(xid, upto) and place <= position)
            }


def finished(xid: int, snapshot: tuple[int, set[int]]) -> bool:
    return xid < snapshot[0] and xid not in snapshot[1]


def as_text(snapshot: tuple[int, set[int]]) -> str:
    next_xid, in_progress = snapshot
    return f"{min(in_progress, default=next_xid)}:{next_xid}:" + ",".join(map(str, sorted(in_progress)))


@pytest.mark.parametrize("order", ["cursors first", "mixed"])
def test_what_had_been_settled_is_known_of_any_history(database: Database, order: str) -> None:
    """Uses no workers, but rows as they are after a restore."""
    seed = int(os.environ.get("OUTBOX_TEST_SEED", randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}")
    random = Random(seed)
    insert_cursor = (
        "INSERT INTO outbox.cursor (destination, server, done, upto, position, system_identifier, "
        "lease, saved_at, inserted_by) VALUES (%s, 1, %s, %s, %s, 1, 1, now(), '700')"
    )
    insert_event = (
        "INSERT INTO outbox.event_0 (xid, position, occurred_at, event_id, schema_version, topic, "
        "aggregate_type, aggregate_id, event_type, ordering_key, content_type) "
        "VALUES (%s::text::xid8, %s, now(), gen_random_uuid(), 1, '', '', '', '', '', '')"
    )
    for _ in range(40):
        history = History(random)
        rows = [(insert_cursor, (name, *cursor)) for name, cursor in history.cursors.items()]
        random.shuffle(rows)
        rows += [(insert_event, event) for event in history.events]
        if order == "mixed":
            random.shuffle(rows)
        for statement, values in rows:
            database.execute(statement, values)
        for name, expected in history.unsettled.items():
            unsettled = set(database.unsettled(name))
            if order == "mixed":
                assert unsettled >= expected, f"{name} of {history.cursors}"
            else:
                assert unsettled == expected, f"{name} of {history.cursors}"
        database.execute("TRUNCATE outbox.cursor, outbox.event_0")


def test_workers_stay_away_until_a_restore_is_over(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue(count=2)
    database.wait_published(2)
    cluster = database.cluster
    with database.connect() as restoring:
        restoring.execute("INSERT INTO outbox.event_1 SELECT * FROM outbox.event_0")
        cluster.wait_for_workers(database.name)  # those that leave can be seen for a moment
        stays(lambda: cluster.workers_in(database.name), [], seconds=1.5, what="workers")
    database.wait_for_worker("relay")
    wait_until(lambda: database.published() >= 2, what="what was inserted to be delivered")


def test_enqueues_do_not_count_as_a_restore(database: Database) -> None:
    database.add_destination("d", "null:")
    pids = database.wait_for_worker("keeper"), database.wait_for_worker("relay")
    database.enqueue(count=10)
    database.wait_published(10)
    database.add_destination("e", "null:", start="end")
    database.wait_for_worker("relay", "e")
    assert (database.pid("keeper"), database.pid("relay", "d")) == pids


# -------------------------------------------------------------------------------------------------
# Copies
# -------------------------------------------------------------------------------------------------


def test_a_copy_of_a_database_goes_on_where_it_was(
    make_cluster: MakeCluster, receivers: tuple[Receiver, Receiver]
) -> None:
    cluster = make_cluster(SETTINGS)
    source = create_database(cluster, "source")
    backlog = make_backlog(source, *receivers)
    source.disconnect()
    cluster.execute("CREATE DATABASE copy TEMPLATE source")
    cluster.execute("DROP DATABASE source")
    backlog.open()
    backlog.hold(Database(cluster, "copy"))


def test_nothing_works_during_a_binary_upgrade(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    database = create_database(cluster)
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_published(1)
    cluster.stop()
    cluster.start("-b")  # as pg_upgrade starts it
    stays(cluster.workers, [], seconds=1, what="workers")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="pg_upgrade"):
        database.enqueue()
    cluster.stop()
    cluster.start()
    database.enqueue()
    database.wait_settled()


# -------------------------------------------------------------------------------------------------
# A library and SQL objects of different versions
# -------------------------------------------------------------------------------------------------


# A worker that is in the middle of a task is refused as anybody is.
@pytest.mark.worker_errors(r'extension "pg_outbox" is of version')
@pytest.mark.parametrize(
    "version, advice",
    [("0.0.9", "ALTER EXTENSION pg_outbox UPDATE"), ("0.99.0", "restart the server")],
)
def test_sql_objects_of_another_version_are_left_alone(database: Database, version: str, advice: str) -> None:
    database.add_destination("d", "null:")
    database.wait_for_worker("relay")
    right = database.value("SELECT extversion FROM pg_extension WHERE extname = 'pg_outbox'")
    began = database.cluster.log_size()

    def pretend(installed: str) -> None:
        database.execute("UPDATE pg_extension SET extversion = %s WHERE extname = 'pg_outbox'", (installed,))
        database.execute("ALTER SERVER d OPTIONS (ADD topics '*')")  # has the keeper look
        database.execute("ALTER SERVER d OPTIONS (DROP topics)")
        database.disconnect()

    pretend(version)
    database.cluster.wait_for_workers(database.name, "keeper")
    for statement in (
        "SELECT outbox.enqueue('item', 'a', 'changed', '{}')",
        "SELECT outbox.enqueue('item', 'a', 'changed', '', 'text/plain')",
        "SELECT outbox.enqueue('{}'::outbox.new_event[])",
    ):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=version) as refused:
            database.execute(statement)
        assert advice in (refused.value.diag.message_hint or "")
    wait_until(
        lambda: [found.why for found in database.health() if found[:3] == ("failing", "server", "misconfigured")],
        lambda seen: seen and version in seen[0],
        what="the health to say so",
    )  # fmt: skip
    keeper = database.pid("keeper")
    log = database.cluster.log_since(began)
    pretend(right)
    database.wait_for_worker("relay")
    assert database.pid("keeper") == keeper
    database.enqueue()
    database.wait_settled()
    assert log.count("are not delivered") == 1, log
    assert advice in log


# -------------------------------------------------------------------------------------------------
# Promotion
# -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ledger_with_a_promotion(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    """Events that the standby had received when the primary was lost are delivered, and later ones."""
    primary = make_cluster(SETTINGS)
    database = set_up(primary, receiver)
    standby = primary.make_standby().start()
    promoted = Database(standby, "db")
    either = (
        f"host={primary.directory},{standby.directory} port={primary.port},{standby.port} "
        f"user={SUPERUSER} dbname=db target_session_attrs=read-write options='-c statement_timeout=60s'"
    )
    try:
        with writers(database, conninfo=either):
            wait_for_new_arrivals(receiver, 1000)
            receiver.refuse_connections()
            replayed = promoted.last_position()
            wait_until(
                promoted.last_position, lambda seen: seen > replayed + 500,
                what="a backlog on the standby",
            )  # fmt: skip
            primary.kill_postmaster()
            before = receiver.ids()
            standby.promote()
            receiver.listen()
            wait_for_new_arrivals(receiver, 1000)
        promoted.wait_for_worker("relay", "d")
        promoted.wait_settled()
        ledger = read_ledger(promoted.connection)
        check_log(promoted.connection)
        # The primary may have delivered events that the standby never received.
        kept = {entry.event_id for entry in ledger}
        arrivals = [event for event in before if event in kept] + receiver.ids()[len(before) :]
        verdict = check(ledger, arrivals)
        print(verdict)
        verdict.hold(restarts=1)
    finally:
        standby.destroy()
