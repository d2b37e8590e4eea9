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

-- Returns where a node is; NULL if it is no longer part of the cluster, or without Citus.
CREATE FUNCTION outbox_internal.citus_node(node integer, OUT name text, OUT port integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox_internal.citus_group() IS NOT NULL THEN
        SELECT n.nodename, n.nodeport
          INTO name, port
          FROM pg_dist_node AS n
         WHERE n.groupid = node AND n.noderole = 'primary' AND n.nodecluster = current_setting('citus.cluster_name');
    END IF;
END $$;

-- Returns the address of a node of a Citus cluster, for people.
CREATE FUNCTION outbox_internal.citus_address(node integer)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT n.name || ':' || n.port FROM outbox_internal.citus_node(node) AS n;
END;

-- Runs a statement with one result on a node of a Citus cluster, in a session and a transaction of
-- its own. Citus knows how to connect. Waits for the answer, so callers hold no lock that others
-- want.
-- Errors: 08006 the node cannot be asked, or is not part of the cluster.
CREATE FUNCTION outbox_internal.ask_node(node integer, command text)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    asked  CONSTANT record := outbox_internal.citus_node(node);
    answer record;
BEGIN
    IF asked.name IS NULL THEN
        RAISE EXCEPTION 'node % is not part of the cluster', node
            USING ERRCODE = 'connection_failure', HINT = CASE node WHEN 0 THEN 'Call citus_set_coordinator_host() on the coordinator.' ELSE '' END;
    END IF;
    SELECT * INTO answer FROM master_run_on_worker(ARRAY[asked.name], ARRAY[asked.port], ARRAY[command], false);
    IF NOT answer.success THEN
        RAISE EXCEPTION 'node %:% cannot be asked: %', asked.name, asked.port, answer.result
            USING ERRCODE = 'connection_failure';
    END IF;
    RETURN answer.result;
END $$;
