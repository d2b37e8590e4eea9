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
from test_inbox import Reader
from waiting import wait_until


class Encoding(NamedTuple):
    name: str
    stored: str  # a text as E'' writes its bytes
    text: str  # the same
    unreadable: str | None  # bytes without a form in UTF-8, if there are any


ENCODINGS = [
    Encoding("SQL_ASCII", r"\xc3\xbc", "ü", r"k\xff"),
    Encoding("WIN1252", r"\x80", "€", r"k\x81"),
    Encoding("EUC_JP", r"\xa4\xa2", "あ", r"k\xa9\xa1"),
    Encoding("LATIN1", r"\xfc", "ü", None),
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
