"""A database with writers, several destinations in changing weather, and an operator that takes random steps.

The account is outside of the product: the table `ledger` has what committed, the receivers what arrived.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from database import Database
from ledger import SETUP, Entry, read_ledger
from receiver import Event, Exchange, Receiver, answer, delayed, everything
from waiting import wait_until

from .steps import LOCKED, SET_ASIDE, alter, calls, drop_and_make_again, rename

KEYS = 12
WRITERS = 2
OPTIONS = {"retry_base": "10ms", "retry_max": "200ms", "max_attempts": "1000"}


class Place:
    """A destination with its receiver."""

    def __init__(self, world: World, name: str, on_dead_letter: str) -> None:
        self.world = world
        self.random = world.random
        self.name = name
        self.on_dead_letter = on_dead_letter
        self.receiver = Receiver()
        self.receiver.on(everything, self.behave)
        self.weather = "up"
        self.dead: set[str] = set()  # events that were refused for good
        self.given_up: set[str] = set()  # events that a step may have given up
        world.database.add_destination(name, self.receiver.url(), on_dead_letter=on_dead_letter, **OPTIONS)

    # ---- weather --------------------------------------------------------------------------------

    def change_weather(self, weather: str | None = None) -> None:
        if self.weather == "away":
            self.receiver.listen()
        self.weather = weather or self.random.choice(["up", "up", "down", "refusing", "slow", "away"])
        if self.weather == "away":
            self.receiver.refuse_connections()

    async def behave(self, exchange: Exchange) -> None:
        event = exchange.request.headers["ce-id"]
        dice = int(event[-4:], 16)
        if self.weather == "down":
            await answer(503)(exchange)
        elif self.weather == "refusing" and dice % 5 == 0:
            await answer(400)(exchange)
        elif self.weather == "refusing" and dice % 31 == 1:
            self.dead.add(event)
            await answer(413)(exchange)
        elif self.weather == "slow":
            await delayed(0.005 * (dice % 20))(exchange)
        else:
            await answer()(exchange)

    # ---- the account ----------------------------------------------------------------------------

    def taken(self) -> list[Event]:
        """Returns what arrived, in the order of the answers."""
        return sorted(
            (e for e in self.receiver.events() if e.request.status == 204), key=lambda e: e.request.ended or 0
        )

    def missing(self, ledger: list[Entry]) -> set[str]:
        arrived = {event.id for event in self.receiver.events() if event.request.status == 204}
        return {entry.event_id for entry in ledger} - arrived - self.given_up

    def out_of_order(self, ledger: list[Entry]) -> list[str]:
        """Returns events that first arrived before an earlier one of their key, unless a step or a dead letter allows it."""
        may_pass = self.given_up | (self.dead if self.on_dead_letter == "release" else set())
        of_key: dict[str, dict[int, str]] = defaultdict(dict)
        for entry in ledger:
            of_key[entry.key][entry.version] = entry.event_id
        seen: set[str] = set()
        wrong = []
        for event in self.taken():
            if event.id not in seen:
                seen.add(event.id)
                below = [v for v, other in of_key[event.subject].items()
                         if v < event.version and other not in seen and other not in may_pass]  # fmt: skip
                if below and event.id not in may_pass:
                    wrong.append(f"key {event.subject}: version {event.version} arrived before {below[:5]}")
        return wrong


class World:
    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.taken: list[str] = []  # steps
        database.execute(SETUP.format(aggregates=KEYS))
        self.places = [Place(self, "strict", "block"), Place(self, "other", "block"), Place(self, "loose", "release")]

    def close(self) -> None:
        for place in self.places:
            place.receiver.close()

    # ---- writers --------------------------------------------------------------------------------

    @contextmanager
    def writers(self) -> Iterator[None]:
        failures: list[BaseException] = []

        def write(number: int, dice: random.Random) -> None:
            try:
                with self.database.connect() as connection:
                    while not self.stopping.wait(dice.random() / 20):
                        with connection.transaction(force_rollback=dice.random() < 0.1):
                            for key in sorted(dice.sample(range(1, KEYS + 1), dice.randint(1, 3))):
                                connection.execute("SELECT change(%s, %s)", (key, number))
                            if dice.random() < 0.05:
                                self.stopping.wait(0.3)  # a transaction that others overtake
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=write, args=(n, random.Random(self.random.random()))) for n in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()
        assert failures == []

    # ---- the operator ---------------------------------------------------------------------------

    def ledger(self) -> list[Entry]:
        return read_ledger(self.database.connection)

    def seek_back(self, place: Place) -> None:
        """Moves the cursor to a place that has nothing behind it which did not arrive."""
        missing = list(place.missing(self.ledger()) | place.given_up)
        first = self.database.value(
            "SELECT coalesce(min(position) FILTER (WHERE event_id = ANY (%s::uuid[])) - 1, max(position), 0)"
            "  FROM outbox.event", (missing,),
        )  # fmt: skip
        self.database.execute(
            "SELECT outbox.seek(%s, %s::bigint)", (place.name, self.random.choice([0, self.random.randint(0, first)]))
        )

    def seek_forward(self, place: Place) -> None:
        self.database.execute("SELECT outbox.seek(%s, 'end', why => 'test')", (place.name,))
        place.given_up |= place.missing(self.ledger())

    def replay(self, place: Place) -> None:
        ledger = self.ledger()
        selection, value = self.random.choice([
            ("aggregate_id => %s::text", str(self.random.randint(1, KEYS))),
            ("since => now() - %s::interval", "3 s"),
            ("event_ids => %s::uuid[]", [e.event_id for e in self.random.sample(ledger, min(3, len(ledger)))]),
            ("topic => %s::text", "*"),
        ])  # fmt: skip
        self.database.execute(f"SELECT outbox.replay(%s, {selection})", (place.name, value))

    def cancel_replay(self, place: Place) -> None:
        replays = self.database.execute(
            "SELECT id FROM outbox.replay_progress WHERE destination = %s ORDER BY id DESC LIMIT 3", (place.name,)
        )
        if replays:
            self.database.execute("SELECT outbox.cancel_replay(%s)", self.random.choice(replays))

    def discard(self, place: Place) -> None:
        dead = self.database.execute(
            "SELECT event_id::text FROM outbox.dead_letter WHERE destination = %s", (place.name,)
        )
        if dead:
            (event,) = self.random.choice(dead)
            place.given_up.add(event)
            self.database.execute(
                "SELECT outbox.discard(%s, event_ids => ARRAY[%s::uuid], why => 'test')", (place.name, event)
            )

    def by_statement(self, *statements: str) -> Callable[[Place], None]:
        take = calls(*statements)
        return lambda place: take(self.database, place.name) and None

    def rename(self, place: Place) -> None:
        place.name = rename(self.database, place.name)

    def alter(self, place: Place) -> None:
        alter(retry_max=f"{self.random.randint(100, 300)}ms")(self.database, place.name)

    def drop_and_make_again(self, place: Place) -> None:
        drop_and_make_again()(self.database, place.name)

    def take_step(self) -> None:
        steps = {
            Place.change_weather: 10,
            self.by_statement("SELECT outbox.pause('{}')"): 4,
            self.by_statement("SELECT outbox.resume('{}')"): 6,
            self.by_statement("SELECT outbox.redrive('{}')"): 3,
            self.by_statement(*SET_ASIDE): 1,
            self.by_statement(LOCKED + "SELECT outbox_internal.detach(l) FROM locked AS l"): 1,
            self.seek_back: 4,
            self.seek_forward: 1,
            self.replay: 8,
            self.cancel_replay: 8,
            self.discard: 1,
            self.rename: 2,
            self.alter: 2,
            self.drop_and_make_again: 1,
        }
        step = self.random.choices(list(steps), list(steps.values()))[0]
        place = self.random.choice(self.places)
        self.taken.append(f"{getattr(step, '__name__', step)} {place.name}")
        step(place)

    def check_that_it_counts(self, place: Place) -> None:
        """Every event that has not arrived is waited for, or is a dead letter."""
        with self.database.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            ledger = read_ledger(connection)
            row = connection.execute(
                "SELECT outbox.backlog(%s), (SELECT count(*) FROM outbox.delivery WHERE destination = %s AND state = 'DEAD')",
                (place.name, place.name),
            ).fetchone()  # fmt: skip
        assert row is not None
        missing = place.missing(ledger)
        assert len(missing) <= sum(row), f"{place.name}: of {len(missing)} events only {row} count\n{self.taken}"

    def operate(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.take_step()
            self.check_that_it_counts(self.random.choice(self.places))
            self.stopping.wait(self.random.random() / 10)

    # ---- the end --------------------------------------------------------------------------------

    def conclude(self) -> None:
        """In good weather everything arrives."""
        for place in self.places:
            place.change_weather("up")
            self.database.execute("SELECT outbox.resume(%s)", (place.name,))
        ledger = self.ledger()
        for place in self.places:

            def missing(place: Place = place) -> set[str]:
                self.database.execute("SELECT outbox.redrive(%s)", (place.name,))
                return place.missing(ledger)

            wait_until(missing, lambda left: not left, what=f"all events at {place.name}")
        assert len(ledger) > 0
        for place in self.places:
            assert place.out_of_order(ledger) == [], f"{place.name}: {self.taken}"
            invented = {event.id for event in place.taken()} - {entry.event_id for entry in ledger}
            assert not invented, f"{place.name} got what was not committed: {invented}"
            wait_until(
                lambda place=place: self.database.value("SELECT outbox.backlog(%s)", (place.name,)),
                lambda left: left == 0, what=f"nothing to be counted at {place.name}",
            )  # fmt: skip
