"""Apache Kafka, and Debezium's engine that writes an outbox table to it, as processes of a figure.

`scripts/test.sh system` installs both into the build directory.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from figures.drain_http import answers, free_port
from recorded import cpu_seconds
from workload import KEYS, Bench, Unavailable, payload, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent
PARTITIONS = 12
COMPRESSION = "zstd"

# Debezium reads the WAL, over TCP.
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "port": str(free_port()),
    "wal_sender_timeout": "0",  # the engine sleeps while others are measured
}

BROKER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=CONTROLLER://127.0.0.1:{controller},PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
file.delete.delay.ms=1000
log.dirs={directory}
"""


def installed(bench: Bench, name: str) -> Path:
    libraries = bench.programs.parent / "servers" / name
    if not libraries.exists():
        raise Unavailable(f"{libraries} is not there; scripts/test.sh system installs it")
    return libraries


@dataclass
class Broker:
    bench: Bench
    address: str
    topics: int = 0

    @contextmanager
    def topic(self) -> Iterator[str]:
        """Makes a topic for the duration of the block."""
        self.topics += 1
        name = f"bench-{self.topics}"
        self.ask("create", name, str(PARTITIONS))
        try:
            yield name
        finally:
            self.ask("delete", name)

    def ask(self, *arguments: str) -> str:
        return subprocess.check_output([self.bench.programs / "kafka_topic", self.address, *arguments], text=True)

    def watch(self, topic: str, records: int) -> float:
        """Waits until the topic has these records; returns the rate at which they came."""
        seen = json.loads(self.ask("watch", topic, str(records)))
        if not seen["seconds"]:
            raise RuntimeError(f"{records} records are too few: they came between two looks")
        return seen["records"] / seen["seconds"]

    def load(self, records: int, *variant: str) -> dict:
        """Runs the bare loop on a topic of its own. Its records have headers if `variant` says so."""
        with self.topic() as topic:
            return self.bench.program("kafka_loader", self.address, topic, str(records), str(KEYS), payload(200),
                                      COMPRESSION, *variant)

    def destination(self, topic: str) -> dict[str, str]:
        return {"url": f"kafka://{self.address}", "topic": topic, "compression": COMPRESSION}


@contextmanager
def kafka(bench: Bench) -> Iterator[Broker]:
    """Runs a broker. It is warm when the loop has run a few times."""
    bench.need_sink("kafka")
    libraries = installed(bench, "kafka")
    directory = bench.cluster.root / "kafka"
    directory.mkdir()
    port = free_port()
    configuration = directory / "server.properties"
    configuration.write_text(BROKER.format(directory=directory / "data", port=port, controller=free_port()))
    java = ["java", "-Xms1g", "-Xmx1g", "-cp", f"{libraries}/*"]
    with (directory / "log").open("w") as log:
        subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", "outboxoutboxoutboxoutb", "-c",
                        configuration], check=True, stdout=log, stderr=log)
        with subprocess.Popen([*java, "kafka.Kafka", configuration], stdout=log, stderr=log) as server:
            try:
                wait_until(lambda: answers(port), 60, "Kafka answers")
                yield Broker(bench, f"127.0.0.1:{port}")
            finally:
                server.kill()


# -------------------------------------------------------------------------------------------------
# Debezium
# -------------------------------------------------------------------------------------------------

FILL = """
CREATE PROCEDURE fill_table(events integer, per integer, payload text) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. events / per LOOP
        INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
        SELECT gen_random_uuid(), 'account', 'a' || (i * 7919 + n) % {keys}, 'AccountChanged', i,
               convert_to(payload, 'UTF8')
          FROM generate_series(1, per) AS n;
        COMMIT;
    END LOOP;
END $$;
"""


def of_page(language: str) -> str:
    """The first block of the page in this language: the table, and the connector."""
    page = (REPOSITORY / "docs/from-debezium.md").read_text()
    return re.search(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE).group(1)


def create_outbox_table(bench: Bench) -> None:
    bench.sql.execute(of_page("sql"))
    bench.sql.execute(FILL.format(keys=KEYS))


@dataclass
class Debezium:
    """The engine with the configuration of docs/from-debezium.md; all events go to one topic."""

    bench: Bench
    broker: Broker
    topic: str
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None
    records: int = 0  # that it has written, or will have
    log: Path = Path()

    def __enter__(self) -> "Debezium":
        libraries = installed(self.bench, "debezium")
        directory = self.bench.cluster.root / f"debezium-{self.topic}"
        directory.mkdir()
        own = {
            "name": "bench",
            "database.hostname": "127.0.0.1",
            "database.port": SETTINGS["port"],
            "database.user": "postgres",
            "database.dbname": self.bench.database,
            "topic.prefix": self.topic,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "1000",
            "heartbeat.interval.ms": "500",
            "topic.heartbeat.prefix": "heartbeat",
            "message.prefix.exclude.list": "heartbeat,bench",  # also what makes the relay's events durable
            "transforms.outbox.route.topic.replacement": self.topic,
            "producer.bootstrap.servers": self.broker.address,
            "producer.acks": "all",
            "producer.enable.idempotence": "true",
            "producer.compression.type": COMPRESSION,
            "producer.batch.size": "1000000",
        }
        pairs = {**json.loads(of_page("json")), **own, **self.options}
        configuration = directory / "properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in pairs.items()))
        self.broker.ask("create", f"heartbeat.{self.topic}", "1")
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libraries}/*",
                 REPOSITORY / "tests/debezium/ToKafka.java", configuration], stdout=log, stderr=log)
        try:
            self.wait_until(self.reads, 60, "Debezium reads")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not self.reads(), 10, "the slot is free")
        self.bench.sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def wait_until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            wait_until(reached, seconds, what)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.log.read_text()[-5000:]}") from error

    def reads(self) -> bool:
        return self.bench.sql.execute("SELECT FROM pg_replication_slots WHERE active").rowcount > 0

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stops the process for the duration of the block, after it has read what there is."""
        here = self.bench.sql.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        self.wait_until(lambda: self.bench.sql.execute(
            "SELECT FROM pg_replication_slots WHERE confirmed_flush_lsn >= %s", [here]).rowcount > 0,
            120, "Debezium has read the WAL")
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def fill_table(self, events: int) -> None:
        """Commits rows in transactions of 100, in two sessions."""
        self.bench.sql.execute("TRUNCATE app_outbox")
        self.bench.sql.execute("CHECKPOINT")
        script = self.bench.cluster.root / "fill_table.sql"
        script.write_text(f"CALL fill_table({events // 2}, 100, '{payload(200)}');\n")
        environment = os.environ | {"PGOPTIONS": "-c synchronous_commit=off"}
        self.bench.pgbench(["-t", "1", "-c", "2", "-j", "2", "-f", script], environment)

    def more(self, events: int) -> int:
        """Returns the number of records in the topic when it has written this many more."""
        self.records += events
        return self.records

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)
