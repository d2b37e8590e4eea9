-- Makes relays apply decisions of operators at commit.
CREATE FUNCTION outbox_internal.wake_relays()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_notify('outbox_wake', 'operate');
END;

-- Does nothing here: the next outbox_internal.maintain() notices events that fetchers have settled.
CREATE FUNCTION outbox_internal.wake_keeper()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT;
END;

-- Makes a relay look for backfills at commit.
CREATE FUNCTION outbox_internal.wake_for_backfill()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_notify('outbox_wake', 'operate');
END;
