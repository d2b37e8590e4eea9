"""Events in trouble: retries, dead letters, and the keys they hold."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import MakeCluster
from database import Database, NewDatabase, create_database
from receiver import (
    Receiver,
    Request,
    answer,
    close_unanswered,
    everything,
)
from waiting import wait_until


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


def version_of(key: str, *versions: int) -> Any:
    """Matches requests about these versions of an item."""

    def matches(request: Request) -> bool:
        headers = request.headers
        return headers["ce-subject"] == key and int(headers["ce-aggregateversion"]) in versions

    return matches


def rows(db: Database, destination: str = "d") -> list[tuple[str, int, str, int]]:
    """Returns events in trouble: aggregate id, version, state, attempts."""
    return db.execute(
        "SELECT aggregate_id, version, state, attempts FROM outbox.delivery WHERE destination = %s ORDER BY position",
        (destination,),
    )


def wait_for_rows(db: Database, expected: list[tuple[str, int, str, int]]) -> None:
    wait_until(
        lambda: rows(db), lambda seen: seen == expected,
        what=f"exactly {expected} in outbox.delivery",
    )  # fmt: skip


def wait_for_versions(receiver: Receiver, key: str, expected: list[int]) -> None:
    wait_until(
        lambda: receiver.versions(key), lambda seen: seen == expected,
        what=f"versions {expected} of {key}",
    )  # fmt: skip


def make_durable(db: Database) -> None:
    """Flushes the WAL, so that asynchronous commits of the relay survive a crash."""
    db.execute("SELECT pg_logical_emit_message(true, '', '')")


# -------------------------------------------------------------------------------------------------
# Retries
# -------------------------------------------------------------------------------------------------


def test_a_refused_event_is_tried_again_and_holds_back_its_key_only(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(400, body=b"not now"), times=2)
    db.add_destination("d", receiver.url(), retry_base="50ms")
    db.enqueue("a", 3)
    db.enqueue("b", 3)
    wait_for_versions(receiver, "b", [1, 2, 3])
    wait_for_versions(receiver, "a", [1, 1, 1, 2, 3])
    wait_for_rows(db, [])
    wait_until(lambda: db.status()["held_keys"], lambda seen: seen == 0, what="no held key")
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "a", [1, 1, 1, 2, 3, 4])


def test_a_long_line_of_a_held_key_keeps_no_other(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    """More events of it than a relay may have in memory are ahead in the log, and none of them can be written to
    outbox.delivery: an operator is at work."""
    in_line = 600  # more than a block
    db = new_database({"outbox.max_in_flight": "50"})
    receiver.on(version_of("held", 1), answer(400))
    db.add_destination("d", receiver.url(), retry_base="50ms", retry_max="1s", max_attempts="1000")
    db.enqueue("held")
    wait_until(lambda: len(rows(db)), lambda count: count == 1, what="the event to hold its key")
    with db.connect() as operator, operator.transaction():
        operator.execute("SELECT FROM outbox.cursor FOR UPDATE")
        db.enqueue("held", in_line, first=2)
        db.enqueue("other", 3)
        wait_for_versions(receiver, "other", [1, 2, 3])
        assert len(rows(db)) == 1
    receiver.forget_rules()
    wait_until(
        lambda: list(dict.fromkeys(receiver.versions("held"))), lambda seen: len(seen) == 1 + in_line,
        what="the line to arrive",
    )  # fmt: skip
    assert list(dict.fromkeys(receiver.versions("held"))) == list(range(1, in_line + 2))
    wait_for_rows(db, [])
    db.wait_settled()


@pytest.mark.worker
def test_what_is_in_trouble_can_be_seen(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(422, body=b"no such tenant"))
    db.add_destination("d", receiver.url(), retry_base="1h", retry_max="1h")
    db.enqueue("a", 3)
    wait_for_rows(db, [("a", 1, "RETRY", 1), ("a", 2, "PENDING", 0), ("a", 3, "PENDING", 0)])
    first, error, due = db.execute(
        "SELECT first_failed_at = last_failed_at, last_error, next_retry_at - last_failed_at < '1 h' "
        "FROM outbox.delivery WHERE state = 'RETRY'"
    )[0]
    assert (first, error, due) == (True, "HTTP 422: no such tenant", True)
    wait_until(lambda: db.status()["held_keys"], lambda seen: seen == 1, what="a held key")
    db.enqueue("a", first=4)
    wait_for_rows(
        db,
        [("a", 1, "RETRY", 1), ("a", 2, "PENDING", 0), ("a", 3, "PENDING", 0),
         ("a", 4, "PENDING", 0)],
    )  # fmt: skip
    db.wait_settled()
    assert receiver.versions("a") == [1]
    assert "refused event" in db.cluster.log()


@pytest.mark.parametrize("key", ["", "k"])
def test_an_event_that_was_under_way_when_its_relay_died_goes_again(database: Database, key: str) -> None:
    database.execute("SELECT outbox.enqueue('item', 'a', 'Added', '{}', ordering_key => %s)", (key,))
    database.execute(
        "SELECT outbox_internal.move_events('d', gen_random_uuid(), ARRAY[xid], ARRAY[position]), outbox_internal.promote('d', ARRAY[%s]) "
        "FROM outbox.event",
        (key,),
    )
    database.execute("SELECT outbox_internal.unlock_all('d')")  # by the next relay
    claimed = database.execute(
        "SELECT aggregate_id FROM outbox_internal.claim_due('d', gen_random_uuid(), NULL, 10, 1000000)"
    )
    assert claimed == [("a",)]


def test_a_permanent_refusal_is_a_dead_letter_at_once(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(413))
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    wait_for_versions(receiver, "a", [1, 2, 3])
    wait_for_rows(db, [("a", 1, "DEAD", 1)])


def test_an_event_that_used_up_its_attempts_is_a_dead_letter(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(400))
    db.add_destination("d", receiver.url(), retry_base="1ms", max_attempts="3")
    db.enqueue("a", 2)
    wait_for_versions(receiver, "a", [1, 1, 1, 2])
    wait_for_rows(db, [("a", 1, "DEAD", 3)])


def test_a_dead_letter_blocks_its_key_where_that_is_asked_for(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(413))
    db.add_destination("d", receiver.url(), on_dead_letter="block")
    db.enqueue("a", 2)
    db.enqueue("b")
    wait_for_rows(db, [("a", 1, "DEAD", 1), ("a", 2, "PENDING", 0)])
    db.enqueue("a", first=3)
    db.wait_settled()
    assert receiver.versions("a") == [1]
    db.change_destination("d", on_dead_letter="release")
    wait_for_versions(receiver, "a", [1, 2, 3])
    wait_for_rows(db, [("a", 1, "DEAD", 1)])


def test_unordered_events_hold_nothing(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(400), times=1)
    db.add_destination("d", receiver.url(), retry_base="1ms")
    for n in range(1, 4):
        db.execute(
            "SELECT outbox.enqueue('item', 'a', 'changed', '{}', version => %s, ordering_key => '')",
            (n,),
        )
    wait_until(lambda: sorted(receiver.versions("a")), lambda seen: seen == [1, 1, 2, 3],
               what="all of them, the first one twice")  # fmt: skip
    wait_for_rows(db, [])


def test_of_a_refused_batch_only_the_offender_is_in_trouble(db: Database, receiver: Receiver) -> None:
    bad = 7

    def has_the_offender(request: Request) -> bool:
        return any(int(event["aggregateversion"]) == bad for event in request.json())

    receiver.on(has_the_offender, answer(400))
    db.add_destination("d", receiver.url(), format="batched", retry_base="1h", retry_max="1h")
    with db.connection.transaction():
        for n in range(1, 21):
            db.enqueue(f"k{n}", first=n)
    wait_for_rows(db, [(f"k{bad}", bad, "RETRY", 1)])
    db.wait_settled()
    versions = [e.version for e in receiver.events() if e.request.status == 204]
    assert sorted(versions) == [n for n in range(1, 21) if n != bad]


# -------------------------------------------------------------------------------------------------
# Attribution of failures
# -------------------------------------------------------------------------------------------------


def test_a_destination_that_is_down_charges_no_event(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(500))
    db.add_destination("d", receiver.url(), max_attempts="1")
    db.enqueue("a", 3)
    db.enqueue("b", 3)
    receiver.wait_for_requests(10)
    assert rows(db) == []
    db.wait_for_state("backing off")
    receiver.forget_rules()
    db.wait_settled()
    assert rows(db) == []


@pytest.mark.parametrize("failure", [answer(500), close_unanswered], ids=["500", "closed"])
def test_an_event_that_fails_while_others_do_not_is_at_fault(db: Database, receiver: Receiver, failure: Any) -> None:
    receiver.on(version_of("a", 1), failure)
    db.add_destination("d", receiver.url(), retry_base="1h", retry_max="1h")
    db.enqueue("a", 2)
    for n in range(200):  # others keep coming, and arrive
        db.enqueue(f"b{n}")
        wait_for_versions(receiver, f"b{n}", [1])
        if rows(db):
            break
    wait_for_rows(db, [("a", 1, "RETRY", 1), ("a", 2, "PENDING", 0)])
    wait_until(lambda: db.status()["state"], lambda seen: seen != "backing off", what="no back-off")


def test_refusing_everything_is_the_destinations_failure_too(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(400))
    db.add_destination("d", receiver.url(), retry_base="1h", retry_max="1h")
    with db.connection.transaction():
        for n in range(1000):
            db.enqueue(f"k{n}")
    wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
    assert len(rows(db)) < 100, "everything that was refused was charged to events"


# -------------------------------------------------------------------------------------------------
# Restarts
# -------------------------------------------------------------------------------------------------


@pytest.mark.worker
def test_trouble_survives_the_relay_and_the_server(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    receiver.on(version_of("a", 1), answer(400))
    receiver.on(version_of("c", 1), answer(413))
    cluster = make_cluster()
    db = create_database(cluster)
    db.add_destination("d", receiver.url(), retry_base="500ms", retry_max="500ms")
    db.enqueue("a", 2)
    db.enqueue("c", 2)
    wait_for_versions(receiver, "c", [1, 2])
    wait_until(lambda: len(rows(db)), lambda seen: seen == 3, what="three events in trouble")
    make_durable(db)
    cluster.kill_and_recover(db.wait_for_worker("relay"))
    db.enqueue("a", first=3)
    wait_until(lambda: len(rows(db)), lambda seen: seen == 4, what="the next one behind it")
    make_durable(db)
    cluster.restart("immediate")
    assert 2 not in receiver.versions("a")
    receiver.forget_rules()
    wait_until(lambda: receiver.versions("a")[-2:], lambda seen: seen == [2, 3],
               what="versions 2 and 3 of a")  # fmt: skip
    wait_until(lambda: [row[2] for row in rows(db)], lambda seen: seen == ["DEAD"],
               what="nothing but the dead letter")  # fmt: skip
    assert 1 not in receiver.versions("c")[1:], "a dead letter was delivered again"
