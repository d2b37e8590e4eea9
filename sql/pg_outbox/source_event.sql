-- Events that outbox.enqueue() has written for source events.

-- Remembers an event of a source event, or returns the earlier one. Returns NULL if the event is
-- the first of its kind for the source event; otherwise the id of the event that was enqueued
-- before.
CREATE FUNCTION outbox_internal.claim_source_event(
    source_event_id uuid,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    event_id        uuid)
RETURNS uuid
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    earlier uuid;
BEGIN
    LOOP
        INSERT INTO outbox.source_event
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT s.event_id INTO earlier
          FROM outbox.source_event AS s
         WHERE s.source_event_id = $1 AND s.aggregate_type = $2
           AND s.aggregate_id = $3 AND s.event_type = $4;
        IF FOUND THEN
            RETURN earlier;
        END IF;
        -- The row was removed in between.
    END LOOP;
END $$;

-- Removes old source events; the keeper calls this. Returns whether there are more old rows.
CREATE FUNCTION outbox_internal.forget_source_events()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- the plan is kept, and the table may have been empty when it was made
SET jit = off
AS $$
DECLARE
    at_once   CONSTANT integer  := 10000;
    oldest    CONSTANT timestamptz := clock_timestamp() - outbox_internal.setting('source_event_retention')::interval; -- for the index
    forgotten bigint;
BEGIN
    DELETE FROM outbox.source_event
     WHERE ctid = ANY (ARRAY(
               SELECT s.ctid
                 FROM outbox.source_event AS s
                WHERE s.enqueued_at < oldest
                ORDER BY s.enqueued_at
                LIMIT at_once));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten = at_once;
END $$;
