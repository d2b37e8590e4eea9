-- Destinations are foreign servers of this wrapper.
CREATE FUNCTION outbox_internal.validate_options(options text[], catalog oid)
RETURNS void
LANGUAGE c STRICT
AS 'MODULE_PATHNAME', 'outbox_validate_options';
COMMENT ON FUNCTION outbox_internal.validate_options(text[], oid) IS
    'checks the options of destinations and their credentials';

-- Returns every option that a destination can have: where it is set, its valid values and its
-- default. They come from the declarations of the sinks (lib/sinks/<name>/options.cpp).
CREATE FUNCTION outbox.destination_options(
    OUT sink          text,
    OUT option        text,
    OUT set_in        text,
    OUT type          text,
    OUT unit          text,
    OUT range         text,
    OUT default_value text,
    OUT description   text)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_destination_options';

CREATE FOREIGN DATA WRAPPER pg_outbox VALIDATOR outbox_internal.validate_options;
COMMENT ON FOREIGN DATA WRAPPER pg_outbox IS
    'servers of this wrapper are destinations of events; roles with USAGE on it decide where the database server connects';
