"""Frames that name the schema of a payload, read back with fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from database import Database
from waiting import wait_until

from .conftest import MakeSink
from .kafka_sink import KafkaSink
from .schema_registry import PASSWORD, USER, SchemaRegistry
from .test_conformance import in_trouble
from .test_kafka import check, enqueue_record, receive_one, wait_for_failure

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "title", "type": "string"},
                                                     {"name": "price", "type": "long"}]}  # fmt: skip


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def kafka(database: Database, make_sink: MakeSink) -> KafkaSink:
    sink = make_sink(KafkaSink, database)
    assert isinstance(sink, KafkaSink)
    sink.add_topic()
    return sink


@pytest.fixture
def registry(db: Database) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    yield registry
    registry.stop()
    assert "s3cret" not in db.cluster.log_since(db.cluster.test_began) + str(db.status())


def create(kafka: KafkaSink, registry: SchemaRegistry, password: str = PASSWORD, **options: str) -> None:
    kafka.create(schema_registry=registry.url, **options)
    kafka.database.execute(
        "CREATE USER MAPPING FOR CURRENT_USER SERVER d "
        f"OPTIONS (registry_user '{USER}', registry_password '{password}')"
    )


def encoded(item: dict[str, Any]) -> bytes:
    """The application encodes its payloads itself."""
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ITEM), item)
    return out.getvalue()


def decoded(registry: SchemaRegistry, value: bytes) -> Any:
    """Decodes a value as a consumer does: with the schema that the frame names."""
    import fastavro

    assert value[0] == 0
    schema = fastavro.parse_schema(registry.schema(int.from_bytes(value[1:5], "big")))
    rest = io.BytesIO(value[5:])
    item = fastavro.schemaless_reader(rest, schema, None)
    assert rest.read() == b""
    return item


def test_payloads_name_the_schema_of_their_subject(kafka: KafkaSink, db: Database, registry: SchemaRegistry) -> None:
    registry.register("another", "int")
    registry.register(f"{kafka.place}-item.events-value", ITEM)
    create(kafka, registry)
    items = [{"title": f"title {n}", "price": n} for n in range(20)]
    for item in items:
        enqueue_record(db, encoded(item))
    enqueue_record(db, None)
    records: list[Any] = []
    wait_until(lambda: records.extend(kafka.records()) or len(records), lambda count: count == 21, what="all records")
    assert [decoded(registry, record.value()) for record in records[:-1]] == items
    assert records[-1].value() is None, "a tombstone has no frame"
    assert registry.asked == [f"/registry/subjects/{kafka.place}-item.events-value/versions/latest"]


def test_a_subject_that_is_registered_later(kafka: KafkaSink, db: Database, registry: SchemaRegistry) -> None:
    """The event is refused, and tried again; others go on."""
    registry.register("changed of shop/item", ITEM)
    create(kafka, registry, schema_subject="{event_type} of shop/{aggregate_type}", max_attempts="1000")
    enqueue_record(db, encoded({"title": "late", "price": 1}), event_type="added", version=1)
    enqueue_record(db, encoded({"title": "in time", "price": 2}), aggregate_id="b", version=1)
    assert decoded(registry, receive_one(kafka).value())["title"] == "in time"
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("a", 1, "RETRY")], what="a retry")
    assert 'subject "added of shop/item" is not in the schema registry' in str(
        db.execute("SELECT last_error FROM outbox.delivery")
    )
    registry.register("added of shop/item", ITEM)
    assert decoded(registry, receive_one(kafka).value())["title"] == "late"
    db.wait_settled()


def test_a_registry_that_is_down_holds_back_topics_whose_schema_is_not_known(
    kafka: KafkaSink, db: Database, registry: SchemaRegistry
) -> None:
    kafka.add_topic("other.events")
    for topic in ("item.events", "other.events"):
        registry.register(f"{kafka.place}-{topic}-value", ITEM)
    create(kafka, registry)
    enqueue_record(db, encoded({"title": "before", "price": 1}))
    assert decoded(registry, receive_one(kafka).value())["title"] == "before"
    registry.stop()
    enqueue_record(db, encoded({"title": "held back", "price": 2}), aggregate_type="other", aggregate_id="b")
    status = wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a topic to be down")
    assert "schema registry" in status["last_error"]
    enqueue_record(db, encoded({"title": "known", "price": 3}))
    assert decoded(registry, receive_one(kafka).value())["title"] == "known"
    registry.start()
    assert decoded(registry, receive_one(kafka).value())["title"] == "held back"
    db.wait_settled()
    assert in_trouble(db) == []


def test_wrong_credentials_at_the_registry(kafka: KafkaSink, db: Database, registry: SchemaRegistry) -> None:
    """It says so, and repeats what we sent."""
    registry.register(f"{kafka.place}-item.events-value", ITEM)
    create(kafka, registry, "s3cret-but-wrong")
    enqueue_record(db, encoded({"title": "held back", "price": 1}))
    wait_for_failure(db, "HTTP 401")
    ok, detail = check(db, "item.events")[f'schema of "{kafka.place}-item.events"']
    assert not ok and "HTTP 401" in detail and "s3cret" not in detail
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET registry_password '{PASSWORD}')")
    assert decoded(registry, receive_one(kafka).value())["title"] == "held back"
    assert in_trouble(db) == []
    ok, detail = check(db, "item.events")[f'schema of "{kafka.place}-item.events"']
    assert ok and detail == f"its id is {registry.FIRST_ID}"


def test_an_id_in_a_header_needs_no_registry(kafka: KafkaSink, db: Database) -> None:
    kafka.create(
        schema_id_header="schema", schema_format="protobuf", message_index_header="message", on_dead_letter="block"
    )
    for headers, frame in (
        ({"schema": 258}, b"\0\0\0\1\2\0"),
        ({"schema": "258", "message": "1,0"}, b"\0\0\0\1\2\4\2\0"),
    ):
        enqueue_record(db, b"\x0a\1x", headers=json.dumps(headers))
        assert receive_one(kafka).value() == frame + b"\x0a\1x"
    enqueue_record(db, b"x", aggregate_id="without", version=1)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("without", 1, "DEAD")], what="a dead letter")
