"""Waiting for a condition, never for a time.

`wait_until` is the only place of the suite that polls. `stays` is its opposite: it watches that
nothing happens, for the tests that show quiet.

A limit that stands for a promise ("within a second") is made of SECOND. It is a second in the suite `timing` only, which
runs alone on an idle machine: elsewhere a process may get no processor for seconds, and a test asserts order and outcome.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECOND = 1.0 if os.environ.get("OUTBOX_TEST_TIMING") == "1" else 120.0


def wait_until(
    fetch: Callable[[], T],
    predicate: Callable[[T], object] = bool,
    *,
    timeout: float = 180.0,
    what: str,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """Calls `fetch` until `predicate` likes the value, and returns that value.

    The last call begins after the time is up, so a process that got no processor time still checks once.
    Exceptions of the kinds in `ignoring` count as "not yet": a server that restarts refuses
    connections for a moment.
    """
    started = time.monotonic()
    pause = 0.002
    while True:
        seen: object
        time_is_up = time.monotonic() - started > timeout
        try:
            value = fetch()
            if predicate(value):
                return value
            seen = value
        except ignoring as error:
            seen = error
        if time_is_up:
            raise AssertionError(f"waited {timeout:.1f} s for {what}; last seen: {seen!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def stays(fetch: Callable[[], T], expected: T, *, seconds: float, what: str) -> None:
    """Watches for `seconds` that `fetch` keeps returning `expected`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen = fetch()
        assert seen == expected, f"{what}: expected {expected!r} to stay, saw {seen!r}"
        time.sleep(0.05)


def comes_true(condition: Callable[[], object], *, seconds: float) -> bool:
    """Returns whether the condition becomes true within `seconds`. For choices, not for assertions."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started
