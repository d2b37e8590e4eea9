"""Outbox tables of applications (outbox.adopt), and views of the log that replace them."""

from __future__ import annotations

import pytest
from psycopg import errors

from database import Database

from .attacker import NewAttacker
from .test_capture import lay_trap

SEED = """
    CREATE TABLE {table} (
        id uuid NOT NULL DEFAULT gen_random_uuid(), topic varchar(255) NOT NULL, message jsonb NOT NULL,
        state varchar(50) NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz)
"""


@pytest.mark.parametrize("dry_run", [True, False])
def test_adopting_a_table_does_not_run_code_of_its_owner(
    database: Database, new_attacker: NewAttacker, dry_run: bool
) -> None:
    """S16"""
    mallory = new_attacker()
    trap = lay_trap(mallory)
    mallory.execute(SEED.format(table="app_outbox"))
    mallory.execute(f"""
        CREATE INDEX ON app_outbox ((state || {trap}('constant')));
        CREATE INDEX ON app_outbox (topic) WHERE state = {trap}(topic);
        CREATE STATISTICS s ON (state || {trap}('constant')), topic FROM app_outbox;
        INSERT INTO app_outbox (topic, message) SELECT 'a.b', '{{}}' FROM generate_series(1, 10)""")
    with database.connect() as connection:
        adopt = f"SELECT * FROM outbox.adopt('{mallory.role}.app_outbox', 'tutorial', dry_run => {dry_run})"
        seen = dict(connection.execute(adopt).fetchall())
    assert not mallory.is_superuser()
    assert (seen["rows to move"], seen["rows left"]) == ("10", "0")
    assert database.value("SELECT count(*) FROM outbox.event") == (0 if dry_run else 10)


def test_policies_and_rules_of_a_table_that_is_adopted_do_not_run_as_the_caller(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S16"""
    mallory = new_attacker()
    trap = lay_trap(mallory)
    mallory.execute(SEED.format(table="app_outbox"))
    mallory.execute(f"""
        INSERT INTO app_outbox (topic, message) VALUES ('a.b', '{{}}');
        ALTER TABLE app_outbox ENABLE ROW LEVEL SECURITY;
        CREATE POLICY p ON app_outbox USING ({trap}(topic) <> '');
        CREATE RULE r AS ON INSERT TO app_outbox DO ALSO SELECT {trap}('')""")
    database.execute(f"SELECT * FROM outbox.adopt('{mallory.role}.app_outbox', 'tutorial')")
    assert not mallory.is_superuser()
    assert database.value("SELECT count(*) FROM outbox.event") == 1


def test_a_view_of_the_log_does_not_show_other_events(database: Database, new_attacker: NewAttacker) -> None:
    """S8"""
    mallory = new_attacker()
    me = mallory.role
    for layout in ("seed", "seed_jsonb", "debezium", "tutorial", "cqrs"):
        database.execute(
            f"SELECT outbox.create_outbox_view('public.{layout}', '{layout}', topic => 'app.{{event_type}}', shows => 'all');"
            f"GRANT SELECT ON public.{layout} TO {me}"
        )
    database.execute("""
        SELECT outbox.enqueue('secret-type', gen_random_uuid()::text, 'secret', '{"a": "secret"}', topic => 'bank.secret');
        SELECT outbox.enqueue('a', gen_random_uuid()::text, 'b', '{"a": 1}', topic => 'app.b')""")
    mallory.execute(f"""
        CREATE TABLE seen (what text);
        CREATE FUNCTION {me}.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN
          INSERT INTO {me}.seen VALUES ($1); RETURN true; END $$""")
    for layout, columns in (
        ("seed", "aggregate_type payload"), ("seed_jsonb", "aggregatetype payload"),
        ("debezium", "aggregatetype payload"), ("tutorial", "topic message"), ("cqrs", "aggregate_type payload"),
    ):  # fmt: skip
        for column in columns.split():
            mallory.execute(f"SELECT count(*) FROM {layout} WHERE leak({column}::text)")
    assert mallory.execute("SELECT count(*) > 0 FROM seen") == [(True,)]
    assert mallory.execute("SELECT what FROM seen WHERE what LIKE '%secret%'") == []


def test_progress_of_backfills_does_not_show_those_of_others(database: Database, new_attacker: NewAttacker) -> None:
    """S8"""
    mallory, victim = new_attacker("outbox.grant_capture"), new_attacker("outbox.grant_capture")
    me = mallory.role
    victim.execute("CREATE TABLE secret (id int PRIMARY KEY)")
    victim.execute("SELECT outbox.capture('secret')")
    database.add_destination("d", "null:")
    victim.execute("SELECT outbox.backfill('secret')")
    mallory.execute(f"""
        CREATE TABLE seen (what text);
        CREATE FUNCTION {me}.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN
          INSERT INTO {me}.seen VALUES ($1); RETURN true; END $$""")
    assert mallory.execute('SELECT count(*) FROM outbox.backfill_progress WHERE leak("table"::text)') == [(0,)]
    assert mallory.execute("TABLE seen") == []


NOT_JSONB = ['{"n": 1e999999}', '{"s": "\\ud800"}', '{"s": "\\u0000"}', '"\\udc00\\ud800"', "[" * 5000 + "]" * 5000]


def test_payloads_that_jsonb_cannot_hold_break_no_view(database: Database, new_attacker: NewAttacker) -> None:
    """S22"""
    mallory, reader = new_attacker("outbox.grant_produce", "outbox.grant_capture"), new_attacker()
    views = {"seed_jsonb": "payload", "debezium": "payload", "tutorial": "message", "cqrs": "payload"}
    for layout in views:
        database.execute(
            f"SELECT outbox.create_outbox_view('public.{layout}', '{layout}', topic => '{{aggregate_type}}.{{event_type}}', shows => 'all');"
            f"GRANT SELECT ON public.{layout} TO {reader.role}"
        )
    database.execute(
        "SELECT outbox.create_outbox_view('public.tutorial2', 'tutorial', topic => '{event_type}', shows => 'all')"
    )
    database.execute(f"GRANT SELECT ON public.tutorial2 TO {reader.role}")
    views["tutorial2"] = "message"
    for json in NOT_JSONB:
        for topic, id in (("a.b", "a1b0a0c0-0000-4000-8000-000000000001"), ("b", "x")):
            mallory.execute("SELECT outbox.enqueue('a', %s, 'b', convert_to(%s, 'UTF8'), 'application/json', topic => %s, event_id => "
                            "CASE %s WHEN 'x' THEN NULL ELSE gen_random_uuid() END)", (id, json, topic, id))  # fmt: skip
    database.execute(
        "SELECT outbox.enqueue('a', 'a1b0a0c0-0000-4000-8000-000000000002', 'b', '{\"fine\": 1e3}', topic => 'a.b')"
    )
    # A column of type json may hold such a value too.
    mallory.execute("CREATE TABLE t (id uuid PRIMARY KEY, j json)")
    mallory.execute("SELECT outbox.capture('t', aggregate_type => 'a', insert_type => 'b', topic => 'a.b')")
    mallory.execute("INSERT INTO t VALUES (gen_random_uuid(), '{\"n\": 1e999999}')")
    for view, column in views.items():
        reader.execute(f"SELECT md5(v::text) FROM {view} AS v")
        rows = reader.execute(f"SELECT {column}::text FROM {view} WHERE {column}::text LIKE '%fine%'")
        assert rows == ([('{"fine": 1000}',)] if view not in ("tutorial", "tutorial2") else []), view
    shallow = '{"deep": [[["x"]]], "pair": "\\ud83d\\ude00"}'
    database.execute(
        "SELECT outbox.enqueue('a', 'c', 'b', convert_to(%s, 'UTF8'), 'application/json', topic => 'a.b')", (shallow,)
    )
    assert database.value("SELECT payload FROM seed_jsonb WHERE aggregateid = 'c'") == {
        "deep": [[["x"]]],
        "pair": "\U0001f600",
    }


def test_a_query_on_a_view_can_be_cancelled(database: Database) -> None:
    """S22: only errors of a payload are ignored, no others."""
    with pytest.raises(errors.QueryCanceled):
        database.execute("""
            SET statement_timeout = '300ms';
            SELECT count(outbox.payload_as_jsonb(convert_to('[' || repeat('1,', 1000000) || i || ']', 'UTF8')))
              FROM generate_series(1, 1000000) AS i""")
