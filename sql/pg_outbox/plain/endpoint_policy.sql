-- A row makes outbox-relay connect to an address, as a destination does. So endpoints belong to the owner of
-- pg_outbox: there is no policy for other roles.

-- Returns whether a role has the rights of the owner of a destination, and so sees its endpoints.
CREATE FUNCTION outbox_internal.owns_destination(destination name, role name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_or(pg_has_role(role, c.relowner, 'USAGE')), false)
      FROM pg_class AS c WHERE c.oid = 'outbox.destination_config'::regclass;
END;

-- Refuses a role that may not change endpoints.
-- Errors: 42501 the role is not a member of the owner.
CREATE FUNCTION outbox_internal.check_owns_destination(destination name, caller name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT outbox_internal.owns_destination(destination, caller) THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege', DETAIL = 'Endpoints belong to the owner of pg_outbox.';
    END IF;
END $$;
