"""The HTTP sink against a receiver that behaves well, badly, and unexpectedly.

CloudEvents 1.0, HTTP protocol binding; which field of an event is which attribute stands in
lib/sinks/cloudevents.hpp.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from cluster import MakeCluster
from database import Database, NewDatabase, create_database
from processes import assert_threads_block_signals
from receiver import (
    Behaviour,
    Exchange,
    Gate,
    Receiver,
    after_interim,
    answer,
    chunked,
    close_unanswered,
    cut_off,
    delayed,
    dripping,
    everything,
    head,
    path,
    raw,
    reset,
    subject,
)
from waiting import SECOND, Stopwatch, wait_until


@pytest.fixture
def db(database: Database, http: None) -> Database:
    return database


# -------------------------------------------------------------------------------------------------
# Requests
# -------------------------------------------------------------------------------------------------

EVENT = """
SELECT outbox.enqueue(
    aggregate_type => 'video', aggregate_id => 'v-1', event_type => 'video.created',
    payload => '{"title": "Grüße", "n": 1.50}', version => 7, topic => 'video.events',
    ordering_key => 'key', schema_version => 3,
    headers => '{"tenant": "a", "traceparent": "00-1-2-01", "x-request-id": "r 1", "count": 5,
                 "yes": true, "nothing": null}',
    source_event_id => '00000000-0000-7000-8000-000000000001',
    occurred_at => '2026-01-31 10:20:30.123456+00')
"""


ENQUEUE_BYTES = "SELECT outbox.enqueue('item', %s, 'changed', %s::bytea, 'application/x-thing')"


def test_binary_format(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url("/hook?q=1"))
    event_id = str(db.value(EVENT))
    receiver.wait_for_requests(1)
    request = receiver.requests[0]
    assert (request.method, request.target) == ("POST", "/hook?q=1")
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.json() == {"title": "Grüße", "n": 1.5}
    position = db.value("SELECT position FROM outbox.event")
    attributes = {name: v for name, v in request.headers.items() if name.startswith("ce-")}
    assert attributes == {
        "ce-specversion": "1.0",
        "ce-id": event_id,
        "ce-type": "video.created",
        "ce-source": f"/{db.name}/video",
        "ce-subject": "v-1",
        "ce-time": "2026-01-31T10:20:30.123456Z",
        "ce-partitionkey": "key",
        "ce-sequence": str(position),
        "ce-aggregateversion": "7",
        "ce-schemaversion": "3",
        "ce-topic": "video.events",
        "ce-sourceeventid": "00000000-0000-7000-8000-000000000001",
        "ce-tenant": "a",
        "ce-traceparent": "00-1-2-01",
        "ce-count": "5",
        "ce-yes": "true",
    }
    assert request.headers["x-request-id"] == "r 1"
    assert "authorization" not in request.headers
    names = [name.lower() for name, _ in request.header_list]
    assert len(names) == len(set(names)), f"a header came twice: {names}"


def test_what_an_event_does_not_have_is_not_sent(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.execute("SELECT outbox.enqueue('item', 'a', 'changed', NULL::jsonb, ordering_key => '')")
    receiver.wait_for_requests(1)
    request = receiver.requests[0]
    assert request.body == b""
    for name in ("ce-partitionkey", "ce-aggregateversion", "ce-sourceeventid", "content-type"):
        assert name not in request.headers
    assert request.headers["content-length"] == "0"


@pytest.mark.parametrize("path", ["/grüße?q=ä", "/gr%c3%bc%C3%9fe?q=%C3%A4"])
def test_a_url_is_sent_in_ascii(db: Database, receiver: Receiver, path: str) -> None:
    """As over https (test_tls.py)."""
    db.add_destination("d", receiver.url(path))
    db.enqueue()
    db.wait_published(1)
    (request,) = receiver.requests
    assert request.target.isascii()
    assert request.target.upper() == "/GR%C3%BC%C3%9FE?Q=%C3%A4"


def test_header_values_are_percent_encoded(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    text = 'ä €𝄞 "100%" a/b'
    db.execute(
        "SELECT outbox.enqueue('vidéo 1/2', %s, 'changed', '{}', headers => %s)",
        (text, json.dumps({"tenant": text})),
    )
    receiver.wait_for_requests(1)
    raw_value = receiver.requests[0].headers["ce-subject"]
    assert raw_value == "%C3%A4%20%E2%82%AC%F0%9D%84%9E%20%22100%25%22%20a/b"
    assert receiver.requests[0].headers["ce-tenant"] == raw_value
    event = receiver.events()[0]
    assert event.subject == text
    # A source is a URI: its segments are encoded themselves, and that again as a header value.
    assert event.attributes["source"] == f"/{db.name}/vid%C3%A9o%201%2F2"


def test_a_payload_of_any_bytes(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    body = bytes(range(256)) * 40
    db.execute(ENQUEUE_BYTES, ("a", body))
    receiver.wait_for_requests(1)
    assert receiver.requests[0].body == body
    assert receiver.requests[0].headers["content-type"] == "application/x-thing"


def test_a_payload_of_a_megabyte(db: Database, receiver: Receiver) -> None:
    """More than a socket takes at once."""
    db.add_destination("d", receiver.url())
    body = bytes(n % 251 for n in range(1024 * 1024))
    for n in range(3):
        db.execute(ENQUEUE_BYTES, ("a", body))
    receiver.wait_for_requests(3)
    assert all(request.body == body for request in receiver.requests)


def test_structured_format(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), format="structured")
    event_id = str(db.value(EVENT))
    receiver.wait_for_requests(1)
    request = receiver.requests[0]
    assert request.headers["content-type"].split(";")[0] == "application/cloudevents+json"
    assert not [name for name in request.headers if name.startswith("ce-")]
    assert request.headers["x-request-id"] == "r 1"
    position = db.value("SELECT position FROM outbox.event")
    assert request.json() == {
        "specversion": "1.0",
        "id": event_id,
        "type": "video.created",
        "source": f"/{db.name}/video",
        "subject": "v-1",
        "time": "2026-01-31T10:20:30.123456Z",
        "partitionkey": "key",
        "sequence": str(position),
        "aggregateversion": "7",
        "schemaversion": "3",
        "topic": "video.events",
        "sourceeventid": "00000000-0000-7000-8000-000000000001",
        "tenant": "a",
        "traceparent": "00-1-2-01",
        "count": 5,
        "yes": True,
        "datacontenttype": "application/json",
        "data": {"title": "Grüße", "n": 1.5},
    }


def test_structured_format_of_bytes(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url(), format="structured")
    db.execute(ENQUEUE_BYTES, ('"\\\n', b"\x00\xff\x10"))
    receiver.wait_for_requests(1)
    document = receiver.requests[0].json()
    assert document["datacontenttype"] == "application/x-thing"
    assert base64.b64decode(document["data_base64"]) == b"\x00\xff\x10"
    assert "data" not in document
    assert document["subject"] == '"\\\n'


def test_batched_format(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    db.add_destination("d", receiver.url(), format="batched", batch_size="10")
    ids = db.enqueue("a", 95)
    wait_until(lambda: len(gate.holding), what="the first batch")
    gate.open()
    db.wait_settled()
    assert receiver.ids() == ids
    sizes = [len(request.json()) for request in receiver.requests]
    assert max(sizes) == 10 and len(sizes) == 10, sizes
    for request in receiver.requests:
        assert request.headers["content-type"].split(";")[0] == "application/cloudevents-batch+json"


# -------------------------------------------------------------------------------------------------
# Keys and connections
# -------------------------------------------------------------------------------------------------


def test_a_key_has_one_request_at_a_time(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, delayed(0.002))
    db.add_destination("d", receiver.url())
    with db.connect() as connection:
        connection.execute(
            "SELECT outbox.enqueue('item', (n % 7)::text, 'changed', '{}', version => n / 7 + 1) "
            "FROM generate_series(0, 699) AS n"
        )
    db.wait_published(700)
    for key in map(str, range(7)):
        assert receiver.versions(key) == list(range(1, 101))
        of_key = [r for r in receiver.requests if r.headers["ce-subject"] == key]
        for earlier, later in zip(of_key, of_key[1:]):
            assert earlier.ended is not None and earlier.ended <= later.began
    assert receiver.connections > 1, "keys did not travel side by side"


def test_a_stalled_key_does_not_stop_others(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(subject("stalled"), gate.held(), times=1)
    db.add_destination("d", receiver.url())
    db.enqueue("stalled", 50)
    for n in range(20):
        db.enqueue(f"k{n}", 50)
    db.wait_published(1000)
    assert receiver.versions("stalled") == [1]
    gate.open()
    db.wait_published(1050)
    assert receiver.versions("stalled") == list(range(1, 51))


def test_events_without_a_key_wait_for_nobody(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    receiver.on(lambda r: r.headers["ce-aggregateversion"] == "1", gate.held(), times=1)
    db.add_destination("d", receiver.url())
    db.execute(
        "SELECT outbox.enqueue('item', 'a', 'x', '{}', version => n, ordering_key => '') "
        "FROM generate_series(1, 20) AS n"
    )
    db.wait_published(19)
    gate.open()
    db.wait_published(20)


def test_connections_are_kept_and_limited(db: Database, receiver: Receiver) -> None:
    receiver.on(everything, delayed(0.001))
    db.add_destination("d", receiver.url(), max_connections="3")
    for n in range(100):
        db.enqueue(f"k{n}", 5)
    db.wait_published(500)
    assert receiver.connections <= 3


def test_an_idle_connection_that_was_closed_is_no_failure(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    for n in range(1, 6):
        db.enqueue(first=n)
        db.wait_published(n)
        receiver.refuse_connections()
        receiver.listen()
    assert receiver.versions("a") == [1, 2, 3, 4, 5]
    assert db.value("SELECT count(*) FROM outbox.delivery") == 0


@pytest.mark.parametrize("url", ["http", "endpoints"])
def test_a_request_that_is_sent_again_counts(db: Database, receiver: Receiver, url: str) -> None:
    """Its connection worked before, and ends without an answer: the event may have arrived, as here."""
    receiver.on(lambda request: request.number in (2, 5), reset)
    db.add_destination("d", receiver.url() if url == "http" else "endpoints:", max_connections="1")
    if url == "endpoints":
        db.execute("INSERT INTO outbox.endpoint (server, name, url) VALUES ('d', 'e', %s)", (receiver.url(),))
    db.enqueue("a", 10)
    db.wait_published(10)
    status = wait_until(db.status, lambda seen: seen["failures"] >= 2, what="two failed attempts")
    versions = receiver.versions("a")
    assert sorted(set(versions)) == list(range(1, 11))
    assert (len(versions), status["failures"]) == (12, 2), versions
    assert status["last_error"].startswith("sent again, because the connection was lost before an answer: ")
    assert status["state"] == "idle"


# -------------------------------------------------------------------------------------------------
# Answers that confirm
# -------------------------------------------------------------------------------------------------

GOOD: dict[str, Behaviour] = {
    "200 with a body": answer(200, body=b"thank you"),
    "201": answer(201),
    "202 and the connection closes": answer(202, [("Connection", "close")]),
    "chunked": chunked(200, [b"a" * 10, b"b" * 70_000, b"c"]),
    "after 100 and 103": after_interim(100, 103),
    "no length, ends with the connection": raw(200, head(200) + b"some text", close=True),
    "bare line feeds": raw(200, b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    "HTTP/1.0": raw(200, b"HTTP/1.0 200 OK\r\n\r\n", close=True),
    "no reason": raw(200, b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
    "many headers": answer(200, [(f"X-{n}", "v" * 100) for n in range(80)]),
    "byte by byte": dripping(200, [("Server", "slow")], 0.001),
    "late": delayed(0.3, answer(200)),
    "more than was asked for": raw(204, head(204) + head(500) + head(500)),
}


@pytest.mark.parametrize("kind", list(GOOD))
def test_any_2xx_answer_confirms(db: Database, receiver: Receiver, kind: str) -> None:
    receiver.on(everything, GOOD[kind])
    db.add_destination("d", receiver.url())
    db.enqueue(count=3)
    db.wait_published(3)
    assert db.status()["failures"] == 0
    assert receiver.versions("a") == [1, 2, 3]


# -------------------------------------------------------------------------------------------------
# Answers and failures that do not confirm
# -------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Behaviour, str]] = {
    "400": (answer(400, body=b"no\r\nthank you\x1b[31m"), "HTTP 400: no  thank you"),
    "500": (answer(500), "HTTP 500"),
    "503": (answer(503), "HTTP 503"),
    "304": (raw(304, b"HTTP/1.1 304 Not Modified\r\n\r\n"), "HTTP 304"),
    "redirect": (answer(302, [("Location", "/elsewhere")]), "HTTP 302"),
    "closes unanswered": (close_unanswered, "connection closed"),
    "resets": (reset, "reset"),
    "closes within the status line": (cut_off(b"HTTP/1.1 20"), "connection closed"),
    "closes within the headers": (cut_off(b"HTTP/1.1 200 OK\r\nContent-"), "connection closed"),
    "closes within the body": (
        cut_off(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
        "connection closed",
    ),
    "closes within a chunk": (
        cut_off(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        "connection closed",
    ),
    "garbage": (raw(0, b"\x16\x03\x01\x02\x00\x01\r\n\r\n" * 20), "malformed"),
    "another protocol": (raw(0, b"SSH-2.0-OpenSSH_9.2\r\n\r\n", close=True), "malformed"),
    "no number": (raw(0, b"HTTP/1.1 OK\r\n\r\n"), "malformed"),
    "endless headers": (raw(0, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000), "malformed"),
    "lengths that differ": (
        raw(0, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        "malformed",
    ),
    "negative length": (raw(0, b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), "malformed"),
    "wrong chunk": (
        raw(0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        "malformed",
    ),
    "switches protocols": (
        raw(101, b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n"),
        "malformed",
    ),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_fails_is_tried_again_in_order(db: Database, receiver: Receiver, kind: str) -> None:
    behave, message = BAD[kind]
    rule = receiver.on(lambda r: r.headers["ce-aggregateversion"] == "2", behave, times=3)
    db.add_destination("d", receiver.url())
    db.enqueue(count=4)
    db.wait_published(4)
    assert receiver.versions("a")[:2] == [1, 2] and receiver.versions("a")[-2:] == [3, 4]
    assert len(rule.met) == 3
    status = db.status()
    assert message in status["last_error"], status["last_error"]
    assert not any(ord(c) < 32 for c in status["last_error"])
    # A connection that had worked and breaks before any answer is replaced without a word.
    assert 1 <= status["failures"] <= 3
    assert not [r for r in receiver.requests if r.target != "/"], "a redirect was followed"

    def said(what: str) -> int:
        return db.cluster.log_since(db.cluster.test_began).count(f'destination "d" {what}')

    # All may be delivered before the relay comes to say that it works again.
    wait_until(
        lambda: (said("failed: "), said("works again")), lambda seen: seen[0] == seen[1],
        what="the log to say as often that it works as that it failed",
    )  # fmt: skip
    assert said("failed: ") <= 1, "the log says so once, if it was more than one request"


def test_a_refused_connection_is_tried_until_it_works(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    db.enqueue(count=2)
    db.wait_published(2)
    receiver.refuse_connections()
    db.enqueue(count=50, first=3)
    status = wait_until(db.status, lambda s: s["failures"] >= 3, what="a few attempts")
    assert status["state"] == "backing off"
    assert "onnect" in status["last_error"]
    assert status["oldest_pending_age"].total_seconds() > 0
    receiver.listen()
    db.wait_published(52)
    assert receiver.versions("a") == list(range(1, 53))
    db.wait_for_state("idle")


def test_an_answer_that_comes_too_late_is_a_failure(db: Database, receiver: Receiver) -> None:
    gate = Gate()
    rule = receiver.on(everything, gate.held(), times=2)
    db.add_destination("d", receiver.url(), request_timeout="1s")
    watch = Stopwatch()
    db.enqueue(count=3)
    db.wait_published(3)
    assert watch.seconds >= 2
    assert [request.status for request in rule.met] == [None, None]
    assert receiver.versions("a")[:3] == [1, 1, 1]
    assert list(dict.fromkeys(receiver.versions("a"))) == [1, 2, 3]
    assert "(request_timeout)" in db.status()["last_error"]
    gate.open()


def test_an_answer_that_drips_does_not_stretch_its_time(db: Database, receiver: Receiver) -> None:
    rule = receiver.on(everything, dripping(200, [], 0.05), times=1)
    db.add_destination("d", receiver.url(), request_timeout="1s")
    db.enqueue(count=2)
    db.wait_published(2)
    assert rule.met[0].status is None
    assert receiver.versions("a")[:2] == [1, 1]
    assert list(dict.fromkeys(receiver.versions("a"))) == [1, 2]


def test_a_name_that_does_not_resolve_is_a_failure(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", "http://no-such-host.invalid/")
    db.enqueue()
    status = wait_until(db.status, lambda s: s["failures"] > 0, what="an attempt to fail")
    assert "resolve" in status["last_error"].lower()
    db.execute(f"ALTER SERVER d OPTIONS (SET url '{receiver.url()}')")
    receiver.wait_for_requests(1)


@pytest.mark.timing
def test_pauses_grow_while_a_destination_fails(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    """Random pauses below 10, 20, 40, ... ms: the first ten attempts last about five seconds."""
    db = new_database({"outbox.backoff_min": "10ms", "outbox.backoff_max": "1s"})
    receiver.on(everything, answer(503))
    db.add_destination("d", receiver.url())
    db.enqueue(count=20)
    receiver.wait_for_requests(12, timeout=30)
    times = [request.began for request in receiver.requests]
    pauses = [later - earlier for earlier, later in zip(times, times[1:])]
    for n, pause in enumerate(pauses):
        limit = min(1.0, 0.010 * 2**n)
        assert pause <= limit + 0.25 * SECOND, f"pause {n} was {pause:.3f} s, limit {limit:.3f} s"
    assert sum(pauses[:4]) < sum(pauses[6:]) * SECOND, pauses
    assert receiver.versions("a") == [1] * len(times), "only the first event probes"


@pytest.mark.timing
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_obeyed(db: Database, receiver: Receiver, status: int, form: str) -> None:
    least = 1.0

    async def later(exchange: Exchange) -> None:
        value = "1"
        if form == "date":  # of whole seconds: between one and two from now
            value = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
        await answer(status, [("Retry-After", value)])(exchange)

    receiver.on(everything, later, times=1)
    db.add_destination("d", receiver.url())
    db.enqueue(count=2)
    db.wait_published(2)
    first, second, *_ = receiver.requests
    assert least <= second.began - first.began <= least + 3 * SECOND
    assert receiver.versions("a") == [1, 1, 2]


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_resume_ends_the_pause_that_the_receiver_asked_for(db: Database, receiver: Receiver, status: int) -> None:
    """The pause is shown until then."""
    receiver.on(everything, answer(status, [("Retry-After", "3600")]))
    db.add_destination("d", receiver.url())
    db.enqueue(count=2)
    wait_until(
        lambda: db.value("SELECT next_attempt_at > now() + interval '50 min' FROM outbox.status"), what="the pause"
    )
    receiver.forget_rules()
    db.execute("SELECT outbox.resume('d')")
    db.wait_published(2)
    assert receiver.versions("a") == [1, 1, 2]
    wait_until(lambda: db.status()["next_attempt_at"], lambda at: at is None, what="the end of the pause")


# -------------------------------------------------------------------------------------------------
# Secrets
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, sent",
    [
        (
            "\"user\" 'ann', password 's3cret!'",
            "Basic " + base64.b64encode(b"ann:s3cret!").decode(),
        ),
        ("token 's3cret!'", "Bearer s3cret!"),
        ("headers E'X-Tenant: 7\\nAuthorization: ApiKey s3cret!'", "ApiKey s3cret!"),
    ],
)
def test_secrets_are_sent_and_never_shown(db: Database, receiver: Receiver, options: str, sent: str) -> None:
    receiver.on(everything, answer(500, body=b"denied"), times=1)
    db.add_destination("d", receiver.url())
    # Not in the log either: statements are not logged here, and ours must not be the first.
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({options})")
    db.enqueue(count=3)
    db.wait_published(3)
    db.execute("ALTER SERVER d OPTIONS (ADD request_timeout '5s')")
    db.enqueue(count=3)
    assert {request.headers.get("authorization") for request in receiver.requests} == {sent}

    receiver.refuse_connections()
    db.enqueue()
    wait_until(db.status, lambda s: s["failures"] > 0, what="a failure")
    shown = str(db.execute("SELECT * FROM outbox.status"))
    shown += str(db.execute("SELECT * FROM outbox.workers()"))
    shown += str(db.execute("SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid()"))
    shown += db.cluster.log()
    for secret in ("s3cret", base64.b64encode(b"s3cret").decode()[:6], sent.split()[1]):
        assert secret not in shown

    role = f"{db.name}_guest"
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with db.cluster.connect(db.name, role) as guest:
            assert guest.execute("SELECT umoptions FROM pg_user_mappings").fetchall() == [(None,)]
    finally:
        db.execute(f"DROP ROLE {role}")


def test_a_changed_secret_is_used_at_once(db: Database, receiver: Receiver) -> None:
    receiver.on(lambda r: r.headers.get("authorization") != "Bearer new", answer(401))
    db.add_destination("d", receiver.url())
    db.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (token 'old')")
    db.enqueue()
    wait_until(db.status, lambda s: s["failures"] > 0, what="the old token to be refused")
    db.execute("ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET token 'new')")
    db.wait_published(1)


# -------------------------------------------------------------------------------------------------
# Statements while a request hangs
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(db: Database, receiver: Receiver) -> Iterator[Gate]:
    """The destination `d`, with a request to it under way that is never answered."""
    gate = Gate()
    receiver.on(path("/"), gate.held())
    db.add_destination("d", receiver.url(), request_timeout="1h")
    db.enqueue(count=3)
    wait_until(lambda: len(gate.holding), what="a request to hang")
    yield gate
    gate.open()


@pytest.mark.timing
def test_a_new_url_is_used_at_once_while_a_request_hangs(db: Database, receiver: Receiver, hanging: Gate) -> None:
    watch = Stopwatch()
    db.execute(f"ALTER SERVER d OPTIONS (SET url '{receiver.url('/new')}')")
    wait_until(
        lambda: [r for r in receiver.requests if r.target == "/new"], lambda seen: len(seen) == 3,
        timeout=SECOND, what="the events at the new URL",
    )  # fmt: skip
    assert watch.seconds < SECOND
    assert [e.version for e in receiver.events() if e.request.target == "/new"] == [1, 2, 3]


@pytest.mark.timing
def test_a_url_that_changes_often_is_always_the_last_one(db: Database, receiver: Receiver) -> None:
    """The relay is woken by the change; it must not read what was there before."""
    db.add_destination("d", receiver.url("/0"))
    db.enqueue(first=1)
    db.wait_settled()
    for n in range(1, 201):
        db.execute(f"ALTER SERVER d OPTIONS (SET url '{receiver.url(f'/{n}')}')")
        db.enqueue(first=n + 1)
        wait_until(
            lambda: [r.target for r in receiver.requests][-3:], lambda seen: f"/{n}" in seen,
            timeout=2 * SECOND, what=f"the event at /{n}",
        )  # fmt: skip


@pytest.mark.timing
def test_drop_server_ends_its_relay_while_a_request_hangs(db: Database, hanging: Gate) -> None:
    db.execute("DROP SERVER d")
    db.cluster.wait_for_workers(db.name, "keeper", timeout=SECOND)
    wait_until(lambda: not hanging.holding, what="the connection to be closed")


@pytest.mark.timing
def test_drop_extension_ends_its_workers_while_a_request_hangs(db: Database, hanging: Gate) -> None:
    watch = Stopwatch()
    db.execute("DROP EXTENSION pg_outbox CASCADE")
    assert watch.seconds < SECOND
    db.cluster.wait_for_workers(db.name, timeout=SECOND)


@pytest.mark.timing
@pytest.mark.parametrize(
    "statement",
    [
        "DROP DATABASE {0}",
        "ALTER DATABASE {0} RENAME TO {0}_b",
        "CREATE DATABASE {0}_b TEMPLATE {0}",
    ],
)
def test_databases_can_be_dropped_renamed_and_copied_while_a_request_hangs(
    db: Database, hanging: Gate, statement: str
) -> None:
    db.disconnect()
    watch = Stopwatch()
    db.cluster.execute(statement.format(db.name))
    assert watch.seconds < 1.2 * SECOND, f"took {watch.seconds:.2f} s"
    db.cluster.execute(f"DROP DATABASE IF EXISTS {db.name}_b WITH (FORCE)")


@pytest.mark.timing
def test_a_fast_shutdown_is_fast_while_a_request_hangs(
    make_cluster: MakeCluster, receiver: Receiver, http: None
) -> None:
    gate = Gate()
    receiver.on(everything, gate.held())
    cluster = make_cluster()
    db = create_database(cluster)
    db.add_destination("d", receiver.url(), request_timeout="1h")
    ids = db.enqueue(count=3)
    wait_until(lambda: len(gate.holding), what="a request to hang")
    seconds = cluster.stop("fast")
    assert seconds < 1.5 * SECOND, f"the server took {seconds:.2f} s to stop"
    gate.open()
    cluster.start()
    wait_until(receiver.ids, lambda seen: seen[-3:] == ids, what="the events after the restart")


def test_threads_that_resolve_names_leave_signals_alone(new_database: NewDatabase, http: None) -> None:
    db = new_database({"outbox.backoff_min": "1ms", "outbox.backoff_max": "2ms"})
    db.add_destination("d", "http://no-such-host.invalid/")
    relay = db.wait_for_worker("relay")
    db.enqueue()
    # Each attempt starts such a thread, which may live for less than a millisecond.
    wait_until(
        lambda: sum(assert_threads_block_signals(relay) for _ in range(500)),
        lambda seen: seen >= 3, what="threads of the relay",
    )  # fmt: skip


def test_time_is_that_of_the_change(db: Database, receiver: Receiver) -> None:
    db.add_destination("d", receiver.url())
    before, _, after = db.execute(
        "SELECT clock_timestamp(), outbox.enqueue('item', 'a', 'changed', '{}'), clock_timestamp()"
    )[0]
    receiver.wait_for_requests(1)
    text = receiver.requests[0].headers["ce-time"]
    assert before <= datetime.fromisoformat(text) <= after
