-- Payloads are what to_jsonb() would give, for every type.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
CREATE EXTENSION IF NOT EXISTS hstore;

CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN title AS text;
CREATE DOMAIN titles AS title[];
CREATE TYPE mood AS ENUM ('sad', 'so "so"');
CREATE TYPE place AS (x int, "y ""z" text, since date);
CREATE DOMAIN place_of_ours AS place;
CREATE TYPE cents AS RANGE (subtype = numeric);
CREATE TABLE every_type (
    id int PRIMARY KEY, dropped text,
    "bo""ol\
" bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(10,2), money money, o oid, x xid8,
    t text, v varchar(10), c char(5), "char" "char", name name, b bytea, bits bit(3), varbits varbit, u uuid, xml xml,
    d date, ts timestamp, tz timestamptz, ti time, tiz timetz, iv interval,
    j json, jb jsonb, jp jsonpath, h hstore, e mood, pos positive, dt title, dts titles, pl place, plo place_of_ours,
    ia int[], ta text[], da date[], pa place[], ea mood[], r int4range, mr int4multirange, c2 cents, tr tstzrange,
    ip inet, ci cidr, mac macaddr, pt point, poly polygon, tsv tsvector, tsq tsquery, rc regclass, ac aclitem, lsn pg_lsn, iv2 int2vector,
    sum int GENERATED ALWAYS AS (i4 + 1) STORED);
ALTER TABLE every_type DROP dropped;
SELECT outbox.capture('every_type', on_update => 'diff', on_delete => 'old');

-- Both texts are compared as jsonb, as a whole and member by member.
CREATE VIEW differing AS
SELECT e.aggregate_id, m.key, p.payload -> m.key AS payload, to_jsonb(row) -> m.key AS row_has
  FROM outbox.event AS e
 CROSS JOIN LATERAL (SELECT convert_from(e.payload, 'UTF8')::jsonb AS payload) AS p
  JOIN every_type AS row ON row.id::text = e.aggregate_id
 CROSS JOIN LATERAL jsonb_object_keys(p.payload || to_jsonb(row)) AS m(key)
 WHERE (p.payload -> m.key) IS DISTINCT FROM (to_jsonb(row) -> m.key);

INSERT INTO every_type VALUES (1);
INSERT INTO every_type VALUES (2, true, 1, -2, 9223372036854775807, 1.5, 1e300, 1.10, 3.50, 12.34, 5, '77',
    E'\b\f\n\r\t\x01\x1f\x7f"\\/é€😀', 'v', 'c', 'q', 'a name', '\x00ff', '101', '1', '0190f3a4-0000-7000-8000-00000000000a', '<a b="c"/>',
    '2024-02-29', '2024-02-29 12:00:00.123456', '2024-02-29 12:00:00.5+02', '12:00', '12:00+02', '1 year 2 days 03:04',
    '{"a": [1, 2],  "b" : null}', '{"a": [1, 2.50], "b": "\u00e9"}', '$.a', 'a=>"1 2"', 'so "so"', 5, 'a title', '{a,"b c"}', '(1,"a ""b""",2024-01-01)', '(2,,)',
    '{{1,2},{3,NULL}}', '{"a,b","c\"d",NULL}', '{2024-01-01,infinity}', ARRAY['(1,a,)'::place], '{sad}', '[1,5)', '{[1,3),[5,8)}', '[1.5,2]', '[2024-01-01 00:00+00,)',
    '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', '(1,2)', '((0,0),(1,1),(2,0))', 'a:1 b:2', 'a & b', 'pg_class', '=r/postgres', '0/16B3748', '1 2');
INSERT INTO every_type (id, f4, f8, n, d, ts, tz, iv, i2, i4, i8, r, ia) VALUES
    (3, 'NaN', 'Infinity', 'NaN', 'infinity', '-infinity', 'infinity', '-1 day', -32768, -2147483648, -9223372036854775808, 'empty', '{}'),
    (4, '-Infinity', '-0', 'Infinity', '0044-03-15 BC', '0044-03-15 12:00 BC', '10000-01-01 00:00+00', '0', 0, 0, 0, '(,)', '[2:3]={1,2}'),
    (5, 1e-10, 123456789012345678, 1e40, '2024-01-01', '2024-01-01', '2024-01-01', '1 mon', 1, 1, 1, NULL, NULL);
INSERT INTO every_type (id, t, jb, b) SELECT 6, string_agg(md5(g::text), E'\n'), jsonb_agg(md5(g::text)), decode(string_agg(md5(g::text), ''), 'hex') FROM generate_series(1, 5000) AS g;
SELECT * FROM differing;
SELECT count(*) FROM outbox.event;

-- whatever is set in the session
TRUNCATE outbox.event;
SET datestyle = 'German, DMY'; SET timezone = 'Asia/Kolkata'; SET intervalstyle = iso_8601; SET bytea_output = escape; SET extra_float_digits = -3;
INSERT INTO every_type (id, d, ts, tz, ti, iv, b, f8, f4, da, tr) SELECT 7, d, ts, tz, ti, iv, b, 1.23456789, 1.2345678, da, tr FROM every_type WHERE id = 2;
SELECT * FROM differing;
RESET datestyle; RESET timezone; RESET intervalstyle; RESET bytea_output; RESET extra_float_digits;

-- a cast to json of one's own counts
CREATE TYPE label AS ENUM ('x');
CREATE FUNCTION label_to_json(label) RETURNS json LANGUAGE sql IMMUTABLE AS $$ SELECT '{"label": "x"}'::json $$;
CREATE CAST (label AS json) WITH FUNCTION label_to_json(label);
CREATE TABLE labelled (id int PRIMARY KEY, l label);
SELECT outbox.capture('labelled');
TRUNCATE outbox.event;
INSERT INTO labelled VALUES (1, 'x');
SELECT convert_from(payload, 'UTF8') FROM outbox.event;
SELECT to_jsonb(l) FROM labelled AS l;

-- what is stored out of line and does not change is not looked at, and not called changed
TRUNCATE outbox.event;
ALTER TABLE every_type ALTER t SET STORAGE EXTERNAL;
UPDATE every_type SET i4 = 2 WHERE id = 6;
SELECT convert_from(payload, 'UTF8') FROM outbox.event;
TRUNCATE outbox.event;
UPDATE every_type SET t = t || '' WHERE id = 6;
SELECT count(*) FROM outbox.event;
UPDATE every_type SET t = t || '!', jb = jb || '[1]' WHERE id = 6;
SELECT jsonb_object_keys(convert_from(payload, 'UTF8')::jsonb -> 'changed') FROM outbox.event;

-- keys of every type that people use
CREATE TABLE keyed (id uuid, name varchar(5), n numeric, d date, b boolean, e mood, f float8, PRIMARY KEY (id, name, n, d, b, e, f));
SELECT outbox.capture('keyed');
TRUNCATE outbox.event;
INSERT INTO keyed VALUES ('0190f3a4-0000-7000-8000-00000000000a', 'x:y', 1.50, '2024-02-29', true, 'sad', 0.1);
SELECT aggregate_id FROM outbox.event;

-- in another encoding
CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
DROP TABLE every_type, labelled, keyed CASCADE;
DROP EXTENSION pg_outbox CASCADE;
\c latin
SET client_encoding = 'UTF8';
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;
CREATE TABLE "müll" ("schlüssel" text PRIMARY KEY, "straße" text);
SELECT outbox.capture('"müll"', headers => '{"street": "straße"}');
INSERT INTO "müll" VALUES ('ä', E'ö\u00ff"');
SELECT aggregate_type, aggregate_id, event_type, headers, convert_from(payload, 'UTF8') FROM outbox.event;
\c pg_regress
DROP DATABASE latin;
