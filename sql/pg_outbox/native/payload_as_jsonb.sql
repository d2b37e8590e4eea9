-- Returns a JSON payload, or NULL if jsonb cannot hold it. Examples are {"n": 1e999999}, "\ud800"
-- and "\u0000". An error would hit every reader of the view, whatever event it looks for.
CREATE FUNCTION outbox.payload_as_jsonb(payload bytea)
RETURNS jsonb
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_payload_as_jsonb';
