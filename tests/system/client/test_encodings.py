"""The client over a database in another encoding than UTF-8, and events with texts that it cannot store.

A new encoding is one line of ENCODINGS in ../test_encodings.py, a new text one of TEXTS.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from cluster import Cluster
from database import Database, NewDatabase
from test_encodings import Encoding, in_each_encoding, in_encoding
from waiting import wait_until

from .conftest import Consume, MakeSource
from .consumer import Target
from .pull_source import PullSource
from .redis_source import RedisSource

THAI = "ก"  # no encoding of the tests has it, but for UTF-8 and SQL_ASCII, which takes any bytes
# Fields of messages with bytes that are text nowhere, or only in some encodings.
TEXTS = {"thai": THAI.encode(), "no_utf8": b"k\xff", "nul": b"a\0b", "cut_off": THAI.encode()[:2]}


@pytest.fixture
def target(shared_cluster: Cluster, new_database: NewDatabase, home: Database, encoding: Encoding) -> Iterator[Target]:
    target = Target(shared_cluster, new_database(extension=False).name)
    in_encoding(home, target, encoding)
    target.create_extension()
    yield target
    target.kill_backends()
    target.drop_role()
    target.disconnect()


def can_store(encoding: Encoding, field: str, text: bytes) -> bool:
    """Sources replace what is not text in names, by a character that only UTF-8 has. Payloads may be bytes."""
    return encoding.name == "SQL_ASCII" and (field != "payload" or text == THAI.encode())


def letters(target: Target) -> dict[str, tuple[str, bool]]:
    """Returns SQLSTATE of the dead letters, and whether they are incomplete, by the payload that they lack or have."""
    rows = target.execute("SELECT event_id::text, sqlstate, incomplete FROM inbox.dead_letter")
    return {id: (state, incomplete) for id, state, incomplete in rows}


def assert_never_redriven(target: Target) -> None:
    """A part of an event is not the event."""
    for id, (_, incomplete) in letters(target).items():
        if incomplete:
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="cannot be processed again"):
                target.execute("SELECT inbox.redrive('c', %s::uuid)", (id,))
    whole = [id for id, (_, incomplete) in letters(target).items() if not incomplete]
    assert target.value("SELECT inbox.redrive('c')") == len(whole)
    assert set(letters(target).values()) <= {(state, True) for state, _ in letters(target).values()}


@in_each_encoding
def test_a_pulled_event_that_the_database_cannot_store(
    target: Target, make_source: MakeSource, consume: Consume, encoding: Encoding
) -> None:
    producer = make_source(PullSource)
    enqueue = "SELECT outbox.enqueue('item', 'i', %s, %s::bytea, 'text/plain', ordering_key => %s, topic => %s)::text"

    def send(type: str = "changed", payload: str = "", key: str = "k", topic: str = "t") -> str:
        return producer.database.value(enqueue, (type, payload.encode(), key, topic))

    kept = [send(topic=THAI), send(type=encoding.text), send()]
    refused = [send(key=THAI), send(type=THAI), send(payload=THAI)]
    kept += [send(key="other"), send(key=encoding.text)]
    if encoding.name == "SQL_ASCII":
        kept, refused = kept + refused, []
    consumer = consume(**producer.consumer_options(max_attempts=2))
    target.wait_applied(kept)
    consumer.wait_for("dead letters", dead=len(refused))
    producer.wait_settled()
    assert consumer.state()["database_reconnects"] == 0
    states = [("22P05", True), ("22P05", True), ("22P05", False)]  # a payload is kept as it is
    assert letters(target) == dict(zip(refused, states))
    assert_never_redriven(target)


@in_each_encoding
def test_a_message_with_any_bytes(
    target: Target, make_source: MakeSource, consume: Consume, encoding: Encoding
) -> None:
    source = make_source(RedisSource)
    names = ["event_type", "aggregate_id", "topic", "ordering_key", "payload", "x"]
    fields = {"payload": b"{}", "event_type": b"changed", "ordering_key": b""}
    for name in names:
        for text in TEXTS.values():
            source.client.xadd(source.name, {**fields, name: text})
            source.client.xadd(source.name, {**fields, "payload": b"good"})
    passed_on = ["event_type", "ordering_key", "payload"]  # to the handler's function
    refused = sum(not can_store(encoding, field, text) for field in passed_on for text in TEXTS.values())
    consumer = consume(**source.consumer_options(max_attempts=2))
    consumer.wait_for("the others", applied=2 * len(names) * len(TEXTS) - refused, dead=refused)
    wait_until(source.left, lambda left: left == 0, what="all to be settled")
    assert consumer.state()["database_reconnects"] == 0
    assert target.value("SELECT count(*) FROM applied WHERE payload = 'good'") == len(names) * len(TEXTS)
    assert target.value("SELECT count(*) FROM applied WHERE payload LIKE 'a%'") == 0, "a text is cut"
    assert_never_redriven(target)
