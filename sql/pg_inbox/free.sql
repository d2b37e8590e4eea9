-- Which messages of a consumer can be processed now.
--
-- Messages are in line, in order of arrival, and the line is read from its beginning. A message
-- behind an obstacle, or behind a claimed message of its key, is passed over. If many are passed
-- over, they are put aside: they leave the line, and are found by their key from then on. So a
-- message is passed over a few times, however long the line behind a key becomes, and a line that
-- moves on costs no write.
--
-- A message that was put aside is an obstacle for later ones of its key. And it is the first of its
-- key but for failed and claimed ones, for which it waits. Messages that come back are therefore put
-- aside, too: redriven dead letters, and messages that were claimed and not tried.

-- Plans are kept here and below, and must be good for tables that were empty when they were made. To
-- such a plan one index is as good as another, and it may read all rows of the consumer for each
-- message. So a row is looked up as the first one in an order that only the right index gives, and
-- enable_sort is off.

-- Returns a message by its id.
CREATE FUNCTION inbox_internal.message_by_id(consumer_id integer, event_id uuid)
RETURNS SETOF inbox.message
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT m.* FROM inbox.message AS m
     WHERE m.consumer_id = $1 AND m.event_id BETWEEN $2 AND $2
     ORDER BY m.event_id LIMIT 1;
END;

-- Returns messages that were put aside and can be processed now: of one key all in order, and of
-- enough keys, beginning with any.
CREATE FUNCTION inbox_internal.free_aside(consumer_id integer, max_messages integer)
RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    first   bigint;
    last    bigint;
    start   text;
    key     text;
    wrapped boolean := false;
    ids     uuid[] := '{}';
BEGIN
    SELECT m.seq INTO first FROM inbox.message AS m WHERE m.consumer_id = $1 AND m.aside ORDER BY m.seq LIMIT 1;
    IF NOT FOUND THEN
        RETURN ids;
    END IF;
    SELECT m.seq INTO last FROM inbox.message AS m WHERE m.consumer_id = $1 AND m.aside ORDER BY m.seq DESC LIMIT 1;
    SELECT m.ordering_key INTO start FROM inbox.message AS m
     WHERE m.consumer_id = $1 AND m.aside AND m.seq >= first + floor(random() * (last - first))::bigint
     ORDER BY m.seq LIMIT 1;
    key := start;
    LOOP
        ids := ids || ARRAY(
            SELECT m.event_id FROM inbox.message AS m
             WHERE m.consumer_id = $1 AND m.aside AND m.ordering_key = key
               AND m.seq <= coalesce((SELECT min(o.seq) FROM inbox.obstacle AS o
                                       WHERE o.consumer_id = $1 AND o.ordering_key = key AND NOT o.aside), 9223372036854775807)
               AND NOT EXISTS (SELECT FROM inbox.waiting AS w
                                WHERE w.consumer_id = $1 AND w.event_id = m.event_id AND inbox_internal.due_at(w) > clock_timestamp())
               AND NOT EXISTS (SELECT FROM inbox.claimed AS c WHERE c.consumer_id = $1 AND c.ordering_key = key)
             ORDER BY m.seq
             LIMIT max_messages - cardinality(ids));
        EXIT WHEN cardinality(ids) >= max_messages;
        SELECT m.ordering_key INTO key FROM inbox.message AS m
         WHERE m.consumer_id = $1 AND m.aside AND m.ordering_key > key ORDER BY m.ordering_key LIMIT 1;
        IF key IS NULL THEN
            EXIT WHEN wrapped;
            wrapped := true;
            SELECT m.ordering_key INTO key FROM inbox.message AS m
             WHERE m.consumer_id = $1 AND m.aside ORDER BY m.ordering_key LIMIT 1;
        END IF;
        EXIT WHEN key IS NULL OR wrapped AND key >= start;
    END LOOP;
    RETURN ids;
END $$;

-- Puts messages aside, and returns whether these are all. A message that another session has locked
-- stays in line, and so do later ones of its key.
CREATE FUNCTION inbox_internal.put_aside(consumer_id integer, event_ids uuid[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    moved bigint;
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT m.ctid, m.seq, m.ordering_key FROM unnest(event_ids) AS e(id)
          JOIN inbox.message AS m ON m.consumer_id = $1 AND m.event_id = e.id
           FOR UPDATE OF m SKIP LOCKED
    ), staying AS MATERIALIZED (
        SELECT m.ordering_key, min(m.seq) AS seq FROM unnest(event_ids) AS e(id)
          JOIN inbox.message AS m ON m.consumer_id = $1 AND m.event_id = e.id
         WHERE m.seq NOT IN (SELECT l.seq FROM locked AS l) AND (SELECT count(*) FROM locked) < cardinality(event_ids)
         GROUP BY m.ordering_key
    )
    UPDATE inbox.message AS m SET aside = true
     WHERE m.ctid = ANY (ARRAY(SELECT l.ctid FROM locked AS l
                                WHERE NOT EXISTS (SELECT FROM staying AS s WHERE s.ordering_key = l.ordering_key AND s.seq < l.seq)));
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved = cardinality(event_ids);
END $$;

-- Returns whether a message cannot be handed out: it is too large, or has no form for this client.
CREATE FUNCTION inbox_internal.is_unfit(message inbox.message, for_client boolean)
RETURNS boolean
LANGUAGE sql STABLE
RETURN inbox_internal.is_too_large(message) IS TRUE OR for_client AND NOT inbox_internal.has_form_for_client(message);

-- Returns the next messages that can be processed now, in no order. Skips those that wait for their
-- next attempt, and those of a key of which an earlier message waits, blocks or is claimed. Messages
-- that were put aside have at most half of the places while there are others.
--
-- Makes messages that cannot be handed out dead letters. `more` is true if the line was not read to its
-- end, although nothing was found: so one call ends in bounded time.
CREATE FUNCTION inbox_internal.free_messages(
    consumer_id  integer,
    max_messages integer,
    for_client   boolean,
    OUT event_ids uuid[],
    OUT more      boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    passed_at_most CONSTANT integer := 500; -- more are put aside
    read_at_most   integer := 20000;        -- of messages that are passed over
    waited    uuid[]; -- were put aside
    in_line   integer;
    line      uuid[];
    passed    uuid[];
    unfit uuid[];
    message   record;
BEGIN
    LOOP
        waited := inbox_internal.free_aside(consumer_id, max_messages);
        in_line := max_messages;
        IF waited <> '{}' THEN
            in_line := max_messages - least(cardinality(waited), floor(max_messages / 2.0 + random())::integer);
        END IF;
        line := '{}';
        passed := '{}';
        unfit := ARRAY(SELECT m.event_id FROM unnest(waited) AS w(id)
                             JOIN inbox.message AS m ON m.consumer_id = $1 AND m.event_id = w.id
                            WHERE inbox_internal.is_unfit(m, for_client));
        more := false;
        -- The conditions of the consumer alone are evaluated once: as a rule it has no obstacle and no claim,
        -- and then nothing is looked up for each message. They are here, and not in variables, because
        -- all must be of one snapshot.
        FOR message IN
            SELECT m.event_id,
                   m.ordering_key <> ''
                   AND (EXISTS (SELECT FROM inbox.obstacle AS o WHERE o.consumer_id = $1)
                        AND EXISTS (SELECT FROM inbox.obstacle AS o
                                     WHERE o.consumer_id = $1 AND o.ordering_key = m.ordering_key AND o.seq < m.seq)
                        OR EXISTS (SELECT FROM inbox.claimed AS c WHERE c.consumer_id = $1)
                           AND (SELECT true FROM inbox.claimed AS c
                                 WHERE c.consumer_id = $1 AND c.ordering_key BETWEEN m.ordering_key AND m.ordering_key
                                 ORDER BY c.ordering_key LIMIT 1) IS TRUE) AS is_behind,
                   inbox_internal.is_unfit(m, for_client) AS is_unfit
              FROM inbox.message AS m
             WHERE m.consumer_id = $1 AND NOT m.aside
               AND NOT (EXISTS (SELECT FROM inbox.waiting AS w WHERE w.consumer_id = $1)
                        AND (SELECT inbox_internal.due_at(w) > clock_timestamp() FROM inbox.waiting AS w
                              WHERE w.consumer_id = $1 AND w.event_id BETWEEN m.event_id AND m.event_id
                              ORDER BY w.event_id LIMIT 1) IS TRUE)
               AND NOT (EXISTS (SELECT FROM inbox.claimed AS c WHERE c.consumer_id = $1)
                        AND (SELECT true FROM inbox.claimed AS c
                              WHERE c.consumer_id = $1 AND c.event_id BETWEEN m.event_id AND m.event_id
                              ORDER BY c.event_id LIMIT 1) IS TRUE)
             ORDER BY m.seq
             LIMIT CASE WHEN in_line = 0 THEN 0 END
        LOOP
            IF message.is_unfit THEN
                unfit := unfit || message.event_id;
            ELSIF message.is_behind THEN
                passed := passed || message.event_id;
                more := cardinality(passed) = read_at_most;
            ELSE
                line := line || message.event_id;
            END IF;
            EXIT WHEN more OR cardinality(line) = in_line;
        END LOOP;
        event_ids := waited[:max_messages - cardinality(line)] || line;
        more := more AND event_ids = '{}';
        IF cardinality(passed) > passed_at_most AND NOT inbox_internal.put_aside(consumer_id, passed) AND more THEN
            read_at_most := read_at_most * 2;
            CONTINUE;
        END IF;
        -- A dead letter may block later messages of its key, so the next ones are looked for again.
        EXIT WHEN NOT (SELECT coalesce(bool_or(inbox_internal.give_up(m)), false)
                         FROM unnest(unfit) AS l(id)
                         JOIN inbox.message AS m ON m.consumer_id = $1 AND m.event_id = l.id);
    END LOOP;
END $$;
