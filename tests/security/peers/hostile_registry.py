"""Hostile schema registries and issuers of tokens, which Kafka's sink asks beside its brokers."""

from __future__ import annotations

import re

from . import hostile_http
from .hostile_cloud import DEEP, always
from .peer import Mode, Session

FORGED_JSON = hostile_http.FORGED.replace(b"\\", b"\\\\").replace(b"\r\n", b"\\r\\n").replace(b"\x1b", b"\\u001b")


def repeats_the_login(session: Session) -> None:
    """In clear, as the header has it, and with escapes."""
    while True:
        head, body = hostile_http.request(session)
        said = re.search(rb"(?i)authorization: *\w+ ([^\r\n]+)", head)
        session.send(hostile_http.with_error(b"not you: %s %s" % (said[1] if said else b"", body)))


# Answers of any service that speaks JSON; always() answers a request at a time.
JSON: dict[str, Mode] = {
    "deep JSON": always(b"[" * DEEP),
    "deep objects": always(b'{"id":' * DEEP),
    "many values": always(b"[" + b"0," * 400_000 + b"0]"),
    "a huge answer": always(b'{"schema": "' + b"x" * (8 << 20) + b'"}'),
    "an error that forges": always(b'{"error_code": 42201, "message": "' + FORGED_JSON * 20 + b'"}', 422),
    "a redirect to the metadata service": hostile_http.answering(
        b"HTTP/1.1 307 x\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"
    ),
    "repeats the login": repeats_the_login,
}

SLOW = {name: hostile_http.MODES[name] for name in ("mute", "slow head", "slow trailers", "mute after the head")}
ENDLESS = {
    name: hostile_http.MODES[name]
    for name in ("endless body", "endless body of a length", "endless chunks", "endless headers", "endless 103")
}

REGISTRIES: dict[str, Mode] = {
    **JSON, **SLOW, **ENDLESS,
    "an id that is none": always(b'{"id": "1"}'),
    "a negative id": always(b'{"id": -1}'),
    "an id beyond all": always(b'{"id": 99999999999999999999}'),
    "an id of infinity": always(b'{"id": 1e999}'),
    "no id": always(b"{}"),
}  # fmt: skip

ISSUERS: dict[str, Mode] = {
    **JSON, **SLOW, **ENDLESS,
    "a token of megabytes": always(b'{"expires_in": 60, "access_token": "' + b"x" * (4 << 20) + b'"}'),
    "a long token": always(b'{"expires_in": 60, "access_token": "' + b"x" * 60_000 + b'"}'),
    "a token of lines": always(b'{"expires_in": 60, "access_token": "a\\r\\nb: c"}'),
    "a token that no broker takes": always(b'{"expires_in": 60, "access_token": "s3cret-s3cret-2"}'),
    "a token without a time": always(b'{"access_token": "s3cret-s3cret-2"}'),
    "a token for a moment": always(b'{"expires_in": 1, "access_token": "s3cret-s3cret-2"}'),
    "a token for ever": always(b'{"expires_in": 9223372036854775807, "access_token": "s3cret-s3cret-2"}'),
    "a token that is over": always(b'{"expires_in": -9223372036854775808, "access_token": "s3cret-s3cret-2"}'),
    "a success that is none": always(b'{"expires_in": 60, "access_token": "s3cret-s3cret-2"}', 202),
}  # fmt: skip
