"""Time from commit to arrival at an HTTP receiver with outbox-relay, at a thousand events per second; and
of the first event after a pause, when the relay rests.

The first event is committed by a session of its own, into a log that is quiet. A relay with a session of its
own is woken by a notification; behind a pooler it looks at intervals.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from figures.latency import RATE, SESSIONS, sample
from outbox_relay import OutboxRelay, native_edition, sql_edition
from report import Figure, Goal
from workload import Bench, payload, wait_until

GOALS = {
    "extension": (Goal(3, 1, less_is_better=True), Goal(15, 5, less_is_better=True)),
    "SQL edition": (Goal(5, 2, less_is_better=True), Goal(25, 10, less_is_better=True)),
}
FIRST = Goal(100, 20, less_is_better=True)
SHORT_PAUSE = 3.0  # the relay rests after a twentieth of a second


class Receiver:
    """Notes when a request arrives."""

    def __enter__(self) -> "Receiver":
        arrivals = self.arrivals = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                arrivals.append(time.monotonic())
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()

    def wait_for(self, events: int) -> None:
        wait_until(lambda: len(self.arrivals) >= events, 60, f"{events} events arrived", pause=0.001)


def wait_until_served(bench: Bench) -> None:
    wait_until(lambda: bench.status()["state"] == "idle", 30, "outbox-relay serves the destination")


def at_rate(bench: Bench, seconds: int) -> dict:
    with OutboxRelay(bench):
        result = sample(bench, seconds)
    bench.clear_log()
    return result


def first_events(bench: Bench, pauses: list[float], options: str = "") -> list[float]:
    """Milliseconds from sending COMMIT to the arrival of the first event after each of these pauses."""
    found = []
    with Receiver() as receiver, bench.destination(receiver.url), OutboxRelay(bench, options=options):
        wait_until_served(bench)
        for pause in [1.0, *pauses]:
            time.sleep(pause)
            with bench.sql.transaction():
                bench.sql.execute("SELECT outbox.enqueue('account', 'a1', 'AccountChanged', %s::jsonb, 1)", [payload()])
                start = time.monotonic()
            receiver.wait_for(len(found) + 1)
            found.append((receiver.arrivals[-1] - start) * 1000)
    bench.clear_log()
    return found[1:]  # without the one that connected


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds, pause, samples = (3, 5, 30.0, 5) if bench.quick else (5, 20, 600.0, 20)
    editions = {"extension": native_edition(bench), "SQL edition": sql_edition(bench)}
    runs: dict[str, list[dict]] = {name: [] for name in editions}
    for turn in range(rounds):
        bench.sql.execute("CHECKPOINT")
        for name, edition in editions.items():
            runs[name].append(edition.undisturbed(lambda: at_rate(edition, seconds)))
        bench.say(
            f"round {turn + 1} of {rounds}: "
            + ", ".join(
                f"{name} p50 {of_name[-1]['since_commit_sent']['p50']:.0f} us, "
                f"p99 {of_name[-1]['since_commit_sent']['p99']:.0f} us"
                for name, of_name in runs.items()
            )
        )
    first = {name: first_events(edition, [pause]) for name, edition in editions.items()}
    woken = {name: first_events(edition, [SHORT_PAUSE] * samples) for name, edition in editions.items()}
    looked = first_events(editions["SQL edition"], [SHORT_PAUSE] * samples, 'session = "pooled"')

    figure = Figure(
        "relay_latency",
        f"Commit to arrival at an HTTP receiver through outbox-relay, {RATE:,} events/s",
        logarithmic=True,
    )
    for name, of_name in runs.items():
        for quantile, goal in zip(("p50", "p99", "p999", "max"), (*GOALS[name], None, None)):
            figure.add(
                f"{name}, {quantile.replace('999', '99.9')}",
                [each["since_commit_sent"][quantile] / 1000 for each in runs[name]],
                "ms",
                goal,
            )
    for name in editions:
        figure.add(f"{name}, first event after {pause:.0f} s", first[name], "ms", FIRST)
    for name in editions:
        figure.add(f"{name}, first event after {SHORT_PAUSE:.0f} s", woken[name], "ms")
    figure.add(f"SQL edition, first after {SHORT_PAUSE:.0f} s, session pooled", looked, "ms")
    for name in editions:
        figure.add(f"{name}, rate reached", [each["rate"] for each in runs[name]], "events/s")
    figure.notes = [
        f"{SESSIONS} sessions, {rounds} runs of {seconds} s; events that arrived twice: "
        f"{sum(each['repeated'] for of_name in runs.values() for each in of_name)}",
        f"first events: the worst was {max([*first['extension'], *first['SQL edition']]):.1f} ms; "
        f"without notifications the median was {median(looked):.0f} ms",
        bench.disturbances(),
    ]
    figure.details = {"runs": runs, "first": first, "woken": woken, "looked": looked}
    return figure
