-- Serialises restores, because events are numbered by the cursors that exist.
CREATE FUNCTION outbox_internal.begin_restore()
RETURNS void
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_advisory_xact_lock(1869968482, -1);
END;
COMMENT ON FUNCTION outbox_internal.begin_restore() IS 'lets one transaction at a time restore rows';
