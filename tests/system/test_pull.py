"""Pull destinations: outbox.fetch(), ack(), nack(), and relays outside the server that use them."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from cluster import REPOSITORY, MakeCluster
from database import Database, NewDatabase, create_database, enqueue
from ledger import SETUP, check, read_ledger
from test_endpoint_tables import rename
from test_ledger import AGGREGATES, writers
from waiting import stays, wait_until

LEASE_LOST = "OL001"
EAGER = {"retry_base": "1ms", "retry_max": "1ms"}


def fetch(
    on: Database | psycopg.Connection, size: int = 100, lease: str = "1h", destination: str = "d"
) -> list[dict[str, Any]]:
    connection = on.connection if isinstance(on, Database) else on
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute("SELECT * FROM outbox.fetch(%s, %s, %s)", (destination, size, lease))
    return cursor.fetchall()


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [str(event["event_id"]) for event in events]


def ack(database: Database, events: list[dict[str, Any]]) -> int:
    return database.value("SELECT outbox.ack(%s)", (events[0]["token"],))


def nack(database: Database, event: dict[str, Any], permanent: bool = False) -> list[str]:
    """Returns events that must not be sent any more."""
    rows = database.execute("SELECT outbox.nack(%s, %s, 'no', %s)", (event["token"], event["event_id"], permanent))
    return [str(row[0]) for row in rows]


def fetch_something(database: Database, size: int = 100, lease: str = "1h") -> list[dict[str, Any]]:
    return wait_until(lambda: fetch(database, size, lease), what="something to fetch")


def drain(database: Database) -> list[str]:
    """Fetches and settles until nothing is left."""
    arrived = []
    while events := fetch(database):
        arrived += ids(events)
        assert ack(database, events) == len(events)
    return arrived


@contextmanager
def refused_lease() -> Iterator[None]:
    with pytest.raises(psycopg.Error) as refusal:
        yield
    assert refusal.value.sqlstate == LEASE_LOST, refusal.value


def pull_destination(database: Database, **options: str) -> Database:
    database.add_destination("d", "pull:", **options)
    return database


# -------------------------------------------------------------------------------------------------
# One fetcher
# -------------------------------------------------------------------------------------------------


def test_what_is_fetched_and_settled_is_not_fetched_again(database: Database) -> None:
    pull_destination(database)
    assert fetch(database) == []
    a = database.enqueue("a", 250)
    b = database.enqueue("b", 3)
    arrived = drain(database)
    assert [i for i in arrived if i in a] == a
    assert sorted(arrived) == sorted(a + b)
    assert fetch(database) == []
    assert database.execute("SELECT * FROM outbox.batch") == []


def test_events_come_whole(database: Database) -> None:
    pull_destination(database)
    database.execute(
        "SELECT outbox.enqueue('item', 'a', 'changed', '{\"n\": 1}', version => 7, headers => '{\"h\": 1}')"
    )
    (event,) = fetch(database)
    expected = {
        "attempts": 0, "aggregate_type": "item", "aggregate_id": "a", "event_type": "changed",
        "version": 7, "topic": "item.events", "ordering_key": "a", "headers": {"h": 1},
        "content_type": "application/json", "payload": b'{"n": 1}',
    }  # fmt: skip
    assert {name: event[name] for name in expected} == expected


def test_only_matching_topics_are_fetched(database: Database) -> None:
    pull_destination(database, topics="x_*, y%")
    database.enqueue("a", topic="xy1")  # `_` and `%` are themselves
    database.enqueue("a", topic="yz")
    wanted = database.enqueue("a", topic="x_1") + database.enqueue("a", topic="y%")
    assert drain(database) == wanted


def test_a_paused_destination_hands_out_nothing(database: Database) -> None:
    database.add_destination("d", "pull:")
    database.enqueue("a", 3)
    database.execute("SELECT outbox.pause('d')")
    assert database.execute("SELECT * FROM outbox.fetch('d')") == []
    assert database.status()["state"] == "paused"
    database.execute("SELECT outbox.resume('d')")
    assert len(database.execute("SELECT * FROM outbox.fetch('d')")) == 3


def test_a_seek_takes_leases_back(database: Database) -> None:
    database.add_destination("d", "pull:")
    database.enqueue("a", 3)
    (token, *_) = database.execute("SELECT * FROM outbox.fetch('d')")[0]
    database.execute("SELECT outbox.seek('d', 'beginning')")
    with pytest.raises(psycopg.Error, match="is not known"):
        database.execute("SELECT outbox.ack(%s)", (token,))
    assert len(database.execute("SELECT * FROM outbox.fetch('d')")) == 3


def test_start_at_end(database: Database) -> None:
    database.enqueue("a")
    pull_destination(database, start="end")
    wanted = database.enqueue("a")
    assert drain(database) == wanted


def test_fewer_events_than_a_batch_has(database: Database) -> None:
    pull_destination(database)
    sent = database.enqueue("a", 10)
    first = fetch(database, 3)
    assert ids(first) == sent[:3]
    assert fetch(database) == []  # the rest is of the same lane
    assert ack(database, first) == 3
    assert ids(fetch(database)) == sent[3:]


def test_large_payloads_make_small_batches(database: Database) -> None:
    pull_destination(database)
    for n in range(8):
        database.execute("SELECT outbox.enqueue('item', 'a', 'changed', jsonb_build_object('x', repeat('y', 1000000)))")
    assert len(fetch(database)) < 8
    database.execute("SELECT outbox.release(token) FROM outbox.batch WHERE token IS NOT NULL")
    assert len(drain(database)) == 8


def test_an_idle_destination_writes_nothing(database: Database) -> None:
    pull_destination(database)
    database.enqueue("a")
    drain(database)
    fetch(database)
    cursor = database.execute("SELECT ctid FROM outbox.cursor")
    for _ in range(10):
        assert fetch(database) == []
    assert database.execute("SELECT ctid FROM outbox.cursor") == cursor


def test_published_counts_what_is_settled(database: Database) -> None:
    pull_destination(database, lanes="1", **EAGER)
    assert database.published() == 0
    database.enqueue("a", 150)
    events = fetch(database, 60)
    assert database.published() == 0
    assert ack(database, events) == 60
    assert database.published() == 60
    events = fetch(database)
    database.execute("SELECT outbox.release(%s)", (events[0]["token"],))
    assert database.published() == 60
    drain(database)
    assert database.published() == 150

    a, b = database.enqueue("a", 4), database.enqueue("b", 2)
    events = fetch(database)
    assert nack(database, events[1]) == a[2:]
    assert (database.published(), database.status()["failures"]) == (150, 1)
    assert ack(database, events) == 3
    assert database.published() == 153
    arrived: list[str] = []
    wait_until(lambda: arrived.extend(drain(database)) or len(arrived) >= 3, what="the others")
    assert sorted(arrived) == sorted(a[1:])
    assert database.published() == 156

    database.execute("SELECT outbox.replay('d', event_ids => %s::uuid[])", (b,))
    drain(database)
    assert database.published() == 158, "what is delivered again counts again"
    database.execute("SELECT outbox.seek('d', 'beginning')")
    assert database.published() == 158
    drain(database)
    assert database.published() == 158 + 156


def test_published_counts_on_when_a_relay_takes_over(database: Database) -> None:
    pull_destination(database)
    database.enqueue("a", 250)
    ack(database, fetch(database))
    fetch(database)  # under a lease
    assert database.published() == 100
    database.change_destination("d", url="null:")
    database.wait_published(250)


def test_a_replay_does_not_take_events_out_of_batches(database: Database) -> None:
    pull_destination(database)
    sent = database.enqueue("a", 250)
    ack(database, fetch(database))  # the others are in batches
    replay = database.value("SELECT outbox.replay('d', event_ids => %s::uuid[])", (sent[99:101],))
    assert database.value("SELECT outbox.backlog('d')") == 150
    fetched = fetch(database)
    assert ids(fetched) == sent[99:100]
    ack(database, fetched)
    assert database.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 0
    assert drain(database) == sent[100:]


def test_dead_letters_are_not_published(database: Database) -> None:
    pull_destination(database, max_attempts="1")
    database.enqueue("a", 2)
    events = fetch(database)
    nack(database, events[0])
    ack(database, events)
    drain(database)
    assert database.published() == 1
    database.execute("SELECT outbox.discard('d', everything => true, why => 'test')")
    assert database.published() == 1


# -------------------------------------------------------------------------------------------------
# Leases
# -------------------------------------------------------------------------------------------------


def test_a_late_ack_is_refused(database: Database) -> None:
    pull_destination(database)
    sent = database.enqueue("a", 3)
    late = fetch(database, lease="1ms")
    wait_until(lambda: not database.value("SELECT count(*) FROM outbox.lease"), what="its end")
    with refused_lease():  # nobody else has them yet
        ack(database, late)
    with refused_lease():
        nack(database, late[0])
    with refused_lease():
        database.execute("SELECT outbox.extend(%s, '1h')", (late[0]["token"],))
    again = fetch(database)
    assert ids(again) == sent
    with refused_lease():  # and now another fetcher has them
        ack(database, late)
    assert ack(database, again) == 3
    with refused_lease():
        ack(database, again)


def test_a_lease_can_be_extended(database: Database) -> None:
    pull_destination(database)
    database.enqueue("a")
    events = fetch(database, lease="1min")
    end = database.value("SELECT outbox.extend(%s, '2h')", (events[0]["token"],))
    assert database.value("SELECT locked_until FROM outbox.lease") == end
    assert database.value("SELECT %s - clock_timestamp() > '1h'::interval", (end,))


def test_what_is_released_can_be_fetched_at_once(database: Database) -> None:
    pull_destination(database)
    sent = database.enqueue("a", 3)
    events = fetch(database)
    assert database.value("SELECT outbox.release(%s)", (events[0]["token"],)) == 3
    again = fetch(database)
    assert ids(again) == sent and again[0]["attempts"] == 0


def test_a_lane_is_handed_to_one_fetcher_at_a_time(database: Database) -> None:
    pull_destination(database)
    sent = database.enqueue("a", 150)
    assert ids(fetch(database)) == sent[:100]
    other = database.enqueue("b", 2)
    while_leased = fetch(database)
    assert ids(while_leased) in (other, [])  # b may be of the lane of a
    assert fetch(database) == []


@contextmanager
def reads_few_of(database: Database, table: str, *, limit: int) -> Iterator[None]:
    """The transaction looks up and reads at most this number of rows of a table."""
    read = (
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_scan, 0) + coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_xact_user_tables WHERE relid = %s::regclass"
    )
    with database.connection.transaction():
        before = database.value(read, (table,))
        yield
        assert database.value(read, (table,)) - before <= limit


def test_a_fetch_looks_into_each_lane_once(database: Database) -> None:
    """Whatever the planner knows of the tables. It knew nothing when the plans were made."""
    lanes, keys = 512, 200
    pull_destination(database, lanes=str(lanes))
    for key in range(keys):
        database.enqueue(str(key))
    ack(database, fetch_something(database))
    with reads_few_of(database, "outbox.batch", limit=2 * (lanes + keys)):
        assert fetch(database)


def test_a_long_line_behind_one_key_costs_others_nothing(database: Database) -> None:
    behind = 2000
    pull_destination(database, on_dead_letter="block")
    database.enqueue("hot")
    refused = fetch_something(database)
    nack(database, refused[0], permanent=True)
    ack(database, refused)
    database.enqueue("hot", behind)
    wait_until(
        lambda: not fetch(database) and database.value("SELECT count(*) FROM outbox.delivery") == behind + 1,
        what="all of the key in outbox.delivery",
    )
    lone = database.enqueue("lone")
    with reads_few_of(database, "outbox.delivery", limit=behind // 10):
        events = fetch(database)
        assert ids(events) == lone
        ack(database, events)


def test_a_long_line_behind_one_key_is_put_aside_piece_by_piece(database: Database) -> None:
    """The first fetch that meets it returns events of another lane, and no fetch takes as long as the line is."""
    pull_destination(database, on_dead_letter="block", lanes="2")
    database.enqueue("hot")
    refused = fetch_something(database)
    nack(database, refused[0], permanent=True)
    ack(database, refused)
    database.enqueue("hot", 5200)
    other_lane = database.value(
        "SELECT i::text FROM generate_series(1, 1000) AS i"
        " WHERE hashtextextended(i::text, 0) & 1 <> hashtextextended('hot', 0) & 1 LIMIT 1"
    )
    lone = database.enqueue(other_lane)

    def parked() -> int:
        return database.value("SELECT count(*) FROM outbox.delivery WHERE state = 'PENDING'")

    assert ids(fetch_something(database)) == lone
    assert parked() == 100
    assert not fetch(database)
    assert parked() == 5100
    assert not fetch(database)
    assert parked() == 5200


def test_nobody_waits_for_a_fetch_that_does_not_commit(database: Database) -> None:
    pull_destination(database, lanes="64")
    database.enqueue("a")
    with database.connect() as idle:
        idle.autocommit = False
        assert len(fetch(idle)) == 1
        database.execute("SET lock_timeout = '1min'")
        for key in "bcdefg":
            database.enqueue(key)
        assert fetch(database) == []  # the other session has read the log on, and this one does not wait for it
        idle.commit()
        assert len(drain(database)) >= 5


STEPS: dict[str, Callable[[Database], object]] = {
    "rename": lambda database: rename(database, "d", "renamed"),
    "another sink": lambda database: database.change_destination("d", url="null:"),
    "pause": lambda database: database.execute("SELECT outbox.pause('d')"),
    "seek": lambda database: database.execute("SELECT outbox.seek('d', 'end', why => 'test')"),
    "replay": lambda database: database.execute("SELECT outbox.replay('d', topic => '*')"),
}


def waits_for(observer: psycopg.Connection, waiting: psycopg.Connection, other: psycopg.Connection) -> bool:
    return observer.execute(
        "SELECT %s = ANY (pg_blocking_pids(%s))", (other.info.backend_pid, waiting.info.backend_pid)
    ).fetchone() == (True,)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_waits_for_a_fetcher_that_settles(database: Database, step: str) -> None:
    """The fetcher has its batch, and then needs the cursor: a step that took one of them first would end in a deadlock."""
    pull_destination(database)
    database.enqueue("a", 2)
    failures: list[BaseException] = []
    with database.connect() as fetcher, database.connect() as observer:
        (first, _) = fetch(fetcher)
        with fetcher.transaction():
            fetcher.execute("SELECT outbox.extend(%s, '1h')", (first["token"],))

            def take() -> None:
                try:
                    STEPS[step](database)
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=take)
            thread.start()
            wait_until(
                lambda: failures or waits_for(observer, database.connection, fetcher),
                what=f"the step {step} to wait for the fetcher",
            )
            fetcher.execute("SELECT outbox.nack(%s, %s, 'no')", (first["token"], first["event_id"]))
        thread.join()
    assert failures == []


@pytest.mark.parametrize("gone", ["rename", "drop"])
def test_a_fetcher_that_waited_for_the_end_of_a_destination_leaves_no_cursor(database: Database, gone: str) -> None:
    """The next destination of that name would have two otherwise."""
    pull_destination(database)
    step = {"rename": STEPS["rename"], "drop": lambda on: on.drop_destination("d")}[gone]
    fetched: list[list[dict[str, Any]]] = []
    with database.connect() as fetcher, database.connect() as observer:
        thread = threading.Thread(target=lambda: fetched.append(fetch(fetcher)))
        with database.connection.transaction():
            step(database)
            thread.start()
            wait_until(
                lambda: waits_for(observer, fetcher, database.connection), what="the fetcher to wait for the step"
            )
        thread.join()
    assert fetched == [[]]
    if gone == "rename":
        rename(database, "renamed", "d")
    else:
        pull_destination(database)
    sent = database.enqueue("a", 2)
    assert drain(database) == sent


# -------------------------------------------------------------------------------------------------
# Transactions
# -------------------------------------------------------------------------------------------------


def test_events_of_the_fetching_transaction_come_later(database: Database) -> None:
    """Those before and after the fetch; also when younger transactions have finished by then."""
    pull_destination(database)
    with database.connect() as own:
        own.autocommit = False
        sent = enqueue(own, "own")
        others = database.enqueue("other")
        fetched = fetch(own)
        assert ids(fetched) == others
        own.execute("SELECT outbox.ack(%s)", (fetched[0]["token"],))
        sent += enqueue(own, "own")
        assert fetch(own) == []
        own.commit()
    assert drain(database) == sent


@pytest.mark.extension("prepares transactions, which servers with the SQL edition rarely allow")
def test_long_and_prepared_transactions_in_flight(database: Database) -> None:
    pull_destination(database)
    with database.connect() as long, database.connect() as prepared:
        long.autocommit = prepared.autocommit = False
        late = enqueue(long, "long")
        enqueue(prepared, "prepared")
        prepared.execute("PREPARE TRANSACTION 'p'")
        for _ in range(3):
            sent = database.enqueue("a", 10)
            assert drain(database) == sent
        long.commit()
        assert drain(database) == late
    database.execute("COMMIT PREPARED 'p'")
    assert len(drain(database)) == 1
    assert drain(database) == []


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_other_isolation_levels_are_refused(database: Database, isolation: str) -> None:
    pull_destination(database)
    with database.connect() as session:
        session.execute(f"SET default_transaction_isolation = '{isolation}'")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=isolation):
            fetch(session)


def test_asynchronous_commits_are_flushed_by_the_fetch(database: Database) -> None:
    pull_destination(database)
    with database.connect() as session:
        session.execute("SET synchronous_commit = off")
        enqueue(session, "a")
        written = database.value("SELECT pg_current_wal_insert_lsn()")
        assert len(fetch(session)) == 1
        assert database.value("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (written,))


# -------------------------------------------------------------------------------------------------
# Refusals
# -------------------------------------------------------------------------------------------------


def test_a_refused_event_holds_its_key_and_nothing_else(database: Database) -> None:
    pull_destination(database, lanes="1", **EAGER)
    a, b = database.enqueue("a", 4), database.enqueue("b", 2)
    events = fetch(database)
    assert ids(events) == a + b
    assert nack(database, events[1]) == a[2:]
    assert ack(database, events) == 3  # a1, b1, b2
    more = database.enqueue("a") + database.enqueue("b")
    arrived: list[str] = []
    wait_until(lambda: arrived.extend(drain(database)) or len(arrived) >= 5, what="the others")
    assert [i for i in arrived if i in a or i == more[0]] == [*a[1:], more[0]]
    assert sorted(arrived) == sorted([*a[1:], *more])
    assert database.execute("SELECT * FROM outbox.delivery") == []


def test_later_events_wait_in_order_behind_a_retry(database: Database) -> None:
    pull_destination(database, lanes="1", retry_base="1000min", retry_max="1000min")
    a = database.enqueue("a", 150)
    events = fetch(database)
    assert nack(database, events[0]) == a[1:100]
    assert ack(database, events) == 0
    a += database.enqueue("a", 10)
    b = database.enqueue("b", 2)
    assert drain(database) == b
    assert database.value("SELECT count(*) FROM outbox.delivery") == len(a)
    database.execute("UPDATE outbox.delivery SET next_retry_at = now() WHERE state = 'RETRY'")
    assert drain(database) == a
    assert database.execute("SELECT * FROM outbox.delivery") == []


def test_retries_are_counted(database: Database) -> None:
    pull_destination(database, max_attempts="3", **EAGER)
    (event_id,) = database.enqueue("a")
    for attempts in range(3):
        (event,) = fetch_something(database)
        assert event["attempts"] == attempts
        assert nack(database, event) == []
        assert ack(database, [event]) == 0
    states = database.execute("SELECT event_id, state, attempts, last_error FROM outbox.delivery")
    assert [(str(row[0]), *row[1:]) for row in states] == [(event_id, "DEAD", 3, "no")]
    assert fetch(database) == []


def test_a_dead_letter_releases_its_key(database: Database) -> None:
    pull_destination(database, on_dead_letter="release")
    a = database.enqueue("a", 3)
    events = fetch(database)
    assert nack(database, events[0], permanent=True) == []
    assert ack(database, events) == 2
    assert database.execute("SELECT state FROM outbox.delivery") == [("DEAD",)]
    assert ids(events) == a and drain(database) == []
    more = database.enqueue("a")
    assert drain(database) == more


def test_a_dead_letter_blocks_its_key(database: Database) -> None:
    pull_destination(database, lanes="1", on_dead_letter="block")
    a, b = database.enqueue("a", 3), database.enqueue("b")
    events = fetch(database)
    assert nack(database, events[0], permanent=True) == a[1:]
    assert ack(database, events) == 1
    database.enqueue("a")
    assert drain(database) == []
    assert ids(events) == a + b
    states = database.execute("SELECT state FROM outbox.delivery ORDER BY position")
    assert states == [("DEAD",), ("PENDING",), ("PENDING",), ("PENDING",)]


def test_earlier_events_of_a_refused_one_are_not_overtaken(database: Database) -> None:
    """The fetcher dies between its nack and its ack: events that it may have sent come first."""
    pull_destination(database, **EAGER)
    a = database.enqueue("a", 3)
    events = fetch(database, lease="3s")
    assert nack(database, events[1]) == [a[2]]
    assert fetch(database) == []
    arrived: list[str] = []
    wait_until(lambda: arrived.extend(drain(database)) or len(arrived) >= 3, what="all of them")
    assert arrived == a


def test_an_event_is_refused_once_per_lease(database: Database) -> None:
    pull_destination(database)
    database.enqueue("a", 2)
    events = fetch(database)
    nack(database, events[0])
    for event in events:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is not under lease"):
            nack(database, event)
    assert ack(database, events) == 0


def test_a_lease_of_retries_that_runs_out(database: Database) -> None:
    pull_destination(database, **EAGER)
    a = database.enqueue("a", 2)
    events = fetch(database)
    nack(database, events[0])
    ack(database, events)
    late = fetch_something(database, lease="1ms")
    assert ids(late) == a
    again = fetch_something(database)
    assert ids(again) == a
    with refused_lease():
        ack(database, late)
    assert ack(database, again) == 2
    assert database.execute("SELECT * FROM outbox.batch") == []


# -------------------------------------------------------------------------------------------------
# The log, restarts, dumps
# -------------------------------------------------------------------------------------------------


def test_segments_are_kept_until_they_are_settled(new_database: NewDatabase) -> None:
    database = pull_destination(new_database({"outbox.segment_size": "64kB"}))
    database.keep()
    sent = database.enqueue("a", 500)
    events = fetch(database)  # all is read, and nothing settled
    wait_until(
        lambda: database.value("SELECT number FROM outbox.ring WHERE current"), lambda n: n != 0,
        what="the ring to turn",
    )  # fmt: skip
    held = "SELECT held_by FROM outbox.segment WHERE number = 0"
    stays(lambda: database.value(held), ["d"], seconds=1.5, what="who holds the segment")
    ack(database, events)
    assert ids(events) + drain(database) == sent
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.event_0"), lambda n: n == 0,
        what="the segment to be emptied",
    )  # fmt: skip


def test_leases_survive_a_restart(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    database = pull_destination(create_database(cluster))
    sent = database.enqueue("a", 150)
    events = fetch(database)
    cluster.restart("immediate")
    assert fetch(database) == []
    assert ack(database, events) == 100
    assert drain(database) == sent[100:]


def test_without_preloading(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"shared_preload_libraries": ""}))
    pull_destination(database, **EAGER)
    sent = database.enqueue("a", 3)
    database.disconnect()
    events = fetch(database)
    assert nack(database, events[0]) == sent[1:]
    ack(database, events)
    assert ids(fetch_something(database)) == sent


def test_a_restored_dump_loses_nothing(database: Database) -> None:
    pull_destination(database, **EAGER)
    cluster = database.cluster
    for key in "abcdef":
        database.enqueue(key, 150)
    leased = fetch(database)
    nack(database, fetch(database)[5])
    settled = fetch(database)
    ack(database, settled)
    sent = {str(row[0]) for row in database.execute("SELECT event_id FROM outbox.event")}
    dump = subprocess.run(
        [str(cluster.installation.bin_directory / "pg_dump"), cluster.conninfo(database.name)],
        stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    copy = Database(cluster, f"{database.name}_copy")
    cluster.execute(f"CREATE DATABASE {copy.name}")
    try:
        subprocess.run(
            [str(cluster.installation.bin_directory / "psql"), "-q", "-v", "ON_ERROR_STOP=1",
             cluster.conninfo(copy.name)],
            input=dump, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        for table in ("batch", "delivery"):  # the leases have been restored as well, and end
            copy.execute(f"UPDATE outbox.{table} SET locked_until = '-infinity' WHERE locked_until IS NOT NULL")
        missing = sent - set(ids(settled))
        assert set(ids(leased)) <= missing
        wait_until(lambda: missing.difference_update(drain(copy)) or not missing, what=f"{missing}")
    finally:
        copy.disconnect()
        cluster.execute(f"DROP DATABASE {copy.name} WITH (FORCE)")


def test_other_lanes_are_used_when_the_old_are_empty(database: Database) -> None:
    pull_destination(database, lanes="4")
    a = database.enqueue("a", 150)
    events = fetch(database)
    database.change_destination("d", lanes="7")
    a += database.enqueue("a", 10, first=151)
    assert fetch(database) == []
    ack(database, events)
    assert ids(events) + drain(database) == a
    assert database.value("SELECT lanes FROM outbox.cursor") == 7


def test_what_is_open_goes_to_the_relay_of_another_url(database: Database) -> None:
    pull_destination(database)
    database.enqueue("a", 150)
    database.execute("SELECT outbox.enqueue('item', 'b', 'changed', '{}', ordering_key => '')")
    assert len(fetch(database)) == 100
    database.execute("BEGIN")  # before a relay takes them
    database.change_destination("d", url="null:")
    assert database.execute("SELECT * FROM outbox.batch") == []
    waiting = "SELECT count(*), count(next_retry_at) FROM outbox.delivery WHERE state = 'PENDING'"
    assert database.execute(waiting) == [(151, 2)]  # one event per key is due
    database.execute("ROLLBACK")


# -------------------------------------------------------------------------------------------------
# Several fetchers
# -------------------------------------------------------------------------------------------------


class Fetchers:
    """Processes that fetch, and the file with the events that they have sent."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.path = directory / "sent"
        self.path.touch()
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, count: int, seed: int = 0) -> None:
        program = str(Path(__file__).with_name("fetcher.py"))
        conninfo = self.database.cluster.conninfo(self.database.name)
        for _ in range(count):
            number = len(self.processes)
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, program, conninfo, "d", str(self.path), str(seed + number)],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip

    def sent(self) -> list[str]:
        return self.path.read_text().split()

    def wait_for_more(self, more: int) -> None:
        goal = len(set(self.sent())) + more
        wait_until(lambda: len(set(self.sent())), lambda n: n >= goal, timeout=180, what=f"{more} more events")

    def kill(self) -> None:
        process = self.processes.pop(0)
        process.kill()
        process.communicate()

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            output, _ = process.communicate(timeout=180)
            assert process.returncode == 0, f"a fetcher failed:\n{output}"
        self.processes.clear()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[list[Fetchers]]:
    made: list[Fetchers] = []
    yield made
    for fetchers in made:
        fetchers.end()


@pytest.mark.long
def test_ledger_with_fetchers_that_are_killed_refuse_and_stall(
    make_cluster: MakeCluster, tools: list[Fetchers], tmp_path: Path
) -> None:
    settings = {"outbox.segment_size": "256kB", "outbox.retry_base": "50ms", "outbox.retry_max": "200ms"}
    cluster = make_cluster(settings)
    database = create_database(cluster)
    database.execute(SETUP.format(aggregates=AGGREGATES))
    pull_destination(database, max_attempts="1000")
    fetchers = Fetchers(database, tmp_path)
    tools.append(fetchers)
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    with writers(database):
        fetchers.start(4, seed)
        for _ in range(3):
            fetchers.wait_for_more(300)
            fetchers.kill()
            fetchers.start(1, seed)
        cluster.restart("immediate")
        fetchers.wait_for_more(500)
    ledger = read_ledger(database.connection)
    committed = {entry.event_id for entry in ledger}
    with suppress(AssertionError):  # the checker gives a better message
        wait_until(
            lambda: len(committed.difference(fetchers.sent())), lambda missing: missing == 0,
            timeout=180, what="all events of the ledger to be sent",
        )  # fmt: skip
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.batch") + database.value("SELECT count(*) FROM outbox.delivery"),
        lambda left: left == 0, timeout=180, what="everything to be settled",
    )  # fmt: skip
    fetchers.stop()
    verdict = check(ledger, fetchers.sent())
    print(verdict)
    verdict.hold(restarts=len(ledger), repeats=True)  # a lease that runs out repeats; see fetcher.py


def test_the_relay_of_the_documentation(database: Database, tmp_path: Path) -> None:
    """docs/destinations/pull.md: run as it stands, with a broker that refuses one event once."""
    (text,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/destinations/pull.md").read_text(), re.DOTALL)
    program = tmp_path / "relay.py"
    refusal = (
        "refused = []\nsent = publish\ndef publish(event):\n"
        '    if event["version"] == 2 and not refused:\n'
        '        refused.append(event)\n        raise Refused("not now")\n    sent(event)\n\n\n'
    )
    assert 'if __name__ == "__main__":' in text
    program.write_text(text.replace('if __name__ == "__main__":', refusal + 'if __name__ == "__main__":'))
    pull_destination(database, **EAGER)
    sent = database.enqueue("a", 5)
    output = tmp_path / "output"
    with output.open("w") as out:
        relay = subprocess.Popen(
            [sys.executable, str(program), database.cluster.conninfo(database.name), "d"],
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: len(output.read_text().splitlines()) >= 5, what="five events")
            assert [line.split()[0] for line in output.read_text().splitlines()] == sent
            wait_until(
                lambda: database.value("SELECT count(*) FROM outbox.batch"), lambda n: n == 0,
                what="them to be settled",
            )  # fmt: skip
        finally:
            relay.kill()
            relay.wait()
