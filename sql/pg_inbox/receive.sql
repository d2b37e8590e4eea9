-- Stores a batch of events for a consumer. Events that wait to be processed are not stored again.
-- The arrays go by position and have one length; their elements are what the columns of
-- inbox.message say. Returns how many were stored. A NULL consumer is the name of the database.
CREATE FUNCTION inbox.receive(
    consumer         text,
    source           text,
    event_ids        uuid[],
    occurred_at      timestamptz[],
    positions        bigint[],
    versions         bigint[],
    schema_versions  integer[],
    source_event_ids uuid[],
    topics           text[],
    aggregate_types  text[],
    aggregate_ids    text[],
    event_types      text[],
    ordering_keys    text[],
    content_types    text[],
    headers          jsonb[],
    payloads         bytea[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    receiver integer := inbox.consumer_id(coalesce(consumer, current_database()));
    stored   bigint;
BEGIN
    -- unnest() yields the elements in order, and so seq keeps the order of the batch.
    INSERT INTO inbox.message (
               consumer_id, source, event_id, occurred_at, position, version, schema_version,
               source_event_id, topic, aggregate_type, aggregate_id, event_type, ordering_key,
               content_type, headers, payload)
        SELECT receiver, coalesce(receive.source, ''), e.*
          FROM unnest(event_ids, receive.occurred_at, positions, versions, schema_versions,
                      source_event_ids, topics, aggregate_types, aggregate_ids, event_types,
                      ordering_keys, content_types, receive.headers, payloads) AS e
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS stored = ROW_COUNT;
    -- Heard by pg_outbox when the server has it loaded: the processor of the consumer looks at commit.
    PERFORM set_config('inbox.wake', 'messages', true);
    RETURN stored;
END $$;
COMMENT ON FUNCTION inbox.receive(text, text, uuid[], timestamptz[], bigint[], bigint[], integer[], uuid[], text[], text[], text[], text[], text[], text[], jsonb[], bytea[]) IS
    'stores a batch of events for a consumer, each once';
