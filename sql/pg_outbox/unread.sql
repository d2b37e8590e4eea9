-- Events that destinations wait for.

-- Returns occurred_at of the first event in the log that a cursor has not settled, or NULL. Uses
-- the index: one probe for later transactions, and one for each transaction that was in progress
-- then.
CREATE FUNCTION outbox.oldest_after(done pg_snapshot)
RETURNS timestamptz
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(first.occurred_at)
      FROM (
        (SELECT e.occurred_at FROM outbox.event AS e
          WHERE e.xid >= pg_snapshot_xmax(done)
          ORDER BY e.xid, e.position LIMIT 1)
        UNION ALL
        (SELECT late.occurred_at
           FROM pg_snapshot_xip(done) AS xip,
                LATERAL (SELECT e.occurred_at FROM outbox.event AS e
                          WHERE e.xid = xip ORDER BY e.position LIMIT 1) AS late)
      ) AS first;
END;

CREATE VIEW outbox_internal.destination_relay AS
SELECT d.name AS destination, w.pid, w.state, w.state_since, w.delivered, w.failures, w.unsettled, w.held_keys, w.read_to,
       w.oldest_unsettled, w.settled_position, w.latency_p50, w.latency_p99, w.last_error, w.last_error_at, w.throttled,
       w.request_limit, w.suspects, w.lanes_down, w.round_trip_p50, w.round_trip_p99, w.client_queue, w.connects, w.disconnects,
       w.failing_since, w.next_attempt_at, w.latency_buckets, w.latency_sum
  FROM outbox.destination AS d
  JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
 WHERE NOT d.external
UNION ALL
-- outbox_internal.check_figures() lets no infinite time in, but the owner of the table may write any.
SELECT d.name, NULL, s.state, CASE WHEN isfinite(s.state_since) THEN s.state_since END, s.delivered, s.failures, s.unsettled,
       s.held_keys, s.read_to, CASE WHEN isfinite(s.oldest_unsettled) THEN s.oldest_unsettled END, s.settled_position, s.latency_p50,
       s.latency_p99, s.last_error, CASE WHEN isfinite(s.last_error_at) THEN s.last_error_at END, s.throttled, s.request_limit,
       s.suspects, s.lanes_down, s.round_trip_p50, s.round_trip_p99, s.client_queue, s.connects, s.disconnects,
       CASE WHEN isfinite(s.failing_since) THEN s.failing_since END,
       CASE WHEN isfinite(s.next_attempt_at) THEN s.next_attempt_at END, s.latency_buckets, s.latency_sum
  FROM outbox.destination AS d
  JOIN outbox.cursor AS c ON c.destination = d.name
  JOIN outbox.relay_status AS s ON s.number = c.number AND s.relay = c.relay
  JOIN outbox.relay AS r ON r.id = c.relay AND r.leased_until > pg_catalog.clock_timestamp()
 WHERE d.external;
COMMENT ON VIEW outbox_internal.destination_relay IS 'relay of each destination that has one at work: a worker of the server, or outbox-relay; columns as in outbox.workers()';

-- Finds the first event in the log that a destination selects and has not settled. With `read_to`,
-- the xid below which its relay has looked for transactions, it looks at later transactions only.
-- Looks at 10,000 events: if it selects none of them, it returns the time of the last one with
-- selected = false. Behind that one there may be events that it selects, which are not older.
CREATE FUNCTION outbox_internal.oldest_unread(
    destination name,
    read_to     xid8 DEFAULT NULL,
    OUT occurred_at timestamptz,
    OUT selected    boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    cursor  outbox.cursor;
    topics  CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option($1, 'topics'));
    at_most CONSTANT integer := 10000;
    start   xid8;
    late    timestamptz;
BEGIN
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = $1;
    cursor.done := coalesce(cursor.done, '1:1:');
    start := greatest($2, pg_snapshot_xmax(cursor.done));
    -- Of transactions that were in progress in the snapshot, and then of those that began later.
    IF $2 IS NULL THEN
        SELECT min(first.occurred_at) INTO late
          FROM pg_snapshot_xip(cursor.done) AS xip
         CROSS JOIN LATERAL (
            SELECT n.occurred_at
              FROM (SELECT e.position, e.xid, e.occurred_at, e.topic, e.only_to
                      FROM outbox.event AS e WHERE e.xid = xip ORDER BY e.position LIMIT at_most) AS n
             WHERE n.topic LIKE ANY (topics) AND (n.only_to IS NULL OR n.only_to = cursor.number)
               AND (n.position <= cursor.position AND pg_visible_in_snapshot(n.xid, cursor.upto)) IS NOT TRUE
             ORDER BY n.position LIMIT 1) AS first;
    END IF;
    SELECT n.occurred_at INTO occurred_at
      FROM (SELECT e.position, e.xid, e.occurred_at, e.topic, e.only_to
              FROM outbox.event AS e WHERE e.xid >= start
             ORDER BY e.xid, e.position LIMIT at_most) AS n
     WHERE n.topic LIKE ANY (topics) AND (n.only_to IS NULL OR n.only_to = cursor.number)
       AND (n.position <= cursor.position AND pg_visible_in_snapshot(n.xid, cursor.upto)) IS NOT TRUE
     ORDER BY n.xid, n.position LIMIT 1;
    selected := FOUND OR late IS NOT NULL;
    IF NOT FOUND THEN
        SELECT e.occurred_at INTO occurred_at
          FROM outbox.event AS e WHERE e.xid >= start
         ORDER BY e.xid, e.position OFFSET at_most - 1 LIMIT 1;
    END IF;
    occurred_at := least(late, occurred_at);
END $$;

-- Finds the first event that each destination waits for, where its relay does not know it, because
-- it does not read or because there is none. With hundreds of destinations, a search of 10,000
-- events for each of them would take a second. So all look at the first events behind their
-- cursors, which is enough for most. Those that select none of these are searched together, because
-- their parts of the log overlap. A relay that reads and has nothing to deliver has no row.
-- `relay_state` is the state of the relay at that moment, on which it depends which events are
-- unread.
CREATE FUNCTION outbox_internal.oldest_unread_events(
    OUT destination name,
    OUT relay_state text,
    OUT occurred_at timestamptz,
    OUT selected    boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_nestloop = off -- statistics may be from a time with one destination
AS $$
#variable_conflict use_column
DECLARE
    at_most CONSTANT bigint := 10000;
    item    record;
    -- Destinations that are searched together.
    names   name[]        := '{}';
    states  text[]        := '{}';
    numbers integer[]     := '{}';
    topics  text[]        := '{}';
    starts  xid8[]        := '{}';
    known   timestamptz[] := '{}'; -- their oldest events of transactions that were in progress
    bounds  xid8[];
    size    bigint;
    later   name[]; -- those that are left for the next round
BEGIN
    -- A part of the log is a range of transactions: those from the cursor on, or one that was in progress.
    FOR item IN
        WITH topics AS MATERIALIZED (
            SELECT t.name, t.topics, outbox_internal.topic_patterns(t.topics) AS patterns FROM outbox_internal.destination_topics AS t
        ), search AS MATERIALIZED (
            SELECT d.name, c.number, c.upto, c.position, coalesce(c.done, '1:1:') AS done, t.topics, t.patterns, w.state,
                   CASE WHEN w.state = 'idle' THEN w.read_to END AS read_to
              FROM outbox.destination AS d
              LEFT JOIN topics AS t ON t.name = d.name
              LEFT JOIN outbox.cursor AS c ON c.destination = d.name
              LEFT JOIN outbox_internal.destination_relay AS w ON w.destination = d.name
             WHERE coalesce(w.state = 'idle' OR w.oldest_unsettled IS NULL AND w.state NOT IN ('delivering', 'throttled'), true)
        ), part AS MATERIALIZED (
            SELECT s.*, greatest(s.read_to, pg_snapshot_xmax(s.done)) AS low, '18446744073709551615'::xid8 AS high FROM search AS s
            UNION ALL
            SELECT s.*, xip, xip FROM search AS s CROSS JOIN pg_snapshot_xip(s.done) AS xip WHERE s.read_to IS NULL
        ), event AS MATERIALIZED (
            SELECT p.low, p.high, e.*
              FROM (SELECT DISTINCT part.low, part.high FROM part) AS p
             CROSS JOIN LATERAL (SELECT e.xid, e.position, e.occurred_at, e.topic, e.only_to
                                   FROM outbox.event AS e WHERE e.xid >= p.low AND e.xid <= p.high
                                  ORDER BY e.xid, e.position LIMIT 16) AS e
        ), look AS (
            SELECT p.name, p.low, p.low = p.high AS in_progress, count(e.xid) = 16 AS more,
                   (array_agg(e.occurred_at ORDER BY e.xid, e.position)
                    FILTER (WHERE e.topic LIKE ANY (p.patterns) AND (e.only_to IS NULL OR e.only_to = p.number)
                              AND (e.position <= p.position AND pg_visible_in_snapshot(e.xid, p.upto)) IS NOT TRUE))[1] AS occurred_at
              FROM part AS p
              LEFT JOIN event AS e ON e.low = p.low AND e.high = p.high
             GROUP BY p.name, p.low, p.high
        )
        SELECT s.name, s.state, s.number, s.topics, s.read_to, greatest(s.read_to, pg_snapshot_xmax(s.done)) AS start,
               l.occurred_at, l.unfinished, s.upto IS NOT NULL OR l.unfinished_transaction AS alone
          FROM search AS s
          JOIN (SELECT l.name, min(l.occurred_at) AS occurred_at, bool_or(l.more AND l.occurred_at IS NULL) AS unfinished,
                       bool_or(l.more AND l.occurred_at IS NULL AND l.in_progress) AS unfinished_transaction
                  FROM look AS l GROUP BY l.name) AS l ON l.name = s.name
    LOOP
        destination := item.name;
        relay_state := item.state;
        IF NOT item.unfinished THEN
            occurred_at := item.occurred_at;
            selected := item.occurred_at IS NOT NULL;
            RETURN NEXT;
        ELSIF item.alone THEN
            SELECT o.occurred_at, o.selected INTO occurred_at, selected
              FROM outbox_internal.oldest_unread(item.name, item.read_to) AS o;
            RETURN NEXT;
        ELSE
            names := names || item.name;
            states := states || item.state;
            numbers := numbers || item.number;
            topics := topics || item.topics;
            starts := starts || item.start;
            known := known || item.occurred_at;
        END IF;
    END LOOP;

    -- A round reads twice as many events as a destination looks at. That is enough for all that start
    -- in the first half; the next round is for those that start behind it.
    WHILE names <> '{}' LOOP
        bounds := ARRAY(SELECT DISTINCT start FROM unnest(starts) AS start ORDER BY start);
        size := CASE WHEN cardinality(bounds) = 1 THEN at_most ELSE 2 * at_most END;
        later := '{}';
        FOR item IN
            -- `place` is the number of bounds up to a transaction. An event counts for destinations of its
            -- place and of lower ones.
            WITH search AS MATERIALIZED (
                SELECT s.name, s.state, s.number, s.known, outbox_internal.topic_patterns(s.topics) AS patterns,
                       width_bucket(s.start, bounds) AS place
                  FROM unnest(names, states, numbers, topics, starts, known) AS s(name, state, number, topics, start, known)
            ), event AS MATERIALIZED (
                SELECT row_number() OVER (ORDER BY e.xid, e.position) AS n, e.occurred_at, e.topic,
                       coalesce(e.only_to, -1) AS only_to, width_bucket(e.xid, bounds) AS place
                  FROM (SELECT e.xid, e.position, e.occurred_at, e.topic, e.only_to
                          FROM outbox.event AS e WHERE e.xid >= bounds[1]
                         ORDER BY e.xid, e.position LIMIT size) AS e
            ), kind AS MATERIALIZED (
                SELECT e.place, e.topic, e.only_to, min(e.n) AS n FROM event AS e GROUP BY e.place, e.topic, e.only_to
            ), opening AS MATERIALIZED (
                SELECT s.place, min(k.n) AS n
                  FROM (SELECT DISTINCT search.place FROM search) AS s
                  JOIN (SELECT kind.place, min(kind.n) AS n FROM kind GROUP BY kind.place) AS k ON k.place >= s.place
                 GROUP BY s.place
            ), hit AS MATERIALIZED (
                SELECT s.name, min(k.n) AS n
                  FROM search AS s
                  JOIN (SELECT DISTINCT kind.topic, kind.only_to FROM kind) AS t
                    ON t.topic LIKE ANY (s.patterns) AND (t.only_to = -1 OR t.only_to = s.number)
                  JOIN kind AS k ON k.topic = t.topic AND k.only_to = t.only_to AND k.place >= s.place
                 GROUP BY s.name
            )
            SELECT s.name, s.state, s.known, coalesce(h.n < o.n + at_most, false) AS hit, e.occurred_at,
                   o.n <= at_most OR (SELECT count(*) FROM event) < size AS finished
              FROM search AS s
              LEFT JOIN opening AS o ON o.place = s.place
              LEFT JOIN hit AS h ON h.name = s.name
              LEFT JOIN event AS e ON e.n = CASE WHEN h.n < o.n + at_most THEN h.n ELSE o.n + at_most - 1 END
        LOOP
            IF item.finished THEN
                destination := item.name;
                relay_state := item.state;
                occurred_at := least(item.known, item.occurred_at);
                selected := item.hit OR item.known IS NOT NULL;
                RETURN NEXT;
            ELSE
                later := later || item.name;
            END IF;
        END LOOP;
        SELECT array_agg(s.name), array_agg(s.state), array_agg(s.number), array_agg(s.topics), array_agg(s.start), array_agg(s.known)
          INTO names, states, numbers, topics, starts, known
          FROM unnest(names, states, numbers, topics, starts, known) AS s(name, state, number, topics, start, known)
         WHERE s.name = ANY (later);
    END LOOP;
END $$;
