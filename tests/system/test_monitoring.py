"""The alerts of monitoring/: a real Prometheus scrapes outboxctl serve, and evaluates the rules.

Its clock cannot be moved, so what the rules wait for is shortened: to nothing where an alert must fire,
and to seconds instead of minutes where none may. Sizes are shortened as well.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster import Cluster, Installation, free_port
from database import Database, NewDatabase
from receiver import Receiver, answer, delayed, everything
from served import Served
from waiting import wait_until

pytestmark = pytest.mark.long

MONITORING = Path(__file__).parents[2] / "monitoring"
RULES = MONITORING / "prometheus-rules.yml"

SMALL = {">= 90000": ">= 20", "> 20e9": "> 20e6"}
AT_ONCE = {"> 300": "> 0.1", "for: 15m": "for: 0s", "for: 5m": "for: 0s", "for: 1m": "for: 0s", **SMALL}
SECONDS_FOR_MINUTES = {"> 300": "> 5", "for: 15m": "for: 15s", "for: 5m": "for: 5s", "for: 1m": "for: 1s", **SMALL}


class Prometheus:
    def __init__(self, directory: Path, served: Served, shorter: dict[str, str]) -> None:
        rules = RULES.read_text()
        for slow, fast in shorter.items():
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
        with urllib.request.urlopen(self.url + path, timeout=180) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict]:
        return self.ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def scrapes(self) -> float:
        """Number of scrapes without an error."""
        result = self.query("sum_over_time(up[1h])")
        return float(result[0]["value"][1]) if result else 0

    def have_fired(self) -> set[str]:
        return {a["metric"]["alertname"] for a in self.query('count_over_time(ALERTS{alertstate="firing"}[1h])')}

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
            receiver: Receiver, http: None, request: pytest.FixtureRequest,
            ) -> Iterator[tuple[Database, Database, Prometheus]]:  # fmt: skip
    """A database with destinations and a consumer that work, one that is there, and a Prometheus."""
    database, other = new_database(), new_database()
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute("CREATE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
    database.execute("SELECT inbox.subscribe('catalog', '*', 'handle')")
    database.add_destination("catalog", database.inbox_url(), consumer="catalog")
    database.add_destination("hook", receiver.url())
    served = Served(
        str(installation.build / "tools/outboxctl/outboxctl"),
        *(word for each in (database, other) for word in ("-d", each.monitor())),
    )
    try:
        prometheus = Prometheus(tmp_path, served, request.param)
        try:
            yield database, other, prometheus
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(60)
    finally:
        served.stop()


def test_the_rules_are_valid() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.extension("workers, and an inbox in the same database")
@pytest.mark.parametrize("watched", [AT_ONCE], indirect=True, ids=["at once"])
def test_alerts_fire_for_what_they_are_made_for_and_none_before(
    watched: tuple[Database, Database, Prometheus], receiver: Receiver
) -> None:
    database, other, prometheus = watched
    database.enqueue("a", 100)
    wait_until(lambda: database.value("SELECT processed FROM inbox.status") == 100, what="all to be processed")
    assert prometheus.after_another_look() == set()

    # A broker that has deleted events.
    database.execute("SELECT inbox.report_gap('catalog', 's', 'deleted by the broker', skipped => 3)")
    wait_until(prometheus.firing, lambda firing: firing == {"InboxEventsSkipped"}, what="InboxEventsSkipped")

    # An endpoint that refuses for good, and a handler that fails.
    receiver.on(everything, answer(413))
    database.execute(
        "CREATE OR REPLACE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'"
    )
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

    # More of them than it should ever hold.
    assert "OutboxManyKeysHeld" not in prometheus.firing()
    for key in range(20):
        database.enqueue(f"held {key}")
    wait_until(prometheus.firing, lambda firing: "OutboxManyKeysHeld" in firing, what="OutboxManyKeysHeld")

    # A destination that is paused, and a consumer that nobody serves.
    receiver.forget_rules()
    database.execute("SELECT outbox.pause('hook'), inbox.unsubscribe('catalog', '*', 'handle')")
    database.enqueue("d")
    seen = {"OutboxDestinationDown", "OutboxEventWaits", "InboxConsumerDown"}
    wait_until(prometheus.firing, lambda firing: firing >= seen, what=f"{seen}")

    # A log that cannot be emptied, because of that destination.
    assert "OutboxLogLarge" not in prometheus.firing()
    database.execute(
        "SELECT outbox.enqueue('item', 'large', 'changed', jsonb_build_object('n', string_agg(md5(n::text || m::text), ''))) "
        "FROM generate_series(1, 100) AS n, generate_series(1, 8192) AS m GROUP BY n"
    )
    wait_until(prometheus.firing, lambda firing: "OutboxLogLarge" in firing, what="OutboxLogLarge")

    assert "OutboxFiguresMissing" not in prometheus.firing()
    other.execute("ALTER EXTENSION pg_outbox DROP FUNCTION outbox.metrics(); DROP FUNCTION outbox.metrics()")
    wait_until(prometheus.firing, lambda firing: "OutboxFiguresMissing" in firing, what="OutboxFiguresMissing")


@pytest.mark.slow
@pytest.mark.extension("workers, and an inbox in the same database")
@pytest.mark.parametrize("watched", [SECONDS_FOR_MINUTES], indirect=True, ids=["an hour in a minute"])
def test_no_alert_fires_in_a_quiet_hour_and_none_in_a_replay(
    watched: tuple[Database, Database, Prometheus], receiver: Receiver
) -> None:
    database, _, prometheus = watched
    start = prometheus.scrapes()
    enqueued = 0

    def scrapes() -> float:
        nonlocal enqueued
        if (seen := prometheus.scrapes()) - start >= 10 * (enqueued + 1):
            enqueued += 1
            database.enqueue(f"now and then {enqueued}")
        return seen

    wait_until(scrapes, lambda seen: seen >= start + 60, timeout=240, what="60 scrapes")
    wait_until(lambda: database.value("SELECT processed FROM inbox.status") == enqueued, what="all to be processed")
    assert enqueued >= 5
    assert prometheus.have_fired() == set()

    # All events once more, while new ones come: to a receiver that takes many seconds for them.
    for key in range(40):
        database.enqueue(f"much {key}", 25)
    database.wait_settled("hook")
    receiver.on(everything, delayed(0.25))
    database.execute("SELECT outbox.replay('hook'), outbox.replay('catalog')")
    last = prometheus.scrapes()

    def waiting() -> int:
        nonlocal last
        if (seen := prometheus.scrapes()) > last:
            last = seen
            database.enqueue("meanwhile")
        return database.value("SELECT sum(waiting) FROM outbox.replay_progress")

    begun = prometheus.scrapes()
    wait_until(waiting, lambda left: left == 0, timeout=240, what="the replays to end")
    assert prometheus.scrapes() >= begun + 8, "the replay was too short to show anything"
    prometheus.after_another_look()
    assert prometheus.have_fired() == set()


# -------------------------------------------------------------------------------------------------
# The dashboard
# -------------------------------------------------------------------------------------------------

DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())


def expressions() -> list[str]:
    """The queries of the dashboard, with values in the place of its variables."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return [e.replace("$__rate_interval", "1m").replace("$database", ".*") for e in found]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    assert DASHBOARD["schemaVersion"] >= 38  # Grafana 10
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for a, b in itertools.combinations(places, 2):
        apart_in_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_in_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_in_x or apart_in_y, (a, b)


def test_the_dashboard_names_its_variables() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "database"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            assert set(re.findall(r"\$\{?(\w+)", json.dumps(target))) <= names | {"__rate_interval"}


@pytest.mark.extension("workers, and an inbox in the same database")
@pytest.mark.parametrize("watched", [SECONDS_FOR_MINUTES], indirect=True, ids=["dashboard"])
def test_dashboard_and_alerts_use_figures_that_exist(watched: tuple[Database, Database, Prometheus]) -> None:
    database, _, prometheus = watched
    database.enqueue("a", 10)
    wait_until(lambda: database.value("SELECT processed FROM inbox.status") == 10, what="all to be processed")
    database.wait_published(10, "hook")
    prometheus.after_another_look()
    served = set(prometheus.ask("/api/v1/label/__name__/values"))
    of_alerts = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for expression in expressions() + of_alerts:
        names = set(re.findall(r"\b(?:outbox|inbox|outboxctl)_[a-z_]+", expression))
        assert names <= served or "__name__" in expression, (expression, names - served)
        prometheus.query(expression)  # an error of HTTP if it cannot be parsed
    for expression in expressions():
        assert prometheus.query(expression.replace("[1m]", "[5m]")), f"{expression} has no value"


# -------------------------------------------------------------------------------------------------
# sql_exporter
# -------------------------------------------------------------------------------------------------


@pytest.mark.extension("workers, and an inbox in the same database")
@pytest.mark.parametrize("watched", [SECONDS_FOR_MINUTES], indirect=True, ids=["sql_exporter"])
def test_queries_of_sql_exporter_return_the_figures_that_are_served(
    watched: tuple[Database, Database, Prometheus],
) -> None:
    """Each metric as sql_exporter would make it: a row is a sample, its labels are columns, and a null is left out."""
    database, _, prometheus = watched
    database.enqueue("a", 10)
    wait_until(lambda: database.value("SELECT processed FROM inbox.status") == 10, what="all to be processed")
    database.wait_published(10, "hook")
    prometheus.after_another_look()
    configuration = yaml.safe_load((MONITORING / "sql-exporter.yml").read_text())
    assert configuration["target"]["collectors"] == [each["collector_name"] for each in configuration["collectors"]]
    for collector in configuration["collectors"]:
        queries = {query["query_name"]: query["query"] for query in collector["queries"]}
        for metric in collector["metrics"]:
            assert metric["type"] in ("gauge", "counter") and metric["help"]
            cursor = database.connection.execute(queries[metric["query_ref"]])
            columns = [column.name for column in cursor.description or []]
            [value] = metric["values"]
            assert {*metric["key_labels"], value} <= set(columns)
            rows = [dict(zip(columns, row)) for row in cursor.fetchall()]
            made = {tuple(row[label] for label in metric["key_labels"]) for row in rows if row[value] is not None}
            served = prometheus.query(f'{metric["metric_name"]}{{database="{database.name}"}}')
            assert made and made == {tuple(s["metric"][label] for label in metric["key_labels"]) for s in served}
