"""Statements of outbox-relay in a minute in a database without events.

The minute begins when the last event is delivered and saved. One process serves a database with the
extension and one with the SQL edition.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from outbox_relay import OutboxRelay, native_edition, sql_edition
from report import Figure, Goal
from workload import Bench, payload, wait_until

PRELOAD = ["pg_stat_statements"]
SETTINGS = {
    "pg_stat_statements.track": "top",
}


def statements(observer: psycopg.Connection, database: str) -> dict[str, int]:
    rows = observer.execute(
        "SELECT s.query, s.calls FROM pg_stat_statements AS s "
        "JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = %s",
        [database],
    )
    return {query: int(calls) for query, calls in rows}


def wake_ups(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def is_delivered(bench: Bench) -> bool:
    return (
        bench.sql.execute(
            "SELECT FROM outbox.cursor WHERE position >= (SELECT last_value FROM outbox.event_position)"
        ).rowcount
        == 1
    )


def measure(bench: Bench) -> Figure:
    seconds = 20 if bench.quick else 60
    editions = {"extension": native_edition(bench), "SQL edition": sql_edition(bench)}
    with bench.cluster.connect("postgres") as observer, ExitStack() as stack:
        observer.execute("CREATE EXTENSION pg_stat_statements")
        for edition in editions.values():
            stack.enter_context(edition.destination("null:"))
        with OutboxRelay(*editions.values()) as relay:
            for edition in editions.values():
                edition.sql.execute("SELECT outbox.enqueue('account', 'a1', 'AccountChanged', %s::jsonb)", [payload()])
                wait_until(lambda: is_delivered(edition), 30, "the event is delivered")
            time.sleep(5)
            before = {name: statements(observer, edition.database) for name, edition in editions.items()}
            woken = wake_ups(relay.pid)
            time.sleep(seconds)
            after = {name: statements(observer, edition.database) for name, edition in editions.items()}
            woken = wake_ups(relay.pid) - woken

    figure = Figure("relay_idle", f"An idle database and outbox-relay, {seconds} s, counted for a minute")
    details = {}
    for name in editions:
        calls = {query: count - before[name].get(query, 0) for query, count in after[name].items()}
        details[name] = {query: count for query, count in calls.items() if count}
        figure.add(
            f"statements, {name}", sum(calls.values()) * 60 / seconds, "a minute", Goal(30, 15, less_is_better=True)
        )
    figure.add("wake-ups of the program, both databases", woken * 60 / seconds, "a minute")
    figure.details = details
    return figure
