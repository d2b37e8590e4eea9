"""Fixtures of the system tests.

    database        a database with the extension on a server that all cheap tests share
    new_database    further ones there for the time of the test, also with settings that a reload changes
    make_cluster    private servers, for tests that kill, restart or need other settings
    receiver        a scripted HTTP receiver
    http            the test needs the HTTP sink

After every test the new part of each server log is searched for crashes and for errors of
workers (`cluster.py`), and for passwords (`passwords.py`); each fails the test. The end of the logs is attached to every failure.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

try:
    import psycopg
except ModuleNotFoundError:
    pytest.exit("NOT TESTED: no psycopg. scripts/packages.sh system installs it for /usr/bin/python3.", returncode=4)

from cluster import SQL_EDITION, Cluster, Installation, MakeCluster
from collector import Collector
from database import OUTSIDE, Database, NewDatabase, create_database, end_relay
from receiver import Receiver
from shares import file_of, make_scheduler, parameters_of
from waiting import wait_until

# -------------------------------------------------------------------------------------------------
# Servers
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    installation = Installation()
    yield installation
    installation.remove()


@pytest.fixture(scope="session")
def shared_cluster(installation: Installation) -> Iterator[Cluster]:
    cluster = Cluster(installation).start()
    yield cluster
    cluster.destroy()
    lines = cluster.complaints([])
    assert not lines, "the shared server ended badly:\n" + "\n".join(lines)


@pytest.fixture
def make_cluster(installation: Installation) -> Iterator[MakeCluster]:
    made: list[Cluster] = []

    def make(settings: Mapping[str, str] | None = None, *, started: bool = True) -> Cluster:
        made.append(Cluster(installation, settings))
        return made[-1].start() if started else made[-1]

    yield make
    for cluster in made:
        cluster.destroy()


@pytest.fixture(scope="session")
def home(shared_cluster: Cluster) -> Database:
    """The database postgres. Its session creates and drops those of tests."""
    return Database(shared_cluster, "postgres")


@pytest.fixture(scope="session")
def model(shared_cluster: Cluster) -> str:
    """A database with the extension. To copy it takes a fifth of the time of CREATE EXTENSION."""
    shared_cluster.execute("CREATE DATABASE model IS_TEMPLATE true")  # which workers stay away from
    database = Database(shared_cluster, "model")
    database.create_extension()
    database.disconnect()
    shared_cluster.execute("ALTER DATABASE model ALLOW_CONNECTIONS false")
    return database.name


numbers = itertools.count(1)


@pytest.fixture
def new_database(shared_cluster: Cluster, home: Database, model: str) -> Iterator[NewDatabase]:
    """Creates databases on the shared server. Settings hold for all databases of the test from then on."""
    names: list[str] = []
    settings = dict(shared_cluster.settings)

    def make(changed: Mapping[str, str] | None = None, *, extension: bool = True) -> Database:
        if changed and not SQL_EDITION:
            shared_cluster.configure_and_wait({**shared_cluster.settings, **changed})
        names.append(f"db_{next(numbers)}")
        if not extension:
            return create_database(shared_cluster, names[-1], extension=False)
        # To copy files takes half the time of writing pages to the WAL.
        home.execute(f"CREATE DATABASE {names[-1]} TEMPLATE {model} STRATEGY file_copy")
        database = Database(shared_cluster, names[-1])
        if SQL_EDITION:
            database.set_in_database(changed or {})
        return database

    yield make
    try:
        for name in names:
            drop_database(home, name)
    finally:
        if shared_cluster.settings != settings:
            shared_cluster.configure_and_wait(settings)


@pytest.fixture
def database(new_database: NewDatabase) -> Database:
    return new_database()


def drop_database(home: Database, name: str) -> None:
    """Cleans up after a test, even if it failed."""
    end_relay(home.cluster, name)
    prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = %s"
    for (transaction,) in home.execute(prepared, (name,)):
        with home.cluster.connect(name) as connection:
            connection.execute(f"ROLLBACK PREPARED '{transaction}'")
    # DROP DATABASE waits up to five seconds for sessions that it terminates.
    wait_until(
        lambda: home.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)") == [],
        what=f"database {name} to be dropped", ignoring=(psycopg.errors.ObjectInUse,),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Peers
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def collector(installation: Installation) -> Iterator[Collector]:
    collector = Collector(installation)
    yield collector
    collector.close()


@pytest.fixture
def http(installation: Installation) -> None:
    if not installation.has_module("pg_outbox_http"):
        pytest.skip("NOT TESTED: the HTTP sink is not part of this build")


# -------------------------------------------------------------------------------------------------
# Order, logs, skips
# -------------------------------------------------------------------------------------------------


# Otherwise one process is still busy with them when the others have nothing left to do.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files with slow tests first, then those with many tests."""
    left_out = (["worker"] if OUTSIDE else []) + (["extension"] if SQL_EDITION else [])
    items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in left_out)]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path], item.path))


def share_of(nodeid: str) -> str:
    """The conformance tests of a sink or a source are a share of their own."""
    file = file_of(nodeid)
    return f"{file} {parameters_of(nodeid)[0]}" if "conformance" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return make_scheduler(config, log, share_of)


def check_logs(item: pytest.Item) -> None:
    allowed = [mark.args[0] for mark in item.iter_markers("worker_errors")]
    lines = [line for cluster in Cluster.all for line in cluster.complaints(allowed)]
    assert not lines, "the server log has lines that no test may cause:\n" + "\n".join(lines)


# Begins first and so ends last: an error here keeps no other hook from ending.
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    if outcome.excinfo is None:
        check_logs(item)


@pytest.fixture(autouse=True)
def logs_after_shutdown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends after all other fixtures: checks what servers logged while they ended."""
    for cluster in Cluster.all:
        cluster.test_began = cluster.log_size()
    yield
    try:
        check_logs(request.node)
    finally:
        Cluster.all[:] = [cluster for cluster in Cluster.all if cluster.final_log is None]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("REQUIRE_ALL_TESTS") == "1":
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL_TESTS=1, but the test was skipped: {report.longrepr}"
    if report.failed:
        for cluster in Cluster.all:
            tail = "\n".join(cluster.log_since(cluster.test_began).splitlines()[-80:])
            report.sections.append((f"end of the server log, {cluster.directory.name}", tail))
            if call.when == "call" and cluster.test_began < cluster.log_size():
                report.sections.append((f"sessions, {cluster.directory.name}", cluster.describe()))
