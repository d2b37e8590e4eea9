"""target: a database with pg_inbox. consume: starts consumers on it, directly or through a proxy.

make_source: a queue, stream, topic or subscription of the test's own, with its server: source.py.

For the examples: shop and catalog, two databases; make_page: a page of the documentation, whose commands
are run on them; examples: where the programs are.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import REPOSITORY, Cluster, Installation
from database import NewDatabase
from sinks import servers
from sinks.conftest import (  # noqa: F401
    aws_server,
    elasticmq_server,
    kafka_server,
    nats_current_server,
    nats_server,
    pub_sub_fake,
    rabbitmq_server,
    running,
)
from sinks.redis_server import RedisServer, redis
from sinks.servers import Server

from .consumer import Consumer, Target
from .emulator_wire import EmulatorWire
from .examples import Catalog, Page, Shop
from .source import Source

# (conninfo=..., option=value, ...) -> Consumer
Consume = Callable[..., Consumer]


@pytest.fixture
def target(shared_cluster: Cluster, new_database: NewDatabase) -> Iterator[Target]:
    target = Target(shared_cluster, new_database(extension=False).name)
    target.create_extension()
    yield target
    target.kill_backends()
    target.drop_role()
    target.disconnect()


@pytest.fixture
def consume(installation: Installation, target: Target) -> Iterator[Consume]:
    made: list[Consumer] = []

    def start(*, conninfo: str | None = None, **options: object) -> Consumer:
        made.append(Consumer(installation, conninfo or target.conninfo, options))
        return made[-1]

    yield start
    for consumer in made:
        consumer.kill()


# -------------------------------------------------------------------------------------------------
# Sources
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def emulator_server() -> Iterator[Server]:
    yield from running(servers.pub_sub_emulator)


@pytest.fixture(scope="session")
def durable_redis() -> Iterator[RedisServer]:
    """It loses nothing that it has confirmed when its process is killed."""
    yield from running(lambda: redis(appendonly="yes", appendfsync="no"))


# (kind, ...) -> Source
MakeSource = Callable[..., Any]


@pytest.fixture
def make_source(installation: Installation, request: pytest.FixtureRequest) -> Iterator[MakeSource]:
    made: list[Source] = []

    def make(kind: type[Source], server: Any = None, **options: Any) -> Source:
        if not kind.program(installation).exists():
            pytest.skip(f"NOT TESTED: the source {kind.kind} is not part of this build")
        made.append(kind(installation, server or request.getfixturevalue(kind.server), **options))
        return made[-1]

    yield make
    for source in made:
        source.close()


# -------------------------------------------------------------------------------------------------
# The examples
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def examples(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the examples, in which the catalog service is built as its page says."""
    (package,) = installation.stage.rglob("pg_inboxConfig.cmake")
    if not (package.parent / "pg_inbox-pubsub.cmake").exists():
        pytest.skip("NOT TESTED: the source pubsub is not part of this build")
    directory = tmp_path_factory.mktemp("examples") / "examples"
    shutil.copytree(REPOSITORY / "examples", directory, ignore=shutil.ignore_patterns("build"))
    environment = {**os.environ, "CMAKE_PREFIX_PATH": str(package.parents[3])}
    page = Page("examples/catalog/README.md", directory / "catalog", environment)
    page.run(page.commands("Set up")[1])
    return directory


@pytest.fixture(scope="session")
def emulator(emulator_server: Server) -> str:
    """Host and port of Google's Pub/Sub emulator. Other fakes have different ports for REST and gRPC."""
    return f"127.0.0.1:{emulator_server.port}"


@pytest.fixture
def wire(emulator: str) -> Iterator[EmulatorWire]:
    """The proxy between consumers and the emulator."""
    wire = EmulatorWire(emulator)
    yield wire
    wire.close()


@pytest.fixture
def shop(shared_cluster: Cluster, new_database: NewDatabase) -> Iterator[Shop]:
    shop = Shop(shared_cluster, new_database(extension=False).name)
    yield shop
    shop.close()


@pytest.fixture
def catalog(shared_cluster: Cluster, new_database: NewDatabase) -> Catalog:
    return Catalog(shared_cluster, new_database(extension=False).name)


# (path, directory=...) -> Page
MakePage = Callable[..., Page]


@pytest.fixture
def make_page(shop: Shop, catalog: Catalog) -> Iterator[MakePage]:
    made: list[Page] = []

    def make(path: str, directory: Path, **environment: str) -> Page:
        databases = {"SHOP": shop.cluster.conninfo(shop.name), "CATALOG": catalog.cluster.conninfo(catalog.name)}
        # The page's python3 is the one that runs the tests, which has psycopg.
        programs = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        made.append(Page(path, directory, {**os.environ, **databases, **programs, **environment}))
        return made[-1]

    yield make
    for page in made:
        page.close()
