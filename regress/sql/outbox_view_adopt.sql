-- A view of the log in the place of an outbox table.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
CREATE FUNCTION refusal(statement text, OUT state text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $f$
BEGIN
    EXECUTE statement;
    message := 'NOT REFUSED';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $f$;
\pset format unaligned
\pset null NULL
CREATE ROLE regress_app;
CREATE ROLE regress_reader;

-- The tables as the applications have them
CREATE TABLE app_outbox (
    id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
    version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1, payload bytea NOT NULL,
    occurred_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, publish_attempts int NOT NULL DEFAULT 0,
    next_retry_at timestamptz, lock_token text, locked_at timestamptz);
CREATE INDEX ON app_outbox (published_at) WHERE published_at IS NULL;
CREATE INDEX ON app_outbox (next_retry_at) WHERE published_at IS NULL;
CREATE TABLE app_outbox_2 (
    id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, event_type text NOT NULL,
    version bigint NOT NULL, payload jsonb NOT NULL, occurred_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz, publish_attempts int NOT NULL DEFAULT 0, next_retry_at timestamptz, lock_token text,
    locked_at timestamptz);
CREATE TABLE outboxevent (
    id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload jsonb);
CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic varchar(255) NOT NULL, message jsonb NOT NULL,
    state varchar(50) NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz);
CREATE TABLE outbox_events (
    id bigserial PRIMARY KEY, aggregate_id uuid NOT NULL, aggregate_type varchar(255) NOT NULL,
    event_type varchar(255) NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz);

-- seed: by time, but of one aggregate by version
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, occurred_at, published_at, lock_token)
SELECT format('00000000-0000-0000-0000-00000000000%s', n)::uuid, 'video', key, 'E', version, n::text::bytea,
       '2024-01-01 00:00:00+00'::timestamptz + at * interval '1 s', published, token
  FROM (VALUES (1, 'a', 1, 1, now(), NULL),  -- published
               (2, 'a', 2, 5, NULL,  'x'),   -- began later than version 3, but changed the aggregate earlier
               (3, 'a', 3, 4, NULL,  'x'),
               (4, 'b', 1, 3, NULL,  NULL),
               (5, 'a', 4, 7, NULL,  NULL),
               (6, 'c', 1, 6, NULL,  NULL)) AS v(n, key, version, at, published, token);
ALTER TABLE app_outbox OWNER TO regress_app;
GRANT SELECT, INSERT ON app_outbox TO regress_reader;
GRANT UPDATE (published_at) ON app_outbox TO regress_reader;
GRANT SELECT ON app_outbox TO PUBLIC;
CREATE VIEW backlog AS SELECT count(*) FROM app_outbox WHERE published_at IS NULL;
CREATE TABLE note (event_id uuid REFERENCES app_outbox);
CREATE FUNCTION wake_publisher() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY app_outbox; RETURN NULL; END';
CREATE TRIGGER wake_publisher AFTER INSERT ON app_outbox FOR EACH STATEMENT EXECUTE FUNCTION wake_publisher();

SELECT * FROM outbox.adopt('app_outbox', 'seed', dry_run => true, shows => 'all');
SELECT relkind, pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'app_outbox'::regclass;
SELECT count(*) FROM outbox.event;
SELECT * FROM outbox.adopt('app_outbox', 'seed', shows => 'all');
SELECT relkind FROM pg_class WHERE oid = 'app_outbox'::regclass;
SELECT event_id, aggregate_id, version, extract(epoch FROM occurred_at) AS at, topic, content_type, payload FROM outbox.event ORDER BY position;
SELECT count(*) FROM app_outbox_adopted;
SELECT id, publish_attempts, lock_token FROM app_outbox ORDER BY id;
SELECT pg_get_userbyid(a.grantee) AS grantee, string_agg(a.privilege_type || CASE WHEN a.is_grantable THEN '*' ELSE '' END, ' ' ORDER BY a.privilege_type)
  FROM pg_class AS c, aclexplode(c.relacl) AS a
 WHERE c.oid = 'app_outbox'::regclass AND a.privilege_type <> 'MAINTAIN' GROUP BY 1 ORDER BY 1;
SET ROLE regress_app;
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'video', 'a', 'E', 5, '') RETURNING version;
SET ROLE regress_reader;
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'video', 'a', 'E', 6, '') RETURNING version;
SELECT count(*) FROM app_outbox;
RESET ROLE;

-- the other spelling, and json where there should be jsonb
ALTER TABLE app_outbox_2 ALTER payload TYPE json;
INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload)
VALUES ('00000000-0000-0000-0000-000000000011', 'video', '1', 'E', 1, '{"a":  1}');
SELECT * FROM outbox.adopt('app_outbox_2', 'seed_jsonb', topic => 'second', shows => 'all') WHERE item = 'rows to move';
SELECT id, payload FROM app_outbox_2;

-- Debezium's: has no mark
INSERT INTO outboxevent VALUES ('00000000-0000-0000-0000-000000000023', 'order', '1', 'A', '{}'),
                               ('00000000-0000-0000-0000-000000000022', 'order', '1', 'B', NULL),
                               ('00000000-0000-0000-0000-000000000021', 'order', '2', 'C', '{}');
SELECT * FROM refusal($$ SELECT outbox.adopt('outboxevent', 'debezium') $$);
SELECT * FROM outbox.adopt('outboxevent', 'debezium', condition => $$ type <> 'A' OR type = 'B' -- not A $$, shows => 'all');
SELECT * FROM outboxevent;

-- of the tutorial
INSERT INTO outbox (topic, message, state, created_at) VALUES
    ('orders.created', '{"n": 2}', 'pending', '2024-01-02 00:00:00+00'), ('orders.paid', '{"n": 1}', 'failed', '2024-01-01 00:00:00+00'),
    ('orders.created', '{"n": 0}', 'processed', '2024-01-01 00:00:00+00');
SELECT * FROM outbox.adopt('outbox', 'tutorial', shows => 'all');
SELECT e.topic, e.aggregate_type, o.message, o.state, o.id = e.event_id AS same, o.id IN (SELECT a.id FROM outbox_adopted AS a) AS adopted
  FROM outbox.event AS e JOIN outbox AS o ON o.id = e.event_id ORDER BY position;

-- CQRS: new ids, in the order of the old ones
INSERT INTO outbox_events (aggregate_id, aggregate_type, event_type, payload, created_at, processed_at)
SELECT '00000000-0000-0000-0000-000000000031', 'order', 'E' || n, '{}', '2024-01-01 00:00:00+00', CASE WHEN n < 3 THEN now() END FROM generate_series(1, 4) AS n;
SELECT * FROM outbox.adopt('outbox_events', 'cqrs', shows => 'all');
SELECT event_type, processed_at FROM outbox_events ORDER BY id;

-- Tables that are not as they should be
\t on
CREATE TABLE partitioned (LIKE outbox_adopted INCLUDING ALL) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF partitioned DEFAULT;
CREATE TABLE with_more (LIKE outboxevent_adopted INCLUDING ALL, trace text, tenant text);
CREATE DOMAIN name_of_topic AS varchar(255);
CREATE TABLE other_types (LIKE outboxevent_adopted INCLUDING ALL);
ALTER TABLE other_types ALTER aggregateid TYPE bigint USING 1, ALTER payload TYPE text;
CREATE TABLE other_functions (LIKE outboxevent_adopted INCLUDING ALL);
ALTER TABLE other_functions ALTER type TYPE name_of_topic;
CREATE TABLE other_order (payload jsonb, id uuid, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255));
CREATE TABLE taken (LIKE outboxevent_adopted);
CREATE TABLE taken_adopted ();
SELECT * FROM refusal($$ SELECT outbox.adopt('outbox', 'tutorial') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('part', 'tutorial') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('outbox_adopted', 'cqrs') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('outbox_adopted', 'none') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('with_more', 'debezium', condition => 'true') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('with_more', 'debezium', condition => 'true', ignore_columns => '{tenant}') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('other_types', 'debezium', condition => 'true') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('other_functions', 'debezium', condition => 'true') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('taken', 'debezium', condition => 'true') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('other_order', 'debezium', condition => 'nothing') $$);
SELECT * FROM refusal($$ SELECT outbox.adopt('other_order', 'debezium', condition => 'true', content_type => 'a/b') $$);
SELECT * FROM outbox.adopt('with_more', 'debezium', condition => 'true', ignore_columns => '{tenant,trace}', shows => 'all');
SELECT * FROM outbox.adopt('other_order', 'debezium', condition => 'true', dry_run => true, shows => 'all');
SELECT * FROM outbox.adopt('partitioned', 'tutorial', shows => 'all') WHERE item = 'new name of the table';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM refusal($$ SELECT outbox.adopt('other_order', 'debezium', condition => 'true') $$);
ROLLBACK;
GRANT USAGE ON SCHEMA outbox, outbox_internal TO regress_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO regress_app;
SET ROLE regress_app;
SELECT * FROM refusal($$ SELECT outbox.adopt('other_order', 'debezium', condition => 'true') $$);
RESET ROLE;

-- A row that the log does not take: nothing has happened.
INSERT INTO other_order VALUES ('{}', gen_random_uuid(), 'order', '1', 'E'), ('{}', gen_random_uuid(), '', '1', 'E');
SELECT count(*) FROM outbox.event \gset before_
SELECT * FROM refusal($$ SELECT outbox.adopt('other_order', 'debezium', condition => 'true') $$);
SELECT relkind, (SELECT count(*) FROM outbox.event) = :before_count FROM pg_class WHERE oid = 'other_order'::regclass;

DROP TABLE note, app_outbox_adopted CASCADE;
DROP EXTENSION pg_outbox CASCADE;
DROP OWNED BY regress_app, regress_reader;
DROP ROLE regress_app, regress_reader;
DROP TABLE app_outbox_2_adopted, outboxevent_adopted, outbox_adopted, outbox_events_adopted, partitioned_adopted, with_more_adopted,
           other_types, other_functions, other_order, taken, taken_adopted;
DROP DOMAIN name_of_topic;
DROP FUNCTION refusal, wake_publisher;
