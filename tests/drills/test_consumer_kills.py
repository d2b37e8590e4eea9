"""Kills random processes of the consuming side, while two consumers share the work."""

from __future__ import annotations

import psycopg

from processes import process_exists, stop_process
from waiting import wait_until

from .replica import MakeReplicaDrill, ReplicaDrill
from .routes import with_deaths

KILLS = 6


def kill_consumer(drill: ReplicaDrill) -> None:
    alive = [consumer for consumer in drill.consumers if consumer.process.poll() is None]
    drill.kill(drill.random.choice(alive))
    drill.consume(batch_size=drill.random.choice([1, 10, 100]))


def kill_both_consumers(drill: ReplicaDrill) -> None:
    for _ in range(2):
        kill_consumer(drill)


def stopped_backend(drill: ReplicaDrill) -> int | None:
    """Picks a backend; that of a consumer killed just now may be ending, a stopped one does not end."""
    backends = drill.target.backends()
    if not backends:
        return None
    pid = drill.random.choice(backends)
    stop_process(pid)
    return pid if process_exists(pid) else None


def kill_backend(drill: ReplicaDrill) -> None:
    """Kills a backend, and with it the server, which recovers."""
    backend = wait_until(
        lambda: stopped_backend(drill), what="a backend of a consumer",
        ignoring=(psycopg.OperationalError, ProcessLookupError),
    )  # fmt: skip
    drill.kills["backend"] += 1
    drill.replica.kill_and_recover(backend)


def take_broker_away(drill: ReplicaDrill) -> None:
    drill.kills["broker"] += 1
    with drill.route.broker_away():
        pass


EVENTS = {kill_consumer: 6, kill_both_consumers: 2, kill_backend: 2, take_broker_away: 1}


@with_deaths
def test_random_kills_apply_each_event_once(make_replica_drill: MakeReplicaDrill) -> None:
    drill = make_replica_drill()
    for _ in range(2):
        drill.consume()
    with drill.load():
        for _ in range(KILLS):
            drill.wait_applied(drill.random.choice([0, 1, 20, 100]))
            drill.random.choices(list(EVENTS), list(EVENTS.values()))[0](drill)
        drill.wait_applied(100)
    drill.conclude()
