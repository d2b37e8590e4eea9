"""Clients of the HTTP ports that mean harm: every byte of a request is counted, and a probe is answered meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Installation
from database import Database
from http_port import HttpPort
from served import Served

PIECE = b"a" * 65_536
PIECES = 800  # 50 MB
MAX_GROWTH = 16 * 1024  # kB


@pytest.fixture
def port(database: Database, installation: Installation, tmp_path: Path) -> Iterator[HttpPort]:
    """Of `outboxctl serve --console`."""
    token = tmp_path / "token"
    token.write_text("a token that nobody guesses\n")
    served = Served(
        str(installation.build / "tools/outboxctl/outboxctl"), "--console", "--token-file", str(token), "-d", database.monitor()
    )  # fmt: skip
    yield HttpPort(served.process.pid, int(served.url.rsplit(":", 1)[1]))
    served.stop()


HEAD = b"POST /console/login HTTP/1.1\r\nHost: x\r\n"
# The beginning of a request, and a piece that follows without end.
FLOODS = {
    "a chunked body": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n", b"411"),
    "a chunked body elsewhere": (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n", b"411"),
    "chunked multipart": (HEAD + b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n--b\r\n", b"10000\r\n" + PIECE + b"\r\n", b"411"),
    "a long body": (HEAD + b"Content-Length: 1000000000\r\n\r\n", PIECE, b"413"),
    "a body without end": (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", PIECE, b"413"),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 1000000\r\n\r\n", PIECE, b"400"),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", PIECE, b"400"),
    "a line": (b"GET /console?x=", PIECE, b"414"),
    "headers": (HEAD, b"X-Header: " + b"y" * 1000 + b"\r\n", b"431"),
    "one header": (HEAD + b"X-Header: ", PIECE, b"431"),
}  # fmt: skip


def flood(port: HttpPort, begin: bytes, piece: bytes) -> bytes:
    """Returns the beginning of the answer."""
    with port.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(begin)
            for _ in range(PIECES * 65_536 // len(piece)):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            return connection.recv(64)
    return b""


@pytest.mark.parametrize("kind", FLOODS)
def test_a_request_without_end_costs_no_memory(port: HttpPort, kind: str) -> None:
    begin, piece, status = FLOODS[kind]
    assert port.is_well()
    before = port.peak()
    # The answer is read before the flood, because a connection that is reset loses it.
    with port.connect() as connection:
        connection.sendall(begin)
        with contextlib.suppress(ConnectionError):
            connection.sendall(piece * max(1, 20_000 // len(piece)))
        assert connection.recv(64).startswith(b"HTTP/1.1 " + status)
    floods = [threading.Thread(target=flood, args=(port, begin, piece)) for _ in range(16)]
    for one in floods:
        one.start()
    assert port.is_well()
    for one in floods:
        one.join()
    assert port.peak() - before < MAX_GROWTH
    assert port.is_well()


def test_slow_clients_keep_nobody_from_being_answered(port: HttpPort) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(port.connect()) for _ in range(600)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):  # it is one too many
                connection.sendall(b"GET /metr")
        assert port.is_well()
        assert b"outbox" in port.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert port.ask(b"GET /console HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")
        # Each has five seconds.
        assert slow[-1].recv(1) == b""


def test_a_flood_of_connections_does_not_keep_out_a_probe(port: HttpPort) -> None:
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port.port), timeout=1).close()

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert [port.is_well() for _ in range(100)] == [True] * 100
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_whole_request_in_pieces_is_answered(port: HttpPort) -> None:
    with port.connect() as connection:
        for piece in (b"POST /console/lo", b"gin HTTP/1.1\r\nHost: x\r\nContent-Le", b"ngth: 7\r\nOrigin: http://x\r\n"
                      b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntok", b"en=x"):  # fmt: skip
            connection.sendall(piece)
        assert b"The token is wrong" in b"".join(iter(lambda: connection.recv(65_536), b""))


def test_ranges_of_a_file_cost_no_memory(port: HttpPort) -> None:
    assert port.is_well()
    before = port.peak()
    request = b"GET /console/console.js HTTP/1.1\r\nHost: x\r\nRange: bytes=" + b",".join([b"0-"] * 2500) + b"\r\n\r\n"
    asking = [threading.Thread(target=port.ask, args=(request,)) for _ in range(16)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert port.peak() - before < MAX_GROWTH
    # The file is sent once, as if nothing had been asked for.
    assert port.ask(request).startswith(b"HTTP/1.1 200")


def test_a_field_that_decides_comes_once(port: HttpPort) -> None:
    twice = HEAD + b"Origin: http://x\r\nOrigin: http://evil\r\nContent-Length: 7\r\n\r\ntoken=x"
    assert port.ask(twice).startswith(b"HTTP/1.1 400")
