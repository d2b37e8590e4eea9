"""Ten thousand endpoints of one destination, each with a topic of its own, at an nginx: with one in a hundred of them
dead, half of those because nobody listens, half because nobody answers, and without, in turns.

The measure is the goodput of the others: requests that nginx has taken, over the time from the first to the last of
them. The events are in the log when the relay begins, so dead endpoints fall back while the others are served.
"""

import socket
import time
import urllib.request
from dataclasses import dataclass

from figures.drain_http import free_port, run_nginx
from figures.memory import memory_of
from report import Figure, Goal
from workload import Bench, payload, wait_until

GOAL = Goal(0.9, 0.97)
MEMORY_GOAL = Goal(256, 128, less_is_better=True)
ENDPOINTS = 10_000
ONE_DEAD_IN = 100
KEYS = 50_000

NGINX = """
daemon off; pid {root}/endpoints.pid; error_log {root}/endpoints.log crit; {user}
worker_processes 2;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {root}/e_body; proxy_temp_path {root}/e_proxy; fastcgi_temp_path {root}/e_fastcgi;
    uwsgi_temp_path {root}/e_uwsgi; scgi_temp_path {root}/e_scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 204; }}
        location = /status {{ stub_status; }}
    }}
}}
"""


class Requests:
    """Counts the requests of an nginx, without its own."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}/status"
        self.own = 0
        self.before = 0
        self.before = self.count()

    def count(self) -> int:
        self.own += 1
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            accepts, handled, requests = answer.read().split(b"\n")[2].split()
        return int(requests) - self.own - self.before


@dataclass
class Run:
    rate: float
    memory: float  # MiB, the most
    behind: int  # endpoints, the most


def fill(bench: Bench, events: int) -> None:
    bench.sql.execute(
        "SELECT count(outbox.enqueue('account', 'a' || n %% %s, 'AccountChanged', %s::jsonb, n, "
        "                            topic => 'tenant.' || n %% %s)) FROM generate_series(1, %s) AS n",
        [KEYS, payload(), ENDPOINTS, events],
    )
    bench.sql.execute("SELECT pg_logical_emit_message(true, 'bench', 'flush')")


def add_endpoints(bench: Bench, live: str, refused: str, silent: str, dead: bool) -> None:
    bench.sql.execute(
        "INSERT INTO outbox.endpoint (server, name, url, topics) "
        "SELECT 'sink', 'e' || n, CASE WHEN NOT %s OR n %% %s > 0 THEN %s WHEN n / %s %% 2 = 0 THEN %s ELSE %s END || n, "
        "       'tenant.' || n FROM generate_series(0, %s) AS n",
        [dead, ONE_DEAD_IN, live, ONE_DEAD_IN, refused, silent, ENDPOINTS - 1],
    )
    bench.sql.execute("VACUUM ANALYZE outbox.endpoint, outbox.endpoint_state")  # as autovacuum does, which is off


def drain(bench: Bench, nginx: int, refused: int, silent: int, events: int, dead: bool) -> Run:
    bench.clear_log()
    wanted = events - (events // ONE_DEAD_IN if dead else 0)
    memory, behind = 0.0, 0
    with bench.destination("endpoints:", request_timeout="5s"):
        add_endpoints(bench, *(f"http://127.0.0.1:{port}/" for port in (nginx, refused, silent)), dead)
        bench.sql.execute("SELECT outbox.pause('sink')")
        wait_until(lambda: (bench.status() or {}).get("state") == "paused", 30, "the destination is paused")
        fill(bench, events)
        requests = Requests(nginx)
        relay = bench.relay_pid()
        bench.sql.execute("SELECT outbox.resume('sink')")
        wait_until(lambda: requests.count() > 0, 60, "the first request", pause=0.005)
        start, first = time.monotonic(), requests.count()
        while (count := requests.count()) < wanted:
            memory = max(memory, memory_of(relay).peak)
            behind = max(
                behind, bench.sql.execute("SELECT FROM outbox.cursor WHERE destination LIKE 'sink/%'").rowcount
            )
            if time.monotonic() - start > 300:
                raise RuntimeError(f"{count} of {wanted} requests: {bench.status()}")
            time.sleep(0.02)
        seconds = time.monotonic() - start
        memory = max(memory, memory_of(relay).peak)
        bench.sql.execute("DELETE FROM outbox.endpoint")
    return Run((wanted - first) / seconds, memory, behind)


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, events = (3, 100_000) if bench.quick else (7, 300_000)
    bench.touch_memory()
    ratios: list[float] = []
    clean: list[Run] = []
    impaired: list[Run] = []
    refused = free_port()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        with run_nginx(bench, "endpoints", NGINX) as port:

            def run(dead: bool) -> Run:
                return bench.undisturbed(lambda: drain(bench, port, refused, silent.getsockname()[1], events, dead))

            clean.append(run(False))
            for turn in range(rounds):
                impaired.append(run(True))
                clean.append(run(False))
                ratios.append(impaired[-1].rate / ((clean[-2].rate + clean[-1].rate) / 2))
                bench.say(
                    f"round {turn + 1} of {rounds}: {ratios[-1]:.2f} of {clean[-1].rate:,.0f}/s, "
                    f"{impaired[-1].behind} behind, {impaired[-1].memory:.0f} MiB"
                )

    figure = Figure("endpoints", f"Goodput of {ENDPOINTS:,} endpoints with one in {ONE_DEAD_IN} of them dead")
    figure.add("the others", ratios, "of without", GOAL)
    figure.add(
        "memory of the relay, most of any run", max(run.memory for run in [*clean, *impaired]), "MiB", MEMORY_GOAL
    )
    figure.add("with dead endpoints", [run.rate for run in impaired], "requests/s")
    figure.add("without", [run.rate for run in clean], "requests/s")
    figure.add("endpoints behind, at most", [float(run.behind) for run in impaired])
    figure.notes = [
        f"nginx with 2 workers answers 204; {events:,} events of 512 bytes, a topic for each endpoint",
        bench.disturbances(),
    ]
    return figure
