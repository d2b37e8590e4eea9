"""Databases in other encodings than UTF-8, in which destinations get all texts: as the sender and as the receiver.

A new encoding is one line of ENCODINGS.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any, NamedTuple

import psycopg
import pytest

from cluster import Cluster, Installation
from conftest import NewDatabase
from database import Database
from receiver import Receiver, answer, path
from test_endpoints import add, add_hooks, wait_until_behind
from test_inbox import Reader
from test_world_shapes import COLUMNS, Shape, change_and_compare, projection, table
from waiting import wait_until


class Encoding(NamedTuple):
    name: str
    stored: str  # a text as E'' writes its bytes
    text: str  # the same
    unreadable: str | None  # bytes without a form in UTF-8, if there are any


LATIN1 = Encoding("LATIN1", r"\xfc", "ü", None)
ENCODINGS = [
    Encoding("SQL_ASCII", r"\xc3\xbc", "ü", r"k\xff"),
    Encoding("WIN1252", r"\x80", "€", r"k\x81"),
    Encoding("EUC_JP", r"\xa4\xa2", "あ", r"k\xa9\xa1"),
    LATIN1,
]
in_each_encoding = pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
with_unreadable_bytes = pytest.mark.parametrize(
    "encoding", [encoding for encoding in ENCODINGS if encoding.unreadable], ids=lambda encoding: encoding.name
)


def in_encoding(home: Database, database: Database, encoding: Encoding) -> Database:
    """Makes the database again in an encoding. The session gets texts in UTF-8."""
    database.disconnect()
    home.execute(f"DROP DATABASE {database.name} WITH (FORCE)")
    home.execute(
        f"CREATE DATABASE {database.name} ENCODING '{encoding.name}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    database.execute("SET client_encoding = 'UTF8'")
    return database


@pytest.fixture
def sender(new_database: NewDatabase, home: Database, encoding: Encoding) -> Database:
    database = in_encoding(home, new_database(extension=False), encoding)
    database.create_extension()
    return database


@pytest.fixture
def reader(shared_cluster: Cluster, new_database: NewDatabase) -> Reader:
    reader = Reader(shared_cluster, new_database(extension=False).name)
    reader.create_extension()
    reader.subscribe()
    return reader


ARGUMENTS = {
    "aggregate_type": "'item'", "aggregate_id": "'a'", "event_type": "'Changed'", "payload": "'{}'::jsonb",
    "topic": "'items'", "ordering_key": "'k'", "headers": "'{}'::jsonb",
}  # fmt: skip


def enqueue(changed: dict[str, str]) -> str:
    arguments = {**ARGUMENTS, **changed}
    return f"SELECT outbox.enqueue({', '.join(f'{name} => {value}' for name, value in arguments.items())})"


def given(argument: str, text: str) -> dict[str, str]:
    """Returns the argument with a text that is written as in E''."""
    value = f"E'{text}'"
    return {argument: f"jsonb_build_object('name', {value})" if argument in ("payload", "headers") else value}


@with_unreadable_bytes
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_text_without_a_form_in_utf8_is_refused(sender: Database, encoding: Encoding, argument: str) -> None:
    assert encoding.unreadable
    with pytest.raises((psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)):
        sender.execute(enqueue(given(argument, encoding.unreadable)))
    sender.execute(enqueue(given(argument, encoding.stored)))
    assert sender.value("SELECT count(*) FROM outbox.event") == 1


@in_each_encoding
def test_texts_arrive(sender: Database, reader: Reader, encoding: Encoding) -> None:
    sender.add_destination("d", reader.inbox_url(), consumer="c")
    texts = {name: value for argument in ARGUMENTS for name, value in given(argument, encoding.stored).items()}
    sender.execute(enqueue(texts))
    rows = wait_until(lambda: reader.execute("SELECT key, headers, payload FROM applied"), what="the event")
    assert rows == [(encoding.text, {"name": encoding.text}, {"name": encoding.text})]


CAPTURED = {
    "row": ("", "true", 2),
    "condition": ("condition => $$title NOT LIKE '%9' AND shown$$", "title NOT LIKE '%9' AND shown", 2),
    "version column": ("version => 'version'", "true", 1),
}


@in_each_encoding
@pytest.mark.parametrize("kind", CAPTURED)
def test_events_of_a_captured_table_tell_what_it_has(sender: Database, encoding: Encoding, kind: str) -> None:
    capture, condition, sessions = CAPTURED[kind]
    columns = f'{COLUMNS.replace("title text", f"title text DEFAULT {encoding.text!r}")}, "{encoding.text}" text DEFAULT {encoding.text!r}'
    sender.execute(f"ALTER DATABASE {sender.name} SET outbox.on_stale_version = 'error'")
    change_and_compare(
        sender, Shape(f"CREATE TABLE item ({columns}, PRIMARY KEY (id))", capture, condition=condition, sessions=sessions), encoding.text
    )  # fmt: skip


@with_unreadable_bytes
def test_a_captured_table_refuses_what_events_cannot_have(sender: Database, encoding: Encoding) -> None:
    shape = Shape("CREATE TABLE item (id text PRIMARY KEY, title text)")
    sender.execute(shape.ddl)
    sender.execute("SELECT outbox.capture('item')")
    sender.execute("INSERT INTO item VALUES ('a', 'kept')")
    for change in ("INSERT INTO item VALUES ('b', {})", "INSERT INTO item VALUES ({})", "UPDATE item SET title = {}"):
        with pytest.raises((psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)):
            sender.execute(change.format(f"E'{encoding.unreadable}'"))
    assert projection(sender, shape.key) == table(sender, shape) == {("a",): {"id": "a", "title": "kept"}}


NO_UTF8 = "a name or a header of the event has no form in UTF-8"


def enqueue_unreadable(sender: Database, encoding: Encoding, column: str, *ids: str) -> None:
    """As an older version did, or the owner of the table."""
    assert encoding.unreadable
    with sender.connect() as connection, connection.transaction():
        for id in ids:
            connection.execute(enqueue({"aggregate_id": f"'{id}'"}))  # type: ignore[arg-type]
        connection.execute(
            f"UPDATE outbox.event SET {column} = {given(column, encoding.unreadable)[column]} WHERE xid = pg_current_xact_id()"
        )  # type: ignore[arg-type]


def dead(sender: Database, destination: str = "d", since: str = "-infinity") -> list[str]:
    """Returns the errors of the dead letters that have failed since then."""
    rows = sender.execute(
        "SELECT last_error FROM outbox.delivery WHERE destination = %s AND state = 'DEAD' AND last_failed_at > %s "
        "ORDER BY position",
        (destination, since),
    )
    return [error for (error,) in rows]


def wait_dead(sender: Database, count: int, destination: str = "d", since: str = "-infinity") -> list[str]:
    return wait_until(
        lambda: dead(sender, destination, since), lambda errors: len(errors) == count, what=f"{count} dead letters"
    )


@with_unreadable_bytes
@pytest.mark.parametrize("column", ["aggregate_id", "topic", "ordering_key", "headers"])
def test_rows_that_cannot_be_read_are_dead_letters(sender: Database, encoding: Encoding, column: str) -> None:
    sender.add_destination("d", "null:")
    enqueue_unreadable(sender, encoding, column, "bad", "worse")
    sender.execute(enqueue({"aggregate_id": "'good'"}))
    assert wait_dead(sender, 2) == [NO_UTF8] * 2
    sender.wait_published(1)
    redriven = sender.value("SELECT clock_timestamp()::text")
    sender.execute("SELECT outbox.redrive('d')")
    assert wait_dead(sender, 2, since=redriven) == [NO_UTF8] * 2
    sender.execute(enqueue({"aggregate_id": "'later'"}))
    sender.wait_published(2)


def fetch(sender: Database) -> list[str]:
    """Returns what a client that needs UTF-8 gets, and settles it."""
    rows = sender.execute("SELECT token, aggregate_id FROM outbox.fetch('d')")
    for token in {token for token, _ in rows}:
        sender.execute("SELECT outbox.ack(%s)", (token,))
    return [id for _, id in rows]


@with_unreadable_bytes
@pytest.mark.parametrize("column", ["aggregate_id", "ordering_key", "headers"])
def test_a_fetcher_gets_the_rows_that_it_can_read(sender: Database, encoding: Encoding, column: str) -> None:
    sender.add_destination("d", "pull:")
    enqueue_unreadable(sender, encoding, column, "bad", "worse")
    sender.execute(enqueue({"aggregate_id": "'good'"}))
    assert fetch(sender) == ["good"]
    assert dead(sender) == [NO_UTF8] * 2
    assert sender.execute("SELECT published, failures FROM outbox.cursor") == [(1, 2)]
    redriven = sender.value("SELECT clock_timestamp()::text")
    sender.execute("SELECT outbox.redrive('d')")
    sender.execute(enqueue({"aggregate_id": "'later'"}))
    assert fetch(sender) == ["later"]
    assert dead(sender, since=redriven) == [NO_UTF8] * 2
    assert fetch(sender) == []


@with_unreadable_bytes
def test_a_row_that_no_fetcher_can_read_holds_its_key(sender: Database, encoding: Encoding) -> None:
    sender.add_destination("d", "pull:", on_dead_letter="block")
    enqueue_unreadable(sender, encoding, "headers", "bad")
    sender.execute(enqueue({"aggregate_id": "'behind'"}))
    sender.execute(enqueue({"aggregate_id": "'beside'", "ordering_key": "'l'"}))
    assert fetch(sender) == ["beside"]
    sender.execute("SELECT outbox.redrive('d')")
    assert fetch(sender) == []
    sender.execute("SELECT outbox.discard('d', ARRAY(SELECT event_id FROM outbox.dead_letter), why => 'a test')")
    assert fetch(sender) == ["behind"]


@with_unreadable_bytes
@pytest.mark.parametrize("column", ["aggregate_id", "ordering_key", "headers"])
def test_an_endpoint_that_is_behind_gets_the_rows_that_can_be_read(
    sender: Database, receiver: Receiver, http: None, encoding: Encoding, column: str
) -> None:
    receiver.on(path("/a"), answer(503))
    add_hooks(sender)
    add(sender, "a", receiver.url("/a"))
    sender.execute(enqueue({"aggregate_id": "'first'"}))
    wait_until_behind(sender, "a")
    enqueue_unreadable(sender, encoding, column, "bad", "worse")
    sender.execute(enqueue({"aggregate_id": "'good'"}))
    receiver.forget_rules()

    def arrived() -> list[str]:
        """Without duplicates: the destination takes up again what was behind the dead letters."""
        subjects = [event.subject for event in receiver.events() if event.request.status == 204]
        return list(dict.fromkeys(subjects))

    wait_until(arrived, lambda subjects: "good" in subjects, what="what can be read")
    assert wait_dead(sender, 2, "hooks/a") == [NO_UTF8] * 2
    assert arrived() == ["first", "good"]
    redriven = sender.value("SELECT clock_timestamp()::text")
    sender.execute("SELECT outbox.redrive('hooks/a')")
    assert wait_dead(sender, 2, "hooks/a", since=redriven) == [NO_UTF8] * 2
    sender.execute(enqueue({"aggregate_id": "'later'"}))
    wait_until(arrived, lambda subjects: subjects == ["first", "good", "later"], what="the next event")


@with_unreadable_bytes
@pytest.mark.parametrize("column", ["name", "url", "topics", "secret_name", "tenant"])
def test_an_endpoint_that_relays_cannot_read_is_refused(
    sender: Database, http: None, encoding: Encoding, column: str
) -> None:
    add_hooks(sender)
    row = {"name": "'a'", "url": "'https://receiver.test/'", "topics": "'t'", "secret_name": "'s'", "tenant": "'t'"}
    row[column] = row[column].removesuffix("'") + f"' || E'{encoding.unreadable}'"
    with pytest.raises(psycopg.errors.UntranslatableCharacter, match="a text of an endpoint has no form in UTF-8"):
        sender.execute(
            f"INSERT INTO outbox.endpoint (server, {', '.join(row)}) VALUES ('hooks', {', '.join(row.values())})"
        )


@with_unreadable_bytes
def test_an_error_may_quote_what_cannot_be_read(sender: Database, encoding: Encoding) -> None:
    sender.add_destination("d", "null:", filter="aggregate_id::integer > 0")
    enqueue_unreadable(sender, encoding, "aggregate_id", "1")
    sender.execute(enqueue({"aggregate_id": "'2'"}))
    (error,) = wait_dead(sender, 1)
    assert error.startswith("filter: invalid input syntax for type integer"), error
    sender.wait_published(1)


@in_each_encoding
def test_what_a_receiver_cannot_store_holds_up_no_other(
    shared_cluster: Cluster, new_database: NewDatabase, home: Database, database: Database, encoding: Encoding
) -> None:
    reader = Reader(shared_cluster, in_encoding(home, new_database(extension=False), encoding).name)
    reader.execute("SET client_encoding = 'UTF8'")
    reader.create_extension()
    reader.subscribe()
    database.add_destination("d", reader.inbox_url(), consumer="c", max_attempts="2", retry_base="1ms", retry_max="1ms")
    thai = "ก"
    for key in ("before", thai, encoding.text, "after"):
        database.execute("SELECT outbox.enqueue('item', %s, 'Changed', '{}'::jsonb)", (key,))
    arriving = {"before", encoding.text, "after"} | ({thai} if encoding.name == "SQL_ASCII" else set())
    wait_until(
        lambda: {key for (key,) in reader.execute("SELECT key FROM applied")}, lambda keys: keys == arriving,
        what="the others",
    )  # fmt: skip
    dead = "SELECT aggregate_id, last_error LIKE '%has no equivalent%' FROM outbox.dead_letter"
    wait_until(
        lambda: database.execute(dead), lambda rows: rows == ([] if thai in arriving else [(thai, True)]),
        what="a dead letter",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# What people and programs read
# -------------------------------------------------------------------------------------------------

COLUMNS_OF_EVENTS = ["topic", "aggregate_id", "ordering_key", "headers"]
REPORTS = [
    "SELECT * FROM outbox.dead_letter", "SELECT * FROM outbox.blocked_key", "SELECT * FROM outbox.find_events()",
    "SELECT f.* FROM outbox.delivery AS d, outbox.find_event(d.event_id) AS f",
    "SELECT s.* FROM outbox.delivery AS d, outbox.event_status(d.event_id) AS s",
    "SELECT * FROM outbox.status", "SELECT * FROM outbox.health('0')",
]  # fmt: skip


def rows(database: Database, query: str) -> list[dict[str, Any]]:
    cursor = database.connection.execute(query)  # type: ignore[arg-type]
    names = [column.name for column in cursor.description or []]
    return [dict(zip(names, row)) for row in cursor]


def escaped(text: str) -> str:
    """Bytes of ENCODINGS as reports show them."""
    return re.sub(r"\\x(..)", lambda byte: rf"\{int(byte[1], 16):o}", text)


@with_unreadable_bytes
@pytest.mark.parametrize("column", COLUMNS_OF_EVENTS)
def test_reports_show_what_cannot_be_read(sender: Database, encoding: Encoding, column: str) -> None:
    assert encoding.unreadable
    sender.add_destination("d", "pull:", on_dead_letter="block")
    enqueue_unreadable(sender, encoding, column, "bad")
    sender.execute(enqueue({"aggregate_id": "'good'", "ordering_key": "'l'"}))
    ((token,),) = sender.execute("SELECT token FROM outbox.fetch('d')")
    sender.execute(  # an error that quotes what its writer could not read
        "UPDATE outbox.delivery SET last_error = last_error || E' \\xff'" if encoding.name == "SQL_ASCII" else "SELECT"
    )
    shown = {query: rows(sender, query) for query in REPORTS}
    assert all(shown.values()), shown
    (dead,) = shown[REPORTS[0]]
    text = escaped(encoding.unreadable)
    if column == "headers":
        assert json.loads(dead["headers"].replace("\\\\", "\\").replace(text, "k")) == {"name": "k"}
    else:
        assert dead[column] == text
    assert dead["escaped"]
    if column == "ordering_key":
        assert [key["ordering_key"] for key in shown[REPORTS[1]]] == [text]
    by_id = {event["aggregate_id"]: event for event in shown[REPORTS[2]]}
    assert (by_id["good"]["topic"], len(by_id)) == ("items", 2)
    sender.execute("SELECT outbox.ack(%s)", (token,))


@with_unreadable_bytes
def test_outboxctl_lists_what_cannot_be_read(sender: Database, encoding: Encoding, installation: Installation) -> None:
    assert encoding.unreadable
    sender.add_destination("d", "pull:")
    enqueue_unreadable(sender, encoding, "topic", "bad")
    enqueue_unreadable(sender, encoding, "ordering_key", "worse")
    assert fetch(sender) == []
    ids = [str(id) for (id,) in sender.execute("SELECT event_id FROM outbox.delivery ORDER BY position")]

    def outboxctl(*arguments: str) -> str:
        return subprocess.run(
            [installation.build / "tools/outboxctl/outboxctl", "-d", sender.cluster.conninfo(sender.name), *arguments],
            capture_output=True, text=True, check=True, timeout=180,
        ).stdout  # fmt: skip

    listed = json.loads(outboxctl("dead-letters", "list", "--json"))
    text = escaped(encoding.unreadable)
    assert [(row["event_id"], row["topic"], row["ordering_key"]) for row in listed] == [
        (ids[0], text, "k"), (ids[1], "items", text)
    ]  # fmt: skip
    assert all(id in outboxctl("dead-letters", "list") for id in ids)
    assert outboxctl("dead-letters", "show", ids[1]).count(text) == 1
    assert [row["topic"] for row in json.loads(outboxctl("event", "find", "--json"))] == ["items", text]
    assert json.loads(outboxctl("event", "show", ids[0], "--json"))["event"]["topic"] == text
    assert json.loads(outboxctl("dead-letters", "discard", "d", "--all", "--why", "test", "--yes", "--json")) == {
        "discarded": 2
    }


@pytest.fixture
def receiver_of_texts(new_database: NewDatabase, home: Database, encoding: Encoding) -> Database:
    """A database with pg_inbox and the consumer c, which claims its messages."""
    database = in_encoding(home, new_database(extension=False), encoding)
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute("SELECT inbox.create_consumer('c')")
    return database


def receive(database: Database, keys: list[str], column: str = "topic", text: str = "'t'") -> None:
    """Stores a message of each key; the last one has this text."""
    for key in keys:
        values = {"topic": "'t'", "aggregate_id": f"'{key}'", "ordering_key": f"'{key}'", "headers": "'{}'::jsonb"}
        if key == keys[-1]:
            values[column] = text
        database.execute(
            "SELECT inbox.receive('c', 's', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[1::bigint], ARRAY[1::bigint], ARRAY[1], "
            f"ARRAY[NULL::uuid], ARRAY[{values['topic']}], ARRAY['item'], ARRAY[{values['aggregate_id']}], ARRAY['Changed'], "
            f"ARRAY[{values['ordering_key']}], ARRAY['application/json'], ARRAY[{values['headers']}], ARRAY['\\x7b7d'::bytea])"
        )


def claimed(database: Database) -> list[str]:
    return [row["aggregate_id"] for row in rows(database, "SELECT * FROM inbox.claim('c')")]


@with_unreadable_bytes
@pytest.mark.parametrize("column", COLUMNS_OF_EVENTS)
def test_a_message_that_cannot_be_read_is_put_aside(
    receiver_of_texts: Database, encoding: Encoding, column: str
) -> None:
    inbox = receiver_of_texts
    bad = given(column, encoding.unreadable or "")[column]
    receive(inbox, ["before", "bad"], column, bad)
    receive(inbox, ["after", "worse"], column, bad)
    receive(inbox, ["behind"])
    assert claimed(inbox) == ["before", "after", "behind"]
    dead = rows(inbox, "SELECT * FROM inbox.dead_letter ORDER BY event_id")
    assert [(row["sqlstate"], row["attempts"], row["incomplete"], row["escaped"]) for row in dead] == [
        ("22P05", 1, False, True)
    ] * 2
    assert all("has no form in UTF8" in row["error"] for row in dead)
    for query in "waiting_keys", "status", "lag", "health('0')", f"event_status('{dead[0]['event_id']}')":
        rows(inbox, f"SELECT * FROM inbox.{query}")
    # Nothing was lost of it: a session that gets bytes as they are can have it.
    inbox.execute("SELECT inbox.redrive('c')")
    inbox.execute("SET client_encoding = 'SQL_ASCII'")
    assert len(inbox.execute("SELECT event_id FROM inbox.claim('c')")) == 2
    inbox.execute("SET client_encoding = 'UTF8'")


@with_unreadable_bytes
def test_a_message_that_cannot_be_read_holds_its_key(receiver_of_texts: Database, encoding: Encoding) -> None:
    inbox = receiver_of_texts
    inbox.execute("SELECT inbox.set_policy('c', on_dead_letter => 'block')")
    receive(inbox, ["k"], "headers", given("headers", encoding.unreadable or "")["headers"])
    receive(inbox, ["k"])
    receive(inbox, ["l"])
    assert claimed(inbox) == ["l"]
    inbox.execute("SELECT inbox.discard('c', ARRAY(SELECT event_id FROM inbox.dead_letter), 'a test')")
    assert claimed(inbox) == ["k"]


OPERATIONS_OF_INBOX = [
    "inbox.report_gap('c', {0}, {0}, 1)", "inbox.save_offset('c', {0}, {0}, now(), {0}, {0})",
    "inbox.reset_offset('c', {0}, now(), {0})",
]  # fmt: skip


@with_unreadable_bytes
def test_operations_are_shown_with_reasons_that_cannot_be_read(
    sender: Database, receiver_of_texts: Database, encoding: Encoding
) -> None:
    text = f"E'{encoding.unreadable}'"
    sender.add_destination("d", "pull:")
    sender.execute(f"SELECT outbox.replay('d', topic => {text}, why => {text})")
    for call in [*OPERATIONS_OF_INBOX, "inbox.accept_gap('c', {0}, {0})", OPERATIONS_OF_INBOX[0]]:
        receiver_of_texts.execute(f"SELECT {call.format(text)}")  # type: ignore[arg-type]
    shown = escaped(encoding.unreadable or "")
    (replay,) = rows(sender, "SELECT * FROM outbox.operations")
    assert (replay["action"], replay["why"]) == ("replay", shown) and "topic" in replay["selection"]
    assert [row["why"] for row in rows(receiver_of_texts, "SELECT * FROM inbox.operations ORDER BY id")] == [shown] * 2
    assert [row["why"] for row in rows(receiver_of_texts, "SELECT * FROM inbox.gaps")] == [shown]
    (offset,) = rows(receiver_of_texts, "SELECT * FROM inbox.offsets")
    assert [offset[name] for name in ("subscription", "message_id", "updated_by", "incarnation")] == [shown] * 4
    found = rows(receiver_of_texts, "SELECT * FROM inbox.health('0')")
    assert {finding["what"] for finding in found} >= {"events skipped", "reset not carried out"}, found


@pytest.mark.parametrize("encoding", [Encoding("UTF8", "", "", None)], ids=["UTF8"])
def test_a_session_in_another_encoding_gets_what_it_can(receiver_of_texts: Database) -> None:
    inbox = receiver_of_texts
    receive(inbox, ["before", "bad"], "topic", "'あ'")
    receive(inbox, ["after"])
    inbox.execute("SET client_encoding = 'LATIN1'")
    assert claimed(inbox) == ["before", "after"]
    assert [row["topic"] for row in rows(inbox, "SELECT * FROM inbox.dead_letter")] == [r"\343\201\202"]
    inbox.execute("SET client_encoding = 'UTF8'")
    assert [row["topic"] for row in rows(inbox, "SELECT * FROM inbox.dead_letter")] == ["あ"]


@with_unreadable_bytes
def test_a_consumer_with_a_name_that_cannot_be_read_is_refused(receiver_of_texts: Database, encoding: Encoding) -> None:
    with pytest.raises(psycopg.errors.UntranslatableCharacter, match="name of a consumer has no form in UTF-8"):
        receiver_of_texts.execute(f"SELECT inbox.create_consumer(E'{encoding.unreadable}')")
    assert [row["consumer"] for row in rows(receiver_of_texts, "SELECT * FROM inbox.status")] == ["c"]
