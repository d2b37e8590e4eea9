"""Cost of a receiver that fails in part: the same drain to an impaired and to a clean receiver, in turns.

nginx plays all receivers, each at a path of its own. The relay cannot know which request or key will fail: requests
are chosen at random, keys by their name. The measure is the goodput of requests that the receiver would accept.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from figures import latency
from figures.drain_http import run_nginx
from report import Figure, Goal
from workload import Bench, payload, wait_until

KEYS = 5_000
SHED = 2_000  # requests per second that a load-shedding receiver accepts

NGINX = """
daemon off; pid {root}/impaired.pid; error_log {root}/impaired.log crit; {user}
worker_processes 2;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {root}/i_body; proxy_temp_path {root}/i_proxy; fastcgi_temp_path {root}/i_fastcgi;
    uwsgi_temp_path {root}/i_uwsgi; scgi_temp_path {root}/i_scgi;
    split_clients $request_id $in_a_thousand {{ 0.1% 1; * 0; }}
    split_clients $request_id $in_a_hundred {{ 1% 1; * 0; }}
    split_clients $request_id $in_twenty {{ 5% 1; * 0; }}
    map $http_ce_partitionkey $poison {{ ~37$ 1; default 0; }}
    limit_req_zone $server_port zone=shed:1m rate={shed}r/s;
    limit_req_status 429;
    upstream clean {{ server 127.0.0.1:{port}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 204; }}
        location = /unavailable_0.1 {{ if ($in_a_thousand) {{ return 503; }} return 204; }}
        location = /unavailable_1 {{ if ($in_a_hundred) {{ return 503; }} return 204; }}
        location = /unavailable_5 {{ if ($in_twenty) {{ return 503; }} return 204; }}
        location = /throttled_1 {{ if ($in_a_hundred) {{ return 429; }} return 204; }}
        location = /closes_1 {{ if ($in_a_hundred) {{ return 444; }} return 204; }}
        location = /poison_1 {{ if ($poison) {{ return 400; }} return 204; }}
        location = /hangs_1 {{ if ($poison) {{ proxy_pass http://127.0.0.1:{silent}; break; }} return 204; }}
        location = /sheds {{
            limit_req zone=shed burst={burst} nodelay;
            proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_pass http://clean/;
        }}
    }}
}}
"""


@dataclass
class Case:
    path: str
    label: str
    goal: Goal
    share: float = 1.0  # of the events that the receiver would take
    options: dict[str, str] = field(default_factory=dict)


POISON = {"max_attempts": "4", "retry_max": "2s"}
CASES = [
    Case("unavailable_0.1", "503 to 0.1 % of the requests", Goal(0.95, 0.98)),
    Case("unavailable_1", "503 to 1 %", Goal(0.85, 0.95)),
    Case("unavailable_5", "503 to 5 %", Goal(0.6, 0.8)),
    Case("throttled_1", "429 to 1 %", Goal(0.85, 0.95)),
    Case("closes_1", "connection closed by 1 %", Goal(0.85, 0.95)),
    Case("poison_1", "1 % of the keys refused, the others", Goal(0.9, 0.97), share=0.99,
         options=POISON),
    Case("hangs_1", "1 % of the keys hang, the others", Goal(0.7, 0.9), share=0.99,
         options={"request_timeout": "5s"}),
]  # fmt: skip


@contextmanager
def receivers(bench: Bench) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        with run_nginx(bench, "impaired", NGINX, silent=silent.getsockname()[1], shed=SHED, burst=SHED // 10) as port:
            yield port


def fill(bench: Bench, events: int, lanes: int = 1) -> None:
    bench.clear_log()
    bench.sql.execute("TRUNCATE outbox.delivery")
    bench.sql.execute(
        "SELECT count(outbox.enqueue('account', 'a' || n %% %s, 'AccountChanged', %s::jsonb, n, topic => 'lane_' || n %% %s %% %s)) "
        "FROM generate_series(1, %s) AS n",
        [KEYS, payload(), KEYS, lanes, events],
    )


@dataclass
class Run:
    rate: float
    throttled: int
    failures: int
    lines_a_minute: float


def drain(bench: Bench, url: str, events: int, share: float, options: dict[str, str], lanes: int = 1) -> Run:
    """Returns events per second, from the first to the last confirmation of events that can arrive."""
    fill(bench, events, lanes)
    wanted = int(events * share)
    log_before, began = bench.cluster.log.read_bytes().count(b"\n"), time.monotonic()
    with bench.destination(url, **options):
        wait_until(lambda: bench.delivered() > 0, 30, "the first event", pause=0.005)
        start, first = time.monotonic(), bench.delivered()
        wait_until(lambda: bench.delivered() >= wanted, 120, f"{wanted} events", pause=0.005)
        seconds = time.monotonic() - start
        status = bench.status()
        lines = bench.cluster.log.read_bytes().count(b"\n") - log_before
        minutes = max(1.0, (time.monotonic() - began) / 60)
    return Run((wanted - first) / seconds, status["throttled"], status["failures"], lines / minutes)


# Troubles of 1 % of the keys: what the receiver does, events per second, options of the destination.
TAILS: dict[str, tuple[str, int, dict[str, str]]] = {
    "refuses": ("refused", latency.RATE, POISON),
    "slow": ("slow (0.3 to 3 s)", 2 * latency.RATE, {}),
}


def tail(bench: Bench, rate: int, *variant: str, **options: str) -> float:
    """Returns the microseconds within which 99 of 100 events of well keys arrive."""
    bench.clear_log()
    bench.sql.execute("TRUNCATE outbox.delivery")
    seconds = 5 if bench.quick else 20
    run = bench.undisturbed(lambda: latency.sample(bench, seconds, *variant, rate=rate, **options))
    return run["since_commit_sent"]["p99"]


def tail_ratio(bench: Bench, variant: str) -> float:
    _, rate, options = TAILS[variant]
    return tail(bench, rate, variant, **options) / tail(bench, rate)


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, events = (3, 200_000) if bench.quick else (5, 500_000)
    bench.touch_memory()
    ratios: dict[str, list[float]] = {case.path: [] for case in CASES}
    lines: dict[str, float] = {case.path: 0.0 for case in CASES}
    clean: list[float] = []
    delivered: list[float] = []
    rejected: list[float] = []
    tails: dict[str, list[float]] = {variant: [] for variant in TAILS}
    with receivers(bench) as port:

        def run(path: str, share: float = 1.0, count: int = events, **options: str) -> Run:
            return bench.undisturbed(lambda: drain(bench, f"http://127.0.0.1:{port}/{path}", count, share, options))

        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            before = run("").rate
            clean.append(before)
            for case in CASES:
                impaired = run(case.path, case.share, **case.options)
                after = run("").rate
                clean.append(after)
                ratios[case.path].append(impaired.rate / ((before + after) / 2))
                lines[case.path] = max(lines[case.path], impaired.lines_a_minute)
                before = after
            shed = run("sheds", count=SHED * 15)
            delivered.append(shed.rate / SHED)
            for variant, values in tails.items():
                values.append(tail_ratio(bench, variant))
            rejected.append(shed.throttled / (shed.throttled + SHED * 15))
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{path} {values[-1]:.2f}" for path, values in ratios.items())
                + f", sheds {delivered[-1]:.2f} rejected {rejected[-1]:.3f}, p99 "
                + ", ".join(f"{variant} {values[-1]:.2f}" for variant, values in tails.items())
            )

    figure = Figure("impaired", "Goodput at a receiver that fails in part, over that at a clean one")
    for case in CASES:
        figure.add(case.label, ratios[case.path], "of clean", case.goal)
    figure.add(f"sheds load above {SHED:,}/s: delivered", delivered, "of limit", Goal(0.9, 0.95))
    figure.add("sheds load: rejected requests", rejected, "", Goal(0.1, 0.05, less_is_better=True))
    for variant, (label, rate, _) in TAILS.items():
        figure.add(
            f"1 % of the keys {label}, p99 of the others at {rate:,}/s",
            tails[variant],
            "of clean",
            Goal(2, 1.2, less_is_better=True),
        )
    figure.add("log lines a minute, most of any case", max(lines.values()), "", Goal(12, 6, less_is_better=True))
    figure.add("clean", clean, "events/s")
    figure.notes = [
        f"nginx on the same machine, {KEYS:,} keys, 16 connections, {events:,} events",
        bench.disturbances(),
    ]
    return figure
