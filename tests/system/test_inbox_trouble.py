"""Events that fail, and processors that are killed: in the server, and outside it with claim().

Polls are an hour apart on these servers (cluster.py), so each step follows a wake-up or a due
attempt.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database, create_database
from sinks.servers import add_clients_to_path
from test_inbox import Reader
from waiting import SECOND, Stopwatch, stays, wait_until

RECEIVE = """
    SELECT inbox.receive(%s, 'test', %s::uuid[], array_fill(now(), ARRAY[n]), array_fill(NULL::bigint, ARRAY[n]),
                         %s::bigint[], array_fill(1, ARRAY[n]), array_fill(NULL::uuid, ARRAY[n]),
                         array_fill('t'::text, ARRAY[n]), array_fill('t'::text, ARRAY[n]), %s::text[],
                         array_fill('Thing'::text, ARRAY[n]), %s::text[],
                         array_fill('application/json'::text, ARRAY[n]), array_fill(NULL::jsonb, ARRAY[n]),
                         array_fill('{}'::bytea, ARRAY[n]))
      FROM (SELECT cardinality(%s::uuid[])) AS given(n)
"""


class Consumer(Reader):
    """A database with messages for the consumer c."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.sent = 0

    def send(self, key: str, count: int = 1, *, first: int = 1) -> list[str]:
        return self.send_all([(key, first + n) for n in range(count)])

    def send_all(self, events: list[tuple[str, int]]) -> list[str]:
        """Sends events of these keys and versions, in this order."""
        ids = [f"{self.sent + n:08x}-0000-7000-8000-{0:012x}" for n in range(1, len(events) + 1)]
        self.sent += len(events)
        self.send_again(ids, events)
        return ids

    def send_again(self, ids: list[str], events: list[tuple[str, int]]) -> None:
        keys, versions = [key for key, _ in events], [version for _, version in events]
        self.execute(RECEIVE, ("c", ids, versions, keys, keys, ids))

    def set_policy(self, **policy: object) -> None:
        self.execute(
            "SELECT inbox.set_policy('c', " + ", ".join(f"{name} => %s" for name in policy) + ")",
            tuple(policy.values()),
        )

    def poison(self, key: str, version: int) -> None:
        self.execute("INSERT INTO poison VALUES (%s, %s)", (key, version))

    def dead_letters(self) -> list[str]:
        rows = self.execute("SELECT event_id::text FROM inbox.dead_letter ORDER BY died_at")
        return [row[0] for row in rows]

    def wait_dead(self, ids: list[str]) -> None:
        wait_until(self.dead_letters, lambda seen: seen == ids, what="dead letters")

    def findings(self, max_age: str = "1 minute") -> list[tuple]:
        return self.execute("SELECT severity, object, what FROM inbox.health(%s)", (max_age,))

    def claim(self, connection: psycopg.Connection, lease: str = "30 seconds") -> list[tuple]:
        return connection.execute("SELECT token, event_id::text FROM inbox.claim('c', 100, %s)", (lease,)).fetchall()


@pytest.fixture
def consumer(shared_cluster: Cluster, new_database: Callable[..., Database]) -> Consumer:
    consumer = Consumer(shared_cluster, new_database(extension=False).name)
    consumer.create_extension()
    return consumer


@pytest.fixture
def served(consumer: Consumer) -> Consumer:
    """A consumer in the server with short retry pauses."""
    consumer.set_policy(max_attempts=3, retry_base="1 ms", retry_max="10 ms")
    consumer.subscribe()
    return consumer


# -------------------------------------------------------------------------------------------------
# In the server
# -------------------------------------------------------------------------------------------------


def test_the_last_attempt_makes_a_dead_letter_and_the_key_goes_on(served: Consumer) -> None:
    served.poison("bad", 2)
    bad, good = served.send("bad", 3), served.send("good", 2)
    served.wait_dead([bad[1]])
    wait_until(served.applied, lambda seen: len(seen) == 4, what="all others to be applied")
    applied = served.applied()
    assert [id for id in applied if id in bad] == [bad[0], bad[2]] and set(good) < set(applied)
    letter = served.execute(
        "SELECT consumer, ordering_key, version, attempts, error, blocks, payload_text FROM inbox.dead_letter"
    )
    assert letter == [("c", "bad", 2, 3, "poison 2", False, "{}")]
    log = served.cluster.log_since(served.cluster.test_began)
    assert f'attempt 1 of event {bad[1]} of consumer "c" failed: poison 2' in log
    assert f'event {bad[1]} of consumer "c" is a dead letter, after 3 failed attempts: poison 2' in log
    assert f"attempt 2 of event {bad[1]}" not in log, "an attempt that failed for the same reason is in the log"
    state = served.state()
    assert (state["state"], state["dead_letters"], state["waiting_keys"]) == ("idle", 1, 0)
    assert served.findings() == [("degraded", 'consumer "c"', "dead letters")]


@pytest.mark.timing
def test_a_dead_letter_blocks_its_key_until_it_is_redriven(served: Consumer) -> None:
    served.set_policy(on_dead_letter="block")
    served.poison("bad", 1)
    bad, good = served.send("bad", 3), served.send("good", 2)
    served.wait_dead([bad[0]])
    served.wait_applied(good)
    stays(served.applied, good, seconds=0.3, what="what was applied")
    assert served.state()["state"] == "processing, some keys wait"
    assert served.findings() == [("failing", 'consumer "c"', "dead letters")]
    served.execute("DELETE FROM poison")
    watch = Stopwatch()
    assert served.value("SELECT inbox.redrive('c', why => 'handler mended')") == 1
    served.wait_applied(good + bad)
    assert watch.seconds < SECOND
    assert served.findings() == []


def test_an_event_without_its_key_or_version_is_not_tried_again(served: Consumer) -> None:
    """inbox.apply() says so, and what becomes of it."""
    served.execute("CREATE TABLE video (id text PRIMARY KEY, version bigint)")
    served.execute(
        "CREATE OR REPLACE FUNCTION handle(event inbox.message) RETURNS void LANGUAGE sql AS "
        "$$ SELECT inbox.apply('video', ARRAY['id'], 'version', '{\"id\": 1}') $$"
    )
    sent = served.send("a", 1)
    served.wait_dead(sent)
    assert served.execute("SELECT attempts, sqlstate, error, detail FROM inbox.dead_letter") == [(
        1, "IL002", 'data for projection public.video lacks "version"',
        "In a handler no further attempt is made: the event becomes a dead letter at once.",
    )]  # fmt: skip
    assert served.value(f"SELECT inbox.redrive('c', '{sent[0]}')") == 1
    served.wait_dead(sent)
    assert served.value("SELECT inbox.redrive('c', event_id) FROM inbox.dead_letter") == 1
    served.wait_dead(sent)


@pytest.mark.timing
def test_a_dead_letter_blocks_its_key_until_it_is_discarded(served: Consumer) -> None:
    served.set_policy(on_dead_letter="block")
    served.poison("bad", 1)
    bad = served.send("bad", 3)
    served.wait_dead([bad[0]])
    watch = Stopwatch()
    assert served.value("SELECT inbox.discard('c', %s, 'wrong by design')", (bad[:1],)) == 1
    served.wait_applied(bad[1:])
    assert watch.seconds < SECOND
    served.send_again(bad[:1], [("bad", 9)])
    served.wait_applied(bad[1:] + served.send("bad", first=10))
    assert served.execute("SELECT operation, role, why FROM inbox.operation WHERE why IS NOT NULL") == [
        ("discard", "postgres", "wrong by design")
    ]


@pytest.mark.timing
def test_a_policy_that_changes_frees_what_was_blocked(served: Consumer) -> None:
    served.set_policy(on_dead_letter="block")
    served.poison("bad", 1)
    bad = served.send("bad", 3)
    served.wait_dead([bad[0]])
    watch = Stopwatch()
    served.set_policy(on_dead_letter="release")
    served.wait_applied(bad[1:])
    assert watch.seconds < SECOND


def test_a_handler_can_say_that_no_attempt_will_help(served: Consumer) -> None:
    served.set_policy(max_attempts=1000, retry_base="1 hour", retry_max="1 hour")
    served.execute(
        """CREATE OR REPLACE FUNCTION handle(event inbox.message) RETURNS void LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'never' USING ERRCODE = 'IL002'; END $$"""
    )
    served.wait_dead(served.send("bad"))
    assert served.execute("SELECT attempts, sqlstate FROM inbox.dead_letter") == [(1, "IL002")]


@pytest.mark.parametrize("sqlstate", ["53100", "53300", "58030", "25006"])
def test_trouble_of_the_server_makes_no_dead_letter(served: Consumer, sqlstate: str) -> None:
    """A disk that was full for ten minutes made dead letters of all messages of that time."""
    served.execute(f"""
        CREATE TABLE public.trouble (sqlstate text PRIMARY KEY);
        INSERT INTO public.trouble VALUES ('{sqlstate}');
        CREATE FUNCTION public.handle_in_trouble(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE state text := (SELECT sqlstate FROM public.trouble);
        BEGIN
            IF state IS NOT NULL THEN RAISE 'trouble' USING ERRCODE = state; END IF;
        END $$;
        SELECT inbox.subscribe('c', '*', 'public.handle_in_trouble')""")
    (id,) = served.send("a")
    attempts = "SELECT attempts FROM inbox.waiting_keys"
    wait_until(
        lambda: served.value(attempts), lambda seen: seen and seen > 5, what="more attempts than make a dead letter"
    )
    served.execute("UPDATE public.trouble SET sqlstate = 'P0001'")
    served.wait_dead([id])
    assert served.value("SELECT attempts FROM inbox.dead_letter") == 3, "attempts in trouble counted"
    served.execute("DELETE FROM public.trouble")
    served.execute("SELECT inbox.redrive('c', why => 'mended')")
    served.wait_applied([id])


def test_a_failed_message_is_tried_again_when_it_is_due(served: Consumer) -> None:
    served.set_policy(max_attempts=1000)
    served.poison("bad", 1)
    bad = served.send("bad")
    wait_until(
        lambda: served.execute("SELECT attempts FROM inbox.waiting_keys"), lambda rows: rows and rows[0][0] > 5,
        what="more attempts",
    )  # fmt: skip
    wait_until(lambda: served.findings("1 ms"), lambda seen: seen and seen[0][2] in ("behind", "events fail"),
               what="a report that it fails")  # fmt: skip
    served.execute("DELETE FROM poison")
    served.wait_applied(bad)


def test_a_redriven_message_comes_before_what_waits_behind_it(served: Consumer) -> None:
    served.poison("bad", 1)
    served.poison("bad", 2)
    bad = served.send("bad", 2)
    served.wait_dead(bad)
    # The first message waits for long now, and the second behind it; the processor must not poll for them.
    served.set_policy(max_attempts=1000, retry_base="1 hour", retry_max="1 hour")
    assert served.value("SELECT inbox.redrive('c')") == 2
    wait_until(lambda: served.value("SELECT count(*) FROM inbox.waiting"), lambda n: n == 1, what="a failure")
    assert served.applied() == []
    served.execute("DELETE FROM poison; UPDATE inbox.waiting SET next_attempt_at = '-infinity'")
    more = served.send("other")  # wakes the processor
    wait_until(served.applied, lambda seen: len(seen) == 3, what="all to be applied")
    assert [id for id in served.applied() if id not in more] == bad


@pytest.mark.timing
def test_how_long_messages_waited_is_shown(served: Consumer) -> None:
    ids = served.send("a", 10)
    served.wait_applied(ids)
    wait, latency = wait_until(
        lambda: served.execute("SELECT wait_p99, latency_p99 FROM inbox.lag")[0], lambda row: row[0], what="the lag"
    )
    assert 0 < wait.total_seconds() < 10 * SECOND and latency.total_seconds() < 10 * SECOND


def test_metrics_are_openmetrics_text(served: Consumer) -> None:
    add_clients_to_path()
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    served.poison("bad", 1)
    [bad, *good] = served.send_all([("bad", 1), ("good", 1)])
    served.wait_dead([bad])
    served.wait_applied(good)
    wait_until(lambda: served.state()["latency_p99"], what="figures of the processor")
    name = 'odd "name" \\\n'
    served.execute("SELECT inbox.create_consumer(%s)", (name,))
    families = list(parser.text_string_to_metric_families(served.value("SELECT inbox.metrics()")))
    assert len({family.name for family in families}) == len(families)
    samples = {
        (sample.name, sample.labels.get("consumer"), sample.labels.get("quantile", sample.labels.get("le"))): sample.value
        for family in families for sample in family.samples
    }  # fmt: skip
    assert {sample.labels["database"] for family in families for sample in family.samples} == {served.name}
    assert samples["inbox_up", name, None] == 1 and samples["inbox_processed_total", name, None] == 0
    assert samples["inbox_dead_letters", "c", None] == 1 and samples["inbox_processed_total", "c", None] == 1
    assert samples["inbox_failures_total", "c", None] == 3 and samples["inbox_latency_seconds", "c", "0.99"] > 0
    assert (
        samples["inbox_delivery_seconds_count", "c", None] == samples["inbox_delivery_seconds_bucket", "c", "+Inf"] == 1
    )
    assert (
        samples["inbox_delivery_seconds_sum", "c", None] > 0
        and ("inbox_delivery_seconds_count", name, None) not in samples
    )


@pytest.mark.worker_errors("is not one of role|terminated")
def test_a_consumer_without_processor_is_reported(consumer: Consumer) -> None:
    consumer.send("a")
    assert consumer.findings() == []
    wait_until(lambda: consumer.findings("1 ms"), lambda seen: seen == [("failing", 'consumer "c"', "messages for nobody")],
               what="a report of messages for nobody")  # fmt: skip
    consumer.execute("UPDATE inbox.consumer SET role = 'pg_monitor', subscriptions = 1")  # it may not log in
    assert consumer.findings() == [("failing", 'consumer "c"', "no processor")]


# Ways in which a handler escapes from being caught.
ENDS = {
    "canceled": "RAISE 'stop' USING ERRCODE = 'query_canceled';",
    "cancels itself": "PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(1);",
    "ends its process": "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(1);",
}


@pytest.mark.worker_errors("terminating|stop|canceling")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_message_that_ends_its_transaction_or_its_process_becomes_a_dead_letter(served: Consumer, end: str) -> None:
    served.execute(
        f"""CREATE FUNCTION public.end_it(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN IF event.aggregate_id = 'bad' THEN {end} END IF; END $$"""
    )
    served.execute("SELECT inbox.subscribe('c', '*', 'public.end_it')")
    bad, good = served.send("bad"), served.send("good", 2)
    served.wait_dead(bad)
    wait_until(served.applied, lambda seen: sorted(seen) == sorted(good), what="all others to be applied")
    assert served.execute("SELECT DISTINCT attempts FROM inbox.dead_letter") == [(3,)]


@pytest.mark.worker_errors("terminating")
def test_a_role_that_may_only_read_gets_past_a_message_that_ends_its_process(consumer: Consumer) -> None:
    role = f"reader_{consumer.name}"
    consumer.execute(
        f"""CREATE ROLE {role} LOGIN;
            SELECT inbox.grant_read('{role}');
            CREATE FUNCTION public.end_it(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN IF event.aggregate_id = 'bad' THEN {ENDS["ends its process"]} END IF; END $$"""
    )
    try:
        with consumer.cluster.connect(consumer.name, role) as connection:
            connection.execute("SELECT inbox.subscribe('c', '*', 'public.end_it')")
            connection.execute("SELECT inbox.set_policy('c', max_attempts => 1)")
        bad = consumer.send("bad")
        consumer.send("good", 2)
        consumer.wait_dead(bad)
        wait_until(
            lambda: consumer.value("SELECT count(*) FROM inbox.message"),
            lambda left: left == 0,
            what="all others to be processed",
        )
    finally:
        consumer.execute("DELETE FROM inbox.consumer")
        consumer.execute("DROP EXTENSION pg_inbox CASCADE")
        consumer.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.worker_errors("terminated")
def test_a_message_that_crashes_the_server_becomes_a_dead_letter(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"restart_after_crash": "on"})
    served = Consumer(cluster, create_database(cluster, extension=False).name)
    served.create_extension()
    served.set_policy(max_attempts=2, retry_base="1 ms", retry_max="10 ms")
    served.execute(
        """CREATE FUNCTION public.wait(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
           BEGIN IF event.aggregate_id = 'bad' THEN PERFORM pg_sleep(3600); END IF; END $$"""
    )
    served.execute("SELECT inbox.subscribe('c', '*', 'public.wait'), inbox.subscribe('c', '*', 'handle')")
    bad, good = served.send("bad"), served.send("good")
    sleeping = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    for _ in range(2):
        (pid,) = wait_until(lambda: served.execute(sleeping), what="the processor to be at the message")[0]
        cluster.kill_and_recover(pid)
    served.wait_dead(bad)
    served.wait_applied(good)


def test_a_standby_is_not_down(make_cluster: MakeCluster) -> None:
    primary = make_cluster()
    consumer = Consumer(primary, create_database(primary, extension=False).name)
    consumer.create_extension()
    consumer.subscribe()
    consumer.wait_applied(consumer.send("a"))
    standby = primary.make_standby().start()
    try:
        copy = Consumer(standby, consumer.name)
        wait_until(copy.applied, what="the message to reach the standby")
        assert copy.state()["state"] == "standby" and copy.findings() == []
        metrics = copy.value("SELECT inbox.metrics()")
        assert "inbox_up{" not in metrics and f'inbox_in_recovery{{database="{copy.name}"}} 1' in metrics
    finally:
        standby.destroy()


def test_a_message_that_waits_can_be_discarded(consumer: Consumer) -> None:
    consumer.send("a")
    bad, good = consumer.send("a"), consumer.send("a", first=3)
    assert consumer.value("SELECT inbox.discard('c', %s::uuid[], 'stuck')", (bad,)) == 1
    consumer.subscribe()
    wait_until(consumer.applied, lambda seen: seen[-1:] == good, what="the last message to be applied")
    assert bad[0] not in consumer.applied()


# Things that a handler can leave in its session, and how another would see them.
LEFT = {
    "search_path": ("SET search_path = tenant", "current_setting('search_path')"),
    "setting": ("SET statement_timeout = '1h'", "current_setting('statement_timeout')"),
    "setting of an application": ("SET app.tenant = 7", "coalesce(current_setting('app.tenant', true), '')"),
    "isolation": ("SET default_transaction_isolation = serializable", "current_setting('transaction_isolation')"),
    "read-only": ("SET default_transaction_read_only = on", "current_setting('transaction_read_only')"),
    "durability": ("SET synchronous_commit = remote_apply", "current_setting('synchronous_commit')"),
    "role": ("SET ROLE pg_monitor", "current_user"),
    "temporary table": ("CREATE TEMPORARY TABLE note (x int)", "to_regclass('pg_temp.note')"),
    "advisory lock": (
        "SELECT pg_advisory_lock(7)",
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())",
    ),
    "prepared statement": (
        "PREPARE own AS SELECT 1",
        "(SELECT count(*) FROM pg_prepared_statements WHERE name = 'own')",
    ),
    "cursor": ("DECLARE own CURSOR WITH HOLD FOR SELECT 1", "(SELECT count(*) FROM pg_cursors WHERE name = 'own')"),
}


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("left, seen", LEFT.values(), ids=LEFT)
def test_a_handler_sees_nothing_that_another_has_left(served: Consumer, left: str, seen: str, fails: bool) -> None:
    """The second of three messages leaves something; in the same process, the third sees what the first saw."""
    served.execute(
        f"""CREATE SCHEMA tenant; CREATE TABLE saw (version bigint, pid int, what text);
            CREATE OR REPLACE FUNCTION handle(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO public.saw SELECT event.version, pg_backend_pid(), {seen};
                PERFORM inbox.apply('public.item', ARRAY['k'], 'version', jsonb_build_object('k', 1, 'version', event.version));
                IF event.version = 2 THEN
                    EXECUTE $left${left}$left$;
                    IF {fails} THEN RAISE EXCEPTION 'no' USING ERRCODE = 'IL002'; END IF;
                END IF;
            END $$;
            CREATE TABLE item (k int PRIMARY KEY, version bigint)"""
    )
    served.send("a", 3)
    done = [1, 3] if fails else [1, 2, 3]
    rows = wait_until(
        lambda: served.execute("SELECT version, pid, what FROM saw ORDER BY version"),
        lambda rows: [row[0] for row in rows] == done, what="all messages to be handled",
    )  # fmt: skip
    assert rows[0][1:] == rows[-1][1:]


# -------------------------------------------------------------------------------------------------
# Outside the server
# -------------------------------------------------------------------------------------------------


def test_a_message_under_a_lost_lease_cannot_be_completed(consumer: Consumer) -> None:
    consumer.set_policy(retry_base="1 ms", retry_max="1 ms")
    ids = consumer.send("a", 2)
    with consumer.connect() as slow, consumer.connect() as other:
        old = dict((id, token) for token, id in consumer.claim(slow, "1 ms"))
        assert list(old) == ids
        [(token, id)] = wait_until(lambda: consumer.claim(other), what="the lease to be taken over")
        assert id == ids[0]
        for id in ids:
            with pytest.raises(psycopg.Error) as error, slow.transaction():
                slow.execute("INSERT INTO applied (event_id) VALUES (%s)", (id,))
                slow.execute("SELECT inbox.complete(%s, %s)", (old[id], id))
            assert error.value.sqlstate == "IL001"
        assert consumer.applied() == []
        assert other.execute("SELECT inbox.complete(%s, %s)", (token, ids[0])).fetchone() == (True,)


def test_consumers_of_the_server_are_not_claimed(served: Consumer) -> None:
    with (
        served.connect() as connection,
        pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="processed in the server"),
    ):
        served.claim(connection)


class Claimers:
    """Processes that claim messages of the consumer c."""

    def __init__(self, consumer: Consumer, faults: bool) -> None:
        self.consumer = consumer
        self.faults = faults
        self.seed = int(os.environ.get("OUTBOX_TEST_SEED", random.randrange(1_000_000)))
        self.started = 0
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, count: int = 1) -> None:
        program = str(Path(__file__).with_name("claimer.py"))
        conninfo = self.consumer.cluster.conninfo(self.consumer.name)
        for _ in range(count):
            self.started += 1
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, program, conninfo, "c", str(self.started), str(self.seed + self.started), str(int(self.faults))],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip

    def replace_dead(self) -> None:
        for process in [process for process in self.processes if process.poll() == -signal.SIGKILL]:
            self.processes.remove(process)
            process.communicate()
            self.start()

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            output, _ = process.communicate(timeout=180)
            # Others may have done all before this one had begun, and listens to the signal.
            assert process.returncode in (0, -signal.SIGTERM), f"a claimer failed (seed {self.seed}):\n{output}"
        self.processes.clear()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def claimers(consumer: Consumer, count: int, *, faults: bool = True) -> Iterator[Claimers]:
    claimers = Claimers(consumer, faults)
    try:
        claimers.start(count)
        yield claimers
        claimers.stop()
    finally:
        claimers.end()


def wait_for_more(consumer: Consumer, more: int) -> None:
    """Waits for this number of messages, or until all are applied."""
    count = "SELECT count(*) FROM applied"
    goal = min(consumer.value(count) + more, consumer.sent)
    wait_until(lambda: consumer.value(count), lambda n: n >= goal, timeout=180, what=f"{more} more applied")


def assert_applied_once_in_order(consumer: Consumer, ids: list[str], *, but: tuple[str, ...] = ()) -> None:
    expected = sorted(set(ids) - set(but))
    wait_until(
        lambda: consumer.value("SELECT count(*) FROM inbox.message"), lambda n: n == 0, timeout=180,
        what="the inbox to be empty; inbox.waiting and inbox.claimed say what is left",
    )  # fmt: skip
    assert sorted(consumer.applied()) == expected, "lost, or applied twice"
    back = consumer.execute(
        "SELECT key, version, who FROM (SELECT *, version <= lag(version) OVER (PARTITION BY key ORDER BY number) AS back "
        "FROM applied) AS s WHERE back"
    )
    assert back == [], "events of a key were applied out of order"


@pytest.mark.long
def test_every_message_once_and_in_order_while_processors_are_killed_and_stopped(consumer: Consumer) -> None:
    consumer.set_policy(max_attempts=1000, retry_base="1 ms", retry_max="100 ms")
    keys = [f"key {n}" for n in range(20)]
    events = [(key, version) for version in range(1, 101) for key in keys]
    ids = consumer.send_all(events)
    with claimers(consumer, 4) as running:
        for _ in range(3):
            wait_for_more(consumer, 200)
            running.processes[0].kill()
            wait_until(lambda: running.processes[0].poll(), what="a claimer to be dead")
            running.replace_dead()
            consumer.send_again(ids[:500], events[:500])
            stopped = running.processes[0]
            stopped.send_signal(signal.SIGSTOP)  # and others go on, once its lease has ended
            wait_for_more(consumer, 200)
            stopped.send_signal(signal.SIGCONT)
        assert_applied_once_in_order(consumer, ids)
    assert consumer.dead_letters() == []


def test_a_message_that_ends_its_processor_takes_no_others_along(consumer: Consumer) -> None:
    consumer.set_policy(max_attempts=3, retry_base="1 ms", retry_max="1 ms")
    ids = consumer.send("deadly") + consumer.send_all([(f"key {n}", 1) for n in range(30)])
    deadly = ids[0]
    # A message that was claimed with the deadly one has an attempt less than others: two refusals would be too many.
    with claimers(consumer, 1, faults=False) as running:

        def dead_letters() -> list[str]:
            running.replace_dead()
            return consumer.dead_letters()

        wait_until(dead_letters, lambda seen: seen == [deadly], timeout=180, what="the dead letter")
        assert_applied_once_in_order(consumer, ids, but=(deadly,))
    row = consumer.execute("SELECT attempts, sqlstate FROM inbox.dead_letter")
    assert row == [(3, "IL001")]
