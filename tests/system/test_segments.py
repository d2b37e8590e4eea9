"""The ring of segments: it turns, settled segments are emptied, and no enqueue waits for that."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import Cluster, MakeCluster
from database import Database, NewDatabase, create_database
from receiver import Gate, Receiver, everything
from waiting import stays, wait_until

SMALL = {"outbox.segment_size": "64kB"}
ENOUGH = 500  # number of events that makes a segment large


def count(database: Database) -> int:
    return database.value("SELECT count(*) FROM outbox.event")


def current(database: Database) -> int:
    return database.value("SELECT number FROM outbox.ring WHERE current")


def held_by(database: Database) -> dict[int, list[str]]:
    """Returns segments that are not current and not empty."""
    rows = database.execute(
        "SELECT number, held_by FROM outbox.segment WHERE NOT current "
        "AND number IN (SELECT replace(tableoid::regclass::text, 'outbox.event_', '')::int FROM outbox.event)"
    )
    return dict(rows)


def enqueue(database: Database, first: int = 1) -> list[str]:
    """Enqueues enough events to make a segment large, in one call: all go to the same segment."""
    ids = database.value(
        "SELECT outbox.enqueue(ARRAY(SELECT ROW('item', 'a', 'changed', '{}', n, NULL, NULL, NULL, NULL, "
        "NULL, NULL, NULL, NULL, NULL)::outbox.new_event FROM generate_series(%s::bigint, %s::bigint) AS n))",
        (first, first + ENOUGH - 1),
    )
    return [str(event_id) for event_id in ids]


def wait_for_turn(database: Database, before: int) -> None:
    wait_until(lambda: current(database), lambda now: now != before, what="the ring to turn")


def wait_empty(database: Database) -> None:
    wait_until(lambda: count(database), lambda n: n == 0, what="all segments to be emptied")


@pytest.mark.extension("a statement there can write to more than one segment")
def test_settled_segments_are_emptied_all_around_the_ring(new_database: NewDatabase) -> None:
    database = new_database(SMALL)
    database.add_destination("d", "null:")
    used = []
    for round in range(6):
        used.append(current(database))
        enqueue(database, 1 + round * ENOUGH)
        wait_for_turn(database, used[-1])
        wait_empty(database)
    assert used == [0, 1, 2, 3, 0, 1]
    assert database.published() == 6 * ENOUGH


@pytest.mark.extension("a statement there can write to more than one segment")
def test_a_destination_that_is_stuck_holds_what_it_has_not_got(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    database = new_database(SMALL)
    gate = Gate()
    receiver.on(everything, gate.held())
    database.add_destination("stuck", receiver.url())
    database.add_destination("fine", "null:")
    ids = []
    for number in range(3):
        ids += enqueue(database, 1 + number * ENOUGH)
        wait_for_turn(database, number)
    # No segment is free any more: the last one grows.
    for number in range(3, 6):
        ids += enqueue(database, 1 + number * ENOUGH)
    database.wait_settled("fine")
    wait_until(
        lambda: held_by(database), lambda held: held == {n: ["stuck"] for n in range(3)},
        what="the stuck destination to be named",
    )  # fmt: skip
    assert current(database) == 3
    assert count(database) == len(ids)

    gate.open()
    wait_empty(database)
    assert receiver.ids() == ids


@pytest.mark.long
@pytest.mark.extension("a statement there can write to more than one segment")
def test_no_enqueue_waits_for_transactions_and_dumps_that_keep_a_segment(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    database = new_database(SMALL)
    database.add_destination("d", receiver.url())
    database.execute("SET lock_timeout = '1min'")
    with database.connect() as dump, database.connect() as writer:
        dump.autocommit = writer.autocommit = False
        dump.execute("LOCK TABLE outbox.event IN ACCESS SHARE MODE")  # as pg_dump does
        late = writer.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}')").fetchone()
        ids = []
        for number in range(3):
            ids += enqueue(database, 1 + number * ENOUGH)
            wait_for_turn(database, number)
        database.wait_published(len(ids))
        wait_until(
            lambda: held_by(database), lambda held: held == {0: [], 1: [], 2: []},
            what="segments that nobody holds",
        )  # fmt: skip
        stays(lambda: count(database), len(ids), seconds=1, what="events in the log")
        dump.rollback()
        wait_until(lambda: count(database), lambda n: n == ENOUGH, what="what the writer has not touched to be emptied")
        writer.commit()
    assert late is not None
    wait_until(lambda: str(late[0]) in receiver.ids(), what="the late event")
    wait_empty(database)
    assert receiver.ids() == [*ids, str(late[0])]


def test_segments_are_kept_for_the_retention_time(new_database: NewDatabase) -> None:
    database = new_database({**SMALL, "outbox.retention": "1h"})
    database.add_destination("d", "null:")
    enqueue(database)
    wait_for_turn(database, 0)
    wait_until(lambda: held_by(database), lambda held: held == {0: []}, what="it to be settled")
    stays(lambda: count(database), ENOUGH, seconds=1, what="events in the log")
    database.configure({"outbox.retention": "0"})
    wait_empty(database)


def test_an_old_segment_is_left_however_small(new_database: NewDatabase) -> None:
    database = new_database({"outbox.segment_age": "1s"})
    database.add_destination("d", "null:")
    database.enqueue("a")
    wait_for_turn(database, 0)
    wait_empty(database)


def test_without_a_destination_everything_is_kept(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({**SMALL, "outbox.segment_age": "1s"})
    database = create_database(cluster)
    enqueue(database)
    for number in range(4):
        assert database.value("SELECT outbox_internal.segment_is_free(%s)", (number,)) is False
    restart(cluster)  # the keeper looks at the log when it starts
    stays(lambda: count(database), ENOUGH, seconds=1, what="events in the log")
    database.add_destination("d", "null:")
    database.wait_published(ENOUGH)
    wait_empty(database)


def restart(cluster: Cluster) -> None:
    cluster.stop("fast")
    cluster.start()


@pytest.mark.extension("there outbox.health() says it")
def test_a_log_that_outgrows_its_limit_is_in_the_server_log_once(new_database: NewDatabase) -> None:
    database = new_database({**SMALL, "outbox.max_log_size": "1MB", "outbox.retention": "1h"})
    began = database.cluster.log_size()
    database.add_destination("d", "null:")

    def warnings() -> int:
        return database.cluster.log_since(began).count("the log of events has grown to")

    for number in range(20):
        enqueue(database, 1 + number * ENOUGH)
        database.wait_settled()
    wait_until(warnings, what="a warning")
    stays(warnings, 1, seconds=1, what="warnings")


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_sessions_hear_that_the_ring_has_turned(new_database: NewDatabase, isolation: str) -> None:
    database = new_database(SMALL)
    database.add_destination("d", "null:")
    with database.connect() as session:
        session.autocommit = False
        session.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        session.commit()
        assert segment_of_new_event(session) == "outbox.event_0"
        session.rollback()
        session.execute("SELECT 1")  # its snapshot is older than the turn
        enqueue(database)
        wait_for_turn(database, 0)
        # It learns of the turn when it takes a lock; the first event may go to the old segment.
        session.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}')")
        assert segment_of_new_event(session) == "outbox.event_1"
        session.rollback()


def segment_of_new_event(session: Any) -> str:
    session.execute("SELECT outbox.enqueue('item', 'x', 'changed', '{}')")
    return session.execute("SELECT tableoid::regclass::text FROM outbox.event WHERE aggregate_id = 'x'").fetchone()[0]


@pytest.mark.extension("the size is looked at once a second there, when this log is many times too large")
def test_a_log_that_is_too_large_can_detach_the_destination_that_holds_it(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    database = new_database({**SMALL, "outbox.max_log_size": "1MB", "outbox.on_full_log": "detach"})
    began = database.cluster.log_size()
    receiver.refuse_connections()
    database.add_destination("stuck", receiver.url())
    database.add_destination("fine", "null:")

    def fill() -> str | None:
        enqueue(database)
        return database.value("SELECT destination FROM outbox.operation WHERE action = 'detach'")

    assert wait_until(fill, what="a destination to be detached") == "stuck"
    wait_until(
        lambda: database.value("SELECT sum(size) FROM outbox.segment"),
        lambda size: size < 512 * 1024, what="what nobody holds to be removed",
    )  # fmt: skip
    assert ("failing", 'destination "stuck"', "detached") in [found[:3] for found in database.health()]
    assert 'destination "stuck" is detached' in database.cluster.log_since(began)
    receiver.listen()
    assert receiver.requests == []
    database.execute("SELECT outbox.resume('stuck')")
    (last,) = database.enqueue("new")
    wait_until(lambda: last in receiver.ids(), what="what comes after the resume")
    database.wait_settled("stuck")
    detached = database.execute("SELECT destination FROM outbox.operation WHERE action = 'detach'")
    assert detached == [("stuck",)], "one that was on its way was detached as well"


@pytest.mark.extension("there is no keeper")
def test_progress_is_noticed_while_the_keeper_waits_for_a_lock(new_database: NewDatabase) -> None:
    database = new_database(SMALL)
    database.add_destination("d", "null:")
    database.enqueue("a")
    database.wait_settled()
    keeper = database.wait_for_worker("keeper")
    with database.connect() as session, session.transaction():
        session.execute("LOCK TABLE outbox.ring IN ACCESS EXCLUSIVE MODE")
        database.enqueue("a", first=2)  # makes the keeper look
        wait_until(
            lambda: database.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", (keeper,)),
            what="the keeper to wait for the lock",
        )  # fmt: skip
        database.enqueue("a", first=3)
        database.wait_settled()
        wait_until(lambda: database.unsettled() == {}, what="the relay to save its cursor, and to tell the keeper")
    before = current(database)
    enqueue(database, 4)
    wait_for_turn(database, before)
    wait_empty(database)


def write_in_vain(database: Database, way: str) -> None:
    with database.connect() as session, session.transaction(force_rollback=way == "rollback"):
        with session.transaction(force_rollback=True):
            session.execute("SELECT outbox.enqueue('item', 'x', 'changed', '{}')")


@pytest.mark.worker  # outbox-relay compares positions
@pytest.mark.parametrize("way", ["rollback", "savepoint"])
def test_a_segment_is_not_emptied_while_its_window_is_read(
    new_database: NewDatabase, receiver: Receiver, http: None, way: str
) -> None:
    """The relay holds TIDs of rolled-back rows before it knows that they were rolled back."""
    database = new_database({"outbox.max_in_flight": "1", "outbox.retention": "1h"})
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    database.add_destination("d", receiver.url())
    database.pause()
    ids = enqueue(database) + enqueue(database, 1 + ENOUGH)  # more than is read at a time
    database.move_to_segment(1)
    write_in_vain(database, way)
    database.move_to_segment(2)
    ids += database.enqueue("a", first=2 * ENOUGH + 1)
    database.execute("SELECT outbox.resume('d')")
    wait_until(lambda: gate.holding, what="the first event")

    def size() -> int:
        return database.value("SELECT pg_relation_size('outbox.event_1')")

    before = size()
    assert before > 0
    database.configure({"outbox.retention": "0"})
    stays(size, before, seconds=1, what="size of the segment")
    gate.open()
    database.wait_settled()
    assert receiver.ids() == ids
    wait_until(size, lambda left: left == 0, what="the segment to be emptied")
