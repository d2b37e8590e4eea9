#!/usr/bin/python3
"""Chaos in the tables, functions and settings of both extensions, while their workers are at work.

Made by a superuser, and by the owner of a database that has pg_inbox. The server must not crash, be reachable all
the time, not fill its log, and the extensions must work after they were dropped and created.
"""

from __future__ import annotations

import psycopg
import pytest
from fuzz import Database, Failure, Fuzz, NewFuzz, main, new_roles
from odd import Odd

from waiting import wait_until

OPERATIONS_OF_A_ROUND = 60
LOG_OF_A_ROUND = 8_000_000  # bytes; workers that die and are started again without a pause write more
SECONDS_TO_STOP = 30

OUTBOX = """
    CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:');
    CREATE SERVER away FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://127.0.0.1:1/', retry_base '10ms');
    CREATE SERVER p FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:');
    CREATE SERVER here FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql://victim@/fuzz');
    SELECT inbox.grant_send('victim');
    CREATE TABLE own (id int PRIMARY KEY, v text);
    INSERT INTO own SELECT i, 'x' FROM generate_series(1, 1000) AS i;
    SELECT outbox.capture('own');
    SELECT outbox.backfill('own', batch => 10, rate => 500);
    SELECT outbox.enqueue('a', i::text, 'X', '{}'::jsonb) FROM generate_series(1, 50) AS i;
    SELECT * FROM outbox.fetch('p', 5);
"""
INBOX = """
    CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF m.ordering_key = 'bad' THEN RAISE EXCEPTION 'refused'; END IF; END $$;
    SELECT inbox.set_policy('c', 2, '10ms', '20ms');
    SELECT inbox.subscribe('c', '*', 'handler');
    SELECT inbox.set_policy('outside', 2);
"""
RECEIVE = """SELECT inbox.receive({consumer}, 's', ARRAY[gen_random_uuid(), gen_random_uuid()], ARRAY[now(), now()], ARRAY[1, 2], ARRAY[1, 2], ARRAY[1, 1],
    ARRAY[NULL, NULL]::uuid[], ARRAY['t', 't'], ARRAY['a', 'a'], ARRAY['1', '1'], ARRAY['E', 'E'], ARRAY['good', 'bad'], array_fill('application/json'::text, ARRAY[2]),
    ARRAY[NULL, NULL]::jsonb[], ARRAY['{{}}', '{{}}']::bytea[])"""
WAKE = "BEGIN; SELECT set_config('inbox.wake', 'subscriptions', true); COMMIT"

# Settings that the superuser or the owner makes for the database, or for the role of workers.
SETTINGS = [
    "search_path = evil, pg_catalog", "search_path = ''", "default_transaction_read_only = on", "default_transaction_isolation = 'serializable'",
    "statement_timeout = '1ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'", "idle_session_timeout = '1ms'", "work_mem = '64kB'",
    "client_encoding = 'SQL_ASCII'", "client_encoding = 'LATIN1'", "DateStyle = 'German'", "IntervalStyle = 'sql_standard'", "bytea_output = 'escape'",
    "standard_conforming_strings = off", "TimeZone = 'Antarctica/Troll'", "extra_float_digits = -15", "row_security = off", "array_nulls = off",
    "default_tablespace = 'nowhere'", "temp_tablespaces = 'nowhere'", "default_table_access_method = 'nothing'", "local_preload_libraries = 'nothing'",
    "session_preload_libraries = 'nothing'", "session_replication_role = replica", "role = 'victim'", "force_parallel_mode = regress", "debug_parallel_query = regress",
    "enable_indexscan = off", "plan_cache_mode = force_generic_plan", "max_stack_depth = '100kB'", "temp_buffers = 100", "gin_fuzzy_search_limit = 1",
    "check_function_bodies = off", "quote_all_identifiers = on", "application_name = E'a\\nb'", "outbox.max_in_flight = 1", "outbox.nonsense = 1", "inbox.wake = 'x'",
    "inbox.locked_keys = 'x'", "outbox.poll_max = '1ms'", "default_transaction_deferrable = on", "synchronous_commit = off", "vacuum_cost_delay = 100", "log_min_messages = debug5",
    "log_statement = 'all'", "transform_null_equals = on", "password_encryption = 'md5'", "backtrace_functions = 'x'", "geqo_threshold = 2",
]  # fmt: skip
OPTIONS = [
    "SET url 'null:'", "SET url 'pull:'", "SET url 'http://localhost:1/x'", "SET url 'nonsense'", "SET url 'postgresql:///postgres'", "SET url 'postgresql:///nowhere'", "ADD topics 'a.*, !a.b'",
    "ADD max_attempts '1'", "ADD retry_base '1ms'", "ADD connections '256'", "ADD lanes '64'", "ADD format 'batched'", "ADD on_full_log 'detach'", "ADD nonsense 'x'", "DROP url",
    "ADD topics ''", "ADD request_timeout '1ms'", "ADD ca_file '/dev/zero'", "ADD topics '" + "x," * 5000 + "x'", "ADD retry_max 'infinity'", "ADD batch_size '-1'",
]  # fmt: skip


def extension_of(schema: str) -> str:
    return f"pg_{schema.removesuffix('_internal')}"


class Chaos:
    def __init__(self, fuzz: Fuzz, database: Database, schemas: list[str]) -> None:
        self.fuzz = fuzz
        self.odd = Odd(fuzz.random, ["own"], ["handler"])
        self.schemas = schemas
        self.columns: dict[str, list[tuple[str, str]]] = {}
        rows = database.execute(
            r"""SELECT c.oid::regclass::text, quote_ident(attname), atttypid::regtype::text FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid
                 WHERE relnamespace::regnamespace::text = ANY (%s) AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
                   AND relname !~ '^processed_\d' ORDER BY 1, attnum""",
            (schemas,),
        )
        for table, column, kind in rows:
            self.columns.setdefault(table, []).append((column, kind))
        self.functions = database.execute(
            """SELECT p.oid::regprocedure::text, p.oid::regproc::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
                 FROM pg_proc AS p WHERE pronamespace::regnamespace::text = ANY (%s) ORDER BY 1""", (schemas,))  # fmt: skip
        self.others = [
            f"{'SEQUENCE' if kind == 'S' else 'VIEW'} {name}"
            for name, kind in database.execute(
                "SELECT oid::regclass::text, relkind::text FROM pg_class WHERE relnamespace::regnamespace::text = ANY (%s) AND relkind IN ('S', 'v') ORDER BY 1",
                (schemas,))]  # fmt: skip
        self.workers_tables = [table for table in self.columns if table.split(".")[1] in (
            "consumer", "subscription", "message", "cursor", "ring", "delivery", "event", "batch", "captured", "backfill_task", "waiting", "claimed", "progress", "producer")]  # fmt: skip

    def operation(self) -> list[str]:
        roll = self.fuzz.random.random()
        for share, make in (
            (0.45, self.hurt_column),
            (0.6, self.hurt_table),
            (0.68, self.hurt_function),
            (0.73, self.hurt_other),
            (0.8, self.hurt_servers),
            (0.9, self.set),
        ):
            if roll < share:
                return make()
        return self.drop() if roll < 0.92 else self.use()

    def hurt_column(self) -> list[str]:
        """Writes an odd value, in spite of constraints."""
        dice = self.fuzz.random
        table = dice.choice([*self.workers_tables, *self.columns])
        column, kind = dice.choice(self.columns[table])
        value = "NULL" if dice.random() < 0.4 else self.odd.value(kind)
        free = [
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL",
            f"ALTER TABLE {table} ALTER COLUMN {column} DROP IDENTITY IF EXISTS",
            self.without_constraints(table),
        ]
        values = ", ".join(value if name == column else self.odd.value(other) for name, other in self.columns[table])
        names = ", ".join(name for name, _ in self.columns[table])
        return dice.choice([
            [f"UPDATE {table} SET {column} = {value}"], [*free, f"UPDATE {table} SET {column} = {value}"], [*free, f"UPDATE {table} SET {column} = {value}"],
            [*free, f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {', '.join(value if name == column else name for name, _ in self.columns[table])} FROM {table} LIMIT 1"],
            [f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({values})"], [*free, f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({values})"],
        ])  # fmt: skip

    def without_constraints(self, table: str) -> str:
        return (f"DO $d$ DECLARE c name; BEGIN FOR c IN SELECT conname FROM pg_constraint WHERE conrelid = '{table}'::regclass LOOP "
                f"EXECUTE format('ALTER TABLE {table} DROP CONSTRAINT %I CASCADE', c); END LOOP; END $d$")  # fmt: skip

    def hurt_table(self) -> list[str]:
        dice = self.fuzz.random
        table = dice.choice([*self.workers_tables, *self.columns])
        column, kind = dice.choice(self.columns[table])
        schema, name = table.split(".")
        other = dice.choice(["text", "integer", "jsonb", "bytea", "text[]", "uuid", "boolean"])
        return dice.choice([
            [f"DELETE FROM {table}"], [f"TRUNCATE {table} CASCADE"], [f"ALTER TABLE {table} RENAME TO gone"], [f"ALTER TABLE {table} RENAME TO gone", f"CREATE TABLE {table} (x int)"],
            [f"ALTER TABLE {table} RENAME TO gone", f"CREATE VIEW {table} AS SELECT * FROM {schema}.gone"], [f"ALTER TABLE {table} RENAME COLUMN {column} TO gone"], [f"ALTER TABLE {table} DROP COLUMN {column} CASCADE"],
            [f"ALTER TABLE {table} DROP COLUMN {column} CASCADE", f"ALTER TABLE {table} ADD COLUMN {column} {kind}"], [f"ALTER TABLE {table} ADD COLUMN zz text NOT NULL DEFAULT 'x'"],
            [f"ALTER TABLE {table} ADD COLUMN zz text"], [f"ALTER TABLE {table} ADD COLUMN zz int GENERATED ALWAYS AS (1) STORED"], [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {other} USING NULL"],
            [f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL", f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {other} USING NULL"], [f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT NULL"],
            [f"ALTER TABLE {table} ADD CHECK (false) NOT VALID"], [f"CREATE TRIGGER odd BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION evil.refuse()"],
            [f"CREATE TRIGGER odd BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION evil.skip()"], [f"CREATE RULE odd AS ON INSERT TO {table} DO INSTEAD NOTHING"],
            [f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"], [self.without_constraints(table)], [f"ALTER TABLE {table} OWNER TO victim"],
            [f"INSERT INTO {table} SELECT * FROM {table}"], [self.without_constraints(table), f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT t.* FROM {table} AS t, generate_series(1, 100)"],
            [f"ALTER TABLE {table} SET SCHEMA evil"], [f"DO $d$ BEGIN EXECUTE 'ALTER EXTENSION {extension_of(schema)} DROP TABLE {table}'; EXECUTE 'DROP TABLE {table} CASCADE'; END $d$"],
            [f"REVOKE ALL ON {table} FROM PUBLIC, CURRENT_USER"], [f"ALTER TABLE {table} SET (fillfactor = 10)"], [f"CREATE INDEX ON {table} ((evil.boom({column}::text)))"], [f"CLUSTER {table}"], [f"VACUUM FULL {table}"],
        ])  # fmt: skip

    def hurt_function(self) -> list[str]:
        signature, name, arguments, result = self.fuzz.random.choice(self.functions)
        schema = name.split(".")[0]
        replace = f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $f$ BEGIN "
        out = f"DO $d$ BEGIN EXECUTE $x$ALTER EXTENSION {extension_of(schema)} DROP FUNCTION {signature}$x$; EXECUTE $x$DROP FUNCTION {signature} CASCADE$x$; END $d$"
        return self.fuzz.random.choice([
            [f"{replace} RAISE EXCEPTION 'replaced'; END $f$"], [f"{replace} RETURN NULL; END $f$"], [f"{replace} RETURN; END $f$"], [f"{replace} PERFORM pg_sleep(1); RAISE EXCEPTION 'slow'; END $f$"],
            [f"ALTER FUNCTION {signature} RENAME TO gone"], [out], [out, f"CREATE FUNCTION {name}({arguments}) RETURNS text LANGUAGE sql AS $f$ SELECT NULL::text $f$"],
            [out, f"CREATE FUNCTION {name}({arguments}) RETURNS SETOF record LANGUAGE sql AS $f$ SELECT 1, 'x'::text, NULL::int $f$"],
            [f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC, CURRENT_USER"], [f"ALTER FUNCTION {signature} SET statement_timeout = '1ms'"], [f"ALTER FUNCTION {signature} SET search_path = evil"],
            [f"ALTER FUNCTION {signature} OWNER TO victim"], [f"ALTER FUNCTION {signature} STRICT"], [f"ALTER FUNCTION {signature} SECURITY INVOKER"],
        ])  # fmt: skip

    def hurt_other(self) -> list[str]:
        kind, name = self.fuzz.random.choice(self.others).split(" ", 1)
        schema = name.split(".")[0]
        out = [f"ALTER EXTENSION {extension_of(schema)} DROP {kind} {name}", f"DROP {kind} {name} CASCADE"]
        if kind == "SEQUENCE":
            return self.fuzz.random.choice([out, [f"SELECT setval('{name}', 9223372036854775807)"], [f"SELECT setval('{name}', 1)"], [f"ALTER SEQUENCE {name} MINVALUE -5 START -5 RESTART -5"], [f"ALTER SEQUENCE {name} INCREMENT -1"], [f"ALTER SEQUENCE {name} CACHE 1000000"]])  # fmt: skip
        return self.fuzz.random.choice(
            [
                out,
                [*out, f"CREATE VIEW {name} AS SELECT NULL::text AS x"],
                [f"ALTER VIEW {name} RENAME TO gone"],
                [f"ALTER VIEW {name} OWNER TO victim"],
            ]
        )

    def hurt_servers(self) -> list[str]:
        dice = self.fuzz.random
        server = dice.choice(["d", "away", "p", "here", "odd"])
        return [dice.choice([
            f"DROP SERVER {server} CASCADE", f"ALTER SERVER {server} OPTIONS ({dice.choice(OPTIONS)})", f"ALTER SERVER {server} OPTIONS ({dice.choice(OPTIONS)})", f"ALTER SERVER {server} RENAME TO odd",
            f"CREATE SERVER {server} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')", 'CREATE SERVER "default" FOREIGN DATA WRAPPER pg_outbox OPTIONS (url \'null:\')', f"ALTER SERVER {server} OWNER TO victim",
            f"CREATE USER MAPPING FOR CURRENT_USER SERVER {server} OPTIONS (user 'u', password 'p')", "DROP FOREIGN DATA WRAPPER pg_outbox CASCADE", "ALTER FOREIGN DATA WRAPPER pg_outbox NO VALIDATOR", "ALTER FOREIGN DATA WRAPPER pg_outbox RENAME TO odd",
            "ALTER EVENT TRIGGER outbox_follow_altered_tables DISABLE", "ALTER FOREIGN DATA WRAPPER pg_outbox OPTIONS (ADD x 'y')", f"UPDATE pg_foreign_server SET srvoptions = ARRAY['url', 'x=', '=', 'url=null:'] WHERE srvname = '{server}'",
            f"UPDATE pg_foreign_server SET srvoptions = NULL WHERE srvname = '{server}'", f"SELECT outbox.pause('{server}')", f"SELECT outbox.seek('{server}', {self.odd.value('bigint')})", f"SELECT outbox.replay('{server}', '-infinity', 'infinity')",
        ])]  # fmt: skip

    def set(self) -> list[str]:
        what = self.fuzz.random.choice(["DATABASE fuzz", "DATABASE fuzz", "ROLE CURRENT_USER IN DATABASE fuzz"])
        return [
            f"ALTER {what} SET {self.fuzz.random.choice(SETTINGS)}"
            if self.fuzz.random.random() < 0.5
            else f"ALTER {what} RESET ALL"
        ]

    def drop(self) -> list[str]:
        schema = self.fuzz.random.choice(self.schemas)
        return self.fuzz.random.choice([
            [f"DROP EXTENSION {extension_of(schema)} CASCADE"], [f"DROP EXTENSION {extension_of(schema)} CASCADE", f"CREATE EXTENSION {extension_of(schema)}"], [f"DROP SCHEMA {schema} CASCADE"], [f"ALTER SCHEMA {schema} RENAME TO gone"],
            [f"ALTER SCHEMA {schema} RENAME TO gone", f"CREATE SCHEMA {schema}"], [f"BEGIN; DROP EXTENSION {extension_of(schema)} CASCADE; ROLLBACK"], [f"ALTER SCHEMA {schema} OWNER TO victim"], [f"REVOKE ALL ON SCHEMA {schema} FROM PUBLIC, CURRENT_USER"],
        ])  # fmt: skip

    def use(self) -> list[str]:
        """Normal statements of other sessions."""
        consumer = self.fuzz.random.choice(["'c'", "'outside'", "'new'"])
        return self.fuzz.random.choice([
            [RECEIVE.format(consumer=consumer)], ["SELECT * FROM inbox.claim('outside')"], ["SELECT h FROM inbox.health() AS h"], ["SELECT s FROM inbox.status AS s"], ["SELECT inbox.prune(100)"], ["SELECT inbox.set_window('30 days')"],
            ["SELECT inbox.subscribe('c2', '*', 'handler')"], ["SELECT inbox.unsubscribe('c', '*', 'handler')"], ["SELECT inbox.redrive('c')"], ["SELECT begin FROM inbox.begin_event('new', gen_random_uuid()) AS begin"],
            *([[ "SELECT outbox.enqueue('a', '1', 'X', '{}'::jsonb) FROM generate_series(1, 20)"], ["SELECT h FROM outbox.health() AS h"], ["SELECT s FROM outbox.status AS s"], ["SELECT outbox.metrics()"], ["SELECT w FROM outbox.workers() AS w"],
               ["SELECT * FROM outbox.fetch('p')"], ["UPDATE own SET v = v || 'y' WHERE id < 5"], ["SELECT outbox.backfill('own')"], ["SELECT c FROM outbox.captures AS c"], ["ALTER TABLE own ADD COLUMN IF NOT EXISTS w text"]] if "outbox" in self.schemas else []),
        ])  # fmt: skip


EVIL = """
    CREATE SCHEMA evil;
    CREATE FUNCTION evil.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
    CREATE FUNCTION evil.skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE FUNCTION evil.boom(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF random() < 0.5 THEN RAISE EXCEPTION 'boom'; END IF; RETURN $1; END $$;
    CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
    CREATE FUNCTION evil.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
    CREATE DOMAIN evil.text AS pg_catalog.text CHECK (VALUE <> 'x');
    CREATE TABLE evil.pg_class (oid int);
"""


def play_round(fuzz: Fuzz, user: str) -> None:
    new_roles(fuzz.cluster, "dbo", "victim")
    extensions = ["outbox", "inbox"] if user == "postgres" else ["inbox"]
    schemas = [*extensions, *(f"{extension}_internal" for extension in extensions)]
    with fuzz.database(extensions=False) as database:
        database.execute(f"ALTER DATABASE fuzz OWNER TO {user}")
        log_began = fuzz.cluster.log_size()
        with fuzz.cluster.connect("fuzz", user) as session:
            for extension in extensions:
                session.execute(f"CREATE EXTENSION pg_{extension}")
            session.execute(
                EVIL
                if user == "postgres"
                else EVIL.replace("LANGUAGE internal AS 'text_format'", "LANGUAGE sql AS 'SELECT NULL'").replace(
                    'VARIADIC "any"', "integer"
                )
            )
            session.execute(OUTBOX if user == "postgres" else "SELECT")
            session.execute(INBOX)
            session.execute(RECEIVE.format(consumer="'c'"))
        chaos = Chaos(fuzz, database, schemas)
        play(fuzz, chaos, user)
        fuzz.watch()
        written = fuzz.cluster.log_size() - log_began
        fuzz.most_log = max(fuzz.most_log, written)
        if written > LOG_OF_A_ROUND:
            raise Failure(f"workers wrote {written} bytes to the log:\n{fuzz.cluster.log()[-3000:]}")
        database.disconnect()
        recover(fuzz, user, schemas)


def play(fuzz: Fuzz, chaos: Chaos, user: str) -> None:
    session: psycopg.Connection | None = None
    try:
        for _ in range(OPERATIONS_OF_A_ROUND):
            if session is None or session.closed:
                try:
                    session = fuzz.connect("fuzz", user)
                except psycopg.OperationalError as error:  # the settings may say so
                    fuzz.count_error("connection refused", str(error))
                    fuzz.cluster.execute("ALTER DATABASE fuzz RESET ALL")
                    fuzz.cluster.execute(f"ALTER ROLE {user} IN DATABASE fuzz RESET ALL")
                    continue
            for statement in [*chaos.operation(), WAKE]:
                fuzz.run(session, statement)
                if session.closed:
                    break
            if not session.closed and session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                fuzz.run(session, "ROLLBACK")
            if fuzz.random.random() < 0.1:
                session.close()
            fuzz.watch()
    finally:
        if session is not None:
            session.close()


def recover(fuzz: Fuzz, user: str, schemas: list[str]) -> None:
    """Repairs the database as an administrator would; then everything is as new."""
    fuzz.cluster.execute("ALTER DATABASE fuzz RESET ALL")
    fuzz.cluster.execute("ALTER DATABASE fuzz OWNER TO postgres")
    for role in (user, "postgres"):
        fuzz.cluster.execute(f"ALTER ROLE {role} IN DATABASE fuzz RESET ALL")
    if fuzz.cluster.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'dbo'") != [(False,)]:
        raise Failure("the owner of the database is superuser")
    with fuzz.connect("fuzz", statement_timeout="90s", lock_timeout="90s") as session:
        extensions = sorted({extension_of(schema) for schema in schemas})
        drops = [
            f"DROP EXTENSION IF EXISTS {', '.join(extensions)} CASCADE",
            "DROP SCHEMA IF EXISTS gone CASCADE",
            *(f"DROP SCHEMA IF EXISTS {schema} CASCADE" for schema in schemas),
            "DROP TABLE IF EXISTS own CASCADE",
            "DROP FUNCTION IF EXISTS handler CASCADE",
        ]
        for statement in drops:
            if fuzz.run(session, statement) is None:
                # event triggers of an extension that is broken refuse DDL
                for (name,) in session.execute("SELECT evtname FROM pg_event_trigger").fetchall():
                    session.execute(f"ALTER EVENT TRIGGER {name} DISABLE")
                fuzz.errors["event triggers in the way"] += 1
                if fuzz.run(session, statement) is None:
                    raise Failure(f"cannot recover: {statement}")
        for extension in extensions:
            if fuzz.run(session, f"CREATE EXTENSION {extension}") is None:
                raise Failure(f"cannot create {extension} again")
    with Database(fuzz.cluster, "fuzz").connect() as session:
        session.execute(
            "CREATE TABLE handled (id uuid); CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO public.handled VALUES ($1.event_id)'"
        )
        session.execute("SELECT inbox.subscribe('c', '*', 'handler')")
        session.execute(RECEIVE.format(consumer="'c'"))
        work = ["SELECT count(*) = 2 FROM handled"]
        if "outbox" in schemas:
            session.execute("CREATE SERVER fresh FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
            session.execute("SELECT outbox.enqueue('a', '1', 'X', '{}'::jsonb)")
            work.append("SELECT published = 1 FROM outbox.status WHERE destination = 'fresh'")
        for question in work:
            try:
                wait_until(lambda: session.execute(question).fetchone(), lambda row: row == (True,), what=question)
            except AssertionError as error:
                raise Failure(f"the extensions do not work any more: {error}\n{fuzz.cluster.describe()}") from None


@pytest.mark.long
@pytest.mark.worker_errors(" (ERROR|FATAL): ")  # log_min_messages is among the settings
@pytest.mark.parametrize("user", ["superuser", "owner"])
def test_any_change_of_the_catalog_leaves_the_server_running(new_fuzz: NewFuzz, user: str) -> None:
    fuzz = new_fuzz(f"catalog as {user}", share=2)
    with fuzz.judged():
        for _ in fuzz.rounds_to_play():
            play_round(fuzz, "postgres" if user == "superuser" else "dbo")
        fuzz.drop_database("fuzz")
        seconds = fuzz.cluster.stop("fast")
        if seconds > SECONDS_TO_STOP:
            raise Failure(f"the server took {seconds:.1f} s to stop")


if __name__ == "__main__":
    main(__file__)
