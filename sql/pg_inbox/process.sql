-- Processing of messages in the server. The processor of pg_outbox calls these functions as the
-- role of the consumer. A consumer has one processor at a time.

-- Refuses a role that does not own the consumer.
CREATE FUNCTION inbox_internal.check_role(consumer_id integer, caller inbox_internal.caller)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT coalesce((SELECT c.role = caller OR pg_has_role(caller, to_regrole(quote_ident(c.role)), 'MEMBER')
                       FROM inbox.consumer AS c WHERE c.id = $1), false) THEN
        RAISE EXCEPTION 'consumer % is not one of role "%"', $1, caller
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- Returns the next messages that can be processed now (free.sql), in order of arrival.
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
SET enable_seqscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    free record;
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    PERFORM inbox_internal.end_lost_leases(consumer_id); -- from before it had a subscription
    LOOP
        SELECT * INTO STRICT free FROM inbox_internal.free_messages(consumer_id, max_messages, for_client => false);
        EXIT WHEN free.event_ids <> '{}' OR NOT free.more;
    END LOOP;
    RETURN QUERY
        SELECT m.seq, m.occurred_at, m.received_at
          FROM unnest(free.event_ids) AS f(id)
         CROSS JOIN LATERAL inbox_internal.message_by_id($1, f.id) AS m
         ORDER BY m.seq;
END $$;

-- Skips messages that cannot be tried here: they are behind others of their key, or are not stored.
CREATE FUNCTION inbox_internal.next_attempt(consumer_id integer, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    RETURN least((SELECT min(inbox_internal.due_at(w))
                    FROM inbox.waiting AS w
                   WHERE w.consumer_id = $1 AND w.seq IS NOT NULL
                     AND (w.ordering_key = ''
                          OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                          WHERE o.consumer_id = w.consumer_id
                                            AND o.ordering_key = w.ordering_key AND o.seq < w.seq))),
                 (SELECT min(c.leased_until) FROM inbox.claimed AS c WHERE c.consumer_id = $1));
END $$;
COMMENT ON FUNCTION inbox_internal.next_attempt(integer, inbox_internal.caller) IS 'time of the next retry';

-- Returns the subscriptions of a consumer in the form that take() compares; NULL if there are none,
-- or if some are not confirmed (confirm.sql).
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

-- Returns the id of a message; NULL if it is gone.
CREATE FUNCTION inbox_internal.event_at(consumer_id integer, seq bigint)
RETURNS uuid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT m.event_id FROM inbox.message AS m WHERE m.consumer_id = $1 AND NOT m.aside AND m.seq = $2),
                    (SELECT m.event_id FROM inbox.message AS m WHERE m.consumer_id = $1 AND m.aside AND m.seq = $2));
END;

-- Takes a message out of the inbox, for good if the transaction commits, and returns its handlers.
-- `confirmed` is the result of confirmed_subscriptions(); since then others may have been added.
--
-- `waits` is true, and nothing is taken, if an earlier message of the same key has failed and comes
-- first or blocks it, or if a subscription is not confirmed. `message` is NULL if it is gone, or if
-- it was a duplicate and has been deleted.
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
SET standard_conforming_strings = on
AS $$
DECLARE
    is_aside boolean;
BEGIN
    -- Ownership and confirmation are checked in the same statement, because this runs for every
    -- message.
    FOREACH is_aside IN ARRAY ARRAY[false, true] LOOP
        DELETE FROM inbox.message AS m
         WHERE m.consumer_id = take.consumer_id AND m.aside = is_aside AND m.seq = take.seq
           AND EXISTS (SELECT FROM inbox.consumer AS c
                        WHERE c.id = take.consumer_id AND (c.role = caller OR pg_has_role(caller, to_regrole(quote_ident(c.role)), 'MEMBER')))
           AND (SELECT bool_and(quote_literal(s.event_type) || s.handler = ANY (confirmed))
                  FROM inbox.subscription AS s WHERE s.consumer_id = take.consumer_id)
           AND (m.ordering_key = ''
                OR NOT EXISTS (SELECT FROM inbox.obstacle AS o
                                WHERE o.consumer_id = m.consumer_id
                                  AND o.ordering_key = m.ordering_key AND o.seq < m.seq))
         RETURNING m.* INTO message;
        EXIT WHEN FOUND;
    END LOOP;
    IF message.seq IS NULL THEN
        PERFORM inbox_internal.check_role(consumer_id, caller);
        waits := inbox_internal.event_at(consumer_id, seq) IS NOT NULL;
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

-- Records that a message could not be handled: it waits, with its key, or is a dead letter now.
CREATE FUNCTION inbox_internal.record_failure(
    consumer_id integer,
    seq         bigint,
    error       text,
    sqlstate    text,
    detail      text,
    hint        text,
    context     text,
    caller      inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message inbox.message;
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    SELECT m.* INTO message FROM inbox.message AS m
     WHERE m.consumer_id = $1 AND m.event_id = inbox_internal.event_at($1, $2)
       FOR UPDATE;
    IF FOUND THEN
        PERFORM inbox_internal.count_failure(message, $3, $4, false, NULL, $5, $6, $7);
    END IF;
END $$;

-- Counts a failed attempt of a message that was being processed when the processor ended, unless that was counted.
-- `ended_at` is NULL if it was not.
CREATE FUNCTION inbox_internal.record_end(
    consumer_id integer,
    seq         bigint,
    ended_at    timestamptz,
    caller      inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM inbox.waiting AS w
                    WHERE w.consumer_id = $1 AND w.event_id = inbox_internal.event_at($1, $2) AND w.last_failed_at >= ended_at) THEN
        PERFORM inbox_internal.record_failure(consumer_id, seq, 'the processor ended, and the message was not completed', 'IL001',
                                              NULL, NULL, NULL, caller);
    END IF;
END $$;

-- Processes one message. `confirmed` is as for take(). Returns true if it is done: handled, without
-- a handler, or a duplicate. Returns false if it failed, and NULL if it waits. The handler's
-- effects are part of the caller's transaction. No search_path is set, because handlers need that
-- of their role; nothing here depends on it.
CREATE FUNCTION inbox_internal.process(consumer_id integer, seq bigint, confirmed text[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    taken   record;
    handler text;
    error   text;
    state   text;
    detail  text;
    hint    text;
    context text;
BEGIN
    taken := inbox_internal.take(consumer_id, seq, confirmed);
    IF taken.waits THEN
        RETURN NULL;
    END IF;
    IF taken.handlers IS NOT NULL THEN
        IF inbox_internal.changes_trace((taken.message).headers) THEN
            PERFORM inbox.continue_trace((taken.message).headers);
        END IF;
        FOREACH handler IN ARRAY taken.handlers LOOP
            EXECUTE pg_catalog.format('SELECT %s($1)', handler) USING taken.message;
        END LOOP;
        -- Deferred constraints would fail at the commit, where nothing can catch the error.
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    RETURN true;
EXCEPTION
    WHEN OTHERS OR assert_failure OR query_canceled THEN
        GET STACKED DIAGNOSTICS error = MESSAGE_TEXT, state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL,
                                hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
        PERFORM inbox_internal.record_failure(consumer_id, seq, error, state, detail, hint, context);
        RETURN false;
END $$;

-- Adds to the counters of a processor.
CREATE FUNCTION inbox_internal.save_progress(
    consumer_id integer,
    processed   bigint,
    failures    bigint,
    latency_p50 interval,
    latency_p99 interval,
    wait_p50    interval,
    wait_p99    interval,
    latency_buckets bigint[],
    latency_sum double precision,
    caller      inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.check_role(consumer_id, caller);
    IF processed < 0 OR failures < 0 THEN
        RAISE EXCEPTION 'processed and failures must not be negative' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM inbox_internal.check_histogram(latency_buckets, latency_sum);
    INSERT INTO inbox.progress AS p
           (consumer_id, processed, failures, latency_p50, latency_p99, saved_at, wait_p50, wait_p99, latency_buckets, latency_sum)
        VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7, $8, $9)
        ON CONFLICT ON CONSTRAINT progress_pkey DO UPDATE
           SET processed = inbox_internal.as_count(p.processed::numeric + excluded.processed),
               failures = inbox_internal.as_count(p.failures::numeric + excluded.failures),
               latency_p50 = excluded.latency_p50,
               latency_p99 = excluded.latency_p99,
               wait_p50 = excluded.wait_p50,
               wait_p99 = excluded.wait_p99,
               latency_buckets = inbox_internal.sum_of_buckets(p.latency_buckets, excluded.latency_buckets),
               latency_sum = coalesce(p.latency_sum, 0) + coalesce(excluded.latency_sum, 0),
               saved_at = excluded.saved_at;
END $$;
