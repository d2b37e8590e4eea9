"""Time from commit to arrival at a consumer of Apache Kafka, at a thousand events per second.

Beside it: Debezium's engine on an outbox table, as it comes, and with a short poll.interval.ms, which is how
long it waits for more before it hands over what it has. All take turns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from figures.kafka_exactly_once import need_option
from kafka import PARTITIONS, SETTINGS, Broker, Debezium, create_outbox_table, kafka
from report import Figure, Goal
from workload import Bench, Unavailable

__all__ = ["SETTINGS", "measure"]

RATE = 1000
SESSIONS = 4
QUICK, FULL = (3, 5), (5, 20)  # rounds, seconds
WARM_UP = 5  # seconds


@dataclass
class Way:
    """One way from a commit to the consumer."""

    name: str
    options: dict[str, str] = field(default_factory=dict)  # of the destination, or of Debezium
    debezium: bool = False
    isolation: str = "read_uncommitted"
    runs: list[dict] = field(default_factory=list)

    def run(self, bench: Bench, broker: Broker, seconds: int) -> dict:
        with broker.topic() as topic, self.reader(bench, broker, topic):
            self.once(bench, broker, topic, WARM_UP)
            return self.once(bench, broker, topic, seconds)

    @contextmanager
    def reader(self, bench: Bench, broker: Broker, topic: str) -> Iterator[None]:
        if self.debezium:
            bench.sql.execute("TRUNCATE app_outbox")
            with Debezium(bench, broker, topic, self.options):
                yield
            return
        bench.clear_log()
        with bench.destination(**broker.destination(topic), **self.options):
            bench.wait_until_idle()
            yield

    def once(self, bench: Bench, broker: Broker, topic: str, seconds: int) -> dict:
        variant = ["table"] if self.debezium else []
        result = bench.program(
            "kafka_latency",
            bench.cluster.conninfo(),
            str(RATE),
            str(seconds),
            str(SESSIONS),
            broker.address,
            topic,
            self.isolation,
            *variant,
        )
        if result["missing"]:
            raise RuntimeError(f"{self.name}: events are missing: {result}")
        return result

    def milliseconds(self, quantile: str) -> list[float]:
        return [run["since_commit_sent"][quantile] / 1000 for run in self.runs]


def ways(bench: Bench) -> list[Way]:
    found = [Way("at least once")]
    try:
        need_option(bench)
        found.append(Way("exactly once", {"exactly_once": "on"}, isolation="read_committed"))
    except Unavailable as error:
        bench.say(f"not measured: {error}")
    return [
        *found,
        Way("Debezium's engine", debezium=True),
        Way("the same, poll.interval.ms 5", {"poll.interval.ms": "5"}, debezium=True),
    ]


def measure(bench: Bench) -> Figure:
    rounds, seconds = QUICK if bench.quick else FULL
    create_outbox_table(bench)
    measured = ways(bench)
    with kafka(bench) as broker:
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            for way in measured:
                way.runs.append(bench.undisturbed(lambda: way.run(bench, broker, seconds)))
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(
                    f"{way.name} {way.milliseconds('p50')[-1]:.1f}/{way.milliseconds('p99')[-1]:.1f} ms"
                    for way in measured
                )
            )

    figure = Figure(
        "kafka_latency", f"Commit to arrival at a consumer of Apache Kafka, {RATE:,} events/s", logarithmic=True
    )
    for way in measured:
        goals = {} if way.debezium else {"p50": Goal(5, 2, True), "p99": Goal(25, 10, True)}
        for quantile in ("p50", "p99", "max"):
            figure.add(f"{way.name}, {quantile}", way.milliseconds(quantile), "ms", goals.get(quantile))
    for quantile in ("p50", "p99"):
        figure.add(f"the COMMIT itself, {quantile}", [run["commit"][quantile] / 1000 for run in measured[0].runs], "ms")
    for way in measured:
        figure.add(f"rate reached, {way.name}", [run["rate"] for run in way.runs], "events/s")
    figure.notes = [
        f"{SESSIONS} sessions, {rounds} runs of {seconds} s, {PARTITIONS} partitions; events that arrived twice: "
        f"{sum(run['repeated'] for way in measured for run in way.runs)}",
        bench.disturbances(),
    ]
    figure.details = {way.name: way.runs for way in measured}
    return figure
