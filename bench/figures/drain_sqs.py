"""Rate of events to a standard queue of ElasticMQ, against a bare libcurl loop of SendMessageBatch.

`scripts/test.sh system` installs ElasticMQ into the build directory. It checks no signatures: the relay
signs its requests, the loop repeats recorded signatures.
"""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from figures.drain_http import answers, free_port
from recorded import Contest
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, wait_until

QUEUE = "account"
CONFIGURATION = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""
HEADERS = [
    "Content-Type: application/x-amz-json-1.0",
    "X-Amz-Target: AmazonSQS.SendMessageBatch",
    "X-Amz-Date: 20260101T000000Z",
]


def ask(port: int, action: str, **arguments: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/",
        json.dumps(arguments).encode(),
        {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"},
    )
    urllib.request.urlopen(request).close()


@contextmanager
def elasticmq(bench: Bench) -> Iterator[int]:
    """Runs a server with the queue for one round, because messages stay in memory."""
    libraries = bench.programs.parent / "servers/elasticmq"
    if not libraries.exists():
        raise Unavailable("ElasticMQ is not there; scripts/test.sh system installs it")
    port = free_port()
    configuration = bench.cluster.root / "elasticmq.conf"
    configuration.write_text(CONFIGURATION.format(port=port))
    command = ["java", "-Xmx4g", f"-Dconfig.file={configuration}", "-cp", f"{libraries}/*", "org.elasticmq.server.Main"]
    with (
        (bench.cluster.root / "elasticmq.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            wait_until(lambda: answers(port), 30, "ElasticMQ answers")
            ask(port, "CreateQueue", QueueName=QUEUE)
            yield port
        finally:
            server.kill()


def destination(port: int) -> dict[str, str]:
    return {"url": f"sqs://elasticmq/000000000000?endpoint=http://127.0.0.1:{port}", "queue": QUEUE}


def measure(bench: Bench) -> Figure:
    bench.need_sink("aws")
    rounds, events = (3, 20_000) if bench.quick else (7, 60_000)
    bench.touch_memory()
    bench.credentials = {"access_key_id": "any", "secret_access_key": "any"}
    contest = Contest(bench, destination, events, headers=HEADERS)
    with elasticmq(bench) as port:
        contest.record(port)
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        with elasticmq(bench) as port:
            contest.warm_up(port)
            contest.round(port)
        bench.say(f"round {turn + 1} of {rounds}: {contest.ratios()[-1]:.2f}")

    figure = Figure("drain_sqs", "Drain to a standard queue of ElasticMQ, as a share of a bare libcurl loop")
    figure.add(f"{KEYS:,} ordering keys", contest.ratios(), "of the loop", Goal(0.8, 1))
    figure.add("CPU of the relay an event", contest.cpu, "us")
    figure.add("relay", contest.relay, "events/s")
    figure.add("loop", contest.loop, "events/s")
    figure.notes = [contest.shape(), "200-byte payload; the loop repeats recorded signatures", bench.disturbances()]
    return figure
