"""That links between pages lead somewhere, and that the site has all pages: `links.py [top of the tree]`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path


def broken(top: Path, page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", line):
            if "://" not in target and not (page.parent / target).exists():
                yield f"{page.relative_to(top)}:{number}: no {target}"


def left_out(top: Path) -> Iterator[str]:
    """Pages that mkdocs.yml does not have: scripts/docs.sh, of the long run, would refuse them."""
    site = (top / "mkdocs.yml").read_text()
    for page in top.glob("docs/**/*.md"):
        name = str(page.relative_to(top))
        if name not in site:
            yield f"{name}: not in mkdocs.yml"


def main() -> int:
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    pages = [
        *top.glob("*.md"),
        *top.glob("docs/**/*.md"),
        *top.glob("examples/**/*.md"),
        *top.glob("bench/*.md"),
    ]
    found = [*(line for page in sorted(pages) for line in broken(top, page)), *left_out(top)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
