"""Runs the figures, each on a server of its own, and reports. Called by run.sh, which sets things up."""

import argparse
import importlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import report
from cluster import Cluster
from workload import Bench, Unavailable

FIGURES = [
    "enqueue",
    "drain_null",
    "drain_http",
    "drain_https",
    "drain_inbox",
    "drain_pubsub",
    "drain_sqs",
    "drain_mqtt",
    "drain_rabbitmq",
    "drain_nats",
    "drain_redis",
    "kafka_drain",
    "kafka_exactly_once",
    "kafka_latency",
    "latency",
    "latency_load",
    "backlog",
    "memory",
    "idle",
    "wal",
    "rotation",
    "outage",
    "isolation",
    "destinations",
    "expressions",
    "duplicates",
    "pull",
    "inbox_check",
    "inbox_apply",
    "dedupe",
    "apply",
    "end_to_end",
    "capture",
    "capture_bulk",
    "outbox_view",
    "backfill",
    "impaired",
    "impaired_lanes",
    "endpoints",
    "operators",
    "sql_enqueue",
    "relay_drain",
    "relay_drain_http",
    "relay_latency",
    "relay_idle",
    "relay_memory",
]
ON_REQUEST = ["enqueue_draining", "held_snapshot", "backlog_huge", "curves", "ulak", "citus"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.sh")
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: a look, not a figure")
    parser.add_argument("--rounds", type=int, help="of versus; otherwise 5, or 1 with --quick")
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="figure",
        default=FIGURES,
        help=f"one or more of {', '.join(FIGURES)}; or, only when named, {', '.join(ON_REQUEST)}; "
        "or versus and names of peers: all peers in one run",
    )
    arguments = parser.parse_args()
    if arguments.figures[0] == "versus":
        return arguments
    for name in arguments.figures:
        if name not in FIGURES + ON_REQUEST:
            parser.error(f"no figure is called {name}; there are {', '.join(FIGURES + ON_REQUEST)}")
    return arguments


def about(quick: bool) -> dict:
    commit = subprocess.run(
        ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "commit": commit.stdout.strip(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "quick": quick,
        "processor": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
    }


def measure(name: str, build: Path, quick: bool) -> report.Figure:
    module = importlib.import_module(f"figures.{name}")
    print(f"{name}:", flush=True)
    with Cluster(build, getattr(module, "SETTINGS", {}), getattr(module, "PRELOAD", ())) as cluster:
        return module.measure(Bench(cluster, build / "bench", quick))


def main() -> None:
    # A terminated run must not leave its server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments = parse_arguments()
    if arguments.figures[0] == "versus":
        from versus import compare

        compare.main(arguments.build, arguments.quick, arguments.rounds, arguments.figures[1:], about(arguments.quick))
        return
    output = arguments.build / "bench"
    header = about(arguments.quick)
    figures = []
    for name in arguments.figures:
        try:
            figures.append(measure(name, arguments.build, arguments.quick))
        except Unavailable as error:
            print(f"    NOT MEASURED: {error}")
            continue
        report.write_json(figures, output / "results.json", header)
    for figure in figures:
        report.print_table(figure)
    if not figures:
        sys.exit("nothing was measured")
    report.plot(figures, output / "results.png")
    print(f"\nWritten: {output}/results.json, {output}/results.png")


if __name__ == "__main__":
    main()
