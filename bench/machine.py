"""Share of the machine that other processes used during a measurement.

On a shared machine a slice in which other processes computed says nothing. Their share is the processor time of
the machine without that of this process and its descendants, plus the time that the hypervisor took away.
"""

import os
import time
from collections import defaultdict
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def _machine_seconds() -> float:
    user, nice, system, _, _, _, _, steal = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + steal) / TICK


def _processes() -> tuple[dict[int, list[int]], dict[int, float]]:
    """Returns children by parent, and seconds used by each process and its ended children."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        children[int(fields[1])].append(int(entry.name))
        used[int(entry.name)] = sum(map(int, fields[11:15])) / TICK
    return children, used


def seconds_of(process: int) -> float:
    """Returns the processor seconds of a process and its descendants, ended ones included."""
    children, used = _processes()
    total, left = 0.0, [process]
    while left:
        process = left.pop()
        total += used.get(process, 0.0)
        left += children[process]
    return total


class Watch:
    """Measures the share of all cores that others used since its creation."""

    def __init__(self) -> None:
        self._start = (time.monotonic(), _machine_seconds(), seconds_of(os.getpid()))

    def own(self) -> float:
        """Returns the processor seconds of this process and its descendants."""
        return seconds_of(os.getpid()) - self._start[2]

    def others(self) -> float:
        now = (time.monotonic(), _machine_seconds(), seconds_of(os.getpid()))
        elapsed, machine, own = (after - before for after, before in zip(now, self._start))
        return max(0.0, (machine - own) / elapsed / os.cpu_count())

    @staticmethod
    def of(seconds: float) -> float:
        watch = Watch()
        time.sleep(seconds)
        return watch.others()
