"""The fixtures of the system tests, and `make_drill`. Counts are printed when all drills are over."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from conftest import *  # noqa: F403  tests/system
from conftest import MakeCluster

from .drill import SETTINGS, Drill, MakeDrill


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as path:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], **quiet).returncode != 0:
            return False
        subprocess.run(["umount", "--lazy", path], check=True)
        return True


# Not a skip, which would be a failure: it is a matter of the machine, not of the set-up.
collect_ignore = [] if may_mount() else ["test_disk_full.py"]


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
    if collect_ignore:
        terminalreporter.section("NOT TESTED: a disk that is full. Nobody may mount one here.")
    if Drill.reports:
        terminalreporter.section("counts")
        for line in Drill.reports:
            terminalreporter.write_line(line)
