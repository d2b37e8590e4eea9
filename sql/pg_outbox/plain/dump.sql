-- After a restore: see restore.sql.

-- A trigger on each event would cost more than the insert. What they do is done after a
-- restore.
ALTER TABLE outbox.event_0 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_1 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_2 DISABLE TRIGGER adopt_event;
ALTER TABLE outbox.event_3 DISABLE TRIGGER adopt_event;

-- Returns the first transaction that can have enqueued here after a restore: the one that restored rows
-- which nothing has changed since.
CREATE FUNCTION outbox_internal.restored_by()
RETURNS xid8
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT (n.now - ((n.now - min(r.xmin)) & 4294967295))::text::xid8
      FROM (SELECT pg_current_xact_id()::text::bigint) AS n(now),
           (SELECT h.xmin::text::bigint FROM outbox.home AS h
            UNION ALL
            SELECT g.xmin::text::bigint FROM outbox.ring AS g) AS r(xmin)
     GROUP BY n.now;
END;

-- Adapts a restored log to this cluster: gives events and cursors the numbers that restore.sql
-- describes. Events that may have been enqueued here since keep theirs, and count as not settled.
CREATE FUNCTION outbox_internal.come_home()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    home    record;
    since   CONSTANT xid8 := outbox_internal.restored_by();
    cursors outbox.cursor[];
    batches outbox.batch[];
    cursor  outbox.cursor;
    batch   outbox.batch;
BEGIN
    PERFORM outbox_internal.begin_restore();
    IF outbox_internal.is_at_home() THEN
        RETURN;
    END IF;
    LOCK TABLE outbox.event IN ACCESS EXCLUSIVE MODE;
    SELECT h.log, h.inserted_by::text::bigint & 4294967295 = h.xmin::text::bigint AS same_transactions INTO home FROM outbox.home AS h;
    IF home.log = 'outbox.event'::regclass AND home.same_transactions THEN -- pg_upgrade
        UPDATE outbox.cursor AS c SET system_identifier = s.system_identifier, relay = NULL FROM pg_control_system() AS s;
    ELSE
        DELETE FROM outbox.relay AS r WHERE r.leased_until < clock_timestamp();
        DELETE FROM outbox.transaction; -- the destination knows another database
        cursors := ARRAY(SELECT c FROM outbox.cursor AS c);
        DELETE FROM outbox.cursor;
        FOREACH cursor IN ARRAY cursors LOOP -- through the triggers
            cursor.relay := NULL;
            INSERT INTO outbox.cursor SELECT (cursor).*;
        END LOOP;
        WITH numbered AS (
            SELECT x.xid,
                   (SELECT CASE
                             WHEN bool_and(pg_snapshot_xmax(c.done) <= outbox_internal.last_restored_xid())
                             THEN greatest('3'::xid8,
                                           (array_agg(pg_snapshot_xmax(c.done) ORDER BY pg_snapshot_xmax(c.done) DESC)
                                               FILTER (WHERE NOT pg_visible_in_snapshot(x.xid, c.dumped_done)))[1],
                                           (array_agg(pg_snapshot_xmax(c.upto) ORDER BY pg_snapshot_xmax(c.upto) DESC)
                                               FILTER (WHERE NOT pg_visible_in_snapshot(x.xid, c.dumped_upto)))[1])
                             ELSE pg_current_xact_id()
                           END
                      FROM outbox.cursor AS c) AS number
              FROM (SELECT DISTINCT e.xid FROM outbox.event AS e WHERE e.xid < since OR e.xid >= pg_current_xact_id()) AS x
        )
        UPDATE outbox.event AS e SET xid = n.number FROM numbered AS n WHERE n.xid = e.xid;
        PERFORM outbox_internal.raise_position((SELECT max(e.position) FROM outbox.event AS e));
        batches := ARRAY(SELECT b FROM outbox.batch AS b);
        DELETE FROM outbox.batch;
        FOREACH batch IN ARRAY batches LOOP
            INSERT INTO outbox.batch SELECT (batch).*;
        END LOOP;
        UPDATE outbox.endpoint_state AS s SET since = NULL;
        UPDATE outbox.endpoint AS e SET paused = e.paused; -- through the trigger, which sets changed_by
        UPDATE outbox.backfill_task AS t SET state = 'paused' WHERE t.state = 'running';
        UPDATE outbox.backfill_task AS t SET last_xid = '0';
        UPDATE outbox.captured AS c SET known_members = '{}';
        PERFORM outbox_internal.tend_captures();
    END IF;
    DELETE FROM outbox.home;
    INSERT INTO outbox.home SELECT c.system_identifier, 'outbox.event'::regclass FROM pg_control_system() AS c;
END $$;
