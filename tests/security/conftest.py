"""Attacks. Each test makes an attack, and passes if the attack fails.

The fixtures are those of the system tests, and `new_attacker`, which makes a role with a schema of its own in `database`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import *
from database import Database

from .attacker import Attacker, NewAttacker, NewRole

numbers = itertools.count(1)


# Used by all tests, so that it is set up before the databases and its roles are dropped after them.
@pytest.fixture(autouse=True)
def new_role(home: Database) -> Iterator[NewRole]:
    """Makes roles on the shared server."""
    names: list[str] = []

    def make(attributes: str = "") -> str:
        names.append(f"attacker_{next(numbers)}")
        home.execute(f"CREATE ROLE {names[-1]} LOGIN {attributes}")
        return names[-1]

    yield make
    for name in names:
        home.execute(f"DROP ROLE {name}")


@pytest.fixture
def new_attacker(database: Database, new_role: NewRole) -> NewAttacker:
    def make(*grants: str, attributes: str = "") -> Attacker:
        attacker = Attacker(database, new_role(attributes))
        attacker.grant(*grants)
        return attacker

    return make


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which every user of the system may write."""
    with tempfile.TemporaryDirectory(prefix="outbox-open-") as name:
        Path(name).chmod(0o777)
        yield Path(name)
