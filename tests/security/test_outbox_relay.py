"""outbox-relay and a database whose owner replaces the functions that it asks: what the database says about files and
identities of the relay's machine, and about hosts, is a claim. relay.toml decides."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation
from database import EDITION_RELAY, Database, NewDatabase
from outbox_relay import OutboxRelay
from receiver import Receiver
from waiting import wait_until

from .attacker import NewRole

# The owner of the destinations is a superuser, and may read files of the server.
FORGED_DESTINATIONS = """
CREATE OR REPLACE FUNCTION outbox_internal.relay_destinations()
RETURNS TABLE (number integer, name text, owner text, password_required boolean, may_read_files boolean,
               options text[], mapping_options text[], patterns text[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.number, 's'::text, 'postgres'::text, false, true, {options}::text[], {mapping}::text[], ARRAY['%']
      FROM outbox.cursor AS c WHERE c.destination = 's'
$$"""

FORGED_HOSTS = """
CREATE OR REPLACE FUNCTION outbox_internal.relay_settings() RETURNS TABLE (name text, value text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT name, CASE name WHEN 'allowed_hosts' THEN 'default, 127.0.0.1, localhost' ELSE value END
      FROM outbox_internal.honest_settings()
$$"""

StartRelay = Callable[..., OutboxRelay]


def literal(texts: list[str]) -> str:
    return "ARRAY[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


class HostileDatabase:
    def __init__(self, database: Database) -> None:
        self.database = database

    def claims(self, url: str, *mapping: str) -> None:
        """Makes the destination `s` with this URL and this user mapping, and an event for it."""
        options = {"url": "null:"}
        self.database.execute("INSERT INTO outbox.destination_config VALUES ('s', %s)", (json.dumps(options),))
        forged = FORGED_DESTINATIONS.format(options=literal([f"url={url}"]), mapping=literal(list(mapping)))
        self.database.execute(forged)
        self.database.execute("ALTER FUNCTION outbox_internal.relay_settings() RENAME TO honest_settings")
        self.database.execute(FORGED_HOSTS)
        self.database.execute("SELECT outbox.enqueue('item', 'a', 'Changed', '{}', version => 1)")


@pytest.fixture
def hostile(installation: Installation, new_database: NewDatabase) -> HostileDatabase:
    database = new_database(extension=False)
    psql = [str(installation.bin_directory / "psql"), "-qX", "-d", database.cluster.conninfo(database.name)]
    subprocess.run([*psql, "-f", str(installation.build / "sql/pg_outbox--sql.sql")], check=True, capture_output=True)
    if not database.value("SELECT 1 FROM pg_roles WHERE rolname = %s", (EDITION_RELAY,)):
        database.execute(f"CREATE ROLE {EDITION_RELAY} LOGIN")
    database.execute(f"SELECT outbox.grant_relay('{EDITION_RELAY}')")
    return HostileDatabase(database)


@pytest.fixture
def start_relay(hostile: HostileDatabase) -> Iterator[StartRelay]:
    made: list[OutboxRelay] = []

    def start(
        *, trusted: bool = False, of_database: str = "", arguments: tuple[str, ...] = (), user: str = EDITION_RELAY
    ) -> OutboxRelay:
        database = hostile.database
        made.append(
            OutboxRelay(
                database.cluster, database.name, trusted=trusted, of_database=of_database, arguments=arguments, user=user
            )
        )  # fmt: skip
        return made[-1].start()

    yield start
    for relay in made:
        relay.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """The key of a service account of the machine."""
    pem, path = tmp_path / "key.pem", tmp_path / "sa.json"
    subprocess.run(["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-out", pem], check=True)
    account = {
        "type": "service_account",
        "private_key_id": "k1",
        "private_key": pem.read_text(),
        "client_email": "relay@company.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    path.write_text(json.dumps(account))
    return path


HOSTS = 'allowed_hosts = "127.0.0.1"'
NOT_TRUSTED = "outbox-relay does not trust the database"


def assert_refuses(relay: OutboxRelay, text: str) -> None:
    wait_until(relay.text, lambda log: text in log, what=f"{text!r} in the log")
    assert relay.end() == 0


@pytest.mark.parametrize("kind", ["key file", "identity at Google", "identity at Amazon"])
def test_a_database_gets_neither_files_nor_the_identity_of_the_machine(
    hostile: HostileDatabase, start_relay: StartRelay, receiver: Receiver, key_file: Path, kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEMACHINE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-the-machine")
    scheme = "sqs://eu-west-1" if "Amazon" in kind else "pubsub://company"
    mapping = [f"key_file={key_file}"] if kind == "key file" else []
    hostile.claims(f"{scheme}?endpoint=http://127.0.0.1:{receiver.port}", *mapping)

    checked = start_relay(of_database=HOSTS, arguments=("--check",))
    assert checked.wait() == 1
    (line,) = [line for line in checked.text().splitlines() if NOT_TRUSTED in line]
    assert "write trusted = true in [databases." in line
    assert_refuses(start_relay(of_database=HOSTS), NOT_TRUSTED)
    assert not receiver.requests

    # It is for relay.toml to give. A receiver gets the token then.
    start_relay(trusted=True, of_database=HOSTS)
    (request, *_) = wait_until(lambda: receiver.requests, what="a request")
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256" if "Amazon" in kind else "Bearer ey")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/", "http://localhost:{}/", "http://[::ffff:127.0.0.1]:{}/"])
def test_a_database_cannot_widen_the_hosts(
    hostile: HostileDatabase, start_relay: StartRelay, receiver: Receiver, http: None, url: str
) -> None:
    hostile.claims(url.format(receiver.port))
    checked = start_relay(arguments=("--check",))
    assert checked.wait() == 1
    (line,) = [line for line in checked.text().splitlines() if line.startswith("FAIL")]
    assert "is not allowed; set allowed_hosts in [databases." in line
    assert_refuses(start_relay(), "is not allowed")
    assert_refuses(start_relay(trusted=True, of_database='allowed_hosts = "example.com"'), "is not allowed; add")
    assert not receiver.connections


def test_a_database_cannot_use_sockets_of_the_machine(hostile: HostileDatabase, start_relay: StartRelay) -> None:
    cluster = hostile.database.cluster
    hostile.claims(f"postgresql:///postgres?host={cluster.directory}&port={cluster.port}", "password=some-password")
    checked = start_relay(arguments=("--check",))
    assert checked.wait() == 1
    assert f'Unix socket "{cluster.directory}" is not allowed; set allowed_hosts in [databases.' in checked.text()


# -------------------------------------------------------------------------------------------------
# Powerful roles
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", ["SUPERUSER", "postgres", "pg_execute_server_program", "pg_write_server_files"])
def test_outbox_relay_never_works_as_a_powerful_role_in_a_database_of_others(
    hostile: HostileDatabase, start_relay: StartRelay, new_role: NewRole, power: str
) -> None:
    """The owner of the database writes the functions that it calls, and their search_path."""
    database = hostile.database
    owner, role = new_role(), new_role("SUPERUSER" if power == "SUPERUSER" else "")
    if power != "SUPERUSER":
        database.execute(f"GRANT {power} TO {role}")
    database.execute(f"""
        GRANT {EDITION_RELAY} TO {role}; ALTER DATABASE {database.name} OWNER TO {owner};
        ALTER FUNCTION outbox_internal.relay_settings() OWNER TO {owner}; GRANT ALL ON SCHEMA outbox_internal TO {owner};
        CREATE SCHEMA trap AUTHORIZATION {owner}; GRANT USAGE ON SCHEMA trap TO PUBLIC""")
    with database.cluster.connect(database.name, user=owner) as mine:
        mine.execute(f"""
            CREATE FUNCTION trap.strike() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
              SET ROLE NONE; ALTER ROLE {owner} SUPERUSER; RETURN true; EXCEPTION WHEN OTHERS THEN RETURN true; END $$;
            CREATE FUNCTION trap.same(name, text) RETURNS boolean LANGUAGE sql AS 'SELECT trap.strike()';
            CREATE OPERATOR trap.= (LEFTARG = name, RIGHTARG = text, FUNCTION = trap.same);
            CREATE FUNCTION trap.same(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT trap.strike()';
            CREATE OPERATOR trap.= (LEFTARG = name, RIGHTARG = name, FUNCTION = trap.same);
            CREATE FUNCTION trap.pg_has_role(name, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT trap.strike()';
            CREATE VIEW trap.pg_roles AS SELECT *, trap.strike() AS struck FROM pg_catalog.pg_roles;
            ALTER DATABASE {database.name} SET search_path = trap, pg_catalog;
            CREATE OR REPLACE FUNCTION outbox_internal.relay_settings() RETURNS TABLE (name text, value text)
            LANGUAGE sql AS 'SELECT trap.strike()::text, NULL::text'""")
    refusal = "and outbox-relay does not trust the database"
    checked = start_relay(user=role, arguments=("--check",))
    assert checked.wait() == 1 and refusal in checked.text()
    assert_refuses(start_relay(user=role), refusal)
    assert not database.value("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (owner,))
    database.execute(f"ALTER DATABASE {database.name} RESET ALL")
    # relay.toml may say that it trusts the owner.
    relay = start_relay(user=role, trusted=True)
    wait_until(relay.text, lambda log: "warning" in log or "connected" in log, what="the relay to go on")
    assert refusal not in relay.text()
