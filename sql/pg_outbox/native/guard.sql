-- Runs before anything else. A superuser executes this script, and owners of the schemas, roles
-- that may create objects in them, and existing objects could decide which functions its statements
-- call.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    schema  record;
    other   name;
    objects text;
BEGIN
    FOR schema IN
        SELECT * FROM pg_namespace AS n WHERE n.nspname IN ('outbox', 'outbox_internal')
    LOOP
        SELECT r.rolname INTO other
          FROM pg_roles AS r
         WHERE r.oid = schema.nspowner AND r.rolname <> current_user AND NOT r.rolsuper;
        IF FOUND THEN
            RAISE EXCEPTION 'schema % belongs to role "%"', schema.nspname, other
                USING ERRCODE = 'insufficient_privilege',
                      DETAIL = 'Functions of that role could run with the rights of the role that installs pg_outbox.',
                      HINT = 'Find out which role created the schema and why, then drop it.';
        END IF;
        SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(acl.grantee) END INTO other
          FROM aclexplode(schema.nspacl) AS acl
         WHERE acl.privilege_type = 'CREATE' AND acl.grantee <> schema.nspowner;
        IF FOUND THEN
            RAISE EXCEPTION 'role "%" may create objects in schema %', other, schema.nspname
                USING ERRCODE = 'insufficient_privilege',
                      HINT = format('REVOKE CREATE ON SCHEMA %I.', schema.nspname);
        END IF;
        SELECT string_agg(object.description, ', ') INTO objects
          FROM (SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
                  FROM pg_depend AS d
                 WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema.oid
                   AND d.classid <> 'pg_extension'::regclass
                   AND NOT EXISTS (SELECT FROM pg_depend AS m
                                     JOIN pg_extension AS e ON e.oid = m.refobjid AND e.extname = 'pg_outbox'
                                    WHERE m.refclassid = 'pg_extension'::regclass AND m.deptype = 'e'
                                      AND m.classid = d.classid AND m.objid = d.objid)
                 LIMIT 10) AS object(description);
        IF objects IS NOT NULL THEN
            RAISE EXCEPTION 'schema % has objects that do not belong to pg_outbox', schema.nspname
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('Among them: %s.', objects),
                      HINT = 'Find out which role created them and why, then drop them or move them to another schema.';
        END IF;
    END LOOP;
END $$;
