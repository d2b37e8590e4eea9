"""The client's core, with a source in memory: what is applied, once, in order, and what a failure does."""

from __future__ import annotations

import json

import pytest

from waiting import stays

from .conftest import Consume
from .consumer import Target

# Things that a handler can leave in its session, and how another would see them.
LEFT = {
    "search_path": ("SET search_path = tenant", "current_setting('search_path')"),
    "setting": ("SELECT set_config('app.tenant', '7', false)", "coalesce(current_setting('app.tenant', true), '')"),
    "local setting": ("SET LOCAL work_mem = '7MB'", "current_setting('work_mem')"),
    "isolation": ("SET default_transaction_isolation = serializable", "current_setting('transaction_isolation')"),
    "setting of the connection": ("RESET lock_timeout", "current_setting('lock_timeout')"),
    "temporary table": ("CREATE TEMPORARY TABLE note (x int)", "coalesce(to_regclass('pg_temp.note')::text, '')"),
    "advisory lock": (
        "SELECT pg_advisory_lock(7)",
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())",
    ),
    "prepared statement": (
        "PREPARE own AS SELECT 1",
        "(SELECT count(*) FROM pg_prepared_statements WHERE name = 'own')",
    ),
    "cursor": ("DECLARE own CURSOR FOR SELECT 1", "(SELECT count(*) FROM pg_cursors WHERE name = 'own')"),
}


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("left, seen", LEFT.values(), ids=LEFT)
def test_a_handler_sees_nothing_that_another_has_left(
    target: Target, consume: Consume, left: str, seen: str, batch_size: int
) -> None:
    target.execute(
        "CREATE SCHEMA tenant; CREATE TABLE saw (number bigint GENERATED ALWAYS AS IDENTITY, pid int, what text)"
    )
    target.execute(f"GRANT ALL ON saw TO {target.role}")
    look = f"INSERT INTO public.saw (pid, what) VALUES (pg_backend_pid(), {seen})"
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK saw")
        consumer = consume(connections=1, batch_size=batch_size)
        consumer.deliver("a", type="statement", payload=look)
        target.wait_for_lock("the first event to be begun")
        for statement in (look, left, look):
            consumer.deliver("a", type="statement", payload=statement)
        consumer.wait_for("the rest to wait", outstanding_messages=4)
        blocker.execute("COMMIT")
    consumer.wait_for("all to be acknowledged", acked=4)
    rows = target.execute("SELECT pid, what FROM saw ORDER BY number")
    assert len(rows) == 3 and len(set(rows)) == 1


# -------------------------------------------------------------------------------------------------
# Normal operation
# -------------------------------------------------------------------------------------------------


def test_events_are_applied_and_then_acknowledged(target: Target, consume: Consume) -> None:
    consumer = consume()
    ids = consumer.deliver("a", 3) + consumer.deliver("b", 2) + consumer.deliver("", 2)
    state = consumer.wait_for("all events to be acknowledged", acked=7)
    assert sorted(target.applied()) == sorted(ids)
    assert sorted(state["acked"], key=int) == [str(n) for n in range(1, 8)]
    assert (state["applied"], state["duplicates"], state["failures"]) == (7, 0, 0)
    state = consumer.stop()
    assert state["closed"] and state["outstanding_messages"] == 0
    figures = target.execute(
        "SELECT state, processed, failures, latency_buckets[17], latency_sum >= 0 FROM inbox.status"
    )
    assert figures == [("handled outside", 7, 0, 7, True)]


def test_a_batch_is_one_transaction(target: Target, consume: Consume) -> None:
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(connections=1, batch_size=50)
        consumer.deliver("a", 1)
        target.wait_for_lock("the first event to be begun")
        ids = consumer.deliver("b", 60)
        consumer.wait_for("the rest to wait", outstanding_messages=61)
        blocker.execute("COMMIT")
    consumer.wait_for("all to be acknowledged", acked=61)
    assert target.transactions() == 3
    assert [i for i in target.applied() if i in ids] == ids


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_keys_keep_their_order_on_any_connection(target: Target, consume: Consume, batch_size: int) -> None:
    consumer = consume(connections=4, batch_size=batch_size)
    for n in range(1, 51):
        for key in "abcdefgh":
            consumer.deliver(key, first=n)
    consumer.wait_for("all to be acknowledged", acked=400)
    rows = target.execute("SELECT key, array_agg(version ORDER BY number) FROM applied GROUP BY key ORDER BY key")
    assert rows == [(key, list(range(1, 51))) for key in "abcdefgh"]


def test_a_repetition_has_no_effect(target: Target, consume: Consume) -> None:
    consumer = consume()
    (id,) = consumer.deliver("a")
    consumer.wait_for("it to be acknowledged", acked=1)
    consumer.deliver("a", event_id=id)
    consumer.deliver("", event_id=id)
    state = consumer.wait_for("the repetitions to be acknowledged", acked=3)
    assert (state["applied"], state["duplicates"]) == (1, 2)
    assert target.applied() == [id]


def test_the_offset_is_saved_with_the_effects(target: Target, consume: Consume) -> None:
    consumer = consume(instance="me")
    consumer.deliver("a", 5)
    consumer.wait_for("all to be acknowledged", acked=5)
    rows = target.execute("SELECT consumer, subscription, message_id, updated_by FROM inbox.offsets")
    assert [row[:3] for row in rows] == [("c", "s", "5")]
    assert rows[0][3].startswith("me/")


@pytest.mark.parametrize("prepare_statements", [0, 1])
def test_what_a_handler_can_do(target: Target, consume: Consume, prepare_statements: int) -> None:
    consumer = consume(connections=1, prepare_statements=prepare_statements)
    consumer.deliver("k", 2)
    consumer.deliver("k", type="execute")
    consumer.deliver("k", type="native")
    consumer.deliver("k", type="apply", payload=json.dumps({"id": "i", "version": 3, "name": "ä\"'\\"}))
    consumer.deliver("k", type="apply", payload=json.dumps({"id": "i", "version": 2, "name": "old"}))
    state = consumer.wait_for("all to be acknowledged", acked=6)
    assert state["failures"] == 0, consumer.log()
    assert target.value("SELECT n FROM counted") == 2
    assert target.value("SELECT n FROM copied") == 1
    assert target.execute("SELECT * FROM item") == [("i", 3, "ä\"'\\")]


def test_metrics_as_text(consume: Consume) -> None:
    consumer = consume()
    consumer.deliver("a", 3)
    consumer.wait_for("all to be acknowledged", acked=3)
    text = consumer.command("metrics")
    assert 'inbox_applied_total{consumer="c"} 3|' in text
    assert text.endswith("# EOF|\n")


# -------------------------------------------------------------------------------------------------
# Handlers that fail
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_failing_event_holds_back_its_key_only(target: Target, consume: Consume, batch_size: int) -> None:
    consumer = consume(connections=2, batch_size=batch_size, max_attempts=1000)
    (bad,) = consumer.deliver("never used", event_id="00000000-0000-4000-8000-000000000001", type="changed")
    consumer.wait_for("the first event", acked=1)
    target.execute("DELETE FROM applied")
    poisoned = "00000000-0000-4000-8000-000000000002"
    target.poison(poisoned)
    before = consumer.deliver("a", 2)
    consumer.deliver("a", event_id=poisoned, first=3)
    behind = consumer.deliver("a", 2, first=4)
    others = consumer.deliver("b", 3) + consumer.deliver("", 3)
    consumer.wait_for("the event to fail several times", failures=3)
    target.wait_applied(before + others)
    target.cure()
    state = consumer.wait_for("the rest to be applied", applied=12)
    assert [i for i in target.applied() if i in {*before, poisoned, *behind}] == [*before, poisoned, *behind]
    assert state["dead"] == 0
    assert target.execute("SELECT * FROM inbox.waiting") == [], "its success ends the failure"


@pytest.mark.parametrize(
    "type, sqlstate, error",
    [
        ("throw", "P0001", "no? good"),
        ("throw_int", "P0001", "not a std::exception"),
        ("swallow", "22012", "division by zero"),
    ],
)
def test_an_event_that_always_fails_becomes_a_dead_letter(
    target: Target, consume: Consume, type: str, sqlstate: str, error: str
) -> None:
    consumer = consume(max_attempts=3)
    (bad,) = consumer.deliver("a", type=type, payload='{"n": 1}')
    rest = consumer.deliver("a", 3, first=2) + consumer.deliver("b")
    state = consumer.wait_for("the others to be applied", applied=4, acked=5)
    assert sorted(target.applied()) == sorted(rest)
    assert state["dead"] == 1 and state["failures"] == 3
    ((id, attempts, state_, text),) = target.dead_letters()
    assert (id, attempts, state_) == (bad, 3, sqlstate)
    assert error in text
    stored = target.execute(
        "SELECT payload, headers, ordering_key, event_type, version, source FROM inbox.dead_message"
    )
    assert stored == [(b'{"n": 1}', {"h": '"1"'}, "a", type, 1, "scripted")]


@pytest.mark.parametrize("type", ["commit", "native_commit"])
def test_a_handler_that_ends_the_transaction_is_told_so(target: Target, consume: Consume, type: str) -> None:
    """The event counts as applied all the same. Events behind it in its batch are not lost."""
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(connections=1)
        consumer.deliver("")
        target.wait_for_lock("the first event to be begun")
        consumer.deliver("a", type=type)
        (behind,) = consumer.deliver("a")
        consumer.wait_for("the others to wait", received=3)
        blocker.execute("COMMIT")
    state = consumer.wait_for("all to be acknowledged", acked=3)
    assert state["duplicates"] == 1
    assert behind in target.applied()


def test_a_permanent_failure_is_given_up_at_once(target: Target, consume: Consume) -> None:
    consumer = consume()
    (bad,) = consumer.deliver("a", type="permanent")
    state = consumer.wait_for("it to be acknowledged", acked=1)
    assert (state["dead"], state["failures"]) == (1, 1)
    assert target.dead_letters() == [(bad, 1, "P0001", "never")]


def test_the_policy_says_how_often(target: Target, consume: Consume) -> None:
    target.set_policy(max_attempts=2)
    consumer = consume()
    consumer.deliver("a", type="throw")
    state = consumer.wait_for("it to be given up", acked=1)
    assert (state["dead"], state["failures"]) == (1, 2)


def test_an_event_without_a_valid_id_becomes_a_dead_letter(target: Target, consume: Consume) -> None:
    consumer = consume()
    consumer.deliver("a", event_id="not a uuid")
    (good,) = consumer.deliver("a")
    consumer.wait_for("both to be acknowledged", acked=2)
    ((_, _, sqlstate, error),) = target.dead_letters()
    assert sqlstate == "22P02" and "not a uuid" in error
    assert target.applied() == [good]


def test_a_constraint_that_is_checked_at_commit(target: Target, consume: Consume) -> None:
    target.execute(
        "CREATE TABLE good (version bigint PRIMARY KEY);"
        "INSERT INTO good SELECT generate_series(1, 200) EXCEPT SELECT 70;"
        "ALTER TABLE applied ADD FOREIGN KEY (version) REFERENCES good DEFERRABLE INITIALLY DEFERRED"
    )
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(connections=1, max_attempts=2)
        for n in range(1, 121):
            consumer.deliver(str(n), first=n)
        consumer.wait_for("all to be received", received=120)
        blocker.execute("COMMIT")
    state = consumer.wait_for("all to be acknowledged", acked=120)
    assert (state["applied"], state["dead"]) == (119, 1)
    assert target.value("SELECT version FROM inbox.dead_message") == 70
    assert target.dead_letters()[0][2] == "23503"
    assert "is not present in table" in target.value("SELECT detail FROM inbox.dead_message")


# -------------------------------------------------------------------------------------------------
# Flow
# -------------------------------------------------------------------------------------------------


def test_not_more_is_received_than_may_be_outstanding(target: Target, consume: Consume) -> None:
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(max_outstanding_messages=10, connections=2, batch_size=3)
        ids = consumer.deliver("", 50)
        consumer.wait_for("the limit to be reached", received=10, outstanding_messages=10)
        stays(lambda: consumer.state()["received"], 10, seconds=0.5, what="what was received")
        blocker.execute("COMMIT")
    consumer.wait_for("all to be acknowledged", acked=50)
    assert sorted(target.applied()) == sorted(ids)


def test_an_event_above_the_limit_goes_through_alone(target: Target, consume: Consume) -> None:
    consumer = consume(max_outstanding_bytes=100)
    (id,) = consumer.deliver("a", payload="x" * 5000)
    consumer.wait_for("it to be acknowledged", acked=1)
    assert target.applied() == [id]
