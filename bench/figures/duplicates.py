"""Number of events that arrive twice when the relay is killed once at full speed.

The server takes the death of a worker for a crash and restarts. For HTTP the receiver's log is counted;
for null:, which is faster, what the relay had counted before and what it counts afterwards. That is a
lower bound: between looking and killing it delivers some more.
"""

import os
import signal
from pathlib import Path

import psycopg

from figures.drain_http import nginx
from report import Figure, Goal
from workload import Bench, wait_until

# docs/architecture/pipeline.md, "Limits": 100,000 events settled since the cursor was saved, and those in flight.
BOUND = 100_000 + 10_000
GOAL = Goal(BOUND, BOUND, less_is_better=True)


PAYLOAD = 512  # bytes


def has_relay_other_than(bench: Bench, process: int) -> bool:
    try:
        bench.sql = bench.cluster.connect()
        return bench.relay_pid() not in (None, process)
    except psycopg.OperationalError:
        return False


def kill_when_delivered(bench: Bench, events: int) -> int:
    """Returns the number of duplicates."""
    wait_until(lambda: bench.relay_pid() is not None, 10, "the relay runs")
    process = bench.relay_pid()
    wait_until(lambda: bench.delivered() >= events, 120, f"{events} events are delivered", pause=0.005)
    delivered = bench.delivered()
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: has_relay_other_than(bench, process), 60, "another relay runs")
    return delivered


def deliver_and_kill(bench: Bench, url: str, events: int) -> tuple[int, int]:
    """Events delivered by the first relay and by the second."""
    bench.clear_log()
    bench.fill(events, 100, size=PAYLOAD)
    bench.sql.execute("CHECKPOINT")
    with bench.destination(url):
        first = kill_when_delivered(bench, events // 2)
        if first >= events:
            raise RuntimeError("the relay was through before it was killed")
        wait_until(lambda: bench.status()["position"] == last_position(bench), 120, "all is delivered")
        return first, bench.delivered_bytes() // PAYLOAD  # the counter of events goes on from the first relay's


def last_position(bench: Bench) -> int:
    return bench.sql.execute("SELECT max(position) FROM outbox.event").fetchone()[0]


def to_http(bench: Bench, events: int) -> int:
    log = bench.cluster.root / "access.log"
    log.unlink(missing_ok=True)
    with nginx(bench, access=f"{log} id") as port:
        deliver_and_kill(bench, f"http://127.0.0.1:{port}/events", events)
    arrived = Path(log).read_text().split()
    if len(set(arrived)) != events:
        raise RuntimeError(f"{len(set(arrived))} of {events} events arrived")
    return len(arrived) - events


def to_null(bench: Bench, events: int) -> int:
    return sum(deliver_and_kill(bench, "null:", events)) - events


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, to_requests, to_nothing = (3, 300_000, 2_000_000) if bench.quick else (5, 600_000, 3_000_000)
    http: list[int] = []
    null: list[int] = []
    for turn in range(rounds):
        http.append(to_http(bench, to_requests))
        null.append(to_null(bench, to_nothing))
        bench.say(f"round {turn + 1} of {rounds}: http {http[-1]:,}, null {null[-1]:,}")

    figure = Figure("duplicates", "Events delivered twice after one kill -9 of the relay at full speed")
    figure.add("most of all rounds, http", max(http), "events", GOAL)
    figure.add("most of all rounds, null:", max(null), "events", GOAL)
    figure.add("http, one request an event", http, "events")
    figure.add("null:", null, "events")
    figure.notes = [f"backlogs of {to_requests:,} and {to_nothing:,}, killed half-way; none was lost"]
    return figure
