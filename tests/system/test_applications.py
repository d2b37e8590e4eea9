"""docs/howto/applications.md: its statements and the programs that it shows, against real frameworks and drivers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from cluster import REPOSITORY, Cluster
from database import Database, NewDatabase
from sinks.servers import INSTALLED, PYTHON
from waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.extension("the page is about the extensions")]

EXAMPLES = REPOSITORY / "examples"
PAGE = (REPOSITORY / "docs/howto/applications.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Application:
    orders: list[str]  # the command that changes orders
    shipping: list[str]  # the command that follows them
    connection: str  # the form of a connection string

    def needs(self) -> str | None:
        command = self.orders[0]
        return None if shutil.which(command) and all(map(os.path.exists, self.files())) else " ".join(self.orders)

    def files(self) -> list[str]:
        return [word for word in self.orders if word.startswith("/") and "*" not in word]


JAVA = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{INSTALLED}/spring:{INSTALLED}/spring/*", "Shop"]
RAILS = ["ruby", f"{EXAMPLES}/rails/orders.rb"]
KEYWORDS = "host=127.0.0.1 port={port} user={role} dbname={database}"
APPLICATIONS = {
    "django": Application(
        [str(PYTHON), f"{EXAMPLES}/django/orders.py"], [str(PYTHON), f"{EXAMPLES}/python/shipping.py"], KEYWORDS
    ),
    "go": Application([f"{INSTALLED}/orders"], [f"{INSTALLED}/orders", "ship"], KEYWORDS),
    "rails": Application(RAILS, [*RAILS, "ship"], "postgresql://{role}@127.0.0.1:{port}/{database}"),
    "spring": Application(JAVA, [*JAVA, "ship"], "jdbc:postgresql://127.0.0.1:{port}/{database}?user={role}"),
}


@dataclass
class Services:
    """The databases of the shop and of the shipping service, as the page makes them."""

    application: Application
    shop: Database
    shipping: Database
    directory: Path

    def environment(self) -> dict[str, str]:
        def connection(database: Database, role: str) -> str:
            port = database.cluster.port
            return self.application.connection.format(port=port, role=role, database=database.name)

        return {**os.environ, "SHOP": connection(self.shop, "shop_app"),
                "SHIPPING": connection(self.shipping, "shipping_app")}  # fmt: skip

    def order(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.application.orders, *map(str, arguments)], env=self.environment(), text=True, timeout=120,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def start_shipping(self) -> subprocess.Popen[bytes]:
        environment = self.environment()
        environment["SHOP"] = environment["SHOP"].replace("shop_app", "shipping_fetcher")
        return subprocess.Popen(
            self.application.shipping, env=environment, stdout=(self.directory / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture
def roles_go(shared_cluster: Cluster) -> Iterator[None]:
    """The roles of the page go after the databases in which they have rights."""
    yield
    roles = re.findall(r"CREATE ROLE (\w+)", PAGE)
    shared_cluster.execute(f"DROP ROLE IF EXISTS {', '.join(roles)}")


@pytest.fixture(params=APPLICATIONS)
def services(request: pytest.FixtureRequest, roles_go: None, new_database: NewDatabase, tmp_path: Path) -> Services:
    application = APPLICATIONS[request.param]
    if missing := application.needs():
        pytest.skip(f"NOT TESTED: {missing} is not there; scripts/test.sh installs it")
    made = Services(application, new_database(), new_database(extension=False), tmp_path)
    statements = [text for language, text in BLOCKS if language == "sql"]
    for database, text in zip((made.shop, made.shipping), statements, strict=True):
        database.execute(text)
    return made


def test_events_follow_orders_and_are_applied_once(services: Services) -> None:
    shop, shipping = services.shop, services.shipping
    kept, refused = uuid.uuid4(), uuid.uuid4()
    placed = services.order("place", kept, 12)
    assert placed.returncode == 0, placed.stdout
    assert services.order("place", refused, 1001).returncode != 0, "there is no credit for so much"
    assert shop.value("SELECT array_agg(id) FROM orders") == [kept]
    events = "SELECT aggregate_id, event_type, version FROM outbox.event ORDER BY position"
    assert shop.execute(events) == [(str(kept), "OrderPlaced", 1)]

    # A consumer that handled the first event and ended before it could say so.
    (event,) = shop.execute("SELECT token, event_id FROM outbox.fetch('shipping')")
    with psycopg.connect(shipping.cluster.conninfo(shipping.name, "shipping_app")) as ended:
        ended.execute("SELECT inbox.begin_event('shipping', %s, 'shop')", (event[1],))
        ended.execute("INSERT INTO shipment VALUES (%s, 99, 0)", (kept,))
    shop.execute("SELECT outbox.release(%s)", (event[0],))

    changed = services.order("change", kept, 15)
    assert changed.returncode == 0, changed.stdout
    consumer = services.start_shipping()
    try:
        wait_until(
            lambda: (shop.value("SELECT pending_at_most FROM outbox.status WHERE destination = 'shipping'"), consumer.poll()),
            lambda seen: seen[0] == 0 or seen[1] is not None, what="both events to be acknowledged",
        )  # fmt: skip
    finally:
        consumer.kill()
        consumer.wait()
    log = (services.directory / "log").read_text()
    assert shipping.execute("SELECT order_id, total, version FROM shipment") == [(kept, 15, 2)], log
    assert shipping.value("SELECT count(*) FROM inbox.processed") == 2, log


def test_the_page_shows_what_is_run() -> None:
    texts = [path.read_text() for path in EXAMPLES.glob("*/*") if path.suffix in (".py", ".rb", ".go", ".java")]
    shown = [(language, text) for language, text in BLOCKS if language != "sql"]
    assert {language for language, _ in shown} == {"python", "ruby", "java", "go"}
    for language, text in shown:
        indented = [textwrap.indent(text, " " * width) for width in (0, 2, 4, 8)]
        assert any(form in program for form in indented for program in texts), f"{language}:\n{text}"
