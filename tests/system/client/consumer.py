"""A consumer process under test (tests/programs/consume.cpp), and the database it applies events to.

OUTBOX_CLIENT_BUILD may name another build directory than the server's: one with sanitizers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

from psycopg import sql

from cluster import Cluster, Installation
from database import Database
from processes import end_process
from waiting import wait_until

# The function that the consumer's handler calls. An event fails while its id is in `poison`.
SETUP = """
    CREATE TABLE applied (number bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, key text, type text,
                          version bigint, payload text, xid xid8 DEFAULT pg_current_xact_id());
    CREATE TABLE poison (event_id uuid PRIMARY KEY, sqlstate text NOT NULL DEFAULT 'P0001');
    CREATE TABLE copied (n integer);
    CREATE TABLE counted (event_id uuid, n bigint);
    CREATE TABLE item (id text PRIMARY KEY, version bigint, name text);
    CREATE SEQUENCE attempts;
    CREATE FUNCTION handle(event_id uuid, key text, type text, version bigint, payload text)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        state text := (SELECT p.sqlstate FROM poison AS p WHERE p.event_id = $1);
    BEGIN
        PERFORM nextval('attempts');
        IF state IS NOT NULL THEN
            RAISE EXCEPTION 'poison' USING ERRCODE = state;
        END IF;
        INSERT INTO applied (event_id, key, type, version, payload) VALUES ($1, $2, $3, $4, $5);
    END $$;
"""


class Target(Database):
    """A database with pg_inbox, and a role that may consume and use the test's tables."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.role = f"consumer_{name}"

    def create_extension(self) -> None:
        self.execute("CREATE EXTENSION pg_inbox")
        self.execute(SETUP)
        self.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(self.role)))
        self.execute("SELECT inbox.grant_consume(%s)", (self.role,))
        for objects in ("TABLES", "SEQUENCES"):
            self.execute(f"GRANT ALL ON ALL {objects} IN SCHEMA public TO {self.role}")
        self.execute(f"GRANT CREATE ON SCHEMA public TO {self.role}")

    def drop_role(self) -> None:
        self.execute(f"DROP OWNED BY {self.role}")
        self.execute(f"DROP ROLE {self.role}")

    @property
    def conninfo(self) -> str:
        return self.cluster.conninfo(self.name, self.role)

    def poison(self, event_id: str, sqlstate: str = "P0001") -> None:
        self.execute("INSERT INTO poison VALUES (%s, %s)", (event_id, sqlstate))

    def cure(self) -> None:
        self.execute("DELETE FROM poison")

    def set_policy(self, **policy: object) -> None:
        """Sets the policy of the consumer, and creates it if it does not exist yet."""
        arguments = ", ".join(f"{name} => {value!r}" for name, value in policy.items())
        self.execute(f"SET SESSION AUTHORIZATION {self.role}")
        self.execute(f"SELECT inbox.set_policy('c', {arguments})")
        self.execute("RESET SESSION AUTHORIZATION")

    def applied(self) -> list[str]:
        return [str(row[0]) for row in self.execute("SELECT event_id FROM applied ORDER BY number")]

    def wait_applied(self, ids: list[str]) -> None:
        """Waits until exactly these events are applied, once each, in any order."""
        wait_until(
            self.applied, lambda seen: len(seen) >= len(ids), timeout=180, what=f"{len(ids)} events to be applied"
        )  # an emulator may be between
        assert sorted(self.applied()) == sorted(ids)

    def check_order(self) -> None:
        """Checks that the versions of each key were applied in their order, without gaps."""
        rows = self.execute("SELECT key, array_agg(version ORDER BY number) FROM applied WHERE key <> '' GROUP BY key")
        for key, versions in rows:
            assert versions == list(range(1, len(versions) + 1)), f"key {key} is out of order: {versions}"

    def transactions(self) -> int:
        """Returns the number of transactions in which the events were applied."""
        return self.value("SELECT count(DISTINCT xid) FROM applied")

    def attempts(self) -> int:
        return self.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM attempts")

    def dead_letters(self) -> list[tuple]:
        return self.execute("SELECT event_id::text, attempts, sqlstate, error FROM inbox.dead_message ORDER BY seq")

    def backends(self) -> list[int]:
        """Returns the server processes of the consumer."""
        rows = self.execute("SELECT pid FROM pg_stat_activity WHERE usename = %s", (self.role,))
        return [row[0] for row in rows]

    def wait_for_lock(self, what: str, *, backends: int = 1) -> None:
        """Waits until this number of the consumer's sessions wait for a lock that the test holds."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = %s"
        wait_until(lambda: self.value(waiting, (self.role,)), lambda seen: seen >= backends, what=what)

    def wait_for_sessions_at_rest(self, backends: int) -> None:
        """Waits until this number of the consumer's sessions have committed and do nothing."""
        resting = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query = 'COMMIT' AND usename = %s"
        wait_until(lambda: self.value(resting, (self.role,)), lambda seen: seen >= backends, what="sessions to rest")

    def kill_backends(self) -> None:
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (self.role,))


class Consumer:
    def __init__(self, installation: Installation, conninfo: str, options: dict[str, object]) -> None:
        arguments = [f"{name}={value}" for name, value in options.items()]
        self.errors = tempfile.NamedTemporaryFile("w")
        self.process = subprocess.Popen(
            [str(installation.programs / "consume"), conninfo, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def command(self, *fields: object) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write("\t".join(map(str, fields)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        assert answer, f"the consumer has ended ({self.process.wait()}):\n{self.log()}"
        return answer

    def state(self) -> dict[str, Any]:
        return json.loads(self.command("state"))

    def deliver(
        self, key: str = "a", count: int = 1, *, type: str = "changed", payload: str = "{}",
        event_id: str | None = None, first: int = 1,
    ) -> list[str]:  # fmt: skip
        """Publishes versions `first`, ... of a key; returns the ids."""
        ids = [event_id or str(uuid.uuid4()) for _ in range(count)]
        for version, id in enumerate(ids, first):
            self.command("deliver", id, key, type, version, payload)
        return ids

    def wait_for(self, what: str, *, timeout: float = 180, **values: int) -> dict[str, Any]:
        """Waits until these figures reach these values; lists count by their length."""

        def reached(state: dict[str, Any]) -> bool:
            seen = {n: len(state[n]) if isinstance(state[n], list) else state[n] for n in values}
            return all(seen[name] >= value for name, value in values.items())

        try:
            return wait_until(self.state, reached, what=what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def stop(self) -> dict[str, Any]:
        """Returns the last state."""
        answer, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, f"ended with {self.process.returncode}:\n{self.log()}"
        return json.loads(answer.splitlines()[-1])

    def wait_ended(self) -> int:
        """Waits until the consumer ends by itself; returns its exit code."""
        self.process.communicate(timeout=180)
        return self.process.returncode

    def log(self) -> str:
        return Path(self.errors.name).read_text(errors="replace")

    def wait_logged(self, text: str) -> None:
        wait_until(self.log, lambda seen: text in seen, what=f"the consumer to say {text!r}")

    def kill(self) -> None:
        end_process(self.process, self.log)
