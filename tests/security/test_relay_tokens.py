"""What a role that may relay can do with destinations that another relay serves: their tokens are secrets."""

from __future__ import annotations

import json
import uuid

import pytest

from database import Database

from .attacker import NewRole

GUESSES = [*range(100), -1, 2**31 - 1, 2**63 - 1]
WRITE = (
    "SELECT outcome FROM outbox_internal.relay_begin(%(number)s, %(lease)s, NULL)",
    "SELECT outcome FROM outbox_internal.relay_follow(%(number)s, %(lease)s)",
    "SELECT outbox_internal.relay_pause(%(number)s, %(lease)s, 'guessed')",
    "SELECT outbox_internal.relay_save(%(number)s, %(lease)s, pg_current_snapshot()::text, NULL, 1, false, "
    "'{}', '{}', '{}', '{}', '{}', '{}', 0, 0, 0)",
    "SELECT outcome FROM outbox_internal.relay_recover(%(number)s, %(lease)s, NULL, '{}')",
)


REPORT = "SELECT outbox_internal.relay_report(%s, %s)"


class Relay:
    """A role that may relay, and writes for the destination `d` with tokens that it has or guesses."""

    def __init__(self, database: Database, role: str) -> None:
        database.execute(f"SELECT outbox.grant_relay('{role}')")
        self.id = uuid.uuid4()
        self.session = database.cluster.connect(database.name, role)
        self.session.execute(
            "SELECT FROM outbox_internal.relay_beat(%s, 'r', '1', '1 hour', true, '{}', '{}', '{}', '{}', false)",
            (self.id,),
        )
        self.number = database.value("SELECT number FROM outbox.cursor WHERE destination = 'd'")

    def take(self) -> int | None:
        row = self.session.execute(
            "SELECT lease FROM outbox_internal.relay_take(%s, %s, true)", (self.id, self.number)
        ).fetchone()
        assert row
        return row[0]

    def outcomes(self, lease: int) -> set[str]:
        values = {"number": self.number, "lease": lease}
        return {row[0] for statement in WRITE if (row := self.session.execute(statement, values).fetchone())}


@pytest.mark.worker
def test_a_relay_does_not_guess_the_token_of_a_worker(database: Database, new_role: NewRole) -> None:
    """It would settle events that were not delivered, and pause the destination."""
    database.add_destination("d", "null:")
    database.enqueue()
    database.wait_settled("d")
    relay = Relay(database, new_role())
    assert relay.take() is None
    for lease in GUESSES:
        assert relay.outcomes(lease) == {"lost"}, lease


@pytest.mark.extension
def test_a_relay_has_no_rights_on_a_destination_that_the_server_has_taken(
    database: Database, new_role: NewRole
) -> None:
    database.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', relay 'external')")
    relay = Relay(database, new_role())
    lease = relay.take()
    assert lease is not None and lease not in GUESSES
    database.execute("ALTER SERVER d OPTIONS (DROP relay)")
    database.enqueue()
    database.wait_settled("d")
    for guess in (lease, lease + 1, lease + 2):
        assert relay.outcomes(guess) == {"lost"}
    assert relay.take() is None
    relay.session.execute(
        REPORT, (relay.id, json.dumps([{"number": relay.number, "state": "stopped", "state_since": "now"}]))
    )
    assert database.status("d")["state"] != "stopped"
    assert database.value("SELECT count(*) FROM outbox.relay_status") == 0
