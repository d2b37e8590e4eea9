"""The search for the oldest unread event: once for all destinations, with the result that each would have alone.

outbox_internal.oldest_unread() searches for one destination, outbox_internal.oldest_unread_events() for all of them.

A test prints its seed; OUTBOX_TEST_SEED=<seed> repeats that one.
"""

from __future__ import annotations

import os
import random

import pytest

from database import Database

SELECTIONS = ["*", "common.*", "rare.*", "late.*", "seventh.*", "rare.x, late.x", "nothing.*"]

# Topic rare.x is that of one event in ten thousand, late.x that of the last transactions, seventh.x that of each seventh
# one. One event in fifty is for one destination.
LOG = """
    INSERT INTO outbox.event_{segment}
        (position, xid, occurred_at, event_id, schema_version, topic, aggregate_type, aggregate_id,
         event_type, ordering_key, content_type, only_to)
    SELECT nextval('outbox.event_position'), t.xid::text::xid8, timestamptz '2020-01-01' + random() * interval '1 year',
           gen_random_uuid(), 1,
           CASE WHEN t.xid >= 1495 THEN 'late.x' WHEN t.xid % 7 = 0 THEN 'seventh.x' WHEN random() < 0.0001 THEN 'rare.x'
                WHEN random() < 0.5 THEN 'common.x' ELSE 'common.y' END,
           'item', '1', 'changed', '1', 'application/json',
           CASE WHEN random() < 0.02 THEN 1 + floor(random() * {destinations})::integer END
      FROM generate_series({first}, {last}) AS t(xid), generate_series(1, 1 + t.xid * 7919 % 160)
"""
ALONE = """
    SELECT d.name, o.occurred_at, o.selected
      FROM outbox.destination AS d CROSS JOIN outbox_internal.oldest_unread(d.name) AS o ORDER BY d.name
"""
TOGETHER = "SELECT destination, occurred_at, selected FROM outbox_internal.oldest_unread_events() ORDER BY destination"

CALLS = "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE funcname LIKE 'oldest_unread%'"


def random_snapshot(dice: random.Random, at_least: int = 1) -> str:
    """One that has ended up to a random transaction, with some that were in progress."""
    end = dice.choice([at_least, dice.randint(max(at_least, 990), 1510), dice.randint(max(at_least, 1380), 1510)])
    open_ones = sorted(dice.sample(range(max(1, end - 20), end), min(end - 1, dice.choice([0, 0, 1, 5]))))
    return f"{open_ones[0] if open_ones else end}:{end}:{','.join(map(str, open_ones))}"


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def log(database: Database, dice: random.Random) -> Database:
    database.execute("SELECT setseed(%s)", (dice.random(),))
    for number in range(30):
        database.add_destination(f"d{number:02}", "pull:", topics=SELECTIONS[number % len(SELECTIONS)])
    for segment, first, last in (0, 1000, 1249), (1, 1250, 1499):
        # Otherwise the events would become those of this transaction, as after a restore.
        database.execute(f"ALTER TABLE outbox.event_{segment} DISABLE TRIGGER USER")
        database.execute(LOG.format(segment=segment, first=first, last=last, destinations=30))
    return database


@pytest.mark.long
def test_the_search_for_all_finds_what_each_destination_waits_for(log: Database, dice: random.Random) -> None:
    for _ in range(10):
        one_start = random_snapshot(dice)
        for (name,) in log.execute("SELECT name FROM outbox.destination ORDER BY name"):
            done = dice.choice([one_start, random_snapshot(dice)])
            upto = dice.choice([None, None, random_snapshot(dice, int(done.split(":")[1]))])
            log.execute(
                "UPDATE outbox.cursor SET done = %s, upto = %s, position = %s WHERE destination = %s",
                (done, upto, dice.randint(0, log.last_position()), name),
            )
        assert log.execute(TOGETHER) == log.execute(ALONE)


@pytest.mark.long
def test_destinations_of_other_topics_are_searched_together(log: Database) -> None:
    """They have different cursors, and a search of 10,000 events finds nothing for any of them."""
    for number in range(30):
        log.change_destination(f"d{number:02}", topics=f"nothing{number}.*")
        log.execute(
            "UPDATE outbox.cursor SET done = format('%%s:%%1$s:', 1000 + %s)::pg_snapshot WHERE destination = %s",
            (number, f"d{number:02}"),
        )
    assert log.execute(TOGETHER) == log.execute(ALONE)
    assert not any(selected for _, _, selected in log.execute(TOGETHER))
    alone = log.blocks_read("SELECT outbox_internal.oldest_unread('d00')")
    assert log.blocks_read(TOGETHER) < 8 * alone  # 30 if each is searched alone


@pytest.mark.parametrize(
    "report, searches",
    [
        ("SELECT * FROM outbox.health('0')", 1),
        ("SELECT outbox.metrics()", 1),
        ("SELECT * FROM outbox.status", 1),
        ("SELECT * FROM outbox.destinations", 0),
        ("SELECT outbox.event_status((SELECT event_id FROM outbox.event LIMIT 1))", 0),
    ],
)
def test_a_report_searches_the_log_at_most_once(log: Database, report: str, searches: int) -> None:
    # One transaction: PostgreSQL reports its counts, and starts at 0 again, only at the end of a transaction.
    with log.connect() as connection, connection.transaction():
        connection.execute("SET track_functions = 'all'")
        connection.execute(report)
        calls = dict(connection.execute(CALLS).fetchall())
    assert calls == ({"oldest_unread_events": searches} if searches else {})
