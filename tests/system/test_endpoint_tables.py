"""Endpoints in SQL: outbox.endpoint, and outbox_internal.ask_endpoints(), without a relay: the tests play it.

test_endpoints.py has the tests with relays.
"""

from __future__ import annotations

import base64
import hmac
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from cluster import SQL_EDITION
from database import Database, Finding, NewDatabase

URL = "https://{}.example/hook"


# -------------------------------------------------------------------------------------------------
# The part of the relay
# -------------------------------------------------------------------------------------------------


@dataclass
class Fetched:
    events: list[dict[str, Any]] = field(default_factory=list)
    caught_up: str | None = None
    due_in: float | None = None

    @property
    def positions(self) -> list[int]:
        return [event["position"] for event in self.events]

    @property
    def ids(self) -> list[str]:
        return [str(event["event_id"]) for event in self.events]


@dataclass
class Answer:
    known: str
    count: int
    changed: dict[str, dict[str, Any]]
    fetched: dict[str, Fetched]


def ask(on: Database | psycopg.Connection, *, server: str = "hooks", **question: Any) -> Answer:
    """Asks as a relay does that has handed over everything so far."""
    connection = on.connection if isinstance(on, Database) else on
    question.setdefault("place", place(connection))
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute("SELECT * FROM outbox_internal.ask_endpoints(%s, %s)", (server, json.dumps(question)))
    first, *rows = cursor.fetchall()
    assert first["kind"] == "known"
    assert first["outcome"] == "ok"
    answer = Answer(first["snapshot"], first["count"], {}, {})
    events: list[dict[str, Any]] = []
    for row in rows:
        if row["kind"] == "endpoint":
            assert not answer.fetched
            assert not events
            answer.changed[row["endpoint"]] = row
        elif row["kind"] == "event":
            events.append(row)
        else:
            assert row["kind"] == "fetched"
            assert all(event["endpoint"] == row["endpoint"] for event in events)
            answer.fetched[row["endpoint"]] = Fetched(events, row["snapshot"], row["due_in"])
            events = []
    return answer


def place(connection: psycopg.Connection) -> dict[str, Any]:
    row = connection.execute(
        "SELECT pg_current_snapshot()::text, CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.event_position"
    ).fetchone()
    assert row is not None
    return {"done": row[0], "position": row[1]}


def copies(database: Database, ids: list[str]) -> dict[str, list[int]]:
    """Returns the places of these events in the log, in the form that relays use."""
    rows = database.execute(
        "SELECT e.xid::text::bigint, e.position FROM outbox.event AS e WHERE e.event_id = ANY (%s) ORDER BY e.position",
        (ids,),
    )
    return {"xids": [row[0] for row in rows], "positions": [row[1] for row in rows]}


def fall_back(database: Database, name: str, ids: list[str]) -> Answer:
    return ask(database, fall_back=[{"endpoint": name, **copies(database, ids)}])


def fetch(database: Database, name: str, **limits: int) -> Fetched:
    return ask(database, fetch=[name], **limits).fetched[name]


def settle(database: Database, name: str, fetched: Fetched) -> None:
    ask(database, settled=[{"endpoint": name, "positions": fetched.positions}])


def refuse(database: Database, name: str, event: dict[str, Any], permanent: bool = False) -> Answer:
    refusal = {
        "endpoint": name,
        "xid": int(event["xid"]),
        "position": event["position"],
        "error": "no",
        "permanent": permanent,
    }
    return ask(database, refused=[refusal])


def drain(database: Database, name: str) -> list[str]:
    """Fetches and settles until it has caught up."""
    arrived = []
    while (fetched := fetch(database, name)).events:
        arrived += fetched.ids
        settle(database, name, fetched)
    assert fetched.caught_up is not None, fetched
    return arrived


# -------------------------------------------------------------------------------------------------
# Destinations and endpoints
# -------------------------------------------------------------------------------------------------


def add_hooks(database: Database, name: str = "hooks", **options: str) -> None:
    """Adds a destination with endpoints that no relay serves."""
    options = {"url": "endpoints:", **options}
    if SQL_EDITION:
        database.execute("INSERT INTO outbox.destination_config VALUES (%s, %s)", (name, json.dumps(options)))
    else:
        database.add_destination(name, relay="external", **options)


def add(database: Database, *names: str, **columns: str | bool) -> None:
    for name in names:
        row = {"server": "hooks", "name": name, "url": URL.format(name), **columns}
        database.execute(
            f"INSERT INTO outbox.endpoint ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
            tuple(row.values()),
        )


@pytest.fixture
def hooks(database: Database) -> Database:
    add_hooks(database, retry_base="1ms", retry_max="1ms")
    add(database, "acme", "other")
    ask(database)
    return database


def status(database: Database, name: str = "acme") -> dict[str, Any]:
    cursor = database.connection.cursor(row_factory=dict_row)
    row = cursor.execute("SELECT * FROM outbox.endpoint_status WHERE name = %s", (name,)).fetchone()
    assert row is not None
    return row


def rows_of(database: Database, name: str = "hooks/acme") -> dict[str, int]:
    """Rows under this name in all tables."""
    tables = ["cursor", "batch", "delivery", "endpoint_state"]
    counts = {
        table: database.value(f"SELECT count(*) FROM outbox.{table} WHERE destination = %s", (name,))
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}


def health(database: Database) -> list[Finding]:
    """Apart from the relay that these destinations do not have."""
    return [finding for finding in database.health() if finding.what != "no relay"]


# -------------------------------------------------------------------------------------------------
# The table
# -------------------------------------------------------------------------------------------------


def test_endpoints_have_limits(hooks: Database) -> None:
    insert = """
        INSERT INTO outbox.endpoint (server, name, url, topics)
        SELECT 'hooks', %s || i, 'http://h/', repeat('*,', %s) || '*' FROM generate_series(1, %s) AS i"""
    total = "SELECT endpoints, bytes FROM outbox.endpoint_total WHERE server = 'hooks'"
    counted = """
        SELECT count(*), sum(outbox_internal.endpoint_bytes(e.url, e.topics, e.secret_name, e.tenant))::bigint
          FROM outbox.endpoint AS e WHERE e.server = 'hooks'"""
    with pytest.raises(errors.ProgramLimitExceeded, match="more than 50000 endpoints"):
        hooks.execute(insert, ("n", 0, 50_000))
    hooks.execute(insert, ("b", 2000, 500))
    with pytest.raises(errors.ProgramLimitExceeded, match="bytes of text"):
        hooks.execute(insert, ("c", 2000, 50))
    hooks.execute("UPDATE outbox.endpoint SET topics = '*' WHERE name <> 'acme'")
    hooks.execute("DELETE FROM outbox.endpoint WHERE name IN ('b1', 'b2')")
    assert hooks.execute(total) == hooks.execute(counted)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"server": "nowhere"}, errors.UndefinedObject),
        ({"server": "plain"}, errors.ObjectNotInPrerequisiteState),
        ({"name": ""}, errors.CheckViolation),
        ({"name": "a/b"}, errors.CheckViolation),
        ({"name": "a,b"}, errors.CheckViolation),
        ({"name": " a"}, errors.CheckViolation),
        ({"name": "a\n"}, errors.CheckViolation),
        ({"name": "a" * 58}, errors.CheckViolation),
        ({"url": "ftp://acme.example/"}, errors.CheckViolation),
        ({"url": "https://user:password@acme.example/"}, errors.CheckViolation),
        ({"url": "https:///hook"}, errors.CheckViolation),
        ({"url": "https://acme.example/a b"}, errors.CheckViolation),
        ({"topics": ""}, errors.InvalidParameterValue),
        ({"topics": "a,,b"}, errors.InvalidParameterValue),
        ({"secret_name": ""}, errors.CheckViolation),
    ],
)
def test_rows_that_are_not_valid_are_refused(database: Database, row: dict[str, str], error: type[Exception]) -> None:
    add_hooks(database)
    if row.get("server") == "plain":
        database.add_destination("plain", "pull:")
    with pytest.raises(error):
        add(database, row.pop("name", "acme"), **row)


def test_names_may_be_long(database: Database) -> None:
    add_hooks(database)
    add(database, "a" * 57)
    answer = fall_back(database, "a" * 57, [])
    assert answer.changed["a" * 57]["behind"] is True


def test_a_name_is_for_one_only(database: Database) -> None:
    add_hooks(database)
    add(database, "acme")
    with pytest.raises(errors.DuplicateObject):
        database.add_destination("hooks/acme", "pull:")
    database.add_destination("hooks/other", "pull:")
    with pytest.raises(errors.DuplicateObject):
        add(database, "other")
    add_hooks(database, "a/b")
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        add(database, "c", server="a/b")


def test_an_endpoint_cannot_be_renamed(hooks: Database) -> None:
    for change in ("name = 'b'", "server = 'x'"):
        with pytest.raises(errors.FeatureNotSupported):
            hooks.execute(f"UPDATE outbox.endpoint SET {change} WHERE name = 'acme'")
    with pytest.raises(errors.FeatureNotSupported):
        hooks.execute("TRUNCATE outbox.endpoint")


def test_the_first_answer_has_all_endpoints_and_later_ones_what_changed(hooks: Database) -> None:
    add(hooks, "third", topics="a.*", secret_name="s", paused=True, tenant="t")
    first = ask(hooks)
    assert first.count == 3
    assert sorted(first.changed) == ["acme", "other", "third"]
    third = first.changed["third"]
    assert (third["url"], third["topics"], third["secret_name"], third["paused"], third["behind"]) == (
        URL.format("third"), "a.*", "s", True, False,
    )  # fmt: skip
    assert first.changed["acme"]["secret_name"] == "acme"
    assert ask(hooks, known=first.known).changed == {}
    hooks.execute("UPDATE outbox.endpoint SET paused = false WHERE name = 'third'")
    second = ask(hooks, known=first.known)
    assert list(second.changed) == ["third"]
    hooks.execute("DELETE FROM outbox.endpoint WHERE name = 'third'")
    assert ask(hooks, known=second.known).count == 2


def test_what_commits_during_a_question_is_told_by_the_next(hooks: Database) -> None:
    known = ask(hooks).known
    with hooks.connect() as writer:
        writer.autocommit = False
        writer.execute("UPDATE outbox.endpoint SET paused = true WHERE name = 'acme'")
        later = ask(hooks, known=known)
        assert later.changed == {}
        writer.commit()
    assert list(ask(hooks, known=later.known).changed) == ["acme"]


def test_a_new_endpoint_gets_what_its_transaction_commits_and_no_earlier_events(hooks: Database) -> None:
    known = ask(hooks).known
    hooks.enqueue("old")
    with hooks.connect() as connection, connection.transaction():
        mine = connection.execute("SELECT outbox.enqueue('item', 'mine', 'changed', '{}')").fetchone()
        connection.execute("INSERT INTO outbox.endpoint VALUES ('hooks', 'new', 'http://new.example')")
    (later,) = hooks.enqueue("later")
    assert mine is not None
    answer = ask(hooks, known=known)  # everything was handed to a sink that did not know of it
    assert answer.changed["new"]["behind"] is True
    assert drain(hooks, "new") == [str(mine[0]), later]
    assert ask(hooks).changed["new"]["behind"] is False


def test_a_new_endpoint_is_live_if_it_selects_nothing_of_what_was_handed_over(hooks: Database) -> None:
    add(hooks, "mine", topics="mine.*")
    add(hooks, "new")
    (id,) = hooks.enqueue("a", topic="other.new")
    answer = ask(hooks)
    assert (answer.changed["mine"]["behind"], answer.changed["new"]["behind"]) == (False, True)
    assert drain(hooks, "new") == [id]


def test_a_new_endpoint_is_live_if_nothing_was_handed_over(hooks: Database) -> None:
    hooks.enqueue("old")
    handed_over = place(hooks.connection)
    add(hooks, "new")
    answer = ask(hooks, place=handed_over)
    assert answer.changed["new"]["behind"] is False
    assert answer.changed["new"]["snapshot"] is not None
    hooks.enqueue("later")  # not handed over
    add(hooks, "newer")
    assert ask(hooks, place=handed_over).changed["newer"]["behind"] is False


# -------------------------------------------------------------------------------------------------
# Behind
# -------------------------------------------------------------------------------------------------


def test_what_it_lacked_comes_first_and_then_the_log(hooks: Database) -> None:
    ids = hooks.enqueue("a", 250)
    answer = fall_back(hooks, "acme", ids[200:])
    assert answer.changed["acme"]["behind"] is True
    assert answer.changed["other"]["behind"] is False
    assert fall_back(hooks, "acme", ids).changed["acme"]["behind"] is True  # once more, without effect
    later = hooks.enqueue("a", 120, first=251)
    assert status(hooks)["state"] == "behind"
    assert status(hooks)["pending_at_most"] == 170
    assert hooks.value("SELECT outbox.backlog('hooks/acme')") == 170
    assert drain(hooks, "acme") == ids[200:] + later
    assert status(hooks)["state"] == "live"
    assert rows_of(hooks) == {"endpoint_state": 1}


def test_what_is_not_settled_is_fetched_again(hooks: Database) -> None:
    ids = hooks.enqueue("a", 5)
    fall_back(hooks, "acme", ids)
    assert fetch(hooks, "acme", max_events=3).ids == ids[:3]
    first = fetch(hooks, "acme", max_events=3)
    first.events = first.events[:2]
    settle(hooks, "acme", first)
    settle(hooks, "acme", first)  # without effect
    assert fetch(hooks, "acme").ids == ids[2:]


def test_a_request_that_was_in_flight_may_be_settled_before_a_fetch(hooks: Database) -> None:
    ids = hooks.enqueue("a", 300)
    fall_back(hooks, "acme", ids)
    where = copies(hooks, [ids[0], ids[150], ids[299]])
    ask(hooks, settled=[{"endpoint": "acme", "positions": where["positions"]}])
    assert drain(hooks, "acme") == ids[1:150] + ids[151:299]


def test_a_live_endpoint_that_is_fetched_for_has_caught_up(hooks: Database) -> None:
    assert fetch(hooks, "acme").caught_up is not None


def test_after_it_has_caught_up_it_falls_back_to_where_it_was(hooks: Database) -> None:
    first = place(hooks.connection)
    fall_back(hooks, "acme", [])
    hooks.enqueue("a", 10)
    assert len(drain(hooks, "acme")) == 10
    # The relay has not handed over these events yet.
    ask(hooks, place=first, fall_back=[{"endpoint": "acme", "xids": [], "positions": []}])
    assert drain(hooks, "acme") == []


def test_a_part_of_a_window_was_handed_over(hooks: Database) -> None:
    done = place(hooks.connection)["done"]
    ids = hooks.enqueue("a", 10)
    upto = place(hooks.connection)
    part = copies(hooks, ids[:4])
    place_then = {"done": done, "upto": upto["done"], "position": part["positions"][-1]}
    ask(
        hooks,
        place=place_then,
        fall_back=[{"endpoint": "acme", "xids": part["xids"][3:], "positions": part["positions"][3:]}],
    )
    later = hooks.enqueue("b", 2)
    assert drain(hooks, "acme") == ids[3:] + later


def test_nothing_is_left_of_the_window_that_was_handed_over_in_parts(hooks: Database) -> None:
    done = place(hooks.connection)["done"]
    ids = hooks.enqueue("a", 3)
    upto = place(hooks.connection)
    place_then = {"done": done, "upto": upto["done"], "position": upto["position"]}
    ask(hooks, place=place_then, fall_back=[{"endpoint": "acme", **copies(hooks, ids[2:])}])
    later = hooks.enqueue("b", 2)
    assert drain(hooks, "acme") == ids[2:] + later


def test_it_gets_only_what_it_and_the_destination_select(database: Database) -> None:
    add_hooks(database, topics="order.*,invoice.*")
    add(database, "acme", topics="order.*,user.*")
    fall_back(database, "acme", [])
    (order,) = database.enqueue("a", topic="order.new")
    for topic in ("invoice.new", "user.new"):
        database.enqueue("a", topic=topic)
    assert database.value("SELECT outbox.backlog('hooks/acme')") == 1
    assert drain(database, "acme") == [order]


def test_limits_are_for_all_endpoints_together(hooks: Database) -> None:
    ids = hooks.enqueue("a", 10)
    ask(hooks, fall_back=[{"endpoint": name, **copies(hooks, ids)} for name in ("acme", "other")])
    answer = ask(hooks, fetch=["acme", "other"], max_events=7)
    assert len(answer.fetched["acme"].events) == 7
    assert len(answer.fetched["other"].events) == 1
    answer = ask(hooks, fetch=["acme", "other"], max_bytes=1)
    assert len(answer.fetched["acme"].events) == 1
    assert answer.fetched["other"].events == []
    assert answer.fetched["other"].due_in == 0


def test_endpoints_that_do_not_exist_are_passed_over(hooks: Database) -> None:
    answer = ask(
        hooks,
        fall_back=[{"endpoint": "nobody", "xids": [], "positions": []}],
        settled=[{"endpoint": "nobody", "positions": [1]}],
        refused=[{"endpoint": "nobody", "xid": 1, "position": 1, "error": "no", "permanent": False}],
        failing=[{"endpoint": "nobody", "since": 1, "error": "no", "next_attempt": 2}],
        gone=[{"endpoint": "nobody", "error": "gone"}],
        fetch=["nobody", "acme"],
    )
    assert list(answer.fetched) == ["acme"]
    assert rows_of(hooks, "hooks/nobody") == {}


# -------------------------------------------------------------------------------------------------
# Refused events
# -------------------------------------------------------------------------------------------------


def test_a_refused_event_holds_its_key_and_is_tried_again(hooks: Database) -> None:
    first, second = hooks.enqueue("a", 2)
    (free,) = hooks.enqueue("b")
    fall_back(hooks, "acme", [first, second, free])
    refuse(hooks, "acme", fetch(hooks, "acme").events[0])
    again = fetch(hooks, "acme")
    assert again.ids == [first]  # it is due at once
    assert again.events[0]["attempts"] == 1
    settle(hooks, "acme", again)
    assert drain(hooks, "acme") == [second, free]


def test_events_behind_a_refused_one_wait(hooks: Database) -> None:
    add_hooks(hooks, "slow", retry_base="1h", retry_max="1h")
    hooks.execute("INSERT INTO outbox.endpoint VALUES ('slow', 'acme', 'http://acme.example')")
    ask(hooks, server="slow")
    ids = hooks.enqueue("a", 2) + hooks.enqueue("b", 1)
    where = copies(hooks, ids)
    refusal = {
        "endpoint": "acme",
        "xid": where["xids"][0],
        "position": where["positions"][0],
        "error": "no",
        "permanent": False,
    }
    answer = ask(hooks, server="slow", fall_back=[{"endpoint": "acme", **where}], refused=[refusal], fetch=["acme"])
    fetched = answer.fetched["acme"]
    assert fetched.ids == [ids[2]]
    answer = ask(hooks, server="slow", settled=[{"endpoint": "acme", "positions": fetched.positions}], fetch=["acme"])
    assert answer.fetched["acme"].events == []
    assert answer.fetched["acme"].caught_up is None
    assert 0 < (answer.fetched["acme"].due_in or 0) <= 3600


def test_a_dead_letter_is_of_one_endpoint(hooks: Database) -> None:
    ids = hooks.enqueue("a", 2)
    ask(hooks, fall_back=[{"endpoint": name, **copies(hooks, ids)} for name in ("acme", "other")])
    refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=True)
    assert drain(hooks, "acme") == ids[1:]
    assert drain(hooks, "other") == ids
    assert hooks.execute("SELECT destination, event_id::text, last_error FROM outbox.dead_letter") == [
        ("hooks/acme", ids[0], "no")
    ]
    assert status(hooks)["dead_letters"] == 1
    assert [(f.object, f.what) for f in health(hooks)] == [('destination "hooks"', "dead letters")]

    known = ask(hooks).known
    assert hooks.value("SELECT outbox.redrive('hooks/acme')") == 1
    answer = ask(hooks, known=known)
    assert (answer.changed["acme"]["behind"], answer.changed["acme"]["due_in"]) == (False, 0)
    fall_back(hooks, "acme", [])
    assert drain(hooks, "acme") == [ids[0]]


def test_a_dead_letter_that_blocks_waits_for_an_operator(database: Database) -> None:
    add_hooks(database, on_dead_letter="block")
    add(database, "acme")
    ask(database)
    ids = database.enqueue("a", 2)
    fall_back(database, "acme", ids)
    refuse(database, "acme", fetch(database, "acme").events[0], permanent=True)
    fetched = fetch(database, "acme")
    assert (fetched.events, fetched.caught_up, fetched.due_in) == ([], None, None)
    assert database.execute("SELECT destination, waiting FROM outbox.blocked_key") == [("hooks/acme", 1)]
    known = ask(database).known
    assert database.value("SELECT outbox.discard('hooks/acme', everything => true, why => 'test')") == 1
    assert list(ask(database, known=known).changed) == ["acme"]
    assert drain(database, "acme") == ids[1:]


# -------------------------------------------------------------------------------------------------
# Operators
# -------------------------------------------------------------------------------------------------


def test_it_is_paused_and_resumed(hooks: Database) -> None:
    known = ask(hooks).known
    hooks.execute("SELECT outbox.pause('hooks/acme', 'test')")
    answer = ask(hooks, known=known, fall_back=[{"endpoint": "acme", "xids": [], "positions": []}])
    assert answer.changed["acme"]["paused"] is True
    assert status(hooks)["state"] == "paused"
    ids = hooks.enqueue("a", 2)
    fetched = fetch(hooks, "acme")
    assert (fetched.events, fetched.caught_up, fetched.due_in) == ([], None, None)
    assert "endpoints paused" in [finding.what for finding in health(hooks)]
    hooks.execute("SELECT outbox.resume('hooks/acme')")
    assert drain(hooks, "acme") == ids
    assert hooks.execute("SELECT destination, action FROM outbox.operation ORDER BY id") == [
        ("hooks/acme", "pause"), ("hooks/acme", "resume"),
    ]  # fmt: skip


def test_one_that_is_gone_is_paused(hooks: Database) -> None:
    known = ask(hooks).known
    answer = ask(hooks, known=known, gone=[{"endpoint": "acme", "error": "410 Gone"}])
    assert answer.changed["acme"]["paused"] is True
    assert hooks.execute("SELECT destination, action, why FROM outbox.operation") == [
        ("hooks/acme", "pause", "it is gone: 410 Gone")
    ]
    with hooks.connect() as writer, writer.transaction():
        writer.execute("SELECT FROM outbox.endpoint WHERE name = 'other' FOR UPDATE")
        ask(hooks, gone=[{"endpoint": "other", "error": "410 Gone"}])  # does not wait
    assert status(hooks, "other")["state"] == "live"


def test_a_selection_is_replayed_to_one_endpoint(hooks: Database) -> None:
    ids = hooks.enqueue("a", 3)
    known = ask(hooks).known
    hooks.execute("SELECT outbox.replay('hooks/acme')")
    assert hooks.execute("SELECT * FROM outbox.delivery") == [], "they come anyway"
    hooks.execute("UPDATE outbox.cursor SET done = pg_current_snapshot() WHERE destination = 'hooks'")
    hooks.execute("SELECT outbox.replay('hooks/acme', event_ids => %s::uuid[])", (ids[1:],))
    answer = ask(hooks, known=known)
    assert (answer.changed["acme"]["behind"], answer.changed["acme"]["due_in"]) == (False, 0)
    assert status(hooks, "acme")["pending_at_most"] == 0, "it has had them"
    fall_back(hooks, "acme", [])
    later = hooks.enqueue("a", 1, first=4)
    assert drain(hooks, "acme") == ids[1:] + later


@pytest.mark.parametrize(
    "statement",
    [
        "outbox.replay('hooks')",
        "outbox.seek('hooks', 'beginning')",
        "outbox.seek('hooks/acme', 'beginning')",
        "outbox.seek('hooks/acme', 1)",
    ],
)
def test_what_would_concern_all_endpoints_is_refused(hooks: Database, statement: str) -> None:
    with pytest.raises(errors.FeatureNotSupported) as refusal:
        hooks.execute(f"SELECT {statement}")
    assert "outbox.replay(" in (refusal.value.diag.message_hint or "")


def test_names_that_no_endpoint_has_are_refused(hooks: Database) -> None:
    for name, message in (("hooks/nobody", "endpoint"), ("nowhere/acme", "destination")):
        for function in ("pause", "redrive", "backlog", "replay"):
            with pytest.raises(errors.UndefinedObject, match=f'{message} "{name}" does not exist'):
                hooks.execute(f"SELECT outbox.{function}(%s)", (name,))


def test_failures_are_seen(hooks: Database) -> None:
    ask(
        hooks,
        failing=[
            {"endpoint": "acme", "since": 1_700_000_000_000_000, "error": "503", "next_attempt": 1_800_000_000_000_000}
        ],
    )
    row = status(hooks)
    assert (row["state"], row["last_error"], row["failing_since"].timestamp()) == ("failing", "503", 1_700_000_000)
    (finding,) = health(hooks)
    assert (finding.severity, finding.object, finding.what) == ("degraded", 'destination "hooks"', "endpoints fail")
    assert finding.why == "1 of its 2 endpoints fail"
    assert 'outbox_endpoints{database="' in hooks.value("SELECT outbox.metrics()")
    ask(hooks, failing=[{"endpoint": "acme", "since": None, "error": "", "next_attempt": None}])
    row = status(hooks)
    assert (row["state"], row["failing_since"], row["next_attempt_at"]) == ("live", None, None)
    assert health(hooks) == []


def test_event_status_tells_of_endpoints_that_are_behind(hooks: Database) -> None:
    first, second = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", [first, second])
    for id in (first, second):
        (row,) = hooks.execute("SELECT state, why FROM outbox.event_status(%s) WHERE destination = 'hooks/acme'", (id,))
        assert row == ("PENDING", "the endpoint gets earlier events first")
    refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=True)
    assert hooks.value("SELECT state FROM outbox.event_status(%s) WHERE destination = 'hooks/acme'", (first,)) == "DEAD"


# -------------------------------------------------------------------------------------------------
# The life of destinations and endpoints
# -------------------------------------------------------------------------------------------------


def test_deleted_endpoints_leave_nothing(hooks: Database) -> None:
    ids = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", ids)
    refuse(hooks, "acme", fetch(hooks, "acme").events[0])
    assert set(rows_of(hooks)) == {"cursor", "batch", "delivery", "endpoint_state"}
    hooks.execute("DELETE FROM outbox.endpoint WHERE name = 'acme'")
    assert rows_of(hooks) == {}
    add(hooks, "acme")
    assert ask(hooks).changed["acme"]["behind"] is False


def rename(database: Database, old: str, new: str) -> None:
    if SQL_EDITION:
        database.execute("UPDATE outbox.destination_config SET name = %s WHERE name = %s", (new, old))
    else:
        database.execute(f"ALTER SERVER {old} RENAME TO {new}")


def test_endpoints_follow_their_destination(hooks: Database) -> None:
    ids = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", ids)
    refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=True)
    rename(hooks, "hooks", "webhooks")
    assert rows_of(hooks) == {}
    answer = ask(hooks, server="webhooks", fetch=["acme"])
    assert sorted(answer.changed) == ["acme", "other"]
    assert answer.fetched["acme"].ids == ids[1:]
    assert hooks.value("SELECT outbox.redrive('webhooks/acme')") == 1
    with pytest.raises(errors.CheckViolation):
        rename(hooks, "webhooks", "w" * 60)


def test_a_dropped_destination_takes_its_endpoints_along(hooks: Database) -> None:
    ids = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", ids)
    hooks.drop_destination("hooks")
    assert rows_of(hooks) == {}
    assert hooks.value("SELECT count(*) FROM outbox.endpoint") == 0


def test_a_destination_with_endpoints_stays_one(hooks: Database) -> None:
    if SQL_EDITION:
        change = "UPDATE outbox.destination_config SET options = options || '{\"url\": \"null:\"}' WHERE name = 'hooks'"
    else:
        change = "ALTER SERVER hooks OPTIONS (SET url 'null:')"
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        hooks.execute(change)
    hooks.execute("DELETE FROM outbox.endpoint")
    hooks.execute(change)


# -------------------------------------------------------------------------------------------------
# The log
# -------------------------------------------------------------------------------------------------


def settle_all(database: Database) -> None:
    """Moves the cursor of the destination to the end, as its relay would."""
    database.execute("UPDATE outbox.cursor SET done = pg_current_snapshot(), upto = NULL WHERE destination = 'hooks'")


def test_endpoints_that_are_behind_hold_the_log(hooks: Database) -> None:
    hooks.execute("UPDATE outbox.endpoint SET topics = 'order.*' WHERE name = 'other'")
    fall_back(hooks, "acme", [])
    fall_back(hooks, "other", [])
    ids = hooks.enqueue("a", 3, topic="item.new")
    settle_all(hooks)
    held = "SELECT held_by::text[] FROM outbox.segment WHERE number = 0"
    free = "SELECT outbox_internal.segment_is_free(0)"
    assert hooks.value(held) == ["hooks/acme"]  # the other one selects none of them
    assert hooks.value(free) is False
    fetched = fetch(hooks, "acme")
    assert fetched.ids == ids
    assert hooks.value(held) == ["hooks/acme"]  # in a batch
    settle(hooks, "acme", fetched)
    assert hooks.value(held) == []
    assert hooks.value(free) is True


def test_events_of_a_transaction_that_was_late_hold_the_log(hooks: Database) -> None:
    with hooks.connect() as writer:
        writer.autocommit = False
        writer.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}')")
        hooks.enqueue("a")
        fall_back(hooks, "acme", [])
        writer.commit()
    settle_all(hooks)
    assert hooks.value("SELECT held_by::text[] FROM outbox.segment WHERE number = 0") == ["hooks/acme"]


def test_in_a_full_log_the_events_of_endpoints_are_set_aside(hooks: Database) -> None:
    ids = hooks.enqueue("a", 150)
    fall_back(hooks, "acme", ids[:120])
    later = hooks.enqueue("b", 10)
    settle_all(hooks)
    hooks.move_to_segment(1)
    assert hooks.value("SELECT outbox_internal.detach_last()") is None
    assert hooks.value("SELECT outbox_internal.segment_is_free(0)") is True
    assert hooks.value("SELECT count(*) FROM outbox.delivery WHERE destination = 'hooks/acme'") == 130
    hooks.execute("DELETE FROM outbox.event_0")
    assert sorted(drain(hooks, "acme")) == sorted(ids[:120] + later)


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


@dataclass
class Tenant:
    """A role with the right to operate, and a server of its own in the extension."""

    database: Database
    role: str

    def connect(self) -> psycopg.Connection:
        return self.database.cluster.connect(self.database.name, self.role)


@pytest.fixture
def tenant(database: Database) -> Iterator[Tenant]:
    role = f"tenant_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    database.execute("SELECT outbox.grant_operate(%s)", (role,))
    add_hooks(database)
    add(database, "acme")
    yield Tenant(database, role)
    database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_an_operator_has_no_endpoints_of_others(tenant: Tenant) -> None:
    with tenant.connect() as connection:
        assert connection.execute("SELECT * FROM outbox.endpoint").fetchall() == []
        assert connection.execute("UPDATE outbox.endpoint SET url = 'http://evil.example'").rowcount == 0
        for statement in (
            "INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'evil', 'http://evil.example')",
            "DELETE FROM outbox.endpoint",
            "TRUNCATE outbox.endpoint",
            "BEGIN; LOCK TABLE outbox.endpoint IN SHARE MODE",
            "SELECT outbox.delete_endpoint('hooks', 'acme')",
            "SELECT outbox_internal.ask_endpoints('hooks', '{}')",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement)
            connection.rollback()
        columns = [
            column.name for column in connection.execute("SELECT * FROM outbox.endpoint_status").description or []
        ]
        assert "url" not in columns
    assert tenant.database.execute("SELECT name, url FROM outbox.endpoint") == [("acme", URL.format("acme"))]


def test_events_do_not_show_endpoints_of_other_owners(tenant: Tenant) -> None:
    """But for those that have the event in trouble: operators decide about that."""
    hooks = tenant.database
    first, second = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", [first, second])
    seen = "SELECT destination::text FROM outbox.event_status(%s) ORDER BY 1"
    with tenant.connect() as connection:
        assert connection.execute(seen, (second,)).fetchall() == [("hooks",)]
        assert hooks.execute(seen, (second,)) == [("hooks",), ("hooks/acme",)]
        refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=True)
        assert connection.execute(seen, (first,)).fetchall() == [("hooks",), ("hooks/acme",)]


def test_monitors_do_not_see_errors_of_endpoints(tenant: Tenant) -> None:
    """Errors of endpoints are answers of customers."""
    hooks = tenant.database
    hooks.execute("SELECT outbox.grant_monitor(%s)", (tenant.role,))
    ids = hooks.enqueue("a", 2)
    fall_back(hooks, "acme", ids)
    ask(hooks, failing=[{"endpoint": "acme", "since": 1_700_000_000_000_000, "error": "of acme", "next_attempt": None}])
    for permanent in (True, False):
        refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=permanent)
    with tenant.connect() as connection:
        rows = connection.execute("SELECT h.what, h::text FROM outbox.health() AS h ORDER BY 1").fetchall()
        shown = [row for (row,) in connection.execute("SELECT s::text FROM outbox.status AS s")]
    assert {"dead letters", "endpoints fail"} <= {what for what, _ in rows}
    for text in [*(text for _, text in rows), *shown]:
        assert "acme" not in text and "the first with" not in text and "the last with" not in text, text


@pytest.mark.extension("destinations have owners")
def test_the_owner_of_a_server_has_its_endpoints(tenant: Tenant) -> None:
    add_hooks(tenant.database, "own")
    tenant.database.execute(f"ALTER SERVER own OWNER TO {tenant.role}")
    with tenant.connect() as connection:
        insert = "INSERT INTO outbox.endpoint (server, name, url) VALUES ('own', %s, 'http://a.example')"
        for name in ("a", "b"):
            connection.execute(insert, (name,))
        assert connection.execute("UPDATE outbox.endpoint SET paused = true, topics = 'x.*'").rowcount == 2
        assert connection.execute("SELECT name FROM outbox.endpoint ORDER BY 1").fetchall() == [("a",), ("b",)]
        assert connection.execute(
            "SELECT outbox.delete_endpoint('own', 'a'), outbox.delete_endpoint('own', 'c')"
        ).fetchone() == (True, False)
        with pytest.raises(errors.FeatureNotSupported):
            connection.execute("UPDATE outbox.endpoint SET server = 'hooks'")
    assert tenant.database.execute("SELECT server, name FROM outbox.endpoint ORDER BY 1") == [
        ("hooks", "acme"),
        ("own", "b"),
    ]


MASTER = b"0123456789" * 3
NEXT = b"abcdefghij" * 3


def secret(key: bytes, name: str) -> str:
    return "whsec_" + base64.b64encode(hmac.digest(key, name.encode(), "sha256")).decode()


@pytest.mark.extension("secrets are not kept there")
def test_secrets_are_derived_from_the_master_secret(tenant: Tenant) -> None:
    database = tenant.database
    ask_for = "SELECT outbox.endpoint_secret('hooks', 'acme')"
    with pytest.raises(errors.UndefinedObject, match="no master secret"):
        database.execute(ask_for)
    master, following = (f"whsec_{base64.b64encode(key).decode()}" for key in (MASTER, NEXT))
    database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER hooks OPTIONS (signing_secret '{master}')")
    assert database.value(ask_for) == secret(MASTER, "acme")
    database.execute("UPDATE outbox.endpoint SET secret_name = 'v2, v1'")
    database.execute(
        f"ALTER USER MAPPING FOR CURRENT_USER SERVER hooks OPTIONS (ADD next_signing_secret '{following}')"
    )
    assert [value for (value,) in database.execute(ask_for)] == [
        secret(MASTER, "v2"), secret(MASTER, "v1"), secret(NEXT, "v2"), secret(NEXT, "v1"),
    ]  # fmt: skip
    with tenant.connect() as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(ask_for)
    with pytest.raises(errors.UndefinedObject):
        database.execute("SELECT outbox.endpoint_secret('hooks', 'nobody')")


# -------------------------------------------------------------------------------------------------
# Dump and restore
# -------------------------------------------------------------------------------------------------


@pytest.mark.extension("tests/system/test_edition.py restores dumps of that")
def test_endpoints_are_dumped_and_restored(hooks: Database, new_database: NewDatabase) -> None:
    ids = hooks.enqueue("a", 5)
    fall_back(hooks, "acme", ids[:3])
    refuse(hooks, "acme", fetch(hooks, "acme").events[0], permanent=True)
    hooks.execute("UPDATE outbox.endpoint SET paused = true, tenant = 't' WHERE name = 'other'")
    settle_all(hooks)
    later = hooks.enqueue("b", 2)
    programs = hooks.cluster.installation.bin_directory
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", hooks.cluster.conninfo(hooks.name)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    restored = new_database(extension=False)
    subprocess.run(
        [str(programs / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-d", restored.cluster.conninfo(restored.name)],
        input=dump, check=True, text=True, capture_output=True,
    )  # fmt: skip
    rows = "SELECT server, name, url, topics, secret_name, paused, tenant, created_at FROM outbox.endpoint ORDER BY 2"
    assert restored.execute(rows) == hooks.execute(rows)
    answer = ask(restored, place={"done": "1:1:", "position": 0})
    assert {name: (row["paused"], row["behind"]) for name, row in answer.changed.items()} == {
        "acme": (False, True), "other": (True, False),
    }  # fmt: skip
    assert drain(restored, "acme") == ids[1:3] + later
    assert restored.value("SELECT outbox.redrive('hooks/acme')") == 1
    fall_back(restored, "acme", [])
    assert drain(restored, "acme") == ids[:1]


# -------------------------------------------------------------------------------------------------
# Many
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_many_endpoints_in_one_question(database: Database) -> None:
    add_hooks(database)
    database.execute(
        "INSERT INTO outbox.endpoint (server, name, url) SELECT 'hooks', 'e' || n, 'http://a.example/' || n FROM generate_series(1, 1000) AS n"
    )
    assert len(ask(database).changed) == 1000
    ids = database.enqueue("a", 10)
    names = [f"e{n}" for n in range(1, 201)]
    where = copies(database, ids)
    ask(database, fall_back=[{"endpoint": name, **where} for name in names])
    later = database.enqueue("a", 1, first=11)
    waiting = set(names)
    while waiting:
        answer = ask(database, fetch=sorted(waiting), max_events=100_000, max_bytes=100_000_000)
        for name, fetched in answer.fetched.items():
            if fetched.caught_up:
                waiting.discard(name)
            elif fetched.events:
                assert fetched.ids in (ids, later)
        ask(
            database,
            settled=[{"endpoint": name, "positions": f.positions} for name, f in answer.fetched.items() if f.events],
        )
    assert database.value("SELECT count(*) FROM outbox.cursor") == 1
    assert database.value("SELECT count(*) FROM outbox.batch") == 0
