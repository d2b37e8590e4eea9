-- What the keeper of the extension does for the log (bgworker/keeper/segments.hpp): moves enqueues
-- on to the next segment, empties segments that every destination is done with, limits the size of
-- the log, drops old receipts and source events, and continues backfills. outbox-relay calls it.
--
-- No enqueue waits for this: a lock is taken at once or not at all, and held only for a TRUNCATE.

CREATE TABLE outbox.upkeep (
    task   text        PRIMARY KEY,
    due    timestamptz NOT NULL,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.upkeep IS 'when tasks of outbox_internal.maintain() are due again';
COMMENT ON COLUMN outbox.upkeep.task IS 'the task';
COMMENT ON COLUMN outbox.upkeep.due IS 'not done before this time';
COMMENT ON COLUMN outbox.upkeep.set_at IS 'when that was decided';

-- Returns whether a task of outbox_internal.maintain() is due. If that was decided later than now, the
-- clock has been set back, and the task is due.
CREATE FUNCTION outbox_internal.is_due(task text)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NOT EXISTS (SELECT FROM outbox.upkeep AS u WHERE u.task = is_due.task AND u.due > clock_timestamp() AND u.set_at <= clock_timestamp());
END;

-- Sets when a task of outbox_internal.maintain() is due again.
CREATE FUNCTION outbox_internal.put_off(task text, seconds double precision)
RETURNS void
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.upkeep
    SELECT task, n.now + make_interval(secs => seconds), n.now FROM (SELECT clock_timestamp() AS now) AS n
        ON CONFLICT ON CONSTRAINT upkeep_pkey DO UPDATE SET due = excluded.due, set_at = excluded.set_at;
END;

-- Drops old receipts and source events.
CREATE FUNCTION outbox_internal.tend_receipts()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox_internal.is_due('receipts') THEN
        PERFORM outbox_internal.put_off('receipts', least(CASE WHEN outbox_internal.turn_receipts() THEN 3600 ELSE 5 END,
                                                          outbox_internal.setting_number('receipt_retention')));
    END IF;
    IF outbox_internal.is_due('source events') AND NOT outbox_internal.forget_source_events() THEN
        PERFORM outbox_internal.put_off('source events', least(3600, outbox_internal.setting_number('source_event_retention')));
    END IF;
END $$;

-- Detaches a destination when the log is too large.
CREATE FUNCTION outbox_internal.watch_size()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most     CONSTANT bigint := outbox_internal.setting_number('max_log_size') * 1048576;
    detached name;
BEGIN
    IF most = 0 OR outbox_internal.setting('on_full_log') <> 'detach' OR NOT outbox_internal.is_due('detach')
       OR (SELECT sum(pg_total_relation_size(format('outbox.event_%s', r.number)::regclass)) FROM outbox.ring AS r) <= most THEN
        RETURN;
    END IF;
    -- Repeated only after the effect can be seen, and after the others could save their cursors.
    PERFORM outbox_internal.put_off('detach', greatest(5, 2 * outbox_internal.setting_number('cursor_flush_interval') / 1000.0));
    detached := outbox_internal.detach_last();
    IF detached IS NOT NULL THEN
        RAISE WARNING 'destination "%" is detached: the log has outgrown outbox.max_log_size', detached
            USING DETAIL = 'It is paused, and events that it has not settled will be removed.',
                  HINT = 'outbox.resume() continues with the events still in the log.';
    END IF;
END $$;

-- Moves enqueues on to the next segment: makes the next empty one the current one. Without an empty
-- one the current one goes on growing. Returns the seconds until the current one is too old.
CREATE FUNCTION outbox_internal.move_on_when_due()
RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current record;
    next    integer;
    age     double precision;
BEGIN
    SELECT r.number, pg_total_relation_size(s.class) AS size, pg_relation_size(s.class) AS rows_size, r.since INTO current
      FROM outbox.ring AS r
     CROSS JOIN LATERAL (SELECT format('outbox.event_%s', r.number)::regclass) AS s(class)
     WHERE r.current
     LIMIT 1;
    IF current.rows_size = 0 THEN
        RETURN 3600;
    END IF;
    age := extract(epoch FROM clock_timestamp() - current.since);
    IF current.size < outbox_internal.setting_number('segment_size') * 1024
       AND age < outbox_internal.setting_number('segment_age') THEN
        RETURN least(outbox_internal.setting_number('segment_age') - age, 3600);
    END IF;
    SELECT r.number INTO next
      FROM outbox.ring AS r
     WHERE r.number <> current.number AND pg_relation_size(format('outbox.event_%s', r.number)::regclass) = 0
     ORDER BY (r.number - current.number + 4) % 4
     LIMIT 1;
    IF next IS NULL THEN
        RETURN 30;
    END IF;
    UPDATE outbox.ring AS r SET current = (r.number = next), since = clock_timestamp() WHERE r.number IN (next, current.number);
    RETURN 0;
END $$;

-- A transaction that wrote to the segment holds a lock on it until it ends. So a look at the
-- segment after this takes the lock misses no event. Relays that have noted places in the segment
-- compare positions.
CREATE FUNCTION outbox_internal.empty_segment(number integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT outbox_internal.segment_is_free(number) THEN
        RETURN false;
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE ONLY outbox.event_%s IN ACCESS EXCLUSIVE MODE NOWAIT', number);
        IF outbox_internal.segment_is_free(number) THEN
            EXECUTE format('TRUNCATE ONLY outbox.event_%s', number);
            UPDATE outbox.ring AS r SET since = clock_timestamp() WHERE r.number = empty_segment.number;
            RETURN true;
        END IF;
        RAISE lock_not_available; -- gives the lock back
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END $$;
COMMENT ON FUNCTION outbox_internal.empty_segment(integer) IS 'empties a segment that no destination needs';

-- Empties a segment that no destination needs and that is kept long enough. Empties at most one, so
-- that its lock is held for a moment only. Returns the seconds until another may be emptied.
CREATE FUNCTION outbox_internal.empty_when_due()
RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    retention CONSTANT bigint := outbox_internal.setting_number('retention');
    began     timestamptz;
    segment   record;
    pause     double precision := 3600;
BEGIN
    FOR segment IN
        SELECT r.number, r.since + make_interval(secs => retention) - clock_timestamp() AS remaining
          FROM outbox.ring AS r
         WHERE NOT r.current AND pg_relation_size(format('outbox.event_%s', r.number)::regclass) > 0
         ORDER BY r.since
    LOOP
        IF segment.remaining > interval '0' THEN
            pause := least(pause, extract(epoch FROM segment.remaining));
        ELSIF outbox_internal.is_due('segment ' || segment.number) THEN
            began := clock_timestamp();
            IF outbox_internal.empty_segment(segment.number) THEN
                RETURN 0;
            END IF;
            -- It may take a scan to see that the segment is held, so the next one waits for twenty
            -- times as long.
            pause := least(pause, greatest(5, 20 * extract(epoch FROM clock_timestamp() - began)));
            PERFORM outbox_internal.put_off('segment ' || segment.number, pause);
        ELSE
            pause := least(pause, 5);
        END IF;
    END LOOP;
    RETURN pause;
END $$;

-- Runs one step of the backfill that has waited longest. Returns the seconds until the next.
CREATE FUNCTION outbox_internal.backfill_when_due()
RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    task bigint;
    step record;
BEGIN
    SELECT t.id INTO task
      FROM outbox.backfill_task AS t
     WHERE t.state = 'running'
     ORDER BY NOT outbox_internal.is_due('backfill ' || t.id), t.updated_at
     LIMIT 1;
    IF NOT FOUND THEN
        DELETE FROM outbox.upkeep AS u WHERE u.task LIKE 'backfill %';
        RETURN 3600;
    ELSIF NOT outbox_internal.is_due('backfill ' || task) THEN
        RETURN 0.1;
    END IF;
    step := outbox_internal.backfill_step(task);
    PERFORM outbox_internal.put_off('backfill ' || task,
                                    CASE step.outcome WHEN 'more' THEN coalesce(step.rows::double precision / step.rate, 0)
                                                      WHEN 'over' THEN 0 ELSE 0.5 END);
    RETURN 0;
END $$;

-- Does what is due for the log; returns seconds until more is due. Several relays may call it: one
-- does the work, the others come back later.
CREATE FUNCTION outbox_internal.maintain()
RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
AS $$
DECLARE
    pause double precision;
BEGIN
    IF NOT pg_try_advisory_xact_lock(@{lock_class}, @{maintain_lock}) THEN
        RETURN 5;
    END IF;
    IF NOT outbox_internal.is_at_home() THEN
        PERFORM outbox_internal.come_home();
        RETURN 0;
    END IF;
    PERFORM outbox_internal.bound_ring();
    PERFORM outbox_internal.tend_receipts();
    PERFORM outbox_internal.watch_size();
    PERFORM outbox_internal.tend_captures();
    -- A dump would have the numbers of dropped roles, which may be those of others elsewhere.
    DELETE FROM outbox.producer AS p WHERE p.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r);
    DELETE FROM outbox.fetcher AS f WHERE f.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r);
    pause := outbox_internal.move_on_when_due();
    pause := least(pause, outbox_internal.backfill_when_due());
    IF outbox_internal.is_due('source events') THEN
        pause := 0; -- there are more
    END IF;
    RETURN least(pause, outbox_internal.empty_when_due()); -- last, because it locks the segment
EXCEPTION WHEN lock_not_available THEN
    RETURN 5;
END $$;
