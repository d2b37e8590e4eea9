"""outbox.health() and outbox.metrics(): reports for people and for a monitoring system."""

from __future__ import annotations

import re

import pytest

from cluster import MakeCluster
from database import Database, NewDatabase, create_database
from receiver import Receiver, answer, everything
from waiting import wait_until


def health(database: Database) -> tuple[str, list[str]]:
    return database.execute("SELECT * FROM outbox.health()")[0]


def wait_for_state(database: Database, state: str) -> list[str]:
    """Returns the reasons."""
    return wait_until(
        lambda: health(database), lambda seen: seen[0] == state, what=f"health to be {state}"
    )[1]


def test_a_system_that_delivers_is_ok(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue("a", 10)
    database.wait_settled()
    assert health(database) == ("ok", [])


def test_events_that_wait_for_a_destination(database: Database) -> None:
    assert health(database) == ("ok", [])
    database.enqueue("a")
    state, (reason,) = health(database)
    assert state == "degraded"
    assert database.value("SELECT outbox_internal.how_to_make_destination()") in reason


def test_a_destination_that_fails(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(503))
    database.add_destination("d", receiver.url())
    database.add_destination("fine", "null:")
    database.enqueue("a")
    (reason,) = wait_for_state(database, "degraded")
    assert 'destination "d" fails since' in reason and "HTTP 503" in reason
    receiver.forget_rules()
    wait_for_state(database, "ok")


@pytest.mark.extension("workers")
def test_a_destination_without_a_relay(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"outbox.max_workers": "1"}))
    database.add_destination("d", "null:")
    (reason,) = wait_for_state(database, "failing")
    assert 'destination "d" has no relay' in reason and "max_worker_processes" in reason


@pytest.mark.extension("workers")
def test_a_server_that_does_not_preload(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"shared_preload_libraries": ""}))
    database.add_destination("d", "null:")
    state, (reason,) = health(database)
    assert state == "failing"
    assert "shared_preload_libraries" in reason


def test_a_log_that_is_too_large_names_its_holders(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    receiver.on(everything, answer(503))
    database = new_database({"outbox.max_log_size": "1MB"})
    database.add_destination("d", receiver.url())
    database.enqueue("a", 20_000)
    reasons = wait_for_state(database, "degraded")
    assert any("more than outbox.max_log_size; it is held by d" in reason for reason in reasons)


SAMPLE = re.compile(r'^(\w+)\{(\w+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?\d+(\.\d+)?$')


def test_metrics_are_openmetrics_text(database: Database) -> None:
    database.add_destination('odd "name" \\', "null:")
    database.enqueue("a", 10)
    database.wait_settled('odd "name" \\')
    database.wait_for_state("idle", 'odd "name" \\')
    lines = database.value("SELECT outbox.metrics()").splitlines()
    assert lines[-1] == "# EOF"
    for line in lines[:-1]:
        assert line.startswith(("# TYPE outbox_", "# HELP outbox_")) or SAMPLE.match(line), line
    assert r'outbox_published_total{destination="odd \"name\" \\"} 10' in lines
    assert r'outbox_up{destination="odd \"name\" \\"} 1' in lines
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) == 14


def test_events_in_trouble(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(lambda request: request.headers["ce-subject"] == "dead", answer(413))
    receiver.on(lambda request: request.headers["ce-subject"] == "later", answer(400))
    database.add_destination("d", receiver.url(), retry_base="1440min", retry_max="1440min")
    database.enqueue("dead")
    database.enqueue("later")
    dead, later = wait_until(
        lambda: health(database)[1], lambda seen: len(seen) == 2, what="two reasons"
    )
    assert 'destination "d" has 1 dead letters' in dead and "HTTP 413" in dead
    assert 'destination "d" has refused 1 events, which will be tried again (HTTP 400)' in later
    assert health(database)[0] == "degraded"
    assert 'outbox_dead_letters{destination="d"} 1' in database.value("SELECT outbox.metrics()")
    assert 'outbox_retries{destination="d"} 1' in database.value("SELECT outbox.metrics()")
    database.change_destination("d", on_dead_letter="block")
    (reason,) = [text for text in wait_for_state(database, "failing") if "dead" in text]
    assert "block their keys" in reason


def test_a_paused_destination(database: Database) -> None:
    database.add_destination("d", "null:")
    database.execute("SELECT outbox.pause('d')")
    (reason,) = wait_for_state(database, "degraded")
    assert reason == 'destination "d" is paused; outbox.resume() continues'
    database.execute("SELECT outbox.resume('d')")
    wait_for_state(database, "ok")
