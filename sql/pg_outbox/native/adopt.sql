-- Runs a statement with the rights of the owner of a table, restricted as VACUUM is, and returns
-- the first row. Reading a table runs code of its owner: functions of its indexes, policies, rules.
-- That code must not have the caller's rights.
CREATE FUNCTION outbox_internal.run_as_owner("table" regclass, statement text)
RETURNS text[]
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_run_as_owner';
