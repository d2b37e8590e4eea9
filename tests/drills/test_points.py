"""Processes are killed at named points (points.py) while writers write."""

from __future__ import annotations

import pytest

from .drill import MakeDrill
from .points import POINTS


@pytest.mark.parametrize("name", list(POINTS))
def test_a_kill_at_any_point_loses_nothing(make_drill: MakeDrill, name: str) -> None:
    point = POINTS[name]
    drill = make_drill()
    with drill.load():
        drill.wait_for_arrivals(150)
        with point.hold(drill) as pid:
            drill.kill(name, pid)
        drill.wait_for_arrivals(150)
    drill.conclude(repeats=point.repeats)
