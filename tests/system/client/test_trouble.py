"""Failures around the client: lost connections, commits in doubt, failing sources, stopping, resets."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster import Installation, MakeCluster
from database import create_database
from silent import silent_server
from sinks.fault_proxy import TcpProxy
from waiting import wait_until

from .conftest import Consume
from .consumer import Target

# -------------------------------------------------------------------------------------------------
# The database
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(target: Target):
    proxy = TcpProxy(target.cluster.port)
    yield proxy
    proxy.close()


def through(target: Target, proxy: TcpProxy) -> str:
    return f"host=127.0.0.1 port={proxy.port} user={target.role} dbname={target.name} sslmode=disable"


def test_a_commit_whose_answer_is_lost_is_looked_up(target: Target, consume: Consume, proxy: TcpProxy) -> None:
    consumer = consume(conninfo=through(target, proxy), connections=1)
    consumer.deliver("a")
    consumer.wait_for("the first event", acked=1)
    # Otherwise the answer that is lost may be that of the first look for redriven messages.
    target.wait_for_sessions_at_rest(2)
    proxy.lose_answers(1)
    ids = consumer.deliver("a", 3, first=2)
    state = consumer.wait_for("the others", acked=4)
    assert state["in_doubt"] == 1, consumer.log()
    assert (state["applied"], state["duplicates"], state["nacked"]) == (4, 0, [])
    assert target.applied()[1:] == ids


def test_a_commit_that_is_still_under_way_is_waited_for(target: Target, consume: Consume, proxy: TcpProxy) -> None:
    """The connection breaks while the old transaction waits in its COMMIT, which then succeeds."""
    consumer = consume(conninfo=through(target, proxy), connections=1)
    first = consumer.deliver("a")
    consumer.wait_for("the first event", acked=1)
    target.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON applied DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    with target.connect() as blocker:
        blocker.execute("SELECT pg_advisory_lock(7)")
        ids = consumer.deliver("a", 3, first=2)
        target.wait_for_lock("COMMIT to wait")
        proxy.refuse_connections()
        proxy.listen()
        target.wait_for_lock("the second attempt to wait for the first", backends=2)
    state = consumer.wait_for("all to be acknowledged", acked=4)
    assert state["in_doubt"] >= 1
    assert target.applied() == first + ids


def test_killed_backends_cost_nothing(target: Target, consume: Consume) -> None:
    consumer = consume(connections=3, batch_size=5)
    ids: list[str] = []

    def deliver_and_kill() -> int:
        version = len(ids) // 6 + 1
        for key in "abcdef":
            ids.extend(consumer.deliver(key, 2, first=version))
        target.kill_backends()
        return consumer.state()["database_reconnects"]

    wait_until(deliver_and_kill, lambda seen: seen >= 3, what="connections to be made again and again")
    state = consumer.wait_for("all to be acknowledged", acked=len(ids))
    target.wait_applied(ids)
    assert state["failures"] == 0
    rows = target.execute("SELECT array_agg(version ORDER BY number) FROM applied GROUP BY key")
    assert rows == [(list(range(1, len(ids) // 6 + 1)),)] * 6


def test_a_handler_that_outlasts_its_session_makes_a_dead_letter(target: Target, consume: Consume) -> None:
    target.set_policy(max_attempts=2, retry_base="1 ms", retry_max="10 ms")
    consumer = consume(
        conninfo=f"{target.conninfo} options='-c idle_in_transaction_session_timeout=100'", connections=1,
        retry_base=1, retry_max=10,
    )  # fmt: skip
    bad = consumer.deliver("bad", type="sleep", payload="400")
    good = consumer.deliver("good", 5)
    state = consumer.wait_for("all to be acknowledged", acked=6)
    assert state["dead"] == 1 and state["failures"] == 2
    assert [(row[0], row[1], row[2]) for row in target.dead_letters()] == [(bad[0], 2, "08006")]
    target.wait_applied(good)


def test_a_failure_of_an_event_that_exceeds_limits_is_counted(target: Target, consume: Consume) -> None:
    target.set_policy(max_attempts=2, retry_base="1 ms", retry_max="10 ms")
    consumer = consume(connections=1, retry_base=1, retry_max=10)
    ids = [consumer.deliver("k" * 2000)[0], consumer.deliver("type", type="T" * 303)[0]]
    for id in ids:
        target.poison(id)
    good = consumer.deliver("good", 5)
    state = consumer.wait_for("all to be acknowledged", acked=7)
    assert state["dead"] == 2
    assert {row[0]: row[1] for row in target.dead_letters()} == dict.fromkeys(ids, 2)
    details = target.execute("SELECT detail FROM inbox.dead_message ORDER BY event_type")
    assert sorted(detail for (detail,) in details) == [
        "The event is not kept as it was: aggregate_id is too long.",
        "The event is not kept as it was: event_type is too long.",
    ]
    target.wait_applied(good)


def test_the_window_is_pruned_whatever_time_out_handlers_have(target: Target, consume: Consume) -> None:
    target.execute(
        "INSERT INTO inbox.processed (consumer_id, event_id, bucket, processed_at)"
        " SELECT 1, gen_random_uuid(), 32, now() - interval '9 days' FROM generate_series(1, 200000)"
    )
    consume(conninfo=f"{target.conninfo} options='-c statement_timeout=50'", housekeeping_interval=50)
    wait_until(
        lambda: target.value("SELECT count(*) FROM inbox.processed"), lambda n: n == 0, what="old ids to be removed"
    )


def test_the_server_goes_and_comes_back(make_cluster: MakeCluster, consume: Consume) -> None:
    cluster = make_cluster()
    target = Target(cluster, create_database(cluster, "db", extension=False).name)
    target.create_extension()
    consumer = consume(conninfo=target.conninfo, retry_max=100)
    ids = consumer.deliver("a", 3)
    consumer.wait_for("the first events", acked=3)
    cluster.stop("immediate")
    ids += consumer.deliver("a", 3, first=4) + consumer.deliver("b", 3)
    consumer.wait_for("them to be held", received=9)
    cluster.start()
    consumer.wait_for("all to be acknowledged", acked=9)
    target.wait_applied(ids)


@pytest.mark.parametrize(
    "spoil, says",
    [
        ("DROP EXTENSION pg_inbox", "does not exist"),
        ("SELECT inbox.revoke_consume('{role}')", "permission denied"),
        ("UPDATE inbox.consumer SET role = 'postgres'", "belongs to role"),
    ],
)
def test_errors_that_waiting_cannot_repair_end_the_consumer(
    target: Target, consume: Consume, spoil: str, says: str
) -> None:
    if spoil.startswith("UPDATE"):
        consume().deliver("a")
        wait_until(lambda: target.value("SELECT count(*) FROM inbox.consumer"), what="the consumer to be known")
    target.execute(spoil.format(role=target.role))
    consumer = consume()
    consumer.deliver("b")
    consumer.wait_logged("run() threw: ")
    assert consumer.wait_ended() == 3
    assert says in consumer.log()


def test_statements_that_must_be_prepared_again(target: Target, consume: Consume) -> None:
    consumer = consume(connections=1, max_attempts=1)
    consumer.deliver("a", type="star")
    consumer.wait_for("the first event", acked=1)
    target.execute("ALTER TABLE item ADD more text")
    consumer.deliver("a", type="star")
    assert consumer.wait_for("the second event", acked=2)["dead"] == 0


# -------------------------------------------------------------------------------------------------
# The source
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["fail_open", "fail_receive"])
def test_a_source_that_fails_is_opened_again(target: Target, consume: Consume, fault: str) -> None:
    consumer = consume()
    if fault == "fail_open":
        consumer.command("fail_open", 3)
        consumer.command("fail_receive", 1)
    else:
        consumer.command("fail_receive", 3)
    ids = consumer.deliver("a", 5)
    consumer.wait_for("all to be acknowledged", acked=5, source_reconnects=1)
    assert target.applied() == ids


def test_a_reset_is_carried_out(target: Target, consume: Consume) -> None:
    consumer = consume(housekeeping_interval=50)
    consumer.deliver("a", 3)
    consumer.wait_for("them", acked=3)
    target.execute("SELECT inbox.reset_offset('c', 's', '2024-02-29 12:00:00.123456+00', 'a test')")
    state = consumer.wait_for("the source to be sent there", seeks=1)
    assert state["seeks"] == [1709208000123456]
    wait_until(
        lambda: target.execute("SELECT publish_time::text, reset_pending FROM inbox.offsets"),
        lambda rows: [row[1] for row in rows] == [False], what="the reset to be confirmed",
    )  # fmt: skip
    consumer.deliver("a", 1)
    consumer.wait_for("what comes afterwards", acked=4)
    assert target.value("SELECT message_id FROM inbox.offsets") == "4"
    assert len(consumer.state()["seeks"]) == 1


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_redriven_messages_are_applied(target: Target, consume: Consume, isolation: str) -> None:
    target.execute(f"ALTER ROLE {target.role} SET default_transaction_isolation = '{isolation}'")
    consumer = consume(max_attempts=1, housekeeping_interval=50)
    bad = "00000000-0000-4000-8000-000000000002"
    target.poison(bad)
    consumer.deliver("a", event_id=bad, payload='{"n": "ä"}')
    consumer.wait_for("it to be given up", dead=1)
    target.cure()
    target.execute("SELECT inbox.redrive('c', why => 'cured')")
    target.wait_applied([bad])
    row = target.execute("SELECT key, type, version, payload FROM applied")
    assert row == [("a", "changed", 1, '{"n": "ä"}')]
    assert target.value("SELECT count(*) FROM inbox.message") == 0


# -------------------------------------------------------------------------------------------------
# Stopping
# -------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_handlers_that_have_begun(target: Target, consume: Consume) -> None:
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(connections=1, batch_size=2)
        ids = consumer.deliver("a")
        target.wait_for_lock("the event to be begun")
        consumer.deliver("a", 4, first=2)
        consumer.wait_for("the others to be received", received=5)
        consumer.command("stop")
        blocker.execute("COMMIT")
    state = consumer.stop()
    assert len(state["acked"]) == 1 and state["closed"]
    assert target.applied() == ids


@pytest.mark.timing
def test_a_stop_leaves_handlers_that_take_too_long(target: Target, consume: Consume) -> None:
    """COMMIT has been sent and may succeed, so the events are not acknowledged and found applied later."""
    with target.connect() as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK applied")
        consumer = consume(drain_limit=100)
        ids = consumer.deliver("a", 3)
        target.wait_for_lock("the first events to be begun")
        state = consumer.stop()
        assert state["acked"] == [] and state["closed"]
        blocker.execute("COMMIT")
    wait_until(lambda: target.backends() == [], what="the server to notice")
    another = consume()
    for id in ids:
        another.deliver("a", event_id=id)
    another.wait_for("them to be acknowledged", acked=3)
    target.wait_applied(ids)


def test_it_can_be_stopped_by_a_signal_handler(target: Target, consume: Consume) -> None:
    consumer = consume()
    consumer.deliver("a")
    consumer.wait_for("the event", acked=1)
    consumer.process.send_signal(signal.SIGTERM)
    wait_until(lambda: consumer.state()["closed"], what="the consumer to end")
    assert consumer.wait_ended() == 0


HOUR = 3_600_000  # milliseconds
LIMITED = ("nats", "rabbitmq", "redis", "sqs")  # sources whose limits are options

# By kind of source: options of a consumer, for a server at this address.
OPENS: Mapping[str, Mapping[str, object]] = {
    "kafka": {"kafka_group": "g", "kafka_topics": "t"},
    "nats": {"nats_stream": "s", "nats_consumer": "c"},
    "pubsub": {"pubsub": "p/s", "emulator_host": "{address}"},
    "pull": {"pull": "postgresql://somebody@{address}/x"},
    "rabbitmq": {"rabbitmq_queue": "q"},
    "redis": {"redis_streams": "s", "redis_group": "g", "redis_consumer": "c"},
    "sqs": {
        "sqs": "q", "sqs_region": "eu-west-1", "sqs_endpoint": "http://{address}", "sqs_access_key_id": "any",
        "sqs_secret_access_key": "any",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", OPENS)
def test_a_stop_ends_a_source_that_is_opening(
    installation: Installation, target: Target, consume: Consume, kind: str
) -> None:
    """Neither the limits of the source nor drain_limit end it: its server accepts connections and never answers."""
    if kind != "pull" and not (installation.programs / f"{kind}_source").exists():
        pytest.skip(f"NOT TESTED: the source {kind} is not part of this build")
    limits = {f"{kind}_{name}": HOUR for name in ("connect_timeout", "request_timeout")}
    with silent_server() as silent:
        address = f"127.0.0.1:{silent.port}"
        options = {kind: address, **(limits if kind in LIMITED else {}), **OPENS[kind]}
        consumer = consume(
            drain_limit=HOUR, **{name: str(value).format(address=address) for name, value in options.items()}
        )
        with silent.accept():
            consumer.process.send_signal(signal.SIGTERM)
            wait_until(lambda: consumer.state()["ended"], what="the consumer to end")
    assert consumer.wait_ended() == 0


def blocked_signals(pid: int) -> list[int]:
    """Returns the blocked signals of each thread, as sets of bits."""
    masks = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("SigBlk"))
        masks.append(int(line.split()[1], 16))
    return masks


def test_signals_are_for_the_threads_of_the_process(consume: Consume) -> None:
    consumer = consume(connections=3)
    consumer.deliver("a")
    consumer.wait_for("the event", acked=1)
    terminate = 1 << (signal.SIGTERM - 1)

    def free() -> int:
        return sum(not mask & terminate for mask in blocked_signals(consumer.process.pid))

    # The second takes signals again when it has started the others, of which the first may be at work by then.
    wait_until(free, lambda seen: seen == 2, what="main() and the thread that it runs the consumer in")
