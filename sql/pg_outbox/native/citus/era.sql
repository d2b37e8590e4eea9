-- Positions of the nodes of a Citus cluster are unique, and rise for a key also when its shard moves.
--
-- The upper 23 bits of a position are its era, the lower 40 count. The coordinator begins with era
-- 0, as does a server without Citus. Any other node begins an era of its own before it has a shard,
-- and another one when a shard arrives from a node that is in a later one. Eras come from one
-- sequence, on the coordinator, so each belongs to one node, and is above all that were begun
-- before. A node takes part in one move at a time, unless shards are moved by hand. If it then
-- begins an era for a shard that it gets while it still sends another one, positions may fall for
-- keys of the shard that it sends.

-- Returns the era of this node's positions.
CREATE FUNCTION outbox_internal.era()
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.last_value >> 40 FROM outbox.event_position AS p;
END;

-- Makes the next positions of this node greater than all that were given in the cluster. Sessions of one
-- transaction of Citus may do this at the same time, so none keeps a lock until the transaction ends.
CREATE FUNCTION outbox_internal.begin_era()
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lock  CONSTANT integer := 'outbox.event_position'::regclass::oid::integer;
    start CONSTANT bigint := CASE outbox_internal.citus_group()
                               WHEN 0 THEN nextval('outbox.position_era')::text
                               ELSE outbox_internal.ask_node(0, 'SELECT nextval(''outbox.position_era'')')
                             END::bigint << 40;
    last  bigint;
BEGIN
    PERFORM pg_advisory_lock(lock, 0);
    SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END INTO last FROM outbox.event_position AS p;
    IF start > last THEN -- or another session has begun a later one
        PERFORM setval('outbox.event_position', start);
        INSERT INTO outbox.position_gap (after, size) VALUES (last, start - last);
    END IF;
    PERFORM pg_advisory_unlock(lock, 0);
EXCEPTION WHEN OTHERS OR query_canceled THEN -- Citus keeps the session, and so would the lock
    PERFORM pg_advisory_unlock(lock, 0);
    RAISE;
END $$;
