"""Features of the mqtt sink alone: QoS 2, subscribers, retained messages, logins, certificates, client ids, a
broker that is killed."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from database import Database
from long_run import all_in_long_run
from waiting import wait_until

from .conftest import MakeSink, running
from .fault_proxy import MqttProxy
from .mqtt_server import USERS, Mosquitto, mosquitto
from .mqtt_sink import MochiSink, MqttSink, Reader, properties_of
from .sink import Message
from .test_conformance import assert_arrived, enqueue_keys, enqueue_type, in_trouble


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture(params=all_in_long_run([MqttSink, MochiSink], short=[MqttSink]), ids=lambda kind: kind.name)
def mqtt(database: Database, make_sink: MakeSink, request: pytest.FixtureRequest) -> MqttSink:
    """The sink with each of the brokers."""
    sink = make_sink(request.param, database)
    assert isinstance(sink, MqttSink)
    return sink


@pytest.fixture
def at_mosquitto(database: Database, make_sink: MakeSink) -> MqttSink:
    sink = make_sink(MqttSink, database)
    assert isinstance(sink, MqttSink)
    return sink


def listener(sink: MqttSink) -> Mosquitto:
    assert isinstance(sink.broker, Mosquitto)
    return sink.broker


def add_destination(sink: MqttSink, name: str, mapping: dict[str, str], **options: str) -> None:
    """Adds a destination that uses another listener."""
    scheme = "mqtts" if name in ("tls", "mutual") else "mqtt"
    url = f"{scheme}://127.0.0.1:{listener(sink).ports[name]}"
    sink.database.add_destination("d", url, **{**sink.options(), "connect_timeout": "30s", **options})
    map_user(sink.database, mapping)


def map_user(db: Database, mapping: dict[str, str]) -> None:
    if mapping:
        pairs = ", ".join(f"{name} '{value}'" for name, value in mapping.items())
        db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def wait_for_failure(db: Database, words: str) -> None:
    wait_until(lambda: db.status()["last_error"] or "", lambda e: words in e, what=f"the error {words!r}")


def check(db: Database) -> dict[str, tuple[bool, str]]:
    rows = db.execute("SELECT * FROM outbox.check_destination('d')")
    return {subject: (ok, detail) for subject, ok, detail in rows}


def next_message(reader: Reader) -> Any:
    return reader.came.get(timeout=20)


class Rival:
    """Another client with the same client id, which connects again whenever it is disconnected."""

    def __init__(self, port: int, client_id: str) -> None:
        self.times = 0  # it has had it
        self._port = port
        name = client_id.encode()
        body = b"\0\4MQTT\5\2\0\0\0" + len(name).to_bytes(2, "big") + name
        self._hello = b"\x10" + bytes([len(body)]) + body
        self._ends = False
        self._thread = threading.Thread(target=self._fight)
        self._thread.start()

    def _fight(self) -> None:
        while not self._ends:
            with socket.create_connection(("127.0.0.1", self._port)) as connection:
                connection.sendall(self._hello)
                welcome = connection.recv(1000)
                self.times += bool(welcome)  # it may be ended at once
                connection.settimeout(0.1)
                self._wait_for_end(connection)

    def _wait_for_end(self, connection: socket.socket) -> None:
        while not self._ends:
            try:
                if not connection.recv(1000):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return

    def close(self) -> None:
        self._ends = True
        self._thread.join()


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_topics_may_contain_more_than_the_topic_of_the_event(mqtt: MqttSink, db: Database) -> None:
    mqtt.create(topic=f"{mqtt.place}/{{aggregate_type}}/{{aggregate_id}}/{{event_type}}")
    db.execute("SELECT outbox.enqueue('car', 'c 1/ä', 'moved', '{}')")
    assert next_message(mqtt.reader).topic == f"{mqtt.place}/car/c 1/ä/moved"
    wild = db.value("SELECT outbox.enqueue('car', '#', 'moved', '{}')")
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("#", None, "DEAD")], what="a dead letter")
    error = db.value("SELECT last_error FROM outbox.delivery WHERE event_id = %s", (wild,))
    assert "cannot be a topic of MQTT" in error


def test_a_message_expires(mqtt: MqttSink, db: Database) -> None:
    mqtt.create(message_expiry="500")
    enqueue_keys(db, ["a"], 1)
    assert 490 <= next_message(mqtt.reader).properties.MessageExpiryInterval <= 500


def test_the_last_event_of_a_topic_is_kept_for_later_subscribers(mqtt: MqttSink, db: Database) -> None:
    mqtt.create(retain="on", topic=f"{mqtt.place}/{{aggregate_id}}")
    mqtt.wait_for(enqueue_keys(db, ["a", "b"], 3))
    db.wait_settled()
    late = Reader(mqtt.broker.port, f"{mqtt.place}/+")
    try:
        kept = [next_message(late) for _ in range(2)]
        assert all(message.retain for message in kept)
        assert {properties_of(m)["aggregate_id"]: properties_of(m)["version"] for m in kept} == {"a": "3", "b": "3"}
    finally:
        late.close()
        for key in "ab":
            mqtt.reader.client.publish(f"{mqtt.place}/{key}", b"", retain=True)


def test_an_event_that_nobody_subscribes_to_can_be_a_failure(mqtt: MqttSink, db: Database) -> None:
    mqtt.create(topic=f"elsewhere-{mqtt.place}/{{topic}}")
    enqueue_type(db, "a", 2, 1)
    db.wait_published(2)  # by default it is not
    db.change_destination("d", no_subscribers="fail")
    ids = enqueue_type(db, "a", 2, 2, first=2)
    if isinstance(mqtt, MochiSink):  # it does not tell
        db.wait_published(6)
        return
    wait_for_failure(db, "no matching subscribers")
    assert in_trouble(db) == [] and db.status()["state"] == "backing off"
    reader = Reader(mqtt.broker.port, f"elsewhere-{mqtt.place}/#")
    try:
        arrived = {properties_of(next_message(reader))["event_id"] for _ in ids}
        assert arrived == set(ids)
        db.wait_settled()
    finally:
        reader.close()


# -------------------------------------------------------------------------------------------------
# QoS 2
# -------------------------------------------------------------------------------------------------


def test_with_qos_2_a_lost_connection_repeats_nothing(mqtt: MqttSink, db: Database) -> None:
    mqtt.create(qos="2", request_timeout="1h", connect_timeout="1min")
    ids = enqueue_keys(db, [f"k{n}" for n in range(20)], 1)
    mqtt.wait_for(ids)
    for lose in (mqtt.proxy.lose_answers, mqtt.proxy.lose_requests, mqtt.proxy.lose_answers):
        lose(2)
        ids += enqueue_keys(db, [f"k{n}" for n in range(20)], 3)
        mqtt.wait_for(ids)
        db.wait_settled()
    counts = Counter(message.event_id for message in mqtt.messages())
    assert counts == dict.fromkeys(ids, 1)
    assert in_trouble(db) == []


# -------------------------------------------------------------------------------------------------
# Logins and certificates
# -------------------------------------------------------------------------------------------------


def test_it_logs_in_with_user_and_password(at_mosquitto: MqttSink, db: Database) -> None:
    sink = at_mosquitto
    add_destination(sink, "login", {"user": "alice", "password": "s3cret-wrong"})
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "the broker refuses the connection: 0x87 (not authorized)")
    assert in_trouble(db) == []
    assert check(db)["login"] == (False, "the broker refuses the connection: 0x87 (not authorized)")
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password '{USERS['alice']}')")
    assert_arrived(sink, ids)
    assert check(db)["login"] == (True, 'as "alice"')
    db.execute("DROP USER MAPPING FOR CURRENT_USER SERVER d")
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "0x87")


def test_a_user_in_the_url_is_refused(at_mosquitto: MqttSink, db: Database) -> None:
    with pytest.raises(Exception, match="URL must not contain a user"):
        db.add_destination("d", "mqtt://alice@127.0.0.1")


def test_a_topic_that_may_not_be_published_to_stops_no_other(mqtt: MqttSink, db: Database) -> None:
    topic = "{topic}"
    if isinstance(mqtt, MochiSink):
        db.add_destination("d", f"mqtt://127.0.0.1:{mqtt.broker.port}", topic=topic)
    else:
        db.add_destination("d", f"mqtt://127.0.0.1:{listener(mqtt).ports['login']}", topic=topic)
        map_user(db, {"user": "alice", "password": USERS["alice"]})
    reader = Reader(mqtt.broker.port, f"{mqtt.place}/#")
    try:
        for n in range(3):
            for name in ("forbidden", mqtt.place):
                db.execute("SELECT outbox.enqueue('x', %s, 'changed', '{}', topic => %s)", (f"{name}-{n}", f"{name}/x"))
        arrived = {properties_of(next_message(reader))["aggregate_id"] for _ in range(3)}
        assert arrived == {f"{mqtt.place}-{n}" for n in range(3)}
        status = wait_until(db.status, lambda s: s["lanes_down"] == 1, what="the forbidden topic to be down")
        assert 'topic "forbidden/x": 0x87 (not authorized)' in status["last_error"]
        for row in db.execute("SELECT attempts FROM outbox.delivery"):
            assert row == (0,)
    finally:
        reader.close()


def test_tls_with_an_authority_of_our_own(at_mosquitto: MqttSink, db: Database) -> None:
    sink = at_mosquitto
    add_destination(sink, "tls", {})
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "certificate")
    assert not check(db)["tls"][0]
    db.change_destination("d", ca_file=listener(sink).certificates.authority)
    assert_arrived(sink, ids)
    findings = check(db)
    assert all(ok for ok, _ in findings.values()), findings
    assert findings["tls"] == (True, "the certificate is valid for 127.0.0.1")


def test_the_certificate_must_be_the_hosts(at_mosquitto: MqttSink, db: Database) -> None:
    sink = at_mosquitto
    url = f"mqtts://localhost:{listener(sink).ports['tls']}"
    db.add_destination("d", url, **sink.options(), ca_file=listener(sink).certificates.authority)
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "localhost")
    assert not check(db)["tls"][0]


def test_a_certificate_of_the_client(at_mosquitto: MqttSink, db: Database) -> None:
    sink = at_mosquitto
    files = listener(sink).certificates
    add_destination(sink, "mutual", {}, ca_file=files.authority)
    ids = enqueue_keys(db, ["a"], 2)
    wait_until(lambda: db.status()["state"], lambda s: s == "backing off", what="a failure")
    mapping = {"certificate": Path(files.certificate).read_text(), "private_key": Path(files.key).read_text()}
    map_user(db, mapping)
    assert_arrived(sink, ids)
    findings = check(db)
    assert all(ok for ok, _ in findings.values()), findings


def test_a_port_that_speaks_no_tls(at_mosquitto: MqttSink, db: Database) -> None:
    db.add_destination("d", f"mqtts://127.0.0.1:{at_mosquitto.broker.port}")
    enqueue_keys(db, ["a"], 1)
    wait_until(lambda: db.status()["state"], lambda s: s == "backing off", what="a failure")
    findings = check(db)
    assert findings["connection"][0] and not findings["tls"][0]


# -------------------------------------------------------------------------------------------------
# Connections
# -------------------------------------------------------------------------------------------------


def test_two_clients_with_one_client_id_are_reported(mqtt: MqttSink, db: Database) -> None:
    """They end each other's connections. The sink says so, and does not go on for ever."""
    name = f"shared-{mqtt.place}"
    mqtt.create(client_id=name)
    ids = enqueue_keys(db, ["a"], 1)
    mqtt.wait_for(ids)
    rival = Rival(mqtt.broker.port, name)
    try:

        def error_after_another_event() -> str:
            ids.extend(enqueue_keys(db, [f"k{len(ids)}"], 1))
            return db.status()["last_error"] or ""

        wait_until(error_after_another_event, lambda e: f'the client id "{name}"' in e, what="an error that says so")
        wait_until(lambda: rival.times, lambda times: times > 1, what="the rival to be ended")
    finally:
        rival.close()
    mqtt.wait_for(ids, timeout=180)
    db.wait_settled()
    assert in_trouble(db) == []


def test_a_check_disturbs_no_relay(mqtt: MqttSink, db: Database) -> None:
    mqtt.create()
    mqtt.wait_for(enqueue_keys(db, ["a"], 1))
    before = db.status()
    findings = check(db)
    assert all(ok for ok, _ in findings.values()), findings
    assert findings["limits"][1].startswith("QoS up to 2, retained messages, ")
    mqtt.wait_for(enqueue_keys(db, ["b"], 1))
    after = db.status()
    assert after["last_error"] == before["last_error"]


class Pings(MqttProxy):
    """Counts pings, and connections."""

    pings = connections = 0

    def _connected(self, *sockets: Any) -> None:
        self.connections += 1
        super()._connected(*sockets)

    def _loses_request(self, data: bytes) -> bool:
        self.pings += data[0] >> 4 == 12
        return super()._loses_request(data)


def test_an_idle_connection_is_kept_alive(mqtt: MqttSink, db: Database) -> None:
    proxy = Pings(mqtt.broker.port)
    try:
        db.add_destination("d", f"mqtt://127.0.0.1:{proxy.port}", **mqtt.options(), keep_alive="1")
        mqtt.wait_for(enqueue_keys(db, ["a"], 1))
        wait_until(lambda: proxy.pings, lambda seen: seen >= 3, what="three pings")
        mqtt.wait_for(enqueue_keys(db, ["b"], 1))
        assert proxy.connections == 1
    finally:
        proxy.close()


@pytest.fixture
def own_broker() -> Iterator[Mosquitto]:
    """That may be killed. It keeps sessions of subscribers, if it can."""
    yield from running(lambda: mosquitto("max_inflight_messages 100"))


@pytest.mark.parametrize("qos", ["1", "2"])
def test_unconfirmed_messages_are_sent_again_after_a_broker_is_killed(
    own_broker: Mosquitto, db: Database, qos: str
) -> None:
    """Without a disk it loses its sessions, and messages that it has not passed on."""
    sink = MqttSink(db, own_broker)
    try:
        sink.create(qos=qos, connect_timeout="1s")
        ids = enqueue_keys(db, [f"k{n}" for n in range(10)], 2)
        sink.wait_for(ids)
        gate = sink.proxy.hold_answers()
        more = enqueue_keys(db, [f"k{n}" for n in range(10)], 3)
        wait_until(lambda: gate.holding, what="messages in flight")
        sink.reader.again()
        own_broker.kill()
        sink.proxy.refuse_connections()  # its answers are lost as well
        sink.proxy.forget_rules()
        gate.open()
        own_broker.start()
        sink.reader.wait()
        sink.proxy.listen()
        messages: list[Message] = sink.wait_for(ids + more, timeout=180)
        db.wait_settled()
        assert {message.event_id for message in messages} == set(ids + more)
        assert in_trouble(db) == []
    finally:
        sink.close()


def test_a_broker_that_is_shut_down(own_broker: Mosquitto, db: Database) -> None:
    sink = MqttSink(db, own_broker)
    try:
        sink.create(connect_timeout="1s")
        ids = enqueue_keys(db, ["a"], 2)
        sink.wait_for(ids)
        sink.reader.again()
        own_broker.stop()
        more = enqueue_keys(db, ["a", "b"], 2)
        wait_until(lambda: db.status()["state"], lambda s: s == "backing off", what="a back-off")
        sink.proxy.refuse_connections()  # so that nothing is published before there is a reader
        own_broker.start()
        sink.reader.wait()
        sink.proxy.listen()
        sink.wait_for(ids + more, timeout=180)
        db.wait_settled()
        assert in_trouble(db) == []
    finally:
        sink.close()


@pytest.fixture
def poor_broker() -> Iterator[Mosquitto]:
    yield from running(lambda: mosquitto("retain_available false\nmax_qos 1\nmessage_size_limit 1000"))


def test_limits_of_the_broker_are_respected(poor_broker: Mosquitto, db: Database) -> None:
    sink = MqttSink(db, poor_broker)
    try:
        sink.create(retain="on")
        assert check(db)["login"][0]
        assert check(db)["limits"] == (False, "the broker does not keep messages (retain)")
        db.change_destination("d", retain="off", qos="2")
        ids = enqueue_keys(db, ["a"], 1)
        wait_for_failure(db, "the broker takes QoS 1 at most (qos)")
        assert in_trouble(db) == []
        db.change_destination("d", qos=None)
        sink.wait_for(ids)
        large = db.value("SELECT outbox.enqueue('item', 'b', 'changed', to_jsonb(repeat('x', 2000)))")
        wait_until(lambda: in_trouble(db), what="the large one in trouble")
        sink.wait_for(enqueue_keys(db, ["a"], 1))
        assert large not in {message.event_id for message in sink.messages()}
    finally:
        sink.close()
