CREATE FUNCTION outbox_internal.run_check(server oid, topic text, OUT subject text, OUT ok boolean, OUT detail text)
RETURNS SETOF record
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_run_check';
COMMENT ON FUNCTION outbox_internal.run_check(oid, text) IS 'starts a background worker that checks a destination';
