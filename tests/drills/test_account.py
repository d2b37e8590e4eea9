"""The account itself: it finds all errors, and no others."""

from __future__ import annotations

import pytest

from ledger import Entry

from .account import Account, Attempt, Kill, balance

LEDGER = [Entry(f"{key}{n}", key, n) for key in "ab" for n in (1, 2, 3)]
ALL = ["a1", "b1", "a2", "b2", "a3", "b3"]


def account_of(attempts: list[str], *kill_at: int, **given: set[str]) -> Account:
    """Attempts: an event id, or event id and status; each takes half a second, one begins every second.
    Kills: before which attempt."""
    made = []
    for second, text in enumerate(attempts):
        event_id, _, status = text.partition(" ")
        made.append(
            Attempt(event_id, event_id[0], int(event_id[1]), 0, float(second), second + 0.5,
                    int(status or 204))
        )  # fmt: skip
    return balance(
        LEDGER, made, dead=given.get("dead", set()), rolled_back=given.get("rolled_back", set()),
        max_attempts=2, kills=[Kill("kill", at - 0.3, at - 0.2) for at in kill_at], window=1.0, behind=0,
    )  # fmt: skip


def test_correct_accounts_pass() -> None:
    account_of(ALL).hold(restarts=0)
    account_of(["a1 400", *ALL]).hold(restarts=0)
    account_of(["a1", "b1", "a2", "a2", "b2", "a3", "b3"], 3).hold(restarts=1)
    account_of(["a1 413", *ALL[1:]], dead={"a1"}).hold(restarts=0)
    account_of(["a1 400", "a1 400", *ALL[1:]], dead={"a1"}).hold(restarts=0)
    account_of([*ALL, *ALL]).hold(restarts=0, repeats=True)


@pytest.mark.parametrize(
    "complaint, attempts, kills, given",
    [
        ("lost", ALL[:-1], [], {}),
        ("lost", [*ALL[:-1], "b3 413"], [], {}),
        ("lost", [*ALL[:-1], "b3 400"], [], {}),
        ("invented", [*ALL, "a9"], [], {}),
        ("invented", ALL, [], {"rolled_back": {"a1"}}),
        ("was not settled", ["a1", "a3", "a2", *ALL[1:]], [], {}),
        ("was not settled", ["a1 400", "a2", "a1", *ALL[1:]], [], {}),
        ("was not settled", ["a1 400", *ALL[1:]], [], {"dead": {"a1"}}),
        ("was not settled", ["a1 503", "a2", *ALL], [], {}),
        ("without a cause", ["a1", *ALL], [], {}),
        ("without a cause", ["a1", *ALL], [5], {}),
        ("steps back", [*ALL, "a2", "a1", "a3", "a2", "a1"], [6, 9], {}),
        ("repeats after a kill", [*ALL, *ALL], [6], {}),
    ],
)
def test_wrong_accounts_fail(complaint: str, attempts: list[str], kills: list[int], given: dict[str, set[str]]) -> None:
    with pytest.raises(AssertionError, match=complaint):
        account_of(attempts, *kills, **given).hold(restarts=1)
