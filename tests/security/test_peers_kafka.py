"""Hostile brokers of Kafka: limits on memory, threads, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from certificates import Certificates, make_certificates
from cluster import Cluster, Installation
from conftest import create_database
from long_run import all_in_long_run
from processes import status_of
from waiting import wait_until

from .peers import hostile_kafka, hostile_registry, hostile_tls
from .peers.attack import Target, peak
from .peers.peer import Peer

LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Target]:
    if not installation.has_module("pg_outbox_kafka"):
        pytest.skip("NOT TESTED: pg_outbox_kafka is not part of this build")
    cluster = Cluster(installation, LOOPBACK).start()
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


PASSWORD = "s3cret-s3cret-1"
LOGIN = {"user": "u", "password": PASSWORD}


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_kafka.MODES)
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_kafka.MODES[mode]) as peer:
        damage = target.suffer(
            "d", f"kafka://127.0.0.1:{peer.port}", LOGIN, sasl_mechanism="PLAIN", request_timeout="1s",
            connect_timeout="1s",
        )  # fmt: skip
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("authority")
    for parent in [directory, *directory.parents][:3]:
        parent.chmod(0o755)
    return make_certificates(directory)


@pytest.mark.timing
@pytest.mark.parametrize(
    "mode", all_in_long_run(hostile_registry.REGISTRIES, short=["many values", "repeats the login"])
)
def test_hostile_schema_registries_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    login = {"registry_user": "u", "registry_password": PASSWORD}
    with Peer(hostile_kafka.FRIENDLY) as broker, Peer(hostile_registry.REGISTRIES[mode]) as registry:
        damage = target.suffer(
            "d", f"kafka://127.0.0.1:{broker.port}", login, schema_registry=f"http://127.0.0.1:{registry.port}",
            request_timeout="1s", connect_timeout="1s",
        )  # fmt: skip
        assert registry.connections > 0
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.mark.timing
@pytest.mark.parametrize(
    "mode", all_in_long_run(hostile_registry.ISSUERS, short=["a token of megabytes", "repeats the login"])
)
def test_hostile_issuers_of_tokens_stay_within_limits(target: Target, certificates: Certificates, mode: str) -> None:
    """S12, S23"""
    authority, certificate, key = certificates
    tls = hostile_tls.context(certificate, key, "http/1.1")
    with Peer(hostile_kafka.FRIENDLY) as broker, Peer(hostile_registry.ISSUERS[mode], tls=tls) as issuer:
        damage = target.suffer(
            "d", f"kafka://127.0.0.1:{broker.port}", {"client_secret": PASSWORD}, sasl_mechanism="OAUTHBEARER",
            client_id="c", token_endpoint=f"https://127.0.0.1:{issuer.port}/", ca_file=authority,
            request_timeout="1s", connect_timeout="1s",
        )  # fmt: skip
        assert issuer.connections > 0
    damage.assert_bearable(mode)
    assert "s3cret" not in damage.log + (damage.error or "")


def test_a_topic_with_too_many_partitions_is_refused(target: Target) -> None:
    """S12: the library keeps something for each, also while it ends"""
    database = target.database
    with Peer(hostile_kafka.with_metadata(partitions=100_000)) as peer:
        pid = target.create("parts", f"kafka://127.0.0.1:{peer.port}", retry_base="10ms", retry_max="10ms")
        before = peak(pid)

        def failed() -> bool:
            """A record may be acknowledged before anybody has counted."""
            database.enqueue("k", 1, topic="parts")
            return peer.connections > 5 and "more than 50000 partitions" in (target.error("parts") or "")

        wait_until(failed, what="some attempts, and the reason")
        assert peak(pid) - before < 400 << 20
        assert database.pid("relay", "parts") == pid
        database.execute("DROP SERVER parts CASCADE")


@pytest.mark.parametrize("mode", ["many brokers", "ever more brokers"])
def test_a_cluster_with_too_many_brokers_is_refused(target: Target, mode: str) -> None:
    """S12: the library starts a thread for each, and some more until somebody has looked"""
    database = target.database
    most = 0

    def error() -> str:
        nonlocal most
        most = max(most, int(status_of(f"/proc/{pid}")["Threads"]))
        return target.error("many") or ""

    with Peer(hostile_kafka.MODES[mode]) as peer:
        pid = target.create(
            "many", f"kafka://127.0.0.1:{peer.port}", request_timeout="1h", retry_base="1h", retry_max="1h",
            connect_timeout="1min",  # the check, too, has to live to see a thousand
        )  # fmt: skip
        database.enqueue("k", 1, topic="many")
        wait_until(error, what="a cluster that is given up")
        assert 500 < most < 5000
        ok, detail = database.execute("SELECT ok, detail FROM outbox.check_destination('many')")[-1]
        assert not ok and "more than 1000 brokers" in detail
        wait_until(
            lambda: int(status_of(f"/proc/{pid}")["Threads"]), lambda count: count < 20, what="its threads to end"
        )
        assert database.pid("relay", "many") == pid
        database.execute("DROP SERVER many CASCADE")
