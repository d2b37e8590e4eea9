"""Roles that may capture tables (outbox.grant_capture), and what runs when others touch their tables."""

from __future__ import annotations

from .attacker import NewAttacker

def test_a_backfill_does_not_run_index_expressions_as_superuser(new_attacker: NewAttacker) -> None:
    """S1"""
    mallory = new_attacker("outbox.grant_capture")
    me = mallory.role
    mallory.execute(f"""
        CREATE FUNCTION {me}.strike() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
          ALTER ROLE {me} SUPERUSER; RETURN 'x';
          EXCEPTION WHEN insufficient_privilege THEN RETURN 'not yet'; END $$;
        CREATE FUNCTION {me}.trap(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
          RETURN {me}.strike(); END $$;
        CREATE TABLE {me}.t (id int PRIMARY KEY, v text);
        CREATE INDEX ON {me}.t ((v || {me}.trap('constant')))""")
    mallory.execute("SELECT outbox.capture('t')")
    mallory.execute("SELECT outbox.backfill('t')")
    assert not mallory.is_superuser()
