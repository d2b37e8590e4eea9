"""Memory of the relay while it drains ten million events of one transaction."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from report import Figure, Goal
from workload import KEYS, Bench, payload, wait_until

GOAL = Goal(128, 64, less_is_better=True)
AT_ONCE = 1000


@dataclass
class Memory:
    """Memory in MiB, without the shared memory of the server."""

    resident: float  # anonymous and file pages
    anonymous: float
    proportional: float
    peak: float  # highest resident memory, less the shared memory at that time


def memory_of(process: int) -> Memory:
    def values(file: str) -> dict[str, float]:
        text = Path(f"/proc/{process}/{file}").read_text()
        return {name: int(size) / 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}

    status, smaps = values("status"), values("smaps_rollup")
    return Memory(
        resident=status["RssAnon"] + status["RssFile"],
        anonymous=status["RssAnon"],
        proportional=smaps["Pss"] - smaps["Pss_Shmem"],
        peak=status["VmHWM"] - status["RssShmem"],
    )


def fill_in_one_transaction(bench: Bench, events: int) -> None:
    bench.sql.execute(
        f"DO $$ BEGIN FOR i IN 1 .. {events // AT_ONCE} LOOP PERFORM outbox.enqueue(ARRAY("
        f"SELECT ROW('account', 'a' || (i * 7919 + n) % {KEYS}, 'AccountChanged', '{payload()}'::jsonb, i, NULL, NULL, "
        f"NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event FROM generate_series(1, {AT_ONCE}) AS n)); "
        "END LOOP; END $$"
    )


def measure(bench: Bench) -> Figure:
    events = 1_000_000 if bench.quick else 10_000_000
    fill_in_one_transaction(bench, events)
    samples: list[Memory] = []
    start = time.monotonic()
    with bench.destination("null:"):
        wait_until(lambda: bench.relay_pid() is not None, 10, "a relay runs")
        relay = bench.relay_pid()
        while bench.delivered() < events:
            samples.append(memory_of(relay))
            if time.monotonic() - start > 600:
                raise RuntimeError(f"{bench.delivered()} of {events} events: {bench.status()}")
            time.sleep(0.01)
        samples.append(memory_of(relay))

    figure = Figure("memory", f"Memory of the relay, draining {events:,} events out of one transaction")
    figure.add("largest of the following", max(max(s.resident, s.proportional, s.peak) for s in samples), "MiB", GOAL)
    figure.add("resident, not shared memory", max(s.resident for s in samples), "MiB")
    figure.add("anonymous", max(s.anonymous for s in samples), "MiB")
    figure.add("proportional share (Pss)", max(s.proportional for s in samples), "MiB")
    figure.add("peak resident less shared memory", max(s.peak for s in samples), "MiB")
    figure.notes = [f"{len(samples)} samples of /proc, the greatest of each"]
    return figure
