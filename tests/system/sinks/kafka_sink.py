"""The kafka sink, read back with Confluent's client. Topics are told apart by their names."""

from __future__ import annotations

from typing import Any

from database import Database
from waiting import wait_until

from .fault_proxy import KafkaProxy
from .kafka_server import KafkaServer
from .sink import STRUCTURED, Message, Sink, message_of, message_of_cloud_event, message_of_document

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                "schema_version", "occurred_at", "content_type"}  # fmt: skip
ITS_OWN = "the library makes requests of its own from what it is given"


class KafkaSink(Sink):
    name = "kafka"
    module = "pg_outbox_kafka"
    server = "kafka_server"
    cannot = {
        "requests": "the proxy does not read the records",
        "parallel": ITS_OWN,
        "batches": ITS_OWN,
        "partial": "tests/unit/sinks/kafka has a cluster that refuses some",
        "throttling": "a broker delays its answers; it refuses nothing",
        "secrets": "test_kafka.py has what a broker can ask for",
    }
    counts_connections = True
    cloud_events = ("binary", "structured")
    partitions = 3
    proxy: KafkaProxy

    def __init__(self, database: Database, server: KafkaServer) -> None:
        from confluent_kafka import Consumer
        from confluent_kafka.admin import AdminClient

        super().__init__(database)
        self.broker = server
        self.proxy = server.proxy
        address = {"bootstrap.servers": server.address, "log_level": 0}
        self.admin = AdminClient(address)
        self._consumer = Consumer(
            {**address, "group.id": self.place, "enable.auto.commit": False, "fetch.wait.max.ms": 20,
             "auto.offset.reset": "earliest", "enable.partition.eof": True}
        )  # fmt: skip
        self._next: dict[tuple[str, int], int] = {}  # offsets, by topic and partition

    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"topic": f"{self.place}-{{topic}}", "connect_timeout": "1s"}

    def add_topic(self, name: str = "item.events", **configuration: str) -> None:
        from confluent_kafka.admin import NewTopic

        topic = f"{self.place}-{name}"
        new = NewTopic(topic, self.partitions, 1, config=configuration)
        self.admin.create_topics([new])[topic].result()
        self._next |= {(topic, partition): 0 for partition in range(self.partitions)}

    def add_partitions(self, count: int, name: str = "item.events") -> None:
        """The topic has this many then."""
        from confluent_kafka.admin import NewPartitions

        topic = f"{self.place}-{name}"
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result()
        wait_until(
            lambda: len(self._consumer.list_topics(topic, timeout=20).topics[topic].partitions),
            lambda seen: seen == count, what="the new partitions",
        )  # fmt: skip
        self._next |= {(topic, partition): 0 for partition in range(self.partitions, count)}
        self.partitions = count

    def records(self) -> list[Any]:
        """Returns the records that have arrived, and been committed, since the last call."""
        from confluent_kafka import KafkaError, TopicPartition

        ends = {place: self.end_of(*place) for place in self._next}
        behind = {place for place, end in ends.items() if end > self._next[place]}
        self._consumer.assign([TopicPartition(*place, self._next[place]) for place in behind])
        received = []
        while behind:
            for record in self._consumer.consume(1000, timeout=0.1):
                place = (record.topic(), record.partition())
                error = record.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    behind.discard(place)
                    continue
                assert error is None, str(error)
                self._next[place] = record.offset() + 1
                received.append(record)
        return received

    def end_of(self, topic: str, partition: int) -> int:
        """A partition that is new, or whose broker was killed, has no leader for a moment."""
        from confluent_kafka import KafkaException, TopicPartition

        place = TopicPartition(topic, partition)
        _, end = wait_until(
            lambda: self._consumer.get_watermark_offsets(place, timeout=20),
            what=f"the end of {topic}/{partition}", ignoring=(KafkaException,),
        )  # fmt: skip
        return end

    def groups(self) -> list[str]:
        return [group.group_id for group in self.admin.list_consumer_groups().result().valid]

    def receive(self) -> list[Message]:
        return [message_of_record(record) for record in self.records()]

    def close(self) -> None:
        self.proxy.forget_rules()
        self._consumer.close()

    def size_limit(self) -> int:
        return 1_000_000


def headers_of(record: Any) -> dict[str, str]:
    headers = [(name, value.decode()) for name, value in record.headers() or []]
    assert len(dict(headers)) == len(headers), f"a header twice: {headers}"
    return dict(headers)


def message_of_record(record: Any) -> Message:
    headers = headers_of(record)
    key = (record.key() or b"").decode()
    content_type = headers.get("content-type")
    if content_type and content_type.startswith(STRUCTURED):
        return message_of_document(record.value())
    if "ce_id" in headers:
        attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce_")}
        assert attributes.get("partitionkey", "") == key
        return message_of_cloud_event(attributes, content_type, record.value())
    others = {name: value for name, value in headers.items() if name not in OF_THE_EVENT}
    return message_of(headers, ordering_key=key, headers=others, payload=record.value() or None)
