"""The program outbox-relay against databases with the extension."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Installation, MakeCluster
from database import Database, NewDatabase, create_database
from outbox_relay import OutboxRelay
from passwords import assert_no_passwords
from pooler import PROGRAM as PGBOUNCER
from pooler import Pooler
from processes import stop_process
from receiver import Gate, Receiver, answer, everything, subject
from silent import LOGINS, silent_server
from test_encodings import LATIN1, in_encoding
from waiting import wait_until


class RelayProcess:
    """A running outbox-relay."""

    def __init__(
        self,
        program: Path,
        databases: list[Database],
        log: Path,
        session: str,
        options: tuple[str, ...],
        of_database: str,
    ) -> None:
        self.log_path = log
        config = log.with_suffix(".toml")
        config.write_text("".join(
            f"[databases.{database.name}]\nurl = \"{database.cluster.conninfo(database.name)}\"\ntrusted = true\nsession = \"{session}\"\n{of_database}\n"
            for database in databases
        ))  # fmt: skip
        with log.open("w") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(program), "--config", str(config), *options],
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def log(self) -> str:
        return self.log_path.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ends it as a service manager does, and returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=180)

    def destroy(self) -> None:
        self.process.kill()
        self.process.wait()
        assert_no_passwords(self.log(), "outbox-relay")


StartRelay = Callable[..., RelayProcess]


@pytest.fixture
def start_relay(installation: Installation, tmp_path: Path) -> Iterator[StartRelay]:
    program = next(installation.stage.rglob("bin/outbox-relay"), None)
    if program is None:
        pytest.skip("NOT TESTED: outbox-relay is not part of this build")
    started: list[RelayProcess] = []

    def start(
        *databases: Database, session: str = "auto", options: tuple[str, ...] = (), of_database: str = ""
    ) -> RelayProcess:
        log = tmp_path / f"relay_{len(started)}.log"
        started.append(RelayProcess(program, list(databases), log, session, options, of_database))
        return started[-1]

    yield start
    for relay in started:
        relay.destroy()
        print(f"--- {relay.log_path.name}\n{relay.log()}")


def serving(database: Database, destination: str = "d") -> str | None:
    """Returns the id of the relay that serves a destination."""
    return database.value(
        "SELECT r.id FROM outbox.cursor AS c JOIN outbox.relay AS r ON r.id = c.relay"
        " WHERE c.destination = %s AND r.leased_until > clock_timestamp()", (destination,)
    )  # fmt: skip


def wait_served(database: Database, destination: str = "d", *, not_by: str | None = None) -> str:
    return wait_until(
        lambda: serving(database, destination), lambda seen: seen is not None and seen != not_by,
        what=f"a relay to serve {destination}",
    )  # fmt: skip


# The session of a relay at rest that gets notifications: it has the wake lock.
CONTROL_SESSION = (
    "SELECT {} FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()"
    " AND locktype = 'advisory' AND classid = 1869968482 AND objid = 0 AND mode = 'ExclusiveLock' AND granted"
)


def wait_at_rest(database: Database) -> None:
    """Waits until a relay sleeps until the next enqueue."""
    wait_until(lambda: database.value(CONTROL_SESSION.format("count(*)")), what="the relay to rest")


def wait_arrived(receiver: Receiver, count: int) -> None:
    wait_until(lambda: len(receiver.events()), lambda seen: seen >= count, what=f"{count} events")


# -------------------------------------------------------------------------------------------------
# Delivery
# -------------------------------------------------------------------------------------------------


def test_it_delivers_all_events(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database)
    for number in range(10):
        database.enqueue(str(number))
    wait_until(lambda: len(receiver.events()), lambda count: count == 10, what="10 events")
    database.wait_settled()
    assert relay.stop() == 0
    assert database.value("SELECT count(*) FROM outbox.relay") == 0


def test_once_ends_when_everything_is_delivered(database: Database, start_relay: StartRelay) -> None:
    database.add_destination("d", "null:", relay="external")
    database.enqueue(count=3000)  # more than come with a look
    assert start_relay(database, options=("--once",)).wait() == 0
    assert database.value("SELECT position FROM outbox.cursor") == database.last_position()


def test_an_answer_in_characters_that_the_database_lacks_is_recorded(
    home: Database, new_database: NewDatabase, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database = in_encoding(home, new_database(extension=False), LATIN1)
    database.create_extension()
    receiver.on(everything, answer(400, body="caf\u00e9 \u0e01".encode()))
    database.add_destination("d", receiver.url(), relay="external", max_attempts="1")
    database.enqueue()
    start_relay(database)
    wait_until(lambda: database.value("SELECT count(*) FROM outbox.dead_letter"), what="a dead letter")
    assert "caf?? ???" in database.value("SELECT last_error FROM outbox.dead_letter")


def test_counters_go_on_in_the_next_relay(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    database.enqueue(count=30)
    first = start_relay(database)
    database.wait_published(30)
    receiver.refuse_connections()
    database.enqueue()
    since = wait_until(lambda: database.status()["failing_since"], what="an outage")
    assert first.stop() == 0
    assert database.published() == 30
    failures = database.status()["failures"]
    assert failures > 0
    assert database.status()["failing_since"] is None, "no relay knows"
    start_relay(database)
    wait_until(lambda: database.status()["failing_since"], lambda now: now == since, what="the same outage")
    receiver.listen()
    database.wait_published(31)
    assert database.status()["failures"] >= failures


@pytest.mark.parametrize("relay", ["internal", "external"])
def test_the_age_of_events_that_are_delivered_again_is_no_latency(
    database: Database, start_relay: StartRelay, relay: str
) -> None:
    database.add_destination("d", "null:", relay=relay)
    if relay == "external":
        start_relay(database)
    database.enqueue("a", 10)
    database.wait_published(10)
    database.wait_settled()
    database.execute("UPDATE outbox.event SET occurred_at = occurred_at - interval '5 days'")
    database.execute("SELECT outbox.replay('d')")
    database.wait_published(20)
    database.execute("SELECT outbox.seek('d', 'beginning')")
    database.wait_published(30)
    database.enqueue("a")
    database.wait_published(31)
    latencies = "SELECT latency_buckets[16], latency_buckets[17], latency_p99 < interval '1 day' FROM outbox.status"
    wait_until(
        lambda: database.execute(latencies), lambda rows: rows == [(11, 11, True)], what="the latencies of 11 events"
    )


def test_a_large_window_arrives_in_order(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    for number in range(3):
        database.move_to_segment(number)
        for key in ("a", "b"):
            database.enqueue(key, 1000, first=1 + 1000 * number)
    database.add_destination("d", receiver.url(), relay="external")
    start_relay(database)
    database.wait_settled()
    for key in ("a", "b"):
        assert receiver.versions(key) == list(range(1, 3001))


def test_events_of_any_size_arrive(database: Database, start_relay: StartRelay) -> None:
    """More bytes than the program reads at once, in few events and in one."""
    database.execute("SET outbox.max_payload_size = '128MB'")
    large = "SELECT outbox.enqueue('item', n::text, 'changed', convert_to(repeat('x', %s), 'UTF8'), 'text/plain') FROM generate_series(1, %s) AS n"
    database.execute(large, (1_000_000, 100))
    database.execute(large, (70_000_000, 1))
    database.execute(large, (1_000_000, 10))
    database.add_destination("d", "null:", relay="external")
    start_relay(database)
    database.wait_settled()
    assert database.published() >= 111  # events before a long answer may be sent once more


def test_all_fields_arrive(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    """They are the same as those that a relay inside the server sends."""
    headers = '{"text": "ä\\"\\\\", "number": 1.50, "yes": true, "nothing": null}'
    database.add_destination("inside", receiver.url("/inside"))
    database.add_destination("outside", receiver.url("/outside"), relay="external")
    start_relay(database)
    database.execute(
        "SELECT outbox.enqueue('item', 'a', 'changed', %s::jsonb, version => 7, headers => %s::jsonb, schema_version => 3,"
        " occurred_at => '2026-01-02 03:04:05.678901Z')", ('{"n": [1, 2.50, "ü"]}', headers),
    )  # fmt: skip
    wait_arrived(receiver, 2)
    inside, outside = sorted(receiver.requests, key=lambda request: request.target)
    assert outside.body == inside.body
    leave_out = {"host", "user-agent"}
    seen = [{k: v for k, v in r.headers.items() if k not in leave_out and "source" not in k} for r in (inside, outside)]
    assert seen[0] == seen[1]


@pytest.mark.long
def test_destinations_that_are_down_share_the_memory(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """Each of them has more events to deliver than there is memory for. They come one after the other, so that the
    first may take half of it and the last finds the least."""
    payload = "x" * 1000
    database.execute(
        "SELECT outbox.enqueue('item', n::text, 'changed', to_jsonb(%s::text)) FROM generate_series(1, 12000) AS n",
        (payload,),
    )
    database.add_destination("d", receiver.url(), relay="external", start="end")
    start_relay(database, options=("--memory", "16MB"))

    def figures() -> dict[str, tuple[str, int]]:
        rows = database.execute(
            "SELECT c.destination, s.state, s.unsettled FROM outbox.cursor AS c JOIN outbox.relay_status AS s USING (number)"
        )
        return {name: (state, unsettled) for name, state, unsettled in rows}

    down = [f"down_{number}" for number in range(4)]
    for name in down:
        database.add_destination(name, "http://127.0.0.1:1/", relay="external")
        wait_until(
            lambda: figures().get(name, ("", 0)), lambda it: it[0] == "backing off" and it[1] > 100, what=f"{name} to be down with events in memory"
        )  # fmt: skip
    for number in range(10):
        database.enqueue(str(number), 100)
        database.wait_settled("d")
    held = figures()
    # In blocks that are not full.
    assert sum(held[name][1] for name in down) * len(payload) < 16 * 1024 * 1024, held


def test_topics_and_several_databases(
    new_database: NewDatabase, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    databases = [new_database(), new_database()]
    for number, database in enumerate(databases):
        database.add_destination("all", receiver.url(f"/{number}/all"), relay="external")
        database.add_destination("some", receiver.url(f"/{number}/some"), relay="external", topics="wanted.*")
        database.add_destination("inside", receiver.url(f"/{number}/inside"))
    start_relay(*databases)
    for database in databases:
        database.enqueue("a", topic="wanted.1")
        database.enqueue("b", topic="other")
    for database in databases:
        for destination in ("all", "some", "inside"):
            database.wait_settled(destination)
    for number in range(2):
        arrived = {
            path: [r for r in receiver.requests if r.target == f"/{number}/{path}"]
            for path in ("all", "some", "inside")
        }
        assert {path: len(requests) for path, requests in arrived.items()} == {"all": 2, "some": 1, "inside": 2}


def test_an_event_wakes_a_relay_at_rest(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    start_relay(database, options=("--lease", "10min"))  # so that no renewal finds the event
    for number in range(1, 6):
        wait_at_rest(database)
        database.enqueue(first=number)
        wait_arrived(receiver, number)
    assert receiver.versions("a") == [1, 2, 3, 4, 5]


# By its statement: it may have given up the lock by which CONTROL_SESSION finds it.
BEATING_SESSION = """
    SELECT {} FROM pg_stat_activity
     WHERE datname = current_database() AND application_name LIKE 'outbox-relay%%' AND query LIKE '%%relay_beat(%%'"""


def test_a_notification_right_behind_an_answer(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """The relay reads both at once, and then nothing more comes from the server."""
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, options=("--lease", "10min"))
    wait_at_rest(database)
    for number in range(1, 4):
        with database.connect() as other:
            other.autocommit = False
            other.execute("LOCK TABLE outbox.relay IN SHARE MODE")
            database.execute("NOTIFY outbox_wake, 'operate'")  # the relay renews its lease at once
            wait_until(
                lambda: database.value(BEATING_SESSION.format("wait_event_type")),
                lambda seen: seen == "Lock",
                what="a statement that waits",
            )
            stop_process(relay.process.pid)
            other.rollback()
        wait_until(
            lambda: database.value(BEATING_SESSION.format("state")), lambda state: state == "idle", what="its answer"
        )
        database.enqueue(first=number)
        # The queue has pages; it is empty when every listener has read those before the last one.
        database.execute("SELECT pg_notify('nobody', n || repeat('x', 7000)) FROM generate_series(1, 3) AS n")
        wait_until(
            lambda: database.value("SELECT pg_notification_queue_usage()"),
            lambda usage: usage == 0,
            what="the notification",
        )
        relay.signal(signal.SIGCONT)
        wait_arrived(receiver, number)
        wait_at_rest(database)


def test_it_works_through_a_pooler(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, session="pooled", options=("--lease", "2s"))
    database.enqueue()
    wait_arrived(receiver, 1)
    database.pause()
    database.execute("SELECT outbox.resume('d')")
    database.enqueue(first=2)
    wait_arrived(receiver, 2)
    receiver.on(everything, answer(429, [("Retry-After", "3600")]))
    database.enqueue(first=3)
    wait_until(
        lambda: database.value("SELECT next_attempt_at > now() + interval '50 min' FROM outbox.status"),
        what="the pause",
    )
    receiver.forget_rules()
    database.execute("SELECT outbox.resume('d')")
    wait_until(lambda: receiver.versions("a"), lambda seen: seen == [1, 2, 3, 3], what="the next attempt")
    database.wait_settled()
    assert database.value("SELECT count(*) FROM outbox.relay WHERE direct") == 0
    assert relay.stop() == 0


def test_idle_destinations_beside_a_busy_one_are_asked_for_together(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    idle = [f"idle_{number}" for number in range(10)]
    for name in idle:
        database.add_destination(name, receiver.url(f"/{name}"), relay="external", topics="idle")
    database.add_destination("busy", receiver.url("/busy"), relay="external", topics="busy")
    # Their first lines count calls.
    database.execute("CREATE TABLE public.called (name text, number integer)")
    for function, number in (("relay_look", "$1"), ("relay_probe", "0")):
        text = database.value("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (function,))
        counts = f"BEGIN\n    INSERT INTO public.called VALUES ('{function}', {number});\n"
        database.execute(re.sub(r"^BEGIN\n", lambda _: counts, text, count=1, flags=re.MULTILINE))
    start_relay(database)
    for name in (*idle, "busy"):
        wait_served(database, name)
    wait_at_rest(database)
    database.execute("DELETE FROM public.called")

    def probes() -> int:
        database.enqueue("b", topic="busy")
        return database.value("SELECT count(*) FROM public.called WHERE name = 'relay_probe'")

    asked = wait_until(probes, lambda seen: seen >= 100, what="a hundred probes")
    looks = database.value(
        "SELECT count(*) FROM public.called AS l JOIN outbox.cursor AS c USING (number) WHERE c.destination <> 'busy'"
    )
    # One of them may look for all after a rest.
    assert looks <= 3 * asked, "they look for themselves"
    # The log need not wait for them, and they do not miss what comes.
    for name in idle:
        database.wait_settled(name)
    database.enqueue("i", topic="idle")
    wait_until(
        lambda: {request.target for request in receiver.requests} >= {f"/{name}" for name in idle},
        what="the event at all of them",
    )


def test_a_relay_that_rests_beside_a_busy_one_is_woken(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """It rests while the other one has the wake lock, which gives it up without a word of an event."""
    for name in ("one", "two"):
        database.add_destination(name, receiver.url(f"/{name}"), relay="external", topics=name)
    relays = {}
    for name in ("one", "two"):
        options = ("--name", name, "--lease", "10min")
        relays[name] = start_relay(database, options=options, of_database=f'destinations = "{name}"')
        wait_served(database, name)
        wait_at_rest(database)
    backend_of_lock = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1869968482 AND objid = 0"
    holder = database.value(
        f"SELECT split_part(application_name, ' ', 2) FROM pg_stat_activity WHERE pid = ({backend_of_lock})"
    )
    other = "two" if holder == "one" else "one"
    relays[holder].signal(signal.SIGSTOP)
    beats = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%relay_beat%%' AND application_name LIKE %s AND state_change > %s"
    since = database.value("SELECT clock_timestamp()")
    database.enqueue("a", topic=holder)  # wakes both
    wait_until(lambda: database.value(beats, (f"%{other}", since)), what="the other one to rest again")
    relays[holder].signal(signal.SIGCONT)

    def arrived() -> bool:
        database.enqueue("a", topic=holder)  # so that it does not rest
        return any(request.target == f"/{other}" for request in receiver.requests)

    wait_until(lambda: len(receiver.requests), what="the first one to deliver")
    database.enqueue("b", topic=other)
    wait_until(arrived, what="the event of the other one")


def test_a_lease_outlasts_a_slow_renewal(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """The database answers after more than a quarter of the lease, but before its end."""
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, options=("--lease", "20s"))
    wait_served(database)
    held = database.execute("SELECT relay, lease FROM outbox.cursor")
    with database.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("SELECT FROM outbox.relay FOR UPDATE")
        wait_until(
            lambda: database.value(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%relay_beat%' AND wait_event_type = 'Lock'"
                " AND query_start < clock_timestamp() - interval '6 s'"
            ),
            what="a renewal to wait for six seconds",
        )  # fmt: skip
        blocker.execute("COMMIT")
    wait_until(
        lambda: database.value("SELECT leased_until > clock_timestamp() + interval '10 s' FROM outbox.relay"),
        what="the lease to be renewed",
    )  # fmt: skip
    database.enqueue()
    wait_arrived(receiver, 1)
    assert database.execute("SELECT relay, lease FROM outbox.cursor") == held
    assert relay.log().count("serves the destination") == 1


# -------------------------------------------------------------------------------------------------
# Trouble and operators
# -------------------------------------------------------------------------------------------------


def test_retries_and_dead_letters(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    receiver.on(subject("comes"), answer(400), times=2)
    receiver.on(subject("stays"), answer(400))
    database.add_destination(
        "d", receiver.url(), relay="external", retry_base="10ms", retry_max="20ms", max_attempts="5"
    )
    start_relay(database)
    for key in ("comes", "stays", "well"):
        database.enqueue(key, 3)
    wait_until(lambda: receiver.versions("comes"), lambda seen: seen[-3:] == [1, 2, 3], what="the key that fails twice")
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.delivery WHERE state = 'DEAD'"),
        lambda dead: dead == 3, what="three dead letters",
    )  # fmt: skip
    assert receiver.versions("well") == [1, 2, 3]
    receiver.forget_rules()
    before = len(receiver.versions("stays"))
    database.execute("SELECT outbox.redrive('d')")
    wait_until(
        lambda: receiver.versions("stays")[before:], lambda seen: seen == [1, 2, 3], what="the dead letters again"
    )
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.delivery"),
        lambda rows: rows == 0,
        what="outbox.delivery to be empty",
    )
    database.wait_settled()


def test_pause_resume_and_seek(database: Database, receiver: Receiver, http: None, start_relay: StartRelay) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    start_relay(database)
    database.enqueue()
    database.wait_settled()
    database.pause()
    database.wait_for_state("paused")
    database.enqueue(first=2)
    wait_at_rest(database)
    assert receiver.versions("a") == [1]
    database.execute("SELECT outbox.resume('d')")
    wait_arrived(receiver, 2)
    database.wait_settled()
    database.execute("SELECT outbox.seek('d', 0)")
    wait_arrived(receiver, 4)
    assert receiver.versions("a") == [1, 2, 1, 2]


def test_changed_renamed_and_dropped(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.add_destination("d", receiver.url("/old"), relay="external")
    start_relay(database)
    database.enqueue()
    database.wait_settled()
    database.execute(f"ALTER SERVER d OPTIONS (SET url '{receiver.url('/new')}')")
    wait_until(
        lambda: database.enqueue() and receiver.requests[-1].target, lambda path: path == "/new", what="the new URL"
    )
    database.execute("ALTER SERVER d RENAME TO e")
    database.enqueue("after")
    wait_until(lambda: "after" in receiver.subjects(), what="an event after the new name")
    database.wait_settled("e")
    database.execute("DROP SERVER e")
    database.add_destination("f", receiver.url("/f"), relay="external", start="end")
    database.enqueue("last")
    wait_until(lambda: receiver.requests[-1].target, lambda path: path == "/f", what="an event at the last destination")


def test_a_misconfigured_destination_recovers_when_it_is_corrected(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.execute("CREATE ROLE plain_owner")
    database.execute("GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO plain_owner")
    try:
        database.add_destination("d", receiver.url(), relay="external", ca_file="/etc/ssl/certs/ca-certificates.crt")
        database.execute("ALTER SERVER d OWNER TO plain_owner")
        start_relay(database)
        database.wait_for_state("misconfigured")
        assert "permission denied to name a file" in database.status()["last_error"]
        database.enqueue()
        database.execute("ALTER SERVER d OPTIONS (DROP ca_file)")
        wait_arrived(receiver, 1)
        database.wait_for_state("idle")
    finally:
        database.execute("DROP SERVER d")
        database.execute("DROP OWNED BY plain_owner; DROP ROLE plain_owner")


# -------------------------------------------------------------------------------------------------
# Replicas
# -------------------------------------------------------------------------------------------------


def test_a_killed_relay_is_replaced_at_once(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """Its session has ended, so nobody waits for the end of its lease, which is ten minutes away."""
    database.add_destination("d", receiver.url(), relay="external")
    first = start_relay(database, options=("--lease", "10min"))
    killed = wait_served(database)
    first.signal(signal.SIGKILL)
    first.wait()
    start_relay(database)
    wait_served(database, not_by=killed)
    database.enqueue()
    wait_arrived(receiver, 1)


def test_a_relay_that_hangs_is_replaced_and_settles_nothing(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.add_destination("d", receiver.url(), relay="external")
    first = start_relay(database, options=("--lease", "2s"))
    stopped = wait_served(database)
    start_relay(database, options=("--lease", "2s"))
    first.signal(signal.SIGSTOP)
    database.enqueue()
    second = wait_served(database, not_by=stopped)
    wait_arrived(receiver, 1)
    first.signal(signal.SIGCONT)
    wait_until(
        first.log,
        lambda log: "another relay has taken over" in log or "no connection" in log,
        what="the first relay to notice",
    )
    database.enqueue(first=2)
    wait_arrived(receiver, 2)
    assert receiver.versions("a") == [1, 2]
    assert serving(database) == second


def test_replicas_share_destinations(database: Database, start_relay: StartRelay) -> None:
    for number in range(20):
        database.add_destination(f"d{number}", "null:", relay="external")
    relays = [start_relay(database, options=("--name", name)) for name in ("one", "two")]
    held = "SELECT r.name, count(*)::integer FROM outbox.cursor AS c JOIN outbox.relay AS r ON r.id = c.relay GROUP BY r.name"
    wait_until(lambda: dict(database.execute(held)), lambda seen: sum(seen.values()) == 20, what="all to be served")
    assert relays[0].stop() == 0
    wait_until(lambda: dict(database.execute(held)), lambda seen: seen == {"two": 20}, what="the other to serve all")


# -------------------------------------------------------------------------------------------------
# Ends
# -------------------------------------------------------------------------------------------------


def test_requests_in_flight_end_before_the_program(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    gate = Gate()
    receiver.on(subject("slow"), gate.held())
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, options=("--shutdown-timeout", "60s"))
    database.enqueue("slow")
    wait_arrived(receiver, 1)
    relay.signal(signal.SIGTERM)
    wait_until(relay.log, lambda log: "asked to" in log, what="the relay to stop")
    gate.open()
    assert relay.wait() == 0
    assert database.value("SELECT position FROM outbox.cursor") == database.last_position()


def test_an_end_in_the_middle_of_a_large_window(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    database.add_destination("d", receiver.url(), relay="external", max_connections="1")
    database.enqueue(count=5000)
    for _ in range(5):
        # On a busy machine more than 300 may arrive before anybody looks, and so all before the last round.
        enough = len(receiver.events()) + 300
        if enough > 5000:
            break
        relay = start_relay(database)
        wait_arrived(receiver, enough)
        assert relay.stop() == 0
    assert start_relay(database, options=("--once",)).wait() == 0
    first_arrivals = list(dict.fromkeys(receiver.versions("a")))
    assert first_arrivals == list(range(1, 5001))


def test_a_program_that_cannot_finish_ends_in_time(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    gate = Gate()
    receiver.on(subject("slow"), gate.held())
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, options=("--shutdown-timeout", "100ms"))
    database.enqueue("slow")
    wait_arrived(receiver, 1)
    assert relay.stop() == 0
    assert database.value("SELECT position FROM outbox.cursor") < database.last_position()
    gate.open()


@pytest.mark.parametrize("module", LOGINS)
def test_a_destination_that_never_answers_does_not_keep_the_program(
    database: Database, installation: Installation, start_relay: StartRelay, module: str
) -> None:
    with silent_server() as silent:
        url = silent.url(installation, module)
        database.add_destination("d", url, relay="external", connect_timeout="1h", request_timeout="1h")
        database.enqueue()
        relay = start_relay(database)
        with silent.accept():
            assert relay.stop() == 0


def test_a_database_that_never_answers_does_not_keep_the_program(start_relay: StartRelay) -> None:
    with silent_server() as silent:
        url = f"postgresql://somebody@127.0.0.1:{silent.port}/x?connect_timeout=3600"
        relay = start_relay(options=("--database-url", url))
        with silent.accept():
            assert relay.stop() == 0


def test_it_continues_after_a_restart_of_the_server(
    make_cluster: MakeCluster, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    cluster = make_cluster()
    database = create_database(cluster)
    database.add_destination("d", receiver.url(), relay="external")
    start_relay(database)
    database.enqueue()
    wait_arrived(receiver, 1)
    database.wait_settled()
    database.disconnect()
    cluster.restart()
    database.enqueue(first=2)
    wait_arrived(receiver, 2)
    assert receiver.versions("a")[-1] == 2


def test_a_crash_behind_a_pooler(make_cluster: MakeCluster, receiver: Receiver, http: None) -> None:
    """The record of a refused event does not wait for the disk, so a crash may undo it. The pooler hides the crash from
    the relay, which must not save a cursor behind the event."""
    if PGBOUNCER is None:
        pytest.skip("NOT TESTED: pgbouncer is not installed")
    cluster = make_cluster({"wal_writer_delay": "10s"})
    database = create_database(cluster)
    database.add_destination("d", receiver.url(), relay="external", max_attempts="1")
    receiver.on(subject("poison"), answer(400))
    pooler = Pooler(cluster, "server_login_retry = 1")
    relay = OutboxRelay(cluster, database.name, port=pooler.port, options='lease = "10min"').start()
    try:
        wait_served(database)
        database.enqueue("poison")
        dead_letters = "SELECT count(*) FROM outbox.delivery WHERE state = 'DEAD'"
        wait_until(lambda: database.value(dead_letters), lambda seen: seen == 1, what="a dead letter")
        cluster.restart("immediate")
        database.enqueue("well")
        wait_until(lambda: receiver.versions("well"), what="the event after the crash")
        database.wait_settled()
        assert database.value(dead_letters) == 1
    finally:
        relay.close()
        pooler.close()


def test_a_database_that_does_not_answer_costs_no_processor_time(database: Database, start_relay: StartRelay) -> None:
    """The loop waits for the answer, whatever else is due."""
    database.add_destination("d", "null:", relay="external")
    database.execute("ALTER FUNCTION outbox_internal.relay_destinations() RENAME TO real_destinations")
    columns = database.value("SELECT pg_get_function_result('outbox_internal.real_destinations'::regproc)")
    database.execute(
        f"CREATE FUNCTION outbox_internal.relay_destinations() RETURNS {columns} LANGUAGE plpgsql AS $$ BEGIN"
        " IF EXISTS (SELECT FROM outbox.relay) AND current_query() NOT LIKE '%beat%' THEN PERFORM pg_advisory_xact_lock(1); END IF;"
        " RETURN QUERY SELECT * FROM outbox_internal.real_destinations(); END $$"
    )
    with database.connect() as blocker:
        blocker.execute("SELECT pg_advisory_lock(1)")
        relay = start_relay(database, options=("--listen", "127.0.0.1:0"))
        wait_until(
            lambda: database.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"),
            what="the relay to ask for the destinations once more",
        )  # fmt: skip
        assert_at_rest(relay)
    wait_served(database)


def test_answers_during_a_slow_statement_cost_no_processor_time(
    database: Database, receiver: Receiver, http: None, start_relay: StartRelay
) -> None:
    """An endpoint answers while the relay waits for a statement, and takes no answers."""
    gate = Gate()
    receiver.on(subject("slow"), gate.held())
    receiver.on(subject("refused"), answer(400))
    database.add_destination("d", receiver.url(), relay="external")
    relay = start_relay(database, options=("--listen", "127.0.0.1:0"))
    wait_served(database)
    database.enqueue("slow")
    wait_until(lambda: gate.holding, what="a request under way")
    with database.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK TABLE outbox.delivery IN SHARE MODE")
        database.enqueue("refused")
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        wait_until(lambda: database.value(blocked), what="the relay to wait for the lock")
        gate.open()
        wait_until(lambda: not gate.holding, what="the answer to the other request")
        assert_at_rest(relay)
        blocker.execute("COMMIT")
    database.wait_published(1)


def assert_at_rest(relay: RelayProcess) -> None:
    """Its loop turns only for its figures, and when it is asked for them."""
    port = re.search(r"listening on port (\d+)", relay.log())[1]

    def turns() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as page:
            return json.load(page)["loop_turns"]

    before = turns()
    first = wait_until(turns, lambda seen: seen > before, what="the loop to turn")
    second = wait_until(turns, lambda seen: seen > first, what="the loop to turn")
    assert second - first < 1000, "the loop turns without a reason"
