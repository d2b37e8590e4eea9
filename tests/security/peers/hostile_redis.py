"""Hostile servers of Redis: each mode takes part in the protocol as far as it has to, and then does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from .peer import Mode, Session

FORGED = b"\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x1b[2J\xc2\x9b31m\xe2\x80\xae\xff"
FORGED_LINE = FORGED.replace(b"\n", b"\r")
Command = list[bytes]


def read(session: Session) -> Command:
    """Returns a command of the relay, its name first."""
    command = []
    for _ in range(int(session.receive_until(b"\r\n")[1:])):
        size = int(session.receive_until(b"\r\n")[1:])
        command.append(session.receive(size + 2)[:size])
    return command


def text(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


def array(*elements: bytes) -> bytes:
    return b"*%d\r\n" % len(elements) + b"".join(elements)


def usual(command: Command) -> bytes:
    """Returns the answer of a Redis without the stream."""
    answers = {b"XINFO": b"-ERR no such key\r\n", b"XADD": b"+QUEUED\r\n", b"EXEC": array(text(b"1-1"))}
    return answers.get(command[0], b"+OK\r\n")


def serves(answer: Callable[[Session, Command], bytes | None]) -> Mode:
    """`answer` returns None for the usual answer."""

    def mode(session: Session) -> None:
        while True:
            command = read(session)
            said = answer(session, command)
            session.send(usual(command) if said is None else said)

    return mode


def at(name: bytes, then: Callable[[Session], None]) -> Mode:
    """The server is as usual until this command."""

    def mode(session: Session) -> None:
        while (command := read(session))[0] != name:
            session.send(usual(command))
        then(session)

    return mode


def answers(name: bytes, said: bytes) -> Mode:
    return serves(lambda session, command: said if command[0] == name else None)


def begins(head: bytes, rest: bytes) -> Callable[[Session], None]:
    def then(session: Session) -> None:
        session.send(head)
        session.flood(rest)

    return then


def drips(session: Session) -> None:
    session.drip(array(text(b"last-generated-id"), text(b"1-1")))
    session.stay()


def repeats_the_login(session: Session) -> None:
    session.send(b"-ERR " + b" ".join(read(session)) + b"\r\n")
    session.stay()


def names_new_servers(session: Session) -> None:
    for number in itertools.count():
        read(session)
        session.send(b"-MOVED %d 127.0.0.%d:%d\r\n" % (number, number % 250 + 2, number % 60_000 + 1))


def moves_to_itself(session: Session) -> None:
    while True:
        read(session)
        session.send(b"-MOVED 1 :%d\r\n" % session.peer.port)


ENTRY = array(text(b"9-1"), array(text(b"event_id"), text(b"x" * 1000)))
STATE = array(text(b"last-generated-id"), text(b"999999999999-0"), text(b"first-entry"), ENTRY)


def has_entries(then: Callable[[Session], None]) -> Mode:
    """A stream that must be read, because events may be in it."""

    def mode(session: Session) -> None:
        while (command := read(session))[0] != b"XREVRANGE":
            session.send(STATE if command[0] == b"XINFO" else usual(command))
        then(session)

    return mode


MODES: dict[str, Mode] = {
    "sends garbage": lambda session: session.flood(b"\x16\x03\x01garbage\r\n"),
    "says nothing": lambda session: session.stay(),
    "sends answers that nobody asked for": lambda session: session.flood(b"+OK\r\n"),
    "repeats the login in an error": repeats_the_login,
    "drips": at(b"XINFO", drips),
    "a line without end": at(b"XINFO", begins(b"+", b"x")),
    "an error without end": at(b"XINFO", begins(b"-", b"x")),
    "a text without end": at(b"XINFO", begins(b"$2000000000\r\n", b"x")),
    "a text of more bytes than there are": at(b"XINFO", begins(b"$9223372036854775807\r\n", b"x")),
    "an array without end": at(b"XINFO", begins(b"*2000000000\r\n", b":1\r\n")),
    "an array of texts without end": at(b"XINFO", begins(b"*2000000000\r\n", text(b"x" * 500))),
    "arrays in arrays": at(b"XINFO", begins(b"", b"*1\r\n")),
    "arrays that grow in arrays": at(b"XINFO", begins(b"*1000000000\r\n" * 8, b"$0\r\n\r\n")),
    "lengths that are no numbers": answers(b"XINFO", b"$99999999999999999999999999\r\n"),
    "a negative length": answers(b"XINFO", b"*-2147483648\r\n"),
    "entries without end": has_entries(begins(b"*2000000000\r\n", ENTRY)),
    "entries with fields without end": has_entries(begins(b"*1\r\n*2\r\n$3\r\n9-1\r\n*2000000000\r\n", b"$1\r\nx\r\n")),
    "the same entries for ever": serves(
        lambda session, command: array(*[ENTRY] * 1000) if command[0] == b"XREVRANGE"
        else STATE if command[0] == b"XINFO" else None
    ),
    "an id above all": answers(b"XINFO", array(text(b"last-generated-id"), text(b"18446744073709551615-18446744073709551615"))),
    "more answers than events": answers(b"EXEC", array(*[text(b"1-1")] * 50_000)),
    "ids that forge": answers(b"EXEC", array(text(FORGED * 100))),
    "an error that forges": answers(b"XADD", b"-ERR " + FORGED_LINE * 100 + b"\r\n"),
    "an error that forges a line": answers(b"XINFO", b"-ERR " + FORGED + b"\r\n"),
    "moved to a host with a space": serves(lambda session, command: b"-MOVED 1 a b:1\r\n"),
    "moved to a host with anything": serves(lambda session, command: b"-MOVED 1 " + FORGED_LINE + b":1\r\n"),
    "moved to a URL": serves(lambda session, command: b"-MOVED 1 user:pw@127.0.0.1/x?y:6379\r\n"),
    "moved to a long host": serves(lambda session, command: b"-MOVED 1 " + b"a" * 100_000 + b":1\r\n"),
    "moved to a host that is not allowed": serves(lambda session, command: b"-MOVED 1 169.254.169.254:80\r\n"),
    "asked at a host that is not allowed": serves(lambda session, command: b"-ASK 1 10.0.0.1:6379\r\n"),
    "moved to itself": moves_to_itself,
    "moved to ever new servers": names_new_servers,
    **{f"closes at {name.decode()}": at(name, lambda session: None) for name in (b"AUTH", b"XINFO", b"MULTI", b"XADD", b"EXEC")},
}  # fmt: skip

SENTINELS: dict[str, Mode] = {
    "says nothing": lambda session: session.stay(),
    "knows no primary": answers(b"SENTINEL", b"*-1\r\n"),
    "names a host with a space": answers(b"SENTINEL", array(text(b"a b"), text(b"6379"))),
    "names a host that forges": answers(b"SENTINEL", array(text(FORGED), text(b"6379"))),
    "names a host that is not allowed": answers(b"SENTINEL", array(text(b"169.254.169.254"), text(b"80"))),
    "names a port that is none": answers(b"SENTINEL", array(text(b"127.0.0.1"), text(b"99999999999"))),
    "answers with one text": answers(b"SENTINEL", array(text(b"127.0.0.1"))),
    "answers with a number": answers(b"SENTINEL", b":1\r\n"),
    "answers with a text without end": at(b"SENTINEL", begins(b"*2\r\n$2000000000\r\n", b"x")),
    "sends answers that nobody asked for": lambda session: session.flood(array(text(b"127.0.0.1"), text(b"1"))),
    "an error that forges": answers(b"SENTINEL", b"-ERR " + FORGED_LINE * 100 + b"\r\n"),
    "closes": at(b"SENTINEL", lambda session: None),
}
