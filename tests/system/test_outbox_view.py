"""Views of the log with the columns of an outbox table, and tables that they replace."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors

from cluster import Cluster, MakeCluster
from database import Database, create_database
from ledger import SETUP
from receiver import Gate, Receiver, answer, everything
from test_ledger import AGGREGATES, conclude, wait_for_new_arrivals, writers
from test_life import by_psql, dump
from test_pull import ack, fetch_something, nack, pull_destination
from waiting import wait_until

# The table as the first of the documents behind the layouts has it.
SEED_TABLE = """
CREATE TABLE app_outbox (
  id               uuid PRIMARY KEY,
  aggregate_type   text        NOT NULL,
  aggregate_id     text        NOT NULL,
  event_type       text        NOT NULL,
  version          bigint      NOT NULL,
  schema_version   int         NOT NULL DEFAULT 1,
  payload          bytea       NOT NULL,
  occurred_at      timestamptz NOT NULL DEFAULT now(),
  published_at     timestamptz,
  publish_attempts int         NOT NULL DEFAULT 0,
  next_retry_at    timestamptz,
  lock_token       text,
  locked_at        timestamptz
);
CREATE INDEX ON app_outbox (published_at) WHERE published_at IS NULL;
CREATE INDEX ON app_outbox (next_retry_at) WHERE published_at IS NULL;
"""

INSERT = """
  INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
  VALUES (%s, %s, %s, 'changed', %s, '{}')
"""


def insert(on: Database | psycopg.Connection, key: str = "a", version: int = 1, aggregate_type: str = "item") -> str:
    connection = on.connection if isinstance(on, Database) else on
    event_id = str(uuid.uuid4())
    connection.execute(INSERT, (event_id, aggregate_type, key, version))
    return event_id


@pytest.fixture
def db(database: Database) -> Database:
    database.execute("SELECT outbox.create_outbox_view('app_outbox', shows => 'all')")
    return database


def lifecycle(db: Database, event_id: str) -> dict[str, Any]:
    columns = ["published_at", "publish_attempts", "next_retry_at", "lock_token", "locked_at"]
    rows = db.execute(f"SELECT {', '.join(columns)} FROM app_outbox WHERE id = %s", (event_id,))
    assert len(rows) == 1, f"event {event_id} is in app_outbox {len(rows)} times"
    return dict(zip(columns, rows[0]))


def wait_for_lifecycle(db: Database, event_id: str, what: str, predicate: Any) -> dict[str, Any]:
    return wait_until(lambda: lifecycle(db, event_id), predicate, what=f"app_outbox to show event {event_id} {what}")


def wait_published(db: Database, event_id: str) -> dict[str, Any]:
    return wait_for_lifecycle(db, event_id, "as published", lambda row: row["published_at"])


# -------------------------------------------------------------------------------------------------
# The statements of the documents, word for word
# -------------------------------------------------------------------------------------------------

STATEMENTS = {
    "seed": (
        "app_outbox",
        """
  INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
  VALUES ($1,$2,$3,$4,$5,$6)
""",
        "gen_random_uuid(), 'video', 'v_123', 'VideoPublished', 1, '\\x0801'",
        ("video.events", "video", "v_123", "VideoPublished", "v_123"),
    ),
    "tutorial": (
        "outbox",
        "INSERT INTO outbox (topic, message) VALUES ($1, $2)",
        """'orders.created', '{"order_id": 1}'""",
        ("orders.created", "orders", None, "orders.created", ""),
    ),
    "cqrs": (
        "outbox_events",
        """
INSERT INTO outbox_events (aggregate_id, aggregate_type, event_type, payload)
VALUES ($1, $2, $3, $4)
""",
        "'00000000-0000-0000-0000-000000000001', 'Order', 'OrderCreated', '{}'",
        ("Order.events", "Order", "00000000-0000-0000-0000-000000000001", "OrderCreated",
         "00000000-0000-0000-0000-000000000001"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", list(STATEMENTS))
def test_statements_of_applications(database: Database, layout: str) -> None:
    name, statement, values, expected = STATEMENTS[layout]
    database.execute("SELECT outbox.create_outbox_view(%s, %s)", (name, layout))
    database.execute(f"PREPARE statement AS {statement}")
    database.execute(f"EXECUTE statement({values})")
    (row,) = database.execute(
        "SELECT topic, aggregate_type, aggregate_id, event_type, ordering_key, event_id::text FROM outbox.event"
    )
    *found, event_id = row
    assert found == [event_id if value is None else value for value in expected]


def test_an_applications_publisher_is_refused_with_a_hint(db: Database) -> None:
    event_id = insert(db)
    with pytest.raises(errors.ObjectNotInPrerequisiteState) as refusal:
        db.execute(
            """
WITH cte AS (
  SELECT id FROM app_outbox
   WHERE published_at IS NULL
     AND (next_retry_at IS NULL OR next_retry_at <= now())
   ORDER BY occurred_at
   FOR UPDATE SKIP LOCKED
   LIMIT 100
)
UPDATE app_outbox o
   SET lock_token = 'x', locked_at = now()
  FROM cte
 WHERE o.id = cte.id
RETURNING o.*
"""
        )
    assert "Turn off the application's own publisher" in (refusal.value.diag.message_hint or "")
    assert lifecycle(db, event_id)["locked_at"] is None


# -------------------------------------------------------------------------------------------------
# Lifecycle
# -------------------------------------------------------------------------------------------------


def test_an_event_waits_for_its_first_destination(db: Database) -> None:
    event_id = insert(db)
    assert lifecycle(db, event_id) == {
        "published_at": None, "publish_attempts": 0, "next_retry_at": None, "lock_token": None, "locked_at": None,
    }  # fmt: skip
    db.add_destination("d", "null:")
    wait_published(db, event_id)


def test_all_destinations_that_select_an_event_must_have_it(db: Database, receiver: Receiver, http: None) -> None:
    gate = Gate()
    receiver.on(everything, gate.held())
    db.add_destination("quick", "null:", receipts="on")
    db.add_destination("slow", receiver.url())
    db.add_destination("of_others", "pull:", topics="user.*")  # never gets events that it does not select
    event_id = insert(db)
    wait_until(
        lambda: db.value("SELECT published_at FROM outbox.receipt WHERE event_id = %s", (event_id,)),
        what="the receipt of the quick one",
    )  # fmt: skip
    assert lifecycle(db, event_id)["published_at"] is None
    wait_until(lambda: gate.holding, what="the request to the slow one")
    gate.open()
    wait_published(db, event_id)


def test_an_event_that_nobody_selects_is_not_published(db: Database) -> None:
    db.add_destination("of_others", "null:", topics="user.*")
    event_id = insert(db)
    wait_published(db, insert(db, aggregate_type="user"))
    assert lifecycle(db, event_id)["published_at"] is None


def test_an_event_for_one_destination_is_published_when_that_one_has_it(db: Database) -> None:
    db.add_destination("d", "null:")
    db.add_destination("other", "pull:")
    event_id = insert(db)
    db.wait_settled()
    assert lifecycle(db, event_id)["published_at"] is None
    db.execute("UPDATE outbox.event SET only_to = (SELECT number FROM outbox.cursor WHERE destination = 'd')")
    wait_published(db, event_id)


def test_published_when_the_receipt_says(db: Database) -> None:
    db.add_destination("d", "null:", receipts="on")
    event_id = insert(db)
    published_at = wait_published(db, event_id)["published_at"]
    assert published_at == db.value("SELECT published_at FROM outbox.receipt")


def test_attempts_retries_and_dead_letters(db: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(400))
    db.add_destination("d", receiver.url(), max_attempts="2", retry_base="1ms", retry_max="1ms")
    event_id = insert(db)
    wait_for_lifecycle(db, event_id, "refused twice", lambda row: row["publish_attempts"] == 2)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox.dead_letter"), what="the dead letter")
    assert lifecycle(db, event_id)["published_at"] is None
    receiver.forget_rules()
    db.execute("SELECT outbox.redrive('d')")
    wait_published(db, event_id)


def test_a_retry_is_shown(db: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(400))
    db.add_destination("d", receiver.url(), retry_base="1h", retry_max="1h")
    event_id = insert(db)
    row = wait_for_lifecycle(db, event_id, "refused", lambda row: row["publish_attempts"] == 1)
    assert row["next_retry_at"] is not None
    assert row["published_at"] is None


def test_an_event_that_was_given_up_waits_for_nothing(db: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(400))
    db.add_destination("d", receiver.url(), max_attempts="1")
    event_id = insert(db)
    wait_until(lambda: db.value("SELECT count(*) FROM outbox.dead_letter"), what="the dead letter")
    db.execute("SELECT outbox.discard('d', everything => true, why => 'test')")
    wait_published(db, event_id)


def test_an_event_that_is_replayed_stays_published(db: Database) -> None:
    pull_destination(db)
    event_id = insert(db)
    ack(db, fetch_something(db))
    wait_published(db, event_id)
    db.execute("SELECT outbox.replay('d')")
    assert db.value("SELECT waiting FROM outbox.replay_progress") == 1
    assert lifecycle(db, event_id)["published_at"] is not None


def test_what_the_log_has_lost_and_is_still_to_be_delivered_is_shown(db: Database) -> None:
    pull_destination(db, retry_base="1h", retry_max="1h")
    event_id = insert(db)
    nack(db, fetch_something(db)[0])
    insert(db, "b")
    ack(db, fetch_something(db))
    db.execute("TRUNCATE outbox.event_0")
    assert [str(row[0]) for row in db.execute("SELECT id FROM app_outbox")] == [event_id]
    row = lifecycle(db, event_id)
    assert row["published_at"] is None
    assert row["publish_attempts"] == 1


def test_the_lease_of_a_fetcher_is_shown(db: Database) -> None:
    pull_destination(db)
    first = insert(db)
    events = fetch_something(db)
    second = insert(db)
    row = lifecycle(db, first)
    assert row["lock_token"] == str(events[0]["token"])
    assert row["locked_at"] is not None
    assert lifecycle(db, second)["lock_token"] is None
    ack(db, events)
    wait_until(lambda: lifecycle(db, first)["published_at"], what="the event to count as published")
    row = lifecycle(db, first)
    assert (row["lock_token"], row["locked_at"]) == (None, None)
    assert lifecycle(db, second)["published_at"] is None


def rows_touched(plan: dict[str, Any]) -> float:
    """Counts rows of all nodes of an executed plan."""
    own = plan["Actual Rows"] * plan["Actual Loops"] + plan.get("Rows Removed by Filter", 0)
    return own + sum(rows_touched(child) for child in plan.get("Plans", []))


def test_what_is_unpublished_is_found_in_one_pass(db: Database) -> None:
    """However many events are in the log, in trouble and in batches."""
    count = 5000
    pull_destination(db)
    db.add_destination("done", "null:")
    db.execute(
        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
        "SELECT gen_random_uuid(), 'item', n::text, 'changed', 1, '' FROM generate_series(1, %s) AS n",
        (count,),
    )
    fetch_something(db)
    db.wait_saved("done")
    db.execute("SELECT outbox.replay('done')")
    db.execute("SELECT outbox.pause('done')")
    db.execute("ANALYZE outbox.event_0, outbox.delivery, outbox.batch")
    statement = "SELECT id FROM app_outbox WHERE published_at IS NULL ORDER BY occurred_at LIMIT 100"
    assert len(db.execute(statement)) == 100
    (row,) = db.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}")
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    assert rows_touched(plan[0]["Plan"]) < 50 * count, json.dumps(plan, indent=1)


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(db: Database) -> Iterator[list[str]]:
    names = [f"{name}_{db.name}" for name in ("writer", "reader", "owner")]
    for name in names:
        db.execute(f"CREATE ROLE {name} LOGIN")
    yield names
    for name in names:
        db.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises(errors.InsufficientPrivilege, match=message):
        yield


def test_the_view_is_all_that_an_application_needs(db: Database, roles: list[str]) -> None:
    writer, reader, _ = roles
    db.execute(f"GRANT INSERT ON app_outbox TO {writer}; GRANT SELECT ON app_outbox TO {reader}")
    db.add_destination("d", "null:", receipts="on")
    db.add_destination("p", "pull:", topics="item.*")
    with db.cluster.connect(db.name, writer) as connection:
        insert(connection)
        with refused("permission denied for view app_outbox"):
            connection.execute("SELECT FROM app_outbox")
        with refused("permission denied for view app_outbox"):
            connection.execute("UPDATE app_outbox SET published_at = now()")
        with refused("permission denied for schema outbox"):
            connection.execute("SELECT FROM outbox.event")
    with db.cluster.connect(db.name, reader) as connection:
        assert connection.execute("TABLE app_outbox").fetchall()
        with refused("permission denied for view app_outbox"):
            insert(connection)


def test_topics_are_those_of_the_owner_of_the_view(db: Database, roles: list[str]) -> None:
    writer, _, owner = roles
    db.execute(f"GRANT INSERT ON app_outbox TO {writer}; ALTER VIEW app_outbox OWNER TO {owner}")
    db.execute("SELECT outbox.grant_produce(%s, 'user.*')", (owner,))
    db.execute("SELECT outbox.grant_produce(%s, 'item.*')", (writer,))
    with db.cluster.connect(db.name, writer) as connection:
        with refused('permission denied for topic "item.events"'):
            insert(connection)
    db.execute("SELECT outbox.grant_produce(%s, 'item.*')", (owner,))
    with db.cluster.connect(db.name, writer) as connection:
        insert(connection)


def test_a_view_is_read_with_the_rights_of_its_owner(db: Database, roles: list[str]) -> None:
    _, reader, owner = roles
    event_id = insert(db)
    db.execute(f"ALTER VIEW app_outbox OWNER TO {owner}; GRANT SELECT ON app_outbox TO {reader}")
    with db.cluster.connect(db.name, reader) as connection:
        with refused("permission denied for view event_progress"):
            connection.execute("TABLE app_outbox")
        db.execute(f"GRANT SELECT ON outbox.event_progress TO {owner}")
        rows = connection.execute("SELECT id::text FROM app_outbox").fetchall()
        assert rows == [(event_id,)]


def test_views_are_not_for_everybody_to_make(db: Database, roles: list[str]) -> None:
    writer, _, _ = roles
    db.execute("SELECT outbox.grant_produce(%s)", (writer,))
    db.execute(f"CREATE SCHEMA own AUTHORIZATION {writer}")
    with db.cluster.connect(db.name, writer) as connection:
        connection.execute("CREATE VIEW own.v AS SELECT 1 AS id")
        with refused("permission denied for function create_outbox_view"):
            connection.execute("SELECT outbox.create_outbox_view('own.app_outbox')")
        with refused("permission denied for function outbox.insert_event"):
            connection.execute(
                "CREATE TRIGGER t INSTEAD OF INSERT ON own.v FOR EACH ROW "
                "EXECUTE FUNCTION outbox.insert_event('seed', '', 't')"
            )


# -------------------------------------------------------------------------------------------------
# A dump
# -------------------------------------------------------------------------------------------------


def test_views_are_dumped_and_restored(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    source = create_database(cluster, "source")
    for layout in ("seed", "seed_jsonb", "debezium", "tutorial", "cqrs"):
        source.execute("SELECT outbox.create_outbox_view(%s, %s, shows => 'all')", (f"view_{layout}", layout))
    source.execute(
        "SELECT outbox.create_outbox_view('app_outbox', 'seed', 'text/plain', 'x.{event_type}', shows => 'all')"
    )
    source.execute("CREATE ROLE app; GRANT INSERT ON app_outbox TO app")
    old = insert(source)
    path = dump(cluster, "source", ["-Fp"])
    source.disconnect()
    target = create_database(cluster, "target", extension=False)
    by_psql()(cluster, "target", path)
    target.disconnect()  # of the session that restored
    target.execute("SET ROLE app")
    new = insert(target, version=2)
    target.execute("RESET ROLE")
    assert target.execute("SELECT event_id::text, topic, content_type FROM outbox.event ORDER BY position") == [
        (old, "x.changed", "text/plain"),
        (new, "x.changed", "text/plain"),
    ]
    assert target.execute("SELECT schema_version FROM app_outbox") == [(1,), (1,)]
    target.execute("INSERT INTO view_tutorial (topic, message) VALUES ('a.b', '{}')")
    assert target.execute("SELECT topic, state FROM view_tutorial") == [("a.b", "pending")]
    for statement in ("UPDATE view_cqrs SET processed_at = now()", "DELETE FROM view_debezium"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState):
            target.execute(statement)


# -------------------------------------------------------------------------------------------------
# Adoption
# -------------------------------------------------------------------------------------------------


def adopt(db: Database, table: str = "app_outbox", layout: str = "seed") -> dict[str, str]:
    return dict(db.execute("SELECT * FROM outbox.adopt(%s, %s)", (table, layout)))


def test_an_application_with_prepared_statements_goes_on(database: Database) -> None:
    database.execute(SEED_TABLE)
    with database.connect() as application:
        application.prepare_threshold = 0
        returning = INSERT + " RETURNING occurred_at, publish_attempts"
        for version in (1, 2, 3):
            application.execute(returning, (uuid.uuid4(), "item", "a", version)).fetchone()
        assert application.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() != (0,)
        assert adopt(database)["rows to move"] == "3"
        for version in (4, 5, 6):
            row = application.execute(returning, (uuid.uuid4(), "item", "a", version)).fetchone()
            assert row is not None and row[1] == 0
    assert database.execute("SELECT version FROM outbox.event ORDER BY position") == [
        (version,) for version in range(1, 7)
    ]
    assert database.value("SELECT count(*) FROM app_outbox_adopted") == 3


@pytest.mark.extension("there the transaction must be tried again: test_edition.py")
def test_a_transaction_that_began_before_goes_on(database: Database) -> None:
    """Its snapshot may be from before the adoption."""
    database.execute(SEED_TABLE)
    with database.connect() as application:
        application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with application.transaction():
            application.execute("SELECT pg_current_xact_id()")
            adopt(database)
            event_id = insert(application)
    assert database.value("SELECT event_id::text FROM outbox.event") == event_id


def test_adopt_waits_for_transactions_that_write(database: Database) -> None:
    database.execute(SEED_TABLE)
    with database.connect() as application, database.connect() as operator:
        with application.transaction():
            event_id = insert(application)
            operator.execute("SET lock_timeout = '1ms'")
            with pytest.raises(errors.LockNotAvailable):
                operator.execute("SELECT outbox.adopt('app_outbox', 'seed')")
    assert database.value("SELECT relkind::text FROM pg_class WHERE oid = 'app_outbox'::regclass") == "r"
    adopt(database)
    assert database.value("SELECT event_id::text FROM outbox.event") == event_id


CQRS_TABLE = """
CREATE TABLE outbox_events (
  id             BIGSERIAL PRIMARY KEY,
  aggregate_id   UUID NOT NULL,
  aggregate_type VARCHAR(255) NOT NULL,
  event_type     VARCHAR(255) NOT NULL,
  payload        JSONB NOT NULL,
  created_at     TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  processed_at   TIMESTAMPTZ
);
"""

# Publishers of applications claim rows of a table, send them, and mark them.
FORGOTTEN_PUBLISHERS = {
    "seed": (
        SEED_TABLE,
        "app_outbox",
        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
        "VALUES (gen_random_uuid(), 'item', 'a', 'changed', 1, '{}')",
        "SELECT id FROM app_outbox WHERE published_at IS NULL AND (next_retry_at IS NULL OR next_retry_at <= now()) "
        "ORDER BY occurred_at LIMIT 100 FOR UPDATE SKIP LOCKED",
        "published_at",
    ),
    "cqrs": (
        CQRS_TABLE,
        "outbox_events",
        "INSERT INTO outbox_events (aggregate_id, aggregate_type, event_type, payload) "
        "VALUES (gen_random_uuid(), 'Order', 'OrderCreated', '{}')",
        "SELECT id FROM outbox_events WHERE processed_at IS NULL ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED",
        "processed_at",
    ),
}


@pytest.mark.parametrize("layout", list(FORGOTTEN_PUBLISHERS))
def test_a_publisher_that_was_not_stopped_finds_nothing_to_send(
    database: Database, receiver: Receiver, http: None, layout: str
) -> None:
    """It would send each event again and again, because it cannot mark it."""
    table, name, statement, claim, mark = FORGOTTEN_PUBLISHERS[layout]
    database.execute(table)
    database.execute(statement)
    assert len(database.execute(claim)) == 1
    adopt(database, name, layout)
    database.execute(statement)
    assert database.value("SELECT count(*) FROM outbox.event") == 2
    assert database.execute(claim) == []
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        database.execute(f"UPDATE {name} SET {mark} = now()")
    database.add_destination("d", receiver.url())
    wait_until(
        lambda: database.execute(f"SELECT {mark} IS NOT NULL FROM {name}"),
        lambda seen: seen == [(True,), (True,)],
        what="both events to be shown as published",
    )
    assert database.execute(claim) == []


def test_a_view_shows_published_events_or_all(database: Database) -> None:
    for shows in ("nothing", None):
        with pytest.raises(errors.InvalidParameterValue, match="shows must be 'published' or 'all'"):
            database.execute("SELECT outbox.create_outbox_view('app_outbox', shows => %s)", (shows,))


# Like the ledger's, but the event goes into the application's table, with a plan kept by the session.
CHANGE = """
CREATE OR REPLACE FUNCTION change(which int, writer int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_version bigint;
    event uuid := gen_random_uuid();
BEGIN
    UPDATE aggregate SET version = version + 1 WHERE id = which RETURNING version INTO new_version;
    INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
    VALUES (event, 'item', which::text, 'changed', new_version, '{}');
    INSERT INTO ledger VALUES (event, which, new_version, writer);
    RETURN event;
END $$
"""


def begin_ledger(cluster: Cluster, receiver: Receiver) -> Database:
    database = create_database(cluster)
    database.execute(SETUP.format(aggregates=AGGREGATES))
    database.execute(SEED_TABLE)
    database.execute(CHANGE)
    database.add_destination("d", receiver.url())
    return database


def test_ledger_across_an_adoption(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    database = begin_ledger(make_cluster(), receiver)
    with writers(database):
        wait_until(
            lambda: database.value("SELECT count(*) FROM app_outbox"), lambda count: count > 1000,
            timeout=180, what="1000 rows in the table of the application",
        )  # fmt: skip
        moved = int(adopt(database)["rows to move"])
        wait_for_new_arrivals(receiver, moved + 1000)
    conclude(database, receiver)


def test_ledger_with_attempts_to_adopt_that_are_undone(
    make_cluster: MakeCluster, receiver: Receiver, http: None
) -> None:
    database = begin_ledger(make_cluster(), receiver)
    with writers(database):
        for goal in (200, 600):
            wait_until(
                lambda: database.value("SELECT count(*) FROM app_outbox"), lambda count: count > goal,
                timeout=180, what=f"{goal} rows in the table of the application",
            )  # fmt: skip
            with database.connect() as operator:
                operator.execute("BEGIN")
                operator.execute("SELECT outbox.adopt('app_outbox', 'seed')")
                operator.execute("ROLLBACK")
        assert receiver.requests == []
        adopt(database)
        wait_for_new_arrivals(receiver, 1000)
    conclude(database, receiver)


def memory_of(pid: int) -> int:
    """Returns kB of memory, without shared memory."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0])


@pytest.mark.long
@pytest.mark.extension("takes a minute there")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="NOT TESTED: there is no /proc")
def test_a_large_table_takes_no_more_memory_than_a_small_one(database: Database) -> None:
    database.execute(SEED_TABLE)
    database.execute(
        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
        "SELECT gen_random_uuid(), 'item', (n %% 100)::text, 'changed', n, %s FROM generate_series(1, 100000) AS n",
        (b"x" * 300,),
    )
    with database.connect() as operator:
        operator.execute("SET work_mem = '64kB'")
        pid = operator.info.backend_pid
        before = memory_of(pid)
        operator.execute("SELECT outbox.adopt('app_outbox', 'seed')")
        assert memory_of(pid) - before < 15_000
    assert database.value("SELECT count(*) FROM outbox.event") == 100000
