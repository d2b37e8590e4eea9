-- Returns what is wrong with consumers, why, and what to do about it; no rows if all is well. Only
-- roles with the rights of the consumer's role see the error messages of its handlers.
--
--   failing    events are not applied, and will not be until an operator acts
--   degraded   there is a problem that may pass by itself
--
-- Messages that failed, or are behind a failed one or a dead letter, are explained by that. Others
-- are looked for among the first thousand messages. If none of these is `free`, but there are more
-- messages, the consumer counts as behind.
CREATE FUNCTION inbox.health(
    max_age interval DEFAULT '1 minute',
    caller  inbox_internal.caller DEFAULT CURRENT_USER,
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
    WITH consumer AS MATERIALIZED (
        SELECT c.id, c.name, c.role, c.max_attempts, c.on_dead_letter = 'block' AS blocks, s.state, s.pid,
               c.subscriptions > 0 AS subscribed, clock_timestamp() - s.oldest_pending_age AS pending_since,
               s.oldest_pending_age > limits.max_age AS late, limits.max_age, s.pending_at_most, s.claimed, s.seen_at,
               inbox_internal.how_to_replace_role(c.name, c.role) AS without_role,
               EXISTS (SELECT FROM pg_roles AS r
                        WHERE r.rolname = c.role AND pg_has_role(caller, r.oid, 'USAGE')) AS own
          FROM inbox.consumer AS c
          JOIN inbox.status AS s ON s.consumer = c.name
         CROSS JOIN (SELECT coalesce($1, interval '1 minute') AS max_age) AS limits
    ), finding(severity, consumer, what, since, why, what_to_do) AS (
        SELECT CASE WHEN c.blocks THEN 'failing' ELSE 'degraded' END, c.name, 'dead letters', dead.since,
               format('events that were given up: %s%s; the last with SQLSTATE %s', dead.count,
                      CASE WHEN c.blocks THEN ', and their keys are blocked' ELSE '' END,
                      dead.sqlstate || CASE WHEN c.own THEN ': ' || dead.error ELSE '' END),
               'See inbox.dead_letter; then use inbox.redrive() or inbox.discard().'
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
         WHERE failed.since < clock_timestamp() - c.max_age OR failed.count > 0 AND c.late
        UNION ALL
        SELECT 'failing', c.name, 'no role', c.pending_since,
               format('its messages need the rights of role "%s", which does not exist any more', c.role), c.without_role
          FROM consumer AS c
         WHERE c.without_role IS NOT NULL AND (c.subscribed OR c.pending_since IS NOT NULL)
        UNION ALL
        SELECT 'failing', c.name, 'no processor', c.pending_since,
               'the consumer has subscriptions, and no process in the server runs them',
               format('Check that pg_outbox is in shared_preload_libraries, that role "%s" can log in, and that max_worker_processes (%s) is not used up. The server log says more.',
                      c.role, current_setting('max_worker_processes'))
          FROM consumer AS c
         WHERE c.state = 'stopped' AND c.without_role IS NULL
        UNION ALL
        SELECT 'failing', c.name, 'not confirmed', c.pending_since,
               format('its handlers would run with the rights of role "%s", which has not confirmed all of them', c.role),
               format('Check these handlers. As that role: SELECT * FROM inbox.own_subscriptions(); then SELECT * FROM inbox.confirm(%L).', c.name)
          FROM consumer AS c
         WHERE c.state = 'not confirmed' AND c.without_role IS NULL
        UNION ALL
        SELECT 'failing', c.name, 'messages for nobody', c.pending_since,
               format('waiting messages: at most %s; no process has ever processed any', c.pending_at_most),
               'Check which consumer the sender means. Messages need inbox.subscribe(), or a process that calls inbox.claim().'
          FROM consumer AS c
         WHERE c.role IS NULL AND c.late
        UNION ALL
        SELECT CASE WHEN c.subscribed OR c.claimed > 0 OR NOT free.found THEN 'degraded' ELSE 'failing' END, c.name,
               CASE WHEN c.subscribed OR c.claimed > 0 OR NOT free.found THEN 'behind' ELSE 'no process' END, free.received_at,
               format('waiting messages: at most %s%s', c.pending_at_most,
                      CASE WHEN c.subscribed THEN ''
                           WHEN c.claimed > 0 THEN format('; %s are claimed; the last claim was at %s', c.claimed, c.seen_at::timestamptz(0))
                           WHEN c.seen_at IS NULL THEN '; no process has claimed any'
                           ELSE format('; no process has any of them; the last claim was at %s', c.seen_at::timestamptz(0))
                      END),
               CASE WHEN c.subscribed THEN 'See inbox.lag, and what process ' || c.pid || ' of the server does.'
                    WHEN c.claimed > 0 THEN 'See inbox.lag. Check whether there are enough processes that call inbox.claim(), and what they wait for.'
                    ELSE 'The server does not process them. Start a process that calls inbox.claim(), or check why it does not.'
               END
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT coalesce(min(m.received_at) FILTER (WHERE m.free),
                                             CASE WHEN count(*) FILTER (WHERE NOT m.aside) = 1000 THEN min(m.received_at) END) AS received_at,
                                    bool_or(m.free) AS found
                               FROM (SELECT m.received_at, m.aside,
                                            NOT EXISTS (SELECT FROM inbox.waiting AS w
                                                         WHERE w.consumer_id = c.id AND w.event_id = m.event_id)
                                            AND (m.ordering_key = ''
                                                 OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                                                 WHERE o.consumer_id = c.id AND o.ordering_key = m.ordering_key
                                                                   AND o.seq < m.seq AND NOT (m.aside AND o.aside))) AS free
                                       FROM (VALUES (false), (true)) AS put(aside)
                                      CROSS JOIN LATERAL (
                                           SELECT m.event_id, m.seq, m.ordering_key, m.received_at, m.aside FROM inbox.message AS m
                                            WHERE m.consumer_id = c.id AND m.aside = put.aside AND c.late
                                            ORDER BY m.seq LIMIT 1000) AS m) AS m) AS free
         WHERE c.role IS NOT NULL AND c.without_role IS NULL AND c.state NOT IN ('stopped', 'not confirmed')
           AND free.received_at < clock_timestamp() - c.max_age
        UNION ALL
        SELECT 'degraded', c.name, 'reset not carried out', o.at,
               format('the offset of subscription "%s" was reset, and no process of the consumer has gone there', r.subscription),
               'Check whether a process of the consumer is running, and whether its source can seek.'
          FROM consumer AS c
          JOIN inbox.offset_reset AS r ON r.consumer_id = c.id
          LEFT JOIN inbox.operation AS o ON o.id = r.reset_id
         WHERE coalesce(o.at < clock_timestamp() - c.max_age, true)
        UNION ALL
        SELECT CASE WHEN g.skipped > 0 THEN 'failing' ELSE 'degraded' END, c.name,
               CASE WHEN g.skipped > 0 THEN 'events skipped' ELSE 'source made again' END, g.since,
               format('subscription "%s": %s events can no longer be received, and it was made again %s times; the last report: %s',
                      g.subscription, g.skipped, g.recreated, g.why),
               format('See inbox.gaps. Send what is missing again, for example with outbox.replay(); then SELECT inbox.accept_gap(%L, %L, %L).',
                      c.name, g.subscription, 'reason')
          FROM consumer AS c
          JOIN inbox.gap AS g ON g.consumer_id = c.id
         WHERE g.accepted_at IS NULL
        UNION ALL
        -- A process that is still at work, or was a moment ago. The age of an offset says nothing:
        -- it also grows when there is nothing left to do.
        SELECT 'degraded', o.consumer, 'offset behind', o.updated_at,
               format('the event applied last from subscription "%s" had waited for %s', o.subscription,
                      o.lag_ms * interval '1 millisecond'),
               'See inbox.offsets. Check whether there are enough processes, and what they wait for.'
          FROM inbox.offsets AS o
          JOIN consumer AS c ON c.name = o.consumer
          LEFT JOIN LATERAL (SELECT i.outstanding, i.seen_at FROM inbox.instance AS i
                              WHERE i.consumer_id = c.id ORDER BY i.outstanding > 0 DESC, i.seen_at DESC LIMIT 1) AS report ON true
         WHERE o.lag_ms * interval '1 millisecond' > c.max_age
           AND CASE WHEN report.seen_at >= o.updated_at THEN report.outstanding > 0 ELSE o.idle < interval '10 seconds' END
        UNION ALL
        SELECT 'failing', c.name, 'no process', last.seen_at,
               format('process "%s" has ended or hangs: it had %s events outstanding when it reported last', last.name, last.outstanding),
               'Start it again, and look into its log.'
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT i.name, i.outstanding, i.seen_at, i.expected_by FROM inbox.instance AS i
                              WHERE i.consumer_id = c.id ORDER BY i.seen_at DESC LIMIT 1) AS last
         WHERE last.outstanding > 0 AND last.expected_by < clock_timestamp()
           AND last.seen_at < clock_timestamp() - c.max_age
        UNION ALL
        SELECT 'failing', NULL, 'no replica identity', NULL, p.why, p.what_to_do
          FROM inbox_internal.stopped_by_publications() AS p
        UNION ALL
        SELECT 'degraded', NULL, 'window not pruned', pruned.due_since,
               'ids of applied events that are older than the deduplication window have not been removed for a day',
               'Run SELECT * FROM inbox.prune() until nothing has "more", without statement_timeout. End transactions that hold what is "in use".'
          FROM inbox_internal.not_pruned_since() AS pruned(due_since)
         WHERE pruned.due_since IS NOT NULL
    )
    SELECT f.severity, CASE WHEN f.consumer IS NULL THEN 'server' ELSE inbox_internal.for_client(format('consumer "%s"', f.consumer)) END,
           f.what, f.since, inbox_internal.for_client(left(f.why, 16384)), inbox_internal.for_client(left(f.what_to_do, 16384))
      FROM finding AS f
     WHERE NOT pg_is_in_recovery()  -- the primary consumes
     ORDER BY f.severity DESC, f.consumer, f.since;
END;
