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
        self.assertEqual(lines("def test_a():\n    assert time.monotonic() - began <= limit\n"), [2])

    def test_may_have_a_lower_limit_of_any_kind(self) -> None:
        self.assertEqual(lines("def test_a():\n    assert watch.seconds > 5\n    assert 1 <= watch.seconds\n"), [])


if __name__ == "__main__":
    unittest.main()
