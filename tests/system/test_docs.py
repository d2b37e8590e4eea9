"""README.md and docs/: their commands are run, and those that are not are in a list with the reason."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, Installation, MakeCluster
from docs_blocks import EVERYWHERE, IN_CATALOG, NOT_RUN, RUN_BY, SET_UP, SUBSTITUTES, TYPED, Block, blocks

pytestmark = pytest.mark.extension("the pages are about both; editions.md says what differs")

BLOCKS = list(blocks())


def is_run(block: Block) -> bool:
    return block.page not in RUN_BY and block.first not in NOT_RUN.get(block.page, {})


def test_blocks_that_are_not_run_have_a_reason() -> None:
    """A block that is renamed or gone leaves no entry behind, and no page of shell commands is forgotten."""
    listed = {(page, first) for page, entries in NOT_RUN.items() for first in entries}
    there = {(block.page, block.first) for block in BLOCKS}
    assert listed <= there, f"not in the pages: {sorted(listed - there)}"
    shell = [str(block) for block in BLOCKS if block.language == "sh" and block.page not in TYPED and is_run(block)]
    assert not shell, "neither run nor in NOT_RUN of docs_blocks.py"


def psql(cluster: Cluster, database: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", cluster.conninfo(database), "-f", "-"], input=text,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(installation: Installation) -> Iterator[Cluster]:
    """A server with models of both databases. Pages name destinations that do not answer."""
    cluster = Cluster(installation, {"outbox.allowed_hosts": "", "wal_level": "logical"}).start()
    for name, extension in (("shop_model", "pg_outbox"), ("catalog_model", "pg_inbox")):
        cluster.execute(f"CREATE DATABASE {name} IS_TEMPLATE true")
        done = psql(cluster, name, f"CREATE EXTENSION {extension}")
        assert done.returncode == 0, done.stdout
        cluster.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    yield cluster
    cluster.destroy()


@pytest.fixture
def databases(server: Cluster) -> Iterator[Cluster]:
    for name in ("shop", "catalog"):
        server.execute(f"CREATE DATABASE {name} TEMPLATE {name}_model")
    roles = {row[0] for row in server.execute("SELECT rolname FROM pg_roles")}
    yield server
    for name in ("shop", "catalog"):
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    for (role,) in server.execute("SELECT rolname FROM pg_roles"):
        if role not in roles:
            server.execute(f'DROP ROLE "{role}"')


PAGES = sorted({block.page for block in BLOCKS if block.language == "sql" and is_run(block)} - set(TYPED))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_statements_of_a_page(databases: Cluster, page: str) -> None:
    database = "catalog" if page in IN_CATALOG else "shop"
    done = psql(databases, database, SET_UP.get(page, ""))
    assert done.returncode == 0, f"what {page} needs:\n{done.stdout}"
    errors = []
    for block in BLOCKS:
        if block.page != page or block.language != "sql" or not is_run(block):
            continue
        text = block.text
        for pattern, meant in [*SUBSTITUTES.get(page, []), *EVERYWHERE]:
            text = re.sub(pattern, meant, text)
        done = psql(databases, database, text)
        if done.returncode != 0:
            errors.append(f"{block}:\n{block.text}\n{done.stdout}")
    assert not errors, "\n".join(errors)


class Newcomer:
    """Types pages on a server that has the packages and preloads another library: `sudo` and `service` are ours."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.restarts = directory / "restarts"
        commands = {
            "sudo": 'if [ "$1" = -u ]; then [ "$2" = postgres ]; shift 2; fi; exec "$@"',
            "service": f'[ "$*" = "postgresql restart" ]; echo >> "{self.restarts}"',
        }
        for name, text in commands.items():
            path = directory / name
            path.write_text(f"#!/bin/sh -e\n{text}\n")
            path.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{directory}:{cluster.installation.bin_directory}:{os.environ['PATH']}",
            "PGHOST": str(cluster.directory),
            "PGPORT": str(cluster.port),
            "PGUSER": "postgres",
        }

    def type(self, page: str) -> str:
        """Returns what all blocks printed. Every psql begins in the database of the one before."""
        output, typed = "", ""
        for block in (block for block in BLOCKS if block.page == page and is_run(block)):
            if block.language == "sh":
                for part in re.split(r"(?<=service postgresql restart)\n", block.text):
                    output += self.run(block, ["bash", "-euo", "pipefail", "-c", part])
                    if self.restarts.exists():
                        self.restarts.unlink()
                        self.cluster.restart()
            else:
                connect = "".join(re.findall(r"^\\c .*\n", typed, re.MULTILINE)[-1:])
                typed += block.text
                output += self.run(
                    block,
                    ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", "postgres"],
                    connect
                    + block.text.replace("postgresql://localhost/", f"postgresql://localhost:{self.cluster.port}/"),
                )
        return output

    def run(self, block: Block, command: list[str], text: str = "") -> str:
        done = subprocess.run(
            command, input=text, env=self.environment, cwd="/", text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}:\n{block.text}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def newcomer(installation: Installation, make_cluster: MakeCluster, tmp_path: Path) -> Newcomer:
    libraries = f"{installation.stage}{installation.ask('--pkglibdir')}:$libdir"
    settings = {
        "shared_preload_libraries": "auto_explain",
        "dynamic_library_path": libraries,
        "max_worker_processes": "8",
    }
    settings |= {"outbox.poll_min": "250ms", "outbox.poll_max": "30s", "outbox.allowed_hosts": ""}
    return Newcomer(make_cluster(settings), tmp_path)


def test_the_quick_start(newcomer: Newcomer) -> None:
    output = newcomer.type("README.md")
    assert " v1       | Cats  |       1\n(1 row)" in output
    assert newcomer.cluster.execute("SHOW shared_preload_libraries") == [("auto_explain, pg_outbox",)]
    for database, extension in (("shop", "outbox"), ("catalog", "inbox")):
        with newcomer.cluster.connect(database) as connection:
            assert connection.execute(f"SELECT * FROM {extension}.health()").fetchall() == []


def test_the_tutorial(newcomer: Newcomer) -> None:
    newcomer.cluster.settings["shared_preload_libraries"] = "pg_outbox"
    newcomer.cluster.restart()
    output = newcomer.type("docs/tutorial.md")
    assert "         1 | Teapot |    20 |       1\n(1 row)" in output
    assert " Sticker |     0\n Teapot  |    25\n(2 rows)" in output
    assert "\n f\n" not in output, "a wait has ended without the version, or a check has failed"
