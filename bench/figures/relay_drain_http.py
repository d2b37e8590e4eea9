"""Rate of requests of outbox-relay to nginx, one per event, against wrk: see drain_http."""

from figures.drain_http import MANY, WrkContest, add_rows, connections_to, nginx
from outbox_relay import OutboxRelay, native_edition, sql_edition
from report import Figure, Goal
from workload import Bench

GOAL = Goal(0.5, 0.8)


class Contest(WrkContest):
    """Takes the program from its start to its end."""

    def drain(self, events: int) -> tuple[float, float]:
        self.bench.clear_log()
        self.bench.fill(events, 100)
        with self.bench.destination(f"http://127.0.0.1:{self.port}/events", **self.options):
            used = OutboxRelay(self.bench).once(lambda: connections_to(self.port))
        self.cpu.append((used.relay / events * 1e6, used.server / events * 1e6))
        return events / used.seconds, used.most_seen


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    rounds, seconds, events = (3, 2, 150_000) if bench.quick else (7, 4, 250_000)
    bench.touch_memory()
    native, plain = native_edition(bench), sql_edition(bench)
    with nginx(bench) as port:
        contests = {
            "extension": Contest(native, port),
            f"extension, {MANY}": Contest(native, port, max_connections=str(MANY)),
            "SQL edition": Contest(plain, port),
        }
        for turn in range(rounds):
            bench.sql.execute("CHECKPOINT")
            for contest in contests.values():
                contest.round(events, seconds)
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{name} {contest.ratios()[-1]:.2f}" for name, contest in contests.items())
            )

    figure = Figure(
        "relay_drain_http", "Drain to HTTP by outbox-relay, one request an event, as a share of wrk's requests"
    )
    for name, contest in contests.items():
        figure.add(f"{name.split(',')[0]}, {contest.connections} connections", contest.ratios(), "of wrk", GOAL)
    for name, contest in contests.items():
        add_rows(figure, contest, f"outbox-relay, {name.split(',')[0]}")
        figure.add(f"CPU an event, outbox-relay, {name}", [relay for relay, _ in contest.cpu], "us")
        figure.add(f"CPU an event, the server, {name}", [server for _, server in contest.cpu], "us")
    figure.notes = [
        "nginx with 2 workers answers 204; 512-byte payload; from the start of the program to its end",
        bench.disturbances(),
    ]
    return figure
