"""Hostile coordinators of a consumer group, and brokers that send records: what the Kafka source of the client meets.

Modes change one answer of a server that is honest otherwise: it has one topic with one partition and no records.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Iterable

from .hostile_kafka import FORGED, Server, instead_of, send_garbage, text
from .peer import Mode, Session

FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, COORDINATOR = 1, 2, 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
VERSIONS = {FETCH: 4, LIST_OFFSETS: 1, OFFSET_COMMIT: 2, OFFSET_FETCH: 1, COORDINATOR: 0, JOIN: 0, HEARTBEAT: 0, LEAVE: 0,
            SYNC: 0}  # fmt: skip
REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER, OFFSET_OUT_OF_RANGE = 27, 25, 1
MOST = (1 << 63) - 1
LONGEST = b"x" * 32767

Places = list[tuple[bytes, list[int]]]


def blob(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def array(parts: Iterable[bytes]) -> bytes:
    parts = list(parts)
    return struct.pack("!i", len(parts)) + b"".join(parts)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from("!" + kind, self.data, self.at)
        self.at += struct.calcsize("!" + kind)
        return int(value)

    def text(self, kind: str = "h") -> bytes:
        size = max(0, self.number(kind))
        self.at += size
        return self.data[self.at - size : self.at]

    def places(self, *of_each: str) -> Places:
        """Reads topics and their partitions, each of which has a number and these fields."""
        found: Places = []
        for _ in range(self.number("i")):
            topic, partitions = self.text(), []
            for _ in range(self.number("i")):
                partitions.append(self.number("i"))
                for kind in of_each:
                    self.text() if kind == "text" else self.number(kind)
            found.append((topic, partitions))
        return found


def for_each(places: Places, answer: bytes) -> bytes:
    """The same answer for each partition."""
    return array(
        text(topic) + array(struct.pack("!i", partition) + answer for partition in partitions)
        for topic, partitions in places
    )


def assignment(places: Places, user_data: bytes = b"") -> bytes:
    topics = array(text(topic) + array(struct.pack("!i", p) for p in partitions) for topic, partitions in places)
    return struct.pack("!h", 0) + topics + blob(user_data)


def joined(
    member: bytes = b"m", leader: bytes = b"other", generation: int = 1, members: Iterable[bytes] = (), error: int = 0,
    protocol: bytes = b"cooperative-sticky",
) -> bytes:  # fmt: skip
    return struct.pack("!hi", error, generation) + text(protocol) + text(leader) + text(member) + array(members)


def synced(of: bytes, error: int = 0) -> bytes:
    return struct.pack("!h", error) + blob(of)


def found_coordinator(node: int, host: bytes, port: int, error: int = 0) -> bytes:
    return struct.pack("!hi", error, node) + text(host) + struct.pack("!i", port)


def offset_of(offset: int, metadata: bytes = b"", error: int = 0) -> bytes:
    return struct.pack("!q", offset) + text(metadata) + struct.pack("!h", error)


def batch(
    records: bytes, *, base: int = 0, count: int = 1, last: int = 0, attributes: int = 0, time: int = 0,
    size: int | None = None,
) -> bytes:  # fmt: skip
    """A batch of the format 2, without a checksum: nobody checks it."""
    rest = struct.pack("!ibIhiqqqhii", 0, 2, 0, attributes, last, time, time, -1, -1, -1, count) + records
    return struct.pack("!qi", base, len(rest) if size is None else size) + rest


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def record(
    value: bytes = b"x", *, key: bytes = b"k", delta: int = 0, headers: bytes = varint(0), time: int = 0
) -> bytes:
    body = b"\0" + varint(time) + varint(delta) + varint(len(key)) + key + varint(len(value)) + value + headers
    return varint(len(body)) + body


def fetched(places: Places, records: bytes, error: int = 0, high: int = 0) -> bytes:
    answer = struct.pack("!hqq", error, high, high) + array([]) + blob(records)
    return struct.pack("!i", 0) + for_each(places, answer)


class GroupServer(Server):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.records: Callable[[int], bytes] = lambda number: b""
        self.high = 0
        self.fetches = 0
        self.answers |= {
            COORDINATOR: lambda _: found_coordinator(*self.itself),
            JOIN: lambda _: joined(),
            SYNC: lambda _: synced(assignment([(b"t", [0])])),
            HEARTBEAT: lambda _: struct.pack("!h", 0),
            LEAVE: lambda _: struct.pack("!h", 0),
            OFFSET_FETCH: lambda request: for_each(self.places_of(OFFSET_FETCH, request), offset_of(-1)),
            OFFSET_COMMIT: lambda request: for_each(self.places_of(OFFSET_COMMIT, request), struct.pack("!h", 0)),
            LIST_OFFSETS: lambda request: self.listed(request, 0),
            FETCH: self.fetch,
        }

    @property
    def understood(self) -> dict[int, int]:
        return {**super().understood, **VERSIONS}

    @staticmethod
    def places_of(key: int, request: bytes) -> Places:
        reader = Reader(request)
        if key == OFFSET_FETCH:
            reader.text()
            return reader.places()
        if key == OFFSET_COMMIT:
            reader.text(), reader.number("i"), reader.text(), reader.number("q")
            return reader.places("q", "text")
        if key == LIST_OFFSETS:
            reader.number("i")
            return reader.places("q")
        for kind in "iiiib":
            reader.number(kind)
        return reader.places("q", "i")

    def listed(self, request: bytes, offset: int, time: int = -1, error: int = 0) -> bytes:
        return for_each(self.places_of(LIST_OFFSETS, request), struct.pack("!hqq", error, time, offset))

    def fetch(self, request: bytes) -> bytes:
        records = self.records(self.fetches)
        self.fetches += 1
        if not records:
            self.session.rest(0.05)
        return fetched(self.places_of(FETCH, request), records, high=self.high)


# -------------------------------------------------------------------------------------------------
# Modes
# -------------------------------------------------------------------------------------------------


def with_answer(key: int, answer: Callable[[GroupServer, bytes, int], bytes]) -> Mode:
    """Gives this answer instead; it gets the request, and how many of the kind have come before over all connections."""
    numbers = itertools.count()

    def mode(session: Session) -> None:
        server = GroupServer(session)
        server.answers[key] = lambda request: answer(server, request, next(numbers))
        server.serve()

    return mode


def always(key: int, body: bytes) -> Mode:
    return with_answer(key, lambda *_: body)


def with_records(records: Callable[[int], bytes], high: int = MOST) -> Mode:
    def mode(session: Session) -> None:
        server = GroupServer(session)
        server.records, server.high = records, high
        server.serve()

    return mode


def with_positions(offset: int, metadata: bytes = b"", error: int = 0) -> Mode:
    return with_answer(
        OFFSET_FETCH,
        lambda server, request, _: for_each(
            server.places_of(OFFSET_FETCH, request), offset_of(offset, metadata, error)
        ),
    )


def with_ends(offset: int, time: int = -1, error: int = 0) -> Mode:
    """The source asks for the ends, because its position is beyond them."""

    def mode(session: Session) -> None:
        server = GroupServer(session)
        server.answers[OFFSET_FETCH] = lambda request: for_each(
            server.places_of(OFFSET_FETCH, request), offset_of(1000, b"999 x")
        )
        server.answers[FETCH] = lambda request: fetched(server.places_of(FETCH, request), b"", OFFSET_OUT_OF_RANGE)
        server.answers[LIST_OFFSETS] = lambda request: server.listed(request, offset, time, error)
        server.serve()

    return mode


def huge(key: int) -> Mode:
    def behave(session: Session, correlation: int) -> None:
        session.send(struct.pack("!ii", 0x7FFFFFFF, correlation))
        session.flood(b"x")

    return instead_of(GroupServer, key, behave)


def garbage(key: int) -> Mode:
    return instead_of(GroupServer, key, send_garbage)


def of_random_bytes(key: int, head: bytes) -> Mode:
    """Begins as an answer does."""
    return with_answer(key, lambda server, *_: head + server.session.random.randbytes(3000))


def member(metadata: bytes, name: bytes = b"m") -> bytes:
    return text(name) + blob(metadata)


def subscription(topics: Iterable[bytes], owned: Iterable[tuple[bytes, list[int]]] = ()) -> bytes:
    partitions = array(text(topic) + array(struct.pack("!i", p) for p in numbers) for topic, numbers in owned)
    return struct.pack("!h", 1) + array(text(topic) for topic in topics) + blob(b"") + partitions


LIES = struct.pack("!i", 0x7FFFFFFF)
NEGATIVE = struct.pack("!i", -5)

# librdkafka 2.0 does not survive some answers, which are missing here: metadata of a member that it cannot read, topics
# with names of thousands of bytes, and a gzip that becomes a gigabyte (docs/client/kafka.md).
MODES: dict[str, Mode] = {
    "honest": with_records(lambda number: b""),
    **{f"a huge answer to {key}": huge(key) for key in (COORDINATOR, JOIN, SYNC, OFFSET_FETCH, LIST_OFFSETS, FETCH)},
    **{f"garbage for {key}": garbage(key) for key in (*VERSIONS,)},
    # The coordinator
    "a coordinator with a forged name": always(COORDINATOR, found_coordinator(7, FORGED * 100, 1)),
    "a coordinator with a negative port": always(COORDINATOR, found_coordinator(-7, b"127.0.0.1", -1)),
    "a coordinator elsewhere": always(COORDINATOR, found_coordinator(7, b"192.0.2.1", 9)),
    "ever other coordinators": with_answer(
        COORDINATOR, lambda server, _, number: found_coordinator(2 + number, b"127.0.0.1", 1 + number)
    ),
    "no coordinator": always(COORDINATOR, found_coordinator(-1, b"", -1, 15)),
    # Joining
    "members without number": always(JOIN, joined()[:-4] + LIES),
    "a negative number of members": always(JOIN, joined()[:-4] + NEGATIVE),
    "too many members": always(JOIN, joined(leader=b"m", members=[member(subscription([b"t"]))] * 300_000)),
    "many members": always(
        JOIN, joined(leader=b"m", members=[member(subscription([b"t"]), b"%d" % n) for n in range(2000)])
    ),
    "members of one name": always(JOIN, joined(leader=b"m", members=[member(subscription([b"t"]))] * 100)),
    "members that own the same": always(
        JOIN, joined(leader=b"m", members=[member(subscription([b"t"], [(b"t", [0, 0, -1, 7])]), b"%d" % n) for n in range(50)])
    ),
    "a member of many topics": always(
        JOIN, joined(leader=b"m", members=[member(subscription(b"%d" % n for n in range(9_000)))])
    ),
    "a member that owns much": always(
        JOIN, joined(leader=b"m", members=[member(subscription([b"t"], [(b"t", list(range(9_000)))]))])
    ),
    "a long member id": always(JOIN, joined(member=LONGEST, leader=LONGEST, protocol=b"range")),
    "a forged member id": always(JOIN, joined(member=FORGED * 100)),
    "another protocol": always(JOIN, joined(leader=b"m", protocol=FORGED)),
    "a negative generation": always(JOIN, joined(generation=-(1 << 31))),
    "joins are refused for ever": always(JOIN, joined(error=UNKNOWN_MEMBER)),
    "random members": of_random_bytes(JOIN, joined(leader=b"m")[:-4] + struct.pack("!i", 100)),
    # The assignment
    "an assignment of many partitions": always(SYNC, synced(assignment([(b"t", list(range(3_000_000)))]))),
    "an assignment of many topics": always(SYNC, synced(assignment([(b"%d" % n, [0]) for n in range(500_000)]))),
    "an assignment of others' topics": always(SYNC, synced(assignment([(FORGED, [0]), (b"", [0]), (b"x" * 249, [1])]))),
    "an assignment of what is there twice": always(SYNC, synced(assignment([(b"t", [0] * 1000)] * 3))),
    "an assignment of negative partitions": always(SYNC, synced(assignment([(b"t", [-1, -2, -(1 << 31), 0x7FFFFFFF])]))),
    "an assignment without number": always(SYNC, synced(struct.pack("!h", 0) + LIES)),
    "an assignment of a negative number": always(SYNC, synced(struct.pack("!h", 0) + NEGATIVE)),
    "an assignment that lies about its size": always(SYNC, struct.pack("!hi", 0, 0x7FFFFFFF)),
    "a random assignment": of_random_bytes(SYNC, struct.pack("!hihi", 0, 3006, 0, 50)),
    "nothing is assigned": always(SYNC, synced(b"")),
    "other assignments all the time": with_answer(
        SYNC, lambda server, _, number: synced(assignment([(b"t", list(range(number % 50, number % 50 + 50)))]))
    ),
    "a rebalance at every heartbeat": always(HEARTBEAT, struct.pack("!h", REBALANCE_IN_PROGRESS)),
    # Positions
    "a negative position": with_positions(-77),
    "a position beyond all": with_positions(MOST, b"9223372036854775807 x"),
    "a position with a long mark": with_positions(5, b"4 " + LONGEST[:32700]),
    "a position with a forged mark": with_positions(5, b"4 " + FORGED * 100),
    "an error for a position": with_positions(5, b"", 12345),
    "positions of others": always(OFFSET_FETCH, for_each([(b"u", list(range(100_000))), (b"t", [7, -1])], offset_of(3))),
    "positions without number": always(OFFSET_FETCH, LIES),
    "a negative end": with_ends(-77),
    "an end beyond all": with_ends(MOST, MOST),
    "an error for an end": with_ends(5, error=12345),
    "ends of others": always(LIST_OFFSETS, for_each([(b"u", list(range(100_000)))], struct.pack("!hqq", 0, 0, 5))),
    "commits are refused for ever": always(OFFSET_COMMIT, for_each([(b"t", [0])], struct.pack("!h", 12345))),
    # Records
    "records without end": with_records(lambda number: batch(
        b"".join(record(b"x" * 1000, delta=n) for n in range(900)), base=900 * number, count=900, last=899)),
    "large records without end": with_records(lambda number: batch(record(b"x" * (16 << 20)), base=number)),
    "the same records": with_records(lambda number: batch(record())),
    "records of the last offset": with_records(lambda number: batch(record() * 2, base=MOST, count=2, last=1)),
    "records of negative offsets": with_records(lambda number: batch(record(), base=-5)),
    "a batch without number": with_records(lambda number: batch(record(), count=0x7FFFFFFF, last=0x7FFFFFFF)),
    "a batch that lies about its size": with_records(lambda number: batch(record(), size=0x7FFFFFFF)),
    "a batch of a negative size": with_records(lambda number: batch(record(), size=-5)),
    "a batch that is over": with_records(lambda number: batch(record())[:40]),
    "a batch of random bytes": with_records(lambda number: zlib.compress(bytes([number % 256]) * 100) * 20),
    "times beyond all": with_records(lambda number: batch(record(), base=number, time=MOST)),
    "times before all": with_records(lambda number: batch(record(), base=number, time=-MOST)),
    "headers without number": with_records(lambda number: batch(record(headers=varint(0x7FFFFFFF)), base=number)),
    "many headers": with_records(
        lambda number: batch(record(headers=varint(300_000) + (varint(1) + b"h" + varint(1) + b"v") * 300_000), base=number)
    ),
    "a record that lies about its key": with_records(lambda number: batch(b"\x80\x01\0\0\0" + varint(1 << 31) + b"x" * 64)),
    "random records": with_records(lambda number: batch(bytes((number * 31 + n * n) % 256 for n in range(2000)), count=50)),
    "compressed garbage": with_records(lambda number: batch(b"x" * 100, attributes=1 + number % 4)),
    "the topic is cut back again and again": with_records(lambda number: batch(record(), base=100 * (5 - number % 6)), high=0),
}  # fmt: skip
