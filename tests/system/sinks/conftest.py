"""The servers, and `sink`.

    sink          a destination behind a proxy; the test runs once for each kind of sink
    make_sink     the same in a database of the test's own

A test marked `needs("x")` leaves out the sinks that cannot do x (`Sink.cannot`); one marked
`other_servers` runs with the other servers for a protocol as well, in the long run. In the short run, sinks that
share their code with another run only tests marked `core`. A new sink is a class, as sink.py
says, and its name in SINKS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from cluster import Installation
from database import Database
from long_run import all_in_long_run

from . import servers
from .aws_sinks import (
    SnsFifoSink,
    SnsStandardSink,
    SqsFifoElasticMqSink,
    SqsFifoSink,
    SqsStandardElasticMqSink,
    SqsStandardSink,
)
from .aws_streams import EventBridgeSink, KinesisSink
from .http_sink import Http2Sink, HttpSink
from .kafka_server import KafkaServer, kafka
from .kafka_sink import KafkaSink
from .mqtt_server import Mosquitto, MqttServer, mochi, mosquitto
from .mqtt_sink import MochiQos2Sink, MochiSink, MqttQos2Sink, MqttSink
from .nats_server import NatsServer, nats_current, nats_of_distribution
from .nats_sink import CurrentNatsSink, NatsSink
from .postgresql_sink import PostgresqlSink
from .pubsub_sink import PubSubFakeSink, PubSubSink
from .rabbitmq_server import RabbitmqServer, rabbitmq
from .rabbitmq_sink import RabbitmqSink
from .redis_server import RedisServer, shared_redis
from .redis_sink import RedisSink
from .servers import Server
from .sink import ABILITIES, Sink

servers.add_clients_to_path()

SINKS: list[type[Sink]] = [
    HttpSink, Http2Sink, PostgresqlSink, KafkaSink, RabbitmqSink, NatsSink, RedisSink, MqttSink, MqttQos2Sink, PubSubSink,
    SqsFifoSink, SqsStandardSink, SnsFifoSink, SnsStandardSink, KinesisSink,
    EventBridgeSink,
]  # fmt: skip
OTHER_SERVERS: list[type[Sink]] = [
    CurrentNatsSink, MochiSink, MochiQos2Sink, PubSubFakeSink, SqsFifoElasticMqSink, SqsStandardElasticMqSink,
]  # fmt: skip
# These share their code with a sink before them in the list: in the short run they run only tests marked `core`.
RELATED = {
    Http2Sink, MqttQos2Sink, SqsStandardSink, SnsFifoSink, SnsStandardSink, KinesisSink, EventBridgeSink,
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sink" not in metafunc.fixturenames:
        return
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
    named = needed.union(*(kind.cannot for kind in SINKS))
    assert named <= set(ABILITIES), f"no abilities: {named - set(ABILITIES)}"
    others = OTHER_SERVERS if metafunc.definition.get_closest_marker("other_servers") else []
    kinds = [kind for kind in SINKS + others if not needed & set(kind.cannot)]
    core = metafunc.definition.get_closest_marker("core") is not None
    short = [kind for kind in kinds if kind in SINKS and (core or kind not in RELATED)] or kinds[:1]
    values = all_in_long_run(kinds, short=short)
    metafunc.parametrize("sink", values, ids=[kind.name for kind in kinds], indirect=True)


# The fixture `make_sink`: (kind, database) -> Sink
MakeSink = Callable[[type[Sink], Database], Sink]


@pytest.fixture
def make_sink(installation: Installation, request: pytest.FixtureRequest) -> Iterator[MakeSink]:
    made: list[Sink] = []

    def make(kind: type[Sink], database: Database) -> Sink:
        if not installation.has_module(kind.module):
            pytest.skip(f"NOT TESTED: {kind.module} is not part of this build")
        server = [request.getfixturevalue(kind.server)] if kind.server else []
        made.append(kind(database, *server))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(database: Database, make_sink: MakeSink, request: pytest.FixtureRequest) -> Sink:
    return make_sink(request.param, database)


# -------------------------------------------------------------------------------------------------
# Servers
# -------------------------------------------------------------------------------------------------


AnyServer = TypeVar("AnyServer")


def running(*candidates: Callable[[], AbstractContextManager[AnyServer]]) -> Iterator[AnyServer]:
    """Returns the first server that is installed."""
    missing = []
    for candidate in candidates:
        try:
            with candidate() as server:
                yield server
                return
        except servers.NotInstalled as error:
            missing.append(str(error))
    pytest.skip(f"NOT TESTED: {'; '.join(missing)}; scripts/test.sh installs what can be had")


@pytest.fixture(scope="session")
def pub_sub_server() -> Iterator[Server]:
    yield from running(servers.pub_sub_emulator, servers.pub_sub_fake)


@pytest.fixture(scope="session")
def pub_sub_fake() -> Iterator[Server]:
    yield from running(servers.pub_sub_fake)


@pytest.fixture(scope="session")
def aws_server() -> Iterator[Server]:
    yield from running(servers.moto)


@pytest.fixture(scope="session")
def elasticmq_server() -> Iterator[Server]:
    yield from running(servers.elasticmq)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    yield from running(kafka)


@pytest.fixture(scope="session")
def mqtt_server() -> Iterator[Mosquitto]:
    yield from running(mosquitto)


@pytest.fixture(scope="session")
def mochi_server() -> Iterator[MqttServer]:
    yield from running(mochi)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    yield from running(nats_of_distribution)


@pytest.fixture(scope="session")
def nats_current_server() -> Iterator[NatsServer]:
    yield from running(nats_current)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitmqServer]:
    yield from running(rabbitmq)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    yield from running(shared_redis)
