"""Cost of capture for a change of one row, against no capture and a trigger in PL/pgSQL.

Each way has a table of its own with the same rows. Slices of the baseline stand between all others, and each
is divided by the mean of its two neighbours, as in enqueue.
"""

from dataclasses import dataclass

from figures.enqueue import CLIENTS, Slice, run_script
from report import Figure, Goal
from workload import ACCOUNTS, Bench

TABLE = """
    CREATE TABLE {name} (
        id         integer     PRIMARY KEY,
        owner      text        NOT NULL,
        email      text        NOT NULL,
        street     text        NOT NULL,
        city       text        NOT NULL,
        balance    numeric     NOT NULL,
        note       text,
        changed_at timestamptz NOT NULL DEFAULT now(),
        version    bigint      NOT NULL) WITH (fillfactor = {fillfactor});
    INSERT INTO {name} (id, owner, email, street, city, balance, note, version)
    SELECT i, 'Owner of account ' || i, 'owner' || i || '@example.com', i % 300 || ' Main Street', 'Springfield', 100.25,
           repeat('x', 100), 0
      FROM generate_series(1, {rows}) AS i;
    VACUUM ANALYZE {name}
"""

PLPGSQL = """
    CREATE FUNCTION enqueue_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM outbox.enqueue('account', NEW.id::text, 'AccountUpdated', to_jsonb(NEW), version => NEW.version);
        RETURN NULL;
    END $$;
    CREATE TRIGGER enqueue_change AFTER UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION enqueue_change()
"""
CAPTURE = (
    "SELECT outbox.capture('{name}', aggregate_type => 'account', version => 'version', on_update => '{on_update}')"
)


def create_table(bench: Bench, name: str, rows: int = ACCOUNTS, fillfactor: int = 50) -> None:
    for statement in TABLE.format(name=name, rows=rows, fillfactor=fillfactor).split(";"):
        bench.sql.execute(statement)


@dataclass(frozen=True)
class Variant:
    name: str
    label: str
    set_up: str = ""
    goal: Goal | None = None


BASELINE = Variant("plain", "without capture (baseline)")
CHANGED = Variant(
    "changed", "captured, what changed", CAPTURE.format(name="changed", on_update="changed"), Goal(0.85, 0.95)
)
FULL = Variant("whole", "captured, the whole row", CAPTURE.format(name="whole", on_update="full"))
BY_HAND = Variant("by_hand", "trigger in PL/pgSQL, the whole row", PLPGSQL.format(name="by_hand"))
VARIANTS = [CHANGED, FULL, BY_HAND]


def one_slice(bench: Bench, variant: Variant, seconds: int) -> Slice:
    bench.clear_log()
    update = f"UPDATE {variant.name} SET balance = balance + 1, version = version + 1 WHERE id = :id;\n"
    slice = run_script(bench, update, seconds)
    events = bench.sql.execute("SELECT count(*) FROM outbox.event").fetchone()[0]
    if (events > 0) != (variant is not BASELINE):
        raise RuntimeError(f"{events} events of {variant.label}")
    return slice


def measure(bench: Bench) -> Figure:
    rounds, seconds = (3, 2) if bench.quick else (7, 4)
    for variant in [BASELINE, *VARIANTS]:
        create_table(bench, variant.name)
        if variant.set_up:
            bench.sql.execute(variant.set_up)
    bench.touch_memory()

    def slice_of(variant: Variant, seconds: int) -> Slice:
        return bench.undisturbed(lambda: one_slice(bench, variant, seconds))

    rates: dict[Variant, list[float]] = {variant: [] for variant in [BASELINE, *VARIANTS]}
    shares: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    by_processor: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for variant in [*VARIANTS, BASELINE]:
            slice_of(variant, 2)  # after a checkpoint the first change of a page costs more
        before = slice_of(BASELINE, seconds)
        for i in range(len(VARIANTS)):
            variant = VARIANTS[(i + turn) % len(VARIANTS)]
            here, after = slice_of(variant, seconds), slice_of(BASELINE, seconds)
            rates[variant].append(here.rate)
            rates[BASELINE].append(after.rate)
            shares[variant].append(here.rate / ((before.rate + after.rate) / 2))
            by_processor[variant].append((before.processor + after.processor) / 2 / here.processor)
            before = after
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(f"{variant.label} {values[-1]:.2f}" for variant, values in shares.items())
        )

    def over_by_hand(variant: Variant) -> list[float]:
        return [ours / theirs for ours, theirs in zip(shares[variant], shares[BY_HAND])]

    figure = Figure("capture", "UPDATE of one row of a captured table, as a share of the same without capture")
    for variant in VARIANTS:
        figure.add(variant.label, shares[variant], "of baseline", variant.goal)
    for variant in VARIANTS:
        figure.add(f"{variant.label}, by processor time", by_processor[variant], "of baseline")
    figure.add("captured, what changed / trigger in PL/pgSQL", over_by_hand(CHANGED), "ratio", Goal(1.05, 1.2))
    figure.add("captured, the whole row / trigger in PL/pgSQL", over_by_hand(FULL), "ratio")
    for variant, values in rates.items():
        figure.add(variant.label, values, "tps")
    figure.notes = [
        f"{CLIENTS} clients, pgbench -M prepared, a statement a transaction, {rounds} rounds of {seconds - 1} s slices; "
        "rows of nine columns, of which two change",
        bench.disturbances(),
    ]
    return figure
