-- Events that were given up, and decisions about them. A role that may read inbox.operation is an
-- operator, and sees the events of all consumers.

CREATE VIEW inbox.dead_letter WITH (security_barrier) AS
SELECT c.name AS consumer,
       d.event_id,
       inbox_internal.for_client(d.ordering_key) AS ordering_key,
       inbox_internal.for_client(d.event_type) AS event_type,
       inbox_internal.for_client(d.topic) AS topic,
       inbox_internal.for_client(d.aggregate_type) AS aggregate_type,
       inbox_internal.for_client(d.aggregate_id) AS aggregate_id,
       d.version,
       inbox_internal.for_client(d.source) AS source,
       d.occurred_at,
       d.attempts,
       d.sqlstate,
       inbox_internal.for_client(d.error) AS error,
       inbox_internal.for_client(d.detail) AS detail,
       inbox_internal.for_client(d.hint) AS hint,
       inbox_internal.for_client(d.context) AS context,
       d.first_failed_at,
       d.died_at,
       c.on_dead_letter = 'block' AND d.ordering_key <> '' AS blocks,
       inbox_internal.for_client(d.content_type) AS content_type,
       inbox_internal.for_client(d.headers) AS headers,
       d.payload,
       d.incomplete,
       inbox_internal.for_client(inbox.payload_text(d.content_type, d.payload)) AS payload_text,
       inbox_internal.for_client(inbox.payload_jsonb(d.content_type, d.payload)) AS payload_jsonb,
       NOT inbox_internal.has_form(
           pg_catalog.concat_ws(E'\n', d.ordering_key, d.event_type, d.topic, d.aggregate_type, d.aggregate_id, d.source, d.error, d.detail,
                                d.hint, d.context, d.content_type, d.headers),
           pg_catalog.pg_client_encoding()) AS escaped
  FROM inbox.dead_message AS d
  JOIN inbox.consumer AS c ON c.id = d.consumer_id
 WHERE inbox_internal.is_own(c.role) OR pg_catalog.has_table_privilege('inbox.operation', 'SELECT');
COMMENT ON VIEW inbox.dead_letter IS
    'dead letters of the consumers of the current role, or for operators of all; see inbox.redrive(), inbox.discard()';
COMMENT ON COLUMN inbox.dead_letter.blocks IS 'true if later messages of its key wait for a decision';
COMMENT ON COLUMN inbox.dead_letter.incomplete IS 'true if parts of the event could not be kept, so that inbox.redrive() leaves it';
COMMENT ON COLUMN inbox.dead_letter.context IS 'what the handler did when the last error was raised, the innermost call first';
COMMENT ON COLUMN inbox.dead_letter.payload_text IS 'the payload if it is text or JSON';
COMMENT ON COLUMN inbox.dead_letter.payload_jsonb IS 'the payload if it is JSON';
COMMENT ON COLUMN inbox.dead_letter.escaped IS
    'true if a text has no form in the client_encoding of the session: such texts are shown with bytes in octal, headers as a string';

-- Locks a consumer, of any role, for an operator until the transaction ends.
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
    PERFORM inbox_internal.wake('messages'); -- messages may no longer have to wait
    RETURN known_id;
END $$;

-- Processes dead letters again, with all their attempts, in front of later messages. Without
-- event_ids it takes all dead letters of the consumer, but for incomplete ones. Returns their number.
-- Errors: 55000 one of event_ids is incomplete.
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
    ids        uuid[];
    incomplete uuid;
BEGIN
    -- A part of an event is not the event, and no handler gets it.
    SELECT d.event_id INTO incomplete FROM inbox.dead_message AS d
     WHERE d.consumer_id = known_id AND d.event_id = ANY (event_ids) AND d.incomplete LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'event % cannot be processed again', incomplete
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'The database could not keep all parts of it.',
                  HINT = 'Give it up with inbox.discard(), and have its sender send it as a new event.';
    END IF;
    ids := ARRAY(SELECT d.event_id FROM inbox.dead_message AS d
                  WHERE d.consumer_id = known_id AND (event_ids IS NULL OR d.event_id = ANY (event_ids)) AND NOT d.incomplete
                    FOR UPDATE);
    -- A duplicate that has arrived since would keep the message from its place.
    DELETE FROM inbox.message AS m WHERE m.consumer_id = known_id AND m.event_id = ANY (ids);
    DELETE FROM inbox.processed AS p
     USING unnest(ids) AS id
     WHERE p.consumer_id = known_id AND p.event_id = id AND p.bucket = inbox_internal.bucket(id);
    INSERT INTO inbox.message (
               seq, consumer_id, event_id, occurred_at, received_at, position, version, schema_version,
               source_event_id, source, topic, aggregate_type, aggregate_id, event_type, ordering_key,
               content_type, headers, payload, aside)
        OVERRIDING SYSTEM VALUE
        SELECT d.seq, d.consumer_id, d.event_id, d.occurred_at, d.received_at, d.position, d.version, d.schema_version,
               d.source_event_id, d.source, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key,
               d.content_type, d.headers, d.payload, d.ordering_key <> '' -- see free.sql
          FROM inbox.dead_message AS d
         WHERE d.consumer_id = known_id AND d.event_id = ANY (ids)
        ON CONFLICT DO NOTHING;
    DELETE FROM inbox.dead_message AS d WHERE d.consumer_id = known_id AND d.event_id = ANY (ids);
    INSERT INTO inbox.operation (role, consumer, operation, details, why)
        VALUES (caller, consumer, 'redrive', jsonb_build_object('event_ids', ids), why);
    RETURN cardinality(ids);
END $$;

-- Processes a dead letter again, for one id, as text or uuid. PostgreSQL takes a literal for text,
-- so a literal of an array comes here as well.
CREATE FUNCTION inbox.redrive(consumer text, event_id text)
RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT inbox.redrive(consumer, event_ids => CASE WHEN event_id IS NULL OR event_id LIKE '{%' THEN event_id::uuid[]
                                                   ELSE ARRAY[event_id::uuid] END);
END;

-- Processes a dead letter again.
CREATE FUNCTION inbox.redrive(consumer text, event_id uuid)
RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT inbox.redrive(consumer, event_ids => ARRAY[event_id]);
END;

-- Gives up events for good: dead letters, events that failed and will be tried again, and messages that
-- are not processed yet. They have no effect if they come again, and messages behind them go on. Returns
-- their number.
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
        RAISE EXCEPTION 'why must not be null, because the events are lost' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    ids := ARRAY(SELECT d.event_id FROM inbox.dead_message AS d
                  WHERE d.consumer_id = known_id AND d.event_id = ANY (event_ids)
                 UNION
                 SELECT w.event_id FROM inbox.waiting AS w
                  WHERE w.consumer_id = known_id AND w.event_id = ANY (event_ids)
                 UNION
                 SELECT m.event_id FROM inbox.message AS m
                  WHERE m.consumer_id = known_id AND m.event_id = ANY (event_ids));
    -- Locks rows in the order in which processors do.
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
