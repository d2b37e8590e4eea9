-- This comes last: all functions so far are for their owner only, whatever ALTER DEFAULT PRIVILEGES
-- has set. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event, outbox.found_event FROM PUBLIC;

DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT o.object, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS to_whom
          FROM (SELECT 'ROUTINE ' || oid::regprocedure, proowner, proacl
                  FROM pg_proc WHERE pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
                UNION ALL
                SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relowner, relacl
                  FROM pg_class
                 WHERE relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND relkind IN ('r', 'v', 'S')
                UNION ALL
                SELECT 'SCHEMA ' || oid::regnamespace, nspowner, nspacl
                  FROM pg_namespace WHERE nspname = 'outbox_internal'
                UNION ALL
                SELECT 'TYPE ' || oid::regtype, typowner, typacl
                  FROM pg_type WHERE typnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
                UNION ALL
                SELECT 'FOREIGN DATA WRAPPER pg_outbox', fdwowner, fdwacl
                  FROM pg_foreign_data_wrapper WHERE fdwname = 'pg_outbox') AS o(object, owner, acl),
               aclexplode(o.acl) AS acl
         WHERE acl.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object, granted.to_whom);
    END LOOP;
END $$;

-- Roles that may read statistics of the server may read those of pg_outbox, which contain no data
-- of events.
DO $$
BEGIN
    PERFORM outbox.grant_monitor('pg_monitor');
END $$;

-- A role that adds a partition to a captured table creates the triggers of that table on it, and a
-- role that captures a table creates them as its owner. The functions do nothing for tables that
-- are not captured.
GRANT EXECUTE ON FUNCTION outbox.capture_row(), outbox.capture_truncate() TO PUBLIC;

-- Views made by outbox.create_outbox_view() call it with the rights of their readers. Its result
-- depends only on its argument.
GRANT EXECUTE ON FUNCTION outbox.payload_as_jsonb(bytea) TO PUBLIC;
