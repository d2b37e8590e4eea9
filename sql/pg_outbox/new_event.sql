-- One event of a batch, with the arguments of outbox.enqueue(): either a payload, or data with its
-- content_type. extension/produce/enqueue.cpp names the attributes in this order.
CREATE TYPE outbox.new_event AS (
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    version         bigint,
    topic           text,
    ordering_key    text,
    headers         jsonb,
    schema_version  integer,
    event_id        uuid,
    source_event_id uuid,
    occurred_at     timestamptz,
    content_type    text,
    data            bytea
);
COMMENT ON TYPE outbox.new_event IS 'an event to enqueue; jsonb_populate_record() makes one from JSON';
