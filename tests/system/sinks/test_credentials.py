"""Credentials that the platform hands out to the server process, and others when they have expired."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import MakeCluster
from database import create_database
from receiver import Exchange, Receiver, Request, answer, everything
from waiting import wait_until

from .aws_sinks import SnsStandardSink, SqsStandardSink
from .conftest import MakeSink
from .pubsub_sink import PubSubSink
from .sink import Sink


class Platform:
    """Issues credentials number 1, 2, ..., with the number in their names."""

    def __init__(self, receiver: Receiver, directory: Path) -> None:
        self.receiver = receiver
        self.directory = directory
        self.handed_out = 0
        receiver.on(everything, self.reply)

    def url(self, path: str = "") -> str:
        return self.receiver.url(path)

    async def reply(self, exchange: Exchange) -> None:
        body = self.answer_to(exchange.request)
        await answer(200 if body else 404, body=body.encode())(exchange)

    def number(self) -> int:
        self.handed_out += 1
        return self.handed_out

    def environment(self) -> dict[str, str]:
        raise NotImplementedError

    def answer_to(self, request: Request) -> str:
        """Returns the answer; empty if the address does not exist."""
        raise NotImplementedError

    def keys(self) -> dict[str, str]:
        number = self.number()
        return {
            "AccessKeyId": f"AKIAPLATFORM{number}",
            "SecretAccessKey": f"s3cret/of+platform-{number}",
            "Token": f"s3cret-session-of-platform-{number}",
            "Expiration": "2099-01-31T10:20:30Z",
        }


class GoogleMetadata(Platform):
    def environment(self) -> dict[str, str]:
        return {"GCE_METADATA_HOST": f"127.0.0.1:{self.receiver.port}"}

    def answer_to(self, request: Request) -> str:
        if request.headers.get("metadata-flavor") != "Google":
            return ""
        if request.target != "/computeMetadata/v1/instance/service-accounts/default/token":
            return ""
        return json.dumps({"access_token": f"s3cret-PLATFORM{self.number()}", "expires_in": 3600})


class AwsContainer(Platform):
    def environment(self) -> dict[str, str]:
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self.url("/v2/credentials/x"),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "s3cret-container-token",
        }

    def answer_to(self, request: Request) -> str:
        known = request.headers.get("authorization") == "s3cret-container-token"
        return json.dumps(self.keys()) if known and request.target == "/v2/credentials/x" else ""


class AwsInstance(Platform):
    """Amazon's metadata service (IMDSv2)."""

    ROLES = "/latest/meta-data/iam/security-credentials/"

    def environment(self) -> dict[str, str]:
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url("")}

    def answer_to(self, request: Request) -> str:
        if (request.method, request.target) == ("PUT", "/latest/api/token"):
            return "s3cret-imds-token" if "x-aws-ec2-metadata-token-ttl-seconds" in request.headers else ""
        if request.headers.get("x-aws-ec2-metadata-token") != "s3cret-imds-token":
            return ""
        answers: dict[str, Callable[[], str]] = {
            self.ROLES: lambda: "the-role\n",
            f"{self.ROLES}the-role": lambda: json.dumps({"Code": "Success", **self.keys()}),
        }
        return answers.get(request.target, lambda: "")()


class AwsWebIdentity(Platform):
    def environment(self) -> dict[str, str]:
        token = self.directory / "token"
        token.write_text("s3cret-web-identity\n")
        token.chmod(0o644)
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/the-role",
            "AWS_ENDPOINT_URL_STS": self.url(""),
        }

    def answer_to(self, request: Request) -> str:
        asked = dict(urllib.parse.parse_qsl(request.body.decode()))
        assert "authorization" not in request.headers, "this request is not signed"
        if asked.get("WebIdentityToken") != "s3cret-web-identity":
            return ""
        keys = self.keys()
        keys["SessionToken"] = keys.pop("Token")
        members = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        return (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials>{members}</Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )


PLATFORMS: dict[str, tuple[type[Platform], type[Sink]]] = {
    "google metadata": (GoogleMetadata, PubSubSink),
    "container": (AwsContainer, SqsStandardSink),
    "instance": (AwsInstance, SnsStandardSink),
    "web identity": (AwsWebIdentity, SqsStandardSink),
}


# The fixture `make_platform`: (name) -> Platform, Sink
MakePlatform = Callable[[str], tuple[Platform, Sink]]


@pytest.fixture
def make_platform(
    make_cluster: MakeCluster,
    make_sink: MakeSink,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> MakePlatform:
    """A server in whose environment the platform is, and a destination without a user mapping."""

    def make(name: str) -> tuple[Platform, Sink]:
        platform_type, kind = PLATFORMS[name]
        cluster = make_cluster(started=False)
        platform = platform_type(receiver, cluster.directory)
        for variable, value in platform.environment().items():
            monkeypatch.setenv(variable, value)
        sink = make_sink(kind, create_database(cluster.start(), "platform"))
        sink.add_topic()
        create_without_mapping(sink)
        return platform, sink

    return make


@pytest.mark.long
@pytest.mark.parametrize("name", list(PLATFORMS))
def test_expired_credentials_of_the_platform_are_replaced(name: str, make_platform: MakePlatform) -> None:
    platform, sink = make_platform(name)
    db = sink.database
    ids = db.enqueue("a", 3)
    sink.wait_for(ids)
    assert platform.handed_out == 1

    rule = sink.proxy.on(lambda request: uses(request, 1), sink.refuse_credentials())
    ids += db.enqueue("a", 3, first=4)
    sink.wait_for(ids)
    db.wait_settled()
    assert rule.met and platform.handed_out == 2
    assert db.execute("SELECT * FROM outbox.delivery") == []
    seen = db.cluster.log() + str(db.status())
    assert "s3cret" not in seen, "credentials of the platform can be seen"


@pytest.mark.parametrize("name", ["google metadata", "instance"])
def test_nobody_but_a_superuser_borrows_the_identity_of_the_server(name: str, make_platform: MakePlatform) -> None:
    platform, sink = make_platform(name)
    db = sink.database
    sink.wait_for(db.enqueue("a"))
    db.execute("CREATE ROLE app; GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO app")
    db.execute("ALTER SERVER d OWNER TO app")
    requests = len(sink.proxy.requests)
    db.enqueue("a", first=2)
    status = wait_until(db.status, lambda s: s["state"] == "backing off", what="a back-off")
    assert "user mapping" in status["last_error"]
    assert len(sink.proxy.requests) == requests and platform.handed_out == 1


def create_without_mapping(sink: Sink) -> None:
    url = sink.url() if "endpoint=" in sink.url() else f"{sink.url()}?endpoint={sink.proxy.url('')}"
    options = {name: v for name, v in sink.options().items() if name != "emulator_host"}
    sink.database.add_destination("d", url, **options)


def uses(request: Request, number: int) -> bool:
    words = request.headers.get("authorization", "").replace("/", " ").replace("=", " ").split()
    return any(word.endswith(f"PLATFORM{number}") for word in words)
