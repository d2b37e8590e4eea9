-- Returns a label of a sample.
CREATE FUNCTION inbox_internal.metric_label(name text, value text)
RETURNS text
LANGUAGE sql STABLE
BEGIN ATOMIC -- without a search_path, so that the planner can put it into the query that calls it for each label
    SELECT format('%s="%s"', name, replace(replace(replace(value, E'\\', E'\\\\'), '"', E'\\"'), E'\n', E'\\n'));
END;

-- Returns figures for a monitoring system, as OpenMetrics text (version 1.0.0). Samples without a
-- value are left out.
CREATE FUNCTION inbox.metrics()
RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
BEGIN ATOMIC
    WITH sample(number, family, type, help, series, line, suffix, labels, value) AS (
        SELECT figure.number, figure.family, figure.type, figure.help, s.consumer, figure.line, figure.suffix,
               (SELECT string_agg(inbox_internal.metric_label(label.name, label.value),
                                  ',' ORDER BY label.number)
                  FROM (VALUES (1, 'database', current_database()::text), (2, 'consumer', s.consumer), (3, 'quantile', figure.quantile), (4, 'le', figure.bound))
                       AS label(number, name, value)
                 WHERE label.value IS NOT NULL),
               figure.value
          FROM inbox.status AS s
          JOIN inbox.lag AS l ON l.consumer = s.consumer,
               LATERAL (SELECT f.*, 0::bigint AS line, CASE f.type WHEN 'counter' THEN '_total' END AS suffix, NULL::text AS bound
                          FROM (VALUES
                   (1, 'inbox_up', 'gauge', 'Whether the messages of the consumer are processed.', NULL,
                    CASE WHEN s.state <> 'standby' THEN s.state NOT IN ('not subscribed', 'not confirmed', 'stopped') END::integer::numeric),
                   (2, 'inbox_processed', 'counter', 'Messages processed.', NULL, s.processed),
                   (3, 'inbox_failures', 'counter', 'Attempts that failed.', NULL, s.failures),
                   (4, 'inbox_pending_at_most', 'gauge', 'Messages received and not processed, at most.', NULL, s.pending_at_most),
                   (5, 'inbox_oldest_pending_seconds', 'gauge', 'Time since the oldest of them arrived.', NULL,
                    greatest(coalesce(extract(epoch FROM s.oldest_pending_age), 0), 0)),
                   (6, 'inbox_claimed', 'gauge', 'Messages under a lease of a process outside the server.', NULL, s.claimed),
                   (7, 'inbox_retries', 'gauge', 'Failed events that will be tried again.', NULL, s.waiting_keys),
                   (8, 'inbox_dead_letters', 'gauge', 'Events that wait for a decision.', NULL, s.dead_letters),
                   (9, 'inbox_latency_seconds', 'summary', 'From occurred_at to processed, of recent messages.', '0.5',
                    extract(epoch FROM s.latency_p50)),
                   (9, 'inbox_latency_seconds', 'summary', 'From occurred_at to processed, of recent messages.', '0.99',
                    extract(epoch FROM s.latency_p99)),
                   (10, 'inbox_wait_seconds', 'summary', 'From received to processed, of recent messages.', '0.5',
                    extract(epoch FROM l.wait_p50)),
                   (10, 'inbox_wait_seconds', 'summary', 'From received to processed, of recent messages.', '0.99',
                    extract(epoch FROM l.wait_p99)),
                   (11, 'inbox_source_lag_seconds', 'gauge', 'From published to applied, of the last event of a subscription.', NULL,
                    extract(epoch FROM l.source_lag)),
                   (12, 'inbox_seen_timestamp_seconds', 'gauge', 'When a process outside the server was last seen.', NULL,
                    extract(epoch FROM s.seen_at)),
                   (14, 'inbox_versions_behind', 'gauge', 'Versions of one aggregate received and not processed, at the worst one.', NULL,
                    coalesce(l.versions_behind, 0)),
                   (15, 'inbox_skipped', 'counter', 'Events that can no longer be received from their source.', NULL,
                    (SELECT coalesce(sum(g.skipped), 0) FROM inbox.gaps AS g WHERE g.consumer = s.consumer)),
                   (16, 'inbox_recreated', 'counter', 'Times that a source was made again or cut back.', NULL,
                    (SELECT coalesce(sum(g.recreated), 0) FROM inbox.gaps AS g WHERE g.consumer = s.consumer))
                               ) AS f(number, family, type, help, quantile, value)
                        UNION ALL
                        SELECT 13, 'inbox_delivery_seconds', 'histogram', 'From occurred_at to processed.',
                               NULL, h.value, h.line, h.suffix, h.bound
                          FROM inbox_internal.histogram(s.latency_buckets, s.latency_sum) AS h) AS figure
        UNION ALL
        SELECT 15, 'inbox_in_recovery', 'gauge', 'Whether the server is a standby, which processes nothing.', '', 0, NULL,
               inbox_internal.metric_label('database', current_database()),
               pg_is_in_recovery()::integer
    ), family(number, text) AS (
        SELECT number,
               format(E'# TYPE %s %s\n# HELP %s %s\n', family, type, family, help)
                   || string_agg(format(E'%s%s{%s} %s\n', family, suffix, labels, value), '' ORDER BY series, line, labels)
          FROM sample
         WHERE value IS NOT NULL
         GROUP BY number, family, type, help
    )
    SELECT coalesce(string_agg(text, '' ORDER BY number), '') || E'# EOF\n'
      FROM family;
END;
