"""What only SQS has: encodings, large answers, polls that are repeated, URLs of queues."""

from __future__ import annotations

import base64
import json

import pytest

from receiver import reset
from sinks import servers

from .conftest import MakeSource
from .source import payloads
from .sqs_source import (
    ElasticMqSource,
    SqsSource,
    StandardElasticMqSource,
    StandardSqsSource,
    as_attributes,
    calls,
)

servers.add_clients_to_path()


@pytest.fixture(
    params=[StandardSqsSource, pytest.param(StandardElasticMqSource, marks=pytest.mark.long)], ids=["moto", "elasticmq"]
)
def queue(make_source: MakeSource, request: pytest.FixtureRequest) -> SqsSource:
    return make_source(request.param)


@pytest.fixture(params=[SqsSource, pytest.param(ElasticMqSource, marks=pytest.mark.long)], ids=["moto", "elasticmq"])
def fifo(make_source: MakeSource, request: pytest.FixtureRequest) -> SqsSource:
    return make_source(request.param)


# -------------------------------------------------------------------------------------------------
# Messages
# -------------------------------------------------------------------------------------------------


def test_encodings_of_bodies_headers_and_attributes(queue: SqsSource) -> None:
    attributes = as_attributes({"encoding": "base64", "headers": json.dumps({"trace": "abc", "count": 1})})
    attributes["signature"] = {"DataType": "Binary", "BinaryValue": "ünï".encode()}
    body = base64.b64encode("café".encode()).decode()
    queue.client.send_message(QueueUrl=queue.url, MessageBody=body, MessageAttributes=attributes)
    (delivery,) = queue.read().receive(1)
    assert delivery["payload"] == "café"
    assert delivery["headers"] == {"trace": "abc", "count": "1", "signature": "ünï"}


def test_many_large_messages_come_in_one_answer(queue: SqsSource) -> None:
    body = "ö" * 100_000
    for _ in range(10):
        queue.send(body)
    assert payloads(queue.read().receive(10)) == 10 * [body]


def test_the_queue_may_be_given_by_its_url(queue: SqsSource) -> None:
    queue.send("x")
    url = f"http://127.0.0.1:{queue.proxy.port}/{queue.url.split('/', 3)[3]}"
    reader = queue.read(queue=url, endpoint="")
    reader.ack(*reader.receive(1))
    queue.wait_settled()
    assert queue.requests("GetQueueUrl") == []


# -------------------------------------------------------------------------------------------------
# Settling
# -------------------------------------------------------------------------------------------------


def test_what_is_given_back_comes_again_at_once(queue: SqsSource) -> None:
    queue.send("x")
    reader = queue.read()
    reader.nack(*reader.receive(1))
    (again,) = reader.receive(1)
    assert again["payload"] == "x"
    (request,) = queue.requests("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in request.json()["Entries"]] == [0]


# -------------------------------------------------------------------------------------------------
# Failures
# -------------------------------------------------------------------------------------------------


def test_a_poll_whose_answer_was_lost_is_repeated_as_the_same(fifo: SqsSource) -> None:
    fifo.send("1")
    fifo.proxy.on(calls("ReceiveMessage"), fifo.proxy.taken_then(reset), times=1)
    reader = fifo.read()
    if isinstance(fifo, ElasticMqSource):  # moto knows no attempts
        assert payloads(reader.receive(1)) == ["1"]
    attempts = [request.json()["ReceiveRequestAttemptId"] for request in fifo.wait_for_requests("ReceiveMessage", 3)]
    assert attempts[0] == attempts[1] != ""
    assert attempts[2] != attempts[0]
