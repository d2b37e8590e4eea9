"""The caller is the role whose rights the calling code has, never the one that logged in."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from conftest import MakeCluster
from database import Database, create_database
from waiting import wait_until

from .attacker import Attacker, NewAttacker, NewRole


def bait(attacker: Attacker, strike: str) -> None:
    """A table whose index runs the statement `strike` in maintenance, and records its errors."""
    me = attacker.role
    attacker.execute(f"""
        CREATE TABLE {me}.noted (ran_as name, error text);
        CREATE FUNCTION {me}.strike() RETURNS int LANGUAGE plpgsql AS $strike$ BEGIN
          BEGIN {strike}; INSERT INTO {me}.noted VALUES (current_user, NULL);
          EXCEPTION WHEN OTHERS THEN INSERT INTO {me}.noted VALUES (current_user, SQLERRM); END;
          RETURN 1; END $strike$;
        CREATE FUNCTION {me}.trap(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
          RETURN {me}.strike(); END $$;
        CREATE TABLE {me}.bait (i int);
        INSERT INTO {me}.bait VALUES (1);
        CREATE INDEX ON {me}.bait ({me}.trap(i));
        TRUNCATE {me}.noted""")


def noted(attacker: Attacker) -> set[str | None]:
    rows = attacker.database.execute(f"SELECT ran_as, error FROM {attacker.role}.noted")
    assert rows and {ran_as for ran_as, _ in rows} == {attacker.role}, "the trap was not sprung"
    return {error for _, error in rows}


RESTRICTED = "cannot act for a caller within a security-restricted operation"

# -------------------------------------------------------------------------------------------------
# Code of low roles in sessions of others
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grant, strike",
    [
        ("fetch", "CREATE TABLE loot AS SELECT * FROM outbox.fetch('secret')"),
        ("fetch", "PERFORM outbox.ack(gen_random_uuid())"),
        ("operate", "PERFORM outbox.pause('secret')"),
        ("operate", "PERFORM outbox.seek('secret', 'end')"),
        ("operate", "PERFORM outbox.discard('secret', everything => true, why => 'test')"),
        ("operate", "PERFORM outbox.cancel_backfill(1)"),
        ("capture", "PERFORM outbox.capture('{me}.victim')"),
        ("capture", "PERFORM outbox.backfill('{me}.victim')"),
    ],
)
def test_maintenance_of_a_table_does_not_run_granted_functions(
    new_attacker: NewAttacker, grant: str, strike: str
) -> None:
    """S2"""
    mallory = new_attacker(f"outbox.grant_{grant}")
    mallory.database.execute("CREATE SERVER secret FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    mallory.database.enqueue("a")
    mallory.execute(f"CREATE TABLE {mallory.role}.victim (id int PRIMARY KEY)")
    bait(mallory, strike.format(me=mallory.role))
    mallory.database.execute(f"ANALYZE {mallory.role}.bait")
    assert noted(mallory) == {RESTRICTED}
    mallory.database.execute("DROP SERVER secret")


def test_index_functions_do_not_fetch_as_the_superuser_who_analyzes(new_attacker: NewAttacker) -> None:
    """S2, as reported: without USAGE on the server."""
    mallory = new_attacker("outbox.grant_fetch")
    me = mallory.role
    mallory.database.execute("CREATE SERVER secret FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    mallory.database.enqueue("a")
    mallory.execute(f"CREATE TABLE {me}.loot (event_id uuid)")
    bait(mallory, f"INSERT INTO {me}.loot SELECT event_id FROM outbox.fetch('secret')")
    mallory.database.execute(f"ANALYZE {me}.bait; VACUUM {me}.bait; REINDEX TABLE {me}.bait".split(";")[0])
    assert mallory.database.execute(f"TABLE {me}.loot") == []
    with mallory.database.connect() as superuser:
        superuser.execute(f"SET ROLE {me}")
        with pytest.raises(errors.InsufficientPrivilege, match='destination "secret"'):
            superuser.execute("SELECT * FROM outbox.fetch('secret')")
    mallory.database.execute("DROP SERVER secret")


def test_a_condition_in_the_worker_cannot_start_a_backfill(new_attacker: NewAttacker) -> None:
    """S2: the worker has all rights, and each backfill would have started the next."""
    mallory = new_attacker("outbox.grant_capture")
    me, database = mallory.role, mallory.database
    database.add_destination("d", "null:")
    mallory.execute(f"""
        CREATE TABLE {me}.w (id int PRIMARY KEY);
        CREATE TABLE {me}.noted (ran_as name, error text);
        CREATE FUNCTION {me}.again(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
          IF pg_backend_pid() <> (SELECT pid FROM {me}.session) THEN
            BEGIN
              PERFORM outbox_internal.add_backfill('{me}.w', NULL, 1, NULL, 1000, current_user);
              INSERT INTO {me}.noted VALUES (current_user, NULL);
            EXCEPTION WHEN OTHERS THEN INSERT INTO {me}.noted VALUES (current_user, SQLERRM); END;
          END IF;
          RETURN true; END $$;
        CREATE TABLE {me}.session (pid int);
    """)
    with mallory.connect() as session:
        session.execute(f"INSERT INTO {me}.session VALUES (pg_backend_pid())")
        session.execute(f"SELECT outbox.capture('{me}.w', condition => '{me}.again(id)')")
        session.execute(f"INSERT INTO {me}.w VALUES (1)")
        session.execute(f"SELECT outbox.backfill('{me}.w')")
    wait_until(
        lambda: database.execute("SELECT state FROM outbox.backfill_task WHERE state <> 'finished'"),
        lambda rows: rows == [], what="all backfills to finish",
    )  # fmt: skip
    assert noted(mallory) == {RESTRICTED}
    assert database.value("SELECT count(*) FROM outbox.backfill_task") == 1
    database.execute("DROP SERVER d")


# -------------------------------------------------------------------------------------------------
# Callers
# -------------------------------------------------------------------------------------------------


def test_a_function_cannot_be_called_as_another_role(new_attacker: NewAttacker) -> None:
    """S2"""
    mallory = new_attacker("outbox.grant_operate", "outbox.grant_fetch", "outbox.grant_capture")
    mallory.database.execute("CREATE SERVER secret FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    mallory.database.enqueue("a")
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mallory.execute("SELECT outbox.capture('t')")
    for call in (
        "outbox.pause('secret', caller => {})",
        "outbox.seek('secret', 'end', caller => {})",
        "outbox.replay('secret', caller => {})",
        "outbox.fetch('secret', caller => {})",
        "outbox_internal.add_backfill('t', NULL, 1, NULL, 1000, {})",
        "outbox.cancel_backfill(1, {})",
        "outbox_internal.backfill_waits_for(1, {})",
    ):
        for other in ("'postgres'", "'postgres'::name", "current_user || ''::text || 'x'", "(SELECT 'postgres'::text)"):
            with pytest.raises(errors.CheckViolation):
                mallory.execute(f"SELECT {call.format(f'({other})::text::name')}")
            with pytest.raises((errors.CheckViolation, errors.UndefinedFunction)):
                mallory.execute(f"SELECT {call.format(other)}")
    mallory.database.execute("DROP SERVER secret")


def test_null_is_refused_as_caller(new_attacker: NewAttacker) -> None:
    """The server does not check a domain in an empty subquery."""
    mallory = new_attacker("outbox.grant_operate", "outbox.grant_fetch")
    mallory.database.execute("CREATE SERVER secret FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    mallory.database.enqueue("a")
    nobody = "(SELECT current_user::outbox_internal.caller WHERE false)"
    with pytest.raises(errors.InsufficientPrivilege):
        mallory.execute(f"SELECT * FROM outbox.fetch('secret', caller => {nobody})")
    for call in ("pause('secret'", "seek('secret', 'beginning'", "replay('secret'"):
        with pytest.raises(errors.NotNullViolation):
            mallory.execute(f"SELECT outbox.{call}, caller => {nobody})")
    assert mallory.database.execute("SELECT paused FROM outbox.cursor") == [(False,)]
    assert mallory.database.execute("TABLE outbox.operation") == []
    mallory.database.execute("DROP SERVER secret")


def test_a_stored_caller_is_refused(new_attacker: NewAttacker) -> None:
    mallory = new_attacker("outbox.grant_operate", "outbox.grant_fetch", "outbox.grant_capture")
    for statement in (
        "CREATE TABLE kept (who outbox_internal.caller)",
        "CREATE TYPE kept AS (who outbox_internal.caller)",
        "CREATE DOMAIN kept AS outbox_internal.caller",
        "CREATE FUNCTION kept() RETURNS outbox_internal.caller LANGUAGE sql AS 'SELECT NULL'",
        "CREATE FUNCTION kept(outbox_internal.caller) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE VIEW kept AS SELECT current_user::outbox_internal.caller AS who",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            mallory.execute(statement)


def test_operations_are_recorded_with_the_role_whose_rights_were_used(new_attacker: NewAttacker) -> None:
    """The role that logged in is not recorded, nor is the owner of a function that was used."""
    operator, other = new_attacker("outbox.grant_operate"), new_attacker()
    database = operator.database
    database.add_destination("d", "null:")
    operator.execute("CREATE FUNCTION pause() RETURNS void LANGUAGE sql SECURITY DEFINER "
                     "SET search_path = pg_catalog, pg_temp AS $$ SELECT outbox.pause('d') $$")  # fmt: skip
    database.execute(f"GRANT USAGE ON SCHEMA {operator.role} TO {other.role}")
    with database.connect() as superuser:
        superuser.execute("SELECT outbox.resume('d')")
        superuser.execute(f"SET ROLE {operator.role}")
        superuser.execute("SELECT outbox.seek('d', 'end')")
    other.execute(f"SELECT {operator.role}.pause()")
    done = "SELECT action, requested_by FROM outbox.operation ORDER BY id"
    assert database.execute(done) == [("resume", "postgres"), ("seek", operator.role), ("pause", operator.role)]
    database.execute("DROP SERVER d")


def test_fetchers_are_known_by_the_role_they_use(new_attacker: NewAttacker) -> None:
    fetcher = new_attacker("outbox.grant_fetch")
    database = fetcher.database
    database.execute("CREATE SERVER bus FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    database.execute(f"GRANT USAGE ON FOREIGN SERVER bus TO {fetcher.role}")
    database.enqueue("a")
    with database.connect() as superuser:
        superuser.execute(f"SET ROLE {fetcher.role}")
        assert superuser.execute("SELECT count(*) FROM outbox.fetch('bus')").fetchone() == (1,)
    assert database.value("SELECT fetched_by FROM outbox.lease").split()[0] == fetcher.role
    database.execute("DROP SERVER bus")


def test_a_backfill_is_for_its_role_and_operators(new_attacker: NewAttacker) -> None:
    """S2: also in a session that a superuser began."""
    ours, theirs = new_attacker("outbox.grant_capture"), new_attacker("outbox.grant_capture")
    operator = new_attacker("outbox.grant_operate")
    database = ours.database
    database.add_destination("d", "null:")
    ours.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ours.execute("SELECT outbox.capture('t')")
    database.pause("d")
    ours.execute("INSERT INTO t SELECT generate_series(1, 3)")
    [(id,)] = ours.execute("SELECT outbox.backfill('t', batch => 1, max_pending => 1)")
    with database.connect() as superuser:
        superuser.execute(f"SET ROLE {theirs.role}")
        with pytest.raises(errors.InsufficientPrivilege):
            superuser.execute("SELECT outbox.pause_backfill(%s)", (id,))
        assert superuser.execute("SELECT outbox_internal.backfill_waits_for(%s)", (id,)).fetchone() == (None,)
    operator.execute(f"SELECT outbox.pause_backfill({id})")
    ours.execute(f"SELECT outbox.cancel_backfill({id})")
    database.execute("DROP SERVER d")


# -------------------------------------------------------------------------------------------------
# Captures
# -------------------------------------------------------------------------------------------------

CAPTURED = """(ROW('{0}'::regclass, 'a', '{{id}}'::name[], '{{id}}'::name[], NULL::name, 'a.events', NULL::name, NULL::name[],
    NULL::jsonb, NULL::name[], '{{}}'::name[], 'full', false, 'key', false, 'C', 'U', 'D', 'T', 'S', 'refuse', 'origin',
    '{{}}'::name[], '{{}}'::oid[], 'postgres'::name, '2001-01-01'::timestamptz)::outbox.captured)"""


def test_role_and_time_of_a_capture_cannot_be_forged(new_attacker: NewAttacker) -> None:
    """S30"""
    mallory = new_attacker("outbox.grant_capture")
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mallory.execute("SELECT outbox.capture('t')")
    mallory.execute(f"SELECT outbox_internal.save_captured({CAPTURED.format('t')})")
    seen = mallory.database.execute("SELECT captured_by, captured_at > '2002-01-01' FROM outbox.captured")
    assert seen == [(mallory.role, True)]


def test_a_refused_capture_cannot_be_made_by_its_internal_function(new_attacker: NewAttacker) -> None:
    """S30: the function that writes the row is granted too, and gets the row as an argument."""
    mallory = new_attacker("outbox.grant_capture")
    with mallory.connect() as session:
        session.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        session.execute("CREATE TABLE child () INHERITS (parent)")
        session.execute("SELECT outbox.capture('parent')")
        session.execute("CREATE TEMP TABLE short (id int PRIMARY KEY)")
        session.execute("CREATE VIEW v AS SELECT 1 AS id")
        for table, message in (
            ("child", "cannot be captured together"),
            ("short", "cannot be captured"),
            ("v", "is not a table|cannot be captured"),
            ("outbox.cursor", "must be owner"),
        ):
            with pytest.raises(psycopg.Error, match=message):
                session.execute(f"SELECT outbox_internal.save_captured({CAPTURED.format(table)})")


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["outbox", "inbox"])
def test_concurrent_grants_do_not_fail(database: Database, new_role: NewRole, extension: str) -> None:
    """S30: one of the two was refused with XX000, "tuple concurrently updated"."""
    if extension == "inbox":
        database.execute("CREATE EXTENSION pg_inbox")
    roles = [new_role(), new_role()]
    failed: list[psycopg.Error] = []

    def grant(connection: psycopg.Connection) -> None:
        try:
            connection.execute(f"SELECT {extension}.grant_operate(%s)", (roles[1],))
        except psycopg.Error as error:
            failed.append(error)

    with database.connect() as first, database.connect() as second:
        first.execute("BEGIN")
        first.execute(f"SELECT {extension}.grant_operate(%s)", (roles[0],))
        thread = threading.Thread(target=grant, args=(second,))
        thread.start()
        wait_until(
            lambda: database.value(
                "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (second.info.backend_pid,)
            ),
            lambda waits_for: waits_for == "Lock", what="the second grant to wait for the first",
        )  # fmt: skip
        first.execute("COMMIT")
        thread.join()
    assert failed == []
    for role in roles:
        database.execute(f"SELECT {extension}.revoke_operate('{role}')")


@pytest.fixture
def with_default_pull(make_cluster: MakeCluster) -> Iterator[Database]:
    cluster = make_cluster({"outbox.default_destination": "pull:"})
    database = create_database(cluster)
    database.execute("CREATE ROLE fetcher LOGIN")
    yield database


def test_the_default_pull_destination_is_granted_by_name(with_default_pull: Database) -> None:
    """S26: there is no server to have USAGE on."""
    database = with_default_pull
    fetcher = Attacker(database, "fetcher")
    database.enqueue("a")
    fetch = "SELECT count(*) FROM outbox.fetch('default')"
    fetcher.grant("outbox.grant_fetch")
    with pytest.raises(errors.InsufficientPrivilege, match='destination "default"'):
        fetcher.execute(fetch)
    with pytest.raises(errors.InvalidParameterValue, match="granted on its foreign server"):
        database.execute("SELECT outbox.grant_fetch('fetcher', 'bus')")
    database.execute("SELECT outbox.grant_fetch('fetcher', 'default')")
    assert fetcher.execute(fetch)[0][0] > 0
    database.execute("SELECT outbox.revoke_fetch('fetcher')")
    database.execute("SELECT outbox.grant_fetch('fetcher')")
    with pytest.raises(errors.InsufficientPrivilege, match='destination "default"'):
        fetcher.execute(fetch)
    assert database.execute(fetch)[0][0] >= 0  # the owner may
