"""That layout.py finds what it is for, and lets pass what is right."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import layout


class Tree(unittest.TestCase):
    def check(self, **files: str) -> list[str]:
        """Names are paths with "__" for a slash and no ending; all become headers."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name.replace("__", "/") + ".hpp")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return [str(violation) for violation in layout.check(Path(folder))]

    def includes(self, path: str, target: str, name: str) -> list[str]:
        return self.check(**{path: f'#include "{name}"\n', target: ""})

    def body(self, code: str) -> list[str]:
        return self.check(bgworker__a=f"namespace outbox {{\n\nvoid f() {{\n{code}\n}}\n\n}}\n")


class Scripts(unittest.TestCase):
    def test_are_ascii(self) -> None:
        text = "-- a \u2026\nSELECT 1;\n"
        (violation,) = layout.check_script("sql/a.sql", text)
        self.assertEqual(str(violation), "sql/a.sql:1: SQL is not ASCII")
        self.assertEqual(list(layout.check_script("sql/a.sql", "SELECT '...';\n")), [])


class Sessions(Tree):
    def test_begin_in_one_place(self) -> None:
        (violation,) = self.check(tools__a='// PQconnectdb(x);\nPGconn* c = PQconnectdb("");\nPQconnectPoll(c);\n')
        self.assertEqual(violation, "tools/a.hpp:2: PQconnectdb() begins a session that has not our settings")
        self.assertEqual(self.check(lib__core__libpq_limits="PGconn* c = PQconnectStartParams(a, b, 0);\n"), [])
        (violation,) = self.check(
            bgworker__a="void f() {\n    BackgroundWorkerInitializeConnectionByOid(d, r, 0);\n}\n"
        )
        self.assertIn("bgworker/a.hpp:2: ", violation)


class Includes(Tree):
    def test_down_is_right(self) -> None:
        self.assertEqual(self.includes("lib__sinks__http__a", "lib__net__b", "net/b.hpp"), [])
        self.assertEqual(self.includes("lib__sinks__http__a", "lib__sinks__b", "sinks/b.hpp"), [])
        self.assertEqual(self.includes("bgworker__relay__a", "extension__log__b", "extension/log/b.hpp"), [])
        self.assertEqual(self.includes("extension__log__a", "extension__base__b", "extension/base/b.hpp"), [])
        self.assertEqual(self.includes("client__sources__sqs__a", "lib__cloud__aws__b", "cloud/aws/b.hpp"), [])
        self.assertEqual(self.includes("client__src__a", "client__src__b", "b.hpp"), [])

    def test_up_is_wrong(self) -> None:
        for path, target, name in (
            ("lib__core__a", "lib__net__b", "net/b.hpp"),
            ("lib__net__a", "lib__cloud__aws__b", "cloud/aws/b.hpp"),
            ("lib__cloud__aws__a", "lib__sinks__b", "sinks/b.hpp"),
            ("lib__core__a", "extension__base__b", "extension/base/b.hpp"),
            ("lib__sinks__a", "bgworker__b", "bgworker/b.hpp"),
            ("lib__core__a", "client__src__b", "../../client/src/b.hpp"),
            ("extension__base__a", "bgworker__b", "bgworker/b.hpp"),
            ("extension__base__a", "extension__log__b", "extension/log/b.hpp"),
            ("bgworker__base__a", "bgworker__relay__b", "bgworker/relay/b.hpp"),
            ("client__src__a", "lib__sinks__b", "sinks/b.hpp"),
            ("client__src__a", "extension__base__b", "extension/base/b.hpp"),
            ("tools__outboxctl__a", "bgworker__b", "bgworker/b.hpp"),
            ("relay__serve__a", "extension__base__b", "extension/base/b.hpp"),
            ("relay__database__a", "relay__serve__b", "relay/serve/b.hpp"),
            ("relay__configure__a", "relay__observe__b", "relay/observe/b.hpp"),
            ("relay__observe__a", "lib__sinks__b", "sinks/b.hpp"),
            ("lib__sinks__http__a", "lib__sinks__aws__b", "sinks/aws/b.hpp"),
            ("lib__cloud__aws__a", "lib__cloud__google__b", "cloud/google/b.hpp"),
        ):
            with self.subTest(path=path, target=target):
                (violation,) = self.includes(path, target, name)
                self.assertIn(":1: may not include", violation)

    def test_an_include_is_found_from_one_of_the_roots(self) -> None:
        (violation,) = self.check(lib__core__a='#include "gone.hpp"\n')
        self.assertIn("cannot find", violation)

    def test_headers_of_the_server(self) -> None:
        for include in ('"postgres.h"', "<postgres.h>", '"utils/builtins.h"', "<server/fmgr.h>"):
            for path in ("lib__core__a", "client__src__a", "tools__a", "extension__log__a"):
                with self.subTest(path=path, include=include):
                    (violation,) = self.check(**{path: f"#include {include}\n"})
                    self.assertIn("header of the server", violation)
        self.assertEqual(self.check(extension__base__pg='#include "postgres.h"\n'), [])
        self.assertEqual(self.check(lib__net__a="#include <curl/curl.h>\n#include <sys/epoll.h>\n"), [])


class Owners(Tree):
    def test_are_found(self) -> None:
        for code in (
            "std::string name;",
            "const std::string name = other();",
            "std::vector<std::pair<int, std::string>> pairs{1, 2};",
            "if (std::optional<std::string> found = find())",
            "for (const std::string& text : texts) { std::string copy(text); }",
            "outbox::Result<Destination> made = make();",
            "Snapshot done;",
        ):
            with self.subTest(code=code):
                (violation,) = self.body(code)
                self.assertIn(":4: f() holds an object with a destructor", violation)

    def test_are_found_among_parameters(self) -> None:
        (violation,) = self.check(extension__a="static void f(int a, std::string b) {}\n")
        self.assertIn("f() holds", violation)
        (violation,) = self.check(extension__a="struct A { void f(std::vector<int> b) { g(); } };\n")
        self.assertIn("f() holds", violation)

    def test_what_owns_nothing_is_right(self) -> None:
        self.assertEqual(
            self.body("std::string_view a = b; const std::string& c = d(); std::optional<bool> e;"),
            [],
        )
        self.assertEqual(
            self.body("static std::string kept; ::Snapshot s = GetActiveSnapshot(); Url* url = g();"),
            [],
        )
        self.assertEqual(self.body('// std::string a;\nlog("std::string b;");'), [])

    def test_members_are_right(self) -> None:
        self.assertEqual(
            self.check(bgworker__a="struct A {\n    std::string name;\n    Backoff b{1, f()};\n};\n"),
            [],
        )

    def test_inside_call_core_is_right(self) -> None:
        self.assertEqual(self.body("call_core([&] { std::string a; if (a.empty()) { std::string b; } });"), [])
        (violation,) = self.body("call_core([&] { std::string a; });\nstd::string b;")
        self.assertIn(":5:", violation)

    def test_an_exception_is_only_called_inside_call_core(self) -> None:
        layout.EXCEPTIONS["bgworker/a.hpp"] = {"make": layout.INSIDE}
        self.addCleanup(layout.EXCEPTIONS.pop, "bgworker/a.hpp")
        make = "static std::string make() {\n    std::string a;\n    return a;\n}\n"
        self.assertEqual(
            self.check(bgworker__a=make + "void f() {\n    call_core([] { use(make()); });\n}\n"),
            [],
        )
        (violation,) = self.check(bgworker__a=make + "void f() {\n    use(make());\n}\n")
        self.assertIn("bgworker/a.hpp:6: make() is called outside of call_core()", violation)
        (violation,) = self.check(bgworker__a="void other() {}\n")
        self.assertIn("there is no make()", violation)


if __name__ == "__main__":
    unittest.main()
