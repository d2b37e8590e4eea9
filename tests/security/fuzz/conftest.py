"""Fixtures of the fuzzers: `new_fuzz`. Counts are printed when all have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fuzz import SETTINGS, Fuzz, NewFuzz

from cluster import MakeCluster


# Replaces the fixture for attacks, which starts the shared server.
@pytest.fixture(autouse=True)
def new_role() -> None:
    return None


@pytest.fixture
def new_fuzz(make_cluster: MakeCluster) -> NewFuzz:
    def make(name: str, *, share: int = 1, settings: dict[str, str] | None = None) -> Fuzz:
        return Fuzz(make_cluster({**SETTINGS, **(settings or {})}), name, share=share)

    return make


@pytest.fixture(autouse=True)
def counts(record_property: Callable[[str, str], None]) -> Iterator[None]:
    Fuzz.reports.clear()
    yield
    for line in Fuzz.reports:
        record_property("counts", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for some in terminalreporter.stats.values() for report in some]
    lines = [line for report in reports if getattr(report, "when", "") == "teardown"
             for name, line in report.user_properties if name == "counts"]  # fmt: skip
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.write_line(line)
