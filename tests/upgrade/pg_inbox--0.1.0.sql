\echo Use "CREATE EXTENSION pg_inbox" to load this file. \quit

-- Who may create a schema in this database may have made these, and put into them what this script would
-- then call. Everything below says in which schema it is, and nothing is looked up there.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
    schema record;
BEGIN
    FOR schema IN
        SELECT n.oid, n.nspname, n.nspowner, n.nspacl, pg_get_userbyid(n.nspowner) AS owner
          FROM pg_namespace AS n WHERE n.nspname IN ('inbox', 'inbox_internal')
    LOOP
        IF schema.owner <> current_user THEN
            RAISE EXCEPTION 'schema "%" belongs to role "%"', schema.nspname, schema.owner
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'Install as that role (also before a dump is restored), or drop the schema first.';
        ELSIF EXISTS (SELECT FROM aclexplode(schema.nspacl) AS acl
                       WHERE acl.grantee <> schema.nspowner AND acl.privilege_type = 'CREATE') THEN
            RAISE EXCEPTION 'others may create objects in schema "%"', schema.nspname
                USING ERRCODE = 'insufficient_privilege', HINT = 'Revoke CREATE on the schema from them.';
        ELSIF EXISTS (SELECT FROM pg_depend AS d
                       WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema.oid
                         AND d.classid <> 'pg_extension'::regclass) THEN
            RAISE EXCEPTION 'schema "%" is not empty', schema.nspname
                USING ERRCODE = 'duplicate_schema', HINT = 'Rename it, or install pg_inbox in another database.';
        END IF;
    END LOOP;
    -- An empty one of one's own will do, for a role that may not create schemas.
    IF to_regnamespace('inbox_internal') IS NULL THEN
        CREATE SCHEMA inbox_internal;
    END IF;
END $$;

COMMENT ON SCHEMA inbox IS 'pg_inbox: messages applied exactly once';
COMMENT ON SCHEMA inbox_internal IS 'pg_inbox: functions that its own functions, views and processors call';

-- Who asks. A function that has more rights than its caller, and needs to know who that is, takes it as
-- its last parameter:
--
--     caller inbox_internal.caller DEFAULT CURRENT_USER
--
-- The default and the check are evaluated where the call is made, before the function takes the rights of
-- its owner. So the value is the role whose rights the calling code has, and cannot be another: after SET
-- ROLE that role, in a SECURITY DEFINER function or a function of an index its owner. The role that logged
-- in says nothing about whose code is at work, and is not asked for anywhere. Inside, the parameter is passed
-- on: a default would be the owner.
--
-- A NULL gets past the check in an outer join or an empty subquery, so what is decided by a caller is
-- refused if it is NULL.
CREATE DOMAIN inbox_internal.caller AS name NOT NULL CHECK (VALUE = CURRENT_USER);
COMMENT ON DOMAIN inbox_internal.caller IS 'the role that calls a function; no other can be passed';

-- Nobody can keep one for later, in a table or a function of its own.
REVOKE ALL ON TYPE inbox_internal.caller FROM PUBLIC;

-- For functions that change whose, or what, a consumer is. In an operation that is restricted (autovacuum,
-- ANALYZE, REINDEX, REFRESH of what somebody else owns) nobody has asked for that; the server refuses UNLISTEN
-- there, which has no effect else.
CREATE FUNCTION inbox_internal.refuse_restricted()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UNLISTEN inbox_nothing_listens_to_this;
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_restricted() IS 'refuses to act in an index function and the like';

-- Of these objects, however they got here. An upgrade replaces it.
CREATE FUNCTION inbox.version()
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT '0.1.0';
END;
COMMENT ON FUNCTION inbox.version() IS 'the version of pg_inbox that is installed here';


-- Has the workers of pg_outbox look when the transaction commits, if this server has it loaded: 'messages' the
-- processors of this database, 'subscriptions' its keeper as well.
--
-- pg_inbox is plain SQL and cannot declare a function of that library, and its database need not have the extension
-- pg_outbox. A setting is what the library can hear of in every database (extension/settings.cpp); where it is
-- not loaded, nobody reads it. Without a search_path of its own the function is inlined.
CREATE FUNCTION inbox_internal.wake(what text)
RETURNS text
LANGUAGE sql VOLATILE
RETURN pg_catalog.set_config('inbox.wake', what, true);
COMMENT ON FUNCTION inbox_internal.wake(text) IS 'has workers in the server look at commit';

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

-- What pg_dump saves of the extension. Where pg_inbox is installed without CREATE EXTENSION everything
-- is dumped anyhow, and this file is left out.
SELECT pg_extension_config_dump('inbox.consumer', '');
SELECT pg_extension_config_dump('inbox.consumer_id_seq', '');
SELECT pg_extension_config_dump('inbox.subscription', '');
SELECT pg_extension_config_dump('inbox.subscription_number_seq', '');
SELECT pg_extension_config_dump('inbox.message', '');
SELECT pg_extension_config_dump('inbox.message_seq_seq', '');
DO $$
BEGIN
    FOR bucket IN 0..32 LOOP
        PERFORM pg_extension_config_dump(format('inbox.processed_%s', bucket)::regclass, '');
    END LOOP;
END $$;
SELECT pg_extension_config_dump('inbox.setting', '');
SELECT pg_extension_config_dump('inbox.waiting', '');
SELECT pg_extension_config_dump('inbox.dead_message', '');
SELECT pg_extension_config_dump('inbox.claimed', '');
SELECT pg_extension_config_dump('inbox.tombstone', '');
SELECT pg_extension_config_dump('inbox.consumer_offset', '');
SELECT pg_extension_config_dump('inbox.offset_reset', '');
SELECT pg_extension_config_dump('inbox.operation', '');
SELECT pg_extension_config_dump('inbox.operation_id_seq', '');
SELECT pg_extension_config_dump('inbox.progress', '');

-- The id of a consumer, which is made when it is new. With the caller's rights: other functions of
-- the inbox may, nobody else.
CREATE FUNCTION inbox_internal.consumer_id(consumer text)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT c.id INTO found_id FROM inbox.consumer AS c WHERE c.name = consumer;
    IF found_id IS NULL THEN
        IF coalesce(consumer, '') = '' THEN
            RAISE EXCEPTION 'consumer must not be empty' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF octet_length(consumer) > 249 THEN
            RAISE EXCEPTION 'name of a consumer is too long'
                USING ERRCODE = 'program_limit_exceeded',
                      DETAIL = format('It has %s bytes; at most 249 are allowed.', octet_length(consumer));
        END IF;
        INSERT INTO inbox.consumer (name) VALUES (consumer) ON CONFLICT (name) DO NOTHING;
        SELECT c.id INTO STRICT found_id FROM inbox.consumer AS c WHERE c.name = consumer;
    END IF;
    RETURN found_id;
END $$;
COMMENT ON FUNCTION inbox_internal.consumer_id(text) IS 'the id of a consumer, made when it is new';

-- Handling an event at once: in one transaction begin_event(), what the event causes, commit; then the
-- acknowledgement. Whoever is told false has nothing to do but to acknowledge.

-- The consumer as which the caller acts. It is made when it is new, and belongs to the role that used it
-- first, in whichever way. Error 42501: it belongs to a role that the caller is no member of.
CREATE FUNCTION inbox_internal.own_consumer(consumer text, caller inbox_internal.caller)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id  integer;
    owner   name;
BEGIN
    -- The only statement for all events but the first. With the caller's rights, for functions that
    -- have those of the owner.
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.consumer_id(consumer);
        UPDATE inbox.consumer AS c SET role = caller WHERE c.id = own_id AND c.role IS NULL;
        SELECT c.role INTO owner FROM inbox.consumer AS c WHERE c.id = own_id;
        IF pg_has_role(caller, owner, 'MEMBER') IS NOT TRUE THEN
            PERFORM inbox_internal.refuse_owner(consumer, owner);
        END IF;
    END IF;
    RETURN own_id;
END $$;
COMMENT ON FUNCTION inbox_internal.own_consumer(text, inbox_internal.caller) IS 'the consumer as which the caller acts';

CREATE FUNCTION inbox_internal.refuse_owner(consumer text, owner name)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'consumer "%" belongs to role "%"', consumer, owner
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Use another name, or become that role (SET ROLE). An operator can give it away: inbox.give_consumer().';
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_owner(text, name) IS 'refuses those who do not own a consumer';

-- Whether the event is new to the consumer. True: go on; the event counts as applied when the caller's
-- transaction commits, and as new again when it does not. False: it was applied before. While another
-- transaction has begun the same event, this waits for its end. source is kept for those who look.
--
-- Called for every event, and a search_path of its own would cost it a tenth of its time. So it has none, and
-- every name and operator says where it is from.
CREATE FUNCTION inbox.begin_event(
    consumer text,
    event_id uuid,
    source   text         DEFAULT NULL,
    caller   inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    own_id pg_catalog.int4;
BEGIN
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name OPERATOR(pg_catalog.=) consumer
       AND (c.role OPERATOR(pg_catalog.=) caller OR pg_catalog.pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
        VALUES (own_id, begin_event.event_id, inbox_internal.bucket(begin_event.event_id), begin_event.source)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox.begin_event(text, uuid, text, inbox_internal.caller) IS
    'whether an event is new to a consumer; from the commit on it is not';

-- The same for a batch: element n of the result says whether event_ids[n] is new. Of an id that occurs
-- several times only the first is.
CREATE FUNCTION inbox.begin_events(
    consumer  text,
    event_ids uuid[],
    source    text         DEFAULT NULL,
    caller    inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id  integer;
    new_ids uuid[];
BEGIN
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    -- In the order of the ids, so that two batches which share some wait for each other and do not lock
    -- each other out.
    WITH new AS (
        INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
            SELECT own_id, id, inbox_internal.bucket(id), begin_events.source
              FROM unnest(event_ids) AS id
             ORDER BY id
            ON CONFLICT DO NOTHING
            RETURNING processed.event_id)
    SELECT array_agg(new.event_id) INTO new_ids FROM new;
    IF cardinality(new_ids) = cardinality(event_ids) THEN
        RETURN array_fill(true, ARRAY[cardinality(event_ids)]);
    END IF;
    RETURN ARRAY(
        SELECT given.id = ANY (new_ids) AND given.n = min(given.n) OVER (PARTITION BY given.id)
          FROM unnest(event_ids) WITH ORDINALITY AS given (id, n)
         ORDER BY given.n);
END $$;
COMMENT ON FUNCTION inbox.begin_events(text, uuid[], text, inbox_internal.caller) IS
    'which events of a batch are new to a consumer; from the commit on they are not';

-- Whether the event counts as applied. It may become so while a transaction that has begun it goes on;
-- begin_event() waits for that.
CREATE FUNCTION inbox.was_applied(consumer text, event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN inbox_internal.is_processed(inbox_internal.own_consumer(consumer, caller), event_id);
END $$;
COMMENT ON FUNCTION inbox.was_applied(text, uuid, inbox_internal.caller) IS 'whether an event has been applied';

-- Asks the one bucket: a plan that is kept would lock all of them, and so wait for one that is emptied.
CREATE FUNCTION inbox_internal.is_processed(consumer_id integer, event_id uuid)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM inbox.processed_%s AS p WHERE p.consumer_id = $1 AND p.event_id = $2)',
                   inbox_internal.bucket(event_id))
        INTO found USING consumer_id, event_id;
    RETURN found;
END $$;
COMMENT ON FUNCTION inbox_internal.is_processed(integer, uuid) IS 'whether the id of an event is remembered';

-- Offsets: how far a consumer has come in what it subscribes to. They are saved in the transaction of
-- the effects, and so are never ahead of them.

-- Saves how far the consumer has come. Returns false, and writes nothing, when it has come as far
-- already, or when the offset has been reset and the consumer has not gone there yet.
CREATE FUNCTION inbox.save_offset(
    consumer     text,
    subscription text,
    message_id   text,
    publish_time timestamptz,
    updated_by   text DEFAULT NULL,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer;
    saver  text    := coalesce(updated_by, concat_ws(' ', nullif(current_setting('application_name'), ''),
                                                     pg_backend_pid()));
    lag    numeric := 1000 * extract(epoch FROM clock_timestamp() - publish_time);
BEGIN
    IF publish_time IS NULL THEN
        RAISE EXCEPTION 'publish_time must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    BEGIN
        LOCK TABLE inbox.offset_reset IN ROW SHARE MODE NOWAIT;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN false;
    END;
    INSERT INTO inbox.consumer_offset AS o
               (consumer_id, subscription, slot, message_id, publish_time, lag_ms, updated_by)
        SELECT own_id, save_offset.subscription, hashtext(saver) & 31, save_offset.message_id,
               save_offset.publish_time, greatest(lag, 0), saver
         WHERE NOT EXISTS (SELECT FROM inbox.offset_reset AS r
                            WHERE r.consumer_id = own_id AND r.subscription = save_offset.subscription)
           AND NOT EXISTS (SELECT FROM inbox.consumer_offset AS saved
                            WHERE saved.consumer_id = own_id
                              AND saved.subscription = save_offset.subscription
                              AND saved.publish_time >= save_offset.publish_time)
        ON CONFLICT ON CONSTRAINT consumer_offset_pkey DO UPDATE
           SET message_id = excluded.message_id,
               publish_time = excluded.publish_time,
               lag_ms = excluded.lag_ms,
               updated_at = excluded.updated_at,
               updated_by = excluded.updated_by
         WHERE o.publish_time < excluded.publish_time;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox.save_offset(text, text, text, timestamptz, text, inbox_internal.caller) IS
    'saves how far a consumer has come, unless it was there already';

-- How far the consumer has come; NULLs: nothing was saved yet. When reset_id is not NULL, message_id and
-- publish_time say where it is to go: seek there, then confirm_reset().
CREATE FUNCTION inbox.load_offset(
    consumer     text,
    subscription text,
    caller       inbox_internal.caller DEFAULT CURRENT_USER,
    OUT message_id   text,
    OUT publish_time timestamptz,
    OUT lag_ms       bigint,
    OUT updated_at   timestamptz,
    OUT updated_by   text,
    OUT reset_id     bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.own_consumer(consumer, caller);
BEGIN
    SELECT coalesce(r.message_id, o.message_id), coalesce(r.publish_time, o.publish_time),
           o.lag_ms, o.updated_at, o.updated_by, r.reset_id
      INTO load_offset.message_id, load_offset.publish_time,
           load_offset.lag_ms, load_offset.updated_at, load_offset.updated_by, load_offset.reset_id
      FROM (SELECT * FROM inbox.consumer_offset AS saved
             WHERE saved.consumer_id = own_id AND saved.subscription = load_offset.subscription
             ORDER BY saved.publish_time DESC LIMIT 1) AS o
      FULL JOIN (SELECT * FROM inbox.offset_reset AS pending
                  WHERE pending.consumer_id = own_id
                    AND pending.subscription = load_offset.subscription) AS r ON true;
END $$;
COMMENT ON FUNCTION inbox.load_offset(text, text, inbox_internal.caller) IS 'how far a consumer has come, or where it is to go';

-- Has a consumer go on from another time. It does when its process hears of it; until then nothing is
-- saved. A later reset takes the place of one that nobody has carried out. What was applied already is
-- not applied again: see inbox.forget().
CREATE FUNCTION inbox.reset_offset(
    consumer     text,
    subscription text,
    publish_time timestamptz,
    why          text,
    message_id   text DEFAULT '',
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.take_control(consumer);
    new_id   bigint;
BEGIN
    IF publish_time IS NULL THEN
        RAISE EXCEPTION 'publish_time must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    LOCK TABLE inbox.offset_reset IN EXCLUSIVE MODE;
    new_id := inbox_internal.note_operation(caller, consumer, 'reset offset', why, jsonb_build_object(
        'subscription', subscription,
        'from', (SELECT jsonb_build_object('publish_time', o.publish_time, 'message_id', o.message_id)
                   FROM inbox.consumer_offset AS o
                  WHERE o.consumer_id = own_id AND o.subscription = reset_offset.subscription
                  ORDER BY o.publish_time DESC LIMIT 1),
        'to', jsonb_build_object('publish_time', publish_time, 'message_id', message_id)));
    INSERT INTO inbox.offset_reset AS r (consumer_id, subscription, reset_id, message_id, publish_time)
        VALUES (own_id, reset_offset.subscription, new_id, coalesce(reset_offset.message_id, ''),
                reset_offset.publish_time)
        ON CONFLICT ON CONSTRAINT offset_reset_pkey DO UPDATE
           SET reset_id = excluded.reset_id,
               message_id = excluded.message_id,
               publish_time = excluded.publish_time;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION inbox.reset_offset(text, text, timestamptz, text, text, inbox_internal.caller) IS
    'has a consumer go on from another time';

-- Says that the consumer has gone where a reset sent it: from here on its offset is saved again. False:
-- there is no such reset, or a later one has taken its place.
CREATE FUNCTION inbox.confirm_reset(
    consumer     text,
    subscription text,
    reset_id     bigint,
    updated_by   text DEFAULT NULL,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.own_consumer(consumer, caller);
    reset  inbox.offset_reset;
BEGIN
    DELETE FROM inbox.offset_reset AS r
     WHERE r.consumer_id = own_id AND r.subscription = confirm_reset.subscription
       AND r.reset_id = confirm_reset.reset_id
     RETURNING r.* INTO reset;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM inbox.consumer_offset AS o
     WHERE o.consumer_id = own_id AND o.subscription = confirm_reset.subscription;
    PERFORM inbox.save_offset(consumer, subscription, reset.message_id, reset.publish_time, updated_by, caller);
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox.confirm_reset(text, text, bigint, text, inbox_internal.caller) IS
    'says that a consumer has gone where a reset sent it';

CREATE FUNCTION inbox_internal.note_operation(caller inbox_internal.caller, consumer text, operation text, why text, details jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id bigint;
BEGIN
    IF coalesce(btrim(why), '') = '' THEN
        RAISE EXCEPTION 'why must be given'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'It is kept in inbox.operation.';
    END IF;
    INSERT INTO inbox.operation (role, consumer, operation, details, why)
        VALUES (caller, note_operation.consumer, note_operation.operation, note_operation.details,
                note_operation.why)
        RETURNING id INTO new_id;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION inbox_internal.note_operation(inbox_internal.caller, text, text, text, jsonb) IS 'who did what, when and why';

CREATE VIEW inbox.offsets AS
SELECT c.name AS consumer,
       subscription,
       o.message_id,
       o.publish_time,
       o.lag_ms,
       o.updated_at,
       o.updated_by,
       clock_timestamp() - o.updated_at AS idle,
       r.reset_id IS NOT NULL AS reset_pending
  FROM (SELECT DISTINCT ON (saved.consumer_id, saved.subscription) saved.*
          FROM inbox.consumer_offset AS saved
         ORDER BY saved.consumer_id, saved.subscription, saved.publish_time DESC) AS o
  FULL JOIN inbox.offset_reset AS r USING (consumer_id, subscription)
  JOIN inbox.consumer AS c ON c.id = consumer_id;
COMMENT ON VIEW inbox.offsets IS 'how far consumers have come';
COMMENT ON COLUMN inbox.offsets.lag_ms IS 'milliseconds from publish_time to when it was saved';
COMMENT ON COLUMN inbox.offsets.idle IS 'for how long nothing was saved';
COMMENT ON COLUMN inbox.offsets.reset_pending IS 'it was reset, and the consumer has not gone there yet';

-- What is wrong with an event; NULL: nothing. The limits are those of outbox.enqueue(), and of a payload as
-- much as can be handed out again as text. It has no search_path of its own and no subquery, so that it is
-- inlined: it is asked for every event.
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
    WHEN octet_length(topic) > 249 THEN 'topic is too long'
    WHEN octet_length(aggregate_type) > 249 THEN 'aggregate_type is too long'
    WHEN octet_length(event_type) > 249 THEN 'event_type is too long'
    WHEN octet_length(content_type) > 249 THEN 'content_type is too long'
    WHEN octet_length(source) > 1024 THEN 'source is too long'
    WHEN octet_length(aggregate_id) > 1024 THEN 'aggregate_id is too long'
    WHEN octet_length(ordering_key) > 1024 THEN 'ordering_key is too long'
    WHEN octet_length(payload) > 268435456 THEN 'payload is too large'
    WHEN occurred_at < '0001-01-01 00:00:00+00' OR occurred_at > '9999-12-31 23:59:59.999999+00'
      THEN 'occurred_at does not lie in the years 1 to 9999'
    WHEN headers IS NULL THEN NULL
    WHEN jsonb_typeof(headers) NOT IN ('object', 'null') THEN 'headers are not a JSON object'
    -- 65 of them are longer.
    WHEN octet_length(headers::text) <= 400 THEN NULL
    WHEN octet_length(headers::text) > 65536 THEN 'headers are too large'
    WHEN jsonb_array_length(jsonb_path_query_array(headers, '$.keyvalue()')) > 64 THEN 'too many headers'
END;
COMMENT ON FUNCTION inbox_internal.problem_of(text, timestamptz, text, text, text, text, text, text, jsonb, bytea) IS
    'what is wrong with an event';

CREATE FUNCTION inbox_internal.refuse_event(event_id uuid, problem text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'event % cannot be stored: %', event_id, problem
        USING ERRCODE = 'program_limit_exceeded',
              HINT = 'At most: names 249 bytes, ids and keys 1024, 64 headers of 64 kB together, payload 256 MB.';
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_event(uuid, text) IS 'refuses an event';

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
    receiver CONSTANT text := coalesce(consumer, current_database());
    stored   bigint;
    ignored  text;
BEGIN
    -- unnest() yields the elements in order, and so seq keeps the order of the batch. In FROM it would write
    -- each array into a store of its own first, which takes longer than all the checks.
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
COMMENT ON FUNCTION inbox.receive(text, text, uuid[], timestamptz[], bigint[], bigint[], integer[], uuid[], text[], text[], text[], text[], text[], text[], jsonb[], bytea[]) IS
    'stores a batch of events for a consumer, each once';

-- What a consumer does about events that fail.

-- How long to wait after so many failed attempts: a random part of retry_base, of twice that, ... up to
-- retry_max.
CREATE FUNCTION inbox_internal.retry_delay(policy inbox.consumer, attempts integer)
RETURNS interval
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT make_interval(secs => random() * least(extract(epoch FROM (policy).retry_max)::double precision,
                                                  extract(epoch FROM (policy).retry_base)::double precision
                                                      * 2::double precision ^ least(attempts - 1, 60)));
END;
COMMENT ON FUNCTION inbox_internal.retry_delay(inbox.consumer, integer) IS 'the pause before the next attempt';

-- Changes what is not NULL. Events that wait already keep the time of their next attempt.
CREATE FUNCTION inbox.set_policy(
    consumer       text,
    max_attempts   integer  DEFAULT NULL,
    retry_base     interval DEFAULT NULL,
    retry_max      interval DEFAULT NULL,
    on_dead_letter text     DEFAULT NULL,
    caller         inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer := inbox_internal.own_consumer(consumer, caller);
    before inbox.consumer;
    policy inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    SELECT c.* INTO STRICT before FROM inbox.consumer AS c WHERE c.id = own_id FOR NO KEY UPDATE;
    policy := before;
    policy.max_attempts := coalesce($2, before.max_attempts);
    policy.retry_base := coalesce($3, before.retry_base);
    policy.retry_max := coalesce($4, before.retry_max);
    policy.on_dead_letter := coalesce($5, before.on_dead_letter);
    IF policy = before THEN
        RETURN;
    END IF;
    IF policy.max_attempts < 1 THEN
        RAISE EXCEPTION 'max_attempts must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    ELSIF policy.retry_base <= interval '0' THEN
        RAISE EXCEPTION 'retry_base must be more than nothing' USING ERRCODE = 'invalid_parameter_value';
    ELSIF policy.retry_max < policy.retry_base THEN
        RAISE EXCEPTION 'retry_max must be at least retry_base'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('They would be %s and %s.', policy.retry_max, policy.retry_base);
    ELSIF policy.on_dead_letter NOT IN ('release', 'block') THEN
        RAISE EXCEPTION 'on_dead_letter must be "release" or "block", not "%"', policy.on_dead_letter
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    UPDATE inbox.consumer AS c
       SET max_attempts = policy.max_attempts, retry_base = policy.retry_base,
           retry_max = policy.retry_max, on_dead_letter = policy.on_dead_letter
     WHERE c.id = own_id;
    INSERT INTO inbox.operation (role, consumer, operation, details)
        VALUES (caller, consumer, 'set policy', jsonb_strip_nulls(jsonb_build_object(
                    'max_attempts', $2, 'retry_base', $3, 'retry_max', $4, 'on_dead_letter', $5)));
    PERFORM inbox_internal.wake('messages'); -- what was blocked may go on
END $$;
COMMENT ON FUNCTION inbox.set_policy(text, integer, interval, interval, text, inbox_internal.caller) IS
    'says how often and when events of a consumer are tried again, and what a dead letter does to its key';

-- Events that fail. What a failure means is decided here for all: the processor of the server, those
-- that claim messages, and those that handle at once.

-- Counts a failed attempt. False: the event is to be tried again, or was applied by somebody else
-- meanwhile. True: it is a dead letter now; its id is remembered, so that repetitions have no effect.
--
-- Rows are locked in this order, here as elsewhere: inbox.claimed, message, waiting, processed. The caller
-- has locked the message, if there is one.
--
-- An event whose seq is NULL is not stored here. If dead letters of its consumer block their keys it
-- never becomes one: its key is blocked where it comes from, for as long as it is not acknowledged.
CREATE FUNCTION inbox_internal.count_failure(
    event        inbox.message,
    error        text,
    sqlstate     text,
    permanent    boolean,
    max_attempts integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy  inbox.consumer;
    failure inbox.waiting;
BEGIN
    SELECT c.* INTO STRICT policy FROM inbox.consumer AS c WHERE c.id = event.consumer_id;
    INSERT INTO inbox.waiting AS w (consumer_id, event_id, seq, ordering_key, attempts, error, sqlstate,
                                    next_attempt_at)
        VALUES (event.consumer_id, event.event_id, event.seq, event.ordering_key, 1,
                left(coalesce(error, ''), 10000), coalesce(sqlstate, 'P0001'),
                clock_timestamp() + inbox_internal.retry_delay(policy, 1))
        ON CONFLICT ON CONSTRAINT waiting_pkey DO UPDATE
           SET seq = coalesce(excluded.seq, w.seq),
               attempts = w.attempts + 1,
               error = excluded.error,
               sqlstate = excluded.sqlstate,
               last_failed_at = clock_timestamp(),
               next_attempt_at = clock_timestamp() + inbox_internal.retry_delay(policy, w.attempts + 1)
        RETURNING w.* INTO failure;
    IF event.seq IS NULL AND policy.on_dead_letter = 'block'
       OR failure.attempts < coalesce(max_attempts, policy.max_attempts)
          AND NOT coalesce(permanent, false) AND failure.sqlstate <> 'IL002' THEN
        RETURN false;
    END IF;

    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = event.consumer_id AND w.event_id = event.event_id;
    DELETE FROM inbox.message AS m WHERE m.consumer_id = event.consumer_id AND m.event_id = event.event_id;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
        VALUES (event.consumer_id, event.event_id, inbox_internal.bucket(event.event_id), event.source)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    event.seq := coalesce(event.seq, nextval('inbox.message_seq_seq'));
    INSERT INTO inbox.dead_message
        SELECT event.*, failure.attempts, failure.error, failure.sqlstate, failure.first_failed_at;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.count_failure(inbox.message, text, text, boolean, integer) IS
    'what comes of a failed attempt';

-- Messages that are too large for those who would be given them, or for the indexes that a failure needs. They
-- become dead letters, so that others go on. receive() takes no such message; but one may come with a dump, or
-- from before there were limits. Looked for when messages are taken, for that costs less than an index.
CREATE FUNCTION inbox_internal.is_too_large(message inbox.message)
RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN octet_length((message).ordering_key) > 1024 OR octet_length((message).payload) > 268435456
       OR octet_length((message).topic) + octet_length((message).aggregate_type) + octet_length((message).aggregate_id)
          + octet_length((message).event_type) + octet_length((message).content_type) + octet_length((message).source) > 16384
       OR (message).headers IS NOT NULL AND octet_length((message).headers::text) > 65536;
COMMENT ON FUNCTION inbox_internal.is_too_large(inbox.message) IS 'whether nobody can be given a message';

-- True: the message was there, and nobody else at it, and it is a dead letter now. A key that is too long is cut.
CREATE FUNCTION inbox_internal.give_up(message inbox.message)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    problem CONSTANT text := inbox_internal.problem_of(
        message.source, message.occurred_at, message.topic, message.aggregate_type, message.aggregate_id,
        message.event_type, message.ordering_key, message.content_type, message.headers, message.payload);
BEGIN
    PERFORM FROM inbox.message AS m
      WHERE m.consumer_id = message.consumer_id AND m.event_id = message.event_id FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        message.ordering_key := left(message.ordering_key, 200);
        PERFORM inbox_internal.count_failure(message, problem, '54000', true, NULL);
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox_internal.give_up(inbox.message) IS 'makes a message that is too large a dead letter';

-- For those who handle at once, after they have rolled back: counts a failed attempt. False: do not
-- acknowledge the event, it is to come again. True: it is a dead letter, stored here, and can be
-- acknowledged. With NULL for max_attempts the policy of the consumer says how often it is tried.
CREATE FUNCTION inbox.fail_event(
    consumer        text,
    source          text,
    event_id        uuid,
    occurred_at     timestamptz,
    "position"      bigint,
    version         bigint,
    schema_version  integer,
    source_event_id uuid,
    topic           text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    ordering_key    text,
    content_type    text,
    headers         jsonb,
    payload         bytea,
    error           text,
    sqlstate        text,
    permanent       boolean DEFAULT false,
    max_attempts    integer DEFAULT NULL,
    caller          inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    event   inbox.message;
    problem text;
BEGIN
    event.consumer_id := inbox_internal.own_consumer(consumer, caller);
    -- Applied, or dead, since the attempt began: it will be found so when it comes again.
    IF EXISTS (SELECT FROM inbox.processed AS p
                WHERE p.consumer_id = event.consumer_id AND p.event_id = fail_event.event_id
                  AND p.bucket = inbox_internal.bucket(fail_event.event_id)) THEN
        RETURN false;
    END IF;
    event.source := coalesce(source, '');
    event.event_id := event_id;
    event.occurred_at := coalesce(occurred_at, clock_timestamp());
    event.received_at := clock_timestamp();
    event.position := "position";
    event.version := version;
    event.schema_version := coalesce(schema_version, 1);
    event.source_event_id := source_event_id;
    event.topic := coalesce(topic, '');
    event.aggregate_type := coalesce(aggregate_type, '');
    event.aggregate_id := coalesce(aggregate_id, '');
    event.event_type := coalesce(event_type, '');
    event.ordering_key := coalesce(ordering_key, '');
    event.content_type := coalesce(content_type, 'application/json');
    event.headers := headers;
    event.payload := payload;
    problem := inbox_internal.problem_of(event.source, event.occurred_at, event.topic, event.aggregate_type, event.aggregate_id,
                          event.event_type, event.ordering_key, event.content_type, event.headers, event.payload);
    IF problem IS NOT NULL THEN
        PERFORM inbox_internal.refuse_event(event_id, problem);
    END IF;
    RETURN inbox_internal.count_failure(event, error, sqlstate, permanent, max_attempts);
END $$;
COMMENT ON FUNCTION inbox.fail_event(text, text, uuid, timestamptz, bigint, bigint, integer, uuid, text, text, text, text, text, text, jsonb, bytea, text, text, boolean, integer, inbox_internal.caller) IS
    'counts a failed attempt of somebody who handles at once; says whether the event was given up';

-- For those who handle at once, in the transaction that applies events which have failed before: they
-- do not count as failing any more. Returns how many did.
CREATE FUNCTION inbox.end_failure(consumer text, event_ids uuid[], caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer := inbox_internal.own_consumer(consumer, caller);
    ended  bigint;
BEGIN
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = own_id AND w.event_id = ANY (event_ids);
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END $$;
COMMENT ON FUNCTION inbox.end_failure(text, uuid[], inbox_internal.caller) IS 'says that events which had failed were applied';

-- Whose rights handlers have is a row of inbox.consumer, and what they are one of inbox.subscription. Who owns
-- these tables could write any; and when they are restored from a dump, or taken over (REASSIGN OWNED), they
-- belong to somebody who may be allowed more. So the server runs handlers only as a role that has confirmed
-- them, and that is kept where only the role itself can write, or somebody who could become it: in a setting of the role in
-- this database (pg_db_role_setting), as a list of tokens, one per subscription:
--
--     ALTER ROLE … IN DATABASE … SET inbox.confirmed = '<hash of consumer>:<hash of event type and handler>,…'
--
-- It is not in a dump of the database (but pg_dump --create and pg_dumpall write settings of roles).
-- bgworker/server/consumers.cpp looks for the first hash before it starts a processor, and the processor
-- asks confirmed_subscriptions().
CREATE VIEW inbox_internal.confirmation AS
SELECT s.*, s.token = ANY (saved.tokens) IS TRUE AS confirmed
  FROM (SELECT c.id AS consumer_id, c.name AS consumer, c.role, s.number, s.event_type, s.handler,
               left(encode(sha256(convert_to(c.name, getdatabaseencoding())), 'hex'), 32) || ':'
                   || left(encode(sha256(convert_to(format('%L %L', s.event_type, s.handler), getdatabaseencoding())), 'hex'), 32)
                   AS token
          FROM inbox.consumer AS c
          JOIN inbox.subscription AS s ON s.consumer_id = c.id) AS s
  LEFT JOIN LATERAL (SELECT string_to_array(substr(option, 17), ',') AS tokens
                       FROM pg_db_role_setting AS d
                       JOIN pg_roles AS r ON r.oid = d.setrole
                       JOIN pg_database AS b ON b.oid = d.setdatabase,
                            unnest(d.setconfig) AS option
                      WHERE b.datname = current_database() AND r.rolname = s.role
                        AND starts_with(option, 'inbox.confirmed=')
                      LIMIT 1) AS saved ON true;
COMMENT ON VIEW inbox_internal.confirmation IS 'which subscriptions the role of their consumer has confirmed';

-- Of consumers of exactly the caller: it is as the caller that they run.
CREATE FUNCTION inbox.own_subscriptions(
    caller inbox_internal.caller DEFAULT CURRENT_USER,
    OUT consumer   text,
    OUT event_type text,
    OUT handler    text,
    OUT token      text,
    OUT confirmed  boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT c.consumer, c.event_type, c.handler, c.token, c.confirmed
          FROM inbox_internal.confirmation AS c WHERE c.role = caller
         ORDER BY c.consumer, c.number;
END $$;
COMMENT ON FUNCTION inbox.own_subscriptions(inbox_internal.caller) IS
    'the handlers that run, or would run, with one''s own rights, and whether one has confirmed them';

-- Adds to what the caller has confirmed, and forgets what is no subscription of it any more. As the caller, and
-- so it can write for nobody else. Whoever calls this has locked inbox.subscription.
--
-- Without pg_outbox the setting does not exist, and only superusers can make it; nor are there processors.
CREATE FUNCTION inbox_internal.save_confirmation(tokens text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %I SET inbox.confirmed = %L', current_database(),
                   (SELECT string_agg(DISTINCT s.token, ',') FROM inbox.own_subscriptions() AS s
                     WHERE s.confirmed OR s.token = ANY (tokens)));
    PERFORM inbox_internal.wake('subscriptions'), inbox_internal.wake('messages');
EXCEPTION
    WHEN insufficient_privilege THEN
        NULL;
END $$;
COMMENT ON FUNCTION inbox_internal.save_confirmation(text[]) IS 'remembers what a role has confirmed';

CREATE FUNCTION inbox_internal.lock_subscriptions()
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION inbox_internal.lock_subscriptions() IS 'has those who subscribe and confirm wait for each other';

-- Says that the handlers of a consumer are to run with the caller's rights, and which these are. Needed after
-- a restore, or when the consumer was given to the caller; subscribe() confirms what it subscribes.
CREATE FUNCTION inbox.confirm(consumer text, OUT event_type text, OUT handler text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.lock_subscriptions();
    IF NOT EXISTS (SELECT FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer) THEN
        RAISE EXCEPTION 'role "%" has no consumer "%" with subscriptions', current_user, confirm.consumer
            USING ERRCODE = 'undefined_object', HINT = 'Only the role of a consumer itself can confirm: SET ROLE.';
    END IF;
    PERFORM inbox_internal.save_confirmation(ARRAY(SELECT s.token FROM inbox.own_subscriptions() AS s
                                           WHERE s.consumer = confirm.consumer));
    IF EXISTS (SELECT FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer AND NOT s.confirmed) THEN
        RAISE EXCEPTION 'the confirmation cannot be saved'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Nothing is processed in the server unless pg_outbox is in shared_preload_libraries.';
    END IF;
    RETURN QUERY SELECT s.event_type, s.handler FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer;
END $$;
COMMENT ON FUNCTION inbox.confirm(text) IS 'has the handlers of a consumer run with one''s own rights';

-- Has a function handle the events of a consumer whose type matches a pattern ('Video*').
--
-- The function takes one argument of type inbox.message; what it returns is ignored. It runs with the
-- rights of the role that subscribes, in one transaction with the bookkeeping: what it does is done
-- exactly once, and when it fails nothing of it is. All handlers of a consumer belong to one role, that of
-- the consumer, which must be allowed to log in. Messages whose type matches no subscription of the consumer are
-- passed over; so subscribe all handlers of a consumer in one transaction.
CREATE FUNCTION inbox.subscribe(consumer text, event_type text, handler regproc)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(event_type, '') = '' THEN
        RAISE EXCEPTION 'event_type must not be empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ''*'' for all events.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_proc AS p
                    WHERE p.oid = handler AND p.prokind = 'f' AND p.pronargs = 1
                      AND p.proargtypes[0] = 'inbox.message'::regtype) THEN
        RAISE EXCEPTION 'function % cannot handle messages', handler
            USING ERRCODE = 'invalid_function_definition',
                  HINT = 'A handler is a function of one argument of type inbox.message.';
    END IF;
    IF NOT has_function_privilege(handler, 'EXECUTE') THEN
        RAISE EXCEPTION 'permission denied for function %', handler
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM inbox_internal.save_confirmation(inbox_internal.add_subscription(consumer, event_type, handler));
END $$;
COMMENT ON FUNCTION inbox.subscribe(text, text, regproc) IS
    'has a function handle the events of a consumer whose type matches a pattern';

-- Returns what confirms it.
CREATE FUNCTION inbox_internal.add_subscription(
    consumer   text,
    event_type text,
    handler    regproc,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    receiver   integer;
    subscriber inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    IF NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.rolname = caller) THEN
        RAISE EXCEPTION 'role "%" cannot log in, and so cannot process messages', caller
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Subscribe as a role that has LOGIN.';
    END IF;

    -- One after the other, for they write to one row of the catalog, which does not wait: save_confirmation().
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
    receiver := inbox_internal.own_consumer(consumer, caller);
    SELECT * INTO STRICT subscriber FROM inbox.consumer AS c WHERE c.id = receiver FOR UPDATE;
    IF subscriber.role <> caller THEN
        PERFORM inbox_internal.refuse_owner(consumer, subscriber.role);
    END IF;
    INSERT INTO inbox.subscription (consumer_id, event_type, handler)
        SELECT subscriber.id, add_subscription.event_type,
               format('%I.%I', p.pronamespace::regnamespace, p.proname)
          FROM pg_proc AS p WHERE p.oid = add_subscription.handler
        ON CONFLICT DO NOTHING;
    PERFORM inbox_internal.count_subscriptions(subscriber.id);
    RETURN ARRAY(SELECT c.token FROM inbox_internal.confirmation AS c
                   JOIN pg_proc AS p ON c.handler = format('%I.%I', p.pronamespace::regnamespace, p.proname)
                  WHERE c.consumer_id = subscriber.id AND c.event_type = add_subscription.event_type
                    AND p.oid = add_subscription.handler);
END $$;
COMMENT ON FUNCTION inbox_internal.add_subscription(text, text, regproc, inbox_internal.caller) IS 'see inbox.subscribe()';

-- Ends a subscription. Messages that have arrived wait until the consumer has another one.
CREATE FUNCTION inbox.unsubscribe(
    consumer   text,
    event_type text,
    handler    regproc,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscriber inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO subscriber FROM inbox.consumer AS c
     WHERE c.name = unsubscribe.consumer FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer USING ERRCODE = 'undefined_object';
    END IF;
    IF pg_has_role(caller, subscriber.role, 'MEMBER') IS NOT TRUE THEN
        PERFORM inbox_internal.refuse_owner(consumer, subscriber.role);
    END IF;
    DELETE FROM inbox.subscription AS s
     USING pg_proc AS p
     WHERE s.consumer_id = subscriber.id AND s.event_type = unsubscribe.event_type
       AND p.oid = unsubscribe.handler
       AND s.handler = format('%I.%I', p.pronamespace::regnamespace, p.proname);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no subscription of % to "%"', consumer, handler, event_type
            USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM inbox_internal.count_subscriptions(subscriber.id);
END $$;
COMMENT ON FUNCTION inbox.unsubscribe(text, text, regproc, inbox_internal.caller) IS 'ends a subscription';

-- With the caller's rights: for the two above.
CREATE FUNCTION inbox_internal.count_subscriptions(consumer_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Its trigger has pg_outbox start or end the processor.
    UPDATE inbox.consumer AS c
       SET subscriptions = (SELECT count(*) FROM inbox.subscription AS s WHERE s.consumer_id = c.id)
     WHERE c.id = count_subscriptions.consumer_id;
END $$;
COMMENT ON FUNCTION inbox_internal.count_subscriptions(integer) IS 'see inbox.subscribe()';

-- Gives a consumer to another role, with all its messages. Its handlers, which would run with the rights of
-- that role from now on, wait until the role confirms them: inbox.confirm().
CREATE FUNCTION inbox.give_consumer(
    consumer text,
    role     regrole,
    why      text,
    caller   inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id  CONSTANT integer := inbox_internal.take_control(consumer);
    new_owner CONSTANT name := (SELECT r.rolname FROM pg_roles AS r WHERE r.oid = give_consumer.role);
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    IF new_owner IS NULL THEN
        RAISE EXCEPTION 'role must exist' USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM inbox_internal.note_operation(caller, consumer, 'give', why, jsonb_build_object(
        'from', (SELECT c.role FROM inbox.consumer AS c WHERE c.id = known_id), 'to', new_owner));
    UPDATE inbox.consumer AS c SET role = new_owner WHERE c.id = known_id;
END $$;
COMMENT ON FUNCTION inbox.give_consumer(text, regrole, text, inbox_internal.caller) IS 'gives a consumer to another role';

-- How messages of a consumer are processed. The processor of pg_outbox calls these, as the role of the
-- consumer; one processor at a time per consumer.

CREATE FUNCTION inbox_internal.check_role(consumer_id integer, caller inbox_internal.caller)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT coalesce((SELECT c.role = caller OR pg_has_role(caller, c.role, 'MEMBER')
                       FROM inbox.consumer AS c WHERE c.id = $1), false) THEN
        RAISE EXCEPTION 'consumer % is not one of role "%"', $1, caller
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_role(integer, inbox_internal.caller) IS 'refuses those who do not own the consumer';

-- The next messages in order of arrival, without those that wait: for their next attempt, or behind
-- an earlier one of their key that waits or blocks it.
CREATE FUNCTION inbox_internal.next_messages(
    consumer_id  integer,
    max_messages integer,
    caller       inbox_internal.caller DEFAULT CURRENT_USER,
    OUT seq         bigint,
    OUT occurred_at timestamptz,
    OUT received_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    RETURN QUERY
        SELECT m.seq, m.occurred_at, m.received_at
          FROM inbox.message AS m
         WHERE m.consumer_id = next_messages.consumer_id
           AND NOT EXISTS (SELECT FROM inbox.waiting AS w
                            WHERE w.consumer_id = m.consumer_id AND w.event_id = m.event_id
                              AND w.next_attempt_at > clock_timestamp())
           AND (m.ordering_key = ''
                OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                WHERE o.consumer_id = m.consumer_id
                                  AND o.ordering_key = m.ordering_key AND o.seq < m.seq))
           AND NOT (inbox_internal.is_too_large(m) IS TRUE AND inbox_internal.give_up(m))
         ORDER BY m.seq
         LIMIT max_messages;
END $$;
COMMENT ON FUNCTION inbox_internal.next_messages(integer, integer, inbox_internal.caller) IS 'the messages that can be processed now';

-- Not of those that nobody here can try: they are behind others of their key, or not stored.
CREATE FUNCTION inbox_internal.next_attempt(consumer_id integer, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    RETURN (SELECT min(w.next_attempt_at)
              FROM inbox.waiting AS w
             WHERE w.consumer_id = $1 AND w.seq IS NOT NULL
               AND (w.ordering_key = ''
                    OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                    WHERE o.consumer_id = w.consumer_id
                                      AND o.ordering_key = w.ordering_key AND o.seq < w.seq)));
END $$;
COMMENT ON FUNCTION inbox_internal.next_attempt(integer, inbox_internal.caller) IS 'when a message that failed is due again';

-- What the subscriptions of a consumer are, as take() knows them again; NULL: there are none, or some are not
-- confirmed (confirm.sql).
CREATE FUNCTION inbox_internal.confirmed_subscriptions(consumer_id integer, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    RETURN (SELECT CASE WHEN bool_and(c.confirmed) THEN array_agg(quote_literal(c.event_type) || c.handler) END
              FROM inbox_internal.confirmation AS c WHERE c.consumer_id = $1);
END $$;
COMMENT ON FUNCTION inbox_internal.confirmed_subscriptions(integer, inbox_internal.caller) IS 'what a processor may run';

-- Takes a message out of the inbox, for good if the transaction commits, and says what handles it.
-- confirmed: from confirmed_subscriptions(), since when others may have come.
--
-- `waits`: an earlier message of the same key has failed and comes first, or blocks it, or a subscription is
-- not a confirmed one; nothing was taken.
-- `message` NULL: it is not there, or it was a duplicate, which is gone now.
CREATE FUNCTION inbox_internal.take(
    consumer_id integer,
    seq         bigint,
    confirmed   text[],
    caller      inbox_internal.caller DEFAULT CURRENT_USER,
    OUT message  inbox.message,
    OUT handlers text[],
    OUT waits    boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Whose consumer it is and what is confirmed is asked in the same statement: this is called for every message.
    DELETE FROM inbox.message AS m
     WHERE m.consumer_id = take.consumer_id AND m.seq = take.seq
       AND EXISTS (SELECT FROM inbox.consumer AS c
                    WHERE c.id = take.consumer_id AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER')))
       AND (SELECT bool_and(quote_literal(s.event_type) || s.handler = ANY (confirmed))
              FROM inbox.subscription AS s WHERE s.consumer_id = take.consumer_id)
       AND (m.ordering_key = ''
            OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                            WHERE o.consumer_id = m.consumer_id
                              AND o.ordering_key = m.ordering_key AND o.seq < m.seq))
     RETURNING m.* INTO message;
    IF NOT FOUND THEN
        PERFORM inbox_internal.check_role(consumer_id, caller);
        waits := EXISTS (SELECT FROM inbox.message AS m
                          WHERE m.consumer_id = take.consumer_id AND m.seq = take.seq);
        RETURN;
    END IF;
    waits := false;
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = take.consumer_id AND w.event_id = message.event_id;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket)
        VALUES (message.consumer_id, message.event_id, inbox_internal.bucket(message.event_id))
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        message := NULL;
        RETURN;
    END IF;
    handlers := ARRAY(
        SELECT s.handler
          FROM inbox.subscription AS s
         WHERE s.consumer_id = take.consumer_id
           AND message.event_type LIKE
               replace(replace(replace(replace(s.event_type, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
         ORDER BY s.number);
END $$;
COMMENT ON FUNCTION inbox_internal.take(integer, bigint, text[], inbox_internal.caller) IS 'a message and the right to handle it';

-- Remembers that a message could not be handled: it waits, with its key, or is a dead letter now.
CREATE FUNCTION inbox_internal.record_failure(
    consumer_id integer,
    seq         bigint,
    error       text,
    sqlstate    text,
    caller      inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message inbox.message;
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    SELECT m.* INTO message FROM inbox.message AS m WHERE m.consumer_id = $1 AND m.seq = $2 FOR UPDATE;
    IF FOUND THEN
        PERFORM inbox_internal.count_failure(message, $3, $4, false, NULL);
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.record_failure(integer, bigint, text, text, inbox_internal.caller) IS
    'has a message and its key wait, or gives the message up';

-- Processes one message. confirmed: as for take(). Returns true when it is done with, be it handled, passed over or a duplicate;
-- false when it failed; NULL when it waits. The handler's effects are part of the caller's transaction.
-- No search_path is set, for handlers are to find theirs; nothing here depends on it.
CREATE FUNCTION inbox_internal.process(consumer_id integer, seq bigint, confirmed text[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    taken   record;
    handler text;
    error   text;
    state   text;
BEGIN
    taken := inbox_internal.take(consumer_id, seq, confirmed);
    IF taken.waits THEN
        RETURN NULL;
    END IF;
    IF taken.handlers IS NOT NULL THEN
        FOREACH handler IN ARRAY taken.handlers LOOP
            EXECUTE pg_catalog.format('SELECT %s($1)', handler) USING taken.message;
        END LOOP;
        -- What handlers deferred to the commit would fail there, where nobody could catch it.
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    RETURN true;
EXCEPTION
    WHEN OTHERS OR assert_failure THEN
        GET STACKED DIAGNOSTICS error = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
        PERFORM inbox_internal.record_failure(consumer_id, seq, error, state);
        RETURN false;
END $$;
COMMENT ON FUNCTION inbox_internal.process(integer, bigint, text[]) IS 'handles one message';

CREATE FUNCTION inbox_internal.save_progress(
    consumer_id integer,
    processed   bigint,
    failures    bigint,
    latency_p50 interval,
    latency_p99 interval,
    wait_p50    interval,
    wait_p99    interval,
    caller      inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    INSERT INTO inbox.progress AS p
        VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7)
        ON CONFLICT ON CONSTRAINT progress_pkey DO UPDATE
           SET processed = p.processed + excluded.processed,
               failures = p.failures + excluded.failures,
               latency_p50 = excluded.latency_p50,
               latency_p99 = excluded.latency_p99,
               wait_p50 = excluded.wait_p50,
               wait_p99 = excluded.wait_p99,
               saved_at = excluded.saved_at;
END $$;
COMMENT ON FUNCTION inbox_internal.save_progress(integer, bigint, bigint, interval, interval, interval, interval, inbox_internal.caller) IS
    'adds to what a processor has counted';

-- What is looked at under a lock must not be older than the lock. `refused` begins the message.
CREATE FUNCTION inbox_internal.check_isolation(refused text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION '% in a % transaction', refused, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Use READ COMMITTED, in a transaction of its own.';
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_isolation(text) IS 'refuses transactions that look at the past';

CREATE FUNCTION inbox_internal.check_lease_time(lease interval)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL OR lease < interval '1 millisecond' OR lease > interval '1 day' THEN
        RAISE EXCEPTION 'lease must be from 1 ms to a day'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_lease_time(interval) IS 'refuses leases that are too short or too long';

-- Messages processed outside the server: claim() hands them out under a lease, and for each, in a
-- transaction of the caller's, complete() and what the message causes; or fail().
--
-- A message is claimed while it has a row in inbox.claimed. complete() locks that row, so a lease that
-- ends in the middle is not taken over before the effects are committed or undone; one that was taken
-- over has another token, and the transaction of whoever still works under the old one fails. So a
-- lease is over when somebody has taken it over, not when its time has come.
--
-- A lease that was lost counts as a failed attempt of its messages, for one of them may end whoever
-- processes it. From then on such a message is claimed alone: it takes no others along.

CREATE FUNCTION inbox_internal.lease_lost(token uuid)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the message is not under lease %', token
        USING ERRCODE = 'IL001',
              DETAIL = 'The lease ended and somebody else has the message, or an earlier one of its key failed, or it was completed before.',
              HINT = 'Undo what the message caused, and go on with others.';
END $$;
COMMENT ON FUNCTION inbox_internal.lease_lost(uuid) IS 'refuses whoever has lost a lease';

-- Ends leases whose time has come. Those of messages that are just being completed stay.
CREATE FUNCTION inbox_internal.end_lost_leases(consumer_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lost    inbox.claimed;
    message inbox.message;
BEGIN
    FOR lost IN
        SELECT c.* FROM inbox.claimed AS c
         WHERE c.consumer_id = $1 AND c.leased_until < clock_timestamp()
           FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM inbox.claimed AS c WHERE c.consumer_id = lost.consumer_id AND c.event_id = lost.event_id;
        SELECT m.* INTO message FROM inbox.message AS m
         WHERE m.consumer_id = lost.consumer_id AND m.event_id = lost.event_id
           FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        PERFORM inbox_internal.count_failure(message, format('the lease ended at %s, and the message was not completed', lost.leased_until),
                                    'IL001', false, NULL);
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.end_lost_leases(integer) IS 'counts what was lost with leases as failed';

-- True: there were messages that are too large, and they are dead letters now.
CREATE FUNCTION inbox_internal.give_up_too_large(consumer_id integer)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*) > 0 FROM inbox.message AS m
             WHERE m.consumer_id = $1 AND inbox_internal.is_too_large(m) IS TRUE AND inbox_internal.give_up(m));
END $$;
COMMENT ON FUNCTION inbox_internal.give_up_too_large(integer) IS 'has messages that nobody can be given become dead letters';

-- Takes the next messages of a consumer that has no subscriptions in the server, in order of arrival.
-- Not those that wait for their next attempt, nor those of a key of which an earlier one waits, blocks,
-- or is claimed. attempt: 1 for the first. Several of one key are to be processed in the order given.
-- Plans are kept, and must be right for tables that were empty when they were made.
CREATE FUNCTION inbox.claim(
    consumer     text,
    max_messages integer  DEFAULT 100,
    lease        interval DEFAULT '30 seconds',
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS TABLE (
    token           uuid,
    attempt         integer,
    seq             bigint,
    event_id        uuid,
    occurred_at     timestamptz,
    received_at     timestamptz,
    "position"      bigint,
    version         bigint,
    schema_version  integer,
    source_event_id uuid,
    source          text,
    topic           text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    ordering_key    text,
    content_type    text,
    headers         jsonb,
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    own_id    CONSTANT integer := inbox_internal.own_consumer(consumer, caller);
    new_token CONSTANT uuid := gen_random_uuid();
    handlers  integer;
    pending   boolean;
BEGIN
    PERFORM inbox_internal.check_isolation('messages cannot be claimed');
    PERFORM inbox_internal.check_lease_time(lease);
    IF max_messages IS NULL OR max_messages < 1 THEN
        RAISE EXCEPTION 'max_messages must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.subscriptions, EXISTS (SELECT FROM inbox.message AS m WHERE m.consumer_id = own_id)
      INTO handlers, pending
      FROM inbox.consumer AS c WHERE c.id = own_id;
    IF handlers > 0 THEN
        RAISE EXCEPTION 'messages of consumer "%" are processed in the server', consumer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'End its subscriptions with inbox.unsubscribe(), or choose another consumer.';
    END IF;
    IF NOT pending THEN
        RETURN;
    END IF;

    -- One claims after the other: whoever decides sees what the one before has taken.
    PERFORM FROM inbox.consumer AS c WHERE c.id = own_id FOR NO KEY UPDATE;
    PERFORM inbox_internal.end_lost_leases(own_id);
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT m.seq, m.event_id, m.ordering_key, coalesce(w.attempts, 0) AS failed,
               coalesce(w.sqlstate = 'IL001', false) AS alone, inbox_internal.is_too_large(m) AS too_large
          FROM inbox.message AS m
          LEFT JOIN inbox.waiting AS w ON w.consumer_id = m.consumer_id AND w.event_id = m.event_id
         WHERE m.consumer_id = own_id
           AND (w.next_attempt_at IS NULL OR w.next_attempt_at <= clock_timestamp())
           AND NOT EXISTS (SELECT FROM inbox.claimed AS c
                            WHERE c.consumer_id = m.consumer_id AND c.event_id = m.event_id)
           AND (m.ordering_key = ''
                OR NOT EXISTS (SELECT FROM inbox.claimed AS c
                                WHERE c.consumer_id = m.consumer_id AND c.ordering_key = m.ordering_key)
                   AND NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                    WHERE o.consumer_id = m.consumer_id
                                      AND o.ordering_key = m.ordering_key AND o.seq < m.seq))
         ORDER BY m.seq
         LIMIT max_messages
    ), chosen AS (
        SELECT f.* FROM free AS f
         WHERE NOT EXISTS (SELECT FROM free AS large WHERE large.too_large)
           AND (f.seq = (SELECT min(first.seq) FROM free AS first)
            OR f.seq < coalesce((SELECT min(single.seq) FROM free AS single WHERE single.alone), f.seq + 1))
    ), claimed AS (
        INSERT INTO inbox.claimed (consumer_id, event_id, ordering_key, token, leased_until)
            SELECT own_id, f.event_id, f.ordering_key, new_token, clock_timestamp() + lease FROM chosen AS f
    )
    SELECT new_token, f.failed + 1, m.seq, m.event_id, m.occurred_at, m.received_at, m.position, m.version,
           m.schema_version, m.source_event_id, m.source, m.topic, m.aggregate_type, m.aggregate_id,
           m.event_type, m.ordering_key, m.content_type, m.headers, m.payload
      FROM chosen AS f
      JOIN inbox.message AS m ON m.consumer_id = own_id AND m.event_id = f.event_id
     ORDER BY f.seq;
    IF NOT FOUND AND inbox_internal.give_up_too_large(own_id) THEN
        RETURN QUERY SELECT * FROM inbox.claim(consumer, max_messages, lease, caller);
    END IF;
END $$;
COMMENT ON FUNCTION inbox.claim(text, integer, interval, inbox_internal.caller) IS
    'takes the next messages of a consumer under a lease; commit before you process them';

-- Takes a message out of the inbox, for good if the transaction commits. Call it before what the message
-- causes, in the same transaction. False: the message is a repetition, and nothing is to be done but to
-- commit. Error IL001: it is not under this lease any more.
CREATE FUNCTION inbox.complete(token uuid, event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    own_id integer;
BEGIN
    DELETE FROM inbox.claimed AS c
     USING inbox.consumer AS o
     WHERE c.token = $1 AND c.event_id = $2 AND o.id = c.consumer_id
       AND (o.role = caller OR pg_has_role(caller, o.role, 'MEMBER'))
     RETURNING c.consumer_id INTO own_id;
    IF FOUND THEN
        DELETE FROM inbox.message AS m WHERE m.consumer_id = own_id AND m.event_id = $2;
    END IF;
    IF NOT FOUND THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = own_id AND w.event_id = $2;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket)
        VALUES (own_id, $2, inbox_internal.bucket($2))
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox.complete(uuid, uuid, inbox_internal.caller) IS
    'says that a claimed message is processed, in the transaction that does it';

-- Counts a failed attempt, after what it caused was rolled back. Returns 'retry': it is claimed again
-- later, or 'dead': it has become a dead letter. Skip what is left of its key under this lease: unless
-- the key goes on after a dead letter those messages are given back, and complete() refuses them.
CREATE FUNCTION inbox.fail(
    token     uuid,
    event_id  uuid,
    error     text,
    sqlstate  text    DEFAULT 'P0001',
    permanent boolean DEFAULT false,
    caller    inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    policy  inbox.consumer;
    message inbox.message;
    dead    boolean;
BEGIN
    DELETE FROM inbox.claimed AS c
     USING inbox.consumer AS o
     WHERE c.token = $1 AND c.event_id = $2 AND o.id = c.consumer_id
       AND (o.role = caller OR pg_has_role(caller, o.role, 'MEMBER'))
     RETURNING o.* INTO policy;
    IF FOUND THEN
        SELECT m.* INTO message FROM inbox.message AS m
         WHERE m.consumer_id = policy.id AND m.event_id = $2
           FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    dead := inbox_internal.count_failure(message, $3, $4, $5, NULL);
    IF NOT dead OR policy.on_dead_letter = 'block' THEN
        DELETE FROM inbox.claimed AS c
         WHERE c.token = $1 AND c.ordering_key = message.ordering_key AND c.ordering_key <> '';
    END IF;
    RETURN CASE WHEN dead THEN 'dead' ELSE 'retry' END;
END $$;
COMMENT ON FUNCTION inbox.fail(uuid, uuid, text, text, boolean, inbox_internal.caller) IS
    'says that a claimed message could not be processed; and whether it is given up';

-- Does not wait for messages that are just being completed: nobody can take those over.
CREATE FUNCTION inbox.extend(
    token  uuid,
    lease  interval     DEFAULT '30 seconds',
    caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    new_end CONSTANT timestamptz := clock_timestamp() + lease;
BEGIN
    PERFORM inbox_internal.check_lease_time(lease);
    IF NOT EXISTS (SELECT FROM inbox.claimed AS c
                     JOIN inbox.consumer AS o ON o.id = c.consumer_id
                    WHERE c.token = $1 AND (o.role = caller OR pg_has_role(caller, o.role, 'MEMBER'))) THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    UPDATE inbox.claimed AS c
       SET leased_until = new_end
     WHERE c.ctid = ANY (ARRAY(SELECT own.ctid FROM inbox.claimed AS own
                                WHERE own.token = $1 FOR UPDATE SKIP LOCKED));
    RETURN new_end;
END $$;
COMMENT ON FUNCTION inbox.extend(uuid, interval, inbox_internal.caller) IS 'makes a lease end so much after now; says when that is';

CREATE FUNCTION inbox.release(token uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    released integer;
BEGIN
    DELETE FROM inbox.claimed AS c
     USING inbox.consumer AS o
     WHERE c.token = $1 AND o.id = c.consumer_id AND (o.role = caller OR pg_has_role(caller, o.role, 'MEMBER'));
    GET DIAGNOSTICS released = ROW_COUNT;
    RETURN released;
END $$;
COMMENT ON FUNCTION inbox.release(uuid, inbox_internal.caller) IS
    'gives what was claimed under a token and not completed back to others; says how many messages that were';

-- Projections: read models kept by consumers. A row has a version and never goes back to an older one,
-- in whatever order events come and however many are applied at the same time.
--
-- A row that is there is updated or deleted under its own lock. One that is not there has none: so
-- whoever inserts or removes a key that he does not find locks the key, and then looks again, with a
-- new snapshot, for what others have committed: READ COMMITTED.

-- The payload of a message as JSON.
CREATE FUNCTION inbox.json(message inbox.message)
RETURNS jsonb
LANGUAGE sql STABLE
RETURN pg_catalog.convert_from((message).payload, 'UTF8')::pg_catalog.jsonb;
COMMENT ON FUNCTION inbox.json(inbox.message) IS 'the payload of a message as JSON';

CREATE FUNCTION inbox_internal.check_row(projection regclass, key_columns text[], version_column text, data jsonb)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    required text;
    kind     "char";
BEGIN
    IF coalesce(cardinality(key_columns), 0) = 0 THEN
        RAISE EXCEPTION 'key_columns must not be empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (SELECT count(DISTINCT c) < count(*) FROM unnest(key_columns || version_column) AS c) THEN
        RAISE EXCEPTION 'key_columns and version_column must name different columns'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH required IN ARRAY key_columns || version_column LOOP
        SELECT a.attgenerated INTO kind FROM pg_attribute AS a
         WHERE a.attrelid = projection AND a.attname = required AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'column "%" of projection % does not exist', required, projection
                USING ERRCODE = 'undefined_column';
        ELSIF kind <> '' THEN
            RAISE EXCEPTION 'column "%" of projection % is generated', required, projection
                USING ERRCODE = 'generated_always', HINT = 'A key or a version must be given.';
        ELSIF data ->> required IS NULL THEN
            RAISE EXCEPTION 'data for projection % lacks "%"', projection, required
                USING ERRCODE = 'null_value_not_allowed';
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.check_row(regclass, text[], text, jsonb) IS
    'whether there is a key and a version';

-- One row per key, or what follows would change those of others. PostgreSQL looks after that of views.
CREATE FUNCTION inbox_internal.check_key(projection regclass, key_columns text[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index AS i
                    WHERE i.indrelid = projection AND i.indisunique AND i.indimmediate AND i.indisvalid
                      AND i.indpred IS NULL AND i.indnkeyatts = cardinality(key_columns)
                      AND NOT EXISTS (SELECT FROM unnest(i.indkey) WITH ORDINALITY AS k (number, n)
                                        LEFT JOIN pg_attribute AS a
                                          ON a.attrelid = projection AND a.attnum = k.number
                                       WHERE k.n <= i.indnkeyatts
                                         AND (a.attname = ANY (key_columns)) IS NOT TRUE))
        AND (SELECT c.relkind <> 'v' FROM pg_class AS c WHERE c.oid = projection) THEN
        RAISE EXCEPTION 'projection % has no unique constraint on its key columns', projection
            USING ERRCODE = 'invalid_column_reference',
                  DETAIL = format('They are: %s.', array_to_string(key_columns, ', ')),
                  HINT = 'Create a primary key, or a unique index that is not partial.';
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_key(regclass, text[]) IS 'whether a projection has one row per key';

-- Runs a statement that returns whether it did something; it finds the data in the setting inbox.given. Its
-- plan is kept for the session, as that of a prepared statement, under a name that follows from its text: so it
-- does not matter who has worked in the session before, what was deallocated, or altered. The key of a
-- projection is checked when a plan is made.
--
-- This may run with more rights than the session has, which can prepare what it likes under that name. So what
-- is found there must be this statement to the letter; it has no parameters, whose types the session
-- would choose, and all its functions and operators say where they are from: it means the same whoever prepared
-- it. Nor is the row written into its text, which is in the log when it fails.
CREATE FUNCTION inbox_internal.run(
    statement   text,
    data        jsonb,
    projection  regclass DEFAULT NULL,
    key_columns text[] DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept_as text := 'inbox_' || to_hex(hashtextextended(statement, 0));
    prepare text := concat('PREPARE ', kept_as, ' AS ', statement);
    is_ours boolean;
    ignored text;
    did     boolean;
BEGIN
    SELECT p.statement = prepare AND p.parameter_types = '{}' AND p.from_sql INTO is_ours
      FROM pg_prepared_statements AS p WHERE p.name = kept_as;
    IF is_ours IS NULL THEN
        IF projection IS NOT NULL THEN
            PERFORM inbox_internal.check_key(projection, key_columns);
        END IF;
        -- To look through more of them would cost as much as planning.
        IF (SELECT count(*) < 100 FROM pg_prepared_statements) THEN
            EXECUTE prepare;
            is_ours := true;
        END IF;
    END IF;
    ignored := set_config('inbox.given', data::text, true);
    EXECUTE CASE WHEN is_ours THEN 'EXECUTE ' || kept_as ELSE statement END INTO did;
    ignored := set_config('inbox.given', '', true);
    RETURN coalesce(did, false);
END $$;
COMMENT ON FUNCTION inbox_internal.run(text, jsonb, regclass, text[]) IS 'runs a statement whose plan is kept';

-- In statements the row as stored is called `stored`, and the row as given `excluded`, as in ON CONFLICT.
-- A stored version that is NULL is older than any.
CREATE FUNCTION inbox_internal.row_parts(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb,
    OUT given       text,
    OUT columns     text,
    OUT keys        text,
    OUT assignments text,
    OUT same_key    text,
    OUT key         text,  -- as inbox.tombstone has it
    OUT version      text,
    OUT version_type text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    complete boolean;
BEGIN
    SELECT string_agg(c.name, ', '),
           string_agg(c.name, ', ') FILTER (WHERE c.is_key),
           string_agg(c.name || ' = excluded.' || c.name, ', ') FILTER (WHERE NOT c.is_key),
           string_agg('stored.' || c.name || ' OPERATOR(pg_catalog.=) excluded.' || c.name, ' AND ') FILTER (WHERE c.is_key),
           'pg_catalog.jsonb_build_object(' || string_agg(c.as_json, ', ') FILTER (WHERE c.is_key) || ')',
           max(format_type(c.atttypid, c.atttypmod)) FILTER (WHERE c.is_version),
           count(*) FILTER (WHERE c.is_key <> c.is_version AND data ->> c.attname IS NOT NULL)
               = nullif(cardinality(key_columns), 0) + 1
      INTO columns, keys, assignments, same_key, key, version_type, complete
      FROM (SELECT a.attname, a.atttypid, a.atttypmod, quote_ident(a.attname) AS name,
                   -- Times are the same text whatever the time zone of the session.
                   quote_literal(a.attname) || ', excluded.' || quote_ident(a.attname)
                       || CASE a.atttypid WHEN 'timestamptz'::regtype THEN ' AT TIME ZONE ''UTC''' ELSE '' END AS as_json,
                   a.attname = ANY (key_columns) AS is_key,
                   a.attname = version_column AS is_version
              FROM pg_attribute AS a
             WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '' AND data ? a.attname
            OFFSET 0) AS c;
    IF complete IS NOT TRUE THEN
        PERFORM inbox_internal.check_row(projection, key_columns, version_column, data);
    END IF;
    given := 'pg_catalog.jsonb_populate_record(NULL::' || projection
             || ', pg_catalog.current_setting(''inbox.given'')::pg_catalog.jsonb) AS excluded';
    version := quote_ident(version_column);
END $$;
COMMENT ON FUNCTION inbox_internal.row_parts(regclass, text[], text, jsonb) IS
    'what statements about a row of a projection are put together from';

-- Keys with the same hash share a lock, a row of inbox.key_lock. Those who insert hold it together, for the table
-- itself keeps them apart; who removes holds it alone.
CREATE FUNCTION inbox_internal.key_slot(projection regclass, key jsonb)
RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN (pg_catalog.jsonb_hash_extended(key, projection::pg_catalog.oid::pg_catalog.int8) & 16383)::pg_catalog.int4;
COMMENT ON FUNCTION inbox_internal.key_slot(regclass, jsonb) IS 'which lock a key has';

CREATE FUNCTION inbox_internal.check_locked(locked boolean)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
        RAISE EXCEPTION 'rows of projections cannot be inserted or removed in a REPEATABLE READ transaction'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'It cannot see which of them have been removed, or inserted, since it began.',
                  HINT = 'Use READ COMMITTED.';
    ELSIF NOT locked THEN
        RAISE EXCEPTION 'a row of inbox.key_lock is missing' USING ERRCODE = 'data_corrupted';
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_locked(boolean) IS 'refuses what would not be safe under a lock of a key';

-- Who may do something to rows of a projection may know, say and wait for what became of them.
CREATE FUNCTION inbox_internal.check_right(projection regclass, privilege text, caller inbox_internal.caller)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (has_table_privilege(caller, projection, privilege)
        OR privilege <> 'DELETE' AND has_any_column_privilege(caller, projection, privilege)) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for projection %', projection
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = format('Role "%s" lacks %s.', caller, privilege);
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_right(regclass, text, inbox_internal.caller) IS 'refuses those who have no right on a projection';

-- The version with which a row was removed; NULL: it was not.
CREATE FUNCTION inbox_internal.tombstone_version(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'SELECT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'SELECT', caller);
    END IF;
    RETURN (SELECT t.version FROM inbox.tombstone AS t
             WHERE t.projection = tombstone_version.projection AND t.key = tombstone_version.key);
END $$;
COMMENT ON FUNCTION inbox_internal.tombstone_version(regclass, jsonb, inbox_internal.caller) IS 'with which version a row was removed';

-- The same for one who is going to insert it: until his transaction ends nobody else removes it.
CREATE FUNCTION inbox_internal.removed_version(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'INSERT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'INSERT', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key) FOR SHARE;
    IF NOT FOUND OR current_setting('transaction_isolation') = 'repeatable read' THEN
        PERFORM inbox_internal.check_locked(FOUND);
    END IF;
    RETURN (SELECT t.version FROM inbox.tombstone AS t
             WHERE t.projection = removed_version.projection AND t.key = removed_version.key);
END $$;
COMMENT ON FUNCTION inbox_internal.removed_version(regclass, jsonb, inbox_internal.caller) IS
    'with which version a row was removed, for one who inserts it';

CREATE FUNCTION inbox_internal.lock_removal(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'DELETE') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'DELETE', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key) FOR NO KEY UPDATE;
    PERFORM inbox_internal.check_locked(FOUND);
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.lock_removal(regclass, jsonb, inbox_internal.caller) IS 'until the transaction ends nobody else inserts the row';

-- Who may delete the rows of a projection may keep them away.
CREATE FUNCTION inbox_internal.leave_tombstone(
    projection regclass,
    key        jsonb,
    version    text,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'DELETE') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'DELETE', caller);
    END IF;
    INSERT INTO inbox.tombstone AS t (projection, key, version)
        VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT tombstone_pkey DO UPDATE
           SET version = excluded.version, removed_at = excluded.removed_at;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.leave_tombstone(regclass, jsonb, text, inbox_internal.caller) IS 'notes that a row was removed';

-- Writes a row of a projection, unless the projection has the same or a newer version of it already, or
-- it has been removed with such a version.
--
-- `data` has a member for each column to write; others are ignored, and columns without a member stay as
-- they are. key_columns must be those of a primary key or unique constraint; they and the version must be
-- there and not null. A stored version that is NULL is older than any. Returns whether the row was written.
-- Errors: 42703 a column does not exist; 22004 a key or the version is missing; 42P10 no unique constraint.
CREATE FUNCTION inbox.apply(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- A plan that was made while the projection was small must do when it is large.
SET enable_seqscan = off
AS $$
DECLARE
    p     record := inbox_internal.row_parts(projection, key_columns, version_column, data);
    older text   := format('(stored.%1$s OPERATOR(pg_catalog.<) excluded.%1$s) IS NOT FALSE', p.version);
BEGIN
    RETURN inbox_internal.run(concat('UPDATE ', projection, ' AS stored SET ', p.assignments, ' FROM ', p.given,
                            ' WHERE ', p.same_key, ' AND ', older, ' RETURNING true'),
                     data, projection, key_columns)
        OR inbox_internal.run(concat('INSERT INTO ', projection, ' AS stored (', p.columns, ') '
                            'SELECT ', p.columns, ' FROM ', p.given,
                            -- The update may have locked a row that is newer. With that lock we must not wait for
                            -- whoever has locked the key and waits for the row.
                            ' WHERE CASE WHEN EXISTS (SELECT FROM ', projection, ' AS stored WHERE ', p.same_key,
                                                    ' AND NOT ', older, ') THEN false '
                            'ELSE (inbox_internal.removed_version(', projection::oid, ', ', p.key, ')::', p.version_type,
                                 ' OPERATOR(pg_catalog.<) excluded.', p.version, ') IS NOT FALSE END '
                            'ON CONFLICT (', p.keys, ') DO UPDATE SET ', p.assignments, ' WHERE ', older,
                            ' RETURNING true'),
                     data);
END $$;
COMMENT ON FUNCTION inbox.apply(regclass, text[], text, jsonb) IS
    'writes a row of a projection unless a newer version is there';

-- Removes a row of a projection, unless the projection has the same or a newer version of it. The version
-- of the removal is kept, as long as ids of events are: what is older and comes later does not bring the
-- row back. Of `data` only the key and the version count. Returns whether the removal was news: false when
-- the same or a newer version of the row, or of its removal, is known. Errors: as apply().
CREATE FUNCTION inbox.remove(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    p record := inbox_internal.row_parts(projection, key_columns, version_column, data);
BEGIN
    PERFORM inbox_internal.run(format('SELECT inbox_internal.lock_removal(%s, %s) FROM %s', projection::oid, p.key, p.given), data);
    PERFORM inbox_internal.run(format('DELETE FROM %s AS stored USING %s WHERE %s '
                             'AND (stored.%4$s OPERATOR(pg_catalog.<) excluded.%4$s) IS NOT FALSE RETURNING true',
                             projection, p.given, p.same_key, p.version),
                      data, projection, key_columns);
    RETURN inbox_internal.run(format('SELECT inbox_internal.leave_tombstone(%1$s, %2$s, pg_catalog.to_jsonb(excluded.%3$s) OPERATOR(pg_catalog.#>>) ''{}'') '
                            'FROM %4$s WHERE NOT EXISTS (SELECT FROM %5$s AS stored WHERE %6$s) '
                            'AND (inbox_internal.tombstone_version(%1$s, %2$s)::%7$s OPERATOR(pg_catalog.<) excluded.%3$s) IS NOT FALSE',
                            projection::oid, p.key, p.version, p.given, projection, p.same_key, p.version_type), data);
END $$;
COMMENT ON FUNCTION inbox.remove(regclass, text[], text, jsonb) IS
    'removes a row of a projection unless a newer version is there';

-- The deduplication window: for how long ids of applied events, and versions of removed rows, are kept at
-- least. Whatever has not been processed is not touched.

-- Where the ids are in the ring (tables.sql): when the time of a bucket ended, which is the current one's
-- end or up to 31 steps of 2^25 ms earlier.
CREATE FUNCTION inbox_internal.bucket_ended(bucket integer, at timestamptz)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_timestamp((step.number + 1 - ((step.number - bucket) & 31)) * 33554.432)
      FROM (SELECT floor(extract(epoch FROM at) / 33554.432)::bigint AS number) AS step;
END;
COMMENT ON FUNCTION inbox_internal.bucket_ended(integer, timestamptz) IS 'until when ids of a bucket were made';

CREATE FUNCTION inbox_internal.window_length()
RETURNS interval
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT s.window_length FROM inbox.setting AS s), interval '7 days');
END;
COMMENT ON FUNCTION inbox_internal.window_length() IS 'the deduplication window';

-- For how long ids are kept: choose it longer than anything may come again, and longer than the longest
-- outage. Up to eleven days forgetting them costs next to nothing; beyond that rows are deleted.
CREATE FUNCTION inbox.set_window(length interval, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length IS NULL OR length < interval '1 second' THEN
        RAISE EXCEPTION 'the deduplication window must be at least a second'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO inbox.operation (role, consumer, operation, details)
        VALUES (caller, '', 'set window', jsonb_build_object('from', inbox_internal.window_length(), 'to', length));
    INSERT INTO inbox.setting AS s (window_length) VALUES (length)
        ON CONFLICT ON CONSTRAINT setting_pkey DO UPDATE SET window_length = excluded.window_length;
    DELETE FROM inbox.bucket_check;
END $$;
COMMENT ON FUNCTION inbox.set_window(interval, inbox_internal.caller) IS 'says for how long ids of applied events are kept';

-- Forgets that a consumer has applied what it applied since a time, so that events which come again have
-- an effect again: to build a projection anew. Returns how many.
CREATE FUNCTION inbox.forget(consumer text, since timestamptz, why text, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id    integer := inbox_internal.take_control(consumer);
    forgotten bigint;
BEGIN
    IF since IS NULL THEN
        RAISE EXCEPTION 'since must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Use ''-infinity'' for everything.';
    END IF;
    DELETE FROM inbox.processed AS p WHERE p.consumer_id = own_id AND p.processed_at >= since;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM inbox_internal.note_operation(caller, consumer, 'forget', why,
                                 jsonb_build_object('since', since, 'forgotten', forgotten));
    RETURN forgotten;
END $$;
COMMENT ON FUNCTION inbox.forget(text, timestamptz, text, inbox_internal.caller) IS
    'forgets that a consumer has applied what it applied since a time';

-- Forgets what is older than the window. Returns what was done; most calls find nothing to do. At most
-- max_rows rows are deleted from a table; `more`: there are others. To be called every few minutes, by
-- anybody: while somebody else is at it nothing is done.
CREATE FUNCTION inbox.prune(
    max_rows integer DEFAULT 100000,
    OUT part    text,
    OUT action  text,
    OUT removed bigint,
    OUT more    boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    length    CONSTANT interval    := inbox_internal.window_length();
    by_rows   CONSTANT boolean     := length > interval '11 days';
    now       CONSTANT timestamptz := clock_timestamp();
    horizon   CONSTANT timestamptz := now - length;
    condition text;
    bucket    integer;
BEGIN
    BEGIN
        LOCK TABLE inbox.bucket_check IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN;
    END;
    FOR part, condition IN
        VALUES ('processed_32', 'processed_at < $1'),
               ('tombstone', 'removed_at < $1'),
               -- Failed in one process, applied by another, which did not know that it had failed.
               ('waiting', 'seq IS NULL AND (last_failed_at < $1 OR EXISTS ('
                           'SELECT FROM inbox.processed AS p WHERE p.consumer_id = waiting.consumer_id '
                           'AND p.event_id = waiting.event_id AND p.bucket = inbox_internal.bucket(waiting.event_id)))')
    LOOP
        SELECT * INTO action, removed FROM inbox_internal.delete_rows(part, condition, horizon, max_rows);
        more := removed = max_rows;
        IF action IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;

    FOR bucket IN
        SELECT b FROM generate_series(0, 31) AS b
         WHERE (by_rows OR inbox_internal.bucket_ended(b, now) < horizon)
           AND pg_relation_size(format('inbox.processed_%s', b)::regclass) > 0
           AND NOT EXISTS (SELECT FROM inbox.bucket_check AS c WHERE c.bucket = b AND c.not_before > now)
    LOOP
        part := format('processed_%s', bucket);
        IF by_rows THEN
            SELECT * INTO action, removed FROM inbox_internal.delete_rows(part, 'processed_at < $1', horizon, max_rows);
            more := removed = max_rows;
            IF NOT more THEN
                PERFORM inbox_internal.check_bucket_again(bucket, now + interval '1 hour');
            END IF;
        ELSE
            action := inbox_internal.empty_bucket(bucket, horizon);
            removed := NULL;
            more := false;
        END IF;
        IF action IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox.prune(integer) IS 'forgets what is older than the deduplication window';

-- Nobody waits for us: what is in use is left to the next time.
CREATE FUNCTION inbox_internal.delete_rows(
    part      text,
    condition text,
    horizon   timestamptz,
    max_rows  integer,
    OUT action  text,
    OUT removed bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    removed := 0;
    EXECUTE format('SELECT ''deleted'' FROM inbox.%I WHERE %s LIMIT 1', part, condition)
        INTO action USING horizon;
    IF action IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE inbox.%I IN ROW EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DELETE FROM inbox.%1$I WHERE %2$s AND ctid = ANY (ARRAY('
                   'SELECT ctid FROM inbox.%1$I WHERE %2$s LIMIT $2))', part, condition)
        USING horizon, max_rows;
    GET DIAGNOSTICS removed = ROW_COUNT;
EXCEPTION
    WHEN lock_not_available THEN
        action := 'in use';
END $$;
COMMENT ON FUNCTION inbox_internal.delete_rows(text, text, timestamptz, integer) IS 'a step of inbox.prune()';

-- Empties a bucket whose ids are all older than the window, unless one of them came late, and so is to be
-- remembered still: then it is looked at again when that one is old, too. Nothing can come in meanwhile.
CREATE FUNCTION inbox_internal.empty_bucket(bucket integer, horizon timestamptz)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part text := format('inbox.processed_%s', bucket);
    last timestamptz;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('SELECT max(processed_at) FROM %s', part) INTO last;
    IF last >= horizon THEN
        PERFORM inbox_internal.check_bucket_again(bucket, last + inbox_internal.window_length());
        RETURN NULL;
    END IF;
    EXECUTE format('TRUNCATE %s', part);
    RETURN 'emptied';
EXCEPTION
    WHEN lock_not_available OR object_in_use THEN
        RETURN 'in use';
END $$;
COMMENT ON FUNCTION inbox_internal.empty_bucket(integer, timestamptz) IS 'a step of inbox.prune()';

CREATE FUNCTION inbox_internal.check_bucket_again(bucket integer, not_before timestamptz)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO inbox.bucket_check AS c VALUES ($1, $2)
        ON CONFLICT ON CONSTRAINT bucket_check_pkey DO UPDATE SET not_before = excluded.not_before;
END;
COMMENT ON FUNCTION inbox_internal.check_bucket_again(integer, timestamptz) IS 'when a bucket is looked at again';

-- Read your writes: waiting until what one has caused elsewhere has arrived here. The one who waits looks
-- again and again, at first after 2 ms, later every 100 ms, and holds a snapshot meanwhile.

-- Until when to wait. Refuses what makes no sense.
CREATE FUNCTION inbox_internal.wait_until(timeout interval)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF timeout IS NULL OR timeout < interval '0' OR timeout > interval '1 hour' THEN
        RAISE EXCEPTION 'timeout must be from nothing to an hour' USING ERRCODE = 'invalid_parameter_value';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a % transaction cannot see what it waits for',
                        upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Use READ COMMITTED, or wait before the transaction begins.';
    END IF;
    RETURN clock_timestamp() + timeout;
END $$;
COMMENT ON FUNCTION inbox_internal.wait_until(interval) IS 'when a wait ends';

-- Sleeps before looking again. False: it is too late.
CREATE FUNCTION inbox_internal.wait_on(pause double precision, deadline timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remaining double precision := extract(epoch FROM deadline - clock_timestamp());
BEGIN
    IF remaining <= 0 THEN
        RETURN false;
    END IF;
    PERFORM pg_sleep(least(pause, remaining));
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.wait_on(double precision, timestamptz) IS 'a pause between two looks';

-- Waits until a row of a projection has a version, or a higher one, or was removed with one. False: it had
-- not when the timeout was over. The key has a member for each column of the projection's key.
CREATE FUNCTION inbox.wait_for(
    projection     regclass,
    key            jsonb,
    version        anycompatible,
    version_column text DEFAULT 'version',
    timeout        interval DEFAULT '5 seconds')
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    deadline  timestamptz := inbox_internal.wait_until(timeout);
    pause     double precision := 0.002;
    data      jsonb;
    p         record;
    statement text;
BEGIN
    IF jsonb_typeof(key) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'key must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    data := key || jsonb_build_object(version_column, version);
    p := inbox_internal.row_parts(projection, ARRAY(SELECT jsonb_object_keys(key)), version_column, data);
    statement := format('SELECT EXISTS (SELECT FROM %1$s AS stored WHERE %2$s AND stored.%3$s OPERATOR(pg_catalog.>=) excluded.%3$s) '
                        'OR inbox_internal.tombstone_version(%4$s, %5$s)::%6$s OPERATOR(pg_catalog.>=) excluded.%3$s FROM %7$s',
                        projection, p.same_key, p.version, projection::oid, p.key, p.version_type, p.given);
    WHILE NOT inbox_internal.run(statement, data) LOOP
        IF NOT inbox_internal.wait_on(pause, deadline) THEN
            RETURN false;
        END IF;
        pause := least(pause * 1.5, 0.1);
    END LOOP;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox.wait_for(regclass, jsonb, anycompatible, text, interval) IS
    'waits until a row of a projection has reached a version';

-- Waits until a consumer has applied an event. False: it had not when the timeout was over. Error 55000:
-- the event is a dead letter, and waits for a person.
CREATE FUNCTION inbox.wait_for(consumer text, event_id uuid, timeout interval DEFAULT '5 seconds')
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadline timestamptz := inbox_internal.wait_until(timeout);
    pause    double precision := 0.002;
    known_id integer := (SELECT c.id FROM inbox.consumer AS c WHERE c.name = consumer);
BEGIN
    IF known_id IS NULL THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer
            USING ERRCODE = 'undefined_object', HINT = 'The view inbox.status lists all consumers.';
    END IF;
    LOOP
        IF EXISTS (SELECT FROM inbox.dead_message AS d
                    WHERE d.consumer_id = known_id AND d.event_id = wait_for.event_id) THEN
            RAISE EXCEPTION 'event % is a dead letter of consumer "%"', event_id, consumer
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'See inbox.dead_letter, and what inbox.redrive() and inbox.discard() do.';
        ELSIF inbox_internal.is_processed(known_id, event_id) THEN
            RETURN true;
        ELSIF NOT inbox_internal.wait_on(pause, deadline) THEN
            RETURN false;
        END IF;
        pause := least(pause * 1.5, 0.1);
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox.wait_for(text, uuid, interval) IS 'waits until a consumer has applied an event';

-- Whether the one who asks has the rights of a role that is named in inbox.consumer.
CREATE FUNCTION inbox_internal.is_own(role name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role AND pg_has_role(r.oid, 'USAGE'));
END;
COMMENT ON FUNCTION inbox_internal.is_own(name) IS 'whether a consumer is one''s own';

CREATE VIEW inbox.status AS
SELECT c.name AS consumer,
       c.role,
       c.subscriptions,
       CASE
         WHEN c.subscriptions = 0 AND leased.messages > 0 THEN 'claimed'
         WHEN c.subscriptions = 0 AND EXISTS (SELECT FROM inbox.consumer_offset AS o WHERE o.consumer_id = c.id)
           THEN 'handled outside'
         WHEN c.subscriptions = 0 THEN 'not subscribed'
         WHEN EXISTS (SELECT FROM inbox_internal.confirmation AS s WHERE s.consumer_id = c.id AND NOT s.confirmed)
           THEN 'not confirmed'
         WHEN worker.pid IS NULL THEN 'stopped'
         WHEN first.seq IS NULL THEN 'idle'
         WHEN blocked.keys > 0 OR dead.letters > 0 AND c.on_dead_letter = 'block' THEN 'processing, some keys wait'
         ELSE 'processing'
       END AS state,
       worker.pid,
       coalesce(p.processed, 0) AS processed,
       coalesce(p.failures, 0) AS failures,
       -- Numbers of arrival between the first and the last that waits; an upper bound, for other
       -- consumers and duplicates take numbers as well.
       coalesce(last.seq - first.seq + 1, 0) AS pending_at_most,
       clock_timestamp() - first.received_at AS oldest_pending_age,
       blocked.keys AS waiting_keys,
       p.latency_p50,
       p.latency_p99,
       -- What a handler says quotes its message more often than not.
       CASE WHEN inbox_internal.is_own(c.role) THEN blocked.last_error END AS last_error,
       blocked.last_error_at,
       leased.messages AS claimed,
       dead.letters AS dead_letters
  FROM inbox.consumer AS c
  LEFT JOIN inbox.progress AS p ON p.consumer_id = c.id
  LEFT JOIN LATERAL (SELECT m.seq, m.received_at FROM inbox.message AS m
                      WHERE m.consumer_id = c.id ORDER BY m.seq LIMIT 1) AS first ON true
  LEFT JOIN LATERAL (SELECT m.seq FROM inbox.message AS m
                      WHERE m.consumer_id = c.id ORDER BY m.seq DESC LIMIT 1) AS last ON true
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS keys,
                             (pg_catalog.array_agg(w.error ORDER BY w.last_failed_at DESC))[1] AS last_error,
                             pg_catalog.max(w.last_failed_at) AS last_error_at
                        FROM inbox.waiting AS w WHERE w.consumer_id = c.id) AS blocked
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS messages
                        FROM inbox.claimed AS l
                       WHERE l.consumer_id = c.id AND l.leased_until > clock_timestamp()) AS leased
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS letters
                        FROM inbox.dead_message AS d WHERE d.consumer_id = c.id) AS dead
  LEFT JOIN LATERAL (SELECT a.pid FROM pg_catalog.pg_stat_activity AS a
                      WHERE a.datname = pg_catalog.current_database()
                        AND a.backend_type = 'pg_outbox processor'
                        AND a.application_name = pg_catalog.left('pg_outbox processor ' || c.name, 63)
                      LIMIT 1) AS worker ON true;
COMMENT ON VIEW inbox.status IS 'every consumer in one look: is anything stuck, since when, why';
COMMENT ON COLUMN inbox.status.role IS 'whose rights the handlers have';
COMMENT ON COLUMN inbox.status.processed IS 'messages done with';
COMMENT ON COLUMN inbox.status.failures IS 'failed attempts';
COMMENT ON COLUMN inbox.status.pending_at_most IS 'messages that wait, at most';
COMMENT ON COLUMN inbox.status.oldest_pending_age IS 'for how long the oldest has waited';
COMMENT ON COLUMN inbox.status.waiting_keys IS 'messages whose handler failed, each with its key behind it; see inbox.waiting_keys';
COMMENT ON COLUMN inbox.status.last_error IS 'why a handler failed last; for those who have the rights of the consumer''s role';
COMMENT ON COLUMN inbox.status.claimed IS 'messages under a lease of a processor outside the server';
COMMENT ON COLUMN inbox.status.dead_letters IS 'events that were given up and wait for a person; see inbox.dead_letter';
COMMENT ON COLUMN inbox.status.latency_p50 IS 'half of the recent messages took at most this long from occurred_at to processed';
COMMENT ON COLUMN inbox.status.latency_p99 IS '99 of 100 recent messages took at most this long';

CREATE VIEW inbox.lag AS
SELECT c.name AS consumer,
       s.pending_at_most,
       s.oldest_pending_age,
       s.claimed,
       s.waiting_keys,
       p.wait_p50,
       p.wait_p99,
       p.latency_p50,
       p.latency_p99
  FROM inbox.consumer AS c
  JOIN inbox.status AS s ON s.consumer = c.name
  LEFT JOIN inbox.progress AS p ON p.consumer_id = c.id;
COMMENT ON VIEW inbox.lag IS 'how far behind consumers are with what they received; see inbox.offsets for what they have not';
COMMENT ON COLUMN inbox.lag.pending_at_most IS 'messages received and not processed, at most';
COMMENT ON COLUMN inbox.lag.oldest_pending_age IS 'for how long the oldest has waited';
COMMENT ON COLUMN inbox.lag.claimed IS 'messages under a lease of a processor outside the server';
COMMENT ON COLUMN inbox.lag.waiting_keys IS 'events that failed and are tried again';
COMMENT ON COLUMN inbox.lag.wait_p50 IS
    'half of the messages processed by the server lately took at most this long from received to processed';
COMMENT ON COLUMN inbox.lag.wait_p99 IS '99 of 100 took at most this long';
COMMENT ON COLUMN inbox.lag.latency_p50 IS 'the same from occurred_at to processed';
COMMENT ON COLUMN inbox.lag.latency_p99 IS 'the same from occurred_at to processed';

CREATE VIEW inbox.waiting_keys WITH (security_barrier) AS
SELECT c.name AS consumer,
       w.ordering_key,
       w.event_id,
       m.event_type,
       w.attempts,
       w.sqlstate,
       w.error,
       w.first_failed_at AS since,
       w.last_failed_at,
       w.next_attempt_at
  FROM inbox.waiting AS w
  JOIN inbox.consumer AS c ON c.id = w.consumer_id
  LEFT JOIN inbox.message AS m ON m.consumer_id = w.consumer_id AND m.event_id = w.event_id
 WHERE inbox_internal.is_own(c.role) OR pg_catalog.has_table_privilege('inbox.operation', 'SELECT');
COMMENT ON VIEW inbox.waiting_keys IS
    'keys that wait because a handler failed, since when and why; of one''s own consumers, for operators of all';

-- Events that were given up, and what people decide about them. Whoever may look at inbox.operation is
-- an operator, and sees those of all consumers.

CREATE VIEW inbox.dead_letter WITH (security_barrier) AS
SELECT c.name AS consumer,
       d.event_id,
       d.ordering_key,
       d.event_type,
       d.topic,
       d.aggregate_type,
       d.aggregate_id,
       d.version,
       d.source,
       d.occurred_at,
       d.attempts,
       d.sqlstate,
       d.error,
       d.first_failed_at,
       d.died_at,
       c.on_dead_letter = 'block' AND d.ordering_key <> '' AS blocks,
       d.content_type,
       d.headers,
       d.payload
  FROM inbox.dead_message AS d
  JOIN inbox.consumer AS c ON c.id = d.consumer_id
 WHERE inbox_internal.is_own(c.role) OR pg_catalog.has_table_privilege('inbox.operation', 'SELECT');
COMMENT ON VIEW inbox.dead_letter IS
    'events that were given up, of one''s own consumers, for operators of all: see inbox.redrive(), inbox.discard()';
COMMENT ON COLUMN inbox.dead_letter.blocks IS 'stored messages of its key that came later wait until a person has decided';

-- A consumer, for those who decide about it; it need not be their own. Locked until the transaction ends.
CREATE FUNCTION inbox_internal.take_control(consumer text)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id integer;
BEGIN
    SELECT c.id INTO known_id FROM inbox.consumer AS c WHERE c.name = consumer FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer
            USING ERRCODE = 'undefined_object', HINT = 'The view inbox.status lists all consumers.';
    END IF;
    PERFORM inbox_internal.wake('messages'); -- messages may have become free
    RETURN known_id;
END $$;
COMMENT ON FUNCTION inbox_internal.take_control(text) IS 'locks a consumer for a person';

-- Has dead letters processed again, with all their attempts, before what came after them; without
-- event_ids all of the consumer. Returns how many.
CREATE FUNCTION inbox.redrive(
    consumer  text,
    event_ids uuid[]       DEFAULT NULL,
    why       text         DEFAULT NULL,
    caller    inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id CONSTANT integer := inbox_internal.take_control(consumer);
    ids    uuid[];
BEGIN
    ids := ARRAY(SELECT d.event_id FROM inbox.dead_message AS d
                  WHERE d.consumer_id = known_id AND (event_ids IS NULL OR d.event_id = ANY (event_ids))
                    FOR UPDATE);
    -- A repetition that has arrived since would keep the message from its place.
    DELETE FROM inbox.message AS m WHERE m.consumer_id = known_id AND m.event_id = ANY (ids);
    DELETE FROM inbox.processed AS p
     USING unnest(ids) AS id
     WHERE p.consumer_id = known_id AND p.event_id = id AND p.bucket = inbox_internal.bucket(id);
    INSERT INTO inbox.message (
               seq, consumer_id, event_id, occurred_at, received_at, position, version, schema_version,
               source_event_id, source, topic, aggregate_type, aggregate_id, event_type, ordering_key,
               content_type, headers, payload)
        OVERRIDING SYSTEM VALUE
        SELECT d.seq, d.consumer_id, d.event_id, d.occurred_at, d.received_at, d.position, d.version, d.schema_version,
               d.source_event_id, d.source, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key,
               d.content_type, d.headers, d.payload
          FROM inbox.dead_message AS d
         WHERE d.consumer_id = known_id AND d.event_id = ANY (ids)
        ON CONFLICT DO NOTHING;
    DELETE FROM inbox.dead_message AS d WHERE d.consumer_id = known_id AND d.event_id = ANY (ids);
    INSERT INTO inbox.operation (role, consumer, operation, details, why)
        VALUES (caller, consumer, 'redrive', jsonb_build_object('event_ids', ids), why);
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION inbox.redrive(text, uuid[], text, inbox_internal.caller) IS 'has dead letters processed again';

-- Gives events up for good: dead letters, and those that failed and are tried again. Whatever comes of
-- them from now on has no effect, and what waits behind them goes on. Returns how many.
CREATE FUNCTION inbox.discard(consumer text, event_ids uuid[], why text, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id CONSTANT integer := inbox_internal.take_control(consumer);
    ids    uuid[];
BEGIN
    IF event_ids IS NULL THEN
        RAISE EXCEPTION 'event_ids must be given' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF coalesce(why, '') = '' THEN
        RAISE EXCEPTION 'why must be given: the events are lost' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    ids := ARRAY(SELECT d.event_id FROM inbox.dead_message AS d
                  WHERE d.consumer_id = known_id AND d.event_id = ANY (event_ids)
                 UNION
                 SELECT w.event_id FROM inbox.waiting AS w
                  WHERE w.consumer_id = known_id AND w.event_id = ANY (event_ids));
    -- In the order in which processors lock.
    DELETE FROM inbox.message AS m WHERE m.consumer_id = known_id AND m.event_id = ANY (ids);
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = known_id AND w.event_id = ANY (ids);
    INSERT INTO inbox.processed (consumer_id, event_id, bucket)
        SELECT known_id, id, inbox_internal.bucket(id) FROM unnest(ids) AS id
        ON CONFLICT DO NOTHING;
    DELETE FROM inbox.dead_message AS d WHERE d.consumer_id = known_id AND d.event_id = ANY (ids);
    INSERT INTO inbox.operation (role, consumer, operation, details, why)
        VALUES (caller, consumer, 'discard', jsonb_build_object('event_ids', ids), why);
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION inbox.discard(text, uuid[], text, inbox_internal.caller) IS 'gives up events that failed';

-- Is anything wrong with what is consumed, and what is to be done: for a person at 3 a.m., and for an
-- alert. No rows: all is well. What handlers said is shown to those who have the rights of the consumer's
-- role only.
--
--   failing    events are not applied, and will not be until somebody acts
--   degraded   something goes wrong, and may pass
CREATE FUNCTION inbox.health(
    tolerance interval     DEFAULT '1 minute',
    caller    inbox_internal.caller DEFAULT CURRENT_USER,
    OUT severity text,
    OUT consumer text,
    OUT what     text,
    OUT since    timestamptz,
    OUT detail   text,
    OUT hint     text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH consumer AS MATERIALIZED (
        SELECT c.id, c.name, c.role, c.max_attempts, c.on_dead_letter = 'block' AS blocks, s.state, s.pid,
               c.subscriptions > 0 AS subscribed, clock_timestamp() - s.oldest_pending_age AS pending_since,
               s.oldest_pending_age > tolerance AS late, s.pending_at_most,
               EXISTS (SELECT FROM pg_roles AS r
                        WHERE r.rolname = c.role AND pg_has_role(caller, r.oid, 'USAGE')) AS own
          FROM inbox.consumer AS c
          JOIN inbox.status AS s ON s.consumer = c.name
    ), finding(severity, consumer, what, since, detail, hint) AS (
        SELECT CASE WHEN c.blocks THEN 'failing' ELSE 'degraded' END, c.name, 'dead letters', dead.since,
               format('events that were given up: %s%s; the last with SQLSTATE %s', dead.count,
                      CASE WHEN c.blocks THEN ', and their keys are blocked' ELSE '' END,
                      dead.sqlstate || CASE WHEN c.own THEN ': ' || dead.error ELSE '' END),
               'See inbox.dead_letter; then inbox.redrive() or inbox.discard().'
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT count(*) AS count, min(d.died_at) AS since,
                                    (array_agg(d.sqlstate ORDER BY d.died_at DESC))[1] AS sqlstate,
                                    (array_agg(d.error ORDER BY d.died_at DESC))[1] AS error
                               FROM inbox.dead_message AS d WHERE d.consumer_id = c.id) AS dead
         WHERE dead.count > 0
        UNION ALL
        SELECT CASE WHEN failed.attempts >= c.max_attempts THEN 'failing' ELSE 'degraded' END, c.name,
               'events fail', failed.since,
               format('events that fail and are tried again: %s, up to %s times so far; the last with SQLSTATE %s',
                      failed.count, failed.attempts,
                      failed.sqlstate || CASE WHEN c.own THEN ': ' || failed.error ELSE '' END),
               'See inbox.waiting_keys. What can never work is ended by inbox.discard().'
          FROM consumer AS c
         CROSS JOIN LATERAL (SELECT count(*) AS count, min(w.first_failed_at) AS since, max(w.attempts) AS attempts,
                                    (array_agg(w.sqlstate ORDER BY w.last_failed_at DESC))[1] AS sqlstate,
                                    (array_agg(w.error ORDER BY w.last_failed_at DESC))[1] AS error
                               FROM inbox.waiting AS w WHERE w.consumer_id = c.id) AS failed
         WHERE failed.since < clock_timestamp() - tolerance
        UNION ALL
        SELECT 'failing', c.name, 'no processor', c.pending_since, 'it has subscriptions, and no process in the server runs them',
               format('Is pg_outbox in shared_preload_libraries, can role "%s" log in, is max_worker_processes (%s) used up? The server log says more.',
                      c.role, current_setting('max_worker_processes'))
          FROM consumer AS c
         WHERE c.state = 'stopped'
        UNION ALL
        SELECT 'failing', c.name, 'not confirmed', c.pending_since,
               format('its handlers would run with the rights of role "%s", which has not confirmed all of them', c.role),
               format('Are they what the role is to run? As that role: SELECT * FROM inbox.own_subscriptions(); then SELECT * FROM inbox.confirm(%L).', c.name)
          FROM consumer AS c
         WHERE c.state = 'not confirmed'
        UNION ALL
        SELECT 'failing', c.name, 'messages for nobody', c.pending_since, format('messages that wait: %s at most; nobody has ever processed any', c.pending_at_most),
               'Does the sender mean this consumer? inbox.subscribe(), or a process that calls inbox.claim().'
          FROM consumer AS c
         WHERE c.role IS NULL AND c.late
        UNION ALL
        SELECT 'degraded', c.name, 'behind', c.pending_since, format('messages that wait: %s at most', c.pending_at_most),
               CASE WHEN c.subscribed THEN 'See inbox.lag, and what process ' || c.pid || ' of the server does.'
                    ELSE 'Nobody in the server processes them: are those who call inbox.claim() away, slow or stuck?'
               END
          FROM consumer AS c
         WHERE c.role IS NOT NULL AND c.late AND c.state NOT IN ('stopped', 'not confirmed')
        UNION ALL
        SELECT 'degraded', c.name, 'reset not carried out', o.at,
               format('the offset of subscription "%s" was reset, and no process of the consumer has gone there', r.subscription),
               'Is a process of the consumer running, and can its source seek?'
          FROM consumer AS c
          JOIN inbox.offset_reset AS r ON r.consumer_id = c.id
          LEFT JOIN inbox.operation AS o ON o.id = r.reset_id
         WHERE coalesce(o.at < clock_timestamp() - tolerance, true)
        UNION ALL
        SELECT 'degraded', o.consumer, 'offset behind', o.updated_at,
               format('what was applied last of subscription "%s" had waited for %s', o.subscription,
                      o.lag_ms * interval '1 millisecond'),
               'See inbox.offsets: are there enough processes, and what do they wait for?'
          FROM inbox.offsets AS o
         WHERE o.lag_ms * interval '1 millisecond' > tolerance AND o.idle < greatest(tolerance, interval '1 minute')
    )
    SELECT f.* FROM finding AS f
     WHERE NOT pg_is_in_recovery()  -- the primary consumes
     ORDER BY f.severity DESC, f.consumer, f.since;
END;
COMMENT ON FUNCTION inbox.health(interval, inbox_internal.caller) IS
    'what is wrong with consumers, since when, and what is to be done; no rows: nothing';

-- What each right consists of: functions, and views with the functions they need, of the schemas inbox and
-- inbox_internal, by name. A new one that is not for its owner alone is added here, and to
-- tests/system/test_privileges.py. `read` has what a processor calls, which works as the reader.
CREATE FUNCTION inbox_internal.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'send' THEN ARRAY['receive']
             WHEN 'read' THEN ARRAY['subscribe', 'add_subscription', 'unsubscribe', 'confirm', 'own_subscriptions',
                                    'save_confirmation', 'wake', 'lock_subscriptions', 'confirmed_subscriptions', 'json', 'waiting_keys',
                                    'is_own', 'next_messages', 'next_attempt', 'process', 'take', 'record_failure',
                                    'save_progress', 'set_policy', 'dead_letter']
             WHEN 'consume' THEN ARRAY['version', 'begin_event', 'begin_events', 'was_applied',
                                       'save_offset', 'load_offset', 'confirm_reset',
                                       'fail_event', 'end_failure', 'claim', 'complete', 'fail', 'extend', 'release',
                                       'set_policy', 'dead_letter', 'waiting_keys', 'is_own']
             WHEN 'operate' THEN ARRAY['redrive', 'discard', 'reset_offset', 'forget', 'set_window', 'prune', 'give_consumer',
                                       'dead_letter', 'waiting_keys', 'is_own', 'operation']
             WHEN 'monitor' THEN ARRAY['version', 'status', 'is_own', 'lag', 'health', 'offsets']
           END
           -- Whoever applies events, in the server or in processes of his own.
           || CASE WHEN right_to IN ('read', 'consume')
                THEN ARRAY['apply', 'remove', 'row_parts', 'check_row', 'check_key', 'run', 'tombstone_version',
                           'removed_version', 'lock_removal', 'leave_tombstone', 'wait_for', 'wait_until', 'wait_on',
                           'prune']
              END;
END;
COMMENT ON FUNCTION inbox_internal.parts_of_right(text) IS 'the objects that a right gives the use of';

-- Privileges of one object cannot be changed by two transactions at the same time: the second one would fail.
CREATE FUNCTION inbox_internal.lock_rights()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE';
COMMENT ON FUNCTION inbox_internal.lock_rights() IS 'lets one transaction at a time change rights';

-- How a right is given and taken: each is a set of privileges, see inbox_internal.parts_of_right().

CREATE FUNCTION inbox_internal.privileges_of_right(right_to text, OUT privilege text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'EXECUTE', 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc AS p
     WHERE p.pronamespace IN ('inbox'::regnamespace, 'inbox_internal'::regnamespace)
       AND p.proname = ANY (inbox_internal.parts_of_right(right_to))
    UNION ALL
    SELECT 'SELECT', 'TABLE ' || c.oid::regclass
      FROM pg_class AS c
     WHERE c.relnamespace = 'inbox'::regnamespace AND c.relname = ANY (inbox_internal.parts_of_right(right_to))
       AND c.relkind IN ('r', 'v')
    UNION ALL
    SELECT 'USAGE', 'TYPE ' || c.reltype::regtype
      FROM pg_class AS c
     WHERE c.relnamespace = 'inbox'::regnamespace AND c.relname = ANY (inbox_internal.parts_of_right(right_to))
       AND c.relkind = 'c';
END;
COMMENT ON FUNCTION inbox_internal.privileges_of_right(text) IS 'the privileges that make up a right';

-- Where a role may do something. USAGE on a schema comes with the first privilege on something in it, and goes
-- with the last.
CREATE FUNCTION inbox_internal.schemas_used_by(role regrole)
RETURNS SETOF name
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT n.nspname
      FROM pg_namespace AS n
     WHERE n.nspname IN ('inbox', 'inbox_internal')
       AND (EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS acl
                     WHERE p.pronamespace = n.oid AND acl.grantee = role)
            OR EXISTS (SELECT FROM pg_class AS c, aclexplode(c.relacl) AS acl
                        WHERE c.relnamespace = n.oid AND acl.grantee = role));
END;
COMMENT ON FUNCTION inbox_internal.schemas_used_by(regrole) IS 'the schemas in which a role has privileges';

CREATE FUNCTION inbox_internal.grant_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    PERFORM inbox_internal.lock_rights();
    FOR part IN SELECT * FROM inbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('GRANT %s ON %s TO %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT inbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.grant_right(regrole, text) IS 'gives a role the privileges of a right';

CREATE FUNCTION inbox_internal.revoke_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    PERFORM inbox_internal.lock_rights();
    FOR part IN SELECT * FROM inbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('REVOKE %s ON %s FROM %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT unnest('{inbox,inbox_internal}'::name[]) EXCEPT SELECT inbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.revoke_right(regrole, text) IS 'takes the privileges of a right from a role';

-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

CREATE FUNCTION inbox.grant_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.grant_send(regrole) IS 'lets a role put events into the inbox';

CREATE FUNCTION inbox.revoke_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.revoke_send(regrole) IS 'takes the right to put events into the inbox from a role';

CREATE FUNCTION inbox.grant_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.grant_read(regrole) IS 'lets a role subscribe handlers';

CREATE FUNCTION inbox.revoke_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.revoke_read(regrole) IS 'takes the right to subscribe handlers from a role';

CREATE FUNCTION inbox.grant_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.grant_consume(regrole) IS 'lets a role consume events in its own processes';

CREATE FUNCTION inbox.revoke_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.revoke_consume(regrole) IS 'takes the right to consume events from a role';

CREATE FUNCTION inbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.grant_operate(regrole) IS 'lets a role decide about events that failed';

CREATE FUNCTION inbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.revoke_operate(regrole) IS 'takes the right to decide about events that failed from a role';

CREATE FUNCTION inbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION inbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';

-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal FROM PUBLIC;

-- Who may read statistics of the server may read ours.
SELECT inbox.grant_monitor('pg_monitor');
