"""Exactly once into Kafka: processes are killed while writers write, and a consumer that reads only
committed records gets every committed event once, and each key in order; also when the edition is replaced meanwhile.

By default there are 5 kills; OUTBOX_DRILL_KILLS=200 is the run of docs/destinations/kafka.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster import Cluster, Installation, MakeCluster
from database import Database
from ledger import check, read_ledger
from long_run import all_in_long_run
from outbox_relay import OutboxRelay
from sinks.fault_proxy import END_TXN
from sinks.kafka_server import KafkaServer
from sinks.kafka_sink import KafkaSink
from waiting import wait_until

from .drill import SETTINGS
from .plain import OF_SERVER, make_plain_database
from .writing import Writing

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("OUTBOX_DRILL_KILLS", "5"))


class ExactlyOnceDrill(Writing):
    OPTIONS: dict[str, str] = {}
    OF_SERVER: dict[str, str] = {}

    def __init__(self, make_cluster: MakeCluster, broker: KafkaServer) -> None:
        super().__init__(make_cluster({**SETTINGS, **self.OF_SERVER}), "exactly once")
        self.broker = broker
        self.sink = KafkaSink(self.database, broker)
        self.sink.add_topic()
        self.sink.create(exactly_once="on", connect_timeout="10s", retry_base="10ms", retry_max="200ms", **self.OPTIONS)
        self.arrived: list[str] = []

    def close(self) -> None:
        super().close()
        self.sink.close()

    def count_arrivals(self) -> int:
        self.arrived += [message.event_id for message in self.sink.receive()]
        return len(self.arrived)

    def wait_for_arrivals(self, more: int) -> None:
        goal = self.count_arrivals() + more
        wait_until(self.count_arrivals, lambda seen: seen >= goal, timeout=180, what=f"{more} more events")

    def relay(self) -> int:
        return self.database.wait_for_worker("relay", "d")

    # -- kills ------------------------------------------------------------------------------------

    def kill_relay(self) -> None:
        self.cluster.kill_and_recover(self.relay())

    def end_relay(self) -> None:
        self.database.execute("SELECT pg_terminate_backend(%s)", (self.relay(),))

    def kill_postmaster(self) -> None:
        self.cluster.kill_postmaster()
        self.cluster.start()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def lose_request(self) -> None:
        """The broker never hears of the commit."""
        with self.broker.proxy.watching(END_TXN):
            self.broker.proxy.lose_requests(1)
            self.wait_for_arrivals(1)

    def lose_answer(self) -> None:
        """The broker has committed, or rolled back, and the relay is not told."""
        with self.broker.proxy.watching(END_TXN):
            self.broker.proxy.lose_answers(1)
            self.wait_for_arrivals(1)

    def kill_both(self) -> None:
        """The relay dies while the broker is away, so its last transaction is in doubt for longer."""
        self.broker.kill()
        self.cluster.kill_and_recover(self.relay())
        self.broker.start()


class OutsideDrill(ExactlyOnceDrill):
    """Uses two processes of outbox-relay."""

    OPTIONS = {"relay": "external"}

    def __init__(self, make_cluster: MakeCluster, broker: KafkaServer) -> None:
        super().__init__(make_cluster, broker)
        self.relays = [
            OutboxRelay(self.cluster, self.database.name, name=name, options='lease = "3s"').start()
            for name in ("one", "two")
        ]

    def close(self) -> None:
        for relay in self.relays:
            relay.close()
        super().close()

    def serving(self) -> OutboxRelay:
        """Returns the process that serves the destination."""
        name = wait_until(
            lambda: self.database.value(
                "SELECT r.name FROM outbox.cursor AS c JOIN outbox.relay AS r ON r.id = c.relay"
                " WHERE r.leased_until > clock_timestamp()"
            ),
            what="a relay to serve the destination",
        )  # fmt: skip
        return next(relay for relay in self.relays if relay.name == name)

    def kill_relay(self) -> None:
        relay = self.serving()
        relay.kill()
        relay.start()

    def end_relay(self) -> None:
        relay = self.serving()
        assert relay.end() == 0
        relay.start()

    def kill_both(self) -> None:
        self.broker.kill()
        self.kill_relay()
        self.broker.start()


class SqlEditionDrill(OutsideDrill):
    """The server loads no library."""

    OPTIONS = {}
    OF_SERVER = OF_SERVER

    def make_database(self, cluster: Cluster) -> Database:
        return make_plain_database(cluster)


class MigratingDrill(OutsideDrill):
    """Begins with workers of the server; the processes of outbox-relay wait until they are needed."""

    OPTIONS = {}
    replaces_edition = True


EVENTS = {
    "kill_relay": 6,
    "end_relay": 4,
    "kill_postmaster": 3,
    "kill_broker": 2,
    "kill_both": 1,
    "lose_request": 2,
    "lose_answer": 2,
}


@pytest.fixture(
    params=all_in_long_run([ExactlyOnceDrill, OutsideDrill, SqlEditionDrill], short=[ExactlyOnceDrill]),
    ids=["inside", "outside", "sql edition"],
)
def drill(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, kafka_server: KafkaServer
) -> Iterator[ExactlyOnceDrill]:
    made = request.param(make_cluster, kafka_server)
    yield made
    made.close()


def test_kills_lose_nothing_and_repeat_nothing(drill: ExactlyOnceDrill) -> None:
    with drill.load():
        for _ in range(KILLS):
            drill.wait_for_arrivals(drill.random.choice([1, 10, 50, 200]))
            event = drill.random.choices(list(EVENTS), list(EVENTS.values()))[0]
            print(f"{len(drill.arrived)} arrived, {event}")
            getattr(drill, event)()
        drill.wait_for_arrivals(50)
    conclude(drill, f"{KILLS} kills")


@pytest.mark.long
def test_a_migration_of_the_edition_repeats_nothing(
    make_cluster: MakeCluster, kafka_server: KafkaServer, installation: Installation
) -> None:
    drill = MigratingDrill(make_cluster, kafka_server)
    try:
        with drill.load():
            drill.wait_for_arrivals(50)
            drill.replace_edition(installation, "sql")
            drill.wait_for_arrivals(50)
            drill.kill_relay()
            drill.replace_edition(installation, "native")
            drill.wait_for_arrivals(50)
            drill.database.execute("ALTER SERVER d OPTIONS (DROP relay)")
            drill.kill_broker()
            drill.wait_for_arrivals(50)
        conclude(drill, "edition replaced twice")
    finally:
        drill.close()


def conclude(drill: ExactlyOnceDrill, what: str) -> None:
    ledger = read_ledger(drill.database.connection)
    wait_until(drill.count_arrivals, lambda seen: seen >= len(ledger), timeout=180, what="all events")
    drill.database.wait_settled("d", timeout=180)
    drill.count_arrivals()
    verdict = check(ledger, drill.arrived)
    drill.reports.append(f"exactly once: {what}, {len(ledger)} events: {verdict}")
    assert not verdict.lost and not verdict.invented and not verdict.out_of_order, verdict
    twice = [event for event, count in Counter(drill.arrived).items() if count > 1]
    assert not twice, f"{len(twice)} arrived twice: {twice[:10]}"
    assert drill.database.value("SELECT count(*) FROM outbox.delivery") == 0
