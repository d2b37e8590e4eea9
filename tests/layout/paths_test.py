"""That paths.py finds names of files that do not exist, and lets pass what is no such name."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import paths

TREE = {
    "docs/installing.md": "",
    "lib/core/clock.cpp": "",
    "lib/core/clock.hpp": "",
    "sql/common/caller.sql.in": "",
    "tests/system/test_log.py": "def test_one() -> None:\n    pass\n\n\nclass Peer:\n    pass\n",
}


class Names(unittest.TestCase):
    def found(self, line: str, path: str = "lib/a.cpp") -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**TREE, path: f"\n{line}\n"}.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return paths.check(Path(folder), paths.files_of(Path(folder)))

    def test_a_missing_file_is_named_with_its_place(self) -> None:
        self.assertEqual(self.found("// See docs/install.md."), ["lib/a.cpp:2: no docs/install.md"])

    def test_what_exists_is_right(self) -> None:
        for line in (
            "// See docs/installing.md.",
            '"See installing.md, lib/core/clock.hpp and core/clock.cpp"',
            "// lib/core/clock, lib/core/ and lib/core",
            "// lib/*/clock.hpp, core/clock*.cpp",
            "// sql/common/caller.sql.in makes common/caller.sql",
            "// tests/system/test_log.py::test_one, test_log.py::Peer",
        ):
            self.assertEqual(self.found(line), [], line)

    def test_what_does_not_exist_is_wrong(self) -> None:
        for line in (
            "// lib/core/clocks.hpp",
            "// (clocks.hpp)",
            "// net/clock.hpp",
            "// lib/cores/clock",
            "// lib/*/clocks.hpp",
            "// test_log.py::test_two",
            "/* test_logs.py */",
        ):
            self.assertEqual(len(self.found(line)), 1, line)

    def test_other_texts_are_no_names(self) -> None:
        for line in (
            "#include <clocks.hpp>",
            "https://example.com/docs/install.md",
            "$build/lib/clocks.hpp {name}/clocks.hpp",
            "bench.sql.execute(text)",
            "kafka-topics.sh --create",
            "/usr/lib/clocks.py",
        ):
            self.assertEqual(self.found(line), [], line)

    def test_pages_name_tests_alone(self) -> None:
        self.assertEqual(self.found("`test_one`", "docs/a.md"), [])
        self.assertEqual(self.found("`test_two`", "docs/a.md"), ["docs/a.md:2: no test_two"])

    def test_in_python_a_name_in_sql_may_be_an_attribute(self) -> None:
        self.assertEqual(self.found("cursor = self.sql", "tests/a.py"), [])
        self.assertEqual(len(self.found("# sql/missing.sql", "tests/a.py")), 1)


if __name__ == "__main__":
    unittest.main()
