"""docs/rebuild.md: a projection is rebuilt while it is read, by the commands of the page.

The shop changes videos and a reader reads them all the time.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cluster import REPOSITORY
from long_run import all_in_long_run
from waiting import wait_until

from .conftest import MakePage
from .emulator_wire import EmulatorWire
from .examples import Catalog, Program, Shop
from .test_examples import PUB_SUB, PULL, README, set_up


class Reader:
    """Reads the catalog all the time, and remembers all rows that it has seen."""

    def __init__(self, catalog: Catalog) -> None:
        self.seen: list[dict[str, tuple[int, str]]] = []
        self._catalog = catalog
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self._catalog.connect() as connection:
                while not self._closing.wait(0.002):
                    rows = connection.execute("SELECT video_id::text, version, title FROM catalog_read.video")
                    videos = {video: (version, title) for video, version, title in rows}
                    if not self.seen or videos != self.seen[-1]:
                        self.seen.append(videos)
        except psycopg.Error as error:
            self._error = error

    def close(self) -> None:
        self._closing.set()
        self._thread.join(60)
        assert self._error is None, f"a reader was told {self._error!r}"

    def check(self, shop: Shop, key: Callable[[int, str], int]) -> None:
        """`key` gives the age of a row from its version and title."""
        removed = {video for video, _, event, _ in shop.ledger if event == "VideoDeleted"}
        newest: dict[str, int] = {}
        gone: set[str] = set()
        for before, now in zip(self.seen, self.seen[1:]):
            gone |= before.keys() - now.keys()
            assert gone <= removed, f"a reader missed {gone - removed}"
            assert not gone & now.keys(), f"a reader saw {gone & now.keys()} again"
            for video, (version, title) in now.items():
                seen = key(version, title)
                assert seen >= newest.get(video, 0), f"a reader saw {video} go back to {version}, {title!r}"
                newest[video] = seen

    def check_rows(self, shop: Shop) -> None:
        """Checks that every row seen is one that the shop had committed."""
        committed = {(video, version): title for video, version, _, title in shop.ledger}
        for videos in self.seen:
            for video, (version, title) in videos.items():
                assert committed[video, version] == title


@pytest.fixture
def readers(catalog: Catalog) -> Iterator[list[Reader]]:
    readers: list[Reader] = []
    yield readers
    for reader in readers:
        reader.close()


class Way:
    """The connection between shop and catalog: pull or Pub/Sub."""

    def __init__(
        self, make_page: MakePage, directory: Path, heading: str, wire: EmulatorWire | None = None,
        **environment: str,
    ) -> None:  # fmt: skip
        self.readme = make_page(README, directory, **environment)
        self.page = make_page("docs/rebuild.md", directory, **environment)
        self.over_pull = wire is None
        self.to_emulator = {"PUBSUB_EMULATOR_HOST": wire.address} if wire else {}
        set_up(self.readme)
        create, self.run = self.readme.commands(heading)[:2]
        self.readme.run(create)

    def start(self, command: str | None = None) -> Program:
        """Starts the consumer of the example, or another one."""
        return self.page.start(command or self.run, **self.to_emulator)


@pytest.fixture(params=all_in_long_run(["pull", "pubsub"], short=["pull"]))
def way(request: pytest.FixtureRequest, make_page: MakePage, examples: Path, shop: Shop) -> Way:
    directory = examples / "catalog"
    if request.param == "pull":
        return Way(make_page, directory, PULL)
    environment = {
        "PUBSUB_EMULATOR_HOST": request.getfixturevalue("emulator"),
        "PROJECT": f"shop-{shop.name.replace('_', '-')}",
    }
    return Way(make_page, directory, PUB_SUB, request.getfixturevalue("wire"), **environment)


# -------------------------------------------------------------------------------------------------
# Beside the old one
# -------------------------------------------------------------------------------------------------


def test_a_projection_is_rebuilt_beside_the_old_one(
    way: Way, shop: Shop, catalog: Catalog, readers: list[Reader]
) -> None:
    commands = way.page.commands("Beside the old one")
    make_table, new_destination, new_subscription, copy, run_pull, run_pub_sub, drop = commands
    offsets, swap = way.page.commands("Beside the old one", "sql")
    old = way.start()
    shop.open()
    catalog.wait_applied(200, old)
    reader = Reader(catalog)
    readers.append(reader)

    way.page.run(make_table)
    way.page.run(new_destination if way.over_pull else new_subscription)
    shop.sell(100)
    way.page.run(copy)
    new = way.start(run_pull if way.over_pull else run_pub_sub)
    ahead = catalog.applied() + 100
    catalog.wait_applied(ahead, old)
    new.wait_until(lambda: catalog.execute(offsets), lambda rows: len(rows) == 2, what="both offsets")

    # A new one that is behind does not take the old one's place.
    new.process.send_signal(signal.SIGSTOP)
    catalog.wait_applied(catalog.applied() + 50, old)

    def swapped() -> bool:
        with catalog.connect() as connection:
            connection.execute(swap)
        return True

    with pytest.raises(psycopg.errors.RaiseException, match="rows behind"):
        wait_until(swapped, what="the rows to be compared", ignoring=(psycopg.errors.LockNotAvailable,))
    new.process.send_signal(signal.SIGCONT)

    again = (psycopg.errors.RaiseException, psycopg.errors.LockNotAvailable)
    wait_until(swapped, timeout=180, what="the new one to take the old one's place", ignoring=again)

    old.stop()
    for command in drop.splitlines() if way.over_pull else drop.splitlines()[:1]:
        way.page.run(command)
    shop.sell(100)
    shop.close()
    new.wait_until(lambda: catalog.videos() == shop.videos(), what="the new one to have everything")
    new.stop()
    reader.close()
    reader.check(shop, lambda version, title: version)
    reader.check_rows(shop)


VIDEO = {"video_id": "00000000-0000-0000-0000-000000000001", "title": "", "duration_seconds": 1,
         "uploader_id": "00000000-0000-0000-0000-000000000002", "published_at": "2026-01-01"}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "old, new, is_behind",
    [
        ([("apply", 2)], [("apply", 2)], False),
        ([("apply", 2)], [("apply", 3)], False),
        ([("apply", 2)], [("apply", 1)], True),
        ([("apply", 2)], [], True),
        ([("apply", 2)], [("remove", 3)], False),
        ([("apply", 2)], [("remove", 1)], True),
        ([("remove", 2)], [], False),
        ([("remove", 2)], [("apply", 1)], True),
        ([("remove", 2)], [("apply", 3)], False),
        ([("remove", 2), ("apply", 4)], [("apply", 3)], True),
        ([], [("apply", 1)], False),
    ],
)
def test_a_new_projection_that_is_behind_does_not_replace_the_old(
    make_page: MakePage, catalog: Catalog, old: list[tuple], new: list[tuple], is_behind: bool
) -> None:
    """Compares changes of the old and the new projection, and whether the new one may replace the old."""
    set_up(make_page(README, REPOSITORY / "examples/catalog"))
    page = make_page("docs/rebuild.md", REPOSITORY / "examples/catalog")
    page.run(page.commands("Beside the old one")[0])
    for table, done in ("video_projection", old), ("video_projection_2", new):
        for function, version in done:
            catalog.execute(
                f"SELECT inbox.{function}('catalog_read.{table}', ARRAY['video_id'], 'version', %s)",
                (Jsonb({**VIDEO, "version": version}),),
            )
    swap = page.commands("Beside the old one", "sql")[1].replace("pg_sleep(0.05)", "pg_sleep(0)")
    refused = pytest.raises(psycopg.errors.RaiseException, match="1 rows behind")
    with catalog.connect() as connection, refused if is_behind else nullcontext():
        connection.execute(swap)


# -------------------------------------------------------------------------------------------------
# In place
# -------------------------------------------------------------------------------------------------

# A wrong handler, which writes titles in upper case.
WRONG = """
    CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.title := upper(NEW.title);
        RETURN NEW;
    END $$;
    CREATE TRIGGER shout BEFORE INSERT OR UPDATE OF title ON catalog_read.video_projection
        FOR EACH ROW EXECUTE FUNCTION shout()
"""


def take(version: int, title: str) -> int:
    return int(title.split()[1])


def test_a_projection_is_rebuilt_in_place(way: Way, shop: Shop, catalog: Catalog, readers: list[Reader]) -> None:
    take_snapshot, seek = way.page.commands("In place")
    (statements,) = way.page.commands("In place", "sql")
    reset = re.search(r"^SELECT inbox.reset_offset.*\n", statements, re.MULTILINE)
    assert reset
    since = shop.value("SELECT clock_timestamp()")
    if not way.over_pull:
        way.page.run(take_snapshot)
        statements = statements.replace(reset[0], "")
    catalog.execute(WRONG)
    program = way.start()
    shop.open()
    catalog.wait_applied(300, program)
    reader = Reader(catalog)
    readers.append(reader)
    program.stop()
    catalog.execute("DROP TRIGGER shout ON catalog_read.video_projection")

    way.page.run(f"psql -X -v ON_ERROR_STOP=1 -v since='{since}' \"$CATALOG\" <<'END'\n{statements}END\n")
    if not way.over_pull:
        way.page.run(seek)
    program = way.start()
    shop.close()
    program.wait_until(lambda: catalog.videos() == shop.videos(), what="the catalog to be right")
    if way.over_pull:
        pending = "SELECT bool_or(reset_pending) FROM inbox.offsets"
        program.wait_until(lambda: catalog.value(pending), lambda p: p is False, what="the reset to be confirmed")
    program.stop()
    reader.close()
    reader.check(shop, take)
