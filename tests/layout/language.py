"""Counts sentences that are hard to read, by room: `language.py [--list ROOM] [top of the tree]`.

Reads comments, docstrings, COMMENT ON and Markdown, without code and tables. A room is a folder. A
sentence is a hit if one of the patterns below finds it. A hit may be a good sentence, about once in
ten times, so a room may have some: its limit is a share of its sentences, rounded up.

  --list ROOM   prints the hits of a room, or of all rooms in a folder, as `file:line: [pattern] sentence`
"""

from __future__ import annotations

import argparse
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

# The longest name that is a prefix of a path is its room. Each folder in lib/sinks is one as well.
ROOMS = (
    "bench",
    "bgworker",
    "client/include",
    "client/sources",
    "client/src",
    "docs",
    "extension",
    "lib/cloud",
    "lib/core",
    "lib/net",
    "lib/sinks",
    "relay",
    "scripts",
    "sql",
    "tests/citus",
    "tests/drills",
    "tests/security",
    "tests/system",
    "tests/unit",
    "tests/world",
    "tools",
)
# Limits in percent, for a room that is not listed: LIMIT. They may be lowered, but not raised.
LIMIT = 1
LIMITS = {
    "docs": 3,
    "scripts": 3,
    "sql": 2,
    "tests/unit": 5,
}

THINGS_ARE_NO_PERSONS = (
    r"(?<!user )(?<!users )(?<!people )(?<!person )(?<!operator )(?<!operators )(?<!reader )(?<!readers )(?<!developer )"
    r"(?<!developers )(?<!administrator )(?<!administrators )(?<!attacker )(?<!somebody )(?<!anybody )(?<!everybody )"
)
VALUE = r"(?:-?\d+|std::nullopt|nullptr|NULL|[Nn]ull|[Ee]mpty|[Nn]one|[Nn]othing|[Tt]rue|[Ff]alse|[Nn]egative|[Zz]ero)"
PATTERNS = {
    "noun clause": (
        r"^(?:[Ww]hat|[Ww]ho|[Ww]hose|[Ww]hom|Which)\b(?![`(]|.*\?| can go wrong$)"
        r"|^[Ww]hether\b(?!.* or )|^(?:[Ww]hether|Why|How (?:many|much|long|often|far|large|old|fast|soon))\b[^,?]*$"
        r"|[;:] (?:and |but )?what [^,;?]*\b(?:is|are|was|were|has|comes?)\b[^,;?]*\b(?:is|are|was|were|stays?|must|may)\b"
        r"|^That (?:an?|the|no|every|each|all|what|it|they|one|nothing|nobody|only|two|many)\b"
        r"|^To \w+ [^,]* is to\b"
    ),
    "object in front": (
        r"^Of (?!course)(?!(?:the|these|two|several|both)\b(?:[^.]|\.\d)*, (?:the|one|an?|\d))"
        r"|[;:] of (?:this|that|these|those|it|them|two|what)\b"
        r"|^(?:This|Those|These|The rest|All this) (?:it|they|we|nobody|everybody|(?:the|an?) \w+ \w+s) "
        r"|^(?:These|Those) \w+s (?:the|an?|it|they|all of them) "
        r"|^Why\b[^,:?]*, (?:an?|the|it|no|nobody|only|nothing)\b"
        r"|^\w+(?:ed|eft|ept|wn) (?:is|are|was|were) (?:the|an?|all|what|only|no|also|those|events)\b"
    ),
    "person": rf"\b(?:[Ww]hoever|[Hh]e|[Hh]is|[Hh]im|himself)\b|{THINGS_ARE_NO_PERSONS}\bwho\b",
    "no measure": r"\b[Ss]o (?:many|long|often|much)\b(?!.*\b(?:that|as)\b)",
    "is no": (
        r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|other\b|later\b|earlier\b|less\b)"
        r"|(?<!there )(?<!There )\b(?:is|are|was|were) none\b"
        r"|^There (?:is|are|was|were) none\b"
    ),
    "colon as a verb": rf"(?:^|[;,] ){VALUE}: ",
    "calque": (
        r"\bbelongs? into\b|\bless goes on\b|\b(?:no|every|some)body's\b|\bbe (?:had|borne)\b"
        r"|\blets? pass\b|\b(?:all|what) (?:else )?there is\b|\bwhat else\b"
        r"|\b(?:amiss|anew|therein|whereof|thereof|wherein|therewith)\b"
        r"|\b(?:says?|knows?|means?|shows?|finds?|so), that\b|(?:^|[;,] )[Ee]lse (?!if\b)"
        r"|\b(?:nothing|something|anything) of (?:it|this|that|them|the|what|its|their|ours|an?)\b"
        r"|\bstand(?:s|ing)? (?:in the|there|beside|before|behind|here)\b"
        r"|\b(?:says?|tells?) (?:nothing |something )?of\b"
    ),
    "double negation": (
        r"\b(?:[Nn]othing|[Nn]obody|[Nn]one|[Nn]o \w+) that (?:\w+ ){0,2}(?:not|no|cannot)\b"
        r"|\b(?:not|cannot) (?:nothing|nobody|none|without)\b"
        r"|\b(?:nobody|no \w+) but\b"
    ),
}
HIT = re.compile("|".join(f"(?P<p{at}>{pattern})" for at, pattern in enumerate(PATTERNS.values())))
NAMES = list(PATTERNS)

COMMENTS = {
    ".cpp": re.compile(r"(?:^|(?<=\s))//+(?!/)(.*)"),
    ".sql": re.compile(r"(?:^|(?<=\s))--(?![->])(.*)"),
    ".py": re.compile(r"(?:^|(?<=\s))#(?!!)(.*)"),
}
for copies, original in ((".hpp", ".cpp"), (".go", ".cpp"), (".in", ".sql"), (".sh", ".py"), (".txt", ".py")):
    COMMENTS[copies] = COMMENTS[original]
DOCSTRING = re.compile(r'(?:\A|:\n)\s*r?"""(.*?)"""', re.DOTALL)
COMMENT_ON = re.compile(r"^COMMENT ON [^;]*? IS\s+'((?:[^']|'')*)'", re.MULTILINE)
FENCE = re.compile(r"^ *(```|~~~)")
NEW_PARAGRAPH = re.compile(r"(?:[*+-]|\d+\.|#+|>|\|) ")
END_OF_SENTENCE = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<=[.!?])[)\"`*]{0,2}\s+")
WORD = re.compile(r"[A-Za-z]{2}")
NO_PROSE = re.compile(r"(?:fmt:|type:|noqa\b|ruff:|NOLINT|clang-format )|[-=+| ]+$")
RULE = re.compile(r"^[-=]{3,} | [-=]{3,}$")


@dataclass(frozen=True)
class Sentence:
    path: str
    line: int
    text: str

    def hit(self) -> str | None:
        found = HIT.search(self.text)
        return NAMES[int(found.lastgroup[1:])] if found else None


Line = tuple[int, str]


def lines_of(text: str, first: int) -> list[Line]:
    return list(enumerate(text.split("\n"), first))


def comments(text: str, ending: str) -> Iterator[list[Line]]:
    """Blocks of comments: what follows code on its line is a block of its own."""
    pattern = COMMENTS[ending]
    block: list[Line] = []
    for number, line in enumerate(text.split("\n"), 1):
        found = pattern.search(line)
        behind_code = found is not None and not line[: found.start()].isspace() and found.start() > 0
        if block and (found is None or behind_code):
            yield block
            block = []
        if behind_code:
            yield [(number, found[1])]
        elif found is not None:
            block.append((number, found[1]))
    yield block


def blocks(path: Path, text: str) -> Iterator[list[Line]]:
    if path.suffix == ".md":
        yield markdown(text)
        return
    yield from comments(text, path.suffix)
    for kind in {".py": [DOCSTRING], ".sql": [COMMENT_ON], ".in": [COMMENT_ON]}.get(path.suffix, []):
        for found in kind.finditer(text):
            yield lines_of(found[1], text.count("\n", 0, found.start(1)) + 1)


def markdown(text: str) -> list[Line]:
    """The lines without those of code and tables."""
    prose, fence = [], None
    for number, line in lines_of(text, 1):
        mark = FENCE.match(line)
        if mark is not None:
            fence = mark[1] if fence is None else None if fence == mark[1] else fence
        elif fence is None:
            prose.append((number, "" if line.startswith(("    ", "|")) else line))
    return prose


def paragraphs(block: list[Line]) -> Iterator[list[Line]]:
    paragraph: list[Line] = []
    for number, line in block:
        text = "" if NO_PROSE.match(line.strip()) else RULE.sub("", line.strip())
        if paragraph and (not text or NEW_PARAGRAPH.match(text)):
            yield paragraph
            paragraph = []
        if text:
            paragraph.append((number, NEW_PARAGRAPH.sub("", text, count=1) if NEW_PARAGRAPH.match(text) else text))
    if paragraph:
        yield paragraph


def sentences(path: Path, name: str) -> Iterator[Sentence]:
    for block in blocks(path, path.read_text()):
        for paragraph in paragraphs(block):
            starts, text = [], ""
            for _, line in paragraph:
                starts.append(len(text))
                text += line + " "
            at = 0
            for piece in END_OF_SENTENCE.split(text):
                start = text.index(piece, at)
                at = start + len(piece)
                if len(WORD.findall(piece)) >= 2:
                    yield Sentence(name, paragraph[bisect_right(starts, start) - 1][0], piece.strip(" *`"))


def room_of(path: str) -> str:
    room = max((room for room in ROOMS if path.startswith(room + "/")), key=len)
    inner = path.removeprefix(room + "/").split("/")
    return f"{room}/{inner[0]}" if room == "lib/sinks" and len(inner) > 1 else room


def read(top: Path) -> dict[str, list[Sentence]]:
    rooms: dict[str, list[Sentence]] = {}
    for folder in ROOMS:
        for path in sorted((top / folder).rglob("*")):
            if path.suffix in COMMENTS or path.suffix == ".md":
                name = path.relative_to(top).as_posix()
                rooms.setdefault(room_of(name), []).extend(sentences(path, name))
    return rooms


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", metavar="ROOM")
    options.add_argument("top", nargs="?", type=Path, default=Path(__file__).parents[2])
    arguments = options.parse_args()
    rooms = read(arguments.top)
    if arguments.list:
        for room, found in rooms.items():
            if room == arguments.list or room.startswith(arguments.list + "/"):
                for sentence in found:
                    if pattern := sentence.hit():
                        print(f"{sentence.path}:{sentence.line}: [{pattern}] {sentence.text}")
        return 0
    above = []
    for room, found in sorted(rooms.items()):
        hits = sum(sentence.hit() is not None for sentence in found)
        limit = LIMITS.get(room, LIMIT)
        print(f"{room:24} {len(found):6} sentences {hits:5} hits {100 * hits / len(found):5.1f} %, limit {limit} %")
        if hits > ceil(limit / 100 * len(found)):
            above.append(room)
    if above:
        print("above the limit, see --list:", *above)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
