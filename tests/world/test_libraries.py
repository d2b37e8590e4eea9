"""Libraries of others are loaded before pg_outbox or after it: events arrive and are applied, and no worker fails.

A new library is a line of LIBRARIES. The short run takes what the server's own packages have; the long run takes what
scripts/packages.sh installs for it as well.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cluster import Installation, MakeCluster
from long_run import all_in_long_run

from .test_settings import Place, check_that_all_arrives, operate, prepare, programs

# In an order in which they start: some want to come after pg_stat_statements.
LIBRARIES = {
    "of the server": [
        "pg_stat_statements", "auto_explain", "auth_delay", "passwordcheck", "pg_prewarm", "basebackup_to_shell", "basic_archive",
    ],
    "of Debian": [
        "pg_stat_statements", "auto_explain", "pgaudit", "pgauditlogtofile", "pg_stat_kcache", "pg_qualstats", "pg_wait_sampling",
        "pg_cron", "pglogical", "pgl_ddl_deploy", "pg_partman_bgw", "pgextwlist", "plugin_debugger", "powa", "set_user",
    ],
}  # fmt: skip
# They look at each statement. The log has none of their lines, because function bodies contain words of crashes. test_settings.py has
# compiled code. A server ignores what it has no library for.
EAGER = {
    "wal_level": "logical",
    "track_functions": "all", "track_io_timing": "on",
    "pg_stat_statements.track": "all", "pg_stat_statements.track_planning": "on",
    "auto_explain.log_min_duration": "0", "auto_explain.log_nested_statements": "on", "auto_explain.log_analyze": "on",
    "auto_explain.log_verbose": "on", "auto_explain.log_triggers": "on", "auto_explain.log_level": "debug1",
    "pgaudit.log": "all", "pgaudit.log_level": "debug1", "pgaudit.log_catalog": "on", "pgaudit.log_relation": "on",
    "pg_stat_kcache.track": "all", "pg_qualstats.sample_rate": "1",
    "cron.database_name": "libraries", "cron.use_background_workers": "on", "powa.database": "libraries",
    "pg_partman_bgw.dbname": "libraries",
}  # fmt: skip


def create_extensions(place: Place, libraries: list[str]) -> None:
    """Some libraries have none, or one of another name."""
    for name in [*libraries, "pldbgapi", "pg_partman"]:
        if place.value("SELECT 1 FROM pg_available_extensions WHERE name = %s", (name,)):
            place.execute(f"CREATE EXTENSION IF NOT EXISTS {name} CASCADE")


@pytest.mark.extension("it is the library that is tested")
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("whose", all_in_long_run(LIBRARIES, short=["of the server"]))
def test_libraries_of_others_stop_nothing(
    make_cluster: MakeCluster, installation: Installation, whose: str, order: str
) -> None:
    libraries = LIBRARIES[whose]
    missing = [name for name in libraries if not Path(installation.ask("--pkglibdir"), f"{name}.so").exists()]
    if missing:
        pytest.skip(f"NOT TESTED: the server has no {', '.join(missing)}")
    cluster = make_cluster(EAGER, started=False)
    ours = cluster.settings["shared_preload_libraries"]
    theirs = [f"$libdir/{name}" for name in libraries]
    cluster.settings["shared_preload_libraries"] = ", ".join([ours, *theirs] if order == "first" else [*theirs, ours])
    cluster.start()
    cluster.execute("CREATE DATABASE libraries")
    place = Place(cluster, "libraries", {}, "database")
    create_extensions(place, libraries)
    prepare(place)
    with programs(place, installation):
        check_that_all_arrives(place)
        operate(place, installation)
    assert place.health() == []


@pytest.mark.long
@pytest.mark.extension("extensions of a whitelist are those of the server")
def test_a_role_without_rights_creates_extensions_of_a_whitelist(
    make_cluster: MakeCluster, installation: Installation
) -> None:
    if not Path(installation.ask("--pkglibdir"), "pgextwlist.so").exists():
        pytest.skip("NOT TESTED: the server has no pgextwlist")
    with server_with_our_files(installation) as server:
        cluster = make_cluster({"extwlist.extensions": "pg_outbox,pg_inbox"}, started=False)
        cluster.settings["shared_preload_libraries"] += ", $libdir/pgextwlist"
        cluster.installation = server
        cluster.start()
        cluster.execute("CREATE ROLE owner_of_libraries LOGIN")
        cluster.execute("CREATE DATABASE libraries OWNER owner_of_libraries")
        with cluster.connect("libraries", "owner_of_libraries") as connection:
            connection.execute("CREATE EXTENSION pg_outbox")
            connection.execute("CREATE EXTENSION pg_inbox")
        place = Place(cluster, "libraries", {}, "database")
        assert (
            place.execute("SELECT extowner::regrole::text FROM pg_extension WHERE extname LIKE 'pg_%box'")
            == [("postgres",)] * 2
        )
        cluster.stop()


@contextmanager
def server_with_our_files(installation: Installation) -> Iterator[Installation]:
    """A server that finds the extension among its own files, as pgextwlist wants it. A server looks for them beside its
    program, so a copy of the program is enough, with links to the other files.
    """
    with tempfile.TemporaryDirectory(prefix="outbox-server-") as root:
        for directory in map(installation.ask, ("--sharedir", "--pkglibdir")):
            for origin in (f"{installation.stage}{directory}", directory):
                shutil.copytree(origin, root + directory, copy_function=link, dirs_exist_ok=True)
        server = copy.copy(installation)
        server.bin_directory = Path(root + installation.ask("--bindir"))
        server.bin_directory.mkdir(parents=True)
        shutil.copy(installation.bin_directory / "postgres", server.bin_directory)
        Path(root).chmod(0o755)
        yield server


def link(origin: str, name: str) -> None:
    with suppress(FileExistsError):
        os.symlink(origin, name)
