-- Events that fail: policies, attempts, dead letters, and what people decide about them.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
CREATE SCHEMA failure;
SET search_path = failure;
\set SHOW_CONTEXT never

CREATE FUNCTION id(n int) RETURNS uuid LANGUAGE sql AS $$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE FUNCTION receive(consumer text, first int, last int, key text DEFAULT '') RETURNS bigint LANGUAGE sql AS $$
    SELECT inbox.receive(consumer, 'test',
        array_agg(id(g) ORDER BY g), array_agg(now() ORDER BY g), array_agg(g::bigint ORDER BY g), array_agg(g::bigint ORDER BY g),
        array_agg(1 ORDER BY g), array_agg(NULL::uuid ORDER BY g),
        array_agg('t.events'::text ORDER BY g), array_agg('t'::text ORDER BY g), array_agg(key ORDER BY g),
        array_agg('Thing'::text ORDER BY g), array_agg(key ORDER BY g), array_agg('application/json'::text ORDER BY g),
        array_agg(NULL::jsonb ORDER BY g), array_agg(convert_to(jsonb_build_object('n', g)::text, 'UTF8') ORDER BY g))
      FROM generate_series(first, last) AS g
$$;
CREATE FUNCTION fail_event(consumer text, n int, key text DEFAULT 'k', state text DEFAULT 'P0001', permanent boolean DEFAULT false, max_attempts int DEFAULT NULL)
RETURNS boolean LANGUAGE sql AS $$
    SELECT inbox.fail_event(consumer, 'test', id(n), '2024-01-01', NULL, n, 1, NULL, 't.events', 't', key, 'Thing', key,
                            'application/json', '{"a": 1}', '\x00ff', 'no ' || n, state, permanent, max_attempts) $$;
-- what is due is due now
CREATE FUNCTION hurry() RETURNS void LANGUAGE sql AS $$ UPDATE inbox.waiting SET next_attempt_at = '-infinity' $$;

-- policies
SELECT inbox.set_policy('p', max_attempts => 3, retry_base => '2 s', retry_max => '1 min', on_dead_letter => 'block');
SELECT inbox.set_policy('p', max_attempts => 4);
SELECT inbox.set_policy('p', max_attempts => 4);
SELECT max_attempts, retry_base, retry_max, on_dead_letter FROM inbox.consumer WHERE name = 'p';
SELECT consumer, operation, details, role = session_user AS mine FROM inbox.operation ORDER BY id;
SELECT inbox.set_policy('p', max_attempts => 0);
SELECT inbox.set_policy('p', retry_base => '0');
SELECT inbox.set_policy('p', retry_base => '2 min');
SELECT inbox.set_policy('p', on_dead_letter => 'forget');
SELECT n AS attempts, bool_and(delay BETWEEN '0' AND least(interval '1 min', interval '2 s' * 2 ^ (n - 1))) AS in_range,
       max(delay) > least(interval '1 min', interval '2 s' * 2 ^ (n - 1)) / 2 AS uses_it
  FROM (SELECT n, inbox_internal.retry_delay(c, n) AS delay FROM inbox.consumer AS c, generate_series(1, 7) AS n, generate_series(1, 100) WHERE c.name = 'p') AS s
 GROUP BY n ORDER BY n;
SELECT inbox_internal.retry_delay(c, 2147483647) <= '1 min' AS late FROM inbox.consumer AS c WHERE c.name = 'p';

-- handled at once: attempts are counted, a success ends that
SELECT fail_event('now', 1), fail_event('now', 1);
SELECT event_id, attempts, error, sqlstate, seq, detail, hint, context FROM inbox.waiting;
SELECT inbox.end_failure('now', ARRAY[id(1), id(2)]);
SELECT count(*) AS waiting FROM inbox.waiting;
-- ... and the last makes a dead letter, whose id is remembered
SELECT inbox.set_policy('now', max_attempts => 2);
SELECT fail_event('now', 2), fail_event('now', 2);
SELECT fail_event('now', 3, max_attempts => 3), fail_event('now', 3, max_attempts => 3), fail_event('now', 3, max_attempts => 3);
SELECT fail_event('now', 4, permanent => true), fail_event('now', 5, state => 'IL002');
SELECT consumer, event_id, ordering_key, event_type, version, attempts, sqlstate, error, blocks, headers, payload FROM inbox.dead_letter ORDER BY event_id;
SELECT inbox.begin_events('now', ARRAY[id(1), id(2), id(3)]);
SELECT count(*) AS waiting FROM inbox.waiting;
-- applied by somebody else, or dead, since the attempt began
SELECT fail_event('now', 1, permanent => true), fail_event('now', 2, permanent => true);
SELECT count(*) AS waiting FROM inbox.waiting;
-- where dead letters block, an event that is not stored here is never given up, but by a person
SELECT inbox.set_policy('strict', max_attempts => 1, on_dead_letter => 'block');
SELECT fail_event('strict', 1), fail_event('strict', 1, permanent => true);
SELECT inbox.discard('strict', ARRAY[id(1)], 'known');
SELECT inbox.begin_event('strict', id(1));

-- processed in the server
CREATE TABLE seen (number int GENERATED ALWAYS AS IDENTITY, position bigint);
CREATE TABLE poison (position bigint, state text DEFAULT 'P0042');
CREATE FUNCTION handle(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    wrong text := (SELECT p.state FROM poison AS p WHERE p.position = m.position);
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'poison %', m.position USING ERRCODE = wrong, DETAIL = 'a detail', HINT = 'a hint';
    END IF;
    INSERT INTO seen (position) VALUES (m.position);
END $$;
INSERT INTO inbox.consumer (name, role, max_attempts, retry_base) VALUES ('c', session_user, 2, '1 min');  -- a retry is due when hurry() says so
INSERT INTO inbox.subscription (consumer_id, event_type, handler) SELECT id, '*', 'failure.handle' FROM inbox.consumer WHERE name = 'c';
SELECT * FROM inbox.confirm('c');
SELECT id AS c FROM inbox.consumer WHERE name = 'c' \gset
CREATE FUNCTION work() RETURNS TABLE (done boolean, "position" bigint) LANGUAGE sql AS $$
    SELECT inbox_internal.process(m.consumer_id, m.seq, inbox_internal.confirmed_subscriptions(m.consumer_id)), m.position
      FROM inbox.consumer AS c, inbox_internal.next_messages(c.id, 100) AS n, inbox.message AS m
     WHERE c.name = 'c' AND m.consumer_id = c.id AND m.seq = n.seq ORDER BY m.seq $$;
INSERT INTO poison VALUES (12);
SELECT receive('c', 11, 14, 'key');
SELECT * FROM work();
SELECT hurry();
-- a dead letter releases its key
SELECT * FROM work();
SELECT * FROM work();
SELECT event_id, attempts, sqlstate, error, blocks FROM inbox.dead_letter WHERE consumer = 'c';
SELECT detail, hint, split_part(context, E'\n', 1) AS context, payload_text, payload_jsonb FROM inbox.dead_letter WHERE consumer = 'c';
-- received again: no effect
SELECT receive('c', 12, 12, 'key');
SELECT * FROM work();
SELECT position FROM seen ORDER BY number;
-- redriven, though a repetition waits: in its old place
TRUNCATE seen;
SELECT receive('c', 12, 12, 'key');
SELECT receive('c', 15, 15, 'key');
SELECT inbox.redrive('c', why => 'handler mended');
SELECT count(*) AS dead FROM inbox.dead_letter WHERE consumer = 'c';
SELECT * FROM work();
DELETE FROM poison;
SELECT hurry();
SELECT * FROM work();
SELECT * FROM work();
SELECT position FROM seen ORDER BY number;
-- ... or blocks it until a person decides
SELECT inbox.set_policy('c', on_dead_letter => 'block');
TRUNCATE seen;
INSERT INTO poison VALUES (21, 'IL002'), (31, 'IL002');
SELECT receive('c', 21, 22, 'key'), receive('c', 31, 32, 'other'), receive('c', 41, 41), receive('c', 42, 42, 'third');
SELECT * FROM work();
SELECT * FROM work();
SELECT event_id, attempts, sqlstate, blocks FROM inbox.dead_letter WHERE consumer = 'c';
SELECT inbox_internal.process(m.consumer_id, m.seq, inbox_internal.confirmed_subscriptions(m.consumer_id)) IS NULL AS waits FROM inbox.message AS m ORDER BY m.seq;
SELECT inbox.redrive('c', ARRAY[id(31)]);
DELETE FROM poison;
SELECT * FROM work();
SELECT inbox.discard('c', ARRAY[id(21), id(99)], 'wrong by design');
SELECT * FROM work();
SELECT position FROM seen ORDER BY number;
SELECT receive('c', 21, 21, 'key');
SELECT * FROM work();
-- a person does not wait for the last attempt
SELECT inbox.set_policy('c', on_dead_letter => 'release', max_attempts => 10);
INSERT INTO poison VALUES (51);
SELECT receive('c', 51, 52, 'key');
SELECT * FROM work();
SELECT inbox.discard('c', ARRAY[id(51)], 'wrong by design');
SELECT * FROM work();
SELECT consumer, operation, details, why FROM inbox.operation ORDER BY id;
SELECT inbox.discard('c', NULL, 'why');
SELECT inbox.discard('c', '{}', '');
SELECT inbox.redrive('nobody');
SELECT (SELECT count(*) FROM inbox.waiting) AS waiting, (SELECT count(*) FROM inbox.message) AS messages;

-- when the next attempt is: of what can be tried
INSERT INTO poison VALUES (61), (62), (71), (72);
SELECT receive('c', 61, 62, 'key'), receive('c', 71, 72, 'other'), fail_event('c', 80, 'third');
UPDATE poison SET state = 'IL002' WHERE position IN (61, 71);
SELECT * FROM work();
SELECT * FROM work();
UPDATE inbox.waiting SET next_attempt_at = '2124-01-01'::timestamptz + version * interval '1 day'
  FROM inbox.message AS m WHERE m.event_id = waiting.event_id;
UPDATE inbox.waiting SET next_attempt_at = '-infinity' WHERE seq IS NULL;
SELECT inbox_internal.next_attempt(:c) = '2124-01-01'::timestamptz + 62 * interval '1 day' AS all_can;
UPDATE poison SET state = 'P0001';
SELECT inbox.redrive('c', ARRAY[id(61)]);
SELECT * FROM work();
UPDATE inbox.waiting SET next_attempt_at = 'infinity' WHERE event_id = id(61);
SELECT inbox_internal.next_attempt(:c) = '2124-01-01'::timestamptz + 72 * interval '1 day' AS behind_one_that_waits;
SELECT inbox.set_policy('c', on_dead_letter => 'block');
SELECT inbox_internal.next_attempt(:c) AS behind_a_dead_letter;

DROP EXTENSION pg_inbox CASCADE;
DROP SCHEMA failure CASCADE;
