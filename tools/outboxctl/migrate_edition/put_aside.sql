-- Notes what is not in rows, takes down what hangs on objects of the old edition, and moves the tables out
-- of its way. All tables are locked by now, so no transaction is enqueueing, and no relay settles events.

-- ------------------------------------------------------------------------------------------------
-- Rights
-- ------------------------------------------------------------------------------------------------

-- Objects with privileges, under names that both editions have in common: functions of the SQL edition may
-- have one more argument, the calling role.
CREATE VIEW outbox_migration.object AS
SELECT 'SCHEMA' AS kind, s.name::text AS key, s.name::text AS part, quote_ident(s.name) AS object, NULL::name AS column_name, s.owner, n.nspacl AS acl
  FROM outbox_migration.schema AS s JOIN pg_namespace AS n ON n.oid = s.oid
UNION ALL
SELECT 'ROUTINE', f.name || '(' || array_to_string(ARRAY(SELECT t.type::regtype::text FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t(type, n)
                                                          WHERE t.type::regtype::text <> 'outbox_internal.caller' ORDER BY t.n), ', ') || ')',
       p.proname, p.oid::regprocedure::text, NULL, p.proowner, p.proacl
  FROM pg_proc AS p JOIN outbox_migration.function AS f ON f.oid = p.oid
UNION ALL
SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relname, c.oid::regclass::text, NULL, c.relowner, c.relacl
  FROM pg_class AS c JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'v', 'S')
UNION ALL
SELECT 'TABLE', c.oid::regclass::text, c.relname, c.oid::regclass::text, a.attname, c.relowner, a.attacl
  FROM pg_class AS c
  JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relkind IN ('r', 'v')
UNION ALL
SELECT 'TYPE', t.oid::regtype::text, t.typname, t.oid::regtype::text, NULL, t.typowner, t.typacl
  FROM pg_type AS t
  JOIN outbox_migration.schema AS s ON s.oid = t.typnamespace
  LEFT JOIN pg_class AS c ON c.oid = t.typrelid
 WHERE coalesce(c.relkind, 'c') = 'c' AND NOT (t.typelem <> 0 AND t.typname LIKE '\_%');

-- Privileges of the owner do not count as granted. Without an ACL the defaults apply.
CREATE VIEW outbox_migration.privilege AS
SELECT o.kind, o.key, o.part, o.object, o.column_name, o.owner, a.grantee, a.privilege_type AS privilege, a.is_grantable AS grantable
  FROM outbox_migration.object AS o
 CROSS JOIN LATERAL aclexplode(coalesce(o.acl, CASE WHEN o.column_name IS NULL THEN
                acldefault(CASE o.kind WHEN 'SCHEMA' THEN 'n' WHEN 'ROUTINE' THEN 'f' WHEN 'SEQUENCE' THEN 's' WHEN 'TYPE' THEN 'T' ELSE 'r' END::"char", o.owner) END)) AS a
 WHERE a.grantee <> o.owner;

CREATE TABLE outbox_migration.old_privilege AS SELECT * FROM outbox_migration.privilege WITH NO DATA;
CREATE TABLE outbox_migration.old_object (kind text NOT NULL, part text NOT NULL);

-- Rights (outbox_internal.parts_of_right()) that roles had as a whole. The other edition may have more parts.
CREATE FUNCTION outbox_migration.rights_held(OUT role regrole, OUT right_to text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT p.grantee::regrole, r.right_to
      FROM unnest('{produce,capture,operate,fetch,monitor,relay}'::text[]) AS r(right_to)
     CROSS JOIN LATERAL (SELECT outbox_internal.parts_of_right(r.right_to) AS names) AS parts
      JOIN outbox_migration.old_privilege AS p ON p.part = ANY (parts.names) AND p.kind IN ('ROUTINE', 'TABLE') AND p.column_name IS NULL AND p.grantee <> 0
     GROUP BY p.grantee, r.right_to, parts.names
    HAVING count(DISTINCT p.part) = (SELECT count(DISTINCT o.part) FROM outbox_migration.old_object AS o
                                      WHERE o.part = ANY (parts.names) AND o.kind IN ('ROUTINE', 'TABLE'))
$$;

-- ------------------------------------------------------------------------------------------------
-- Notes
-- ------------------------------------------------------------------------------------------------

CREATE TABLE outbox_migration.old_destination (name name NOT NULL, options jsonb NOT NULL);
CREATE TABLE outbox_migration.old_fetcher (role oid NOT NULL, destination name NOT NULL);
CREATE TABLE outbox_migration.old_sequence (name text NOT NULL, last_value bigint NOT NULL, is_called boolean NOT NULL);
CREATE TABLE outbox_migration.old_setting AS SELECT * FROM outbox_migration.settings() WITH NO DATA;
CREATE TABLE outbox_migration.old_capture AS SELECT row_number() OVER () AS n, * FROM outbox_migration.captured() WITH NO DATA;
CREATE TABLE outbox_migration.old_trigger (relation oid NOT NULL, name name NOT NULL, state "char" NOT NULL, definition text);
CREATE TABLE outbox_migration.old_view (oid oid NOT NULL, definition text NOT NULL, options text);
CREATE TABLE outbox_migration.old_generated AS -- columns that are not moved
    SELECT c.relname AS "table", a.attname AS name
      FROM outbox_migration.table_with_rows AS t
      JOIN pg_class AS c ON c.oid = t.class
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attgenerated <> '';
CREATE TABLE outbox_migration.old_owner (owner oid NOT NULL);
CREATE TABLE outbox_migration.old_foreign_owner (destination name NOT NULL, owner name NOT NULL);
CREATE TABLE outbox_migration.old_creator (role text NOT NULL); -- of foreign servers
CREATE TABLE outbox_migration.old_stop (destination name NOT NULL, why text NOT NULL);

CREATE FUNCTION outbox_migration.take_notes()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO outbox_migration.old_owner SELECT i.owner FROM outbox_migration.installed AS i;
    INSERT INTO outbox_migration.old_privilege SELECT * FROM outbox_migration.privilege;
    INSERT INTO outbox_migration.old_object SELECT o.kind, o.part FROM outbox_migration.object AS o;
    INSERT INTO outbox_migration.old_destination SELECT * FROM outbox_migration.destinations();
    INSERT INTO outbox_migration.old_fetcher
    SELECT a.grantee, s.name FROM outbox_migration.server AS s, aclexplode(s.acl) AS a WHERE a.grantee <> s.owner AND a.privilege_type = 'USAGE'
    UNION
    SELECT s.owner, s.name FROM outbox_migration.server AS s
      JOIN pg_roles AS r ON r.oid = s.owner AND NOT r.rolsuper WHERE 'url=pull:' = ANY (s.options)
    UNION
    SELECT r.oid, (f ->> 'destination')::name FROM outbox_migration.rows_of('fetcher') AS f
      JOIN pg_roles AS r ON r.oid = (f ->> 'role')::regrole;
    INSERT INTO outbox_migration.old_foreign_owner
    SELECT s.name, pg_get_userbyid(s.owner) FROM outbox_migration.server AS s WHERE s.owner <> (SELECT o.owner FROM outbox_migration.old_owner AS o);
    INSERT INTO outbox_migration.old_creator
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
      FROM pg_foreign_data_wrapper AS f, aclexplode(f.fdwacl) AS a
     WHERE f.fdwname = 'pg_outbox' AND a.grantee <> f.fdwowner;
    INSERT INTO outbox_migration.old_stop SELECT * FROM outbox_migration.will_stop();
    INSERT INTO outbox_migration.old_setting SELECT * FROM outbox_migration.settings();
    INSERT INTO outbox_migration.old_capture SELECT row_number() OVER (), * FROM outbox_migration.captured();
    INSERT INTO outbox_migration.old_trigger
    SELECT t.tgrelid, t.tgname, t.tgenabled, NULL FROM outbox_migration.capture_trigger AS t
    UNION ALL
    SELECT t.tgrelid, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid) FROM outbox_migration.view_trigger AS t;
    INSERT INTO outbox_migration.old_view
    SELECT v.oid, rtrim(pg_get_viewdef(v.oid), ';'), (SELECT ' WITH (' || array_to_string(c.reloptions, ', ') || ')' FROM pg_class AS c WHERE c.oid = v.oid)
      FROM outbox_migration.user_view AS v;
END $$;

-- Sequences are read only when they are locked: a view could take their place.
CREATE FUNCTION outbox_migration.note_sequences()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('INSERT INTO outbox_migration.old_sequence SELECT %L, q.last_value, q.is_called FROM %s AS q', c.oid::regclass, c.oid::regclass)
          FROM pg_class AS c
          JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
          JOIN pg_locks AS l ON l.locktype = 'relation' AND l.relation = c.oid AND l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock'
         WHERE c.relkind = 'S'));
END $$;

-- ------------------------------------------------------------------------------------------------
-- Taking down
-- ------------------------------------------------------------------------------------------------

-- A view of nothing has the same columns, so that the view keeps its owner, its privileges, and what
-- depends on it.
CREATE FUNCTION outbox_migration.empty_view(view oid)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    EXECUTE (SELECT format('CREATE OR REPLACE VIEW %s AS SELECT %s', view::regclass,
                           string_agg(format('NULL::%s%s AS %I', format_type(a.atttypid, a.atttypmod),
                                             (SELECT format(' COLLATE %I.%I', n.nspname, k.collname)
                                                FROM pg_collation AS k JOIN pg_namespace AS n ON n.oid = k.collnamespace
                                               WHERE k.oid = a.attcollation AND k.collname <> 'default'), a.attname), ', ' ORDER BY a.attnum))
               FROM pg_attribute AS a WHERE a.attrelid = view AND a.attnum > 0 AND NOT a.attisdropped);
END $$;

CREATE FUNCTION outbox_migration.move_table("table" regclass, is_member boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, "table") FROM pg_trigger AS t WHERE t.tgrelid = "table" AND NOT t.tgisinternal
        UNION ALL
        SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', "table", k.conname) FROM pg_constraint AS k
         WHERE k.conrelid = "table" AND k.contype IN ('c', 'f')
        UNION ALL
        SELECT format('ALTER TABLE %s ALTER %I DROP %s', "table", a.attname, CASE a.attgenerated WHEN '' THEN 'DEFAULT' ELSE 'EXPRESSION' END)
          FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = "table"
        UNION ALL
        SELECT format('ALTER TABLE %s NO INHERIT %s', "table", i.inhparent::regclass) FROM pg_inherits AS i WHERE i.inhrelid = "table"
        UNION ALL
        SELECT format('ALTER EXTENSION pg_outbox DROP TABLE %s', "table") WHERE is_member));
    EXECUTE format('ALTER TABLE %s SET SCHEMA outbox_migration_rows', "table");
END $$;

CREATE FUNCTION outbox_migration.put_aside()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    is_native CONSTANT boolean := (SELECT i.edition = 'native' FROM outbox_migration.installed AS i);
BEGIN
    -- They would follow every step here, and remove the rows of destinations.
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('ALTER EVENT TRIGGER %I DISABLE', e.evtname)
          FROM pg_event_trigger AS e JOIN outbox_migration.own AS o ON o.classid = 'pg_event_trigger'::regclass AND o.oid = e.oid));
    PERFORM outbox_migration.take_notes();
    PERFORM outbox_migration.note_sequences();

    -- Triggers of partitions go with those of their tables.
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) FROM outbox_migration.capture_trigger AS t WHERE t.tgparentid = 0
        UNION ALL
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) FROM outbox_migration.view_trigger AS t
        UNION ALL
        SELECT format('DROP USER MAPPING FOR %s SERVER %I', CASE m.umuser WHEN 0 THEN 'PUBLIC' ELSE quote_ident(m.usename) END, m.srvname)
          FROM pg_user_mappings AS m JOIN outbox_migration.server AS s ON s.oid = m.srvid
        UNION ALL
        SELECT format('DROP SERVER %I', s.name) FROM outbox_migration.server AS s));
    PERFORM outbox_migration.empty_view(v.oid) FROM outbox_migration.old_view AS v;
    PERFORM outbox_migration.move_table(t.class, is_native) FROM outbox_migration.old_table AS t;

    -- An unknown object that depends on pg_outbox makes the first two fail. For the SQL edition,
    -- such objects were looked for under the same locks.
    IF is_native THEN
        DROP EXTENSION pg_outbox;
        DROP SCHEMA outbox;
    ELSIF EXISTS (SELECT FROM outbox_migration.dependent) THEN
        RAISE EXCEPTION 'objects depend on pg_outbox that did not when it was checked'
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Try again.';
    ELSE
        DROP SCHEMA outbox, outbox_internal CASCADE;
    END IF;
    PERFORM outbox_migration.run(ARRAY(SELECT format('ALTER TABLE outbox_migration_rows.%I DROP %I', g."table", g.name) FROM outbox_migration.old_generated AS g));
END $$;
