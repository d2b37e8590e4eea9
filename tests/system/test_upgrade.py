"""Upgrades with ALTER EXTENSION … UPDATE, and of pg_inbox without CREATE EXTENSION.

The versions before are those that scripts/freeze.sh has kept in tests/upgrade when they were released, and an
invented one: the present install scripts, with what an upgrade has to undo at their end. The library is the new
one, as for every database whose server has been restarted with a new package.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess

import psycopg
import pytest

from catalog import differences, objects_of
from cluster import REPOSITORY, Installation
from database import Database, NewDatabase
from receiver import Receiver
from waiting import wait_until

pytestmark = pytest.mark.extension

FROZEN = REPOSITORY / "tests/upgrade"
INVENTED = "0.0.0"  # sql/CMakeLists.txt makes the scripts that lead from it to the new version
(NEW,) = re.findall(r"project\(pg_outbox VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
RELEASED = {path.name.partition("--")[2].removesuffix(".sql.xz") for path in FROZEN.glob("*.sql.xz")} - {NEW}
VERSIONS = [INVENTED, *sorted(RELEASED, key=lambda version: [int(number) for number in version.split(".")])]

# How the invented version differs from the new one: a function and a view that are gone, a view with another column, and
# without a function that is part of a right, a trigger, an event trigger and a comment.
INVENTED_CHANGES = {
    "outbox": """
        CREATE FUNCTION outbox.gone() RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE VIEW outbox.gone_view AS SELECT outbox.gone();
        ALTER VIEW outbox.lease RENAME COLUMN destination TO other;
        DROP FUNCTION outbox.skip_shard;
        DROP TRIGGER refuse_truncate ON outbox.endpoint;
        DROP EVENT TRIGGER outbox_follow_shards;
        COMMENT ON VIEW outbox.status IS NULL;
    """,
    "inbox": """
        CREATE FUNCTION inbox.gone() RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE VIEW inbox.gone_view AS SELECT inbox.gone();
        ALTER VIEW inbox.lag RENAME COLUMN consumer TO other;
        DROP FUNCTION inbox.confirm_reset;
        DROP TRIGGER wake_keeper ON inbox.subscription;
        COMMENT ON VIEW inbox.status IS NULL;
    """,
}


def script_of(schema: str, version: str, installation: Installation) -> str:
    """Returns what CREATE EXTENSION runs for a version before."""
    if version != INVENTED:
        return lzma.decompress((FROZEN / f"pg_{schema}--{version}.sql.xz").read_bytes()).decode()
    script = (installation.build / f"sql/pg_{schema}--{NEW}.sql").read_text()
    assert script.count(f"SELECT '{NEW}';") == 1  # in the function version()
    return script.replace(f"SELECT '{NEW}';", f"SELECT '{INVENTED}';") + INVENTED_CHANGES[schema]


@pytest.fixture(scope="module", autouse=True)
def old_versions(installation: Installation) -> None:
    """Makes CREATE EXTENSION … VERSION find the versions before."""
    (control,) = installation.stage.rglob("pg_inbox.control")
    for schema in INVENTED_CHANGES:
        shutil.copy(installation.build / f"sql/pg_{schema}--{INVENTED}--{NEW}.sql", control.parent)
        for version in VERSIONS:
            script = control.parent / f"pg_{schema}--{version}.sql"
            script.write_text(script_of(schema, version, installation))
            script.chmod(0o644)


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest) -> str:
    """The version to be upgraded."""
    return request.param


# The library works with objects whose first two numbers are its own.
of_another_generation = pytest.mark.parametrize(
    "old", [version for version in VERSIONS if version.split(".")[:2] != NEW.split(".")[:2]]
)
by_the_script = pytest.mark.parametrize("old", [INVENTED])  # whatever the version before is


@pytest.mark.parametrize("schema", INVENTED_CHANGES)
def test_a_released_version_is_not_changed(installation: Installation, schema: str) -> None:
    frozen = FROZEN / f"pg_{schema}--{NEW}.sql.xz"
    if frozen.exists():
        script = (installation.build / f"sql/pg_{schema}--{NEW}.sql").read_text()
        assert lzma.decompress(frozen.read_bytes()).decode() == script, "give it a new version in CMakeLists.txt"


def dump_and_restore(source: Database, target: Database) -> None:
    programs = source.cluster.installation.bin_directory
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", source.cluster.conninfo(source.name)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    subprocess.run(
        [str(programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", target.cluster.conninfo(target.name)],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip


@pytest.mark.parametrize("schema", INVENTED_CHANGES)
def test_an_upgraded_database_has_the_objects_of_a_new_one(new_database: NewDatabase, schema: str, old: str) -> None:
    fresh, upgraded, restored = (new_database(extension=False) for _ in range(3))
    fresh.execute(f"CREATE EXTENSION pg_{schema}")
    upgraded.execute(f"CREATE EXTENSION pg_{schema} VERSION '{old}'")
    expected = objects_of(fresh, schema)
    assert differences(expected, objects_of(upgraded, schema)) != {}
    upgraded.execute(f"ALTER EXTENSION pg_{schema} UPDATE")
    assert differences(expected, objects_of(upgraded, schema)) == {}
    dump_and_restore(upgraded, restored)
    assert differences(expected, objects_of(restored, schema)) == {}


# -------------------------------------------------------------------------------------------------
# Data
# -------------------------------------------------------------------------------------------------

# The library of that version wrote an event like this. The present one refuses to write to objects of another version.
OLD_ENQUEUE = """
    INSERT INTO outbox.event_0 (position, xid, occurred_at, event_id, version, schema_version, topic, aggregate_type,
                                aggregate_id, event_type, ordering_key, content_type, payload)
    SELECT nextval('outbox.event_position'), pg_current_xact_id(), now(), gen_random_uuid(), n, 1, 'item', 'item',
           %s::text, 'changed', 'item:' || %s::text, 'application/json', '{}'
      FROM generate_series(1, %s) AS n
    RETURNING event_id::text
"""


def old_events(database: Database, key: str, count: int) -> list[str]:
    return [event for (event,) in database.execute(OLD_ENQUEUE, (key, key, count))]


def update(database: Database) -> None:
    database.execute("ALTER EXTENSION pg_outbox UPDATE")
    database.disconnect()  # and ends nothing else


@pytest.fixture
def outbox(new_database: NewDatabase, old: str) -> Database:
    """A database with the objects of the version before."""
    database = new_database(extension=False)
    database.execute(f"CREATE EXTENSION pg_outbox VERSION '{old}'")
    return database


def test_events_in_every_state_survive(outbox: Database, receiver: Receiver, http: None) -> None:
    outbox.add_destination("bus", receiver.url())
    refused = old_events(outbox, "refused", 2)
    retried = old_events(outbox, "retried", 1)
    fail = (
        "SELECT state FROM outbox.event AS e, outbox_internal.fail_events('bus', ARRAY[e.xid], ARRAY[e.position], "
        "ARRAY['no'], ARRAY[%s]) WHERE e.event_id = %s"
    )
    assert outbox.value(fail, (True, refused[0])) == "DEAD"
    outbox.value(fail, (False, retried[0]))
    assert outbox.execute("SELECT state, count(*) FROM outbox.delivery GROUP BY 1 ORDER BY 1") == [
        ("DEAD", 1), ("RETRY", 1),
    ]  # fmt: skip
    outbox.execute("UPDATE outbox.cursor SET done = pg_current_snapshot() WHERE destination = 'bus'")
    waiting = old_events(outbox, "waiting", 20)
    replay = outbox.value("SELECT outbox.replay('bus', event_ids => ARRAY[%s::uuid])", (refused[1],))

    update(outbox)
    every = {*refused[1:], *retried, *waiting}
    wait_until(lambda: every <= set(receiver.ids()), what="all events but the dead letter")
    arrived = receiver.ids()
    assert refused[0] not in arrived
    assert [event for event in arrived if event in waiting] == waiting
    assert arrived.count(refused[1]) >= 1
    wait_until(
        lambda: outbox.value("SELECT waiting FROM outbox.replay_progress WHERE id = %s", (replay,)) == 0,
        what="the replay to end",
    )  # fmt: skip
    assert outbox.execute("SELECT event_id::text FROM outbox.dead_letter") == [(refused[0],)]
    assert outbox.value("SELECT outbox.redrive('bus', %s::uuid)", (refused[0],)) == 1
    (new,) = outbox.enqueue("waiting", first=21)
    wait_until(lambda: {refused[0], new} <= set(receiver.ids()), what="the redriven event and a new one")
    outbox.wait_settled("bus")


def test_a_lease_of_a_fetcher_survives(outbox: Database) -> None:
    outbox.add_destination("files", "pull:")
    old_events(outbox, "a", 3)
    fetched = outbox.execute("SELECT token, event_id FROM outbox.fetch('files', 2, lease => '1 hour')")
    assert len(fetched) == 2
    update(outbox)
    assert outbox.value("SELECT outbox.ack(%s)", (fetched[0][0],)) == 2
    rest = outbox.execute("SELECT token, event_id FROM outbox.fetch('files')")
    assert len(rest) == 1 and rest[0][1] not in {event for _, event in fetched}
    assert outbox.value("SELECT outbox.ack(%s)", (rest[0][0],)) == 1


def test_a_captured_table_stays_captured(outbox: Database) -> None:
    outbox.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    outbox.execute("SELECT outbox.capture('item', aggregate_type => 'item')")
    with outbox.connect() as connection, connection.transaction():
        connection.execute("ALTER EXTENSION pg_outbox UPDATE")
        locks = connection.execute("SELECT FROM pg_locks WHERE relation = 'item'::regclass AND pid = pg_backend_pid()")
        assert locks.fetchall() == []
    before = outbox.value("SELECT count(*) FROM outbox.event")
    outbox.execute("INSERT INTO item VALUES (1, 'a'); UPDATE item SET name = 'b'; DELETE FROM item")
    assert outbox.value("SELECT count(*) FROM outbox.event") == before + 3
    outbox.execute("SELECT outbox.capture('item', aggregate_type => 'thing', replace => true)")
    outbox.execute("INSERT INTO item VALUES (2, 'a')")
    assert outbox.value("SELECT aggregate_type FROM outbox.event ORDER BY position DESC LIMIT 1") == "thing"
    assert outbox.value("SELECT outbox.uncapture('item')")


@pytest.mark.parametrize("layout", ["seed", "debezium"])
def test_an_outbox_view_still_takes_events(outbox: Database, layout: str) -> None:
    outbox.execute("SELECT outbox.create_outbox_view('app_outbox', %s, shows => 'all')", (layout,))
    before = outbox.execute(VIEW_COLUMNS)
    update(outbox)
    assert outbox.execute(VIEW_COLUMNS) == before
    names = (
        "id, aggregate_type, aggregate_id, event_type, version"
        if layout == "seed"
        else "id, aggregatetype, aggregateid, type"
    )
    more = ", 1" if layout == "seed" else ""
    outbox.execute(
        f"INSERT INTO app_outbox ({names}, payload) VALUES (gen_random_uuid(), 'item', 'a', 'changed'{more}, '{{}}')"
    )
    assert outbox.execute("SELECT aggregate_type, aggregate_id, event_type FROM outbox.event") == [
        ("item", "a", "changed")
    ]
    assert outbox.value("SELECT count(*) FROM app_outbox") == 1


VIEW_COLUMNS = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'app_outbox'::regclass ORDER BY attnum"


def test_rights_survive_and_grow(new_database: NewDatabase, old: str) -> None:
    """A role keeps single privileges, also of functions that are dropped and created, and gets what is new in its rights."""
    fresh, upgraded, restored = (new_database(extension=False) for _ in range(3))
    roles = ["upgrade_operator", "upgrade_mixed"]
    try:
        fresh.execute("".join(f"CREATE ROLE {role};" for role in roles))
        for database in (fresh, upgraded):
            version = "" if database is fresh else f" VERSION '{old}'"
            for schema in ("outbox", "inbox"):
                database.execute(f"CREATE EXTENSION pg_{schema}{version}")
            database.execute(
                """
                SELECT outbox.grant_operate('upgrade_operator'), outbox.grant_produce('upgrade_operator', 'item'),
                       inbox.grant_consume('upgrade_operator'), inbox.grant_monitor('upgrade_mixed');
                GRANT USAGE ON SCHEMA outbox TO upgrade_mixed;
                GRANT SELECT ON outbox.status TO upgrade_mixed WITH GRANT OPTION;
                GRANT SELECT (destination) ON outbox.dead_letter TO upgrade_mixed;
                GRANT EXECUTE ON FUNCTION outbox.grant_produce(regrole, text, outbox_internal.caller) TO upgrade_mixed;
                GRANT EXECUTE ON FUNCTION inbox.grant_send(regrole) TO upgrade_mixed;
                ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO upgrade_mixed;
                ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO upgrade_mixed;
                """
            )
        upgraded.execute("ALTER EXTENSION pg_outbox UPDATE; ALTER EXTENSION pg_inbox UPDATE")
        dump_and_restore(upgraded, restored)
        for schema in ("outbox", "inbox"):
            expected = objects_of(fresh, schema)
            assert differences(expected, objects_of(upgraded, schema)) == {}
            assert differences(expected, objects_of(restored, schema)) == {}
    finally:
        for database in (fresh, upgraded, restored):
            database.execute("DROP EXTENSION IF EXISTS pg_outbox; DROP EXTENSION IF EXISTS pg_inbox")
            database.execute(f"DROP OWNED BY {', '.join(roles)}")
        fresh.execute(f"DROP ROLE IF EXISTS {', '.join(roles)}")


# -------------------------------------------------------------------------------------------------
# Between the new library and the update
# -------------------------------------------------------------------------------------------------


@of_another_generation
def test_until_the_update_nothing_is_written_and_everything_says_why(outbox: Database, old: str) -> None:
    outbox.add_destination("d", "null:")
    old_events(outbox, "a", 3)
    outbox.execute("CREATE TABLE item (id int PRIMARY KEY)")
    outbox.execute("SELECT outbox.capture('item', aggregate_type => 'item')")
    outbox.cluster.wait_for_workers(outbox.name, "keeper")
    for statement in ("SELECT outbox.enqueue('item', 'a', 'changed', '{}')", "INSERT INTO item VALUES (1)"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"of version {old} here") as refused:
            outbox.execute(statement)
        assert refused.value.diag.message_hint == "Run ALTER EXTENSION pg_outbox UPDATE."
    assert outbox.cluster.workers_in(outbox.name) == ["keeper"]
    update(outbox)
    outbox.execute("INSERT INTO item VALUES (1)")
    outbox.wait_settled()


def test_an_old_version_can_be_dropped(outbox: Database) -> None:
    outbox.add_destination("d", "null:")
    old_events(outbox, "a", 3)
    outbox.execute("DROP EXTENSION pg_outbox CASCADE")
    assert outbox.value("SELECT count(*) FROM pg_class WHERE relnamespace::regnamespace::text ~ '^outbox'") == 0
    outbox.execute("CREATE EXTENSION pg_outbox")


# -------------------------------------------------------------------------------------------------
# Objects of users
# -------------------------------------------------------------------------------------------------


@by_the_script
def test_an_update_keeps_or_refuses_what_users_have_built_on_it(outbox: Database) -> None:
    outbox.execute("CREATE VIEW mine AS SELECT outbox.payload_as_jsonb('[1]')")
    with outbox.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE VIEW too AS SELECT other FROM outbox.lease")
        with pytest.raises(psycopg.Error, match="cannot change name of view column"):
            connection.execute("ALTER EXTENSION pg_outbox UPDATE")
    with outbox.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE VIEW uses AS SELECT outbox.gone()")
        with pytest.raises(
            psycopg.errors.DependentObjectsStillExist, match=r"does not have: function outbox\.gone\(\)"
        ):
            connection.execute("ALTER EXTENSION pg_outbox UPDATE")
    update(outbox)
    assert outbox.execute("SELECT * FROM mine") == [([1],)]


@by_the_script
def test_an_update_that_fails_changes_nothing(outbox: Database) -> None:
    before = objects_of(outbox, "outbox")
    outbox.execute("CREATE FUNCTION outbox.stranger() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    with pytest.raises(psycopg.Error, match="schema outbox has objects that do not belong to pg_outbox"):
        outbox.execute("ALTER EXTENSION pg_outbox UPDATE")
    outbox.execute("DROP FUNCTION outbox.stranger()")
    assert differences(before, objects_of(outbox, "outbox")) == {}


# -------------------------------------------------------------------------------------------------
# pg_inbox
# -------------------------------------------------------------------------------------------------


def create_old_inbox(database: Database) -> dict[str, int]:
    """Fills an inbox of the version before; returns the number of rows of each table."""
    database.execute("CREATE TABLE article (id bigint PRIMARY KEY, version bigint NOT NULL, title text)")
    for number in range(3):
        assert database.value("SELECT inbox.begin_event('app', %s)", (f"0190aaaa-0000-7000-8000-{number:012}",))
    database.execute(
        "INSERT INTO inbox.dead_message (consumer_id, seq, event_id, occurred_at, received_at, schema_version, source, topic, "
        "aggregate_type, aggregate_id, event_type, ordering_key, content_type, attempts, error, sqlstate, first_failed_at) "
        "SELECT id, nextval('inbox.message_seq_seq'), '0190aaaa-0000-7000-8000-0000000000dd', now(), now(), 1, '', 't', 'a', 'b', 'e', "
        "'k', 'application/json', 3, 'no', 'P0001', now() FROM inbox.consumer"
    )
    database.execute(
        "INSERT INTO inbox.waiting (consumer_id, event_id, ordering_key, attempts, error, sqlstate, next_attempt_at) "
        "SELECT id, '0190aaaa-0000-7000-8000-0000000000ee', 'w', 1, 'later', 'P0001', 'infinity' FROM inbox.consumer"
    )
    database.execute("SELECT inbox.remove('article', ARRAY['id'], 'version', '{\"id\": 7, \"version\": 5}')")
    database.execute("SELECT inbox.set_window('3 days')")
    return rows_of_inbox(database)


TABLES = ("consumer", "processed", "dead_message", "waiting", "tombstone", "setting", "operation", "key_lock")


def rows_of_inbox(database: Database) -> dict[str, int]:
    return {table: database.value(f"SELECT count(*) FROM inbox.{table}") for table in TABLES}


def check_inbox(database: Database, before: dict[str, int]) -> None:
    assert rows_of_inbox(database) == before
    assert all(before.values()), before
    again = "SELECT inbox.begin_event('app', '0190aaaa-0000-7000-8000-000000000001')"
    assert database.value(again) is False
    assert database.value("SELECT inbox.redrive('app', '0190aaaa-0000-7000-8000-0000000000dd'::uuid)") == 1
    assert database.execute("SELECT event_id::text FROM inbox.message") == [("0190aaaa-0000-7000-8000-0000000000dd",)]
    apply = """SELECT inbox.apply('article', ARRAY['id'], 'version', jsonb_build_object('id', 7, 'version', %s::int, 'title', 'x'))"""
    database.execute(apply, (4,))
    assert database.execute("SELECT FROM article") == []  # version 5 has been removed
    database.execute(apply, (6,))
    assert database.execute("SELECT version FROM article") == [(6,)]


def test_what_an_inbox_remembers_survives(new_database: NewDatabase, old: str) -> None:
    database = new_database(extension=False)
    database.execute(f"CREATE EXTENSION pg_inbox VERSION '{old}'")
    before = create_old_inbox(database)
    database.execute("ALTER EXTENSION pg_inbox UPDATE")
    check_inbox(database, before)


@of_another_generation
def test_messages_of_an_inbox_wait_for_the_update(new_database: NewDatabase, old: str) -> None:
    database = new_database(extension=False)
    began = database.cluster.log_size()
    database.execute(f"CREATE EXTENSION pg_inbox VERSION '{old}'")
    database.execute(
        "CREATE TABLE done (event_id uuid);"
        "CREATE FUNCTION handle(inbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO done VALUES ($1.event_id)';"
        "SELECT inbox.subscribe('app', '*', 'handle')"
    )
    database.execute(
        "INSERT INTO inbox.message (consumer_id, event_id, occurred_at, topic, aggregate_type, aggregate_id, event_type) "
        "SELECT c.id, gen_random_uuid(), now(), 't', 'a', n::text, 'e' FROM inbox.consumer AS c, generate_series(1, 50) AS n"
    )
    wait_until(
        lambda: database.cluster.log_since(began), lambda text: "messages of this database are not processed" in text,
        what="the server log to say why",
    )  # fmt: skip
    database.cluster.wait_for_workers(database.name, "keeper")
    assert "Run ALTER EXTENSION pg_inbox UPDATE." in database.cluster.log_since(began)
    assert database.value("SELECT count(*) FROM done") == 0
    database.execute("ALTER EXTENSION pg_inbox UPDATE")
    wait_until(lambda: database.value("SELECT count(*) FROM done") == 50, what="all messages to be processed")
    assert database.value("SELECT count(*) FROM inbox.message") == 0


def test_an_inbox_without_extension_is_upgraded(
    new_database: NewDatabase, installation: Installation, old: str
) -> None:
    database, fresh = new_database(extension=False), new_database(extension=False)
    script = script_of("inbox", old, installation)
    lines = [line for line in script.splitlines() if not line.startswith(("\\echo", "SELECT pg_extension_config_dump"))]
    statements = "\n".join(lines).replace(
        "PERFORM pg_extension_config_dump(format('inbox.processed_%s', bucket)::regclass, '');", "NULL;"
    )
    database.execute("CREATE SCHEMA inbox")
    database.execute(statements)  # at once, and so in one transaction
    before = create_old_inbox(database)
    fresh.execute("CREATE EXTENSION pg_inbox")
    program = (
        # The client has the scripts that lead from released versions; this program one more.
        ["tests/programs/install_scripts", database.cluster.conninfo(database.name)]
        if old == INVENTED
        else ["tools/outboxctl/outboxctl", "-d", database.cluster.conninfo(database.name), "inbox", "install"]
    )
    for _ in range(2):
        subprocess.run([installation.build / program[0], *program[1:]], check=True, capture_output=True)
    differing = differences(objects_of(fresh, "inbox"), objects_of(database, "inbox"))
    assert [name for name in differing if not name.startswith(("member ", "dumped ", "extension"))] == []
    check_inbox(database, before)


@by_the_script
def test_only_the_owner_updates_an_inbox(new_database: NewDatabase, old: str) -> None:
    """Otherwise functions of a superuser would be called by those of another role, and the reverse."""
    database = new_database(extension=False)
    database.execute("DROP ROLE IF EXISTS upgrade_owner")
    database.execute(f"CREATE ROLE upgrade_owner; GRANT CREATE ON DATABASE {database.name} TO upgrade_owner")
    try:
        database.execute(f"SET ROLE upgrade_owner; CREATE EXTENSION pg_inbox VERSION '{old}'; RESET ROLE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to role") as refused:
            database.execute("ALTER EXTENSION pg_inbox UPDATE")
        assert refused.value.diag.message_hint == "Update as this role: SET ROLE upgrade_owner."
        database.execute("SET ROLE upgrade_owner; ALTER EXTENSION pg_inbox UPDATE; RESET ROLE")
        assert database.execute(
            "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^inbox'"
        ) == [("upgrade_owner",)]
    finally:
        database.execute(
            "RESET ROLE; DROP EXTENSION IF EXISTS pg_inbox; DROP OWNED BY upgrade_owner; DROP ROLE upgrade_owner"
        )


# -------------------------------------------------------------------------------------------------
# Removing it
# -------------------------------------------------------------------------------------------------

EVERYTHING = [
    f"SELECT pg_describe_object('{catalog}'::regclass, oid, 0) FROM {catalog} WHERE oid >= 16384"
    for catalog in ("pg_namespace", "pg_class", "pg_proc", "pg_type", "pg_event_trigger", "pg_trigger", "pg_foreign_server",
                    "pg_foreign_data_wrapper", "pg_user_mapping", "pg_extension", "pg_default_acl")
]  # fmt: skip


def everything(database: Database) -> set[str]:
    return {name for query in EVERYTHING for (name,) in database.execute(query)}


@pytest.mark.parametrize("version", [*VERSIONS, None])
def test_what_is_dropped_leaves_nothing_behind(new_database: NewDatabase, version: str | None) -> None:
    database = new_database(extension=False)
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    before = everything(database)
    chosen = f" VERSION '{version}'" if version else ""
    database.execute(f"CREATE EXTENSION pg_outbox{chosen}; CREATE EXTENSION pg_inbox{chosen}")
    database.add_destination("d", "null:")
    database.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER d")
    database.execute("SELECT outbox.capture('item', aggregate_type => 'item')")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        database.execute("DROP EXTENSION pg_outbox")
    database.execute("DROP EXTENSION pg_outbox CASCADE; DROP EXTENSION pg_inbox")
    database.execute("DROP SCHEMA outbox, inbox")
    assert everything(database) == before
    database.execute("INSERT INTO item VALUES (1, 'a')")
    database.cluster.wait_for_workers(database.name)
