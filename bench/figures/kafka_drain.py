"""Rate of events to Apache Kafka, against a bare loop on librdkafka with the same records and settings.

Beside it: Debezium's engine, which reads the same events from an outbox table of the same server and
writes them to the same broker. It keeps running, so that it is warm, and sleeps while others are measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from drain import drain
from figures.memory import memory_of
from kafka import COMPRESSION, PARTITIONS, SETTINGS, Broker, Debezium, create_outbox_table, kafka
from recorded import cpu_seconds
from report import Figure, Goal
from workload import KEYS, Bench, wait_until

__all__ = ["SETTINGS", "measure"]

QUICK, FULL = (3, 200_000), (5, 1_000_000)  # rounds, events
WARM_UPS = 3
MORE_IN_FLIGHT = 50_000


@dataclass
class Sample:
    rate: float  # events per second
    cpu: float  # microseconds of processor time an event
    peak: float = 0  # most memory, MiB


def drain_to(bench: Bench, events: int, **destination: str) -> Sample:
    """Drains a backlog, and notes the most that the relay used."""
    bench.clear_log()
    bench.fill(events, 100, size=200)
    used = Sample(0, 0)

    def look() -> float:
        process = bench.relay_pid()
        if process is not None:
            used.cpu = max(used.cpu, cpu_seconds(process))
            used.peak = max(used.peak, memory_of(process).peak)
        return 0

    run = drain(bench, events, pause=0.02, look=look, **destination)
    return Sample(run.rate, used.cpu / events * 1e6, used.peak)


def drain_to_kafka(bench: Bench, broker: Broker, events: int, **options: str) -> Sample:
    with broker.topic() as topic:
        return drain_to(bench, events, **broker.destination(topic), **options)


def drain_with_more_in_flight(bench: Bench, broker: Broker, events: int) -> Sample:
    def set_to(value: str) -> None:
        bench.sql.execute(f"ALTER SYSTEM SET outbox.max_in_flight = {value}")
        bench.sql.execute("SELECT pg_reload_conf()")
        # Workers that start have what the postmaster has read.
        wait_until(
            lambda: (
                bench.cluster.connect().execute("SHOW outbox.max_in_flight").fetchone()[0]
                == (value if value != "DEFAULT" else "10000")
            ),
            10,
            "the setting is read",
        )

    set_to(str(MORE_IN_FLIGHT))
    try:
        return drain_to_kafka(bench, broker, events)
    finally:
        set_to("DEFAULT")


def load(broker: Broker, events: int, *variant: str) -> Sample:
    run = broker.load(events, *variant)
    return Sample(events / run["seconds"], run["cpu"] / events * 1e6)


def read_by(engine: Debezium, events: int) -> Sample:
    """The rate at which Debezium reads rows that wait for it."""
    with engine.asleep():
        engine.fill_table(events)
    used = engine.cpu_seconds()
    rate = engine.broker.watch(engine.topic, engine.more(events))
    return Sample(rate, (engine.cpu_seconds() - used) / events * 1e6)


def warm_up(broker: Broker, engine: Debezium, events: int) -> None:
    """Servers in Java get faster for a long time."""
    read_by(engine, events)
    with engine.asleep():
        for _ in range(WARM_UPS):
            broker.load(events, "headers")


def measure(bench: Bench) -> Figure:
    rounds, events = QUICK if bench.quick else FULL
    bench.touch_memory()
    create_outbox_table(bench)
    samples: dict[str, list[Sample]] = {name: [] for name in ("relay", "more", "loop", "bare", "null", "debezium")}

    def take(name: str, measure_one: Callable[[], Sample]) -> None:
        samples[name].append(bench.undisturbed(measure_one))

    with kafka(bench) as broker, broker.topic() as topic, Debezium(bench, broker, topic) as engine:
        warm_up(broker, engine, events)
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            steps = [
                lambda: take("relay", lambda: drain_to_kafka(bench, broker, events)),
                lambda: take("loop", lambda: load(broker, events, "headers")),
            ]
            with engine.asleep():
                for step in steps if turn % 2 == 0 else reversed(steps):
                    step()
                take("more", lambda: drain_with_more_in_flight(bench, broker, events))
                take("bare", lambda: load(broker, events))
                take("null", lambda: drain_to(bench, events, url="null:"))
            take("debezium", lambda: read_by(engine, events))
            last = {name: of_name[-1].rate for name, of_name in samples.items()}
            bench.say(
                f"round {turn + 1} of {rounds}: {last['relay'] / last['loop']:.2f} of the loop, "
                f"{last['relay'] / last['debezium']:.1f} times Debezium"
            )
    return figure_of(bench, events, samples)


def figure_of(bench: Bench, events: int, samples: dict[str, list[Sample]]) -> Figure:
    def ratios(of: str, to: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(samples[of], samples[to])]

    more = f"relay, outbox.max_in_flight {MORE_IN_FLIGHT:,}"
    names = {
        "relay": "relay",
        "more": more,
        "loop": "loop",
        "bare": "loop without headers",
        "debezium": "Debezium's engine",
    }
    figure = Figure("kafka_drain", "Drain to Apache Kafka, as a share of a bare librdkafka loop")
    figure.add("the same records", ratios("relay", "loop"), "of the loop", Goal(0.6, 0.85))
    figure.add(f"outbox.max_in_flight {MORE_IN_FLIGHT:,}", ratios("more", "loop"), "of the loop")
    figure.add("without headers in the loop", ratios("relay", "bare"), "of the loop")
    figure.add("Debezium's engine", ratios("relay", "debezium"), "of Debezium")
    for name, label in names.items():
        figure.add(label, [sample.rate for sample in samples[name]], "events/s")
    for name, label in names.items():
        figure.add(f"CPU an event, {label}", [sample.cpu for sample in samples[name]], "us")
    above = [relay.peak - null.peak for relay, null in zip(samples["relay"], samples["null"])]
    figure.add("memory of the relay above that to null:", above, "MiB", Goal(64, 32, less_is_better=True))
    figure.add(f"memory of the {more}", [sample.peak for sample in samples["more"]], "MiB")
    figure.add("memory of the relay, peak", [sample.peak for sample in samples["relay"]], "MiB")
    figure.notes = [
        f"{events:,} events, 200-byte payload, {KEYS:,} keys, {PARTITIONS} partitions, {COMPRESSION}; the broker and all else on "
        "the same machine",
        "processor time: of the relay and its threads, the loop, the engine; not of the broker or backends",
        f"relay {median(sample.rate for sample in samples['null']):,.0f} events/s to null: in the same run",
        bench.disturbances(),
    ]
    return figure
