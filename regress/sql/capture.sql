-- The changes of a captured table become events.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;

-- What the log shows of the events since the last look. A version that is the position is shown so.
CREATE VIEW log AS
SELECT event_type AS type, aggregate_id AS id, CASE WHEN version = position THEN 'position' ELSE version::text END AS version,
       CASE ordering_key WHEN aggregate_id THEN '=' ELSE ordering_key END AS key,
       topic, headers, convert_from(payload, 'UTF8') AS payload
  FROM outbox.event ORDER BY position;
CREATE FUNCTION news() RETURNS SETOF log LANGUAGE plpgsql AS
$$ BEGIN RETURN QUERY TABLE log; TRUNCATE outbox.event; END $$;

-- defaults
CREATE TABLE order_line (id int PRIMARY KEY, title text, price numeric(8,2) DEFAULT 1);
SELECT outbox.capture('order_line');
INSERT INTO order_line VALUES (1, E'a "b"\\\n\t\x01é'), (2, NULL);
UPDATE order_line SET title = 'c' WHERE id = 1;
UPDATE order_line SET title = 'c';
UPDATE order_line SET title = 'c';
UPDATE order_line SET id = 3 WHERE id = 1;
DELETE FROM order_line WHERE id = 2;
SELECT * FROM news();
\x
SELECT captured, aggregate_type, aggregate_id, version, topic, topic_column, ordering_key, headers, columns, not_captured, new_columns,
       on_update, old_values, on_delete, on_truncate, condition, insert_type, update_type, delete_type, truncate_type, snapshot_type,
       fire, enabled, captured_by FROM outbox.captures;
\x

-- only with the transaction
BEGIN;
UPDATE order_line SET title = 'no';
ROLLBACK;
BEGIN;
SAVEPOINT s;
UPDATE order_line SET title = 'no';
ROLLBACK TO s;
UPDATE order_line SET title = 'yes';
COMMIT;
BEGIN;
UPDATE order_line SET title = 'prepared';
PREPARE TRANSACTION 'capture';
SELECT * FROM log;
COMMIT PREPARED 'capture';
SELECT * FROM news();

-- a version column, the columns that changed, and the old row
CREATE TABLE video (id int PRIMARY KEY, title text, views int DEFAULT 0, secret text DEFAULT 'secret', version bigint NOT NULL DEFAULT 1);
SELECT outbox.capture('video', version => 'version', exclude => '{secret}', on_update => 'changed', on_delete => 'old');
INSERT INTO video VALUES (1, 'a');
UPDATE video SET title = 'b', version = version + 1;
UPDATE video SET secret = 'another';
DELETE FROM video;
SELECT * FROM news();
SELECT columns, not_captured FROM outbox.captures WHERE captured = 'video'::regclass;

-- a version that does not rise: one warning a statement, or an error
INSERT INTO video VALUES (1, 'a'), (2, 'b'), (3, 'c');
UPDATE video SET title = title || '!';
UPDATE video SET title = title || '!', version = 0 WHERE id = 1;
UPDATE video SET secret = 'not captured';
UPDATE video SET id = 4 WHERE id = 3;
DO $$ BEGIN UPDATE video SET views = 1 WHERE id = 1; UPDATE video SET views = 1 WHERE id = 2; END $$;
SET outbox.on_stale_version = 'error';
UPDATE video SET title = 'refused';
UPDATE video SET title = 'taken', version = version + 1 WHERE id = 2;
RESET outbox.on_stale_version;
DELETE FROM video;
SELECT type, id, version FROM news();

-- with old values, and as differences
INSERT INTO video VALUES (1, 'a');
SELECT outbox.capture('video');
SELECT outbox.capture('video', version => 'version', on_update => 'changed', old_values => true, replace => true);
UPDATE video SET title = NULL, version = version + 1;
SELECT outbox.capture('video', version => 'version', on_update => 'diff', columns => '{title}', replace => true);
UPDATE video SET title = 'c', views = 5, version = version + 1;
UPDATE video SET id = 2, version = version + 1;
SELECT * FROM news();

-- names of one's own, topics and headers from columns, keys of several columns
CREATE TABLE item (a text, b int, tenant text, paid boolean, amount bigint, at timestamptz, topic text, PRIMARY KEY (a, b));
SELECT outbox.capture('item', aggregate_type => 'thing', topic => 'things', topic_column => 'topic', ordering_key => '{tenant}',
                      headers => '{"tenant": "tenant", "x-paid": "paid", "x-amount": "amount", "x-at": "at"}',
                      insert_type => 'Born', update_type => 'Moved', delete_type => 'Gone');
SET timezone = 'Asia/Tokyo';
INSERT INTO item VALUES ('a:b\', 1, 't1', true, 5, '2024-02-29 12:00:00+00', NULL), ('a', 2, NULL, NULL, NULL, NULL, 'other');
UPDATE item SET tenant = 't2' WHERE b = 2;
DELETE FROM item;
RESET timezone;
SELECT * FROM news();
SELECT outbox.capture('item', aggregate_id => '{at,b}', columns => '{}', ordering_key => '{}', replace => true); -- at may be null
ALTER TABLE item ALTER at SET NOT NULL;
SELECT outbox.capture('item', aggregate_id => '{at,b}', columns => '{}', ordering_key => '{}', replace => true);
SET timezone = 'Asia/Tokyo';
INSERT INTO item (a, b, at) VALUES ('a', 1, '2024-02-29 12:00:00+00');
RESET timezone;
SELECT id, '"' || key || '"' AS key, payload::jsonb - 'at' AS payload FROM news();

-- a condition works like the row filter of a publication
CREATE TABLE post (id int PRIMARY KEY, title text, published boolean, note text, version int NOT NULL DEFAULT 1);
SELECT outbox.capture('post', version => 'version', condition => 'published AND title <> ''''', columns => '{title}');
SELECT outbox.capture_condition('post'), condition = outbox.capture_condition('post') AS same FROM outbox.captures WHERE captured = 'post'::regclass;
INSERT INTO post VALUES (1, 'a', false), (2, 'b', true), (3, '', true);
UPDATE post SET title = title || '!', version = version + 1;
UPDATE post SET published = NOT published, version = version + 5;
UPDATE post SET note = 'not captured';
DELETE FROM post;
SELECT * FROM news();

-- TRUNCATE
TRUNCATE post;
SELECT outbox.capture('post', on_truncate => 'ignore', replace => true);
TRUNCATE post;
SELECT * FROM news();
SELECT outbox.capture('post', on_truncate => 'announce', truncate_type => 'Emptied', replace => true);
TRUNCATE post;
SELECT * FROM news();

-- whatever changes the rows
SELECT outbox.capture('post', replace => true);
COPY post (id, title) FROM stdin;
1	copied
2	copied
\.
INSERT INTO post VALUES (1, 'inserted') ON CONFLICT (id) DO UPDATE SET title = 'conflict';
INSERT INTO post VALUES (1, 'inserted') ON CONFLICT DO NOTHING;
MERGE INTO post AS p USING (VALUES (1), (2), (3)) AS v(id) ON p.id = v.id
    WHEN MATCHED AND p.id = 1 THEN DELETE
    WHEN MATCHED THEN UPDATE SET title = 'merged'
    WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'merged');
WITH gone AS (DELETE FROM post WHERE id = 3 RETURNING *) INSERT INTO post SELECT 4, title FROM gone;
SELECT type, id, payload::jsonb ->> 'title' AS title FROM news();

CREATE TABLE comment (id int PRIMARY KEY, post int REFERENCES post ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED);
SELECT outbox.capture('comment');
BEGIN;
INSERT INTO comment VALUES (1, 4), (2, 5), (3, 2);
INSERT INTO post VALUES (5, 'later');
COMMIT;
UPDATE post SET id = 6 WHERE id = 4;
DELETE FROM post;
SELECT type, id, payload FROM news();

-- what another trigger changes comes later
CREATE TABLE counted (id int PRIMARY KEY, n int);
CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN UPDATE counted SET n = n + 1 WHERE id = new.id AND n < 3; RETURN NULL; END $$;
CREATE TRIGGER "Always_First" AFTER INSERT OR UPDATE ON counted FOR EACH ROW EXECUTE FUNCTION count_up();
SELECT outbox.capture('counted');
INSERT INTO counted VALUES (1, 1);
SELECT type, payload FROM news();

-- when triggers fire
SET session_replication_role = replica;
UPDATE counted SET n = 4;
RESET session_replication_role;
SELECT type, payload FROM news();
SELECT outbox.capture('counted', fire => 'replica', replace => true);
UPDATE counted SET n = 5;
SET session_replication_role = replica;
UPDATE counted SET n = 6;
RESET session_replication_role;
SELECT outbox.capture('counted', fire => 'always', replace => true);
UPDATE counted SET n = 7;
SET session_replication_role = replica;
UPDATE counted SET n = 8;
RESET session_replication_role;
SELECT type, payload FROM news();

-- triggers that somebody has switched off are seen
ALTER TABLE counted DISABLE TRIGGER ALL;
SELECT enabled FROM outbox.captures WHERE captured = 'counted'::regclass;
ALTER TABLE counted ENABLE ALWAYS TRIGGER "00_outbox_capture_insert", ENABLE ALWAYS TRIGGER "00_outbox_capture_update", ENABLE ALWAYS TRIGGER "00_outbox_capture_delete";
SELECT enabled FROM outbox.captures WHERE captured = 'counted'::regclass;

-- no more
SELECT outbox.uncapture('counted'), outbox.uncapture('counted');
UPDATE counted SET n = 9;
SELECT type, payload FROM news();
DROP TABLE item, counted;
SELECT captured FROM outbox.captures ORDER BY captured::text;

-- with the extension the triggers go, too
DROP EXTENSION pg_outbox;
DROP EXTENSION pg_outbox CASCADE;
INSERT INTO post (id) VALUES (100);
DROP TABLE comment, post, video, order_line;
