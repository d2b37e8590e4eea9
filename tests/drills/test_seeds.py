"""Failures of section 6 of the seed documents, on the producer's side.

    1  crash between commit and publishing             test_committed_events_survive_a_crash_before_publishing
    2  published, and crash before it is marked        test_events_published_since_the_saved_cursor_arrive_again
    3  the acknowledgement gets lost                   test_events_with_an_unknown_outcome_arrive_once_more
    4  processing takes longer than expected           test_an_answer_after_the_timeout_sends_the_event_again
    5  an event that can never be processed            test_an_event_that_is_always_refused_becomes_a_dead_letter
    6  nothing goes back to an older version           every drill: see "out of order" in account.py

On the consumer's side:

    3  the acknowledgement gets lost                   test_consumer_acks.py, test_consumer_crash.py
    4  processing takes longer than the lease          test_consumer_slow.py
    5  an event that can never be processed            test_consumer_poison.py
    6  lower versions come late                        test_consumer_versions.py
"""

from __future__ import annotations

from receiver import delayed
from waiting import wait_until

from .drill import Drill, MakeDrill
from .points import transaction


def test_committed_events_survive_a_crash_before_publishing(make_drill: MakeDrill) -> None:
    """A backlog of which nothing was sent survives the server, and arrives once."""
    drill = make_drill()
    drill.database.execute("SELECT outbox.pause('suffering')")
    with drill.load():
        drill.wait_for_arrivals(200, at=drill.calm)
        drill.kill("relay", drill.relay())
        drill.kill_postmaster()
    assert drill.suffering.requests == []
    drill.database.execute("SELECT outbox.resume('suffering')")
    assert drill.conclude().twice == 0


def test_events_published_since_the_saved_cursor_arrive_again(make_drill: MakeDrill) -> None:
    """Exactly the events confirmed since the cursor was saved arrive again."""
    drill = make_drill()
    drill.mood.refuses = False
    with drill.load():
        drill.wait_for_arrivals(100)
    drill.database.wait_settled("suffering")
    make_durable(drill)
    before = len(drill.suffering.ids())
    with transaction(drill) as operator:
        operator.execute("SELECT FROM outbox.cursor WHERE destination = 'suffering' FOR UPDATE")
        with drill.load():
            drill.wait_for_arrivals(100)
        drill.database.wait_settled("suffering")
        unmarked = drill.suffering.ids()[before:]
        drill.kill("published and not marked", drill.relay())
    assert drill.conclude().twice == len(unmarked)


def make_durable(drill: Drill) -> None:
    """Flushes the WAL, so that the asynchronously saved cursor survives a crash."""
    wait_until(
        lambda: drill.database.value(
            "SELECT c.position = w.settled_position FROM outbox.cursor AS c "
            "JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.name = c.destination "
            "WHERE c.destination = 'suffering'"
        ),
        what="the cursor to be saved",
    )  # fmt: skip
    drill.database.execute("SELECT pg_logical_emit_message(true, '', '')")


def test_an_answer_after_the_timeout_sends_the_event_again(make_drill: MakeDrill) -> None:
    """The relay waits until request_timeout, and then sends the event again, in its order."""
    drill = make_drill(request_timeout="4s")
    drill.mood.instead = delayed(2)
    with drill.load():
        drill.wait_for_arrivals(40)
    drill.mood.instead = None
    assert drill.conclude().twice == 0


def test_an_event_that_is_always_refused_becomes_a_dead_letter(make_drill: MakeDrill) -> None:
    """It becomes a dead letter with a reason, and its key goes on; the server log names some of them."""
    drill = make_drill()
    with drill.load():
        wait_until(
            lambda: drill.database.value("SELECT count(*) FROM outbox.dead_letter"),
            lambda dead: dead >= 3, timeout=180, what="dead letters",
        )  # fmt: skip
    account = drill.conclude()
    assert account.dead >= 3
    log = drill.cluster.log()
    lines = log.count("refused event")
    assert 0 < lines < account.refusals, "single events have a few lines, never one each"
