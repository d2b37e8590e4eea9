-- Partitions and children; what cannot be captured.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
CREATE VIEW log AS
SELECT event_type AS type, aggregate_id AS id, CASE WHEN version = position THEN 'position' ELSE version::text END AS version,
       convert_from(payload, 'UTF8') AS payload
  FROM outbox.event ORDER BY position;
CREATE FUNCTION news() RETURNS SETOF log LANGUAGE plpgsql AS
$$ BEGIN RETURN QUERY TABLE log; TRUNCATE outbox.event; END $$;
CREATE VIEW triggers AS
SELECT tgrelid::regclass AS "table", string_agg(substr(tgname, 19), ' ' ORDER BY tgname) AS triggers, string_agg(DISTINCT tgenabled::text, '') AS enabled,
       max(pg_get_expr(tgqual, tgrelid)) FILTER (WHERE tgname LIKE '%delete') AS condition
  FROM pg_trigger WHERE tgname LIKE '00_outbox%' GROUP BY tgrelid ORDER BY tgrelid::regclass::text;

-- partitions, with their columns in another order
CREATE TABLE day (id int, day date, title text, n int DEFAULT 1, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE january PARTITION OF day FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
SELECT outbox.capture('day', aggregate_id => '{id}', on_truncate => 'announce', fire => 'always', condition => 'n > 0');
CREATE TABLE february (x int, n int DEFAULT 1, title text, day date NOT NULL, id int NOT NULL);
ALTER TABLE february DROP x;
ALTER TABLE day ATTACH PARTITION february FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE march PARTITION OF day FOR VALUES FROM ('2024-03-01') TO ('2024-04-01') PARTITION BY RANGE (day);
CREATE TABLE march_1 PARTITION OF march FOR VALUES FROM ('2024-03-01') TO ('2024-03-16');
TABLE triggers;
INSERT INTO day VALUES (1, '2024-01-05', 'a', 1), (2, '2024-02-05', 'b', 1), (3, '2024-03-05', 'c', 1), (4, '2024-01-05', 'no', 0);
UPDATE day SET n = n + 1;
UPDATE day SET day = '2024-01-06' WHERE id = 2;
UPDATE february SET title = 'x';
DELETE FROM march_1;
TRUNCATE february;
SELECT * FROM news();
TRUNCATE day;
SELECT * FROM news();
ALTER TABLE day DETACH PARTITION february;
ALTER TABLE day DETACH PARTITION march;
INSERT INTO february (id, day) VALUES (5, '2024-02-05');
INSERT INTO march VALUES (5, '2024-03-05');
SELECT * FROM news();
TABLE triggers;
ALTER TABLE day ATTACH PARTITION march FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');
UPDATE day SET title = 'again';
SELECT * FROM news();
SELECT outbox.capture('march');
SELECT outbox.capture('day', aggregate_id => '{id}', version => 'n', replace => true);
SELECT outbox.capture('day', version => 'id', replace => true);
SELECT outbox.uncapture('day');
TABLE triggers;
-- foreign ones, too
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
CREATE TABLE far (id int NOT NULL, day date) PARTITION BY RANGE (day);
CREATE FOREIGN TABLE april PARTITION OF far FOR VALUES FROM ('2024-04-01') TO ('2024-05-01') SERVER nowhere;
SELECT outbox.capture('far', aggregate_id => '{id}', on_truncate => 'announce');
CREATE FOREIGN TABLE may PARTITION OF far FOR VALUES FROM ('2024-05-01') TO ('2024-06-01') SERVER nowhere;
TABLE triggers;
DROP FOREIGN DATA WRAPPER nowhere CASCADE;
DROP TABLE day, february, far;

-- children
CREATE TABLE animal (id int PRIMARY KEY, name text, secret text, alive boolean DEFAULT true);
CREATE TABLE cat (lives int DEFAULT 9) INHERITS (animal);
SELECT outbox.capture('animal', exclude => '{secret}', condition => 'alive');
CREATE TABLE lion () INHERITS (cat);
CREATE TABLE dog (name text, id int NOT NULL, alive boolean, secret text);
ALTER TABLE dog INHERIT animal;
TABLE triggers;
INSERT INTO animal VALUES (1, 'some');
INSERT INTO cat VALUES (2, 'cat');
INSERT INTO lion VALUES (3, 'lion', '', true), (4, 'dead', '', false);
INSERT INTO dog VALUES ('dog', 5, true);
UPDATE animal SET name = name || '!';
ALTER TABLE animal RENAME name TO called;
DELETE FROM animal;
SELECT * FROM news();
SELECT outbox.capture('cat');
ALTER TABLE dog NO INHERIT animal;
INSERT INTO dog VALUES ('free', 6, true);
SELECT * FROM news();
TABLE triggers;
DROP TABLE animal CASCADE;
TABLE triggers;

-- what cannot be captured
\set VERBOSITY default
\set SHOW_CONTEXT never
CREATE VIEW v AS SELECT 1 AS id;
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
CREATE TABLE keyless (id int, a text, v int);
CREATE TABLE fine (id int PRIMARY KEY, a text, v int, w int NOT NULL DEFAULT 1);
SELECT outbox.capture(NULL);
SELECT outbox.capture('v');
SELECT outbox.capture('temporary');
SELECT outbox.capture('pg_class');
SELECT outbox.capture('outbox.producer');
SELECT outbox.capture('keyless');
SELECT outbox.capture('keyless', aggregate_id => '{id}');
SELECT outbox.capture('fine', aggregate_id => '{idd}');
SELECT outbox.capture('fine', aggregate_id => '{}');
SELECT outbox.capture('fine', version => 'a');
SELECT outbox.capture('fine', version => 'v');
SELECT outbox.capture('fine', columns => '{a}', exclude => '{v}');
SELECT outbox.capture('fine', columns => '{a}', new_columns => 'include');
SELECT outbox.capture('fine', exclude => '{id}');
SELECT outbox.capture('fine', exclude => '{b}');
SELECT outbox.capture('fine', version => 'w', exclude => '{w}');
SELECT outbox.capture('fine', columns => '{b}');
SELECT outbox.capture('fine', new_columns => 'maybe');
SELECT outbox.capture('fine', old_values => true);
SELECT outbox.capture('fine', on_update => 'maybe');
SELECT outbox.capture('fine', on_delete => 'maybe');
SELECT outbox.capture('fine', on_truncate => 'maybe');
SELECT outbox.capture('fine', fire => 'maybe');
SELECT outbox.capture('fine', topic => E'a\nb');
SELECT outbox.capture('fine', aggregate_type => '');
SELECT outbox.capture('fine', delete_type => '');
SELECT outbox.capture('fine', headers => '{"content-type": "a"}');
SELECT outbox.capture('fine', headers => '{"a": "b"}');
SELECT outbox.capture('fine', headers => '{"a": 1}');
SELECT outbox.capture('fine', headers => '[]');
SELECT outbox.capture('fine', condition => 'v > ');
SELECT outbox.capture('fine', condition => 'v');
SELECT outbox.capture('fine', condition => 'b > 1');
SELECT outbox.capture('fine', condition => 'true) FROM pg_class WHERE (true');
SELECT outbox.capture('fine', condition => 'EXISTS (SELECT 1)');
SELECT outbox.capture('fine', ordering_key => '{b}');
SELECT outbox.capture('fine', topic_column => 'b');
SELECT count(*) FROM outbox.captured;
TABLE triggers;
-- triggers without a capture
\set VERBOSITY terse
CREATE TRIGGER t AFTER INSERT ON fine FOR EACH ROW EXECUTE FUNCTION outbox.capture_row();
INSERT INTO fine VALUES (1);
SELECT outbox.capture_row();

-- with the extension the triggers go, too
DROP EXTENSION pg_outbox;
DROP EXTENSION pg_outbox CASCADE;
DROP TABLE keyless, fine;
DROP VIEW v;
