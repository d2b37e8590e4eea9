"""Cost of a check for duplicates with many remembered ids, and while old ids are removed.

Commits do not wait for the disk here, because that would hide the cost.
"""

import os

from report import Figure, Goal
from workload import Bench

CHECK = "SELECT inbox.begin_event('catalog', $1)"
SMALL = 50_000

# Ids of version 7, spread over the last seven days in the order of their times.
FILL = """
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, processed_at)
    SELECT c.id, e.id, inbox_internal.bucket(e.id), e.at
      FROM inbox.consumer AS c,
           generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
           LATERAL (SELECT now() - interval '7 days' * (1 - n::float8 / %(total)s) AS at) AS t,
           LATERAL (SELECT (lpad(to_hex((extract(epoch FROM t.at) * 1000)::bigint), 12, '0') || '7'
                            || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid AS id, t.at) AS e
     WHERE c.name = 'catalog'"""


def fill(bench: Bench, database: str, ids: int) -> None:
    bench.sql.execute(f"CREATE DATABASE {database}")
    with bench.cluster.connect(database) as connection:
        connection.execute("CREATE EXTENSION pg_inbox")
        connection.execute("SELECT inbox.begin_event('catalog', gen_random_uuid())")
        connection.execute("SET synchronous_commit = off")
        step = 5_000_000
        for first in range(0, ids, step):
            connection.execute(FILL, {"first": first, "last": min(first + step, ids) - 1, "total": ids})
            bench.say(f"{database}: {min(first + step, ids):,} ids")
        connection.execute("VACUUM ANALYZE inbox.processed")


def measure(bench: Bench) -> Figure:
    rounds, seconds, large = (3, 3, 5_000_000) if bench.quick else (7, 5, 50_000_000)
    fill(bench, "small", SMALL)
    fill(bench, "large", large)
    bench.sql.execute("CHECKPOINT")
    os.environ["PGOPTIONS"] = "-c synchronous_commit=off"

    def cost(database: str) -> float:
        result = bench.program("checker", bench.cluster.conninfo(database), CHECK, "1", str(seconds), "1")
        return 1e6 * result["seconds"] / result["statements"]

    cost("small"), cost("large")
    ratios, small_costs, large_costs = [], [], []
    for turn in range(rounds):
        pair = ["small", "large"] if turn % 2 else ["large", "small"]
        costs = {database: bench.undisturbed(lambda: cost(database)) for database in pair}
        small_costs.append(costs["small"])
        large_costs.append(costs["large"])
        ratios.append(costs["large"] / costs["small"])
        bench.say(f"round {turn + 1} of {rounds}: {ratios[-1]:.2f}")
    sustained = [sustain(bench, 30 if bench.quick else 60) for _ in range(1 if bench.quick else 2)]
    del os.environ["PGOPTIONS"]

    figure = Figure("dedupe", f"Cost of asking about an event, {large:,} ids remembered / {SMALL:,}")
    figure.add(f"{large:,} / {SMALL:,}", ratios, "of small", Goal(1.3, 1.1, less_is_better=True))
    figure.add("10,000/s, last tenth / first", sustained, "of first")
    figure.add(f"a check, {SMALL:,} ids", small_costs, "us")
    figure.add(f"a check, {large:,} ids", large_costs, "us")
    figure.notes = [
        "one session, a transaction each, without waiting for the disk; ids of version 7",
        "10,000/s: ids of version 4, a window of ten seconds, pruned every second, autovacuum on",
        bench.disturbances(),
    ]
    return figure


def sustain(bench: Bench, seconds: int) -> float:
    """Uses ids without a time, which are pruned row by row: the expensive case."""
    import threading

    done = threading.Event()

    def prune() -> None:
        with bench.cluster.connect("small") as connection:
            while not done.wait(1):
                connection.execute("SELECT inbox.prune()")

    with bench.cluster.connect("small") as connection:
        connection.execute("SELECT inbox.set_window('10 seconds')")
        connection.execute(
            "ALTER TABLE inbox.processed_32 SET (autovacuum_enabled = on, autovacuum_vacuum_cost_delay = 0)"
        )
        connection.execute("TRUNCATE inbox.processed")
    pruner = threading.Thread(target=prune)
    pruner.start()
    os.environ["RANDOM_IDS"] = "1"
    try:
        result = bench.program("checker", bench.cluster.conninfo("small"), CHECK, "2", str(seconds), "10", "10000")
    finally:
        del os.environ["RANDOM_IDS"]
        done.set()
        pruner.join()
    if result["statements"] < 9_500 * seconds:
        raise RuntimeError(f"only {result['statements'] / seconds:.0f} events/s: {result}")
    return result["last"] / result["first"]
