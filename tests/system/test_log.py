"""Delivery from the log to a destination: delivered events, their times and order, and open transactions.

Polls are an hour apart on these servers (cluster.py), so each event arrives after a wake-up.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster import MakeCluster
from database import Database, NewDatabase, create_database, enqueue
from processes import process_exists, wait_until_quiet, wake_ups
from receiver import Gate, Receiver, everything, subject
from waiting import SECOND, Stopwatch, stays, wait_until

# The cursor is saved only when the relay ends.
SAVED_AT_THE_END = {"outbox.cursor_flush_interval": "1h"}

# Only the sessions of the test, and the relay when it has settled its first event, write to the
# write-ahead log.
NOBODY_ELSE_WRITES = {
    **SAVED_AT_THE_END, "wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off",
    "checkpoint_timeout": "1h",
}  # fmt: skip


@pytest.fixture
def db(database: Database, receiver: Receiver, http: None) -> Iterator[Database]:
    """A database with the receiver as its destination."""
    database.add_destination("d", receiver.url())
    database.wait_for_worker("relay", "d")
    yield database


def arrive(receiver: Receiver, ids: list[str], *, timeout: float = 180) -> None:
    """Waits until exactly these events have arrived, once each and in this order.

    The order of events of different keys is only certain when they were waited for one by one.
    """
    wait_until(
        lambda: len(receiver.requests) and len(receiver.events()), lambda seen: seen >= len(ids),
        timeout=timeout, what=f"{len(ids)} events to arrive",
    )  # fmt: skip
    assert receiver.ids() == ids


# -------------------------------------------------------------------------------------------------
# Transactions
# -------------------------------------------------------------------------------------------------


def test_a_transaction_in_progress_delays_its_own_events_only(db: Database, receiver: Receiver) -> None:
    with db.connect() as slow, db.connect() as slower:
        slow.autocommit = slower.autocommit = False
        early = enqueue(slow, "slow", 3)
        earlier = enqueue(slower, "slower", 2)
        arrived: list[str] = []
        for n in range(1, 6):
            arrived += db.enqueue("quick", first=n)
            arrive(receiver, arrived)
        slow.commit()
        arrive(receiver, arrived := arrived + early)
        arrive(receiver, arrived := arrived + db.enqueue("quick", first=6))
        slower.commit()
        arrive(receiver, arrived + earlier)


def test_events_of_one_transaction_arrive_in_order_of_their_key(db: Database, receiver: Receiver) -> None:
    with db.connect() as connection, connection.transaction():
        for n in range(1, 101):
            for key in "abc":
                enqueue(connection, key, first=n)
    db.wait_published(300)
    for key in "abc":
        assert receiver.versions(key) == list(range(1, 101))


def test_what_a_savepoint_took_back_is_not_delivered(db: Database, receiver: Receiver) -> None:
    with db.connect() as connection, connection.transaction():
        ids = enqueue(connection, first=1)
        with connection.transaction(force_rollback=True):
            enqueue(connection, first=2)
            with connection.transaction():
                enqueue(connection, first=2)
        with connection.transaction():
            ids += enqueue(connection, first=2)
            with connection.transaction(force_rollback=True):
                enqueue(connection, first=3)
        connection.execute(
            "DO $$ BEGIN PERFORM outbox.enqueue('item', 'a', 'changed', '{}'); "
            "RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$"
        )
        ids += enqueue(connection, first=3)
    arrive(receiver, ids)
    assert receiver.versions("a") == [1, 2, 3]


def test_what_was_rolled_back_is_not_delivered(db: Database, receiver: Receiver) -> None:
    with db.connect() as connection, connection.transaction(force_rollback=True):
        enqueue(connection, count=10)
    arrive(receiver, db.enqueue("b"))


@pytest.mark.timing
@pytest.mark.extension("prepares transactions, which servers with the SQL edition rarely allow")
def test_prepared_transactions_are_delivered_when_they_commit(db: Database, receiver: Receiver) -> None:
    with db.connect() as connection:
        connection.autocommit = False
        ids = {}
        for name in ("first", "second", "never"):
            ids[name] = enqueue(connection, name, 2)
            connection.execute(f"PREPARE TRANSACTION '{db.name} {name}'")
            connection.commit()
    other = db.enqueue("other")
    arrive(receiver, other)
    for name in ("second", "first"):  # not in the order they were prepared
        watch = Stopwatch()
        db.execute(f"COMMIT PREPARED '{db.name} {name}'")
        other += ids[name]
        arrive(receiver, other)
        assert watch.seconds < SECOND
    db.execute(f"ROLLBACK PREPARED '{db.name} never'")
    arrive(receiver, other + db.enqueue("last"))


@pytest.mark.extension("prepares transactions, which servers with the SQL edition rarely allow")
def test_prepared_transactions_outlive_a_restart(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    cluster = make_cluster(SAVED_AT_THE_END)
    db = create_database(cluster)
    db.add_destination("d", receiver.url())
    with db.connect() as connection:
        connection.autocommit = False
        prepared = enqueue(connection, "prepared", 3)
        connection.execute("PREPARE TRANSACTION 'p'")
        connection.commit()
    arrived = db.enqueue("before")
    arrive(receiver, arrived)
    db.wait_settled()
    cluster.restart()
    arrived += db.enqueue("after")
    arrive(receiver, arrived)
    db.execute("COMMIT PREPARED 'p'")
    arrive(receiver, arrived + prepared)


@pytest.mark.long
@pytest.mark.slow
def test_two_hundred_thousand_events_of_one_transaction_arrive_in_order(
    database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), format="batched", batch_size="1000")
    database.wait_for_worker("relay", "d")
    count = 200_000
    ids = database.enqueue("a", count)
    arrive(receiver, ids, timeout=180)
    assert receiver.versions("a") == list(range(1, count + 1))


def test_an_asynchronous_commit_is_on_disk_before_it_is_delivered(
    make_cluster: MakeCluster, receiver: Receiver, http: None
) -> None:
    cluster = make_cluster({"wal_writer_delay": "10s", "synchronous_commit": "off", **NOBODY_ELSE_WRITES})
    db = create_database(cluster)
    db.execute("VACUUM")  # reading a catalog may prune it, which would write WAL behind the commit
    db.add_destination("d", receiver.url())
    arrive(receiver, db.enqueue("before"))
    db.wait_settled()
    gate = Gate()
    receiver.on(everything, gate.held())
    try:
        for n in range(1, 6):
            db.enqueue(first=n)
            committed = db.value("SELECT pg_current_wal_insert_lsn()")
            wait_until(lambda: len(gate.holding), what="the event to arrive")
            flushed = db.value("SELECT %s <= pg_current_wal_flush_lsn()", (committed,))
            assert flushed, f"event {n} has arrived, but its commit at {committed} is not on disk"
            gate.open()
            db.wait_settled()
            gate = Gate()
            receiver.forget_rules()
            receiver.on(everything, gate.held())
    finally:
        gate.open()


def fill_wal_page(database: Database) -> None:
    """Makes the last record of the write-ahead log end where a page ends."""
    page, header = 8192, 24

    def place() -> int:
        return int(database.value("SELECT pg_current_wal_insert_lsn() - '0/0'")) % page

    def write(size: int) -> None:
        database.execute("SELECT pg_logical_emit_message(false, '', repeat('x', %s))", (size,))

    for _ in range(20):
        begin = place()
        write(1000)
        overhead = place() - begin - 1000
        if overhead > 0 and place() < page - 1000:
            write(page - place() - overhead)
        if place() == header:  # the next record goes behind the header of the next page
            return
    raise AssertionError(f"the last record ends at {place()} of its page")


def test_the_end_of_a_page_of_the_write_ahead_log_is_no_obstacle(
    make_cluster: MakeCluster, receiver: Receiver, http: None
) -> None:
    """The position behind the last record is then not a valid one to flush to."""
    cluster = make_cluster(
        # While one event is under way the relay reads no others.
        {**NOBODY_ELSE_WRITES, "outbox.max_in_flight": "1"}
    )
    db = create_database(cluster)
    gate = Gate()
    receiver.on(subject("held"), gate.held(), times=1)
    db.add_destination("d", receiver.url())
    arrived = db.enqueue("first")
    arrive(receiver, arrived)
    arrived += db.enqueue("held")
    wait_until(lambda: len(gate.holding), what="the request to hang")
    relay = db.wait_for_worker("relay")
    for n in range(1, 201):  # more commits than are looked up one by one
        arrived += db.enqueue("a", first=n)
    fill_wal_page(db)
    gate.open()
    arrive(receiver, arrived)
    assert db.pid("relay") == relay


# -------------------------------------------------------------------------------------------------
# Begin of reading, and selection of topics
# -------------------------------------------------------------------------------------------------


def fill(database: Database, transactions: int, per_transaction: int) -> None:
    """A backlog of the key `a`, with gaps and in more than one order of commit."""
    with database.connect() as other:
        other.autocommit = False
        for n in range(transactions):
            database.enqueue("a", per_transaction, first=n * per_transaction + 1)
            enqueue(other, "b", first=n + 1)
            if n % 3 == 2:
                other.commit()
            with database.connection.transaction(force_rollback=True):
                database.enqueue("never")
        other.commit()


def test_a_backlog_is_delivered_when_a_destination_comes(database: Database, receiver: Receiver, http: None) -> None:
    fill(database, 100, 20)
    database.add_destination("d", receiver.url())
    database.wait_published(2100)
    assert receiver.versions("a") == list(range(1, 2001))
    assert receiver.versions("b") == list(range(1, 101))
    assert len(receiver.events()) == 2100


def test_a_new_destination_can_start_at_the_end(database: Database, receiver: Receiver, http: None) -> None:
    database.enqueue("old", 10)
    with database.connect() as connection:
        connection.autocommit = False
        in_progress = enqueue(connection, "in progress", 2)
        database.add_destination("d", receiver.url(), start="end")
        database.wait_for_worker("relay", "d")
        new = database.enqueue("new", 3)
        arrive(receiver, new)
        connection.commit()
        arrive(receiver, new + in_progress)


def test_a_destination_that_starts_at_the_end_gets_what_commits_after_it(
    database: Database, receiver: Receiver, http: None
) -> None:
    """Its end is that of the moment it was created, not of the moment its relay has started."""
    database.enqueue("old", 10)
    database.add_destination("d", receiver.url(), start="end")
    arrive(receiver, database.enqueue("new", 3))


def test_a_destination_gets_the_topics_it_asked_for(database: Database, receiver: Receiver, http: None) -> None:
    database.add_destination("d", receiver.url(), topics="video.*, user.created")
    wanted = []
    for n in range(1, 21):
        for topic in ("video.changed", "user.created", "user.deleted", "order.paid", "video"):
            ids = database.enqueue("a", first=n, topic=topic)
            if topic in ("video.changed", "user.created"):
                wanted += ids
    arrive(receiver, wanted)
    database.enqueue("a", 100, topic="order.paid")
    arrive(receiver, wanted + database.enqueue("a", topic="video.changed"))
    database.enqueue("a", 100, topic="order.paid")
    database.wait_settled()
    assert database.status()["pending_at_most"] == 0


def test_destinations_do_not_wait_for_each_other(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    stalled = Receiver()
    try:
        stalled.on(everything, gate.held())
        db.add_destination("stalled", stalled.url())
        ids = db.enqueue(count=100)
        arrive(receiver, ids)
        assert len(stalled.requests) <= 1
        gate.open()
        arrive(stalled, ids)
    finally:
        stalled.close()


# -------------------------------------------------------------------------------------------------
# Continuing after a restart
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker
def test_a_clean_restart_repeats_nothing(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    """A relay that is told to end saves its cursor."""
    cluster = make_cluster(SAVED_AT_THE_END)
    db = create_database(cluster)
    db.add_destination("d", receiver.url())
    arrived: list[str] = []
    for _ in range(3):
        arrived += db.enqueue(count=100, first=len(arrived) + 1)
        db.wait_settled()
        cluster.restart()
    arrive(receiver, arrived + db.enqueue("last"))


@pytest.mark.worker
def test_a_relay_that_ends_within_a_window_goes_on_there(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    """A large transaction is not sent again from its beginning."""
    db = new_database(SAVED_AT_THE_END)
    db.add_destination("d", receiver.url())
    gate = Gate()
    receiver.on(lambda request: request.headers["ce-aggregateversion"] == "700", gate.held())
    db.enqueue(count=1000)
    wait_until(lambda: len(gate.holding), what="event 700 to arrive")
    relay = db.wait_for_worker("relay")
    db.execute("SELECT pg_terminate_backend(%s)", (relay,))
    gate.open()
    db.wait_for_worker("relay", other_than=relay)
    db.wait_settled()
    assert receiver.versions("a") == [*range(1, 701), *range(700, 1001)]


@pytest.mark.worker
@pytest.mark.extension("outbox-relay asks from a session")
def test_a_relay_that_is_told_to_end_while_it_reads_saves_its_cursor(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    """Its transaction waits for a lock here, so that the signal certainly comes within it."""
    polls = {"outbox.poll_min": "20ms", "outbox.poll_max": "20ms"}
    db = new_database({**SAVED_AT_THE_END, **polls})
    db.add_destination("d", receiver.url())
    arrived = db.enqueue("first") + db.enqueue(count=10)
    db.wait_settled()
    relay = db.wait_for_worker("relay")
    with db.connect() as session, session.transaction():
        for segment in range(4):
            session.execute(f"LOCK TABLE outbox.event_{segment}")
        wait_until(
            lambda: db.value("SELECT cardinality(pg_blocking_pids(%s))", (relay,)),
            what="the relay to wait for a segment",
        )  # fmt: skip
        db.execute("SELECT pg_terminate_backend(%s)", (relay,))
        wait_until(
            lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (relay,)),
            lambda count: count == 0, what="the relay to end",
        )  # fmt: skip
    db.wait_for_worker("relay", other_than=relay)
    arrive(receiver, arrived + db.enqueue("last"))


@pytest.mark.worker
@pytest.mark.extension("outbox-relay is a process of another user")
def test_a_relay_that_is_told_to_end_again_and_again_saves_its_cursor(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    db = new_database(SAVED_AT_THE_END)
    db.add_destination("d", receiver.url())
    arrived: list[str] = []
    for _ in range(5):
        arrived += db.enqueue(count=20, first=len(arrived) + 1)
        db.wait_settled()
        relay = db.wait_for_worker("relay")
        while process_exists(relay):
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s", (relay,))
        db.wait_for_worker("relay", other_than=relay)
    arrive(receiver, arrived + db.enqueue("last"))


@pytest.mark.timing
def test_a_saved_cursor_is_at_most_an_interval_old(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    db = new_database({"outbox.cursor_flush_interval": "50ms"})
    db.add_destination("d", receiver.url())
    db.wait_for_worker("relay")
    for n in range(1, 4):
        db.enqueue(first=n)
        last = db.last_position()
        wait_until(
            lambda: db.value("SELECT position FROM outbox.cursor"), lambda seen: seen == last,
            timeout=SECOND, what=f"the cursor to be saved at {last}",
        )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Wake-ups and polls
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_every_commit_wakes_the_relay_at_once(db: Database, receiver: Receiver) -> None:
    arrive(receiver, db.enqueue("warm"))
    delays = []
    for n in range(1, 101):
        watch = Stopwatch()
        db.enqueue(first=n)
        wait_until(lambda: len(receiver.requests), lambda seen: seen > n, what=f"event {n}")
        delays.append(watch.seconds)
        if n % 10 == 0:  # from a relay that has just been busy, and from one that sleeps
            db.wait_settled()
    assert statistics.median(delays) < 0.05 * SECOND, f"median {statistics.median(delays):.3f} s"
    assert max(delays) < SECOND, f"slowest {max(delays):.3f} s"


@pytest.mark.timing
def test_commits_wake_the_relay_from_many_sessions_at_once(db: Database, receiver: Receiver) -> None:
    """A wake-up must not be lost when the relay is about to fall asleep."""
    connections = [db.connect() for _ in range(8)]
    try:
        for round_ in range(1, 151):
            for connection in connections:  # sent to all, before any answer is read
                connection.pgconn.send_query(b"SELECT outbox.enqueue('item', 'a', 'changed', '{}', ordering_key => '')")
            for connection in connections:
                while connection.pgconn.get_result() is not None:
                    pass
            wait_until(
                lambda: len(receiver.requests), lambda seen: seen == round_ * len(connections),
                timeout=5 * SECOND, what=f"the events of round {round_}",
            )  # fmt: skip
    finally:
        for connection in connections:
            connection.close()


def insert_unnoticed(database: Database, key: str) -> None:
    """Enqueues an event in a session that wakes no worker."""
    database.execute(
        "INSERT INTO outbox.event_0 (position, xid, occurred_at, event_id, schema_version, topic, "
        "aggregate_type, aggregate_id, event_type, ordering_key, content_type, payload) "
        "VALUES (nextval('outbox.event_position'), pg_current_xact_id(), now(), gen_random_uuid(), "
        "1, 't', 'item', %s, 'changed', '', 'application/json', '{}')",
        (key,),
    )


def test_the_poll_finds_what_nobody_announced(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    db = new_database({"outbox.poll_min": "20ms", "outbox.poll_max": "200ms"})
    db.add_destination("d", receiver.url())
    arrive(receiver, db.enqueue("announced"))
    for n in range(5):
        insert_unnoticed(db, f"unnoticed {n}")
        wait_until(lambda: receiver.subjects(), lambda seen: seen[-1] == f"unnoticed {n}", what="the poll")
    assert len(receiver.requests) == 6


def test_what_nobody_announced_goes_with_the_next_that_is(db: Database, receiver: Receiver) -> None:
    arrive(receiver, db.enqueue("first"))
    insert_unnoticed(db, "unnoticed")
    db.enqueue("last")
    wait_until(receiver.subjects, lambda seen: len(seen) == 3, what="both events")
    assert sorted(receiver.subjects()) == ["first", "last", "unnoticed"]


@pytest.mark.worker
def test_no_transaction_is_open_while_the_destination_is_waited_for(db: Database, receiver: Receiver) -> None:
    arrive(receiver, db.enqueue("before"))
    db.wait_settled()  # so that the cursor is saved, and will not be while we look
    gate = Gate()
    receiver.on(subject("held"), gate.held())
    try:
        db.enqueue("held")
        wait_until(lambda: len(gate.holding), what="the request to hang")
        relay = db.pid("relay")

        def activity() -> tuple:
            return db.execute(
                "SELECT backend_xid, backend_xmin, xact_start, state, wait_event FROM pg_stat_activity WHERE pid = %s",
                (relay,),
            )[0]

        wait_until(
            activity, lambda seen: seen[:4] == (None, None, None, "idle"),
            what="no open transaction",
        )  # fmt: skip
        locks = db.execute("SELECT relation::regclass, mode FROM pg_locks WHERE pid = %s", (relay,))
        assert locks == []
        db.execute("VACUUM outbox.event_0")
        with db.connect() as connection:
            before = connection.execute("SELECT pg_current_xact_id()::xid").fetchone()
            oldest = "SELECT min(backend_xmin::text::bigint) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            # The keeper has a snapshot for a moment when the relay comes on.
            wait_until(
                lambda: connection.execute(oldest).fetchone(), lambda horizon: horizon == (None,),
                what=f"nobody to hold back cleaning up before {before}",
            )  # fmt: skip
    finally:
        gate.open()
    db.wait_settled()


@pytest.mark.worker
def test_an_idle_system_is_idle(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    cluster = make_cluster()
    db = create_database(cluster)
    db.add_destination("d", receiver.url())
    arrive(receiver, db.enqueue("busy", 10))
    db.wait_settled()
    # One more may look into the other database.
    pids = wait_until(
        lambda: [pid for _, _, pid in cluster.workers()], lambda seen: len(seen) == 3,
        what="launcher, keeper and relay",
    )  # fmt: skip
    for pid in pids:
        wait_until_quiet(pid)

    def activity() -> tuple[list[int], int]:
        transactions = db.value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'db'")
        return [wake_ups(pid) for pid in pids], transactions

    with cluster.connect() as elsewhere:
        db.disconnect()
        db._connection = elsewhere  # so that the query is not a transaction in that database
        clients = "SELECT pid FROM pg_stat_activity WHERE datname = 'db' AND backend_type = 'client backend'"
        wait_until(lambda: not db.execute(clients), what="the last session to end, and count itself")
        stays(activity, activity(), seconds=3, what="wake-ups and transactions")


def test_a_session_with_an_old_snapshot_delays_nothing(db: Database, receiver: Receiver) -> None:
    with db.connect() as old, old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM outbox.event")
        arrived: list[str] = []
        for n in range(1, 51):
            arrived += db.enqueue(first=n)
            arrive(receiver, arrived)
        db.wait_settled()
        db.wait_for_state("idle")


def test_a_crash_repeats_no_more_events_than_documented(make_cluster: MakeCluster) -> None:
    """Saves of the cursor are asynchronous, but every 100,000 events one is on disk."""
    cluster = make_cluster({"wal_writer_delay": "10s", "outbox.cursor_flush_interval": "50ms"})
    database = create_database(cluster)
    database.add_destination("d", "null:")
    database.pause()
    with database.connection.transaction():
        for _ in range(60):
            database.execute(
                "SELECT count(outbox.enqueue('item', n::text, 'changed', '{}'::jsonb)) "
                "FROM generate_series(1, 10000) AS n"
            )
    database.execute("SELECT outbox.resume('d')")
    delivered = wait_until(lambda: database.published("d"), lambda n: n >= 350_000, what="most of them delivered")
    cluster.kill_postmaster()
    cluster.start("-c", "shared_preload_libraries=")  # no relay that goes on
    saved = database.value("SELECT position FROM outbox.cursor")
    assert delivered - saved <= 110_000, f"{delivered} delivered, {saved} saved"


# -------------------------------------------------------------------------------------------------
# Invalidation
# -------------------------------------------------------------------------------------------------

ALTER_THE_RING = """
DO $$
BEGIN
    WHILE NOT EXISTS (SELECT FROM done) LOOP
        LOCK TABLE outbox.ring IN ACCESS EXCLUSIVE MODE;
        ALTER TABLE outbox.ring RESET (fillfactor);
        COMMIT;
    END LOOP;
END $$
"""


def test_enqueues_go_on_while_the_log_is_altered_all_the_time(database: Database) -> None:
    """Statements that alter it queue, so that a session always reads the ring between two of them."""
    database.execute("CREATE TABLE done ()")

    def alter() -> None:
        with database.connect() as connection:
            connection.execute(ALTER_THE_RING)

    with ThreadPoolExecutor(4) as executor:
        altering = [executor.submit(alter) for _ in range(4)]
        try:
            wait_until(
                lambda: database.value(
                    "SELECT count(*) FROM pg_locks WHERE relation = 'outbox.ring'::regclass AND NOT granted"
                ),
                lambda waiting: waiting >= 2, what="statements that alter the ring to queue",
            )  # fmt: skip
            with database.connect() as connection:
                connection.execute("SET statement_timeout = '20s'")
                assert len(enqueue(connection, "a", 10)) == 10
            assert not any(future.done() for future in altering)
        finally:
            database.execute("INSERT INTO done DEFAULT VALUES")
        for future in altering:
            future.result()
