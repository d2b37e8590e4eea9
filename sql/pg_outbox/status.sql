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

-- The relay of each destination that has one at work: a worker of the server, or outbox-relay.
CREATE VIEW outbox_internal.destination_relay AS
SELECT d.name AS destination, w.pid, w.state, w.state_since, w.delivered, w.failures, w.unsettled, w.held_keys, w.read_to,
       w.oldest_unsettled, w.settled_position, w.latency_p50, w.latency_p99, w.last_error, w.last_error_at, w.throttled,
       w.request_limit, w.suspects, w.lanes_down, w.round_trip_p50, w.round_trip_p99, w.client_queue, w.connects, w.disconnects
  FROM outbox.destination AS d
  JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
 WHERE NOT d.external
UNION ALL
SELECT d.name, NULL, s.state, s.state_since, s.delivered, s.failures, s.unsettled, s.held_keys, s.read_to,
       s.oldest_unsettled, s.settled_position, s.latency_p50, s.latency_p99, s.last_error, s.last_error_at, s.throttled,
       s.request_limit, s.suspects, s.lanes_down, s.round_trip_p50, s.round_trip_p99, s.client_queue, s.connects, s.disconnects
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
                           AND a.waits_for IS DISTINCT FROM 'outbox.max_workers, max_worker_processes'),
                       'stopped')
         WHEN c.paused THEN 'paused'
         ELSE 'pull'
       END AS state,
       w.state_since,
       w.pid,
       coalesce(w.delivered, 0) AS published,
       coalesce(w.failures, 0) AS failures,
       -- Positions handed out since then. An upper bound, because it counts rolled-back events and
       -- those of other topics.
       greatest(last.position - greatest(w.settled_position, c.position, 0), 0) + open.events AS pending_at_most,
       coalesce(w.unsettled, open.leased) AS in_flight,
       coalesce(w.held_keys, 0) AS held_keys,
       clock_timestamp() - least(oldest.occurred_at, open.oldest) AS oldest_pending_age,
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
       w.disconnects
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
  -- A relay knows its oldest event; otherwise the log is searched.
  CROSS JOIN LATERAL (SELECT CASE
                               WHEN w.pid IS NULL
                               THEN outbox.oldest_after(coalesce(c.done, '1:1:'))
                               ELSE w.oldest_unsettled
                             END AS occurred_at) AS oldest;
COMMENT ON VIEW outbox.status IS 'state of every destination: whether it is stuck, since when and why';
COMMENT ON COLUMN outbox.status.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.status.state IS 'starting, idle, delivering, throttled, backing off, paused, misconfigured or stopped; held back, failing or waiting: see outbox.absent_workers(); pull if events are fetched';
COMMENT ON COLUMN outbox.status.state_since IS 'since when it is in this state';
COMMENT ON COLUMN outbox.status.pid IS 'process of the relay';
COMMENT ON COLUMN outbox.status.published IS 'events confirmed since the relay started';
COMMENT ON COLUMN outbox.status.failures IS 'failed attempts since the relay started';
COMMENT ON COLUMN outbox.status.pending_at_most IS 'events not settled, as an upper bound';
COMMENT ON COLUMN outbox.status.in_flight IS 'events read from the log and not settled; for a pull destination, events under leases';
COMMENT ON COLUMN outbox.status.held_keys IS 'ordering keys whose events wait behind one in trouble; see outbox.blocked_key';
COMMENT ON COLUMN outbox.status.oldest_pending_age IS 'age of the oldest event not settled';
COMMENT ON COLUMN outbox.status.latency_p50 IS 'half of the recent events took at most this long from occurred_at to confirmed';
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
