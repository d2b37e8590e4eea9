"""Compiles the examples in the comments of the client's public headers, and in its pages.

    header_examples.py COMPILER INCLUDE_DIRECTORY...

An example is an indented block in the comment that opens a header, or a block of C++ in a page. It may use
what an application has: a function that connects, a handler, an event.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
HEADERS = REPOSITORY / "client/include/inbox"
PAGES = REPOSITORY / "docs/client"

PREAMBLE = """
#include <thread>
#include "inbox/consumer.hpp"
#include "inbox/otlp.hpp"
#include "inbox/sources/kafka.hpp"
#include "inbox/sources/nats.hpp"
#include "inbox/sources/pubsub.hpp"
#include "inbox/sources/pull.hpp"
#include "inbox/sources/rabbitmq.hpp"
#include "inbox/sources/redis.hpp"
#include "inbox/sources/scripted.hpp"
#include "inbox/sources/sqs.hpp"
[[maybe_unused]] static const inbox::ConnectionFactory connect = [] { return PQconnectdb(""); };
[[maybe_unused]] static const inbox::Handler handler = [](inbox::Transaction&, const inbox::Event&) {};
[[maybe_unused]] static const inbox::Event event;
"""


def examples(header: Path) -> str:
    opening = header.read_text().split("#pragma once")[0]
    return "\n".join(re.findall(r"^// {5}(.*)$", opening, re.MULTILINE))


def examples_in_page(page: Path) -> list[str]:
    """What a page includes is in the preamble."""
    blocks = re.findall(r"^```cpp\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(r"^#include .*$", "", block, flags=re.MULTILINE) for block in blocks]


def main() -> int:
    compiler, *includes = sys.argv[1:]
    found = [(header, code) for header in sorted(HEADERS.rglob("*.hpp")) if (code := examples(header))]
    assert len(found) >= 5, f"examples in {[str(header) for header, _ in found]} only"
    found += [(page, code) for page in sorted(PAGES.glob("*.md")) for code in examples_in_page(page)]
    source = PREAMBLE + "".join(
        f'void example_{number}() {{\n#line 1 "example in {file.name}"\n{code}\n}}\n'
        for number, (file, code) in enumerate(found)
    )
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable"]
    paths = [f"-I{path}" for path in includes if path]
    return subprocess.run([compiler, *flags, *paths, "-x", "c++", "-"], input=source, text=True).returncode


sys.exit(main())
