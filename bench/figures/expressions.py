"""Cost of the options filter and payload: the same drain to null with and without them.

The filters select all events, so that the relay's counter counts all that were read. The payload of an
event has 512 bytes of JSON.
"""

from drain import drain
from report import Figure
from workload import Bench

KINDS = {
    "a filter by columns": {"filter": "event_type = 'AccountChanged'"},
    "a filter by payload": {"filter": "payload IS NOT NULL"},
    "a payload without a member": {"payload": "payload - 'card'"},
    "both": {"filter": "payload IS NOT NULL", "payload": "payload - 'card'"},
    "a filter that fails for one in a hundred": {"filter": "1 / (version % 100) >= 0"},
}


def rate(bench: Bench, events: int, **options: str) -> float:
    bench.clear_log()
    bench.fill(events, 100)
    wanted = events - events // 100 if "/" in options.get("filter", "") else events
    return drain(bench, wanted, "null:", **options).rate


def measure(bench: Bench) -> Figure:
    rounds, events = (3, 200_000) if bench.quick else (7, 1_000_000)
    bench.touch_memory()
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    neither: list[float] = []
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        neither.append(bench.undisturbed(lambda: rate(bench, events)))
        for kind, options in KINDS.items():
            rates[kind].append(bench.undisturbed(lambda: rate(bench, events, **options)))
            ratios[kind].append(rates[kind][-1] / neither[-1])
        bench.say(f"round {turn + 1} of {rounds}: " + ", ".join(f"{kind} {ratios[kind][-1]:.2f}" for kind in KINDS))

    figure = Figure("expressions", f"Drain of {events:,} events to null: with expressions, over without")
    figure.add("neither", neither, "events/s")
    for kind in KINDS:
        figure.add(f"{kind} / neither", ratios[kind], "ratio")
        figure.add(kind, rates[kind], "events/s")
    figure.notes = ["512-byte events, committed 100 at a time", bench.disturbances()]
    return figure
