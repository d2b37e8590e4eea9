-- Replaces an application's outbox table by a view of the log (outbox_view.sql).

-- Refuses a table that a view of the log cannot replace.
CREATE FUNCTION outbox_internal.check_adoptable("table" regclass, layout text, ignore_columns name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    class   pg_class;
    missing text;
    extra   text;
    wrong   text;
BEGIN
    SELECT c.* INTO class FROM pg_class AS c WHERE c.oid = $1;
    IF class.relkind NOT IN ('r', 'p') OR class.relispartition OR class.relpersistence = 't' THEN
        RAISE EXCEPTION '"%" cannot be adopted', $1
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Only tables can be adopted, and partitioned tables only as a whole.';
    ELSIF NOT pg_has_role(class.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table "%"', $1 USING ERRCODE = 'insufficient_privilege';
    END IF;

    SELECT string_agg(quote_ident(l.name), ', ' ORDER BY l.number) FILTER (WHERE a.attname IS NULL),
           string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FILTER (WHERE l.name IS NULL AND a.attname <> ALL ($3)),
           string_agg(format('%I is %s, not %s', a.attname, format_type(a.atttypid, a.atttypmod), l.type), '; ' ORDER BY l.number)
               FILTER (WHERE t.typnamespace <> 'pg_catalog'::regnamespace -- functions of other types are their owner's
                          OR l.given AND a.atttypid <> l.type::regtype
                             AND NOT EXISTS (SELECT FROM pg_cast AS c
                                              WHERE c.castsource = a.atttypid AND c.casttarget = l.type::regtype
                                                AND c.castcontext IN ('i', 'a')))
      INTO missing, extra, wrong
      FROM (SELECT * FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped) AS a
      FULL JOIN outbox_internal.layout_columns(layout) AS l ON l.name = a.attname
      LEFT JOIN pg_type AS t ON t.oid = a.atttypid;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" does not have the layout "%"', $1, $2
            USING ERRCODE = 'undefined_column', DETAIL = format('These columns are missing: %s.', missing),
                  HINT = 'The layouts are seed, seed_jsonb, debezium, tutorial and cqrs.';
    ELSIF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" does not have the layout "%"', $1, $2
            USING ERRCODE = 'datatype_mismatch', DETAIL = format('These columns have another type: %s.', wrong);
    ELSIF extra IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" has columns that the layout "%" does not have', $1, $2
            USING ERRCODE = 'feature_not_supported', DETAIL = format('They are: %s.', extra),
                  HINT = 'If the application can do without them, name them in ignore_columns. Their values are not delivered.';
    END IF;
END $$;

-- Returns whether the columns of a table have another order than those of a view.
CREATE FUNCTION outbox_internal.in_another_order("table" regclass, layout text)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT bool_or(a.number <> l.number)
      FROM (SELECT a.attname, row_number() OVER (ORDER BY a.attnum) AS number
              FROM pg_attribute AS a
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped) AS a
      JOIN outbox_internal.layout_columns(layout) AS l ON l.name = a.attname;
END;

-- Lists objects that belong to a table or depend on it, and that keep belonging to it when it is
-- renamed.
CREATE FUNCTION outbox_internal.what_stays("table" regclass)
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT format('view %s', r.ev_class::regclass)
      FROM pg_depend AS d
      JOIN pg_rewrite AS r ON r.oid = d.objid AND r.ev_class <> d.refobjid
     WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
    UNION ALL
    SELECT format('foreign key %I of %s', c.conname, c.conrelid::regclass)
      FROM pg_constraint AS c
     WHERE c.contype = 'f' AND $1 IN (c.conrelid, c.confrelid)
    UNION ALL
    SELECT format('trigger %I', t.tgname) FROM pg_trigger AS t WHERE t.tgrelid = $1 AND NOT t.tgisinternal
    UNION ALL
    SELECT format('rule %I', r.rulename) FROM pg_rewrite AS r WHERE r.ev_class = $1
    UNION ALL
    SELECT format('policy %I', p.polname) FROM pg_policy AS p WHERE p.polrelid = $1
    UNION ALL
    SELECT format('publication %I', p.pubname)
      FROM pg_publication AS p, pg_get_publication_tables(p.pubname) AS t
     WHERE t.relid = $1
    UNION ALL
    SELECT format('sequence %s', d.objid::regclass)
      FROM pg_depend AS d
      JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'S'
     WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
       AND d.deptype IN ('a', 'i')
     ORDER BY 1;
END;

-- Lists the privileges on a table, for the view that replaces it. The owner has all of them.
CREATE FUNCTION outbox_internal.grants_to_move("table" regclass, layout text, OUT privilege text, OUT grantee text, OUT grantable boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT g.privilege, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END, g.grantable
      FROM (SELECT 'ALL', c.relowner, true FROM pg_class AS c WHERE c.oid = $1
            UNION ALL
            SELECT a.privilege_type, a.grantee, a.is_grantable
              FROM pg_class AS c, aclexplode(c.relacl) AS a
             WHERE c.oid = $1 AND a.grantee <> c.relowner
            UNION ALL
            SELECT format('%s (%I)', a.privilege_type, t.attname), a.grantee, a.is_grantable
              FROM pg_attribute AS t, aclexplode(t.attacl) AS a
             WHERE t.attrelid = $1 AND t.attname IN (SELECT l.name FROM outbox_internal.layout_columns(layout) AS l)
           ) AS g(privilege, grantee, grantable);
END;

-- Counts the rows of a table that is adopted.
CREATE FUNCTION outbox_internal.rows_to_adopt(
    "table" regclass,
    layout text,
    unpublished text,
    OUT moved  text,
    OUT oldest text,
    OUT leased bigint,
    OUT kept   text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    occurred_at CONSTANT text := (SELECT quote_ident(l.name) FROM outbox_internal.layout_columns(layout) AS l WHERE l.by_default = 'now()');
    has_leases  CONSTANT boolean := EXISTS (SELECT FROM outbox_internal.layout_columns(layout) AS l WHERE l.name = 'locked_at');
    found       CONSTANT text[] := outbox_internal.run_as_owner($1, format(
        'SELECT count(*) FILTER (WHERE %1$s), min(%2$s) FILTER (WHERE %1$s), count(*) FILTER (WHERE %1$s AND %3$s), '
               'count(*) FILTER (WHERE (%1$s) IS NOT TRUE) FROM %4$s',
        unpublished, coalesce(occurred_at, 'NULL::timestamptz'),
        CASE WHEN has_leases THEN '(lock_token IS NOT NULL OR locked_at IS NOT NULL)' ELSE 'false' END, $1));
BEGIN
    moved := found[1];
    oldest := found[2];
    leased := found[3];
    kept := found[4];
END $$;

-- Replaces an application's outbox table by a view of the log. In one transaction it waits for
-- transactions that write to the table, renames it to <name>_adopted, creates the view with the
-- same privileges, and enqueues the rows that are not published. Returns what it did. With dry_run
-- it does nothing, and returns what it would do. `condition`, over columns of the table, tells
-- which rows are not published, instead of the columns of the layout. `shows` is what
-- outbox.create_outbox_view() says. The caller must own the table, and will own the view. See
-- docs/existing-outbox.md.
-- Errors: 42501 the caller does not own the table; 42703, 42804 the table lacks columns of the
-- layout; 0A000 it has other columns (ignore_columns); 22023 there is no such layout, or condition
-- is missing; 25001 not in READ COMMITTED.
CREATE FUNCTION outbox.adopt(
    "table"        regclass,
    layout         text,
    dry_run        boolean DEFAULT false,
    condition      text    DEFAULT NULL,
    content_type   text    DEFAULT NULL,
    topic          text    DEFAULT NULL,
    ignore_columns name[]  DEFAULT '{}',
    shows          text    DEFAULT 'published',
    OUT item   text,
    OUT detail text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    its         CONSTANT record := outbox_internal.layout(layout);
    unpublished CONSTANT text := coalesce(E'(' || condition || E'\n)', its.unpublished); -- the condition may end with a comment
    given       CONSTANT text := (SELECT string_agg(quote_ident(l.name), ', ' ORDER BY l.number)
                                    FROM outbox_internal.layout_columns(layout) AS l WHERE l.given);
    schema      name;
    name        name;
    new_name    name;
    privilege   record;
    rows        record;
    view        regclass;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a table cannot be adopted in a % transaction', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  DETAIL = 'It would not see all rows that other transactions have written.', HINT = 'Use READ COMMITTED.';
    ELSIF unpublished IS NULL THEN
        RAISE EXCEPTION 'condition is missing'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('Nothing in the layout "%s" tells which rows are not published.', layout),
                  HINT = 'Write ''false'' if Debezium has read all of them, ''true'' to move all.';
    END IF;
    PERFORM outbox_internal.check_adoptable($1, layout, ignore_columns);
    IF NOT dry_run THEN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', $1);
        PERFORM outbox_internal.check_adoptable($1, layout, ignore_columns);
    END IF;
    SELECT n.nspname, c.relname, c.relname || '_adopted' INTO schema, name, new_name
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid = $1;

    rows := outbox_internal.rows_to_adopt($1, layout, unpublished);
    RETURN QUERY VALUES ('rows to move', rows.moved), ('rows left', rows.kept);
    RETURN QUERY SELECT 'oldest', rows.oldest WHERE rows.oldest IS NOT NULL;
    RETURN QUERY SELECT 'leased', format('%s rows, which a publisher may be publishing right now', rows.leased)
                  WHERE rows.leased > 0;
    RETURN QUERY SELECT 'ignored column', c::text FROM unnest(ignore_columns) AS c;
    RETURN QUERY SELECT 'order of columns', 'is another one in the view: an INSERT must name its columns'
                  WHERE outbox_internal.in_another_order($1, layout);
    RETURN QUERY SELECT 'stays with the table', s FROM outbox_internal.what_stays($1) AS s;
    RETURN QUERY SELECT 'granted on the view', format('%s to %s', g.privilege, g.grantee)
                   FROM outbox_internal.grants_to_move($1, layout) AS g;
    RETURN QUERY VALUES ('new name of the table', format('%I.%I', schema, new_name));
    IF dry_run THEN
        RETURN;
    END IF;

    EXECUTE format('ALTER TABLE %s RENAME TO %I', $1, new_name);
    view := outbox_internal.make_outbox_view(schema, name, layout, content_type, topic, shows);
    FOR privilege IN SELECT * FROM outbox_internal.grants_to_move($1, layout) LOOP
        EXECUTE format('GRANT %s ON %s TO %s%s', privilege.privilege, view, privilege.grantee,
                       CASE WHEN privilege.grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    PERFORM outbox_internal.run_as_owner($1, format('INSERT INTO %s (%s) SELECT %2$s FROM %s WHERE %s ORDER BY %s',
                                           view, given, $1, unpublished, its.in_order));
END $$;
