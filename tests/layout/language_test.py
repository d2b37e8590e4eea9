"""language.py finds the sentences of its patterns, in all kinds of files, and passes good ones."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import language


class Patterns(unittest.TestCase):
    def hit(self, text: str) -> str | None:
        return language.Sentence("a", 1, text).hit()

    def test_are_found(self) -> None:
        for pattern, text in (
            ("noun clause", "What a round came to."),
            ("noun clause", "Who may fetch from pull destinations."),
            ("noun clause", "Whether an expression is evaluated for each event."),
            ("noun clause", "That a relay finds all events."),
            ("noun clause", "It starts over: what was in flight is sent again."),
            ("object in front", "Of each held key only the first row has a time."),
            ("object in front", "Settled are the events of all transactions."),
            ("object in front", "These options the sink reads at its start."),
            ("noun clause", "Whether a topic may be used, a broker tells only later."),
            ("person", "Whoever waits for a lock gives up before he looks for a deadlock."),
            ("person", "The relay who has the lease saves the cursor."),
            ("no measure", "After so many failed attempts an event becomes a dead letter."),
            ("is no", "A killed process is no power failure."),
            ("is no", "The owner of the row is none."),
            ("is no", "There is none for now."),
            ("colon as a verb", "Returns the next event; nullptr: the queue is empty."),
            ("colon as a verb", "-1: no timeout."),
            ("calque", "It belongs into the user mapping."),
            ("calque", "A thread sends what there is once a second."),
            ("double negation", "Nothing that is not committed arrives."),
        ):
            with self.subTest(text=text):
                self.assertEqual(self.hit(text), pattern)

    def test_good_sentences_pass(self) -> None:
        for text in (
            "Result of one round.",
            "What can go wrong?",
            "what() has the server's message.",
            "Returns -1 if there is none.",
            "There is no limit while a lane accepts all requests.",
            "A relay is no longer woken.",
            "It fails so often that its lane is down.",
            "A user who has the right may fetch.",
            "Of the two, the later one has more transactions.",
            "This lets the relay go on.",
            "Whether it is a table or a view, its owner must have the right.",
            "True if an expression is evaluated for each event.",
        ):
            with self.subTest(text=text):
                self.assertIsNone(self.hit(text))


class Files(unittest.TestCase):
    def read(self, name: str, text: str) -> list[tuple[int, str]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_text(text)
            return [(sentence.line, sentence.text) for sentence in language.sentences(path, name)]

    def test_comments_of_cpp(self) -> None:
        code = 'int a;  // the first one\n// One sentence\n// of two lines. Another one.\nf("http://a b c");\n'
        self.assertEqual(
            self.read("a.cpp", code),
            [(1, "the first one"), (2, "One sentence of two lines."), (3, "Another one.")],
        )

    def test_comments_and_docstrings_of_python(self) -> None:
        code = '"""A module\n\nwith two paragraphs."""\nx = """no docstring at all"""\ndef f():\n    """Does it."""\n# A comment.\n'
        self.assertEqual(
            sorted(self.read("a.py", code)),
            [(1, "A module"), (3, "with two paragraphs."), (6, "Does it."), (7, "A comment.")],
        )

    def test_comments_of_sql(self) -> None:
        code = "-- A function.\nSELECT 1; -- the only row\nCOMMENT ON FUNCTION f() IS\n    'returns it''s row';\n"
        self.assertEqual(
            self.read("a.sql", code),
            [(1, "A function."), (2, "the only row"), (4, "returns it''s row")],
        )

    def test_markdown_without_code_and_tables(self) -> None:
        text = "# A title\n\nOne sentence. Two\nlines.\n\n* an item\n* another item\n\n```sql\nSELECT of all\n```\n\n| a cell | b |\n"
        self.assertEqual(
            self.read("a.md", text),
            [(1, "A title"), (3, "One sentence."), (3, "Two lines."), (6, "an item"), (7, "another item")],
        )


class Rooms(unittest.TestCase):
    def run_with(self, limits: dict[str, int], *arguments: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            for path, count in (("lib/sinks/http/a.hpp", 1), ("lib/sinks/b.hpp", 0), ("docs/c.md", 2)):
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                mark = "" if path.endswith(".md") else "// "
                sentences = ["What it does."] * count + ["It does it."] * (20 - count)
                file.write_text("".join(f"{mark}{sentence}\n{mark.strip()}\n" for sentence in sentences))
            said = io.StringIO()
            with (
                mock.patch.object(language, "LIMIT", 6),
                mock.patch.object(language, "LIMITS", limits),
                mock.patch.object(sys, "argv", ["language.py", *arguments, folder]),
                contextlib.redirect_stdout(said),
            ):
                return language.main(), said.getvalue()

    def test_are_counted(self) -> None:
        status, said = self.run_with({})
        self.assertEqual(status, 0)
        self.assertEqual(
            [line.split()[:4] for line in said.splitlines()],
            [
                ["docs", "20", "sentences", "2"],
                ["lib/sinks", "20", "sentences", "0"],
                ["lib/sinks/http", "20", "sentences", "1"],
            ],
        )

    def test_above_a_limit_fail_the_check(self) -> None:
        status, said = self.run_with({"docs": 5})
        self.assertEqual(status, 1)
        self.assertIn("above the limit, see --list: docs\n", said)

    def test_hits_are_listed(self) -> None:
        _, said = self.run_with({}, "--list", "lib/sinks")
        self.assertEqual(said, "lib/sinks/http/a.hpp:1: [noun clause] What it does.\n")


if __name__ == "__main__":
    unittest.main()
