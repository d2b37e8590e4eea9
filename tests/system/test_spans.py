"""Spans of deliveries for a collector of OpenTelemetry: what they say, and that no collector can hold up an event."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cluster import make_directory
from collector import NOT_SAMPLED, SAMPLED, TRACE, Collector
from database import Database, NewDatabase
from outbox_relay import OutboxRelay
from receiver import Gate, Receiver, answer, everything, raw
from waiting import wait_until


@pytest.fixture
def headers_file() -> Iterator[Path]:
    directory = make_directory("headers")
    file = directory / "headers"
    file.write_text("Authorization: Bearer 5f3a\nX-Team: shop\n")
    file.chmod(0o644)
    yield file
    shutil.rmtree(directory)


@pytest.fixture
def traced(new_database: NewDatabase, collector: Collector, headers_file: Path, http: None) -> Database:
    return new_database({"outbox.otlp_endpoint": collector.endpoint, "outbox.otlp_headers_file": str(headers_file)})


def enqueue(database: Database, traceparent: str | None, count: int = 1) -> list[str]:
    headers = json.dumps({"traceparent": traceparent}) if traceparent else None
    return [str(row[0]) for row in database.execute(
        "SELECT outbox.enqueue('item', n::text, 'changed', '{}', topic => 'items', headers => %s) FROM generate_series(1, %s) AS n",
        (headers, count))]  # fmt: skip


def test_a_delivery_is_a_span_of_a_sampled_trace(traced: Database, receiver: Receiver, collector: Collector) -> None:
    before = time.time_ns()
    traced.add_destination("d", receiver.url())
    enqueue(traced, None)
    enqueue(traced, NOT_SAMPLED)
    (id,) = enqueue(traced, SAMPLED)
    traced.wait_settled()
    (span,) = collector.wait_for_spans(1)
    assert before < span.pop("from") <= span.pop("to") < time.time_ns()
    assert len(span.pop("id")) == 16
    assert span == {
        "trace": TRACE,
        "parent": "00f067aa0ba902b7",
        "name": "send items",
        "kind": "SPAN_KIND_PRODUCER",
        "attributes": {
            "messaging.system": "http",
            "messaging.operation.type": "send",
            "messaging.destination.name": "items",
            "messaging.message.id": id,
            "outbox.destination": "d",
        },
        "error": "",
        "failed": False,
        "resource": {"service.name": "pg_outbox"},
    }
    (request, *_) = collector.requests
    assert request.target == "/v1/traces"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer 5f3a"
    assert request.headers["x-team"] == "shop"


@pytest.mark.worker_errors(" LOG: .*destination")
def test_each_attempt_is_a_span(traced: Database, receiver: Receiver, collector: Collector) -> None:
    receiver.on(everything, answer(500, body=b"oops"), times=1)
    traced.add_destination("d", receiver.url(), retry_base="1ms", retry_max="1ms")
    enqueue(traced, SAMPLED)
    traced.wait_settled()
    failed, sent = collector.wait_for_spans(2)
    assert (failed["failed"], failed["error"], failed["attributes"]["error.type"]) == (True, "HTTP 500: oops", "failed")
    assert not sent["failed"]
    assert failed["id"] != sent["id"]


def test_a_collector_that_is_away_holds_up_nothing(traced: Database, receiver: Receiver, collector: Collector) -> None:
    collector.refuse_connections()
    traced.add_destination("d", receiver.url())
    enqueue(traced, SAMPLED, 100)
    traced.wait_settled()
    wait_until(
        traced.log_of_relay,
        lambda log: re.search(r"tracing: spans lost: \d+ \(Failed to connect", log),
        what="the line about lost spans",
    )
    collector.listen()
    enqueue(traced, SAMPLED)
    collector.wait_for_requests(1)


@pytest.mark.parametrize("mode", ["silent", "endless", "redirects"])
def test_a_collector_that_misbehaves_holds_up_nothing(
    traced: Database, receiver: Receiver, collector: Collector, mode: str
) -> None:
    gate = Gate()
    collector.on(everything, {
        "silent": gate.held(),
        "endless": raw(200, b"x" * (64 << 20)),
        "redirects": answer(302, [("Location", receiver.url("/trap"))]),
    }[mode])  # fmt: skip
    traced.add_destination("d", receiver.url())
    enqueue(traced, SAMPLED)
    collector.wait_for_requests(1)
    ids = enqueue(traced, SAMPLED, 3000)  # more than the memory for spans holds
    traced.wait_settled()
    assert set(ids) <= set(receiver.ids())
    assert not [request for request in receiver.requests if request.target == "/trap"]
    gate.open()


def test_spans_go_over_http(database: Database) -> None:
    for value in ("kafka://127.0.0.1:9092", "127.0.0.1:4318", "https://"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            database.execute(f"ALTER SYSTEM SET outbox.otlp_endpoint = '{value}'")


@pytest.mark.parametrize(
    "content, complaint", [(None, "could not read"), ("no header", 'invalid value for option "headers"')]
)
def test_without_usable_headers_there_are_no_spans(
    new_database: NewDatabase, collector: Collector, receiver: Receiver, headers_file: Path, content: str | None, complaint: str
) -> None:  # fmt: skip
    headers_file.write_text(content) if content else headers_file.unlink()
    database = new_database({"outbox.otlp_endpoint": collector.endpoint, "outbox.otlp_headers_file": str(headers_file)})
    database.add_destination("d", receiver.url())
    enqueue(database, SAMPLED)
    database.wait_settled()
    wait_until(database.log_of_relay, lambda log: f"tracing: no spans are sent: {complaint}" in log, what="the reason")
    assert not collector.requests


def test_outbox_relay_sends_spans(
    database: Database, http: None, receiver: Receiver, collector: Collector, headers_file: Path
) -> None:  # fmt: skip
    options = f'otlp_endpoint = "{collector.endpoint}"\notlp_headers_file = "{headers_file}"'
    relay = OutboxRelay(
        database.cluster, database.name, options=options, of_database='allowed_hosts = "127.0.0.1"'
    ).start()
    try:
        database.add_destination("d", receiver.url(), relay="external")
        (id,) = enqueue(database, SAMPLED)
        (span,) = collector.wait_for_spans(1)
        assert span["attributes"]["messaging.message.id"] == id
        assert collector.requests[0].headers["authorization"] == "Bearer 5f3a"
        assert "5f3a" not in relay.text()
    finally:
        relay.close()
