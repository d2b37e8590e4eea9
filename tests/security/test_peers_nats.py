"""Hostile servers of NATS: limits on memory, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster, Installation
from conftest import create_database

from .peers import hostile_nats
from .peers.attack import Target
from .peers.peer import Peer

LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Target]:
    if not installation.has_module("pg_outbox_nats"):
        pytest.skip("NOT TESTED: pg_outbox_nats is not part of this build")
    cluster = Cluster(installation, LOOPBACK).start()
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


PASSWORD = "s3cret-s3cret-1"
LOGIN = {"user": "u", "password": PASSWORD}


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_nats.MODES)
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_nats.MODES[mode]) as peer:
        damage = target.suffer(
            "d", f"nats://127.0.0.1:{peer.port}", LOGIN, request_timeout="1s", connect_timeout="1s", receipts="on"
        )
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")
