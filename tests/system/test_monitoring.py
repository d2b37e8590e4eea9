"""The alerts of monitoring/: a real Prometheus scrapes outboxctl serve, and evaluates the rules.

Its clock cannot be moved, so what the rules wait for is shortened: minutes become zero, and the age of
an event a tenth of a second.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, Installation, free_port
from database import Database, NewDatabase
from receiver import Receiver, answer, everything
from served import Served
from waiting import wait_until

RULES = Path(__file__).parents[2] / "monitoring/prometheus-rules.yml"


class Prometheus:
    def __init__(self, directory: Path, served: Served) -> None:
        rules = RULES.read_text()
        for slow, fast in [("> 300", "> 0.1"), ("for: 15m", "for: 0s"), ("for: 5m", "for: 0s"), ("for: 1m", "for: 0s")]:
            assert slow in rules
            rules = rules.replace(slow, fast)
        (directory / "rules.yml").write_text(rules)
        (directory / "prometheus.yml").write_text(
            json.dumps({
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yml"],
                "scrape_configs": [
                    {"job_name": "pg_outbox", "static_configs": [{"targets": [served.url.removeprefix("http://")]}]}
                ],
            })
        )  # fmt: skip
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip
        wait_until(lambda: self.scrapes() > 1, what=f"Prometheus to scrape; see {directory}/log", ignoring=(OSError,))

    def ask(self, path: str) -> dict:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return json.load(response)["data"]

    def scrapes(self) -> float:
        """How many times it has scraped without an error."""
        result = self.ask("/api/v1/query?query=sum_over_time(up[1h])")["result"]
        return float(result[0]["value"][1]) if result else 0

    def firing(self) -> set[str]:
        return {a["labels"]["alertname"] for a in self.ask("/api/v1/alerts")["alerts"] if a["state"] == "firing"}

    def evaluated(self) -> str:
        return min(group["lastEvaluation"] for group in self.ask("/api/v1/rules")["groups"])

    def after_another_look(self) -> set[str]:
        """The alerts that fire after figures of now have been scraped and the rules evaluated on them."""
        scrapes = self.scrapes()
        wait_until(self.scrapes, lambda now: now >= scrapes + 2, what="Prometheus to scrape again")
        evaluated = self.evaluated()
        wait_until(self.evaluated, lambda now: now > evaluated, what="Prometheus to evaluate the rules")
        return self.firing()


@pytest.fixture
def watched(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation, tmp_path: Path,
            receiver: Receiver, http: None) -> Iterator[tuple[Database, Database, Prometheus]]:  # fmt: skip
    """A database with destinations and a consumer that work, one that is there, and a Prometheus."""
    database, other = new_database(), new_database()
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute("CREATE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
    database.execute("SELECT inbox.subscribe('catalog', '*', 'handle')")
    database.add_destination("catalog", f"postgresql:///{database.name}", consumer="catalog")
    database.add_destination("hook", receiver.url())
    served = Served(
        str(installation.build / "tools/outboxctl/outboxctl"),
        *(word for each in (database, other) for word in ("-d", shared_cluster.conninfo(each.name))),
    )
    try:
        prometheus = Prometheus(tmp_path, served)
        try:
            yield database, other, prometheus
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(60)
    finally:
        served.stop()


def test_the_rules_are_valid() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)


@pytest.mark.extension("workers, and an inbox in the same database")
def test_alerts_fire_for_what_they_are_made_for_and_none_before(
    watched: tuple[Database, Database, Prometheus], receiver: Receiver
) -> None:
    database, other, prometheus = watched
    database.enqueue("a", 100)
    wait_until(lambda: database.value("SELECT processed FROM inbox.status") == 100, what="all to be processed")
    assert prometheus.after_another_look() == set()

    # An endpoint that refuses for good, and a handler that fails.
    receiver.on(everything, answer(413))
    database.execute("CREATE OR REPLACE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'")
    database.enqueue("a")
    seen = {"OutboxDeadLetters", "InboxEventsFail", "InboxMessageWaits"}
    wait_until(prometheus.firing, lambda firing: firing >= seen, what=f"{seen}, and an answer of 413")
    database.execute("SELECT inbox.set_policy('catalog', max_attempts => 1)")
    database.enqueue("b")
    wait_until(prometheus.firing, lambda firing: "InboxDeadLetters" in firing, what="InboxDeadLetters")

    # An endpoint that refuses for now.
    receiver.forget_rules()
    receiver.on(everything, answer(400))
    database.change_destination("hook", retry_base="1h", retry_max="1h")
    database.enqueue("c")
    wait_until(prometheus.firing, lambda firing: "OutboxKeysHeld" in firing, what="OutboxKeysHeld")

    # A destination that is paused, and a consumer that nobody serves.
    receiver.forget_rules()
    database.execute("SELECT outbox.pause('hook'), inbox.unsubscribe('catalog', '*', 'handle')")
    database.enqueue("d")
    seen = {"OutboxDestinationDown", "OutboxEventWaits", "InboxConsumerDown"}
    wait_until(prometheus.firing, lambda firing: firing >= seen, what=f"{seen}")

    assert "OutboxFiguresMissing" not in prometheus.firing()
    other.execute("ALTER EXTENSION pg_outbox DROP FUNCTION outbox.metrics(); DROP FUNCTION outbox.metrics()")
    wait_until(prometheus.firing, lambda firing: "OutboxFiguresMissing" in firing, what="OutboxFiguresMissing")
