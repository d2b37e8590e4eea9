"""Operators' questions about a log of ten million events with a thousand held keys, in both editions.

One destination is fetched from. Each of a thousand keys has a dead letter that holds it.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from outbox_relay import sql_edition
from report import Figure, Goal
from workload import Bench

HELD_KEYS = 1000
MORE_DESTINATIONS = 200
CALLS = 7
PER = 1000


@dataclass(frozen=True)
class Question:
    label: str
    statement: str
    parameter: str = ""  # a query for it, which is not measured
    goal: Goal | None = None

    def ask(self, bench: Bench) -> list[float]:
        """Returns milliseconds of each call."""
        parameters = list(bench.sql.execute(self.parameter).fetchone()) if self.parameter else []
        times = []
        for _ in range(CALLS + 1):
            start = time.perf_counter()
            bench.sql.execute(self.statement, parameters).fetchall()
            times.append((time.perf_counter() - start) * 1000)
        return times


AT_ONCE = Goal(50, 10, less_is_better=True)
SCRAPED = Goal(20, 5, less_is_better=True)

STATUS = "SELECT * FROM outbox.event_status(%s)"
QUESTIONS = [
    Question(
        "event_status() of an event in the middle",
        STATUS,
        "SELECT event_id FROM outbox.event OFFSET (SELECT count(*) / 2 FROM outbox.event) LIMIT 1",
        AT_ONCE,
    ),
    Question(
        "event_status() of the last event",
        STATUS,
        "SELECT event_id FROM outbox.event ORDER BY xid DESC, position DESC LIMIT 1",
        AT_ONCE,
    ),
    Question(
        "event_status() of a dead letter",
        STATUS,
        "SELECT event_id FROM outbox.delivery WHERE state = 'DEAD' ORDER BY position DESC LIMIT 1",
        AT_ONCE,
    ),
    Question("health()", "SELECT * FROM outbox.health('0')", goal=AT_ONCE),
    Question("metrics()", "SELECT outbox.metrics()", goal=SCRAPED),
    Question("status", "SELECT * FROM outbox.status"),
    Question("blocked_key", "SELECT count(*) FROM outbox.blocked_key"),
    Question(
        "find_event() of an event in the middle",
        "SELECT * FROM outbox.find_event(%s)",
        "SELECT event_id FROM outbox.event OFFSET (SELECT count(*) / 2 FROM outbox.event) LIMIT 1",
    ),
]
MORE_QUESTIONS = [
    Question(f"health(), {MORE_DESTINATIONS} destinations more", "SELECT * FROM outbox.health('0')", goal=AT_ONCE),
    Question(f"metrics(), {MORE_DESTINATIONS} destinations more", "SELECT outbox.metrics()"),
]


FETCH = """
    SELECT DISTINCT ON (ordering_key) token, event_id FROM outbox.fetch('sink', 100, '1 hour') ORDER BY ordering_key, position
"""


def hold_keys(bench: Bench) -> None:
    """Refuses the first event of a thousand keys for good."""
    held = 0
    while held < HELD_KEYS:
        *refused, (token, _) = bench.sql.execute(FETCH).fetchall()
        for _, event in refused:
            bench.sql.execute("SELECT outbox.nack(%s, %s, 'refused', true)", [token, event])
        bench.sql.execute("SELECT outbox.ack(%s)", [token])
        (held,) = bench.sql.execute("SELECT count(*) FROM outbox.blocked_key").fetchone()


def answers(bench: Bench, events: int) -> dict[str, list[float]]:
    """Returns milliseconds of the calls of each question."""
    with ExitStack() as destinations:
        destinations.enter_context(bench.destination("pull:", on_dead_letter="block"))
        bench.fill(events, PER, size=64)
        hold_keys(bench)
        bench.sql.execute("ANALYZE")
        bench.sql.execute("CHECKPOINT")
        times = {question.label: bench.undisturbed(lambda: question.ask(bench)) for question in QUESTIONS}
        for number in range(MORE_DESTINATIONS):
            destinations.enter_context(bench.destination("pull:", called=f"more{number}", topics=f"other{number}.*"))
        bench.sql.execute("ANALYZE")  # as autovacuum does, which is off here
        times |= {question.label: bench.undisturbed(lambda: question.ask(bench)) for question in MORE_QUESTIONS}
    return times


def measure(bench: Bench) -> Figure:
    events = 1_000_000 if bench.quick else 10_000_000
    bench.sql.execute("ALTER SYSTEM SET outbox.segment_size = '1TB'")
    bench.sql.execute("SELECT pg_reload_conf()")
    bench.sql.execute("SET client_min_messages = error")  # of destinations whose topics have no events
    plain = sql_edition(bench)
    plain.sql.execute("SET client_min_messages = error")
    bench.touch_memory()

    figure = Figure("operators", f"Operators' questions, {events:,} events, {HELD_KEYS:,} held keys")
    first = []
    for edition, name in (bench, "extension"), (plain, "SQL edition"):
        times = answers(edition, events)
        for question in QUESTIONS + MORE_QUESTIONS:
            label = f"{question.label}, {name}"
            first.append(f"{label}: {times[question.label][0]:.1f}")
            figure.add(label, times[question.label][1:], "ms", question.goal)
            bench.say(f"{label}: {figure.rows[-1].value:.1f} ms")
        edition.sql.execute("TRUNCATE outbox.event")
    figure.notes = [f"{CALLS} calls each; the first one of a session, in ms: {'; '.join(first)}", bench.disturbances()]
    return figure
