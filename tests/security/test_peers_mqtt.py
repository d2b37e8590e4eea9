"""Hostile brokers of MQTT: limits on memory, threads, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster, Installation
from conftest import create_database

from .peers import hostile_mqtt
from .peers.attack import Target
from .peers.peer import Peer

LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Target]:
    cluster = Cluster(installation, LOOPBACK).start()
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


PASSWORD = "s3cret-s3cret-1"
LOGIN = {"user": "u", "password": PASSWORD}


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_mqtt.MODES)
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_mqtt.MODES[mode]) as peer:
        damage = target.suffer("d", f"mqtt://127.0.0.1:{peer.port}", LOGIN, request_timeout="1s", connect_timeout="1s")
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")
