"""Functions with more rights than their callers: rules for each of them.

A new granted function that is SECURITY DEFINER, or written in C, takes its caller as a parameter
of the type `caller`, or is entered below with the reason why its rights do not depend on the caller. Until then
the test fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from database import Database

SQL = Path(__file__).parents[2] / "sql"

RIGHTS = {
    "outbox": ["produce", "capture", "operate", "fetch", "fetch default", "monitor", "relay"],
    "inbox": ["send", "read", "consume", "operate", "monitor"],
}

TOKEN = "who has a lease is known by its token, which only the fetcher was told"
ALL_EVENTS = "operators may see and decide about all events that wait or failed"
NO_EVENT = "monitors may see the figures of all destinations; there is nothing of an event in them"
GRANTING = "who may execute it may grant this right, to any role; it is part of no right itself"
OWNS_TABLE = "it asks whether the current user owns the table"
HARMLESS = "it has no more rights than its caller"
ANYBODY = "any caller may do this to any consumer that it can name; the right says so"

# Granted functions that do not take their caller, and the reason why.
NEEDS_NO_CALLER = {
    "outbox.ack(uuid)": TOKEN,
    "outbox.nack(uuid,uuid,text,boolean)": TOKEN,
    "outbox.extend(uuid,interval)": TOKEN,
    "outbox.release(uuid)": TOKEN,
    "outbox_internal.blocked_keys(name,integer)": ALL_EVENTS,
    "outbox_internal.first_of_key(name,text)": ALL_EVENTS,
    "outbox.health(interval)": NO_EVENT,
    "outbox.metrics()": NO_EVENT,
    "outbox.selects_nothing(name)": NO_EVENT,
    "inbox.metrics()": "monitors may see the figures of all consumers; there is nothing of a message in them",
    "outbox.destination_options()": HARMLESS,
    "outbox.workers()": NO_EVENT,
    "outbox.absent_workers()": NO_EVENT,
    "outbox.oldest_after(pg_snapshot)": NO_EVENT,
    "outbox.backlog(name)": NO_EVENT,
    "outbox_internal.oldest_unread_events()": NO_EVENT,
    "outbox_internal.list_destinations()": NO_EVENT,
    "outbox_internal.refused_as_copy(boolean)": NO_EVENT,
    "outbox.segment_held_by(integer)": NO_EVENT,
    "outbox.grant_fetch(regrole,name)": GRANTING,
    "outbox.grant_operate(regrole)": GRANTING,
    "outbox.grant_monitor(regrole)": GRANTING,
    "outbox.revoke_produce(regrole)": GRANTING,
    "outbox.revoke_capture(regrole)": GRANTING,
    "outbox.revoke_fetch(regrole)": GRANTING,
    "outbox.revoke_operate(regrole)": GRANTING,
    "outbox.revoke_monitor(regrole)": GRANTING,
    "outbox.grant_relay(regrole)": GRANTING,
    "outbox.revoke_relay(regrole)": GRANTING,
    "outbox_internal.save_captured(outbox.captured)": OWNS_TABLE,
    "outbox_internal.forget_captured(regclass)": OWNS_TABLE,
    "outbox_internal.add_capture_triggers(regclass,text,text)": OWNS_TABLE,
    "outbox_internal.copy_capture_triggers(regclass,regclass,text)": OWNS_TABLE,
    "outbox_internal.drop_capture_triggers(regclass)": OWNS_TABLE,
    "outbox_internal.set_capture_fire(regclass,text)": OWNS_TABLE,
    "outbox_internal.lock_captured(regclass)": OWNS_TABLE,
    "outbox.enqueue(outbox.new_event[])": "it asks which topics the current user may use (producer.cpp)",
    "outbox.enqueue(text,text,text,bytea,text,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)":
        "it asks which topics the current user may use (producer.cpp)",
    "outbox.enqueue(text,text,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)":
        "it asks which topics the current user may use (producer.cpp)",
    "outbox.capture_row()": "as a trigger, which asks which topics the owner of its table may use",
    "outbox.capture_truncate()": "as a trigger, which asks which topics the owner of its table may use",
    "outbox_internal.check_captured(regclass)": HARMLESS,
    "outbox_internal.refuse_restricted()": HARMLESS,
    "inbox.grant_send(regrole)": GRANTING,
    "inbox.grant_read(regrole)": GRANTING,
    "inbox.grant_consume(regrole)": GRANTING,
    "inbox.grant_operate(regrole)": GRANTING,
    "inbox.grant_monitor(regrole)": GRANTING,
    "inbox.revoke_send(regrole)": GRANTING,
    "inbox.revoke_read(regrole)": GRANTING,
    "inbox.revoke_consume(regrole)": GRANTING,
    "inbox.revoke_operate(regrole)": GRANTING,
    "inbox.revoke_monitor(regrole)": GRANTING,
    "inbox.receive(text,text,uuid[],timestamp with time zone[],bigint[],bigint[],integer[],uuid[],text[],text[],text[],text[],text[],text[],jsonb[],bytea[])": ANYBODY,
    "inbox.prune(integer)": "it removes what is older than the window, whoever calls it",
    "inbox_internal.lock_subscriptions()": "it takes a lock for subscribe() and confirm(), and does nothing else",
    "inbox.wait_for(text,uuid,interval)": "it tells whether an event was applied, of which the caller knows the id",
}  # fmt: skip

# Functions of the right `relay`, which is to deliver all events of all destinations whose relay is outside
# the server. A token tells which of them a caller may write.
OF_RELAYS = re.compile(r"outbox_internal\.relay_\w+\(")

# Views that check privileges and need no barrier, with the reason.
SAME_ROWS_FOR_ALL = {
    "inbox.status": "rights decide by CASE what a column shows, and conditions of others see no more of it than that",
}

# Functions without a fixed search_path, with the reason.
SEARCH_PATH_OF_THE_CALLER = {
    "inbox.begin_event(text,uuid,text,inbox_internal.caller)": "called for every event, and qualifies every name and operator",
    "inbox_internal.process(integer,bigint,text[])": "handlers are to find what the path of their role has",
}

# Role parameters of functions that may be granted: they name the receiver, not the caller. The
# handlers of a consumer that is given away wait until its new role confirms them.
NAMES_A_ROLE = re.compile(
    r"\w+\.(grant|revoke)_\w+\(regrole\b|inbox\.give_consumer\(text,regrole,text,inbox_internal\.caller\)"
)
# The label of a program, which is shown beside the role and gives no rights.
LABELS = {"updated_by"}


class Function(NamedTuple):
    name: str
    language: str
    definer: bool
    pinned: bool
    granted: bool
    grantees: list[str]
    trigger: bool
    arguments: list[str]
    types: list[str]
    defaults: str
    body: str


FUNCTIONS = """
    SELECT p.oid::regprocedure::text, l.lanname, p.prosecdef,
           coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false),
           p.proname ~ '^(grant|revoke)_' AND p.proname !~ '_right$'
               OR EXISTS (SELECT FROM unnest(%(rights)s::text[]) AS r(name)
                           WHERE p.proname = ANY ({schema}_internal.parts_of_right(r.name))),
           ARRAY(SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
                   FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                  WHERE a.grantee <> p.proowner),
           p.prorettype IN ('trigger'::regtype, 'event_trigger'::regtype),
           coalesce(p.proargnames[1:p.pronargs]::text[], '{{}}'),
           ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) AS t),
           coalesce(pg_get_expr(p.proargdefaults, 0), ''),
           coalesce(pg_get_function_sqlbody(p.oid), p.prosrc)
      FROM pg_proc AS p
      JOIN pg_language AS l ON l.oid = p.prolang
     WHERE p.pronamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace)
     ORDER BY 1
"""


@pytest.fixture(params=list(RIGHTS))
def schema(request: pytest.FixtureRequest, database: Database) -> str:
    if request.param == "inbox":
        database.execute("CREATE EXTENSION pg_inbox")
    return request.param


@pytest.fixture
def functions(database: Database, schema: str) -> list[Function]:
    rows = database.execute(FUNCTIONS.format(schema=schema), {"rights": RIGHTS[schema]})  # type: ignore[arg-type]
    assert len(rows) > 50
    return [Function(*row) for row in rows]


def test_the_search_path_of_functions_with_more_rights_is_fixed(functions: list[Function]) -> None:
    loose = {f.name for f in functions if f.definer and not f.pinned}
    assert loose <= set(SEARCH_PATH_OF_THE_CALLER)


def test_functions_with_more_rights_are_granted_to_nobody(functions: list[Function]) -> None:
    """Except to pg_monitor, which is a monitor from the beginning."""
    granted = {f.name: f.grantees for f in functions if f.definer and set(f.grantees) - {"pg_monitor"}}
    assert granted == {}


def test_granted_functions_with_more_rights_know_their_caller(functions: list[Function], schema: str) -> None:
    """S2, unless there is a reason why they need not."""
    unknown = {
        f.name
        for f in functions
        if f.granted and (f.definer or f.language == "c") and not f.trigger
        and f"{schema}_internal.caller" not in f.types and f.name not in NEEDS_NO_CALLER and not OF_RELAYS.match(f.name)
    }  # fmt: skip
    assert unknown == set()


def test_the_caller_parameter_accepts_only_the_current_user(functions: list[Function], schema: str) -> None:
    """It is the last parameter, of the domain that only accepts the current user, which is its default."""
    wrong = {
        f.name
        for f in functions
        if f.granted and ("caller" in f.arguments or f"{schema}_internal.caller" in f.types)
        and not (f.arguments[-1] == "caller" and f.types[-1] == f"{schema}_internal.caller"
                 and f.defaults.upper().endswith("CURRENT_USER"))
    }  # fmt: skip
    assert wrong == set()


def test_granted_functions_do_not_trust_role_names(functions: list[Function], schema: str) -> None:
    """S2, S30"""
    roles = re.compile(r"(^|_)(role|user|owner|caller|by)$")
    trusting = {
        f.name
        for f in functions
        if f.granted and (f.definer or f.language == "c") and not NAMES_A_ROLE.match(f.name)
        and any(roles.search(name) and name not in LABELS and kind != f"{schema}_internal.caller" for name, kind in zip(f.arguments, f.types))
    }  # fmt: skip
    assert trusting == set()


SESSION = re.compile(r"session_user|current_setting\(\s*'(role|session_authorization)'", re.IGNORECASE)
CURRENT = re.compile(r"\bcurrent_(user|role)\b|(?<!\.)\buser\b(?!\s*[.(=])", re.IGNORECASE)


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def test_session_user_is_not_used(database: Database, functions: list[Function], schema: str) -> None:
    """S2: no function, view, default, constraint, trigger or source file uses session_user."""
    assert {f.name for f in functions if SESSION.search(without_comments(f.body) + f.defaults)} == set()
    others = database.execute(
        f"""SELECT 'view ' || c.oid::regclass, pg_get_viewdef(c.oid) FROM pg_class AS c
             WHERE c.relnamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace) AND c.relkind = 'v'
            UNION ALL
            SELECT 'default of ' || d.adrelid::regclass, pg_get_expr(d.adbin, d.adrelid)
              FROM pg_attrdef AS d JOIN pg_class AS c ON c.oid = d.adrelid
             WHERE c.relnamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace)
            UNION ALL
            SELECT 'constraint ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
             WHERE connamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace)
            UNION ALL
            SELECT 'trigger ' || tgname, pg_get_triggerdef(t.oid)
              FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
             WHERE c.relnamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace)"""
    )
    assert {name for name, text in others if SESSION.search(text)} == set()
    files = sorted([*(SQL / f"pg_{schema}").rglob("*.sql*"), *(SQL / "common").rglob("*.sql*")])
    assert files
    assert {file.name for file in files if SESSION.search(without_comments(file.read_text()))} == set()


def test_functions_with_more_rights_do_not_use_current_user(functions: list[Function]) -> None:
    wrong = {f.name for f in functions if f.definer and CURRENT.search(without_comments(f.body))}
    assert wrong == set()


def test_views_that_select_by_right_are_barriers(database: Database, schema: str) -> None:
    """S8"""
    views = database.execute(
        f"""SELECT c.oid::regclass::text, pg_get_viewdef(c.oid), coalesce('security_barrier=true' = ANY (c.reloptions), false)
              FROM pg_class AS c WHERE c.relnamespace IN ('{schema}'::regnamespace, '{schema}_internal'::regnamespace) AND c.relkind = 'v'"""
    )
    assert len(views) > 3
    by_right = re.compile(r"\bhas_\w+_privilege\(|\bpg_has_role\(|\bis_own\(|current_user|session_user", re.IGNORECASE)
    loose = {name for name, text, barrier in views if by_right.search(text) and not barrier}
    assert loose <= set(SAME_ROWS_FOR_ALL)
