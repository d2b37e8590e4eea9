"""The fixtures of the system tests, `make_drill` and `make_replica_drill`. Counts are printed when all
drills are over."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from cluster import Installation, MakeCluster
from conftest import *
from shares import make_scheduler, parameters_of
from sinks import servers
from sinks.conftest import kafka_server, nats_server, pub_sub_fake, pub_sub_server, rabbitmq_server  # noqa: F401
from sinks.kafka_server import KafkaServer, kafka
from sinks.redis_server import RedisServer, redis

from .drill import SETTINGS, Drill, MakeDrill
from .replica import MakeReplicaDrill, ReplicaDrill
from .routes import ROUTES, ROUTES_WITHOUT_DEATHS, SHORT_ROUTES
from .wires import KafkaWire
from .writing import Writing


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as path:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], **quiet).returncode != 0:
            return False
        subprocess.run(["umount", "--lazy", path], check=True)
        return True


# Left out, because a skip would be a failure: it depends on the machine, not on the set-up.
collect_ignore = [] if may_mount() else ["test_disk_full.py"]


@pytest.fixture
def make_drill(make_cluster: MakeCluster, http: None, request: pytest.FixtureRequest) -> Iterator[MakeDrill]:
    made: list[Drill] = []

    def make(*, settings: dict[str, str] | None = None, **options: str) -> Drill:
        made.append(Drill(make_cluster({**SETTINGS, **(settings or {})}), request.node.name, **options))
        return made[-1]

    yield make
    for drill in made:
        drill.close()


@pytest.fixture(scope="session")
def kafka_behind_a_wire() -> Iterator[KafkaServer]:
    servers.add_clients_to_path()
    try:
        with kafka(KafkaWire) as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def durable_redis() -> Iterator[RedisServer]:
    """It loses nothing that it has confirmed."""
    servers.add_clients_to_path()
    try:
        with redis(appendonly="yes", appendfsync="always") as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture(params=ROUTES_WITHOUT_DEATHS)
def make_replica_drill(
    installation: Installation, make_cluster: MakeCluster, request: pytest.FixtureRequest
) -> Iterator[MakeReplicaDrill]:
    """The test runs once for each route; with_deaths (routes.py) names other ones."""
    made: list[ReplicaDrill] = []
    route = ROUTES[request.param]
    server = request.getfixturevalue(route.server) if route.server else None
    if route.program and not (installation.programs / route.program).exists():
        pytest.skip(f"NOT TESTED: {route.program} is not part of this build")

    def make() -> ReplicaDrill:
        made.append(
            ReplicaDrill(installation, make_cluster(SETTINGS), make_cluster(), route, server, request.node.name)
        )
        return made[-1]

    yield make
    for drill in made:
        drill.close()


def route_of(nodeid: str) -> str | None:
    return next((each for each in parameters_of(nodeid) if each in ROUTES), None)


def share_of(nodeid: str) -> str:
    """The drills of a route share its broker. Others have servers of their own."""
    route = route_of(nodeid)
    return f"route {route}" if route else nodeid


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the shares of routes first, and of these that of RabbitMQ, which takes longest; then slow tests."""

    def place(item: pytest.Item) -> tuple[bool, ...]:
        route = route_of(item.nodeid)
        return (route is None, route != "rabbitmq", item.get_closest_marker("slow") is None)

    for item in items:
        if route_of(item.nodeid) not in (None, *SHORT_ROUTES):
            item.add_marker(pytest.mark.long)
    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return make_scheduler(config, log, share_of)


@pytest.fixture(autouse=True)
def counts(record_property: Callable[[str, str], None]) -> Iterator[None]:
    """Adds the counts to the test's report, which all pytest processes pass on."""
    Writing.reports.clear()
    yield
    for line in Writing.reports:
        record_property("counts", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        terminalreporter.section("NOT TESTED: a disk that is full. Nobody may mount one here.")
    reports = [report for some in terminalreporter.stats.values() for report in some]
    lines = [line for report in reports if getattr(report, "when", "") == "teardown"
             for name, line in report.user_properties if name == "counts"]  # fmt: skip
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.write_line(line)
