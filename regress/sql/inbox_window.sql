-- The deduplication window: what is older is forgotten, and nothing else. Waiting for what is applied.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
\set SHOW_CONTEXT never

-- An id made at some time, and an event that was applied at another.
CREATE TABLE start AS SELECT now() AS at;
CREATE FUNCTION began() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT at FROM start $$;
CREATE FUNCTION id(made timestamptz, n int DEFAULT 1, version int DEFAULT 7) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || version || '000' || '8000' || lpad(n::text, 12, '0'))::uuid $$;
CREATE FUNCTION applied(id uuid, at timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, processed_at) VALUES (1, id, inbox_internal.bucket(id), at) $$;
CREATE FUNCTION bucket(made timestamptz) RETURNS text LANGUAGE sql AS $$ SELECT 'processed_' || inbox_internal.bucket(id(made)) $$;
-- All steps.
CREATE FUNCTION prune(max_rows int DEFAULT 100000) RETURNS TABLE (part text, action text, removed bigint) LANGUAGE plpgsql AS $$
DECLARE
    done record;
    again boolean := true;
BEGIN
    WHILE again LOOP
        again := false;
        FOR done IN SELECT * FROM inbox.prune(max_rows) LOOP
            again := again OR done.more;
            IF done.action <> 'kept' THEN
                part := done.part; action := done.action; removed := done.removed;
                RETURN NEXT;
            END IF;
        END LOOP;
    END LOOP;
END $$;
SELECT inbox_internal.own_consumer('c', CURRENT_USER);

-- when a bucket ended
SELECT b, inbox_internal.bucket_ended(b, '2024-05-05 00:00+00') AT TIME ZONE 'UTC' AS ended,
       inbox_internal.bucket(id(inbox_internal.bucket_ended(b, '2024-05-05 00:00+00') - interval '1 ms')) AS last_in,
       inbox_internal.bucket(id(inbox_internal.bucket_ended(b, '2024-05-05 00:00+00'))) AS next_in
  FROM generate_series(0, 31) AS b ORDER BY ended DESC;

SELECT * FROM inbox.prune();
SELECT applied(id(began() - interval '9 days', n), began() - interval '9 days') FROM generate_series(1, 3) AS n;
SELECT applied(id(began() - interval '6 days', n), began() - interval '6 days') FROM generate_series(1, 3) AS n;
SELECT applied(id(began(), n), began()) FROM generate_series(1, 3) AS n;
-- a late one, whose bucket has to wait for it
SELECT applied(id(began() - interval '10 days', 1), began() - interval '10 days');
SELECT applied(id(began() - interval '10 days', 2), began() - interval '1 day');
-- ids without a time
SELECT applied(id(began(), n, 4), began() - interval '1 day' * n) FROM generate_series(1, 10) AS n;
-- ids of the future share the bucket of the oldest
SELECT applied(id(began() + interval '33555 seconds'), began());
SELECT replace(part, bucket(began() - interval '9 days'), 'nine days old') AS part, action, removed FROM prune();
SELECT inbox.was_applied('c', id(began() - interval '9 days', 2)) AS nine, inbox.was_applied('c', id(began() - interval '6 days', 2)) AS six,
       inbox.was_applied('c', id(began(), 2)) AS now, inbox.was_applied('c', id(began() - interval '10 days', 2)) AS late,
       inbox.was_applied('c', id(began() + interval '33555 seconds')) AS future;
SELECT array_agg(extract(day FROM began() - processed_at) ORDER BY processed_at DESC) FROM inbox.processed_32;
SELECT 'processed_' || bucket = bucket(began() - interval '10 days') AS of_late, not_before = began() + interval '6 days' AS when
  FROM inbox.bucket_check WHERE not_before < began() + interval '6 days 12 hours';
SELECT * FROM inbox.prune();

-- not looked at again before the late one is old, whatever else happens
UPDATE inbox.processed SET processed_at = began() - interval '8 days' WHERE processed_at = began() - interval '1 day' AND bucket <> 32;
SELECT * FROM inbox.prune();
DELETE FROM inbox.processed_32;
UPDATE inbox.bucket_check SET not_before = began() - interval '1 minute';
UPDATE inbox.processed SET processed_at = began() - interval '8 days' WHERE event_id = id(began() - interval '10 days', 2);
SELECT replace(part, bucket(began() - interval '10 days'), 'ten days old') AS part, action FROM prune();
SELECT inbox.was_applied('c', id(began() - interval '10 days', 2)) AS late, inbox.was_applied('c', id(began() + interval '33555 seconds')) AS future;

-- step by step
SELECT applied(id(began(), n, 4), began() - interval '8 days') FROM generate_series(1, 10) AS n;
SELECT * FROM inbox.prune(4);
SELECT * FROM inbox.prune(4);
SELECT * FROM inbox.prune(4);

-- removals, and failures of events that never came again; nothing that waits
INSERT INTO inbox.tombstone VALUES ('pg_class', 1, '{"id": 1}', '1', began() - interval '8 days'), ('pg_class', 2, '{"id": 2}', '1', began() - interval '6 days');
INSERT INTO inbox.waiting (consumer_id, event_id, seq, ordering_key, attempts, error, sqlstate, last_failed_at, next_attempt_at)
    SELECT 1, id(began(), 100 + n), CASE n WHEN 1 THEN 1 END, '', 1, '', '', began() - interval '1 day' * CASE n WHEN 3 THEN 6 ELSE 8 END, began() FROM generate_series(1, 3) AS n;
INSERT INTO inbox.message (consumer_id, event_id, occurred_at, received_at, topic, aggregate_type, aggregate_id, event_type)
    VALUES (1, id(began()), began() - interval '1 year', began() - interval '1 year', '', '', '', '');
SELECT * FROM inbox.prune();
SELECT key FROM inbox.tombstone;
SELECT seq, extract(day FROM began() - last_failed_at) AS days FROM inbox.waiting ORDER BY 1;
-- what failed in one process and was applied by another
BEGIN;
INSERT INTO inbox.processed (consumer_id, event_id, bucket)
    SELECT consumer_id, event_id, inbox_internal.bucket(event_id) FROM inbox.waiting;
SELECT * FROM inbox.prune();
SELECT seq FROM inbox.waiting;
ROLLBACK;
SELECT count(*) FROM inbox.message;

-- another window
SELECT inbox.set_window('5 days');
SELECT replace(part, bucket(began() - interval '6 days'), 'six days old') AS part, action, removed FROM prune();
SELECT inbox.set_window('0');
SELECT inbox.set_window(NULL);
-- longer than the ring: nothing is emptied, rows are deleted
SELECT inbox.set_window('20 days');
SELECT applied(id(began() - interval '25 days', n), began() - interval '1 day' * (25 - n)) FROM generate_series(1, 10) AS n;
SELECT replace(part, bucket(began() - interval '25 days'), 'old') AS part, action, removed FROM prune(2);
SELECT array_agg(extract(day FROM began() - processed_at) ORDER BY processed_at DESC) FROM inbox.processed WHERE processed_at < began() - interval '7 days';
SELECT role = session_user AS me, consumer, operation, details FROM inbox.operation ORDER BY id;

-- forgetting on purpose
SELECT inbox.forget('c', began() - interval '18 days', 'to build it anew');
SELECT inbox.forget('c', began() - interval '18 days', '');
SELECT inbox.forget('c', NULL, 'why');
SELECT inbox.forget('nobody', began(), 'why');
SELECT count(*) FROM inbox.processed;
SELECT operation, why, details ->> 'forgotten' AS forgotten FROM inbox.operation ORDER BY id DESC LIMIT 1;

-- an event begins in one bucket, and touches no other
BEGIN;
SELECT inbox.begin_event('c', id('2024-05-05')), inbox.begin_event('c', id('2024-05-05', 2)), inbox.was_applied('c', id('2024-05-05', 3));
SELECT DISTINCT relation::regclass FROM pg_locks WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '^inbox.processed(_[0-9]+)?$' ORDER BY 1;
ROLLBACK;

-- waiting
CREATE TABLE item (id int PRIMARY KEY, version int, at timestamptz);
SELECT inbox.apply('item', '{id}', 'version', '{"id": 1, "version": 5, "at": "2024-01-01 00:00+00"}');
SELECT inbox.wait_for('item', '{"id": 1}', 5), inbox.wait_for('item'::regclass, '{"id": "1"}'::jsonb, '4'), inbox.wait_for('item', '{"id": 1}', 4::numeric);
SELECT inbox.wait_for('item', '{"id": 1}', 6, timeout => '10 ms'), inbox.wait_for('item', '{"id": 2}', 1, timeout => '0');
SELECT inbox.wait_for('item', '{"id": 1}', '2024-01-01 01:00+01'::timestamptz, 'at'), inbox.wait_for('item', '{"id": 1}', '2024-01-01 00:00:01+00'::timestamptz, 'at', '0');
SELECT inbox.remove('item', '{id}', 'version', '{"id": 1, "version": 10}');
SELECT inbox.wait_for('item', '{"id": 1}', 9), inbox.wait_for('item', '{"id": 1}', 10), inbox.wait_for('item', '{"id": 1}', 11, timeout => '0');
SELECT inbox.begin_event('c', id('2024-05-05'));
SELECT inbox.wait_for('c', id('2024-05-05')), inbox.wait_for('c', id('2024-05-05', 2), '10 ms');
INSERT INTO inbox.dead_message (seq, consumer_id, event_id, occurred_at, received_at, schema_version, source, topic, aggregate_type, aggregate_id,
                                event_type, ordering_key, content_type, attempts, error, sqlstate, first_failed_at)
    VALUES (1, 1, '00000000-0000-7000-8000-000000000001', began(), began(), 1, '', '', '', '', '', '', '', 1, '', '', began());
SELECT inbox.wait_for('c', '00000000-0000-7000-8000-000000000001');
SELECT inbox.wait_for('nobody', id('2024-05-05'));
SELECT inbox.wait_for('c', id('2024-05-05'), '2 hours');
SELECT inbox.wait_for('c', id('2024-05-05'), '-1 second');
SELECT inbox.wait_for('c', id('2024-05-05'), NULL);
SELECT inbox.wait_for('item', '[1]', 5);
SELECT inbox.wait_for('item', '{"id": 1, "nope": 2}', 5);
SELECT inbox.wait_for('item', '{}', 5);
SELECT inbox.wait_for('item', '{"id": 1}', NULL::int);
SELECT inbox.wait_for('item'::regclass, '{"id": 1}'::jsonb, 'x');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT inbox.wait_for('item', '{"id": 1}', 5);
ROLLBACK;
SET statement_timeout = '50 ms';
SELECT inbox.wait_for('item', '{"id": 3}', 5, timeout => '1 hour');
RESET statement_timeout;

DROP TABLE item;
DROP FUNCTION id, applied, bucket, began, prune;
DROP TABLE start;
DROP EXTENSION pg_inbox;
