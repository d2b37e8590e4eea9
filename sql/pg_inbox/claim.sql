-- Messages processed outside the server. claim() gives them to a process under a lease. For each
-- message the process calls complete() in the transaction of the message's effects, or fail().
--
-- A message is claimed while it has a row in inbox.claimed. complete() locks that row, so while the
-- effects are neither committed nor rolled back, an expired lease is not taken over. A lease that
-- was taken over has another token, and transactions under the old token fail. So a lease ends when
-- it is taken over, not when its time is over.
--
-- A lost lease counts as a failed attempt of its messages, because one of them may have ended the
-- process. From then on such a message is claimed alone.

-- Reports a lost lease.
CREATE FUNCTION inbox_internal.lease_lost(token uuid)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the message is not under lease %', token
        USING ERRCODE = 'IL001',
              DETAIL = 'The lease ended and another process has the message, or an earlier one of its key failed, or it was completed before.',
              HINT = 'Roll back the effects of the message, and go on with others.';
END $$;

-- Ends expired leases, which count as failed attempts, except those of messages that are being
-- completed.
CREATE FUNCTION inbox_internal.end_lost_leases(consumer_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lost    inbox.claimed;
    message inbox.message;
    ended   bigint := 0;
    failed  bigint := 0;
    now     CONSTANT timestamptz := clock_timestamp();
BEGIN
    -- After the clock was set back, a lease that seems to begin later begins now.
    UPDATE inbox.claimed AS c
       SET leased_at = now, leased_until = now + (c.leased_until - c.leased_at)
     WHERE c.ctid = ANY (ARRAY(SELECT ahead.ctid FROM inbox.claimed AS ahead
                                WHERE ahead.consumer_id = $1 AND ahead.leased_at > now FOR UPDATE SKIP LOCKED));
    FOR lost IN
        SELECT c.* FROM inbox.claimed AS c
         WHERE c.consumer_id = $1 AND c.leased_until < now
           FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM inbox.claimed AS c WHERE c.consumer_id = lost.consumer_id AND c.event_id = lost.event_id;
        ended := ended + 1;
        SELECT m.* INTO message FROM inbox.message AS m
         WHERE m.consumer_id = lost.consumer_id AND m.event_id = lost.event_id
           FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        PERFORM inbox_internal.count_failure(message, format('the lease ended at %s, and the message was not completed', lost.leased_until),
                                    'IL001', false, NULL);
        failed := failed + 1;
    END LOOP;
    IF ended > 0 THEN
        PERFORM inbox_internal.note_change(consumer_id, -ended, failed);
    END IF;
END $$;

-- Puts messages aside that were claimed, and are given back without an attempt. Later ones of their
-- keys may have been put aside (free.sql).
CREATE FUNCTION inbox_internal.give_back(consumer_id integer, event_ids uuid[])
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE inbox.message AS m SET aside = true
     WHERE m.consumer_id = $1 AND m.event_id = ANY (event_ids) AND m.ordering_key <> '' AND NOT m.aside;
END;

-- Takes the next messages of a consumer under a lease, in order of arrival; commit before
-- processing them. The consumer must have no subscriptions in the server. Error 42704: there is no
-- such consumer. Skips messages that wait for their next attempt, and those of a key of which an
-- earlier message waits, blocks or is claimed. `attempt` is 1 for the first attempt. Process
-- several messages of one key in the given order. Plans are kept, and must be good for tables that
-- were empty when they were made.
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
SET enable_sort = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    own_id    CONSTANT integer := inbox_internal.known_consumer(consumer, caller);
    new_token CONSTANT uuid := gen_random_uuid();
    handlers  integer;
    pending   boolean;
    free_ids  uuid[];
    given_out bigint;
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
        IF NOT EXISTS (SELECT FROM inbox.progress AS p WHERE p.consumer_id = own_id AND p.seen_at IS NOT NULL) THEN
            PERFORM inbox_internal.note_claim(own_id, NULL, 0);
        END IF;
        RETURN;
    END IF;

    -- Calls for one consumer run one after the other, so that each sees what the one before has
    -- taken.
    PERFORM FROM inbox.consumer AS c WHERE c.id = own_id FOR NO KEY UPDATE;
    PERFORM inbox_internal.end_lost_leases(own_id);
    SELECT f.event_ids INTO STRICT free_ids FROM inbox_internal.free_messages(own_id, max_messages, for_client => true) AS f;
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT m.seq, m.event_id, m.ordering_key, coalesce(w.attempts, 0) AS failed,
               coalesce(w.sqlstate = 'IL001', false) AS alone
          FROM unnest(free_ids) AS f(id)
         CROSS JOIN LATERAL inbox_internal.message_by_id(own_id, f.id) AS m
          LEFT JOIN LATERAL (SELECT w.attempts, w.sqlstate FROM inbox.waiting AS w
                              WHERE w.consumer_id = own_id AND w.event_id BETWEEN f.id AND f.id
                              ORDER BY w.event_id LIMIT 1) AS w ON true
    ), chosen AS (
        SELECT f.* FROM free AS f
         WHERE f.seq = (SELECT min(first.seq) FROM free AS first)
            OR f.seq < coalesce((SELECT min(single.seq) FROM free AS single WHERE single.alone), f.seq + 1)
    ), claimed AS (
        INSERT INTO inbox.claimed (consumer_id, event_id, ordering_key, token, leased_until)
            SELECT own_id, f.event_id, f.ordering_key, new_token, clock_timestamp() + lease FROM chosen AS f
    )
    SELECT new_token, f.failed + 1, m.seq, m.event_id, m.occurred_at, m.received_at, m.position, m.version,
           m.schema_version, m.source_event_id, m.source, m.topic, m.aggregate_type, m.aggregate_id,
           m.event_type, m.ordering_key, m.content_type, m.headers, m.payload
      FROM chosen AS f
     CROSS JOIN LATERAL inbox_internal.message_by_id(own_id, f.event_id) AS m
     ORDER BY f.seq;
    GET DIAGNOSTICS given_out = ROW_COUNT;
    PERFORM inbox_internal.note_claim(own_id, new_token, given_out);
END $$;

-- Completes a claimed message, in the transaction of its effects: takes it out of the inbox, for
-- good if the transaction commits. Call it before the effects of the message, in the same
-- transaction. It sets inbox.traceparent for them. Returns false if the message is a duplicate:
-- commit and do nothing else. Error IL001: the message is not under this lease any more.
CREATE FUNCTION inbox.complete(token uuid, event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    own_id        integer;
    given_headers jsonb;
BEGIN
    DELETE FROM inbox.claimed AS c
     USING inbox.consumer AS o
     WHERE c.token = $1 AND c.event_id = $2 AND o.id = c.consumer_id
       AND (o.role = caller OR pg_has_role(caller, to_regrole(quote_ident(o.role)), 'MEMBER'))
     RETURNING c.consumer_id INTO own_id;
    IF FOUND THEN
        DELETE FROM inbox.message AS m WHERE m.consumer_id = own_id AND m.event_id = $2
            RETURNING m.headers INTO given_headers;
    END IF;
    IF NOT FOUND THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    IF inbox_internal.changes_trace(given_headers) THEN
        PERFORM inbox.continue_trace(given_headers);
    END IF;
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = own_id AND w.event_id = $2;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket)
        VALUES (own_id, $2, inbox_internal.bucket($2))
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Counts a failed attempt of a claimed message, after its effects were rolled back; returns retry
-- or dead. It is 'retry' if the message will be claimed again, or 'dead' if it has become a dead
-- letter. Skip the remaining messages of its key under this lease: they are given back, unless the
-- key goes on after a dead letter, and complete() refuses them.
CREATE FUNCTION inbox.fail(
    token     uuid,
    event_id  uuid,
    error     text,
    sqlstate  text    DEFAULT 'P0001',
    permanent boolean DEFAULT false,
    detail    text    DEFAULT NULL,
    hint      text    DEFAULT NULL,
    context   text    DEFAULT NULL,
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
    others  uuid[] := '{}';
BEGIN
    DELETE FROM inbox.claimed AS c
     USING inbox.consumer AS o
     WHERE c.token = $1 AND c.event_id = $2 AND o.id = c.consumer_id
       AND (o.role = caller OR pg_has_role(caller, to_regrole(quote_ident(o.role)), 'MEMBER'))
     RETURNING o.* INTO policy;
    IF FOUND THEN
        SELECT m.* INTO message FROM inbox.message AS m
         WHERE m.consumer_id = policy.id AND m.event_id = $2
           FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    dead := inbox_internal.count_failure(message, $3, $4, $5, NULL, $6, $7, $8);
    IF NOT dead OR policy.on_dead_letter = 'block' THEN
        WITH given_back AS (
            DELETE FROM inbox.claimed AS c
             WHERE c.token = $1 AND c.ordering_key = message.ordering_key AND c.ordering_key <> ''
            RETURNING c.event_id
        )
        SELECT coalesce(array_agg(g.event_id), '{}') INTO others FROM given_back AS g;
        PERFORM inbox_internal.give_back(policy.id, others);
    END IF;
    PERFORM inbox_internal.note_change(policy.id, -1 - cardinality(others), 1);
    RETURN CASE WHEN dead THEN 'dead' ELSE 'retry' END;
END $$;

-- Prolongs a lease from now on, and returns its new end. Does not wait for messages that are being
-- completed: no other process can take them over.
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
    now     CONSTANT timestamptz := clock_timestamp();
    new_end CONSTANT timestamptz := now + lease;
BEGIN
    PERFORM inbox_internal.check_lease_time(lease);
    IF NOT EXISTS (SELECT FROM inbox.claimed AS c
                     JOIN inbox.consumer AS o ON o.id = c.consumer_id
                    WHERE c.token = $1 AND (o.role = caller OR pg_has_role(caller, to_regrole(quote_ident(o.role)), 'MEMBER'))) THEN
        PERFORM inbox_internal.lease_lost(token);
    END IF;
    UPDATE inbox.claimed AS c
       SET leased_at = now, leased_until = new_end
     WHERE c.ctid = ANY (ARRAY(SELECT own.ctid FROM inbox.claimed AS own
                                WHERE own.token = $1 FOR UPDATE SKIP LOCKED));
    RETURN new_end;
END $$;

-- Gives back messages claimed under a token and not completed; returns their number.
CREATE FUNCTION inbox.release(token uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    own_id   integer;
    released uuid[];
BEGIN
    WITH given_back AS (
        DELETE FROM inbox.claimed AS c
         USING inbox.consumer AS o
         WHERE c.token = $1 AND o.id = c.consumer_id AND (o.role = caller OR pg_has_role(caller, to_regrole(quote_ident(o.role)), 'MEMBER'))
         RETURNING c.consumer_id, c.event_id
    )
    SELECT min(g.consumer_id), coalesce(array_agg(g.event_id), '{}') INTO own_id, released FROM given_back AS g;
    IF released <> '{}' THEN
        PERFORM inbox_internal.give_back(own_id, released);
        PERFORM inbox_internal.note_change(own_id, -cardinality(released), 0);
    END IF;
    RETURN cardinality(released);
END $$;
