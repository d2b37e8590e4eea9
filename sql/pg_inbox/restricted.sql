-- For functions that change a consumer or its owner. In a security-restricted operation
-- (autovacuum, ANALYZE, REINDEX, REFRESH of another role's objects) no caller has asked for that.
-- There the server refuses UNLISTEN, which otherwise has no effect here.
CREATE FUNCTION inbox_internal.refuse_restricted()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UNLISTEN inbox_nothing_listens_to_this;
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_restricted() IS 'raises an error within a security-restricted operation';
