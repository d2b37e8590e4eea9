-- Events that fail. The rules are here for all ways to consume: the processor of the server,
-- clients that claim messages, and clients that handle events at once.

-- Writes a failure of an event to the server log. Callers log only the first failure of an event, a
-- failure with another reason than the last one, and dead letters. Errors often quote the event, so
-- they are cut and made one line.
CREATE FUNCTION inbox_internal.log_failure(message text, failure inbox.waiting, hint text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE LOG USING
        MESSAGE = regexp_replace(message || ': ' || left(failure.error, 500), '[[:cntrl:]]+', ' ', 'g'),
        DETAIL = regexp_replace(concat_ws(' ', format('SQLSTATE %s.', failure.sqlstate), left(failure.detail, 500)),
                                '[[:cntrl:]]+', ' ', 'g'),
        HINT = hint;
END $$;

-- Writes a failure to the server log if its reason is new, unless more than a hundred events wait.
CREATE FUNCTION inbox_internal.log_retry(consumer text, previous inbox.waiting, failure inbox.waiting)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (previous.error, previous.sqlstate) IS DISTINCT FROM (failure.error, failure.sqlstate)
       AND (SELECT count(*) <= 100
              FROM (SELECT FROM inbox.waiting AS w WHERE w.consumer_id = failure.consumer_id LIMIT 101) AS enough) THEN
        PERFORM inbox_internal.log_failure(
            format('attempt %s of event %s of consumer "%s" failed', failure.attempts, failure.event_id, consumer), failure,
            'It will be tried again. inbox.waiting_keys shows when; the next such line is for another reason.');
    END IF;
END $$;

-- Returns whether an error is about the server, whatever the event: its disk is full, it has too many
-- connections, cannot read a file, or is no longer the primary. The client waits for the same errors
-- (client/src/applier.cpp).
CREATE FUNCTION inbox_internal.is_trouble(sqlstate text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN sqlstate IN ('53100', '53300', '58030', '25006');

-- Counts a failed attempt, and returns whether the event is a dead letter now. Returns false if the
-- event will be tried again, or if another process has applied it meanwhile. Returns true if it is
-- a dead letter now; its id is remembered, so that duplicates have no effect.
--
-- An error that is about the server makes no dead letter, and attempts that had one do not count
-- when the event fails for another reason. Otherwise a full disk would end all events of its time.
--
-- Rows are locked in this order, here as elsewhere: inbox.claimed, message, waiting, processed. The
-- caller has locked the message, if it is stored.
--
-- An event whose seq is NULL is not stored here. If dead letters of its consumer block their keys,
-- it never becomes one: its key is blocked at its source for as long as it is not acknowledged.
CREATE FUNCTION inbox_internal.count_failure(
    event        inbox.message,
    error        text,
    sqlstate     text,
    permanent    boolean,
    max_attempts integer,
    detail       text DEFAULT NULL,
    hint         text DEFAULT NULL,
    context      text DEFAULT NULL,
    incomplete   boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy   inbox.consumer;
    previous inbox.waiting;
    failure  inbox.waiting;
BEGIN
    SELECT c.* INTO STRICT policy FROM inbox.consumer AS c WHERE c.id = event.consumer_id;
    SELECT w.* INTO previous FROM inbox.waiting AS w
     WHERE w.consumer_id = event.consumer_id AND w.event_id = event.event_id;
    INSERT INTO inbox.waiting AS w (consumer_id, event_id, seq, ordering_key, attempts, error, sqlstate,
                                    detail, hint, context, next_attempt_at)
        VALUES (event.consumer_id, event.event_id, event.seq, event.ordering_key, 1,
                left(coalesce(error, ''), 10000), coalesce(sqlstate, 'P0001'),
                left(nullif(detail, ''), 10000), left(nullif(hint, ''), 10000), left(nullif(context, ''), 10000),
                clock_timestamp() + inbox_internal.retry_delay(policy, 1))
        ON CONFLICT ON CONSTRAINT waiting_pkey DO UPDATE
           SET seq = coalesce(excluded.seq, w.seq),
               attempts = CASE WHEN inbox_internal.is_trouble(w.sqlstate) AND NOT inbox_internal.is_trouble(excluded.sqlstate) THEN 1
                               ELSE w.attempts + 1 END,
               error = excluded.error,
               sqlstate = excluded.sqlstate,
               detail = excluded.detail,
               hint = excluded.hint,
               context = excluded.context,
               last_failed_at = clock_timestamp(),
               next_attempt_at = clock_timestamp() + inbox_internal.retry_delay(policy, w.attempts + 1)
        RETURNING w.* INTO failure;
    IF event.seq IS NULL AND policy.on_dead_letter = 'block'
       OR (failure.attempts < coalesce(max_attempts, policy.max_attempts) OR inbox_internal.is_trouble(failure.sqlstate))
          AND NOT coalesce(permanent, false) AND failure.sqlstate <> 'IL002' THEN
        PERFORM inbox_internal.log_retry(policy.name, previous, failure);
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
    event.aside := false;
    INSERT INTO inbox.dead_message
        SELECT event.*, failure.attempts, failure.error, failure.sqlstate, failure.first_failed_at, clock_timestamp(),
               failure.detail, failure.hint, failure.context, coalesce(incomplete, false);
    PERFORM inbox_internal.log_failure(
        format('event %s of consumer "%s" is a dead letter, after %s failed attempts', failure.event_id, policy.name,
               failure.attempts),
        failure, 'See inbox.dead_letter; then use inbox.redrive() or inbox.discard().');
    RETURN true;
END $$;

-- Returns whether a message is too large to be processed: for a client, or for the indexes that a
-- failure needs. Such messages become dead letters, so that others go on. receive() accepts no such
-- message, but a dump or a version without limits may contain one. They are looked for when
-- messages are taken, because an index would cost more.
CREATE FUNCTION inbox_internal.is_too_large(message inbox.message)
RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN octet_length((message).ordering_key) > @{max_key_length} OR octet_length((message).payload) > @{max_message_payload_size}
       OR octet_length((message).topic) + octet_length((message).aggregate_type) + octet_length((message).aggregate_id)
          + octet_length((message).event_type) + octet_length((message).content_type) + octet_length((message).source) > 16384
       OR (message).headers IS NOT NULL AND octet_length((message).headers::text) > @{max_message_headers_size};

-- Returns whether this session can get the texts of a message, in its client_encoding. It is inlined.
CREATE FUNCTION inbox_internal.has_form_for_client(message inbox.message)
RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE WHEN pg_client_encoding() IN (getdatabaseencoding(), 'SQL_ASCII') THEN true
            ELSE inbox_internal.has_form(
                     concat_ws(E'\n', (message).source, (message).topic, (message).aggregate_type, (message).aggregate_id,
                               (message).event_type, (message).ordering_key, (message).content_type, (message).headers),
                     pg_client_encoding()) END;

-- Makes a message that cannot be handed out a dead letter, which keeps all of it: it is too large, or
-- this session cannot get it. Returns false if it is gone, or if another process has locked it. A key
-- that is too long is cut.
CREATE FUNCTION inbox_internal.give_up(message inbox.message)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    too_large CONSTANT boolean := inbox_internal.is_too_large(message) IS TRUE;
    problem   CONSTANT text := CASE
        WHEN too_large THEN inbox_internal.problem_of(
            message.source, message.occurred_at, message.topic, message.aggregate_type, message.aggregate_id,
            message.event_type, message.ordering_key, message.content_type, message.headers, message.payload)
        ELSE format('a name or a header of the event has no form in %s, the client_encoding of the session that claimed it',
                    pg_client_encoding()) END;
    key       CONSTANT text := message.ordering_key;
BEGIN
    PERFORM FROM inbox.message AS m
      WHERE m.consumer_id = message.consumer_id AND m.event_id = message.event_id FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        message.ordering_key := inbox_internal.cut(key, @{max_key_length});
        PERFORM inbox_internal.count_failure(message, problem, CASE WHEN too_large THEN '54000' ELSE '22P05' END, true, NULL,
                                             incomplete => message.ordering_key <> key);
    END IF;
    RETURN FOUND;
END $$;

-- Cuts a text that is longer than `most` bytes.
CREATE FUNCTION inbox_internal.cut(value text, most integer)
RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN octet_length(value) > most THEN left(value, most / 4) ELSE value END;

-- Makes an event that exceeds the limits of problem_of() one that can be kept: cuts its texts, and leaves out
-- headers, payload and time if they are at fault.
CREATE FUNCTION inbox_internal.within_limits(event inbox.message)
RETURNS inbox.message
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    none text;
BEGIN
    event.topic := inbox_internal.cut(event.topic, @{max_name_length});
    event.aggregate_type := inbox_internal.cut(event.aggregate_type, @{max_name_length});
    event.event_type := inbox_internal.cut(event.event_type, @{max_name_length});
    event.content_type := inbox_internal.cut(event.content_type, @{max_name_length});
    event.source := inbox_internal.cut(event.source, @{max_key_length});
    event.aggregate_id := inbox_internal.cut(event.aggregate_id, @{max_key_length});
    event.ordering_key := inbox_internal.cut(event.ordering_key, @{max_key_length});
    IF octet_length(event.payload) > @{max_message_payload_size} THEN
        event.payload := NULL;
    END IF;
    IF inbox_internal.problem_of(none, event.occurred_at, none, none, none, none, none, none, NULL, NULL) IS NOT NULL THEN
        event.occurred_at := event.received_at;
    END IF;
    IF inbox_internal.problem_of(none, NULL, none, none, none, none, none, none, event.headers, NULL) IS NOT NULL THEN
        event.headers := NULL;
    END IF;
    RETURN event;
END $$;

-- Counts a failed attempt of a client that handles events at once, after it has rolled back;
-- returns true if the event was given up. False means that the event must not be acknowledged, so
-- that it comes again. True means that it is a dead letter: it is stored here and can be
-- acknowledged. If max_attempts is NULL, the policy of the consumer has the limit. `incomplete` says
-- that the event is given without parts that the database cannot keep.
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
    detail          text    DEFAULT NULL,
    hint            text    DEFAULT NULL,
    context         text    DEFAULT NULL,
    incomplete      boolean DEFAULT false,
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
    -- It was applied or became a dead letter since the attempt began. begin_event() will find that
    -- when it comes again.
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
        event := inbox_internal.within_limits(event);
        incomplete := true;
        detail := concat_ws(E'\n', nullif(detail, ''), format('The event is not kept as it was: %s.', problem));
    END IF;
    PERFORM inbox_internal.note_change(event.consumer_id, 0, 1);
    RETURN inbox_internal.count_failure(event, error, sqlstate, permanent, max_attempts, detail, hint, context, incomplete);
END $$;

-- Ends the failures of events that are applied now. A client that handles events at once calls it
-- in the transaction that applies them. Returns how many of the events had failed.
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
