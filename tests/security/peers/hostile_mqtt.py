"""Hostile brokers of MQTT: each mode takes part in the protocol as far as it has to, and then does not."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .peer import Mode, Session

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, DISCONNECT = 1, 2, 3, 4, 5, 14
FORGED = b"\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x1b[2J\xc2\x9b31m\xe2\x80\xae\xff"


def length(size: int) -> bytes:
    encoded = bytearray()
    while True:
        size, digit = size >> 7, size & 0x7F
        encoded.append(digit | (0x80 if size else 0))
        if not size:
            return bytes(encoded)


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    return bytes([kind << 4 | flags]) + length(len(body)) + body


def text(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


def properties(value: bytes = b"") -> bytes:
    return length(len(value)) + value


def reason(value: bytes) -> bytes:
    return properties(b"\x1f" + text(value))


WELCOME = packet(CONNACK, b"\0\0" + properties())


def read(session: Session) -> tuple[int, bytes]:
    """Returns kind and body of a packet of the relay."""
    kind = session.receive(1)[0] >> 4
    size = shift = 0
    while True:
        (digit,) = session.receive(1)
        size |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return kind, session.receive(size)


def number_of(publish: bytes) -> bytes:
    (size,) = struct.unpack("!H", publish[:2])
    return publish[2 + size : 4 + size]


def greets(answer: bytes) -> Mode:
    def mode(session: Session) -> None:
        read(session)
        session.send(answer)
        session.stay()

    return mode


def serves(answer: Callable[[Session, bytes], None]) -> Mode:
    """Lets the relay in, and has an answer for each message, which gets its number."""

    def mode(session: Session) -> None:
        read(session)
        session.send(WELCOME)
        while True:
            kind, body = read(session)
            if kind == PUBLISH:
                answer(session, number_of(body))

    return mode


def answers(data: Callable[[bytes], bytes]) -> Mode:
    return serves(lambda session, number: session.send(data(number)))


MODES: dict[str, Mode] = {
    "silence": lambda session: session.stay(),
    "bytes without end": lambda session: session.flood(b"\x20"),
    "a greeting without end": lambda session: session.flood(packet(CONNACK, b"\0\0" + reason(b"x" * 1000))),
    "a length without end": greets(b"\x20\xff\xff\xff\xff\xff"),
    "the longest packet": lambda session: (session.send(b"\x20\xff\xff\xff\x7f"), session.flood(b"x"))[0],
    "a forged reason": greets(packet(CONNACK, b"\0\x87" + reason(FORGED * 100))),
    "a greeting byte by byte": lambda session: (read(session), session.drip(WELCOME), session.stay())[0],
    "no answer": serves(lambda session, number: None),
    "a forged refusal": answers(lambda number: packet(PUBACK, number + b"\x90" + reason(FORGED * 100))),
    "the longest answer": serves(
        lambda session, number: (session.send(b"\x40\xff\xff\xff\x7f"), session.flood(b"x"))[0]
    ),
    "an answer without end": serves(lambda session, number: session.flood(packet(PUBACK, number))),
    "pings without end": serves(lambda session, number: session.flood(packet(13, b""))),
    "messages without end": serves(
        lambda session, number: session.flood(packet(PUBLISH, text(b"t") + properties() + b"x"))
    ),
    "the wrong answer": answers(lambda number: packet(PUBREC, number)),
    "an answer to nothing": answers(lambda number: packet(PUBACK, b"\xff\xff")),
    "nothing is allowed": greets(packet(CONNACK, b"\0\0" + properties(b"\x27\0\0\0\x01\x21\0\x01"))),
    "a goodbye": answers(lambda number: packet(DISCONNECT, b"\x8e" + reason(FORGED))),
    "a close": serves(lambda session, number: session.connection.close()),
}
