"""Features of the nats sink alone: subjects, limits of streams, logins, certificates, a server that is killed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates, make_certificates
from cluster import free_port
from database import Database, NewDatabase
from waiting import wait_until

from .conftest import MakeSink
from .nats_server import NatsServer, current, distributions, nats
from .nats_sink import CurrentNatsSink, NatsSink
from .servers import NotInstalled
from .test_conformance import enqueue_keys, enqueue_type, in_trouble


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture(params=[NatsSink, CurrentNatsSink], ids=["distribution", "current"])
def bus(database: Database, make_sink: MakeSink, request: pytest.FixtureRequest) -> NatsSink:
    sink = make_sink(request.param, database)
    assert isinstance(sink, NatsSink)
    return sink


# Starts a server of the test's own, with this in its configuration.
StartServer = Callable[..., NatsServer]


@pytest.fixture(params=[distributions, current], ids=["distribution", "current"])
def start_server(request: pytest.FixtureRequest) -> Iterator[StartServer]:
    with ExitStack() as running:

        def start(more: str = "") -> NatsServer:
            try:
                return running.enter_context(nats(request.param(), more))
            except NotInstalled as error:
                pytest.skip(f"NOT TESTED: {error}; scripts/test.sh installs what can be had")

        yield start


def add_destination(db: Database, server: NatsServer, mapping: dict[str, str], *, scheme: str = "nats",
                    **options: str) -> None:  # fmt: skip
    db.add_destination("d", f"{scheme}://127.0.0.1:{server.port}", **options)
    if mapping:
        map_user(db, mapping)


def map_user(db: Database, mapping: dict[str, str]) -> None:
    pairs = ", ".join(f"{name} '{value}'" for name, value in mapping.items())
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def wait_for_failure(db: Database, words: str) -> None:
    wait_until(lambda: db.status()["last_error"] or "", lambda seen: words in seen, what=f"an error: {words}")


def dead_letter(db: Database) -> str:
    rows = wait_until(
        lambda: db.execute("SELECT last_error FROM outbox.delivery WHERE state = 'DEAD'"), what="a dead letter"
    )
    return str(rows[0][0])


def enqueue_one(db: Database, **columns: Any) -> str:
    arguments = {"aggregate_type": "item", "aggregate_id": "a", "event_type": "changed", "payload": "{}", **columns}
    names = ", ".join(f"{name} => %s" for name in arguments)
    return str(db.value(f"SELECT outbox.enqueue({names})", tuple(arguments.values())))


def check(db: Database, topic: str | None = None) -> dict[str, tuple[bool, str]]:
    rows = db.execute("SELECT * FROM outbox.check_destination('d', %s)", (topic,))
    return {subject: (ok, detail) for subject, ok, detail in rows}


# -------------------------------------------------------------------------------------------------
# Subjects and headers
# -------------------------------------------------------------------------------------------------


def test_keys_in_subjects_are_encoded(bus: NatsSink, db: Database) -> None:
    bus.add_topic(subjects=[f"{bus.place}.>"])
    bus.create(subject=f"{bus.place}.{{topic}}.{{aggregate_id}}")
    keys = {"plain-1": "plain-1", "a.b": "a%2Eb", "a b": "a%20b", "*": "%2A", ">": "%3E", "1%2": "1%252",
            "Ω": "Ω", "\t": "%09", "x\r\nPUB y 0": "x%0D%0APUB%20y%200"}  # fmt: skip
    for key in keys:
        enqueue_one(db, aggregate_id=key)
    db.wait_settled()
    assert in_trouble(db) == []
    expected = [f"{bus.place}.item.events.{part}" for part in keys.values()]
    assert sorted(record.subject for record in bus.records()) == sorted(expected)


def test_what_cannot_be_a_subject_is_a_dead_letter(bus: NatsSink, db: Database) -> None:
    bus.add_topic(subjects=[f"{bus.place}.>"])
    bus.create(subject=f"{bus.place}.{{topic}}.{{ordering_key}}")
    enqueue_one(db, ordering_key="")
    assert "a part of it is empty" in dead_letter(db)
    bus.wait_for([enqueue_one(db, ordering_key="k")])


@pytest.mark.parametrize("topic", ["$JS.API.STREAM.DELETE.{}", "$SYS.REQ.SERVER.PING", "_INBOX.x"])
def test_producers_cannot_reach_what_nats_reserves(bus: NatsSink, db: Database, topic: str) -> None:
    bus.add_topic()
    bus.create(subject="{topic}")
    enqueue_one(db, topic=topic.format(bus.stream_of()))
    assert "NATS reserves it" in dead_letter(db)
    assert bus.records() == []  # the stream is still there


def test_a_bucket_takes_events(bus: NatsSink, db: Database) -> None:
    bucket = f"b{bus.place}"
    bus.client.add_stream(f"KV_{bucket}", [f"$KV.{bucket}.>"], max_msgs_per_subject=1)
    bus.create(subject=f"$KV.{bucket}.{{aggregate_id}}")
    db.wait_settled()
    ids = enqueue_keys(db, ["a"], 3)
    db.wait_published(len(ids))
    (last,) = bus.client.messages(f"KV_{bucket}")
    assert (last.subject, last.headers["version"]) == (f"$KV.{bucket}.a", "3")


def test_producers_cannot_give_commands_to_the_server(bus: NatsSink, db: Database) -> None:
    """One of them would remove all other messages of the stream."""
    bus.add_topic(allow_rollup_hdrs=True)
    for format in ("attributes", "binary", "structured"):
        bus.create(format=format, start="end")
        ids = [enqueue_one(db, headers=json.dumps({"Nats-Rollup": "all", "nats-rollup": "all", "tenant": "t"}))
               for _ in range(2)]  # fmt: skip
        for message in bus.wait_for(ids):
            if message.event_id in ids:
                assert message.headers == {"tenant": "t"}
        db.execute("DROP SERVER d CASCADE")
    assert len(bus.client.messages(bus.stream_of())) == 6


# -------------------------------------------------------------------------------------------------
# Duplicates and guards
# -------------------------------------------------------------------------------------------------


def test_a_replay_within_the_duplicate_window_adds_nothing(bus: NatsSink, db: Database) -> None:
    bus.add_topic()
    bus.create()
    ids = enqueue_keys(db, ["a", "b"], 3)
    bus.wait_for(ids)
    db.wait_settled()
    db.execute("SELECT outbox.replay('d')")
    db.wait_published(2 * len(ids))
    assert len(bus.client.messages(bus.stream_of())) == len(ids)


def test_receipts_say_where_the_message_is(bus: NatsSink, db: Database) -> None:
    bus.add_topic()
    bus.create(receipts="on")
    bus.wait_for(enqueue_keys(db, ["a"], 2))
    receipts = wait_until(
        lambda: db.execute("SELECT message_id FROM outbox.receipt ORDER BY 1"), lambda rows: len(rows) == 2,
        what="two receipts",
    )  # fmt: skip
    assert receipts == [(f"{bus.stream_of()}:1",), (f"{bus.stream_of()}:2",)]


def test_an_expected_sequence_guards_the_subject(bus: NatsSink, db: Database) -> None:
    bus.add_topic()
    bus.create(expected_sequence_header="expected", retry_base="1h", retry_max="1h")

    def enqueue(key: str, expected: str) -> str:
        return enqueue_one(db, aggregate_id=key, headers=json.dumps({"expected": expected}))

    ids = [enqueue("a", "0")]
    bus.wait_for(ids)
    ids.append(enqueue("a", "1"))
    bus.wait_for(ids)
    enqueue("b", "1")  # somebody else has written since
    assert "wrong last sequence: 2" in dead_letter(db)
    enqueue("c", "7")  # not yet
    wait_until(lambda: [state for _, _, state in in_trouble(db)], lambda seen: "RETRY" in seen, what="a retry")
    enqueue("d", "x")
    wait_until(lambda: db.value("SELECT count(*) FROM outbox.delivery WHERE state = 'DEAD'"),
               lambda count: count == 2, what="another dead letter")  # fmt: skip
    ids.append(enqueue_one(db, aggregate_id="e"))  # it demands nothing
    bus.wait_for(ids)


# -------------------------------------------------------------------------------------------------
# Streams that refuse
# -------------------------------------------------------------------------------------------------


def test_a_full_stream_does_not_stop_others(bus: NatsSink, db: Database) -> None:
    from nats.js.api import DiscardPolicy, StreamConfig

    bus.add_topic("a.events", max_msgs=3, discard=DiscardPolicy.NEW)
    bus.add_topic("b.events")
    bus.create()
    enqueue_type(db, "a", 20, 1)
    wait_until(lambda: len(bus.messages()), lambda count: count == 3, what="a full stream")
    bus.wait_for(enqueue_type(db, "b", 3, 2))
    enqueue_type(db, "a", 20, 1, first=2)
    wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a lane to be down")
    wait_for_failure(db, "maximum messages exceeded")
    assert db.value("SELECT count(*) FROM outbox.delivery WHERE attempts > 0 OR state = 'DEAD'") == 0
    from_now_on = StreamConfig(name=bus.stream_of("a.events"), subjects=[f"{bus.place}.a.events"], max_msgs=100,
                               discard=DiscardPolicy.NEW)  # fmt: skip
    bus.client.run(bus.client.jetstream.update_stream(from_now_on))
    wait_until(
        lambda: len({m.event_id for m in bus.messages() if m.aggregate_type == "a"}), lambda count: count == 40,
        what="the others",
    )  # fmt: skip
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")


def test_a_full_subject_holds_back_its_key_only(bus: NatsSink, db: Database) -> None:
    from nats.js.api import DiscardPolicy

    bus.add_topic(subjects=[f"{bus.place}.>"], max_msgs_per_subject=1, discard=DiscardPolicy.NEW,
                  discard_new_per_subject=True)  # fmt: skip
    bus.create(subject=f"{bus.place}.{{topic}}.{{aggregate_id}}", retry_base="1h", retry_max="1h")
    ids = enqueue_keys(db, ["a"], 1)
    bus.wait_for(ids)
    enqueue_keys(db, ["a"], 1)
    assert wait_until(lambda: in_trouble(db), what="an event in trouble") == [("a", 1, "RETRY")]
    assert "per subject" in db.value("SELECT last_error FROM outbox.delivery")
    bus.wait_for(ids + enqueue_keys(db, ["b", "c"], 1))
    assert db.status()["lanes_down"] == 0


def test_what_is_larger_than_the_stream_allows_is_a_dead_letter(bus: NatsSink, db: Database) -> None:
    bus.add_topic(max_msg_size=2000)
    bus.create()
    enqueue_one(db, aggregate_id="large", payload=json.dumps("x" * 3000))
    assert "exceeds maximum" in dead_letter(db) or "too large" in dead_letter(db)
    bus.wait_for(enqueue_keys(db, ["a"], 2))


def test_a_stream_that_acknowledges_nothing_confirms_nothing(bus: NatsSink, db: Database) -> None:
    bus.add_topic(no_ack=True)
    bus.create(request_timeout="500ms")
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "no answer within 500ms")
    assert db.published() == 0
    ok, detail = check(db, "item.events")[f'subject "{bus.place}.item.events"']
    assert not ok and "no_ack" in detail


def test_limits_of_a_stream_drop_acknowledged_messages(bus: NatsSink, db: Database) -> None:
    """The limits of a stream are those of its owner: the traps in the docs."""
    from nats.js.api import RetentionPolicy

    bus.add_topic("a.events", max_msgs=3)
    bus.add_topic("b.events", retention=RetentionPolicy.INTEREST)
    bus.create()
    ids = enqueue_type(db, "a", 5, 2) + enqueue_type(db, "b", 5, 2)
    db.wait_published(len(ids))
    assert len(bus.client.messages(bus.stream_of("a.events"))) == 3
    assert bus.client.messages(bus.stream_of("b.events")) == []


def test_another_program_that_answers_confirms_nothing(bus: NatsSink, db: Database) -> None:
    async def answer(message: Any) -> None:
        await message.respond(b"thanks")

    bus.client.run(bus.client.connection.subscribe(f"{bus.place}.>", cb=answer))
    bus.client.run(bus.client.connection.flush())
    bus.create(retry_base="1h", retry_max="1h")
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "the answer does not come from a stream")
    assert db.published() == 0


def test_events_for_another_stream_than_the_option_names_fail(bus: NatsSink, db: Database) -> None:
    bus.add_topic()
    bus.create(stream="another")
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "expected stream does not match")
    assert in_trouble(db) == []
    ok, detail = check(db, "item.events")[f'subject "{bus.place}.item.events"']
    assert not ok and '"another"' in detail
    db.execute(f"ALTER SERVER d OPTIONS (SET stream '{bus.stream_of()}')")
    db.wait_settled()
    assert len(bus.messages()) == 1


# -------------------------------------------------------------------------------------------------
# Servers
# -------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_in_the_middle(start_server: StartServer, db: Database) -> None:
    """Nothing is lost or there twice, and each key is in order."""
    server = start_server()
    client = server.client()
    client.add_stream("items", ["item.events"])
    add_destination(db, server, {}, connect_timeout="2s")
    keys = [f"k{n}" for n in range(20)]
    ids = []
    for round in range(3):
        ids += [id for key in keys for id in db.enqueue(key, 20, first=1 + 40 * round)]
        wait_until(lambda: db.status()["in_flight"] > 0 or db.published() == len(ids), what="some on their way")
        server.kill()
        ids += [id for key in keys for id in db.enqueue(key, 20, first=21 + 40 * round)]
        wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
        server.start()
        db.wait_settled(timeout=120)
    assert in_trouble(db) == []
    records = wait_until(lambda: client.messages("items"), what="the messages", ignoring=(Exception,))
    assert sorted(record.headers["event_id"] for record in records) == sorted(ids)
    for key in keys:
        versions = [int(r.headers["version"]) for r in records if r.headers["aggregate_id"] == key]
        assert versions == sorted(versions)


def test_another_server_of_the_list(start_server: StartServer, db: Database) -> None:
    server = start_server()
    server.client().add_stream("items", ["item.events"])
    nobody = free_port()
    db.add_destination("d", f"nats://127.0.0.1:{nobody},127.0.0.1:{server.port}")
    ids = enqueue_keys(db, ["a"], 3)
    db.wait_published(len(ids))
    assert in_trouble(db) == []


def test_a_server_without_jetstream(start_server: StartServer, db: Database) -> None:
    server = start_server()
    server.kill()
    server.configuration.write_text(f'listen: "127.0.0.1:{server.port}"\n')
    server.start()
    add_destination(db, server, {})
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "no stream takes it")
    ok, detail = check(db, "item.events")["jetstream"]
    assert not ok and "not enabled" in detail


# -------------------------------------------------------------------------------------------------
# Logins
# -------------------------------------------------------------------------------------------------


def expect_login(db: Database, right: dict[str, str], wrong: dict[str, str]) -> None:
    """The destination has no user mapping yet."""
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "Authorization Violation")
    map_user(db, wrong)
    wait_for_failure(db, "Authorization Violation")
    ok, detail = check(db, "item.events")["login"]
    assert not ok and "Authorization Violation" in detail
    assert in_trouble(db) == []
    changes = ", ".join([f"DROP {name}" for name in wrong] + [f"ADD {name} '{value}'" for name, value in right.items()])
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({changes})")
    db.wait_published(len(ids))
    assert all(ok for ok, _ in check(db, "item.events").values())
    seen = db.cluster.log_since(db.cluster.test_began)
    for name, value in [*right.items(), *wrong.items()]:
        assert name == "user" or value not in seen


def test_it_logs_in_with_user_and_password(start_server: StartServer, db: Database) -> None:
    server = start_server('authorization { user: "outbox", password: "s3cret-+of/outbox" }')
    client = server.client(user="outbox", password="s3cret-+of/outbox")
    client.add_stream("items", ["item.events"])
    add_destination(db, server, {})
    expect_login(db, {"user": "outbox", "password": "s3cret-+of/outbox"}, {"user": "outbox", "password": "no s3cret-"})


def test_it_logs_in_with_a_token(start_server: StartServer, db: Database) -> None:
    server = start_server('authorization { token: "t0ken+of/outbox" }')
    server.client(token="t0ken+of/outbox").add_stream("items", ["item.events"])
    add_destination(db, server, {})
    expect_login(db, {"token": "t0ken+of/outbox"}, {"token": "another t0ken"})


def test_it_logs_in_with_an_nkey(start_server: StartServer, db: Database) -> None:
    from .nats_keys import Key

    key = Key("user")
    server = start_server(
        f'authorization {{ users: [ {{ nkey: {key.public} }}, {{ user: "u", password: "s3cret-p" }} ] }}'
    )
    server.client(user="u", password="s3cret-p").add_stream("items", ["item.events"])
    add_destination(db, server, {})
    expect_login(db, {"nkey_seed": key.seed}, {"nkey_seed": Key("user").seed})


def test_it_logs_in_with_credentials(start_server: StartServer, db: Database) -> None:
    from .nats_keys import Operator

    operator = Operator()
    server = start_server(operator.configuration)
    server.client(user_jwt_cb=operator.user_jwt.encode, signature_cb=operator.user.signature).add_stream(
        "items", ["item.events"]
    )
    add_destination(db, server, {})
    expect_login(db, {"credentials": operator.credentials}, {"credentials": Operator().credentials})
    assert operator.user.seed not in db.cluster.log_since(db.cluster.test_began)


def test_ways_to_log_in_exclude_each_other(bus: NatsSink, db: Database) -> None:
    bus.create()
    map_user(db, {"user": "u", "password": "s3cret-p", "token": "t"})
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "exclude each other")
    ok, detail = check(db, "item.events")["login"]
    assert not ok and "exclude each other" in detail


def test_a_denied_subject_does_not_stop_others(start_server: StartServer, db: Database) -> None:
    """The error has no reply: the subject tells which events it ends. Others go on."""
    users = """authorization {{ users: [
        {{ user: "admin", password: "s3cret-p" }},
        {{ user: "outbox", password: "s3cret-p", permissions: {{ publish: {publish}, subscribe: "_INBOX_outbox.>" }} }} ] }}"""
    server = start_server(users.format(publish='"a.*"'))
    client = server.client(user="admin", password="s3cret-p")
    client.add_stream("items", ["a.events", "b.events"])
    add_destination(db, server, {"user": "outbox", "password": "s3cret-p"}, request_timeout="1h")
    enqueue_type(db, "a", 1, 1)
    wait_for_failure(db, "Permissions Violation for Subscription")
    db.execute("ALTER SERVER d OPTIONS (ADD inbox_prefix '_INBOX_outbox')")
    denied = enqueue_type(db, "b", 2, 2)
    ids = enqueue_type(db, "a", 5, 3)
    wait_until(lambda: len(client.messages("items")), lambda count: count == len(ids) + 1, what="what may be published")
    wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a lane to be down")
    wait_for_failure(db, 'subject "b.events": the user may not publish to it')
    assert db.value("SELECT count(*) FROM outbox.delivery WHERE attempts > 0 OR state = 'DEAD'") == 0
    found = check(db, "a.events")
    assert "may not ask" in found["jetstream"][1]
    server.configure(users.format(publish='["a.*", "b.*"]'))
    server.reload()
    db.wait_settled(timeout=120)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [], what="nothing to be in trouble")
    assert len(client.messages("items")) == len(ids) + 1 + len(denied)


# -------------------------------------------------------------------------------------------------
# TLS
# -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    """Makes certificates in a directory that the server may read."""
    with tempfile.TemporaryDirectory(prefix="outbox-certificates-") as directory:
        Path(directory).chmod(0o755)
        yield make_certificates(Path(directory))


def readable(path: str) -> str:
    return Path(path).read_text()


def tls(certificates: Certificates, more: str = "") -> str:
    return (f'tls {{ cert_file: "{certificates.certificate}", key_file: "{certificates.key}", '
            f'ca_file: "{certificates.authority}"\n {more} }}')  # fmt: skip


def add_items(server: NatsServer, certificates: Certificates, **options: Any) -> None:
    import ssl

    context = ssl.create_default_context(cafile=certificates.authority)
    context.load_cert_chain(certificates.certificate, certificates.key)
    server.client(tls=context, **options).add_stream("items", ["item.events"])


def test_it_connects_over_tls(start_server: StartServer, db: Database, certificates: Certificates) -> None:
    server = start_server(tls(certificates))
    add_items(server, certificates)
    add_destination(db, server, {})
    ids = enqueue_keys(db, ["a"], 3)
    wait_for_failure(db, "is the URL meant to begin with tls://?")
    db.execute(f"ALTER SERVER d OPTIONS (SET url 'tls://127.0.0.1:{server.port}')")
    wait_for_failure(db, "the certificate is not valid for 127.0.0.1")
    ok, detail = check(db, "item.events")["tls"]
    assert not ok and "not valid" in detail
    db.execute(f"ALTER SERVER d OPTIONS (ADD ca_file '{certificates.authority}')")
    db.wait_published(len(ids))
    found = check(db, "item.events")
    assert all(ok for ok, _ in found.values()), found
    assert found["tls"] == (True, "the certificate is valid for 127.0.0.1")
    db.execute("SELECT outbox.enqueue('item', n::text, 'changed', to_jsonb(repeat('x', 100000))) "
               "FROM generate_series(1, 200) AS n")  # fmt: skip
    db.wait_published(len(ids) + 200)


def test_a_certificate_for_another_host(start_server: StartServer, db: Database, certificates: Certificates) -> None:
    server = start_server(tls(certificates))
    db.add_destination("d", f"tls://localhost:{server.port}", ca_file=certificates.authority)
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "the certificate is not valid for localhost")


def test_it_presents_a_client_certificate(start_server: StartServer, db: Database, certificates: Certificates) -> None:
    server = start_server(tls(certificates, "verify: true"))
    add_items(server, certificates)
    add_destination(db, server, {}, scheme="tls", ca_file=certificates.authority)
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "certificate")
    map_user(db, {"certificate": readable(certificates.certificate), "private_key": readable(certificates.key)})
    db.wait_published(len(ids))
    secret = readable(certificates.key).splitlines()[1]
    assert secret not in db.cluster.log_since(db.cluster.test_began)


def test_a_server_without_tls(bus: NatsSink, db: Database) -> None:
    db.add_destination("d", f"tls://127.0.0.1:{bus.broker.port}")
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "offers no TLS")
    db.execute("ALTER SERVER d OPTIONS (ADD tls_handshake_first 'on')")
    wait_for_failure(db, "is the URL meant to begin with nats://?")


def test_tls_that_begins_at_once(db: Database, certificates: Certificates) -> None:
    """Servers before 2.10 cannot."""
    try:
        program = current()
    except NotInstalled as error:
        pytest.skip(f"NOT TESTED: {error}; scripts/test.sh installs what can be had")
    with nats(program, tls(certificates, "handshake_first: true")) as server:
        add_items(server, certificates, tls_handshake_first=True)
        add_destination(db, server, {}, scheme="tls", ca_file=certificates.authority, connect_timeout="1s")
        ids = enqueue_keys(db, ["a"], 3)
        wait_for_failure(db, "tls_handshake_first")
        db.execute("ALTER SERVER d OPTIONS (ADD tls_handshake_first 'on', SET connect_timeout '30s')")
        db.wait_published(len(ids))
        assert all(ok for ok, _ in check(db, "item.events").values())


# -------------------------------------------------------------------------------------------------
# The check
# -------------------------------------------------------------------------------------------------


def test_the_check_says_what_an_acknowledgement_is_worth(bus: NatsSink, db: Database) -> None:
    from nats.js.api import StorageType

    bus.add_topic()
    bus.add_topic("memory.events", storage=StorageType.MEMORY)
    bus.create()
    found = check(db, "item.events")
    assert list(found) == ["options", "address", "connection", "login", "jetstream",
                           f'subject "{bus.place}.item.events"']  # fmt: skip
    assert all(ok for ok, _ in found.values()), found
    detail = found[f'subject "{bus.place}.item.events"'][1]
    assert "1 replica, on disk" in detail and "sync_interval" in detail
    detail = check(db, "memory.events")[f'subject "{bus.place}.memory.events"'][1]
    assert "in memory" in detail
    ok, detail = check(db, "missing.events")[f'subject "{bus.place}.missing.events"']
    assert not ok and "no stream takes it" in detail
    assert len(bus.client.messages(bus.stream_of())) == 0


def test_the_check_shows_subjects_with_keys(bus: NatsSink, db: Database) -> None:
    bus.add_topic(subjects=[f"{bus.place}.>"])
    bus.create(subject=f"{bus.place}.{{topic}}.{{aggregate_id}}")
    bus.wait_for(enqueue_keys(db, ["a"], 1))
    found = check(db)
    ok, detail = found[f'subject "{bus.place}.item.events.*"']
    assert ok and bus.stream_of() in detail


def test_it_does_not_connect_to_a_host_that_is_not_allowed(new_database: NewDatabase, make_sink: MakeSink) -> None:
    db = new_database({"outbox.allowed_hosts": "192.0.2.1"})
    sink = make_sink(NatsSink, db)
    sink.create()
    enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, 'address 127.0.0.1 of host "127.0.0.1" is not allowed')
