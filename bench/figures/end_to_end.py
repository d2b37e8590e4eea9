"""Time from a commit in one database to a visible row in another, at a thousand events per second.

The path is outbox.enqueue, relay, postgresql sink, inbox.receive, processor, a handler in SQL that keeps a
projection with inbox.apply. Both ends are the server's own commit timestamps (track_commit_timestamp), of
the transaction that enqueued and of the one that wrote the row; the first is taken before that commit
waits for the disk, which is therefore part of the figure.
"""

from report import Figure, Goal
from workload import Bench, payload, wait_until

SETTINGS = {"track_commit_timestamp": "on"}
RATE = 1000
SESSIONS = 4

CHANGE = f"""
\\set id random(1, 100000)
BEGIN;
UPDATE account SET version = version + 1 WHERE id = :id RETURNING version \\gset
SELECT outbox.enqueue('account', :id::text, 'AccountChanged',
                      jsonb_build_object('account_id', :id::text, 'version', :version::bigint) || '{payload(400)}', :version);
END;
"""
READ_MODEL = """
    CREATE TABLE account (account_id text PRIMARY KEY, balance bigint, owner text, version bigint NOT NULL);
    CREATE TABLE applied (event_id uuid);
    CREATE FUNCTION handle(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM inbox.apply('account', ARRAY['account_id'], 'version',
                            inbox.json(event) || jsonb_build_object('account_id', event.aggregate_id, 'version', event.version));
        INSERT INTO applied VALUES (event.event_id);
    END $$;
    SELECT inbox.subscribe('target', '*', 'handle');
    CREATE ROLE sender LOGIN;
    SELECT inbox.grant_send('sender');
"""


def run(bench: Bench, seconds: int) -> list[float]:
    """Returns the sorted times in milliseconds."""
    script = bench.cluster.root / "change.sql"
    script.write_text(CHANGE)
    with bench.cluster.connect("target") as target, bench.destination("postgresql://sender@/target"):
        target.execute("TRUNCATE applied, account")
        bench.wait_until_idle()
        bench.pgbench(
            ["-M", "prepared", "-c", str(SESSIONS), "-j", "2", "-R", str(RATE), "-T", str(seconds), "-f", script]
        )
        sent = dict(
            bench.sql.execute("SELECT event_id, pg_xact_commit_timestamp(xid::text::xid) FROM outbox.event").fetchall()
        )
        wait_until(
            lambda: target.execute("SELECT count(*) FROM applied").fetchone()[0] == len(sent),
            60,
            f"{len(sent)} events are applied",
        )
        shown = dict(target.execute("SELECT event_id, pg_xact_commit_timestamp(xmin) FROM applied").fetchall())
    bench.clear_log()
    if len(sent) < 0.95 * RATE * seconds:
        raise RuntimeError(f"only {len(sent)} events in {seconds} s")
    return sorted((shown[event] - at).total_seconds() * 1000 for event, at in sent.items())


def measure(bench: Bench) -> Figure:
    bench.need_sink("postgresql")
    rounds, seconds = (3, 5) if bench.quick else (5, 15)
    bench.sql.execute("CREATE DATABASE target")
    with bench.cluster.connect("target") as target:
        target.execute("CREATE EXTENSION pg_inbox")
        target.execute(READ_MODEL)
    run(bench, 3)
    runs = []
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        runs.append(bench.undisturbed(lambda: run(bench, seconds)))
        bench.say(f"round {turn + 1} of {rounds}: p50 {at(runs[-1], 0.5):.2f} ms, p99 {at(runs[-1], 0.99):.2f} ms")

    figure = Figure("end_to_end", f"Commit in one database to the row visible in another, {RATE:,} events/s")
    figure.add("p50", [at(run, 0.5) for run in runs], "ms", Goal(5, 2, less_is_better=True))
    figure.add("p99", [at(run, 0.99) for run in runs], "ms", Goal(20, 10, less_is_better=True))
    figure.add("p99.9", [at(run, 0.999) for run in runs], "ms")
    figure.add("max", [run[-1] for run in runs], "ms")
    figure.notes = [
        f"{SESSIONS} sessions; the handler calls inbox.apply and inserts a row; both databases on one server",
        bench.disturbances(),
    ]
    return figure


def at(times: list[float], quantile: float) -> float:
    return times[min(len(times) - 1, int(quantile * len(times)))]
