-- Where an event is, and why.

-- Explains why a destination does not deliver an event of the log that nothing else holds back.
CREATE FUNCTION outbox_internal.why_pending(destination name, "position" bigint,
    OUT since timestamptz, OUT why text, OUT what_to_do text, OUT next_attempt_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    status outbox_internal.destination_state;
    pause  record;
    fails  text; -- since when, why and until when
BEGIN
    SELECT s.* INTO status FROM outbox_internal.destination_state AS s WHERE s.destination = $1;
    since := status.state_since;
    next_attempt_at := status.next_attempt_at;
    fails := format('since %s: %s', status.failing_since::timestamptz(0), status.last_error)
             || coalesce('; the next attempt is at ' || next_attempt_at::timestamptz(0), '');
    IF status.copy_of IS NOT NULL THEN
        why := 'the destination is paused: ' || status.copy_of;
        what_to_do := 'SELECT outbox.claim_identity() lets this database deliver.';
    ELSIF outbox_internal.is_endpoint(destination) THEN
        SELECT e.failing_since, e.next_attempt_at,
               CASE e.state WHEN 'paused' THEN 'the endpoint is paused'
                            WHEN 'failing' THEN format('the endpoint fails since %s: %s', e.failing_since::timestamptz(0), e.last_error)
                            ELSE 'the endpoint gets earlier events first' END,
               CASE e.state WHEN 'paused' THEN format('SELECT outbox.resume(%L) goes on.', destination) END
          INTO since, next_attempt_at, why, what_to_do
          FROM outbox.endpoint_status AS e
         WHERE e.server = outbox_internal.server_of(destination) AND e.name = split_part(destination::text, '/', 2)::name;
    ELSIF (SELECT c.paused FROM outbox.cursor AS c WHERE c.destination = $1) THEN
        SELECT o.requested_at, o.requested_by, o.why INTO pause
          FROM outbox.operation AS o
         WHERE o.destination = $1 AND o.action = 'pause' ORDER BY o.id DESC LIMIT 1;
        since := pause.requested_at;
        why := 'the destination is paused'
               || coalesce(' since ' || pause.requested_at::timestamptz(0) || ' by ' || pause.requested_by, '')
               || coalesce(': ' || pause.why, '')
               || CASE WHEN status.failing_since IS NOT NULL THEN ', and fails ' || fails ELSE '' END;
        what_to_do := format('SELECT outbox.resume(%L) goes on.', destination);
    ELSIF status.state = 'pull' THEN
        since := NULL;
        why := 'it waits for the next outbox.fetch()';
    ELSIF status.state = 'backing off' THEN
        since := status.failing_since;
        why := 'the destination fails ' || fails;
        what_to_do := format('SELECT * FROM outbox.check_destination(%L) tests it.', destination);
    ELSIF status.state = 'misconfigured' THEN
        why := format('the destination cannot be used as configured: %s', status.last_error);
        what_to_do := 'Change its options.';
    ELSIF status.state = 'throttled' THEN
        why := format('the destination asks for fewer requests: %s', status.last_error);
    ELSIF status.state IN ('idle', 'delivering') THEN
        why := CASE WHEN status.lanes_down > 0
                    THEN 'some topics or queues of the destination fail, perhaps the one of this event, ' || fails
                    ELSE format('its turn has not come; at most %s events are before it', greatest($2 - status.position - 1, 0))
               END;
    ELSE
        why := format('nothing delivers to the destination: %s', status.state);
        what_to_do := 'SELECT * FROM outbox.health() says what to do.';
    END IF;
END $$;

-- Explains why an event waits for another of its key.
CREATE FUNCTION outbox_internal.why_behind(first outbox.delivery)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('it waits behind event %s of its key, which %s', first.event_id,
                  CASE first.state
                    WHEN 'DEAD' THEN 'is a dead letter'
                    WHEN 'RETRY' THEN format('has failed %s times', first.attempts)
                    ELSE 'is to be delivered first'
                  END);
END;

-- Describes the state of an event in trouble, which is a row of outbox.delivery.
CREATE FUNCTION outbox_internal.state_of_trouble(
    trouble outbox.delivery, OUT state text, OUT since timestamptz, OUT why text, OUT what_to_do text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first outbox.delivery;
BEGIN
    state := trouble.state;
    since := trouble.first_failed_at;
    SELECT f.* INTO first FROM outbox_internal.first_of_key(trouble.destination, trouble.ordering_key) AS f;
    IF trouble.lock_token IS NOT NULL THEN
        state := 'INFLIGHT';
        since := trouble.locked_at;
        why := format('attempt %s is under way', trouble.attempts + 1);
    ELSIF state = 'DEAD' THEN
        since := trouble.last_failed_at;
        why := format('it was given up after %s attempts: %s', trouble.attempts, trouble.last_error);
        what_to_do := 'Use outbox.redrive() or outbox.discard().';
    ELSIF state = 'DISCARDED' THEN
        since := NULL;
        why := format('an operator gave it up; its last error was: %s', trouble.last_error);
    ELSIF first.position < trouble.position THEN
        state := 'WAITING';
        since := coalesce(first.first_failed_at, first.occurred_at);
        why := outbox_internal.why_behind(first);
        what_to_do := format('See outbox.event_status(%L).', first.event_id);
    ELSIF state = 'RETRY' THEN
        why := CASE WHEN trouble.attempts = 0 THEN 'it is to be tried again'
                    ELSE format('attempt %s failed: %s', trouble.attempts, trouble.last_error) END;
    ELSE
        why := CASE WHEN trouble.operation IS NOT NULL THEN 'a replay delivers it again' ELSE 'its turn comes next' END;
    END IF;
END $$;

-- Describes an event of the log that is not in trouble, and that the destination selects.
CREATE FUNCTION outbox_internal.state_in_log(
    event outbox.event, destination name,
    OUT state text, OUT since timestamptz, OUT why text, OUT what_to_do text, OUT next_attempt_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    cursor  outbox.cursor;
    read_to xid8;
    first   outbox.delivery;
    batch   outbox.batch;
BEGIN
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = $2;
    SELECT b.* INTO batch FROM outbox.batch AS b WHERE b.destination = $2 AND event.position = ANY (b.positions) LIMIT 1;
    IF FOUND AND event.position = ANY (batch.positions[:batch.taken]) THEN
        state := 'INFLIGHT';
        why := 'a fetcher has it, under a lease';
        RETURN;
    ELSIF batch.number IS NULL AND outbox_internal.is_settled(cursor, event.xid, event.position) THEN
        -- Only a receipt would show it.
        state := 'PUBLISHED';
        why := 'the destination is past it: it was confirmed, or was skipped by the option start or by outbox.seek()';
        RETURN;
    END IF;
    SELECT f.* INTO first FROM outbox_internal.first_of_key($2, event.ordering_key) AS f WHERE f.position < event.position;
    IF FOUND THEN
        state := 'WAITING';
        since := coalesce(first.first_failed_at, first.occurred_at);
        why := outbox_internal.why_behind(first);
        what_to_do := format('See outbox.event_status(%L).', first.event_id);
        RETURN;
    END IF;
    SELECT p.since, p.why, p.what_to_do, p.next_attempt_at INTO since, why, what_to_do, next_attempt_at
      FROM outbox_internal.why_pending($2, event.position) AS p;
    state := 'PENDING';
    SELECT r.read_to INTO read_to FROM outbox_internal.destination_relay AS r
     WHERE r.destination = $2 AND r.state IN ('idle', 'delivering', 'throttled') AND NOT cursor.paused;
    IF event.xid < read_to THEN
        state := 'INFLIGHT';
        why := 'its relay has it';
        what_to_do := NULL;
    END IF;
END $$;

-- Returns whether the filter of a destination, as it is now, excludes an event. An error of the filter
-- excludes nothing: the event becomes a dead letter.
CREATE FUNCTION outbox_internal.is_filtered_out(event outbox.event, destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM outbox_internal.apply_expressions(destination, ARRAY[event]));
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END $$;

-- Returns the state of an event at each destination, since when and why. Endpoints that are behind
-- and do not have it have rows as well, if the caller has the rights of the destination's owner.
-- Without any destination there is one row. Finds ids that outbox.enqueue() made within milliseconds;
-- for others it reads the whole log.
--
--   PENDING         waits to be read, or for its destination; `why` says what for
--   INFLIGHT        a relay or fetcher has it, or it was confirmed within the last outbox.cursor_flush_interval
--   PUBLISHED       was confirmed; without a receipt, perhaps skipped, see `why`
--   WAITING         behind another event of its key
--   RETRY           failed, and will be tried again
--   DEAD            was given up, and waits for a decision
--   DISCARDED       an operator gave it up
--   NOT SELECTED    the destination does not take its topic, or its filter excludes it as it is now; a
--                   filter is code of the destination's owner, and evaluated only for a caller whose
--                   session that role may act in, no superuser for example
--   NO DESTINATION  there is none
--   GONE            not in the log any more: all destinations had settled it
--   UNKNOWN         never committed here
--
-- next_retry_at is for the event, next_attempt_at for its destination while that fails.
CREATE FUNCTION outbox.event_status(
    event_id uuid,
    caller   outbox_internal.caller DEFAULT CURRENT_USER,
    OUT destination     name,
    OUT state           text,
    OUT since           timestamptz,
    OUT why             text,
    OUT what_to_do      text,
    OUT attempts        integer,
    OUT next_retry_at   timestamptz,
    OUT last_error      text,
    OUT first_failed_at timestamptz,
    OUT last_failed_at  timestamptz,
    OUT "position"      bigint,
    OUT published_at    timestamptz,
    OUT message_id      text,
    OUT next_attempt_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    event   outbox.event;
    trouble outbox.delivery;
    topics  text;
    oldest  timestamptz;
    target  name;
    filter  text;
    is_code_of_others boolean;
    any_row boolean := false;
BEGIN
    SELECT e.* INTO event FROM outbox_internal.event_of_id($1) AS e;
    FOR target IN
        SELECT d.name FROM outbox.destination AS d
        UNION SELECT c.destination FROM outbox.cursor AS c WHERE c.number = 0 -- endpoints that are behind
        UNION SELECT t.destination FROM outbox.delivery AS t WHERE t.event_id = $1
        UNION SELECT r.destination FROM outbox.receipt AS r WHERE r.event_id = $1
        ORDER BY 1
    LOOP
        destination := target;
        attempts := 0;
        since := NULL; why := NULL; what_to_do := NULL; next_attempt_at := NULL;
        next_retry_at := NULL; last_error := NULL; first_failed_at := NULL; last_failed_at := NULL;
        SELECT r.published_at, r.message_id, r.position INTO published_at, message_id, "position"
          FROM outbox.receipt AS r WHERE r.event_id = $1 AND r.destination = target ORDER BY r.published_at DESC LIMIT 1;
        "position" := coalesce("position", event.position);
        SELECT t.* INTO trouble FROM outbox.delivery AS t WHERE t.event_id = $1 AND t.destination = target LIMIT 1;
        IF FOUND THEN
            SELECT s.state, s.since, s.why, s.what_to_do INTO state, since, why, what_to_do
              FROM outbox_internal.state_of_trouble(trouble) AS s;
            attempts := trouble.attempts; next_retry_at := trouble.next_retry_at; last_error := trouble.last_error;
            first_failed_at := trouble.first_failed_at; last_failed_at := trouble.last_failed_at; "position" := trouble.position;
        ELSIF published_at IS NOT NULL THEN
            state := 'PUBLISHED';
            since := published_at;
            why := 'the destination has confirmed it';
        ELSIF event.event_id IS NULL THEN
            CONTINUE;
        ELSE
            topics := outbox_internal.destination_option(target, 'topics');
            filter := outbox_internal.destination_option(target, 'filter');
            is_code_of_others := filter IS NOT NULL AND NOT outbox_internal.may_evaluate(target, caller);
            IF event.only_to IS DISTINCT FROM coalesce(outbox_internal.destination_number(target), 0)
               AND event.only_to IS NOT NULL THEN
                state := 'NOT SELECTED';
                why := 'it was enqueued for another destination only';
            ELSIF NOT event.topic LIKE ANY (outbox_internal.topic_patterns(topics)) THEN
                state := 'NOT SELECTED';
                why := format('its topic is "%s", and the destination takes %s', event.topic, topics);
                what_to_do := 'Change the option topics if it should take it; outbox.replay() delivers events of the past.';
            ELSIF filter IS NOT NULL AND NOT is_code_of_others AND outbox_internal.is_filtered_out(event, target) THEN
                state := 'NOT SELECTED';
                why := format('the filter of the destination excludes it: %s', filter);
                what_to_do := 'Change the option filter if it should take it; outbox.replay() delivers events of the past.';
            ELSE
                SELECT s.state, s.since, s.why, s.what_to_do, s.next_attempt_at INTO state, since, why, what_to_do, next_attempt_at
                  FROM outbox_internal.state_in_log(event, target) AS s;
                IF is_code_of_others THEN
                    why := why || '; or its filter excludes it, which is code of the owner of the destination, and only for that role evaluated here';
                END IF;
            END IF;
        END IF;
        -- Of the endpoints that are behind, only those that do not have it are listed, for roles that see them.
        CONTINUE WHEN trouble.destination IS NULL AND published_at IS NULL AND outbox_internal.is_endpoint(target)
                      AND (state IN ('PUBLISHED', 'NOT SELECTED')
                           OR NOT outbox_internal.owns_destination(outbox_internal.server_of(target), caller)
                           OR NOT event.topic LIKE ANY (outbox_internal.endpoint_patterns(target)));
        any_row := true;
        why := outbox_internal.for_client(why);
        last_error := outbox_internal.for_client(last_error);
        message_id := outbox_internal.for_client(message_id);
        RETURN NEXT;
    END LOOP;
    IF any_row THEN
        RETURN;
    END IF;
    destination := NULL;
    attempts := 0;
    next_attempt_at := NULL;
    IF event.event_id IS NOT NULL THEN
        state := 'NO DESTINATION';
        why := 'it waits in the log for a destination';
        what_to_do := outbox_internal.how_to_make_destination();
        "position" := event.position;
    ELSE
        oldest := outbox.oldest_after('1:1:');
        state := CASE WHEN outbox_internal.time_of_id($1) < coalesce(oldest, clock_timestamp()) THEN 'GONE' ELSE 'UNKNOWN' END;
        why := CASE state
                 WHEN 'GONE' THEN format('it is not in the log, which begins at %s: settled by all destinations, or never committed',
                                         coalesce(oldest, clock_timestamp())::timestamptz(0))
                 ELSE 'no such event is committed here'
               END;
        what_to_do := CASE state WHEN 'GONE' THEN 'See inbox.event_status() at the receiver; the option receipts keeps a record of each delivery.'
                                 ELSE 'Is it the right database, and has the transaction committed?' END;
    END IF;
    RETURN NEXT;
END $$;
