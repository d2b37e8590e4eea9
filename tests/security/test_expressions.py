"""Expressions of destinations are code of the role that owns the foreign server. A relay that runs as a
superuser evaluates them."""

from __future__ import annotations

import pytest

from conftest import Receiver
from database import Database
from waiting import wait_until

from .attacker import Attacker, NewAttacker

# Functions that say what they are not allowed to be: PARALLEL SAFE and STABLE. The option `payload` sends the
# name under which the function ran, or the error of what it tried.
TRIES = {
    "who it is": ("RETURN current_user;", "{me}"),
    "a table": ("CREATE TABLE {me}.loot (i int); RETURN 'made';", "read-only|non-volatile"),
    "a row, by a function that may write": ("PERFORM {me}.write(); RETURN 'written';", "read-only|parallel"),
    "another role": ("PERFORM set_config('role', 'postgres', false); RETURN current_user;", "parallel|security-restricted"),
    "another session user": ("PERFORM set_config('session_authorization', 'postgres', false); RETURN current_user;", "parallel|security-restricted|permission denied"),
    "a writable transaction": ("PERFORM set_config('transaction_read_only', 'off', true); RETURN 'writable';", "parallel|before any query"),
    "a secret": ("RETURN (SELECT string_agg(umoptions::text, '') FROM pg_catalog.pg_user_mapping);", "permission denied"),
    "a file": ("RETURN pg_read_file('PG_VERSION');", "permission denied"),
    "the other events": ("RETURN (SELECT count(*)::text FROM outbox.event);", "permission denied"),
    "its own operator, by the search_path": ("RETURN CASE WHEN 1 = 2 THEN 'fooled' ELSE current_user END;", "{me}"),
}  # fmt: skip


def integrator(database: Database, new_attacker: NewAttacker) -> Attacker:
    attacker = new_attacker()
    database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {attacker.role}")
    me = attacker.role
    attacker.execute(f"""
        CREATE TABLE {me}.noted (i int);
        CREATE FUNCTION {me}.write() RETURNS void LANGUAGE sql VOLATILE AS $$INSERT INTO {me}.noted VALUES (1)$$;
        CREATE FUNCTION {me}.always(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
        CREATE OPERATOR {me}.= (LEFTARG = int, RIGHTARG = int, FUNCTION = {me}.always)""")
    return attacker


@pytest.mark.parametrize("tries", TRIES)
def test_an_expression_runs_with_the_rights_of_its_owner_only(
    database: Database, http: None, receiver: Receiver, new_attacker: NewAttacker, tries: str
) -> None:
    attacker = integrator(database, new_attacker)
    me = attacker.role
    body, expected = (text.replace("{me}", me) for text in TRIES[tries])
    attacker.execute(
        f"CREATE FUNCTION {me}.strike() RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$BEGIN {body} END$$"
    )
    attacker.execute(
        f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url '{receiver.url()}', payload '{me}.strike()')"
    )
    database.execute("SELECT outbox.enqueue('item', 'a', 'Added', '{}')")

    def outcome() -> str | None:
        if receiver.requests:
            return receiver.requests[0].body.decode()
        return database.value("SELECT last_error FROM outbox.delivery")

    seen = wait_until(outcome, lambda seen: seen is not None, what="an outcome")
    assert any(part in seen for part in expected.split("|")), seen
    assert attacker.execute(f"SELECT * FROM {me}.noted") == []
    assert not database.value("SELECT to_regclass(%s) IS NOT NULL", (f"{me}.loot",))
    assert not attacker.is_superuser()
    # Nor may it where an operator asks for the state of the event.
    database.execute("SELECT outbox.event_status(event_id) FROM outbox.event")
    assert attacker.execute(f"SELECT * FROM {me}.noted") == []


def test_checking_an_option_calls_no_function(database: Database, new_attacker: NewAttacker) -> None:
    attacker = integrator(database, new_attacker)
    me = attacker.role
    attacker.execute(
        f"CREATE FUNCTION {me}.strike() RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS "
        f"$$BEGIN RAISE EXCEPTION 'called as %', current_user; END$$"
    )
    database.execute(
        f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', relay 'external', filter '{me}.strike()')"
    )
