"""Endpoints cost their relay memory: a role with few rights cannot make them too many or too large."""

from __future__ import annotations

import pytest
from psycopg import errors

from database import Database

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
