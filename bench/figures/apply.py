"""Rate at which the client's consumer applies events, against a program without an inbox.

Both do the same insert and upsert for each event, in batches of one transaction on as many connections. The
program has no source: its events are in memory, and so are the consumer's.
"""

from report import Figure, Goal
from workload import Bench

CONNECTIONS = 4
BATCH = 100

TABLES = """
    CREATE EXTENSION pg_inbox;
    CREATE TABLE history (event_id uuid, account_id text, version bigint, payload jsonb);
    DROP TABLE account;
    CREATE TABLE account (account_id text PRIMARY KEY, version bigint NOT NULL, payload jsonb) WITH (fillfactor = 50);
"""


def measure(bench: Bench) -> Figure:
    rounds, events = (3, 50_000) if bench.quick else (5, 200_000)
    bench.sql.execute(TABLES)
    bench.touch_memory()

    def rate(program: str, way: str) -> float:
        bench.sql.execute("TRUNCATE history, account, inbox.processed, inbox.consumer_offset")
        bench.sql.execute("CHECKPOINT")
        result = bench.program(
            "apply", program, way, bench.cluster.conninfo(), str(events), str(CONNECTIONS), str(BATCH)
        )
        written = bench.sql.execute("SELECT count(*) FROM history").fetchone()[0]
        if written != events:
            raise RuntimeError(f"{written} of {events} events were applied by {program}")
        return events / result["seconds"]

    rates: dict[tuple[str, str], list[float]] = {}
    ratios: dict[str, list[float]] = {"queue": [], "execute": []}
    rate("bare", "queue"), rate("consumer", "queue")
    for turn in range(rounds):
        for way in ("queue", "execute"):
            for program in ("bare", "consumer") if turn % 2 else ("consumer", "bare"):
                rates.setdefault((program, way), []).append(bench.undisturbed(lambda: rate(program, way)))
            ratios[way].append(rates["consumer", way][-1] / rates["bare", way][-1])
        bench.say(f"round {turn + 1} of {rounds}: " + ", ".join(f"{way} {ratios[way][-1]:.2f}" for way in ratios))

    figure = Figure("apply", "Events applied by the client's consumer, as a share of a program without an inbox")
    figure.add("statements queued, consumer / bare", ratios["queue"], "of bare", Goal(0.8, 0.9))
    figure.add("each statement awaited, consumer / bare", ratios["execute"], "of bare")
    for (program, way), samples in rates.items():
        figure.add(f"{program}, {way}", samples, "events/s")
    figure.notes = [
        f"{CONNECTIONS} connections, batches of {BATCH}; an insert and a versioned upsert for each event",
        bench.disturbances(),
    ]
    return figure
