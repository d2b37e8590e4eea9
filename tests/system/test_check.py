"""outbox.check_destination(): each mistake in the set-up of a destination has its own finding."""

from __future__ import annotations

import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from cluster import SUPERUSER, Cluster, Installation, MakeCluster
from database import SENDER, Database, NewDatabase, create_database
from receiver import Receiver, Request, answer, everything, path
from silent import silent_server
from test_tls import TlsServer, tls_server  # noqa: F401  (a fixture)
from waiting import SECOND, wait_until

Findings = dict[str, tuple[bool, str]]


def check(database: Database, destination: str = "d", topic: str | None = None) -> Findings:
    rows = database.execute("SELECT * FROM outbox.check_destination(%s, %s)", (destination, topic))
    findings = {subject: (ok, detail) for subject, ok, detail in rows}
    assert len(findings) == len(rows), rows
    return findings


def check_failure(database: Database, subject: str, destination: str = "d") -> str:
    """Checks that this is the last finding, and that it is wrong."""
    findings = check(database, destination)
    assert list(findings)[-1] == subject, findings
    assert [name for name, (ok, _) in findings.items() if not ok] == [subject], findings
    return findings[subject][1]


def checks(cluster: Cluster) -> list[int]:
    return [pid for kind, _, pid in cluster.workers() if kind == "pg_outbox check"]


# -------------------------------------------------------------------------------------------------
# http
# -------------------------------------------------------------------------------------------------


def test_http_that_can_be_reached(database: Database, receiver: Receiver, http: None) -> None:
    database.add_destination("d", receiver.url("/", "localhost"))
    assert check(database) == {
        "options": (True, receiver.url("/", "localhost")),
        "address": (True, "localhost is 127.0.0.1"),
        "connection": (True, f"port {receiver.port}"),
    }
    assert receiver.requests == []


def test_a_host_that_does_not_exist(database: Database, http: None) -> None:
    database.add_destination("d", "http://nowhere.invalid/")
    assert "nowhere.invalid" in check_failure(database, "address")


def test_an_address_that_is_not_allowed(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    db = new_database({"outbox.allowed_hosts": ""})
    db.add_destination("d", receiver.url())
    db.add_destination("tls", receiver.url().replace("http:", "https:"))
    for name in ("d", "tls"):
        error = check_failure(db, "address", name)
        assert (
            error
            == """address 127.0.0.1 of host "127.0.0.1" is not allowed; set outbox.allowed_hosts to 'default, 127.0.0.1'"""
        )
    assert receiver.connections == 0


@contextmanager
def port_where_nobody_listens() -> Iterator[int]:
    """Yields a port on which no server listens or will listen, because it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_port_where_nobody_listens(database: Database, http: None) -> None:
    with port_where_nobody_listens() as port:
        database.add_destination("d", f"http://127.0.0.1:{port}/")
        assert str(port) in check_failure(database, "connection")


def test_https_that_can_be_reached(database: Database, tls_server: Callable[..., TlsServer]) -> None:  # noqa: F811
    server = tls_server()
    database.add_destination("d", server.url(), ca_file=server.authority)
    assert check(database)["tls"] == (True, "the certificate is valid for 127.0.0.1")
    assert server.requests() == []


def test_an_authority_that_is_unknown(database: Database, tls_server: Callable[..., TlsServer]) -> None:  # noqa: F811
    database.add_destination("d", tls_server().url())
    assert "certificate" in check_failure(database, "tls")


def test_a_ca_file_that_is_missing(database: Database, tls_server: Callable[..., TlsServer]) -> None:  # noqa: F811
    database.add_destination("d", tls_server().url(), ca_file="/nowhere/ca.crt")
    assert "/nowhere/ca.crt" in check_failure(database, "tls")


def test_a_server_that_speaks_no_tls(database: Database, receiver: Receiver, http: None) -> None:
    database.add_destination("d", receiver.url().replace("http:", "https:"), connect_timeout="5s")
    check_failure(database, "tls")


def test_a_server_that_answers_https_in_plain_http(database: Database, http: None) -> None:
    """Web servers do so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return  # the test has ended
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    peer.recv(10000)

        threading.Thread(target=refuse, daemon=True).start()
        said = "the port does not speak TLS; is the URL meant to begin with http://? ("
        database.add_destination("d", f"https://127.0.0.1:{server.getsockname()[1]}/")
        assert check_failure(database, "tls").startswith(said)
        database.enqueue("a")
        wait_until(
            lambda: database.status()["last_error"],
            lambda error: error and error.startswith(said),
            what="the relay to say it",
        )
        server.shutdown(socket.SHUT_RDWR)


# -------------------------------------------------------------------------------------------------
# postgresql
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def target(new_database: NewDatabase) -> Database:
    target = new_database(extension=False)
    target.execute("CREATE EXTENSION pg_inbox")
    return target


def add_postgresql(database: Database, target: Database, mapping: str = "", **options: str) -> None:
    url = target.inbox_url(f"127.0.0.1:{database.cluster.port}")
    database.add_destination("d", url, **options)
    if mapping:
        database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({mapping})")


def test_an_inbox_that_can_be_used(database: Database, target: Database) -> None:
    database.add_destination("local", target.inbox_url())
    add_postgresql(database, target)
    assert check(database) == {
        "options": (True, target.inbox_url(f"127.0.0.1:{database.cluster.port}")),
        "address": (True, "127.0.0.1 is 127.0.0.1"),
        "connection": (True, f"port {database.cluster.port}"),
        "login": (True, f'as role "{SENDER}", to database "{target.name}"'),
        "inbox": (True, "it exists, and may be sent to"),
    }
    assert check(database, "local")["address"] == (True, str(database.cluster.directory))
    assert target.value("SELECT count(*) FROM inbox.consumer") == 0


@pytest.mark.parametrize(
    "url, subject, error",
    [
        ("postgresql://nowhere.invalid/shop", "address", "nowhere.invalid"),
        ("postgresql://127.0.0.2/shop", "address", "is not allowed; add '127.0.0.2' to outbox.allowed_hosts"),
        ("postgresql://127.0.0.1:{free}/shop", "connection", "Connection refused"),
        ("postgresql:///shop?host=/nowhere", "connection", "No such file or directory"),
        ("postgresql://127.0.0.1:{port}/template1?sslmode=require", "tls", "SSL"),
        ("postgresql://127.0.0.1:{port}/nothing_of_that_name", "login", "does not exist"),
        ("postgresql://nobody@127.0.0.1:{port}/template1", "login", 'role "nobody" does not exist'),
        ("postgresql:///template1", "login", 'role "postgres" is or can become a superuser there'),
        ("postgresql://{sender}@/template1", "inbox", "CREATE EXTENSION pg_inbox"),
    ],
)
def test_what_is_wrong_with_a_database(
    database: Database, target: Database, url: str, subject: str, error: str
) -> None:
    target.inbox_url()
    with port_where_nobody_listens() as free:
        database.add_destination("d", url.format(port=database.cluster.port, free=free, sender=SENDER))
        assert error in check_failure(database, subject)


def test_a_right_that_is_missing(database: Database, target: Database) -> None:
    role = f"sender_of_{target.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        add_postgresql(database, target, f"user '{role}'")
        grant = f"SELECT inbox.grant_send('{role}')"
        assert grant in check_failure(database, "inbox")
        target.execute(f"GRANT USAGE ON SCHEMA inbox TO {role}")
        assert grant in check_failure(database, "inbox")
        target.execute(grant)
        assert check(database)["inbox"][0]
        target.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        assert check(database)["inbox"][0], "a default for sessions of people has an effect"
    finally:
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_an_inbox_on_a_standby(make_cluster: MakeCluster) -> None:
    primary = make_cluster()
    database, target = create_database(primary), create_database(primary, "target", extension=False)
    target.execute("CREATE EXTENSION pg_inbox")
    target.inbox_url()
    standby = primary.make_standby().start()
    try:
        database.add_destination("d", target.inbox_url(f"127.0.0.1:{standby.port}"))
        assert check_failure(database, "inbox") == "the database is read-only, as a standby is"
        standby.promote()
        assert check(database)["inbox"] == (True, "it exists, and may be sent to")
    finally:
        standby.destroy()


def test_a_password_that_is_wrong_or_missing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    db = create_database(cluster)
    db.execute("CREATE ROLE sender LOGIN PASSWORD 's3cret-right'")
    rules = (cluster.data / "pg_hba.conf").read_text()
    (cluster.data / "pg_hba.conf").write_text(f"host all sender all scram-sha-256\n{rules}")
    db.execute("SELECT pg_reload_conf()")
    add_postgresql(db, db, "user 'sender', password 's3cret-wr0ng'")
    error = check_failure(db, "login")
    assert "password authentication failed" in error
    assert "s3cret-wr0ng" not in error
    db.execute("ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password 's3cret-right')")
    assert "CREATE EXTENSION pg_inbox" in check_failure(db, "inbox")

    db.execute("CREATE ROLE integrator; GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO integrator")
    db.execute("ALTER SERVER d OWNER TO integrator")  # which has another user mapping
    assert list(check(db)) == ["options", "login"]
    assert "password is required" in check_failure(db, "login")


# -------------------------------------------------------------------------------------------------
# The destination
# -------------------------------------------------------------------------------------------------


def test_destinations_that_connect_to_nothing(database: Database) -> None:
    database.add_destination("d", "null:")
    database.add_destination("pull", "pull:")
    assert check(database)["connection"] == (True, "none: events are confirmed at once")
    assert check(database, "pull")["connection"] == (True, "none: events wait for outbox.fetch()")


def test_a_topic_that_the_destination_does_not_take(database: Database) -> None:
    database.add_destination("d", "null:", topics="video.*, user.events")
    assert check(database, topic="video.events")["connection"][0]
    assert check(database, topic="audio")["topics"] == (False, 'the option "topics" does not select "audio"')


def test_the_default_destination(new_database: NewDatabase) -> None:
    database = new_database({"outbox.default_destination": "http://nowhere.invalid/"})
    assert "nowhere" in check_failure(database, "address", "default")


def test_a_destination_that_does_not_exist(database: Database) -> None:
    with pytest.raises(errors.UndefinedObject, match='destination "d" does not exist') as error:
        check(database)
    assert "outbox.status" in (error.value.diag.message_hint or "")


def test_a_destination_that_is_not_committed(database: Database) -> None:
    with database.connection.transaction():
        database.add_destination("d", "null:")
        assert "commit the transaction" in check_failure(database, "options")
    assert check(database)["options"][0]


def test_a_module_that_is_missing(database: Database, installation: Installation, http: None) -> None:
    database.add_destination("d", "http://127.0.0.1:1/")
    module = installation.module("pg_outbox_http")
    hidden = module.rename(module.with_suffix(".away"))
    try:
        error = check_failure(database, "module")
    finally:
        hidden.rename(module)
    assert "pg_outbox_http.so" in error
    assert "Install the module" in error


def test_operators_may_check_and_owners_who_are_granted_it(database: Database) -> None:
    def attempt(role: str) -> list[tuple]:
        with database.cluster.connect(database.name, role) as connection:
            return connection.execute("SELECT ok FROM outbox.check_destination('d')").fetchall()

    operator, integrator = f"operator_{database.name}", f"integrator_{database.name}"
    try:
        for role in (operator, integrator):
            database.execute(f"CREATE ROLE {role} LOGIN")
        database.execute("SELECT outbox.grant_operate(%s)", (operator,))
        database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {integrator}")
        database.execute(f"GRANT USAGE ON SCHEMA outbox TO {integrator}")
        with database.cluster.connect(database.name, integrator) as connection:
            connection.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')")
        assert attempt(operator) == [(True,), (True,)]
        with pytest.raises(errors.InsufficientPrivilege):
            attempt(integrator)
        database.execute(f"GRANT EXECUTE ON FUNCTION outbox.check_destination TO {integrator}")
        assert attempt(integrator) == [(True,), (True,)]
    finally:
        database.execute(f"DROP OWNED BY {operator}, {integrator} CASCADE")
        database.execute(f"DROP ROLE {operator}, {integrator}")


def test_events_that_tell_the_topics(database: Database) -> None:
    def topics(looked_for: str | None = None) -> list[tuple]:
        return database.execute(
            "SELECT topic, event_type FROM outbox_internal.events_to_check('d', %s) ORDER BY 1, 2", (looked_for,)
        )

    database.add_destination("d", "null:", topics=" video.*, user.events")
    assert topics() == [("user.events", None)]
    database.enqueue(count=400, topic="video.old")
    database.enqueue(count=150, topic="video.new")
    database.move_to_segment(1)
    database.enqueue(count=149, topic="video.newer")
    database.enqueue(topic="audio")
    assert topics() == [("user.events", None), ("video.new", "changed"), ("video.newer", "changed")]
    assert topics("audio") == [("audio", "changed"), ("audio", None)]
    assert topics("a,b*") == [("a,b*", None)]
    # Changes of captured tables are known before the first event.
    database.execute("CREATE TABLE item (id int PRIMARY KEY, place text NOT NULL)")
    database.execute("CREATE TABLE loose (id int PRIMARY KEY, place text NOT NULL)")
    database.execute("SELECT outbox.capture('item', topic => 'video.captured')")
    database.execute("SELECT outbox.capture('loose', topic_column => 'place')")
    types = [event_type for topic, event_type in topics() if topic == "video.captured"]
    assert [event_type[4:] for event_type in types] == ["Created", "Deleted", "Updated"]


# -------------------------------------------------------------------------------------------------
# The worker
# -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["https", "postgresql"])
def hanging(request: pytest.FixtureRequest) -> Iterator[Callable[[Database], None]]:
    """Adds a destination whose check waits for an hour."""
    with silent_server() as silent:
        yield lambda database: database.add_destination(
            "d", f"{request.param}://127.0.0.1:{silent.port}/a", connect_timeout="1h"
        )


def start_check(
    database: Database, user: str = SUPERUSER
) -> tuple[psycopg.Connection, threading.Thread, list[Exception]]:
    """Begins a check in a session of its own that hangs."""
    connection, raised = database.cluster.connect(database.name, user), []

    def run() -> None:
        try:
            connection.execute("SELECT * FROM outbox.check_destination('d')")
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: checks(database.cluster), what="a check to run")
    return connection, thread, raised


def test_a_timeout_ends_the_check(database: Database, hanging: Callable[[Database], None]) -> None:
    hanging(database)
    with database.connect() as connection, pytest.raises(errors.QueryCanceled):
        connection.execute("SET statement_timeout = '500ms'")
        connection.execute("SELECT * FROM outbox.check_destination('d')")
    wait_until(lambda: not checks(database.cluster), what="the worker to end")


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_session_that_is_ended_ends_the_check(
    database: Database, hanging: Callable[[Database], None], how: str
) -> None:
    hanging(database)
    connection, thread, raised = start_check(database)
    database.execute(f"SELECT {how}(%s)", (connection.info.backend_pid,))
    thread.join(60)
    assert isinstance(raised[0], (errors.QueryCanceled, psycopg.OperationalError))
    wait_until(lambda: not checks(database.cluster), what="the worker to end")
    connection.close()


def test_an_error_that_is_caught_ends_the_check(database: Database, hanging: Callable[[Database], None]) -> None:
    hanging(database)
    database.execute("SET statement_timeout = '500ms'")
    database.execute(
        """DO $$ BEGIN
               PERFORM outbox.check_destination('d');
           EXCEPTION WHEN query_canceled THEN
               PERFORM set_config('statement_timeout', '0', false);
           END $$"""
    )
    wait_until(lambda: not checks(database.cluster), what="the worker to end")


def test_a_worker_that_dies_is_an_error(database: Database, hanging: Callable[[Database], None]) -> None:
    hanging(database)
    connection, thread, raised = start_check(database)
    for pid in checks(database.cluster):
        database.execute("SELECT pg_terminate_backend(%s)", (pid,))
    thread.join(60)
    assert isinstance(raised[0], errors.ObjectNotInPrerequisiteState), raised
    assert "ended early" in str(raised[0])
    connection.close()


def test_an_owner_can_drop_a_database_in_which_a_check_hangs(
    new_database: NewDatabase, hanging: Callable[[Database], None]
) -> None:
    """WITH (FORCE) the server ends sessions of the owner, but not the check, which runs as a superuser."""
    db = new_database()
    cluster, owner = db.cluster, f"{db.name}_owner"
    hanging(db)
    db.execute(f"CREATE ROLE {owner} LOGIN; ALTER DATABASE {db.name} OWNER TO {owner}")
    db.execute("SELECT outbox.grant_operate(%s)", (owner,))
    connection, thread, raised = start_check(db, owner)
    db.disconnect()
    wait_until(
        lambda: cluster.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend' AND usename <> %s",
            (db.name, owner),
        ),
        lambda sessions: not sessions, what="the session of a superuser to end, which the owner may not terminate",
    )  # fmt: skip
    try:
        with cluster.connect(user=owner) as session:
            session.execute(f"DROP DATABASE {db.name} WITH (FORCE)")
        thread.join(60)
        assert isinstance(raised[0], (errors.ObjectNotInPrerequisiteState, psycopg.OperationalError))
        assert not checks(cluster)
    finally:
        connection.close()
        cluster.execute(f"DROP DATABASE IF EXISTS {db.name} WITH (FORCE)")
        cluster.execute(f"DROP ROLE {owner}")


@pytest.mark.long
def test_a_database_that_cannot_be_dropped_is_checked_on(
    database: Database, hanging: Callable[[Database], None]
) -> None:
    """The session blocks the statement as well, so the check need not leave."""
    hanging(database)
    connection, thread, _ = start_check(database)
    pids = checks(database.cluster)
    with pytest.raises(errors.ObjectInUse):
        database.cluster.execute(f"DROP DATABASE {database.name}")
    assert checks(database.cluster) == pids
    connection.cancel()
    thread.join(60)
    connection.close()


@pytest.mark.timing
def test_the_server_stops_while_a_check_hangs(make_cluster: MakeCluster, hanging: Callable[[Database], None]) -> None:
    cluster = make_cluster()
    db = create_database(cluster)
    hanging(db)
    connection, thread, raised = start_check(db)
    assert cluster.stop() < 5 * SECOND
    thread.join(60)
    assert raised
    connection.close()


def test_a_check_that_cannot_start(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"max_worker_processes": "3"})  # replication launcher, our launcher, keeper
    db = create_database(cluster)
    db.wait_for_worker("keeper")
    db.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:')")
    with pytest.raises(errors.ConfigurationLimitExceeded, match="out of background worker slots") as error:
        check(db)
    assert "max_worker_processes" in (error.value.diag.message_hint or "")


def test_sessions_never_see_the_libraries(database: Database, receiver: Receiver, http: None) -> None:
    database.add_destination("d", receiver.url())
    assert check(database)["connection"][0]
    maps = Path(f"/proc/{database.connection.info.backend_pid}/maps").read_text()
    assert "pg_outbox.so" in maps
    assert "libcurl" not in maps


def test_a_standby_can_check_before_it_is_promoted(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    primary = make_cluster()
    create_database(primary).add_destination("d", receiver.url())
    standby = primary.make_standby()
    try:
        standby.start()
        assert check(Database(standby, "db"))["connection"] == (True, f"port {receiver.port}")
    finally:
        standby.destroy()


# -------------------------------------------------------------------------------------------------
# pubsub
# -------------------------------------------------------------------------------------------------

NOT_FOUND = b'{"error": {"code": 404, "message": "Resource not found (resource=x).", "status": "NOT_FOUND"}}'
DENIED = b'{"error": {"code": 403, "message": "User not authorized.", "status": "PERMISSION_DENIED"}}'
UNKNOWN_USER = b'{"error": {"code": 401, "message": "Who?", "status": "UNAUTHENTICATED"}}'
MAY_PUBLISH = b'{"permissions": ["pubsub.topics.publish"]}'


def add_pubsub(database: Database, receiver: Receiver, mapping: str = "token 's3cret'", **options: str) -> None:
    database.add_destination("d", f"pubsub://p?endpoint=http://127.0.0.1:{receiver.port}", **options)
    database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({mapping})")


@pytest.mark.parametrize(
    "look, permission, ok, detail",
    [
        ((200, b"{}"), (200, MAY_PUBLISH), True, "it exists, and may be published to"),
        ((200, b"{}"), (200, b"{}"), False, "PERMISSION_DENIED: it exists, but may not be published to"),
        ((200, b"{}"), (404, b""), True, "it exists"),
        ((403, DENIED), (200, MAY_PUBLISH), True, "it may be published to"),
        ((403, DENIED), (200, b"{}"), False, "PERMISSION_DENIED: User not authorized."),
        (
            (404, NOT_FOUND),
            None,
            False,
            'NOT_FOUND: Resource not found (resource=x). (create it, or set the option "create_topics")',
        ),
        ((401, UNKNOWN_USER), None, False, "UNAUTHENTICATED: Who?"),
        ((503, b"busy"), None, False, "UNAVAILABLE: HTTP 503: busy"),
    ],
)
def test_a_topic_of_pubsub(
    database: Database,
    receiver: Receiver,
    look: tuple[int, bytes],
    permission: tuple[int, bytes] | None,
    ok: bool,
    detail: str,
) -> None:
    receiver.on(path("/v1/projects/p/topics/video"), answer(look[0], body=look[1]))
    if permission:
        receiver.on(
            path("/v1/projects/p/topics/video:testIamPermissions"),
            answer(permission[0], body=permission[1]),
        )
    add_pubsub(database, receiver, topic="video")
    findings = check(database)
    assert findings["credentials"][0]
    assert findings['topic "video"'][0] == ok
    assert findings['topic "video"'][1].startswith(detail)
    assert [request.method for request in receiver.requests] == ["GET", "POST"][: 2 if permission else 1]
    assert {request.headers["authorization"] for request in receiver.requests} == {"Bearer s3cret"}
    assert "s3cret" not in str(findings)


def test_a_topic_that_would_be_created(database: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(404, body=NOT_FOUND))
    add_pubsub(database, receiver, topic="video", create_topics="on")
    assert check(database)['topic "video"'] == (
        True, "it does not exist yet; the first event creates it"
    )  # fmt: skip


def test_topics_are_found_in_the_option_the_log_and_the_argument(database: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(404, body=NOT_FOUND))
    add_pubsub(database, receiver, topic="{topic}-{event_type}", topics="video.*, user")

    def looked_for(topic: str | None = None) -> list[str]:
        return [name for name in check(database, topic=topic) if name.startswith("topic")]

    assert looked_for() == ["topics"]  # the type is not known
    assert "second argument" in check(database)["topics"][1]
    database.enqueue(topic="video.new")
    database.enqueue(topic="audio")
    assert looked_for() == ['topic "video.new-changed"']
    database.execute("ALTER SERVER d OPTIONS (SET topic '{topic}')")
    assert sorted(looked_for()) == ['topic "user"', 'topic "video.new"']
    assert looked_for("video.later") == ['topic "video.later"']
    database.execute("ALTER SERVER d OPTIONS (SET topic 'all-{topic}!')")
    assert "cannot be a topic" in check(database)['topic "all-user!"'][1]


def test_an_invalid_key_is_reported(database: Database, receiver: Receiver) -> None:
    add_pubsub(database, receiver, "key '{}'", topic="video")
    error = check_failure(database, "credentials")
    assert "key" in error
    assert receiver.requests == []


# -------------------------------------------------------------------------------------------------
# sqs, sns, kinesis, eventbridge
# -------------------------------------------------------------------------------------------------

KEYS = "access_key_id 'AKIAIOSFODNN7EXAMPLE', secret_access_key 's3cret', session_token 't0ken'"
ARN = "arn:aws:sns:eu-west-1:123456789012:video-events"


def add_aws(database: Database, receiver: Receiver, place: str, mapping: str = KEYS, **options: str) -> None:
    database.add_destination("d", f"{place}?endpoint=http://127.0.0.1:{receiver.port}", **options)
    database.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS ({mapping})")


def failure(code: str, message: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": message}).encode()


def action(name: str) -> Callable[[Request], bool]:
    return lambda request: request.headers.get("x-amz-target") == f"AmazonSQS.{name}"


def test_a_queue_of_sqs(database: Database, receiver: Receiver) -> None:
    url = b'{"QueueUrl": "https://sqs.example.com/1/video-events"}'
    receiver.on(action("GetQueueUrl"), answer(200, body=url))
    receiver.on(action("GetQueueAttributes"), answer(200, body=b"{}"))
    add_aws(database, receiver, "sqs://eu-west-1")
    findings = check(database, topic="video.events")
    assert findings["credentials"][0]
    assert findings['queue "video-events"'] == (True, "it exists")
    look_up, look = receiver.requests
    assert look_up.json() == {"QueueName": "video-events"}
    assert look.json()["QueueUrl"] == "https://sqs.example.com/1/video-events"


@pytest.mark.parametrize(
    "status, body, detail",
    [
        (400, failure("QueueDoesNotExist", "No such queue."), "HTTP 400 QueueDoesNotExist: No such queue."),
        (403, failure("AccessDenied", "Not you."), "another permission than to send: sqs:GetQueueAttributes"),
        (403, failure("InvalidClientTokenId", "Who is t0ken?"), "HTTP 403 InvalidClientTokenId"),
        (500, b"what?", "HTTP 500: what?"),
    ],
)
def test_a_queue_of_sqs_that_cannot_be_used(
    database: Database, receiver: Receiver, status: int, body: bytes, detail: str
) -> None:
    receiver.on(everything, answer(status, body=body))
    add_aws(database, receiver, "sqs://eu-west-1/123456789012")
    findings = check(database, topic="video.events")
    ok, why = findings['queue "video-events"']
    assert not ok
    assert detail in why
    assert not any(secret in str(findings) for secret in ("s3cret", "t0ken"))


def test_a_topic_of_sns(database: Database, receiver: Receiver) -> None:
    denied = b"<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code></Error></ErrorResponse>"
    receiver.on(everything, answer(404, body=denied), times=1)
    receiver.on(everything, answer(200, body=b"<GetTopicAttributesResponse/>"))
    add_aws(database, receiver, "sns://eu-west-1/123456789012")
    for expected in ((False, "HTTP 404 NotFound"), (True, "it exists")):
        assert check(database, topic="video.events")['topic "video-events"'] == expected
    form = urllib.parse.parse_qs(receiver.requests[0].body.decode())
    assert form["Action"] == ["GetTopicAttributes"]
    assert form["TopicArn"] == [ARN]


def summary(**members: object) -> bytes:
    return json.dumps({"StreamDescriptionSummary": {"StreamName": "s", **members}}).encode()


@pytest.mark.parametrize(
    "body, expected",
    [
        (summary(StreamStatus="ACTIVE", MaxRecordSizeInKiB=1024), (True, "it is ACTIVE")),
        (summary(StreamStatus="UPDATING"), (True, "it is UPDATING")),
        (summary(StreamStatus="CREATING"), (False, "its status is CREATING")),
        (b"{}", (False, "the answer does not describe it")),
        (
            summary(StreamStatus="ACTIVE", MaxRecordSizeInKiB=1000),
            (False, "it takes records of 1000 KiB, less than the option max_record_size says"),
        ),
    ],
)
def test_a_stream_of_kinesis(database: Database, receiver: Receiver, body: bytes, expected: tuple[bool, str]) -> None:
    receiver.on(everything, answer(200, body=body))
    add_aws(database, receiver, "kinesis://eu-west-1")
    assert check(database, topic="video.events")['stream "video.events"'] == expected
    (request,) = receiver.requests
    assert request.headers["x-amz-target"] == "Kinesis_20131202.DescribeStreamSummary"
    assert request.json() == {"StreamName": "video.events"}


def test_a_stream_that_may_not_be_looked_at(database: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(400, body=failure("AccessDeniedException", "Not you.")))
    add_aws(database, receiver, "kinesis://eu-west-1/123456789012")
    ok, why = check(database, topic="video.events")['stream "video.events"']
    assert not ok and "another permission than to send: kinesis:DescribeStreamSummary" in why
    assert receiver.requests[0].json()["StreamARN"].endswith(":kinesis:eu-west-1:123456789012:stream/video.events")


def test_an_event_bus_that_may_not_be_looked_at(database: Database, receiver: Receiver) -> None:
    receiver.on(everything, answer(400, body=failure("AccessDeniedException", "Not you.")))
    add_aws(database, receiver, "eventbridge://eu-west-1", event_bus="orders")
    ok, why = check(database)['event bus "orders"']
    assert not ok and "another permission than to send: events:DescribeEventBus" in why
    (request,) = receiver.requests
    assert request.headers["x-amz-target"] == "AWSEvents.DescribeEventBus"
    assert request.json() == {"Name": "orders"}


def test_unavailable_keys_are_reported(database: Database, receiver: Receiver) -> None:
    add_aws(database, receiver, "sqs://eu-west-1", "profile 'nobody_of_that_name'", queue="events")
    check_failure(database, "credentials")
    assert receiver.requests == []
