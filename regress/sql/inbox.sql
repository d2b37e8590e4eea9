-- The inbox from SQL alone: receive, deduplicate, process in order within a key, fail, try again.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
\set SHOW_CONTEXT never

CREATE FUNCTION receive(consumer text, first int, last int, key text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
    SELECT inbox.receive(consumer, 'test',
        array_agg(('00000000-0000-7000-8000-' || lpad(g::text, 12, '0'))::uuid ORDER BY g),
        array_agg(now() ORDER BY g), array_agg(g::bigint ORDER BY g), array_agg(g::bigint ORDER BY g),
        array_agg(1 ORDER BY g), array_agg(NULL::uuid ORDER BY g),
        array_agg('t.events'::text ORDER BY g), array_agg('t'::text ORDER BY g), array_agg(coalesce(key, g::text) ORDER BY g),
        array_agg(CASE WHEN g % 10 = 0 THEN 'Other' ELSE 'Thing' END ORDER BY g),
        array_agg(coalesce(key, g::text) ORDER BY g), array_agg('application/json'::text ORDER BY g),
        array_agg(NULL::jsonb ORDER BY g), array_agg(convert_to(jsonb_build_object('n', g)::text, 'UTF8') ORDER BY g))
      FROM generate_series(first, last) AS g
$$;

-- stored once while they wait
SELECT receive('c', 1, 5);
SELECT receive('c', 3, 8);
SELECT receive('d', 3, 4);
SELECT c.name, array_agg(m.position ORDER BY m.seq) FROM inbox.message AS m JOIN inbox.consumer AS c ON c.id = m.consumer_id GROUP BY 1 ORDER BY 1;
SELECT receive(NULL, 1, 1);
SELECT name = current_database() AS default_consumer FROM inbox.consumer ORDER BY id DESC LIMIT 1;

-- subscriptions
CREATE TABLE seen (number int GENERATED ALWAYS AS IDENTITY, consumer int, position bigint, handler text, who name);
CREATE FUNCTION handle(m inbox.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM poison WHERE position = m.position) THEN
        RAISE EXCEPTION 'poison %', m.position USING ERRCODE = 'P0042';
    END IF;
    INSERT INTO seen (consumer, position, handler, who) VALUES (m.consumer_id, m.position, 'handle', current_user);
END $$;
CREATE FUNCTION too(m inbox.message) RETURNS text LANGUAGE sql AS $$
    INSERT INTO seen (consumer, position, handler, who) VALUES (m.consumer_id, m.position, 'too ' || (inbox.json(m) ->> 'n'), current_user) RETURNING 'ignored' $$;
CREATE FUNCTION wrong(a int) RETURNS void LANGUAGE sql AS $$ $$;
CREATE TABLE poison (position bigint);
SELECT inbox.subscribe('c', 'Thing', 'nowhere');
SELECT inbox.subscribe('c', 'Thing', 'wrong');
SELECT inbox.subscribe('', 'Thing', 'handle');
SELECT inbox.subscribe('c', '', 'handle');
CREATE ROLE regress_nologin;
GRANT USAGE ON SCHEMA inbox, inbox_internal TO regress_nologin;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal TO regress_nologin;
SET ROLE regress_nologin;
SELECT inbox.subscribe('c', 'Thing', 'handle');
RESET ROLE;

-- processing by hand: as inbox_internal.process() is called by the processor. Subscribed within a transaction
-- that is rolled back in the end, so that the processor of the server does not take part.
BEGIN;
SELECT inbox.subscribe('c', 'Th*', 'handle');
SELECT inbox.subscribe('c', 'Thing', 'too');
SELECT inbox.subscribe('c', 'Thing', 'too');
SELECT name, role = session_user AS mine, subscriptions FROM inbox.consumer WHERE name = 'c';
SELECT receive('c', 9, 12);
SELECT id AS c FROM inbox.consumer WHERE name = 'c' \gset
SELECT seq, inbox_internal.process(:c, seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100);
SELECT position, handler, who = session_user AS mine FROM seen ORDER BY number;
SELECT count(*) AS processed FROM inbox.processed WHERE consumer_id = :c;
SELECT count(*) AS left FROM inbox.message WHERE consumer_id = :c;

-- received again after they were processed: no effect
SELECT receive('c', 1, 3);
SELECT inbox_internal.process(:c, seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100);
SELECT count(*) FROM seen WHERE position <= 3;
SELECT count(*) AS left FROM inbox.message WHERE consumer_id = :c;

-- a failure holds back its key and nothing else
TRUNCATE seen;
INSERT INTO poison VALUES (22);
SELECT receive('c', 21, 23, 'key');
SELECT receive('c', 24, 25);
SELECT m.position, inbox_internal.process(:c, n.seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100) AS n JOIN inbox.message AS m ON m.seq = n.seq ORDER BY n.seq;
SELECT position FROM seen WHERE handler = 'handle' ORDER BY number;
SELECT consumer, ordering_key, event_type, attempts, sqlstate, error, next_attempt_at > since AS later FROM inbox.waiting_keys;
UPDATE inbox.waiting SET next_attempt_at = now() + interval '1 hour';
SELECT count(*) AS can_be_processed FROM inbox_internal.next_messages(:c, 100);
-- the message is due, and fails again
UPDATE inbox.waiting SET next_attempt_at = now();
SELECT inbox_internal.process(:c, seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100);
SELECT attempts FROM inbox.waiting;
-- it is due, and works; then the rest of its key follows
DELETE FROM poison;
UPDATE inbox.waiting SET next_attempt_at = now();
SELECT inbox_internal.process(:c, seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100);
SELECT inbox_internal.process(:c, seq, inbox_internal.confirmed_subscriptions(:c)) FROM inbox_internal.next_messages(:c, 100);
SELECT position FROM seen WHERE handler = 'handle' ORDER BY number;
SELECT count(*) AS waiting FROM inbox.waiting;

-- what a handler defers to the commit fails in time to be noticed
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION orphan(m inbox.message) RETURNS void LANGUAGE sql AS $$ INSERT INTO child VALUES (1) $$;
SELECT inbox.subscribe('e', '*', 'orphan');
SELECT receive('e', 1, 1);
SELECT id AS e FROM inbox.consumer WHERE name = 'e' \gset
SELECT inbox_internal.process(:e, seq, inbox_internal.confirmed_subscriptions(:e)) FROM inbox_internal.next_messages(:e, 100);
SELECT sqlstate, attempts FROM inbox.waiting WHERE consumer_id = :e;

-- messages of no subscription's type are passed over
SELECT inbox.subscribe('f', 'Nothing*', 'handle');
SELECT receive('f', 30, 30);
SELECT id AS f FROM inbox.consumer WHERE name = 'f' \gset
SELECT inbox_internal.process(:f, seq, inbox_internal.confirmed_subscriptions(:f)) FROM inbox_internal.next_messages(:f, 100);
SELECT count(*) FROM inbox.processed WHERE consumer_id = :f;

-- pattern characters of LIKE are ordinary
SELECT inbox.subscribe('g', 'a_b%', 'handle');
SELECT s.event_type FROM inbox.subscription AS s JOIN inbox.consumer AS c ON c.id = s.consumer_id WHERE c.name = 'g';

SELECT inbox.unsubscribe('c', 'Thing', 'too');
SELECT inbox.unsubscribe('c', 'Thing', 'too');
ROLLBACK;
SELECT inbox.unsubscribe('nobody', 'Thing', 'too');

-- whoever does not own the consumer cannot process for it
CREATE ROLE regress_other LOGIN;
GRANT USAGE ON SCHEMA inbox, inbox_internal TO regress_other;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal TO regress_other;
SET SESSION AUTHORIZATION regress_other;
SELECT * FROM inbox_internal.next_messages(1, 1);
SELECT inbox_internal.take(1, 1, '{}');
SELECT inbox_internal.add_subscription('x', '*', 'pg_sleep', 'regress_nologin');
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_other, regress_nologin;
DROP ROLE regress_other, regress_nologin;

DROP EXTENSION pg_inbox CASCADE;
