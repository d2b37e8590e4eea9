"""The rule of windows exists twice: in SQL for pull destinations, in C++ for relays. Both must agree.

Random transactions write to the log. At random moments a window is read with both, and compared:
outbox_internal.window_events() is the rule in SQL (sql/pg_outbox/window.sql), outbox_internal.read_window() is the
reader of relays (bgworker/relay/log_reader.cpp). In the end, the windows of each chain hold every
committed event exactly once; the table shows the committed events.

The tests print their seeds. OUTBOX_TEST_SEED=<first>[:<count>] repeats that one, or runs this number of rounds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import pytest

from cluster import SQL_EDITION, Cluster, MakeCluster
from database import Database, create_database
from ledger import SETUP
from test_ledger import AGGREGATES, writers

Place = tuple[str, int]  # xid, position

ROUNDS = 4
STEPS = 150
SESSIONS = 8
BEGINNING = "1:1:"
END_OF_LOG = (1 << 63) - 1
TOPICS = ("a.x", "a.y", "b.x")
SELECTIONS = ("*", "a.*", "b.*, a.y")

ENQUEUE = """
    SELECT outbox.enqueue('item', %s::text, 'changed', '{}', topic => %s::text, ordering_key => %s::text)
      FROM generate_series(1, %s::integer)
"""
# Writes an event for one destination, as a backfill does.
WRITE_FOR_ONE = """
    INSERT INTO outbox.event_{segment}
        (position, xid, occurred_at, event_id, schema_version, topic, aggregate_type, aggregate_id,
         event_type, ordering_key, content_type, only_to)
    SELECT nextval('outbox.event_position'), pg_current_xact_id(), now(), gen_random_uuid(), 1, %s,
           'item', '1', 'changed', '1', 'application/json', %s
"""
# More subtransactions than a session shows others (64), each with an event; some are rolled back.
SUBTRANSACTIONS = """
    DO $$ BEGIN
        FOR n IN 1..80 LOOP
            BEGIN
                PERFORM outbox.enqueue('item', n::text, 'changed', '{{}}', topic => 'a.x');
                IF n % {every} = 0 THEN
                    RAISE division_by_zero;
                END IF;
            EXCEPTION WHEN division_by_zero THEN
            END;
        END LOOP;
    END $$
"""
# Events that a destination with this number takes of these topics.
SELECTED = "topic LIKE ANY (outbox_internal.topic_patterns({topics})) AND (only_to IS NULL OR only_to = {number})"
WINDOW = f"""
    SELECT xid::text, position
      FROM outbox_internal.window_events(%s::pg_snapshot, %s::pg_snapshot, %s, %s, %s::pg_snapshot, %s)
     WHERE {SELECTED.format(topics="%s", number="%s")}
     ORDER BY position
"""


def seeds(count: int) -> range:
    first, _, wanted = os.environ.get("OUTBOX_TEST_SEED", f"{random.randrange(1_000_000)}:{count}").partition(":")
    return range(int(first), int(first) + int(wanted or 1))


# -------------------------------------------------------------------------------------------------
# Comparing
# -------------------------------------------------------------------------------------------------


@dataclass
class Window:
    """The arguments of both functions."""

    start: str
    end: str
    after: int = 0
    upto: int = END_OF_LOG
    settled: str = BEGINNING
    settled_position: int = 0
    number: int = 0
    topics: str = "*"

    def by_sql(self, connection: psycopg.Connection) -> list[Place]:
        return connection.execute(
            WINDOW,
            (
                self.start,
                self.end,
                self.after,
                self.upto,
                self.settled,
                self.settled_position,
                self.topics,
                self.number,
            ),
        ).fetchall()

    def by_relay(self, connection: psycopg.Connection, *, end_is_now: bool = False) -> list[Place]:
        """Reads the whole window as a relay does, without its parts."""
        places = connection.execute(
            "SELECT xid::text, position "
            "FROM outbox_internal.read_window(%s::pg_snapshot, %s::pg_snapshot, %s::pg_snapshot, %s, %s::integer, %s)",
            (
                self.start,
                None if end_is_now else self.end,
                self.settled,
                self.settled_position,
                self.number,
                self.topics,
            ),
        ).fetchall()
        return [place for place in places if self.after < place[1] <= self.upto]


def compare(window: object, by_sql: list[Place], by_relay: list[Place]) -> list[Place]:
    assert by_sql == by_relay, (
        f"{window}: only in SQL {sorted(set(by_sql) - set(by_relay))}, only as relays read it "
        f"{sorted(set(by_relay) - set(by_sql))}; if both are empty, the order differs"
    )
    return by_sql


def in_order(places: list[Place]) -> list[Place]:
    return sorted(places, key=lambda place: place[1])


def current_snapshot(connection: psycopg.Connection) -> str:
    return connection.execute("SELECT pg_current_snapshot()::text").fetchall()[0][0]


def look(connection: psycopg.Connection, start: str) -> tuple[str, list[Place]]:
    """Returns the window from `start` to now, and its end."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        window = Window(start, current_snapshot(connection))
        # First, because a query marks index entries of rolled-back rows as dead, so later readers skip them.
        by_relay = window.by_relay(connection, end_is_now=True)
        return window.end, compare(window, window.by_sql(connection), by_relay)


def look_with_own_events(connection: psycopg.Connection, start: str, dice: random.Random) -> tuple[str, list[Place]]:
    """A session that reads after it has written. Its own events belong to a later window."""
    with connection.transaction(force_rollback=dice.random() < 0.3):
        connection.execute(ENQUEUE, ("own", "a.x", "own", 1))
        end = connection.execute("SELECT outbox_internal.finished_by_now()::text").fetchall()[0][0]
        window = Window(start, end)
        return end, compare(window, window.by_sql(connection), window.by_relay(connection))


def deal_out(connection: psycopg.Connection, destination: str) -> list[Place]:
    """Makes a pull destination read on to the end, and compares its batches with the windows of a relay."""
    topics = connection.execute("SELECT outbox_internal.destination_option(%s, 'topics')", (destination,)).fetchall()[
        0
    ][0]
    dealt: list[Place] = []
    more = True
    while more:
        with connection.transaction():
            start, number = cursor_of(connection, destination)
            more = connection.execute("SELECT outbox_internal.read_on(%s)", (destination,)).fetchall()[0][0]
            end, _ = cursor_of(connection, destination)
            window = Window(start, end, number=number, topics=topics)
            dealt += compare(f"batches, {window}", take_batches(connection, destination), window.by_relay(connection))
    return dealt


def cursor_of(connection: psycopg.Connection, destination: str) -> tuple[str, int]:
    statement = "SELECT done::text, number FROM outbox.cursor WHERE destination = %s AND upto IS NULL"
    return connection.execute(statement, (destination,)).fetchall()[0]


def take_batches(connection: psycopg.Connection, destination: str) -> list[Place]:
    """Fetches all batches. An empty lane makes the destination read on."""
    batches = connection.execute(
        "WITH taken AS (DELETE FROM outbox.batch WHERE destination = %s RETURNING *) "
        "SELECT lane, xids::text[], positions FROM taken ORDER BY lane, number", (destination,),
    ).fetchall()  # fmt: skip
    lanes: dict[int, list[Place]] = {}
    for lane, xids, positions in batches:
        lanes.setdefault(lane, []).extend(zip(xids, positions, strict=True))
    for lane, places in lanes.items():
        assert places == in_order(places), f"lane {lane} is not in order"
    return in_order([place for places in lanes.values() for place in places])


# -------------------------------------------------------------------------------------------------
# Writing
# -------------------------------------------------------------------------------------------------


@dataclass
class Session:
    connection: psycopg.Connection
    is_open: bool = False
    haste: float = 0.0  # probability that a step is the last one
    savepoints: list[str] = field(default_factory=list)

    def end(self, statement: str) -> None:
        self.connection.execute(statement)
        self.is_open = False
        self.savepoints.clear()


class Writing:
    """Sessions that take turns, so that a seed determines all transactions and their order."""

    def __init__(self, database: Database, dice: random.Random) -> None:
        self.database = database
        self.dice = dice
        self.sessions: list[Session] = []
        self.prepared: list[str] = []
        self.names = 0
        self.numbers = [number for (number,) in database.execute("SELECT number FROM outbox.cursor")]
        self.connect()

    def connect(self) -> None:
        self.sessions = [Session(self.database.connect()) for _ in range(SESSIONS)]

    def name(self) -> str:
        self.names += 1
        return f"s{self.names}"

    def step(self) -> None:
        if self.dice.random() < 0.03:
            self.database.move_to_segment(self.dice.randrange(4))
        if self.prepared and self.dice.random() < 0.1:
            self.end_prepared(self.dice.randrange(len(self.prepared)))
        session = self.dice.choice(self.sessions)
        if not session.is_open:
            session.connection.execute("BEGIN")
            session.is_open = True
            session.haste = self.dice.choice((0.4, 0.4, 0.04))
            self.write(session)
        elif self.dice.random() < session.haste:
            self.end(session)
        else:
            self.change(session)

    def change(self, session: Session) -> None:
        kinds: list[Callable[[Session], None]] = [
            self.write, self.write, self.write_for_one, self.save, self.save, self.roll_back_to, self.release,
        ]  # fmt: skip
        change = self.many_subtransactions if self.dice.random() < 0.05 else self.dice.choice(kinds)
        change(session)

    def write(self, session: Session) -> None:
        key = self.dice.choice(("", "1", "2", "3", "4"))
        values = ("1", self.dice.choice(TOPICS), key, self.dice.choice((1, 1, 2, 5)))
        session.connection.execute(ENQUEUE, values)

    def write_for_one(self, session: Session) -> None:
        statement = WRITE_FOR_ONE.format(segment=self.dice.randrange(4))
        session.connection.execute(statement, (self.dice.choice(TOPICS), self.dice.choice(self.numbers)))

    def many_subtransactions(self, session: Session) -> None:
        session.connection.execute(SUBTRANSACTIONS.format(every=self.dice.choice((2, 3, 7, 100))))

    def save(self, session: Session) -> None:
        session.savepoints.append(self.name())
        session.connection.execute(f"SAVEPOINT {session.savepoints[-1]}")
        self.write(session)

    def roll_back_to(self, session: Session) -> None:
        if session.savepoints:
            place = self.dice.randrange(len(session.savepoints))
            session.connection.execute(f"ROLLBACK TO {session.savepoints[place]}")
            del session.savepoints[place + 1 :]

    def release(self, session: Session) -> None:
        if session.savepoints:
            place = self.dice.randrange(len(session.savepoints))
            session.connection.execute(f"RELEASE {session.savepoints[place]}")
            del session.savepoints[place:]

    def end(self, session: Session) -> None:
        how = self.dice.choices(("COMMIT", "ROLLBACK", "PREPARE"), (6, 2, 0 if SQL_EDITION else 2))[0]
        if how == "PREPARE" and len(self.prepared) < 10:
            self.prepared.append(self.name())
            session.end(f"PREPARE TRANSACTION '{self.prepared[-1]}'")
        else:
            session.end("ROLLBACK" if how == "ROLLBACK" else "COMMIT")

    def end_prepared(self, place: int) -> None:
        how = self.dice.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        self.database.execute(f"{how} PREPARED '{self.prepared.pop(place)}'")

    def finish(self) -> None:
        while self.prepared:
            self.end_prepared(0)
        for session in self.sessions:
            if session.is_open:
                session.end(self.dice.choice(("COMMIT", "ROLLBACK")))
            session.connection.close()


# -------------------------------------------------------------------------------------------------
# Reading
# -------------------------------------------------------------------------------------------------


@dataclass
class Chain:
    """Windows that each begin at the end of the previous one."""

    done: str
    events: list[Place] = field(default_factory=list)

    def extend(self, window: tuple[str, list[Place]]) -> None:
        self.done, places = window
        self.events += places


class Reading:
    def __init__(self, database: Database, dice: random.Random) -> None:
        self.database = database
        self.dice = dice
        self.number = database.value("SELECT number FROM outbox.cursor WHERE destination = 'd'")
        self.first = database.last_position()
        deal_out(database.connection, "d")  # of earlier rounds
        self.snapshots = [BEGINNING, current_snapshot(database.connection)]
        self.chains = [Chain(self.snapshots[1]) for _ in range(3)]
        self.dealt: list[Place] = []
        self.compared = 0

    def step(self) -> None:
        connection = self.database.connection
        kind = self.dice.randrange(10)
        if kind < 4:
            self.read_on(self.dice.choice(self.chains))
        elif kind < 5:
            self.dealt += deal_out(connection, "d")
        else:
            self.compare_any_window()
        self.compared += 1

    def read_on(self, chain: Chain) -> None:
        connection = self.database.connection
        if self.dice.random() < 0.2:
            chain.extend(look_with_own_events(connection, chain.done, self.dice))
        else:
            chain.extend(look(connection, chain.done))
        self.snapshots.append(chain.done)

    def compare_any_window(self) -> None:
        """Compares windows between any two moments, in part, with settled events, for one destination."""
        connection = self.database.connection
        last = self.database.last_position()
        start, end = sorted(self.dice.choices(range(len(self.snapshots)), k=2))
        window = Window(self.snapshots[start], self.snapshots[end], topics=self.dice.choice(SELECTIONS))
        window.number = self.dice.choice((0, self.number))
        if self.dice.random() < 0.5:
            window.after, window.upto = sorted(self.dice.randint(self.first, last) for _ in range(2))
        if self.dice.random() < 0.5:
            window.settled = self.dice.choice(self.snapshots)
            window.settled_position = self.dice.randint(self.first, last)
        compare(window, window.by_sql(connection), window.by_relay(connection))

    def finish(self) -> None:
        """Checks at the end, when no transaction is in progress, that each event came exactly once."""
        selected_by_d = SELECTED.format(topics="outbox_internal.destination_option('d', 'topics')", number="%s")
        log = self.database.execute(
            f"SELECT xid::text, position, only_to IS NULL, {selected_by_d} FROM outbox.event WHERE position > %s "
            "ORDER BY position",
            (self.number, self.first),
        )
        for_all = [(xid, position) for xid, position, is_for_all, _ in log if is_for_all]
        for chain in self.chains:
            chain.extend(look(self.database.connection, chain.done))
            assert in_order(chain.events) == for_all
        self.dealt += deal_out(self.database.connection, "d")
        selected = [(xid, position) for xid, position, _, is_selected in log if is_selected]
        assert in_order(self.dealt) == selected


# -------------------------------------------------------------------------------------------------
# The tests
# -------------------------------------------------------------------------------------------------


def set_up(database: Database, topics: str) -> None:
    database.add_destination("d", "pull:", topics=topics)
    # It never fetches its event of each segment, so none is emptied.
    database.add_destination("keeps_log", "pull:")
    for segment in range(4):
        database.move_to_segment(segment)
        database.enqueue()


def run_round(database: Database, seed: int, *, in_the_middle: Callable[[], None] | None = None) -> None:
    print(f"OUTBOX_TEST_SEED={seed}")
    dice = random.Random(seed)
    reading = Reading(database, dice)
    writing = Writing(database, dice)
    for step in range(STEPS):
        writing.step()
        if dice.random() < 0.2:
            reading.step()
        if step == STEPS // 2 and in_the_middle is not None:
            in_the_middle()
            writing.connect()
    writing.finish()
    reading.finish()
    print(f"{reading.compared} windows compared, {len(reading.chains[0].events)} events in each chain")


def test_both_rules_find_the_same(database: Database) -> None:
    set_up(database, "a.*")
    for seed in seeds(ROUNDS):
        run_round(database, seed)


# The relay's scan of the index passes over 64 entries at most before it looks for the next one.
@pytest.mark.parametrize("between", [0, 1, 63, 64, 65, 200])
def test_transactions_that_were_open_while_others_committed(database: Database, between: int) -> None:
    set_up(database, "*")
    sessions = [database.connect() for _ in range(3)]
    positions: list[int] = []
    for session in sessions:
        session.execute("BEGIN")
        session.execute(ENQUEUE, ("1", "a.x", "", 1))
        positions += session.execute("SELECT currval('outbox.event_position')").fetchall()[0]
        database.execute(ENQUEUE, ("1", "a.x", "", between))
    start = current_snapshot(database.connection)
    for session, end in zip(sessions, ("COMMIT", "ROLLBACK", "COMMIT"), strict=True):
        session.execute(end)
        session.close()
    _, found = look(database.connection, start)
    assert [position for _, position in found] == [positions[0], positions[2]]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_both_rules_find_the_same_after_a_restart(make_cluster: MakeCluster, mode: str) -> None:
    """Transactions in progress are gone, prepared ones are not, and old snapshots still hold."""
    cluster: Cluster = make_cluster()
    database = create_database(cluster)
    set_up(database, "a.*")

    def restart() -> None:
        # A crash reuses xids of which nothing is on disk. Snapshots that are kept for
        # later must not know them as finished. Cursors are kept in the database, by a transaction that comes after.
        database.execute("SELECT pg_logical_emit_message(true, 'test', 'flushes all WAL so far')")
        cluster.restart(mode)

    for seed in seeds(2):
        run_round(database, seed, in_the_middle=restart)


@pytest.mark.long
def test_both_rules_find_the_same_beside_writers(database: Database) -> None:
    """Sessions that do not wait for each other: snapshots meet commits and prepares half-way."""
    database.execute(SETUP.format(aggregates=AGGREGATES))
    set_up(database, "*")
    chain = Chain(BEGINNING)
    dealt: list[Place] = []
    windows = 0
    with writers(database):
        while windows < 200 or len(chain.events) < 2000:
            chain.extend(look(database.connection, chain.done))
            dealt += deal_out(database.connection, "d")
            windows += 1
    chain.extend(look(database.connection, chain.done))
    dealt += deal_out(database.connection, "d")
    committed = database.execute("SELECT xid::text, position FROM outbox.event ORDER BY position")
    assert in_order(chain.events) == committed
    assert in_order(dealt) == committed
