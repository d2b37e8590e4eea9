"""Rate of events to a stream of Redis, against a bare loop on hiredis that pipelines the same entries."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import which

from drain import drain
from figures.drain_http import free_port
from recorded import cpu_seconds
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, payload, wait_until

STREAM = "account"


@dataclass
class Sample:
    rate: float  # events per second
    cpu: float  # microseconds of processor time an event


@contextmanager
def redis(bench: Bench) -> Iterator[int]:
    """Runs a server for one measurement, because entries stay in memory."""
    if which("redis-server") is None:
        raise Unavailable("redis-server is not installed")
    port = free_port()
    log = bench.cluster.root / "redis.log"
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd="/") as server:
        try:
            wait_until(lambda: "Ready to accept connections" in log.read_text(), 30, "Redis answers")
            yield port
        finally:
            server.kill()


def drain_to_redis(bench: Bench, events: int, **options: str) -> Sample:
    bench.clear_log()
    bench.fill(events, 100, size=200)
    used = 0.0

    def look() -> float:
        nonlocal used
        process = bench.relay_pid()
        if process is not None:
            used = max(used, cpu_seconds(process))
        return 0

    with redis(bench) as port:
        run = drain(bench, events, url=f"redis://127.0.0.1:{port}", stream=STREAM, look=look, **options)
    return Sample(run.rate, used / events * 1e6)


def load(bench: Bench, events: int) -> Sample:
    with redis(bench) as port:
        run = bench.program("redis_loader", str(port), STREAM, str(events), str(KEYS), payload(200))
    return Sample(events / run["seconds"], run["cpu"] / events * 1e6)


def measure(bench: Bench) -> Figure:
    bench.need_sink("redis")
    rounds, events = (3, 200_000) if bench.quick else (7, 500_000)
    bench.touch_memory()
    samples: dict[str, list[Sample]] = {"relay": [], "auto": [], "loop": []}
    steps = {
        "relay": lambda: drain_to_redis(bench, events),
        "loop": lambda: load(bench, events),
        "auto": lambda: drain_to_redis(bench, events, ids="auto"),
    }
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for name in steps if turn % 2 == 0 else reversed(steps):
            samples[name].append(bench.undisturbed(steps[name]))
        last = {name: of_name[-1].rate for name, of_name in samples.items()}
        bench.say(f"round {turn + 1} of {rounds}: {last['relay'] / last['loop']:.2f} of the loop")

    def ratios(name: str) -> list[float]:
        return [one.rate / loop.rate for one, loop in zip(samples[name], samples["loop"])]

    figure = Figure("drain_redis", "Drain to a stream of Redis, as a share of a bare hiredis loop")
    figure.add("ids from positions", ratios("relay"), "of the loop", Goal(0.7, 0.9))
    figure.add("ids by Redis", ratios("auto"), "of the loop")
    for name, label in (("relay", "relay"), ("loop", "loop")):
        figure.add(label, [sample.rate for sample in samples[name]], "events/s")
        figure.add(f"CPU an event, {label}", [sample.cpu for sample in samples[name]], "us")
    figure.notes = [
        f"{events:,} events, 200-byte payload, {KEYS:,} keys; the loop pipelines the same fields, without transactions",
        "Redis shares the machine, keeps nothing on disk, and has a new process for each measurement",
        bench.disturbances(),
    ]
    return figure
