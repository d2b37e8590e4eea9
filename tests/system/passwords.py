"""Passwords of tests. All have the same beginning, so that a log that has one of them fails its test, whatever the
test is about."""

from __future__ import annotations

import re

MARK = "s3cret-"

# A server logs the text of statements that fail, also of those in which a test sets a password.
STATEMENT_OF_A_TEST = re.compile(r"\] client backend \S* ?STATEMENT:")


def password(of: str) -> str:
    return MARK + of


def lines_with_passwords(log: str) -> list[str]:
    """`log` is that of a PostgreSQL server, where the next lines of a message are indented, or of a program."""
    found, passed_over = [], False
    for line in log.splitlines():
        if not line.startswith("\t"):
            passed_over = STATEMENT_OF_A_TEST.search(line) is not None
        if MARK in line and not passed_over:
            found.append(line)
    return found


def assert_no_passwords(log: str, of: str) -> None:
    lines = lines_with_passwords(log)
    assert not lines, f"the log of {of} has passwords:\n" + "\n".join(line[:1000] for line in lines[:20])
