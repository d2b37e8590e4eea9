"""Where files may include from, and what server code may not hold: `layout.py [top of the tree]`.

Prints one line per violation and fails if there is any.

  relay, client, tools, bgworker, extension  ->  lib/sinks  ->  lib/cloud  ->  lib/net  ->  lib/core

* An include points down this line, never up. lib/telemetry and lib/front include only lib/core, and only
  programs include lib/front. extension/ never
  includes bgworker/; client/ and tools/ use lib/core, lib/net and lib/cloud, never a sink or the
  server's part. The folders of two sinks, or of two clouds, know nothing of each other.
* extension/base and bgworker/base know nothing of the folders of features beside them. In relay/,
  serve and main.cpp use database, observe and configure, in this order.
* Only extension/base/pg.hpp and pg_compat.hpp include headers of the server.
* Functions of server code own nothing: an ereport jumps over them, and no destructor runs
  (extension/base/boundary.hpp). The exceptions are listed below.
* SQL is ASCII, comments included: CREATE EXTENSION reads a script in the encoding of the database.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What a room may include besides itself. The longest name that is a prefix of a path is its room.
BELOW_SINKS = ("lib/cloud", "lib/net", "lib/telemetry", "lib/core")
ROOMS = {
    "lib/core": (),
    "lib/net": ("lib/core",),
    "lib/telemetry": ("lib/core",),
    "lib/front": ("lib/core",),
    "lib/cloud": ("lib/net", "lib/core"),
    "lib/sinks": BELOW_SINKS,
    "extension/base": ("lib/sinks", *BELOW_SINKS),
    "extension": ("extension/base", "lib/sinks", *BELOW_SINKS),
    "bgworker/base": ("extension", "extension/base", "lib/sinks", *BELOW_SINKS),
    "bgworker": ("bgworker/base", "extension", "extension/base", "lib/sinks", *BELOW_SINKS),
    "relay/configure": ("lib/sinks", *BELOW_SINKS),
    "relay/observe": ("relay/configure", "lib/front", *BELOW_SINKS),
    "relay/database": ("relay/observe", "relay/configure", *BELOW_SINKS),
    "relay": (
        "relay/database",
        "relay/observe",
        "relay/configure",
        "lib/sinks",
        *BELOW_SINKS,
    ),
    "client": BELOW_SINKS,
    "tools": ("client", "lib/front", *BELOW_SINKS),
}
# Folders below these know nothing of each other.
SEPARATE = ("lib/cloud", "lib/sinks")
# The list of sinks names them all.
LISTS_OF_SINKS = ("lib/sinks/sink_list.cpp",)

# Where includes in quotes are looked for, after the folder of the file itself.
ROOTS = ("lib", "", "client/include", "client/src", "client/sources")
GENERATED = ("outbox_interface.hpp", "pubsub.pb.h")

MAY_INCLUDE_THE_SERVER = ("extension/base/pg.hpp", "extension/base/pg_compat.hpp")
HEADER_OF_THE_SERVER = re.compile(
    r"(?:postgres|postgres_fe|c|fmgr|funcapi|miscadmin|pgstat|pgtime|pg_config.*|pg_getopt|port"
    r"|varatt|windowapi|(?:access|archive|backup|bootstrap|catalog|commands|common|datatype"
    r"|executor|fe_utils|foreign|jit|lib|libpq|mb|nodes|optimizer|parser|partitioning|pch|port"
    r"|portability|postmaster|regex|replication|rewrite|server|snowball|statistics|storage|tcop"
    r"|tsearch|utils)/.*)\.h"
)

# Types whose objects have a destructor that must run: of the standard library, and of ours.
OWNERS = (
    r"std::(?:basic_string|string|vector|deque|list|map|multimap|set|multiset|unordered_\w+|variant"
    r"|any|function|unique_ptr|shared_ptr|weak_ptr|lock_guard|unique_lock|thread|\w*stringstream"
    r"|optional(?!<(?:std::u?int\d+_t|std::string_view|bool|double|Micros)>))\b"
    r"|(?:outbox::)?(?:AllowedHosts|Cursor|Destination|DestinationConfig|Error|EventBlock|Finding"
    r"|Option|Pipeline|Record|Receipt|Result|Secrets|Snapshot|TextTemplate|TopicFilter|Url)"
    r"\b(?!::)"
)
# Functions that are only called inside call_core(), where nothing raises. That is checked as well.
INSIDE = "inside call_core()"
# By file and name of the function; why nothing can be lost.
EXCEPTIONS = {
    "bgworker/check_main.cpp": {
        "add_target": INSIDE,
        "find": INSIDE,
        "in_one_line": INSIDE,
        "load_module": INSIDE,
        "note_missing_targets": INSIDE,
        "read_options": INSIDE,
    },
    "bgworker/relay/destination_config.cpp": {"destination": INSIDE},
    "bgworker/relay/relay_main.cpp": {"restart_relay": INSIDE},
    "extension/destinations/options.cpp": {"to_options": INSIDE},
    "extension/produce/event_input.cpp": {"check_content_type": "ContentType is made of views"},
}


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def room_of(path: str) -> str | None:
    fitting = [room for room in ROOMS if path.startswith(room + "/")]
    return max(fitting, key=len, default=None)


def folder_in(room: str, path: str) -> str | None:
    """The folder directly below the room that the file is in."""
    inner, slash, _ = path.removeprefix(room + "/").partition("/")
    return inner if slash else None


def resolve(top: Path, path: str, name: str) -> str | None:
    for root in (str(Path(path).parent), *ROOTS):
        candidate = os.path.normpath(Path(root) / name)
        if (top / candidate).is_file():
            return candidate
    return None


def may_include(path: str, target: str) -> bool:
    room, other = room_of(path), room_of(target)
    if room is None or other is None:
        return False
    if room != other:
        return other in ROOMS[room]
    if room not in SEPARATE or path in LISTS_OF_SINKS:
        return True
    return folder_in(room, target) in (None, folder_in(room, path))


def check_includes(top: Path, path: str, text: str) -> Iterator[Violation]:
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if match is None:
            continue
        quoted, system = match.groups()
        if path not in MAY_INCLUDE_THE_SERVER and HEADER_OF_THE_SERVER.fullmatch(quoted or system):
            yield Violation(path, number, f"includes a header of the server, {quoted or system}")
        elif quoted is None or quoted in GENERATED or path in MAY_INCLUDE_THE_SERVER:
            continue
        elif (target := resolve(top, path, quoted)) is None:
            yield Violation(path, number, f'cannot find "{quoted}"')
        elif not may_include(path, target):
            yield Violation(path, number, f"may not include {target}")


def without_comments_and_texts(code: str) -> str:
    """The code with blanks in place of what is no code, so that places stay the same."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    code = re.sub(
        r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)'",
        blank,
        code,
        flags=re.DOTALL,
    )
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", blank, code, flags=re.MULTILINE | re.DOTALL)


def end_of(code: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    closing = {"(": ")", "{": "}"}[code[start]]
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] == code[start]) - (code[at] == closing)
        if depth == 0:
            return at + 1
    return len(code)


def without_core_calls(code: str) -> str:
    """Nothing raises inside of call_core(), and exceptions unwind."""
    for match in re.finditer(r"(?<!void )\b(?:call_core|core|run_core)\s*(?=\()", code):
        end = end_of(code, match.end())
        code = code[: match.end()] + re.sub(r"[^\n]", " ", code[match.end() : end]) + code[end:]
    return code


def functions(code: str) -> Iterator[tuple[str, int, int, int]]:
    """Of each function of a file or class: name, start of the head, start and end of the body."""
    at, head = 0, 0
    while at < len(code):
        if code[at] == "{":
            text = code[head:at]
            name = re.search(r"([\w:~]+)\s*\((?:[^{}]*)$", text)
            is_scope = re.search(r"\b(?:namespace|class|struct|union)\b[^()=]*$|\bextern\s*$", text)
            if is_scope is not None:
                head = at + 1
            elif name is not None and "=" not in text[text.rfind("}") + 1 : name.start()]:
                first = re.search(r"([\w:~]+)\s*\(", text)
                end = end_of(code, at)
                yield (first or name)[1], head, at, end
                at = head = end
                continue
            else:
                at = end_of(code, at)  # an initializer, an enumeration
                continue
        elif code[at] in ";}":
            head = at + 1
        at += 1


def owner_in(text: str, end: str) -> re.Match[str] | None:
    template = r"(?:<(?:[^<>;{}]|<(?:[^<>;{}]|<[^<>;{}]*>)*>)*>)?"
    return re.search(rf"(?<![\w:<,&])(?<!static )(?:{OWNERS}){template}\s+{end}", text)


def check_owners(path: str, text: str) -> Iterator[Violation]:
    code = without_core_calls(without_comments_and_texts(text))
    for name, head, start, end in functions(code):
        name = name.split("::")[-1]
        if name in EXCEPTIONS.get(path, {}):
            continue
        found = owner_in(code[start:end], r"\w+\s*[;={(\[:]")
        where = start
        if found is None:
            found, where = owner_in(code[head:start], r"[\w:]+\s*[,)(]"), head
        if found is not None:
            line = code.count("\n", 0, where + found.start()) + 1
            yield Violation(path, line, f"{name}() holds an object with a destructor: {found[0].strip()}")


def check_exceptions(server_code: dict[str, str]) -> Iterator[Violation]:
    """Each exception is there, and those inside call_core() are called nowhere else."""
    parsed = {path: without_core_calls(without_comments_and_texts(text)) for path, text in server_code.items()}
    for path, reasons in EXCEPTIONS.items():
        if path not in parsed:
            continue
        for name, reason in reasons.items():
            head = re.search(rf"^(static )?[\w:<>&* ]+[ :]{name}\([^;]*?\{{", parsed[path], re.MULTILINE)
            if head is None:
                yield Violation(path, 1, f"there is no {name}() that could be an exception")
            elif reason == INSIDE:
                users = [path] if head[1] else list(parsed)
                for user in users:
                    yield from check_callers(user, parsed[user], name)


def check_callers(path: str, code: str, name: str) -> Iterator[Violation]:
    for function, _, start, end in functions(code):
        if EXCEPTIONS.get(path, {}).get(function.split("::")[-1]) == INSIDE:
            continue
        call = re.search(rf"(?<!::)\b{name}\s*\(", code[start:end])
        if call is not None:
            line = code.count("\n", 0, start + call.start()) + 1
            yield Violation(path, line, f"{name}() is called outside of call_core()")


# Where a session of a database begins: these files give it the settings that we depend on. A consumer
# connects by a function of its user, error_of_service() never gets as far as a server, and the launcher
# is in no database, whose defaults it would have.
BEGINS_SESSIONS = {
    r"PQ(?:connect(?!Poll|ionUsed)|setdb|reset)\w*": {
        "lib/core/libpq_limits.hpp", "lib/sinks/postgresql/connection.cpp", "relay/configure/connection.cpp",
    },
    r"BackgroundWorkerInitializeConnection\w*": {"bgworker/base/worker.cpp", "bgworker/launcher.cpp"},
}  # fmt: skip


def check_sessions(path: str, text: str) -> Iterator[Violation]:
    code = without_comments_and_texts(text)
    for function, places in BEGINS_SESSIONS.items():
        for call in re.finditer(rf"\b({function})\(", code):
            if path not in places:
                line = code.count("\n", 0, call.start()) + 1
                yield Violation(path, line, f"{call[1]}() begins a session that has not our settings")


def check_script(path: str, text: str) -> Iterator[Violation]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.isascii():
            yield Violation(path, number, "SQL is not ASCII")


def check(top: Path) -> list[Violation]:
    violations: list[Violation] = []
    for file in sorted([*(top / "sql").rglob("*.sql"), *(top / "sql").rglob("*.sql.in")]):
        violations += check_script(str(file.relative_to(top)), file.read_text())
    server_code = {}
    for room in sorted({room.split("/")[0] for room in ROOMS}):
        for file in sorted((top / room).rglob("*.?pp")):
            path, text = str(file.relative_to(top)), file.read_text()
            violations += check_includes(top, path, text)
            violations += check_sessions(path, text)
            if path.startswith(("extension/", "bgworker/")):
                violations += check_owners(path, text)
                server_code[path] = text
    return [*violations, *check_exceptions(server_code)]


def main() -> int:
    violations = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
