-- Events get into the log with the data, or not at all.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;

-- What the log shows of an event, without what differs from run to run.
CREATE VIEW log AS
SELECT topic, aggregate_type, aggregate_id, event_type, version, schema_version, ordering_key,
       content_type, headers, convert_from(payload, 'UTF8') AS payload
  FROM outbox.event ORDER BY position;

-- defaults
SELECT outbox.enqueue('video', 'v1', 'VideoCreated', '{"title": "A"}') IS NOT NULL AS enqueued;
SELECT * FROM log;
SELECT xid = pg_current_xact_id_if_assigned() IS NOT TRUE AS other_xid,
       occurred_at <= clock_timestamp() AS occurred, substr(event_id::text, 15, 1) AS uuid_version
  FROM outbox.event;

-- everything given
SELECT outbox.enqueue('video', 'v1', 'VideoUpdated', '{"n": 1}', version => 7, topic => 'videos',
                      ordering_key => 'k', headers => '{"traceparent": "00-a", "x-n": 5, "x-b": true, "x-0": null}',
                      schema_version => 3, event_id => '0190f3a4-0000-7000-8000-000000000001',
                      source_event_id => '0190f3a4-0000-7000-8000-000000000002',
                      occurred_at => '2024-02-29 12:00:00+00');
SELECT event_id, source_event_id, occurred_at = '2024-02-29 12:00:00+00' AS given FROM outbox.event WHERE version = 7;
SELECT * FROM log OFFSET 1;

-- bytes, no payload, no order
SELECT outbox.enqueue('video', 'v2', 'Bytes', '\x00ff'::bytea, 'application/x-protobuf') IS NOT NULL AS enqueued;
SELECT outbox.enqueue('video', 'v2', 'Nothing', NULL::jsonb, ordering_key => '') IS NOT NULL AS enqueued;
SELECT event_type, ordering_key, content_type, payload FROM outbox.event ORDER BY position OFFSET 2;

-- ids and payloads of other types; NULLs, unknown literals and named arguments are not ambiguous
TRUNCATE outbox.event;
CREATE TABLE typed (id bigint, uid uuid, small smallint, code varchar, kind name, j json, b jsonb);
INSERT INTO typed VALUES (42, '0190f3a4-0000-7000-8000-000000000042', 7, 'c', 'k', '{"of": "json"}', '{"of": "jsonb"}');
SELECT count(e) FROM typed AS r, LATERAL (VALUES
    (outbox.enqueue('t', 42, '01 unknown', '{"of": "literal"}')),
    (outbox.enqueue('t', 42, '02 null', NULL)),
    (outbox.enqueue('t', r.id, '03 jsonb', r.b)),
    (outbox.enqueue('t', r.uid, '04 json', r.j)),
    (outbox.enqueue('t', r.small, '05 literal', '{"of": "literal"}')),
    (outbox.enqueue('t', r.code, '06 literal', '{"of": "literal"}')),
    (outbox.enqueue('t', r.code, '07 jsonb', r.b)),
    (outbox.enqueue(r.code, '8', '08 json', r.j)),
    (outbox.enqueue(r.kind, r.id, '09 literal', '{"of": "literal"}', 9)),
    (outbox.enqueue('t', '10', '10 none', NULL)),
    (outbox.enqueue(payload => r.j, event_type => '11 named', aggregate_id => r.id, aggregate_type => 't', version => 3)),
    (outbox.enqueue('t', r.id, '12 bytes', '\x00ff'::bytea, 'application/x-protobuf')),
    (outbox.enqueue('t', r.uid, '13 bytes', '\x00ff', content_type => 'application/x-protobuf', topic => 'x')),
    (outbox.enqueue('t', '14', '14 bytes', '\x00ff'::bytea, 'application/x-protobuf'))) AS v(e);
SELECT event_type, aggregate_id, version, content_type, payload FROM outbox.event ORDER BY event_type;
SELECT outbox.enqueue('t', 42, 'E', 'no JSON');
SELECT outbox.enqueue('t', 42, 'E', '\x00ff'::bytea);
SELECT outbox.enqueue('t', NULL::bigint, 'E', '{}');
PREPARE of_unknown AS SELECT outbox.enqueue($1, $2, $3, $4);
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'of_unknown';
DEALLOCATE of_unknown;

-- ids of one session only grow, and so do positions
SELECT count(*) FROM (SELECT outbox.enqueue('a', g::text, 'E', '{}') FROM generate_series(1, 1000) AS g) AS e;
SELECT bool_and(ok) FROM (SELECT event_id > lag(event_id) OVER (ORDER BY position) AS ok FROM outbox.event WHERE aggregate_type = 'a') AS s;

-- a batch keeps the order of the array, and gives back the ids in the same order
TRUNCATE outbox.event;
WITH batch AS (
    SELECT outbox.enqueue(ARRAY(
        SELECT ROW('user', 'u' || g, 'UserCreated', jsonb_build_object('n', g), g, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event
          FROM generate_series(1, 1234) AS g ORDER BY g)) AS ids)
SELECT array_length(ids, 1) FROM batch;
SELECT count(*), bool_and(version = number) AS in_order
  FROM (SELECT version, row_number() OVER (ORDER BY position) AS number FROM outbox.event) AS e;
SELECT outbox.enqueue('{}'::outbox.new_event[]);
SELECT outbox.enqueue(ARRAY(SELECT jsonb_populate_record(NULL::outbox.new_event, x)
    FROM jsonb_array_elements('[{"aggregate_type": "j", "aggregate_id": "1", "event_type": "J", "payload": {"a": 1}},
                                {"aggregate_type": "j", "aggregate_id": "2", "event_type": "J", "content_type": "text/plain", "data": "\\x6869"}]') AS x)) IS NOT NULL AS from_json;
SELECT aggregate_id, content_type, convert_from(payload, 'UTF8') FROM outbox.event WHERE aggregate_type = 'j' ORDER BY position;

-- one event per source event, aggregate and type; the later calls return the first id
SELECT outbox.enqueue('order', 'o1', 'Shipped', '{}', source_event_id => '0190f3a4-0000-7000-8000-00000000000a') AS first \gset
SELECT outbox.enqueue('order', 'o1', 'Shipped', '{}', source_event_id => '0190f3a4-0000-7000-8000-00000000000a') = :'first' AS same;
SELECT outbox.enqueue('order', 'o1', 'Billed', '{}', source_event_id => '0190f3a4-0000-7000-8000-00000000000a') <> :'first' AS another_type;
SELECT (outbox.enqueue(ARRAY[ROW('order', 'o1', 'Shipped', '{}', NULL, NULL, NULL, NULL, NULL, NULL, '0190f3a4-0000-7000-8000-00000000000a', NULL, NULL, NULL)::outbox.new_event]))[1] = :'first' AS same_in_batch;
SELECT event_type, count(*) FROM outbox.event WHERE aggregate_type = 'order' GROUP BY 1 ORDER BY 1;
BEGIN;
SELECT outbox.enqueue('order', 'o2', 'Shipped', '{}', source_event_id => '0190f3a4-0000-7000-8000-00000000000b') IS NOT NULL AS enqueued;
ROLLBACK;
SELECT outbox.enqueue('order', 'o2', 'Shipped', '{}', source_event_id => '0190f3a4-0000-7000-8000-00000000000b') IS NOT NULL AS enqueued;
SELECT count(*) FROM outbox.event WHERE aggregate_id = 'o2';

-- savepoints: what was rolled back is not there; what is there has the xid of the whole transaction
TRUNCATE outbox.event;
BEGIN;
SELECT outbox.enqueue('s', '1', 'Kept', '{}') IS NOT NULL AS enqueued;
SAVEPOINT a;
SELECT outbox.enqueue('s', '2', 'Gone', '{}') IS NOT NULL AS enqueued;
ROLLBACK TO a;
SAVEPOINT b;
SELECT outbox.enqueue('s', '3', 'Kept', '{}') IS NOT NULL AS enqueued;
RELEASE b;
SELECT bool_and(xid = pg_current_xact_id()) AS top_level_xid FROM outbox.event;
COMMIT;
SELECT aggregate_id, event_type FROM outbox.event ORDER BY position;
BEGIN;
SELECT outbox.enqueue('s', '4', 'Gone', '{}') IS NOT NULL AS enqueued;
ROLLBACK;
SELECT count(*) FROM outbox.event WHERE aggregate_id = '4';

-- functions and triggers, also deferred ones
CREATE TABLE video (id int PRIMARY KEY, title text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue('video', NEW.id::text, TG_NAME, to_jsonb(NEW));
    RETURN NULL;
END $$;
CREATE TRIGGER now AFTER INSERT ON video FOR EACH ROW EXECUTE FUNCTION tell();
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON video DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell();
TRUNCATE outbox.event;
INSERT INTO video VALUES (1, 'A'), (2, 'B');
SELECT event_type, payload FROM log;

-- a prepared transaction
TRUNCATE outbox.event;
BEGIN;
SELECT outbox.enqueue('p', '1', 'Prepared', '{}') IS NOT NULL AS enqueued;
PREPARE TRANSACTION 'events';
SELECT count(*) FROM outbox.event;
COMMIT PREPARED 'events';
SELECT count(*) FROM outbox.event;

-- plans stay serial; a function that claims to be parallel safe is refused
TRUNCATE outbox.event;
SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT count(outbox.enqueue('par', g::text, 'E', '{}')) FROM generate_series(1, 3) AS g;
CREATE FUNCTION careless(g int) RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT outbox.enqueue('par', g::text, 'E', '{}') $$;
\set VERBOSITY default
\set SHOW_CONTEXT never
SELECT careless(g) FROM generate_series(1, 1) AS g;
\set VERBOSITY terse
SELECT set_config(name, 'off', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');


-- every index of a segment is kept, also one that somebody added
CREATE EXTENSION amcheck;
CREATE INDEX added ON outbox.event_0 (event_id);
SELECT outbox.enqueue('video', 'indexed', 'VideoUpdated', '{}') IS NOT NULL AS one,
       cardinality(outbox.enqueue(ARRAY(SELECT ROW('video', n, 'VideoUpdated', '{}', NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL)::outbox.new_event FROM generate_series(1, 700) AS n))) AS many;
SELECT bt_index_check('outbox.added', heapallindexed => true), bt_index_check('outbox.event_0_xid_position', heapallindexed => true);
DROP INDEX outbox.added;
SELECT cardinality(outbox.enqueue(ARRAY(SELECT ROW('video', n, 'VideoUpdated', '{}', NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL)::outbox.new_event FROM generate_series(1, 700) AS n))) AS many;
SELECT bt_index_check('outbox.event_0_xid_position', heapallindexed => true);
DROP EXTENSION amcheck;

DROP EXTENSION pg_outbox CASCADE;
