-- Positions of the nodes of a Citus cluster are unique, and rise for a key also when its shard moves.
--
-- The upper 23 bits of a position are its era, the lower 40 count. The coordinator begins with era 0, as
-- does a server without Citus. Any other node begins an era of its own before it has a shard, and the next
-- one when a shard arrives. Eras come from one sequence, on the coordinator. So each belongs to one node,
-- and the era that begins when a shard arrives is above the era in which the other node has written for
-- it. One node takes part in one move at a time unless somebody moves by hand; a node that begins an era
-- because it gets one shard while it still sends another one breaks the rise for the keys of that one.

CREATE FUNCTION outbox_internal.begin_era()
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    era   CONSTANT bigint := CASE outbox_internal.citus_group()
                               WHEN 0 THEN nextval('outbox.position_era')::text
                               ELSE outbox_internal.ask_node(0, 'SELECT nextval(''outbox.position_era'')')
                             END::bigint;
    start CONSTANT bigint := era << 40;
    last  bigint;
BEGIN
    LOCK TABLE outbox.position_gap IN SHARE ROW EXCLUSIVE MODE; -- another session may begin a later one
    SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END INTO last FROM outbox.event_position AS p;
    IF start > last THEN
        PERFORM setval('outbox.event_position', start);
        INSERT INTO outbox.position_gap (after, size) VALUES (last, start - last);
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.begin_era() IS 'makes the next positions of this node greater than all of the cluster';
