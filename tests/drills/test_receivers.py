"""Failing receivers under load. The other destination must not be affected."""

from __future__ import annotations

import datetime
import random
import time

import pytest

from receiver import (
    Behaviour,
    Exchange,
    Receiver,
    answer,
    close_unanswered,
    cut_off,
    delayed,
    reset,
)
from waiting import SECOND, wait_until

from .drill import Drill, MakeDrill

EVENTS = 600


def latencies(receiver: Receiver) -> list[float]:
    """Returns seconds from `occurred_at` to the last byte at the receiver, by its clock, ascending."""
    drift = time.time() - time.monotonic()
    return sorted(
        event.request.began + drift
        - datetime.datetime.fromisoformat(event.attributes["time"]).timestamp()
        for event in receiver.events()
    )  # fmt: skip


def assert_calm_did_not_notice(drill: Drill) -> None:
    """`occurred_at` is the start of the statement, so the writer's wait before COMMIT is included."""
    seconds = latencies(drill.calm)
    median, most = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    line = f"{drill.name}: calm got its events within {median:.3f} s, 99 of 100 within {most:.3f} s"
    drill.reports.append(line)
    assert median < SECOND and most < 5 * SECOND, line


@pytest.mark.timing
def test_a_receiver_that_was_down_gets_everything_later(make_drill: MakeDrill) -> None:
    drill = make_drill()
    drill.suffering.refuse_connections()
    with drill.load():
        drill.wait_for_arrivals(EVENTS, at=drill.calm)
        wait_until(
            lambda: drill.database.status("suffering")["state"],
            lambda state: state == "backing off", what="a back-off",
        )  # fmt: skip
    drill.database.wait_settled("calm")
    assert drill.suffering.requests == []
    assert_calm_did_not_notice(drill)
    drill.suffering.listen()
    account = drill.conclude()
    assert account.twice == 0


@pytest.mark.slow
def test_a_backlog_survives_kills_of_all_processes(make_drill: MakeDrill) -> None:
    """A backlog survives relay, keeper and postmaster."""
    drill = make_drill()
    drill.suffering.refuse_connections()
    with drill.load():
        for kill in ("relay", "keeper", "postmaster"):
            drill.wait_for_arrivals(100, at=drill.calm)
            if kill == "postmaster":
                drill.kill_postmaster()
            else:
                drill.kill(kill, drill.relay() if kill == "relay" else drill.keeper())
        drill.wait_for_arrivals(100, at=drill.calm)
    drill.database.wait_for_worker("relay", "calm")
    drill.database.wait_settled("calm")
    assert drill.suffering.requests == []
    drill.suffering.listen()
    assert drill.conclude().twice == 0


def sometimes(dice: random.Random, *bad: Behaviour) -> Behaviour:
    good = answer()

    async def behave(exchange: Exchange) -> None:
        await (dice.choice(bad) if dice.random() < 0.1 else good)(exchange)

    return behave


@pytest.mark.timing
def test_a_slow_receiver_does_not_delay_the_other(make_drill: MakeDrill) -> None:
    drill = make_drill()
    drill.mood.instead = delayed(0.3)
    with drill.load():
        drill.wait_for_arrivals(EVENTS, at=drill.calm)
    drill.database.wait_settled("calm")
    assert_calm_did_not_notice(drill)
    drill.mood.instead = None
    assert drill.conclude().twice == 0


@pytest.mark.timing
def test_a_failing_receiver_gets_everything(make_drill: MakeDrill) -> None:
    """The receiver sends half answers, resets and closes connections, and answers 503."""
    drill = make_drill()
    half = cut_off(b"HTTP/1.1 204 No Con")
    drill.mood.instead = sometimes(drill.random, half, reset, close_unanswered, answer(503))
    with drill.load():
        drill.wait_for_arrivals(EVENTS, at=drill.calm)
    drill.database.wait_settled("calm")
    assert_calm_did_not_notice(drill)
    drill.mood.instead = None
    assert drill.conclude().twice == 0


@pytest.mark.timing
def test_events_with_an_unknown_outcome_arrive_once_more(make_drill: MakeDrill) -> None:
    """An unknown outcome counts as failure: each such event arrives once more, and no other does."""
    drill = make_drill()
    unsaid: list[int] = []

    async def take_and_reset(exchange: Exchange) -> None:
        exchange.answered(204)
        exchange.reset()
        unsaid.append(exchange.request.number)

    drill.mood.instead = sometimes(drill.random, take_and_reset)
    with drill.load():
        drill.wait_for_arrivals(EVENTS, at=drill.calm)
    drill.database.wait_settled("calm")
    assert_calm_did_not_notice(drill)
    drill.mood.instead = None
    assert drill.conclude(repeats=True).twice == len(unsaid) > 0
