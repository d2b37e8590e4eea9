"""The kinesis and eventbridge sinks, read back with Amazon's own client.

The answer to a batch has a result for each entry, in their order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from database import Database
from receiver import Behaviour, Exchange, Request, answer

from .aws_sinks import ACCOUNT, REGION, AwsKeys
from .fault_proxy import Answer, FaultProxy, reply
from .servers import Server
from .sink import Message, Sink, message_of_document

JSON_HEADERS = [("Content-Type", "application/x-amz-json-1.1")]


class OrderedAnswersSink(AwsKeys, Sink):
    module = "pg_outbox_aws"
    server = "aws_server"
    cloud_events = ("structured",)
    proxy: FaultProxy
    service: ClassVar[str]
    action: ClassVar[str]  # that sends a batch
    list_name: ClassVar[str]  # of entries, in the request and in the answer
    size: ClassVar[int]  # limit of an entry

    def __init__(self, database: Database, server: Server) -> None:
        import boto3

        super().__init__(database)
        self.proxy = FaultProxy(server.port, self.carries)
        self.session = boto3.Session("any", "any", region_name=REGION)
        self.endpoint = f"http://127.0.0.1:{server.port}"
        self.client = self.session.client(self.service, endpoint_url=self.endpoint)

    def create(self, destination: str = "d", **options: str) -> None:
        super().create(destination, **options)
        self.map_credentials(destination)

    def create_with_credentials(self) -> None:
        self.create()

    def url(self) -> str:
        return f"{self.name}://{REGION}?endpoint=http://127.0.0.1:{self.proxy.port}"

    def full_name(self, topic: str) -> str:
        return f"{self.place}-{topic}"

    def carries(self, request: Request) -> bool:
        return request.headers.get("x-amz-target") == self.action

    def carried(self, request: Request) -> list[Message]:
        if not self.carries(request):
            return []
        return [self.message(entry) for entry in request.json()[self.list_name]]

    def size_limit(self) -> int:
        return self.size

    def refuse(self, chosen: Callable[[Message], bool], *, for_good: bool, times: int | None) -> None:
        """Makes entries that carry such an event fail; the server gets the others."""
        self.refuse_with(chosen, "MalformedDetail" if for_good else "InternalFailure", times=times)

    def refuse_with(self, chosen: Callable[[Message], bool], code: str, *, times: int | None) -> None:
        async def behave(exchange: Exchange) -> None:
            document = exchange.request.json()
            failed = [chosen(self.message(entry)) for entry in document[self.list_name]]
            passed = [e for e, fails in zip(document[self.list_name], failed, strict=True) if not fails]
            answered = Answer(200, JSON_HEADERS, b"{}")
            taken = iter([])
            if passed:
                body = json.dumps({**document, self.list_name: passed}).encode()
                answered = await self.proxy.ask(replace(exchange.request, body=body))
                taken = iter(json.loads(answered.body)[self.list_name])
            failure = {"ErrorCode": code, "ErrorMessage": "not this one"}
            results = [failure if fails else next(taken) for fails in failed]
            count = {f"Failed{self.list_name.removesuffix('s')}Count": sum(failed)}
            await reply(answered.with_body(json.dumps({**count, self.list_name: results}).encode()))(exchange)

        self.proxy.on(lambda request: any(chosen(message) for message in self.carried(request)), behave, times=times)

    def error(self, status: int, code: str, headers: list[tuple[str, str]] | None = None) -> Behaviour:
        body = {"__type": code, "message": "as the test wants it"}
        return answer(status, [*JSON_HEADERS, *(headers or [])], json.dumps(body).encode())

    def refuse_batch(self) -> Behaviour:
        return self.error(400, "ValidationException")

    def refuse_credentials(self) -> Behaviour:
        return self.error(400, "ExpiredTokenException")

    @abstractmethod
    def message(self, entry: dict[str, Any]) -> Message: ...


# -------------------------------------------------------------------------------------------------
# Kinesis
# -------------------------------------------------------------------------------------------------

SHARDS = 3


class KinesisSink(OrderedAnswersSink):
    name = "kinesis"
    service = "kinesis"
    action = "Kinesis_20131202.PutRecords"
    list_name = "Records"
    batch_limit = 500
    small_batches = {"batch_size": "10"}
    size = 1024 * 1024
    # No code of a record refuses it for good; of a whole request there are some.
    cannot = {"refusals": "an entry fails for now, or the whole request is refused"}

    def __init__(self, database: Database, server: Server) -> None:
        super().__init__(database, server)
        self._iterators: list[str] = []

    def options(self) -> dict[str, str]:
        return {"stream": self.place + "-{topic}"}

    def add_topic(self, name: str = "item.events") -> None:
        stream = self.full_name(name)
        self.client.create_stream(StreamName=stream, ShardCount=SHARDS)
        self.client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
        for shard in self.client.list_shards(StreamName=stream)["Shards"]:
            iterator = self.client.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )
            self._iterators.append(iterator["ShardIterator"])

    def receive(self) -> list[Message]:
        received = []
        for n, iterator in enumerate(self._iterators):
            while True:
                got = self.client.get_records(ShardIterator=iterator)
                iterator = self._iterators[n] = got["NextShardIterator"]
                received += [self.message(record) for record in got["Records"]]
                if not got["Records"]:
                    break
        return received

    def message(self, entry: dict[str, Any]) -> Message:
        data = entry["Data"]
        if isinstance(data, str):  # in a request
            data = base64.b64decode(data, validate=True)
        return replace(message_of_document(data), ordering_key=entry["PartitionKey"])

    def as_carried(self, message: Message) -> Message:
        key = message.ordering_key or message.event_id
        if len(key.encode("utf-16-le")) // 2 > 256:
            key = hashlib.sha256(key.encode()).hexdigest()
        return replace(message, ordering_key=key, payload=message.payload or None,
                       content_type=None if message.payload is None else message.content_type)  # fmt: skip

    def check_batch(self, messages: list[Message]) -> None:
        super().check_batch(messages)
        assert sum(len(message.payload or b"") for message in messages) <= self.batch_bytes()
        keys = [message.ordering_key for message in messages]
        assert len(keys) == len(set(keys)), f"several events of a key in one batch: {keys}"

    def batch_bytes(self) -> int:
        return 5 * 1024 * 1024

    def throttle(self, seconds: int) -> Behaviour:
        headers = [("Retry-After", str(seconds))]
        return self.error(400, "ProvisionedThroughputExceededException", headers)


class KinesisOfAccountSink(KinesisSink):
    """Streams are named by their ARNs."""

    def url(self) -> str:
        return super().url().replace("?", f"/{ACCOUNT}?")


# -------------------------------------------------------------------------------------------------
# EventBridge
# -------------------------------------------------------------------------------------------------


class EventBridgeSink(OrderedAnswersSink):
    """Events are read from a queue, to which a rule of the bus sends all of them."""

    name = "eventbridge"
    service = "events"
    action = "AWSEvents.PutEvents"
    list_name = "Entries"
    batch_limit = 10
    size = 1024 * 1024
    cannot = {"order": "a bus has none"}

    def __init__(self, database: Database, server: Server) -> None:
        super().__init__(database, server)
        self.sqs = self.session.client("sqs", endpoint_url=self.endpoint)
        self._queues: list[str] = []
        self.received: list[dict[str, Any]] = []  # as rules and targets see them

    def options(self) -> dict[str, str]:
        return {"event_bus": self.place + "-{topic}"}

    def add_topic(self, name: str = "item.events") -> None:
        bus = self.full_name(name)
        self.client.create_event_bus(Name=bus)
        self.add_reader(bus)

    def add_reader(self, bus: str) -> None:
        queue = self.sqs.create_queue(QueueName=f"reader-{bus}".replace(".", "-"))["QueueUrl"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
        rule = f"all-of-{self.place}"
        self.client.put_rule(Name=rule, EventBusName=bus, EventPattern=json.dumps({"account": [ACCOUNT]}))
        self.client.put_targets(Rule=rule, EventBusName=bus, Targets=[{"Id": "queue", "Arn": attributes["QueueArn"]}])
        self._queues.append(queue)

    def receive(self) -> list[Message]:
        new = []
        for queue in self._queues:
            while messages := self.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
                for message in messages:
                    self.sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                    new.append(json.loads(message["Body"]))
        self.received += new
        return [message_of_detail(event["detail"]) for event in new]

    def message(self, entry: dict[str, Any]) -> Message:
        return message_of_detail(json.loads(entry["Detail"]))

    def check_batch(self, messages: list[Message]) -> None:
        super().check_batch(messages)
        assert sum(len(message.payload or b"") for message in messages) <= self.size_limit()

    def throttle(self, seconds: int) -> Behaviour:
        return self.error(400, "ThrottlingException", [("Retry-After", str(seconds))])


def message_of_detail(detail: dict[str, Any]) -> Message:
    return message_of_document(json.dumps(detail, ensure_ascii=False).encode())
