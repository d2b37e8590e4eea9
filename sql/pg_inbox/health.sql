-- Tells what is wrong with consumers and what to do about it, for people and for alerts. No rows
-- mean that all is well. Only roles with the rights of the consumer's role see the error messages
-- of its handlers.
--
--   failing    events are not applied, and will not be until somebody acts
--   degraded   something goes wrong, and may pass by itself
CREATE FUNCTION inbox.health(
    tolerance interval     DEFAULT '1 minute',
    caller    inbox_internal.caller DEFAULT CURRENT_USER,
    OUT severity text,
    OUT consumer text,
    OUT what     text,
    OUT since    timestamptz,
    OUT detail   text,
    OUT hint     text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH consumer AS MATERIALIZED (
        SELECT c.id, c.name, c.role, c.max_attempts, c.on_dead_letter = 'block' AS blocks, s.state, s.pid,
               c.subscriptions > 0 AS subscribed, clock_timestamp() - s.oldest_pending_age AS pending_since,
               s.oldest_pending_age > tolerance AS late, s.pending_at_most,
               EXISTS (SELECT FROM pg_roles AS r
                        WHERE r.rolname = c.role AND pg_has_role(caller, r.oid, 'USAGE')) AS own
          FROM inbox.consumer AS c
          JOIN inbox.status AS s ON s.consumer = c.name
    ), finding(severity, consumer, what, since, detail, hint) AS (
        SELECT CASE WHEN c.blocks THEN 'failing' ELSE 'degraded' END, c.name, 'dead letters', dead.since,
               format('events that were given up: %s%s; the last with SQLSTATE %s', dead.count,
                      CASE WHEN c.blocks THEN ', and their keys are blocked' ELSE '' END,
                      dead.sqlstate || CASE WHEN c.own THEN ': ' || dead.error ELSE '' END),
               'See inbox.dead_letter; then inbox.redrive() or inbox.discard().'
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT count(*) AS count, min(d.died_at) AS since,
                                    (array_agg(d.sqlstate ORDER BY d.died_at DESC))[1] AS sqlstate,
                                    (array_agg(d.error ORDER BY d.died_at DESC))[1] AS error
                               FROM inbox.dead_message AS d WHERE d.consumer_id = c.id) AS dead
         WHERE dead.count > 0
        UNION ALL
        SELECT CASE WHEN failed.attempts >= c.max_attempts THEN 'failing' ELSE 'degraded' END, c.name,
               'events fail', failed.since,
               format('events that fail and are tried again: %s, up to %s times so far; the last with SQLSTATE %s',
                      failed.count, failed.attempts,
                      failed.sqlstate || CASE WHEN c.own THEN ': ' || failed.error ELSE '' END),
               'See inbox.waiting_keys. Use inbox.discard() for events that can never be applied.'
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT count(*) AS count, min(w.first_failed_at) AS since, max(w.attempts) AS attempts,
                                    (array_agg(w.sqlstate ORDER BY w.last_failed_at DESC))[1] AS sqlstate,
                                    (array_agg(w.error ORDER BY w.last_failed_at DESC))[1] AS error
                               FROM inbox.waiting AS w WHERE w.consumer_id = c.id) AS failed
         WHERE failed.since < clock_timestamp() - tolerance
        UNION ALL
        SELECT 'failing', c.name, 'no processor', c.pending_since, 'it has subscriptions, and no process in the server runs them',
               format('Is pg_outbox in shared_preload_libraries, can role "%s" log in, is max_worker_processes (%s) used up? The server log says more.',
                      c.role, current_setting('max_worker_processes'))
          FROM consumer AS c
         WHERE c.state = 'stopped'
        UNION ALL
        SELECT 'failing', c.name, 'not confirmed', c.pending_since,
               format('its handlers would run with the rights of role "%s", which has not confirmed all of them', c.role),
               format('Check these handlers. As that role: SELECT * FROM inbox.own_subscriptions(); then SELECT * FROM inbox.confirm(%L).', c.name)
          FROM consumer AS c
         WHERE c.state = 'not confirmed'
        UNION ALL
        SELECT 'failing', c.name, 'messages for nobody', c.pending_since, format('waiting messages: at most %s; no process has ever processed any', c.pending_at_most),
               'Check which consumer the sender means. Messages need inbox.subscribe(), or a process that calls inbox.claim().'
          FROM consumer AS c
         WHERE c.role IS NULL AND c.late
        UNION ALL
        SELECT 'degraded', c.name, 'behind', c.pending_since, format('waiting messages: at most %s', c.pending_at_most),
               CASE WHEN c.subscribed THEN 'See inbox.lag, and what process ' || c.pid || ' of the server does.'
                    ELSE 'The server does not process them. Processes that call inbox.claim() may be gone, slow or stuck.'
               END
          FROM consumer AS c
         WHERE c.role IS NOT NULL AND c.late AND c.state NOT IN ('stopped', 'not confirmed')
        UNION ALL
        SELECT 'degraded', c.name, 'reset not carried out', o.at,
               format('the offset of subscription "%s" was reset, and no process of the consumer has gone there', r.subscription),
               'Is a process of the consumer running, and can its source seek?'
          FROM consumer AS c
          JOIN inbox.offset_reset AS r ON r.consumer_id = c.id
          LEFT JOIN inbox.operation AS o ON o.id = r.reset_id
         WHERE coalesce(o.at < clock_timestamp() - tolerance, true)
        UNION ALL
        SELECT 'degraded', o.consumer, 'offset behind', o.updated_at,
               format('the event applied last from subscription "%s" had waited for %s', o.subscription,
                      o.lag_ms * interval '1 millisecond'),
               'See inbox.offsets. Check whether there are enough processes, and what they wait for.'
          FROM inbox.offsets AS o
         WHERE o.lag_ms * interval '1 millisecond' > tolerance AND o.idle < greatest(tolerance, interval '1 minute')
    )
    SELECT f.* FROM finding AS f
     WHERE NOT pg_is_in_recovery()  -- the primary consumes
     ORDER BY f.severity DESC, f.consumer, f.since;
END;
COMMENT ON FUNCTION inbox.health(interval, inbox_internal.caller) IS
    'problems of consumers, with hints; no rows if there are none';
