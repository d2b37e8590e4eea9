"""Text of a role that becomes code runs with no more rights than its author had, also if other roles touch the object.

test_paths_of_code.py has what administrators do.
"""

from __future__ import annotations

from pathlib import Path

from psycopg import sql

from cluster import MakeCluster
from database import Database, create_database
from waiting import wait_until

from .attacker import Attacker, NewAttacker
from .traps import Traps


def integrator(database: Database, new_attacker: NewAttacker) -> Attacker:
    attacker = new_attacker()
    database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {attacker.role}")
    return attacker


def make_server(owner: Attacker, filter: str) -> None:
    owner.execute(
        sql.SQL("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter {})").format(filter)
    )


def deliver(database: Database) -> str:
    return database.value("SELECT outbox.enqueue('item', 'a', 'Added', '{}')")


def wait_for_state(database: Database, *states: str) -> tuple[str, str | None]:
    ((state, error),) = wait_until(
        lambda: database.execute("SELECT state, last_error FROM outbox.status WHERE destination <> 'default' LIMIT 1"),
        lambda seen: bool(seen) and seen[0][0] in states, what=f"a destination that is {states}",
    )  # fmt: skip
    return state, error


# -------------------------------------------------------------------------------------------------
# Expressions of destinations
# -------------------------------------------------------------------------------------------------


def test_expressions_wait_after_a_change_of_owner_until_the_new_owner_sets_them(
    database: Database, new_attacker: NewAttacker
) -> None:
    former, present = integrator(database, new_attacker), integrator(database, new_attacker)
    make_server(former, "true")
    database.execute(f"ALTER SERVER d OWNER TO {present.role}")
    deliver(database)
    _, error = wait_for_state(database, "misconfigured")
    assert error is not None and f'role "{former.role}" owned the destination when it was set' in error
    assert f'waits for role "{present.role}"' in error
    assert database.value("SELECT count(*) FROM outbox.health() AS h WHERE h::text LIKE '%%waits for role%%'") == 1
    present.execute("ALTER SERVER d OPTIONS (SET filter 'true')")
    database.wait_settled()
    # A statement about another option changes nothing about that.
    present.execute("ALTER SERVER d OPTIONS (ADD retry_max '1min')")
    deliver(database)
    database.wait_settled()


def test_a_function_that_is_changed_later_gets_no_rights_of_a_new_owner(
    database: Database, new_attacker: NewAttacker, open_folder: Path
) -> None:
    attacker = integrator(database, new_attacker)
    me = attacker.role
    attacker.execute(f"""
        CREATE FUNCTION {me}.f(jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE RETURN true""")
    make_server(attacker, f"{me}.f(payload)")
    deliver(database)
    database.wait_settled()
    database.execute("ALTER SERVER d OWNER TO CURRENT_USER")
    attacker.execute(f"""
        CREATE OR REPLACE FUNCTION {me}.f(jsonb) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN
          IF current_user <> '{me}' THEN COPY (SELECT 1) TO PROGRAM 'cat >{open_folder}/owned'; END IF;
          RETURN true; END $$""")
    deliver(database)
    wait_for_state(database, "misconfigured")
    # The superuser may set it again. It gets the rights of everybody then.
    database.execute(f"GRANT USAGE ON SCHEMA {me} TO PUBLIC")
    database.execute(f"ALTER SERVER d OPTIONS (SET filter '{me}.f(payload)')")
    wait_until(lambda: database.execute("SELECT last_error FROM outbox.delivery"), bool, what="the event to fail")
    assert not (open_folder / "owned").exists()


def test_create_if_not_exists_confirms_nothing(database: Database, new_attacker: NewAttacker) -> None:
    attacker = integrator(database, new_attacker)
    make_server(attacker, "true")
    database.execute("ALTER SERVER d OWNER TO CURRENT_USER")
    attacker.execute(
        "CREATE SERVER IF NOT EXISTS d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'true')"
    )
    deliver(database)
    wait_for_state(database, "misconfigured")


def test_a_superusers_expression_may_be_restored_before_the_rights(
    database: Database, new_attacker: NewAttacker
) -> None:
    """As in pg_restore: the superuser creates the server, then gives it to its owner."""
    attacker = integrator(database, new_attacker)
    me = attacker.role
    attacker.execute(f"CREATE FUNCTION {me}.f() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE RETURN true")
    with database.connect() as session:
        notices: list[str] = []
        session.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        session.execute(f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter '{me}.f()')")
        assert any("cannot be evaluated: permission denied for schema" in notice for notice in notices), notices
        session.execute(f"ALTER SERVER d OWNER TO {me}")
    deliver(database)
    database.wait_settled()


def test_an_operators_session_runs_no_filter_of_others(database: Database, new_attacker: NewAttacker) -> None:
    attacker, operator = (
        integrator(database, new_attacker),
        new_attacker("outbox.grant_monitor", "outbox.grant_operate"),
    )
    me = attacker.role
    attacker.execute(f"""
        CREATE FUNCTION {me}.f() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN
          PERFORM pg_advisory_lock(4711); RETURN false; END $$""")
    attacker.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', relay 'external')")
    attacker.execute(f"ALTER SERVER d OPTIONS (ADD filter '{me}.f()')")
    event = deliver(database)
    with operator.connect() as session:
        state, why = session.execute("SELECT state, why FROM outbox.event_status(%s)", (event,)).fetchone() or ("", "")
        assert state != "NOT SELECTED" and "or its filter excludes it" in why
        assert session.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
    with database.connect() as session:
        session.execute("SELECT * FROM outbox.event_status(%s)", (event,))
        assert session.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_a_relay_keeps_no_lock_of_an_expression(database: Database, new_attacker: NewAttacker) -> None:
    attacker = integrator(database, new_attacker)
    me = attacker.role
    attacker.execute(f"""
        CREATE FUNCTION {me}.f() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN
          PERFORM pg_advisory_lock(4711); RETURN true; END $$""")
    make_server(attacker, f"{me}.f()")
    deliver(database)
    database.wait_settled()
    wait_until(
        lambda: database.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"),
        lambda count: count == 0, what="the lock to be given back",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Code that does not end, and code that talks
# -------------------------------------------------------------------------------------------------

# No function in it looks for a cancellation.
ENDLESS = "translate(repeat(topic, 3000000), repeat(chr(200), 30000000), '') IS NOT NULL"


def test_a_filter_that_looks_for_no_interrupt_becomes_the_fault_of_its_event(
    database: Database, new_attacker: NewAttacker
) -> None:
    attacker = integrator(database, new_attacker)
    make_server(attacker, ENDLESS)
    deliver(database)
    ((error,),) = wait_until(
        lambda: database.execute("SELECT last_error FROM outbox.dead_letter"), bool, what="a dead letter",
    )  # fmt: skip
    assert "took longer than outbox.expression_timeout" in error
    attacker.execute("ALTER SERVER d OPTIONS (SET filter 'true')")
    deliver(database)
    database.wait_settled()


def test_a_server_stops_while_a_filter_does_not_end(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"outbox.expression_timeout": "1h"})
    database = create_database(cluster)
    database.add_destination("d", "null:", filter=ENDLESS)
    deliver(database)
    wait_until(
        lambda: database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_outbox relay' AND state = 'active'"
        ),
        lambda count: count == 1, what="a relay that evaluates",
    )  # fmt: skip
    database.disconnect()
    cluster.stop("fast")


def test_expressions_write_nothing_to_the_server_log(database: Database, new_attacker: NewAttacker) -> None:
    attacker = integrator(database, new_attacker)
    me = attacker.role
    attacker.execute(f"""
        CREATE FUNCTION {me}.f() RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN
          RAISE WARNING 'talkative warning'; RAISE LOG 'talkative log'; RAISE NOTICE 'talkative notice';
          BEGIN RAISE EXCEPTION 'talkative error'; EXCEPTION WHEN OTHERS THEN END;
          RETURN true; END $$""")
    make_server(attacker, f"{me}.f()")
    deliver(database)
    database.wait_settled()
    assert "talkative" not in database.cluster.log()


# -------------------------------------------------------------------------------------------------
# Conditions of captures
# -------------------------------------------------------------------------------------------------


def test_ddl_of_a_superuser_on_a_child_runs_no_condition(
    database: Database, new_attacker: NewAttacker, open_folder: Path
) -> None:
    mallory = new_attacker("outbox.grant_capture")
    traps = Traps(mallory, open_folder)
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mallory.execute("SELECT outbox.capture('t', condition => %s)", (f"id > 0 AND {traps.condition}",))
    database.execute("CREATE TABLE public.child (extra int, v text, id int NOT NULL)")
    database.execute(f"ALTER TABLE public.child INHERIT {mallory.role}.t")
    assert not traps.sprung()
    conditions = database.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 'public.child'::regclass AND tgqual IS NOT NULL ORDER BY 1"
    )
    assert [name for (name,) in conditions] == ["00_outbox_capture_delete", "00_outbox_capture_insert"]


def test_an_insert_of_others_plans_no_condition_as_the_new_owner(
    database: Database, new_attacker: NewAttacker, open_folder: Path
) -> None:
    mallory = new_attacker("outbox.grant_capture", "outbox.grant_produce")
    traps = Traps(mallory, open_folder)
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mallory.execute("SELECT outbox.capture('t', condition => %s)", (traps.condition,))
    database.execute(
        f"ALTER TABLE {mallory.role}.t OWNER TO CURRENT_USER; GRANT ALL ON {mallory.role}.t TO {mallory.role}"
    )
    mallory.execute("INSERT INTO t VALUES (1, 'a')")
    mallory.execute("UPDATE t SET v = 'b'")
    assert not traps.sprung()


def test_a_backfill_of_a_new_owner_runs_no_condition_of_the_former(
    database: Database, new_attacker: NewAttacker, open_folder: Path
) -> None:
    mallory = new_attacker("outbox.grant_capture")
    traps = Traps(mallory, open_folder)
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mallory.execute("INSERT INTO t VALUES (1, 'a')")
    mallory.execute("SELECT outbox.capture('t', condition => %s)", (traps.condition,))
    database.execute(f"ALTER TABLE {mallory.role}.t OWNER TO CURRENT_USER")
    database.add_destination("d", "null:")
    id = database.value(f"SELECT outbox.backfill('{mallory.role}.t')")
    wait_until(
        lambda: database.value("SELECT state FROM outbox.backfill_task WHERE id = %s", (id,)),
        lambda state: state in ("finished", "failed"), what="the backfill to end",
    )  # fmt: skip
    assert not traps.sprung()
