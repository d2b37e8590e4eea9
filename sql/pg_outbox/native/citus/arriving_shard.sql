-- Order per key while a shard of a Citus cluster moves to this node.
--
-- Until the move, events of its keys were written to the log of the node that sends it; from then on to
-- the log here. The relays of two nodes know nothing of each other, so those here wait:
--
--   1. Citus creates the shard here, before it copies rows. An event trigger notices that, adds a row to
--      outbox.arriving_shard, and begins an era unless it is in a later one (era.sql). Relays go on.
--   2. Citus blocks writes to the shard, and commits that it stands here: pg_dist_placement says so on
--      all nodes. A statement that writes to the shard from then on began after that commit.
--   3. A relay that has taken the snapshot for its next window looks with a later snapshot whether the
--      shard stands here. If so, the window may have events of the shard, and is given up. Of prepared
--      transactions only the locks can be seen, so the relay also waits while a transaction changes
--      pg_dist_placement; it looks for that before it looks for the shard.
--   4. The keeper here asks the other node for a snapshot in which all events of the shard have committed
--      (left_at), and then, several times a second, which destinations have not settled what is visible in
--      it (waits_for). Relays of other destinations go on. A transaction that was prepared there before
--      the shard left may have events of it, so the snapshot is taken when none of these is left.
--   5. If a destination has settled all but events in trouble, only the keys of these are held
--      (arriving_key.sql). When no key is left either, the keeper deletes the row.
--
-- A node that waits sends no shard on: nodes that waited for each other would wait for ever.

-- Returns whether a shard stands on this node.
CREATE FUNCTION outbox_internal.shard_is_here(shard bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_dist_placement AS p WHERE p.shardid = shard AND p.groupid = outbox_internal.citus_group());
END $$;

-- Returns whether a transaction that changes where shards stand has not ended. It runs for a
-- moment, or it is prepared.
CREATE FUNCTION outbox_internal.shards_are_moving()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.locktype = 'relation' AND l.relation = 'pg_dist_placement'::regclass AND l.mode = 'RowExclusiveLock'
                      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()));
END $$;

-- Returns whether a window whose snapshot was taken before this call may have events for which a
-- destination has to wait. VOLATILE, so that each statement has a snapshot of its own.
CREATE FUNCTION outbox_internal.shards_hold(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    of_server CONSTANT name := split_part(destination, '/', 1); -- it may be an endpoint of one
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.arriving_shard) OR outbox_internal.citus_group() IS NULL THEN
        RETURN false;
    END IF;
    IF outbox_internal.shards_are_moving() THEN -- before it looks for the shard
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM outbox.arriving_shard AS a
                    WHERE (a.waits_for IS NULL OR of_server = ANY (a.waits_for)) AND outbox_internal.shard_is_here(a.shard));
END $$;

-- ------------------------------------------------------------------------------------------------
-- The node that sends
-- ------------------------------------------------------------------------------------------------

-- Returns the present snapshot; NULL while a transaction that was prepared before `gone_since` is left.
CREATE FUNCTION outbox_internal.snapshot_without_prepared(gone_since timestamptz)
RETURNS pg_snapshot
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_current_snapshot()
     WHERE NOT EXISTS (SELECT FROM pg_prepared_xacts AS p WHERE p.database = current_database() AND p.prepared <= gone_since);
END;

-- Returns the destinations that have not settled all events that are visible in a snapshot, by their
-- saved cursors. What is in trouble there does not count: see arriving_key.sql. Nor do endpoints that have
-- fallen back: one that is dead would stop all others.
CREATE FUNCTION outbox_internal.unsettled_in(snapshot pg_snapshot)
RETURNS name[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    destination record;
    unsettled   name[] := '{}';
BEGIN
    FOR destination IN
        SELECT d.name, coalesce(c.done, '1:1:') AS done, coalesce(c.upto, '1:1:') AS upto, coalesce(c.position, 0) AS position, c.number,
               outbox_internal.topic_patterns(outbox_internal.destination_option(d.name, 'topics')) AS topics
          FROM outbox.destination AS d
          LEFT JOIN outbox.cursor AS c
            ON c.destination = d.name AND c.system_identifier = (SELECT s.system_identifier FROM pg_control_system() AS s)
         WHERE c.detached_at IS NULL
         ORDER BY d.name
    LOOP
        IF EXISTS (SELECT FROM outbox_internal.window_events(destination.done, snapshot, settled => destination.upto, settled_position => destination.position) AS e
                    WHERE e.topic LIKE ANY (destination.topics) AND (e.only_to IS NULL OR e.only_to = destination.number))
           OR EXISTS (SELECT FROM outbox.batch AS b, unnest(b.xids) AS x(xid)
                       WHERE b.destination = destination.name AND pg_visible_in_snapshot(x.xid, snapshot)) THEN
            unsettled := unsettled || destination.name;
        END IF;
    END LOOP;
    RETURN unsettled;
END $$;

-- ------------------------------------------------------------------------------------------------
-- The node that receives
-- ------------------------------------------------------------------------------------------------

-- Only the lock of a row that is not committed yet can be seen.
CREATE FUNCTION outbox_internal.expects_shards()
RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox.arriving_shard AS a WHERE a.waits_for IS DISTINCT FROM '{}')
        OR EXISTS (SELECT FROM pg_locks AS l
                    WHERE l.locktype = 'relation' AND l.relation = 'outbox.arriving_shard'::regclass AND l.mode = 'RowExclusiveLock'
                      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()));
END;
COMMENT ON FUNCTION outbox_internal.expects_shards() IS 'whether shards arrive at this node, or have arrived and are waited for';

-- Citus has created a shard here that stands on another node.
CREATE FUNCTION outbox_internal.expect_shard(shard bigint, relation oid, from_group integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadline CONSTANT timestamptz := clock_timestamp() + interval '5 seconds'; -- without a backlog it takes one or two
BEGIN
    LOCK TABLE outbox.arriving_shard IN ROW EXCLUSIVE MODE; -- before asking, so that of two nodes that exchange shards one sees the other
    WHILE outbox_internal.ask_node(from_group, 'SELECT outbox_internal.expects_shards()')::boolean LOOP
        IF clock_timestamp() > deadline THEN
            RAISE EXCEPTION 'shard % cannot be moved now: node % waits for events of shards that have moved to it',
                            shard, outbox_internal.citus_address(from_group)
                USING ERRCODE = 'object_in_use',
                      DETAIL = 'Events of one key would overtake each other, or the nodes would wait for each other.',
                      HINT = 'Try again when outbox.arriving_shard is empty on that node. outbox.health() there says what it waits for.';
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    IF outbox_internal.ask_node(from_group, 'SELECT outbox_internal.era()')::bigint >= outbox_internal.era() THEN
        PERFORM outbox_internal.begin_era();
    END IF;
    INSERT INTO outbox.arriving_shard AS a (shard, relation, from_group) VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT arriving_shard_pkey DO UPDATE
       SET relation = excluded.relation, from_group = excluded.from_group, since = excluded.since, gone_since = NULL, left_at = NULL, waits_for = NULL, trouble = NULL;
    PERFORM outbox_internal.wake_keeper();
END $$;
COMMENT ON FUNCTION outbox_internal.expect_shard(bigint, oid, integer) IS 'notes that a shard is about to arrive';

-- A shard that is new to the cluster has no events anywhere. Those of reference tables are copied, and do
-- not move.
CREATE FUNCTION outbox_internal.follow_shards()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    own   CONSTANT integer := outbox_internal.citus_group();
    made  record;
    moved record;
BEGIN
    IF own IS NULL THEN
        RETURN;
    END IF;
    FOR made IN
        SELECT c.objid AS relation, c.object_identity AS name, substring(c.object_identity FROM '_(\d{1,18})"?$')::bigint AS shard
          FROM pg_event_trigger_ddl_commands() AS c
         WHERE c.classid = 'pg_class'::regclass AND c.object_identity ~ '_\d{1,18}"?$'
    LOOP
        -- A node gets its first era before it has its first shard.
        IF own > 0 AND outbox_internal.era() = 0
           AND current_setting('application_name') LIKE 'citus\_internal%' THEN
            PERFORM outbox_internal.begin_era();
        END IF;
        SELECT p.groupid INTO moved
          FROM pg_dist_shard AS s
          JOIN pg_dist_partition AS t ON t.logicalrelid = s.logicalrelid AND t.repmodel <> 't'
          JOIN pg_dist_placement AS p ON p.shardid = s.shardid
         WHERE s.shardid = made.shard AND made.name IN (shard_name(s.logicalrelid, s.shardid), 'public.' || shard_name(s.logicalrelid, s.shardid))
           AND NOT EXISTS (SELECT FROM pg_dist_placement AS h WHERE h.shardid = s.shardid AND h.groupid = own);
        IF FOUND THEN
            PERFORM outbox_internal.expect_shard(made.shard, made.relation, moved.groupid);
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.follow_shards() IS 'notices shards that move to this node';

CREATE EVENT TRIGGER outbox_follow_shards ON ddl_command_end
    WHEN tag IN ('CREATE TABLE')
    EXECUTE FUNCTION outbox_internal.follow_shards();
ALTER EVENT TRIGGER outbox_follow_shards ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_shards IS 'notices shards that move to this node';

-- Asks another node what it knows about a shard that has moved here. What is not known yet is asked
-- for again.
CREATE FUNCTION outbox_internal.ask_about(INOUT s outbox.arriving_shard)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most_keys CONSTANT integer := 1000; -- of a destination; with more it waits as a whole
    unsettled name[];
BEGIN
    IF s.gone_since IS NULL THEN
        s.gone_since := outbox_internal.ask_node(s.from_group, 'SELECT pg_catalog.clock_timestamp()');
    END IF;
    IF s.left_at IS NULL THEN
        s.left_at := nullif(outbox_internal.ask_node(s.from_group, format('SELECT outbox_internal.snapshot_without_prepared(%L)', s.gone_since)), '');
    END IF;
    IF s.left_at IS NOT NULL THEN
        unsettled := outbox_internal.ask_node(s.from_group, format('SELECT outbox_internal.unsettled_in(%L)', s.left_at));
        -- The keys are asked for afterwards: by now, what is settled has been delivered or is in
        -- trouble. Without the second answer the first does not count.
        s.waits_for := unsettled
            || outbox_internal.hold_keys_of(s.from_group,
                   outbox_internal.ask_node(s.from_group, format('SELECT outbox_internal.keys_in_trouble(%s)', most_keys))::json, most_keys);
    END IF;
    s.trouble := NULL;
EXCEPTION WHEN connection_failure OR query_canceled THEN -- the keeper does not wait for long
    IF s.trouble IS NULL THEN
        RAISE WARNING 'events wait for a shard that has moved here: %', SQLERRM;
    END IF;
    s.trouble := CASE SQLSTATE WHEN '57014' THEN format('node %s does not answer', outbox_internal.citus_address(s.from_group))
                             ELSE SQLERRM END;
END $$;

-- Asks other nodes whether events of shards that have moved here were delivered. Returns the
-- seconds after which the keeper should call this again; NULL if nothing is expected.
CREATE FUNCTION outbox_internal.look_after_shards()
RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s       outbox.arriving_shard;
    pause   double precision := 0.5;
    changed boolean := false;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.arriving_shard) THEN
        RETURN NULL;
    END IF;
    FOR s IN SELECT * FROM outbox.arriving_shard ORDER BY trouble IS NOT NULL, shard LOOP
        IF outbox_internal.citus_address(s.from_group) IS NULL THEN -- the other node is gone, or Citus
            s.waits_for := outbox_internal.hold_keys_of(s.from_group, '[]', 0);
        ELSIF s.left_at IS NOT NULL OR outbox_internal.shard_is_here(s.shard) THEN -- it may have moved on, without held keys
            s := outbox_internal.ask_about(s);
            pause := CASE WHEN s.waits_for = '{}' THEN 0.5 ELSE 0.1 END;
        ELSIF has_table_privilege(s.relation, 'SELECT') IS NULL THEN -- the move has failed; Citus hides shards in pg_class
            s.waits_for := '{}';
        END IF;
        UPDATE outbox.arriving_shard AS a
           SET gone_since = s.gone_since, left_at = s.left_at, waits_for = s.waits_for, trouble = s.trouble
         WHERE a.shard = s.shard
           AND (a.gone_since, a.left_at::text, a.waits_for, a.trouble) IS DISTINCT FROM (s.gone_since, s.left_at::text, s.waits_for, s.trouble);
        changed := changed OR FOUND;
        IF s.trouble IS NOT NULL THEN -- there may be no time left for others
            pause := 1;
            EXIT;
        END IF;
    END LOOP;
    DELETE FROM outbox.arriving_shard AS a
     WHERE a.waits_for = '{}' AND NOT EXISTS (SELECT FROM outbox.arriving_key AS k WHERE k.from_group = a.from_group);
    IF changed THEN
        PERFORM outbox_internal.wake_relays();
    END IF;
    RETURN pause;
END $$;

-- Returns the destinations that wait for events of shards that have moved here, and the first of
-- these shards, for outbox.health().
CREATE FUNCTION outbox_internal.waits_for_shards()
RETURNS TABLE (destination name, shard bigint, node text, since timestamptz, trouble text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moving boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.arriving_shard) OR outbox_internal.citus_group() IS NULL THEN
        RETURN;
    END IF;
    moving := outbox_internal.shards_are_moving();
    RETURN QUERY
    SELECT d.name, min(a.shard), outbox_internal.citus_address(a.from_group), min(a.since),
           CASE WHEN moving THEN 'a move to this node has not been committed: SELECT recover_prepared_transactions() on the coordinator ends it'
                ELSE min(a.trouble) END
      FROM outbox.arriving_shard AS a
      JOIN outbox.destination AS d ON a.waits_for IS NULL OR d.name = ANY (a.waits_for)
     WHERE moving OR outbox_internal.shard_is_here(a.shard)
     GROUP BY d.name, a.from_group;
END $$;

-- Stops waiting for events of a shard that has moved to this node. Its events, and those of all
-- other shards that have come from the same node, are delivered without waiting for those that the
-- other node has not delivered. Events of one key may then arrive in another order than they were
-- written.
-- Errors: 42704 nothing waits for this shard.
CREATE FUNCTION outbox.skip_shard(shard bigint, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node integer;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    WITH skipped AS (
        DELETE FROM outbox.arriving_shard AS a
         USING outbox.arriving_shard AS s
         WHERE s.shard = $1 AND a.from_group = s.from_group AND (a.left_at IS NOT NULL OR outbox_internal.shard_is_here(a.shard))
        RETURNING a.from_group
    )
    SELECT max(s.from_group) INTO node FROM skipped AS s;
    IF node IS NULL THEN
        RAISE EXCEPTION 'nothing waits for shard %', shard
            USING ERRCODE = 'undefined_object', HINT = 'outbox.health() says which shard events wait for, on the node to which it has moved.';
    END IF;
    PERFORM outbox_internal.hold_keys_of(node, '[]', 0);
    INSERT INTO outbox.operation (requested_by, destination, action, why) VALUES (caller, '*', 'skip shard', format('shard %s', shard) || coalesce(': ' || $2, ''));
    PERFORM outbox_internal.wake_relays();
END $$;

-- Refuses to enqueue on a node from which the shard of a key has moved. For functions that run
-- where the shard of a key stands and enqueue there (create_distributed_function()). Such a
-- function may have begun on a node from which the shard then moved. Citus sends its statements
-- after the shard, but outbox.enqueue() writes to the log here, without order with what is written
-- there. To be called after the function has written to a row of the key: from then on the shard
-- does not move before the end of the transaction.
-- Errors: 40001 the shard does not stand on this node; the transaction can be tried again.
CREATE FUNCTION outbox.require_shard(relation regclass, key text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_dist_placement AS p JOIN pg_dist_local_group AS l USING (groupid)
                    WHERE p.shardid = get_shard_id_for_distribution_column(relation, key)) THEN
        RAISE EXCEPTION 'the shard of key "%" of table % does not stand on this node', key, relation
            USING ERRCODE = 'serialization_failure', HINT = 'It has moved, or the function did not run where it stands. Try the transaction again.';
    END IF;
END $$;
