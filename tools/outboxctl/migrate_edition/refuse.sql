-- Reasons against a migration, and what to do about them.

-- Tables, views, functions and so on that somebody has added to the schemas of pg_outbox. The indexes of
-- the extension are those of the script too, as their tables are.
CREATE FUNCTION outbox_migration.strangers()
RETURNS SETOF text
LANGUAGE sql STABLE
AS $$
    WITH object AS (
        SELECT 'pg_class'::regclass AS classid, c.oid, s.name || '.' || c.relname AS name, c.relkind IN ('i', 'I') AS is_index
          FROM pg_class AS c JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
         WHERE c.relkind NOT IN ('t', 'c') AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = c.oid)
        UNION ALL
        SELECT 'pg_proc', f.oid, f.name, false FROM outbox_migration.function AS f
        UNION ALL
        SELECT 'pg_type', t.oid, s.name || '.' || t.typname, false
          FROM pg_type AS t JOIN outbox_migration.schema AS s ON s.oid = t.typnamespace
         WHERE t.typrelid = 0 AND NOT (t.typelem <> 0 AND t.typname LIKE '\_%')
    )
    SELECT pg_describe_object(o.classid, o.oid, 0)
      FROM object AS o, outbox_migration.installed AS i
     WHERE CASE WHEN o.is_index THEN o.name NOT IN (SELECT 'outbox.' || m.name FROM outbox_migration.made AS m)
                WHEN i.edition = 'sql' THEN o.name NOT IN (SELECT m.name FROM outbox_migration.made AS m)
                ELSE NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = o.classid AND d.objid = o.oid AND d.deptype = 'e') END
    UNION ALL
    SELECT pg_describe_object('pg_trigger'::regclass, t.oid, 0)
      FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
     WHERE NOT t.tgisinternal AND NOT EXISTS (SELECT FROM outbox_migration.function AS f WHERE f.oid = t.tgfoid)
    UNION ALL
    SELECT pg_describe_object('pg_rewrite'::regclass, r.oid, 0)
      FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class JOIN outbox_migration.schema AS s ON s.oid = c.relnamespace
     WHERE r.rulename <> '_RETURN'
$$;

CREATE FUNCTION outbox_migration.dependents()
RETURNS SETOF text
LANGUAGE sql STABLE
AS $$
    SELECT pg_describe_object(d.classid, d.objid, 0)
      FROM outbox_migration.dependent AS d
     WHERE NOT EXISTS (SELECT FROM pg_rewrite AS r JOIN outbox_migration.user_view AS v ON v.oid = r.ev_class
                        WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid)
       AND NOT (d.classid = 'pg_trigger'::regclass
                AND (EXISTS (SELECT FROM outbox_migration.view_trigger AS t WHERE t.oid = d.objid)
                     OR EXISTS (SELECT FROM outbox_migration.capture_trigger AS t JOIN outbox_migration.captured() AS c ON c.member = t.tgrelid
                                 WHERE t.oid = d.objid)))
$$;

-- ------------------------------------------------------------------------------------------------
-- Code of others
-- ------------------------------------------------------------------------------------------------

-- Code of roles that are not superusers. Enumerated types have built-in code only.
CREATE VIEW outbox_migration.code_of_role AS
SELECT k.classid, k.oid
  FROM (SELECT 'pg_proc'::regclass AS classid, p.oid, p.proowner AS owner FROM pg_proc AS p
        UNION ALL SELECT 'pg_operator'::regclass, o.oid, o.oprowner FROM pg_operator AS o
        UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM pg_type AS t WHERE t.typtype <> 'e') AS k
  JOIN pg_roles AS r ON r.oid = k.owner AND NOT r.rolsuper
 WHERE NOT EXISTS (SELECT FROM outbox_migration.own AS o WHERE o.classid = k.classid AND o.oid = k.oid);

-- Refuses conditions with code of a role where they cannot be parsed again as that role, restricted: the
-- script of the SQL edition does not restrict them, so code could wait for the end of the transaction; and
-- a partition of another owner gets the condition of the whole table.
CREATE FUNCTION outbox_migration.refused_conditions(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT DISTINCT format('the condition of the captured table %s calls code of a role that is not a superuser', w.oid::regclass),
           format('SELECT outbox.uncapture(%L), and capture it again afterwards.', w.oid::regclass)
      FROM outbox_migration.request AS r, outbox_migration.captured() AS c
      JOIN pg_class AS w ON w.oid = c.root
      JOIN pg_class AS m ON m.oid = c.member
      JOIN outbox_migration.capture_trigger AS t ON t.tgrelid = w.oid
      JOIN pg_depend AS d ON d.classid = 'pg_trigger'::regclass AND d.objid = t.oid
      JOIN outbox_migration.code_of_role AS k ON k.classid = d.refclassid AND k.oid = d.refobjid
     WHERE r.target = 'sql' OR m.relowner <> w.relowner
$$;

-- Lists code that could run when tables of pg_outbox are planned or read: the script makes nothing of the
-- kind. Checks, defaults and triggers do not run then, and policies do not run for a superuser.
CREATE FUNCTION outbox_migration.code_of_others(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT format('column "%s" of table %s has the type %s, which is not built in', a.attname, o.class::regclass, format_type(a.atttypid, a.atttypmod)),
           'It does not belong to pg_outbox. Drop it.'
      FROM outbox_migration.ours AS o
      JOIN pg_attribute AS a ON a.attrelid = o.class AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION ALL
    SELECT format('%s depends on pg_outbox', pg_describe_object('pg_statistic_ext'::regclass, e.oid, 0)), 'Drop it, and create it again afterwards.'
      FROM outbox_migration.ours AS o JOIN pg_statistic_ext AS e ON e.stxrelid = o.class
    UNION ALL
    SELECT format('%s calls code that is not built in', pg_describe_object('pg_class'::regclass, i.indexrelid, 0)), 'It does not belong to pg_outbox. Drop it.'
      FROM outbox_migration.ours AS o
      JOIN pg_index AS i ON i.indrelid = o.class
      JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
       AND d.refclassid NOT IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_extension'::regclass) AND d.refobjid >= 16384
    UNION ALL
    SELECT format('%s depends on pg_outbox', pg_describe_object('pg_class'::regclass, f.other, 0)), 'Drop it, and create it again afterwards.'
      FROM (SELECT i.inhparent AS one, i.inhrelid AS other FROM pg_inherits AS i UNION ALL SELECT i.inhrelid, i.inhparent FROM pg_inherits AS i) AS f
      JOIN outbox_migration.ours AS o ON o.class = f.one
     WHERE f.other NOT IN (SELECT x.class FROM outbox_migration.ours AS x)
    UNION ALL
    SELECT format('table outbox.%s is not a plain table any more', n.name), 'Find out which role changed it, and why.'
      FROM outbox_migration.installed AS i, unnest(outbox_migration.left_behind() || '{captured,backfill_task,cursor}') AS n(name)
     WHERE i.edition = 'sql' AND n.name <> 'expression' AND n.name NOT IN (SELECT o.name FROM outbox_migration.ours AS o)
$$;

-- ------------------------------------------------------------------------------------------------
-- To one edition
-- ------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_migration.refusals_to_sql(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT format('destination "%s" has secrets in a user mapping, and the SQL edition keeps none in the database', s.destination),
           'Use --credentials FILE, which gets them as a part of relay.toml.'
      FROM (SELECT DISTINCT destination FROM outbox_migration.secret) AS s, outbox_migration.request AS r
     WHERE NOT r.has_secrets_file
    UNION ALL
    SELECT format('all roles may fetch from destination "%s", and the SQL edition grants that to single roles only', s.name),
           format('REVOKE USAGE ON FOREIGN SERVER %I FROM PUBLIC; and grant it to those that fetch.', s.name)
      FROM outbox_migration.server AS s, aclexplode(s.acl) AS a
     WHERE a.grantee = 0 AND 'url=pull:' = ANY (s.options)
    UNION ALL
    SELECT 'outbox.default_destination is set, which the SQL edition does not have',
           'CREATE SERVER with the same URL, and let the events be delivered; or set it to an empty string.'
     WHERE current_setting('outbox.default_destination', true) <> '' AND NOT EXISTS (SELECT FROM outbox_migration.server)
    UNION ALL
    SELECT format('setting outbox.%s is set for a role, a session, or a role in this database', s.name),
           format('The SQL edition has one value for all: ALTER ROLE ... RESET outbox.%s.', s.name)
      FROM outbox_migration.settings() AS s
     WHERE s.source NOT IN ('default', 'configuration file', 'command line', 'environment variable', 'database', 'global')
        OR EXISTS (SELECT FROM pg_db_role_setting AS d, unnest(d.setconfig) AS one(text)
                    WHERE d.setrole <> 0 AND d.setdatabase IN (0, (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database()))
                      AND one.text LIKE 'outbox.' || s.name || '=%')
    UNION ALL
    SELECT format('backfill %s is not finished, and table %s does not belong to role "%s"', t ->> 'id', t ->> 'relation', o.owner),
           'The SQL edition reads tables of its owner only. Let the backfill finish, or outbox.cancel_backfill() it.'
      FROM outbox_migration.rows_of('backfill_task') AS t
     CROSS JOIN (SELECT coalesce(r.owner, current_user) AS owner FROM outbox_migration.request AS r) AS o
     WHERE t ->> 'state' IN ('running', 'paused')
       AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = (t ->> 'relation')::regclass AND pg_get_userbyid(c.relowner) = o.owner)
    UNION ALL
    SELECT format('role "%s" does not exist', r.owner), 'CREATE ROLE, or leave --owner out.'
      FROM outbox_migration.request AS r WHERE r.owner IS NOT NULL AND to_regrole(quote_ident(r.owner)) IS NULL
    UNION ALL
    SELECT format('role "%s" may not create schemas in this database', r.owner),
           format('GRANT CREATE ON DATABASE %I TO %I;', current_database(), r.owner)
      FROM outbox_migration.request AS r
     WHERE to_regrole(quote_ident(r.owner)) IS NOT NULL AND NOT has_database_privilege(r.owner, current_database(), 'CREATE')
    UNION ALL
    SELECT DISTINCT format('role "%s", which owns the captured table %s, may not create temporary tables', pg_get_userbyid(m.relowner), m.oid::regclass),
           format('The SQL edition needs that for conditions: GRANT TEMPORARY ON DATABASE %I TO %I;', current_database(), pg_get_userbyid(m.relowner))
      FROM outbox_migration.captured() AS c
      JOIN pg_class AS m ON m.oid = c.member
     WHERE c.conditional AND NOT has_database_privilege(m.relowner, current_database(), 'TEMPORARY')
$$;

-- Lists parts of the extension that the server lacks. Nothing is read before they are there.
CREATE FUNCTION outbox_migration.refusals_of_server(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT format('pg_outbox %s is not installed on the server', r.version),
           'Install the package of this version with its library.'
      FROM outbox_migration.request AS r
     WHERE NOT EXISTS (SELECT FROM pg_available_extension_versions AS v WHERE v.name = 'pg_outbox' AND v.version = r.version)
       -- Debian's setting, by which CREATE EXTENSION finds what this view does not show since 15.20.
       AND coalesce(current_setting('extension_destdir', true), '') = ''
    UNION ALL
    SELECT 'the server has not loaded the library of pg_outbox',
           'Add pg_outbox to shared_preload_libraries, and restart the server.'
     WHERE outbox_migration.library() IS NULL
$$;

CREATE FUNCTION outbox_migration.refusals_to_native(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT format('foreign-data wrapper "%s" exists', f.fdwname), 'Drop or rename it.'
      FROM pg_foreign_data_wrapper AS f WHERE f.fdwname = 'pg_outbox'
    UNION ALL
    SELECT format('foreign server "%s" exists, and the destination of this name would become one', d.name),
           'Rename one of them.'
      FROM outbox_migration.destinations() AS d JOIN pg_foreign_server AS s ON s.srvname = d.name
    UNION ALL
    SELECT format('destination "%s" has the option credentials ''%s'', and those of the extension use the credentials of their own name',
                  d.name, d.options ->> 'credentials'),
           format('Call the section of relay.toml [credentials.%s], and remove the option.', d.name)
      FROM outbox_migration.destinations() AS d WHERE d.options ->> 'credentials' <> d.name
    UNION ALL
    SELECT format('setting "%s" is %s here, and %s on the server', s.name, coalesce('''' || s.set || '''', 'not set'), '''' || s.of_server || ''''),
           CASE s.context WHEN 'superuser' THEN format('ALTER DATABASE %I SET outbox.%s = %L;', current_database(), s.name, coalesce(s.set, s.by_default))
                          ELSE format('Write outbox.%s = %L into postgresql.conf and reload it, or give outbox.setting the value of the server.',
                                      s.name, coalesce(s.set, s.by_default)) END
      FROM outbox_migration.settings() AS s
     WHERE outbox_migration.measure(coalesce(s.set, s.by_default), s.unit) <> outbox_migration.measure(s.of_server, s.unit)
    UNION ALL
    SELECT 'the log was restored from another cluster, and is not adapted to this one yet',
           'Start outbox-relay, which does that; or call outbox_internal.come_home() as the owner of pg_outbox.'
      FROM outbox_migration.rows_of('home') AS h, pg_control_system() AS c
     WHERE (h ->> 'system_identifier')::bigint <> c.system_identifier
    UNION ALL
    SELECT format('the SQL edition is installed as extension "%s"', e.extname), 'Only a plain installation can be migrated.'
      FROM pg_depend AS d
      JOIN pg_extension AS e ON e.oid = d.refobjid
      JOIN outbox_migration.schema AS s ON s.oid = d.objid AND s.name = 'outbox_internal'
     WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_namespace'::regclass AND d.deptype = 'e'
$$;

-- Options that the sinks refuse, by the function of the library that CREATE SERVER will call, and as the role
-- that will own the servers.
CREATE FUNCTION outbox_migration.refused_options(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    destination record;
BEGIN
    EXECUTE format('CREATE FUNCTION outbox_migration.validate_options(options text[], catalog oid) RETURNS void
                    LANGUAGE c STRICT AS %L, ''outbox_validate_options''', outbox_migration.library());
    EXECUTE (SELECT format('GRANT USAGE ON SCHEMA outbox_migration TO %I', pg_get_userbyid(i.owner)) FROM outbox_migration.installed AS i);
    FOR destination IN
        SELECT d.name, ARRAY(SELECT o.key || '=' || o.value
                               FROM jsonb_each_text(outbox_migration.options_there(d.name, d.options)) AS o) AS options
          FROM outbox_migration.destinations() AS d ORDER BY d.name
    LOOP
        BEGIN
            PERFORM outbox_migration.run_as_owner('outbox_migration.of_owner', format(
                'SELECT outbox_migration.validate_options(%L, ''pg_foreign_server''::regclass)', destination.options));
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
            reason := format('destination "%s" is misconfigured: %s', destination.name, SQLERRM);
            hint := coalesce(nullif(hint, ''), 'Correct its options in outbox.destination_config.');
            RETURN NEXT;
        END;
    END LOOP;
    DROP FUNCTION outbox_migration.validate_options(text[], oid);
END $$;

-- ------------------------------------------------------------------------------------------------
-- All
-- ------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_migration.refusals(OUT reason text, OUT hint text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    request CONSTANT outbox_migration.request   := r FROM outbox_migration.request AS r;
    its     CONSTANT outbox_migration.installed := i FROM outbox_migration.installed AS i;
BEGIN
    IF its.edition IS NULL THEN
        RETURN QUERY SELECT 'pg_outbox is not installed in this database', 'Connect to the database that has it.';
        RETURN;
    ELSIF its.edition = request.target THEN
        RETURN QUERY SELECT format('the %s of pg_outbox is installed here already',
                                   CASE its.edition WHEN 'sql' THEN 'SQL edition' ELSE 'extension' END), 'There is nothing to do.';
        RETURN;
    ELSIF its.version IS DISTINCT FROM request.version THEN
        RETURN QUERY SELECT format('version %s of pg_outbox is installed here, and outboxctl is of version %s', its.version, request.version),
                            'Use outboxctl of the same version, or upgrade pg_outbox first.';
        RETURN;
    END IF;
    RETURN QUERY
        SELECT 'must be superuser to migrate', 'Connect as a superuser; event triggers and the library need one in both directions.'
         WHERE NOT (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user);
    IF FOUND THEN
        RETURN;
    END IF;
    IF request.target = 'native' THEN
        RETURN QUERY SELECT * FROM outbox_migration.refusals_of_server();
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM outbox_migration.lock_ours();
    RETURN QUERY SELECT DISTINCT c.* FROM outbox_migration.code_of_others() AS c ORDER BY 1;
    IF FOUND THEN
        RETURN;
    END IF;
    -- From here on tables are read.
    RETURN QUERY
        SELECT format('%s does not belong to pg_outbox, and is in one of its schemas', s), 'Move it to another schema, or drop it and create it again afterwards.'
          FROM outbox_migration.strangers() AS s ORDER BY s;
    RETURN QUERY
        SELECT format('%s depends on pg_outbox', d), 'Drop it, and create it again afterwards.'
          FROM outbox_migration.dependents() AS d ORDER BY d;
    RETURN QUERY
        SELECT DISTINCT format('captured table %s has lost triggers', c.member::regclass),
               format('SELECT outbox.capture(%L, ..., replace => true); or outbox.uncapture(%1$L).', c.root::regclass)
          FROM outbox_migration.captured() AS c
         WHERE (SELECT count(*) FROM outbox_migration.capture_trigger AS t
                 WHERE t.tgrelid = c.member
                   AND t.tgname IN ('00_outbox_capture_insert', '00_outbox_capture_update', '00_outbox_capture_delete')) < 3
            OR c.conditional <> (c.condition IS NOT NULL);
    RETURN QUERY SELECT * FROM outbox_migration.refused_conditions();
    IF request.target = 'sql' THEN
        RETURN QUERY SELECT * FROM outbox_migration.refusals_to_sql();
    ELSE
        RETURN QUERY SELECT * FROM outbox_migration.refusals_to_native();
        RETURN QUERY SELECT * FROM outbox_migration.refused_options();
    END IF;
END $$;

-- Sessions and prepared transactions that hold locks which are in the way, for a message.
CREATE FUNCTION outbox_migration.in_the_way()
RETURNS text
LANGUAGE sql VOLATILE
AS $$
    SELECT string_agg(DISTINCT
               CASE WHEN p.gid IS NOT NULL THEN format('prepared transaction ''%s'' of role "%s"', p.gid, p.owner)
                    ELSE format('session %s of role "%s"%s, in a transaction for %s s', l.pid, a.usename, ' (' || nullif(a.application_name, '') || ')',
                                round(extract(epoch FROM clock_timestamp() - a.xact_start))) END, '; ')
      FROM pg_locks AS l
      JOIN (SELECT o.oid FROM outbox_migration.own AS o WHERE o.classid = 'pg_class'::regclass
            UNION SELECT c.member FROM outbox_migration.captured() AS c
            UNION SELECT v.oid FROM outbox_migration.user_view AS v) AS ours ON ours.oid = l.relation
      LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
      LEFT JOIN pg_locks AS own ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid' AND own.virtualtransaction = l.virtualtransaction
      LEFT JOIN pg_prepared_xacts AS p ON p.transaction = own.transactionid
     WHERE l.granted AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
       AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;
