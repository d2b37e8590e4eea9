-- A row makes the server connect to an address, as an option of a foreign server does. So a role with the
-- right to operate may read and write the endpoints of servers that it owns, and no others.
CREATE POLICY owner_of_server ON outbox.endpoint
    USING (server IN (SELECT s.srvname
                        FROM pg_catalog.pg_foreign_server AS s
                        JOIN pg_catalog.pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
                       WHERE w.fdwname = 'pg_outbox' AND pg_catalog.pg_has_role(s.srvowner, 'USAGE')));
COMMENT ON POLICY owner_of_server ON outbox.endpoint IS 'a role has the endpoints of its own servers';

-- Returns whether a role has the rights of the owner of a destination, and so sees its endpoints.
CREATE FUNCTION outbox_internal.owns_destination(destination name, role name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_or(pg_has_role(role, s.srvowner, 'USAGE')), false)
      FROM pg_foreign_server AS s WHERE s.srvname = destination AND outbox_internal.is_destination(s.oid);
END;

-- Refuses a role that does not own the foreign server of a destination.
-- Errors: 42501 the role does not own the foreign server.
CREATE FUNCTION outbox_internal.check_owns_destination(destination name, caller name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT outbox_internal.owns_destination(destination, caller) THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege', DETAIL = 'Its endpoints belong to the owner of the foreign server.';
    END IF;
END $$;
