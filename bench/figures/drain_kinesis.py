"""Rate of events to a stream of moto's Kinesis, against a bare libcurl loop of PutRecords.

`scripts/test.sh system` installs moto into the build directory. It checks no signatures: the relay signs its
requests, the loop repeats recorded signatures. moto is a program in Python and slower than either, so the
processor time of the relay says more than the ratio.
"""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from figures.drain_http import answers, free_port
from recorded import Contest
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable, wait_until

STREAM = "account"
MOTO = Path(__file__).resolve().parents[2] / "tests/system/sinks/moto_server.py"
# moto finds the region in what was signed.
SCOPE = "Credential=any/20260101/eu-west-1/kinesis/aws4_request, SignedHeaders=host, Signature=0"
HEADERS = ["Content-Type: application/x-amz-json-1.1", "X-Amz-Target: Kinesis_20131202.PutRecords",
           "X-Amz-Date: 20260101T000000Z"]


def ask(port: int, action: str, **arguments: object) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/", json.dumps(arguments).encode(),
        {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": f"Kinesis_20131202.{action}",
         "Authorization": f"AWS4-HMAC-SHA256 {SCOPE}"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"{}")


def is_active(port: int) -> bool:
    summary = ask(port, "DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]
    return isinstance(summary, dict) and summary["StreamStatus"] == "ACTIVE"


@contextmanager
def moto(bench: Bench) -> Iterator[int]:
    """Runs a server with the stream for one round, because records stay in memory."""
    python = bench.programs.parent / "servers/python/bin/python"
    if not python.exists():
        raise Unavailable("moto is not there; scripts/test.sh system installs it")
    port = free_port()
    command = [str(python), str(MOTO), "-H", "127.0.0.1", "-p", str(port)]
    with (bench.cluster.root / "moto.log").open("w") as log, \
            subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            wait_until(lambda: answers(port), 30, "moto answers")
            ask(port, "CreateStream", StreamName=STREAM, ShardCount=4)
            wait_until(lambda: is_active(port), 30, "the stream is active")
            yield port
        finally:
            server.kill()


def destination(port: int) -> dict[str, str]:
    return {"url": f"kinesis://eu-west-1?endpoint=http://127.0.0.1:{port}", "stream": STREAM}


def measure(bench: Bench) -> Figure:
    bench.need_sink("aws")
    rounds, events = (3, 20_000) if bench.quick else (7, 60_000)
    bench.touch_memory()
    bench.credentials = {"access_key_id": "any", "secret_access_key": "any"}
    contest = Contest(bench, destination, events, headers=HEADERS)
    with moto(bench) as port:
        contest.record(port)
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        with moto(bench) as port:
            contest.warm_up(port)
            contest.round(port)
        bench.say(f"round {turn + 1} of {rounds}: {contest.ratios()[-1]:.2f}")

    figure = Figure("drain_kinesis", "Drain to a stream of moto's Kinesis, as a share of a bare libcurl loop")
    figure.add(f"{KEYS:,} ordering keys", contest.ratios(), "of the loop", Goal(0.8, 1))
    figure.add("CPU of the relay an event", contest.cpu, "us")
    figure.add("relay", contest.relay, "events/s")
    figure.add("loop", contest.loop, "events/s")
    figure.notes = [contest.shape(), "200-byte payload; the loop repeats recorded signatures", bench.disturbances()]
    return figure
