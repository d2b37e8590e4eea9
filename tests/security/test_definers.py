"""Functions with more rights than their callers: rules for each of them.

A new granted function that is SECURITY DEFINER, or written in C, takes its caller as a parameter
of the type `caller`, or has the reason why its rights do not depend on the caller in sql/objects.txt. Until then
the test fails. tests/system/test_privileges.py looks at their search_path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from database import Database
from objects import OBJECTS, name_of

SQL = Path(__file__).parents[2] / "sql"

RIGHTS = {
    schema: sorted({right for o in OBJECTS.values() if o.extension == schema for right in o.rights})
    for schema in ("outbox", "inbox")
}

# Views that check privileges and need no barrier, with the reason.
SAME_ROWS_FOR_ALL = {
    "inbox.status": "rights decide by CASE what a column shows, and conditions of others see no more of it than that",
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
    granted: bool
    grantees: list[str]
    trigger: bool
    arguments: list[str]
    types: list[str]
    defaults: str
    body: str


FUNCTIONS = """
    SELECT p.oid::regprocedure::text, l.lanname, p.prosecdef,
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


def test_functions_with_more_rights_are_granted_to_nobody(functions: list[Function]) -> None:
    """Except to pg_monitor, which is a monitor from the beginning."""
    granted = {f.name: f.grantees for f in functions if f.definer and set(f.grantees) - {"pg_monitor"}}
    assert granted == {}


def needs_no_caller(function: str) -> bool:
    """The right `relay` is to deliver all events of all destinations whose relay is outside the server. A token tells
    which of them a caller may write."""
    known = OBJECTS[name_of(function)]
    return known.caller != "" or known.why == "relay"


def test_granted_functions_with_more_rights_know_their_caller(functions: list[Function], schema: str) -> None:
    """S2, unless there is a reason why they need not."""
    unknown = {
        f.name
        for f in functions
        if f.granted and (f.definer or f.language == "c") and not f.trigger
        and f"{schema}_internal.caller" not in f.types and not needs_no_caller(f.name)
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
