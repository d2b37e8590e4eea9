-- For functions that change whose, or what, a consumer is. In an operation that is restricted (autovacuum,
-- ANALYZE, REINDEX, REFRESH of what somebody else owns) nobody has asked for that; the server refuses UNLISTEN
-- there, which has no effect else.
CREATE FUNCTION inbox_internal.refuse_restricted()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UNLISTEN inbox_nothing_listens_to_this;
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_restricted() IS 'refuses to act in an index function and the like';
