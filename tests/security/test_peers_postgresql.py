"""Hostile databases: servers that break the protocol, and inboxes with traps for superusers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from cluster import Cluster, MakeCluster
from conftest import create_database
from database import Database, NewDatabase
from waiting import SECOND, wait_until

from .attacker import NewRole
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
# Superusers
# -------------------------------------------------------------------------------------------------


def deliver_to(source: Database, name: str) -> str | None:
    """Lets a superuser's destination deliver to a database of this server; returns its error, if it has one."""
    source.add_destination("local", f"postgresql:///{name}")
    source.enqueue("k", 1)
    wait_until(
        lambda: Target(source).error("local") or source.published("local"), what="an event delivered, or refused"
    )
    return Target(source).error("local")


def test_a_superuser_does_not_run_the_code_of_the_owner_of_a_database(
    database: Database, new_database: NewDatabase, new_role: NewRole
) -> None:
    """S15"""
    owner = new_role()
    victim = new_database(extension=False)
    victim.execute(f"ALTER DATABASE {victim.name} OWNER TO {owner}")
    with victim.cluster.connect(victim.name, user=owner) as mine:
        mine.execute(f"""
            CREATE SCHEMA inbox;
            CREATE FUNCTION inbox.receive(text, text, uuid[], timestamptz[], int8[], int8[], int4[], uuid[], text[], text[],
                text[], text[], text[], text[], jsonb[], bytea[]) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
                  ALTER ROLE {owner} SUPERUSER; RETURN 1; END $$""")
    error = deliver_to(database, victim.name)
    assert not victim.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (owner,))
    assert error and "superuser" in error and "USER MAPPING" in error


@pytest.mark.parametrize("trap", ["role", "search_path", "extension", "trigger", "member", "internal"])
def test_a_superuser_finds_the_traps_of_the_owner_of_a_database(
    database: Database, new_database: NewDatabase, new_role: NewRole, trap: str
) -> None:
    """S15: settings of the database, an inbox of one's own, a trigger on that of a superuser"""
    owner = new_role()
    victim = new_database(extension=False)
    victim.execute(f"ALTER DATABASE {victim.name} OWNER TO {owner}")
    strike = f"BEGIN SET ROLE NONE; ALTER ROLE {owner} SUPERUSER; RETURN 1; END"
    receive = f"""CREATE FUNCTION inbox.receive(text, text, uuid[], timestamptz[], int8[], int8[], int4[], uuid[], text[], text[],
                text[], text[], text[], text[], jsonb[], bytea[]) RETURNS integer LANGUAGE plpgsql AS $$ {strike} $$"""
    if trap == "trigger":
        victim.execute(
            f"CREATE EXTENSION pg_inbox; GRANT TRIGGER ON inbox.message TO {owner}; GRANT USAGE ON SCHEMA inbox TO {owner}"
        )
    with victim.cluster.connect(victim.name, user=owner) as mine:
        if trap == "role":
            mine.execute(f"CREATE SCHEMA inbox; {receive}")
            mine.execute(f"GRANT USAGE ON SCHEMA inbox TO PUBLIC; ALTER DATABASE {victim.name} SET role = '{owner}'")
        elif trap == "search_path":
            victim.execute("CREATE EXTENSION pg_inbox")
            mine.execute(f"""CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
                CREATE FUNCTION trap.strike(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                  ALTER ROLE {owner} SUPERUSER; RETURN true; EXCEPTION WHEN OTHERS THEN RETURN true; END $$;
                CREATE DOMAIN trap.text AS pg_catalog.text CHECK (trap.strike(VALUE::pg_catalog.text));
                ALTER DATABASE {victim.name} SET search_path = trap, pg_catalog""")
        elif trap in ("extension", "member"):
            mine.execute("CREATE EXTENSION pg_inbox")
        elif trap == "internal":
            victim.execute(f"CREATE EXTENSION pg_inbox; ALTER FUNCTION inbox_internal.refuse_event OWNER TO {owner}")
        else:
            mine.execute(f"""CREATE SCHEMA trap;
                CREATE FUNCTION trap.strike() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                  ALTER ROLE {owner} SUPERUSER; RETURN NEW; END $$;
                CREATE TRIGGER trap BEFORE INSERT ON inbox.message FOR EACH ROW EXECUTE FUNCTION trap.strike()""")
    if trap == "member":
        relay = new_role()
        victim.execute(f"GRANT postgres TO {relay}")
        database.add_destination("local", f"postgresql://{relay}@/{victim.name}")
        database.enqueue("k", 1)
        error = wait_until(lambda: Target(database).error("local"), what="the destination to fail")
        victim.execute(f"REVOKE postgres FROM {relay}")
    else:
        error = deliver_to(database, victim.name)
    assert not victim.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (owner,))
    if trap == "search_path":
        assert error is None  # the whole inbox belongs to a superuser, and the setting has no effect
    else:
        assert error and "superuser" in error
    victim.execute(f"ALTER DATABASE {victim.name} RESET ALL")


def test_an_inbox_of_superusers_gets_events_from_one(database: Database, new_database: NewDatabase) -> None:
    """S15: the quick start still works"""
    target = new_database(extension=False)
    target.execute("CREATE EXTENSION pg_inbox")
    assert deliver_to(database, target.name) is None


def test_roles_other_than_superusers_may_use_any_inbox(
    database: Database, new_database: NewDatabase, new_role: NewRole
) -> None:
    """S15"""
    owner, sender = new_role(), new_role()
    target = new_database(extension=False)
    target.execute(f"ALTER DATABASE {target.name} OWNER TO {owner}")
    with target.cluster.connect(target.name, user=owner) as mine:
        mine.execute("CREATE EXTENSION pg_inbox")
        mine.execute("SELECT inbox.grant_send(%s)", (sender,))
    database.add_destination("local", f"postgresql://{sender}@/{target.name}")
    database.enqueue("k", 1)
    database.wait_published(1, "local")


# -------------------------------------------------------------------------------------------------
# The environment of the server process
# -------------------------------------------------------------------------------------------------


def test_the_environment_of_the_server_process_is_not_used(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S29"""
    hostile = {
        "PGSERVICE": "nowhere", "PGSERVICEFILE": "/nowhere", "PGHOSTADDR": "127.9.9.9", "PGOPTIONS": "-c role=nobody",
        "PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/nowhere", "PGPASSFILE": "/nowhere", "PGTARGETSESSIONATTRS": "standby",
        "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1",
    }  # fmt: skip
    popen = subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *a, **k: popen(*a, env={**os.environ, **hostile}, **k))
        cluster = make_cluster()
    cluster.execute("CREATE DATABASE target")
    Database(cluster, "target").execute("CREATE EXTENSION pg_inbox")
    source = create_database(cluster, "source")
    source.add_destination("d", "postgresql:///target")
    assert {row[0]: row[1] for row in source.execute("SELECT subject, ok FROM outbox.check_destination('d')")}["inbox"]
    source.enqueue("k", 1)
    source.wait_published(1)
