"""Features of the kafka sink alone: records, partitions, logins, certificates, a broker that is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cluster import REPOSITORY, MakeCluster
from database import Database, NewDatabase, create_database
from waiting import wait_until

from .conftest import MakeSink
from .kafka_server import MECHANISMS, USERS
from .kafka_sink import KafkaSink, headers_of
from .servers import INSTALLED
from .test_conformance import assert_in_order, enqueue_keys, in_trouble


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def kafka(database: Database, make_sink: MakeSink) -> KafkaSink:
    sink = make_sink(KafkaSink, database)
    assert isinstance(sink, KafkaSink)
    return sink


def add_destination(sink: KafkaSink, listener: str, mapping: dict[str, str], **options: str) -> None:
    """Adds a destination that uses another listener. A login takes long on a busy machine."""
    scheme = "kafkas" if listener in ("tls", "mutual") else "kafka"
    url = f"{scheme}://127.0.0.1:{sink.broker.ports[listener]}"
    sink.database.add_destination("d", url, **{**sink.options(), "connect_timeout": "30s", **options})
    if mapping:
        pairs = ", ".join(f"{name} '{value}'" for name, value in mapping.items())
        sink.database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def wait_for_failure(db: Database, *words: str) -> None:
    """Takes any of these words, because the messages of librdkafka differ from version to version."""
    wait_until(
        lambda: db.status()["last_error"] or "",
        lambda error: any(word in error for word in words), what=f"an error with one of {words}",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Records
# -------------------------------------------------------------------------------------------------


def enqueue_record(db: Database, payload: bytes | None, **others: Any) -> str:
    arguments = {"aggregate_type": "item", "aggregate_id": "a", "event_type": "changed", **others}
    names = ", ".join(f"{name} => %s" for name in arguments)
    return str(
        db.value(
            f"SELECT outbox.enqueue(payload => %s::bytea, content_type => 'text/plain', {names})",
            (payload, *arguments.values()),
        )
    )


def receive_one(kafka: KafkaSink) -> Any:
    return wait_until(kafka.records, what="a record")[0]


def test_key_timestamp_and_trace_of_a_record(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    occurred_at = datetime(2026, 1, 31, 10, 20, 30, 123456, UTC)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for format, prefix in (("attributes", ""), ("binary", "ce_"), ("structured", "")):
        kafka.create(format=format, start="end", timestamp="occurred")
        headers_in = json.dumps({"traceparent": trace})
        enqueue_record(db, b"x", occurred_at=occurred_at, ordering_key="k ä", headers=headers_in)
        record = receive_one(kafka)
        assert record.key() == "k ä".encode()
        assert record.timestamp()[1] == int(occurred_at.timestamp() * 1000)
        headers = headers_of(record)
        assert headers["traceparent"] == trace
        assert headers.get(f"{prefix}traceparent") == trace
        db.execute("DROP SERVER d CASCADE")


def test_an_old_event_is_as_new_as_others_for_the_broker(kafka: KafkaSink, db: Database) -> None:
    """It deletes records by their time."""
    kafka.add_topic(**{"retention.ms": "3600000"})
    kafka.create()
    began = datetime.now(UTC)
    enqueue_record(db, b"x", occurred_at=datetime(1970, 1, 1, tzinfo=UTC))
    record = receive_one(kafka)
    assert record.timestamp()[1] >= int(began.timestamp() * 1000)
    assert headers_of(record)["occurred_at"].startswith("1970-01-01T00:00:00")


def test_an_event_without_payload_is_a_tombstone(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    kafka.create()
    enqueue_record(db, None)
    record = receive_one(kafka)
    assert record.value() is None and record.key() == b"a"
    enqueue_record(db, b"")
    assert receive_one(kafka).value() == b""


def test_a_tombstone_follows_an_event_that_deletes(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    kafka.create(tombstone_after="gone, *Deleted")
    with db.connection.transaction():
        for n in range(30):
            enqueue_record(db, b"there", aggregate_id=f"k{n}", version=1)
            enqueue_record(db, b"gone", aggregate_id=f"k{n}", event_type="ItemDeleted", version=2)
            enqueue_record(db, b"again", aggregate_id=f"k{n}", version=3)
    found: dict[bytes, list[Any]] = {}

    def receive() -> int:
        for record in kafka.records():
            found.setdefault(record.key(), []).append(record)
        return sum(map(len, found.values()))

    wait_until(receive, lambda count: count == 120, what="all records")
    for records in found.values():
        assert [record.value() for record in records] == [b"there", b"gone", None, b"again"]
        assert len({record.partition() for record in records}) == 1
        deleted, tombstone = map(headers_of, records[1:3])
        assert tombstone == {name: value for name, value in deleted.items() if name != "content_type"}
    db.wait_settled()


def test_an_event_without_key_has_none(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    kafka.create()
    enqueue_record(db, b"x", ordering_key="")
    assert receive_one(kafka).key() is None


def test_keys_go_where_java_puts_them(kafka: KafkaSink, db: Database) -> None:
    kafka.partitions = 7
    kafka.add_topic()
    kafka.create()
    keys = [f"key-{n}-ä" for n in range(1000)]
    ids = enqueue_keys(db, keys, 1)
    found: dict[str, int] = {}

    def receive() -> int:
        found.update({record.key().decode(): record.partition() for record in kafka.records()})
        return len(found)

    wait_until(receive, lambda count: count == len(ids), what="all keys")
    program = REPOSITORY / "tests/kafka/Partitions.java"
    chosen = subprocess.run(
        [*kafka.broker.java, str(program), "7"], input="\n".join(keys), text=True,
        capture_output=True, check=True,
    ).stdout.split()  # fmt: skip
    assert found == dict(zip(keys, map(int, chosen), strict=True))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(kafka: KafkaSink, db: Database, compression: str) -> None:
    kafka.add_topic()
    kafka.create(compression=compression)
    kafka.wait_for(enqueue_keys(db, ["a", "b"], 20))


# -------------------------------------------------------------------------------------------------
# Trouble
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_that_is_killed_in_the_middle(kafka: KafkaSink, db: Database) -> None:
    """Nothing is lost, and the first arrivals of each key are in order."""
    kafka.add_topic()
    kafka.create()
    keys = [f"k{n}" for n in range(20)]
    ids = enqueue_keys(db, keys, 5)
    kafka.wait_for(ids)
    for round in range(2):
        ids += [id for key in keys for id in db.enqueue(key, 20, first=6 + 40 * round)]
        wait_until(lambda: db.status()["in_flight"] > 0 or db.published() == len(ids), what="some on their way")
        kafka.broker.kill()
        try:
            ids += [id for key in keys for id in db.enqueue(key, 20, first=26 + 40 * round)]
            wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
        finally:
            kafka.broker.start()
        messages = kafka.wait_for(ids, timeout=120)
        db.wait_settled(timeout=120)
    assert in_trouble(db) == []
    counts = Counter(message.event_id for message in kafka.messages())
    assert set(counts) == set(ids)
    assert_in_order(messages)


def test_order_of_keys_holds_when_a_topic_gets_partitions(kafka: KafkaSink, db: Database) -> None:
    """Keys move. Records of a key arrive at the new partition after all those at the old one."""
    kafka.partitions = 2
    kafka.add_topic(**{"message.timestamp.type": "LogAppendTime"})
    kafka.create(batch_size="50")
    keys = [f"k{n}" for n in range(10)]
    ids: list[str] = []
    records: list[Any] = []

    def arrived_in_new(new: int) -> bool:
        """Enqueues more until something has arrived there."""
        first = len(ids) // len(keys) + 1
        ids.extend(id for key in keys for id in db.enqueue(key, 20, first=first))
        records.extend(kafka.records())
        return any(record.partition() >= new for record in records)

    for count in (3, 8, 20):
        new = kafka.partitions
        assert not arrived_in_new(new)
        kafka.add_partitions(count)
        db.execute("SELECT pg_terminate_backend(%s)", (db.wait_for_worker("relay"),))  # which knows the old number
        wait_until(lambda: arrived_in_new(new), what="records in new partitions")
    db.wait_settled()
    records += kafka.records()
    arrived: dict[str, tuple[int, int]] = {}  # when, and where
    for record in sorted(records, key=lambda record: record.timestamp()[1]):
        arrived.setdefault(headers_of(record)["event_id"], (record.timestamp()[1], record.partition()))
    assert set(arrived) == set(ids)
    for number in range(len(keys)):
        in_order = [arrived[id] for id in in_order_of_key(ids, number, len(keys))]
        times = [when for when, _ in in_order]
        assert times == sorted(times), f"{keys[number]}: {in_order}"


def in_order_of_key(ids: list[str], number: int, keys: int) -> list[str]:
    """Each call enqueued 20 of one key, then 20 of the next."""
    return [id for n, id in enumerate(ids) if n // 20 % keys == number]


def test_the_largest_event_of_a_topic_is_found_out(kafka: KafkaSink, db: Database) -> None:
    """The topic takes less than a request has: small ones that travel with it are not to blame."""
    kafka.add_topic(**{"max.message.bytes": "20000"})
    kafka.create(compression="none", on_dead_letter="block")
    with db.connection.transaction():
        ids = [enqueue_record(db, b"x" * 9000, aggregate_id=f"small-{n}", version=1) for n in range(10)]
        large = enqueue_record(db, b"x" * 30_000, aggregate_id="large", version=1)
        ids += [enqueue_record(db, b"x" * 9000, aggregate_id=f"other-{n}", version=1) for n in range(10)]
    messages = kafka.wait_for(ids)
    wait_until(lambda: in_trouble(db), what="the large one in trouble")
    assert in_trouble(db) == [("large", 1, "DEAD")]
    assert large not in {message.event_id for message in messages}


def test_a_denied_topic_does_not_stop_others(kafka: KafkaSink, db: Database) -> None:
    """It is down, and the others go on."""
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    for topic in ("a.events", "b.events"):
        kafka.add_topic(topic)
    denied = (ResourceType.TOPIC, f"{kafka.place}-b.events", ResourcePatternType.LITERAL, "User:alice",
              "*", AclOperation.WRITE, AclPermissionType.DENY)  # fmt: skip
    for future in kafka.admin.create_acls([AclBinding(*denied)]).values():
        future.result()
    add_destination(kafka, "sasl", {"user": "alice", "password": USERS["alice"]}, sasl_mechanism="PLAIN")

    def enqueue(type: str, first: int) -> list[str]:
        return [
            str(db.value("SELECT outbox.enqueue(%s, %s, 'changed', '{}', version => %s)", (type, type, n)))
            for n in range(first, first + 3)
        ]

    ids, held = enqueue("a", 1), enqueue("b", 1)
    kafka.wait_for(ids)
    status = wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a topic to be down")
    assert "b.events" in status["last_error"]
    ids += enqueue("a", 4)
    messages = kafka.wait_for(ids)
    assert not set(held) & {message.event_id for message in messages}
    for future in kafka.admin.delete_acls([AclBindingFilter(*denied)]).values():
        future.result()
    kafka.wait_for(ids + held)
    db.wait_settled()
    assert in_trouble(db) == []


def test_a_quota_shows_as_throttling(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    quota = ["--bootstrap-server", kafka.broker.address, "--entity-type", "users", "--entity-name", "bob"]
    tool = "kafka.admin.ConfigCommand"
    kafka.broker.run(tool, *quota, "--alter", "--add-config", "producer_byte_rate=20000")
    add_destination(
        kafka, "sasl", {"user": "bob", "password": USERS["bob"]}, sasl_mechanism="PLAIN", compression="none"
    )
    ids: list[str] = []

    def enqueue_more() -> str:
        ids.append(enqueue_record(db, b"x" * 30_000, aggregate_id=f"k{len(ids)}"))
        return db.status()["state"]

    wait_until(enqueue_more, lambda seen: seen == "throttled", what="throttling")
    kafka.broker.run(tool, *quota, "--alter", "--delete-config", "producer_byte_rate")
    kafka.wait_for(ids, timeout=120)
    assert in_trouble(db) == []


# -------------------------------------------------------------------------------------------------
# Logins and certificates
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def with_current_library(make_cluster: MakeCluster, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
    """The sink on a server that finds the librdkafka of Confluent's client."""
    cluster = make_cluster(started=False)
    (library,) = INSTALLED.glob("python/lib/python3*/site-packages/confluent_kafka.libs/librdkafka-*")
    directory = cluster.directory / "library"
    directory.mkdir()
    shutil.copy(library, directory / "librdkafka.so.1")
    for path in (directory, directory / "librdkafka.so.1"):
        path.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))
    sink = make_sink(KafkaSink, create_database(cluster.start(), "current"))
    assert isinstance(sink, KafkaSink)
    return sink


def test_logins_with_a_current_library(with_current_library: KafkaSink) -> None:
    kafka, db = with_current_library, with_current_library.database
    kafka.add_topic()
    for mechanism in MECHANISMS:
        log_in(kafka, db, mechanism)
        db.execute("DROP SERVER d CASCADE")
    (library,) = {line.split()[-1] for line in maps_of(db) if "librdkafka" in line}
    assert library.startswith(str(db.cluster.directory)), "it was not the current library"


def maps_of(db: Database) -> list[str]:
    """Returns the libraries that a new relay has mapped."""
    db.add_destination("m", "kafka://127.0.0.1:1")
    maps = Path(f"/proc/{db.wait_for_worker('relay', 'm')}/maps")
    return wait_until(
        lambda: maps.read_text().splitlines(), lambda lines: any("librdkafka" in line for line in lines),
        what="the library to be loaded",
    )  # fmt: skip


def test_it_logs_in_with_a_password(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    log_in(kafka, db, "PLAIN")


def test_scram_with_an_old_library_says_what_to_do(kafka: KafkaSink, db: Database) -> None:
    add_destination(kafka, "sasl", {"user": "alice", "password": USERS["alice"]}, sasl_mechanism="SCRAM-SHA-256")
    kafka.add_topic()
    ids = enqueue_keys(db, ["a"], 1)
    if "librdkafka 2.6.1 or later" not in check(db)["login"][1]:
        kafka.wait_for(ids)  # the distribution has a newer one


def log_in(kafka: KafkaSink, db: Database, mechanism: str) -> None:
    """First with a wrong password."""
    add_destination(kafka, "sasl", {"user": "alice", "password": "s3cret-but-wrong"}, sasl_mechanism=mechanism)
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "uthentication")
    assert in_trouble(db) == []
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password '{USERS['alice']}')")
    kafka.wait_for(ids)
    db.wait_settled()
    seen = db.cluster.log_since(db.cluster.test_began) + str(db.status())
    assert "s3cret" not in seen


def readable(path: str) -> str:
    return Path(path).read_text()


def test_the_certificate_of_the_broker_is_verified(kafka: KafkaSink, db: Database, tmp_path: Path) -> None:
    kafka.add_topic()
    add_destination(kafka, "tls", {})
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "certificate", "SSL")
    authority = db.cluster.directory / "authority.crt"
    authority.write_text(readable(kafka.broker.certificates.authority))
    authority.chmod(0o644)
    db.execute(f"ALTER SERVER d OPTIONS (ADD ca_file '{authority}')")
    kafka.wait_for(ids)


def test_it_presents_a_client_certificate(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    certificates = kafka.broker.certificates
    authority = db.cluster.directory / "authority.crt"
    authority.write_text(readable(certificates.authority))
    authority.chmod(0o644)
    add_destination(kafka, "mutual", {}, ca_file=str(authority))
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "SSL", "Disconnected", "certificate", "down")
    both = f"certificate '{readable(certificates.certificate)}', private_key '{readable(certificates.key)}'"
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({both})")
    kafka.wait_for(ids)
    secret = readable(certificates.key).splitlines()[1]
    assert secret not in db.cluster.log_since(db.cluster.test_began)


def test_brokers_cannot_send_it_to_a_host_that_is_not_allowed(new_database: NewDatabase, make_sink: MakeSink) -> None:
    """The cluster says that its brokers are at 127.0.0.1."""
    db = new_database({"outbox.allowed_hosts": "localhost"})
    kafka = make_sink(KafkaSink, db)
    assert isinstance(kafka, KafkaSink)
    kafka.add_topic()
    url = f"kafka://localhost:{kafka.broker.ports['direct']}"
    db.add_destination("d", url, **kafka.options(), request_timeout="2s")
    enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, 'address 127.0.0.1 of host "127.0.0.1" is not allowed')
    assert kafka.messages() == []


# -------------------------------------------------------------------------------------------------
# The check
# -------------------------------------------------------------------------------------------------


def check(db: Database, topic: str | None = None) -> dict[str, tuple[bool, str]]:
    rows = db.execute("SELECT * FROM outbox.check_destination('d', %s)", (topic,))
    return {subject: (ok, detail) for subject, ok, detail in rows}


def test_the_check_of_a_cluster_and_its_topics(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    kafka.create()
    found = check(db, "item.events")
    assert found["connection"][0] and "a cluster of 1 broker" in found["connection"][1]
    assert found[f'topic "{kafka.place}-item.events"'] == (True, "it exists, with 3 partitions")
    assert check(db, "other")[f'topic "{kafka.place}-other"'] == (False, "it does not exist (create it)")
    assert kafka.messages() == []


def test_the_check_warns_of_the_time_of_old_events(kafka: KafkaSink, db: Database) -> None:
    kafka.add_topic()
    kafka.create(timestamp="occurred")
    ok, detail = check(db, "item.events")[f'topic "{kafka.place}-item.events"']
    assert ok and "retention.ms" in detail and '"timestamp"' in detail


def test_the_check_of_a_cluster_that_cannot_be_reached(kafka: KafkaSink, db: Database) -> None:
    kafka.proxy.refuse_connections()
    try:
        kafka.create()
        ok, detail = check(db)["connection"]
        assert not ok and ("refused" in detail or "Disconnected" in detail), detail
    finally:
        kafka.proxy.listen()


def test_the_check_of_a_broker_that_advertises_a_wrong_address(kafka: KafkaSink, db: Database) -> None:
    """The address of the URL answers; the one that it names is where the proxy was."""
    kafka.add_topic()
    add_destination(kafka, "proxied", {}, connect_timeout="2s")
    kafka.proxy.refuse_connections()
    try:
        found = check(db, "item.events")
        assert found["connection"][0], found
        ok, detail = found["broker 1"]
        assert not ok and f"it advertises 127.0.0.1:{kafka.proxy.port}: " in detail, detail
        assert "brokers" not in found
    finally:
        kafka.proxy.listen()
    db.change_destination("d", connect_timeout="30s")  # a busy machine takes its time
    found = check(db, "item.events")
    assert found["brokers"] == (True, "each can be reached at the address that it advertises"), found
    assert all(ok for ok, _ in found.values()), found


def test_the_check_of_a_login(kafka: KafkaSink, db: Database) -> None:
    mapping = {"user": "alice", "password": "s3cret-but-wrong"}
    add_destination(kafka, "sasl", mapping, sasl_mechanism="PLAIN")
    ok, detail = check(db)["login"]
    assert not ok and "uthentication" in detail and "s3cret" not in detail
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password '{USERS['alice']}')")
    assert check(db)["login"] == (True, 'PLAIN as "alice"')
