"""The NATS source under test (tests/programs/nats_source.cpp), and a consumer of a stream that it reads."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from typing import Any

from cluster import Installation
from processes import end_process
from sinks.nats_server import NatsClient, NatsServer
from waiting import wait_until

from .sqs_source import SqsSource

numbers = itertools.count(1)


class Stream:
    """A stream of the test's own with a pull consumer, and nats-py beside it."""

    def __init__(self, server: NatsServer, *, ack_wait: float = 3600, **consumer: Any) -> None:
        from nats.js.api import ConsumerConfig

        self.server = server
        self.proxy = server.proxy
        self.client = NatsClient(server.port)
        self.name = f"s{next(numbers)}"
        self.consumer = "c"
        self.client.add_stream(self.name, [f"{self.name}.>"])
        config = ConsumerConfig(durable_name=self.consumer, ack_wait=ack_wait, **{"ack_policy": "explicit", **consumer})
        self.client.run(self.client.jetstream.add_consumer(self.name, config))
        self.commands: list[bytes] = []  # about messages, as the source has sent them

        async def note(message: Any) -> None:
            self.commands.append(message.data)

        self.client.run(self.client.connection.subscribe(f"$JS.ACK.{self.name}.>", cb=note))
        self.client.run(self.client.connection.flush())

    def send(self, *bodies: str, key: str = "", **headers: str) -> None:
        more = {"ordering_key": key} if key else {}
        for body in bodies:
            work = self.client.jetstream.publish(
                f"{self.name}.item", body.encode(), headers={**headers, **more} or None
            )
            self.client.run(work)

    def state(self) -> Any:
        return self.client.run(self.client.jetstream.consumer_info(self.name, self.consumer))

    def wait_settled(self) -> None:
        """Waits until all messages of the stream are acknowledged."""

        def left() -> int:
            state = self.state()
            return state.num_pending + state.num_ack_pending

        wait_until(left, lambda count: count == 0, what=f"{self.name} to be settled")

    def close(self) -> None:
        self.proxy.forget_rules()
        self.client.close()


class NatsSource(SqsSource):
    def __init__(self, installation: Installation, stream: Stream, options: dict[str, object]) -> None:
        defaults = {
            "servers": f"127.0.0.1:{stream.proxy.port}", "stream": stream.name, "consumer": stream.consumer,
            "retry_base": 1, "retry_max": 20,
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in {**defaults, **options}.items()]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(installation.programs / "nats_source"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def kill(self) -> None:
        end_process(self.process, self.log)
