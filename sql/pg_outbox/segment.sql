-- Returns the condition over e for events of the log that a destination holds. It selects them, has
-- not settled them, and has no copy of them in outbox.delivery. $1 is its name, $2 its topics as
-- patterns, $3 its number; it has settled $4, and of $5 the events up to $6.
CREATE FUNCTION outbox_internal.held_condition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'e.topic LIKE ANY ($2) AND (e.only_to IS NULL OR e.only_to = $3) AND NOT pg_visible_in_snapshot(e.xid, $4)
            AND (e.position <= $6 AND pg_visible_in_snapshot(e.xid, $5)) IS NOT TRUE
            AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = $1 AND d.position = e.position)';
END;

-- Returns the destinations that have not settled all of a segment, by their saved cursors. A
-- destination without a cursor of this cluster holds all of it. An event that a destination does
-- not select counts as settled, so one producer cannot fill the log for destinations that do not
-- select its topics.
CREATE FUNCTION outbox_internal.servers_holding(number integer)
RETURNS name[]
LANGUAGE plpgsql STABLE STRICT
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

-- Returns the endpoints that are behind and have not settled all events that they select of a
-- segment. There may be thousands, so the segment is read at most once: it is enough to know the
-- last transaction of each topic. Events in batches are looked for one by one, but only those of
-- transactions between the first and the last one of the segment.
CREATE FUNCTION outbox_internal.endpoints_holding(number integer)
RETURNS name[]
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holders name[];
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.endpoint) THEN
        RETURN '{}';
    END IF;
    EXECUTE format(
        'WITH bounds AS MATERIALIZED (
            SELECT (SELECT e.xid FROM outbox.event_%1$s AS e ORDER BY e.xid, e.position LIMIT 1) AS low,
                   (SELECT e.xid FROM outbox.event_%1$s AS e ORDER BY e.xid DESC, e.position DESC LIMIT 1) AS high
         ), endpoint AS MATERIALIZED (
            SELECT c.destination, c.done,
                   outbox_internal.topic_patterns(outbox_internal.destination_option(e.server, ''topics'')) AS of_server,
                   outbox_internal.topic_patterns(e.topics) AS of_endpoint, outbox_internal.destination_number(e.server) AS number
              FROM outbox.endpoint AS e
              JOIN outbox.cursor AS c ON c.destination = (e.server || ''/'' || e.name)::name
             WHERE c.detached_at IS NULL
         ), late AS MATERIALIZED (  -- not read, of transactions that had not finished
            SELECT n.destination
              FROM endpoint AS n CROSS JOIN bounds AS b CROSS JOIN LATERAL pg_snapshot_xip(n.done) AS xip
             WHERE xip >= b.low AND xip <= b.high
               AND EXISTS (SELECT FROM outbox.event_%1$s AS e
                            WHERE e.xid = xip AND e.topic LIKE ANY (n.of_server) AND e.topic LIKE ANY (n.of_endpoint)
                              AND (e.only_to IS NULL OR e.only_to = n.number))
         ), batched AS MATERIALIZED (  -- in a batch, but not settled
            SELECT n.destination
              FROM endpoint AS n CROSS JOIN bounds AS b
             WHERE EXISTS (SELECT FROM outbox.batch AS o
                            WHERE o.destination = n.destination
                              AND (o.xids IS NULL
                                   OR EXISTS (SELECT FROM unnest(o.xids, o.positions) AS open(xid, place)
                                               WHERE open.xid >= b.low AND open.xid <= b.high
                                                 AND EXISTS (SELECT FROM outbox.event_%1$s AS e
                                                              WHERE e.xid = open.xid AND e.position = open.place))))
         ), unread AS MATERIALIZED (
            SELECT n.* FROM endpoint AS n CROSS JOIN bounds AS b
             WHERE pg_snapshot_xmax(n.done) <= b.high
               AND n.destination NOT IN (SELECT destination FROM late UNION ALL SELECT destination FROM batched)
         ), kind AS MATERIALIZED (
            SELECT e.topic, e.only_to, max(e.xid) AS last
              FROM outbox.event_%1$s AS e
             WHERE EXISTS (SELECT FROM unread) AND e.xid >= (SELECT min(pg_snapshot_xmax(u.done)) FROM unread AS u)
             GROUP BY e.topic, e.only_to
         )
         SELECT array_agg(h.destination)
           FROM (SELECT destination FROM late
                 UNION SELECT destination FROM batched
                 UNION SELECT u.destination FROM unread AS u
                        WHERE EXISTS (SELECT FROM kind AS k
                                       WHERE k.topic LIKE ANY (u.of_server) AND k.topic LIKE ANY (u.of_endpoint)
                                         AND (k.only_to IS NULL OR k.only_to = u.number)
                                         AND k.last >= pg_snapshot_xmax(u.done))) AS h', number)
        INTO holders;
    RETURN coalesce(holders, '{}');
END $$;

-- Returns the destinations and endpoints that have not settled all events that they select of a
-- segment.
CREATE FUNCTION outbox.segment_held_by(number integer)
RETURNS name[]
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.servers_holding(number) || outbox_internal.endpoints_holding(number);
END;

-- Without any destination, events wait for the first one.
CREATE FUNCTION outbox_internal.segment_is_free(number integer)
RETURNS boolean
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN NOT EXISTS (SELECT FROM outbox.destination) OR outbox_internal.servers_holding(number) <> '{}' THEN false
                ELSE outbox_internal.endpoints_holding(number) = '{}' END;
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
COMMENT ON COLUMN outbox.segment.held_by IS 'destinations and endpoints that have not settled all selected events of it';

-- After the clock was set back, segments whose time seems to begin later begin it now. So none is kept
-- longer than it was meant.
CREATE FUNCTION outbox_internal.bound_ring()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.ring AS r SET since = clock_timestamp() WHERE r.since > clock_timestamp();
END;
