"""Cost of a snapshot that is held for ten minutes, at a steady rate of events.

Three minutes without the snapshot, ten with it, three without: slices cannot take turns when it is held for ten
minutes. In --quick it is held for ten seconds. The usual outbox table (marked per batch, the kinder of its relays) and
PgQ go through the same, with one minute without and three with, which is enough to see where they go. Autovacuum is on and does what it can. Dead
tuples are counted row by row while the snapshot is still held.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from figures.enqueue import INSERT, PEERS
from machine import Watch
from report import Figure, Goal
from workload import ACCOUNTS, Bench, payload

SETTINGS = {"autovacuum": "on", "autovacuum_naptime": "15s"}
RATE = 2000
SESSIONS = 4

PGQ_INSERT = "SELECT pgq.insert_event('bench', 'AccountChanged', :payload);"


@dataclass
class Run:
    delivered: float  # events per second
    p99: float  # milliseconds
    dead: int


@contextmanager
def held_snapshot(bench: Bench) -> Iterator[None]:
    with bench.cluster.connect() as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT FROM account LIMIT 1")
        yield
        session.execute("COMMIT")


def dead_tuples(bench: Bench, tables: str) -> int:
    """Of the tables that the condition on pg_class c selects, and their TOAST tables."""
    return bench.sql.execute(
        "SELECT coalesce(sum((pgstattuple(coalesce(t.oid, c.oid))).dead_tuple_count), 0)::bigint FROM pg_class AS c "
        "CROSS JOIN LATERAL (VALUES (c.oid), (nullif(c.reltoastrelid, 0))) AS t(oid) "
        f"WHERE t.oid IS NOT NULL AND c.relkind = 'r' AND ({tables})"
    ).fetchone()[0]


def log(bench: Bench, seconds: int) -> Run:
    """Measures p99 from sending COMMIT to the request at an HTTP receiver."""
    bench.clear_log()
    with subprocess.Popen(
        [bench.programs / "latency", bench.cluster.conninfo(), str(RATE), str(seconds), str(SESSIONS), "bare"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        port = int(program.stdout.readline())
        with bench.destination(f"http://127.0.0.1:{port}/events"):
            bench.wait_until_idle()
            output, _ = program.communicate("go\n", timeout=seconds + 120)
            result = json.loads(output)
            if program.returncode != 0 or result["missing"]:
                raise RuntimeError(f"the latency program failed: {result}")
            return Run(
                result["rate"],
                result["since_commit_sent"]["p99"] / 1000,
                dead_tuples(bench, "c.relnamespace = 'outbox'::regnamespace"),
            )


def insert(bench: Bench, statement: str, seconds: int) -> float:
    """Returns the p99 of the transactions in milliseconds, each from the time it was due."""
    script = bench.cluster.root / "insert.sql"
    script.write_text(f"\\set id random(1, {ACCOUNTS})\n{statement}\n")
    bench.pgbench(
        [
            "-M",
            "prepared",
            "-c",
            str(SESSIONS),
            "-j",
            "2",
            "-R",
            str(RATE),
            "-T",
            str(seconds),
            "-D",
            f"payload={payload()}",
            "-f",
            script,
            "-l",
            "--log-prefix",
            bench.cluster.root / "times",
        ]
    )
    times = []
    for file in bench.cluster.root.glob("times.*"):
        times += [int(line.split()[2]) for line in file.read_text().splitlines()]
        file.unlink()
    return sorted(times)[int(0.99 * (len(times) - 1))] / 1000


def beside(bench: Bench, statement: str, seconds: int, *consumer: str) -> tuple[float, float]:
    """Returns the rate of the consumer and the p99 of the transactions."""
    with ThreadPoolExecutor() as pool:
        consumed = pool.submit(bench.program, *consumer)
        p99 = insert(bench, statement, seconds)
        result = consumed.result()
    return result["events"] / result["seconds"], p99


def outbox_table(bench: Bench, seconds: int) -> Run:
    bench.sql.execute("TRUNCATE app_outbox")
    rate, p99 = beside(bench, INSERT, seconds, "seed_relay", bench.cluster.conninfo(), "batch", str(seconds), "follow")
    return Run(rate, p99, dead_tuples(bench, "c.oid = 'app_outbox'::regclass"))


def pgq(bench: Bench, seconds: int) -> Run:
    bench.sql.execute("SELECT pgq.register_consumer('bench', 'bench')")
    rate, p99 = beside(
        bench, PGQ_INSERT, seconds, "pgq_consumer", bench.cluster.conninfo(), "bench", "bench", str(seconds)
    )
    bench.sql.execute("SELECT pgq.unregister_consumer('bench', 'bench')")
    return Run(rate, p99, dead_tuples(bench, "c.relnamespace = 'pgq'::regnamespace"))


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    held, half, short = (10, 5, 5) if bench.quick else (600, 180, 60)
    held_beside = 10 if bench.quick else 180
    bench.sql.execute(PEERS)
    bench.sql.execute("CREATE EXTENSION pgstattuple")
    bench.touch_memory()
    log(bench, 5)

    others: list[float] = []

    def run(system: Callable[[Bench, int], Run], seconds: int, hold: bool) -> Run:
        bench.sql.execute("CHECKPOINT")
        watch = Watch()
        with held_snapshot(bench) if hold else nullcontext():
            result = system(bench, seconds)
        others.append(watch.others())
        bench.say(
            f"{system.__name__}, {seconds} s {'with' if hold else 'without'}: {result.delivered:,.0f}/s, "
            f"p99 {result.p99:.2f} ms, {result.dead:,} dead"
        )
        return result

    before, during, after = run(log, half, False), run(log, held, True), run(log, half, False)
    without = [before, after]
    peers = {"outbox table": outbox_table, "PgQ": pgq}
    beside_it = {name: (run(system, short, False), run(system, held_beside, True)) for name, system in peers.items()}

    figure = Figure("held_snapshot", f"{RATE:,} events/s with a snapshot held for {held} s, over without")
    figure.add("rate", [during.delivered / run.delivered for run in without], "ratio", Goal(0.99, 1.0))
    figure.add(
        "p99, commit to arrival over HTTP",
        [during.p99 / run.p99 for run in without],
        "ratio",
        Goal(1.5, 1.0, less_is_better=True),
    )
    for name, (usual, worse) in beside_it.items():
        figure.add(f"{name}, rate", worse.delivered / usual.delivered, "ratio")
        figure.add(f"{name}, p99 of the transaction", worse.p99 / usual.p99, "ratio")
    figure.add("dead tuples in outbox", during.dead, "tuples", Goal(1000, 100, less_is_better=True))
    for name, (_, worse) in beside_it.items():
        figure.add(f"dead tuples, {name}", worse.dead, "tuples")
    figure.add("rate with", during.delivered, "events/s")
    for name, (_, worse) in beside_it.items():
        figure.add(f"rate with, {name}", worse.delivered, "events/s")
    figure.add("p99 with", during.p99, "ms")
    figure.add("p99 without", [run.p99 for run in without], "ms")
    figure.notes = [
        f"without for {half} s before and after; the others for {short} s without and {held_beside} s with; they deliver "
        f"nowhere, and their p99 is that of the transaction",
        f"others used {min(others):.0%} to {max(others):.0%} of the machine meanwhile",
    ]
    return figure
