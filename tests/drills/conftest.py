"""The fixtures of the system tests, and `make_drill`. Counts are printed when all drills are over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import *  # noqa: F403  tests/system
from conftest import MakeCluster

from .drill import SETTINGS, Drill, MakeDrill


@pytest.fixture
def make_drill(
    make_cluster: MakeCluster, http: None, request: pytest.FixtureRequest
) -> Iterator[MakeDrill]:
    made: list[Drill] = []

    def make(*, settings: dict[str, str] | None = None, **options: str) -> Drill:
        made.append(Drill(make_cluster({**SETTINGS, **(settings or {})}), request.node.name, **options))
        return made[-1]

    yield make
    for drill in made:
        drill.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if Drill.reports:
        terminalreporter.section("counts")
        for line in Drill.reports:
            terminalreporter.write_line(line)
