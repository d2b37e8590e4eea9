"""Databases in other encodings than UTF-8, in which destinations get all texts: as the sender and as the receiver.

A new encoding is one line of ENCODINGS.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
import pytest

from cluster import Cluster
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
