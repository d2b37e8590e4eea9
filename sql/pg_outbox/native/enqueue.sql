-- Commits an event with a JSON payload together with the current transaction. Writes it into the
-- log, and returns its id.
--
-- Defaults: topic '<aggregate_type>.events', ordering_key the aggregate id ('' for no order),
-- schema_version 1, event_id a new UUID of version 7, occurred_at the time of the call.
-- With a source_event_id the event is enqueued once per (source event, aggregate, event type);
-- calls after the first return the id of that first one.
--
-- Errors: 22004 aggregate_type, aggregate_id, event_type or content_type is null; 22023 one of them
-- is empty, or a name, header or media type is malformed or reserved; 22001 one is too long (249
-- bytes for topic and types, 1,024 for aggregate_id and ordering_key); 54000 the payload is larger
-- than outbox.max_payload_size, or the headers than 8,192 bytes or 64 members; 22021 a JSON payload
-- is not valid UTF-8; 22P02 it is not JSON; 25006 on a standby or in a read-only transaction; 42501
-- the role may not enqueue events of this topic (outbox.grant_produce).
CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_json';

-- Commits an event with a payload of any media type together with the current transaction.
-- content_type is required. Bytes of a JSON type must be JSON.
CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         bytea,
    content_type    text,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_bytes';

-- Commits many events together with the current transaction. This costs less per event than single
-- calls. They get positions in the order of the array. Returns their ids in the same order. From a
-- set: outbox.enqueue(ARRAY(SELECT ROW(...)::outbox.new_event ...)).
CREATE FUNCTION outbox.enqueue(events outbox.new_event[])
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_batch';
