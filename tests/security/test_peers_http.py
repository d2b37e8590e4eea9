"""Hostile receivers over HTTP and https: limits on memory, log and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from certificates import Certificates, make_certificates
from cluster import Cluster, MakeCluster
from conftest import create_database
from database import Database
from long_run import all_in_long_run
from waiting import Stopwatch, wait_until

from .peers import hostile_cloud, hostile_http, hostile_tls
from .peers.attack import Target, assert_harmless
from .peers.peer import Peer

LOOPBACK = {"outbox.allowed_hosts": "127.0.0.1", "autovacuum": "off"}


@pytest.fixture(scope="module")
def target(installation: object) -> Iterator[Target]:
    cluster = Cluster(installation, LOOPBACK).start()  # type: ignore[arg-type]
    yield Target(create_database(cluster, "db"))
    cluster.destroy()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("authority")
    for parent in [directory, *directory.parents][:3]:
        parent.chmod(0o755)
    return make_certificates(directory)


@pytest.mark.timing
@pytest.mark.parametrize("mode", hostile_http.MODES)
def test_hostile_answers_over_http_stay_within_limits(target: Target, http: None, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_http.MODES[mode]) as peer:
        damage = target.suffer("d", f"http://127.0.0.1:{peer.port}/")
    damage.assert_bearable(mode)


@pytest.mark.timing
@pytest.mark.parametrize("mode", [*hostile_tls.MODES, "endless handshake"])
def test_hostile_answers_over_https_stay_within_limits(
    target: Target, http: None, certificates: Certificates, mode: str
) -> None:
    """S12"""
    authority, certificate, key = certificates
    with hostile_tls.open_peer(mode, certificate, key) as peer:
        damage = target.suffer("d", f"https://127.0.0.1:{peer.port}/", ca_file=authority)
    damage.assert_bearable(mode)


@pytest.mark.timing
@pytest.mark.parametrize("kind", all_in_long_run(["pubsub", "sqs", "sns", "kinesis", "eventbridge"], short=["pubsub"]))
@pytest.mark.parametrize("mode", hostile_cloud.MODES)
def test_hostile_answers_of_a_cloud_stay_within_limits(target: Target, kind: str, mode: str) -> None:
    """S12, S23"""
    with Peer(hostile_cloud.MODES[mode]) as peer:
        endpoint = f"http://127.0.0.1:{peer.port}"
        if kind == "pubsub":
            damage = target.suffer("topic", "pubsub://p", emulator_host=endpoint.removeprefix("http://"))
        else:
            account = "/123456789012" if kind in ("sns", "sqs") else ""
            keys = {"access_key_id": "AKIA", "secret_access_key": "s3cret-s3cret"}
            damage = target.suffer("topic", f"{kind}://eu-west-1{account}?endpoint={endpoint}", keys)
        assert peer.connections > 0
    damage.assert_bearable(f"{kind}: {mode}")


def test_receipts_have_ids_that_are_short_lines_without_credentials(target: Target) -> None:
    """The service chooses the ids, and a row has them for each event."""
    token = "s3cret-s3cret-1"
    id = hostile_cloud.FORGED_JSON.decode() + token
    answer = f'{{"Successful": [{{"Id": "0", "MessageId": "{id}"}}, {{"Id": "1", "MessageId": "{"x" * 20_000}"}}]}}'
    database = target.database
    with Peer(hostile_cloud.always(answer.encode())) as peer:
        target.create(
            "ids", f"sqs://eu-west-1/123456789012?endpoint=http://127.0.0.1:{peer.port}",
            {"access_key_id": "AKIA", "secret_access_key": "x", "session_token": token}, receipts="on",
        )  # fmt: skip
        database.enqueue("k", 2, topic="ids")
        receipts = wait_until(
            lambda: [id for (id,) in database.execute("SELECT message_id FROM outbox.receipt WHERE destination = 'ids'")],
            lambda ids: len(ids) >= 2, what="receipts of both events",
        )  # fmt: skip
        database.execute("DROP SERVER ids CASCADE")
    for receipt in receipts:
        assert len(receipt) <= 1000 and token not in receipt and "\n" not in receipt
        assert_harmless(receipt, "receipts")


def test_credentials_that_a_receiver_repeats_are_concealed(target: Target, http: None) -> None:
    """S23: in any form of repetition"""
    import base64
    import json
    from urllib.parse import quote

    password = 'p"ss/wörd 1234+x'

    forms = [
        password, base64.b64encode(password.encode()).decode(), quote(password, safe=""),
        json.dumps(password, ensure_ascii=False)[1:-1], base64.b64encode(f"bob:{password}".encode()).decode(),
    ]  # fmt: skip
    for form in forms:
        answer = hostile_http.with_error(f"not you: {form}, sorry".encode())
        with Peer(hostile_http.answering(answer)) as peer:
            damage = target.suffer("d", f"http://127.0.0.1:{peer.port}/", {"user": "bob", "password": password})
        assert damage.error and "not you" in damage.error
        assert form not in damage.error and form not in damage.log, form
        assert "***" in damage.error


def test_a_destination_that_flaps_writes_a_bounded_number_of_log_lines(target: Target, http: None) -> None:
    """S11, S12: the log does not grow with the attempts, but by one line in ten seconds"""
    database = target.database
    watch = Stopwatch()
    with Peer(hostile_http.MODES["flapping"]) as peer:
        before = database.cluster.log_size()
        target.create("flaps", f"http://127.0.0.1:{peer.port}/", retry_base="1ms", retry_max="1ms", max_connections="1")
        database.enqueue("k", 400, topic="flaps")
        wait_until(lambda: database.value("SELECT failures FROM outbox.workers() WHERE name = 'flaps'"),
                   lambda count: count > 60, what="many changes of the destination")  # fmt: skip
        lines = database.cluster.log_since(before).count('destination "flaps"')
        database.execute("DROP SERVER flaps CASCADE")
    assert lines < 40 + watch.seconds / 10


def test_text_of_a_receiver_is_valid_in_every_encoding(make_cluster: MakeCluster, http: None) -> None:
    """S23: an answer of invalid UTF-8 must not make outbox.status and outbox.health() unreadable"""
    cluster = make_cluster(LOOPBACK)
    for encoding in ("UTF8", "LATIN1"):
        name = f"db_{encoding.lower()}"
        cluster.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
        database = Database(cluster, name)
        database.create_extension()
        # Long enough that a column cuts it off in the middle of a character.
        body = b"\xff\xfe caf\xc3\xa9 \xe2\x82\xac\xc2\x9b\xe2\x80\xae" + "é€".encode() * 40
        with Peer(hostile_http.answering(hostile_http.with_error(body))) as peer:
            target = Target(database)
            target.create("d", f"http://127.0.0.1:{peer.port}/")
            database.enqueue("d", 1, topic="d")
            wait_until(lambda: target.error("d"), what="the error of the destination")
            for client_encoding in ("UTF8", "LATIN9") if encoding == "UTF8" else ("UTF8",):
                with database.connect() as connection:
                    connection.execute(f"SET client_encoding = '{client_encoding}'")
                    connection.execute("SELECT upper(last_error), length(last_error) FROM outbox.status")
                    connection.execute("SELECT * FROM outbox.health()")
            assert_harmless(target.error("d") or "", encoding)
            database.execute("DROP SERVER d CASCADE")


def test_ordering_keys_do_not_forge_lines_of_the_log(target: Target, http: None) -> None:
    """S23"""
    database = target.database
    with Peer(hostile_http.answering(b"HTTP/1.1 413 x\r\nContent-Length: 0\r\n\r\n")) as peer:
        before = database.cluster.log_size()
        target.create("keys", f"http://127.0.0.1:{peer.port}/")
        key = "k\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x1b[2J\u009b31m\u202e"
        database.execute("SELECT outbox.enqueue('a', 'b', 'c', '{}', topic => 'keys', ordering_key => %s)", (key,))
        wait_until(lambda: "is a dead letter" in database.cluster.log_since(before), what="a dead letter")
        wait_until(lambda: "forged" in database.cluster.log_since(before), what="the key in the log")
        database.execute("DROP SERVER keys CASCADE")
    assert_harmless(database.cluster.log_since(before), "ordering keys")
