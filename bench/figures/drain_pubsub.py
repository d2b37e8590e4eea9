"""Rate of events to Google's Pub/Sub emulator, against a bare libcurl loop with the same requests."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from figures.drain_http import answers, free_port
from recorded import Contest
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, wait_until

PACKAGE = "google-cloud-cli-pubsub-emulator"


def emulator_jar() -> str:
    listed = subprocess.run(["dpkg", "-L", PACKAGE], capture_output=True, text=True).stdout
    jars = [line for line in listed.splitlines() if line.endswith("all.jar")]
    if not jars:
        raise Unavailable(f"{PACKAGE} is not installed")
    return jars[0]


def create_topic(port: int, name: str) -> None:
    urllib.request.urlopen(
        urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/projects/bench/topics/{name}",
            b"{}",
            {"Content-Type": "application/json"},
            method="PUT",
        )
    ).close()


@contextmanager
def emulator(bench: Bench) -> Iterator[int]:
    """Runs an emulator with the topic `account` for one round, because it never frees the memory of messages."""
    port = free_port()
    command = [
        "java",
        "-Xmx4g",
        "-XX:MaxDirectMemorySize=8g",
        "-jar",
        emulator_jar(),
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    with (
        (bench.cluster.root / "emulator.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(lambda: answers(port), 30, "the emulator answers")
            create_topic(port, "account")
            yield port
        finally:
            server.kill()


def destination(port: int) -> dict[str, str]:
    return {"url": "pubsub://bench", "emulator_host": f"127.0.0.1:{port}", "topic": "account"}


def measure(bench: Bench) -> Figure:
    bench.need_sink("pubsub")
    rounds, ordered, unordered = (3, 40_000, 200_000) if bench.quick else (7, 100_000, 500_000)
    bench.touch_memory()
    headers = ["Content-Type: application/json"]
    contests = {
        f"{KEYS:,} ordering keys": Contest(bench, destination, ordered, headers=headers),
        "no ordering key": Contest(bench, destination, unordered, False, headers=headers),
    }
    with emulator(bench) as port:
        for one in contests.values():
            one.record(port)
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        with emulator(bench) as port:
            for one in contests.values():
                one.warm_up(port)
            for one in contests.values():
                one.round(port)
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{name} {one.ratios()[-1]:.2f}" for name, one in contests.items())
        )

    figure = Figure("drain_pubsub", "Drain to the Pub/Sub emulator, as a share of a bare libcurl loop")
    for (name, one), goal in zip(contests.items(), (Goal(0.8, 1), Goal(0.9, 1))):
        figure.add(name, one.ratios(), "of the loop", goal)
    for name, one in contests.items():
        figure.add(f"CPU of the relay an event, {name}", one.cpu, "us", Goal(10, 5, less_is_better=True))
    for name, one in contests.items():
        figure.add(f"relay, {name}", one.relay, "events/s")
        figure.add(f"loop, {name}", one.loop, "events/s")
    figure.notes = [f"{name}: {one.shape()}" for name, one in contests.items()]
    figure.notes += ["200-byte payload", bench.disturbances()]
    return figure
