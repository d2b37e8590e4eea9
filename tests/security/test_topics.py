"""Topics that a role may produce: only those granted to it by name, also after a revoke."""

from __future__ import annotations

from contextlib import suppress

import pytest
from psycopg import errors

from database import Database

from .attacker import Attacker, NewAttacker

SECRET = 'permission denied for topic "secret.bank"'


def topics_captured(role: Attacker) -> set[str]:
    """Captures a table with a topic column, and tries two topics."""
    role.execute("CREATE TABLE IF NOT EXISTS t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text)")
    with suppress(errors.InsufficientPrivilege):  # the right to capture is gone; the table stays captured
        role.execute("SELECT outbox.capture('t', topic => 'video.x', topic_column => 'topic', replace => true)")
    role.database.execute("TRUNCATE outbox.event_0")
    for topic in ("video.x", "secret.bank"):
        with suppress(errors.InsufficientPrivilege):
            role.execute("INSERT INTO t (topic) VALUES (%s)", (topic,))
    return {topic for (topic,) in role.database.execute("SELECT topic FROM outbox.event")}


def topics_enqueued(role: Attacker) -> set[str]:
    role.database.execute("TRUNCATE outbox.event_0")
    for topic in ("video.x", "secret.bank"):
        with suppress(errors.InsufficientPrivilege):
            role.execute("SELECT outbox.enqueue('a', '1', 'E', '{}', topic => %s)", (topic,))
    return {topic for (topic,) in role.database.execute("SELECT topic FROM outbox.event")}


def grant(role: Attacker, right: str, topics: str) -> None:
    role.database.execute(f"SELECT outbox.grant_{right}(%s, %s)", (role.role, topics))


def revoke(role: Attacker, right: str) -> None:
    role.database.execute(f"SELECT outbox.revoke_{right}(%s)", (role.role,))


def test_revoke_produce_does_not_widen_what_is_captured(new_attacker: NewAttacker) -> None:
    """S14"""
    role = new_attacker()
    grant(role, "produce", "video.*")
    grant(role, "capture", "video.*")
    assert topics_captured(role) == {"video.x"}
    revoke(role, "produce")
    assert topics_captured(role) == {"video.x"}
    assert topics_enqueued(role) == set()


def test_revoke_capture_does_not_widen_what_is_enqueued(new_attacker: NewAttacker) -> None:
    """S14, the other way round. Captured tables stay captured, with their topics."""
    role = new_attacker()
    grant(role, "capture", "*")
    assert topics_captured(role) == {"video.x", "secret.bank"}
    grant(role, "produce", "video.*")
    assert topics_enqueued(role) == {"video.x"}
    revoke(role, "capture")
    assert topics_enqueued(role) == {"video.x"}
    assert topics_captured(role) == {"video.x", "secret.bank"}
    role.database.execute(f"SELECT outbox.uncapture('{role.role}.t'), outbox.revoke_capture('{role.role}')")
    role.database.execute(f"SELECT outbox.capture('{role.role}.t', topic => 'video.x', topic_column => 'topic')")
    assert topics_captured(role) == {"video.x"}
    revoke(role, "produce")
    assert topics_captured(role) == set()
    assert topics_enqueued(role) == set()


@pytest.mark.parametrize("order", ["capture first", "produce first"])
def test_grant_capture_without_topics_has_those_of_grant_produce(new_attacker: NewAttacker, order: str) -> None:
    """S14: also after they were revoked."""
    role = new_attacker()
    grants = ["SELECT outbox.grant_capture(%s)", "SELECT outbox.grant_produce(%s, 'video.*')"]
    for statement in grants if order == "capture first" else reversed(grants):
        role.database.execute(statement, (role.role,))
    assert topics_captured(role) == {"video.x"}
    revoke(role, "produce")
    assert topics_captured(role) == {"video.x"}
    role.database.execute("SELECT outbox.grant_capture(%s)", (role.role,))
    assert topics_captured(role) == {"video.x", "secret.bank"}


def test_topics_of_captures_do_not_allow_enqueue_and_views(new_attacker: NewAttacker) -> None:
    role = new_attacker()
    grant(role, "capture", "*")
    with pytest.raises(errors.InsufficientPrivilege, match="function enqueue"):
        role.execute("SELECT outbox.enqueue('a', '1', 'E', '{}', topic => 'video.x')")
    role.database.execute(
        f"SELECT outbox.create_outbox_view('{role.role}.v', 'debezium', topic => 'secret.bank', shows => 'all');"
        f"ALTER VIEW {role.role}.v OWNER TO {role.role}"
    )
    insert = "INSERT INTO v VALUES (gen_random_uuid(), 'a', '1', 'E', '{}')"
    with pytest.raises(errors.InsufficientPrivilege, match=SECRET):
        role.execute(insert)
    grant(role, "produce", "secret.*")
    role.execute(insert)
    revoke(role, "produce")
    with pytest.raises(errors.InsufficientPrivilege, match=SECRET):
        role.execute(insert)


def test_topics_that_are_granted_limit_what_can_be_captured(new_attacker: NewAttacker) -> None:
    role = new_attacker()
    grant(role, "capture", "video.*")
    role.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(errors.InsufficientPrivilege, match=SECRET) as caught:
        role.execute("SELECT outbox.capture('t', topic => 'secret.bank')")
    assert 'may produce events of the topics "video.*"' in str(caught.value.diag.message_detail)
    role.execute("SELECT outbox.capture('t', topic => 'video.x')")
    grant(role, "capture", "user.*")
    with pytest.raises(errors.InsufficientPrivilege, match="video.x"):
        role.execute("INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("way", ["plain", "of a group", "public"])
def test_execute_without_a_grant_of_topics_produces_nothing(new_attacker: NewAttacker, way: str) -> None:
    """S14: a deleted row, or one lost in a restore, must only reduce the topics."""
    role, group = new_attacker(), new_attacker()
    to = {"plain": role.role, "of a group": group.role, "public": "PUBLIC"}[way]
    role.database.execute(
        f"GRANT USAGE ON SCHEMA outbox, outbox_internal TO {to}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO {to}"
    )
    if way == "of a group":
        role.database.execute(f"GRANT {group.role} TO {role.role}")
    assert topics_enqueued(role) == set()
    grant(role, "produce", "video.*")
    assert topics_enqueued(role) == {"video.x"}
    revoke(role, "produce")
    assert topics_enqueued(role) == set()
    grant(role, "produce", "*")
    role.database.execute("TRUNCATE outbox.producer")
    assert topics_enqueued(role) == set()


def test_a_captured_table_has_the_topics_of_its_owner(new_attacker: NewAttacker) -> None:
    """It does not matter which role changes its rows, captured it, or owned it before."""
    role, heir = new_attacker("outbox.grant_capture"), new_attacker()
    database: Database = role.database
    role.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role.execute("SELECT outbox.capture('t', topic => 'secret.bank')")
    role.execute("INSERT INTO t VALUES (1)")
    insert = f"INSERT INTO {role.role}.t VALUES (2)"
    with pytest.raises(errors.InsufficientPrivilege, match=SECRET):
        database.execute(f"ALTER TABLE {role.role}.t OWNER TO {heir.role}")
    database.execute(f"REASSIGN OWNED BY {role.role} TO {heir.role}")
    with pytest.raises(errors.InsufficientPrivilege, match=SECRET):
        database.execute(insert)
    grant(heir, "capture", "secret.*")
    database.execute(insert)
