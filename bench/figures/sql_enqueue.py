"""Cost of an event for the transaction that commits it, in the SQL edition: see enqueue."""

from contextlib import nullcontext
from dataclasses import dataclass

from figures.enqueue import (
    BASELINE,
    BATCH,
    CLIENTS,
    ENQUEUE,
    ENQUEUE_BATCH,
    INSERT,
    OUTBOX_TABLE,
    Slice,
    Variant,
    run_clients,
    share,
)
from outbox_relay import OutboxRelay, sql_edition
from report import Figure, Goal
from workload import Bench


@dataclass(frozen=True)
class Of:
    """A variant, and the database it runs in."""

    bench: Bench
    variant: Variant

    def slice(self, seconds: int) -> Slice:
        return self.bench.undisturbed(lambda: self._run(seconds))

    def _run(self, seconds: int) -> Slice:
        for table in ("app_outbox", "outbox.event", "outbox.cursor"):
            self.bench.sql.execute(f"TRUNCATE {table}")
        with (
            self.bench.destination("null:") if self.variant.relay else nullcontext(),
            OutboxRelay(self.bench) if self.variant.relay else nullcontext(),
        ):
            return run_clients(self.bench, self.variant, seconds)


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 3) if bench.quick else (5, 4)
    plain = sql_edition(bench)
    for database in (bench, plain):
        database.sql.execute(OUTBOX_TABLE)
    bench.touch_memory()
    baseline = Of(plain, BASELINE)
    ones = [
        Of(plain, Variant("outbox.enqueue, SQL edition", ENQUEUE, goal=Goal(0.75, 0.85))),
        Of(plain, Variant(f"SQL edition, batch of {BATCH}, per event", ENQUEUE_BATCH, events=BATCH)),
        Of(plain, Variant("SQL edition, outbox-relay draining to null:", ENQUEUE, relay=True)),
        Of(plain, Variant("outbox table", INSERT)),
        Of(bench, Variant("outbox.enqueue, extension", ENQUEUE)),
    ]
    for one in [baseline, *ones]:
        one.slice(2)

    rates: dict[str, list[float]] = {one.variant.label: [] for one in [baseline, *ones]}
    shares: dict[str, list[float]] = {one.variant.label: [] for one in ones}
    by_processor: dict[str, list[float]] = {one.variant.label: [] for one in ones}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        baseline.slice(2)  # after a checkpoint the first change of a page costs more
        before = baseline.slice(seconds)
        for i in range(len(ones)):
            one = ones[(i + turn) % len(ones)]
            here, after = one.slice(seconds), baseline.slice(seconds)
            label = one.variant.label
            rates[label].append(here.rate)
            rates[BASELINE.label].append(after.rate)
            shares[label].append(share(one.variant, 1 / here.rate, (1 / before.rate + 1 / after.rate) / 2))
            by_processor[label].append(share(one.variant, here.processor, (before.processor + after.processor) / 2))
            before = after
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{label} {values[-1]:.2f}" for label, values in shares.items())
        )

    figure = Figure(
        "sql_enqueue", "Transaction with an event in the SQL edition, as a share of the same with an empty SELECT"
    )
    for one in ones:
        figure.add(one.variant.label, shares[one.variant.label], "of baseline", one.variant.goal)
    for one in ones:
        figure.add(f"{one.variant.label}, by processor time", by_processor[one.variant.label], "by time used")
    figure.add(BASELINE.label, rates[BASELINE.label], "tps")
    figure.details = {"transactions_per_second": rates}
    figure.notes = [
        f"{CLIENTS} clients, pgbench -M prepared, payload of 512 bytes as a parameter, {rounds} rounds of "
        f"{seconds - 1} s slices; the relay, where there is one, is paid for by the same processors",
        bench.disturbances(),
    ]
    return figure
