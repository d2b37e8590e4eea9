-- Keys of events in trouble, while a shard of a Citus cluster moves to this node.
--
-- A destination of the sending node may have settled everything except events that it tries again, and dead
-- letters that block their keys. That can take hours, and concerns only these keys: so only they are held
-- here. For each one a row of outbox.delivery stands in front of what is written here, a copy of the event
-- that holds the key there. It is never due, and goes when that event has gone.
--
-- When a shard moves on, copies go on with it. Shards may move in a circle, so a copy names the nodes that it
-- has come through, and none of them takes it: otherwise nodes would hold a key for each other for ever, each
-- because the other does.

-- Returns the first event in trouble of each key and destination, for the node to which a shard has
-- moved. If that event is a copy, it also returns the first one that is not: the node whose event
-- was copied does not take the copy, and its later events must not overtake those here. For each
-- destination there are at most at_most + 1 events.
CREATE FUNCTION outbox_internal.keys_in_trouble(at_most integer)
RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(json_agg(e), '[]')
      FROM (SELECT t.destination, t.position, t.occurred_at, t.event_id, t.version, t.schema_version, t.topic, t.aggregate_type,
                   t.aggregate_id, t.event_type, t.ordering_key, t.content_type,
                   coalesce(k.through, '{}') || outbox_internal.citus_group() AS through
              FROM outbox.destination AS d
             CROSS JOIN LATERAL outbox_internal.first_of_keys(d.name, at_most + 1) AS f
              LEFT JOIN LATERAL (SELECT n.position
                                   FROM outbox.delivery AS n
                                  WHERE n.destination = d.name AND n.ordering_key = f.ordering_key AND n.state <> 'DISCARDED'
                                    AND (n.state <> 'DEAD' OR outbox_internal.destination_option(d.name, 'on_dead_letter') = 'block')
                                    AND NOT EXISTS (SELECT FROM outbox.arriving_key AS c
                                                     WHERE c.destination = n.destination AND c.position = n.position)
                                  ORDER BY n.position
                                  LIMIT 1) AS own ON true
              JOIN outbox.delivery AS t ON t.destination = d.name AND t.position IN (f.position, own.position)
              LEFT JOIN outbox.arriving_key AS k ON k.destination = t.destination AND k.position = t.position) AS e;
END;

-- Holds exactly these keys of another node, as keys_in_trouble() returns them. Returns destinations that have
-- to wait as a whole: they have too many, or a relay outside of the server or endpoints, which do not learn
-- of held keys at once.
CREATE FUNCTION outbox_internal.hold_keys_of(from_group integer, events json, at_most integer)
RETURNS name[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    taken   CONSTANT json := (SELECT coalesce(json_agg(e), '[]')
                                FROM json_array_elements(events) AS e
                               WHERE NOT (e ->> 'through')::jsonb @> to_jsonb(outbox_internal.citus_group()));
    -- Their columns as in outbox.delivery.
    given   CONSTANT outbox.delivery[] := ARRAY(SELECT e FROM json_populate_recordset(NULL::outbox.delivery, taken) AS e);
    waiting CONSTANT name[] := ARRAY(SELECT d.name
                                       FROM outbox.destination AS d
                                       JOIN unnest(given) AS e ON e.destination = d.name
                                      GROUP BY d.name, d.external
                                     HAVING count(*) > at_most OR d.external
                                         OR outbox_internal.destination_option(d.name, 'url') LIKE 'endpoints:%');
    freed   record;
BEGIN
    -- Before rows of outbox.delivery, as relays and operators do.
    PERFORM FROM outbox.cursor AS c
      WHERE c.destination IN (SELECT e.destination FROM unnest(given) AS e
                              UNION SELECT k.destination FROM outbox.arriving_key AS k WHERE k.from_group = $1)
      ORDER BY c.destination FOR KEY SHARE;
    INSERT INTO outbox.arriving_key (destination, position, from_group, through)
    SELECT e.destination, e.position, $1, e.through
      FROM json_to_recordset(taken) AS e(destination name, position bigint, through integer[])
      JOIN outbox.destination AS d ON d.name = e.destination AND d.name <> ALL (waiting)
        ON CONFLICT DO NOTHING;
    INSERT INTO outbox.delivery (destination, position, xid, occurred_at, event_id, version, schema_version, topic, aggregate_type,
                                 aggregate_id, event_type, ordering_key, content_type, state, next_retry_at, last_error)
    SELECT e.destination, e.position, pg_current_xact_id(), e.occurred_at, e.event_id, e.version, e.schema_version, e.topic,
           e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key, e.content_type, 'PENDING', 'infinity',
           format('node %s has not delivered it', outbox_internal.citus_address($1))
      FROM unnest(given) AS e
      JOIN outbox.arriving_key AS k USING (destination, position)
        ON CONFLICT DO NOTHING;
    FOR freed IN
        WITH gone AS (
            DELETE FROM outbox.arriving_key AS k
             WHERE k.from_group = $1
               AND NOT EXISTS (SELECT FROM unnest(given) AS e
                                WHERE e.destination = k.destination AND e.position = k.position AND e.destination <> ALL (waiting))
            RETURNING k.destination, k.position
        ), deleted AS (
            DELETE FROM outbox.delivery AS d USING gone
             WHERE d.destination = gone.destination AND d.position = gone.position
            RETURNING d.destination, d.ordering_key
        )
        SELECT destination, array_agg(ordering_key) AS keys FROM deleted GROUP BY destination
    LOOP
        PERFORM outbox_internal.promote(freed.destination, freed.keys);
        PERFORM outbox_internal.wake_relays();
    END LOOP;
    RETURN waiting;
END $$;
