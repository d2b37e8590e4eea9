-- Roles that may fetch from pull destinations.

-- Stands for outbox.default_destination, which has no server with USAGE: roles with EXECUTE on this
-- function may fetch from it. It is never called.
CREATE FUNCTION outbox_internal.may_fetch_default()
RETURNS void
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT;
END;
COMMENT ON FUNCTION outbox_internal.may_fetch_default() IS 'EXECUTE on this is the right to fetch from outbox.default_destination';

-- Returns the server of a pull destination, or raises an error if the role may not fetch from it.
CREATE FUNCTION outbox_internal.check_fetcher(destination name, caller name)
RETURNS oid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server oid;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = destination AND d.pull;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pull destination "%" does not exist', destination
            USING ERRCODE = 'undefined_object',
                  HINT = 'CREATE SERVER ... FOREIGN DATA WRAPPER pg_outbox OPTIONS (url ''pull:'').';
    END IF;
    IF (server = 0 AND has_function_privilege(caller, 'outbox_internal.may_fetch_default()', 'EXECUTE')
        OR server <> 0 AND has_server_privilege(caller, server, 'USAGE')) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege',
                  HINT = CASE server
                           WHEN 0 THEN format('SELECT outbox.grant_fetch(%L, ''default'');', quote_ident(caller))
                           ELSE format('GRANT USAGE ON FOREIGN SERVER %I TO %s;', destination, quote_ident(caller))
                         END;
    END IF;
    RETURN server;
END $$;

-- Lets a role fetch from pull destinations that it has USAGE on. With the destination 'default'
-- also from outbox.default_destination, if that is a pull destination. Errors: 22023 another
-- destination, which needs GRANT USAGE.
CREATE FUNCTION outbox.grant_fetch(role regrole, destination name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF destination <> 'default' THEN
        RAISE EXCEPTION 'the right to fetch from destination "%" is granted on its foreign server', destination
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('GRANT USAGE ON FOREIGN SERVER %I TO %s;', destination, role);
    END IF;
    PERFORM outbox_internal.grant_right(role, 'fetch');
    IF destination = 'default' THEN
        PERFORM outbox_internal.grant_right(role, 'fetch default');
    END IF;
END $$;

-- Revokes the right to fetch from pull destinations.
CREATE FUNCTION outbox.revoke_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'fetch');
    SELECT outbox_internal.revoke_right(role, 'fetch default');
END;
