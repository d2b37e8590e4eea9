"""Replicas of outbox-relay that die, hang, or lose their database, under load. Destinations go on with
another one: nothing is lost, nothing is out of order, and repeats stay within their limit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database
from long_run import all_in_long_run
from outbox_relay import OutboxRelay, Wire
from pooler import PROGRAM as PGBOUNCER
from pooler import Pooler
from waiting import wait_until

from .drill import SETTINGS, Drill
from .plain import OF_SERVER, make_plain_database

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


# Each of these functions begins with a call of trouble.strike(), which may raise an error, or end the session.
MAY_FAIL = ("beat", "take", "begin", "look", "probe", "entries", "rows", "save", "record", "retries", "follow")
STRIKE = """
    CREATE SCHEMA trouble;
    CREATE SEQUENCE trouble.errors;
    CREATE SEQUENCE trouble.ends;
    GRANT USAGE ON SCHEMA trouble TO public;
    CREATE FUNCTION trouble.strike() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
    DECLARE
        states CONSTANT text[] := '{40001, 40P01, 57014, 53200, 55P03}';
        dice   CONSTANT double precision := pg_catalog.random();
    BEGIN
        IF dice < 0.02 THEN
            PERFORM pg_catalog.nextval('trouble.errors');
            RAISE EXCEPTION 'struck' USING ERRCODE = states[1 + pg_catalog.floor(dice * 250)::integer];
        ELSIF dice < 0.026 THEN
            PERFORM pg_catalog.nextval('trouble.ends');
            PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid());
        END IF;
    END $$;
"""


class RelayDrill(Drill):
    def add_destination(self, name: str, url: str, **options: str) -> None:
        self.database.add_destination(name, url, relay="external", **options)

    def start_relays(self, options_of_suffering: dict[str, str]) -> None:
        self.add_destination("suffering", self.suffering.url(), **options_of_suffering)
        self.add_destination("calm", self.calm.url())
        self.wires = {name: self.make_wire() for name in ("one", "two")}
        self.relays = {
            name: OutboxRelay(self.cluster, self.database.name, name=name, wire=wire, options=OPTIONS).start()
            for name, wire in self.wires.items()
        }
        for destination in ("suffering", "calm"):
            self.served(destination)

    def make_wire(self) -> Wire:
        return Wire(self.cluster.port)

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

    # ---- accidents ------------------------------------------------------------------------------

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
        """Stops the relay for longer than its lease, so that another one takes its destinations."""
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
        """True if the database has a valid lease of this relay."""
        return self.database.value(
            "SELECT EXISTS (SELECT FROM outbox.relay WHERE name = %s AND leased_until > clock_timestamp())",
            (relay.name,),
        )

    def kill_server(self) -> None:
        self.kill_postmaster()
        self.served("suffering")
        self.served("calm")

    def kill_sessions(self) -> None:
        """Ends the sessions of both relays while they serve. Each starts over with a new lease."""
        before = {destination: self.lease(destination) for destination in ("suffering", "calm")}
        with self.noted("relay"):
            self.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'outbox-relay%%' AND datname = current_database()"
            )
            for destination, lease in before.items():
                wait_until(lambda: self.lease(destination), lambda seen: seen != lease, what="another lease")

    def let_statements_fail(self) -> None:
        self.database.execute(STRIKE)
        for name in MAY_FAIL:
            text = self.database.value(
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (f"relay_{name}",)
            )
            changed, times = re.subn(
                r"^BEGIN$", "BEGIN\n    PERFORM trouble.strike();", text, count=1, flags=re.MULTILINE
            )
            assert times == 1, text
            self.database.execute(changed)

    def strikes(self) -> tuple[int, int]:
        """Errors, and ends of sessions."""
        return self.database.execute("SELECT e.last_value, s.last_value FROM trouble.errors AS e, trouble.ends AS s")[0]

    def end_strikes(self) -> None:
        self.database.execute("CREATE OR REPLACE FUNCTION trouble.strike() RETURNS void LANGUAGE sql AS ''")

    def lease(self, destination: str) -> int:
        return self.database.value("SELECT lease FROM outbox.cursor WHERE destination = %s", (destination,))


class SqlEditionDrill(RelayDrill):
    def make_database(self, cluster: Cluster) -> Database:
        return make_plain_database(cluster)

    def add_destination(self, name: str, url: str, **options: str) -> None:
        self.database.add_destination(name, url, **options)


class PooledDrill(RelayDrill):
    """Between the relays and the server is a PgBouncer, which gives its sessions to transactions."""

    def make_wire(self) -> Wire:
        if not hasattr(self, "pooler"):
            self.pooler = Pooler(self.cluster)
        return Wire(self.pooler.port)

    def close(self) -> None:
        super().close()
        self.pooler.close()


@pytest.fixture(params=all_in_long_run(["native", "sql"], short=["sql"]))
def drill(make_cluster: MakeCluster, http: None, request: pytest.FixtureRequest) -> Iterator[RelayDrill]:
    made: RelayDrill
    if request.param == "native":
        made = RelayDrill(make_cluster(SETTINGS), request.node.name)
    else:
        made = SqlEditionDrill(make_cluster({**SETTINGS, **OF_SERVER}), request.node.name)
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


@pytest.mark.parametrize("accident", all_in_long_run(ACCIDENTS, short=["kill_relay", "kill_server", "cut_wire"]))
def test_an_accident_loses_nothing(drill: RelayDrill, accident: str) -> None:
    with drill.load(), never_idle_in_transaction(drill):
        drill.wait_for_arrivals(100)
        ACCIDENTS[accident](drill)
        drill.wait_for_arrivals(100)
    drill.conclude()


@pytest.mark.long
def test_several_accidents_lose_nothing(drill: RelayDrill) -> None:
    with drill.load():
        for _ in range(8):
            drill.wait_for_arrivals(drill.random.choice([1, 20, 100]))
            drill.random.choice(list(ACCIDENTS.values()))(drill)
        drill.wait_for_arrivals(100)
    drill.conclude()


def test_failed_statements_are_repeated_without_a_new_start(drill: RelayDrill) -> None:
    """One statement in fifty fails for a transient reason. It had no effect and is repeated. A relay starts over, and
    sends events again, only after the end of a session."""
    drill.let_statements_fail()
    starts = sum(relay.text().count("serves the destination") for relay in drill.relays.values())
    with drill.load():
        wait_until(
            drill.strikes,
            lambda seen: seen[0] >= 20 and seen[1] >= 3,
            timeout=120,
            what="20 errors, and 3 ended sessions",
        )
        drill.wait_for_arrivals(100)
    drill.end_strikes()
    ends = drill.strikes()[1]
    drill.conclude(repeats=True, of_calm=True)
    texts = [relay.text() for relay in drill.relays.values()]
    started = sum(text.count("serves the destination") for text in texts) - starts
    # An end of a control session concerns both destinations, which may also change hands.
    assert started <= 4 * ends + 4, f"{started} starts after {ends} sessions ended"
    assert any("struck" in text for text in texts), "the log tells what the server said"
    lines = sum("struck" in line for text in texts for line in text.splitlines())
    assert lines < 40, "the log is flooded"


@pytest.mark.long
@pytest.mark.parametrize("accident", ["kill_relay", "end_relay", "freeze_relay", "cut_wire"])
def test_an_accident_behind_a_pooler_loses_nothing(make_cluster: MakeCluster, http: None, accident: str) -> None:
    if PGBOUNCER is None:
        pytest.skip("NOT TESTED: pgbouncer is not installed")
    drill = PooledDrill(make_cluster(SETTINGS), f"pooled {accident}")
    try:
        assert drill.database.value("SELECT bool_or(direct) FROM outbox.relay") is False
        with drill.load():
            drill.wait_for_arrivals(100)
            ACCIDENTS[accident](drill)
            drill.wait_for_arrivals(100)
        drill.conclude()
    finally:
        drill.close()


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
