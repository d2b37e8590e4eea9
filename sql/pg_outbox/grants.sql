-- Last: whatever came before is for nobody but its owner, whatever ALTER DEFAULT PRIVILEGES has said.
-- docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;

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

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
SELECT outbox.grant_monitor('pg_monitor');

-- Whoever adds a partition to a captured table gives it the triggers of the table, and whoever captures a table gives
-- them to it as its owner. The functions do nothing for tables that are not captured.
GRANT EXECUTE ON FUNCTION outbox.capture_row(), outbox.capture_truncate() TO PUBLIC;

-- Views that outbox.create_outbox_view() makes call it with the rights of whoever reads them. It depends on nothing
-- but its argument.
GRANT EXECUTE ON FUNCTION outbox.payload_as_jsonb(bytea) TO PUBLIC;
