"""The fixtures of the system tests, and `old_installation`: the server before, with its build of pg_outbox."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conftest import *  # noqa: F403  tests/system
from cluster import Installation


@pytest.fixture(scope="session")
def old_installation() -> Iterator[Installation]:
    """As OUTBOX_OLD_PG_CONFIG and OUTBOX_OLD_BUILD say; scripts/majors.sh --upgrades sets them."""
    installation = Installation(os.environ["OUTBOX_OLD_PG_CONFIG"], os.environ["OUTBOX_OLD_BUILD"])
    yield installation
    installation.remove()
