"""Logins at Apache Kafka with tokens: of an issuer (OAUTHBEARER), and signed with AWS keys (AWS_MSK_IAM)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from database import Database
from waiting import wait_until

from .conftest import MakeSink
from .kafka_server import MSK_KEY
from .kafka_sink import KafkaSink
from .test_conformance import assert_in_order, enqueue_keys, in_trouble
from .test_kafka import add_destination, check, wait_for_failure, with_current_library
from .token_issuer import CLIENT_ID, CLIENT_SECRET, SigningKey, TokenIssuer

__all__ = ["with_current_library"]  # a fixture


@pytest.fixture
def db(database: Database) -> Database:
    return database


@pytest.fixture
def kafka(database: Database, make_sink: MakeSink) -> KafkaSink:
    sink = make_sink(KafkaSink, database)
    assert isinstance(sink, KafkaSink)
    sink.add_topic()
    return sink


# -------------------------------------------------------------------------------------------------
# Tokens of an issuer
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def issuer(kafka: KafkaSink) -> Iterator[TokenIssuer]:
    yield from running_issuer(kafka)


def running_issuer(kafka: KafkaSink) -> Iterator[TokenIssuer]:
    issuer = TokenIssuer(kafka.broker.key, kafka.broker.certificates)
    yield issuer
    issuer.stop()
    seen = kafka.database.cluster.log_since(kafka.database.cluster.test_began) + str(kafka.database.status())
    assert "s3cret" not in seen and encoded_secret() not in seen
    assert not [token for token in issuer.issued if token[-40:] in seen]


@pytest.fixture
def another_key(tmp_path: Path) -> SigningKey:
    """A key that brokers do not know."""
    return SigningKey(tmp_path, "another")


def encoded_secret() -> str:
    return base64.b64encode(CLIENT_SECRET.encode()).decode().rstrip("=")[4:-4]


def log_in(
    kafka: KafkaSink, issuer: TokenIssuer, *, listener: str = "oauth", secret: str = CLIENT_SECRET, **options: str
) -> None:
    authority = kafka.database.cluster.directory / "issuer.crt"
    authority.write_text(Path(kafka.broker.certificates.authority).read_text())
    authority.chmod(0o644)
    add_destination(
        kafka, listener, {"client_secret": secret}, sasl_mechanism="OAUTHBEARER", token_endpoint=issuer.url,
        client_id=CLIENT_ID, https_ca_file=str(authority), **options,
    )  # fmt: skip


def set_secret(db: Database, secret: str) -> None:
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET client_secret '{secret}')")


def test_it_logs_in_with_a_token(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    """First with a wrong secret, which the issuer refuses, and says so with what we sent."""
    log_in(kafka, issuer, secret="s3cret-but-wrong", scope="write read", token_extensions="logicalCluster=lkc-1")
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "HTTP 401")
    assert in_trouble(db) == [] and issuer.issued == []
    assert f'no token of 127.0.0.1:{issuer.port}: HTTP 401: {{"error": "invalid_client"' in db.status()["last_error"]
    set_secret(db, CLIENT_SECRET)
    kafka.wait_for(ids)
    db.wait_settled()
    assert issuer.asked[0] == {"scope": "write read"}


def test_an_issuer_that_is_down(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    issuer.stop()
    log_in(kafka, issuer)
    ids = enqueue_keys(db, ["a"], 2)
    wait_until(db.status, lambda s: s["state"] == "backing off" and s["last_error"], what="a back-off")
    issuer.start()
    kafka.wait_for(ids)
    assert in_trouble(db) == []


def test_an_issuer_that_hands_out_none(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    """Each is the destination's failure; the last one is cured."""
    log_in(kafka, issuer)
    ids = enqueue_keys(db, ["a"], 2)
    issuer.answer = lambda: (503, {"error": "later"})
    wait_for_failure(db, "HTTP 503")
    issuer.answer = lambda: (200, {"access_token": "s3cret"})
    wait_for_failure(db, "no usable expires_in")
    issuer.answer = lambda: (200, {"access_token": "s3cret" * 20_000, "expires_in": 300})
    wait_for_failure(db, "too large")
    issuer.answer = issuer.token
    kafka.wait_for(ids)
    assert in_trouble(db) == []


def test_a_token_that_the_broker_refuses(
    kafka: KafkaSink, db: Database, issuer: TokenIssuer, another_key: SigningKey
) -> None:
    """A new token is fetched, although the old one is valid for hours."""
    issuer.key, issuer.lifetime = another_key, 36_000
    log_in(kafka, issuer)
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "uthentication", "OAUTHBEARER")
    issuer.key = kafka.broker.key
    kafka.wait_for(ids)
    assert in_trouble(db) == []


@pytest.mark.long
def test_tokens_are_renewed_while_the_broker_ends_sessions(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    """The broker takes no expired token, and closes each connection two seconds after its login."""
    issuer.lifetime = 4
    log_in(kafka, issuer, listener="sessions")
    keys = [f"k{n}" for n in range(5)]
    ids: list[str] = []

    def send_some() -> int:
        first = len(ids) // len(keys) + 1
        ids.extend(id for key in keys for id in db.enqueue(key, 2, first=first))
        kafka.wait_for(ids, timeout=120)
        return len(issuer.issued)

    wait_until(send_some, lambda count: count >= 4, timeout=240, what="four tokens")
    db.wait_settled(timeout=120)
    assert in_trouble(db) == []
    assert_in_order(kafka.messages())


@pytest.mark.long
def test_an_issuer_that_is_down_while_the_token_is_valid(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    issuer.lifetime = 20
    log_in(kafka, issuer)
    ids = enqueue_keys(db, ["a"], 2)
    kafka.wait_for(ids)
    refused = []

    def refuse() -> tuple[int, dict[str, str]]:
        refused.append(True)
        return 503, {"error": "later"}

    issuer.answer = refuse
    wait_until(lambda: refused, timeout=120, what="the token to be renewed")
    ids += enqueue_keys(db, ["b"], 2)
    kafka.wait_for(ids)
    assert in_trouble(db) == [] and len(issuer.issued) == 1


def test_an_issuer_whose_certificate_is_not_trusted(kafka: KafkaSink, db: Database, issuer: TokenIssuer) -> None:
    log_in(kafka, issuer)
    db.execute("ALTER SERVER d OPTIONS (DROP https_ca_file)")
    ids = enqueue_keys(db, ["a"], 1)
    wait_for_failure(db, "certificate", "SSL")
    assert issuer.asked == [] and kafka.messages() == []
    assert set(ids) and in_trouble(db) == []


def test_the_check_of_a_token(kafka: KafkaSink, db: Database, issuer: TokenIssuer, another_key: SigningKey) -> None:
    log_in(kafka, issuer, secret="s3cret-but-wrong")
    ok, detail = check(db)["token"]
    assert not ok and "HTTP 401" in detail and "s3cret" not in detail
    set_secret(db, CLIENT_SECRET)
    found = check(db, "item.events")
    assert found["token"][0] and found["token"][1].startswith(f"of 127.0.0.1:{issuer.port}, valid for ")
    assert found["login"] == (True, f'OAUTHBEARER as "{CLIENT_ID}"')
    assert found[f'topic "{kafka.place}-item.events"'][0]
    issuer.key = another_key
    ok, detail = check(db)["login"]
    assert not ok and issuer.issued[-1][-40:] not in detail


def test_a_token_with_a_current_library(with_current_library: KafkaSink) -> None:
    kafka, db = with_current_library, with_current_library.database
    kafka.add_topic()
    for issuer in running_issuer(kafka):
        log_in(kafka, issuer)
        kafka.wait_for(enqueue_keys(db, ["a"], 2))


# -------------------------------------------------------------------------------------------------
# Tokens signed with AWS keys
# -------------------------------------------------------------------------------------------------


def msk_options(mapping: dict[str, str]) -> dict[str, str]:
    return {"access_key_id": MSK_KEY[0], "secret_access_key": MSK_KEY[1], **mapping}


def test_a_login_with_aws_keys(kafka: KafkaSink, db: Database) -> None:
    wrong = msk_options({"secret_access_key": "s3cret-but-wrong"})
    add_destination(kafka, "msk", wrong, sasl_mechanism="AWS_MSK_IAM", region="eu-west-1")
    ids = enqueue_keys(db, ["a"], 2)
    wait_for_failure(db, "uthentication", "OAUTHBEARER")
    assert in_trouble(db) == []
    ok, detail = check(db)["login"]
    assert not ok
    db.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET secret_access_key '{MSK_KEY[1]}')")
    kafka.wait_for(ids)
    db.wait_settled()
    found = check(db)
    assert found["token"][0] and found["token"][1].startswith("signed for eu-west-1, valid for ")
    assert found["login"] == (True, f'AWS_MSK_IAM as "{MSK_KEY[0]}"')
    assert "s3cret" not in db.cluster.log_since(db.cluster.test_began) + str(db.status())


def test_a_session_of_aws_keys(kafka: KafkaSink, db: Database) -> None:
    mapping = msk_options({"session_token": "IQoJ+s3cret/token=="})
    add_destination(kafka, "msk", mapping, sasl_mechanism="AWS_MSK_IAM", region="eu-west-1")
    kafka.wait_for(enqueue_keys(db, ["a"], 2))
    assert "s3cret" not in db.cluster.log_since(db.cluster.test_began) + str(db.status())
