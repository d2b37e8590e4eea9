"""ulak, whose workers inside the server deliver to nginx."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from figures.drain_http import nginx
from figures.impaired import receivers
from figures.latency import SESSIONS
from figures.ulak import completed, send
from versus.peer import AT_ONCE, PAYLOAD, RATE, Consumer, Peer, rate_of


class Ulak(Peer):
    def stage(self) -> None:
        self.bench.need_extension("ulak")

    def prepare(self) -> None:
        self.bench.sql.execute("CREATE EXTENSION ulak")

    @contextmanager
    def running(self) -> Iterator[None]:
        with nginx(self.bench) as port, self.endpoint("peer", port):
            yield

    @contextmanager
    def endpoint(self, name: str, port: int, path: str = "") -> Iterator[None]:
        self.bench.sql.execute(
            "SELECT ulak.create_endpoint(%s, 'http', %s::jsonb)",
            [name, f'{{"url": "http://127.0.0.1:{port}/{path}", "method": "POST"}}'],
        )
        try:
            yield
        finally:
            self.clear()
            self.bench.sql.execute("SELECT ulak.drop_endpoint(%s)", [name])

    def clear(self) -> None:
        self.bench.sql.execute("TRUNCATE ulak.queue")

    def workers(self) -> list[int]:
        return [
            pid
            for (pid,) in self.bench.sql.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'ulak%' OR application_name LIKE 'ulak%'"
            ).fetchall()
        ]

    def completed(self) -> int:
        return completed(self.bench)

    def fill(self, events: int, endpoint: str = "peer") -> None:
        send(self.bench, events, endpoint, PAYLOAD)

    def drain(self, events: int) -> tuple[float, float]:
        self.fill(events)
        return rate_of(Consumer(self.completed, self.workers), events, 120)

    def goodput(self, events: int) -> float:
        """Delivers to an nginx that answers 503 to one request in a hundred."""

        def rate(failing: bool) -> float:
            name = "failing" if failing else "well"
            with self.endpoint(name, port, "unavailable_1" if failing else ""):
                self.fill(events, name)
                return rate_of(Consumer(self.completed, self.workers), int(AT_ONCE * events), 120)[0]

        with receivers(self.bench) as port:
            return self.goodput_of(rate)

    @contextmanager
    def deliver(self) -> Iterator[Consumer]:
        yield Consumer(self.completed, self.workers)

    def latency(self, seconds: int) -> dict:
        statement = self.change_and_call().replace("'peer'", "'timed'")
        with subprocess.Popen(
            [
                self.bench.programs / "latency",
                self.bench.cluster.conninfo(),
                str(RATE),
                str(seconds),
                str(SESSIONS),
                statement,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            with self.endpoint("timed", int(program.stdout.readline())):
                output, _ = program.communicate("go\n", timeout=seconds + 120)
        return json.loads(output)

    def tables(self) -> str:
        return "c.relnamespace = 'ulak'::regnamespace"
