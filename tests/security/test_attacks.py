"""Every role against every object of both extensions.

Attacks are made on all functions and views that are in the catalog at run time, so they hold for those
added later, too. Each object that a role may use has a line in sql/objects.txt, with attempts of a hostile role:
without one, a new function fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from cluster import Cluster, Installation
from long_run import all_in_long_run
from objects import OBJECTS, name_of
from test_privileges import ALLOWED, GRANTS
from waiting import wait_until

from .state import changes, snapshot
from .world import EVENT, SECRET, World

pytestmark = pytest.mark.slow  # all together

# -------------------------------------------------------------------------------------------------
# Roles
# -------------------------------------------------------------------------------------------------

ALL = "all rights"
# Roles with other rights than those of the extensions: statements that make mallory such a role.
OTHERS = {
    "database owner": "ALTER DATABASE world OWNER TO mallory",
    "creator": "ALTER ROLE mallory CREATEDB",
    "owner of captured tables": "SELECT outbox.grant_produce('mallory', 'open.*'); SELECT outbox.capture('mallory.t', topic => 'open.t')",
    "integrator": "GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO mallory; GRANT EXECUTE ON FUNCTION outbox.check_destination TO mallory; GRANT USAGE ON SCHEMA outbox TO mallory",
}
KINDS = [*GRANTS, ALL, *OTHERS]
SHORT = [ALL, "database owner", "owner of captured tables"]

# Data of others that a right lets its holder change, which `state.py` would otherwise report.
MAY_CHANGE = {
    "sender": ["message"],
    "operator": ["backfill", "lease"],
    # By its token, which these tests know and a fetcher is not told: docs/security.md.
    "fetcher": ["lease"],
    "inbox operator": [
        "message",
        "dead message",
        "waiting",
        "claim",
        "applied",
        "offset",
        "offset reset",
        "gap",
        "consumer",
        "subscription",
    ],
    "database owner": ["setting", "schema public", "database world"],
    "creator": ["database"],
}
# Data of others that a right lets its holder read.
MAY_READ = {
    "operator": [
        "outbox.dead_letter",
        "outbox.blocked_key",
        "outbox.operation",
        "outbox.operations",
        "outbox.receipt",
        "outbox.event_status",
        "outbox_internal.blocked_keys",
    ],
    "inbox operator": [
        "inbox.dead_letter",
        "inbox.waiting_keys",
        "inbox.operation",
        "inbox.operations",
        "inbox.event_status",
    ],
    "relay": [
        "outbox_internal.relay_look",
        "outbox_internal.relay_rows",
        "outbox_internal.relay_look_expressions",
        "outbox_internal.relay_rows_expressions",
        "outbox_internal.relay_destinations",
    ],
}

# -------------------------------------------------------------------------------------------------
# The world, for each role
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attack_cluster(installation: Installation) -> Iterator[Cluster]:
    cluster = Cluster(
        installation, {"autovacuum_naptime": "1s", "log_min_messages": "log", "log_min_error_statement": "panic"}
    ).start()
    yield cluster
    cluster.destroy()


@dataclass
class Siege:
    kind: str
    world: World

    def may_change(self) -> list[str]:
        kinds = MAY_CHANGE if self.kind == ALL else [self.kind]
        return [what for kind in kinds if kind not in OTHERS or kind == self.kind for what in MAY_CHANGE.get(kind, [])]

    def may_read(self) -> list[str]:
        return [name for kind in (MAY_READ if self.kind == ALL else [self.kind]) for name in MAY_READ.get(kind, [])]

    def snapshot(self) -> dict[str, str]:
        found = snapshot(self.world.database.connection, "mallory")
        return {
            key: text
            for key, text in found.items()
            if not key.startswith(tuple(what + " " for what in self.may_change()))
        }

    def check(self, before: dict[str, str]) -> None:
        assert changes(before, self.snapshot()) == []


@pytest.fixture(scope="module", params=all_in_long_run(KINDS, short=SHORT))
def siege(attack_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Siege]:
    kind = request.param
    world = World(attack_cluster, "world")
    try:
        if kind in OTHERS:
            world.database.execute(OTHERS[kind])
        else:
            grant(world, *GRANTS if kind == ALL else [kind])
        yield Siege(kind, world)
    finally:
        world.remove()


def grant(world: World, *kinds: str) -> None:
    for kind in kinds:
        arguments = ", 'open.*'" if kind == "producer" else ""
        if GRANTS[kind]:
            world.database.execute(f"SELECT {GRANTS[kind]}('mallory'{arguments})")


# -------------------------------------------------------------------------------------------------
# Calls
# -------------------------------------------------------------------------------------------------


@dataclass
class Function:
    name: str
    signature: str
    arguments: list[tuple[str, str]]  # name, type
    allowed: bool
    defaults: int  # number of last arguments that can be left out


FUNCTIONS = """
    SELECT p.pronamespace::regnamespace || '.' || quote_ident(p.proname), p.oid::regprocedure::text,
           p.pronargdefaults, has_function_privilege('mallory', p.oid, 'EXECUTE') AND has_schema_privilege('mallory', p.pronamespace, 'USAGE'),
           ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) WITH ORDINALITY AS x(t, n) ORDER BY n),
           ARRAY(SELECT coalesce(n, '') FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY AS x(n, m, i)
                  WHERE coalesce(m, 'i') IN ('i', 'b', 'v') ORDER BY i)
      FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' ORDER BY 2
"""


def functions_of(world: World) -> list[Function]:
    return [
        Function(name, signature, list(zip([*names, *[""] * len(types)], types)), allowed, defaults)
        for name, signature, defaults, allowed, types, names in world.database.execute(FUNCTIONS)
    ]


def aimed_value(world: World, name: str, kind: str, token: str) -> str:
    """Returns an argument that aims at the victim, by the name and type of the parameter."""
    by_name = {
        "consumer": "theirs", "destination": "secret_pull", "name": "away", "subscription": "sub", "table": "victim.t", "projection": "victim.bare", "member": "victim.t",
        "part": "victim.t", "consumer_id": world.consumer_id, "seq": world.seq, "id": world.backfill, "for_role": "postgres", "role": "mallory", "handler": "mallory.handler",
        "topic": "secret.a", "topics": "*", "event_type": "*", "key": '{"id": 1}' if kind == "jsonb" else "{1}", "key_columns": "{id}", "version_column": "version",
        "version": "9", "data": '{"id": 1, "v": "mine now", "version": 9}', "publish_time": "2000-01-01", "since": "1:1:" if kind == "pg_snapshot" else "2000-01-01", "why": "x", "statement": "ALTER ROLE mallory SUPERUSER",
        "permanent": "true", "condition": "true", "aggregate_type": "a", "aggregate_id": "{id}" if kind.endswith("[]") else "1", "lease": "1 hour", "timeout": "1 ms", "deadline": "2000-01-01",
        "pause": "0", "row": "NEW", "payload": "{}", "content_type": "application/json", "headers": "{}", "target": "beginning", "right_to": "produce", "fire": "always", "columns": "{id}",
        "on_truncate": "ignore", "length": "1 day", "captured": None, "message": None, "error": "x", "sqlstate": "XX000", "url": "null:", "reset_id": "1", "position": "0",
        "server": "secret_hooks" if kind == "name" else None, "endpoint": "acme", "question": '{"fetch": ["acme"], "place": {"done": "1:1:", "position": 0}}',
    }  # fmt: skip
    if kind == "uuid" and name == "token":
        return f"'{token}'"
    if kind == "uuid":
        return f"'{EVENT.format(30)}'"
    if kind == "uuid[]":
        return "'{" + ",".join(EVENT.format(n) for n in (12, 30, 31)) + "}'"
    if kind == "outbox.captured":
        return '(SELECT c FROM jsonb_populate_record(NULL::outbox.captured, \'{"relation": "victim.bare", "aggregate_type": "a"}\') AS c)'
    chosen = by_name.get(name)
    if name == "lease" and kind != "interval":  # a token of a relay
        chosen = "1"
    if kind.endswith("[]") and not str(chosen).startswith("{"):
        return "'{}'"
    if chosen is not None:
        return f"'{chosen}'" if "any" not in kind else "9"
    by_type = {"text": "'x'", "name": "'x'", "integer": "1", "bigint": "1", "smallint": "1", "boolean": "true", "regclass": "'victim.t'", "regrole": "'mallory'", "jsonb": "'{}'", "interval": "'1 s'",
               "timestamp with time zone": "now()", "bytea": "''", "oid": "0", "double precision": "1", "pg_snapshot": "'1:1:'", "text[]": "'{x}'", "name[]": "'{id}'", "regproc": "'mallory.handler'"}  # fmt: skip
    return by_type.get(kind, "NULL")


def aimed_calls(world: World, function: Function) -> list[str]:
    """Makes calls with both tokens where that matters; the caller parameter keeps its default."""
    calls = []
    for token in (str(world.outbox_token), str(world.inbox_token)):
        values = []
        for number, (name, kind) in enumerate(function.arguments):
            if is_caller(kind):
                if number < len(function.arguments) - function.defaults:  # an internal function is handed its caller
                    values.append(f'"{name}" => CURRENT_USER')
                continue
            value = aimed_value(world, name, kind, token)
            label = f'"{name}" => ' if name else ""
            cast = {"anyelement": "text", "internal": "", "record": ""}.get(kind, "" if "any" in kind else kind)
            values.append(f"{label}{value}" + (f"::{cast}" if cast else ""))
        calls.append(f"{function.name}({', '.join(values)})")
    return [*dict.fromkeys(calls)]


def attacking(world: World, role: str = "mallory") -> psycopg.Connection:
    """A session that does not wait for locks, nor for ever."""
    connection = world.connect(role)
    connection.execute("SET statement_timeout = '30s'; SET lock_timeout = '300ms'")
    return connection


def is_caller(kind: str) -> bool:
    return kind in ("outbox_internal.caller", "inbox_internal.caller")


def attempt(connection: psycopg.Connection, statement: str) -> tuple[str | None, str]:
    """Runs a statement; returns the SQLSTATE and the texts of its error."""
    try:
        result = connection.pgconn.exec_(statement.encode())
        state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
        if state is not None:
            return state.decode(), (result.error_message or b"").decode()
        values = [result.get_value(row, column) for row in range(result.ntuples) for column in range(result.nfields)]
        return None, " ".join((value or b"").decode(errors="replace") for value in values)
    finally:
        assert not connection.closed, f"the session was lost: {statement}"


# -------------------------------------------------------------------------------------------------
# The list is complete
# -------------------------------------------------------------------------------------------------


def test_every_function_and_view_has_its_attack(attack_cluster: Cluster) -> None:
    """For a new one, add the attempts of a hostile role to its line in sql/objects.txt."""
    world = World(attack_cluster, "world")
    try:
        grant(world, *GRANTS)
        granted = world.database.execute(ALLOWED, {"role": "mallory"})  # type: ignore[arg-type]
    finally:
        world.remove()
    names = {name_of(name.split(" ", 1)[1]) for name, may in granted if may and not name.startswith("schema")}
    assert [name for name in sorted(names) if name not in OBJECTS or not OBJECTS[name].attack] == []
    assert [o.name for o in OBJECTS.values() if o.attack and o.name not in names] == []


# -------------------------------------------------------------------------------------------------
# Attacks
# -------------------------------------------------------------------------------------------------


def test_functions_and_views_without_a_grant_are_refused(siege: Siege) -> None:
    before = siege.snapshot()
    with attacking(siege.world) as mallory:
        let_through = []
        for function in functions_of(siege.world):
            if not function.allowed:
                for call in aimed_calls(siege.world, function):
                    state, said = attempt(mallory, f"SELECT {call}")
                    # functions that cannot be called at all, or that ignore a NULL
                    if state not in ("42501", "0A000") and said.strip():
                        let_through.append((call, state, said))
        assert let_through == []
        for name, privileges in siege.world.database.execute(ALLOWED, {"role": "mallory"}):  # type: ignore[arg-type]
            kind, relation = name.split(" ", 1)
            if kind in ("table", "view"):
                for privilege, statement in {
                    "SELECT": "SELECT count(*) FROM {0}", "SELECT ": "COPY {0} TO '/dev/null'", "DELETE": "DELETE FROM {0}", "TRUNCATE": "TRUNCATE {0}",
                    "TRIGGER": "CREATE TRIGGER x BEFORE INSERT ON {0} EXECUTE FUNCTION outbox.capture_row()", "LOCK": "BEGIN; LOCK {0} IN ACCESS EXCLUSIVE MODE",
                    "OWNER": "ALTER TABLE {0} ADD COLUMN x int", "OWNER ": "CREATE INDEX ON {0} ((1))", "OWNER  ": "DROP TABLE {0} CASCADE", "OWNER   ": "CREATE RULE x AS ON INSERT TO {0} DO NOTHING",
                }.items():  # fmt: skip
                    if privilege not in privileges:
                        state, said = attempt(mallory, statement.format(relation))
                        attempt(mallory, "ROLLBACK")
                        assert state in ("42501", "42809", "0A000", "55000"), (statement.format(relation), state, said)
    siege.check(before)


def test_the_caller_parameter_cannot_be_forged(siege: Siege) -> None:
    """The caller parameter of a function is always its caller."""
    before = siege.snapshot()
    accepted = []
    with attacking(siege.world) as mallory:
        for function in functions_of(siege.world):
            callers = [
                kind for _, kind in function.arguments[len(function.arguments) - function.defaults :] if is_caller(kind)
            ]
            if not callers or not function.allowed:
                continue
            comma = ", " if len(function.arguments) > 1 else ""
            for call in aimed_calls(siege.world, function):
                for forged in (
                    "'postgres'",
                    "'victim'",
                    "NULL",
                    "''",
                    "'mallory '",
                    f"(SELECT 'postgres'::{callers[0]})",
                    "(SELECT rolname FROM pg_roles WHERE rolsuper LIMIT 1)",
                ):
                    state, said = attempt(mallory, f"SELECT {call[:-1]}{comma}caller => {forged})")
                    if state is None:
                        accepted.append((call, forged, said))
                # A NULL passes the check of a domain in this way. It must get no more than any role.
                for nobody in (
                    f"(SELECT CURRENT_USER::{callers[0]} WHERE false)",
                    f"(SELECT c FROM (SELECT 1) AS x LEFT JOIN (SELECT CURRENT_USER::{callers[0]} AS c WHERE false) AS y ON true)",
                ):
                    state, said = attempt(mallory, f"SELECT {call[:-1]}{comma}caller => {nobody})")
                    if state is None and said not in ("", "0", "f") and SECRET in said:
                        accepted.append((call, nobody, said))
    assert accepted == []
    siege.check(before)


BAIT = """
    CREATE TABLE mallory.bait (i int) WITH (autovacuum_analyze_threshold = 0, autovacuum_analyze_scale_factor = 0);
    CREATE TABLE mallory.calls (call text);
    CREATE TABLE mallory.loot (call text, who text, what text);
    CREATE FUNCTION mallory.strike() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE c text; what text;
    BEGIN
        IF session_user = 'mallory' THEN RETURN; END IF;
        FOR c IN SELECT call FROM mallory.calls LOOP
            BEGIN
                EXECUTE 'SELECT (' || c || ')::text' INTO what;
                INSERT INTO mallory.loot VALUES (c, current_user, what);
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END LOOP;
    END $$;
    CREATE FUNCTION mallory.f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM mallory.strike(); RETURN i; END $$;
    CREATE INDEX ON mallory.bait (mallory.f(i));
    CREATE STATISTICS mallory.odd ON (mallory.f(i)), i FROM mallory.bait;
    CREATE MATERIALIZED VIEW mallory.later AS SELECT mallory.f(1) AS f WITH NO DATA;
    INSERT INTO mallory.bait VALUES (1), (2), (3);
"""


def test_index_functions_of_a_role_get_no_rights_of_maintenance(siege: Siege) -> None:
    """S2: functions of indexes run when others maintain the table, autovacuum among them."""
    world = siege.world
    functions = functions_of(world)
    calls = [call for function in functions for call in aimed_calls(world, function)]
    calls += [
        f"{call[:-1]}{', ' if len(function.arguments) > 1 else ''}caller => '{role}')"
        for function in functions if function.defaults and is_caller(function.arguments[-1][1])
        for call in aimed_calls(world, function) for role in ("postgres", "mallory", "victim")
    ]  # fmt: skip
    with world.connect() as mallory:
        mallory.execute(BAIT)
        mallory.cursor().executemany("INSERT INTO mallory.calls VALUES (%s)", [(call,) for call in calls])
    before = siege.snapshot()
    analyzed = "SELECT autoanalyze_count FROM pg_stat_user_tables WHERE relid = 'mallory.bait'::regclass"
    wait_until(lambda: world.database.value(analyzed), what="autovacuum to analyze the bait")
    for statement in (
        "ANALYZE mallory.bait", "VACUUM (ANALYZE, FREEZE) mallory.bait", "REINDEX TABLE mallory.bait", "REINDEX TABLE CONCURRENTLY mallory.bait",
        "VACUUM FULL mallory.bait", "CLUSTER mallory.bait USING bait_f_idx", "REFRESH MATERIALIZED VIEW mallory.later",
    ):  # fmt: skip
        world.database.execute(statement)
    siege.check(before)
    loot = world.database.execute(
        "SELECT call, who, what FROM mallory.loot WHERE what LIKE %s OR who <> 'mallory'", (f"%{SECRET}%",)
    )
    readable = tuple(name + "(" for name in siege.may_read())
    assert [row for row in loot if row[1] != "mallory" or not row[0].startswith(readable or ("\0",))] == []
    assert not world.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")


# Functions, operators and types with the names and arguments of those of the server that the extensions use.
TRAPS = r"""
DO $do$
DECLARE f record; number int := 0;
BEGIN
    CREATE FUNCTION mallory.sprung() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF current_user <> 'mallory' THEN RAISE WARNING 'sprung as %', current_user; END IF; END $$;
    FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, p.prorettype::regtype AS result, p.oid::regprocedure AS signature, p.proretset
               FROM pg_proc AS p
              WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.pronargs BETWEEN 1 AND 3 AND p.provariadic = 0
                AND p.prorettype NOT IN ('internal'::regtype, 'trigger'::regtype, 'record'::regtype, 'void'::regtype)
                AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS t JOIN pg_type ON pg_type.oid = t WHERE typtype = 'p' OR typname IN ('internal', 'cstring'))
                AND EXISTS (SELECT FROM pg_proc AS own WHERE own.pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'
                                                          AND own.prosrc ~ ('\m' || p.proname || '\('))
    LOOP
        number := number + 1;
        BEGIN
            EXECUTE format('CREATE FUNCTION mallory.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L', f.proname, f.arguments, CASE WHEN f.proretset THEN 'SETOF' ELSE '' END, f.result,
                           'BEGIN PERFORM mallory.sprung(); RETURN ' || CASE WHEN f.proretset THEN '' ELSE 'NULL' END || '; END');
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    FOR f IN SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result
               FROM pg_operator AS o
              WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprkind = 'b' AND o.oprname IN ('=', '<>', '<', '>', '<=', '>=', '||', '+', '-', '->', '->>', '~', '~~', '@>', '<@', '*', '/', '%')
                AND o.oprleft IN ('text'::regtype, 'name'::regtype, 'int4'::regtype, 'int8'::regtype, 'oid'::regtype, 'jsonb'::regtype, 'uuid'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'bool'::regtype, 'bytea'::regtype, 'xid8'::regtype)
                AND o.oprright IN ('text'::regtype, 'name'::regtype, 'int4'::regtype, 'int8'::regtype, 'oid'::regtype, 'jsonb'::regtype, 'uuid'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'bool'::regtype, 'bytea'::regtype, 'xid8'::regtype)
    LOOP
        number := number + 1;
        EXECUTE format('CREATE FUNCTION mallory.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', number, f.l, f.r, f.result, 'BEGIN PERFORM mallory.sprung(); RETURN NULL; END');
        EXECUTE format('CREATE OPERATOR mallory.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = mallory.op_%s)', f.oprname, f.l, f.r, number);
    END LOOP;
    CREATE FUNCTION mallory.checked(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM mallory.sprung(); RETURN true; END $$;
    FOR f IN SELECT unnest(ARRAY['text', 'name', 'jsonb', 'uuid', 'oid', 'regclass', 'regrole', 'interval', 'timestamptz', 'xid8', 'pg_snapshot', 'bytea', 'int4', 'int8']) AS name LOOP
        EXECUTE format('CREATE DOMAIN mallory.%I AS pg_catalog.%1$I CHECK (mallory.checked(VALUE::pg_catalog.text))', f.name);
    END LOOP;
    CREATE TABLE mallory.pg_class (oid oid); CREATE TABLE mallory.pg_proc (oid oid); CREATE TABLE mallory.pg_roles (oid oid); CREATE TABLE mallory.pg_foreign_server (oid oid);
    GRANT USAGE ON SCHEMA mallory TO PUBLIC;
END $do$
"""
# No fixed path (tests/system/test_privileges.py has the reason): handlers need the path of their role.
RUNS_WITH_THE_PATH_OF_THE_CALLER = ("inbox_internal.process(",)


def test_objects_in_front_of_the_search_path_are_not_used(siege: Siege) -> None:
    """Functions do not find objects in front of the session's search_path, for any caller."""
    world = siege.world
    functions = functions_of(world)
    sprung: list[tuple[str, str]] = []
    call = ""
    with attacking(world) as mallory, attacking(world, "postgres") as superuser:
        with world.connect() as setter:
            setter.execute(TRAPS)
        # temporary ones, too, which are in front unless the path says otherwise
        mallory.execute(
            "CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (mallory.checked(VALUE::pg_catalog.text)); CREATE TEMP TABLE pg_class (oid oid)"
        )
        for session, path in ((mallory, "pg_temp, mallory, pg_catalog"), (superuser, "mallory, pg_catalog")):
            session.add_notice_handler(
                lambda notice: (
                    sprung.append((call, notice.message_primary or ""))
                    if "sprung" in (notice.message_primary or "")
                    else None
                )
            )
            session.execute(f"SET search_path = {path}")
            for function in functions:
                if (
                    session is mallory
                    and not function.allowed
                    or function.name + "(" in RUNS_WITH_THE_PATH_OF_THE_CALLER
                ):
                    continue
                for call in aimed_calls(world, function):
                    call = pg_catalog_types(call)
                    attempt(session, "BEGIN")  # only the code that it runs matters, not its result
                    attempt(session, f"SELECT {call}")
                    attempt(session, "ROLLBACK")
    assert sprung == []


def pg_catalog_types(call: str) -> str:
    """Casts to types of the server, whatever the path has."""
    return re.sub(r"::(?=(?:text|name|integer|bigint|jsonb|uuid|oid|interval|regclass|regrole|regproc|bytea|boolean|xid8|pg_snapshot|smallint)\b)",
                  "::pg_catalog.", call).replace("pg_catalog.integer", "pg_catalog.int4").replace("pg_catalog.bigint", "pg_catalog.int8").replace("pg_catalog.boolean", "pg_catalog.bool").replace("pg_catalog.smallint", "pg_catalog.int2")  # fmt: skip


def test_functions_in_where_do_not_see_hidden_rows_of_views(siege: Siege) -> None:
    """S8: a function in WHERE does not see rows that the view leaves out."""
    world = siege.world
    heard: list[str] = []
    told = []
    with world.connect() as mallory:
        mallory.execute(
            "CREATE FUNCTION mallory.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE 'leaked: %', $1; RETURN true; END $$"
        )
        mallory.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
        columns = world.database.execute(
            """SELECT attrelid::regclass::text, array_agg(quote_ident(attname) ORDER BY attnum) FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
                WHERE relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND relkind IN ('v', 'r') AND attnum > 0 AND NOT attisdropped
                  AND has_table_privilege('mallory', attrelid, 'SELECT') AND has_schema_privilege('mallory', relnamespace, 'USAGE') GROUP BY 1 ORDER BY 1"""
        )
        for settings in (
            "SET enable_nestloop = off; SET enable_mergejoin = off",
            "SET enable_hashjoin = off; SET enable_nestloop = on",
            "RESET ALL",
        ):
            mallory.execute(settings)
            for view, names in columns:
                if view in siege.may_read():
                    continue
                heard.clear()
                leaks = " AND ".join(f"mallory.leak({name}::text)" for name in names)
                _, said = attempt(mallory, f"SELECT * FROM {view} WHERE {leaks}")
                told += [(view, line) for line in [*heard, said] if SECRET in line]
        mallory.execute("DROP FUNCTION mallory.leak(text)")
    assert told == []


# Attempts of roles with other rights than those of the extensions.
BY_HAND = [
    "DROP EXTENSION pg_outbox CASCADE", "DROP EXTENSION pg_inbox CASCADE", "ALTER EXTENSION pg_outbox UPDATE", "ALTER EXTENSION pg_outbox ADD TABLE mallory.t", "DROP SCHEMA outbox CASCADE", "ALTER SCHEMA inbox RENAME TO x",
    "CREATE TABLE outbox.mine (i int)", "CREATE FUNCTION inbox.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "ALTER EVENT TRIGGER outbox_follow_altered_tables DISABLE", "CREATE EVENT TRIGGER x ON ddl_command_start EXECUTE FUNCTION outbox_internal.follow_altered_tables()",
    "ALTER SERVER away OPTIONS (SET url 'null:')", "ALTER SERVER d OPTIONS (SET url 'null:')", "DROP SERVER d CASCADE", "ALTER SERVER away RENAME TO mine", "ALTER SERVER away OWNER TO mallory", "CREATE USER MAPPING FOR CURRENT_USER SERVER away OPTIONS (user 'x', password 'y')",
    "CREATE USER MAPPING FOR PUBLIC SERVER d", "DROP USER MAPPING FOR victim SERVER away", "ALTER USER MAPPING FOR victim SERVER away OPTIONS (SET user 'x')", "CREATE FOREIGN DATA WRAPPER mine VALIDATOR outbox_internal.validate_options", "ALTER FOREIGN DATA WRAPPER pg_outbox NO VALIDATOR",
    "CREATE FOREIGN TABLE mallory.foreign_table (i int) SERVER d", "IMPORT FOREIGN SCHEMA x FROM SERVER d INTO mallory", "ALTER SYSTEM SET outbox.default_destination = 'null:'", "ALTER DATABASE world SET outbox.max_in_flight = 1", "SET outbox.default_destination = 'null:'", "LOAD 'pg_outbox'",
    "COMMENT ON FUNCTION outbox.capture_row() IS 'x'", "CREATE TRIGGER x AFTER UPDATE ON victim.t FOR EACH ROW EXECUTE FUNCTION outbox.capture_row()", "DROP TRIGGER \"00_outbox_capture_update\" ON victim.t", "ALTER TABLE victim.t DISABLE TRIGGER ALL", "ALTER TABLE victim.t INHERIT mallory.t",
    "CREATE TABLE mallory.child () INHERITS (victim.t)", "ALTER TABLE mallory.t INHERIT victim.t", "REASSIGN OWNED BY victim TO mallory", "DROP OWNED BY victim", "GRANT victim TO mallory", "SET ROLE victim", "SET SESSION AUTHORIZATION postgres",
    "REINDEX SCHEMA outbox", "CLUSTER outbox.event_0", "SECURITY LABEL ON TABLE outbox.event IS 'x'", "CREATE PUBLICATION p FOR TABLE outbox.event", "CREATE STATISTICS mallory.x ON position, xid FROM outbox.event_0", "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON TABLES TO mallory",
    "CREATE RULE x AS ON INSERT TO inbox.message DO ALSO NOTHING", "CREATE POLICY x ON outbox.event", "COPY outbox.event TO STDOUT", "SELECT lo_export(1, '/tmp/x')", "SELECT pg_read_file('postgresql.conf')",
]  # fmt: skip


def test_statements_on_objects_of_others_are_refused(siege: Siege) -> None:
    before = siege.snapshot()
    with attacking(siege.world) as mallory:
        allowed = []
        for statement in BY_HAND:
            state, said = attempt(mallory, statement)
            if state is None and not (siege.kind == "database owner" and statement.startswith("ALTER DATABASE")):
                allowed.append(statement)
    siege.world.cluster.execute("ALTER DATABASE world RESET ALL")
    assert allowed == []
    siege.check(before)


def test_granted_functions_do_not_harm_or_reveal_a_victim(siege: Siege) -> None:
    """Calls all granted functions with arguments that aim at the victim."""
    before = siege.snapshot()
    told = []
    with attacking(siege.world) as mallory:
        for function in functions_of(siege.world):
            if function.allowed:
                for call in aimed_calls(siege.world, function):
                    for statement in (f"SELECT {call}", f"SELECT * FROM {call}"):
                        state, said = attempt(mallory, statement)
                        if SECRET in said and function.name not in siege.may_read():
                            told.append((statement, state, said))
    assert told == []
    siege.check(before)


def test_other_roles_keep_working(siege: Siege) -> None:
    """Others still work after all attacks. Operators may stop deliveries."""
    world = siege.world
    if siege.kind not in ("operator", ALL):
        published = world.database.published()
        world.database.execute("SELECT outbox.enqueue('a', '1', 'X', '{}'::jsonb, topic => 'open.a')")
        wait_until(lambda: world.database.published(), lambda seen: seen > published, what="an event to be delivered")
    with world.connect("other") as other:
        for statement in (
            "CREATE TABLE other.fine (id int PRIMARY KEY)", "ALTER TABLE other.fine ADD COLUMN v text", "CREATE TEMP TABLE fine ()", "DROP TABLE other.fine",
            "CREATE TYPE other.pair AS (a int)", "ALTER TYPE other.pair ADD ATTRIBUTE b int", "DROP TYPE other.pair",
        ):  # fmt: skip
            other.execute(statement)
    with world.connect("victim") as victim:
        victim.execute("UPDATE victim.t SET v = v")
        if siege.kind not in ("inbox operator", ALL):  # which may give consumers away
            assert len(victim.execute("SELECT * FROM inbox.claim('theirs', 100, '1 ms')").fetchall()) > 0
    assert world.database.execute("SELECT count(c) FROM outbox.captures AS c")
