-- Messages processed outside the server: claimed under a lease, completed or failed.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
CREATE SCHEMA claim;
SET search_path = claim;
\set SHOW_CONTEXT never
-- messages about leases name tokens, which are random
\set VERBOSITY sqlstate

CREATE FUNCTION id(n int) RETURNS uuid LANGUAGE sql AS $$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
CREATE FUNCTION receive(consumer text, first int, last int, key text DEFAULT '') RETURNS bigint LANGUAGE sql AS $$
    SELECT inbox.receive(consumer, 'test',
        array_agg(id(g) ORDER BY g), array_agg('2024-01-01'::timestamptz ORDER BY g), array_agg(g::bigint ORDER BY g), array_agg(g::bigint ORDER BY g),
        array_agg(1 ORDER BY g), array_agg(NULL::uuid ORDER BY g),
        array_agg('t.events'::text ORDER BY g), array_agg('t'::text ORDER BY g), array_agg(key ORDER BY g),
        array_agg('Thing'::text ORDER BY g), array_agg(key ORDER BY g), array_agg('application/json'::text ORDER BY g),
        array_agg('{"h": 1}'::jsonb ORDER BY g), array_agg(convert_to(jsonb_build_object('n', g)::text, 'UTF8') ORDER BY g))
      FROM generate_series(first, last) AS g
$$;
CREATE FUNCTION hurry() RETURNS void LANGUAGE sql AS $$ UPDATE inbox.waiting SET next_attempt_at = '-infinity' $$;
CREATE FUNCTION lose_leases() RETURNS void LANGUAGE sql AS $$ UPDATE inbox.claimed SET leased_until = '-infinity' $$;
-- under which token is what, by the name of who claimed it
CREATE TABLE lease (name text, token uuid, attempt int, "position" bigint);
CREATE FUNCTION claim(who text, max_messages int DEFAULT 100) RETURNS TABLE (attempt int, "position" bigint) LANGUAGE sql AS $$
    INSERT INTO lease SELECT who, token, attempt, "position" FROM inbox.claim('c', max_messages);
    SELECT attempt, "position" FROM lease WHERE token = (SELECT token FROM inbox.claimed WHERE token IN (SELECT token FROM lease WHERE name = who) LIMIT 1) $$;
CREATE FUNCTION token(who text, n int) RETURNS uuid LANGUAGE sql AS $$ SELECT token FROM lease WHERE name = who AND "position" = n $$;
CREATE FUNCTION complete(who text, n int) RETURNS boolean LANGUAGE sql AS $$ SELECT inbox.complete(token(who, n), id(n)) $$;
CREATE FUNCTION fail(who text, n int, permanent boolean DEFAULT false) RETURNS text LANGUAGE sql AS $$ SELECT inbox.fail(token(who, n), id(n), 'no ' || n, 'P0001', permanent) $$;

SELECT * FROM inbox.claim('c');
SELECT inbox.create_consumer('c'), inbox.create_consumer('c');
SELECT * FROM inbox.claim('c');
SELECT receive('c', 1, 3, 'a'), receive('c', 4, 5, 'b'), receive('c', 6, 7), receive('other', 1, 1);
SELECT attempt, seq, event_id, occurred_at = '2024-01-01' AS occurred, received_at > now() - interval '1 minute' AS received,
       "position", version, schema_version, source_event_id, source, topic, aggregate_type, aggregate_id, event_type, ordering_key,
       content_type, headers, payload FROM inbox.claim('other');
-- what is claimed is not claimed again, nor what comes behind it in its key
SELECT * FROM claim('one', 2);
SELECT * FROM claim('two');
SELECT * FROM claim('three');
SELECT complete('one', 1), complete('one', 2);
SELECT * FROM claim('three');
SELECT complete('one', 2);
SELECT complete('two', 3);
SELECT inbox.extend(token('three', 3), '1 hour') > now() + interval '59 min' AS extended;
SELECT inbox.extend(token('one', 1));
SELECT inbox.release(token('two', 4)), inbox.release(token('one', 1));
SELECT * FROM claim('four');
SELECT complete('three', 3), complete('four', 4), complete('four', 5), complete('four', 6), complete('four', 7);
SELECT count(*) AS left FROM inbox.message AS m JOIN inbox.consumer AS c ON c.id = m.consumer_id WHERE c.name = 'c';

-- a repetition is found when it is completed
SELECT receive('c', 1, 1, 'a');
SELECT * FROM claim('again');
SELECT complete('again', 1);

-- a failure gives the rest of its key back, and nothing else
TRUNCATE lease;
-- what has failed waits until hurry(), however slow the server is
SELECT inbox.set_policy('c', retry_base => '1000 h', retry_max => '1000 h');
SELECT receive('c', 11, 13, 'a'), receive('c', 14, 14, 'b'), receive('c', 15, 16);
SELECT * FROM claim('one');
SELECT complete('one', 11), fail('one', 12);
SELECT complete('one', 13);
SELECT complete('one', 14), fail('one', 15), complete('one', 16);
SELECT * FROM claim('two');
SELECT hurry();
SELECT * FROM claim('two');
SELECT fail('two', 12, permanent => true), complete('two', 15);
SELECT * FROM claim('three');
SELECT complete('three', 13);
SELECT event_id, attempts, error, sqlstate FROM inbox.dead_letter;
-- redriven: it starts over
SELECT inbox.redrive('c');
SELECT * FROM claim('four');
SELECT complete('four', 12);
SELECT count(*) AS claimed FROM inbox.claimed AS m JOIN inbox.consumer AS c ON c.id = m.consumer_id WHERE c.name = 'c';

-- after a dead letter the key goes on, or is blocked
TRUNCATE lease;
SELECT receive('c', 21, 22, 'a');
SELECT * FROM claim('one');
SELECT fail('one', 21, permanent => true), complete('one', 22);
SELECT inbox.discard('c', ARRAY[id(21)], 'x'), inbox.set_policy('c', on_dead_letter => 'block');
SELECT receive('c', 23, 24, 'a');
SELECT * FROM claim('two');
SELECT fail('two', 23, permanent => true);
SELECT complete('two', 24);
SELECT * FROM claim('three');
SELECT inbox.discard('c', ARRAY[id(23)], 'x');
SELECT * FROM claim('three');
SELECT complete('three', 24);

-- a lease that was lost: counts as an attempt, and whoever had it cannot go on
TRUNCATE lease;
SELECT inbox.set_policy('c', max_attempts => 3);
SELECT receive('c', 31, 32, 'a'), receive('c', 33, 34);
SELECT * FROM claim('one');
SELECT lose_leases();
SELECT complete('one', 34);
SELECT * FROM claim('two');
SELECT complete('one', 31);
SELECT fail('one', 31);
SELECT inbox.extend(token('one', 31));
SELECT inbox.release(token('one', 31));
SELECT error LIKE 'the lease ended at -infinity, %' AS error, sqlstate, attempts FROM inbox.waiting;
-- then each is claimed alone, for one of them may be why
SELECT receive('c', 35, 36);
SELECT * FROM claim('three');
SELECT complete('three', 35), complete('three', 36);
SELECT hurry();
SELECT * FROM claim('four');
SELECT * FROM claim('five');
SELECT * FROM claim('six');
SELECT complete('five', 33);
SELECT lose_leases();
SELECT * FROM claim('seven');
SELECT hurry();
SELECT * FROM claim('seven');
SELECT lose_leases();
SELECT * FROM claim('eight');
SELECT event_id, attempts, sqlstate, blocks FROM inbox.dead_letter;
SELECT * FROM claim('eight');
SELECT inbox.set_policy('c', on_dead_letter => 'release');
SELECT hurry();
SELECT * FROM claim('eight');
SELECT complete('eight', 32);

-- what cannot be claimed
\set VERBOSITY default
SELECT inbox.claim('c', 0);
SELECT inbox.claim('c', NULL);
SELECT inbox.claim('c', 1, '0');
SELECT inbox.claim('c', 1, '2 days');
SELECT inbox.claim('');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT inbox.claim('c');
ROLLBACK;
CREATE FUNCTION handle(m inbox.message) RETURNS void LANGUAGE sql AS $$ $$;
INSERT INTO inbox.consumer (name, role, subscriptions) VALUES ('served', session_user, 1);
SELECT inbox.claim('served');
SELECT inbox.complete(NULL, id(1));
CREATE ROLE regress_other LOGIN;
SELECT inbox.grant_consume('regress_other');
SELECT receive('c', 41, 41);
SELECT * FROM claim('mine');
SELECT token('mine', 41) AS token \gset
SET SESSION AUTHORIZATION regress_other;
SELECT inbox.claim('c');
\set VERBOSITY sqlstate
SELECT inbox.complete(:'token', '00000000-0000-7000-8000-000000000041');
SELECT inbox.fail(:'token', '00000000-0000-7000-8000-000000000041', 'x');
SELECT inbox.release(:'token');
SELECT inbox.extend(:'token');
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_other;
DROP ROLE regress_other;

DROP EXTENSION pg_inbox CASCADE;
DROP SCHEMA claim CASCADE;
