"""Hostile servers of Redis: limits on memory, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster, Installation
from conftest import create_database

from .peers import hostile_redis
from .peers.attack import Target
from .peers.peer import Peer

LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}
PASSWORD = "s3cret-s3cret-1"


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Target]:
    if not installation.has_module("pg_outbox_redis"):
        pytest.skip("NOT TESTED: pg_outbox_redis is not part of this build")
    cluster = Cluster(installation, LOOPBACK).start()
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_redis.MODES)
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_redis.MODES[mode]) as peer:
        damage = target.suffer(
            "d", f"redis://127.0.0.1:{peer.port}", {"user": "u", "password": PASSWORD},
            request_timeout="1s", connect_timeout="1s", receipts="on",
        )  # fmt: skip
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_redis.SENTINELS)
def test_hostile_answers_of_a_sentinel_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_redis.SENTINELS[mode]) as peer:
        damage = target.suffer(
            "d", f"redis://127.0.0.1:{peer.port}", {"sentinel_user": "u", "sentinel_password": PASSWORD},
            sentinel="main", request_timeout="1s", connect_timeout="1s",
        )  # fmt: skip
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.mark.parametrize(
    ("name", "mode"),
    [("server", "moved to a host that is not allowed"), ("sentinel", "names a host that is not allowed")],
)
def test_the_error_names_the_host_that_is_not_allowed(target: Target, name: str, mode: str) -> None:
    modes = hostile_redis.SENTINELS if name == "sentinel" else hostile_redis.MODES
    with Peer(modes[mode]) as peer:
        options = {"sentinel": "main"} if name == "sentinel" else {}
        damage = target.suffer(
            "d", f"redis://127.0.0.1:{peer.port}", request_timeout="1s", connect_timeout="1s", **options
        )
    assert "169.254.169.254" in (damage.error or "") and "allowed_hosts" in (damage.error or ""), damage.error
