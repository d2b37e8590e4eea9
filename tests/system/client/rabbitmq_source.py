"""Queues and streams of RabbitMQ. pika publishes, with confirms, and tells how many messages are left."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from cluster import Installation
from database import Database
from sinks.rabbitmq_server import RabbitmqServer
from waiting import wait_until

from .source import Source

numbers = itertools.count(1)
PROBE = "0193c0de-0000-7000-8000-0000000000ff"
HAS_NO_LEASES = {"leases": "a message belongs to a connection"}


class RabbitmqSource(Source):
    kind = "rabbitmq"
    server = "rabbitmq_server"
    queue_type: ClassVar[str] = "quorum"
    cannot = {
        **HAS_NO_LEASES,
        "recreate": "test_rabbitmq.py has a queue that is deleted",
        "incarnations": "a queue has no offsets",
    }
    most_held = 10
    connection_owns_messages = True
    comes_again_in_order = True
    said_when_cut = ("rabbitmq://", 2)
    missing = ({"queue": "another"}, "NOT_FOUND - no queue 'another'")

    def __init__(self, installation: Installation, server: RabbitmqServer, **arguments: Any) -> None:
        super().__init__(installation)
        self.broker = server
        self.proxy = server.proxy
        self.name = self.topic = f"q{next(numbers)}"
        self.subscription = f"rabbitmq:///{self.name}"
        self.sent = 0
        own = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.arguments = {"x-queue-type": self.queue_type, **own}
        self.connect()
        self.declare()

    def declare(self) -> None:
        self.channel.queue_declare(self.name, durable=True, arguments=self.arguments)

    def recreate(self) -> None:
        self.channel.queue_delete(self.name)
        self.declare()

    def connect(self) -> None:
        self.connection = self.broker.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def options(self) -> dict[str, object]:
        return {
            "server": f"127.0.0.1:{self.proxy.port}", "queue": self.name, "retry_base": 1, "retry_max": 20,
            "is_stream": int(self.queue_type == "stream"),
        }  # fmt: skip

    def publish(self, body: str, headers: dict[str, Any], **properties: Any) -> None:
        import pika

        self.channel.basic_publish(
            "", self.name, body.encode(), pika.BasicProperties(headers=headers, delivery_mode=2, **properties),
            mandatory=True,
        )  # fmt: skip
        self.sent += 1

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        content_type = attributes.pop("content_type", None)
        ids = []
        for body in bodies:
            ids.append(self.next_id(attributes.get("event_id", f"m{self.sent}")))
            more = {"ordering_key": key} if key else {}
            self.publish(body, {**attributes, **more}, message_id=ids[-1], content_type=content_type)
        return ids

    def next_id(self, message_id: str) -> str:
        return message_id

    def takes_messages(self) -> bool:
        """A queue that has just started may refuse them, or not be found; then its channel is of no use."""
        import pika

        with suppress(pika.exceptions.AMQPError):
            self.connect()
            self.send("{}", event_id=PROBE)
            return True
        return False

    def ready(self) -> int:
        """Returns the number of messages that no consumer has."""
        return self.channel.queue_declare(self.name, passive=True).method.message_count

    def left(self) -> int:
        """Returns the number of messages, also of those that a consumer has."""
        return self.broker.messages(self.name)

    def held(self) -> int:
        return self.sent - self.ready()

    def wait_settled(self) -> None:
        wait_until(self.ready, lambda count: count == 0, what=f"all messages of {self.name} to be taken")
        super().wait_settled()  # rabbitmqctl takes a second

    def add_destination(self, database: Database) -> None:
        database.add_destination("d", f"amqp://127.0.0.1:{self.broker.port}", routing_key=self.name)

    def wrong_logins(self) -> list[tuple[Mapping[str, object], str]]:
        return [
            ({"user": "alice", "password": "s3cret-of-bob"}, "ACCESS_REFUSED"),
            ({"virtual_host": "nowhere"}, "NOT_ALLOWED"),
            ({"user": "carol", "password": "s3cret-of-alice"}, "ACCESS_REFUSED"),
        ]

    def restart(self) -> list[str]:
        """Queues of other kinds than classic may take minutes to come back when a single node of 3.10 was killed."""
        self.broker.control("stop_app")
        self.broker.control("start_app")
        wait_until(self.takes_messages, what="the queue to take messages")
        return [PROBE]

    def close(self) -> None:
        import pika

        super().close()
        self.proxy.forget_rules()
        with suppress(pika.exceptions.AMQPError):
            self.connection.close()


class ClassicRabbitmqSource(RabbitmqSource):
    queue_type = "classic"

    def restart(self) -> list[str]:
        self.broker.sync()
        self.broker.kill()
        self.broker.start()
        wait_until(self.takes_messages, what="the queue to take messages")
        return [PROBE]


class RabbitmqStreamSource(RabbitmqSource):
    """It keeps what was read, and the offset is saved by the reader."""

    queue_type = "stream"
    cannot = {
        **HAS_NO_LEASES,
        "single": "the offset of the first message that is not applied is saved",
        "crashes": "a reader begins at the saved offset",
        "offsets": "test_rabbitmq.py has the offset of a stream",
    }
    most_held = 100  # a stream sends whole chunks
    attentive = {"request_timeout": 1000}

    def send_anonymous(self, *bodies: str) -> None:
        for body in bodies:
            self.publish(body, {})

    def next_id(self, message_id: str) -> str:
        return str(self.sent)

    def held(self) -> int:
        return self.sent

    def wait_settled(self) -> None:
        """A stream keeps what was read."""
