"""The Kafka source under test (tests/programs/kafka_source.cpp), and a topic that it reads.

Confluent's client writes the records, and is the other member of the group where a test needs one.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from typing import Any

from cluster import Installation
from processes import end_process
from sinks.kafka_server import KafkaServer
from waiting import wait_until

SESSION_TIMEOUT = 6000


class Topic:
    """A topic of the test's own, and a consumer group for it."""

    def __init__(self, server: KafkaServer, partitions: int = 3, **configuration: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.server = server
        self.partitions = partitions
        self.name = f"topic-{uuid.uuid4().hex[:12]}"
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.address = {"bootstrap.servers": server.address, "log_level": 0}
        self.admin = AdminClient(self.address)
        self.producer = Producer(
            {**self.address, "linger.ms": 0, "partitioner": "murmur2_random", "enable.idempotence": True}
        )
        self.admin.create_topics([NewTopic(self.name, partitions, 1, config=configuration)])[self.name].result()

    def send(
        self, key: str | None, value: str | bytes | None = b"{}", *, partition: int = -1,
        headers: dict[str, str | None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        list_of_headers = [(n, v if v is None else v.encode()) for n, v in (headers or {}).items()]
        self.producer.produce(self.name, value, key, partition, headers=list_of_headers, **options)

    def send_event(self, key: str, version: int, *, type: str = "changed", partition: int = -1,
                   payload: str = "{}") -> str:  # fmt: skip
        """Sends it as the sink kafka:// does; returns its id."""
        event_id = str(uuid.uuid4())
        headers: dict[str, str | None] = {
            "event_id": event_id, "event_type": type, "aggregate_type": "item", "aggregate_id": key,
            "version": str(version), "content_type": "application/json",
        }  # fmt: skip
        self.send(key, payload, headers=headers, partition=partition)
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
            lambda: sum(self.committed().values()), lambda seen: seen == total, timeout=60,
            what=f"offsets of {total} records to be committed", ignoring=(KafkaException,),
        )  # fmt: skip

    def wait_all_committed(self) -> None:
        """Waits until the group has committed the end of each partition. That can be past the number of events sent:
        a producer whose broker ends may write a record twice."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partitions = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        asked = self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        ends = {each.partition: answer.result().offset for each, answer in asked.items()}
        wait_until(
            self.committed, lambda seen: seen == ends, timeout=60,
            what=f"the ends {ends} to be committed", ignoring=(KafkaException,),
        )  # fmt: skip

    def members(self) -> dict[str, set[int]]:
        """Returns the partitions of each member of the group, by its id."""
        group = self.admin.describe_consumer_groups([self.group])[self.group].result()
        return {
            member.member_id: {each.partition for each in member.assignment.topic_partitions}
            for member in group.members
        }

    def wait_members(self, count: int) -> None:
        """Waits until this number of members shares all partitions."""

        def is_shared(members: dict[str, set[int]]) -> bool:
            shares = list(members.values())
            return len(shares) == count and all(shares) and sum(map(len, shares)) == self.partitions

        wait_until(self.members, is_shared, timeout=60, what=f"{count} members that share the partitions")

    def delete_offsets(self) -> None:
        self.admin.delete_consumer_groups([self.group])[self.group].result()


def kafka_options(topic: Topic, **options: object) -> dict[str, object]:
    defaults = {
        "brokers": topic.server.address, "group": topic.group, "topics": topic.name,
        "session_timeout": SESSION_TIMEOUT, "commit_interval": 50,
    }  # fmt: skip
    return {**defaults, **options}


def consumer_options(topic: Topic, **options: object) -> dict[str, object]:
    """Returns options of the program `consume`; those of the source begin with kafka_."""
    of_source = {f"kafka_{name}": value for name, value in kafka_options(topic).items()}
    return {"kafka": of_source.pop("kafka_brokers"), **of_source, **options}


class KafkaSource:
    def __init__(self, installation: Installation, options: dict[str, object]) -> None:
        arguments = [f"{name}={value}" for name, value in options.items() if value != ""]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(installation.programs / "kafka_source"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def command(self, *fields: object) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, fields)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the source has ended ({self.process.wait()}):\n{self.log()}"
        return json.loads(answer)

    def open(self) -> None:
        assert self.command("open") == {}, self.log()

    def receive(self, count: int, *, most: int = 1000) -> list[dict[str, Any]]:
        """Waits until this number of records has come."""
        received: list[dict[str, Any]] = []

        def more() -> int:
            answer = self.command("receive", most, 100)
            assert isinstance(answer, list), answer
            received.extend(answer)
            return len(received)

        try:
            wait_until(more, lambda seen: seen >= count, timeout=60, what=f"{count} deliveries")
        except AssertionError as failed:
            raise AssertionError(f"{failed}\n{self.log()}") from None
        assert len(received) == count, [each["payload"] for each in received]
        return received

    def receive_error(self) -> dict[str, Any]:
        """Waits until the source throws."""
        return wait_until(
            lambda: self.command("receive", 10, 100), lambda answer: isinstance(answer, dict),
            timeout=60, what="an error from receive",
        )  # fmt: skip

    def stats(self) -> dict[str, int]:
        return self.command("stats")

    def wait_stats(self, **values: int) -> dict[str, int]:
        """Waits until the counters have these values. Receives nothing."""
        return wait_until(
            self.stats, lambda stats: all(stats[name] == value for name, value in values.items()),
            timeout=60, what=f"counters to be {values}",
        )  # fmt: skip

    def ack(self, *deliveries: dict[str, Any]) -> None:
        assert self.command("ack", ",".join(str(d["number"]) for d in deliveries)) == {}

    def nack(self, *deliveries: dict[str, Any]) -> None:
        assert self.command("nack", ",".join(str(d["number"]) for d in deliveries)) == {}

    def close(self, limit: float = 20) -> None:
        assert self.command("close", int(limit * 1000)) == {}

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        end_process(self.process, self.log)
