-- A row makes outbox-relay connect to an address, as a destination does. So endpoints belong to the owner of
-- pg_outbox: there is no policy for other roles.

-- Refuses a role that may not change endpoints.
-- Errors: 42501 the role is not a member of the owner.
CREATE FUNCTION outbox_internal.check_owns_destination(destination name, caller name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role(caller, current_user, 'USAGE') IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege', DETAIL = 'Endpoints belong to the owner of pg_outbox.';
    END IF;
END $$;
