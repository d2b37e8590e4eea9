-- Where an event is, for each consumer. The rows of an event are found by primary keys, so this is
-- fast with any number of messages.

-- Returns since when an event waits for its turn, and what for; NULLs if nothing is known about it.
-- `behind` is an event of the same key that must be settled first.
CREATE FUNCTION inbox_internal.state_of_message(
    consumer_id integer,
    event_id    uuid,
    OUT state           text,
    OUT since           timestamptz,
    OUT attempts        integer,
    OUT next_attempt_at timestamptz,
    OUT behind          uuid,
    OUT why             text,
    OUT what_to_do      text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    message inbox.message;
    failure inbox.waiting;
    claim   inbox.claimed;
    stored  boolean;
BEGIN
    SELECT m.* INTO message FROM inbox.message AS m WHERE m.consumer_id = $1 AND m.event_id = $2;
    stored := FOUND;
    SELECT w.* INTO failure FROM inbox.waiting AS w WHERE w.consumer_id = $1 AND w.event_id = $2;
    IF NOT (stored OR FOUND) THEN
        RETURN;
    END IF;
    attempts := coalesce(failure.attempts, 0);
    next_attempt_at := failure.next_attempt_at;
    since := coalesce(failure.first_failed_at, message.received_at);

    SELECT c.* INTO claim FROM inbox.claimed AS c WHERE c.consumer_id = $1 AND c.event_id = $2;
    IF FOUND THEN
        state := 'CLAIMED';
        IF claim.leased_until > clock_timestamp() THEN
            why := format('a process has claimed it, under a lease until %s', claim.leased_until::timestamptz(0));
        ELSE
            why := format('a process has claimed it, and its lease ended at %s', claim.leased_until::timestamptz(0));
            what_to_do := 'The next inbox.claim() returns it. Check whether a process of the consumer is running.';
        END IF;
        RETURN;
    END IF;

    IF stored AND message.ordering_key <> '' THEN
        SELECT o.event_id,
               CASE WHEN o.dead THEN format('it waits behind event %s of its key, which is a dead letter', o.event_id)
                    ELSE format('it waits behind event %s of its key, which has failed %s times and is tried again at %s',
                                o.event_id, o.attempts, o.next_attempt_at::timestamptz(0))
               END,
               CASE WHEN o.dead THEN 'Decide about that event with inbox.redrive() or inbox.discard().'
                    ELSE 'See that event in inbox.waiting_keys. Use inbox.discard() if it can never be applied.'
               END
          INTO behind, why, what_to_do
          FROM (SELECT w.event_id, w.seq, false AS dead, w.attempts, w.next_attempt_at
                  FROM inbox.waiting AS w
                 WHERE w.consumer_id = $1 AND w.ordering_key = message.ordering_key
                UNION ALL
                SELECT d.event_id, d.seq, true, d.attempts, NULL
                  FROM inbox.dead_message AS d
                  JOIN inbox.consumer AS c ON c.id = d.consumer_id AND c.on_dead_letter = 'block'
                 WHERE d.consumer_id = $1 AND d.ordering_key = message.ordering_key) AS o
         WHERE o.seq < message.seq
         ORDER BY o.seq
         LIMIT 1;
        IF NOT FOUND THEN
            SELECT c.event_id, format('it waits behind event %s of its key, which a process has claimed', c.event_id)
              INTO behind, why
              FROM inbox.claimed AS c
             WHERE c.consumer_id = $1 AND c.ordering_key = message.ordering_key
             LIMIT 1;
        END IF;
        IF FOUND THEN
            state := 'WAITING';
            RETURN;
        END IF;
    END IF;

    IF failure.event_id IS NOT NULL THEN
        state := 'RETRY';
        IF stored THEN
            why := 'its last attempt failed';
        ELSE
            why := 'its last attempt failed; it is not stored here, and comes again from its source';
        END IF;
        what_to_do := 'Repair the cause of the error, or use inbox.discard() if it can never be applied.';
        RETURN;
    END IF;
    state := 'PENDING';
END $$;

-- Explains why a message that nothing else holds back is not processed yet.
CREATE FUNCTION inbox_internal.why_pending(consumer text, OUT why text, OUT what_to_do text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE s.state
             WHEN 'stopped' THEN 'no process in the server runs the handlers of the consumer'
             WHEN 'not confirmed' THEN 'the handlers of the consumer are not confirmed'
             WHEN 'not subscribed' THEN 'the consumer has no handlers, and no process claims its messages'
             WHEN 'claimed' THEN 'it waits for the next inbox.claim()'
             WHEN 'handled outside' THEN 'it waits for the next inbox.claim()'
             ELSE format('its turn has not come; at most %s messages wait', s.pending_at_most)
           END,
           CASE s.state
             WHEN 'stopped' THEN 'See inbox.health() and the server log.'
             WHEN 'not confirmed' THEN format('As role "%s": SELECT * FROM inbox.confirm(%L).', s.role, consumer)
             WHEN 'not subscribed' THEN 'Use inbox.subscribe(), or a process that calls inbox.claim().'
           END
      FROM inbox.status AS s
     WHERE s.consumer = why_pending.consumer;
END;

-- Returns until when the id of an event that was made at this time is certainly remembered; NULL if
-- the id has no time.
CREATE FUNCTION inbox_internal.remembered_until(event_id uuid)
RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_timestamp(('x' || left(replace(event_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
           + inbox_internal.window_length()
     WHERE inbox_internal.bucket(event_id) < 32;
END;

-- Returns where an event is, for each consumer: waiting, failed, dead, applied, or never received.
-- Monitors and operators see all consumers, other roles their own. Only roles with the rights of
-- the consumer's role, and operators, see error messages.
--
--   PENDING     received; its turn has not come
--   CLAIMED     a process outside the server has it
--   WAITING     behind another event of its key
--   RETRY       it failed, and will be tried again
--   DEAD        it was given up, and waits for a decision
--   APPLIED     it was applied
--   DISCARDED   an operator gave it up for good
--   FORGOTTEN   too old: if it was applied, that is not remembered any more
--   UNKNOWN     never received
CREATE FUNCTION inbox.event_status(event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS TABLE (
    consumer        text,
    state           text,
    since           timestamptz,
    attempts        integer,
    next_attempt_at timestamptz,
    behind          uuid,
    sqlstate        text,
    error           text,
    why             text,
    what_to_do      text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    operates CONSTANT boolean := has_table_privilege(caller, 'inbox.operation', 'SELECT');
    monitors CONSTANT boolean := has_table_privilege(caller, 'inbox.status', 'SELECT');
    forgotten CONSTANT timestamptz := inbox_internal.remembered_until($1);
    known    record;
    letter   inbox.dead_message;
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'event_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    FOR known IN
        SELECT c.id, c.name, c.on_dead_letter, r.own OR operates AS sees_errors,
               inbox_internal.how_to_replace_role(c.name, c.role) AS without_role
          FROM inbox.consumer AS c
         CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_roles AS r
                                             WHERE r.rolname = c.role AND pg_has_role(caller, r.oid, 'USAGE')) AS own) AS r
         WHERE operates OR monitors OR r.own
         ORDER BY c.name
    LOOP
        consumer := known.name;
        sqlstate := NULL;
        error := NULL;
        SELECT s.state, s.since, s.attempts, s.next_attempt_at, s.behind, s.why, s.what_to_do
          INTO state, since, attempts, next_attempt_at, behind, why, what_to_do
          FROM inbox_internal.state_of_message(known.id, $1) AS s;
        IF state = 'PENDING' THEN
            SELECT p.why, p.what_to_do INTO why, what_to_do FROM inbox_internal.why_pending(known.name) AS p;
        END IF;
        IF known.without_role IS NOT NULL AND state IN ('PENDING', 'CLAIMED', 'RETRY') THEN
            why := CASE state WHEN 'PENDING' THEN 'nothing can process the messages of the consumer' ELSE why END;
            what_to_do := known.without_role;
        END IF;
        IF attempts > 0 THEN
            SELECT w.sqlstate, CASE WHEN known.sees_errors THEN w.error END INTO sqlstate, error
              FROM inbox.waiting AS w WHERE w.consumer_id = known.id AND w.event_id = $1;
        END IF;
        IF state IS NULL THEN
            SELECT d.* INTO letter FROM inbox.dead_message AS d WHERE d.consumer_id = known.id AND d.event_id = $1;
            IF FOUND THEN
                state := 'DEAD';
                since := letter.died_at;
                attempts := letter.attempts;
                sqlstate := letter.sqlstate;
                error := CASE WHEN known.sees_errors THEN letter.error END;
                why := format('it was given up after %s failed attempts', letter.attempts)
                       || CASE WHEN known.on_dead_letter = 'block' AND letter.ordering_key <> ''
                            THEN ', and blocks its key' ELSE '' END;
                what_to_do := 'Repair the cause of the error and use inbox.redrive(), or give the event up with inbox.discard().';
            END IF;
        END IF;
        IF state IS NULL THEN
            since := inbox_internal.applied_at(known.id, $1);
            IF since IS NOT NULL THEN
                SELECT 'DISCARDED', o.at, format('role "%s" has discarded it: %s', o.role, o.why) INTO state, since, why
                  FROM inbox.operation AS o
                 WHERE o.operation = 'discard' AND o.consumer = known.name AND o.at >= since
                   AND o.details -> 'event_ids' ? $1::text
                 ORDER BY o.id DESC LIMIT 1;
                state := coalesce(state, 'APPLIED');
            ELSIF forgotten < clock_timestamp() THEN
                state := 'FORGOTTEN';
                since := forgotten;
                why := format('its id is older than the deduplication window (%s): it is not remembered whether it was applied',
                              inbox_internal.window_length());
            ELSE
                state := 'UNKNOWN';
                why := 'the consumer has never received it, or has forgotten it';
                what_to_do := 'Ask the sender: outbox.event_status() there. inbox.operation lists calls of inbox.forget().';
            END IF;
        END IF;
        error := inbox_internal.for_client(error);
        why := inbox_internal.for_client(why);
        RETURN NEXT;
    END LOOP;
END $$;
