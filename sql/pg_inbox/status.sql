-- Returns whether the current role has the rights of a role that is named in inbox.consumer.
CREATE FUNCTION inbox_internal.is_own(role name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role AND pg_has_role(r.oid, 'USAGE'));
END;

-- Says what to do about a consumer whose role was dropped or renamed, so that nothing can process or
-- claim its messages. NULL if the role exists, or if the consumer has none yet.
CREATE FUNCTION inbox_internal.how_to_replace_role(consumer text, role name)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('Its role "%s" does not exist any more. SELECT inbox.give_consumer(%L, ...) gives the consumer to another one, '
                      'which confirms its handlers: SELECT * FROM inbox.confirm(%2$L).', role, consumer)
     WHERE to_regrole(quote_ident(role)) IS NULL AND role IS NOT NULL;
END;

CREATE VIEW inbox.status AS
SELECT c.name AS consumer,
       c.role,
       c.subscriptions,
       CASE
         WHEN pg_catalog.pg_is_in_recovery() THEN 'standby'
         WHEN c.subscriptions = 0 AND leased.messages > 0 THEN 'claimed'
         -- Consumers that ever had a subscription have a row of figures. Only processes outside the
         -- server make changes of figures.
         WHEN c.subscriptions = 0 AND c.role IS NOT NULL
              AND (outside.seen_at IS NOT NULL OR change.rows > 0 OR first.seq IS NULL AND p.consumer_id IS NULL)
           THEN 'handled outside'
         WHEN c.subscriptions = 0 THEN 'not subscribed'
         WHEN EXISTS (SELECT FROM inbox_internal.confirmation AS s WHERE s.consumer_id = c.id AND NOT s.confirmed)
           THEN 'not confirmed'
         WHEN worker.pid IS NULL THEN 'stopped'
         WHEN first.seq IS NULL THEN 'idle'
         WHEN blocked.keys > 0 OR dead.letters > 0 AND c.on_dead_letter = 'block' THEN 'processing, some keys wait'
         ELSE 'processing'
       END AS state,
       worker.pid,
       -- A consumer may report any numbers.
       least(greatest(coalesce(p.processed, 0) + coalesce(p.claimed, 0) - leased.all_messages + coalesce(change.claimed, 0)
                          + coalesce(reported.processed, 0), 0), 9223372036854775807)::bigint AS processed,
       least(coalesce(p.failures, 0) + coalesce(change.failures, 0), 9223372036854775807)::bigint AS failures,
       -- Numbers of arrival between the first and the last waiting message. An upper bound, because
       -- other consumers and duplicates take numbers as well.
       coalesce(last.seq - first.seq + 1, 0) AS pending_at_most,
       clock_timestamp() - first.received_at AS oldest_pending_age,
       blocked.keys AS waiting_keys,
       coalesce(reported.latency_p50, p.latency_p50) AS latency_p50,
       coalesce(reported.latency_p99, p.latency_p99) AS latency_p99,
       -- An error message of a handler often quotes its message.
       CASE WHEN inbox_internal.is_own(c.role) THEN inbox_internal.for_client(blocked.last_error) END AS last_error,
       blocked.last_error_at,
       leased.messages AS claimed,
       dead.letters AS dead_letters,
       outside.seen_at,
       latency.buckets AS latency_buckets,
       latency.sum AS latency_sum
  FROM inbox.consumer AS c
  LEFT JOIN inbox.progress AS p ON p.consumer_id = c.id
  LEFT JOIN LATERAL (SELECT m.seq, m.received_at FROM (VALUES (false), (true)) AS put(aside)
                      CROSS JOIN LATERAL (SELECT m.seq, m.received_at FROM inbox.message AS m
                                           WHERE m.consumer_id = c.id AND m.aside = put.aside ORDER BY m.seq LIMIT 1) AS m
                      ORDER BY m.seq LIMIT 1) AS first ON true
  LEFT JOIN LATERAL (SELECT m.seq FROM (VALUES (false), (true)) AS put(aside)
                      CROSS JOIN LATERAL (SELECT m.seq FROM inbox.message AS m
                                           WHERE m.consumer_id = c.id AND m.aside = put.aside ORDER BY m.seq DESC LIMIT 1) AS m
                      ORDER BY m.seq DESC LIMIT 1) AS last ON true
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS keys,
                             (pg_catalog.array_agg(w.error ORDER BY w.last_failed_at DESC))[1] AS last_error,
                             pg_catalog.max(w.last_failed_at) AS last_error_at
                        FROM inbox.waiting AS w WHERE w.consumer_id = c.id) AS blocked
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) FILTER (WHERE l.leased_until > clock_timestamp()) AS messages,
                             pg_catalog.count(*) AS all_messages
                        FROM inbox.claimed AS l WHERE l.consumer_id = c.id) AS leased
  CROSS JOIN LATERAL (SELECT pg_catalog.sum(g.claimed) AS claimed, pg_catalog.sum(g.failures) AS failures,
                             pg_catalog.count(*) AS rows
                        FROM inbox.progress_change AS g WHERE g.consumer_id = c.id) AS change
  CROSS JOIN LATERAL (SELECT pg_catalog.sum(i.processed) AS processed, pg_catalog.max(i.seen_at) AS seen_at,
                             (pg_catalog.array_agg(i.latency_p50 ORDER BY i.seen_at DESC))[1] AS latency_p50,
                             (pg_catalog.array_agg(i.latency_p99 ORDER BY i.seen_at DESC))[1] AS latency_p99
                        FROM inbox.instance AS i WHERE i.consumer_id = c.id) AS reported
  CROSS JOIN LATERAL (SELECT (SELECT pg_catalog.array_agg(total.number ORDER BY total.line)
                                FROM (SELECT n.line, least(coalesce(pg_catalog.sum(n.number), 0), 9223372036854775807)::bigint AS number
                                        FROM (SELECT p.latency_buckets AS buckets
                                              UNION ALL
                                              SELECT i.latency_buckets FROM inbox.instance AS i WHERE i.consumer_id = c.id) AS h
                                       CROSS JOIN pg_catalog.unnest(h.buckets) WITH ORDINALITY AS n(number, line)
                                       GROUP BY n.line) AS total) AS buckets,
                             (SELECT pg_catalog.sum(h.sum)
                                FROM (SELECT p.latency_sum AS sum
                                      UNION ALL
                                      SELECT i.latency_sum FROM inbox.instance AS i WHERE i.consumer_id = c.id) AS h) AS sum) AS latency
  CROSS JOIN LATERAL (SELECT pg_catalog.max(o.updated_at) AS seen_at
                        FROM inbox.consumer_offset AS o WHERE o.consumer_id = c.id) AS saved
  CROSS JOIN LATERAL (SELECT greatest(p.seen_at, reported.seen_at, saved.seen_at) AS seen_at) AS outside
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS letters
                        FROM inbox.dead_message AS d WHERE d.consumer_id = c.id) AS dead
  LEFT JOIN LATERAL (SELECT a.pid FROM pg_catalog.pg_stat_activity AS a
                      WHERE a.datname = pg_catalog.current_database()
                        AND a.backend_type = 'pg_outbox processor'
                        AND a.application_name = pg_catalog.left('pg_outbox processor ' || c.name, 63)
                      LIMIT 1) AS worker ON true;
COMMENT ON VIEW inbox.status IS 'state of every consumer: whether it is stuck, since when and why';
COMMENT ON COLUMN inbox.status.role IS 'role that the handlers run as';
COMMENT ON COLUMN inbox.status.seen_at IS 'when a process outside the server last claimed messages, saved an offset or reported its figures';
COMMENT ON COLUMN inbox.status.processed IS 'messages processed; of processes that handle events at once, what they have reported';
COMMENT ON COLUMN inbox.status.failures IS 'failed attempts';
COMMENT ON COLUMN inbox.status.pending_at_most IS 'waiting messages, as an upper bound';
COMMENT ON COLUMN inbox.status.oldest_pending_age IS 'time since the oldest waiting message arrived';
COMMENT ON COLUMN inbox.status.waiting_keys IS 'failed messages that will be tried again, with their keys; see inbox.waiting_keys';
COMMENT ON COLUMN inbox.status.last_error IS 'last error of a handler; only for roles with the rights of the consumer''s role';
COMMENT ON COLUMN inbox.status.claimed IS 'messages under a lease of a processor outside the server';
COMMENT ON COLUMN inbox.status.dead_letters IS 'events that were given up and wait for a decision; see inbox.dead_letter';
COMMENT ON COLUMN inbox.status.latency_p50 IS 'half of the recent messages took at most this long from occurred_at to processed';
COMMENT ON COLUMN inbox.status.latency_p99 IS '99 of 100 recent messages took at most this long';
COMMENT ON COLUMN inbox.status.latency_buckets IS
    'messages processed that took at most 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 and 300 seconds from occurred_at to processed, and all of them; estimated from samples for those of inbox.claim()';
COMMENT ON COLUMN inbox.status.latency_sum IS 'sum of these times, in seconds';

CREATE VIEW inbox.lag AS
SELECT c.name AS consumer,
       s.pending_at_most,
       s.oldest_pending_age,
       s.claimed,
       s.waiting_keys,
       p.wait_p50,
       p.wait_p99,
       s.latency_p50,
       s.latency_p99,
       (SELECT pg_catalog.max(behind.versions)
          FROM (SELECT pg_catalog.count(waiting.version) AS versions
                  FROM (SELECT m.aggregate_type, m.aggregate_id, m.version FROM inbox.message AS m
                         WHERE m.consumer_id = c.id ORDER BY m.aside, m.seq LIMIT 1000) AS waiting
                 GROUP BY waiting.aggregate_type, waiting.aggregate_id) AS behind) AS versions_behind,
       (SELECT pg_catalog.max(o.lag_ms) * interval '1 millisecond'
          FROM (SELECT DISTINCT ON (saved.subscription) saved.lag_ms
                  FROM inbox.consumer_offset AS saved
                 WHERE saved.consumer_id = c.id
                 ORDER BY saved.subscription, saved.publish_time DESC) AS o) AS source_lag
  FROM inbox.consumer AS c
  JOIN inbox.status AS s ON s.consumer = c.name
  LEFT JOIN inbox.progress AS p ON p.consumer_id = c.id;
COMMENT ON VIEW inbox.lag IS 'messages received and not processed; see inbox.offsets for events not received';
COMMENT ON COLUMN inbox.lag.pending_at_most IS 'messages received and not processed, as an upper bound';
COMMENT ON COLUMN inbox.lag.oldest_pending_age IS 'time since the oldest of them arrived';
COMMENT ON COLUMN inbox.lag.claimed IS 'messages under a lease of a processor outside the server';
COMMENT ON COLUMN inbox.lag.waiting_keys IS 'failed events that will be tried again';
COMMENT ON COLUMN inbox.lag.wait_p50 IS
    'half of the recent messages took at most this long from received to processed';
COMMENT ON COLUMN inbox.lag.wait_p99 IS '99 of 100 took at most this long';
COMMENT ON COLUMN inbox.lag.latency_p50 IS 'the same from occurred_at to processed';
COMMENT ON COLUMN inbox.lag.latency_p99 IS 'the same from occurred_at to processed';
COMMENT ON COLUMN inbox.lag.versions_behind IS
    'versions of one aggregate received and not processed, of the aggregate with most of them; 1000 messages count, first those that were not put aside';
COMMENT ON COLUMN inbox.lag.source_lag IS
    'time from published to applied of the last event of a subscription, where it was longest; see inbox.offsets';

CREATE VIEW inbox.waiting_keys WITH (security_barrier) AS
SELECT c.name AS consumer,
       inbox_internal.for_client(w.ordering_key) AS ordering_key,
       w.event_id,
       inbox_internal.for_client(m.event_type) AS event_type,
       w.attempts,
       w.sqlstate,
       inbox_internal.for_client(w.error) AS error,
       inbox_internal.for_client(w.detail) AS detail,
       inbox_internal.for_client(w.hint) AS hint,
       inbox_internal.for_client(w.context) AS context,
       w.first_failed_at AS since,
       w.last_failed_at,
       w.next_attempt_at,
       inbox_internal.for_client(m.content_type) AS content_type,
       inbox_internal.for_client(m.headers) AS headers,
       inbox_internal.for_client(inbox.payload_text(m.content_type, m.payload)) AS payload_text,
       inbox_internal.for_client(inbox.payload_jsonb(m.content_type, m.payload)) AS payload_jsonb
  FROM inbox.waiting AS w
  JOIN inbox.consumer AS c ON c.id = w.consumer_id
  LEFT JOIN inbox.message AS m ON m.consumer_id = w.consumer_id AND m.event_id = w.event_id
 WHERE inbox_internal.is_own(c.role) OR pg_catalog.has_table_privilege('inbox.operation', 'SELECT');
COMMENT ON VIEW inbox.waiting_keys IS
    'keys that wait because a handler failed; of the consumers of the current role, or for operators of all';
COMMENT ON COLUMN inbox.waiting_keys.context IS 'what the handler did when the last error was raised, the innermost call first';
COMMENT ON COLUMN inbox.waiting_keys.payload_text IS 'the payload if it is text or JSON; null if the event is not stored here';
COMMENT ON COLUMN inbox.waiting_keys.payload_jsonb IS 'the payload if it is JSON';
