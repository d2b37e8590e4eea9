"""Walks the paths on which text of a role becomes code: the table "Paths" of docs/architecture/trust.md.

An administrator does what the table says to objects of a role that has laid traps in all of them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cluster import SUPERUSER
from conftest import NewDatabase
from database import Database
from waiting import wait_until

from .attacker import NewAttacker
from .traps import Traps

PAGE = Path(__file__).parents[2] / "docs/architecture/trust.md"


def paths() -> dict[str, str]:
    """Actions of an administrator: their names, and their statements."""
    section = PAGE.read_text().split("\n## Paths\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", section, re.MULTILINE)
    assert len(rows) > 15, "the table of paths cannot be read"
    return dict(rows)


@pytest.fixture
def traps(database: Database, new_attacker: NewAttacker, open_folder: Path) -> Traps:
    """The role may capture, produce and create destinations."""
    attacker = new_attacker(
        "outbox.grant_capture", "outbox.grant_produce", "outbox.grant_monitor", "outbox.grant_operate"
    )
    me = attacker.role
    database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {me}; GRANT CREATE ON SCHEMA public TO {me}")
    traps = Traps(attacker, open_folder)
    traps.lay_tables()
    for table in ("t", "p"):
        attacker.execute("SELECT outbox.capture(%s::regclass, condition => %s)", (f"{me}.{table}", traps.condition))
    attacker.execute(
        sql.SQL("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter {0}, payload {1})").format(
            traps.condition, f"to_jsonb('a'::{me}.mood)"
        )
    )
    attacker.execute("SELECT outbox.enqueue('item', 'a', 'Added', '{}')")
    return traps


def wait_until_looked_at(database: Database) -> None:
    """The relays have delivered or refused everything, or cannot work."""
    wait_until(
        lambda: database.execute(
            "SELECT s.destination, s.state, s.last_error FROM outbox.status AS s WHERE s.destination <> 'default' "
            "AND s.state NOT IN ('idle', 'misconfigured', 'stopped')"
        ),
        lambda busy: not busy, what="relays that have nothing to do",
    )  # fmt: skip
    wait_until(
        lambda: database.execute("SELECT id, state FROM outbox.backfill_task WHERE state = 'running'"),
        lambda running: not running, what="backfills to end",
    )  # fmt: skip


def administer(database: Database, statements: str) -> None:
    """In a session of a superuser, whose own statements find no operators of others."""
    with database.cluster.connect(database.name, user=SUPERUSER) as session:
        session.execute("SET search_path = pg_catalog, pg_temp")
        for statement in statements.split("; "):
            session.execute(statement)


@pytest.mark.parametrize("path", paths())
def test_an_administrator_runs_no_code_of_others(database: Database, traps: Traps, path: str) -> None:
    wait_until_looked_at(database)
    filter = sql.Literal(traps.condition).as_string(database.connection)
    administer(database, paths()[path].replace("{me}", traps.me).replace("{filter}", filter))
    database.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(database)
    assert not traps.sprung()
    # Nor when the role uses its objects afterwards.
    for statement in (f"INSERT INTO {traps.me}.p VALUES (1, 'a')", "SELECT outbox.enqueue('item', 'c', 'Added', '{}')"):
        try:
            traps.attacker.execute(statement)
        except psycopg.Error as error:
            print(error)  # the table or the right may be gone
    wait_until_looked_at(database)
    assert not traps.sprung()


@pytest.mark.parametrize("options", ["", "--no-owner", "--no-acl", "--single-transaction"])
def test_a_restore_by_a_superuser_runs_no_code_of_others(
    database: Database, new_database: NewDatabase, traps: Traps, tmp_path: Path, options: str
) -> None:
    wait_until_looked_at(database)
    # PostgreSQL itself analyzes the conditions of triggers as the superuser, and fills tables.
    administer(database, f"SELECT outbox.uncapture('{traps.me}.p'); DROP TABLE {traps.me}.t CASCADE")
    programs = database.cluster.installation.bin_directory
    subprocess.run(
        [programs / "pg_dump", "-Fc", "-f", tmp_path / "dump", database.cluster.conninfo(database.name)], check=True
    )
    restored = new_database(extension=False)
    subprocess.run(
        [programs / "pg_restore", *options.split(), "-d", restored.cluster.conninfo(restored.name), tmp_path / "dump"],
        check=True,
    )
    restored.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(restored)
    assert not traps.sprung()


def test_the_traps_work(database: Database, traps: Traps) -> None:
    administer(database, f"SELECT {traps.condition}")
    assert traps.sprung()
