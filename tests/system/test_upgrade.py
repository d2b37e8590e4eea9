"""Upgrades with ALTER EXTENSION … UPDATE, and of pg_inbox without CREATE EXTENSION.

tests/upgrade has the install scripts of the versions before, as they were released. The library is
the new one, as for every database whose server has been restarted with a new package.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from catalog import differences, objects_of
from cluster import REPOSITORY, Installation
from database import Database, NewDatabase
from receiver import Receiver
from waiting import wait_until

OLD_SCRIPTS = REPOSITORY / "tests/upgrade"
OLD = "0.1.0"

pytestmark = pytest.mark.extension


@pytest.fixture(scope="module", autouse=True)
def old_versions(installation: Installation) -> None:
    """Makes CREATE EXTENSION … VERSION find the versions before."""
    (control,) = installation.stage.rglob("pg_inbox.control")
    for script in OLD_SCRIPTS.glob("*.sql"):
        shutil.copy(script, control.parent)
        (control.parent / script.name).chmod(0o644)


def dump_and_restore(source: Database, target: Database) -> None:
    programs = source.cluster.installation.bin_directory
    dump = subprocess.run(
        [str(programs / "pg_dump"), "-d", source.cluster.conninfo(source.name)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    subprocess.run(
        [str(programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", target.cluster.conninfo(target.name)],
        check=True, capture_output=True, text=True, input=dump,
    )  # fmt: skip


@pytest.mark.parametrize("schema", ["inbox", "outbox"])
def test_an_upgraded_database_has_the_objects_of_a_new_one(new_database: NewDatabase, schema: str) -> None:
    fresh, upgraded, restored = (new_database(extension=False) for _ in range(3))
    fresh.execute(f"CREATE EXTENSION pg_{schema}")
    upgraded.execute(f"CREATE EXTENSION pg_{schema} VERSION '{OLD}'")
    expected = objects_of(fresh, schema)
    assert differences(expected, objects_of(upgraded, schema)) != {}
    upgraded.execute(f"ALTER EXTENSION pg_{schema} UPDATE")
    assert differences(expected, objects_of(upgraded, schema)) == {}
    dump_and_restore(upgraded, restored)
    assert differences(expected, objects_of(restored, schema)) == {}


# -------------------------------------------------------------------------------------------------
# Data
# -------------------------------------------------------------------------------------------------

# As the library of that version wrote an event. The present one refuses to write to objects of another version.
OLD_ENQUEUE = """
    INSERT INTO outbox.event_0 (position, xid, occurred_at, event_id, version, schema_version, topic, aggregate_type,
                                aggregate_id, event_type, ordering_key, content_type, payload)
    SELECT nextval('outbox.event_position'), pg_current_xact_id(), now(), gen_random_uuid(), n, 1, 'item', 'item',
           %s::text, 'changed', 'item:' || %s::text, 'application/json', '{}'
      FROM generate_series(1, %s) AS n
    RETURNING event_id::text
"""


def old_events(database: Database, key: str, count: int) -> list[str]:
    return [event for (event,) in database.execute(OLD_ENQUEUE, (key, key, count))]


def update(database: Database) -> None:
    database.execute("ALTER EXTENSION pg_outbox UPDATE")
    database.disconnect()  # and ends nothing else


@pytest.fixture
def outbox(new_database: NewDatabase) -> Database:
    """A database with the objects of the version before."""
    database = new_database(extension=False)
    database.execute(f"CREATE EXTENSION pg_outbox VERSION '{OLD}'")
    return database


def test_events_in_every_state_survive(outbox: Database, receiver: Receiver, http: None) -> None:
    outbox.add_destination("bus", receiver.url())
    refused = old_events(outbox, "refused", 2)
    retried = old_events(outbox, "retried", 1)
    fail = (
        "SELECT state FROM outbox.event AS e, outbox_internal.fail_events('bus', ARRAY[e.xid], ARRAY[e.position], "
        "ARRAY['no'], ARRAY[%s]) WHERE e.event_id = %s"
    )
    assert outbox.value(fail, (True, refused[0])) == "DEAD"
    outbox.value(fail, (False, retried[0]))
    assert outbox.execute("SELECT state, count(*) FROM outbox.delivery GROUP BY 1 ORDER BY 1") == [
        ("DEAD", 1), ("RELEASED", 1),
    ]  # fmt: skip
    waiting = old_events(outbox, "waiting", 20)
    replay = outbox.value("SELECT outbox.replay('bus', event_ids => ARRAY[%s::uuid])", (refused[1],))

    update(outbox)
    every = {*refused[1:], *retried, *waiting}
    wait_until(lambda: every <= set(receiver.ids()), what="all events but the dead letter")
    arrived = receiver.ids()
    assert refused[0] not in arrived
    assert [event for event in arrived if event in waiting] == waiting
    assert arrived.count(refused[1]) >= 1
    wait_until(
        lambda: outbox.value("SELECT waiting FROM outbox.replay_progress WHERE id = %s", (replay,)) == 0,
        what="the replay to end",
    )  # fmt: skip
    assert outbox.execute("SELECT event_id::text FROM outbox.dead_letter") == [(refused[0],)]
    assert outbox.value("SELECT outbox.redrive('bus', %s::uuid)", (refused[0],)) == 1
    (new,) = outbox.enqueue("waiting", first=21)
    wait_until(lambda: {refused[0], new} <= set(receiver.ids()), what="the redriven event and a new one")
    outbox.wait_settled("bus")


def test_a_lease_of_a_fetcher_survives(outbox: Database) -> None:
    outbox.add_destination("files", "pull:")
    old_events(outbox, "a", 3)
    fetched = outbox.execute("SELECT token, event_id FROM outbox.fetch('files', 2, lease => '1 hour')")
    assert len(fetched) == 2
    update(outbox)
    assert outbox.value("SELECT outbox.ack(%s)", (fetched[0][0],)) == 2
    rest = outbox.execute("SELECT token, event_id FROM outbox.fetch('files')")
    assert len(rest) == 1 and rest[0][1] not in {event for _, event in fetched}
    assert outbox.value("SELECT outbox.ack(%s)", (rest[0][0],)) == 1


def test_a_captured_table_stays_captured(outbox: Database) -> None:
    outbox.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    outbox.execute("SELECT outbox.capture('item', aggregate_type => 'item')")
    update(outbox)
    before = outbox.value("SELECT count(*) FROM outbox.event")
    outbox.execute("INSERT INTO item VALUES (1, 'a'); UPDATE item SET name = 'b'; DELETE FROM item")
    assert outbox.value("SELECT count(*) FROM outbox.event") == before + 3
    outbox.execute("SELECT outbox.capture('item', aggregate_type => 'thing', replace => true)")
    outbox.execute("INSERT INTO item VALUES (2, 'a')")
    assert outbox.value("SELECT aggregate_type FROM outbox.event ORDER BY position DESC LIMIT 1") == "thing"
    assert outbox.value("SELECT outbox.uncapture('item')")
