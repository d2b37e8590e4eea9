-- Returns a label of a sample.
CREATE FUNCTION outbox_internal.metric_label(name text, value text)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('%s="%s"', name, replace(replace(replace(value, E'\\', E'\\\\'), '"', E'\\"'), E'\n', E'\\n'));
END;

-- Returns figures for a monitoring system, as OpenMetrics text (version 1.0.0). Published events
-- and failures are counted on by the next relay; other counters start at zero with each relay, as
-- monitoring systems expect of counters.
CREATE FUNCTION outbox.metrics()
RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
BEGIN ATOMIC
    -- Samples without a value are left out.
    WITH status AS MATERIALIZED (
        SELECT s.*, outbox_internal.metric_label('database', current_database()) || ','
                        || outbox_internal.metric_label('destination', s.destination) AS labels
          FROM outbox.status AS s
    ), trouble AS MATERIALIZED (
        SELECT d.destination, count(*) FILTER (WHERE d.state = 'RETRY') AS retries, count(*) FILTER (WHERE d.state = 'DEAD') AS dead
          FROM outbox.delivery AS d WHERE d.state IN ('DEAD', 'RETRY')
         GROUP BY d.destination
    ), sample(number, family, type, help, series, line, suffix, labels, value) AS (
        SELECT figure.number, figure.family, figure.type, figure.help, '', 0,
               CASE figure.type WHEN 'counter' THEN '_total' END,
               s.labels || figure.more_labels,
               figure.value
          FROM status AS s
          LEFT JOIN trouble AS t ON t.destination = s.destination
         CROSS JOIN LATERAL (VALUES
                   (1, 'outbox_up', 'gauge', 'Whether the destination takes events.', '',
                    CASE WHEN s.state <> 'standby' THEN s.state IN ('idle', 'delivering', 'throttled', 'pull') END::integer::numeric),
                   (2, 'outbox_published', 'counter', 'Events that the destination has confirmed.', '', s.published),
                   (3, 'outbox_failures', 'counter', 'Attempts that failed.', '', s.failures),
                   (4, 'outbox_in_flight', 'gauge', 'Events read from the log and not settled.', '', s.in_flight),
                   (5, 'outbox_pending_at_most', 'gauge', 'Events not settled, at most.', '', s.pending_at_most),
                   (6, 'outbox_oldest_pending_seconds', 'gauge', 'Age of the oldest event not settled.', '',
                    greatest(coalesce(extract(epoch FROM s.oldest_pending_age), 0), 0)),
                   (9, 'outbox_held_keys', 'gauge', 'Ordering keys that events in trouble hold.', '', s.held_keys),
                   (10, 'outbox_retries', 'gauge', 'Events in outbox.delivery that wait for an attempt.', '',
                    coalesce(t.retries, 0)),
                   (11, 'outbox_dead_letters', 'gauge', 'Events that wait for a decision.', '',
                    coalesce(t.dead, 0)),
                   (12, 'outbox_throttled', 'counter', 'Answers that asked for fewer requests.', '', s.throttled),
                   (13, 'outbox_request_limit', 'gauge', 'Requests a second, where fewer are asked for.', '', s.request_limit::numeric),
                   (14, 'outbox_suspects', 'gauge', 'Events in memory whose last attempt failed, or hangs.', '', s.suspects),
                   (15, 'outbox_lanes_down', 'gauge', 'Topics or queues of the destination that fail.', '', s.lanes_down),
                   (16, 'outbox_client_queue', 'gauge', 'Events that the client library has, not confirmed.', '', s.client_queue),
                   (17, 'outbox_connects', 'counter', 'Connections of the client library.', '', s.connects),
                   (18, 'outbox_disconnects', 'counter', 'Connections of the client library that have ended.', '', s.disconnects),
                   (19, 'outbox_round_trip_seconds', 'summary', 'From a request to its answer, of the last minutes.',
                    ',quantile="0.5"', extract(epoch FROM s.round_trip_p50)),
                   (19, 'outbox_round_trip_seconds', 'summary', 'From a request to its answer, of the last minutes.',
                    ',quantile="0.99"', extract(epoch FROM s.round_trip_p99)),
                   (7, 'outbox_latency_seconds', 'summary', 'From occurred_at to the confirmation, of the last minutes.',
                    ',quantile="0.5"', extract(epoch FROM s.latency_p50)),
                   (7, 'outbox_latency_seconds', 'summary', 'From occurred_at to the confirmation, of the last minutes.',
                    ',quantile="0.99"', extract(epoch FROM s.latency_p99))
               ) AS figure(number, family, type, help, more_labels, value)
        UNION ALL
        SELECT 20, 'outbox_delivery_seconds', 'histogram',
               'From occurred_at to the confirmation, without events that are delivered again.',
               s.destination, h.line, h.suffix,
               s.labels || coalesce(',le="' || h.bound || '"', ''),
               h.value
          FROM status AS s, outbox_internal.histogram(s.latency_buckets, s.latency_sum) AS h
        UNION ALL
        SELECT 8, 'outbox_log_bytes', 'gauge', 'Size of a segment of the log.', '', 0, NULL,
               outbox_internal.metric_label('database', current_database()) || format(',segment="%s"', s.number), s.size
          FROM outbox.segment AS s
        UNION ALL
        SELECT 21, 'outbox_endpoints', 'gauge', 'Endpoints of the destination by their state.', '', 0, NULL,
               s.labels || ',' || outbox_internal.metric_label('state', e.state), count(*)
          FROM outbox.endpoint_status AS e
          JOIN status AS s ON s.destination = e.server
         WHERE EXISTS (SELECT FROM outbox.endpoint)
         GROUP BY s.labels, e.state
        UNION ALL
        SELECT 22, 'outbox_in_recovery', 'gauge', 'Whether the server is a standby, which delivers nothing.', '', 0, NULL,
               outbox_internal.metric_label('database', current_database()), pg_is_in_recovery()::integer
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
