"""That files named in comments, texts and pages exist: `paths.py [top of the tree]`.

Prints one line per violation and fails if there is any. A name is

* a path that begins with a folder at the top of the repository: `lib/core/clock.hpp`, `lib/core/clock`;
* a file with one of ENDINGS, with or without the folders that it is in: `clock.hpp`, `core/clock.hpp`;
* `test_log.py::test_x`, and in pages also `test_x` alone: the function must exist as well.

Passed over are names with a variable in them, and in Python `x.sql`: an attribute, or a file made for a run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

ENDINGS = ("cpp", "hpp", "py", "sql", "md", "sh", "cmake")
READ = (*ENDINGS, "txt", "yml", "toml", "in")

# Not in the repository: made by the build, installed, or of other projects.
ELSEWHERE = (
    # of our build
    "client/sources/pubsub.pb.h",
    "tests/unit/all",
    "tests/upgrade",  # of scripts/freeze.sh
    "extension/*.control",
    "lib/outbox-relay*",
    "*outbox_interface.hpp",
    "pg_inbox-*.cmake",
    "pg_inboxConfigVersion.cmake",
    "*pg_outbox--*.sql",
    "pg_tle/pg_outbox_sql.sql",
    "relay/outbox-relay",
    "parts_of_right.sql",
    "plain/wrapper.sql",
    "sql/dbdev/*",
    "sql/pg_*.control",
    "sql/pg_tle/*",
    "tools/outboxctl/outboxctl",
    # of others
    "kafka-*.sh",
    # of tests and benchmarks
    "one.cpp",
    "relay.py",
    "test_log.py::test_x",
)
# Frozen scripts of old versions, and examples of wrong names.
PASSED_OVER = ("tests/upgrade/*.sql", "tests/layout/*")


class Names:
    """What a name may mean: each file and folder, by all ends of its path."""

    def __init__(self, top: Path, files: Iterable[str]) -> None:
        self.top = top
        self.files = sorted(files)
        self.tops = sorted({path.split("/")[0] for path in self.files if "/" in path})
        self.by_end: dict[str, list[str]] = {}
        for path in {str(path) for file in self.files for path in (Path(file), *Path(file).parents)}:
            for written in {path, path.removesuffix(".in")}:
                parts = written.split("/")
                for start in range(len(parts)):
                    self.by_end.setdefault("/".join(parts[start:]), []).append(path)
        self.functions = {
            path: set(re.findall(r"^\s*(?:def|class) (\w+)", self.read(path), re.MULTILINE))
            for path in self.files
            if path.endswith(".py")
        }
        folders, ends = "|".join(map(re.escape, self.tops)), "|".join(ENDINGS)
        self.pattern = re.compile(
            rf"(?<![\w./${{}}:%<>@*\\…-])((?:{folders})/[\w./*-]*\w\*?|[\w*][\w/*-]*\.(?:{ends}))"
            rf"(?![\w/*-]|\.\w|[{{($<%])(?:::(\w+)(?!\w*[{{*]))?"
        )

    def read(self, path: str) -> str:
        return (self.top / path).read_text(errors="replace")

    def find(self, name: str) -> list[str]:
        """Paths that the name may mean; source files may be named without their ending."""
        if "*" in name:
            return [file for file in self.files if fnmatch("/" + file, "*/" + name)]
        return [path for end in ("", ".cpp", ".hpp") for path in self.by_end.get(name + end, [])]

    def missing_in(self, path: str, line: str) -> Iterator[str]:
        for name, function in self.pattern.findall(line):
            if path.endswith(".py") and name.endswith(".sql") and "/" not in name:
                continue
            found = self.find(name)
            has_function = any(function in self.functions.get(file, ()) for file in found)
            name += "::" + function if function else ""
            if not (has_function if function else found) and not any(fnmatch(name, known) for known in ELSEWHERE):
                yield name
        if path.endswith(".md"):
            for function in re.findall(r"`(test_\w+)`", line):
                if not any(function in names for names in self.functions.values()):
                    yield function


def check(top: Path, files: Iterable[str]) -> list[str]:
    names = Names(top, files)
    return [
        f"{path}:{number}: no {name}"
        for path in names.files
        if path.endswith(tuple("." + end for end in READ))
        if not any(fnmatch(path, pattern) for pattern in PASSED_OVER)
        for number, line in enumerate(names.read(path).split("\n"), 1)
        for name in names.missing_in(path, line)
    ]


def files_of(top: Path) -> Iterator[str]:
    """The tree without what .gitignore names; a copy of it may have no history to ask."""
    for folder, folders, files in os.walk(top):
        here = Path(folder).relative_to(top)
        ignored = (".", "__pycache__") if here.parts else (".", "__pycache__", "build")
        folders[:] = [name for name in folders if not name.startswith(ignored)]
        yield from (str(here / name) for name in files)


def main() -> int:
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    files = list(files_of(top))
    found = check(top, files)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
