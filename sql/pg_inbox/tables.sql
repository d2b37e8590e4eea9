-- A message lies in inbox.message until it is processed. Processing it is one transaction: the message
-- is deleted, its id is remembered in inbox.processed, and the handlers run. So the unit of
-- deduplication is (consumer, event id) twice over: a message that waits is not stored again, and one
-- that comes again after it was processed finds its id and has no effect.

CREATE TABLE inbox.consumer (
    id            integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        NOT NULL UNIQUE CHECK (name <> ''),
    role          name,
    subscriptions integer     NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE inbox.consumer IS 'named receivers of events in this database';
COMMENT ON COLUMN inbox.consumer.role IS 'whose rights its handlers have; NULL: nobody has subscribed yet';
COMMENT ON COLUMN inbox.consumer.subscriptions IS 'how many there are';

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

CREATE TABLE inbox.processed (
    consumer_id  integer     NOT NULL,
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_id, event_id)
);
COMMENT ON TABLE inbox.processed IS 'what has been applied: the deduplication window';

CREATE TABLE inbox.waiting (
    consumer_id     integer     NOT NULL,
    seq             bigint      NOT NULL,
    event_id        uuid        NOT NULL,
    ordering_key    text        NOT NULL,
    attempts        integer     NOT NULL,
    error           text        NOT NULL,
    sqlstate        text        NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz NOT NULL,
    PRIMARY KEY (consumer_id, seq)
);
CREATE INDEX waiting_key ON inbox.waiting (consumer_id, ordering_key);
COMMENT ON TABLE inbox.waiting IS 'messages whose handler failed; later ones of the same key wait behind them';
COMMENT ON INDEX inbox.waiting_key IS 'finds what a message has to wait for';

CREATE TABLE inbox.progress (
    consumer_id integer     PRIMARY KEY,
    processed   bigint      NOT NULL,
    failures    bigint      NOT NULL,
    latency_p50 interval,
    latency_p99 interval,
    saved_at    timestamptz NOT NULL
);
COMMENT ON TABLE inbox.progress IS 'what processors count, saved now and then';

COMMENT ON SEQUENCE inbox.consumer_id_seq IS 'ids of consumers';
COMMENT ON SEQUENCE inbox.subscription_number_seq IS 'order of subscriptions';
COMMENT ON SEQUENCE inbox.message_seq_seq IS 'order of arrival';

SELECT pg_extension_config_dump('inbox.consumer', '');
SELECT pg_extension_config_dump('inbox.consumer_id_seq', '');
SELECT pg_extension_config_dump('inbox.subscription', '');
SELECT pg_extension_config_dump('inbox.subscription_number_seq', '');
SELECT pg_extension_config_dump('inbox.message', '');
SELECT pg_extension_config_dump('inbox.message_seq_seq', '');
SELECT pg_extension_config_dump('inbox.processed', '');
SELECT pg_extension_config_dump('inbox.waiting', '');
SELECT pg_extension_config_dump('inbox.progress', '');
