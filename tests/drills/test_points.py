"""Processes are killed at named points (points.py) while writers write, and again at random."""

from __future__ import annotations

import pytest

from .drill import MakeDrill
from .points import POINTS

TIMES = 2


@pytest.mark.parametrize("name", list(POINTS))
def test_killed(make_drill: MakeDrill, name: str) -> None:
    point = POINTS[name]
    drill = make_drill()
    with drill.load():
        for _ in range(TIMES):
            drill.wait_for_arrivals(150)
            with point.hold(drill) as pid:
                drill.kill(name, pid)
        drill.wait_for_arrivals(150)
    drill.conclude(repeats=point.repeats)
