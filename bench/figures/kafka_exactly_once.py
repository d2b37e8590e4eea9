"""Rate of events to Apache Kafka exactly once, against at least once."""

from figures.kafka_drain import SETTINGS, WARM_UPS, Sample, drain_to_kafka
from kafka import COMPRESSION, PARTITIONS, kafka
from report import Figure, Goal
from workload import KEYS, Bench, Unavailable

__all__ = ["SETTINGS", "measure"]

QUICK, FULL = (3, 200_000), (5, 1_000_000)  # rounds, events
GUARANTEES = {"at least once": {}, "exactly once": {"exactly_once": "on"}}


def need_option(bench: Bench) -> None:
    known = bench.sql.execute(
        "SELECT FROM outbox.destination_options() WHERE sink = 'kafka' AND option = 'exactly_once'"
    )
    if known.rowcount == 0:
        raise Unavailable("the kafka sink has no option exactly_once")


def measure(bench: Bench) -> Figure:
    rounds, events = QUICK if bench.quick else FULL
    need_option(bench)
    bench.touch_memory()
    samples: dict[str, list[Sample]] = {name: [] for name in GUARANTEES}
    with kafka(bench) as broker:
        for _ in range(WARM_UPS):
            broker.load(events, "headers")
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            names = list(GUARANTEES)
            for name in names if turn % 2 == 0 else reversed(names):
                samples[name].append(
                    bench.undisturbed(lambda: drain_to_kafka(bench, broker, events, **GUARANTEES[name]))
                )
            last = [of_name[-1].rate for of_name in samples.values()]
            bench.say(f"round {turn + 1} of {rounds}: {last[1] / last[0]:.2f}")

    ratios = [once.rate / least.rate for least, once in zip(*samples.values())]
    figure = Figure("kafka_exactly_once", "Drain to Apache Kafka exactly once, as a share of at least once")
    figure.add("exactly once", ratios, "of at least once", Goal(0.6, 0.8))
    for name, of_name in samples.items():
        figure.add(name, [sample.rate for sample in of_name], "events/s")
    for name, of_name in samples.items():
        figure.add(f"CPU an event, {name}", [sample.cpu for sample in of_name], "us")
    for name, of_name in samples.items():
        figure.add(f"memory of the relay, {name}", [sample.peak for sample in of_name], "MiB")
    figure.notes = [
        f"{events:,} events, 200-byte payload, {KEYS:,} keys, {PARTITIONS} partitions, {COMPRESSION}",
        bench.disturbances(),
    ]
    return figure
