-- Starts a background worker that checks a destination.
CREATE FUNCTION outbox_internal.run_check(server oid, topic text, caller name, OUT subject text, OUT ok boolean, OUT detail text)
RETURNS SETOF record
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_run_check';
