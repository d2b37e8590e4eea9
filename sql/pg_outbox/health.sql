-- Tells whether anything is wrong and what to do about it, for people and for alerts.
--
--   failing    events do not arrive, and will not until somebody acts
--   degraded   something goes wrong, and may pass by itself
CREATE FUNCTION outbox.health(OUT state text, OUT reasons text[])
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH status AS MATERIALIZED (
        SELECT * FROM outbox.status
    ), server(preloaded) AS (
        SELECT outbox_internal.is_preloaded()
    ), reason(level, text) AS (
        SELECT 'failing', 'pg_outbox is not preloaded: add it to shared_preload_libraries and restart the server'
          FROM server
         WHERE NOT server.preloaded
        UNION ALL
        SELECT 'failing', 'nothing is delivered: ' || w.last_error
          FROM outbox.workers() AS w
         WHERE w.kind = 'keeper' AND w.state = 'misconfigured'
        UNION ALL
        SELECT 'failing', format('destination "%s" has no relay: see the server log; max_worker_processes (%s) may be used up',
                                 s.destination, current_setting('max_worker_processes'))
          FROM status AS s, server
         WHERE s.state = 'stopped' AND server.preloaded
           AND NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = s.destination AND d.external)
        UNION ALL
        SELECT 'failing', format('destination "%s" is served by no outbox-relay; start one, or see its log', d.name)
          FROM status AS s
          JOIN outbox.destination AS d ON d.name = s.destination AND d.external
         WHERE s.state = 'stopped'
        UNION ALL
        SELECT 'failing', format('%s "%s" is held back until %s: it has crashed %s times in a row, and the server with it; see the server log or a core dump; a restart of the server starts it at once',
                                 a.kind, a.name, a.next_try::timestamptz(0), a.crashes)
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'held back'
        UNION ALL
        SELECT 'degraded', format('%s "%s" has ended early %s times in a row, and is started again at %s at the latest; the server log says why it ends',
                                  a.kind, a.name, a.deaths, a.next_try::timestamptz(0))
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'failing'
        UNION ALL
        -- Relays without a free worker are reported above.
        SELECT 'degraded', format('%s workers wait for room: %s, the first for "%s"; %s',
                                  a.kind, count(*), (array_agg(a.name ORDER BY a.since, a.object))[1],
                                  CASE a.waits_for
                                    WHEN 'outbox.max_workers_per_role'
                                    THEN format('role %s has as many as outbox.max_workers_per_role (%s) allows', a.account::regrole,
                                                current_setting(a.waits_for))
                                    ELSE format('increase %s, or end others', a.waits_for)
                                  END)
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'waiting' AND NOT (a.kind = 'relay' AND a.waits_for = 'outbox.max_workers, max_worker_processes')
         GROUP BY a.kind, a.waits_for, a.account
        UNION ALL
        SELECT 'failing', format('destination "%s" cannot be used as configured: %s', s.destination, s.last_error)
          FROM status AS s
         WHERE s.state = 'misconfigured'
        UNION ALL
        -- A failing destination has a minute to recover.
        SELECT CASE WHEN s.state_since < clock_timestamp() - interval '1 minute' THEN 'failing' ELSE 'degraded' END,
               format('destination "%s" fails since %s: %s', s.destination, s.state_since::timestamptz(0), s.last_error)
          FROM status AS s
         WHERE s.state = 'backing off'
        UNION ALL
        SELECT 'degraded', format('destination "%s": %s of its topics or queues fail, the others work: %s', s.destination, s.lanes_down, s.last_error)
          FROM status AS s
         WHERE s.state <> 'backing off' AND s.lanes_down > 0
        UNION ALL
        SELECT 'degraded', format('destination "%s" is behind by %s%s', s.destination,
                                  date_trunc('second', s.oldest_pending_age),
                                  CASE WHEN s.state = 'throttled'
                                       THEN format(': it asks for fewer requests (%s)', s.last_error) ELSE '' END)
          FROM status AS s
         WHERE s.state IN ('delivering', 'throttled') AND s.oldest_pending_age > interval '1 minute'
        UNION ALL
        SELECT 'degraded', format('destination "%s" is behind by %s: its fetchers are away, slow or stuck; %s of its events are under leases',
                                  s.destination, date_trunc('second', s.oldest_pending_age), s.in_flight)
          FROM status AS s
         WHERE s.state = 'pull' AND s.oldest_pending_age > interval '1 minute'
        UNION ALL
        SELECT 'failing', format('destination "%s" was detached at %s, because the log had outgrown outbox.max_log_size; outbox.resume() continues with the events still in the log',
                                 c.destination, c.detached_at::timestamptz(0))
          FROM outbox.cursor AS c
         WHERE c.detached_at IS NOT NULL
        UNION ALL
        SELECT 'degraded', format('destination "%s" is paused; outbox.resume() continues', c.destination)
          FROM outbox.cursor AS c
         WHERE c.paused AND c.detached_at IS NULL
        UNION ALL
        SELECT CASE WHEN t.blocks THEN 'failing' ELSE 'degraded' END,
               format('destination "%s" has %s dead letters, the first of %s (%s)%s; see outbox.dead_letter, outbox.redrive(), outbox.discard()',
                      t.destination, t.count, t.since::timestamptz(0), t.last_error,
                      CASE WHEN t.blocks THEN ', and they block their keys' ELSE '' END)
          FROM (SELECT d.destination, count(*), min(d.last_failed_at) AS since,
                       (array_agg(d.last_error ORDER BY d.last_failed_at))[1] AS last_error,
                       outbox_internal.destination_option(d.destination, 'on_dead_letter') = 'block' AS blocks
                  FROM outbox.delivery AS d
                 WHERE d.state = 'DEAD'
                 GROUP BY d.destination) AS t
        UNION ALL
        SELECT 'degraded', format('destination "%s" has refused %s events, which will be tried again (%s)', t.destination, t.count, t.last_error)
          FROM (SELECT d.destination, count(*), (array_agg(d.last_error ORDER BY d.last_failed_at DESC))[1] AS last_error
                  FROM outbox.delivery AS d
                 WHERE d.state = 'RELEASED' AND d.attempts > 0
                 GROUP BY d.destination) AS t
        UNION ALL
        SELECT 'failing', format('destination "%s": 100000 ordering keys are held by events in trouble, and nothing more is read', s.destination)
          FROM status AS s
         WHERE s.held_keys >= 100000
        UNION ALL
        SELECT 'degraded', format('backfill %s of table %s has failed: %s; see outbox.resume_backfill(), outbox.cancel_backfill()',
                                  t.id, t.relation, t.last_error)
          FROM outbox.backfill_task AS t
         WHERE t.state = 'failed'
        UNION ALL
        SELECT 'degraded', 'events wait for a destination: ' || outbox_internal.how_to_make_destination()
         WHERE NOT EXISTS (SELECT FROM outbox.destination) AND EXISTS (SELECT FROM outbox.event)
        UNION ALL
        SELECT 'degraded',
               format('the log has grown to %s, more than outbox.max_log_size; it is held by %s', pg_size_pretty(log.size),
                      coalesce((SELECT string_agg(DISTINCT quote_ident(name), ', ')
                                  FROM outbox.segment AS s, unnest(s.held_by) AS name),
                               'open transactions, or outbox.retention'))
          FROM (SELECT sum(s.size)::bigint AS size FROM outbox.segment AS s) AS log
         WHERE log.size > pg_size_bytes(nullif(outbox_internal.setting('max_log_size'), '0'))
    )
    SELECT CASE
             WHEN pg_is_in_recovery() THEN 'ok'  -- the primary delivers
             WHEN bool_or(level = 'failing') THEN 'failing'
             WHEN bool_or(level = 'degraded') THEN 'degraded'
             ELSE 'ok'
           END,
           CASE
             WHEN pg_is_in_recovery() THEN '{}'
             ELSE coalesce(array_agg(text ORDER BY level DESC, text), '{}')
           END
      FROM reason;
END;
COMMENT ON FUNCTION outbox.health() IS 'ok, degraded or failing, with reasons a person can act on';
