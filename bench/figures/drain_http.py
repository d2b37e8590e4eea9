"""Rate of requests to nginx, one per event, against wrk with as many connections.

wrk sends the same request all the time, with the same headers and body as an event has. The number of
connections of the relay is counted, not assumed. wrk runs with one and with two threads; the one that
is faster over all rounds is the baseline.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from drain import Drain, drain
from report import Figure, Goal
from workload import Bench, payload, wait_until

GOAL = Goal(0.4, 0.7)
MANY = 64

NGINX = """
daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log; {user}
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    log_format id '$http_ce_id'; access_log {access};
    keepalive_requests 1000000000;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}
}}
"""

WRK = """
wrk.method = "POST"
wrk.body = [[{payload}]]
wrk.headers["User-Agent"] = "pg_outbox"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["ce-specversion"] = "1.0"
wrk.headers["ce-id"] = "0190f3a4-0000-7000-8000-000000000000"
wrk.headers["ce-source"] = "/bench/account"
wrk.headers["ce-type"] = "AccountChanged"
wrk.headers["ce-subject"] = "a1234"
wrk.headers["ce-time"] = "2026-01-01T10:10:10.123456Z"
wrk.headers["ce-partitionkey"] = "a1234"
wrk.headers["ce-sequence"] = "1234567"
wrk.headers["ce-aggregateversion"] = "1234"
wrk.headers["ce-schemaversion"] = "1"
wrk.headers["ce-topic"] = "account.events"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def run_nginx(bench: Bench, name: str, configuration: str, **values: object) -> Iterator[int]:
    """Runs an nginx; {root}, {port}, {user} and `values` are filled into its configuration."""
    root, port = bench.cluster.root, free_port()
    conf = root / f"{name}.conf"
    conf.write_text(
        configuration.format(root=root, port=port, user="user postgres;" if os.geteuid() == 0 else "", **values)
    )
    with subprocess.Popen(["/usr/sbin/nginx", "-e", root / f"{name}.log", "-c", conf]) as server:
        try:
            wait_until(lambda: answers(port), 10, "nginx answers")
            yield port
        finally:
            server.terminate()


def nginx(bench: Bench, access: str = "off"):
    return run_nginx(bench, "nginx", NGINX, access=access)


def connections_to(port: int) -> int:
    """Counts established connections, on the side that opened them."""
    remote = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[2] == remote and fields[3] == "01" for fields in map(str.split, lines))


def wrk(bench: Bench, port: int, threads: int, connections: int, seconds: int) -> float:
    script = bench.cluster.root / "post.lua"
    script.write_text(WRK.format(payload=payload()))
    output = subprocess.check_output(
        [
            "wrk",
            f"-t{threads}",
            f"-c{max(threads, connections)}",
            f"-d{seconds}s",
            "-s",
            script,
            f"http://127.0.0.1:{port}/events",
        ],
        text=True,
    )
    if "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(f"wrk failed: {output}")
    return float(re.search(r"Requests/sec:\s+([\d.]+)", output).group(1))


def drain_log(bench: Bench, port: int, events: int, **options: str) -> Drain:
    bench.clear_log()
    bench.fill(events, 100)
    return drain(
        bench, events, f"http://127.0.0.1:{port}/events", pause=0.05, look=lambda: connections_to(port), **options
    )


class WrkContest:
    """Compares a relay with this number of connections to wrk with as many."""

    def __init__(self, bench: Bench, port: int, **options: str):
        self.bench, self.port, self.options = bench, port, options
        self.relay: list[float] = []
        self.wrk: dict[int, list[float]] = {1: [], 2: []}
        self.cpu: list[tuple[float, float]] = []  # microseconds an event
        self.connections = 0

    def drain(self, events: int) -> tuple[float, float]:
        """Returns the rate, and the number of connections."""
        run = drain_log(self.bench, self.port, events, **self.options)
        return run.rate, run.most_seen

    def round(self, events: int, seconds: int) -> None:
        rate, connections = self.bench.undisturbed(lambda: self.drain(events))
        self.relay.append(rate)
        self.connections = max(self.connections, int(connections))
        for threads, rates in self.wrk.items():
            rates.append(self.bench.undisturbed(lambda: wrk(self.bench, self.port, threads, self.connections, seconds)))

    def better_wrk(self) -> int:
        return max(self.wrk, key=lambda threads: median(self.wrk[threads]))

    def ratios(self) -> list[float]:
        return [relay / wrk for relay, wrk in zip(self.relay, self.wrk[self.better_wrk()])]


def add_rows(figure: Figure, contest: WrkContest, label: str) -> None:
    """Adds the rates."""
    figure.add(f"{label}, {contest.connections} connections", contest.relay, "requests/s")
    for threads, rates in contest.wrk.items():
        chosen = " (baseline)" if threads == contest.better_wrk() else ""
        figure.add(f"wrk -t{threads} -c{contest.connections}{chosen}", rates, "requests/s")


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds, events = (3, 2, 50_000) if bench.quick else (7, 4, 250_000)
    bench.touch_memory()
    with nginx(bench) as port:
        contests = [WrkContest(bench, port), WrkContest(bench, port, max_connections=str(MANY))]
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            for contest in contests:
                contest.round(events, seconds)
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{contest.connections} connections {contest.ratios()[-1]:.2f}" for contest in contests)
            )

    figure = Figure("drain_http", "Drain to HTTP, one request an event, as a share of wrk's requests")
    for contest in contests:
        default = "" if contest.options else " (the default)"
        figure.add(f"{contest.connections} connections{default}", contest.ratios(), "of wrk", GOAL)
    for contest in contests:
        add_rows(figure, contest, "relay")
    figure.notes = ["nginx with 2 workers answers 204; 512-byte payload", bench.disturbances()]
    return figure
