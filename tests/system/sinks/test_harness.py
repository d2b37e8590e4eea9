"""The proxies and servers themselves, driven by independent clients.

A fault without an effect would test nothing.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cluster import Cluster
from database import Database, NewDatabase
from receiver import Receiver
from waiting import wait_until

from .aws_sinks import AwsSink, SnsFifoSink, SnsStandardSink, SqsFifoSink, SqsStandardSink
from .aws_streams import EventBridgeSink, KinesisSink, OrderedAnswersSink
from .fault_proxy import FaultProxy, TcpProxy
from .pubsub_sink import PubSubFakeSink
from .servers import Server
from .sink import message_of

# -------------------------------------------------------------------------------------------------
# HTTP
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(receiver: Receiver) -> Iterator[FaultProxy]:
    proxy = FaultProxy(receiver.port)
    yield proxy
    proxy.close()


def post(port: int, path: str = "/", body: bytes = b"", method: str = "POST") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, {"X-Test": "yes"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_the_proxy_passes_on_requests_and_answers(proxy: FaultProxy, receiver: Receiver) -> None:
    assert post(proxy.port, "/a?b=c", b"body") == (204, b"")
    (seen,) = receiver.requests
    assert (seen.method, seen.target, seen.body, seen.headers["x-test"]) == ("POST", "/a?b=c", b"body", "yes")
    assert seen.headers["host"] == f"127.0.0.1:{proxy.port}", "signatures cover the host"


def test_a_lost_request_never_reaches_the_server(proxy: FaultProxy, receiver: Receiver) -> None:
    proxy.lose_requests(1)
    with pytest.raises(ConnectionResetError):
        post(proxy.port)
    assert receiver.requests == []
    assert post(proxy.port) == (204, b"")


def test_a_lost_answer_is_one_of_the_server(proxy: FaultProxy, receiver: Receiver) -> None:
    proxy.lose_answers(1)
    with pytest.raises(ConnectionResetError):
        post(proxy.port)
    assert len(receiver.requests) == 1
    assert post(proxy.port) == (204, b"")


def test_a_held_answer_comes_when_the_gate_opens(proxy: FaultProxy, receiver: Receiver) -> None:
    gate = proxy.hold_answers(times=1)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(post(proxy.port)))
    thread.start()
    wait_until(lambda: gate.holding, what="the answer to be held")
    assert len(receiver.requests) == 1 and answers == []
    gate.open()
    thread.join()
    assert answers == [(204, b"")]


# -------------------------------------------------------------------------------------------------
# TCP
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(new_database: NewDatabase) -> Database:
    database = new_database(extension=False)
    database.execute("CREATE TABLE t (n int)")
    return database


@pytest.fixture
def tcp_proxy(shared_cluster: Cluster) -> Iterator[TcpProxy]:
    proxy = TcpProxy(shared_cluster.port)
    yield proxy
    proxy.close()


def insert_through(proxy: TcpProxy, database: Database) -> None:
    with psycopg.connect(f"host=127.0.0.1 port={proxy.port} user=postgres dbname={database.name}") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("COMMIT")


def test_a_lost_commit_did_not_happen(tcp_proxy: TcpProxy, plain: Database) -> None:
    tcp_proxy.lose_requests(1)
    with pytest.raises(psycopg.OperationalError):
        insert_through(tcp_proxy, plain)
    insert_through(tcp_proxy, plain)
    assert plain.value("SELECT count(*) FROM t") == 1


def test_a_commit_whose_answer_is_lost_has_happened(tcp_proxy: TcpProxy, plain: Database) -> None:
    tcp_proxy.lose_answers(1)
    with pytest.raises(psycopg.OperationalError):
        insert_through(tcp_proxy, plain)
    assert plain.value("SELECT count(*) FROM t") == 1


def test_a_held_commit_has_happened(tcp_proxy: TcpProxy, plain: Database) -> None:
    gate = tcp_proxy.hold_answers(times=1)
    thread = threading.Thread(target=insert_through, args=(tcp_proxy, plain))
    thread.start()
    wait_until(lambda: gate.holding, what="the answer to COMMIT to be held")
    assert plain.value("SELECT count(*) FROM t") == 1 and thread.is_alive()
    gate.open()
    thread.join()


# -------------------------------------------------------------------------------------------------
# SQS and SNS: Amazon's client must take what the proxy says for the server's word
# -------------------------------------------------------------------------------------------------


def attributes(version: int) -> dict[str, Any]:
    values = {
        "event_id": f"event-{version}", "event_type": "changed", "aggregate_type": "item",
        "aggregate_id": "ü & <a>", "version": str(version), "occurred_at": "2026-01-31T10:20:30Z",
    }  # fmt: skip
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


def send_batch(sink: AwsSink, client: Any, place: str, count: int) -> dict[str, Any]:
    body, many, where = ("MessageBody", "Entries", "QueueUrl")
    if not isinstance(sink, (SqsFifoSink, SqsStandardSink)):
        body, many, where = ("Message", "PublishBatchRequestEntries", "TopicArn")
    entries = [
        {"Id": str(n), body: f"Grüße & <{n}>", "MessageAttributes": attributes(n)}
        | ({"MessageGroupId": "g", "MessageDeduplicationId": str(n)} if sink.fifo else {})
        for n in range(1, count + 1)
    ]
    method = client.send_message_batch if many == "Entries" else client.publish_batch
    return method(**{where: place, many: entries})


@pytest.mark.parametrize("kind", [SqsFifoSink, SqsStandardSink, SnsFifoSink, SnsStandardSink])
def test_entries_fail_as_amazons_client_expects_it(kind: type[AwsSink], database: Database, make_aws: Any) -> None:
    sink, client, place = make_aws(kind)
    sink.refuse(lambda message: message.version in (2, 3), for_good=True, times=1)
    answered = send_batch(sink, client, place, 4)
    assert [entry["Id"] for entry in answered["Successful"]] == ["1", "4"]
    assert [(entry["Id"], entry["SenderFault"]) for entry in answered["Failed"]] == [("2", True), ("3", True)]
    assert [(m.version, m.payload) for m in sink.wait_for(["event-1", "event-4"])] == [
        (1, "Grüße & <1>".encode()), (4, "Grüße & <4>".encode())
    ]  # fmt: skip
    sink.refuse(lambda message: True, for_good=False, times=1)
    answered = send_batch(sink, client, place, 2)
    assert not answered.get("Successful") and len(answered["Failed"]) == 2


@pytest.mark.parametrize(
    "kind, code", [(SqsFifoSink, "RequestThrottled"), (SnsFifoSink, "Throttled")], ids=["sqs", "sns"]
)
def test_throttling_is_what_amazons_client_takes_for_it(kind: type[AwsSink], code: str, make_aws: Any) -> None:
    from botocore.exceptions import ClientError

    sink, client, place = make_aws(kind)
    sink.proxy.on(sink.proxy.carries, sink.throttle(1))
    with pytest.raises(ClientError) as caught:
        send_batch(sink, client, place, 2)
    assert caught.value.response["Error"]["Code"] == code


@pytest.fixture
def make_aws(database: Database, aws_server: Server) -> Iterator[Any]:
    """Makes a sink, a client that goes through its proxy, and the queue or topic to send to."""
    import boto3
    from botocore.config import Config

    made: list[AwsSink] = []

    def make(kind: type[AwsSink]) -> tuple[AwsSink, Any, str]:
        sink = kind(database, aws_server)
        made.append(sink)
        sink.add_topic()
        service = kind.name.partition("_")[0]
        client = boto3.Session("any", "any", region_name="eu-west-1").client(
            service, endpoint_url=sink.proxy.url(), config=Config(retries={"total_max_attempts": 1})
        )
        name = sink.full_name("item.events")
        if service == "sqs":
            return sink, client, client.get_queue_url(QueueName=name)["QueueUrl"]
        return sink, client, f"arn:aws:sns:eu-west-1:123456789012:{name}"

    yield make
    for sink in made:
        sink.close()


# -------------------------------------------------------------------------------------------------
# Kinesis and EventBridge: the same
# -------------------------------------------------------------------------------------------------


def document(version: int) -> str:
    attributes = {
        "specversion": "1.0", "id": f"event-{version}", "type": "changed", "source": "/shop/item", "subject": "ü",
        "time": "2026-01-31T10:20:30Z", "aggregateversion": str(version), "schemaversion": "1", "data": {"n": version},
    }  # fmt: skip
    return json.dumps(attributes)


def put(sink: OrderedAnswersSink, client: Any, count: int) -> list[dict[str, Any]]:
    """Returns the results."""
    name = sink.full_name("item.events")
    if isinstance(sink, KinesisSink):
        records = [{"Data": document(n), "PartitionKey": "k"} for n in range(1, count + 1)]
        return client.put_records(StreamName=name, Records=records)["Records"]
    entries = [
        {"EventBusName": name, "Source": "s", "DetailType": "t", "Detail": document(n)} for n in range(1, count + 1)
    ]
    return client.put_events(Entries=entries)["Entries"]


@pytest.fixture(params=[KinesisSink, EventBridgeSink], ids=["kinesis", "eventbridge"])
def ordered(
    request: pytest.FixtureRequest, database: Database, aws_server: Server
) -> Iterator[tuple[OrderedAnswersSink, Any]]:
    """A sink, and a client that goes through its proxy."""
    from botocore.config import Config

    sink = request.param(database, aws_server)
    sink.add_topic()
    client = sink.session.client(
        sink.service, endpoint_url=sink.proxy.url(), config=Config(retries={"total_max_attempts": 1})
    )
    yield sink, client
    sink.close()


def test_results_are_in_the_order_of_the_entries(ordered: tuple[OrderedAnswersSink, Any]) -> None:
    sink, client = ordered
    sink.refuse(lambda message: message.version in (2, 3), for_good=False, times=1)
    results = put(sink, client, 4)
    assert ["ErrorCode" in result for result in results] == [False, True, True, False]
    assert [result["ErrorMessage"] for result in results[1:3]] == ["not this one"] * 2
    arrived = sink.wait_for(["event-1", "event-4"])
    assert sorted((m.version, m.payload) for m in arrived) == [(1, b'{"n":1}'), (4, b'{"n":4}')]
    sink.refuse(lambda message: True, for_good=False, times=1)
    assert all("ErrorCode" in result for result in put(sink, client, 2))


def test_a_throttled_request_is_what_amazons_client_takes_for_it(ordered: tuple[OrderedAnswersSink, Any]) -> None:
    from botocore.exceptions import ClientError

    sink, client = ordered
    sink.proxy.on(sink.proxy.carries, sink.throttle(1))
    with pytest.raises(ClientError) as caught:
        put(sink, client, 2)
    assert caught.value.response["Error"]["Code"] in ("ProvisionedThroughputExceededException", "ThrottlingException")


# -------------------------------------------------------------------------------------------------
# Pub/Sub: the front of pstest
# -------------------------------------------------------------------------------------------------

PUBLISHED = {"event_id": "1", "event_type": "changed", "aggregate_type": "item", "aggregate_id": "a",
             "occurred_at": "2026-01-31T10:20:30Z"}  # fmt: skip


def publish(sink: PubSubFakeSink, topic: str, *messages: dict[str, Any]) -> tuple[int, Any]:
    path = f"/v1/projects/{sink.project}/topics/{topic}:publish"
    status, body = post(sink.proxy.port, path, json.dumps({"messages": messages}).encode())
    return status, json.loads(body)


@pytest.fixture
def fake(database: Database, pub_sub_fake: Server) -> Iterator[PubSubFakeSink]:
    sink = PubSubFakeSink(database, pub_sub_fake)
    yield sink
    sink.close()


def test_what_is_published_over_rest_is_read_over_grpc(fake: PubSubFakeSink) -> None:
    fake.add_topic()
    data = base64.b64encode(b"\x00\xff").decode()
    status, body = publish(
        fake, "item.events", {"data": data, "attributes": {**PUBLISHED, "tenant": "ü"}, "orderingKey": "k ä"}
    )
    assert status == 200 and len(body["messageIds"]) == 1
    (message,) = fake.wait_for(["1"])
    assert message == message_of(PUBLISHED, ordering_key="k ä", headers={"tenant": "ü"}, payload=b"\x00\xff")


FAULTY: dict[str, tuple[str, list[dict[str, Any]], int, str]] = {
    "no topic": ("other.events", [{"data": "YQ=="}], 404, "NOT_FOUND"),
    "name too short": ("t1", [{"data": "YQ=="}], 400, "INVALID_ARGUMENT"),
    "no message": ("item.events", [], 400, "INVALID_ARGUMENT"),
    "empty message": ("item.events", [{"orderingKey": "a"}], 400, "INVALID_ARGUMENT"),
    "too many": ("item.events", [{"data": "YQ=="}] * 1001, 400, "INVALID_ARGUMENT"),
    "too large": ("item.events", [{"data": "YWFh" * 3_400_000}], 400, "INVALID_ARGUMENT"),
    "keys mixed": ("item.events", [{"data": "YQ=="}, {"data": "YQ==", "orderingKey": "a"}], 400, "INVALID_ARGUMENT"),
    "key too long": ("item.events", [{"data": "YQ==", "orderingKey": "k" * 1025}], 400, "INVALID_ARGUMENT"),
    "long attribute": ("item.events", [{"attributes": {"a": "v" * 1025}}], 400, "INVALID_ARGUMENT"),
    "reserved": ("item.events", [{"attributes": {"googclient": "v"}}], 400, "INVALID_ARGUMENT"),
    "unknown field": ("item.events", [{"data": "YQ==", "ordering": "a"}], 400, "INVALID_ARGUMENT"),
    "no base64": ("item.events", [{"data": "?"}], 400, "INVALID_ARGUMENT"),
}  # fmt: skip


def test_the_front_refuses_what_the_service_refuses(fake: PubSubFakeSink) -> None:
    fake.add_topic()
    for what, (topic, messages, code, status) in FAULTY.items():
        answered, body = publish(fake, topic, *messages)
        assert (answered, body["error"]["status"]) == (code, status), what
    assert fake.messages() == []
