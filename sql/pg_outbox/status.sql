-- Returns what this database is a copy of, for destinations that relays outside the server serve, or for all
-- others; NULL if these are delivered. Views call it, for roles that may read the views and not the tables.
CREATE FUNCTION outbox_internal.refused_as_copy(external boolean)
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN NOT external THEN outbox_internal.copy_of(outbox_internal.own_identity(), external)
                WHEN count(*) = 0 THEN outbox_internal.copy_of(nullif(outbox_internal.own_identity(), ''), external)
                WHEN count(r.copy) = count(*) THEN min(r.copy) END
      FROM (SELECT outbox_internal.copy_of(coalesce(r.identity, ''), external) AS copy
              FROM outbox.relay AS r WHERE external AND r.leased_until > clock_timestamp()) AS r;
END;

-- The state of destinations, in steps: that of the relay, figures of batches and events in trouble, and the
-- age of the oldest event, for which the log is searched for all destinations at once.
CREATE VIEW outbox_internal.destination_state AS
SELECT d.name AS destination,
       CASE
         WHEN pg_is_in_recovery() THEN 'standby'
         WHEN copy.original IS NOT NULL THEN 'paused'
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
       coalesce(w.held_keys, 0) AS held_keys,
       w.latency_p50,
       w.latency_p99,
       coalesce(copy.original, w.last_error) AS last_error,
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
       w.latency_sum,
       w.state AS relay_state,
       w.oldest_unsettled,
       w.unsettled,
       w.delivered AS relay_delivered,
       w.failures AS relay_failures,
       w.settled_position,
       c.published AS saved_published,
       c.failures AS saved_failures,
       c.position AS saved_position,
       d.pull,
       copy.original AS copy_of
  FROM outbox.destination AS d
  -- Asked once, not for each destination.
  JOIN (SELECT x.external, outbox_internal.refused_as_copy(x.external) AS original FROM (VALUES (false), (true)) AS x(external) OFFSET 0) AS copy
    ON copy.external = (d.external AND NOT d.pull)
  LEFT JOIN outbox.cursor AS c ON c.destination = d.name
  LEFT JOIN outbox.relay AS p ON d.external AND p.id = c.relay AND p.leased_until > clock_timestamp()
  LEFT JOIN outbox_internal.destination_relay AS w ON w.destination = d.name;
COMMENT ON VIEW outbox_internal.destination_state IS 'state of destinations and of their relays';

-- Batches and events in trouble are counted once for all destinations: while one destination has
-- most of them, the planner would otherwise make a plan that reads all of them for each
-- destination.
CREATE VIEW outbox_internal.destination_figures AS
WITH open AS MATERIALIZED (
    SELECT b.destination, sum(cardinality(b.positions))::bigint AS events, min(b.oldest) AS oldest,
           sum(b.taken + cardinality(b.retries)) FILTER (WHERE b.locked_until > clock_timestamp()) AS leased
      FROM outbox.batch AS b
     GROUP BY b.destination
), waiting AS MATERIALIZED (
    SELECT t.destination, count(*) AS events
      FROM outbox.delivery AS t
     WHERE t.state IN ('PENDING', 'RETRY') AND t.operation IS NULL
     GROUP BY t.destination
)
SELECT s.*,
       -- A relay that just starts counts from zero until it has read its cursor.
       greatest(s.relay_delivered, s.saved_published - coalesce(open.events, 0), 0) AS published,
       greatest(s.relay_failures, s.saved_failures, 0) AS failures,
       -- Positions handed out since then. An upper bound, because it counts rolled-back events and
       -- those of other topics.
       greatest(last.position - seen.position - gap.size, 0) + coalesce(open.events, 0)
           + coalesce(waiting.events, 0) AS pending_at_most,
       coalesce(s.unsettled, open.leased, 0)::bigint AS in_flight,
       least(open.oldest, trouble.occurred_at) AS oldest_outside_log
  FROM outbox_internal.destination_state AS s
  CROSS JOIN LATERAL (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS position
                        FROM outbox.event_position) AS last
 CROSS JOIN LATERAL (SELECT greatest(s.settled_position, s.saved_position, 0) AS position) AS seen
 CROSS JOIN LATERAL (SELECT coalesce(sum(g.size), 0)::bigint AS size
                       FROM outbox.position_gap AS g WHERE g.after >= seen.position AND g.after < last.position) AS gap
  -- Events that fetchers have not settled.
  LEFT JOIN open ON s.pull AND open.destination = s.destination
  LEFT JOIN waiting ON waiting.destination = s.destination
  LEFT JOIN LATERAL (SELECT t.occurred_at
                       FROM outbox.delivery AS t
                      WHERE waiting.events > 0 AND t.destination = s.destination AND t.state IN ('PENDING', 'RETRY') AND t.operation IS NULL
                      ORDER BY t.position LIMIT 1) AS trouble ON true;
COMMENT ON VIEW outbox_internal.destination_figures IS 'what outbox.status says of destinations without a search in the log';
COMMENT ON COLUMN outbox_internal.destination_figures.oldest_outside_log IS 'the oldest event in a batch, or in outbox.delivery and not a dead letter';

CREATE VIEW outbox_internal.destination_status AS
SELECT s.*,
       -- A relay that reads knows its oldest event; otherwise the log is searched. An idle relay
       -- has nothing to read, unless it sleeps by mistake.
       clock_timestamp() - least(CASE
                                   WHEN s.oldest_unsettled IS NOT NULL THEN s.oldest_unsettled
                                   WHEN s.relay_state IN ('delivering', 'throttled') THEN NULL
                                   ELSE unread.occurred_at
                                 END, s.oldest_outside_log) AS oldest_pending_age,
       unread.occurred_at AS unread_since,
       unread.selected AS unread_selected
  FROM outbox_internal.destination_figures AS s
  LEFT JOIN outbox_internal.oldest_unread_events() AS unread
    ON unread.destination = s.destination AND unread.relay_state IS NOT DISTINCT FROM s.relay_state;
COMMENT ON VIEW outbox_internal.destination_status IS 'outbox.status, with the result of the search for the oldest event in the log';
COMMENT ON COLUMN outbox_internal.destination_status.unread_since IS 'occurred_at of outbox_internal.oldest_unread_events()';
COMMENT ON COLUMN outbox_internal.destination_status.unread_selected IS 'selected of outbox_internal.oldest_unread_events()';

CREATE VIEW outbox.status AS
SELECT s.destination, s.state, s.state_since, s.pid, s.published, s.failures, s.pending_at_most, s.in_flight,
       s.held_keys, s.oldest_pending_age, s.latency_p50, s.latency_p99, outbox_internal.for_client(s.last_error) AS last_error,
       s.last_error_at, s.position,
       s.cursor_saved_at, s.throttled, s.request_limit, s.suspects, s.lanes_down, s.round_trip_p50, s.round_trip_p99,
       s.client_queue, s.connects, s.disconnects, s.failing_since, s.next_attempt_at, s.latency_buckets, s.latency_sum
  FROM outbox_internal.destination_status AS s;
COMMENT ON VIEW outbox.status IS 'state of every destination: whether it is stuck, since when and why';
COMMENT ON COLUMN outbox.status.destination IS 'name of the foreign server, or default for outbox.default_destination';
COMMENT ON COLUMN outbox.status.state IS 'starting, idle, delivering, throttled, backing off, paused, misconfigured or stopped; standby if the server is one; held back, failing or waiting: see outbox.absent_workers(); pull if events are fetched';
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
COMMENT ON COLUMN outbox.status.next_attempt_at IS 'time of the next attempt, if it fails or has asked for a pause; null while one is under way';
COMMENT ON COLUMN outbox.status.latency_buckets IS
    'since the relay started, events that took at most 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 and 300 seconds from occurred_at to confirmed, and all events; without those that are delivered again';
COMMENT ON COLUMN outbox.status.latency_sum IS 'sum of their latencies, in seconds';

-- Returns the exact number of events that a destination selects and has not settled, dead letters
-- and replays apart. An endpoint that is live has none outside its relay. Reads the log from the
-- cursor on, so it takes long where much waits. What a relay has settled since it last saved the
-- cursor still counts.
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
    PERFORM outbox_internal.check_exists(destination);
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = $1;
    IF NOT FOUND AND outbox_internal.is_endpoint(destination) THEN
        RETURN (SELECT count(*) FROM outbox.delivery AS d
                 WHERE d.destination = $1 AND d.state IN ('PENDING', 'RETRY') AND d.operation IS NULL); -- it is live
    END IF;
    EXECUTE 'SELECT count(*) FROM outbox.event AS e
              WHERE (e.xid >= pg_snapshot_xmax($4) OR e.xid = ANY (ARRAY(SELECT pg_snapshot_xip($4)))) AND '
            || outbox_internal.held_condition() || ' AND e.topic LIKE ANY ($7)'
        INTO events
       USING destination, outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics')),
             outbox_internal.destination_number(destination), coalesce(cursor.done, '1:1:'), cursor.upto, cursor.position,
             outbox_internal.endpoint_patterns(destination);
    RETURN events
           + (SELECT count(*) FROM outbox.delivery AS d
               WHERE d.destination = $1 AND d.state IN ('PENDING', 'RETRY') AND d.operation IS NULL)
           + (SELECT coalesce(sum(cardinality(b.positions)), 0) FROM outbox.batch AS b WHERE b.destination = $1);
END $$;

-- The address is shown without user, password and query, which may have secrets; options of user
-- mappings are not shown.
CREATE FUNCTION outbox_internal.list_destinations()
RETURNS TABLE (destination name, state text, url text, topics text, backlog_at_most bigint, dead_letters bigint, relay text, paused boolean,
               failing_since timestamptz, next_attempt_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.destination, s.state,
           regexp_replace(regexp_replace(outbox_internal.destination_option(s.destination, 'url'), '//[^/?]*@', '//'), E'\\?.*', ''),
           outbox_internal.destination_option(s.destination, 'topics'),
           s.pending_at_most,
           coalesce(dead.letters, 0),
           CASE WHEN d.pull THEN 'none' WHEN d.external THEN 'external' ELSE 'internal' END,
           coalesce((SELECT c.paused FROM outbox.cursor AS c WHERE c.destination = s.destination), false),
           s.failing_since, s.next_attempt_at
      FROM outbox_internal.destination_figures AS s
      JOIN outbox.destination AS d ON d.name = s.destination
      LEFT JOIN (SELECT t.destination, sum(t.letters)::bigint AS letters
                   FROM (SELECT outbox_internal.server_of(g.destination) AS destination, g.letters
                           FROM (SELECT l.destination, count(*) AS letters FROM outbox.delivery AS l WHERE l.state = 'DEAD'
                                  GROUP BY l.destination) AS g) AS t
                  GROUP BY t.destination) AS dead
        ON dead.destination = s.destination;
END;
COMMENT ON FUNCTION outbox_internal.list_destinations() IS 'rows of outbox.destinations';

CREATE VIEW outbox.destinations AS SELECT * FROM outbox_internal.list_destinations();
COMMENT ON VIEW outbox.destinations IS 'destinations: where events go, and which events';
COMMENT ON COLUMN outbox.destinations.destination IS 'name of the foreign server, or default for outbox.default_destination';
COMMENT ON COLUMN outbox.destinations.state IS 'as in outbox.status';
COMMENT ON COLUMN outbox.destinations.url IS 'address, without user, password and query';
COMMENT ON COLUMN outbox.destinations.topics IS 'topics that it takes';
COMMENT ON COLUMN outbox.destinations.backlog_at_most IS 'events not settled, as an upper bound; outbox.backlog() counts them';
COMMENT ON COLUMN outbox.destinations.dead_letters IS 'events that wait for a decision, those of its endpoints included';
COMMENT ON COLUMN outbox.destinations.relay IS 'internal for a worker of the server, external for outbox-relay, none if events are fetched';
COMMENT ON COLUMN outbox.destinations.paused IS 'whether an operator has paused it';
COMMENT ON COLUMN outbox.destinations.failing_since IS 'as in outbox.status';
COMMENT ON COLUMN outbox.destinations.next_attempt_at IS 'as in outbox.status';
