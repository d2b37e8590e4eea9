-- VACUUM, ANALYZE, REINDEX and REFRESH MATERIALIZED VIEW run code of tables with the rights of
-- their owners. Functions that act for a caller refuse to run there. UNLISTEN of a channel that
-- nobody listens to has no effect, but is refused in such an operation.
CREATE FUNCTION outbox_internal.refuse_restricted()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UNLISTEN outbox_nothing;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION 'cannot act for a caller within a security-restricted operation'
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Functions of indexes, conditions of captures and materialized views cannot call this function.';
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_restricted() IS 'raises an error in code that maintenance of a table runs';
