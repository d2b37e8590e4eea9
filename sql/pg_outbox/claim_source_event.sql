-- Called by outbox.enqueue(). NULL: this is the first event of its kind for the source event, and it
-- is remembered; else the id of the one that was enqueued before.
CREATE FUNCTION outbox.claim_source_event(
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
    INSERT INTO outbox.source_event
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT s.event_id INTO STRICT earlier
          FROM outbox.source_event AS s
         WHERE s.source_event_id = $1 AND s.aggregate_type = $2
           AND s.aggregate_id = $3 AND s.event_type = $4;
    END IF;
    RETURN earlier;
END $$;
COMMENT ON FUNCTION outbox.claim_source_event(uuid, text, text, text, uuid) IS
    'internal: remembers that an event was enqueued for a source event, once';
