"""The server runs handlers only as a role that has confirmed them, whatever the tables contain."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import errors, sql

from cluster import as_server_user
from database import Database, NewDatabase
from waiting import stays, wait_until

from .attacker import Attacker, NewAttacker, NewRole
from .test_inbox_identity import EVENT, RECEIVE

HANDLER = """
    CREATE TABLE applied (event_id uuid, who name);
    GRANT ALL ON applied TO PUBLIC;
    CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO {schema}.applied VALUES (m.event_id, current_user); END $$;
    GRANT USAGE ON SCHEMA {schema} TO PUBLIC"""


@pytest.fixture
def owner(new_database: NewDatabase, new_role: NewRole) -> Iterator[Attacker]:
    """The owner of a database and its inbox, with a handler that records the role it runs as."""
    database = new_database(extension=False)
    owner = Attacker(database, new_role())
    database.execute(
        sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database.name), sql.Identifier(owner.role))
    )
    owner.execute("CREATE EXTENSION pg_inbox")
    owner.execute(HANDLER.format(schema=owner.role))
    yield owner


def forge(owner: Attacker, role: str = "postgres", name: str = "pwn") -> None:
    """Inserts all rows that would make the handler run as `role`, and a message."""
    owner.execute(f"""
        INSERT INTO inbox.consumer (name, role, subscriptions) VALUES ('{name}', '{role}', 1) ON CONFLICT DO NOTHING;
        UPDATE inbox.consumer SET subscriptions = 1;
        INSERT INTO inbox.subscription (consumer_id, event_type, handler)
          SELECT id, '*', '{owner.role}.handler' FROM inbox.consumer ON CONFLICT DO NOTHING;
        INSERT INTO inbox.message (consumer_id, event_id, occurred_at, topic, aggregate_type, aggregate_id, event_type)
          SELECT id, gen_random_uuid(), now(), 't', 'a', '1', 'X' FROM inbox.consumer""")


def processor(database: Database, consumer: str) -> object:
    """Returns the pid of its processor from pg_stat_activity, because these databases have no pg_outbox."""
    return database.value("SELECT pid FROM inbox.status WHERE consumer = %s", (consumer,))


def wait_for_processor(database: Database, consumer: str) -> None:
    wait_until(lambda: processor(database, consumer), what=f"a processor of {consumer}")


def wake(database: Database) -> None:
    database.execute("SELECT inbox_internal.wake('subscriptions')")


def keeper_has_looked(database: Database) -> None:
    """Returns when the keeper has seen all commits, which a new processor shows."""
    database.execute("""
        CREATE SCHEMA IF NOT EXISTS looked;
        CREATE OR REPLACE FUNCTION looked.nothing(m inbox.message) RETURNS void LANGUAGE sql AS ''""")
    database.execute("SELECT inbox.subscribe('looked', '*', 'looked.nothing')")
    wait_for_processor(database, "looked")


def applied(database: Database, owner: Attacker) -> list[tuple]:
    return database.execute(f"SELECT DISTINCT who FROM {owner.role}.applied")


def assert_nothing_runs(database: Database, owner: Attacker, consumer: str = "pwn") -> None:
    wake(database)
    keeper_has_looked(database)
    assert database.value("SELECT state FROM inbox.status WHERE consumer = %s", (consumer,)) == "not confirmed"
    assert applied(database, owner) == []
    assert ("not confirmed",) in database.execute(
        "SELECT what FROM inbox.health() WHERE object = %s", (f'consumer "{consumer}"',)
    )


def dump_and_restore(database: Database, into: Database) -> None:
    cluster = database.cluster
    directory = cluster.directory
    where = ["-h", str(directory), "-p", str(cluster.port), "-U", "postgres"]
    programs = cluster.installation.bin_directory
    dump = subprocess.run(
        as_server_user([str(programs / "pg_dump"), *where, "-Fc", database.name]),
        cwd="/",
        check=True,
        stdout=subprocess.PIPE,
    )
    subprocess.run(as_server_user([str(programs / "pg_restore"), *where, "-d", into.name]), cwd="/", input=dump.stdout)


def test_a_restored_row_does_not_run_as_a_superuser(owner: Attacker, new_database: NewDatabase) -> None:
    """S4"""
    forge(owner)
    restored = new_database(extension=False)
    restored.execute("CREATE EXTENSION pg_inbox")  # otherwise it would be in a schema of the owner, and be refused
    dump_and_restore(owner.database, restored)
    assert restored.value("SELECT role FROM inbox.consumer") == "postgres"
    assert_nothing_runs(restored, owner)


def test_tables_reassigned_to_a_superuser_run_nothing_as_superuser(owner: Attacker) -> None:
    """S4"""
    forge(owner)
    owner.database.execute(f"REASSIGN OWNED BY {owner.role} TO postgres")
    assert_nothing_runs(owner.database, owner)


def test_a_row_beside_confirmed_ones_is_not_run(owner: Attacker) -> None:
    """S4: a superuser has a consumer of its own in that database."""
    database = owner.database
    database.execute("""
        CREATE FUNCTION nothing(m inbox.message) RETURNS void LANGUAGE sql AS '';
        SELECT inbox.subscribe('pwn', 'Y*', 'nothing')""")
    forge(owner)
    database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA inbox TO {owner.role}")
    database.execute(f"REASSIGN OWNED BY {owner.role} TO postgres")
    assert_nothing_runs(database, owner)
    # The same for a row that is inserted while the processor works.
    database.execute("DELETE FROM inbox.subscription WHERE handler <> 'public.nothing'")
    database.execute("DELETE FROM inbox.message")
    wake(database)
    wait_for_processor(database, "pwn")
    database.execute(
        f"GRANT ALL ON ALL TABLES IN SCHEMA inbox TO {owner.role}; GRANT USAGE ON SCHEMA inbox TO {owner.role}"
    )
    forge(owner)
    database.execute(RECEIVE, ("pwn", EVENT))
    keeper_has_looked(database)
    stays(lambda: applied(database, owner), [], seconds=0.5, what="handlers that were run")


def test_the_owner_of_the_database_cannot_confirm_for_others(owner: Attacker) -> None:
    """S4"""
    forge(owner)
    token = owner.execute("SELECT token FROM inbox_internal.confirmation")[0][0]
    name = owner.database.name
    with pytest.raises(errors.InsufficientPrivilege):
        owner.execute(f"ALTER ROLE postgres IN DATABASE {name} SET inbox.confirmed = '{token}'")
    with pytest.raises(errors.UndefinedObject, match="has no consumer"):
        owner.execute("SELECT inbox.confirm('pwn')")
    owner.execute(f"ALTER DATABASE {name} SET inbox.confirmed = '{token}'")
    owner.database.execute(f"REASSIGN OWNED BY {owner.role} TO postgres")
    assert_nothing_runs(owner.database, owner)


def test_a_restored_consumer_is_processed_when_its_role_confirms_it(
    database: Database, new_database: NewDatabase, new_attacker: NewAttacker
) -> None:
    """S4, and a restored inbox wakes its keeper."""
    database.execute("CREATE EXTENSION pg_inbox")
    reader = new_attacker("inbox.grant_read")
    reader.execute(HANDLER.format(schema=reader.role))
    reader.execute("SELECT inbox.subscribe('c', '*', 'handler')")
    wait_for_processor(database, "c")
    restored = new_database(extension=False)
    dump_and_restore(database, restored)
    restored.execute(RECEIVE, ("c", EVENT))
    assert restored.value("SELECT state FROM inbox.status") == "not confirmed"
    hint = restored.value("SELECT what_to_do FROM inbox.health() WHERE what = 'not confirmed'")
    assert "inbox.confirm('c')" in hint
    with pytest.raises(errors.UndefinedObject, match="Only the role of the consumer itself"):
        restored.execute("SELECT * FROM inbox.confirm('c')")
    with database.cluster.connect(restored.name, reader.role) as connection:
        shown = connection.execute(
            "SELECT consumer, event_type, handler, confirmed FROM inbox.own_subscriptions()"
        ).fetchall()
        assert shown == [("c", "*", f"{reader.role}.handler", False)]
        assert connection.execute("SELECT * FROM inbox.confirm('c')").fetchall() == [("*", f"{reader.role}.handler")]
    wait_until(
        lambda: applied(restored, reader), lambda seen: seen == [(reader.role,)], what="the message to be applied"
    )


def test_a_restore_of_a_whole_server_keeps_what_was_confirmed(database: Database, new_database: NewDatabase) -> None:
    """No role confirms again, and the keeper of CREATE EXTENSION notices the rows."""
    database.execute("CREATE EXTENSION pg_inbox; CREATE FUNCTION h(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    database.execute("SELECT inbox.subscribe('c', '*', 'h')")
    restored = new_database(extension=False)
    setting = database.value(
        "SELECT o FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase, unnest(s.setconfig) AS o"
        " WHERE d.datname = current_database()"
    ).removeprefix("inbox.confirmed=")  # fmt: skip
    restored.execute(f"ALTER ROLE postgres IN DATABASE {restored.name} SET inbox.confirmed = '{setting}'")
    dump_and_restore(database, restored)
    wait_for_processor(restored, "c")


def test_concurrent_subscriptions_are_all_confirmed(database: Database, new_attacker: NewAttacker) -> None:
    """S4: the confirmations of a role are one row of the catalog, which both sessions write."""
    database.execute("CREATE EXTENSION pg_inbox")
    reader = new_attacker("inbox.grant_read")
    reader.execute("CREATE FUNCTION handler(m inbox.message) RETURNS void LANGUAGE sql AS ''")
    consumers = [f"c{n}" for n in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: reader.execute("SELECT inbox.subscribe(%s, '*', 'handler')", (name,)), consumers))
    assert database.value("SELECT count(*) FROM inbox_internal.confirmation WHERE confirmed") == len(consumers)
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(lambda name: reader.execute("SELECT inbox.unsubscribe(%s, '*', 'handler')", (name,)), consumers)
        )
    assert database.value("SELECT count(*) FROM inbox.subscription") == 0
    reader.execute("SELECT inbox.subscribe('last', '*', 'handler')")
    assert database.value(
        "SELECT length(o) FROM pg_db_role_setting AS s, unnest(s.setconfig) AS o WHERE setrole = %s::regrole", (reader.role,)
    ) == len("inbox.confirmed=") + 65  # fmt: skip


def test_a_consumer_with_a_new_owner_waits_for_its_confirmation(database: Database, new_attacker: NewAttacker) -> None:
    """S10, S4"""
    database.execute("CREATE EXTENSION pg_inbox")
    giver, taker = new_attacker("inbox.grant_read"), new_attacker("inbox.grant_read")
    giver.execute(HANDLER.format(schema=giver.role))
    giver.execute("SELECT inbox.subscribe('c', '*', 'handler')")
    wait_for_processor(database, "c")
    database.execute("SELECT inbox.give_consumer('c', %s::regrole, 'test')", (taker.role,))
    wait_until(lambda: processor(database, "c"), lambda pid: pid is None, what="the processor to end")
    database.execute(RECEIVE, ("c", EVENT))
    assert_nothing_runs(database, giver, "c")
    taker.execute("SELECT inbox.confirm('c')")
    wait_until(lambda: applied(database, giver), lambda seen: seen == [(taker.role,)], what="the message to be applied")
