"""pg_upgrade of databases in which everything is unfinished: from the server to itself, or from that of
OUTBOX_OLD_PG_CONFIG and OUTBOX_OLD_BUILD (scripts/majors.sh --upgrade).

The event log says which transactions a relay has seen by their ids, and in which order events come by a sequence:
both go on in the new server where they stopped in the old one, or events are lost or come out of order.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog import objects_of
from cluster import SUPERUSER, Cluster, Installation, as_server_user, free_port
from database import Database, create_database
from receiver import Receiver, answer, subject
from waiting import wait_until

pytestmark = pytest.mark.extension

TABLES = [
    "event",
    "source_event",
    "delivery",
    "batch",
    "captured",
    "producer",
    "operation",
    "backfill_row",
    "transaction",
]
MESSAGES = ["consumer", "subscription", "message", "processed", "waiting", "dead_message", "tombstone", "setting"]


def rows(database: Database, schema: str, tables: list[str]) -> dict[str, list[tuple]]:
    return {table: database.execute(f"SELECT t::text FROM {schema}.{table} AS t ORDER BY 1") for table in tables}


@pytest.fixture(scope="module")
def old_installation(installation: Installation) -> Iterator[Installation]:
    if "OUTBOX_OLD_PG_CONFIG" not in os.environ:
        yield installation
        return
    old = Installation(os.environ["OUTBOX_OLD_PG_CONFIG"], os.environ["OUTBOX_OLD_BUILD"])
    yield old
    old.remove()


@pytest.fixture
def clusters(old_installation: Installation, installation: Installation) -> Iterator[tuple[Cluster, Cluster]]:
    """The old server, which runs, and the new one, which has no data yet."""
    if not finds_library(installation):
        pytest.skip("NOT TESTED: pg_outbox is not installed where pg_upgrade to 18 looks for it")
    initdb = [
        str(installation.bin_directory / "initdb"), "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
        f"--username={SUPERUSER}", *no_checksums(old_installation, installation), "-D",
    ]  # fmt: skip
    made = [Cluster(old_installation).start(), Cluster(installation, data_from=initdb)]
    yield made[0], made[1]
    for cluster in made:
        cluster.destroy()


def finds_library(installation: Installation) -> bool:
    """pg_upgrade loads $libdir/pg_outbox, which 18 does not look for elsewhere."""
    return (
        "extension_destdir" in installation.settings or Path(installation.ask("--pkglibdir"), "pg_outbox.so").exists()
    )


def no_checksums(old: Installation, new: Installation) -> list[str]:
    """initdb of 18 turns them on unless this is said; they must be alike on both sides."""
    return ["--no-data-checksums"] if old.major < 18 <= new.major else []


def upgrade(old: Cluster, new: Cluster) -> None:
    old.stop()
    new.port = free_port()
    new.write_settings()
    result = subprocess.run(
        as_server_user([
            str(new.installation.bin_directory / "pg_upgrade"), "--username", SUPERUSER,
            "--old-bindir", str(old.installation.bin_directory), "--new-bindir", str(new.installation.bin_directory),
            "--old-datadir", str(old.data), "--new-datadir", str(new.data), "--socketdir", str(new.directory),
        ]),
        cwd=new.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    logs = "".join(
        f"\n--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
        for path in new.data.rglob("pg_upgrade_output.d/**/*.log")
    )
    assert result.returncode == 0, result.stdout + logs
    new.start()


def failures(database: Database) -> list[tuple[str, int, str]]:
    return database.execute(
        "SELECT aggregate_id, version, state FROM outbox.delivery WHERE operation IS NULL ORDER BY 1, 2"
    )


def names_of_objects(outbox: Database, inbox: Database) -> set[str]:
    """Leaves out objects that newer majors have more of, or describe in other words."""
    names = {*objects_of(outbox, "outbox"), *objects_of(inbox, "inbox")}
    of_newer = re.compile("member type |constraint .*_not_null")  # since 17, and since 18
    return {name.replace('"', "") for name in names if not of_newer.match(name)}


def rows_done(database: Database, backfill: int) -> int:
    return database.value("SELECT rows_done FROM outbox.backfill_progress WHERE id = %s", (backfill,))


def test_everything_unfinished_goes_on(clusters: tuple[Cluster, Cluster], receiver: Receiver, http: None) -> None:
    old, new = clusters
    outbox, copy = create_database(old, "app"), create_database(old, "copy", extension=False)

    # A dead letter, a retry with an event behind it, a backlog, and a replay.
    receiver.on(subject("poison", "later"), answer(422))
    outbox.add_destination("strict", receiver.url(), topics="strict", max_attempts="1")
    outbox.add_destination("bus", receiver.url(), topics="item.events", retry_base="24h", retry_max="24h")
    (poison,) = outbox.enqueue("poison", topic="strict")
    outbox.enqueue("later", 2)
    sent = outbox.enqueue("fine", 50)
    in_trouble = [("later", 1, "RETRY"), ("later", 2, "PENDING"), ("poison", 1, "DEAD")]
    wait_until(lambda: failures(outbox), lambda seen: seen == in_trouble, what="the failures")
    outbox.wait_settled("bus")
    outbox.pause("bus")
    backlog = outbox.enqueue("fine", 500, first=51)
    outbox.execute("SELECT outbox.replay('bus', event_ids => ARRAY[%s::uuid])", (sent[0],))

    # A fetcher with a lease.
    outbox.add_destination("files", "pull:", topics="file")
    files = outbox.enqueue("f", 4, topic="file")
    leased = outbox.execute("SELECT token, event_id::text FROM outbox.fetch('files', 2, lease => '1 day')")
    assert [event for _, event in leased] == files[:2]

    # A captured table, of which a part is backfilled, and its copy in another database.
    copy.execute(
        "CREATE EXTENSION pg_inbox; CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL, name text);"
        "CREATE FUNCTION follow(m inbox.message) RETURNS void LANGUAGE sql AS "
        "$$ SELECT inbox.apply('item', ARRAY['id'], 'version', inbox.json(m)) $$;"
        "SELECT inbox.subscribe('copy', '*', 'follow')"
    )
    outbox.execute(
        "CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL, name text);"
        "INSERT INTO item SELECT n, 1, 'name ' || n FROM generate_series(1, 5000) AS n;"
        "SELECT outbox.capture('item', aggregate_type => 'row', version => 'version')"
    )
    outbox.add_destination("copy", copy.inbox_url(), topics="row.events", consumer="copy")
    backfill = outbox.value("SELECT outbox.backfill('item', 'copy', batch => 100, rate => 1000)")
    wait_until(lambda: rows_done(outbox, backfill), lambda done: 0 < done < 5000, what="a part of the backfill")
    outbox.execute("SELECT outbox.pause_backfill(%s)", (backfill,))
    wait_until(lambda: outbox.pid("backfill"), lambda pid: pid is None, what="its worker to end")
    done = rows_done(outbox, backfill)
    wait_until(
        lambda: copy.value("SELECT count(*) FROM item"), lambda copied: copied == done, what="this part to be copied"
    )
    outbox.pause("copy")
    outbox.execute("UPDATE item SET version = 2, name = 'changed' WHERE id <= 10")
    outbox.execute("SELECT outbox.create_outbox_view('app_outbox', 'seed')")

    before = rows(outbox, "outbox", TABLES) | rows(copy, "inbox", MESSAGES)
    objects = names_of_objects(outbox, copy)
    last = outbox.last_position()
    for database in (outbox, copy):
        database.disconnect()

    upgrade(old, new)
    outbox, copy = Database(new, "app"), Database(new, "copy")
    there = rows(outbox, "outbox", TABLES) | rows(copy, "inbox", MESSAGES)
    assert {
        table: sorted(set(before[table]) ^ set(there[table])) for table in before if before[table] != there[table]
    } == {}
    assert names_of_objects(outbox, copy) == objects

    # New events have higher positions than the old ones, and arrive after them.
    after = outbox.enqueue("fine", 10, first=551)
    outbox.execute(
        "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
        "VALUES (gen_random_uuid(), 'item', 'fine', 'changed', 561, '{}')"
    )
    assert outbox.value("SELECT min(position) FROM outbox.event WHERE aggregate_id = 'fine' AND version > 550") > last
    receiver.forget_rules()
    outbox.execute("SELECT outbox.resume('bus')")
    assert outbox.value("SELECT outbox.redrive('strict', %s::uuid)", (poison,)) == 1
    wait_until(
        lambda: receiver.versions("fine"), lambda seen: max(seen) == 561 and seen.count(1) == 2,
        what="the backlog, what is new, and the replay",
    )  # fmt: skip
    assert [version for version in receiver.versions("fine") if version > 50] == list(range(51, 562))
    assert {*sent, *backlog, *after} <= set(receiver.ids())
    wait_until(lambda: failures(outbox), lambda seen: seen == in_trouble[:2], what="the dead letter to be delivered")

    assert outbox.value("SELECT outbox.ack(%s)", (leased[0][0],)) == 2
    assert [event for (event,) in outbox.execute("SELECT event_id::text FROM outbox.fetch('files')")] == files[2:]

    outbox.execute("INSERT INTO item VALUES (5001, 1, 'new')")
    outbox.execute("SELECT outbox.resume('copy'), outbox.resume_backfill(%s)", (backfill,))
    everything = outbox.execute("SELECT * FROM item ORDER BY id")
    wait_until(
        lambda: copy.execute("SELECT * FROM item ORDER BY id"), lambda seen: seen == everything, what="the copy to be equal"
    )  # fmt: skip
    outbox.execute("DROP EXTENSION pg_outbox CASCADE")
    copy.execute("DROP EXTENSION pg_inbox CASCADE")
