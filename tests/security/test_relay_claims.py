"""Figures of a relay outside the server are claims of a role with outbox.grant_relay(): whatever it says, operators go on
to see the state of all destinations."""

from __future__ import annotations

import json
import random

import psycopg
import pytest
from psycopg import errors

from database import Database, NewDatabase
from test_relay_functions import Caller, number_of

REPORTS = 1500
NUMBERS = [0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 10**18, 10**15, None]
TIMES = [
    "now",
    "infinity",
    "-infinity",
    "epoch",
    "294276-12-31",
    "4713-01-01 BC",
    "0044-03-15 BC",
    "2999-12-31",
    "1969-12-31",
    None,
]
INTERVALS = ["0", "1s", "-1s", "178000000 years", "-178000000 years", "1000 years", "999 years", None]
FLOATS = ["0", "1", "-1", "NaN", "Infinity", "-Infinity", "1e308", "1e-308", "-0", None]
KINDS = {"bigint": NUMBERS, "timestamp with time zone": TIMES, "interval": INTERVALS, "double precision": FLOATS}
BUCKETS = [[], [1, 2], [-1], [2**63 - 1] * 3, [None], [[1, 2], [3, 4]], list(range(17)), [1] * 1000, None]
STATES = ["idle", "delivering", "paused", "", "\n", "x" * 64, "nonsense", "stopped"]
# Everything that shows the state of destinations.
VIEWS = [
    "SELECT * FROM outbox.status", "SELECT * FROM outbox.health()", "SELECT * FROM outbox.metrics()", "SELECT * FROM outbox.segment",
    "SELECT * FROM outbox.workers()", "SELECT outbox.backlog('d')", "SELECT * FROM outbox.endpoint_status", "SELECT * FROM outbox.destination",
]  # fmt: skip


@pytest.fixture
def db(new_database: NewDatabase) -> Database:
    database = new_database()
    database.add_destination("d", "null:", relay="external")
    database.add_destination("other", "null:", relay="external")
    return database


def report(dice: random.Random, columns: dict[str, str], number: int) -> dict[str, object]:
    """Like a relay's, but for one to three odd values."""
    figures: dict[str, object] = {
        "number": number,
        "state": "idle",
        "state_since": "now",
        "delivered": 7,
        "failures": 1,
    }
    for name in dice.sample(list(columns), dice.randint(1, 3)):
        figures[name] = dice.choice(KINDS[columns[name]])
    if dice.random() < 0.3:
        figures["latency_buckets"] = dice.choice(BUCKETS)
    if dice.random() < 0.3:
        figures["state"] = dice.choice(STATES)
    if dice.random() < 0.1:
        figures["last_error"] = "x" * dice.choice([10, 9_999, 100_000])
    return figures


def test_no_report_of_a_relay_hides_the_state_from_others(db: Database) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    caller, number = Caller(db), number_of(db)
    caller.beat()
    columns = dict(
        db.execute(
            "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'outbox.relay_status'::regclass "
            "AND attnum > 0 AND attname <> 'reported_at' AND format_type(atttypid, NULL) = ANY (%s)", (list(KINDS),),
        )
    )  # fmt: skip
    lease = caller.take(number)["lease"]
    db.execute("DROP ROLE IF EXISTS claimant; CREATE ROLE claimant; SELECT outbox.grant_relay('claimant')")
    caller.session.execute("SET ROLE claimant")
    stored = 0
    for turn in range(REPORTS):
        try:
            figures = json.dumps([report(dice, columns, number)])
            caller.session.execute("SELECT outbox_internal.relay_report(%s, %s)", (caller.id, figures))
            stored += 1
        except (errors.CheckViolation, errors.DataError, errors.NotNullViolation):
            pass
        if turn % 10 == 0:
            numbers = [dice.choice(NUMBERS[:-1]) for _ in range(4)]
            try:
                caller.session.execute(
                    "SELECT outbox_internal.relay_save(%s, %s, '1:1:', NULL, %s, true, '{}', '{}', '{}', '{}', '{}', '{}', %s, %s, %s)",
                    (number, lease, *numbers),
                )
            except psycopg.DataError:
                pass
        for view in VIEWS:
            db.execute(view)
    assert stored > REPORTS / 20
    assert db.status("other")["state"] in ("stopped", "starting")
    caller.session.close()
    db.execute("DROP OWNED BY claimant; DROP ROLE claimant")


def test_a_report_says_nothing_about_destinations_of_other_relays(db: Database) -> None:
    one, two = Caller(db), Caller(db)
    for caller, name in ((one, "d"), (two, "other")):
        caller.beat()
        caller.take(number_of(db, name))
        figures = {"number": number_of(db, name), "state": "idle", "state_since": "now", "delivered": 7}
        caller.session.execute("SELECT outbox_internal.relay_report(%s, %s)", (caller.id, json.dumps([figures])))
    forged = [{"number": number_of(db, "d"), "state": "paused", "state_since": "now", "delivered": 0}]
    two.session.execute("SELECT outbox_internal.relay_report(%s, %s)", (two.id, json.dumps(forged)))
    assert (db.status("d")["state"], db.published("d")) == ("idle", 7)
