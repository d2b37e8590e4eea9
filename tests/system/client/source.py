"""A source for the conformance suite: what the C++ source reads, and the C++ source by itself.

`Source` is a queue, stream, topic or subscription of the test's own, with an independent client beside it.
`Reader` is the C++ source in a process of its own, which takes the commands of tests/programs/source_driver.hpp.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from cluster import Installation
from database import Database
from processes import end_process
from waiting import wait_until

Delivery = dict[str, Any]

# Abilities that a source may lack and list in `cannot`.
ABILITIES: Mapping[str, str] = {
    "order": "messages of a key come in order, also when one is given back",
    "prefetch": "the number of messages that a reader holds is limited",
    "single": "messages are acknowledged one by one",
    "close": "close() gives back at once what is not settled, and loses no acknowledgement",
    "leases": "a reader keeps its messages by extending a lease",
    "crashes": "messages of a reader that was killed come to another one",
    "cut": "its connections can be cut, and are made again",
    "missing": "what it reads may not exist",
    "logins": "the server can refuse a login",
    "kills": "consumers can be killed one after the other",
    "restarts": "the server can be restarted",
    "offsets": "each event saves an offset",
    "recreate": "what it reads can be deleted and made again",
    "incarnations": "it tells what was made again from what was there before",
}


class Reader:
    def __init__(self, program: Path, options: Mapping[str, object]) -> None:
        arguments = [f"{name}={value}" for name, value in options.items() if value != ""]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(program), *arguments],
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

    def error(self) -> dict[str, Any]:
        """Returns the error of open(), or waits for one of receive()."""
        return self.command("open") or self.receive_error()

    def poll(self, most: int = 1000, *, wait: float = 0) -> list[Delivery]:
        """Returns what comes within this number of seconds."""
        answer = self.command("receive", most, int(wait * 1000))
        assert isinstance(answer, list), answer
        return answer

    def receive(self, count: int) -> list[Delivery]:
        """Waits until exactly this number of messages has come."""
        received = self._collect(count, lambda left: 1000)
        assert len(received) == count, payloads(received)
        return received

    def take(self, count: int) -> list[Delivery]:
        """Takes this number of messages and leaves others with the source."""
        return self._collect(count, lambda left: left)

    def _collect(self, count: int, most: Callable[[int], int]) -> list[Delivery]:
        received: list[Delivery] = []

        def more() -> int:
            received.extend(self.poll(most(count - len(received)), wait=0.1))
            return len(received)

        try:
            wait_until(more, lambda seen: seen >= count, what=f"{count} deliveries")
        except AssertionError as failed:
            raise AssertionError(f"{failed}; got {payloads(received)}\n{self.log()}") from None
        return received

    def receive_error(self) -> dict[str, Any]:
        """Waits until the source throws."""
        return wait_until(
            lambda: self.command("receive", 10, 100), lambda answer: isinstance(answer, dict),
            what="an error from receive",
        )  # fmt: skip

    def ack(self, *deliveries: Delivery) -> None:
        self._settle("ack", deliveries)

    def nack(self, *deliveries: Delivery) -> None:
        self._settle("nack", deliveries)

    def _settle(self, how: str, deliveries: tuple[Delivery, ...]) -> None:
        if deliveries:
            assert self.command(how, ",".join(str(d["number"]) for d in deliveries)) == {}

    def stats(self) -> dict[str, int]:
        return self.command("stats")

    def wait_stats(self, **figures: int) -> dict[str, int]:
        """Waits until the figures are exactly these. Receives nothing."""
        try:
            return wait_until(
                self.stats, lambda stats: all(stats[name] == value for name, value in figures.items()),
                what=f"stats {figures}",
            )  # fmt: skip
        except AssertionError as failed:
            raise AssertionError(f"{failed}\n{self.log()}") from None

    def wait_logged(self, text: str, times: int = 1) -> None:
        wait_until(self.log, lambda log: log.count(text) >= times, what=f"the source to say {text!r}")

    def close(self, limit: float = 20) -> None:
        assert self.command("close", int(limit * 1000)) == {}

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        end_process(self.process, self.log)


class Source(ABC):
    kind: ClassVar[str]  # of source, as programs and options name it
    server: ClassVar[str]  # the fixture with the server it needs
    # ABILITIES that it lacks, with the reason; tests that need them leave it out.
    cannot: ClassVar[Mapping[str, str]] = {}
    # ABILITIES that take so long to show that their tests belong to the long run, with the reason.
    dear: ClassVar[Mapping[str, str]] = {}
    sink: ClassVar[str] = ""  # the module with the sink, if it has another name than the source
    formats: ClassVar[tuple[str, ...]] = ("attributes", "binary", "structured")  # of the sink
    another: ClassVar[Mapping[str, object]] = {}  # options of a second reader
    patient: ClassVar[Mapping[str, object]] = {}  # options with which requests wait for messages for a long time
    connection_owns_messages: ClassVar[bool] = False  # what a connection got comes again when it is lost
    comes_again_in_order: ClassVar[bool] = False  # also without a key
    said_when_cut: ClassVar[tuple[str, int]]  # `cut`: what a reader says, and how many times
    missing: ClassVar[tuple[Mapping[str, object], str]]  # `missing`: options, and words of the error
    any_key: ClassVar[str] = "k ä"  # an ordering key that is text of any kind, if the sink can send it
    name: str
    topic: str  # of deliveries
    subscription: str  # of offsets

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.readers: list[Reader] = []

    @classmethod
    def program(cls, installation: Installation) -> Path:
        return installation.programs / f"{cls.kind}_source"

    @abstractmethod
    def options(self) -> dict[str, object]:
        """Returns options of the source; the first one names the server or the place."""

    def read(self, /, *, opened: bool = True, **options: object) -> Reader:
        self.readers.append(Reader(self.program(self.installation), {**self.options(), **options}))
        if opened:
            self.readers[-1].open()
        return self.readers[-1]

    def consumer_options(self, **options: object) -> dict[str, object]:
        """Returns options of the program `consume`, with these of the source."""
        (_, first), *others = {**self.options(), **options}.items()
        return {self.kind: first, **{f"{self.kind}_{name}": value for name, value in others if value != ""}}

    @abstractmethod
    def send(self, *bodies: str, key: str = "", **attributes: str) -> list[str]:
        """Publishes as the sink does; returns what Delivery.message_id will be."""

    def send_anonymous(self, *bodies: str) -> None:
        """Publishes without an id of the sender, in places that are the same when what is read was made again."""
        self.send(*bodies)

    def send_events(self, keys: int, versions: range) -> list[str]:
        """Publishes these versions of each key; returns the ids."""
        ids = []
        for version in versions:
            for key in range(keys):
                ids.append(str(uuid.uuid4()))
                self.send("{}", key=f"k{key}", event_id=ids[-1], event_type="changed", version=str(version))
        return ids

    @abstractmethod
    def left(self) -> int:
        """Returns the number of messages that are not acknowledged, where that can be seen."""

    def wait_settled(self) -> None:
        wait_until(self.left, lambda left: left == 0, what=f"{self.name} to be settled", ignoring=(Exception,))

    def add_destination(self, database: Database) -> None:
        """Makes the destination `d`, whose events come here."""
        raise NotImplementedError

    def close(self) -> None:
        for reader in self.readers:
            reader.kill()

    # ---- what `cannot` leaves out -----------------------------------------------------------------

    most_held: ClassVar[int]  # `prefetch`: messages that the server has handed out when the limit is 10

    def held(self) -> int:
        """`prefetch`: returns the number of messages that the server has handed out."""
        raise NotImplementedError

    def short_leases(self, seconds: int = 1) -> dict[str, object]:
        """Makes leases about as short as that, if there are any; returns options of readers."""
        return {}

    def wait_extended(self, reader: Reader) -> None:
        """`leases`: waits until the reader has held messages for longer than a short lease."""
        raise NotImplementedError

    def cut(self) -> None:
        """`cut`: ends connections, and refuses others."""
        self.proxy.refuse_connections()

    def mend(self) -> None:
        self.proxy.listen()

    proxy: Any
    # `recreate`: options with which a reader soon sees that what it reads is not what it was.
    attentive: ClassVar[Mapping[str, object]] = {}

    def recreate(self) -> None:
        """`recreate`: deletes what is read, and makes it again."""
        raise NotImplementedError

    def wrong_logins(self) -> list[tuple[Mapping[str, object], str]]:
        """`logins`: returns options with a wrong login, and words of the error."""
        raise NotImplementedError

    def restart(self) -> list[str]:
        """`restarts`: returns the ids of events it sends to see whether the server is back."""
        raise NotImplementedError


def payloads(deliveries: list[Delivery]) -> list[str]:
    return [delivery["payload"] for delivery in deliveries]


def by_key(deliveries: list[Delivery]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for delivery in deliveries:
        keys[delivery["key"]].append(delivery["payload"])
    return dict(keys)
