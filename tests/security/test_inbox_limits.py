"""Limits of an inbox: hostile messages and altered tables must only affect their owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import errors, sql

from database import Database, NewDatabase
from waiting import wait_until

from .attacker import Attacker, NewAttacker, NewRole
from .test_inbox_confirm import wait_for_processor, wake

RECEIVE = """
    SELECT inbox.receive(%(consumer)s, %(source)s, ARRAY[gen_random_uuid()], ARRAY[%(occurred_at)s]::timestamptz[], ARRAY[1], ARRAY[1], ARRAY[1],
                         ARRAY[NULL]::uuid[], ARRAY[%(topic)s], ARRAY[%(aggregate_type)s], ARRAY[%(aggregate_id)s],
                         ARRAY[%(event_type)s], ARRAY[%(ordering_key)s], ARRAY[%(content_type)s], ARRAY[%(headers)s]::jsonb[],
                         ARRAY[repeat('x', %(payload)s)::bytea])"""
EVENT: dict[str, object] = {
    "consumer": "c", "source": "s", "occurred_at": "2024-01-01", "topic": "t", "aggregate_type": "t", "aggregate_id": "1",
    "event_type": "X", "ordering_key": "k", "content_type": "application/json", "headers": None, "payload": 10,
}  # fmt: skip


@pytest.mark.parametrize(
    "name, value",
    [
        ("consumer", "c" * 250),
        ("source", "s" * 1025),
        ("occurred_at", "-infinity"),
        ("occurred_at", "infinity"),
        ("topic", "t" * 250),
        ("aggregate_type", "t" * 250),
        ("aggregate_id", "i" * 1025),
        ("event_type", "x" * 250),
        ("ordering_key", "ä" * 513),
        ("content_type", "x" * 250),
        ("headers", "[]"),
        ("headers", '{"a": "' + "x" * 65_536 + '"}'),
        ("headers", "{" + ", ".join(f'"h{n}": 1' for n in range(65)) + "}"),
        pytest.param("payload", 256 * 1024 * 1024 + 1, marks=pytest.mark.long),
    ],
)
def test_inbox_and_log_have_the_same_limits(
    database: Database, new_attacker: NewAttacker, name: str, value: object
) -> None:
    """S21"""
    database.execute("CREATE EXTENSION pg_inbox")
    sender = new_attacker("inbox.grant_send")
    with sender.connect() as connection:
        connection.execute(RECEIVE, EVENT)
        with pytest.raises(errors.ProgramLimitExceeded):
            connection.execute(RECEIVE, {**EVENT, name: value})
    assert database.value("SELECT count(*) FROM inbox.message") == 1


def store(database: Database, consumer: str, **columns: object) -> None:
    """Inserts a message as a dump or a version without limits would."""
    database.execute("SELECT inbox_internal.consumer_id(%s)", (consumer,))
    columns = {"topic": "'t'", "aggregate_type": "'t'", "aggregate_id": "'1'", "event_type": "'X'", **columns}
    database.execute(
        sql.SQL(
            "INSERT INTO inbox.message (consumer_id, event_id, occurred_at, {})"
            " SELECT id, gen_random_uuid(), now(), {} FROM inbox.consumer WHERE name = {}"
        ).format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join(sql.SQL(str(value)) for value in columns.values()),
            sql.Literal(consumer),
        )
    )


INCOMPRESSIBLE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) AS n)"


@pytest.mark.parametrize(
    "column, value",
    [
        ("ordering_key", INCOMPRESSIBLE),
        pytest.param("payload", "repeat('x', 300000000)::bytea", marks=pytest.mark.long),
        ("headers", "jsonb_build_object('a', repeat('x', 100000))"),
        ("topic", "repeat('x', 100000)"),
    ],
)
def test_a_message_that_is_too_large_becomes_a_dead_letter(database: Database, column: str, value: str) -> None:
    """S21: with claim(), and in the server."""
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute("CREATE FUNCTION h(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    for consumer in ("outside", "inside"):
        store(database, consumer, **{column: value})
        store(database, consumer, ordering_key="'good'")
    assert [row[0] for row in database.execute("SELECT ordering_key FROM inbox.claim('outside')")] == ["good"]
    database.execute("SELECT inbox.subscribe('inside', '*', 'h')")
    wait_until(
        lambda: database.execute("SELECT 1 FROM inbox.message AS m JOIN inbox.consumer AS c ON c.id = m.consumer_id WHERE c.name = 'inside'"),
        lambda rows: rows == [], what="all messages to be done with",
    )  # fmt: skip
    dead = database.execute("SELECT consumer, sqlstate FROM inbox.dead_letter ORDER BY consumer")
    assert dead == [("inside", "54000"), ("outside", "54000")]
    assert "too l" in database.value("SELECT min(error) FROM inbox.dead_letter")


# -------------------------------------------------------------------------------------------------
# Altered inboxes
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def owner(new_database: NewDatabase, new_role: NewRole) -> Iterator[Attacker]:
    database = new_database(extension=False)
    owner = Attacker(database, new_role())
    database.execute(
        sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database.name), sql.Identifier(owner.role))
    )
    owner.execute("CREATE EXTENSION pg_inbox")
    owner.execute("CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    yield owner


def keeper_has_ended(database: Database) -> None:
    """Waits for the keeper, which ends its workers and then itself."""
    database.execute("DROP EXTENSION pg_inbox CASCADE")
    wait_until(lambda: database.cluster.workers_in(database.name), lambda left: left == [], what="all workers to end")


def keeper(database: Database) -> object:
    return database.cluster.execute(
        "SELECT pid, backend_start FROM pg_stat_activity WHERE backend_type = 'pg_outbox keeper' AND datname = %s",
        (database.name,),
    )


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE inbox.consumer ALTER name DROP NOT NULL; INSERT INTO inbox.consumer (name, role, subscriptions) VALUES (NULL, '{me}', 1)",
        "ALTER TABLE inbox.consumer ALTER subscriptions DROP NOT NULL; UPDATE inbox.consumer SET subscriptions = NULL WHERE name = 'c'",
        "ALTER TABLE inbox.consumer DROP CONSTRAINT consumer_name_key, DROP CONSTRAINT consumer_name_check;"
        " INSERT INTO inbox.consumer (name, role, subscriptions) SELECT 'c', '{me}', 1 FROM generate_series(1, 5000)",
        "ALTER TABLE inbox.consumer DROP CONSTRAINT consumer_name_key;"
        " INSERT INTO inbox.consumer (name, role, subscriptions) VALUES (repeat('x', 200000000), '{me}', 1)",
        "INSERT INTO inbox.consumer (name, role, subscriptions) VALUES (E'a\\nb\\033[2J', 'nobody at all', 1)",
        *(
            f"ALTER TABLE inbox.consumer RENAME {column} TO was; ALTER TABLE inbox.consumer ADD COLUMN {column} {kind};"
            f" UPDATE inbox.consumer SET {column} = '1'"
            for column, kind in [("id", "text"), ("name", "name"), ("role", "text"), ("subscriptions", "bigint")]
        ),
        "ALTER TABLE inbox.consumer RENAME TO was; CREATE VIEW inbox.consumer AS SELECT * FROM inbox.was",
        "ALTER TABLE inbox.consumer RENAME TO was; CREATE TABLE inbox.consumer (id int, name text, role name, subscriptions int)"
        " PARTITION BY LIST (id)",
        "ALTER TABLE inbox.consumer DROP COLUMN created_at",
        "ALTER TABLE inbox.subscription DISABLE TRIGGER wake_keeper; ALTER ROLE {me} IN DATABASE {database} SET inbox.confirmed = 'a,,:,:::'",
        "ALTER ROLE {me} IN DATABASE {database} SET search_path = ''",
        "CREATE OR REPLACE FUNCTION inbox_internal.next_messages(consumer_id integer, max_messages integer,"
        " caller inbox_internal.caller DEFAULT CURRENT_USER, OUT seq bigint, OUT occurred_at timestamptz, OUT received_at timestamptz)"
        " RETURNS SETOF record LANGUAGE sql AS $$ SELECT n, now(), NULL::timestamptz FROM generate_series(1, 100000) AS n $$",
        "CREATE OR REPLACE FUNCTION inbox_internal.next_attempt(consumer_id integer, caller inbox_internal.caller DEFAULT CURRENT_USER)"
        " RETURNS timestamptz LANGUAGE sql AS $$ SELECT '-infinity'::timestamptz $$",
        "CREATE OR REPLACE FUNCTION inbox_internal.confirmed_subscriptions(consumer_id integer, caller inbox_internal.caller DEFAULT CURRENT_USER)"
        " RETURNS text[] LANGUAGE sql AS $$ SELECT ARRAY[[NULL, 'x'], ['y', NULL]] $$",
    ],
)
@pytest.mark.worker_errors("pg_outbox processor")
def test_an_owner_of_the_inbox_cannot_crash_a_process(owner: Attacker, statements: str) -> None:
    """S6: the harness looks for crashes in the log."""
    database = owner.database
    owner.execute("SELECT inbox.subscribe('c', '*', 'handler')")
    wait_for_processor(database, "c")
    before = keeper(database)
    owner.execute(statements.replace("{me}", owner.role).replace("{database}", database.name))
    for _ in range(3):
        wake(database)
    wait_until(lambda: keeper(database) == before, what="the keeper to be what it was")
    keeper_has_ended(database)


@pytest.mark.worker_errors("pg_outbox processor")
def test_a_replaced_function_without_a_row_ends_only_the_processor(owner: Attacker) -> None:
    """S6"""
    database = owner.database
    owner.execute("SELECT inbox.subscribe('c', '*', 'handler')")
    wait_for_processor(database, "c")
    began = database.cluster.log_size()
    owner.execute("""
        ALTER EXTENSION pg_inbox DROP FUNCTION inbox_internal.process(integer, bigint, text[]);
        DROP FUNCTION inbox_internal.process(integer, bigint, text[]);
        CREATE FUNCTION inbox_internal.process(integer, bigint, text[]) RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true WHERE false'""")
    database.execute(RECEIVE, EVENT)
    wait_until(
        lambda: database.cluster.log_since(began), lambda log: "does not return what it should" in log,
        what="the processor to give up",
    )  # fmt: skip


def test_refused_consumers_do_not_fill_the_log(owner: Attacker) -> None:
    """S6"""
    database = owner.database
    database.cluster.execute("ALTER SYSTEM SET log_min_messages = log")
    try:
        database.cluster.execute("SELECT pg_reload_conf()")
        began = database.cluster.log_size()
        owner.execute("""
            INSERT INTO inbox.consumer (name, role, subscriptions)
              SELECT n || repeat('x', 1000), 'postgres', 1 FROM generate_series(1, 2000) AS n;
            INSERT INTO inbox.consumer (name, role, subscriptions) VALUES ('plain', 'postgres', 1)""")
        for _ in range(5):
            wake(database)
            owner.execute("UPDATE inbox.consumer SET role = role || 'x'")
        owner.execute("DELETE FROM inbox.consumer")
        lines = [line for line in database.cluster.log_since(began).splitlines() if "is not processed" in line]
        assert len(lines) <= 33
        assert all(len(line) < 300 for line in lines)
    finally:
        database.cluster.execute("ALTER SYSTEM RESET log_min_messages")
        database.cluster.execute("SELECT pg_reload_conf()")


# -------------------------------------------------------------------------------------------------
# Installing
# -------------------------------------------------------------------------------------------------


def test_a_schema_of_somebody_else_is_not_installed_into(new_database: NewDatabase, new_role: NewRole) -> None:
    """S5"""
    database = new_database(extension=False)
    role = new_role()
    database.execute(
        sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database.name), sql.Identifier(role))
    )
    squatter = Attacker(database, role)
    squatter.execute(f"""
        CREATE SCHEMA inbox;
        CREATE FUNCTION inbox.format(text, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
          IF current_user = 'postgres' THEN EXECUTE 'ALTER ROLE {role} SUPERUSER'; END IF;
          RETURN pg_catalog.format($1, VARIADIC ARRAY[$2]); END $$""")
    with pytest.raises(errors.InsufficientPrivilege, match='schema "inbox" belongs to role'):
        database.execute("CREATE EXTENSION pg_inbox")
    database.execute("ALTER SCHEMA inbox OWNER TO postgres")
    with pytest.raises(errors.DuplicateSchema, match="is not empty"):
        database.execute("CREATE EXTENSION pg_inbox")
    database.execute("DROP FUNCTION inbox.format")
    database.execute(f"GRANT CREATE ON SCHEMA inbox TO {role}")
    with pytest.raises(errors.InsufficientPrivilege, match="others may create"):
        database.execute("CREATE EXTENSION pg_inbox")
    database.execute(f"REVOKE CREATE ON SCHEMA inbox FROM {role}")
    database.execute("CREATE EXTENSION pg_inbox")
    assert not squatter.is_superuser()
