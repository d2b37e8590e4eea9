#!/usr/bin/python3
"""Calls all functions of both extensions with odd values of their arguments, in odd places.

Runs as a superuser, as a role with all rights (which must not gain anything), and on a standby.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
import pytest
from fuzz import Database, Failure, Fuzz, NewFuzz, main, new_roles
from odd import Odd

from security.state import changes, snapshot
from waiting import wait_until

CALLS_OF_A_ROUND = 1500
CALLS_OF_A_SESSION = 30

GRANTS = """
    SELECT outbox.grant_produce('mallory', 't.*'); SELECT outbox.grant_capture('mallory'); SELECT outbox.grant_fetch('mallory');
    SELECT outbox.grant_operate('mallory'); SELECT outbox.grant_monitor('mallory');
    SELECT inbox.grant_send('mallory'); SELECT inbox.grant_read('mallory'); SELECT inbox.grant_consume('mallory');
    SELECT inbox.grant_operate('mallory'); SELECT inbox.grant_monitor('mallory');
    GRANT USAGE ON FOREIGN SERVER p TO mallory;
"""

# The same for each of two roles: one is the attacker, the other must not be affected.
RELATIONS = """
    CREATE SCHEMA {role} AUTHORIZATION {role};
    SET ROLE {role};
    CREATE TABLE {role}.t (id int PRIMARY KEY, v text, n int, version bigint);
    CREATE TABLE {role}.u (id uuid, part int, body jsonb, PRIMARY KEY (part, id));
    CREATE TABLE {role}.p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
    CREATE TABLE {role}.p1 PARTITION OF {role}.p FOR VALUES FROM (0) TO (10);
    CREATE TABLE {role}.p2 PARTITION OF {role}.p DEFAULT PARTITION BY LIST (id);
    CREATE TABLE {role}.parent (id int PRIMARY KEY, v text);
    CREATE TABLE {role}.child (extra numeric[]) INHERITS ({role}.parent);
    CREATE TABLE {role}.nokey (v text);
    CREATE TABLE {role}.none ();
    CREATE TABLE {role}."a ""b'c" ("d ""e'f" int PRIMARY KEY, "%s" text, "ä" name);
    CREATE UNLOGGED TABLE {role}.unlogged (id int PRIMARY KEY, v text);
    CREATE TABLE {role}.generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED);
    CREATE TABLE {role}.dropped (a int, id int PRIMARY KEY, b text, v text);
    ALTER TABLE {role}.dropped DROP a, DROP b;
    CREATE VIEW {role}.view AS SELECT * FROM {role}.t;
    CREATE MATERIALIZED VIEW {role}.matview AS SELECT 1 AS id;
    CREATE SEQUENCE {role}.s;
    CREATE TYPE {role}.composite AS (id int, v text);
    CREATE TABLE {role}.typed OF {role}.composite;
    CREATE FUNCTION {role}.strike() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        ALTER ROLE mallory SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END $$;
    CREATE FUNCTION {role}.handler(m inbox.message) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM {role}.strike(); IF m.event_id::text ~ '[0-3]$' THEN RAISE EXCEPTION 'refused: %', m; END IF; END $$;
    CREATE FUNCTION {role}.f(i int) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM {role}.strike(); UPDATE {role}.t SET v = repeat('y', 2000) WHERE id = i + 1 AND length(v) < 100; RETURN true; END $$;
    CREATE FUNCTION {role}.g(r {role}.t) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN r.v IS NOT NULL; END $$;
    INSERT INTO {role}.t SELECT i, 'v' || i, i, 1 FROM generate_series(1, 5) AS i;
    INSERT INTO {role}.parent VALUES (1, 'x');
    ALTER TABLE {role}.child ADD PRIMARY KEY (id);
    INSERT INTO {role}.p VALUES (1, 1, 'x');
    RESET ROLE;
    CREATE FOREIGN TABLE {role}.foreign_table (id int, v text) SERVER nowhere;
    ALTER FOREIGN TABLE {role}.foreign_table OWNER TO {role};
"""
NAMES = ["t", "u", "p", "p1", "p2", "parent", "child", "nokey", "none", "unlogged", "generated", "dropped", "view",
         "matview", "s", "composite", "typed", "foreign_table", "t_pkey", '"a ""b\'c"']  # fmt: skip

OBJECTS = """
    CREATE SCHEMA empty;
    CREATE FOREIGN DATA WRAPPER nowhere;
    CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
    CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 't.*');
    CREATE SERVER p FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', topics 't.*');
    CREATE SERVER secret_pull FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', topics 'secret.*');
    CREATE SERVER away FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://127.0.0.1:1/', topics 't.away');
    CREATE USER MAPPING FOR postgres SERVER away OPTIONS (user 'u', password 'of the superuser');
"""
EVENTS = """
    SELECT outbox.enqueue('a', '1', 'X', '{"secret": "of the victim"}'::jsonb, topic => 'secret.a');
    SELECT outbox.enqueue('a', i::text, 'X', '{}'::jsonb, topic => 't.a', event_id => ('00000000-0000-7000-8000-00000000000' || i)::uuid)
      FROM generate_series(0, 5) AS i;
    SELECT inbox.receive(c, 'source', ARRAY(SELECT ('00000000-0000-7000-8000-00000000000' || i)::uuid FROM generate_series(0, 5) AS i),
           array_fill(now(), ARRAY[6]), ARRAY[1,2,3,4,5,6], ARRAY[1,2,3,4,5,6], array_fill(1, ARRAY[6]), array_fill(NULL::uuid, ARRAY[6]),
           array_fill('t'::text, ARRAY[6]), array_fill('a'::text, ARRAY[6]), array_fill('1'::text, ARRAY[6]), array_fill('X'::text, ARRAY[6]),
           ARRAY['a', 'b', 'a', 'b', '', ''], array_fill('application/json'::text, ARRAY[6]), array_fill(NULL::jsonb, ARRAY[6]),
           array_fill('{}'::bytea, ARRAY[6])) FROM unnest(ARRAY['mine', 'theirs']) AS c
"""

# Restores objects for the calls of the next session.
AGAIN = [
    "SELECT outbox.capture('mallory.t', topic => 't.a', replace => true)", "SELECT outbox.capture('mallory.p', topic => 't.a', replace => true)",
    "SELECT outbox.resume('d')", "SELECT outbox.enqueue('a', '1', 'X', '{}'::jsonb, topic => 't.a')", "SELECT inbox.subscribe('mine', '*', 'mallory.handler')",
]  # fmt: skip


@dataclass
class Function:
    name: str
    arguments: list[tuple[str, str]]  # name, type
    defaults: int
    in_c: bool


def functions_of(connection: psycopg.Connection) -> list[Function]:
    rows = connection.execute(
        """SELECT p.oid::regproc::text, l.lanname = 'c', p.pronargdefaults,
                  ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) WITH ORDINALITY AS x(t, n) ORDER BY n),
                  ARRAY(SELECT coalesce(n, '') FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY AS x(n, m, i)
                         WHERE coalesce(m, 'i') IN ('i', 'b', 'v') ORDER BY i)
             FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
            WHERE p.pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'
            ORDER BY p.oid::regprocedure::text"""
    ).fetchall()
    return [
        Function(name, list(zip([*names, *[""] * len(types)], types)), defaults, in_c)
        for name, in_c, defaults, types, names in rows
    ]


def composites_of(connection: psycopg.Connection) -> dict[str, list[str]]:
    return dict(
        connection.execute(
            """SELECT c.reltype::regtype::text, array_agg(a.atttypid::regtype::text ORDER BY a.attnum)
                 FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                WHERE c.relnamespace::regnamespace::text ~ '^((outbox|inbox)(_internal)?|mallory)$'
                  AND c.reltype <> 0 GROUP BY c.reltype ORDER BY 1"""
        ).fetchall()
    )


def domains_of(connection: psycopg.Connection) -> dict[str, str]:
    return dict(
        connection.execute(
            """SELECT oid::regtype::text, typbasetype::regtype::text FROM pg_type WHERE typtype = 'd'
                  AND typnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' ORDER BY 1"""
        ).fetchall()
    )


def call_of(fuzz: Fuzz, function: Function, odd: Odd) -> str:
    """An expression that calls it: arguments at the end left out now and then, some by name."""
    dice = fuzz.random
    least = len(function.arguments) - function.defaults
    count = len(function.arguments) if dice.random() < 0.5 else dice.randint(least, len(function.arguments))
    sanity = dice.choice([0.0, 0.5, 1.0])  # so that some calls pass the checks of the first argument
    odd_one = dice.randrange(count) if count else 0  # the one odd argument among sane ones
    values = []
    for i, (name, kind) in enumerate(function.arguments[:count]):
        sane = odd.sane(kind, name) if dice.random() < sanity and (sanity < 1 or i != odd_one) else None
        if sanity == 1 and i == odd_one and dice.random() < 0.5:
            sane = f"ARRAY[NULL]::{kind}" if kind.endswith("[]") and dice.random() < 0.5 else f"NULL::{kind}"
        values.append(sane or odd.value(kind))
    return f"{function.name}({', '.join(values)})"


# -------------------------------------------------------------------------------------------------
# Wrappings
# -------------------------------------------------------------------------------------------------

# Statements with {call}; {n} is a new number. A failed statement does not end the list.
Wrapping = list[str]

WRAPPINGS: dict[str, Wrapping] = {
    "plain": ["SELECT {call}"],
    "as a table": ["SELECT * FROM {call}"],
    "many rows": ["SELECT {call} FROM generate_series(1, 7)"],
    "read only": ["BEGIN READ ONLY", "SELECT {call}", "COMMIT"],
    "serializable": ["BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT {call}", "COMMIT"],
    "repeatable read": ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT {call}", "SELECT {call}", "COMMIT"],
    "subtransaction": ["BEGIN", "SAVEPOINT s", "SELECT {call}", "ROLLBACK TO s", "SELECT {call}", "RELEASE s", "SELECT {call}", "COMMIT"],
    "caught": ["DO $do$ BEGIN FOR i IN 1..5 LOOP BEGIN PERFORM {call}; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $do$"],
    "two-phase": ["BEGIN", "SELECT {call}", "PREPARE TRANSACTION 'g{n}'", "ROLLBACK", "COMMIT PREPARED 'g{n}'"],
    "two-phase, undone": ["BEGIN", "SELECT {call}", "PREPARE TRANSACTION 'g{n}'", "ROLLBACK", "ROLLBACK PREPARED 'g{n}'"],
    "parallel": ["SET {parallel} = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0",
                 "SELECT {call}", "SELECT {call} FROM pg_class WHERE relkind = 'r'", "RESET ALL"],
    "empty search_path": ["SET search_path = ''", "SELECT {call}", "RESET search_path"],
    "another search_path": ["SET search_path = {role}, pg_temp, pg_catalog", "SELECT {call}", "RESET search_path"],
    "trigger": ["CREATE TEMP TABLE trig (i int)",
                "CREATE FUNCTION pg_temp.fire() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM {call}; RETURN NEW; END $f$",
                "CREATE TRIGGER fire {when} INSERT ON trig FOR EACH ROW EXECUTE FUNCTION pg_temp.fire()",
                "INSERT INTO trig VALUES (1), (2)", "DROP TABLE trig", "DROP FUNCTION pg_temp.fire()"],
    "deferred trigger": ["CREATE TEMP TABLE trig (i int)",
                         "CREATE FUNCTION pg_temp.fire() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM {call}; RETURN NEW; END $f$",
                         "CREATE CONSTRAINT TRIGGER fire AFTER INSERT ON trig DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.fire()",
                         "BEGIN", "INSERT INTO trig VALUES (1), (2)", "COMMIT", "DROP TABLE trig", "DROP FUNCTION pg_temp.fire()"],
    "index function": ["CREATE TABLE {role}.indexed (i int)", "INSERT INTO {role}.indexed VALUES (1), (2)",
                       "CREATE FUNCTION {role}.inside(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN PERFORM {call}; RETURN i; END $f$",
                       "CREATE INDEX ON {role}.indexed ({role}.inside(i))", "REINDEX TABLE {role}.indexed", "ANALYZE {role}.indexed",
                       "DROP TABLE {role}.indexed", "DROP FUNCTION {role}.inside(int)"],
    "cursor with hold": ["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT {call} FROM generate_series(1, 3)", "FETCH 1 FROM c", "COMMIT", "FETCH ALL FROM c", "CLOSE c"],
    "after DROP TABLE": ["BEGIN", "DROP TABLE {role}.t CASCADE", "SELECT {call}", "ROLLBACK"],
    "dropped in a prepared statement": ["CREATE TABLE {role}.gone (id int PRIMARY KEY, v text)", "PREPARE q(oid) AS SELECT {call}, $1::regclass",
                                        "EXECUTE q('{role}.gone'::regclass)", "DROP TABLE {role}.gone", "EXECUTE q(0)", "DEALLOCATE q"],
    "generic plan": ["SET plan_cache_mode = force_generic_plan", "PREPARE q AS SELECT {call}", "EXECUTE q", "EXECUTE q", "DISCARD PLANS", "EXECUTE q", "DEALLOCATE q", "RESET ALL"],
    "temporary tables": ["CREATE TEMP TABLE t (id int PRIMARY KEY, v text, version bigint)", "SET search_path = pg_temp, {role}", "SELECT {call}", "RESET search_path", "DROP TABLE pg_temp.t"],
    "default": ["CREATE TABLE {role}.defaults (i int, x text DEFAULT ({call})::text)", "INSERT INTO {role}.defaults VALUES (1), (2)", "DROP TABLE {role}.defaults"],
    "view": ["CREATE VIEW {role}.calling AS SELECT {call} AS x", "SELECT * FROM {role}.calling", "DROP VIEW {role}.calling"],
    "materialized view": ["CREATE MATERIALIZED VIEW {role}.calling AS SELECT {call} AS x", "REFRESH MATERIALIZED VIEW {role}.calling", "DROP MATERIALIZED VIEW {role}.calling"],
    "row security": ["CREATE TABLE {role}.secured (i int)", "INSERT INTO {role}.secured VALUES (1)", "ALTER TABLE {role}.secured ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
                     "CREATE POLICY p ON {role}.secured USING (({call}) IS NULL)", "SELECT * FROM {role}.secured", "DROP TABLE {role}.secured"],
    "aggregate": ["SELECT count(({call})::text), max(({call})::text) OVER () FROM generate_series(1, 3) AS i GROUP BY i"],
    "update": ["UPDATE {role}.t SET v = left(({call})::text, 10) WHERE id < 3 RETURNING t"],
    "changed settings": ["SET {setting}", "SELECT {call}", "RESET ALL"],
    "replica": ["SET session_replication_role = replica", "SELECT {call}", "RESET session_replication_role"],
    "another role": ["SET ROLE {role}", "SELECT {call}", "RESET ROLE"],
    "cancelled": ["SET statement_timeout = {moment}", "SELECT {call} FROM generate_series(1, 100)", "RESET statement_timeout"],
}  # fmt: skip
HOT_STANDBY = ["plain", "as a table", "many rows", "read only", "repeatable read", "subtransaction", "caught", "parallel", "empty search_path",
               "another search_path", "cursor with hold", "generic plan", "aggregate", "cancelled", "another role"]  # fmt: skip
SETTINGS = [
    "lc_messages = 'C'", "client_encoding = 'SQL_ASCII'", "client_encoding = 'LATIN1'", "TimeZone = 'Asia/Kolkata'", "DateStyle = 'German'",
    "IntervalStyle = 'iso_8601'", "bytea_output = 'escape'", "standard_conforming_strings = off", "extra_float_digits = -15",
    "default_transaction_read_only = on", "transform_null_equals = on", "jit_above_cost = 0", "enable_seqscan = off", "work_mem = '64kB'",
    "check_function_bodies = off", "row_security = off", "xmloption = 'document'", "array_nulls = off", "synchronous_commit = off",
    "max_parallel_workers = 0", "force_parallel_mode = regress", "debug_parallel_query = regress", "lock_timeout = 1",
    "inbox.locked_keys = '5000'", "inbox.wake = 'all'", "outbox.wake = 'x'", "search_path = 'mallory', ''",
]  # fmt: skip


class Calls:
    """A round: one database, and calls in it."""

    def __init__(
        self, fuzz: Fuzz, user: str, functions: list[Function], odd: Odd, wrappings: list[str], parallel: str
    ) -> None:
        self.fuzz = fuzz
        self.user = user
        self.functions = functions
        self.odd = odd
        self.wrappings = wrappings
        self.parallel = parallel
        self.number = 0

    def statements(self) -> list[str]:
        dice = self.fuzz.random
        function = dice.choice(self.functions)
        wrapping = dice.choice(self.wrappings)
        call = call_of(self.fuzz, function, self.odd)
        self.number += 1
        parts = {
            "{call}": call, "{n}": str(self.number), "{role}": "mallory", "{parallel}": self.parallel,
            "{when}": dice.choice(["BEFORE", "AFTER"]), "{setting}": dice.choice(SETTINGS), "{moment}": str(dice.choice([1, 2, 5, 20])),
        }  # fmt: skip
        result = []
        for statement in WRAPPINGS[wrapping]:
            for mark, value in parts.items():
                statement = statement.replace(mark, value)
            result.append(statement)
        return result

    def play(self, name: str, count: int) -> None:
        for _ in range(0, count, CALLS_OF_A_SESSION):
            connection = self.fuzz.connect(name, self.user)
            for statement in AGAIN:
                self.fuzz.run(connection, statement)
            for _ in range(CALLS_OF_A_SESSION):
                for statement in self.statements():
                    self.fuzz.run(connection, statement)
                    if connection.closed:
                        break
                if connection.closed:  # a function may end its own session: a superuser's only
                    break
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self.fuzz.run(connection, "ROLLBACK")
            connection.close()
            self.fuzz.watch()
            if not self.fuzz.is_time():
                break


def set_up(fuzz: Fuzz, database: Database) -> None:
    execute = database.execute
    execute(OBJECTS)
    execute(GRANTS)
    execute(
        "SELECT inbox.grant_read('victim'); SELECT inbox.grant_consume('victim'); SELECT outbox.grant_capture('victim')"
    )
    for role in ("mallory", "victim"):
        execute(f"GRANT CREATE, TEMP ON DATABASE fuzz TO {role}; GRANT USAGE ON FOREIGN SERVER nowhere TO {role}")
        execute(RELATIONS.format(role=role))
    for role, consumer in (("mallory", "mine"), ("victim", "theirs")):
        with fuzz.cluster.connect(database.name, role) as session:
            session.execute(f"SELECT inbox.set_policy('{consumer}', 3)")
            for table in ("t", "p", "parent"):
                session.execute(f"SELECT outbox.capture('{role}.{table}', topic => 't.a')")
    execute(EVENTS)


def make_calls(fuzz: Fuzz, connection: psycopg.Connection, user: str, wrappings: list[str]) -> Calls:
    version = connection.info.server_version
    parallel = "debug_parallel_query" if version >= 160000 else "force_parallel_mode"
    relations = [f"{role}.{name}" for role in ("mallory", "mallory", "victim") for name in NAMES]
    handlers = [f"{role}.{name}" for role in ("mallory", "victim") for name in ("handler", "f", "g")]
    odd = Odd(fuzz.random, relations, handlers, composites_of(connection), domains_of(connection))
    functions = functions_of(connection)
    functions += [function for function in functions if function.in_c] * 3  # where crashes are
    if user != "postgres":  # most calls are to functions that it may call
        allowed = {
            name for (name,) in connection.execute(
                """SELECT p.oid::regproc::text FROM pg_proc AS p WHERE has_function_privilege(%s, p.oid, 'EXECUTE')
                      AND p.pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'""", (user,)).fetchall()
        }  # fmt: skip
        functions += [function for function in functions if function.name in allowed] * 4
    return Calls(fuzz, user, functions, odd, wrappings, parallel)


def play_round(fuzz: Fuzz, user: str) -> None:
    new_roles(fuzz.cluster, "mallory", "victim")
    with fuzz.database() as database:
        set_up(fuzz, database)
        calls = make_calls(fuzz, database.connection, user, list(WRAPPINGS))
        before = snapshot(database.connection, "mallory", contents=False)
        calls.play("fuzz", CALLS_OF_A_ROUND)
        if user != "postgres":
            changed = changes(before, snapshot(database.connection, "mallory", contents=False))
            # An operator may give any consumer away, whose handlers then wait until they are confirmed, or drop it.
            operated = database.execute(
                "SELECT DISTINCT consumer FROM inbox.operation WHERE operation IN ('give', 'drop')"
            )
            names = "|".join(["mine", *(re.escape(name) for (name,) in operated)])
            changed = [line for line in changed if not re.match(f"(consumer|subscription) ({names})[: ]", line)]
            if changed:
                raise Failure("a role has changed what is not its own:\n" + "\n".join(changed))


@pytest.mark.long
@pytest.mark.parametrize("user", ["superuser", "all_rights"])
def test_any_call_of_a_function_leaves_the_server_running(new_fuzz: NewFuzz, user: str) -> None:
    fuzz = new_fuzz(f"functions as {user}", share=3)
    with fuzz.judged():
        for _ in fuzz.rounds_to_play():
            play_round(fuzz, "postgres" if user == "superuser" else "mallory")


@pytest.mark.long
def test_any_call_on_a_standby_leaves_the_server_running(new_fuzz: NewFuzz) -> None:
    fuzz = new_fuzz("functions on a standby", share=3)
    primary = fuzz.cluster
    new_roles(primary, "mallory", "victim")
    with fuzz.judged(), fuzz.database() as database:
        set_up(fuzz, database)
        standby = primary.make_standby({"max_standby_streaming_delay": "-1"}).start()
        try:
            fuzz.cluster, fuzz.read_to = standby, standby.log_size()
            wait_until(
                lambda: standby.execute("SELECT 1 FROM pg_database WHERE datname = 'fuzz'"),
                what="the standby to follow",
            )
            for number in fuzz.rounds_to_play():
                user = ["postgres", "mallory"][number % 2]
                make_calls(fuzz, database.connection, user, HOT_STANDBY).play("fuzz", CALLS_OF_A_ROUND)
        finally:
            standby.destroy()


if __name__ == "__main__":
    main(__file__)
