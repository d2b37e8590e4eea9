-- States of events in trouble.
ALTER TABLE outbox.delivery DROP CONSTRAINT delivery_state_check;
DROP INDEX outbox.delivery_failed;
UPDATE outbox.delivery SET state = 'RETRY' WHERE state = 'RELEASED';
ALTER TABLE outbox.delivery
    ADD CONSTRAINT delivery_state_check CHECK (state IN ('PENDING', 'RETRY', 'DEAD', 'DISCARDED'));
CREATE INDEX delivery_failed ON outbox.delivery (state, destination) WHERE state IN ('DEAD', 'RETRY');
CREATE INDEX delivery_open ON outbox.delivery (destination, position)
    WHERE state IN ('PENDING', 'RETRY') AND operation IS NULL;

-- The table was made LIKE outbox.event INCLUDING COMMENTS.
COMMENT ON COLUMN outbox.delivery.position IS 'order of events; assigned after the transaction got its xid';
COMMENT ON COLUMN outbox.delivery.xid IS 'top-level transaction that enqueued the event';
COMMENT ON COLUMN outbox.delivery.occurred_at IS 'given by the caller, or the time of the enqueue';
COMMENT ON COLUMN outbox.delivery.event_id IS 'id of the event, and deduplication id at every destination';
COMMENT ON COLUMN outbox.delivery.version IS 'version of the aggregate after the event; null if it has none';
COMMENT ON COLUMN outbox.delivery.schema_version IS 'version of the payload''s schema';
COMMENT ON COLUMN outbox.delivery.source_event_id IS 'the event whose handling enqueued this one';
COMMENT ON COLUMN outbox.delivery.topic IS 'topic by which destinations and subscribers select the event';
COMMENT ON COLUMN outbox.delivery.aggregate_type IS 'type of the aggregate, such as order';
COMMENT ON COLUMN outbox.delivery.aggregate_id IS 'id of the aggregate';
COMMENT ON COLUMN outbox.delivery.event_type IS 'what happened';
COMMENT ON COLUMN outbox.delivery.ordering_key IS 'events with one key reach a destination in order; empty for no order';
COMMENT ON COLUMN outbox.delivery.content_type IS 'media type of the payload';
COMMENT ON COLUMN outbox.delivery.headers IS 'JSON object of scalars that travels with the event';
COMMENT ON COLUMN outbox.delivery.payload IS 'JSON as UTF-8 text, or any other bytes';
COMMENT ON COLUMN outbox.delivery.only_to IS 'number of the one destination it is for; null for all that select its topic';

ALTER TABLE outbox.cursor
    ADD COLUMN relay         uuid,
    ADD COLUMN relay_locks   boolean NOT NULL DEFAULT false,
    ADD COLUMN live_after    bigint  NOT NULL DEFAULT 0,
    ADD COLUMN published     bigint  NOT NULL DEFAULT 0,
    ADD COLUMN failures      bigint  NOT NULL DEFAULT 0,
    ADD COLUMN failing_since timestamptz;

ALTER TABLE outbox.operation ADD COLUMN why text;

CREATE TABLE outbox.transaction (
    destination name           NOT NULL,
    line        integer        NOT NULL,
    number      bigint         NOT NULL,
    positions   int8multirange NOT NULL,
    retries     int8multirange NOT NULL,
    PRIMARY KEY (destination, line, number)
);

CREATE TABLE outbox.relay (
    id           uuid        PRIMARY KEY,
    name         text        NOT NULL,
    version      text        NOT NULL,
    direct       boolean     NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz NOT NULL
);

CREATE UNLOGGED TABLE outbox.relay_lease (
    number integer PRIMARY KEY,
    lease  bigint  NOT NULL
);

CREATE TABLE outbox.relay_status (
    number           integer     PRIMARY KEY,
    relay            uuid        NOT NULL,
    state            text        NOT NULL,
    state_since      timestamptz NOT NULL,
    delivered        bigint,
    failures         bigint,
    unsettled        bigint,
    held_keys        bigint,
    read_to          xid8,
    oldest_unsettled timestamptz,
    settled_position bigint,
    latency_p50      interval,
    latency_p99      interval,
    last_error       text,
    last_error_at    timestamptz,
    throttled        bigint,
    request_limit    double precision,
    suspects         bigint,
    lanes_down       bigint,
    round_trip_p50   interval,
    round_trip_p99   interval,
    client_queue     bigint,
    connects         bigint,
    disconnects      bigint,
    failing_since    timestamptz,
    next_attempt_at  timestamptz,
    latency_buckets  bigint[],
    latency_sum      double precision,
    reported_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX cursor_destination ON outbox.cursor (destination);

CREATE TABLE outbox.endpoint (
    server      name        NOT NULL,
    name        name        NOT NULL,
    url         text        NOT NULL,
    topics      text        NOT NULL DEFAULT '*',
    secret_name text,
    paused      boolean     NOT NULL DEFAULT false,
    tenant      text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by  xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (server, name),
    CONSTRAINT endpoint_name_check CHECK (name::text ~ '^[^/,[:cntrl:][:space:]]([^/,[:cntrl:]]*[^/,[:cntrl:][:space:]])?$'),
    CONSTRAINT endpoint_length_check CHECK (octet_length(server::text) + octet_length(name::text) < 63),
    CONSTRAINT endpoint_url_check CHECK (url ~* '^https?://[^/?#@[:space:][:cntrl:]]+([/?#][^[:space:][:cntrl:]]*)?$'
                                         AND octet_length(url) <= 4096),
    CONSTRAINT endpoint_topics_check CHECK (octet_length(topics) <= 4096),
    CONSTRAINT endpoint_secret_name_check CHECK (secret_name ~ '^[^[:cntrl:]]+$' AND octet_length(secret_name) <= 1024)
);
CREATE INDEX endpoint_changed ON outbox.endpoint (server, changed_by);
ALTER TABLE outbox.endpoint ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner_of_server ON outbox.endpoint
    USING (server IN (SELECT s.srvname
                        FROM pg_catalog.pg_foreign_server AS s
                        JOIN pg_catalog.pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
                       WHERE w.fdwname = 'pg_outbox' AND pg_catalog.pg_has_role(s.srvowner, 'USAGE')));

CREATE TABLE outbox.endpoint_state (
    destination     name        PRIMARY KEY,
    since           pg_snapshot,
    known           boolean     NOT NULL DEFAULT false,
    failing_since   timestamptz,
    last_error      text,
    next_attempt_at timestamptz,
    inserted_by     xid8        NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX endpoint_state_new ON outbox.endpoint_state (destination) WHERE NOT known;
SELECT pg_extension_config_dump('outbox.endpoint', '');
SELECT pg_extension_config_dump('outbox.endpoint_state', '');

CREATE TABLE outbox.position_gap (
    after bigint PRIMARY KEY,
    size  bigint NOT NULL
);
SELECT pg_extension_config_dump('outbox.position_gap', '');

CREATE TABLE outbox.arriving_key (
    destination name      NOT NULL,
    position    bigint    NOT NULL,
    from_group  integer   NOT NULL,
    through     integer[] NOT NULL,
    PRIMARY KEY (destination, position)
);

CREATE SEQUENCE outbox.position_era AS integer MAXVALUE 8388607;
SELECT pg_extension_config_dump('outbox.position_era', '');

CREATE TABLE outbox.arriving_shard (
    shard      bigint      PRIMARY KEY,
    relation   oid         NOT NULL,
    from_group integer     NOT NULL,
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_since timestamptz,
    left_at    pg_snapshot,
    waits_for  name[],
    trouble    text
);

CREATE TYPE outbox.found_event AS (
    event_id        uuid,
    occurred_at     timestamptz,
    topic           text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    version         bigint,
    schema_version  integer,
    ordering_key    text,
    source_event_id uuid,
    headers         jsonb,
    content_type    text,
    payload_text    text,
    payload         bytea,
    "position"      bigint);

REVOKE ALL ON TYPE outbox.found_event FROM PUBLIC;
