"""A stream of NATS with a pull consumer."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote

from cluster import Installation
from database import Database
from sinks.nats_server import NatsClient, NatsServer
from waiting import wait_until

from .source import Reader, Source

numbers = itertools.count(1)


class NatsSource(Source):
    kind = "nats"
    server = "nats_server"
    cannot = {
        "logins": "the server asks for none",
    }
    most_held = 30  # handed out, waiting, and on their way
    said_when_cut = ("nats://", 2)
    missing = ({"consumer": "another"}, "consumer not found")

    def __init__(self, installation: Installation, server: NatsServer, **consumer: Any) -> None:
        super().__init__(installation)
        self.broker = server
        self.proxy = server.proxy
        self.client = NatsClient(server.port)
        self.name = f"s{next(numbers)}"
        self.topic = f"{self.name}.item"
        self.subscription = f"nats://{self.name}/c"
        self.client.add_stream(self.name, [f"{self.name}.>"])
        self.consumer = {"durable_name": "c", "ack_wait": 3600, "ack_policy": "explicit", **consumer}
        self.configure()
        self.commands: list[bytes] = []  # about messages, as the source has sent them

        async def note(message: Any) -> None:
            self.commands.append(message.data)

        self.client.run(self.client.connection.subscribe(f"$JS.ACK.{self.name}.>", cb=note))
        self.client.run(self.client.connection.flush())

    def recreate(self) -> None:
        self.client.run(self.client.jetstream.delete_stream(self.name))
        self.client.add_stream(self.name, [f"{self.name}.>"])
        self.configure()

    def recreate_consumer(self) -> None:
        self.client.run(self.client.jetstream.delete_consumer(self.name, "c"))
        self.configure()

    def limit(self, messages: int) -> None:
        """From now on the stream deletes all but this number of messages."""
        from nats.js.api import StreamConfig

        limited = StreamConfig(name=self.name, subjects=[f"{self.name}.>"], max_msgs=messages)
        self.client.run(self.client.jetstream.update_stream(limited))

    def configure(self) -> None:
        from nats.js.api import ConsumerConfig

        self.client.run(self.client.jetstream.add_consumer(self.name, ConsumerConfig(**self.consumer)))

    def options(self) -> dict[str, object]:
        return {
            "servers": f"127.0.0.1:{self.proxy.port}", "stream": self.name, "consumer": "c",
            "retry_base": 1, "retry_max": 20,
        }  # fmt: skip

    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        headers = {**attributes, **({"ordering_key": key} if key else {})}
        quoted = {name: quote(value) for name, value in headers.items()} or None
        publish = self.client.jetstream.publish
        return [str(self.client.run(publish(self.topic, body.encode(), headers=quoted)).seq) for body in bodies]

    def state(self) -> Any:
        return self.client.run(self.client.jetstream.consumer_info(self.name, "c"))

    def held(self) -> int:
        return self.state().num_ack_pending

    def left(self) -> int:
        state = self.state()
        return state.num_pending + state.num_ack_pending

    def add_destination(self, database: Database) -> None:
        database.add_destination("d", f"nats://127.0.0.1:{self.broker.port}", subject=self.topic)

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        self.consumer["ack_wait"] = seconds
        self.configure()
        return {}

    def wait_extended(self, reader: Reader) -> None:
        wait_until(lambda: self.commands.count(b"+WPI"), lambda count: count >= 6, what="three extensions each")

    def restart(self) -> list[str]:
        self.broker.kill()
        self.broker.start()
        wait_until(self.state, what="the client beside it", ignoring=(Exception,))
        return []

    def close(self) -> None:
        super().close()
        self.proxy.forget_rules()
        self.client.close()


class CurrentNatsSource(NatsSource):
    server = "nats_current_server"
