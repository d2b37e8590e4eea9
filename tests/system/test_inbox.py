"""Delivery from one database into another: the postgresql sink, the inbox, its processors and handlers.

Polls are an hour apart on these servers (cluster.py), so each event is applied after a wake-up.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from cluster import Cluster
from conftest import MakeCluster, create_database
from database import Database
from waiting import SECOND, Stopwatch, stays, wait_until

APPLIED = """
    CREATE TABLE applied (number bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, key text,
                          version bigint, headers jsonb, payload jsonb, who name);
    CREATE TABLE poison (key text, version bigint);
    ALTER TABLE poison REPLICA IDENTITY FULL; -- for the suite published
    CREATE FUNCTION handle(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO applied (event_id, key, version, headers, payload, who)
            VALUES (event.event_id, event.aggregate_id, event.version, event.headers,
                    inbox.json(event), current_user);
        IF EXISTS (SELECT FROM poison AS p WHERE p.key = event.aggregate_id AND p.version = event.version) THEN
            RAISE EXCEPTION 'poison %', event.version;
        END IF;
    END $$;
"""


class Reader(Database):
    """A database with pg_inbox and a handler that lists what it was given."""

    def create_extension(self) -> None:
        self.execute("CREATE EXTENSION pg_inbox")
        self.execute(APPLIED)

    def subscribe(self, consumer: str = "c", pattern: str = "*") -> None:
        self.execute("SELECT inbox.subscribe(%s, %s, 'handle')", (consumer, pattern))

    def applied(self) -> list[str]:
        return [str(row[0]) for row in self.execute("SELECT event_id FROM applied ORDER BY number")]

    def wait_applied(self, ids: list[str], *, timeout: float = 180) -> None:
        """Waits until exactly these events were applied, once each and in this order."""
        wait_until(
            self.applied, lambda seen: len(seen) >= len(ids), timeout=timeout,
            what=f"{len(ids)} events to be applied",
        )  # fmt: skip
        assert self.applied() == ids

    def state(self, consumer: str = "c") -> dict[str, object]:
        cursor = self.connection.execute("SELECT * FROM inbox.status WHERE consumer = %s", (consumer,))
        row = cursor.fetchone()
        assert row is not None, f"no consumer {consumer} in inbox.status"
        return dict(zip([column.name for column in cursor.description or []], row))


@pytest.fixture
def reader(shared_cluster: Cluster, new_database: Callable[..., Database]) -> Reader:
    empty = new_database(extension=False)
    reader = Reader(shared_cluster, empty.name)
    reader.create_extension()
    return reader


@pytest.fixture
def writer(database: Database, reader: Reader) -> Database:
    database.add_destination("d", reader.inbox_url(), consumer="c")
    return database


def test_events_are_applied_in_order_as_they_were_enqueued(writer: Database, reader: Reader) -> None:
    reader.subscribe()
    ids = writer.enqueue("a", 3) + writer.enqueue("b", 2)
    reader.wait_applied(ids)
    assert reader.execute("SELECT key, version, payload, who FROM applied ORDER BY number LIMIT 1") == [
        ("a", 1, {"n": 1}, "postgres")
    ]
    row = reader.execute("SELECT count(*) FROM inbox.message")
    assert row == [(0,)], "processed messages are still in the inbox"


@pytest.mark.parametrize("schema", ["order", "My App", 'a"b'])
def test_the_schema_of_a_handler_may_have_any_name(writer: Database, reader: Reader, schema: str) -> None:
    """Sessions that quote all names mean the same handler as those that do not."""
    handler = sql.SQL("{}.{}").format(sql.Identifier(schema), sql.Identifier("Handle It"))
    reader.execute(sql.SQL("CREATE SCHEMA {0}; CREATE FUNCTION {1}(inbox.message) RETURNS void LANGUAGE sql AS 'SELECT handle($1)'")
                   .format(sql.Identifier(schema), handler))  # fmt: skip
    name = handler.as_string(reader.connection)
    reader.execute("SET quote_all_identifiers = on")
    reader.execute("SELECT inbox.subscribe('c', '*', %s)", (name,))
    reader.wait_applied(writer.enqueue("a", 1))
    reader.execute("SET quote_all_identifiers = off")
    reader.execute("SELECT inbox.unsubscribe('c', '*', %s)", (name,))


def test_everything_of_an_event_arrives(writer: Database, reader: Reader) -> None:
    writer.execute(
        """SELECT outbox.enqueue('video', 'v1', 'Created', '\\x00ff'::bytea, 'application/x-protobuf', version => -3,
               topic => 'videos', ordering_key => 'k ä', headers => '{"a": "ä\\"", "n": 1.5, "t": true, "z": null}',
               schema_version => 9, event_id => '00000000-0000-7000-8000-000000000001',
               source_event_id => '00000000-0000-7000-8000-000000000002', occurred_at => '1969-07-20 20:17:40.5+00')"""
    )
    writer.execute("SELECT outbox.enqueue('video', 'v2', 'Nothing', NULL::jsonb, ordering_key => '')")
    wait_until(lambda: reader.value("SELECT count(*) FROM inbox.message"), lambda n: n == 2, what="both messages")
    first, second = reader.execute(
        """SELECT event_id::text, position, version, schema_version, source_event_id::text, source, topic, aggregate_type,
               aggregate_id, event_type, ordering_key, content_type, headers, payload,
               extract(epoch FROM occurred_at)::float FROM inbox.message ORDER BY seq"""
    )
    assert first == (
        "00000000-0000-7000-8000-000000000001", 1, -3, 9, "00000000-0000-7000-8000-000000000002", writer.name,
        "videos", "video", "v1", "Created", "k ä", "application/x-protobuf",
        {"a": 'ä"', "n": 1.5, "t": True, "z": None}, b"\x00\xff", -14182939.5,
    )  # fmt: skip
    assert second[10:14] == ("", "application/json", None, None)


@pytest.mark.timing
def test_a_commit_is_applied_at_once(writer: Database, reader: Reader) -> None:
    reader.subscribe()
    writer.wait_for_worker("relay", "d")
    ids = writer.enqueue("a", 1)
    reader.wait_applied(ids)  # everything is connected and asleep now
    watch = Stopwatch()
    ids += writer.enqueue("a", 1, first=2)
    reader.wait_applied(ids)
    assert watch.seconds < SECOND


def test_a_relay_that_rests_is_idle_for_the_server(writer: Database, reader: Reader) -> None:
    sessions = f"SELECT state, query FROM pg_stat_activity WHERE application_name = 'pg_outbox d' AND datname = '{reader.name}'"
    for version in (1, 2):
        writer.enqueue("a", 1, first=version)
        wait_until(
            lambda: reader.value("SELECT count(*) FROM inbox.message"), lambda n: n == version, what="the message"
        )
        wait_until(lambda: reader.execute(sessions), lambda seen: seen == [("idle", "COMMIT")], what="an idle session")


def test_a_failing_handler_holds_back_its_key_and_nothing_else(writer: Database, reader: Reader) -> None:
    reader.execute("INSERT INTO poison VALUES ('bad', 2)")
    reader.subscribe()
    bad = writer.enqueue("bad", 4)
    good = writer.enqueue("good", 3)
    reader.wait_applied([bad[0], *good])
    key = wait_until(
        lambda: reader.execute("SELECT consumer, ordering_key, event_id::text, error FROM inbox.waiting_keys"),
        what="the key to be shown as waiting",
    )
    assert key == [("c", "bad", bad[1], "poison 2")]
    assert reader.state()["waiting_keys"] == 1 and reader.state()["last_error"] == "poison 2"
    reader.execute("DELETE FROM poison")
    reader.wait_applied([bad[0], *good, *bad[1:]])
    assert reader.execute("SELECT count(*) FROM inbox.waiting_keys") == [(0,)]


def test_a_redelivered_batch_is_applied_once(writer: Database, reader: Reader) -> None:
    reader.subscribe()
    ids = writer.enqueue("a", 20)
    reader.wait_applied(ids)
    # Like a relay that crashed before it saved its cursor: everything is sent again.
    relay = writer.wait_for_worker("relay", "d")
    writer.wait_settled()
    writer.execute("UPDATE outbox.cursor SET done = '1:1:', upto = NULL, position = 0")
    writer.execute("SELECT pg_terminate_backend(%s)", (relay,))
    writer.wait_for_worker("relay", "d", other_than=relay)
    more = writer.enqueue("a", 1, first=21)
    reader.wait_applied(ids + more)
    writer.wait_published(2 * len(ids) + len(more), "d")
    wait_until(
        lambda: reader.value("SELECT count(*) FROM inbox.message"), lambda n: n == 0,
        what="duplicates to be dropped",
    )  # fmt: skip
    assert reader.applied() == ids + more


def test_a_host_is_reached_by_its_name(database: Database, new_database: Callable[..., Database]) -> None:
    """If the host has several addresses, the server need not listen on the first."""
    target = new_database(extension=False)
    target.execute("CREATE EXTENSION pg_inbox")
    database.add_destination("d", target.inbox_url(f"localhost:{database.cluster.port}"))
    ids = database.enqueue("a", 3)
    database.wait_published(3)
    arrived = target.execute("SELECT event_id FROM inbox.message ORDER BY seq")
    assert [str(row[0]) for row in arrived] == ids


def test_a_destination_without_inbox_says_what_to_do(database: Database, new_database: Callable[..., Database]) -> None:
    empty = new_database(extension=False)
    database.add_destination("d", empty.inbox_url())
    ids = database.enqueue("a", 2)
    error = wait_until(lambda: database.status()["last_error"], what="an error in the status view")
    assert "CREATE EXTENSION pg_inbox" in error
    reader = Reader(empty.cluster, empty.name)
    reader.create_extension()
    reader.inbox_url()
    reader.subscribe(empty.name)
    reader.wait_applied(ids)


def test_the_database_of_a_paused_destination_is_dropped_by_force(writer: Database, reader: Reader) -> None:
    """Its relay keeps the session, also while it is idle or paused: docs/operations.md."""
    writer.enqueue("a", 1)
    writer.wait_settled("d")
    reader.disconnect()
    with pytest.raises(psycopg.errors.ObjectInUse):
        writer.cluster.execute(f"DROP DATABASE {reader.name}")
    writer.execute("SELECT outbox.pause('d', why => 'its database is dropped')")
    wait_until(lambda: writer.status()["state"], lambda state: state == "paused", what="the pause")
    writer.cluster.execute(f"DROP DATABASE {reader.name} WITH (FORCE)")
    assert writer.cluster.execute("SELECT FROM pg_database WHERE datname = %s", (reader.name,)) == []


def test_order_survives_the_loss_of_the_connection(writer: Database, reader: Reader) -> None:
    reader.subscribe()
    ids: list[str] = []
    for round in range(10):
        for key in "abc":
            ids += writer.enqueue(key, 50, first=round * 50 + 1)
        reader.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'pg_outbox d%'"
        )
    wait_until(reader.applied, lambda seen: len(seen) >= len(ids), timeout=180, what="all events applied")
    assert sorted(reader.applied()) == sorted(ids)
    back = reader.value(
        "SELECT count(*) FROM (SELECT version <= lag(version) OVER (PARTITION BY key ORDER BY number) AS back "
        "FROM applied) AS s WHERE back"
    )
    assert back == 0, "events of a key were applied out of order"


def test_a_database_with_only_the_inbox_is_served(reader: Reader) -> None:
    """Uses SQL only: this database has no pg_outbox and no sender."""
    reader.subscribe()
    wait_until(lambda: reader.state()["pid"], what="a processor")
    for n in range(1, 4):
        receive(reader, n)
    wait_until(lambda: reader.value("SELECT count(*) FROM applied"), lambda n: n == 3, what="three applied")
    reader.execute("SELECT inbox.unsubscribe('c', '*', 'handle')")
    wait_until(lambda: reader.state()["pid"], lambda pid: pid is None, what="the processor to end")
    assert reader.state()["state"] == "not subscribed"


def receive(reader: Database, n: int, consumer: str = "c") -> None:
    reader.execute(
        "SELECT inbox.receive(%s, 'test', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[%s::bigint], ARRAY[%s::bigint],"
        " ARRAY[1], ARRAY[NULL::uuid], ARRAY['t'], ARRAY['t'], ARRAY['k'], ARRAY['Thing'], ARRAY['k'],"
        " ARRAY['application/json'], ARRAY[NULL::jsonb], ARRAY[convert_to('{}', 'UTF8')])",
        (consumer, n, n),
    )


# The processors find their consumers deleted at the end.
@pytest.mark.worker_errors("is not one of role")
def test_handlers_have_the_rights_of_the_role_that_subscribed(reader: Reader, shared_cluster: Cluster) -> None:
    role = f"app_{reader.name}"
    reader.execute(
        sql.SQL(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA inbox, inbox_internal TO {role};"
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal TO {role};"
            "GRANT INSERT ON applied TO {role}; GRANT SELECT ON poison TO {role};"
            "CREATE TABLE secret (a int);"
            "CREATE FUNCTION peek(event inbox.message) RETURNS void LANGUAGE sql AS 'SELECT a FROM secret';"
            "CREATE FUNCTION climb(event inbox.message) RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN SET SESSION AUTHORIZATION postgres; END $$;"
        ).format(role=sql.Identifier(role))
    )
    try:
        with shared_cluster.connect(reader.name, role) as connection:
            connection.execute("SELECT inbox.subscribe('mine', '*', 'handle')")
            connection.execute("SELECT inbox.subscribe('peeking', '*', 'peek')")
            connection.execute("SELECT inbox.subscribe('climbing', '*', 'climb')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM inbox.message")
        for consumer in ("mine", "peeking", "climbing"):
            receive(reader, 1, consumer)
        wait_until(lambda: reader.execute("SELECT who FROM applied"), lambda rows: rows == [(role,)], what="who")
        errors = wait_until(
            lambda: dict(reader.execute("SELECT consumer, error FROM inbox.waiting_keys")),
            lambda seen: len(seen) == 2, what="both others to be refused",
        )  # fmt: skip
        assert errors["peeking"] == "permission denied for table secret"
        assert "permission denied" in errors["climbing"]
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to role"):
            reader.execute("SELECT inbox.subscribe('mine', 'More', 'handle')")
    finally:
        reader.execute("DELETE FROM inbox.consumer")
        reader.execute("DROP EXTENSION pg_inbox CASCADE")
        reader.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


@pytest.mark.worker_errors("is not one of role")
def test_the_owner_of_the_inbox_cannot_run_handlers_as_a_superuser(
    shared_cluster: Cluster, new_database: Callable[..., Database]
) -> None:
    """pg_inbox is trusted: its owner may write any role into inbox.consumer."""
    database = new_database(extension=False)
    owner = f"owner_{database.name}"
    database.execute(f"CREATE ROLE {owner} LOGIN; ALTER DATABASE {database.name} OWNER TO {owner}")
    try:
        with shared_cluster.connect(database.name, owner) as connection:
            connection.execute("CREATE SCHEMA mine")
            connection.execute("CREATE EXTENSION pg_inbox")
            connection.execute(
                "CREATE FUNCTION mine.handle(event inbox.message) RETURNS void LANGUAGE sql AS 'SELECT 1'"
            )
            offset = shared_cluster.log_size()
            connection.execute("SELECT inbox.subscribe('c', '*', 'mine.handle')")
            wait_until(
                lambda: connection.execute("SELECT state FROM inbox.status").fetchone(),
                lambda row: row == ("idle",), what="the processor of the owner",
            )  # fmt: skip
            # Extensions belong to the role that created them; an owner without superuser rights cannot
            # write to its tables, unless the script gave them away. This does whatever the owner may do.
            owns = connection.execute(
                "SELECT pg_get_userbyid(relowner) = current_user FROM pg_class WHERE oid = 'inbox.consumer'::regclass"
            ).fetchone()
            if owns == (True,):
                connection.execute("UPDATE inbox.consumer SET role = 'postgres'")
                connection.execute("SELECT inbox_internal.wake('subscriptions')")
                wait_until(
                    lambda: shared_cluster.log_since(offset), lambda log: "is not processed" in log,
                    what="the refusal in the server log",
                )  # fmt: skip
                wait_until(
                    lambda: connection.execute("SELECT pid FROM inbox.status").fetchone(),
                    lambda row: row == (None,), what="the owner's processor to end",
                )  # fmt: skip
                stays(
                    lambda: connection.execute("SELECT pid FROM inbox.status").fetchone(), (None,),
                    seconds=1, what="a processor on behalf of somebody else",
                )  # fmt: skip
    finally:
        shared_cluster.execute(f"ALTER DATABASE {database.name} OWNER TO postgres")
        database.execute(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")


def test_a_foreign_server_of_somebody_else_needs_a_password(
    database: Database, reader: Reader, shared_cluster: Cluster
) -> None:
    """Its owner must not connect as the operating-system user of the server."""
    role = f"operator_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 's3cret-right'; GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {role}"
    )
    try:
        with shared_cluster.connect(database.name, role) as connection:
            connection.execute(
                f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql:///{reader.name}')"
            )
            error = wait_until(lambda: database.status()["last_error"], what="a refusal") if database.enqueue() else ""
            assert "password is required" in error
            connection.execute(
                f"CREATE USER MAPPING FOR {role} SERVER d OPTIONS (password 's3cret-that-is-wrong, but not asked for')"
            )
        error = wait_until(
            lambda: database.status()["last_error"], lambda seen: "asked for no password" in seen,
            what="a refusal of a destination that trusts everybody",
        )  # fmt: skip
        assert "s3cret" not in error
    finally:
        database.execute(f"DROP SERVER IF EXISTS d CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_processor_that_is_not_wanted_any_more_ends_without_alarm(reader: Reader) -> None:
    reader.subscribe()
    pid = wait_until(lambda: reader.state()["pid"], what="a processor")
    reader.execute("SELECT inbox.unsubscribe('c', '*', 'handle')")
    wait_until(
        lambda: reader.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)),
        lambda n: n == 0, what="the processor to end",
    )  # fmt: skip
    assert "FATAL" not in reader.cluster.log_since(reader.cluster.test_began)


@pytest.mark.timing
@pytest.mark.worker_errors("does not exist")
def test_dropping_the_inbox_ends_its_processors(reader: Reader) -> None:
    reader.subscribe()
    pid = wait_until(lambda: reader.state()["pid"], what="a processor")
    watch = Stopwatch()
    reader.execute("DROP EXTENSION pg_inbox CASCADE")
    wait_until(
        lambda: reader.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)),
        lambda n: n == 0, what="the processor to end",
    )  # fmt: skip
    assert watch.seconds < SECOND


def test_processors_go_on_after_a_crash(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"fsync": "on"})
    reader = Reader(cluster, "reader")
    cluster.execute("CREATE DATABASE reader")
    reader.create_extension()
    reader.subscribe()
    writer = create_database(cluster, "writer")
    writer.add_destination("d", reader.inbox_url(), consumer="c")
    ids: list[str] = []
    for round in range(4):
        ids += writer.enqueue("a", 300, first=round * 300 + 1)
        pid = wait_until(lambda: reader.state()["pid"] or 0, what="a processor", ignoring=(psycopg.OperationalError,))
        cluster.kill_and_recover(int(pid))
    wait_until(
        reader.applied, lambda seen: len(seen) >= len(ids), timeout=180, what="all events applied",
        ignoring=(psycopg.OperationalError,),
    )  # fmt: skip
    assert reader.applied() == ids, "lost, twice or out of order"
    stays(lambda: len(reader.applied()), len(ids), seconds=0.5, what="number of applied events")


@pytest.mark.worker_errors("does not exist")
@pytest.mark.parametrize("subscribes", [True, False])
def test_a_consumer_whose_role_is_gone_can_be_given_to_another(
    reader: Reader, shared_cluster: Cluster, subscribes: bool
) -> None:
    """Nobody can log in as that role to confirm the handlers, or to claim the messages."""
    role = f"gone_{reader.name}"
    reader.execute(f"CREATE ROLE {role} LOGIN")
    for right in ("read", "consume"):
        reader.execute(f"SELECT inbox.grant_{right}('{role}')")
    with shared_cluster.connect(reader.name, role) as connection:
        connection.execute("SELECT inbox.create_consumer('c')")
        if subscribes:
            reader.execute(f"ALTER FUNCTION handle OWNER TO {role}; GRANT ALL ON applied TO {role}")
            connection.execute("SELECT inbox.subscribe('c', '*', 'handle')")
    reader.execute(f"ALTER FUNCTION handle OWNER TO postgres; DROP OWNED BY {role}; DROP ROLE {role}")
    receive(reader, 1)
    advice = "SELECT what, what_to_do FROM inbox.health('0') WHERE object = 'consumer \"c\"'"
    ((what, what_to_do),) = reader.execute(advice)
    assert what == "no role" and "inbox.give_consumer('c', " in what_to_do
    event_id = reader.value("SELECT event_id FROM inbox.message")
    status = "SELECT state, why, what_to_do FROM inbox.event_status(%s) WHERE consumer = 'c'"
    assert reader.execute(status, (event_id,)) == [
        ("PENDING", "nothing can process the messages of the consumer", what_to_do)
    ]
    for call in ("inbox.claim('c')", "inbox.begin_event('c', gen_random_uuid())", "inbox.load_offset('c', 's')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="which does not exist any more") as refused:
            reader.execute(f"SELECT {call}")
        assert "inbox.give_consumer()" in (refused.value.diag.message_hint or "")
    reader.execute("SELECT inbox.give_consumer('c', 'postgres', 'the role is gone')")
    if subscribes:
        reader.execute("SELECT inbox.confirm('c')")
        wait_until(reader.applied, lambda seen: len(seen) == 1, what="the message to be applied")
    else:
        assert reader.value("SELECT event_id FROM inbox.claim('c')") == event_id
    assert reader.execute(advice + " AND what = 'no role'") == []
