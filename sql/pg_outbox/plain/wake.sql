-- Wake up relays when the transaction commits.
CREATE FUNCTION outbox_internal.wake_relays()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_notify('outbox_wake', 'operate');
END;
COMMENT ON FUNCTION outbox_internal.wake_relays() IS 'makes relays apply decisions of operators at commit';

-- Events that fetchers have settled are noticed by the next outbox_internal.maintain().
CREATE FUNCTION outbox_internal.wake_keeper()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT;
END;
COMMENT ON FUNCTION outbox_internal.wake_keeper() IS 'does nothing here';

CREATE FUNCTION outbox_internal.wake_for_backfill()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_notify('outbox_wake', 'operate');
END;
COMMENT ON FUNCTION outbox_internal.wake_for_backfill() IS 'makes a relay look for backfills at commit';
