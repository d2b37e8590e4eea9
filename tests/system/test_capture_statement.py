"""Statements that change many rows of captured tables: their events are written together, without a visible trace."""

from __future__ import annotations

import pytest
from psycopg import errors

from database import Database

ROWS = 1000  # more than are written together

SET_UP = """
    CREATE TABLE item (id int PRIMARY KEY, title text, version bigint NOT NULL DEFAULT 1);
    CREATE TABLE seen (id int, events bigint);
    SELECT outbox.capture('item', version => 'version', on_update => 'changed');
"""
KEYS = "SELECT aggregate_id FROM outbox.event ORDER BY position"
POSITIONS = "SELECT count(DISTINCT position), count(*) FROM outbox.event"


@pytest.fixture
def items(database: Database) -> Database:
    database.execute(SET_UP)
    return database


def add_trigger(database: Database, body: str, declare: str = "") -> None:
    database.execute(
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ {declare} BEGIN {body} RETURN NULL; END $$;"
        "CREATE TRIGGER act AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION act()"
    )


def keys(database: Database) -> list[str]:
    return [key for (key,) in database.execute(KEYS)]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def insert(first: int, last: int) -> str:
    return f"INSERT INTO item SELECT i, 'item ' || i FROM generate_series({first}, {last}) AS i"


@pytest.mark.parametrize("rows", [1, 63, 64, 65, ROWS])
def test_each_row_has_its_event(items: Database, rows: int) -> None:
    items.execute(insert(1, rows))
    assert keys(items) == numbers(1, rows)
    items.execute("UPDATE item SET version = version + 1")
    items.execute("DELETE FROM item")
    assert keys(items) == numbers(1, rows) * 3
    assert items.execute(POSITIONS) == [(3 * rows, 3 * rows)]
    indexed = "SET LOCAL enable_seqscan = off; SELECT count(*) FROM outbox.event WHERE xid >= '0' AND position >= 0"
    with items.connect() as session, session.transaction():
        cursor = session.execute(indexed)
        assert cursor.nextset() and cursor.fetchone() == (3 * rows,)


def test_rows_of_any_size_are_captured(items: Database) -> None:
    items.execute("INSERT INTO item SELECT i, repeat(md5(i::text), 10000) FROM generate_series(1, 20) AS i")
    assert items.execute(
        "SELECT count(*), count(DISTINCT payload), min(length(payload)) > 320000 FROM outbox.event"
    ) == [(20, 20, True)]


def test_a_failed_statement_leaves_no_event(items: Database) -> None:
    add_trigger(items, f"IF NEW.id = {ROWS - 10} THEN RAISE EXCEPTION 'refused'; END IF;")
    with pytest.raises(errors.RaiseException):
        items.execute(insert(1, ROWS))
    assert keys(items) == []
    items.execute(insert(1, 3))
    assert keys(items) == numbers(1, 3)


def test_events_of_a_rolled_back_savepoint_are_gone(items: Database) -> None:
    with items.connect() as session, session.transaction():
        session.execute(insert(1, 100))
        session.execute("SAVEPOINT a")
        session.execute(insert(101, 200))
        session.execute("ROLLBACK TO a")
        session.execute(insert(201, 300))
        session.execute("RELEASE a")
        session.execute(insert(301, 400))
    assert keys(items) == numbers(1, 100) + numbers(201, 400)


def test_a_block_of_a_trigger_that_is_rolled_back(items: Database) -> None:
    """It changes rows of the same table, and enqueues, in a subtransaction of the statement."""
    add_trigger(items, """
        IF NEW.id > 100 THEN RETURN NULL; END IF;
        BEGIN
            INSERT INTO item SELECT NEW.id * 1000 + i FROM generate_series(1, 3) AS i;
            PERFORM outbox.enqueue('other', NEW.id::text, 'Other', '{}');
            IF NEW.id % 2 = 0 THEN RAISE EXCEPTION 'rolled back'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    """)  # fmt: skip
    items.execute(insert(1, 100))
    expected = []
    for number in range(1, 101):
        expected.append(str(number))
        if number % 2:
            expected += [*numbers(number * 1000 + 1, number * 1000 + 3), str(number)]
    assert keys(items) == expected


def test_a_trigger_sees_the_events_of_earlier_rows(items: Database) -> None:
    add_trigger(items, "INSERT INTO seen SELECT NEW.id, count(*) FROM outbox.event;")
    items.execute(insert(1, 100))
    assert items.execute("SELECT count(*) FROM seen WHERE events = id") == [(100,)]
    assert keys(items) == numbers(1, 100)


def test_a_function_within_a_statement_sees_events_of_the_outer_one(items: Database) -> None:
    items.execute("""
        CREATE TABLE part (id int);
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO seen SELECT NEW.id, count(*) FROM outbox.event;
            RETURN NULL;
        END $$;
        CREATE TRIGGER look AFTER INSERT ON part FOR EACH ROW EXECUTE FUNCTION look();
    """)
    add_trigger(items, "INSERT INTO part VALUES (NEW.id);")
    items.execute(insert(1, 10))
    assert items.execute("SELECT count(*) FROM seen WHERE events = id") == [(10,)]


def test_a_cursor_does_not_see_later_events(items: Database) -> None:
    items.execute("INSERT INTO item VALUES (0)")
    add_trigger(items, """
        IF NEW.id = 1 THEN
            OPEN begun FOR SELECT aggregate_id FROM outbox.event ORDER BY position;
        ELSIF NEW.id = 100 THEN
            INSERT INTO seen VALUES (1, 1);
            LOOP
                FETCH begun INTO key;
                EXIT WHEN NOT FOUND;
                INSERT INTO seen VALUES (key::int, 0);
            END LOOP;
        END IF;
    """, "DECLARE key text; begun refcursor := 'begun';")  # fmt: skip
    with items.connect() as session, session.transaction():
        session.execute(insert(1, 100))
    assert items.execute("SELECT id FROM seen WHERE events = 0 ORDER BY id") == [(0,), (1,)]


def test_a_trigger_that_reads_the_log_in_a_block(items: Database) -> None:
    add_trigger(items, """
        BEGIN
            INSERT INTO seen SELECT NEW.id, count(*) FROM outbox.event;
            IF NEW.id % 2 = 0 THEN RAISE EXCEPTION 'rolled back'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    """)  # fmt: skip
    items.execute(insert(1, 200))
    assert keys(items) == numbers(1, 200)


def test_keys_are_in_order_with_other_events(items: Database) -> None:
    add_trigger(items, "PERFORM outbox.enqueue('item', NEW.id::text, 'Noted', '{}');")
    items.execute(insert(1, 100))
    events = items.execute("SELECT aggregate_id, event_type FROM outbox.event ORDER BY position")
    assert events == [(str(i), type) for i in range(1, 101) for type in ("ItemCreated", "Noted")]


def test_actions_of_foreign_keys(items: Database) -> None:
    items.execute("""
        CREATE TABLE part (id int PRIMARY KEY, item int NOT NULL REFERENCES item ON DELETE CASCADE ON UPDATE CASCADE);
        SELECT outbox.capture('part');
    """)
    items.execute(insert(1, 100))
    items.execute("INSERT INTO part SELECT i, 1 + i % 100 FROM generate_series(1, 200) AS i")
    items.execute("TRUNCATE outbox.event")
    items.execute("DELETE FROM item WHERE id <= 50")
    counts = "SELECT event_type, count(*), count(DISTINCT aggregate_id) FROM outbox.event GROUP BY 1 ORDER BY 1"
    assert items.execute(counts) == [("ItemDeleted", 50, 50), ("PartDeleted", 100, 100)]
    items.execute("TRUNCATE outbox.event")
    items.execute("UPDATE item SET id = id + 1000, version = version + 1")
    assert items.execute(counts) == [("ItemCreated", 50, 50), ("ItemDeleted", 50, 50), ("PartUpdated", 100, 100)]


def test_several_tables_in_one_statement(items: Database) -> None:
    items.execute("""
        CREATE TABLE part (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 1) PARTITION BY RANGE (id);
        CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
        CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (1000);
        SELECT outbox.capture('part', version => 'version');
    """)
    items.execute(f"""
        WITH items AS ({insert(1, 200)} RETURNING id)
        INSERT INTO part SELECT id FROM items
    """)
    items.execute("UPDATE part SET id = id + 500, version = version + 1 WHERE id BETWEEN 60 AND 70")
    assert items.execute("SELECT aggregate_type, count(*) FROM outbox.event WHERE event_type LIKE '%%Created' GROUP BY 1 ORDER BY 1") == [
        ("item", 200), ("part", 200 + 11)]  # fmt: skip


def test_a_selection_that_changes_rows(items: Database) -> None:
    assert items.execute(f"WITH new AS ({insert(1, 200)} RETURNING id) SELECT count(*) FROM new") == [(200,)]
    assert keys(items) == numbers(1, 200)


def test_copy_is_captured(items: Database) -> None:
    with items.connect() as session, session.cursor().copy("COPY item (id) FROM STDIN") as copy:
        for number in range(1, 201):
            copy.write_row((number,))
    assert keys(items) == numbers(1, 200)


def test_copy_in_a_cursor_of_a_trigger(items: Database) -> None:
    """The objects that the cursor refers to are gone when it is closed, before the statement ends."""
    items.execute("""
        CREATE FUNCTION load() RETURNS int LANGUAGE plpgsql AS $$
        BEGIN
            EXECUTE 'COPY item (id) FROM PROGRAM ''seq 1001 1100''';
            RETURN 1;
        END $$
    """)
    body = """
        IF NEW.id = 1 THEN
            OPEN begun FOR SELECT load();
            FETCH begun INTO loaded;
            CLOSE begun;
        END IF;
    """
    add_trigger(items, body, "DECLARE loaded int; begun refcursor := 'begun';")
    items.execute(insert(1, 100))
    assert keys(items) == ["1", *numbers(1001, 1100), *numbers(2, 100)]


def test_a_trigger_that_empties_the_log(items: Database) -> None:
    add_trigger(items, "IF NEW.id = 50 THEN TRUNCATE outbox.event; END IF;")
    items.execute(insert(1, 100))
    assert keys(items) == numbers(51, 100)


def test_the_log_goes_on_to_another_segment(items: Database) -> None:
    add_trigger(items, "IF NEW.id = 50 THEN UPDATE outbox.ring SET current = number = 1; END IF;")
    items.execute("UPDATE outbox.ring SET current = number = 0")
    items.execute(insert(1, 100))
    items.execute(insert(101, 200))
    assert keys(items) == numbers(1, 200)


@pytest.mark.extension
def test_an_index_that_somebody_has_added(items: Database) -> None:
    """Its function reads the log, and changes a captured table, while events are written."""
    items.execute("""
        CREATE FUNCTION act(id int) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.item VALUES (id + 1000);
        END $$;
        CREATE FUNCTION odd(id text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            IF id::int BETWEEN 1 AND 100 THEN
                PERFORM public.act(id::int);
            END IF;
            RETURN (SELECT count(*) FROM outbox.event WHERE aggregate_id = '0');
        END $$;
        CREATE INDEX odd ON outbox.event_0 (odd(aggregate_id));
        UPDATE outbox.ring SET current = number = 0;
    """)
    items.execute(insert(1, 100))
    assert items.execute(POSITIONS) == [(200, 200)]
    assert sorted(map(int, keys(items))) == [*range(1, 101), *range(1001, 1101)]


def test_procedures_that_commit(items: Database) -> None:
    items.execute("""
        CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
        BEGIN
            FOR turn IN 0..9 LOOP
                INSERT INTO item SELECT turn * 100 + i FROM generate_series(1, 100) AS i;
                IF turn % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
            END LOOP;
        END $$
    """)
    items.execute("CALL work()")
    assert keys(items) == [key for turn in range(0, 10, 2) for key in numbers(turn * 100 + 1, turn * 100 + 100)]


@pytest.mark.extension
def test_prepared_transactions_are_captured(items: Database) -> None:
    with items.connect() as session:
        session.autocommit = True
        session.execute("BEGIN")
        session.execute(insert(1, 100))
        session.execute("PREPARE TRANSACTION 'statement'")
        session.execute("COMMIT PREPARED 'statement'")
    assert keys(items) == numbers(1, 100)
