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
COMMENT ON FUNCTION outbox.oldest_after(pg_snapshot) IS
    'time of the oldest event that is not settled in a snapshot';

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
COMMENT ON FUNCTION outbox_internal.oldest_unread(name, xid8) IS 'time of the oldest event in the log that a destination waits for';

-- The relay of each destination that has one at work: a worker of the server, or outbox-relay.
CREATE VIEW outbox_internal.destination_relay AS
SELECT d.name AS destination, w.pid, w.state, w.state_since, w.delivered, w.failures, w.unsettled, w.held_keys, w.read_to,
       w.oldest_unsettled, w.settled_position, w.latency_p50, w.latency_p99, w.last_error, w.last_error_at, w.throttled,
       w.request_limit, w.suspects, w.lanes_down, w.round_trip_p50, w.round_trip_p99, w.client_queue, w.connects, w.disconnects,
       w.failing_since, w.next_attempt_at, w.latency_buckets, w.latency_sum
  FROM outbox.destination AS d
  JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
 WHERE NOT d.external
UNION ALL
SELECT d.name, NULL, s.state, s.state_since, s.delivered, s.failures, s.unsettled, s.held_keys, s.read_to,
       s.oldest_unsettled, s.settled_position, s.latency_p50, s.latency_p99, s.last_error, s.last_error_at, s.throttled,
       s.request_limit, s.suspects, s.lanes_down, s.round_trip_p50, s.round_trip_p99, s.client_queue, s.connects, s.disconnects,
       s.failing_since, s.next_attempt_at, s.latency_buckets, s.latency_sum
  FROM outbox.destination AS d
  JOIN outbox.cursor AS c ON c.destination = d.name
  JOIN outbox.relay_status AS s ON s.number = c.number AND s.relay = c.relay
  JOIN outbox.relay AS r ON r.id = c.relay AND r.leased_until > pg_catalog.clock_timestamp()
 WHERE d.external;
COMMENT ON VIEW outbox_internal.destination_relay IS 'relays at work, inside and outside the server; columns as in outbox.workers()';

CREATE VIEW outbox.status AS
SELECT d.name AS destination,
       CASE
         WHEN d.external AND NOT d.pull
         THEN coalesce(w.state, CASE WHEN p.id IS NOT NULL THEN 'starting' ELSE 'stopped' END)
         WHEN NOT d.pull
         THEN coalesce(w.state,
                       (SELECT a.state FROM outbox.absent_workers() AS a
                         WHERE a.kind = 'relay' AND a.object = d.server
                           AND a.waits_for IS DISTINCT FROM 'outbox.max_workers'
                           AND a.waits_for IS DISTINCT FROM 'max_worker_processes'),
                       'stopped')
         WHEN c.paused THEN 'paused'
         ELSE 'pull'
       END AS state,
       w.state_since,
       w.pid,
       -- A relay that just starts counts from zero until it has read its cursor.
       greatest(w.delivered, c.published - open.events, 0) AS published,
       greatest(w.failures, c.failures, 0) AS failures,
       -- Positions handed out since then. An upper bound, because it counts rolled-back events and
       -- those of other topics.
       greatest(last.position - greatest(w.settled_position, c.position, 0), 0) + open.events
           + (SELECT count(*) FROM outbox.delivery AS t
               WHERE t.destination = d.name AND t.state IN ('PENDING', 'RETRY') AND t.operation IS NULL) AS pending_at_most,
       coalesce(w.unsettled, open.leased) AS in_flight,
       coalesce(w.held_keys, 0) AS held_keys,
       clock_timestamp() - least(oldest.occurred_at, open.oldest, trouble.occurred_at) AS oldest_pending_age,
       w.latency_p50,
       w.latency_p99,
       w.last_error,
       w.last_error_at,
       greatest(w.settled_position, c.position) AS position,
       c.saved_at AS cursor_saved_at,
       coalesce(w.throttled, 0) AS throttled,
       w.request_limit,
       coalesce(w.suspects, 0) AS suspects,
       coalesce(w.lanes_down, 0) AS lanes_down,
       w.round_trip_p50,
       w.round_trip_p99,
       w.client_queue,
       w.connects,
       w.disconnects,
       CASE w.state WHEN 'misconfigured' THEN w.state_since ELSE w.failing_since END AS failing_since,
       w.next_attempt_at,
       w.latency_buckets,
       w.latency_sum
  FROM outbox.destination AS d
  LEFT JOIN outbox.cursor AS c ON c.destination = d.name
  LEFT JOIN outbox.relay AS p ON d.external AND p.id = c.relay AND p.leased_until > clock_timestamp()
  LEFT JOIN outbox_internal.destination_relay AS w ON w.destination = d.name
  CROSS JOIN LATERAL (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS position
                        FROM outbox.event_position) AS last
  -- Events that fetchers have not settled.
  CROSS JOIN LATERAL (SELECT coalesce(sum(cardinality(b.positions)), 0)::bigint AS events,
                             coalesce((SELECT sum(l.events) FROM outbox.lease AS l WHERE l.destination = d.name),
                                      0)::bigint AS leased,
                             min(b.oldest) AS oldest
                        FROM outbox.batch AS b
                       WHERE d.pull AND b.destination = d.name) AS open
  LEFT JOIN LATERAL (SELECT t.occurred_at
                       FROM outbox.delivery AS t
                      WHERE t.destination = d.name AND t.state IN ('PENDING', 'RETRY') AND t.operation IS NULL
                      ORDER BY t.position LIMIT 1) AS trouble ON true
  -- A relay that reads knows its oldest event; otherwise the log is searched. One that is idle has
  -- nothing, unless it sleeps by mistake.
  CROSS JOIN LATERAL (SELECT CASE
                               WHEN w.oldest_unsettled IS NOT NULL THEN w.oldest_unsettled
                               WHEN w.state = 'idle' THEN (outbox_internal.oldest_unread(d.name, w.read_to)).occurred_at
                               WHEN w.state IN ('delivering', 'throttled') THEN NULL
                               ELSE (outbox_internal.oldest_unread(d.name)).occurred_at
                             END AS occurred_at) AS oldest;
COMMENT ON VIEW outbox.status IS 'state of every destination: whether it is stuck, since when and why';
COMMENT ON COLUMN outbox.status.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.status.state IS 'starting, idle, delivering, throttled, backing off, paused, misconfigured or stopped; held back, failing or waiting: see outbox.absent_workers(); pull if events are fetched';
COMMENT ON COLUMN outbox.status.state_since IS 'since when it is in this state';
COMMENT ON COLUMN outbox.status.pid IS 'process of the relay';
COMMENT ON COLUMN outbox.status.published IS 'events confirmed since the destination was created; an event that is delivered again counts again';
COMMENT ON COLUMN outbox.status.failures IS 'failed attempts since the destination was created';
COMMENT ON COLUMN outbox.status.pending_at_most IS 'events not settled, dead letters and replays apart, as an upper bound';
COMMENT ON COLUMN outbox.status.in_flight IS 'events read from the log and not settled; for a pull destination, events under leases';
COMMENT ON COLUMN outbox.status.held_keys IS 'ordering keys whose events wait behind one in trouble; see outbox.blocked_key';
COMMENT ON COLUMN outbox.status.oldest_pending_age IS 'age of the oldest event not settled, dead letters and replays apart';
COMMENT ON COLUMN outbox.status.latency_p50 IS 'half of the recent events took at most this long from occurred_at to confirmed; without those that are delivered again';
COMMENT ON COLUMN outbox.status.latency_p99 IS '99 of 100 recent events took at most this long';
COMMENT ON COLUMN outbox.status.last_error IS 'error of the last failed attempt';
COMMENT ON COLUMN outbox.status.last_error_at IS 'time of last_error';
COMMENT ON COLUMN outbox.status.position IS 'highest settled position; for a pull destination, highest position in a batch or settled';
COMMENT ON COLUMN outbox.status.cursor_saved_at IS 'when the cursor was last saved';
COMMENT ON COLUMN outbox.status.throttled IS 'answers that asked for fewer requests, since the relay started';
COMMENT ON COLUMN outbox.status.request_limit IS
    'present limit of requests per second of the slowest topic or queue; null if there is none';
COMMENT ON COLUMN outbox.status.suspects IS 'events in memory whose last attempt failed or whose request hangs';
COMMENT ON COLUMN outbox.status.lanes_down IS 'topics or queues of the destination that fail and are probed';
COMMENT ON COLUMN outbox.status.round_trip_p50 IS
    'half of the recent requests were answered within this time; null, like the next columns, if no client library counts it';
COMMENT ON COLUMN outbox.status.round_trip_p99 IS '99 of 100 recent requests were answered within this time';
COMMENT ON COLUMN outbox.status.client_queue IS 'events that the client library has and the destination has not confirmed';
COMMENT ON COLUMN outbox.status.connects IS 'connections of the client library since the relay started';
COMMENT ON COLUMN outbox.status.disconnects IS 'of these, connections that have ended';
COMMENT ON COLUMN outbox.status.failing_since IS
    'since when it fails, or some of its topics or queues do, or it is misconfigured; a pause or another relay does not change it';
COMMENT ON COLUMN outbox.status.next_attempt_at IS 'time of the next attempt, if it fails; null while one is under way';
COMMENT ON COLUMN outbox.status.latency_buckets IS
    'since the relay started, events that took at most 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 and 300 seconds from occurred_at to confirmed, and all events; without those that are delivered again';
COMMENT ON COLUMN outbox.status.latency_sum IS 'sum of their latencies, in seconds';

-- Returns the number of events that a destination selects and has not settled, dead letters and
-- replays apart. Reads the log from the cursor on, so it takes long where much waits. What a relay has
-- settled since it last saved the cursor still counts.
-- Errors: 42704 there is no such destination.
CREATE FUNCTION outbox.backlog(destination name)
RETURNS bigint
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cursor outbox.cursor;
    events bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = destination) THEN
        RAISE EXCEPTION 'destination "%" does not exist', destination
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
    END IF;
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = $1;
    EXECUTE 'SELECT count(*) FROM outbox.event AS e
              WHERE (e.xid >= pg_snapshot_xmax($4) OR e.xid = ANY (ARRAY(SELECT pg_snapshot_xip($4)))) AND '
            || outbox_internal.held_condition()
        INTO events
       USING destination, outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics')),
             cursor.number, coalesce(cursor.done, '1:1:'), cursor.upto, cursor.position;
    RETURN events
           + (SELECT count(*) FROM outbox.delivery AS d
               WHERE d.destination = $1 AND d.state IN ('PENDING', 'RETRY') AND d.operation IS NULL)
           + (SELECT coalesce(sum(cardinality(b.positions)), 0) FROM outbox.batch AS b WHERE b.destination = $1);
END $$;
COMMENT ON FUNCTION outbox.backlog(name) IS 'exact number of events that a destination has not settled; reads them';

-- The address is shown without user, password and query, which may have secrets; options of user
-- mappings are not shown.
CREATE FUNCTION outbox_internal.list_destinations()
RETURNS TABLE (destination name, state text, url text, topics text, backlog_at_most bigint, dead_letters bigint, relay text, paused boolean,
               failing_since timestamptz, next_attempt_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.destination, s.state,
           regexp_replace(regexp_replace(outbox_internal.destination_option(s.destination, 'url'), '//[^/?]*@', '//'), '\?.*', ''),
           outbox_internal.destination_option(s.destination, 'topics'),
           s.pending_at_most,
           (SELECT count(*) FROM outbox.delivery AS t WHERE t.destination = s.destination AND t.state = 'DEAD'),
           CASE WHEN d.pull THEN 'none' WHEN d.external THEN 'external' ELSE 'internal' END,
           coalesce((SELECT c.paused FROM outbox.cursor AS c WHERE c.destination = s.destination), false),
           s.failing_since, s.next_attempt_at
      FROM outbox.status AS s
      JOIN outbox.destination AS d ON d.name = s.destination;
END;
COMMENT ON FUNCTION outbox_internal.list_destinations() IS 'rows of outbox.destinations';

CREATE VIEW outbox.destinations AS SELECT * FROM outbox_internal.list_destinations();
COMMENT ON VIEW outbox.destinations IS 'destinations: where events go, and which';
COMMENT ON COLUMN outbox.destinations.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.destinations.state IS 'as in outbox.status';
COMMENT ON COLUMN outbox.destinations.url IS 'address, without user, password and query';
COMMENT ON COLUMN outbox.destinations.topics IS 'topics that it takes';
COMMENT ON COLUMN outbox.destinations.backlog_at_most IS 'events not settled, as an upper bound; outbox.backlog() counts them';
COMMENT ON COLUMN outbox.destinations.dead_letters IS 'events that wait for a decision';
COMMENT ON COLUMN outbox.destinations.relay IS 'internal: a worker of the server; external: outbox-relay; none: events are fetched';
COMMENT ON COLUMN outbox.destinations.paused IS 'whether an operator has paused it';
COMMENT ON COLUMN outbox.destinations.failing_since IS 'as in outbox.status';
COMMENT ON COLUMN outbox.destinations.next_attempt_at IS 'as in outbox.status';
