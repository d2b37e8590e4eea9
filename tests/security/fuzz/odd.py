"""Odd values of SQL types, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

NAMES = [
    "d", "p", "secret_pull", "mine", "theirs", "default", "postgres", "victim", "mallory", "nobody", "", " ",
    "it''s", 'a"b', '"', "x' OR 'a'='a", "$1", "%s", "%I", "\\", "a.b", "*", "t.*", "t.*, !t.a", ",", "ä", "日本",
    "\U0001f600", "a\tb\nc", "-", "null", "pg_temp", "pg_catalog", "public", "id", "v", "n", "version", "{", "}", "{}",
    "{id}", "{id,id}", "exclude", "include", "full", "changed", "diff", "key", "old", "origin", "always", "replica",
    "tutorial", "cqrs", "debezium", "seed", "seed_jsonb", "produce", "capture", "operate", "fetch", "monitor", "send",
    "read", "consume", "application/json", "application/json ", "text/plain", "redrive", "all", "now", "infinity", "true",
]  # fmt: skip
# Conditions, templates and similar: text that some function runs as code.
CODE = [
    "true", "false", "NULL", "id > 0", "v IS NOT NULL", "1/0 = 1", "(SELECT true)", "EXISTS (SELECT FROM pg_class)", "t", "t.*",
    "OLD.id = NEW.id", "NEW", "id = ANY ('{1,2}')", "count(*) > 0", "row_number() OVER () > 1", "$1", "ctid IS NOT NULL",
    "tableoid > 0", "true; DROP TABLE t", "true) OR (true", "true --", "/*", "'", "now() > 'epoch'", "random() < 0.5",
    "generate_series(1,2) > 0", "nextval('s') > 0", "v ~ '(((a+)+)+)$'", "repeat('x', 1000000) = v", "mallory.f(id)", "mallory.g(t)",
]  # fmt: skip
KNOWN_IDS = [f"00000000-0000-7000-8000-00000000000{n}" for n in range(6)]
IDS = [*KNOWN_IDS, "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"]

INTEGERS = ["0", "1", "-1", "2", "3", "5", "100", "1000000"]
JSON = [
    "null", "1", "-0", "1e999999", "1e-999999", '""', '"x"', "[]", "{}", "[[[[]]]]", "true", '{"id": 1}', '{"id": null}',
    '{"a": {"b": [1, 2, {"c": null}]}}', '{"id": 1, "v": "x", "version": 9223372036854775807}', '{"": ""}', '{"a": 1, "a": 2}',
    '{"ce_id": "x"}', '{"content-type": "x"}', '{"h\\r\\nx": "y"}', '{"h": "a\\r\\nb"}', '[{"id": 1}]', '{"id": {"x": 1}}',
]  # fmt: skip
INVALID = ["", "{", "nonsense", "\\", "'", "{{}", "{1", "((", "'x'", "0x", "1.5.5", "ÿ"]
TIMES = ["infinity", "-infinity", "epoch", "now", "294276-12-31 23:59:59.999999+00", "4713-01-01 00:00:00+00 BC", "2024-02-29 00:00:00+14"]  # fmt: skip
INTERVALS = [
    "0", "1 microsecond", "-1 microsecond", "1 second", "1 day", "-1 day", "178000000 years", "-178000000 years",
    "1 mon -30 days", "2147483647 days", "25:61:61", "9223372036854 seconds",
]  # fmt: skip
FLOATS = ["0", "-0", "1", "-1", "NaN", "Infinity", "-Infinity", "1e308", "1e-308", "5e-324"]
RELATIONS = [
    "pg_catalog.pg_class", "pg_catalog.pg_proc", "pg_catalog.pg_stat_activity", "pg_catalog.pg_class_oid_index",
    "information_schema.tables", "outbox.event", "outbox.event_0", "outbox.captured", "outbox.cursor", "outbox.status",
    "outbox.ring", "inbox.message", "inbox.consumer", "inbox.processed", "outbox.event_position", "pg_toast.pg_toast_1255",
]  # fmt: skip
REGTYPES = {"regclass", "regproc", "regprocedure", "regrole", "regtype", "regnamespace", "regoper", "regconfig"}


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'" if "\\" not in text else "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"  # fmt: skip


def huge(dice: Random) -> int:
    return dice.choice([1_000, 10_000, 70_000, 300_000, 1_000_000, 10_000_000])


class Odd:
    """Makes expressions. `relations` and `functions` are names for regclass and regproc."""

    def __init__(
        self,
        dice: Random,
        relations: Sequence[str] = (),
        functions: Sequence[str] = (),
        composites: dict[str, list[str]] | None = None,
        domains: dict[str, str] | None = None,
    ) -> None:
        self.dice = dice
        self.relations = [*relations, *relations, *RELATIONS]
        self.functions = [*functions, "pg_catalog.now", "pg_catalog.pg_sleep", "outbox.enqueue", "inbox.claim", "-"]
        self.composites = composites or {}  # type: the types of its fields
        self.domains = domains or {}  # domain: its base
        self.makers: dict[str, Callable[[], str]] = {
            "text": self.text, "name": self.name, "bytea": self.bytea, "boolean": lambda: self.pick(["true", "false"]),
            "smallint": lambda: self.integer(15), "integer": lambda: self.integer(31), "bigint": lambda: self.integer(63),
            "double precision": lambda: quoted(self.pick(FLOATS)), "real": lambda: quoted(self.pick(FLOATS[:7])),
            "numeric": lambda: quoted(self.pick(["NaN", "Infinity", "1e1000", "-1e-1000", "0"])),
            "json": self.json, "jsonb": self.json, "uuid": lambda: quoted(self.pick(IDS)),
            "timestamp with time zone": lambda: quoted(self.pick(TIMES)),
            "timestamp without time zone": lambda: quoted(self.pick(TIMES)), "date": lambda: quoted(self.pick(TIMES[:4])),
            "interval": lambda: quoted(self.pick(INTERVALS)), "oid": self.oid, "xid8": self.unsigned, "xid": self.oid,
            "pg_snapshot": lambda: quoted(self.pick(
                ["1:1:", "1:10:2,3", "3:9223372036854775807:", "18446744073709551615:18446744073709551615:", "5:4:", "10:20:10,11,19"])),
            "regclass": self.regclass, "regproc": lambda: quoted(self.pick(self.functions)),
            "regrole": lambda: quoted(self.pick(["mallory", "victim", "postgres", "pg_monitor", "-", "0", "999999"])),
            '"char"': lambda: quoted(self.pick(["", "a", "\xff"])), "inet": lambda: quoted(self.pick(["0.0.0.0", "::1/0"])),
            "point": lambda: "'(Infinity,NaN)'", "int4range": lambda: quoted(self.pick(["empty", "(,)", "[1,1]"])),
            "bit varying": lambda: quoted(self.pick(["", "101"])), "money": lambda: "'92233720368547758.07'",
            "time without time zone": lambda: "'24:00'", "tsvector": lambda: "'a:1 b'", "xml": lambda: "'<a/>'",
        }  # fmt: skip

    def pick(self, options: Sequence[str]) -> str:
        return self.dice.choice(options)

    def value(self, kind: str) -> str:
        """Returns an expression of a type, also NULL, and now and then one of another type."""
        roll = self.dice.random()
        if roll < 0.1:
            return f"NULL::{kind}"
        if roll < 0.12 and "any" not in kind and kind not in ("internal", "trigger", "record", "cstring"):
            return f"{quoted(self.pick(INVALID))}::{kind}"
        if kind.endswith("[]"):
            return self.array(kind[:-2])
        if kind in self.domains:
            return f"{self.value(self.domains[kind])}::{kind}"
        if kind in self.composites:
            return self.composite(kind)
        if kind in ("anycompatible", "anyelement", "anynonarray"):
            return self.value(self.pick(["integer", "bigint", "text", "timestamp with time zone", "jsonb", "uuid"]))
        if kind in self.makers:
            return f"{self.makers[kind]()}::{kind}"
        return f"NULL::{kind}"

    def sane(self, kind: str, name: str) -> str | None:
        """Returns a plausible value by the name of the parameter."""
        known = {
            "destination": "'d'", "consumer": "'mine'", "event_id": quoted(self.pick(KNOWN_IDS)), "table": "'mallory.t'::regclass",
            "condition": quoted(self.pick(CODE)), "topic": "'t.a'", "lease_time": "'1 minute'", "event_type": "'*'",
            "handler": "'mallory.handler'", "timeout": "'1 millisecond'", "version": "'1'", "batch": "1", "part": "'mallory.t'::regclass",
            "key": """'{"id": 1}'""" if kind == "jsonb" else "'{1}'", "key_columns": "'{id}'", "columns": "'{id}'", "after": "'{0}'",
            "projection": "'mallory.t'::regclass", "version_column": "'version'", "role": "'mallory'", "caller": "CURRENT_USER",
            "row": """'{"id": 1, "v": "x", "n": 1, "version": 5}'""", "payload": "'{}'", "aggregate_id": "'1'", "aggregate_type": "'a'",
        }  # fmt: skip
        expression = known.get(name)
        if expression is None or ("[]" in kind and not expression.startswith("'{")):
            return None
        return f"{expression}::{kind}" if "any" not in kind else "1"

    def array(self, element: str) -> str:
        roll = self.dice.random()
        if element in self.composites or element in self.domains or "any" in element:
            items = ", ".join(self.value(element) for _ in range(self.dice.choice([0, 1, 1, 2, 5])))
            return f"ARRAY[{items}]::{element}[]"
        if roll < 0.1:
            return f"'{{}}'::{element}[]"
        if roll < 0.2:
            return f"array_fill({self.value(element)}, ARRAY[2, 1, 3], ARRAY[-1, 0, 7])"
        if roll < 0.25:
            return f"array_fill({self.value(element)}, ARRAY[{self.dice.choice([1000, 20000])}])"
        if roll < 0.3:
            return f"ARRAY[[NULL, {self.value(element)}], [{self.value(element)}, NULL]]::{element}[]"
        items = ", ".join(self.value(element) for _ in range(self.dice.choice([1, 1, 2, 3, 8])))
        return f"ARRAY[{items}]::{element}[]"

    def composite(self, kind: str) -> str:
        roll = self.dice.random()
        if roll < 0.15:
            return f"jsonb_populate_record(NULL::{kind}, '{{}}')"
        if roll < 0.35:
            return f"(SELECT x FROM {kind} AS x LIMIT 1)"
        fields = ", ".join(self.value(field) for field in self.composites[kind])
        return f"ROW({fields})::{kind}"

    def text(self) -> str:
        roll = self.dice.random()
        if roll < 0.08:
            return f"repeat({quoted(self.pick(['x', 'ä', ',', '{', '*', '%', chr(34)]))}, {huge(self.dice)})"
        if roll < 0.25:
            return quoted(self.pick(CODE))
        if roll < 0.3:
            return quoted(self.pick(JSON))
        return quoted(self.pick(NAMES))

    def name(self) -> str:
        return "repeat('n', 63)" if self.dice.random() < 0.05 else quoted(self.pick(NAMES))

    def bytea(self) -> str:
        roll = self.dice.random()
        if roll < 0.1:
            return f"convert_to(repeat('x', {huge(self.dice)}), 'UTF8')"
        if roll < 0.4:
            return "'\\x" + self.dice.randbytes(self.dice.choice([0, 1, 7, 100])).hex() + "'"
        return f"convert_to({quoted(self.pick(JSON))}, 'UTF8')"

    def integer(self, bits: int) -> str:
        limits = [
            str(2**bits - 1),
            f"(-{2**bits - 1} - 1)",
            str(2 ** (bits // 2)),
            str(self.dice.getrandbits(bits - 1)),
        ]
        return f"({self.pick([*INTEGERS, *limits] if bits > 20 else [*INTEGERS[:7], *limits])})"

    def unsigned(self) -> str:
        return quoted(self.pick(["0", "1", "3", "700", "18446744073709551615", "9223372036854775808"]))

    def oid(self) -> str:
        return self.pick(["0", "1", "1259", "4294967295", "(SELECT oid FROM pg_class WHERE relname = 't' LIMIT 1)",
                          "(SELECT oid FROM pg_foreign_server LIMIT 1)"])  # fmt: skip

    def json(self) -> str:
        roll = self.dice.random()
        if roll < 0.05:
            return "(repeat('[', 5000) || repeat(']', 5000))"
        if roll < 0.1:
            return f"jsonb_build_object('h', repeat('x', {huge(self.dice)}))::text"
        return quoted(self.pick(JSON))

    def regclass(self) -> str:
        return self.pick(["0", "4294967295"]) if self.dice.random() < 0.05 else quoted(self.pick(self.relations))
