"""Rate at which outbox-relay drains a backlog to null:, from the start of the program to its end.

It runs with --once: it connects, takes the destination, delivers everything, saves the cursor and
ends. Beside it: the relay inside the server, from CREATE SERVER on, and Debezium's engine, warm, which
reads the same events from an outbox table of the same server.
"""

from dataclasses import dataclass

from debezium import SETTINGS, IntoNull, create_outbox_table
from drain import drain
from outbox_relay import OutboxRelay, native_edition, sql_edition
from recorded import cpu_seconds
from report import Figure, Goal
from workload import Bench

__all__ = ["SETTINGS", "measure"]

GOAL = Goal(150_000, 400_000)


@dataclass
class Sample:
    rate: float  # events per second
    relay: float  # microseconds of processor time an event
    server: float = 0
    peak: float = 0  # MiB


def fill(bench: Bench, events: int) -> None:
    bench.clear_log()
    bench.fill(events, 100)


def drain_outside(bench: Bench, events: int) -> Sample:
    fill(bench, events)
    with bench.destination("null:"):
        used = OutboxRelay(bench).once()
        settled = bench.status()["position"]
    last = bench.sql.execute("SELECT last_value FROM outbox.event_position").fetchone()[0]
    if settled != last:
        raise RuntimeError(f"it ended at position {settled} of {last}")
    return Sample(events / used.seconds, used.relay / events * 1e6, used.server / events * 1e6, used.peak)


def drain_inside(bench: Bench, events: int) -> Sample:
    fill(bench, events)
    run = drain(bench, events, "null:", look=lambda: cpu_seconds(bench.relay_pid()))
    return Sample(run.overall, run.most_seen / events * 1e6)


def drain_table(engine: IntoNull, events: int) -> Sample:
    rate, used = engine.drain(events)
    return Sample(rate, used / events * 1e6)


def measure(bench: Bench) -> Figure:
    rounds, events = (3, 500_000) if bench.quick else (5, 1_000_000)
    bench.touch_memory()
    create_outbox_table(bench)
    native, plain = native_edition(bench), sql_edition(bench)
    samples: dict[str, list[Sample]] = {name: [] for name in ("native", "sql", "inside", "debezium")}
    with IntoNull(bench, "bench", size=512) as engine:
        drain_table(engine, events)  # servers in Java get faster for a long time
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            steps = [
                ("native", lambda: drain_outside(native, events)),
                ("sql", lambda: drain_outside(plain, events)),
                ("inside", lambda: drain_inside(bench, events)),
            ]
            with engine.asleep():
                for name, step in steps if turn % 2 == 0 else reversed(steps):
                    samples[name].append(bench.undisturbed(step))
                for each in (bench, native, plain):
                    each.clear_log()
            samples["debezium"].append(bench.undisturbed(lambda: drain_table(engine, events)))
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{name} {of_name[-1].rate:,.0f}/s" for name, of_name in samples.items())
            )

    labels = {
        "native": "outbox-relay, extension",
        "sql": "outbox-relay, SQL edition",
        "inside": "relay inside the server",
        "debezium": "Debezium's engine, outbox table",
    }
    figure = Figure("relay_drain", f"Drain of {events:,} events to null: by outbox-relay", logarithmic=True)
    for name, label in labels.items():
        figure.add(label, [one.rate for one in samples[name]], "events/s", GOAL if name in ("native", "sql") else None)
    for name, label in labels.items():
        figure.add(f"CPU an event, {label}", [one.relay for one in samples[name]], "us")
    for name in ("native", "sql"):
        figure.add(f"CPU an event, the server for {labels[name]}", [one.server for one in samples[name]], "us")
    figure.add("memory of outbox-relay, peak", [one.peak for name in ("native", "sql") for one in samples[name]], "MiB")
    figure.notes = [
        "512-byte events, committed 100 at a time; outbox-relay from its start to its end, the relay inside "
        "from CREATE SERVER on, Debezium warm and from the first record to the last",
        bench.disturbances(),
    ]
    return figure
