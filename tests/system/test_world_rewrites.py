"""Programs that rewrite tables move rows to other places. Nothing of pg_outbox may identify a row by its place.

A program that rewrites tables is a line of REWRITES. Tables are those of the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from cluster import SQL_EDITION
from database import OUTSIDE, Database, NewDatabase
from receiver import Gate, Receiver, everything
from waiting import wait_until

TABLES = """
    SELECT c.oid::regclass::text,
           (SELECT i.indexrelid::regclass::text FROM pg_index AS i
             WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
             ORDER BY i.indisprimary DESC, i.indexrelid LIMIT 1)
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname IN ('outbox', 'outbox_internal', 'inbox', 'inbox_internal') AND c.relkind = 'r'
     ORDER BY 1
"""


# -------------------------------------------------------------------------------------------------
# Programs that rewrite a table
# -------------------------------------------------------------------------------------------------


def vacuum_full(database: Database, table: str, index: str | None) -> None:
    database.execute(f"VACUUM FULL {table}")


def cluster(database: Database, table: str, index: str | None) -> None:
    if index is not None:
        database.execute(f"CLUSTER {table} USING {index.rpartition('.')[2]}")


def repack(database: Database, table: str, index: str | None) -> None:
    """Is new in 19, in place of the other two. Before, the same is done by VACUUM FULL."""
    server = database.connection.info.server_version
    database.execute(f"REPACK {table}" if server >= 190000 else f"VACUUM (FULL, FREEZE) {table}")


Rewrite = Callable[[Database, str, "str | None"], None]
REWRITES: dict[str, Rewrite] = {"VACUUM FULL": vacuum_full, "CLUSTER": cluster, "REPACK": repack}


@pytest.fixture(params=REWRITES)
def rewrite(request: pytest.FixtureRequest) -> Rewrite:
    return REWRITES[request.param]


# -------------------------------------------------------------------------------------------------
# Destinations
# -------------------------------------------------------------------------------------------------

# Served by a relay in the server, and by outbox-relay.
INSIDE = [] if OUTSIDE else ["inside_a", "inside_b", "inside_c"]
OUTSIDE_SERVER = ["outside_a", "outside_b", "outside_c"]
SERVED = [*INSIDE, *OUTSIDE_SERVER]
MOVED = INSIDE or OUTSIDE_SERVER


@pytest.fixture
def served(database: Database, receiver: Receiver, http: None) -> Iterator[Database]:
    """A database with several destinations, each with a topic and a path of its own, and one that is pulled."""
    if not SQL_EDITION:
        database.execute("CREATE EXTENSION pg_inbox")
    for name in SERVED:
        options = {} if name in INSIDE or OUTSIDE else {"relay": "external"}
        database.add_destination(name, receiver.url(f"/{name}"), topics=name, **options)
    if not OUTSIDE:
        database.run_relay()
    database.add_destination("pulled", "pull:", topics="pulled")
    for name in SERVED:
        wait_until(
            lambda name=name: database.status(name)["state"], lambda state: state == "idle", what=f"{name} to be idle"
        )  # type: ignore[misc]
    yield database


def cursors(database: Database) -> dict[str, tuple[int, int]]:
    """Returns number and lease of each destination."""
    rows = database.execute("SELECT destination::text, number, lease FROM outbox.cursor ORDER BY 1")
    return {name: (number, lease) for name, number, lease in rows}


def rewritten(database: Database, rewrite: Rewrite) -> list[str]:
    """Rewrites all tables of pg_outbox and pg_inbox."""
    tables = database.execute(TABLES)
    assert "outbox.cursor" in [table for table, _ in tables]
    for table, index in tables:
        wait_until(
            lambda table=table, index=index: rewrite(database, table, index) is None,  # type: ignore[misc]
            what=f"{table} to be rewritten", ignoring=(psycopg.errors.DeadlockDetected,),
        )  # fmt: skip
    return [table for table, _ in tables]


def arrived_at(receiver: Receiver, name: str) -> list[str]:
    return [event.id for event in receiver.events() if event.request.target == f"/{name}"]


def fetch_all(database: Database) -> list[str]:
    """Fetches and confirms everything of the destination that is pulled."""
    ids: list[str] = []
    while rows := database.execute("SELECT event_id::text, token FROM outbox.fetch('pulled', 100)"):
        ids += [event_id for event_id, _ in rows]
        for token in {token for _, token in rows}:
            database.execute("SELECT outbox.ack(%s)", (token,))
    return ids


def test_nothing_goes_by_the_place_of_a_row(served: Database, receiver: Receiver, rewrite: Rewrite) -> None:
    before = cursors(served)
    sent: dict[str, list[str]] = {name: [] for name in [*SERVED, "pulled"]}
    for turn in range(3):
        for name, ids in sent.items():
            with served.connect() as session, session.transaction(force_rollback=True):
                session.execute("SELECT outbox.enqueue('item', 'x', 'changed', '{}', topic => %s)", (name,))
            ids += served.enqueue(name, 20, first=1 + 20 * turn, topic=name)
        rewritten(served, rewrite)
        for name, ids in sent.items():
            ids += served.enqueue(name, 20, first=1001 + 20 * turn, topic=name)
    for name in SERVED:
        wait_until(
            lambda name=name: set(sent[name]) <= set(arrived_at(receiver, name)),  # type: ignore[misc]
            what=f"all events to arrive at {name}",
        )  # fmt: skip
        served.wait_settled(name)
        served.wait_saved(name)
        assert set(arrived_at(receiver, name)) == set(sent[name])
    assert cursors(served) == before, "a relay has started again, or has the cursor of another"
    assert set(fetch_all(served)) == set(sent["pulled"])
    wait_until(served.health, lambda findings: not findings, what="all to be well")


def places(database: Database) -> dict[str, str]:
    return dict(database.execute("SELECT destination::text, ctid::text FROM outbox.cursor"))


def add_rows(database: Database, count: int, like: str) -> None:
    """Adds destinations whose cursors nobody writes, with the token of another's relay: it must not tell them apart."""
    begin = len(places(database))
    for number in range(begin, begin + count):
        database.add_destination(f"quiet_{number}", "pull:", topics="nothing")
        database.execute("SELECT outbox.fetch(%s)", (f"quiet_{number}",))
    token = "SELECT lease FROM outbox.cursor WHERE destination = %s"
    database.execute(f"UPDATE outbox.cursor SET lease = ({token}) WHERE destination LIKE 'quiet%%'", (like,))


def test_a_cursor_at_the_place_of_another(served: Database) -> None:
    """Rows come to stand where relays have left their own. They must not take them for their own."""

    def moved() -> dict[str, str]:
        """Returns destinations, each with the one whose row now stands where its own stood."""
        for name in SERVED:
            served.enqueue(name, topic=name)
            served.wait_saved(name)
        before = places(served)
        add_rows(served, 10, like=MOVED[0])
        served.execute("VACUUM FULL outbox.cursor")
        now = places(served)
        return {name: other for name in SERVED for other in now if name != other and before[name] == now[other]}

    def quiet() -> list[tuple]:
        return served.execute("SELECT c::text FROM outbox.cursor AS c WHERE destination LIKE 'quiet%' ORDER BY 1")

    pairs = wait_until(moved, lambda pairs: MOVED[0] in pairs, what="rows of cursors to change places")
    before = quiet()
    for name in SERVED:
        served.enqueue(name, topic=name)
        served.wait_saved(name)
    assert quiet() == before, f"these were where others are now: {pairs}"


def test_a_log_that_is_rewritten_in_the_middle_of_a_window(
    new_database: NewDatabase, receiver: Receiver, http: None
) -> None:
    """Most events have other places afterwards, and some places have no event any more."""
    gate = Gate()
    receiver.on(everything, gate.held(), times=1)
    database = new_database({"outbox.max_in_flight": "1"})
    database.add_destination("d", receiver.url())
    database.pause()
    with database.connect() as session, session.transaction(force_rollback=True):
        enqueue_small(session, 4000)
    ids = enqueue_small(database.connection, 6000)
    database.execute("SELECT outbox.resume('d')")
    wait_until(lambda: gate.holding, what="the first event")
    for number in range(4):
        database.execute(f"VACUUM FULL outbox.event_{number}")
    gate.open()
    database.wait_settled()
    assert receiver.ids() == ids


def enqueue_small(session: psycopg.Connection, count: int) -> list[str]:
    rows = session.execute(
        "SELECT outbox.enqueue('item', 'a', 'changed', '{}', version => n)::text FROM generate_series(1, %s) AS n",
        (count,),
    ).fetchall()
    return [event_id for (event_id,) in rows]
