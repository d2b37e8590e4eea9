"""Time from commit to arrival at an HTTP receiver at higher rates, up to four fifths of what the machine sustains.

The sustained rate is measured first: the same producers commit as fast as they can while the relay delivers to the same
receiver, all on this machine, and the rate counts until the last event has arrived. Each rate has a run of its own, in turns.
"""

from statistics import median

from figures.latency import sample
from report import Figure, Goal
from workload import Bench

SESSIONS = 16
FULL = 1_000_000  # events per second that nothing reaches
RATES = {1_000: Goal(2, 1, less_is_better=True), 10_000: Goal(5, 2, less_is_better=True)}
SHARE = 0.8
AT_SHARE = Goal(20, 10, less_is_better=True)


def run(bench: Bench, rate: int, seconds: float) -> dict:
    def once() -> dict:
        bench.clear_log()  # of a run that was disturbed, too
        return sample(bench, seconds, rate=rate, sessions=SESSIONS)

    bench.sql.execute("CHECKPOINT")
    return bench.undisturbed(once)


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds, events = (3, 5, 50_000) if bench.quick else (5, 20, 200_000)
    bench.touch_memory()
    full = [run(bench, FULL, events / FULL)["arrival_rate"] for _ in range(rounds)]
    most = median(full)
    bench.say(f"the machine sustains {most:,.0f} events/s")
    goals = {rate: goal for rate, goal in RATES.items() if rate < most} | {round(SHARE * most, -2): AT_SHARE}
    runs: dict[float, list[dict]] = {rate: [] for rate in goals}
    for turn in range(rounds):
        for rate in goals if turn % 2 == 0 else reversed(goals):
            runs[rate].append(run(bench, int(rate), seconds))
        bench.say(
            f"round {turn + 1} of {rounds}: p99 "
            + ", ".join(
                f"{rate:,.0f}/s {samples[-1]['since_commit_sent']['p99'] / 1000:.2f} ms"
                for rate, samples in runs.items()
            )
        )

    figure = Figure("latency_load", "Commit to arrival at an HTTP receiver, p99 by rate")
    for rate, goal in goals.items():
        share = "" if rate in RATES else f", {SHARE:.0%} of what the machine sustains"
        figure.add(
            f"p99 at {rate:,.0f}/s{share}", [one["since_commit_sent"]["p99"] / 1000 for one in runs[rate]], "ms", goal
        )
    for rate, samples in runs.items():
        figure.add(f"p50 at {rate:,.0f}/s", [one["since_commit_sent"]["p50"] / 1000 for one in samples], "ms")
        figure.add(f"the COMMIT itself, p99 at {rate:,.0f}/s", [one["commit"]["p99"] / 1000 for one in samples], "ms")
        figure.add(f"rate reached at {rate:,.0f}/s", [one["rate"] for one in samples], "events/s")
    figure.add("what the machine sustains", full, "events/s")
    beyond = [f"{rate:,}/s" for rate in RATES if rate >= most]
    figure.notes = [
        f"{SESSIONS} sessions, a transaction an event, which changes a row; producers, server and receiver share the machine",
        *([f"not measured, because the machine does not sustain it: {', '.join(beyond)}"] if beyond else []),
        bench.disturbances(),
    ]
    figure.details = {"runs": {str(rate): samples for rate, samples in runs.items()}}
    return figure
