"""The web console of outboxctl serve: over HTTP, and in a browser without a screen."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from cluster import Cluster, Installation
from database import MONITOR, Database, NewDatabase
from receiver import Receiver, answer, everything
from served import Served
from waiting import wait_until

TOKEN = "a token that only this test knows"
HOSTILE = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title = 'hacked'\">"


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json"
        return json.loads(self.text)


@dataclass
class Client:
    """Acts as a browser with a page of the console."""

    url: str
    cookie: str = ""
    csrf_token: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, parameters: dict[str, str] | None = None, **headers: str | None) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=180)
        words = urlencode(parameters or {})
        all_headers: dict[str, str | None] = {"Cookie": self.cookie}
        if method == "POST":
            all_headers |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url,
                            "Sec-Fetch-Site": "same-origin", "X-CSRF-Token": self.csrf_token}  # fmt: skip
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, path if method == "POST" or not words else f"{path}?{words}", body=words if method == "POST" else None,
            headers={name: value for name, value in all_headers.items() if value is not None},
        )  # fmt: skip
        response = connection.getresponse()
        result = Answer(response.status, response.headers, response.read().decode())
        connection.close()
        return result

    def get(self, name: str, /, **parameters: str) -> Any:
        found = self.ask("GET", f"/console/api/{name}", parameters)
        assert found.status == 200, found.text
        return found.json()

    def log_in(self, token: str = TOKEN) -> Client:
        done = self.ask("POST", "/console/login", {"token": token})
        assert (done.status, done.headers["Location"]) == (303, "/console"), done.text
        self.cookie = done.headers["Set-Cookie"].split(";")[0]
        self.csrf_token = self.get("session")["csrf_token"]
        return self


class Console:
    """outboxctl serve --console on a database with a destination that refuses events, and one that takes them."""

    def __init__(self, database: Database, program: str, conninfo: str, directory: Path) -> None:
        self.database, self.program, self.conninfo = database, program, conninfo
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.served: list[Served] = []

    def serve(self, *arguments: str, databases: tuple[str, ...] = ()) -> str:
        """Returns its address."""
        words = [word for each in (self.conninfo, *databases) for word in ("-d", each)]
        self.served.append(Served(self.program, "--console", "--token-file", str(self.token_file), *arguments, *words))
        return self.served[-1].url

    def client(self, *arguments: str) -> Client:
        return Client(self.serve(*arguments)).log_in()

    def enqueue(self) -> str:
        """An event whose aggregate and payload would run in a page that does not escape them."""
        return str(self.database.value(
            "SELECT outbox.enqueue('order', %s, 'Placed', jsonb_build_object('note', %s::text))", (HOSTILE, HOSTILE)
        ))  # fmt: skip

    def dead_letter(self) -> str:
        event_id = self.enqueue()
        wait_until(
            lambda: self.database.value("SELECT count(*) FROM outbox.dead_letter"), what="the event to be given up"
        )
        return event_id


def role_of_console(database: Database) -> str:
    """Returns a connection string of a role that may do all that the console can."""
    conninfo = database.monitor("operate")
    database.execute(f"GRANT EXECUTE ON FUNCTION outbox.find_event, outbox.find_events TO {MONITOR}")
    return conninfo


PLACE = {"database": "0", "side": "outbox", "name": "hook"}


@pytest.fixture
def console(shared_cluster: Cluster, new_database: NewDatabase, installation: Installation, tmp_path: Path,
            receiver: Receiver, http: None) -> Iterator[Console]:  # fmt: skip
    database = new_database()
    database.execute("CREATE EXTENSION pg_inbox")
    database.execute("CREATE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
    database.execute("SELECT inbox.subscribe('catalog', '*', 'handle')")
    database.add_destination("catalog", database.inbox_url(), consumer="catalog")
    receiver.on(everything, answer(413))
    database.add_destination("hook", receiver.url())
    console = Console(
        database,
        str(installation.build / "tools/outboxctl/outboxctl"),
        role_of_console(database),
        tmp_path,
    )
    yield console
    for served in console.served:
        served.stop()


# -------------------------------------------------------------------------------------------------
# Access
# -------------------------------------------------------------------------------------------------


def test_there_is_no_console_unless_it_is_asked_for(console: Console) -> None:
    served = Served(console.program, "-d", console.conninfo)
    console.served.append(served)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        served.get("/console")
    assert served.get("/healthz") == "ok\n"


def test_only_figures_are_served_without_the_token(console: Console) -> None:
    client = Client(console.serve())
    assert client.ask("GET", "/healthz").text == "ok\n"
    metrics = client.ask("GET", "/metrics")
    assert 'destination="hook"' in metrics.text
    assert metrics.headers["Content-Security-Policy"] is None
    page = client.ask("GET", "/console")
    assert 'action="/console/login"' in page.text and "console.js" not in page.text
    for name in ("session", "overview", "place", "event", "find", "dead-letter"):
        assert client.ask("GET", f"/console/api/{name}").status == 401
        assert client.ask("GET", f"/console/api/{name}", Cookie="outboxctl_session=" + "0" * 64).status == 401
    for name in ("pause", "resume", "redrive", "discard", "logout"):
        assert client.ask("POST", f"/console/api/{name}", PLACE).status == 401
    assert TOKEN not in client.ask("GET", "/console/console.js").text


def test_a_wrong_token_is_refused(console: Console) -> None:
    client = Client(console.serve())
    for token in ("", TOKEN[:-1], TOKEN + "x", "x" * len(TOKEN)):
        refused = client.ask("POST", "/console/login", {"token": token})
        assert (refused.status, refused.headers["Set-Cookie"]) == (403, None)
        assert "The token is wrong." in refused.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(console: Console) -> None:
    done = Client(console.serve()).ask("POST", "/console/login", {"token": TOKEN})
    assert re.fullmatch(
        "outboxctl_session=[0-9a-f]{64}; Path=/console; HttpOnly; SameSite=Strict", done.headers["Set-Cookie"]
    )


def test_a_session_ends_when_it_logs_out(console: Console) -> None:
    client, other = console.client(), Client(console.served[-1].url).log_in()
    assert client.ask("POST", "/console/api/logout").status == 200
    assert client.ask("GET", "/console/api/overview").status == 401
    assert other.ask("GET", "/console/api/overview").status == 200


def test_a_new_token_is_printed_once(console: Console) -> None:
    served = Served(console.program, "--console", "-d", console.conninfo)
    assert served.process.stderr
    line = served.process.stderr.readline()
    assert served.url + "/console" in line
    token = line.split()[-1]
    assert re.fullmatch("[0-9a-f]{64}", token)
    Client(served.url).log_in(token)
    assert token not in served.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [("short\n", "is too short"), ("x" * 5000, "is too long"), ("", "it is empty"), (None, "No such file")],
)
def test_a_bad_token_file_is_refused(console: Console, content: str | None, message: str) -> None:
    console.token_file.unlink()
    if content is not None:
        console.token_file.write_text(content)
    done = run(console, "--console", "--token-file", str(console.token_file))
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_no_byte_of_a_token_or_of_a_reason_is_left_out(console: Console) -> None:
    text = "".join(chr(code) for code in range(256) if chr(code) not in "\r\n")
    console.token_file.write_text(text + "\n", encoding="utf-8", newline="")
    client = Client(console.serve("--console-write"))
    for wrong in text[: text.index("\1")], text[:-1], text.replace("\0", ""), text.replace("\t", " "):
        assert client.ask("POST", "/console/login", {"token": wrong}).status == 403
    client.log_in(text)
    reason = text.replace("\0", "")
    assert client.ask("POST", "/console/api/pause", {**PLACE, "why": reason}).status == 200
    assert client.ask("POST", "/console/api/pause", {**PLACE, "why": text}).status == 400
    assert operations(console) == [("pause", "hook", reason)]
    assert client.ask("GET", "/console/api/place", {**PLACE, "name": "hook\0"}).status == 400


@pytest.mark.parametrize("option", [["--console-write"], ["--token-file", "/dev/null"]])
def test_options_of_the_console_need_it(console: Console, option: list[str]) -> None:
    done = run(console, *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--console-write and --token-file need --console" in done.stderr


def run(console: Console, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [console.program, "serve", "--listen", "127.0.0.1:0", *arguments, "-d", console.conninfo],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def test_pages_have_headers_that_protect_them(console: Console) -> None:
    client = console.client()
    for path in ("/console", "/console/console.js", "/console/api/overview", "/console/nothing"):
        headers = client.ask("GET", path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


# -------------------------------------------------------------------------------------------------
# Pages
# -------------------------------------------------------------------------------------------------


def test_the_overview_has_all_databases(console: Console) -> None:
    client = Client(console.serve(databases=("dbname=nowhere password=s3cret-of-the-console",))).log_in()
    first, second = client.get("overview")
    assert (first["id"], first["database"]) == ("0", console.database.name)
    assert {row["name"] for row in first["outbox"]} == {"catalog", "hook"}
    assert [row["name"] for row in first["inbox"]] == ["catalog"]
    assert (second["id"], second["database"]) == ("1", "nowhere")
    assert "standard error" in second["error"]
    assert "s3cret" not in json.dumps(second)


def test_with_all_every_database_of_the_server_has_a_page(console: Console) -> None:
    database = f"0:{console.database.name}"
    client = console.client("--all")
    assert database in {each["id"] for each in client.get("overview")}
    assert client.get("place", **{**PLACE, "database": database})["status"][0]["destination"] == "hook"


def test_the_journey_of_an_event_is_shown(console: Console) -> None:
    client, event_id = console.client(), console.enqueue()

    def states() -> set[tuple[str, str]]:
        (here,) = client.get("event", event_id=event_id)
        return {(row["destination"], row["state"]) for row in here["destinations"]} | {
            (row["consumer"], row["state"]) for row in here["consumers"]
        }

    seen = {("catalog", "PUBLISHED"), ("hook", "DEAD"), ("catalog", "APPLIED")}
    wait_until(states, lambda found: found == seen, what=f"{seen}")
    (here,) = client.get("event", event_id=event_id)
    assert here["event"][0]["aggregate_id"] == HOSTILE
    assert json.loads(here["event"][0]["payload"]) == {"note": HOSTILE}


def test_events_are_searched_in_all_databases(console: Console, new_database: NewDatabase) -> None:
    other = new_database()
    without = new_database(extension=False)
    served = console.serve(databases=(role_of_console(other), without.monitor()))
    client = Client(served).log_in()
    enqueue = "SELECT outbox.enqueue(%s, %s, %s, '{}'::jsonb, version => %s, topic => %s, ordering_key => %s)"
    made = [  # the latest first
        str(database.value(enqueue, words))
        for database, words in [
            (console.database, ("order", "1", "Placed", 1, "orders", "k")), (console.database, ("order", "2", "Placed", 2, "orders", "k")),
            (console.database, ("user", "x" * 1024, "Seen", 3, "users", "")), (other, ("order", "1", "Paid", 4, "orders", "k")),
        ]
    ]  # fmt: skip

    def found(**asked: str) -> list[list[str]]:
        here = client.get("find", **asked)
        assert [each["database"] for each in here] == [console.database.name, other.name, without.name]
        assert "events" not in here[2]
        return [[row["event_id"] for row in each["events"]] for each in here[:2]]

    first, second, third, elsewhere = made
    assert found() == [[third, second, first], [elsewhere]]
    assert found(topic="orders") == [[second, first], [elsewhere]]
    assert found(topic="orders", event_type="Paid") == [[], [elsewhere]]
    assert found(aggregate_type="order", aggregate_id="1") == [[first], [elsewhere]]
    assert found(ordering_key="k", event_type="Placed") == [[second, first], []]
    assert found(topic="' OR true") == [[], []]
    (user,) = client.get("find", topic="users")[0]["events"]
    assert (user["event_type"], user["version"], user["aggregate_id"]) == ("Seen", 3, "x" * 1000)
    assert "payload" not in user
    console.database.execute("SELECT outbox.enqueue('n', n::text, 'N', '{}'::jsonb) FROM generate_series(1, 120) AS n")
    assert len(found()[0]) == 100
    assert found(event_type="Seen") == [[third], []]


def test_a_request_that_comes_while_another_one_waits_for_a_database_is_refused(console: Console) -> None:
    """503, rather than a queue of them behind a database that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        url = console.serve(databases=(f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=silent",))
        client = Client(url).log_in()
        first = threads.submit(client.ask, "GET", "/console/api/overview")
        connection, _ = silent.accept()  # it waits for an answer now
        refused = client.ask("GET", "/console/api/place", PLACE)
        assert (refused.status, refused.json()["error"]) == (503, "another request is at work; try again")
        assert client.ask("GET", "/console/api/session").status == 200, "it needs no database"
        connection.close()
        answered = first.result().json()
    assert "hook" in json.dumps(answered[0]) and "standard error" in answered[1]["error"]
    assert client.ask("GET", "/console/api/place", PLACE).status == 200


@pytest.mark.long
def test_an_answer_over_the_limit_is_refused(console: Console) -> None:
    """8 MB: each database has a part of it."""
    payload = "\N{GRINNING FACE}" * 100_000
    event_id = console.database.value(
        "SELECT outbox.enqueue('order', '1', 'Placed', convert_to(%s, 'UTF8'), content_type => 'text/plain')",
        (payload,),
    )
    client = Client(console.serve(databases=(console.conninfo,) * 14)).log_in()
    whole = client.get("event", event_id=str(event_id))
    assert len(whole) == 15 and whole[14]["event"][0]["payload"] == payload
    client = Client(console.serve(databases=(console.conninfo,) * 24)).log_in()
    refused = client.ask("GET", "/console/api/event", {"event_id": str(event_id)})
    assert (refused.status, refused.json()["error"].splitlines()[0]) == (400, "ERROR:  the answer is larger than 8 MB")


def test_dead_letters_are_shown_with_their_payload_as_json_only(console: Console) -> None:
    client, event_id = console.client(), console.dead_letter()
    (row,) = client.get("place", **PLACE)["dead_letters"]
    assert (row["event_id"], row["aggregate_id"]) == (event_id, HOSTILE)
    assert "413" in row["error"]
    (whole,) = client.get("dead-letter", **PLACE, event_id=event_id)
    assert json.loads(whole["payload"]) == {"note": HOSTILE}
    assert HOSTILE not in client.ask("GET", "/console").text


def test_large_payloads_and_bytes_are_shown_in_part(console: Console) -> None:
    client, database = console.client(), console.database
    for payload, kind in ((b"x" * 300_000, "text/plain"), (b"\xff" * 5000, "application/octet-stream")):
        database.execute(
            "SELECT outbox.enqueue('order', '1', 'Placed', %s::bytea, content_type => %s, ordering_key => '')",
            (payload, kind),
        )
    wait_until(
        lambda: database.value("SELECT count(*) FROM outbox.dead_letter"), lambda n: n == 2, what="both to be given up"
    )
    ids = [row["event_id"] for row in client.get("place", **PLACE)["dead_letters"]]
    shown = {row["payload_bytes"]: row for id in ids for row in client.get("dead-letter", **PLACE, event_id=id)}
    assert shown[300_000]["payload"] == "x" * 100_000
    assert (shown[5000]["payload"], shown[5000]["payload_hex"]) == (None, "ff" * 1024)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("event", {"event_id": "nonsense"}),
        ("place", {**PLACE, "database": "7"}),
        ("place", {**PLACE, "database": "0:postgres"}),
        ("place", {**PLACE, "database": ""}),
        ("place", {**PLACE, "side": "pg_catalog"}),
        ("dead-letter", {**PLACE, "event_id": "' OR true"}),
    ],
)
def test_nonsense_is_refused(console: Console, name: str, parameters: dict[str, str]) -> None:
    refused = console.client().ask("GET", f"/console/api/{name}", parameters)
    assert refused.status == 400
    assert refused.json()["error"]


def test_a_role_that_monitors_sees_states_and_no_events(console: Console, shared_cluster: Cluster) -> None:
    event_id, role = console.dead_letter(), f"watcher_{console.database.name}"
    shared_cluster.execute(f"CREATE ROLE {role} LOGIN")
    try:
        console.database.execute(f"SELECT outbox.grant_monitor('{role}'), inbox.grant_monitor('{role}')")
        console.conninfo += f" user={role}"
        client = console.client("--console-write")
        (here,) = client.get("overview")
        assert {row["name"] for row in here["outbox"]} == {"catalog", "hook"}
        place = client.get("place", **PLACE)
        assert place["status"][0]["destination"] == "hook"
        assert "permission denied" in place["dead_letters"]["error"]
        refused = client.ask("POST", "/console/api/redrive", {**PLACE, "event_ids": event_id, "why": "try"})
        assert (refused.status, "permission denied" in refused.json()["error"]) == (400, True)
        # A side that the role may not see at all says so, and the other is shown.
        console.database.execute(f"SELECT inbox.revoke_monitor('{role}')")
        (here,) = client.get("overview")
        assert {row["name"] for row in here["outbox"]} == {"catalog", "hook"}
        assert "permission denied" in here["inbox"]["error"]
        for served in console.served:
            served.stop()
        console.served.clear()
    finally:
        console.database.execute(f"DROP OWNED BY {role}")
        shared_cluster.execute(f"DROP ROLE {role}")


# -------------------------------------------------------------------------------------------------
# Actions
# -------------------------------------------------------------------------------------------------


def operations(console: Console) -> list[tuple]:
    return console.database.execute("SELECT action, destination, why FROM outbox.operation ORDER BY id")


def test_a_console_that_is_read_only_changes_nothing(console: Console) -> None:
    refused = console.client().ask("POST", "/console/api/pause", {**PLACE, "why": "x"})
    assert refused.status == 403
    assert "--console-write" in refused.json()["error"]
    assert operations(console) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X_CSRF_Token": None},
        {"X_CSRF_Token": "0" * 64},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": None, "Sec_Fetch_Site": None},
    ],
)
def test_requests_of_foreign_pages_are_refused(console: Console, headers: dict[str, str | None]) -> None:
    client = console.client("--console-write")
    refused = client.ask("POST", "/console/api/pause", {**PLACE, "why": "x"}, **headers)
    assert (refused.status, operations(console)) == (403, [])
    if "X_CSRF_Token" not in headers:
        assert client.ask("POST", "/console/login", {"token": TOKEN}, **headers).status == 403


def test_the_token_of_another_session_is_refused(console: Console) -> None:
    client = console.client("--console-write")
    other = Client(client.url).log_in()
    refused = client.ask("POST", "/console/api/pause", {**PLACE, "why": "x"}, X_CSRF_Token=other.csrf_token)
    assert (refused.status, operations(console)) == (403, [])


def test_only_a_post_changes_something(console: Console) -> None:
    client = console.client("--console-write")
    assert client.ask("GET", "/console/api/pause", {**PLACE, "why": "x"}).status == 404
    assert operations(console) == []


@pytest.mark.parametrize("why", ["", "  ", "x" * 1001])
def test_a_change_needs_a_reason(console: Console, why: str) -> None:
    refused = console.client("--console-write").ask("POST", "/console/api/pause", {**PLACE, "why": why})
    assert refused.status == 400
    assert "reason" in refused.json()["error"]
    assert operations(console) == []


def test_a_request_that_is_too_large_is_refused(console: Console) -> None:
    client = console.client("--console-write")
    assert client.ask("POST", "/console/api/redrive", {**PLACE, "event_ids": "0" * 10_000, "why": "x"}).status == 413
    assert operations(console) == []


def test_a_destination_is_paused_and_resumed_with_a_reason(console: Console) -> None:
    client = console.client("--console-write")
    for action in ("pause", "resume"):
        assert client.ask("POST", f"/console/api/{action}", {**PLACE, "why": f"{action}: it's <b>"}).status == 200
    assert operations(console) == [("pause", "hook", "pause: it's <b>"), ("resume", "hook", "resume: it's <b>")]
    shown = client.get("place", **PLACE)["operations"]
    assert [(row["action"], row["why"]) for row in shown] == [
        ("resume", "resume: it's <b>"),
        ("pause", "pause: it's <b>"),
    ]


def test_dead_letters_are_redriven_and_discarded(console: Console, receiver: Receiver) -> None:
    client, event_id = console.client("--console-write"), console.dead_letter()
    refused = client.ask("POST", "/console/api/redrive", {**PLACE, "event_ids": "", "why": "all?"})
    assert (refused.status, operations(console)) == (400, [])
    done = client.ask("POST", "/console/api/discard", {**PLACE, "event_ids": event_id, "why": "test data"})
    assert done.json() == {"events": 1}
    other = console.dead_letter()
    receiver.forget_rules()
    done = client.ask("POST", "/console/api/redrive", {**PLACE, "event_ids": other, "why": "fixed"})
    assert done.json() == {"events": 1}
    wait_until(receiver.ids, lambda ids: ids[-1:] == [other], what="the event to be sent")
    assert operations(console) == [("discard", "hook", "test data"), ("redrive", "hook", "fixed")]


def test_a_dead_letter_of_a_consumer_is_redriven(console: Console) -> None:
    client, database = console.client("--console-write"), console.database
    database.execute("SELECT inbox.set_policy('catalog', max_attempts => 1)")
    database.execute(
        "CREATE OR REPLACE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''no <b>''; END'"
    )
    event_id = console.enqueue()
    place = {"database": "0", "side": "inbox", "name": "catalog"}
    wait_until(
        lambda: client.get("place", **place)["dead_letters"], lambda rows: len(rows) == 1, what="it to be given up"
    )
    (letter,) = client.get("dead-letter", **place, event_id=event_id)
    assert letter["error"] == "no <b>"
    database.execute("CREATE OR REPLACE FUNCTION handle(inbox.message) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
    done = client.ask("POST", "/console/api/redrive", {**place, "event_ids": event_id, "why": "handler fixed"})
    assert done.json() == {"events": 1}
    assert database.execute("SELECT operation, why FROM inbox.operation WHERE operation = 'redrive'") == [
        ("redrive", "handler fixed")
    ]
    refused = client.ask("POST", "/console/api/pause", {**place, "why": "x"})
    assert refused.status == 400


# -------------------------------------------------------------------------------------------------
# In a browser
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="NOT TESTED: python3-selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/chromium",
                     "--window-size=1400,1000", *(["--no-sandbox"] if os.getuid() == 0 else [])):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        service=Service("/usr/bin/chromedriver", log_path=str(tmp_path / "chromedriver.log")), options=options
    )
    yield driver
    driver.quit()


@pytest.mark.long
@pytest.mark.slow
def test_an_operator_finds_a_dead_letter_and_redrives_it(
    console: Console, receiver: Receiver, browser: Any, installation: Installation
) -> None:
    event_id, url = console.dead_letter(), console.serve("--console-write")
    screenshots = installation.build / "screenshots"
    screenshots.mkdir(exist_ok=True)

    def find(selector: str) -> Any:
        """The first element that is there; pages fill themselves."""
        found = wait_until(lambda: browser.find_elements("css selector", selector), what=f'"{selector}" to be shown')
        return found[0]

    def text() -> str:
        return find("main").text

    def shows(what: str) -> None:
        wait_until(text, lambda shown: what in shown, what=f'the page to have "{what}"')

    def picture(name: str) -> None:
        browser.save_screenshot(str(screenshots / f"console-{name}.png"))

    browser.get(url + "/console")
    find("#token").send_keys("wrong")
    find("form button").click()
    wait_until(lambda: find("[role=alert]").text, lambda shown: shown == "The token is wrong.", what="the refusal")
    find("#token").send_keys(TOKEN)
    find("form button").click()

    shows("hook")
    shows(console.database.name)
    find("svg.plot path[d^=M]")
    picture("overview")
    browser.execute_script("location.hash = document.querySelector('a[href$=hook]').hash")
    shows("Destination hook")
    shows(HOSTILE)
    picture("destination")

    browser.execute_script("location.hash = document.querySelector('a[href*=dead-letter]').hash")
    shows("Dead letter of hook")
    shows(HOSTILE.replace('"', '\\"'))
    assert browser.find_elements("css selector", "main script, main img") == []
    assert browser.title == "outboxctl"
    picture("dead-letter")

    receiver.forget_rules()
    find("button[data-action=redrive]").click()
    find("#why").send_keys("the receiver is fixed")
    find("#do").click()
    shows("not a dead letter")
    wait_until(receiver.ids, lambda ids: ids[-1:] == [event_id], what="the event to be sent")
    assert operations(console) == [("redrive", "hook", "the receiver is fixed")]

    # Long texts are cut in tables, and whole on the page of the event.
    console.database.execute(
        "SELECT outbox.enqueue('user', %s, 'Seen', '{}'::jsonb)", ("beginning " + HOSTILE + " word" * 160 + " end",)
    )
    find("header a[href='#/find']").click()
    find("input[name=event_type]").send_keys(" Seen ")
    find("form.search button").click()
    shows("user beginning " + HOSTILE)
    assert "…" in text() and " end" not in text()
    assert find("main td.text span").get_attribute("title").endswith(" end")
    assert find("input[name=event_type]").get_attribute("value") == "Seen"
    picture("search")
    find("main td.id a").click()
    shows(" end")
    assert browser.title == "outboxctl"
    browser.back()
    shows("…")
    find("input[name=event_type]").clear()
    find("form.search input[name=event_id]").send_keys(event_id)
    find("form.search button").click()
    shows("PUBLISHED")

    find("#find input").clear()
    find("#find input").send_keys(event_id)
    find("#find button").click()
    shows("PUBLISHED")
    shows("consumer catalog")
    shows(HOSTILE.replace('"', '\\"'))
    picture("event")
    assert browser.title == "outboxctl"

    find("#logout").click()
    find("#token")
    # The refusal of the wrong token is the only complaint.
    complaints = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("status of 403" in each for each in complaints if "favicon" not in each), complaints
