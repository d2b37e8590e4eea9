"""The SQS source under test (tests/programs/sqs_source.cpp), and a queue that it reads."""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

from cluster import Installation
from processes import end_process
from receiver import Request
from sinks.fault_proxy import FaultProxy
from sinks.servers import Server
from waiting import wait_until

REGION = "eu-west-1"


def action(request: Request) -> str:
    return request.headers.get("x-amz-target", "").partition(".")[2]


def calls(*actions: str) -> Callable[[Request], bool]:
    """Returns requests of the source by name."""
    return lambda request: action(request) in actions


class Queue:
    """A queue of the test's own, behind a proxy, and Amazon's client beside it."""

    def __init__(self, server: Server, *, fifo: bool) -> None:
        import boto3

        self.server = server
        self.fifo = fifo
        self.proxy = FaultProxy(server.port)
        self.client = boto3.Session("any", "any", region_name=REGION).client(
            "sqs", endpoint_url=f"http://127.0.0.1:{server.port}"
        )
        self.name = f"q-{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"
        self.url = self.client.create_queue(QueueName=self.name, Attributes={"FifoQueue": "true"} if fifo else {})[
            "QueueUrl"
        ]

    def send(self, *bodies: str, group: str = "a", **attributes: str) -> None:
        for body in bodies:
            more = {"MessageGroupId": group, "MessageDeduplicationId": uuid.uuid4().hex}
            self.client.send_message(
                QueueUrl=self.url, MessageBody=body, MessageAttributes=as_attributes(attributes),
                **(more if self.fifo else {}),
            )  # fmt: skip

    def receive(self) -> list[str]:
        """Returns bodies of the visible messages; they stay visible."""
        messages = self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=0, WaitTimeSeconds=0
        ).get("Messages", [])
        return [message["Body"] for message in messages]

    def left(self) -> int:
        """Returns the number of messages in the queue, visible or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def wait_empty(self) -> None:
        wait_until(self.left, lambda left: left == 0, what=f"{self.name} to be empty")

    def requests(self, *actions: str) -> list[Request]:
        """Returns the source's requests of these actions so far."""
        return [request for request in list(self.proxy.requests) if action(request) in actions]

    def wait_for_requests(self, name: str, count: int) -> list[Request]:
        return wait_until(
            lambda: self.requests(name), lambda seen: len(seen) >= count,
            what=f"{count} requests {name}; so far {[action(r) for r in self.proxy.requests]}",
        )  # fmt: skip

    def close(self) -> None:
        self.proxy.close()
        self.client.delete_queue(QueueUrl=self.url)


def as_attributes(values: dict[str, str]) -> dict[str, Any]:
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


class SqsSource:
    def __init__(self, installation: Installation, queue: Queue, options: dict[str, object]) -> None:
        defaults = {
            "queue": queue.name, "region": REGION, "access_key_id": "any", "secret_access_key": "s3cret",
            "endpoint": f"http://127.0.0.1:{queue.proxy.port}", "retry_base": 1, "retry_max": 20,
            "pollers": 1, "poll": 1,
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in {**defaults, **options}.items() if value != ""]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(installation.programs / "sqs_source"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def command(self, *fields: object) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, fields)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the source has ended ({self.process.wait()}):\n{self.log()}"
        return json.loads(answer)

    def open(self) -> None:
        assert self.command("open") == {}, self.log()

    def receive(self, count: int, *, most: int = 100) -> list[dict[str, Any]]:
        """Waits until this number of messages has come."""
        received: list[dict[str, Any]] = []

        def more() -> int:
            answer = self.command("receive", most, 100)
            assert isinstance(answer, list), answer
            received.extend(answer)
            return len(received)

        try:
            wait_until(more, lambda seen: seen >= count, what=f"{count} deliveries")
        except AssertionError as failed:
            raise AssertionError(f"{failed}\n{self.log()}") from None
        assert len(received) == count, payloads(received)
        return received

    def receive_error(self) -> dict[str, Any]:
        """Waits until the source throws."""
        return wait_until(
            lambda: self.command("receive", 10, 100), lambda answer: isinstance(answer, dict),
            what="an error from receive",
        )  # fmt: skip

    def ack(self, *deliveries: dict[str, Any]) -> None:
        assert self.command("ack", ",".join(str(d["number"]) for d in deliveries)) == {}

    def nack(self, *deliveries: dict[str, Any]) -> None:
        assert self.command("nack", ",".join(str(d["number"]) for d in deliveries)) == {}

    def close(self, limit: float = 20) -> None:
        assert self.command("close", int(limit * 1000)) == {}

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        end_process(self.process, self.log)


def payloads(deliveries: list[dict[str, Any]]) -> list[str]:
    return [delivery["payload"] for delivery in deliveries]
