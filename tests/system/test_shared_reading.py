"""Several destinations read one log: what one relay has read, others take from it (shared_reading.hpp).

Relays of `null:` count what they deliver, so a lost event or one too many shows in the sum. Large transactions have
many blocks; with little shared memory these are overwritten before others have taken them.
"""

from __future__ import annotations

import threading

import pytest

from cluster import MakeCluster
from database import Database, create_database
from receiver import Event, Receiver
from waiting import wait_until

LARGE = 3000  # events of one transaction: several blocks
TOPICS = {"all": "*", "all2": "*", "all3": "*", "x": "*.x", "y": "*.y", "a": "a.*, b.y", "none": "nothing"}
SIZES = ("0", "400kB", "16MB")

ENQUEUE = """
    SELECT count(outbox.enqueue('item', %s || '-' || n %% 7, 'changed', jsonb_build_object('n', n, 'text', repeat('t', n %% 900)),
                                %s::bigint + n, topic => (ARRAY['a.x', 'a.y', 'b.x', 'b.y'])[n %% 4 + 1],
                                headers => CASE WHEN n %% 3 = 0 THEN jsonb_build_object('h', n) END))
      FROM generate_series(1, %s) AS n
"""
MATCHING = """
    SELECT count(*) FROM outbox.event WHERE topic LIKE ANY (outbox_internal.topic_patterns(%s))
"""

pytestmark = pytest.mark.worker


@pytest.fixture(params=SIZES)
def database(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> Database:
    settings = {"outbox.shared_read_size": request.param, "max_worker_processes": "32", "outbox.retention": "1h"}
    return create_database(make_cluster(settings))


def write(database: Database, sessions: int = 3, transactions: int = 20, first: int = 0) -> None:
    """Small and large transactions of several sessions, some of which are rolled back."""

    def session(number: int) -> None:
        with database.connect() as connection:
            for i in range(transactions):
                size = LARGE if i % 10 == number else 1 + i % 5
                version = first + i * LARGE
                with connection.transaction(force_rollback=i % 7 == 3):
                    connection.execute(ENQUEUE, (str(number), version, size))

    threads = [threading.Thread(target=session, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def expected(database: Database) -> dict[str, int]:
    return {name: database.value(MATCHING, (topics,)) for name, topics in TOPICS.items()}


def wait_for(database: Database, wanted: dict[str, int]) -> None:
    wait_until(
        lambda: {name: database.published(name) for name in wanted}, lambda seen: seen == wanted,
        what=f"exactly {wanted} events",
    )  # fmt: skip


def arrived(receiver: Receiver, name: str) -> list[Event]:
    return [event for event in receiver.events() if event.request.target == f"/{name}"]


def assert_in_order(events: list[Event]) -> None:
    """Each session has keys of its own, and versions that increase. Events may be repeated."""
    last: dict[str, int] = {}
    seen: set[str] = set()
    for event in events:
        if event.id not in seen:
            assert event.version > last.get(event.subject, -1), event
            last[event.subject] = event.version
        seen.add(event.id)


def test_each_destination_gets_its_events_once(database: Database) -> None:
    for name, topics in TOPICS.items():
        database.add_destination(name, "null:", topics=topics)
    for _ in range(3):
        write(database)
        wait_for(database, expected(database))


@pytest.mark.long
def test_a_relay_that_starts_later_or_is_paused_misses_nothing(database: Database) -> None:
    first = {name: topics for name, topics in TOPICS.items() if name not in ("all2", "x")}
    for name, topics in first.items():
        database.add_destination(name, "null:", topics=topics)
    for name in TOPICS.keys() - first.keys():
        database.add_destination(name, "null:", topics=TOPICS[name])
        database.pause(name)
    write(database)
    for name in TOPICS.keys() - first.keys():
        database.execute("SELECT outbox.resume(%s)", (name,))
    write(database)
    wait_for(database, expected(database))
    # It repeats the log from the beginning, with all events of the last windows.
    database.execute("SELECT outbox.seek('all2', 'beginning')")
    wanted = expected(database)
    wait_for(database, wanted | {"all2": 2 * wanted["all2"]})


@pytest.mark.long
def test_relays_that_end_take_nothing_with_them(database: Database, receiver: Receiver, http: None) -> None:
    for name in ("one", "two", "three"):
        database.add_destination(name, receiver.url(f"/{name}"))
    ended = threading.Event()

    def end_relays() -> None:
        with database.connect() as connection:
            while not ended.wait(0.2):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM outbox.workers() WHERE kind = 'relay' ORDER BY random() LIMIT 1"
                )
                connection.commit()

    thread = threading.Thread(target=end_relays)
    thread.start()
    write(database, transactions=7)
    ended.set()
    thread.join()
    database.cluster.kill_and_recover(database.wait_for_worker("relay", "one"))
    database.disconnect()
    write(database, transactions=7, first=7 * LARGE)
    ids = {str(event_id) for (event_id,) in database.execute("SELECT event_id FROM outbox.event")}
    for name in ("one", "two", "three"):
        wait_until(
            lambda: arrived(receiver, name), lambda seen: {event.id for event in seen} == ids,
            what=f"all {len(ids)} events at {name}", timeout=180,
        )  # fmt: skip
        assert_in_order(arrived(receiver, name))
