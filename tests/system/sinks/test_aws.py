"""Features of single services: queues found by name, valid names, a limit on attributes;
shards of Kinesis; buses of EventBridge.
"""

from __future__ import annotations

import json

import pytest
from psycopg import errors

from database import Database
from receiver import answer
from waiting import wait_until

from .aws_sinks import REGION, AwsSink, SnsFifoSink, SqsFifoSink, SqsStandardSink
from .aws_streams import SHARDS, EventBridgeSink, KinesisOfAccountSink, KinesisSink
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


# -------------------------------------------------------------------------------------------------
# Kinesis
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def kinesis(make_sink: MakeSink, database: Database) -> KinesisSink:
    sink = make_sink(KinesisSink, database)
    assert isinstance(sink, KinesisSink)
    sink.add_topic()
    return sink


def versions_of(sink: KinesisSink, key: str) -> list[int | None]:
    return [message.version for message in sink.messages() if message.aggregate_id == key]


def test_a_busy_shard_is_throttling_and_charges_no_event(kinesis: KinesisSink, database: Database) -> None:
    kinesis.refuse_with(lambda m: m.aggregate_id == "busy", "ProvisionedThroughputExceededException", times=3)
    kinesis.create()
    ids = [id for key in ("busy", "a", "b") for id in database.enqueue(key, 5)]
    kinesis.wait_for(ids)
    database.wait_settled()
    assert [versions_of(kinesis, key) for key in ("busy", "a", "b")] == [[1, 2, 3, 4, 5]] * 3
    status = database.status()
    assert status["throttled"] > 0
    assert database.execute("SELECT * FROM outbox.delivery") == []


def test_keys_spread_over_shards_and_each_stays_on_one(kinesis: KinesisSink, database: Database) -> None:
    kinesis.create()
    ids = [id for n in range(30) for id in database.enqueue(f"k{n}", 2)]
    database.execute(
        "SELECT outbox.enqueue('item', 'none', 'changed', '{}', version => n, ordering_key => '') "
        "FROM generate_series(1, 30) AS n"
    )
    database.wait_published(90)
    stream = kinesis.full_name("item.events")
    shards_of: dict[str, set[str]] = {}
    for shard in kinesis.client.list_shards(StreamName=stream)["Shards"]:
        iterator = kinesis.client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        for record in kinesis.client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]:
            key = kinesis.message(record).aggregate_id
            shards_of.setdefault(key, set()).add(shard["ShardId"])
    assert len(ids) == 60
    assert {len(shards_of[f"k{n}"]) for n in range(30)} == {1}
    assert len(shards_of["none"]) == SHARDS, "events without a key go anywhere"


def test_streams_go_on_while_a_shard_is_split(kinesis: KinesisSink, database: Database) -> None:
    kinesis.create()
    ids = [id for n in range(10) for id in database.enqueue(f"k{n}", 3)]
    kinesis.wait_for(ids)
    stream = kinesis.full_name("item.events")
    shard = kinesis.client.list_shards(StreamName=stream)["Shards"][0]
    limits = shard["HashKeyRange"]
    middle = (int(limits["StartingHashKey"]) + int(limits["EndingHashKey"])) // 2
    kinesis.client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
    for n in range(10):
        database.enqueue(f"k{n}", 3, first=4)
    database.wait_published(60)
    records = 0
    for shard in kinesis.client.list_shards(StreamName=stream)["Shards"]:
        iterator = kinesis.client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        records += len(kinesis.client.get_records(ShardIterator=iterator["ShardIterator"])["Records"])
    assert records >= 60
    assert database.execute("SELECT * FROM outbox.delivery") == []


def test_a_stream_is_named_by_its_arn_where_the_url_has_an_account(make_sink: MakeSink, database: Database) -> None:
    sink = make_sink(KinesisOfAccountSink, database)
    assert isinstance(sink, KinesisOfAccountSink)
    sink.add_topic()
    sink.create(receipts="on")
    sink.wait_for(database.enqueue("a", 2))
    database.wait_settled()
    (names, *_) = [request.json() for request in sink.proxy.requests]
    assert names["StreamARN"].endswith(f":123456789012:stream/{sink.full_name('item.events')}")
    numbers = wait_until(
        lambda: database.execute("SELECT message_id FROM outbox.receipt"), lambda rows: len(rows) == 2,
        what="two receipts",
    )  # fmt: skip
    assert all(row[0].isdigit() for row in numbers), "sequence numbers"


def test_the_payload_alone(kinesis: KinesisSink, database: Database) -> None:
    kinesis.create(format="payload")
    database.execute("SELECT outbox.enqueue('item', 'a', 'changed', '\\x00ff'::bytea, 'application/octet-stream')")
    database.wait_published(1)
    records = [
        record
        for iterator in kinesis._iterators
        for record in kinesis.client.get_records(ShardIterator=iterator)["Records"]
    ]
    assert [(record["Data"], record["PartitionKey"]) for record in records] == [(b"\x00\xff", "a")]


def test_a_record_that_only_the_stream_finds_too_large(kinesis: KinesisSink, database: Database) -> None:
    """The option says more than the stream accepts; its verdict counts, and the other records arrive."""
    kinesis.create(max_record_size="4096", max_attempts="2", retry_base="10ms")
    database.execute("SET outbox.max_payload_size = '16MB'")
    with database.connection.transaction():
        ids = [id for n in range(20) for id in database.enqueue(f"k{n}", 1)]
        database.execute("SELECT outbox.enqueue('item', 'large', 'changed', repeat('x', 1500000)::bytea, 'text/plain')")
    kinesis.wait_for(ids)
    trouble = wait_until(
        lambda: database.execute("SELECT aggregate_id, state, last_error FROM outbox.delivery"),
        lambda rows: [row[1] for row in rows] == ["DEAD"], what="a dead letter",
    )  # fmt: skip
    assert trouble[0][0] == "large"
    assert "ValidationException" in trouble[0][2]


def test_a_check_of_a_real_stream(kinesis: KinesisSink, database: Database) -> None:
    kinesis.create()
    rows = database.execute("SELECT subject, ok, detail FROM outbox.check_destination('d', 'item.events')")
    stream = f'stream "{kinesis.full_name("item.events")}"'
    assert rows[-1] == (stream, True, "it is ACTIVE")
    subject, ok, detail = database.execute("SELECT * FROM outbox.check_destination('d', 'other.events')")[-1]
    assert not ok and "ResourceNotFoundException" in detail and "other.events" in subject


@pytest.mark.parametrize("format", ["attributes", "binary"])
def test_a_record_has_no_attributes(database: Database, format: str) -> None:
    with pytest.raises(errors.InvalidParameterValue) as raised:
        database.add_destination("d", "kinesis://eu-west-1", format=format)
    assert "no attributes beside its data" in (raised.value.diag.message_detail or "")
    assert '"structured" or "payload"' in (raised.value.diag.message_hint or "")


# -------------------------------------------------------------------------------------------------
# EventBridge
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def eventbridge(make_sink: MakeSink, database: Database) -> EventBridgeSink:
    sink = make_sink(EventBridgeSink, database)
    assert isinstance(sink, EventBridgeSink)
    return sink


def actions_of(sink: EventBridgeSink) -> list[str]:
    return [request.headers["x-amz-target"].removeprefix("AWSEvents.") for request in sink.proxy.requests]


def test_what_rules_and_targets_see(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_topic()
    eventbridge.create(source="com.example.{aggregate_type}", receipts="on")
    event_id = str(
        database.value(
            "SELECT outbox.enqueue('item', 'a', 'item.changed', '{\"n\": 1.50}', occurred_at => '2026-01-31 10:20:30.7+00', "
            'headers => \'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}\')'
        )
    )
    eventbridge.wait_for([event_id])
    (seen,) = eventbridge.received
    assert (seen["source"], seen["detail-type"]) == ("com.example.item", "item.changed")
    assert seen["time"] == "2026-01-31T10:20:30Z"
    assert (seen["detail"]["id"], seen["detail"]["data"]) == (event_id, {"n": 1.5})
    (request,) = filter(eventbridge.carries, eventbridge.proxy.requests)
    (entry,) = request.json()["Entries"]
    assert entry["TraceHeader"] == "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
    receipt = wait_until(lambda: database.value("SELECT max(message_id) FROM outbox.receipt"), what="a receipt")
    assert receipt == seen["id"]


def test_the_payload_as_detail_must_be_an_object(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_topic()
    eventbridge.create(format="payload")
    for key, payload in (("a", '{"n": 1}'), ("b", "[1]"), ("c", '{"n": 2}')):
        database.execute("SELECT outbox.enqueue('item', %s, 'changed', %s::jsonb)", (key, payload))
    trouble = wait_until(
        lambda: database.execute("SELECT aggregate_id, state, last_error FROM outbox.delivery"), what="a dead letter"
    )
    assert trouble == [("b", "DEAD", 'the payload is not a JSON object, which the format "payload" needs')]
    database.wait_settled()
    details: list[object] = []

    def received() -> list[object]:
        for queue in eventbridge._queues:
            for message in eventbridge.sqs.receive_message(QueueUrl=queue).get("Messages", []):
                details.append(json.loads(message["Body"])["detail"])
        return details

    wait_until(received, lambda seen: len(seen) == 2, what="two events")
    assert sorted(details, key=str) == [{"n": 1}, {"n": 2}]


SILENTLY_DROPPED = b'{"FailedEntryCount": 0, "Entries": [{"EventId": "e"}]}'


def test_no_event_is_sent_to_a_bus_that_does_not_exist(eventbridge: EventBridgeSink, database: Database) -> None:
    """The service would confirm it. Once the bus exists, it is looked for once."""
    eventbridge.proxy.on(eventbridge.carries, answer(200, body=SILENTLY_DROPPED))
    eventbridge.create()
    ids = database.enqueue("a", 5)
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "ResourceNotFoundException" in error
    assert set(actions_of(eventbridge)) == {"DescribeEventBus"}
    eventbridge.proxy.forget_rules()
    eventbridge.proxy.refuse_connections()  # so that the bus does not get them before it has a reader
    eventbridge.add_topic()
    eventbridge.proxy.listen()
    eventbridge.wait_for(ids)
    database.wait_settled()
    found = actions_of(eventbridge)
    assert found[found.index("PutEvents") :].count("DescribeEventBus") <= 16, "not once for each batch"
    assert database.execute("SELECT * FROM outbox.delivery") == []


def test_the_bus_default_is_not_looked_for(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_reader("default")
    eventbridge.create(event_bus="default")
    eventbridge.wait_for(database.enqueue("a", 3))
    assert set(actions_of(eventbridge)) == {"PutEvents"}


def test_a_bus_that_may_not_be_looked_at(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_topic()
    eventbridge.proxy.on(
        lambda request: request.headers["x-amz-target"] == "AWSEvents.DescribeEventBus",
        eventbridge.error(400, "AccessDeniedException"),
    )
    eventbridge.create()
    ids = database.enqueue("a", 3)
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "events:DescribeEventBus" in error and "verify_bus" in error
    database.change_destination("d", verify_bus="off")
    eventbridge.wait_for(ids)


def test_an_event_type_that_the_service_would_drop(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_topic()
    eventbridge.create()
    database.execute("SELECT outbox.enqueue('item', 'a', repeat('t', 129), '{}')")
    database.wait_settled()
    trouble = database.execute("SELECT state, last_error FROM outbox.delivery")
    assert trouble == [("DEAD", "the event type has 129 characters, EventBridge takes at most 128")]


def test_a_check_of_a_real_bus(eventbridge: EventBridgeSink, database: Database) -> None:
    eventbridge.add_topic()
    eventbridge.create()
    rows = database.execute("SELECT subject, ok, detail FROM outbox.check_destination('d', 'item.events')")
    assert rows[-1] == (f'event bus "{eventbridge.full_name("item.events")}"', True, "it exists")
    subject, ok, detail = database.execute("SELECT * FROM outbox.check_destination('d', 'other.events')")[-1]
    assert not ok and "ResourceNotFoundException" in detail and "other.events" in subject
    database.change_destination("d", event_bus="default")
    assert database.execute("SELECT * FROM outbox.check_destination('d')")[-1] == (
        'event bus "default"',
        True,
        "it exists",
    )
