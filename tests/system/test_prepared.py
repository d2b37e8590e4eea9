"""Changes of the configuration that are made in prepared transactions."""

from __future__ import annotations

from cluster import MakeCluster
from database import Database, create_database
from receiver import Receiver
from waiting import wait_until


def prepare(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        connection.execute("PREPARE TRANSACTION 'p'")


def create_server(url: str) -> str:
    return f"CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url '{url}')"


def test_a_prepared_destination_gets_its_relay_when_it_is_committed(database: Database, receiver: Receiver) -> None:
    prepare(database, create_server(receiver.url()))
    database.execute("COMMIT PREPARED 'p'")
    database.wait_for_worker("relay", "d")
    ids = database.enqueue()
    wait_until(lambda: receiver.ids(), lambda seen: seen == ids, what="the event to arrive")


def test_a_prepared_change_is_heard_of_when_it_is_committed(database: Database, receiver: Receiver) -> None:
    database.add_destination("d", receiver.url("/before"))
    database.wait_for_worker("relay", "d")
    prepare(database, f"ALTER SERVER d OPTIONS (SET url '{receiver.url('/after')}')")
    database.execute("COMMIT PREPARED 'p'")
    wait_until(
        lambda: database.enqueue() and [request.target for request in receiver.requests],
        lambda paths: "/after" in paths, what="an event to go to the new url",
    )  # fmt: skip


def test_a_prepared_extension_gets_its_workers_when_it_is_committed(new_database: object, receiver: Receiver) -> None:
    database = new_database(extension=False)  # type: ignore[operator]
    prepare(database, "CREATE EXTENSION pg_outbox", create_server(receiver.url()))
    database.execute("COMMIT PREPARED 'p'")
    database.wait_for_worker("relay", "d")


def test_what_cannot_be_ended_is_not_forgotten(database: Database, receiver: Receiver) -> None:
    prepare(database, create_server(receiver.url()))
    database.execute("CREATE ROLE nobody_prepared")
    with database.connect() as connection:
        connection.execute("SET ROLE nobody_prepared")
        for statement in ("COMMIT PREPARED 'p'", "ROLLBACK PREPARED 'p'"):
            try:
                connection.execute(statement)
                raise AssertionError("it is not theirs")
            except Exception as error:
                assert "permission denied" in str(error)
    database.execute("DROP ROLE nobody_prepared")
    database.execute("COMMIT PREPARED 'p'")
    database.wait_for_worker("relay", "d")


def test_what_was_prepared_before_a_restart_is_found_by_the_poll(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"outbox.poll_max": "100ms", "outbox.poll_min": "100ms"})
    database = create_database(cluster)
    prepare(database, create_server("null:"))
    database.disconnect()
    cluster.restart()
    database.execute("COMMIT PREPARED 'p'")
    database.wait_for_worker("relay", "d")
