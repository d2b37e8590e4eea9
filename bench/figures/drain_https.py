"""Rate of requests to nginx over TLS, one per event, against h2load with as many connections and streams.

h2load sends the same request all the time, with the same headers and body as an event has. The number of
connections of the relay is counted, not assumed: with HTTP/2 it sends its requests side by side over few.

nginx passes each request on to itself, because then it reads it to its end before it answers. libcurl 7.88
loses answers that come earlier, and the relay would measure its own retries.
"""

import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from drain import drain
from figures.drain_http import MANY, WRK, connections_to, run_nginx
from machine import seconds_of
from recorded import cpu_seconds
from report import Figure, Goal
from workload import Bench, Unavailable, payload

GOAL = Goal(0.5, 0.7)

NGINX = """
daemon off; pid {root}/{called}.pid; error_log {root}/{called}.log; {user}
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    ssl_certificate {root}/server.crt; ssl_certificate_key {root}/server.key;
    upstream backend {{ server unix:{root}/{called}.socket; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} ssl {protocol};
        location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
    server {{ listen unix:{root}/{called}.socket; location / {{ return 204; }} }}
}}
"""


def make_certificates(root: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=root, capture_output=True)

    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (root / "names").write_text("subjectAltName = IP:127.0.0.1\n")
    openssl(
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-extfile",
        "names",
        "-days",
        "2",
        "-out",
        "server.crt",
    )


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Side:
    """The relay or h2load, and what nginx spends on it."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # microseconds a request
    nginx: list[float] = field(default_factory=list)  # the same of nginx

    def take(self, rate: float, requests: int, used: float, by_nginx: float) -> None:
        self.rates.append(rate)
        self.cpu.append(used / requests * 1e6)
        self.nginx.append(by_nginx / requests * 1e6)


class Contest:
    """Compares a relay to h2load with as many connections, and as many requests under way."""

    def __init__(self, bench: Bench, label: str, port: int, requests: int, http2: bool):
        self.bench, self.label, self.port = bench, label, port
        self.requests, self.http2 = requests, http2
        self.server = int((bench.cluster.root / f"{'http2' if http2 else 'http1'}.pid").read_text())
        self.relay, self.h2load = Side(), Side()
        self.connections = 1

    @property
    def streams(self) -> int:
        return max(1, self.requests // self.connections) if self.http2 else 1

    def drain(self, events: int) -> tuple[float, int, float, float]:
        self.bench.clear_log()
        self.bench.fill(events, 100)
        before, used = seconds_of(self.server), 0.0

        def look() -> float:
            nonlocal used
            used = max(used, cpu_seconds(self.bench.relay_pid()))
            return connections_to(self.port)

        run = drain(
            self.bench,
            events,
            f"https://127.0.0.1:{self.port}/events",
            pause=0.05,
            look=look,
            ca_file=str(self.bench.cluster.root / "ca.crt"),
            max_connections=str(self.requests),
        )
        self.connections = max(self.connections, int(run.most_seen))
        return run.rate, events, used, seconds_of(self.server) - before

    def load(self, requests: int) -> tuple[float, int, float, float]:
        root = self.bench.cluster.root
        (root / "post.json").write_text(payload())
        headers = [f"-H{name}: {value}" for name, value in re.findall(r'headers\["(.+)"\] = "(.+)"', WRK)]
        before, used = seconds_of(self.server), children_seconds()
        output = subprocess.check_output(
            [
                "h2load",
                *([] if self.http2 else ["--h1"]),
                "-t1",
                f"-c{self.connections}",
                f"-m{self.streams}",
                f"-n{requests}",
                "-d",
                root / "post.json",
                *headers,
                f"https://127.0.0.1:{self.port}/events",
            ],
            text=True,
        )
        if f" {requests} succeeded, 0 failed" not in output:
            raise RuntimeError(f"h2load failed: {output}")
        rate = float(re.search(r"([\d.]+) req/s", output).group(1))
        return rate, requests, children_seconds() - used, seconds_of(self.server) - before

    def round(self, events: int) -> None:
        def one(side: Side, measure: Callable[[int], tuple[float, int, float, float]]) -> None:
            side.take(*self.bench.undisturbed(lambda: measure(events)))

        one(self.relay, self.drain)
        one(self.h2load, self.load)

    def ratios(self) -> list[float]:
        return [relay / h2load for relay, h2load in zip(self.relay.rates, self.h2load.rates)]

    def add_rows(self, figure: Figure) -> None:
        for name, side in {"relay": self.relay, "h2load": self.h2load}.items():
            label = f"{name}, {self.label}, {self.connections} × {self.streams}"
            figure.add(label, side.rates, "requests/s")
            figure.add(f"CPU a request: {label}", side.cpu, "us")
            figure.add(f"CPU a request: nginx for {label}", side.nginx, "us")


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    if shutil.which("h2load") is None:
        raise Unavailable("h2load is not installed")
    rounds, events = (3, 50_000) if bench.quick else (7, 250_000)
    bench.touch_memory()
    make_certificates(bench.cluster.root)
    with (
        run_nginx(bench, "http2", NGINX, called="http2", protocol="http2") as http2,
        run_nginx(bench, "http1", NGINX, called="http1", protocol="") as http1,
    ):
        contests = [
            Contest(bench, "HTTP/2", http2, 16, True),
            Contest(bench, f"HTTP/2, max_connections {MANY}", http2, MANY, True),
            Contest(bench, "HTTP/1.1", http1, 16, False),
        ]
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            for contest in contests:
                contest.round(events)
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{contest.label} {contest.ratios()[-1]:.2f}" for contest in contests)
            )

    figure = Figure("drain_https", "Drain to HTTPS, one request an event, as a share of h2load's requests")
    for contest in contests:
        figure.add(contest.label, contest.ratios(), "of h2load", GOAL if contest.http2 else None)
    for contest in contests:
        contest.add_rows(figure)
    figure.notes = [
        "nginx with 2 workers passes each request on to itself, and answers 204; 512-byte payload",
        "the numbers behind a name are connections × streams",
        bench.disturbances(),
    ]
    return figure
