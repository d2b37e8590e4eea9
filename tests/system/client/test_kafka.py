"""The Kafka source and a consumer over it, against Apache Kafka."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation
from sinks import servers
from sinks.kafka_server import USERS, KafkaServer, kafka
from waiting import wait_until

from .conftest import Consume
from .consumer import Target
from .kafka_source import KafkaSource, Topic, consumer_options, kafka_options

servers.add_clients_to_path()

MakeTopic = Callable[..., Topic]
MakeSource = Callable[..., KafkaSource]


@pytest.fixture(scope="module")
def server(installation: Installation) -> Iterator[KafkaServer]:
    if not (installation.programs / "kafka_source").exists():
        pytest.skip("NOT TESTED: the source inbox_kafka is not part of this build")
    try:
        with kafka() as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def make_topic(server: KafkaServer) -> MakeTopic:
    return lambda partitions=3, **configuration: Topic(server, partitions, **configuration)


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic()


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[KafkaSource] = []

    def make(topic: Topic, /, *, opened: bool = True, **options: object) -> KafkaSource:
        made.append(KafkaSource(installation, kafka_options(topic, **options)))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


def check_order(target: Target) -> None:
    """Each key in the order of its versions, without gaps."""
    versions: dict[str, list[int]] = defaultdict(list)
    for key, version in target.execute("SELECT key, version FROM applied ORDER BY number"):
        versions[key].append(version)
    for key, found in versions.items():
        assert found == list(range(1, len(found) + 1)), f"key {key} is out of order: {found}"


class Load:
    """Sends events until it is stopped, by a thread of its own."""

    KEYS = 20

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.ids: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        for n in itertools.count():
            if self._stopped.wait(0.002):
                return
            self.ids.append(self.topic.send_event(f"k{n % self.KEYS}", n // self.KEYS + 1))

    def stop(self) -> list[str]:
        self._stopped.set()
        self._thread.join()
        self.topic.flush()
        return self.ids


@pytest.fixture
def load(topic: Topic) -> Iterator[Load]:
    load = Load(topic)
    yield load
    load.stop()


def wait_applied(target: Target, more: int) -> None:
    count = "SELECT count(*) FROM applied"
    goal = target.value(count) + more
    wait_until(lambda: target.value(count), lambda n: n >= goal, timeout=120, what=f"{more} more events")


# -------------------------------------------------------------------------------------------------
# Records
# -------------------------------------------------------------------------------------------------


def test_headers_of_the_sink(topic: Topic, make_source: MakeSource) -> None:
    event_id = topic.send_event("a", 7, type="renamed", payload='{"n": 1}')
    topic.flush()
    (event,) = make_source(topic).receive(1)
    assert event["event_id"] == event_id
    assert (event["key"], event["aggregate_type"], event["aggregate_id"]) == ("a", "item", "a")
    assert (event["type"], event["version"], event["payload"]) == ("renamed", 7, '{"n": 1}')
    assert event["topic"] == topic.name
    assert event["headers"] == {}


def test_cloud_events(topic: Topic, make_source: MakeSource) -> None:
    binary, structured = str(uuid.uuid4()), str(uuid.uuid4())
    attributes = {"specversion": "1.0", "type": "renamed", "source": "/shop/item", "subject": "1",
                  "aggregateversion": "3"}  # fmt: skip
    headers = {f"ce_{name}": value for name, value in {**attributes, "id": binary}.items()}
    topic.send("a", "<x/>", partition=0, headers={**headers, "content-type": "text/xml", "trace_id": "7"})
    document = {**attributes, "id": structured, "data": {"n": 1}}
    topic.send("a", json.dumps(document), partition=0, headers={"content-type": "application/cloudevents+json"})
    topic.flush()
    first, second = make_source(topic).receive(2)
    assert (first["event_id"], second["event_id"]) == (binary, structured)
    for event in (first, second):
        assert (event["type"], event["aggregate_type"], event["aggregate_id"]) == ("renamed", "item", "1")
        assert (event["version"], event["key"]) == (3, "a")
    assert (first["content_type"], first["payload"], first["headers"]["trace_id"]) == ("text/xml", "<x/>", "7")
    assert json.loads(second["payload"]) == {"n": 1}


def test_headers_of_debezium(topic: Topic, make_source: MakeSource) -> None:
    ids = [str(uuid.uuid4()) for _ in range(2)]
    topic.send("7", '{"n": 1}', partition=0, headers={"id": ids[0], "eventType": "OrderPlaced"})
    topic.send("7", '{"n": 2}', partition=0, headers={
        "id": ids[1], "event_type": "OrderPaid", "aggregate_type": "order", "aggregate_id": "8", "version": "2",
        "source_event_id": ids[0], "content_type": None, "headers": '{"tenant": "x"}',
    })  # fmt: skip
    topic.flush()
    first, second = make_source(topic).receive(2)
    assert [first["event_id"], second["event_id"]] == ids
    assert (first["type"], first["aggregate_id"], first["key"], first["headers"]) == ("OrderPlaced", "7", "7", {})
    assert (second["type"], second["aggregate_type"], second["aggregate_id"]) == ("OrderPaid", "order", "8")
    assert (second["version"], second["headers"]) == (2, {"tenant": "x"})


def test_records_of_any_producer(topic: Topic, make_source: MakeSource) -> None:
    topic.send("a", None, partition=0)
    topic.send("a", "", partition=0)
    topic.send(None, b"\xff", partition=0, headers={"id": "17", "x": "y"})
    topic.flush()
    source = make_source(topic)
    tombstone, empty, other = source.receive(3)
    assert (tombstone["payload"], empty["payload"]) == (None, "")
    assert other["headers"] == {"id": "17", "x": "y"}
    assert [each["message_id"] for each in (tombstone, empty, other)] == [f"{topic.name}/0/{n}" for n in range(3)]
    ids = [each["event_id"] for each in (tombstone, empty, other)]
    assert len(set(ids)) == 3 and all(uuid.UUID(id).version == 5 for id in ids)
    source.close()
    again = make_source(topic).receive(3)
    assert [each["event_id"] for each in again] == ids, "the ids of the same records have changed"


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_only_a_contiguous_prefix_is_committed(make_topic: MakeTopic, make_source: MakeSource) -> None:
    topic = make_topic(1)
    for n in range(5):
        topic.send(f"k{n}", str(n))
    topic.flush()
    source = make_source(topic)
    received = source.receive(5)
    source.ack(received[1], received[2], received[4])
    source.ack(received[0])
    topic.wait_committed(3)
    source.close()
    assert topic.committed() == {0: 3}
    again = make_source(topic).receive(2)
    assert [each["payload"] for each in again] == ["3", "4"]


def test_what_is_given_back_comes_before_later_records(make_topic: MakeTopic, make_source: MakeSource) -> None:
    topic = make_topic(1)
    for n in range(6):
        topic.send("a", str(n))
    topic.flush()
    source = make_source(topic)
    source.wait_stats(waiting=6)
    first = [source.receive(1, most=1)[0] for _ in range(3)]
    source.ack(first[0])
    source.nack(first[1], first[2])
    rest = source.receive(5)
    assert [each["payload"] for each in rest] == ["1", "2", "3", "4", "5"]
    source.ack(*rest)
    topic.wait_committed(6)


def test_poison(topic: Topic, target: Target, consume: Consume) -> None:
    bad = topic.send_event("a", 1)
    target.poison(bad)
    good = [topic.send_event("a", 2), topic.send_event("b", 1)]
    topic.flush()
    consume(**consumer_options(topic, max_attempts=3)).wait_for("two", applied=2, dead=1)
    target.wait_applied(good)
    assert [(id, attempts) for id, attempts, _, _ in target.dead_letters()] == [(bad, 3)]
    topic.wait_committed(3)


def test_aborted_transactions_are_not_read(make_topic: MakeTopic, make_source: MakeSource) -> None:
    from confluent_kafka import Producer

    topic = make_topic(1)
    producer = Producer({**topic.address, "transactional.id": topic.name})
    producer.init_transactions()
    for value, end in (("no", producer.abort_transaction), ("yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic.name, value)
        producer.flush()
        end()
    source = make_source(topic)
    (only,) = source.receive(1)
    assert only["payload"] == "yes"
    source.ack(only)
    topic.wait_committed(4)  # two records and two markers: nothing is left as lag
    source.wait_stats(lag=0)


# -------------------------------------------------------------------------------------------------
# Consumers come and go
# -------------------------------------------------------------------------------------------------


def test_events_are_applied_once_and_in_order(topic: Topic, target: Target, consume: Consume) -> None:
    ids = [topic.send_event(f"k{n % 7}", n // 7 + 1) for n in range(700)]
    topic.flush()
    consumer = consume(**consumer_options(topic))
    consumer.wait_for("all to be applied", applied=700)
    target.wait_applied(ids)
    check_order(target)
    topic.wait_committed(700)
    assert consumer.stop()["duplicates"] == 0


@pytest.mark.long
@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_a_rebalance_loses_nothing_and_applies_nothing_twice(
    topic: Topic, target: Target, consume: Consume, load: Load, offsets_in_database: int
) -> None:
    options = consumer_options(topic, kafka_offsets_in_database=offsets_in_database)
    consumers = [consume(**options)]
    wait_applied(target, 50)
    consumers.append(consume(**options))
    topic.wait_members(2)
    wait_applied(target, 100)
    consumers.append(consume(**options))
    topic.wait_members(3)
    wait_applied(target, 100)
    states = [consumers.pop(0).stop()]
    topic.wait_members(2)
    wait_applied(target, 100)
    target.wait_applied(load.stop())
    check_order(target)
    topic.wait_all_committed()
    states += [consumer.stop() for consumer in consumers]
    assert sum(state["applied"] for state in states) == len(load.ids)
    # Some may have come twice, without an effect: what was begun was waited for, but librdkafka refuses its
    # commit while another member has yet to join.


def test_a_killed_consumer(topic: Topic, target: Target, consume: Consume, load: Load) -> None:
    consumers = [consume(**consumer_options(topic)) for _ in range(2)]
    topic.wait_members(2)
    wait_applied(target, 100)
    consumers[0].kill()
    consumers.append(consume(**consumer_options(topic)))
    wait_applied(target, 100)
    topic.wait_members(2)
    target.wait_applied(load.stop())
    check_order(target)
    topic.wait_all_committed()


@pytest.mark.long
@pytest.mark.slow
def test_the_broker_restarts(server: KafkaServer, topic: Topic, target: Target, consume: Consume, load: Load) -> None:
    consumer = consume(**consumer_options(topic))
    wait_applied(target, 100)
    server.kill()
    server.start()
    wait_applied(target, 100)
    target.wait_applied(load.stop())
    check_order(target)
    topic.wait_all_committed()
    assert consumer.state()["source_reconnects"] == 0, "librdkafka connects again by itself"


def test_a_partition_waits_for_handlers_that_have_begun(
    make_topic: MakeTopic, target: Target, consume: Consume
) -> None:
    """And for nothing else: what no handler has begun with is dropped, and applied by the other process."""
    topic = make_topic(2)
    options = consumer_options(topic, connections=2, batch_size=1, kafka_revoke_limit=600_000)
    with target.connect() as blocker:
        blocker.execute("BEGIN; LOCK TABLE applied IN EXCLUSIVE MODE")
        ids = [topic.send_event(f"k{n}", 1, partition=n) for n in range(2)]
        topic.flush()
        first = consume(**options)
        target.wait_for_lock("a handler of each partition to wait", backends=2)
        ids += [topic.send_event(f"k{n}", 1, partition=n % 2) for n in range(2, 200)]
        topic.flush()
        first.wait_for("all to be received", received=200)
        second = consume(**options)
        wait_until(
            lambda: first.state()["outstanding_messages"], lambda seen: seen <= 101, timeout=60,
            what="the first process to drop what no handler of a partition has begun with",
        )  # fmt: skip
        blocker.execute("ROLLBACK")
    target.wait_applied(ids)
    topic.wait_committed(200)
    states = [first.stop(), second.stop()]
    assert min(state["applied"] for state in states) > 0
    assert sum(state["duplicates"] for state in states) == 0, "a handler that had begun was not waited for"


def test_a_partition_does_not_wait_for_ever(make_topic: MakeTopic, target: Target, consume: Consume) -> None:
    """The next process waits for the transaction of the one that has the event, and finds it applied."""
    topic = make_topic(2)
    options = consumer_options(topic, connections=2, batch_size=1, kafka_revoke_limit=100)
    with target.connect() as blocker:
        blocker.execute("BEGIN; LOCK TABLE applied IN EXCLUSIVE MODE")
        ids = [topic.send_event(f"k{n}", 1, partition=n) for n in range(2)]
        topic.flush()
        first = consume(**options)
        target.wait_for_lock("the handlers to wait", backends=2)
        second = consume(**options)
        first.wait_logged("handlers have not ended")
        target.wait_for_lock("the second process to wait", backends=3)
        blocker.execute("ROLLBACK")
    target.wait_applied(ids)
    second.wait_for("what it got to be found applied", duplicates=1)


POLL_INTERVAL = 2000


def test_handlers_that_are_slower_than_the_poll_interval(
    make_topic: MakeTopic, target: Target, consume: Consume
) -> None:
    topic = make_topic(1)
    target.execute(
        "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"PERFORM pg_sleep({2.5 * POLL_INTERVAL / 1000}); RETURN NEW; END $$"
    )
    target.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON applied FOR EACH ROW WHEN (NEW.version = 1) EXECUTE FUNCTION slow()"
    )
    ids = [topic.send_event("a", n + 1) for n in range(20)]
    topic.flush()
    options = {"kafka_max.poll.interval.ms": POLL_INTERVAL, "kafka_session_timeout": POLL_INTERVAL}
    consumer = consume(**{**consumer_options(topic, max_outstanding_messages=5, connections=1), **options})
    topic.wait_members(1)
    (member,) = topic.members()
    target.wait_applied(ids)
    assert list(topic.members()) == [member], "it was thrown out of the group"
    state = consumer.stop()
    assert (state["duplicates"], state["received"]) == (0, 20)


# -------------------------------------------------------------------------------------------------
# Offsets in the database
# -------------------------------------------------------------------------------------------------


def saved(target: Target, topic: Topic) -> dict[int, int]:
    rows = target.execute("SELECT subscription, message_id FROM inbox.offsets WHERE consumer = 'c'")
    prefix = f"kafka://{topic.group}/{topic.name}/"
    return {int(name.removeprefix(prefix)): int(id) for name, id in rows if name.startswith(prefix)}


def test_offsets_in_the_database(topic: Topic, target: Target, consume: Consume) -> None:
    """The database is right: the offsets of the group were deleted."""
    options = consumer_options(topic, kafka_offsets_in_database=1, housekeeping_interval=200)
    ids = [topic.send_event(f"k{n}", 1) for n in range(300)]
    topic.flush()
    consumer = consume(**options)
    target.wait_applied(ids)
    wait_until(lambda: sum(saved(target, topic).values()), lambda seen: seen == 300, what="all offsets to be saved")
    topic.wait_committed(300)
    consumer.stop()
    topic.delete_offsets()
    target.execute("SELECT inbox.forget('c', '-infinity', 'to see whether they come again')")
    more = [topic.send_event(f"k{n}", 2) for n in range(50)]
    topic.flush()
    consumer = consume(**options)
    target.wait_applied(ids + more)
    assert consumer.stop()["received"] == 50


def test_the_database_is_older_than_the_group(topic: Topic, target: Target, consume: Consume) -> None:
    """It was restored from a backup: what is missing in it is read again."""
    options = consumer_options(topic, kafka_offsets_in_database=1, housekeeping_interval=200)
    ids = [topic.send_event(f"k{n}", 1) for n in range(100)]
    topic.flush()
    consumer = consume(**options)
    target.wait_applied(ids)
    topic.wait_committed(100)
    consumer.stop()
    before, now = saved(target, topic), target.value("SELECT clock_timestamp()")
    more = [topic.send_event(f"k{n}", 2) for n in range(100)]
    topic.flush()
    consumer = consume(**options)
    target.wait_applied(ids + more)
    topic.wait_committed(200)
    consumer.stop()
    for partition, offset in before.items():
        target.execute(
            "UPDATE inbox.consumer_offset SET message_id = %s WHERE subscription LIKE %s",
            (str(offset), f"%/{partition}"),
        )
    target.execute("SELECT inbox.forget('c', %s, 'the backup does not have them')", (now,))
    target.execute("DELETE FROM applied WHERE version = 2")
    consume(**options)
    target.wait_applied(ids + more)


def test_the_database_is_away_when_a_partition_comes(topic: Topic, target: Target, consume: Consume) -> None:
    ids = [topic.send_event(f"k{n}", 1) for n in range(10)]
    topic.flush()
    target.execute(f"ALTER ROLE {target.role} NOLOGIN")
    consumer = consume(**consumer_options(topic, kafka_offsets_in_database=1))
    consumer.wait_logged("cannot load offsets")
    target.execute(f"ALTER ROLE {target.role} LOGIN")
    target.wait_applied(ids)


# -------------------------------------------------------------------------------------------------
# Going back, lag
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_going_back(topic: Topic, target: Target, consume: Consume, offsets_in_database: int) -> None:
    options = consumer_options(topic, kafka_offsets_in_database=offsets_in_database, housekeeping_interval=200)
    times = [1_700_000_000_000 + n * 1000 for n in range(60)]
    for n, timestamp in enumerate(times):
        topic.send(f"k{n}", str(n), timestamp=timestamp)
    topic.flush()
    consumer = consume(**options)
    consumer.wait_for("all", applied=60)
    topic.wait_committed(60)
    target.execute("SELECT inbox.forget('c', '-infinity', 'to be applied again')")
    target.execute("DELETE FROM applied")
    target.execute(
        "SELECT inbox.reset_offset('c', %s, to_timestamp(%s), 'from there on again')",
        (f"kafka://{topic.group}", times[40] / 1000),
    )
    consumer.wait_for("twenty again", applied=80)
    assert sorted(int(n) for (n,) in target.execute("SELECT payload FROM applied")) == list(range(40, 60))
    topic.wait_committed(60)
    consumer.stop()


@pytest.mark.long
def test_going_back_takes_all_partitions(topic: Topic, target: Target, consume: Consume) -> None:
    only = topic.send_event("a", 1)
    topic.flush()
    consumers = [consume(**consumer_options(topic, housekeeping_interval=200)) for _ in range(2)]
    topic.wait_members(2)
    target.wait_applied([only])
    target.execute("SELECT inbox.reset_offset('c', %s, 'epoch', 'again')", (f"kafka://{topic.group}",))
    consumers[0].wait_logged("stop the other processes")
    consumers.pop().stop()
    wait_until(
        lambda: target.value("SELECT count(*) FROM inbox.offsets WHERE reset_pending"), lambda n: n == 0,
        timeout=60, what="the reset to be carried out",
    )  # fmt: skip


def test_lag(make_topic: MakeTopic, make_source: MakeSource) -> None:
    topic = make_topic(2)
    for n in range(10):
        topic.send("a", str(n), partition=n % 2)
    topic.flush()
    source = make_source(topic)
    received = source.receive(10)
    source.wait_stats(lag=10, outstanding=10, partitions=2)
    source.ack(*received[:4])
    source.wait_stats(lag=6, outstanding=6, acked=4)
    source.ack(*received[4:])
    source.wait_stats(lag=0, outstanding=0)
    topic.wait_committed(10)


def test_memory_is_bounded(make_topic: MakeTopic, make_source: MakeSource) -> None:
    """Nobody receives: a part of the topic is fetched, and it goes on afterwards."""
    topic = make_topic(4)
    for n in range(400):
        topic.send("a", bytes(100_000), partition=n % 4)
    topic.flush()
    source = make_source(topic, prefetch_bytes=1 << 20)
    source.wait_stats(partitions=4)
    wait_until(lambda: source.stats()["waiting"], lambda n: n >= 10, what="records to be read")
    memory = wait_until(lambda: memory_of(source), what="its memory")
    assert source.stats()["waiting"] * 100_000 < 10 << 20
    assert memory < 60 << 20, "it has fetched the whole topic"
    received = source.receive(400, most=50)
    for partition in range(4):
        offsets = [int(each["message_id"].rpartition("/")[2]) for each in received
                   if each["message_id"].startswith(f"{topic.name}/{partition}/")]  # fmt: skip
        assert offsets == list(range(100))


def memory_of(source: KafkaSource) -> int:
    status = Path(f"/proc/{source.process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


# -------------------------------------------------------------------------------------------------
# Logins
# -------------------------------------------------------------------------------------------------


def secured(server: KafkaServer, listener: str, **options: object) -> dict[str, object]:
    return {"brokers": f"127.0.0.1:{server.ports[listener]}", **options}


def test_login(server: KafkaServer, topic: Topic, make_source: MakeSource) -> None:
    topic.send("a", "1")
    topic.flush()
    login = {"sasl_mechanism": "PLAIN", "user": "alice"}
    source = make_source(topic, **secured(server, "sasl", **login, password=USERS["alice"]))
    source.receive(1)
    error = make_source(topic, **secured(server, "sasl", **login, password="wrong")).receive_error()
    assert error["transient"] is False and "uthentication" in error["error"]
    assert "wrong" not in error["error"]


def test_tls(server: KafkaServer, topic: Topic, make_source: MakeSource) -> None:
    topic.send("a", "1")
    topic.flush()
    trusting = {"tls": 1, "ca_file": server.certificates.authority}
    client = {"certificate_file": server.certificates.certificate, "private_key_file": server.certificates.key}
    source = make_source(topic, **secured(server, "tls", **trusting))
    source.receive(1)
    source.close()
    make_source(topic, **secured(server, "mutual", **trusting, **client)).receive(1)
    error = make_source(topic, **secured(server, "tls", tls=1)).receive_error()
    assert error["transient"] is False and "SSL" in error["error"]


def test_a_group_that_is_forbidden(server: KafkaServer, topic: Topic, make_source: MakeSource) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )  # fmt: skip

    acl = AclBinding(ResourceType.GROUP, topic.group, ResourcePatternType.LITERAL, "User:bob", "*",
                     AclOperation.READ, AclPermissionType.DENY)  # fmt: skip
    topic.admin.create_acls([acl])[acl].result()
    login = {"sasl_mechanism": "PLAIN", "user": "bob", "password": USERS["bob"]}
    error = make_source(topic, **secured(server, "sasl", **login)).receive_error()
    assert error["transient"] is False and "authoriz" in error["error"].lower()


def test_a_topic_that_comes_later(topic: Topic, make_source: MakeSource) -> None:
    from confluent_kafka.admin import NewTopic

    later = f"{topic.name}-later"
    source = make_source(topic, topics=later, **{"topic.metadata.refresh.interval.ms": 500})
    wait_until(source.log, lambda log: later in log, timeout=60, what="a warning")
    topic.admin.create_topics([NewTopic(later, 1, 1)])[later].result()
    topic.producer.produce(later, b"1")
    topic.flush()
    source.receive(1)


def test_wrong_options(topic: Topic, make_source: MakeSource) -> None:
    for wrong, message in (
        ({"topics": ""}, "topics is empty"),
        ({"sasl_mechanism": "PLAIN"}, "need each other"),
        ({"enable.auto.commit": "true"}, "sets the property"),
    ):
        source = make_source(topic, opened=False, **wrong)
        assert source.process.wait(60) == 1
        assert message in source.log()
    source = make_source(topic, opened=False, **{"no.such.property": "1"})
    assert source.command("open")["transient"] is False
