"""outboxctl migrate-edition: from the extension to the SQL edition and back, with all that is in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from cluster import Installation
from database import Database, NewDatabase

Migrate = Callable[..., str]


@pytest.fixture
def migrate(installation: Installation) -> Migrate:
    def run(database: Database, to: str, *arguments: str, user: str = "postgres") -> str:
        """Returns the exit code and output of outboxctl."""
        done = subprocess.run(
            [str(installation.build / "tools/outboxctl/outboxctl"), "migrate-edition", "--to", to, *arguments,
             "-d", database.cluster.conninfo(database.name, user)],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}{done.stderr}".strip()

    return run


def test_smoke(database: Database, migrate: Migrate) -> None:
    database.enqueue("a", 3)
    database.add_destination("d", "null:")
    print(migrate(database, "sql", "--check"))
    print(migrate(database, "sql", "--yes", "--lock-timeout", "5"))
    print(database.execute("select * from outbox.cursor"), database.execute("select count(*) from outbox.event"))
    print(migrate(database, "native", "--yes", "--lock-timeout", "5"))
    print(database.execute("select * from outbox.cursor"), database.execute("select count(*) from outbox.event"))
    assert 0
