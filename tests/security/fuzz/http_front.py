"""Random requests to the HTTP port of `outboxctl serve`: it goes on, answers a probe, and its memory is bounded.

outbox-relay has the same front (lib/front).
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fuzz import Failure, Fuzz

from cluster import Installation
from http_port import HttpPort

MAX_GROWTH = 32 * 1024  # kB
PATHS = [
    b"/", b"/healthz", b"/metrics", b"/console", b"/console/login", b"/console/console.js", b"/console/api/overview", b"/console/api/pause",
    b"/console/api/find?topic=%00&x=%", b"/%2e%2e/", b"/%6detrics", b"//healthz", b"*", b"http://x/console",
]  # fmt: skip
FIELDS = [
    b"Host: x", b"Cookie: outboxctl_session=%s", b"Origin: http://x", b"Sec-Fetch-Site: same-origin", b"X-CSRF-Token: a", b":", b"X",
    b"Content-Type: application/x-www-form-urlencoded", b"Content-Type: multipart/form-data; boundary=b", b"Content-Length: %d",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked", b"Range: bytes=%d-%d", b"Range: bytes=-,",
    b"Range: bytes=" + b"0-," * 2000, b"Expect: 100-continue", b"Accept-Encoding: gzip, br", b"Connection: keep-alive", b"Content-Encoding: gzip",
]  # fmt: skip
METHODS = [b"GET", b"GET", b"POST", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"TRACE", b"PRI", b"\x16\x03\x01", b""]
VERSIONS = [*[b"HTTP/1.1"] * 6, b"HTTP/1.0", b"HTTP/9.9", b"", b"HTTP/2.0"]


class Requests:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def field(self) -> bytes:
        field = self.dice.choice(FIELDS)
        if b"%d" in field:
            return field % tuple(
                self.dice.choice([0, 1, 5, 7, 8192, 8193, -1, 2**63, 10**30]) for _ in range(field.count(b"%d"))
            )
        if b"%s" in field:
            return field % bytes(self.dice.randrange(1, 256) for _ in range(self.dice.randrange(40)))
        return field

    def body(self) -> bytes:
        return self.dice.choice([
            b"", b"token=x", b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\nx\r\n--b--\r\n', b"5\r\nabcde\r\n0\r\n\r\n",
            self.dice.randbytes(self.dice.randrange(9000)), b"&".join([b"a=b"] * 2000), b"%" * 3000, b"a" * 100_000,
        ])  # fmt: skip

    def next(self) -> bytes:
        dice = self.dice
        line = b" ".join([dice.choice(METHODS), dice.choice(PATHS), dice.choice(VERSIONS)])
        request = bytearray(b"\r\n".join([line, *[self.field() for _ in range(dice.randrange(8))], b"", self.body()]))
        for _ in range(dice.choice([0, 0, 0, 1, 3, 20])):
            at = dice.randrange(len(request) + 1)
            request[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(4))
        return bytes(request)


@contextmanager
def serving(installation: Installation, folder: Path) -> Iterator[tuple[subprocess.Popen[str], HttpPort]]:
    """It has a database that cannot be reached: all of its own work is done without one."""
    (folder / "token").write_text("a token that nobody guesses\n")
    process = subprocess.Popen(
        [installation.build / "tools/outboxctl/outboxctl", "serve", "--console", "--console-write", "--token-file", folder / "token",
         "--listen", "127.0.0.1:0", "-d", "host=/nonexistent user=x dbname=x"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, HttpPort(process.pid, int(process.stdout.readline().rsplit(":", 1)[1].split("/")[0]))
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.long
def test_any_request_leaves_the_port_answering(installation: Installation, tmp_path: Path) -> None:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
    print(f"OUTBOX_TEST_SEED={seed}", flush=True)
    requests, sent = Requests(random.Random(seed)), 0
    ends = time.monotonic() + 60 * float(os.environ.get("OUTBOX_FUZZ_MINUTES", "0.5"))
    with serving(installation, tmp_path) as (process, port):
        before = port.peak()
        while sent == 0 or time.monotonic() < ends:
            request = requests.next()
            with suppress(OSError):  # a part of a request gets no answer, and one that is refused early may be reset
                port.ask(request, 0.3, requests.dice.random() < 0.7)
            sent += 1
            if process.poll() is not None:
                raise Failure(f"the program ended with {process.returncode} after {request[:500]!r}")
            if port.peak() - before > MAX_GROWTH:
                raise Failure(f"{port.peak() - before} kB more after {request[:500]!r}")
            if sent % 100 == 0 and not port.is_well():
                raise Failure("a probe was not answered")
        Fuzz.reports.append(f"HTTP front [seed {seed}]: {sent} requests, {port.peak() - before} kB more at most")
