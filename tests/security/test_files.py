"""Files of the server in options of destinations: roles that may name them, and no waits for files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from cluster import MakeCluster
from conftest import create_database
from database import Database
from processes import process_exists
from waiting import SECOND, Stopwatch, wait_until

from .attacker import Attacker, NewAttacker
from .peers.attack import seconds_to_end
from .peers.hostile_http import mute
from .peers.peer import Peer

# A read from the postmaster's pipe never returns.
STUCK = "/proc/self/fd/3"
PERMISSION = "permission denied to name a file of the server"


@contextmanager
def refused(message: str, state: str = "42501") -> Iterator[None]:
    with pytest.raises(psycopg.Error, match=message) as caught:
        yield
    assert caught.value.sqlstate == state


@pytest.fixture
def integrator(new_attacker: NewAttacker) -> Attacker:
    """A role that may create destinations, and check them."""
    made = new_attacker("outbox.grant_operate")
    made.database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {made.role}")
    return made


URLS_WITH_FILES = {
    "ca_file": "url 'https://127.0.0.1:1/', ca_file '{}'",
    "sslrootcert": "url 'postgresql://127.0.0.1:1/x?sslmode=verify-ca&sslrootcert={}'",
    "sslcrl": "url 'postgresql://127.0.0.1:1/x?sslcrl={}'",
    "kafka": "url 'kafkas://127.0.0.1:1', ca_file '{}'",
    "mqtt": "url 'mqtts://127.0.0.1:1', ca_file '{}'",
    "nats": "url 'tls://127.0.0.1:1', ca_file '{}'",
    "pubsub": "url 'pubsub://p', ca_file '{}'",
    "sqs": "url 'sqs://eu-west-1', ca_file '{}'",
    "sns": "url 'sns://eu-west-1/123456789012', ca_file '{}'",
    "kinesis": "url 'kinesis://eu-west-1', ca_file '{}'",
    "eventbridge": "url 'eventbridge://eu-west-1', ca_file '{}'",
    "endpoints": "url 'endpoints:', ca_file '{}'",
}


@pytest.mark.parametrize("option", URLS_WITH_FILES)
def test_a_role_must_not_name_files(integrator: Attacker, option: str) -> None:
    """S13, S25: the error is the same for existing and missing files"""
    messages = set()
    for path in ("/etc/passwd", "/etc/shadow", "/nowhere", STUCK, "/dev/zero"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=PERMISSION) as caught:
            integrator.execute(
                f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS ({URLS_WITH_FILES[option].format(path)})"
            )
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_role_must_not_add_a_file_later(integrator: Attacker) -> None:
    """S13"""
    integrator.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'https://127.0.0.1:1/')")
    with refused(PERMISSION):
        integrator.execute(f"ALTER SERVER d OPTIONS (ADD ca_file '{STUCK}')")
    with refused(PERMISSION):
        integrator.execute("ALTER SERVER d OPTIONS (SET url 'postgresql://h/d?sslrootcert=/etc/passwd')")


def test_members_of_pg_read_server_files_may_name_files(integrator: Attacker) -> None:
    """S13"""
    integrator.database.execute(f"GRANT pg_read_server_files TO {integrator.role}")
    integrator.execute(
        "CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'https://127.0.0.1:1/', ca_file '/x')"
    )


def test_certificates_of_the_system_may_be_named_without_rights(integrator: Attacker) -> None:
    """S13"""
    integrator.execute(
        "CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql://h/d?sslmode=verify-full&sslrootcert=system')"
    )


def test_a_file_is_read_for_the_present_owner_only(integrator: Attacker) -> None:
    """S13: of a server that changed hands, and of an owner that lost the right"""
    database = integrator.database
    database.add_destination("d", "https://127.0.0.1:1/", ca_file="/etc/passwd")
    database.execute(f"ALTER SERVER d OWNER TO {integrator.role}")
    subject, ok, detail = database.execute("SELECT * FROM outbox.check_destination('d')")[-1]
    assert (subject, ok) == ("options", False) and PERMISSION in detail
    wait_until(
        lambda: database.status("d")["last_error"], lambda error: error and PERMISSION in error,
        what="the relay to refuse the file",
    )  # fmt: skip
    database.execute(f"GRANT pg_read_server_files TO {integrator.role}")
    rows = dict((row[0], row[2]) for row in database.execute("SELECT * FROM outbox.check_destination('d')"))
    assert PERMISSION not in rows["options"]


def stuck_destinations(port: int) -> dict[str, str]:
    return {
        "https": f"url 'https://127.0.0.1:{port}/', ca_file '{STUCK}', request_timeout '1h', connect_timeout '1h'",
        "postgresql": f"url 'postgresql://127.0.0.1:{port}/x?sslmode=verify-ca&sslrootcert={STUCK}', connect_timeout '1h'",
    }


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o666)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    return str(path)


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["https", "postgresql"])
def test_workers_do_not_wait_for_files_that_block(make_cluster: MakeCluster, http: None, kind: str, fifo: str) -> None:
    """S13: also not for files of a superuser; workers can be ended at any time"""
    cluster = make_cluster()
    database = create_database(cluster)
    with Peer(mute) as peer:
        for path in (STUCK, fifo):
            options = stuck_destinations(peer.port)[kind].replace(STUCK, path)
            database.execute(f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS ({options})")
            pid = database.wait_for_worker("relay", "d")
            database.enqueue("k", 1)
            wait_until(lambda: database.status("d")["last_error"], what="the relay to refuse the file")
            subject, ok, detail = database.execute("SELECT * FROM outbox.check_destination('d')")[-1]
            assert not ok and path in detail
            assert seconds_to_end(pid) < SECOND
            other = database.wait_for_worker("relay", "d", other_than=pid)
            watch = Stopwatch()
            database.execute("DROP SERVER d CASCADE")
            wait_until(lambda: process_exists(other), lambda there: not there, what="the relay to end")
            assert watch.seconds < SECOND
        database.execute(f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS ({options})")
        database.wait_for_worker("relay", "d")
        assert cluster.stop("fast") < 5 * SECOND


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["https", "postgresql"])
def test_cancelling_a_check_ends_its_worker(database: Database, http: None, kind: str) -> None:
    """S13: 'Cancelling the statement ends both'"""
    with Peer(mute) as peer:
        scheme, path = ("postgresql", "x") if kind == "postgresql" else (kind, "")
        timeouts = {"connect_timeout": "1h", "request_timeout": "1h"}
        database.add_destination("d", f"{scheme}://127.0.0.1:{peer.port}/{path}", topics="none", **timeouts)
        count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_outbox check'"
        with database.connect() as session:
            session.execute("SET statement_timeout = '1s'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute("SELECT * FROM outbox.check_destination('d')")
            watch = Stopwatch()
            wait_until(lambda: database.value(count), lambda n: n == 0, what="the check's worker to end")
            assert watch.seconds < SECOND
