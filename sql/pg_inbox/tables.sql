-- Two ways to consume an event, one memory of what was applied:
--
-- Handle at once: begin_event() remembers the id in inbox.processed in the transaction that applies the
-- event. Store, then process: a message lies in inbox.message until it is processed, which deletes it,
-- remembers its id and applies it in one transaction.
--
-- So the unit of deduplication is (consumer, event id): a message that waits is not stored again, and an
-- event that comes again after it was processed finds its id and has no effect.

CREATE TABLE inbox.consumer (
    id            integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        NOT NULL UNIQUE CHECK (name <> ''),
    role          name,
    subscriptions integer     NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    max_attempts   integer    NOT NULL DEFAULT 10 CHECK (max_attempts > 0),
    retry_base     interval   NOT NULL DEFAULT '1 second' CHECK (retry_base > '0'),
    retry_max      interval   NOT NULL DEFAULT '5 minutes' CHECK (retry_max >= retry_base),
    on_dead_letter text       NOT NULL DEFAULT 'release' CHECK (on_dead_letter IN ('release', 'block'))
);
COMMENT ON TABLE inbox.consumer IS 'named receivers of events in this database';
COMMENT ON COLUMN inbox.consumer.role IS
    'whose consumer it is, and whose rights its handlers have; NULL: messages came, but nobody has used it yet';
COMMENT ON COLUMN inbox.consumer.subscriptions IS 'how many handlers the server runs for it';
COMMENT ON COLUMN inbox.consumer.max_attempts IS 'an event that fails so often becomes a dead letter';
COMMENT ON COLUMN inbox.consumer.retry_base IS 'the second attempt is after a random part of this, the third of twice this, ...';
COMMENT ON COLUMN inbox.consumer.retry_max IS 'the longest pause between two attempts';
COMMENT ON COLUMN inbox.consumer.on_dead_letter IS
    'release: later messages of its key go on; block: they wait until a person has decided';

CREATE TABLE inbox.subscription (
    consumer_id integer NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    event_type  text    NOT NULL,
    handler     text    NOT NULL,
    number      integer GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (consumer_id, event_type, handler)
);
COMMENT ON TABLE inbox.subscription IS 'which function handles which events of a consumer';
COMMENT ON COLUMN inbox.subscription.event_type IS 'pattern; * stands for any run of characters';
COMMENT ON COLUMN inbox.subscription.handler IS 'qualified name of a function of one inbox.message';
COMMENT ON COLUMN inbox.subscription.number IS 'handlers of one message run in this order';

CREATE TABLE inbox.message (
    seq             bigint      GENERATED ALWAYS AS IDENTITY,
    consumer_id     integer     NOT NULL,
    event_id        uuid        NOT NULL,
    occurred_at     timestamptz NOT NULL,
    received_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    position        bigint,
    version         bigint,
    schema_version  integer     NOT NULL DEFAULT 1,
    source_event_id uuid,
    source          text        NOT NULL DEFAULT '',
    topic           text        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    ordering_key    text        NOT NULL DEFAULT '',
    content_type    text        NOT NULL DEFAULT 'application/json',
    headers         jsonb,
    payload         bytea,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX message_order ON inbox.message (consumer_id, seq);
COMMENT ON TABLE inbox.message IS 'messages received and not processed yet';
COMMENT ON COLUMN inbox.message.seq IS 'order of arrival';
COMMENT ON COLUMN inbox.message.position IS 'position in the log of the sender';
COMMENT ON COLUMN inbox.message.source IS 'where the event comes from';
COMMENT ON INDEX inbox.message_order IS 'finds the next messages of a consumer';

-- The ids are kept in a ring of buckets, so that old ones can be forgotten by TRUNCATE: no DELETE, no
-- vacuum, however many there are. The bucket follows from the id alone, and so an id is unique: the time
-- in a version 7 id (RFC 9562) says which, in steps of 2^25 ms = 9 h 19 min; 32 of them are 12.4 days. Ids
-- of any other version have no time, and go to the bucket 32, which is pruned row by row. Not STRICT: else
-- it would not be inlined, and cost more than everything else about an event.
CREATE FUNCTION inbox_internal.bucket(event_id uuid)
RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN pg_catalog.get_byte(pg_catalog.uuid_send(event_id), 6) >> 4 = 7
            THEN (pg_catalog.get_byte(pg_catalog.uuid_send(event_id), 2) >> 1) & 31
            ELSE 32
       END;
COMMENT ON FUNCTION inbox_internal.bucket(uuid) IS 'where the id of an event is remembered';

CREATE TABLE inbox.processed (
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer_id  integer     NOT NULL,
    bucket       smallint    NOT NULL,
    source       text,
    PRIMARY KEY (consumer_id, event_id, bucket)
) PARTITION BY LIST (bucket);
COMMENT ON TABLE inbox.processed IS 'what has been applied: the deduplication window';
COMMENT ON COLUMN inbox.processed.bucket IS 'inbox_internal.bucket(event_id)';
COMMENT ON COLUMN inbox.processed.source IS 'where the event came from; NULL: not said';

DO $$
BEGIN
    FOR bucket IN 0..32 LOOP
        EXECUTE format('CREATE TABLE inbox.processed_%1$s PARTITION OF inbox.processed FOR VALUES IN (%1$s)', bucket);
        EXECUTE format('COMMENT ON TABLE inbox.processed_%s IS %L', bucket, 'a part of the deduplication window');
    END LOOP;
END $$;
CREATE INDEX processed_32_time ON inbox.processed_32 (processed_at);
COMMENT ON INDEX inbox.processed_32_time IS 'finds the ids that can be forgotten';

CREATE TABLE inbox.setting (
    one_row       boolean  PRIMARY KEY DEFAULT true CHECK (one_row),
    window_length interval NOT NULL
);
COMMENT ON TABLE inbox.setting IS 'what inbox.set_window() has set; without a row the defaults count';

CREATE TABLE inbox.bucket_check (
    bucket     smallint    PRIMARY KEY,
    not_before timestamptz NOT NULL
);
COMMENT ON TABLE inbox.bucket_check IS 'when inbox.prune() looks again at buckets that are old, but not to be emptied yet';

CREATE TABLE inbox.waiting (
    consumer_id     integer     NOT NULL,
    event_id        uuid        NOT NULL,
    seq             bigint,
    ordering_key    text        NOT NULL,
    attempts        integer     NOT NULL,
    error           text        NOT NULL,
    sqlstate        text        NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz NOT NULL,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX waiting_key ON inbox.waiting (consumer_id, ordering_key);
COMMENT ON TABLE inbox.waiting IS 'events that failed and are tried again; later messages of the same key wait behind them';
COMMENT ON COLUMN inbox.waiting.seq IS 'the message; NULL: the event is not stored, and comes again from where it came';
COMMENT ON INDEX inbox.waiting_key IS 'finds what a message has to wait for';

CREATE TABLE inbox.dead_message (
    LIKE inbox.message,
    attempts        integer     NOT NULL,
    error           text        NOT NULL,
    sqlstate        text        NOT NULL,
    first_failed_at timestamptz NOT NULL,
    died_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX dead_message_key ON inbox.dead_message (consumer_id, ordering_key);
COMMENT ON TABLE inbox.dead_message IS 'events that were given up, and wait for a person';
COMMENT ON COLUMN inbox.dead_message.seq IS 'order of arrival, which a redriven message gets back';
COMMENT ON INDEX inbox.dead_message_key IS 'finds the keys that a dead letter blocks';

CREATE VIEW inbox.obstacle AS
SELECT w.consumer_id, w.ordering_key, w.seq
  FROM inbox.waiting AS w
UNION ALL
SELECT d.consumer_id, d.ordering_key, d.seq
  FROM inbox.dead_message AS d
  JOIN inbox.consumer AS c ON c.id = d.consumer_id AND c.on_dead_letter = 'block';
COMMENT ON VIEW inbox.obstacle IS
    'what later messages of the same key, if it is not empty, have to wait for: it failed, or is a dead letter that blocks';

CREATE TABLE inbox.claimed (
    consumer_id  integer     NOT NULL,
    event_id     uuid        NOT NULL,
    ordering_key text        NOT NULL,
    token        uuid        NOT NULL,
    leased_until timestamptz NOT NULL,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX claimed_key ON inbox.claimed (consumer_id, ordering_key);
CREATE INDEX claimed_token ON inbox.claimed (token);
COMMENT ON TABLE inbox.claimed IS 'messages that a processor outside the server has under a lease';
COMMENT ON INDEX inbox.claimed_key IS 'finds the keys that are being processed';
COMMENT ON INDEX inbox.claimed_token IS 'finds what belongs to a lease';

CREATE TABLE inbox.tombstone (
    projection regclass    NOT NULL,
    key        jsonb       NOT NULL,
    version    text        NOT NULL,
    removed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (projection, key)
);
COMMENT ON TABLE inbox.tombstone IS 'rows of projections that were removed: older versions must not bring them back';
CREATE INDEX tombstone_time ON inbox.tombstone (removed_at);
COMMENT ON INDEX inbox.tombstone_time IS 'finds the removals that can be forgotten';
COMMENT ON COLUMN inbox.tombstone.key IS 'the key columns and their values';
COMMENT ON COLUMN inbox.tombstone.version IS 'as JSON has it; of the type of the projection''s version column';

-- Who inserts a row into a projection and who removes it lock the row of its key's hash (apply.sql). They are
-- rows, for nobody else can lock them; there are no more of them, for a transaction may lock all.
CREATE TABLE inbox.key_lock (
    slot integer PRIMARY KEY
);
INSERT INTO inbox.key_lock SELECT generate_series(0, 16383);
COMMENT ON TABLE inbox.key_lock IS 'locks of keys of projections';

-- Several rows per subscription, so that the connections of a consumer do not wait for each other.
CREATE TABLE inbox.consumer_offset (
    consumer_id  integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    subscription text        NOT NULL,
    slot         smallint    NOT NULL,
    message_id   text        NOT NULL,
    publish_time timestamptz NOT NULL,
    lag_ms       bigint      NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by   text        NOT NULL,
    PRIMARY KEY (consumer_id, subscription, slot)
);
COMMENT ON TABLE inbox.consumer_offset IS 'how far consumers have come in what they subscribe to';
COMMENT ON COLUMN inbox.consumer_offset.slot IS 'which connection of the consumer, by a hash of updated_by';
COMMENT ON COLUMN inbox.consumer_offset.lag_ms IS 'milliseconds from publish_time to when this was saved';

CREATE TABLE inbox.offset_reset (
    consumer_id  integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    subscription text        NOT NULL,
    reset_id     bigint      NOT NULL,
    message_id   text        NOT NULL,
    publish_time timestamptz NOT NULL,
    PRIMARY KEY (consumer_id, subscription)
);
COMMENT ON TABLE inbox.offset_reset IS 'where consumers are to go on from, and have not gone to yet';
COMMENT ON COLUMN inbox.offset_reset.reset_id IS 'the request, in inbox.operation';

CREATE TABLE inbox.operation (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    role      name        NOT NULL,
    consumer  text        NOT NULL,
    operation text        NOT NULL,
    details   jsonb       NOT NULL,
    why       text
);
COMMENT ON TABLE inbox.operation IS 'what people did: who, what, when, why';
COMMENT ON COLUMN inbox.operation.consumer IS 'empty: it concerns all';

CREATE TABLE inbox.progress (
    consumer_id integer     PRIMARY KEY,
    processed   bigint      NOT NULL,
    failures    bigint      NOT NULL,
    latency_p50 interval,
    latency_p99 interval,
    saved_at    timestamptz NOT NULL,
    wait_p50    interval,
    wait_p99    interval
);
COMMENT ON TABLE inbox.progress IS 'what processors count, saved now and then';
COMMENT ON COLUMN inbox.progress.latency_p50 IS 'from occurred_at to processed';
COMMENT ON COLUMN inbox.progress.wait_p50 IS 'from received_at to processed';

COMMENT ON SEQUENCE inbox.consumer_id_seq IS 'ids of consumers';
COMMENT ON SEQUENCE inbox.subscription_number_seq IS 'order of subscriptions';
COMMENT ON SEQUENCE inbox.message_seq_seq IS 'order of arrival';
COMMENT ON SEQUENCE inbox.operation_id_seq IS 'ids of operations';

-- pg_outbox, when the server has it loaded, looks after what is in these two: however it got there, by a
-- restore as well. Who may write to them need not be able to call wake().
CREATE FUNCTION inbox_internal.wake_keeper()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.wake('subscriptions'), inbox_internal.wake('messages');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION inbox_internal.wake_keeper() IS 'has the server look for consumers at commit';

CREATE TRIGGER wake_keeper AFTER INSERT OR UPDATE OF name, role, subscriptions OR DELETE ON inbox.consumer
    FOR EACH STATEMENT EXECUTE FUNCTION inbox_internal.wake_keeper();
ALTER TABLE inbox.consumer ENABLE ALWAYS TRIGGER wake_keeper;
COMMENT ON TRIGGER wake_keeper ON inbox.consumer IS 'has the server look for consumers at commit';
CREATE TRIGGER wake_keeper AFTER INSERT OR UPDATE OR DELETE ON inbox.subscription
    FOR EACH STATEMENT EXECUTE FUNCTION inbox_internal.wake_keeper();
ALTER TABLE inbox.subscription ENABLE ALWAYS TRIGGER wake_keeper;
COMMENT ON TRIGGER wake_keeper ON inbox.subscription IS 'has the server look for consumers at commit';
