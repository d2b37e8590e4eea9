-- What outbox.enqueue() knows of events that it was called for before, by their source events.

-- NULL: this is the first event of its kind for the source event, and it is remembered; else the id of the
-- one that was enqueued before.
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
        -- It was forgotten in between.
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_source_event(uuid, text, text, text, uuid) IS
    'remembers that an event was enqueued for a source event, once';

-- Called by the keeper. Returns whether there are more of those that are old.
CREATE FUNCTION outbox_internal.forget_source_events()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    at_once   CONSTANT integer  := 10000;
    retention CONSTANT interval := current_setting('outbox.source_event_retention');
    forgotten bigint;
BEGIN
    DELETE FROM outbox.source_event
     WHERE ctid = ANY (ARRAY(
               SELECT s.ctid
                 FROM outbox.source_event AS s
                WHERE s.enqueued_at < clock_timestamp() - retention
                ORDER BY s.enqueued_at
                LIMIT at_once));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten = at_once;
END $$;
COMMENT ON FUNCTION outbox_internal.forget_source_events() IS 'forgets events that were enqueued for a source event long ago';
