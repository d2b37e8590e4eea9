"""Captured tables: events for a consumer, in a dump, and with logical replication."""

from __future__ import annotations

import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors

from cluster import SQL_EDITION, Cluster
from conftest import MakeCluster
from database import Database, NewDatabase, create_database
from long_run import all_in_long_run
from test_inbox_projection import in_threads
from test_privileges import People, people, refused  # noqa: F401
from waiting import wait_until

EVENTS = """
    SELECT event_type, aggregate_id, convert_from(payload, 'UTF8')::jsonb
      FROM outbox.event ORDER BY position
"""

# -------------------------------------------------------------------------------------------------
# A consumer's table
# -------------------------------------------------------------------------------------------------

# Source of versions: a column of the table, or the positions of the events.
WAYS = {
    "version": "version => 'version'",
    "position": "exclude => '{version}'",
    "changed": "version => 'version', on_update => 'changed'",
    "condition": "version => 'version', condition => 'published', on_update => 'changed'",
    "condition and position": "exclude => '{version}', condition => 'published', on_delete => 'old'",
    "partitions": "exclude => '{version}'",
}

TABLE = (
    "CREATE TABLE item (id int PRIMARY KEY, title text, published boolean NOT NULL, version bigint NOT NULL DEFAULT 1)"
)

PROJECTION = """
    CREATE EXTENSION pg_inbox;
    CREATE TABLE item (id int PRIMARY KEY, title text, published boolean, version bigint NOT NULL);
    CREATE FUNCTION project(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        data jsonb := inbox.json(event) || jsonb_build_object('version', event.version);
    BEGIN
        IF event.event_type = 'ItemDeleted' THEN
            PERFORM inbox.remove('item', ARRAY['id'], 'version', data);
        ELSE
            PERFORM inbox.apply('item', ARRAY['id'], 'version', data);
        END IF;
    END $$;
    SELECT inbox.subscribe('c', '*', 'project');
"""


def change_at_random(connection: psycopg.Connection, dice: random.Random, way: str) -> None:
    """One transaction. With a version column, an id that was deleted does not come again."""
    keys = 30
    key = dice.randrange(keys)
    reused = "position" in way or way == "partitions"
    new_key = "%(key)s" if reused else "nextval('fresh')"
    statements = (
        f"INSERT INTO item VALUES ({new_key}, 'inserted', %(flag)s) ON CONFLICT (id) DO NOTHING",
        f"INSERT INTO item VALUES ({new_key}, 'inserted', %(flag)s) ON CONFLICT (id) DO UPDATE SET title = 'conflict'",
        "UPDATE item SET title = %(title)s, version = version + 1 WHERE id %% 30 = %(key)s",
        "UPDATE item SET published = NOT published, version = version + 1 WHERE id %% 30 = %(key)s",
        f"UPDATE item SET id = {'id + 1' if reused else new_key}, version = version + 1 WHERE id = %(key)s",
        "DELETE FROM item WHERE id %% 30 = %(key)s",
    )
    for _ in range(dice.randint(1, 3)):
        connection.execute(
            dice.choice(statements),
            {"key": key, "flag": dice.random() < 0.7, "title": str(dice.random())},
        )
    if dice.random() < 0.2:
        connection.rollback()
    else:
        connection.commit()


@pytest.mark.extension("a relay there needs a password to the consumer's database")
@pytest.mark.parametrize("way", all_in_long_run(WAYS, short=["condition"]))
def test_a_consumer_ends_equal_to_the_table(database: Database, new_database: NewDatabase, way: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    reader = new_database(extension=False)
    reader.execute(PROJECTION)
    database.add_destination("d", reader.inbox_url(), consumer="c")
    if way == "partitions":
        database.execute(TABLE + " PARTITION BY HASH (id)")
        for number in range(3):
            database.execute(
                f"CREATE TABLE item_{number} PARTITION OF item FOR VALUES WITH (modulus 3, remainder {number})"
            )
    else:
        database.execute(TABLE)
    database.execute("CREATE SEQUENCE fresh START 100")
    database.execute(f"SELECT outbox.capture('item', {WAYS[way]})")

    def work(session: int) -> None:
        dice = random.Random(seed + session)
        with database.cluster.connect(database.name) as connection:
            connection.autocommit = False
            for _ in range(150):
                try:
                    change_at_random(connection, dice, way)
                except (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure):
                    connection.rollback()

    in_threads(4, work)
    condition = "published" if "condition" in way else "true"
    expected = database.execute(f"SELECT id, title, published FROM item WHERE {condition} ORDER BY id")
    assert expected, "nothing is left to compare; the seed is a bad one"
    wait_until(
        lambda: reader.execute("SELECT id, title, published FROM item ORDER BY id"),
        lambda seen: seen == expected, what=f"the projection to equal the table (seed {seed})",
    )  # fmt: skip
    database.drop_destination("d")


# -------------------------------------------------------------------------------------------------
# Rights
# -------------------------------------------------------------------------------------------------


def test_owners_capture_their_tables_and_nobody_elses(people: People) -> None:  # noqa: F811
    owner, other = people.with_right("capturer"), people.add("other")
    people.database.execute("SELECT outbox.grant_capture(%s)", (other,))
    people.database.execute(f"GRANT CREATE ON SCHEMA public TO {owner}; GRANT USAGE ON SCHEMA public TO {other}")
    with people.connect(owner) as mine, people.connect(other) as theirs:
        mine.execute("CREATE TABLE item (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        mine.execute("CREATE TABLE item_1 PARTITION OF item FOR VALUES FROM (1) TO (10)")
        mine.execute(f"GRANT ALL ON item TO {other}")
        mine.execute("SELECT outbox.capture('item', condition => 'n > 0', on_truncate => 'announce', fire => 'always')")
        for statement in (
            "SELECT outbox.capture('item', replace => true)",
            "SELECT outbox.uncapture('item')",
            "SELECT outbox_internal.forget_captured('item')",
            "SELECT outbox_internal.save_captured(c) FROM (SELECT ('item'::regclass, 'a', '{id}', '{id}', NULL, 't', NULL, NULL,"
            " NULL, NULL, '{}', 'full', false, 'key', false, 'a', 'a', 'a', 'a', 'a', 'refuse', 'origin', '{}', '{}',"
            " 'me', now())::outbox.captured AS c) AS c",
        ):
            with refused("must be owner"):
                theirs.execute(statement)
        for statement in ("TABLE outbox.captured", "DELETE FROM outbox.captured", "TABLE outbox.event"):
            with refused():
                mine.execute(statement)
        # A role that changes rows or adds a partition needs no right in the extension.
        people.database.execute(f"SELECT outbox.revoke_capture('{other}'), outbox.revoke_capture('{owner}')")
        mine.execute("CREATE TABLE item_2 PARTITION OF item FOR VALUES FROM (10) TO (20)")
        theirs.execute("INSERT INTO item VALUES (1, 1), (2, 0), (11, 1)")
        mine.execute("ALTER TABLE item RENAME n TO m")
        theirs.execute("UPDATE item SET m = m + 1")
    assert [row[:2] for row in people.database.execute(EVENTS)] == [
        ("ItemCreated", "1"), ("ItemCreated", "11"), ("ItemUpdated", "1"), ("ItemCreated", "2"), ("ItemUpdated", "11"),
    ]  # fmt: skip


def test_no_code_of_an_owner_runs_with_other_rights(people: People) -> None:  # noqa: F811
    owner = people.with_right("capturer")
    people.database.execute(f"CREATE SCHEMA own AUTHORIZATION {owner}")
    says = f"BEGIN IF current_user <> '{owner}' THEN RAISE EXCEPTION 'ran as %', current_user; END IF; RETURN true; END"
    with people.connect(owner) as mine:
        mine.execute("CREATE TABLE own.item (id int PRIMARY KEY)")
        for arguments in ("int", "regclass, regclass", "oid, oid"):
            mine.execute(
                f"CREATE FUNCTION own.told({arguments}) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $${says}$$"
            )
        for type in ("regclass", "oid"):
            mine.execute(f"CREATE OPERATOR own.= (LEFTARG = {type}, RIGHTARG = {type}, FUNCTION = own.told)")
        # IMMUTABLE functions run when an expression is planned, also by the event trigger of ALTER TABLE.
        mine.execute("SELECT outbox.capture('own.item', condition => 'own.told(1)')")
        mine.execute("ALTER TABLE own.item ADD title text")
        # The statements that write outbox.captured find no operators of the role.
        mine.execute("SET search_path = own, pg_catalog")
        mine.execute("SELECT outbox_internal.forget_captured('item')")


def test_an_owner_is_limited_to_its_topics(people: People) -> None:  # noqa: F811
    owner, writer = people.with_right("capturer"), people.add("writer")
    people.database.execute("SELECT outbox.grant_produce(%s, 'item.*')", (owner,))
    people.database.execute("SELECT outbox.grant_produce(%s, 'other')", (writer,))
    people.database.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}, {writer}")
    with people.connect(owner) as mine, people.connect(writer) as theirs:
        mine.execute("CREATE TABLE item (id int PRIMARY KEY, topic text)")
        mine.execute(f"GRANT INSERT ON item TO {writer}")
        with refused("permission denied for topic"):
            mine.execute("SELECT outbox.capture('item', topic => 'other')")
        mine.execute("SELECT outbox.capture('item', topic_column => 'topic')")
        theirs.execute("INSERT INTO item VALUES (1, NULL), (2, 'item.mine')")
        with refused("permission denied for topic"):
            theirs.execute("INSERT INTO item VALUES (3, 'other')")


# -------------------------------------------------------------------------------------------------
# Dumps and replication
# -------------------------------------------------------------------------------------------------


def dump_and_restore(cluster: Cluster, source: str, target: str, *only: str) -> None:
    programs = cluster.installation.bin_directory
    connect = ["-h", str(cluster.directory), "-p", str(cluster.port), "-U", "postgres"]
    dump = subprocess.run([programs / "pg_dump", *connect, *only, source], check=True, capture_output=True).stdout
    command = [programs / "psql", *connect, "-q", "-v", "ON_ERROR_STOP=1", "-d", target]
    result = subprocess.run(command, input=dump, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()


def test_triggers_that_were_restored_alone_can_be_removed(database: Database, new_database: NewDatabase) -> None:
    """As by pg_dump -t. They refuse all changes, because nobody knows any more what they capture."""
    database.execute("""
        CREATE TABLE day (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE january PARTITION OF day FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
    """)
    database.execute("SELECT outbox.capture('day')")
    assert database.value("SELECT outbox.uncapture('january')") is False, "it is a part of a captured table"
    copy = new_database()
    dump_and_restore(database.cluster, database.name, copy.name, "-t", "day", "-t", "january")
    insert = "INSERT INTO day VALUES (1, '2024-01-05')"
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not captured"):
        copy.execute(insert)
    assert copy.value("SELECT outbox.uncapture('january')") is True
    assert copy.value("SELECT outbox.uncapture('day')") is True
    assert copy.value("SELECT outbox.uncapture('day')") is False
    copy.execute(insert)
    assert copy.value("SELECT count(*) FROM outbox.event") == 0
    assert database.value("SELECT count(*) FROM outbox.captures WHERE enabled") == 1


def test_captures_go_with_a_dump(database: Database, new_database: NewDatabase) -> None:
    database.execute("""
        CREATE TABLE video (gone int, id int PRIMARY KEY, gone_too text, title text, secret text, n int);
        ALTER TABLE video DROP gone, DROP gone_too;
        CREATE TABLE day (id int, day date, title text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE january PARTITION OF day FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
        CREATE TABLE animal (id int PRIMARY KEY, name text, alive boolean DEFAULT true);
        CREATE TABLE cat () INHERITS (animal);
        CREATE TABLE owner (id int PRIMARY KEY, animal int REFERENCES animal);
    """)
    database.execute(
        "SELECT outbox.capture('video', exclude => '{secret}', condition => 'n > 0', headers => '{\"n\": \"n\"}')"
    )
    database.execute(
        "SELECT outbox.capture('day', aggregate_id => '{id}', on_truncate => 'announce', fire => 'always')"
    )
    database.execute("SELECT outbox.capture('animal', condition => 'alive', fire => 'always')")
    database.execute("INSERT INTO video VALUES (1, 'a', 'secret', 5); INSERT INTO cat VALUES (1, 'cat')")
    copy = new_database(extension=False)
    dump_and_restore(database.cluster, database.name, copy.name)

    captures = "SELECT to_jsonb(c) FROM outbox.captures AS c ORDER BY captured::text"
    triggers = """
        SELECT tgrelid::regclass::text, tgname, tgenabled::text, tgtype FROM pg_trigger WHERE tgname LIKE '00\\_outbox%' ORDER BY 1, 2
    """
    assert copy.execute(captures) == database.execute(captures)
    assert copy.execute(triggers) == database.execute(triggers)
    assert copy.execute(EVENTS) == database.execute(EVENTS), "a restored row is no change of it"
    copy.execute("TRUNCATE outbox.event")
    if SQL_EDITION:  # by numbers that columns have here
        with pytest.raises(errors.ObjectNotInPrerequisiteState), copy.connection.transaction():
            copy.execute("ALTER TABLE video RENAME secret TO public; INSERT INTO video VALUES (2, 'b', 'secret', 5)")
        copy.keep()
        known = "SELECT bool_and(relation = ANY (known_members)) FROM outbox.captured"
        wait_until(lambda: copy.value(known), what="a relay to see the restored captures")
    copy.execute("""
        ALTER TABLE video RENAME title TO name;
        ALTER TABLE video RENAME secret TO title;
        INSERT INTO video VALUES (2, 'b', 'secret', 5), (3, 'c', 'secret', 0);
        CREATE TABLE february PARTITION OF day FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
        INSERT INTO day VALUES (1, '2024-02-05');
        UPDATE animal SET alive = false;
    """)
    assert copy.execute(EVENTS) == [
        ("VideoCreated", "2", {"id": 2, "name": "b", "n": 5}),
        ("DayCreated", "1", {"id": 1, "day": "2024-02-05", "title": None}),
        ("AnimalDeleted", "1", {"id": 1}),
    ]


def test_applied_by_replication_only_if_asked_for(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"wal_level": "logical"})
    cluster.execute("CREATE DATABASE publisher")
    publisher = Database(cluster, "publisher")
    subscriber = create_database(cluster, "subscriber")
    for database in (publisher, subscriber):
        for table in ("quiet", "always", "replica"):
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, title text, wide text)")
            database.execute(f"ALTER TABLE {table} ALTER wide SET STORAGE EXTERNAL")
    subscriber.execute("SELECT outbox.capture('quiet')")
    subscriber.execute("SELECT outbox.capture('always', fire => 'always', on_update => 'changed')")
    subscriber.execute("SELECT outbox.capture('replica', fire => 'replica')")
    publisher.execute("CREATE PUBLICATION p FOR ALL TABLES")
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    subscriber.execute(
        f"CREATE SUBSCRIPTION s CONNECTION '{cluster.conninfo('publisher').split(' connect_timeout')[0]}' "
        "PUBLICATION p WITH (create_slot = false, copy_data = false)"
    )
    for table in ("quiet", "always", "replica"):
        publisher.execute(f"INSERT INTO {table} VALUES (1, 'a', repeat('wide', 5000))")
        publisher.execute(f"UPDATE {table} SET title = 'b'")
        publisher.execute(f"DELETE FROM {table}")
    publisher.execute("INSERT INTO quiet VALUES (2)")
    wait_until(
        lambda: subscriber.execute("SELECT id FROM quiet"), lambda rows: rows == [(2,)],
        what="the subscription to apply what was published",
    )  # fmt: skip
    wide = "wide" * 5000
    assert subscriber.execute(EVENTS) == [
        ("AlwaysCreated", "1", {"id": 1, "title": "a", "wide": wide}),
        ("AlwaysUpdated", "1", {"id": 1, "title": "b"}),
        ("AlwaysDeleted", "1", {"id": 1}),
        ("ReplicaCreated", "1", {"id": 1, "title": "a", "wide": wide}),
        ("ReplicaUpdated", "1", {"id": 1, "title": "b", "wide": wide}),
        ("ReplicaDeleted", "1", {"id": 1}),
    ]
    subscriber.execute("INSERT INTO quiet VALUES (3)")
    assert subscriber.execute(EVENTS)[-1] == ("QuietCreated", "3", {"id": 3, "title": None, "wide": None})
    subscriber.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")


def test_a_capture_that_ends_and_one_that_is_made_anew_do_not_deadlock(database: Database) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY); SELECT outbox.capture('item')")
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'item'::regclass AND NOT granted"
    with database.connect() as other, ThreadPoolExecutor() as threads:
        other.execute("BEGIN; LOCK TABLE item IN SHARE ROW EXCLUSIVE MODE")
        ends = threads.submit(lambda: database.connect().execute("SELECT outbox.uncapture('item')").fetchone())
        wait_until(lambda: database.value(waiting), what="the end of the capture to wait")
        other.execute("SELECT outbox.capture('item', replace => true)")
        other.execute("COMMIT")
        assert ends.result() == (True,)
    assert database.execute("SELECT captured FROM outbox.captures") == []
