-- Endpoints are rows of a table, with the checks that foreign servers have.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
\set SHOW_CONTEXT never

CREATE SERVER hooks FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'endpoints:', topics 'order.*');
CREATE SERVER pulled FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'acme', 'https://acme.example/hook?key=1');
INSERT INTO outbox.endpoint (server, name, url, topics, secret_name, paused, tenant)
VALUES ('hooks', 'other', 'http://[::1]:8080', 'order.new, order.paid', 'other-2, other', true, 'O');
SELECT server, name, url, topics, secret_name, paused, tenant FROM outbox.endpoint ORDER BY name;
SELECT server, name, tenant, state, failing_since, last_error, next_attempt_at, pending_at_most, dead_letters, oldest
  FROM outbox.endpoint_status ORDER BY name;

-- what is not valid
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'acme', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('nowhere', 'acme', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('pulled', 'acme', 'https://acme.example/hook');
\set VERBOSITY terse
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', '', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a/b', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a,b', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a ', 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', repeat('a', 58), 'https://acme.example/hook');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a', 'acme.example');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a', 'mailto:acme@acme.example');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a', 'https://user:password@acme.example/');
INSERT INTO outbox.endpoint (server, name, url) VALUES ('hooks', 'a', 'https://');
INSERT INTO outbox.endpoint (server, name, url, secret_name) VALUES ('hooks', 'a', 'https://acme.example', '');
\set VERBOSITY default
INSERT INTO outbox.endpoint (server, name, url, topics) VALUES ('hooks', 'a', 'https://acme.example', 'a,,b');
UPDATE outbox.endpoint SET name = 'b' WHERE name = 'acme';
UPDATE outbox.endpoint SET server = 'pulled' WHERE name = 'acme';
TRUNCATE outbox.endpoint;

-- names of endpoints in functions
SELECT outbox.pause('hooks/acme', 'maintenance');
SELECT outbox.resume('hooks/other');
SELECT name, paused FROM outbox.endpoint ORDER BY name;
SELECT destination, action, why FROM outbox.operation ORDER BY id;
SELECT outbox.redrive('hooks/acme'), outbox.backlog('hooks/acme');
SELECT outbox.pause('hooks/nobody');
SELECT outbox.pause('nowhere/acme');
SELECT outbox.seek('hooks', 'beginning');
SELECT outbox.seek('hooks/acme', 'beginning');
SELECT outbox.replay('hooks');

-- they follow their destination
ALTER SERVER hooks RENAME TO webhooks;
SELECT server, name FROM outbox.endpoint_status ORDER BY name;
SELECT outbox.delete_endpoint('webhooks', 'acme'), outbox.delete_endpoint('webhooks', 'nobody');
SELECT destination FROM outbox.endpoint_state;
DROP SERVER webhooks;
SELECT count(*) FROM outbox.endpoint;
SELECT count(*) FROM outbox.endpoint_state;
DROP SERVER pulled;
DROP EXTENSION pg_outbox CASCADE;
