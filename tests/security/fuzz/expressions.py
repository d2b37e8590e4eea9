"""Random expressions of destinations, with hostile functions of a role, while owners and superusers touch its servers.

No program of the operating system may run, whatever they say (tests/security/traps.py), and the server goes on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fuzz import Failure, Fuzz, NewFuzz, main, new_roles
from odd import CODE, quoted

from database import Database
from waiting import wait_until

STATEMENTS_OF_A_ROUND = 120

# Bodies of a function of a role. The marker file shows that it had the rights of a superuser.
BODIES = [
    "RETURN pg_has_role('postgres', 'USAGE') AND mallory.strike()", "RETURN mallory.strike()", "RETURN NULL", "RETURN 1 / 0 = 1",
    "LOOP END LOOP; RETURN true", "PERFORM pg_sleep(10); RETURN true",
    "PERFORM translate(repeat('a', 3000000), repeat('b', 30000000), ''); RETURN true",
    "LOOP BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN END; END LOOP; RETURN true",
    "PERFORM pg_advisory_lock(1), pg_advisory_lock_shared(2), pg_try_advisory_lock(3); RETURN true",
    "PERFORM set_config('role', 'postgres', false); RETURN mallory.strike()",
    "PERFORM set_config('session_authorization', 'postgres', false); RETURN mallory.strike()",
    "PERFORM set_config('transaction_read_only', 'off', true); RETURN mallory.strike()",
    "PERFORM set_config('search_path', 'mallory', false); RETURN 1 = 1",
    "PERFORM set_config('log_min_messages', 'debug5', false); RETURN true",
    "RAISE LOG 'loud log'; RAISE WARNING 'loud warning'; RETURN true", "RAISE EXCEPTION 'no'",
    "PERFORM pg_terminate_backend(pg_backend_pid()); RETURN true", "PERFORM pg_cancel_backend(pg_backend_pid()); RETURN true",
    "PERFORM lo_create(0); RETURN true", "PERFORM nextval('mallory.s'); RETURN true", "PERFORM pg_notify('x', 'y'); RETURN true",
    "EXECUTE 'PREPARE x AS SELECT mallory.strike()'; RETURN true", "EXECUTE 'LISTEN x'; RETURN true", "EXECUTE 'DISCARD ALL'; RETURN true",
    "EXECUTE 'CREATE TEMP TABLE x (i int)'; RETURN true", "EXECUTE 'ALTER ROLE mallory SUPERUSER'; RETURN true",
    "EXECUTE 'COPY (SELECT 1) TO PROGRAM ''true'''; RETURN true", "EXECUTE 'SET ROLE postgres'; RETURN mallory.strike()",
    "EXECUTE 'DROP SERVER d0 CASCADE'; RETURN true", "PERFORM repeat('x', 1000000000); RETURN true",
    "PERFORM array_agg(g) FROM generate_series(1, 3000000) AS g; RETURN true", "PERFORM outbox.enqueue('a', 'b', 'C', '{}'); RETURN true",
    "PERFORM outbox.event_status(gen_random_uuid()); RETURN true", "RETURN mallory.f(x)",
]  # fmt: skip

OBJECTS = """
    CREATE SCHEMA mallory AUTHORIZATION mallory; SET ROLE mallory; CREATE SEQUENCE mallory.s;
    CREATE FUNCTION mallory.strike() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
      IF pg_catalog.pg_has_role('postgres', 'USAGE') THEN EXECUTE 'COPY (SELECT 1) TO PROGRAM ''cat >{marker}'''; END IF; RETURN true; END $$;
    CREATE DOMAIN mallory.d AS int CHECK (mallory.strike());
    CREATE FUNCTION mallory.f(x jsonb) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$ BEGIN RETURN true; END $$;
    CREATE FUNCTION mallory.folds(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN RETURN mallory.strike(); END $$;
    RESET ROLE
"""


class Servers:
    def __init__(self, fuzz: Fuzz) -> None:
        self.fuzz = fuzz

    def one_of(self, *choices: str) -> str:
        return self.fuzz.random.choice(choices)

    def filter(self) -> str:
        parts = [
            "true", "NULL", "mallory.f(payload)", "mallory.folds(1)", "'{1}'::mallory.d[] IS NOT NULL", "payload ? 'a'", "1 = 1",
            "(payload->>'n')::int > 0", "current_user = 'postgres'", "topic || event_type ~ 'a+'", "occurred_at < now()",
            "translate(repeat(topic, 3000000), repeat(chr(200), 30000000), '') IS NOT NULL", "headers IS NULL", *CODE,
        ]  # fmt: skip
        return f" {self.one_of('AND', 'OR')} ".join(self.one_of(*parts) for _ in range(self.fuzz.random.randint(1, 3)))

    def payload(self) -> str:
        return self.one_of(
            "payload", "payload - 'a'", "to_jsonb(mallory.f(payload))", "jsonb_build_object('u', current_user)", "topic", "NULL",
            "repeat(topic, 100000)", "'\\x00'::bytea", "'{1}'::mallory.d[]::text", "payload->'n'", *CODE,
        )  # fmt: skip

    def server(self) -> str:
        return f"d{self.fuzz.random.randrange(4)}"

    def next(self) -> tuple[str, str]:
        """A role, and its statement."""
        server, role = self.server(), self.one_of("mallory", "mallory", "other", "postgres")
        expression = self.one_of(f"filter {quoted(self.filter())}", f"payload {quoted(self.payload())}")
        option, value = expression.split(" ", 1)
        return role, self.one_of(
            f"CREATE SERVER IF NOT EXISTS {server} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', {expression})",
            f"ALTER SERVER {server} OPTIONS (ADD {option} {value})", f"ALTER SERVER {server} OPTIONS (SET {option} {value})",
            f"ALTER SERVER {server} OPTIONS (DROP {option})", f"ALTER SERVER {server} OPTIONS (ADD retry_max '1min')",
            f"ALTER SERVER {server} OWNER TO {self.one_of('mallory', 'other', 'postgres')}",
            f"ALTER SERVER {server} RENAME TO {self.server()}", self.one_of(f"DROP SERVER {server} CASCADE", "SELECT 1", "SELECT 1"), "REASSIGN OWNED BY mallory TO other",
            *[f"CREATE OR REPLACE FUNCTION mallory.f(x jsonb) RETURNS boolean LANGUAGE plpgsql {self.one_of('STABLE', 'VOLATILE', 'IMMUTABLE')} "
              f"PARALLEL SAFE AS $$ BEGIN {self.one_of(*BODIES)}; END $$"] * 3,
            *["SELECT outbox.enqueue('item', 'a', 'Added', jsonb_build_object('n', 1, 'a', 2))"] * 4,
            "SELECT s.* FROM outbox.event AS e, outbox.event_status(e.event_id) AS s LIMIT 50", "SELECT outbox.health()",
            "SELECT * FROM outbox.status", f"SELECT outbox.check_destination('{server}')", f"SELECT outbox.replay('{server}')",
            "SELECT outbox_internal.relay_check_expressions()",
        )  # fmt: skip


def play_round(fuzz: Fuzz, marker: Path) -> None:
    new_roles(fuzz.cluster, "mallory", "other")
    with fuzz.database() as database:
        set_up(database, marker)
        servers = Servers(fuzz)
        sessions = {role: fuzz.connect(database.name, role) for role in ("mallory", "other", "postgres")}
        for _ in range(STATEMENTS_OF_A_ROUND):
            role, statement = servers.next()
            if sessions[role].closed:
                sessions[role] = fuzz.connect(database.name, role)
            fuzz.run(sessions[role], statement)
            if marker.exists():
                raise Failure("code of a role ran as a superuser")
            if not fuzz.is_time():
                break
        for session in sessions.values():
            session.close()
        wait_until_nothing_runs(database)
        if marker.exists():
            raise Failure("code of a role ran as a superuser")
        fuzz.watch()
        fuzz.check_internal()


def wait_until_nothing_runs(database: Database) -> None:
    """Every relay has looked at everything, or cannot; none is kept by an expression."""
    wait_until(
        lambda: database.execute("SELECT destination, state FROM outbox.status WHERE state NOT IN ('idle', 'misconfigured')"),
        lambda busy: not busy, timeout=120, what="relays to end their work",
    )  # fmt: skip


def set_up(database: Database, marker: Path) -> None:
    database.execute(OBJECTS.replace("{marker}", str(marker)))
    database.execute(
        "GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO mallory, other; GRANT mallory TO other; SELECT outbox.grant_produce('mallory')"
    )
    database.execute("SELECT outbox.grant_monitor('other'); SELECT outbox.grant_operate('other'); SET ROLE mallory")
    for number in range(4):
        database.execute(
            f"CREATE SERVER d{number} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'mallory.f(payload)')"
        )
    database.execute("RESET ROLE")


@pytest.mark.long
def test_any_expression_leaves_the_server_running_and_no_rights(new_fuzz: NewFuzz) -> None:
    fuzz = new_fuzz("expressions", settings={"outbox.expression_timeout": "200ms"})
    with tempfile.TemporaryDirectory(prefix="outbox-open-") as folder, fuzz.judged():
        Path(folder).chmod(0o777)
        for _ in fuzz.rounds_to_play():
            play_round(fuzz, Path(folder) / "sprung")


if __name__ == "__main__":
    main(__file__)
