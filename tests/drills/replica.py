"""Common parts of the consumer's drills: a producer under load, a replica of its table elsewhere, and between
them a route (routes.py) and consumers that are processes of their own (tests/programs/consume.cpp).

The records are those of the writers (writing.py), the table `ledger` of the producer's database, and the table
`applied` that the handler appends to in the transaction of its event. In the end

    every event that was committed is there once, and no other
    the events of a key came in the order of their versions, if the route keeps that
    the replica is the producer's table
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

import psycopg

from client.consumer import Consumer, Target
from cluster import Cluster, Installation
from database import create_database
from ledger import Entry, Verdict, check, read_ledger
from sinks.servers import Server
from waiting import wait_until

from .routes import Route
from .writing import Writing

# An event in `trouble` takes this long, or fails; without a version all events of the key do.
REPLICA = """
    CREATE TABLE replica (aggregate text PRIMARY KEY, version bigint NOT NULL, writer integer);
    CREATE TABLE trouble (key text, version bigint, seconds float NOT NULL DEFAULT 0, fails boolean NOT NULL);
    CREATE OR REPLACE FUNCTION handle(event_id uuid, key text, type text, version bigint, payload text)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        t   trouble;
        row jsonb := payload::jsonb || jsonb_build_object('aggregate', key, 'version', version);
    BEGIN
        FOR t IN SELECT * FROM trouble AS x WHERE x.key = $2 AND coalesce(x.version = $4, true) LOOP
            PERFORM pg_sleep(t.seconds);
            IF t.fails THEN
                RAISE EXCEPTION 'version % of % is poison', version, key;
            END IF;
        END LOOP;
        INSERT INTO applied (event_id, key, type, version) VALUES ($1, $2, $3, $4);
        IF type = 'removed' THEN
            PERFORM inbox.remove('replica', '{aggregate}', 'version', row);
        ELSE
            PERFORM inbox.apply('replica', '{aggregate}', 'version', row);
        END IF;
    END $$;
"""

OPTIONS = {"connections": 4, "retry_base": 10, "retry_max": 200, "housekeeping_interval": 200}


class ReplicaDrill(Writing):
    def __init__(
        self, installation: Installation, producer: Cluster, consumer: Cluster, route: type[Route],
        server: Server | None, name: str,
    ) -> None:  # fmt: skip
        super().__init__(producer, name)
        self.installation = installation
        self.replica = consumer
        self.target = Target(consumer, create_database(consumer, "replica", extension=False).name)
        self.target.create_extension()
        self.target.execute(REPLICA)
        self.target.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {self.target.role}")
        self.route = route(self.database, server)
        self.consumers: list[Consumer] = []
        self.totals: Counter[str] = Counter()  # of consumers that ended normally
        self.kills: Counter[str] = Counter()
        self.removed: set[str] = set()  # keys whose last event was a removal

    def close(self) -> None:
        super().close()
        for consumer in self.consumers:
            consumer.kill()
        self.route.close()

    # ---- consumers ------------------------------------------------------------------------------

    def consume(self, **options: object) -> Consumer:
        consumer = Consumer(
            self.installation, self.target.conninfo,
            {**OPTIONS, **self.route.consumer_options(), "instance": len(self.consumers), **options},
        )  # fmt: skip
        self.consumers.append(consumer)
        return consumer

    def kill(self, consumer: Consumer) -> None:
        self.kills["consumer"] += 1
        consumer.kill()

    def wait_dead(self, consumer: Consumer) -> None:
        """It kills itself."""
        self.wait(consumer.process.poll, lambda status: status is not None, "a consumer to die")
        assert consumer.process.returncode == -signal.SIGKILL, self.describe_consumers()
        self.kills["consumer"] += 1

    # ---- trouble --------------------------------------------------------------------------------

    def slow_down(self, seconds: float, key: str, version: int | None = None) -> None:
        self.target.execute("INSERT INTO trouble VALUES (%s, %s, %s, false)", (key, version, seconds))

    def poison(self, key: str, version: int) -> None:
        self.target.execute("INSERT INTO trouble VALUES (%s, %s, 0, true)", (key, version))

    def cure(self) -> None:
        self.target.execute("DELETE FROM trouble")

    # ---- waiting --------------------------------------------------------------------------------

    def wait_applied(self, more: int) -> None:
        """Waits until this number of further events is applied."""
        count = "SELECT count(*) FROM applied"
        goal = self.target.value(count) + more
        self.wait(lambda: self.target.value(count), lambda n: n >= goal, f"{more} more events to be applied")

    def wait_committed(self, more: int) -> None:
        """Waits until writers have committed this number of further events."""
        count = "SELECT count(*) FROM ledger"
        goal = self.database.value(count) + more
        self.wait(lambda: self.database.value(count), lambda n: n >= goal, f"{more} more events")

    def wait_all_applied(self, others: Collection[str] = ()) -> None:
        """Waits for all events of the ledger, and the others."""
        expected = {entry.event_id for entry in self.ledger()} | set(others)
        self.wait(
            lambda: len(expected - set(self.target.applied())), lambda missing: missing == 0,
            "all events to be applied",
        )  # fmt: skip

    def wait(self, fetch: Callable[[], object], predicate: Callable[..., object], what: str) -> None:
        try:
            wait_until(fetch, predicate, timeout=180, what=what, ignoring=(psycopg.OperationalError,))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe_consumers()}") from None

    def describe_consumers(self) -> str:
        lines = []
        for number, consumer in enumerate(self.consumers):
            lines.append(f"consumer {number}, status {consumer.process.poll()}:")
            with suppress(AssertionError, OSError):
                lines.append(str(consumer.state()))
            lines += consumer.log().splitlines()[-20:]
        return "\n".join(lines)

    # ---- the end --------------------------------------------------------------------------------

    def conclude(self, *, apart: Collection[str] = (), others: Collection[str] = ()) -> Verdict:
        """Waits until everything is applied and acknowledged, and compares the records.

        `apart`: events that were given up first, so that they came after later ones of their key
        there already. `others`: events that are in no ledger.
        """
        with suppress(AssertionError):  # the verdict gives a better message
            self.wait_all_applied(others)
        ledger = self.ledger()
        try:
            self.route.wait_settled({entry.event_id for entry in ledger} | set(others))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe_consumers()}") from None
        self.stop_consumers()
        applied = self.target.applied()
        aside = {*apart, *others}
        verdict = check(leaving_out(ledger, aside), [id for id in applied if id not in aside])
        self.report(verdict)
        if not self.route.keeps_order:
            verdict.out_of_order.clear()
            verdict.steps_back.clear()
        verdict.hold()
        counted = Counter(id for id in applied if id in aside)
        assert counted == Counter(aside), "each of these is applied once"
        self.check_ledger(ledger, self.noted_as("rolled back"), acknowledged_lasts=True)
        self.check_replica()
        return verdict

    def ledger(self) -> list[Entry]:
        return read_ledger(self.database.connection)

    def event_id(self, key: str, version: int) -> str:
        return next(e.event_id for e in self.ledger() if (e.key, e.version) == (key, version))

    def stop_consumers(self) -> None:
        for consumer in self.consumers:
            if consumer.process.poll() is None:
                state = consumer.stop()
                self.totals.update({n: v for n, v in state.items() if isinstance(v, int)})
        assert self.totals["outstanding_messages"] == 0, self.totals

    def check_replica(self) -> None:
        there = dict(self.target.execute("SELECT aggregate, (version, writer)::text FROM replica"))
        here = dict(
            self.database.execute(
                "SELECT a.id::text, (a.version, l.writer)::text FROM aggregate AS a "
                "JOIN ledger AS l ON (l.aggregate, l.version) = (a.id, a.version) "
                "WHERE a.id::text <> ALL (%s)",
                (list(self.removed),),
            )
        )
        assert there == here, "the replica is not the table"

    def report(self, verdict: Verdict) -> None:
        kills = ", ".join(f"{n} {what}" for what, n in sorted(self.kills.items())) or "none"
        line = f"{self.name} [seed {self.seed}]: {verdict}, duplicates {self.totals['duplicates']}; kills: {kills}"
        self.reports.append(line)
        print(line, flush=True)


def leaving_out(ledger: list[Entry], ids: set[str]) -> list[Entry]:
    """Returns the other events, with versions as if these had never existed."""
    keys: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(ledger, key=lambda entry: entry.version):
        if entry.event_id not in ids:
            keys[entry.key].append(entry)
    return [replace(entry, version=version) for entries in keys.values() for version, entry in enumerate(entries, 1)]


# The fixture `make_replica_drill`: () -> ReplicaDrill
MakeReplicaDrill = Callable[[], ReplicaDrill]
