"""Decides which tests run in one process, one after the other, when pytest-xdist runs several processes.

By default those of a file do, because they share servers. A file that takes very long is divided further: otherwise
one process is still busy with it when the others have nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


def make_scheduler(config: pytest.Config, log: object, share_of: Callable[[str], str]) -> object:
    """For the hook pytest_xdist_make_scheduler. Tests with the same share run in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def parameters_of(nodeid: str) -> list[str]:
    """Returns the parameters in the name of a test."""
    return nodeid.partition("[")[2].rstrip("]").split("-")
