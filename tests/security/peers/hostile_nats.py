"""Hostile servers of NATS: each mode takes part in the protocol as far as it has to, and then does not."""

from __future__ import annotations

import json
from collections.abc import Callable

from .peer import Mode, Session

FORGED = b"\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x1b[2J\xc2\x9b31m\xe2\x80\xae\xff"
INFO = {"server_id": "S", "version": "2.10.0", "headers": True, "max_payload": 1 << 20, "nonce": "n"}


def info(**more: object) -> bytes:
    return b"INFO " + json.dumps({**INFO, **more}).encode() + b"\r\n"


def log_in(session: Session) -> bytes:
    """Returns what the client said."""
    session.send(info())
    said = session.receive_until(b"PING\r\n")
    session.send(b"PONG\r\n")
    return said


def next_reply(session: Session) -> bytes:
    """Reads a message, and returns the subject of its answer."""
    while not (line := session.receive_until(b"\r\n")).startswith(b"HPUB "):
        pass
    words = line.split()
    session.receive(int(words[-1]) + 2)
    return words[2]


def after_login(then: Callable[[Session], None]) -> Mode:
    def mode(session: Session) -> None:
        log_in(session)
        then(session)

    return mode


def answering(answer: Callable[[bytes], bytes]) -> Mode:
    def mode(session: Session) -> None:
        log_in(session)
        while True:
            session.send(answer(next_reply(session)))

    return mode


def message(subject: bytes, payload: bytes) -> bytes:
    return b"MSG %s 1 %d\r\n%s\r\n" % (subject, len(payload), payload)


def repeats_the_login(session: Session) -> None:
    session.send(info())
    said = session.receive_until(b"PING\r\n")
    session.send(b"-ERR '" + said.replace(b"\r\n", b" ") + b"'\r\n")


def never_ending_info(session: Session) -> None:
    session.send(b'INFO {"x":"')
    session.flood(b"x")


def one_byte_at_a_time(session: Session) -> None:
    session.drip(info())
    session.stay()


def denies(session: Session) -> None:
    number = 0
    while True:
        lines = [b"-ERR 'Permissions Violation for Publish to \"s%d\"'\r\n" % n for n in range(number, number + 5000)]
        session.send(b"".join(lines))
        number += 5000


def large_answer(session: Session) -> None:
    session.send(b"MSG " + next_reply(session) + b" 1 2000000000\r\n")
    session.flood(b"x")


MODES: dict[str, Mode] = {
    "sends garbage": lambda session: session.flood(b"\x16\x03\x01garbage\r\n"),
    "says nothing": lambda session: session.stay(),
    "never ends INFO": never_ending_info,
    "drips INFO": one_byte_at_a_time,
    "nests INFO": lambda session: session.send(b"INFO " + b"[" * 200_000 + b"\r\n"),
    "repeats INFO": after_login(lambda session: session.flood(info(connect_urls=["127.0.0.1:1"] * 1000))),
    "repeats the login in an error": repeats_the_login,
    "forges a line of the log": lambda session: session.send(info() + b"-ERR '" + FORGED + b"'\r\n"),
    "pings and does not read": after_login(lambda session: session.flood(b"PING\r\n")),
    "sends messages that nobody asked for": after_login(lambda session: session.flood(message(b"a", b"x" * 100))),
    "denies what nobody publishes": after_login(denies),
    "sends a message without end": after_login(large_answer),
    "answers nothing": after_login(lambda session: session.stay()),
    "answers with an error that forges": answering(
        lambda reply: message(
            reply,
            json.dumps({"error": {"code": 400, "err_code": 1, "description": FORGED.decode("latin-1") * 100}}).encode(),
        )
    ),
    "answers with nested JSON": answering(lambda reply: message(reply, b"[" * 100_000)),
    "answers for streams with long names": answering(
        lambda reply: message(reply, json.dumps({"stream": "s" * 100_000, "seq": 1}).encode())
    ),
}
