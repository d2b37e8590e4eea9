"""Upgrades with ALTER EXTENSION … UPDATE, and of pg_inbox without CREATE EXTENSION.

tests/upgrade has the install scripts of the versions before, as they were released. The library is
the new one, as for every database whose server has been restarted with a new package.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from catalog import differences, objects_of
from cluster import REPOSITORY, Installation
from database import Database, NewDatabase

OLD_SCRIPTS = REPOSITORY / "tests/upgrade"
OLD = "0.1.0"

pytestmark = pytest.mark.extension


@pytest.fixture(scope="module", autouse=True)
def old_versions(installation: Installation) -> None:
    """Makes CREATE EXTENSION … VERSION find the versions before."""
    (control,) = installation.stage.rglob("pg_inbox.control")
    for script in OLD_SCRIPTS.glob("*.sql"):
        shutil.copy(script, control.parent)
        (control.parent / script.name).chmod(0o644)


def dump_and_restore(source: Database, target: Database) -> None:
    programs = source.cluster.installation.bin_directory
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", source.cluster.conninfo(source.name)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    subprocess.run(
        [str(programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", target.cluster.conninfo(target.name)],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip


@pytest.mark.parametrize("schema", ["inbox", "outbox"])
def test_an_upgraded_database_has_the_objects_of_a_new_one(new_database: NewDatabase, schema: str) -> None:
    fresh, upgraded, restored = (new_database(extension=False) for _ in range(3))
    fresh.execute(f"CREATE EXTENSION pg_{schema}")
    upgraded.execute(f"CREATE EXTENSION pg_{schema} VERSION '{OLD}'")
    expected = objects_of(fresh, schema)
    assert differences(expected, objects_of(upgraded, schema)) != {}
    upgraded.execute(f"ALTER EXTENSION pg_{schema} UPDATE")
    assert differences(expected, objects_of(upgraded, schema)) == {}
    dump_and_restore(upgraded, restored)
    assert differences(expected, objects_of(restored, schema)) == {}
