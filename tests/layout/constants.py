"""Finds constants of C++ that SQL has again: `constants.py [top of the tree]`.

The headers below state limits, lists and numbers of locks. Files of SQL write @{name} (sql/constants.hpp), and the build
puts the value there. So a file of SQL with the value itself is a second place for it, which would have to be changed as
well. Comments of SQL may have values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LIMITS = ("lib/core/limits.hpp", "lib/core/advisory_locks.hpp")
NAMES = "lib/core/reserved_headers.hpp"

# Values that mean something else in a file, with what they mean there.
OTHERS = {
    ("sql/pg_outbox/backfill.sql", 100_000): "rows of a batch, and events that may wait",
    ("sql/pg_outbox/endpoint.sql", 1024): "bytes of the name of a secret, and of a tenant",
    ("sql/pg_outbox/find_event.sql", 64): "blocks",
    ("sql/pg_outbox/native/endpoint_secret.sql", 64): "bytes of a block of SHA-256",
    ("sql/pg_outbox/plain/maintain.sql", 1024): "bytes of 1 kB",
    ("sql/pg_outbox/plain/setting.sql.in", 64): "the lowest segment_size",
    ("sql/pg_outbox/plain/setting.sql.in", 1024): "bytes of 1 kB, and other limits",
    ("sql/pg_inbox/window.sql", 100_000): "rows that are removed at a time",
}
SMALLEST = 50  # smaller numbers mean too many things

CONSTANT = re.compile(r"^inline constexpr [\w:]+ (\w+) =\s+([^;]+);", re.MULTILINE)
COMMENT = re.compile(r"--[^\n]*")


class Text(str):
    def size(self) -> int:
        return len(self)


def constants_in(header: str) -> dict[str, int | str]:
    """Returns the constants of a header by name."""
    found: dict[str, int | str] = {}
    for name, value in CONSTANT.findall(header):
        value = re.sub(r"(?<=\d)'(?=\d)", "", value).replace("static_cast<int>", "int")
        known = eval(value, {"__builtins__": {}, "int": int}, found)
        found[name] = Text(known) if isinstance(known, str) else known
    return found


def names_in(header: str) -> list[str]:
    """Returns the strings of a list that mean little else: those of several words."""
    return re.findall(r'^ +"(\w+-[\w-]+)",$', header, re.MULTILINE)


def patterns_of(
    constants: dict[str, int | str], names: list[str]
) -> dict[int | str, tuple[re.Pattern[str], list[str]]]:
    """Returns by value what finds it in SQL, and the names that it can have there."""
    patterns: dict[int | str, tuple[re.Pattern[str], list[str]]] = {}
    for name, value in [*constants.items(), *(("reserved_headers", name) for name in names)]:
        if isinstance(value, str) or value >= SMALLEST:
            text = f"'{re.escape(value)}'" if isinstance(value, str) else rf"(?<![\w.-]){value}(?![\w.])"
            patterns.setdefault(value, (re.compile(text), []))[1].append(f"@{{{name}}}")
    return patterns


def violations(top: Path) -> Iterator[str]:
    constants: dict[str, int | str] = {}
    for header in LIMITS:
        constants |= constants_in((top / header).read_text())
    patterns = patterns_of(constants, names_in((top / NAMES).read_text()))
    unused = set(OTHERS)
    for path in sorted(top.glob("sql/**/*.sql*")):
        file = str(path.relative_to(top))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = COMMENT.sub("", line)
            for value, (pattern, names) in patterns.items():
                if pattern.search(code):
                    unused.discard((file, value))
                    if (file, value) not in OTHERS:
                        yield f"{file}:{number}: {value} stands in the C++ code; write {' or '.join(names)}"
    for file, value in sorted(unused):
        yield f"{file}: {value} is not there any more; remove it from OTHERS of tests/layout/constants.py"


if __name__ == "__main__":
    found = list(violations(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found))
    sys.exit(1 if found else 0)
