"""pg_inbox without CREATE EXTENSION: inbox::install(), by a role that owns nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import errors, sql

from cluster import Cluster, Installation
from database import Database, NewDatabase
from waiting import wait_until


class Site:
    """A database of the test's own, and a role that may create schemas in it and nothing else."""

    def __init__(self, cluster: Cluster, database: Database, installation: Installation) -> None:
        self.cluster = cluster
        self.database = database
        self.role = f"owner of {database.name}"  # to be quoted, wherever it is used
        self.programs = installation.build
        (control,) = installation.stage.rglob("pg_inbox.control")
        self.newest = control.read_text().partition("default_version = '")[2].partition("'")[0]
        self.create_role(self.role)
        self.alter("GRANT CREATE ON DATABASE {database} TO {role}")

    def create_role(self, name: str) -> None:
        self.database.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))

    def alter(self, statement: str) -> None:
        names = {"database": sql.Identifier(self.database.name), "role": sql.Identifier(self.role)}
        self.database.execute(sql.SQL(statement).format(**names))

    def conninfo(self, user: str | None = None) -> str:
        quoted = (user or self.role).replace("'", "\\'")
        return self.cluster.conninfo(self.database.name, f"'{quoted}'")

    def command(self, *arguments: str, user: str | None = None) -> list[str]:
        return [
            str(self.programs / "tools/outboxctl/outboxctl"), "-d", self.conninfo(user), *arguments
        ]  # fmt: skip

    def install(self, user: str | None = None) -> str:
        """Returns the exit code and output of outboxctl."""
        done = subprocess.run(self.command("inbox", "install", user=user), capture_output=True, text=True)
        return f"{done.returncode} {done.stdout}{done.stderr}".strip()

    def install_scripts(self, version: str, create: str, *upgrades: tuple[str, str, str]) -> str:
        """Installs other scripts than those of the library."""
        program = str(self.programs / "tests/programs/install_scripts")
        arguments = [text for upgrade in upgrades for text in upgrade]
        return subprocess.run(
            [program, self.conninfo(), version, create, *arguments],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def version(self) -> str:
        return self.database.value("SELECT inbox.version()")


@pytest.fixture
def site(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation) -> Iterator[Site]:
    site = Site(shared_cluster, new_database(extension=False), installation)
    yield site
    site.database.execute("DROP EXTENSION IF EXISTS pg_inbox; DROP SCHEMA IF EXISTS inbox, inbox_internal CASCADE")
    site.alter("DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_that_may_create_a_schema_may_install(site: Site) -> None:
    version = site.newest
    assert site.install() == f"0 pg_inbox {version} is installed now"
    assert site.install() == f"0 pg_inbox {version} was installed already"
    assert site.version() == version
    owners = site.database.execute(
        "SELECT DISTINCT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname ~ '^inbox' "
        "UNION SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace::regnamespace::text ~ '^inbox' "
        "UNION SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^inbox'"
    )
    assert owners == [(site.role,)]


def test_an_installed_inbox_works_for_roles_with_granted_rights(site: Site) -> None:
    site.install()
    site.create_role(f"app of {site.database.name}")
    app = f"app of {site.database.name}"
    with site.cluster.connect(site.database.name, f"'{site.role}'") as owner:
        owner.execute("SELECT inbox.grant_consume(quote_ident(%s)::regrole)", (app,))
    with site.cluster.connect(site.database.name, f"'{app}'") as connection:
        begin = "SELECT inbox.begin_event('c', 'aaaaaaaa-0000-7000-8000-000000000000')"
        assert connection.execute(begin).fetchone() == (True,)
        assert connection.execute(begin).fetchone() == (False,)
    assert site.database.execute("SELECT role FROM inbox.consumer") == [(app,)]
    site.database.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(app)))


OBJECTS = """
    SELECT pg_describe_object('pg_proc'::regclass, oid, 0), prosrc || coalesce(prosqlbody, ''), prosecdef,
           proconfig, obj_description(oid, 'pg_proc')
      FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^inbox'
    UNION ALL
    SELECT pg_describe_object('pg_class'::regclass, c.oid, 0),
           string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                                pg_get_expr(adbin, adrelid), col_description(c.oid, attnum)), ', ' ORDER BY attnum),
           NULL, reloptions, obj_description(c.oid, 'pg_class')
      FROM pg_class AS c
      LEFT JOIN pg_attribute ON attrelid = c.oid AND attnum > 0
      LEFT JOIN pg_attrdef ON adrelid = c.oid AND adnum = attnum
     WHERE relnamespace::regnamespace::text ~ '^inbox' GROUP BY c.oid
    UNION ALL
    SELECT pg_describe_object('pg_constraint'::regclass, oid, 0), pg_get_constraintdef(oid), NULL, NULL, NULL
      FROM pg_constraint WHERE connamespace::regnamespace::text ~ '^inbox'
    ORDER BY 1, 2
"""
GRANTED = """
    SELECT p.oid::regprocedure::text, a.grantee::regrole::text, a.privilege_type
      FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE pronamespace::regnamespace::text ~ '^inbox'
       AND a.grantee <> p.proowner
    UNION ALL
    SELECT c.oid::regclass::text, a.grantee::regrole::text, a.privilege_type
      FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE relnamespace::regnamespace::text ~ '^inbox'
       AND a.grantee <> c.relowner
    ORDER BY 1, 2, 3
"""


def test_what_is_installed_is_what_the_extension_has(site: Site, new_database: NewDatabase) -> None:
    site.install()
    other = new_database(extension=False)
    other.execute("CREATE EXTENSION pg_inbox")
    assert other.value("SELECT inbox.version()") == other.value(
        "SELECT extversion FROM pg_extension WHERE extname = 'pg_inbox'"
    )
    # The text of an SQL body contains OIDs of the objects that it uses.
    objects = OBJECTS.replace("prosqlbody", "pg_get_function_sqlbody(oid)")
    assert site.database.execute(objects) == other.execute(objects)
    granted = other.execute(GRANTED)
    assert ("inbox.status", "pg_monitor", "SELECT") in granted
    assert site.database.execute(GRANTED) == granted


def test_it_can_be_dumped_and_restored(site: Site, new_database: NewDatabase) -> None:
    site.install()
    with site.cluster.connect(site.database.name, f"'{site.role}'") as owner:
        owner.execute("SELECT inbox.begin_event('c', 'aaaaaaaa-0000-7000-8000-000000000000')")
    other = new_database(extension=False)
    bin_directory = site.cluster.installation.bin_directory
    dump = subprocess.run(
        [str(bin_directory / "pg_dump"), "-d", site.cluster.conninfo(site.database.name)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    subprocess.run(
        [str(bin_directory / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d",
         site.cluster.conninfo(other.name)],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip
    with site.cluster.connect(other.name, f"'{site.role}'") as owner:
        begin = "SELECT inbox.begin_event('c', 'aaaaaaaa-0000-7000-8000-000000000000')"
        assert owner.execute(begin).fetchone() == (False,)
    other.execute("DROP SCHEMA inbox, inbox_internal CASCADE")


def test_several_at_the_same_time_install_once(site: Site) -> None:
    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(lambda _: site.install(), range(4)))
    version = site.newest
    assert said == [f"0 pg_inbox {version} is installed now"] + 3 * [f"0 pg_inbox {version} was installed already"]


def test_an_install_waits_for_another_that_runs(site: Site) -> None:
    with site.cluster.connect(site.database.name, f"'{site.role}'") as connection:
        connection.execute("BEGIN; SELECT pg_advisory_xact_lock(7381241094651022914)")
        waiting = subprocess.Popen(site.command("inbox", "install"), stdout=subprocess.PIPE, text=True)
        wait_until(
            lambda: site.database.value(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outboxctl' "
                "AND wait_event = 'advisory' AND datname = current_database()"
            ),
            what="outboxctl to wait for the lock",
        )  # fmt: skip
        assert site.database.value("SELECT to_regnamespace('inbox')") is None
        connection.execute("COMMIT")
        assert "is installed now" in waiting.communicate(timeout=180)[0]


# -------------------------------------------------------------------------------------------------
# Refusals
# -------------------------------------------------------------------------------------------------


def test_install_refuses_a_database_with_the_extension(site: Site) -> None:
    site.database.execute("CREATE EXTENSION pg_inbox")
    for user in (None, "postgres"):
        said = site.install(user)
        assert said == (
            "1 outboxctl: pg_inbox is installed as an extension here\nHINT:  Use ALTER EXTENSION pg_inbox UPDATE."
        )


def test_install_refuses_a_schema_of_another_purpose(site: Site) -> None:
    site.alter("CREATE SCHEMA inbox AUTHORIZATION {role}; CREATE TABLE inbox.letter ()")
    assert 'schema "inbox" exists, and does not belong to pg_inbox' in site.install()
    assert site.database.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'inbox'::regnamespace") == 1


def test_install_uses_an_empty_schema_of_its_own_role(site: Site) -> None:
    site.alter("REVOKE CREATE ON DATABASE {database} FROM {role}")
    said = site.install()
    assert said.startswith("1 ") and "permission denied for database" in said
    site.alter("CREATE SCHEMA inbox AUTHORIZATION {role}; CREATE SCHEMA inbox_internal AUTHORIZATION {role}")
    assert "is installed now" in site.install()


def test_install_refuses_an_internal_schema_of_another_role(site: Site) -> None:
    site.alter("CREATE SCHEMA inbox_internal AUTHORIZATION {role}")
    assert f'Schema inbox_internal belongs to role "{site.role}"' in site.install("postgres")
    create = "CREATE EXTENSION pg_inbox"
    with pytest.raises(errors.InsufficientPrivilege, match='schema "inbox_internal" belongs to role'):
        site.database.execute(create)
    site.alter("ALTER SCHEMA inbox_internal OWNER TO postgres; GRANT CREATE ON SCHEMA inbox_internal TO {role}")
    with pytest.raises(errors.InsufficientPrivilege, match='others may create objects in schema "inbox_internal"'):
        site.database.execute(create)
    site.alter("REVOKE CREATE ON SCHEMA inbox_internal FROM {role}; CREATE TABLE inbox_internal.letter ()")
    with pytest.raises(errors.DuplicateSchema, match='schema "inbox_internal" is not empty'):
        site.database.execute(create)
    site.database.execute("DROP TABLE inbox_internal.letter")
    site.database.execute(create)


def test_install_runs_nothing_in_a_schema_of_another_role(site: Site) -> None:
    """A superuser that installs must not run code that another role has left there."""
    site.database.execute("CREATE TABLE ran ()")
    site.alter("GRANT ALL ON ran TO {role}; CREATE SCHEMA inbox AUTHORIZATION {role}")
    site.database.execute(
        "CREATE FUNCTION inbox.version() RETURNS text LANGUAGE sql BEGIN ATOMIC "
        "INSERT INTO ran DEFAULT VALUES; SELECT '0.0.1'; END"
    )
    site.alter("ALTER FUNCTION inbox.version() OWNER TO {role}")
    assert f'Schema inbox belongs to role "{site.role}"' in site.install("postgres")
    assert site.database.value("SELECT count(*) FROM ran") == 0


def test_a_failure_leaves_nothing_behind(site: Site) -> None:
    said = site.install_scripts("1.0", "CREATE TABLE inbox.a (); SELECT 1/0")
    assert said.startswith("22012 ERROR:  division by zero")
    assert site.database.value("SELECT to_regnamespace('inbox')") is None


def test_without_a_connection(site: Site) -> None:
    said = site.install("nobody of that name")
    assert said.startswith("1 outboxctl: ") and "does not exist" in said


# -------------------------------------------------------------------------------------------------
# Upgrades, by a made-up history
# -------------------------------------------------------------------------------------------------


def made(version: str) -> str:
    """The script of a version; its first row records the path of the upgrade."""
    return f"""
        CREATE TABLE inbox.history (version text); INSERT INTO inbox.history VALUES ('{version}');
        CREATE FUNCTION inbox.version() RETURNS text LANGUAGE sql RETURN '{version}';
    """


def upgrade(before: str, after: str, more: str = "") -> tuple[str, str, str]:
    script = f"""
        INSERT INTO inbox.history VALUES ('{after}'); {more};
        CREATE OR REPLACE FUNCTION inbox.version() RETURNS text LANGUAGE sql RETURN '{after}';
    """
    return (before, after, script)


UPGRADES = [
    upgrade("2.0", "10.0"), upgrade("1.0", "1.1"), upgrade("1.1", "2.0"), upgrade("0.1", "0.2"),
    upgrade("1.1", "1.0"), upgrade("1.0", "1.5"), upgrade("1.5", "1.6"), upgrade("1.6", "10.0"),
]  # fmt: skip


def history(site: Site) -> list[str]:
    return [version for (version,) in site.database.execute("SELECT version FROM inbox.history")]


def test_upgrades_take_the_shortest_way(site: Site) -> None:
    site.install_scripts("1.0", made("1.0"), *UPGRADES)
    assert site.install_scripts("10.0", made("10.0"), *UPGRADES) == "'1.0' '10.0'"
    assert history(site) in (["1.0", "1.1", "2.0", "10.0"], ["1.0", "1.5", "1.6", "10.0"])
    assert site.install_scripts("10.0", made("10.0"), *UPGRADES) == "'10.0' '10.0'"
    assert site.version() == "10.0"

    direct = upgrade("1.0", "10.0")
    site.database.execute("DROP SCHEMA inbox CASCADE")
    site.install_scripts("1.0", made("1.0"))
    site.install_scripts("10.0", made("10.0"), *UPGRADES, direct)
    assert history(site) == ["1.0", "10.0"]


def test_an_upgrade_happens_as_a_whole(site: Site) -> None:
    site.install_scripts("1.0", made("1.0"))
    said = site.install_scripts("2.0", made("2.0"), upgrade("1.0", "1.1"), upgrade("1.1", "2.0", "SELECT 1/0"))
    assert said.startswith("22012 ")
    assert (history(site), site.version()) == (["1.0"], "1.0")


@pytest.mark.parametrize("there", ["10.0", "2.0.1"])
def test_what_is_newer_stays(site: Site, there: str) -> None:
    site.install_scripts(there, made(there))
    said = site.install_scripts("2.0", made("2.0"), *UPGRADES)
    assert said.startswith(f"55000 version {there} of pg_inbox is installed here, which is newer than 2.0")
    assert site.version() == there


def test_an_upgrade_without_a_path_is_refused(site: Site) -> None:
    site.install_scripts("0.1", made("0.1"))
    said = site.install_scripts("2.0", made("2.0"), *UPGRADES)
    assert said.startswith("55000 version 0.1 of pg_inbox is installed here, which cannot be upgraded to 2.0")
    assert history(site) == ["0.1"]
