"""outbox.allowed_hosts: hosts that the server may connect to, for destinations of any role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

from cluster import Cluster
from database import Database, NewDatabase
from receiver import Receiver, answer, everything, path
from waiting import stays, wait_until

REFUSAL = re.compile(
    r'^address (\S+) of host "(.*)" is not allowed; (?:add \'\S+\' to|set) outbox\.allowed_hosts(?: to \'default, \S+\')?$'
)

# Where a receiver on 127.0.0.1 is reached.
SPELLINGS = (
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "%3127.0.0.1", "0.0.0.0",
    "localhost", "LocalHost", "[::ffff:127.0.0.1]",
)  # fmt: skip


@pytest.fixture
def make_receiver() -> Iterator[Callable[[str], Receiver]]:
    made: list[Receiver] = []

    def make(address: str) -> Receiver:
        try:
            made.append(Receiver(address))
        except OSError:
            pytest.skip(f"NOT TESTED: this machine does not have the address {address}")
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


def allow(cluster: Cluster, hosts: str) -> None:
    cluster.configure({"outbox.allowed_hosts": hosts})


def wait_refused(db: Database, *destinations: str) -> dict[str, str]:
    """Waits until all of them were refused an address; returns the addresses."""
    query = "SELECT destination, last_error FROM outbox.status WHERE state = 'backing off' AND last_error IS NOT NULL"
    errors = wait_until(
        lambda: dict(db.execute(query)), lambda seen: seen.keys() >= set(destinations),
        what=f"{', '.join(destinations)} to fail",
    )  # fmt: skip
    addresses = {}
    for destination in destinations:
        refusal = REFUSAL.match(errors[destination])
        assert refusal, f"{destination}: {errors[destination]}"
        addresses[destination] = refusal[1]
    return addresses


def test_http_to_the_machine_itself_is_refused_unless_allowed(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    db = new_database({"outbox.allowed_hosts": ""})
    cluster = db.cluster
    began = cluster.log_size()
    urls = {f"d{n}": receiver.url(f"/d{n}", host) for n, host in enumerate(SPELLINGS)}
    for name, url in urls.items():
        db.add_destination(name, url)
    db.add_destination("tls", receiver.url().replace("http:", "https:"))
    ids = db.enqueue(count=3)

    wait_refused(db, *urls, "tls")
    findings = db.health()
    for name in urls:
        (why,) = [f.why for f in findings if f[:3] == ("degraded", f'destination "{name}"', "fails")]
        assert "outbox.allowed_hosts" in why
    wait_until(
        lambda: cluster.log_since(began), lambda log: 'of host "127.1" is not allowed; set outbox.allowed_hosts to \'default, 127.0.0.1\'' in log,
        what="the refusal in the server log",
    )  # fmt: skip
    assert receiver.connections == 0
    assert {db.published(name) for name in urls} == {0}

    allow(cluster, "127.0.0.0/8, 0.0.0.0")
    for name in urls:
        db.wait_published(3, name)
        arrived = [event.id for event in receiver.events() if event.request.target == f"/{name}"]
        assert arrived == ids, f"{urls[name]}: events are lost, or out of order"


def test_the_loopback_of_ipv6_is_refused_unless_allowed(
    new_database: NewDatabase, make_receiver: Callable[[str], Receiver], http: None
) -> None:
    receiver = make_receiver("::1")
    db = new_database({"outbox.allowed_hosts": ""})
    cluster = db.cluster
    db.add_destination("short", receiver.url("/", "[::1]"))
    db.add_destination("long", receiver.url("/", "[0:0:0:0:0:0:0:1]"))
    db.enqueue()
    assert set(wait_refused(db, "short", "long").values()) == {"::1"}
    assert receiver.connections == 0
    allow(cluster, "::1")
    db.wait_published(1, "short")
    db.wait_published(1, "long")


def test_a_name_is_allowed_wherever_it_is(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    db = new_database({"outbox.allowed_hosts": "example.com, *.example.org, 192.0.2.0/24"})
    cluster = db.cluster
    db.add_destination("name", receiver.url("/name", "localhost"))
    db.add_destination("address", receiver.url("/address"))
    db.enqueue(count=3)
    assert wait_refused(db, "name", "address")["address"] == "127.0.0.1"
    allow(cluster, "example.com, localhost")
    db.wait_published(3, "name")
    before = db.status("address")["failures"]  # the next may be an attempt from before the reload
    wait_until(
        lambda: db.status("address")["failures"], lambda seen: seen >= before + 2,
        what="two more attempts to be refused",
    )  # fmt: skip
    wait_refused(db, "address")
    assert {request.target for request in receiver.requests} == {"/name"}


def test_a_host_that_is_allowed_no_more_is_left(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    db = new_database({"outbox.allowed_hosts": "127.0.0.1"})
    cluster = db.cluster
    db.add_destination("d", receiver.url())
    ids = db.enqueue(count=3)
    db.wait_published(3)
    assert receiver.open_connections
    allow(cluster, "")
    wait_until(lambda: not receiver.open_connections, what="the connection to be closed")
    ids += db.enqueue(count=3, first=4)
    wait_refused(db, "d")
    stays(lambda: receiver.connections, 1, seconds=0.3, what="connections there ever were")
    allow(cluster, "127.0.0.1")
    wait_until(lambda: receiver.ids()[-3:] == ids[-3:], what="the events that waited")


def test_a_redirect_leads_nowhere(
    new_database: NewDatabase,
    receiver: Receiver,
    make_receiver: Callable[[str], Receiver],
    http: None,
) -> None:
    reserved = make_receiver("127.0.0.2")
    receiver.on(path("/a"), answer(307, [("Location", reserved.url("/", "127.0.0.2"))]))
    receiver.on(everything, answer(302, [("Location", "http://169.254.169.254/")]))
    db = new_database({"outbox.allowed_hosts": "127.0.0.1"})
    for name in ("a", "b"):
        db.add_destination(name, receiver.url(f"/{name}"))
    db.enqueue()
    for name in ("a", "b"):
        status = wait_until(lambda: db.status(name), lambda s: s["failures"] >= 2, what=f"{name} to fail twice")
        assert "(redirects are not followed)" in status["last_error"]
    assert reserved.connections == 0


def test_a_postgresql_destination_is_refused_when_the_list_lacks_it(
    new_database: NewDatabase,
) -> None:
    db = new_database({"outbox.allowed_hosts": "db.example.com, 192.0.2.0/24"})
    cluster, target = db.cluster, new_database(extension=False)
    target.execute("CREATE EXTENSION pg_inbox")
    for name, host in {"address": "127.0.0.1", "spelling": "0x7f.1", "name": "localhost", "socket": ""}.items():
        db.add_destination(name, target.inbox_url(host and f"{host}:{cluster.port}"), consumer=name)
    db.enqueue(count=3)
    addresses = wait_refused(db, "address", "spelling", "name")
    assert addresses["address"] == addresses["spelling"] == "127.0.0.1"
    error = wait_until(lambda: db.status("socket")["last_error"], what="the socket to be refused")
    assert error == f"""Unix socket "{cluster.directory}" is not allowed; add 'localhost' to outbox.allowed_hosts"""
    assert target.value("SELECT count(*) FROM inbox.message") == 0

    allow(cluster, "LOCALHOST")
    db.wait_published(3, "name")
    db.wait_published(3, "socket")
    wait_refused(db, "address", "spelling")
    allow(cluster, "")  # anything is allowed, also what is local
    db.wait_published(3, "address")
    db.wait_published(3, "spelling")
    arrived = target.execute("SELECT count(*), count(DISTINCT consumer_id) FROM inbox.message")
    assert arrived == [(12, 4)]


@pytest.mark.parametrize(
    "hosts", ["10.0.0.1/8", "127.1", "*", "example.com:443", "https://example.com/", "a,,b", "[::1]"]
)
def test_a_malformed_list_is_refused_when_it_is_set(database: Database, hosts: str) -> None:
    with pytest.raises(psycopg.Error, match='invalid value for parameter "outbox.allowed_hosts"') as error:
        database.execute(f"ALTER SYSTEM SET outbox.allowed_hosts = '{hosts}'")
    assert "is not a host name, address or network" in (error.value.diag.message_detail or "")
    assert "*.example.org" in (error.value.diag.message_hint or "")


def test_only_the_configuration_sets_the_list(database: Database) -> None:
    with pytest.raises(psycopg.Error, match="cannot be changed now"):
        database.execute("SET outbox.allowed_hosts = 'example.com'")
