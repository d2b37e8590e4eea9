"""Installing and updating in a database where another role has made objects with the names of ours, or of PostgreSQL's.

test_install.py and test_update.py have the refusals of single guards; here all ways to install meet the same objects.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cluster import Installation
from database import Database, NewDatabase
from long_run import all_in_long_run
from test_upgrade import INVENTED, old_versions  # noqa: F401

from .attacker import Attacker, NewRole
from .traps import Traps

# Functions, operators, types and relations of the server, in a schema that comes before pg_catalog. {names} are those that
# our scripts have. An object that cannot be made cannot be found by a script either.
ALL_OF_THE_SERVER = """
    SET check_function_bodies = off;
    DO $do$
    DECLARE
        made record;
    BEGIN
        FOR made IN
            SELECT format('CREATE FUNCTION {me}.%I(%s) RETURNS %s%s LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS %L',
                          p.proname, oidvectortypes(p.proargtypes), CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END,
                          format_type(p.prorettype, NULL),
                          'BEGIN PERFORM {me}.strike(); ' || CASE WHEN p.proretset OR p.prorettype = 'void'::regtype THEN '' ELSE 'RETURN NULL; ' END
                          || 'END') AS statement
              FROM pg_proc AS p
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname = ANY ({names})
               AND p.provariadic = 0
            UNION ALL
            SELECT format('CREATE FUNCTION {me}.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS '
                          '''BEGIN PERFORM {me}.strike(); RETURN NULL; END''; CREATE OPERATOR {me}.%s (LEFTARG = %s, RIGHTARG = %s, '
                          'FUNCTION = {me}.operator_%s)', o.oid, l, r, format_type(o.oprresult, NULL), o.oprname, l, r, o.oid)
              FROM pg_operator AS o, format_type(o.oprleft, NULL) AS l, format_type(o.oprright, NULL) AS r
             WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0
               AND o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '||', '->', '->>', '+', '-', '*', '/', '~', '!~', '~~', '@>', '&&')
            UNION ALL
            SELECT format('CREATE DOMAIN {me}.%I AS pg_catalog.%1$I CHECK ({me}.strike())', t.typname)
              FROM pg_type AS t
             WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r') AND t.typname = ANY ({names})
            UNION ALL
            SELECT format('CREATE VIEW {me}.%I AS SELECT * FROM pg_catalog.%1$I WHERE {me}.strike()', c.relname)
              FROM pg_class AS c
             WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname = ANY ({names})
        LOOP
            BEGIN
                EXECUTE made.statement;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END LOOP;
    END $do$;
    CREATE FUNCTION {me}.format(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM {me}.strike(); RETURN ''; END $$;
    CREATE FUNCTION {me}.format(text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM {me}.strike(); RETURN ''; END $$;
    GRANT ALL ON ALL TABLES IN SCHEMA {me} TO PUBLIC
"""
# In a schema of ours.
OBJECTS = {
    "a function": "CREATE FUNCTION {schema}.version() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM {me}.strike(); RETURN '0'; END $$",
    "a function of the server": "CREATE FUNCTION {schema}.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM {me}.strike(); END $$",
    "an operator": "CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {me}.same)",
    "a table": "CREATE TABLE {schema}.event (id int)",
    "a view": "CREATE VIEW {schema}.status AS SELECT 1 AS one WHERE {me}.strike()",
    "a type": "CREATE TYPE {schema}.event AS (id int)",
    "a domain": "CREATE DOMAIN {schema}.caller AS name CHECK ({me}.strike())",
    "a sequence": "CREATE SEQUENCE {schema}.position",
    "a collation": 'CREATE COLLATION {schema}."C" FROM "C"',
    "a conversion": "CREATE DEFAULT CONVERSION {schema}.latin FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1",
    "a dictionary": "CREATE TEXT SEARCH DICTIONARY {schema}.simple (TEMPLATE = pg_catalog.simple)",
}


class Site:
    """A database of `owner`, in which another role may create schemas."""

    def __init__(self, database: Database, owner: str, attacker: Attacker, folder: Path) -> None:
        self.database, self.owner, self.attacker = database, owner, attacker
        self.installation: Installation = database.cluster.installation
        self.traps = Traps(attacker, folder)
        self.traps.watch(owner)

    def run(self, *command: object) -> None:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)

    def execute_as(self, role: str, statement: str) -> None:
        with self.database.cluster.connect(self.database.name, role) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    @property
    def conninfo(self) -> str:
        return self.database.cluster.conninfo(self.database.name, self.owner)

    def outboxctl(self, *arguments: str) -> None:
        self.run(self.installation.build / "tools/outboxctl/outboxctl", "-d", self.conninfo, *arguments)

    def psql(self, file: str) -> None:
        self.run(
            self.installation.bin_directory / "psql",
            "-qX",
            "-d",
            self.conninfo,
            "-f",
            self.installation.build / "sql" / file,
        )

    def squat(self, statement: str) -> None:
        self.attacker.execute(statement.replace("{me}", self.attacker.role))

    def ours(self) -> int:
        """Returns how many objects are in schemas of ours."""
        return self.database.value(
            "SELECT count(*) FROM pg_depend AS d JOIN pg_namespace AS n ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid "
            "WHERE n.nspname ~ '^(in|out)box(_internal)?$'"
        )  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way to install or update; `before` is what is there already."""

    schema: str
    install: Callable[[Site], None]
    by_owner: bool = False
    before: str = ""


def extension(name: str) -> Callable[[Site], None]:
    return lambda site: site.execute_as("postgres", f"CREATE EXTENSION {name}")


def update(name: str) -> Callable[[Site], None]:
    return lambda site: site.execute_as("postgres", f"ALTER EXTENSION {name} UPDATE")


WAYS = {
    "pg_outbox": Way("outbox", extension("pg_outbox")),
    "pg_inbox": Way("inbox", extension("pg_inbox")),
    "pg_inbox, by the owner": Way(
        "inbox", lambda site: site.execute_as(site.owner, "CREATE EXTENSION pg_inbox"), by_owner=True
    ),
    "the SQL edition": Way("outbox", lambda site: site.psql("pg_outbox--sql.sql"), by_owner=True),
    "outboxctl install": Way("outbox", lambda site: site.outboxctl("install", "--edition", "sql"), by_owner=True),
    "outboxctl inbox install": Way("inbox", lambda site: site.outboxctl("inbox", "install"), by_owner=True),
}
UPDATES = {
    f"an update of pg_{schema}": Way(
        schema, update(f"pg_{schema}"), before=f"CREATE EXTENSION pg_{schema} VERSION '{INVENTED}'"
    )
    for schema in ("outbox", "inbox")
}


@pytest.fixture
def site(new_database: NewDatabase, new_role: NewRole, open_folder: Path) -> Site:
    database, owner, role = new_database(extension=False), new_role(), new_role()
    database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    return Site(database, owner, Attacker(database, role), open_folder)


@pytest.fixture(scope="module")
def names(installation: Installation) -> list[str]:
    """Words of our scripts."""
    scripts = (installation.build / "sql").glob("pg_*.sql")
    return sorted({word for script in scripts for word in re.findall(r"[a-z_0-9]+", script.read_text())})


@pytest.mark.parametrize(
    "way", all_in_long_run([*WAYS, *UPDATES], short=["pg_inbox, by the owner", "outboxctl install"])
)
def test_names_of_others_are_not_found_in_front_of_the_servers(site: Site, names: list[str], way: str) -> None:
    how = {**WAYS, **UPDATES}[way]
    if how.before:
        site.database.execute(how.before)
    site.squat(ALL_OF_THE_SERVER.replace("{names}", sql.Literal(names).as_string(site.database.connection)))
    role = site.attacker.role
    assert site.database.value("SELECT count(*) FROM pg_proc WHERE pronamespace = %s::regnamespace", (role,)) > 500
    site.database.execute(f"GRANT USAGE ON SCHEMA {role} TO PUBLIC")
    site.database.execute(f"ALTER DATABASE {site.database.name} SET search_path = {role}, pg_catalog")
    how.install(site)
    assert site.traps.sprung() == set()
    made = site.ours()
    site.database.execute(f"DROP SCHEMA {role} CASCADE")
    assert site.ours() == made > 100, "what was installed uses objects of another role"


@pytest.mark.parametrize("object", all_in_long_run(OBJECTS, short=["an operator", "a domain"]))
@pytest.mark.parametrize("way", WAYS)
def test_objects_of_others_in_a_schema_of_ours_are_refused(site: Site, way: str, object: str) -> None:
    how, role = WAYS[way], site.attacker.role
    installer = site.owner if how.by_owner else "postgres"
    site.database.execute(f"CREATE SCHEMA {how.schema} AUTHORIZATION {installer}")
    site.database.execute(f"GRANT USAGE, CREATE ON SCHEMA {how.schema} TO {role}")
    site.squat(OBJECTS[object].replace("{schema}", how.schema))
    for right in ("USAGE, CREATE", "USAGE"):
        with pytest.raises((psycopg.Error, RuntimeError), match="may create objects|belongs? to|is not empty"):
            how.install(site)
        site.database.execute(f"REVOKE {right} ON SCHEMA {how.schema} FROM {role}")
    assert site.ours() == 1 and site.traps.sprung() == set()
    site.database.execute(f"DROP SCHEMA {how.schema} CASCADE")
    how.install(site)
    assert site.traps.sprung() == set()
