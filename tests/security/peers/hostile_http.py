"""Hostile HTTP/1.1 receivers. Each mode answers one request after the other, unless it never ends with the first."""

from __future__ import annotations

import itertools
import re

from .peer import Mode, Session

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FORGED = b"\x1b]0;owned\x07\x1b[2J\r\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x7f\xc2\x9b31m\xe2\x80\xae\xff\xfe\xc3"


def request(session: Session) -> tuple[bytes, bytes]:
    """Reads a request; returns its head and body."""
    head = session.receive_until(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return head, session.receive(int(length[1])) if length else b""


def answering(answer: bytes, *, then: bytes = b"", close: bool = False) -> Mode:
    """Answers with `answer`, and goes on with `then` for ever."""

    def mode(session: Session) -> None:
        while True:
            request(session)
            session.send(answer)
            if then:
                session.flood(then)
            if close:
                return

    return mode


def dripping(answer: bytes, then: bytes = b"") -> Mode:
    def mode(session: Session) -> None:
        request(session)
        session.drip(answer)
        while then:
            session.drip(then)

    return mode


def mute(session: Session) -> None:
    session.stay()


def mute_after_head(session: Session) -> None:
    request(session)
    session.send(OK + b"Content-Length: 5\r\n\r\n")
    session.stay()


def garbage(session: Session) -> None:
    request(session)
    while True:
        session.send(session.random.randbytes(1000))


def with_error(body: bytes) -> bytes:
    return b"HTTP/1.1 503 x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def flapping(session: Session) -> None:
    """Fails and works in turns, as fast as it is asked, with the longest error there can be."""
    for number in itertools.count(session.peer.connections):
        request(session)
        session.send(with_error(b"x" * 5000) if number % 2 else OK + b"Content-Length: 0\r\n\r\n")


def echo(session: Session) -> None:
    """Repeats the whole request in its answer, as a receiver in debugging mode does."""
    while True:
        head, body = request(session)
        session.send(with_error(head + body))


MODES: dict[str, Mode] = {
    "endless header line": answering(OK + b"a: ", then=b"x"),
    "endless headers": answering(OK, then=b"a: b\r\n"),
    "endless status line": answering(b"HTTP/1.1 200 ", then=b"x"),
    "endless body": answering(OK + b"\r\n", then=b"x"),
    "endless body of a length": answering(OK + b"Content-Length: 9000000000000000000\r\n\r\n", then=b"x"),
    "endless chunk": answering(CHUNKED + b"ffffffffffffff\r\n", then=b"x"),
    "endless chunks": answering(CHUNKED, then=b"4\r\nabcd\r\n"),
    "endless tiny chunks": answering(CHUNKED, then=b"1\r\nA\r\n"),
    "endless chunk size": answering(CHUNKED, then=b"0"),
    "endless chunk extension": answering(CHUNKED + b"1;", then=b"x"),
    "endless chunk extension of blanks": answering(CHUNKED + b"1", then=b" "),
    "endless end of a chunk": answering(CHUNKED + b"1\r\nA", then=b"x"),
    "endless CR at the end of a chunk": answering(CHUNKED + b"1\r\nA", then=b"\r"),
    "endless trailers": answering(CHUNKED + b"0\r\n", then=b"a: b\r\n"),
    "endless trailer": answering(CHUNKED + b"0\r\na: ", then=b"x"),
    "endless 100": answering(b"", then=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "endless 103": answering(b"", then=b"HTTP/1.1 103 x\r\nLink: y\r\n\r\n"),
    "endless headers in 103": answering(b"HTTP/1.1 103 x\r\n", then=b"Link: y\r\n"),
    "slow head": dripping(OK + b"a: ", then=b"x"),
    "slow trailers": dripping(CHUNKED + b"0\r\n", then=b"a: b\r\n"),
    "slow 100": dripping(b"HTTP/1.1 100 Continue\r\n\r\n", then=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "two lengths": answering(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "length and chunks": answering(OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "more than it says": answering(OK + b"Content-Length: 0\r\n\r\n" + OK * 100),
    "closes": answering(b"", close=True),
    "closes in the head": answering(OK, close=True),
    "101": answering(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "HTTP/0.9": answering(b"hello", close=True),
    "Retry-After": answering(b"HTTP/1.1 503 x\r\nRetry-After: 99999999999999\r\nContent-Length: 0\r\n\r\n"),
    "forged error": answering(with_error(FORGED * 10)),
    "mute": mute,
    "mute after the head": mute_after_head,
    "garbage": garbage,
    "flapping": flapping,
    "echo": echo,
}
