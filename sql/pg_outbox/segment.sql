-- Where events go: the servers of the wrapper; without any, outbox.default_destination.
CREATE VIEW outbox.destination AS
SELECT s.oid AS server, s.srvname AS name, coalesce('url=pull:' = ANY (s.srvoptions), false) AS pull
  FROM pg_catalog.pg_foreign_server AS s
  JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
 WHERE f.fdwname = 'pg_outbox'
UNION ALL
SELECT 0, 'default', pg_catalog.current_setting('outbox.default_destination', true) = 'pull:'
 WHERE pg_catalog.current_setting('outbox.default_destination', true) <> ''
   AND NOT EXISTS (SELECT
                     FROM pg_catalog.pg_foreign_server AS s
                     JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
                    WHERE f.fdwname = 'pg_outbox');
COMMENT ON VIEW outbox.destination IS 'where events go';
COMMENT ON COLUMN outbox.destination.server IS 'the foreign server; 0: outbox.default_destination';
COMMENT ON COLUMN outbox.destination.name IS 'its name; default: outbox.default_destination';
COMMENT ON COLUMN outbox.destination.pull IS 'it has no relay: events are taken with outbox.fetch()';

-- Which events of the log a destination holds, as a condition over e: those that it selects, has not settled, and
-- has no copy of in outbox.delivery. $1 is its name, $2 its topics as patterns, $3 its number; it
-- has settled $4, and of $5 what lies up to $6.
CREATE FUNCTION outbox_internal.held_condition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'e.topic LIKE ANY ($2) AND (e.only_to IS NULL OR e.only_to = $3) AND NOT pg_visible_in_snapshot(e.xid, $4)
            AND (e.position <= $6 AND pg_visible_in_snapshot(e.xid, $5)) IS NOT TRUE
            AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = $1 AND d.position = e.position)';
END;
COMMENT ON FUNCTION outbox_internal.held_condition() IS 'which events of the log a destination holds';

-- The destinations that have not settled all of a segment, by what they have saved. Without a cursor
-- that speaks of this cluster's transactions that is all of it. An event that a destination does not select is
-- settled for it, so one producer cannot fill the log for destinations that do not ask for its topics.
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
        IF holds THEN  -- something that is not settled is there; only now it is read what that is
            EXECUTE format('SELECT EXISTS (SELECT FROM outbox.event_%s AS e WHERE %s)', number, outbox_internal.held_condition())
                INTO holds
               USING destination.name, outbox_internal.topic_patterns(outbox_internal.destination_option(destination.name, 'topics')),
                     destination.number, destination.done, destination.upto, destination.position;
        END IF;
        IF NOT holds AND destination.pull THEN  -- read, but not settled: see pull.sql
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
COMMENT ON FUNCTION outbox_internal.segment_is_free(integer) IS 'no destination needs the events of a segment';

CREATE VIEW outbox.segment AS
SELECT r.number,
       r.current,
       r.since,
       pg_catalog.pg_total_relation_size(pg_catalog.format('outbox.event_%s', r.number)::regclass) AS size,
       outbox.segment_held_by(r.number) AS held_by
  FROM outbox.ring AS r;
COMMENT ON VIEW outbox.segment IS 'the log: where it grows, how large it is, and who keeps it from being emptied';
COMMENT ON COLUMN outbox.segment.number IS 'segment event_<number>';
COMMENT ON COLUMN outbox.segment.current IS 'enqueues go to this one';
COMMENT ON COLUMN outbox.segment.since IS 'since when they do, or do not any more';
COMMENT ON COLUMN outbox.segment.size IS 'bytes, with index and values stored apart';
COMMENT ON COLUMN outbox.segment.held_by IS 'destinations that have not settled all that they select of it';
