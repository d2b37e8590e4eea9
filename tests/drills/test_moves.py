"""The database moves under load: to a promoted standby, and by dump and restore."""

from __future__ import annotations

import psycopg

from cluster import SUPERUSER, MakeCluster
from database import Database, create_database
from test_life import by_pg_restore, dump
from waiting import wait_until

from .drill import SETTINGS, MakeDrill


def test_a_promotion_loses_no_replicated_event(make_drill: MakeDrill) -> None:
    """Relays are killed before and after. Events that the standby had not received are lost with the primary."""
    drill = make_drill(settings={"wal_retrieve_retry_interval": "100ms"})
    primary = drill.cluster
    standby = primary.make_standby().start()
    promoted = Database(standby, "db")
    either = (
        f"host={primary.directory},{standby.directory} port={primary.port},{standby.port} "
        f"user={SUPERUSER} dbname=db target_session_attrs=read-write connect_timeout=20"
    )
    try:
        with drill.load(conninfo=either):
            drill.wait_for_arrivals(150)
            drill.kill("relay", drill.relay())
            drill.wait_for_arrivals(150)
            behind = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            wait_until(
                lambda: drill.database.value(behind), what="a standby that streams",
                ignoring=(psycopg.OperationalError,),
            )  # fmt: skip
            with drill.noted("promotion"):
                primary.kill_postmaster()
                drill.move_to(promoted)
                standby.promote()
            drill.wait_for_arrivals(150)
            drill.kill("relay", drill.relay())
            drill.wait_for_arrivals(150)
        drill.conclude(acknowledged_lasts=False)
    finally:
        standby.destroy()


def test_a_restored_dump_loses_no_dumped_event(make_drill: MakeDrill, make_cluster: MakeCluster) -> None:
    """A dump is taken while writers write; later the server is lost, and the dump goes on elsewhere."""
    drill = make_drill()
    with drill.load():
        drill.wait_for_arrivals(200)
        path = dump(drill.cluster, "db", ["-Fc"])
        drill.wait_for_arrivals(200)
    drill.cluster.kill_postmaster()
    new = make_cluster(SETTINGS)
    drill.move_to(create_database(new, extension=False))
    by_pg_restore()(new, "db", path)
    with drill.load():
        drill.wait_for_arrivals(100)
        drill.kill("relay", drill.relay())
        drill.wait_for_arrivals(100)
    drill.conclude(repeats=True, acknowledged_lasts=False)
