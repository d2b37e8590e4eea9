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

-- expressions over the columns of one event
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter ' ');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'price > 5');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'event.version > 5');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'topic');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'true) FROM pg_class WHERE (true');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'true; SELECT true');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'true), (false');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'topic IN (SELECT ''a'')');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'count(*) > 1');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'topic = $1');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'random() > 0.5');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'set_config(''role'', ''x'', false) IS NULL');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', payload 'version');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', payload 'jsonb_array_elements(payload)');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', payload 'payload');
CREATE FUNCTION public.regress_unsafe(text) RETURNS boolean LANGUAGE sql STABLE RETURN true;
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'public.regress_unsafe(topic)');
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'regress_unsafe(topic)');
CREATE FUNCTION public.regress_owned(text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE RETURN true;
REVOKE EXECUTE ON FUNCTION public.regress_owned FROM PUBLIC;
CREATE ROLE regress_integrator;
GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO regress_integrator;
SET ROLE regress_integrator;
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', filter 'public.regress_owned(topic)');
RESET ROLE;
CREATE SERVER f FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', payload 'payload - ''card''',
    filter $$topic LIKE 'a%' AND (payload->>'amount')::numeric > 100 -- with a comment$$);
ALTER SERVER f OPTIONS (SET filter 'payload');
ALTER SERVER f OPTIONS (DROP filter);
DROP SERVER f;
REVOKE USAGE ON FOREIGN DATA WRAPPER pg_outbox FROM regress_integrator;
DROP ROLE regress_integrator;
DROP FUNCTION public.regress_unsafe, public.regress_owned;

-- the default destination is checked the same way; a misspelt setting is an error
SET outbox.default_destination = 'null:';
ALTER SYSTEM SET outbox.default_destination = 'ftp://x';
ALTER SYSTEM SET outbox.default_destination = 'http://u:secret@x/';
SET outbox.max_playload_size = 1;

-- nobody else may create destinations
CREATE ROLE regress_app;
SET ROLE regress_app;
CREATE SERVER e FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:');
RESET ROLE;
DROP ROLE regress_app;
DROP EXTENSION pg_outbox CASCADE;
