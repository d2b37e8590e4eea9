"""Replicas of outbox-relay that die, hang, or lose their database, under load. Destinations go on with
another one: nothing is lost, nothing is out of order, and repeats stay within their limit.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database
from outbox_relay import OutboxRelay, Wire
from waiting import wait_until

from .drill import SETTINGS, Drill

LEASE = 2.0
IDLE_IN_TRANSACTION = """
    SELECT pid, state, query FROM pg_stat_activity, pg_sleep(0.01)
     WHERE application_name LIKE 'outbox-relay%' AND state LIKE 'idle in transaction%'
"""
OPTIONS = f'lease = "{LEASE:.0f}s"\nshutdown_timeout = "5s"'
HOLDER = """
    SELECT r.name FROM outbox.cursor AS c JOIN outbox.relay AS r ON r.id = c.relay
     WHERE c.destination = %s AND r.leased_until > clock_timestamp()
"""


class RelayDrill(Drill):
    def add_destination(self, name: str, url: str, **options: str) -> None:
        self.database.add_destination(name, url, relay="external", **options)

    def start_relays(self, options_of_suffering: dict[str, str]) -> None:
        self.add_destination("suffering", self.suffering.url(), **options_of_suffering)
        self.add_destination("calm", self.calm.url())
        self.wires = {name: Wire(self.cluster) for name in ("one", "two")}
        self.relays = {
            name: OutboxRelay(self.cluster, self.database.name, name=name, wire=wire, options=OPTIONS).start()
            for name, wire in self.wires.items()
        }
        for destination in ("suffering", "calm"):
            self.served(destination)

    def close(self) -> None:
        for wire in self.wires.values():
            wire.mend()
        for relay in self.relays.values():
            relay.close()
        for wire in self.wires.values():
            wire.close()
        super().close()

    def holder(self, destination: str) -> str | None:
        return self.database.value(HOLDER, (destination,))

    def served(self, destination: str = "suffering", *, other_than: str | None = None) -> OutboxRelay:
        name = wait_until(
            lambda: self.holder(destination), lambda seen: seen not in (None, other_than),
            what=f"a relay of {destination} other than {other_than}", ignoring=(psycopg.OperationalError,),
        )  # fmt: skip
        assert name is not None
        return self.relays[name]

    # ---- what goes wrong --------------------------------------------------------------------------

    def kill_relay(self) -> None:
        relay = self.served()
        with self.noted("relay"):
            relay.kill()
            self.served(other_than=relay.name)
        relay.start()

    def end_relay(self) -> None:
        relay = self.served()
        with self.noted("relay asked to end"):
            assert relay.end() == 0, relay.text()[-3000:]
            self.served(other_than=relay.name)
        relay.start()

    def freeze_relay(self) -> None:
        """For longer than its lease, so that another one takes its destinations."""
        relay = self.served()
        with self.noted("relay"):
            relay.freeze()
            self.served(other_than=relay.name)
            self.wait_for_arrivals(20)
            relay.thaw()
            wait_until(lambda: self.counts(relay), what="the relay to be back")

    def cut_wire(self) -> None:
        relay = self.served()
        wire = self.wires[relay.name]
        with self.noted("relay"):
            wire.cut()
            self.served(other_than=relay.name)
            self.wait_for_arrivals(20)
            wire.mend()
            wait_until(lambda: self.counts(relay), what="the relay to be back")

    def counts(self, relay: OutboxRelay) -> bool:
        """Whether the database counts on it."""
        return self.database.value(
            "SELECT EXISTS (SELECT FROM outbox.relay WHERE name = %s AND leased_until > clock_timestamp())", (relay.name,)
        )

    def kill_server(self) -> None:
        self.kill_postmaster()
        self.served("suffering")
        self.served("calm")

    def kill_sessions(self) -> None:
        """Of both relays, while they serve. Each starts over with a new lease."""
        before = {destination: self.lease(destination) for destination in ("suffering", "calm")}
        with self.noted("relay"):
            self.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'outbox-relay%%' AND datname = current_database()"
            )
            for destination, lease in before.items():
                wait_until(lambda: self.lease(destination), lambda seen: seen != lease, what="another lease")

    def lease(self, destination: str) -> int:
        return self.database.value("SELECT lease FROM outbox.cursor WHERE destination = %s", (destination,))


class SqlEditionDrill(RelayDrill):
    """The server loads no library, and the database belongs to a role without rights on the server."""

    def make_database(self, cluster: Cluster) -> Database:
        cluster.execute("CREATE ROLE owner LOGIN")
        cluster.execute("CREATE DATABASE db OWNER owner")
        script = str(cluster.installation.build / "sql/pg_outbox--sql.sql")
        subprocess.run(["psql", "-X", "-q", "-d", cluster.conninfo("db", "owner"), "-f", script], check=True, stdout=subprocess.DEVNULL)
        database = Database(cluster, "db")
        for name, value in {**SETTINGS, "outbox.allowed_hosts": "127.0.0.1, localhost"}.items():
            database.execute("INSERT INTO outbox.setting VALUES (%s, %s)", (name.removeprefix("outbox."), value))
        return database

    def add_destination(self, name: str, url: str, **options: str) -> None:
        text = json.dumps({"url": url, **options})
        self.database.execute("INSERT INTO outbox.destination_config VALUES (%s, %s)", (name, text))


@pytest.fixture(params=["native", "sql"])
def drill(make_cluster: MakeCluster, http: None, request: pytest.FixtureRequest) -> Iterator[RelayDrill]:
    made: RelayDrill
    if request.param == "native":
        made = RelayDrill(make_cluster(SETTINGS), request.node.name)
    else:
        made = SqlEditionDrill(make_cluster({**SETTINGS, "shared_preload_libraries": ""}), request.node.name)
    yield made
    made.close()


ACCIDENTS: dict[str, Callable[[RelayDrill], None]] = {
    "kill_relay": RelayDrill.kill_relay,
    "end_relay": RelayDrill.end_relay,
    "freeze_relay": RelayDrill.freeze_relay,
    "cut_wire": RelayDrill.cut_wire,
    "kill_server": RelayDrill.kill_server,
    "kill_sessions": RelayDrill.kill_sessions,
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_accident(drill: RelayDrill, accident: str) -> None:
    with drill.load(), never_idle_in_transaction(drill):
        for _ in range(2):
            drill.wait_for_arrivals(100)
            ACCIDENTS[accident](drill)
        drill.wait_for_arrivals(100)
    drill.conclude()


def test_one_accident_after_the_other(drill: RelayDrill) -> None:
    with drill.load():
        for _ in range(8):
            drill.wait_for_arrivals(drill.random.choice([1, 20, 100]))
            drill.random.choice(list(ACCIDENTS.values()))(drill)
        drill.wait_for_arrivals(100)
    drill.conclude()


@contextmanager
def never_idle_in_transaction(drill: RelayDrill) -> Iterator[None]:
    """Looks again and again whether a session of a relay waits for it within a transaction."""
    seen: list[tuple] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            with suppress(psycopg.Error), drill.cluster.connect() as session:
                while not over.is_set():
                    seen.extend(session.execute(IDLE_IN_TRANSACTION).fetchall())

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()
    assert seen == []
