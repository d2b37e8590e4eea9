-- The log. It is append-only: outbox.enqueue() inserts rows, and nothing updates or deletes them.
-- extension/log/log.hpp names the columns in this order.
CREATE TABLE outbox.event (
    position        bigint      NOT NULL,
    xid             xid8        NOT NULL,
    occurred_at     timestamptz NOT NULL,
    event_id        uuid        NOT NULL,
    version         bigint,
    schema_version  integer     NOT NULL,
    source_event_id uuid,
    topic           text        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    ordering_key    text        NOT NULL,
    content_type    text        NOT NULL,
    headers         jsonb,
    payload         bytea,
    only_to         integer
);
COMMENT ON TABLE outbox.event IS 'the log of events, with all its segments';
COMMENT ON COLUMN outbox.event.position IS 'order of events; assigned after the transaction got its xid';
COMMENT ON COLUMN outbox.event.xid IS 'top-level transaction that enqueued the event';
COMMENT ON COLUMN outbox.event.occurred_at IS 'given by the caller, or the time of the enqueue';
COMMENT ON COLUMN outbox.event.event_id IS 'id of the event, and deduplication id at every destination';
COMMENT ON COLUMN outbox.event.version IS 'version of the aggregate after the event; null if it has none';
COMMENT ON COLUMN outbox.event.schema_version IS 'version of the payload''s schema';
COMMENT ON COLUMN outbox.event.source_event_id IS 'the event whose handling enqueued this one';
COMMENT ON COLUMN outbox.event.topic IS 'topic by which destinations and subscribers select the event';
COMMENT ON COLUMN outbox.event.aggregate_type IS 'type of the aggregate, such as order';
COMMENT ON COLUMN outbox.event.aggregate_id IS 'id of the aggregate';
COMMENT ON COLUMN outbox.event.event_type IS 'what happened';
COMMENT ON COLUMN outbox.event.ordering_key IS 'events with one key reach a destination in order; empty for no order';
COMMENT ON COLUMN outbox.event.content_type IS 'media type of the payload';
COMMENT ON COLUMN outbox.event.headers IS 'JSON object of scalars that travels with the event';
COMMENT ON COLUMN outbox.event.payload IS 'JSON as UTF-8 text, or any other bytes';
COMMENT ON COLUMN outbox.event.only_to IS 'number of the one destination it is for; null for all that select its topic';

-- The ring of segments: enqueues go to the current one, and the keeper moves on to the next.
-- Segments that every destination is done with are emptied. The one index is for readers, which
-- look for the events of transactions, in order of position.

DO $$
BEGIN
    FOR number IN 0..3 LOOP
        EXECUTE format(
            'CREATE TABLE outbox.event_%1$s () INHERITS (outbox.event);
             COMMENT ON TABLE outbox.event_%1$s IS ''segment of the log'';
             CREATE INDEX event_%1$s_xid_position ON outbox.event_%1$s (xid, position);
             COMMENT ON INDEX outbox.event_%1$s_xid_position IS ''finds the events of a window''',
            number);
    END LOOP;
END
$$;

-- extension/log/log.hpp names the columns in this order.
CREATE TABLE outbox.ring (
    number  integer     PRIMARY KEY,
    current boolean     NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO outbox.ring (number, current) VALUES (0, true), (1, false), (2, false), (3, false);
COMMENT ON TABLE outbox.ring IS 'segments of the log, and which one is current';
COMMENT ON COLUMN outbox.ring.number IS 'segment event_<number>';
COMMENT ON COLUMN outbox.ring.current IS 'true if enqueues go to this segment';
COMMENT ON COLUMN outbox.ring.since IS 'when current last changed, or the segment was emptied';

-- CACHE 1: sessions that cache positions would break the order within a key.
CREATE SEQUENCE outbox.event_position AS bigint CACHE 1;
COMMENT ON SEQUENCE outbox.event_position IS 'positions of events';

-- Events enqueued for a source event, so that each is enqueued once. Rows are kept for
-- outbox.source_event_retention.
CREATE TABLE outbox.source_event (
    source_event_id uuid        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    event_id        uuid        NOT NULL,
    enqueued_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_event_id, event_type, aggregate_type, aggregate_id)
);
CREATE INDEX source_event_enqueued_at ON outbox.source_event (enqueued_at);
COMMENT ON INDEX outbox.source_event_enqueued_at IS 'finds old rows';
COMMENT ON TABLE outbox.source_event IS 'events that were enqueued while handling another event';
COMMENT ON COLUMN outbox.source_event.source_event_id IS 'the event that was handled';
COMMENT ON COLUMN outbox.source_event.aggregate_type IS 'aggregate type of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.aggregate_id IS 'aggregate id of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.event_type IS 'event type of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.event_id IS 'id of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.enqueued_at IS 'when it was enqueued';
