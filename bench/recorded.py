"""A drain to a server that speaks HTTP, against a bare libcurl loop that posts the same requests.

An nginx between the relay and the server records the relay's requests once; then drains straight
to the server and the loop take turns, with as many connections as the relay had.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from drain import Drain, drain
from figures.drain_http import connections_to, run_nginx
from workload import Bench

NGINX = """
daemon off; pid {root}/record.pid; error_log {root}/record.log; {user}
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    log_format request escape=none '$request_uri\t$authorization\t$request_body';
    access_log {root}/requests request;
    client_max_body_size 20m; client_body_buffer_size 20m;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    keepalive_requests 1000000000;
    map $http_authorization $authorization {{ default $http_authorization; '-' ''; }}
    upstream server {{ server 127.0.0.1:{server}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""


@contextmanager
def recorder(bench: Bench, server: int) -> Iterator[int]:
    """Runs an nginx in front of the server at this port, which writes requests into the file `requests`."""
    (bench.cluster.root / "requests").unlink(missing_ok=True)
    with run_nginx(bench, "record", NGINX, server=server) as port:
        yield port


def cpu_seconds(process: int | None) -> float:
    if process is None:
        return 0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


WARM_UPS = 4


@dataclass
class Contest:
    """One kind of events, and both ways to send them."""

    bench: Bench
    destination: Callable[[int], dict[str, str]]  # its options, with the server at a port
    events: int
    ordered: bool = True
    headers: list[str] = field(default_factory=list)  # for the loop
    relay: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of the relay, microseconds an event
    connections: int = 0
    requests: int = 0

    @property
    def recorded(self) -> Path:
        return self.bench.cluster.root / f"requests-{'ordered' if self.ordered else 'unordered'}"

    def _drain(self, port: int, look) -> Drain:
        self.bench.clear_log()
        self.bench.fill(self.events, 100, size=200, ordered=self.ordered)
        return drain(self.bench, self.events, pause=0.05, look=look, **self.destination(port))

    def record(self, server: int) -> None:
        """`server` is the port that it listens on."""
        with recorder(self.bench, server) as port:
            run = self._drain(port, lambda: connections_to(port))
        self.connections = int(run.most_seen)
        (self.bench.cluster.root / "requests").rename(self.recorded)
        self.requests = self.recorded.read_bytes().count(b"\n")

    def warm_up(self, server: int) -> None:
        """Warms up the server, because one in Java gets faster for a long time."""
        for _ in range(WARM_UPS):
            self._post(server)

    def round(self, server: int) -> None:
        """The first one has the colder server, so they take turns in being first."""
        steps = [lambda: self._measure_relay(server), lambda: self._measure_loop(server)]
        for step in steps if len(self.relay) % 2 == 0 else reversed(steps):
            step()

    def _measure_relay(self, server: int) -> None:
        used = self.bench.undisturbed(lambda: self._drain(server, lambda: cpu_seconds(self.bench.relay_pid())))
        self.relay.append(used.rate)
        self.cpu.append(used.most_seen / self.events * 1e6)

    def _measure_loop(self, server: int) -> None:
        self.loop.append(self.events / self.bench.undisturbed(lambda: self._post(server)))

    def _post(self, server: int) -> float:
        return self.bench.program(
            "poster", f"http://127.0.0.1:{server}", str(self.connections), str(self.recorded), *self.headers
        )["seconds"]

    def ratios(self) -> list[float]:
        return [relay / loop for relay, loop in zip(self.relay, self.loop)]

    def shape(self) -> str:
        return f"{self.events / self.requests:.0f} events a request, {self.connections} connections"
