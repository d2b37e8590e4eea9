"""outbox.check_destination() against real destinations."""

from __future__ import annotations

import pytest

from .sink import Sink


def check(sink: Sink, topic: str) -> dict[str, tuple[bool, str]]:
    rows = sink.database.execute("SELECT * FROM outbox.check_destination('d', %s)", (topic,))
    return {subject: (ok, detail) for subject, ok, detail in rows}


@pytest.mark.other_servers
def test_what_is_there_is_found_and_what_is_not_is_missed(sink: Sink) -> None:
    sink.add_topic("item.events")
    sink.create()
    findings = check(sink, "item.events")
    assert all(ok for ok, _ in findings.values()), findings
    names = [name for name in findings if name.startswith(("topic ", "queue "))]
    if not names:  # one place for all topics
        return
    assert len(names) == 1
    missing = check(sink, "no.such.thing")
    (name,) = set(missing) - set(findings)
    assert not missing[name][0]
    assert any(word in missing[name][1].lower() for word in ("not found", "not_found", "not exist"))
    assert sink.messages() == []
