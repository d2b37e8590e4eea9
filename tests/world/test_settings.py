"""Settings are ours, and the environment is theirs: events arrive and are applied under every default of a database or a
role, and whatever the environment of a program says about libpq.

A new setting is a line of HOSTILE, a new variable one of VARIABLES. The short run takes all settings together, and all
variables; the long run takes each setting by itself, to say which one it is.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from client.consumer import SETUP, Consumer
from cluster import SQL_EDITION, Cluster, Installation
from database import EDITION_OWNER, EDITION_RELAY, MONITOR, SENDER, Database, NewDatabase, end_relay
from long_run import all_in_long_run
from outbox_relay import OutboxRelay, Wire
from waiting import wait_until

HOSTILE = {
    "statements are cancelled": {"statement_timeout": "1ms"},
    "locks are not waited for": {"lock_timeout": "1ms"},
    "idle sessions end": {"idle_session_timeout": "50ms", "idle_in_transaction_session_timeout": "1ms"},
    "read-only": {"default_transaction_read_only": "on"},
    "serializable": {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    "another role": {"role": "nobody_of_settings"},
    "no path": {"search_path": "evil_of_settings"},
    "names are quoted": {"quote_all_identifiers": "on"},
    "backslashes escape": {"standard_conforming_strings": "off", "backslash_quote": "off", "escape_string_warning": "on"},
    "dates": {"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "TimeZone": "Antarctica/Troll"},
    "values": {"extra_float_digits": "-15", "bytea_output": "escape", "xmloption": "document", "array_nulls": "off",
               "transform_null_equals": "on"},
    "encoding": {"client_encoding": "LATIN1", "client_min_messages": "debug1"},
    "plans": {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_indexscan": "off",
              "enable_nestloop": "off", "work_mem": "64kB"},
    "code is compiled": {"jit_above_cost": "0", "jit_inline_above_cost": "0", "jit_optimize_above_cost": "0"},
    "policies": {"row_security": "off"},
    "checks": {"check_function_bodies": "on", "plpgsql.extra_errors": "all", "xmlbinary": "hex"},
    "durability": {"synchronous_commit": "off"},
}  # fmt: skip
# A person cannot work under these either, and sets others for sessions of their own: the session of the test, and
# handlers of the C++ client. There those of the connection string win.
OF_PEOPLE = ("-c statement_timeout=180s -c lock_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0 "
             "-c default_transaction_read_only=off -c role=none -c search_path=public -c jit=off")  # fmt: skip
OF_HANDLERS = "-c statement_timeout=180s -c lock_timeout=0 -c role=none -c search_path=public"

RELAY, CLIENT = EDITION_RELAY if SQL_EDITION else "relay_of_settings", "client_of_settings"
ROLES = (RELAY, CLIENT, SENDER, *([EDITION_OWNER] if SQL_EDITION else []))
# Consumers with processors in the server. Without its library there are none, and events of the destination `outside`
# are only taken from the log.
PROCESSED = () if SQL_EDITION else ("inside", "outside")
EVENT = "SELECT count(*) FROM {} WHERE version = %s"


class Place(Database):
    """A database under settings that nobody can work with. The session of the test has its own."""

    def __init__(self, cluster: Cluster, name: str, settings: dict[str, str], level: str) -> None:
        super().__init__(cluster, name)
        for role in (*ROLES, "nobody_of_settings"):
            if not self.value("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)):
                self.execute(f"CREATE ROLE {role} LOGIN")
        self.execute(f"GRANT nobody_of_settings TO {', '.join(ROLES)}; GRANT ALL ON DATABASE {name} TO {RELAY}")
        whose = (
            [f"DATABASE {name}"] if level == "database"
            else [f"ROLE {role} IN DATABASE {name}" for role in ("postgres", *ROLES)]
        )  # fmt: skip
        for setting, value in settings.items():
            if setting == "search_path":
                self.execute(f"CREATE SCHEMA {value}")
            for one in whose:
                self.execute(f"ALTER {one} SET {setting} = {value if ',' in value else repr(value)}")
        self.disconnect()

    def conninfo(self, user: str, options: str = "") -> str:
        return (
            f"host={self.cluster.directory} port={self.cluster.port} user={user} dbname={self.name} options='{options}'"
        )

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.conninfo("postgres", OF_PEOPLE), autocommit=True, client_encoding="utf8")

    def wait_for_event(self, table: str, version: int) -> None:
        wait_until(
            lambda: self.value(EVENT.format(table), (version,)), lambda seen: seen == 1, what=f"an event in {table}"
        )


# -------------------------------------------------------------------------------------------------
# All that is ours
# -------------------------------------------------------------------------------------------------

HANDLER = """
    CREATE TABLE public.{0} (version bigint);
    CREATE FUNCTION public.{0}(event inbox.message) RETURNS void LANGUAGE sql
        AS 'INSERT INTO public.{0} VALUES (event.version)';
    SELECT inbox.subscribe('{0}', '*', 'public.{0}')"""


def prepare(place: Place) -> None:
    if not SQL_EDITION:
        place.execute("CREATE EXTENSION pg_outbox")
    place.execute("CREATE EXTENSION pg_inbox")
    place.execute(SETUP)
    for consumer in PROCESSED:
        place.execute(HANDLER.format(consumer))
        url = place.inbox_url(f"127.0.0.1:{place.cluster.port}")
        place.add_destination(
            consumer, url, consumer=consumer, **({"relay": "external"} if consumer == "outside" else {})
        )
    place.add_destination("fetched", "pull:")
    if SQL_EDITION:
        place.add_destination("outside", "null:")
        place.execute(f"SELECT outbox.grant_fetch('{CLIENT}', 'fetched')")
    else:
        place.execute(f"SELECT outbox.grant_fetch('{CLIENT}'); GRANT USAGE ON FOREIGN SERVER fetched TO {CLIENT}")
    place.execute(
        f"""SELECT outbox.grant_relay('{RELAY}'), inbox.grant_consume('{CLIENT}');
            GRANT ALL ON ALL TABLES IN SCHEMA public TO {CLIENT}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {CLIENT};
            CREATE TABLE public.captured (id int PRIMARY KEY, version bigint NOT NULL, "Ü b" text, at timestamptz DEFAULT now());
            SELECT outbox.capture('public.captured', version => 'version')"""
    )


@contextmanager
def programs(place: Place, installation: Installation) -> Iterator[None]:
    end_relay(place.cluster, place.name)  # which may have another environment
    relay = OutboxRelay(place.cluster, place.name, options='lease = "5s"', user=RELAY)
    consumer = Consumer(
        installation, place.conninfo(CLIENT, OF_HANDLERS),
        {"pull": place.conninfo(CLIENT, "-c role=none"), "destination": "fetched", "housekeeping_interval": 50},
    )  # fmt: skip
    try:
        relay.start()
        yield
    finally:
        consumer.kill()
        relay.close()


def check_that_all_arrives(place: Place) -> None:
    """From a trigger and from a call, by way of a worker, outbox-relay and the client, to handlers in SQL."""
    place.execute("INSERT INTO public.captured VALUES (1, 1, E'\\\\')")
    place.execute("UPDATE public.captured SET version = 2")
    place.enqueue(first=3)
    for version in (1, 2, 3):
        for table in (*PROCESSED, "applied"):
            place.wait_for_event(table, version)
    wait_until(
        lambda: place.published("outside"), lambda seen: seen and seen >= 3, what="three events delivered outside"
    )


def outboxctl(installation: Installation, conninfo: str, *arguments: str) -> str:
    program = str(installation.build / "tools/outboxctl/outboxctl")
    done = subprocess.run([program, "-d", conninfo, *arguments], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def operate(place: Place, installation: Installation) -> None:
    place.monitor("operate")
    conninfo = place.conninfo(MONITOR)
    status = json.loads(outboxctl(installation, conninfo, "status", "--json"))
    assert {row["destination"] for row in status} >= {*PROCESSED, "outside"}
    outboxctl(installation, conninfo, "pause", "outside")
    outboxctl(installation, conninfo, "resume", "outside")
    assert all(consumer in outboxctl(installation, conninfo, "inbox", "status") for consumer in PROCESSED)


# -------------------------------------------------------------------------------------------------
# Settings
# -------------------------------------------------------------------------------------------------

TOGETHER = {"all together": {setting: value for settings in HOSTILE.values() for setting, value in settings.items()}}


@pytest.mark.parametrize("level", all_in_long_run(["database", "role"], short=["role"]))
@pytest.mark.parametrize("name", all_in_long_run([*TOGETHER, *HOSTILE], short=[*TOGETHER]))
def test_settings_of_others_stop_nothing(
    shared_cluster: Cluster, new_database: NewDatabase, installation: Installation, name: str, level: str
) -> None:
    place = Place(shared_cluster, new_database(extension=SQL_EDITION).name, {**HOSTILE, **TOGETHER}[name], level)
    prepare(place)
    with programs(place, installation):
        check_that_all_arrives(place)
        operate(place, installation)


class LateGreeting(Wire):
    """Passes on what the server sends over the first connection when the server has ended it, because it was idle."""

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        if source is self.sockets[1]:
            greeting = b""
            while b"57P05" not in greeting and (more := source.recv(65536)):
                greeting += more
            target.sendall(greeting)
        super()._pass(source, target)


class SlowBeginning(Wire):
    """Over the first connection, the statement that takes the time limit away waits instead."""

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        if source is self.sockets[0]:
            beginning, sent = b"SET LOCAL statement_timeout = 0; ", b""
            while beginning not in sent and (more := source.recv(65536)):
                sent += more
                if beginning not in sent and b"SET LOCAL" not in sent:
                    target.sendall(sent)
                    sent = b""
            target.sendall(sent.replace(beginning, b"SELECT pg_sleep(60);".ljust(len(beginning))))
        super()._pass(source, target)


@pytest.mark.parametrize(
    ("limit", "kind"), [("idle_session_timeout", LateGreeting), ("statement_timeout", SlowBeginning)]
)
def test_a_session_that_ends_before_its_first_statement_is_begun_again(
    new_database: NewDatabase, installation: Installation, limit: str, kind: type[Wire]
) -> None:
    database = new_database()
    database.monitor()
    database.execute(f"ALTER ROLE {MONITOR} IN DATABASE {database.name} SET {limit} = '1ms'")
    wire = kind(database.cluster.port)
    conninfo = (
        f"host=127.0.0.1 port={wire.port} user={MONITOR} dbname={database.name} sslmode=disable gssencmode=disable"
    )
    try:
        outboxctl(installation, conninfo, "status")
        assert len(wire.sockets) == 4, "the first connection was not ended"
    finally:
        wire.close()


# -------------------------------------------------------------------------------------------------
# The environment
# -------------------------------------------------------------------------------------------------

# The connection strings of the programs say the same, or the programs set it themselves.
VARIABLES = {
    "PGHOST": "127.0.0.2", "PGPORT": "1", "PGUSER": "nobody_of_settings", "PGDATABASE": "nowhere", "PGPASSWORD": "no",
    "PGSERVICE": "elsewhere",
    "PGOPTIONS": "-c default_transaction_isolation=serializable -c DateStyle=German -c quote_all_identifiers=on",
    "PGCLIENTENCODING": "LATIN1", "PGTZ": "Antarctica/Troll", "PGDATESTYLE": "German", "PGGEQO": "off",
    "PGAPPNAME": "a'b", "PGCONNECT_TIMEOUT": "30", "PGTARGETSESSIONATTRS": "any", "PGSSLMODE": "allow",
    "PGGSSENCMODE": "disable", "PGPASSFILE": "/nowhere", "PGSYSCONFDIR": "/nowhere", "PGLOCALEDIR": "/nowhere",
}  # fmt: skip
AT_ONCE = {"all at once": VARIABLES}


@pytest.mark.parametrize("name", all_in_long_run([*AT_ONCE, *VARIABLES], short=[*AT_ONCE]))
def test_the_environment_of_programs_stops_nothing(
    shared_cluster: Cluster, new_database: NewDatabase, installation: Installation, name: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """test_peers_postgresql.py has the environment of the server."""
    place = Place(shared_cluster, new_database(extension=SQL_EDITION).name, {}, "database")
    prepare(place)
    services = tmp_path / "services"
    services.write_text("[elsewhere]\nhost=127.0.0.3\nport=1\ndbname=nowhere\nuser=nobody\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    for variable, value in AT_ONCE.get(name, {name: VARIABLES.get(name, "")}).items():
        monkeypatch.setenv(variable, value)
    with programs(place, installation):
        check_that_all_arrives(place)
        operate(place, installation)
