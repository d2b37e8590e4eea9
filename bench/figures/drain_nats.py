"""Rate of events to NATS JetStream, against a bare loop on nats.c with as many messages in flight."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from drain import drain
from figures.drain_http import answers, free_port
from recorded import cpu_seconds
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, payload, wait_until

QUICK, FULL = (3, 200_000), (7, 1_000_000)  # rounds, events
SUBJECT = "bench.account"

CONFIGURATION = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}", max_file_store: 20GB }}
"""


@contextmanager
def nats(bench: Bench) -> Iterator[int]:
    """Runs the server of the distribution."""
    bench.need_sink("nats")
    program = shutil.which("nats-server")
    if program is None or not (bench.programs / "nats_loader").exists():
        raise Unavailable("nats-server and libnats-dev are not there")
    port = free_port()
    configuration = bench.cluster.root / "nats.conf"
    configuration.write_text(CONFIGURATION.format(port=port, directory=bench.cluster.root / "nats"))
    with (
        (bench.cluster.root / "nats.log").open("w") as log,
        subprocess.Popen([program, "-c", configuration], stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(lambda: answers(port), 30, "nats-server answers")
            yield port
        finally:
            server.kill()


class Rounds:
    def __init__(self, bench: Bench, port: int, events: int) -> None:
        self.bench = bench
        self.url = f"nats://127.0.0.1:{port}"
        self.events = events
        self.rates: dict[str, list[float]] = {"relay": [], "loop": [], "headers": []}
        self.cpu: dict[str, list[float]] = {"relay": [], "loop": [], "headers": []}  # microseconds an event

    def create_stream(self) -> None:
        subprocess.check_call([self.bench.programs / "nats_loader", self.url, "create", SUBJECT])

    def drain(self) -> None:
        def once() -> tuple[float, float]:
            self.create_stream()
            self.bench.clear_log()
            self.bench.fill(self.events, 100, size=200)
            used = 0.0

            def look() -> float:
                nonlocal used
                process = self.bench.relay_pid()
                if process is not None:
                    used = max(used, cpu_seconds(process))
                return 0

            run = drain(self.bench, self.events, url=self.url, subject=SUBJECT, pause=0.02, look=look)
            return run.rate, used

        self.take("relay", *self.bench.undisturbed(once))

    def load(self, name: str, *variant: str) -> None:
        def once() -> dict:
            self.create_stream()
            return self.bench.program(
                "nats_loader", self.url, "load", SUBJECT, str(self.events), payload(200), *variant
            )

        run = self.bench.undisturbed(once)
        self.take(name, self.events / run["seconds"], run["cpu"])

    def take(self, name: str, rate: float, cpu: float) -> None:
        self.rates[name].append(rate)
        self.cpu[name].append(cpu / self.events * 1e6)

    def ratios(self, to: str) -> list[float]:
        return [relay / other for relay, other in zip(self.rates["relay"], self.rates[to])]


def measure(bench: Bench) -> Figure:
    rounds, events = QUICK if bench.quick else FULL
    bench.touch_memory()
    with nats(bench) as port:
        run = Rounds(bench, port, events)
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            steps = [run.drain, lambda: run.load("loop"), lambda: run.load("headers", "headers")]
            for step in steps if turn % 2 == 0 else reversed(steps):
                step()
            bench.say(f"round {turn + 1} of {rounds}: {run.ratios('loop')[-1]:.2f} of the loop")

    figure = Figure("drain_nats", "Drain to NATS JetStream, as a share of a bare nats.c loop")
    figure.add("messages with an id only in the loop", run.ratios("loop"), "of the loop", Goal(0.7, 0.9))
    figure.add("the same headers in the loop", run.ratios("headers"), "of the loop")
    names = {"relay": "relay", "loop": "loop", "headers": "loop with headers"}
    for name, label in names.items():
        figure.add(label, run.rates[name], "events/s")
    for name, label in names.items():
        figure.add(f"CPU an event, {label}", run.cpu[name], "us")
    figure.notes = [
        f"{events:,} events, 200-byte payload, {KEYS:,} keys, a stream on disk; the server shares the machine",
        "10,000 messages in flight, in the loop and in the relay",
        bench.disturbances(),
    ]
    return figure
