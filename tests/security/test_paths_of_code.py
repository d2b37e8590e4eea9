"""Walks the paths on which text of a role becomes code: the table "Paths" of docs/architecture/trust.md.

Roles do what the table says to objects of a role that has laid traps in all of them: a superuser, roles with rights on
these objects, and roles with each right of pg_outbox or other power. Code of the attacker runs as the attacker, or fails.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cluster import SQL_EDITION, SUPERUSER
from conftest import NewDatabase
from database import EDITION_OWNER, EDITION_RELAY, Database
from long_run import all_in_long_run
from test_privileges import GRANTS
from waiting import wait_until

from .attacker import NewAttacker, NewRole
from .traps import WITNESS, Traps

PAGE = Path(__file__).parents[2] / "docs/architecture/trust.md"


def paths() -> dict[str, str]:
    """Actions: their names, and their statements. Without foreign servers the SQL edition has fewer."""
    section = PAGE.read_text().split("\n## Paths\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", section, re.MULTILINE)
    assert len(rows) > 15, "the table of paths cannot be read"
    return {name: statements for name, statements in rows if not SQL_EDITION or "SERVER" not in statements}


# -------------------------------------------------------------------------------------------------
# Roles
# -------------------------------------------------------------------------------------------------

# Roles that may do everything with the objects of the attacker.
OWNERS = {
    "superuser": "",
    "member": "GRANT {me} TO {actor}",
    "member that runs programs": "GRANT {me}, pg_execute_server_program TO {actor}",
}
if SQL_EDITION:
    OWNERS["owner of pg_outbox"] = "GRANT {me} TO {actor}"

# Others, which may do little of it.
OTHERS = {
    **{kind: f"SELECT {grant}('{{actor}}')" for kind, grant in GRANTS.items() if (grant or "").startswith("outbox.")},
    "all rights": "; ".join(f"SELECT {grant}('{{actor}}')" for grant in GRANTS.values() if (grant or "").startswith("outbox.")),
    "nobody": "",
    "database owner": "ALTER DATABASE {database} OWNER TO {actor}",
    "runs programs": "GRANT pg_execute_server_program TO {actor}",
    "writes files": "GRANT pg_write_server_files, pg_read_server_files TO {actor}",
    "reads and writes all data": "GRANT pg_read_all_data, pg_write_all_data TO {actor}",
    "creates databases and roles": "ALTER ROLE {actor} CREATEDB CREATEROLE",
    "inserts into a view": "SELECT outbox.create_outbox_view('public.written', 'tutorial'); GRANT INSERT ON public.written TO {actor}",
    "pg_monitor": "GRANT pg_monitor, pg_signal_backend, pg_checkpoint TO {actor}",
    "integrator": "GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {actor}; GRANT USAGE ON SCHEMA outbox TO {actor}; "
                  "GRANT EXECUTE ON FUNCTION outbox.check_destination, outbox.destination_options TO {actor}",
}  # fmt: skip
if SQL_EDITION:
    del OTHERS["integrator"]

# Paths on which a role gives an expression to a destination of its own: code runs as that role because it says so.
OWN_WILL = ("copies a destination",)


def combinations() -> list[object]:
    """All paths of a superuser, and of the others a share that has each role, belong to the short run."""
    others = [name for name in OWNERS if name != "superuser"]
    short = {
        (path, owner) for number, path in enumerate(paths()) for owner in ("superuser", others[number % len(others)])
    }
    return [
        pytest.param(path, owner, marks=() if (path, owner) in short else pytest.mark.long)
        for path in paths()
        for owner in OWNERS
    ]


# SQL cannot take the rights of another role for code of a table, so the SQL edition refuses a superuser as well.
REFUSALS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported)


def may_be_refused(actor: str) -> bool:
    return SQL_EDITION or actor != SUPERUSER


MakeActor = Callable[[str], str]


@pytest.fixture
def make_actor(database: Database, traps: Traps, new_role: NewRole) -> MakeActor:
    """Makes a role by statements, such as those of OWNERS; code of the attacker must not have its rights."""

    def make(kind: str) -> str:
        if kind == "superuser":
            return SUPERUSER
        actor = EDITION_OWNER if kind == "owner of pg_outbox" else new_role()
        statements = {**OWNERS, **OTHERS}[kind].format(me=traps.me, actor=actor, database=database.name)
        if statements:
            database.execute(statements)
        database.execute(f"GRANT CREATE ON SCHEMA public TO {actor}")
        traps.watch(actor)
        return actor

    return make


# -------------------------------------------------------------------------------------------------
# Objects
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def traps(database: Database, new_attacker: NewAttacker, open_folder: Path) -> Traps:
    """The role may capture, produce and create destinations."""
    attacker = new_attacker(
        "outbox.grant_capture", "outbox.grant_produce", "outbox.grant_monitor", "outbox.grant_operate"
    )
    me = attacker.role
    database.execute(f"GRANT CREATE ON SCHEMA public TO {me}")
    traps = Traps(attacker, open_folder)
    traps.lay_tables()
    if SQL_EDITION:
        traps.watch(EDITION_OWNER, EDITION_RELAY)
        database.add_destination("d", "null:")
    else:
        database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {me}")
        attacker.execute(
            sql.SQL("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter {}, payload {})").format(
                traps.changing_condition, f"to_jsonb('a'::{me}.mood)"
            )
        )  # fmt: skip
    for table in ("t", "p"):
        attacker.execute(
            "SELECT outbox.capture(%s::regclass, condition => %s)", (f"{me}.{table}", traps.changing_condition)
        )
    attacker.execute("SELECT outbox.enqueue('item', 'a', 'Added', '{}')")
    traps.make_volatile()
    return traps


def wait_until_looked_at(database: Database) -> None:
    """The relays have delivered or refused everything, or cannot work."""
    at_rest = ["idle", "misconfigured", *([] if SQL_EDITION else ["stopped"])]
    wait_until(
        lambda: database.execute(
            "SELECT s.destination, s.state, s.last_error FROM outbox.status AS s WHERE s.destination <> 'default' "
            "AND s.state <> ALL (%s)", (at_rest,),
        ),
        lambda busy: not busy, what="relays that have nothing to do",
    )  # fmt: skip
    wait_until(
        lambda: database.execute("SELECT id, state FROM outbox.backfill_task WHERE state = 'running'"),
        lambda running: not running, what="backfills to end",
    )  # fmt: skip


class Walk:
    """Takes paths as a role, whose own statements find no operators of others, unless `search_path` says so."""

    def __init__(self, database: Database, traps: Traps, actor: str, search_path: str = "pg_catalog, pg_temp") -> None:
        self.database, self.traps, self.actor, self.search_path = database, traps, actor, search_path
        self.event = str(database.value("SELECT min(event_id::text) FROM outbox.event"))
        self.filter = sql.Literal(traps.condition).as_string(database.connection)

    def take(self, path: str) -> list[psycopg.Error]:
        """Returns the errors of its statements. Those after an error are run, too."""
        text = paths()[path].replace("{me}", self.traps.me).replace("{filter}", self.filter)
        errors = []
        with self.database.cluster.connect(self.database.name, user=self.actor) as session:
            session.execute(f"SET search_path = {self.search_path}")
            for statement in text.replace("{event}", self.event).split("; "):
                try:
                    session.execute(statement)
                except psycopg.Error as error:
                    errors.append(error)
        return errors


# -------------------------------------------------------------------------------------------------
# Tests
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "kind"), combinations())
def test_a_role_that_may_take_a_path_runs_no_code_of_others(
    database: Database, traps: Traps, make_actor: MakeActor, path: str, kind: str
) -> None:
    wait_until_looked_at(database)
    actor = make_actor(kind)
    allowed = {actor} if path in OWN_WILL and actor != SUPERUSER else set()
    errors = Walk(database, traps, actor).take(path)
    assert all(isinstance(error, REFUSALS) for error in errors) and (errors == [] or may_be_refused(actor)), errors
    database.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(database)
    assert traps.sprung() <= allowed
    # Nor when the role uses its objects afterwards.
    for statement in (f"INSERT INTO {traps.me}.p VALUES (1, 'a')", "SELECT outbox.enqueue('item', 'c', 'Added', '{}')"):
        try:
            traps.attacker.execute(statement)
        except psycopg.Error as error:
            print(error)  # the table or the right may be gone
    wait_until_looked_at(database)
    assert traps.sprung() <= allowed


@pytest.mark.parametrize(
    "kind", all_in_long_run(OTHERS, short=["operator", "all rights", "database owner", "runs programs"])
)
def test_a_role_that_tries_every_path_runs_no_code_of_others(
    database: Database, traps: Traps, make_actor: MakeActor, kind: str
) -> None:
    wait_until_looked_at(database)
    actor = make_actor(kind)
    walk = Walk(database, traps, actor)
    for path in paths():
        print(path, [str(error).splitlines()[0] for error in walk.take(path)])
        # Reading its own copy runs code by the will of the role.
        assert traps.sprung() <= ({actor} if kind == "integrator" else set()), path
    database.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(database)
    assert traps.sprung() <= ({actor} if kind == "integrator" else set())


@pytest.mark.parametrize("kind", all_in_long_run(["superuser", "all rights"], short=["superuser"]))
def test_names_that_are_found_first_are_not_used(
    database: Database, traps: Traps, make_actor: MakeActor, kind: str
) -> None:
    """By the search_path of sessions, and of workers: that of the database and of roles."""
    wait_until_looked_at(database)
    traps.lay_shadows()
    actor = make_actor(kind)
    for whose in (f"DATABASE {database.name}", f"ROLE {actor} IN DATABASE {database.name}"):
        database.execute(f"ALTER {whose} SET search_path = {traps.me}, pg_catalog")
    walk = Walk(database, traps, actor, f"{traps.me}, pg_catalog")
    for path, statements in paths().items():
        # The owner of a table plans expressions of its indexes.
        if path not in OWN_WILL and "TO CURRENT_USER" not in statements:
            print(path, [str(error).splitlines()[0] for error in walk.take(path)])
            assert traps.sprung() <= set(), path
    database.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(database)
    assert traps.sprung() <= set()


def restore(database: Database, target: Database, tmp_path: Path, options: list[str], user: str) -> int:
    """Dumps the database as a superuser, and restores it as `user`; returns what pg_restore returns."""
    programs = database.cluster.installation.bin_directory
    source = database.cluster.conninfo(database.name)
    # The role that watches does not belong to what is dumped.
    subprocess.run([programs / "pg_dump", "-Fc", "-N", "witness", "-f", tmp_path / "dump", source], check=True)
    command = [programs / "pg_restore", *options, "-d", target.cluster.conninfo(target.name, user), tmp_path / "dump"]
    return subprocess.run(command, stderr=subprocess.PIPE).returncode


@pytest.fixture
def restored(database: Database, traps: Traps, new_database: NewDatabase) -> Database:
    """A database to restore to, with the same witness."""
    wait_until_looked_at(database)
    # PostgreSQL itself analyzes the conditions of triggers as the role that restores, and fills tables.
    with database.cluster.connect(database.name, user=SUPERUSER) as session:
        session.execute("SET search_path = pg_catalog, pg_temp")
        if SQL_EDITION:
            session.execute(f"SET ROLE {traps.me}")
        session.execute(f"SELECT outbox.uncapture('{traps.me}.p')")
        session.execute(f"DROP TABLE {traps.me}.t CASCADE")
    restored = new_database(extension=False)
    restored.execute(WITNESS.replace("{file}", str(traps.file)))
    return restored


@pytest.mark.extension
@pytest.mark.parametrize("options", ["", "--no-owner", "--no-acl", "--single-transaction"])
def test_a_restore_by_a_superuser_runs_no_code_of_others(
    database: Database, traps: Traps, restored: Database, tmp_path: Path, options: str
) -> None:
    assert restore(database, restored, tmp_path, options.split(), SUPERUSER) == 0
    if options == "--no-owner":  # pg_restore itself builds indexes of tables that are the superuser's then
        traps.file.unlink(missing_ok=True)
    restored.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(restored)
    assert not traps.sprung()


# pg_restore leaves out objects that such a role may not create. Destinations belong to the role then, with their expressions.
@pytest.mark.extension
@pytest.mark.parametrize("options", all_in_long_run(["--no-owner", "", "--no-acl"], short=["--no-owner"]))
@pytest.mark.parametrize("power", all_in_long_run(["pg_execute_server_program", "none"], short=["none"]))
def test_a_restore_by_the_owner_of_a_database_runs_no_code_with_the_rights_of_others(
    database: Database, traps: Traps, restored: Database, new_role: NewRole, tmp_path: Path, options: str, power: str
) -> None:
    owner = new_role()
    restored.execute("CREATE EXTENSION pg_outbox")
    restored.execute(f"ALTER DATABASE {restored.name} OWNER TO {owner}")
    restored.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {owner}")
    restored.execute(f"GRANT {traps.me} TO {owner}")
    if power != "none":
        restored.execute(f"GRANT {power} TO {owner}")
    assert restore(database, restored, tmp_path, options.split(), owner) != 0
    restored.execute("SELECT outbox.enqueue('item', 'b', 'Added', '{}')")
    wait_until_looked_at(restored)
    assert not traps.sprung()


def test_the_traps_work(database: Database, traps: Traps, make_actor: MakeActor) -> None:
    member = make_actor("member")
    for role in (SUPERUSER, member):
        with database.cluster.connect(database.name, user=role) as session:
            session.execute(f"SELECT {traps.condition}")
    assert traps.sprung() == {SUPERUSER, member}


@pytest.mark.parametrize("found", ["'a' = 'a'::name", "1::bigint < 2", "lower('a'::text)", "now()"])
def test_names_that_are_found_first_are_traps(
    database: Database, traps: Traps, make_actor: MakeActor, found: str
) -> None:
    traps.lay_shadows()
    member = make_actor("member")
    with database.cluster.connect(database.name, user=member) as session:
        session.execute(f"SET search_path = {traps.me}, pg_catalog")
        session.execute(f"SELECT {found}")
    assert traps.sprung() == {member}


def test_the_traps_notice_a_session_that_lends_only_its_present_role(
    database: Database, traps: Traps, make_actor: MakeActor
) -> None:
    """Code could take back the role of the session: that of the attacker was set without a restriction."""
    member = make_actor("member")
    with database.cluster.connect(database.name, user=member) as session:
        session.execute(f"SET ROLE {traps.me}")
        session.execute(f"SELECT {traps.condition}")
    assert traps.sprung() == {member}
