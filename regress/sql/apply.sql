-- inbox.apply() and remove(): a row of a projection never goes back to an older version.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
\set SHOW_CONTEXT never
CREATE TABLE video (tenant int, id text, title text DEFAULT 'untitled', tags text[], version bigint NOT NULL,
                    upper_title text GENERATED ALWAYS AS (upper(title)) STORED, PRIMARY KEY (tenant, id));

SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "A", "tags": ["x"], "version": 1, "unknown": true}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "A3", "version": 3}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "A2", "version": 2}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "A3 again", "version": 3}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "b", "version": 1}');
SELECT * FROM video ORDER BY id;
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": null, "version": 4}');
SELECT * FROM video WHERE id = 'a';

SELECT inbox.apply('video', '{id}', 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', '{tenant,nope}', 'version', '{"tenant": 1, "nope": "a", "version": 4}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "version": 4}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": null, "version": 4}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a"}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": "x", "id": "a", "version": 5}');
SELECT inbox.apply('nowhere', '{id}', 'version', '{}');

-- removed rows stay away from what is older
SELECT inbox.remove('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.remove('video', '{id,tenant}', 'version', '{"tenant": 1, "id": "a", "version": 7, "title": "gone"}');
SELECT count(*) FROM video WHERE id = 'a';
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "late", "version": 6}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "title": "the same", "version": 7}');
SELECT inbox.remove('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "version": 7}');
SELECT inbox.remove('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "a", "version": 8}');
SELECT projection, key, version FROM inbox.tombstone;
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": "1", "id": "a", "title": "again", "version": 8}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": "1", "id": "a", "title": "again", "version": 9}');
SELECT title, version FROM video WHERE id = 'a';
-- removed before it was there
SELECT inbox.remove('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "c", "version": 2}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "c", "version": 1}');
SELECT inbox.apply('video', '{tenant,id}', 'version', '{"tenant": 2, "id": "c", "version": 1}');
SELECT inbox.remove('video', '{tenant}', 'version', '{"tenant": 1, "version": 99}');
SELECT inbox.remove('video', '{tenant,id}', 'version', '{"tenant": 1, "id": "c"}');
SELECT inbox.remove('video', '{tenant,id,title}', 'version', '{"tenant": 1, "id": "c", "title": "x", "version": 99}');
SELECT tenant, id, version FROM video ORDER BY 1, 2;

-- what key and version can be
SELECT inbox.apply('video', '{tenant,upper_title}', 'version', '{"tenant": 1, "upper_title": "A", "version": 4}');
SELECT inbox.apply('video', '{tenant,id,id}', 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', '{tenant,version}', 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', '{}', 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', NULL, 'version', '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', '{tenant,id}', NULL, '{"tenant": 1, "id": "a", "version": 4}');
SELECT inbox.apply('video', '{tenant,id}', 'version', NULL);
SELECT inbox.apply('video', '{tenant,ctid}', 'version', '{"tenant": 1, "ctid": "(0,1)", "version": 4}');

-- a part of the columns is enough for a row that is there, also where others must not be null
CREATE TABLE account (id int PRIMARY KEY, owner text NOT NULL, settings jsonb, balance numeric(12,2) DEFAULT 7, version int);
SELECT inbox.apply('account', '{id}', 'version', '{"id": 1, "owner": "o", "settings": {"a": [1]}, "version": 1}');
SELECT inbox.apply('account', '{id}', 'version', '{"id": 1, "balance": 12.345, "version": 2}');
SELECT inbox.apply('account', '{id}', 'version', '{"id": 2, "balance": 1, "version": 1}');
-- JSON null is NULL, a member that is missing is no change
SELECT inbox.apply('account', '{id}', 'version', '{"id": 1, "settings": null, "version": 3}');
SELECT * FROM account;
-- a version that nobody has set is older than any
UPDATE account SET version = NULL;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 1, "owner": "p", "version": -1}');
UPDATE account SET version = NULL;
SELECT inbox.remove('account', '{id}', 'version', '{"id": 1, "version": -1}');
TABLE account;
-- not a unique constraint of these columns: partial, on more, or on fewer
CREATE UNIQUE INDEX account_partial ON account (owner) WHERE id > 0;
SELECT inbox.apply('account', '{owner}', 'version', '{"owner": "p", "version": 9}');
CREATE UNIQUE INDEX account_included ON account (balance) INCLUDE (owner);
SELECT inbox.apply('account', '{balance}', 'version', '{"id": 8, "owner": "p", "balance": 1, "version": 9}');
DROP INDEX account_partial, account_included;

-- versions of other types, compared as such
CREATE DOMAIN positive AS numeric CHECK (VALUE > 0);
CREATE TABLE versions (id positive PRIMARY KEY, n numeric, t timestamptz, x text COLLATE "C", d positive);
SET timezone = 'Europe/Berlin';
SELECT inbox.apply('versions', '{id}', 'n', '{"id": 1, "n": 9, "t": "2024-01-01 00:00+00"}');
SELECT inbox.apply('versions', '{id}', 'n', '{"id": 1.0, "n": 10}');
SELECT inbox.apply('versions', '{id}', 't', '{"id": 1, "t": "2024-01-01 00:30+01"}');
SELECT inbox.apply('versions', '{id}', 't', '{"id": 1, "t": "2024-01-01 00:30-01", "d": 1}');
SELECT inbox.apply('versions', '{id}', 'd', '{"id": 1, "d": 0}');
SELECT inbox.remove('versions', '{id}', 't', '{"id": 1, "t": "2024-01-01 12:00+00"}');
SELECT version FROM inbox.tombstone WHERE projection = 'versions'::regclass;
SET timezone = 'UTC';
SET datestyle = 'SQL, DMY';
SELECT inbox.apply('versions', '{id}', 't', '{"id": 1.00, "t": "2024-01-01T11:59:59Z"}');
SELECT inbox.apply('versions', '{id}', 't', '{"id": 1.00, "t": "2024-01-01T12:00:01Z"}');
RESET datestyle;
SELECT inbox.apply('versions', '{id}', 'x', '{"id": 2, "x": "b"}');
SELECT inbox.apply('versions', '{id}', 'x', '{"id": 2, "x": "a"}');
-- keys with a time are the same in all time zones
CREATE TABLE slot (at timestamptz PRIMARY KEY, version int);
SELECT inbox.remove('slot', '{at}', 'version', '{"at": "2024-01-01 12:00+00", "version": 2}');
SET timezone = 'Asia/Tokyo';
SELECT inbox.apply('slot', '{at}', 'version', '{"at": "2024-01-01 13:00+01", "version": 1}');
RESET timezone;

-- partitioned, and seen through a view
CREATE TABLE part (id int, region text, version int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE part_eu PARTITION OF part FOR VALUES IN ('eu');
CREATE TABLE part_us PARTITION OF part FOR VALUES IN ('us');
SELECT inbox.apply('part', '{id,region}', 'version', '{"id": 1, "region": "eu", "version": 1}');
SELECT inbox.apply('part', '{region,id}', 'version', '{"id": 1, "region": "us", "version": 1}');
SELECT inbox.apply('part', '{region,id}', 'version', '{"id": 1, "region": "us", "version": 2}');
SELECT inbox.apply('part', '{region,id}', 'version', '{"id": 1, "region": "mars", "version": 2}');
CREATE VIEW eu AS SELECT id, region, version FROM part WHERE region = 'eu' WITH CHECK OPTION;
SELECT inbox.apply('eu', '{region,id}', 'version', '{"id": 1, "region": "eu", "version": 2}');
SELECT inbox.apply('eu', '{region,id}', 'version', '{"id": 2, "region": "eu", "version": 2}');
SELECT inbox.apply('eu', '{region,id}', 'version', '{"id": 2, "region": "us", "version": 3}');
SELECT inbox.remove('eu', '{region,id}', 'version', '{"id": 1, "region": "eu", "version": 3}');
SELECT tableoid::regclass, id, version FROM part ORDER BY 1, 2;

-- plans are kept, and follow whatever happens to the table and the session
SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'inbox%' AND statement LIKE '%public.account%';
DEALLOCATE ALL;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "owner": "o", "version": 1}');
DISCARD ALL;
SET client_min_messages = warning;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "owner": "o2", "version": 2}');
BEGIN;
SAVEPOINT s;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "balance": 1, "version": 3}');
ROLLBACK TO s;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "balance": 2, "version": 3}');
COMMIT;
ALTER TABLE account ALTER balance TYPE text;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "balance": "much", "version": 4}');
ALTER TABLE account RENAME balance TO money;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "balance": "more", "version": 5}');
ALTER TABLE account ADD balance int;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "balance": 6, "version": 6}');
TABLE account;
-- a table that takes the place of another, as when a projection was built anew
CREATE TABLE account_new (LIKE account INCLUDING ALL);
ALTER TABLE account RENAME TO account_old;
ALTER TABLE account_new RENAME TO account;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "owner": "new", "balance": 6, "version": 1}');
SELECT owner, version FROM account;
SELECT owner, version FROM account_old;
-- a statement of somebody else that is called as ours would be is not run
SELECT name FROM pg_prepared_statements WHERE statement LIKE '%UPDATE public.account AS stored SET owner = excluded.owner, version = excluded.version, balance%' \gset
DEALLOCATE :"name";
PREPARE :"name" (jsonb) AS DELETE FROM account RETURNING true;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "owner": "newer", "balance": 6, "version": 2}');
SELECT owner, version FROM account;
-- not more of them than can be looked through
DO $$ BEGIN FOR i IN 1..120 LOOP EXECUTE format('PREPARE own_%s AS SELECT 1', i); END LOOP; END $$;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "version": 3}');
SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'own%' OR statement LIKE '%SET version = excluded.version FROM%account %';
DEALLOCATE ALL;

-- with the caller's rights
CREATE ROLE regress_apply LOGIN;
SELECT inbox.grant_consume('regress_apply');
SET SESSION AUTHORIZATION regress_apply;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "version": 4}');
SELECT inbox.remove('account', '{id}', 'version', '{"id": 5, "version": 4}');
SELECT inbox_internal.leave_tombstone('account', 0, '{"id": "5"}', '99');
RESET SESSION AUTHORIZATION;
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO regress_apply;
SET SESSION AUTHORIZATION regress_apply;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 5, "version": 4}');
SELECT inbox.remove('account', '{id}', 'version', '{"id": 5, "version": 5}');
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_apply;
DROP ROLE regress_apply;

-- a transaction that looks at the past cannot know what was removed
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT inbox.apply('account', '{id}', 'version', '{"id": 6, "owner": "o", "version": 4}');
ROLLBACK;

-- many rows in one transaction: more than there are locks for
CREATE TABLE many (id int PRIMARY KEY, version int);
BEGIN;
SELECT count(*) FILTER (WHERE inbox.apply('many', '{id}', 'version', jsonb_build_object('id', n, 'version', 1))) FROM generate_series(1, 3000) AS n;
SELECT count(*) FILTER (WHERE inbox.remove('many', '{id}', 'version', jsonb_build_object('id', -n, 'version', 1))) FROM generate_series(1, 3000) AS n;
SELECT count(*) < 100 AS few FROM pg_locks WHERE pid = pg_backend_pid();
COMMIT;

DROP TABLE many, account, account_old, versions, slot, part CASCADE;
DROP DOMAIN positive;

-- names that need quotes
CREATE SCHEMA "My Schema";
CREATE TABLE "My Schema"."My Table" ("The Id" int PRIMARY KEY, "Ver" int);
SELECT inbox.apply('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 1}');
SELECT inbox.apply('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 0}');
SELECT inbox.remove('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 1}');
SELECT * FROM "My Schema"."My Table";
SELECT inbox.remove('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 2}');
SELECT inbox.apply('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 2}');
SELECT projection, key FROM inbox.tombstone WHERE projection = '"My Schema"."My Table"'::regclass;
DROP SCHEMA "My Schema" CASCADE;
DROP TABLE video;
DROP EXTENSION pg_inbox;
