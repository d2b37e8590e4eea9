-- Events of pull destinations are fetched, settled, refused.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
\set SHOW_CONTEXT never

CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:x');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'PULL:');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', batch_size '10');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', lanes '0');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', lanes '1025');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', lanes '4');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', lanes '1', topics 'a.events, b*', start 'beginning', max_attempts '2', retry_base '1ms', retry_max '1ms', on_dead_letter 'block');
CREATE SERVER other FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:');
SELECT destination, state, pid, in_flight FROM outbox.status WHERE destination = 'd';

SELECT * FROM outbox.fetch('nobody');
SELECT * FROM outbox.fetch('other');
DROP SERVER other;  -- health() would tell that its relay has not come yet
SELECT * FROM outbox.fetch(NULL);
SELECT * FROM outbox.fetch('d', 0);
SELECT * FROM outbox.fetch('d', NULL);
SELECT * FROM outbox.fetch('d', 1, '0');
SELECT * FROM outbox.fetch('d', 1, '2 days');
SELECT outbox.ack('00000000-0000-0000-0000-000000000000');
SELECT outbox.ack(NULL);
\set VERBOSITY sqlstate
SELECT outbox.nack('00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000', 'no');
\set VERBOSITY default
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM outbox.fetch('d');
ROLLBACK;

SELECT count(outbox.enqueue('a', k, 'E', to_jsonb(n), n)) FROM unnest('{x,y}'::text[]) AS k, generate_series(1, 3) AS n;
SELECT count(outbox.enqueue('c', 'z', 'E', '{}'));
CREATE TEMPORARY TABLE mine AS SELECT * FROM outbox.fetch('d');
SELECT aggregate_id, version, attempts, convert_from(payload, 'UTF8') FROM mine;
SELECT * FROM outbox.fetch('d');
SELECT destination, lane, events, locked_until > now() AS live FROM outbox.lease;
SELECT destination, state, in_flight FROM outbox.status WHERE destination = 'd';
SELECT outbox.extend(token, '1 hour') > now() + interval '59 minutes' AS extended FROM mine LIMIT 1;

-- y1 is refused: y2 and y3 wait behind it; x goes on
SELECT aggregate_id, version FROM mine
 WHERE event_id IN (SELECT outbox.nack(token, event_id, 'not now') FROM mine WHERE aggregate_id = 'y' AND version = 1)
 ORDER BY position;
SELECT aggregate_id, version, state, attempts, last_error FROM outbox.delivery ORDER BY position;
SELECT outbox.ack(token) FROM mine LIMIT 1;
DO $$ BEGIN -- until it is due
    WHILE EXISTS (SELECT FROM outbox.delivery WHERE next_retry_at > clock_timestamp()) LOOP END LOOP;
END $$;

-- again, and for good; its key is blocked
TRUNCATE mine;
INSERT INTO mine SELECT * FROM outbox.fetch('d');
SELECT aggregate_id, version, attempts FROM mine;
SELECT count(*) FROM mine AS m, outbox.nack(m.token, m.event_id, 'never', true) WHERE m.version = 1;
SELECT outbox.ack(token) FROM mine LIMIT 1;
SELECT aggregate_id, version, state, attempts, last_error FROM outbox.delivery ORDER BY position;
SELECT count(outbox.enqueue('a', k, 'E', to_jsonb(n), n)) FROM unnest('{x,y}'::text[]) AS k, generate_series(4, 4) AS n;
TRUNCATE mine;
INSERT INTO mine SELECT * FROM outbox.fetch('d');
SELECT aggregate_id, version, attempts FROM mine;
SELECT outbox.release(token) FROM mine LIMIT 1;
SELECT count(outbox.ack(token)) FROM (SELECT token FROM outbox.fetch('d') LIMIT 1) AS f;
SELECT count(*) FROM outbox.batch;
SELECT severity, object, what FROM outbox.health();

-- who may
CREATE ROLE regress_fetcher;
GRANT USAGE ON SCHEMA outbox TO regress_fetcher;
SET SESSION AUTHORIZATION regress_fetcher;
SELECT * FROM outbox.fetch('d');
RESET SESSION AUTHORIZATION;
GRANT EXECUTE ON FUNCTION outbox.fetch, outbox.ack(uuid), outbox.nack(uuid, uuid, text, boolean),
    outbox.extend(uuid, interval), outbox.release(uuid) TO regress_fetcher;
SET SESSION AUTHORIZATION regress_fetcher;
SELECT * FROM outbox.fetch('d');
RESET SESSION AUTHORIZATION;
GRANT USAGE ON FOREIGN SERVER d TO regress_fetcher;
SELECT count(outbox.enqueue('a', 'x', 'E', '{}', n)) FROM generate_series(5, 6) AS n;
SET SESSION AUTHORIZATION regress_fetcher;
SELECT version AS next, outbox.ack(token) FROM outbox.fetch('d', 1);
SELECT version AS next, outbox.release(token) FROM outbox.fetch('d', 1);
SELECT * FROM outbox.batch;
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_fetcher;
DROP ROLE regress_fetcher;
DROP EXTENSION pg_outbox CASCADE;
