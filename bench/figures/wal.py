"""WAL of an event from its commit until it is settled, against a plain insert of the same row.

Both are committed one by one. The events' share contains all that is written because of them: the
relay's cursor, moving on to the next segment and emptying those that are settled.
"""

from figures.enqueue import ENQUEUE, PEERS, PLAIN_INSERT
from report import Figure, Goal
from workload import ACCOUNTS, Bench, payload, wait_until

SETTINGS = {"outbox.segment_size": "16MB"}  # so that a slice fills several
CLIENTS = 8


def insert(bench: Bench, statement: str, rows: int) -> None:
    script = bench.cluster.root / "insert.sql"
    script.write_text(f"\\set id random(1, {ACCOUNTS})\n{statement}\n")
    bench.pgbench(
        [
            "-M",
            "prepared",
            "-c",
            str(CLIENTS),
            "-j",
            "2",
            "-t",
            str(rows // CLIENTS),
            "-D",
            f"payload={payload()}",
            "-f",
            script,
        ]
    )


def position_of_wal(bench: Bench) -> int:
    return int(bench.sql.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])


def is_settled(bench: Bench) -> bool:
    """Waits until the saved cursor has passed all events and old segments are empty."""
    return bench.sql.execute(
        "SELECT (SELECT position FROM outbox.cursor) = (SELECT last_value FROM outbox.event_position) "
        "AND bool_and(current OR pg_relation_size('outbox.event_' || number) = 0) "
        "FROM outbox.ring"
    ).fetchone()[0]


def of_events(bench: Bench, rows: int) -> float:
    bench.wait_until_idle()
    bench.sql.execute("CHECKPOINT")
    before = position_of_wal(bench)
    insert(bench, ENQUEUE, rows)
    wait_until(lambda: is_settled(bench), 60, "everything is settled")
    return (position_of_wal(bench) - before) / rows


def of_plain_rows(bench: Bench, rows: int) -> float:
    bench.sql.execute("TRUNCATE plain_log")
    bench.sql.execute("CHECKPOINT")
    before = position_of_wal(bench)
    insert(bench, PLAIN_INSERT, rows)
    return (position_of_wal(bench) - before) / rows


def measure(bench: Bench) -> Figure:
    rounds, rows = (3, 40_000) if bench.quick else (5, 100_000)
    bench.sql.execute(PEERS)
    events: list[float] = []
    plain: list[float] = []
    with bench.destination("null:"):
        for turn in range(rounds):
            events.append(of_events(bench, rows))
            plain.append(of_plain_rows(bench, rows))
            bench.say(f"round {turn + 1} of {rounds}: {events[-1]:.0f} and {plain[-1]:.0f} bytes")

    figure = Figure("wal", "WAL of a 512-byte event until it is settled, over that of a plain insert")
    figure.add(
        "event / plain insert", [e / p for e, p in zip(events, plain)], "ratio", Goal(1.1, 1.0, less_is_better=True)
    )
    figure.add("event, from commit to settled", events, "bytes")
    figure.add("plain insert of the same row, one index", plain, "bytes")
    figure.notes = [f"{rows:,} transactions of one event; a checkpoint before each slice"]
    return figure
