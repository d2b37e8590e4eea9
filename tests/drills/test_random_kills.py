"""Kills random processes while writers write.

A round is a server of its own that is killed ten times, with settings and moments that follow from
its seed. By default there is one round; OUTBOX_DRILL_MINUTES=60 goes on with further ones for this time.
OUTBOX_TEST_SEED repeats a run from the round whose seed it is.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from cluster import MakeCluster

from .drill import SETTINGS, Drill
from .points import POINTS
from .writing import new_seed

KILLS_OF_A_ROUND = 10


def settings_of(dice: random.Random) -> dict[str, str]:
    return {
        **SETTINGS,
        "synchronous_commit": dice.choice(["on", "on", "off"]),
        "wal_writer_delay": dice.choice(["10ms", "200ms"]),
        "outbox.segment_size": dice.choice(["64kB", "256kB"]),
        "outbox.max_in_flight": dice.choice(["20", "60"]),
        "outbox.cursor_flush_interval": dice.choice(["1ms", "20ms", "100ms"]),
    }


# -------------------------------------------------------------------------------------------------
# Kinds of kills
# -------------------------------------------------------------------------------------------------


def kill_receiver(drill: Drill) -> None:
    with drill.receiver_away():
        drill.wait_for_arrivals(drill.random.choice([1, 50]), at=drill.calm)


def kill_one_after_the_other(drill: Drill) -> None:
    """Kills a second process before the server has recovered from the first kill."""
    drill.kill("relay", drill.relay())
    drill.kill("relay", drill.relay("calm"))


def kill_at_a_point(drill: Drill) -> None:
    # A seek repeats everything, so duplicates could not be checked.
    name = drill.random.choice([point.name for point in POINTS.values() if not point.repeats])
    with POINTS[name].hold(drill) as pid:
        drill.kill(name, pid)


def restart(drill: Drill) -> None:
    with drill.noted("restart"):
        drill.cluster.restart(drill.random.choice(["fast", "immediate"]))


EVENTS: dict[Callable[[Drill], None], int] = {
    lambda drill: drill.kill("relay", drill.relay()): 4,
    lambda drill: drill.kill("keeper", drill.keeper()): 2,
    lambda drill: drill.kill("launcher", drill.launcher()): 1,
    lambda drill: drill.kill("backend", drill.writing_backend()): 3,
    lambda drill: drill.kill_postmaster(): 2,
    kill_receiver: 3,
    kill_one_after_the_other: 1,
    kill_at_a_point: 8,
    restart: 1,
}


# -------------------------------------------------------------------------------------------------
# Rounds
# -------------------------------------------------------------------------------------------------


def wait_for_arrivals(drill: Drill, more: int) -> None:
    """A worker that was killed many times in a row is held back, for twice as long each time. As an operator would,
    this restarts the server then."""
    while not drill.arrive_soon(more):
        with drill.database.connect() as connection:
            held_back = connection.execute(
                "SELECT FROM outbox.absent_workers() WHERE next_try > clock_timestamp() + interval '5 seconds'"
            ).fetchall()
        if not held_back:
            drill.wait_for_arrivals(more)
            return
        restart(drill)


def play_round(make_cluster: MakeCluster, seed: int) -> None:
    dice = random.Random(seed)
    settings = settings_of(dice)
    cluster = make_cluster(settings)
    drill = Drill(cluster, "random kills", seed=seed)
    try:
        with drill.load():
            for _ in range(KILLS_OF_A_ROUND):
                wait_for_arrivals(drill, dice.choice([0, 1, 20, 100, 300]))
                dice.choices(list(EVENTS), list(EVENTS.values()))[0](drill)
            wait_for_arrivals(drill, 100)
        drill.conclude(acknowledged_lasts=settings["synchronous_commit"] == "on")
    except BaseException:
        print(f"OUTBOX_TEST_SEED={seed} repeats this round: {settings}")
        raise
    finally:
        drill.close()


def test_random_kills_lose_nothing(make_cluster: MakeCluster, http: None) -> None:
    until = time.monotonic() + 60 * float(os.environ.get("OUTBOX_DRILL_MINUTES", "0"))
    seed = new_seed()
    while True:
        play_round(make_cluster, seed)
        seed += 1000
        if time.monotonic() >= until:
            break
