"""A database with pg_outbox, and the actions and queries of tests on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from cluster import SQL_EDITION, Cluster, run
from outbox_relay import OutboxRelay
from waiting import wait_until

# True if outbox-relay serves the destinations, instead of workers of the server. Tests with the mark
# `worker` are left out then.
OUTSIDE = SQL_EDITION or os.environ.get("OUTBOX_TEST_RELAY") == "outside"

# Roles that destinations and outboxctl serve log in as: neither works as a superuser.
SENDER = "inbox_sender"
MONITOR = "figures_monitor"

# Roles that the SQL edition is installed and served by.
EDITION_OWNER = "edition_owner"
EDITION_RELAY = "edition_relay"


def running_relays(cluster: Cluster) -> dict[str, OutboxRelay]:
    """Returns the running relays by database."""
    return cluster.__dict__.setdefault("relays", {})


def end_relay(cluster: Cluster, database: str) -> None:
    relay = running_relays(cluster).pop(database, None)
    if relay is not None:
        relay.close()


class Finding(NamedTuple):
    """A row of outbox.health()."""

    severity: str
    object: str
    what: str
    since: datetime | None
    why: str
    what_to_do: str


@dataclass(frozen=True)
class Worker:
    kind: str  # keeper, relay, processor
    name: str
    pid: int
    state: str


class Database:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self._connection: psycopg.Connection | None = None
        self._connected_to = 0  # number of the server's start

    # ---- connections ----------------------------------------------------------------------------

    def connect(self) -> psycopg.Connection:
        return self.cluster.connect(self.name)

    @property
    def connection(self) -> psycopg.Connection:
        """A connection in autocommit mode, renewed when the server was started again."""
        stale = self._connected_to != self.cluster.starts
        if self._connection is None or self._connection.closed or stale:
            self._connection = self.connect()
            self._connected_to = self.cluster.starts
        return self._connection

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def execute(self, statement: Any, parameters: tuple[object, ...] = ()) -> list[tuple]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: Any, parameters: tuple[object, ...] = ()) -> Any:
        rows = self.execute(statement, parameters)
        return rows[0][0] if rows else None

    # ---- set up ---------------------------------------------------------------------------------

    def create_extension(self) -> None:
        """Or the SQL edition, as a role with no other rights."""
        if not SQL_EDITION:
            self.execute("CREATE EXTENSION pg_outbox")
            return
        for role in (EDITION_OWNER, EDITION_RELAY):
            if not self.value("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)):
                self.execute(f"CREATE ROLE {role} LOGIN")
        self.execute(f"GRANT CREATE ON DATABASE {self.name} TO {EDITION_OWNER}")
        psql = str(self.cluster.installation.bin_directory / "psql")
        script = str(self.cluster.installation.build / "sql/pg_outbox--sql.sql")
        run([psql, "-qX", "-d", self.cluster.conninfo(self.name, EDITION_OWNER), "-f", script])
        self.execute(f"SELECT outbox.grant_relay('{EDITION_RELAY}')")
        self.set_in_database(self.cluster.settings)

    def inbox_url(self, host: str = "") -> str:
        """Returns the URL of the inbox here for a role that may send, and no more. Call it again to grant the right
        if there was no inbox."""
        if not self.value("SELECT 1 FROM pg_roles WHERE rolname = %s", (SENDER,)):
            self.execute(f"CREATE ROLE {SENDER} LOGIN")
        if self.value("SELECT to_regproc('inbox.grant_send') IS NOT NULL"):
            self.execute(f"SELECT inbox.grant_send('{SENDER}')")
        return f"postgresql://{SENDER}@{host}/{self.name}"

    def monitor(self, *rights: str) -> str:
        """Returns a connection string of a role that may monitor both sides, and has further rights on them."""
        if not self.value("SELECT 1 FROM pg_roles WHERE rolname = %s", (MONITOR,)):
            self.execute(f"CREATE ROLE {MONITOR} LOGIN")
        for schema in ("outbox", "inbox"):
            for right in ("monitor", *rights):
                if self.value("SELECT to_regproc(%s) IS NOT NULL", (f"{schema}.grant_{right}",)):
                    self.execute(f"SELECT {schema}.grant_{right}('{MONITOR}')")
        return self.cluster.conninfo(self.name, MONITOR)

    def set_in_database(self, settings: Mapping[str, str]) -> None:
        """Saves those settings that the SQL edition has, where it has them."""
        self.execute(
            "INSERT INTO outbox.setting SELECT d.name, s.value FROM jsonb_each_text(%s) AS s "
            "JOIN outbox_internal.default_settings() AS d ON 'outbox.' || d.name = s.key "
            "ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value", (json.dumps(dict(settings)),),
        )  # fmt: skip

    def configure(self, settings: Mapping[str, str]) -> None:
        """Changes settings of pg_outbox."""
        if SQL_EDITION:
            self.set_in_database(settings)
        else:
            self.cluster.configure(settings)

    def add_destination(self, name: str, url: str, **options: str) -> None:
        if OUTSIDE and not url.startswith("pull:"):
            self.run_relay()
        options = {"url": url, **options}
        if SQL_EDITION:
            self.execute("INSERT INTO outbox.destination_config VALUES (%s, %s)", (name, json.dumps(options)))
            return
        if OUTSIDE and not url.startswith("pull:"):
            options = {"relay": "external", **options}
        pairs = [sql.SQL("{} {}").format(sql.Identifier(key), sql.Literal(value)) for key, value in options.items()]
        self.execute(
            sql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER pg_outbox OPTIONS ({})").format(
                sql.Identifier(name), sql.SQL(", ").join(pairs)
            )
        )

    def change_destination(self, name: str, **options: str | None) -> None:
        """Sets these options; None removes one."""
        if OUTSIDE and not (options.get("url") or "pull:").startswith("pull:"):
            self.run_relay()
        if SQL_EDITION:
            self.execute(
                "UPDATE outbox.destination_config SET options = jsonb_strip_nulls(options || %s) WHERE name = %s",
                (json.dumps(options), name),
            )
            return
        present = {
            option.partition("=")[0]
            for (option,) in self.execute(
                "SELECT unnest(srvoptions) FROM pg_foreign_server WHERE srvname = %s", (name,)
            )
        }
        changes = [
            sql.SQL("DROP {}").format(sql.Identifier(key)) if value is None
            else sql.SQL("{} {} {}").format(sql.SQL("SET" if key in present else "ADD"), sql.Identifier(key), sql.Literal(value))
            for key, value in options.items()
        ]  # fmt: skip
        self.execute(sql.SQL("ALTER SERVER {} OPTIONS ({})").format(sql.Identifier(name), sql.SQL(", ").join(changes)))

    def drop_destination(self, name: str) -> None:
        if SQL_EDITION:
            self.execute("DELETE FROM outbox.destination_config WHERE name = %s", (name,))
        else:
            self.execute(sql.SQL("DROP SERVER {}").format(sql.Identifier(name)))

    def run_relay(self, environment: Mapping[str, str] | None = None) -> None:
        """Runs an outbox-relay for this database, which ends with it."""
        if self.name not in running_relays(self.cluster):
            options = 'lease = "5s"'
            user = EDITION_RELAY if SQL_EDITION else "postgres"
            running_relays(self.cluster)[self.name] = OutboxRelay(
                self.cluster, self.name, options=options, user=user, environment=environment
            ).start()

    def keep(self) -> None:
        """Starts a relay on the SQL edition if no destination has one: without a keeper, a relay maintains the log."""
        if SQL_EDITION:
            self.run_relay()

    def log_of_relay(self) -> str:
        """Returns the lines of the relay since the test began."""
        if OUTSIDE:
            return running_relays(self.cluster)[self.name].text()
        return self.cluster.log_since(self.cluster.test_began)

    def blocks_read(self, statement: str) -> int:
        """Returns the number of blocks that a statement reads, from memory or the disk."""
        plan = self.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {statement}")
        return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

    # ---- events ---------------------------------------------------------------------------------

    def enqueue(self, key: str = "a", count: int = 1, *, first: int = 1, topic: str | None = None) -> list[str]:
        """Enqueues versions `first`, ... of the item `key`, in one transaction; returns the ids."""
        return enqueue(self.connection, key, count, first=first, topic=topic)

    def move_to_segment(self, number: int) -> None:
        """Makes a segment the current one."""
        self.execute("UPDATE outbox.ring SET current = (number = %s)", (number,))
        self.execute("ALTER TABLE outbox.ring RESET (fillfactor)")  # makes sessions read the ring again

    def last_position(self) -> int:
        return self.value("SELECT coalesce(max(position), 0) FROM outbox.event")

    def published(self, destination: str = "d") -> int:
        """Returns events confirmed so far, also to earlier relays."""
        return self.value("SELECT published FROM outbox.status WHERE destination = %s", (destination,))

    def wait_published(self, count: int, destination: str = "d", *, timeout: float = 180) -> None:
        """Waits until the destination has confirmed exactly this number of events."""
        published = wait_until(
            lambda: self.published(destination), lambda seen: seen is not None and seen >= count,
            timeout=timeout, what=f"{count} events delivered to {destination}",
        )  # fmt: skip
        assert published == count

    def wait_settled(self, destination: str = "d", *, timeout: float = 180) -> None:
        """Waits until everything that is in the log now is delivered."""
        last = self.last_position()
        wait_until(
            lambda: self.status(destination),
            lambda status: (status["position"] or 0) >= last and status["in_flight"] == 0,
            timeout=timeout, what=f"position {last} and all before settled at {destination}",
        )  # fmt: skip

    def unsettled(self, destination: str = "d") -> dict[int, str]:
        """Returns positions and ids of the events that the saved cursor has not settled."""
        return dict(self.execute("""
            SELECT e.position, e.event_id::text FROM outbox.event AS e, outbox.cursor AS c
             WHERE c.destination = %s AND NOT pg_visible_in_snapshot(e.xid, c.done)
               AND NOT coalesce(pg_visible_in_snapshot(e.xid, c.upto) AND e.position <= c.position, false)
             ORDER BY e.position""", (destination,)))  # fmt: skip

    def wait_saved(self, destination: str = "d") -> None:
        """Waits until the saved cursor has settled everything: the next relay then repeats nothing."""
        cursors = "SELECT count(*) FROM outbox.cursor WHERE destination = %s"
        wait_until(
            lambda: (self.value(cursors, (destination,)), self.unsettled(destination)), lambda seen: seen == (1, {}),
            what=f"the cursor of {destination} to be saved",
        )  # fmt: skip

    def pause(self, destination: str = "d") -> None:
        """Pauses the destination; returns when its relay sends no later commits."""
        self.execute("SELECT outbox.pause(%s)", (destination,))
        self.wait_for_state("paused", destination)

    def wait_for_state(self, state: str, destination: str = "d") -> None:
        wait_until(
            lambda: self.status(destination)["state"], lambda seen: seen == state,
            what=f"destination {destination} to be {state}",
        )  # fmt: skip

    # ---- workers --------------------------------------------------------------------------------

    def status(self, destination: str = "d") -> dict[str, Any]:
        cursor = self.connection.execute("SELECT * FROM outbox.status WHERE destination = %s", (destination,))
        row = cursor.fetchone()
        assert row is not None, f"no destination {destination} in outbox.status"
        return dict(zip([column.name for column in cursor.description or []], row))

    def health(self) -> list[Finding]:
        return [Finding(*row) for row in self.execute("SELECT * FROM outbox.health()")]

    def workers(self) -> list[Worker]:
        rows = self.execute("SELECT kind, name, pid, state FROM outbox.workers() ORDER BY 1, 2")
        return [Worker(*row) for row in rows]

    def pid(self, kind: str, name: str | None = None) -> int | None:
        """Returns the pid of a worker that has started, or None; of a relay outside, that of outbox-relay."""
        if OUTSIDE and kind == "relay":
            served = self.value(
                "SELECT EXISTS (SELECT FROM outbox.status WHERE destination = coalesce(%s, destination) "
                "AND state NOT IN ('starting', 'stopped', 'pull'))", (name,),
            )  # fmt: skip
            return running_relays(self.cluster)[self.name].pid if served else None
        for worker in self.workers():
            if worker.kind == kind and worker.state != "starting" and (name is None or worker.name == name):
                return worker.pid
        return None

    def wait_for_worker(
        self,
        kind: str,
        name: str | None = None,
        *,
        other_than: int | None = None,
        timeout: float = 180,
    ) -> int:
        """Waits until such a worker has started, and returns its pid."""
        pid = wait_until(
            lambda: self.pid(kind, name), lambda seen: seen not in (None, other_than),
            timeout=timeout,
            what=f"a {kind} {name or ''} at work in {self.name}, other than {other_than}",
            ignoring=(psycopg.OperationalError,),
        )  # fmt: skip
        assert pid is not None
        return pid


# The fixture `new_database`: (settings, extension=True) -> Database
NewDatabase = Callable[..., Database]


def create_database(cluster: Cluster, name: str = "db", *, extension: bool = True) -> Database:
    cluster.execute(f"CREATE DATABASE {name}")
    database = Database(cluster, name)
    if extension:
        database.create_extension()
    return database


def enqueue(
    connection: psycopg.Connection,
    key: str = "a",
    count: int = 1,
    *,
    first: int = 1,
    topic: str | None = None,
) -> list[str]:
    rows = connection.execute(
        "SELECT outbox.enqueue('item', %s::text, 'changed', jsonb_build_object('n', n), "
        "version => n, topic => %s::text) FROM generate_series(%s::bigint, %s::bigint) AS n",
        (key, topic, first, first + count - 1),
    ).fetchall()
    return [str(row[0]) for row in rows]
