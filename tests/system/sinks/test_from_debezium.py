"""docs/from-debezium.md: after the switch pg_outbox writes what Debezium's Event Router wrote before."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster import REPOSITORY, MakeCluster, run
from database import Database, create_database
from waiting import wait_until

from .kafka_server import KafkaServer
from .servers import INSTALLED, NotInstalled, java

pytestmark = pytest.mark.long

PAGE = REPOSITORY / "docs/from-debezium.md"
PROGRAM = REPOSITORY / "tests/debezium/ToKafka.java"
LIBRARIES = INSTALLED / "debezium"
PARTITIONS = 3


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def psql(database: Database, commands: str) -> str:
    conninfo = database.cluster.conninfo(database.name)
    return run(["psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", conninfo], input=commands)


class Connector:
    """Debezium's engine with the page's configuration, and these changes of it."""

    def __init__(self, database: Database, broker: str, directory: Path, changes: dict[str, str]) -> None:
        if not LIBRARIES.exists():
            raise NotInstalled(f"there is no {LIBRARIES}")
        self.database = database
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        user = psycopg.conninfo.conninfo_to_dict(database.cluster.conninfo())["user"]
        own = {
            "name": "shop",
            "database.hostname": "127.0.0.1",
            "database.port": str(database.cluster.port),
            "database.user": str(user),
            "database.dbname": database.name,
            "topic.prefix": database.name,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "100",
            "heartbeat.interval.ms": "300",
            "poll.interval.ms": "20",
            "producer.bootstrap.servers": broker,
        }
        pairs = {**json.loads(blocks("json")[0]), **own, **changes}
        self.properties = directory / "properties"
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in pairs.items()))

    def start(self) -> None:
        command = [*java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{LIBRARIES}/*",
                   str(PROGRAM), str(self.properties)]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self.reads, timeout=180, what="Debezium to read the slot")

    def reads(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.said()
        slots = "SELECT active FROM pg_replication_slots WHERE slot_name = 'debezium'"
        return bool(self.database.value(slots))

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


class Topic:
    """The topic of an aggregate type, which is new, and its records."""

    def __init__(self, server: KafkaServer, database: Database, type: str) -> None:
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic

        address = {"bootstrap.servers": server.address, "log_level": 0}
        name = f"outbox.event.{type}"
        topics = [NewTopic(name, PARTITIONS, 1), NewTopic(f"__debezium-heartbeat.{database.name}", 1, 1)]
        admin = AdminClient(address)
        for created in admin.create_topics(topics).values():
            created.result()
        self.consumer = Consumer(
            {**address, "group.id": database.name, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
        self.consumer.assign([TopicPartition(name, n, 0) for n in range(PARTITIONS)])
        self.records: list[Any] = []

    def wait_for(self, ids: set[str], complaint: Callable[[], str] = str) -> None:
        """Receives until these have arrived at least once."""

        def missing() -> set[str]:
            self.records += self.consumer.consume(1000, timeout=0.1)
            return ids - {id_of(record) for record in self.records}

        try:
            wait_until(missing, lambda left: not left, timeout=120, what=f"{len(ids)} events")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{complaint()}") from None


def id_of(record: Any) -> str:
    assert record.error() is None, str(record.error())
    return dict(record.headers())["id"].decode().strip('"')


def bytes_of(record: Any) -> tuple:
    return record.topic(), record.partition(), record.key(), record.headers(), record.value()


@pytest.fixture
def database(make_cluster: MakeCluster) -> Database:
    # topics of all tests are on one broker
    return create_database(make_cluster({"wal_level": "logical"}), f"db_{uuid.uuid4().hex[:12]}")


# (changed options) -> Connector
MakeConnector = Callable[[dict[str, str]], Connector]


@pytest.fixture
def make_connector(database: Database, kafka_server: KafkaServer, tmp_path: Path) -> Iterator[MakeConnector]:
    made: list[Connector] = []

    def make(changes: dict[str, str]) -> Connector:
        try:
            made.append(Connector(database, kafka_server.address, tmp_path, changes))
        except NotInstalled as error:
            pytest.skip(f"NOT TESTED: {error}")
        return made[-1]

    yield make
    for connector in made:
        connector.stop(signal.SIGKILL)


def destination_of_page(server: KafkaServer, type: str) -> str:
    """The statements of step 4 with our broker and topic."""
    *_, block = blocks("sql")
    of_page = ("broker1:9092,broker2:9092", "outbox.event.*", "outbox.event.video")
    ours = (server.address, f"outbox.event.*{type}", f"outbox.event.{type}")
    for old, new in zip(of_page, ours, strict=True):
        assert block.count(f"'{old}'") + block.count(f"//{old}'") == 1
        block = block.replace(old, new)
    return block


# -------------------------------------------------------------------------------------------------
# The switch
# -------------------------------------------------------------------------------------------------


class Application:
    """Inserts into its table, or what has replaced it, all the time."""

    KEYS = 7

    def __init__(self, database: Database, type: str) -> None:
        self.database, self.type = database, type
        self.committed: list[tuple[str, str, int]] = []  # id, key, version
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.database.connect() as connection:
                version = 0
                while not self._ending.wait(0.005):
                    version += 1
                    event = (str(uuid.uuid4()), f"kéy {version % self.KEYS}", version)
                    connection.execute(
                        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
                        "VALUES (%s, %s, %s, 'VideoPublished', %s, %s)",
                        (event[0], self.type, *event[1:], b"\x00\xff" + str(version).encode()),
                    )  # fmt: skip
                    self.committed.append(event)
        except Exception as error:
            self._error = error

    def insert_more(self, count: int) -> None:
        enough = len(self.committed) + count
        wait_until(lambda: self._error or len(self.committed) >= enough, what=f"{count} more rows")
        assert self._error is None, self._error

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert self._error is None, self._error


def test_the_switch_while_the_application_inserts(
    database: Database, kafka_server: KafkaServer, make_connector: MakeConnector
) -> None:
    type = f"video-{database.name}"
    before, replace, caught_up, drop, _ = blocks("sql")
    psql(database, before)
    topic = Topic(kafka_server, database, type)
    connector = make_connector({})
    connector.start()
    application = Application(database, type)
    try:
        application.insert_more(200)
        position = psql(database, replace).split()[-1]
        application.insert_more(100)
        question = caught_up.replace("0/1A2B3C4D", position)
        assert position in question
        wait_until(lambda: psql(database, question).strip(), lambda answer: answer == "t", timeout=120,
                   what=f"Debezium to confirm {position}")  # fmt: skip
        application.insert_more(100)
        connector.stop()
        psql(database, drop)
        psql(database, destination_of_page(kafka_server, type))
        application.insert_more(100)
    finally:
        application.end()
    topic.wait_for({event[0] for event in application.committed}, connector.said)
    database.wait_settled("bus")

    arrived = [id_of(record) for record in topic.records]
    assert sorted(arrived) == sorted(event[0] for event in application.committed)
    versions: dict[bytes, list[int]] = {}
    partitions: dict[bytes, set[int]] = {}
    events = {event[0]: event for event in application.committed}
    for record in topic.records:
        _, key, version = events[id_of(record)]
        assert record.key() == key.encode()
        assert record.value() == b"\x00\xff" + str(version).encode()
        assert [name for name, _ in record.headers()] == ["id", "eventType", "version"]
        versions.setdefault(record.key(), []).append(version)
        partitions.setdefault(record.key(), set()).add(record.partition())
    assert all(of_key == sorted(of_key) for of_key in versions.values())
    assert all(len(of_key) == 1 for of_key in partitions.values())


# -------------------------------------------------------------------------------------------------
# The same bytes
# -------------------------------------------------------------------------------------------------

STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
DEBEZIUM_TABLE = """
CREATE TABLE app_outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb);
CREATE PUBLICATION debezium FOR TABLE app_outbox WITH (publish = 'insert');
"""
OF_DEBEZIUM_TABLE = {
    "transforms.outbox.route.by.field": "aggregatetype",
    "transforms.outbox.table.field.event.key": "aggregateid",
    "transforms.outbox.table.field.event.type": "type",
    "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
    "key.converter": STRING,
    "value.converter": STRING,
}
KEYS = ["1", "ü/2", 'with "quotes" and \\', "4"]
DOCUMENTS = ['{"total": 1.5, "title": "ä \\"x\\" \\\\", "lines": [{"sku": "a b"}, {"sku": ": ,"}]}', "{}"]


class Case:
    def __init__(self, layout: str, connector: dict[str, str], options: dict[str, str], payloads: list[Any]) -> None:
        self.layout, self.connector, self.options, self.payloads = layout, connector, options, payloads

    def insert(self, database: Database, type: str, ids: list[str]) -> None:
        rows = [(key, payload) for key in KEYS for payload in self.payloads]
        for event_id, (key, payload) in zip(ids, rows, strict=True):
            if self.layout == "seed":
                database.execute(
                    "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, "
                    "occurred_at) VALUES (%s, %s, %s, 'VideoPublished', 7, %s, '2026-01-31 12:00:00.12+01')",
                    (event_id, type, key, payload),
                )  # fmt: skip
            else:
                database.execute(
                    "INSERT INTO app_outbox VALUES (%s, %s, %s, 'VideoPublished', %s)",
                    (event_id, type, key, payload),
                )  # fmt: skip


ALL_ATTRIBUTES = (
    "event_type:header:eventType,schema_version:header,aggregate_id:header,version:header:v,"
    "aggregate_type:header,occurred_at:header"
)
CASES = {
    "bytes": Case(
        "seed",
        {"transforms.outbox.table.fields.additional.placement": ALL_ATTRIBUTES},
        {"headers": "event_id:id, event_type:eventType, schema_version, aggregate_id, version:v, "
                    "aggregate_type, occurred_at"},
        [b"\x00\xff", b"{}", b""],
    ),
    "text": Case(
        "debezium", OF_DEBEZIUM_TABLE, {"headers": "event_id:id, event_type:eventType"},
        [*DOCUMENTS, "null", '""', "[1]", None],
    ),
    "json string": Case(
        "debezium",
        {**OF_DEBEZIUM_TABLE, "key.converter": JSON, "key.converter.schemas.enable": "false",
         "value.converter": JSON, "value.converter.schemas.enable": "false",
         "transforms.outbox.route.tombstone.on.empty.payload": "true"},
        {"headers": "event_id:id, event_type:eventType", "json_key": "on", "json_payload": "string"},
        [*DOCUMENTS, "null", '""', "[1]", None],
    ),
    "expanded": Case(
        "debezium",
        {**OF_DEBEZIUM_TABLE, "value.converter": JSON, "value.converter.schemas.enable": "false",
         "transforms.outbox.table.expand.json.payload": "true"},
        {"headers": "event_id:id, event_type:eventType", "json_payload": "compact"},
        DOCUMENTS,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_records_are_the_same(
    database: Database, kafka_server: KafkaServer, make_connector: MakeConnector, case: Case
) -> None:
    """The rows are inserted into the table, with the ids of the second time into the view."""
    type = f"video-{database.name}"
    psql(database, blocks("sql")[0] if case.layout == "seed" else DEBEZIUM_TABLE)
    topic = Topic(kafka_server, database, type)
    connector = make_connector(case.connector)
    connector.start()
    ids = [str(uuid.uuid4()) for _ in range(len(KEYS) * len(case.payloads))]
    with database.connection.transaction():
        case.insert(database, type, ids)
    topic.wait_for(set(ids), connector.said)
    connector.stop()
    of_debezium = sorted(topic.records, key=id_of)
    topic.records = []

    database.execute(
        "SELECT outbox.adopt('app_outbox', %s, condition => 'false', topic => 'outbox.event.{aggregate_type}')",
        (case.layout,),
    )  # fmt: skip
    case.insert(database, type, ids)
    database.add_destination("d", f"kafka://{kafka_server.address}", **case.options)
    database.wait_settled()
    topic.wait_for(set(ids))
    ours = sorted(topic.records, key=id_of)
    for before, after in zip(of_debezium, ours, strict=True):
        assert bytes_of(after) == bytes_of(before)
