"""Hostile databases: servers that break the protocol, and inboxes with traps for superusers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster, MakeCluster
from conftest import create_database
from database import Database, NewDatabase
from waiting import SECOND, wait_until

from .attacker import NewRole
from .between import Between
from .peers import hostile_postgresql
from .peers.attack import MOST_MEMORY, Target, peak, seconds_to_end
from .peers.peer import Peer

PASSWORD = "s3cret-s3cret-1"


@pytest.fixture(scope="module")
def target(installation: object) -> Iterator[Target]:
    cluster = Cluster(installation, {"autovacuum": "off"}).start()  # type: ignore[arg-type]
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_postgresql.MODES)
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S11, S23"""
    with Peer(hostile_postgresql.MODES[mode]) as peer:
        damage = target.suffer(
            "d", f"postgresql://127.0.0.1:{peer.port}/x", {"user": "u", "password": PASSWORD}, batch_size="1"
        )
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_an_answer_without_the_columns_asked_for_fails_a_check(target: Target, columns: int) -> None:
    """S11: a value that is not there is a null pointer, and the worker of a check is a part of the server"""
    database = target.database
    with Peer(hostile_postgresql.narrow(columns)) as peer:
        database.add_destination("narrow", f"postgresql://u@127.0.0.1:{peer.port}/x", relay="external")
        database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER narrow OPTIONS (password '{PASSWORD}')")
        findings = database.execute("SELECT subject, ok, detail FROM outbox.check_destination('narrow')")
        database.execute("DROP SERVER narrow CASCADE")
    assert findings[-1] == ("inbox", False, "the answer lacks columns"), findings


def test_parameters_reported_by_a_server_take_bounded_memory(target: Target) -> None:
    """S11: each answer has a few new parameters"""
    database = target.database
    with Peer(hostile_postgresql.MODES["leaking"]) as peer:
        pid = target.create(
            "leaks", f"postgresql://127.0.0.1:{peer.port}/x", {"user": "u", "password": PASSWORD}, batch_size="1"
        )
        before = peak(pid)
        database.enqueue("k", 60, topic="leaks")
        database.wait_published(60, "leaks", timeout=120)
        assert peak(pid) - before < MOST_MEMORY
        assert peer.connections > 5
        assert database.pid("relay", "leaks") == pid
        database.execute("DROP SERVER leaks CASCADE")


def test_a_commit_that_was_a_rollback_confirms_nothing(target: Target) -> None:
    database = target.database
    with Peer(hostile_postgresql.MODES["rolling back"]) as peer:
        target.create("rolls", f"postgresql://127.0.0.1:{peer.port}/x", {"user": "u", "password": PASSWORD})
        database.enqueue("k", 1, topic="rolls")
        error = wait_until(lambda: target.error("rolls"), what="the destination to fail")
        assert "rolled" in error and database.published("rolls") == 0
        database.execute("DROP SERVER rolls CASCADE")


@pytest.mark.timing
def test_a_relay_ends_while_it_computes_the_key_a_server_asked_for(target: Target) -> None:
    """A case of S13: a peer decides how long a computation takes"""
    database = target.database
    with Peer(hostile_postgresql.MODES["scram"]) as peer:
        pid = target.create(
            "scram", f"postgresql://127.0.0.1:{peer.port}/x", {"user": "u", "password": PASSWORD}, request_timeout="1h",
            connect_timeout="1h",
        )  # fmt: skip
        database.enqueue("k", 1, topic="scram")
        wait_until(lambda: peer.sent > 80, what="the server to ask for the key")
        assert seconds_to_end(pid) < SECOND
        database.execute("DROP SERVER scram CASCADE")


# -------------------------------------------------------------------------------------------------
# Powerful roles
# -------------------------------------------------------------------------------------------------

# inbox.receive() of the owner of a database.
RECEIVE = """
    CREATE SCHEMA inbox;
    GRANT USAGE ON SCHEMA inbox TO PUBLIC;
    CREATE FUNCTION inbox.receive(text, text, uuid[], timestamptz[], int8[], int8[], int4[], uuid[], text[], text[],
        text[], text[], text[], text[], jsonb[], bytea[]) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
          SET ROLE NONE; ALTER ROLE {} SUPERUSER; RETURN 1; END $$
"""


class OfAnother:
    """A database of a role that wants to be a superuser."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database, self.owner = database, owner
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {owner}")

    def make_inbox(self) -> None:
        with self.database.cluster.connect(self.database.name, user=self.owner) as mine:
            mine.execute(RECEIVE.format(self.owner))  # type: ignore[arg-type]

    @property
    def has_won(self) -> bool:
        return self.database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (self.owner,))


@pytest.fixture
def of_another(new_database: NewDatabase, new_role: NewRole) -> Iterator[OfAnother]:
    of_another = OfAnother(new_database(extension=False), new_role())
    yield of_another
    of_another.database.execute(f"ALTER DATABASE {of_another.database.name} RESET ALL")


def refusal(source: Database, url: str) -> str:
    """Lets a destination deliver; returns its error."""
    source.add_destination("local", url)
    source.enqueue("k", 1)
    error = wait_until(lambda: Target(source).error("local"), what="the destination to be refused")
    assert "code of others would run with its rights" in error and "inbox.grant_send" in error
    return str(error)


@pytest.mark.parametrize("trap", ["inbox", "role", "none"])
def test_a_destination_never_works_as_a_superuser(database: Database, of_another: OfAnother, trap: str) -> None:
    """S15: in an inbox of any kind, of any owner."""
    victim = of_another.database
    if trap == "none":
        victim.execute(f"ALTER DATABASE {victim.name} OWNER TO postgres")
        victim.execute("CREATE EXTENSION pg_inbox")
    else:
        of_another.make_inbox()
    if trap == "role":
        victim.execute(f"ALTER DATABASE {victim.name} SET role = '{of_another.owner}'")
    assert "is or can become a superuser there" in refusal(database, f"postgresql:///{victim.name}")
    assert not of_another.has_won


def test_a_destination_calls_nothing_that_comes_after_it_has_asked(database: Database, of_another: OfAnother) -> None:
    """The inbox is missing when the relay asks what it has logged in as, and there when it is used."""
    between = Between(database.cluster.port, b"inbox.receive", of_another.make_inbox)
    refusal(database, f"postgresql://postgres@127.0.0.1:{between.port}/{of_another.database.name}?sslmode=disable")
    database.drop_destination("local")
    between.close()
    assert not between.has_done and not of_another.has_won


@pytest.mark.parametrize(
    "powerful", ["postgres", "pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"]
)
def test_a_destination_never_works_as_a_role_that_can_become_a_superuser(
    database: Database, of_another: OfAnother, new_role: NewRole, powerful: str
) -> None:
    role = new_role()
    of_another.make_inbox()
    database.execute(f"GRANT {powerful} TO {role}")
    error = refusal(database, f"postgresql://{role}@/{of_another.database.name}")
    database.execute(f"REVOKE {powerful} FROM {role}")
    assert f'role "{role}" is ' in error and ("superuser" if powerful == "postgres" else powerful) in error
    assert not of_another.has_won


def test_other_roles_may_use_any_inbox(database: Database, of_another: OfAnother, new_role: NewRole) -> None:
    """S15"""
    sender, target = new_role(), of_another.database
    with target.cluster.connect(target.name, user=of_another.owner) as mine:
        mine.execute("CREATE EXTENSION pg_inbox")
        mine.execute("SELECT inbox.grant_send(%s)", (sender,))
    database.add_destination("local", f"postgresql://{sender}@/{target.name}")
    database.enqueue("k", 1)
    database.wait_published(1, "local")


# -------------------------------------------------------------------------------------------------
# The environment of the server process
# -------------------------------------------------------------------------------------------------


def test_the_environment_of_the_server_process_is_not_used(make_cluster: MakeCluster) -> None:
    """S29"""
    hostile = {
        "PGSERVICE": "nowhere", "PGSERVICEFILE": "/nowhere", "PGHOSTADDR": "127.9.9.9", "PGOPTIONS": "-c role=nobody",
        "PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/nowhere", "PGPASSFILE": "/nowhere", "PGTARGETSESSIONATTRS": "standby",
        "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1",
    }  # fmt: skip
    cluster = make_cluster(started=False)
    cluster.environment |= hostile
    cluster.start()
    cluster.execute("CREATE DATABASE target")
    target = Database(cluster, "target")
    target.execute("CREATE EXTENSION pg_inbox")
    source = create_database(cluster, "source")
    source.add_destination("d", target.inbox_url())
    assert {row[0]: row[1] for row in source.execute("SELECT subject, ok FROM outbox.check_destination('d')")}["inbox"]
    source.enqueue("k", 1)
    source.wait_published(1)
