"""Roles that may capture tables (outbox.grant_capture), and code that runs when others use these tables."""

from __future__ import annotations

import random

import psycopg
import pytest
from psycopg import errors

from database import Database
from waiting import wait_until

from .attacker import Attacker, NewAttacker


def lay_trap(attacker: Attacker) -> str:
    """A function that makes the attacker a superuser where it runs with enough rights: trap(text)."""
    me = attacker.role
    attacker.execute(f"""
        CREATE FUNCTION {me}.strike() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
          ALTER ROLE {me} SUPERUSER; RETURN 'x';
          EXCEPTION WHEN insufficient_privilege THEN RETURN 'not yet'; END $$;
        CREATE FUNCTION {me}.trap(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
          RETURN {me}.strike(); END $$""")
    return f"{me}.trap"


def wait_for_backfill(database: Database, id: int, state: str) -> None:
    wait_until(
        lambda: database.value("SELECT state FROM outbox.backfill_task WHERE id = %s", (id,)),
        lambda seen: seen == state, what=f"the backfill to be {state}",
    )  # fmt: skip


def backfill_partition(database: Database, attacker: Attacker, v: str) -> None:
    """A superuser's partition of the attacker's table t, with one row that no trigger has seen."""
    table = f"{attacker.role}.t"
    database.execute(f"CREATE TABLE public.part PARTITION OF {table} DEFAULT")
    database.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL; INSERT INTO {table} VALUES (1, '{v}')")
    database.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL")
    database.add_destination("d", "null:")
    ((id,),) = attacker.execute("SELECT outbox.backfill('t')")
    wait_for_backfill(database, id, "finished")


# -------------------------------------------------------------------------------------------------
# Code of the owner
# -------------------------------------------------------------------------------------------------


def test_a_backfill_does_not_run_index_expressions_as_superuser(new_attacker: NewAttacker) -> None:
    """S1"""
    mallory = new_attacker("outbox.grant_capture")
    trap = lay_trap(mallory)
    mallory.execute(f"""
        CREATE TABLE t (id int PRIMARY KEY, v text);
        CREATE INDEX ON t ((v || {trap}('constant')))""")
    mallory.execute("SELECT outbox.capture('t')")
    mallory.database.add_destination("d", "null:")
    mallory.execute("SELECT outbox.backfill('t')")
    assert not mallory.is_superuser()


def test_a_condition_does_not_run_as_the_owner_of_a_partition(database: Database, new_attacker: NewAttacker) -> None:
    """S1: a role that adds a partition to another role's table owns it; a backfill walks it."""
    mallory = new_attacker("outbox.grant_capture")
    trap = lay_trap(mallory)
    me = mallory.role
    mallory.execute(f"""
        CREATE FUNCTION {me}.is_x(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
          RETURN {trap}($1) <> ''; END $$;
        CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY LIST (id)""")
    mallory.execute("SELECT outbox.capture('t', condition => %s)", (f"{me}.is_x(v)",))
    backfill_partition(database, mallory, "a")
    assert not mallory.is_superuser()
    types = "SELECT event_type FROM outbox.event"
    assert database.execute(types) == [("TSnapshot",)]


def test_a_type_of_the_owner_does_not_run_as_the_owner_of_a_partition(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S1: to_json() calls casts to json, which belong to the owner of the type."""
    mallory = new_attacker("outbox.grant_capture")
    trap = lay_trap(mallory)
    me = mallory.role
    mallory.execute(f"""
        CREATE TYPE {me}.mood AS ENUM ('sad');
        CREATE FUNCTION {me}.as_json({me}.mood) RETURNS json LANGUAGE plpgsql AS $$ BEGIN
          RETURN to_json({trap}('')); END $$;
        CREATE CAST ({me}.mood AS json) WITH FUNCTION {me}.as_json({me}.mood);
        CREATE TABLE t (id int PRIMARY KEY, v {me}.mood) PARTITION BY LIST (id)""")
    mallory.execute("SELECT outbox.capture('t')")
    backfill_partition(database, mallory, "sad")
    assert not mallory.is_superuser()
    payload = "SELECT convert_from(payload, 'UTF8')::jsonb ->> 'v' FROM outbox.event"
    assert database.execute(payload) == [("not yet",)]


def test_a_partition_of_an_unrelated_role_is_not_backfilled(database: Database, new_attacker: NewAttacker) -> None:
    """S1: functions of the one owner would run as the other."""
    mallory, other = new_attacker("outbox.grant_capture"), new_attacker()
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY LIST (id)")
    mallory.execute("CREATE TABLE part PARTITION OF t DEFAULT")
    mallory.execute("SELECT outbox.capture('t')")
    database.execute(f"ALTER TABLE {mallory.role}.part OWNER TO {other.role}")
    database.add_destination("d", "null:")
    with pytest.raises(errors.InsufficientPrivilege, match="does not belong to the owner"):
        mallory.execute("SELECT outbox.backfill('t')")
    mallory.execute("INSERT INTO t VALUES (1, 'a')")  # and is captured
    assert database.value("SELECT count(*) FROM outbox.event") == 1


def test_capturing_does_not_plan_partition_keys_as_the_capturing_role(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S1: a trigger on a partitioned table looks up its partitions, and so plans its partition key."""
    mallory = new_attacker("outbox.grant_capture")
    trap = lay_trap(mallory)
    mallory.execute(f"""
        CREATE TABLE t (id int NOT NULL, v text) PARTITION BY LIST ((v || {trap}('constant')))""")
    with database.connect() as connection:
        connection.execute(f"SELECT outbox.capture('{mallory.role}.t', aggregate_id => '{{id}}')")
    assert not mallory.is_superuser()
    with database.connect() as connection:
        connection.execute(f"SELECT outbox.uncapture('{mallory.role}.t')")
    assert not mallory.is_superuser()


def test_event_triggers_do_not_plan_partition_keys_as_superuser(database: Database, new_attacker: NewAttacker) -> None:
    """S1: they create triggers on each table that is attached to a captured one."""
    mallory = new_attacker("outbox.grant_capture")
    trap = lay_trap(mallory)
    mallory.execute(f"""
        CREATE TABLE t (id int NOT NULL, v text) PARTITION BY LIST ((v || {trap}('constant')))""")
    mallory.execute("SELECT outbox.capture('t', aggregate_id => '{id}', fire => 'always')")
    mallory.execute('DROP TRIGGER "00_outbox_capture_insert" ON t')
    mallory.execute('ALTER TABLE t ENABLE TRIGGER "00_outbox_capture_update"')
    for statement in (
        "CREATE TABLE part PARTITION OF t FOR VALUES IN ('a')",
        "CREATE TABLE parts PARTITION OF t FOR VALUES IN ('b') PARTITION BY LIST (v)",
        "ALTER TABLE t DETACH PARTITION part",
        "ALTER TABLE t ADD COLUMN more text",
    ):
        mallory.execute(statement)
        assert not mallory.is_superuser(), statement


def test_the_setup_of_captures_is_for_owners(database: Database, new_attacker: NewAttacker) -> None:
    """S1: functions that work as the owner of a table ask whether the caller may."""
    mallory, victim = new_attacker("outbox.grant_capture"), new_attacker()
    victim.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = f"'{victim.role}.t'"
    for call in (
        f"outbox_internal.add_capture_triggers({table}, NULL, 'ignore')",
        f"outbox_internal.copy_capture_triggers({table}, {table}, 'ignore')",
        f"outbox_internal.set_capture_fire({table}, 'always')",
        f"outbox_internal.drop_capture_triggers({table})",
        f"outbox_internal.check_captured({table})",
        f"outbox.capture({table})",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            mallory.execute(f"SELECT {call}")
    with pytest.raises(errors.InsufficientPrivilege):
        victim.execute("SELECT outbox_internal.run_as_owner('t', 'SELECT 1')")


# -------------------------------------------------------------------------------------------------
# Recursive conditions
# -------------------------------------------------------------------------------------------------

ROWS = "CREATE TABLE r (id int PRIMARY KEY, v text, n int DEFAULT 0); INSERT INTO r SELECT i, repeat('a', 50) FROM generate_series(1, 8) AS i"


def capture_with(attacker: Attacker, body: str, condition: str = "{me}.f(id, n) AND {me}.g(r)") -> None:
    me = attacker.role
    attacker.execute(ROWS)
    attacker.execute(f"""
        CREATE FUNCTION {me}.f(i int, nn int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
          {body.format(me=me)} RETURN true; END $$;
        CREATE FUNCTION {me}.g(r {me}.r) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
          RETURN r.v IS NOT NULL; END $$""")
    attacker.execute("SELECT outbox.capture('r', condition => %s)", (condition.format(me=me),))


def versions(database: Database) -> list[tuple]:
    return database.execute(
        "SELECT aggregate_id, (convert_from(payload, 'UTF8')::jsonb ->> 'n')::int FROM outbox.event ORDER BY position"
    )


def test_a_condition_may_change_the_table_it_is_about(database: Database, new_attacker: NewAttacker) -> None:
    """S7"""
    mallory = new_attacker("outbox.grant_capture")
    capture_with(mallory, """
        IF i = 1 AND nn = 1 THEN
          UPDATE {me}.r SET v = repeat('y', 2000), n = 2 WHERE id = 2 AND n < 2; PERFORM repeat('z', 100000);
        END IF;""")  # fmt: skip
    mallory.execute("UPDATE r SET n = 1 WHERE id = 1")
    assert versions(database) == [("2", 2), ("1", 1)]


def test_a_condition_may_fail_while_it_is_evaluated_within_itself(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S7: errors leave evaluations where they are, in subtransactions and in whole ones."""
    mallory = new_attacker("outbox.grant_capture")
    capture_with(mallory, """
        IF nn = 1 AND i < 5 THEN
          BEGIN UPDATE {me}.r SET n = 1 WHERE id = i + 1 AND n = 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
        ELSIF nn = 1 AND i = 5 THEN
          PERFORM 1 / 0;
        ELSIF nn = 2 THEN
          RAISE EXCEPTION 'no';
        END IF;""")  # fmt: skip
    with mallory.connect() as connection:
        for _ in range(3):
            connection.execute("UPDATE r SET n = 0 WHERE n > 0")
            connection.execute("UPDATE r SET n = 1 WHERE id = 1")
            with pytest.raises(errors.RaiseException):
                connection.execute("UPDATE r SET n = 2 WHERE id = 3")
        with connection.transaction():
            for _ in range(3):
                with pytest.raises(errors.RaiseException), connection.transaction():
                    connection.execute("UPDATE r SET n = 2 WHERE id = 3")
            connection.execute("UPDATE r SET n = 3 WHERE id = 3")
        assert connection.execute("SELECT id, n FROM r WHERE n > 0 ORDER BY id").fetchall() == [
            (1, 1),
            (2, 1),
            (3, 3),
            (4, 1),
        ]
    assert versions(database)[-1] == ("3", 3)


def test_a_condition_that_recurses_without_end_raises_an_error(database: Database, new_attacker: NewAttacker) -> None:
    """S7"""
    mallory = new_attacker("outbox.grant_capture")
    capture_with(mallory, "UPDATE {me}.r SET n = nn + 1 WHERE id = i % 8 + 1 AND n <= nn;")
    with mallory.connect() as connection:
        for _ in range(2):
            with pytest.raises(errors.StatementTooComplex):
                connection.execute("UPDATE r SET n = 1 WHERE id = 1")
    assert versions(database) == []


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE {me}.r",
        "PERFORM outbox.uncapture('{me}.r')",
        "PERFORM outbox.capture('{me}.r', replace => true)",
        "ALTER TABLE {me}.r ADD COLUMN more text",
        "ALTER TABLE {me}.r DISABLE TRIGGER USER",
        'DROP TRIGGER "00_outbox_capture_delete" ON {me}.r',
        "TRUNCATE {me}.r",
        "CREATE OR REPLACE FUNCTION {me}.g(r {me}.r) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "CREATE INDEX ON {me}.r (v)",
        "GRANT SELECT ON {me}.r TO PUBLIC",
        'ALTER TRIGGER "00_outbox_capture_delete" ON {me}.r RENAME TO other',
        "CREATE TRIGGER late AFTER DELETE ON {me}.r FOR EACH ROW EXECUTE FUNCTION outbox.capture_row()",
    ],
)
def test_a_condition_may_drop_its_own_table_or_capture(
    database: Database, new_attacker: NewAttacker, statement: str
) -> None:
    """S7: DROP, uncapture and capture of the table, and changes that reload all captures."""
    mallory = new_attacker("outbox.grant_capture")
    capture_with(
        mallory,
        f"""IF nn = 1 THEN
              {statement}; UPDATE {{me}}.r SET n = 2 WHERE id = 2 AND n < 2; PERFORM repeat('z', 100000);
            END IF;""",
    )
    with mallory.connect() as connection:
        for _ in range(2):
            try:
                connection.execute("UPDATE r SET n = 1 WHERE id = 1")
                connection.execute("UPDATE r SET n = 0")
            except psycopg.Error as error:
                assert not connection.broken, error
        connection.execute("SELECT 1")


def test_a_condition_that_is_planned_may_change_the_table(database: Database, new_attacker: NewAttacker) -> None:
    """S7: an IMMUTABLE function runs while the condition is planned, before it can be evaluated."""
    mallory = new_attacker("outbox.grant_capture")
    me = mallory.role
    mallory.execute(ROWS)
    mallory.execute(f"""
        CREATE FUNCTION {me}.act() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
          UPDATE {me}.r SET n = n + 1 WHERE id = 1; END $$;
        CREATE FUNCTION {me}.constant() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
          PERFORM {me}.act(); RETURN true; END $$""")
    mallory.execute("SELECT outbox.capture('r', condition => %s)", (f"{me}.constant()",))
    with pytest.raises(errors.StatementTooComplex):  # it needs itself
        mallory.execute("UPDATE r SET v = 'b'")
    mallory.execute(f"""
        CREATE OR REPLACE FUNCTION {me}.act() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
          CREATE OR REPLACE FUNCTION {me}.other() RETURNS int LANGUAGE sql AS 'SELECT 1'; END $$""")
    mallory.execute("UPDATE r SET v = 'b'")
    assert database.value("SELECT count(*) FROM outbox.event") == 8


def test_conditions_that_nest_at_random_do_not_crash_the_server(database: Database, new_attacker: NewAttacker) -> None:
    """S7: statements, errors and DDL in random order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    mallory = new_attacker("outbox.grant_capture")
    me = mallory.role
    capture_with(mallory, """
        IF nn <= 0 OR nn > 40 THEN RETURN true; END IF;
        BEGIN
          CASE (i * 7 + nn * 13) % 9
            WHEN 0 THEN UPDATE {me}.r SET n = nn - 3, v = repeat(v, 3) WHERE id = nn % 8 + 1;
            WHEN 1 THEN UPDATE {me}.r SET n = nn - 2 WHERE id IN (i, nn % 5 + 1);
            WHEN 2 THEN RAISE EXCEPTION 'inside';
            WHEN 3 THEN PERFORM outbox.capture('{me}.r', replace => true);
            WHEN 4 THEN GRANT SELECT ON {me}.r TO PUBLIC;
            WHEN 5 THEN DELETE FROM {me}.r WHERE id = nn % 8 + 1;
            WHEN 6 THEN INSERT INTO {me}.r VALUES (nn % 8 + 1, repeat('b', 3000), nn - 1) ON CONFLICT (id) DO UPDATE SET n = excluded.n;
            WHEN 7 THEN CREATE OR REPLACE FUNCTION {me}.g(r {me}.r) RETURNS boolean LANGUAGE sql AS 'SELECT true OR r.n > 0';
            ELSE NULL;
          END CASE;
        EXCEPTION WHEN OTHERS THEN
          IF nn % 4 = 0 THEN RAISE; END IF;
        END;""")  # fmt: skip
    with mallory.connect() as connection:
        for _ in range(60):
            statement = choice.choice((
                "UPDATE r SET n = {a}, v = left(v || 'x', 5000)", "UPDATE r SET n = {a} WHERE id = {b}",
                "DELETE FROM r WHERE id = {b}", "INSERT INTO r VALUES ({b}, repeat('c', {a} * 100), {a})",
                "INSERT INTO r SELECT i, 'd' FROM generate_series(1, 8) AS i ON CONFLICT DO NOTHING",
            )).format(a=choice.randrange(45), b=choice.randrange(1, 9))  # fmt: skip
            try:
                with connection.transaction():
                    if choice.random() < 0.5:
                        with connection.transaction():
                            connection.execute(statement)
                    connection.execute(statement)
            except psycopg.Error as error:
                assert not connection.broken, (seed, statement, error)
        assert connection.execute("SELECT current_user").fetchone() == (me,)


def test_a_backfill_with_a_condition_that_changes_the_table_does_not_crash(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S7: in the worker the log is open while the condition is evaluated."""
    mallory = new_attacker("outbox.grant_capture")
    capture_with(
        mallory, "IF i % 2 = 0 AND nn = 0 THEN UPDATE {me}.r SET n = 1, v = repeat('y', 3000) WHERE id = i + 1; END IF;"
    )
    database.add_destination("d", "null:")
    ((id,),) = mallory.execute("SELECT outbox.backfill('r')")
    wait_until(
        lambda: database.value("SELECT state FROM outbox.backfill_task WHERE id = %s", (id,)),
        lambda state: state in ("finished", "failed"), what="the backfill to end",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Objects of other roles
# -------------------------------------------------------------------------------------------------


def with_table(new_attacker: NewAttacker, condition: str | None = None) -> Attacker:
    """An attacker that captures its table t."""
    attacker = new_attacker("outbox.grant_capture")
    attacker.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    attacker.execute("SELECT outbox.capture('t', condition => %s)", (condition,))
    return attacker


def break_triggers(attacker: Attacker) -> None:
    attacker.execute('DROP TRIGGER "00_outbox_capture_delete" ON t')
    attacker.execute("""
        CREATE TRIGGER "00_outbox_capture_delete" AFTER UPDATE ON t FOR EACH ROW
          WHEN (OLD.v IS DISTINCT FROM NEW.v) EXECUTE FUNCTION outbox.capture_row()""")


def test_broken_triggers_of_a_capture_do_not_affect_other_tables(database: Database, new_attacker: NewAttacker) -> None:
    """S17"""
    mallory, victim = with_table(new_attacker, "v <> ''"), new_attacker("outbox.grant_capture")
    with mallory.connect() as connection:
        connection.execute("CREATE TEMP TABLE c () INHERITS (t)")
        break_triggers(mallory)
    pids = "SELECT count(*) FROM pg_class AS c JOIN pg_inherits AS i ON i.inhrelid = c.oid AND c.relpersistence = 't'"
    wait_until(lambda: database.value(pids), lambda seen: seen == 0, what="the temporary table to go")
    for attacker in (victim, mallory):
        attacker.execute("CREATE TABLE mine (id int PRIMARY KEY, v text)")
        attacker.execute("ALTER TABLE mine ADD COLUMN more text")
        attacker.execute(
            "CREATE TYPE pair AS (a int); CREATE TABLE pairs OF pair; ALTER TYPE pair ADD ATTRIBUTE b int CASCADE"
        )
        attacker.execute("SELECT outbox.capture('mine')")
        attacker.execute("DROP TABLE pairs")
    database.execute("CREATE SCHEMA theirs CREATE TABLE x (i int)")
    database.execute("CREATE TEMP TABLE x (i int)")
    assert sorted(database.execute("SELECT captured::text, enabled FROM outbox.captures")) == sorted(
        [(f"{mallory.role}.t", False), (f"{mallory.role}.mine", True), (f"{victim.role}.mine", True)]
    )


def test_a_broken_capture_is_reported_to_the_role_that_alters_its_table(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S17"""
    mallory = with_table(new_attacker, "v <> ''")
    break_triggers(mallory)
    notices: list[str] = []
    with database.connect() as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute(f"CREATE TABLE public.c () INHERITS ({mallory.role}.t)")
    assert notices == [
        f"new partitions and children of table {mallory.role}.t are not captured: "
        "the triggers that capture it are not complete"
    ]
    database.execute(f"SELECT outbox.capture('{mallory.role}.t', condition => 'v <> ''''', replace => true)")
    assert database.execute("SELECT enabled FROM outbox.captures") == [(True,)]
    database.execute("INSERT INTO public.c VALUES (1, 'a')")
    assert database.value("SELECT count(*) FROM outbox.event") == 1


def test_a_forged_capture_keeps_no_role_from_altering_its_own_table(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S17: save_captured() may get values that do not fit; that only affects the owner of the table."""
    mallory, victim = with_table(new_attacker), new_attacker()
    mallory.execute("CREATE TABLE child () INHERITS (t)")
    database.execute(f"ALTER TABLE {mallory.role}.child OWNER TO {victim.role}")
    database.execute("UPDATE outbox.captured SET aggregate_id = '{gone}'")
    database.execute(f"GRANT USAGE ON SCHEMA {mallory.role} TO {victim.role}")
    victim.execute(f"ALTER TABLE {mallory.role}.child ADD COLUMN more text")
    with pytest.raises(errors.UndefinedColumn):
        mallory.execute("ALTER TABLE t SET (fillfactor = 50)")


def test_other_sessions_do_not_wait_for_the_owner_of_a_captured_table(
    database: Database, new_attacker: NewAttacker
) -> None:
    """S17: statements of others do not touch the row that a transaction of the owner has locked."""
    mallory, victim = with_table(new_attacker), new_attacker()
    with mallory.connect() as holder, victim.connect() as other:
        with holder.transaction():
            holder.execute("ALTER TABLE t RENAME COLUMN v TO w")
            holder.execute("CREATE TABLE c () INHERITS (t)")
            other.execute("SET lock_timeout = '30s'")
            other.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            other.execute("ALTER TABLE t RENAME COLUMN v TO w")
            other.execute("DROP TABLE t")


def test_temporary_children_are_not_captured(database: Database, new_attacker: NewAttacker) -> None:
    """S17: they belong to a session and end with it."""
    mallory = with_table(new_attacker)
    with mallory.connect() as connection:
        connection.execute("CREATE TEMP TABLE c () INHERITS (t)")
        connection.execute("INSERT INTO c VALUES (1, 'a')")
        database.execute(f"CREATE TABLE public.d () INHERITS ({mallory.role}.t)")
        database.execute(f"ALTER TABLE public.d OWNER TO {mallory.role}; ALTER TABLE public.d ADD PRIMARY KEY (id)")
        database.add_destination("d", "null:")
        ((id,),) = mallory.execute("SELECT outbox.backfill('t')")
        wait_for_backfill(database, id, "finished")
    assert database.value("SELECT count(*) FROM outbox.event") == 0


def test_captures_of_typed_tables_follow_their_type(database: Database, new_attacker: NewAttacker) -> None:
    """S17: no captured table is missed when its type is altered."""
    mallory = new_attacker("outbox.grant_capture")
    mallory.execute("CREATE TYPE pair AS (a int, b int); CREATE TABLE pairs OF pair (PRIMARY KEY (a))")
    mallory.execute("CREATE TABLE base (a int, b int); CREATE TABLE child (PRIMARY KEY (a)) INHERITS (base)")
    mallory.execute("SELECT outbox.capture('pairs', columns => '{b}'), outbox.capture('child', columns => '{b}')")
    mallory.execute("ALTER TYPE pair RENAME ATTRIBUTE b TO c CASCADE")
    mallory.execute("ALTER TABLE base RENAME COLUMN b TO c")
    mallory.execute("INSERT INTO pairs VALUES (1, 2); INSERT INTO child VALUES (1, 2)")
    payload = "SELECT convert_from(payload, 'UTF8') FROM outbox.event"
    assert database.execute(payload) == [('{"a":1,"c":2}',), ('{"a":1,"c":2}',)]
    mallory.execute("ALTER TYPE pair DROP ATTRIBUTE c CASCADE; ALTER TABLE base DROP COLUMN c")
    mallory.execute("INSERT INTO pairs VALUES (2); INSERT INTO child VALUES (2)")
    assert database.execute(f"{payload} WHERE aggregate_id = '2'") == [('{"a":2}',), ('{"a":2}',)]
    with pytest.raises(errors.UndefinedColumn):
        mallory.execute("ALTER TYPE pair DROP ATTRIBUTE a CASCADE")


def test_a_capture_of_another_object_than_a_table_is_not_saved(database: Database, new_attacker: NewAttacker) -> None:
    """S17: outbox.capture() calls save_captured(), and any role that may capture can."""
    mallory = new_attacker("outbox.grant_capture")
    mallory.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS id")
    mallory.execute("SELECT outbox.capture('t')")
    row = "jsonb_populate_record(NULL::outbox.captured, %s || jsonb_build_object('relation', '{0}'))"
    captured = database.value("SELECT to_jsonb(c)::text FROM outbox.captured AS c")
    with mallory.connect() as connection:
        connection.execute("CREATE TEMP TABLE s (id int PRIMARY KEY)")
        for name in ("v", "s", "t_pkey"):
            with pytest.raises((errors.WrongObjectType, errors.FeatureNotSupported)):
                connection.execute(f"SELECT outbox_internal.save_captured({row.format(name)})", (captured,))
        for name in ("pg_class", "0"):
            with pytest.raises((errors.InsufficientPrivilege, errors.UndefinedTable)):
                connection.execute(f"SELECT outbox_internal.save_captured({row.format(name)})", (captured,))
