"""Cost of a missing topic or queue for nine others: drains to these with and without events for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from figures.drain_pubsub import create_topic, emulator
from figures.drain_sqs import ask, elasticmq
from figures.impaired import KEYS, drain
from report import Figure, Goal
from workload import Bench, Unavailable

LANES = 9


def topics(bench: Bench, count: int) -> Iterator[dict[str, str]]:
    with emulator(bench) as port:
        for number in range(count):
            create_topic(port, f"lane_{number}")
        yield {"url": "pubsub://bench", "emulator_host": f"127.0.0.1:{port}", "topic": "{topic}"}


def queues(bench: Bench, count: int) -> Iterator[dict[str, str]]:
    with elasticmq(bench) as port:
        for number in range(count):
            ask(port, "CreateQueue", QueueName=f"lane_{number}")
        yield {"url": f"sqs://elasticmq/000000000000?endpoint=http://127.0.0.1:{port}", "queue": "{topic}"}


@dataclass
class Case:
    label: str
    sink: str
    server: Callable[[Bench, int], Iterator[dict[str, str]]]
    events: int


CASES = [Case("one of ten topics of the Pub/Sub emulator is missing, the others", "pubsub", contextmanager(topics), 100_000),
         Case("one of ten queues of ElasticMQ is missing, the others", "aws", contextmanager(queues), 60_000)]  # fmt: skip


def measure(bench: Bench) -> Figure:
    rounds, part = (3, 2) if bench.quick else (5, 1)
    bench.touch_memory()
    bench.credentials = {}
    figure = Figure("impaired_lanes", "Goodput of nine topics or queues beside one that is missing, over that without")
    for case in CASES:
        bench.need_sink(case.sink)
        bench.credentials = {"access_key_id": "any", "secret_access_key": "any"} if case.sink == "aws" else {}

        def run(missing: bool) -> float:
            with case.server(bench, LANES) as options:
                others = {name: value for name, value in options.items() if name != "url"}
                events = case.events // part
                drain(bench, options["url"], events // 4, 1.0, others, LANES)  # it becomes faster with use
                if missing:
                    return bench.undisturbed(
                        lambda: drain(
                            bench, options["url"], events * (LANES + 1) // LANES, LANES / (LANES + 1), others, LANES + 1
                        )
                    ).rate
                return bench.undisturbed(lambda: drain(bench, options["url"], events, 1.0, others, LANES)).rate

        ratios, clean = [], []
        try:
            for turn in range(rounds):
                bench.sql.execute("CHECKPOINT")
                before = run(False)
                impaired = run(True)
                after = run(False)
                clean += [before, after]
                ratios.append(impaired / ((before + after) / 2))
                bench.say(f"round {turn + 1} of {rounds}: {case.sink} {ratios[-1]:.2f}")
        except Unavailable as error:
            bench.say(f"{case.sink} was not measured: {error}")
            continue
        figure.add(case.label, ratios, "of clean", Goal(0.95, 1))
        figure.add(f"clean, {case.sink}", clean, "events/s")
    figure.notes = [f"{KEYS:,} keys; each run has a server of its own, warmed up", bench.disturbances()]
    return figure
