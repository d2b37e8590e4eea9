"""Rate of events to brokers, beside ulak, another extension that publishes from inside PostgreSQL.

It is measured where the server has it (https://github.com/zeybek/ulak). Both extensions are loaded into one server and
drain events with the same payload to the same broker, in turns. ulak has its default settings. Two are left out: Redis,
because ulak needs a newer hiredis than that of Debian 12, and MQTT, because its worker ends with a
segmentation fault there (version 0.0.2), which restarts the server.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from drain import drain
from figures.drain_http import nginx
from figures.drain_nats import SUBJECT, nats
from figures.drain_rabbitmq import rabbitmq
from report import Figure
from workload import KEYS, Bench, payload, wait_until

PRELOAD = ["ulak"]
SETTINGS = {
    "ulak.database": "bench",
    "ulak.http_allow_internal_urls": "on",
}
BATCH = 1000  # messages put into its queue by one statement
QUEUE = "account"


def completed(bench: Bench) -> int:
    return bench.sql.execute("SELECT count(*) FROM ulak.queue WHERE status = 'completed'").fetchone()[0]


def send(bench: Bench, messages: int, endpoint: str, body: str) -> None:
    with bench.sql.transaction():  # its workers see all messages at once, and with statistics
        for _ in range(0, messages, BATCH):
            bench.sql.execute("SELECT ulak.send_batch(%s, array_fill(%s::jsonb, ARRAY[%s]))", [endpoint, body, BATCH])
        bench.sql.execute("ANALYZE ulak.queue")


@dataclass
class Broker:
    name: str
    run: Callable[[Bench], Iterator[int]]  # yields its port
    ours: Callable[[int], dict[str, str]]
    protocol: str
    theirs: Callable[[int], str]  # configuration of its endpoint
    new_server: bool = False  # for each measurement, because messages stay in it


BROKERS = [
    Broker(
        "HTTP",
        nginx,
        lambda port: {"url": f"http://127.0.0.1:{port}/"},
        "http",
        lambda port: f'{{"url": "http://127.0.0.1:{port}/", "method": "POST"}}',
    ),
    Broker(
        "RabbitMQ",
        lambda bench: rabbitmq(bench, QUEUE),
        lambda port: {"url": f"amqp://127.0.0.1:{port}", "routing_key": QUEUE},
        "amqp",
        lambda port: f'{{"host": "127.0.0.1", "port": {port}, "exchange": "", "routing_key": "{QUEUE}"}}',
        new_server=True,
    ),
    Broker(
        "NATS JetStream",
        nats,
        lambda port: {"url": f"nats://127.0.0.1:{port}", "subject": SUBJECT},
        "nats",
        lambda port: f'{{"url": "nats://127.0.0.1:{port}", "subject": "{SUBJECT}", "jetstream": true}}',
    ),
]


class Rounds:
    def __init__(self, bench: Bench, broker: Broker, events: int) -> None:
        self.bench, self.broker, self.events = bench, broker, events

    def ours(self, port: int) -> float:
        self.bench.clear_log()
        self.bench.fill(self.events, 100, size=200)
        return drain(self.bench, self.events, pause=0.02, **self.broker.ours(port)).rate

    def theirs(self, port: int, events: int) -> float:
        sql = self.bench.sql
        sql.execute("TRUNCATE ulak.queue")
        sql.execute(
            "SELECT ulak.create_endpoint('peer', %s, %s::jsonb)", [self.broker.protocol, self.broker.theirs(port)]
        )
        try:
            send(self.bench, events, "peer", payload(200))
            wait_until(lambda: completed(self.bench) > 0, 60, "ulak has delivered a message")
            first, since = completed(self.bench), time.monotonic()
            wait_until(lambda: completed(self.bench) >= events, 300, "ulak has delivered all messages", pause=0.1)
            return (events - first) / (time.monotonic() - since)
        finally:
            sql.execute("TRUNCATE ulak.queue")
            sql.execute("SELECT ulak.drop_endpoint('peer')")

    @contextmanager
    def server(self) -> Iterator[int]:
        with self.broker.run(self.bench) as port:
            if self.broker.protocol == "nats":
                url = self.broker.ours(port)["url"]
                subprocess.check_call([self.bench.programs / "nats_loader", url, "create", SUBJECT])
            yield port


def measure(bench: Bench) -> Figure:
    bench.need_extension("ulak")
    bench.sql.execute("CREATE EXTENSION ulak")
    rounds, events, of_peer = (3, 50_000, 10_000) if bench.quick else (5, 200_000, 40_000)
    bench.touch_memory()
    figure = Figure("ulak", "Drain to brokers, beside ulak")
    for broker in BROKERS:
        both = Rounds(bench, broker, events)
        samples: dict[str, list[float]] = {"ours": [], "theirs": []}
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            steps = {"ours": both.ours, "theirs": lambda port: both.theirs(port, of_peer)}
            for name in steps if turn % 2 == 0 else reversed(steps):

                def once(step=steps[name]) -> float:
                    with both.server() as port:
                        return step(port)

                samples[name].append(bench.undisturbed(once))
            bench.say(
                f"{broker.name}: round {turn + 1} of {rounds}: {samples['ours'][-1]:,.0f} against {samples['theirs'][-1]:,.0f} events/s"
            )
        figure.add(
            f"{broker.name}, times as fast",
            [one / other for one, other in zip(samples["ours"], samples["theirs"])],
            "times",
        )
        figure.add(f"{broker.name}", samples["ours"], "events/s")
        figure.add(f"{broker.name}, ulak", samples["theirs"], "events/s")
    version = bench.sql.execute("SELECT extversion FROM pg_extension WHERE extname = 'ulak'").fetchone()[0]
    figure.notes = [
        f"ulak {version}, four workers and 200 messages a batch, which are its defaults",
        f"{events:,} events of ours and {of_peer:,} messages of ulak, 200-byte payload; ours have {KEYS:,} ordering keys, ulak's none",
        bench.disturbances(),
    ]
    return figure
