-- The keeper looks after the log here.
CREATE FUNCTION outbox_internal.maintain()
RETURNS double precision
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NULL::double precision;
END;
COMMENT ON FUNCTION outbox_internal.maintain() IS 'does what is due for the log; returns seconds until more is due, or null if a keeper does it';
