-- What people see: where an event is, health, status, metrics.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
CREATE SCHEMA seen;
SET search_path = seen;
SET datestyle = 'ISO';
\set SHOW_CONTEXT never

CREATE FUNCTION id(n int) RETURNS uuid LANGUAGE sql AS $$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE FUNCTION receive(consumer text, first int, last int, key text DEFAULT '', content_type text DEFAULT 'application/json', payload bytea DEFAULT '{"a": 1}')
RETURNS bigint LANGUAGE sql AS $$
    SELECT inbox.receive(consumer, 'test',
        array_agg(id(g) ORDER BY g), array_agg(now() ORDER BY g), array_agg(g::bigint ORDER BY g), array_agg(g::bigint ORDER BY g),
        array_agg(1 ORDER BY g), array_agg(NULL::uuid ORDER BY g),
        array_agg('t.events'::text ORDER BY g), array_agg('t'::text ORDER BY g), array_agg(key ORDER BY g),
        array_agg('Thing'::text ORDER BY g), array_agg(key ORDER BY g), array_agg(content_type ORDER BY g),
        array_agg(NULL::jsonb ORDER BY g), array_agg(payload ORDER BY g))
      FROM generate_series(first, last) AS g
$$;
-- times differ from run to run
CREATE FUNCTION where_is(n int) RETURNS TABLE (consumer text, state text, attempts int, again boolean, behind uuid, sqlstate text, error text, why text, what_to_do text)
LANGUAGE sql AS $$
    SELECT consumer, state, attempts, next_attempt_at > now(), behind, sqlstate, error,
           regexp_replace(why, '(until|at) \d.*', '\1 T'), what_to_do
      FROM inbox.event_status(id(n)) $$;
\x on

-- where an event is
SELECT * FROM inbox.event_status(NULL);
SELECT * FROM where_is(1);
SELECT receive('c', 1, 2, 'a'), receive('c', 3, 3), receive('c', 4, 4, 'b');
SELECT * FROM where_is(1);
SELECT inbox.set_policy('c', retry_base => '1 h', retry_max => '1 h', on_dead_letter => 'block');
SELECT token, "position" FROM inbox.claim('c', 1) \gset first_
SELECT * FROM where_is(1);
SELECT * FROM where_is(2);
SELECT * FROM where_is(3);
UPDATE inbox.claimed SET leased_until = now() - interval '1 s';
SELECT state, why ~ '^a process has claimed it, and its lease ended at', what_to_do FROM where_is(1);
SELECT inbox.fail(:'first_token', id(1), 'no 1', '22012', detail => 'a detail', hint => 'a hint', context => 'a context');
SELECT error, detail, hint, context, payload_text, payload_jsonb FROM inbox.waiting_keys;
SELECT * FROM where_is(1);
SELECT * FROM where_is(2);
SELECT token FROM inbox.claim('c') LIMIT 1 \gset second_
SELECT inbox.complete(:'second_token', id(3)), inbox.fail(:'second_token', id(4), 'no 4', permanent => true);
SELECT * FROM where_is(3);
SELECT * FROM where_is(4);
SELECT receive('c', 5, 5, 'b');
SELECT * FROM where_is(5);
SELECT inbox.discard('c', ARRAY[id(4)], 'test data');
SELECT state, why FROM where_is(4);
SELECT inbox.fail_event('now', 'test', id(6), now(), NULL, 1, 1, NULL, 't', 't', 'k', 'Thing', 'k', 'text/plain', NULL, 'x', 'no 6', 'P0001');
SELECT * FROM where_is(6);
-- ids of version 7 have a time, after which they may be forgotten
SELECT state, since = to_timestamp(1640995200) + interval '7 days' AS from_the_end_of_the_window, why
  FROM inbox.event_status('017e12ef-9c00-7000-8000-000000000001') WHERE consumer = 'c';
SELECT state FROM inbox.event_status((lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008000000000000001')::uuid) WHERE consumer = 'c';
-- a role sees what happened to its own consumers, a monitor no error messages, an operator all
CREATE ROLE regress_consumer;
CREATE ROLE regress_monitor;
CREATE ROLE regress_operator;
SELECT inbox.grant_consume('regress_consumer'), inbox.grant_monitor('regress_monitor'), inbox.grant_operate('regress_operator');
SET ROLE regress_consumer;
SELECT inbox.was_applied('own', '00000000-0000-4000-8000-000000000001');
SELECT consumer, state FROM inbox.event_status('00000000-0000-4000-8000-000000000001');
SET ROLE regress_monitor;
SELECT consumer, state, sqlstate, error FROM inbox.event_status('00000000-0000-4000-8000-000000000001');
SET ROLE regress_operator;
SELECT consumer, state, sqlstate, error FROM inbox.event_status('00000000-0000-4000-8000-000000000001');
RESET ROLE;

\x off

-- payloads that people can read, whatever is in them
SELECT content_type, payload, inbox.payload_text(content_type, payload) AS text, inbox.payload_jsonb(content_type, payload) AS jsonb
  FROM (VALUES ('application/json', '{"a": [1, "ä"]}'::bytea), (' Application/CloudEvents+JSON ; charset=utf-8', '7'),
               ('application/json', '{'), ('application/json', '"\\u0000"'), ('application/json', '\x22ff22'), ('application/json', NULL),
               ('application/jsonlines', '{}'), ('text/plain', 'a text'), ('text/plain', '\xff'), ('text/plain', '\x00'), ('application/soap+xml', '<a/>'),
               ('application/x-protobuf', '\x00ff'), ('', '{}'), (NULL, '{}')) AS p(content_type, payload);
SELECT length(inbox.payload_text('application/json', deep)), inbox.payload_jsonb('application/json', deep) IS NULL AS too_deep
  FROM (SELECT convert_to(repeat('[', 100000), 'UTF8')) AS p(deep);

-- figures of consumers outside the server: of what is claimed
CREATE FUNCTION figures() RETURNS TABLE (consumer text, state text, processed bigint, failures bigint, claimed bigint, latency boolean, seen boolean)
LANGUAGE sql AS $$ SELECT consumer, state, processed, failures, claimed, latency_p50 >= '0', seen_at > now() - interval '1 min' FROM inbox.status WHERE consumer IN ('f', 'g', 'h') ORDER BY 1 $$;
SELECT receive('f', 1, 2, 'a'), receive('f', 3, 6), inbox.set_policy('f', retry_base => '1000 h', retry_max => '1000 h');
SELECT * FROM figures();
-- The message that is measured is chosen at random: here the first one.
SELECT setseed(-0.1) \gset
SELECT token FROM inbox.claim('f', 3) LIMIT 1 \gset f_
SELECT * FROM figures();
SELECT inbox.complete(:'f_token', id(1));
SELECT * FROM figures();
SELECT inbox.fail(:'f_token', id(2), 'no 2'), inbox.release(:'f_token');
SELECT * FROM figures();
SELECT token FROM inbox.claim('f') LIMIT 1 \gset f_
SELECT count(inbox.complete(:'f_token', id(n))) FROM generate_series(3, 6) AS n;
SELECT * FROM figures();
UPDATE inbox.waiting SET next_attempt_at = now();
SELECT count(*) FROM inbox.claim('f');
UPDATE inbox.claimed SET leased_until = now() - interval '1 s';
SELECT count(*) FROM inbox.claim('f');
SELECT * FROM figures();
SELECT count(*) FROM inbox.progress_change WHERE consumer_id = (SELECT id FROM inbox.consumer WHERE name = 'f');
-- ... and of what is handled at once
SELECT inbox.report_progress('g', 'one', 10, 5, '1 s', '2 s'), inbox.report_progress('g', 'two', 1), inbox.report_progress('g', 'one', 3, 0);
SELECT inbox.report_progress('g', 'two', 0, latency_buckets => array_fill(0, '{16}') || array_fill(1::bigint, '{1}'), latency_sum => 900);
SELECT inbox.report_progress('g', 'one', 0, latency_buckets => array_fill(0, '{10}') || array_fill(2::bigint, '{7}'), latency_sum => 3.5);
SELECT inbox.report_progress('g', 'one', 0, latency_buckets => array_fill(0, '{10}') || array_fill(1::bigint, '{7}'), latency_sum => 2.5);
SELECT latency_buckets, latency_sum FROM inbox.status WHERE consumer = 'g';
-- one claimed message is measured, and counts for all that were claimed since the one before
SELECT latency_buckets[17] FROM inbox.status WHERE consumer = 'f';
SELECT inbox.begin_event('h', id(1)), inbox.save_offset('h', 's', 'm', now() - interval '90 s');
SELECT inbox.fail_event('h', 'test', id(2), now(), NULL, 1, 1, NULL, 't', 't', 'k', 'Thing', 'k', 'text/plain', NULL, 'x', 'no 2', 'P0001');
SELECT * FROM figures();
SELECT consumer, source_lag >= '90 s' AND source_lag < '1 h' AS source_lag FROM inbox.lag WHERE consumer IN ('g', 'h');
UPDATE inbox.instance SET seen_at = now() - interval '3 h', expected_by = now() - interval '2 h', outstanding = 1;
UPDATE inbox.instance SET seen_at = now() - interval '4 h' WHERE name = 'two';
SELECT count(*) FROM inbox.prune();
SELECT name FROM inbox.instance;
SELECT * FROM figures();
SELECT latency_buckets, latency_sum FROM inbox.status WHERE consumer = 'g';
SELECT inbox.report_progress('g', '', 1);
SELECT inbox.report_progress('g', 'one', -1);
SELECT inbox.report_progress('g', 'one', 1, report_every => '0');
SELECT inbox.report_progress('g', 'one', 1, latency_buckets => '{1,2}');
SELECT inbox.report_progress('g', 'one', 1, latency_buckets => array_fill(2, '{16}') || 1::bigint);
SELECT inbox.report_progress('g', 'one', 1, latency_buckets => array_fill(1::bigint, '{17}'), latency_sum => 'NaN');
-- a consumer that the server has served and a process outside serves now
CREATE FUNCTION handle(inbox.message) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT inbox.subscribe('moved', 'Thing', 'handle');
SELECT inbox_internal.save_progress((SELECT id FROM inbox.consumer WHERE name = 'moved'), 3, 0, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT inbox.unsubscribe('moved', 'Thing', 'handle');
SELECT state FROM inbox.status WHERE consumer = 'moved';
SELECT inbox.fail_event('moved', 'test', id(2), now(), NULL, 1, 1, NULL, 't', 't', 'k', 'Thing', 'k', 'text/plain', NULL, 'x', 'no 2', 'P0001');
SELECT state, failures FROM inbox.status WHERE consumer = 'moved';
SELECT count(*) FROM inbox.prune();
SELECT state, failures FROM inbox.status WHERE consumer = 'moved';
SELECT inbox.end_failure('moved', ARRAY[id(2)]);
-- versions that an aggregate is behind
SELECT receive('moved', 21, 23, 'k');
SELECT consumer, versions_behind FROM inbox.lag WHERE consumer IN ('moved', 'g') ORDER BY consumer;
SELECT inbox.drop_consumer('moved', 'x', true);

-- health
CREATE FUNCTION sick() RETURNS TABLE (severity text, object text, what text, why text, what_to_do text) LANGUAGE sql AS $$
    SELECT severity, object, what, regexp_replace(why, '(last claim was at|had waited for) .*', '\1 T'), what_to_do FROM inbox.health() $$;
CREATE FUNCTION get_old() RETURNS void LANGUAGE sql AS $$
    UPDATE inbox.message SET received_at = now() - interval '1 h';
    UPDATE inbox.waiting SET first_failed_at = now() - interval '1 h' $$;
SELECT inbox.discard(name, ARRAY[id(1), id(2), id(6)], 'x') FROM inbox.consumer ORDER BY name;
DELETE FROM inbox.message;
DELETE FROM inbox.claimed;
\x on
SELECT * FROM sick();
-- an offset that stands still because nothing comes is not an alarm, nor a process that has nothing to do
UPDATE inbox.consumer_offset SET updated_at = now() - interval '11 s';
UPDATE inbox.instance SET outstanding = 0;
SELECT * FROM sick();
SELECT inbox.report_progress('h', 'x', 0, 3);
SELECT what FROM sick();
SELECT inbox.report_progress('h', 'x', 3, 0);
-- messages that nobody takes, or somebody without an end
SELECT receive('nobody', 1, 1), receive('f', 11, 12, 'k');
SELECT * FROM sick();
SELECT get_old();
SELECT * FROM sick();
SELECT token FROM inbox.claim('f', 1) \gset f_
SELECT severity, what, why, what_to_do FROM sick() WHERE object LIKE '%f"';
-- what failed, or is behind a failed one, is no other problem
SELECT inbox.fail(:'f_token', id(11), 'no 11'), get_old();
SELECT * FROM sick() WHERE object LIKE '%f"';
UPDATE inbox.waiting SET first_failed_at = now();
SELECT what FROM sick() WHERE object LIKE '%f"';
SELECT count(*) FROM inbox.health('2 h');
-- ... unless there are so many that others may wait behind them
SELECT receive('f', 2001, 3500, 'k'), get_old();
SELECT severity, what FROM sick() WHERE object LIKE '%f"';
\x off

-- consumers that do not exist, or should not exist any more
SELECT * FROM inbox.claim('bilin');
SELECT * FROM inbox.claim('');
SELECT inbox.create_consumer('billing'), inbox.create_consumer('billing');
SELECT * FROM inbox.claim('billing');
SELECT state FROM inbox.status WHERE consumer = 'billing';
SELECT receive('billing', 1, 2, 'k'), inbox.begin_event('billing', id(3)), inbox.save_offset('billing', 's', 'm', now()), inbox.report_progress('billing', 'x', 1);
SELECT inbox.drop_consumer('nobody is this', 'x');
SELECT inbox.drop_consumer('billing', 'misspelt');
SELECT token FROM inbox.claim('billing', 1) \gset billing_
SELECT inbox.drop_consumer('billing', 'misspelt', true);
SELECT inbox.fail(:'billing_token', id(1), 'x', permanent => true);
SELECT inbox.drop_consumer('billing', '', true);
SELECT inbox.drop_consumer('billing', 'misspelt', discard_messages => true);
SELECT operation, details, why FROM inbox.operation WHERE consumer = 'billing';
SELECT count(*) FROM inbox.status WHERE consumer = 'billing';
DO $$
DECLARE
    part regclass;
    rows bigint;
BEGIN
    FOR part IN SELECT attrelid FROM pg_attribute JOIN pg_class AS t ON t.oid = attrelid
                 WHERE relnamespace = 'inbox'::regnamespace AND attname = 'consumer_id' AND relkind = 'r' LOOP
        EXECUTE format('SELECT count(*) FROM %s WHERE consumer_id NOT IN (SELECT id FROM inbox.consumer)', part) INTO rows;
        IF rows > 0 THEN
            RAISE WARNING '% has % rows of a consumer that was dropped', part, rows;
        END IF;
    END LOOP;
END $$;
SELECT receive('billing', 1, 1);
SELECT state FROM inbox.status WHERE consumer = 'billing';
INSERT INTO inbox.consumer (name, role, subscriptions) VALUES ('served', session_user, 1);
SELECT inbox.drop_consumer('served', 'x');

DROP OWNED BY regress_consumer, regress_monitor, regress_operator;
DROP EXTENSION pg_inbox CASCADE;
DROP SCHEMA seen CASCADE;
DROP ROLE regress_consumer, regress_monitor, regress_operator;
