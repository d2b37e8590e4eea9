"""Hostile servers of AMQP 0-9-1: frames in the wrong number, size and order, before and after the login."""

from __future__ import annotations

import struct

from .peer import Mode, Session

FORGED = b"\x1b]0;owned\x07\n2026-01-01 00:00:00 UTC [1] postmaster @ LOG:  forged \xff\xfe\xc2\x9b31m"

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
CONNECTION, CHANNEL, BASIC, CONFIRM = 10, 20, 60, 85


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack("!BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, group: int, number: int, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack("!HH", group, number) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


def nested(depth: int) -> bytes:
    """A table in a table, and so on."""
    table = long(b"")
    for _ in range(depth):
        table = long(b"\x01xF" + table)
    return table


def start(properties: bytes = long(b""), mechanisms: bytes = b"PLAIN") -> bytes:
    return method(0, CONNECTION, 10, b"\0\x09" + properties + long(mechanisms) + long(b"en_US"))


def tune(frame_max: int = 131072, heartbeat: int = 60) -> bytes:
    return method(0, CONNECTION, 30, struct.pack("!HIH", 2047, frame_max, heartbeat))


def close(group: int, number: int, channel: int, code: int, text: bytes) -> bytes:
    return method(channel, group, number, struct.pack("!H", code) + short(text) + bytes(4))


def receive_method(session: Session, group: int, number: int) -> None:
    """Skips what comes before it."""
    while True:
        kind, _, size = struct.unpack("!BHI", session.receive(7))
        payload = session.receive(size + 1)
        if kind == METHOD and struct.unpack("!HH", payload[:4]) == (group, number):
            return


def log_in(session: Session) -> None:
    session.receive(8)
    session.send(start())
    receive_method(session, CONNECTION, 11)
    session.send(tune())
    receive_method(session, CONNECTION, 40)
    session.send(method(0, CONNECTION, 41, short(b"")))


def at_once(data: bytes, *, again: bool = False) -> Mode:
    """Sends this instead of the first frame."""

    def mode(session: Session) -> None:
        session.receive(8)
        session.flood(data) if again else session.send(data)
        session.stay()

    return mode


def after_login(data: bytes, *, again: bool = False) -> Mode:
    """Sends this as the answer to the first message."""

    def mode(session: Session) -> None:
        log_in(session)
        receive_method(session, BASIC, 40)
        session.flood(data) if again else session.send(data)
        session.stay()

    return mode


def logged_in_and_silent(session: Session) -> None:
    log_in(session)
    session.stay()


def does_not_read(session: Session) -> None:
    """Heartbeats say that all is well."""
    log_in(session)
    while True:
        session.send(frame(HEARTBEAT, 0, b""))
        session.rest(0.1)


def blocks_for_ever(session: Session) -> None:
    log_in(session)
    receive_method(session, BASIC, 40)
    while True:
        session.send(method(0, CONNECTION, 60, short(FORGED)))
        session.rest(0.05)


def drips(session: Session) -> None:
    session.receive(8)
    session.drip(start(long(b"\x01xS" + long(b"y" * 1000))))
    session.stay()


ACK = method(1, BASIC, 80, struct.pack("!QB", 1, 0))
RETURN = method(1, BASIC, 50, struct.pack("!H", 312) + short(FORGED) + short(FORGED) + short(FORGED))
RETURNED = frame(HEADER, 1, struct.pack("!HHQH", BASIC, 0, 1 << 60, 0))

MODES: dict[str, Mode] = {
    "silence": Session.stay,
    "noise": lambda session: session.flood(session.random.randbytes(4096)),
    "http": at_once(b"HTTP/1.1 400 Bad Request\r\n\r\n", again=True),
    "another version": at_once(b"AMQP\0\1\0\0"),
    "an endless frame": at_once(b"\1\0\0\xff\xff\xff\xff" + b"x" * 1000, again=True),
    "heartbeats before the login": at_once(frame(HEARTBEAT, 0, b""), again=True),
    "start again and again": at_once(start(), again=True),
    "a deep table": at_once(start(nested(10_000))),
    "forged mechanisms": at_once(start(mechanisms=FORGED)),
    "byte by byte": drips,
    "refused with forged lines": at_once(close(CONNECTION, 50, 0, 403, FORGED)),
    "silence after the login": logged_in_and_silent,
    "no reading": does_not_read,
    "heartbeats for ever": after_login(frame(HEARTBEAT, 0, b""), again=True),
    "the same confirmation for ever": after_login(ACK, again=True),
    "a confirmation of nothing": after_login(method(1, BASIC, 80, struct.pack("!QB", 1 << 63, 1))),
    "an endless return": after_login(RETURN + RETURNED + frame(BODY, 1, b"x" * 1000), again=True),
    "a channel that closes for ever": after_login(close(CHANNEL, 40, 1, 404, FORGED), again=True),
    "blocked for ever": blocks_for_ever,
    "closed with forged lines": after_login(close(CONNECTION, 50, 0, 541, FORGED)),
}
