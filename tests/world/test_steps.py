"""Every step of an operator with an event in every state: see steps.py.

To write the page: OUTBOX_WRITE_DOCS=1 pytest tests/world/test_steps.py
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from cluster import REPOSITORY
from database import Database
from receiver import Event, Exchange, Gate, Receiver, answer, everything
from waiting import wait_until

from .steps import STATES, STEPS, Fate, Step, cancel_all_replays

MARKER = 100  # version of the event that shows that all before it are settled
REPLAY = "SELECT outbox.replay(%s)"


class Field:
    """A destination for each state, with an event in that state. It is the first of its key, but in `behind`."""

    def __init__(self, database: Database, receiver: Receiver) -> None:
        self.database = database
        self.receiver = receiver
        self.gate = Gate()
        self.answers = {  # to the first version
            "in flight": self.gate.held(), "retry": answer(400), "behind": answer(400),
            "dead letter": answer(413), "discarded": answer(413),
        }  # fmt: skip
        receiver.on(everything, self.behave)
        self.names = {state: state.replace(" ", "_") for state in STATES}  # of the destinations
        self.events: dict[str, str] = {}
        for state, name in self.names.items():
            self.prepare(state, name)
        for state in STATES:
            self.wait_for(state)
        self.before = self.arrivals()

    async def behave(self, exchange: Exchange) -> None:
        state = exchange.request.target.strip("/").replace("_", " ")
        first = exchange.request.headers["ce-aggregateversion"] == "1"
        await (self.answers.get(state, answer()) if first else answer())(exchange)

    def prepare(self, state: str, name: str) -> None:
        database = self.database
        database.add_destination(
            name, self.receiver.url(f"/{name}"), topics=f"{name}.*", retry_base="20ms", retry_max="100ms",
            max_attempts="1000",
        )  # fmt: skip
        if state == "pending":
            database.pause(name)
        *_, self.events[state] = database.enqueue(name, 2 if state == "behind" else 1, topic=f"{name}.event")

    def wait_for(self, state: str) -> None:
        database, name = self.database, self.names[state]
        if state == "in flight":
            wait_until(lambda: self.gate.holding, what="the request")
        elif state in ("delivered", "replayed"):
            database.wait_saved(name)
            if state == "replayed":
                database.pause(name)
                database.execute(REPLAY, (name,))
        elif state != "pending":
            row = {"retry": "RETRY", "behind": "PENDING"}.get(state, "DEAD")
            wait_until(lambda: self.row(state), lambda seen: seen == row, what=f"the event to be in the state {state}")
            if state == "discarded":
                database.execute("SELECT outbox.discard(%s, everything => true, why => 'test')", (name,))

    def row(self, state: str) -> str | None:
        return self.database.value("SELECT state FROM outbox.delivery WHERE event_id = %s", (self.events[state],))

    def arrivals(self) -> Counter[str]:
        return Counter(event.id for event in self.receiver.events() if event.request.status == 204)

    def take(self, step: Step) -> None:
        for state in ("dead letter", "discarded"):  # otherwise they would be dead again
            del self.answers[state]
        for state, name in self.names.items():
            if step.take is cancel_all_replays:
                self.replay_while_down(state, name)
            self.names[state] = step.take(self.database, name)

    def replay_while_down(self, state: str, name: str) -> None:
        """Makes a replay that is there to be cancelled. Its relay reads the log meanwhile."""
        if state == "delivered":
            self.database.pause(name)
        self.database.execute(REPLAY, (name,))
        if state != "pending":
            return
        self.answers[state] = answer(503)
        self.database.execute("SELECT outbox.resume(%s)", (name,))
        last = self.database.value("SELECT position FROM outbox.event WHERE event_id = %s", (self.events[state],))
        wait_until(
            lambda: self.database.status(name),
            lambda status: status["in_flight"] > 0 or (status["position"] or 0) >= last,
            what="the relay to read the event",
        )  # fmt: skip

    def check_that_it_counts(self, state: str) -> None:
        """An event that will arrive for the first time is waited for, or is a dead letter, and not called published."""
        name = self.names[state]
        waits, state_of_it = self.database.execute(
            "SELECT outbox.backlog(%s) + (SELECT count(*) FROM outbox.delivery WHERE destination = %s AND state = 'DEAD'),"
            "       (SELECT s.state FROM outbox.event_status(%s) AS s WHERE s.destination = %s)",
            (name, name, self.events[state], name),
        )[0]  # fmt: skip
        if self.arrivals()[self.events[state]] == 0:
            assert waits > 0 and state_of_it != "PUBLISHED", f"{state}: {waits} events, {state_of_it}"

    def heal(self) -> None:
        """Returns when all events that will arrive have arrived."""
        self.answers.clear()
        self.gate.open()
        markers = {}
        for state, name in self.names.items():
            self.database.execute("SELECT outbox.resume(%s)", (name,))
            key = state.replace(" ", "_")
            (markers[state],) = self.database.enqueue(key, first=MARKER, topic=f"{key}.marker")
        wait_until(
            lambda: [state for state, marker in markers.items() if not self.arrivals()[marker]],
            lambda missing: missing == [], what="the last events",
        )  # fmt: skip
        waiting = "SELECT destination, state, version FROM outbox.delivery WHERE state IN ('PENDING', 'RETRY')"
        wait_until(lambda: self.database.execute(waiting), lambda rows: rows == [], what="no event to wait")

    def check(self, state: str, fate: Fate) -> None:
        event = self.events[state]
        before, now = self.before[event], self.arrivals()[event]
        kept = {
            Fate.ARRIVES: before == 0 < now,
            Fate.AGAIN: now > before > 0,
            Fate.NOTHING: now == before,
            Fate.NOT_REPEATED: now <= before + 1,
            Fate.GIVEN_UP: now == 0,
        }[fate]
        assert kept, f"{state}: arrived {before} times before, and {now} times in all"
        if fate is Fate.NOTHING and state == "dead letter" and self.row(state) is not None:
            assert self.row(state) == "DEAD"

    def check_order(self, state: str) -> None:
        """No version arrived for the first time after a later one."""
        key = state.replace(" ", "_")
        taken = [event for event in self.receiver.events() if event.request.status == 204 and event.subject == key]
        firsts: list[int] = []
        for event in sorted(taken, key=ended):
            if event.version not in firsts:
                firsts.append(event.version)
        assert firsts == sorted(firsts), f"{state}: first arrived in the order {firsts}"


def ended(event: Event) -> float:
    assert event.request.ended is not None
    return event.request.ended


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name.replace("`", "").replace("outbox.", ""))
def test_a_step_does_what_the_table_says(database: Database, receiver: Receiver, http: None, step: Step) -> None:
    field = Field(database, receiver)
    field.take(step)
    for state in STATES:
        if step.fate(state) is Fate.ARRIVES:
            field.check_that_it_counts(state)
    field.heal()
    for state in STATES:
        field.check(state, step.fate(state))
        field.check_order(state)


# -------------------------------------------------------------------------------------------------
# The page
# -------------------------------------------------------------------------------------------------

PAGE = """# Steps of operators

Made from the code by `tests/world/test_steps.py`, which takes each of these steps with an event in
each of these states.

An operator cannot lose an event by accident. Only steps that say so in their name give up one that was
not delivered: `discard`, `seek` forward, `DROP SERVER`, and an option `topics` without its topic.
[When delivery fails](../delivery.md) explains the functions.

States of an event at a destination:

"""


def page() -> str:
    text = PAGE + "".join(f"- **{state}**: {meaning}\n" for state, meaning in STATES.items())
    text += "\nThe event afterwards, when the destination takes events and is not paused:\n\n"
    text += "| step | " + " | ".join(STATES) + " |\n" + "|---" * (len(STATES) + 1) + "|\n"
    for step in STEPS:
        text += f"| {step.name} | " + " | ".join(fate.value for fate in step.fates) + " |\n"
    text += "\n- **–**: the step changes nothing for it\n"
    text += "- **is not repeated**: the request that is under way may arrive, and no other\n\n"
    return text + "".join(f"- {step.name}: {step.note[0].lower()}{step.note[1:]}\n" for step in STEPS if step.note)


def test_the_page_has_the_table() -> None:
    path = REPOSITORY / "docs/reference/steps.md"
    if os.environ.get("OUTBOX_WRITE_DOCS"):
        path.write_text(page())
    assert path.read_text() == page(), "write it anew with OUTBOX_WRITE_DOCS=1"
