"""Features of the pubsub sink only: message ids, formats, created topics, keys of service accounts."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

from database import Database
from waiting import wait_until

from .conftest import MakeSink
from .pubsub_sink import PubSubSink, publishes


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def pubsub(database: Database, make_sink: MakeSink) -> PubSubSink:
    sink = make_sink(PubSubSink, database)
    assert isinstance(sink, PubSubSink)
    return sink


def ask(sink: PubSubSink, method: str, path: str, body: object | None = None) -> Any:
    """Talks to the server directly, not through the proxy."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{sink.proxy.server_port}/v1/projects/{sink.place}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def pull(sink: PubSubSink, count: int, subscription: str = "item.events") -> list[dict[str, Any]]:
    """Reads messages in JSON."""
    messages: list[dict[str, Any]] = []

    def more() -> int:
        answer = ask(
            sink, "POST", f"subscriptions/{subscription}:pull",
            {"maxMessages": 1000, "returnImmediately": True},
        )  # fmt: skip
        received = answer.get("receivedMessages", [])
        messages.extend(each["message"] for each in received)
        if received:
            path = f"subscriptions/{subscription}:acknowledge"
            ask(sink, "POST", path, {"ackIds": [each["ackId"] for each in received]})
        return len(messages)

    wait_until(more, lambda seen: seen >= count, what=f"{count} messages")
    return messages


def test_a_receipt_has_the_id_of_the_message(pubsub: PubSubSink, db: Database) -> None:
    pubsub.add_topic()
    ids = [id for key in "abc" for id in db.enqueue(key, 3)]
    pubsub.create(receipts="on")
    messages = pull(pubsub, len(ids))
    rows = wait_until(
        lambda: db.execute("SELECT event_id::text, message_id FROM outbox.receipt"),
        lambda rows: len(rows) >= len(ids), what="a receipt for each event",
    )  # fmt: skip
    receipts = dict(rows)
    assert receipts == {m["attributes"]["event_id"]: m["messageId"] for m in messages}
    assert set(receipts) == set(ids)
    for key in "abc":
        versions = [m["attributes"]["version"] for m in messages if m["orderingKey"] == key]
        assert versions == ["1", "2", "3"]


ENQUEUE = """
SELECT outbox.enqueue('item', 'a 1', 'changed', '{"n": 1}', version => 7,
                      headers => '{"tenant": "one two", "x-request-id": "r 1"}')
"""


def test_binary_format(pubsub: PubSubSink, db: Database) -> None:
    pubsub.add_topic()
    pubsub.create(format="binary")
    event_id = str(db.value(ENQUEUE))
    message = pull(pubsub, 1)[0]
    assert base64.b64decode(message["data"]) == b'{"n": 1}'
    assert message["orderingKey"] == "a 1"
    attributes = message["attributes"]
    assert attributes.pop("ce-time")
    assert attributes.pop("ce-sequence")
    assert attributes == {
        "ce-specversion": "1.0",
        "ce-id": event_id,
        "ce-source": f"/{db.name}/item",
        "ce-type": "changed",
        "ce-subject": "a 1",
        "ce-partitionkey": "a 1",
        "ce-aggregateversion": "7",
        "ce-schemaversion": "1",
        "ce-topic": "item.events",
        "ce-tenant": "one two",
        "x-request-id": "r 1",
        "content-type": "application/json",
    }


def test_structured_format(pubsub: PubSubSink, db: Database) -> None:
    pubsub.add_topic()
    pubsub.create(format="structured")
    event_id = str(db.value(ENQUEUE))
    message = pull(pubsub, 1)[0]
    assert message["attributes"] == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "x-request-id": "r 1",
    }
    document = json.loads(base64.b64decode(message["data"]))
    assert (document["id"], document["tenant"]) == (event_id, "one two")
    assert document["data"] == {"n": 1}


def test_topics_are_created_when_they_are_missing(pubsub: PubSubSink, db: Database) -> None:
    pubsub.create(create_topics="on", topic="{database}.{aggregate_type}")
    for kind in ("order", "invoice"):
        db.execute("SELECT outbox.enqueue(%s, 'a', 'changed', '{}')", (kind,))
    db.wait_published(2)
    for kind in ("order", "invoice"):
        assert ask(pubsub, "GET", f"topics/{db.name}.{kind}")
    assert db.status()["failures"] == 0
    methods = [request.method for request in pubsub.proxy.requests]
    assert (methods.count("PUT"), methods.count("POST")) == (2, 4)


def test_no_topic_is_created_unasked(pubsub: PubSubSink, db: Database) -> None:
    pubsub.create()
    db.enqueue()
    wait_until(db.status, lambda s: "NOT_FOUND" in (s["last_error"] or ""), what="a failure")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(pubsub, "GET", "topics/item.events")


def test_a_topic_name_that_cannot_be_is_a_dead_letter(pubsub: PubSubSink, db: Database) -> None:
    pubsub.add_topic()
    pubsub.create()
    db.enqueue("a", topic="video events")
    ids = db.enqueue("b")
    pubsub.wait_for(ids)
    error = wait_until(lambda: db.value("SELECT last_error FROM outbox.dead_letter"), what="the dead letter")
    assert error.startswith('"video events" cannot be a topic')
    assert not any("video" in request.target for request in pubsub.proxy.requests)


# -------------------------------------------------------------------------------------------------
# Service accounts
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """Returns the text of a service account's file, with a new key."""
    pem = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-out", pem], check=True)
    return json.dumps(
        {
            "type": "service_account",
            "private_key_id": "k1",
            "private_key": pem.read_text(),
            "client_email": "relay@shop.iam.gserviceaccount.com",
            "token_uri": "https://oauth2.googleapis.com/token",
        },
        indent=2,
    )


def create_with_key(pubsub: PubSubSink, db: Database, key: str) -> None:
    """Makes a destination without an emulator, which would get no credentials."""
    db.add_destination("d", f"{pubsub.url()}?endpoint=http://127.0.0.1:{pubsub.proxy.port}")
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (key {psycopg.sql.quote(key)})")


def test_requests_are_signed_for_with_the_key(pubsub: PubSubSink, db: Database, key_file: str) -> None:
    pubsub.add_topic()
    create_with_key(pubsub, db, key_file)
    pubsub.wait_for(db.enqueue())
    request = next(request for request in pubsub.proxy.requests if publishes(request))
    kind, _, token = request.headers["authorization"].partition(" ")
    header, claims = (json.loads(base64.b64decode(part + "==", "-_")) for part in token.split(".")[:2])
    assert (kind, header) == ("Bearer", {"alg": "RS256", "typ": "JWT", "kid": "k1"})
    assert claims["iss"] == claims["sub"] == "relay@shop.iam.gserviceaccount.com"
    assert claims["scope"] == "https://www.googleapis.com/auth/pubsub"
    assert claims["exp"] - claims["iat"] == 3600


def test_a_key_that_cannot_be_used_says_why(pubsub: PubSubSink, db: Database, key_file: str) -> None:
    create_with_key(pubsub, db, key_file.replace("service_account", "authorized_user"))
    db.enqueue()
    status = wait_until(db.status, lambda s: s["last_error"], what="a failure")
    assert status["last_error"] == ('option "key" is not the key of a service account: its type is not service_account')
    assert not pubsub.proxy.requests


def test_only_superusers_lend_what_the_server_process_has(pubsub: PubSubSink, db: Database) -> None:
    """Other roles can use neither its identity nor its files."""
    role = f"{db.name}_owner"
    db.execute(f"CREATE ROLE {role}")
    try:
        db.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {role}")
        db.execute(f"SET ROLE {role}")
        db.add_destination("d", f"{pubsub.url()}?endpoint=http://127.0.0.1:{pubsub.proxy.port}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (key_file '/x')")
        db.execute("RESET ROLE")
        db.enqueue()
        status = wait_until(db.status, lambda s: s["last_error"], what="a failure")
        assert status["last_error"] == (
            "credentials are required, in the user mapping or in relay.toml: the owner of the destination is not a "
            "superuser"
        )
        assert not pubsub.proxy.requests
    finally:
        db.execute("RESET ROLE")
        db.execute(f"DROP OWNED BY {role} CASCADE")
        db.execute(f"DROP ROLE {role}")
