"""A database with writers, several destinations in changing weather, and an operator that takes random steps.

The account is outside of the product: the table `ledger` has what committed, the receivers what arrived.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from database import Database
from ledger import SETUP, Entry, read_ledger
from receiver import Exchange, Receiver, answer, delayed, everything
from waiting import wait_until

from .steps import LOCKED, SET_ASIDE, alter, calls, drop_and_make_again, rename

KEYS = 12
WRITERS = 2
NO_SUCH_DESTINATION, LEASE_LOST = "42704", "OL001"
FEWEST_STEPS = 30  # however busy the machine is
OPTIONS = {"retry_base": "10ms", "retry_max": "200ms", "max_attempts": "1000"}


class Place(ABC):
    """A destination, and what takes its events."""

    weathers: tuple[str, ...] = ("up", "up", "down", "refusing", "slow", "away")

    def __init__(self, world: World, name: str, url: str, on_dead_letter: str) -> None:
        self.world = world
        self.name = name
        self.on_dead_letter = on_dead_letter
        self.weather = "up"
        self.dead: set[str] = set()  # events that were refused for good
        self.given_up: set[str] = set()  # events that a step may have given up
        world.database.add_destination(name, url, on_dead_letter=on_dead_letter, **OPTIONS)

    @abstractmethod
    def arrivals(self) -> list[str]:
        """Returns events that were taken, in order, with duplicates."""

    @abstractmethod
    def close(self) -> None: ...

    def change_weather(self, weather: str | None = None) -> None:
        self.weather = weather or self.world.random.choice(self.weathers)

    def answer_to(self, event: str) -> int:
        """Returns the status with which an event is answered now."""
        dice = int(event[-4:], 16)
        if self.weather == "down":
            return 503
        if self.weather == "refusing" and dice % 5 == 0:
            return 400
        if self.weather == "refusing" and dice % 31 == 1:
            self.dead.add(event)
            return 413
        return 204

    # ---- the account ----------------------------------------------------------------------------

    def missing(self, ledger: list[Entry]) -> set[str]:
        return {entry.event_id for entry in ledger} - set(self.arrivals()) - self.given_up

    def out_of_order(self, ledger: list[Entry]) -> list[str]:
        """Returns events that first arrived before an earlier one of their key, unless a step or a dead letter allows it."""
        may_pass = self.given_up | (self.dead if self.on_dead_letter == "release" else set())
        by_id = {entry.event_id: entry for entry in ledger}
        of_key: dict[str, dict[int, str]] = defaultdict(dict)
        for entry in ledger:
            of_key[entry.key][entry.version] = entry.event_id
        seen: set[str] = set()
        wrong = []
        for event in self.arrivals():
            if event in seen or event not in by_id:
                continue
            seen.add(event)
            entry = by_id[event]
            below = [version for version, other in of_key[entry.key].items()
                     if version < entry.version and other not in seen and other not in may_pass]  # fmt: skip
            if below and event not in may_pass:
                wrong.append(f"key {entry.key}: version {entry.version} arrived before {below[:5]}")
        return wrong


class HttpPlace(Place):
    def __init__(self, world: World, name: str, on_dead_letter: str) -> None:
        self.receiver = Receiver()
        self.receiver.on(everything, self.behave)
        super().__init__(world, name, self.receiver.url(), on_dead_letter)

    def close(self) -> None:
        self.receiver.close()

    def change_weather(self, weather: str | None = None) -> None:
        if self.weather == "away":
            self.receiver.listen()
        super().change_weather(weather)
        if self.weather == "away":
            self.receiver.refuse_connections()

    async def behave(self, exchange: Exchange) -> None:
        event = exchange.request.headers["ce-id"]
        answered = answer(self.answer_to(event))
        await (delayed(int(event[-4:], 16) % 20 / 200, answered) if self.weather == "slow" else answered)(exchange)

    def arrivals(self) -> list[str]:
        taken = [event for event in self.receiver.events() if event.request.status == 204]
        return [event.id for event in sorted(taken, key=lambda event: event.request.ended or 0)]


class PullPlace(Place):
    """A pull destination, from which one thread fetches."""

    weathers = ("up", "up", "down", "refusing", "away")

    def __init__(self, world: World, name: str, on_dead_letter: str) -> None:
        self.taken: list[str] = []
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        super().__init__(world, name, "pull:", on_dead_letter)
        self.thread = threading.Thread(target=self.fetch_all)
        self.thread.start()

    def close(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.check()

    def check(self) -> None:
        """Says at once why nothing is fetched any more."""
        if self.failures:
            raise self.failures[0]

    def arrivals(self) -> list[str]:
        self.check()
        return list(self.taken)

    def fetch_all(self) -> None:
        try:
            with self.world.database.connect() as connection:
                while not self.stopping.wait(0.01):
                    if self.weather != "away":
                        self.fetch(connection)
        except BaseException as error:
            self.failures.append(error)

    def fetch(self, connection: psycopg.Connection) -> None:
        try:
            rows = connection.execute(
                "SELECT token, event_id::text FROM outbox.fetch(%s, 20, '10 s')", (self.name,)
            ).fetchall()
            self.settle(connection, rows)
        except psycopg.Error as error:
            if error.sqlstate not in (NO_SUCH_DESTINATION, LEASE_LOST):  # a step has changed that
                raise

    def settle(self, connection: psycopg.Connection, rows: list[tuple[Any, ...]]) -> None:
        if rows and self.weather in ("down", "away"):
            connection.execute("SELECT outbox.release(%s)", (rows[0][0],))
            return
        waiting: set[str] = set()  # behind one that was refused
        for token, event in rows:
            if event in waiting:
                continue
            status = self.answer_to(event)
            if status == 204:
                self.taken.append(event)
            else:
                behind = connection.execute(
                    "SELECT n::text FROM outbox.nack(%s, %s, 'no', %s) AS n", (token, event, status == 413)
                )
                waiting |= {row[0] for row in behind}
        if rows:
            connection.execute("SELECT outbox.ack(%s)", (rows[0][0],))


class World:
    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.taken: list[str] = []  # steps
        database.execute(SETUP.format(aggregates=KEYS))
        self.places: list[Place] = [
            HttpPlace(self, "strict", "block"), HttpPlace(self, "loose", "release"), PullPlace(self, "fetched", "block"),
        ]  # fmt: skip

    def close(self) -> None:
        for place in self.places:
            place.close()

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
        arrived = list(set(place.arrivals()) - place.given_up)
        first = self.database.value(
            "SELECT coalesce(min(position) FILTER (WHERE event_id <> ALL (%s::uuid[])) - 1, max(position), 0)"
            "  FROM outbox.event", (arrived,),
        )  # fmt: skip
        position = self.random.choice([0, self.random.randint(0, first)])
        # An event below it may be committed meanwhile: then a reason is asked for, and nothing is passed over.
        refusals = () if position == 0 else (psycopg.errors.InvalidParameterValue,)
        with suppress(*refusals):
            self.database.execute("SELECT outbox.seek(%s, %s::bigint)", (place.name, position))

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
        while time.monotonic() < until or len(self.taken) < FEWEST_STEPS:
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
            invented = set(place.arrivals()) - {entry.event_id for entry in ledger}
            assert not invented, f"{place.name} got what was not committed: {invented}"
            wait_until(
                lambda place=place: self.database.value("SELECT outbox.backlog(%s)", (place.name,)),
                lambda left: left == 0, what=f"nothing to be counted at {place.name}",
            )  # fmt: skip
