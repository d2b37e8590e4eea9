"""Expressions of destinations: the options filter and payload."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from cluster import MakeCluster
from database import Database, NewDatabase, create_database
from receiver import Receiver
from waiting import wait_until

PAID = "event_type = 'OrderPaid' AND (payload->>'amount')::numeric > 100"


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


def enqueue(db: Database, key: str, payload: Any, event_type: str = "OrderPaid", **columns: str) -> str:
    """Returns the id."""
    more = "".join(f", {name} => %s" for name in columns)
    return db.value(
        f"SELECT outbox.enqueue('order', %s, %s, %s::jsonb{more})",
        (key, event_type, None if payload is None else json.dumps(payload), *columns.values()),
    )  # fmt: skip


def wait_for_subjects(receiver: Receiver, expected: list[str]) -> None:
    wait_until(receiver.subjects, lambda seen: sorted(seen) == sorted(expected), what=f"events of {expected}")


def dead_letters(db: Database) -> list[tuple[str, str]]:
    return db.execute("SELECT aggregate_id, last_error FROM outbox.dead_letter ORDER BY position")


def wait_for_dead_letters(db: Database, *keys: str) -> list[tuple[str, str]]:
    return wait_until(
        lambda: dead_letters(db), lambda seen: [key for key, _ in seen] == list(keys), what=f"dead letters {keys}",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Selection
# -------------------------------------------------------------------------------------------------


def test_a_filter_selects_by_columns_and_payload(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), topics="order.*", filter=PAID)
    enqueue(db, "low", {"amount": 99.5})
    high = enqueue(db, "high", {"amount": "100.5"})
    other = enqueue(db, "other", {"amount": 500}, "OrderPlaced")
    nothing = enqueue(db, "null", None)
    unknown = enqueue(db, "unknown", {})
    db.execute(
        "SELECT outbox.enqueue('order', 'bytes', 'OrderPaid', '\\x00'::bytea, content_type => 'application/x-mine')"
    )
    enqueue(db, "last", {"amount": 101})
    wait_for_subjects(receiver, ["high", "last"])
    db.wait_settled()
    assert dead_letters(db) == []
    # Events that a filter excludes do not count as waiting.
    for excluded in (other, nothing, unknown):
        state, why = db.execute("SELECT state, why FROM outbox.event_status(%s)", (excluded,))[0]
        assert (state, why) == ("NOT SELECTED", f"the filter of the destination excludes it: {PAID}")
    assert db.value("SELECT state FROM outbox.event_status(%s)", (high,)) in ("INFLIGHT", "PUBLISHED")
    wait_until(lambda: db.value("SELECT outbox.backlog('d')"), lambda seen: seen == 0, what="an empty backlog")
    assert db.execute("SELECT * FROM outbox.health()") == []


def test_every_column_of_an_event_can_be_used(db: Database, receiver: Receiver) -> None:
    db.add_destination(
        "d", receiver.url(),
        filter="event_id IS NOT NULL AND topic = 'special' AND aggregate_type = 'order' AND aggregate_id = 'a' AND event_type = 'Paid' "
        "AND version = 7 AND schema_version = 2 AND ordering_key = 'k' AND content_type = 'application/json' AND payload ? 'x' "
        "AND headers->>'tenant' = 'acme' AND occurred_at < now() AND source_event_id IS NULL AND position > 0",
    )  # fmt: skip
    db.execute(
        "SELECT outbox.enqueue('order', 'a', 'Paid', '{\"x\": 1}', version => 7, schema_version => 2, ordering_key => 'k', "
        "topic => 'special', headers => '{\"tenant\": \"acme\"}')"
    )
    wait_for_subjects(receiver, ["a"])


def test_many_events_in_one_window(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), filter="(payload->>'n')::int % 100 = 7")
    db.execute(
        "SELECT outbox.enqueue('item', n::text, 'Counted', jsonb_build_object('n', n)) FROM generate_series(1, 5000) AS n"
    )
    wait_for_subjects(receiver, [str(n) for n in range(7, 5001, 100)])
    db.wait_settled()
    assert dead_letters(db) == []


# -------------------------------------------------------------------------------------------------
# Payloads
# -------------------------------------------------------------------------------------------------


def only_body(receiver: Receiver) -> tuple[str | None, bytes]:
    receiver.wait_for_requests(1)
    request = receiver.requests[0]
    return request.headers.get("content-type"), request.body


@pytest.mark.parametrize(
    "expression, content_type, body",
    [
        ("payload - 'card'", "application/json", b'{"amount": 5}'),
        ("json_build_object('of', aggregate_id)", "application/json", b'{"of" : "a"}'),
        ("'order ' || aggregate_id || ': ' || (payload->>'amount') || ' \u20ac'", "application/json", "order a: 5 €".encode()),
        ("'constant'", "application/json", b"constant"),
        ("'\\x00ff'::bytea", "application/json", b"\x00\xff"),
    ],
)  # fmt: skip
def test_a_payload_is_replaced(
    db: Database, receiver: Receiver, expression: str, content_type: str, body: bytes
) -> None:
    db.add_destination("d", receiver.url(), payload=expression)
    enqueue(db, "a", {"amount": 5, "card": "4000"})
    assert only_body(receiver) == (content_type, body)


def test_null_is_an_event_without_a_payload(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), payload="payload->'nothing'")
    enqueue(db, "a", {"amount": 5})
    assert only_body(receiver)[1] == b""


def test_retries_get_the_payload_too_and_the_original_is_kept(db: Database, receiver: Receiver) -> None:
    from receiver import answer, everything

    receiver.on(everything, answer(400), times=1)
    db.add_destination("d", receiver.url(), payload="payload - 'card'", retry_base="50ms")
    enqueue(db, "a", {"amount": 5, "card": "4000"})
    receiver.wait_for_requests(2)
    assert [request.body for request in receiver.requests] == [b'{"amount": 5}'] * 2
    db.wait_settled()


# -------------------------------------------------------------------------------------------------
# Errors
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k"])
def test_an_error_in_one_of_a_hundred_is_a_dead_letter_and_all_others_arrive(
    db: Database, receiver: Receiver, key: str
) -> None:
    db.add_destination("d", receiver.url(), filter="(payload->>'n')::int > 0")
    db.execute(
        "SELECT outbox.enqueue('item', n::text, 'Counted', jsonb_build_object('n', CASE WHEN n %% 100 = 0 THEN 'none' ELSE n::text END), "
        "ordering_key => %s) FROM generate_series(1, 1000) AS n", (key,),
    )  # fmt: skip
    wait_for_subjects(receiver, [str(n) for n in range(1, 1001) if n % 100 != 0])
    letters = wait_for_dead_letters(db, *(str(n) for n in range(100, 1001, 100)))
    assert {error for _, error in letters} == {'filter: invalid input syntax for type integer: "none"'}
    assert len(receiver.subjects()) == 990

    # Some are selected by the mended filter.
    db.change_destination("d", filter="payload->>'n' <> 'none' OR aggregate_id = '300'")
    assert db.value("SELECT outbox.redrive('d')") == 10
    wait_until(receiver.subjects, lambda seen: seen[990:] == ["300"], what="the one that is selected")
    wait_until(lambda: db.execute("SELECT * FROM outbox.delivery"), lambda seen: seen == [], what="no event in trouble")
    db.execute("SELECT outbox.enqueue('item', 'later', 'Counted', '{\"n\": \"5\"}', ordering_key => %s)", (key,))
    wait_until(receiver.subjects, lambda seen: seen[991:] == ["later"], what="a later event of the key")


def test_a_dead_letter_of_an_expression_can_hold_its_key(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), payload="to_jsonb(10 / (payload->>'n')::int)", on_dead_letter="block")
    with db.connection.transaction():
        for n in (1, 0, 2, 5):
            db.execute(
                "SELECT outbox.enqueue('item', %s, 'Counted', jsonb_build_object('n', %s::int), ordering_key => 'k')",
                (str(n), n),
            )
        db.execute("SELECT outbox.enqueue('item', 'other', 'Counted', '{\"n\": 1}')")
    assert wait_for_dead_letters(db, "0") == [("0", "payload: division by zero")]
    wait_for_subjects(receiver, ["1", "other"])
    db.change_destination("d", payload="to_jsonb(10 / nullif((payload->>'n')::int, 0))")
    assert db.value("SELECT outbox.redrive('d')") == 1
    wait_until(
        lambda: [key for key in receiver.subjects() if key != "other"], lambda seen: seen == ["1", "0", "2", "5"], what="the key in order",
    )  # fmt: skip


def test_a_payload_that_jsonb_cannot_hold_is_not_left_out_silently(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), filter="payload->>'a' = 'b'")
    db.execute(
        "SELECT outbox.enqueue('item', 'nul', 'Added', convert_to('{\"a\": \"\\u0000\"}', 'UTF8'), content_type => 'application/json')"
    )
    ((key, error),) = wait_for_dead_letters(db, "nul")
    assert "unsupported Unicode escape sequence" in error


def test_an_expression_that_does_not_end_is_cancelled(
    new_database: NewDatabase, http: None, receiver: Receiver
) -> None:
    db = new_database({"outbox.expression_timeout": "200ms"})
    db.execute(
        "CREATE FUNCTION endless(n int) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS "
        "$$BEGIN WHILE n = 3 LOOP END LOOP; RETURN true; END$$"
    )
    db.add_destination("d", receiver.url(), filter="public.endless((payload->>'n')::int)")
    db.execute(
        "SELECT outbox.enqueue('item', n::text, 'Counted', jsonb_build_object('n', n)) FROM generate_series(1, 20) AS n"
    )
    ((key, error),) = wait_for_dead_letters(db, "3")
    assert error.startswith("filter: it took longer than ")
    wait_for_subjects(receiver, [str(n) for n in range(1, 21) if n != 3])


@pytest.mark.worker
def test_sigterm_ends_a_relay_in_an_endless_expression(
    make_cluster: MakeCluster, http: None, receiver: Receiver
) -> None:
    db = create_database(make_cluster({"outbox.expression_timeout": "1h"}))
    db.execute(
        "CREATE FUNCTION endless() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$BEGIN LOOP END LOOP; END$$"
    )
    db.add_destination("d", receiver.url(), filter="public.endless()")
    enqueue(db, "a", {})
    activity = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE %s AND query = 'reading the log' AND state = 'active'"
    )
    pid = wait_until(
        lambda: db.value(activity, ("%relay%",)), lambda seen: seen is not None, what="a relay that evaluates"
    )
    db.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(
        lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)), lambda seen: seen == 0, what="its end",
    )  # fmt: skip
    db.drop_destination("d")


# -------------------------------------------------------------------------------------------------
# Changes
# -------------------------------------------------------------------------------------------------


def test_a_changed_filter_takes_effect_while_the_relay_runs(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), filter="aggregate_id = 'a'")
    enqueue(db, "b", {})
    enqueue(db, "a", {})
    wait_for_subjects(receiver, ["a"])
    db.wait_settled()
    db.change_destination("d", filter="aggregate_id = 'b'")
    enqueue(db, "a", {})
    enqueue(db, "b", {})
    wait_for_subjects(receiver, ["a", "b"])
    db.wait_settled()
    db.change_destination("d", filter=None)
    enqueue(db, "c", {})
    wait_for_subjects(receiver, ["a", "b", "c"])


def test_a_replay_delivers_what_the_filter_selects(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), filter="aggregate_id = 'a'", payload="to_jsonb(version)")
    db.enqueue("a", 2)
    db.enqueue("b", 2)
    wait_for_subjects(receiver, ["a", "a"])
    db.wait_settled()
    db.value("SELECT outbox.replay('d')")
    wait_for_subjects(receiver, ["a"] * 4)
    wait_until(
        lambda: db.execute("SELECT * FROM outbox.delivery"), lambda seen: seen == [], what="the end of the replay"
    )
    assert [request.body for request in receiver.requests] == [b"1", b"2"] * 2


def test_a_function_that_is_gone_stops_the_destination_and_its_return_starts_it(
    db: Database, receiver: Receiver
) -> None:
    make = "CREATE FUNCTION wanted(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN key = 'a'"
    db.execute(make)
    db.add_destination("d", receiver.url(), filter="public.wanted(aggregate_id)")
    enqueue(db, "a", {})
    wait_for_subjects(receiver, ["a"])
    db.execute("DROP FUNCTION wanted(text)")
    enqueue(db, "a", {})
    wait_until(lambda: db.status()["state"], lambda seen: seen == "misconfigured", what="a misconfigured destination")
    assert "public.wanted(text) does not exist" in db.status()["last_error"]
    assert ("expressions", False, "function public.wanted(text) does not exist") in db.execute(
        "SELECT * FROM outbox.check_destination('d')"
    )
    db.execute(make)
    wait_for_subjects(receiver, ["a", "a"])
    assert dead_letters(db) == []


# -------------------------------------------------------------------------------------------------
# Refused expressions
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option, expression, error, message",
    [
        ("filter", "payload", "DatatypeMismatch", 'argument of option "filter" must be type boolean, not type jsonb'),
        ("filter", "price > 5", "UndefinedColumn", 'column "price" does not exist'),
        ("filter", "true AND", "SyntaxError", "syntax error"),
        ("filter", "EXISTS (SELECT 1)", "FeatureNotSupported", 'subqueries are not allowed in option "filter"'),
        ("filter", "count(*) > 1", "FeatureNotSupported", 'aggregate functions are not allowed in option "filter"'),
        ("filter", "row_number() OVER () > 1", "FeatureNotSupported", 'window functions are not allowed in option "filter"'),
        ("filter", "random() < 0.5", "InvalidObjectDefinition", 'functions in option "filter" must be STABLE or IMMUTABLE, and PARALLEL SAFE'),
        ("filter", "clock_timestamp() > occurred_at", "InvalidObjectDefinition", 'functions in option "filter" must be STABLE or IMMUTABLE, and PARALLEL SAFE'),
        ("payload", "generate_series(1, 2)::text", "FeatureNotSupported", 'set-returning functions are not allowed in option "payload"'),
        ("payload", "5", "DatatypeMismatch", 'option "payload" must be of type jsonb, json, text or bytea, not integer'),
    ],
)  # fmt: skip
def test_a_wrong_expression_is_refused_by_the_statement(
    database: Database, option: str, expression: str, error: str, message: str
) -> None:
    with pytest.raises(getattr(psycopg.errors, error)) as refusal:
        database.add_destination("d", "null:", **{option: expression})
    assert message in str(refusal.value)
    database.add_destination("d", "null:")
    with pytest.raises(getattr(psycopg.errors, error)):
        database.change_destination("d", **{option: expression})


def test_a_pull_destination_has_no_expressions(database: Database) -> None:
    with pytest.raises(
        psycopg.errors.FdwInvalidOptionName, match='option "filter" is not valid for a pull destination'
    ):
        database.add_destination("d", "pull:", filter="true")
