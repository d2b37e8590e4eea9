"""Processor time of a call of inbox.apply() and remove(), against a hand-written versioned upsert of the same data.

The backend calls them in a loop that commits every hundred rows and does not wait for the disk; what the loop
costs by itself is taken off.
"""

from recorded import cpu_seconds
from report import Figure, Goal
from workload import Bench

ROWS = 10_000
STATEMENTS = {
    "apply": "PERFORM inbox.apply('projection', ARRAY['id'], 'version', data)",
    "upsert": """INSERT INTO projection AS stored SELECT (jsonb_populate_record(NULL::projection, data)).*
        ON CONFLICT (id) DO UPDATE SET version = excluded.version, owner = excluded.owner, balance = excluded.balance,
                                       changed_at = excluded.changed_at
         WHERE stored.version < excluded.version""",
    "remove": "PERFORM inbox.remove('projection', ARRAY['id'], 'version', data)",
    "nothing": "NULL",
}
PROCEDURE = """
CREATE PROCEDURE do_{name}(version integer) LANGUAGE plpgsql AS $$
DECLARE
    data jsonb;
BEGIN
    FOR i IN 1 .. {rows} LOOP
        data := jsonb_build_object('id', 'a' || i, 'version', version, 'owner', 'somebody', 'balance', i,
                                   'changed_at', '2026-01-01T00:00:00Z');
        {statement};
        IF i % 100 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$"""


def measure(bench: Bench) -> Figure:
    rounds = 5 if bench.quick else 12
    bench.sql.execute("CREATE EXTENSION pg_inbox")
    bench.sql.execute(
        "CREATE TABLE projection (id text PRIMARY KEY, version bigint NOT NULL, owner text, balance bigint, "
        "changed_at timestamptz) WITH (fillfactor = 50)"
    )
    for name, statement in STATEMENTS.items():
        bench.sql.execute(PROCEDURE.format(name=name, rows=ROWS, statement=statement))
    bench.sql.execute("SET synchronous_commit = off")
    bench.touch_memory()

    def microseconds(name: str, version: int) -> float:
        before = cpu_seconds(bench.sql.info.backend_pid)
        bench.sql.execute(f"CALL do_{name}({version})")
        return (cpu_seconds(bench.sql.info.backend_pid) - before) / ROWS * 1e6

    def turn(name: str) -> dict[str, float]:
        """Returns what a call of a statement costs for rows that are new, there, and removed if it is apply."""
        bench.sql.execute("TRUNCATE projection, inbox.tombstone")
        loop = microseconds("nothing", 0)
        result = {"new row": microseconds(name, 1) - loop}
        bench.sql.execute("VACUUM ANALYZE projection")
        result["newer version"] = sum(microseconds(name, version) for version in (2, 3, 4)) / 3 - loop
        if name == "apply":
            result["remove"] = microseconds("remove", 5) - loop
        return result

    turn("apply"), turn("upsert")
    costs: dict[str, list[dict[str, float]]] = {"apply": [], "upsert": []}
    for number in range(rounds):
        for name in costs if number % 2 else reversed(costs):
            costs[name].append(bench.undisturbed(lambda: turn(name)))
        bench.say(
            f"round {number + 1} of {rounds}: "
            + ", ".join(f"{name} {costs[name][-1]['newer version']:.1f} µs" for name in costs)
        )

    figure = Figure("inbox_apply", "Processor time of a call of inbox.apply(), beside a hand-written upsert")
    for case in ("newer version", "new row"):
        samples = {name: [cost[case] for cost in costs[name]] for name in costs}
        figure.add(
            f"{case}: apply",
            samples["apply"],
            "µs",
            Goal(20, 14, less_is_better=True) if case == "newer version" else None,
        )
        figure.add(f"{case}: hand-written upsert", samples["upsert"], "µs")
        figure.add(f"{case}: apply / upsert", [a / b for a, b in zip(samples["apply"], samples["upsert"])], "ratio")
    figure.add("remove", [cost["remove"] for cost in costs["apply"]], "µs")
    figure.notes = ["five columns; data as jsonb", bench.disturbances()]
    return figure
