-- Nodes of a Citus cluster. Nothing here needs Citus to be installed, or to be created first.

-- Returns the group of this node: 0 for the coordinator; NULL without Citus.
CREATE FUNCTION outbox_internal.citus_group()
RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regclass('pg_dist_local_group') IS NULL THEN -- the extension may just be creating its tables
        RETURN NULL;
    END IF;
    RETURN (SELECT l.groupid FROM pg_dist_local_group AS l);
END $$;
COMMENT ON FUNCTION outbox_internal.citus_group() IS 'group of this node in a Citus cluster; null without Citus';

-- Returns the address of a node for people; NULL if it is no longer part of the cluster.
CREATE FUNCTION outbox_internal.citus_address(node integer)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT format('%s:%s', n.nodename, n.nodeport)
              FROM pg_dist_node AS n
             WHERE n.groupid = node AND n.noderole = 'primary' AND n.nodecluster = current_setting('citus.cluster_name'));
END $$;
COMMENT ON FUNCTION outbox_internal.citus_address(integer) IS 'address of a node of a Citus cluster';

-- Runs a statement with one result on a node, in a session and a transaction of its own. Citus knows how
-- to connect. Waits for the answer, so callers hold no lock that others want.
-- Errors: 08006 the node cannot be asked, or is not part of the cluster.
CREATE FUNCTION outbox_internal.ask_node(node integer, command text)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer record;
BEGIN
    SELECT m.node_name, m.node_port, m.success, m.result
      INTO answer
      FROM pg_dist_node AS n
     CROSS JOIN LATERAL master_run_on_worker(ARRAY[n.nodename], ARRAY[n.nodeport], ARRAY[command], false)
                     AS m(node_name, node_port, success, result)
     WHERE n.groupid = node AND n.noderole = 'primary' AND n.nodecluster = current_setting('citus.cluster_name');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'node % is not part of the cluster', node
            USING ERRCODE = 'connection_failure', HINT = CASE node WHEN 0 THEN 'Call citus_set_coordinator_host() on the coordinator.' ELSE '' END;
    END IF;
    IF NOT answer.success THEN
        RAISE EXCEPTION 'node %:% cannot be asked: %', answer.node_name, answer.node_port, answer.result
            USING ERRCODE = 'connection_failure';
    END IF;
    RETURN answer.result;
END $$;
COMMENT ON FUNCTION outbox_internal.ask_node(integer, text) IS 'runs a statement on a node of a Citus cluster';
