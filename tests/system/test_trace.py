"""Trace context (W3C): from the transaction of a producer into the event, and into the transaction of its handler."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import errors

from cluster import SQL_EDITION
from database import Database
from waiting import wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"

WRONG = [
    "nonsense",
    PARENT.upper(),
    f"ff{PARENT[2:]}",
    f"{PARENT}-00",
    f"00-{'0' * 32}-00f067aa0ba902b7-01",
    f"00-{TRACE}-{'0' * 16}-01",
]


@pytest.fixture
def session(database: Database) -> psycopg.Connection:
    """Comments are always read by the extension, and by the SQL edition if it is told to."""
    database.execute("SET outbox.trace_comments = always")
    return database.connection


def headers(database: Database) -> list[dict[str, Any] | None]:
    """Returns the headers of all events, in order."""
    return [row[0] for row in database.execute("SELECT headers FROM outbox.event ORDER BY position")]


def enqueue(database: Database, headers: dict[str, Any] | None = None) -> None:
    database.execute(
        "SELECT outbox.enqueue('item', '1', 'changed', '{}', headers => %s)",
        (json.dumps(headers) if headers else None,),
    )


def set_trace(database: Database, traceparent: str, tracestate: str = "") -> None:
    database.execute(
        "SELECT set_config('outbox.traceparent', %s, false), set_config('outbox.tracestate', %s, false)",
        (traceparent, tracestate),
    )


# -------------------------------------------------------------------------------------------------
# Settings
# -------------------------------------------------------------------------------------------------


def test_events_of_a_transaction_carry_its_trace(database: Database) -> None:
    with database.connection.transaction():
        database.execute(f"SET LOCAL outbox.traceparent = '{PARENT}'")
        enqueue(database)
        database.execute("SELECT outbox.enqueue('item', '1', 'changed', 'x'::bytea, 'text/plain')")
        database.execute(
            "SELECT outbox.enqueue(ARRAY[ROW('item', '1', 'changed', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
            "NULL), ROW('item', '1', 'changed', NULL, NULL, NULL, NULL, '{\"h\": 1}', NULL, NULL, NULL, NULL, NULL, NULL)]::outbox.new_event[])"
        )
    enqueue(database)
    own = {"traceparent": PARENT}
    assert headers(database) == [own, own, own, own | {"h": 1}, None]


def test_a_state_goes_with_its_parent(database: Database) -> None:
    set_trace(database, "", STATE)
    enqueue(database)
    set_trace(database, PARENT, STATE)
    enqueue(database)
    assert headers(database) == [None, {"traceparent": PARENT, "tracestate": STATE}]


def test_headers_of_the_caller_come_first(database: Database) -> None:
    set_trace(database, PARENT, STATE)
    own = {"traceparent": OTHER}
    full = {f"h{n}": n for n in range(63)}  # an inbox takes 64
    for given in (own, {"tenant": "a"}, full):
        enqueue(database, given)
    assert headers(database) == [own, {"tenant": "a", "traceparent": PARENT, "tracestate": STATE}, full]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_a_trace_context_is_refused(database: Database, wrong: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="invalid value for parameter") as refused:
        set_trace(database, wrong)
        enqueue(database)
    assert "00-4bf92f3577b34da6a3ce929d0e0e4736" in (refused.value.diag.message_hint or "")
    assert "W3C" in (refused.value.diag.message_detail or "")
    with pytest.raises(errors.InvalidParameterValue, match="outbox.tracestate"):
        set_trace(database, PARENT, "a" * 513)
        enqueue(database)


def test_changes_of_captured_tables_carry_the_trace(database: Database) -> None:
    database.execute(
        "CREATE TABLE item (id int PRIMARY KEY, tenant text); SELECT outbox.capture('item', 'item', on_truncate => 'announce')"
    )
    set_trace(database, PARENT)
    database.execute("INSERT INTO item VALUES (1), (2)")
    database.execute("UPDATE item SET tenant = 'a' WHERE id = 1")
    database.execute("DELETE FROM item WHERE id = 2")
    database.execute("TRUNCATE item")
    assert headers(database) == [{"traceparent": PARENT}] * 5


def test_rows_of_an_outbox_view_carry_the_trace(database: Database) -> None:
    database.execute("SELECT outbox.create_outbox_view('events', 'debezium')")
    set_trace(database, PARENT)
    database.execute(
        "INSERT INTO events (id, aggregatetype, aggregateid, type, payload) VALUES (gen_random_uuid(), 'item', '1', 'changed', '{}')"
    )
    assert headers(database) == [{"traceparent": PARENT}]


# -------------------------------------------------------------------------------------------------
# Comments
# -------------------------------------------------------------------------------------------------

COMMENT = f"/*action='%2Fitems',traceparent='{PARENT}',tracestate='{STATE.replace('=', '%3D').replace(',', '%2C')}'*/"
ENQUEUE = "SELECT outbox.enqueue('item', '1', 'changed', '{}')"
CARRIED = {"traceparent": PARENT, "tracestate": STATE}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"{ENQUEUE} {COMMENT}", CARRIED),
        (f"{ENQUEUE} {COMMENT} ;\n", CARRIED),
        (f"{COMMENT} {ENQUEUE}", CARRIED),
        (f"/* a */ {ENQUEUE} /* b */ {COMMENT}", CARRIED),
        (f"{ENQUEUE} /*traceparent='{PARENT}'*/", {"traceparent": PARENT}),
        (f"{ENQUEUE} /*b='1\\'2',traceparent='{PARENT}',tracestate='%0A'*/", {"traceparent": PARENT}),
        (f"{ENQUEUE} /*traceparent='{PARENT.upper()}'*/", None),
        (f"{ENQUEUE} /*traceparent={PARENT}*/", None),
        (f"{ENQUEUE} /*nothing*/", None),
        (f"{ENQUEUE}, '{COMMENT.replace(chr(39), chr(39) * 2)}'", None),
        (f"{ENQUEUE}, $${COMMENT}$$", None),
    ],
)  # fmt: skip
def test_a_comment_of_the_statement_is_read(
    database: Database, session: psycopg.Connection, statement: str, expected: dict | None
) -> None:
    database.execute(statement)
    assert headers(database) == [expected]


def test_a_comment_counts_for_its_statement_only(database: Database, session: psycopg.Connection) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY); SELECT outbox.capture('item', 'item')")
    database.execute(f"INSERT INTO item SELECT generate_series(1, 3) {COMMENT}")
    enqueue(database)
    database.execute(f"{ENQUEUE} /*traceparent='{OTHER}'*/")
    set_trace(database, PARENT)
    database.execute(f"{ENQUEUE} /*traceparent='{OTHER}'*/")
    assert headers(database) == [CARRIED] * 3 + [None, {"traceparent": OTHER}, {"traceparent": PARENT}]


def test_a_prepared_statement_keeps_its_comment(database: Database, session: psycopg.Connection) -> None:
    for _ in range(2):
        session.execute(f"{ENQUEUE} {COMMENT}", prepare=True)
    assert headers(database) == [CARRIED] * 2


def test_comments_can_be_left_alone(database: Database) -> None:
    if not SQL_EDITION:  # where this is the default
        database.execute("SET outbox.trace_comments = off")
    database.execute(f"{ENQUEUE} {COMMENT}")
    assert headers(database) == [None]


# -------------------------------------------------------------------------------------------------
# Handlers
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def inbox(database: Database) -> Database:
    database.execute("CREATE EXTENSION pg_inbox")
    return database


def receive(inbox: Database, consumer: str, *given: dict[str, Any] | None) -> None:
    """Stores an event with each of these headers."""
    inbox.execute(
        "SELECT inbox.receive(%s, 'test', array_agg(gen_random_uuid()), array_agg(now()), array_agg(n), array_agg(n), array_agg(1), "
        "array_agg(NULL::uuid), array_agg('t'::text), array_agg('t'::text), array_agg('k'::text), array_agg('T'::text), array_agg('k'::text), "
        "array_agg('application/json'::text), array_agg(h.headers), array_agg('{}'::bytea)) "
        "FROM unnest(%s::jsonb[]) WITH ORDINALITY AS h (headers, n)",
        (consumer, [json.dumps(h) if h else None for h in given]),
    )


RECEIVED: list[dict[str, Any] | None] = [
    {"traceparent": PARENT, "tracestate": STATE}, None, {"traceparent": OTHER}, {"traceparent": 5}, {"traceparent": "x\ny"}, {"tenant": "a"},
]  # fmt: skip
EXPECTED = [(PARENT, STATE), ("", ""), (OTHER, ""), ("", ""), ("", ""), ("", "")]

NOTE = """
CREATE TABLE note (n serial, traceparent text, tracestate text);
CREATE FUNCTION take_note() RETURNS void LANGUAGE sql AS $$
    INSERT INTO note (traceparent, tracestate)
        VALUES (coalesce(current_setting('inbox.traceparent', true), ''), coalesce(current_setting('inbox.tracestate', true), ''));
    SELECT outbox.enqueue('item', '1', 'changed', '{}') $$;
"""


def assert_noted(inbox: Database) -> None:
    assert inbox.execute("SELECT traceparent, tracestate FROM note ORDER BY n") == EXPECTED
    assert [((h or {}).get("traceparent", ""), (h or {}).get("tracestate", "")) for h in headers(inbox)] == EXPECTED


@pytest.mark.parametrize("together", [True, False])
def test_effects_of_a_claimed_message_go_on_with_its_trace(inbox: Database, together: bool) -> None:
    """The same holds if several messages are completed in one transaction."""
    inbox.execute(NOTE)
    inbox.execute("SELECT inbox.create_consumer('c')")
    receive(inbox, "c", *RECEIVED)
    claimed = inbox.execute("SELECT token, event_id FROM inbox.claim('c') ORDER BY seq")
    connection = inbox.connection
    if together:
        connection.autocommit = False
    for token, event_id in claimed:
        with connection.transaction():
            connection.execute("SELECT inbox.complete(%s, %s)", (token, event_id))
            connection.execute("SELECT take_note()")
    if together:
        connection.commit()
        connection.autocommit = True
    assert_noted(inbox)
    assert not inbox.value("SELECT current_setting('inbox.traceparent', true)")


def test_a_handler_sets_the_trace_of_its_event(inbox: Database) -> None:
    inbox.execute(NOTE)
    with inbox.connection.transaction():
        for given in RECEIVED:
            inbox.execute("SELECT inbox.continue_trace(%s)", (json.dumps(given) if given else None,))
            inbox.execute("SELECT take_note()")
    assert_noted(inbox)


@pytest.mark.worker
def test_the_processor_sets_the_trace_of_each_event(inbox: Database) -> None:
    inbox.execute(NOTE)
    inbox.execute("CREATE FUNCTION handle(message inbox.message) RETURNS void LANGUAGE sql AS 'SELECT take_note()'")
    inbox.execute("SELECT inbox.subscribe('c', '*', 'handle')")
    receive(inbox, "c", *RECEIVED)
    wait_until(
        lambda: inbox.value("SELECT count(*) FROM note"), lambda n: n == len(RECEIVED), what="all messages handled"
    )
    assert_noted(inbox)
