-- Returns the condition over e for events of the log that a destination holds: it selects them, has
-- not settled them, and has no copy in outbox.delivery. $1 is its name, $2 its topics as patterns,
-- $3 its number; it has settled $4, and of $5 the events up to $6.
CREATE FUNCTION outbox_internal.held_condition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'e.topic LIKE ANY ($2) AND (e.only_to IS NULL OR e.only_to = $3) AND NOT pg_visible_in_snapshot(e.xid, $4)
            AND (e.position <= $6 AND pg_visible_in_snapshot(e.xid, $5)) IS NOT TRUE
            AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = $1 AND d.position = e.position)';
END;
COMMENT ON FUNCTION outbox_internal.held_condition() IS 'condition for events of the log that a destination holds';

-- Returns the destinations that have not settled all of a segment, by their saved cursors. A
-- destination without a cursor of this cluster holds all of it. An event that a destination does
-- not select counts as settled, so one producer cannot fill the log for destinations that do not
-- select its topics.
CREATE FUNCTION outbox.segment_held_by(number integer)
RETURNS name[]
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    destination record;
    holds       boolean;
    holders     name[] := '{}';
BEGIN
    FOR destination IN
        SELECT d.name, d.pull, c.number, coalesce(c.done, '1:1:') AS done, c.upto, c.position
          FROM outbox.destination AS d
          LEFT JOIN outbox.cursor AS c
            ON c.destination = d.name
           AND c.system_identifier = (SELECT system_identifier FROM pg_control_system())
         WHERE c.detached_at IS NULL
    LOOP
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM outbox.event_%1$s WHERE xid >= pg_snapshot_xmax($1))
                 OR EXISTS (SELECT FROM pg_snapshot_xip($1) AS late(xid)
                             WHERE EXISTS (SELECT FROM outbox.event_%1$s AS e WHERE e.xid = late.xid))',
            number)
            INTO holds USING destination.done;
        IF holds THEN  -- some events are not settled; only now they are read
            EXECUTE format('SELECT EXISTS (SELECT FROM outbox.event_%s AS e WHERE %s)', number, outbox_internal.held_condition())
                INTO holds
               USING destination.name, outbox_internal.topic_patterns(outbox_internal.destination_option(destination.name, 'topics')),
                     destination.number, destination.done, destination.upto, destination.position;
        END IF;
        IF NOT holds AND destination.pull THEN  -- in a batch, but not settled: see pull.sql
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = $1 AND b.xids IS NULL)
                     OR EXISTS (SELECT
                                  FROM outbox.batch AS b
                                 CROSS JOIN LATERAL unnest(b.xids, b.positions) AS open(xid, place)
                                  JOIN outbox.event_%s AS e ON e.xid = open.xid AND e.position = open.place
                                 WHERE b.destination = $1)',
                number)
                INTO holds USING destination.name;
        END IF;
        IF holds THEN
            holders := holders || destination.name;
        END IF;
    END LOOP;
    RETURN holders;
END $$;
COMMENT ON FUNCTION outbox.segment_held_by(integer) IS 'destinations that have not settled all events that they select of a segment';

-- Without any destination, events wait for the first one.
CREATE FUNCTION outbox_internal.segment_is_free(number integer)
RETURNS boolean
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox.destination) AND cardinality(outbox.segment_held_by(number)) = 0;
END;
COMMENT ON FUNCTION outbox_internal.segment_is_free(integer) IS 'returns whether no destination needs the events of a segment';

CREATE VIEW outbox.segment AS
SELECT r.number,
       r.current,
       r.since,
       pg_catalog.pg_total_relation_size(pg_catalog.format('outbox.event_%s', r.number)::regclass) AS size,
       outbox.segment_held_by(r.number) AS held_by
  FROM outbox.ring AS r;
COMMENT ON VIEW outbox.segment IS 'segments of the log, their sizes, and the destinations that hold them';
COMMENT ON COLUMN outbox.segment.number IS 'segment event_<number>';
COMMENT ON COLUMN outbox.segment.current IS 'true if enqueues go to this segment';
COMMENT ON COLUMN outbox.segment.since IS 'when current last changed, or the segment was emptied';
COMMENT ON COLUMN outbox.segment.size IS 'size in bytes, with index and TOAST table';
COMMENT ON COLUMN outbox.segment.held_by IS 'destinations that have not settled all selected events of it';
