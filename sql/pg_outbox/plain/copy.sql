-- Returns NULL here, because the server has no identity outside its data directory. Relays may have one,
-- see outbox.relay.
CREATE FUNCTION outbox_internal.own_identity()
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NULL::text;
END;
