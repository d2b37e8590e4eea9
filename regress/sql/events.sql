-- One event: its payload, where it is and why, and decisions about it.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
\set SHOW_CONTEXT never

SELECT outbox.version() ~ '^\d+\.\d+\.\d+$' AS version;

-- payloads: readable if they can be, and never an error
SELECT type, outbox.payload_text(type, bytes) AS text, outbox.payload_jsonb(type, bytes) AS json
  FROM (VALUES ('application/json', '{"a": 1}'::bytea), ('application/vnd.x+json; charset=utf-8', '[1, 2]'),
               ('TEXT/plain', 'plain'), ('application/xml', '<a/>'), ('text/plain', '\xff00'),
               ('application/json', '{"a": '), ('application/json', '{"a": "\\u0000"}'),
               ('application/octet-stream', '{}'), ('application/json', NULL), (NULL, '{}')) AS p(type, bytes);

CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'pull:', lanes '1', topics 'a.events', start 'beginning', on_dead_letter 'block');
SELECT count(outbox.enqueue('a', 'x', 'E', '{"n": 1}'));
SELECT n.* FROM outbox.fetch('d') AS f, outbox.nack(f.token, f.event_id, 'never', true) AS n;
SELECT aggregate_id, payload_text, payload_jsonb FROM outbox.dead_letter;

-- finding
SELECT aggregate_id, event_type, payload_text FROM outbox.find_events(aggregate_type => 'a', aggregate_id => 'x');
SELECT outbox.enqueue('a', 'z', 'Latest', '{"n": 2}') AS latest \gset
SELECT count(outbox.enqueue('b', 'y' || n, 'F', '{}', event_id => md5(n::text)::uuid)) FROM generate_series(1, 1000) AS n;
SELECT event_type FROM outbox.find_events(aggregate_type => 'a', "limit" => 1);
SELECT count(*) FROM outbox.find_events(type => 'F', since => now() - interval '1 hour', "limit" => 999);
SELECT count(*) FROM outbox.find_events(since => now() + interval '1 hour');
SELECT payload_text FROM outbox.find_event(:'latest');
SELECT aggregate_id FROM outbox.find_event(md5('77')::uuid);
SELECT count(*) FROM outbox.find_event(gen_random_uuid());

-- where an event is, and why
SELECT event_id AS dead FROM outbox.dead_letter \gset
SELECT destination, state, attempts, why, what_to_do FROM outbox.event_status(:'dead');
SELECT destination, state, why FROM outbox.event_status(:'latest');
SELECT destination, state, why, what_to_do FROM outbox.event_status(md5('77')::uuid);
SELECT outbox.pause('d');
SELECT state, since > now() - interval '1 minute' AS since, why ~ '^the destination is paused since .* by ' AS why, what_to_do FROM outbox.event_status(:'latest');
SELECT outbox.seek('d', NULL::text);
SELECT outbox.resume('d');
SELECT count(outbox.enqueue('a', 'x', 'Behind', '{"n": 3}'));
SELECT event_id AS behind FROM outbox.find_events(type => 'Behind') \gset
SELECT state, why = format('it waits behind event %s of its key, which is a dead letter', :'dead') AS why FROM outbox.event_status(:'behind');
SELECT outbox.discard('d');
SELECT outbox.discard('d', everything => true);
SELECT outbox.redrive('d', why => 'repaired');
SELECT action, events, why FROM outbox.operation ORDER BY id;
SELECT destination, state, url, topics, dead_letters, relay, paused FROM outbox.destinations;
SELECT state, why FROM outbox.event_status(:'dead');
SELECT state, why = format('it waits behind event %s of its key, which has failed 0 times', :'dead') AS why FROM outbox.event_status(:'behind');
SELECT state, why FROM outbox.event_status(gen_random_uuid());
SELECT state, why ~ '^it is not in the log, which begins at ' AS why FROM outbox.event_status('01900000-0000-7000-8000-000000000000');
DROP SERVER d;
SELECT destination, state, why FROM outbox.event_status(:'latest');

DROP EXTENSION pg_outbox CASCADE;
