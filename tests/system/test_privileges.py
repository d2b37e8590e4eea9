"""Privileges on every object of both extensions, and the abilities of roles with each right. The table of all
objects is sql/objects.txt."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from cluster import REPOSITORY, Cluster
from database import Database, NewDatabase
from objects import OBJECTS, TABLE, Object, name_of
from receiver import Receiver, answer, everything
from waiting import wait_until

# Rights of each role. `public` has none.
GRANTS = {
    "producer": "outbox.grant_produce",
    "capturer": "outbox.grant_capture",
    "fetcher": "outbox.grant_fetch",
    "operator": "outbox.grant_operate",
    "monitor": "outbox.grant_monitor",
    "sender": "inbox.grant_send",
    "reader": "inbox.grant_read",
    "consumer": "inbox.grant_consume",
    "inbox operator": "inbox.grant_operate",
    "inbox monitor": "inbox.grant_monitor",
    "relay": "outbox.grant_relay",
    "public": None,
}

# Tables that roles may write, in rows that a policy allows them. Not DELETE, nor UPDATE of the table as a whole:
# these would let a role lock it.
WRITES = {("operator", "table outbox.endpoint"): {"INSERT", "UPDATE"}}


class People:
    """A role per right. Roles belong to the whole cluster, so each test has its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.roles: list[str] = []

    def add(self, kind: str, *options: str) -> str:
        role = f"{kind}_{self.database.name}".replace(" ", "_")
        self.database.execute(f"CREATE ROLE {role} LOGIN {' '.join(options)}")
        self.roles.append(role)
        return role

    def with_right(self, kind: str, *arguments: object) -> str:
        """A new role that was given one right."""
        role = self.add(kind)
        if GRANTS[kind] is not None:
            values = ", ".join(["%s"] * (1 + len(arguments)))
            self.database.execute(f"SELECT {GRANTS[kind]}({values})", (role, *arguments))
        return role

    def connect(self, role: str) -> psycopg.Connection:
        return self.database.cluster.connect(self.database.name, role)

    def remove(self) -> None:
        for role in self.roles:
            if self.database.value("SELECT to_regrole(%s)", (role,)):
                self.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def people(database: Database) -> Iterator[People]:
    database.execute("CREATE EXTENSION pg_inbox")
    people = People(database)
    yield people
    people.remove()


# -------------------------------------------------------------------------------------------------
# The list
# -------------------------------------------------------------------------------------------------

ALLOWED = """
    WITH object(name, kind, id) AS (
        SELECT 'schema ' || nspname, 'schema', oid FROM pg_namespace
         WHERE nspname IN ('outbox', 'inbox', 'outbox_internal', 'inbox_internal')
        UNION ALL
        SELECT 'wrapper ' || fdwname, 'wrapper', oid FROM pg_foreign_data_wrapper
        UNION ALL
        SELECT 'function ' || replace(oid::regprocedure::text, '"json"', 'json'), 'function', oid FROM pg_proc
         WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'
        UNION ALL
        SELECT CASE relkind WHEN 'r' THEN 'table ' WHEN 'p' THEN 'table ' WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence '
                            WHEN 'c' THEN 'type ' ELSE relkind::text || ' ' END || oid::regclass,
               CASE relkind WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'table' END,
               CASE relkind WHEN 'c' THEN reltype ELSE oid END
          FROM pg_class
         WHERE relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND relkind NOT IN ('i', 'I', 't')
        UNION ALL
        SELECT 'type ' || oid::regtype, 'type', oid FROM pg_type
         WHERE typnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND typrelid = 0 AND typelem = 0
    ), allowed AS (
        SELECT o.name, p.privilege
          FROM object AS o,
               LATERAL (SELECT privilege, CASE o.kind
                           WHEN 'schema' THEN has_schema_privilege(%(role)s, o.id, privilege)
                           WHEN 'wrapper' THEN has_foreign_data_wrapper_privilege(%(role)s, o.id, privilege)
                           WHEN 'function' THEN has_function_privilege(%(role)s, o.id, privilege)
                           WHEN 'table' THEN has_any_column_privilege(%(role)s, o.id, privilege)
                           WHEN 'sequence' THEN has_sequence_privilege(%(role)s, o.id, privilege)
                           WHEN 'type' THEN has_type_privilege(%(role)s, o.id, privilege) END AS has
                          FROM unnest(CASE o.kind
                           WHEN 'schema' THEN '{USAGE, CREATE}'
                           WHEN 'function' THEN '{EXECUTE}'
                           WHEN 'table' THEN '{SELECT, INSERT, UPDATE, REFERENCES}'
                           WHEN 'sequence' THEN '{SELECT, USAGE, UPDATE}'
                           ELSE '{USAGE}' END::text[]) AS privilege) AS p
         WHERE p.has
        UNION ALL
        SELECT o.name, privilege
          FROM object AS o, unnest('{DELETE, TRUNCATE, TRIGGER}'::text[]) AS privilege
         WHERE o.kind = 'table' AND has_table_privilege(%(role)s, o.id, privilege)
    )
    SELECT o.name, coalesce(array_agg(a.privilege) FILTER (WHERE a.privilege IS NOT NULL), '{}')
      FROM object AS o LEFT JOIN allowed AS a USING (name)
     GROUP BY o.name
"""


def test_every_line_of_the_table_is_complete() -> None:
    def explained(column: str) -> set[str]:
        part = TABLE.read_text().split(f"{column}:\n#\n")[1].split("\n#\n")[0].split("\n\n")[0]
        return set(re.findall(r"^#   (\w+(?: \w+)*)  ", part, re.MULTILINE))

    objects = OBJECTS.values()
    assert {o.why for o in objects} - {""} == explained("use something internal")
    assert {o.caller for o in objects} - {""} == explained("not know its caller")
    assert {o.edition for o in objects} == {"", "native", "sql", "each"}
    rights = {function.replace(".grant_", " ") for function in GRANTS.values() if function}
    assert {f"{o.extension} {right}" for o in objects for right in o.rights - {"owner", "everybody"}} == {
        *rights,
        "outbox fetch default",
    }
    # Each public object has a right, or is for owners on purpose.
    assert [o.name for o in objects if o.is_function and not o.is_internal and not o.rights] == []
    assert [o.name for o in objects if o.is_internal and o.is_granted != (o.why != "")] == []
    assert [
        o.name
        for o in objects
        if o.is_granted and o.edition != "sql" and o.rights != {"fetch default"} and not o.attack
    ] == []


def users_of(object_: Object) -> list[str]:
    """Returns the roles of GRANTS that may use it."""
    if "everybody" in object_.rights:
        return list(GRANTS)
    granting = {f"{object_.extension}.grant_{right}" for right in object_.rights}
    return [kind for kind, function in GRANTS.items() if function in granting]


def users_of_schema(name: str) -> list[str]:
    """A role may use a schema if one of its rights includes something in it."""
    within = [users_of(o) for o in OBJECTS.values() if o.name.startswith(f"{name}.") and o.rights != {"everybody"}]
    return [kind for kind in GRANTS if any(kind in users for users in within)]


def test_every_object_is_granted_as_listed(people: People) -> None:
    """A new object has a line in sql/objects.txt."""
    found: dict[str, list[str]] = {}
    for kind in GRANTS:
        role = people.with_right(kind)
        for name, privileges in people.database.execute(ALLOWED, {"role": role}):  # type: ignore[arg-type]
            users = found.setdefault(name, [])
            assert set(privileges) - WRITES.get((kind, name), set()) <= {"EXECUTE", "SELECT", "USAGE"}, (
                f"{kind} may {privileges} {name}"
            )
            if privileges:
                users.append(kind)
    listed, missing = {}, set()
    for described in found:
        kind, _, name = described.partition(" ")
        if kind == "schema":
            listed[described] = users_of_schema(name)
        elif known := OBJECTS.get(name_of(name)):
            listed[described] = users_of(known)
        elif "_internal." in name_of(name) or kind == "wrapper":
            listed[described] = []
        else:
            missing.add(name)
    assert missing == set(), "without a line in sql/objects.txt"
    assert {name: users for name, users in found.items() if name in listed} == listed
    there = {name_of(described.partition(" ")[2]) for described in found}
    assert {o.name for o in OBJECTS.values() if o.edition != "sql"} - there == set(), "lines for nothing"


def test_a_reader_may_call_what_its_processor_calls() -> None:
    calls = set(re.findall(r"\binbox_internal\.\w+(?=\()", (REPOSITORY / "bgworker/processor_main.cpp").read_text()))
    assert len(calls) >= 6
    assert {name for name in calls if "read" not in OBJECTS[f"{name}()"].rights} == set()


def test_nothing_internal_is_for_everybody(people: People) -> None:
    """These schemas are for our own code: no function, type, view or table in them is granted to PUBLIC."""
    nobody = people.add("nobody")
    privileges = people.database.execute(ALLOWED, {"role": nobody})  # type: ignore[arg-type]
    assert len([name for name, _ in privileges if "_internal." in name.partition("(")[0]]) > 150
    assert [(name, has) for name, has in privileges if has and "_internal" in name.partition("(")[0]] == []


def test_nothing_is_granted_on_columns(people: People) -> None:
    columns = people.database.execute(
        "SELECT attrelid::regclass::text, attname FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid "
        "WHERE c.relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND attacl IS NOT NULL"
    )
    assert columns == []


def test_members_of_pg_monitor_are_monitors(people: People) -> None:
    granted = people.with_right("monitor")
    people.database.execute("SELECT inbox.grant_monitor(%s)", (granted,))
    member = people.add("member")
    people.database.execute(f"GRANT pg_monitor TO {member}")
    rights = [
        sorted(people.database.execute(ALLOWED, {"role": role}))  # type: ignore[arg-type]
        for role in (granted, member)
    ]
    assert rights[0] == rights[1]


# Functions without a fixed search_path, with the reason.
SEARCH_PATH_OF_THE_CALLER = {
    # run with the rights of the caller; the planner puts them into its statement
    "outbox.enqueue(text,anycompatiblenonarray,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "outbox.enqueue(character varying,anycompatiblenonarray,text,json,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "outbox.enqueue(text,anycompatiblenonarray,text,bytea,text,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "inbox.begin_event(text,uuid,text,inbox_internal.caller)",  # called for every event, and qualifies every name and operator
    "inbox_internal.row_parts(regclass,text[],text,jsonb,boolean)",  # the same
    "inbox_internal.run(text,jsonb,regclass,text[],text)",  # the same
    "inbox_internal.process(integer,bigint,text[])",  # handlers are to find what the path of their role has
}


def test_every_function_has_a_fixed_search_path(people: People) -> None:
    functions = people.database.execute(
        """SELECT p.oid::regprocedure::text, prosecdef,
                  coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false),
                  l.lanname = 'c' OR p.prosqlbody IS NOT NULL
             FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
            WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"""
    )
    loose = {
        name
        for name, with_more_rights, pinned, resolved in functions
        if not pinned and (with_more_rights or not resolved)
    }
    assert loose == SEARCH_PATH_OF_THE_CALLER


def test_no_function_means_something_else_where_backslashes_escape(people: People) -> None:
    """A body is read when it is called, as the settings of the caller say, unless the function has its own."""
    functions = people.database.execute(
        """SELECT oid::regprocedure::text, prosrc FROM pg_proc
            WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND prosqlbody IS NULL
              AND NOT coalesce('standard_conforming_strings=on' = ANY (proconfig), false)"""
    )
    comments_and_escapes = re.compile(r"--.*|\bE'(?:[^'\\]|\\.|'')*'")
    assert [name for name, body in functions if "\\" in comments_and_escapes.sub("", body)] == []


# -------------------------------------------------------------------------------------------------
# Granting
# -------------------------------------------------------------------------------------------------


@contextmanager
def refused(message: str = "permission denied") -> Iterator[None]:
    with pytest.raises(errors.InsufficientPrivilege, match=message):
        yield


@pytest.mark.parametrize("kind", [kind for kind, function in GRANTS.items() if function])
def test_what_was_granted_can_be_revoked(people: People, kind: str) -> None:
    role = people.with_right(kind)
    people.database.execute(f"SELECT {(GRANTS[kind] or '').replace('grant', 'revoke')}(%s)", (role,))
    people.database.execute(f"DROP ROLE {role}")  # fails if something depends on it
    assert people.database.execute("SELECT * FROM outbox.producer") == []


def test_rights_are_revoked_one_by_one(people: People) -> None:
    role = people.with_right("producer")
    people.database.execute("SELECT outbox.grant_monitor(%s)", (role,))
    people.database.execute("SELECT outbox.revoke_produce(%s)", (role,))
    with people.connect(role) as connection:
        assert connection.execute("SELECT outbox.metrics()").fetchone()
        with refused("permission denied for function enqueue"):
            enqueue(connection, "video.events")


def test_only_roles_that_may_grant_can_grant(people: People) -> None:
    names = [
        name
        for (name,) in people.database.execute(
            "SELECT oid::regproc::text FROM pg_proc WHERE proname ~ '^(grant|revoke)_' "
            "AND pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"
        )
    ]
    for kind in GRANTS:
        role = people.with_right(kind)
        with people.connect(role) as connection:
            for name in names:
                right = ", 'monitor'" if name.endswith("_right") else ""
                with refused():
                    connection.execute(f"SELECT {name}('{role}'{right})")


def test_granting_can_be_delegated(people: People) -> None:
    deputy, producer = people.with_right("monitor"), people.add("producer")
    people.database.execute(f"GRANT EXECUTE ON FUNCTION outbox.grant_produce TO {deputy}")
    with people.connect(deputy) as connection:
        connection.execute("SELECT outbox.grant_produce(%s, 'video.*')", (producer,))
        with refused():
            connection.execute("SELECT outbox.revoke_produce(%s)", (producer,))
    assert people.database.execute("SELECT role::text, topics, granted_by FROM outbox.producer") == [
        (producer, "video.*", deputy)
    ]
    with people.connect(producer) as connection:
        enqueue(connection, "video.events")


@pytest.mark.parametrize(
    "arguments, error",
    [
        (("nobody_of_that_name",), errors.UndefinedObject),
        (("1",), errors.UndefinedObject),
        (("-",), errors.UndefinedObject),
        ((None,), errors.Error),
        (("postgres", "a,,b"), errors.InvalidParameterValue),
        (("postgres", ""), errors.InvalidParameterValue),
        (("postgres", None), errors.NotNullViolation),
    ],
)
def test_invalid_grants_are_refused(people: People, arguments: tuple[object, ...], error: type[psycopg.Error]) -> None:
    values = ", ".join(["%s"] * len(arguments))
    with pytest.raises(error):
        people.database.execute(f"SELECT outbox.grant_produce({values})", arguments)
    assert people.database.execute("SELECT * FROM outbox.producer") == []


def test_names_of_roles_are_only_names(people: People) -> None:
    name = '"x TO PUBLIC; --$$%s {people.database.name}'
    role = sql.Identifier(name)
    people.database.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    quoted = people.database.value("SELECT quote_ident(%s)", (name,))
    try:
        people.database.execute("SELECT outbox.grant_produce(%s, 'video.*')", (quoted,))
        people.database.execute(sql.SQL("SET ROLE {}").format(role))
        enqueue(people.database.connection, "video.events")
        with refused("topic"):
            enqueue(people.database.connection, "user.events")
        people.database.execute("RESET ROLE")
        people.database.execute("SELECT outbox.revoke_produce(%s)", (quoted,))
    finally:
        people.database.execute("RESET ROLE")
        people.database.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


# -------------------------------------------------------------------------------------------------
# Producing
# -------------------------------------------------------------------------------------------------


def enqueue(connection: psycopg.Connection, topic: str | None, aggregate_type: str = "video") -> None:
    connection.execute("SELECT outbox.enqueue(%s, '1', 'Changed', '{}', topic => %s)", (aggregate_type, topic))


def may(connection: psycopg.Connection, topic: str | None) -> bool:
    """Returns whether the role of the connection may enqueue events of a topic."""
    try:
        with connection.transaction():
            enqueue(connection, topic)
        return True
    except errors.InsufficientPrivilege as error:
        assert f'permission denied for topic "{topic}"' in str(error)
        return False


def test_a_producer_reads_nothing(people: People) -> None:
    producer = people.with_right("producer")
    people.database.add_destination("d", "http://localhost:9/")
    people.database.execute("CREATE USER MAPPING FOR postgres SERVER d OPTIONS (token 'secret')")
    people.database.execute("CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (password 's3cret-of-me')")
    relations = people.database.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v') "
        "AND relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"
    )
    assert len(relations) > 15
    with people.connect(producer) as connection:
        enqueue(connection, "video.events")
        for (relation,) in relations:
            with refused():
                connection.execute(f"TABLE {relation}")
        with refused():
            connection.execute("SELECT last_value FROM outbox.event_position")
        with refused():
            connection.execute("SELECT outbox.workers()")
        with refused():
            connection.execute("SELECT outbox_internal.claim_due('d', gen_random_uuid(), now(), 1, 1)")
        with refused():
            connection.execute("TABLE pg_user_mapping")
        options = connection.execute("SELECT srvname, umoptions FROM pg_user_mappings").fetchall()
        assert options == [("d", None), ("d", None)]


def test_a_producer_can_be_limited_to_topics(people: People) -> None:
    producer = people.with_right("producer", "video.*, user.created")
    with people.connect(producer) as connection:
        assert may(connection, "video.events")
        assert may(connection, "user.created")
        assert not may(connection, "user.events")
        assert not may(connection, "Video.events")
        enqueue(connection, None, "video")  # the topic is made from the type
        with pytest.raises(errors.InsufficientPrivilege) as caught:
            enqueue(connection, None, "order")
        diagnostic = caught.value.diag
        assert diagnostic.message_primary == 'permission denied for topic "order.events"'
        assert diagnostic.message_detail == (
            f'Role "{producer}" may produce events of the topics "video.*, user.created".'
        )
        assert "grant_produce" in str(diagnostic.message_hint)
    assert people.database.value("SELECT count(*) FROM outbox.event") == 3


def test_every_form_of_enqueue_is_limited(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    calls = [
        "outbox.enqueue('{0}', '1', 'E', '{{}}'::jsonb)",
        "outbox.enqueue('{0}', '1', 'E', '\\x00'::bytea, 'a/b')",
        "outbox.enqueue('{0}', 1, 'E', '{{}}')",
        "outbox.enqueue('{0}', 1, 'E', '{{}}'::json)",
        "outbox.enqueue('{0}', 1, 'E', '\\x00'::bytea, 'a/b')",
        "outbox.enqueue('{0}', '1', 'E', '{{}}'::jsonb, source_event_id => gen_random_uuid())",
        "outbox.enqueue(ARRAY[ROW('video', '1', 'E', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL, NULL), ROW('{0}', '1', 'E', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL)]::outbox.new_event[])",
    ]
    with people.connect(producer) as connection:
        for call in calls:
            connection.execute(f"SELECT {call.format('video')}")
            with refused('permission denied for topic "order.events"'):
                connection.execute(f"SELECT {call.format('order')}")
    assert people.database.execute("SELECT DISTINCT topic FROM outbox.event") == [("video.events",)]
    assert people.database.value("SELECT count(*) FROM outbox.source_event") == 1


def test_a_new_grant_replaces_the_old_one(people: People) -> None:
    """Uses a session that has cached the old grant."""
    producer = people.with_right("producer", "video.*")
    grant = "SELECT outbox.grant_produce(%s, %s)"
    with people.connect(producer) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        people.database.execute(grant, (producer, "user.*"))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)
        people.database.execute(grant, (producer, "*"))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, True)
        people.database.execute("UPDATE outbox.producer SET topics = 'video.x'")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        people.database.execute("TRUNCATE outbox.producer")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, False)
        people.database.execute("SELECT outbox.revoke_produce(%s)", (producer,))
        with refused("permission denied for schema outbox"):
            enqueue(connection, "video.x")


def test_a_grant_that_is_rolled_back_has_no_effect(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    with people.database.connect() as owner, people.connect(producer) as connection:
        assert not may(connection, "user.x")
        owner.execute("BEGIN")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        owner.execute("ROLLBACK")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # in the same session, also to a savepoint
        owner.execute("BEGIN")
        owner.execute("SAVEPOINT s")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "user.x")
        owner.execute("ROLLBACK TO s")
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "video.x")
        assert not may(owner, "user.x")
        owner.execute("ROLLBACK")
        owner.execute("BEGIN")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "user.x")
        owner.execute("ROLLBACK")
        owner.execute(f"SET ROLE {producer}")
        assert not may(owner, "user.x")


def test_a_grant_counts_whatever_the_transaction_can_see(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    with people.connect(producer) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute("SELECT pg_current_snapshot()").fetchone()
        people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        enqueue(connection, "user.x")
        connection.execute("ROLLBACK")


def test_members_of_a_role_have_its_limits(people: People) -> None:
    group = people.with_right("producer", "video.*")
    member = people.add("member")
    with people.connect(member) as connection:
        with refused("permission denied for schema outbox"):
            enqueue(connection, "video.x")
        people.database.execute(f"GRANT {group} TO {member}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # grants add up, over any number of steps
        other, between = people.add("other"), people.add("between")
        people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (other,))
        people.database.execute(f"GRANT {other} TO {between}; GRANT {between} TO {member}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, True)
        assert not may(connection, "order.x")
        people.database.execute(f"REVOKE {other} FROM {between}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # also with one that has no limit, and with the owner
        people.database.execute("SELECT outbox.grant_produce(%s)", (between,))
        assert may(connection, "order.x")
        people.database.execute(f"REVOKE {between} FROM {member}")
        assert not may(connection, "order.x")
        people.database.execute(f"ALTER ROLE {member} SUPERUSER")
        assert may(connection, "order.x")
        people.database.execute(f"ALTER ROLE {member} NOSUPERUSER")
        assert not may(connection, "order.x")


def test_the_owner_has_no_limit(people: People) -> None:
    """A superuser is not limited, although it has the rights of limited roles too."""
    people.with_right("producer", "video.*")
    assert may(people.database.connection, "user.x")
    deputy = people.with_right("monitor")
    people.database.execute("SELECT outbox.grant_produce(%s, 'video.*')", (deputy,))
    with people.connect(deputy) as connection:
        assert not may(connection, "user.x")
        people.database.execute(f"ALTER TABLE outbox.producer OWNER TO {deputy}")
        assert may(connection, "user.x")
    people.database.execute("ALTER TABLE outbox.producer OWNER TO postgres")


def test_execute_alone_is_not_enough(people: People) -> None:
    role = people.add("plain")
    people.database.execute(
        f"GRANT USAGE ON SCHEMA outbox, outbox_internal TO {role}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO {role}"
    )
    with people.connect(role) as connection:
        assert not may(connection, "order.x")


def test_the_role_that_is_set_counts(people: People) -> None:
    video = people.with_right("producer", "video.*")
    login = people.add("login", "NOINHERIT")
    people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (login,))
    people.database.execute(f"GRANT {video} TO {login}")
    with people.connect(login) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)
        connection.execute(f"SET ROLE {video}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        connection.execute("RESET ROLE")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)


def test_a_security_definer_function_has_the_limits_of_its_owner(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    caller = people.with_right("monitor")
    people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (caller,))
    people.database.execute("CREATE SCHEMA app")
    for name, rights in (("as_owner", "SECURITY DEFINER"), ("as_caller", "SECURITY INVOKER")):
        people.database.execute(
            f"CREATE FUNCTION app.{name}(topic text) RETURNS uuid LANGUAGE sql {rights} "
            "SET search_path = pg_catalog, pg_temp "
            "AS $$ SELECT outbox.enqueue('a', '1', 'E', '{}'::jsonb, topic => $1) $$;"
            f"ALTER FUNCTION app.{name} OWNER TO {producer}"
        )
    people.database.execute(f"GRANT USAGE ON SCHEMA app TO {caller}")
    with people.connect(caller) as connection:
        connection.execute("SELECT app.as_owner('video.x')")
        connection.execute("SELECT app.as_caller('user.x')")
        with refused(f'topic "user.x"(.|\n)*"{producer}"'):
            connection.execute("SELECT app.as_owner('user.x')")
        with refused(f'topic "video.x"(.|\n)*"{caller}"'):
            connection.execute("SELECT app.as_caller('video.x')")
        assert may(connection, "user.x")
    people.database.execute("DROP SCHEMA app CASCADE")


def test_a_renamed_role_keeps_its_limits(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    renamed = f"renamed_{people.database.name}"
    people.database.execute(f"ALTER ROLE {producer} RENAME TO {renamed}")
    people.roles.append(renamed)
    with people.connect(renamed) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)


def program(cluster: Cluster, name: str, *arguments: str, data: str | None = None) -> str:
    command = [str(cluster.installation.bin_directory / name), "-h", str(cluster.directory),
               "-p", str(cluster.port), "-U", "postgres", *arguments]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, input=data).stdout


def test_limits_go_with_a_dump_by_the_name_of_the_role(
    people: People, new_database: NewDatabase, shared_cluster: Cluster
) -> None:
    producer = people.with_right("producer", "video.*")
    gone = people.add("gone")
    people.database.execute("INSERT INTO outbox.producer (role, topics) VALUES (%s, '*')", (gone,))
    people.database.execute(f"DROP ROLE {gone}")
    dump = program(shared_cluster, "pg_dump", people.database.name)

    # The role is another one by now, as in another cluster.
    people.database.execute(f"DROP OWNED BY {producer}; DROP ROLE {producer}; CREATE ROLE {producer} LOGIN")
    copy = new_database(extension=False)
    program(shared_cluster, "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", copy.name, data=dump)
    try:
        assert copy.execute("SELECT role::text, topics FROM outbox.producer") == [(producer, "video.*")]
        with shared_cluster.connect(copy.name, producer) as connection:
            assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
    finally:
        copy.execute(f"DROP OWNED BY {producer}")


# -------------------------------------------------------------------------------------------------
# Destinations
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", GRANTS)
def test_no_right_lets_the_server_connect_anywhere(people: People, kind: str) -> None:
    role = people.with_right(kind)
    people.database.add_destination("d", "null:", topics="nothing")
    with people.connect(role) as connection:
        for statement in (
            "CREATE SERVER e FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')",
            "ALTER SERVER d OPTIONS (SET url 'http://localhost/')",
            "ALTER SERVER d OPTIONS (SET topics '*')",
            "DROP SERVER d",
            "CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (user 'me')",
            "CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'me')",
            "CREATE FOREIGN DATA WRAPPER mine VALIDATOR outbox_internal.validate_options",
            "ALTER FOREIGN DATA WRAPPER pg_outbox NO VALIDATOR",
            "ALTER SYSTEM SET outbox.default_destination = 'http://localhost/'",
        ):
            with refused("permission denied|must be owner"):
                connection.execute(statement)
        with pytest.raises(errors.CantChangeRuntimeParam):
            connection.execute("SET outbox.default_destination = 'http://localhost/'")


def test_roles_with_usage_on_the_wrapper_own_only_their_destinations(people: People) -> None:
    first, second = people.with_right("operator"), people.with_right("monitor")
    people.database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {first}, {second}")
    with people.connect(first) as mine, people.connect(second) as other:
        mine.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 'nothing')")
        mine.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'me', password 's3cret-of-me')")
        mine.execute("ALTER SERVER d OPTIONS (SET topics 'anything')")
        read = "SELECT umoptions FROM pg_user_mappings"
        assert mine.execute(read).fetchall() == [(["user=me", "password=s3cret-of-me"],)]
        assert other.execute(read).fetchall() == [(None,)]
        for statement in (
            "ALTER SERVER d OPTIONS (SET topics '*')",
            "DROP SERVER d CASCADE",
            f"DROP USER MAPPING FOR {first} SERVER d",
            f"ALTER USER MAPPING FOR {first} SERVER d OPTIONS (SET user 'other')",
        ):
            with refused("must be owner|permission denied"):
                other.execute(statement)
        # The server's keys prove the identity of the server, not of the destination's owner.
        for option in ("sslcert", "sslkey"):
            with refused(f'permission denied to set option "{option}"'):
                mine.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (ADD {option} 'server.key')")
    people.database.execute(f"ALTER USER MAPPING FOR {first} SERVER d OPTIONS (ADD sslkey 'server.key')")


# -------------------------------------------------------------------------------------------------
# Monitoring
# -------------------------------------------------------------------------------------------------


def test_a_monitor_sees_no_event(people: People, receiver: Receiver, http: None) -> None:
    monitor = people.with_right("monitor")
    receiver.on(everything, answer(503, body=b"come back later"))
    people.database.add_destination("d", receiver.url())
    people.database.execute(
        "SELECT outbox.enqueue('kind-of-secret', 'id-of-secret', 'secret', '{\"a\": \"secret\"}', "
        "topic => 'topic.of.secret', ordering_key => 'key-of-secret', headers => '{\"h\": \"secret\"}')"
    )
    with people.connect(monitor) as connection:
        wait_until(
            lambda: connection.execute("SELECT last_error FROM outbox.status").fetchone(),
            lambda row: row == ("HTTP 503: come back later",), what="the error of the destination",
        )  # fmt: skip
        for query in (
            "SELECT array_agg(s::text)::text FROM outbox.status AS s",
            "SELECT array_agg(s::text)::text FROM outbox.segment AS s",
            "SELECT array_agg(s::text)::text FROM outbox.workers() AS s",
            "SELECT h::text FROM outbox.health() AS h",
            "SELECT outbox.metrics()",
        ):
            row: Any = connection.execute(query).fetchone()
            assert row[0] and "secret" not in row[0]
        for statement in ("TABLE outbox.event", "TABLE outbox.delivery", "TABLE outbox.cursor"):
            with refused():
                connection.execute(statement)
        with refused("permission denied for function enqueue"):
            enqueue(connection, "video.x")


def test_an_error_of_an_inbox_does_not_quote_the_event(people: People, new_database: NewDatabase) -> None:
    """Details of an error would: "Failing row contains ..."."""
    reader = new_database(extension=False)
    reader.execute("CREATE EXTENSION pg_inbox; ALTER TABLE inbox.message ADD CONSTRAINT c CHECK (version > 0)")
    people.database.add_destination("d", reader.inbox_url())
    people.database.execute("SELECT outbox.enqueue('a', '1', 'E', '\"secret\"', 0, ordering_key => 'secret')")
    error = wait_until(
        lambda: people.database.value(
            "SELECT coalesce((SELECT last_error FROM outbox.status),"
            "                (SELECT max(last_error) FROM outbox.delivery))"
        ),
        what="the error",
    )
    assert 'violates check constraint "c"' in error
    assert "secret" not in error
    people.database.execute("DROP SERVER d")


# -------------------------------------------------------------------------------------------------
# The inbox
# -------------------------------------------------------------------------------------------------

RECEIVE = """
    SELECT inbox.receive(%s, 'test', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[1], ARRAY[1], ARRAY[1],
                         ARRAY[NULL::uuid], ARRAY['t'], ARRAY['a'], ARRAY['1'], ARRAY['E'], ARRAY['secret'],
                         ARRAY['application/json'], ARRAY[NULL::jsonb], ARRAY['{}'::bytea])
"""


def end_processors(database: Database) -> None:
    """Ends processors before their roles lose their rights."""
    database.execute("SELECT inbox.unsubscribe(name, '*', 'refuse') FROM inbox.consumer")
    wait_until(
        lambda: [worker for worker in database.workers() if worker.kind == "processor"],
        lambda seen: not seen, what="the processors to end",
    )  # fmt: skip


def test_a_sender_sends_and_nothing_else(people: People) -> None:
    sender = people.with_right("sender")
    with people.connect(sender) as connection:
        assert connection.execute(RECEIVE, ("c",)).fetchone() == (1,)
        for statement in (
            "TABLE inbox.message",
            "TABLE inbox.status",
            "SELECT inbox_internal.consumer_id('new')",
            "SELECT inbox_internal.take(1, 1, '{}')",
            "SELECT inbox.subscribe('c', '*', 'now')",
        ):
            with refused():
                connection.execute(statement)


def test_a_reader_cannot_choose_the_role_of_handlers(people: People) -> None:
    """Even with EXECUTE on everything, the role subscribes for itself and reads its own messages."""
    reader, other = people.with_right("reader"), people.with_right("sender")
    for role in (reader, other):
        people.database.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal TO {role}")
    people.database.execute(
        "CREATE FUNCTION refuse(event inbox.message) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'as %', current_user; END $$"
    )
    people.database.execute("SELECT inbox.subscribe('ours', '*', 'refuse')")
    consumers = "SELECT id, name, role FROM inbox.consumer ORDER BY name"
    with people.connect(reader) as connection:
        connection.execute("SELECT inbox.subscribe('mine', '*', 'refuse')")
        connection.execute(RECEIVE, ("mine",))
        ids = {name: id for id, name, _ in people.database.execute(consumers)}
        with pytest.raises(errors.CheckViolation, match="inbox_internal.caller"):
            connection.execute("SELECT inbox_internal.add_subscription('new', '*', 'refuse', 'postgres')")
        for function in ("inbox_internal.count_subscriptions({ours})", "inbox_internal.own_consumer('ours', '{reader}')",
                         "inbox_internal.consumer_id('new')", "inbox_internal.take({ours}, 1, '{{}}')",
                         "inbox_internal.next_messages({ours}, 1)", "inbox_internal.process({ours}, 1, '{{}}')",
                         "inbox_internal.record_failure({ours}, 1, 'x', 'x', 'x', 'x', 'x')",
                         "inbox_internal.record_end({ours}, 1, NULL)",
                         "inbox_internal.save_progress({ours}, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL)",
                         "inbox.unsubscribe('ours', '*', 'refuse')"):  # fmt: skip
            with refused("permission denied|not one of role|belongs to role"):
                connection.execute(f"SELECT {function.format(reader=reader, **ids)}")
        assert people.database.execute(consumers) == [
            (ids["mine"], "mine", reader),
            (ids["ours"], "ours", "postgres"),
        ]
        seen = wait_until(
            lambda: connection.execute("SELECT consumer, ordering_key, error FROM inbox.waiting_keys").fetchall(),
            what="the failure of the handler",
        )  # fmt: skip
        assert seen == [("mine", "secret", f"as {reader}")]
    people.database.execute("SELECT inbox.grant_read(%s)", (other,))
    with people.connect(other) as connection:
        assert connection.execute("TABLE inbox.waiting_keys").fetchall() == []
    end_processors(people.database)


def test_a_monitor_of_the_inbox_sees_no_message(people: People) -> None:
    monitor = people.with_right("inbox monitor")
    people.database.execute(
        "CREATE FUNCTION refuse(event inbox.message) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not %', event.ordering_key; END $$"
    )
    people.database.execute("SELECT inbox.subscribe('c', '*', 'refuse')")
    people.database.execute(RECEIVE, ("c",))
    error = "SELECT last_error, last_error_at IS NOT NULL FROM inbox.status"
    wait_until(lambda: people.database.execute(error), lambda rows: rows == [("not secret", True)], what="a failure")
    with people.connect(monitor) as connection:
        assert connection.execute(error).fetchall() == [(None, True)]
        with refused():
            connection.execute("TABLE inbox.waiting_keys")
    end_processors(people.database)


FAIL = """
    SELECT inbox.fail_event(%s, 'test', %s, now(), NULL, 1, 1, NULL, 't', 'a', '1', 'E', 'k', 'application/json', NULL, 'secret',
                            'not secret', 'P0001', true)
"""


def test_dead_letters_are_for_the_owner_of_the_consumer_and_operators(people: People) -> None:
    ours, operator, monitor = (people.with_right(kind) for kind in ("consumer", "inbox operator", "inbox monitor"))
    theirs = people.add("other")
    people.database.execute("SELECT inbox.grant_consume(%s)", (theirs,))
    letters = "SELECT consumer, error FROM inbox.dead_letter ORDER BY consumer"
    event = "00000000-0000-7000-8000-000000000001"
    with people.connect(ours) as connection:
        assert connection.execute(FAIL, ("ours", event)).fetchone() == (True,)
        assert connection.execute(letters).fetchall() == [("ours", "not secret")]
        with refused():
            connection.execute("SELECT inbox.redrive('ours')")
    with people.connect(theirs) as connection:
        assert connection.execute(letters).fetchall() == []
        for statement in (FAIL, "SELECT inbox.claim(%s), %s", "SELECT inbox.end_failure(%s, ARRAY[%s]::uuid[])",
                          "SELECT inbox.set_policy(%s, 1), %s"):  # fmt: skip
            with refused("belongs to role"):
                connection.execute(statement, ("ours", event))
        connection.execute("SELECT inbox.set_policy('theirs', 1)")
    with people.connect(operator) as connection:
        assert connection.execute(letters).fetchall() == [("ours", "not secret")]
        for statement in (
            "TABLE inbox.dead_message",
            "SELECT inbox.claim('ours')",
            "SELECT inbox.set_policy('ours', 1)",
        ):
            with refused():
                connection.execute(statement)
        assert connection.execute("SELECT inbox.redrive('ours')").fetchone() == (1,)
        people.database.execute("UPDATE inbox.message SET received_at = now() - interval '1 hour'")
        assert connection.execute(
            "SELECT role, operation FROM inbox.operation WHERE operation = 'redrive'"
        ).fetchall() == [(operator, "redrive")]
    with people.connect(ours) as connection:
        token = connection.execute("SELECT token FROM inbox.claim('ours')").fetchone()
        assert token is not None
        with people.connect(theirs) as other, pytest.raises(psycopg.Error, match="not under lease"):
            other.execute("SELECT inbox.complete(%s, %s)", (*token, event))
        connection.execute("SELECT inbox.fail(%s, %s, 'not secret', permanent => true)", (*token, event))
        with refused():
            connection.execute("SELECT inbox.health()")
    detail = "SELECT what, why LIKE '%secret%' FROM inbox.health()"
    with people.connect(monitor) as connection:
        assert connection.execute(detail).fetchall() == [("dead letters", False)]
        with refused():
            connection.execute(letters)
    people.database.execute("SELECT inbox.grant_monitor(%s)", (ours,))
    with people.connect(ours) as connection:
        assert connection.execute(detail).fetchall() == [("dead letters", True)]
