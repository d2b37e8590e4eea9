"""docs/cold-start.md: a new consumer of an old table, by the commands of the page, while the application works."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cluster import Cluster, MakeCluster
from database import Database, create_database
from waiting import wait_until

from .examples import Page

ROWS = 20_000
SET_UP = f"""
    INSERT INTO customer SELECT n, 'name ' || n, 'mail ' || n, 'secret' FROM generate_series(1, {ROWS}) AS n;
    DELETE FROM customer WHERE customer_id % 10 = 0;
    INSERT INTO customer VALUES (0, 'name', 'mail', 'secret')
"""

SNAPSHOTS = "SELECT count(*) FROM outbox.event WHERE event_type = 'CustomerSnapshot'"
CHANGES_AMONG_ROWS = """
    SELECT count(*) FROM outbox.event AS e,
           (SELECT min(position), max(position) FROM outbox.event WHERE event_type = 'CustomerSnapshot') AS backfill
     WHERE e.event_type <> 'CustomerSnapshot' AND e.position BETWEEN backfill.min AND backfill.max
"""


class Application:
    """Sessions that change customers all the time, and keep some rows locked for a while."""

    def __init__(self, database: Database, sessions: int = 3) -> None:
        self.committed = 0
        self._database = database
        self._errors: list[psycopg.Error] = []
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(sessions)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        dice = random.Random(number)
        try:
            with self._database.connect() as connection:
                while not self._closing.is_set():
                    with connection.transaction(force_rollback=dice.random() < 0.1):
                        for _ in range(dice.choice((1, 1, 1, 5))):
                            self._change(connection, dice)
                        self._closing.wait(dice.choice((0, 0, 0, 0.05)))
                    self.committed += 1
        except psycopg.errors.DeadlockDetected:
            self._run(number + 100)
        except psycopg.Error as error:
            self._errors.append(error)

    @staticmethod
    def _change(connection: psycopg.Connection, dice: random.Random) -> None:
        key, choice = dice.randint(1, ROWS), dice.random()
        if choice < 0.2:
            connection.execute("DELETE FROM customer WHERE customer_id = %s", (key,))
        elif choice < 0.4:
            connection.execute(
                "INSERT INTO customer VALUES (%s, 'new', NULL, 'secret') "
                "ON CONFLICT (customer_id) DO UPDATE SET email = excluded.email",
                (key,),
            )
        elif choice < 0.5:
            connection.execute(
                "UPDATE customer SET customer_id = %s WHERE customer_id = %s "
                "AND NOT EXISTS (SELECT FROM customer WHERE customer_id = %s)",
                (ROWS + dice.randint(1, 10**9), key, key + 1),
            )
        else:
            connection.execute("UPDATE customer SET name = %s WHERE customer_id = %s", (f"name {dice.random()}", key))

    def work(self, transactions: int) -> None:
        """Waits until the sessions have made this number of further changes."""
        enough = self.committed + transactions
        wait_until(lambda: self._errors or self.committed >= enough, what=f"{transactions} more transactions")
        assert not self._errors, self._errors

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._errors, self._errors


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    # A backfill polls while it waits for a destination, and for rows that are locked.
    return make_cluster({"outbox.poll_max": "100ms", "outbox.poll_min": "10ms"})


@pytest.fixture
def shop(cluster: Cluster) -> Database:
    return create_database(cluster, "shop", extension=False)


@pytest.fixture
def crm(cluster: Cluster) -> Database:
    return create_database(cluster, "crm", extension=False)


@pytest.fixture
def page(cluster: Cluster, shop: Database, crm: Database, tmp_path: Path) -> Page:
    environment = {
        "SHOP": cluster.conninfo(shop.name),
        "CRM": cluster.conninfo(crm.name),
        "CRM_URL": f"postgresql://shop@/{crm.name}",
    }
    return Page("docs/cold-start.md", tmp_path, {**os.environ, **environment})


@pytest.fixture
def application(shop: Database, page: Page) -> Iterator[Application]:
    (table,) = re.findall(r"^```sql\n(.*?)^```", page.path.read_text(), re.DOTALL | re.MULTILINE)
    shop.execute(table)
    shop.execute(SET_UP)
    application = Application(shop)
    yield application
    application.close()


def backfill_state(page: Page, command: str) -> str:
    return page.run(command).splitlines()[2].split("|")[0].strip()


@pytest.mark.long
def test_a_new_consumer_of_an_old_table(page: Page, application: Application, shop: Database, crm: Database) -> None:
    capture, consumer, destination, backfill, progress, pending = page.commands("The steps")
    (proof,) = page.commands("Comparing the tables")
    application.work(50)
    page.run(capture)
    application.work(50)
    page.run(consumer)
    page.run(destination)
    application.work(50)
    with shop.connect() as holder, holder.transaction():
        # A row that nobody else changes: without it the backfill cannot end.
        holder.execute("SELECT FROM customer WHERE customer_id = 0 FOR UPDATE")
        page.run(backfill)
        wait_until(lambda: shop.value(SNAPSHOTS), what="the backfill to have begun")
        application.work(100)
    wait_until(
        lambda: backfill_state(page, progress), lambda state: state == "finished",
        what="the backfill to be finished",
    )  # fmt: skip
    application.work(100)
    application.close()

    shop.wait_settled("crm")
    wait_until(lambda: crm.value("SELECT count(*) FROM inbox.message"), lambda n: n == 0, what="an empty inbox")
    page.run(pending)
    theirs, ours = page.run(proof).splitlines()
    differ = (
        shop.execute("SELECT customer_id, name, email FROM customer ORDER BY 1"),
        crm.execute("SELECT customer_id, name, email FROM crm.customer ORDER BY 1"),
    )
    assert theirs == ours, f"only in one: {set(differ[0]) ^ set(differ[1])}"
    kinds = dict(shop.execute("SELECT event_type, count(*) FROM outbox.event GROUP BY 1"))
    assert kinds["CustomerSnapshot"] > ROWS / 2 and kinds["CustomerUpdated"] > 0 and kinds["CustomerDeleted"] > 0
    assert shop.value(CHANGES_AMONG_ROWS) > 10, "nothing changed while the backfill was at work"
    assert not crm.value("SELECT EXISTS (SELECT FROM inbox.dead_message)")
