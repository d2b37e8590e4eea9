"""The SQL edition of pg_outbox: installed by a role that owns the database, on a server without the library."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from cluster import REPOSITORY, Cluster, Installation, MakeCluster
from database import Database, NewDatabase, create_database
from objects import OBJECTS
from outbox_relay import OutboxRelay
from waiting import wait_until

# In the extension only.
ONLY_NATIVE = {o.name for o in OBJECTS.values() if o.edition == "native"}
# Tables of which rows belong to one edition.
OF_EACH = {o.name.removeprefix("outbox.") for o in OBJECTS.values() if o.edition and not o.is_function}


class Site:
    """A database with the SQL edition, and the role that owns both."""

    def __init__(self, cluster: Cluster, database: Database, installation: Installation) -> None:
        self.cluster = cluster
        self.database = database  # as superuser
        self.installation = installation
        self.role = f"owner_{database.name}"
        self.roles = [self.role]
        database.execute(f"CREATE ROLE {self.role} LOGIN")
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {self.role}")
        self._owner: psycopg.Connection | None = None

    @property
    def script(self) -> Path:
        return self.installation.build / "sql/pg_outbox--sql.sql"

    def conninfo(self, user: str) -> str:
        return self.cluster.conninfo(self.database.name, user)

    def connect(self, user: str | None = None) -> psycopg.Connection:
        return self.cluster.connect(self.database.name, user or self.role)

    @property
    def owner(self) -> psycopg.Connection:
        if self._owner is None:
            self._owner = self.connect()
        return self._owner

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple]:
        cursor = self.owner.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, parameters: tuple[object, ...] = ()):
        rows = self.execute(statement, parameters)
        return rows[0][0] if rows else None

    def create_role(self, name: str) -> str:
        role = f"{name}_{self.database.name}"
        self.database.execute(f"CREATE ROLE {role} LOGIN")
        self.roles.append(role)
        return role

    def install(self, user: str | None = None) -> str:
        """Returns the exit code and output of outboxctl."""
        done = subprocess.run(
            [str(self.installation.build / "tools/outboxctl/outboxctl"), "install", "--edition", "sql",
             "-d", self.conninfo(user or self.role)],
            capture_output=True, text=True,
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}{done.stderr}".strip()

    def psql(self, user: str | None = None) -> str:
        """Runs the file; returns the exit code and output of psql."""
        program = str(self.installation.bin_directory / "psql")
        done = subprocess.run(
            [program, "-qX", "-d", self.conninfo(user or self.role), "-f", str(self.script)],
            capture_output=True, text=True,
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}{done.stderr}".strip()

    def remove(self) -> None:
        if self._owner is not None:
            self._owner.close()
        self.database.execute(f"ALTER DATABASE {self.database.name} OWNER TO postgres")
        for role in reversed(self.roles):
            self.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def site(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation) -> Iterator[Site]:
    site = Site(shared_cluster, new_database(extension=False), installation)
    yield site
    site.remove()


@pytest.fixture
def edition(site: Site) -> Site:
    assert site.psql() == "0"
    return site


# -------------------------------------------------------------------------------------------------
# Installing
# -------------------------------------------------------------------------------------------------


def test_outboxctl_installs_it_once(site: Site) -> None:
    control = (site.installation.build / "sql/pg_outbox.control").read_text()
    (version,) = re.findall(r"^default_version = '(.*)'$", control, re.MULTILINE)
    assert site.install() == f"0 the SQL edition of pg_outbox {version} is installed now"
    assert site.install() == f"0 the SQL edition of pg_outbox {version} was installed already"
    assert site.execute("SELECT outbox_internal.edition(), outbox.version()") == [("sql", version)]
    owners = site.execute(
        "SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^outbox'"
    )
    assert owners == [(site.role,)]


def test_a_second_run_of_the_file_is_refused(edition: Site) -> None:
    said = edition.psql()
    assert said.startswith("3 ") and "the SQL edition of pg_outbox is installed here already" in said
    assert edition.value("SELECT count(*) FROM outbox.event") == 0


def test_it_is_refused_beside_the_extension(site: Site) -> None:
    site.database.create_extension()
    for said in (site.psql("postgres"), site.install()):
        assert "pg_outbox is installed as an extension here" in said
    site.database.execute("DROP EXTENSION pg_outbox CASCADE; DROP SCHEMA outbox CASCADE")


def test_the_extension_is_refused_beside_it(edition: Site) -> None:
    with pytest.raises(errors.InsufficientPrivilege, match="schema outbox belongs to role"):
        edition.database.create_extension()


def test_a_schema_of_another_role_or_purpose_is_refused(site: Site) -> None:
    site.database.execute("CREATE SCHEMA outbox")
    assert 'schema outbox belongs to role "postgres"' in site.psql()
    site.database.execute(f"ALTER SCHEMA outbox OWNER TO {site.role}; CREATE TABLE outbox.letter ()")
    assert "schema outbox exists, and does not belong to pg_outbox" in site.psql()
    site.database.execute("DROP TABLE outbox.letter; GRANT CREATE ON SCHEMA outbox TO PUBLIC")
    assert "others may create objects in schema outbox" in site.psql()
    assert site.database.value("SELECT to_regnamespace('outbox_internal')") is None


def test_a_role_that_may_not_create_schemas_is_told_what_to_do(site: Site) -> None:
    newcomer, name = site.create_role("newcomer"), site.database.name
    for said in (site.psql(newcomer), site.install(newcomer)):
        assert f'role "{newcomer}" may not create schemas in database "{name}"' in said
        assert f'Connect as its owner, "{site.role}"' in said
        assert f"GRANT CREATE ON DATABASE {name} TO {newcomer};" in said


def test_it_is_removed_with_its_schemas(edition: Site) -> None:
    edition.execute("CREATE TABLE t (id int PRIMARY KEY)")
    edition.execute("SELECT outbox.capture('t')")
    edition.execute("DROP SCHEMA outbox, outbox_internal CASCADE")
    edition.execute("INSERT INTO t VALUES (1)")
    assert edition.psql() == "0"


def test_it_is_a_package_too(site: Site) -> None:
    """The folder for database.dev is an extension like others; the call of pg_tle has the same script."""
    package = site.installation.build / "sql/dbdev/pg_outbox_sql"
    script = next(package.glob("*.sql")).read_text()
    call = (site.installation.build / "sql/pg_tle/pg_outbox_sql.sql").read_text()
    assert call.split("$_pg_outbox_$")[1].strip() == script.strip()
    (control,) = site.installation.stage.rglob("extension/pg_outbox.control")
    for file in (*package.glob("*.sql"), package / "pg_outbox_sql.control"):
        (control.parent / file.name).write_text(file.read_text())
        (control.parent / file.name).chmod(0o644)
    site.database.execute("CREATE EXTENSION pg_outbox_sql")
    assert site.database.value("SELECT outbox_internal.edition()") == "sql"
    assert site.database.value("SELECT outbox.enqueue('a', '1', 'E', '{}') IS NOT NULL")
    site.database.execute("DROP EXTENSION pg_outbox_sql CASCADE; DROP SCHEMA IF EXISTS outbox, outbox_internal CASCADE")


# -------------------------------------------------------------------------------------------------
# The same as the extension
# -------------------------------------------------------------------------------------------------

FUNCTIONS = """
    SELECT p.pronamespace::regnamespace::text || '.' || p.proname || '()',
           array_to_string(ARRAY(SELECT concat_ws(' ', p.proargnames[n], t.type::regtype)
                                   FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY AS t(type, n)
                                  WHERE t.type::regtype::text <> 'outbox_internal.caller'), ', ')
           || ' returns ' || p.prorettype::regtype
      FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text IN ('outbox', 'outbox_internal')
"""


def test_functions_have_the_names_and_arguments_of_the_extension(edition: Site, database: Database) -> None:
    ours, natives = edition.execute(FUNCTIONS), database.execute(FUNCTIONS)
    only_native = {name for name, _ in natives} - {name for name, _ in ours}
    assert only_native == {name for name in ONLY_NATIVE if name.endswith("()")}
    known = dict.fromkeys(natives)
    for function in ours:
        if function[0] in {name for name, _ in natives} and function[0] != "outbox_internal.leave_pull()":
            assert function in known
    public = {name for name, _ in ours if name.startswith("outbox.")}
    assert public == {name for name, _ in natives if name.startswith("outbox.")} - ONLY_NATIVE


RELATIONS = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
      FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'c')
"""


def test_tables_and_views_have_the_columns_of_the_extension(edition: Site, database: Database) -> None:
    ours, natives = set(edition.execute(RELATIONS)), set(database.execute(RELATIONS))
    only_native = {f"outbox.{relation}" for relation, _, _ in natives - ours}
    assert only_native == {name for name in ONLY_NATIVE if not name.endswith("()")}
    more = {relation for relation, _, _ in ours - natives}
    assert more - {"producer"} == {name for name in OF_EACH if OBJECTS[f"outbox.{name}"].edition == "sql"}


TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'"


def test_a_migration_leaves_behind_what_belongs_to_one_edition(edition: Site, database: Database) -> None:
    script = (REPOSITORY / "tools/outboxctl/migrate_edition/find.sql").read_text()
    (left,) = re.findall(r"left_behind\(\)\nRETURNS name\[\].*?'\{(.*?)\}'", script, re.DOTALL)
    tables = {name for (name,) in edition.execute(TABLES) + database.execute(TABLES)}
    assert set(left.split(",")) == OF_EACH & tables


def test_settings_have_the_defaults_of_the_extension(edition: Site, database: Database) -> None:
    known = edition.execute("SELECT name, value FROM outbox_internal.default_settings()")
    for name, value in known:
        default = database.value("SELECT boot_val FROM pg_settings WHERE name = %s", (f"outbox.{name}",))
        number = edition.value("SELECT outbox_internal.setting_number(%s)", (name,))
        assert (str(number) if number is not None else value) == default, name
    limits = edition.execute(
        "SELECT 'outbox.' || name, min::text, max::text FROM outbox_internal.default_settings() WHERE unit IS NOT NULL"
    )
    for name, least, most in limits:
        (row,) = database.execute("SELECT min_val, max_val FROM pg_settings WHERE name = %s", (name,))
        assert row == (least, most), name
    # About workers and DROP EXTENSION, which are not here, and settings of sessions, which no table holds. outbox-relay has
    # settings of its own for spans and for its identity.
    missing = database.execute("SELECT name FROM pg_settings WHERE name LIKE 'outbox.%%' AND name <> ALL (%s)",
                               ([f"outbox.{name}" for name, _ in known],))  # fmt: skip
    assert {name for (name,) in missing} == {
        "outbox.allow_drop_with_undelivered", "outbox.default_destination", "outbox.identity_file", "outbox.max_workers", "outbox.max_workers_per_database",
        "outbox.max_workers_per_role", "outbox.otlp_endpoint", "outbox.otlp_headers_file", "outbox.shared_read_size", "outbox.trace_comments", "outbox.traceparent", "outbox.tracestate",
    }  # fmt: skip


def test_options_of_destinations_are_those_of_the_extension(edition: Site, database: Database) -> None:
    query = "SELECT * FROM outbox.destination_options() ORDER BY 1, 2, 3"
    assert edition.execute(query) == database.execute(query)


def test_every_object_has_a_comment(edition: Site) -> None:
    silent = edition.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc AS p "
        "WHERE p.pronamespace::regnamespace::text IN ('outbox', 'outbox_internal') AND obj_description(p.oid, 'pg_proc') IS NULL"
        " UNION ALL SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relkind IN ('r', 'v', 'S') "
        "AND c.relnamespace::regnamespace::text IN ('outbox', 'outbox_internal') AND obj_description(c.oid, 'pg_class') IS NULL"
    )
    assert silent == []


ENQUEUE = (
    "outbox.enqueue(text,text,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamptz,outbox_internal.caller)"
)


# Functions of which callers say why they need no search_path: they run under that of their callers, and nobody
# else may call them; or they are inlined; or they qualify all names (the next test).
def test_functions_with_more_rights_than_their_callers_fix_the_search_path(edition: Site) -> None:
    loose = edition.execute(
        "SELECT p.oid = %s::regprocedure FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text IN ('outbox', 'outbox_internal') "
        "AND p.prosecdef AND NOT coalesce(p.proconfig && ARRAY['search_path=pg_catalog, pg_temp'], false)",
        (ENQUEUE,),
    )
    assert loose == [(True,)]
    callable_ = edition.execute(
        "SELECT DISTINCT p.proname FROM pg_proc AS p, aclexplode(p.proacl) AS a "
        "WHERE p.pronamespace::regnamespace::text IN ('outbox', 'outbox_internal') AND a.grantee <> p.proowner "
        "AND p.proconfig IS NULL AND p.prolang <> (SELECT oid FROM pg_language WHERE lanname = 'sql') AND p.oid <> %s::regprocedure",
        (ENQUEUE,),
    )
    assert callable_ == []


# A function or operator for each of the server's that has a name that occurs in outbox.enqueue(), and its types.
TRAPS = """
DO $do$
DECLARE
    body   text := (SELECT prosrc FROM pg_proc WHERE oid = '{function}'::regprocedure);
    trap   record;
    number integer := 0;
BEGIN
    FOR trap IN SELECT p.proname AS name, oidvectortypes(p.proargtypes) AS types, p.prorettype::regtype AS result
                  FROM pg_proc AS p
                 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
                   AND 'internal'::regtype <> ALL (p.proargtypes || p.prorettype) AND body ~ ('\\y' || p.proname || '\\(') LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN RAISE ''sprung''; END $$',
                       trap.name, trap.types, trap.result);
    END LOOP;
    FOR trap IN SELECT o.oprname AS name, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result
                  FROM pg_operator AS o
                 WHERE o.oprkind = 'b' AND o.oprnamespace = 'pg_catalog'::regnamespace AND strpos(body, o.oprname) > 0 LOOP
        number := number + 1;
        EXECUTE format('CREATE FUNCTION trap.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN RAISE ''sprung''; END $$',
                       number, trap.l, trap.r, trap.result);
        EXECUTE format('CREATE OPERATOR trap.%s (FUNCTION = trap.operator_%s, LEFTARG = %s, RIGHTARG = %s)',
                       trap.name, number, trap.l, trap.r);
    END LOOP;
    FOR trap IN SELECT t.typname AS name FROM pg_type AS t
                 WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b' AND body ~ ('\\y' || t.typname || '\\y') LOOP
        EXECUTE format('CREATE DOMAIN trap.%I AS pg_catalog.%I CHECK (trap.spring())', trap.name, trap.name);
    END LOOP;
END $do$
"""


def test_an_enqueue_finds_nothing_in_front_of_the_servers_names(edition: Site) -> None:
    edition.execute(
        "CREATE SCHEMA trap; CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'sprung'; END $$"
    )
    edition.execute(TRAPS.format(function=ENQUEUE))
    with edition.connect() as caller:
        caller.execute("SET search_path = trap, pg_catalog, pg_temp")
        for sprung in ("SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text", "SELECT pg_catalog.int8 '1' = 1", "SELECT convert_to('a', 'b')",
                       "SELECT 'a'::text"):  # fmt: skip
            with pytest.raises(psycopg.Error, match="sprung"):
                caller.execute(sprung)
        for options in (
            "",
            ", topic => 't', ordering_key => '', version => 1",
            ", headers => '{}'",
            ", aggregate_type => E'\\x01'",
        ):
            call = "SELECT outbox.enqueue(" + ("" if "aggregate_type" in options else "aggregate_type => 'a', ")
            call += f"aggregate_id => '1', event_type => 'E', payload => '{{}}'{options})"
            if "aggregate_type" in options:
                with pytest.raises(errors.InvalidParameterValue, match="control characters"):
                    caller.execute(call)
            else:
                caller.execute(call)
    assert edition.value("SELECT count(*) FROM outbox.event") == 3


# -------------------------------------------------------------------------------------------------
# Settings and destinations
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("max_speed", "1", 'there is no setting "max_speed"'),
        ("retention", "-1", "invalid value"), ("retention", "1 fortnight", "invalid value"),
        ("retention", "10MB", "invalid value"), ("max_payload_size", "1B", "invalid value"),
        ("receipts", "perhaps", "invalid value"), ("on_full_log", "burn", "invalid value"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused(edition: Site, name: str, value: str, reason: str) -> None:
    with pytest.raises(psycopg.Error, match=reason):
        edition.execute("INSERT INTO outbox.setting VALUES (%s, %s)", (name, value))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("d", "{}", 'option "url" is required'), ("d", "[]", "options must be a JSON object"),
        ("d", '{"url": "null:", "max_in_flight": 3}', 'option "max_in_flight" is not a text'),
        ("default", '{"url": "null:"}', 'cannot be called "default"'),
        ("d", '{"url": "https://u:secret@example.com/"}', "password in a URL"),
        ("d", '{"url": "https://example.com/", "token": "x"}', '"token" is a credential'),
        # Only SQL reads these.
        ("d", '{"url": "pull:x"}', 'the URL of a pull destination is "pull:"'),
        ("d", '{"url": "pull:", "lanes": "0"}', 'invalid value for option "lanes"'),
        ("d", '{"url": "pull:", "retry_base": "1 fortnight"}', 'Invalid duration "1 fortnight"'),
        ("d", '{"url": "pull:", "retry_max": "25h"}', 'Invalid duration "25h"'),
        ("d", '{"url": "pull:", "batch_size": "1"}', 'invalid option "batch_size"'),
        ("d", '{"url": "https://example.com/", "topics": "a,,b"}', "topic pattern is empty"),
        ("d", '{"url": "https://example.com/", "on_dead_letter": "bury"}', 'Write "release" or "block"'),
        ("d", '{"url": "https://example.com/", "nonsense": "1"}', 'invalid option "nonsense"'),
    ],
)  # fmt: skip
def test_a_wrong_destination_is_refused(edition: Site, name: str, options: str, reason: str) -> None:
    with pytest.raises(psycopg.Error, match=reason):
        edition.execute("INSERT INTO outbox.destination_config VALUES (%s, %s::jsonb)", (name, options))
    assert edition.value("SELECT count(*) FROM outbox.cursor") == 0


def test_a_destination_has_a_cursor_that_follows_it(edition: Site) -> None:
    edition.execute("SELECT outbox.enqueue('a', '1', 'Before', '{}')")
    edition.execute(
        """INSERT INTO outbox.destination_config VALUES ('all', '{"url": "pull:"}'), ('new', '{"url": "pull:", "start": "end"}')"""
    )
    edition.execute("SELECT outbox.enqueue('a', '1', 'After', '{}')")
    fetch = "SELECT event_type FROM outbox.fetch(%s) ORDER BY position"
    assert edition.execute(fetch, ("all",)) == [("Before",), ("After",)]
    assert edition.execute(fetch, ("new",)) == [("After",)]
    edition.execute("UPDATE outbox.destination_config SET name = 'each' WHERE name = 'all'")
    assert edition.execute("SELECT destination FROM outbox.cursor ORDER BY 1") == [("each",), ("new",)]
    assert edition.value("SELECT sum(outbox.ack(token)) FROM outbox.batch WHERE destination = 'each'") == 2
    edition.execute("DELETE FROM outbox.destination_config WHERE name = 'each'")
    assert edition.execute("SELECT destination FROM outbox.cursor UNION SELECT destination FROM outbox.batch") == [
        ("new",)
    ]


def test_a_relay_delivers_and_an_operator_is_heard(edition: Site) -> None:
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    edition.execute("SELECT outbox.enqueue('a', n::text, 'E', '{}') FROM generate_series(1, 1000) AS n")
    relay = edition.installation.build / "relay/outbox-relay"
    done = subprocess.run(
        [str(relay), "--once", "--database-url", edition.conninfo(edition.role)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert edition.value("SELECT position FROM outbox.status WHERE destination = 'd'") == 1000
    edition.execute("SELECT outbox.pause('d')")
    assert edition.value("SELECT action FROM outbox.operation") == "pause"


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


def test_a_producer_has_the_topics_it_was_granted(edition: Site) -> None:
    role = edition.create_role("producer")
    with edition.connect(role) as producer:
        with pytest.raises(errors.InsufficientPrivilege):
            producer.execute("SELECT outbox.enqueue('video', '1', 'E', '{}')")
        edition.execute("SELECT outbox.grant_produce(%s::regrole, 'video.*, 100%%.x_y')", (role,))
        producer.execute(
            "SELECT outbox.enqueue('video', '1', 'E', '{}'), outbox.enqueue('a', '1', 'E', '{}', topic => '100%.x_y')"
        )
        for topic in ("audio.events", "100x.x_y", "100%.xzy"):
            with pytest.raises(errors.InsufficientPrivilege, match="permission denied for topic") as refused:
                producer.execute("SELECT outbox.enqueue('a', '1', 'E', '{}', topic => %s)", (topic,))
            assert (
                refused.value.diag.message_detail
                == f'Role "{role}" may produce events of the topics "video.*, 100%.x_y".'
            )
        # No other caller can be passed, and nothing else of pg_outbox can be used.
        with pytest.raises(errors.CheckViolation):
            producer.execute("SELECT outbox.enqueue('audio', '1', 'E', '{}', caller => %s)", (edition.role,))
        with pytest.raises(errors.NotNullViolation):
            producer.execute("SELECT outbox.enqueue('audio', '1', 'E', '{}', caller => NULL)")
        for statement in ("SELECT * FROM outbox.event", "SELECT outbox.pause('d')", "TABLE outbox.destination_config",
                          "SELECT outbox_internal.new_event_id()"):  # fmt: skip
            with pytest.raises(errors.InsufficientPrivilege):
                producer.execute(statement)


def test_a_fetcher_has_the_destinations_it_was_granted(edition: Site) -> None:
    role = edition.create_role("fetcher")
    edition.execute(
        """INSERT INTO outbox.destination_config VALUES ('d', '{"url": "pull:"}'), ('e', '{"url": "pull:"}')"""
    )
    edition.execute("SELECT outbox.grant_fetch(%s::regrole, 'd')", (role,))
    with edition.connect(role) as fetcher:
        assert fetcher.execute("SELECT * FROM outbox.fetch('d')").fetchall() == []
        with pytest.raises(errors.InsufficientPrivilege, match='permission denied for destination "e"'):
            fetcher.execute("SELECT * FROM outbox.fetch('e')")
    edition.execute("SELECT outbox.revoke_fetch(%s::regrole)", (role,))
    assert edition.value("SELECT count(*) FROM outbox.fetcher") == 0


def test_maintenance_of_a_table_cannot_act_for_a_caller(edition: Site) -> None:
    edition.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
    edition.execute(
        "CREATE FUNCTION act(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM outbox.pause('d'); RETURN n; END $$"
    )
    with pytest.raises(errors.InsufficientPrivilege, match="within a security-restricted operation"):
        edition.execute("CREATE INDEX ON t (act(n))")


def test_a_cast_to_json_does_not_run_in_a_capture(edition: Site) -> None:
    """It would have the rights of the role that installed pg_outbox."""
    role = edition.create_role("attacker")
    edition.execute("SELECT outbox.grant_capture(%s::regrole)", (role,))
    edition.database.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    with edition.connect(role) as attacker:
        attacker.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE ran (as_whom name)")
        attacker.execute(
            "CREATE FUNCTION evil(mood) RETURNS json LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN '1'; END $$"
        )
        attacker.execute("CREATE CAST (mood AS json) WITH FUNCTION evil(mood)")
        attacker.execute("CREATE TABLE t (id int PRIMARY KEY, m mood, n mood)")
        attacker.execute("SELECT outbox.capture('t')")
        attacker.execute("INSERT INTO t VALUES (1, 'sad')")
        assert attacker.execute("SELECT * FROM ran").fetchall() == []
    payload = "SELECT convert_from(payload, 'UTF8') FROM outbox.event"
    assert edition.execute(payload) == [('{"id":1,"m":"sad","n":null}',)]
    edition.execute("DELETE FROM outbox.captured")


def test_only_the_owner_of_a_table_captures_it(edition: Site) -> None:
    role = edition.create_role("other")
    edition.execute("SELECT outbox.grant_capture(%s::regrole)", (role,))
    edition.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with edition.connect(role) as other, pytest.raises(errors.InsufficientPrivilege, match="must be owner"):
        other.execute("SELECT outbox.capture('t')")
    with pytest.raises(errors.InsufficientPrivilege, match=f'only role "{edition.role}"'):
        edition.database.execute("SELECT outbox.capture('t')")


def test_a_relay_sees_all_events_or_says_that_it_does_not(edition: Site) -> None:
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    edition.execute("SELECT outbox.enqueue('a', '1', 'E', '{}')")
    for number in range(4):
        edition.execute(f"ALTER TABLE outbox.event_{number} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    edition.execute("ALTER TABLE outbox.event ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    edition.execute("INSERT INTO outbox.relay_lease VALUES (1, 1)")
    look = "SELECT * FROM outbox_internal.relay_look(1, '{%%}', '1:1:', NULL, 0, 100)"
    with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
        edition.execute(look)


# -------------------------------------------------------------------------------------------------
# Waking relays
# -------------------------------------------------------------------------------------------------


def notifications_of_enqueues(site: Site) -> list[str]:
    """Payloads that a relay gets: one enqueue while it is awake, one while it sleeps, then "last"."""
    heard: list[str] = []
    with site.connect() as relay:
        relay.add_notify_handler(lambda notification: heard.append(notification.payload))
        relay.execute("LISTEN outbox_wake")
        site.execute("SELECT outbox.enqueue('a', '1', 'E', '{}')")
        relay.execute("SELECT pg_advisory_lock(1869968482, 0)")
        site.execute("SELECT outbox.enqueue('a', '2', 'E', '{}')")
        site.execute("SELECT pg_notify('outbox_wake', 'last')")
        wait_until(lambda: relay.execute("SELECT 1") and heard, lambda seen: "last" in seen,
                   what="the notification of an enqueue while the relay slept, and the last one")  # fmt: skip
    return heard


def test_an_enqueue_notifies_only_a_relay_that_sleeps(make_cluster: MakeCluster, installation: Installation) -> None:
    cluster = make_cluster({"max_prepared_transactions": "0", "shared_preload_libraries": ""})
    site = Site(cluster, create_database(cluster, extension=False), installation)
    assert site.psql() == "0"
    assert site.value("SELECT value FROM outbox_internal.relay_settings() WHERE name = 'notifies'") == "on"
    assert notifications_of_enqueues(site) == ["", "last"]
    site.remove()


def test_nobody_is_notified_where_transactions_can_be_prepared(edition: Site) -> None:
    """A transaction that has notified cannot be prepared; an enqueue must not decide that."""
    assert edition.value("SELECT value FROM outbox_internal.relay_settings() WHERE name = 'notifies'") == "off"
    assert notifications_of_enqueues(edition) == ["last"]
    with edition.connect() as relay, edition.connect() as producer:
        relay.execute("SELECT pg_advisory_lock(1869968482, 0)")
        producer.autocommit = False
        producer.execute("SELECT outbox.enqueue('a', '3', 'E', '{}')")
        producer.execute("PREPARE TRANSACTION 'enqueued'")
        producer.autocommit = True
        producer.execute("COMMIT PREPARED 'enqueued'")


def test_a_relay_cannot_go_to_sleep_while_an_event_is_not_committed(edition: Site) -> None:
    with edition.connect() as producer, edition.connect() as relay:
        try_lock = "SELECT pg_try_advisory_lock(1869968482, 0)"
        with producer.transaction():
            producer.execute("SELECT outbox.enqueue('a', '1', 'E', '{}')")
            assert relay.execute(try_lock).fetchone() == (False,)
        assert relay.execute(try_lock).fetchone() == (True,)


# -------------------------------------------------------------------------------------------------
# Looking after the log
# -------------------------------------------------------------------------------------------------


def current(edition: Site) -> int:
    return edition.value("SELECT number FROM outbox.ring WHERE current")


def fill(edition: Site, kilobytes: int = 200) -> None:
    edition.execute(
        "SELECT outbox.enqueue('a', n::text, 'E', to_jsonb(repeat('x', 1000))) FROM generate_series(1, %s) AS n",
        (kilobytes,),
    )


def settle(edition: Site) -> None:
    edition.execute("UPDATE outbox.cursor SET done = pg_current_snapshot(), upto = NULL")


def test_the_log_moves_on_and_empties_segments(edition: Site) -> None:
    edition.execute("INSERT INTO outbox.setting VALUES ('segment_size', '64kB')")
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    assert edition.value("SELECT outbox_internal.maintain()") > 60
    fill(edition)
    assert edition.value("SELECT outbox_internal.maintain()") == 0
    assert current(edition) == 1
    fill(edition, 1)
    assert edition.execute("SELECT DISTINCT tableoid::regclass::text FROM outbox.event ORDER BY 1") == [
        ("outbox.event_0",),
        ("outbox.event_1",),
    ]
    assert edition.value("SELECT outbox_internal.maintain()") > 0
    assert edition.value("SELECT count(*) FROM outbox.event_0") == 200, "the destination has not settled them"
    settle(edition)
    edition.execute("DELETE FROM outbox.upkeep")
    assert edition.value("SELECT outbox_internal.maintain()") == 0
    assert edition.value("SELECT pg_relation_size('outbox.event_0')") == 0
    assert edition.value("SELECT count(*) FROM outbox.event_1") == 1


def test_a_segment_that_is_written_to_is_not_emptied(edition: Site) -> None:
    edition.execute("INSERT INTO outbox.setting VALUES ('segment_size', '64kB')")
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    fill(edition)
    with edition.connect() as producer, producer.transaction():
        producer.execute("SELECT outbox.enqueue('a', 'late', 'E', '{}')")
        edition.execute("SELECT outbox_internal.maintain()")
        settle(edition)
        assert edition.value("SELECT outbox_internal.empty_segment(0)") is False
    edition.execute("SELECT outbox.enqueue('a', 'later', 'E', '{}')")
    assert edition.value("SELECT count(*) FROM outbox.event WHERE aggregate_id = 'late'") == 1
    assert edition.value("SELECT outbox_internal.empty_segment(0)") is False, "the late event is not settled"
    settle(edition)
    assert edition.value("SELECT outbox_internal.empty_segment(0)") is True


def test_upkeep_does_not_wait_after_the_clock_was_set_back(edition: Site) -> None:
    edition.execute("SELECT outbox_internal.maintain()")
    edition.execute("UPDATE outbox.upkeep SET due = now() + '1 day 1 hour', set_at = now() + '1 day'")
    edition.execute(
        "UPDATE outbox.ring SET since = now() + '1 day'; UPDATE outbox.receipt_turn SET since = now() + '1 day'"
    )
    edition.execute("SELECT outbox_internal.maintain()")
    assert edition.execute("SELECT task FROM outbox.upkeep WHERE set_at > now()") == []
    assert edition.execute("SELECT number FROM outbox.ring WHERE since > now()") == []
    assert edition.execute("SELECT current FROM outbox.receipt_turn WHERE since > now()") == []


def test_one_relay_at_a_time_looks_after_the_log(edition: Site) -> None:
    with edition.connect() as other, other.transaction():
        other.execute("SELECT pg_advisory_xact_lock(1869968482, -2)")
        assert edition.value("SELECT outbox_internal.maintain()") == 5


def test_a_backfill_goes_on_with_the_upkeep(edition: Site) -> None:
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    edition.execute(
        "CREATE TABLE t (a int, b text, v int, PRIMARY KEY (a, b)); INSERT INTO t SELECT n % 7, n, n FROM generate_series(1, 25) AS n"
    )
    edition.execute("SELECT outbox.capture('t', condition => 'v > 5')")
    edition.execute("SELECT outbox.backfill('t', batch => 10)")
    assert edition.value("SELECT waiting_for FROM outbox.backfill_progress") == "outbox-relay"
    with edition.connect() as other:
        with other.transaction():
            other.execute("UPDATE t SET v = -1 WHERE v = 13")
            for _ in range(3):
                edition.execute("SELECT outbox_internal.maintain()")
            assert edition.value("SELECT locked_rows FROM outbox.backfill_progress") == 1
        for _ in range(3):
            edition.execute("SELECT outbox_internal.maintain()")
    assert edition.value("SELECT state FROM outbox.backfill_progress") == "finished"
    snapshots = "SELECT count(DISTINCT aggregate_id) FROM outbox.event WHERE event_type = 'TSnapshot' AND headers ->> 'snapshot' = 'true'"
    assert edition.value(snapshots) == 19


def test_a_backfill_that_starts_during_the_first_upkeep_does_not_wait_for_the_next(edition: Site) -> None:
    edition.execute("""INSERT INTO outbox.destination_config VALUES ('d', '{"url": "null:"}')""")
    edition.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); SELECT outbox.capture('t')")
    # It waits after its look for backfills.
    edition.execute("ALTER FUNCTION outbox_internal.maintain() SET lock_timeout = 0")
    edition.execute(
        "CREATE OR REPLACE FUNCTION outbox_internal.empty_when_due() RETURNS double precision LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN 3600; END'"
    )
    relay = OutboxRelay(edition.cluster, edition.database.name, user=edition.role)
    try:
        with edition.connect() as other, other.transaction():
            other.execute("SELECT pg_advisory_xact_lock(1)")
            relay.start()
            waiting = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE '%relay_maintain%' AND wait_event = 'advisory'"
            )
            wait_until(lambda: edition.database.value(waiting), what="the upkeep to wait for the lock")
            edition.execute("SELECT outbox.backfill('t')")
        # Without news it looks once a minute.
        state = "SELECT state FROM outbox.backfill_progress"
        wait_until(
            lambda: edition.value(state), lambda state: state == "finished", timeout=30, what="the backfill to finish"
        )
    finally:
        relay.close()


def test_a_snapshot_from_before_a_capture_or_view_must_be_renewed(edition: Site) -> None:
    edition.execute("CREATE TABLE t (id int PRIMARY KEY)")
    insert = "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'a', '1', 'E', 1, '')"
    with edition.connect() as application:
        application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for make, use in (
            ("SELECT outbox.capture('t')", "INSERT INTO t VALUES (1)"),
            ("SELECT outbox.create_outbox_view('app_outbox', 'seed')", insert),
        ):
            with (
                pytest.raises(errors.SerializationFailure, match="could not serialize access"),
                application.transaction(),
            ):
                application.execute("SELECT pg_current_xact_id()")
                edition.execute(make)
                application.execute(use)
            application.execute(use)
    assert edition.value("SELECT count(*) FROM outbox.event") == 2


def test_topics_of_producers_are_checked_and_go_with_the_role(edition: Site) -> None:
    role = edition.create_role("producer")
    with pytest.raises(errors.InvalidParameterValue):
        edition.execute("SELECT outbox.grant_produce(%s::regrole, '')", (role,))
    edition.execute("SELECT outbox.grant_produce(%s::regrole, 'video.*')", (role,))
    edition.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    edition.roles.remove(role)
    edition.execute("SELECT outbox_internal.maintain()")
    assert edition.value("SELECT count(*) FROM outbox.producer") == 0


def test_a_captured_table_may_be_altered(edition: Site) -> None:
    edition.execute("CREATE TABLE t (id int PRIMARY KEY, title text, gone int)")
    edition.execute("SELECT outbox.capture('t')")
    edition.execute("ALTER TABLE t RENAME title TO name; ALTER TABLE t RENAME id TO number; ALTER TABLE t DROP gone")
    insert = "INSERT INTO t VALUES (%s, 'x')"
    for number in (1, 2):
        edition.execute(insert, (number,))
        edition.execute("SELECT outbox_internal.maintain()")  # which saves what was followed
    payloads = edition.execute("SELECT convert_from(payload, 'UTF8') FROM outbox.event ORDER BY position")
    assert payloads == [('{"number":1,"name":"x"}',), ('{"number":2,"name":"x"}',)]
    assert edition.value("SELECT columns FROM outbox.captures") == ["number", "name"]


# -------------------------------------------------------------------------------------------------
# Tables of applications
# -------------------------------------------------------------------------------------------------


def test_an_outbox_table_is_adopted_by_its_owner(edition: Site) -> None:
    edition.execute(
        "CREATE TABLE outbox_event (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL, "
        "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)"
    )
    insert = (
        "INSERT INTO outbox_event (aggregatetype, aggregateid, type, payload) VALUES ('order', '1', %s, '{\"n\": 1}')"
    )
    edition.execute(insert, ("Placed",))
    edition.execute("SELECT * FROM outbox.adopt('outbox_event', 'debezium', condition => 'true')")
    edition.execute(
        "INSERT INTO outbox_event (id, aggregatetype, aggregateid, type) VALUES (gen_random_uuid(), 'order', '1', 'Paid')"
    )
    events = edition.execute(
        "SELECT topic, event_type, convert_from(payload, 'UTF8') FROM outbox.event ORDER BY position"
    )
    assert events == [("outbox.event.order", "Placed", '{"n": 1}'), ("outbox.event.order", "Paid", None)]
    with pytest.raises(errors.InsufficientPrivilege):
        edition.database.execute("SELECT * FROM outbox.adopt('outbox_event_adopted', 'debezium', condition => 'true')")


# -------------------------------------------------------------------------------------------------
# Dump and restore
# -------------------------------------------------------------------------------------------------


def test_a_dump_is_restored_into_another_cluster(edition: Site, make_cluster: MakeCluster) -> None:
    """Settled events stay settled. The others are delivered in order, with those enqueued since the restore."""
    # Events with a number of the other cluster's transactions since the restore are delivered again.
    edition.database.execute("DO $$ BEGIN WHILE pg_current_xact_id() < '20000' LOOP COMMIT; END LOOP; END $$")
    edition.execute(
        """INSERT INTO outbox.destination_config VALUES ('d', '{"url": "pull:", "lanes": "1"}'), ('r', '{"url": "null:"}')"""
    )
    with edition.connect() as late:
        late.execute("BEGIN; SELECT outbox.enqueue('a', 'k', 'Late', '{}')")
        edition.execute("SELECT outbox.enqueue('a', 'k', 'Settled', '{}')")
        (token, kind) = edition.execute("SELECT token, event_type FROM outbox.fetch('d')")[0]
        assert kind == "Settled"
        edition.execute("SELECT outbox.ack(%s)", (token,))
        late.execute("COMMIT")
    for number in range(20):  # transactions of their own
        edition.execute("SELECT outbox.enqueue('a', 'k', %s, '{}')", (f"Open {number}",))
    edition.execute("CREATE TABLE t (gone int, id int PRIMARY KEY, b text, c text)")
    edition.execute("ALTER TABLE t DROP gone")
    edition.execute("SELECT outbox.capture('t', columns => '{b}')")

    # Clusters of tests are copies and have one identifier.
    edition.execute("UPDATE outbox.home SET system_identifier = 1")
    edition.execute("UPDATE outbox.cursor SET system_identifier = 1")
    other = make_cluster()
    other.execute(f"CREATE ROLE {edition.role} LOGIN; ")
    other.execute(f"CREATE DATABASE other OWNER {edition.role}")
    programs = edition.installation.bin_directory
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", edition.conninfo(edition.role)], check=True, capture_output=True, text=True
    ).stdout
    subprocess.run(
        [str(programs / "psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-d", other.conninfo("other", "postgres")],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip
    with other.connect("other", edition.role) as owner:
        owner.execute("INSERT INTO t VALUES (1, 'b', 'c')")
        owner.execute("SELECT outbox.enqueue('a', 'k', 'Since', '{}')")
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="restored from another cluster"):
            owner.execute("SELECT * FROM outbox.fetch('d')")
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="restored from another cluster"):
            owner.execute("SELECT outbox.seek('d', 'end')")
        beat = "SELECT free FROM outbox_internal.relay_beat(gen_random_uuid(), 'r', '1', '1 min', false, '{}', '{}', '{}', '{}', false)"
        assert owner.execute(beat).fetchone() is not None
        take = "SELECT lease FROM outbox_internal.relay_take((SELECT id FROM outbox.relay), 2, false)"
        assert owner.execute(take).fetchone() == (None,)
        assert owner.execute("SELECT outbox_internal.maintain()").fetchone() == (0,)
        assert owner.execute(take).fetchone() != (None,)
        kinds = owner.execute(
            "SELECT event_type, convert_from(payload, 'UTF8') FROM outbox.fetch('d') ORDER BY position"
        ).fetchall()
    expected = ["Late", *(f"Open {number}" for number in range(20)), "TCreated", "Since"]
    assert [kind for kind, _ in kinds] == expected
    assert ("TCreated", '{"id":1,"b":"b"}') in kinds
