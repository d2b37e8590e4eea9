-- A role sees the endpoints of destinations whose owner's rights it has, as in outbox.endpoint: their
-- names and tenants are customers. The owner is that of the foreign server, or of the SQL edition.
CREATE VIEW outbox.endpoint_status WITH (security_barrier) AS
WITH own_server AS MATERIALIZED (
    SELECT c.destination AS server
      FROM outbox.cursor AS c
      LEFT JOIN (pg_catalog.pg_foreign_server AS s JOIN pg_catalog.pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw AND w.fdwname = 'pg_outbox')
        ON s.srvname = c.destination
      JOIN pg_catalog.pg_class AS t ON t.oid = 'outbox.endpoint'::pg_catalog.regclass
     WHERE pg_catalog.pg_has_role(coalesce(s.srvowner, t.relowner), 'USAGE')
), open AS MATERIALIZED (
    SELECT b.destination, pg_catalog.sum(pg_catalog.cardinality(b.positions))::bigint AS events, pg_catalog.min(b.oldest) AS oldest
      FROM outbox.batch AS b
     GROUP BY b.destination
), trouble AS MATERIALIZED (
    SELECT d.destination, pg_catalog.count(*) FILTER (WHERE d.state <> 'DEAD' AND d.operation IS NULL) AS events,
           pg_catalog.min(d.occurred_at) FILTER (WHERE d.state <> 'DEAD' AND d.operation IS NULL) AS oldest,
           pg_catalog.count(*) FILTER (WHERE d.state = 'DEAD') AS dead
      FROM outbox.delivery AS d
     WHERE d.state <> 'DISCARDED'
     GROUP BY d.destination
)
SELECT e.server, e.name, e.tenant,
       CASE WHEN e.paused THEN 'paused'
            WHEN s.failing_since IS NOT NULL THEN 'failing'
            WHEN c.destination IS NOT NULL THEN 'behind'
            ELSE 'live' END AS state,
       s.failing_since,
       outbox_internal.for_client(s.last_error) AS last_error,
       s.next_attempt_at,
       coalesce(open.events, 0) + coalesce(trouble.events, 0) + greatest(last.position - c.position - gap.size, 0) AS pending_at_most,
       coalesce(trouble.dead, 0) AS dead_letters,
       least(open.oldest, trouble.oldest) AS oldest
  FROM outbox.endpoint AS e
  JOIN own_server AS o ON o.server = e.server
 CROSS JOIN LATERAL (SELECT (e.server || '/' || e.name)::name) AS own(destination)
 CROSS JOIN LATERAL (SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END AS position FROM outbox.event_position AS p) AS last
  LEFT JOIN outbox.endpoint_state AS s ON s.destination = own.destination
  LEFT JOIN outbox.cursor AS c ON c.destination = own.destination
 CROSS JOIN LATERAL (SELECT coalesce(sum(g.size), 0)::bigint AS size
                       FROM outbox.position_gap AS g WHERE g.after >= c.position AND g.after < last.position) AS gap
  LEFT JOIN open ON open.destination = own.destination
  LEFT JOIN trouble ON trouble.destination = own.destination;
COMMENT ON VIEW outbox.endpoint_status IS 'state of endpoints: whether each one works, if not since when and why, and what waits for it';
COMMENT ON COLUMN outbox.endpoint_status.server IS 'the destination';
COMMENT ON COLUMN outbox.endpoint_status.name IS 'name of the endpoint';
COMMENT ON COLUMN outbox.endpoint_status.tenant IS 'as in outbox.endpoint';
COMMENT ON COLUMN outbox.endpoint_status.state IS 'live if its relay sends events as they are read from the log, behind if it gets earlier ones first, failing, or paused';
COMMENT ON COLUMN outbox.endpoint_status.failing_since IS 'since when it fails; null if it works';
COMMENT ON COLUMN outbox.endpoint_status.last_error IS 'error of the last failed attempt';
COMMENT ON COLUMN outbox.endpoint_status.next_attempt_at IS 'time of the next attempt, if it fails';
COMMENT ON COLUMN outbox.endpoint_status.pending_at_most IS 'events that wait for it, dead letters and replays apart, as an upper bound; 0 if it is live. outbox.backlog() counts them';
COMMENT ON COLUMN outbox.endpoint_status.dead_letters IS 'events that wait for outbox.redrive() or outbox.discard()';
COMMENT ON COLUMN outbox.endpoint_status.oldest IS 'occurred_at of the oldest event that waits outside the log';
