-- Returns a JSON payload, or NULL if jsonb cannot hold it. Examples are {"n": 1e999999}, "\ud800"
-- and "\u0000". An error would hit every reader of the view, whatever event it looks for.
CREATE FUNCTION outbox.payload_as_jsonb(payload bytea)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN convert_from(payload, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;
