"""Steps of a clock, of the server or of outbox-relay, by an hour and by a day, back and forth, with something that waits
in every state.

Nothing may wait for the length of a step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import SQL_EDITION, MakeCluster, make_directory
from database import Database, create_database, end_relay, running_relays
from receiver import Exchange, Receiver, answer, everything
from test_inbox_trouble import RECEIVE, Consumer
from waiting import wait_until

HOUR, DAY = 3600, 86400
RETRIES = {"retry_base": "1s", "retry_max": "1s", "max_attempts": "100000"}
HANDLER = """
    CREATE TABLE fails ();
    CREATE FUNCTION public.handle_when_allowed(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF to_regclass('public.fails') IS NOT NULL THEN RAISE 'not yet'; END IF;
        PERFORM public.handle(event);
    END $$
"""
NOW = "SELECT clock_timestamp()"
WAITING = "SELECT count(*) FROM inbox.waiting AS w JOIN inbox.consumer AS c ON c.id = w.consumer_id WHERE c.name = %s"


class Clock:
    """The time of day of processes; see clock_shift.cpp."""

    def __init__(self, programs: Path) -> None:
        self.file = make_directory("clock") / "shift"
        self.step_to(0)
        self.file.chmod(0o644)
        self.environment = {"LD_PRELOAD": str(programs / "clock_shift.so"), "OUTBOX_CLOCK_SHIFT": str(self.file)}

    def step_to(self, seconds: int) -> None:
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


class Producer:
    """A database with a destination for each state, and an event in that state."""

    def __init__(self, database: Database, receiver: Receiver, **options: str) -> None:
        self.database = database
        self.receiver = receiver
        self.options = {**RETRIES, **options}
        self.works = False
        receiver.on(everything, self.behave)
        for name in ("refused", "throttled", "healthy", "ended"):
            self.add(name, receiver.url(f"/{name}"))
        for name in ("leased", "nacked"):
            database.add_destination(name, "pull:", topics=f"{name}.*", **RETRIES)
        self.events = {name: self.enqueue(name) for name in ("refused", "throttled", "leased", "nacked")}
        wait_until(lambda: self.state("refused"), lambda seen: seen == "RETRY", what="the event to be refused")
        wait_until(
            lambda: [r for r in receiver.requests if r.target == "/throttled"],
            what="a request that is to be repeated later",
        )
        (leased,), (nacked,) = self.fetch("leased"), self.fetch("nacked")
        assert (leased[1], nacked[1]) == (self.events["leased"], self.events["nacked"])
        database.execute("SELECT outbox.nack(%s, %s, 'no')", nacked)
        database.execute("SELECT outbox.ack(%s)", (nacked[0],))

    async def behave(self, exchange: Exchange) -> None:
        if self.works or exchange.request.target in ("/healthy", "/ended"):
            await answer()(exchange)
        elif exchange.request.target == "/refused":
            await answer(400)(exchange)
        else:
            await answer(503, [("Retry-After", "1")])(exchange)

    def add(self, name: str, url: str) -> None:
        self.database.add_destination(name, url, topics=f"{name}.*", **self.options)

    def enqueue(self, name: str) -> str:
        (event,) = self.database.enqueue(name, topic=f"{name}.event")
        return event

    def state(self, name: str) -> str | None:
        return self.database.value("SELECT state FROM outbox.delivery WHERE event_id = %s", (self.events[name],))

    def fetch(self, name: str) -> list[tuple]:
        return wait_until(
            lambda: self.database.execute("SELECT token, event_id::text FROM outbox.fetch(%s, 10, '2 s')", (name,)),
            what=f"something to fetch from {name}",
        )  # fmt: skip

    def arrives(self, name: str, event: str) -> None:
        wait_until(
            lambda: {e.id for e in self.receiver.events() if e.request.status == 204},
            lambda ids: event in ids, what=f"the event to arrive at {name}",
        )  # fmt: skip

    def conclude(self) -> None:
        self.works = True
        for name in ("refused", "throttled"):
            self.arrives(name, self.events[name])
        for name in ("leased", "nacked"):
            ((token, event),) = self.fetch(name)
            assert event == self.events[name]
            self.database.execute("SELECT outbox.ack(%s)", (token,))
        self.arrives("ended", self.enqueue("ended"))
        self.add("fresh", self.receiver.url("/fresh"))
        self.arrives("fresh", self.enqueue("fresh"))
        self.segments_move_on()
        wait_until(self.database.health, lambda findings: findings == [], what="no findings")

    def segments_move_on(self) -> None:
        current = "SELECT number FROM outbox.ring WHERE current"
        for _ in range(5):  # of four segments
            before = self.database.value(current)
            self.arrives("healthy", self.enqueue("healthy"))
            wait_until(lambda: self.database.value(current), lambda now, b=before: now != b, what="the next segment")


class Receiving:
    """A database with a message that failed and one that is claimed."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        consumer.create_extension()
        consumer.execute(HANDLER)
        consumer.execute("SELECT inbox.subscribe('c', '*', 'handle_when_allowed')")
        consumer.execute("SELECT inbox.create_consumer('outside')")
        for name in ("c", "outside"):
            consumer.execute(
                "SELECT inbox.set_policy(%s, retry_base => '1 s', retry_max => '1 s', max_attempts => 100000)", (name,)
            )
        self.ids = consumer.send("a")
        wait_until(lambda: consumer.value(WAITING, ("c",)), what="the message to fail")
        self.claimed = ["00000001-0000-7000-8000-000000000001"]
        consumer.execute(RECEIVE, ("outside", self.claimed, [1], ["a"], ["a"], self.claimed))
        assert self.claim() == self.claimed

    def claim(self) -> list[str]:
        return [str(row[0]) for row in self.consumer.execute("SELECT event_id FROM inbox.claim('outside', 10, '2 s')")]

    def conclude(self) -> None:
        self.consumer.execute("DROP TABLE fails")
        self.consumer.wait_applied(self.ids)
        assert wait_until(self.claim, what="the lease to end") == self.claimed


steps = pytest.mark.parametrize(
    "step", [-HOUR, -DAY, HOUR, DAY], ids=["hour-back", "day-back", "hour-forth", "day-forth"]
)


@pytest.mark.worker
@steps
def test_nothing_waits_for_the_length_of_a_step(
    make_cluster: MakeCluster, receiver: Receiver, http: None, step: int
) -> None:
    cluster = make_cluster({"outbox.segment_age": "1s"}, started=False)
    clock = Clock(cluster.installation.programs)
    cluster.environment = clock.environment
    cluster.start()
    database = create_database(cluster)
    producer = Producer(database, receiver)
    receiving = Receiving(Consumer(cluster, create_database(cluster, "receiving", extension=False).name))
    before = producer.enqueue("healthy")
    # The relay waits to be started again when the clock takes its step.
    ended = database.wait_for_worker("relay", "ended")
    database.execute("SELECT pg_terminate_backend(%s)", (ended,))

    known = database.value(NOW)
    clock.step_to(step)
    assert (database.value(NOW) < known) == (step < 0), "the clock of the server did not take the step"
    assert producer.enqueue("healthy") > before, "ids of a session go back"
    producer.conclude()
    receiving.conclude()
    other = create_database(cluster, "other")
    assert other.wait_for_worker("keeper")


@steps
def test_a_step_of_the_clock_of_outbox_relay_is_waited_for_by_nothing(
    make_cluster: MakeCluster, receiver: Receiver, http: None, step: int
) -> None:
    cluster = make_cluster({"outbox.segment_age": "1s"})
    clock = Clock(cluster.installation.programs)
    database = create_database(cluster)
    database.run_relay(clock.environment)
    try:
        producer = Producer(database, receiver, **({} if SQL_EDITION else {"relay": "external"}))
        before = producer.enqueue("healthy")
        producer.arrives("healthy", before)
        assert "clock_shift.so" in Path(f"/proc/{running_relays(cluster)[database.name].pid}/maps").read_text()
        clock.step_to(step)
        producer.conclude()
    finally:
        end_relay(cluster, database.name)
