"""Compares the arrivals of one destination with the ledger, when some events were refused.

An event is settled when the destination accepted it (2xx), or refused it until it became a dead
letter. From the requests, as the receiver recorded them:

    lost           in the ledger, never accepted, and not a dead letter
    invented       sent, and not in the ledger; or noted by its writer as rolled back
    out of order   sent before the version below it was settled
    twice          taken again. After a kill that is allowed: see `Repeats`
    steps back     number of returns of a key to a lower version. A relay that starts over may cause two
                   per key: to events in outbox.delivery, and to events read again from the log
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ledger import Entry
from receiver import Event


@dataclass(frozen=True)
class Attempt:
    event_id: str
    key: str
    version: int
    connection: int
    began: float
    ended: float | None  # None if it was never answered
    status: int | None

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        return self.status is not None and 400 <= self.status < 500 and self.status != 429


def attempts_of(events: Iterable[Event]) -> list[Attempt]:
    return [
        Attempt(event.id, event.subject, event.version, event.request.connection,
                event.request.began, event.request.ended, event.request.status)
        for event in events
    ]  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """A kill. Between `began` and `ended`, only processes that have died before it, or are running again, send."""

    what: str
    began: float
    ended: float


@dataclass
class Repeats:
    """Events that arrived again after one kill, and their limit."""

    kill: Kill
    limit: int
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kill.what}: {self.number} of at most {self.limit}"


@dataclass
class Account:
    committed: int = 0
    taken: int = 0
    refusals: int = 0
    twice: int = 0
    dead: int = 0
    lost: list[Entry] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)  # twice without a kill between
    steps_back: Counter[str] = field(default_factory=Counter)
    repeats: list[Repeats] = field(default_factory=list)  # of each kill

    def __str__(self) -> str:
        most = max((repeats.number for repeats in self.repeats), default=0)
        return (
            f"committed {self.committed}, arrived {self.taken}, twice {self.twice} "
            f"(most after one kill {most}), refused {self.refusals} times, dead {self.dead}, "
            f"lost {len(self.lost)}, invented {len(self.invented)}, "
            f"out of order {len(self.out_of_order)}"
        )

    def hold(self, *, restarts: int, repeats: bool = False) -> None:
        """Fails unless all promises hold. `repeats`: an operator asked for events again, or the
        receiver accepted events without an answer."""
        assert self.committed > 0, "nothing was committed: this run shows nothing"
        assert not self.lost, f"{self}\nlost: {self.lost[:10]}"
        assert not self.invented, f"{self}\ninvented: {self.invented[:10]}"
        assert not self.out_of_order, f"{self}\n" + "\n".join(self.out_of_order[:10])
        if repeats:
            return
        assert not self.unexplained, (
            f"{self}\ntwice without a cause: {self.unexplained[:10]}\n{[r.kill for r in self.repeats]}"
        )
        most = self.steps_back.most_common(1)
        assert not most or most[0][1] <= 2 * restarts, f"{self}\nsteps back of {most[0]}"
        for kill in self.repeats:
            assert kill.number <= kill.limit, f"{self}\nrepeats after a kill: {kill}"


def settled_at(attempts: list[Attempt], dead: set[str], max_attempts: int) -> dict[str, float]:
    """Returns when each event was settled, as far as the receiver can know."""
    settled: dict[str, float] = {}
    refusals: Counter[str] = Counter()
    unanswered: Counter[str] = Counter()
    ended = sorted((a for a in attempts if a.ended is not None), key=lambda a: a.ended or 0.0)
    last = {attempt.event_id: attempt for attempt in ended}
    for attempt in ended:
        refusals[attempt.event_id] += attempt.refused
        unanswered[attempt.event_id] += attempt.status is None
        used_up = attempt.status == 413 or refusals[attempt.event_id] >= max_attempts
        # Answers that got lost may count as failures; the receiver cannot know which.
        may_be_used_up = unanswered[attempt.event_id] > 0 and attempt is last[attempt.event_id]
        dies = attempt.event_id in dead and ((attempt.refused and used_up) or may_be_used_up)
        if attempt.taken or dies:
            settled.setdefault(attempt.event_id, attempt.ended)
    return settled


def history(attempt: Attempt, before: str, attempts: list[Attempt], dead: set[str]) -> str:
    """Describes the outcome of the version below, in seconds before the attempt."""
    answers = [
        f"{earlier.status} {earlier.began - attempt.began:+.3f} to "
        + ("never" if earlier.ended is None else f"{earlier.ended - attempt.began:+.3f}")
        for earlier in attempts
        if earlier.event_id == before
    ]
    return ", ".join(answers) + (", a dead letter" if before in dead else "")


def balance(
    ledger: list[Entry],
    attempts: list[Attempt],
    *,
    dead: set[str],
    rolled_back: set[str],
    max_attempts: int,
    kills: list[Kill],
    window: float,  # seconds between two savings of the cursor
    behind: int,  # that may be settled behind an event that is slow
) -> Account:
    account = Account(committed=len(ledger), dead=len(dead))
    by_id = {entry.event_id: entry for entry in ledger}
    by_version = {(entry.key, entry.version): entry.event_id for entry in ledger}
    settled = settled_at(attempts, dead, max_attempts)
    account.repeats = repeats_allowed(attempts, kills, window, behind)
    taken: dict[str, Attempt] = {}
    last: Counter[str] = Counter()
    for attempt in attempts:
        if attempt.event_id not in by_id or attempt.event_id in rolled_back:
            account.invented.append(attempt.event_id)
            continue
        account.refusals += attempt.refused
        before = by_version.get((attempt.key, attempt.version - 1))
        if before is not None and settled.get(before, float("inf")) > attempt.began:
            account.out_of_order.append(
                f"key {attempt.key}: version {attempt.version} was sent when the one below it "
                f"was not settled: {history(attempt, before, attempts, dead)}"
            )
        if attempt.version < last[attempt.key]:
            account.steps_back[attempt.key] += 1
        last[attempt.key] = attempt.version
        if not attempt.taken or attempt.ended is None:
            continue
        account.taken += 1
        before_that = taken.get(attempt.event_id)
        taken[attempt.event_id] = attempt
        if before_that is None:
            continue
        account.twice += 1
        cause = cause_of(account.repeats, before_that.began, attempt.began)
        if cause is None:
            account.unexplained.append(f"{before_that} and {attempt}")
        else:
            cause.number += 1
    account.lost = [entry for entry in ledger if entry.event_id not in taken and entry.event_id not in dead]
    return account


def repeats_allowed(attempts: list[Attempt], kills: list[Kill], window: float, behind: int) -> list[Repeats]:
    ends = sorted(a.ended for a in attempts if a.taken and a.ended is not None)
    return [
        Repeats(kill, bisect_right(ends, kill.ended) - bisect_left(ends, kill.began - window) + behind)
        for kill in kills
    ]  # fmt: skip


def cause_of(repeats: list[Repeats], sent: float, sent_again: float) -> Repeats | None:
    """Returns the first kill between the two times."""
    for each in repeats:
        if each.kill.ended >= sent and each.kill.began <= sent_again:
            return each
    return None
