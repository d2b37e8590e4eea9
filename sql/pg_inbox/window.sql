-- The deduplication window: the shortest time for which ids of applied events and versions of
-- removed rows are kept. Messages that are not processed are never removed.

-- Returns when the time of a bucket of the ring (tables.sql) ended: the end of the current bucket,
-- or up to 31 steps of 2^25 ms earlier.
CREATE FUNCTION inbox_internal.bucket_ended(bucket integer, at timestamptz)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_timestamp((step.number + 1 - ((step.number - bucket) & 31)) * 33554.432)
      FROM (SELECT floor(extract(epoch FROM at) / 33554.432)::bigint AS number) AS step;
END;

-- Returns the length of the deduplication window.
CREATE FUNCTION inbox_internal.window_length()
RETURNS interval
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT s.window_length FROM inbox.setting AS s), interval '7 days');
END;

-- Sets how long ids of applied events are kept. Choose it longer than any event may take to come
-- again, and longer than the longest outage. Up to eleven days, removing them costs next to
-- nothing; beyond that rows are deleted.
CREATE FUNCTION inbox.set_window(length interval, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length IS NULL OR length < interval '1 second' THEN
        RAISE EXCEPTION 'the deduplication window must be at least a second'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO inbox.operation (role, consumer, operation, details)
        VALUES (caller, '', 'set window', jsonb_build_object('from', inbox_internal.window_length(), 'to', length));
    INSERT INTO inbox.setting AS s (window_length) VALUES (length)
        ON CONFLICT ON CONSTRAINT setting_pkey DO UPDATE SET window_length = excluded.window_length;
    DELETE FROM inbox.bucket_check;
END $$;

-- Forgets that a consumer has applied events since a time, so that events which come again have an
-- effect again: to build a projection anew. Returns their number.
CREATE FUNCTION inbox.forget(consumer text, since timestamptz, why text, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id    integer := inbox_internal.take_control(consumer);
    forgotten bigint;
BEGIN
    IF since IS NULL THEN
        RAISE EXCEPTION 'since must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Use ''-infinity'' for everything.';
    END IF;
    DELETE FROM inbox.processed AS p WHERE p.consumer_id = own_id AND p.processed_at >= since;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM inbox_internal.note_operation(caller, consumer, 'forget', why,
                                 jsonb_build_object('since', since, 'forgotten', forgotten));
    RETURN forgotten;
END $$;

-- Returns buckets with ids that may have been older than the window for a time, and whether these
-- are deleted row by row. Leaves out those that are to be looked at again later (tables.sql).
CREATE FUNCTION inbox_internal.buckets_to_prune(
    at      timestamptz,
    overdue interval,
    OUT bucket  integer,
    OUT by_rows boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT b, b = 32 OR l.length > interval '11 days'
      FROM generate_series(0, 32) AS b
     CROSS JOIN inbox_internal.window_length() AS l(length)
     WHERE (b = 32 OR l.length > interval '11 days' OR inbox_internal.bucket_ended(b, at) < at - l.length - overdue)
       AND NOT EXISTS (SELECT FROM inbox.bucket_check AS c
                        WHERE c.bucket = b AND c.not_before > at AND c.not_before <= at + greatest(l.length, interval '1 hour'));
END;
COMMENT ON FUNCTION inbox_internal.buckets_to_prune(timestamptz, interval) IS 'buckets that inbox.prune() has to look at';

-- Removes what is older than the deduplication window, and returns what was done; most calls find
-- nothing to do. Deletes at most max_rows rows from a table, and looks through one bucket of ids;
-- `more` is true if there are others. So a session whose statements are cancelled after a time
-- removes everything, too. Call it every few minutes, from any session: while another session runs
-- it, nothing is done.
CREATE FUNCTION inbox.prune(
    max_rows integer DEFAULT 100000,
    OUT part    text,
    OUT action  text,
    OUT removed bigint,
    OUT more    boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off -- estimates of 32 buckets make it compile for seconds
AS $$
DECLARE
    now       CONSTANT timestamptz := clock_timestamp();
    horizon   CONSTANT timestamptz := now - inbox_internal.window_length();
    condition text;
    bucket    integer;
    by_rows   boolean;
    looked_through boolean := false;
BEGIN
    BEGIN
        LOCK TABLE inbox.bucket_check IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN;
    END;
    PERFORM inbox_internal.collect_figures();
    FOR part, condition IN
        VALUES ('processed_32', 'processed_at < $1'),
               ('tombstone', 'removed_at < $1'),
               -- One process failed with it, and another applied it without knowing that.
               ('waiting', 'seq IS NULL AND (last_failed_at < $1 OR EXISTS ('
                           'SELECT FROM inbox.processed AS p WHERE p.consumer_id = waiting.consumer_id '
                           'AND p.event_id = waiting.event_id AND p.bucket = inbox_internal.bucket(waiting.event_id)))')
    LOOP
        SELECT * INTO action, removed FROM inbox_internal.delete_rows(part, condition, horizon, max_rows);
        more := removed = max_rows;
        IF action IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;

    -- In random order: a bucket that takes too long, or is always in use, holds up no other.
    FOR bucket, by_rows IN
        SELECT b.bucket, b.by_rows FROM inbox_internal.buckets_to_prune(now, interval '0') AS b
         WHERE b.bucket < 32 AND pg_relation_size(format('inbox.processed_%s', b.bucket)::regclass) > 0
         ORDER BY random()
    LOOP
        IF looked_through THEN
            more := true;
            EXIT;
        END IF;
        part := format('processed_%s', bucket);
        more := false;
        IF by_rows THEN
            SELECT * INTO action, removed FROM inbox_internal.delete_rows(part, 'processed_at < $1', horizon, max_rows);
            more := removed = max_rows;
            IF NOT more THEN
                PERFORM inbox_internal.check_bucket_again(bucket, now + interval '1 hour');
            END IF;
        ELSE
            action := inbox_internal.empty_bucket(bucket, horizon);
            removed := NULL;
        END IF;
        looked_through := action IS DISTINCT FROM 'in use';
        IF NOT looked_through THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    IF looked_through AND (more OR action IS NOT NULL) THEN
        action := coalesce(action, 'kept');
        RETURN NEXT;
    END IF;
END $$;

-- Waits for no lock: rows in use are left for the next call.
CREATE FUNCTION inbox_internal.delete_rows(
    part      text,
    condition text,
    horizon   timestamptz,
    max_rows  integer,
    OUT action  text,
    OUT removed bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    removed := 0;
    EXECUTE format('SELECT ''deleted'' FROM inbox.%I WHERE %s LIMIT 1', part, condition)
        INTO action USING horizon;
    IF action IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE inbox.%I IN ROW EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DELETE FROM inbox.%1$I WHERE %2$s AND ctid = ANY (ARRAY('
                   'SELECT ctid FROM inbox.%1$I WHERE %2$s LIMIT $2))', part, condition)
        USING horizon, max_rows;
    GET DIAGNOSTICS removed = ROW_COUNT;
EXCEPTION
    WHEN lock_not_available THEN
        action := 'in use';
END $$;
COMMENT ON FUNCTION inbox_internal.delete_rows(text, text, timestamptz, integer) IS 'deletes old rows of a table, for inbox.prune()';

-- Empties a bucket if all its ids are older than the window. If one of them came late and must
-- still be remembered, the bucket is looked at again when that id is old too. No id can be added
-- meanwhile.
CREATE FUNCTION inbox_internal.empty_bucket(bucket integer, horizon timestamptz)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part text := format('inbox.processed_%s', bucket);
    last timestamptz;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('SELECT max(processed_at) FROM %s', part) INTO last;
    IF last >= horizon THEN
        PERFORM inbox_internal.check_bucket_again(bucket, last + inbox_internal.window_length());
        RETURN NULL;
    END IF;
    EXECUTE format('TRUNCATE %s', part);
    RETURN 'emptied';
EXCEPTION
    WHEN lock_not_available OR object_in_use THEN
        RETURN 'in use';
END $$;

-- Sets when a bucket is looked at again.
CREATE FUNCTION inbox_internal.check_bucket_again(bucket integer, not_before timestamptz)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO inbox.bucket_check AS c VALUES ($1, $2)
        ON CONFLICT ON CONSTRAINT bucket_check_pkey DO UPDATE SET not_before = excluded.not_before;
END;

-- Returns since when ids should have been removed that inbox.prune() has left for a day, or null.
-- It looks at the first id of a bucket, and not at a bucket that is being emptied.
CREATE FUNCTION inbox_internal.not_pruned_since()
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    length CONSTANT interval    := inbox_internal.window_length();
    now    CONSTANT timestamptz := clock_timestamp();
    bucket integer;
    first  timestamptz;
    oldest timestamptz;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    -- One that has just become due is left to the next call of inbox.prune().
    FOR bucket IN SELECT b.bucket FROM inbox_internal.buckets_to_prune(now, interval '1 hour') AS b LOOP
        BEGIN
            EXECUTE format('LOCK TABLE inbox.processed_%s IN ACCESS SHARE MODE NOWAIT', bucket);
        EXCEPTION
            WHEN lock_not_available THEN
                CONTINUE;
        END;
        EXECUTE format('SELECT p.processed_at FROM inbox.processed_%s AS p %s LIMIT 1', bucket,
                       CASE bucket WHEN 32 THEN 'ORDER BY p.processed_at' ELSE '' END) INTO first;
        oldest := least(oldest, first);
    END LOOP;
    RETURN CASE WHEN oldest < now - length - interval '1 day' THEN oldest + length END;
END $$;
COMMENT ON FUNCTION inbox_internal.not_pruned_since() IS 'since when ids are kept longer than the deduplication window';
