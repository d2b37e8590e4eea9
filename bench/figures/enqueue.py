"""Cost of an event for the transaction that commits it.

A transaction changes one row and does one more thing; the other thing is what is compared. Slices of
a few seconds alternate with slices of the baseline, in which that thing is an empty SELECT, and each
is divided by the mean of its two neighbours: what drifts on the machine, drifts under both.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from machine import Watch
from report import Figure, Goal
from workload import ACCOUNTS, Bench, payload, wait_until

CLIENTS = 16
BATCH = 100

OUTBOX_TABLE = """
CREATE TABLE app_outbox (
    id               uuid PRIMARY KEY,
    aggregate_type   text        NOT NULL,
    aggregate_id     text        NOT NULL,
    event_type       text        NOT NULL,
    version          bigint      NOT NULL,
    schema_version   int         NOT NULL DEFAULT 1,
    payload          bytea       NOT NULL,
    occurred_at      timestamptz NOT NULL DEFAULT now(),
    published_at     timestamptz,
    publish_attempts int         NOT NULL DEFAULT 0,
    next_retry_at    timestamptz,
    lock_token       text,
    locked_at        timestamptz);
CREATE INDEX ON app_outbox (published_at) WHERE published_at IS NULL;
CREATE INDEX ON app_outbox (next_retry_at) WHERE published_at IS NULL;
"""

PEERS = (
    OUTBOX_TABLE
    + """
CREATE TABLE plain_log (LIKE outbox.event);
CREATE INDEX ON plain_log (xid, position);
CREATE SEQUENCE plain_position;

CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench');
"""
)

ENQUEUE = "SELECT outbox.enqueue('account', :id::text, 'AccountChanged', :payload::jsonb, 1);"
# :payload stands for the array of all of them here.
ENQUEUE_BATCH = """SELECT outbox.enqueue(ARRAY(
    SELECT ROW('account', :id::text, 'AccountChanged', e.payload, 1, NULL, NULL, NULL, NULL, NULL, NULL,
               NULL, NULL, NULL)::outbox.new_event
      FROM jsonb_array_elements(:payload::jsonb) AS e(payload)));"""
INSERT = """INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
    VALUES (gen_random_uuid(), 'account', :id::text, 'AccountChanged', 1, :payload::bytea);"""
PLAIN_INSERT = """INSERT INTO plain_log (position, xid, occurred_at, event_id, version, schema_version,
        topic, aggregate_type, aggregate_id, event_type, ordering_key, content_type, payload)
    VALUES (nextval('plain_position'), pg_current_xact_id(), clock_timestamp(), gen_random_uuid(), 1, 1,
        'account.events', 'account', :id::text, 'AccountChanged', :id::text, 'application/json',
        :payload::bytea);"""


@dataclass(frozen=True)
class Variant:
    label: str
    statement: str
    events: int = 1
    relay: bool = False
    listener: bool = False
    goal: Goal | None = None


BASELINE = Variant("empty SELECT (baseline)", "SELECT;")
VARIANTS = [
    Variant("nothing", ""),
    Variant("outbox.enqueue", ENQUEUE, goal=Goal(0.86, 0.95)),
    Variant("outbox.enqueue, relay draining to null:", ENQUEUE, relay=True),
    Variant(f"outbox.enqueue, batch of {BATCH}, per event", ENQUEUE_BATCH, events=BATCH),
    Variant("plain INSERT into the same log", PLAIN_INSERT),
    Variant("outbox table", INSERT),
    Variant("outbox table and NOTIFY", INSERT + "\nNOTIFY app_outbox;", listener=True),
    Variant("pgq.insert_event", "SELECT pgq.insert_event('bench', 'AccountChanged', :payload);"),
    Variant("pg_logical_emit_message", "SELECT pg_logical_emit_message(true, 'outbox', :payload);"),
]


@contextmanager
def listening(bench: Bench) -> Iterator[None]:
    with subprocess.Popen(
        [bench.programs / "listener", bench.cluster.conninfo(), "app_outbox"], stdout=subprocess.PIPE, text=True
    ) as listener:
        listener.stdout.readline()
        try:
            yield
        finally:
            listener.terminate()


def tables_of_pgq(bench: Bench) -> str:
    """Those with events, as a list for TRUNCATE."""
    return bench.sql.execute(
        "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables "
        "WHERE schemaname = 'pgq' AND tablename ~ '^event_\\d+_\\d+$'"
    ).fetchone()[0]


def truncate_events(bench: Bench) -> None:
    """Empties the tables, so that no slice extends or searches larger ones than another."""
    bench.sql.execute(f"TRUNCATE app_outbox, plain_log, {tables_of_pgq(bench)}")
    bench.clear_log()


@dataclass
class Slice:
    rate: float  # transactions per second, without the first second, in which sessions warm up
    processor: float  # seconds of processor time per transaction: server, client and all


def run_clients(bench: Bench, variant: Variant, seconds: int) -> Slice:
    body = payload() if variant.events == 1 else f"[{', '.join([payload()] * variant.events)}]"
    return run_script(
        bench,
        f"BEGIN;\nUPDATE account SET version = version + 1 WHERE id = :id;\n{variant.statement}\nEND;\n",
        seconds,
        body,
    )


def run_script(bench: Bench, text: str, seconds: int, body: str = "-") -> Slice:
    """Runs the transaction by all clients; its variables are :id of an account, and :payload."""
    script = bench.cluster.root / "enqueue.sql"
    script.write_text(f"\\set id random(1, {ACCOUNTS})\n{text}")
    watch = Watch()
    report = bench.pgbench(
        [
            "-M",
            "prepared",
            "-c",
            str(CLIENTS),
            "-j",
            "2",
            "-T",
            str(seconds + 1),
            "-P",
            "1",
            "-D",
            f"payload={body}",
            "-f",
            script,
        ]
    )
    used = watch.own()
    rates = re.findall(r"^progress: .*? ([\d.]+) tps", report, re.MULTILINE)
    transactions = int(re.search(r"actually processed: (\d+)", report).group(1))
    return Slice(sum(map(float, rates[1:seconds])) / (seconds - 1), used / transactions)


def one_slice(bench: Bench, variant: Variant, seconds: int) -> Slice:
    truncate_events(bench)
    with (
        bench.destination("null:") if variant.relay else nullcontext(),
        listening(bench) if variant.listener else nullcontext(),
    ):
        if variant.relay:
            bench.wait_until_idle()
        result = run_clients(bench, variant, seconds)
        if variant.relay:
            check_all_delivered(bench)
    return result


def slice_of(bench: Bench, variant: Variant, seconds: int) -> Slice:
    return bench.undisturbed(lambda: one_slice(bench, variant, seconds))


def check_all_delivered(bench: Bench) -> None:
    enqueued = bench.sql.execute("SELECT last_value FROM outbox.event_position").fetchone()[0]
    wait_until(lambda: bench.status()["position"] == enqueued, 10, "the relay has delivered everything")


def share(variant: Variant, cost: float, baseline: float) -> float:
    """Returns the rate relative to the baseline, for a transaction with only one of the variant's events."""
    return baseline / (baseline + (cost - baseline) / variant.events)


def measure(bench: Bench) -> Figure:
    return compare(bench, "enqueue", "Transaction with an event, as a share of the same with an empty SELECT", VARIANTS)


def compare(bench: Bench, name: str, title: str, variants: list[Variant]) -> Figure:
    rounds, seconds = (3, 2) if bench.quick else (5, 4)
    bench.sql.execute(PEERS)
    bench.touch_memory()
    for variant in [BASELINE, *variants]:
        slice_of(bench, variant, 2)

    rates: dict[str, list[float]] = {variant.label: [] for variant in [BASELINE, *variants]}
    shares: dict[str, list[float]] = {variant.label: [] for variant in variants}
    by_processor: dict[str, list[float]] = {variant.label: [] for variant in variants}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        slice_of(bench, BASELINE, 2)  # after a checkpoint the first change of a page costs more
        before = slice_of(bench, BASELINE, seconds)
        for i in range(len(variants)):
            variant = variants[(i + turn) % len(variants)]
            here = slice_of(bench, variant, seconds)
            after = slice_of(bench, BASELINE, seconds)
            rates[variant.label].append(here.rate)
            rates[BASELINE.label].append(after.rate)
            shares[variant.label].append(share(variant, 1 / here.rate, (1 / before.rate + 1 / after.rate) / 2))
            by_processor[variant.label].append(share(variant, here.processor, (before.processor + after.processor) / 2))
            before = after
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(
                f"{label} {values[-1]:.2f}" for label, values in shares.items() if label.startswith("outbox.enqueue")
            )
        )

    figure = Figure(name, title)
    for variant in variants:
        figure.add(variant.label, shares[variant.label], "of baseline", variant.goal)
    for variant in variants:
        figure.add(f"{variant.label}, by processor time", by_processor[variant.label], "by time used")
    figure.add(BASELINE.label, rates[BASELINE.label], "tps")
    figure.details = {"transactions_per_second": rates}
    figure.notes = [
        f"{CLIENTS} clients, pgbench -M prepared, payload of 512 bytes as a parameter, "
        f"{rounds} rounds of {seconds - 1} s slices",
        bench.disturbances(),
    ]
    return figure
