"""Places in the life of an event at which a process can be caught, so that it is killed just there.

The product has no code for this. A receiver that does not answer holds a relay after it has
sent; a lock of another session holds a process before the statement that needs it. In detail:

    FOR UPDATE of the cursor   relays skip it: they deliver, and cannot settle
    SHARE of outbox.cursor     does not conflict with the relay's own lock of its row, but with the
                               UPDATE that follows
    SHARE of outbox.delivery   the same for events in trouble
    SHARE of outbox.ring       the keeper can read it, and not move on
    SHARE of outbox.batch      the seek has the cursor, and has not moved it
    FOR UPDATE of a ring row   the row of a segment that is emptied is updated after TRUNCATE

Each point is a context manager: in its block the process waits there; it yields the process to kill.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import psycopg

from receiver import Exchange, Gate, answer
from waiting import wait_until

from .drill import LOST_CONNECTION, Drill

Hold = Callable[[Drill], AbstractContextManager[int]]


@dataclass(frozen=True)
class Point:
    name: str
    hold: Hold
    repeats: bool = False  # the killed session has asked for events again


# -------------------------------------------------------------------------------------------------
# Tools
# -------------------------------------------------------------------------------------------------


@contextmanager
def transaction(drill: Drill) -> Iterator[psycopg.Connection]:
    """A transaction that stays open in the block, and ends with it or with the server."""
    connection = drill.database.connect()
    try:
        connection.execute("BEGIN")
        yield connection
        with suppress(*LOST_CONNECTION):
            connection.execute("ROLLBACK")
    finally:
        connection.close()


def wait_blocked(drill: Drill, pid: int, by: psycopg.Connection) -> None:
    wait_until(
        lambda: drill.database.value("SELECT pg_blocking_pids(%s)", (pid,)),
        lambda blocking: by.info.backend_pid in blocking,
        timeout=180, what=f"process {pid} to wait for our lock",
    )  # fmt: skip


@contextmanager
def blocked(drill: Drill, pid: int, statement: str) -> Iterator[int]:
    with transaction(drill) as other:
        other.execute(statement)
        wait_blocked(drill, pid, other)
        yield pid


def in_flight(drill: Drill) -> int:
    return drill.database.status("suffering")["in_flight"]


# -------------------------------------------------------------------------------------------------
# The relay
# -------------------------------------------------------------------------------------------------


@contextmanager
def after_read(drill: Drill) -> Iterator[int]:
    """Events are in its memory, and no receiver accepts them."""
    relay = drill.relay()
    with drill.receiver_away():
        wait_until(lambda: in_flight(drill), lambda n: n > 0, what="events read and not sent")
        yield relay


@contextmanager
def after_send(drill: Drill) -> Iterator[int]:
    """The receiver has accepted events, and the relay never gets the answer."""
    relay = drill.relay()
    taken: list[Exchange] = []

    async def take_and_say_nothing(exchange: Exchange) -> None:
        exchange.answered(204)
        taken.append(exchange)
        while drill.mood.instead is not None and not exchange.transport.is_closing():
            await asyncio.sleep(0.005)
        exchange.close()

    drill.mood.instead = take_and_say_nothing
    try:
        wait_until(lambda: len(taken), lambda n: n > 0, what="events taken and not confirmed")
        yield relay
    finally:
        drill.mood.instead = None


@contextmanager
def behind_a_slow_event(drill: Drill) -> Iterator[int]:
    """One key gets no answer, the others do, and the cursor is saved in the middle of a window."""
    relay = drill.relay()
    gate = Gate()
    hold = gate.held()

    async def hold_one_key(exchange: Exchange) -> None:
        await (hold if exchange.request.headers["ce-subject"] == "1" else answer())(exchange)

    drill.mood.instead = hold_one_key
    try:
        wait_until(lambda: gate.holding, what="an event of the key")
        drill.wait_for_arrivals(50)
        yield relay
    finally:
        drill.mood.instead = None
        gate.open()


@contextmanager
def after_confirmation(drill: Drill) -> Iterator[int]:
    """Events are confirmed and not saved, because an operator has locked the cursor."""
    relay = drill.relay()
    for _ in range(30):
        with transaction(drill) as operator:
            operator.execute("SELECT FROM outbox.cursor WHERE destination = 'suffering' FOR UPDATE")
            # Refused events cannot be recorded meanwhile, and may fill the memory. Then the
            # operator releases the lock, and takes it again.
            if drill.arrive_soon(5):
                yield relay
                return
    raise AssertionError("events do not arrive while an operator has the cursor")


@contextmanager
def during_settle(drill: Drill) -> Iterator[int]:
    """The relay has locked its cursor, and not written it."""
    with blocked(drill, drill.relay(), "LOCK TABLE outbox.cursor IN SHARE MODE") as relay:
        yield relay


@contextmanager
def during_record(drill: Drill) -> Iterator[int]:
    """Stops while the relay records refused events, retries that are due, or confirmed retries."""
    with blocked(drill, drill.relay(), "LOCK TABLE outbox.delivery IN SHARE MODE") as relay:
        yield relay


RETRY_UNDER_WAY = """
    SELECT event_id::text FROM outbox.delivery
     WHERE destination = 'suffering' AND state = 'RETRY' AND lock_token IS NOT NULL"""


@contextmanager
def during_settle_of_retry(drill: Drill) -> Iterator[int]:
    """A retry was confirmed, and is still in outbox.delivery."""
    relay = drill.relay()
    gate = Gate()
    hold = gate.held()

    async def hold_retries(exchange: Exchange) -> None:
        was_refused = drill.mood.refused[exchange.request.headers["ce-id"]] > 0
        await (hold if was_refused else answer())(exchange)

    drill.mood.instead = hold_retries
    try:
        with transaction(drill) as other:
            wait_until(
                lambda: {id for (id,) in drill.database.execute(RETRY_UNDER_WAY)}
                & {drill.suffering.requests[n].headers["ce-id"] for n in gate.holding},
                what="a retry that is about to be confirmed",
            )  # fmt: skip
            other.execute(RETRY_UNDER_WAY + " FOR UPDATE")
            gate.open()
            wait_blocked(drill, relay, other)
            yield relay
    finally:
        gate.open()
        drill.mood.instead = None


# -------------------------------------------------------------------------------------------------
# The keeper
# -------------------------------------------------------------------------------------------------


@contextmanager
def during_rotation(drill: Drill) -> Iterator[int]:
    with blocked(drill, drill.keeper(), "LOCK TABLE outbox.ring IN SHARE MODE") as keeper:
        yield keeper


HELD = "SELECT number FROM outbox.segment WHERE cardinality(held_by) > 0 AND NOT current LIMIT 1"


@contextmanager
def during_emptying(drill: Drill) -> Iterator[int]:
    """A segment was truncated, and the transaction that did it is open."""
    keeper = drill.keeper()
    with transaction(drill) as other:
        with drill.receiver_away():
            (number,) = wait_until(lambda: drill.database.execute(HELD), timeout=180, what="a segment that is held")[0]
            other.execute("SELECT FROM outbox.ring WHERE number = %s FOR UPDATE", (number,))
        wait_blocked(drill, keeper, other)
        locked = drill.database.value(
            "SELECT count(*) FROM pg_locks WHERE pid = %s AND granted "
            "AND mode = 'AccessExclusiveLock' AND relation = %s::regclass",
            (keeper, f"outbox.event_{number}"),
        )
        assert locked == 1, "the keeper waits for us elsewhere"
        yield keeper


# -------------------------------------------------------------------------------------------------
# An operator
# -------------------------------------------------------------------------------------------------


@contextmanager
def during_seek(drill: Drill) -> Iterator[int]:
    """Stops in the middle of the statement: the cursor is locked, and has not moved."""
    operator = drill.database.connect()
    pid = operator.info.backend_pid
    result: list[BaseException | None] = []

    def seek() -> None:
        try:
            operator.execute("SELECT outbox.seek('suffering', 'beginning')")
            result.append(None)
        except LOST_CONNECTION as error:
            result.append(error)

    thread = threading.Thread(target=seek)
    with transaction(drill) as other:
        other.execute("LOCK TABLE outbox.batch IN SHARE MODE")
        thread.start()
        wait_blocked(drill, pid, other)
        yield pid
    thread.join(60)
    operator.close()
    assert result and result[0] is not None, "the seek was not interrupted"


@contextmanager
def before_commit_of_seek(drill: Drill) -> Iterator[int]:
    # Before, not meanwhile: refused events cannot be recorded then, and hold key after key.
    drill.wait_for_arrivals(5)
    with transaction(drill) as operator:
        operator.execute("SELECT outbox.seek('suffering', 'beginning')")
        yield operator.info.backend_pid


@contextmanager
def after_seek(drill: Drill) -> Iterator[int]:
    """The statement is committed, and the relay has not noticed."""
    relay = drill.relay()
    with transaction(drill) as operator:
        # Not in a transaction of the relay, which may hold a lock that is needed here.
        operator.execute("SELECT outbox_internal.take_control('suffering')")
        os.kill(relay, signal.SIGSTOP)
        try:
            operator.execute("SELECT outbox.seek('suffering', 'beginning')")
            operator.execute("COMMIT")
            yield relay
        finally:
            with suppress(ProcessLookupError):
                os.kill(relay, signal.SIGCONT)


POINTS = {
    point.name: point
    for point in (
        Point("after read", after_read),
        Point("after send", after_send),
        Point("behind a slow event", behind_a_slow_event),
        Point("after confirmation", after_confirmation),
        Point("during settle", during_settle),
        Point("during record", during_record),
        Point("during settle of a retry", during_settle_of_retry),
        Point("during rotation", during_rotation),
        Point("during emptying", during_emptying),
        Point("during seek", during_seek),
        Point("before commit of seek", before_commit_of_seek),
        Point("after seek", after_seek, repeats=True),
    )
}
