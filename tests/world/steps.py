"""The table of steps: it says how each step of an operator changes the fate of an event in each state.

test_steps.py takes every step with an event in every state, and writes the table into
docs/reference/steps.md. An event that was not delivered is given up by those steps only that say so in
their name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from database import SQL_EDITION, Database


class Fate(Enum):
    """The fate of the event, when its destination works and is not paused afterwards."""

    ARRIVES = "arrives"
    AGAIN = "arrives again"
    NOTHING = "–"  # the step has no effect on it
    NOT_REPEATED = "is not repeated"  # the request under way may arrive
    GIVEN_UP = "**given up**"


# In the order of the columns of the table.
STATES = {
    "pending": "in the log, and its destination does not take events",
    "in flight": "its destination has not answered yet",
    "retry": "its destination has refused it, and it waits for the next attempt",
    "behind": "waits behind an earlier event of its key that was refused",
    "dead letter": "waits for a decision",
    "discarded": "an operator has given it up",
    "replayed": "was delivered, and waits for its turn in a replay",
    "delivered": "the saved cursor has passed it",
}


@dataclass(frozen=True)
class Step:
    name: str
    take: Callable[[Database, str], str]  # (database, destination) -> name of the destination after it
    fates: tuple[Fate, ...]  # in the order of STATES
    note: str = ""

    def fate(self, state: str) -> Fate:
        return self.fates[list(STATES).index(state)]


# -------------------------------------------------------------------------------------------------
# How they are taken
# -------------------------------------------------------------------------------------------------


def calls(*statements: str) -> Callable[[Database, str], str]:
    def take(database: Database, name: str) -> str:
        for statement in statements:
            database.execute(statement.format(name))
        return name

    return take


def cancel_all_replays(database: Database, name: str) -> str:
    database.execute(
        "SELECT outbox.cancel_replay(p.id) FROM outbox.replay_progress AS p WHERE p.destination = %s", (name,)
    )
    return name


def rename(database: Database, name: str) -> str:
    new = name.removesuffix("_renamed") if name.endswith("_renamed") else f"{name}_renamed"
    if SQL_EDITION:
        database.execute("UPDATE outbox.destination_config SET name = %s WHERE name = %s", (new, name))
    else:
        database.execute(f"ALTER SERVER {name} RENAME TO {new}")
    return new


def alter(**options: str) -> Callable[[Database, str], str]:
    def take(database: Database, name: str) -> str:
        database.change_destination(name, **{key: value.format(name) for key, value in options.items()})
        return name

    return take


def options_of(database: Database, name: str) -> dict[str, str]:
    if SQL_EDITION:
        return database.value("SELECT options FROM outbox.destination_config WHERE name = %s", (name,))
    rows = database.execute("SELECT unnest(srvoptions) FROM pg_foreign_server WHERE srvname = %s", (name,))
    return dict(option.split("=", 1) for (option,) in rows)


def drop_and_make_again(**changed: str) -> Callable[[Database, str], str]:
    def take(database: Database, name: str) -> str:
        options = {**options_of(database, name), **changed}
        database.drop_destination(name)
        database.add_destination(name, options.pop("url"), **options)
        return name

    return take


# As outbox_internal.detach_last() does, which the keeper calls when the log is too large.
LOCKED = "WITH locked AS MATERIALIZED (SELECT c.* FROM outbox.cursor AS c WHERE c.destination = '{}' FOR UPDATE) "
SET_ASIDE = (
    LOCKED + "SELECT outbox_internal.set_aside(l, s.number) FROM locked AS l CROSS JOIN outbox.ring AS s",
    "UPDATE outbox.cursor SET lease = lease + 1 WHERE destination = '{}'",
    "SELECT outbox_internal.wake_relays(), outbox_internal.tell_relays()",
)

# -------------------------------------------------------------------------------------------------
# The table
# -------------------------------------------------------------------------------------------------

ARRIVES, AGAIN, NOTHING, NOT_REPEATED, GIVEN_UP = Fate

STEPS = (
    #                                       pending   in flight     retry     behind    dead letter  discarded  replayed  delivered
    Step("`outbox.pause()`, `outbox.resume()`", calls("SELECT outbox.pause('{}')", "SELECT outbox.resume('{}')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "Nothing is sent in between."),
    Step("it becomes a copy, `outbox.claim_identity()`",
         calls("UPDATE outbox.installation SET system_identifier = 1, inserted_by = '0'", "SELECT outbox.claim_identity()"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "Nothing is sent in between."),
    Step("`outbox.seek()` back", calls("SELECT outbox.seek('{}', 'beginning')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, AGAIN),
         "A replay of events that are delivered again becomes part of that, and cannot be cancelled any more."),
    Step("`outbox.seek()` forward", calls("SELECT outbox.seek('{}', 'end', why => 'test')"),
         (GIVEN_UP, NOT_REPEATED, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "Demands a reason if events are passed over. Those in `outbox.delivery` stay, and a later seek back delivers the others."),
    Step("`outbox.replay()`", calls("SELECT outbox.replay('{}')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, AGAIN),
         "Takes only events that are settled: the others come anyway, in their turn."),
    Step("`outbox.cancel_replay()`", cancel_all_replays,
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, NOTHING, NOTHING)),
    Step("`outbox.redrive()`", calls("SELECT outbox.redrive('{}')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, AGAIN, NOTHING),
         "Behind later events of its key, unless the option `on_dead_letter` is `block`."),
    Step("`outbox.discard()`", calls("SELECT outbox.discard('{}', everything => true, why => 'test')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, GIVEN_UP, NOTHING, AGAIN, NOTHING),
         "Demands a reason."),
    Step("rename", rename,
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING)),
    Step("change an option", alter(retry_max="90ms"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING)),
    Step("take its topic out of `topics`", alter(topics="{}.marker"),
         (GIVEN_UP, NOT_REPEATED, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "Concerns what is read from then on."),
    Step("drop, and make again", drop_and_make_again(),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, ARRIVES, ARRIVES, AGAIN, AGAIN),
         "All that the log still has. Events in `outbox.delivery` that have left the log are given up."),
    Step("drop, and make again with `start 'end'`", drop_and_make_again(start="end"),
         (GIVEN_UP, NOT_REPEATED, GIVEN_UP, GIVEN_UP, GIVEN_UP, NOTHING, NOTHING, NOTHING)),
    Step("the keeper sets events aside", calls(*SET_ASIDE),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "Where `outbox.on_full_log` is `detach`, for destinations that keep little of the log."),
    Step("the keeper detaches it, `outbox.resume()`",
         calls(LOCKED + "SELECT outbox_internal.detach(l) FROM locked AS l", "SELECT outbox.resume('{}')"),
         (ARRIVES, ARRIVES, ARRIVES, ARRIVES, NOTHING, NOTHING, AGAIN, NOTHING),
         "What has left the log before the resume is given up. For that, `outbox.on_full_log` must be `detach`."),
)  # fmt: skip
