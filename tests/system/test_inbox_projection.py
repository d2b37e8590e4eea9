"""Projections, the deduplication window and waits, where several sessions are at work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

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
