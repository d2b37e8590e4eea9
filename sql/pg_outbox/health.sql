-- Returns what is wrong, since when, why and what to do; no rows if all is well. Then every
-- committed event has reached its destinations, or is younger than max_age.
--
--   failing    events do not arrive, and will not until an operator acts
--   degraded   there is a problem that may pass by itself
CREATE FUNCTION outbox.health(
    max_age interval DEFAULT '1 minute',
    OUT severity   text,
    OUT object     text,
    OUT what       text,
    OUT since      timestamptz,
    OUT why        text,
    OUT what_to_do text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
BEGIN ATOMIC
    WITH status AS MATERIALIZED (
        SELECT s.*, format('destination "%s"', s.destination) AS object, d.server, d.external, c.paused, c.detached_at,
               clock_timestamp() - s.oldest_pending_age AS pending_since, s.oldest_pending_age > coalesce(max_age, interval '1 minute') AS late,
               clock_timestamp() - coalesce(max_age, interval '1 minute') AS late_before,
               date_trunc('second', s.oldest_pending_age) AS age
          FROM outbox_internal.destination_status AS s
          JOIN outbox.destination AS d ON d.name = s.destination
          LEFT JOIN outbox.cursor AS c ON c.destination = s.destination
    ), endpoint AS MATERIALIZED (
        SELECT e.* FROM outbox.endpoint_status AS e WHERE EXISTS (SELECT FROM outbox.endpoint)
    ), moved AS MATERIALIZED (
        SELECT m.* FROM outbox_internal.waits_for_shards() AS m
    ), stalled AS MATERIALIZED (
        SELECT s.*, date_trunc('second', clock_timestamp() - s.unread_since) AS waited
          FROM status AS s
         WHERE s.state = 'idle' AND s.late AND s.unread_selected AND s.unread_since < s.late_before
           AND s.destination NOT IN (SELECT m.destination FROM moved AS m)
    ), absent AS MATERIALIZED (
        SELECT a.kind, a.object AS id, a.account, a.state, a.waits_for, a.crashes, a.deaths, a.since, a.next_try,
               format('%s "%s"', CASE a.kind WHEN 'relay' THEN 'destination' WHEN 'processor' THEN 'consumer' ELSE a.kind END,
                      a.name) AS object,
               a.waits_for IN ('outbox.max_workers', 'max_worker_processes') AS no_room,
               format('%s is %s, and all are used', a.waits_for, current_setting(a.waits_for)) AS why_no_room,
               CASE a.waits_for
                 WHEN 'max_worker_processes'
                 THEN format('Set max_worker_processes to %s or more, and restart the server.', need.workers)
                 ELSE format('Increase %s, and restart the server.', a.waits_for)
               END AS how_to_make_room
          FROM outbox.absent_workers() AS a
         CROSS JOIN (SELECT outbox_internal.workers_needed(ARRAY(SELECT d.server FROM outbox.destination AS d
                                                                  WHERE NOT d.pull AND NOT d.external)) AS workers) AS need
    ), finding(severity, object, what, since, why, what_to_do) AS (
        SELECT 'failing', 'server', 'not preloaded', pg_postmaster_start_time(),
               'pg_outbox is not preloaded, so nothing is delivered',
               'Add pg_outbox to shared_preload_libraries and restart the server.'
         WHERE NOT outbox_internal.is_preloaded()
        UNION ALL
        SELECT 'degraded', 'server', 'no workers', pg_postmaster_start_time(), 'outbox.max_workers is 0, so the server delivers nothing',
               'Increase outbox.max_workers and restart the server, unless that is meant.'
         WHERE current_setting('outbox.max_workers', true) = '0'
        UNION ALL
        SELECT DISTINCT 'failing', 'server', 'copy', NULL::timestamptz,
               CASE WHEN pg_is_in_recovery() THEN 'nothing would be delivered after a promotion: ' ELSE 'destinations are paused: ' END || s.copy_of,
               CASE WHEN outbox_internal.subscription_to_log() IS NOT NULL THEN 'Use DROP SUBSCRIPTION; then outbox.claim_identity() lets it deliver.'
                    ELSE 'If it is to deliver, and the original does not any more, call outbox.claim_identity(). If it is no copy, give the server, or outbox-relay, its identity.' END
          FROM status AS s
         WHERE s.copy_of IS NOT NULL
        UNION ALL
        SELECT 'failing', 'server', 'misconfigured', w.state_since, format('nothing is delivered: %s', w.last_error),
               'Correct that; the keeper looks again by itself.'
          FROM outbox.workers() AS w
         WHERE w.kind = 'keeper' AND w.state = 'misconfigured'
        UNION ALL
        SELECT 'failing', 'server', 'no replica identity', NULL, p.why, p.what_to_do
          FROM outbox_internal.stopped_by_publications() AS p
        UNION ALL
        SELECT 'failing', s.object, 'no relay', coalesce(s.pending_since, a.since),
               'no relay runs for it' || coalesce('; ' || a.why_no_room, ''),
               coalesce(a.how_to_make_room, 'See the server log, which says why.')
          FROM status AS s
          LEFT JOIN absent AS a ON a.kind = 'relay' AND a.id = s.server AND a.no_room
         WHERE s.state = 'stopped' AND NOT s.external AND outbox_internal.is_preloaded()
           AND current_setting('outbox.max_workers', true) IS DISTINCT FROM '0'
        UNION ALL
        SELECT 'failing', s.object, 'no relay', s.pending_since, 'it is served by no outbox-relay',
               'Start an outbox-relay, or see its log.'
          FROM status AS s
         WHERE s.state = 'stopped' AND s.external
        UNION ALL
        SELECT 'failing', a.object, 'held back', a.since,
               format('its %s has crashed %s times in a row, and the server with it; it is started again at %s',
                      a.kind, a.crashes, a.next_try::timestamptz(0)),
               'See the server log or a core dump. A restart of the server starts it at once.'
          FROM absent AS a
         WHERE a.state = 'held back'
        UNION ALL
        SELECT 'degraded', a.object, 'ends early', a.since,
               format('its %s has ended early %s times in a row, and is started again at %s at the latest',
                      a.kind, a.deaths, a.next_try::timestamptz(0)),
               'See the server log, which says why it ends.'
          FROM absent AS a
         WHERE a.state = 'failing'
        UNION ALL
        -- Relays are reported above.
        SELECT CASE a.kind WHEN 'backfill' THEN 'degraded' ELSE 'failing' END, a.object, 'cannot start', a.since,
               format('its %s has no room: %s', a.kind, a.why_no_room), a.how_to_make_room
          FROM absent AS a
         WHERE a.state = 'waiting' AND a.no_room AND a.kind <> 'relay'
        UNION ALL
        -- One row for all workers of a role or database that has as many as it may have. Without its keeper
        -- nothing is served.
        SELECT CASE a.kind WHEN 'keeper' THEN 'failing' ELSE 'degraded' END, 'server', 'no room for workers', min(a.since),
               format('%s workers wait for room: %s, the first for %s', a.kind, count(*),
                      (array_agg(a.object ORDER BY a.since, a.object))[1]),
               CASE a.waits_for
                 WHEN 'outbox.max_workers_per_role'
                 THEN format('Role %s has as many as outbox.max_workers_per_role (%s) allows; increase it, or end others.',
                             a.account::regrole, current_setting(a.waits_for))
                 ELSE format('Increase %s, or end others.', a.waits_for)
               END
          FROM absent AS a
         WHERE a.state = 'waiting' AND NOT a.no_room
         GROUP BY a.kind, a.waits_for, a.account
        UNION ALL
        SELECT 'failing', s.object, 'misconfigured', s.state_since, format('it cannot be used as configured: %s', s.last_error),
               'Correct its options or credentials, with ALTER SERVER for example.'
          FROM status AS s
         WHERE s.state = 'misconfigured'
        UNION ALL
        -- It has some time to recover.
        SELECT CASE WHEN s.failing_since < s.late_before THEN 'failing' ELSE 'degraded' END,
               s.object, 'fails', s.failing_since,
               s.last_error || coalesce('; the next attempt is at ' || s.next_attempt_at::timestamptz(0), ''),
               'Check the destination. Its events wait, and are tried again by themselves; outbox.resume() tries at once.'
          FROM status AS s
         WHERE s.state = 'backing off'
        UNION ALL
        SELECT 'degraded', s.object, 'partly fails', s.failing_since,
               format('%s of its topics or queues fail, the others work: %s', s.lanes_down, s.last_error),
               'Check that topic or queue. Its events wait, and are tried again by themselves.'
          FROM status AS s
         WHERE s.state <> 'backing off' AND s.lanes_down > 0
        UNION ALL
        SELECT 'degraded', s.object, 'endpoints left out', s.failing_since, s.last_error,
               'Delete endpoints, or move some to another destination. Those that are left out miss events.'
          FROM status AS s
         WHERE s.state <> 'backing off' AND s.lanes_down = 0 AND s.failing_since IS NOT NULL
           AND outbox_internal.has_endpoints(s.destination)
        UNION ALL
        SELECT 'failing', s.object, 'stalled', s.pending_since,
               format('its relay sleeps although events wait, the oldest for %s', s.waited),
               CASE WHEN s.external THEN 'Restart the outbox-relay that serves it, and report it as a fault of pg_outbox.'
                    ELSE format('SELECT pg_terminate_backend(%s) starts its relay anew; report it as a fault of pg_outbox.', s.pid) END
          FROM stalled AS s
        UNION ALL
        SELECT CASE WHEN s.late THEN 'failing' ELSE 'degraded' END, s.object, 'waits for shard', m.since,
               format('shard %s has moved here, and node %s has not delivered all events from before', m.shard, m.node) || coalesce('; ' || m.trouble, ''),
               format('See outbox.health() on that node. SELECT outbox.skip_shard(%s) delivers without waiting, perhaps in another order.', m.shard)
          FROM status AS s
          JOIN moved AS m ON m.destination = s.destination
        UNION ALL
        SELECT 'degraded', s.object, 'behind', s.pending_since,
               format('its oldest event has waited for %s%s%s', s.age,
                      CASE WHEN s.state = 'throttled' THEN format('; it asks for fewer requests: %s', s.last_error) ELSE '' END,
                      '; the next attempt is at ' || s.next_attempt_at::timestamptz(0)),
               CASE WHEN s.next_attempt_at IS NULL THEN 'See docs/destinations.md for how to make it faster, unless it catches up.'
                    ELSE 'It has asked for this pause; outbox.resume() ends it.' END
          FROM status AS s
         WHERE s.late
           AND (s.state IN ('starting', 'delivering', 'throttled')
                OR s.state = 'idle'  -- what it knows of waits in outbox.delivery
                   AND s.held_keys = 0
                   AND s.destination NOT IN (SELECT m.destination FROM moved AS m)
                   AND NOT EXISTS (SELECT FROM stalled AS t WHERE t.destination = s.destination)
                   AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = s.destination AND d.state = 'RETRY'))
        UNION ALL
        SELECT 'degraded', s.object, 'keys held', s.pending_since,
               format('ordering keys whose events wait for one in trouble: %s; the oldest event has waited for %s', held.keys, s.age),
               'See outbox.blocked_key. Dead letters need outbox.redrive() or outbox.discard().'
          FROM status AS s
         CROSS JOIN LATERAL (SELECT CASE WHEN s.state <> 'pull' THEN s.held_keys
                                         -- Most have none, and an index says so at less cost than the function.
                                         WHEN (SELECT d.position FROM outbox.delivery AS d
                                                WHERE d.destination = s.destination AND d.state <> 'DISCARDED' AND d.ordering_key <> ''
                                                ORDER BY d.ordering_key, d.position LIMIT 1) IS NULL THEN 0
                                         ELSE (SELECT count(*) FROM outbox_internal.blocked_keys(s.destination, 1000)) END
                             OFFSET 0) AS held(keys) -- counted once, not for each use
         WHERE s.late AND held.keys > 0
        UNION ALL
        SELECT 'degraded', s.object, CASE WHEN unread.skipped THEN 'not fetched' ELSE 'behind' END, s.pending_since,
               CASE WHEN unread.skipped
                    THEN format('nothing fetches: the 10000 events after its cursor are of other topics, the last of them from %s ago', s.age)
                    ELSE format('its oldest event has waited for %s; events under leases: %s', s.age, s.in_flight) END,
               CASE WHEN unread.skipped THEN format('SELECT outbox.backlog(%L) tells whether events wait for it.', s.destination)
                    ELSE 'Its fetchers are away, slow or stuck: see outbox.lease.' END
          FROM status AS s
         CROSS JOIN LATERAL (SELECT s.unread_selected IS NOT TRUE AND (s.oldest_outside_log < s.late_before) IS NOT TRUE AS skipped) AS unread
         WHERE s.state = 'pull' AND s.late
        UNION ALL
        SELECT 'failing', s.object, 'detached', s.detached_at, 'the log had outgrown outbox.max_log_size',
               'outbox.resume() continues with the events still in the log.'
          FROM status AS s
         WHERE s.detached_at IS NOT NULL
        UNION ALL
        SELECT CASE WHEN s.late THEN 'failing' ELSE 'degraded' END, s.object, 'paused', p.requested_at,
               format('paused%s%s%s', ' by ' || quote_ident(p.requested_by), ': ' || p.why, CASE WHEN s.late THEN format('; its oldest event has waited for %s', s.age) END),
               'outbox.resume() continues.'
          FROM status AS s
          LEFT JOIN LATERAL (SELECT o.requested_at, o.requested_by, o.why FROM outbox.operation AS o
                              WHERE o.destination = s.destination AND o.action = 'pause' ORDER BY o.id DESC LIMIT 1) AS p ON true
         WHERE s.paused AND s.detached_at IS NULL
        UNION ALL
        -- Endpoints of a destination are one finding. Most fail because of their owners, so it is failing only
        -- if none works. Errors of endpoints are customers': who may see them reads outbox.endpoint_status.
        SELECT CASE WHEN e.failing = e.endpoints AND e.since < clock_timestamp() - coalesce(max_age, interval '1 minute')
                    THEN 'failing' ELSE 'degraded' END,
               format('destination "%s"', e.server), 'endpoints fail', e.since,
               format('%s of its %s endpoints fail', e.failing, e.endpoints),
               'See outbox.endpoint_status. Their events wait, and are tried again by themselves.'
          FROM (SELECT s.server, count(*) AS endpoints, count(*) FILTER (WHERE s.state = 'failing') AS failing,
                       min(s.failing_since) FILTER (WHERE s.state = 'failing') AS since
                  FROM endpoint AS s
                 GROUP BY s.server) AS e
         WHERE e.failing > 0
        UNION ALL
        SELECT 'degraded', format('destination "%s"', e.server), 'endpoints paused', e.since,
               format('%s of its endpoints are paused and events wait for them', e.paused),
               'See outbox.endpoint_status. Set paused to false in outbox.endpoint, or delete the rows.'
          FROM (SELECT s.server, count(*) AS paused, min(s.oldest) AS since
                  FROM endpoint AS s
                 WHERE s.state = 'paused' AND s.pending_at_most > 0
                 GROUP BY s.server) AS e
        UNION ALL
        SELECT CASE WHEN t.blocks THEN 'failing' ELSE 'degraded' END, format('destination "%s"', t.destination), 'dead letters',
               t.since,
               format('events that were given up: %s%s%s', t.count,
                      CASE WHEN t.blocks THEN ', and they block their keys' ELSE '' END, '; the first with: ' || t.last_error),
               'See outbox.dead_letter; then outbox.redrive() or outbox.discard().'
          FROM (SELECT g.destination, sum(g.count) AS count, min(g.since) AS since,
                       (array_agg(g.last_error ORDER BY g.since) FILTER (WHERE g.last_error IS NOT NULL))[1] AS last_error,
                       outbox_internal.destination_option(g.destination, 'on_dead_letter') = 'block' AS blocks
                  FROM (SELECT outbox_internal.server_of(d.destination) AS destination, count(*), min(d.last_failed_at) AS since,
                               CASE WHEN NOT outbox_internal.is_endpoint(d.destination)
                                    THEN (array_agg(d.last_error ORDER BY d.last_failed_at))[1] END AS last_error
                          FROM outbox.delivery AS d
                         WHERE d.state = 'DEAD'
                         GROUP BY d.destination) AS g
                 GROUP BY g.destination) AS t
        UNION ALL
        SELECT 'degraded', format('destination "%s"', t.destination), 'events fail', t.since,
               format('events that it has refused and that are tried again: %s%s', t.count, '; the last with: ' || t.last_error),
               'See outbox.delivery. Events that use up their attempts become dead letters.'
          FROM (SELECT g.destination, sum(g.count) AS count, min(g.since) AS since,
                       (array_agg(g.last_error ORDER BY g.last DESC) FILTER (WHERE g.last_error IS NOT NULL))[1] AS last_error
                  FROM (SELECT outbox_internal.server_of(d.destination) AS destination, count(*), min(d.first_failed_at) AS since,
                               max(d.last_failed_at) AS last,
                               CASE WHEN NOT outbox_internal.is_endpoint(d.destination)
                                    THEN (array_agg(d.last_error ORDER BY d.last_failed_at DESC))[1] END AS last_error
                          FROM outbox.delivery AS d
                         WHERE d.state = 'RETRY' AND d.attempts > 0
                         GROUP BY d.destination) AS g
                 GROUP BY g.destination) AS t
        UNION ALL
        -- A key in trouble has an event that waits for an attempt or a decision. A replay holds keys as well,
        -- and gives them back by itself.
        SELECT CASE WHEN trouble.events >= s.held_keys / 2 THEN 'failing' ELSE 'degraded' END, s.object, 'too many keys held', s.pending_since,
               format('@{max_held_keys} ordering keys are held, and nothing more is read; events in trouble: %s%s', trouble.events,
                      CASE WHEN trouble.replayed THEN '; a replay holds keys as well' ELSE '' END),
               CASE WHEN trouble.events >= s.held_keys / 2 THEN 'See outbox.blocked_key; then outbox.redrive() or outbox.discard().'
                    ELSE 'It goes on as the replay does: see outbox.replay_progress.' END
          FROM status AS s
         CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE d.state IN ('RETRY', 'DEAD')) AS events,
                                    count(*) FILTER (WHERE d.state = 'PENDING' AND d.operation IS NOT NULL) > 0 AS replayed
                               FROM outbox.delivery AS d
                              WHERE d.destination = s.destination AND s.held_keys >= @{max_held_keys}) AS trouble
         WHERE s.held_keys >= @{max_held_keys}
        UNION ALL
        SELECT 'degraded', format('table %s', t.relation), 'backfill failed', t.updated_at,
               format('backfill %s has failed: %s', t.id, t.last_error),
               format('Call outbox.resume_backfill(%s) or outbox.cancel_backfill(%1$s).', t.id)
          FROM outbox.backfill_task AS t
         WHERE t.state = 'failed'
        UNION ALL
        SELECT 'degraded', format('table %s', c.relation), 'key not unique', c.captured_at,
               format('consumers take rows with the same (%s) for one: the unique constraint on it was dropped or replaced',
                      array_to_string(c.row_key, ', ')),
               format('Call outbox.capture(%L, ..., replace => true), and have consumers filled again.', c.relation)
          FROM outbox.captured AS c
         WHERE c.row_key <> '{}' AND NOT outbox_internal.key_is_unique(c) AND NOT outbox_internal.is_captured_shard(c.relation)
        UNION ALL
        SELECT 'degraded', 'server', 'no destination', outbox.oldest_after('1:1:'), 'events wait for a destination',
               format('Make a destination: %s.', outbox_internal.how_to_make_destination())
         WHERE NOT EXISTS (SELECT FROM outbox.destination) AND EXISTS (SELECT FROM outbox.event)
        UNION ALL
        SELECT 'degraded', 'server', 'log too large', log.since,
               format('the log has grown to %s, more than outbox.max_log_size; it is held by %s', pg_size_pretty(log.size),
                      coalesce((SELECT string_agg(DISTINCT CASE WHEN outbox_internal.is_endpoint(name) THEN 'endpoints of ' ELSE '' END
                                                           || quote_ident(outbox_internal.server_of(name)), ', ')
                                  FROM outbox.segment AS s, unnest(s.held_by) AS name),
                               'open transactions, or outbox.retention')),
               'Help what holds it, or increase outbox.max_log_size.'
          FROM (SELECT sum(s.size)::bigint AS size, min(s.since) FILTER (WHERE s.size > 0) AS since FROM outbox.segment AS s) AS log
         WHERE log.size > pg_size_bytes(nullif(outbox_internal.setting('max_log_size'), '0'))
    )
    SELECT f.severity, outbox_internal.for_client(f.object), f.what, f.since,
           outbox_internal.for_client(f.why), outbox_internal.for_client(f.what_to_do)
      FROM finding AS f
     WHERE NOT pg_is_in_recovery() OR f.what = 'copy' -- the primary delivers
     ORDER BY f.severity DESC, f.object, f.what, f.since;
END;
