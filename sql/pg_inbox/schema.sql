-- A role that may create schemas in this database may have made these before, with objects that
-- this script would then call. So everything below is schema-qualified, and nothing is looked up in
-- these schemas.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
    schema record;
BEGIN
    FOR schema IN
        SELECT n.oid, n.nspname, n.nspowner, n.nspacl, pg_get_userbyid(n.nspowner) AS owner
          FROM pg_namespace AS n WHERE n.nspname IN ('inbox', 'inbox_internal')
    LOOP
        IF schema.owner <> current_user THEN
            RAISE EXCEPTION 'schema "%" belongs to role "%"', schema.nspname, schema.owner
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'Install as that role (also before a dump is restored), or drop the schema first.';
        ELSIF EXISTS (SELECT FROM aclexplode(schema.nspacl) AS acl
                       WHERE acl.grantee <> schema.nspowner AND acl.privilege_type = 'CREATE') THEN
            RAISE EXCEPTION 'others may create objects in schema "%"', schema.nspname
                USING ERRCODE = 'insufficient_privilege', HINT = 'Revoke CREATE on the schema from them.';
        ELSIF EXISTS (SELECT FROM pg_depend AS d
                       WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema.oid
                         AND d.classid <> 'pg_extension'::regclass) THEN
            RAISE EXCEPTION 'schema "%" is not empty', schema.nspname
                USING ERRCODE = 'duplicate_schema', HINT = 'Rename it, or install pg_inbox in another database.';
        END IF;
    END LOOP;
    -- An empty schema of the installing role is accepted, for a role that may not create schemas.
    IF to_regnamespace('inbox_internal') IS NULL THEN
        CREATE SCHEMA inbox_internal;
    END IF;
END $$;

COMMENT ON SCHEMA inbox IS 'pg_inbox: messages applied exactly once';
COMMENT ON SCHEMA inbox_internal IS 'pg_inbox: functions that its own functions, views and processors call';
