-- What relays outside the server call for destinations with expressions, and for all in a database
-- that is not in UTF-8, in place of the functions of relay.sql with the same names without
-- "expressions". They return only events that the filter selects, with the payload that the
-- destination gets. `fault` is why an event cannot be sent: it becomes a dead letter. The relay runs
-- them with a statement_timeout.

-- Returns those of the events that the filter selects, as a relay outside the server can read them.
CREATE FUNCTION outbox_internal.events_to_send(destination name, events outbox.event[], OUT event outbox.event, OUT fault text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF getdatabaseencoding() = 'UTF8' THEN
        RETURN QUERY SELECT a.event, a.fault FROM outbox_internal.apply_expressions(destination, events) AS a;
    ELSIF outbox_internal.destination_option(destination, 'filter') IS NULL
          AND outbox_internal.destination_option(destination, 'payload') IS NULL THEN
        RETURN QUERY SELECT r.readable, r.fault FROM unnest(events) AS e CROSS JOIN LATERAL outbox_internal.readable(e) AS r;
    ELSE
        RETURN QUERY
        SELECT r.readable, coalesce(outbox_internal.readable_text(a.fault), r.fault)
          FROM outbox_internal.apply_expressions(destination, events) AS a
         CROSS JOIN LATERAL outbox_internal.readable(a.event) AS r;
    END IF;
END $$;

-- Returns what a relay outside the server must know when it starts, and why it cannot evaluate
-- expressions.
CREATE FUNCTION outbox_internal.relay_begin_expressions(
    number integer,
    lease  bigint,
    done   text,
    OUT outcome   text,
    OUT recorded  bigint[],
    OUT held_keys text[],
    OUT paused    boolean,
    OUT trouble   text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
BEGIN
    SELECT b.outcome, b.recorded, b.held_keys, b.paused INTO outcome, recorded, held_keys, paused
      FROM outbox_internal.relay_begin(number, lease, done) AS b;
    IF outcome = 'ok' THEN
        trouble := outbox_internal.expression_trouble((SELECT c.destination FROM outbox.cursor AS c WHERE c.number = $1));
    END IF;
END $$;

-- Returns the destinations that have expressions, and why these cannot be evaluated; NULL if they
-- can.
CREATE FUNCTION outbox_internal.relay_check_expressions(OUT number integer, OUT trouble text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.number, outbox_internal.expression_trouble(c.destination)
      FROM outbox.cursor AS c
      JOIN outbox.destination AS d ON d.name = c.destination AND d.external
     WHERE outbox_internal.destination_option(c.destination, 'filter') IS NOT NULL
        OR outbox_internal.destination_option(c.destination, 'payload') IS NOT NULL
     ORDER BY c.number;
END;

-- Looks for new events, for a relay outside the server with expressions.
CREATE FUNCTION outbox_internal.relay_look_expressions(
    number           integer,
    patterns         text[],
    from_snapshot    text,
    settled          text,
    settled_position bigint,
    max_events       integer)
RETURNS TABLE (
    window_end      text,
    found           bigint,
    last_position   bigint,
    "position"      bigint,
    xid             xid8,
    occurred_at     timestamptz,
    event_id        uuid,
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
    fault           text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
    destination CONSTANT name := (SELECT c.destination FROM outbox.cursor AS c WHERE c.number = $1);
    head   record;
    events outbox.event[];
BEGIN
    SELECT max(l.window_end) AS window_end, max(l.found) AS found, max(l.last_position) AS last_position,
           array_agg(ROW(l.position, l.xid, l.occurred_at, l.event_id, l.version, l.schema_version, l.source_event_id, l.topic,
                         l.aggregate_type, l.aggregate_id, l.event_type, l.ordering_key, l.content_type, l.headers, l.payload,
                         NULL)::outbox.event ORDER BY l.position) FILTER (WHERE l.position IS NOT NULL) AS events
      INTO head
      FROM outbox_internal.relay_look($1, $2, $3, $4, $5, $6) AS l;
    RETURN QUERY SELECT head.window_end, head.found, head.last_position, NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::uuid,
        NULL::bigint, NULL::integer, NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text,
        NULL::jsonb, NULL::bytea, NULL::text;
    events := head.events;
    IF events IS NOT NULL THEN
        RETURN QUERY
        SELECT NULL::text, NULL::bigint, NULL::bigint, (a.event).position, (a.event).xid, (a.event).occurred_at, (a.event).event_id,
               (a.event).version, (a.event).schema_version, (a.event).source_event_id, (a.event).topic, (a.event).aggregate_type,
               (a.event).aggregate_id, (a.event).event_type, (a.event).ordering_key, (a.event).content_type, (a.event).headers,
               (a.event).payload, a.fault
          FROM outbox_internal.events_to_send(destination, events) AS a
         ORDER BY (a.event).position;
    END IF;
END $$;

-- Returns rows of the log, for a relay outside the server with expressions.
CREATE FUNCTION outbox_internal.relay_rows_expressions(number integer, segment integer, places tid[], positions bigint[])
RETURNS TABLE (
    "position"      bigint,
    xid             xid8,
    occurred_at     timestamptz,
    event_id        uuid,
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
    fault           text)
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
    destination CONSTANT name := (SELECT c.destination FROM outbox.cursor AS c WHERE c.number = $1);
    events      CONSTANT outbox.event[] := ARRAY(SELECT r::outbox.event FROM outbox_internal.relay_rows(segment, places, positions) AS r);
BEGIN
    RETURN QUERY
    SELECT (a.event).position, (a.event).xid, (a.event).occurred_at, (a.event).event_id, (a.event).version,
           (a.event).schema_version, (a.event).source_event_id, (a.event).topic, (a.event).aggregate_type,
           (a.event).aggregate_id, (a.event).event_type, (a.event).ordering_key, (a.event).content_type, (a.event).headers,
           (a.event).payload, a.fault
      FROM outbox_internal.events_to_send(destination, events) AS a
     ORDER BY (a.event).position;
END $$;

-- Retries that the filter does not select leave outbox.delivery. `freed_keys`, in the first row, are
-- the keys that no row holds any more.
CREATE FUNCTION outbox_internal.relay_retries_expressions(
    number     integer,
    lease      bigint,
    token      uuid,
    hurry      integer,
    max_events integer,
    max_bytes  bigint)
RETURNS TABLE (
    outcome         text,
    next_retry      double precision,
    hurried         bigint,
    freed_keys      text[],
    attempts        integer,
    key_failed      boolean,
    replayed        boolean,
    "position"      bigint,
    xid             xid8,
    occurred_at     timestamptz,
    event_id        uuid,
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
    fault           text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
    destination CONSTANT name := (SELECT c.destination FROM outbox.cursor AS c WHERE c.number = $1);
    head     record;
    changed  outbox.event[];
    faults   text[];
    excluded bigint[];
    freed    text[];
BEGIN
    SELECT max(r.outcome) AS outcome, max(r.next_retry) AS next_retry, max(r.hurried) AS hurried,
           array_agg(r.position ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS positions,
           array_agg(r.attempts ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS attempts,
           array_agg(r.key_failed ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS key_failed,
           array_agg(r.replayed ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS replayed,
           array_agg(r.ordering_key ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS keys,
           array_agg(ROW(r.position, r.xid, r.occurred_at, r.event_id, r.version, r.schema_version, r.source_event_id, r.topic,
                         r.aggregate_type, r.aggregate_id, r.event_type, r.ordering_key, r.content_type, r.headers, r.payload,
                         NULL)::outbox.event ORDER BY r.position) FILTER (WHERE r.position IS NOT NULL) AS events
      INTO head
      FROM outbox_internal.relay_retries($1, $2, $3, $4, $5, $6) AS r;
    IF head.positions IS NOT NULL THEN
        SELECT array_agg(a.event ORDER BY (a.event).position), array_agg(a.fault ORDER BY (a.event).position) INTO changed, faults
          FROM outbox_internal.events_to_send(destination, head.events) AS a;
        excluded := ARRAY(SELECT p FROM unnest(head.positions) AS p
                           WHERE NOT EXISTS (SELECT FROM unnest(changed) AS c WHERE c.position = p));
        IF excluded <> '{}' THEN
            PERFORM outbox_internal.settle_events(destination, token, excluded);
            freed := ARRAY(SELECT outbox_internal.promote(destination, head.keys));
            head.next_retry := outbox_internal.next_retry(destination);
        END IF;
    END IF;
    RETURN QUERY SELECT head.outcome, head.next_retry, head.hurried, freed, NULL::integer, NULL::boolean, NULL::boolean, NULL::bigint,
        NULL::xid8, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea, NULL::text;
    RETURN QUERY
    SELECT NULL::text, NULL::double precision, NULL::bigint, NULL::text[], k.attempts, k.key_failed, k.replayed,
           c.position, c.xid, c.occurred_at, c.event_id, c.version, c.schema_version, c.source_event_id,
           c.topic, c.aggregate_type, c.aggregate_id, c.event_type, c.ordering_key, c.content_type, c.headers, c.payload, f.fault
      FROM unnest(head.positions, head.attempts, head.key_failed, head.replayed) AS k(position, attempts, key_failed, replayed)
      JOIN unnest(changed) WITH ORDINALITY AS c ON c.position = k.position
      JOIN unnest(faults) WITH ORDINALITY AS f(fault, number) ON f.number = c.ordinality
     ORDER BY c.position;
END $$;
COMMENT ON FUNCTION outbox_internal.relay_retries_expressions(integer, bigint, uuid, integer, integer, bigint) IS
    'takes retries that are due, for a relay outside the server with expressions';
