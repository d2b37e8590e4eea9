"""Hostile brokers of Kafka: each mode takes part in the protocol as far as it has to, and then does not.

A cluster names its brokers, and librdkafka starts a thread for each of them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator

from .peer import Mode, Session

PRODUCE, METADATA, SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID, SASL_AUTHENTICATE = 0, 3, 17, 18, 22, 36
# The newest versions that are understood here, none of them with tagged fields; 1 is Fetch.
VERSIONS = {PRODUCE: 7, 1: 11, METADATA: 2, SASL_HANDSHAKE: 1, API_VERSIONS: 3, INIT_PRODUCER_ID: 1,
            SASL_AUTHENTICATE: 0}  # fmt: skip
FORGED = b"\n2026-01-01 00:00:00 UTC [1] LOG:  forged\x1b[2J\xc2\x9b31m\xe2\x80\xae\xff"
UNKNOWN_SERVER_ERROR, LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, SASL_AUTHENTICATION_FAILED = -1, 5, 19, 58

Broker = tuple[int, bytes, int]  # node, host, port


def text(value: bytes) -> bytes:
    return struct.pack("!h", len(value)) + value


def framed(correlation: int, body: bytes) -> bytes:
    return struct.pack("!ii", 4 + len(body), correlation) + body


class Server:
    """A broker that does nothing wrong; modes change one of its answers."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.answers: dict[int, Callable[[bytes], bytes]] = {
            API_VERSIONS: lambda _: self.versions(),
            METADATA: lambda request: self.metadata(topics_of(request)),
            INIT_PRODUCER_ID: lambda _: struct.pack("!ihqh", 0, 0, 7, 0),
            PRODUCE: lambda request: self.produced(request),
            SASL_HANDSHAKE: lambda _: struct.pack("!hi", 0, 1) + text(b"PLAIN"),
            SASL_AUTHENTICATE: lambda _: struct.pack("!hhi", 0, -1, 0),
        }

    @property
    def itself(self) -> Broker:
        return (1, b"127.0.0.1", self.session.peer.port)

    def read(self) -> tuple[int, int, bytes]:
        """Returns key and correlation id of a request, and what follows the header."""
        size, key, _, correlation, client = struct.unpack("!ihhih", self.session.receive(14))
        rest = self.session.receive(size - 10)
        return key, correlation, rest[max(0, client) :]

    def serve(self) -> None:
        while True:
            key, correlation, request = self.read()
            self.session.send(framed(correlation, self.answers[key](request)))

    @property
    def understood(self) -> dict[int, int]:
        """The newest version of each request."""
        return VERSIONS

    def versions(self, without: int | None = None) -> bytes:
        entries = [struct.pack("!hhhb", key, 0, most, 0) for key, most in self.understood.items() if key != without]
        return struct.pack("!hb", 0, len(entries) + 1) + b"".join(entries) + struct.pack("!ib", 0, 0)

    def metadata(
        self, topics: Iterable[bytes], brokers: Iterable[Broker] = (), partitions: int = 1, error: int = 0
    ) -> bytes:
        named = [self.itself, *brokers]
        answer = [struct.pack("!i", len(named))]
        answer += [struct.pack("!i", node) + text(host) + struct.pack("!ih", port, -1) for node, host, port in named]
        answer += [text(b"c"), struct.pack("!i", 1)]
        topics = list(topics)
        answer.append(struct.pack("!i", len(topics)))
        one = b"".join(struct.pack("!hiiiiii", 0, number, 1, 1, 1, 1, 1) for number in range(partitions))
        for topic in topics:
            answer += [struct.pack("!h", error), text(topic), struct.pack("!bi", 0, partitions), one]
        return b"".join(answer)

    def produced(self, request: bytes, error: int = 0, throttle: int = 0, offset: int = 0) -> bytes:
        """Only one partition is in a request; the topic's is 0."""
        (size,) = struct.unpack_from("!h", request, 12)
        topic = request[14 : 14 + size]
        return (
            struct.pack("!i", 1) + text(topic) + struct.pack("!iihqqq", 1, 0, error, offset, -1, 0)
            + struct.pack("!i", throttle)
        )  # fmt: skip


def topics_of(request: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("!i", request)
    at, topics = 4, []
    for _ in range(count):
        (size,) = struct.unpack_from("!h", request, at)
        topics.append(request[at + 2 : at + 2 + size])
        at += 2 + size
    return topics


# -------------------------------------------------------------------------------------------------
# Modes
# -------------------------------------------------------------------------------------------------


def answering(change: Callable[[Server], None]) -> Mode:
    def mode(session: Session) -> None:
        server = Server(session)
        change(server)
        server.serve()

    return mode


def instead_of(make: Callable[[Session], Server], key: int, behave: Callable[[Session, int], None]) -> Mode:
    """Does this instead of answering requests of a kind; it gets the correlation id."""

    def mode(session: Session) -> None:
        server = make(session)
        while True:
            asked, correlation, request = server.read()
            if asked == key:
                behave(session, correlation)
            else:
                session.send(framed(correlation, server.answers[asked](request)))

    return mode


def instead(key: int, behave: Callable[[Session, int], None]) -> Mode:
    return instead_of(Server, key, behave)


def mute(session: Session) -> None:
    session.stay()


def garbage(session: Session) -> None:
    while True:
        session.send(session.random.randbytes(1000))


def send_garbage(session: Session, correlation: int) -> None:
    session.send(framed(correlation, session.random.randbytes(1000)))


def send_huge(session: Session, correlation: int) -> None:
    session.send(struct.pack("!ii", 0x7FFFFFFF, correlation))
    session.flood(b"x")


def send_all_that_is_taken(session: Session, correlation: int) -> None:
    """Just what the client takes, in an answer that means nothing."""
    while True:
        session.send(framed(correlation, bytes(7_999_000)))


def send_half(session: Session, correlation: int) -> None:
    session.send(framed(correlation, bytes(100))[:50])
    raise ConnectionError


def drop(session: Session, correlation: int) -> None:
    raise ConnectionError


def drip(session: Session, correlation: int) -> None:
    session.drip(framed(correlation, bytes(1000)))


def with_metadata(**changes: object) -> Mode:
    def change(server: Server) -> None:
        server.answers[METADATA] = lambda request: server.metadata(topics_of(request), **changes)  # type: ignore[arg-type]

    return answering(change)


def with_produced(**changes: int) -> Mode:
    def change(server: Server) -> None:
        server.answers[PRODUCE] = lambda request: server.produced(request, **changes)

    return answering(change)


def brokers(count: int, first: int = 2, host: bytes = b"127.0.0.1") -> Iterator[Broker]:
    """The client takes those of one address for one."""
    return ((node, host, node) for node in range(first, first + count))


def ever_more(answer: Callable[[Server, bytes, int], bytes]) -> Mode:
    """Metadata that is larger with every answer; the client asks again because there is no leader."""
    numbers = itertools.count()

    def change(server: Server) -> None:
        server.answers[METADATA] = lambda request: answer(server, request, next(numbers))

    return answering(change)


def new_brokers(server: Server, request: bytes, number: int) -> bytes:
    return server.metadata(topics_of(request), brokers(900, 2 + 900 * number), error=LEADER_NOT_AVAILABLE)


def new_topics(server: Server, request: bytes, number: int) -> bytes:
    topics = [b"%d-%d" % (number, topic) for topic in range(50_000)]
    return server.metadata([*topics_of(request), *topics], partitions=1, error=LEADER_NOT_AVAILABLE)


def other_count(server: Server, request: bytes, number: int) -> bytes:
    return server.metadata(topics_of(request), partitions=(1, 1000)[number % 2])


def without_versions(server: Server) -> None:
    server.answers[API_VERSIONS] = lambda _: struct.pack("!hbib", 0, 1, 0, 0)


def without_idempotence(server: Server) -> None:
    server.answers[API_VERSIONS] = lambda _: server.versions(without=INIT_PRODUCER_ID)


def with_many_versions(server: Server) -> None:
    entries = b"".join(struct.pack("!hhhb", key & 0x7FFF, 0, 7, 0) for key in range(16_000))
    server.answers[API_VERSIONS] = lambda _: struct.pack("!hH", 0, 0x81FD) + entries + struct.pack("!ib", 0, 0)


def repeating_the_password(server: Server) -> None:
    def refuse(request: bytes) -> bytes:
        _, _, password = request[4:].split(b"\0")
        said = b"not you: " + password + FORGED
        return struct.pack("!h", SASL_AUTHENTICATION_FAILED) + text(said) + struct.pack("!i", 0)

    server.answers[SASL_AUTHENTICATE] = refuse


def flapping(session: Session) -> None:
    server = Server(session)
    for number in itertools.count(session.peer.connections):
        key, correlation, request = server.read()
        if key == PRODUCE and number % 3:
            return
        session.send(framed(correlation, server.answers[key](request)))


FRIENDLY: Mode = answering(lambda server: None)  # for attacks of others

MODES: dict[str, Mode] = {
    "good": answering(lambda server: None),
    "mute": mute,
    "mute about itself": instead(METADATA, lambda session, _: session.stay()),
    "mute about a producer": instead(INIT_PRODUCER_ID, lambda session, _: session.stay()),
    "mute about records": instead(PRODUCE, lambda session, _: session.stay()),
    "garbage": garbage,
    "garbage for versions": instead(API_VERSIONS, send_garbage),
    "garbage for metadata": instead(METADATA, send_garbage),
    "garbage for a producer": instead(INIT_PRODUCER_ID, send_garbage),
    "garbage for records": instead(PRODUCE, send_garbage),
    "a huge answer": instead(METADATA, send_huge),
    "a huge answer for records": instead(PRODUCE, send_huge),
    "large answers without end": instead(METADATA, send_all_that_is_taken),
    "half an answer": instead(PRODUCE, send_half),
    "closes": instead(PRODUCE, drop),
    "closes at once": instead(API_VERSIONS, drop),
    "drips": instead(METADATA, drip),
    "no versions": answering(without_versions),
    "no idempotence": answering(without_idempotence),
    "many versions": answering(with_many_versions),
    "many brokers": with_metadata(brokers=list(brokers(9_999))),
    "too many brokers": with_metadata(brokers=list(brokers(200_000))),
    "ever more brokers": ever_more(new_brokers),
    "a forged broker": with_metadata(brokers=list(brokers(10, host=FORGED * 5))),
    "brokers elsewhere": with_metadata(brokers=list(brokers(10, host=b"192.0.2.1"))),
    "other partitions": ever_more(other_count),
    "ever more topics": ever_more(new_topics),
    "no leader": with_metadata(error=LEADER_NOT_AVAILABLE),
    "endless throttling": with_produced(throttle=0x7FFFFFFF),
    "endless trouble": with_produced(error=NOT_ENOUGH_REPLICAS),
    "an unknown error": with_produced(error=12345),
    "a negative error": with_produced(error=UNKNOWN_SERVER_ERROR),
    "a negative offset": with_produced(offset=-7),
    "flapping": flapping,
    "repeats the password": answering(repeating_the_password),
}  # fmt: skip
