-- There are two ways to consume an event, with one memory of applied events:
--
-- Handle at once: begin_event() remembers the id in inbox.processed, in the transaction that
-- applies the event.
-- Store, then process: a message is in inbox.message until it is processed. One transaction deletes
-- it, remembers its id and applies it.
--
-- So the unit of deduplication is (consumer, event id). A message that waits is not stored again,
-- and an event that comes again after it was processed has no effect.

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
    'role that owns the consumer and that its handlers run as; null if messages came before any use';
COMMENT ON COLUMN inbox.consumer.subscriptions IS 'number of handlers that the server runs for it';
COMMENT ON COLUMN inbox.consumer.max_attempts IS 'number of failed attempts after which an event becomes a dead letter';
COMMENT ON COLUMN inbox.consumer.retry_base IS 'the first pause is a random part of this, the second of twice this, and so on';
COMMENT ON COLUMN inbox.consumer.retry_max IS 'the longest pause between two attempts';
COMMENT ON COLUMN inbox.consumer.on_dead_letter IS
    'release delivers later messages of its key; block keeps them until an operator decides';

CREATE TABLE inbox.subscription (
    consumer_id integer NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    event_type  text    NOT NULL,
    handler     text    NOT NULL,
    number      integer GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (consumer_id, event_type, handler)
);
COMMENT ON TABLE inbox.subscription IS 'functions that handle events of a consumer';
COMMENT ON COLUMN inbox.subscription.event_type IS 'pattern, in which * matches any number of characters';
COMMENT ON COLUMN inbox.subscription.handler IS 'schema-qualified name of a function with one argument of type inbox.message';
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
    aside           boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX message_order ON inbox.message (consumer_id, aside, seq);
CREATE INDEX message_aside ON inbox.message (consumer_id, ordering_key, seq) WHERE aside;
COMMENT ON TABLE inbox.message IS 'messages received and not processed yet';
COMMENT ON COLUMN inbox.message.seq IS 'order of arrival';
COMMENT ON COLUMN inbox.message.position IS 'position in the log of the sender';
COMMENT ON COLUMN inbox.message.source IS 'origin of the event';
COMMENT ON COLUMN inbox.message.aside IS
    'true if it was put aside: it is found by its key, and not read when messages of other keys are looked for';
COMMENT ON INDEX inbox.message_order IS 'finds the next messages of a consumer';
COMMENT ON INDEX inbox.message_aside IS 'finds the first messages of a key that were put aside';

-- Ids are stored in a ring of buckets, so that TRUNCATE removes old ones without DELETE and vacuum.
-- The bucket depends on the id alone, so an index of one bucket makes the id unique. The time in an
-- id of version 7 (RFC 9562) gives the bucket, in steps of 2^25 ms = 9 h 19 min; 32 buckets are
-- 12.4 days. Ids of other versions have no time. They go to bucket 32, which is pruned row by row.
-- The function is not STRICT, because it would then not be inlined, and would cost more than
-- everything else for an event.
CREATE FUNCTION inbox_internal.bucket(event_id uuid)
RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN pg_catalog.get_byte(pg_catalog.uuid_send(event_id), 6) >> 4 = 7
            THEN (pg_catalog.get_byte(pg_catalog.uuid_send(event_id), 2) >> 1) & 31
            ELSE 32
       END;
COMMENT ON FUNCTION inbox_internal.bucket(uuid) IS 'bucket in which the id of an event is stored';

CREATE TABLE inbox.processed (
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer_id  integer     NOT NULL,
    bucket       smallint    NOT NULL,
    source       text,
    PRIMARY KEY (consumer_id, event_id, bucket)
) PARTITION BY LIST (bucket);
COMMENT ON TABLE inbox.processed IS 'ids of applied events: the deduplication window';
COMMENT ON COLUMN inbox.processed.bucket IS 'inbox_internal.bucket(event_id)';
COMMENT ON COLUMN inbox.processed.source IS 'origin of the event; null if unknown';

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
COMMENT ON TABLE inbox.setting IS 'values of inbox.set_window(); defaults apply if there is no row';

CREATE TABLE inbox.bucket_check (
    bucket     smallint    PRIMARY KEY,
    not_before timestamptz NOT NULL
);
COMMENT ON TABLE inbox.bucket_check IS 'old buckets that cannot be emptied yet, and when inbox.prune() looks at them again';

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
    detail          text,
    hint            text,
    context         text,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX waiting_key ON inbox.waiting (consumer_id, ordering_key);
COMMENT ON TABLE inbox.waiting IS 'failed events that will be tried again; later messages of the same key wait behind them';
COMMENT ON COLUMN inbox.waiting.seq IS 'the message; null if the event is not stored and will come again from its source';
COMMENT ON COLUMN inbox.waiting.error IS 'message of the last error, which may have a detail, a hint and a context';
COMMENT ON COLUMN inbox.waiting.context IS 'what the handler did when the error was raised, the innermost call first';
COMMENT ON INDEX inbox.waiting_key IS 'finds the event that a message waits for';

CREATE TABLE inbox.dead_message (
    LIKE inbox.message INCLUDING DEFAULTS,
    attempts        integer     NOT NULL,
    error           text        NOT NULL,
    sqlstate        text        NOT NULL,
    first_failed_at timestamptz NOT NULL,
    died_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    detail          text,
    hint            text,
    context         text,
    incomplete      boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX dead_message_key ON inbox.dead_message (consumer_id, ordering_key);
COMMENT ON TABLE inbox.dead_message IS 'events that were given up and wait for a decision';
COMMENT ON COLUMN inbox.dead_message.seq IS 'order of arrival, which inbox.redrive() restores';
COMMENT ON COLUMN inbox.dead_message.incomplete IS 'true if parts of the event could not be kept, so that it is not processed again';
COMMENT ON INDEX inbox.dead_message_key IS 'finds the keys that a dead letter blocks';

CREATE VIEW inbox.obstacle AS
SELECT w.consumer_id, w.ordering_key, w.seq, false AS aside
  FROM inbox.waiting AS w
UNION ALL
SELECT d.consumer_id, d.ordering_key, d.seq, false
  FROM inbox.dead_message AS d
  JOIN inbox.consumer AS c ON c.id = d.consumer_id AND c.on_dead_letter = 'block'
UNION ALL
SELECT m.consumer_id, m.ordering_key, m.seq, true
  FROM inbox.message AS m
 WHERE m.aside;
COMMENT ON VIEW inbox.obstacle IS
    'failed events, blocking dead letters and messages put aside, behind which later messages of the same non-empty key wait';
COMMENT ON COLUMN inbox.obstacle.aside IS 'true if it is a message put aside, which may be processed itself';

CREATE TABLE inbox.claimed (
    consumer_id  integer     NOT NULL,
    event_id     uuid        NOT NULL,
    ordering_key text        NOT NULL,
    token        uuid        NOT NULL,
    leased_until timestamptz NOT NULL,
    leased_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_id, event_id)
);
CREATE INDEX claimed_key ON inbox.claimed (consumer_id, ordering_key);
CREATE INDEX claimed_token ON inbox.claimed (token);
COMMENT ON TABLE inbox.claimed IS 'messages under a lease of a processor outside the server';
COMMENT ON INDEX inbox.claimed_key IS 'finds the keys that are being processed';
COMMENT ON INDEX inbox.claimed_token IS 'finds the messages of a lease';

CREATE TABLE inbox.tombstone (
    projection regclass    NOT NULL,
    key_hash   bigint      NOT NULL,
    key        jsonb       NOT NULL,
    version    text        NOT NULL,
    removed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (projection, key_hash, key)
);
COMMENT ON TABLE inbox.tombstone IS 'removed rows of projections, so that older versions do not bring them back';
CREATE INDEX tombstone_time ON inbox.tombstone (removed_at);
COMMENT ON INDEX inbox.tombstone_time IS 'finds the removals that can be forgotten';
COMMENT ON COLUMN inbox.tombstone.key_hash IS 'hash of the key, by the types of its columns';
COMMENT ON COLUMN inbox.tombstone.key IS 'the key columns and their values as text';
COMMENT ON COLUMN inbox.tombstone.version IS 'value of the projection''s version column as text';

-- A key has the lock with its hash (apply.sql). Locks are rows, because other code cannot lock these.
-- Their number is small, because one transaction may lock all of them.
CREATE TABLE inbox.key_lock (
    slot integer PRIMARY KEY
);
INSERT INTO inbox.key_lock SELECT generate_series(0, 16383);
COMMENT ON TABLE inbox.key_lock IS 'locks of keys of projections';

-- A subscription has several rows, so that the connections of a consumer do not wait for each
-- other.
CREATE TABLE inbox.consumer_offset (
    consumer_id  integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    subscription text        NOT NULL,
    slot         smallint    NOT NULL,
    message_id   text        NOT NULL,
    publish_time timestamptz NOT NULL,
    lag_ms       bigint      NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by   text        NOT NULL,
    incarnation  text        NOT NULL DEFAULT '',
    PRIMARY KEY (consumer_id, subscription, slot)
);
COMMENT ON TABLE inbox.consumer_offset IS 'offsets of consumers in the subscriptions that they read';
COMMENT ON COLUMN inbox.consumer_offset.slot IS 'number for the connection of the consumer, from a hash of updated_by';
COMMENT ON COLUMN inbox.consumer_offset.lag_ms IS 'milliseconds from publish_time to when this was saved';
COMMENT ON COLUMN inbox.consumer_offset.incarnation IS 'by what the source recognizes the topic, stream or queue that message_id belongs to';

CREATE TABLE inbox.gap (
    consumer_id  integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    subscription text        NOT NULL,
    skipped      bigint      NOT NULL,
    recreated    bigint      NOT NULL,
    incarnation  text,
    why          text        NOT NULL,
    since        timestamptz NOT NULL,
    noted_at     timestamptz NOT NULL,
    accepted_at  timestamptz,
    PRIMARY KEY (consumer_id, subscription)
);
COMMENT ON TABLE inbox.gap IS 'reports about events that can no longer be received, see inbox.report_gap()';

CREATE TABLE inbox.offset_reset (
    consumer_id  integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    subscription text        NOT NULL,
    reset_id     bigint      NOT NULL,
    message_id   text        NOT NULL,
    publish_time timestamptz NOT NULL,
    PRIMARY KEY (consumer_id, subscription)
);
COMMENT ON TABLE inbox.offset_reset IS 'resets that consumers have not carried out yet';
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
COMMENT ON TABLE inbox.operation IS 'operations, with their role, time and reason';
COMMENT ON COLUMN inbox.operation.consumer IS 'empty if it concerns all';

CREATE TABLE inbox.progress (
    consumer_id integer     PRIMARY KEY,
    processed   bigint      NOT NULL,
    failures    bigint      NOT NULL,
    latency_p50 interval,
    latency_p99 interval,
    saved_at    timestamptz NOT NULL,
    wait_p50    interval,
    wait_p99    interval,
    seen_at     timestamptz,
    claimed     bigint      NOT NULL DEFAULT 0,
    sample      uuid,
    sampled_at  timestamptz,
    sample_occurred_at timestamptz,
    sample_received_at timestamptz,
    latencies   real[]      NOT NULL DEFAULT '{}',
    waits       real[]      NOT NULL DEFAULT '{}',
    latency_buckets bigint[],
    latency_sum double precision,
    unsampled   bigint      NOT NULL DEFAULT 0
);
COMMENT ON TABLE inbox.progress IS 'counters of processors, saved now and then';
COMMENT ON COLUMN inbox.progress.processed IS 'messages processed, without those that were claimed';
COMMENT ON COLUMN inbox.progress.seen_at IS 'when a process outside the server last claimed messages; null if none ever did';
COMMENT ON COLUMN inbox.progress.claimed IS 'messages given out by inbox.claim() and not given back: they are completed, or still claimed';
COMMENT ON COLUMN inbox.progress.sample IS 'a claimed message, whose latency is known when it has been completed';
COMMENT ON COLUMN inbox.progress.unsampled IS 'claimed messages that the latency of the sample stands for';
COMMENT ON COLUMN inbox.progress.latencies IS 'recent latencies of claimed messages, in seconds';
COMMENT ON COLUMN inbox.progress.latency_p50 IS 'median time from occurred_at to processed';
COMMENT ON COLUMN inbox.progress.latency_buckets IS 'messages processed, by time from occurred_at to processed; see inbox.status';
COMMENT ON COLUMN inbox.progress.latency_sum IS 'sum of these times, in seconds';
COMMENT ON COLUMN inbox.progress.wait_p50 IS 'median time from received_at to processed';

-- Rows are only inserted here, so that a transaction that has failed a message blocks no other.
CREATE TABLE inbox.progress_change (
    consumer_id integer NOT NULL,
    claimed     bigint  NOT NULL,
    failures    bigint  NOT NULL
);
COMMENT ON TABLE inbox.progress_change IS 'what inbox.claim() and inbox.prune() add to inbox.progress';

CREATE TABLE inbox.instance (
    consumer_id integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    name        text        NOT NULL,
    processed   bigint      NOT NULL,
    outstanding bigint      NOT NULL,
    latency_p50 interval,
    latency_p99 interval,
    seen_at     timestamptz NOT NULL,
    expected_by timestamptz NOT NULL,
    latency_buckets bigint[],
    latency_sum double precision,
    PRIMARY KEY (consumer_id, name)
);
COMMENT ON TABLE inbox.instance IS 'processes of consumers that report their figures, see inbox.report_progress()';
COMMENT ON COLUMN inbox.instance.outstanding IS 'events received and not applied yet';
COMMENT ON COLUMN inbox.instance.latency_buckets IS 'events that it has processed, by time from occurred_at to processed; see inbox.status';
COMMENT ON COLUMN inbox.instance.latency_sum IS 'sum of these times, in seconds';
COMMENT ON COLUMN inbox.instance.expected_by IS 'when the process has missed several reports';

COMMENT ON SEQUENCE inbox.consumer_id_seq IS 'ids of consumers';
COMMENT ON SEQUENCE inbox.subscription_number_seq IS 'order of subscriptions';
COMMENT ON SEQUENCE inbox.message_seq_seq IS 'order of arrival';
COMMENT ON SEQUENCE inbox.operation_id_seq IS 'ids of operations';

-- If the server has loaded pg_outbox, it acts on changes of these two tables, including a restore.
-- A role that writes to them need not be allowed to call wake().
CREATE FUNCTION inbox_internal.wake_keeper()
RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.wake('subscriptions'), inbox_internal.wake('messages');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION inbox_internal.wake_keeper() IS 'makes the server look for consumers at commit';

CREATE TRIGGER wake_keeper AFTER INSERT OR UPDATE OF name, role, subscriptions OR DELETE ON inbox.consumer
    FOR EACH STATEMENT EXECUTE FUNCTION inbox_internal.wake_keeper();
ALTER TABLE inbox.consumer ENABLE ALWAYS TRIGGER wake_keeper;
COMMENT ON TRIGGER wake_keeper ON inbox.consumer IS 'makes the server look for consumers at commit';
CREATE TRIGGER wake_keeper AFTER INSERT OR UPDATE OR DELETE ON inbox.subscription
    FOR EACH STATEMENT EXECUTE FUNCTION inbox_internal.wake_keeper();
ALTER TABLE inbox.subscription ENABLE ALWAYS TRIGGER wake_keeper;
COMMENT ON TRIGGER wake_keeper ON inbox.subscription IS 'makes the server look for consumers at commit';
