"""CREATE EXTENSION pg_outbox in a database with objects of another role."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cluster import Installation
from database import Database, NewDatabase

from .attacker import NewRole

SCRIPTS = Path(__file__).parents[2] / "sql/pg_outbox"
GUARD = SCRIPTS / "native/guard.sql"

# Grants of grants.sql to PUBLIC: triggers, and functions that views of the log call.
FOR_PUBLIC = {"outbox.capture_row()", "outbox.capture_truncate()", "outbox.payload_as_jsonb(bytea)"}

TRAP = """
    CREATE FUNCTION outbox.format(text, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
      IF current_user = 'postgres' THEN EXECUTE 'ALTER ROLE {role} SUPERUSER'; END IF;
      RETURN pg_catalog.format($1, VARIADIC ARRAY[$2]); END $$
"""


@pytest.fixture
def squatter(new_role: NewRole) -> str:
    return new_role()


@pytest.fixture
def empty(new_database: NewDatabase, squatter: str) -> Database:
    """A database without the extension, in which the squatter may create schemas."""
    database = new_database(extension=False)
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {squatter}")
    return database


def as_squatter(database: Database, squatter: str, statement: str) -> None:
    with database.cluster.connect(database.name, user=squatter) as connection:
        connection.execute(statement)


def refused(database: Database, squatter: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        database.execute("CREATE EXTENSION pg_outbox")
    assert not database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (squatter,))
    assert database.execute("SELECT FROM pg_extension WHERE extname = 'pg_outbox'") == []


def test_a_schema_of_somebody_else_is_refused(empty: Database, squatter: str) -> None:
    """S5"""
    as_squatter(empty, squatter, "CREATE SCHEMA outbox;" + TRAP.format(role=squatter))
    refused(empty, squatter, f'schema outbox belongs to role "{squatter}"')
    empty.execute("ALTER SCHEMA outbox OWNER TO postgres")
    refused(empty, squatter, r"objects that do not belong to pg_outbox(.|\n)*function outbox\.format\(text,integer\)")
    empty.execute("DROP SCHEMA outbox CASCADE")
    empty.create_extension()


def test_an_empty_schema_of_somebody_else_is_refused(empty: Database, squatter: str) -> None:
    """S5: its owner could add objects later, and drop objects of the extension."""
    as_squatter(empty, squatter, "CREATE SCHEMA outbox")
    refused(empty, squatter, "belongs to role")


@pytest.mark.parametrize("to", ["PUBLIC", "{role}"])
def test_a_schema_that_others_may_create_in_is_refused(empty: Database, squatter: str, to: str) -> None:
    """S5"""
    empty.execute(f"CREATE SCHEMA outbox; GRANT USAGE, CREATE ON SCHEMA outbox TO {to.format(role=squatter)}")
    refused(empty, squatter, "may create objects in schema outbox")


def test_a_schema_in_the_place_of_the_internal_one_is_refused(empty: Database, squatter: str) -> None:
    """S5: only the script makes it; it is dropped with the extension, and no dump makes it."""
    as_squatter(
        empty,
        squatter,
        "CREATE SCHEMA outbox_internal;" + TRAP.replace("outbox.", "outbox_internal.").format(role=squatter),
    )
    refused(empty, squatter, f'schema outbox_internal belongs to role "{squatter}"')
    empty.execute("ALTER SCHEMA outbox_internal OWNER TO postgres")
    refused(
        empty, squatter, r"schema outbox_internal has objects(.|\n)*function outbox_internal\.format\(text,integer\)"
    )
    empty.execute("DROP SCHEMA outbox_internal CASCADE; CREATE SCHEMA outbox_internal")
    refused(empty, squatter, 'schema "outbox_internal" already exists')
    empty.execute("DROP SCHEMA outbox_internal")
    empty.create_extension()
    empty.execute("DROP EXTENSION pg_outbox")
    assert empty.value("SELECT to_regnamespace('outbox_internal')") is None


def test_the_schema_that_a_dump_makes_is_used(empty: Database) -> None:
    empty.execute("CREATE SCHEMA outbox")
    empty.create_extension()
    empty.execute("DROP EXTENSION pg_outbox")
    empty.create_extension()


def test_an_update_looks_at_the_schema_as_well(empty: Database, installation: Installation) -> None:
    """S5: the script of an update begins with the same lines."""
    (update,) = (installation.build / "sql").glob("pg_outbox--0.0.0--*.sql")
    guard = GUARD.read_text()
    assert update.read_text().partition("\n")[2].startswith(f"\n{guard}")
    empty.create_extension()
    empty.execute("BEGIN")
    empty.execute(guard)
    assert empty.value("SHOW search_path") == "pg_catalog, pg_temp"
    empty.execute("ROLLBACK")
    for schema in ("outbox", "outbox_internal"):
        empty.execute(f"CREATE FUNCTION {schema}.later() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        with pytest.raises(psycopg.Error, match=f"schema {schema} has objects that do not belong to pg_outbox"):
            empty.execute(guard)
        empty.execute(f"DROP FUNCTION {schema}.later()")


def test_only_superusers_install_the_extension(empty: Database, squatter: str) -> None:
    control = (SCRIPTS / "pg_outbox.control.in").read_text().splitlines()
    assert {"superuser = true", "trusted = false", "relocatable = false", "schema = outbox"} <= set(control)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_squatter(empty, squatter, "CREATE EXTENSION pg_outbox")


def test_it_can_be_installed_within_a_restricted_operation(empty: Database) -> None:
    """Libraries that let the owner of a database create extensions run the scripts in one, as a superuser."""
    empty.execute("CREATE FUNCTION run(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN EXECUTE $1; RETURN $1; END $$")
    view = "CREATE MATERIALIZED VIEW {} AS SELECT public.run($${}$$)"
    for extension in ("pg_outbox", "pg_inbox"):
        empty.execute(view.format(f"installed_{extension}", f"CREATE EXTENSION {extension}"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="within a security-restricted operation"):
        empty.execute(view.format("granted", "SELECT outbox.grant_monitor('pg_monitor')"))


def test_names_in_the_script_are_looked_up_in_pg_catalog(empty: Database) -> None:
    """S5: nothing between the beginning and the end of the script sets another path."""
    empty.create_extension()
    files = sorted([*SCRIPTS.glob("*.sql"), *SCRIPTS.glob("native/*.sql")])
    statements = [
        line
        for file in files
        for line in file.read_text().splitlines()
        if "search_path" in line.lower() and line.lower().startswith(("set local", "set session", "select", "reset"))
    ]
    assert statements == ["SET LOCAL search_path = pg_catalog, pg_temp;"]
    cmake = (SCRIPTS.parent / "CMakeLists.txt").read_text()
    assert cmake.index("guard.sql\n") < cmake.index("schema.sql\n")


def test_default_privileges_of_the_installer_are_not_for_pg_outbox(empty: Database, squatter: str) -> None:
    empty.execute(
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {squatter};"
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {squatter}; ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO {squatter};"
        f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {squatter}"
    )
    empty.create_extension()
    granted = """
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
         WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')
        UNION ALL
        SELECT c.oid::regclass::text FROM pg_class AS c
         WHERE c.relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND c.relkind IN ('r', 'v') AND has_table_privilege(%(role)s, c.oid, 'SELECT, INSERT')
        UNION ALL
        SELECT c.oid::regclass::text FROM pg_class AS c
         WHERE c.relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(%(role)s, c.oid, 'USAGE') END
        UNION ALL
        SELECT 'outbox_internal.caller' WHERE has_type_privilege(%(role)s, 'outbox_internal.caller', 'USAGE')
        UNION ALL
        SELECT 'outbox_internal' WHERE has_schema_privilege(%(role)s, 'outbox_internal', 'USAGE')
    """
    allowed = {name for (name,) in empty.execute(granted, {"role": squatter})}  # type: ignore[arg-type]
    assert allowed <= FOR_PUBLIC
