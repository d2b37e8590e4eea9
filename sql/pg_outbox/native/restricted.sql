-- VACUUM, ANALYZE, REINDEX and REFRESH MATERIALIZED VIEW run code of tables with the rights of
-- their owners, and so do the workers of pg_outbox. Functions that act for a caller refuse to run
-- there.
CREATE FUNCTION outbox_internal.refuse_restricted()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_refuse_restricted';
COMMENT ON FUNCTION outbox_internal.refuse_restricted() IS 'raises an error in code that maintenance of a table runs';
