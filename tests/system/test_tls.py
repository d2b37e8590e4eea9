"""https: a real nginx with a certificate of its own authority. Its access log is the record."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import psycopg
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
    log_format record '$server_protocol $status $connection $http_ce_subject $http_ce_aggregateversion $http_ce_id $request_uri';
    access_log {root}/access.log record;
    {paths}
    limit_req_zone $server_port zone=slow:1m rate=200r/s;
    server {{
        listen 127.0.0.1:{port} ssl {http2};
        ssl_certificate {root}/server.crt; ssl_certificate_key {root}/server.key;
        {clients}
        keepalive_requests {requests};
        location /events {{ {pace} proxy_pass http://unix:{root}/backend; }}
        location /early {{ return 204; }}
        location /moved {{ return 307 /early; }}
        location /later {{ add_header Retry-After "Wed, 01 Jan 2070 00:00:00 GMT" always; return 401; }}
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
    target: str


class TlsServer(nginx.Nginx):
    """An nginx with a certificate for 127.0.0.1, signed by `authority`."""

    def __init__(self, http2: bool, clients: bool, requests: int) -> None:
        root = make_directory("tls")
        self.certificates = make_certificates(root)
        self.authority = self.certificates.authority
        # Answers over HTTP/1.1 come at a limited rate, so that one connection is never enough.
        pace = "" if http2 else "limit_req zone=slow burst=1000;"
        # The authority has signed the certificate of the server only; a client may have the same.
        verify = f"ssl_verify_client on; ssl_client_certificate {self.authority};" if clients else ""
        super().__init__(
            CONFIGURATION, root, http2="http2" if http2 else "", pace=pace, clients=verify, requests=requests
        )

    def url(self, host: str = "127.0.0.1", path: str = "events") -> str:
        return f"https://{host}:{self.port}/{path}"

    def requests(self) -> list[Request]:
        records = [record for record in self.log() if record[0].startswith("HTTP")]
        return [Request(*r[:4], int(r[4]), r[5], r[6]) for r in records if r[1] == "204"]

    def wait_for(self, ids: list[str]) -> list[Request]:
        """Returns all requests; nginx logs a request after its answer."""
        wait_until(
            lambda: set(ids) - {request.event_id for request in self.requests()},
            lambda missing: not missing, what=f"{len(ids)} events in the log of nginx",
        )  # fmt: skip
        return self.requests()


@pytest.fixture
def tls_server(http: None) -> Iterator[Callable[..., TlsServer]]:
    nginx.need()
    servers: list[TlsServer] = []

    def start(*, http2: bool = True, clients: bool = False, requests: int = 100_000) -> TlsServer:
        servers.append(TlsServer(http2, clients, requests))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def enqueue_keys(database: Database) -> list[str]:
    """Enqueues versions 1 to 30 of each of 20 keys, k0 to k19; returns the ids."""
    return [id for first in (1, 11, 21) for key in range(20) for id in database.enqueue(f"k{key}", 10, first=first)]


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_a_url_is_sent_in_ascii(database: Database, tls_server: Callable[..., TlsServer], http2: bool) -> None:
    """As without TLS (test_http.py)."""
    server = tls_server(http2=http2)
    database.add_destination("d", server.url(path="events/grüße?q=ä"), ca_file=server.authority)
    (request,) = server.wait_for(database.enqueue())
    assert request.target.upper() == "/EVENTS/GR%C3%BC%C3%9FE?Q=%C3%A4"


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_events_arrive_over_tls_in_order_of_their_keys(
    database: Database, tls_server: Callable[..., TlsServer], http2: bool
) -> None:
    server = tls_server(http2=http2)
    database.add_destination("d", server.url(), ca_file=server.authority)
    with database.connection.transaction():  # all of them can be sent at once
        ids = enqueue_keys(database)
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


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_a_server_may_end_each_connection_after_a_few_requests(
    database: Database, tls_server: Callable[..., TlsServer], http2: bool
) -> None:
    """nginx does so after a thousand requests by default. No request fails because of it, and keys stay in order."""
    server = tls_server(http2=http2, requests=30)
    database.add_destination("d", server.url(), ca_file=server.authority)
    with database.connection.transaction():
        ids = enqueue_keys(database)
    database.wait_published(600)
    requests = server.wait_for(ids)
    for key in range(20):
        versions = [request.version for request in requests if request.subject == f"k{key}"]
        assert list(dict.fromkeys(versions)) == list(range(1, 31))  # it may end one with an answer on its way
    assert len({request.connection for request in requests}) >= 20
    assert database.status()["failures"] == 0


def test_a_server_may_answer_before_it_has_read_the_request(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    """libcurl 7.88 may lose such an answer, but never the event, and no request hangs until its timeout."""
    server = tls_server()
    database.add_destination("d", server.url(path="early"), ca_file=server.authority, request_timeout="10min")
    ids = enqueue_keys(database)
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


def test_a_certificate_of_another_host_is_refused(database: Database, tls_server: Callable[..., TlsServer]) -> None:
    server = tls_server()
    database.add_destination("d", server.url("localhost"), ca_file=server.authority)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "localhost" in error
    assert not server.requests()


def test_a_missing_ca_file_is_a_failure_that_says_so(database: Database, tls_server: Callable[..., TlsServer]) -> None:
    server = tls_server()
    database.add_destination("d", server.url(), ca_file="/nowhere/ca.crt")
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "/nowhere/ca.crt" in error


def test_a_redirect_is_a_failure_that_says_so(database: Database, tls_server: Callable[..., TlsServer]) -> None:
    server = tls_server()
    database.add_destination("d", server.url(path="moved"), ca_file=server.authority)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert error.startswith("HTTP 307 (redirects are not followed)")
    assert not server.requests()


def test_retry_after_may_be_a_date(database: Database, tls_server: Callable[..., TlsServer]) -> None:
    """The same holds without TLS: test_http.py."""
    server = tls_server()
    database.add_destination("d", server.url(path="later"), ca_file=server.authority)
    database.enqueue()
    pause = wait_until(lambda: database.value("SELECT next_attempt_at - now() FROM outbox.status"), what="a pause")
    assert timedelta(hours=23) < pause < timedelta(hours=25), "the longest pause is a day"


# -------------------------------------------------------------------------------------------------
# Certificates of the client
# -------------------------------------------------------------------------------------------------


def map_certificate(database: Database, certificate: str | None, key: str | None) -> None:
    files = {"certificate": certificate, "private_key": key}
    pairs = ", ".join(f"{name} '{Path(file).read_text()}'" for name, file in files.items() if file)
    database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({pairs})")


@pytest.mark.parametrize("http2", [True, False], ids=["http2", "http1"])
def test_a_certificate_of_the_client_lets_it_in(
    database: Database, tls_server: Callable[..., TlsServer], http2: bool
) -> None:
    server = tls_server(http2=http2, clients=True)
    database.add_destination("d", server.url(), ca_file=server.authority)
    _, certificate, key = server.certificates
    map_certificate(database, certificate, key)
    ids = database.enqueue(count=5)
    database.wait_published(5)
    assert {request.event_id for request in server.wait_for(ids)} == set(ids)
    assert [ok for (ok,) in database.execute("SELECT ok FROM outbox.check_destination('d')")] == [True] * 4
    body = "".join(Path(key).read_text().splitlines()[1:-1])
    assert body[:40] not in database.cluster.log_since(database.cluster.test_began)


def test_without_a_certificate_a_server_that_wants_one_refuses(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server = tls_server(http2=False, clients=True)  # with HTTP/2, nginx may close before its answer is read
    database.add_destination("d", server.url(), ca_file=server.authority)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert error.startswith("HTTP 400") and "No required SSL certificate" in error, error
    assert not server.requests()


def test_a_certificate_of_another_authority_is_refused(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server, other = tls_server(http2=False, clients=True), tls_server()
    database.add_destination("d", server.url(), ca_file=server.authority)
    map_certificate(database, other.certificates.certificate, other.certificates.key)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert error.startswith("HTTP 400") and "SSL certificate error" in error, error
    assert not server.requests()


@pytest.mark.parametrize("given", ["certificate", "private_key"])
def test_a_certificate_and_its_key_need_each_other(
    database: Database, tls_server: Callable[..., TlsServer], given: str
) -> None:
    server = tls_server(clients=True)
    database.add_destination("d", server.url(), ca_file=server.authority)
    _, certificate, key = server.certificates
    map_certificate(database, certificate if given == "certificate" else None, key if given == "private_key" else None)
    database.enqueue()
    why = "certificate and private_key of the user mapping need each other"
    assert wait_until(lambda: database.status()["last_error"], what="an error") == why
    assert database.execute("SELECT detail FROM outbox.check_destination('d') WHERE NOT ok") == [(why,)]


def test_a_certificate_with_the_key_of_another_is_a_failure_that_says_so(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    server, other = tls_server(clients=True), tls_server()
    database.add_destination("d", server.url(), ca_file=server.authority)
    map_certificate(database, server.certificates.certificate, other.certificates.key)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "private key" in error, error
    assert not server.requests()


def test_a_key_with_a_passphrase_is_a_failure_that_says_so(
    database: Database, tls_server: Callable[..., TlsServer]
) -> None:
    """Nobody is asked for the passphrase."""
    server = tls_server(clients=True)
    database.add_destination("d", server.url(), ca_file=server.authority)
    _, certificate, key = server.certificates
    locked = f"{key}.locked"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
    )
    map_certificate(database, certificate, locked)
    database.enqueue()
    error = wait_until(lambda: database.status()["last_error"], what="an error")
    assert "private key" in error, error
    assert not server.requests()


def test_a_certificate_is_not_sent_without_tls(database: Database, tls_server: Callable[..., TlsServer]) -> None:
    server = tls_server()
    database.add_destination("d", server.url().replace("https:", "http:"))
    map_certificate(database, *server.certificates[1:])
    database.enqueue()
    why = "a client certificate needs TLS"
    assert wait_until(lambda: database.status()["last_error"], what="an error") == why
    assert database.execute("SELECT detail FROM outbox.check_destination('d') WHERE NOT ok") == [(why,)]
    assert server.log() == []


def test_what_is_no_pem_is_refused_at_once(database: Database, http: None) -> None:
    database.add_destination("d", "https://127.0.0.1:1/")
    for option in ("certificate", "private_key"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=option) as raised:
            database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({option} '/etc/passwd')")
        assert "PEM" in (raised.value.diag.message_hint or "")
