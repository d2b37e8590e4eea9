"""Common parts of drills: a server under load, two destinations, and a ledger outside of it.

    suffering    refuses some events, some of them for good; the drill adds further failures
    calm         accepts everything, and must not be affected

Receivers keep every request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from cluster import Cluster
from database import Database
from ledger import Entry, read_ledger
from receiver import Behaviour, Exchange, Receiver, answer, everything
from waiting import wait_until

from .account import Account, Attempt, Kill, attempts_of, balance
from .writing import Writing

MAX_ATTEMPTS = 4

# Everything happens often: cursors are saved, segments left and emptied, failures forgiven.
FLUSH_INTERVAL = 0.1
SETTINGS = {
    "outbox.cursor_flush_interval": "100ms",
    "outbox.segment_size": "64kB",
    "outbox.backoff_min": "1ms",
    "outbox.backoff_max": "100ms",
    "outbox.max_in_flight": "60",
}
SUFFERING = {"retry_base": "10ms", "retry_max": "200ms", "max_attempts": str(MAX_ATTEMPTS)}

# A saved cursor is on disk after three rounds of the WAL writer (200 ms each); on a loaded
# machine a process may run later.
REPEATS_WINDOW = FLUSH_INTERVAL + 0.6 + 6.0
LOST_CONNECTION = (psycopg.OperationalError, psycopg.InterfaceError)


# -------------------------------------------------------------------------------------------------
# A receiver that refuses events
# -------------------------------------------------------------------------------------------------


class Mood:
    """How a receiver answers: most events with 204, a few never, some only later.

    The outcome of an event depends only on its id or key, so that times do not matter.
    """

    def __init__(self, receiver: Receiver, *, refuses: bool) -> None:
        self.refuses = refuses
        self.refused_keys: frozenset[str] = frozenset()
        self.refused: Counter[str] = Counter()  # times each event was
        self.instead: Behaviour | None = None  # instead of accepting an event
        receiver.on(everything, self.behave)

    def status_of(self, event_id: str, key: str) -> int:
        dice = int(event_id[-6:], 16)
        if key in self.refused_keys:
            return 400
        if not self.refuses:
            return 204
        if dice % 149 == 0:
            return 413  # for good
        if dice % 151 == 0:
            return 400  # until its attempts are used up
        if dice % 19 == 0 and self.refused[event_id] < 1 + dice % (MAX_ATTEMPTS - 1):
            return 400
        return 204

    async def behave(self, exchange: Exchange) -> None:
        event_id = exchange.request.headers["ce-id"]
        status = self.status_of(event_id, exchange.request.headers["ce-subject"])
        if status != 204:
            self.refused[event_id] += 1
            await answer(status, body=b"not like this")(exchange)
        elif self.instead is not None:
            await self.instead(exchange)
        else:
            await answer()(exchange)


# -------------------------------------------------------------------------------------------------
# The drill
# -------------------------------------------------------------------------------------------------


class Drill(Writing):
    def __init__(self, cluster: Cluster, name: str, *, seed: int | None = None, **options: str) -> None:
        super().__init__(cluster, name, seed)
        self.suffering = Receiver()
        self.calm = Receiver()
        self.mood = Mood(self.suffering, refuses=True)
        self.kills: list[Kill] = []
        self.moved_at = 0.0
        self.max_attempts = int(options.get("max_attempts", MAX_ATTEMPTS))
        self.start_relays({**SUFFERING, **options})

    def start_relays(self, options_of_suffering: dict[str, str]) -> None:
        self.database.add_destination("suffering", self.suffering.url(), **options_of_suffering)
        self.database.add_destination("calm", self.calm.url())
        for destination in ("suffering", "calm"):
            self.database.wait_for_worker("relay", destination)

    def close(self) -> None:
        super().close()
        self.suffering.close()
        self.calm.close()

    def wait_for_arrivals(self, more: int, *, at: Receiver | None = None, timeout: float = 180) -> None:
        """Waits until this number of further requests has arrived."""
        receiver = at or self.suffering
        goal = len(receiver.requests) + more
        wait_until(
            lambda: len(receiver.requests), lambda seen: seen >= goal, timeout=timeout,
            what=f"{more} more requests",
        )  # fmt: skip

    def arrive_soon(self, more: int) -> bool:
        """Returns whether this number of further requests arrives within a few seconds."""
        try:
            self.wait_for_arrivals(more, timeout=6)
        except AssertionError:
            return False
        return True

    # ---- killing --------------------------------------------------------------------------------

    @contextmanager
    def noted(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.kills.append(Kill(what, began, time.monotonic()))

    def kill(self, what: str, pid: int) -> None:
        with self.noted(what):
            self.cluster.kill_and_recover(pid)

    def kill_postmaster(self) -> None:
        with self.noted("postmaster"):
            self.cluster.kill_postmaster()
            self.cluster.start()

    @contextmanager
    def receiver_away(self) -> Iterator[None]:
        """Simulates a killed process for its peers: connections are reset, and nothing listens."""
        with self.noted("receiver"):
            self.suffering.refuse_connections()
        try:
            yield
        finally:
            self.suffering.listen()

    def move_to(self, database: Database) -> None:
        """Continues on a new server, which may lack the last transactions of the old one."""
        self.database, self.cluster = database, database.cluster
        for receiver in (self.suffering, self.calm):  # requests that it had sent before its connections ended
            wait_until(
                lambda: len(receiver.open_connections), lambda left: left == 0,
                what="all that the old server had sent to be read",
            )  # fmt: skip
        self.moved_at = time.monotonic()

    def relay(self, destination: str = "suffering") -> int:
        return self.database.wait_for_worker("relay", destination)

    def keeper(self) -> int:
        return self.database.wait_for_worker("keeper")

    def launcher(self) -> int:
        def pid() -> int | None:
            return next((p for kind, _, p in self.cluster.workers() if "launcher" in kind), None)

        found = wait_until(pid, what="a launcher", ignoring=(psycopg.OperationalError,))
        assert found is not None
        return found

    def writing_backend(self) -> int:
        def pid() -> int | None:
            rows = self.cluster.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
                "AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
            )
            return self.random.choice(rows)[0] if rows else None

        found = wait_until(pid, what="a backend in the middle of a transaction")
        assert found is not None
        return found

    # ---- the end --------------------------------------------------------------------------------

    def conclude(self, *, repeats: bool = False, of_calm: bool = False, acknowledged_lasts: bool = True) -> Account:
        """Waits until everything is settled, and compares the ledgers. Repeats of the calm destination are allowed
        with `of_calm` only."""
        ledger = read_ledger(self.database.connection)
        self.wait_until_settled(ledger)
        dead = self.dead_letters()
        rolled_back = self.noted_as("rolled back")
        accounts = {
            name: balance(
                ledger, self.attempts(receiver, ledger), dead=dead if name == "suffering" else set(),
                rolled_back=rolled_back, max_attempts=self.max_attempts,
                kills=[k for k in self.kills if name == "suffering" or k.what != "receiver"],
                window=REPEATS_WINDOW, behind=self.most_behind_a_slow_event(),
            )
            for name, receiver in (("suffering", self.suffering), ("calm", self.calm))
        }  # fmt: skip
        self.report(accounts)
        if any(account.lost for account in accounts.values()):
            self.print_log()
        restarts = sum(kill.what != "receiver" for kill in self.kills)
        for name, account in accounts.items():
            concerned = name == "suffering" or of_calm or self.moved_at > 0
            account.hold(restarts=restarts, repeats=repeats and concerned)
        assert accounts["calm"].refusals == 0
        self.check_ledger(ledger, rolled_back, acknowledged_lasts)
        return accounts["suffering"]

    def print_log(self) -> None:
        """Prints the state that explains a loss."""
        for what in ("outbox.cursor", "outbox.ring", "outbox.delivery", "outbox.event"):
            print(f"---- {what}")
            for row in self.database.execute(f"SELECT r.tableoid::regclass, r.* FROM {what} AS r"):
                print(row)

    def attempts(self, receiver: Receiver, ledger: list[Entry]) -> list[Attempt]:
        committed = {entry.event_id for entry in ledger}
        return [
            attempt for attempt in attempts_of(receiver.events())
            if attempt.began > self.moved_at or attempt.event_id in committed
        ]  # fmt: skip

    def most_behind_a_slow_event(self) -> int:
        """docs/architecture/pipeline.md; and the log is read a block of 512 events at a time."""
        return 16 * int(self.cluster.settings["outbox.max_in_flight"]) + 512

    def wait_until_settled(self, ledger: list[Entry]) -> None:
        committed = {entry.event_id for entry in ledger}
        for receiver in (self.suffering, self.calm):
            with suppress(AssertionError):  # the account gives a better message
                wait_until(
                    lambda: len(committed.difference(receiver.ids())),
                    lambda missing: missing == 0, timeout=40, what="all events to be sent",
                )  # fmt: skip
        wait_until(
            lambda: self.database.execute(
                "SELECT destination, state, count(*) FROM outbox.delivery WHERE state <> 'DEAD' GROUP BY 1, 2"
            ),
            lambda waiting: waiting == [], timeout=180, what="nothing but dead letters in outbox.delivery",
        )  # fmt: skip
        for destination in ("suffering", "calm"):
            self.database.wait_settled(destination)

    def dead_letters(self) -> set[str]:
        rows = self.database.execute("SELECT event_id::text, destination, last_error FROM outbox.dead_letter")
        for event_id, destination, error in rows:
            assert destination == "suffering" and error, f"{event_id} is dead at {destination}: {error}"
            assert self.mood.refused[event_id] > 0, f"{event_id} is dead and was never refused"
        return {event_id for event_id, _, _ in rows}

    def report(self, accounts: dict[str, Account]) -> None:
        kills = Counter(kill.what for kill in self.kills)
        counted = ", ".join(f"{n} {what}" for what, n in sorted(kills.items())) or "none"
        for name, account in accounts.items():
            line = f"{self.name} [seed {self.seed}] {name}: {account}; kills: {counted}"
            self.reports.append(line)
            print(line, flush=True)


# The fixture `make_drill`: (settings=None, **options of the suffering destination) -> Drill
MakeDrill = Callable[..., Drill]
