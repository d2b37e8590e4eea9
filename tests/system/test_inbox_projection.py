"""Projections, the deduplication window and waits, where several sessions are at work."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Callable
from typing import NamedTuple

import psycopg
import pytest

from cluster import Cluster
from conftest import NewDatabase
from database import Database
from test_inbox import Reader, receive
from waiting import SECOND, Stopwatch, wait_until

# An id of version 7 that was made some time ago.
OLD_ID = """
    SELECT (lpad(to_hex((extract(epoch FROM now() - %s::interval) * 1000)::bigint), 12, '0')
            || '7000800000000000000' || %s::text)::uuid
"""


@pytest.fixture
def inbox(shared_cluster: Cluster, new_database: NewDatabase) -> Reader:
    inbox = Reader(shared_cluster, new_database(extension=False).name)
    inbox.create_extension()
    return inbox


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# -------------------------------------------------------------------------------------------------
# Projections
# -------------------------------------------------------------------------------------------------


def test_whatever_the_order_the_newest_version_wins(inbox: Reader) -> None:
    """Few versions of many keys, each by all sessions at about the same time; every second is a removal."""
    inbox.execute("CREATE TABLE item (id int PRIMARY KEY, version int)")
    keys, versions, sessions = range(400), (1, 2), 4
    removals = {(key, version): random.random() < 0.5 for key in keys for version in versions}
    together = threading.Barrier(sessions)

    def work(session: int) -> None:
        with inbox.connect() as connection:
            connection.autocommit = False
            for key in keys:
                version = versions[session % len(versions)]
                function = "remove" if removals[key, version] else "apply"
                together.wait(60)
                connection.execute(
                    f"SELECT inbox.{function}('item', ARRAY['id'], 'version', "
                    "jsonb_build_object('id', %s::int, 'version', %s::int))",
                    (key, version),
                )
                connection.commit()

    in_threads(sessions, work)
    expected = {key: versions[-1] for key in keys if not removals[key, versions[-1]]}
    assert dict(inbox.execute("SELECT id, version FROM item")) == expected


def test_a_handler_applies_whatever_isolation_the_database_prefers(inbox: Reader) -> None:
    inbox.execute(
        "CREATE TABLE item (k text PRIMARY KEY, version int);"
        "CREATE FUNCTION project(event inbox.message) RETURNS void LANGUAGE sql AS $$"
        " SELECT inbox.apply('item', ARRAY['k'], 'version', jsonb_build_object('k', event.ordering_key, 'version', event.version)) $$"
    )
    inbox.execute(f"ALTER DATABASE {inbox.name} SET default_transaction_isolation = 'repeatable read'")
    with inbox.connect() as connection:
        connection.execute("SET default_transaction_isolation = 'read committed'")
        connection.execute("SELECT inbox.subscribe('c', '*', 'project')")
    receive(inbox, 7)
    wait_until(lambda: inbox.execute("TABLE item"), lambda rows: rows == [("k", 7)], what="the row")


# -------------------------------------------------------------------------------------------------
# Keys
# -------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A column, the same key in two forms, and another key. `made_of` is what the column needs."""

    column: str
    key: object
    same: object
    other: object
    made_of: str = ""


EXTENSION = "CREATE EXTENSION {};"
CASELESS = "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
# Two keys are the same if their column says so. A type of keys is one line.
KEYS = [
    Key("integer", 1, "1", 2),
    Key("bigint", 1, "1", 4294967296),  # has the same hash
    Key("numeric", 1, "1.00", 1.01),
    Key("numeric(6, 2)", 1, "1.001", 1.01),
    Key("real", 0.1, "0.100000001", 0.10000002),
    Key("double precision", 0, "-0", 5e-324),
    Key("double precision", 0.1, "0.10000000000000001", 0.10000000000000002),
    Key("boolean", True, "yes", False),
    Key("text", "a", "a", "A"),
    Key('text COLLATE "C"', "a", "a", "A"),
    Key("text COLLATE caseless", "ann@x.org", "ANN@x.org", "bob@x.org", CASELESS),
    Key("varchar(20)", "a", "a", "a "),
    Key("char(5)", "a", "a   ", "b"),
    Key('"char"', "a", "a", "b"),
    Key("name", "a", "a", "b"),
    Key("uuid", "01900000-0000-7000-8000-00000000000a", "0190000000007000800000000000000A",
        "01900000-0000-7000-8000-00000000000b"),
    Key("bytea", "\\x6162", "ab", "\\x6163"),
    Key("bit(4)", "1010", "xA", "1011"),
    Key("bit varying", "10", "10", "100"),
    Key("date", "2026-02-01", "20260201", "2026-01-02"),
    Key("time", "12:00", "12:00:00.000", "12:00:01"),
    Key("timestamp", "2026-02-01 12:00", "2026-02-01T12:00:00", "2026-01-02 12:00"),
    Key("timestamptz", "2026-02-01 12:00+00", "2026-02-01 13:00+01", "2026-02-01 12:00+01"),
    Key("timestamptz[]", ["2026-02-01 12:00+00"], ["2026-02-01 13:00+01"], ["2026-02-01 12:00+01"]),
    Key("tstzrange", "[2026-02-01 12:00+00,)", "[2026-02-01 13:00+01,)", "[2026-01-02 12:00+00,)"),
    Key("daterange", "[2026-02-01,2026-02-02]", "[2026-02-01,2026-02-03)", "[2026-01-02,2026-01-03)"),
    Key("interval", "1 day", "24 hours", "25 hours"),
    Key("interval", "-1 day +2 hours", "-22 hours", "-1 day -2 hours"),
    Key("inet", "10.0.0.1", "10.0.0.1/32", "10.0.0.1/24"),
    Key("jsonb", {"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {"a": 1}),
    Key("text[]", ["a", "b"], '{a,"b"}', ["a,b"]),
    Key("int4range", "[1,2]", "[1,3)", "[1,3]"),
    Key("money", "1.5", "1.50", "1.51"),
    Key("citext", "ann@x.org", "Ann@X.org", "bob@x.org", EXTENSION.format("citext")),
    Key("email", "ann@x.org", "Ann@X.org", "bob@x.org", EXTENSION.format("citext") + "CREATE DOMAIN email AS citext NOT NULL"),
    Key("citext[]", ["ann@x.org"], ["Ann@X.org"], ["bob@x.org"], EXTENSION.format("citext")),
    Key("hstore", '"a"=>"1"', "a=>1", "a=>2", EXTENSION.format("hstore")),
    Key("cube", "(1,2)", "1,2", "1,3", EXTENSION.format("cube")),
    Key("ltree", "a.b", "a.b", "a.c", EXTENSION.format("ltree")),
    Key("isbn13", "978-0-393-04002-9", "9780393040029", "978-0-11-000222-4", EXTENSION.format("isn")),
    Key("mood", "sad", "sad", "happy", "CREATE TYPE mood AS ENUM ('sad', 'happy')"),
    Key("mood[]", ["sad"], "{sad}", ["happy"], "CREATE TYPE mood AS ENUM ('sad', 'happy')"),
    Key("place", {"x": 1, "y": 1.0}, "(1,1.00)", {"x": 1, "y": 2}, "CREATE TYPE place AS (x int, y numeric)"),
    Key('"Sku"', 7, "07", 8, """CREATE DOMAIN "Sku" AS int CHECK (VALUE > 0)"""),
    Key("bigint GENERATED ALWAYS AS IDENTITY", 1, "1", 2),
    Key("bigint GENERATED BY DEFAULT AS IDENTITY", 1, "1", 2),
]  # fmt: skip

# Settings about the text of a value must not matter.
ONE_SESSION = "SET timezone = 'UTC'"
ANOTHER_SESSION = """
    SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET bytea_output = 'escape';
    SET extra_float_digits = -3
"""


class Projection:
    """A table whose key is of one type, and the sessions of two consumers."""

    def __init__(self, inbox: Reader, column: str, made_of: str) -> None:
        inbox.execute(made_of or "SELECT")
        inbox.execute(f"CREATE TABLE item (k {column} PRIMARY KEY, version int, note text)")
        self.inbox = inbox
        self.one, self.another = inbox.connect(), inbox.connect()
        self.one.execute(ONE_SESSION)
        self.another.execute(ANOTHER_SESSION)

    def call(self, function: str, key: object, version: int, session: psycopg.Connection) -> bool:
        data = json.dumps({"k": key, "version": version})
        if function == "wait_for":
            call = "SELECT inbox.wait_for('item', jsonb_build_object('k', %s::jsonb -> 'k'), %s, timeout => '0')"
            row = session.execute(call, (data, version)).fetchone()
        else:
            row = session.execute(f"SELECT inbox.{function}('item', ARRAY['k'], 'version', %s)", (data,)).fetchone()  # type: ignore[arg-type]
        assert row
        return row[0]

    def versions(self) -> list[int]:
        return [version for (version,) in self.inbox.execute("SELECT version FROM item ORDER BY 1")]


@pytest.mark.parametrize("key", KEYS, ids=[f"{key.column} {key.key}" for key in KEYS])
def test_a_key_is_the_same_when_its_column_says_so(inbox: Reader, key: Key) -> None:
    item = Projection(inbox, key.column, key.made_of)
    one, another = item.one, item.another
    assert item.call("apply", key.key, 1, one) and item.call("apply", key.same, 2, another)
    assert not item.call("apply", key.key, 1, one)
    assert item.versions() == [2]
    assert item.call("wait_for", key.same, 2, one) and not item.call("wait_for", key.same, 3, one)

    assert item.call("remove", key.same, 4, one)
    assert item.versions() == []
    assert not item.call("apply", key.key, 3, another) and not item.call("apply", key.same, 3, another)
    assert not item.call("remove", key.key, 4, another)
    assert item.call("wait_for", key.key, 4, another) and not item.call("wait_for", key.key, 5, another)
    assert item.call("apply", key.other, 3, another)
    assert item.versions() == [3]
    assert item.call("remove", key.key, 5, another)
    assert not item.call("apply", key.same, 4, one)
    assert item.call("apply", key.same, 6, one) and item.versions() == [3, 6]
    assert item.inbox.value("SELECT count(*) FROM inbox.tombstone") == 1


def test_an_hstore_is_projected_through_its_text(inbox: Reader) -> None:
    """The expression is that of docs/inbox.md: a captured row has an object where hstore reads text."""
    inbox.execute("CREATE EXTENSION hstore; CREATE TABLE item (id int PRIMARY KEY, version int, tags hstore)")
    inbox.execute(
        "CREATE TABLE captured AS SELECT to_jsonb(r) AS data FROM (SELECT 1 AS id, 1 AS version, 'k=>v, n=>NULL'::hstore AS tags) r"
    )
    apply = "SELECT inbox.apply('item', '{id}', 'version', %s) FROM captured"
    with pytest.raises(psycopg.Error, match="(?i)syntax error"):
        inbox.execute(apply % "data")
    documented = """jsonb_set(data, '{tags}', to_jsonb((SELECT hstore(array_agg(key), array_agg(value)) FROM jsonb_each_text(data -> 'tags'))::text))"""
    assert inbox.value(apply % documented)
    assert inbox.value("SELECT tags = 'k=>v, n=>NULL'::hstore FROM item")


def test_removals_are_remembered_after_a_dump_and_restore(inbox: Reader, new_database: NewDatabase) -> None:
    """OIDs are others then, and hashes of enums are made of them."""
    programs = inbox.cluster.installation.bin_directory
    inbox.execute(
        "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'happy');"
        "CREATE TABLE item (who citext, mood mood, since timestamptz, version int, PRIMARY KEY (who, mood, since))"
    )
    data = '{"who": "Ann", "mood": "%s", "since": "2026-02-01 12:00+00", "version": %s}'
    keys = "ARRAY['who', 'mood', 'since']"
    for mood in ("sad", "happy"):
        assert inbox.value(f"SELECT inbox.remove('item', {keys}, 'version', %s)", (data % (mood, 4),))
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", inbox.cluster.conninfo(inbox.name)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    restored = new_database(extension=False)
    restored.execute("CREATE TYPE other AS ENUM ('sad', 'happy')")
    subprocess.run(
        [str(programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", inbox.cluster.conninfo(restored.name)],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip
    for mood in ("sad", "happy"):
        assert not restored.value(f"SELECT inbox.apply('item', {keys}, 'version', %s)", (data % (mood, 3),))
        assert restored.value(f"SELECT inbox.apply('item', {keys}, 'version', %s)", (data % (mood, 5),))


@pytest.mark.parametrize("type_name, older, newer", [
    ("interval", "-1 day +2 hours", "-20 hours"),
    ("citext", "a", "B"),
    ("text COLLATE caseless", "a", "B"),
    ("mood", "sad", "happy"),
    ("timestamptz", "2026-02-01 12:00+00", "2026-02-01 12:30+00"),
    ("double precision", "0.1", "0.10000000000000002"),
])  # fmt: skip
def test_a_version_is_compared_as_its_column_says(inbox: Reader, type_name: str, older: str, newer: str) -> None:
    inbox.execute("CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'happy');" + CASELESS)
    inbox.execute(f"CREATE TABLE item (k int PRIMARY KEY, version {type_name})")
    with inbox.connect() as one, inbox.connect() as another:
        one.execute(ONE_SESSION)
        another.execute(ANOTHER_SESSION)

        def call(function: str, version: str, session: psycopg.Connection) -> bool:
            data = json.dumps({"k": 1, "version": version})
            return session.execute(f"SELECT inbox.{function}('item', ARRAY['k'], 'version', %s)", (data,)).fetchone()[0]  # type: ignore

        assert call("remove", older, another) and not call("apply", older, one)
        assert call("apply", newer, one) and not call("apply", older, another)
        assert call("remove", newer, one) is False


def test_a_projection_can_have_columns_that_refuse_null(inbox: Reader) -> None:
    """A part of the columns is enough for a row that is there, and a removal needs key and version."""
    inbox.execute(
        "CREATE DOMAIN amount AS numeric NOT NULL;"
        "CREATE TABLE item (k int PRIMARY KEY, version int NOT NULL, paid amount, serial int GENERATED ALWAYS AS IDENTITY,"
        " twice numeric GENERATED ALWAYS AS (paid * 2) STORED, note text)"
    )
    call = "SELECT inbox.{}('item', ARRAY['k'], 'version', %s)"
    assert inbox.value(call.format("apply"), ('{"k": 1, "version": 1, "paid": 5, "serial": 40, "twice": 1}',))
    assert inbox.value(call.format("apply"), ('{"k": 1, "version": 2, "note": "new", "serial": 41}',))
    assert inbox.execute("SELECT version, paid, twice, serial, note FROM item") == [(2, 5, 10, 1, "new")]
    with pytest.raises(psycopg.errors.NotNullViolation):
        inbox.execute(call.format("apply"), ('{"k": 2, "version": 1}',))
    assert inbox.value(call.format("remove"), ('{"k": 1, "version": 3, "paid": null}',))
    assert inbox.execute("TABLE item") == []


def test_a_unique_index_that_compares_otherwise_is_no_key(inbox: Reader) -> None:
    """Rows would be one for the statement, and two for the index."""
    inbox.execute(CASELESS + "CREATE TABLE item (k text COLLATE caseless NOT NULL, version int)")
    inbox.execute('CREATE UNIQUE INDEX ON item (k COLLATE "C")')
    apply = """SELECT inbox.apply('item', ARRAY['k'], 'version', '{"k": "a", "version": 1}')"""
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        inbox.execute(apply)
    inbox.execute("CREATE UNIQUE INDEX ON item (k)")
    assert inbox.value(apply)


# -------------------------------------------------------------------------------------------------
# The deduplication window
# -------------------------------------------------------------------------------------------------


class Old:
    """An event whose bucket can be emptied because it was applied long ago, and that bucket."""

    def __init__(self, inbox: Reader) -> None:
        self.inbox = inbox
        self.id, self.late_id = (inbox.value(OLD_ID, ("9 days", n)) for n in (1, 2))
        self.table = f"inbox.processed_{inbox.value('SELECT inbox_internal.bucket(%s)', (self.id,))}"
        inbox.execute("SELECT inbox.begin_event('old', %s)", (self.id,))
        inbox.execute("UPDATE inbox.processed SET processed_at = now() - interval '9 days'")

    def prune(self) -> list[str]:
        return [action for (action,) in self.inbox.execute("SELECT action FROM inbox.prune()")]

    def remembers(self, event_id: object) -> bool:
        return self.inbox.value("SELECT inbox.was_applied('old', %s)", (event_id,))


@pytest.fixture
def old(inbox: Reader) -> Old:
    return Old(inbox)


def test_a_processor_prunes(inbox: Reader, old: Old) -> None:
    inbox.subscribe()
    wait_until(lambda: old.remembers(old.id), lambda seen: not seen, what="the processor to prune")


@pytest.mark.timing
def test_pruning_waits_for_nobody(old: Old) -> None:
    with old.inbox.connect() as reader:
        reader.autocommit = False
        reader.execute(f"TABLE {old.table}")
        watch = Stopwatch()
        assert old.prune() == ["in use"]
        assert watch.seconds < 10 * SECOND
        assert old.remembers(old.id)
        reader.rollback()
    assert old.prune() == ["emptied"]
    assert not old.remembers(old.id)


def test_while_somebody_prunes_nobody_else_does(old: Old) -> None:
    with old.inbox.connect() as first:
        first.autocommit = False
        assert first.execute("SELECT action FROM inbox.prune()").fetchall() == [("emptied",)]
        assert old.prune() == []
        first.rollback()
    assert old.remembers(old.id)


def test_a_call_looks_through_one_bucket(inbox: Reader, old: Old) -> None:
    """So a time-out that is too short for all of them does not cancel everything."""
    inbox.execute("SELECT inbox.begin_event('old', %s)", (inbox.value(OLD_ID, ("10 days", 3)),))
    inbox.execute("UPDATE inbox.processed SET processed_at = now() - interval '9 days'")
    prune = "SELECT action, more FROM inbox.prune()"
    with inbox.connect() as reader:
        reader.autocommit = False
        reader.execute(f"TABLE {old.table}")
        seen = inbox.execute(prune) + inbox.execute(prune)
        assert {action for action, _ in seen} == {"emptied", "in use"}, "a bucket in use held up another"
        reader.rollback()
    inbox.execute("SELECT inbox.begin_event('old', %s)", (inbox.value(OLD_ID, ("10 days", 3)),))
    inbox.execute("UPDATE inbox.processed SET processed_at = now() - interval '9 days'")
    assert [inbox.execute(prune) for _ in range(3)] == [[("emptied", True)], [("emptied", False)], []]


@pytest.mark.parametrize("window, event_id", [("7 days", None), ("7 days", "random"), ("12 days", None)])
def test_ids_that_nobody_removes_are_reported(inbox: Reader, old: Old, window: str, event_id: str | None) -> None:
    def reported() -> bool:
        return ("degraded", "server", "window not pruned") in inbox.execute(
            "SELECT severity, object, what FROM inbox.health()"
        )

    inbox.execute("SELECT inbox.set_window(%s)", (window,))
    if event_id is not None:
        inbox.execute("TRUNCATE inbox.processed")
        inbox.execute("SELECT inbox.begin_event('old', gen_random_uuid())")
    age = "UPDATE inbox.processed SET processed_at = now() - interval '12 hours' - inbox_internal.window_length() * %s"
    inbox.execute(age, (1,))
    assert not reported(), "a call of prune() may still come"
    inbox.execute(age, (1.3,))
    assert reported()
    with inbox.connect() as pruner:
        pruner.autocommit = False
        pruner.execute("SELECT inbox.prune()")
        # Does not wait for what is being emptied.
        inbox.execute("SET lock_timeout = '1ms'")
        inbox.execute("SELECT inbox.health()")
        pruner.commit()
    assert not reported()


def test_an_event_that_comes_late_keeps_its_bucket(old: Old) -> None:
    """It is applied while its bucket is about to be emptied, and is remembered as long as any other."""
    with old.inbox.connect() as consumer:
        consumer.autocommit = False
        begin = "SELECT inbox.begin_event('old', %s)"
        assert consumer.execute(begin, (old.late_id,)).fetchone() == (True,)
        assert old.prune() == ["in use"]
        consumer.commit()
    assert old.prune() == []
    assert old.remembers(old.late_id) and old.remembers(old.id)
    assert old.inbox.value(begin, (old.late_id,)) is False


def test_a_bucket_that_is_emptied_holds_up_no_other(old: Old) -> None:
    new_id = old.inbox.value(OLD_ID, ("0", 3))
    with old.inbox.connect() as pruner:
        pruner.autocommit = False
        assert pruner.execute("SELECT action FROM inbox.prune()").fetchall() == [("emptied",)]
        old.inbox.execute("SET lock_timeout = '1 min'")
        for _ in range(10):  # beyond the number of executions after which plans become generic
            assert not old.remembers(new_id)
        assert old.inbox.value("SELECT inbox.begin_event('old', %s)", (new_id,))
        assert old.remembers(new_id)
        pruner.commit()


# -------------------------------------------------------------------------------------------------
# Waiting
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize(
    "wait, cause",
    [
        ("inbox.wait_for('item', '{{\"id\": 1}}', 3, timeout => '1 minute')",
         "inbox.apply('item', ARRAY['id'], 'version', '{{\"id\": 1, \"version\": 4}}')"),
        ("inbox.wait_for('item', '{{\"id\": 1}}', 3, timeout => '1 minute')",
         "inbox.remove('item', ARRAY['id'], 'version', '{{\"id\": 1, \"version\": 3}}')"),
        ("inbox.wait_for('old', '{0}'::uuid, timeout => '1 minute')", "inbox.begin_event('old', '{0}')"),
    ],
    ids=["version", "removal", "event"],
)  # fmt: skip
def test_a_wait_ends_when_its_cause_commits(inbox: Reader, old: Old, wait: str, cause: str) -> None:
    inbox.execute("CREATE TABLE item (id int PRIMARY KEY, version int)")
    answers: list[object] = []
    with inbox.connect() as waiter, inbox.connect() as other:
        other.autocommit = False
        other.execute("SELECT " + cause.format(old.late_id))  # type: ignore[arg-type]
        pid = waiter.info.backend_pid
        thread = threading.Thread(
            target=lambda: answers.append(waiter.execute("SELECT " + wait.format(old.late_id)).fetchone())  # type: ignore[arg-type]
        )
        thread.start()
        wait_until(
            lambda: inbox.value("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (pid,)),
            lambda event: event == "PgSleep", what="the other session to wait",
        )  # fmt: skip
        assert not answers
        watch = Stopwatch()
        other.commit()
        thread.join()
    assert answers == [(True,)]
    assert watch.seconds < SECOND


def test_a_wait_can_be_cancelled(inbox: Reader, old: Old) -> None:
    with inbox.connect() as waiter:
        pid = waiter.info.backend_pid
        canceller = threading.Thread(
            target=lambda: wait_until(
                lambda: Database(inbox.cluster, inbox.name).value(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'",
                    (pid,),
                ),
                what="the session to wait, and to be cancelled",
            )
        )
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            waiter.execute("SELECT inbox.wait_for('old', %s, timeout => '1 hour')", (old.late_id,))
        canceller.join()
