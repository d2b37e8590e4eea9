"""on_full_log = detach: only the destination whose events fill the log is detached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import MakeCluster
from database import Database, create_database
from receiver import Receiver
from waiting import wait_until

LIMIT = 2 * 1024 * 1024


@pytest.fixture
def db(make_cluster: MakeCluster) -> Iterator[Database]:
    yield create_database(
        make_cluster(
            {
                "outbox.segment_size": "64kB",
                "outbox.max_log_size": f"{LIMIT // 1024 // 1024}MB",
                "outbox.on_full_log": "detach",
                "outbox.retry_max": "1s",
            }
        )
    )


def enqueue_junk(db: Database, topic: str = "junk.x") -> None:
    """Enqueues 150 kB in one call, more than outbox.segment_size."""
    db.execute(
        "SELECT outbox.enqueue(ARRAY(SELECT ROW('junk', n::text, 'changed', to_jsonb(repeat(md5(n::text), 10)), n, %s, NULL, "
        "NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event FROM generate_series(1, 400) AS n))",
        (topic,),
    )


def enqueue_order(db: Database, number: int) -> str:
    return str(
        db.value(
            "SELECT outbox.enqueue('order', 'one', 'changed', to_jsonb(%s::int), %s, topic => 'orders.x')",
            (number, number),
        )
    )


def size(db: Database) -> int:
    return db.value("SELECT sum(size)::bigint FROM outbox.segment")


def actions(db: Database) -> set[str]:
    return {action for (action,) in db.execute("SELECT DISTINCT action FROM outbox.operation")}


def turns(db: Database) -> Iterator[None]:
    """Yields after each turn of the ring, until all segments are held."""
    while True:
        current = db.value("SELECT number FROM outbox.ring WHERE current")
        yield
        wait_until(
            lambda: db.value("SELECT number FROM outbox.ring WHERE current") != current
            or db.value("SELECT bool_and(held_by <> '{}') FROM outbox.segment WHERE NOT current"),
            what="the ring to turn",
        )  # fmt: skip


@pytest.mark.long
def test_events_that_no_destination_selects_leave_the_log(db: Database, receiver: Receiver, http: None) -> None:
    """S22 (c)"""
    receiver.refuse_connections()
    db.add_destination("web", receiver.url(), topics="orders.*")
    order = enqueue_order(db, 1)
    for _, _ in zip(range(40), turns(db)):  # 6 MB
        enqueue_junk(db)
    wait_until(lambda: size(db), lambda size: size < LIMIT, what="the log to shrink")
    held = db.execute("SELECT held_by FROM outbox.segment WHERE held_by <> '{}'")
    assert held == [(["web"],)], "only the segment of the order is held"
    assert actions(db) == set()
    receiver.listen()
    wait_until(lambda: order in receiver.ids(), what="the order")
    db.wait_settled("web")


@pytest.mark.parametrize("url", ["http", "pull:"])
def test_a_destination_is_not_detached_for_events_of_others(
    db: Database, receiver: Receiver, http: None, url: str
) -> None:
    """S22 (c): it has one event in each segment, and gets all of them in order."""
    receiver.refuse_connections()
    db.add_destination("web", receiver.url() if url == "http" else url, topics="orders.*")
    orders: list[str] = []

    def fill() -> set[str]:
        orders.append(enqueue_order(db, len(orders)))
        enqueue_junk(db)
        if url == "pull:":  # a fetcher reads the log into batches, and cannot deliver the events
            for (token,) in db.execute("SELECT DISTINCT token FROM outbox.fetch('web')"):
                db.execute("SELECT outbox.release(%s)", (token,))
        return actions(db)

    assert wait_until(fill, timeout=240, what="the log to be too large") == {"set aside"}
    wait_until(lambda: size(db), lambda size: size < LIMIT, what="the log to shrink")
    orders.append(enqueue_order(db, len(orders)))
    if url == "http":
        receiver.listen()
        wait_until(lambda: set(orders) <= set(receiver.ids()), what="all orders", timeout=120)
        seen = list(dict.fromkeys(receiver.ids()))
    else:
        seen = []

        def fetch() -> list[str]:
            rows = db.execute("SELECT token, event_id FROM outbox.fetch('web')")
            seen.extend(str(event_id) for _, event_id in rows)
            for token in {token for token, _ in rows}:
                db.execute("SELECT outbox.ack(%s)", (token,))
            return seen

        wait_until(fetch, lambda seen: len(seen) >= len(orders), what="all orders")
    assert seen == orders
    assert actions(db) == {"set aside"}
    assert db.execute("SELECT paused, detached_at FROM outbox.cursor") == [(False, None)]


def test_the_destination_with_more_events_is_detached(db: Database, receiver: Receiver, http: None) -> None:
    """The other one is further behind, and holds the oldest segment as well."""
    receiver.refuse_connections()
    db.add_destination("web", receiver.url(), topics="orders.*")
    orders = [enqueue_order(db, 1)]
    db.add_destination("heavy", receiver.url(), topics="bulk.*")

    def fill() -> list[tuple]:
        orders.append(enqueue_order(db, len(orders) + 1))
        enqueue_junk(db, "bulk.x")
        return db.execute("SELECT destination FROM outbox.cursor WHERE detached_at IS NOT NULL")

    assert wait_until(fill, what="a destination to be detached") == [("heavy",)]
    receiver.listen()
    wait_until(lambda: set(orders) <= set(receiver.ids()), what="all orders", timeout=120)
    assert db.execute("SELECT destination FROM outbox.operation WHERE action = 'detach'") == [("heavy",)]
