"""The client over pull: destinations: fetched under leases, settled when applied."""

from __future__ import annotations

import json

import pytest

from .conftest import Consume, MakeSource
from .consumer import Consumer, Target
from .pull_source import PullSource


@pytest.fixture
def producer(make_source: MakeSource) -> PullSource:
    return make_source(PullSource)


def pull(consume: Consume, producer: PullSource, **options: object) -> Consumer:
    return consume(**producer.consumer_options(**options))


def test_events_are_applied_in_order_and_settled(producer: PullSource, target: Target, consume: Consume) -> None:
    ids = [id for key in "abcdefgh" for id in producer.enqueue(key, 150)]
    consumer = pull(consume, producer)
    target.wait_applied(ids)
    producer.wait_settled()
    rows = target.execute("SELECT array_agg(version ORDER BY number) FROM applied GROUP BY key")
    assert rows == [(list(range(1, 151)),)] * 8
    later = producer.enqueue("a", 3, first=151)
    target.wait_applied(ids + later)
    state = consumer.stop()
    assert (state["applied"], state["duplicates"]) == (1203, 0)
    assert producer.leases() == []


def test_events_come_whole(producer: PullSource, target: Target, consume: Consume) -> None:
    producer.database.execute(
        "SELECT outbox.enqueue('item', 'i', 'permanent', '{\"n\": \"ä\"}', version => 7, headers => %s::jsonb)",
        (json.dumps({"h": 'x\\"€', "n": 1.5, "b": True, "z": None}),),
    )
    consumer = pull(consume, producer)
    consumer.wait_for("it to be given up", dead=1)
    row = target.execute(
        "SELECT topic, aggregate_type, aggregate_id, ordering_key, event_type, version, schema_version, "
        "content_type, headers, payload, source FROM inbox.dead_message"
    )
    headers = {"h": 'x\\"€', "n": "1.5", "b": "true"}
    assert row == [
        ("item.events", "item", "i", "i", "permanent", 7, 1, "application/json", headers,
         '{"n": "ä"}'.encode(), "pull:d")
    ]  # fmt: skip
    times = [
        database.value(f"SELECT occurred_at FROM {table}")
        for database, table in ((producer.database, "outbox.event"), (target, "inbox.dead_message"))
    ]
    assert times[0] == times[1]


def test_what_was_not_begun_is_given_back_at_once(producer: PullSource, target: Target, consume: Consume) -> None:
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        ids = [id for key in "abcdef" for id in producer.enqueue(key, 15)]
        first = pull(consume, producer, connections=1, batch_size=10, drain_limit=200, lease=3_600_000)
        first.wait_for("them to be received", received=90)
        first.stop()
        assert producer.leases() == []
        blocker.execute("COMMIT")
    pull(consume, producer)
    target.wait_applied(ids)
    producer.wait_settled()


def test_the_producer_goes_away_and_comes_back(producer: PullSource, target: Target, consume: Consume) -> None:
    consumer = pull(consume, producer)
    ids = producer.enqueue("a", 3)
    target.wait_applied(ids)
    producer.disconnect()
    ids += producer.enqueue("a", 3, first=4)
    target.wait_applied(ids)
    assert consumer.state()["source_reconnects"] >= 1


def test_a_destination_that_does_not_exist_is_fatal(producer: PullSource, consume: Consume) -> None:
    consumer = pull(consume, producer, destination="x")
    consumer.wait_logged('run() threw: pull destination "x" does not exist')
    assert consumer.wait_ended() == 3


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOTE = """
    ALTER TABLE applied ADD trace text DEFAULT concat(current_setting('inbox.traceparent', true), ' ', current_setting('inbox.tracestate', true));
    CREATE EXTENSION pg_outbox;
    CREATE FUNCTION next_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        PERFORM outbox.enqueue('item', NEW.key, 'next', '{}');
        RETURN NULL;
    END $$;
    CREATE TRIGGER next_event AFTER INSERT ON applied FOR EACH ROW EXECUTE FUNCTION next_event();
"""


def test_the_trace_of_a_transaction_goes_on_with_the_events_of_handlers(
    producer: PullSource, target: Target, consume: Consume
) -> None:
    """Also behind an event that fails, in the transaction of an event without a trace, and the other way round."""
    target.execute(NOTE)
    keys = {"traced": f"{TRACE} a=1", "bare": " ", "late": f"{TRACE} a=1"}
    ids = {}
    for key, trace in keys.items():
        with producer.database.connection.transaction():
            if trace != " ":
                producer.database.execute(
                    f"SET LOCAL outbox.traceparent = '{TRACE}'; SET LOCAL outbox.tracestate = 'a=1'"
                )
            ids[key] = producer.enqueue(key, 3)
    target.poison(ids["traced"][1])
    consumer = pull(consume, producer, max_attempts=1000)
    consumer.wait_for("it to fail several times", failures=2)
    target.cure()
    target.wait_applied([id for some in ids.values() for id in some])
    assert dict(target.execute("SELECT DISTINCT key, trace FROM applied")) == keys
    carried = target.execute(
        "SELECT aggregate_id, concat(headers ->> 'traceparent', ' ', headers ->> 'tracestate') FROM outbox.event"
    )
    assert sorted(carried) == sorted((key, keys[key]) for key in keys for _ in range(3))
