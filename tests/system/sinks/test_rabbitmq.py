"""Features of the rabbitmq sink alone: exchanges, returns, queues that are full, blocked connections, logins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cluster import MakeCluster
from database import Database, create_database
from waiting import wait_until

from .conftest import MakeSink
from .rabbitmq_server import LARGEST_MESSAGE, PASSWORD, RabbitmqServer, rabbitmq
from .rabbitmq_sink import RabbitmqSink
from .test_conformance import charged, enqueue_bytes, enqueue_keys, enqueue_type, in_trouble


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def rabbit(database: Database, make_sink: MakeSink) -> RabbitmqSink:
    made = make_sink(RabbitmqSink, database)
    assert isinstance(made, RabbitmqSink)
    return made


def wait_for_error(db: Database, *words: str) -> dict[str, Any]:
    return wait_until(
        db.status, lambda s: all(word in (s["last_error"] or "") for word in words), what=f"an error with {words}",
    )  # fmt: skip


def map_user(db: Database, **mapping: str) -> None:
    pairs = ", ".join(f"{name} '{value}'" for name, value in mapping.items())
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def exchange_of(rabbit: RabbitmqSink, kind: str, **arguments: Any) -> str:
    """A new exchange."""
    name = f"{rabbit.place}-{kind}"
    rabbit.channel.exchange_declare(name, kind, durable=True, arguments=arguments)
    return name


# -------------------------------------------------------------------------------------------------
# Exchanges and routes
# -------------------------------------------------------------------------------------------------


def test_routing_keys_of_events(rabbit: RabbitmqSink, db: Database) -> None:
    """A consumer binds to what it wants of a topic exchange."""
    exchange = exchange_of(rabbit, "topic")
    for queue, binding in (("all", "item.#"), ("one", "item.*.b")):
        rabbit.add_topic(queue)
        rabbit.channel.queue_bind(f"{rabbit.place}-{queue}", exchange, binding)
    rabbit.create(exchange=exchange, routing_key="{aggregate_type}.{event_type}.{aggregate_id}")
    rabbit.wait_for(enqueue_keys(db, ["a", "b"], 2))
    db.wait_settled()
    assert sorted(m.aggregate_id for m in rabbit.messages()) == ["a", "a", "b", "b", "b", "b"]


def test_an_event_that_no_queue_gets_is_in_trouble_and_no_other(rabbit: RabbitmqSink, db: Database) -> None:
    """With a route that differs in each event, the event is to blame."""
    exchange = exchange_of(rabbit, "direct")
    rabbit.add_topic("q")
    for key in ("good1", "good2"):
        rabbit.channel.queue_bind(f"{rabbit.place}-q", exchange, key)
    rabbit.create(exchange=exchange, routing_key="{aggregate_id}", max_attempts="1")
    ids = enqueue_keys(db, ["good1", "bad", "good2"], 1)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("bad", 1, "DEAD")], what="the dead letter")
    error = db.value("SELECT last_error FROM outbox.delivery")
    assert "NO_ROUTE" in error and '"bad"' in error and exchange in error
    rabbit.wait_for([ids[0], ids[2]])
    assert len(rabbit.messages()) == 2


def test_an_alternate_exchange_takes_what_no_queue_gets(rabbit: RabbitmqSink, db: Database) -> None:
    rest = exchange_of(rabbit, "fanout")
    exchange = exchange_of(rabbit, "direct", **{"alternate-exchange": rest})
    rabbit.add_topic("rest")
    rabbit.channel.queue_bind(f"{rabbit.place}-rest", rest)
    rabbit.create(exchange=exchange, routing_key="nowhere")
    rabbit.wait_for(enqueue_keys(db, ["a", "b"], 2))
    db.wait_settled()


def test_an_exchange_that_is_missing_is_its_own_failure(rabbit: RabbitmqSink, db: Database) -> None:
    """Others have channels of their own."""
    there = f"{rabbit.place}-a"
    rabbit.channel.exchange_declare(there, "fanout")
    rabbit.add_topic("q")
    rabbit.channel.queue_bind(f"{rabbit.place}-q", there)
    rabbit.create(exchange=f"{rabbit.place}-{{aggregate_type}}", routing_key="x")
    with db.connection.transaction():
        missing = enqueue_type(db, "b", 4, 3)
        ids = enqueue_type(db, "a", 4, 3)
    rabbit.wait_for(ids)
    wait_until(db.status, lambda s: s["lanes_down"] > 0, what="an exchange to be down")
    ids += enqueue_type(db, "a", 4, 3, first=4)
    rabbit.wait_for(ids)
    wait_for_error(db, "404", f"{rabbit.place}-b")
    assert charged(db) == []
    late = f"{rabbit.place}-b"
    rabbit.channel.exchange_declare(late, "fanout")
    rabbit.channel.queue_bind(f"{rabbit.place}-q", late)
    rabbit.wait_for(ids + missing)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")


def test_more_exchanges_than_channels(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic("q")
    for n in range(80):
        exchange = f"{rabbit.place}-t{n}"
        rabbit.channel.exchange_declare(exchange, "fanout", auto_delete=True)
        rabbit.channel.queue_bind(f"{rabbit.place}-q", exchange)
    rabbit.create(exchange=f"{rabbit.place}-{{aggregate_type}}", routing_key="x")
    with db.connection.transaction():
        ids = [id for n in range(80) for id in enqueue_type(db, f"t{n}", 1, 2)]
    rabbit.wait_for(ids)
    db.wait_settled()


# -------------------------------------------------------------------------------------------------
# Queues
# -------------------------------------------------------------------------------------------------


def test_a_quorum_queue(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic(**{"x-queue-type": "quorum"})
    rabbit.create()
    messages = rabbit.wait_for(enqueue_keys(db, ["a", "b"], 5))
    db.wait_settled()
    for key in "ab":
        assert [m.version for m in messages if m.aggregate_id == key] == [1, 2, 3, 4, 5]


def test_a_stream(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.channel.queue_declare(f"{rabbit.place}-item.events", durable=True, arguments={"x-queue-type": "stream"})
    rabbit.create()
    ids = enqueue_keys(db, ["a", "b"], 5)
    db.wait_settled()
    rabbit.channel.basic_qos(prefetch_count=100)
    consumed = []
    arguments = {"x-stream-offset": "first"}
    for method, properties, _ in rabbit.channel.consume(f"{rabbit.place}-item.events", arguments=arguments):
        rabbit.channel.basic_ack(method.delivery_tag)
        consumed.append(properties.message_id)
        if len(consumed) == len(ids):
            break
    rabbit.channel.cancel()
    assert sorted(consumed) == sorted(ids)


def test_a_queue_that_is_full(rabbit: RabbitmqSink, db: Database) -> None:
    """It refuses (basic.nack). Other queues go on, nothing is charged, and order holds."""
    rabbit.add_topic("a.events", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    rabbit.add_topic("b.events")
    rabbit.create()
    full = enqueue_type(db, "a", 1, 6)
    wait_until(db.status, lambda s: s["throttled"] > 0, what="throttling")
    wait_for_error(db, "basic.nack", "a.events")
    others = enqueue_type(db, "b", 3, 4)
    wait_until(
        lambda: db.value("SELECT published FROM outbox.status"), lambda n: n >= len(others), what="the others",
    )  # fmt: skip
    assert charged(db) == []
    rabbit.wait_for(full + others)  # which makes room each time
    versions = list(dict.fromkeys(m.version for m in rabbit.messages() if m.aggregate_type == "a"))
    assert versions == [1, 2, 3, 4, 5, 6]
    assert charged(db) == []


# -------------------------------------------------------------------------------------------------
# Messages that are refused
# -------------------------------------------------------------------------------------------------


def test_a_message_too_large_for_the_server(rabbit: RabbitmqSink, db: Database) -> None:
    """The server closes the channel; what it says tells which message it was."""
    rabbit.add_topic()
    db.execute("SET outbox.max_payload_size = '64MB'")
    rabbit.create()
    with db.connection.transaction():
        ids = enqueue_keys(db, [f"k{n}" for n in range(20)], 1)
        enqueue_bytes(db, "large", b"x" * (LARGEST_MESSAGE + 1))
        ids += enqueue_keys(db, [f"l{n}" for n in range(20)], 1)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("large", 1, "DEAD")], what="the dead letter")
    assert "message size" in db.value("SELECT last_error FROM outbox.delivery")
    rabbit.wait_for(ids)
    db.wait_settled()


def test_a_header_from_which_the_server_would_take_routing_keys(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    rabbit.create()
    db.execute("SELECT outbox.enqueue('item', 'bad', 'changed', '{}', headers => '{\"CC\": \"elsewhere\"}')")
    ids = enqueue_keys(db, ["good"], 2)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("bad", None, "DEAD")], what="a dead letter")
    assert "routing keys" in db.value("SELECT last_error FROM outbox.delivery")
    rabbit.wait_for(ids)


# -------------------------------------------------------------------------------------------------
# The server
# -------------------------------------------------------------------------------------------------


def test_a_server_that_blocks_the_connection(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    rabbit.create(request_timeout="1s")
    ids = enqueue_keys(db, ["a"], 1)
    rabbit.wait_for(ids)
    with rabbit.broker.out_of_disk_space():
        ids += enqueue_keys(db, ["b"], 2)  # the server blocks the connection when these come
        wait_until(
            lambda: rabbit.broker.control("list_connections", "state"), lambda seen: "block" in seen, what="a block",
        )  # fmt: skip
        ids += enqueue_keys(db, ["c"], 2)
        wait_until(db.status, lambda s: s["state"] == "throttled", what="throttling")
        wait_for_error(db, "disk")
        assert charged(db) == []
    rabbit.wait_for(ids)
    db.wait_settled()
    counts = Counter(message.event_id for message in rabbit.messages())
    assert set(counts) == set(ids) and max(counts.values()) <= 2
    assert in_trouble(db) == []


@pytest.fixture(scope="module")
def mortal() -> Iterator[RabbitmqServer]:
    """A server that may be killed."""
    from .conftest import running

    yield from running(rabbitmq)


@pytest.mark.long
def test_a_server_that_is_killed(mortal: RabbitmqServer, db: Database) -> None:
    """The queue is classic, because the server forgets a quorum queue that is seconds old."""
    rabbit = RabbitmqSink(db, mortal)
    rabbit.add_topic()
    rabbit.create()
    mortal.sync()
    ids = enqueue_keys(db, [f"k{n}" for n in range(50)], 5)
    wait_until(db.published, what="a first event to be confirmed")
    mortal.kill()
    ids += enqueue_keys(db, [f"l{n}" for n in range(50)], 5)
    wait_until(db.status, lambda s: s["state"] == "backing off", what="a back-off")
    mortal.start()
    rabbit.connection = mortal.connect()
    rabbit.channel = rabbit.connection.channel()
    rabbit.wait_for(ids, timeout=180)
    db.wait_settled()
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")
    rabbit.close()


def test_a_connection_that_an_operator_closes(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    rabbit.create()
    ids = enqueue_keys(db, ["a"], 2)
    rabbit.wait_for(ids)
    pid = wait_until(
        lambda: [line.split("\t")[0] for line in
                 rabbit.broker.control("list_connections", "pid", "client_properties").splitlines()
                 if f"pg_outbox {db.name} d" in line],
        what="the connection of the relay",
    )[0]  # fmt: skip
    rabbit.broker.control("close_connection", pid, "maintenance")
    ids += enqueue_keys(db, ["a"], 3)
    rabbit.wait_for(ids)
    db.wait_settled()
    assert in_trouble(db) == []


# -------------------------------------------------------------------------------------------------
# Logins
# -------------------------------------------------------------------------------------------------


def test_it_connects_over_tls(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    url = f"amqps://127.0.0.1:{rabbit.broker.tls}"
    db.add_destination("d", url, **{**rabbit.options(), "connect_timeout": "30s"})
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_error(db, "certificate")
    db.execute(f"ALTER SERVER d OPTIONS (ADD ca_file '{rabbit.broker.certificates.authority}')")
    rabbit.wait_for(ids)


def test_a_client_certificate_is_a_login(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    url = f"amqps://127.0.0.1:{rabbit.broker.tls}"
    certificate, key = rabbit.broker.client
    db.add_destination("d", url, ca_file=rabbit.broker.certificates.authority, **rabbit.options())
    map_user(db, certificate=certificate, private_key=key)
    ids = enqueue_keys(db, ["a"], 2)
    rabbit.wait_for(ids)
    assert "with the client certificate" in str(db.execute("SELECT * FROM outbox.check_destination('d')"))


def test_a_login_that_is_refused(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic("open")
    rabbit.create(routing_key=f"{rabbit.place}-open")
    map_user(db, user="alice", password="s3cret-that-is-wrong")
    enqueue_keys(db, ["a"], 2)
    wait_for_error(db, "403", "ACCESS_REFUSED")
    wait_until(db.status, lambda s: s["state"] == "backing off", what="a back-off")
    assert "s3cret" not in db.cluster.log_since(db.cluster.test_began)
    assert charged(db) == []


def test_a_virtual_host(rabbit: RabbitmqSink, db: Database) -> None:
    connection = rabbit.broker.connect("a/b")
    channel = connection.channel()
    channel.queue_declare(f"{rabbit.place}-item.events")
    db.add_destination("d", f"{rabbit.url()}/a%2Fb", **rabbit.options())
    ids = enqueue_keys(db, ["a"], 1)
    db.wait_settled()
    _, properties, _ = channel.basic_get(f"{rabbit.place}-item.events", auto_ack=True)
    assert [properties.message_id] == ids
    connection.close()
    db.execute(f"ALTER SERVER d OPTIONS (SET url '{rabbit.url()}/missing')")
    enqueue_keys(db, ["a"], 1)
    wait_for_error(db, "530", "missing")


def test_permission_for_the_default_exchange(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    rabbit.create()
    map_user(db, user="carol", password=PASSWORD)
    rabbit.wait_for(enqueue_keys(db, ["a"], 2))


def test_an_exchange_that_may_not_be_written_to(rabbit: RabbitmqSink, db: Database) -> None:
    """Its events wait; another exchange goes on."""
    for name in ("open", "closed"):
        rabbit.channel.exchange_declare(f"{name}-{rabbit.place}", "fanout")
        rabbit.add_topic(name)
        rabbit.channel.queue_bind(f"{rabbit.place}-{name}", f"{name}-{rabbit.place}")
    rabbit.create(exchange=f"{{aggregate_type}}-{rabbit.place}", routing_key="x")
    map_user(db, user="alice", password=PASSWORD)
    with db.connection.transaction():
        enqueue_type(db, "closed", 2, 2)
        ids = enqueue_type(db, "open", 2, 2)
    rabbit.wait_for(ids)
    wait_for_error(db, "403", f"closed-{rabbit.place}")
    assert charged(db) == []


def test_a_routing_key_that_may_not_be_used(rabbit: RabbitmqSink, db: Database) -> None:
    """Permissions for topics. Events of other routing keys go on, though they share the channel."""
    rabbit.add_topic("q")
    rabbit.channel.queue_bind(f"{rabbit.place}-q", "amq.topic", f"#.{rabbit.place}")
    rabbit.create(exchange="amq.topic", routing_key=f"{{aggregate_type}}.{rabbit.place}")
    map_user(db, user="alice", password=PASSWORD)
    with db.connection.transaction():
        enqueue_type(db, "closed", 2, 2)
        ids = enqueue_type(db, "open", 2, 2)
    rabbit.wait_for(ids)
    wait_for_error(db, "403", f"closed.{rabbit.place}")
    ids += enqueue_type(db, "open", 2, 2, first=3)
    rabbit.wait_for(ids)
    assert charged(db) == []


# -------------------------------------------------------------------------------------------------
# Options and the check
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, error",
    [
        ("amqp://alice@h", "must not contain a user"),
        ("amqp://alice:secret@h", "must not contain a password"),
        ("amqp:///x", "names no host"),
        ("amqp://h/a/b", "not a virtual host"),
        ("amqp://h/?heartbeat=1", "must not contain parameters"),
    ],
)
def test_urls_that_are_refused(db: Database, url: str, error: str) -> None:
    with pytest.raises(psycopg.Error, match=error):
        db.execute(f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url '{url}')")


def findings(db: Database, topic: str = "item.events") -> dict[str, tuple[bool, str]]:
    rows = db.execute("SELECT subject, ok, detail FROM outbox.check_destination('d', %s)", (topic,))
    return {subject: (ok, detail) for subject, ok, detail in rows}


def test_the_check_looks_for_queues_and_exchanges(rabbit: RabbitmqSink, db: Database) -> None:
    rabbit.add_topic()
    rabbit.create()
    found = findings(db)
    assert found["login"][0] and "guest" in found["login"][1] and "RabbitMQ" in found["login"][1]
    assert found[f'queue "{rabbit.place}-item.events"'] == (True, "it exists, with 0 messages")
    ok, detail = findings(db, "other.events")[f'queue "{rabbit.place}-other.events"']
    assert not ok and "404" in detail
    db.execute(f"ALTER SERVER d OPTIONS (ADD exchange '{rabbit.place}')")
    ok, detail = findings(db)[f'exchange "{rabbit.place}"']
    assert not ok and "404" in detail
    rabbit.channel.exchange_declare(rabbit.place, "headers")
    assert findings(db)[f'exchange "{rabbit.place}"'] == (True, "it exists")
    map_user(db, user="alice", password="s3cret-wrong")
    ok, detail = findings(db)["login"]
    assert not ok and "403" in detail
    assert rabbit.messages() == []


def test_loopback_needs_to_be_allowed(make_cluster: MakeCluster, make_sink: MakeSink) -> None:
    cluster = make_cluster({"outbox.allowed_hosts": ""})
    db = create_database(cluster)
    rabbit = make_sink(RabbitmqSink, db)
    rabbit.add_topic()
    rabbit.create()
    db.enqueue("a")
    wait_for_error(db, "is not allowed")
