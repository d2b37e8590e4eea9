-- outbox.enqueue() in PL/pgSQL; native/enqueue.sql says what it does. The common case comes first:
-- a few comparisons, one look at the ring, one insert. What they do not accept goes to functions that
-- say what is wrong.
--
-- Functions without a search_path of their own run under that of outbox.enqueue(), and are granted
-- to nobody.

-- The topics as patterns of LIKE, so that an enqueue need not make them.
CREATE FUNCTION outbox_internal.patterns_of(topics text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(replace(replace(replace(replace(btrim(topic, E' \t\r\n'), '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'))
      FROM string_to_table(topics, ',') AS topic;
END;
COMMENT ON FUNCTION outbox_internal.patterns_of(text) IS 'topics of a producer as patterns of LIKE';

ALTER TABLE outbox.producer ADD COLUMN patterns text[] NOT NULL GENERATED ALWAYS AS (outbox_internal.patterns_of(topics)) STORED;
COMMENT ON COLUMN outbox.producer.patterns IS 'topics as patterns of LIKE';

-- ------------------------------------------------------------------------------------------------
-- Refusals
-- ------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.check_length(value text, argument text, most integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF octet_length(value) > most THEN
        RAISE EXCEPTION '% is too long', argument
            USING ERRCODE = 'string_data_right_truncation',
                  DETAIL = format('It has %s bytes; at most %s are allowed.', octet_length(value), most);
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_length(text, text, integer) IS 'refuses a text that is too long';

-- Names are sent as headers, subjects and routing keys, where control characters break the protocol.
CREATE FUNCTION outbox_internal.check_name(value text, argument text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION '% must not be null', argument USING ERRCODE = 'null_value_not_allowed';
    ELSIF value = '' THEN
        RAISE EXCEPTION '% must not be empty', argument USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM outbox_internal.check_length(value, argument, 249);
    IF value ~ '[\x01-\x1f\x7f]' THEN
        RAISE EXCEPTION '% must not contain control characters', argument USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_name(text, text) IS 'refuses a name that protocols cannot carry';

CREATE FUNCTION outbox_internal.check_content_type(content_type text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF content_type IS NULL THEN
        RAISE EXCEPTION 'content_type must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Write for example ''application/x-protobuf''.';
    END IF;
    PERFORM outbox_internal.check_name(content_type, 'content_type');
    IF NOT outbox_internal.is_content_type(content_type) THEN
        RAISE EXCEPTION 'content_type is not a media type'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''application/x-protobuf''.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_content_type(text) IS 'refuses what is not a media type';

-- Headers that events must not set: those that frame the message or authenticate its sender, and
-- names of CloudEvents attributes that sinks fill from the event. As in extension/produce/event_input.cpp.
CREATE FUNCTION outbox_internal.is_reserved_header(name text)
RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT lower(name COLLATE "C") ~ '^ce[-_]' OR lower(name COLLATE "C") IN (
        'aggregateversion', 'authorization', 'connection', 'content-encoding', 'content-length', 'content-type',
        'cookie', 'data', 'datacontenttype', 'dataschema', 'expect', 'host', 'id', 'keep-alive', 'partitionkey',
        'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'schemaversion', 'sequence', 'set-cookie',
        'source', 'sourceeventid', 'specversion', 'subject', 'te', 'time', 'topic', 'trailer', 'transfer-encoding',
        'type', 'upgrade', 'webhook-id', 'webhook-signature', 'webhook-timestamp', 'www-authenticate');
END;
COMMENT ON FUNCTION outbox_internal.is_reserved_header(text) IS 'returns whether events must not set a header';

CREATE FUNCTION outbox_internal.check_headers(headers jsonb)
RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    header record;
    count  integer;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''{"traceparent": "00-..."}''.';
    END IF;
    count := (SELECT count(*) FROM jsonb_object_keys(headers));
    IF count > 64 THEN
        RAISE EXCEPTION 'too many headers'
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('There are %s; at most 64 are allowed.', count);
    END IF;
    count := pg_column_size(headers || '{}'); -- not compressed
    IF count > 8192 THEN
        RAISE EXCEPTION 'headers are too large'
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('They have %s bytes; at most 8192 are allowed.', count);
    END IF;
    FOR header IN SELECT h.key, h.value, jsonb_typeof(h.value) AS type FROM jsonb_each(headers) AS h LOOP
        PERFORM outbox_internal.check_length(header.key, 'name of a header', 128);
        IF header.key COLLATE "C" !~ '^[-0-9A-Za-z!#$%&''*+.^_`|~]+$' THEN
            RAISE EXCEPTION 'invalid header name "%"', header.key
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Use letters, digits and "-", "_" or ".".';
        ELSIF outbox_internal.is_reserved_header(header.key) THEN
            RAISE EXCEPTION 'header name "%" is reserved', header.key
                USING ERRCODE = 'invalid_parameter_value',
                      DETAIL = 'Headers that frame or authenticate a message, and those that are filled from the event, cannot be set.',
                      HINT = format('Choose another name, such as "x-%s".', header.key);
        ELSIF header.type IN ('object', 'array') THEN
            RAISE EXCEPTION 'value of header "%" is not a scalar', header.key
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Headers are strings, numbers, booleans or null; put structured data into the payload.';
        ELSIF header.type = 'string' AND header.value #>> '{}' ~ '[\x01-\x1f\x7f]' THEN
            RAISE EXCEPTION 'value of header "%" contains control characters', header.key
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Line breaks in a header would start another one.';
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_headers(jsonb) IS 'refuses headers that destinations cannot take';

-- Bytes of a JSON type must be JSON, because sinks embed them in documents of their own.
CREATE FUNCTION outbox_internal.check_json_bytes(payload bytea)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    characters text;
BEGIN
    BEGIN
        characters := convert_from(payload, 'UTF8');
    EXCEPTION WHEN character_not_in_repertoire THEN
        RAISE EXCEPTION 'payload is not valid UTF-8'
            USING ERRCODE = 'character_not_in_repertoire', HINT = 'Give another content type for data that is not JSON.';
    END;
    PERFORM characters::json;
END $$;
COMMENT ON FUNCTION outbox_internal.check_json_bytes(bytea) IS 'refuses bytes that are not JSON';

CREATE FUNCTION outbox_internal.check_payload_size(size integer)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT bigint := outbox_internal.setting_number('max_payload_size');
BEGIN
    IF size > most THEN
        RAISE EXCEPTION 'payload is too large'
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = format('It has %s bytes; outbox.max_payload_size is %s.', size, most),
                  HINT = 'Store large data elsewhere and put a reference to it into the event.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_payload_size(integer) IS 'refuses a payload that is too large';

CREATE FUNCTION outbox_internal.check_event(
    aggregate_type text, aggregate_id text, event_type text, topic text, ordering_key text, headers jsonb,
    schema_version integer, occurred_at timestamptz)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_name(aggregate_type, 'aggregate_type');
    IF aggregate_id IS NULL THEN
        RAISE EXCEPTION 'aggregate_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF aggregate_id = '' THEN
        RAISE EXCEPTION 'aggregate_id must not be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM outbox_internal.check_length(aggregate_id, 'aggregate_id', 1024);
    PERFORM outbox_internal.check_name(event_type, 'event_type');
    IF topic IS NOT NULL THEN
        PERFORM outbox_internal.check_name(topic, 'topic');
    END IF;
    PERFORM outbox_internal.check_length(ordering_key, 'ordering_key', 1024);
    PERFORM outbox_internal.check_headers(headers);
    IF schema_version < 1 THEN
        RAISE EXCEPTION 'schema_version must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    ELSIF occurred_at < '0001-01-01 00:00:00+00' OR occurred_at >= '10000-01-01 00:00:00+00' THEN
        RAISE EXCEPTION 'occurred_at must lie in the years 1 to 9999' USING ERRCODE = 'datetime_field_overflow';
    END IF;
    IF topic IS NULL THEN
        PERFORM outbox_internal.check_length(aggregate_type, 'aggregate_type, from which the topic is made,', 242);
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_event(text, text, text, text, text, jsonb, integer, timestamptz) IS
    'refuses an event that destinations cannot take';

CREATE FUNCTION outbox_internal.check_may_produce(topic text, role name, by_capture boolean)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted text;
BEGIN
    IF pg_has_role(role, current_user, 'USAGE')
       OR EXISTS (SELECT FROM outbox.producer AS p
                   WHERE (by_capture OR p.right_to = 'produce') AND pg_has_role(check_may_produce.role, p.role, 'USAGE')
                     AND topic LIKE ANY (p.patterns)) THEN
        RETURN;
    END IF;
    SELECT string_agg(p.topics, ', ') INTO granted
      FROM outbox.producer AS p
     WHERE (by_capture OR p.right_to = 'produce') AND pg_has_role(check_may_produce.role, p.role, 'USAGE');
    RAISE EXCEPTION 'permission denied for topic "%"', topic
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = CASE WHEN granted IS NULL THEN format('Role "%s" may produce events of no topic.', role)
                            ELSE format('Role "%s" may produce events of the topics "%s".', role, granted) END,
              HINT = CASE WHEN by_capture
                          THEN 'Topics of captured tables are granted to their owners by outbox.grant_capture() and outbox.grant_produce().'
                          ELSE 'Topics are granted by outbox.grant_produce().' END;
END $$;
COMMENT ON FUNCTION outbox_internal.check_may_produce(text, name, boolean) IS 'refuses topics that a role may not produce';

CREATE FUNCTION outbox_internal.refuse_read_only()
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'cannot enqueue events on a standby'
            USING ERRCODE = 'read_only_sql_transaction',
                  HINT = 'Enqueue on the primary, in the transaction that changes the data.';
    END IF;
    RAISE EXCEPTION 'cannot execute outbox.enqueue() in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction';
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_read_only() IS 'says why events cannot be enqueued';

-- ------------------------------------------------------------------------------------------------
-- Writing
-- ------------------------------------------------------------------------------------------------

-- The current segment, for enqueues: they read it without a query. The trigger keeps it in step with
-- outbox.ring. It does not matter which segment an event is in; readers read all of them.
CREATE SEQUENCE outbox_internal.current_segment AS integer MINVALUE 0 MAXVALUE 3;
COMMENT ON SEQUENCE outbox_internal.current_segment IS 'the segment that enqueues go to';
DO $$ BEGIN PERFORM setval('outbox_internal.current_segment', 0); END $$;

CREATE FUNCTION outbox_internal.follow_ring()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM setval('outbox_internal.current_segment', r.number) FROM outbox.ring AS r WHERE r.current;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.follow_ring() IS 'keeps outbox_internal.current_segment in step with outbox.ring';

CREATE TRIGGER follow_ring AFTER INSERT OR UPDATE ON outbox.ring
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.follow_ring();
COMMENT ON TRIGGER follow_ring ON outbox.ring IS 'keeps outbox_internal.current_segment in step';

-- UUID of version 7, as extension/produce/uuid7.cpp makes them: milliseconds, 12 bits of their
-- fraction, and random bits.
CREATE FUNCTION outbox_internal.new_event_id()
RETURNS uuid
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
            || substr(gen_random_uuid()::text, 19))::uuid;
END;
COMMENT ON FUNCTION outbox_internal.new_event_id() IS 'a new UUID of version 7';

-- Checks an event and writes it into the log. The payload, its media type and its size are checked.
-- The xid is taken before the position: readers rely on that.
CREATE FUNCTION outbox_internal.put_event(
    aggregate_type text, aggregate_id text, event_type text, content_type text, payload bytea, version bigint, topic text,
    ordering_key text, headers jsonb, schema_version integer, event_id uuid, source_event_id uuid, occurred_at timestamptz,
    producer name, by_capture boolean DEFAULT false, only_to integer DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    segment  integer;
    own_xid  xid8;
    earlier  uuid;
    place    bigint;
BEGIN
    IF (octet_length(aggregate_type) BETWEEN 1 AND 242 AND octet_length(aggregate_id) BETWEEN 1 AND 1024
        AND octet_length(event_type) BETWEEN 1 AND 249 AND headers IS NULL AND occurred_at IS NULL
        AND (topic IS NULL OR octet_length(topic) BETWEEN 1 AND 249)
        AND (ordering_key IS NULL OR octet_length(ordering_key) <= 1024)
        AND (schema_version IS NULL OR schema_version >= 1)
        AND concat(aggregate_type, event_type, topic) !~ '[\x01-\x1f\x7f]') IS NOT TRUE THEN
        PERFORM outbox_internal.check_event(aggregate_type, aggregate_id, event_type, topic, ordering_key, headers,
                                            schema_version, occurred_at);
    END IF;
    IF octet_length(payload) > 1024 THEN -- the least that outbox.max_payload_size can be
        PERFORM outbox_internal.check_payload_size(octet_length(payload));
    END IF;
    IF topic IS NULL THEN
        topic := aggregate_type || '.events';
    END IF;
    IF pg_has_role(producer, current_user, 'USAGE') IS NOT TRUE THEN
        PERFORM outbox_internal.check_may_produce(topic, producer, by_capture);
    END IF;
    IF current_setting('transaction_read_only') = 'on' THEN
        PERFORM outbox_internal.refuse_read_only();
    END IF;
    IF event_id IS NULL THEN
        event_id := outbox_internal.new_event_id();
    END IF;
    IF source_event_id IS NOT NULL THEN
        earlier := outbox_internal.claim_source_event(source_event_id, aggregate_type, aggregate_id, event_type, event_id);
        IF earlier IS NOT NULL THEN
            RETURN earlier;
        END IF;
    END IF;

    -- A relay that sleeps holds the lock: see relay.sql. A transaction that has notified cannot be
    -- prepared; where that may happen, relays do not rely on notifications.
    IF NOT pg_try_advisory_xact_lock_shared(1869968482, 0) AND current_setting('max_prepared_transactions') = '0' THEN
        PERFORM pg_notify('outbox_wake', '');
    END IF;
    own_xid := pg_current_xact_id();
    place := nextval('outbox.event_position');
    IF by_capture AND version IS NULL THEN
        version := place;
    END IF;
    IF headers = '{}' THEN
        headers := NULL;
    END IF;
    segment := pg_sequence_last_value('outbox_internal.current_segment');
    IF segment = 1 THEN
        INSERT INTO outbox.event_1
        VALUES (place, own_xid, coalesce(occurred_at, clock_timestamp()), event_id, version, coalesce(schema_version, 1),
                source_event_id, topic, aggregate_type, aggregate_id, event_type, coalesce(ordering_key, aggregate_id),
                content_type, headers, payload, only_to);
    ELSIF segment = 2 THEN
        INSERT INTO outbox.event_2
        VALUES (place, own_xid, coalesce(occurred_at, clock_timestamp()), event_id, version, coalesce(schema_version, 1),
                source_event_id, topic, aggregate_type, aggregate_id, event_type, coalesce(ordering_key, aggregate_id),
                content_type, headers, payload, only_to);
    ELSIF segment = 3 THEN
        INSERT INTO outbox.event_3
        VALUES (place, own_xid, coalesce(occurred_at, clock_timestamp()), event_id, version, coalesce(schema_version, 1),
                source_event_id, topic, aggregate_type, aggregate_id, event_type, coalesce(ordering_key, aggregate_id),
                content_type, headers, payload, only_to);
    ELSE
        INSERT INTO outbox.event_0
        VALUES (place, own_xid, coalesce(occurred_at, clock_timestamp()), event_id, version, coalesce(schema_version, 1),
                source_event_id, topic, aggregate_type, aggregate_id, event_type, coalesce(ordering_key, aggregate_id),
                content_type, headers, payload, only_to);
    END IF;
    RETURN event_id;
END $$;
COMMENT ON FUNCTION outbox_internal.put_event(text, text, text, text, bytea, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz, name, boolean, integer) IS
    'writes an event into the log';

-- ------------------------------------------------------------------------------------------------
-- Interface
-- ------------------------------------------------------------------------------------------------

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
    occurred_at     timestamptz DEFAULT NULL,
    caller          outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    id      uuid;
    body    CONSTANT bytea := convert_to(payload::text, 'UTF8');
    segment bigint;
BEGIN
    -- All of it in two expressions, because each costs something in each transaction. The second takes
    -- the xid, and shares the lock that a relay holds while it sleeps (see relay.sql), or notifies it.
    IF (octet_length(aggregate_type) BETWEEN 1 AND 242 AND octet_length(aggregate_id) BETWEEN 1 AND 1024
        AND octet_length(event_type) BETWEEN 1 AND 249 AND octet_length(topic) BETWEEN 1 AND 249 IS NOT FALSE
        AND octet_length(ordering_key) <= 1024 IS NOT FALSE AND schema_version >= 1 IS NOT FALSE
        AND concat(aggregate_type, event_type, topic) !~ '[\x01-\x1f\x7f]'
        AND headers IS NULL AND occurred_at IS NULL AND source_event_id IS NULL
        AND octet_length(body) <= 1024 IS NOT FALSE -- outbox.max_payload_size cannot be less
        AND pg_has_role(caller, current_user, 'USAGE') AND current_setting('transaction_read_only') = 'off') IS NOT TRUE THEN
        RETURN outbox_internal.put_event(aggregate_type, aggregate_id, event_type, 'application/json', body, version, topic,
                                         ordering_key, headers, schema_version, event_id, source_event_id, occurred_at, caller);
    END IF;
    segment := CASE WHEN pg_current_xact_id() IS NOT NULL
                         AND (pg_try_advisory_xact_lock_shared(1869968482, 0)
                              OR current_setting('max_prepared_transactions') <> '0'
                              OR pg_notify('outbox_wake', '') IS NOT NULL)
                    THEN pg_sequence_last_value('outbox_internal.current_segment') END;
    IF segment = 1 THEN
        INSERT INTO outbox.event_1
        VALUES (nextval('outbox.event_position'), pg_current_xact_id(), clock_timestamp(),
                coalesce(event_id,
                         (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
                          || substr(gen_random_uuid()::text, 19))::uuid),
                version, coalesce(schema_version, 1), NULL, coalesce(topic, aggregate_type || '.events'), aggregate_type, aggregate_id,
                event_type, coalesce(ordering_key, aggregate_id), 'application/json', NULL, body, NULL)
        RETURNING event_1.event_id INTO id;
    ELSIF segment = 2 THEN
        INSERT INTO outbox.event_2
        VALUES (nextval('outbox.event_position'), pg_current_xact_id(), clock_timestamp(),
                coalesce(event_id,
                         (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
                          || substr(gen_random_uuid()::text, 19))::uuid),
                version, coalesce(schema_version, 1), NULL, coalesce(topic, aggregate_type || '.events'), aggregate_type, aggregate_id,
                event_type, coalesce(ordering_key, aggregate_id), 'application/json', NULL, body, NULL)
        RETURNING event_2.event_id INTO id;
    ELSIF segment = 3 THEN
        INSERT INTO outbox.event_3
        VALUES (nextval('outbox.event_position'), pg_current_xact_id(), clock_timestamp(),
                coalesce(event_id,
                         (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
                          || substr(gen_random_uuid()::text, 19))::uuid),
                version, coalesce(schema_version, 1), NULL, coalesce(topic, aggregate_type || '.events'), aggregate_type, aggregate_id,
                event_type, coalesce(ordering_key, aggregate_id), 'application/json', NULL, body, NULL)
        RETURNING event_3.event_id INTO id;
    ELSE
        INSERT INTO outbox.event_0
        VALUES (nextval('outbox.event_position'), pg_current_xact_id(), clock_timestamp(),
                coalesce(event_id,
                         (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
                          || substr(gen_random_uuid()::text, 19))::uuid),
                version, coalesce(schema_version, 1), NULL, coalesce(topic, aggregate_type || '.events'), aggregate_type, aggregate_id,
                event_type, coalesce(ordering_key, aggregate_id), 'application/json', NULL, body, NULL)
        RETURNING event_0.event_id INTO id;
    END IF;
    RETURN id;
END $$;
COMMENT ON FUNCTION outbox.enqueue(text, text, text, jsonb, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz, outbox_internal.caller) IS
    'commits an event with a JSON payload together with the current transaction';

CREATE FUNCTION outbox_internal.check_payload(content_type text, payload bytea)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    PERFORM outbox_internal.check_content_type(content_type);
    IF octet_length(payload) > 1024 THEN
        PERFORM outbox_internal.check_payload_size(octet_length(payload));
    END IF;
    IF outbox_internal.is_json_type(content_type) THEN
        PERFORM outbox_internal.check_json_bytes(payload);
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_payload(text, bytea) IS 'refuses a payload that is not what its media type says';

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
    occurred_at     timestamptz DEFAULT NULL,
    caller          outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF content_type IS NOT NULL THEN -- the names are checked first
        PERFORM outbox_internal.check_event(aggregate_type, aggregate_id, event_type, topic, ordering_key, headers,
                                            schema_version, occurred_at);
    END IF;
    PERFORM outbox_internal.check_payload(content_type, payload);
    RETURN outbox_internal.put_event(aggregate_type, aggregate_id, event_type, content_type, payload, version, topic,
                                     ordering_key, headers, schema_version, event_id, source_event_id, occurred_at, caller);
END $$;
COMMENT ON FUNCTION outbox.enqueue(text, text, text, bytea, text, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz, outbox_internal.caller) IS
    'commits an event with a payload of any media type together with the current transaction';

CREATE FUNCTION outbox.enqueue(events outbox.new_event[], caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS uuid[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    event outbox.new_event;
    bytes bytea;
    ids   uuid[] := '{}';
BEGIN
    IF events IS NULL THEN
        RAISE EXCEPTION 'events must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    FOREACH event IN ARRAY events LOOP
        IF event IS NULL THEN
            RAISE EXCEPTION 'event is null' USING ERRCODE = 'null_value_not_allowed';
        ELSIF event.payload IS NOT NULL AND (event.data IS NOT NULL OR event.content_type IS NOT NULL) THEN
            RAISE EXCEPTION 'an event has either a payload, or data with a content_type, not both'
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF event.data IS NOT NULL OR event.content_type IS NOT NULL THEN
            PERFORM outbox_internal.check_event(event.aggregate_type, event.aggregate_id, event.event_type, event.topic,
                                                event.ordering_key, event.headers, event.schema_version, event.occurred_at);
            PERFORM outbox_internal.check_payload(event.content_type, event.data);
            bytes := event.data;
        ELSE
            bytes := convert_to(event.payload::text, 'UTF8');
        END IF;
        ids := ids || outbox_internal.put_event(
            event.aggregate_type, event.aggregate_id, event.event_type, coalesce(event.content_type, 'application/json'), bytes,
            event.version, event.topic, event.ordering_key, event.headers, event.schema_version, event.event_id,
            event.source_event_id, event.occurred_at, caller);
    END LOOP;
    RETURN ids;
END $$;
COMMENT ON FUNCTION outbox.enqueue(outbox.new_event[], outbox_internal.caller) IS
    'commits many events together with the current transaction';
