-- Captured tables that are altered: captures follow, or the statement is refused.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
CREATE VIEW log AS
SELECT event_type AS type, aggregate_id AS id, CASE WHEN version = position THEN 'position' ELSE version::text END AS version,
       convert_from(payload, 'UTF8') AS payload
  FROM outbox.event ORDER BY position;
CREATE FUNCTION news() RETURNS SETOF log LANGUAGE plpgsql AS
$$ BEGIN RETURN QUERY TABLE log; TRUNCATE outbox.event; END $$;

CREATE TABLE video (id int PRIMARY KEY, title text, secret text, version int NOT NULL DEFAULT 1, n int, tenant text, extra text);
SELECT outbox.capture('video', version => 'version', exclude => '{secret}', headers => '{"tenant": "tenant"}', ordering_key => '{tenant}');
ALTER TABLE video RENAME title TO swapped;
ALTER TABLE video RENAME secret TO title;
ALTER TABLE video RENAME swapped TO secret;
ALTER TABLE video RENAME id TO video_id;
ALTER TABLE video RENAME tenant TO customer;
ALTER TABLE video ADD added int DEFAULT 3;
ALTER TABLE video DROP extra;
ALTER TABLE video ALTER n TYPE text;
ALTER TABLE video ALTER version TYPE bigint;
CREATE SCHEMA moved;
ALTER TABLE video SET SCHEMA moved;
ALTER TABLE moved.video RENAME TO film;
INSERT INTO moved.film VALUES (1, 'public', 'secret', 1, 'n', 'me');
UPDATE moved.film SET added = 5, title = 'more secret';
SELECT * FROM news();
SELECT captured, aggregate_id, ordering_key, headers, columns, not_captured FROM outbox.captures;
-- Statements that would take away what the capture needs are refused.
ALTER TABLE moved.film DROP version;
ALTER TABLE moved.film DROP customer;
ALTER TABLE moved.film DROP video_id;
ALTER TABLE moved.film ALTER version TYPE text;
ALTER TABLE moved.film ALTER version DROP NOT NULL;
DROP DOMAIN IF EXISTS gone;
CREATE DOMAIN gone AS text;
ALTER TABLE moved.film ADD gone gone;
-- new columns
SELECT outbox.capture('moved.film', exclude => '{title}', new_columns => 'include', on_update => 'changed', replace => true);
ALTER TABLE moved.film ADD later int DEFAULT 7;
ALTER TABLE moved.film RENAME title TO still_secret;
INSERT INTO moved.film (video_id, still_secret) VALUES (2, 'secret');
SELECT * FROM news();
DROP DOMAIN gone CASCADE;
ALTER TABLE moved.film ADD still_secret_too int;
SELECT columns, not_captured, new_columns FROM outbox.captures;
ALTER TABLE moved.film DROP still_secret;
UPDATE moved.film SET later = 8 WHERE video_id = 2;
SELECT * FROM news();
-- a rollback takes everything back
BEGIN;
ALTER TABLE moved.film RENAME video_id TO id;
UPDATE moved.film SET later = 9;
ROLLBACK;
UPDATE moved.film SET later = 10 WHERE video_id = 2;
SELECT * FROM news();
BEGIN;
DROP TABLE moved.film;
ROLLBACK;
SELECT captured FROM outbox.captures;
DROP SCHEMA moved CASCADE;
SELECT captured FROM outbox.captures;
SELECT count(*) FROM outbox.captured;
DROP EXTENSION pg_outbox CASCADE;
