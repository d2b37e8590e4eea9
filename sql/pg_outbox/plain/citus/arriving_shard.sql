-- The SQL edition does not look after shards of a Citus cluster.

-- Returns whether a destination waits for events of a shard that has moved.
CREATE FUNCTION outbox_internal.shards_hold(destination name)
RETURNS boolean
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT false;
END;

-- Returns the destinations that wait for events of shards that have moved here.
CREATE FUNCTION outbox_internal.waits_for_shards()
RETURNS TABLE (destination name, shard bigint, node text, since timestamptz, trouble text)
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT NULL::name, NULL::bigint, NULL::text, NULL::timestamptz, NULL::text WHERE false;
END;
