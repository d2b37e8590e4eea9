"""The promises of docs/howto/pgbouncer.md, with PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from client.conftest import Consume, consume, target  # noqa: F401 (fixtures)
from client.consumer import Target
from cluster import Cluster
from database import SENDER, Database, NewDatabase
from pooler import PROGRAM, STATEMENTS_KEPT, STATEMENTS_LOST, Pooler, keeps_statements
from waiting import wait_until

pytestmark = [
    pytest.mark.extension("the page is about the extensions; test_outbox_relay.py has a relay behind a pooler"),
    pytest.mark.skipif(PROGRAM is None, reason="NOT TESTED: pgbouncer is not installed"),
]

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ENQUEUE = "SELECT outbox.enqueue('order', '7', 'Placed', '{}')"
TRACE_OF = "SELECT headers ->> 'traceparent' FROM outbox.event WHERE event_id = %s"
RECEIVE = """
    SELECT inbox.receive('c', 'shop', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[1::bigint], ARRAY[1::bigint],
                         ARRAY[1], ARRAY[NULL::uuid], ARRAY['t'], ARRAY['order'], ARRAY['7'], ARRAY['Placed'], ARRAY['7'],
                         ARRAY['application/json'], ARRAY[NULL::jsonb], ARRAY['{}'::bytea])
"""

Start = Callable[..., Pooler]


@pytest.fixture
def start(shared_cluster: Cluster) -> Iterator[Start]:
    made: list[Pooler] = []

    def start(options: str = "", **others: tuple[str, ...]) -> Pooler:
        made.append(Pooler(shared_cluster, options, **others))
        return made[-1]

    yield start
    for pooler in made:
        pooler.close()


def connect(pooler: Pooler, database: Database, user: str = "postgres", **parameters: str) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1", port=pooler.port, user=user, dbname=database.name, autocommit=True,
        prepare_threshold=None, **parameters,
    )  # fmt: skip


def enqueue(connection: psycopg.Connection) -> object:
    row = connection.execute(ENQUEUE).fetchone()
    assert row is not None
    return row[0]


def backend(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return row[0]


def test_a_local_setting_ends_with_the_transaction(database: Database, start: Start) -> None:
    pooler = start("default_pool_size = 1")
    with connect(pooler, database) as one, connect(pooler, database) as other:
        with one.transaction():
            one.execute(f"SET LOCAL outbox.traceparent = '{TRACE}'")
            traced = enqueue(one)
        assert backend(one) == backend(other)
        assert database.value(TRACE_OF, (traced,)) == TRACE
        assert database.value(TRACE_OF, (enqueue(other),)) is None


def test_a_setting_of_a_session_reaches_another_client(database: Database, start: Start) -> None:
    pooler = start("default_pool_size = 1")
    with connect(pooler, database) as one, connect(pooler, database) as other:
        one.execute(f"SET outbox.traceparent = '{TRACE}'")
        assert database.value(TRACE_OF, (enqueue(other),)) == TRACE


def test_settings_of_the_connection_string_are_refused_or_ignored(database: Database, start: Start) -> None:
    options = f"-c outbox.traceparent={TRACE}"
    with pytest.raises(
        psycopg.OperationalError, match="unsupported startup parameter(: options| in options: outbox.traceparent)"
    ):
        connect(start(), database, options=options)
    with connect(start("ignore_startup_parameters = options"), database, options=options) as connection:
        assert database.value(TRACE_OF, (enqueue(connection),)) is None


def test_a_notification_reaches_another_client(database: Database, start: Start) -> None:
    pooler = start("default_pool_size = 1")
    with connect(pooler, database) as one, connect(pooler, database) as other:
        heard: dict[str, list[str]] = {"one": [], "other": []}
        one.add_notify_handler(lambda notify: heard["one"].append(notify.payload))
        other.add_notify_handler(lambda notify: heard["other"].append(notify.payload))
        one.execute("LISTEN news")
        other.execute("NOTIFY news, 'late'")
        one.execute("SELECT 1")
        assert heard == {"one": [], "other": ["late"]}


def test_messages_are_claimed_and_completed_in_different_sessions(new_database: NewDatabase, start: Start) -> None:
    database = new_database(extension=False)
    database.execute("CREATE EXTENSION pg_inbox")
    pooler = start()
    with connect(pooler, database) as worker, connect(pooler, database) as first, connect(pooler, database) as second:
        # Other transactions keep the session that the worker must not get.
        with first.transaction():
            backend(first)
            worker.execute("SELECT inbox.create_consumer('c')")
            worker.execute(RECEIVE)
            claimed = worker.execute("SELECT token, event_id FROM inbox.claim('c', 10, '1 min')").fetchall()
            of_claim = backend(worker)
            second.execute("BEGIN")
            backend(second)
        with worker.transaction():
            assert backend(worker) != of_claim
            assert worker.execute("SELECT inbox.complete(%s, %s)", claimed[0]).fetchone() == (True,)
        second.execute("COMMIT")
    assert database.value("SELECT count(*) FROM inbox.message") == 0


# Versions that can keep prepared statements are tried both ways.
ways = pytest.mark.parametrize("kept", [False, True] if keeps_statements() else [False])


@ways
def test_the_client_applies_each_event_once(target: Target, consume: Consume, start: Start, kept: bool) -> None:  # noqa: F811
    options = STATEMENTS_KEPT if kept else STATEMENTS_LOST
    pooler = start(f"default_pool_size = 2\n{options}", roles=("postgres", target.role))
    conninfo = f"host=127.0.0.1 port={pooler.port} user={target.role} dbname={target.name}"
    consumer = consume(conninfo=conninfo, prepare_statements=int(kept))
    ids = consumer.deliver("a", 20) + consumer.deliver("b", 20)
    target.wait_applied(ids)
    consumer.stop()
    assert target.attempts() == len(ids)


@ways
def test_a_destination_loses_its_prepared_statement_unless_it_is_kept(
    database: Database, new_database: NewDatabase, start: Start, kept: bool
) -> None:
    inbox = new_database(extension=False)
    inbox.execute("CREATE EXTENSION pg_inbox")
    pooler = start(f"default_pool_size = 1\n{STATEMENTS_KEPT if kept else STATEMENTS_LOST}", roles=(SENDER,))
    database.add_destination("d", inbox.inbox_url(f"127.0.0.1:{pooler.port}"))
    for number in (1, 2):
        database.enqueue(first=number)
        wait_until(
            lambda: inbox.value("SELECT count(*) FROM inbox.message"), lambda seen: seen == number, what="the event"
        )
        with connect(pooler, inbox, user=SENDER) as other:
            other.execute("DISCARD ALL")
    database.wait_settled("d")
    error = database.value("SELECT last_error FROM outbox.status WHERE destination = 'd'")
    if kept:
        assert error is None
    else:
        assert 'prepared statement "outbox_receive" does not exist' in error


def test_a_check_of_a_destination_notices_the_pooler(
    database: Database, new_database: NewDatabase, start: Start
) -> None:
    inbox = new_database(extension=False)
    inbox.execute("CREATE EXTENSION pg_inbox")
    for port, noticed in (start(roles=(SENDER,)).port, True), (inbox.cluster.port, False):
        database.add_destination(f"d{port}", inbox.inbox_url(f"127.0.0.1:{port}"), relay="external")
        findings = database.execute("SELECT subject, ok, detail FROM outbox.check_destination(%s)", (f"d{port}",))
        (detail,) = [detail for subject, ok, detail in findings if subject == "inbox" and ok]
        assert ("through a pooler, which must keep the session" in detail) == noticed, findings
