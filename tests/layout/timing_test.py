"""That timing.py finds what it is for, and lets pass what is right."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import timing


def lines(text: str) -> list[int]:
    return [line for line, _ in timing.violations(text)]


class Promises(unittest.TestCase):
    def test_need_the_mark(self) -> None:
        body = "def test_a():\n    assert watch.seconds < SECOND\n"
        self.assertEqual(lines(body), [1])
        self.assertEqual(lines("@pytest.mark.timing\n" + body), [])
        self.assertEqual(lines("pytestmark = [pytest.mark.timing, pytest.mark.slow]\n" + body), [])

    def test_of_a_helper_need_the_mark(self) -> None:
        helper = "def ends(pid):\n    assert watch.seconds < SECOND\n"
        self.assertEqual(lines(helper + "def test_a():\n    ends(1)\n"), [3])
        self.assertEqual(lines(helper + "def test_a():\n    pass\n"), [])

    def test_are_made_of_second(self) -> None:
        self.assertEqual(lines("def test_a():\n    assert watch.seconds < 5\n"), [2])
        self.assertEqual(
            lines("def test_a():\n    began = time.monotonic()\n    assert time.monotonic() - began <= limit\n"), [3]
        )

    def test_are_found_through_variables(self) -> None:
        for body in (
            "began = time.monotonic()\n    assert time.monotonic() - began < 1",
            "took = time.perf_counter() - began\n    assert took < 1",
            "delays = []\n    for n in range(3): delays.append(watch.seconds)\n    assert max(delays) < 1",
            "times = [r.began for r in requests]\n    assert all(b - a < 1 for a, b in zip(times, times[1:]))",
            "seconds = (row.finished_at - row.started_at).total_seconds()\n    assert 1 <= seconds < 3",
            "assert abs(int(header) - time.time()) < 60",
        ):
            self.assertEqual(len(lines(f"def test_a():\n    {body}\n")), 1, body)

    def test_are_no_order_of_times(self) -> None:
        for body in (
            "assert first.ended <= second.began",
            "began = int(time.time())\n    assert began - 1 <= stamp <= time.time() + 1",
            "assert count < 40 + watch.seconds / 10",
            "self.longest = watch.seconds\n    assert self.size < 10",
        ):
            self.assertEqual(lines(f"def test_a():\n    {body}\n"), [], body)

    def test_may_have_a_lower_limit_of_any_kind(self) -> None:
        self.assertEqual(lines("def test_a():\n    assert watch.seconds > 5\n    assert 1 <= watch.seconds\n"), [])


if __name__ == "__main__":
    unittest.main()
