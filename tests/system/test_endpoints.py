"""Endpoints: one destination whose subscribers are rows of outbox.endpoint."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster import Cluster, MakeCluster
from database import OUTSIDE, Database, create_database, running_relays
from ledger import SETUP, check, read_ledger, writer_command
from receiver import Event, Gate, Receiver, Request, answer, path
from waiting import stays, wait_until


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


# -------------------------------------------------------------------------------------------------
# Actions and queries
# -------------------------------------------------------------------------------------------------


def add_hooks(db: Database, **options: str) -> None:
    db.add_destination("hooks", "endpoints:", **{"retry_base": "50ms", "retry_max": "1s", **options})


def add(db: Database, name: str, url: str, topics: str = "*", tenant: str | None = None) -> None:
    db.execute(
        "INSERT INTO outbox.endpoint (server, name, url, topics, tenant) VALUES ('hooks', %s, %s, %s, %s)",
        (name, url, topics, tenant),
    )


def subscribe(db: Database, receiver: Receiver, *names: str, topics: str | None = None) -> None:
    """Endpoints of the receiver, each with a path and, unless `topics` says otherwise, a topic of its name."""
    for name in names:
        add(db, name, receiver.url(f"/{name}"), topics or name)


def events_at(receiver: Receiver, name: str) -> list[Event]:
    """Returns the events that the endpoint has accepted, in order."""
    return [event for event in receiver.events() if event.request.target == f"/{name}" and event.request.status == 204]


def versions_at(receiver: Receiver, name: str, key: str = "a") -> list[int]:
    return [event.version for event in events_at(receiver, name) if event.subject == key]


def wait_for_versions(receiver: Receiver, name: str, expected: list[int], key: str = "a") -> None:
    wait_until(
        lambda: versions_at(receiver, name, key),
        lambda seen: seen == expected,
        what=f"versions {expected} of {key} at {name}",
    )


def attempts_at(receiver: Receiver, name: str) -> int:
    return sum(request.target == f"/{name}" for request in list(receiver.requests))


def is_behind(db: Database, name: str) -> bool:
    return db.value("SELECT EXISTS (SELECT FROM outbox.cursor WHERE destination = %s)", (f"hooks/{name}",))


def wait_until_behind(db: Database, name: str) -> None:
    wait_until(lambda: is_behind(db, name), what=f"{name} to fall back")


def wait_until_live(db: Database, name: str) -> None:
    wait_until(lambda: is_behind(db, name), lambda seen: not seen, what=f"{name} to catch up")


def troubles(db: Database, name: str) -> list[tuple[str, int, str, int]]:
    return db.execute(
        "SELECT aggregate_id, version, state, attempts FROM outbox.delivery WHERE destination = %s ORDER BY position",
        (f"hooks/{name}",),
    )


def wait_for_troubles(db: Database, name: str, expected: list[tuple[str, int, str, int]]) -> None:
    wait_until(lambda: troubles(db, name), lambda seen: seen == expected, what=f"{expected} in trouble at {name}")


def versions(name: str, *wanted: int, key: str = "a") -> Callable[[Request], bool]:
    def matches(request: Request) -> bool:
        headers = request.headers
        return (
            request.target == f"/{name}"
            and headers["ce-subject"] == key
            and int(headers["ce-aggregateversion"]) in wanted
        )

    return matches


# -------------------------------------------------------------------------------------------------
# Delivery
# -------------------------------------------------------------------------------------------------


def test_each_endpoint_gets_its_topics(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    add(db, "orders", receiver.url("/orders"), "order")
    add(db, "invoices", receiver.url("/invoices"), "invoice.*, order")
    add(db, "everything", receiver.url("/everything"))
    db.enqueue("a", 3, topic="order")
    db.enqueue("a", 2, first=4, topic="invoice.paid")
    db.enqueue("a", 1, first=6, topic="other")
    wait_for_versions(receiver, "orders", [1, 2, 3])
    wait_for_versions(receiver, "invoices", [1, 2, 3, 4, 5])
    wait_for_versions(receiver, "everything", [1, 2, 3, 4, 5, 6])
    db.wait_settled("hooks")
    assert db.value("SELECT count(*) FROM outbox.delivery") == 0
    assert db.value("SELECT count(*) FROM outbox.batch") == 0
    assert not is_behind(db, "orders")


def test_the_topics_of_the_destination_limit_those_of_endpoints(db: Database, receiver: Receiver) -> None:
    add_hooks(db, topics="order, invoice.*")
    add(db, "all", receiver.url("/all"))
    db.enqueue("a", topic="secret")
    db.enqueue("a", first=2, topic="invoice.paid")
    wait_for_versions(receiver, "all", [2])


def next_event_arrives(db: Database, receiver: Receiver, at: str, topic: str) -> bool:
    """Enqueues an event that the endpoint two gets, and returns whether it arrives at another path as well."""
    version = max([0, *versions_at(receiver, "two")]) + 1
    db.enqueue("a", first=version, topic=topic)
    wait_until(lambda: version in versions_at(receiver, "two"), what="the event at the endpoint two")
    db.wait_settled("hooks")
    return version in versions_at(receiver, at)


def test_rows_take_effect_without_a_restart(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    subscribe(db, receiver, "two", topics="*")
    assert not next_event_arrives(db, receiver, "one", "other")
    relay = db.wait_for_worker("relay", "hooks")
    subscribe(db, receiver, "one", topics="*")
    assert next_event_arrives(db, receiver, "one", "topic"), "it gets all that commits later"
    db.execute("UPDATE outbox.endpoint SET url = %s WHERE name = 'one'", (receiver.url("/moved"),))
    wait_until(lambda: next_event_arrives(db, receiver, "moved", "topic"), what="the new address to be used")
    assert not next_event_arrives(db, receiver, "one", "topic")
    db.execute("UPDATE outbox.endpoint SET topics = 'other' WHERE name = 'one'")
    wait_until(lambda: not next_event_arrives(db, receiver, "moved", "topic"), what="the new topics to be used")
    assert next_event_arrives(db, receiver, "moved", "other")
    db.execute("DELETE FROM outbox.endpoint WHERE name = 'one'")
    wait_until(
        lambda: not next_event_arrives(db, receiver, "moved", "other"), what="the deleted endpoint to get nothing"
    )
    assert db.pid("relay", "hooks") == relay


def test_without_endpoints_events_are_for_nobody(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    db.enqueue("a", 10)
    db.wait_settled("hooks")
    subscribe(db, receiver, "late", topics="*")
    db.enqueue("a", first=11)
    wait_for_versions(receiver, "late", [11])


def test_many_endpoints_each_with_a_topic(db: Database, receiver: Receiver) -> None:
    many = 300
    add_hooks(db)
    db.execute(
        "INSERT INTO outbox.endpoint (server, name, url, topics) "
        "SELECT 'hooks', 'e' || n, %s || n, 'tenant.' || n FROM generate_series(1, %s) AS n",
        (receiver.url("/e"), many),
    )
    db.execute(
        "SELECT outbox.enqueue('item', 'a' || n, 'changed', '{}', version => v, topic => 'tenant.' || n) "
        "FROM generate_series(1, 5) AS v, generate_series(1, %s) AS n",
        (many,),
    )
    receiver.wait_for_requests(5 * many)
    for n in range(1, many + 1):
        wait_for_versions(receiver, f"e{n}", [1, 2, 3, 4, 5], key=f"a{n}")
    assert len(receiver.requests) == 5 * many


@pytest.mark.extension("there the relay has the secret, and the database does not know it")
def test_requests_are_signed_with_the_secret_of_the_endpoint(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    master = "whsec_" + base64.b64encode(b"m" * 32).decode()
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER hooks OPTIONS (signing_secret '{master}')")
    subscribe(db, receiver, "one", "two", topics="*")
    db.enqueue("a")
    wait_for_versions(receiver, "one", [1])
    wait_for_versions(receiver, "two", [1])
    secrets = {name: db.value("SELECT outbox.endpoint_secret('hooks', %s)", (name,)) for name in ("one", "two")}
    assert len({master, *secrets.values()}) == 3
    for request in receiver.requests:
        name = request.target[1:]
        key = base64.b64decode(secrets[name].removeprefix("whsec_"))
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert f"v1,{expected}" in request.headers["webhook-signature"].split()


# -------------------------------------------------------------------------------------------------
# Endpoints that fail
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [503, 500, 404])
def test_an_endpoint_that_is_down_gets_everything_later(db: Database, receiver: Receiver, status: int) -> None:
    receiver.on(path("/down"), answer(status))
    add_hooks(db)
    subscribe(db, receiver, "down", "works", topics="*")
    db.enqueue("a", 5)
    db.enqueue("b", 5)
    wait_for_versions(receiver, "works", [1, 2, 3, 4, 5])
    wait_until_behind(db, "down")
    db.wait_settled("hooks")
    db.enqueue("a", 5, first=6)
    db.enqueue("b", 5, first=6)
    wait_for_versions(receiver, "works", list(range(1, 11)))
    assert versions_at(receiver, "down") == []
    receiver.forget_rules()
    wait_for_versions(receiver, "down", list(range(1, 11)))
    wait_for_versions(receiver, "down", list(range(1, 11)), key="b")
    wait_until_live(db, "down")
    assert troubles(db, "down") == []
    assert versions_at(receiver, "works") == list(range(1, 11)), "its events were sent once"
    db.enqueue("a", first=11)
    wait_for_versions(receiver, "down", list(range(1, 12)))


def test_an_endpoint_that_refuses_connections(db: Database, receiver: Receiver) -> None:
    closed = Receiver()
    try:
        closed.refuse_connections()
        add_hooks(db)
        add(db, "closed", closed.url("/closed"))
        subscribe(db, receiver, "works", topics="*")
        db.enqueue("a", 3)
        wait_for_versions(receiver, "works", [1, 2, 3])
        wait_until_behind(db, "closed")
        db.enqueue("a", 3, first=4)
        wait_for_versions(receiver, "works", [1, 2, 3, 4, 5, 6])
        closed.listen()
        wait_for_versions(closed, "closed", [1, 2, 3, 4, 5, 6])
        wait_until_live(db, "closed")
    finally:
        closed.close()


def test_an_endpoint_that_hangs_holds_up_no_other(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(path("/hangs"), gate.held())
    add_hooks(db, request_timeout="1h")
    subscribe(db, receiver, "hangs", "works", topics="*")
    db.enqueue("a", 5)
    wait_for_versions(receiver, "works", [1, 2, 3, 4, 5])
    wait_until_behind(db, "hangs")  # its oldest copy has waited for too long
    db.wait_settled("hooks")
    gate.open()
    wait_for_versions(receiver, "hangs", [1, 2, 3, 4, 5])
    wait_until_live(db, "hangs")


def test_a_short_failure_costs_the_database_nothing(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/one"), answer(503), times=1)
    add_hooks(db)
    subscribe(db, receiver, "one", topics="*")
    written = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = 'batch'"
    db.enqueue("a", 3)
    wait_for_versions(receiver, "one", [1, 2, 3])
    db.wait_settled("hooks")
    assert db.value(written) == 0
    assert not is_behind(db, "one")


def test_a_destination_that_is_behind_goes_on_after_a_restart(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/down"), answer(503))
    add_hooks(db)
    subscribe(db, receiver, "down", "works", topics="*")
    db.enqueue("a", 5)
    wait_until_behind(db, "down")
    db.change_destination("hooks", requests_per_endpoint="3")  # starts over
    db.enqueue("a", 5, first=6)
    wait_until(
        lambda: set(versions_at(receiver, "works")), lambda seen: seen == set(range(1, 11)), what="all at the other"
    )
    receiver.forget_rules()
    # The relay may notice the change of an option only now, and then repeats what was on its way.
    wait_until(
        lambda: list(dict.fromkeys(versions_at(receiver, "down"))),
        lambda seen: seen == list(range(1, 11)), what="all at the one that was down, in order",
    )  # fmt: skip
    wait_until_live(db, "down")


def test_a_queue_that_grows_too_long_leaves_memory(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(path("/slow"), gate.held())
    add_hooks(db, request_timeout="1h")
    subscribe(db, receiver, "slow", "works", topics="*")
    count = 3000
    db.enqueue("a", count)
    wait_for_versions(receiver, "works", list(range(1, count + 1)))
    wait_until_behind(db, "slow")
    db.wait_settled("hooks")
    gate.open()
    wait_for_versions(receiver, "slow", list(range(1, count + 1)))
    wait_until_live(db, "slow")


def test_one_request_in_a_hundred_fails(db: Database, receiver: Receiver) -> None:
    dice = random.Random(1)
    receiver.on(lambda _: dice.random() < 0.01, answer(503))
    add_hooks(db)
    names = [f"e{n}" for n in range(10)]
    subscribe(db, receiver, *names)
    count = 200
    for name in names:
        for key in range(5):
            db.enqueue(f"{name}-{key}", count // 5, topic=name)
    for name in names:
        for key in range(5):
            wait_for_versions(receiver, name, list(range(1, count // 5 + 1)), key=f"{name}-{key}")
    for name in names:
        wait_until_live(db, name)


def test_an_endpoint_that_is_gone_is_paused(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/gone"), answer(410))
    add_hooks(db)
    subscribe(db, receiver, "gone", "works", topics="*")
    db.enqueue("a", 2)
    paused = "SELECT paused FROM outbox.endpoint WHERE name = 'gone'"
    wait_until(lambda: db.value(paused), what="the endpoint to be paused")
    wait_until_behind(db, "gone")
    wait_for_versions(receiver, "works", [1, 2])
    db.wait_settled("hooks")
    attempts = attempts_at(receiver, "gone")
    db.enqueue("a", first=3)
    wait_for_versions(receiver, "works", [1, 2, 3])
    assert attempts_at(receiver, "gone") == attempts, "nothing is sent to it"
    receiver.forget_rules()
    db.execute("UPDATE outbox.endpoint SET paused = false WHERE name = 'gone'")
    wait_for_versions(receiver, "gone", [1, 2, 3])
    wait_until_live(db, "gone")


# -------------------------------------------------------------------------------------------------
# Operators
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["row", "function"])
def test_pause_and_resume(db: Database, receiver: Receiver, by: str) -> None:
    add_hooks(db)
    add(db, "acme", receiver.url("/acme"), tenant="acme")
    add(db, "other", receiver.url("/other"), tenant="other")
    db.enqueue("a")
    for name in ("acme", "other"):
        wait_for_versions(receiver, name, [1])
    db.wait_saved("hooks")  # or the event may be sent again
    if by == "row":
        db.execute("UPDATE outbox.endpoint SET paused = true WHERE tenant = 'acme'")
    else:
        db.execute("SELECT outbox.pause('hooks/acme')")
    wait_until_behind(db, "acme")
    db.enqueue("a", 3, first=2)
    wait_for_versions(receiver, "other", [1, 2, 3, 4])
    db.wait_settled("hooks")
    assert versions_at(receiver, "acme") == [1]
    if by == "row":
        db.execute("UPDATE outbox.endpoint SET paused = false WHERE tenant = 'acme'")
    else:
        db.execute("SELECT outbox.resume('hooks/acme')")
    wait_for_versions(receiver, "acme", [1, 2, 3, 4])
    wait_until_live(db, "acme")


@pytest.mark.parametrize("topics", ["a", "a*"])
def test_events_of_topics_that_an_endpoint_has_left_are_not_sent(db: Database, receiver: Receiver, topics: str) -> None:
    """Also not those that wait for it, in batches, in outbox.delivery or fetched. Nothing of its own is lost."""
    receiver.on(path("/acme"), answer(401))
    receiver.on(versions("acme", 1, key="refused"), answer(422), times=1)
    add_hooks(db)
    add(db, "acme", receiver.url("/acme"), topics="a,b")
    db.enqueue("refused", 2, topic="b")
    db.enqueue("left", 150, topic="b")
    db.enqueue("kept", 150, topic="a")
    wait_until_behind(db, "acme")
    wait_until(lambda: attempts_at(receiver, "acme") >= 3, what="attempts while it is behind")
    db.execute("UPDATE outbox.endpoint SET topics = %s WHERE name = 'acme'", (topics,))
    before = len(receiver.events())
    wait_until(
        lambda: receiver.subjects()[before:][-4:],
        lambda seen: seen == ["kept"] * 4,
        what="attempts with the new topics",
    )
    taken = len(receiver.requests)
    receiver.forget_rules()
    wait_for_versions(receiver, "acme", list(range(1, 151)), key="kept")
    wait_until_live(db, "acme")
    later = [e for e in receiver.events() if e.request.number > taken and e.subject != "kept"]
    assert len(later) <= 4, "at most what was under way"
    assert troubles(db, "acme") == []


@pytest.mark.parametrize(
    "act",
    [
        pytest.param("SELECT outbox.resume('hooks/acme')", id="resume"),
        pytest.param("SELECT outbox.resume('hooks')", id="resume all"),
        pytest.param("UPDATE outbox.endpoint SET secret_name = 'acme-2' WHERE name = 'acme'", id="secret"),
        pytest.param("UPDATE outbox.endpoint SET url = url || '?new' WHERE name = 'acme'", id="url"),
    ],
)
def test_a_repair_ends_the_wait_of_an_endpoint(db: Database, receiver: Receiver, act: str) -> None:
    receiver.on(path("/acme"), answer(429, [("Retry-After", "3600")]))
    add_hooks(db)
    add(db, "acme", receiver.url("/acme"))
    db.enqueue("a", 3)
    wait_until(
        lambda: db.value("SELECT next_attempt_at > now() + interval '50 min' FROM outbox.endpoint_status"),
        what="the pause",
    )
    receiver.forget_rules()
    db.execute(act)
    wait_until(lambda: [e.version for e in receiver.events() if e.request.status == 204], lambda v: v == [1, 2, 3],
               what="the events")  # fmt: skip
    wait_until_live(db, "acme")
    assert db.value("SELECT next_attempt_at IS NULL FROM outbox.endpoint_status")


def test_the_whole_destination_can_be_paused(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    subscribe(db, receiver, "one", "two", topics="*")
    db.enqueue("a")
    wait_for_versions(receiver, "one", [1])
    wait_for_versions(receiver, "two", [1])
    db.pause("hooks")
    db.enqueue("a", 2, first=2)
    subscribe(db, receiver, "three", topics="*")
    stays(lambda: len(receiver.requests), 2, seconds=0.3, what="requests while it is paused")
    db.execute("SELECT outbox.resume('hooks')")
    for name in ("one", "two"):
        wait_for_versions(receiver, name, [1, 2, 3])


def test_a_refused_event_is_retried_for_its_endpoint_only(db: Database, receiver: Receiver) -> None:
    receiver.on(versions("picky", 2), answer(422), times=2)
    add_hooks(db)
    subscribe(db, receiver, "picky", "works", topics="*")
    db.enqueue("a", 3)
    db.enqueue("b", 3)
    wait_for_versions(receiver, "picky", [1, 2, 3])
    wait_for_versions(receiver, "picky", [1, 2, 3], key="b")
    wait_for_versions(receiver, "works", [1, 2, 3])
    wait_until_live(db, "picky")
    assert troubles(db, "picky") == []
    assert attempts_at(receiver, "works") == 6, "the other endpoint got each event once"


def test_a_dead_letter_of_one_endpoint_can_be_redriven(db: Database, receiver: Receiver) -> None:
    receiver.on(versions("picky", 2), answer(413))
    add_hooks(db)
    subscribe(db, receiver, "picky", "works", topics="*")
    ids = db.enqueue("a", 4)
    wait_for_versions(receiver, "picky", [1, 3, 4])
    wait_for_troubles(db, "picky", [("a", 2, "DEAD", 1)])
    wait_until_live(db, "picky")  # the dead letter holds up nothing
    db.enqueue("a", first=5)
    wait_for_versions(receiver, "picky", [1, 3, 4, 5])
    receiver.forget_rules()
    assert db.value("SELECT outbox.redrive('hooks/picky', %s)", (ids[1],)) == 1
    wait_for_versions(receiver, "picky", [1, 3, 4, 5, 2])
    wait_for_troubles(db, "picky", [])
    wait_until_live(db, "picky")
    wait_for_versions(receiver, "works", [1, 2, 3, 4, 5])


def test_a_dead_letter_can_be_discarded(db: Database, receiver: Receiver) -> None:
    receiver.on(versions("picky", 1), answer(413))
    add_hooks(db, on_dead_letter="block")
    subscribe(db, receiver, "picky", topics="*")
    ids = db.enqueue("a", 2)
    db.enqueue("b", 2)
    wait_for_versions(receiver, "picky", [1, 2], key="b")
    wait_for_troubles(db, "picky", [("a", 1, "DEAD", 1), ("a", 2, "PENDING", 0)])
    assert versions_at(receiver, "picky") == []
    assert db.value("SELECT outbox.discard('hooks/picky', ARRAY[%s::uuid], why => 'test')", (ids[0],)) == 1
    wait_for_versions(receiver, "picky", [2])
    wait_until_live(db, "picky")


def test_attempts_are_used_up_for_one_endpoint(db: Database, receiver: Receiver) -> None:
    receiver.on(versions("picky", 1), answer(400))
    add_hooks(db, retry_base="1ms", max_attempts="3")
    subscribe(db, receiver, "picky", topics="*")
    db.enqueue("a", 2)
    wait_for_versions(receiver, "picky", [2])
    wait_for_troubles(db, "picky", [("a", 1, "DEAD", 3)])


def test_replay_to_one_endpoint(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    subscribe(db, receiver, "one", "two", topics="*")
    db.enqueue("a", 3)
    wait_for_versions(receiver, "one", [1, 2, 3])
    wait_for_versions(receiver, "two", [1, 2, 3])
    db.wait_settled("hooks")
    db.execute("SELECT outbox.replay('hooks/one', aggregate_id => 'a')")
    wait_for_versions(receiver, "one", [1, 2, 3, 1, 2, 3])
    wait_until_live(db, "one")
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "one", [1, 2, 3, 1, 2, 3, 4])
    wait_for_versions(receiver, "two", [1, 2, 3, 4])


def test_an_endpoint_that_is_behind_can_be_deleted(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/down"), answer(503))
    add_hooks(db)
    subscribe(db, receiver, "down", "works", topics="*")
    db.enqueue("a", 3)
    wait_until_behind(db, "down")
    db.execute("DELETE FROM outbox.endpoint WHERE name = 'down'")
    wait_until_live(db, "down")
    db.enqueue("a", first=4)
    wait_for_versions(receiver, "works", [1, 2, 3, 4])
    db.wait_settled("hooks")
    for table in ("cursor", "batch", "delivery"):
        assert db.value(f"SELECT count(*) FROM outbox.{table} WHERE destination = 'hooks/down'") == 0, table


def test_an_endpoint_that_is_behind_can_move(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/old"), answer(503))
    add_hooks(db)
    add(db, "moves", receiver.url("/old"))
    db.enqueue("a", 3)
    wait_until_behind(db, "moves")
    db.execute("UPDATE outbox.endpoint SET url = %s", (receiver.url("/new"),))
    wait_for_versions(receiver, "new", [1, 2, 3])
    wait_until_live(db, "moves")


def test_an_endpoint_outside_of_the_allowed_hosts_is_never_asked(db: Database, receiver: Receiver) -> None:
    add_hooks(db)
    add(db, "hostile", f"http://127.0.0.2:{receiver.port}/hostile")
    subscribe(db, receiver, "works", topics="*")
    db.enqueue("a", 3)
    wait_for_versions(receiver, "works", [1, 2, 3])
    wait_until_behind(db, "hostile")
    db.wait_settled("hooks")
    assert attempts_at(receiver, "hostile") == 0
    error = db.value("SELECT last_error FROM outbox.endpoint_status WHERE name = 'hostile'")
    assert "allowed_hosts" in error


def test_status_and_health_tell(db: Database, receiver: Receiver) -> None:
    receiver.on(path("/down"), answer(503))
    add_hooks(db)
    subscribe(db, receiver, "down", "works", topics="*")
    db.enqueue("a", 3)
    wait_until_behind(db, "down")

    def state(name: str) -> Any:
        return db.value("SELECT state FROM outbox.endpoint_status WHERE name = %s", (name,))

    wait_until(lambda: state("down"), lambda seen: seen not in ("live", None), what="the status of the endpoint")
    assert state("works") == "live"
    error = wait_until(
        lambda: db.value("SELECT last_error FROM outbox.endpoint_status WHERE name = 'down'"), what="its error"
    )
    assert "503" in error
    receiver.forget_rules()
    wait_until_live(db, "down")
    wait_until(lambda: state("down"), lambda seen: seen == "live", what="it to be live")


# -------------------------------------------------------------------------------------------------
# Crashes
# -------------------------------------------------------------------------------------------------

CHANGE = """
CREATE OR REPLACE FUNCTION change(which int, writer int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
    event uuid;
BEGIN
    UPDATE aggregate SET version = version + 1 WHERE id = which RETURNING version INTO new_version;
    event := outbox.enqueue('item', which::text, 'changed', jsonb_build_object('writer', writer),
                            version => new_version, topic => 'tenant.' || which %% 10);
    INSERT INTO ledger VALUES (event, which, new_version, writer);
    RETURN event;
END $$;
"""


@contextmanager
def writers(cluster: Cluster, db: Database, aggregates: int, seed: int) -> Iterator[None]:
    processes = [
        subprocess.Popen(writer_command(cluster.conninfo(db.name), n, seed + n, aggregates), stdout=subprocess.PIPE)
        for n in range(3)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=120)


def kill_relay(cluster: Cluster, db: Database) -> None:
    if OUTSIDE:
        relay = running_relays(cluster)[db.name]
        relay.kill()
        relay.start()
    else:
        cluster.kill_and_recover(db.wait_for_worker("relay", "hooks"))


@pytest.mark.long
@pytest.mark.slow
def test_crashes_lose_nothing_and_keep_order(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    cluster = make_cluster({"outbox.cursor_flush_interval": "20ms", "outbox.segment_size": "256kB"})
    db = create_database(cluster)
    db.execute(SETUP.format(aggregates=100))
    db.execute(CHANGE.replace("%%", "%"))
    add_hooks(db, max_attempts="1000", retry_base="10ms", retry_max="100ms")
    names = [f"e{n}" for n in range(10)]
    for n, name in enumerate(names):
        add(db, name, receiver.url(f"/{name}"), f"tenant.{n}")
    add(db, "all", receiver.url("/all"))
    failing: set[str] = set()

    def fails(request: Request) -> bool:
        return request.target in failing and dice.random() < 0.7

    receiver.on(lambda r: fails(r) and dice.random() < 0.2, answer(400))
    receiver.on(fails, answer(503))

    def arrived() -> int:
        return len(receiver.requests)

    with writers(cluster, db, 100, seed):
        for round in range(8):
            failing.clear()
            failing.update(f"/{name}" for name in dice.sample([*names, "all"], 2))
            before = arrived()
            wait_until(arrived, lambda seen: seen >= before + 300, timeout=120, what="300 more requests")
            if round % 3 == 2:
                cluster.restart("immediate")
            else:
                kill_relay(cluster, db)
    failing.clear()
    ledger = read_ledger(db.connection)

    def missing() -> dict[str, int]:
        wanted: dict[str, set[str]] = {name: set() for name in [*names, "all"]}
        for entry in ledger:
            wanted[f"e{int(entry.key) % 10}"].add(entry.event_id)
            wanted["all"].add(entry.event_id)
        for event in receiver.events():
            if event.request.status == 204:
                wanted[event.request.target[1:]].discard(event.id)
        return {name: len(left) for name, left in wanted.items() if left}

    wait_until(missing, lambda left: not left, timeout=120, what="all events at all endpoints")
    for n, name in enumerate([*names, "all"]):
        own = [entry for entry in ledger if name == "all" or int(entry.key) % 10 == n]
        check(own, [event.id for event in events_at(receiver, name)]).hold(restarts=1000, repeats=True)
    for name in [*names, "all"]:
        wait_until_live(db, name)
    assert db.value("SELECT count(*) FROM outbox.delivery") == 0
    assert db.value("SELECT count(*) FROM outbox.batch") == 0
