-- Returns what is wrong with an event, or NULL. The limits are those of outbox.enqueue(), and for
-- the payload the size that can still be returned as text. It has no search_path of its own and no
-- subquery, so that it is inlined: it runs for every event.
CREATE FUNCTION inbox_internal.problem_of(
    source         text,
    occurred_at    timestamptz,
    topic          text,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    ordering_key   text,
    content_type   text,
    headers        jsonb,
    payload        bytea)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN octet_length(topic) > @{max_name_length} THEN 'topic is too long'
    WHEN octet_length(aggregate_type) > @{max_name_length} THEN 'aggregate_type is too long'
    WHEN octet_length(event_type) > @{max_name_length} THEN 'event_type is too long'
    WHEN octet_length(content_type) > @{max_name_length} THEN 'content_type is too long'
    WHEN octet_length(source) > @{max_key_length} THEN 'source is too long'
    WHEN octet_length(aggregate_id) > @{max_key_length} THEN 'aggregate_id is too long'
    WHEN octet_length(ordering_key) > @{max_key_length} THEN 'ordering_key is too long'
    WHEN octet_length(payload) > @{max_message_payload_size} THEN 'payload is too large'
    WHEN occurred_at < '0001-01-01 00:00:00+00' OR occurred_at > '9999-12-31 23:59:59.999999+00'
      THEN 'occurred_at does not lie in the years 1 to 9999'
    WHEN headers IS NULL THEN NULL
    WHEN jsonb_typeof(headers) NOT IN ('object', 'null') THEN 'headers are not a JSON object'
    -- 65 headers need more than 400 bytes, so smaller objects need no count.
    WHEN octet_length(headers::text) <= 400 THEN NULL
    WHEN octet_length(headers::text) > @{max_message_headers_size} THEN 'headers are too large'
    WHEN jsonb_array_length(jsonb_path_query_array(headers, '$.keyvalue()')) > @{max_headers} THEN 'too many headers'
END;

-- Refuses an event.
CREATE FUNCTION inbox_internal.refuse_event(event_id uuid, problem text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'event % cannot be stored: %', event_id, problem
        USING ERRCODE = 'program_limit_exceeded',
              HINT = 'Limits are @{max_name_length} bytes for names, @{max_key_length} for ids and keys, @{max_headers} headers with @{max_message_headers_kb} kB together, and @{max_message_payload_mb} MB for the payload.';
END $$;

-- Stores a batch of events for a consumer; duplicates are ignored. Events that wait to be processed
-- are not stored again. The arrays have the same length, and an event has the same index in all of
-- them; see inbox.message for their elements. Returns the number of events stored. If consumer is
-- NULL, it is the name of the database.
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
    receiver CONSTANT text := coalesce(consumer, current_database());
    stored   bigint;
    ignored  text;
BEGIN
    -- unnest() yields the elements in order, so seq keeps the order of the batch. In FROM it would
    -- first write each array into a tuplestore, which takes longer than all the checks.
    INSERT INTO inbox.message (
               consumer_id, source, event_id, occurred_at, position, version, schema_version,
               source_event_id, topic, aggregate_type, aggregate_id, event_type, ordering_key,
               content_type, headers, payload)
        SELECT coalesce((SELECT c.id FROM inbox.consumer AS c WHERE c.name = receiver), inbox_internal.consumer_id(receiver)),
               coalesce(receive.source, ''), e.*
          FROM (SELECT unnest(event_ids) AS event_id, unnest(receive.occurred_at) AS occurred_at, unnest(positions),
                       unnest(versions), unnest(schema_versions), unnest(source_event_ids), unnest(topics) AS topic,
                       unnest(aggregate_types) AS aggregate_type, unnest(aggregate_ids) AS aggregate_id,
                       unnest(event_types) AS event_type, unnest(ordering_keys) AS ordering_key,
                       unnest(content_types) AS content_type, unnest(receive.headers) AS headers,
                       unnest(payloads) AS payload) AS e
         WHERE inbox_internal.refuse_event(e.event_id, inbox_internal.problem_of(
                   receive.source, e.occurred_at, e.topic, e.aggregate_type, e.aggregate_id, e.event_type,
                   e.ordering_key, e.content_type, e.headers, e.payload)) IS NULL
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS stored = ROW_COUNT;
    ignored := inbox_internal.wake('messages'); -- the processor of the consumer looks at commit
    RETURN stored;
END $$;
