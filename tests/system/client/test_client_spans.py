"""Spans of the C++ client for a collector of OpenTelemetry."""

from __future__ import annotations

import json

from collector import NOT_SAMPLED, SAMPLED, TRACE, Collector
from database import Database
from receiver import Gate, everything
from waiting import wait_until

from .conftest import Consume
from .consumer import Target


def enqueue(database: Database, traceparent: str, key: str = "1", type: str = "changed") -> str:
    return str(database.value(
        "SELECT outbox.enqueue('item', %s, %s, '{}', topic => 'items', version => 1, headers => %s)",
        (key, type, json.dumps({"traceparent": traceparent}))))  # fmt: skip


def start(consume: Consume, database: Database, collector: Collector, **options: object) -> None:
    database.add_destination("d", "pull:")
    consume(pull=database.cluster.conninfo(database.name), destination="d", otlp=collector.endpoint, **options)


def test_each_attempt_to_apply_an_event_is_a_span(
    database: Database, target: Target, consume: Consume, collector: Collector
) -> None:
    enqueue(database, NOT_SAMPLED)
    id = enqueue(database, SAMPLED, "2")
    target.poison(id)
    start(consume, database, collector)
    first = collector.wait_for_spans(1)[0]
    target.cure()
    (applied,) = wait_until(
        lambda: [span for span in collector.spans() if not span["failed"]],
        what="the span of the attempt that succeeded",
    )
    assert target.applied().count(id) == 1
    assert (first["failed"], first["error"]) == (True, "poison")
    assert applied["from"] <= applied["to"]
    for name in ("id", "from", "to"):
        applied.pop(name)
    assert applied == {
        "trace": TRACE,
        "parent": "00f067aa0ba902b7",
        "name": "process items",
        "kind": "SPAN_KIND_CONSUMER",
        "attributes": {
            "messaging.system": "pg_outbox",
            "messaging.operation.type": "process",
            "messaging.destination.name": "items",
            "messaging.message.id": id,
            "messaging.consumer.group.name": "c",
        },
        "error": "",
        "failed": False,
        "resource": {"service.name": "test"},
    }
    assert collector.requests[0].headers["x-team"] == "shop"


def test_a_collector_that_does_not_answer_holds_up_nothing(
    database: Database, target: Target, consume: Consume, collector: Collector
) -> None:
    gate = Gate()
    collector.on(everything, gate.held())
    ids = [enqueue(database, SAMPLED)]
    start(consume, database, collector)
    collector.wait_for_requests(1)
    ids += [enqueue(database, SAMPLED, str(n)) for n in range(2, 100)]
    target.wait_applied(ids)
    gate.open()
