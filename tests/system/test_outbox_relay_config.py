"""outbox-relay before it delivers: its configuration, --check, the HTTP port and its logs."""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster import Cluster, Installation, MakeCluster
from database import Database, NewDatabase, create_database
from passwords import assert_no_passwords, password
from pooler import PROGRAM as PGBOUNCER
from pooler import Pooler
from processes import assert_threads_block_signals
from receiver import Receiver, answer
from waiting import wait_until

SECRET = password("of-the-relay")


class Program:
    """outbox-relay with a folder for its files. No variable of the tests reaches it."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        path = next(installation.stage.rglob("bin/outbox-relay"), None)
        if path is None:
            pytest.skip("NOT TESTED: outbox-relay is not part of this build")
        self.path = path
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "PG"))}
        return {**kept, **variables}

    def write(self, text: str, name: str = "relay.toml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.path), *arguments], capture_output=True, text=True, timeout=120,
            env=self.environment(variables), cwd="/",
        )  # fmt: skip
        assert_no_passwords(done.stdout + done.stderr, "outbox-relay")
        return done

    def check(self, toml: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("--config", self.write(toml), "--check", *arguments, **variables)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        log = (self.folder / "log").open("w")
        self.started.append(
            subprocess.Popen(
                [str(self.path), *arguments], stderr=log, text=True, env=self.environment(variables), cwd="/"
            )
        )
        return self.started[-1]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def program(installation: Installation, tmp_path: Path) -> Iterator[Program]:
    program = Program(installation, tmp_path)
    yield program
    program.stop()
    if program.started:
        print(program.log())
        assert_no_passwords(program.log(), "outbox-relay")


def section(database: Database, name: str = "orders", **keys: str) -> str:
    lines = [f"[databases.{name}]", f'url = "{database.cluster.conninfo(database.name)}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in {"trusted": "true", **keys}.items())]) + "\n"


# -------------------------------------------------------------------------------------------------
# Usage
# -------------------------------------------------------------------------------------------------


def test_help_and_version(program: Program) -> None:
    help = program.run("--help")
    assert (help.returncode, help.stderr) == (0, "")
    for flag in ("--config", "--check", "--once", "--listen", "--lease", "--database-url"):
        assert f"  {flag} " in help.stdout
    assert "--password" not in help.stdout
    assert "`" not in help.stdout and "](" not in help.stdout
    assert re.fullmatch(r"outbox-relay \d+\.\d+\.\d+\n", program.run("--version").stdout)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "there is no database to serve"),
        (["--leese", "3s"], "--leese"),
        (["--lease", "1s", "--database-url", "dbname=d"], '--lease: invalid value for option "lease"'),
        (["--config", "/nowhere/relay.toml"], 'could not read "/nowhere/relay.toml"'),
        (["--database-url", f"postgresql://me:{SECRET}@h/d"], "password on the command line"),
    ],
)
def test_wrong_usage(program: Program, arguments: list[str], complaint: str) -> None:
    done = program.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert SECRET not in done.stderr


def test_a_wrong_file_is_reported_with_its_lines(program: Program) -> None:
    done = program.check(f'leese = "3s"\n\n[databases.orders]\nurl = "dbname=d"\npassword = {SECRET}"\n')
    assert done.returncode == 2
    assert "relay.toml:5: invalid TOML" in done.stderr
    done = program.check('leese = "3s"\n\n[databases.orders]\npol_min = "1s"\n')
    assert done.returncode == 2
    assert 'relay.toml:1: unknown key "leese"\nHINT:  Did you mean "lease"?' in done.stderr
    assert 'relay.toml:4: unknown key "pol_min"\nHINT:  Did you mean "poll_min"?' in done.stderr
    assert '"url" is required' in done.stderr
    assert SECRET not in done.stderr


# -------------------------------------------------------------------------------------------------
# --check
# -------------------------------------------------------------------------------------------------


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()


def test_check_of_a_destination_that_works_and_one_that_does_not(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("good", receiver.url(), relay="external")
    database.add_destination("inside", receiver.url())
    toml = section(database)
    done = program.check(toml)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = lines_of(done)
    assert lines[0].startswith("ok    orders  connection  PostgreSQL ")
    assert lines[0].endswith(", role postgres, direct")
    assert re.fullmatch(r"ok    orders  pg_outbox  \d+\.\d+\.\d+, native edition", lines[1])
    assert lines[2] == "ok    orders  destinations  1 to serve"
    assert f"ok    orders.good  options  {receiver.url()}" in lines
    assert not [line for line in lines if "inside" in line or not line.startswith("ok ")]
    assert receiver.requests == [], "a check sends no event"

    receiver.refuse_connections()
    done = program.check(toml)
    assert done.returncode == 1
    assert [line for line in lines_of(done) if line.startswith("FAIL  orders.good  ")], done.stdout

    done = program.check(section(database, destinations='["other-*"]'))
    assert done.returncode == 0
    assert lines_of(done)[-1] == "ok    orders  destinations  0 to serve"


def test_check_in_json(program: Program, database: Database) -> None:
    database.add_destination("d", "null:", relay="external")
    findings = [json.loads(line) for line in lines_of(program.check(section(database), "--log-format", "json"))]
    assert {finding["subject"] for finding in findings} >= {"connection", "pg_outbox", "destinations", "options"}
    assert all(finding["ok"] and finding["database"] == "orders" for finding in findings)
    assert {finding.get("destination") for finding in findings} == {None, "d"}


def test_the_check_names_a_missing_right(program: Program, database: Database) -> None:
    cluster = database.cluster
    database.execute("CREATE ROLE relay_without_right LOGIN")
    try:
        toml = f'[databases.orders]\nurl = "{cluster.conninfo(database.name, "relay_without_right")}"\n'
        done = program.check(toml)
        assert done.returncode == 1
        assert "FAIL  orders  pg_outbox  permission denied" in done.stdout
        assert "SELECT outbox.grant_relay('relay_without_right');" in done.stdout
        done = program.run("--config", program.write(toml), "--once")
        assert done.returncode == 1, done.stderr
        assert "permission denied" in done.stderr
        assert "outbox.grant_relay() gives the role its rights" in done.stderr
        database.execute("SELECT outbox.grant_relay('relay_without_right')")
        done = program.check(toml)
        assert done.returncode == 0, done.stdout
    finally:
        database.execute("DROP OWNED BY relay_without_right")
        database.execute("DROP ROLE relay_without_right")


def test_a_standby_is_named(program: Program, make_cluster: MakeCluster) -> None:
    primary = make_cluster()
    database = create_database(primary)
    standby = primary.make_standby().start()
    try:
        copy = Database(standby, database.name)
        wait_until(lambda: copy.value("SELECT outbox.version()"), what="the standby to have pg_outbox",
                   ignoring=(psycopg.Error,))  # fmt: skip
        done = program.check(section(copy))
        assert done.returncode == 1
        assert "FAIL  orders  connection  the server is a standby" in done.stdout
        assert "target_session_attrs=read-write" in done.stdout
        done = program.run("--config", program.write(section(copy)), "--once")
        assert done.returncode == 1 and "the server is a standby" in done.stderr
    finally:
        standby.destroy()


@pytest.mark.worker_errors(r'extension "pg_outbox" is of version')
def test_a_database_of_another_version_is_left_alone(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    ids = database.enqueue()
    version = database.value("SELECT outbox.version()")
    installed = "UPDATE pg_extension SET extversion = %s WHERE extname = 'pg_outbox'"
    database.execute(installed, ("9.9.0",))
    problem = f"pg_outbox in the database is of version 9.9.0, outbox-relay of version {version}"
    done = program.check(section(database))
    assert done.returncode == 1 and f"FAIL  orders  pg_outbox  {problem}" in done.stdout, done.stdout
    done = program.run("--config", program.write(section(database)), "--once")
    assert done.returncode == 1 and problem in done.stderr, done.stderr
    assert receiver.events() == []
    database.execute(installed, (version,))
    done = program.run("--config", program.write(section(database)), "--once")
    assert done.returncode == 0, done.stderr
    assert [event.id for event in receiver.events()] == ids


def test_check_of_databases_that_cannot_be_used(program: Program, new_database: NewDatabase) -> None:
    empty = new_database(extension=False)
    other = section(empty, "gone").replace(empty.name, "no_such_database")
    done = program.check(section(empty, "empty") + other)
    assert done.returncode == 1
    assert "FAIL  empty  pg_outbox  " in done.stdout
    assert "(pg_outbox is missing in this database, or older than outbox-relay.)" in done.stdout
    assert "FAIL  gone  connection  connection to server" in done.stdout
    assert 'database "no_such_database" does not exist' in done.stdout


def test_credentials_come_from_variables_and_files(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    program.write(f"{SECRET}\n", "token")
    for value in ('{ env = "TOKEN" }', '{ file = "token" }', f'"{SECRET}"'):
        toml = section(database) + f'[credentials.d]\ntoken = {value}\nurls = ["*"]\n'
        done = program.check(toml, TOKEN=SECRET)
        assert done.returncode == 0, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr

    done = program.check(section(database) + '[credentials.d]\ntoken = { env = "TOKEN" }\nurls = ["*"]\n')
    assert done.returncode == 2
    assert 'environment variable "TOKEN" for "token" is not set' in done.stderr

    # Credentials for any URL, without saying so, and for another URL.
    done = program.check(section(database) + f'[credentials.d]\ntoken = "{SECRET}"\n')
    assert done.returncode == 2 and '"urls" is required' in done.stderr and SECRET not in done.stderr
    done = program.check(section(database) + f'[credentials.d]\ntoken = "{SECRET}"\nurls = ["https://h/*"]\n')
    assert done.returncode == 1
    assert 'FAIL  orders.d  options  permission denied for credentials "d"' in done.stdout


def test_expressions_are_checked(program: Program, database: Database, receiver: Receiver, http: None) -> None:
    database.execute(
        "CREATE FUNCTION wanted(key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN key = 'a'"
    )
    database.add_destination("d", receiver.url(), relay="external", filter="public.wanted(aggregate_id)")
    database.add_destination("plain", receiver.url(), relay="external")
    done = program.check(section(database))
    assert "d  expressions  they can be evaluated" in done.stdout
    assert "plain  expressions" not in done.stdout
    database.execute("DROP FUNCTION wanted(text)")
    done = program.check(section(database))
    assert done.returncode == 1
    assert "d  expressions  function public.wanted(text) does not exist" in done.stdout


def test_a_password_reaches_the_server_and_no_message(program: Program, make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(started=False)
    hba = cluster.data / "pg_hba.conf"
    hba.write_text(
        "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    cluster.start()
    cluster.execute("CREATE EXTENSION pg_outbox")
    cluster.execute(f"CREATE ROLE relay LOGIN PASSWORD '{SECRET}'")
    cluster.execute("SELECT outbox.grant_relay('relay')")
    place = f"127.0.0.1:{cluster.port}/postgres"
    program.write(SECRET + "\n", "password")
    pgpass = program.write(f"*:*:*:relay:{SECRET}\n", "pgpass")
    os.chmod(pgpass, 0o600)

    file = f'[databases.orders]\nurl = "postgresql://relay@{place}"\n'
    for toml, variables in [
        (file + 'password = { file = "password" }\n', {}),
        (file + 'password = { env = "DB_PASSWORD" }\n', {"DB_PASSWORD": SECRET}),
        (file, {"PGPASSFILE": pgpass}),
        (file.replace("relay@", f"relay:{SECRET}@"), {}),
    ]:
        done = program.check(toml, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    done = program.run("--check", OUTBOX_DATABASE_URL=f"postgresql://relay@{place}", OUTBOX_DATABASE_PASSWORD=SECRET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    database  connection" in done.stdout

    wrong = program.check(file + f'password = "{SECRET}x"\n')
    assert wrong.returncode == 1
    assert "password authentication failed" in wrong.stdout
    assert SECRET not in wrong.stdout + wrong.stderr


def test_a_service_goes_before_the_environment(program: Program, database: Database) -> None:
    cluster = database.cluster
    services = program.write(f"[orders]\nhost=127.0.0.1\nport={cluster.port}\nuser=postgres\n", "pg_service.conf")
    variables = {"PGSERVICEFILE": services, "PGHOST": "127.0.0.2", "PGPORT": "1", "PGUSER": "nobody"}
    toml = f'[databases.orders]\nurl = "postgresql:///{database.name}?service={{}}"\ntrusted = true\n'
    done = program.check(toml.format("orders"), **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    done = program.check(toml.format("stock"), **variables)
    assert done.returncode == 2 and 'definition of service "stock" not found' in done.stderr, done.stderr


def test_the_environment_completes_the_url(program: Program, database: Database) -> None:
    """PGDATABASE does not make the URL, with its password, the name of a database."""
    cluster = database.cluster
    url = f"postgresql://no_such_role:{SECRET}@127.0.0.1:{cluster.port}/{database.name}"
    toml = program.write(f'[databases.orders]\nurl = "{url}"\n')
    variables = {"PGDATABASE": "postgres", "PGHOST": "127.0.0.2"}
    for arguments in (["--check"], ["--once"]):
        done = program.run("--config", toml, *arguments, **variables)
        assert done.returncode == 1
        assert 'role "no_such_role" does not exist' in done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
    assert SECRET not in cluster.log_since(cluster.test_began)

    place = f"postgresql://postgres:{SECRET}@127.0.0.1/"
    toml = program.write(f'[databases.orders]\nurl = "{place}"\ntrusted = true\n')
    done = program.run("--config", toml, "--once", PGDATABASE=database.name, PGPORT=str(cluster.port))
    assert done.returncode == 0, done.stderr


def test_credentials_are_used_and_not_shown(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), relay="external", retry_max="1s")
    receiver.on(lambda request: True, answer(500, body=f"no {SECRET} here".encode()), times=3)
    program.write(f"{SECRET}\n", "token")
    toml = section(database) + f'[credentials.d]\ntoken = {{ file = "token" }}\nurls = ["{receiver.url()}*"]\n'
    process = program.start("--config", program.write(toml), "--listen", "127.0.0.1:0", "--log-level", "debug")
    port = port_of(program)
    database.enqueue("a")
    shown = wait_until(lambda: get(port, "/status")[1], lambda text: '"published":1,' in text, what="a delivery")
    assert {request.headers["authorization"] for request in receiver.requests} == {f"Bearer {SECRET}"}
    shown += get(port, "/metrics")[1] + get(port, "/readyz")[1] + str(database.status("d"))
    process.terminate()
    assert process.wait(timeout=180) == 0
    assert SECRET not in shown + program.log()
    assert SECRET not in str(database.execute("SELECT * FROM outbox.relay_status"))


def test_credentials_for_another_url_are_not_used(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    toml = section(database) + f'[credentials.d]\ntoken = "{SECRET}"\nurls = ["https://search.example.com/*"]\n'
    program.start("--config", program.write(toml), "--listen", "127.0.0.1:0")
    port = port_of(program)
    database.enqueue("a")
    status = wait_until(lambda: get(port, "/status")[1], lambda text: "misconfigured" in text, what="the refusal")
    assert "permission denied for credentials" in status
    assert receiver.requests == []


def sql_edition(installation: Installation, new_database: NewDatabase) -> Database:
    database = new_database(extension=False)
    psql = [str(installation.bin_directory / "psql"), "-qX", "-d", database.cluster.conninfo(database.name)]
    subprocess.run([*psql, "-f", str(installation.build / "sql/pg_outbox--sql.sql")], check=True, capture_output=True)
    database.execute("INSERT INTO outbox.setting VALUES ('allowed_hosts', '127.0.0.1')")
    return database


def test_the_sql_edition_signs_for_endpoints(
    program: Program, installation: Installation, new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    database = sql_edition(installation, new_database)
    database.execute("INSERT INTO outbox.destination_config VALUES ('hooks', %s)", (json.dumps({"url": "endpoints:"}),))
    database.execute(
        "INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'acme', %s)", (receiver.url("/acme"),)
    )
    master = b"m" * 32
    toml = section(database) + f'[credentials.hooks]\nsigning_secret = "whsec_{base64.b64encode(master).decode()}"\n'
    toml += 'urls = ["endpoints:"]\n'
    program.start("--config", program.write(toml), "--listen", "127.0.0.1:0")
    port_of(program)
    database.execute("SELECT outbox.enqueue('item', 'a', 'Changed', '{}', version => 1)")
    wait_until(lambda: receiver.versions("a"), lambda seen: seen == [1], what="an event")
    (request,) = receiver.requests
    secret = hmac.digest(master, b"acme", "sha256")
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_the_sql_edition_names_its_credentials(
    program: Program, installation: Installation, new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    database = sql_edition(installation, new_database)
    for name, options in [
        ("d", {"url": receiver.url(), "credentials": "search"}),
        ("unknown", {"url": receiver.url(), "credentials": "none"}),
        ("misspelt", {"url": receiver.url(), "batch_size": "many"}),
    ]:
        database.execute("INSERT INTO outbox.destination_config VALUES (%s, %s)", (name, json.dumps(options)))

    toml = section(database) + f'[credentials.search]\ntoken = "{SECRET}"\nurls = ["http://*"]\n'
    done = program.check(toml)
    assert done.returncode == 1
    assert ", sql edition" in lines_of(done)[1]
    failed = [line for line in lines_of(done) if line.startswith("FAIL")]
    assert [line.split("  ")[1:4] for line in failed] == [
        ["orders.misspelt", "options", 'invalid value for option "batch_size" (Write a number from 1 to 10000.)'],
        ["orders.unknown", "options", 'there are no credentials "none" (Write [credentials.none] in relay.toml.)'],
    ]  # fmt: skip

    elsewhere = program.check(toml.replace("[cred", 'allowed_hosts = "example.com"\n[cred'))
    assert "FAIL  orders.d  address  address 127.0.0.1 of host" in elsewhere.stdout

    program.start("--config", program.write(toml), "--listen", "127.0.0.1:0")
    port = port_of(program)
    database.execute("SELECT outbox.enqueue('item', 'a', 'Changed', '{}', version => 1)")
    wait_until(lambda: receiver.versions("a"), lambda seen: seen == [1], what="an event")
    assert receiver.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    states = wait_until(
        lambda: {one["name"]: one["state"] for one in json.loads(get(port, "/status")[1])["databases"][0]["destinations"]},
        lambda seen: "starting" not in seen.values() and "elsewhere" not in seen.values() and len(seen) == 3,
        what="the states of all destinations",
    )  # fmt: skip
    assert states["misspelt"] == states["unknown"] == "misconfigured"


# -------------------------------------------------------------------------------------------------
# A pooler
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def pooler(shared_cluster: Cluster) -> Iterator[int]:
    """The port of a PgBouncer in front of the server, which gives its sessions to transactions."""
    if PGBOUNCER is None:
        pytest.skip("NOT TESTED: pgbouncer is not installed")
    made = Pooler(shared_cluster)
    yield made.port
    made.close()


def test_the_check_notices_a_pooler(
    program: Program, database: Database, receiver: Receiver, http: None, pooler: int
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    toml = f'[databases.orders]\nurl = "postgresql://postgres@127.0.0.1:{pooler}/{database.name}"\ntrusted = true\n'
    done = program.check(toml)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines_of(done)[0].endswith(", role postgres, through a pooler")

    process = program.start("--config", program.write(toml), "--listen", "127.0.0.1:0")
    port = port_of(program)
    wait_until(lambda: get(port, "/readyz")[0], lambda code: code == 200, what="the process to be ready")
    assert '"pooled":true' in get(port, "/status")[1]
    assert database.value("SELECT direct FROM outbox.relay") is False
    database.enqueue("a", 3)
    wait_until(lambda: receiver.versions("a"), lambda seen: seen == [1, 2, 3], what="3 events")
    process.terminate()
    assert process.wait(timeout=180) == 0
    assert database.value("SELECT count(*) FROM outbox.relay") == 0


# -------------------------------------------------------------------------------------------------
# The HTTP port and logs
# -------------------------------------------------------------------------------------------------


def port_of(program: Program) -> int:
    found = wait_until(lambda: re.search(r"listening on port (\d+)", program.log()), what="the port in the log")
    assert found is not None
    return int(found[1])


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_http_port_of_a_process_that_serves(
    program: Program, database: Database, receiver: Receiver, http: None
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    process = program.start(
        "--config", program.write(section(database)), "--listen", "127.0.0.1:0", "--name", "relay-1"
    )
    port = port_of(program)
    wait_until(lambda: get(port, "/readyz"), lambda answer: answer == (200, "ok\n"), what="the process to be ready")
    assert get(port, "/healthz") == (200, "ok\n")
    database.enqueue("a", 3)

    def status() -> Any:
        return json.loads(get(port, "/status")[1])

    served = wait_until(
        lambda: status()["databases"][0]["destinations"],
        lambda seen: seen and seen[0].get("published") == 3, what="3 events in /status",
    )  # fmt: skip
    assert served[0]["name"] == "d" and served[0]["held"]
    assert status()["name"] == "relay-1"
    code, metrics = get(port, "/metrics")
    assert code == 200
    assert metrics.endswith("# EOF\n")
    assert 'outbox_published_total{database="orders",destination="d"} 3\n' in metrics
    assert 'outbox_relay_lease_held{database="orders",destination="d"} 1\n' in metrics
    assert get(port, "/")[0] == 404
    assert assert_threads_block_signals(process.pid) >= 2
    process.terminate()
    assert process.wait(timeout=180) == 0


def test_a_process_without_its_database_is_alive_and_not_ready(program: Program) -> None:
    program.start("--listen", "127.0.0.1:0", OUTBOX_DATABASE_URL=f"postgresql://me:{SECRET}@127.0.0.1:1/d")
    port = port_of(program)
    code, reason = wait_until(lambda: get(port, "/readyz"), lambda answer: "database: " in answer[1], what="the reason")
    assert code == 503
    assert get(port, "/healthz")[0] == 200
    assert SECRET not in reason + get(port, "/status")[1] + program.log()


def test_a_port_in_use_is_reported(program: Program, database: Database) -> None:
    config = program.write(section(database))
    program.start("--config", config, "--listen", "127.0.0.1:0")
    port = port_of(program)
    second = program.run("--config", config, "--listen", f"127.0.0.1:{port}")
    assert second.returncode == 1
    assert f'could not listen on "127.0.0.1", port {port}' in second.stderr


def test_logs_in_json(program: Program, database: Database, receiver: Receiver, http: None) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    done = program.run("--config", program.write(section(database)), "--once", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert {"database": "orders", "destination": "d"}.items() <= next(
        line for line in lines if line.get("destination")
    ).items()


def test_the_end_of_a_session_leaves_no_line_of_libpq_in_the_log(program: Program, database: Database) -> None:
    """It would have no time and no database, and would not be JSON."""
    database.add_destination("d", "null:", relay="external")
    program.start("--config", program.write(section(database)), "--log-format", "json", "--log-level", "debug")
    ended: set[int] = set()
    sessions = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox-relay%'"
    )
    for _ in range(5):
        pids = wait_until(
            lambda: {pid for (pid,) in database.execute(sessions)} - ended, what="another session of the relay"
        )
        database.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", (list(pids),))
        ended |= pids
    wait_until(program.log, lambda text: "terminating connection" in text, what="a line about it")
    for line in program.log().splitlines():
        json.loads(line)
