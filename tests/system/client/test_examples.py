"""The examples, as their page says to run them: a shop's changes reach its catalog, each once and in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from cluster import REPOSITORY
from waiting import wait_until

from .conftest import MakePage
from .emulator_wire import EmulatorWire
from .examples import Catalog, Page, Program, Shop

README = "examples/catalog/README.md"
PULL, PUB_SUB = "Directly from the shop's database", "Over Pub/Sub"


def set_up(page: Page) -> None:
    page.run(page.commands("Set up")[0])


def check_copy(shop: Shop, catalog: Catalog, program: Program) -> None:
    """Waits until the program has applied all changes of the closed shop, each once."""
    catalog.wait_applied(len(shop.ledger), program)
    applied, committed = sorted(catalog.history()), sorted(change[:3] for change in shop.ledger)
    assert applied == committed, "what was applied is not what was committed, each once"
    assert catalog.videos() == shop.videos()


def check_order(catalog: Catalog) -> None:
    history = sorted(catalog.history(), key=lambda entry: entry[0])
    for video, entries in groupby(history, key=lambda entry: entry[0]):
        versions = [version for _, version, _ in entries]
        assert versions == sorted(versions), f"video {video} was changed out of order"


WAITING = "SELECT pid, query FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"


def kill_in_handler(catalog: Catalog, program: Program) -> None:
    """Sends SIGKILL when the program has begun to apply events."""
    with catalog.connect() as blocker:
        blocker.execute("BEGIN; LOCK TABLE catalog_read.video_history IN SHARE MODE")
        program.wait_until(lambda: catalog.execute(WAITING, (catalog.name,)), what="an event to be applied")
        program.kill()
        blocker.execute("ROLLBACK")


# -------------------------------------------------------------------------------------------------
# Over pull
# -------------------------------------------------------------------------------------------------


def kill_before_ack(shop: Shop, program: Program) -> None:
    """Sends SIGKILL when the program has committed events and is acknowledging them."""
    with shop.connect() as blocker:

        def acknowledges() -> bool:
            blocker.execute("BEGIN; LOCK TABLE outbox.batch IN SHARE MODE")
            stopped = program.wait_until(lambda: shop.execute(WAITING, (shop.name,)), what="a call")
            if any("outbox.ack" in query for _, query in stopped):
                return True
            blocker.execute("ROLLBACK")
            return False

        wait_until(acknowledges, what="an acknowledgement")
        program.kill()
        for pid, _ in shop.execute(WAITING, (shop.name,)):
            shop.execute("SELECT pg_terminate_backend(%s, 20000)", (pid,))
        blocker.execute("ROLLBACK")


def end_leases(shop: Shop) -> None:
    """Ends a lease at once."""
    shop.execute("UPDATE outbox.batch SET locked_until = clock_timestamp() WHERE token IS NOT NULL")


def check_over_pull(shop: Shop, catalog: Catalog, start: Callable[[], Program]) -> str:
    """Kills the consumer while the shop is busy. Returns the consumer's last output."""
    program = start()
    shop.open()
    catalog.wait_applied(100, program)
    kill_in_handler(catalog, program)
    end_leases(shop)
    program = start()
    catalog.wait_applied(catalog.applied() + 100, program)
    kill_before_ack(shop, program)
    end_leases(shop)
    program = start()
    catalog.wait_applied(catalog.applied() + 100, program)
    shop.close()
    check_copy(shop, catalog, program)
    check_order(catalog)
    output = program.stop()
    assert shop.execute("SELECT * FROM outbox.lease") == [], "it left something unsettled"
    return output


def test_the_example_works_over_pull(make_page: MakePage, examples: Path, shop: Shop, catalog: Catalog) -> None:
    page = make_page(README, examples / "catalog")
    set_up(page)
    create_server, run, _ = page.commands(PULL)
    page.run(create_server)
    metrics = check_over_pull(shop, catalog, lambda: page.start(run))
    duplicates = re.search(r'inbox_duplicates_total\{consumer="catalog"\} (\d+)', metrics)
    assert duplicates and int(duplicates[1]) > 0, "nothing came again: the kill was not where it should be"


@pytest.mark.long
def test_the_example_works_in_python(make_page: MakePage, shop: Shop, catalog: Catalog) -> None:
    page = make_page(README, REPOSITORY / "examples/catalog")
    set_up(page)
    create_server, _, run = page.commands(PULL)
    page.run(create_server)
    check_over_pull(shop, catalog, lambda: page.start(run))


def test_a_failing_event_in_python_becomes_a_dead_letter(make_page: MakePage, shop: Shop, catalog: Catalog) -> None:
    """Only the event and its video wait. At last it is a dead letter, and the video goes on."""
    page = make_page(README, REPOSITORY / "examples/catalog")
    set_up(page)
    create_server, _, run = page.commands(PULL)
    page.run(create_server)
    shop.execute("ALTER SERVER catalog OPTIONS (ADD retry_base '1ms', ADD retry_max '1ms')")
    catalog.execute("SELECT inbox.set_policy('catalog', max_attempts => 3)")
    catalog.execute("ALTER TABLE catalog_read.video_projection ADD CHECK (duration_seconds > 0)")
    insert = "INSERT INTO video (title, duration_seconds) VALUES (%s, %s) RETURNING video_id"
    bad, good = shop.value(insert, ("bad", 0)), shop.value(insert, ("good", 1))
    shop.execute("UPDATE video SET title = title || ' still' WHERE video_id = %s", (bad,))
    shop.execute("UPDATE video SET duration_seconds = 2 WHERE video_id = %s", (bad,))
    program = page.start(run)
    program.wait_until(lambda: len(catalog.videos()), lambda n: n == 2, what="both videos")
    assert [row[:3] for row in catalog.history() if row[0] == str(bad)] == [(str(bad), 3, "VideoUpdated")]
    assert [row[0] for row in catalog.history() if row[0] != str(bad)] == [str(good)]
    dead = catalog.execute("SELECT version, attempts, sqlstate FROM inbox.dead_letter ORDER BY version")
    assert dead == [(1, 3, "23514"), (2, 3, "23514")]
    assert catalog.value("SELECT count(*) FROM inbox.waiting") == 0
    program.stop()


GRANTS_IN_CATALOG = """
    SELECT inbox.grant_consume('{0}');
    GRANT USAGE ON SCHEMA catalog_read TO {0};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA catalog_read TO {0};
"""
GRANTS_IN_SHOP = """
    SELECT outbox.grant_fetch('{0}');
    GRANT USAGE ON FOREIGN SERVER catalog TO {0};
"""


def test_the_example_works_with_few_rights(make_page: MakePage, examples: Path, shop: Shop, catalog: Catalog) -> None:
    page = make_page(README, examples / "catalog")
    set_up(page)
    create_server, run, _ = page.commands(PULL)
    page.run(create_server)
    role = f"reader_{catalog.name}"
    catalog.execute(f"CREATE ROLE {role} LOGIN")
    try:
        catalog.execute(GRANTS_IN_CATALOG.format(role))
        shop.execute(GRANTS_IN_SHOP.format(role))
        program = page.start(
            run,
            SHOP=shop.cluster.conninfo(shop.name, role),
            CATALOG=catalog.cluster.conninfo(catalog.name, role),
        )
        shop.open()
        shop.sell(100)
        shop.close()
        check_copy(shop, catalog, program)
        program.stop()
    finally:
        page.close()
        for database in (shop, catalog):
            database.execute(f"DROP OWNED BY {role}")
        catalog.execute(f"DROP ROLE {role}")


def test_the_catalog_publishes_events_of_its_own(
    make_page: MakePage, examples: Path, shop: Shop, catalog: Catalog
) -> None:
    page = make_page(README, examples / "catalog")
    set_up(page)
    create_server, run, _ = page.commands(PULL)
    page.run(create_server)
    (option,) = re.findall(r"`(--publish \S+)`", page.path.read_text())
    catalog.execute("CREATE EXTENSION pg_outbox")
    program = page.start(run, option)
    shop.open()
    catalog.wait_applied(100, program)
    shop.close()
    check_copy(shop, catalog, program)
    told = catalog.execute("SELECT aggregate_id, version FROM outbox.event WHERE topic = %s", (option.split()[1],))
    assert sorted(told) == sorted(change[:2] for change in shop.ledger)
    program.stop()


# -------------------------------------------------------------------------------------------------
# Over Pub/Sub
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_works_over_pub_sub(
    make_page: MakePage, examples: Path, emulator: str, wire: EmulatorWire, shop: Shop, catalog: Catalog
) -> None:
    project = f"shop-{shop.name.replace('_', '-')}"
    page = make_page(README, examples / "catalog", PUBSUB_EMULATOR_HOST=emulator, PROJECT=project)
    set_up(page)
    create, run = page.commands(PUB_SUB)
    page.run(create)
    program = page.start(run, PUBSUB_EMULATOR_HOST=wire.address)
    shop.open()
    catalog.wait_applied(100, program)
    check_order(catalog)
    # From here on the emulator does not keep the order: while events of a dead consumer are
    # held for it, another one gets later events. The versions keep the projection correct.
    kill_in_handler(catalog, program)
    program = page.start(run, PUBSUB_EMULATOR_HOST=wire.address)
    for _ in range(2):
        catalog.wait_applied(catalog.applied() + 100, program)
        program.kill()
        program = page.start(run, PUBSUB_EMULATOR_HOST=wire.address)
    shop.close()
    check_copy(shop, catalog, program)
    program.stop()


# -------------------------------------------------------------------------------------------------
# The page
# -------------------------------------------------------------------------------------------------


def test_every_command_of_the_page_is_run(make_page: MakePage, examples: Path, shop: Shop, catalog: Catalog) -> None:
    """Commands under the other headings are run by the tests above."""
    page = make_page(README, examples / "catalog")
    headings = re.findall(r"^## (.*)", page.path.read_text(), re.MULTILINE)
    assert headings == ["Set up", PULL, PUB_SUB, "See it work"]
    set_up(page)
    create_server, run, _ = page.commands(PULL)
    page.run(create_server)
    program = page.start(run)
    changes = page.commands("See it work")[0].split("psql")
    page.run("psql" + changes[1])
    catalog.wait_applied(4, program)
    shown = page.run("psql" + changes[2])
    assert "Modern Times" in shown and "VideoDeleted" in shown
    assert [row[2] for row in catalog.videos()] == ["Modern Times"]
