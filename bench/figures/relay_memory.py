"""Memory of one outbox-relay that serves fifty HTTP destinations in ten databases, after each of them has
delivered some thousand events."""

from contextlib import ExitStack

from figures.drain_http import nginx
from figures.memory import memory_of
from outbox_relay import OutboxRelay, sql_edition
from report import Figure, Goal
from workload import Bench, wait_until

GOAL = Goal(128, 64, less_is_better=True)
DATABASES, DESTINATIONS = 10, 5


def settled(bench: Bench) -> int:
    """Destinations that have settled everything."""
    return bench.sql.execute("SELECT FROM outbox.cursor WHERE position >= "
                             "(SELECT last_value FROM outbox.event_position)").rowcount


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    events = 2_000 if bench.quick else 5_000
    databases = [sql_edition(bench, f"plain_{i}") for i in range(DATABASES)]
    samples = []
    with nginx(bench) as port, ExitStack() as stack:
        for database in databases:
            for i in range(DESTINATIONS):
                stack.enter_context(database.destination(f"http://127.0.0.1:{port}/events", called=f"sink_{i}"))
            database.fill(events, 100)
        with OutboxRelay(*databases) as relay:
            def drained() -> bool:
                samples.append(memory_of(relay.pid))
                return all(settled(database) == DESTINATIONS for database in databases)

            wait_until(drained, 300, "all destinations have delivered", pause=0.1)
            # Once more, from connections and buffers that are warm.
            for database in databases:
                database.fill(events, 100)
            wait_until(drained, 300, "all destinations have delivered again", pause=0.1)
            samples.append(memory_of(relay.pid))

    count = DATABASES * DESTINATIONS
    figure = Figure("relay_memory", f"Memory of outbox-relay, {count} destinations in {DATABASES} databases")
    figure.add("largest of the following", max(max(s.resident, s.proportional, s.peak) for s in samples), "MiB", GOAL)
    figure.add("resident", max(s.resident for s in samples), "MiB")
    figure.add("anonymous", max(s.anonymous for s in samples), "MiB")
    figure.add("proportional share (Pss)", max(s.proportional for s in samples), "MiB")
    figure.add("peak resident", max(s.peak for s in samples), "MiB")
    figure.add("resident at the end", samples[-1].resident, "MiB")
    figure.notes = [f"{2 * events:,} events to each destination, one request an event; {len(samples)} samples of /proc"]
    return figure
