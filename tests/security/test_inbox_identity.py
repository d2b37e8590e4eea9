"""The caller for pg_inbox, in any session, and the owner of a consumer."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from psycopg import errors

from database import Database

from .attacker import Attacker, NewAttacker

RECEIVE = """
    SELECT inbox.receive(%s, 'test', ARRAY[%s::uuid], ARRAY[now()], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY[NULL]::uuid[],
                         ARRAY['t.events'], ARRAY['t'], ARRAY['1'], ARRAY['Thing'], ARRAY['k'], ARRAY['application/json'],
                         ARRAY[NULL]::jsonb[], ARRAY['{"n": 1}'::bytea])"""
EVENT = "00000000-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def inbox(database: Database) -> None:
    database.execute("CREATE EXTENSION pg_inbox")


def bait(attacker: Attacker, call: str) -> None:
    """Makes the call run whenever a role inserts into, or analyzes, a table of the attacker."""
    me = attacker.role
    attacker.execute(f"""
        CREATE TABLE {me}.note (what text);
        CREATE FUNCTION {me}.strike() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
          BEGIN {call}; INSERT INTO {me}.note VALUES ('done');
          EXCEPTION WHEN others THEN INSERT INTO {me}.note VALUES (sqlerrm); END;
          RETURN 1; END $$;
        CREATE FUNCTION {me}.on_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
          PERFORM {me}.strike(); RETURN NEW; END $$;
        CREATE TABLE {me}.bait (i int);
        CREATE TRIGGER t BEFORE INSERT ON {me}.bait FOR EACH ROW EXECUTE FUNCTION {me}.on_insert();
        CREATE FUNCTION {me}.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
          IF session_user <> '{me}' THEN RETURN {me}.strike(); END IF; RETURN 1; END $$""")


def spring(database: Database, attacker: Attacker) -> None:
    """A superuser inserts into the table, and analyzes it: the attacker's code runs in its session."""
    database.execute(f"INSERT INTO {attacker.role}.bait VALUES (1)")
    attacker.execute("CREATE INDEX ON bait (f(i))")
    database.execute(f"ANALYZE {attacker.role}.bait")


def test_a_handler_is_subscribed_for_the_role_whose_code_it_is(database: Database, new_attacker: NewAttacker) -> None:
    """S2"""
    reader = new_attacker("inbox.grant_read")
    reader.execute("CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    bait(reader, f"PERFORM inbox_internal.add_subscription('pwn', '*', '{reader.role}.handler')")
    spring(database, reader)
    assert database.execute("SELECT role FROM inbox.consumer WHERE role <> %s", (reader.role,)) == []
    for spoof in ("'postgres'", "session_user", "NULL"):
        bait_call = f"SELECT inbox_internal.add_subscription('x', '*', 'handler', caller => {spoof})"
        if spoof != "session_user":
            with pytest.raises((errors.CheckViolation, errors.NotNullViolation)):
                reader.execute(bait_call)


@pytest.mark.parametrize(
    "call",
    [
        "PERFORM inbox.claim('victim')",
        f"PERFORM inbox.begin_event('victim', '{EVENT}')",
        f"PERFORM inbox.begin_events('victim', ARRAY['{EVENT}'::uuid])",
        "PERFORM inbox.set_policy('victim', max_attempts => 1)",
        "PERFORM inbox.save_offset('victim', 's', 'm', now())",
        "PERFORM inbox_internal.leave_tombstone('projection', 0, '{\"id\": 1}', '9223372036854775807')",
    ],
)  # fmt: skip
def test_code_in_the_session_of_another_has_the_rights_of_its_own_role(
    database: Database, new_attacker: NewAttacker, call: str
) -> None:
    """S2"""
    consumer = new_attacker("inbox.grant_consume")
    database.execute("SELECT inbox.begin_event('victim', gen_random_uuid())")
    database.execute("CREATE TABLE projection (id int PRIMARY KEY, version bigint)")
    database.execute(RECEIVE, ("victim", EVENT))
    bait(consumer, call.replace("'projection'", "'public.projection'"))
    spring(database, consumer)
    assert consumer.execute("SELECT count(*) FROM note WHERE what = 'done'") == [(0,)]
    assert database.execute("SELECT event_id FROM inbox.processed WHERE event_id = %s", (EVENT,)) == []
    assert database.execute("TABLE inbox.tombstone") == []
    assert database.value("SELECT max_attempts FROM inbox.consumer WHERE name = 'victim'") == 10


def test_values_of_the_domain_caller_cannot_be_stored(new_attacker: NewAttacker) -> None:
    """S2"""
    reader = new_attacker("inbox.grant_read")
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute("CREATE TABLE kept (c inbox_internal.caller)")


def test_a_consumer_belongs_to_the_role_that_used_it_first(database: Database, new_attacker: NewAttacker) -> None:
    """S10"""
    owner, reader = new_attacker("inbox.grant_consume"), new_attacker("inbox.grant_read", "inbox.grant_consume")
    reader.execute("CREATE FUNCTION steal(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    owner.execute("SELECT inbox.begin_event('orders', gen_random_uuid())")
    for call in ("inbox.subscribe('orders', '*', 'steal')", "inbox.claim('orders')", "inbox.load_offset('orders', 's')",
                 "inbox.set_policy('orders', 3)", "inbox.unsubscribe('orders', '*', 'steal')"):  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege, match="belongs to role"):
            reader.execute(f"SELECT {call}")
    owner.execute("SELECT inbox.begin_event('orders', gen_random_uuid())")
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute(f"SELECT inbox.give_consumer('orders', '{reader.role}', 'mine')")
    database.execute("SELECT inbox.give_consumer('orders', %s::regrole, 'a new team')", (reader.role,))
    reader.execute("SELECT inbox.subscribe('orders', '*', 'steal')")
    with pytest.raises(errors.InsufficientPrivilege, match="belongs to role"):
        owner.execute("SELECT inbox.begin_event('orders', gen_random_uuid())")


# -------------------------------------------------------------------------------------------------
# inbox.apply() in functions with the rights of their owner
# -------------------------------------------------------------------------------------------------

PUT = """
    CREATE TABLE video (video_id text PRIMARY KEY, title text, version bigint);
    CREATE FUNCTION put(data jsonb) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS
      $$ SELECT inbox.apply('public.video', ARRAY['video_id'], 'version', data) $$;"""


def call_put(connection: psycopg.Connection, version: int) -> None:
    connection.execute(
        "SELECT public.put(pg_catalog.jsonb_build_object('video_id'::text, 'a'::text, 'title'::text, 'x'::text,"
        " 'version'::text, %s::bigint))", (version,)
    )  # fmt: skip


def test_a_prepared_statement_of_the_session_gets_no_rights(database: Database, new_attacker: NewAttacker) -> None:
    """S3: a domain jsonb of the session's, and functions and operators of the session's, in the text of apply()."""
    database.execute(PUT)
    nobody = new_attacker()
    with nobody.connect() as connection:
        call_put(connection, 1)
        call_put(connection, 2)
        prepared = connection.execute(
            "SELECT name, statement FROM pg_prepared_statements WHERE name ~ '^inbox_'"
        ).fetchall()
        assert prepared
        connection.execute(f"""
            CREATE FUNCTION pg_temp.evil() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
              IF current_user = 'postgres' THEN EXECUTE 'ALTER ROLE {nobody.role} SUPERUSER'; END IF; RETURN true; END $$;
            CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (pg_temp.evil());
            CREATE DOMAIN {nobody.role}.jsonb AS pg_catalog.jsonb CHECK (pg_temp.evil());
            CREATE FUNCTION {nobody.role}.less(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT pg_temp.evil()';
            CREATE OPERATOR {nobody.role}.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = {nobody.role}.less);
            CREATE FUNCTION {nobody.role}.current_setting(text) RETURNS text LANGUAGE sql
              AS 'SELECT pg_temp.evil(); SELECT pg_catalog.current_setting($1)'""")
        for path in (f"pg_temp, {nobody.role}, pg_catalog", f"{nobody.role}, pg_catalog"):
            for name, statement in prepared:
                with suppress(errors.InvalidSqlStatementName):
                    connection.execute(f"DEALLOCATE {name}")
                connection.execute(f"SET search_path = {path}")
                with suppress(errors.InsufficientPrivilege):  # of schema inbox
                    connection.execute(statement)
            call_put(connection, 5)
            call_put(connection, 6)
    assert not nobody.is_superuser()


def test_a_prepared_statement_under_the_name_of_apply_is_not_used(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S3: a parameter type of the session's under the name that apply() looks for."""
    database.execute(PUT)
    nobody = new_attacker()
    with nobody.connect() as connection:
        call_put(connection, 1)
        name, statement = connection.execute(
            "SELECT name, statement FROM pg_prepared_statements WHERE name ~ '^inbox_' AND statement ~ 'UPDATE'"
        ).fetchone() or ("", "")
        connection.execute(f"""
            CREATE FUNCTION pg_temp.evil(v pg_catalog.jsonb) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
              IF current_user = 'postgres' THEN EXECUTE 'ALTER ROLE {nobody.role} SUPERUSER'; END IF; RETURN true; END $$;
            CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (pg_temp.evil(VALUE))""")
        connection.execute(f"DEALLOCATE {name}")
        connection.execute("SET search_path = pg_temp, pg_catalog")
        connection.execute(statement)
        call_put(connection, 2)
        # A prepared statement with any other text is not used.
        connection.execute(f"DEALLOCATE {name}")
        connection.execute(f"PREPARE {name} AS SELECT pg_temp.evil(NULL)")
        call_put(connection, 3)
    assert not nobody.is_superuser()
    assert database.value("SELECT version FROM video") == 3


def test_rows_of_projections_are_not_in_the_log(database: Database) -> None:
    """S27"""
    database.execute("CREATE TABLE person (id int PRIMARY KEY, ssn text CHECK (ssn <> 'secret-1'), version int)")
    began = database.cluster.log_size()
    apply = "SELECT inbox.apply('person', ARRAY['id'], 'version', jsonb_build_object('id', 1, 'ssn', 'secret-' || %s, 'version', 1))"
    database.execute("SET log_error_verbosity = terse; SET client_min_messages = error")
    database.execute("RESET log_error_verbosity")
    with pytest.raises(errors.CheckViolation) as caught:
        database.execute(apply, (1,))
    assert "secret" not in str(caught.value.diag.context)
    context = database.cluster.log_since(began).split("CONTEXT:")[1].split("STATEMENT:")[0]
    assert "secret" not in context
    assert database.execute("SELECT current_setting('inbox.given', true)") in ([("",)], [(None,)])


# -------------------------------------------------------------------------------------------------
# Locks
# -------------------------------------------------------------------------------------------------


def test_advisory_locks_of_others_do_not_block_the_inbox(database: Database, new_attacker: NewAttacker) -> None:
    """S24"""
    database.execute("CREATE TABLE video (id int PRIMARY KEY, version int)")
    database.execute("SELECT inbox.begin_event('c', gen_random_uuid())")
    nobody = new_attacker()
    consumer = database.value("SELECT id FROM inbox.consumer")
    with nobody.connect() as connection, database.connect() as worker:
        connection.execute("SELECT pg_advisory_lock(hashtextextended('inbox.prune', 0))")
        connection.execute(f"SELECT pg_advisory_lock(hashtextextended('inbox.consumer_offset {consumer} s', 0))")
        key = "pg_advisory_lock(jsonb_hash_extended('{\"id\": 1}', 'public.video'::regclass::oid::bigint))"
        connection.execute(f"SELECT {key}")
        worker.execute("SET lock_timeout = '30s'")
        apply = "SELECT inbox.apply('video', ARRAY['id'], 'version', '{\"id\": 1, \"version\": 1}')"
        assert worker.execute(apply).fetchone() == (True,)
        assert worker.execute("SELECT inbox.save_offset('c', 's', 'm', now())").fetchone() == (True,)
        worker.execute("DELETE FROM inbox.processed")
        worker.execute("INSERT INTO inbox.tombstone VALUES (1, 0, '{}', '1', '2000-01-01')")
        assert worker.execute("SELECT count(*) FROM inbox.prune()").fetchone() == (1,)
        assert worker.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone() == (0,)


def test_only_writers_of_a_projection_can_lock_its_keys(database: Database, new_attacker: NewAttacker) -> None:
    """S24"""
    reader = new_attacker("inbox.grant_read")
    database.execute("CREATE TABLE video (id int PRIMARY KEY, version int)")
    for call in ("lock_insert", "lock_removal", "tombstones"):
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied for projection"):
            reader.execute(f"SELECT inbox_internal.{call}('public.video', 1)")
    reader.execute("CREATE TABLE own (id int PRIMARY KEY, version int)")
    with reader.connect() as connection:
        connection.execute("SET inbox.locked_keys = '5000'")
        connection.execute("BEGIN")
        connection.execute("SELECT inbox.apply('own', ARRAY['id'], 'version', '{\"id\": 1, \"version\": 1}')")
        held = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'inbox.tombstone'::regclass"
            " AND mode = 'ShareLock'"
        ).fetchone()
        assert held == (0,)


# -------------------------------------------------------------------------------------------------
# Views
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["dead_letter", "waiting_keys"])
def test_views_show_a_function_only_what_its_owner_may_see(
    database: Database, new_attacker: NewAttacker, view: str
) -> None:
    """S8"""
    consumer = new_attacker("inbox.grant_consume")
    table, extra = {"dead_letter": ("dead_message", "now()"), "waiting_keys": ("waiting", "now() + interval '1 day'")}[
        view
    ]
    database.execute("SELECT inbox.begin_event('victim', gen_random_uuid())")
    database.execute(RECEIVE, ("victim", EVENT))
    if view == "dead_letter":
        database.execute(
            "INSERT INTO inbox.dead_message SELECT m.*, 1, 'cannot pay for card', 'P0001', now() FROM inbox.message AS m"
        )
    else:
        database.execute(
            "INSERT INTO inbox.waiting (consumer_id, event_id, seq, ordering_key, attempts, error, sqlstate, next_attempt_at) "
            f"SELECT consumer_id, event_id, seq, 'k', 1, 'cannot pay for card', 'P0001', {extra} FROM inbox.message"
        )
    assert table
    with consumer.connect() as connection:
        seen: list[str] = []
        connection.add_notice_handler(lambda notice: seen.append(str(notice.message_primary)))
        connection.execute(
            "CREATE FUNCTION leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS "
            "$$ BEGIN RAISE NOTICE 'leaked: %', $1; RETURN true; END $$"
        )
        for setting in ("SET enable_nestloop = off", "SET enable_mergejoin = off", "SET enable_hashjoin = off"):
            connection.execute(setting)
            assert connection.execute(f"SELECT count(*) FROM inbox.{view} WHERE leak(error)").fetchone() == (0,)
        assert seen == []
