-- Returns the identity that this server has outside its data directory; empty if it has none, and
-- NULL if that is not known because the library is not preloaded. See outbox.identity_file.
CREATE FUNCTION outbox_internal.own_identity()
RETURNS text
LANGUAGE c STABLE
AS 'MODULE_PATHNAME', 'outbox_own_identity';
