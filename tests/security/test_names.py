"""A hostile name server: outbox.allowed_hosts counts for the address that is connected to, whatever the name was before.

The server has a resolv.conf of its own, in a mount namespace, which needs a root user.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import cluster as cluster_module
from cluster import Cluster, Installation
from conftest import create_database
from long_run import all_in_long_run
from waiting import wait_until

from .peers.attack import Target
from .peers.name_server import AAAA, A, NameServer

NAME_SERVER = "127.53.53.53"
ALLOWED, FORBIDDEN = "127.0.0.2", "127.0.0.1"
NAME = "names"  # of the destination and its topic, which Pub/Sub wants to have three letters
KEYS = {"access_key_id": "AKIA", "secret_access_key": "s3cret-s3cret"}
LOGIN = {"user": "u", "password": "s3cret-s3cret-1"}
NO_BROKER = f"kafka://{ALLOWED}:9"  # it is not needed before the other service has answered
# The module, the URL, options and the user mapping of each kind of destination.
KINDS: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {
    "http": ("pg_outbox_http", "http://{host}:{port}/", {}, {}),
    "https": ("pg_outbox_http", "https://{host}:{port}/", {}, {}),
    "endpoint": ("pg_outbox_http", "endpoints:", {}, {}),
    "pubsub": ("pg_outbox_pubsub", "pubsub://p", {"emulator_host": "{host}:{port}"}, {}),
    "sqs": ("pg_outbox_aws", "sqs://eu-west-1?endpoint=http://{host}:{port}", {}, KEYS),
    "sns": ("pg_outbox_aws", "sns://eu-west-1/123456789012?endpoint=http://{host}:{port}", {}, KEYS),
    "kinesis": ("pg_outbox_aws", "kinesis://eu-west-1?endpoint=http://{host}:{port}", {}, KEYS),
    "eventbridge": ("pg_outbox_aws", "eventbridge://eu-west-1?endpoint=http://{host}:{port}", {}, KEYS),
    "kafka": ("pg_outbox_kafka", "kafka://{host}:{port}", {}, {}),
    "schema registry": ("pg_outbox_kafka", NO_BROKER, {"schema_registry": "http://{host}:{port}"}, {}),
    "token endpoint": (
        "pg_outbox_kafka",
        NO_BROKER,
        {"sasl_mechanism": "OAUTHBEARER", "client_id": "c", "token_endpoint": "https://{host}:{port}/"},
        {"client_secret": "s3cret-s3cret-1"},
    ),
    "nats": ("pg_outbox_nats", "nats://{host}:{port}", {}, LOGIN),
    "rabbitmq": ("pg_outbox_rabbitmq", "amqp://{host}:{port}", {}, LOGIN),
    "redis": ("pg_outbox_redis", "redis://{host}:{port}", {}, LOGIN),
    "mqtt": ("pg_outbox_mqtt", "mqtt://{host}:{port}", {}, LOGIN),
    "postgresql": ("pg_outbox_postgresql", "postgresql://{host}:{port}/x", {}, LOGIN),
}
# The kinds of a module have their connections from the same code, but for what Kafka's asks over HTTP.
ONE_OF_EACH_MODULE = [kind for kind in KINDS if kind not in ("sns", "kinesis", "eventbridge")]
METADATA = "169.254.169.254"  # of a cloud, which hands out credentials there


class Trap:
    """Counts connections to one port of two addresses, and ends them at once."""

    def __init__(self) -> None:
        self.connections = {ALLOWED: 0, FORBIDDEN: 0}
        while True:
            first = socket.create_server((ALLOWED, 0))
            self.port = first.getsockname()[1]
            try:
                self.listeners = {ALLOWED: first, FORBIDDEN: socket.create_server((FORBIDDEN, self.port))}
                break
            except OSError:
                first.close()
        self.threads = [threading.Thread(target=self._count, args=(address,)) for address in self.listeners]
        for thread in self.threads:
            thread.start()

    def _count(self, address: str) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listeners[address].accept()
                self.connections[address] += 1
                connection.close()

    def close(self) -> None:
        for listener in self.listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self.threads:
            thread.join(10)


@pytest.fixture
def trap() -> Iterator[Trap]:
    trap = Trap()
    yield trap
    trap.close()


def answers(name: str, kind: int, before: int) -> list[str]:
    """The first label says how the name behaves."""
    behaviour = name.partition(".")[0].partition("-")[0]
    if behaviour == "embedded" and kind == AAAA:
        return ["::ffff:127.0.0.1", "64:ff9b::7f00:1", "::1"]
    if behaviour == "embedded" and kind == A:
        return ["0.0.0.0", FORBIDDEN, METADATA]
    if kind != A:
        return []
    return {
        "turns": [ALLOWED if before == 0 else FORBIDDEN],
        "metadata": [ALLOWED if before == 0 else METADATA],
        "alternates": [(ALLOWED, FORBIDDEN)[before % 2]],
        "both": [FORBIDDEN, ALLOWED],
    }.get(behaviour, [])


@pytest.fixture(scope="module")
def target(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("NOT TESTED: only a root user may give the server a name server of its own")
    try:
        names = NameServer(NAME_SERVER, answers)
    except OSError as error:
        pytest.skip(f"NOT TESTED: no name server on port 53: {error}")
    configuration = tmp_path_factory.mktemp("names") / "resolv.conf"
    configuration.write_text(f"nameserver {NAME_SERVER}\noptions timeout:5 attempts:3\n")
    with names, pytest.MonkeyPatch.context() as patch:
        as_server_user = cluster_module.as_server_user
        patch.setattr(
            cluster_module, "as_server_user", lambda command: with_names(configuration, as_server_user(command))
        )
        cluster = Cluster(installation, {"outbox.allowed_hosts": ALLOWED, "autovacuum": "off"}).start()
        patch.undo()
        yield Target(create_database(cluster, "db"))
        cluster.destroy()


def with_names(configuration: Path, command: list[str]) -> list[str]:
    script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(configuration), *command]


def host_of(kind: str, behaviour: str) -> str:
    return f"{behaviour}-{kind.replace(' ', '-')}.test"


Create = Callable[[str, str], None]


@pytest.fixture
def create(target: Target, trap: Trap) -> Iterator[Create]:
    """Makes a destination of a kind, at a name that behaves like this."""

    def make(kind: str, behaviour: str) -> None:
        module, url, options, mapping = KINDS[kind]
        if not target.database.cluster.installation.has_module(module):
            pytest.skip(f"NOT TESTED: {module} is not part of this build")
        place = {"host": host_of(kind, behaviour), "port": trap.port}
        filled = {name: value.format(**place) for name, value in options.items()}
        target.create(
            NAME, url.format(**place), mapping, retry_base="10ms", retry_max="10ms", request_timeout="5s",
            connect_timeout="5s", **filled,
        )  # fmt: skip
        if kind == "endpoint":
            target.database.execute(
                "INSERT INTO outbox.endpoint (server, name, url) VALUES (%s, 'one', %s)",
                (NAME, "http://{host}:{port}/".format(**place)),
            )
        target.database.enqueue("k", 3, topic=NAME)

    yield make
    target.database.execute("ROLLBACK")
    target.database.execute(f"DROP SERVER IF EXISTS {NAME} CASCADE")


def errors_of(target: Target) -> str:
    """Those of the destination and of its endpoints."""
    return str(
        target.database.value(
            "SELECT array_agg(last_error) FROM (SELECT last_error FROM outbox.status WHERE destination = %s UNION ALL "
            "SELECT last_error FROM outbox.endpoint_status) AS s", (NAME,),
        )
    )  # fmt: skip


def assert_refused(target: Target, trap: Trap, host: str, address: str = "") -> None:
    """Waits until attempts were refused, and asks for a check; nothing may have reached the forbidden address."""
    refusal = re.compile(f'address {re.escape(address) or "[^ ]+"} of host "?{host}"? is not allowed')
    wait_until(lambda: errors_of(target), lambda errors: refusal.search(errors), what="it to be refused")
    target.database.execute("SELECT * FROM outbox.check_destination(%s)", (NAME,))
    assert trap.connections[FORBIDDEN] == 0


@pytest.mark.parametrize("behaviour", all_in_long_run(["turns", "metadata", "alternates"], short=["turns"]))
@pytest.mark.parametrize("kind", all_in_long_run(KINDS, short=ONE_OF_EACH_MODULE))
def test_a_name_that_changes_does_not_reach_what_is_forbidden(
    target: Target, trap: Trap, create: Create, kind: str, behaviour: str
) -> None:
    """The first answer is an allowed address, and those that follow are not."""
    create(kind, behaviour)
    wait_until(lambda: trap.connections[ALLOWED], what="a connection to the allowed address")
    # A sink that is made again forgets what it knows of the name, as it would after a minute.
    target.database.execute(f"ALTER SERVER {NAME} OPTIONS (SET connect_timeout '6s')")
    assert_refused(target, trap, host_of(kind, behaviour), METADATA if behaviour == "metadata" else FORBIDDEN)


@pytest.mark.parametrize("kind", all_in_long_run(KINDS, short=ONE_OF_EACH_MODULE))
def test_of_two_addresses_only_the_allowed_one_is_used(target: Target, trap: Trap, create: Create, kind: str) -> None:
    create(kind, "both")
    wait_until(lambda: trap.connections[ALLOWED], lambda count: count > 2, what="connections to the allowed address")
    target.database.execute("SELECT * FROM outbox.check_destination(%s)", (NAME,))
    assert trap.connections[FORBIDDEN] == 0


# A PostgreSQL server may be at a reserved address by default.
NOT_RESERVED = [kind for kind in KINDS if kind != "postgresql"]


@pytest.mark.parametrize(
    "kind", all_in_long_run(NOT_RESERVED, short=[kind for kind in ONE_OF_EACH_MODULE if kind in NOT_RESERVED])
)
def test_a_name_does_not_hide_a_reserved_address(target: Target, trap: Trap, create: Create, kind: str) -> None:
    """With the default list: embedded in IPv6, unspecified, or of the metadata service."""
    target.database.cluster.configure({"outbox.allowed_hosts": ""})
    create(kind, "embedded")
    assert_refused(target, trap, host_of(kind, "embedded"))
    assert trap.connections == {ALLOWED: 0, FORBIDDEN: 0}
    target.database.cluster.configure({"outbox.allowed_hosts": ALLOWED})
