-- Who calls. A function with the rights of its owner takes it as its last parameter,
--
--     caller inbox_internal.caller DEFAULT CURRENT_USER
--
-- The default, and the check of a value that is given, are evaluated where the call is made, before the
-- function has its owner's rights: so it is the role whose rights the caller has, and nothing else. Not
-- session_user: code of a low role runs in sessions of others, too, by triggers, or when they maintain its
-- tables. Inside, pass the parameter on: a default would be the owner.
CREATE DOMAIN inbox_internal.caller AS name NOT NULL CHECK (VALUE = CURRENT_USER);
COMMENT ON DOMAIN inbox_internal.caller IS 'the role that calls a function; no other value can be given';
-- Nobody else is to keep a value of it for a later call.
REVOKE USAGE ON DOMAIN inbox_internal.caller FROM PUBLIC;

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
