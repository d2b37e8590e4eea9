-- Who may create a schema in this database may have made this one, and put into it what this script would
-- then call. Everything below says in which schema it is, and nothing is looked up there.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
    owner name;
BEGIN
    SELECT pg_get_userbyid(n.nspowner) INTO STRICT owner FROM pg_namespace AS n WHERE n.nspname = 'inbox';
    IF owner <> current_user THEN
        RAISE EXCEPTION 'schema "inbox" belongs to role "%"', owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Install as that role (also before a dump is restored), or drop the schema first.';
    ELSIF EXISTS (SELECT FROM pg_namespace AS n, aclexplode(n.nspacl) AS acl
                   WHERE n.nspname = 'inbox' AND acl.grantee <> n.nspowner AND acl.privilege_type = 'CREATE') THEN
        RAISE EXCEPTION 'others may create objects in schema "inbox"'
            USING ERRCODE = 'insufficient_privilege', HINT = 'Revoke CREATE on the schema from them.';
    ELSIF EXISTS (SELECT FROM pg_depend AS d
                   WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'inbox'::regnamespace
                     AND d.classid <> 'pg_extension'::regclass) THEN
        RAISE EXCEPTION 'schema "inbox" is not empty'
            USING ERRCODE = 'duplicate_schema', HINT = 'Rename it, or install pg_inbox in another database.';
    END IF;
END $$;

COMMENT ON SCHEMA inbox IS 'pg_inbox: messages applied exactly once';
