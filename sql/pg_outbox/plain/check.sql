-- Only the relay can reach a destination and knows its credentials.
CREATE FUNCTION outbox_internal.run_check(server oid, topic text, caller name, OUT subject text, OUT ok boolean, OUT detail text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'relay', false, 'this server connects to no destination; run outbox-relay --check';
END;
COMMENT ON FUNCTION outbox_internal.run_check(oid, text, name) IS 'says how a destination is checked';
