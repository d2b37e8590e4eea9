"""Backfill: snapshot events of existing rows of captured tables.

The table is `item (id, title, version)` of a database whose destination `d` takes everything.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from cluster import SQL_EDITION, Installation, MakeCluster
from database import EDITION_OWNER, Database, NewDatabase, create_database
from long_run import all_in_long_run
from processes import wait_until_quiet
from waiting import SECOND, Stopwatch, stays, wait_until

ENDED = ("finished", "failed", "cancelled")


def make_items(database: Database, count: int, *, options: str = "", extra: str = "") -> None:
    database.execute(
        "CREATE SEQUENCE IF NOT EXISTS versions INCREMENT 2;"
        "CREATE TABLE item (id int PRIMARY KEY, title text NOT NULL, "
        f"version bigint NOT NULL DEFAULT nextval('versions') {extra});"
    )
    database.execute("INSERT INTO item SELECT n, 'title ' || n FROM generate_series(1, %s) AS n", (count,))
    database.execute(f"SELECT outbox.capture('item' {options})")


def start(database: Database, table: str = "item", **arguments: object) -> int:
    parts = [sql.SQL("{} => {}").format(sql.Identifier(name), sql.Literal(value))
             for name, value in arguments.items()]  # fmt: skip
    return database.value(
        sql.SQL("SELECT outbox.backfill({})").format(sql.SQL(", ").join([sql.Literal(table), *parts]))
    )


def progress(database: Database, id: int) -> dict[str, Any]:
    cursor = database.connection.execute("SELECT * FROM outbox.backfill_progress WHERE id = %s", (id,))
    row = cursor.fetchone()
    assert row is not None, f"no backfill {id} in outbox.backfill_progress"
    return dict(zip([column.name for column in cursor.description or []], row))


def wait_for(
    database: Database, id: int, good: Callable[[dict[str, Any]], object], what: str, timeout: float = 180
) -> dict[str, Any]:
    return wait_until(
        lambda: progress(database, id), good, timeout=timeout, what=f"backfill {id}: {what}",
        ignoring=(psycopg.OperationalError,),
    )  # fmt: skip


def wait_ended(database: Database, id: int, state: str = "finished", *, timeout: float = 180) -> dict[str, Any]:
    seen = wait_for(database, id, lambda row: row["state"] in ENDED, state, timeout)
    assert seen["state"] == state, seen
    return seen


def snapshots(database: Database, event_type: str = "ItemSnapshot") -> list[str]:
    """Returns the keys of all snapshot events in the log, in order."""
    rows = database.execute(
        "SELECT aggregate_id FROM outbox.event WHERE event_type = %s ORDER BY position", (event_type,)
    )
    return [key for (key,) in rows]


def keys(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


@pytest.fixture
def source(database: Database) -> Database:
    database.add_destination("d", "null:")
    own_tables(database)
    return database


def own_tables(database: Database) -> None:
    """The SQL edition backfills tables of its owner only."""
    if SQL_EDITION:
        database.execute(f"GRANT CREATE ON SCHEMA public TO {EDITION_OWNER}; SET ROLE {EDITION_OWNER}")


@contextmanager
def transaction(database: Database, statement: str) -> Iterator[psycopg.Connection]:
    """Holds an open transaction that has done this. Rolls back at the end."""
    with database.connect() as connection:
        connection.autocommit = False
        connection.execute(statement)
        yield connection
        connection.rollback()


# -------------------------------------------------------------------------------------------------
# Events of a backfill
# -------------------------------------------------------------------------------------------------


def test_every_row_becomes_an_event(source: Database) -> None:
    make_items(source, 2500, options=", version => 'version'")
    id = start(source)
    done = wait_ended(source, id)
    assert (done["table"], done["destination"], done["rows_done"], done["percent"]) == ("item", None, 2500, 100)
    assert done["finished_at"] and not done["waiting_for"] and not done["expected_end"]
    assert snapshots(source) == keys(1, 2500)
    event = source.execute(
        "SELECT topic, ordering_key, version, headers, convert_from(payload, 'UTF8')::jsonb, only_to "
        "FROM outbox.event WHERE aggregate_id = '7'"
    )
    row = {"id": 7, "title": "title 7", "version": 13}
    assert event == [("item.events", "7", 13, {"snapshot": True}, row, None)]
    source.wait_published(2500)
    assert source.execute("SELECT id, destination, action, selection FROM outbox.operation") == [
        (id, "*", "backfill", {"table": "public.item"})
    ]
    wait_until(lambda: source.pid("backfill"), lambda pid: pid is None, what="its worker to end")


def test_an_empty_table_is_finished_at_once(source: Database) -> None:
    make_items(source, 0)
    assert wait_ended(source, start(source))["rows_done"] == 0


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_keys_of_several_columns_and_any_type(source: Database, batch: int) -> None:
    """Many rows share each first column, so batches end in the middle of them."""
    source.execute(
        "CREATE TYPE size AS ENUM ('small', 'large', 'huge');"
        'CREATE DOMAIN code AS varchar(8) COLLATE "C";'
        "CREATE TABLE item (part size, at timestamptz, code code, price numeric(9,2), tags text[], note text,"
        " PRIMARY KEY (part, at, code, price, tags) INCLUDE (note));"
        "INSERT INTO item SELECT (enum_range(NULL::size))[1 + n % 3], '2020-01-01 10:00+02'::timestamptz + (n % 2) * interval '1 us',"
        " chr(65 + n % 5) || '\"\\,', n / 10.0, ARRAY[n::text, NULL, '{'], n FROM generate_series(1, 60) AS n"
    )
    source.cluster.execute(f"ALTER DATABASE {source.name} SET datestyle = 'German'")
    source.execute("SELECT outbox.capture('item')")
    wait_ended(source, start(source, batch=batch))
    notes = source.execute(
        "SELECT (convert_from(payload, 'UTF8')::jsonb ->> 'note')::int FROM outbox.event ORDER BY position"
    )
    assert notes == source.execute("SELECT note::int FROM item ORDER BY part, at, code, price, tags")


def test_partitions_and_children_are_walked_one_after_the_other(source: Database) -> None:
    source.execute(
        "CREATE TABLE item (id int, region text, title text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);"
        "CREATE TABLE item_b PARTITION OF item FOR VALUES IN ('b');"
        "CREATE TABLE item_other (title text, gone int, region text NOT NULL, id int NOT NULL);"
        "ALTER TABLE item_other DROP COLUMN gone;"
        "ALTER TABLE item ATTACH PARTITION item_other DEFAULT;"
        "CREATE TABLE item_a PARTITION OF item FOR VALUES IN ('a') PARTITION BY RANGE (id);"
        "CREATE TABLE item_a_1 PARTITION OF item_a FOR VALUES FROM (0) TO (1000);"
        "INSERT INTO item SELECT n, (ARRAY['a', 'b', 'c'])[1 + n % 3], 't' FROM generate_series(1, 100) AS n;"
        "CREATE TABLE thing (id int PRIMARY KEY, title text); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (thing);"
        "INSERT INTO thing VALUES (1, 'a'), (3, 'b'); INSERT INTO child VALUES (2, 'c')"
    )
    source.execute("SELECT outbox.capture('item', aggregate_id => '{id}'), outbox.capture('thing')")
    assert wait_ended(source, start(source, batch=10))["rows_done"] == 100
    assert sorted(snapshots(source), key=int) == keys(1, 100)
    payloads = "SELECT DISTINCT convert_from(payload, 'UTF8')::jsonb - 'id' - 'region' FROM outbox.event"
    assert source.execute(payloads) == [({"title": "t"},)]
    wait_ended(source, start(source, "thing"))
    assert snapshots(source, "ThingSnapshot") == ["1", "3", "2"]


def test_rows_that_the_condition_excludes_have_no_event(source: Database) -> None:
    make_items(source, 100, options=", condition => 'id % 10 = 0'")
    assert wait_ended(source, start(source, batch=15))["rows_done"] == 100
    assert snapshots(source) == [str(n) for n in range(10, 101, 10)]


def test_a_table_without_primary_key_is_walked_by_another_unique_index(source: Database) -> None:
    source.execute(
        "CREATE TABLE item (id int NOT NULL, a int UNIQUE, b int NOT NULL);"
        "INSERT INTO item SELECT n, NULL, n FROM generate_series(1, 20) AS n;"
        "CREATE UNIQUE INDEX ON item (b) WHERE b > 10; CREATE UNIQUE INDEX ON item (b DESC);"
        "SELECT outbox.capture('item', aggregate_id => '{id}')"
    )
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has no unique index to scan it by") as refusal:
        start(source)
    assert refusal.value.diag.message_hint == "Create a primary key, or a unique index on columns that are NOT NULL."
    source.execute("CREATE UNIQUE INDEX ON item (b, id)")
    wait_ended(source, start(source, batch=3))
    assert snapshots(source) == keys(1, 20)


# -------------------------------------------------------------------------------------------------
# Together with live events
# -------------------------------------------------------------------------------------------------

# Two consumers: one compares versions, one applies events in the order of their arrival.
COPIES = """
    CREATE EXTENSION pg_inbox;
    CREATE TABLE by_version (id int PRIMARY KEY, title text, version bigint);
    CREATE TABLE in_order (id int PRIMARY KEY, title text);
    CREATE FUNCTION keep_newest(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        item jsonb := inbox.json(event) || jsonb_build_object('version', event.version);
    BEGIN
        IF event.event_type = 'ItemDeleted' THEN
            PERFORM inbox.remove('by_version', ARRAY['id'], 'version', item);
        ELSE
            PERFORM inbox.apply('by_version', ARRAY['id'], 'version', item);
        END IF;
    END $$;
    CREATE FUNCTION follow(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM in_order WHERE id = event.aggregate_id::int;
        IF event.event_type <> 'ItemDeleted' THEN
            INSERT INTO in_order SELECT id, title FROM jsonb_populate_record(NULL::in_order, inbox.json(event));
        END IF;
    END $$;
    SELECT inbox.subscribe('newest', '*', 'keep_newest'), inbox.subscribe('order', '*', 'follow');
"""


# Returns the rows that a consumer has after it has applied the events in order.
LAST_OF_LOG = """
    SELECT id, title
      FROM (SELECT DISTINCT ON (ordering_key) ordering_key::int AS id, event_type,
                   convert_from(payload, 'UTF8')::jsonb ->> 'title' AS title
              FROM outbox.event ORDER BY ordering_key, position DESC) AS last
     WHERE event_type <> 'ItemDeleted' ORDER BY id
"""


class Pair:
    """A table and its copies elsewhere. Without workers there are no copies, and the log stands for them."""

    def __init__(self, source: Database, target: Database, rows: int, versioned: bool) -> None:
        self.source, self.target, self.rows = source, target, rows
        if not SQL_EDITION:
            target.execute(COPIES)
            for consumer in ("newest", "order"):
                source.add_destination(consumer, target.inbox_url(), consumer=consumer)
        make_items(source, rows, options=", version => 'version'" if versioned else "")

    def change(self, number: int, stop: threading.Event, failures: list[BaseException]) -> None:
        """Random transactions on random rows, until told to stop."""
        choice = random.Random(number)
        connection: psycopg.Connection | None = None
        while not stop.is_set():
            try:
                if connection is None or connection.closed:
                    connection = self.source.connect()
                    connection.autocommit = False
                for _ in range(choice.randint(1, 3)):
                    connection.execute(self.statement(choice))
                connection.execute("SELECT pg_sleep(0.005)")  # so that batches meet locked rows
                connection.rollback() if choice.random() < 0.1 else connection.commit()
            except (errors.DeadlockDetected, errors.UniqueViolation, psycopg.OperationalError):
                with suppress(psycopg.OperationalError):  # the server was killed
                    connection.rollback()  # type: ignore[union-attr]
            except BaseException as failure:
                failures.append(failure)
                return
        if connection is not None:
            connection.close()

    def statement(self, choice: random.Random) -> str:
        id, other = choice.randint(1, self.rows), choice.randint(1, self.rows)
        title = f"title {choice.random()}"
        new_version = "version = nextval('versions')"
        return choice.choice(
            [
                f"INSERT INTO item VALUES ({id}, '{title}') ON CONFLICT DO NOTHING",
                f"UPDATE item SET title = '{title}', {new_version} WHERE id = {id}",
                f"UPDATE item SET title = '{title}', {new_version} WHERE id = {id}",
                f"DELETE FROM item WHERE id = {id}",
                f"UPDATE item SET id = {other}, {new_version} WHERE id = {id}",
            ]
        )

    @contextmanager
    def changing(self) -> Iterator[None]:
        stop, failures = threading.Event(), list[BaseException]()
        threads = [threading.Thread(target=self.change, args=(n, stop, failures)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures, failures

    def expect_equal(self) -> None:
        if SQL_EDITION:
            assert self.source.execute(LAST_OF_LOG) == self.source.execute("SELECT id, title FROM item ORDER BY id")
            return
        items = self.source.execute("SELECT id, title FROM item ORDER BY id")
        for copy in ("by_version", "in_order"):
            wait_until(
                lambda: self.target.execute(f"SELECT id, title FROM {copy} ORDER BY id"),
                lambda rows: rows == items, timeout=180, what=f"{copy} to have the rows of the table",
            )  # fmt: skip


def terminate_worker(database: Database) -> None:
    """Terminates the running worker; the backfill may have finished meanwhile."""
    database.execute("SELECT pg_terminate_backend(pid) FROM outbox.workers() WHERE kind = 'backfill'")


@pytest.mark.parametrize("versioned", all_in_long_run([True, False], short=[True]), ids=["versioned", "unversioned"])
@pytest.mark.parametrize(
    "kills",
    [0, pytest.param(2, marks=pytest.mark.extension("there it has no process of its own"))],
    ids=["calm", "killed"],
)
def test_copies_end_equal(source: Database, new_database: NewDatabase, versioned: bool, kills: int) -> None:
    pair = Pair(source, new_database(extension=False), 1500, versioned)
    with pair.changing():
        id = start(source, batch=25, rate=600)
        for kill in range(kills):
            enough = (kill + 1) * 1500 // (kills + 1)
            wait_for(source, id, lambda row: row["rows_done"] >= enough, f"{enough} rows")
            terminate_worker(source)
        wait_ended(source, id, timeout=180)
    pair.expect_equal()


@pytest.mark.extension("there it has no process of its own")
def test_copies_end_equal_though_the_server_is_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    source = create_database(cluster)
    pair = Pair(source, create_database(cluster, "target", extension=False), 1000, versioned=False)
    with pair.changing():
        id = start(source, batch=20, rate=400)
        wait_for(source, id, lambda row: row["rows_done"] >= 200, "200 rows")
        cluster.kill_and_recover(source.wait_for_worker("backfill"))
        wait_for(source, id, lambda row: row["rows_done"] >= 400, "400 rows")
        cluster.kill_postmaster()
        cluster.start()
        wait_ended(source, id, timeout=180)
    pair.expect_equal()


@pytest.mark.extension("there it has no process of its own")
def test_a_killed_worker_leaves_nothing_out_and_does_nothing_twice(source: Database) -> None:
    make_items(source, 500)
    id = start(source, batch=10, rate=400)
    for rows in (100, 300):
        wait_for(source, id, lambda row: row["rows_done"] >= rows, f"{rows} rows")
        terminate_worker(source)
    wait_ended(source, id)
    assert snapshots(source) == keys(1, 500)


# -------------------------------------------------------------------------------------------------
# Locked rows and tables
# -------------------------------------------------------------------------------------------------


def test_rows_that_are_locked_for_long_come_last(source: Database) -> None:
    make_items(source, 300)
    with transaction(source, "UPDATE item SET title = 'new' WHERE id IN (5, 150, 300)") as other:
        id = start(source, batch=50)
        # Only the next batch shows that this one was the last.
        seen = wait_for(source, id, lambda row: row["waiting_for"] == "locked rows", "all other rows")
        assert (seen["state"], seen["rows_done"], seen["locked_rows"]) == ("running", 297, 3)
        assert snapshots(source) == [key for key in keys(1, 300) if key not in ("5", "150", "300")]
        other.execute("DELETE FROM item WHERE id = 300")
        other.commit()
    assert wait_ended(source, id)["locked_rows"] == 0
    assert snapshots(source)[297:] in (["5", "150"], ["150", "5"])
    payload = (
        "SELECT convert_from(payload, 'UTF8')::jsonb ->> 'title' FROM outbox.event WHERE event_type = 'ItemSnapshot'"
    )
    assert source.execute(payload + " AND aggregate_id IN ('5', '150')") == [("new",), ("new",)]


def test_a_session_that_locks_a_row_is_never_the_victim_of_a_deadlock(source: Database) -> None:
    """The worker and the session wait for each other: for the table, then for the task."""
    make_items(source, 20)
    with transaction(source, "UPDATE item SET title = 'new' WHERE id = 5") as other:
        id = start(source)
        wait_for(source, id, lambda row: row["rows_done"] == 19, "all other rows")
        for statement in ("ALTER TABLE item ADD COLUMN more int", f"SELECT outbox.pause_backfill({id})"):
            other.execute(statement)
        other.commit()
    source.execute("SELECT outbox.resume_backfill(%s)", (id,))
    wait_ended(source, id)
    assert snapshots(source)[-1] == "5"


@pytest.mark.extension("there it has no process of its own")
def test_a_table_that_is_locked_is_waited_for(source: Database) -> None:
    make_items(source, 60)
    id = start(source, batch=1, rate=20)
    pid = source.wait_for_worker("backfill")
    with transaction(source, "LOCK TABLE item IN ACCESS EXCLUSIVE MODE") as other:
        wait_until(
            lambda: source.value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (pid,)),
            lambda event: event == "Lock", what="the worker to wait for the table",
        )  # fmt: skip
        stays(lambda: progress(source, id)["state"], "running", seconds=1.5, what="the backfill")
        other.commit()
    wait_ended(source, id)
    assert snapshots(source) == keys(1, 60)


# -------------------------------------------------------------------------------------------------
# Control
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_pause_resume_and_cancel(source: Database) -> None:
    make_items(source, 1000)
    id = start(source, batch=10, rate=200)
    wait_for(source, id, lambda row: row["rows_done"] > 20, "some rows")
    watch = Stopwatch()
    source.execute("SELECT outbox.pause_backfill(%s)", (id,))
    paused = progress(source, id)
    assert (paused["state"], paused["rate"], paused["waiting_for"]) == ("paused", 0, None)
    wait_until(lambda: source.pid("backfill"), lambda pid: pid is None, what="its worker to end")
    assert watch.seconds < 2 * SECOND
    stays(lambda: progress(source, id)["rows_done"], paused["rows_done"], seconds=0.3, what="rows done")
    source.execute("SELECT outbox.resume_backfill(%s)", (id,))
    wait_for(source, id, lambda row: row["rows_done"] > paused["rows_done"], "more rows")
    source.execute("SELECT outbox.cancel_backfill(%s)", (id,))
    done = progress(source, id)
    assert done["state"] == "cancelled" and done["finished_at"]
    assert snapshots(source) == keys(1, done["rows_done"])
    actions = source.execute("SELECT action FROM outbox.operation ORDER BY id")
    assert actions == [("backfill",), ("pause backfill",), ("resume backfill",), ("cancel backfill",)]
    for action in ("pause", "resume", "cancel"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match=f"backfill {id} is cancelled"):
            source.execute(f"SELECT outbox.{action}_backfill(%s)", (id,))


@pytest.mark.timing
def test_a_long_pause_of_the_rate_ends_when_it_is_told(source: Database) -> None:
    make_items(source, 1000)
    id = start(source, batch=1000, rate=1)
    wait_for(source, id, lambda row: row["rows_done"] >= 2, "its first rows")
    assert progress(source, id)["waiting_for"] == "its rate"
    source.execute("SELECT outbox.cancel_backfill(%s)", (id,))
    wait_until(lambda: source.pid("backfill"), lambda pid: pid is None, timeout=2 * SECOND, what="its worker to end")


@pytest.mark.timing
def test_it_keeps_to_its_rate(source: Database) -> None:
    make_items(source, 600)
    done = wait_ended(source, start(source, rate=300))
    seconds = (done["finished_at"] - done["started_at"]).total_seconds()
    assert 1 <= seconds < 3 + SECOND, "600 rows at 300 per second"


@pytest.mark.extension("there they take turns")
def test_two_backfills_run_at_once(source: Database) -> None:
    make_items(source, 400)
    source.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other SELECT generate_series(1, 400);"
                   "SELECT outbox.capture('other')")  # fmt: skip
    # None can end before both are seen.
    with transaction(source, "SELECT FROM item, other WHERE item.id = 400 AND other.id = 400 FOR UPDATE"):
        ids = [start(source, rate=400, batch=20), start(source, "other", rate=400, batch=20), start(source)]
        wait_until(
            lambda: [worker.name for worker in source.workers() if worker.kind == "backfill"],
            lambda names: {str(ids[0]), str(ids[1])} <= set(names), what="two workers at a time",
        )  # fmt: skip
    for id in ids:
        assert wait_ended(source, id)["rows_done"] == 400
    assert sorted(snapshots(source), key=int) == sorted(keys(1, 400) * 2, key=int)
    assert snapshots(source, "OtherSnapshot") == keys(1, 400)


# -------------------------------------------------------------------------------------------------
# Destinations
# -------------------------------------------------------------------------------------------------


def test_one_destination_only(source: Database) -> None:
    source.add_destination("new", "null:")
    make_items(source, 300)
    id = start(source, destination="new")
    source.execute("UPDATE item SET title = 'live' WHERE id <= 5")
    assert wait_ended(source, id)["destination"] == "new"
    source.wait_settled("new")
    source.wait_published(305, "new")
    source.wait_published(5, "d")
    with pytest.raises(errors.UndefinedObject, match='destination "nowhere" does not exist'):
        start(source, destination="nowhere")


def fetch_and_ack(source: Database, count: int) -> None:
    """Waits for at least this number of events of the pull destination."""
    while count > 0:
        fetched = source.execute("SELECT token FROM outbox.fetch('slow', %s)", (count,))
        source.execute("SELECT outbox.ack(%s)", (fetched[0][0],))
        count -= len(fetched)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "pull:"])
def test_it_waits_for_a_destination_that_is_behind(source: Database, url: str, http: None) -> None:
    source.add_destination("slow", url, topics="item.*")
    source.add_destination("other", "null:", topics="other.*")  # has none of its events, and holds up nothing
    make_items(source, 3000)
    id = start(source, batch=100, max_pending=500)
    # waiting_for is read after the row, and may already be that of the next state.
    wait_for(source, id, lambda row: 'destination "slow"' in (row["waiting_for"] or ""), "to wait")
    seen = progress(source, id)
    assert 500 < seen["rows_done"] <= 700
    pid = None if SQL_EDITION else source.wait_for_worker("backfill")
    source.enqueue("a", 1000, topic="other.events")
    if pid:
        wait_until_quiet(pid)
    assert progress(source, id)["rows_done"] == seen["rows_done"]
    if url == "pull:":
        fetch_and_ack(source, 300)
        wait_for(source, id, lambda row: row["rows_done"] > seen["rows_done"], "more rows")
        source.drop_destination("slow")
    else:
        source.change_destination("slow", url="null:")
    wait_ended(source, id)


def test_other_events_do_not_hold_it_up(source: Database) -> None:
    """All events that the destination selects are settled, and many others are in the log."""
    source.drop_destination("d")
    source.add_destination("d", "null:", topics="item.events")
    make_items(source, 10)
    wait_ended(source, start(source))
    source.wait_settled()
    source.enqueue("a", 1000, topic="other.events")
    wait_ended(source, start(source, batch=1, max_pending=5))


# -------------------------------------------------------------------------------------------------
# Errors
# -------------------------------------------------------------------------------------------------


def refuse_row(database: Database, id: int) -> None:
    database.execute(
        "CREATE OR REPLACE FUNCTION public.fits(id int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        f"IF id = {id} THEN RAISE EXCEPTION 'row does not fit' USING DETAIL = 'It is bad.'; END IF; RETURN true; END $$"
    )


def test_a_bad_row_stops_it_and_is_named(source: Database) -> None:
    refuse_row(source, 0)
    make_items(source, 100, options=", condition => 'public.fits(id)'")
    refuse_row(source, 42)
    id = start(source, batch=10)
    failed = wait_ended(source, id, "failed")
    assert failed["last_error"] == 'row does not fit; It is bad.; row {42} of table "item"'
    assert snapshots(source) == keys(1, 40)
    source.wait_for_worker("relay")  # without it, health() would report the relay first
    (finding,) = [f for f in source.health() if f.what == "backfill failed"]
    assert finding.object == "table public.item" and finding.why.startswith(f"backfill {id} has failed: row")
    refuse_row(source, 0)
    source.execute("SELECT outbox.resume_backfill(%s)", (id,))
    assert wait_ended(source, id)["last_error"] is None
    assert snapshots(source) == keys(1, 100)


@pytest.mark.parametrize(
    "change, error",
    [
        ("DROP TABLE item", "the table does not exist any more"),
        ("SELECT outbox.uncapture('item')", 'table "item" is not captured'),
        ("ALTER TABLE item DROP CONSTRAINT item_pkey; SELECT outbox.capture('item', aggregate_id => '{id}', replace => true)",
         'the unique index by which table "item" was scanned does not exist any more'),
        ("", "the destination does not exist any more"),
    ],
    ids=["dropped", "uncaptured", "index", "destination"],
)  # fmt: skip
def test_a_backfill_fails_when_what_it_needs_is_gone(source: Database, change: str, error: str) -> None:
    make_items(source, 1000)
    id = start(source, destination="d", batch=10, rate=100)
    wait_for(source, id, lambda row: row["rows_done"] > 20, "some rows")
    if change:
        source.execute(change)
    else:
        source.drop_destination("d")
    assert error in wait_ended(source, id, "failed")["last_error"]
    assert 0 < len(snapshots(source)) < 1000


@pytest.mark.extension("there the role is the one that installed pg_outbox")
def test_a_backfill_fails_when_the_role_that_started_it_is_gone(source: Database) -> None:
    role = f"gone_{source.name}"
    source.execute(
        f"CREATE ROLE {role}; SELECT outbox.grant_capture('{role}'); GRANT CREATE ON SCHEMA public TO {role}"
    )
    source.execute(f"SET ROLE {role}")
    make_items(source, 1000)
    id = start(source, batch=10, rate=100)
    wait_for(source, id, lambda row: row["rows_done"] > 20, "some rows")
    source.execute(f"RESET ROLE; REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}; DROP ROLE {role}")
    assert wait_ended(source, id, "failed")["last_error"].startswith("the role that started it does not exist any more")


@pytest.mark.parametrize(
    "arguments, error",
    [("batch => 0", "batch 0"), ("batch => NULL", "batch <NULL>"), ("rate => 0", "rate 0"), ("max_pending => 0", "max_pending 0")],
)  # fmt: skip
def test_arguments_that_make_no_sense(source: Database, arguments: str, error: str) -> None:
    make_items(source, 1)
    with pytest.raises(errors.InvalidParameterValue, match=error):
        source.execute(f"SELECT outbox.backfill('item', {arguments})")


@pytest.mark.parametrize(
    "destination, error",
    [(None, 'no destination selects topic "item.events"'), ("d", 'destination "d" does not select topic "item.events"')],
)  # fmt: skip
def test_a_backfill_that_no_destination_selects_is_refused(
    source: Database, destination: str | None, error: str
) -> None:
    make_items(source, 1)
    source.change_destination("d", topics="other.*")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=error):
        start(source, destination=destination)


def test_the_last_destination_is_dropped(source: Database) -> None:
    make_items(source, 1000)
    id = start(source, batch=10, rate=100)
    wait_for(source, id, lambda row: row["rows_done"] > 20, "some rows")
    source.drop_destination("d")
    assert wait_ended(source, id, "failed")["last_error"] == "there is no destination any more"


def test_a_table_that_is_not_captured(source: Database) -> None:
    source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match='table "item" is not captured'):
        start(source)


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(source: Database) -> Iterator[dict[str, str]]:
    """Roles: owner owns the table item, another owns nothing. Only `another` may log in."""
    names = {kind: f"{kind}_{source.name}" for kind in ("owner", "another")}
    source.execute(f"CREATE ROLE {names['owner']}; CREATE ROLE {names['another']} LOGIN")
    for name in names.values():
        source.execute("SELECT outbox.grant_capture(%s)", (name,))
        source.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    yield names
    for name in names.values():
        source.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


@pytest.mark.extension("there the owner is the role that installed pg_outbox")
def test_user_code_runs_as_the_owner_of_the_table(source: Database, roles: dict[str, str]) -> None:
    source.execute(
        f"SET ROLE {roles['owner']}; CREATE TABLE item (id int PRIMARY KEY); CREATE TABLE who (name name);"
        "CREATE FUNCTION fits() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.who VALUES (current_user); PERFORM set_config('work_mem', '64kB', false); RETURN true; END $$;"
        "SELECT outbox.capture('item', condition => 'public.fits()'); RESET ROLE; INSERT INTO item VALUES (1); TRUNCATE who"
    )
    wait_ended(source, start(source))
    assert source.execute("SELECT DISTINCT name FROM who") == [(roles["owner"],)]
    source.execute(
        "CREATE OR REPLACE FUNCTION fits() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " SET SESSION AUTHORIZATION postgres; RETURN true; END $$"
    )
    failed = wait_ended(source, start(source), "failed")
    assert "within security-restricted operation" in failed["last_error"]


@pytest.mark.extension("there the owner is the role that installed pg_outbox")
def test_only_the_owner_of_the_table_may_backfill(source: Database, roles: dict[str, str]) -> None:
    make_items(source, 1000)
    source.execute(f"ALTER TABLE item OWNER TO {roles['owner']}")
    with source.cluster.connect(source.name, roles["another"]) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match="is not owner of table"):
            connection.execute("SELECT outbox.backfill('item')")
        with pytest.raises(errors.CheckViolation):
            connection.execute(f"SELECT outbox_internal.add_backfill('item', NULL, 1, NULL, 1, '{roles['owner']}')")
        source.execute(f"SET ROLE {roles['owner']}")
        id = start(source, rate=50, batch=5)
        source.execute("RESET ROLE")
        assert connection.execute("SELECT * FROM outbox.backfill_progress").fetchall() == []
        with pytest.raises(errors.InsufficientPrivilege, match=f"permission denied for backfill {id}"):
            connection.execute("SELECT outbox.pause_backfill(%s)", (id,))
        source.execute("SELECT outbox.grant_operate(%s)", (roles["another"],))
        connection.execute("SELECT outbox.pause_backfill(%s)", (id,))
        assert len(connection.execute("SELECT * FROM outbox.backfill_progress").fetchall()) == 1
    source.execute("SELECT outbox.resume_backfill(%s)", (id,))
    source.execute(f"ALTER TABLE item OWNER TO {roles['another']}")
    assert "is not owner of table public.item" in wait_ended(source, id, "failed")["last_error"]


# -------------------------------------------------------------------------------------------------
# Dump, drop
# -------------------------------------------------------------------------------------------------


@pytest.mark.extension("there it is paused when the log is adapted: test_edition.py")
def test_a_backfill_restored_from_a_dump_is_paused(source: Database, new_database: NewDatabase) -> None:
    make_items(source, 200)
    with transaction(source, "UPDATE item SET title = 'new' WHERE id = 5"):
        id = start(source, batch=10, rate=200)
        wait_for(source, id, lambda row: row["rows_done"] > 20, "some rows")
        bin_directory = source.cluster.installation.bin_directory
        dump = subprocess.run(
            [str(bin_directory / "pg_dump"), "-d", source.cluster.conninfo(source.name)],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    restored = new_database(extension=False)
    subprocess.run(
        [str(bin_directory / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", source.cluster.conninfo(restored.name)],
        input=dump, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert progress(restored, id)["state"] == "paused"
    assert progress(restored, id)["locked_rows"] == 1
    restored.execute("SELECT outbox.resume_backfill(%s)", (id,))
    wait_ended(restored, id)
    assert sorted(snapshots(restored), key=int) == keys(1, 200)
    wait_ended(source, id)


@pytest.mark.extension("workers")
def test_dropping_the_extension_ends_it(source: Database) -> None:
    make_items(source, 1000)
    start(source, rate=10, batch=1)
    source.wait_for_worker("backfill")
    source.execute("SELECT outbox.uncapture('item'); DROP EXTENSION pg_outbox CASCADE")
    wait_until(
        lambda: source.cluster.workers_in(source.name), lambda workers: not workers,
        what="all workers of the database to end",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# outboxctl
# -------------------------------------------------------------------------------------------------


class Tool:
    def __init__(self, database: Database, installation: Installation) -> None:
        self.command = [str(installation.build / "tools/outboxctl/outboxctl"), "backfill",
                        "-d", database.cluster.conninfo(database.name)]  # fmt: skip

    def run(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=180)
        assert done.returncode == code, done
        return done.stdout if code == 0 else done.stderr


@pytest.fixture
def tool(source: Database, installation: Installation) -> Tool:
    return Tool(source, installation)


def test_outboxctl_starts_one_and_watches_it(source: Database, tool: Tool) -> None:
    make_items(source, 1000)
    source.add_destination("new", "null:")
    assert tool.run(
        "start", "item", "--destination", "new", "--rate", "200", "--batch", "50", "--max-pending", "9000"
    ) == ("backfill 1 started; outboxctl backfill watch 1\n")
    assert source.execute("SELECT batch, rate, max_pending FROM outbox.backfill_task") == [(50, 200, 9000)]
    wait_for(source, 1, lambda row: row["rate"] and row["waiting_for"] == "its rate", "a worker at work")
    lines = tool.run("watch", "1").splitlines()
    assert len(lines) > 1 and "/s" in lines[0] and "waits for its rate" in lines[0]
    assert lines[-1] == f"[{30 * '#'}] 100.0 %  1000 of {progress(source, 1)['rows_estimated']} rows, finished"
    seen = json.loads(tool.run("watch", "1", "--json"))
    assert (seen["id"], seen["state"], seen["rows_done"]) == (1, "finished", 1000)
    assert json.loads(tool.run("start", "item", "--json")) == {"id": 2}
    assert [row["id"] for row in json.loads(tool.run("status", "--json"))] == [2, 1]
    assert "finished" in tool.run("status", "1")


def test_outboxctl_pauses_resumes_and_cancels(source: Database, tool: Tool) -> None:
    make_items(source, 1000)
    id = str(start(source, rate=1, batch=1))
    assert tool.run("pause", id) == f"backfill {id} is paused\n"
    assert json.loads(tool.run("resume", id, "--json")) == {"id": int(id), "state": "running"}
    assert tool.run("cancel", id) == f"backfill {id} is cancelled\n"
    assert progress(source, int(id))["state"] == "cancelled"
    assert f"backfill {id} is cancelled" in tool.run("resume", id, code=1)
    assert "backfill 99 does not exist" in tool.run("watch", "99", code=1)
    source.execute("UPDATE outbox.backfill_task SET state = 'failed', last_error = 'because'")
    assert f"backfill {id} has failed" in tool.run("watch", id, code=1)
