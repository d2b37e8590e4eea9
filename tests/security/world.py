"""A database in which a victim has everything that can be attacked, and an attacker has a schema.

All data of the victim alone contain SECRET.
"""

from __future__ import annotations

import psycopg

from cluster import Cluster
from database import Database

SECRET = "s3cret"
EVENT = "00000000-0000-7000-8000-0000000000{:02}"

# Without rights in outbox and inbox.
RELATIONS = """
    CREATE SCHEMA {role} AUTHORIZATION {role};
    SET ROLE {role};
    CREATE TABLE {role}.t (id int PRIMARY KEY, v text, n int, version bigint);
    INSERT INTO {role}.t SELECT i, '{secret}', i, 1 FROM generate_series(1, 5) AS i;
    CREATE TABLE {role}.bare (id int PRIMARY KEY, v text);
    INSERT INTO {role}.bare VALUES (1, '{secret}');
    CREATE VIEW {role}.view AS SELECT * FROM {role}.t;
    CREATE SEQUENCE {role}.s;
    RESET ROLE;
"""
OBJECTS = """
    CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 'open.*');
    CREATE SERVER p FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', topics 'open.*');
    CREATE SERVER secret_pull FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', topics 'secret.*');
    CREATE SERVER away FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://127.0.0.1:1/', topics 'nothing');
    ALTER SERVER away OWNER TO victim;
    CREATE USER MAPPING FOR victim SERVER away OPTIONS (user 'u', password '{secret}');
    CREATE SERVER secret_hooks FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'endpoints:', topics 'nothing');
    ALTER SERVER secret_hooks OWNER TO victim;
    CREATE USER MAPPING FOR victim SERVER secret_hooks OPTIONS (signing_secret 'whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz');
    INSERT INTO outbox.endpoint (server, name, url) VALUES ('secret_hooks', 'acme', 'http://127.0.0.1:1/{secret}');
    SELECT outbox.grant_capture('victim'), outbox.grant_produce('victim', 'secret.*'), outbox.grant_fetch('victim');
    SELECT inbox.grant_read('victim'), inbox.grant_consume('victim');
    GRANT USAGE ON FOREIGN SERVER secret_pull TO victim;
"""
HANDLER = """
    CREATE FUNCTION {role}.handler(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN NULL; END $$;
"""
# Another role sends to consumers.
RECEIVE = """
    SELECT inbox.receive('theirs', 'source', ARRAY(SELECT ('00000000-0000-7000-8000-0000000000' || i)::uuid FROM generate_series(10, 19) AS i),
           array_fill(now(), ARRAY[10]), ARRAY(SELECT generate_series(1, 10)), array_fill(1::bigint, ARRAY[10]), array_fill(1, ARRAY[10]),
           array_fill(NULL::uuid, ARRAY[10]), array_fill('{secret}'::text, ARRAY[10]), array_fill('a'::text, ARRAY[10]), array_fill('1'::text, ARRAY[10]),
           array_fill('X'::text, ARRAY[10]), ARRAY(SELECT '{secret} key ' || i FROM generate_series(1, 10) AS i), array_fill('application/json'::text, ARRAY[10]),
           array_fill(NULL::jsonb, ARRAY[10]), array_fill('{{"a": "{secret}"}}'::bytea, ARRAY[10]))
"""
# One message stays as it is, one waits, one is a dead letter, and two are claimed.
VICTIMS_WORK = """
    SELECT inbox.set_policy('theirs', 2);
    SELECT inbox.fail_event('theirs', 'source', '00000000-0000-7000-8000-000000000030', now(), NULL, 1, 1, NULL, '{secret}', 'a', '1', 'E',
                            '{secret} dead', 'application/json', NULL, '"{secret}"', '{secret} error', 'P0001', true);
    SELECT inbox.fail_event('theirs', 'source', '00000000-0000-7000-8000-000000000031', now(), NULL, 1, 1, NULL, '{secret}', 'a', '1', 'E',
                            '{secret} waiting', 'application/json', NULL, '"{secret}"', '{secret} error', 'P0001', false);
    SELECT inbox.save_offset('theirs', 'sub', 'place', now(), 'victim');
    SELECT inbox.report_gap('theirs', 'sub', 'secret', 1);
    SELECT inbox.begin_event('theirs', '00000000-0000-7000-8000-000000000040');
    SELECT outbox.capture('victim.t', topic => 'secret.t');
    SELECT outbox.enqueue('a', '{secret}', 'X', '{{"a": "{secret}"}}'::jsonb, topic => 'secret.a', event_id => '00000000-0000-7000-8000-000000000001');
    SELECT outbox.enqueue('a', '{secret}', 'X', '{{"a": "{secret}"}}'::jsonb, topic => 'secret.a', event_id => '00000000-0000-7000-8000-000000000002');
"""


class World:
    """Roles: `mallory` attacks, `victim` is attacked, `other` must not be affected."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.database = Database(cluster, name)
        cluster.execute(f"CREATE DATABASE {name}")
        self.database.execute("CREATE EXTENSION pg_outbox; CREATE EXTENSION pg_inbox")
        for role in ("mallory", "victim", "other"):
            if not cluster.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)):
                cluster.execute(f"CREATE ROLE {role} LOGIN")
            self.database.execute(f"GRANT CREATE, TEMP ON DATABASE {name} TO {role}")
            secret = SECRET if role == "victim" else "x"
            self.database.execute(RELATIONS.format(role=role, secret=secret))
            self.database.execute(f"GRANT USAGE ON SCHEMA {role} TO PUBLIC")
        self.database.execute(OBJECTS.format(secret=SECRET))
        self.database.execute("; ".join(HANDLER.format(role=role) for role in ("mallory", "victim")))
        with self.connect("victim") as victim:
            victim.execute(VICTIMS_WORK.format(secret=SECRET))
        self.database.execute(RECEIVE.format(secret=SECRET))
        with self.connect("victim") as victim:
            self.inbox_token = value(victim, "SELECT token FROM inbox.claim('theirs', 2, '1 hour')")
            self.outbox_token = value(victim, "SELECT token FROM outbox.fetch('secret_pull', 1, '1 hour')")
            self.backfill = value(victim, "SELECT outbox.backfill('victim.t', rate => 1, batch => 1)")
            victim.execute("SELECT outbox.pause_backfill(%s)", (self.backfill,))
        self.consumer_id = self.database.value("SELECT id FROM inbox.consumer WHERE name = 'theirs'")
        self.seq = self.database.value("SELECT max(seq) FROM inbox.message")

    def connect(self, role: str = "mallory") -> psycopg.Connection:
        return self.cluster.connect(self.database.name, role)

    def remove(self) -> None:
        self.database.disconnect()
        self.cluster.execute(f"DROP DATABASE {self.database.name} WITH (FORCE)")
        self.cluster.execute("ALTER ROLE mallory NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS")


def value(connection: psycopg.Connection, statement: str) -> object:
    row = connection.execute(statement).fetchone()
    assert row is not None, statement
    return row[0]
