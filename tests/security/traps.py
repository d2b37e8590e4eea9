"""Hostile objects of a role: code that runs a program of the operating system where it has the rights of a superuser.

Elsewhere it says nothing. A transaction that only reads may run a program, too, so no trap is disarmed by that.
"""

from __future__ import annotations

from pathlib import Path

from cluster import SUPERUSER

from .attacker import Attacker

# Kinds of objects whose code PostgreSQL runs without a call that anybody has written. {me} is the role.
OBJECTS = """
    CREATE FUNCTION {me}.strike() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
      IF pg_catalog.pg_has_role('{superuser}', 'USAGE') THEN
        EXECUTE pg_catalog.concat('COPY (SELECT 1) TO PROGRAM ''cat >{file}''');
      END IF;
      RETURN true; END $$;
    CREATE FUNCTION {me}.folds(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
      RETURN {me}.strike(); END $$;
    CREATE DOMAIN {me}.d AS int CHECK ({me}.strike());
    CREATE TYPE {me}.pair AS (a {me}.d);
    CREATE TYPE {me}.span AS RANGE (subtype = {me}.d);
    CREATE FUNCTION {me}.less(int, int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
      RETURN {me}.strike(); END $$;
    CREATE OPERATOR {me}.< (LEFTARG = int, RIGHTARG = int, FUNCTION = {me}.less);
    CREATE FUNCTION {me}.same(text, text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
      PERFORM {me}.strike(); RETURN $1 OPERATOR(pg_catalog.=) $2; END $$;
    CREATE OPERATOR {me}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {me}.same);
    CREATE TYPE {me}.mood AS ENUM ('a');
    CREATE FUNCTION {me}.mood_json({me}.mood) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
      PERFORM {me}.strike(); RETURN 'null'; END $$;
    CREATE CAST ({me}.mood AS json) WITH FUNCTION {me}.mood_json({me}.mood)
"""

# A table with code in every place that has some.
TABLE = """
    CREATE TABLE {me}.t (id int PRIMARY KEY, v text, m {me}.mood DEFAULT 'a', n {me}.d);
    CREATE INDEX ON {me}.t ({me}.folds(id)) WHERE {me}.folds(1);
    CREATE STATISTICS {me}.s ON ({me}.folds(id)), v FROM {me}.t;
    ALTER TABLE {me}.t ADD CHECK ({me}.strike());
    ALTER TABLE {me}.t ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON {me}.t USING ({me}.strike());
    CREATE VIEW {me}.w AS SELECT * FROM {me}.t WHERE {me}.strike();
    CREATE TABLE {me}.p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)
"""


class Traps:
    """`folder` must be one in which the server may write."""

    def __init__(self, attacker: Attacker, folder: Path) -> None:
        self.me = attacker.role
        self.file = folder / "sprung"
        self.attacker = attacker
        self._lay(OBJECTS)
        # Literals of a domain run its CHECK as soon as they are analyzed, and constants when they are planned.
        self.condition = (
            "'{1}'::{me}.d[] IS NOT NULL AND '(1)'::{me}.pair IS NOT NULL AND '[1,2]'::{me}.span IS NOT NULL "
            "AND {me}.folds(1) AND 1 OPERATOR({me}.<) 2 AND to_jsonb('a'::{me}.mood) IS NOT NULL"
        ).replace("{me}", self.me)

    def _lay(self, objects: str) -> None:
        for name, value in {"me": self.me, "superuser": SUPERUSER, "file": str(self.file)}.items():
            objects = objects.replace("{" + name + "}", value)
        self.attacker.execute(objects)

    def lay_tables(self) -> None:
        self._lay(TABLE)

    def sprung(self) -> bool:
        return self.file.exists()
