"""Hostile PostgreSQL servers: the protocol's messages, in the wrong number, size and order.

They let the relay log in as far as the mode needs it: `Server` plays an honest server step by step, and a mode stops being
honest at a certain step.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator

from .peer import Mode, Session

FORGED = b"\x1b]0;owned\x07\n2026-01-01 00:00:00 UTC [1] postmaster @ LOG:  forged \xff\xfe\xc2\x9b31m"


def message(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + struct.pack("!I", len(body) + 4) + body


def notice(kind: bytes = b"N", text: bytes = FORGED, state: bytes = b"01000") -> bytes:
    return message(kind, b"SWARNING\0VWARNING\0C", state, b"\0M", text, b"\0\0")


def error(text: bytes = FORGED, state: bytes = b"XX000") -> bytes:
    return notice(b"E", text, state)


def row_description(columns: int = 1) -> bytes:
    column = b"c\0" + struct.pack("!IhIhih", 0, 0, 25, -1, -1, 0)
    return message(b"T", struct.pack("!H", columns), column * columns)


def row(*values: bytes) -> bytes:
    fields = b"".join(struct.pack("!I", len(value)) + value for value in values)
    return message(b"D", struct.pack("!H", len(values)), fields)


def done(tag: bytes) -> bytes:
    return message(b"C", tag, b"\0")


AUTHENTICATED = message(b"R", struct.pack("!I", 0))
READY = message(b"Z", b"I")
NOTIFICATION = message(b"A", struct.pack("!I", 1), b"channel\0", b"payload\0")


class Server:
    """An honest server, as far as a relay needs one."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def start(self) -> None:
        """Reads the start-up packet; there is no TLS."""
        while True:
            (size,) = struct.unpack("!I", self.session.receive(4))
            packet = self.session.receive(size - 4)
            if struct.unpack("!I", packet[:4])[0] >> 16 == 3:
                return
            self.session.send(b"N")

    def authenticate(self) -> None:
        """Asks for a password, and accepts any."""
        self.start()
        self.session.send(message(b"R", struct.pack("!I", 3)))
        self.read()
        self.session.send(AUTHENTICATED)

    def log_in(self) -> None:
        self.authenticate()
        self.session.send(message(b"S", b"server_version\x0015.0\0"))
        self.session.send(message(b"K", struct.pack("!II", 1, 1)) + READY)

    def read(self) -> tuple[bytes, bytes]:
        kind = self.session.receive(1)
        (size,) = struct.unpack("!I", self.session.receive(4))
        return kind, self.session.receive(size - 4)

    def answer_question(self) -> None:
        """Answers the question for powerful roles: nothing."""
        while self.read()[0] != b"Q":
            pass
        self.session.send(done(b"SET") + done(b"SET") + row_description() + row(b"") + done(b"SELECT 1") + READY)

    def prepare(self) -> None:
        while self.read()[0] != b"S":
            pass
        self.session.send(message(b"1") + READY)

    def get_ready(self) -> None:
        self.log_in()
        self.answer_question()
        self.prepare()

    def await_batch(self) -> None:
        """Reads a message to its end."""
        while self.read()[0] != b"H":
            pass

    def confirm(self, commit: bytes = b"COMMIT") -> None:
        begin = message(b"1") + message(b"2") + message(b"n")
        self.session.send(begin + done(b"BEGIN"))
        self.session.send(message(b"2") + row_description() + row(b"1") + done(b"SELECT 1"))
        self.session.send(begin + done(commit))


Step = Callable[[Server], None]


def after(step: Step, answer: bytes = b"", then: bytes = b"") -> Mode:
    """Goes as far as `step` honestly, answers, and goes on with `then` for ever."""

    def mode(session: Session) -> None:
        step(Server(session))
        session.send(answer)
        if then:
            session.flood(then)
        session.stay()

    return mode


def in_batch(server: Server) -> None:
    server.get_ready()
    server.await_batch()


def new_parameters(count: int, size: int) -> Iterator[bytes]:
    """Yields parameters with new names, because libpq keeps each of them."""
    for first in itertools.count(0, count):
        yield b"".join(message(b"S", b"p%d\0" % number, b"v" * size, b"\0") for number in range(first, first + count))


def parameters(step: Step) -> Mode:
    def mode(session: Session) -> None:
        step(Server(session))
        for piece in new_parameters(1000, 1):
            session.send(piece)

    return mode


def narrow(columns: int) -> Mode:
    """Answers the question of the check with fewer columns than were asked for."""

    def mode(session: Session) -> None:
        server = Server(session)
        server.get_ready()
        while server.read()[0] != b"Q":
            pass
        session.send(row_description(columns) + row(*[b"t"] * columns) + done(b"SELECT 1") + READY)
        session.stay()

    return mode


def honest(session: Session) -> None:
    server = Server(session)
    server.get_ready()
    while True:
        server.await_batch()
        server.confirm()


def leaking(session: Session) -> None:
    """Confirms everything, with a quarter of a megabyte of new parameters each time."""
    server = Server(session)
    server.get_ready()
    for piece in new_parameters(500, 500):
        server.await_batch()
        session.send(piece)
        server.confirm()


def rolling_back(session: Session) -> None:
    server = Server(session)
    server.get_ready()
    while True:
        server.await_batch()
        server.confirm(b"ROLLBACK")


def scram(session: Session) -> None:
    """Asks for a key that takes an hour to compute."""
    Server(session).start()
    session.send(message(b"R", struct.pack("!I", 10), b"SCRAM-SHA-256\0\0"))
    _, first = Server(session).read()
    nonce = first.split(b"r=")[1]
    session.send(message(b"R", struct.pack("!I", 11), b"r=", nonce, b"x,s=c2FsdA==,i=2147483647"))
    session.stay()


def garbage(session: Session) -> None:
    Server(session).start()
    while True:
        session.send(session.random.randbytes(1000))


def slow(session: Session) -> None:
    Server(session).start()
    while True:
        session.drip(notice())


def echo_password(session: Session) -> None:
    server = Server(session)
    server.start()
    session.send(message(b"R", struct.pack("!I", 3)))
    _, password = server.read()
    session.send(error(b"wrong password " + password.rstrip(b"\0"), b"28P01"))


def flapping(session: Session) -> None:
    """Works and fails in turns."""
    server = Server(session)
    server.get_ready()
    server.await_batch()
    server.confirm()
    server.await_batch()
    session.send(error(FORGED * 100))


MODES: dict[str, Mode] = {
    "mute": after(lambda server: None),
    "mute after the start": after(Server.start),
    "mute after the login": after(Server.log_in),
    "mute in a batch": after(in_batch),
    "endless notices at the start": after(Server.start, then=notice()),
    "endless notices at the login": after(Server.authenticate, then=notice()),
    "endless notices": after(Server.log_in, then=notice()),
    "endless notices in a batch": after(in_batch, then=notice()),
    "endless notifications": after(Server.log_in, then=NOTIFICATION),
    "endless notifications in a batch": after(in_batch, then=NOTIFICATION),
    "endless parameters": parameters(Server.authenticate),
    "endless parameters in a batch": parameters(in_batch),
    "endless rows for the question": after(Server.log_in, row_description(), row(b"")),
    "endless rows in a batch": after(
        in_batch, message(b"1") + message(b"2") + row_description(), row(b"1")
    ),
    "endless rows without columns": after(
        in_batch, message(b"1") + message(b"2") + row_description(0), row()
    ),
    "endless wide rows": after(
        in_batch, message(b"1") + message(b"2") + row_description(1600),
        message(b"D", struct.pack("!H", 1600), b"\xff\xff\xff\xff" * 1600),
    ),
    "endless copy": after(in_batch, message(b"1") + message(b"2") + message(b"H", b"\0\0\0"), message(b"d", b"x" * 1000)),
    "endless copy both ways": after(in_batch, message(b"1") + message(b"2") + message(b"W", b"\0\0\0"), message(b"d", b"x")),
    "endless errors": after(in_batch, then=error()),
    "endless ready": after(Server.authenticate, then=READY),
    "endless results": after(in_batch, then=message(b"1") + message(b"2") + done(b"BEGIN")),
    "huge message": after(in_batch, b"D" + struct.pack("!I", 0x3FFFFFFF), b"x"),
    "huge notice at the login": after(Server.authenticate, b"N" + struct.pack("!I", 0x3FFFFFFF), b"x"),
    "huge error": after(in_batch, error(FORGED * 20000)),
    "huge error at the start": after(Server.start, error(FORGED * 300)),
    "many columns": after(in_batch, message(b"1") + message(b"2") + row_description(65535)),
    "forged error": after(in_batch, error()),
    "no length": after(in_batch, b"C\0\0\0\0", b"x"),
    "garbage": garbage,
    "slow notices": slow,
    "leaking": leaking,
    "rolling back": rolling_back,
    "scram": scram,
    "echo of the password": echo_password,
    "flapping": flapping,
}  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Any client: outboxctl, outbox-relay as the database that it serves, and the C++ client
# -------------------------------------------------------------------------------------------------


def typed(columns: int, oid: int, binary: bool = False) -> bytes:
    """Describes rows of one type."""
    names = [b"c%d\0" % number + struct.pack("!IhIhih", 0, 0, oid, 8, -1, int(binary)) for number in range(columns)]
    return message(b"T", struct.pack("!H", columns), *names)


def answering(rows: bytes, then: bytes = b"") -> Mode:
    """Logs in honestly, accepts the settings of the session, and answers every statement with the same rows; goes on with
    `then` for ever."""

    def mode(session: Session) -> None:
        server = Server(session)
        server.log_in()
        prefix = b""
        while True:
            kind, _ = server.read()
            if kind == b"Q":
                session.send(done(b"SET") + row_description() + row(b"f") + done(b"SELECT 1") + READY)
            elif kind == b"P":
                prefix += message(b"1")
            elif kind == b"B":
                prefix += message(b"2")
            elif kind == b"S":
                session.send(prefix + rows)
                prefix = b""
                if then:
                    session.flood(then)
                session.send(READY)

    return mode


def fetched(names: Iterable[str]) -> bytes:
    """Describes rows of outbox.fetch()."""
    columns = [name.encode() + b"\0" + struct.pack("!IhIhih", 0, 0, 25, -1, -1, 1) for name in names]
    return message(b"T", struct.pack("!H", len(columns)), *columns)


EVENT_COLUMNS = fetched(
    "token attempts position occurred_at event_id version schema_version source_event_id topic aggregate_type aggregate_id "
    "event_type ordering_key content_type headers payload".split()
)


def answering_with_parameters(pieces_an_answer: int | None) -> Mode:
    """Has no events, and says so with this number of pieces of a quarter of a megabyte, or with pieces without end."""
    honest = {b"P": message(b"1"), b"B": message(b"2"), b"D": EVENT_COLUMNS, b"E": done(b"SELECT 0")}

    def mode(session: Session) -> None:
        server = Server(session)
        server.log_in()
        pieces, answer = new_parameters(50, 5000), b""
        while True:
            kind, _ = server.read()
            answer += honest.get(kind, b"")
            if kind == b"S":
                for piece in itertools.islice(pieces, pieces_an_answer):
                    session.send(piece)
                session.send(answer + READY)
                answer = b""

    return mode


def quoting(password: bytes) -> Mode:
    """Refuses every statement with the password in all parts of the error."""
    parts = b"SERROR\0VERROR\0C22000\0Mno " + password + b"\0Dnot " + password + b"\0Hnever " + password + b"\0\0"

    def mode(session: Session) -> None:
        server = Server(session)
        server.log_in()
        while True:
            if server.read()[0] in b"QS":
                session.send(message(b"E", parts) + READY)

    return mode


ROWS: dict[str, bytes] = {
    "nothing": b"",
    "no rows": typed(1, 25) + done(b"SELECT 0"),
    "no columns": row_description(0) + row() + done(b"SELECT 1"),
    "one column": typed(1, 25) + row(b"") + done(b"SELECT 1"),
    "more values than columns": typed(1, 25) + row(b"1", b"2", b"3") + done(b"SELECT 1"),
    "fewer values than columns": typed(4, 25) + row(b"1") + done(b"SELECT 1"),
    "texts": typed(30, 25) + row(*[b"x"] * 30) * 10 + done(b"SELECT 10"),
    "empty texts": typed(30, 25) + row(*[b""] * 30) * 10 + done(b"SELECT 10"),
    "nulls": typed(30, 25) + message(b"D", struct.pack("!H", 30), b"\xff\xff\xff\xff" * 30) * 10 + done(b"SELECT 10"),
    "short integers": typed(30, 20, True) + row(*[b"\x01"] * 30) * 10 + done(b"SELECT 10"),
    "hostile arrays": typed(30, 1009, True)
    + row(*[struct.pack("!IIIII", 1, 0, 25, 0x7FFFFFFF, 1) + b"\x7f\xff\xff\xff"] * 30) * 10
    + done(b"SELECT 10"),
    "control characters": typed(30, 25) + row(*[FORGED] * 30) * 10 + done(b"SELECT 10"),
    "1600 columns": typed(1600, 25) + row(*[b"x"] * 1600) + done(b"SELECT 1"),
    "copy": message(b"H", b"\0\0\0") + message(b"d", b"x") + message(b"c") + done(b"COPY 1"),
    "no end": typed(1, 25) + row(b"x"),
    "ready in between": READY * 10,
}
CLIENT_MODES: dict[str, Mode] = {
    **{name: answering(rows) for name, rows in ROWS.items()},
    **{
        name: MODES[name]
        for name in (
            "endless notices at the start", "endless notices at the login", "endless notices", "endless notifications",
            "endless parameters", "endless ready", "huge notice at the login", "huge error at the start", "garbage",
            "echo of the password",
        )
    },
    "endless rows": answering(typed(1, 25), row(b"x" * 1000)),
    "endless results": answering(typed(1, 25) + done(b"SELECT 0"), typed(1, 25) + done(b"SELECT 0")),
    "endless errors": answering(error(), error()),
    "a huge value": answering(typed(1, 25) + b"D" + struct.pack("!I", 0x3FFFFFFF), b"x"),
    "a huge error": answering(error(b"x" * (32 << 20))),
    "no length": answering(b"C\0\0\0\0", b"x"),
    "parameters without end in an answer": answering_with_parameters(None),
}  # fmt: skip
