-- Views of the log with the columns of outbox tables that applications have.
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
-- What is in the log, but for times.
CREATE VIEW logged AS
SELECT event_id, topic, aggregate_type, aggregate_id, event_type, version, schema_version, ordering_key,
       content_type, encode(payload, 'escape') AS payload
  FROM outbox.event ORDER BY position;
\pset format unaligned
\pset null NULL

SELECT outbox.create_outbox_view('app_outbox', shows => 'all');
SELECT outbox.create_outbox_view('app_outbox_2', 'seed_jsonb', topic => '{aggregate_type}.{event_type}', shows => 'all');
SELECT outbox.create_outbox_view('outboxevent', 'debezium', shows => 'all');
SELECT outbox.create_outbox_view('outbox', 'tutorial', shows => 'all');
CREATE SCHEMA "Order Service";
SELECT outbox.create_outbox_view('"Order Service".outbox_events', 'cqrs', topic => 'orders', shows => 'all');
SELECT c.oid::regclass AS view, obj_description(c.oid), count(*) AS columns,
       string_agg(format('%s = %s', a.attname, pg_get_expr(d.adbin, d.adrelid)), ', ' ORDER BY a.attnum) AS defaults
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE obj_description(c.oid) LIKE 'the log of pg_outbox, with%'
 GROUP BY c.oid ORDER BY 1;

-- seed
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload)
VALUES ('00000000-0000-0000-0000-000000000001', 'video', 'v_123', 'VideoPublished', 1, '\x0801');
BEGIN;
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, schema_version)
VALUES ('00000000-0000-0000-0000-000000000002', 'user', 'u_1', 'UserCreated', 7, '\x', 3),
       ('00000000-0000-0000-0000-000000000003', 'user', 'u_1', 'UserRenamed', 8, '\x01', DEFAULT)
RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at = now() AS now,
          published_at, publish_attempts, next_retry_at, lock_token, locked_at;
ROLLBACK;
INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, occurred_at)
VALUES ('00000000-0000-0000-0000-000000000004', 'user', 'u_1', 'UserCreated', 1, '\xff', '2024-02-03 04:05:06+00')
ON CONFLICT DO NOTHING RETURNING extract(epoch FROM occurred_at);
SELECT * FROM logged;
SELECT id, aggregate_type, aggregate_id, event_type, version, schema_version, payload,
       published_at, publish_attempts, next_retry_at, lock_token, locked_at FROM app_outbox ORDER BY id;

-- the other spelling
BEGIN;
INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload)
VALUES ('00000000-0000-0000-0000-000000000011', 'video', 'v_1', 'Published', 1, '{"title": "ä", "n": 1.50}')
RETURNING id, aggregatetype, aggregateid, event_type, version, payload, occurred_at = now() AS now, publish_attempts;
SELECT * FROM logged OFFSET 2;
SELECT id, payload FROM app_outbox_2;
ROLLBACK;

-- Debezium's
BEGIN;
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
VALUES ('00000000-0000-0000-0000-000000000021', 'order', '1', 'OrderCreated', '{"id": 1}'),
       ('00000000-0000-0000-0000-000000000022', 'order', '1', 'OrderDeleted', NULL)
RETURNING *;
SELECT * FROM logged OFFSET 2;
SELECT * FROM outboxevent ORDER BY id;
ROLLBACK;

-- of the tutorial
BEGIN;
INSERT INTO outbox (topic, message) VALUES ('orders.created', '{"id": 1}'), ('plain', 'null')
RETURNING topic, message, state, created_at = now() AS now, processed_at;
SELECT topic, aggregate_type, aggregate_id = event_id::text AS id, event_type, ordering_key, content_type, payload FROM logged OFFSET 2;
SELECT topic, message, state, processed_at FROM outbox ORDER BY topic;
ROLLBACK;

-- CQRS
BEGIN;
INSERT INTO "Order Service".outbox_events (aggregate_id, aggregate_type, event_type, payload)
VALUES ('00000000-0000-0000-0000-000000000031', 'order', 'OrderCreated', '{"id": 1}'),
       ('00000000-0000-0000-0000-000000000031', 'order', 'OrderPaid', '[]')
RETURNING id > 0 AS id, aggregate_id, aggregate_type, event_type, payload,
          created_at = now() AS now, processed_at;
SELECT topic, aggregate_type, aggregate_id, event_type, ordering_key, content_type, payload FROM logged OFFSET 2;
SELECT id = position AS position, v.aggregate_id, v.event_type, v.payload
  FROM "Order Service".outbox_events AS v JOIN outbox.event AS e ON e.position = v.id ORDER BY id;
-- what others have enqueued for the topic and has no id that is a uuid
SELECT outbox.enqueue('order', 'x', 'E', '{}', topic => 'orders') IS NOT NULL;
SELECT count(*) FROM "Order Service".outbox_events WHERE aggregate_id = '00000000-0000-0000-0000-000000000031';
ROLLBACK;

-- Each view shows the events of its topics, whoever enqueued them, as far as its columns can hold them.
BEGIN;
SELECT outbox.enqueue('video', '1', 'E', '{"a": 1}', topic => 'video.E') IS NOT NULL;
SELECT outbox.enqueue('video', '1', 'E', '\x00', 'application/x-other', topic => 'video.E') IS NOT NULL;
SELECT outbox.enqueue('video', '1', 'E', convert_to('"\u0000"', 'UTF8'), 'application/json', topic => 'video.E') IS NOT NULL;
SELECT aggregatetype, version, payload FROM app_outbox_2;
ROLLBACK;

-- COPY, with and without a list of columns; what it writes can be read back.
COPY outboxevent FROM stdin;
00000000-0000-0000-0000-000000000041	order	1	OrderCreated	{"id": 1}
00000000-0000-0000-0000-000000000042	order	2	OrderCreated	\N
\.
COPY outbox (topic, message) FROM stdin (FORMAT csv);
orders.created,"{""id"": 2}"
\.
COPY (SELECT * FROM outboxevent ORDER BY id) TO stdout;
SELECT topic, state FROM outbox;

-- INSERT ... SELECT, a prepared one, in a function, and one whose values are stored apart
BEGIN;
PREPARE p AS INSERT INTO outboxevent VALUES ($1, $2, $3, $4, $5) RETURNING aggregateid;
EXECUTE p('00000000-0000-0000-0000-000000000051', 'order', '51', 'E', '{}');
EXECUTE p('00000000-0000-0000-0000-000000000052', 'order', '52', 'E', NULL);
CREATE TEMPORARY TABLE large AS SELECT g AS n, (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 2000) AS i) AS value FROM generate_series(1, 2) AS g;
INSERT INTO outboxevent SELECT gen_random_uuid(), 'order', n::text, 'Large', value FROM large;
SELECT count(*), bool_and(payload = value) FROM outboxevent JOIN large ON n = aggregateid::int AND type = 'Large';
WITH inserted AS (INSERT INTO outboxevent VALUES ('00000000-0000-0000-0000-000000000053', 'order', '53', 'E') RETURNING *)
SELECT aggregateid, payload FROM inserted;
ROLLBACK;

-- What a table would not take
\t on
SELECT * FROM refusal($$ INSERT INTO app_outbox (aggregate_type, aggregate_id, event_type, version, payload) VALUES ('v', '1', 'E', 1, '') $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'v', '1', 'E', '') $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload, occurred_at) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '', NULL) $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version) VALUES (gen_random_uuid(), 'v', '1', 'E', 1) $$);
SELECT * FROM refusal($$ INSERT INTO outboxevent VALUES (gen_random_uuid(), NULL, '1', 'E', '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outboxevent VALUES (gen_random_uuid(), repeat('x', 256), '1', 'E', '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outbox (id, topic, message) VALUES (NULL, 't', '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outbox (topic, message) VALUES ('t', '{') $$);
-- what the log would not take
SELECT * FROM refusal($$ INSERT INTO outboxevent VALUES (gen_random_uuid(), '', '1', 'E', '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outboxevent VALUES (gen_random_uuid(), repeat('x', 250), '1', 'E', '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outbox (topic, message) VALUES (repeat('t', 250), '{}') $$);
SELECT * FROM refusal($$ INSERT INTO outbox (topic, message) VALUES ('.t', '{}') $$);
-- what a publisher would have written
SELECT * FROM refusal($$ INSERT INTO outbox (topic, message, state) VALUES ('t', '{}', 'processed') $$);
SELECT * FROM refusal($$ INSERT INTO outbox (topic, message, processed_at) VALUES ('t', '{}', now()) $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload, published_at) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{}', now()) $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload, publish_attempts) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{}', 1) $$);
SELECT * FROM refusal($$ INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload, lock_token) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{}', 'x') $$);
SELECT * FROM refusal($$ INSERT INTO "Order Service".outbox_events (id, aggregate_id, aggregate_type, event_type, payload) VALUES (1, gen_random_uuid(), 'o', 'E', '{}') $$);
-- but that nothing has become of it yet may be said
INSERT INTO outbox (topic, message, state, processed_at) VALUES ('t', '{}', 'pending', NULL);
INSERT INTO app_outbox_2 (id, aggregatetype, aggregateid, event_type, version, payload, publish_attempts) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{}', 0);

-- Events do not change.
SELECT * FROM refusal($$ UPDATE outbox SET state = 'processed', processed_at = now() $$);
SELECT * FROM refusal($$ UPDATE outbox SET state = 'processed' WHERE false $$);
SELECT * FROM refusal($$ DELETE FROM outboxevent WHERE id = '00000000-0000-0000-0000-000000000041' $$);
SELECT * FROM refusal($$ DELETE FROM outboxevent WHERE false $$);
SELECT * FROM refusal($$ UPDATE app_outbox SET lock_token = 'x', locked_at = now() WHERE id IN
    (SELECT id FROM app_outbox WHERE published_at IS NULL AND (next_retry_at IS NULL OR next_retry_at <= now())
      ORDER BY occurred_at LIMIT 100 FOR UPDATE SKIP LOCKED) RETURNING * $$);
SELECT * FROM refusal($$ INSERT INTO outbox (id, topic, message) VALUES (gen_random_uuid(), 't', '{}') ON CONFLICT (id) DO NOTHING $$);
SELECT * FROM refusal($$ TRUNCATE outbox $$);

-- Making views
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', 'quartz') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', topic => '') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', topic => 'a.{topic}') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', topic => 'a.{aggregate_type') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', 'cqrs', content_type => 'application/x-protobuf') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('x', content_type => 'protobuf') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('outbox') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('nowhere.x') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('a.b.c') $$);
SELECT * FROM refusal($$ SELECT outbox.create_outbox_view('a b') $$);
SET search_path = '';
SELECT * FROM public.refusal($$ SELECT outbox.create_outbox_view('x') $$);
RESET search_path;

-- Bytes with another content type; those that are called JSON must be JSON.
SELECT outbox.create_outbox_view('protobuf_outbox', content_type => 'application/x-protobuf', topic => E'it''s \\ {event_type}', shows => 'all');
SELECT outbox.create_outbox_view('json_outbox', content_type => 'application/json', topic => 'json', shows => 'all');
INSERT INTO protobuf_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, 'x');
INSERT INTO json_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{}');
SELECT * FROM refusal($$ INSERT INTO json_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) VALUES (gen_random_uuid(), 'v', '1', 'E', 1, '{') $$);
SELECT topic, content_type, payload FROM outbox.event ORDER BY position DESC LIMIT 2;
SELECT (SELECT count(*) FROM protobuf_outbox), (SELECT count(*) FROM json_outbox);

-- The trigger on something else
CREATE TABLE elsewhere (id int);
CREATE VIEW other AS SELECT 1 AS id;
CREATE TRIGGER t BEFORE INSERT ON elsewhere FOR EACH ROW EXECUTE FUNCTION outbox.insert_event('seed', '', 't');
CREATE TRIGGER t INSTEAD OF INSERT ON other FOR EACH ROW EXECUTE FUNCTION outbox.insert_event('seed', '', 't');
SELECT * FROM refusal($$ INSERT INTO elsewhere VALUES (1) $$);
SELECT * FROM refusal($$ INSERT INTO other VALUES (1) $$);
SELECT * FROM refusal($$ SELECT outbox.insert_event() $$);
ALTER VIEW outboxevent RENAME type TO kind;  -- goes by the order of columns
INSERT INTO outboxevent (id, aggregatetype, aggregateid, kind) VALUES (gen_random_uuid(), 'order', '1', 'Renamed');
SELECT event_type FROM outbox.event ORDER BY position DESC LIMIT 1;

SELECT * FROM refusal($$ DROP EXTENSION pg_outbox $$) AS r(state, message);
DROP EXTENSION pg_outbox CASCADE;
SELECT to_regclass('app_outbox');
DROP FUNCTION refusal;
DROP TABLE elsewhere;
DROP VIEW other;
DROP SCHEMA "Order Service";
