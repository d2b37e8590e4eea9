"""A topic of Kafka with a consumer group. Confluent's client writes the records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from cluster import Installation
from database import Database
from sinks.kafka_server import KafkaServer
from waiting import wait_until

from .source import Source

SESSION_TIMEOUT = 6000


class KafkaSource(Source):
    kind = "kafka"
    server = "kafka_server"
    attentive = {"offsets_in_database": 1}
    cannot = {
        "prefetch": "test_kafka.py has prefetch_bytes",
        "single": "the offset of the first record that is not applied is committed",
        "leases": "a partition belongs to a member of the group",
        "crashes": "test_kafka.py has members of a group that come and go",
        "kills": "test_kafka.py has members of a group that come and go",
        "cut": "librdkafka connects again by itself",
        "missing": "a topic may come later",
        "restarts": "test_kafka.py restarts the broker while events are written",
        "offsets": "the group has them, or the database for each partition",
    }

    def __init__(
        self, installation: Installation, server: KafkaServer, partitions: int = 3, **configuration: str
    ) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        super().__init__(installation)
        self.broker = server
        self.partitions = partitions
        self.name = self.topic = f"topic-{uuid.uuid4().hex[:12]}"
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.subscription = f"kafka://{self.group}"
        self.address = {"bootstrap.servers": server.address, "log_level": 0}
        self.admin = AdminClient(self.address)
        self.producer = Producer(
            {**self.address, "linger.ms": 0, "partitioner": "murmur2_random", "enable.idempotence": True}
        )
        self.configuration = configuration
        self.create()

    def create(self) -> None:
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(self.name, self.partitions, 1, config=self.configuration)
        self.admin.create_topics([topic])[self.name].result()

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()
        wait_until(
            lambda: self.admin.list_topics(timeout=10).topics, lambda topics: self.name not in topics,
            what="the topic to be deleted",
        )  # fmt: skip

    def recreate(self) -> None:
        from confluent_kafka import KafkaException

        self.delete()
        wait_until(lambda: self.create() is None, what="the topic to be made again", ignoring=(KafkaException,))

    def options(self) -> dict[str, object]:
        return {
            "brokers": self.broker.address, "group": self.group, "topics": self.name,
            "session_timeout": SESSION_TIMEOUT, "commit_interval": 50,
        }  # fmt: skip

    def listener(self, name: str) -> dict[str, object]:
        """Returns options to reach another listener of the broker."""
        return {"brokers": f"127.0.0.1:{self.broker.ports[name]}"}

    def login(self, user: str, password: str) -> dict[str, object]:
        return {**self.listener("sasl"), "sasl_mechanism": "PLAIN", "user": user, "password": password}

    def wrong_logins(self) -> list[tuple[Mapping[str, object], str]]:
        return [(self.login("alice", "s3cret-of-bob"), "uthentication")]

    def produce(
        self, key: str | None, value: str | bytes | None = b"{}", *, partition: int = -1,
        headers: dict[str, str | None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        list_of_headers = [(n, v if v is None else v.encode()) for n, v in (headers or {}).items()]
        self.producer.produce(self.name, value, key, partition, headers=list_of_headers, **options)

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        ids: list[str] = []

        def note(error: object, message: Any) -> None:
            assert error is None, error
            ids.append(f"{message.topic()}/{message.partition()}/{message.offset()}")

        for body in bodies:
            self.produce(key or None, body, headers=dict(attributes), on_delivery=note)
            self.flush()
        return ids

    def send_event(self, key: str, version: int, *, partition: int = -1) -> str:
        """Sends without waiting; returns the id."""
        event_id = str(uuid.uuid4())
        headers: dict[str, str | None] = {"event_id": event_id, "event_type": "changed", "version": str(version)}
        self.produce(key, headers=headers, partition=partition)
        return event_id

    def flush(self) -> None:
        assert self.producer.flush(60) == 0

    def committed(self) -> dict[int, int]:
        """Returns the group's offsets."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        wanted = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        request = ConsumerGroupTopicPartitions(self.group, wanted)
        asked = self.admin.list_consumer_group_offsets([request], request_timeout=10)
        answer = asked[self.group].result()
        return {each.partition: each.offset for each in answer.topic_partitions if each.offset >= 0}

    def wait_committed(self, total: int) -> None:
        """A broker that has restarted may not answer for a moment."""
        from confluent_kafka import KafkaException

        wait_until(
            lambda: sum(self.committed().values()), lambda seen: seen == total, timeout=180,
            what=f"offsets of {total} records to be committed", ignoring=(KafkaException,),
        )  # fmt: skip

    def left(self) -> int:
        """Counts from the end of each partition, which can be past the number of events sent: a producer whose
        broker ends may write a record twice.
        """
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partitions = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        asked = self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        return sum(answer.result().offset for answer in asked.values()) - sum(self.committed().values())

    def members(self) -> dict[str, set[int]]:
        """Returns the partitions of each member of the group, by its id."""
        group = self.admin.describe_consumer_groups([self.group])[self.group].result()
        return {
            member.member_id: {each.partition for each in member.assignment.topic_partitions}
            for member in group.members
        }

    def wait_members(self, count: int) -> None:
        """Waits until this number of members shares all partitions. A broker may still load the group."""
        from confluent_kafka import KafkaException

        def is_shared(members: dict[str, set[int]]) -> bool:
            shares = list(members.values())
            return len(shares) == count and all(shares) and sum(map(len, shares)) == self.partitions

        wait_until(
            self.members, is_shared, timeout=180, what=f"{count} members that share the partitions",
            ignoring=(KafkaException,),
        )  # fmt: skip

    def delete_offsets(self) -> None:
        self.admin.delete_consumer_groups([self.group])[self.group].result()

    def add_destination(self, database: Database) -> None:
        database.add_destination("d", f"kafka://{self.broker.address}", topic=self.name)
