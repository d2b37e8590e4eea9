"""The examples, as their pages say to run them: a shop's changes reach its catalog, each once and in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest

from cluster import REPOSITORY, Cluster, Installation
from database import NewDatabase

from .examples import Catalog, Page, Program, Shop

README = "examples/catalog/README.md"


@pytest.fixture
def shop(shared_cluster: Cluster, new_database: NewDatabase) -> Shop:
    return Shop(shared_cluster, new_database(extension=False).name)


@pytest.fixture
def catalog(shared_cluster: Cluster, new_database: NewDatabase) -> Catalog:
    return Catalog(shared_cluster, new_database(extension=False).name)


@pytest.fixture
def page(shop: Shop, catalog: Catalog) -> Iterator[Page]:
    environment = {
        **os.environ,
        "SHOP": shop.cluster.conninfo(shop.name),
        "CATALOG": catalog.cluster.conninfo(catalog.name),
        # python3 is the one that runs us, which has psycopg
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    }
    page = Page(README, REPOSITORY / "examples/catalog", environment)
    databases, _ = page.commands("Set up")
    page.run(databases)
    yield page
    page.close()


def check_copy(shop: Shop, catalog: Catalog, program: Program, start: Callable[[], Program]) -> Program:
    """The shop goes on selling while the program is killed and started again. Returns the last one."""
    shop.open()
    catalog.wait_applied(100, program)
    program.kill()
    seen = catalog.applied()
    program = start()
    catalog.wait_applied(seen + 100, program)
    shop.close()
    catalog.wait_applied(len(shop.ledger), program)
    history = catalog.history()
    assert sorted(history) == sorted(shop.ledger), "what was applied is not what was committed, once each"
    for video, entries in groupby(sorted(history, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
        versions = [version for _, version, _ in entries]
        assert versions == sorted(versions), f"video {video} was changed out of order"
    assert catalog.videos() == shop.videos()
    return program


def test_python(page: Page, shop: Shop, catalog: Catalog) -> None:
    create_server, _, consume = page.commands("Directly from the shop's database")
    page.run(create_server)

    def start() -> Program:
        return page.start(consume)

    program = check_copy(shop, catalog, start(), start)
    program.stop()
    assert shop.value("SELECT count(*) FROM outbox.lease") == 0, "it left something unsettled"
