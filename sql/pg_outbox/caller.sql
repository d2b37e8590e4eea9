-- Who asks. A function that has more rights than its caller, and needs to know who that is, takes it as
-- its last parameter:
--
--     caller outbox_internal.caller DEFAULT CURRENT_USER
--
-- The default and the check are evaluated where the call is made, before the function takes the rights of
-- its owner. So the value is the role whose rights the calling code has, and cannot be another: after SET
-- ROLE that role, in a SECURITY DEFINER function or a function of an index its owner. The role that logged
-- in says nothing about whose code is at work, and is not asked for anywhere.
--
-- A NULL gets past the check in an outer join or an empty subquery, so what is decided by a caller is
-- refused if it is NULL.
CREATE DOMAIN outbox_internal.caller AS name NOT NULL CHECK (VALUE = CURRENT_USER);
COMMENT ON DOMAIN outbox_internal.caller IS 'the role that calls a function; no other can be passed';

-- Nobody can keep one for later, in a table or a function of its own.
REVOKE ALL ON TYPE outbox_internal.caller FROM PUBLIC;

-- VACUUM, ANALYZE, REINDEX and REFRESH MATERIALIZED VIEW run code of tables with the rights of their owners,
-- and so do the workers of pg_outbox. Nobody has asked for anything there.
CREATE FUNCTION outbox_internal.refuse_restricted()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_refuse_restricted';
COMMENT ON FUNCTION outbox_internal.refuse_restricted() IS 'raises an error in code that maintenance of a table runs';
