"""docs/reference/: functions from the catalog, metrics and SQLSTATEs from the sources.

To write the pages: OUTBOX_WRITE_DOCS=1 pytest tests/system/test_reference.py
"""

from __future__ import annotations

import os
import re

import psycopg.errors
import pytest

from cluster import REPOSITORY
from database import Database
from objects import OBJECTS

pytestmark = pytest.mark.extension("the pages are about the extension; test_edition.py compares the functions of both")

MADE = "Made from the code by `tests/system/test_reference.py`.\n"


def check_page(name: str, written: str) -> None:
    path = REPOSITORY / "docs/reference" / name
    if os.environ.get("OUTBOX_WRITE_DOCS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(written)
    assert path.read_text() == written, "write it anew with OUTBOX_WRITE_DOCS=1"


# -------------------------------------------------------------------------------------------------
# Functions
# -------------------------------------------------------------------------------------------------

FUNCTIONS = f"""# SQL functions

{MADE}
Arguments with a default may be left out; name them with `=>`. Roles need one of the rights that
stand with a function: see [who may do what](../security.md). Functions that are not listed belong
to the implementation.
"""
IN_A_SCHEMA = """
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
  FROM pg_proc AS p
 WHERE p.pronamespace = %s::regnamespace AND p.prorettype <> 'trigger'::regtype AND p.prorettype <> 'event_trigger'::regtype
 ORDER BY p.proname COLLATE "C", pg_get_function_arguments(p.oid) COLLATE "C"
"""


# Filled in by the server; nobody gives it.
CALLER = re.compile(r",? ?caller (?:outbox|inbox)_internal\.caller DEFAULT CURRENT_USER$")


def functions_of(database: Database, schema: str) -> str:
    text = f"\n## Schema {schema}\n"
    described, last = 0, ""
    for name, arguments, result, comment in database.execute(IN_A_SCHEMA, (schema,)):
        assert comment, f"{schema}.{name} has no comment"
        described += 1
        given = parts_of(CALLER.sub("", arguments))
        columns = [part.removeprefix("OUT ") for part in given if part.startswith("OUT ")]
        given = [part for part in given if not part.startswith("OUT ")]
        if table := re.fullmatch(r"TABLE\((.*)\)", result):
            columns = parts_of(table[1])
        result = "rows with the columns below" if columns else f"`{result}`"
        if name != last:  # another one of this name follows
            text += f"\n### {schema}.{name}()\n"
        last = name
        text += f"\n{sentence(comment)} Result: {result}. {users_of(f'{schema}.{name}()')}\n"
        if given:
            text += "\n```text\n" + "\n".join(given) + "\n```\n"
        if columns:
            text += "\nColumns: " + ", ".join(f"`{column}`" for column in columns) + ".\n"
    assert described > 10
    return text


def users_of(name: str) -> str:
    rights = OBJECTS[name].rights
    if "everybody" in rights:
        return "For everybody."
    if "owner" in rights:
        return "For the owner of the extension."
    return f"Right: {', '.join(sorted(rights))}."


def parts_of(text: str) -> list[str]:
    """Splits at commas that are not inside brackets or quotes."""
    return re.findall(r"\s*((?:[^,('\"]|\([^)]*\)|'[^']*'|\"[^\"]*\")+)", text)


def sentence(comment: str) -> str:
    return comment[0].upper() + comment[1:] + ("" if comment.endswith(".") else ".")


def test_the_page_of_functions_is_complete(database: Database) -> None:
    database.execute("CREATE EXTENSION pg_inbox")
    check_page("functions.md", FUNCTIONS + functions_of(database, "outbox") + functions_of(database, "inbox"))


# -------------------------------------------------------------------------------------------------
# Metrics
# -------------------------------------------------------------------------------------------------

METRICS = f"""# Metrics

{MADE}
`SELECT outbox.metrics()` and `SELECT inbox.metrics()` return them as OpenMetrics text;
`outboxctl serve` does so over HTTP: see [monitoring](../monitoring.md). Samples of counters end in
`_total`. A metric without a value is left out.
"""
FAMILY = re.compile(r"\b\d+, '((?:outbox|inbox)_\w+)', '(gauge|counter|summary|histogram)',\s+'((?:[^']|'')*)'")


def metrics_of(extension: str) -> dict[str, tuple[str, str]]:
    source = (REPOSITORY / f"sql/pg_{extension}/metrics.sql").read_text()
    families = {name: (kind, text.replace("''", "'")) for name, kind, text in FAMILY.findall(source)}
    assert len(families) > 5
    return families


def test_the_page_of_metrics_is_complete(database: Database) -> None:
    database.execute("CREATE EXTENSION pg_inbox")
    database.add_destination("nowhere", "null:")
    database.execute("SELECT inbox.create_consumer('catalog')")
    written = METRICS
    for extension in ("outbox", "inbox"):
        families = metrics_of(extension)
        text = database.value(f"SELECT {extension}.metrics()")
        shown = {name: help_ for name, help_ in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)}
        assert shown, text
        for name, help_ in shown.items():
            assert families.get(name, ("", ""))[1] == help_, f"{name} is not found in the source"
        written += f"\n## {extension}.metrics()\n\n| metric | type | |\n|---|---|---|\n"
        written += "".join(f"| `{name}` | {kind} | {help_} |\n" for name, (kind, help_) in families.items())
    check_page("metrics.md", written)


# -------------------------------------------------------------------------------------------------
# Error codes
# -------------------------------------------------------------------------------------------------

ERRORS = f"""# Error codes

{MADE}
The SQLSTATEs that pg_outbox and pg_inbox raise in your session. The message, its DETAIL and its
HINT say what to do; programs should look at the code. Other codes come from the server, from your
own triggers and handlers, or are defects.

| SQLSTATE | name | when | try again? |
|---|---|---|---|
"""
# Both are ours: no other code of these classes exists.
OURS = {"OL001": "lease_lost", "IL001": "lease_lost", "IL002": "permanent_failure"}
# Code: when it is raised, and whether the same call can succeed later.
MEANINGS = {
    "08000": ("an address is refused, or a connection was not possible", "yes, when the cause is gone"),
    "08006": ("another node of a Citus cluster cannot be asked", "yes, when the cause is gone"),
    "39P03": ("an internal function of an event trigger was called by hand", "no"),
    "0A000": ("not supported for this object or in this place, such as capturing a temporary table", "no"),
    "22001": ("a name, an id or a key is too long", "no"),
    "22004": ("an argument is null that must not be", "no"),
    "22007": ("a time, position or word that `outbox.seek()` does not know", "no"),
    "22008": ("`occurred_at` is outside the years 1 to 9999", "no"),
    "22021": ("a payload of a JSON type is not valid UTF-8", "no"),
    "22023": ("an argument has a value that is not allowed", "no"),
    "22P05": (
        "a text of an event, of an endpoint or the name of a consumer has no form in UTF-8; of a dead letter of `inbox.claim()`: not in the `client_encoding` of the process",
        "no",
    ),
    "23000": ("a version does not rise, and `outbox.on_stale_version` is `error`", "no"),
    "23502": ("a column of a view of the log, or a key, is null", "no"),
    "25000": ("events cannot be enqueued during a parallel operation", "no: declare the function `PARALLEL UNSAFE`"),
    "25001": ("not in this isolation level, or not in a transaction that has begun", "in a new transaction"),
    "25006": ("the transaction is read-only, or the server is a standby", "on the primary"),
    "39P01": ("a trigger function of pg_outbox is used in another way than it was made for", "no"),
    "3F000": ("no schema is selected to create a view in", "no"),
    "40001": ("a concurrent change; the transaction may succeed if it is repeated", "yes, the whole transaction"),
    "42501": ("a right is missing: see [who may do what](../security.md)", "after a grant"),
    "42601": ("an expression or a template cannot be read", "no"),
    "42703": ("a column does not exist", "no"),
    "42704": ("a destination, consumer, backfill or other object does not exist", "no"),
    "42710": ("an object of this name exists", "no"),
    "42804": ("the type of a column, argument or handler does not fit", "no"),
    "42809": ("the object is of another kind, such as a view in place of a table", "no"),
    "42883": ("the objects of the extension are not complete", "no: reinstall or update the extension"),
    "428C9": ("a value is given for a column that only pg_outbox fills", "no"),
    "42939": ("the name is reserved", "no"),
    "42P01": ("a table does not exist", "no"),
    "42P06": ("the schema exists and belongs to something else", "no"),
    "42P10": ("a projection has no unique constraint on its key columns", "no"),
    "42P13": ("a handler has the wrong arguments or result", "no"),
    "42P16": ("a table has no primary key, or cannot be captured or adopted as it is", "no"),
    "42P17": ("a function in an expression of a destination is volatile, or not safe in parallel", "no"),
    "53400": ("a warning: `max_worker_processes` is too low; or too many processes of outbox-relay", "later"),
    "54000": ("a limit on the size of a payload, of headers or of an event, or on endpoints, is exceeded", "no"),
    "55000": ("the object is in a state that does not allow this; the HINT says what to do first", "then"),
    "55006": ("the object is in use", "later"),
    "55P03": ("a lock is not free", "later"),
    "57014": ("code in an expression of a destination, or in a condition, did not end", "no"),
    "57P02": ("the server was recovered since a relay took its destination", "yes; a relay does so by itself"),
    "HV002": ("a destination lacks an option that it needs", "no"),
    "HV00D": ("a destination has no such option; the HINT lists those that exist", "no"),
    "HV024": ("an option of a destination has a value that is not allowed", "no"),
    "IL001": (
        "the lease has ended, or an earlier message of the key has failed: another process has the message",
        "no: roll back, and claim again",
    ),
    "IL002": (
        "raised by your handler, or by `inbox.apply()` when key or version is missing: "
        "no further attempt will help, so the event becomes a dead letter at once",
        "–",
    ),
    "OL001": ("the token of `outbox.fetch()` is not valid any more", "no: fetch again"),
    "XX000": ("a defect, or the operating system refused something", "report it"),
    "XX001": (
        "events or rows are missing: the disk, or somebody who changed tables of the extension",
        "no: restore them",
    ),
}


def codes_raised() -> set[str]:
    """SQLSTATEs named in sources that run in sessions."""
    found: set[str] = set()
    for path in [*REPOSITORY.glob("sql/**/*.sql"), *REPOSITORY.glob("extension/**/*.[ch]pp")]:
        text = path.read_text()
        found |= set(re.findall(r"ERRCODE = '([0-9A-Z]{5})'", text))
        names = re.findall(r"ERRCODE = '([a-z_]+)'", text) + re.findall(
            r"(?:errcode\(|return )ERRCODE_([A-Z_]+)\b(?!\()", text
        )
        found |= {code_of(name) for name in names}
    return found


def code_of(name: str) -> str:
    name = re.sub(r"^(E_R_I_E|T_R)_", "", name).lower()
    if name == "datetime_value_out_of_range":  # another name of it
        name = "datetime_field_overflow"
    if name == "internal_error":  # psycopg.InternalError is something else
        return "XX000"
    camel = "".join(word.capitalize() for word in name.split("_"))
    return getattr(psycopg.errors, camel).sqlstate


def test_the_page_of_error_codes_is_complete() -> None:
    raised = (codes_raised() | {"IL002"}) - {"OBX00"}  # which ends a subtransaction; no caller sees it
    assert raised - MEANINGS.keys() == set(), "say in MEANINGS what it means"
    assert MEANINGS.keys() - raised == set(), "nothing raises it"
    rows = ""
    for code, (meaning, again) in sorted(MEANINGS.items()):
        name = OURS.get(code) or re.sub(r"(?<!^)([A-Z])", r"_\1", psycopg.errors.lookup(code).__name__).lower()
        rows += f"| `{code}` | {name} | {meaning} | {again} |\n"
    check_page("errors.md", ERRORS + rows)
