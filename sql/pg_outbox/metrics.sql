-- Figures for a monitoring system, as OpenMetrics text (version 1.0.0). Counters start anew with the
-- relay they belong to, which is what monitoring systems expect of counters.
CREATE FUNCTION outbox.metrics()
RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH destination AS (
        SELECT s.*, replace(replace(replace(s.destination, '\', '\\'), '"', '\"'), E'\n', '\n') AS label
          FROM outbox.status AS s
    ), sample(family, type, help, number, line) AS (
        SELECT 'outbox_up', 'gauge', 'Whether the destination takes events.', 1,
               format('outbox_up{destination="%s"} %s', label, (state IN ('idle', 'delivering'))::int)
          FROM destination
        UNION ALL
        SELECT 'outbox_published', 'counter', 'Events that the destination has confirmed.', 2,
               format('outbox_published_total{destination="%s"} %s', label, published)
          FROM destination
        UNION ALL
        SELECT 'outbox_failures', 'counter', 'Attempts that failed.', 3,
               format('outbox_failures_total{destination="%s"} %s', label, failures)
          FROM destination
        UNION ALL
        SELECT 'outbox_in_flight', 'gauge', 'Events read from the log and not settled.', 4,
               format('outbox_in_flight{destination="%s"} %s', label, in_flight)
          FROM destination
        UNION ALL
        SELECT 'outbox_pending_at_most', 'gauge', 'Events not settled, at most.', 5,
               format('outbox_pending_at_most{destination="%s"} %s', label, pending_at_most)
          FROM destination
        UNION ALL
        SELECT 'outbox_oldest_pending_seconds', 'gauge', 'Age of the oldest event not settled.', 6,
               format('outbox_oldest_pending_seconds{destination="%s"} %s', label,
                      greatest(coalesce(extract(epoch FROM oldest_pending_age), 0), 0))
          FROM destination
        UNION ALL
        SELECT 'outbox_latency_seconds', 'gauge', 'From occurred_at to the confirmation, of the last minutes.', 7,
               format('outbox_latency_seconds{destination="%s",quantile="%s"} %s', label, q.quantile,
                      extract(epoch FROM q.latency))
          FROM destination, LATERAL (VALUES ('0.5', latency_p50), ('0.99', latency_p99)) AS q(quantile, latency)
         WHERE q.latency IS NOT NULL
        UNION ALL
        SELECT 'outbox_log_bytes', 'gauge', 'Size of a segment of the log.', 8,
               format('outbox_log_bytes{segment="%s"} %s', s.number, s.size)
          FROM outbox.segment AS s
    ), family(number, text) AS (
        SELECT number,
               format(E'# TYPE %s %s\n# HELP %s %s\n', family, type, family, help) || string_agg(line, E'\n' ORDER BY line) || E'\n'
          FROM sample
         GROUP BY number, family, type, help
    )
    SELECT coalesce(string_agg(text, '' ORDER BY number), '') || E'# EOF\n'
      FROM family;
END;
COMMENT ON FUNCTION outbox.metrics() IS 'figures for a monitoring system, as OpenMetrics text';
