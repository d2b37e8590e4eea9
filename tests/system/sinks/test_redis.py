"""Features of the redis sink alone: ids, several producers, limits, logins, TLS, replicas, clusters, Sentinel."""

from __future__ import annotations

import itertools
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates, make_certificates
from cluster import free_port
from database import Database
from waiting import wait_until

from . import redis_server
from .conftest import MakeSink
from .redis_server import RedisServer
from .redis_sink import RedisSink
from .servers import NotInstalled
from .test_check import check
from .test_conformance import assert_in_order, charged, enqueue_keys, enqueue_type, in_trouble


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def redis(database: Database, make_sink: MakeSink) -> RedisSink:
    sink = make_sink(RedisSink, database)
    assert isinstance(sink, RedisSink)
    return sink


# A server of the test's own, with these settings.
Start = Callable[..., RedisServer]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**settings: Any) -> RedisServer:
            try:
                return stack.enter_context(redis_server.redis(**settings))
            except NotInstalled as error:
                pytest.skip(f"NOT TESTED: {error}")

        yield start


def own_sink(database: Database, server: RedisServer) -> RedisSink:
    """The sink with a server of the test's own."""
    return RedisSink(database, server)


def wait_for_error(db: Database, text: str) -> None:
    wait_until(lambda: db.status()["last_error"] or "", lambda error: text in error, what=f"an error with {text}")


def assert_arrived_once(sink: RedisSink, ids: list[str]) -> None:
    """Nothing is lost, nothing is there twice, and keys are in order."""
    messages = sink.wait_for(ids)
    sink.database.wait_settled()
    messages = sink.messages()
    assert sorted(message.event_id for message in messages) == sorted(ids)
    assert_in_order(messages)
    assert in_trouble(sink.database) == []


# -------------------------------------------------------------------------------------------------
# Ids
# -------------------------------------------------------------------------------------------------


def test_an_earlier_position_that_commits_later_is_not_lost(redis: RedisSink, db: Database) -> None:
    redis.create()
    other = db.connect()
    with other.transaction(), other.cursor() as cursor:
        cursor.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}', version => 1)")
        late = str(cursor.fetchone()[0])
        ids = enqueue_keys(db, ["b", "c"], 5)
        redis.wait_for(ids)
    other.close()
    redis.wait_for([late])
    ids += [late, *db.enqueue("a", 3, first=2), *db.enqueue("b", 3, first=6)]
    assert_arrived_once(redis, ids)
    entries = redis.client.xrange(redis.stream())
    assert [id for id, fields in entries if fields[b"event_id"].decode() == late] == [b"11-1"]
    assert len(entries) == 17


def test_positions_in_any_order(redis: RedisSink, db: Database) -> None:
    """Many transactions commit in another order than they began, while answers get lost."""
    redis.create()
    ids: list[str] = []
    for round in range(6):
        connections = [db.connect() for _ in range(4)]
        for number, connection in enumerate(connections):
            connection.execute("BEGIN")
            rows = connection.execute(
                "SELECT outbox.enqueue('item', %s, 'changed', '{}', version => n) "
                "FROM generate_series(%s::bigint, %s) AS n",
                (f"k{number}", 10 * round + 1, 10 * round + 10),
            ).fetchall()
            ids += [str(row[0]) for row in rows]
        if round % 2:
            redis.proxy.lose_answers(1)
        for connection in reversed(connections):
            connection.execute("COMMIT")
            connection.close()
    messages = redis.wait_for(ids)
    db.wait_settled()
    assert {message.event_id for message in redis.messages()} == set(ids)
    assert_in_order(messages)


def read_again(db: Database) -> None:
    """A relay that starts with an old cursor, as after a crash."""
    db.pause()
    db.execute("SELECT outbox.seek('d', 'beginning')")
    relay = db.wait_for_worker("relay")
    db.execute("SELECT pg_terminate_backend(%s, 60000)", (relay,))
    db.wait_for_worker("relay", other_than=relay)
    db.execute("SELECT outbox.resume('d')")


def test_a_window_that_is_read_again_adds_no_entry(redis: RedisSink, db: Database) -> None:
    redis.create(batch_size="7")
    ids = enqueue_keys(db, [f"k{n}" for n in range(10)], 10)
    assert_arrived_once(redis, ids)
    for round in range(2):
        read_again(db)
        ids += db.enqueue("more", 1, first=round)
        assert_arrived_once(redis, ids)


def test_what_was_replayed_arrives_again(redis: RedisSink, db: Database) -> None:
    redis.create()
    (id,) = enqueue_keys(db, ["a"], 1)
    redis.wait_for([id])
    db.wait_settled()
    db.execute("SELECT outbox.replay('d', event_ids => ARRAY[%s]::uuid[], why => 'test')", (id,))
    wait_until(lambda: len(redis.messages()), lambda count: count == 2, what="the event again")


def test_a_stream_that_has_ids_of_a_clock(redis: RedisSink, db: Database) -> None:
    first = redis.client.xadd(redis.stream(), {"by": "another"})
    redis.entries()
    redis.create()
    ids = enqueue_keys(db, ["a", "b"], 50)
    assert_arrived_once(redis, ids)
    ms = first.split(b"-")[0]
    entries = redis.client.xrange(redis.stream())[1:]
    assert [id for id, _ in entries] == [b"%s-%d" % (ms, n) for n in range(1, 101)]
    read_again(db)
    ids += enqueue_keys(db, ["more"], 1)
    assert_arrived_once(redis, ids)


def test_another_producer_writes_to_the_stream_all_the_time(redis: RedisSink, db: Database) -> None:
    redis.create(batch_size="5")
    end = threading.Event()

    def produce() -> None:
        while not end.is_set():
            redis.client.xadd(redis.stream(), {"by": "another"})

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        ids = [id for n in range(10) for id in enqueue_keys(db, ["a", "b"], 10)]
        db.wait_published(len(ids))
    finally:
        end.set()
        producer.join()
    entries = redis.client.xrange(redis.stream())
    arrived = [fields[b"event_id"].decode() for _, fields in entries if b"event_id" in fields]
    assert sorted(arrived) == sorted(ids)
    assert in_trouble(db) == []


def test_redis_makes_the_ids_if_asked_to(redis: RedisSink, db: Database) -> None:
    redis.create(ids="auto", receipts="on")
    ids = enqueue_keys(db, ["a", "b"], 10)
    assert_arrived_once(redis, ids)
    entries = redis.client.xrange(redis.stream())
    assert all(int(id.split(b"-")[0]) > 1_700_000_000_000 for id, _ in entries)
    wait_until(
        lambda: db.execute("SELECT event_id::text, message_id FROM outbox.receipt"),
        lambda rows: dict(rows) == {f[b"event_id"].decode(): id.decode() for id, f in entries},
        what="receipts with the ids of the entries",
    )  # fmt: skip


def test_two_databases_with_one_stream(redis: RedisSink, db: Database, start: Start) -> None:
    """Both have the same positions. Entries with the same position and another event are not duplicates."""
    server = start()
    sinks = [own_sink(db, server) for _ in range(2)]
    for number, sink in enumerate(sinks):
        sink.create(f"d{number}", stream="both", ids="position", topics=f"t{number}.events")
    ids = [id for n in range(5) for type in ("t0", "t1") for id in enqueue_type(db, type, 3, 4, first=1 + 4 * n)]
    wait_until(
        lambda: [f[b"event_id"].decode() for _, f in sinks[0].client.xrange("both")],
        lambda seen: set(seen) == set(ids), what="the events of both",
    )  # fmt: skip
    for sink in sinks:
        sink.close()


# -------------------------------------------------------------------------------------------------
# Entries and streams
# -------------------------------------------------------------------------------------------------


def test_fields_of_an_entry(redis: RedisSink, db: Database) -> None:
    redis.create()
    headers = '{"traceparent": "00-1-2-01", "tenant": "x"}'
    db.execute(
        "SELECT outbox.enqueue('item', 'a', 'changed', NULL::bytea, 'text/plain', headers => %s), "
        "outbox.enqueue('item', 'a', 'changed', ''::bytea, 'text/plain', ordering_key => '')",
        (headers,),
    )
    entries = wait_until(lambda: redis.client.xrange(redis.stream()), lambda seen: len(seen) == 2, what="two entries")
    first, second = [fields for _, fields in entries]
    assert b"payload" not in first and b"content_type" not in first
    assert (first[b"ordering_key"], first[b"traceparent"], first[b"tenant"]) == (b"a", b"00-1-2-01", b"x")
    assert second[b"payload"] == b"" and b"ordering_key" not in second
    assert next(iter(first)) == b"event_id"


def test_a_stream_is_trimmed(redis: RedisSink, db: Database) -> None:
    redis.create(max_length="100")
    enqueue_keys(db, ["a"], 2000)
    db.wait_published(2000)
    assert 100 <= redis.client.xlen(redis.stream()) < 400


def test_a_key_that_has_no_stream(redis: RedisSink, db: Database) -> None:
    """Only events for this key wait."""
    redis.client.set(redis.stream("b.events"), "a string")
    redis.create()
    waiting = enqueue_type(db, "b", 3, 3)
    ids = enqueue_type(db, "a", 3, 3)
    wait_until(
        lambda: {f[b"event_id"].decode() for _, f in redis.client.xrange(redis.stream("a.events"))},
        lambda seen: seen == set(ids), what="the others",
    )  # fmt: skip
    wait_until(db.status, lambda s: s["lanes_down"] > 0, what="a stream to be down")
    wait_for_error(db, "WRONGTYPE")
    assert "b.events" in db.status()["last_error"]
    found = check(redis, "b.events")[f'stream "{redis.stream("b.events")}"']
    assert not found[0] and "WRONGTYPE" in found[1]
    assert charged(db) == []
    redis.client.delete(redis.stream("b.events"))
    assert_arrived_once(redis, ids + waiting)


def test_a_payload_that_is_too_long_leaves_the_others_alone(redis: RedisSink, db: Database) -> None:
    redis.create(on_dead_letter="block")
    db.execute("SET outbox.max_payload_size = '64MB'")
    with db.connection.transaction():
        ids = enqueue_keys(db, ["a", "b", "c"], 20)
        db.execute(
            "SELECT outbox.enqueue('item', 'large', 'changed', %s::bytea, 'text/plain', version => 1)",
            (b"x" * (redis.size_limit() + 1),),
        )
        ids += enqueue_keys(db, ["d"], 20)
    wait_until(lambda: in_trouble(db), lambda seen: seen == [("large", 1, "DEAD")], what="a dead letter")
    assert "invalid bulk length" in db.value("SELECT last_error FROM outbox.delivery")
    messages = redis.wait_for(ids)
    assert len(messages) == len(ids)


# -------------------------------------------------------------------------------------------------
# A server in trouble
# -------------------------------------------------------------------------------------------------


# How to make the server refuse events and how to end that, and its answer.
TROUBLE: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "memory": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "OOM"),
    "replicas": (("CONFIG", "SET", "min-replicas-to-write", "1"),
                 ("CONFIG", "SET", "min-replicas-to-write", "0"), "NOREPLICAS"),
    "replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "READONLY"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TROUBLE)
def test_a_server_that_takes_nothing_for_a_while(db: Database, start: Start, kind: str) -> None:
    """Events wait, and none is charged an attempt."""
    begin, end, code = TROUBLE[kind]
    server = start(maxmemory_policy="noeviction")
    sink = own_sink(db, server)
    sink.create(max_attempts="1")
    ids = enqueue_keys(db, ["a", "b"], 3)
    sink.wait_for(ids)
    db.wait_settled()
    sink.client.execute_command(*begin)
    ids += [id for key in "ab" for id in db.enqueue(key, 3, first=4)]
    wait_for_error(db, code)
    state = {"OOM": ("throttled", "backing off")}.get(code, ("backing off",))
    wait_until(lambda: db.status()["state"], lambda seen: seen in state, what="a pause")
    assert charged(db) == []
    sink.client.execute_command(*end)
    assert_arrived_once(sink, ids)
    sink.close()


def test_a_server_that_is_busy_with_a_script(db: Database, start: Start) -> None:
    server = start(busy_reply_threshold="50")
    sink = own_sink(db, server)
    sink.create(max_attempts="1")
    sink.wait_for(ids := enqueue_keys(db, ["a"], 3))

    def run_script() -> None:
        with suppress(Exception):  # it is killed
            server.client().execute_command("EVAL", "while true do end", 0)

    def is_busy() -> bool:
        try:
            sink.client.ping()
        except Exception as error:
            return "BUSY" in str(error) or "busy" in str(error)
        return False

    script = threading.Thread(target=run_script)
    script.start()
    wait_until(is_busy, what="the script to run")
    ids += db.enqueue("a", 3, first=4)
    wait_for_error(db, "BUSY")
    wait_until(lambda: sink.client.execute_command("SCRIPT", "KILL"), what="the end of the script")
    script.join()
    assert_arrived_once(sink, ids)
    sink.close()


def test_a_server_that_is_killed_with_its_data_on_disk(db: Database, start: Start) -> None:
    """With appendfsync always, confirmed entries survive a crash, and no entry is there twice."""
    server = start(appendonly="yes", appendfsync="always")
    sink = own_sink(db, server)
    sink.create()
    ids = enqueue_keys(db, ["a", "b"], 50)
    for round in range(3):
        ids += [id for key in "ab" for id in db.enqueue(key, 200, first=51 + 200 * round)]
        wait_until(lambda: db.status()["in_flight"] > 0 or db.published() == len(ids), what="some on their way")
        server.kill()
        server.start()
    assert_arrived_once(sink, ids)
    sink.close()


# -------------------------------------------------------------------------------------------------
# Logins and certificates
# -------------------------------------------------------------------------------------------------

RIGHTS = "+multi +exec +xadd +xinfo|stream +xrevrange"


def map_user(db: Database, **options: str) -> None:
    pairs = ", ".join(f"{name} '{value}'" for name, value in options.items())
    db.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


def test_a_user_of_an_access_list(db: Database, start: Start) -> None:
    server = start(
        user=[f"alice on >s3cret-of-alice ~test-* {RIGHTS}", "root on >s3cret-of-root ~* +@all", "default off"]
    )
    sink = own_sink(db, server)
    sink.client = server.client(username="root", password="s3cret-of-root")
    sink.create()
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_error(db, "NOAUTH")
    map_user(db, user="alice", password="s3cret-wrong-one")
    wait_for_error(db, "WRONGPASS")
    assert not check(sink, "item.events")["login"][0]
    assert in_trouble(db) == []
    db.execute("ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password 's3cret-of-alice')")
    db.wait_settled()
    findings = check(sink, "item.events")
    assert findings["login"] == (True, 'as "alice"')
    assert all(ok for ok, _ in findings.values()), findings
    assert_arrived_once(sink, ids)
    seen = db.cluster.log_since(db.cluster.test_began) + str(db.status())
    assert "s3cret-of-alice" not in seen and "wrong-one" not in seen
    sink.close()


def test_the_password_of_the_default_user(db: Database, start: Start) -> None:
    server = start(requirepass="s3cret-of-all")
    sink = own_sink(db, server)
    sink.client = server.client(password="s3cret-of-all")
    sink.create()
    map_user(db, password="s3cret-of-all")
    assert_arrived_once(sink, enqueue_keys(db, ["a"], 2))
    sink.close()


def test_rights_that_a_user_lacks(db: Database, start: Start) -> None:
    """A key concerns its stream only, a command the destination."""
    server = start()
    sink = own_sink(db, server)
    sink.client.execute_command(
        "ACL", "SETUSER", "alice", "on", ">s3cret-of-alice", f"~{sink.place}-a.*", *RIGHTS.split()
    )
    sink.create()
    map_user(db, user="alice", password="s3cret-of-alice")
    ids = enqueue_type(db, "b", 2, 2) + enqueue_type(db, "a", 2, 2)
    sink.wait_for(ids[4:])
    wait_until(db.status, lambda s: s["lanes_down"] == 1, what="a stream to be down")
    wait_for_error(db, "NOPERM")
    sink.client.execute_command("ACL", "SETUSER", "alice", f"~{sink.place}-*", "-xadd")
    ids += enqueue_type(db, "a", 2, 2, first=3)
    wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
    assert charged(db) == []
    sink.client.execute_command("ACL", "SETUSER", "alice", "+xadd")
    assert_arrived_once(sink, ids)
    sink.close()


@pytest.fixture
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="outbox-certificates-") as directory:
        Path(directory).chmod(0o755)  # the server must be able to read the file
        yield make_certificates(Path(directory))


def client_certificate(directory: Path) -> tuple[str, str]:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=directory, capture_output=True)

    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "client.key",
            "-out", "client.csr", "-subj", "/CN=relay")  # fmt: skip
    openssl("x509", "-req", "-in", "client.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "client.crt")  # fmt: skip
    return (directory / "client.crt").read_text(), (directory / "client.key").read_text()


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_it_connects_over_tls(db: Database, start: Start, certificates: Certificates, mutual: bool) -> None:
    port = free_port()
    server = start(
        tls_port=str(port), tls_cert_file=certificates.certificate, tls_key_file=certificates.key,
        tls_ca_cert_file=certificates.authority, tls_auth_clients="yes" if mutual else "no",
    )  # fmt: skip
    sink = own_sink(db, server)
    db.add_destination("d", f"rediss://127.0.0.1:{port}", **sink.options())
    ids = enqueue_keys(db, ["a"], 2)
    wait_until(lambda: db.status()["state"], lambda seen: seen == "backing off", what="a back-off")
    wait_for_error(db, "certificate")
    assert not check(sink, "item.events")["tls"][0]
    db.change_destination("d", ca_file=certificates.authority)
    if mutual:
        wait_until(
            lambda: all(ok for ok, _ in check(sink, "item.events").values()), lambda ok: not ok, what="a refusal"
        )
        certificate, key = client_certificate(Path(certificates.key).parent)
        map_user(db, certificate=certificate, private_key=key)
    assert_arrived_once(sink, ids)
    findings = check(sink, "item.events")
    assert findings["tls"][0] and all(ok for ok, _ in findings.values()), findings
    sink.close()


def test_a_number_of_a_database(db: Database, start: Start) -> None:
    server = start()
    sink = own_sink(db, server)
    sink.client = server.client(db=3)
    db.add_destination("d", f"{sink.url()}/3", **sink.options())
    assert_arrived_once(sink, enqueue_keys(db, ["a"], 2))
    db.add_destination("far", f"{sink.url()}/3000", **sink.options())
    enqueue_keys(db, ["a"], 1)
    wait_until(lambda: db.status("far")["last_error"] or "", lambda e: "DB index" in e, what="an error")
    sink.close()


# -------------------------------------------------------------------------------------------------
# Replicas
# -------------------------------------------------------------------------------------------------


def test_replicas_that_must_have_an_event(db: Database, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    sink = own_sink(db, primary)
    wait_until(lambda: sink.client.info("replication")["connected_slaves"], lambda n: n == 1, what="a replica")
    sink.create(min_replicas="1", request_timeout="4s")
    ids = enqueue_keys(db, ["a", "b"], 3)
    assert_arrived_once(sink, ids)
    reader = replica.client()
    assert reader.xlen(sink.stream()) == len(ids)
    replica.kill()
    ids += [id for key in "ab" for id in db.enqueue(key, 3, first=4)]
    wait_for_error(db, "0 of 1 replicas")
    assert db.published() == 6 and charged(db) == []
    replica.start()
    assert_arrived_once(sink, ids)
    assert reader.xlen(sink.stream()) == len(ids)
    sink.close()


def test_the_next_host_when_the_primary_is_gone(db: Database, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    sink = own_sink(db, replica)
    db.add_destination("d", f"redis://127.0.0.1:{replica.port},127.0.0.1:{primary.port}", **sink.options())
    ids = enqueue_keys(db, ["a"], 3)
    assert_arrived_once(sink, ids)  # the first one takes nothing
    wait_until(lambda: replica.client().xlen(sink.stream()), lambda n: n == 3, what="the replica to have it")
    primary.kill()
    sink.client.execute_command("REPLICAOF", "NO", "ONE")
    ids += db.enqueue("a", 3, first=4)
    assert_arrived_once(sink, ids)
    sink.close()


@pytest.mark.long
def test_sentinel_names_the_primary(db: Database, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    sentinel = start(sentinel=[f"monitor mymaster 127.0.0.1 {primary.port} 1", "down-after-milliseconds mymaster 1000"])
    sink = own_sink(db, replica)
    wait_until(
        lambda: sentinel.client().execute_command("SENTINEL", "REPLICAS", "mymaster"),
        lambda seen: len(seen) == 1 and "127.0.0.1" in str(seen), what="Sentinel to know the replica",
    )  # fmt: skip
    db.add_destination("d", f"redis://127.0.0.1:{sentinel.port}", sentinel="mymaster", **sink.options())
    ids = enqueue_keys(db, ["a"], 3)
    assert_arrived_once(sink, ids)
    findings = check(sink, "item.events")
    assert findings["primary"] == (True, f"127.0.0.1:{primary.port}")
    wait_until(
        lambda: sentinel.client().execute_command("SENTINEL", "FAILOVER", "mymaster"),
        what="Sentinel to promote the replica", ignoring=(Exception,),
    )  # fmt: skip
    wait_until(lambda: sink.client.info("replication")["role"], lambda role: role == "master", what="a new primary")
    wait_until(
        lambda: primary.client().info("replication")["role"], lambda role: role == "slave", what="an old primary"
    )
    ids += db.enqueue("a", 3, first=4)
    assert_arrived_once(sink, ids)
    sink.close()


# -------------------------------------------------------------------------------------------------
# A cluster
# -------------------------------------------------------------------------------------------------


class Cluster:
    """Three primaries, each with a third of the slots."""

    def __init__(self, start: Start) -> None:
        from redis import RedisCluster
        from redis.cluster import ClusterNode

        buses = [free_port() for _ in range(3)]
        self.servers = [
            start(cluster_enabled="yes", cluster_port=str(bus), cluster_node_timeout="2000",
                  cluster_require_full_coverage="no")
            for bus in buses
        ]  # fmt: skip
        nodes = [server.client() for server in self.servers]
        for number, node in enumerate(nodes):
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", number * 5462, min(16383, number * 5462 + 5461))
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server, bus in zip(self.servers[1:], buses[1:]):
            nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        for node in nodes:
            wait_until(
                lambda: str(node.execute_command("CLUSTER", "INFO")),
                lambda info: "cluster_state:ok" in info and "cluster_known_nodes:3" in info
                and "cluster_slots_ok:16384" in info, what="a cluster",
            )  # fmt: skip
        self.nodes = nodes
        self.client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", s.port) for s in self.servers])

    def id_of(self, number: int) -> str:
        return self.nodes[number].execute_command("CLUSTER", "MYID").decode()

    def slot(self, key: str) -> int:
        from redis.crc import key_slot

        return key_slot(key.encode())

    def place(self, key: str) -> int:
        return self.slot(key) // 5462


class ClusterSink(RedisSink):
    """`types` have streams on all nodes."""

    def __init__(self, database: Database, cluster: Cluster) -> None:
        super().__init__(database, cluster.servers[0])
        self.client = cluster.client
        self.types: list[str] = []
        for node in range(3):
            names = (f"t{n}" for n in itertools.count())
            here = (name for name in names if cluster.place(self.stream(f"{name}.events")) == node)
            self.types += itertools.islice(here, 3)

    def enqueue_all(self, count: int, *, first: int = 1) -> list[str]:
        return [id for type in self.types for id in enqueue_type(self.database, type, 2, count, first=first)]

    def entries(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        received = []
        for type in self.types:
            stream = self.stream(f"{type}.events").encode()
            for id, fields in self.client.xrange(stream, min=self._next.get(stream, b"-")):
                self._next[stream] = b"(" + id
                received.append((id, fields))
        return received

    def url(self) -> str:
        return f"redis://127.0.0.1:{self.redis.port}"


@pytest.fixture
def cluster_sink(db: Database, start: Start) -> Iterator[tuple[Cluster, ClusterSink]]:
    cluster = Cluster(start)
    sink = ClusterSink(db, cluster)
    yield cluster, sink
    sink.proxy.close()
    cluster.client.close()


def test_streams_of_a_cluster(cluster_sink: tuple[Cluster, ClusterSink], db: Database) -> None:
    cluster, sink = cluster_sink
    sink.create()
    ids = sink.enqueue_all(10)
    assert_arrived_once(sink, ids)
    ids += sink.enqueue_all(10, first=11)
    assert_arrived_once(sink, ids)


def test_a_slot_that_moves(cluster_sink: tuple[Cluster, ClusterSink], db: Database) -> None:
    """Events flow while it is imported, and afterwards."""
    cluster, sink = cluster_sink
    sink.create()
    ids = sink.enqueue_all(2)
    assert_arrived_once(sink, ids)
    moving = sink.types[0]
    stream = sink.stream(f"{moving}.events")
    slot, old = cluster.slot(stream), cluster.place(stream)
    new = (old + 1) % 3
    cluster.nodes[new].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(old))
    cluster.nodes[old].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(new))
    ids += sink.enqueue_all(2, first=3)
    assert_arrived_once(sink, ids)  # the old node still has the key
    cluster.nodes[old].execute_command("MIGRATE", "127.0.0.1", cluster.servers[new].port, stream, 0, 5000)
    ids += enqueue_type(db, moving, 2, 2, first=5)
    db.wait_settled()
    assert in_trouble(db) == []
    for number in (new, old):
        cluster.nodes[number].execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(new))
    ids += enqueue_type(db, moving, 2, 2, first=7)
    assert_arrived_once(sink, ids)


def test_a_node_that_is_gone_for_a_while(cluster_sink: tuple[Cluster, ClusterSink], db: Database) -> None:
    """Streams of the others go on, also if it is the one that the URL names."""
    cluster, sink = cluster_sink
    for server in cluster.servers:
        server.client().config_set("appendonly", "yes")
    sink.create()
    ids = sink.enqueue_all(2)
    assert_arrived_once(sink, ids)
    for server in cluster.servers:
        wait_until(
            lambda: server.client().info("persistence"),
            lambda info: info["aof_enabled"] == 1 and not info["aof_rewrite_in_progress"], what="an append-only file",
        )  # fmt: skip
    gone = cluster.servers[0]
    gone.configuration.write_text(gone.configuration.read_text() + "appendonly yes\n")
    gone.kill()
    there = [type for type in sink.types if cluster.place(sink.stream(f"{type}.events")) != 0]
    more = [id for type in there for id in enqueue_type(db, type, 2, 2, first=3)]
    waiting = [id for type in sink.types if type not in there for id in enqueue_type(db, type, 2, 2, first=3)]
    db.wait_published(len(ids) + len(more))
    gone.start()
    assert_arrived_once(sink, ids + more + waiting)


def test_the_check_of_a_cluster(cluster_sink: tuple[Cluster, ClusterSink], db: Database) -> None:
    """It goes where each stream is, and tells a node that the others know at a wrong address."""
    cluster, sink = cluster_sink
    sink.create()

    def found_on(node: int) -> dict[str, tuple[bool, str]]:
        return check(sink, f"{sink.types[3 * node]}.events")

    for node, server in enumerate(cluster.servers):
        (detail,) = (detail for subject, (_, detail) in found_on(node).items() if subject.startswith("stream "))
        assert detail.startswith("it does not exist; its first event creates it")
        assert detail.endswith(f"; it is on 127.0.0.1:{server.port}") == (node != 0)
    with socket.socket() as nowhere:  # bound, and nobody listens
        nowhere.bind(("127.0.0.1", 0))
        wrong = nowhere.getsockname()[1]
        cluster.nodes[2].config_set("cluster-announce-port", wrong)
        wait_until(
            lambda: str(cluster.nodes[0].execute_command("CLUSTER", "SLOTS")),
            lambda slots: str(wrong) in slots, what="the others to know the node at the wrong port",
        )  # fmt: skip
        ok, detail = found_on(2)[f"node 127.0.0.1:{wrong}"]
        assert not ok and str(wrong) in detail
        assert all(ok for ok, _ in found_on(1).values())
