"""ALTER EXTENSION ... UPDATE in schemas in which another role has put objects, while it was allowed to.

The update calls none of them, and takes none over: it refuses, and names one. The version before is the invented one
of tests/system/test_upgrade.py.
"""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from cluster import Installation
from database import Database, NewDatabase
from long_run import all_in_long_run
from test_upgrade import INVENTED, INVENTED_CHANGES, NEW, old_versions, script_of  # noqa: F401

from .attacker import NewRole

# A function with the rights of its caller. {0} is a name with arguments, {1} the type of its result, {2} its end.
CODE = """
    CREATE FUNCTION {0} RETURNS {1} LANGUAGE plpgsql AS $$ BEGIN
      IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN
        EXECUTE 'ALTER ROLE {role} SUPERUSER'; END IF; {2} END $$
"""


def code(function: str, returned: str) -> str:
    end = "{end}" if function == "{new}" else "" if returned == "void" else "RETURN NULL;"
    return CODE.replace("{0}", function).replace("{1}", returned).replace("{2}", end)


# Names that the new version makes, that its script calls, and places where code runs by itself.
SQUATS = {
    "a new function": code("{new}", "{returned}"),
    "a new function that is used": code("{new}", "{returned}")
    + "; CREATE VIEW {role}.v AS SELECT 1 AS one WHERE {used} IS NULL",
    "a function of the script": code("{schema}_internal.grant_right(regrole, varchar)", "void"),
    "a function of the server": code("{schema}.format(text, text)", "text"),
    "an operator": code("{role}.same(oid, oid)", "boolean")
    + "; CREATE OPERATOR {schema}.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = {role}.same)",
    "a view": "CREATE VIEW {schema}.gone_too AS SELECT 1 AS one",
    "a table": "CREATE TABLE {schema}_internal.next (i int)",
    "a type": "CREATE TYPE {schema}.new_type AS (i int)",
    "a sequence": "CREATE SEQUENCE {schema}.new_sequence",
    "a trigger": code("{role}.fire()", "trigger")
    + "; CREATE TRIGGER fires BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {role}.fire()",
}
NEW_FUNCTIONS = {
    "outbox": ("outbox.skip_shard(bigint, text, outbox_internal.caller)", "void", "outbox.skip_shard(1, '', CURRENT_USER)"),
    "inbox": ("inbox.confirm_reset(text, text, bigint, text, inbox_internal.caller)", "boolean", "inbox.confirm_reset('', '', 1, '', CURRENT_USER)"),
}  # fmt: skip
TABLES = {"outbox": "outbox.delivery", "inbox": "inbox.consumer"}

OWNERS = """
    SELECT DISTINCT o.owner::regrole::text FROM (
      SELECT proowner, pronamespace FROM pg_proc UNION ALL SELECT relowner, relnamespace FROM pg_class
      UNION ALL SELECT typowner, typnamespace FROM pg_type UNION ALL SELECT oprowner, oprnamespace FROM pg_operator
    ) AS o(owner, namespace) WHERE o.namespace IN (%s::regnamespace, %s::regnamespace)
"""


class Squatted:
    """A database with an old version, in which a role may make objects for a while."""

    def __init__(self, database: Database, schema: str, role: str) -> None:
        self.database, self.schema, self.role = database, schema, role
        self.schemas = (schema, f"{schema}_internal")
        database.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")

    def squat(self, squat: str) -> None:
        new, returned, used = NEW_FUNCTIONS[self.schema]
        words = {
            "{new}": new, "{returned}": returned, "{used}": used, "{end}": "" if returned == "void" else "RETURN NULL;",
            "{role}": self.role, "{schema}": self.schema,
            "{table}": TABLES[self.schema],
        }  # fmt: skip
        statements = SQUATS[squat]
        for word, value in words.items():
            statements = statements.replace(word, value)
        rights = [(f"USAGE, CREATE ON SCHEMA {', '.join(self.schemas)}"), f"TRIGGER ON {TABLES[self.schema]}"]
        for right in rights:
            self.database.execute(f"GRANT {right} TO {self.role}")
        self.database.execute(f"GRANT USAGE ON DOMAIN {self.schema}_internal.caller TO {self.role}")
        with self.database.cluster.connect(self.database.name, user=self.role) as mine:
            mine.execute(statements)  # type: ignore[arg-type]
        for right in rights:
            self.database.execute(f"REVOKE {right} FROM {self.role}")

    def assert_not_lost(self) -> None:
        assert not self.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.role,))


@pytest.mark.parametrize("squat", SQUATS)
@pytest.mark.parametrize("schema", INVENTED_CHANGES)
def test_an_update_refuses_objects_of_others(
    new_database: NewDatabase, new_role: NewRole, schema: str, squat: str
) -> None:
    database = new_database(extension=False)
    database.execute(f"CREATE EXTENSION pg_{schema} VERSION '{INVENTED}'")
    squatted = Squatted(database, schema, new_role())
    squatted.squat(squat)
    with pytest.raises(psycopg.Error, match=f'belongs to role "{squatted.role}"|objects that do not belong'):
        database.execute(f"ALTER EXTENSION pg_{schema} UPDATE")
    squatted.assert_not_lost()
    # Nor afterwards, when it is as it should be.
    database.execute(f"DROP OWNED BY {squatted.role} CASCADE")
    database.execute(f"ALTER EXTENSION pg_{schema} UPDATE")
    assert database.value("SELECT extversion FROM pg_extension WHERE extname = %s", (f"pg_{schema}",)) == NEW
    assert database.execute(OWNERS, squatted.schemas) == [("postgres",)]
    squatted.assert_not_lost()


@pytest.mark.parametrize("squat", all_in_long_run(SQUATS, short=["a new function that is used"]))
def test_an_update_of_an_inbox_without_extension_refuses_objects_of_others(
    new_database: NewDatabase, new_role: NewRole, installation: Installation, squat: str
) -> None:
    database = new_database(extension=False)
    script = script_of("inbox", INVENTED, installation)
    lines = [line for line in script.splitlines() if not line.startswith(("\\echo", "SELECT pg_extension_config_dump"))]
    database.execute("CREATE SCHEMA inbox")
    database.execute(
        "\n".join(lines).replace(
            "PERFORM pg_extension_config_dump(format('inbox.processed_%s', bucket)::regclass, '');", "NULL;"
        )
    )
    squatted = Squatted(database, "inbox", new_role())
    squatted.squat(squat)
    program = installation.build / "tests/programs/install_scripts"
    conninfo = f"{database.cluster.conninfo(database.name)} options='-c log_min_error_statement=panic'"
    done = subprocess.run([program, conninfo], capture_output=True, text=True)
    assert f'belongs to role "{squatted.role}"' in done.stdout + done.stderr, done
    squatted.assert_not_lost()
    assert database.value("SELECT inbox.version()") == INVENTED
