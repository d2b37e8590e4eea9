"""outboxctl: its output, formats and exit codes. The SQL functions are tested elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from cluster import Cluster, Installation
from database import Database, NewDatabase


class Tool:
    """outboxctl on a database with pg_inbox."""

    def __init__(self, cluster: Cluster, database: Database, installation: Installation) -> None:
        self.cluster = cluster
        self.database = database
        self.program = str(installation.build / "tools/outboxctl/outboxctl")
        self.database.execute("CREATE EXTENSION pg_inbox")

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, timeout=60,
            env={**os.environ, **(env or {})},
        )  # fmt: skip

    def inbox(self, *arguments: str) -> str:
        """Returns the output of a successful command."""
        done = self.run("-d", self.cluster.conninfo(self.database.name), "inbox", *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """Returns the output of a command that the database refuses."""
        done = self.run("-d", self.cluster.conninfo(self.database.name), "inbox", *arguments)
        assert (done.returncode, done.stdout) == (1, ""), done
        return done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.inbox(*arguments, "--json"))


@pytest.fixture
def tool(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation) -> Tool:
    return Tool(shared_cluster, new_database(extension=False), installation)


# -------------------------------------------------------------------------------------------------
# Usage
# -------------------------------------------------------------------------------------------------

COMMANDS = [
    "install", "status", "lag", "health", "offsets", "reset-offset", "dead-letters", "redrive",
    "discard", "grant", "revoke",
]  # fmt: skip


def test_help_shows_every_command_with_examples(tool: Tool) -> None:
    listed = tool.run("inbox", "--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in listed
        done = tool.run("inbox", command, "--help")
        assert done.returncode == 0
        assert f"Examples:\n  outboxctl inbox {command}" in done.stdout


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "subcommand is required"),
        (["outbux"], "subcommand is required"),
        (["inbox"], "subcommand is required"),
        (["inbox", "lag", "--jason"], "--jason"),
        (["inbox", "reset-offset", "c", "s", "--to", "now"], "--why is required"),
        (["inbox", "reset-offset", "c", "s", "--why", "x"], "--to is required"),
        (["inbox", "redrive", "c"], "event_id, or --all is required"),
        (["inbox", "redrive", "c", "--all", "aaaaaaaa-0000-7000-8000-000000000000"], "--all"),
        (["inbox", "discard", "c", "--why", "x"], "event_id is required"),
        (["inbox", "discard", "c", "aaaaaaaa-0000-7000-8000-000000000000"], "--why is required"),
        (["inbox", "dead-letters", "--limit", "0"], "--limit"),
        (["inbox", "grant", "everything", "postgres"], "everything"),
    ],
)
def test_wrong_usage_connects_nowhere(tool: Tool, arguments: list[str], complaint: str) -> None:
    done = tool.run(*arguments, env={"PGHOST": "/nowhere"})
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_the_environment_says_what_the_arguments_do_not(tool: Tool) -> None:
    place = {"PGHOST": str(tool.cluster.directory), "PGPORT": str(tool.cluster.port)}
    database = {"PGDATABASE": tool.database.name, "PGUSER": "postgres"}
    for arguments, env in [
        ([], {**place, **database}),
        (["-d", tool.database.name], {**place, "PGUSER": "postgres"}),
        (["--dbname", f"postgresql:///{tool.database.name}?user=postgres"], place),
    ]:
        done = tool.run(*arguments, "inbox", "status", "--json", env=env)
        assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr


# -------------------------------------------------------------------------------------------------
# Forms
# -------------------------------------------------------------------------------------------------


def test_tables_are_aligned(tool: Tool) -> None:
    assert tool.inbox("status").splitlines()[1:] == ["(none)"]
    tool.database.execute(
        "INSERT INTO inbox.consumer (name, role) VALUES ('a', 'postgres'), ('größter Dienst', 'postgres')"
    )
    tool.database.execute("INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at) VALUES (2, 12345, 0, now())")
    header, first, second = tool.inbox("status").splitlines()
    assert first.startswith("a               postgres  not subscribed ")
    assert second.startswith("größter Dienst  postgres  not subscribed ")
    end = header.index("processed") + len("processed")
    assert (first[:end].split()[-1], second[:end].split()[-1]) == ("0", "12345")
    assert [line for line in (header, first, second) if line != line.rstrip()] == []


def test_nothing_that_is_shown_does_things_to_a_terminal(tool: Tool) -> None:
    name = "\x1b[2J\nx\x7f\u0085"
    tool.database.execute("INSERT INTO inbox.consumer (name) VALUES (%s)", (name,))
    assert tool.inbox("status").splitlines()[1].startswith(r"\x1b[2J\nx\x7f\x85")
    assert tool.json("status")[0]["consumer"] == name


def test_json_has_all_columns(tool: Tool) -> None:
    tool.database.execute("INSERT INTO inbox.consumer (name) VALUES ('a'), ('b')")
    rows = tool.json("status")
    columns = tool.database.connection.execute("SELECT * FROM inbox.status").description or []
    assert [row["consumer"] for row in rows] == ["a", "b"]
    assert list(rows[0]) == [column.name for column in columns]
    assert [row["consumer"] for row in tool.json("status", "b")] == ["b"]


# -------------------------------------------------------------------------------------------------
# Errors of the database
# -------------------------------------------------------------------------------------------------


def test_errors_have_the_servers_hint(tool: Tool) -> None:
    assert tool.refused("grant", "monitor", "nobody of that name") == (
        'outboxctl: ERROR:  role "nobody of that name" does not exist\n'
    )
    tool.database.execute("DROP EXTENSION pg_inbox")
    error = tool.refused("status")
    assert 'relation "inbox.status" does not exist' in error
    assert "HINT:  The extension (pg_inbox, pg_outbox) may be missing in this database" in error


def test_no_database(tool: Tool) -> None:
    done = tool.run("-d", f"{tool.cluster.conninfo('nowhere')}", "inbox", "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'outboxctl: connection to server' in done.stderr
    assert 'database "nowhere" does not exist' in done.stderr


# -------------------------------------------------------------------------------------------------
# Commands
# -------------------------------------------------------------------------------------------------


def test_rights_come_and_go(tool: Tool) -> None:
    role = f'"Grafana" of {tool.database.name}'
    quoted = '"' + role.replace('"', '""') + '"'
    tool.database.execute(f"CREATE ROLE {quoted}")
    may = "SELECT has_table_privilege(%s, 'inbox.status', 'SELECT')"
    try:
        assert tool.inbox("grant", "monitor", role) == f"right to monitor granted to {role}\n"
        assert tool.database.value(may, (role,))
        assert tool.json("revoke", "monitor", role) == {"right": "monitor", "role": role}
        assert not tool.database.value(may, (role,))
    finally:
        tool.database.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")


def consumer_with_dead_letters(tool: Tool, count: int) -> list[str]:
    """The consumer c; returns the ids of the events that it gave up, the oldest first."""
    tool.database.execute("INSERT INTO inbox.consumer (name, role) VALUES ('c', 'postgres')")
    return [
        str(id)
        for (id,) in tool.database.execute(
            "INSERT INTO inbox.dead_message (seq, consumer_id, event_id, occurred_at, topic, aggregate_type, "
            "aggregate_id, event_type, ordering_key, payload, received_at, source, schema_version, content_type, "
            "attempts, error, sqlstate, first_failed_at, died_at) "
            "SELECT n, (SELECT id FROM inbox.consumer), gen_random_uuid(), now(), 't', 'item', n, 'Changed', "
            "'k' || n, '{}', now(), '', 1, 'application/json', 10, 'no good', 'P0001', now(), "
            "now() + n * interval '1 second' FROM generate_series(1, %s) AS n RETURNING event_id",
            (count,),
        )
    ]


def operations(tool: Tool) -> list[tuple]:
    return tool.database.execute("SELECT operation, why FROM inbox.operation ORDER BY id")


def test_dead_letters_are_listed(tool: Tool) -> None:
    ids = consumer_with_dead_letters(tool, 3)
    assert [row["event_id"] for row in tool.json("dead-letters")] == ids
    assert [row["event_id"] for row in tool.json("dead-letters", "c", "--limit", "2")] == ids[:2]
    assert tool.json("dead-letters", "other") == []
    assert tool.json("dead-letters")[0]["payload"] == r"\x7b7d"
    _, first, *_ = tool.inbox("dead-letters").splitlines()
    assert first.startswith(f"c         {ids[0]}  Changed")
    assert first.endswith("P0001     no good")


def test_dead_letters_are_redriven(tool: Tool) -> None:
    ids = consumer_with_dead_letters(tool, 4)
    assert tool.inbox("redrive", "c", ids[1]) == "1 dead letter redriven\n"
    assert tool.json("redrive", "c", ids[0], ids[1], "--why", "fixed") == {"redriven": 1}
    assert tool.inbox("redrive", "c", "--all", "--why", "all of them") == "2 dead letters redriven\n"
    assert tool.json("dead-letters") == []
    assert operations(tool) == [("redrive", None), ("redrive", "fixed"), ("redrive", "all of them")]
    assert 'consumer "other" does not exist' in tool.refused("redrive", "other", "--all")
    assert 'invalid input syntax for type uuid: "x"' in tool.refused("redrive", "c", "x")


def test_dead_letters_are_discarded(tool: Tool) -> None:
    ids = consumer_with_dead_letters(tool, 3)
    assert tool.inbox("discard", "c", ids[0], ids[1], "--why", "test data") == "2 dead letters discarded\n"
    assert [row["event_id"] for row in tool.json("dead-letters")] == ids[2:]
    assert operations(tool) == [("discard", "test data")]


def test_offsets_are_listed_and_reset(tool: Tool) -> None:
    save = "SELECT inbox.save_offset('c', %s, 'm1', '2026-01-31 10:00+00', 'me')"
    for subscription in ("a", "b"):
        tool.database.execute(save, (subscription,))
    assert [(row["subscription"], row["reset_pending"]) for row in tool.json("offsets")] == [
        ("a", False), ("b", False)
    ]  # fmt: skip
    assert tool.json("offsets", "other") == []

    said = tool.inbox("reset-offset", "c", "a", "--to", "2026-01-30 10:00+00", "--why", "bad deploy")
    assert said == 'reset 1: consumer "c" will go to 2026-01-30 10:00+00\n'
    assert tool.json("reset-offset", "c", "b", "--to", "beginning", "--why", "rebuilt") == {"reset_id": 2}
    resets = "SELECT extract(epoch FROM publish_time) FROM inbox.load_offset('c', %s)"
    assert tool.database.value(resets, ("a",)) == 1769767200
    assert tool.database.value(resets, ("b",)) == 0
    assert [row["reset_pending"] for row in tool.json("offsets", "c")] == [True, True]
    assert operations(tool) == [("reset offset", "bad deploy"), ("reset offset", "rebuilt")]

    reset = ("reset-offset", "c", "a", "--why", "x", "--to")
    assert 'invalid input syntax for type timestamp with time zone: "soon"' in tool.refused(*reset, "soon")


def test_lag_and_health(tool: Tool) -> None:
    assert tool.json("health") == tool.json("lag") == []
    consumer_with_dead_letters(tool, 1)
    assert [row["consumer"] for row in tool.json("lag")] == ["c"]
    header, first = tool.inbox("health").splitlines()
    assert header.startswith("severity  consumer") and "dead letter" in first
