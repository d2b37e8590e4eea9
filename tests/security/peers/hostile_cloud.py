"""Hostile answers of Pub/Sub, SQS, SNS, Kinesis and EventBridge: over plain HTTP, as an emulator or an endpoint of one's own would give them."""

from __future__ import annotations

import random

from .hostile_http import FORGED, answering, request
from .hostile_http import MODES as HTTP
from .peer import Mode, Session

DEEP = 20_000


def json_answer(body: bytes, status: int = 200) -> bytes:
    head = b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return head + body


def always(body: bytes, status: int = 200) -> Mode:
    def mode(session: Session) -> None:
        while True:
            request(session)
            session.send(json_answer(body, status))

    return mode


PUBSUB_ANSWER = b'{"messageIds": ["1", "2", "3"]}'
PUBSUB_ERROR = b'{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT", "details": [{"@type": "t"}]}}'
SQS_ANSWER = b'{"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "x"}], "Failed": [{"Id": "1", "Code": "InternalError", "Message": "m", "SenderFault": false}]}'
SNS_ANSWER = (
    b'<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult><Failed><member><Id>1</Id>'
    b"<Code>InternalError</Code><Message>m</Message><SenderFault>true</SenderFault></member></Failed><Successful><member>"
    b"<Id>0</Id><MessageId>m</MessageId></member></Successful></PublishBatchResult></PublishBatchResponse>"
)
KINESIS_ANSWER = (
    b'{"FailedRecordCount": 1, "Records": [{"SequenceNumber": "1", "ShardId": "s"}, '
    b'{"ErrorCode": "InternalFailure", "ErrorMessage": "m"}]}'
)
EVENTBRIDGE_ANSWER = (
    b'{"FailedEntryCount": 1, "Entries": [{"EventId": "1"}, {"ErrorCode": "MalformedDetail", "ErrorMessage": "m"}]}'
)
XML_BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY a%d "%s">' % (i, b"&a%d;" % (i - 1) * 10 if i else b"&a;" * 10) for i in range(9))
    + b"]><b>&a8;</b>"
)
SAMPLES = (PUBSUB_ANSWER, PUBSUB_ERROR, SQS_ANSWER, SNS_ANSWER, KINESIS_ANSWER, EVENTBRIDGE_ANSWER, XML_BOMB)


def mutated(sample: bytes, chance: random.Random) -> bytes:
    data = bytearray(sample)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        what = chance.choice((b"", b"\xff", b'"', b"{", b"[" * 50, b"<", b"&#x1b;", b"\\u0000", b"0" * 40, data[:20]))
        data[at : at + chance.randint(0, 6)] = what
        data = data or bytearray(b"x")
    return bytes(data)


def mutations(session: Session) -> None:
    while True:
        request(session)
        body = mutated(session.random.choice(SAMPLES), session.random)
        session.send(json_answer(body, session.random.choice((200, 200, 400, 403, 404, 500))))


FORGED_JSON = FORGED.decode("latin-1").encode("unicode_escape").replace(b"\\x", b"\\u00") * 10
FORGED_XML = b"&#10;2026-01-01 00:00:00 UTC [1] LOG:  forged&#27;[2J&#155;31m&#8238;" * 10
# What each service says of single events, in one document.
FAILED = b'{"Id": "%d", "Code": "X", "Message": "%s", "ErrorCode": "X", "ErrorMessage": "%s", "SenderFault": true}'
THREE_FAILED = b", ".join(FAILED % (n, FORGED_JSON, FORGED_JSON) for n in range(3))
THREE_FAILED_XML = b"".join(
    b"<member><Id>%d</Id><Code>X</Code><Message>%s</Message><SenderFault>true</SenderFault></member>" % (n, FORGED_XML)
    for n in range(3)
)

MODES: dict[str, Mode] = {
    "deep JSON": always(b"[" * DEEP),
    "deep objects": always(b'{"a":' * DEEP),
    "deep JSON in an error": always(b'{"error":' * DEEP, 400),
    "many ids": always(b'{"messageIds": [' + b'"1",' * 15_000 + b'"1"]}'),
    "ids of the wrong type": always(b'{"messageIds": [{}, null, 1e999]}'),
    "forged error": always(
        b'{"error": {"message": "' + FORGED.replace(b"\n", b"\\n").replace(b"\r", b"\\r") + b'", "status": "X"}}', 400
    ),
    "many results": always(b'{"Records": [' + b'{"SequenceNumber": "1"},' * 15_000 + b"{}]}"),
    "XML bomb": always(XML_BOMB),
    "XML bomb in an error": always(XML_BOMB, 400),
    "external entity": always(b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', 400),
    "deep XML": always(b"<a>" * DEEP),
    "no body": always(b""),
    "mutations": mutations,
    "errors of events that forge": always(
        b'{"Successful": [], "Failed": [%s], "Records": [%s], "Entries": [%s], "FailedRecordCount": 3}'
        % ((THREE_FAILED,) * 3)
    ),
    "errors of events that forge in XML": always(
        b"<PublishBatchResponse><PublishBatchResult><Failed>"
        + THREE_FAILED_XML
        + b"</Failed></PublishBatchResult></PublishBatchResponse>"
    ),
    "many values": always(b"[" + b"0," * 400_000 + b"0]"),
    "a redirect to the metadata service": answering(
        b"HTTP/1.1 307 x\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"
    ),
    **{name: HTTP[name] for name in ("endless body of a length", "endless chunks", "two lengths", "slow head", "mute")},
}
