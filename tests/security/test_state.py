"""State that names a role or a foreign server: it is valid only while that one is unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import errors

from conftest import MakeCluster
from database import Database, create_database
from waiting import wait_until

from .attacker import Attacker, NewAttacker

# -------------------------------------------------------------------------------------------------
# Names of servers
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def with_default(make_cluster: MakeCluster) -> Iterator[Database]:
    """A database with a paused outbox.default_destination, and another wrapper that a role may use."""
    database = create_database(make_cluster({"outbox.default_destination": "null:"}))
    database.wait_for_worker("relay", "default")
    database.execute("CREATE FOREIGN DATA WRAPPER other")
    database.execute("CREATE ROLE mallory LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER other TO mallory")
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.cursor"), what="the cursor of the default destination"
    )
    database.pause("default")
    yield database


def test_servers_of_other_wrappers_do_not_change_the_default_destination(with_default: Database) -> None:
    """S20"""
    database, mallory = with_default, Attacker(with_default, "mallory")
    state = "SELECT destination, number, server, paused FROM outbox.cursor"
    before = database.execute(state)
    assert [row[0] for row in before] == ["default"]
    database.execute(
        "INSERT INTO outbox.delivery (position, xid, occurred_at, event_id, schema_version, topic, aggregate_type, "
        "aggregate_id, event_type, ordering_key, content_type, destination, state) "
        "VALUES (1, '9', now(), gen_random_uuid(), 1, 't', 'a', '1', 'E', 'k', 'a/b', 'default', 'DEAD')"
    )
    for statement in (
        'CREATE SERVER "default" FOREIGN DATA WRAPPER other',
        "ALTER SERVER \"default\" VERSION '2'",
        'ALTER SERVER "default" RENAME TO stolen',
        "ALTER SERVER stolen VERSION '3'",
        'ALTER SERVER stolen RENAME TO "default"',
        'DROP SERVER "default"',
        'CREATE SERVER "default" FOREIGN DATA WRAPPER other',
        "DROP OWNED BY mallory",
    ):
        mallory.execute(statement)
        assert database.execute(state) == before, statement
    assert database.value("SELECT count(*) FROM outbox.delivery") == 1


def test_a_destination_cannot_be_called_default(with_default: Database) -> None:
    """S20"""
    database = with_default
    with pytest.raises(errors.ReservedName, match='cannot be called "default"'):
        database.add_destination("default", "null:")
    database.add_destination("d", "null:")
    with pytest.raises(errors.ReservedName, match='cannot be called "default"'):
        database.execute('ALTER SERVER d RENAME TO "default"')
    database.execute("DROP SERVER d")
    assert database.execute("SELECT destination, paused FROM outbox.cursor") == [("default", True)]


def test_a_destination_is_followed_by_name_if_its_oid_has_changed(new_attacker: NewAttacker) -> None:
    """S20: a cursor may have an OID that is not that of its server any more, as after pg_upgrade."""
    mallory = new_attacker()
    database, me = mallory.database, mallory.role
    database.execute(f"CREATE FOREIGN DATA WRAPPER other; GRANT USAGE ON FOREIGN DATA WRAPPER other TO {me}")
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_published(1)
    mallory.execute("CREATE SERVER stolen FOREIGN DATA WRAPPER other")
    database.execute("UPDATE outbox.cursor SET server = (SELECT oid FROM pg_foreign_server WHERE srvname = 'stolen')")
    mallory.execute("ALTER SERVER stolen RENAME TO mine")
    assert database.execute("SELECT destination FROM outbox.cursor") == [("d",)]
    database.execute("UPDATE outbox.cursor SET server = (SELECT oid FROM pg_foreign_server WHERE srvname = 'mine')")
    mallory.execute("DROP SERVER mine")
    assert database.execute("SELECT destination FROM outbox.cursor") == [("d",)]
    database.execute("UPDATE outbox.cursor SET server = 1; ALTER SERVER d RENAME TO e")
    assert database.execute("SELECT destination FROM outbox.cursor") == [("e",)]
    # A relay that starts now would wait for the cursor, and DROP SERVER for the relay.
    database.enqueue()
    database.wait_published(2, "e")
    database.execute("UPDATE outbox.cursor SET server = 1")
    database.execute("DROP SERVER e")
    assert database.execute("SELECT destination FROM outbox.cursor") == []


# -------------------------------------------------------------------------------------------------
# Roles
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, error",
    [
        ("SELECT outbox.revoke_capture('{role}')", "may not backfill tables any more"),
        ("ALTER TABLE {role}.t OWNER TO {heir}", "is not owner of table"),
        ("REASSIGN OWNED BY {role} TO {heir}", "is not owner of table"),
        ("ALTER ROLE {role} RENAME TO {role}_x; ALTER ROLE {role}_x RENAME TO {role}", None),
    ],
)
def test_a_backfill_fails_only_if_its_role_has_lost_the_right(
    new_attacker: NewAttacker, change: str, error: str | None
) -> None:
    role, heir = new_attacker("outbox.grant_capture"), new_attacker("outbox.grant_capture")
    database = role.database
    database.add_destination("d", "null:")
    role.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role.execute("SELECT outbox.capture('t')")
    database.pause("d")
    role.execute("INSERT INTO t SELECT generate_series(1, 3)")
    role.execute("SELECT outbox.backfill('t', batch => 1, max_pending => 1)")
    progress = "SELECT state, last_error FROM outbox.backfill_task"
    wait_until(
        lambda: database.value("SELECT waiting_for FROM outbox.backfill_progress"),
        lambda reason: reason and "destination" in reason, what="the backfill to wait for the destination",
    )  # fmt: skip
    database.execute(change.format(role=role.role, heir=heir.role))
    database.execute("SELECT outbox.resume('d')")
    [(state, seen)] = wait_until(
        lambda: database.execute(progress), lambda rows: rows[0][0] != "running", what="the backfill to end"
    )
    assert state == ("failed" if error else "finished")
    assert error is None or error in seen
    database.execute("DROP SERVER d")


def test_a_restored_backfill_waits_for_its_role(new_attacker: NewAttacker) -> None:
    """Only a member of that role, or an operator, can resume it."""
    role, other = new_attacker("outbox.grant_capture"), new_attacker("outbox.grant_capture")
    database = role.database
    database.add_destination("d", "null:")
    role.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role.execute("SELECT outbox.capture('t')")
    database.execute(
        "INSERT INTO outbox.backfill_task (id, relation, role, batch, max_pending, state, parts, rows_estimated, started_at) "
        f"VALUES (7, '{role.role}.t', '{role.role}', 1, 1, 'running', '{{{role.role}.t}}', 1, '2020-01-01')"
    )
    assert database.value("SELECT state FROM outbox.backfill_task") == "paused"
    with pytest.raises(errors.InsufficientPrivilege):
        other.execute("SELECT outbox.resume_backfill(7)")
    role.execute("SELECT outbox.resume_backfill(7)")
    wait_until(
        lambda: database.value("SELECT state FROM outbox.backfill_task"),
        lambda state: state == "finished", what="the backfill to finish",
    )  # fmt: skip
    database.execute("DROP SERVER d")


def test_grants_of_dropped_roles_have_no_effect(new_attacker: NewAttacker) -> None:
    """An OID of a dropped role in outbox.producer, and a row without topics."""
    role = new_attacker("outbox.grant_produce")
    database = role.database
    database.execute(
        "ALTER TABLE outbox.producer ALTER topics DROP NOT NULL;"
        "UPDATE outbox.producer SET role = '4000000000';"
        f"INSERT INTO outbox.producer (role, topics) VALUES ('{role.role}', NULL)"
    )
    with pytest.raises((errors.InsufficientPrivilege, errors.NullValueNotAllowed)):
        role.execute("SELECT outbox.enqueue('a', '1', 'E', '{}')")
