"""Only Kafka has these: groups, partitions, offsets in two places, transactions, headers of other producers."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sinks import servers
from sinks.fault_proxy import OFFSET_COMMIT
from sinks.kafka_server import USERS
from waiting import wait_until

from .conftest import Consume, MakeSource
from .consumer import Consumer, Target
from .kafka_source import KafkaSource
from .source import Reader

servers.add_clients_to_path()

# (partitions, ...) -> KafkaSource
MakeTopic = Callable[..., KafkaSource]


@pytest.fixture
def make_topic(make_source: MakeSource) -> MakeTopic:
    return lambda partitions=3, **configuration: make_source(KafkaSource, partitions=partitions, **configuration)


@pytest.fixture
def topic(make_topic: MakeTopic) -> KafkaSource:
    return make_topic()


def consumer_options(topic: KafkaSource, **options: object) -> dict[str, object]:
    return {**topic.consumer_options(), **options}


class Load:
    """Sends events until it is stopped, by a thread of its own."""

    KEYS = 20

    def __init__(self, topic: KafkaSource) -> None:
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

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[str]:
        self._stopped.set()
        self._thread.join()
        self.topic.flush()
        return self.ids


@pytest.fixture
def load(topic: KafkaSource) -> Iterator[Load]:
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


def wait_confirmed(topic: KafkaSource, consumer: Consumer, done: str, timeout: float = 180.0) -> None:
    """Waits until the consumer logs that it has done this. What the group must confirm for it is lost on the way."""
    wait_until(
        consumer.log, lambda log: done in log or "the group does not confirm it" in log, timeout=timeout,
        what=f"the consumer to say {done!r}, or that it cannot",
    )  # fmt: skip
    if done not in consumer.log():
        topic.broker.proxy.forget_rules()
        consumer.wait_logged(done)


def test_records_of_any_producer(topic: KafkaSource) -> None:
    """Debezium's headers are known, and may be null."""
    id = str(uuid.uuid4())
    topic.produce("a", None, partition=0)
    topic.produce("a", "", partition=0)
    topic.produce(None, b"\xff", partition=0, headers={"id": "17", "x": "y"})
    topic.produce("7", "{}", partition=0, headers={"id": id, "eventType": "OrderPaid", "content_type": None,
                                                   "headers": '{"tenant": "x"}'})  # fmt: skip
    topic.flush()
    reader = topic.read()
    tombstone, empty, other, debezium = reader.receive(4)
    assert (tombstone["payload"], empty["payload"]) == (None, "")
    assert other["headers"] == {"id": "17", "x": "y"}
    assert [each["message_id"] for each in (tombstone, empty, other)] == [f"{topic.name}/0/{n}" for n in range(3)]
    ids = [each["event_id"] for each in (tombstone, empty, other)]
    assert len(set(ids)) == 3 and all(uuid.UUID(id).version == 5 for id in ids)
    assert (debezium["event_id"], debezium["type"], debezium["key"]) == (id, "OrderPaid", "7")
    assert (debezium["aggregate_id"], debezium["headers"]) == ("7", {"tenant": "x"})
    reader.close()
    again = topic.read().receive(4)
    assert [each["event_id"] for each in again] == [*ids, id], "the ids of the same records have changed"


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_only_a_contiguous_prefix_is_committed(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    for n in range(5):
        topic.produce(f"k{n}", str(n))
    topic.flush()
    reader = topic.read()
    received = reader.receive(5)
    reader.ack(received[1], received[2], received[4])
    reader.ack(received[0])
    topic.wait_committed(3)
    reader.close()
    assert topic.committed() == {0: 3}
    again = topic.read().receive(2)
    assert [each["payload"] for each in again] == ["3", "4"]


def test_aborted_transactions_are_not_read(make_topic: MakeTopic) -> None:
    from confluent_kafka import Producer

    topic = make_topic(1)
    producer = Producer({**topic.address, "transactional.id": topic.name})
    producer.init_transactions()
    for value, end in (("no", producer.abort_transaction), ("yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic.name, value)
        producer.flush()
        end()
    reader = topic.read()
    (only,) = reader.receive(1)
    assert only["payload"] == "yes"
    reader.ack(only)
    topic.wait_committed(4)  # two records and two markers: nothing is left as lag
    reader.wait_stats(lag=0)


@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_only_an_aborted_transaction_came_since(
    make_topic: MakeTopic, target: Target, consume: Consume, offsets_in_database: int
) -> None:
    """A process that has read nothing else does not count its records as lag."""
    from confluent_kafka import Producer

    topic = make_topic(1)
    options = consumer_options(topic, kafka_offsets_in_database=offsets_in_database, housekeeping_interval=200)
    ids = [topic.send_event("a", 1)]
    topic.flush()
    consumer = consume(**options)
    target.wait_applied(ids)
    topic.wait_committed(1)
    consumer.stop()
    producer = Producer({**topic.address, "transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(20):
        producer.produce(topic.name, "no")
    producer.flush()
    producer.abort_transaction()
    consume(**options)
    topic.wait_settled()
    if offsets_in_database:
        wait_until(lambda: saved(target, topic), lambda seen: seen == {0: 22}, what="the offset behind the marker")


# -------------------------------------------------------------------------------------------------
# The end of a topic, deleted records, another topic of the name
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_the_end_of_a_topic_is_kept_over_a_restart(
    make_topic: MakeTopic, target: Target, consume: Consume, offsets_in_database: int
) -> None:
    """It is the end at the first start, although no record has come then."""
    topic = make_topic(1)
    topic.send("before")
    options = consumer_options(topic, kafka_start="latest", kafka_offsets_in_database=offsets_in_database)
    consumer = consume(**options)
    topic.wait_committed(1)
    consumer.kill()
    ids = [topic.send_event(f"k{n}", 1) for n in range(10)]
    topic.flush()
    consume(**options)
    target.wait_applied(ids)
    topic.wait_settled()


def test_the_end_of_a_topic_is_kept_before_a_process_has_it(
    make_topic: MakeTopic, target: Target, consume: Consume
) -> None:
    """A process that is killed before the group has its end would begin at a later one, and skip events."""
    topic = make_topic(1)
    topic.send("before")
    options = consumer_options(topic, kafka_start="latest")
    has_it = f"has {topic.name}/0 from now on"
    with topic.broker.proxy.watching(OFFSET_COMMIT):
        topic.broker.proxy.lose_requests(1_000_000)
        consumer = consume(**{**options, "kafka": f"127.0.0.1:{topic.broker.proxy.port}"})
        wait_confirmed(topic, consumer, has_it)
        consumer.kill()
    ids = [topic.send_event(f"k{n}", 1) for n in range(10)]
    topic.flush()
    again = consume(**options)
    again.wait_logged(has_it)
    assert "begins behind the last record" not in again.log()
    target.wait_applied(ids)
    topic.wait_settled()


def test_the_end_of_a_topic_is_kept_when_another_process_joins(
    topic: KafkaSource, target: Target, consume: Consume
) -> None:
    topic.send("before", "before", "before")
    options = consumer_options(topic, kafka_start="latest")
    first = consume(**options)
    topic.wait_members(1)
    topic.wait_committed(3)
    with Load(topic) as load:
        second = consume(**options)
        topic.wait_members(2)
        wait_applied(target, 100)
    target.wait_applied(load.ids)
    topic.wait_settled()
    assert first.stop()["applied"] + second.stop()["applied"] == len(load.ids)


GAPS = "SELECT subscription, skipped, recreated FROM inbox.gaps"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_records_that_were_deleted_before_they_were_read(
    make_topic: MakeTopic, target: Target, consume: Consume, start: str
) -> None:
    """They are counted, and those that are there are applied."""
    from confluent_kafka import TopicPartition

    topic = make_topic(1)
    options = consumer_options(topic, kafka_start=start, housekeeping_interval=200)
    consumer = consume(**options)
    topic.wait_committed(0) if start == "earliest" else topic.wait_members(1)
    ids = [topic.send_event("a", n + 1) for n in range(10)]
    topic.flush()
    target.wait_applied(ids)
    topic.wait_committed(10)
    consumer.stop()
    ids += [topic.send_event("b", n + 1) for n in range(20)]
    topic.flush()
    (deleted,) = topic.admin.delete_records([TopicPartition(topic.name, 0, 25)]).values()
    deleted.result()
    consumer = consume(**options)
    target.wait_applied(ids[:10] + ids[25:])
    consumer.wait_logged("15 records of")
    partition = f"kafka://{topic.group}/{topic.name}/0"
    wait_until(lambda: target.execute(GAPS), lambda gaps: gaps == [(partition, 15, 0)], what="the gap")
    assert consumer.state()["skipped"] == 15
    assert "inbox_skipped_total{database=" in target.value("SELECT inbox.metrics()")
    topic.wait_settled()


@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_a_topic_that_is_made_again(
    make_topic: MakeTopic, target: Target, consume: Consume, offsets_in_database: int
) -> None:
    """Its first records have offsets that were read before."""
    topic = make_topic(1)
    options = consumer_options(topic, kafka_offsets_in_database=offsets_in_database, housekeeping_interval=200)
    consumer = consume(**options)
    ids = [topic.send_event("a", n + 1) for n in range(50)]
    topic.flush()
    target.wait_applied(ids)
    topic.wait_committed(50)
    topic.recreate()
    ids += [topic.send_event("b", n + 1) for n in range(80)]
    topic.flush()
    target.wait_applied(ids)
    topic.wait_settled()
    consumer.stop()


# -------------------------------------------------------------------------------------------------
# Consumers come and go
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets_in_database", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_rebalance_loses_nothing_and_applies_nothing_twice(
    topic: KafkaSource, target: Target, consume: Consume, load: Load, offsets_in_database: int
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
    target.check_order()
    topic.wait_settled()
    states += [consumer.stop() for consumer in consumers]
    assert sum(state["applied"] for state in states) == len(load.ids)
    # Some may have come twice, without an effect: what was begun was waited for, but librdkafka refuses its
    # commit while another member has yet to join.


def test_a_killed_consumer(topic: KafkaSource, target: Target, consume: Consume, load: Load) -> None:
    consumers = [consume(**consumer_options(topic)) for _ in range(2)]
    topic.wait_members(2)
    wait_applied(target, 100)
    consumers[0].kill()
    consumers.append(consume(**consumer_options(topic)))
    wait_applied(target, 100)
    topic.wait_members(2)
    target.wait_applied(load.stop())
    target.check_order()
    topic.wait_settled()


@pytest.mark.long
def test_the_broker_restarts(topic: KafkaSource, target: Target, consume: Consume, load: Load) -> None:
    consumer = consume(**consumer_options(topic))
    wait_applied(target, 100)
    topic.broker.kill()
    topic.broker.start()
    wait_applied(target, 100)
    target.wait_applied(load.stop())
    target.check_order()
    topic.wait_settled()
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
            lambda: first.state()["outstanding_messages"], lambda seen: seen <= 101, timeout=180,
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


def saved(target: Target, topic: KafkaSource) -> dict[int, int]:
    rows = target.execute("SELECT subscription, message_id FROM inbox.offsets WHERE consumer = 'c'")
    prefix = f"kafka://{topic.group}/{topic.name}/"
    return {int(name.removeprefix(prefix)): int(id) for name, id in rows if name.startswith(prefix)}


def test_offsets_in_the_database(topic: KafkaSource, target: Target, consume: Consume) -> None:
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


def test_the_database_is_older_than_the_group(topic: KafkaSource, target: Target, consume: Consume) -> None:
    """It was restored from a backup. Records that it lacks are read again."""
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


def test_the_database_is_away_when_a_partition_comes(topic: KafkaSource, target: Target, consume: Consume) -> None:
    ids = [topic.send_event(f"k{n}", 1) for n in range(10)]
    topic.flush()
    target.execute(f"ALTER ROLE {target.role} NOLOGIN")
    consumer = consume(**consumer_options(topic, kafka_offsets_in_database=1))
    consumer.wait_logged("cannot find where to begin")
    target.execute(f"ALTER ROLE {target.role} LOGIN")
    target.wait_applied(ids)


# -------------------------------------------------------------------------------------------------
# Going back, lag
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets_in_database", [0, 1])
def test_going_back(topic: KafkaSource, target: Target, consume: Consume, offsets_in_database: int) -> None:
    options = consumer_options(topic, kafka_offsets_in_database=offsets_in_database, housekeeping_interval=200)
    times = [1_700_000_000_000 + n * 1000 for n in range(60)]
    for n, timestamp in enumerate(times):
        topic.produce(f"k{n}", str(n), timestamp=timestamp)
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


def test_going_back_outlives_the_process(make_topic: MakeTopic, target: Target, consume: Consume) -> None:
    """The reset is over only when the group has the offset."""
    topic = make_topic(1)
    options = consumer_options(topic, housekeeping_interval=200, max_attempts=100_000, retry_base=50, retry_max=50)
    ids = [topic.send_event(f"k{n}", 1) for n in range(10)]
    topic.flush()
    consumer = consume(**{**options, "kafka": f"127.0.0.1:{topic.broker.proxy.port}"})
    target.wait_applied(ids)
    topic.wait_committed(10)
    is_over = "the offset was reset"
    for event_id in ids:  # what comes again is not committed again
        target.poison(event_id)
    with topic.broker.proxy.watching(OFFSET_COMMIT):
        topic.broker.proxy.lose_requests(1_000_000)
        target.execute("SELECT inbox.forget('c', '-infinity', 'to be applied again')")
        target.execute("SELECT inbox.reset_offset('c', %s, 'epoch', 'again')", (f"kafka://{topic.group}",))
        wait_confirmed(topic, consumer, is_over, timeout=120)
        consumer.kill()
        assert topic.committed() == {0: 0}
    target.cure()
    consume(**options)
    target.wait_applied(ids + ids)
    topic.wait_settled()


def test_going_back_takes_all_partitions(topic: KafkaSource, target: Target, consume: Consume) -> None:
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
        timeout=180, what="the reset to be carried out",
    )  # fmt: skip


def test_lag(make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for n in range(10):
        topic.produce("a", str(n), partition=n % 2)
    topic.flush()
    reader = topic.read()
    received = reader.receive(10)
    reader.wait_stats(lag=10, outstanding=10, partitions=2)
    reader.ack(*received[:4])
    reader.wait_stats(lag=6, outstanding=6, acked=4)
    reader.ack(*received[4:])
    reader.wait_stats(lag=0, outstanding=0)
    topic.wait_committed(10)


def test_memory_is_bounded(make_topic: MakeTopic) -> None:
    """Nobody receives: a part of the topic is fetched, and it goes on afterwards."""
    topic = make_topic(4)
    for n in range(400):
        topic.produce("a", bytes(100_000), partition=n % 4)
    topic.flush()
    reader = topic.read(prefetch_bytes=1 << 20)
    reader.wait_stats(partitions=4)
    wait_until(lambda: reader.stats()["waiting"], lambda n: n >= 10, what="records to be read")
    memory = wait_until(lambda: memory_of(reader), what="its memory")
    assert reader.stats()["waiting"] * 100_000 < 10 << 20
    assert memory < 60 << 20, "it has fetched the whole topic"
    received = [delivery for _ in range(8) for delivery in reader.take(50)]
    for partition in range(4):
        offsets = [int(each["message_id"].rpartition("/")[2]) for each in received
                   if each["message_id"].startswith(f"{topic.name}/{partition}/")]  # fmt: skip
        assert offsets == list(range(100))


def memory_of(reader: Reader) -> int:
    status = Path(f"/proc/{reader.process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


# -------------------------------------------------------------------------------------------------
# Logins
# -------------------------------------------------------------------------------------------------


def test_tls(topic: KafkaSource) -> None:
    server = topic.broker
    topic.produce("a", "1")
    topic.flush()
    trusting = {"tls": 1, "ca_file": server.certificates.authority}
    client = {"certificate_file": server.certificates.certificate, "private_key_file": server.certificates.key}
    reader = topic.read(**topic.listener("tls"), **trusting)
    reader.receive(1)
    reader.close()
    topic.read(**topic.listener("mutual"), **trusting, **client).receive(1)
    error = topic.read(**topic.listener("tls"), tls=1).receive_error()
    assert error["transient"] is False and "SSL" in error["error"]


def test_logins_and_a_group_that_is_forbidden(topic: KafkaSource) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )  # fmt: skip

    topic.produce("a", "1")
    topic.flush()
    topic.read(**topic.login("alice", USERS["alice"])).receive(1)
    acl = AclBinding(ResourceType.GROUP, topic.group, ResourcePatternType.LITERAL, "User:bob", "*",
                     AclOperation.READ, AclPermissionType.DENY)  # fmt: skip
    topic.admin.create_acls([acl])[acl].result()
    error = topic.read(**topic.login("bob", USERS["bob"])).receive_error()
    assert error["transient"] is False and "authoriz" in error["error"].lower()


def test_a_topic_that_comes_later(topic: KafkaSource) -> None:
    from confluent_kafka.admin import NewTopic

    later = f"{topic.name}-later"
    reader = topic.read(topics=later, **{"topic.metadata.refresh.interval.ms": 500})
    wait_until(reader.log, lambda log: later in log, timeout=180, what="a warning")
    topic.admin.create_topics([NewTopic(later, 1, 1)])[later].result()
    topic.producer.produce(later, b"1")
    topic.flush()
    reader.receive(1)


def test_wrong_options(topic: KafkaSource) -> None:
    for wrong, message in (
        ({"topics": ""}, "topics is empty"),
        ({"sasl_mechanism": "PLAIN"}, "need each other"),
        ({"enable.auto.commit": "true"}, "sets the property"),
    ):
        reader = topic.read(opened=False, **wrong)
        assert reader.process.wait(60) == 1
        assert message in reader.log()
    reader = topic.read(opened=False, **{"no.such.property": "1"})
    assert reader.command("open")["transient"] is False
