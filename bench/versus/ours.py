"""pg_outbox: the relay inside the server, outbox-relay, and the SQL edition."""

from collections.abc import Iterator
from contextlib import contextmanager

from figures.impaired import receivers
from figures.latency import sample
from outbox_relay import OutboxRelay
from versus.peer import Consumer, Peer, memory


class Native(Peer):
    def clear(self) -> None:
        self.bench.clear_log()

    def fill(self, events: int) -> None:
        self.bench.fill(events, 100)

    @contextmanager
    def deliver(self, url: str = "null:") -> Iterator[Consumer]:
        with self.bench.destination(url):
            yield Consumer(self.bench.delivered, lambda: [self.bench.relay_pid()])

    def goodput(self, events: int) -> float:
        """Delivers to an nginx that answers 503 to one request in a hundred, because `null:` refuses nothing."""
        with receivers(self.bench) as port:
            url = f"http://127.0.0.1:{port}/"
            return self.goodput_of(lambda failing: self.most_of(events, self.deliver(url + "unavailable_1" * failing)))

    def latency(self, seconds: int) -> dict:
        self.clear()
        return sample(self.bench, seconds)

    def tables(self) -> str:
        return "c.relnamespace = 'outbox'::regnamespace"


class Outside(Native):
    """Its destinations are served by outbox-relay."""

    @contextmanager
    def deliver(self, url: str = "null:") -> Iterator[Consumer]:
        start = self.settled()
        with self.bench.destination(url), OutboxRelay(self.bench) as relay:
            yield Consumer(lambda: self.settled() - start, lambda: [relay.pid])

    def settled(self) -> int:
        """The position up to which everything is delivered, as it was saved: within a second."""
        return self.bench.sql.execute(
            "SELECT coalesce((SELECT position FROM outbox.cursor), "
            "(SELECT min(position) - 1 FROM outbox.event), "
            "(SELECT last_value FROM outbox.event_position))"
        ).fetchone()[0]

    def drain(self, events: int) -> tuple[float, float]:
        """Measures from the start of the program to its end."""
        self.clear()
        self.fill(events)
        relay, most = OutboxRelay(self.bench), 0.0

        def look() -> float:
            nonlocal most
            most = max(most, memory([relay.pid]))
            return most

        with self.bench.destination("null:"):
            used = relay.once(look)
        return events / used.seconds, most

    def latency(self, seconds: int) -> dict:
        self.clear()
        with OutboxRelay(self.bench):
            return sample(self.bench, seconds)
