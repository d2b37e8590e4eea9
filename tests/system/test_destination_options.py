"""outbox.destination_options() and the tables of options in the docs, which are made from it.

To write the tables: OUTBOX_WRITE_DOCS=1 pytest tests/system/test_destination_options.py
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import psycopg
import pytest

from cluster import REPOSITORY
from database import Database

# The page of each sink. The options that all have are in destinations.md.
PAGES = {
    "http": "destinations/http.md",
    "postgresql": "destinations/postgresql.md",
    "kafka": "destinations/kafka.md",
    "mqtt": "destinations/mqtt.md",
    "nats": "destinations/nats.md",
    "rabbitmq": "destinations/rabbitmq.md",
    "redis": "destinations/redis.md",
    "pubsub": "destinations/pubsub.md",
    "sqs": "destinations/sqs.md",
    "sns": "destinations/sns.md",
    "kinesis": "destinations/kinesis.md",
    "eventbridge": "destinations/eventbridge.md",
    "pull": "destinations/pull.md",
    "endpoints": "destinations/endpoints.md",
}
EVERYWHERE = "destinations.md"
CREATE = "CREATE SERVER x FOREIGN DATA WRAPPER pg_outbox"
HEADS = {"server": "option", "user mapping": "user mapping", "URL": "URL parameter"}
BLOCK = re.compile(r"(<!-- options of ([a-z ]+): .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


class Option(NamedTuple):
    sink: str
    name: str
    set_in: str
    type: str
    unit: str | None
    range: str | None
    default: str | None
    description: str


def options_of(database: Database) -> dict[str, list[Option]]:
    """Returns the options by sink, in the order of their declarations."""
    sinks: dict[str, list[Option]] = {}
    for row in database.execute("SELECT * FROM outbox.destination_options()"):
        sinks.setdefault(row[0], []).append(Option(*row))
    return sinks


def code(text: str) -> str:
    return ", ".join(f"`{word}`" for word in text.split(", "))


def valid_values(option: Option) -> str:
    if option.type in ("choice", "switch"):
        return code(option.range or "")
    text = f"{option.range or ''} {option.unit or ''}" if option.type == "number" else option.range
    return (text or "").strip()


def table(options: list[Option], set_in: str) -> str:
    rows = [option for option in options if option.set_in == set_in]
    if not rows:
        return ""
    lines = [f"| {HEADS[set_in]} | default | valid |  |", "| -- | -- | -- | -- |"]
    for option in rows:
        default = code(option.default) if option.default else ""
        cells = [f"`{option.name}`", default, valid_values(option), option.description]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n" + "\n".join(lines) + "\n"


def tables(options: list[Option]) -> str:
    return "".join(table(options, set_in) for set_in in HEADS)


def pages(database: Database) -> dict[str, dict[str, str]]:
    """Returns the text between the marks, by page and by name of the mark."""
    sinks = options_of(database)
    common = [option for option in sinks["null"] if option.name != "url"]
    names = {option.name for option in sinks["null"]}
    found = {
        page: {sink: tables([option for option in sinks[sink] if option.name not in names])}
        for sink, page in PAGES.items()
    }
    return {**found, EVERYWHERE: {"all destinations": tables(common)}}


def test_the_tables_in_the_docs_are_those_of_the_code(database: Database) -> None:
    for page, blocks in pages(database).items():
        path = REPOSITORY / "docs" / page
        text = path.read_text()
        marked = [match[1] for match in BLOCK.findall(text)]
        assert marked == list(blocks), f"marks in {page}"
        written = BLOCK.sub(lambda match: match[1] + blocks[match[2]] + "\n" + match[3], text)
        if os.environ.get("OUTBOX_WRITE_DOCS"):
            path.write_text(written)
        assert path.read_text() == written, f"write {page} anew with OUTBOX_WRITE_DOCS=1"


def test_every_sink_has_a_page_and_the_options_of_all(database: Database) -> None:
    sinks = options_of(database)
    assert set(sinks) == {*PAGES, "null"}
    common = [option[1:] for option in sinks["null"] if option.name != "url"]
    for options in sinks.values():
        assert [option[1:] for option in options[1 : 1 + len(common)]] == common
        assert options[0].name == "url"


def test_defaults_that_are_settings_exist(database: Database) -> None:
    defaults = {
        option.default
        for options in options_of(database).values()
        for option in options
        if (option.default or "").startswith("outbox.")
    }
    assert len(defaults) >= 5
    settings = {name for (name,) in database.execute("SELECT name FROM pg_settings")}
    assert defaults <= settings


@pytest.mark.parametrize("set_in", ["server", "user mapping"])
def test_the_validator_lists_the_same_options(database: Database, set_in: str) -> None:
    """The hint of a misspelt option names exactly the options in the list."""
    urls = {
        "null": "null:",
        "http": "http://example.com/",
        "postgresql": "postgresql://example.com/db",
        "kafka": "kafka://example.com",
        "mqtt": "mqtt://example.com",
        "nats": "nats://example.com",
        "rabbitmq": "amqp://example.com",
        "redis": "redis://example.com",
        "pubsub": "pubsub://project",
        "sqs": "sqs://eu-west-1",
        "sns": "sns://eu-west-1/123456789012",
        "kinesis": "kinesis://eu-west-1",
        "eventbridge": "eventbridge://eu-west-1",
        "pull": "pull:",
        "endpoints": "endpoints:",
    }
    all_names = set()
    for sink, options in options_of(database).items():
        names = [option.name for option in options if option.set_in == set_in]
        all_names |= set(names)
        if set_in == "server":
            assert valid_options(database, f"{CREATE} OPTIONS (url '{urls[sink]}', y '')") == names
    if set_in == "user mapping":
        database.execute(f"{CREATE} OPTIONS (url 'null:')")
        listed = valid_options(database, "CREATE USER MAPPING FOR PUBLIC SERVER x OPTIONS (y '')")
        assert sorted(listed) == sorted(all_names)


def valid_options(database: Database, statement: str) -> list[str]:
    with pytest.raises(psycopg.Error, match='invalid option "y"') as refused:
        database.execute(statement)
    hint = refused.value.diag.message_hint or ""
    return hint.removeprefix("Valid options are: ").removesuffix(".").split(", ")
