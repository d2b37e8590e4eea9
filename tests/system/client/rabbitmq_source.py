"""The RabbitMQ source under test (tests/programs/rabbitmq_source.cpp), and a queue that it reads.

pika publishes, with confirms, and tells how many messages are left.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from contextlib import suppress
from typing import Any

from cluster import Installation
from sinks.rabbitmq_server import RabbitmqServer
from waiting import wait_until

from .sqs_source import SqsSource

numbers = itertools.count(1)
KINDS = ["quorum", "classic", "stream"]
PROBE = "0193c0de-0000-7000-8000-0000000000ff"


class Queue:
    """A queue of the test's own, and a connection beside the source."""

    def __init__(self, server: RabbitmqServer, kind: str = "quorum", **arguments: Any) -> None:
        self.server = server
        self.proxy = server.proxy
        self.kind = kind
        self.name = f"q{next(numbers)}"
        self.arguments = {"x-queue-type": kind, **{f"x-{n.replace('_', '-')}": v for n, v in arguments.items()}}
        self.connect()
        self.channel.queue_declare(self.name, durable=True, arguments=self.arguments)

    def connect(self) -> None:
        self.connection = self.server.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def publish(self, body: str, headers: dict[str, Any], **properties: Any) -> None:
        import pika

        self.channel.basic_publish(
            "", self.name, body.encode(), pika.BasicProperties(headers=headers, delivery_mode=2, **properties),
            mandatory=True,
        )  # fmt: skip

    def send(self, *bodies: str, key: str = "", **headers: Any) -> None:
        more = {"ordering_key": key} if key else {}
        for body in bodies:
            self.publish(body, {**headers, **more})

    def takes_messages(self) -> bool:
        """A queue that has just started may refuse them, or not be found; then its channel is of no use."""
        import pika

        with suppress(pika.exceptions.AMQPError):
            self.connect()
            self.send("{}", event_id=PROBE)
            return True
        return False

    def ready(self) -> int:
        """The number of messages that no consumer has."""
        return self.channel.queue_declare(self.name, passive=True).method.message_count

    def left(self) -> int:
        """The number of messages, also of those that a consumer has."""
        return self.server.messages(self.name)

    def wait_settled(self) -> None:
        """Waits until all messages are acknowledged. A stream keeps them."""
        if self.kind != "stream":
            wait_until(self.left, lambda count: count == 0, timeout=60, what=f"{self.name} to be empty")

    def close(self) -> None:
        import pika

        self.proxy.forget_rules()
        with suppress(pika.exceptions.AMQPError):
            self.connection.close()


class RabbitmqSource(SqsSource):
    def __init__(self, installation: Installation, queue: Queue, options: dict[str, object]) -> None:
        defaults = {
            "server": f"127.0.0.1:{queue.proxy.port}", "queue": queue.name, "retry_base": 1, "retry_max": 20,
            "is_stream": int(queue.kind == "stream"),
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in {**defaults, **options}.items()]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(installation.programs / "rabbitmq_source"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def stats(self) -> dict[str, Any]:
        return self.command("stats")
