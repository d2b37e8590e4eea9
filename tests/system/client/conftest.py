"""target: a database with pg_inbox. consume: starts consumers on it, or by another way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster import Cluster, Installation
from database import NewDatabase

from .consumer import Consumer, Target

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
