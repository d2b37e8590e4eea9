-- Destinations are foreign servers of this wrapper.
CREATE FUNCTION outbox_internal.validate_options(options text[], catalog oid)
RETURNS void
LANGUAGE c STRICT
AS 'MODULE_PATHNAME', 'outbox_validate_options';
COMMENT ON FUNCTION outbox_internal.validate_options(text[], oid) IS
    'checks the options of destinations and their credentials';

CREATE FOREIGN DATA WRAPPER pg_outbox VALIDATOR outbox_internal.validate_options;
COMMENT ON FOREIGN DATA WRAPPER pg_outbox IS
    'its servers are destinations of events; who has USAGE on it decides where this server connects to';
