"""State of a process from /proc: whether it exists, wakes up, and which threads handle its signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from passwords import assert_no_passwords
from waiting import stays, wait_until


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    """Returns the letter in /proc; Z also for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def process_exists(pid: int) -> bool:
    return state_of(pid) != "Z"


def stop_process(pid: int) -> None:
    """Sends SIGSTOP; returns when the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid), lambda state: state in "TZ", what=f"process {pid} to be stopped")


def end_process(process: subprocess.Popen[str], log: Callable[[], str]) -> None:
    """Kills the process, and fails if it has crashed or ThreadSanitizer has ended it (66), or if its log has a
    password. A test that waits for its effects only sees that nothing happens."""
    if process.poll() is None:
        process.kill()
    process.communicate()
    status = process.returncode
    crashed = status == 66 or (status < 0 and status != -signal.SIGKILL)
    assert not crashed, f"{process.args[0]} has ended by itself ({status}):\n{log()}"
    assert_no_passwords(log(), str(process.args[0]))


def describe_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid} (gone)"


def status_of(path: str) -> dict[str, str]:
    lines = Path(path, "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def wake_ups(pid: int) -> int:
    """Returns the number of times that the process went to sleep; each wake-up adds one."""
    return int(status_of(f"/proc/{pid}")["voluntary_ctxt_switches"])


def wait_until_quiet(pid: int, seconds: float = 1.0) -> None:
    def sleeps() -> bool:
        try:
            stays(lambda: wake_ups(pid), wake_ups(pid), seconds=seconds, what="wake-ups")
        except AssertionError:
            return False
        return True

    wait_until(sleeps, timeout=180, what=f"process {pid} to sleep for {seconds} s")


def wait_until_handles(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Waits until the process has a handler for the signal, which would end it before, or has ended."""

    def handles() -> bool:
        return bool(int(status_of(f"/proc/{process.pid}")["SigCgt"], 16) >> (number - 1) & 1)

    wait_until(
        lambda: process.poll() is not None or handles(), timeout=180,
        what=f"process {process.pid} to handle {number.name}",
    )  # fmt: skip


def assert_threads_block_signals(pid: int) -> int:
    """Checks that no handler of the server can run on a thread that a library started.

    Returns the number of such threads.
    """
    seen = 0
    handled = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1)
    for thread in os.listdir(f"/proc/{pid}/task"):
        if int(thread) == pid:
            continue
        try:
            status = status_of(f"/proc/{pid}/task/{thread}")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if status["Threads"] == "0":
            continue  # it is ending: what it blocked is gone, and the kernel shows zeroes
        seen += 1
        blocked = int(status["SigBlk"], 16)
        taken = [number.name for number in handled if not blocked >> (number - 1) & 1]
        assert not taken, f"thread {status['Name']} of {pid} takes {taken}"
    return seen
