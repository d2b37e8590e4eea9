"""Functions for operators: pause, resume, seek, replay, redrive, discard; and event_status()."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import errors

from cluster import MakeCluster
from database import Database, NewDatabase, create_database
from receiver import Gate, Receiver, answer, everything
from test_delivery import rows, version_of, wait_for_rows, wait_for_versions
from test_endpoint_tables import rename
from waiting import wait_until


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


def operations(db: Database) -> list[tuple[Any, ...]]:
    return db.execute("SELECT action, events FROM outbox.operation ORDER BY id")


def event_states(db: Database, event_id: str) -> list[tuple[str, str]]:
    return db.execute("SELECT destination, state FROM outbox.event_status(%s)", (event_id,))


def wait_for_state(db: Database, event_id: str, state: str, destination: str = "d") -> None:
    wait_until(
        lambda: dict(event_states(db, event_id)).get(destination), lambda seen: seen == state,
        what=f"event {event_id} to be {state}",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Pause and resume
# -------------------------------------------------------------------------------------------------


def test_a_paused_destination_gets_nothing_and_others_all(db: Database, receiver: Receiver) -> None:
    other = Receiver()
    db.add_destination("d", receiver.url())
    db.add_destination("other", other.url())
    db.enqueue("a")
    db.wait_settled()
    db.pause()
    db.enqueue("a", 2, first=2)
    wait_for_versions(other, "a", [1, 2, 3])
    assert receiver.versions("a") == [1]
    db.execute("SELECT outbox.resume('d')")
    wait_for_versions(receiver, "a", [1, 2, 3])
    assert operations(db) == [("pause", None), ("resume", None)]
    other.close()


def test_a_pause_survives_the_server(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.execute("SELECT outbox.pause('d')")
    db.cluster.restart()
    db.enqueue("a")
    wait_until(lambda: db.status()["state"], lambda seen: seen == "paused", what="the pause")
    assert receiver.requests == []
    db.execute("SELECT outbox.resume('d')")
    wait_for_versions(receiver, "a", [1])


def test_a_destination_that_is_gone_is_paused_if_that_is_wanted(db: Database, receiver: Receiver) -> None:
    """It is not asked again before an operator says so, and no event is lost."""
    receiver.on(everything, answer(410, body=b"moved to \xff nowhere"))
    db.add_destination("d", receiver.url(), on_gone="pause", max_attempts="1")
    event = db.enqueue("a")
    wait_until(lambda: db.status()["state"], lambda seen: seen == "paused", what="the pause")
    ((action, why),) = db.execute("SELECT action, why FROM outbox.operation")
    assert action == "pause" and why.startswith("it is gone: HTTP 410: moved to ") and why.endswith(" nowhere")
    ((finding,),) = db.execute("SELECT why FROM outbox.health() WHERE what = 'paused'")
    assert finding.startswith("paused by ") and f": {why}" in finding
    ((reason,),) = db.execute("SELECT why FROM outbox.event_status(%s)", (event,))
    assert why in reason
    asked = len(receiver.requests)
    receiver.forget_rules()
    db.enqueue("a", 2, first=2)
    assert "is paused: HTTP 410" in db.log_of_relay() and len(receiver.requests) == asked
    db.execute("SELECT outbox.resume('d')")
    wait_for_versions(receiver, "a", [1, 1, 2, 3])  # with the request that was not taken
    assert db.execute("SELECT * FROM outbox.delivery") == []
    assert operations(db) == [("pause", None), ("resume", None)]


def test_a_pause_finishes_what_is_on_its_way(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    wait_until(lambda: gate.holding, what="the first request")
    db.execute("SELECT outbox.pause('d')")
    wait_until(lambda: db.status()["state"], lambda seen: seen == "paused", what="the pause")
    gate.open()
    wait_until(lambda: db.status()["in_flight"], lambda seen: seen == 2, what="one confirmation")
    assert receiver.versions("a") == [1]
    db.execute("SELECT outbox.resume('d')")
    wait_for_versions(receiver, "a", [1, 2, 3])


def test_an_operators_open_transaction_stops_nothing(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.enqueue("a")
    db.wait_settled()
    with db.connect() as operator, operator.transaction():
        operator.execute("SELECT outbox.pause('d')")
        db.enqueue("a", 5, first=2)
        wait_for_versions(receiver, "a", [1, 2, 3, 4, 5, 6])
    wait_until(lambda: db.status()["state"], lambda seen: seen == "paused", what="the pause")


@pytest.mark.parametrize(
    "call",
    ["pause('x')", "seek('x', 'end')", "replay('x')", "redrive('x')", "discard('x', everything => true, why => 'x')"],
)
def test_a_destination_that_does_not_exist(db: Database, call: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject, match='destination "x" does not exist'):
        db.execute(f"SELECT outbox.{call}")


def test_decisions_follow_a_renamed_destination(db: Database) -> None:
    db.add_destination("d", "pull:")
    db.add_destination("other", "pull:")
    (event,) = db.enqueue("a")
    db.execute("SELECT outbox.seek('d', 'end', why => 'test')")
    replay = db.value("SELECT outbox.replay('d')")
    db.execute("SELECT outbox.pause('d', why => 'upgrade')")
    rename(db, "d", "renamed")
    rename(db, "other", "d")
    ((finding,),) = db.execute("SELECT why FROM outbox.health() WHERE what = 'paused'")
    assert finding.startswith("paused by ") and ": upgrade" in finding
    assert db.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 1
    db.execute("SELECT outbox.seek('renamed', 'beginning')")
    (why,) = db.execute("SELECT why FROM outbox.event_status(%s) WHERE destination = 'renamed'", (event,))[0]
    assert why.endswith(": upgrade")


# -------------------------------------------------------------------------------------------------
# Seek
# -------------------------------------------------------------------------------------------------


def test_seek_delivers_from_there_on(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    for n in range(1, 5):
        db.enqueue("a", first=n)
    db.wait_settled()
    (third,) = db.execute("SELECT position FROM outbox.event WHERE version = 3")[0]
    assert db.value("SELECT outbox.seek('d', %s::bigint)", (third,)) == third
    wait_for_versions(receiver, "a", [1, 2, 3, 4, 4])
    db.execute("SELECT outbox.seek('d', 'beginning')")
    wait_for_versions(receiver, "a", [1, 2, 3, 4, 4, 1, 2, 3, 4])
    db.wait_settled()
    (when,) = db.execute("SELECT occurred_at FROM outbox.event WHERE version = 3")[0]
    db.execute("SELECT outbox.seek('d', %s::timestamptz)", (when,))
    wait_for_versions(receiver, "a", [1, 2, 3, 4, 4, 1, 2, 3, 4, 3, 4])
    actions = db.execute("SELECT action, to_position FROM outbox.operation ORDER BY id")
    assert actions == [("seek", third), ("seek", 0), ("seek", third - 1)]


def test_seek_to_the_end_skips_what_is_there(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.pause()
    db.enqueue("a", 3)
    with db.connect() as late, late.transaction():
        late.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}', version => 1)")
        with pytest.raises(errors.InvalidParameterValue, match="a reason must be given"):
            db.execute("SELECT outbox.seek('d', 'end')")
        db.execute("SELECT outbox.seek('d', 'end', why => 'test')")
    db.execute("SELECT outbox.resume('d')")
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "a", [4])
    wait_for_versions(receiver, "late", [1])


def test_seek_does_not_skip_a_transaction_that_was_open(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    with db.connect() as late, late.transaction():
        late.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}', version => 1)")
        db.enqueue("a", 3)
        db.wait_settled()
        db.execute("SELECT outbox.seek('d', (SELECT max(position) FROM outbox.event))")
    wait_for_versions(receiver, "late", [1])
    assert receiver.versions("a") == [1, 2, 3]


def test_seek_while_events_are_on_their_way(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    wait_until(lambda: gate.holding, what="the first request")
    db.execute("SELECT outbox.seek('d', 'beginning')")
    gate.open()
    wait_until(lambda: receiver.versions("a")[-3:], lambda seen: seen == [1, 2, 3],
               what="everything from the beginning")  # fmt: skip
    db.wait_settled()


def test_a_worker_takes_its_destination_again_when_its_token_is_gone(db: Database, receiver: Receiver) -> None:
    """It writes with the functions of relays outside the server, which refuse a relay whose token is gone."""
    db.add_destination("d", receiver.url())
    db.enqueue("a")
    db.wait_settled()
    token = "SELECT lease FROM outbox.cursor JOIN outbox.relay_lease USING (number, lease) WHERE destination = 'd'"
    first = db.value(token)
    db.execute("TRUNCATE outbox.relay_lease")
    db.enqueue("a", first=2)
    wait_until(lambda: db.value(token), lambda lease: lease not in (None, first), what="another token")
    db.wait_settled()
    assert set(receiver.versions("a")) == {1, 2}


def test_seek_says_what_it_takes(db: Database) -> None:
    db.add_destination("d", "null:")
    with pytest.raises(psycopg.errors.InvalidDatetimeFormat, match='cannot seek to "tomorow"'):
        db.execute("SELECT outbox.seek('d', 'tomorow')")


def test_a_segment_is_not_emptied_under_a_seek(db: Database, receiver: Receiver) -> None:
    """The keeper must see the cursor where the operator has put it, or find the segment locked."""
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    db.wait_settled()
    with db.connect() as operator, operator.transaction():
        operator.execute("SELECT outbox.seek('d', 'beginning')")
        with db.connect() as keeper, keeper.transaction():
            with pytest.raises(psycopg.errors.LockNotAvailable):
                keeper.execute("LOCK TABLE outbox.event_0 IN ACCESS EXCLUSIVE MODE NOWAIT")
    wait_for_versions(receiver, "a", [1, 2, 3, 1, 2, 3])


# -------------------------------------------------------------------------------------------------
# Replay
# -------------------------------------------------------------------------------------------------


def test_replay_delivers_a_selection_again(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    ids = db.enqueue("a", 3)
    db.enqueue("b", 3)
    db.wait_settled()
    position = db.status()["position"]
    replay = db.value("SELECT outbox.replay('d', aggregate_id => 'a')")
    wait_for_versions(receiver, "a", [1, 2, 3, 1, 2, 3])
    wait_for_rows(db, [])
    assert db.execute("SELECT events, waiting, dead FROM outbox.replay_progress WHERE id = %s", (replay,)) == [
        (3, 0, 0)
    ]
    db.execute("SELECT outbox.replay('d', event_ids => ARRAY[%s::uuid])", (ids[1],))
    wait_for_versions(receiver, "a", [1, 2, 3, 1, 2, 3, 2])
    assert receiver.versions("b") == [1, 2, 3]
    assert db.status()["position"] == position
    assert operations(db) == [("replay", 3), ("replay", 1)]


def test_a_replay_does_not_take_along_what_is_on_its_way(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    ids = db.enqueue("a", 3)
    db.wait_settled()
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    db.execute("SELECT outbox.replay('d', event_ids => ARRAY[%s::uuid])", (ids[1],))
    wait_until(lambda: gate.holding, what="the second event")
    db.execute("SELECT outbox.replay('d')")
    # The relay has taken the first event, and no other than the one that it had already.
    wait_until(
        lambda: db.execute("SELECT version FROM outbox.delivery WHERE lock_token IS NOT NULL ORDER BY 1"),
        lambda locked: locked == [(1,), (2,)], what="the first event to be taken",
    )  # fmt: skip
    gate.open()
    wait_for_versions(receiver, "a", [1, 2, 3, 2, 1, 3])
    wait_for_rows(db, [])
    db.wait_settled()
    assert receiver.versions("a") == [1, 2, 3, 2, 1, 3]


def test_new_events_of_a_key_follow_its_replay(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    db.wait_settled()
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    db.execute("SELECT outbox.replay('d')")
    wait_until(lambda: gate.holding, what="the first event of the replay")
    db.enqueue("a", first=4)
    db.enqueue("b")
    wait_for_versions(receiver, "b", [1])
    assert receiver.versions("a") == [1, 2, 3, 1]
    gate.open()
    wait_for_versions(receiver, "a", [1, 2, 3, 1, 2, 3, 4])


def resume_a_destination_that_is_down(db: Database, receiver: Receiver) -> None:
    """Returns when its relay has read what is in the log, and nothing of it has arrived."""
    receiver.on(everything, answer(503))
    db.execute("SELECT outbox.resume('d')")
    last = db.last_position()
    wait_until(
        lambda: db.status(), lambda status: status["in_flight"] > 0 or (status["position"] or 0) >= last,
        what="the relay to have read the log",
    )  # fmt: skip


def test_a_cancelled_replay_gives_up_nothing_that_was_never_delivered(db: Database, receiver: Receiver) -> None:
    """A replay has only settled events: the others come anyway."""
    db.add_destination("d", receiver.url())
    db.enqueue("a")
    db.wait_settled()
    db.pause()
    ids = db.enqueue("a", 3, first=2) + db.enqueue("b", 3)
    replay = db.value("SELECT outbox.replay('d')")
    assert db.value("SELECT events FROM outbox.replay_progress WHERE id = %s", (replay,)) == 1
    resume_a_destination_that_is_down(db, receiver)
    db.value("SELECT outbox.cancel_replay(%s)", (replay,))
    assert db.value("SELECT outbox.backlog('d')") == 6
    assert db.status()["pending_at_most"] >= 6
    assert not {("d", "PUBLISHED")} & {state for id in ids for state in event_states(db, id)}
    receiver.forget_rules()
    db.wait_settled()
    wait_until(lambda: set(ids) - {event.id for event in receiver.events() if event.request.status == 204},
               lambda missing: not missing, what="all events")  # fmt: skip
    wait_for_rows(db, [])


def test_a_replay_of_a_later_event_does_not_overtake_an_earlier_one(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.pause()
    ids = db.enqueue("a", 4)
    replay = db.value("SELECT outbox.replay('d', event_ids => ARRAY[%s::uuid])", (ids[2],))
    db.execute("SELECT outbox.resume('d')")
    wait_for_versions(receiver, "a", [1, 2, 3, 4])
    assert db.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 0


def test_a_replay_says_what_it_leaves_out(db: Database) -> None:
    db.add_destination("d", "pull:")
    db.enqueue("a", 3)
    notices: list[str] = []
    with db.connect() as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute("SELECT outbox.replay('d', aggregate_id => 'a')")
        connection.execute("SELECT outbox.replay('d', aggregate_id => 'b')")
    assert notices == ['events that destination "d" has not settled are not replayed: 3']


def test_a_cancelled_replay_leaves_what_a_seek_wants(db: Database, receiver: Receiver) -> None:
    """Events were skipped, replayed, and asked for once more by a seek: only the replay is cancelled."""
    db.add_destination("d", receiver.url())
    db.pause()
    db.enqueue("a", 3)
    db.execute("SELECT outbox.seek('d', 'end', why => 'test')")
    replay = db.value("SELECT outbox.replay('d')")
    assert db.value("SELECT outbox.backlog('d')") == 0
    db.execute("SELECT outbox.seek('d', 'beginning')")
    assert db.value("SELECT outbox.backlog('d')") == 3
    resume_a_destination_that_is_down(db, receiver)
    assert db.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 0
    receiver.forget_rules()
    wait_until(lambda: [event.version for event in receiver.events() if event.request.status == 204],
               lambda seen: seen == [1, 2, 3], what="all events")  # fmt: skip


def test_a_replay_can_be_cancelled(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.enqueue("a", 3)
    db.wait_settled()
    db.pause()
    replay = db.value("SELECT outbox.replay('d')")
    assert db.value("SELECT waiting FROM outbox.replay_progress WHERE id = %s", (replay,)) == 3
    assert db.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 3
    db.execute("SELECT outbox.resume('d')")
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "a", [1, 2, 3, 4])
    with pytest.raises(psycopg.errors.UndefinedObject, match="replay 0 does not exist"):
        db.execute("SELECT outbox.cancel_replay(0)")


def test_a_cancelled_replay_gives_up_what_has_failed(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), retry_base="1440min", retry_max="1440min")
    db.enqueue("a", 2)
    db.wait_settled()
    receiver.on(version_of("a", 1), answer(400))
    replay = db.value("SELECT outbox.replay('d')")
    wait_for_rows(db, [("a", 1, "RETRY", 1), ("a", 2, "PENDING", 0)])
    assert db.value("SELECT outbox.cancel_replay(%s)", (replay,)) == 2
    db.enqueue("a", first=3)
    wait_for_versions(receiver, "a", [1, 2, 1, 3])


# -------------------------------------------------------------------------------------------------
# Dead letters
# -------------------------------------------------------------------------------------------------


def test_dead_letters_are_redriven(db: Database, receiver: Receiver) -> None:
    rule = receiver.on(everything, answer(413), times=3)
    db.add_destination("d", receiver.url())
    ids = {key: str(db.enqueue(key)[0]) for key in ("a", "b", "c")}
    wait_for_rows(db, [(key, 1, "DEAD", 1) for key in ("a", "b", "c")])
    assert len(rule.met) == 3
    assert db.value("SELECT count(*) FROM outbox.dead_letter") == 3
    assert db.value("SELECT outbox.redrive('d', ordering_key => 'a', error => '%%413%%')") == 1
    wait_for_versions(receiver, "a", [1, 1])
    wait_for_rows(db, [(key, 1, "DEAD", 1) for key in ("b", "c")])
    assert db.value("SELECT outbox.redrive('d')") == 2
    wait_for_rows(db, [])
    assert sorted(receiver.subjects()) == ["a", "a", "b", "b", "c", "c"]
    assert operations(db) == [("redrive", 1), ("redrive", 2)]

    # One by its id, in the ways in which applications and people write it.
    receiver.on(everything, answer(413), times=3)
    for key in ("a", "b", "c"):
        ids[key] = str(db.enqueue(key, first=2)[0])
    wait_for_rows(db, [(key, 2, "DEAD", 1) for key in ("a", "b", "c")])
    assert db.value(f"SELECT outbox.redrive('d', '{ids['a']}')") == 1
    assert db.value("SELECT outbox.redrive('d', %s)", (uuid.UUID(ids["b"]),)) == 1
    assert db.value(f"SELECT outbox.redrive('d', '{{{ids['c']}}}')") == 1
    wait_for_rows(db, [])
    assert db.value("SELECT outbox.redrive('d', NULL)") == db.value("SELECT outbox.redrive('d', '{}')") == 0
    with pytest.raises(errors.InvalidTextRepresentation, match='invalid input syntax for type uuid: "x"'):
        db.execute("SELECT outbox.redrive('d', 'x')")


def test_a_blocked_key_is_freed_by_a_decision(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(413))
    receiver.on(version_of("b", 1), answer(413), times=1)
    db.add_destination("d", receiver.url(), on_dead_letter="block")
    (first, _, _) = db.enqueue("a", 3)
    db.enqueue("b", 3)
    wait_until(lambda: len(rows(db)), lambda seen: seen == 6, what="two blocked keys")
    blocked = db.execute(
        "SELECT ordering_key, event_id::text, state, waiting, last_error, since IS NOT NULL "
        "FROM outbox.blocked_key WHERE destination = 'd' ORDER BY 1"
    )
    assert blocked[0] == ("a", first, "DEAD", 2, "HTTP 413", True)
    assert [row[0] for row in blocked] == ["a", "b"]
    assert db.value("SELECT outbox.discard('d', event_ids => ARRAY[%s::uuid], why => 'test')", (first,)) == 1
    wait_for_versions(receiver, "a", [1, 2, 3])
    assert receiver.versions("b") == [1]
    db.execute("SELECT outbox.redrive('d', ordering_key => 'b')")
    wait_for_versions(receiver, "b", [1, 1, 2, 3])
    wait_for_rows(db, [("a", 1, "DISCARDED", 1)])
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "a", [1, 2, 3, 4])


def test_what_is_discarded_stays_discarded_after_a_seek(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 1), answer(413))
    db.add_destination("d", receiver.url())
    db.enqueue("a", 2)
    wait_for_rows(db, [("a", 1, "DEAD", 1)])
    db.execute("SELECT outbox.discard('d', everything => true, why => 'test')")
    db.execute("SELECT outbox.seek('d', 'beginning')")
    wait_for_versions(receiver, "a", [1, 2, 2])
    wait_for_rows(db, [("a", 1, "DISCARDED", 1)])


# -------------------------------------------------------------------------------------------------
# One event
# -------------------------------------------------------------------------------------------------


def test_event_status_shows_the_state_of_an_event(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(version_of("a", 1), gate.held(answer(400)), times=1)
    receiver.on(version_of("a", 1), answer(413), times=1)
    db.add_destination("d", receiver.url(), retry_base="1440min", retry_max="1440min")
    db.add_destination("elsewhere", "null:", topics="user.*")
    db.pause()
    first, second = db.enqueue("a", 2)
    assert event_states(db, first) == [("d", "PENDING"), ("elsewhere", "NOT SELECTED")]
    db.execute("SELECT outbox.resume('d')")
    wait_for_state(db, first, "INFLIGHT")
    gate.open()
    wait_for_state(db, first, "RETRY")
    assert event_states(db, second)[0] == ("d", "WAITING")
    db.execute("UPDATE outbox.delivery SET next_retry_at = now() WHERE event_id = %s", (first,))
    db.execute("SELECT outbox.pause('d'); SELECT outbox.resume('d')")  # so that it looks again
    wait_for_state(db, first, "DEAD")
    wait_for_state(db, second, "PUBLISHED")
    assert db.execute("SELECT attempts, last_error FROM outbox.event_status(%s) WHERE destination = 'd'", (first,)) == [
        (2, "HTTP 413")
    ]
    db.execute("SELECT outbox.discard('d', everything => true, why => 'test')")
    assert event_states(db, first)[0] == ("d", "DISCARDED")
    assert event_states(db, "00000000-0000-7000-8000-000000000000") == [(None, "GONE")]


# -------------------------------------------------------------------------------------------------
# Concurrent operators
# -------------------------------------------------------------------------------------------------


def test_operators_at_the_same_time(db: Database, receiver: Receiver) -> None:
    """Many operators act on the same destination under load; no event is lost, no call fails."""
    receiver.on(lambda request: request.number % 7 == 3, answer(413), times=60)
    db.add_destination("d", receiver.url(), on_dead_letter="block")
    decisions = [
        "SELECT outbox.pause('d')", "SELECT outbox.resume('d')", "SELECT outbox.seek('d', 'beginning')",
        "SELECT outbox.redrive('d')", "SELECT outbox.replay('d', aggregate_id => 'k1')",
    ]  # fmt: skip
    failures: list[BaseException] = []

    def decide(offset: int) -> None:
        try:
            with db.connect() as connection:
                for n in range(20):
                    connection.execute(decisions[(n * 3 + offset) % len(decisions)])
        except BaseException as error:
            failures.append(error)

    operators = [threading.Thread(target=decide, args=(n,)) for n in range(4)]
    for operator in operators:
        operator.start()
    for version in range(1, 41):
        for key in range(5):
            db.enqueue(f"k{key}", first=version)
    for operator in operators:
        operator.join()
    assert failures == []
    db.execute("SELECT outbox.resume('d')")
    receiver.forget_rules()

    def missing() -> list[tuple[str, int]]:
        arrived = {(e.subject, e.version) for e in receiver.events() if e.request.status == 204}
        db.execute("SELECT outbox.redrive('d')")
        return [(f"k{k}", v) for k in range(5) for v in range(1, 41)
                if (f"k{k}", v) not in arrived]  # fmt: skip

    wait_until(missing, lambda seen: not seen, what="all events to arrive")

    def in_trouble() -> list[tuple[str, int, str, int]]:
        """Checks that events refused at last, which had arrived before, are dead letters now."""
        db.execute("SELECT outbox.redrive('d')")
        return rows(db)

    wait_until(in_trouble, lambda seen: not seen, what="no event to be in trouble")


# -------------------------------------------------------------------------------------------------
# Receipts
# -------------------------------------------------------------------------------------------------


def test_receipts_are_kept_where_they_are_wanted(db: Database, receiver: Receiver) -> None:
    receiver.on(version_of("a", 2), answer(400), times=1)
    db.add_destination("d", receiver.url(), receipts="on", retry_base="1ms")
    db.add_destination("other", "null:")
    ids = db.enqueue("a", 3)
    wait_until(
        lambda: {str(row[0]) for row in db.execute("SELECT event_id FROM outbox.receipt")},
        lambda seen: seen == set(ids), what="three receipts",
    )  # fmt: skip
    assert db.value("SELECT bool_and(destination = 'd' AND published_at <= now()) FROM outbox.receipt")
    db.execute("TRUNCATE outbox.event_0")  # as the keeper does when everything is settled
    status = db.execute("SELECT destination, state, published_at IS NOT NULL FROM outbox.event_status(%s)",
                        (ids[0],))  # fmt: skip
    assert status == [("d", "PUBLISHED", True)]


def test_receipts_are_forgotten(new_database: NewDatabase) -> None:
    db = new_database({"outbox.receipt_retention": "1s"})
    db.add_destination("d", "null:", receipts="on")
    (old,) = db.enqueue("a")
    wait_until(lambda: db.value("SELECT count(*) FROM outbox.receipt"), lambda n: n == 1, what="a receipt")

    def forgotten() -> bool:
        db.enqueue("b")
        return old not in {str(row[0]) for row in db.execute("SELECT event_id FROM outbox.receipt")}

    wait_until(forgotten, what="the first receipt to be forgotten")


def test_source_events_are_forgotten(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"outbox.source_event_retention": "1d"})
    db = create_database(cluster)
    db.execute(
        "INSERT INTO outbox.source_event SELECT gen_random_uuid(), 'a', '1', 'old', gen_random_uuid(), now() - interval '25 hours'"
        "  FROM generate_series(1, 25000)"
    )
    kept = "00000000-0000-7000-8000-000000000001"
    enqueue = f"SELECT outbox.enqueue('a', '1', 'new', '{{}}', source_event_id => '{kept}')"
    (first,) = db.execute(enqueue)
    cluster.restart()  # a keeper looks at once, and then every hour
    db.keep()
    wait_until(
        lambda: db.value("SELECT count(*) FROM outbox.source_event"), lambda n: n == 1,
        what="all that are old to be forgotten, in several steps",
    )  # fmt: skip
    assert db.execute(enqueue) == [first], "what is not old is known"


# -------------------------------------------------------------------------------------------------
# DDL on the tables
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["outbox.cursor", "outbox.delivery"])
def test_a_relay_and_ddl_do_not_deadlock(db: Database, receiver: Receiver, table: str) -> None:
    """REINDEX locks the table, then its indexes. A relay between the two must have none of them."""
    receiver.on(everything, answer(400))
    db.add_destination("d", receiver.url(), topics="bad.*", retry_base="2s", retry_max="2s", max_attempts="1000000")
    db.add_destination("healthy", "null:", topics="good.*")
    db.enqueue(topic="bad.event")
    attempts = "SELECT coalesce(max(attempts), 0) FROM outbox.delivery"
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
    for _ in range(3):
        before = db.value(attempts)
        # Next, one relay takes the retry, and the other saves its cursor.
        wait_until(lambda: db.value(attempts), lambda seen, before=before: seen > before, what="another attempt")
        with db.connect() as ddl, ddl.transaction():
            ddl.execute(f"LOCK TABLE {table} IN SHARE MODE")
            db.enqueue(topic="good.event")
            wait_until(lambda: db.value(waiting, (table,)), what="a relay to wait")
            ddl.execute(f"REINDEX TABLE {table}")
    db.wait_published(3, "healthy")
    assert "deadlock" not in db.log_of_relay()
