"""The edition of pg_outbox is replaced under load, in both directions: writers go on, and deliveries by workers of the
server and by outbox-relay too. Nothing is lost, nothing is out of order, and repeats stay within their limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Installation, MakeCluster
from outbox_relay import OutboxRelay
from waiting import wait_until

from .drill import SETTINGS, Drill
from .test_outbox_relay import HOLDER

# No process dies here, so none need take over, and a short lease would end on a loaded machine. There is one process:
# with two, one could take a destination before the other notices the loss, and the test could not see when that ends.
OPTIONS = 'lease = "60s"\nshutdown_timeout = "5s"'


class MigrationDrill(Drill):
    """Begins with workers of the server. A process of outbox-relay waits for something to do."""

    replaces_edition = True

    def start_relays(self, options_of_suffering: dict[str, str]) -> None:
        super().start_relays(options_of_suffering)
        self.outside = OutboxRelay(self.cluster, self.database.name, options=OPTIONS).start()

    def close(self) -> None:
        self.outside.close()
        super().close()

    def migrate(self, installation: Installation, to: str) -> None:
        """Returns when outbox-relay serves both destinations."""
        before = self.leases()
        with self.noted(f"to {to}"):
            self.replace_edition(installation, to)
            for destination in ("suffering", "calm"):
                wait_until(
                    lambda: self.database.value(HOLDER, (destination,)), lambda name: name is not None,
                    what=f"an outbox-relay that serves {destination}",
                )  # fmt: skip
        assert self.leases().isdisjoint(before), "a relay of the time before could settle events"

    def leases(self) -> set[int]:
        return {lease for (lease,) in self.database.execute("SELECT lease FROM outbox.cursor")}

    def hand_to_workers(self) -> None:
        with self.noted("to workers"):
            for destination in ("suffering", "calm"):
                self.database.execute(f"ALTER SERVER {destination} OPTIONS (DROP relay)")
            for destination in ("suffering", "calm"):
                self.database.wait_for_worker("relay", destination)


@pytest.fixture
def drill(make_cluster: MakeCluster, http: None, request: pytest.FixtureRequest) -> Iterator[MigrationDrill]:
    drill = MigrationDrill(make_cluster(SETTINGS), request.node.name)
    yield drill
    drill.close()


@pytest.mark.long
def test_migrations_under_load_lose_nothing(drill: MigrationDrill, installation: Installation) -> None:
    with drill.load():
        for _ in range(2):
            drill.wait_for_arrivals(100)
            drill.migrate(installation, "sql")
            drill.wait_for_arrivals(100)
            drill.migrate(installation, "native")
            drill.wait_for_arrivals(100)
            drill.hand_to_workers()
        drill.wait_for_arrivals(100)
    drill.conclude()
