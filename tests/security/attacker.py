"""A role with few rights in a database, and checks of rights that it must never get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from database import Database

# The fixture `new_role`: (attributes='') -> its name
NewRole = Callable[..., str]


class Attacker:
    """A role with a schema of its own, and sessions in which it is the one that logged in."""

    def __init__(self, database: Database, role: str) -> None:
        self.database = database
        self.role = role
        database.execute(sql.SQL("CREATE SCHEMA {0} AUTHORIZATION {0}").format(sql.Identifier(role)))

    def grant(self, *functions: str) -> None:
        """Calls grant functions, such as 'outbox.grant_capture', for the role."""
        for function in functions:
            self.database.execute(f"SELECT {function}('{self.role}')")

    def connect(self) -> psycopg.Connection:
        """A new session, in autocommit mode, with the role's schema as search_path."""
        connection = self.database.cluster.connect(self.database.name, user=self.role)
        connection.execute(f"SET search_path = {self.role}, public")
        return connection

    def execute(self, statement: Any, parameters: tuple[object, ...] = ()) -> list[tuple]:
        """Runs a statement in a session of its own."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def is_superuser(self) -> bool:
        return bool(self.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.role,)))


# The fixture `new_attacker`: (*grant_functions, attributes='') -> Attacker
NewAttacker = Callable[..., Attacker]
