"""The Redis source against real servers: entries that are held, settled, given back and taken over."""

from __future__ import annotations

import itertools
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificates
from cluster import Installation, free_port
from database import Database
from processes import stop_process
from sinks import redis_server, servers
from sinks.redis_server import RedisServer
from sinks.test_redis import Cluster as RedisCluster
from sinks.test_redis import client_certificate
from waiting import SECOND, wait_until

from .consumer import Target
from .redis_source import RedisSource, Stream
from .sqs_source import payloads

servers.add_clients_to_path()

MakeStream = Callable[..., Stream]
MakeSource = Callable[..., RedisSource]
Start = Callable[..., RedisServer]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    try:
        with redis_server.redis() as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server of the test's own."""
    with ExitStack() as stack:

        def start(**settings: Any) -> RedisServer:
            try:
                return stack.enter_context(redis_server.redis(**settings))
            except servers.NotInstalled as missing:
                pytest.skip(f"NOT TESTED: {missing}")

        yield start


@pytest.fixture
def make_stream(server: RedisServer) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(on: RedisServer = server, **options: Any) -> Stream:
        made.append(Stream(on, **options))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


@pytest.fixture
def stream(make_stream: MakeStream) -> Stream:
    return make_stream()


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[RedisSource] = []

    def make(stream: Stream, /, *, opened: bool = True, **options: object) -> RedisSource:
        made.append(RedisSource(installation, stream, options))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


# -------------------------------------------------------------------------------------------------
# Entries
# -------------------------------------------------------------------------------------------------


def test_an_entry_becomes_a_delivery(stream: Stream, make_source: MakeSource) -> None:
    id, began = "0193c0de-0000-7000-8000-00000000000a", time.time()
    (entry,) = stream.send("café", key="k 1", event_id=id, event_type="Changed", aggregate_type="item", aggregate_id="7",
                           version="3", content_type="text/plain", other="caf\u00e9")  # fmt: skip
    (delivery,) = make_source(stream).receive(1)
    expected = {
        "event_id": id, "type": "Changed", "aggregate_type": "item", "aggregate_id": "7", "version": 3,
        "content_type": "text/plain", "payload": "café", "topic": stream.name, "key": "k 1",
        "headers": {"other": "café"}, "source": f"redis://{stream.name}/g", "message_id": entry,
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert began - 1 <= delivery["published_at"] / 1e6 <= time.time() + 1


def test_entries_of_other_senders_keep_their_id(stream: Stream, make_source: MakeSource) -> None:
    stream.send("not of ours")
    source = make_source(stream)
    (first,) = source.receive(1)
    source.nack(first)
    (second,) = source.receive(1)
    source.kill()
    (third,) = make_source(stream).receive(1)
    assert first["event_id"] == second["event_id"] == third["event_id"] != ""
    assert second["payload"] == "not of ours"


def test_many_entries_come_within_the_budget(stream: Stream, make_source: MakeSource) -> None:
    stream.send(*map(str, range(100)))
    source = make_source(stream, prefetch=10)
    received = source.receive(10, most=10)
    assert stream.pending()["c"] <= 20  # handed out, and waiting
    while len(received) < 100:
        more = source.command("receive", 10, 1000)
        source.ack(*more)
        received += more
    source.ack(*received[:10])
    assert payloads(received) == [str(n) for n in range(100)]
    stream.wait_settled()


def test_several_streams(make_stream: MakeStream, make_source: MakeSource) -> None:
    one, other = make_stream(), make_stream()
    source = make_source(one, streams=f"{one.name},{other.name}")
    one.send("1")
    other.send("2")
    received = source.receive(2)
    assert {(d["topic"], d["payload"]) for d in received} == {(one.name, "1"), (other.name, "2")}
    source.ack(*received)
    one.wait_settled()
    other.wait_settled()


def test_an_entry_that_is_too_large_leaves_the_others_alone(stream: Stream, make_source: MakeSource) -> None:
    stream.send("1")
    (large,) = stream.send("x" * (66 << 20))
    stream.send("2")
    source = make_source(stream, servers=f"127.0.0.1:{stream.server.port}")
    received = source.receive(2)
    assert payloads(received) == ["1", "2"]
    source.ack(*received)
    source.wait_logged(f"entry {large} is too large")
    wait_until(stream.pending, lambda seen: seen == {"c": 1}, what="the large entry to be all that is pending")
    stream.client.delete(stream.name)


def test_entries_that_are_too_large_together(stream: Stream, make_source: MakeSource) -> None:
    """They are read one by one."""
    stream.send("1", *["x" * (30 << 20)] * 4, "2")
    source = make_source(stream, servers=f"127.0.0.1:{stream.server.port}")
    received = source.receive(6)
    assert [len(d["payload"]) for d in received] == [1, *[30 << 20] * 4, 1]
    source.ack(*received)
    stream.wait_settled()
    stream.client.delete(stream.name)


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_does_not_come_again(stream: Stream, make_source: MakeSource) -> None:
    stream.send("1", "2")
    source = make_source(stream)
    source.ack(*source.receive(2))
    stream.wait_settled()
    source.close()
    stream.send("3")
    assert payloads(make_source(stream).receive(1)) == ["3"]


def test_a_key_comes_again_in_its_order(stream: Stream, make_source: MakeSource) -> None:
    """An entry received behind one that is given back must not be handled before it."""
    stream.send("1", "2", "3", "4", key="a")
    stream.send("x", "y", key="b")
    source = make_source(stream)
    one, two = [*source.receive(1, most=1), *source.receive(1, most=1)]  # the source holds the others
    stream.send("5", key="a")
    source.nack(one, two)
    received = source.receive(7)
    source.ack(*received)
    assert [d["payload"] for d in received if d["key"] == "a"] == ["1", "2", "3", "4", "5"]
    assert [d["payload"] for d in received if d["key"] == "b"] == ["x", "y"]
    stream.wait_settled()


def calls(stream: Stream, command: str) -> int:
    return stream.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_what_is_held_stays_held(stream: Stream, make_source: MakeSource) -> None:
    """Another consumer tries to take over entries all the time."""
    stream.send("in hand", "with the source")
    options = {
        "servers": f"127.0.0.1:{stream.server.port}",
        "min_idle": 5000,
    }  # longer than a busy machine stands still
    source = make_source(stream, **options)
    (delivery,) = source.receive(1, most=1)
    rival = make_source(stream, consumer="rival", **options)
    extensions, attempts = calls(stream, "xclaim"), calls(stream, "xautoclaim")
    wait_until(lambda: calls(stream, "xclaim"), lambda n: n >= extensions + 4, what="several extensions", timeout=60)
    wait_until(
        lambda: calls(stream, "xautoclaim"), lambda n: n >= attempts + 4, what="attempts to take over", timeout=60
    )
    assert rival.command("receive", 10, 0) == []
    assert (stream.pending(), stream.deliveries()) == ({"c": 2}, [1, 1]), source.log()
    (other,) = source.receive(1)
    source.ack(delivery, other)
    stream.wait_settled()


def test_after_a_crash_entries_come_again(stream: Stream, make_source: MakeSource) -> None:
    """At once to a consumer of this name."""
    stream.send("1", "2")
    crashed = make_source(stream)
    crashed.receive(1, most=1)
    crashed.kill()
    source = make_source(stream)
    received = source.receive(2)
    assert payloads(received) == ["1", "2"]
    source.ack(*received)
    stream.wait_settled()


def test_entries_of_a_dead_consumer_are_taken_over(stream: Stream, make_source: MakeSource) -> None:
    stream.send(*map(str, range(50)))
    crashed = make_source(stream)
    crashed.receive(50)
    crashed.kill()
    source = make_source(stream, consumer="d", min_idle=500, prefetch=10)
    received: list[dict[str, Any]] = []
    while len(received) < 50:
        more = source.command("receive", 10, 1000)
        source.ack(*more)
        received += more
    assert payloads(received) == [str(n) for n in range(50)]
    stream.wait_settled()


@pytest.mark.timing
def test_close_gives_back_what_is_held(stream: Stream, make_source: MakeSource) -> None:
    """Other consumers need not wait for min_idle."""
    stream.send("1", "2", "3")
    source = make_source(stream, min_idle=3_600_000)
    other = make_source(stream, consumer="d", opened=False, min_idle=3_600_000)
    one, _ = [*source.receive(1, most=1), *source.receive(1, most=1)]
    source.ack(one)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 5 * SECOND
    assert stream.pending() == {"c": 2}
    other.open()
    assert payloads(other.receive(2)) == ["2", "3"]
    source.open()  # it may be opened again
    source.close()


@pytest.mark.parametrize("held", [False, True])
def test_entries_that_are_deleted_while_they_are_pending(stream: Stream, make_source: MakeSource, held: bool) -> None:
    ids = stream.send("1", "2", "3")
    crashed = make_source(stream)
    crashed.receive(3)
    crashed.kill()
    stream.client.xdel(stream.name, *ids[:2])
    source = make_source(stream, consumer="c" if held else "d", min_idle=300)
    source.ack(*source.receive(1))
    source.wait_logged("2 pending entries were deleted from the stream before they were acknowledged")
    stream.wait_settled()


# -------------------------------------------------------------------------------------------------
# Groups
# -------------------------------------------------------------------------------------------------


def test_a_group_that_does_not_exist(make_stream: MakeStream, make_source: MakeSource) -> None:
    stream = make_stream(group=None)
    source = make_source(stream, opened=False)
    answer = source.command("open")
    assert "NOGROUP" in answer["error"] and not answer["transient"]
    assert not stream.client.exists(stream.name)


@pytest.mark.parametrize(("begin", "expected"), [("0", ["1", "2"]), ("$", ["2"])])
def test_a_group_is_created_if_asked(
    make_stream: MakeStream, make_source: MakeSource, begin: str, expected: list[str]
) -> None:
    stream = make_stream(group=None)
    stream.send("1")
    source = make_source(stream, create_group_from=begin)
    stream.send("2")
    received = source.receive(len(expected))
    assert payloads(received) == expected
    source.ack(*received)
    stream.wait_settled()
    source.close()
    make_source(stream, create_group_from=begin)  # it exists


def test_a_group_that_has_gone(stream: Stream, make_source: MakeSource) -> None:
    source = make_source(stream)
    stream.client.xgroup_destroy(stream.name, "g")
    answer = source.receive_error()
    assert "NOGROUP" in answer["error"] and answer["transient"]
    stream.client.xgroup_create(stream.name, "g", "0")
    source.open()
    stream.send("1")
    assert payloads(source.receive(1)) == ["1"]


@pytest.mark.parametrize("gone", ["the group", "the stream"])
def test_a_group_that_has_gone_is_created_again(stream: Stream, make_source: MakeSource, gone: str) -> None:
    """From the beginning, because nobody knows what was pending."""
    source = make_source(stream, create_group_from="$")
    stream.send("1")
    source.ack(*source.receive(1))
    stream.wait_settled()
    if gone == "the group":
        stream.client.xgroup_destroy(stream.name, "g")
    else:
        stream.client.delete(stream.name)
    source.wait_logged("error: redis://" + stream.name + "/g: the consumer group has gone; creating it again from 0")
    stream.send("2")
    expected = ["1", "2"] if gone == "the group" else ["2"]
    received = source.receive(len(expected))
    assert payloads(received) == expected
    source.ack(*received)
    stream.wait_settled()


def test_a_server_that_forgets_everything(make_stream: MakeStream, make_source: MakeSource, start: Start) -> None:
    """Its ids begin again, below those that were there."""
    stream = make_stream(start())
    source = make_source(stream, create_group_from="0")
    stream.client.xadd(stream.name, {"payload": "1"}, id="5000-0")
    held = source.receive(1)
    stream.server.kill()
    stream.server.start()
    source.wait_logged("creating it again from 0")
    wait_until(
        lambda: stream.client.xadd(stream.name, {"payload": "2"}, id="7-0"), what="a stream", ignoring=(Exception,)
    )
    source.ack(*held)
    received = source.receive(1)
    assert payloads(received) == ["2"]
    source.ack(*received)
    stream.wait_settled()


def test_a_key_that_is_not_a_stream(make_stream: MakeStream, make_source: MakeSource) -> None:
    stream = make_stream(group=None)
    stream.client.set(stream.name, "a string")
    answer = make_source(stream, opened=False).command("open")
    assert "WRONGTYPE" in answer["error"] and not answer["transient"]


# -------------------------------------------------------------------------------------------------
# Servers
# -------------------------------------------------------------------------------------------------


def test_claims_outlive_a_connection(stream: Stream, make_source: MakeSource) -> None:
    stream.send("1", "2")
    source = make_source(stream)
    received = source.receive(2)
    stream.proxy.refuse_connections()
    wait_until(source.log, lambda log: log.count("redis://") >= 2, what="attempts to connect")
    source.ack(*received)
    stream.proxy.listen()
    stream.wait_settled()
    stream.send("3")
    assert payloads(source.receive(1)) == ["3"]


def test_no_server(stream: Stream, make_source: MakeSource) -> None:
    stream.proxy.refuse_connections()
    source = make_source(stream, opened=False)
    assert source.command("open")["transient"]
    stream.proxy.listen()
    source.open()
    stream.send("1")
    assert payloads(source.receive(1)) == ["1"]


def test_a_server_that_is_silent(stream: Stream, make_source: MakeSource) -> None:
    source = make_source(stream, request_timeout=500)
    stream.client.client_pause(3000, all=False)  # of commands that write
    source.wait_logged("no answer within 500ms (request_timeout)")
    stream.client.client_unpause()
    stream.send("1")
    assert payloads(source.receive(1)) == ["1"]


def test_users_and_rights(make_stream: MakeStream, make_source: MakeSource, start: Start) -> None:
    stream = make_stream(start())
    stream.client.execute_command(
        "ACL",
        "SETUSER",
        "alice",
        "on",
        ">s3cret-of-alice",
        f"~{stream.name}",
        "+xreadgroup",
        "+xack",
        "+xclaim",
        "+xautoclaim",
    )
    wrong = make_source(stream, opened=False, user="alice", password="s3cret-of-bob")
    answer = wrong.command("open")
    assert "WRONGPASS" in answer["error"] and not answer["transient"]
    source = make_source(stream, user="alice", password="s3cret-of-alice", min_idle=300)
    stream.send("1")
    source.ack(*source.receive(1))
    stream.wait_settled()
    stream.client.execute_command("ACL", "SETUSER", "alice", "-xreadgroup")
    answer = source.receive_error()
    assert "NOPERM" in answer["error"] and answer["transient"]
    stream.client.execute_command("ACL", "SETUSER", "alice", "+xreadgroup")
    source.open()
    assert "s3cret" not in source.log() + wrong.log()


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_tls(make_stream: MakeStream, make_source: MakeSource, start: Start, mutual: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="outbox-certificates-") as directory:
        certificates = make_certificates(Path(directory))
        port = free_port()
        stream = make_stream(start(
            tls_port=str(port), tls_cert_file=certificates.certificate, tls_key_file=certificates.key,
            tls_ca_cert_file=certificates.authority, tls_auth_clients="yes" if mutual else "no",
        ))  # fmt: skip
        options: dict[str, object] = {"servers": f"127.0.0.1:{port}", "tls": 1}
        answer = make_source(stream, opened=False, **options).command("open")
        assert "certificate" in answer["error"]
        options["ca_file"] = certificates.authority
        if mutual:
            assert "error" in make_source(stream, opened=False, **options).command("open")
            options["certificate"], options["private_key"] = client_certificate(Path(directory))
        source = make_source(stream, **options)
        stream.send("1")
        source.ack(*source.receive(1))
        stream.wait_settled()


def test_a_replica_is_passed_over(make_stream: MakeStream, make_source: MakeSource, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    wait_until(
        lambda: replica.client().info("replication")["master_link_status"], lambda s: s == "up", what="replication"
    )
    stream = make_stream(primary)
    source = make_source(
        stream, opened=False, servers=f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}", request_timeout=5000
    )
    wait_until(lambda: source.command("open"), lambda answer: answer == {}, what="the primary")
    stream.send("1")
    assert payloads(source.receive(1)) == ["1"]


def test_a_failover_with_sentinel(make_stream: MakeStream, make_source: MakeSource, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    sentinel = start(sentinel=[
        f"monitor main 127.0.0.1 {primary.port} 1", "down-after-milliseconds main 500", "failover-timeout main 2000",
    ])  # fmt: skip
    stream = make_stream(primary)
    wrong = make_source(stream, opened=False, servers=f"127.0.0.1:{sentinel.port}", sentinel="other")
    answer = wrong.command("open")
    assert 'Sentinel knows no primary "other"' in answer["error"] and not answer["transient"]
    source = make_source(stream, servers=f"127.0.0.1:{sentinel.port}", sentinel="main")
    stream.send("1")
    held = source.receive(1)
    client = replica.client(decode_responses=True)
    wait_until(
        lambda: client.xpending(stream.name, "g")["pending"],
        lambda n: n == 1,
        what="the replica to have it",
        ignoring=(Exception,),
    )
    wait_until(
        lambda: sentinel.client(decode_responses=True).execute_command("SENTINEL", "replicas", "main"),
        what="the replica to be known",
    )
    primary.kill()
    wait_until(lambda: client.role()[0], lambda role: role in ("master", b"master"), what="another primary", timeout=60)
    client.xadd(stream.name, {"payload": "2"})
    more = source.receive(1)
    assert payloads(more) == ["2"]
    source.ack(*held, *more)
    wait_until(lambda: client.xpending(stream.name, "g")["pending"], lambda n: n == 0, what="acknowledgements")


def test_streams_of_a_cluster(make_stream: MakeStream, make_source: MakeSource, start: Start) -> None:
    cluster = RedisCluster(start)
    nodes = [server.client(decode_responses=True) for server in cluster.servers]
    names = [next(f"lane{n}" for n in itertools.count() if cluster.place(f"lane{n}") == place) for place in range(3)]
    for name, node in zip(names, nodes):
        node.xgroup_create(name, "g", "0", mkstream=True)
        node.xadd(name, {"payload": name})
    source = make_source(make_stream(), servers=f"127.0.0.1:{cluster.servers[0].port}", streams=",".join(names))
    received = source.receive(3)
    assert {d["payload"] for d in received} == set(names)
    source.ack(*received)
    for name, node in zip(names, nodes):
        wait_until(lambda: node.xpending(name, "g")["pending"], lambda n: n == 0, what="acknowledgements")
    move_slot(cluster, names[0], nodes[0], nodes[1])
    nodes[1].xadd(names[0], {"payload": "moved"})
    received = source.receive(1)
    assert payloads(received) == ["moved"]
    source.ack(*received)
    wait_until(lambda: nodes[1].xpending(names[0], "g")["pending"], lambda n: n == 0, what="acknowledgements")


def move_slot(cluster: RedisCluster, key: str, old: Any, new: Any) -> None:
    """Waits in the middle until the source has been sent on with ASK."""
    slot = cluster.slot(key)
    old_id, new_id = (node.execute_command("CLUSTER", "MYID") for node in (old, new))
    new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
    old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
    old.execute_command("MIGRATE", "127.0.0.1", new.connection_pool.connection_kwargs["port"], key, 0, 20_000)
    wait_until(lambda: new.info("commandstats").get("cmdstat_asking"), what="the source to follow")
    for node in (new, old):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)


# -------------------------------------------------------------------------------------------------
# A consumer
# -------------------------------------------------------------------------------------------------


def send_events(stream: Stream, keys: int, versions: range) -> list[str]:
    ids = []
    for version in versions:
        for key in range(keys):
            ids.append(str(uuid.uuid4()))
            stream.send("{}", key=f"k{key}", event_id=ids[-1], event_type="changed", version=str(version))
    return ids


def versions_of(target: Target) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, version in target.execute("SELECT key, version FROM applied ORDER BY number"):
        found.setdefault(key, []).append(version)
    return found


def test_a_consumer_applies_each_event_once_and_in_order(
    stream: Stream, make_source: MakeSource, target: Target
) -> None:
    """Also those that come again because one before them failed."""
    ids = send_events(stream, 10, range(1, 6))
    target.poison(ids[0])
    target.set_policy(retry_base="10 ms", retry_max="10 ms", max_attempts=1000)
    make_source(stream, opened=False, conninfo=target.conninfo)
    wait_until(target.applied, lambda seen: len(seen) >= 45, what="the events of other keys")
    wait_until(target.attempts, lambda count: count > 50, what="some attempts")
    target.cure()
    target.wait_applied(ids)
    assert all(versions == sorted(versions) for versions in versions_of(target).values())
    stream.wait_settled()


def test_poison_becomes_a_dead_letter(stream: Stream, make_source: MakeSource, target: Target) -> None:
    ids = send_events(stream, 2, range(1, 4))
    target.poison(ids[0])
    target.set_policy(retry_base="1 ms", retry_max="1 ms", max_attempts=3)
    make_source(stream, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids[1:])
    stream.wait_settled()
    assert target.execute("SELECT event_id::text FROM inbox.dead_letter") == [(ids[0],)]


def test_consumers_that_are_killed(stream: Stream, make_source: MakeSource, target: Target) -> None:
    """Every event is applied, and once; a process of the same name goes on where the last one ended."""
    ids: list[str] = []
    for round in range(5):
        ids += send_events(stream, 10, range(1 + 10 * round, 11 + 10 * round))
        applied = len(target.applied())
        consumer = make_source(stream, opened=False, conninfo=target.conninfo)
        wait_until(target.applied, lambda seen: len(seen) > applied, what="an event", timeout=60)
        consumer.process.kill()
        consumer.process.wait()
    make_source(stream, opened=False, conninfo=target.conninfo)
    target.wait_applied(ids)
    stream.wait_settled()
    assert all(versions == sorted(versions) for versions in versions_of(target).values())


def test_a_consumer_that_stands_still(stream: Stream, make_source: MakeSource, target: Target) -> None:
    """Another one takes over what it holds. When it goes on, both have some entries."""
    ids = send_events(stream, 10, range(1, 11))
    target.poison(ids[0])
    target.set_policy(retry_base="10 ms", retry_max="10 ms", max_attempts=100_000)
    first = make_source(stream, opened=False, conninfo=target.conninfo, min_idle=1000, prefetch=100)
    wait_until(target.applied, what="an event")
    wait_until(stream.pending, lambda seen: "c" in seen, what="an entry in hand")
    stop_process(first.process.pid)
    other = make_source(stream, opened=False, conninfo=target.conninfo, consumer="d", min_idle=1000, prefetch=100)
    wait_until(stream.pending, lambda seen: "c" not in seen and "d" in seen, what="the other one to take over")
    first.process.send_signal(signal.SIGCONT)
    target.cure()
    ids += send_events(stream, 10, range(11, 21))
    target.wait_applied(ids)
    stream.wait_settled()
    assert sorted(target.applied()) == sorted(ids)
    assert first.process.poll() is None and other.process.poll() is None


def test_a_server_that_is_killed(
    make_stream: MakeStream, make_source: MakeSource, target: Target, start: Start
) -> None:
    stream = make_stream(start(appendonly="yes", appendfsync="always"))
    make_source(stream, opened=False, conninfo=target.conninfo)
    ids = send_events(stream, 10, range(1, 11))
    wait_until(target.applied, what="an event")
    stream.server.kill()
    stream.server.start()
    wait_until(lambda: stream.client.ping(), what="the client beside it", ignoring=(Exception,))
    ids += send_events(stream, 10, range(11, 21))
    target.wait_applied(ids)
    stream.wait_settled()
    assert all(versions == sorted(versions) for versions in versions_of(target).values())


@pytest.mark.parametrize("format", ["attributes", "binary", "structured"])
def test_from_the_outbox(
    make_stream: MakeStream, database: Database, target: Target, installation: Installation, format: str
) -> None:
    stream = make_stream(group=None)
    if not installation.has_module("pg_outbox_redis"):
        pytest.skip("NOT TESTED: pg_outbox_redis is not part of this build")
    database.add_destination("d", f"redis://127.0.0.1:{stream.server.port}", stream=stream.name, format=format)
    ids = database.enqueue("a", 20) + database.enqueue("b", 20)
    program = str(installation.programs / "redis_source")
    consumer = subprocess.Popen(
        [program, f"conninfo={target.conninfo}", f"servers=127.0.0.1:{stream.server.port}", f"streams={stream.name}",
         "group=g", "consumer=c", "create_group_from=0"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        target.wait_applied(ids)
        stream.wait_settled()
    finally:
        _, log = consumer.communicate(timeout=60)
    assert consumer.returncode == 0 and "warning" not in log, log
    for key in "ab":
        versions = "SELECT version FROM applied WHERE key = %s ORDER BY number"
        assert [v for (v,) in target.execute(versions, (key,))] == list(range(1, 21))
    offsets = target.execute("SELECT subscription, message_id <> '' FROM inbox.offsets")
    assert offsets == [(f"redis://{stream.name}/g", True)]
