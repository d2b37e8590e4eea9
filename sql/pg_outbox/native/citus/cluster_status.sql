-- Every node of a Citus cluster has a log, cursors and relays of its own. This asks all of them.

-- It is the answer of a node. Other nodes call it, so it sets the search path. what_to_do is that
-- of the worst finding about the destination. A destination without a relay may have none; then the
-- finding about the server counts.
CREATE FUNCTION outbox_internal.node_status()
RETURNS json
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH finding AS MATERIALIZED (
        SELECT DISTINCT ON (h.object) h.object, h.what_to_do
          FROM outbox.health() AS h
         ORDER BY h.object, h.severity DESC, h.since -- failing, then degraded
    )
    SELECT coalesce(json_agg(answer), '[]')
      FROM (SELECT s.destination, s.state, s.state_since, s.pending_at_most, s.in_flight, s.held_keys,
                   s.oldest_pending_age, d.dead_letters, s.published, s.failures, s.last_error, s.last_error_at,
                   s.failing_since, s.next_attempt_at, coalesce(own.what_to_do, server.what_to_do) AS what_to_do
              FROM outbox.status AS s
              LEFT JOIN outbox.destinations AS d ON d.destination = s.destination
              LEFT JOIN finding AS own ON own.object = format('destination "%s"', s.destination)
              LEFT JOIN finding AS server ON server.object = 'server' AND s.state = 'stopped') AS answer;
END;
COMMENT ON FUNCTION outbox_internal.node_status() IS 'destinations of this node, for outbox.cluster_status';

-- Nodes are asked over connections that Citus opens as the caller, at the same time. One that cannot be asked has an error.
-- The function of Citus is looked up when it runs: Citus may be created later, or never.
CREATE FUNCTION outbox_internal.ask_nodes(
    OUT node_name text, OUT node_port integer, OUT group_id integer, OUT answer json, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regproc('pg_catalog.run_command_on_all_nodes') IS NULL THEN
        RETURN QUERY SELECT 'localhost', current_setting('port')::integer, 0, outbox_internal.node_status(), NULL::text;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE $query$
        SELECT coalesce(n.nodename, 'localhost'), coalesce(n.nodeport, current_setting('port')::integer), coalesce(n.groupid, 0),
               CASE WHEN a.success THEN a.result::json END, CASE WHEN NOT a.success THEN a.result END
          FROM pg_catalog.run_command_on_all_nodes('SELECT outbox_internal.node_status()') AS a
          LEFT JOIN pg_catalog.pg_dist_node AS n ON n.nodeid = a.nodeid
         $query$;
END $$;
COMMENT ON FUNCTION outbox_internal.ask_nodes() IS 'what each node of the Citus cluster says of its destinations';

CREATE VIEW outbox.cluster_status AS
SELECT n.node_name, n.node_port, n.group_id, s.*, n.error
  FROM outbox_internal.ask_nodes() AS n
  LEFT JOIN LATERAL json_to_recordset(n.answer) AS s(
       destination name, state text, state_since timestamptz, pending_at_most bigint, in_flight bigint, held_keys bigint,
       oldest_pending_age interval, dead_letters bigint, published bigint, failures bigint, last_error text,
       last_error_at timestamptz, failing_since timestamptz, next_attempt_at timestamptz, what_to_do text) ON true;
COMMENT ON VIEW outbox.cluster_status IS
    'state of every destination on every node of a Citus cluster; a node without destinations, or one that cannot be asked, has one row';
COMMENT ON COLUMN outbox.cluster_status.node_name IS 'name of the node, as Citus has it; localhost without Citus';
COMMENT ON COLUMN outbox.cluster_status.node_port IS 'port of the node';
COMMENT ON COLUMN outbox.cluster_status.group_id IS 'group of the node, as Citus has it; 0 for the coordinator, or for a server without Citus';
COMMENT ON COLUMN outbox.cluster_status.destination IS 'as in outbox.status; null if the node has none, or cannot be asked';
COMMENT ON COLUMN outbox.cluster_status.state IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.state_since IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.pending_at_most IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.in_flight IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.held_keys IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.oldest_pending_age IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.dead_letters IS 'as in outbox.destinations';
COMMENT ON COLUMN outbox.cluster_status.published IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.failures IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.last_error IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.last_error_at IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.failing_since IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.next_attempt_at IS 'as in outbox.status';
COMMENT ON COLUMN outbox.cluster_status.what_to_do IS 'as in outbox.health(), where it has found something about the destination';
COMMENT ON COLUMN outbox.cluster_status.error IS 'why the node cannot be asked';
