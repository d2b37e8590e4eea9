"""Copies of an installation: they deliver nothing before outbox.claim_identity(), however they were made."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from cluster import SUPERUSER, Cluster, Installation, MakeCluster, make_directory
from database import Database, create_database
from docs_blocks import blocks
from outbox_relay import OutboxRelay
from test_life import by_pg_restore, dump
from waiting import wait_until

pytestmark = pytest.mark.extension


@pytest.fixture
def files() -> dict[str, str]:
    """Values of outbox.identity_file: of the installation, of another one, one that is missing, and none."""
    directory = make_directory("identity")
    for name in ("production", "staging"):
        (directory / name).write_text(f"{name}\n")
        (directory / name).chmod(0o644)
    return {**{name: str(directory / name) for name in ("production", "staging", "missing")}, "none": ""}


def findings(database: Database) -> list[str]:
    return [found.why for found in database.health() if found.what == "copy"]


def stays_quiet(database: Database, why: str) -> None:
    """Its keeper has looked, and says so; nothing is delivered, fetched or resumed."""
    database.cluster.wait_for_workers(database.name, "keeper")
    wait_until(
        lambda: database.cluster.log_since(0), lambda log: f'nothing is delivered from database "{database.name}": {why}' in log,
        what="the keeper to say so",
    )  # fmt: skip
    assert findings(database) == [f"destinations are paused: {why}"]
    before = database.published()
    (event,) = database.enqueue()
    database.execute("SELECT outbox.resume('d')")
    database.add_destination("later", "null:")
    for name in ("d", "later"):
        assert (database.status(name)["state"], database.status(name)["last_error"]) == ("paused", why)
    assert (
        database.value("SELECT why FROM outbox.event_status(%s) WHERE destination = 'd'", (event,))
        == f"the destination is paused: {why}"
    )
    database.add_destination("pull", "pull:")
    assert database.execute("SELECT * FROM outbox.fetch('pull')") == []
    database.cluster.wait_for_workers(database.name, "keeper")
    assert database.published() == before


def delivers_after_claim(database: Database) -> None:
    database.execute("SELECT outbox.claim_identity('it is the one')")
    for name in ("d", "later"):
        database.wait_settled(name)
    assert findings(database) == []
    assert database.execute("SELECT action, why FROM outbox.operation ORDER BY id DESC LIMIT 1") == [
        ("claim identity", "it is the one")
    ]
    database.cluster.restart()
    database.enqueue()
    database.wait_settled()


@pytest.fixture
def original(make_cluster: MakeCluster, files: dict[str, str]) -> Database:
    cluster = make_cluster({"outbox.identity_file": files["production"], "wal_level": "logical"})
    database = create_database(cluster)
    database.add_destination("d", "null:")
    database.enqueue(count=3)
    database.wait_published(3)
    return database


@pytest.fixture
def base_backup(original: Database) -> Iterator[Cluster]:
    cluster = original.cluster.make_standby()
    (cluster.data / "standby.signal").unlink()
    yield cluster
    cluster.destroy()


@pytest.mark.parametrize("identity", ["staging", "missing", "none"])
def test_a_base_backup_that_starts_elsewhere_delivers_nothing(
    original: Database, base_backup: Cluster, files: dict[str, str], identity: str
) -> None:
    base_backup.settings["outbox.identity_file"] = files[identity]
    copy = Database(base_backup.start(), original.name)
    stays_quiet(copy, 'copy of "production"')
    delivers_after_claim(copy)
    original.enqueue()
    original.wait_settled()
    assert original.health() == []


def test_a_base_backup_with_the_same_identity_goes_on(original: Database, base_backup: Cluster) -> None:
    """As after the loss of the machine."""
    original.cluster.stop()
    restored = Database(base_backup.start(), original.name)
    restored.enqueue()
    restored.wait_settled()
    assert restored.health() == []


@pytest.mark.parametrize("identity", ["production", "staging"])
def test_a_promoted_standby_delivers_if_it_has_the_identity(
    original: Database, files: dict[str, str], identity: str
) -> None:
    standby = original.cluster.make_standby({"outbox.identity_file": files[identity]}).start()
    try:
        promoted = Database(standby, original.name)
        warnings = (
            [] if identity == "production" else ['nothing would be delivered after a promotion: copy of "production"']
        )
        assert findings(promoted) == warnings
        original.cluster.stop("immediate")
        standby.promote()
        if identity == "production":
            promoted.enqueue()
            promoted.wait_settled()
        else:
            stays_quiet(promoted, 'copy of "production"')
            delivers_after_claim(promoted)
    finally:
        standby.destroy()


def test_an_installation_without_an_identity_delivers_as_before(
    make_cluster: MakeCluster, files: dict[str, str]
) -> None:
    """The first identity that a server has is entered, whichever it is."""
    database = create_database(make_cluster())
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_settled()
    assert database.value("SELECT identity FROM outbox.installation") is None
    database.cluster.settings["outbox.identity_file"] = files["staging"]
    database.cluster.restart()
    database.enqueue()
    database.wait_settled()
    wait_until(
        lambda: database.value("SELECT identity FROM outbox.installation"), lambda seen: seen == "staging",
        what="the keeper to enter the identity",
    )  # fmt: skip


@pytest.mark.parametrize(
    "contents, complaint",
    [
        ("", "has no identity"),
        ("two words\n", "has no identity"),
        ("x" * 64, "has no identity"),
        (None, "could not read"),
    ],
)
def test_a_file_without_an_identity_is_reported(
    make_cluster: MakeCluster, contents: str | None, complaint: str
) -> None:
    path = make_directory("identity") / "identity"
    if contents is not None:
        path.write_text(contents)
        path.chmod(0o644)
    cluster = make_cluster({"outbox.identity_file": str(path)})
    assert complaint in cluster.log_since(0)
    assert create_database(cluster).value("SELECT outbox_internal.own_identity()") == ""


def test_a_file_in_the_data_directory_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(started=False)
    cluster.settings["outbox.identity_file"] = str(cluster.data / "identity")
    cluster.start()
    assert "not lead into the data directory" in cluster.log_since(0)
    assert cluster.execute("SHOW outbox.identity_file") == [("",)]


# -------------------------------------------------------------------------------------------------
# Logical copies: of another cluster, and by logical replication
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def other_cluster(installation: Installation) -> Iterator[Cluster]:
    """With an identifier of its own, as other clusters of tests do not have."""
    initdb = [
        str(installation.bin_directory / "initdb"), "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
        f"--username={SUPERUSER}", "-D",
    ]  # fmt: skip
    cluster = Cluster(installation, data_from=initdb).start()
    yield cluster
    cluster.destroy()


def name_of_cluster(database: Database, unnamed: bool) -> str:
    if not unnamed:
        return 'copy of "production"'
    return f"copy of cluster {database.value('SELECT system_identifier FROM pg_control_system()')}"


@pytest.mark.parametrize("unnamed", [False, True], ids=["identity", "no identity"])
def test_a_dump_that_is_restored_in_another_cluster_delivers_nothing(
    original: Database, other_cluster: Cluster, files: dict[str, str], unnamed: bool
) -> None:
    """Also where nothing is configured: its rows say which cluster they are from."""
    if unnamed:
        original.cluster.settings["outbox.identity_file"] = ""
        original.cluster.restart()
        original.execute("SELECT outbox.claim_identity()")
    copy = create_database(other_cluster, extension=False)
    by_pg_restore()(other_cluster, copy.name, dump(original.cluster, original.name, ["-Fc"]))
    stays_quiet(copy, name_of_cluster(original, unnamed))
    delivers_after_claim(copy)


STEPS_OF_SUBSCRIBER = next(block.text for block in blocks() if block.first == "ALTER SUBSCRIPTION upgrade DISABLE;")


def test_a_subscriber_delivers_nothing_and_goes_on_above_the_positions_of_its_publisher(
    original: Database, other_cluster: Cluster
) -> None:
    """The steps of docs/operations.md: an upgrade by logical replication."""
    path = dump(original.cluster, original.name, ["-Fc", "--schema-only"])
    subscriber = create_database(other_cluster, extension=False)
    by_pg_restore()(other_cluster, subscriber.name, path)
    original.execute("CREATE PUBLICATION upgrade FOR ALL TABLES")
    conninfo = original.cluster.conninfo(original.name).split(" connect_timeout")[0]
    subscriber.execute(f"CREATE SUBSCRIPTION upgrade CONNECTION '{conninfo}' PUBLICATION upgrade")
    wait_until(
        lambda: subscriber.execute("SELECT srrelid::regclass::text FROM pg_subscription_rel WHERE srsubstate <> 'r'"),
        lambda left: left == [], what="all tables to be copied",
    )  # fmt: skip
    original.enqueue(count=5)
    original.wait_published(8)
    positions = "SELECT position FROM outbox.event ORDER BY 1"
    wait_until(
        lambda: subscriber.execute(positions), lambda seen: seen == original.execute(positions),
        what="the events to reach the subscriber",
    )  # fmt: skip
    assert findings(subscriber) == ['destinations are paused: copy by subscription "upgrade"']
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="brings rows of the log"):
        subscriber.execute("SELECT outbox.claim_identity()")
    last = original.last_position()
    original.cluster.stop()
    *steps, claim = STEPS_OF_SUBSCRIBER.splitlines()
    assert claim.startswith("SELECT outbox.claim_identity(")
    for step in steps:
        subscriber.execute(step)
    stays_quiet(subscriber, 'copy of "production"')
    subscriber.enqueue(count=2)
    assert subscriber.last_position() > last
    delivers_after_claim(subscriber)
    subscriber.wait_published(3 + 1 + 2 + 1)  # those of the first copy of the cursor, and those since


def test_a_position_that_a_row_brings_moves_the_sequence_forwards_only(database: Database) -> None:
    database.enqueue(count=5)
    last = "SELECT last_value FROM outbox.event_position"
    for position, expected in ((3, 5), (20, 20), (10, 20)):
        database.execute("SELECT outbox_internal.raise_position(%s)", (position,))
        assert database.value(last) == expected
    with database.connect() as producer:
        producer.execute("BEGIN")
        producer.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
        with database.connect() as restoring:
            restoring.execute("SET lock_timeout = '10ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):  # it waits for those that take positions
                restoring.execute("SELECT outbox_internal.raise_position(21)")


# -------------------------------------------------------------------------------------------------
# Relays outside the server, and none
# -------------------------------------------------------------------------------------------------


def test_outbox_relay_delivers_for_its_own_installation_only(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster())
    database.add_destination("d", "null:", relay="external")
    relays = {
        name: OutboxRelay(database.cluster, database.name, name=name, of_database=f'identity = "{name}"')
        for name in ("production", "staging")
    }
    try:
        relays["production"].start()
        database.enqueue()
        database.wait_settled()
        assert relays["production"].end() == 0
        relays["staging"].start()
        wait_until(
            lambda: findings(database), lambda seen: seen == ['destinations are paused: copy of "production"'],
            what="the relay to be refused",
        )  # fmt: skip
        database.enqueue()
        assert database.status()["state"] == "paused"
        wait_until(
            relays["staging"].text, lambda log: 'nothing is delivered: copy of "production"' in log,
            what="the relay to say so",
        )  # fmt: skip
        assert database.value("SELECT relay FROM outbox.cursor WHERE destination = 'd'") is None
        database.execute("SELECT outbox.claim_identity()")
        database.wait_settled()
        assert database.value("SELECT relay_identity FROM outbox.installation") == "staging"
        assert findings(database) == []
    finally:
        for relay in relays.values():
            relay.close()


def test_the_identity_of_a_relay_outside_holds_for_relays_outside(make_cluster: MakeCluster) -> None:
    """A role with the right to relay could stop all deliveries of the server by the name of an identity."""
    database = create_database(make_cluster())
    database.add_destination("d", "null:")
    beat = (
        "SELECT copy FROM outbox_internal.relay_beat(%s, 'r', '1', '1 min', false, '{}', '{}', '{}', '{}', false, %s)"
    )
    assert database.value(beat, (uuid4(), "one")) is None
    assert database.value(beat, (uuid4(), "another")) == 'copy of "one"'
    database.enqueue()
    database.wait_settled()
    assert findings(database) == []


def test_without_workers_nothing_runs_and_health_says_so(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"outbox.max_workers": "0"}))
    database.add_destination("d", "null:")
    database.enqueue()
    assert database.cluster.workers() == []
    assert [(found.what, found.why) for found in database.health()] == [
        ("no workers", "outbox.max_workers is 0, so the server delivers nothing")
    ]
    assert "WARNING" not in database.cluster.log_since(0)
