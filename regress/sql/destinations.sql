-- Destinations are foreign servers; options are checked when the statement runs.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
\set SHOW_CONTEXT never

CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox;
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url '');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'example.com');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'ftp://example.com');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:x');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http:///path');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://user@host/');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://user:secret@host/');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/a b');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host:99999/');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql://host');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql://u:secret@host/db');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql:///db?password=secret');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql:///db?options=-c');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 'a,,b');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', start 'now');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', nonsense '1');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', format 'binary');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', consumer 'x');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', password 'x');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', format 'xml');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', batch_size '10');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', request_timeout '1 week');
CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://host/', max_connections '0');

CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'http://localhost:9/', topics 'video.*, user.events', start 'end', format 'batched', batch_size '50', request_timeout '2s');
ALTER SERVER d OPTIONS (SET url 'null:');
ALTER SERVER d OPTIONS (DROP format, DROP batch_size, DROP request_timeout, SET url 'null:');
ALTER SERVER d OPTIONS (DROP url);
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (url 'null:');
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (pasword 'x');
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'u', password 'p');
CREATE FOREIGN TABLE t (a int) SERVER d OPTIONS (x 'y');
ALTER FOREIGN DATA WRAPPER pg_outbox OPTIONS (ADD x 'y');

-- the default destination is checked the same way; a misspelt setting is an error
SET outbox.default_destination = 'null:';
ALTER SYSTEM SET outbox.default_destination = 'ftp://x';
ALTER SYSTEM SET outbox.default_destination = 'http://u:secret@x/';
SET outbox.max_playload_size = 1;

-- the pause between attempts: in its range however many attempts there were
CREATE SERVER slow FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', retry_base '24h', retry_max '24h');
CREATE SERVER quick FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', retry_base '3', retry_max '1min');
SELECT destination, attempts, outbox_internal.retry_delay(destination, attempts) BETWEEN '0' AND longest AS in_range
  FROM (VALUES ('slow', '24 h'::interval), ('quick', '1 min')) AS d (destination, longest),
       unnest(ARRAY[1, 27, 28, 31, 1000000, 2147483647]) AS attempts
 ORDER BY destination, attempts;
SELECT max(outbox_internal.retry_delay('quick', 3)) BETWEEN '6 ms' AND '12 ms' AS doubles FROM generate_series(1, 100);
DROP SERVER slow;
DROP SERVER quick;

-- nobody else may create destinations, enqueue, or look
CREATE ROLE regress_app;
SET ROLE regress_app;
CREATE SERVER e FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:');
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
