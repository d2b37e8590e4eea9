"""The Kafka source and a consumer over it, against Apache Kafka."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import Installation
from sinks import servers
from sinks.kafka_server import KafkaServer, kafka
from waiting import SLOWNESS, wait_until

from .conftest import Consume
from .consumer import Consumer, Target
from .kafka_source import KafkaSource, Topic, consumer_options, kafka_options

servers.add_clients_to_path()

MakeTopic = Callable[..., Topic]
MakeSource = Callable[..., KafkaSource]


@pytest.fixture(scope="module")
def server(installation: Installation) -> Iterator[KafkaServer]:
    if not (installation.programs / "kafka_source").exists():
        pytest.skip("NOT TESTED: the source inbox_kafka is not part of this build")
    try:
        with kafka() as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def make_topic(server: KafkaServer) -> MakeTopic:
    return lambda partitions=3, **configuration: Topic(server, partitions, **configuration)


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic()


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[KafkaSource] = []

    def make(topic: Topic, /, *, opened: bool = True, **options: object) -> KafkaSource:
        made.append(KafkaSource(installation, kafka_options(topic, **options)))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


def test_events_are_applied_once_and_in_order(topic: Topic, target: Target, consume: Consume) -> None:
    ids = [topic.send_event(f"k{n % 7}", n) for n in range(500)]
    topic.flush()
    consumer = consume(**consumer_options(topic))
    consumer.wait_for("all to be applied", applied=500)
    target.wait_applied(ids)
    check_order(target)
    topic.wait_committed(500)
    assert consumer.stop()["duplicates"] == 0


def check_order(target: Target) -> None:
    versions: dict[str, list[int]] = defaultdict(list)
    for key, version in target.execute("SELECT key, version FROM applied ORDER BY number"):
        versions[key].append(version)
    for key, found in versions.items():
        assert found == sorted(found), f"key {key} is out of order"
