"""The longest wait of an enqueue that the ring of segments causes.

Events come at a steady rate. Slices in which the log moves on to the next segment, and empties the one
before, every second take turns with slices in which it stays where it is. It compares the longest
wait close to each of those moments, and at the same moments of the slice without: disk and scheduler
make enqueues wait in both. Commits do not wait for the disk here, which would hide everything else.
"""

import time
from dataclasses import dataclass
from subprocess import PIPE, Popen

from figures.enqueue import ENQUEUE
from report import Figure, Goal
from workload import ACCOUNTS, Bench, payload

CLIENTS = 4
RATE = 2000
BEFORE, AFTER = 0.02, 0.05  # seconds that belong to the moment of a rotation
SMALL, LARGE = "1MB", "1TB"


@dataclass
class Wait:
    begin: float  # seconds since the slice began
    end: float

    @property
    def milliseconds(self) -> float:
        return (self.end - self.begin) * 1000


@dataclass
class Slice:
    waits: list[Wait]
    rotations: list[float]  # moments

    def longest_at(self, moments: list[float]) -> list[float]:
        return [
            max(
                (w.milliseconds for w in self.waits if w.end > moment - BEFORE and w.begin < moment + AFTER),
                default=0.0,
            )
            for moment in moments
        ]

    def longest(self) -> float:
        return max(w.milliseconds for w in self.waits)


def changes_of_ring(bench: Bench) -> set[float]:
    return {row[0] for row in bench.sql.execute("SELECT extract(epoch FROM since)::float8 FROM outbox.ring")}


def read_waits(bench: Bench, start: float) -> list[Wait]:
    """Reads pgbench's log: client, number, microseconds since it was due, script, end, and delay."""
    waits = []
    for file in bench.cluster.root.glob("waits.*"):
        for line in file.read_text().splitlines():
            _, _, elapsed, _, seconds, micros, late = map(int, line.split())
            end = seconds + micros / 1e6 - start
            waits.append(Wait(end - (elapsed - late) / 1e6, end))
        file.unlink()
    return waits


def one_slice(bench: Bench, segment_size: str, seconds: int) -> Slice:
    bench.sql.execute(f"ALTER SYSTEM SET outbox.segment_size = '{segment_size}'")
    bench.sql.execute("SELECT pg_reload_conf()")
    script = bench.cluster.root / "enqueue.sql"
    script.write_text(f"\\set id random(1, {ACCOUNTS})\n{ENQUEUE}\n")
    command = [
        bench.cluster.bin / "pgbench",
        "-n",
        "-M",
        "prepared",
        "-c",
        str(CLIENTS),
        "-j",
        "2",
        "-R",
        str(RATE),
        "-T",
        str(seconds),
        "-D",
        f"payload={payload()}",
        "-f",
        script,
        "-l",
        "--log-prefix",
        bench.cluster.root / "waits",
        f"{bench.cluster.conninfo()} options='-c synchronous_commit=off'",
    ]
    before = changes_of_ring(bench)
    start = time.time()
    rotations: set[float] = set()
    with Popen(command, stdout=PIPE, stderr=PIPE) as pgbench:
        while pgbench.poll() is None:
            rotations |= changes_of_ring(bench)
            time.sleep(0.2)
        if pgbench.returncode != 0:
            raise RuntimeError(f"pgbench failed: {pgbench.stderr.read()}")
    # The first second, in which sessions warm up, does not count.
    waits = [wait for wait in read_waits(bench, start) if wait.begin > 1]
    return Slice(waits, sorted(at - start for at in rotations - before if 1 < at - start < seconds))


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 10) if bench.quick else (7, 20)
    bench.touch_memory()
    with_rotation: list[Slice] = []
    without: list[Slice] = []
    near: list[float] = []
    elsewhere: list[float] = []
    caused: list[float] = []
    with bench.destination("null:"):
        bench.wait_until_idle()
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            bench.undisturbed(lambda: one_slice(bench, LARGE, 3))
            without.append(bench.undisturbed(lambda: one_slice(bench, LARGE, seconds)))
            with_rotation.append(bench.undisturbed(lambda: one_slice(bench, SMALL, seconds)))
            moments = with_rotation[-1].rotations
            if not moments or without[-1].rotations:
                raise RuntimeError(f"rotations: {len(moments)} and {len(without[-1].rotations)}")
            here, there = with_rotation[-1].longest_at(moments), without[-1].longest_at(moments)
            near += here
            elsewhere += there
            caused.append(max(0.0, max(here) - max(there)))
            bench.say(
                f"round {turn + 1} of {rounds}: {len(moments)} moments, longest wait "
                f"{max(here):.2f} ms, without rotation {max(there):.2f} ms"
            )

    figure = Figure("rotation", "Longest wait of an enqueue when the log moves on to the next segment")
    figure.add("longest wait at a rotation, less that without", caused, "ms", Goal(5, 1, less_is_better=True))
    figure.add("longest wait at each rotation", near, "ms")
    figure.add("at the same moments without", elsewhere, "ms")
    figure.add("longest of a slice with rotations", [s.longest() for s in with_rotation], "ms")
    figure.add("longest of a slice without", [s.longest() for s in without], "ms")
    figure.notes = [
        f"{RATE:,} events/s from {CLIENTS} clients, synchronous_commit = off; {len(near)} times a segment "
        f"was left or emptied in {rounds} slices of {seconds} s",
        bench.disturbances(),
    ]
    return figure
