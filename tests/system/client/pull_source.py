"""A pull destination of a database with pg_outbox, for consumers only: there is no program with the source by itself."""

from __future__ import annotations

from pathlib import Path

from cluster import Installation
from database import Database

from .source import Source


class PullSource(Source):
    kind = "pull"
    server = "database"
    cannot = {
        "restarts": "test_trouble.py and the drills do so",
        "recreate": "each event has an id of its own, also after a destination was made again",
        "incarnations": "each event has an id of its own",
        "offsets": "outbox.delivery has the state of each event",
    }

    def __init__(self, installation: Installation, database: Database) -> None:
        super().__init__(installation)
        self.database = database
        self.name = "d"
        self.subscription = "pull:d"
        database.add_destination("d", "pull:", retry_base="1ms", retry_max="1ms")
        self.role = f"fetcher_{database.name}"
        database.execute(f"CREATE ROLE {self.role} LOGIN")
        database.execute("SELECT outbox.grant_fetch(%s)", (self.role,))
        database.execute(f"GRANT USAGE ON FOREIGN SERVER d TO {self.role}")

    @classmethod
    def program(cls, installation: Installation) -> Path:
        return installation.programs / "consume"

    def options(self) -> dict[str, object]:
        return {"pull": self.database.cluster.conninfo(self.database.name, self.role)}

    def consumer_options(self, **options: object) -> dict[str, object]:
        return {**self.options(), **options}

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        raise NotImplementedError

    def enqueue(self, key: str, count: int, first: int = 1) -> list[str]:
        return self.database.enqueue(key, count, first=first)

    def send_events(self, keys: int, versions: range) -> list[str]:
        return [id for version in versions for key in range(keys) for id in self.enqueue(f"k{key}", 1, version)]

    def leases(self) -> list[tuple]:
        return self.database.execute("SELECT * FROM outbox.lease")

    def left(self) -> int:
        """Returns events that are in batches or in outbox.delivery."""
        return self.database.value(
            "SELECT (SELECT count(*) FROM outbox.batch) + (SELECT count(*) FROM outbox.delivery)"
        )

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        return {"lease": 500}

    def disconnect(self) -> None:
        self.database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (self.role,))

    def close(self) -> None:
        super().close()
        self.disconnect()
        self.database.execute(f"DROP OWNED BY {self.role}")
        self.database.execute(f"DROP ROLE {self.role}")
