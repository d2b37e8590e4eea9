-- Runs before anything else. Functions of others in these schemas could run with the rights of the
-- role that installs pg_outbox.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    schema record;
BEGIN
    IF current_setting('server_version_num')::integer < 150000 THEN
        RAISE EXCEPTION 'pg_outbox needs PostgreSQL 15 or later' USING ERRCODE = 'feature_not_supported';
    END IF;
    IF EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'pg_outbox') THEN
        RAISE EXCEPTION 'pg_outbox is installed as an extension here'
            USING ERRCODE = 'duplicate_object', HINT = 'Use ALTER EXTENSION pg_outbox UPDATE.';
    END IF;
    IF EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE n.nspname = 'outbox_internal' AND p.proname = 'edition' AND pg_get_userbyid(n.nspowner) = current_user) THEN
        RAISE EXCEPTION 'the SQL edition of pg_outbox is installed here already'
            USING ERRCODE = 'duplicate_object', HINT = 'SELECT outbox.version() says which version.';
    END IF;
    FOR schema IN
        SELECT n.oid, n.nspname AS name, n.nspowner AS owner, n.nspacl AS acl
          FROM pg_namespace AS n WHERE n.nspname IN ('outbox', 'outbox_internal')
    LOOP
        -- What another role has left there is not called.
        IF pg_get_userbyid(schema.owner) <> current_user THEN
            RAISE EXCEPTION 'schema % belongs to role "%"', schema.name, pg_get_userbyid(schema.owner)
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'If pg_outbox is installed already, its owner can upgrade it. Otherwise drop the schema.';
        ELSIF EXISTS (SELECT FROM aclexplode(schema.acl) AS a WHERE a.privilege_type = 'CREATE' AND a.grantee <> schema.owner) THEN
            RAISE EXCEPTION 'others may create objects in schema %', schema.name
                USING ERRCODE = 'insufficient_privilege', HINT = format('REVOKE CREATE ON SCHEMA %I.', schema.name);
        ELSIF schema.name = 'outbox'
              AND EXISTS (SELECT FROM pg_depend AS d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema.oid) THEN
            RAISE EXCEPTION 'schema % exists, and does not belong to pg_outbox', schema.name
                USING ERRCODE = 'duplicate_schema', HINT = 'Rename it, or use another database.';
        END IF;
    END LOOP;
    IF NOT has_database_privilege(current_database(), 'CREATE') THEN
        RAISE EXCEPTION 'role "%" may not create schemas in database "%"', current_user, current_database()
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('Connect as its owner, "%s"; or let that role give you the right: GRANT CREATE ON DATABASE %I TO %I;',
                                (SELECT pg_get_userbyid(d.datdba) FROM pg_database AS d WHERE d.datname = current_database()),
                                current_database(), current_user);
    END IF;
    IF to_regnamespace('outbox') IS NULL THEN
        CREATE SCHEMA outbox;
    END IF;
END $$;
