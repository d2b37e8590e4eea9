"""outbox.health() and outbox.metrics(): reports for people and for a monitoring system."""

from __future__ import annotations

import os
import re
import signal
from typing import NamedTuple

import psycopg
import pytest

from cluster import MakeCluster
from database import OUTSIDE, Database, Finding, NewDatabase, create_database
from receiver import Receiver, answer, everything
from sinks.servers import add_clients_to_path
from waiting import wait_until


def wait_for_health(database: Database, *expected: tuple[str, str, str]) -> list[Finding]:
    """Waits until it finds these, by severity, object and what, and nothing else."""
    return wait_until(
        database.health, lambda seen: [found[:3] for found in seen] == list(expected), what=f"health to find {expected}"
    )


def test_a_system_that_delivers_is_well(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue("a", 10)
    database.wait_settled()
    assert database.health() == []


def test_events_that_wait_for_a_destination(database: Database) -> None:
    assert database.health() == []
    database.enqueue("a")
    (finding,) = wait_for_health(database, ("degraded", "server", "no destination"))
    assert database.value("SELECT outbox_internal.how_to_make_destination()") in finding.what_to_do
    assert finding.since == database.value("SELECT occurred_at FROM outbox.event")


WARNING = 'no event and no captured table has a topic that destination "{}" selects'


class Warned(NamedTuple):
    message: str | None
    detail: str | None
    hint: str | None


@pytest.fixture
def warnings(database: Database) -> list[Warned]:
    """Warnings of the database's connection."""
    seen: list[Warned] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity == "WARNING":
            seen.append(Warned(notice.message_primary, notice.message_detail, notice.message_hint))

    database.connection.add_notice_handler(note)
    return seen


def test_topics_that_fit_nothing_are_told_when_the_option_is_set(database: Database, warnings: list[Warned]) -> None:
    database.add_destination("early", "pull:", topics="order")
    assert warnings == [], "nothing is known yet"
    database.enqueue("a", topic="order.events")
    database.enqueue("b", topic="a.b")

    database.add_destination("d", "pull:", topics="order, orders.*")
    (warning,) = warnings
    assert warning.message == WARNING.format("d")
    assert (
        warning.detail == 'It selects order, orders.*. The last events and captured tables have "a.b", "order.events".'
    )
    assert "<aggregate type>.events" in (warning.hint or "")
    database.change_destination("early", retry_max="1h")
    assert [warning.message for warning in warnings[1:]] == [WARNING.format("early")]
    del warnings[:]
    for topics in ("order.*", "nothing, a.b", "*"):
        database.change_destination("d", topics=topics)
    database.change_destination("d", topics=None)
    database.add_destination("all", "pull:")
    assert warnings == []
    assert database.execute("SELECT d.name FROM outbox.destination AS d WHERE outbox.selects_nothing(d.name)") == [
        ("early",)
    ]
    assert database.value("SELECT outbox.selects_nothing('missing')") is False


def test_topics_of_events_to_come_are_not_called_unknown(database: Database, warnings: list[Warned]) -> None:
    """Those of captured tables, and those that a role may produce."""
    database.enqueue("a", topic="order.events")
    role = f"producer_{database.name}"
    database.execute(f"CREATE ROLE {role}")
    database.execute("CREATE TABLE video (id int PRIMARY KEY, topic text)")
    try:
        database.execute("SELECT outbox.grant_produce(%s, 'user.*, bill')", (role,))
        database.execute("SELECT outbox.capture('video')")
        for topics in ("video.events", "user.*", "u*", "bill"):
            database.add_destination(topics, "pull:", topics=topics)
        assert warnings == []
        database.add_destination("d", "pull:", topics="vidio.*")
        assert [warning.message for warning in warnings] == [WARNING.format("d")]
        database.execute("SELECT outbox.uncapture('video')")
        database.execute("SELECT outbox.capture('video', topic_column => 'topic')")
        database.change_destination("d", retry_max="1h")
        assert len(warnings) == 1, "rows may have any topic"
    finally:
        database.execute(f"DROP OWNED BY {role}; SELECT outbox.revoke_produce('{role}'); DROP ROLE {role}")


def test_a_destination_that_fails(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(503))
    database.add_destination("d", receiver.url())
    database.add_destination("fine", "null:")
    database.enqueue("a")
    (finding,) = wait_for_health(database, ("degraded", 'destination "d"', "fails"))
    assert "HTTP 503" in finding.why
    # At this age the other one may be behind as well, until its cursor is saved.
    severities = database.execute(
        "SELECT severity FROM outbox.health(max_age => '0') WHERE object = %s", (finding.object,)
    )
    assert severities == [("failing",)]
    receiver.forget_rules()
    wait_for_health(database)


def test_a_pause_does_not_hide_since_when_a_destination_fails(
    database: Database, receiver: Receiver, http: None
) -> None:
    receiver.on(everything, answer(503))
    database.add_destination("d", receiver.url())
    (event,) = database.enqueue("a")
    (before,) = wait_for_health(database, ("degraded", 'destination "d"', "fails"))
    waiting = wait_until(database.status, lambda seen: seen["next_attempt_at"], what="a time of the next attempt")
    assert waiting["failing_since"] == before.since < waiting["next_attempt_at"]
    (listed,) = database.execute("SELECT failing_since FROM outbox.destinations")
    assert listed == (before.since,)

    def why(part: str) -> tuple[str, object]:
        return wait_until(
            lambda: database.execute("SELECT why, next_attempt_at FROM outbox.event_status(%s)", (event,))[0],
            lambda seen: part in seen[0], what=f"a reason with {part!r}",
        )  # fmt: skip

    reason, at = why("; the next attempt is at")
    assert reason.startswith("the destination fails since ") and "HTTP 503" in reason and at is not None

    database.execute("SELECT outbox.pause('d')")
    database.wait_for_state("paused")
    reason, at = why(", and fails since ")
    assert reason.startswith("the destination is paused since ") and "HTTP 503" in reason
    paused = wait_until(database.status, lambda seen: seen["next_attempt_at"] is None, what="no attempt to be planned")
    assert paused["failing_since"] == before.since

    database.execute("SELECT outbox.resume('d')")
    (after,) = wait_for_health(database, ("degraded", 'destination "d"', "fails"))
    assert after.since == before.since
    receiver.forget_rules()
    database.wait_settled()
    wait_until(database.status, lambda seen: seen["failing_since"] is None, what="the end of the outage")


@pytest.mark.extension("workers")
def test_an_outage_goes_on_in_the_next_relay(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(503))
    database.add_destination("d", receiver.url())
    database.enqueue("a")
    (before,) = wait_for_health(database, ("degraded", 'destination "d"', "fails"))
    pid = database.value("SELECT pid FROM outbox.status")
    database.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(
        lambda: database.value("SELECT pid FROM outbox.status"),
        lambda now: now not in (None, pid),
        what="another relay",
    )
    (after,) = wait_for_health(database, ("degraded", 'destination "d"', "fails"))
    assert after.since == before.since
    receiver.forget_rules()
    database.wait_settled()
    wait_until(database.status, lambda seen: seen["failing_since"] is None, what="the end of the outage")


@pytest.mark.extension("workers")
def test_a_destination_without_a_relay(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"outbox.max_workers": "1"}))
    database.add_destination("d", "null:")
    wait_until(
        lambda: [f.why for f in wait_for_health(database, ("failing", 'destination "d"', "no relay"))],
        lambda seen: seen == ["no relay runs for it; outbox.max_workers is 1, and all are used"], what="the reason",
    )  # fmt: skip


@pytest.mark.extension("workers")
def test_too_few_worker_processes_are_told_at_once_and_each_worker_without_one_is_a_finding(
    make_cluster: MakeCluster,
) -> None:
    # One is the server's own (logical replication), then our launcher, a keeper and a relay.
    cluster = make_cluster({"max_worker_processes": "4"})
    database = create_database(cluster)
    notices: list[tuple[str, str]] = []
    database.connection.add_notice_handler(
        lambda notice: notices.append((notice.message_primary or "", notice.message_hint or ""))
    )
    database.add_destination("a", "null:")
    database.wait_for_worker("relay", "a")
    assert notices == []
    database.add_destination("fetched", "pull:")
    assert notices == [], "it needs no worker"

    database.add_destination("b", "null:")
    (warning,) = notices
    assert warning[0] == "max_worker_processes is 4, but 5 background workers are needed"
    assert warning[1].startswith("Set max_worker_processes to 5 or more and restart the server.")
    database.change_destination("fetched", url="null:")
    assert notices[1][0] == "max_worker_processes is 4, but 6 background workers are needed"
    database.change_destination("a", max_attempts="7")
    assert len(notices) == 2, "its relay runs"

    findings = wait_for_health(
        database, ("failing", 'destination "b"', "no relay"), ("failing", 'destination "fetched"', "no relay")
    )
    wait_until(
        lambda: {f.what_to_do for f in database.health()},
        lambda seen: seen == {"Set max_worker_processes to 6 or more, and restart the server."}, what="what to do",
    )  # fmt: skip
    assert {f.why.split(";")[0] for f in findings} == {"no relay runs for it"}
    for name in "b", "fetched":
        complaint = f"could not start pg_outbox relay {name}: out of background worker slots"
        log = wait_until(cluster.log, lambda text: complaint in text, what="a line in the log")
        assert log.count(complaint) == 1

    database.execute("DROP SERVER a")
    database.execute("DROP SERVER fetched")
    wait_for_health(database)


@pytest.mark.extension("workers")
def test_a_keeper_and_a_backfill_without_a_worker_are_findings(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"max_worker_processes": "4"})
    first, second = create_database(cluster, "first"), create_database(cluster, "second", extension=False)
    first.add_destination("d", "null:")
    first.wait_for_worker("relay", "d")
    second.create_extension()
    (finding,) = wait_for_health(second, ("failing", 'keeper "second"', "cannot start"))
    assert finding.why == "its keeper has no room: max_worker_processes is 4, and all are used"
    assert finding.what_to_do == "Set max_worker_processes to 5 or more, and restart the server."
    first.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT outbox.capture('t'); SELECT outbox.backfill('t')")
    (finding,) = wait_for_health(first, ("degraded", 'backfill "1"', "cannot start"))
    assert finding.why.startswith("its backfill has no room")
    assert cluster.log().count("could not start pg_outbox backfill 1") == 1
    first.execute("DROP SERVER d")
    wait_for_health(second)


@pytest.mark.extension("workers")
def test_a_server_that_does_not_preload(make_cluster: MakeCluster) -> None:
    database = create_database(make_cluster({"shared_preload_libraries": ""}))
    database.add_destination("d", "null:")
    (finding,) = wait_for_health(database, ("failing", "server", "not preloaded"))
    assert "shared_preload_libraries" in finding.what_to_do


def test_a_log_that_is_too_large_names_its_holders(new_database: NewDatabase, receiver: Receiver, http: None) -> None:
    receiver.on(everything, answer(503))
    database = new_database({"outbox.max_log_size": "1MB"})
    database.add_destination("d", receiver.url())
    database.enqueue("a", 20_000)
    held = "more than outbox.max_log_size; it is held by d"
    wait_until(
        lambda: [found.why for found in database.health() if found.what == "log too large"],
        lambda seen: len(seen) == 1 and held in seen[0],
        what="a log that is too large and held by d",
    )


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
    labels = rf'{{database="{database.name}",destination="odd \"name\" \\"}}'
    assert f"outbox_published_total{labels} 10" in lines
    assert f"outbox_up{labels} 1" in lines
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) == 16


def test_latencies_are_a_histogram(database: Database) -> None:
    add_clients_to_path()
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    for name in ("d", "e"):
        database.add_destination(name, "null:")
    database.add_destination("nobody", "pull:")
    database.enqueue("a", 10)

    def count(name: str) -> int | None:
        return database.value("SELECT latency_buckets[17] FROM outbox.status WHERE destination = %s", (name,))

    for name in ("d", "e"):
        database.wait_published(10, name)
        wait_until(lambda: count(name), lambda seen: seen == 10, what="the report of a relay")
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(database.value("SELECT outbox.metrics()"))
    }
    histogram = families["outbox_delivery_seconds"]
    assert histogram.type == "histogram"
    for name in ("d", "e"):
        samples = [sample for sample in histogram.samples if sample.labels["destination"] == name]
        buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
        assert len(buckets) == 17 and buckets == sorted(buckets) and buckets[-1] == 10
        assert [sample.value for sample in samples if sample.name.endswith("_count")] == [10]
        (total,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
        assert total > 0
    assert {sample.labels["destination"] for sample in histogram.samples} == {"d", "e"}, "nothing is known of the other"


def test_events_in_trouble(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(lambda request: request.headers["ce-subject"] == "dead", answer(413))
    receiver.on(lambda request: request.headers["ce-subject"] == "later", answer(400))
    database.add_destination("d", receiver.url(), retry_base="1440min", retry_max="1440min")
    database.enqueue("dead")
    database.enqueue("later")
    dead, later = wait_for_health(
        database, ("degraded", 'destination "d"', "dead letters"), ("degraded", 'destination "d"', "events fail")
    )
    assert "given up: 1; the first with: HTTP 413" in dead.why
    assert "tried again: 1; the last with: HTTP 400" in later.why
    metrics = database.value("SELECT outbox.metrics()")
    assert f'outbox_dead_letters{{database="{database.name}",destination="d"}} 1' in metrics
    assert f'outbox_retries{{database="{database.name}",destination="d"}} 1' in metrics
    database.change_destination("d", on_dead_letter="block")
    dead, later = wait_for_health(
        database, ("failing", 'destination "d"', "dead letters"), ("degraded", 'destination "d"', "events fail")
    )
    assert "block their keys" in dead.why


def test_a_paused_destination(database: Database) -> None:
    database.add_destination("d", "null:")
    database.execute("SELECT outbox.pause('d')")
    (finding,) = wait_for_health(database, ("degraded", 'destination "d"', "paused"))
    assert finding.why == "paused by " + database.value("SELECT quote_ident(current_user)")
    assert finding.since == database.value("SELECT requested_at FROM outbox.operation")
    database.execute("SELECT outbox.resume('d')")
    wait_for_health(database)


def test_events_of_a_paused_destination_grow_old(database: Database) -> None:
    database.add_destination("d", "null:")
    database.execute("SELECT outbox.pause('d')")
    database.wait_for_state("paused")
    assert database.status()["oldest_pending_age"] is None
    database.enqueue("a")
    assert database.status()["oldest_pending_age"].total_seconds() > 0
    assert database.execute("SELECT severity, what FROM outbox.health(max_age => '0')") == [("failing", "paused")]
    database.enqueue("b", 2)
    assert database.value("SELECT outbox.backlog('d')") == 3


def test_events_behind_a_dead_letter_grow_old(database: Database, receiver: Receiver, http: None) -> None:
    receiver.on(lambda request: request.headers["ce-subject"] == "dead", answer(413))
    database.add_destination("d", receiver.url(), on_dead_letter="block")
    database.enqueue("dead", 3)
    wait_until(lambda: database.status()["held_keys"], what="the key to be held")
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.delivery"), lambda n: n == 3, what="events behind it"
    )
    status = wait_until(database.status, lambda seen: seen["state"] == "idle", what="the rest to be settled")
    assert status["pending_at_most"] == database.value("SELECT outbox.backlog('d')") == 2
    assert status["oldest_pending_age"].total_seconds() > 0
    found = database.execute("SELECT severity, what FROM outbox.health(max_age => '0')")
    assert found == [("failing", "dead letters"), ("degraded", "keys held")]


def test_events_of_other_topics_are_not_pending(database: Database) -> None:
    database.add_destination("d", "pull:", topics="mine.*")
    database.execute("SELECT count(*) FROM outbox.fetch('d')")
    database.enqueue("a", 10, topic="other.x")
    assert database.status()["oldest_pending_age"] is None
    database.enqueue("a", topic="mine.x")
    assert database.value("SELECT outbox.backlog('d')") == 1
    own = database.value("SELECT max(occurred_at) FROM outbox.event")
    assert database.execute("SELECT what, since >= %s FROM outbox.health('0')", (own,)) == [("behind", True)]


def test_many_events_of_other_topics_do_not_make_a_pull_destination_late(database: Database) -> None:
    database.add_destination("d", "pull:", topics="mine.*")
    database.execute("SELECT count(*) FROM outbox.fetch('d')")
    database.enqueue("a", 2_500, topic="other.x")
    assert database.status()["oldest_pending_age"] is None
    assert database.execute("SELECT what FROM outbox.health('0')") == []
    database.enqueue("a", topic="mine.x")
    assert database.execute("SELECT what FROM outbox.health('0')") == [("behind",)]


@pytest.mark.slow
def test_a_pull_destination_whose_search_ends_early_is_not_called_behind(database: Database) -> None:
    database.add_destination("d", "pull:", topics="mine.*")
    database.execute("SELECT count(*) FROM outbox.fetch('d')")
    database.enqueue("a", 10_000, topic="other.x")
    ((what, why),) = database.execute("SELECT what, why FROM outbox.health('0')")
    assert what == "not fetched" and "are of other topics" in why
    database.execute("SELECT count(*) FROM outbox.fetch('d')")
    assert database.execute("SELECT what FROM outbox.health('0')") == []


def test_no_limit_is_the_usual_limit(database: Database) -> None:
    database.add_destination("d", "null:")
    database.execute("SELECT outbox.pause('d')")
    database.wait_for_state("paused")
    database.enqueue("a")
    wait_for_health(database, ("degraded", 'destination "d"', "paused"))
    database.execute("UPDATE outbox.event SET occurred_at = occurred_at - interval '2 min'")
    for limit in "NULL", "'1 min'":
        assert database.execute(f"SELECT severity, what FROM outbox.health({limit})") == [("failing", "paused")]
    assert database.execute("SELECT severity, what FROM outbox.health('1 day')") == [("degraded", "paused")]


def test_a_relay_that_sleeps_while_events_wait_is_a_finding(database: Database) -> None:
    database.add_destination("d", "null:")
    database.enqueue("a")
    database.wait_settled()
    database.wait_for_state("idle")
    assert [f for f in database.health() if f.what == "stalled"] == []
    pid = database.pid("relay", "d")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        database.enqueue("a")
        ((severity, what, why, what_to_do),) = wait_until(
            lambda: database.execute("SELECT severity, what, why, what_to_do FROM outbox.health('0')"),
            lambda seen: [what for _, what, _, _ in seen] == ["stalled"], what="the relay to be found",
        )  # fmt: skip
        assert severity == "failing" and why.startswith("its relay sleeps although events wait, the oldest for ")
        assert ("outbox-relay" if OUTSIDE else f"pg_terminate_backend({pid})") in what_to_do
        assert database.status()["oldest_pending_age"].total_seconds() > 0
    finally:
        os.kill(pid, signal.SIGCONT)
    database.wait_settled()
    wait_for_health(database)
