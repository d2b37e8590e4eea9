"""Receivers that fail in part, and relays that end in the middle of it.

The receiver throttles some requests, and refuses all events of some keys. Relays are asked to
end, or crash. No event is lost, every key is in order, and only refused events are dead letters.
"""

from __future__ import annotations

from receiver import answer

from .drill import Drill, MakeDrill
from .test_receivers import sometimes

REFUSED_KEYS = frozenset({"5", "17"})


def ask_relay_to_end(drill: Drill) -> None:
    relay = drill.relay()
    with drill.noted("asked to end"):
        drill.database.execute("SELECT pg_terminate_backend(%s)", (relay,))
        drill.database.wait_for_worker("relay", "suffering", other_than=relay)


def crash_relay(drill: Drill) -> None:
    drill.kill("relay", drill.relay())


def test_partial_failures_and_kills_lose_nothing(make_drill: MakeDrill) -> None:
    drill = make_drill(max_attempts="2")
    drill.mood.refuses = False
    drill.mood.refused_keys = REFUSED_KEYS
    drill.mood.instead = sometimes(drill.random, answer(503), answer(429))
    with drill.load():
        for end in drill.random.sample([ask_relay_to_end] * 3 + [crash_relay] * 2, 5):
            drill.wait_for_arrivals(drill.random.choice([20, 100, 200]))
            end(drill)
        drill.wait_for_arrivals(100)
    drill.mood.instead = None
    drill.conclude()
    dead = drill.database.execute("SELECT ordering_key, count(*) FROM outbox.dead_letter GROUP BY 1")
    assert {key for key, _ in dead} == REFUSED_KEYS
