"""A receiver that works for most events and fails for some: failures do not affect the others."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

import nginx
from database import Database
from receiver import Gate, Receiver, answer, everything, subject
from waiting import SECOND, wait_until


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


def test_attempts_go_on_when_only_refused_keys_are_left(db: Database, receiver: Receiver) -> None:
    """Attempts go on at their own pace, dead letters appear, a fresh event is delivered."""
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


# -------------------------------------------------------------------------------------------------
# Poison
# -------------------------------------------------------------------------------------------------

# Notes each change of a row of events in trouble.
NOTE_ATTEMPTS = """
    CREATE TABLE public.attempt (
        ordering_key text, event_id uuid, number integer, at timestamptz, pause interval);
    CREATE FUNCTION public.note_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.attempt
        VALUES (NEW.ordering_key, NEW.event_id, NEW.attempts, NEW.last_failed_at,
                NEW.next_retry_at - NEW.last_failed_at);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_attempt AFTER UPDATE ON outbox.delivery FOR EACH ROW
        WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION public.note_attempt();
"""

# For each refused key: the sum of the pauses between attempts, and the duration of all attempts.
POISONED_KEYS = """
    SELECT ordering_key, count(*), extract(epoch FROM sum(pause))::float8,
           extract(epoch FROM max(at) - min(at))::float8
      FROM public.attempt GROUP BY ordering_key"""


@pytest.mark.timing
def test_dead_letters_of_poison_appear_when_their_policy_says_so(db: Database, receiver: Receiver) -> None:
    """Other events are not affected, neither meanwhile nor when only refused keys are left."""
    poison = {f"k{n}" for n in range(20, 201, 20)}
    receiver.on(subject(*poison), answer(400))
    db.execute(NOTE_ATTEMPTS)
    db.add_destination("d", receiver.url(), max_attempts="4", retry_base="1s", retry_max="2s")
    enqueue_keys(db, 200, 2)
    wait_for(receiver, {f"k{n}" for n in range(1, 201)} - poison, 2)
    sent: dict[str, float] = {}  # events that are well, one at a time

    def dead_letters() -> int:
        if set(receiver.ids()) >= set(sent):
            began = time.monotonic()
            sent[db.enqueue(f"well {len(sent)}")[0]] = began
        return db.value("SELECT count(*) FROM outbox.dead_letter")

    wait_until(dead_letters, lambda dead: dead == 2 * len(poison), timeout=120, what="dead letters")
    wait_until(receiver.ids, lambda ids: set(sent) <= set(ids), what="all events that are well")
    waits = [e.request.began - sent[e.id] for e in receiver.events() if e.id in sent]
    assert max(waits) < SECOND, f"an event that is well took {max(waits):.3f} s"

    keys = db.execute(POISONED_KEYS)
    assert {key for key, *_ in keys} == poison
    for key, attempts, pauses, took in keys:
        assert attempts == 2 * 4
        assert took < 1.5 * pauses + SECOND, f"{key}: {took:.3f} s, with pauses {pauses:.3f} s"
    pauses, took = (sum(row[column] for row in keys) for column in (2, 3))
    assert took < 1.5 * pauses + SECOND, f"all poison took {took:.3f} s, the pauses are {pauses:.3f} s"


@pytest.mark.timing
def test_a_fresh_event_does_not_wait_for_poison_that_pauses(db: Database, receiver: Receiver) -> None:
    receiver.on(subject("a", "b"), answer(400))
    db.add_destination("d", receiver.url(), retry_base="24h", retry_max="24h")
    db.enqueue("a", 3)
    db.enqueue("b", 3)
    wait_until(
        lambda: db.execute("SELECT state, count(*) FROM outbox.delivery GROUP BY 1 ORDER BY 1"),
        lambda states: states == [("PENDING", 4), ("RETRY", 2)], what="poison that waits",
    )  # fmt: skip
    began = time.monotonic()
    (fresh,) = db.enqueue("c")
    wait_until(receiver.ids, lambda ids: fresh in ids, what="the fresh event")
    (event,) = [event for event in receiver.events() if event.id == fresh]
    assert event.request.began - began < SECOND


# -------------------------------------------------------------------------------------------------
# A real server
# -------------------------------------------------------------------------------------------------

CONFIGURATION = """
{main}
events {{ worker_connections 512; }}
http {{
    log_format record '$status $http_ce_subject $http_ce_aggregateversion';
    access_log {root}/access.log record;
    {paths}
    split_clients $request_id $in_twenty {{ 5% 1; * 0; }}
    map $http_ce_subject $refused {{ ~0$ 1; default 0; }}
    limit_req_zone $server_port zone=shed:1m rate=50r/s;
    limit_req_status 429;
    server {{
        listen 127.0.0.1:{port};
        location = /unavailable {{ if ($in_twenty) {{ return 503; }} return 204; }}
        location = /closes {{ if ($in_twenty) {{ return 444; }} return 204; }}
        location = /refuses {{ if ($refused) {{ return 400; }} return 204; }}
        location = /sheds {{ limit_req zone=shed; proxy_pass http://unix:{root}/backend; }}
    }}
    server {{ listen unix:{root}/backend; access_log off; location / {{ return 204; }} }}
}}
"""


class ImpairedServer(nginx.Nginx):
    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def taken(self) -> dict[str, list[int]]:
        """Returns per key the accepted versions, in order, without duplicates."""
        taken: dict[str, dict[int, None]] = {}
        for status, key, version in self.log():
            if status == "204":
                taken.setdefault(key, {})[int(version)] = None
        return {key: list(versions) for key, versions in taken.items()}

    def wait_for(self, keys: set[str], each: int) -> None:
        wait_until(
            lambda: {key for key in keys if len(self.taken().get(key, [])) < each},
            lambda missing: not missing, what="all events of these keys in the log of nginx",
        )  # fmt: skip
        for key, versions in self.taken().items():
            assert versions == sorted(versions), f"{key} came in the order {versions}"


@pytest.fixture
def server() -> Iterator[ImpairedServer]:
    nginx.need()
    server = ImpairedServer(CONFIGURATION)
    yield server
    server.close()


KEYS = {f"k{n}" for n in range(1, 101)}


@pytest.mark.parametrize("path", ["unavailable", "closes"])
def test_a_server_that_fails_at_random(db: Database, server: ImpairedServer, path: str) -> None:
    db.add_destination("d", server.url(path), retry_base="50ms", retry_max="50ms")
    enqueue_keys(db, 100, 20)
    server.wait_for(KEYS, 20)
    db.wait_settled()
    wait_until(
        lambda: db.value("SELECT count(*) FROM outbox.delivery"), lambda rows: rows == 0,
        what="nothing to be in trouble",
    )  # fmt: skip


def test_a_server_that_sheds_load(db: Database, server: ImpairedServer) -> None:
    """Delivery is slower, and no attempt is counted."""
    db.add_destination("d", server.url("sheds"))
    enqueue_keys(db, 100, 3)
    server.wait_for(KEYS, 3)
    db.wait_settled()
    assert db.status()["throttled"] > 0
    assert db.value("SELECT count(*) FROM outbox.delivery WHERE attempts > 0") == 0


def test_a_server_that_refuses_some_keys(db: Database, server: ImpairedServer) -> None:
    policy = {"max_attempts": "2", "retry_base": "50ms", "retry_max": "50ms"}
    db.add_destination("d", server.url("refuses"), **policy)
    enqueue_keys(db, 100, 5)
    refused = {key for key in KEYS if key.endswith("0")}
    server.wait_for(KEYS - refused, 5)
    wait_until(
        lambda: db.execute("SELECT ordering_key, count(*) FROM outbox.dead_letter GROUP BY 1"),
        lambda dead: dict(dead) == dict.fromkeys(refused, 5), what="dead letters of what is refused",
    )  # fmt: skip
    assert not refused & set(server.taken())
