"""What a server writes about secrets and payloads, and the settings of docs/security.md that end it."""

from __future__ import annotations

import pytest

from cluster import MakeCluster
from database import SENDER, create_database
from waiting import wait_until

pytestmark = pytest.mark.extension("the SQL edition has no user mappings")

LOGS_ALL = {"log_statement": "all", "log_min_duration_statement": "0"}
QUIET = (
    "log_statement = none", "log_min_duration_statement = -1", "log_min_error_statement = panic",
    "pg_stat_statements.track_utility = off",
)  # fmt: skip


def test_secrets_of_a_user_mapping(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        settings={**LOGS_ALL, "shared_preload_libraries": "$libdir/pg_outbox, $libdir/pg_stat_statements"}
    )
    database = create_database(cluster)
    database.execute("CREATE EXTENSION pg_stat_statements")
    database.execute("CREATE SERVER s FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://127.0.0.1:1/')")

    def is_seen(secret: str) -> tuple[bool, bool]:
        statements = [query for (query,) in database.execute("SELECT query FROM pg_stat_statements")]
        return f"'{secret}'" in cluster.log(), any(f"'{secret}'" in query for query in statements)

    database.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER s OPTIONS (token 'first')")
    assert is_seen("first") == (True, True)
    for setting in QUIET:
        database.execute(f"SET {setting}")
    database.execute("ALTER USER MAPPING FOR CURRENT_USER SERVER s OPTIONS (SET token 'second')")
    assert is_seen("second") == (False, False)


def test_payloads_at_a_receiver(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(settings=LOGS_ALL)
    database = create_database(cluster)
    database.execute("CREATE EXTENSION pg_inbox")
    database.add_destination("d", database.inbox_url())
    wait_until(
        lambda: database.execute("SELECT state FROM outbox.status"), lambda rows: rows == [("idle",)], what="idle"
    )

    def deliver(value: str) -> bool:
        """Returns whether the log has the payload, in the form in which it was sent."""
        began = len(cluster.log().encode())
        with database.connect() as session:
            session.execute("SET log_statement = none; SET log_min_duration_statement = -1")
            session.execute("SELECT outbox.enqueue('t', '1', 'T', %s::jsonb)", (f'{{"v": "{value}"}}',))
        database.wait_settled()
        return value.encode().hex() in cluster.log_since(began)

    assert deliver("clear-text")
    database.execute(f"ALTER ROLE {SENDER} SET log_parameter_max_length = 0")
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (SENDER,))
    assert not deliver("hidden-text")
