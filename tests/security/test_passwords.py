"""Passwords in logs fail a test, whatever it is about (`tests/system/passwords.py`)."""

from __future__ import annotations

import psycopg
import pytest

from database import Database
from passwords import MARK, lines_with_passwords, password


def test_a_password_in_the_log_of_the_server_is_found(database: Database) -> None:
    secret = password("of-nobody")
    database.execute(f"DO $$ BEGIN RAISE WARNING 'not {secret}'; END $$")
    (line,) = database.cluster.complaints([])
    assert secret in line
    assert not database.cluster.complaints([]), "it is reported once"


def test_a_statement_with_which_a_test_sets_a_password_is_not(database: Database) -> None:
    secret = password("of-nobody")
    with pytest.raises(psycopg.errors.UndefinedObject):
        database.execute(f"CREATE USER MAPPING FOR nobody_of_this_name SERVER\n none OPTIONS (password '{secret}')")
    assert MARK in database.cluster.log_since(database.cluster.test_began)
    assert not database.cluster.complaints([])


def test_logs_of_programs() -> None:
    assert lines_with_passwords(f"a\nno {password('x')}\n\tb") == [f"no {password('x')}"]
    # Statements of workers are not those of a test.
    of_worker = f"2026-01-01 00:00:00 UTC [1] pg_outbox relay d STATEMENT:  SELECT '{password('x')}'"
    assert lines_with_passwords(of_worker) == [of_worker]
    of_client = of_worker.replace("pg_outbox relay", "client backend")
    assert lines_with_passwords(f"{of_client}\n\t'{password('x')}'\n") == []
