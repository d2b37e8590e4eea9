"""Features of SQS and SNS only: queues found by name, valid names, a limit on attributes."""

from __future__ import annotations

import json

import pytest
from psycopg import errors

from database import Database
from waiting import wait_until

from .aws_sinks import REGION, AwsSink, SnsFifoSink, SqsFifoSink, SqsStandardSink
from .conftest import MakeSink


class QueueOfTheKeys(SqsFifoSink):
    """Leaves the account out of the URL, so that it is that of the credentials."""

    def url(self) -> str:
        return f"sqs://{REGION}?endpoint=http://127.0.0.1:{self.proxy.port}"


def actions(sink: AwsSink) -> list[str]:
    return [request.headers["x-amz-target"].partition(".")[2] for request in sink.proxy.requests]


def enqueue(db: Database, *, topic: str, key: str = "a", payload: str = "{}", **more: str) -> str:
    columns = {"topic": topic, "ordering_key": key, **more}
    names = "".join(f", {name} => %s" for name in columns)
    statement = f"SELECT outbox.enqueue('item', 'x', 'changed', %s::jsonb{names})"
    return str(db.value(statement, (payload, *columns.values())))


def test_the_url_of_a_queue_is_asked_for_once(make_sink: MakeSink, database: Database) -> None:
    sink = make_sink(QueueOfTheKeys, database)
    assert isinstance(sink, QueueOfTheKeys)
    sink.create(receipts="on", max_connections="1")
    ids = database.enqueue("a", 3)
    status = wait_until(database.status, lambda s: s["state"] == "backing off", what="a back-off")
    assert "QueueDoesNotExist" in status["last_error"] or "NonExistentQueue" in status["last_error"]
    assert set(actions(sink)) == {"GetQueueUrl"}

    asked_in_vain = len(actions(sink))
    sink.add_topic()
    sink.wait_for(ids)
    database.wait_settled()
    found = actions(sink)[asked_in_vain:]
    assert [found.count("SendMessageBatch"), found[-3:]] == [3, ["SendMessageBatch"] * 3]
    message_ids = wait_until(
        lambda: database.execute("SELECT message_id FROM outbox.receipt"),
        lambda rows: len(rows) == 3, what="three receipts",
    )  # fmt: skip
    assert len(set(message_ids)) == 3 and all(row[0] for row in message_ids)


@pytest.mark.parametrize("kind", [SqsStandardSink, SnsFifoSink])
def test_each_topic_has_its_place(make_sink: MakeSink, database: Database, kind: type[AwsSink]) -> None:
    """Batches do not mix topics, and names are made of valid characters."""
    sink = make_sink(kind, database)
    assert isinstance(sink, AwsSink)
    for topic in ("one.events", "two.events"):
        sink.add_topic(topic)
    sink.create()
    with database.connection.transaction():
        ids = {
            topic: [enqueue(database, topic=topic, key=f"k{n}") for n in range(12)]
            for topic in ("one.events", "two.events")
        }
    sink.wait_for([id for of_topic in ids.values() for id in of_topic])
    for request in filter(sink.carries, sink.proxy.requests):
        batch = {message.event_id for message in sink.carried(request)}
        (topic,) = [topic for topic in ids if batch & set(ids[topic])]
        assert batch <= set(ids[topic]), "a batch with events of two topics"
        assert sink.full_name(topic).encode() in request.body


def test_structured_format(make_sink: MakeSink, database: Database) -> None:
    sink = make_sink(SqsStandardSink, database)
    assert isinstance(sink, AwsSink)
    sink.add_topic()
    sink.create(format="structured")
    headers = '{"tenant": "a", "x-request-id": "r"}'
    event_id = enqueue(database, topic="item.events", payload='{"n": 1.50}', headers=headers)
    database.wait_settled()
    (request,) = filter(sink.carries, sink.proxy.requests)
    (entry,) = request.json()["Entries"]
    document = json.loads(entry["MessageBody"])
    assert (document["id"], document["tenant"], document["data"]) == (event_id, "a", {"n": 1.5})
    attributes = {name: value["StringValue"] for name, value in entry["MessageAttributes"].items()}
    assert attributes == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "headers": '{"x-request-id":"r"}',
    }


@pytest.mark.parametrize("url", ["sqs://eu-west-1", "sns://eu-west-1/123456789012"])
def test_binary_format_has_more_attributes_than_a_message(database: Database, url: str) -> None:
    with pytest.raises(errors.InvalidParameterValue) as raised:
        database.add_destination("d", url, format="binary")
    assert "at most 10 attributes" in (raised.value.diag.message_detail or "")
    assert "structured" in (raised.value.diag.message_hint or "")
