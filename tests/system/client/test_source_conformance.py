"""Behaviour that every source of the client must have. SOURCES lists the sources; source.py says how to add one.

A test marked `needs("x")` leaves out the sources that cannot do x (`Source.cannot`).
"""

from __future__ import annotations

import time

import pytest

from database import Database
from sinks import servers
from waiting import SECOND, Stopwatch, wait_until

from .conftest import Consume, MakeSource
from .consumer import Target
from .kafka_source import KafkaSource
from .nats_source import CurrentNatsSource, NatsSource
from .pubsub_source import EmulatorSource, PubSubSource
from .pull_source import PullSource
from .rabbitmq_source import ClassicRabbitmqSource, RabbitmqSource, RabbitmqStreamSource
from .redis_source import RedisSource
from .source import ABILITIES, Delivery, Source, by_key, payloads
from .sqs_source import ElasticMqSource, SqsSource, StandardElasticMqSource, StandardSqsSource

servers.add_clients_to_path()

# By their names. What is before the first hyphen has the server: see share_of() in ../conftest.py.
SOURCES: dict[str, type[Source]] = {
    "nats": NatsSource, "redis": RedisSource, "rabbitmq": RabbitmqSource, "rabbitmq-classic": ClassicRabbitmqSource,
    "rabbitmq-stream": RabbitmqStreamSource, "sqs": SqsSource, "sqs-standard": StandardSqsSource, "kafka": KafkaSource,
    "pubsub": PubSubSource,
}  # fmt: skip
OTHER_SERVERS: dict[str, type[Source]] = {
    "nats-current": CurrentNatsSource, "sqs-elasticmq": ElasticMqSource,
    "sqs-standard-elasticmq": StandardElasticMqSource, "pubsub-emulator": EmulatorSource,
}  # fmt: skip
# These share their code with a source before them, so they belong to the long run where that one can do the same.
RELATED = {"rabbitmq-classic": RabbitmqSource, "sqs-standard": SqsSource}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
    kinds = {**SOURCES, **OTHER_SERVERS}
    if "consume" in metafunc.fixturenames:
        kinds["pull"] = PullSource
    named = needed.union(*(kind.cannot for kind in kinds.values()), *(kind.dear for kind in kinds.values()))
    assert named <= set(ABILITIES), f"no abilities: {named - set(ABILITIES)}"
    parameters = []
    for name, kind in kinds.items():
        if not needed & set(kind.cannot):
            related = name in RELATED and not needed & set(RELATED[name].cannot)
            is_long = name in OTHER_SERVERS or related or needed & set(kind.dear)
            parameters.append(pytest.param(kind, id=name, marks=[pytest.mark.long] if is_long else []))
    metafunc.parametrize("source", parameters, indirect=True)


@pytest.fixture
def source(make_source: MakeSource, request: pytest.FixtureRequest) -> Source:
    return make_source(request.param)


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_a_message_has_all_attributes(source: Source) -> None:
    id, began = "0193c0de-0000-7000-8000-00000000000a", time.time()
    (message_id,) = source.send("café", key="k:1", event_id=id, event_type="Changed", aggregate_type="item",
                                aggregate_id="7", version="3", content_type="text/plain", other="café")  # fmt: skip
    (delivery,) = source.read().receive(1)
    expected = {
        "event_id": id, "type": "Changed", "aggregate_type": "item", "aggregate_id": "7", "version": 3,
        "content_type": "text/plain", "payload": "café", "topic": source.topic,
        "key": "" if "order" in source.cannot else "k:1", "headers": {"other": "café"},
        "source": source.subscription, "message_id": message_id,
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert delivery["size"] >= len("café".encode())
    assert began - 1 <= delivery["published_at"] / 1e6 <= time.time() + 1


def test_a_message_of_another_sender_keeps_its_id(source: Source) -> None:
    source.send("not of ours")
    reader = source.read(**source.short_leases())  # a request that is given up by close() may take the message
    (first,) = reader.receive(1)
    reader.nack(first)
    (second,) = reader.receive(1)
    reader.close()
    reader.open()
    (third,) = reader.receive(1)
    assert first["event_id"] == second["event_id"] == third["event_id"] != ""
    assert third["payload"] == "not of ours"


@pytest.mark.needs("prefetch")
def test_a_reader_holds_no_more_than_its_prefetch(source: Source) -> None:
    source.send(*map(str, range(100)))
    reader = source.read(prefetch=10)
    received = reader.take(10)
    wait_until(source.held, lambda count: 10 <= count, what="messages to be held")
    assert source.held() <= source.most_held
    while len(received) < 100:
        reader.ack(*received[-10:])
        received += reader.take(10)
    assert payloads(received) == [str(n) for n in range(100)]
    reader.ack(*received[-10:])
    source.wait_settled()


def test_events_of_the_outbox_arrive_in_each_format(source: Source, database: Database) -> None:
    """What the sink writes, the source reads."""
    module = source.sink or f"pg_outbox_{source.kind}"
    if not source.installation.has_module(module):
        pytest.skip(f"NOT TESTED: {module} is not part of this build")
    source.add_destination(database)
    reader = source.read()
    for format in source.formats:
        database.change_destination("d", format=format)
        id = database.value(
            "SELECT outbox.enqueue('video', 'v-1', 'VideoPublished', '{\"a\": 1}', version => 3,"
            ' ordering_key => %s, headers => \'{"tenant": "é"}\')',
            (source.any_key,),
        )
        (delivery,) = reader.receive(1)
        expected = {
            "event_id": str(id), "type": "VideoPublished", "aggregate_type": "video", "aggregate_id": "v-1",
            "version": 3, "content_type": "application/json", "payload": '{"a": 1}',
        }  # fmt: skip
        assert {name: delivery[name] for name in expected} == expected
        assert delivery["key"] == source.any_key or "order" in source.cannot
        assert delivery["headers"]["tenant"] == "é"
        assert format == "attributes" or delivery["topic"] == "video.events"
        reader.ack(delivery)
        database.wait_settled()  # a change of options repeats what is in flight
    source.wait_settled()
    assert "warning" not in reader.log()


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("single")
@pytest.mark.needs("close")
def test_only_unsettled_messages_come_again_after_the_end(source: Source) -> None:
    """At once, also those that wait in the source: other readers need not wait for leases to end."""
    source.send(*"123456")
    reader = source.read()
    received = sorted(reader.take(5), key=lambda delivery: delivery["payload"])
    reader.ack(received[1], received[4])
    reader.ack(received[0], received[3])
    reader.close()
    other = source.read(**source.another)
    again = other.receive(2)
    left = set("123456") - {received[n]["payload"] for n in (0, 1, 3, 4)}
    assert sorted(payloads(again)) == sorted(left)
    other.ack(*again)
    source.wait_settled()
    assert "may be lost" not in reader.log()


@pytest.mark.needs("order")
def test_a_key_comes_again_in_its_order(source: Source) -> None:
    """A message received behind one that is given back must not be handled before it."""
    source.send("1", "2", "3", "4", key="a")
    source.send("x", "y", key="b")
    reader = source.read()
    first = reader.take(2)  # the source holds others
    source.send("5", key="a")
    key = first[0]["key"]
    reader.nack(*(delivery for delivery in first if delivery["key"] == key))
    received = [delivery for delivery in first if delivery["key"] != key]
    reader.ack(*received)
    while len(received) < 7:  # the next of a key may come when one is acknowledged
        received += reader.take(1)
        reader.ack(received[-1])
    assert by_key(received) == {"a": ["1", "2", "3", "4", "5"], "b": ["x", "y"]}
    source.wait_settled()


@pytest.mark.needs("leases")
def test_what_is_held_is_extended(source: Source) -> None:
    source.send("in hand", "with the source")
    lease = source.short_leases(4)  # longer than a busy machine stands still
    reader = source.read(**lease)
    (delivery,) = reader.take(1)
    rival = source.read(**{**lease, **source.another})
    source.wait_extended(reader)
    assert rival.poll() == []
    (other,) = reader.receive(1)
    reader.ack(delivery, other)
    source.wait_settled()


@pytest.mark.needs("crashes")
def test_after_a_crash_messages_come_again(source: Source) -> None:
    source.send(*map(str, range(30)))
    lease = source.short_leases()
    crashed = source.read(**lease)
    crashed.receive(30)
    crashed.kill()
    reader = source.read(**{**lease, **source.another})
    again: list[Delivery] = []
    while len(again) < 30:
        again += reader.take(1)
        reader.ack(again[-1])
    found = payloads(again)
    assert (found if source.comes_again_in_order else sorted(found, key=int)) == [str(n) for n in range(30)]
    source.wait_settled()


@pytest.mark.timing
@pytest.mark.needs("close")
def test_close_takes_a_moment(source: Source) -> None:
    """It does not wait for requests that wait for messages."""
    reader = source.read(**source.patient)
    source.send("1", "2")
    reader.take(1)
    watch = Stopwatch()
    reader.close()
    assert watch.seconds < 3 * SECOND


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("cut")
def test_a_server_that_cannot_be_reached(source: Source) -> None:
    """What is acknowledged meanwhile is settled later, unless the server gives it to others at once."""
    source.cut()
    reader = source.read(opened=False, **source.short_leases(4))  # a request that is cut off may have taken messages
    assert reader.command("open")["transient"]
    source.mend()
    reader.open()
    source.send("1", "2")
    received = reader.receive(2)
    text, times = source.said_when_cut
    before = reader.log().count(text)
    source.cut()
    reader.wait_logged(text, before + times)
    assert not source.connection_owns_messages or reader.command("recall") == [0, 1]
    reader.ack(*received)
    source.mend()
    if source.connection_owns_messages:
        again = reader.receive(2)
        assert payloads(again) == ["1", "2"]
        reader.ack(*again)
    source.wait_settled()
    source.send("3")
    last = reader.receive(1)
    assert payloads(last) == ["3"]
    reader.ack(*last)
    source.wait_settled()


@pytest.mark.needs("missing")
def test_what_does_not_exist_is_an_error_for_good(source: Source) -> None:
    options, words = source.missing
    error = source.read(opened=False, **options).error()
    assert words in error["error"] and not error["transient"]


@pytest.mark.needs("logins")
def test_a_refused_login_is_an_error_for_good(source: Source) -> None:
    for options, words in source.wrong_logins():
        reader = source.read(opened=False, **options)
        error = reader.error()
        assert words in error["error"] and not error["transient"]
        assert "s3cret" not in error["error"] + reader.log()


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


@pytest.mark.needs("order")
def test_a_consumer_applies_each_event_once_and_in_order(source: Source, target: Target, consume: Consume) -> None:
    """Also those that come again because one before them failed, which holds back its key only."""
    ids = source.send_events(10, range(1, 6))
    target.poison(ids[0])
    consumer = consume(**source.consumer_options(), max_attempts=1000, retry_base=10, retry_max=10)
    wait_until(target.applied, lambda seen: len(seen) >= 45, what="the events of other keys")
    wait_until(target.attempts, lambda count: count > 50, what="some attempts")
    target.cure()
    target.wait_applied(ids)
    target.check_order()
    source.wait_settled()
    state = consumer.stop()
    assert (state["applied"], state["dead"]) == (50, 0)


def test_poison_becomes_a_dead_letter(source: Source, target: Target, consume: Consume) -> None:
    """The rest of its key goes on."""
    ids = source.send_events(2, range(1, 4))
    target.poison(ids[0])
    consume(**source.consumer_options(), max_attempts=3).wait_for("five events and a dead letter", applied=5, dead=1)
    target.wait_applied(ids[1:])
    assert [(id, attempts) for id, attempts, *_ in target.dead_letters()] == [(ids[0], 3)]
    source.wait_settled()
    if "offsets" not in source.cannot:
        saved = "SELECT subscription FROM inbox.offsets WHERE message_id <> '' OR publish_time IS NOT NULL"
        assert target.execute(saved) == [(source.subscription,)]


@pytest.mark.needs("kills")
def test_consumers_that_are_killed(source: Source, target: Target, consume: Consume) -> None:
    """Every event is applied, and once."""
    options = source.consumer_options(**source.short_leases())
    ids: list[str] = []
    for round in range(5):
        ids += source.send_events(10, range(1 + 10 * round, 11 + 10 * round))
        applied = len(target.applied())
        consumer = consume(**options)
        wait_until(target.applied, lambda seen: len(seen) > applied, what="an event")
        consumer.kill()
    consume(**options)
    target.wait_applied(ids)
    source.wait_settled()
    if source.comes_again_in_order:
        target.check_order()


@pytest.mark.needs("restarts")
def test_a_server_that_restarts(source: Source, target: Target, consume: Consume) -> None:
    options = source.consumer_options(**source.short_leases())
    consume(**options)
    ids = source.send_events(10, range(1, 11))
    wait_until(target.applied, what="an event")
    ids += source.restart()
    ids += source.send_events(10, range(11, 21))
    target.wait_applied(ids)
    source.wait_settled()
    if source.comes_again_in_order:
        target.check_order()


# -------------------------------------------------------------------------------------------------
# Topics, streams and queues that are made again
# -------------------------------------------------------------------------------------------------

GAPS = "SELECT skipped, recreated FROM inbox.gaps WHERE accepted_at IS NULL"
FINDINGS = "SELECT what FROM inbox.health() WHERE what IN ('events skipped', 'source made again')"


def wait_payloads(target: Target, expected: list[str]) -> None:
    """Waits until exactly these payloads are applied, once each, in any order."""

    def applied() -> list[str]:
        return sorted(payload for (payload,) in target.execute("SELECT payload FROM applied"))

    wait_until(applied, lambda seen: len(seen) >= len(expected), what=f"{len(expected)} payloads to be applied")
    assert applied() == sorted(expected)


def recreated_options(source: Source, **options: object) -> dict[str, object]:
    return {**source.consumer_options(**{**source.attentive, **options}), "housekeeping_interval": 200}


@pytest.mark.needs("recreate")
@pytest.mark.parametrize("away", [True, False], ids=["away", "running"])
def test_what_is_made_again_is_read_from_its_beginning(
    source: Source, target: Target, consume: Consume, away: bool
) -> None:
    """Its ids and offsets begin again. A message that gets the place of an old one is another message."""
    consumer = consume(**recreated_options(source))
    source.send_anonymous("a1", "a2", "a3")
    wait_payloads(target, ["a1", "a2", "a3"])
    source.wait_settled()
    if away:
        consumer.stop()
    source.recreate()
    source.send_anonymous(*(f"b{n}" for n in range(8)))
    if away:
        consumer = consume(**recreated_options(source))
    wait_payloads(target, ["a1", "a2", "a3", *(f"b{n}" for n in range(8))])
    source.wait_settled()


@pytest.mark.needs("incarnations")
def test_a_source_that_was_made_again_is_told(source: Source, target: Target, consume: Consume) -> None:
    consumer = consume(**recreated_options(source))
    source.send_anonymous("a1", "a2", "a3")
    wait_payloads(target, ["a1", "a2", "a3"])
    source.wait_settled()
    consumer.stop()
    assert target.execute(GAPS) == target.execute(FINDINGS) == []
    source.recreate()
    source.send_anonymous("b1", "b2", "b3")
    consumer = consume(**recreated_options(source))
    wait_payloads(target, ["a1", "a2", "a3", "b1", "b2", "b3"])
    wait_until(lambda: target.execute(GAPS), what="the gap to be reported")
    assert all(recreated > 0 and skipped == 0 for skipped, recreated in target.execute(GAPS))
    assert set(target.execute(FINDINGS)) == {("source made again",)}
    assert "made again" in consumer.log()
    assert consumer.state()["recreated"] > 0
    assert "inbox_recreated_total" in target.value("SELECT inbox.metrics()")
    consumer.stop()
    accepted = "SELECT inbox.accept_gap(consumer, subscription, 'expected') FROM inbox.gaps"
    assert {accepted for (accepted,) in target.execute(accepted)} == {True}
    assert target.execute(FINDINGS) == []
    # The new one is known from now on.
    again = consume(**recreated_options(source))
    source.send_anonymous("c1")
    wait_payloads(target, ["a1", "a2", "a3", "b1", "b2", "b3", "c1"])
    again.stop()
    assert target.execute(GAPS) == []


@pytest.mark.needs("incarnations")
def test_a_source_that_was_made_again_can_stop_the_consumer(source: Source, target: Target, consume: Consume) -> None:
    consumer = consume(**recreated_options(source))
    source.send_anonymous("a1", "a2", "a3")
    wait_payloads(target, ["a1", "a2", "a3"])
    source.wait_settled()
    consumer.stop()
    source.recreate()
    source.send_anonymous("b1", "b2", "b3")
    stopped = consume(**recreated_options(source, on_recreated="stop"))
    stopped.wait_logged("run() threw: ")
    assert stopped.wait_ended() == 3
    assert "made again" in stopped.log()
    assert target.execute(GAPS) != []
    consume(**recreated_options(source))
    wait_payloads(target, ["a1", "a2", "a3", "b1", "b2", "b3"])


@pytest.mark.needs("incarnations")
def test_a_gap_that_could_not_be_reported_is_reported_at_the_end(
    source: Source, target: Target, consume: Consume
) -> None:
    options = {**recreated_options(source), "housekeeping_interval": 2000}
    consumer = consume(**options)
    source.send_anonymous("a1")
    wait_payloads(target, ["a1"])
    source.wait_settled()
    consumer.stop()
    source.recreate()
    target.execute("ALTER FUNCTION inbox.report_gap RENAME TO away")
    source.send_anonymous("b1")
    consumer = consume(**options)
    consumer.wait_logged("cannot report gaps")
    target.execute("ALTER FUNCTION inbox.away RENAME TO report_gap")
    consumer.stop()
    assert target.execute(GAPS) != []
