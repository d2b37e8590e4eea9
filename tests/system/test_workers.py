"""Launcher, keeper and relay: their databases, starts and ends, and failures they survive."""

from __future__ import annotations

import psycopg
import pytest

from cluster import Installation, MakeCluster
from database import Database, NewDatabase, create_database
from processes import wait_until_quiet, wake_ups
from silent import LOGINS, silent_server
from waiting import SECOND, Stopwatch, stays, wait_until


def delivers(database: Database, destination: str = "d") -> None:
    """An event enqueued now arrives."""
    database.enqueue()
    database.wait_settled(destination)


# -------------------------------------------------------------------------------------------------
# Databases with workers
# -------------------------------------------------------------------------------------------------


def test_every_database_that_has_the_extension_is_served(new_database: NewDatabase) -> None:
    databases = [new_database() for _ in range(3)]
    without = new_database(extension=False)
    for number, database in enumerate(databases, 1):
        database.add_destination("d", "null:")
        database.enqueue(count=number)
    for number, database in enumerate(databases, 1):
        database.wait_published(number)
    without.cluster.wait_for_workers(without.name)  # only keepers that had to look
    assert [kind for kind, _, _ in without.cluster.workers()].count("pg_outbox launcher") == 1


@pytest.mark.timing
def test_create_extension_starts_a_keeper_and_create_server_a_relay_within_a_second(
    new_database: NewDatabase,
) -> None:
    database = new_database(extension=False)
    database.create_extension()
    database.cluster.wait_for_workers(database.name, "keeper", timeout=SECOND)
    database.add_destination("d", "null:")
    database.cluster.wait_for_workers(database.name, "keeper", "relay", timeout=SECOND)
    delivers(database)


def test_a_copy_of_a_database_that_has_the_extension_is_served(new_database: NewDatabase) -> None:
    original, copy = new_database(), new_database(extension=False)
    original.add_destination("d", "null:")
    original.disconnect()
    copy.cluster.execute(f"DROP DATABASE {copy.name}")
    copy.cluster.execute(f"CREATE DATABASE {copy.name} TEMPLATE {original.name}")
    copy.cluster.wait_for_workers(copy.name, "keeper", "relay")
    copy.cluster.wait_for_workers(original.name, "keeper", "relay")
    delivers(copy)
    delivers(original)


def test_templates_are_left_alone(new_database: NewDatabase) -> None:
    """A worker connected to a template would keep others from copying it."""
    template, other = new_database(extension=False), new_database(extension=False)
    # A template from its first moment: a keeper that looks into a new database must not find the extension.
    template.disconnect()
    template.cluster.execute(f"DROP DATABASE {template.name}")
    template.cluster.execute(f"CREATE DATABASE {template.name} IS_TEMPLATE true")
    try:
        template.create_extension()
        other.create_extension()  # the launcher learns of it later
        other.cluster.wait_for_workers(other.name, "keeper")
        assert template.cluster.workers_in(template.name) == []
    finally:
        template.cluster.execute(f"ALTER DATABASE {template.name} IS_TEMPLATE false")


def test_a_default_destination_serves_databases_without_one_of_their_own(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()
    without, own = create_database(cluster, "without"), create_database(cluster, "own")
    own.add_destination("d", "null:")
    without.enqueue(count=3)
    cluster.configure({"outbox.default_destination": "null:"})
    without.wait_for_worker("relay", "default")
    without.wait_published(3, "default")
    delivers(own)
    assert own.pid("relay", "default") is None

    without.add_destination("d", "null:")
    wait_until(
        lambda: [w.name for w in without.workers() if w.kind == "relay"],
        lambda seen: seen == ["d"],
        what="the relay of the default destination to make room for the new one",
    )  # fmt: skip
    without.wait_published(3)  # a new destination starts at the beginning
    without.execute("DROP SERVER d")
    without.wait_for_worker("relay", "default")
    without.enqueue(count=2)
    without.wait_published(5, "default")  # it kept its cursor, and counts on

    cluster.configure({"outbox.default_destination": ""})
    wait_until(lambda: without.pid("relay"), lambda pid: pid is None, what="its relay to end")


# -------------------------------------------------------------------------------------------------
# Leaving a database
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_drop_extension_ends_all_workers_within_a_second(database: Database) -> None:
    for name in ("d", "e"):
        database.add_destination(name, "null:")
        database.wait_for_worker("relay", name)
    database.execute("DROP EXTENSION pg_outbox CASCADE")
    database.cluster.wait_for_workers(database.name, timeout=SECOND)
    database.create_extension()
    database.cluster.wait_for_workers(database.name, "keeper")


@pytest.mark.timing
def test_databases_can_be_dropped_renamed_and_copied_while_workers_run(
    database: Database,
) -> None:
    cluster, name = database.cluster, database.name
    database.add_destination("d", "null:")
    delivers(database)
    database.disconnect()

    def takes_about_a_second(statement: str) -> None:
        cluster.wait_for_workers(database.name, "keeper", "relay")
        watch = Stopwatch()
        cluster.execute(statement)
        assert watch.seconds < 1.2 * SECOND, f"{statement} took {watch.seconds:.2f} s"

    takes_about_a_second(f"ALTER DATABASE {name} RENAME TO {name}_b")
    database.name = f"{name}_b"
    takes_about_a_second(f"CREATE DATABASE {name} TEMPLATE {name}_b")
    delivers(database)
    database.disconnect()
    takes_about_a_second(f"DROP DATABASE {name}_b")
    database.name = name
    delivers(database)
    database.disconnect()
    takes_about_a_second(f"DROP DATABASE {name}")


def test_a_statement_that_fails_to_drop_a_database_leaves_it_served(database: Database) -> None:
    database.add_destination("d", "null:")
    relay = database.wait_for_worker("relay")
    with database.connect():  # another session blocks the statement until the server gives up
        with pytest.raises(psycopg.errors.ObjectInUse):
            database.cluster.execute(f"DROP DATABASE {database.name}")
    database.wait_for_worker("relay", other_than=relay)
    delivers(database)


def test_a_role_that_may_not_drop_a_database_does_not_disturb_its_workers(database: Database) -> None:
    database.add_destination("d", "null:")
    pids = database.wait_for_worker("keeper"), database.wait_for_worker("relay")
    role = f"{database.name}_guest"
    database.execute(f"CREATE ROLE {role} LOGIN")
    with database.cluster.connect(user=role) as guest:
        for statement in (
            f"DROP DATABASE {database.name}",
            f"ALTER DATABASE {database.name} RENAME TO x",
            f"CREATE DATABASE x TEMPLATE {database.name}",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                guest.execute(statement)
    database.execute(f"DROP ROLE {role}")
    delivers(database)
    assert (database.pid("keeper"), database.pid("relay")) == pids


def test_create_extension_that_is_rolled_back_starts_nothing(new_database: NewDatabase) -> None:
    database, later = new_database(extension=False), new_database(extension=False)
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE EXTENSION pg_outbox")
    later.create_extension()
    later.cluster.wait_for_workers(later.name, "keeper")
    database.cluster.wait_for_workers(database.name)  # only keepers that had to look


def test_drop_extension_that_is_rolled_back_ends_nothing(database: Database) -> None:
    database.add_destination("d", "null:")
    delivers(database)
    pids = database.pid("keeper"), database.pid("relay")
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("DROP EXTENSION pg_outbox CASCADE")
    delivers(database)
    assert (database.pid("keeper"), database.pid("relay")) == pids


# -------------------------------------------------------------------------------------------------
# Creating, changing and dropping destinations
# -------------------------------------------------------------------------------------------------


def test_a_changed_destination_is_changed_at_once(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue(count=3)
    database.wait_published(3)
    database.execute("ALTER SERVER d OPTIONS (ADD topics 'other')")
    wait_until(
        lambda: database.status()["state"], lambda state: state == "idle",
        what="the relay to be idle",
    )  # fmt: skip
    database.enqueue(count=5)
    database.enqueue(count=2, topic="other")
    database.wait_published(5)
    database.execute("ALTER SERVER d OPTIONS (DROP topics)")
    database.enqueue(count=1)
    database.wait_published(6)


def test_changes_to_one_destination_do_not_disturb_another(database: Database) -> None:
    database.add_destination("d", "null:")
    relay = database.wait_for_worker("relay", "d")
    for _ in range(3):
        database.add_destination("other", "null:")
        database.wait_for_worker("relay", "other")
        database.execute("ALTER SERVER other OPTIONS (ADD topics 'x')")
        database.execute("DROP SERVER other")
        wait_until(lambda: database.pid("relay", "other") is None, what="the other relay to end")
    delivers(database)
    assert database.pid("relay", "d") == relay


@pytest.mark.timing
def test_a_renamed_destination_keeps_its_cursor(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue(count=7)
    database.wait_published(7)
    database.wait_saved()
    database.execute("ALTER SERVER d RENAME TO renamed")
    wait_until(
        lambda: database.execute("SELECT destination FROM outbox.cursor"),
        lambda rows: rows == [("renamed",)], timeout=SECOND, what="the cursor to be renamed",
    )  # fmt: skip
    wait_until(
        lambda: [w.name for w in database.workers() if w.kind == "relay"],
        lambda names: names == ["renamed"], timeout=SECOND, what="the relay to go by the new name",
    )  # fmt: skip
    relay = database.wait_for_worker("relay")
    database.execute("SELECT pg_terminate_backend(%s)", (relay,))
    database.wait_for_worker("relay", "renamed", other_than=relay)
    database.enqueue(count=2)
    database.wait_published(9, "renamed")


@pytest.mark.timing
def test_a_dropped_destination_takes_its_cursor_along(database: Database) -> None:
    database.add_destination("d", "null:")
    database.add_destination("other", "null:")
    database.enqueue(count=3)
    database.wait_published(3)
    database.wait_published(3, "other")
    database.execute("DROP SERVER d")
    wait_until(
        lambda: database.execute("SELECT destination FROM outbox.cursor"),
        lambda rows: rows == [("other",)], timeout=SECOND, what="the cursor to be gone",
    )  # fmt: skip
    database.cluster.wait_for_workers(database.name, "keeper", "relay")
    database.add_destination("d", "null:")  # another one of the same name starts over
    database.wait_published(3)
    database.wait_published(3, "other")


def test_a_database_whose_drop_was_interrupted_gets_no_keeper(make_cluster: MakeCluster) -> None:
    """PostgreSQL refuses connections to it (datconnlimit), and its keepers would end early for ever."""
    cluster = make_cluster()
    valid = create_database(cluster, "valid")
    cluster.execute("CREATE DATABASE invalid")
    cluster.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'invalid'")
    valid.add_destination("d", "null:")
    valid.disconnect()
    cluster.stop()
    offset = cluster.log_size()
    cluster.start()
    delivers(valid)
    assert 'database "invalid"' not in cluster.log_since(offset)


@pytest.mark.parametrize("module", LOGINS)
def test_a_server_that_never_answers_keeps_no_relay(
    new_database: NewDatabase, installation: Installation, module: str
) -> None:
    """Changed options and the end of a destination do not wait until a login has failed."""
    database = new_database()
    with silent_server() as silent:
        url = silent.url(installation, module)
        database.add_destination("d", url, connect_timeout="1h", request_timeout="1h")
        database.enqueue()
        first = silent.accept()
        database.change_destination("d", connect_timeout="2h")
        second = silent.accept()  # the relay has started again
        database.drop_destination("d")
        for connection in (first, second):
            with connection:
                while connection.recv(4096):  # until the relay has closed it
                    continue


def test_create_server_that_is_rolled_back_starts_nothing(database: Database) -> None:
    database.wait_for_worker("keeper")
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE SERVER gone FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
    database.add_destination("d", "null:")
    database.wait_for_worker("relay", "d")
    assert [worker.name for worker in database.workers() if worker.kind == "relay"] == ["d"]


# -------------------------------------------------------------------------------------------------
# Signals
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["relay", "keeper", "launcher"])
def test_a_terminated_worker_comes_back_and_nothing_is_lost(make_cluster: MakeCluster, kind: str) -> None:
    cluster = make_cluster()
    database = create_database(cluster, "db")
    database.add_destination("d", "null:")
    delivers(database)

    def pid_of_kind() -> int | None:
        pids = [pid for name, _, pid in cluster.workers() if name == f"pg_outbox {kind}"]
        return pids[0] if pids else None

    pid = wait_until(pid_of_kind, what=f"a {kind}")

    def others_than_kind() -> list[tuple]:
        """Returns workers, except keepers that only look into a database."""
        return [worker for worker in cluster.workers()
                if worker[0] != f"pg_outbox {kind}" and worker[1] != "postgres"]  # fmt: skip

    others = others_than_kind()
    database.enqueue(count=1000)
    database.execute("SELECT pg_terminate_backend(%s)", (pid,))
    database.enqueue(count=1000)
    wait_until(
        pid_of_kind, lambda seen: seen not in (None, pid), timeout=5 * SECOND,
        what=f"another {kind}",
    )  # fmt: skip
    database.wait_settled()
    assert others_than_kind() == others

    # Delivery still works.
    database.add_destination("later", "null:")
    database.wait_for_worker("relay", "later")
    another = create_database(cluster, "another")
    another.add_destination("d", "null:")
    delivers(another)


def test_a_relay_that_is_terminated_saves_its_cursor(new_database: NewDatabase) -> None:
    """Here it sleeps without a transaction, and saves at no other time."""
    database = new_database({"outbox.cursor_flush_interval": "1h"})
    database.add_destination("d", "null:")
    database.enqueue(count=1000)
    database.wait_published(1000)
    relay = database.wait_for_worker("relay")
    wait_until_quiet(relay, 0.3)
    database.execute("SELECT pg_terminate_backend(%s)", (relay,))
    database.wait_for_worker("relay", other_than=relay)
    database.enqueue(count=1)
    database.wait_settled()
    assert database.published() == 1001


def test_failures_alone_are_saved_by_a_relay_that_is_terminated(database: Database) -> None:
    database.add_destination("d", "http://127.0.0.1:1/")
    database.enqueue()
    wait_until(lambda: database.status()["failures"], lambda seen: seen >= 3, what="failures")
    database.execute("SELECT outbox.pause('d')")
    wait_until(lambda: database.status()["state"], lambda state: state == "paused", what="the pause")
    failures = database.status()["failures"]
    relay = database.wait_for_worker("relay")
    database.execute("SELECT pg_terminate_backend(%s)", (relay,))
    database.wait_for_worker("relay", other_than=relay)
    assert database.status()["failures"] == failures


def test_a_reload_changes_the_settings_of_workers(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    database = create_database(cluster, "db")
    database.add_destination("d", "null:")
    delivers(database)
    relay = database.wait_for_worker("relay")
    cluster.configure({"outbox.poll_min": "10ms", "outbox.poll_max": "20ms"})

    def looks() -> int:
        return wake_ups(relay)

    began = looks()
    wait_until(looks, lambda seen: seen > began + 20, what="the relay to look again and again")
    cluster.configure({"outbox.poll_min": "1h", "outbox.poll_max": "1h"})
    wait_until_quiet(relay)
    assert database.pid("relay") == relay


@pytest.mark.timing
def test_a_fast_shutdown_is_fast(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    for name in ("a", "b"):
        database = create_database(cluster, name)
        database.add_destination("d", "null:")
        delivers(database)
        database.disconnect()
    seconds = cluster.stop("fast")
    assert seconds < 1.5 * SECOND, f"the server took {seconds:.2f} s to stop"
    cluster.start()
    for name in ("a", "b"):
        delivers(Database(cluster, name))


def test_nothing_runs_while_pg_upgrade_works(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    database = create_database(cluster, "db")
    database.add_destination("d", "null:")
    delivers(database)
    cluster.stop("fast")
    cluster.start("-b")  # as pg_upgrade starts it
    stays(cluster.workers, [], seconds=1, what="workers")
    cluster.stop("fast")
    cluster.start()
    delivers(database)


# -------------------------------------------------------------------------------------------------
# Limits
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, missing",
    [
        # One slot is the server's own (logical replication), three are the first database's.
        ({"max_worker_processes": "4"}, "max_worker_processes"),
        ({"outbox.max_workers": "2"}, "outbox.max_workers"),
    ],
)
def test_a_lack_of_worker_slots_is_said_once_and_waited_for(
    make_cluster: MakeCluster, settings: dict[str, str], missing: str
) -> None:
    cluster = make_cluster(settings)
    first = create_database(cluster, "first")
    first.add_destination("d", "null:")
    delivers(first)

    second = create_database(cluster, "second")
    second.add_destination("d", "null:")
    second.enqueue(count=5)
    complaint = "could not start pg_outbox keeper second: out of"
    log = wait_until(cluster.log, lambda text: complaint in text, what="a complaint in the log")
    assert f"HINT:  Increase {missing}." in log
    delivers(first)  # those that run are not disturbed

    first.disconnect()
    cluster.execute("DROP DATABASE first")
    second.wait_published(5)
    assert cluster.log().count(complaint) == 1


# -------------------------------------------------------------------------------------------------
# Standbys and copies of a server
# -------------------------------------------------------------------------------------------------


def test_a_standby_runs_nothing_until_it_is_promoted(make_cluster: MakeCluster) -> None:
    primary = make_cluster()
    database = create_database(primary, "db")
    database.add_destination("d", "null:")
    database.enqueue(count=10)
    database.wait_published(10)
    standby = primary.make_standby().start()
    try:
        copy = Database(standby, "db")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="on a standby") as refused:
            copy.enqueue()
        assert refused.value.diag.message_hint
        database.enqueue(count=10)
        wait_until(
            lambda: copy.value("SELECT count(*) FROM outbox.event"), lambda n: n == 20,
            what="the events to reach the standby",
        )  # fmt: skip
        assert standby.workers() == []
        assert copy.status()["state"] == "standby" and copy.health() == []
        metrics = copy.value("SELECT outbox.metrics()")
        assert "outbox_up{" not in metrics and f'outbox_in_recovery{{database="{copy.name}"}} 1' in metrics
        assert f'outbox_in_recovery{{database="{copy.name}"}} 0' in database.value("SELECT outbox.metrics()")

        primary.stop("immediate")
        standby.promote()
        copy.wait_for_worker("relay")
        copy.wait_settled()
        copy.enqueue(count=5)
        copy.wait_settled()
        assert copy.value("SELECT count(*) FROM outbox.event") == 25
        # Some of the first twenty are sent and counted again, depending on when the cursor was saved.
        assert 25 <= copy.published() <= 45
    finally:
        standby.destroy()


def test_without_preload_events_are_kept_and_a_session_is_warned_once(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster({"shared_preload_libraries": ""})
    database = create_database(cluster, "db")
    database.add_destination("d", "null:")
    with database.connect() as connection:
        warnings: list[tuple[str | None, str | None]] = []
        connection.add_notice_handler(lambda notice: warnings.append((notice.severity, notice.message_primary)))
        for n in range(3):
            connection.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
    assert len(warnings) == 1, warnings
    assert warnings[0][0] == "WARNING" and "not preloaded" in (warnings[0][1] or "")
    assert database.status()["state"] == "stopped"
    assert database.status()["pending_at_most"] == 3
    assert cluster.workers() == []

    cluster.settings |= cluster.installation.settings
    cluster.restart()
    database.wait_for_worker("relay")
    database.wait_published(3)
