"""outboxctl: its output, formats and exit codes. The SQL functions are tested elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from cluster import Cluster, Installation
from conftest import drop_database
from database import MONITOR, Database, NewDatabase
from served import Served
from waiting import wait_until


class Tool:
    """outboxctl on a database with pg_inbox."""

    def __init__(self, cluster: Cluster, database: Database, installation: Installation) -> None:
        self.cluster = cluster
        self.database = database
        self.program = str(installation.build / "tools/outboxctl/outboxctl")
        self.database.execute("CREATE EXTENSION pg_inbox")

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, timeout=180,
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
        done = self.run("--json", "-d", self.cluster.conninfo(self.database.name), "inbox", *arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)


@pytest.fixture
def tool(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation) -> Tool:
    return Tool(shared_cluster, new_database(extension=False), installation)


# -------------------------------------------------------------------------------------------------
# Connecting
# -------------------------------------------------------------------------------------------------


def test_the_user_of_the_server_is_checked_on_its_own_socket(tool: Tool) -> None:
    """outboxctl stands between libpq and the server, and must not be taken for the server."""
    server = f"host={tool.cluster.directory} port={tool.cluster.port} user=postgres dbname={tool.database.name}"
    owner = Path(tool.cluster.directory).owner()
    assert tool.run("-d", f"{server} requirepeer={owner}", "inbox", "status").returncode == 0
    refused = tool.run("-d", f"{server} requirepeer=nobody", "inbox", "status")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "requirepeer" in refused.stderr


# -------------------------------------------------------------------------------------------------
# Usage
# -------------------------------------------------------------------------------------------------

GROUPS = ("", "event", "dead-letters", "backfill", "inbox", "inbox dead-letters")


def commands_of(help: str) -> list[str]:
    subcommands = re.split("Subcommands:\n", help, flags=re.IGNORECASE)[1]  # CLI11 2.6 writes it in capitals
    return [line.split()[0] for line in subcommands.splitlines() if re.match("  [a-z]", line)]


def test_help_shows_every_command_with_examples(tool: Tool) -> None:
    for group in GROUPS:
        for command in commands_of(tool.run(*group.split(), "--help").stdout):
            name = f"{group} {command}".strip()
            done = tool.run(*name.split(), "--help")
            assert done.returncode == 0
            assert name in GROUPS or f"Examples:\n  outboxctl {name}" in done.stdout, name


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "a command is required: see outboxctl --help"),
        (["inbox"], "a command is required: see outboxctl inbox --help"),
        (["statsu"], '"statsu" is not a command; did you mean "outboxctl status"?'),
        (["inbox", "deadletters", "c"], '"deadletters" is not a command; did you mean "outboxctl inbox dead-letters"?'),
        (["quux"], '"quux" is not a command: see outboxctl --help'),
        (["inbox", "lag", "--jason"], "--jason"),
        (["inbox", "reset-offset", "c", "s", "--to", "now"], "--why is required"),
        (["inbox", "reset-offset", "c", "s", "--why", "x"], "--to is required"),
        (["inbox", "dead-letters", "redrive", "c"], "event_id, or --all is required"),
        (["inbox", "dead-letters", "redrive", "c", "--all", "aaaaaaaa-0000-7000-8000-000000000000"], "--all"),
        (["inbox", "dead-letters", "discard", "c", "--why", "x"], "event_id, or --all is required"),
        (["inbox", "dead-letters", "discard", "c", "aaaaaaaa-0000-7000-8000-000000000000"], "--why is required"),
        (["inbox", "dead-letters", "list", "--limit", "0"], "--limit"),
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
    tool.database.execute(
        "INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at) VALUES (2, 12345, 0, now())"
    )
    header, first, second = tool.inbox("status").splitlines()
    assert first.startswith("a               postgres  handled outside ")
    assert second.startswith("größter Dienst  postgres  not subscribed  ")
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
    assert tool.refused("status") == (
        f'outboxctl: ERROR:  pg_inbox is not in database "{tool.database.name}"\n'
        "HINT:  Is it the right database? Otherwise use CREATE EXTENSION pg_inbox, or outboxctl inbox install.\n"
    )


def test_an_unreachable_database_is_reported(tool: Tool) -> None:
    done = tool.run("-d", f"{tool.cluster.conninfo('nowhere')}", "inbox", "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert "outboxctl: connection to server" in done.stderr
    assert 'database "nowhere" does not exist' in done.stderr


# -------------------------------------------------------------------------------------------------
# Commands
# -------------------------------------------------------------------------------------------------


def test_rights_are_granted_and_revoked(tool: Tool) -> None:
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
    assert [row["event_id"] for row in tool.json("dead-letters", "list")] == ids
    assert [row["event_id"] for row in tool.json("dead-letters", "list", "c", "--limit", "2")] == ids[:2]
    tool.database.execute("INSERT INTO inbox.consumer (name, role) VALUES ('catalog', 'postgres')")
    assert tool.json("dead-letters", "list", "catalog") == []
    assert 'consumer "catalgo" does not exist\nHINT:  Did you mean "catalog"?' in tool.refused(
        "dead-letters", "list", "catalgo"
    )
    assert tool.refused("dead-letters", "list", "other").endswith('consumer "other" does not exist\n')
    assert tool.json("dead-letters", "list")[0]["payload"] == r"\x7b7d"
    _, first, *_ = tool.inbox("dead-letters", "list").splitlines()
    assert first.startswith(f"c         {ids[0]}  Changed")
    assert first.endswith("P0001     no good")


def test_dead_letters_are_redriven(tool: Tool) -> None:
    ids = consumer_with_dead_letters(tool, 4)
    assert tool.inbox("dead-letters", "redrive", "c", ids[1]) == "1 dead letter redriven\n"
    assert tool.json("dead-letters", "redrive", "c", ids[0], ids[1], "--why", "fixed") == {"redriven": 1}
    assert tool.inbox("dead-letters", "redrive", "c", "--all", "--why", "all of them") == "2 dead letters redriven\n"
    assert tool.json("dead-letters", "list") == []
    assert operations(tool) == [("redrive", None), ("redrive", "fixed"), ("redrive", "all of them")]
    assert 'consumer "other" does not exist' in tool.refused("dead-letters", "redrive", "other", "--all")
    assert 'invalid input syntax for type uuid: "x"' in tool.refused("dead-letters", "redrive", "c", "x")


def test_dead_letters_are_discarded(tool: Tool) -> None:
    ids = consumer_with_dead_letters(tool, 3)
    assert (
        tool.inbox("dead-letters", "discard", "c", ids[0], ids[1], "--why", "test data", "--yes")
        == "2 dead letters discarded\n"
    )
    assert [row["event_id"] for row in tool.json("dead-letters", "list")] == ids[2:]
    assert operations(tool) == [("discard", "test data")]
    assert tool.json("dead-letters", "discard", "c", "--all", "--why", "all of them", "--yes") == {"discarded": 1}
    assert tool.json("dead-letters", "list") == []


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


def test_gaps_are_listed_and_accepted(tool: Tool) -> None:
    assert tool.json("gaps") == []
    report = "SELECT inbox.report_gap('c', %s, 'deleted by the broker', %s, %s)"
    tool.database.execute(report, ("s", 3, False))
    tool.database.execute(report, ("t", 0, True))
    assert [(row["subscription"], row["skipped"], row["recreated"]) for row in tool.json("gaps", "c")] == [
        ("s", 3, 0), ("t", 0, 1)
    ]  # fmt: skip
    assert tool.json("gaps", "other") == []
    header, first, _ = tool.inbox("gaps").splitlines()
    assert header.startswith("consumer  subscription  skipped") and "deleted by the broker" in first
    said = tool.inbox("accept-gap", "c", "s", "--why", "sent again")
    assert said == 'gap of subscription "s" of consumer "c" accepted\n'
    assert tool.json("accept-gap", "c", "t", "--why", "expected") == {
        "consumer": "c", "subscription": "t", "state": "accepted"
    }  # fmt: skip
    assert all(row["accepted_at"] for row in tool.json("gaps"))
    assert operations(tool) == [("accept gap", "sent again"), ("accept gap", "expected")]
    assert 'subscription "s" of consumer "c" has no gap to accept' in tool.refused("accept-gap", "c", "s", "--why", "x")
    assert 'consumer "d" does not exist' in tool.refused("accept-gap", "d", "s", "--why", "x")


def test_lag_and_health_are_shown(tool: Tool) -> None:
    assert tool.json("health") == tool.json("lag") == []
    consumer_with_dead_letters(tool, 1)
    assert [row["consumer"] for row in tool.json("lag")] == ["c"]
    header, first = tool.inbox("health").splitlines()
    assert header.startswith("severity  object") and "dead letter" in first


# -------------------------------------------------------------------------------------------------
# Destinations and events
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def outbox(tool: Tool, database: Database) -> Callable[..., Any]:
    """Calls outboxctl on a database with pg_outbox and a destination to fetch from; returns its JSON."""
    database.add_destination("d", "pull:", lanes="1", retry_base="1h", topics="a.events")

    def call(*arguments: str, code: int = 0) -> Any:
        done = tool.run("--json", "-d", tool.cluster.conninfo(database.name), *arguments)
        assert done.returncode == code, done
        return json.loads(done.stdout) if code != 1 else done.stderr

    return call


def test_an_event_is_enqueued_found_and_shown(outbox: Callable[..., Any]) -> None:
    id = outbox("enqueue", "a", "42", "Happened", '{"n": 1}')["event_id"]
    outbox("enqueue", "b", "43", "Happened")
    assert [row["event_id"] for row in outbox("event", "find", "--aggregate-id", "42")] == [id]
    assert outbox("event", "find", "--since", "1 hour ago", "--key", "nobody's") == []
    shown = outbox("event", "show", id)
    assert shown["event"]["payload_text"] == '{"n": 1}'
    assert [(row["destination"], row["state"]) for row in shown["destinations"]] == [("d", "PENDING")]


def test_destinations_are_shown_and_operated(outbox: Callable[..., Any], database: Database) -> None:
    outbox("enqueue", "a", "42", "Happened", "{}")
    assert [(row["destination"], row["url"], row["topics"]) for row in outbox("destinations")] == [
        ("d", "pull:", "a.events")
    ]
    assert outbox("pause", "d", "--why", "upgrade") == {"destination": "d", "state": "paused"}
    assert outbox("status", "d")[0]["state"] == "paused"
    assert [row["object"] for row in outbox("health")] == ['destination "d"']
    assert 'destination "d"' in [row["object"] for row in outbox("doctor", code=3)]
    assert outbox("resume", "d") == {"destination": "d", "state": "resumed"}
    assert outbox("health") == []
    assert all(row["ok"] for row in outbox("check", "d"))
    assert len(outbox("segments")) == 4
    assert 'destination "x" does not exist' in outbox("pause", "x", code=1)
    assert database.execute("SELECT action, why FROM outbox.operation") == [("pause", "upgrade"), ("resume", None)]


# With the rights of docs/outboxctl.md and no others. Commands of a right are tried by one role.
OF_RIGHTS = {
    ("monitor",): ["status", "health", "metrics", "destinations", "segments", "backfill status", "inbox status",
                   "inbox lag", "inbox health", "inbox metrics", "inbox offsets", "inbox gaps"],
    ("monitor", "operate"): ["doctor", "seek d end --dry-run"],
    ("operate",): ["check d", "pause d", "resume d", "seek d beginning --yes", "replay d --dry-run", "event show {event}",
                   "dead-letters list", "dead-letters redrive d --all --dry-run",
                   "dead-letters discard d --all --why x --dry-run", "backfill status", "inbox dead-letters list"],
    ("produce",): ["enqueue a 42 Happened {{}}"],
}  # fmt: skip


@pytest.mark.parametrize("rights", OF_RIGHTS, ids=" ".join)
def test_commands_need_the_rights_that_the_page_names(
    tool: Tool, outbox: Callable[..., Any], database: Database, rights: tuple[str, ...]
) -> None:
    event = outbox("enqueue", "a", "42", "Happened", "{}")["event_id"]
    database.add_destination("sent", "null:")
    database.execute("CREATE EXTENSION pg_inbox")
    role = f"outboxctl_{'_'.join(rights)}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for schema in ("outbox", "inbox"):
            for right in rights:
                if database.value("SELECT to_regproc(%s) IS NOT NULL", (f"{schema}.grant_{right}",)):
                    database.execute(f"SELECT {schema}.grant_{right}('{role}')")
        conninfo = database.cluster.conninfo(database.name, role)
        for command in OF_RIGHTS[rights]:
            done = tool.run("-d", conninfo, *command.format(event=event).split())
            assert done.returncode in (0, 3) and done.stderr == "", (command, done)
    finally:
        database.execute(f"SELECT outbox.revoke_produce('{role}'); DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_doctor_names_topics_that_fit_nothing_until_something_was_delivered(
    tool: Tool, outbox: Callable[..., Any], database: Database
) -> None:
    def found() -> list[str]:
        # Settings of a server for tests are a finding, too.
        rows = json.loads(tool.run("-d", tool.cluster.conninfo(database.name), "doctor", "--json").stdout)
        return [row["object"] for row in rows if row["what"] == "topics match nothing"]

    assert found() == []
    outbox("enqueue", "b", "42", "Happened", "{}")
    assert found() == ['destination "d"']
    database.change_destination("d", topics="b.events")
    assert found() == []
    token = database.value("SELECT token FROM outbox.fetch('d')")
    database.execute("SELECT outbox.ack(%s)", (token,))
    database.change_destination("d", topics="c.events")
    assert database.value("SELECT outbox.selects_nothing('d')") is True
    assert found() == []


def test_a_dry_run_changes_nothing(outbox: Callable[..., Any], database: Database) -> None:
    for _ in range(3):
        outbox("enqueue", "a", "42", "Happened", "{}")
    assert outbox("seek", "d", "end", "--dry-run")["events"] == 0
    assert outbox("seek", "d", "beginning", "--dry-run")["events"] == 3
    assert outbox("replay", "d", "--topic", "a.*", "--dry-run")["events"] == 0, "they are to be delivered anyway"
    assert database.value("SELECT count(*) FROM outbox.operation") == 0
    assert "Nobody can be asked here" in outbox("seek", "d", "end", code=1)
    assert "a reason must be given" in outbox("seek", "d", "end", "--yes", code=1)
    assert outbox("seek", "d", "end", "--yes", "--why", "test") == {"destination": "d", "position": 3}
    assert outbox("replay", "d", "--topic", "a.*", "--dry-run")["events"] == 3
    assert outbox("seek", "d", "beginning", "--yes", "--why", "lost") == {"destination": "d", "position": 0}
    assert outbox("replay", "d", "--type", "none", "--yes")["events"] == 0


def test_dead_letters_of_destinations(outbox: Callable[..., Any], database: Database) -> None:
    ids = [outbox("enqueue", "a", key, "Happened", "{}")["event_id"] for key in ("x", "y", "z")]
    database.execute("SELECT n.* FROM outbox.fetch('d') AS f, outbox.nack(f.token, f.event_id, 'no use', true) AS n")
    assert sorted(row["event_id"] for row in outbox("dead-letters", "list", "d")) == sorted(ids)
    assert outbox("dead-letters", "show", ids[0])[0]["last_error"] == "no use"
    discard = ("dead-letters", "discard", "d", ids[0], "--why", "test data")
    assert outbox(*discard, "--dry-run") == {"discarded": 1}
    assert outbox(*discard, "--yes") == {"discarded": 1}
    assert outbox("dead-letters", "redrive", "d", "--all", "--why", "repaired") == {"redriven": 2}
    assert outbox("dead-letters", "list") == []
    assert database.execute("SELECT action, events, why FROM outbox.operation") == [
        ("discard", 1, "test data"), ("redrive", 2, "repaired")
    ]  # fmt: skip
    assert "is not a dead letter" in outbox("dead-letters", "show", ids[0], code=1)


def test_events_are_shown_as_they_commit(tool: Tool, database: Database) -> None:
    tail = subprocess.Popen(
        [tool.program, "event", "tail", "--topic", "a.*", "--json", "-d", tool.cluster.conninfo(database.name)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tail.stdout
    try:
        # It has looked once when it shows the first of these, which may be any of them.
        seen = wait_until(
            lambda: (
                database.value("SELECT outbox.enqueue('a', '1', 'First', '{}')")
                and select.select([tail.stdout], [], [], 0.1)[0]
            ),
            what="tail to be there",
        )
        assert seen
        last = str(database.value("SELECT outbox.enqueue('a', '1', 'Last', '{}')"))
        for line in tail.stdout:
            if json.loads(line)["event_id"] == last:
                break
    finally:
        tail.kill()
        tail.wait()


def test_the_topic_of_tail_is_a_text_with_stars(tool: Tool, database: Database) -> None:
    tail = subprocess.Popen(
        [tool.program, "event", "tail", "--topic", "a_%\\*", "--json", "-d", tool.cluster.conninfo(database.name)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tail.stdout
    enqueue = "SELECT outbox.enqueue('a', '1', 'E', '{}'::jsonb, topic => %s)"
    try:
        shown = wait_until(
            lambda: (
                database.execute(enqueue, ("axx",)),
                database.execute(enqueue, ("a_%\\x",)),
                select.select([tail.stdout], [], [], 0.1)[0],
            )[-1],
            what="tail to be there",
        )  # fmt: skip
        assert shown and json.loads(tail.stdout.readline())["topic"] == "a_%\\x"
    finally:
        tail.kill()
        tail.wait()


# -------------------------------------------------------------------------------------------------
# Texts: nothing is cut, altered or left out
# -------------------------------------------------------------------------------------------------

# All bytes that an argument may have, in characters of UTF-8.
CHARACTERS = [chr(code) for code in range(1, 256)] + ["\u0800", "\U00010348"]
# What command lines, connection strings, arrays and patterns might take for something else.
ODD_TEXTS = ["", " ", "{}", "[a,b]", "%%", "a=b", "NULL", '"', "'", "\\", "\\n", "%_*", "$1", "a,b", "# a", "--x", "++"]


def parts(size: int) -> list[str]:
    return ["".join(CHARACTERS[at : at + size]) for at in range(0, len(CHARACTERS), size)]


TEXTS = [*parts(90), *ODD_TEXTS]


def test_an_event_has_the_texts_that_were_given(outbox: Callable[..., Any], database: Database) -> None:
    columns = "aggregate_type, aggregate_id, event_type, convert_from(payload, 'UTF8')::jsonb #>> '{}', topic, ordering_key, headers ->> 'h'"
    for text in TEXTS:
        some = text or "x"
        name = "x" + re.sub("[\x01-\x1f\x7f]", "", text)
        options = [f"--topic={name}", f"--key={text}", "--headers", json.dumps({"h": name})]
        id = outbox("enqueue", *options, "--", name, some, name, json.dumps(text))["event_id"]
        (row,) = database.execute(f"SELECT {columns} FROM outbox.event WHERE event_id = '{id}'")
        assert row == (name, some, name, text, name, text, name)
        shown = outbox("event", "show", id)["event"]
        assert [shown[column] for column in ("aggregate_type", "event_type", "topic", "ordering_key")] == [
            name, name, name, text
        ]  # fmt: skip
        search = [f"--aggregate-type={name}", f"--type={name}", f"--key={text}", "--aggregate-id", some]
        assert [event["event_id"] for event in outbox("event", "find", *search)] == [id]


def test_names_with_control_characters_are_refused(outbox: Callable[..., Any]) -> None:
    for arguments in ("a\x01", "1", "E"), ("a", "1", "E\x7f"), ("a", "1", "E", "--topic", "t\n"):
        assert "must not contain control characters" in outbox("enqueue", *arguments, code=1)


def test_an_option_without_text_takes_no_other_argument(outbox: Callable[..., Any], database: Database) -> None:
    outbox("enqueue", "a", "1", "E", "--key=", "{}")
    outbox("enqueue", "a", "1", "E", "--key", "", "{}")
    assert database.execute("SELECT ordering_key, payload FROM outbox.event") == [("", b"{}")] * 2
    outbox("pause", "d", "--why=")
    assert database.execute("SELECT action, why FROM outbox.operation") == [("pause", None)]


def test_reasons_are_stored_as_they_were_given(outbox: Callable[..., Any], database: Database) -> None:
    for text in TEXTS:
        outbox("pause", "d", "--why", text)
        outbox("pause", "d", f"--why={text}")
    stored = database.execute("SELECT why FROM outbox.operation ORDER BY id")
    assert [why for (why,) in stored] == [text or None for text in TEXTS for _ in range(2)]


def test_a_replay_selects_by_texts_as_they_were_given(outbox: Callable[..., Any]) -> None:
    keys = ("", "%", "k")
    for key in keys:
        outbox("enqueue", "a", "1", "E", "{}", "--key", key)
    outbox("seek", "d", "end", "--yes", "--why", "test")
    for key in keys:
        assert outbox("replay", "d", "--key", key, "--dry-run")["events"] == 1
        assert outbox("replay", "d", f"--key={key}", "--dry-run")["events"] == 1
        assert outbox("replay", "d", f"--aggregate-id={key}", "--dry-run")["events"] == 0
    assert outbox("replay", "d", "--dry-run")["events"] == 3
    assert "invalid input syntax" in outbox("replay", "d", "--since=", "--yes", code=1)


def test_consumers_and_subscriptions_are_those_that_were_given(tool: Tool) -> None:
    for number, text in enumerate(TEXTS):
        consumer, subscription, why = f"c{text}", f"s{text}", f"w{text}"
        tool.database.execute("SELECT inbox.report_gap(%s, %s, 'w', 1)", (consumer, subscription))
        assert [row["subscription"] for row in tool.json("gaps", "--", consumer)] == [subscription]
        tool.inbox("accept-gap", "--why", why, "--", consumer, subscription)
        tool.inbox("reset-offset", "--to", "beginning", "--why", why, "--", consumer, subscription)
        done = tool.database.execute("SELECT consumer, why FROM inbox.operation ORDER BY id OFFSET %s", (2 * number,))
        assert done == [(consumer, why)] * 2


def test_roles_and_databases_are_those_that_were_given(tool: Tool, home: Database, tmp_path: Path) -> None:
    file = tmp_path / "outboxctl.toml"
    for text in [*parts(20), *ODD_TEXTS]:
        name = f"texts {text}"
        home.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        try:
            home.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            assert tool.json("grant", "monitor", "--", name) == {"right": "monitor", "role": name}
            may = "SELECT has_table_privilege(oid, 'inbox.status', 'SELECT') FROM pg_roles WHERE rolname = %s"
            assert tool.database.value(may, (name,))
            escaped = name.replace("\\", "\\\\").replace("'", "\\'")
            conninfo = tool.cluster.conninfo("x").replace("dbname=x", f"dbname='{escaped}'")
            assert escaped in conninfo
            toml = json.dumps(conninfo, ensure_ascii=False).replace("\x7f", "\\u007f")
            file.write_text(f"[contexts]\nodd = {toml}\n")
            for place in ["-d", conninfo], ["-c", "odd"]:
                done = subprocess.run(
                    [tool.program, *place, "inbox", "status"], capture_output=True, timeout=180,
                    env={**os.environ, "OUTBOXCTL_CONFIG": str(file)},
                )  # fmt: skip
                assert f'pg_inbox is not in database "{name}"'.encode() in done.stderr, done.stderr
        finally:
            home.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
            tool.database.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_a_context_with_a_zero_byte_is_refused(tool: Tool, tmp_path: Path) -> None:
    file = tmp_path / "outboxctl.toml"
    for conninfo in f"{tool.database.name}\0x", tool.cluster.conninfo(f"{tool.database.name}\0x"):
        file.write_text(f"[contexts]\nodd = {json.dumps(conninfo)}\n")
        done = tool.run("-c", "odd", "inbox", "status", env={"OUTBOXCTL_CONFIG": str(file)})
        assert (done.returncode, done.stdout) == (1, "")
        assert 'connection parameter "dbname" has a zero byte' in done.stderr


def test_bytes_that_are_no_text_are_refused(outbox: Callable[..., Any], database: Database) -> None:
    for byte in range(0x80, 0x100):
        text = os.fsdecode(bytes([byte]))
        for arguments in ("enqueue", text, "1", "E"), ("pause", "d", "--why", text), ("status", text):
            if byte in (0x80, 0xC3, 0xFF) or arguments[0] == "status":
                assert "invalid byte sequence" in outbox(*arguments, code=1)
    assert database.value("SELECT count(*) FROM outbox.operation") == 0
    assert database.value("SELECT count(*) FROM outbox.event") == 0


# -------------------------------------------------------------------------------------------------
# Several databases
# -------------------------------------------------------------------------------------------------


def test_several_databases(tool: Tool, new_database: NewDatabase, tmp_path: Path) -> None:
    other = new_database(extension=False)
    other.execute("CREATE EXTENSION pg_inbox")
    both = [tool.cluster.conninfo(tool.database.name), tool.cluster.conninfo(other.name)]
    for database in (tool.database, other):
        database.execute("INSERT INTO inbox.consumer (name) VALUES ('c')")

    def rows(*arguments: str, code: int = 0) -> list[tuple[str, str]]:
        done = tool.run(*arguments, "--json", env={"OUTBOXCTL_CONFIG": str(tmp_path / "outboxctl.toml")})
        assert done.returncode == code, done
        return [(row["database"], row["consumer"]) for line in done.stdout.splitlines() for row in json.loads(line)]

    found = [(tool.database.name, "c"), (other.name, "c")]
    assert rows("-d", both[0], "inbox", "status", "-d", both[1]) == found
    (tmp_path / "outboxctl.toml").write_text(f"[contexts]\none = {json.dumps(both[0])}\nboth = {json.dumps(both)}\n")
    assert rows("--context", "both", "inbox", "status") == found
    assert rows("-c", "one", "-d", both[1], "inbox", "status") == found[::-1]
    # One that cannot be reached does not keep the command from the others.
    nowhere = tool.cluster.conninfo("nowhere")
    assert rows("-d", nowhere, "-d", both[1], "inbox", "status", code=1) == found[1:]
    assert "no context \"third\"" in tool.run(
        "-c", "third", "inbox", "status", env={"OUTBOXCTL_CONFIG": str(tmp_path / "outboxctl.toml")}
    ).stderr  # fmt: skip
    assert "--watch works on one database" in tool.run("-d", both[0], "-d", both[1], "status", "--watch").stderr


# -------------------------------------------------------------------------------------------------
# Completions of shells, and the manual page
# -------------------------------------------------------------------------------------------------


def test_bash_completes_commands_and_options(tool: Tool) -> None:
    script = Path(__file__).parents[2] / "tools/outboxctl/completion/outboxctl.bash"

    def completed(*words: str) -> list[str]:
        line = f'. {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _outboxctl; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(
            ["bash", "-c", line, "bash", "outboxctl", *words], capture_output=True, text=True, check=True,
            env={**os.environ, "PATH": f"{Path(tool.program).parent}:{os.environ['PATH']}"},
        ).stdout.split()  # fmt: skip

    assert completed("inbox", "dead-letters", "re") == ["redrive"]
    assert completed("-d", "shop", "inbox", "dead-letters", "discard", "--dr") == ["--dry-run"]
    assert completed("ev") == ["event"]


def test_the_manual_has_every_command(tool: Tool) -> None:
    page = Path(tool.program).with_name("outboxctl.1").read_text()
    for group in GROUPS:
        for command in commands_of(tool.run(*group.split(), "--help").stdout):
            name = f"{group} {command}".strip()
            assert name in GROUPS or f".SS outboxctl {name}".replace("-", r"\-") in page


# -------------------------------------------------------------------------------------------------
# top
# -------------------------------------------------------------------------------------------------


class Screen:
    """outboxctl top on a terminal of its own. Its output is read as it comes, without the control sequences."""

    def __init__(self, tool: Tool, *arguments: str) -> None:
        self.drawn = ""
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.environ.update(TERM="xterm", LINES="40", COLUMNS="200", LANG="C.UTF-8")
            os.execv(tool.program, [tool.program, "top", *arguments])

    def shows(self, text: str) -> bool:
        if select.select([self.terminal], [], [], 1)[0]:
            new = os.read(self.terminal, 65536).decode(errors="replace")
            self.drawn += re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()].|[=>78])", " ", new)
        return text in self.drawn

    def press(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def exit_code(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        os.close(self.terminal)
        return code


def consumer_of(database: Database, name: str) -> None:
    database.execute("INSERT INTO inbox.consumer (name) VALUES (%s)", (name,))
    database.execute(
        "INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at) VALUES (1, 1000, 0, now())"
    )


def test_top_shows_rates_until_q_is_pressed(tool: Tool) -> None:
    consumer_of(tool.database, "catalog")
    screen = Screen(tool, "-d", tool.cluster.conninfo(tool.database.name))

    def shows(text: str) -> bool:
        tool.database.execute("UPDATE inbox.progress SET processed = processed + 500")
        return screen.shows(text)

    wait_until(lambda: shows("CONSUMER"), what="the heading")
    wait_until(lambda: shows("catalog"), what="the consumer")
    wait_until(lambda: shows("█"), what="the rate as a line")
    screen.press(b"q")
    assert screen.exit_code() == 0


def test_top_shows_several_databases_and_goes_on_without_one(tool: Tool, new_database: NewDatabase) -> None:
    other = new_database(extension=False)
    other.execute("CREATE EXTENSION pg_inbox")
    consumer_of(tool.database, "catalog")
    consumer_of(other, "invoices")
    screen = Screen(
        tool, *(word for each in (tool.database, other) for word in ("-d", tool.cluster.conninfo(each.name)))
    )

    def shows(text: str) -> bool:
        other.execute("UPDATE inbox.progress SET processed = processed + 500")
        return screen.shows(text)

    # A rate is that of its own database: only the second one has any.
    for text in (tool.database.name, "catalog", other.name, "invoices", "█"):
        wait_until(lambda: shows(text), what=f"{text} on the screen")
    # Not DROP EXTENSION: its locks and those of a query of top may be a deadlock.
    drop_database(Database(tool.cluster, "postgres"), tool.database.name)
    screen.drawn = ""
    wait_until(lambda: shows("does not exist"), what="the error")
    screen.drawn = ""
    wait_until(lambda: shows("▇") or shows("█"), what="the rates of the other database")
    screen.press(b"q")
    assert screen.exit_code() == 0


def test_top_names_a_database_that_does_not_exist(tool: Tool) -> None:
    screen = Screen(tool, "-d", tool.cluster.conninfo(tool.database.name), "-d", tool.cluster.conninfo("nowhere"))
    wait_until(lambda: screen.shows('database "nowhere" does not exist'), what="the error")
    assert screen.exit_code() == 1


def test_top_needs_a_terminal(tool: Tool) -> None:
    done = tool.run("top", "-d", tool.cluster.conninfo(tool.database.name))
    assert (done.returncode, "top needs a terminal" in done.stderr) == (2, True)


# -------------------------------------------------------------------------------------------------
# serve
# -------------------------------------------------------------------------------------------------


def test_serve_has_the_figures_of_several_databases(tool: Tool, new_database: NewDatabase) -> None:
    other = new_database()  # pg_outbox
    other.add_destination("hook", "null:")
    nowhere = tool.cluster.conninfo("nowhere")
    databases = [database.monitor() for database in (tool.database, other)]
    served = Served(tool.program, *(word for database in (*databases, nowhere) for word in ("-d", database)))
    try:
        assert served.get("/healthz") == "ok\n"
        assert served.up() == {tool.database.name: 1, other.name: 1, "nowhere": 0}
        assert 'destination="hook"' in served.get("/metrics")
    finally:
        errors = served.stop()
    assert 'database "nowhere" does not exist' in errors


def test_serve_finds_all_databases_of_a_server(tool: Tool, new_database: NewDatabase) -> None:
    other = new_database()
    plain = new_database(extension=False)
    for database in (tool.database, other):
        database.monitor()
    served = Served(tool.program, "--all", "-d", tool.cluster.conninfo("postgres", MONITOR))
    try:
        up = served.up()
    finally:
        served.stop()
    assert (up[tool.database.name], up[other.name]) == (1, 1)
    assert plain.name not in up


def test_serve_says_what_is_wrong_with_its_address(tool: Tool) -> None:
    taken = Served(tool.program, "-d", tool.cluster.conninfo("postgres"))
    try:
        done = tool.run("serve", "--listen", taken.url.removeprefix("http://"))
        assert (done.returncode, "could not listen on 127.0.0.1" in done.stderr) == (1, True)
    finally:
        taken.stop()
    done = tool.run("serve", "--listen", "nonsense")
    assert (done.returncode, "--listen is HOST:PORT" in done.stderr) == (2, True)
