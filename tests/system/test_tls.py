"""https: a real nginx with a certificate of its own authority. Its access log is the record."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import nginx
from certificates import make_certificates
from cluster import make_directory
from database import Database
from waiting import wait_until

CONFIGURATION = """
{main}
events {{ }}
http {{
    log_format record '$server_protocol $status $connection $http_ce_subject $http_ce_aggregateversion $http_ce_id';
    access_log {root}/access.log record;
    {paths}
    limit_req_zone $server_port zone=slow:1m rate=200r/s;
    server {{
        listen 127.0.0.1:{port} ssl {http2};
        ssl_certificate {root}/server.crt; ssl_certificate_key {root}/server.key;
        location /events {{ {pace} proxy_pass http://unix:{root}/backend; }}
        location /early {{ return 204; }}
        location /moved {{ return 307 /early; }}
    }}
    # nginx reads a request to its end before it passes it on.
    server {{ listen unix:{root}/backend; access_log off; location / {{ return 204; }} }}
}}
"""


class Request(NamedTuple):
    protocol: str
    status: str
    connection: str
    subject: str
    version: int
    event_id: str


class TlsServer(nginx.Nginx):
    """An nginx with a certificate for 127.0.0.1, signed by `authority`."""

    def __init__(self, http2: bool) -> None:
        root = make_directory("tls")
        self.authority = make_certificates(root).authority
        # Answers over HTTP/1.1 come at a limited rate, so that one connection is never enough.
        pace = "" if http2 else "limit_req zone=slow burst=1000;"
        super().__init__(CONFIGURATION, root, http2="http2" if http2 else "", pace=pace)

    def url(self, host: str = "127.0.0.1", path: str = "events") -> str:
        return f"https://{host}:{self.port}/{path}"

    def requests(self) -> list[Request]:
        records = [record for record in self.log() if record[0].startswith("HTTP")]
        return [Request(*r[:4], int(r[4]), r[5]) for r in records if r[1] == "204"]

    def wait_for(self, ids: list[str]) -> list[Request]:
        """Returns all requests; nginx logs a request after its answer."""
        wait_until(
            lambda: set(ids) - {request.event_id for request in self.requests()},
            lambda missing: not missing, what=f"{len(ids)} events in the log of nginx",
        )  # fmt: skip
        return self.requests()


@pytest.fixture
def tls_server(http: None) -> Iterator[Callable[..., TlsServer]]:
    if not nginx.PROGRAM.exists():
        pytest.skip("NOT TESTED: nginx is not installed")
    servers: list[TlsServer] = []

    def start(*, http2: bool = True) -> TlsServer:
        servers.append(TlsServer(http2))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_events_arrive_over_tls_in_order_of_their_keys(
    database: Database, tls_server: Callable[..., TlsServer], http2: bool
) -> None:
    server = tls_server(http2=http2)
    database.add_destination("d", server.url(), ca_file=server.authority)
    ids = []
    with database.connection.transaction():  # all of them can be sent at once
        for first in (1, 11, 21):
            for key in range(20):
                ids += database.enqueue(f"k{key}", 10, first=first)
    database.wait_published(600)

    requests = server.wait_for(ids)
    assert sorted(request.event_id for request in requests) == sorted(ids)
    for key in range(20):
        versions = [request.version for request in requests if request.subject == f"k{key}"]
        assert versions == list(range(1, 31))
    assert {request.protocol for request in requests} == {"HTTP/2.0" if http2 else "HTTP/1.1"}
    if http2:  # concurrently over one connection
        assert len({request.connection for request in requests}) == 1
    else:  # 16 at one time (CURLMOPT_MAX_TOTAL_CONNECTIONS); on a busy machine libcurl replaces some
        assert 1 < len({request.connection for request in requests}) < 100


def test_a_server_may_answer_before_it_has_read_the_request(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    """libcurl 7.88 may lose such an answer, but never the event, and no request hangs until its timeout."""
    server = tls_server()
    database.add_destination(
        "d", server.url(path="early"), ca_file=server.authority, request_timeout="10min"
    )
    ids = []
    for first in (1, 11, 21):
        for key in range(20):
            ids += database.enqueue(f"k{key}", 10, first=first)
    database.wait_published(600)
    assert {request.event_id for request in server.wait_for(ids)} == set(ids)


def test_an_unknown_authority_is_a_failure_that_says_so(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server = tls_server()
    database.add_destination("d", server.url())
    database.enqueue(count=3)
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "certificate" in error
    assert database.status()["state"] == "backing off"
    assert not server.requests()
    database.execute(f"ALTER SERVER d OPTIONS (ADD ca_file '{server.authority}')")
    database.wait_published(3)


def test_a_certificate_of_another_host_is_refused(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server = tls_server()
    database.add_destination("d", server.url("localhost"), ca_file=server.authority)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "localhost" in error
    assert not server.requests()


def test_a_missing_ca_file_is_a_failure_that_says_so(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server = tls_server()
    database.add_destination("d", server.url(), ca_file="/nowhere/ca.crt")
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "/nowhere/ca.crt" in error


def test_a_redirect_is_a_failure_that_says_so(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server = tls_server()
    database.add_destination("d", server.url(path="moved"), ca_file=server.authority)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert error.startswith("HTTP 307 (redirects are not followed)")
    assert not server.requests()
