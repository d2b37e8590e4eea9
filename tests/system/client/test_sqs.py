"""The SQS source against moto and ElasticMQ: messages that are held, settled and given back."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import Installation
from database import Database
from receiver import reset
from sinks import servers
from sinks.servers import Server
from waiting import SECOND, Stopwatch, wait_until

from .consumer import Target
from .sqs_source import REGION, Queue, SqsSource, as_attributes, calls, payloads

servers.add_clients_to_path()

MakeQueue = Callable[..., Queue]
MakeSource = Callable[..., SqsSource]


@pytest.fixture(scope="module", params=["moto", "elasticmq"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    try:
        with getattr(servers, request.param)() as server:
            yield server
    except servers.NotInstalled as missing:
        pytest.skip(f"NOT TESTED: {missing}; scripts/test.sh installs what can be had")


@pytest.fixture
def make_queue(server: Server) -> Iterator[MakeQueue]:
    made: list[Queue] = []

    def make(*, fifo: bool = False) -> Queue:
        made.append(Queue(server, fifo=fifo))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    return make_queue()


@pytest.fixture
def fifo(make_queue: MakeQueue) -> Queue:
    return make_queue(fifo=True)


@pytest.fixture
def make_source(installation: Installation) -> Iterator[MakeSource]:
    made: list[SqsSource] = []

    def make(queue: Queue, /, *, opened: bool = True, **options: object) -> SqsSource:
        made.append(SqsSource(installation, queue, options))
        if opened:
            made[-1].open()
        return made[-1]

    yield make
    for source in made:
        source.kill()


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_a_message_becomes_a_delivery(queue: Queue, make_source: MakeSource) -> None:
    id, began = "0193c0de-0000-7000-8000-00000000000a", time.time()
    queue.send(
        base64.b64encode(b"caf\xc3\xa9").decode(), event_id=id, event_type="Changed", aggregate_type="item",
        aggregate_id="7", version="3", content_type="text/plain", encoding="base64",
        headers=json.dumps({"trace": "abc", "count": 1}), other="x",
    )  # fmt: skip
    (delivery,) = make_source(queue).receive(1)
    expected = {
        "event_id": id, "type": "Changed", "aggregate_type": "item", "aggregate_id": "7", "version": 3,
        "content_type": "text/plain", "payload": "café", "topic": queue.name, "key": "",
        "headers": {"trace": "abc", "count": "1", "other": "x"}, "source": f"sqs://{REGION}/{queue.name}",
    }  # fmt: skip
    assert {name: delivery[name] for name in expected} == expected
    assert delivery["message_id"] and delivery["size"] > 20
    assert began - 1 <= delivery["published_at"] / 1e6 <= time.time() + 1


def test_messages_of_other_senders_keep_their_id(queue: Queue, make_source: MakeSource) -> None:
    queue.send("not of ours")
    source = make_source(queue)
    (first,) = source.receive(1)
    source.nack(first)
    (second,) = source.receive(1)
    assert first["event_id"] == second["event_id"] != ""
    assert second["payload"] == "not of ours"


def test_binary_attributes(queue: Queue, make_source: MakeSource) -> None:
    attributes = as_attributes({"event_type": "E"})
    attributes["signature"] = {"DataType": "Binary", "BinaryValue": "ünï".encode()}
    queue.client.send_message(QueueUrl=queue.url, MessageBody="{}", MessageAttributes=attributes)
    (delivery,) = make_source(queue).receive(1)
    assert delivery["headers"] == {"signature": "ünï"}


def test_many_large_messages_come_in_one_answer(queue: Queue, make_source: MakeSource) -> None:
    body = "ö" * 100_000
    for _ in range(10):
        queue.send(body)
    assert payloads(make_source(queue).receive(10)) == 10 * [body]


def test_the_queue_may_be_given_by_its_url(queue: Queue, make_source: MakeSource) -> None:
    queue.send("x")
    url = f"http://127.0.0.1:{queue.proxy.port}/{queue.url.split('/', 3)[3]}"
    source = make_source(queue, queue=url, endpoint="")
    source.ack(*source.receive(1))
    queue.wait_empty()
    assert queue.requests("GetQueueUrl") == []


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_what_is_given_back_comes_again_at_once(queue: Queue, make_source: MakeSource) -> None:
    queue.send("x")
    source = make_source(queue, visibility=3600)
    source.nack(*source.receive(1))
    (again,) = source.receive(1)
    assert again["payload"] == "x"
    (request,) = queue.requests("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in request.json()["Entries"]] == [0]


def test_a_group_comes_again_in_its_order(fifo: Queue, make_source: MakeSource) -> None:
    """A message received behind one that is given back must not be handled before it."""
    fifo.send("1", "2", "3", group="a")
    fifo.send("x", "y", group="b")
    source = make_source(fifo, visibility=3600)
    one, two = source.receive(2, most=2)  # the source holds the others
    assert (payloads([one, two]), one["key"]) == (["1", "2"], "a")
    source.nack(one, two)
    received: list[dict[str, Any]] = []
    while len(received) < 5:  # the rest of a group may come when its first is deleted
        received += source.receive(1, most=1)
        source.ack(received[-1])
    assert [d["payload"] for d in received if d["key"] == "a"] == ["1", "2", "3"]
    assert [d["payload"] for d in received if d["key"] == "b"] == ["x", "y"]


def test_a_group_of_one_event_is_not_an_ordering_key(fifo: Queue, make_source: MakeSource) -> None:
    """The sink sends events without an ordering key in this way."""
    id = "0193c0de-0000-7000-8000-00000000000a"
    fifo.send("{}", group=id, event_id=id, event_type="E")
    (delivery,) = make_source(fifo).receive(1)
    assert (delivery["event_id"], delivery["key"]) == (id, "")


# -------------------------------------------------------------------------------------------------
# Claims
# -------------------------------------------------------------------------------------------------


def test_what_is_held_is_extended(queue: Queue, make_source: MakeSource) -> None:
    queue.send("in hand", "with the source")
    source = make_source(queue, visibility=6)
    (delivery,) = source.receive(1, most=1)
    queue.wait_for_requests("ChangeMessageVisibilityBatch", 3)  # 9 s have passed
    assert queue.receive() == []
    (other,) = source.receive(1)
    source.ack(delivery, other)
    queue.wait_empty()


def test_after_a_crash_messages_come_again(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1")
    crashed = make_source(queue, visibility=2)
    crashed.receive(1)
    crashed.kill()
    assert payloads(make_source(queue).receive(1)) == ["1"]


def test_close_gives_back_what_is_held(queue: Queue, make_source: MakeSource) -> None:
    queue.send("1", "2", "3")
    source = make_source(queue, visibility=3600)
    received = source.receive(2, most=2)
    source.ack(received[0])
    source.close()
    left = {"1", "2", "3"} - {received[0]["payload"]}
    assert queue.left() == 2
    assert payloads(sorted(make_source(queue).receive(2), key=lambda d: d["payload"])) == sorted(left)


@pytest.mark.timing
def test_close_does_not_wait_for_polls(queue: Queue, make_source: MakeSource) -> None:
    source = make_source(queue, poll=5, visibility=2)
    queue.wait_for_requests("ReceiveMessage", 1)
    watch = Stopwatch()
    source.close()
    assert watch.seconds < 3 * SECOND
    source.open()  # it may be opened again
    queue.send("1")  # if the poll that was given up takes it, it is visible again after 2 s
    source.ack(*source.receive(1))
    queue.wait_empty()


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


def test_a_poll_whose_answer_was_lost_is_repeated_as_the_same(
    fifo: Queue, make_source: MakeSource, request: pytest.FixtureRequest
) -> None:
    fifo.send("1")
    fifo.proxy.on(calls("ReceiveMessage"), fifo.proxy.taken_then(reset), times=1)
    source = make_source(fifo, visibility=3600)
    if "elasticmq" in request.node.name:  # moto knows no attempts
        assert payloads(source.receive(1)) == ["1"]
    attempts = [request.json()["ReceiveRequestAttemptId"] for request in fifo.wait_for_requests("ReceiveMessage", 3)]
    assert attempts[0] == attempts[1] != ""
    assert attempts[2] != attempts[0]


def test_an_unreachable_service(queue: Queue, make_source: MakeSource) -> None:
    queue.proxy.refuse_connections()
    source = make_source(queue, opened=False, visibility=2)  # a poll that is cut off may have taken it
    failed = source.command("open")
    assert failed["transient"] and "cannot find queue" in failed["error"]
    queue.proxy.listen()
    source.open()
    queue.send("1")
    source.ack(*source.receive(1))
    queue.wait_empty()
    queue.proxy.refuse_connections()
    wait_until(source.log, lambda log: "cannot receive" in log, what="the source to notice")
    queue.send("2")
    queue.proxy.listen()
    assert payloads(source.receive(1)) == ["2"]


def test_a_queue_that_does_not_exist(queue: Queue, make_source: MakeSource) -> None:
    source = make_source(queue, opened=False, queue="nowhere")
    failed = source.command("open")
    assert not failed["transient"]
    assert 'cannot find queue "nowhere": HTTP 400' in failed["error"]


# -------------------------------------------------------------------------------------------------
# From an outbox to a consumer
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fifo", [True, False], ids=["fifo", "standard"])
def test_from_the_outbox(
    make_queue: MakeQueue, database: Database, target: Target, installation: Installation, is_fifo: bool
) -> None:
    queue = make_queue(fifo=is_fifo)
    endpoint = f"http://127.0.0.1:{queue.server.port}"
    database.add_destination("d", f"sqs://{REGION}?endpoint={endpoint}", queue=queue.name)
    database.execute("CREATE USER MAPPING FOR postgres SERVER d OPTIONS (access_key_id 'any', secret_access_key 'any')")
    ids = database.enqueue("a", 20) + database.enqueue("b", 20)
    program = str(installation.programs / "sqs_source")
    consumer = subprocess.Popen(
        [program, f"conninfo={target.conninfo}", f"queue={queue.name}", f"region={REGION}",
         f"endpoint={endpoint}", "access_key_id=any", "secret_access_key=any", "poll=1"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        target.wait_applied(ids)
        queue.wait_empty()
    finally:
        _, log = consumer.communicate(timeout=60)
    assert (consumer.returncode, log) == (0, "")
    if is_fifo:
        for key in "ab":
            versions = "SELECT version FROM applied WHERE key = %s ORDER BY number"
            assert [v for (v,) in target.execute(versions, (key,))] == list(range(1, 21))
    offsets = target.execute("SELECT subscription, message_id <> '' FROM inbox.offsets")
    assert offsets == [(f"sqs://{REGION}/{queue.name}", True)]
