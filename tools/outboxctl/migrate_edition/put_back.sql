-- Fills the new edition, and makes again what hung on the old one. From here on functions of pg_outbox may
-- be called: this transaction has created them.

-- Both editions must have the table with the same columns. A table that only one has must be carried over
-- in a way of its own, or be named in left_behind().
CREATE FUNCTION outbox_migration.check_forms()
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    different text;
BEGIN
    WITH form AS (
        SELECT c.relnamespace = 'outbox_migration_rows'::regnamespace AS is_old, c.relname AS name,
               (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
                  FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS columns
          FROM pg_class AS c
         WHERE c.relnamespace = 'outbox_migration_rows'::regnamespace AND c.relkind = 'r'
            OR c.oid IN (SELECT t.class FROM outbox_migration.table_with_rows AS t)
    )
    SELECT string_agg(DISTINCT f.name, ', ') INTO different
      FROM form AS f
     WHERE NOT EXISTS (SELECT FROM form AS g WHERE g.name = f.name AND g.is_old <> f.is_old AND g.columns = f.columns);
    IF different IS NOT NULL THEN
        RAISE EXCEPTION 'these tables do not have the same columns in both editions: %', different
            USING ERRCODE = 'datatype_mismatch',
                  HINT = 'If somebody has added columns to tables of pg_outbox, drop these columns first.';
    END IF;
END $$;

CREATE TABLE outbox_migration.moved (name name NOT NULL, rows bigint NOT NULL);

-- The rows are those of this database, so the triggers that adapt rows of a dump must not fire.
CREATE FUNCTION outbox_migration.fill_table("table" regclass, name name)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    columns  CONSTANT text := (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute AS a
                                WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '');
    triggers CONSTANT text[] := ARRAY(
        SELECT format('ALTER TABLE %s ENABLE %s TRIGGER %I', "table", CASE t.tgenabled WHEN 'A' THEN 'ALWAYS' WHEN 'R' THEN 'REPLICA' ELSE '' END, t.tgname)
          FROM pg_trigger AS t WHERE t.tgrelid = "table" AND t.tgenabled <> 'D');
    count    bigint;
BEGIN
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER ALL', "table"); -- with those of foreign keys, as tables come in any order
    EXECUTE format('DELETE FROM ONLY %s', "table"); -- rows that the script inserts
    EXECUTE format('INSERT INTO %s (%s) SELECT %2$s FROM outbox_migration_rows.%I', "table", columns, name);
    GET DIAGNOSTICS count = ROW_COUNT;
    PERFORM outbox_migration.run(triggers);
    INSERT INTO outbox_migration.moved VALUES (name, count);
END $$;

-- Takes the leases of relays away: whatever a relay does later with its old token is refused. Batches of
-- fetchers stay theirs.
CREATE FUNCTION outbox_migration.fill_tables()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM outbox_migration.check_forms();
    PERFORM outbox_migration.fill_table(t.class, t.name) FROM outbox_migration.table_with_rows AS t;
    PERFORM setval(s.name::regclass, s.last_value, s.is_called) FROM outbox_migration.old_sequence AS s WHERE to_regclass(s.name) IS NOT NULL;
    UPDATE outbox.ring AS r SET current = r.current; -- tells those that follow the ring
    UPDATE outbox.cursor AS c SET lease = c.lease + 1, relay = NULL, relay_locks = false;
END $$;

-- Destinations find their cursors, and keep them.
CREATE FUNCTION outbox_migration.make_destinations()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    is_native CONSTANT boolean := (SELECT r.target = 'native' FROM outbox_migration.request AS r);
    owner     CONSTANT name := (SELECT pg_get_userbyid(o.owner) FROM outbox_migration.old_owner AS o);
    lacks_usage CONSTANT boolean := is_native AND NOT has_foreign_data_wrapper_privilege(owner, 'pg_outbox', 'USAGE');
    one       record;
BEGIN
    IF lacks_usage THEN
        EXECUTE format('GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO %I', owner);
    END IF;
    FOR one IN SELECT o.name, outbox_migration.options_there(o.name, o.options) AS options FROM outbox_migration.old_destination AS o ORDER BY o.name LOOP
        IF is_native THEN -- by the role that could change the row: filters are analysed
            PERFORM outbox_migration.run_as_owner('outbox_migration.of_owner', format(
                'CREATE SERVER %I FOREIGN DATA WRAPPER pg_outbox OPTIONS (%s)', one.name,
                (SELECT string_agg(format('%I %L', p.key, p.value), ', ' ORDER BY p.key) FROM jsonb_each_text(one.options) AS p)));
        ELSE
            INSERT INTO outbox.destination_config VALUES (one.name, one.options);
        END IF;
    END LOOP;
    IF lacks_usage THEN
        EXECUTE format('REVOKE USAGE ON FOREIGN DATA WRAPPER pg_outbox FROM %I', owner);
    END IF;
    UPDATE outbox.cursor AS c SET server = coalesce((SELECT d.server FROM outbox.destination AS d WHERE d.name = c.destination), 0);
    FOR one IN
        SELECT CASE f.role WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(f.role)) END AS to_whom, f.role, f.destination
          FROM outbox_migration.old_fetcher AS f
    LOOP
        IF is_native THEN
            EXECUTE format('GRANT USAGE ON FOREIGN SERVER %I TO %s', one.destination, one.to_whom);
        ELSIF one.role <> 0 THEN -- without a role there is no row for it
            INSERT INTO outbox.fetcher VALUES (one.role, one.destination) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    IF NOT is_native THEN
        INSERT INTO outbox.setting
        SELECT s.name, s.of_server FROM outbox_migration.old_setting AS s
         WHERE outbox_migration.measure(s.of_server, s.unit) <> outbox_migration.measure(s.by_default, s.unit);
    END IF;
END $$;

-- ------------------------------------------------------------------------------------------------
-- Triggers and views
-- ------------------------------------------------------------------------------------------------

-- Triggers of a table are made as its owner. The function cannot leave that role, because SET ROLE is refused
-- in it. The extension restricts code of the table; for the SQL edition such code was refused.
CREATE FUNCTION outbox_migration.make_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT outbox_internal.add_capture_triggers(member, condition, on_truncate)
$$;
REVOKE EXECUTE ON FUNCTION outbox_migration.make_triggers(regclass, text, text) FROM PUBLIC;

CREATE FUNCTION outbox_migration.capture_again()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    member record;
BEGIN
    FOR member IN SELECT o.*, pg_get_userbyid(c.relowner) AS owner FROM outbox_migration.old_capture AS o JOIN pg_class AS c ON c.oid = o.member ORDER BY o.n LOOP
        PERFORM outbox_internal.grant_right(quote_ident(member.owner)::regrole, 'capture'); -- taken back by restore_rights()
        EXECUTE format('ALTER FUNCTION outbox_migration.make_triggers(regclass, text, text) OWNER TO %I', member.owner);
        PERFORM outbox_migration.make_triggers(member.member, member.condition, member.on_truncate);
    END LOOP;
    -- One with a condition may be three now. Tables come before their partitions, to which they pass it on.
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('ALTER TABLE %s %s TRIGGER %I', t.tgrelid::regclass,
                      CASE o.state WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE' END, t.tgname)
          FROM outbox_migration.capture_trigger AS t
          JOIN outbox_migration.old_trigger AS o
            ON o.relation = t.tgrelid AND o.name = regexp_replace(t.tgname, '_(in|out)$', '') AND o.state <> t.tgenabled
         ORDER BY t.tgparentid = 0 DESC));
END $$;

-- A view's definition is parsed as its owner, which may do what that needs for a moment.
CREATE FUNCTION outbox_migration.show_again()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    view record;
BEGIN
    GRANT USAGE ON SCHEMA outbox, outbox_internal TO PUBLIC; -- until restore_rights()
    FOR view IN
        SELECT v.oid, format('CREATE OR REPLACE VIEW %s%s AS %s', v.oid::regclass, v.options, v.definition) AS statement,
               format('CREATE ON SCHEMA %I', n.nspname) AS privilege, pg_get_userbyid(c.relowner) AS owner, n.oid AS schema
          FROM outbox_migration.old_view AS v JOIN pg_class AS c ON c.oid = v.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LOOP
        IF has_schema_privilege(view.owner, view.schema, 'CREATE') THEN
            PERFORM outbox_migration.run_as_owner(view.oid, view.statement);
        ELSE
            EXECUTE format('GRANT %s TO %I', view.privilege, view.owner);
            PERFORM outbox_migration.run_as_owner(view.oid, view.statement);
            EXECUTE format('REVOKE %s FROM %I', view.privilege, view.owner);
        END IF;
    END LOOP;
    PERFORM outbox_migration.run(ARRAY(
        SELECT t.definition FROM outbox_migration.old_trigger AS t WHERE t.definition IS NOT NULL));
END $$;

-- ------------------------------------------------------------------------------------------------
-- Rights
-- ------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_migration.restore_rights()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    former CONSTANT name := (SELECT r.rolname FROM outbox_migration.old_owner AS o JOIN pg_roles AS r ON r.oid = o.owner AND NOT r.rolsuper);
BEGIN
    PERFORM outbox_migration.run(ARRAY(
        SELECT format('REVOKE ALL%s ON %s %s FROM %s', ' (' || quote_ident(p.column_name) || ')', p.kind, p.object,
                      CASE p.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(p.grantee)) END)
          FROM outbox_migration.privilege AS p
        UNION ALL
        SELECT format('GRANT %s%s ON %s %s TO %s%s', p.privilege, ' (' || quote_ident(p.column_name) || ')', p.kind, o.object,
                      CASE p.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(p.grantee)) END,
                      CASE WHEN p.grantable AND p.grantee <> 0 THEN ' WITH GRANT OPTION' END)
          FROM outbox_migration.old_privilege AS p
          JOIN outbox_migration.object AS o ON o.kind = p.kind AND o.key = p.key AND o.column_name IS NOT DISTINCT FROM p.column_name
         WHERE p.grantee <> o.owner));
    PERFORM outbox_internal.grant_right(h.role, h.right_to) FROM outbox_migration.rights_held() AS h;
    -- The owner of the SQL edition needed no rights.
    IF former IS NOT NULL AND EXISTS (SELECT FROM outbox_migration.request AS r WHERE r.target = 'native') THEN
        PERFORM outbox.grant_produce(quote_ident(former)::regrole), outbox.grant_capture(quote_ident(former)::regrole), outbox.grant_operate(quote_ident(former)::regrole),
                outbox.grant_monitor(quote_ident(former)::regrole), outbox.grant_fetch(quote_ident(former)::regrole), outbox.grant_relay(quote_ident(former)::regrole);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO %I', former);
    END IF;
END $$;

CREATE FUNCTION outbox_migration.put_back()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM outbox_migration.fill_tables();
    PERFORM outbox_migration.make_destinations();
    PERFORM outbox_migration.capture_again();
    PERFORM outbox_migration.show_again();
    PERFORM outbox_migration.restore_rights();
    PERFORM outbox_internal.wake_relays();
    PERFORM pg_notify('outbox_wake', 'operate'); -- relays outside the server look at once
    DROP SCHEMA outbox_migration_rows CASCADE;
END $$;
