"""That clocks.py finds what it is for, and lets pass what is right."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import clocks


class Code(unittest.TestCase):
    def test_a_deadline_by_the_time_of_day_is_found(self) -> None:
        (violation,) = clocks.check_code("bgworker/a.cpp", "\nauto due = GetCurrentTimestamp() + 5;\n")
        self.assertTrue(violation.startswith("bgworker/a.cpp:2: GetCurrentTimestamp"))

    def test_comments_and_the_monotonic_clock_are_right(self) -> None:
        text = "// Not GetCurrentTimestamp().\nauto due = steady_now() + 5;\n"
        self.assertEqual(list(clocks.check_code("bgworker/a.cpp", text)), [])

    def test_a_file_that_needs_no_exception_is_found(self) -> None:
        self.assertEqual(len(list(clocks.check_code("relay/observe/log.cpp", "int a;\n"))), 1)


class Scripts(unittest.TestCase):
    def test_a_column_that_nothing_bounds_is_found(self) -> None:
        text = "CREATE TABLE outbox.a (\n    n   integer,\n    due timestamptz NOT NULL\n);\n"
        (violation,) = clocks.check_script("sql/a.sql", text)
        self.assertIn("outbox.a.due", violation)

    def test_a_listed_column_is_right(self) -> None:
        text = "CREATE TABLE outbox.ring (\n    since timestamptz NOT NULL\n);\n"
        self.assertEqual(list(clocks.check_script("sql/a.sql", text)), [])


if __name__ == "__main__":
    unittest.main()
