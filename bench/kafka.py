"""Apache Kafka, and Debezium's engine that writes an outbox table to it, as processes of a figure.

`scripts/test.sh system` installs Kafka into the build directory.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from debezium import SETTINGS, Engine, create_outbox_table, installed
from figures.drain_http import answers, free_port
from workload import KEYS, Bench, payload, wait_until

__all__ = ["SETTINGS", "create_outbox_table", "kafka"]

PARTITIONS = 12
COMPRESSION = "zstd"

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
            return self.bench.program(
                "kafka_loader", self.address, topic, str(records), str(KEYS), payload(200), COMPRESSION, *variant
            )

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
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", "outboxoutboxoutboxoutb", "-c", configuration],
            check=True,
            stdout=log,
            stderr=log,
        )
        with subprocess.Popen([*java, "kafka.Kafka", configuration], stdout=log, stderr=log) as server:
            try:
                wait_until(lambda: answers(port), 60, "Kafka answers")
                yield Broker(bench, f"127.0.0.1:{port}")
            finally:
                server.kill()


class Debezium(Engine):
    """The engine that writes all events to one topic."""

    def __init__(self, bench: Bench, broker: Broker, topic: str, options: dict[str, str] | None = None) -> None:
        super().__init__(bench, topic, "tests/debezium/ToKafka.java", options or {})
        self.broker = broker
        self.topic = topic

    def __enter__(self) -> "Debezium":
        self.broker.ask("create", f"heartbeat.{self.topic}", "1")
        super().__enter__()
        return self

    def properties(self) -> dict[str, str]:
        return {
            "producer.bootstrap.servers": self.broker.address,
            "producer.acks": "all",
            "producer.enable.idempotence": "true",
            "producer.compression.type": COMPRESSION,
            "producer.batch.size": "1000000",
        }
