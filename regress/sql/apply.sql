-- inbox.apply(): a row of a projection never goes back to an older version.
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

-- names that need quotes
CREATE SCHEMA "My Schema";
CREATE TABLE "My Schema"."My Table" ("The Id" int PRIMARY KEY, "Ver" int);
SELECT inbox.apply('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 1}');
SELECT inbox.apply('"My Schema"."My Table"', '{The Id}', 'Ver', '{"The Id": 1, "Ver": 0}');
SELECT * FROM "My Schema"."My Table";
DROP SCHEMA "My Schema" CASCADE;
DROP TABLE video;
DROP EXTENSION pg_inbox;
