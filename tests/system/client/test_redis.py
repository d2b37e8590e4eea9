"""Only Redis has these: groups that go, entries that are deleted or too large, Sentinel, clusters."""

from __future__ import annotations

import itertools
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificates
from cluster import free_port
from processes import stop_process
from sinks import redis_server, servers
from sinks.redis_server import RedisServer
from sinks.test_redis import Cluster as RedisCluster
from sinks.test_redis import client_certificate
from waiting import wait_until

from .conftest import Consume, MakeSource
from .consumer import Target
from .redis_source import RedisSource
from .source import payloads

servers.add_clients_to_path()

# (setting=value, ...) -> RedisServer
Start = Callable[..., RedisServer]


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


# (RedisServer, ...) -> RedisSource
MakeStream = Callable[..., RedisSource]


@pytest.fixture
def make_stream(make_source: MakeSource) -> MakeStream:
    return lambda server=None, **options: make_source(RedisSource, server, **options)


@pytest.fixture
def stream(make_stream: MakeStream) -> RedisSource:
    return make_stream()


# -------------------------------------------------------------------------------------------------
# Entries
# -------------------------------------------------------------------------------------------------


def test_several_streams(make_stream: MakeStream) -> None:
    one, other = make_stream(), make_stream()
    reader = one.read(streams=f"{one.name},{other.name}")
    one.send("1")
    other.send("2")
    received = reader.receive(2)
    assert {(d["topic"], d["payload"]) for d in received} == {(one.name, "1"), (other.name, "2")}
    reader.ack(*received)
    one.wait_settled()
    other.wait_settled()


def test_an_entry_that_is_too_large_leaves_the_others_alone(make_stream: MakeStream, start: Start) -> None:
    stream = make_stream(start())
    stream.send("1")
    (large,) = stream.send("x" * (66 << 20))
    stream.send("2")
    reader = stream.read(servers=f"127.0.0.1:{stream.broker.port}")
    received = reader.receive(2)
    assert payloads(received) == ["1", "2"]
    reader.ack(*received)
    reader.wait_logged(f"entry {large} is too large")
    wait_until(stream.pending, lambda seen: seen == {"c": 1}, what="the large entry to be all that is pending")


def test_entries_that_are_too_large_together(make_stream: MakeStream, start: Start) -> None:
    """They are read one by one."""
    stream = make_stream(start())
    stream.send("1", *["x" * (30 << 20)] * 4, "2")
    reader = stream.read(servers=f"127.0.0.1:{stream.broker.port}")
    received = reader.receive(6)
    assert [len(d["payload"]) for d in received] == [1, *[30 << 20] * 4, 1]
    reader.ack(*received)
    stream.wait_settled()


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_after_a_crash_entries_come_again(stream: RedisSource) -> None:
    """At once to a consumer of this name."""
    stream.send("1", "2")
    crashed = stream.read()
    crashed.take(1)
    crashed.kill()
    reader = stream.read()
    received = reader.receive(2)
    assert payloads(received) == ["1", "2"]
    reader.ack(*received)
    stream.wait_settled()


@pytest.mark.parametrize("held", [False, True])
def test_entries_that_are_deleted_while_they_are_pending(stream: RedisSource, held: bool) -> None:
    ids = stream.send("1", "2", "3")
    crashed = stream.read()
    crashed.receive(3)
    crashed.kill()
    stream.client.xdel(stream.name, *ids[:2])
    reader = stream.read(consumer="c" if held else "d", min_idle=300)
    reader.ack(*reader.receive(1))
    reader.wait_logged("2 pending entries were deleted from the stream before they were acknowledged")
    stream.wait_settled()


def test_the_end_of_a_stream_is_kept_over_a_restart(make_stream: MakeStream, target: Target, consume: Consume) -> None:
    """It is the end at the first start, although no entry has come then: the group has it."""
    stream = make_stream(group=None)
    stream.send("before")
    options = stream.consumer_options(create_group_from="$")
    consumer = consume(**options)
    wait_until(lambda: stream.client.xinfo_groups(stream.name), what="the group")
    consumer.kill()
    ids = stream.send_events(5, range(1, 3))
    consume(**options)
    target.wait_applied(ids)


GAPS = "SELECT subscription, skipped, recreated FROM inbox.gaps"


@pytest.mark.parametrize("gone", ["trimmed", "the consumer"])
def test_an_entry_that_is_deleted_while_it_waits_for_its_next_attempt(
    stream: RedisSource, target: Target, consume: Consume, gone: str
) -> None:
    """The process has it, so it ends as a dead letter, and those behind it are applied."""
    ids = stream.send_events(1, range(1, 4))
    target.poison(ids[0])
    consumer = consume(
        **stream.consumer_options(**stream.short_leases()), max_attempts=1000, retry_base=50, retry_max=50
    )
    consumer.wait_for("an attempt", failures=1)
    if gone == "trimmed":
        stream.client.xtrim(stream.name, maxlen=0, approximate=False)
    else:
        stream.client.xgroup_delconsumer(stream.name, "g", "c")
    consumer.wait_logged("entries that this process holds were deleted")
    target.cure()
    target.wait_applied(ids)
    target.check_order()
    consumer.stop()
    assert target.execute(GAPS) == []


def test_entries_that_are_deleted_while_nobody_has_them_are_counted(
    stream: RedisSource, target: Target, consume: Consume
) -> None:
    stream.send("1", "2", "3")
    crashed = stream.read()
    crashed.receive(3)
    crashed.kill()
    stream.client.xtrim(stream.name, maxlen=1, approximate=False)
    consumer = consume(**stream.consumer_options(), housekeeping_interval=200)
    consumer.wait_for("the entry that is left", applied=1)
    wait_until(lambda: target.execute(GAPS), lambda gaps: gaps == [(stream.subscription, 2, 0)], what="the gap")
    assert consumer.state()["skipped"] == 2
    stream.wait_settled()


# -------------------------------------------------------------------------------------------------
# Groups
# -------------------------------------------------------------------------------------------------


def test_a_group_that_has_gone_while_nobody_read_begins_with_the_first_entry(
    make_stream: MakeStream, target: Target, consume: Consume
) -> None:
    """Only the first process of all begins at the end."""
    stream = make_stream(group=None)
    options = {**stream.consumer_options(create_group_from="$"), "housekeeping_interval": 200}
    consumer = consume(**options)
    wait_until(lambda: stream.client.exists(stream.name), what="the group to be created")
    ids = stream.send_events(1, range(1, 3))
    target.wait_applied(ids)
    consumer.stop()
    stream.client.delete(stream.name)
    ids += stream.send_events(1, range(3, 6))
    consume(**options)
    target.wait_applied(ids)
    wait_until(lambda: target.execute(GAPS), lambda gaps: gaps == [(stream.subscription, 0, 1)], what="the gap")


@pytest.mark.parametrize(("begin", "expected"), [("0", ["1", "2"]), ("$", ["2"])])
def test_a_group_is_created_if_asked(make_stream: MakeStream, begin: str, expected: list[str]) -> None:
    stream = make_stream(group=None)
    assert "NOGROUP" in stream.read(opened=False).command("open")["error"]
    assert not stream.client.exists(stream.name)
    stream.send("1")
    reader = stream.read(create_group_from=begin)
    stream.send("2")
    received = reader.receive(len(expected))
    assert payloads(received) == expected
    reader.ack(*received)
    stream.wait_settled()
    reader.close()
    stream.read(create_group_from=begin)  # it exists


def test_a_group_that_has_gone(stream: RedisSource) -> None:
    reader = stream.read()
    stream.client.xgroup_destroy(stream.name, "g")
    answer = reader.receive_error()
    assert "NOGROUP" in answer["error"] and answer["transient"]
    stream.client.xgroup_create(stream.name, "g", "0")
    reader.open()
    stream.send("1")
    assert payloads(reader.receive(1)) == ["1"]


@pytest.mark.parametrize("gone", ["the group", "the stream"])
def test_a_group_that_has_gone_is_created_again(stream: RedisSource, gone: str) -> None:
    """From the beginning, because nobody knows what was pending."""
    reader = stream.read(create_group_from="$")
    stream.send("1")
    reader.ack(*reader.receive(1))
    stream.wait_settled()
    if gone == "the group":
        stream.client.xgroup_destroy(stream.name, "g")
    else:
        stream.client.delete(stream.name)
    reader.wait_logged("error: redis://" + stream.name + "/g: the consumer group has gone; creating it again from 0")
    stream.send("2")
    expected = ["1", "2"] if gone == "the group" else ["2"]
    received = reader.receive(len(expected))
    assert payloads(received) == expected
    reader.ack(*received)
    stream.wait_settled()


def test_a_server_that_forgets_everything(make_stream: MakeStream, start: Start) -> None:
    """Its ids begin again, below those that were there."""
    stream = make_stream(start())
    reader = stream.read(create_group_from="0")
    stream.client.xadd(stream.name, {"payload": "1"}, id="5000-0")
    held = reader.receive(1)
    stream.broker.kill()
    stream.broker.start()
    reader.wait_logged("creating it again from 0")
    wait_until(
        lambda: stream.client.xadd(stream.name, {"payload": "2"}, id="7-0"), what="a stream", ignoring=(Exception,)
    )
    reader.ack(*held)
    received = reader.receive(1)
    assert payloads(received) == ["2"]
    reader.ack(*received)
    stream.wait_settled()


def test_a_key_that_is_not_a_stream(make_stream: MakeStream) -> None:
    stream = make_stream(group=None)
    stream.client.set(stream.name, "a string")
    answer = stream.read(opened=False).command("open")
    assert "WRONGTYPE" in answer["error"] and not answer["transient"]


# -------------------------------------------------------------------------------------------------
# Servers
# -------------------------------------------------------------------------------------------------


def test_a_server_that_is_silent(stream: RedisSource) -> None:
    reader = stream.read(request_timeout=500)
    stream.client.client_pause(3000, all=False)  # of commands that write
    reader.wait_logged("no answer within 500ms (request_timeout)")
    stream.client.client_unpause()
    stream.send("1")
    assert payloads(reader.receive(1)) == ["1"]


def test_users_and_rights(make_stream: MakeStream, start: Start) -> None:
    stream = make_stream(start())
    commands = ["+xreadgroup", "+xack", "+xclaim", "+xautoclaim"]
    stream.client.execute_command("ACL", "SETUSER", "alice", "on", ">s3cret-of-alice", f"~{stream.name}", *commands)
    reader = stream.read(user="alice", password="s3cret-of-alice", min_idle=300)
    stream.send("1")
    reader.ack(*reader.receive(1))
    stream.wait_settled()
    stream.client.execute_command("ACL", "SETUSER", "alice", "-xreadgroup")
    answer = reader.receive_error()
    assert "NOPERM" in answer["error"] and answer["transient"]
    stream.client.execute_command("ACL", "SETUSER", "alice", "+xreadgroup")
    reader.open()
    assert "s3cret" not in reader.log()


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_tls(make_stream: MakeStream, start: Start, mutual: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="outbox-certificates-") as directory:
        certificates = make_certificates(Path(directory))
        port = free_port()
        stream = make_stream(start(
            tls_port=str(port), tls_cert_file=certificates.certificate, tls_key_file=certificates.key,
            tls_ca_cert_file=certificates.authority, tls_auth_clients="yes" if mutual else "no",
        ))  # fmt: skip
        options: dict[str, object] = {"servers": f"127.0.0.1:{port}", "tls": 1}
        answer = stream.read(opened=False, **options).command("open")
        assert "certificate" in answer["error"]
        options["ca_file"] = certificates.authority
        if mutual:
            assert "error" in stream.read(opened=False, **options).command("open")
            options["certificate"], options["private_key"] = client_certificate(Path(directory))
        reader = stream.read(**options)
        stream.send("1")
        reader.ack(*reader.receive(1))
        stream.wait_settled()


def test_a_replica_is_passed_over(make_stream: MakeStream, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    wait_until(
        lambda: replica.client().info("replication")["master_link_status"], lambda s: s == "up", what="replication"
    )
    stream = make_stream(primary)
    reader = stream.read(
        opened=False, servers=f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}", request_timeout=5000
    )
    wait_until(lambda: reader.command("open"), lambda answer: answer == {}, what="the primary")
    stream.send("1")
    assert payloads(reader.receive(1)) == ["1"]


def test_a_failover_with_sentinel(make_stream: MakeStream, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    sentinel = start(sentinel=[
        f"monitor main 127.0.0.1 {primary.port} 1", "down-after-milliseconds main 500", "failover-timeout main 2000",
    ])  # fmt: skip
    stream = make_stream(primary)
    wrong = stream.read(opened=False, servers=f"127.0.0.1:{sentinel.port}", sentinel="other")
    answer = wrong.command("open")
    assert 'Sentinel knows no primary "other"' in answer["error"] and not answer["transient"]
    reader = stream.read(servers=f"127.0.0.1:{sentinel.port}", sentinel="main")
    stream.send("1")
    held = reader.receive(1)
    client = replica.client(decode_responses=True)
    wait_until(
        lambda: client.xpending(stream.name, "g")["pending"], lambda n: n == 1,
        what="the replica to have it", ignoring=(Exception,),
    )  # fmt: skip
    wait_until(
        lambda: sentinel.client(decode_responses=True).execute_command("SENTINEL", "replicas", "main"),
        what="the replica to be known",
    )
    primary.kill()
    wait_until(
        lambda: client.role()[0], lambda role: role in ("master", b"master"), what="another primary", timeout=180
    )
    client.xadd(stream.name, {"payload": "2"})
    more = reader.receive(1)
    assert payloads(more) == ["2"]
    reader.ack(*held, *more)
    wait_until(lambda: client.xpending(stream.name, "g")["pending"], lambda n: n == 0, what="acknowledgements")


def test_streams_of_a_cluster(make_stream: MakeStream, start: Start) -> None:
    cluster = RedisCluster(start)
    nodes = [server.client(decode_responses=True) for server in cluster.servers]
    names = [next(f"lane{n}" for n in itertools.count() if cluster.place(f"lane{n}") == place) for place in range(3)]
    for name, node in zip(names, nodes):
        node.xgroup_create(name, "g", "0", mkstream=True)
        node.xadd(name, {"payload": name})
    reader = make_stream(start()).read(servers=f"127.0.0.1:{cluster.servers[0].port}", streams=",".join(names))
    received = reader.receive(3)
    assert {d["payload"] for d in received} == set(names)
    reader.ack(*received)
    for name, node in zip(names, nodes):
        wait_until(lambda: node.xpending(name, "g")["pending"], lambda n: n == 0, what="acknowledgements")
    move_slot(cluster, names[0], nodes[0], nodes[1])
    nodes[1].xadd(names[0], {"payload": "moved"})
    received = reader.receive(1)
    assert payloads(received) == ["moved"]
    reader.ack(*received)
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


def test_a_consumer_that_stands_still(stream: RedisSource, target: Target, consume: Consume) -> None:
    """Another one takes over what it holds. When it goes on, both have some entries."""
    ids = stream.send_events(10, range(1, 11))
    target.poison(ids[0])
    policy = {"max_attempts": 100_000, "retry_base": 10, "retry_max": 10}
    first = consume(**stream.consumer_options(min_idle=1000, prefetch=100), **policy)
    wait_until(target.applied, what="an event")
    wait_until(stream.pending, lambda seen: "c" in seen, what="an entry in hand")
    stop_process(first.process.pid)
    other = consume(**stream.consumer_options(consumer="d", min_idle=1000, prefetch=100), **policy)
    wait_until(stream.pending, lambda seen: "c" not in seen and "d" in seen, what="the other one to take over")
    first.process.send_signal(signal.SIGCONT)
    target.cure()
    ids += stream.send_events(10, range(11, 21))
    target.wait_applied(ids)
    stream.wait_settled()
    assert first.process.poll() is None and other.process.poll() is None
