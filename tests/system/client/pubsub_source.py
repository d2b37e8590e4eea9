"""The Pub/Sub source in a process of its own (tests/programs/pubsub_source.cpp)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any

from cluster import Installation
from processes import end_process
from waiting import wait_until

Message = dict[str, Any]


class SourceFailed(Exception):
    def __init__(self, text: str, transient: bool) -> None:
        super().__init__(text)
        self.transient = transient


class PubSubSource:
    def __init__(self, installation: Installation, **options: object) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        program = installation.programs / "pubsub_source"
        self.process = subprocess.Popen(
            [str(program), *(f"{name}={value}" for name, value in options.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def command(self, *fields: object) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write("\t".join(map(str, fields)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        assert line, f"the source has ended ({self.process.wait()}):\n{self.log()}"
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise SourceFailed(answer["error"], answer["transient"])
        return answer

    def open(self) -> PubSubSource:
        self.command("open")
        return self

    def receive(self, max_messages: int = 1000, *, wait: float = 0.0) -> list[Message]:
        """Returns the messages that come within this number of seconds."""
        messages: list[Message] = self.command("receive", max_messages, int(wait * 1000))
        return messages

    def wait_for(self, count: int, *, timeout: float = 60) -> list[Message]:
        """Waits for exactly this number of messages."""
        messages: list[Message] = []

        def more() -> int:
            messages.extend(self.receive(count - len(messages), wait=0.1))
            return len(messages)

        try:
            wait_until(more, lambda n: n >= count, what=f"{count} messages", timeout=timeout)
        except AssertionError as error:
            payloads = [m["payload"] for m in messages]
            raise AssertionError(f"{error}; got {payloads}; {self.stats()}\n{self.log()}") from None
        return messages

    def ack(self, messages: list[Message]) -> None:
        self.settle("ack", messages)

    def nack(self, messages: list[Message]) -> None:
        self.settle("nack", messages)

    def settle(self, how: str, messages: list[Message]) -> None:
        if messages:
            self.command(how, ",".join(str(message["number"]) for message in messages))

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.command("stats")
        return stats

    def wait_stats(self, *, timeout: float = 60, **figures: int) -> dict[str, int]:
        """Waits until the figures are exactly these."""

        def reached(stats: dict[str, int]) -> bool:
            return all(stats[name] == value for name, value in figures.items())

        try:
            return wait_until(self.stats, reached, what=f"stats {figures}", timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def wait_logged(self, text: str) -> None:
        wait_until(self.log, lambda seen: text in seen, what=f"the source to say {text!r}")

    def close(self, seconds: float = 10) -> None:
        self.command("close", int(seconds * 1000))

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        end_process(self.process, self.log)


def payloads(messages: list[Message]) -> list[str]:
    return [message["payload"] for message in messages]
