"""Finds tests that compare a stopwatch with a promise and are not marked `timing`: `timing.py [top of the tree]`.

A promise about time is written with SECOND of tests/system/waiting.py, which is a second in the suite `timing` only. So a
test that uses SECOND, itself or by a function of its file, has the mark; and an assertion that compares measured time with
a number that is not made of SECOND fails on a slow host.

Measured time is the seconds of a stopwatch or a difference of times. It is followed through the variables of a function,
not through calls.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SUITES = ("tests/system", "tests/security", "tests/drills", "tests/world", "tests/citus")
# Functions of other files that compare with SECOND.
COMPARING = {"assert_bearable"}
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "time"}  # functions that return a time
TIMES = {"began", "ended", "started"}  # attributes

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


class Measured:
    """Variables of a function that hold times and durations."""

    def __init__(self, function: Function) -> None:
        self.times: set[str] = set()
        self.durations: set[str] = set()
        known = -1
        while known < (known := len(self.times) + len(self.durations)):
            for value, target in assignments(function):
                names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)} - {"self"}
                if self.is_duration(value):
                    self.durations |= names
                elif self.is_time(value):
                    self.times |= names

    def is_time(self, node: ast.AST) -> bool:
        return any(
            isinstance(each, ast.Call) and names_in(each.func) & CLOCKS
            or isinstance(each, ast.Attribute) and each.attr in TIMES
            or isinstance(each, ast.Name) and each.id in self.times
            for each in ast.walk(node)
        )  # fmt: skip

    def is_duration(self, node: ast.AST) -> bool:
        return any(
            isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)
            and self.is_time(each) and not isinstance(each.right, ast.Constant)
            or isinstance(each, ast.Attribute) and each.attr in ("seconds", "total_seconds")
            or isinstance(each, ast.Name) and each.id in self.durations
            for each in ast.walk(node)
        )  # fmt: skip

    def is_compared_in(self, node: ast.Compare) -> bool:
        """`duration < limit`, the limit without SECOND. The other way round a slow host does no harm."""
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:]):
            if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                smaller, larger = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
                if self.is_duration(smaller) and not self.is_duration(larger) and "SECOND" not in names_in(larger):
                    return True
        return False


def assignments(function: Function) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Returns what is assigned, iterated over or appended, and to what."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from ((node.value, target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
            yield node.value, node.target
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.iter, node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            yield node.args[0], node.func.value


def functions(node: ast.AST) -> Iterator[Function]:
    """Returns functions that are not inside others."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        else:
            yield from functions(child)


def violations(text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    promising = functions_with_promises(tree)
    whole_file = is_marked(tree)
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("test_") and node.name in promising:
            if not whole_file and not is_marked(node):
                yield node.lineno, f"{node.name} has a promise about time and not the mark `timing`"
    for function in functions(tree):
        measured = Measured(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                for each in ast.walk(node.test):
                    if isinstance(each, ast.Compare) and measured.is_compared_in(each):
                        yield each.lineno, "measured time is compared with a limit that is not made of SECOND"


def main() -> int:
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    files = [path for suite in SUITES for path in sorted((top / suite).rglob("*.py"))]
    found = [f"{path.relative_to(top)}:{line}: {what}" for path in files for line, what in violations(path.read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
