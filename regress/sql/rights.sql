-- Nobody else may enqueue, or look.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
\set SHOW_CONTEXT never

CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://localhost:9/');
CREATE ROLE regress_app;
SET ROLE regress_app;
SELECT outbox.enqueue('a', '1', 'E', '{}');
SELECT * FROM outbox.status;
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_app;
SET ROLE regress_app;
SELECT outbox.enqueue('a', '1', 'E', '{}');
SELECT * FROM outbox.event;
SELECT * FROM outbox.status;
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox.enqueue(text, text, text, jsonb, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) TO regress_app;
SET ROLE regress_app;
SELECT outbox.enqueue('a', '1', 'E', '{}');
RESET ROLE;
SELECT outbox.grant_produce('regress_app', 'a.*');
SET ROLE regress_app;
SELECT outbox.enqueue('a', '1', 'E', '{}') IS NOT NULL AS enqueued;
SELECT outbox.enqueue('a', '1', 'E', '{}', source_event_id => '0190f3a4-0000-7000-8000-000000000001') IS NOT NULL AS enqueued;
SELECT count(*) FROM outbox.event;
RESET ROLE;
SELECT count(*) FROM outbox.event;
REVOKE USAGE ON SCHEMA outbox FROM regress_app;
GRANT pg_monitor TO regress_app;
SET ROLE regress_app;
SELECT destination, state = 'stopped' OR pid IS NOT NULL AS known FROM outbox.status;
RESET ROLE;
DROP OWNED BY regress_app;
DROP ROLE regress_app;
DROP EXTENSION pg_outbox CASCADE;
