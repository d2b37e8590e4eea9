"""Memory of one outbox-relay that serves fifty HTTP destinations in ten databases, while each of them delivers some
thousand events: with all of them in order, and with ten that nobody listens for, each with a backlog of more than it
may have in flight."""

from contextlib import ExitStack

from figures.drain_http import free_port, nginx
from figures.memory import Memory, memory_of
from outbox_relay import OutboxRelay, SqlEdition, sql_edition
from report import Figure, Goal
from workload import Bench, wait_until

GOAL = Goal(128, 64, less_is_better=True)
DATABASES, DESTINATIONS = 10, 5
BACKLOG = 15_000


def settled(bench: Bench) -> int:
    """Destinations that have settled everything."""
    return bench.sql.execute(
        "SELECT FROM outbox.cursor WHERE position >= (SELECT last_value FROM outbox.event_position)"
    ).rowcount


def fail(bench: Bench) -> bool:
    return bench.sql.execute("SELECT FROM outbox.relay_status WHERE state = 'backing off'").rowcount == 1


def run(databases: list[SqlEdition], port: int, events: int, down: bool) -> list[Memory]:
    """Delivers to all destinations, in every database but the first one if that is down."""
    samples: list[Memory] = []
    working = DESTINATIONS - down
    with ExitStack() as stack:
        for database in databases:
            database.clear_log()
            if down:
                stack.enter_context(database.destination(f"http://127.0.0.1:{free_port()}/events", called="down"))
                database.fill(BACKLOG, 100)
            for i in range(working):
                stack.enter_context(
                    database.destination(f"http://127.0.0.1:{port}/events", called=f"sink_{i}", start="end")
                )
            if not down:
                database.fill(events, 100)
        with OutboxRelay(*databases) as relay:

            def drained() -> bool:
                samples.append(memory_of(relay.pid))
                return all(settled(database) == working for database in databases)

            if down:
                wait_until(lambda: all(map(fail, databases)), 60, "ten destinations are down")
            # Twice: then from connections and buffers that are warm.
            for _ in range(2):
                for database in databases:
                    database.fill(events, 100)
                wait_until(drained, 300, "all destinations have delivered", pause=0.1)
            samples.append(memory_of(relay.pid))
    return samples


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    events = 2_000 if bench.quick else 5_000
    databases = [sql_edition(bench, f"plain_{i}") for i in range(DATABASES)]
    count = DATABASES * DESTINATIONS
    figure = Figure("relay_memory", f"Memory of outbox-relay, {count} destinations in {DATABASES} databases")
    runs = {}
    with nginx(bench) as port:
        for name, down in ("all work", False), (f"{DATABASES} are down", True):
            runs[name] = run(databases, port, events, down)
            bench.say(f"{name}: {max(s.peak for s in runs[name]):.0f} MiB at most")
    for name, samples in runs.items():
        figure.add(
            f"{name}: largest of the following",
            max(max(s.resident, s.proportional, s.peak) for s in samples),
            "MiB",
            GOAL,
        )
        figure.add(f"{name}: resident", max(s.resident for s in samples), "MiB")
        figure.add(f"{name}: anonymous", max(s.anonymous for s in samples), "MiB")
        figure.add(f"{name}: proportional share (Pss)", max(s.proportional for s in samples), "MiB")
        figure.add(f"{name}: peak resident", max(s.peak for s in samples), "MiB")
        figure.add(f"{name}: resident at the end", samples[-1].resident, "MiB")
    figure.notes = [
        f"{2 * events:,} events and more to each destination that works, one request an event",
        f"those that are down refuse connections, and have {BACKLOG:,} events and more to deliver",
    ]
    return figure
