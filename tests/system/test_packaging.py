"""The package: exported symbols, versions, comments on objects, rules for the code."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from cluster import REPOSITORY, Installation
from database import Database


def symbols(module: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(module)], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def modules(installation: Installation) -> dict[str, Path]:
    return {path.stem: path for path in installation.stage.rglob("*.so")}


def test_the_modules_export_what_is_called_and_nothing_else(installation: Installation) -> None:
    found = modules(installation)
    main = symbols(found.pop("pg_outbox"))
    functions = {name for name in main if name.startswith("outbox_")}
    described = {f"pg_finfo_{name}" for name in functions if not name.endswith("_main")}
    assert main == functions | described | {"Pg_magic_func", "_PG_init"}
    entry_points = {"launcher", "keeper", "relay", "processor", "backfill", "check"}
    assert {f"outbox_{name}_main" for name in entry_points} <= functions
    sinks = {"aws", "http", "kafka", "mqtt", "nats", "postgresql", "pubsub", "rabbitmq", "redis"}
    assert set(found) == {f"pg_outbox_{name}" for name in sinks}
    entries = {frozenset(symbols(path)) for path in found.values()}
    assert len(entries) == 1, "the modules are of the same build"
    (sink, check) = sorted(entries.pop(), reverse=True)
    interface = sink.removeprefix("outbox_create_sink_")
    assert len(interface) == 12 and check == f"outbox_create_check_{interface}"


def test_the_main_module_needs_no_library_of_a_sink(installation: Installation) -> None:
    needed = subprocess.run(
        ["objdump", "-p", str(modules(installation)["pg_outbox"])],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for library in ("libcurl", "libpq", "libssl", "libcrypto", "libjsoncpp", "librdkafka"):
        assert library not in needed


def test_library_knows_no_header_of_the_server(installation: Installation) -> None:
    commands = json.loads((installation.build / "compile_commands.json").read_text())
    server_headers = installation.ask("--includedir-server")
    checked = 0
    for entry in commands:
        path = Path(entry["file"])
        if path.is_relative_to(REPOSITORY / "lib"):
            assert server_headers not in entry["command"], path
            checked += 1
    assert checked > 10


# Files in which PG_TRY encloses only calls of the server, with the reason why it is needed.
CATCHES_ERRORS_OF_THE_SERVER = {
    "extension/base/hooks.cpp": "a hold on a database must not outlive its statement",
    "extension/base/sandbox.cpp": "the subtransaction of code of others ends before its error goes on",
    "extension/destinations/expression_role.cpp": "a superuser restores an expression before its functions have their privileges",
    "extension/base/statement.cpp": "a statement that failed must not be known as running",
    "extension/destinations/expressions.cpp": "an expression fails for one event, and the others go on",
    "extension/views/payload_json.cpp": "there is no other way to ask jsonb whether it takes a payload",
    "bgworker/keeper/keeper.cpp": "tables of an inbox that its owner broke, or another node, must not end the keeper",
    "bgworker/processor_main.cpp": "that a consumer was given away is no error of its processor",
    "bgworker/relay/relay_main.cpp": "a relay that is told to end saves its cursor first",
}


def test_pg_try_is_used_only_where_listed() -> None:
    """PG_TRY is dangerous in C++: an exception thrown through it leaves a dead frame as error handler."""
    found = {
        str(path.relative_to(REPOSITORY))
        for folder in ("extension", "bgworker")
        for path in (REPOSITORY / folder).rglob("*.?pp")
        if "PG_TRY" in path.read_text()
    }
    assert found == set(CATCHES_ERRORS_OF_THE_SERVER)


def test_versions_agree(installation: Installation) -> None:
    top = (REPOSITORY / "CMakeLists.txt").read_text()
    match = re.search(r"project\(pg_outbox VERSION ([0-9.]+)", top)
    assert match is not None
    version = match[1]
    meta = json.loads((REPOSITORY / "META.json").read_text())
    assert meta["version"] == version
    assert {entry["version"] for entry in meta["provides"].values()} == {version}
    for name in ("pg_outbox", "pg_inbox"):
        (control,) = installation.stage.rglob(f"{name}.control")
        assert f"default_version = '{version}'" in control.read_text()
        assert list(installation.stage.rglob(f"{name}--{version}.sql"))
    assert f"## [{version}]" in (REPOSITORY / "CHANGELOG.md").read_text()
    assert (REPOSITORY / "packaging/debian/changelog").read_text().startswith(f"pg-outbox ({version})")
    for name, entry in meta["provides"].items():
        assert (REPOSITORY / entry["file"]).exists(), name
        assert (REPOSITORY / entry["docfile"]).exists(), name


MEMBERS = """
    SELECT pg_describe_object(d.classid, d.objid, 0), obj_description(d.objid, d.classid::regclass::name)
      FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = %s
       AND d.classid <> 'pg_cast'::regclass
       -- From 17 on the types that come with a table are members as well.
       AND NOT EXISTS (SELECT FROM pg_type AS t LEFT JOIN pg_type AS element ON element.oid = t.typelem
                        WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid
                          AND (t.typcategory = 'A' OR EXISTS (SELECT FROM pg_class AS c
                                                    WHERE c.oid = t.typrelid AND c.relkind <> 'c')))
"""


@pytest.mark.parametrize("extension", ["pg_outbox", "pg_inbox"])
def test_every_object_has_a_comment(database: Database, extension: str) -> None:
    database.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}")
    members = database.execute(MEMBERS, (extension,))
    assert len(members) > 8
    assert [name for name, comment in members if not comment] == []
