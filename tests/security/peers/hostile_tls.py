"""Hostile https receivers: those of HTTP/1.1 behind TLS, and HTTP/2 frame by frame (RFC 9113)."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from . import hostile_http
from .peer import Mode, Peer, Session

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4

# HPACK (RFC 7541)
STATUS_200 = b"\x88"
STATUS_103 = b"\x08\x03103"
FIELD = b"\x00\x01a\x01b"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def await_request(session: Session) -> int:
    """Reads up to the end of the headers of a request; returns its stream."""
    session.receive(24)  # the preface
    session.send(frame(SETTINGS, 0, 0))
    while True:
        head = session.receive(9)
        kind, stream = head[3], int.from_bytes(head[5:], "big")
        session.receive(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not head[4] & ACK:
            session.send(frame(SETTINGS, ACK, 0))
        if kind == HEADERS:
            return stream


def http2(answer: Callable[[int], bytes], then: Callable[[int], bytes] | None = None) -> Mode:
    def mode(session: Session) -> None:
        stream = await_request(session)
        session.send(answer(stream))
        if then is not None:
            session.flood(then(stream))
        session.stay()

    return mode


def start(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, STATUS_200)


def nothing(_: int) -> bytes:
    return b""


HTTP2_MODES: dict[str, Mode] = {
    "endless PING": http2(nothing, lambda s: frame(PING, 0, 0, b"12345678")),
    "endless SETTINGS": http2(nothing, lambda s: frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0")),
    "endless WINDOW_UPDATE": http2(nothing, lambda s: frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")),
    "endless CONTINUATION": http2(
        lambda s: frame(HEADERS, 0, s, STATUS_200), lambda s: frame(CONTINUATION, 0, s, FIELD * 1000)
    ),
    "endless empty CONTINUATION": http2(
        lambda s: frame(HEADERS, 0, s, STATUS_200), lambda s: frame(CONTINUATION, 0, s)
    ),
    "endless 103 in HTTP/2": http2(nothing, lambda s: frame(HEADERS, END_HEADERS, s, STATUS_103 + FIELD * 50)),
    "many headers in HTTP/2": http2(lambda s: frame(HEADERS, END_HEADERS, s, STATUS_200 + FIELD * 3000)),
    "endless DATA": http2(start, lambda s: frame(DATA, 0, s, b"x" * 16000)),
    "endless empty DATA": http2(start, lambda s: frame(DATA, 0, s)),
    "large trailers in HTTP/2": http2(lambda s: start(s) + frame(HEADERS, END_HEADERS | END_STREAM, s, FIELD * 3000)),
    "PUSH_PROMISE": http2(lambda s: frame(PUSH_PROMISE, END_HEADERS, s, b"\0\0\0\2" + STATUS_200)),
    "GOAWAY": http2(lambda s: frame(GOAWAY, 0, 0, b"\0" * 8 + b"\x1b[2Jforged\n" * 1000)),
    "RST_STREAM": http2(lambda s: frame(RST_STREAM, 0, s, b"\0\0\0\2")),
    "unknown frames": http2(nothing, lambda s: frame(99, 0, s, b"x" * 1000)),
    "oversized frame": http2(lambda s: b"\xff\xff\xff\x00\x00" + s.to_bytes(4, "big"), lambda s: b"x"),
}


def context(certificate: str, key: str, protocol: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate, key)
    made.set_alpn_protocols([protocol])
    return made


def no_tls(session: Session) -> None:
    """Answers the ClientHello with bytes without end."""
    session.receive(1)
    session.flood(b"\x16\x03\x03\x40\x00" + b"\x00" * 16384)


# Modes that need no TLS.
RAW_MODES: dict[str, Mode] = {"endless handshake": no_tls, "mute": hostile_http.mute}
MODES: dict[str, Mode] = {**hostile_http.MODES, **HTTP2_MODES}


def open_peer(name: str, certificate: str, key: str, seed: int = 1) -> Peer:
    if name in RAW_MODES and name not in MODES:
        return Peer(RAW_MODES[name], seed=seed)
    protocol = "h2" if name in HTTP2_MODES else "http/1.1"
    return Peer(MODES[name], seed=seed, tls=context(certificate, key, protocol))
