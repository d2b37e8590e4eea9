"""Hostile brokers, as the sources of the C++ client meet them: what they do once a source consumes.

What comes before, the login, is in hostile_nats.py and so on; sources have the same connections as sinks.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator

from . import hostile_cloud, hostile_http, hostile_nats, hostile_rabbitmq, hostile_redis
from .peer import Mode, Session

PASSWORD = "s3cret-s3cret-1"
FORGED = hostile_http.FORGED.replace(b"\r", b"")
MANY_ZEROS = b"[" + b"0," * 10_000_000 + b"0]"


def sends(data: bytes, rest: bytes = b"") -> Callable[[Session], None]:
    def then(session: Session) -> None:
        session.send(data)
        session.flood(rest) if rest else session.stay()

    return then


# -------------------------------------------------------------------------------------------------
# NATS
# -------------------------------------------------------------------------------------------------

CONSUMER = {"config": {"ack_policy": "explicit", "ack_wait": 30_000_000_000}}


def next_request(session: Session) -> bytes:
    """Returns the subject for the answer to the next request that wants one."""
    while True:
        line = session.receive_until(b"\r\n")
        if not line.startswith(b"PUB "):
            continue
        words = line.split()
        session.receive(int(words[-1]) + 2)
        if len(words) == 4:
            return words[2]


def to_inbox(subject: bytes, payload: bytes, *, status: bytes = b"") -> bytes:
    if not status:
        return b"MSG %s 1 %d\r\n%s\r\n" % (subject, len(payload), payload)
    head = b"NATS/1.0 %s\r\n\r\n" % status
    return b"HMSG %s 1 %d %d\r\n%s\r\n" % (subject, len(head), len(head), head)


def stored(sequence: int, *, headers: bytes = b"", payload: bytes = b"x", stream: bytes = b"S") -> bytes:
    """A message of the stream, which names the subject of its acknowledgement."""
    head = b"NATS/1.0\r\n" + headers + b"\r\n"
    ack = b"$JS.ACK.%s.C.1.%d.%d.1.0" % (stream, sequence, sequence)
    return b"HMSG a 1 %s %d %d\r\n%s%s\r\n" % (ack, len(head), len(head) + len(payload), head, payload)


def consumer_is(answer: bytes, then: Callable[[Session], None] = Session.stay) -> Mode:
    def mode(session: Session) -> None:
        hostile_nats.log_in(session)
        session.send(to_inbox(next_request(session), answer))
        then(session)

    return mode


def consuming(then: Callable[[Session], None], **config: object) -> Mode:
    return consumer_is(json.dumps({"config": {**CONSUMER["config"], **config}}).encode(), then)


def floods(make: Callable[[int], bytes], at_once: int = 1000) -> Callable[[Session], None]:
    """Sends messages that nobody has asked for, and reads nothing."""

    def then(session: Session) -> None:
        for number in itertools.count(1, at_once):
            session.send(b"".join(make(n) for n in range(number, number + at_once)))

    return then


def answers_pulls(make: Callable[[bytes], bytes]) -> Callable[[Session], None]:
    def then(session: Session) -> None:
        while True:
            session.send(make(next_request(session)))

    return then


def many_headers(count: int) -> bytes:
    return b"".join(b"%x:\r\n" % n for n in range(count))


def sends_large_messages(session: Session) -> None:
    """As many as it is asked for."""
    next_request(session)
    for number in range(1, 257):
        session.send(stored(number, payload=b"x" * (32 << 20)))
    session.stay()


NATS: dict[str, Mode] = {
    **hostile_nats.MODES,
    "a consumer of nested JSON": consumer_is(b"[" * 200_000),
    "a consumer of many values": consumer_is(MANY_ZEROS),
    "a consumer of other types": consumer_is(json.dumps({"config": {"ack_policy": 1, "ack_wait": "x"}}).encode()),
    "a consumer with a policy that forges": consumer_is(
        json.dumps({"config": {"ack_policy": FORGED.decode("latin-1") * 10}}).encode()
    ),
    "an error that forges": consumer_is(
        json.dumps({"error": {"code": 400, "description": FORGED.decode("latin-1") * 10}}).encode()
    ),
    "messages that nobody asked for": consuming(floods(stored)),
    "messages of one number": consuming(floods(lambda n: stored(7, payload=b"%d" % n))),
    "messages of keys": consuming(floods(lambda n: stored(n, headers=b"ordering_key: %d\r\n" % n))),
    "large messages": consuming(sends_large_messages),
    "more time for each, at once": consuming(floods(lambda n: stored(n, stream=b"S" * 100), 100), ack_wait=1_000_000),
    "long subjects of acknowledgements": consuming(floods(lambda n: stored(n, stream=b"S" * 200_000), 10)),
    "a message of headers": consuming(sends(stored(1, headers=many_headers(5_000_000)))),
    "numbers that are none": consuming(
        floods(lambda n: stored(n).replace(b".1.0 ", b".99999999999999999999.-5 ")),
    ),
    "no pull is served": consuming(answers_pulls(lambda reply: to_inbox(reply, b"", status=b"404 No Messages"))),
    "pulls end with words that forge": consuming(
        answers_pulls(lambda reply: to_inbox(reply, b"", status=b"409 " + FORGED.replace(b"\n", b"\r") * 10))
    ),
}

# -------------------------------------------------------------------------------------------------
# Redis
# -------------------------------------------------------------------------------------------------

text, array = hostile_redis.text, hostile_redis.array
NOTHING = {b"XREADGROUP": b"*-1\r\n", b"XAUTOCLAIM": array(text(b"0-0"), array(), array()), b"XCLAIM": array()}


def entries(*made: bytes) -> bytes:
    return array(array(text(b"s"), array(*made)))


def entry(number: int, *fields: bytes) -> bytes:
    return array(text(b"%d-1" % number), array(*map(text, fields)))


def reading(answer: Callable[[int], bytes], command: bytes = b"XREADGROUP") -> Mode:
    """Answers this command with answer(0), answer(1) and so on, and others as an empty stream does."""

    def mode(session: Session) -> None:
        numbers = itertools.count()
        while True:
            name = hostile_redis.read(session)[0]
            session.send(answer(next(numbers)) if name == command else NOTHING.get(name, b"+OK\r\n"))

    return mode


def begins(head: bytes, rest: bytes, command: bytes = b"XREADGROUP") -> Mode:
    def mode(session: Session) -> None:
        while (name := hostile_redis.read(session)[0]) != command:
            session.send(NOTHING.get(name, b"+OK\r\n"))
        session.send(head)
        session.flood(rest)

    return mode


def deleted(first: int, count: int) -> bytes:
    return entries(*(array(text(b"%d-1" % n), b"*-1\r\n") for n in range(first, first + count)))


def acknowledgements_that_are_not_read(session: Session) -> None:
    """Names entries that are deleted, which the source acknowledges; answers, and does not read."""
    hostile_redis.read(session)  # AUTH
    session.send(b"+OK\r\n")
    hostile_redis.read(session)
    session.send(b"*-1\r\n")  # nothing is pending
    session.rest(0.2)
    session.send(NOTHING[b"XAUTOCLAIM"])
    count = 60_000
    for first in itertools.count(1, count):
        session.send(deleted(first, count))
        session.rest(0.1)
        session.send(b":1000\r\n" * (count // 1000))


REDIS: dict[str, Mode] = {
    "sends garbage": hostile_redis.MODES["sends garbage"],
    "says nothing": hostile_redis.MODES["says nothing"],
    "answers that nobody asked for": hostile_redis.MODES["sends answers that nobody asked for"],
    "repeats the login in an error": hostile_redis.MODES["repeats the login in an error"],
    "a line without end": begins(b"+", b"x"),
    "a text without end": begins(b"$2000000000\r\n", b"x"),
    "an array without end": begins(b"*2000000000\r\n", b":1\r\n"),
    "arrays in arrays": begins(b"", b"*1\r\n"),
    "entries without end": begins(b"*1\r\n*2\r\n$1\r\ns\r\n*2000000000\r\n", entry(9, b"event_id", b"x" * 1000)),
    "small entries without end": begins(b"*1\r\n*2\r\n$1\r\ns\r\n*2000000000\r\n", entry(9)),
    "fields without end": begins(
        b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n9-1\r\n*2000000000\r\n",
        b"".join(text(b"%d" % n) for n in range(100_000)),
    ),
    "entries that nobody asked for": reading(
        lambda n: entries(*(entry(e, b"payload", b"x" * 100) for e in range(10_000 * n + 1, 10_000 * (n + 1))))
    ),
    "large entries": reading(lambda n: entries(entry(n + 1, b"payload", b"x" * (30 << 20)))),
    "ids that are none": reading(lambda n: entries(array(text(b"x-y"), array()))),
    "ids above all": reading(lambda n: entries(array(text(b"18446744073709551615-18446744073709551615"), array()))),
    "errors that forge": reading(lambda n: b"-ERR " + FORGED.replace(b"\n", b"\r") * 50 + b"\r\n"),
    "entries that are deleted": reading(lambda n: deleted(1 + n * 50_000, 50_000)),
    "acknowledgements are not read": acknowledgements_that_are_not_read,
    "claimed ids without end": begins(b"*3\r\n$3\r\n0-0\r\n*0\r\n*2000000000\r\n", text(b"9-1"), b"XAUTOCLAIM"),
    "claims without end": reading(
        lambda n: array(text(b"%d-1" % (n + 1)), array(), array(*[text(b"9-1")] * 1000)), b"XAUTOCLAIM"
    ),
    "moved to itself": hostile_redis.MODES["moved to itself"],
    "moved to a host with anything": hostile_redis.MODES["moved to a host with anything"],
}

# -------------------------------------------------------------------------------------------------
# RabbitMQ
# -------------------------------------------------------------------------------------------------

frame, method, short, long = (
    hostile_rabbitmq.frame,
    hostile_rabbitmq.method,
    hostile_rabbitmq.short,
    hostile_rabbitmq.long,
)
BASIC, CHANNEL = hostile_rabbitmq.BASIC, hostile_rabbitmq.CHANNEL


def deliver(tag: int, size: int = 1, body: bytes = b"x", properties: bytes = bytes(2)) -> bytes:
    named = short(b"pg_inbox") + struct.pack("!QB", tag, 0) + short(b"") + short(b"key")
    head = struct.pack("!HHQ", BASIC, 0, size) + properties
    return (
        method(1, BASIC, 60, named)
        + frame(hostile_rabbitmq.HEADER, 1, head)
        + (frame(hostile_rabbitmq.BODY, 1, body) if body else b"")
    )


def headers(table: bytes) -> bytes:
    return struct.pack("!H", 1 << 13) + table


def consumed(then: Callable[[Session], None]) -> Mode:
    def mode(session: Session) -> None:
        hostile_rabbitmq.log_in(session)
        hostile_rabbitmq.receive_method(session, CHANNEL, 10)
        session.send(method(1, CHANNEL, 11, long(b"")))
        hostile_rabbitmq.receive_method(session, BASIC, 10)
        session.send(method(1, BASIC, 11))
        hostile_rabbitmq.receive_method(session, BASIC, 20)
        session.send(method(1, BASIC, 21, short(b"pg_inbox")))
        then(session)

    return mode


def repeats_the_login(session: Session) -> None:
    session.receive(8)
    session.send(hostile_rabbitmq.start())
    session.send(hostile_rabbitmq.close(hostile_rabbitmq.CONNECTION, 50, 0, 403, b"not you: " + PASSWORD.encode()))
    session.stay()


def flat(count: int) -> bytes:
    return long(b"".join(short(b"%x" % n) + b"t\1" for n in range(count)))


RABBITMQ: dict[str, Mode] = {
    **{name: mode for name, mode in hostile_rabbitmq.MODES.items() if "confirmation" not in name and "blocked" not in name},
    "repeats the password": repeats_the_login,
    "messages that nobody asked for": consumed(floods(deliver)),
    "a message without end": consumed(sends(deliver(1, 1 << 60))),
    "a large message without end": consumed(
        sends(deliver(1, 16 << 20), frame(hostile_rabbitmq.BODY, 1, b"x" * 100_000))
    ),
    "large messages": consumed(floods(lambda n: deliver(n, 1_000_000) + frame(hostile_rabbitmq.BODY, 1, b"x" * 100_000) * 9
                                      + frame(hostile_rabbitmq.BODY, 1, b"x" * 99_999), 10)),
    "tags that go back": consumed(sends(deliver(9) + deliver(3))),
    "deep headers": consumed(sends(deliver(1, properties=headers(hostile_rabbitmq.nested(5000))))),
    "many headers": consumed(floods(lambda n: deliver(n, properties=headers(flat(9000))), 100)),
    "headers that lie about their size": consumed(sends(deliver(1, properties=headers(struct.pack("!I", 1 << 31))))),
    "an offset of a stream": consumed(
        sends(deliver(1, properties=headers(long(short(b"x-stream-offset") + b"l" + struct.pack("!q", (1 << 63) - 1)))))
    ),
    "empty bodies": consumed(floods(lambda n: deliver(n, 5, b""))),
    "the consumer is cancelled for ever": consumed(sends(method(1, BASIC, 30, short(b"pg_inbox") + b"\1"))),
}  # fmt: skip

# -------------------------------------------------------------------------------------------------
# SQS
# -------------------------------------------------------------------------------------------------

URL = b"http://127.0.0.1/000000000000/q"


def receiving(answer: Callable[[int], bytes], status: int = 200) -> Mode:
    """Answers polls with answer(0), answer(1) and so on, and other requests with success."""

    def mode(session: Session) -> None:
        for number in itertools.count():
            head, _ = hostile_http.request(session)
            if b"ReceiveMessage" in head:
                session.send(hostile_cloud.json_answer(answer(number), status))
            elif b"GetQueueUrl" in head:
                session.send(hostile_cloud.json_answer(b'{"QueueUrl": "%s"}' % URL))
            else:
                session.send(hostile_cloud.json_answer(b'{"Successful": [], "Failed": []}'))

    return mode


def messages(*made: bytes) -> bytes:
    return b'{"Messages": [' + b",".join(made) + b"]}"


def message(number: int, body: bytes = b"x", more: bytes = b"") -> bytes:
    return b'{"MessageId": "%d", "ReceiptHandle": "r%d", "Body": "%s"%s}' % (number, number, body, more)


def attributes(count: int) -> bytes:
    one = b",".join(b'"%x": {"DataType": "String", "StringValue": "x"}' % n for n in range(count))
    return b', "MessageAttributes": {%s}' % one


def structured(document: bytes) -> bytes:
    """The body of an event in one document."""
    of_type = b', "MessageAttributes": {"content-type": {"DataType": "String", "StringValue": "application/cloudevents+json"}}'
    return message(1, document.replace(b'"', b'\\"'), of_type)


def sqs_errors() -> Iterator[tuple[str, Mode]]:
    for name, body in {
        "an error that forges": b'{"__type": "x", "message": "%s"}'
        % FORGED.replace(b"\n", b"\\n").replace(b"\x1b", b"\\u001b"),
        "an error of raw bytes": FORGED * 100,
        "an error without end": b'{"__type": "' + b"x" * 10_000_000,
    }.items():
        yield name, receiving(lambda _, body=body: body, 400)  # type: ignore[misc]


SQS: dict[str, Mode] = {
    **hostile_http.MODES,
    "deep JSON": receiving(lambda _: b"[" * 100_000),
    "many zeros": receiving(lambda _: b'{"Messages": ' + MANY_ZEROS + b"}"),
    "many messages": receiving(lambda n: messages(*(message(1_000_000 * n + m) for m in range(300_000)))),
    "messages without a handle": receiving(lambda _: messages(*[b'{"Body": "x"}'] * 10)),
    "messages of one handle": receiving(lambda _: messages(*[message(1)] * 10)),
    "messages of other types": receiving(lambda _: b'{"Messages": [1, null, [], {"ReceiptHandle": 5}, {"Body": {}}]}'),
    "many attributes": receiving(lambda n: messages(message(n, more=attributes(500_000)))),
    "a time beyond all": receiving(lambda n: messages(message(n, more=b', "Attributes": {"SentTimestamp": "9223372036854775807"}'))),
    "a document of many values": receiving(lambda _: messages(structured(b'{"id":"1","specversion":"1.0","a":' + MANY_ZEROS + b"}"))),
    "a deep document": receiving(lambda _: messages(structured(b'{"id":"1","specversion":"1.0","a":' + b"[" * 900 + b"]" * 900 + b"}"))),
    "a very deep document": receiving(lambda _: messages(structured(b'{"a":' * 100_000))),
    "a redirect to the metadata service": hostile_http.answering(
        b"HTTP/1.1 307 x\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"
    ),
    **dict(sqs_errors()),
}  # fmt: skip
