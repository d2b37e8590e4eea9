"""A database with the SQL edition, on a server that loads no library. It belongs to a role without rights on the server."""

from __future__ import annotations

import json
import subprocess

from cluster import Cluster
from database import Database

from .drill import SETTINGS

OF_SERVER = {"shared_preload_libraries": ""}


class PlainDatabase(Database):
    def add_destination(self, name: str, url: str, **options: str) -> None:
        text = json.dumps({"url": url, **options})
        self.execute("INSERT INTO outbox.destination_config VALUES (%s, %s)", (name, text))


def make_plain_database(cluster: Cluster) -> PlainDatabase:
    cluster.execute("CREATE ROLE owner LOGIN")
    cluster.execute("CREATE DATABASE db OWNER owner")
    script = str(cluster.installation.build / "sql/pg_outbox--sql.sql")
    subprocess.run(
        ["psql", "-X", "-q", "-d", cluster.conninfo("db", "owner"), "-f", script], check=True, stdout=subprocess.DEVNULL
    )
    database = PlainDatabase(cluster, "db")
    for name, value in {**SETTINGS, "outbox.allowed_hosts": "127.0.0.1, localhost"}.items():
        database.execute("INSERT INTO outbox.setting VALUES (%s, %s)", (name.removeprefix("outbox."), value))
    return database
