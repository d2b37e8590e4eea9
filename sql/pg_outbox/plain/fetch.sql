-- Roles that may fetch from pull destinations.
CREATE TABLE outbox.fetcher (
    role        regrole NOT NULL,
    destination name    NOT NULL,
    PRIMARY KEY (role, destination)
);
COMMENT ON TABLE outbox.fetcher IS 'pull destinations that roles may fetch from; see outbox.grant_fetch()';
COMMENT ON COLUMN outbox.fetcher.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.fetcher.destination IS 'name of the destination';

-- Returns the number of a pull destination, or raises an error if the role may not fetch from it.
CREATE FUNCTION outbox_internal.check_fetcher(destination name, caller name)
RETURNS oid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    server oid;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.check_at_home();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = destination AND d.pull;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pull destination "%" does not exist', destination
            USING ERRCODE = 'undefined_object',
                  HINT = 'INSERT INTO outbox.destination_config VALUES (..., ''{"url": "pull:"}'');';
    END IF;
    IF (pg_has_role(caller, current_user, 'USAGE')
        OR EXISTS (SELECT FROM outbox.fetcher AS f
                    WHERE f.destination = check_fetcher.destination AND pg_has_role(caller, f.role, 'USAGE'))) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('SELECT outbox.grant_fetch(%L, %L);', quote_ident(caller), destination);
    END IF;
    RETURN server;
END $$;

-- Lets a role fetch from a pull destination. Errors: 42704 there is no such destination.
CREATE FUNCTION outbox.grant_fetch(role regrole, destination name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox_internal.grant_right(role, 'fetch');
    IF destination IS NOT NULL THEN
        IF NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = destination) THEN
            RAISE EXCEPTION 'destination "%" does not exist', destination
                USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
        END IF;
        INSERT INTO outbox.fetcher VALUES (role, destination) ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- Revokes the right to fetch from pull destinations.
CREATE FUNCTION outbox.revoke_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'fetch');
    DELETE FROM outbox.fetcher AS f WHERE f.role = revoke_fetch.role OR f.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r);
END;
