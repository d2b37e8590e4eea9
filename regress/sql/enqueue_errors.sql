-- Bad input: a clear error, the transaction goes on from its savepoint, nothing is half written.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
-- Runs a statement that must fail, and shows all of its error.
CREATE FUNCTION refused(statement text, OUT state text, OUT message text, OUT detail text, OUT hint text, OUT context text)
LANGUAGE plpgsql AS $f$
BEGIN
    EXECUTE statement;
    message := 'NOT REFUSED';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
                            context = PG_EXCEPTION_CONTEXT;
    context := substring(context FROM 'event \d+ of the batch');
END $f$;
\pset format unaligned
\t on

SELECT * FROM refused($$ SELECT outbox.enqueue(NULL, '1', 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('', '1', 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', NULL, 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '', 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', NULL, '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', '', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue(repeat('a', 250), '1', 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue(repeat('a', 249), '1', 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', repeat('1', 1025), 'E', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', E'E\n', '{}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', topic => '') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', topic => repeat('t', 250)) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', topic => E't\r\n') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', ordering_key => repeat('k', 1025)) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', schema_version => 0) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', occurred_at => 'infinity') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', occurred_at => '10000-01-01 00:00:00+00') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', occurred_at => '0001-12-31 23:59:59+00 BC') $$);

-- headers
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '[1]') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '"x"') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"x": {"y": 1}}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"x": [1]}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"x": "a\r\nHost: evil"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"x": "a\u0001"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"": 1}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"a b": 1}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"a:b": 1}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"ä": 1}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"Content-Length": 1}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"transfer-encoding": "chunked"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"AUTHORIZATION": "Bearer x"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"cookie": "x"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"id": "x"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"X-HTTP-Method-Override": "DELETE"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => '{"ce-id": "x"}') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => jsonb_build_object(repeat('x', 129), 1)) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => (SELECT jsonb_object_agg('x' || g, g) FROM generate_series(1, 65) AS g)) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}', headers => jsonb_build_object('x', repeat('y', 9000))) $$);

-- payloads
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '\xff'::bytea, 'application/json') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{"a":'::bytea, 'application/json') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{"a":'::bytea, 'application/vnd.x+json; v=1') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '\xff'::bytea, NULL) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '\xff'::bytea, '') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '\xff'::bytea, 'protobuf') $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '\xff'::bytea, E'a/b\r\n') $$);
SET outbox.max_payload_size = '1kB';
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', jsonb_build_object('x', repeat('y', 1100))) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', repeat('y', 1100)::bytea, 'text/plain') $$);
RESET outbox.max_payload_size;

-- batches
SELECT * FROM refused($$ SELECT outbox.enqueue(NULL::outbox.new_event[]) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue(ARRAY[NULL::outbox.new_event]) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue(ARRAY[ROW('a', '1', 'E', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'a/b', '\x00')::outbox.new_event]) $$);
SELECT * FROM refused($$ SELECT outbox.enqueue(ARRAY[ROW('a', '1', 'E', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event,
                            ROW('a', '', 'E', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::outbox.new_event]) $$);

-- read-only
BEGIN READ ONLY;
SELECT * FROM refused($$ SELECT outbox.enqueue('a', '1', 'E', '{}') $$);
ROLLBACK;

\t off
\pset format aligned
\set VERBOSITY terse
-- nothing of the above is in the log
SELECT count(*) FROM outbox.event;

-- the transaction goes on
BEGIN;
SELECT outbox.enqueue('a', '1', 'Before', '{}') IS NOT NULL AS enqueued;
SAVEPOINT s;
SELECT outbox.enqueue('a', '', 'Bad', '{}');
ROLLBACK TO s;
SELECT outbox.enqueue('a', '1', 'After', '{}') IS NOT NULL AS enqueued;
COMMIT;
SELECT event_type FROM outbox.event ORDER BY position;

-- names that are fine
SELECT outbox.enqueue('a/b c', E'id with\nanything ä', 'E', '{}', headers => '{"x-a.b_c~": "ä ö", "tenant": "t"}') IS NOT NULL AS enqueued;

-- a type that is not as it came
BEGIN;
DO $$ BEGIN EXECUTE (SELECT 'ALTER TYPE outbox.new_event ' || string_agg(format('ADD ATTRIBUTE a%s text', n), ', ') FROM generate_series(1, 500) AS n); END $$;
SELECT outbox.enqueue(ARRAY[jsonb_populate_record(NULL::outbox.new_event, '{"aggregate_type": "a", "aggregate_id": "1", "event_type": "E", "payload": {}}')]) IS NOT NULL AS enqueued;
ROLLBACK;
BEGIN;
ALTER TYPE outbox.new_event ALTER ATTRIBUTE aggregate_type TYPE integer;
SELECT outbox.enqueue(ARRAY[jsonb_populate_record(NULL::outbox.new_event, '{"aggregate_type": 1, "aggregate_id": "1", "event_type": "E", "payload": {}}')]) IS NOT NULL AS enqueued;
ROLLBACK;

DROP EXTENSION pg_outbox CASCADE;
