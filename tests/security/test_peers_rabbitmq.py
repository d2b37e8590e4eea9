"""Hostile servers of AMQP: limits on memory, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from cluster import Cluster, Installation
from conftest import create_database
from waiting import wait_until

from .peers import hostile_rabbitmq
from .peers.attack import Damage, Target, assert_harmless, peak, seconds_to_end
from .peers.peer import Peer

PASSWORD = "s3cret-s3cret-1"
LOGIN = {"user": "u", "password": PASSWORD}
LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}
# Being throttled is not a failed attempt.
PATIENT = {"blocked for ever"}


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Target]:
    if not installation.has_module("pg_outbox_rabbitmq"):
        pytest.skip("NOT TESTED: pg_outbox_rabbitmq is not part of this build")
    cluster = Cluster(installation, LOOPBACK).start()
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


@pytest.mark.timing
@pytest.mark.parametrize("mode", sorted(set(hostile_rabbitmq.MODES) - PATIENT))
def test_hostile_answers_stay_within_limits(target: Target, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_rabbitmq.MODES[mode]) as peer:
        damage = target.suffer("d", f"amqp://127.0.0.1:{peer.port}", LOGIN, request_timeout="1s", connect_timeout="1s")
    damage.assert_bearable(mode)
    assert PASSWORD not in damage.log + (damage.error or "")


@pytest.mark.timing
@pytest.mark.parametrize("mode", sorted(PATIENT))
def test_a_connection_blocked_for_ever_is_shown_as_throttled(target: Target, mode: str) -> None:
    """S12: events are throttled, and its words say why"""
    database = target.database
    with Peer(hostile_rabbitmq.MODES[mode]) as peer:
        pid = target.create("d", f"amqp://127.0.0.1:{peer.port}", LOGIN, request_timeout="1s")
        before = peak(pid)
        database.enqueue("k", 1, topic="d")
        wait_until(
            lambda: target.error("d") or "", lambda error: "takes no messages" in error, what="throttling",
            ignoring=(psycopg.OperationalError,),
        )  # fmt: skip
        damage = Damage(peak(pid) - before, "", 0, seconds_to_end(pid), target.error("d"))
        database.execute("DROP SERVER d CASCADE")
    damage.assert_bearable(mode)
    assert_harmless(damage.error or "", mode)
