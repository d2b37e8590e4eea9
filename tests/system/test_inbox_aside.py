"""Messages that wait behind others of their key, and what they cost other keys. Many of them are put aside
(sql/pg_inbox/free.sql)."""

from __future__ import annotations

import psycopg
import pytest

from test_inbox_trouble import (
    Consumer,
    assert_applied_once_in_order,
    claimers,
    consumer,  # noqa: F401
    served,  # noqa: F401
    wait_for_more,
)
from waiting import wait_until

TAIL = 3000
FEW_BLOCKS = TAIL // 4  # even one for each message of a tail is too much
PUT_ASIDE = "SELECT count(*) FROM inbox.message WHERE aside"


def put_aside_at_once(reader: Consumer) -> None:
    """Messages that are passed over are put aside, however few they are."""
    definition = reader.value("SELECT pg_get_functiondef('inbox_internal.free_messages'::regproc)")
    assert definition.count(":= 500;") == 1
    reader.execute(definition.replace(":= 500;", ":= 0;"))


def blocks_of_a_look(reader: Consumer, statement: str) -> int:
    reader.execute(statement)  # the first one of a session also reads catalogs
    return reader.blocks_read(statement)


class Claimer:
    """A process that claims messages, in turns."""

    def __init__(self, reader: Consumer, connection: psycopg.Connection) -> None:
        self.reader = reader
        self.connection = connection
        self.token: object = None

    def claim(self, max_messages: int = 100) -> list[str]:
        rows = self.connection.execute(
            "SELECT token, event_id::text FROM inbox.claim('c', %s, '1 hour')", (max_messages,)
        ).fetchall()
        for token, _ in rows:
            self.token = token
        return [id for _, id in rows]

    def complete(self, ids: list[str]) -> None:
        for id in ids:
            with self.connection.transaction():
                self.connection.execute("SELECT inbox.complete(%s, %s)", (self.token, id))
                self.connection.execute(
                    "INSERT INTO applied (event_id, key, version) "
                    "SELECT %s, 'k', count(*) + 1 FROM applied", (id,)
                )  # fmt: skip

    def fail(self, id: str) -> None:
        self.connection.execute("SELECT inbox.fail(%s, %s, 'no')", (self.token, id))

    def release(self) -> None:
        self.connection.execute("SELECT inbox.release(%s)", (self.token,))

    def work(self, max_messages: int = 100) -> list[str]:
        """Applies all messages, those that wait for their next attempt included."""
        done: list[str] = []
        while self.reader.value("SELECT count(*) FROM inbox.message") > 0:
            ids = self.claim(max_messages)
            self.complete(ids)
            done += ids
        return done


def test_a_look_reads_nothing_behind_a_blocked_key(served: Consumer) -> None:  # noqa: F811
    served.set_policy(on_dead_letter="block")
    served.poison("hot", 1)
    hot = served.send("hot")
    served.wait_dead(hot)
    hot += served.send("hot", TAIL, first=2)
    wait_until(lambda: served.value(PUT_ASIDE), lambda n: n == TAIL, what="the tail to be put aside")
    lone = served.send("lone")
    served.wait_applied(lone)
    look = "SELECT * FROM inbox_internal.next_messages((SELECT id FROM inbox.consumer WHERE name = 'c'), 100)"
    assert blocks_of_a_look(served, look) < FEW_BLOCKS
    state = served.state()
    assert (state["state"], state["pending_at_most"]) == ("processing, some keys wait", TAIL)
    assert served.findings("1 ms") == [("failing", 'consumer "c"', "dead letters")], "nothing but the key waits"
    assert served.value("SELECT why FROM inbox.event_status(%s)", (hot[-1],)).startswith(
        f"it waits behind event {hot[0]} of its key"
    )
    served.execute("DELETE FROM poison")
    assert served.value("SELECT inbox.redrive('c', why => 'mended')") == 1
    served.wait_applied(lone + hot)


def test_claims_read_nothing_behind_a_claimed_key(consumer: Consumer) -> None:  # noqa: F811
    hot = consumer.send("hot", TAIL)
    with consumer.connect() as first, consumer.connect() as second:
        busy, other = Claimer(consumer, first), Claimer(consumer, second)
        assert busy.claim() == hot[:100]
        lone = consumer.send("lone", 2)
        assert other.claim() == lone
        assert blocks_of_a_look(consumer, "SELECT * FROM inbox.claim('c')") < FEW_BLOCKS
        busy.complete(hot[:50])
        other.complete(lone)
        busy.release()
        assert other.work(1000) == hot[50:]
    assert consumer.applied() == hot[:50] + lone + hot[50:]


@pytest.mark.parametrize("how", ["release", "fail", "dead letter"])
def test_what_is_given_back_is_in_front_of_what_was_put_aside(consumer: Consumer, how: str) -> None:  # noqa: F811
    put_aside_at_once(consumer)
    consumer.set_policy(
        max_attempts=1 if how == "dead letter" else 10, on_dead_letter="block", retry_base="1 ms", retry_max="1 ms"
    )
    others = [consumer.send(f"other {n}")[0] for n in range(5)]
    hot = consumer.send("hot", 6)
    with consumer.connect() as first, consumer.connect() as second:
        busy, other = Claimer(consumer, first), Claimer(consumer, second)
        assert busy.claim(8) == others + hot[:3]
        assert other.claim() == [] and consumer.value(PUT_ASIDE) == 3
        if how == "release":
            busy.release()
        else:
            busy.fail(hot[0])
        if how == "dead letter":
            assert consumer.value("SELECT inbox.redrive('c')") == 1
        busy.release()
        order = other.work(1)
    assert [id for id in order if id in hot] == hot and sorted(order) == sorted(others + hot)


def test_a_message_that_is_locked_stays_in_line_with_what_is_behind_it(consumer: Consumer) -> None:  # noqa: F811
    put_aside_at_once(consumer)
    hot = consumer.send("hot", 10)
    with consumer.connect() as first, consumer.connect() as second:
        busy, other = Claimer(consumer, first), Claimer(consumer, second)
        assert busy.claim(2) == hot[:2]
        with consumer.connect() as locker, locker.transaction(force_rollback=True):
            locker.execute("SELECT FROM inbox.message WHERE event_id = %s FOR UPDATE", (hot[5],))
            lone = consumer.send("lone")
            assert other.claim() == lone
            assert consumer.value(PUT_ASIDE) == 3
        other.complete(lone)
        busy.complete(hot[:2])
        assert other.work(2) == hot[2:]


def test_a_key_that_goes_on_leaves_half_of_the_places_to_others(consumer: Consumer) -> None:  # noqa: F811
    put_aside_at_once(consumer)
    hot = consumer.send("hot", 50)
    with consumer.connect() as connection:
        claimer = Claimer(consumer, connection)
        assert claimer.claim(10) == hot[:10]
        assert claimer.claim() == [] and consumer.value(PUT_ASIDE) == 40
        claimer.release()
        others = [consumer.send(f"other {n}")[0] for n in range(12)]
        taken = [claimer.claim(20)]
        claimer.complete(taken[0])
        taken.append(claimer.claim(20))
    assert taken == [hot[:10] + others[:10], hot[10:28] + others[10:]]


@pytest.mark.parametrize("keys", [3, 20])
def test_every_message_once_and_in_order_when_all_are_put_aside(consumer: Consumer, keys: int) -> None:  # noqa: F811
    put_aside_at_once(consumer)
    consumer.set_policy(max_attempts=1000, retry_base="1 ms", retry_max="100 ms")
    events = [(f"key {n}", version) for version in range(1, 301 // keys) for n in range(keys)]
    ids = consumer.send_all(events)
    with claimers(consumer, 3) as running:
        wait_for_more(consumer, 30)
        running.processes[0].kill()
        wait_until(lambda: running.processes[0].poll(), what="a claimer to be dead")
        running.replace_dead()
        ids += consumer.send_all([(f"key {n}", 1000) for n in range(keys)])
        assert_applied_once_in_order(consumer, ids)
    assert consumer.dead_letters() == []


def test_a_server_goes_on_with_what_a_process_has_claimed_when_its_lease_ends(consumer: Consumer) -> None:  # noqa: F811
    consumer.set_policy(retry_base="1 ms", retry_max="1 ms")
    ids = consumer.send("a", 3)
    assert [id for _, id in consumer.claim(consumer.connection, "1 s")] == ids
    consumer.subscribe()
    consumer.wait_applied(ids)
