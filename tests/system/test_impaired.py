"""A receiver that works for most events and fails for some: what fails has no part in what works."""

from __future__ import annotations

import random

import pytest

from database import Database
from receiver import Gate, Receiver, answer, everything, subject
from waiting import wait_until


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


def enqueue_keys(db: Database, keys: int, each: int) -> list[str]:
    rows = db.execute(
        "SELECT outbox.enqueue('item', 'k' || k, 'changed', '{}', version => n) "
        "FROM generate_series(1, %s) AS n, generate_series(1, %s) AS k",
        (each, keys),
    )
    return [str(row[0]) for row in rows]


def wait_for(receiver: Receiver, subjects: set[str], each: int) -> None:
    wait_until(
        lambda: {s for s in subjects if set(receiver.versions(s)) != set(range(1, each + 1))},
        lambda missing: not missing, what="all events of keys that are well",
    )  # fmt: skip


def test_answers_of_503_at_random_cost_nothing_else(db: Database, receiver: Receiver) -> None:
    dice = random.Random(1)
    receiver.on(lambda request: dice.random() < 0.05, answer(503))
    db.add_destination("d", receiver.url())
    enqueue_keys(db, 50, 20)
    wait_for(receiver, {f"k{n}" for n in range(1, 51)}, 20)
    db.wait_settled()
    status = db.status()
    assert status["throttled"] > 0
    assert db.value("SELECT count(*) FROM outbox.delivery") == 0, "nobody is to blame"
    for n in range(1, 51):
        versions = list(dict.fromkeys(receiver.versions(f"k{n}")))
        assert versions == sorted(versions), "a key was overtaken"


def test_poison_that_is_all_that_is_left(db: Database, receiver: Receiver) -> None:
    """Attempts go on at their own pace, dead letters appear, a fresh event goes out."""
    poison = {f"k{n}" for n in range(10, 101, 10)}
    receiver.on(subject(*poison), answer(400))
    db.add_destination("d", receiver.url(), max_attempts="3", retry_base="100ms", retry_max="1s")
    enqueue_keys(db, 100, 3)
    wait_for(receiver, {f"k{n}" for n in range(1, 101)} - poison, 3)
    fresh = db.enqueue("fresh")
    wait_until(receiver.ids, lambda ids: set(fresh) <= set(ids), what="the fresh event")
    wait_until(
        lambda: db.value("SELECT count(*) FROM outbox.delivery WHERE state = 'DEAD'"),
        lambda dead: dead == 3 * len(poison), what="dead letters of all poison",
    )  # fmt: skip


def test_keys_that_hang_cost_their_own_slots(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    hanging = {f"k{n}" for n in range(5, 101, 5)}  # more than there are connections
    receiver.on(subject(*hanging), gate.held())
    db.add_destination("d", receiver.url(), request_timeout="1h")
    enqueue_keys(db, 100, 5)
    wait_for(receiver, {f"k{n}" for n in range(1, 101)} - hanging, 5)
    assert len(gate.holding) == len(hanging)
    gate.open()
    wait_for(receiver, hanging, 5)
    db.wait_settled()


def test_a_receiver_that_asks_for_less_is_shown_as_throttled(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(429, [("Retry-After", "3600")]), times=1)
    db.add_destination("d", receiver.url())
    db.enqueue("a")
    wait_until(lambda: db.status()["state"], lambda state: state == "throttled", what="throttled")
    status = db.status()
    assert status["throttled"] == 1 and "429" in status["last_error"]
    assert db.value("SELECT count(*) FROM outbox.delivery") == 0
    assert "outbox_throttled_total" in db.value("SELECT outbox.metrics()")


def test_the_log_has_few_lines(db: Database, receiver: Receiver) -> None:
    dice = random.Random(1)
    receiver.on(lambda request: dice.random() < 0.2, answer(500))
    db.add_destination("d", receiver.url())
    enqueue_keys(db, 50, 20)
    wait_for(receiver, {f"k{n}" for n in range(1, 51)}, 20)
    lines = db.cluster.log_since(db.cluster.test_began).count('destination "d"')
    assert lines <= 12
