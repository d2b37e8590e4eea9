"""Figures that roles report about themselves: a wrong one is refused, or harms nobody else."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import errors

from cluster import SQL_EDITION
from database import Database

from .attacker import Attacker, NewAttacker, NewRole

TIMES = [
    "-infinity", "infinity", "4713-01-01 00:00:00+00 BC", "0044-03-15 00:00:00+00 BC", "294276-12-31 23:59:59+00",
    "1970-01-01 00:00:00+00", "now", None,
]  # fmt: skip
COUNTS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53, None]
REALS = [0, 1e308, -1e308, "NaN", "Infinity", "-Infinity", None]
SPANS = ["0", "1 second", "-1 second", "178000000 years", "-178000000 years", None]
STATES = ["idle", "delivering", "throttled", "backing off", "misconfigured", "stopped", "", "x", "pull", None]
VALUES: dict[str, list[Any]] = {
    "state": STATES,
    **dict.fromkeys(
        ("state_since", "oldest_unsettled", "last_error_at", "failing_since", "next_attempt_at"), TIMES
    ),
    **dict.fromkeys(
        ("delivered", "failures", "unsettled", "held_keys", "settled_position", "throttled", "suspects", "lanes_down",
         "client_queue", "connects", "disconnects"), COUNTS,
    ),
    **dict.fromkeys(("latency_p50", "latency_p99", "round_trip_p50", "round_trip_p99"), SPANS),
    **dict.fromkeys(("request_limit", "latency_sum"), REALS),
    "read_to": ["0", "3", "18446744073709551615", None],
    "latency_buckets": [[], [1], [0] * 17, [2**63 - 1] * 17, [-1] * 17, [3, 2, 1] * 5 + [0, 0], [[1, 2], [3, 4]], None],
    "last_error": ["", "x", "\x1b[31m", "x" * 20_000, None],
}  # fmt: skip
REPORT = "SELECT outbox_internal.relay_report(%s, %s)"


def views(database: Database, schema: str) -> list[str]:
    """Views and functions without arguments that show the state of destinations or consumers to roles."""
    return [
        f"SELECT * FROM {name}"
        for (name,) in database.execute(
            "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace "
            "WHERE nspname IN (%s, %s) AND relkind = 'v'", (schema, f"{schema}_internal"),
        )
        if name != "outbox.cluster_status"  # which needs Citus
    ] + [f"SELECT * FROM {schema}.health()", f"SELECT {schema}.metrics()"]  # fmt: skip


def read_all(database: Database, statements: list[str], context: object) -> None:
    for statement in statements:
        try:
            database.execute(statement)
        except psycopg.Error as error:
            pytest.fail(f"{statement}: {error}\n{context}")


class Relay:
    """The role of an outbox-relay, which has taken the destination `d`."""

    def __init__(self, database: Database, role: str) -> None:
        database.execute(f"SELECT outbox.grant_relay('{role}')")
        self.id = uuid.uuid4()
        self.session = database.cluster.connect(database.name, role)
        self.beat()
        self.number = database.value("SELECT number FROM outbox.cursor WHERE destination = 'd'")
        taken = self.session.execute(
            "SELECT lease FROM outbox_internal.relay_take(%s, %s, true)", (self.id, self.number)
        ).fetchone()
        assert taken and taken[0] is not None
        self.lease = taken[0]

    def beat(self, lease: str = "1 hour") -> None:
        self.session.execute(
            "SELECT * FROM outbox_internal.relay_beat(%s, 'r', '1', %s, true, '{}', '{}', '{}', '{}', false)",
            (self.id, lease),
        )

    def report(self, **figures: object) -> None:
        """Raises an error if the report is refused."""
        row = {"number": self.number, "state": "idle", "state_since": "now", **figures}
        self.session.execute(REPORT, (self.id, json.dumps([row])))


@pytest.fixture
def watched(database: Database) -> Database:
    """With a destination for a relay outside, which no process serves, and an event that waits for it."""
    if SQL_EDITION:
        database.execute("INSERT INTO outbox.destination_config VALUES ('d', '{\"url\": \"null:\"}')")
    else:
        database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', relay 'external')")
    database.enqueue()
    return database


@pytest.fixture
def relay(watched: Database, new_role: NewRole) -> Relay:
    return Relay(watched, new_role())


def test_rows_of_relays_are_limited(watched: Database, relay: Relay) -> None:
    """Ids are random. Those whose lease has ended give way."""
    rows = "INSERT INTO outbox.relay SELECT gen_random_uuid(), 'r', '1', true, now(), clock_timestamp() + %s FROM generate_series(1, 1000)"
    watched.execute(rows, ("1 hour",))
    relay.beat()
    known, relay.id = relay.id, uuid.uuid4()
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="too many processes of outbox-relay"):
        relay.beat()
    watched.execute("UPDATE outbox.relay SET leased_until = now() - interval '1 minute' WHERE id <> %s", (known,))
    relay.beat()
    assert watched.value("SELECT count(*) FROM outbox.relay") == 2


def test_no_report_of_a_relay_makes_a_view_fail(watched: Database, relay: Relay) -> None:
    chance = random.Random(11)
    statements = views(watched, "outbox")
    accepted = 0
    for _ in range(1500):
        # Few values that are wrong, so that others are not hidden behind the first one.
        names = chance.sample(sorted(VALUES), chance.choice((1, 1, 2, 3, len(VALUES))))
        figures = {name: chance.choice(VALUES[name]) for name in names}
        try:
            relay.report(**figures)
            accepted += 1
            read_all(watched, ["SELECT * FROM outbox.status"] if accepted % 20 else statements, figures)
        except errors.DataError as error:
            assert error.sqlstate in ("22023", "22003", "22008", "22007", "22P02"), (error, figures)
    assert accepted > 300
    read_all(watched, statements, "the last report")


@pytest.mark.parametrize(
    "column, value",
    [
        ("state", "x"), ("state", None), ("state_since", "-infinity"), ("state_since", None),
        ("oldest_unsettled", "0044-03-15 00:00:00+00 BC"), ("failing_since", "infinity"), ("delivered", -1),
        ("held_keys", 2**63 - 1), ("latency_p50", "-1 second"), ("latency_sum", "NaN"), ("latency_buckets", [1]),
        ("request_limit", "Infinity"), ("last_error", "x" * 20_000), ("number", None),
    ],
)  # fmt: skip
def test_a_figure_out_of_range_refuses_the_report(watched: Database, relay: Relay, column: str, value: object) -> None:
    relay.report(state="delivering", delivered=7)
    with pytest.raises(errors.InvalidParameterValue, match="invalid report of a relay") as error:
        relay.report(**{column: value})
    assert f'"{column}"' in (error.value.diag.message_detail or "")
    assert watched.execute("SELECT state, published FROM outbox.status") == [("delivering", 7)]


def test_views_survive_infinite_times_in_the_table(watched: Database, relay: Relay) -> None:
    relay.report()
    watched.execute(
        "UPDATE outbox.relay_status SET state_since = '-infinity', oldest_unsettled = '-infinity', "
        "last_error_at = 'infinity', failing_since = 'infinity', next_attempt_at = '-infinity'"
    )
    for state in ("idle", "delivering", "backing off", "misconfigured", "stopped"):
        watched.execute("UPDATE outbox.relay_status SET state = %s", (state,))
        read_all(watched, views(watched, "outbox"), state)


def test_a_relay_removes_no_figures_of_another(watched: Database, relay: Relay) -> None:
    relay.report(delivered=7)
    other = [{"number": relay.number, "state": "idle", "state_since": "now"}]
    relay.session.execute(REPORT, (uuid.uuid4(), json.dumps(other)))
    assert watched.value("SELECT delivered FROM outbox.relay_status") == 7


def test_a_lease_of_a_relay_is_bounded(watched: Database, relay: Relay) -> None:
    for lease in ("100000 years", "-1 second", "0"):
        with pytest.raises(errors.InvalidParameterValue, match="lease must be"):
            relay.beat(lease)
    assert watched.value("SELECT max(leased_until) < now() + interval '1 day' FROM outbox.relay")


def test_no_cursor_or_receipt_of_a_relay_makes_a_view_fail(watched: Database, relay: Relay) -> None:
    save = (
        "SELECT outbox_internal.relay_save(%(number)s, %(lease)s, '1:1:', NULL, %(count)s, false, ARRAY[gen_random_uuid()], "
        "ARRAY[%(count)s], ARRAY[%(time)s::float8], ARRAY['x'], '{}', '{}', %(count)s, %(count)s, %(micros)s)"
    )
    for count in (2**63 - 1, -(2**63), 0):
        for time in ("Infinity", "-Infinity", "NaN", "1e300", "0"):
            values = {
                "number": relay.number,
                "lease": relay.lease,
                "count": count,
                "time": time,
                "micros": max(count, 0),
            }
            relay.session.execute(save, values)
            read_all(watched, views(watched, "outbox"), values)
    assert watched.value("SELECT bool_and(isfinite(published_at)) FROM outbox.receipt")


# -------------------------------------------------------------------------------------------------
# Consumers
# -------------------------------------------------------------------------------------------------

PROGRESS = "SELECT inbox.report_progress(%s, %s, %s, latency_buckets => %s, latency_sum => %s)"


@pytest.fixture
def consumer(database: Database, new_attacker: NewAttacker) -> Attacker:
    database.execute("CREATE EXTENSION pg_inbox")
    return new_attacker("inbox.grant_consume")


def test_no_report_of_a_consumer_makes_a_view_fail(database: Database, consumer: Attacker) -> None:
    with consumer.connect() as session:
        for instance in ("a", "b", "a"):
            session.execute(PROGRESS, ("c", instance, 2**63 - 1, [2**63 - 1] * 17, 1e30))
        for number in (1e308, "Infinity", "NaN", -1):
            with pytest.raises(errors.InvalidParameterValue):
                session.execute(PROGRESS, ("c", "a", 1, [1] * 17, number))
    read_all(database, views(database, "inbox"), "reports")
    # An hour later they are added to what ended before.
    database.execute(
        "UPDATE inbox.instance SET seen_at = now() - interval '3 hours', expected_by = now() - interval '2 hours'"
    )
    database.execute("SELECT inbox_internal.collect_figures()")
    database.execute("SELECT inbox_internal.collect_figures()")
    read_all(database, views(database, "inbox"), "collected")
    assert database.value("SELECT processed FROM inbox.status") == 2**63 - 1


THAI = "\u0e44\u0e17\u0e22"


def test_no_text_of_a_consumer_makes_a_view_fail(database: Database, consumer: Attacker) -> None:
    """In a session whose encoding has no form for it, or by its size."""
    consumer.execute("SELECT inbox.report_gap('c', %s, %s, 1, incarnation => %s)", (THAI, THAI, THAI))
    consumer.execute(
        "SELECT inbox.save_offset('c', %s, %s, now() - interval '1 day', %s, %s)", (THAI, THAI, THAI, THAI)
    )
    consumer.execute("SELECT inbox.report_progress('c', %s, 5)", (THAI,))
    consumer.execute("SELECT inbox.report_gap('c', %s, 'w', 1, incarnation => %s)", ("s" * 200_000, "i" * 200_000))
    database.execute("SET client_encoding = 'LATIN1'")
    read_all(database, views(database, "inbox"), "texts in Thai")
    sizes = [
        len(str(row))
        for view in ("inbox.health()", "inbox.gaps")
        for row in database.execute(f"SELECT why FROM {view}")
    ]
    assert len(sizes) >= 4 and max(sizes) < 20_000
    assert database.value("SELECT max(length(incarnation)) FROM inbox.gaps") == 1000


def test_no_name_of_a_table_or_destination_makes_health_fail(database: Database, new_attacker: NewAttacker) -> None:
    capturer = new_attacker("outbox.grant_capture", "outbox.grant_produce")
    capturer.execute(f"CREATE TABLE {THAI} (id int PRIMARY KEY)")
    capturer.execute(f"SELECT outbox.capture('{THAI}')")
    capturer.execute(f"ALTER TABLE {THAI} DROP CONSTRAINT {THAI}_pkey")
    database.execute("SET client_encoding = 'LATIN1'")
    what = [row[2] for row in database.execute("SELECT * FROM outbox.health()")]
    assert "key not unique" in what


def test_a_processor_reports_only_figures(database: Database, new_attacker: NewAttacker) -> None:
    database.execute("CREATE EXTENSION pg_inbox")
    reader = new_attacker("inbox.grant_read")
    save = "SELECT inbox_internal.save_progress(%s, %s, %s, NULL, NULL, NULL, NULL, %s, %s)"
    with reader.connect() as session:
        session.execute("CREATE FUNCTION handle(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$")
        session.execute("SELECT inbox.subscribe('c', '*', 'handle')")
        id = database.value("SELECT id FROM inbox.consumer")
        for processed, failures, buckets, latencies in (
            (-(2**63), 0, None, None), (0, -1, None, None), (0, 0, [2**63 - 1, None], 0), (0, 0, None, "NaN"),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidParameterValue):
                session.execute(save, (id, processed, failures, buckets, latencies))
        for _ in range(2):
            session.execute(save, (id, 2**63 - 1, 2**63 - 1, [2**63 - 1] * 17, 1e30))
    read_all(database, views(database, "inbox"), "progress")
