"""Endpoints cost their relay memory: a role with few rights cannot make them too many or too large."""

from __future__ import annotations

import pytest
from psycopg import errors

from database import Database
from waiting import wait_until

from .attacker import Attacker, NewAttacker

MANY = """
    INSERT INTO outbox.endpoint (server, name, url, topics, secret_name, tenant)
    SELECT 'hooks', 'e' || i, 'http://127.0.0.1:9/' || repeat('u', %(size)s), repeat('t', %(size)s), NULL, 'acme'
      FROM generate_series(%(first)s::int, %(last)s::int) AS i"""


@pytest.fixture
def mallory(database: Database, new_attacker: NewAttacker) -> Attacker:
    attacker = new_attacker("outbox.grant_operate", "outbox.grant_monitor")
    database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {attacker.role}")
    attacker.execute("CREATE SERVER hooks FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'endpoints:', relay 'external')")
    return attacker


def count(database: Database) -> int:
    return database.value("SELECT count(*) FROM outbox.endpoint")


def test_a_destination_has_a_limited_number_of_endpoints(database: Database, mallory: Attacker) -> None:
    with mallory.connect() as session:
        session.execute(MANY, {"size": 1, "first": 1, "last": 49_999})
        session.execute(MANY, {"size": 1, "first": 50_000, "last": 50_000})
        with pytest.raises(errors.ProgramLimitExceeded, match="cannot have more than 50000 endpoints"):
            session.execute(MANY, {"size": 1, "first": 50_001, "last": 50_001})
        session.execute("SELECT outbox.delete_endpoint('hooks', 'e1'), outbox.delete_endpoint('hooks', 'e2')")
    # Two sessions do not pass it together.
    with mallory.connect() as one, mallory.connect() as two:
        one.autocommit = two.autocommit = False
        one.execute(MANY, {"size": 1, "first": 60_001, "last": 60_002})
        two.execute("SET lock_timeout = '100ms'")
        with pytest.raises(errors.LockNotAvailable):
            two.execute(MANY, {"size": 1, "first": 60_003, "last": 60_003})
        two.rollback()
        one.commit()
        with pytest.raises(errors.ProgramLimitExceeded):
            two.execute(MANY, {"size": 1, "first": 60_003, "last": 60_003})
        two.rollback()
    assert count(database) == 50_000


def test_sessions_do_not_pass_the_limit_together(database: Database, mallory: Attacker) -> None:
    """Each of them is far from it, as far as it sees."""
    with mallory.connect() as one, mallory.connect() as two, mallory.connect() as old:
        for session in (one, two, old):
            session.autocommit = False
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM outbox.endpoint")
        one.execute(MANY, {"size": 1, "first": 1, "last": 30_000})
        two.execute("SET lock_timeout = '100ms'")
        with pytest.raises(errors.LockNotAvailable):
            two.execute(MANY, {"size": 1, "first": 30_001, "last": 60_000})
        two.rollback()
        one.commit()
        with pytest.raises(errors.SerializationFailure):
            old.execute(MANY, {"size": 1, "first": 30_001, "last": 60_000})
        old.rollback()
        with pytest.raises(errors.ProgramLimitExceeded):
            two.execute(MANY, {"size": 1, "first": 30_001, "last": 60_000})
        two.rollback()
    assert count(database) == 30_000


def test_a_session_that_changes_no_text_waits_for_no_other(database: Database, mallory: Attacker) -> None:
    mallory.execute(MANY, {"size": 1, "first": 1, "last": 2})
    with mallory.connect() as one, mallory.connect() as two:
        one.autocommit = False
        one.execute(MANY, {"size": 1, "first": 3, "last": 3})
        two.execute("SET lock_timeout = '100ms'")
        two.execute("UPDATE outbox.endpoint SET paused = true WHERE name = 'e1'")
        one.rollback()


def totals(database: Database) -> list[tuple]:
    return database.execute("SELECT server::text, endpoints, bytes FROM outbox.endpoint_total ORDER BY server")


def test_totals_follow_the_endpoints(database: Database, mallory: Attacker) -> None:
    counted = """
        SELECT e.server::text, count(*), sum(outbox_internal.endpoint_bytes(e.url, e.topics, e.secret_name, e.tenant))
          FROM outbox.endpoint AS e GROUP BY 1 ORDER BY 1"""
    mallory.execute("CREATE SERVER others FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'endpoints:', relay 'external')")
    for statement in (
        "INSERT INTO outbox.endpoint (server, name, url, topics) SELECT s, 'e' || i, 'http://h/', 'a,b' FROM unnest(ARRAY['hooks', 'others']::name[]) AS s, generate_series(1, 5) AS i",
        "UPDATE outbox.endpoint SET url = url || name WHERE name <> 'e1'",
        "UPDATE outbox.endpoint SET tenant = 't', topics = '*'",
        "SELECT outbox.delete_endpoint('hooks', 'e3')",
        "ALTER SERVER hooks RENAME TO renamed",
        "INSERT INTO outbox.endpoint (server, name, url) VALUES ('others', 'e1', 'http://h/') ON CONFLICT (server, name) DO UPDATE SET url = 'http://longer/'",
        "DROP SERVER renamed",
    ):  # fmt: skip
        mallory.execute(statement)
        assert totals(database) == database.execute(counted), statement
    mallory.execute("DROP SERVER others")
    assert totals(database) == []


def test_topics_count_for_their_place_in_the_index(database: Database, mallory: Attacker) -> None:
    insert = """
        INSERT INTO outbox.endpoint (server, name, url, topics)
        SELECT 'hooks', 'e' || i, 'http://h/', repeat('*,', 2000) || '*' FROM generate_series(1, %s) AS i"""
    mallory.execute(insert, (500,))
    with pytest.raises(errors.ProgramLimitExceeded, match="bytes of text"):
        mallory.execute(insert.replace("'e'", "'f'"), (50,))


def test_a_row_costs_the_same_however_many_there_are(database: Database, mallory: Attacker) -> None:
    """Counted in rows that are read, which is not a matter of time."""
    mallory.execute(MANY, {"size": 1, "first": 1, "last": 20_000})
    with mallory.connect() as session:
        session.autocommit = False
        read = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables WHERE relid = 'outbox.endpoint'::regclass"
        before = session.execute(read).fetchone()
        session.execute(MANY, {"size": 1, "first": 20_001, "last": 20_001})
        after = session.execute(read).fetchone()
        assert before and after and after[0] - before[0] < 100


def test_the_texts_of_endpoints_are_limited(database: Database, mallory: Attacker) -> None:
    mallory.execute(MANY, {"size": 4000, "first": 1, "last": 8000})
    with pytest.raises(errors.ProgramLimitExceeded, match="bytes of text"):
        mallory.execute(MANY, {"size": 4000, "first": 8001, "last": 9000})
    # Nor do rows grow beyond it that are there already.
    with pytest.raises(errors.ProgramLimitExceeded, match="bytes of text"):
        mallory.execute("UPDATE outbox.endpoint SET secret_name = repeat('s', 1024)")
    with pytest.raises(errors.CheckViolation):
        mallory.execute("UPDATE outbox.endpoint SET tenant = repeat('t', 2000)")
    assert count(database) == 8000


def test_operators_do_not_see_endpoints_of_other_owners(
    database: Database, mallory: Attacker, new_attacker: NewAttacker
) -> None:
    mallory.execute(MANY, {"size": 1, "first": 1, "last": 3})
    other = new_attacker("outbox.grant_operate", "outbox.grant_monitor")
    seen = "SELECT name::text, tenant FROM outbox.endpoint_status ORDER BY 1"
    assert mallory.execute(seen) == [(f"e{i}", "acme") for i in (1, 2, 3)]
    assert other.execute(seen) == []
    assert len(database.execute(seen)) == 3
    # States and counts of the destination are for all operators.
    assert other.execute("SELECT destination::text FROM outbox.status WHERE destination = 'hooks'") == [("hooks",)]


def test_a_relay_keeps_no_more_than_the_limit_however_the_rows_came_in(database: Database) -> None:
    database.execute("CREATE SERVER hooks FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'endpoints:')")
    database.execute("ALTER TABLE outbox.endpoint DISABLE TRIGGER count_added")
    database.execute(
        "INSERT INTO outbox.endpoint (server, name, url, topics) "
        "SELECT 'hooks', 'e' || i, 'http://127.0.0.1:9/', 'none' FROM generate_series(1, 50002) AS i"
    )
    database.execute("ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER count_added")
    wait_until(
        lambda: database.status("hooks")["last_error"], lambda error: str(error).startswith("2 endpoints get nothing:"),
        what="the relay to say how many are left out",
    )  # fmt: skip
    assert [found.what for found in database.health() if "hooks" in found.object] == ["endpoints left out"]
    database.enqueue()
    database.wait_settled("hooks")
    database.execute("DELETE FROM outbox.endpoint WHERE name IN ('e1', 'e2')")
    wait_until(database.health, lambda found: found == [], what="the relay to have room for all")
