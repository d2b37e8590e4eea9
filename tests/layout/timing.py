"""Finds tests that compare a stopwatch with a promise and are not marked `timing`: `timing.py [top of the tree]`.

A promise about time is written with SECOND of tests/system/waiting.py, which is a second in the suite `timing` only. So a
test that uses SECOND, itself or by a function of its file, has the mark; and an assertion that compares measured time with
a number that is not made of SECOND fails on a slow host.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SUITES = ("tests/system", "tests/security", "tests/drills", "tests/citus")
# Functions of other files that compare with SECOND.
COMPARING = {"assert_bearable"}
CLOCKS = {"monotonic", "perf_counter"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }


def functions_with_promises(tree: ast.Module) -> set[str]:
    """Returns the functions of a file that use SECOND, and those that use such a function."""
    uses = {node.name: names_in(node) for node in tree.body if isinstance(node, Function)}
    found = {"SECOND", *COMPARING}
    while more := {name for name, names in uses.items() if names & found and name not in found}:
        found |= more
    return found


def is_marked(node: Function | ast.Module) -> bool:
    if isinstance(node, ast.Module):
        marks = [each.value for each in node.body if isinstance(each, ast.Assign) and "pytestmark" in names_in(each)]
    else:
        marks = node.decorator_list
    return any("timing" in names_in(mark) for mark in marks)


def measures_time(node: ast.AST) -> bool:
    watched = any(
        isinstance(each, ast.Attribute) and each.attr == "seconds" and isinstance(each.value, ast.Name)
        for each in ast.walk(node)
    )
    return watched or bool(names_in(node) & CLOCKS)


def limits_time(node: ast.Compare) -> bool:
    """`measured < limit`, the limit without SECOND. The other way round a slow host does no harm."""
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:]):
        measured, limit = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and measures_time(measured):
            if "SECOND" not in names_in(limit):
                return True
    return False


def violations(text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    promising = functions_with_promises(tree)
    whole_file = is_marked(tree)
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("test_") and node.name in promising:
            if not whole_file and not is_marked(node):
                yield node.lineno, f"{node.name} has a promise about time and not the mark `timing`"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for each in ast.walk(node.test):
                if isinstance(each, ast.Compare) and limits_time(each):
                    yield each.lineno, "measured time is compared with a limit that is not made of SECOND"


def main() -> int:
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    files = [path for suite in SUITES for path in sorted((top / suite).rglob("*.py"))]
    found = [f"{path.relative_to(top)}:{line}: {what}" for path in files for line, what in violations(path.read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
