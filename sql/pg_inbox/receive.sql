-- What is wrong with an event; NULL: nothing. The limits are those of outbox.enqueue(), and of a payload as
-- much as can be handed out again as text. It has no search_path, so that it can be inlined: it is asked
-- for every event.
CREATE FUNCTION inbox.problem_of(event inbox.message)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN octet_length((event).topic) > 249 THEN 'topic is too long'
    WHEN octet_length((event).aggregate_type) > 249 THEN 'aggregate_type is too long'
    WHEN octet_length((event).event_type) > 249 THEN 'event_type is too long'
    WHEN octet_length((event).content_type) > 249 THEN 'content_type is too long'
    WHEN octet_length((event).source) > 1024 THEN 'source is too long'
    WHEN octet_length((event).aggregate_id) > 1024 THEN 'aggregate_id is too long'
    WHEN octet_length((event).ordering_key) > 1024 THEN 'ordering_key is too long'
    WHEN octet_length((event).payload) > 268435456 THEN 'payload is too large'
    WHEN (event).occurred_at < '0001-01-01 00:00:00+00' OR (event).occurred_at > '9999-12-31 23:59:59.999999+00'
      THEN 'occurred_at does not lie in the years 1 to 9999'
    WHEN (event).headers IS NULL THEN NULL
    WHEN jsonb_typeof((event).headers) <> 'object' THEN 'headers are not a JSON object'
    WHEN octet_length((event).headers::text) > 65536 THEN 'headers are too large'
    WHEN (SELECT count(*) > 64 FROM jsonb_object_keys((event).headers)) THEN 'too many headers'
END;
COMMENT ON FUNCTION inbox.problem_of(inbox.message) IS 'internal: what is wrong with an event';

CREATE FUNCTION inbox.check_event(event inbox.message)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    problem CONSTANT text := inbox.problem_of(event);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'event % cannot be stored: %', event.event_id, problem
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'At most: names 249 bytes, ids and keys 1024, 64 headers of 64 kB together, payload 256 MB.';
    END IF;
END $$;
COMMENT ON FUNCTION inbox.check_event(inbox.message) IS 'internal: refuses events that are too large';

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
    refused  inbox.message;
BEGIN
    SELECT event.* INTO refused
      FROM unnest(event_ids, receive.occurred_at, topics, aggregate_types, aggregate_ids, event_types, ordering_keys,
                  content_types, receive.headers, payloads)
           AS e (id, at, topic, aggregate_type, aggregate_id, type, key, content_type, headers, payload),
           LATERAL (SELECT (ROW(NULL, receiver, e.id, e.at, NULL, NULL, NULL, NULL, NULL, receive.source, e.topic,
                                e.aggregate_type, e.aggregate_id, e.type, e.key, e.content_type, e.headers,
                                e.payload)::inbox.message).*) AS event
     WHERE inbox.problem_of(event::inbox.message) IS NOT NULL
     LIMIT 1;
    IF FOUND THEN
        PERFORM inbox.check_event(refused);
    END IF;
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
