"""Tests with Citus. The fixtures of the system tests, and

citus           a database on a coordinator and two workers, on servers that all cheap tests share
new_citus       further ones for the time of the test, also with other extensions or nodes
make_citus      private servers, for tests that kill, restart or need other settings
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from conftest import *
from conftest import drop_database
from database import Database

from .citus_cluster import Citus, CitusInstallation, CitusServers, MakeCitus, NewCitus, Node


@pytest.fixture(scope="session")
def installation() -> Iterator[CitusInstallation]:
    installation = CitusInstallation()
    try:
        if not installation.has_citus():
            pytest.skip("NOT TESTED: Citus, because the server does not have it")
        yield installation
    finally:
        installation.remove()


@pytest.fixture(scope="session")
def citus_servers(installation: CitusInstallation) -> Iterator[CitusServers]:
    servers = CitusServers(installation)
    yield servers
    servers.destroy()
    for cluster in servers.clusters:
        lines = cluster.complaints([])
        assert not lines, "a shared server ended badly:\n" + "\n".join(lines)


numbers = itertools.count(1)


@pytest.fixture
def new_citus(citus_servers: CitusServers) -> Iterator[NewCitus]:
    made: list[Citus] = []

    def make(**options: object) -> Citus:
        made.append(Citus(citus_servers.clusters, f"citus_{next(numbers)}", **options))
        return made[-1]

    yield make
    for citus in made:
        drop(citus)


def drop(citus: Citus) -> None:
    for node in citus.all_nodes:  # before the first is dropped, so that none has a session on another
        node.disconnect()
    for node in citus.all_nodes:
        drop_node(node)


def drop_node(node: Node) -> None:
    home = Database(node.cluster, "postgres")
    drop_database(home, node.name)
    home.disconnect()


@pytest.fixture
def citus(new_citus: NewCitus) -> Citus:
    return new_citus()


@pytest.fixture
def make_citus(installation: CitusInstallation) -> Iterator[MakeCitus]:
    made: list[CitusServers] = []

    def make(settings: Mapping[str, str] | None = None, *, workers: int = 2, **options: object) -> Citus:
        made.append(CitusServers(installation, settings, workers=workers))
        return Citus(made[-1].clusters, "shop", **options)

    yield make
    for servers in made:
        servers.destroy()
