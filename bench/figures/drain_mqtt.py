"""Rate of events to mosquitto with QoS 1, against a bare loop on libmosquitto with the same messages."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from drain import drain
from figures.drain_http import answers, free_port
from recorded import cpu_seconds
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, payload, wait_until

WINDOW = 1000  # messages in flight; the loop is fastest with it, and the broker allows no more
TOPIC = "account.events"


@dataclass
class Sample:
    rate: float  # events per second
    cpu: float  # microseconds of processor time an event


@contextmanager
def mosquitto(bench: Bench) -> Iterator[int]:
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin")
    if program is None:
        raise Unavailable("mosquitto is not installed")
    port = free_port()
    configuration = bench.cluster.root / "mosquitto.conf"
    configuration.write_text(
        f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\n"
        f"max_inflight_messages {WINDOW}\nset_tcp_nodelay true\n"
    )
    with (
        (bench.cluster.root / "mosquitto.log").open("w") as log,
        subprocess.Popen([program, "-c", configuration], stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(lambda: answers(port), 30, "mosquitto answers")
            yield port
        finally:
            server.kill()


def drain_to(bench: Bench, port: int, events: int, **options: str) -> Sample:
    bench.clear_log()
    bench.fill(events, 100, size=200)
    used = 0.0

    def look() -> float:
        nonlocal used
        if bench.relay_pid() is not None:
            used = max(used, cpu_seconds(bench.relay_pid()))
        return 0

    run = drain(bench, events, pause=0.02, look=look, url=f"mqtt://127.0.0.1:{port}", **options)
    return Sample(run.rate, used / events * 1e6)


def load(bench: Bench, port: int, events: int, *variant: str) -> Sample:
    run = bench.program("mqtt_loader", str(port), TOPIC, str(events), str(KEYS), payload(200), str(WINDOW), *variant)
    return Sample(events / run["seconds"], run["cpu"] / events * 1e6)


def measure(bench: Bench) -> Figure:
    bench.need_sink("mqtt")
    if not (bench.programs / "mqtt_loader").exists():
        raise Unavailable("libmosquitto-dev was not installed when the benchmarks were built")
    rounds, events = (3, 50_000) if bench.quick else (7, 200_000)
    bench.touch_memory()
    samples: dict[str, list[Sample]] = {name: [] for name in ("relay", "qos 2", "loop", "bare")}
    with mosquitto(bench) as port:
        load(bench, port, events, "properties")
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            steps = [
                ("relay", lambda: drain_to(bench, port, events)),
                ("loop", lambda: load(bench, port, events, "properties")),
            ]
            if turn % 2 == 1:
                steps.reverse()
            steps += [
                ("bare", lambda: load(bench, port, events)),
                ("qos 2", lambda: drain_to(bench, port, events, qos="2")),
            ]
            for name, step in steps:
                samples[name].append(bench.undisturbed(step))
            bench.say(f"round {turn + 1} of {rounds}: {samples['relay'][-1].rate / samples['loop'][-1].rate:.2f}")

    def ratios(of: str, to: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(samples[of], samples[to])]

    figure = Figure("drain_mqtt", "Drain to mosquitto with QoS 1, as a share of a bare libmosquitto loop")
    figure.add("the same messages", ratios("relay", "loop"), "of the loop", Goal(0.6, 0.9))
    figure.add("without properties in the loop", ratios("relay", "bare"), "of the loop")
    figure.add("QoS 2", ratios("qos 2", "relay"), "of QoS 1")
    for name, label in {
        "relay": "relay",
        "qos 2": "relay, QoS 2",
        "loop": "loop",
        "bare": "loop without properties",
    }.items():
        figure.add(label, [sample.rate for sample in samples[name]], "events/s")
        figure.add(f"CPU an event, {label}", [sample.cpu for sample in samples[name]], "us")
    figure.notes = [
        f"{events:,} events, 200-byte payload, {KEYS:,} keys, at most {WINDOW:,} messages in flight, no subscriber; "
        "broker and server on the same machine",
        bench.disturbances(),
    ]
    return figure
