"""The functions that relays outside the server call, without such a relay: sql/pg_outbox/relay.sql.

test_outbox_relay.py has the program.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from database import Database, NewDatabase
from waiting import wait_until

LEASE = "1 hour"
BEGINNING = "1:1:"


@dataclass
class Caller:
    """A relay that makes the calls of outbox-relay, one at a time."""

    database: Database
    direct: bool = True
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    def __post_init__(self) -> None:
        self.session = self.database.connect()
        self.session.row_factory = dict_row  # type: ignore[assignment]

    def rows(self, function: str, *arguments: object) -> list[dict[str, Any]]:
        places = ", ".join(["%s"] * len(arguments))
        return self.session.execute(f"SELECT * FROM outbox_internal.relay_{function}({places})", arguments).fetchall()  # type: ignore[return-value]

    def beat(
        self, held: dict[int, int] | None = None, idle: dict[int, str] | None = None, rest: bool = False
    ) -> dict[str, Any]:
        held, idle = held or {}, idle or {}
        return self.rows("beat", self.id, "test", "1", LEASE, self.direct, list(held), list(held.values()),
                         list(idle), list(idle.values()), rest)[0]  # fmt: skip

    def take(self, number: int) -> dict[str, Any]:
        return self.rows("take", self.id, number, self.direct)[0]

    def look(
        self, number: int, since: str = BEGINNING, max_events: int = 100, patterns: str = "%"
    ) -> list[dict[str, Any]]:
        return self.rows("look", number, [patterns], since, None, 0, max_events)

    def read_window(self, number: int, since: str, window_end: str, at_once: int) -> list[dict[str, Any]]:
        """The rows of a large window, in the order in which they come."""
        after, read = 0, []
        while True:
            part = self.rows("entries", number, ["%"], since, window_end, None, 0, after, at_once)[0]
            places = list(zip(part["segments"] or [], part["places"] or [], part["positions"] or []))
            for segment in range(4):
                here = [(place, position) for of, place, position in places if of == segment]
                read += self.rows("rows", segment, [place for place, _ in here], [position for _, position in here])
            known = {position for _, _, position in places}
            assert {row["position"] for row in read if row["position"] > after} == known
            after = part["last_position"] or after
            if part["complete"]:
                return read

    def save(self, number: int, lease: int, done: str, position: int) -> str:
        return self.rows("save", number, lease, done, None, position, True, [], [], [], [], [], [], 0, 0, 0)[0][
            "relay_save"
        ]


@pytest.fixture
def db(new_database: NewDatabase) -> Database:
    database = new_database()
    database.add_destination("d", "null:", relay="external")
    return database


def number_of(db: Database, name: str = "d") -> int:
    return db.value("SELECT number FROM outbox.cursor WHERE destination = %s", (name,))


def serving(db: Database) -> tuple[Caller, int]:
    """A relay that has taken the destination, and its number."""
    caller, number = Caller(db), number_of(db)
    caller.beat()
    assert caller.take(number)["lease"] is not None
    return caller, number


def test_a_relay_that_is_gone_keeps_nothing_after_the_clock_was_set_back(db: Database) -> None:
    gone, number = Caller(db, direct=False), number_of(db)
    gone.beat()
    assert gone.take(number)["lease"] is not None
    db.execute("UPDATE outbox.relay SET leased_at = now() + '1 day', leased_until = now() + '1 day' + '100 ms'")
    other = Caller(db, direct=False)
    wait_until(lambda: other.beat()["free"], lambda free: free == [number], what="the end of its lease")


def test_the_server_has_no_relay_for_it(db: Database) -> None:
    db.add_destination("inside", "null:")
    db.wait_for_worker("relay", "inside")
    assert db.pid("relay", "d") is None
    assert db.status()["state"] == "stopped"
    assert "it is served by no outbox-relay" in [found.why for found in db.health()]
    db.execute("ALTER SERVER inside OPTIONS (ADD relay 'external')")
    wait_until(lambda: db.pid("relay", "inside"), lambda pid: pid is None, what="the worker to leave")


def test_a_relay_reads_settings_and_destinations(db: Database) -> None:
    caller = Caller(db)
    settings = {row["name"]: row["value"] for row in caller.rows("settings")}
    assert settings["edition"] == "native"
    assert settings["max_in_flight"] == db.value("SELECT current_setting('outbox.max_in_flight')")
    (destination,) = caller.rows("destinations")
    assert destination["name"] == "d"
    assert "relay=external" in destination["options"]
    assert destination["patterns"] == ["%"]
    before = caller.beat()["configuration"]
    assert caller.beat()["configuration"] == before
    db.execute("ALTER SERVER d OPTIONS (ADD topics 'a.*')")
    assert caller.beat()["configuration"] != before


def test_one_relay_at_a_time(db: Database) -> None:
    number = number_of(db)
    first, second = Caller(db), Caller(db)
    assert first.beat()["free"] == [number]
    taken = first.take(number)
    assert taken["lease"] is not None
    assert not second.beat()["free"]
    assert second.take(number)["lease"] is None
    first.session.close()
    wait_until(
        lambda: second.beat()["free"], lambda free: free == [number], what="the lock of a session that has ended"
    )
    assert second.take(number)["lease"] not in (None, taken["lease"])
    assert second.save(number, taken["lease"], "5:5:", 1) == "lost"


def test_an_expired_lease_can_settle_nothing(db: Database) -> None:
    number = number_of(db)
    hung, second = Caller(db), Caller(db)
    hung.beat()
    lease = hung.take(number)["lease"]
    second.beat()
    assert second.take(number)["lease"] is None
    expire(db, hung)
    assert second.beat()["free"] == [number]
    assert second.take(number)["lease"] not in (None, lease)
    assert hung.beat({number: lease})["lost"] == [number]
    assert hung.take(number)["lease"] is None
    hung.session.close()  # its lock says nothing about the one that has the lease now
    assert not Caller(db).beat()["free"]


def expire(db: Database, caller: Caller) -> None:
    db.execute("UPDATE outbox.relay SET leased_until = now() WHERE id = %s", (caller.id,))


def test_behind_a_pooler_only_the_lease_counts(db: Database) -> None:
    number = number_of(db)
    first, second = Caller(db, direct=False), Caller(db)
    first.beat()
    assert first.take(number)["lease"] is not None
    first.session.close()
    assert not second.beat()["free"]
    expire(db, first)
    assert second.beat()["free"] == [number]


def test_a_small_window_is_read_whole(db: Database) -> None:
    ids = db.enqueue("a", 3) + db.enqueue("b", 2, topic="other")
    caller, number = serving(db)
    header, *rows = caller.look(number)
    assert header["found"] == 5
    assert [str(row["event_id"]) for row in rows] == ids
    assert header["last_position"] == rows[-1]["position"]
    header, *rows = caller.look(number, patterns="oth%")
    assert header["found"] == 5
    assert [str(row["event_id"]) for row in rows] == ids[3:]
    assert caller.look(number, since=header["window_end"])[0]["found"] == 0


@pytest.mark.parametrize("segments", [1, 2])
def test_a_large_window_is_read_in_parts(db: Database, segments: int) -> None:
    ids = db.enqueue("a", 30)
    if segments == 2:
        db.move_to_segment(1)
    ids += db.enqueue("b", 30)
    caller, number = serving(db)
    header, *rows = caller.look(number, max_events=10)
    assert header["found"] == 11
    assert rows == []
    read = caller.read_window(number, BEGINNING, header["window_end"], at_once=25)
    assert [str(row["event_id"]) for row in read] == ids


def test_a_large_window_with_few_of_the_positions(db: Database) -> None:
    caller, number = serving(db)
    ids: list[str] = []
    with db.connect() as early, db.connect() as late:
        early.execute("BEGIN")
        early.execute("SELECT outbox.enqueue('item', 'early', 'changed', '{}')")
        since = caller.look(number)[0]["window_end"]
        for position in (1_000, 5_000, 1_000_000, 80_000_000):
            db.execute("SELECT setval('outbox.event_position', %s)", (position,))
            ids += db.enqueue("a", 7)
        early.execute("SELECT outbox.enqueue('item', 'early', 'changed', '{}')")
        ids += db.enqueue("b", 3)
        early.execute("COMMIT")
        late.execute("BEGIN")
        late.execute("SELECT outbox.enqueue('item', 'late', 'changed', '{}')")
        window_end = caller.look(number, since)[0]["window_end"]
        late.execute("COMMIT")
    early_ones = db.value(
        "SELECT array_agg(event_id::text ORDER BY position) FROM outbox.event WHERE aggregate_id = 'early'"
    )
    for at_once in (1, 4, 10, 100):
        read = [str(row["event_id"]) for row in caller.read_window(number, since, window_end, at_once)]
        assert read == [early_ones[0], *ids[:-3], early_ones[1], *ids[-3:]], at_once


def test_a_commit_is_on_disk_before_its_events_are_read(db: Database) -> None:
    caller, number = serving(db)
    with db.connect() as session:
        session.execute("SET synchronous_commit = off")
        session.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
        inserted = db.value("SELECT pg_current_wal_insert_lsn()")
    _, row = caller.look(number)
    assert db.value("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn - 40", (inserted,)), row


def test_a_destination_that_was_given_up(db: Database) -> None:
    """A relay that has forgotten its token gives it up."""
    caller, number = Caller(db), number_of(db)
    caller.beat()
    lease = caller.take(number)["lease"]
    assert not caller.beat({number: lease})["free"]
    assert caller.beat()["free"] == [number]
    with db.connect() as operator, operator.transaction():
        operator.execute("SELECT outbox.pause('d')")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            caller.take(number)
    assert caller.take(number)["lease"] not in (None, lease)


def test_a_locked_cursor_is_busy_and_not_waited_for(db: Database) -> None:
    caller, number = Caller(db), number_of(db)
    caller.beat()
    lease = caller.take(number)["lease"]
    with db.connect() as operator, operator.transaction():
        operator.execute("SELECT outbox.pause('d')")
        assert caller.save(number, lease, "5:5:", 1) == "busy"
    assert caller.save(number, lease, "5:5:", 1) == "ok"
    assert caller.beat({number: lease})["paused"] == [number]
    db.execute("SELECT outbox.seek('d', 'beginning')")
    assert caller.beat({number: lease})["lost"] == [number]
    assert caller.save(number, lease, "5:5:", 1) == "lost"
    assert caller.take(number)["lease"] not in (None, lease)


def test_after_a_crash_reads_fail_and_leases_are_lost(db: Database) -> None:
    """A crash empties the unlogged table. test_outbox_relay.py has a real crash."""
    caller, number = serving(db)
    lease = db.value("SELECT lease FROM outbox.cursor")
    db.execute("TRUNCATE outbox.relay_lease")
    reads: list[tuple] = [
        ("look", number, ["%"], BEGINNING, None, 0, 100),
        ("entries", number, ["%"], BEGINNING, BEGINNING, None, 0, 0, 10),
        ("probe", [number], [BEGINNING], ["%"], [number], 10),
    ]
    for read in reads:
        with pytest.raises(psycopg.errors.CrashShutdown):
            caller.rows(*read)
    assert caller.save(number, lease, "5:5:", 1) == "lost"
    assert caller.rows("follow", number, lease)[0]["outcome"] == "lost"
    assert caller.beat({number: lease})["lost"] == [number]
    new_lease = caller.take(number)["lease"]
    assert new_lease not in (None, lease)
    for read in reads:
        caller.rows(*read)
    assert caller.save(number, new_lease, "5:5:", 1) == "ok"


def test_refused_events_are_recorded_and_hold_their_key(db: Database) -> None:
    caller, number, token = Caller(db), number_of(db), uuid.uuid4()
    caller.beat()
    lease = caller.take(number)["lease"]
    db.enqueue("a", 2)
    _, refused, behind = caller.look(number)
    nothing: list[object] = []

    def record(**arrays: list[Any]) -> dict[str, Any]:
        names = ("moved_xids", "moved_positions", "released_xids", "released_positions", "released_errors",
                 "released_steps", "refused_xids", "refused_positions", "refused_errors", "refused_permanent",
                 "parked_xids", "parked_positions", "confirmed", "unsent", "keys")  # fmt: skip
        return caller.rows("record", number, lease, token, *[arrays.get(name, nothing) for name in names], None, None)[
            0
        ]

    answer = record(refused_xids=[refused["xid"]], refused_positions=[refused["position"]], refused_errors=["no"],
                    refused_permanent=[False], parked_xids=[behind["xid"]], parked_positions=[behind["position"]],
                    keys=["a"])  # fmt: skip
    assert answer["outcome"] == "ok"
    assert answer["failed_attempts"] == [1]
    assert answer["freed_keys"] == []
    assert answer["next_retry"] is not None
    db.execute("UPDATE outbox.delivery SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
    assert caller.beat({number: lease}, {number: "999999:999999:"})["work"] == [number]
    header, *retries = caller.rows("retries", number, lease, token, 0, 100, 1_000_000)
    assert header["outcome"] == "ok"
    assert [(row["position"], row["attempts"], row["key_failed"]) for row in retries] == [
        (refused["position"], 1, True)
    ]
    answer = record(confirmed=[refused["position"]], keys=["a"])
    assert answer["freed_keys"] == []
    _, row = caller.rows("retries", number, lease, token, 0, 100, 1_000_000)
    assert row["position"] == behind["position"]
    answer = record(confirmed=[behind["position"]], keys=["a"])
    assert answer["freed_keys"] == ["a"]
    assert answer["next_retry"] is None


def blocks_of(session: psycopg.Connection, statement: str) -> int:
    """Pages that it reads."""
    explained = session.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}").fetchone()
    plan = explained["QUERY PLAN"][0]["Plan"]  # type: ignore[index, call-overload]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_calls_do_not_read_all_waiting_events(db: Database) -> None:
    """This holds with plans that were made while the tables were empty, too."""
    caller, number, token = Caller(db), number_of(db), uuid.uuid4()
    caller.beat()
    lease = caller.take(number)["lease"]
    db.enqueue("a", 1)
    calls = {
        "retries": f"SELECT * FROM outbox_internal.relay_retries({number}, {lease}, '{token}', 0, 100, 1000000)",
        "beat": f"SELECT * FROM outbox_internal.relay_beat('{caller.id}', 'test', '1', '{LEASE}', true, '{{{number}}}', '{{{lease}}}', "
                f"'{{{number}}}', '{{999999:999999:}}', false)",
        "forget": "SELECT outbox_internal.forget_source_events()",
    }  # fmt: skip
    for _ in range(7):  # then the server chooses the plan that is kept
        for call in calls.values():
            blocks_of(caller.session, call)
    db.execute(
        "INSERT INTO outbox.source_event SELECT gen_random_uuid(), 'a', n::text, 'E', gen_random_uuid() FROM generate_series(1, 30000) AS n"
    )
    db.execute(
        """INSERT INTO outbox.delivery (destination, state, attempts, next_retry_at, position, xid, occurred_at, event_id, schema_version,
                                        topic, aggregate_type, aggregate_id, event_type, ordering_key, content_type)
           SELECT 'd', 'PENDING', 1, now() + interval '5 minutes', 1000 + n, e.xid, e.occurred_at, gen_random_uuid(), 1,
                  e.topic, 'a', n::text, 'E', n::text, e.content_type
             FROM outbox.event AS e, generate_series(1, 30000) AS n"""
    )
    db.execute("ANALYZE outbox.delivery")  # as the server does by itself
    pages = db.value(
        "SELECT least(pg_relation_size('outbox.delivery'), pg_relation_size('outbox.source_event')) / 8192"
    )
    assert pages > 300
    read = {name: blocks_of(caller.session, call) for name, call in calls.items()}
    assert {name: blocks for name, blocks in read.items() if blocks > 200} == {}


@pytest.mark.long
@pytest.mark.parametrize(
    "state, policy, held", [("DEAD", "release", 0), ("DEAD", "block", 20_000), ("PENDING", "release", 20_000)]
)
def test_a_relay_starts_soon_whatever_is_in_trouble(db: Database, state: str, policy: str, held: int) -> None:
    """It asks for the keys that are held. Dead letters, each of another key, must not cost a function call each."""
    db.change_destination("d", on_dead_letter=policy)
    caller, number = Caller(db), number_of(db)
    caller.beat()
    lease = caller.take(number)["lease"]
    db.enqueue("a", 1)
    db.execute(
        """INSERT INTO outbox.delivery (destination, state, attempts, position, xid, occurred_at, event_id, schema_version,
                                        topic, aggregate_type, aggregate_id, event_type, ordering_key, content_type)
           SELECT 'd', %s, 1, 1000 + n, e.xid, e.occurred_at, gen_random_uuid(), 1,
                  e.topic, 'a', n::text, 'E', n::text, e.content_type
             FROM outbox.event AS e, generate_series(1, 20000) AS n""", (state,)
    )  # fmt: skip
    follow = f"SELECT * FROM outbox_internal.relay_follow({number}, {lease})"
    assert blocks_of(caller.session, follow) < 4 * max(held, 5_000)
    assert db.value(f"SELECT cardinality(f.held_keys) FROM ({follow}) AS f") == held
    if state == "DEAD":  # otherwise all of them get their turn
        assert blocks_of(
            caller.session, f"SELECT * FROM outbox_internal.relay_begin({number}, {lease}, NULL)"
        ) < 8 * max(held, 5_000)


def test_a_relay_does_not_sleep_while_an_enqueue_is_open(db: Database) -> None:
    caller = Caller(db)
    with db.connect() as producer, producer.transaction():
        producer.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
        assert not caller.beat(rest=True)["resting"]
    answer = caller.beat(idle={number_of(db): BEGINNING}, rest=True)
    assert answer["holds_lock"]
    assert answer["work"] == [number_of(db)]


def test_a_commit_notifies_a_relay_that_sleeps(db: Database) -> None:
    caller = Caller(db)
    caller.session.execute("LISTEN outbox_wake")
    db.enqueue("a")
    assert caller.beat(rest=True)["holds_lock"]
    second = Caller(db).beat(rest=True)
    assert second["resting"]
    assert not second["holds_lock"]
    db.enqueue("a")
    woken = next(caller.session.notifies())
    assert (woken.channel, woken.payload) == ("outbox_wake", "")


def test_changes_of_destinations_notify_relays(db: Database) -> None:
    caller = Caller(db)
    caller.session.execute("LISTEN outbox_wake")
    caller.beat()
    for change in ("SELECT outbox.pause('d')", "ALTER SERVER d OPTIONS (ADD topics 'x')", "DROP SERVER d"):
        db.execute(change)
        assert next(caller.session.notifies()).payload == "operate"


def test_savepoints_do_not_lose_the_lock(db: Database) -> None:
    caller = Caller(db)
    with db.connect() as producer, producer.transaction():
        producer.execute("SAVEPOINT s")
        producer.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
        producer.execute("ROLLBACK TO s")
        producer.execute("SELECT outbox.enqueue('item', 'a', 'changed', '{}')")
        assert not caller.beat(rest=True)["resting"]


def test_figures_of_a_relay_are_in_the_status(db: Database) -> None:
    caller, number = Caller(db), number_of(db)
    caller.beat()
    caller.take(number)
    assert db.status()["state"] == "starting"
    caller.session.execute(
        "SELECT outbox_internal.relay_report(%s, %s)",
        (caller.id, f'[{{"number": {number}, "state": "idle", "state_since": "now", "delivered": 7}}]'),
    )
    assert (db.status()["state"], db.published()) == ("idle", 7)
    caller.session.execute("SELECT outbox_internal.relay_leave(%s)", (caller.id,))
    assert db.status()["state"] == "stopped"
    assert db.value("SELECT count(*) FROM outbox.relay") == 0


def test_only_roles_with_the_right_may_relay(db: Database) -> None:
    db.execute("CREATE ROLE runner LOGIN")
    caller = Caller(db)
    caller.session.execute("SET ROLE runner")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        caller.beat()
    db.execute("SELECT outbox.grant_relay('runner')")
    db.enqueue("a")
    number = number_of(db)
    assert caller.beat()["free"] == [number]
    assert caller.take(number)["lease"] is not None
    assert len(caller.look(number)) == 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        caller.session.execute("SELECT * FROM outbox.event")
    db.execute("SELECT outbox.revoke_relay('runner')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        caller.look(number)
    db.execute("DROP ROLE runner")
