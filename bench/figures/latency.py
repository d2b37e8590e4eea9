"""Time from commit to arrival at an HTTP receiver, at a thousand events per second.

Measured from the moment COMMIT is sent. From the moment it returned, which is later than the moment
the event became visible, is shown as well: it can be negative.
"""

import json
import subprocess

from report import Figure, Goal
from workload import Bench

RATE = 1000
SESSIONS = 4


def run(bench: Bench, seconds: int, *variant: str, **options: str) -> dict:
    result = sample(bench, seconds, *variant, **options)
    bench.clear_log()
    return result


def sample(
    bench: Bench, seconds: float, *variant: str, rate: int = RATE, sessions: int = SESSIONS, **options: str
) -> dict:
    with subprocess.Popen(
        [
            bench.programs / "latency",
            bench.cluster.conninfo(bench.database),
            str(rate),
            str(seconds),
            str(sessions),
            *variant,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        port = int(program.stdout.readline())
        with bench.destination(f"http://127.0.0.1:{port}/events", **options):
            bench.wait_until_idle()
            output, _ = program.communicate("go\n", timeout=seconds + 60)
    result = json.loads(output)
    if program.returncode != 0 or result["missing"]:
        raise RuntimeError(f"the latency program failed: {result}")
    return result


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds = (3, 5) if bench.quick else (5, 20)
    runs = []
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        runs.append(bench.undisturbed(lambda: run(bench, seconds)))
        sent = runs[-1]["since_commit_sent"]
        bench.say(f"round {turn + 1} of {rounds}: p50 {sent['p50']:.0f} us, p99 {sent['p99']:.0f} us")

    def milliseconds(since: str, quantile: str) -> list[float]:
        return [run[since][quantile] / 1000 for run in runs]

    figure = Figure("latency", f"Commit to arrival at an HTTP receiver, {RATE:,} events/s")
    figure.add("p50", milliseconds("since_commit_sent", "p50"), "ms", Goal(1, 1, less_is_better=True))
    figure.add("p99", milliseconds("since_commit_sent", "p99"), "ms", Goal(5, 2, less_is_better=True))
    figure.add("p99.9", milliseconds("since_commit_sent", "p999"), "ms")
    figure.add("max", milliseconds("since_commit_sent", "max"), "ms")
    for quantile in ("p50", "p99", "max"):
        figure.add(f"since COMMIT returned, {quantile}", milliseconds("since_commit_returned", quantile), "ms")
    for quantile in ("p50", "p99"):
        figure.add(f"the COMMIT itself, {quantile}", milliseconds("commit", quantile), "ms")
    figure.add("rate reached", [run["rate"] for run in runs], "events/s")
    figure.notes = [
        f"{SESSIONS} sessions, {rounds} runs of {seconds} s; events that arrived twice: "
        f"{sum(run['repeated'] for run in runs)}",
        bench.disturbances(),
    ]
    figure.details = {"runs": runs}
    return figure
