"""Rate of events to RabbitMQ, against a bare loop on rabbitmq-c that publishes the same messages with confirms.

The server is that of the distribution, a process of this figure.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from drain import drain
from figures.drain_http import answers, free_port
from recorded import cpu_seconds
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, payload, wait_until

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
NODE = "bench@localhost"
WINDOW = 10_000  # of the loop: as many as outbox.max_in_flight

CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
disk_free_limit.absolute = 1MB
load_definitions = {directory}/definitions.json
"""


@dataclass
class Sample:
    rate: float  # events per second
    cpu: float  # microseconds of processor time an event


def definitions(queue: str) -> dict[str, object]:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", **everything}],
        "queues": [{"name": queue, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    }


@contextmanager
def rabbitmq(bench: Bench, queue: str) -> Iterator[int]:
    """Runs a server with this queue for one measurement, because messages stay in it."""
    if not (SCRIPTS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
        raise Unavailable("rabbitmq-server is not installed")
    directory = bench.cluster.root / "rabbitmq"
    directory.mkdir()
    port, names, distribution = free_port(), free_port(), free_port()
    (directory / "definitions.json").write_text(json.dumps(definitions(queue)))
    (directory / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port, directory=directory))
    (directory / "plugins").write_text("[].\n")
    environment = {
        **os.environ,
        "HOME": str(directory),
        "RUNNING_UNDER_SYSTEMD": "1",
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
    }
    started = []
    try:
        with (bench.cluster.root / "rabbitmq.log").open("a") as log:
            for command, listens_on in (
                (["epmd", "-port", str(names), "-address", "127.0.0.1"], names),
                ([str(SCRIPTS / "rabbitmq-server")], port),
            ):
                started.append(
                    subprocess.Popen(
                        command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )
                wait_until(lambda: answers(listens_on), 60, f"{command[0]} answers")
        yield port
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
        shutil.rmtree(directory)


def relay(bench: Bench, events: int) -> Sample:
    bench.clear_log()
    bench.fill(events, 100, size=200)
    used = 0.0

    def look() -> float:
        nonlocal used
        process = bench.relay_pid()
        if process is not None:
            used = max(used, cpu_seconds(process))
        return 0

    with rabbitmq(bench, "account") as port:
        run = drain(bench, events, f"amqp://127.0.0.1:{port}", pause=0.02, look=look, routing_key="account")
    return Sample(run.rate, used / events * 1e6)


def loop(bench: Bench, events: int) -> Sample:
    with rabbitmq(bench, "account") as port:
        answer = subprocess.check_output(
            [bench.programs / "rabbitmq_loader", str(port), "account", str(events), payload(200), str(WINDOW)],
            text=True,
        )
    run = json.loads(answer)
    return Sample(events / run["seconds"], run["cpu"] / events * 1e6)


def measure(bench: Bench) -> Figure:
    bench.need_sink("rabbitmq")
    rounds, events = (3, 100_000) if bench.quick else (7, 300_000)
    bench.touch_memory()
    samples: dict[str, list[Sample]] = {"relay": [], "loop": []}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        both = {"relay": relay, "loop": loop}
        for name in both if turn % 2 == 0 else reversed(both):
            samples[name].append(bench.undisturbed(lambda: both[name](bench, events)))
        bench.say(f"round {turn + 1} of {rounds}: {samples['relay'][-1].rate / samples['loop'][-1].rate:.2f}")

    figure = Figure("drain_rabbitmq", "Drain to RabbitMQ, as a share of a bare rabbitmq-c loop")
    figure.add(
        f"{KEYS:,} ordering keys",
        [one.rate / other.rate for one, other in zip(samples["relay"], samples["loop"])],
        "of the loop",
        Goal(0.7, 0.9),
    )
    for name, of_name in samples.items():
        figure.add(name, [sample.rate for sample in of_name], "events/s")
        figure.add(f"CPU an event, {name}", [sample.cpu for sample in of_name], "us")
    figure.notes = [
        f"{events:,} events, 200-byte payload, one durable classic queue; {WINDOW:,} messages of the loop in flight",
        f"relay {median(sample.rate for sample in samples['relay']):,.0f} events/s",
        bench.disturbances(),
    ]
    return figure
