"""The settings: docs/settings.md matches the code, and mistakes in postgresql.conf are reported.

To write the table: OUTBOX_WRITE_DOCS=1 pytest tests/system/test_settings.py
"""

from __future__ import annotations

import os

import psycopg
import pytest

from cluster import REPOSITORY, Cluster, MakeCluster
from database import Database
from waiting import wait_until

HEAD = """# Settings

Made from the code by `tests/system/test_settings.py`. *Reload*: edit `postgresql.conf` or use
`ALTER SYSTEM`, then `SELECT pg_reload_conf()`. *Superuser*: also `SET` by superusers. A misspelt
`outbox.` setting is an error in `SET` and `ALTER SYSTEM`. In `postgresql.conf` it is ignored; a
warning in the server log names it.

| setting | default | range | takes effect | |
|---|---|---|---|---|
"""
CONTEXTS = {"postmaster": "restart", "sighup": "reload", "superuser": "superuser", "user": "session"}


def table(cluster: Cluster) -> str:
    rows = cluster.execute(
        """SELECT name, boot_val, coalesce(unit, ''), min_val, max_val, vartype, context, short_desc,
                  coalesce(extra_desc, '')
             FROM pg_settings WHERE name LIKE 'outbox.%' ORDER BY name COLLATE "C" """
    )
    assert len(rows) > 8
    lines = []
    for name, default, unit, low, high, kind, context, short, extra in rows:
        limits = f"{low} … {high} {unit}".strip() if kind == "integer" else ""
        value = f"{default} {unit}".strip() if default else "empty"
        lines.append(f"| `{name}` | {value} | {limits} | {CONTEXTS[context]} | {short} {extra}".rstrip() + " |")
    return HEAD + "\n".join(lines) + "\n"


def test_the_table_in_the_docs_is_that_of_the_code(shared_cluster: Cluster) -> None:
    path = REPOSITORY / "docs" / "settings.md"
    written = table(shared_cluster)
    if os.environ.get("OUTBOX_WRITE_DOCS"):
        path.write_text(written)
    assert path.read_text() == written, "write it anew with OUTBOX_WRITE_DOCS=1"


def test_a_misspelt_setting_is_an_error(database: Database) -> None:
    with pytest.raises(psycopg.Error, match="reserved prefix"):
        database.execute("SET outbox.max_inflight = 5")


def test_a_misspelt_setting_in_the_file_is_a_warning(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"outbox.max_inflight": "5"})
    assert 'invalid configuration parameter name "outbox.max_inflight", removing it' in cluster.log_since(0)


def test_a_bad_default_destination_is_refused_and_the_old_one_kept(shared_cluster: Cluster) -> None:
    offset = shared_cluster.log_size()
    shared_cluster.configure({"outbox.default_destination": "http://user:secret@host/"})
    try:
        wait_until(
            lambda: shared_cluster.log_since(offset),
            lambda log: "URL must not contain a password" in log, what="the refusal in the log",
        )  # fmt: skip
        assert shared_cluster.execute("SHOW outbox.default_destination") == [("",)]
    finally:
        del shared_cluster.settings["outbox.default_destination"]
        shared_cluster.configure({})
