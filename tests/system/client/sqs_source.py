"""Queues of SQS, behind a proxy, with Amazon's client beside them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, ClassVar

from cluster import Installation
from database import Database
from receiver import Request
from sinks.fault_proxy import FaultProxy
from sinks.servers import Server
from waiting import wait_until

from .source import Reader, Source

REGION = "eu-west-1"


def action(request: Request) -> str:
    return request.headers.get("x-amz-target", "").partition(".")[2]


def calls(*actions: str) -> Callable[[Request], bool]:
    """Returns requests of the source by name."""
    return lambda request: action(request) in actions


class SqsSource(Source):
    """A FIFO queue; the group is the ordering key."""

    kind = "sqs"
    server = "aws_server"
    fifo: ClassVar[bool] = True
    cannot = {
        "prefetch": "a poll takes ten messages",
        "logins": "servers of tests accept any key",
        "restarts": "servers of tests forget everything",
        "recreate": "the service names its messages, also of a queue that was made again",
        "incarnations": "a queue has no offsets",
    }
    sink = "pg_outbox_aws"
    formats = ("attributes", "structured")
    dear = {"kills": "each round waits until messages are visible again"}
    any_key = "k-1"  # of others the sink sends a hash
    patient = {"poll": 5}
    said_when_cut = ("cannot receive", 1)
    missing = ({"queue": "nowhere"}, 'cannot find queue "nowhere": HTTP 400')

    def __init__(self, installation: Installation, server: Server) -> None:
        import boto3

        super().__init__(installation)
        self.broker = server
        self.proxy = FaultProxy(server.port)
        self.client = boto3.Session("any", "any", region_name=REGION).client("sqs", endpoint_url=self.endpoint)
        self.name = self.topic = f"q-{uuid.uuid4().hex[:12]}{'.fifo' if self.fifo else ''}"
        self.subscription = f"sqs://{REGION}/{self.name}"
        attributes = {"FifoQueue": "true"} if self.fifo else {}
        self.url = self.client.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.broker.port}"

    def options(self) -> dict[str, object]:
        return {
            "queue": self.name, "region": REGION, "access_key_id": "any", "secret_access_key": "s3cret",
            "endpoint": f"http://127.0.0.1:{self.proxy.port}", "visibility": 3600, "retry_base": 1, "retry_max": 20,
            "pollers": 1, "poll": 1,
        }  # fmt: skip

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        """An event without a key is a group of its own."""
        ids = []
        for body in bodies:
            one = uuid.uuid4().hex
            group = {"MessageGroupId": key or attributes.get("event_id", one), "MessageDeduplicationId": one}
            sent = self.client.send_message(
                QueueUrl=self.url, MessageBody=body, MessageAttributes=as_attributes(attributes),
                **(group if self.fifo else {}),
            )  # fmt: skip
            ids.append(sent["MessageId"])
        return ids

    def left(self) -> int:
        """Returns the number of messages in the queue, visible or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def add_destination(self, database: Database) -> None:
        database.add_destination("d", f"sqs://{REGION}?endpoint={self.endpoint}", queue=self.name)
        keys = "access_key_id 'any', secret_access_key 'any'"
        database.execute(f"CREATE USER MAPPING FOR postgres SERVER d OPTIONS ({keys})")

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        return {"visibility": max(2, seconds)}

    def wait_extended(self, reader: Reader) -> None:
        before = len(self.requests("ChangeMessageVisibilityBatch"))
        self.wait_for_requests("ChangeMessageVisibilityBatch", before + 3)

    def requests(self, *actions: str) -> list[Request]:
        """Returns the source's requests of these actions so far."""
        return [request for request in list(self.proxy.requests) if action(request) in actions]

    def wait_for_requests(self, name: str, count: int) -> list[Request]:
        return wait_until(
            lambda: self.requests(name), lambda seen: len(seen) >= count,
            what=f"{count} requests {name}; so far {[action(r) for r in self.proxy.requests]}",
        )  # fmt: skip

    def close(self) -> None:
        super().close()
        self.proxy.close()
        self.client.delete_queue(QueueUrl=self.url)


class StandardSqsSource(SqsSource):
    fifo = False
    dear = {**SqsSource.dear, "leases": "takes six seconds, and FIFO queues show the same"}
    cannot = {**SqsSource.cannot, "order": "a standard queue has none"}


class ElasticMqSource(SqsSource):
    server = "elasticmq_server"


class StandardElasticMqSource(StandardSqsSource):
    server = "elasticmq_server"


def as_attributes(values: dict[str, str]) -> dict[str, Any]:
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
