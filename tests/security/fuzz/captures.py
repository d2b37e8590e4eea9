#!/usr/bin/python3
"""Captures of random tables, with conditions that get in their own way, DDL, DML, backfills, and triggers in wrong places.

Runs as a superuser, and as a role that may only capture its tables. At the end outbox.captures can
be read, others can create and alter their tables, and the role is what it was.
"""

from __future__ import annotations

import psycopg
import pytest
from fuzz import Database, Failure, Fuzz, NewFuzz, main, new_roles
from odd import CODE, JSON, Odd, quoted

from security.state import changes, snapshot

STATEMENTS_OF_A_ROUND = 700
STATEMENTS_OF_A_SESSION = 60

# Types of columns, with SQL for a value. {n} is a random number.
TYPES = {
    "int": "{n}", "bigint": "{n}", "smallint": "{n} % 100", "text": "repeat('{n}', {n} % 50)", "varchar(20)": "'{n}'", "name": "'{n}'",
    "char(5)": "'x'", '"char"': "'{n}'", "boolean": "{n} % 2 = 0", "numeric": "'NaN'", "numeric(5,2)": "{n} % 900", "real": "'Infinity'",
    "double precision": "'-Infinity'", "money": "'{n}'", "date": "'infinity'", "time": "'24:00'", "timetz": "'12:00+03'",
    "timestamp": "'-infinity'", "timestamptz": "now()", "interval": "'{n} days'", "uuid": "gen_random_uuid()", "json": "'[{n}]'",
    "jsonb": "'{{\"n\": {n}}}'", "bytea": "'\\x00ff'", "int[]": "'{{1,NULL,{n}}}'", "text[][]": "'{{{{a,b}},{{c,NULL}}}}'", "bit(3)": "B'101'",
    "bit varying": "B'1'", "inet": "'10.0.0.1/8'", "cidr": "'10.0.0.0/8'", "macaddr": "'08:00:2b:01:02:03'", "point": "'({n},NaN)'",
    "box": "'(1,1),(0,0)'", "polygon": "'((0,0),(1,1),(1,0))'", "circle": "'<(0,0),{n}>'", "path": "'[(0,0),(1,1)]'", "int4range": "'[1,5)'",
    "int4multirange": "'{{[1,2),[5,6)}}'", "tstzrange": "'empty'", "tsvector": "'a:1'", "tsquery": "'a & b'", "xml": "'<a/>'", "oid": "{n}",
    "xid8": "'{n}'", "pg_lsn": "'0/{n}'", "regclass": "'pg_class'", "pg_snapshot": "'1:1:'", "jsonpath": "'$.a'",
    "{role}.mood": "'good'", "{role}.pair": "ROW({n}, 'x')", "{role}.positive": "{n} + 1", "{role}.checked": "'x'", "{role}.pair[]": "ARRAY[ROW(1,NULL)]::{role}.pair[]",
}  # fmt: skip
KEYS = [
    "int",
    "bigint",
    "text",
    "uuid",
    "date",
    "name",
    "{role}.positive",
    "{role}.mood",
    "numeric",
    "timestamptz",
    "bytea",
    "inet",
]

OBJECTS = """
    CREATE SCHEMA {role} AUTHORIZATION {role};
    CREATE SCHEMA {role}2 AUTHORIZATION {role};
    SET ROLE {role};
    CREATE TYPE {role}.mood AS ENUM ('good', 'bad');
    CREATE TYPE {role}.pair AS (a int, b text);
    CREATE DOMAIN {role}.positive AS int CHECK (VALUE > -1000000);
    CREATE FUNCTION {role}.check(x text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM count(*) FROM {role}.t0; RETURN x <> 'never'; EXCEPTION WHEN OTHERS THEN RETURN true; END $$;
    CREATE DOMAIN {role}.checked AS text CHECK ({role}.check(VALUE));
    CREATE FUNCTION {role}.deep(i int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN {role}.deep(i + 1); END $$;
    CREATE FUNCTION {role}.raising(x text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no: %', x USING ERRCODE = (ARRAY['P0001', '40001', '57014', 'XX001', 'OL001', '23505'])[1 + length(x) % 6]; END $$;
    CREATE FUNCTION {role}.now_and_then(x text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN 1 / (length(x) % 3) > 0; END $$;
    CREATE FUNCTION {role}.quiet(statement text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN EXECUTE statement; RETURN true; EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$;
    CREATE FUNCTION {role}.loud(statement text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN EXECUTE statement; RETURN true; END $$;
    RESET ROLE;
"""

# Statements of a condition on its own table ({t}).
MISDEEDS = [
    "UPDATE {t} SET v = repeat(''y'', 2000), n = n + 1 WHERE n < 2", "DELETE FROM {t}", "INSERT INTO {t} SELECT * FROM {t} LIMIT 1", "TRUNCATE {t}",
    "DROP TABLE {t} CASCADE", "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS more text", "ALTER TABLE {t} DROP COLUMN IF EXISTS n", "ALTER TABLE {t} ALTER v TYPE varchar(9000)",
    "SELECT outbox.uncapture(''{t}'')", "SELECT outbox.capture(''{t}'', replace => true)", "SELECT outbox.backfill(''{t}'')", "CREATE TEMP TABLE IF NOT EXISTS extra (i int)",
    "SET search_path = ''''", "DISCARD PLANS", "ALTER TABLE {t} DISABLE TRIGGER USER", "CREATE INDEX ON {t} (v)", "LOCK TABLE {t}", "NOTIFY x",
    "DROP TRIGGER \"00_outbox_capture_update\" ON {t}", "SELECT count(*) FROM {t} FOR UPDATE", "ANALYZE {t}", "REFRESH MATERIALIZED VIEW m", "SELECT pg_sleep(0.01)",
    "ALTER ROLE mallory SUPERUSER", "GRANT postgres TO mallory", "ALTER TABLE other.theirs ADD COLUMN x int",
]  # fmt: skip


class Tables:
    """Objects that this round has tried to make; many of them failed or are gone."""

    def __init__(self, fuzz: Fuzz, role: str) -> None:
        self.fuzz = fuzz
        self.role = role
        self.odd = Odd(fuzz.random)
        self.columns: dict[str, dict[str, str]] = {}  # table: column: type
        self.number = 0

    # ---- choosing -------------------------------------------------------------------------------

    def one_of(self, *options: str) -> str:
        return self.fuzz.random.choice(options)

    def table(self) -> str:
        return self.fuzz.random.choice([*self.columns])

    def column(self, table: str) -> str:
        return self.fuzz.random.choice([*self.columns[table], "v", "id", "nowhere"])

    def some_columns(self, table: str) -> str:
        names = [self.column(table) for _ in range(self.fuzz.random.choice([0, 1, 1, 2, 4]))]
        return "ARRAY[" + ", ".join(quoted(name) for name in names) + "]::name[]"

    def value(self, kind: str) -> str:
        roll = self.fuzz.random.random()
        if roll < 0.15:
            return "NULL"
        number = self.fuzz.random.choice([0, 1, 2, 3, 4, 5, 17, 400])
        return f"({TYPES[kind].format(n=number, role=self.role)})::{kind.format(role=self.role)}"

    # ---- tables ---------------------------------------------------------------------------------

    def create(self) -> str:
        dice = self.fuzz.random
        table = f"{self.role}.t{self.number}"
        self.number += 1
        key = self.one_of(*KEYS, "int", "int", "int")
        columns = {"id": key, "v": "text", "n": "int"}
        for i in range(dice.choice([0, 1, 3, 10])):
            columns[self.one_of(f"c{i}", f'"C {i}"', f'"q""{i}"', f'"%s{i}"', f'"ä{i}"')] = self.one_of(*TYPES)
        self.columns[table] = columns
        items = [f"{name} {kind.format(role=self.role)}" for name, kind in columns.items()]
        if dice.random() < 0.15:
            items.append(f"g text GENERATED ALWAYS AS ({self.one_of('v', 'v || v', 'repeat(v, 3)')}) STORED")
        if dice.random() < 0.1:
            items.append("serial bigint GENERATED ALWAYS AS IDENTITY")
        kind = dice.random()
        if kind < 0.2:
            items.append(self.one_of("PRIMARY KEY (id)", "PRIMARY KEY (id)", "PRIMARY KEY (id, n)", ""))
            items = [item for item in items if item and "GENERATED" not in item]
            parts = [f"CREATE TABLE {table}_{i} PARTITION OF {table} {bound}" for i, bound in enumerate(
                ["FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "FOR VALUES WITH (MODULUS 2, REMAINDER 1)"])]  # fmt: skip
            for part in (f"{table}_0", f"{table}_1"):
                self.columns[part] = columns
            return f"CREATE TABLE {table} ({', '.join(items)}) PARTITION BY HASH (id); " + "; ".join(parts)
        if kind < 0.35 and self.number > 1:
            parent = self.table()
            self.columns[table] = {**self.columns[parent], "own": "text"}
            return f"CREATE {self.one_of('', 'TEMP', '')} TABLE {table if dice.random() < 0.7 else table.split('.')[1]} (own text) INHERITS ({parent})"
        items.append(
            self.one_of(
                "PRIMARY KEY (id)",
                "PRIMARY KEY (id)",
                "PRIMARY KEY (id)",
                "PRIMARY KEY (n, id)",
                "UNIQUE (id)",
                "CHECK (true)",
            )
        )
        return f"CREATE {self.one_of('', '', '', 'UNLOGGED')} TABLE {table} ({', '.join(items)})"

    def condition(self, table: str) -> str:
        """Makes a table, now and then with the functions it needs."""
        roll = self.fuzz.random.random()
        if roll < 0.25:
            short = table.split(".")[1]
            self.helpers = (
                f"CREATE OR REPLACE FUNCTION {self.role}.f_{short}(nn int) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN IF nn = 1 THEN "
                f"UPDATE {table} SET v = repeat('y', 2000), n = 2 WHERE n < 1; PERFORM repeat('z', 100000); END IF; RETURN true; END $f$; "
                f"CREATE OR REPLACE FUNCTION {self.role}.g_{short}(r {table}) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RETURN r.v IS NOT NULL; END $f$"
            )
            return f"{self.role}.f_{short}(n) AND {self.role}.g_{short}({short})"
        if roll < 0.6:
            misdeed = self.one_of(*MISDEEDS).format(t=table)
            how = self.one_of("quiet", "loud")
            return self.one_of("", "n IS NULL OR ", "id IS NOT NULL AND ") + f"{self.role}.{how}('{misdeed}')"
        if roll < 0.75:
            return self.one_of(
                f"{self.role}.deep(1)",
                f"{self.role}.raising(v)",
                f"{self.role}.now_and_then(v)",
                f"{self.role}.check(v)",
            )
        return self.one_of(*CODE, "n % 2 = 0", "v > 'a'")

    def capture(self) -> list[str]:
        table = self.table()
        options = {
            "aggregate_id": self.some_columns(table), "version": quoted(self.column(table)), "topic": self.odd.text(),
            "topic_column": quoted(self.column(table)), "ordering_key": self.some_columns(table), "headers": f"'{self.one_of(*JSON)}'",
            "columns": self.some_columns(table), "exclude": self.some_columns(table), "new_columns": self.one_of("'include'", "'exclude'"),
            "on_update": self.one_of("'full'", "'changed'", "'diff'"), "old_values": self.one_of("true", "false"),
            "on_delete": self.one_of("'key'", "'old'"), "on_truncate": self.one_of("'refuse'", "'ignore'", "'announce'"),
            "condition": "", "insert_type": self.odd.text(), "fire": self.one_of("'origin'", "'replica'", "'always'"), "replace": "true",
        }  # fmt: skip
        chosen = self.fuzz.random.sample([*options], self.fuzz.random.choice([0, 1, 2, 2, 3, 5]))
        self.helpers = "SELECT"
        if self.fuzz.random.random() < 0.5 and "condition" not in chosen:
            chosen.append("condition")
        if "condition" in chosen:
            options["condition"] = quoted(self.condition(table))
        arguments = "".join(f", {name} => {options[name]}" for name in chosen)
        statements = [self.helpers, f"SELECT outbox.capture('{table}'{arguments})"]
        if chosen and self.fuzz.random.random() < 0.5:  # runs the statements of the condition
            statements += [self.insert(table), self.insert(table), f"UPDATE {table} SET n = 0, v = 'x'",
                           f"UPDATE {table} SET n = 1 WHERE ctid = (SELECT min(ctid) FROM {table})", f"DELETE FROM {table} WHERE n = 2"]  # fmt: skip
        return statements

    # ---- statements on tables -------------------------------------------------------------------

    def insert(self, table: str) -> str:
        columns = self.columns[table]

        def row() -> str:
            known = [f"({self.one_of('0', '1', '2')})" if name == "n" else self.value(kind) if name != "id" or self.fuzz.random.random() < 0.1 else
                     self.value(kind).replace("NULL", f"({TYPES[kind].format(n=7, role=self.role)})::{kind.format(role=self.role)}")
                     for name, kind in columns.items()]  # fmt: skip
            return f"({', '.join(known)})"

        rows = ", ".join(row() for _ in range(self.fuzz.random.choice([1, 1, 3])))
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {rows}"

    def change(self) -> list[str]:
        table = self.table()
        insert = self.insert(table)
        column = self.column(table)
        value = self.value(self.columns[table].get(column, "text"))
        return self.fuzz.random.choice([
            [insert], [insert], [insert], [f"{insert} ON CONFLICT DO NOTHING"], [f"{insert} ON CONFLICT (id) DO UPDATE SET v = excluded.v, n = excluded.n + 1"],
            [f"INSERT INTO {table} SELECT * FROM {table}"], [f"UPDATE {table} SET n = 1"], [f"UPDATE {table} SET n = 0, v = 'x'"], [f"UPDATE {table} SET n = 0, v = 'x'", f"UPDATE {table} SET n = 1 WHERE ctid = (SELECT min(ctid) FROM {table})"],
            [f"UPDATE {table} SET {column} = {value}"], [f"UPDATE {table} SET {column} = {value} WHERE n = 1 RETURNING *"],
            [f"UPDATE {table} SET v = repeat('y', {self.one_of('3', '3000', '300000')})"], [f"UPDATE {table} SET id = id"], [f"UPDATE {table} SET v = v"],
            [f"DELETE FROM {table} WHERE n = {self.one_of('0', '1')}"], [f"DELETE FROM {table}"], [f"TRUNCATE {table} {self.one_of('', 'CASCADE', 'RESTART IDENTITY')}"],
            ["BEGIN", "SAVEPOINT s", insert, "ROLLBACK TO s", insert, f"UPDATE {table} SET n = 1", "COMMIT"],
            ["BEGIN", insert, f"DECLARE c CURSOR FOR SELECT * FROM {table} FOR UPDATE", "FETCH 1 FROM c", f"UPDATE {table} SET n = 1 WHERE CURRENT OF c", "COMMIT"],
            ["BEGIN", insert, f"DROP TABLE {table}", "COMMIT"], ["BEGIN", insert, "PREPARE TRANSACTION 'x'", "ROLLBACK", "ROLLBACK PREPARED 'x'"],
            [f"MERGE INTO {table} AS m USING (SELECT 1 AS one) AS s ON m.n = one WHEN MATCHED THEN UPDATE SET n = 2, v = 'm'"],
            [f"WITH d AS (DELETE FROM {table} RETURNING *) INSERT INTO {table} SELECT * FROM d"],
            ["SET session_replication_role = replica", insert, f"UPDATE {table} SET n = 1", "RESET session_replication_role"],
            [f"DO $d$ BEGIN FOR i IN 1..5 LOOP BEGIN UPDATE {table} SET n = i; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $d$"],
        ])  # fmt: skip

    def alter(self) -> list[str]:
        dice = self.fuzz.random
        table, other = self.table(), self.table()
        column = self.column(table)
        added = self.one_of(*TYPES)
        name = f"c{dice.randint(10, 15)}"
        if dice.random() < 0.2:
            self.columns[table] = {**self.columns[table], name: added}
        return [dice.choice([
            f"ALTER TABLE {table} ADD COLUMN {name} {added.format(role=self.role)}", f"ALTER TABLE {table} ADD COLUMN {name} text NOT NULL DEFAULT 'x'",
            f"ALTER TABLE {table} DROP COLUMN {column} {self.one_of('', 'CASCADE')}", f"ALTER TABLE {table} RENAME COLUMN {column} TO {self.one_of('renamed', 'v', column + '2' if column[0] != chr(34) else 'w')}",
            f"ALTER TABLE {table} ALTER COLUMN {column} TYPE text USING 'x'", f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {added.format(role=self.role)} USING NULL",
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL", f"ALTER TABLE {table} RENAME TO r{dice.randint(0, 3)}", f"ALTER TABLE {table} SET SCHEMA {self.role}2",
            f"ALTER TABLE {self.role}2.t{dice.randint(0, 5)} SET SCHEMA {self.role}", f"ALTER TABLE {table} INHERIT {other}", f"ALTER TABLE {table} NO INHERIT {other}",
            f"ALTER TABLE {table} DETACH PARTITION {other}", f"ALTER TABLE {table} ATTACH PARTITION {other} DEFAULT", f"ALTER TABLE {table} ATTACH PARTITION {other} FOR VALUES WITH (MODULUS 2, REMAINDER {dice.randint(0, 1)})",
            f"ALTER TABLE {table} DROP CONSTRAINT {table.split('.')[1]}_pkey", f"ALTER TABLE {table} ADD PRIMARY KEY ({column})", f"ALTER TABLE {table} REPLICA IDENTITY {self.one_of('FULL', 'NOTHING', 'DEFAULT')}",
            f"ALTER TABLE {table} {self.one_of('ENABLE', 'DISABLE', 'FORCE', 'NO FORCE')} ROW LEVEL SECURITY", f"CREATE POLICY p{dice.randint(0, 9)} ON {table} USING ({self.role}.now_and_then(v))",
            f"ALTER TABLE {table} {self.one_of('ENABLE', 'DISABLE', 'ENABLE REPLICA', 'ENABLE ALWAYS')} TRIGGER {self.one_of('USER', 'ALL')}", f"DROP TABLE {table} {self.one_of('', 'CASCADE')}",
            f"CREATE RULE r AS ON {self.one_of('INSERT', 'UPDATE', 'DELETE')} TO {table} DO {self.one_of('INSTEAD NOTHING', f'ALSO UPDATE {other} SET n = 1')}", f"DROP RULE r ON {table}",
            f"CREATE INDEX ON {table} (({self.one_of('v', 'lower(v)', 'n % 2')}))", f"VACUUM {self.one_of('', 'FULL', 'ANALYZE')} {table}", f"REINDEX TABLE {table}", f"CLUSTER {table} USING {table.split('.')[1]}_pkey",
            f"ALTER TYPE {self.role}.pair {self.one_of('ADD ATTRIBUTE x int', 'DROP ATTRIBUTE a', 'ADD ATTRIBUTE a text', 'RENAME ATTRIBUTE b TO c')} CASCADE", f"ALTER TYPE {self.role}.mood RENAME VALUE 'bad' TO 'worse'",
            f"DROP FUNCTION {self.role}.{self.one_of('quiet(text)', 'now_and_then(text)', 'check(text)')} CASCADE", f"ALTER FUNCTION {self.role}.loud(text) RENAME TO quiet2", f"COMMENT ON TABLE {table} IS 'x'",
            f"CREATE TABLE {table}_copy (LIKE {table} INCLUDING ALL)", f"CREATE VIEW {table}_view AS SELECT * FROM {table}", f"GRANT ALL ON {table} TO PUBLIC", f"ALTER TABLE {table} SET UNLOGGED",
            "CREATE EXTENSION IF NOT EXISTS plpgsql", f"ALTER DOMAIN {self.role}.positive ADD CHECK (VALUE <> 99)", f"ALTER SCHEMA {self.role}2 RENAME TO {self.role}2",
        ])]  # fmt: skip

    def trigger(self) -> list[str]:
        """Creates capture triggers in wrong places."""
        dice = self.fuzz.random
        table = self.table()
        name = (
            '"00_outbox_capture_' + self.one_of("insert", "update", "delete", "truncate") + '"'
            if dice.random() < 0.7
            else "odd"
        )
        event = self.one_of(
            "INSERT", "UPDATE", "DELETE", "TRUNCATE", "INSERT OR UPDATE", "UPDATE OF v", "UPDATE OF n, id"
        )
        when = self.one_of("", "", "WHEN (NEW.v IS DISTINCT FROM OLD.v)", "WHEN (NEW.n = 1)", "WHEN (OLD.n = 1)", "WHEN (true)", f"WHEN ({self.role}.check(NEW.v))", "WHEN (pg_trigger_depth() = 0)", "WHEN (OLD.* IS DISTINCT FROM NEW.*)")  # fmt: skip
        level = self.one_of("ROW", "ROW", "ROW", "STATEMENT")
        function = self.one_of("capture_row", "capture_row", "capture_truncate", "insert_event", "refuse_change")
        arguments = self.one_of("", "", "'x'", "'a', 'b', NULL", quoted("x" * 5000), "'', '', '', '', '', '', ''")
        referencing = self.one_of("", "", "", "REFERENCING NEW TABLE AS fresh", "REFERENCING OLD TABLE AS stale")
        return [dice.choice([
            f"CREATE {self.one_of('', 'OR REPLACE')} TRIGGER {name} {self.one_of('BEFORE', 'AFTER', 'INSTEAD OF')} {event} ON {self.one_of(table, table, table + '_view')} {referencing} FOR EACH {level} {when} EXECUTE FUNCTION outbox.{function}({arguments})",
            f"CREATE OR REPLACE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION outbox.capture_row({arguments})",
            f"CREATE CONSTRAINT TRIGGER {name} AFTER {self.one_of('INSERT', 'UPDATE', 'DELETE')} ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {when} EXECUTE FUNCTION outbox.{function}({arguments})",
            f"DROP TRIGGER {name} ON {table}", f"ALTER TRIGGER {name} ON {table} RENAME TO {self.one_of('odd', name)}", f"ALTER TABLE {table} {self.one_of('ENABLE', 'DISABLE', 'ENABLE ALWAYS')} TRIGGER {name}",
            f"SELECT outbox_internal.add_capture_triggers('{table}', 'v', 'x')", f"SELECT outbox_internal.copy_capture_triggers('{table}', '{table}', 'x')",
            f"SELECT outbox_internal.drop_capture_triggers('{table}')", f"SELECT outbox_internal.set_capture_fire('{table}', 'always')",
        ])]  # fmt: skip

    def call(self) -> list[str]:
        table = self.table()
        return [self.fuzz.random.choice([
            f"SELECT outbox.backfill('{table}')", f"SELECT outbox.backfill('{table}', batch => 1, rate => 1000, max_pending => 5)", f"SELECT outbox.backfill('{table}', 'd')",
            f"SELECT outbox.uncapture('{table}')", "SELECT * FROM outbox.captures", "SELECT * FROM outbox.backfill_progress", f"SELECT outbox.capture_condition('{table}')",
            "SELECT outbox.pause_backfill((SELECT max(id) FROM outbox.backfill_progress))", "SELECT outbox.resume_backfill((SELECT min(id) FROM outbox.backfill_progress))",
            "SELECT outbox.cancel_backfill((SELECT max(id) FROM outbox.backfill_progress))", f"SELECT outbox_internal.check_captured('{table}')", f"SELECT outbox_internal.follow_columns('{table}')",
            f"SELECT outbox_internal.save_captured((SELECT c FROM jsonb_populate_record(NULL::outbox.captured, jsonb_build_object('relation', '{table}')) AS c))",
        ])]  # fmt: skip

    def next(self) -> list[str]:
        roll = self.fuzz.random.random()
        if not self.columns or roll < 0.08:
            return self.create().split("; ")
        for share, make in (
            (0.3, self.capture),
            (0.66, self.change),
            (0.8, self.alter),
            (0.87, self.trigger),
            (0.95, self.call),
        ):
            if roll < share:
                return make()
        return [self.one_of("BEGIN", "COMMIT", "ROLLBACK", "BEGIN ISOLATION LEVEL SERIALIZABLE", "DISCARD ALL", "SET CONSTRAINTS ALL IMMEDIATE",
                            "CREATE TEMP TABLE IF NOT EXISTS t0 (id int)", f"SET search_path = {self.role}", "SET search_path = ''", "SET row_security = off")]  # fmt: skip


def check_others(fuzz: Fuzz, database: str) -> None:
    """Statements of other roles that captures of one role must not prevent."""
    with fuzz.connect(database, "other", statement_timeout="60s", lock_timeout="0") as session:
        for statement in (
            "CREATE TABLE other.fine (id int PRIMARY KEY, v text)", "ALTER TABLE other.fine ADD COLUMN w text", "CREATE TEMP TABLE fine (i int)",
            "ALTER TABLE other.fine DROP COLUMN w", "CREATE TYPE other.pair AS (a int)", "ALTER TYPE other.pair ADD ATTRIBUTE b int", "DROP TYPE other.pair", "DROP TABLE other.fine", "CREATE SCHEMA other2", "DROP SCHEMA other2",
        ):  # fmt: skip
            if fuzz.run(session, statement) is None:
                raise Failure(f"another role cannot: {statement}")
    with fuzz.connect(database, statement_timeout="60s", lock_timeout="0") as session:
        for statement in (
            "SELECT count(c) FROM outbox.captures AS c",
            "SELECT count(p) FROM outbox.backfill_progress AS p",
        ):
            if fuzz.run(session, statement) is None:
                raise Failure(f"a superuser cannot: {statement}")


# Errors of the server about changed objects, not of the extension: they are the same without the
# extension. One of the conditions raises "XX001".
OF_THE_SERVER = r"^no: |cache lookup failed for|could not open relation|could not find tuple|attribute \S+ of .* does not|unexpected|cannot rename trigger"


def play_round(fuzz: Fuzz, role: str) -> None:
    new_roles(fuzz.cluster, "mallory", "other")
    with fuzz.database() as database:
        database.execute(
            "CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics '*'); SELECT outbox.grant_capture('mallory'); "
            "SELECT outbox.grant_produce('mallory'); CREATE SCHEMA other AUTHORIZATION other; CREATE TABLE other.theirs (i int); GRANT CREATE, TEMP ON DATABASE fuzz TO mallory, other"
        )
        name = "mallory" if role != "postgres" else "su"
        database.execute(
            OBJECTS.format(role=name)
            .replace(f"AUTHORIZATION {name}", f"AUTHORIZATION {role}")
            .replace(f"ROLE {name}", f"ROLE {role}")
        )
        tables = Tables(fuzz, name)
        before = snapshot(database.connection, "mallory", contents=False)
        play(fuzz, database, tables, role)
        if role != "postgres":
            changed = changes(before, snapshot(database.connection, "mallory", contents=False))
            if changed:
                raise Failure("a role has changed what is not its own:\n" + "\n".join(changed))


def play(fuzz: Fuzz, database: Database, tables: Tables, role: str) -> None:
    for _ in range(0, STATEMENTS_OF_A_ROUND, STATEMENTS_OF_A_SESSION):
        sessions = [fuzz.connect(database.name, role) for _ in range(2)]
        for _ in range(STATEMENTS_OF_A_SESSION):
            session = fuzz.random.choice([sessions[0], sessions[0], sessions[0], sessions[1]])
            for statement in tables.next():
                fuzz.run(session, statement)
            if session.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                fuzz.run(session, "ROLLBACK")
        for session in sessions:
            session.close()
        fuzz.watch()
        check_others(fuzz, database.name)
        fuzz.check_internal(OF_THE_SERVER)
        if not fuzz.is_time():
            break


@pytest.mark.long
@pytest.mark.parametrize("user", ["superuser", "owner"])
def test_any_change_of_captures_leaves_the_server_running(new_fuzz: NewFuzz, user: str) -> None:
    fuzz = new_fuzz(f"captures as {user}", share=2)
    with fuzz.judged():
        for _ in fuzz.rounds_to_play():
            play_round(fuzz, "postgres" if user == "superuser" else "mallory")


if __name__ == "__main__":
    main(__file__)
