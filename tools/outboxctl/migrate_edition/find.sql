-- outboxctl migrate-edition runs these files in its transaction. Their schemas are dropped at its end.
--
-- The session is a superuser, and the SQL edition may belong to a role that is not, whose code must not run
-- as a superuser. Nothing here calls a function, or reads a view, of an SQL edition that is installed: its
-- owner could have replaced it. But planning a query on a plain table runs code as well, and so does reading
-- a column of a type with a cast, and parsing a literal of a domain. Therefore:
--
-- * Tables are locked first, so that nothing can be added to them; then compared (refuse.sql): all code that
--   reading them runs must be built in; then read. Nothing else of pg_outbox is read.
-- * Rows are read as the owner of the table, in a restricted operation, and come as text. Only when the
--   tables are moved are they read as a superuser.
-- * Texts that an owner wrote, and that are parsed again, are parsed as that owner, restricted: options of
--   destinations, definitions of views, conditions.
--
-- This file finds what is installed, and what depends on it.
CREATE SCHEMA outbox_migration;
CREATE SCHEMA outbox_migration_rows; -- tables on their way from one edition to the other

-- Executes statements. A query that makes some is run to its end before the first.
CREATE FUNCTION outbox_migration.run(statements text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        EXECUTE statement;
    END LOOP;
END $$;

-- Filled in by outboxctl.
CREATE TABLE outbox_migration.request (
    target           text NOT NULL, -- native or sql
    version          text NOT NULL, -- of outboxctl
    owner            name,          -- of the SQL edition, if another than the session's role
    has_secrets_file boolean NOT NULL
);

-- Objects by name, and settings, that the script of the SQL edition makes.
CREATE TABLE outbox_migration.made (name text NOT NULL);
CREATE TABLE outbox_migration.known_setting (name text NOT NULL);

CREATE FUNCTION outbox_migration.read_script(script text)
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO outbox_migration.made
    SELECT DISTINCT replace(m[1], '%1$s', n::text)
      FROM regexp_matches(script, 'CREATE (?:UNIQUE |UNLOGGED )?(?:FUNCTION|TABLE|VIEW|SEQUENCE|DOMAIN|TYPE|INDEX) ([a-z_0-9.%$]+)', 'g') AS m,
           generate_series(0, 3) AS n;
    INSERT INTO outbox_migration.known_setting
    SELECT m[1]
      FROM regexp_matches(split_part(split_part(script, 'CREATE FUNCTION outbox_internal.default_settings(', 2), ') AS s(', 1),
                          '\(''([a-z_]+)'', ', 'g') AS m
$$;

CREATE VIEW outbox_migration.schema AS
SELECT n.oid, n.nspname AS name, n.nspowner AS owner FROM pg_namespace AS n WHERE n.nspname IN ('outbox', 'outbox_internal');

-- The version is a constant of the function, which is read here and not called.
CREATE VIEW outbox_migration.installed AS
SELECT 'native' AS edition, e.extversion AS version, e.extowner AS owner
  FROM pg_extension AS e WHERE e.extname = 'pg_outbox'
UNION ALL
SELECT 'sql', (SELECT substring(pg_get_functiondef(v.oid) FROM '''([0-9][^'']*)''::text')
                 FROM pg_proc AS v JOIN outbox_migration.schema AS n ON n.oid = v.pronamespace AND n.name = 'outbox'
                WHERE v.proname = 'version'), s.owner
  FROM pg_proc AS p
  JOIN outbox_migration.schema AS s ON s.oid = p.pronamespace AND s.name = 'outbox_internal'
 WHERE p.proname = 'edition' AND NOT EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'pg_outbox');

-- Tables that are not carried over. The first is written by CREATE SERVER. The next four are about relays
-- that must let go anyway, and the time of their next tasks; the sixth is about this cluster. The others stand for objects of the extension:
-- settings, servers, and the right to use these. All other tables are found in the catalog.
CREATE FUNCTION outbox_migration.left_behind()
RETURNS name[]
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT '{expression,relay,relay_lease,relay_status,upkeep,home,setting,destination_config,fetcher}'::name[];
END;

-- The library of pg_outbox as it is loaded: by another path it would be loaded once more. Only a superuser
-- can have made a function in C.
CREATE FUNCTION outbox_migration.library()
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(
        (SELECT p.probin FROM pg_proc AS p
           JOIN outbox_migration.schema AS s ON s.oid = p.pronamespace AND s.name = 'outbox_internal'
           JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname = 'c'
          WHERE p.proname = 'run_as_owner'),
        (SELECT btrim(n, ' "') FROM string_to_table(current_setting('shared_preload_libraries'), ',') AS n
          WHERE btrim(n, ' "') ~ '(^|/)pg_outbox(\.[a-z]+)?$' AND EXISTS (SELECT FROM pg_settings AS s WHERE s.name = 'outbox.max_workers')
          LIMIT 1))
$$;

-- Runs a statement as the owner of a table or view, restricted as VACUUM is: code that runs meanwhile cannot
-- become the session's role again, and leaves nothing behind that would run later. Returns the first row.
DO $$
DECLARE
    library CONSTANT text := outbox_migration.library(); -- without it the migration is refused
BEGIN
    IF library IS NOT NULL THEN
        EXECUTE format($f$ CREATE FUNCTION outbox_migration.run_as_owner("table" regclass, statement text) RETURNS text[]
                           LANGUAGE c VOLATILE STRICT AS %L, 'outbox_run_as_owner' $f$, library);
    END IF;
END $$;

-- Belongs to the owner of the edition that is installed, for run_as_owner().
CREATE TABLE outbox_migration.of_owner ();

-- The tables of pg_outbox that this transaction has locked.
CREATE TABLE outbox_migration.ours (class oid PRIMARY KEY, name name NOT NULL);

-- Nobody can add statistics, indexes, columns, rules or children to them, replace them, or rename them, until
-- the transaction ends. Readers, writers and relays do not wait. It gives up before any session looks for
-- deadlocks.
CREATE FUNCTION outbox_migration.lock_ours()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET lock_timeout = 0 -- for this function
AS $$
BEGIN
    PERFORM set_config('lock_timeout', (s.setting::integer * 4 / 5)::text, true) FROM pg_settings AS s WHERE s.name = 'deadlock_timeout';
    EXECUTE (SELECT format('ALTER TABLE outbox_migration.of_owner OWNER TO %I', pg_get_userbyid(i.owner)) FROM outbox_migration.installed AS i);
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', c.oid::regclass)
          FROM pg_class AS c JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace AND s.name = 'outbox'
         WHERE c.relkind = 'r' ORDER BY c.oid));
    DELETE FROM outbox_migration.ours;
    INSERT INTO outbox_migration.ours
    SELECT c.oid, c.relname
      FROM pg_class AS c
      JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace AND s.name = 'outbox'
     WHERE c.relkind = 'r'
       AND EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.locktype = 'relation' AND l.relation = c.oid AND l.pid = pg_backend_pid() AND l.granted
                      AND l.mode = 'ShareUpdateExclusiveLock');
END $$;

-- Tables with rows; the log and receipts are in their children.
CREATE VIEW outbox_migration.table_with_rows AS
SELECT c.oid::regclass AS class, c.relname AS name
  FROM pg_class AS c
  JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace AND s.name = 'outbox'
 WHERE c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid)
   AND c.relname <> ALL (outbox_migration.left_behind());

-- Tables with rows that may be read.
CREATE VIEW outbox_migration.old_table AS
SELECT t.class, t.name FROM outbox_migration.table_with_rows AS t JOIN outbox_migration.ours AS o ON o.class = t.class;

-- Rows as JSON of a table that only the SQL edition has, or that has few.
CREATE FUNCTION outbox_migration.rows_of(name name)
RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox_migration.ours AS o WHERE o.name = rows_of.name) THEN
        RETURN QUERY SELECT jsonb_array_elements((outbox_migration.run_as_owner(
            format('outbox.%I', name)::regclass, format('SELECT jsonb_agg(to_jsonb(r)) FROM ONLY outbox.%I AS r', name)))[1]::jsonb);
    END IF;
END $$;

-- ------------------------------------------------------------------------------------------------
-- Destinations and settings, in the form of both editions
-- ------------------------------------------------------------------------------------------------

CREATE VIEW outbox_migration.server AS
SELECT s.oid, s.srvname AS name, s.srvowner AS owner, s.srvoptions AS options, s.srvacl AS acl
  FROM pg_foreign_server AS s
  JOIN pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
 WHERE f.fdwname = 'pg_outbox';

-- The credentials that a relay uses: the mapping of the server's owner, or else that of PUBLIC.
CREATE VIEW outbox_migration.secret AS
SELECT s.name AS destination, o.option_name AS option, o.option_value AS value
  FROM outbox_migration.server AS s
 CROSS JOIN LATERAL (SELECT m.umoptions AS options FROM pg_user_mapping AS m
                      WHERE m.umserver = s.oid AND m.umuser IN (s.owner, 0)
                      ORDER BY m.umuser DESC LIMIT 1) AS mapping
 CROSS JOIN LATERAL pg_options_to_table(mapping.options) AS o;

CREATE FUNCTION outbox_migration.destinations(OUT name name, OUT options jsonb)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT s.name, coalesce((SELECT jsonb_object_agg(o.option_name, o.option_value) FROM pg_options_to_table(s.options) AS o), '{}')
      FROM outbox_migration.server AS s
    UNION ALL
    SELECT (r ->> 'name')::name, r -> 'options' FROM outbox_migration.rows_of('destination_config') AS r
$$;

-- Options of a destination in the other edition, as arguments of CREATE SERVER and as options of a row.
-- outbox-relay goes on serving it, until somebody drops the option `relay`.
CREATE FUNCTION outbox_migration.options_there(name name, options jsonb)
RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT CASE r.target
             WHEN 'sql' THEN options - 'relay'
             ELSE options - 'credentials' - 'relay'
                  || CASE WHEN options ->> 'url' = 'pull:' THEN '{}' ELSE '{"relay": "external"}' END::jsonb
           END
      FROM outbox_migration.request AS r
$$;

-- A setting as a number of milliseconds or bytes, or as text, so that 60s is 1min.
CREATE FUNCTION outbox_migration.measure(value text, unit text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF unit IN ('ms', 's', 'min') THEN
        RETURN round(extract(epoch FROM (value || CASE WHEN value ~ '^[0-9.]+$' THEN unit ELSE '' END)::interval) * 1000);
    ELSIF unit IN ('B', 'kB', 'MB') THEN
        RETURN pg_size_bytes(regexp_replace(value || CASE WHEN value ~ '^[0-9.]+$' THEN unit ELSE '' END, '([0-9]) *B$', '\1 bytes'));
    END IF;
    RETURN replace(lower(value), ' ', '');
END $$;

-- Settings of both editions with their values in both: `set` is the row of outbox.setting. Those that only
-- the extension has are about its workers.
CREATE FUNCTION outbox_migration.settings(OUT name text, OUT set text, OUT of_server text, OUT by_default text, OUT unit text, OUT source text, OUT context text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT known.name, (SELECT r ->> 'value' FROM outbox_migration.rows_of('setting') AS r WHERE r ->> 'name' = known.name),
           current_setting(s.name), s.boot_val, coalesce(s.unit, ''), s.source, s.context
      FROM outbox_migration.known_setting AS known
      JOIN pg_settings AS s ON s.name = 'outbox.' || known.name
$$;

-- ------------------------------------------------------------------------------------------------
-- Objects of users that depend on pg_outbox
-- ------------------------------------------------------------------------------------------------

CREATE VIEW outbox_migration.function AS
SELECT p.oid, s.name || '.' || p.proname AS name FROM pg_proc AS p JOIN outbox_migration.schema AS s ON s.oid = p.pronamespace;

CREATE VIEW outbox_migration.capture_trigger AS
SELECT t.* FROM pg_trigger AS t JOIN outbox_migration.function AS f ON f.oid = t.tgfoid
 WHERE f.name IN ('outbox.capture_row', 'outbox.capture_truncate');

-- Captured tables with their partitions and children.
CREATE FUNCTION outbox_migration.captured(OUT root oid, OUT member oid, OUT on_truncate text, OUT conditional boolean, OUT condition text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE root AS (
        SELECT c.oid, r ->> 'on_truncate' AS on_truncate, (r ->> 'conditional')::boolean AS conditional
          FROM outbox_migration.rows_of('captured') AS r
          JOIN pg_class AS c ON c.oid = (r ->> 'relation')::regclass
    ), member(root, oid, distance) AS (
        SELECT r.oid, r.oid, 0 FROM root AS r
        UNION ALL
        SELECT m.root, i.inhrelid, m.distance + 1
          FROM member AS m
          JOIN pg_inherits AS i ON i.inhparent = m.oid
          JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relpersistence <> 't'
    )
    SELECT m.root, m.oid, r.on_truncate, r.conditional,
           (SELECT pg_get_expr(t.tgqual, t.tgrelid) FROM outbox_migration.capture_trigger AS t
             WHERE t.tgrelid = m.root AND t.tgname = '00_outbox_capture_delete' AND t.tgtype = 9)
      FROM member AS m JOIN root AS r ON r.oid = m.root
     GROUP BY m.root, m.oid, r.on_truncate, r.conditional
     ORDER BY m.root, min(m.distance), m.oid
$$;

-- Objects of pg_outbox, as far as others can depend on them.
CREATE VIEW outbox_migration.own AS
SELECT 'pg_namespace'::regclass AS classid, s.oid FROM outbox_migration.schema AS s
UNION ALL
SELECT 'pg_class'::regclass, c.oid FROM pg_class AS c JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
UNION ALL
SELECT 'pg_proc'::regclass, f.oid FROM outbox_migration.function AS f
UNION ALL
SELECT 'pg_type'::regclass, t.oid FROM pg_type AS t JOIN outbox_migration.schema AS s ON s.oid = t.typnamespace
UNION ALL
SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint AS k JOIN outbox_migration.schema AS s ON s.oid = k.connamespace
UNION ALL
SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
UNION ALL
SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
UNION ALL
SELECT 'pg_policy'::regclass, p.oid FROM pg_policy AS p JOIN pg_class AS c ON c.oid = p.polrelid JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
 WHERE c.relname = 'endpoint' AND p.polname = 'owner_of_server'
UNION ALL
SELECT 'pg_attrdef'::regclass, d.oid FROM pg_attrdef AS d JOIN pg_class AS c ON c.oid = d.adrelid JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
UNION ALL
SELECT 'pg_extension'::regclass, e.oid FROM pg_extension AS e WHERE e.extname = 'pg_outbox'
UNION ALL
SELECT 'pg_foreign_data_wrapper'::regclass, f.oid FROM pg_foreign_data_wrapper AS f WHERE f.fdwname = 'pg_outbox'
UNION ALL
SELECT 'pg_foreign_server'::regclass, s.oid FROM outbox_migration.server AS s
UNION ALL
SELECT 'pg_event_trigger'::regclass, d.objid
  FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'pg_outbox'
 WHERE d.classid = 'pg_event_trigger'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e';

CREATE VIEW outbox_migration.dependent AS
SELECT DISTINCT d.classid, d.objid
  FROM pg_depend AS d
  JOIN outbox_migration.own AS o ON o.classid = d.refclassid AND o.oid = d.refobjid
 WHERE NOT EXISTS (SELECT FROM outbox_migration.own AS x WHERE x.classid = d.classid AND x.oid = d.objid)
   AND NOT EXISTS (SELECT FROM pg_class AS c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid
                                               AND c.relnamespace = 'pg_toast'::regnamespace)
   AND d.classid <> 'pg_user_mapping'::regclass;

-- Views of users, and the triggers of outbox.create_outbox_view() on them: they are made again, and keep
-- their identity meanwhile.
CREATE VIEW outbox_migration.user_view AS
SELECT DISTINCT c.oid
  FROM outbox_migration.dependent AS d
  JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid AND r.rulename = '_RETURN'
  JOIN pg_class AS c ON c.oid = r.ev_class AND c.relkind = 'v';

CREATE VIEW outbox_migration.view_trigger AS
SELECT t.oid, t.tgrelid, t.tgname, t.tgenabled
  FROM pg_trigger AS t
  JOIN outbox_migration.function AS f ON f.oid = t.tgfoid AND f.name IN ('outbox.insert_event', 'outbox.refuse_change')
  JOIN pg_class AS c ON c.oid = t.tgrelid AND c.relkind = 'v'
 WHERE t.tgqual IS NULL;

-- Lists what takes part, in the order in which others lock it: writers their own tables and views, then the
-- gate; readers a view, then what is below it. LOCK TABLE is not for sequences, and with a view it locks all
-- below, and that are catalogs too.
--
-- The gate is what a transaction of a writer locks first of ours. While the migration waits for it, because
-- older transactions hold it, new ones queue up behind it and hold nothing else of ours. With any other order,
-- one of them would hold what the migration needs next, and a steady stream of writers would make it fail.
CREATE TABLE outbox_migration.lock (n bigint NOT NULL, statement text NOT NULL);

-- The gate of the SQL edition is a sequence; that of the extension is the current segment of the log, or the
-- ids of sources if an event has one. Relays read the log too, and before it the tables between the two.
CREATE FUNCTION outbox_migration.locked_first()
RETURNS name[]
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT '{current_segment,relay_lease,relay,cursor,source_event,event_0,event_1,event_2,event_3}'::name[];
END;

CREATE FUNCTION outbox_migration.list_locks()
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO outbox_migration.lock
    SELECT row_number() OVER (ORDER BY k.place, c.relkind <> 'v', array_position(outbox_migration.locked_first(), c.relname), c.oid),
           CASE WHEN c.relkind IN ('v', 'S') THEN format('ALTER %s %s OWNER TO %I', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'SEQUENCE' END,
                                                         c.oid::regclass, pg_get_userbyid(c.relowner))
                ELSE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', c.oid::regclass) END
      FROM (SELECT 1 AS place, member AS oid FROM outbox_migration.captured()
            UNION SELECT 2, v.oid FROM outbox_migration.user_view AS v
            UNION SELECT 2, t.tgrelid FROM outbox_migration.view_trigger AS t
            UNION SELECT 3, o.oid FROM outbox_migration.own AS o WHERE o.classid = 'pg_class'::regclass) AS k
      JOIN pg_class AS c ON c.oid = k.oid AND c.relkind IN ('r', 'p', 'v', 'S')
$$;

-- Workers of the server lock the extension, and then its tables. They leave until this session ends; only a
-- superuser can have made the function.
CREATE FUNCTION outbox_migration.send_workers_away()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox_migration.installed AS i WHERE i.edition = 'native')
       AND EXISTS (SELECT FROM pg_settings AS s WHERE s.name = 'outbox.max_workers') THEN
        PERFORM outbox_internal.begin_restore();
    END IF;
END $$;

CREATE FUNCTION outbox_migration.lock_all()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM outbox_migration.run(ARRAY(SELECT k.statement FROM outbox_migration.lock AS k ORDER BY k.n));
END $$;
