"""The Pub/Sub source in a process of its own, with a service that the test plays: what takes time, TLS, signals.

What goes over the wire is in tests/unit/client/pubsub/session_test.cpp.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation
from sinks import servers
from waiting import SECOND, Stopwatch, stays, wait_until

from .pubsub_source import PubSubSource
from .source import Reader

servers.add_clients_to_path()
pytest.importorskip("grpc_status", reason="NOT TESTED: scripts/test.sh installs Google's library")

import grpc  # noqa: E402

from .fake_pubsub import Failure, FakePubSub  # noqa: E402

NEVER = 3_600_000


@pytest.fixture
def fake() -> Iterator[FakePubSub]:
    fake = FakePubSub()
    yield fake
    fake.stop()


# (option=value, ...) -> an open source, which reads a subscription of the fake
Read = Callable[..., Reader]


@pytest.fixture
def make_reader(installation: Installation) -> Iterator[Read]:
    program = PubSubSource.program(installation)
    if not program.exists():
        pytest.skip("NOT TESTED: the source pubsub is not part of this build")
    made: list[Reader] = []

    def make(**options: object) -> Reader:
        made.append(Reader(program, {"project": "p", "subscription": "sub", **options}))
        made[-1].open()
        return made[-1]

    yield make
    for reader in made:
        reader.kill()


@pytest.fixture
def read(fake: FakePubSub, make_reader: Read) -> Read:
    return lambda **options: make_reader(**{"heartbeat": NEVER, "emulator_host": f"127.0.0.1:{fake.port}", **options})


def numbered(count: int, first: int = 1, **fields: object) -> list[dict]:
    return [{"id": str(n), "data": str(n).encode(), **fields} for n in range(first, first + count)]


def wait_acked(fake: FakePubSub, *ack_ids: str) -> None:
    wait_until(lambda: sorted(fake.acked()), lambda ids: ids == sorted(ack_ids), what=f"acks of {ack_ids}")


def wait_nacked(fake: FakePubSub, *ack_ids: str) -> None:
    """Expects the messages in this order."""
    wait_until(fake.nacked, lambda ids: ids == list(ack_ids), what=f"{ack_ids} to be given back")


# -------------------------------------------------------------------------------------------------
# The stream
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_pauses_between_streams_that_fail_grow(fake: FakePubSub, read: Read) -> None:
    reader = read()
    for _ in range(5):
        fake.next_stream().end("UNAVAILABLE")
    watch = Stopwatch()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    reader.receive(1)
    # Each is a random part of 0.2 s, 0.4 s, ..., 3.2 s.
    assert watch.seconds < 3.2 + 2 * SECOND
    stream.end("UNAVAILABLE")
    watch = Stopwatch()
    fake.next_stream()
    assert watch.seconds < 2 * SECOND, "after a good stream the pauses are short again"


def test_only_further_streams_that_fail_are_worth_a_warning(fake: FakePubSub, read: Read) -> None:
    reader = read()
    for _ in range(3):
        fake.next_stream().end("UNAVAILABLE")
    fake.next_stream().send({"id": "1"})
    reader.receive(1)
    assert reader.log().count("warning: the stream ended") == 2


def test_a_service_that_is_away_comes_back(fake: FakePubSub, read: Read) -> None:
    fake.stop()
    reader = read()
    reader.wait_logged("UNAVAILABLE")
    assert reader.poll() == []
    fake.start()
    stream = fake.next_stream()
    stream.send({"id": "1"})
    held = reader.receive(1)
    fake.stop()
    reader.ack(*held)
    fake.start()
    fake.next_stream().send({"id": "2"})
    reader.ack(*reader.receive(1))
    wait_acked(fake, "ack-1", "ack-2")


# -------------------------------------------------------------------------------------------------
# Leases
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_leases_are_extended_until_a_message_is_settled(fake: FakePubSub, read: Read) -> None:
    reader = read(min_ack_deadline=2, max_ack_deadline=2)
    fake.next_stream().send(*numbered(3))
    first, second, third = reader.receive(3)
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= 2, what="an extension of the second")
    reader.ack(first)
    reader.nack(third)
    wait_acked(fake, "ack-1")
    wait_nacked(fake, "ack-3")
    settled = len(fake.calls("ModifyAckDeadline"))
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= 4, what="more extensions of the second")
    later = [call.ack_ids for call in fake.calls("ModifyAckDeadline")[settled:]]
    assert later == [["ack-2"]] * len(later), "what is settled is not extended any more"


@pytest.mark.timing
def test_leases_are_extended_in_time(fake: FakePubSub, read: Read) -> None:
    read(min_ack_deadline=4, max_ack_deadline=4)
    fake.next_stream().send(*numbered(2))
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= 4, what="three extensions")
    times = [call.at for call in fake.extensions("ack-2")]
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) < 4 * SECOND, f"every lease of 4 s is extended before it ends: {gaps}"
    assert min(gaps) > 0.5, f"and not all the time: {gaps}"


def test_a_message_that_is_held_too_long_is_left(fake: FakePubSub, read: Read) -> None:
    reader = read(min_ack_deadline=1, max_ack_deadline=1, max_lease=2)
    fake.next_stream().send(*numbered(1))
    held = reader.receive(1)
    reader.wait_stats(expired=1)
    count = len(fake.extensions("ack-1"))
    stays(lambda: len(fake.extensions("ack-1")), count, seconds=1.5, what="extensions")
    assert "held for longer than max_lease" in reader.log()
    reader.ack(*held)
    wait_acked(fake, "ack-1")


# -------------------------------------------------------------------------------------------------
# Exactly once
# -------------------------------------------------------------------------------------------------


def test_exactly_once_a_lease_that_is_lost_is_not_asked_for_again(fake: FakePubSub, read: Read) -> None:
    reader = read(min_ack_deadline=1, max_ack_deadline=1)
    stream = fake.next_stream()
    stream.send(*numbered(2), exactly_once=True)
    first, second = reader.receive(2)
    fake.fail("ModifyAckDeadline", Failure("FAILED_PRECONDITION", {"ack-1": "PERMANENT_FAILURE_INVALID_ACK_ID"}))
    reader.wait_stats(expired=1, leased=1)
    asked = len(fake.extensions("ack-1"))
    wait_until(lambda: len(fake.extensions("ack-2")), lambda n: n >= asked + 2, what="further extensions")
    assert len(fake.extensions("ack-1")) == asked
    reader.ack(first, second)
    wait_acked(fake, "ack-2")


# -------------------------------------------------------------------------------------------------
# The end
# -------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_close_while_the_service_is_away_takes_its_limit(fake: FakePubSub, read: Read) -> None:
    reader = read(max_outstanding_messages=2)
    fake.next_stream().send(*numbered(2))
    reader.wait_stats(waiting=2)
    fake.stop()
    watch = Stopwatch()
    reader.close(0.5)
    assert watch.seconds < 0.5 + 2 * SECOND
    fake.start()


# -------------------------------------------------------------------------------------------------
# Its process
# -------------------------------------------------------------------------------------------------


def test_its_threads_leave_signals_to_the_program(fake: FakePubSub, read: Read) -> None:
    reader = read()
    fake.next_stream().send(*numbered(100))
    reader.ack(*reader.receive(100))
    reader.wait_stats(acked=100)
    tasks = list(Path(f"/proc/{reader.process.pid}/task").iterdir())
    assert len(tasks) > 2
    for task in tasks:
        if int(task.name) == reader.process.pid:
            continue
        try:
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if lines["Threads"] == "0":
            continue  # it is ending: what it blocked is gone, and the kernel shows zeroes
        blocked = int(lines["SigBlk"], 16)
        assert all(blocked >> (number - 1) & 1 for number in (1, 2, 10, 12, 15, 17)), lines


@pytest.mark.timing
def test_idle_it_takes_no_time(fake: FakePubSub, read: Read) -> None:
    reader = read(heartbeat=30_000)
    fake.next_stream().send(*numbered(10))
    reader.receive(10)
    reader.wait_stats(extended=10)

    def ticks() -> int:
        fields = Path(f"/proc/{reader.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    watch = Stopwatch()
    wait_until(lambda: watch.seconds, lambda s: s > 3, what="three seconds")
    assert ticks() - before <= 5, "hundredths of a second"


# -------------------------------------------------------------------------------------------------
# TLS, credentials
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def secure_fake(tmp_path: Path) -> Iterator[FakePubSub]:
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "tls.key",
            "-out", tmp_path / "tls.crt")  # fmt: skip
    pair = ((tmp_path / "tls.key").read_bytes(), (tmp_path / "tls.crt").read_bytes())
    fake = FakePubSub(grpc.ssl_server_credentials([pair]))
    yield fake
    fake.stop()


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def key_file(directory: Path) -> Path:
    openssl("genpkey", "-algorithm", "RSA", "-out", directory / "service.pem")
    file = directory / "key.json"
    file.write_text(
        json.dumps({
            "type": "service_account", "project_id": "p", "private_key_id": "k1", "client_id": "1",
            "client_email": "reader@p.iam.gserviceaccount.com", "token_uri": "https://localhost/",
            "private_key": (directory / "service.pem").read_text(),
        })
    )  # fmt: skip
    return file


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_key_of_a_service_account(
    secure_fake: FakePubSub, make_reader: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options = {"endpoint": f"localhost:{secure_fake.port}", "ca_file": tmp_path / "tls.crt"}
    if how == "option":
        options["key_file"] = key_file(tmp_path)
    else:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file(tmp_path)))
        monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(tmp_path / "tls.crt"))
        del options["ca_file"]
    reader = make_reader(**options)
    secure_fake.next_stream().send(*numbered(1))
    reader.ack(*reader.receive(1))
    wait_acked(secure_fake, "ack-1")
    for metadata in secure_fake.metadata:
        token = metadata["authorization"].removeprefix("Bearer ")
        header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2])
        assert (header["alg"], header["kid"]) == ("RS256", "k1")
        assert claims["iss"] == claims["sub"] == "reader@p.iam.gserviceaccount.com"
        assert claims["aud"].startswith("https://localhost")


def test_a_certificate_that_is_not_trusted(secure_fake: FakePubSub, make_reader: Read, tmp_path: Path) -> None:
    reader = make_reader(endpoint=f"localhost:{secure_fake.port}", key_file=key_file(tmp_path))
    reader.wait_logged("UNAVAILABLE")
    assert secure_fake.streams == []
