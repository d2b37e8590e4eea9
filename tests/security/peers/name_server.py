"""A hostile name server: the answer may be another one each time."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

A, AAAA = 1, 28
# (name, type, number of questions before this one with the same name and type) -> addresses
Answers = Callable[[str, int, int], Iterable[str]]


class NameServer:
    """Listens on port 53 of an address of loopback, for UDP; its answers are short."""

    def __init__(self, address: str, answers: Answers) -> None:
        self.answers = answers
        self.asked: Counter[tuple[str, int]] = Counter()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        self.socket.settimeout(0.2)
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while not self.closed.is_set():
            with suppress(TimeoutError):
                question, client = self.socket.recvfrom(4096)
                with suppress(ValueError, IndexError, struct.error):
                    self.socket.sendto(self._answer(question), client)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while size := question[at]:
            labels.append(question[at + 1 : at + 1 + size].decode("ascii"))
            at += size + 1
        (kind,) = struct.unpack_from("!H", question, at + 1)
        name = ".".join(labels).lower()
        addresses = [ipaddress.ip_address(text) for text in self.answers(name, kind, self.asked[name, kind])]
        self.asked[name, kind] += 1
        records = [
            struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(address.packed)) + address.packed for address in addresses
        ]
        head = question[:2] + struct.pack("!HHHHH", 0x8180, 1, len(records), 0, 0)
        return head + question[12 : at + 5] + b"".join(records)

    def close(self) -> None:
        self.closed.set()
        self.thread.join(10)
        self.socket.close()

    def __enter__(self) -> NameServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
