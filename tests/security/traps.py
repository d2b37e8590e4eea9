"""Hostile objects of a role: code that leaves a trace where it runs with rights that the role does not have.

Elsewhere it says nothing. A transaction that only reads may run a program, too, so no trap is disarmed by that.
"""

from __future__ import annotations

from pathlib import Path

from psycopg import sql

from .attacker import Attacker

# A superuser makes it in each database where a trap may spring. Roles that may use the schema are watched.
WITNESS = """
    CREATE SCHEMA witness;
    CREATE FUNCTION witness.note(name) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
      EXECUTE pg_catalog.format('COPY (SELECT %L) TO PROGRAM ''cat >>{file}''', $1); END $$;
"""

# Kinds of objects whose code PostgreSQL runs without a call that anybody has written. {me} is the role.
# No role has the rights of everybody only (extension/base/sandbox.hpp), so code first asks what it may do.
OBJECTS = """
    CREATE FUNCTION {me}.strike() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
      IF pg_catalog.has_schema_privilege('witness', 'USAGE') THEN
        PERFORM witness.note(current_user);
      ELSIF pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off' THEN
        PERFORM {me}.break_out();
      END IF;
      RETURN true; END $$;
    CREATE FUNCTION {me}.break_out() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
      PERFORM pg_catalog.set_config('role', 'none', false);
      IF pg_catalog.has_schema_privilege('witness', 'USAGE') THEN
        PERFORM witness.note(current_user);
      END IF;
      EXCEPTION WHEN OTHERS THEN NULL; END $$;
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

# A table with code in every place that has some, a partitioned one with a row, and an outbox table of an application.
TABLE = """
    CREATE TABLE {me}.t (id int PRIMARY KEY, v text, m {me}.mood DEFAULT 'a', n {me}.d);
    CREATE INDEX ON {me}.t ({me}.folds(id)) WHERE {me}.folds(1);
    CREATE STATISTICS {me}.s ON ({me}.folds(id)), v FROM {me}.t;
    ALTER TABLE {me}.t ADD CHECK ({me}.strike());
    ALTER TABLE {me}.t ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON {me}.t USING ({me}.strike());
    CREATE VIEW {me}.w AS SELECT * FROM {me}.t WHERE {me}.strike();
    CREATE TABLE {me}.p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE {me}.p0 PARTITION OF {me}.p FOR VALUES FROM (1000) TO (2000);
    INSERT INTO {me}.p VALUES (1000, 'a');
    CREATE TABLE {me}.old (
        id uuid NOT NULL DEFAULT gen_random_uuid(), topic varchar(255) NOT NULL, message jsonb NOT NULL,
        state varchar(50) NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT now(),
        processed_at timestamptz);
    INSERT INTO {me}.old (topic, message) VALUES ('item.old', '{}');
    CREATE INDEX ON {me}.old ({me}.folds(1)) WHERE {me}.folds(1);
    CREATE STATISTICS {me}.s2 ON ({me}.folds(1)), topic FROM {me}.old;
    ALTER TABLE {me}.old ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON {me}.old USING ({me}.strike());
    CREATE RULE r AS ON INSERT TO {me}.old DO ALSO SELECT {me}.strike()
"""


class Traps:
    """`folder` must be one in which the server may write."""

    def __init__(self, attacker: Attacker, folder: Path) -> None:
        self.me = attacker.role
        self.file = folder / "sprung"
        self.attacker = attacker
        attacker.database.execute(WITNESS.replace("{file}", str(self.file)))
        self._lay(OBJECTS)
        # Literals of a domain run its CHECK as soon as they are analyzed, and constants when they are planned.
        self.condition = (
            "'{1}'::{me}.d[] IS NOT NULL AND '(1)'::{me}.pair IS NOT NULL AND '[1,2]'::{me}.span IS NOT NULL "
            "AND {me}.folds(1) AND 1 OPERATOR({me}.<) 2 AND to_jsonb('a'::{me}.mood) IS NOT NULL"
        ).replace("{me}", self.me)

    def _lay(self, objects: str) -> None:
        self.attacker.execute(objects.replace("{me}", self.me))

    def lay_tables(self) -> None:
        self._lay(TABLE)

    def watch(self, *roles: str) -> None:
        """Code of the attacker must not have the rights of these roles either. Superusers are watched anyway."""
        for role in roles:
            self.attacker.database.execute(sql.SQL("GRANT USAGE ON SCHEMA witness TO {}").format(sql.Identifier(role)))

    def sprung(self) -> set[str]:
        """Returns the roles with whose rights code of the attacker ran."""
        return set(self.file.read_text().split()) if self.file.exists() else set()
