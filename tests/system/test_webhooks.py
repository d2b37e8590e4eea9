"""Webhooks: signatures of Standard Webhooks, checked with its own libraries, and CloudEvents, read by their SDK."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster import Installation
from database import Database
from receiver import Receiver, Request, answer, events_of, everything
from sinks.servers import add_clients_to_path
from waiting import wait_until

add_clients_to_path()


def secret(letter: str) -> str:
    return "whsec_" + base64.b64encode(letter.encode() * 32).decode()


FORMATS = ["binary", "structured", "batched"]


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


def add(db: Database, receiver: Receiver, *, format: str = "binary", **mapping: str) -> None:
    db.add_destination("d", receiver.url(), format=format, retry_base="10ms", retry_max="20ms")
    if mapping:
        pairs = ", ".join(f"{name} '{value}'" for name, value in mapping.items())
        db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def change(db: Database, options: str) -> None:
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({options})")


def send(db: Database, receiver: Receiver) -> Request:
    before = len(receiver.requests)
    db.enqueue()
    receiver.wait_for_requests(before + 1)
    return receiver.requests[-1]


# -------------------------------------------------------------------------------------------------
# Receivers
# -------------------------------------------------------------------------------------------------


def verified_by_python(request: Request, key: str) -> bool:
    webhooks = pytest.importorskip(
        "standardwebhooks", reason="NOT TESTED: standardwebhooks is not installed; see tests/requirements.txt"
    )
    try:
        webhooks.Webhook(key).verify(request.body, request.headers, json_parse=False)
        return True
    except webhooks.WebhookVerificationError as error:
        assert "No matching signature" in str(error), error
        return False


# Each says what the library of the standard answers to these requests.
Library = Callable[[Installation, list[Request], str], set[str]]


def by_python(installation: Installation, requests: list[Request], key: str) -> set[str]:
    return {"ok" if verified_by_python(request, key) else "No matching signature found" for request in requests}


def by_javascript(installation: Installation, requests: list[Request], key: str) -> set[str]:
    script = installation.build / "servers/webhooks/verify.js"
    if not script.exists() or not shutil.which("node"):
        pytest.skip("NOT TESTED: no Node.js, or scripts/test.sh did not install standardwebhooks from npm")
    given = [{"secret": key, "headers": r.headers, "body": r.body.decode()} for r in requests]
    ran = subprocess.run(["node", str(script)], input=json.dumps(given).encode(), capture_output=True, check=True)
    return set(json.loads(ran.stdout))


def key_pair(letter: str) -> tuple[str, Any]:
    """Returns a private key as the option has it, and its public key."""
    keys = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="NOT TESTED: cryptography is not installed"
    )
    private = keys.Ed25519PrivateKey.from_private_bytes(letter.encode() * 32)
    return "whsk_" + base64.b64encode(letter.encode() * 32).decode(), private.public_key()


def verified_by_key(request: Request, key: Any) -> bool:
    from cryptography.exceptions import InvalidSignature

    text = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    for signature in request.headers["webhook-signature"].split(" "):
        version, _, value = signature.partition(",")
        if version != "v1a":
            continue
        try:
            key.verify(base64.b64decode(value, validate=True), text)
            return True
        except InvalidSignature:
            pass
    return False


# -------------------------------------------------------------------------------------------------
# Signatures
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [by_python, pytest.param(by_javascript, marks=pytest.mark.long)])
@pytest.mark.parametrize("format", FORMATS)
def test_the_libraries_of_receivers_accept_a_signature(
    db: Database, receiver: Receiver, installation: Installation, format: str, library: Library
) -> None:
    add(db, receiver, format=format, signing_secret=secret("a"))
    began = int(time.time())
    db.execute(
        "SELECT outbox.enqueue('item', n::text, 'changed', jsonb_build_object('text', 'Grüße 𝄞 ' || n), ordering_key => '') "
        "FROM generate_series(1, 20) AS n"
    )
    db.execute("SELECT outbox.enqueue('item', 'none', 'changed', NULL::jsonb)")
    db.wait_published(21)
    assert all(began <= int(r.headers["webhook-timestamp"]) <= time.time() for r in receiver.requests)
    assert library(installation, receiver.requests, secret("a")) == {"ok"}
    assert library(installation, receiver.requests, secret("b")) == {"No matching signature found"}


def test_a_public_key_verifies_what_the_private_key_has_signed(db: Database, receiver: Receiver) -> None:
    private, public = key_pair("k")
    add(db, receiver, signing_key=private)
    event_id = str(
        db.value("SELECT outbox.enqueue('item', 'a', 'changed', '\\x00ff00'::bytea, 'application/octet-stream')")
    )
    receiver.wait_for_requests(1)
    (request,) = receiver.requests
    assert request.body == b"\x00\xff\x00"
    assert request.headers["webhook-id"] == event_id
    assert verified_by_key(request, public)
    assert not verified_by_key(request, key_pair("l")[1])
    assert "v1," not in request.headers["webhook-signature"]


def test_a_key_can_be_made_with_openssl(db: Database, receiver: Receiver, tmp_path: Path) -> None:
    """The commands of docs/destinations/http.md."""
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)

    def last_bytes(*options: str) -> bytes:
        command = ["openssl", "pkey", "-in", key, *options, "-outform", "DER"]
        return subprocess.run(command, check=True, capture_output=True).stdout[-32:]

    keys = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="NOT TESTED: cryptography is not installed"
    )
    made = subprocess.run(
        ["openssl", "rand", "-base64", "32"], check=True, capture_output=True, text=True
    ).stdout.strip()
    private = "whsk_" + base64.b64encode(last_bytes()).decode()
    add(db, receiver, signing_key=private, signing_secret=f"whsec_{made}")
    request = send(db, receiver)
    assert verified_by_key(request, keys.Ed25519PublicKey.from_public_bytes(last_bytes("-pubout")))
    assert verified_by_python(request, f"whsec_{made}")


def test_a_secret_is_changed_while_both_are_valid(db: Database, receiver: Receiver) -> None:
    """The steps of docs/destinations/http.md; there is no moment at which a receiver cannot verify."""
    add(db, receiver, signing_secret=secret("a"))
    request = send(db, receiver)
    assert verified_by_python(request, secret("a")) and not verified_by_python(request, secret("b"))
    change(db, f"ADD next_signing_secret '{secret('b')}'")
    request = send(db, receiver)
    assert verified_by_python(request, secret("a")) and verified_by_python(request, secret("b"))
    change(db, f"SET signing_secret '{secret('b')}', DROP next_signing_secret")
    request = send(db, receiver)
    assert verified_by_python(request, secret("b")) and not verified_by_python(request, secret("a"))


def test_a_key_is_changed_while_both_are_valid(db: Database, receiver: Receiver) -> None:
    (old, old_public), (new, new_public) = key_pair("k"), key_pair("l")
    add(db, receiver, signing_secret=secret("a"), signing_key=old)
    request = send(db, receiver)
    assert verified_by_python(request, secret("a")), "a secret and a key sign side by side"
    assert verified_by_key(request, old_public) and not verified_by_key(request, new_public)
    change(db, f"ADD next_signing_key '{new}'")
    request = send(db, receiver)
    assert verified_by_key(request, old_public) and verified_by_key(request, new_public)
    change(db, f"SET signing_key '{new}', DROP next_signing_key")
    request = send(db, receiver)
    assert verified_by_key(request, new_public) and not verified_by_key(request, old_public)


@pytest.mark.parametrize("format", FORMATS)
def test_the_id_stays_the_same_and_each_attempt_is_signed_anew(db: Database, receiver: Receiver, format: str) -> None:
    receiver.on(everything, answer(503, [("Retry-After", "1")]), times=2)
    add(db, receiver, format=format, signing_secret=secret("a"))
    with db.connection.transaction():
        ids = db.enqueue("a", 3)
    db.wait_published(3)
    attempts = receiver.requests[:3]
    assert len({request.headers["webhook-timestamp"] for request in attempts}) == 3
    assert all(verified_by_python(request, secret("a")) for request in receiver.requests)
    id_of: dict[tuple[str, ...], str] = {}
    for request in receiver.requests:
        of_events = tuple(event.id for event in events_of(request))
        assert id_of.setdefault(of_events, request.headers["webhook-id"]) == request.headers["webhook-id"]
    assert {id for of_events in id_of for id in of_events} == set(ids)
    assert len(set(id_of.values())) == len(id_of), "what carries other events has another id"
    for of_events, webhook_id in id_of.items():
        assert webhook_id == of_events[0] if len(of_events) == 1 else re.fullmatch("batch_[0-9a-f]{32}", webhook_id)


# -------------------------------------------------------------------------------------------------
# Secrets
# -------------------------------------------------------------------------------------------------

WRONG = {
    "signing_secret": ["5ecret", "whsec_", "whsec_c2hvcnQ=", "whsec_5ecret!", secret("a")[:-1]],
    "signing_key": ["5ecret", secret("a"), "whsk_c2hvcnQ="],
}


@pytest.mark.parametrize("option, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_form_is_an_error_that_does_not_show_it(
    db: Database, receiver: Receiver, option: str, value: str
) -> None:
    for name in (option, f"next_{option}"):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as raised:
            add(db, receiver, **{name: value})
        assert f'invalid value for option "{name}"' in str(raised.value)
        assert "base64" in (raised.value.diag.message_hint or "")
        db.drop_destination("d")


def test_secrets_that_sign_are_shown_nowhere(db: Database, receiver: Receiver) -> None:
    """A receiver may repeat them, with or without their prefix."""
    private, _ = key_pair("k")
    said = f"not {secret('a')}, {secret('b')[6:]}, {private}, {private[5:]}"
    receiver.on(everything, answer(500, body=said.encode()), times=1)
    add(db, receiver, signing_secret=secret("a"), next_signing_secret=secret("b"), signing_key=private)
    db.enqueue()
    db.wait_published(1)
    assert db.status()["last_error"] == "HTTP 500: not ***, ***, ***, ***"
    shown = str(db.execute("SELECT * FROM outbox.status, outbox.workers()")) + db.cluster.log_since(
        db.cluster.test_began
    )
    for value in (secret("a"), secret("b"), private):
        assert value.partition("_")[2] not in shown


def test_a_check_says_what_signs(db: Database, receiver: Receiver) -> None:
    add(db, receiver, signing_secret=secret("a"), next_signing_secret=secret("b"), signing_key=key_pair("k")[0])

    def found() -> tuple[bool, str]:
        rows = db.execute("SELECT subject, ok, detail FROM outbox.check_destination('d')")
        return {subject: (ok, detail) for subject, ok, detail in rows}["signature"]

    assert found() == (True, "requests have 2 signatures v1 and 1 signature v1a")
    halves = "whsk_" + base64.b64encode(b"k" * 64).decode()
    change(db, f"SET signing_key '{halves}'")
    assert found() == (False, "the two halves of the signing key do not belong together")
    db.enqueue()
    wait_until(lambda: db.status()["last_error"], lambda seen: "halves" in (seen or ""), what="an error that says so")
    assert receiver.requests == [], "a request without its signature"
    change(db, f"SET signing_key '{key_pair('k')[0]}'")
    db.wait_published(1)


# -------------------------------------------------------------------------------------------------
# CloudEvents
# -------------------------------------------------------------------------------------------------

EVENT = """
SELECT outbox.enqueue(
    'video', 'v 1/ü', 'video.created', '{"title": "Grüße", "n": 1.50}', version => 7, topic => 'video.events',
    ordering_key => 'key %', headers => '{"tenant": "a b", "x-request-id": "r"}',
    occurred_at => '2026-01-31 10:20:30.123456+00')
"""


@pytest.mark.parametrize("format", FORMATS)
def test_the_sdk_reads_all_formats(db: Database, receiver: Receiver, format: str) -> None:
    cloudevents = pytest.importorskip(
        "cloudevents.core.bindings.http", reason="NOT TESTED: cloudevents is not installed; see tests/requirements.txt"
    )
    from cloudevents.core.formats.json import JSONFormat

    add(db, receiver, format=format, signing_secret=secret("a"))
    event_id = str(db.value(EVENT))
    receiver.wait_for_requests(1)
    (request,) = receiver.requests
    if format == "batched":  # which the SDK does not read as a whole
        (document,) = request.json()
        event = JSONFormat().read(None, json.dumps(document).encode())
    else:
        event = cloudevents.from_http_event(cloudevents.HTTPMessage(headers=dict(request.headers), body=request.body))
    assert (event.get_id(), event.get_type(), event.get_specversion()) == (event_id, "video.created", "1.0")
    assert (event.get_source(), event.get_subject()) == (f"/{db.name}/video", "v 1/ü")
    assert event.get_time().isoformat() == "2026-01-31T10:20:30.123456+00:00"
    assert event.get_data() == {"title": "Grüße", "n": 1.5}
    extensions = {name: event.get_extension(name) for name in ("tenant", "partitionkey", "topic", "aggregateversion")}
    assert extensions == {"tenant": "a b", "partitionkey": "key %", "topic": "video.events", "aggregateversion": "7"}


# -------------------------------------------------------------------------------------------------
# Answers
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_that_fails_makes_suspects_only_of_its_events(db: Database, receiver: Receiver, status: int) -> None:
    """An event that kills the server behind a gateway must not hold back the others."""
    receiver.on(lambda request: request.headers["ce-subject"] == "bad", answer(status))
    add(db, receiver)
    db.change_destination("d", max_attempts="3")
    db.enqueue("bad", 1)
    numbers = itertools.count()

    def after_one_more() -> list[tuple[object, ...]]:
        """Only events that arrive after it has failed tell a bad event from a gateway that is down."""
        db.enqueue(f"k{next(numbers)}", 1)
        return db.execute("SELECT aggregate_id, state FROM outbox.delivery")

    wait_until(after_one_more, lambda rows: rows == [("bad", "DEAD")], what="a dead letter")
    db.wait_published(next(numbers))


def test_a_receiver_that_is_gone_keeps_its_events(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(410))
    add(db, receiver)
    db.change_destination("d", max_attempts="1")
    db.enqueue("a", 3)
    wait_until(lambda: db.status()["last_error"], lambda seen: seen == "HTTP 410", what="the reason")
    receiver.forget_rules()
    db.wait_published(3)
    assert db.execute("SELECT * FROM outbox.delivery") == []
