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
    CREATE FUNCTION {me}.later(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
      RETURN {me}.strike(); END $$;
    CREATE DOMAIN {me}.d AS int CHECK ({me}.strike());
    CREATE TYPE {me}.pair AS (a {me}.d);
    CREATE FUNCTION {me}.distance({me}.d, {me}.d) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
      PERFORM {me}.strike(); RETURN 1; END $$;
    CREATE TYPE {me}.span AS RANGE (subtype = {me}.d, subtype_diff = {me}.distance);
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

# Names that statements may find instead of those of PostgreSQL, where search_path begins with the schema of the role.
SHADOWS = """
    DO $do$ DECLARE
      plain CONSTANT oid[] := '{bool,"char",name,int8,int4,text,oid,float8,timestamptz,interval,uuid,jsonb,numeric,regclass,xid8,bytea}'::regtype[];
      one record;
      parameters text;
    BEGIN
      FOR one IN
        SELECT o.oprname AS name, o.oprleft::regtype AS left_type, o.oprright::regtype AS right_type, o.oprresult::regtype AS result
          FROM pg_operator AS o
         WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft = ANY (plain) AND o.oprright = ANY (plain) AND o.oprcode <> 0
           AND NOT EXISTS (SELECT FROM pg_operator AS own WHERE own.oprnamespace = '{me}'::regnamespace AND own.oprname = o.oprname
                              AND own.oprleft = o.oprleft AND own.oprright = o.oprright)
      LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION {me}.%1$I(%2$s, %3$s) RETURNS %4$s LANGUAGE plpgsql AS '
                       '$f$ BEGIN PERFORM {me}.strike(); RETURN $1 OPERATOR(pg_catalog.%5$s) $2; END $f$;'
                       'CREATE OPERATOR {me}.%5$s (LEFTARG = %2$s, RIGHTARG = %3$s, FUNCTION = {me}.%1$I)',
                       'operator ' || one.name, one.left_type, one.right_type, one.result, one.name);
      END LOOP;
      FOR one IN
        SELECT p.proname AS name, p.prorettype::regtype AS result, p.pronargs AS count, oidvectortypes(p.proargtypes) AS arguments
          FROM pg_proc AS p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.prorettype = ANY (plain)
           AND p.proargtypes::oid[] <@ plain AND p.pronargs <= 3 AND p.proallargtypes IS NULL AND p.provariadic = 0
           AND p.proname NOT LIKE 'pg\\_stat%'
      LOOP
        parameters := array_to_string(ARRAY(SELECT '$' || n FROM generate_series(1, one.count) AS n), ', ');
        EXECUTE format('CREATE FUNCTION {me}.%1$I(%2$s) RETURNS %3$s LANGUAGE plpgsql AS '
                       '$f$ BEGIN PERFORM {me}.strike(); RETURN pg_catalog.%1$I(%4$s); END $f$', one.name, one.arguments, one.result, parameters);
      END LOOP;
    END $do$
"""

# Tables with code in every place that has some, a partitioned one with a row, and an outbox table of an application.
TABLE = """
    CREATE TABLE {me}.t (id int PRIMARY KEY, v text DEFAULT {me}.strike()::text, m {me}.mood DEFAULT 'a', n {me}.d,
                         g boolean GENERATED ALWAYS AS ({me}.folds(id)) STORED, r {me}.span);
    CREATE INDEX ON {me}.t USING gist (r);
    CREATE INDEX ON {me}.t ({me}.later(id)) WHERE {me}.later(2);
    CREATE RULE r AS ON UPDATE TO {me}.t DO ALSO SELECT {me}.strike();
    CREATE INDEX ON {me}.t ({me}.folds(id)) WHERE {me}.folds(1);
    CREATE STATISTICS {me}.s ON ({me}.folds(id)), v FROM {me}.t;
    ALTER TABLE {me}.t ADD CHECK ({me}.strike());
    ALTER TABLE {me}.t ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON {me}.t USING ({me}.strike());
    CREATE VIEW {me}.w AS SELECT * FROM {me}.t WHERE {me}.strike();
    CREATE TABLE {me}.p (id int PRIMARY KEY, v text DEFAULT {me}.strike()::text) PARTITION BY RANGE (id);
    CREATE RULE r AS ON DELETE TO {me}.p DO ALSO SELECT {me}.strike();
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
        self.changing_condition = f"{self.condition} AND {self.me}.later(1)"

    def _lay(self, objects: str) -> None:
        self.attacker.execute(objects.replace("{me}", self.me))

    def lay_tables(self) -> None:
        self._lay(TABLE)

    def lay_shadows(self) -> None:
        self._lay(SHADOWS)

    def make_volatile(self) -> None:
        """A function of `changing_condition` is not what it was when it was checked."""
        self._lay("ALTER FUNCTION {me}.later VOLATILE PARALLEL UNSAFE")

    def watch(self, *roles: str) -> None:
        """Code of the attacker must not have the rights of these roles either. Superusers are watched anyway."""
        for role in roles:
            self.attacker.database.execute(sql.SQL("GRANT USAGE ON SCHEMA witness TO {}").format(sql.Identifier(role)))

    def sprung(self) -> set[str]:
        """Returns the roles with whose rights code of the attacker ran."""
        return set(self.file.read_text().split()) if self.file.exists() else set()
