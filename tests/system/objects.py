"""The table of all objects, sql/objects.txt, which says what each column means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster import REPOSITORY

TABLE = REPOSITORY / "sql/objects.txt"


@dataclass(frozen=True)
class Object:
    name: str  # "outbox.ack()"
    rights: frozenset[str] = frozenset()
    edition: str = ""
    why: str = ""
    caller: str = ""
    attack: str = ""

    @property
    def extension(self) -> str:
        return self.name.partition(".")[0].removesuffix("_internal")

    @property
    def is_internal(self) -> bool:
        return self.name.partition(".")[0].endswith("_internal")

    @property
    def is_function(self) -> bool:
        return self.name.endswith("()")

    @property
    def is_granted(self) -> bool:
        return not self.rights <= {"owner"}


def read(text: str) -> dict[str, Object]:
    """Returns the lines of the table by the names of objects."""
    found: dict[str, Object] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *columns = (part.strip() for part in line.split("|"))
            rights, *others = columns or [""]
            assert name not in found, f"{name} has two lines"
            found[name] = Object(name, frozenset(rights.split(", ")) - {""}, *others)
    return found


def name_of(described: str) -> str:
    """Returns the name in the table of what the catalog describes: outbox.ack(uuid), "outbox"."fetch"(name)."""
    name, bracket, _ = described.replace('"', "").partition("(")
    return re.sub(r"(?<=inbox\.processed_)\d+$", "*", name) + (bracket and "()")


OBJECTS = read(TABLE.read_text())
