"""The sqs and sns sinks, read back with Amazon's own client.

Queues and topics differ by their names, because a server has one account. Messages
of a topic of SNS are read from a queue that is subscribed to it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.parse
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

from database import Database
from receiver import Behaviour, Exchange, Request, answer

from .fault_proxy import Answer, FaultProxy, reply
from .servers import Server
from .sink import STRUCTURED, Message, Sink, message_of, message_of_document

REGION = "eu-west-1"
ACCOUNT = "123456789012"
LEGAL_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")


class Entry:
    """One entry of a batch request, as both protocols have it."""

    def __init__(self, id: str, body: str, attributes: dict[str, str], group: str | None) -> None:
        self.id = id
        self.message = message_of_aws(body, attributes, group)


class AwsKeys:
    def credentials(self, number: int = 1) -> dict[str, str]:
        return {
            "access_key_id": f"AKIAOUTBOXTEST{number}",
            "secret_access_key": f"s3cret/access+key-{number}",
            "session_token": f"s3cret-session-{number}",
        }


class AwsSink(AwsKeys, Sink):
    module = "pg_outbox_aws"
    server = "aws_server"
    fifo: bool
    batch_limit = 10
    cloud_events = ("structured",)
    refuses_texts = True
    proxy: FaultProxy

    def __init__(self, database: Database, server: Server) -> None:
        import boto3

        super().__init__(database)
        self.proxy = FaultProxy(server.port, self.carries)
        session = boto3.Session("any", "any", region_name=REGION)
        endpoint = f"http://127.0.0.1:{server.port}"
        self._sqs = session.client("sqs", endpoint_url=endpoint)
        self._sns = session.client("sns", endpoint_url=endpoint)
        self._queues: list[str] = []

    @property
    def suffix(self) -> str:
        return ".fifo" if self.fifo else ""

    def template(self) -> str:
        return self.place + "-{topic}" + self.suffix

    def create(self, destination: str = "d", **options: str) -> None:
        super().create(destination, **options)
        self.map_credentials(destination)

    def create_with_credentials(self) -> None:
        self.create()

    def full_name(self, topic: str) -> str:
        return f"{self.place}-{topic.replace('.', '-')}{self.suffix}"

    def add_queue(self, topic: str) -> str:
        queue = self._sqs.create_queue(
            QueueName=self.full_name(topic), Attributes={"FifoQueue": "true"} if self.fifo else {}
        )
        self._queues.append(queue["QueueUrl"])
        return queue["QueueUrl"]

    def receive(self) -> list[Message]:
        return [message for queue in self._queues for message in self.receive_from(queue)]

    def receive_from(self, queue: str) -> list[Message]:
        received: list[Message] = []
        while True:
            messages = self._sqs.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])  # fmt: skip
            if not messages:
                return received
            self._sqs.delete_message_batch(
                QueueUrl=queue,
                Entries=[{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)],
            )
            received += [
                message_of_aws(
                    m["Body"], attribute_values(m.get("MessageAttributes", {})),
                    m["Attributes"].get("MessageGroupId") if self.fifo else None,
                )
                for m in messages
            ]  # fmt: skip

    def as_carried(self, message: Message) -> Message:
        return replace(super().as_carried(message), ordering_key=self.group(message))

    def group(self, message: Message) -> str | None:
        if not self.fifo:
            return None
        key = message.ordering_key or message.event_id
        return key if LEGAL_GROUP.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()

    def carried(self, request: Request) -> list[Message]:
        return [entry.message for entry in self.entries(request)]

    def check_batch(self, messages: list[Message]) -> None:
        super().check_batch(messages)
        assert sum(len(message.payload or b"") for message in messages) <= self.size_limit()
        if self.fifo:  # a batch may be taken in part
            groups = [message.ordering_key for message in messages]
            assert len(groups) == len(set(groups)), f"several events of a group in one batch: {groups}"

    def refuse(self, chosen: Callable[[Message], bool], *, for_good: bool, times: int | None) -> None:
        """Makes entries that carry such an event fail; the server gets the others."""

        async def behave(exchange: Exchange) -> None:
            entries = self.entries(exchange.request)
            failed = [entry.id for entry in entries if chosen(entry.message)]
            passed = [entry.id for entry in entries if entry.id not in failed]
            answered = self.empty_answer()
            if passed:
                answered = await self.proxy.ask(self.keep_entries(exchange.request, passed))
            await reply(self.add_failures(answered, failed, for_good))(exchange)

        self.proxy.on(
            lambda request: any(chosen(message) for message in self.carried(request)),
            behave, times=times,
        )  # fmt: skip

    @abstractmethod
    def carries(self, request: Request) -> bool: ...

    @abstractmethod
    def entries(self, request: Request) -> list[Entry]: ...

    @abstractmethod
    def keep_entries(self, request: Request, ids: list[str]) -> Request: ...

    @abstractmethod
    def empty_answer(self) -> Answer: ...

    @abstractmethod
    def add_failures(self, answered: Answer, ids: list[str], for_good: bool) -> Answer: ...


# -------------------------------------------------------------------------------------------------
# SQS: JSON
# -------------------------------------------------------------------------------------------------

JSON_HEADERS = [("Content-Type", "application/x-amz-json-1.0")]


class SqsSink(AwsSink):
    def url(self) -> str:
        return f"sqs://{REGION}/{ACCOUNT}?endpoint=http://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"queue": self.template()}

    def add_topic(self, name: str = "item.events") -> None:
        self.add_queue(name)

    def carries(self, request: Request) -> bool:
        return request.headers.get("x-amz-target") == "AmazonSQS.SendMessageBatch"

    def entries(self, request: Request) -> list[Entry]:
        if not self.carries(request):
            return []
        return [
            Entry(
                entry["Id"], entry["MessageBody"], attribute_values(entry.get("MessageAttributes", {})),
                entry.get("MessageGroupId"),
            )
            for entry in request.json()["Entries"]
        ]  # fmt: skip

    def keep_entries(self, request: Request, ids: list[str]) -> Request:
        document = request.json()
        document["Entries"] = [entry for entry in document["Entries"] if entry["Id"] in ids]
        return replace(request, body=json.dumps(document).encode())

    def empty_answer(self) -> Answer:
        return Answer(200, JSON_HEADERS, b"{}")

    def add_failures(self, answered: Answer, ids: list[str], for_good: bool) -> Answer:
        document = json.loads(answered.body)
        document["Failed"] = [
            {"Id": id, "Code": failure_code(for_good), "SenderFault": for_good, "Message": "not this one"} for id in ids
        ]
        return answered.with_body(json.dumps(document).encode())

    def refuse_batch(self) -> Behaviour:
        return self.error(400, "InvalidMessageContents")

    def throttle(self, seconds: int) -> Behaviour:
        return self.error(400, "RequestThrottled", [("Retry-After", str(seconds))])

    def error(self, status: int, code: str, headers: list[tuple[str, str]] | None = None) -> Behaviour:
        body = {"__type": f"com.amazonaws.sqs#{code}", "message": "as the test wants it"}
        return answer(status, [*JSON_HEADERS, *(headers or [])], json.dumps(body).encode())

    def size_limit(self) -> int:
        return 1024 * 1024

    def refuse_credentials(self) -> Behaviour:
        return self.error(403, "ExpiredToken")


class SqsFifoSink(SqsSink):
    name = "sqs_fifo"
    fifo = True
    deduplicates = True


# A batch may be accepted in part, and the reader gets messages in any order.
STANDARD = {"order": "standard queues have none"}


class SqsStandardSink(SqsSink):
    name = "sqs_standard"
    cannot = STANDARD
    fifo = False


class SqsFifoElasticMqSink(SqsFifoSink):
    name = "sqs_fifo_elasticmq"
    server = "elasticmq_server"


class SqsStandardElasticMqSink(SqsStandardSink):
    name = "sqs_standard_elasticmq"
    server = "elasticmq_server"


# -------------------------------------------------------------------------------------------------
# SNS: forms and XML
# -------------------------------------------------------------------------------------------------

MEMBER = re.compile(r"PublishBatchRequestEntries\.member\.(\d+)\.(.+)")
ATTRIBUTE = re.compile(r"MessageAttributes\.entry\.(\d+)\.(Name|Value\.StringValue)")


class SnsSink(AwsSink):
    def url(self) -> str:
        return f"sns://{REGION}/{ACCOUNT}?endpoint=http://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"topic": self.template()}

    def add_topic(self, name: str = "item.events") -> None:
        attributes = {"FifoTopic": "true"} if self.fifo else {}
        topic = self._sns.create_topic(Name=self.full_name(name), Attributes=attributes)["TopicArn"]
        queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.full_name(name)}"
        self.add_queue(name)
        self._sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes={"RawMessageDelivery": "true"})

    def carries(self, request: Request) -> bool:
        return b"Action=PublishBatch" in request.body

    def entries(self, request: Request) -> list[Entry]:
        if not self.carries(request):
            return []
        members: dict[int, dict[str, str]] = {}
        for name, value in form(request):
            if match := MEMBER.fullmatch(name):
                members.setdefault(int(match[1]), {})[match[2]] = value
        return [
            Entry(fields["Id"], fields["Message"], attributes_of_form(fields), fields.get("MessageGroupId"))
            for _, fields in sorted(members.items())
        ]

    def keep_entries(self, request: Request, ids: list[str]) -> Request:
        """Renumbers the other entries without gaps, which the server would refuse."""
        fields = form(request)
        matches = [(MEMBER.fullmatch(name), value) for name, value in fields]
        numbers = [m[1] for m, value in matches if m and m[2] == "Id" and value in ids]
        kept = []
        for name, value in fields:
            match = MEMBER.fullmatch(name)
            if match and match[1] not in numbers:
                continue
            if match:
                name = f"PublishBatchRequestEntries.member.{numbers.index(match[1]) + 1}.{match[2]}"
            kept.append((name, value))
        return replace(request, body=urllib.parse.urlencode(kept).encode())

    def empty_answer(self) -> Answer:
        body = (
            b'<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult>'
            b"<Failed></Failed><Successful></Successful></PublishBatchResult>"
            b"<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></PublishBatchResponse>"
        )
        return Answer(200, [("Content-Type", "text/xml")], body)

    def add_failures(self, answered: Answer, ids: list[str], for_good: bool) -> Answer:
        members = "".join(
            f"<member><Id>{escape(id)}</Id><Code>{failure_code(for_good)}</Code>"
            f"<SenderFault>{str(for_good).lower()}</SenderFault><Message>not this one</Message></member>"
            for id in ids
        )
        body, changes = re.subn(
            rb"<Failed>\s*</Failed>|<Failed\s*/>", f"<Failed>{members}</Failed>".encode(), answered.body
        )
        assert changes == 1, answered.body
        return answered.with_body(body)

    def refuse_batch(self) -> Behaviour:
        return self.error(400, "InvalidParameter")

    def throttle(self, seconds: int) -> Behaviour:
        return self.error(429, "Throttled", [("Retry-After", str(seconds))])

    def error(self, status: int, code: str, headers: list[tuple[str, str]] | None = None) -> Behaviour:
        body = (
            '<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>'
            f"<Code>{code}</Code><Message>as the test wants it</Message></Error>"
            "<RequestId>1</RequestId></ErrorResponse>"
        )
        return answer(status, [("Content-Type", "text/xml"), *(headers or [])], body.encode())

    def size_limit(self) -> int:
        return 256 * 1024

    def refuse_credentials(self) -> Behaviour:
        return self.error(403, "ExpiredToken")


class SnsFifoSink(SnsSink):
    name = "sns_fifo"
    fifo = True
    deduplicates = True


class SnsStandardSink(SnsSink):
    name = "sns_standard"
    cannot = STANDARD
    fifo = False


# -------------------------------------------------------------------------------------------------
# Shared by both
# -------------------------------------------------------------------------------------------------


def attribute_values(attributes: dict[str, Any]) -> dict[str, str]:
    return {name: value["StringValue"] for name, value in attributes.items()}


def form(request: Request) -> list[tuple[str, str]]:
    return urllib.parse.parse_qsl(request.body.decode(), keep_blank_values=True, strict_parsing=True)


def attributes_of_form(fields: dict[str, str]) -> dict[str, str]:
    parts: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        if match := ATTRIBUTE.fullmatch(name):
            parts.setdefault(match[1], {})[match[2]] = value
    return {part["Name"]: part["Value.StringValue"] for part in parts.values()}


def failure_code(for_good: bool) -> str:
    return "InvalidMessageContents" if for_good else "InternalError"


def message_of_aws(body: str, attributes: dict[str, str], group: str | None) -> Message:
    encoding = attributes.get("encoding")
    payload: bytes | None = body.encode()
    if encoding == "base64":
        payload = base64.b64decode(body, validate=True)
    elif encoding == "none":
        payload = None
    if attributes.get("content-type", "").startswith(STRUCTURED):
        assert payload is not None
        return replace(message_of_document(payload), ordering_key=group)
    return message_of(
        attributes, ordering_key=group, headers=json.loads(attributes.get("headers", "{}")),
        payload=payload,
    )  # fmt: skip
