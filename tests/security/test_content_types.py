"""Payloads with a JSON type that are not JSON: a producer must not write into the documents that carry events."""

from __future__ import annotations

import psycopg
import pytest

from .attacker import NewAttacker

FORGED = (
    b'1},{"specversion":"1.0","id":"11111111-1111-7111-8111-111111111111","source":"/a/acct","type":"Paid",'
    b'"topic":"bank.payments","data":{"amount":1000000}'
)
ODD_TYPES = [
    "application/json ", " application/json", "application/json ;", "application/json;", "application /json",
    "application/json, x/y", "APPLICATION/JSON ", "x/y+json ", "application/json;charset", "application/json\t",
]  # fmt: skip


@pytest.mark.parametrize("content_type", ODD_TYPES)
def test_an_ambiguous_content_type_is_refused(new_attacker: NewAttacker, content_type: str) -> None:
    """S9"""
    producer = new_attacker("outbox.grant_produce")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="content_type"):
        producer.execute("SELECT outbox.enqueue('a', '1', 'X', %s::bytea, %s)", (FORGED, content_type))


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json ;charset=utf-8",
        "x/y+JSON",
        'application/json; a="; b"',
    ],
)
def test_every_type_that_is_embedded_as_json_is_checked(new_attacker: NewAttacker, content_type: str) -> None:
    """S9"""
    producer = new_attacker("outbox.grant_produce")
    for payload in (FORGED, b"", b"{", b'{"a":1}}', b"\xff", b"1 2", b'"\n"'):
        with pytest.raises(psycopg.Error):
            producer.execute("SELECT outbox.enqueue('a', '1', 'X', %s::bytea, %s)", (payload, content_type))
    producer.execute("SELECT outbox.enqueue('a', '1', 'X', %s::bytea, %s)", (b'{"a": 1}', content_type))


def test_create_outbox_view_refuses_an_invalid_content_type(new_attacker: NewAttacker) -> None:
    """S9"""
    database = new_attacker().database
    for content_type in (*ODD_TYPES, "protobuf"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="media type"):
            database.execute("SELECT outbox.create_outbox_view('v', content_type => %s)", (content_type,))
