"""Prints the tests whose own lines are new or changed since a revision: `changed.py REVISION [top of the tree]`.

A line is `pytest FILE::FUNCTION` or `unit NAME`, as CTest knows it. Changes of helpers are not followed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

UNIT_TEST = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)


def changed_lines(revision: str, top: Path) -> dict[str, set[int]]:
    """Returns the numbers of new lines by file, those of files that git does not track yet too."""
    command = ["git", "-C", str(top), "diff", "-U0", revision, "--", "tests"]
    lines: dict[str, set[int]] = {}
    file = ""
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if line.startswith("+++ b/"):
            file = line[len("+++ b/") :]
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + max(count, 1)))
    command = ["git", "-C", str(top), "ls-files", "--others", "--exclude-standard", "--", "tests"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        lines[name] = set(range(1, len((top / name).read_text(errors="replace").splitlines()) + 1))
    return lines


def python_tests(text: str, lines: set[int]) -> Iterator[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if lines & set(range(first, (node.end_lineno or first) + 1)):
                yield node.name


def unit_tests(text: str, lines: set[int]) -> Iterator[str]:
    """A test ends where the next one begins."""
    found = list(UNIT_TEST.finditer(text))
    for test, following in zip(found, [*found[1:], None]):
        first = text.count("\n", 0, test.start()) + 1
        end = text.count("\n", 0, following.start()) + 1 if following else text.count("\n") + 1
        if lines & set(range(first, end)):
            yield f"{test[1]}.{test[2]}"


def main() -> int:
    revision = sys.argv[1]
    top = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parents[2]
    for file, lines in sorted(changed_lines(revision, top).items()):
        path = top / file
        if path.name.startswith("test_") and path.suffix == ".py":
            for name in python_tests(path.read_text(), lines):
                print(f"pytest {file}::{name}")
        elif path.suffix == ".cpp" and file.startswith("tests/unit/"):
            for name in unit_tests(path.read_text(), lines):
                print(f"unit {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
