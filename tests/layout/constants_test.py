"""That constants.py finds values of C++ in SQL, and lets pass what is something else."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import constants

TREE = {
    "lib/core/limits.hpp": """
inline constexpr int max_name_length = 249;  // of topics
inline constexpr std::string_view topic_suffix = ".events";
inline constexpr int max_length_before_suffix =
    max_name_length - static_cast<int>(topic_suffix.size());
inline constexpr std::size_t max_held_keys = 100'000;
inline constexpr std::size_t max_text = 64 * 1024;
inline constexpr int few = 3;
""",
    "lib/core/advisory_locks.hpp": "inline constexpr std::int32_t lock_class = 1869968482;\n",
    "lib/core/reserved_headers.hpp": """
inline constexpr std::string_view reserved_headers[] = {
    "id",
    "set-cookie",
};
""",
}


class Constants(unittest.TestCase):
    def found(self, line: str, others: dict[tuple[str, int], str] | None = None) -> list[str]:
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(constants, "OTHERS", others or {}):
            for name, text in {**TREE, "sql/pg_outbox/a.sql.in": f"\n{line}\n"}.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return list(constants.violations(Path(folder)))

    def test_a_value_is_named_with_its_place_and_its_name(self) -> None:
        self.assertEqual(
            self.found("SELECT length(a) > 249"),
            ["sql/pg_outbox/a.sql.in:2: 249 stands in the C++ code; write @{max_name_length}"],
        )

    def test_values_in_all_forms_are_found(self) -> None:
        for line in (
            "242",
            "65536",
            "100000",
            "'100000 keys are held'",
            "lock(1869968482, 0)",
            "a || '.events'",
            "'set-cookie'",
        ):
            self.assertEqual(len(self.found(line)), 1, line)

    def test_other_values_are_right(self) -> None:
        for line in (
            "2490",
            "1.249",
            "-249",
            "@{max_name_length}",
            "'id'",
            "3",
            "249kB",
            "-- at most 249 bytes",
            "'user.events'",
        ):
            self.assertEqual(self.found(line), [], line)

    def test_a_value_may_mean_something_else_in_a_file(self) -> None:
        others = {("sql/pg_outbox/a.sql.in", 249): "rows"}
        self.assertEqual(self.found("249", others), [])
        self.assertEqual(len(self.found("250", others)), 1)


if __name__ == "__main__":
    unittest.main()
