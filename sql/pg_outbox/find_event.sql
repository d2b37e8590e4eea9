-- Finds single events. The log has no index for that, because each enqueue would pay for it. But it is
-- append-only, so its blocks are in the order in which events were enqueued, and ids made by
-- outbox.enqueue() contain the time (UUID version 7, RFC 9562). A binary search over the blocks of a
-- segment finds the time of an id within milliseconds. Ids that the caller gave may have another time
-- or none: these are looked for in the whole log.
--
-- No right includes these functions, because they show the payloads of all events. The owner grants
-- them: GRANT EXECUTE ON FUNCTION outbox.find_event, outbox.find_events TO role, and USAGE on
-- schema outbox.

-- Returns the time in an id; NULL if it has none. The planner puts its expression in place of a call.
CREATE FUNCTION outbox_internal.time_of_id(event_id uuid)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN substr(event_id::text, 15, 1) = '7'
                THEN to_timestamp(('x' || left(replace(event_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) END;
END;

-- Returns the time of the events in a block: the median, so that ids which callers gave do not mislead.
-- NULL if no event of the block has a time.
CREATE FUNCTION outbox_internal.time_of_block(segment integer, block bigint)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    median timestamptz;
BEGIN
    EXECUTE format('SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY outbox_internal.time_of_id(e.event_id))
                      FROM outbox.event_%s AS e WHERE e.ctid >= $1 AND e.ctid < $2', segment)
       INTO median USING format('(%s,0)', block)::tid, format('(%s,0)', block + 1)::tid;
    RETURN median;
END $$;

-- Returns where in a segment the blocks with earlier events end, and where those with events of this time or later begin.
-- Between them are blocks without events: of transactions that rolled back, or that the table was extended by.
CREATE FUNCTION outbox_internal.blocks_of_time(segment integer, moment timestamptz, OUT ended bigint, OUT begun bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    high   bigint := pg_relation_size(format('outbox.event_%s', segment)::regclass) / current_setting('block_size')::integer;
    middle bigint;
    block  bigint; -- the first one from there on that has events
BEGIN
    ended := 0;
    begun := high;
    WHILE ended < high LOOP
        middle := (ended + high) / 2;
        EXECUTE format('SELECT (e.ctid::text::point)[0] FROM outbox.event_%s AS e
                         WHERE e.ctid >= $1 AND e.ctid < $2 AND outbox_internal.time_of_id(e.event_id) IS NOT NULL LIMIT 1', segment)
           INTO block USING format('(%s,0)', middle)::tid, format('(%s,0)', high)::tid;
        IF block IS NULL THEN
            high := middle;
        ELSIF outbox_internal.time_of_block(segment, block) < moment THEN
            ended := block + 1;
        ELSE
            high := middle;
            begun := block;
        END IF;
    END LOOP;
END $$;

-- Returns the event from the log, or from outbox.delivery if it is not in the log any more.
CREATE FUNCTION outbox_internal.event_of_id(event_id uuid)
RETURNS SETOF outbox.event
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    moment  CONSTANT timestamptz := outbox_internal.time_of_id(event_id);
    around  CONSTANT bigint := 64; -- blocks; sessions that extend the log at the same time fill them in any order
    segment integer;
    low     bigint;
    high    bigint;
BEGIN
    FOR segment IN SELECT r.number FROM outbox.ring AS r WHERE moment IS NOT NULL LOOP
        -- A little more on both sides, because clocks are corrected.
        low := (outbox_internal.blocks_of_time(segment, moment - interval '0.1 seconds')).begun - around;
        high := (outbox_internal.blocks_of_time(segment, moment + interval '0.1 seconds')).ended + around;
        RETURN QUERY EXECUTE format('SELECT e.* FROM outbox.event_%s AS e WHERE e.event_id = $1 AND e.ctid >= $2 AND e.ctid < $3', segment)
            USING event_id, format('(%s,0)', greatest(low, 0))::tid, format('(%s,0)', high)::tid;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RETURN QUERY SELECT e.* FROM outbox.event AS e WHERE e.event_id = $1;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT d.position, d.xid, d.occurred_at, d.event_id, d.version, d.schema_version, d.source_event_id, d.topic, d.aggregate_type,
               d.aggregate_id, d.event_type, d.ordering_key, d.content_type, d.headers, d.payload, d.only_to
          FROM outbox.delivery AS d WHERE d.event_id = $1 LIMIT 1;
    END IF;
END $$;

CREATE TYPE outbox.found_event AS (
    event_id        uuid,
    occurred_at     timestamptz,
    topic           text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    version         bigint,
    schema_version  integer,
    ordering_key    text,
    source_event_id uuid,
    headers         jsonb,
    content_type    text,
    payload_text    text,
    payload         bytea,
    "position"      bigint);
COMMENT ON TYPE outbox.found_event IS 'an event, with its payload as text if it is text or JSON';

-- Returns an event as it is shown to a session.
CREATE FUNCTION outbox_internal.found(event outbox.event)
RETURNS outbox.found_event
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (event.event_id, event.occurred_at, outbox_internal.for_client(event.topic),
            outbox_internal.for_client(event.aggregate_type), outbox_internal.for_client(event.aggregate_id),
            outbox_internal.for_client(event.event_type), event.version, event.schema_version,
            outbox_internal.for_client(event.ordering_key), event.source_event_id, outbox_internal.for_client(event.headers),
            outbox_internal.for_client(event.content_type),
            outbox_internal.for_client(outbox.payload_text(event.content_type, event.payload)), event.payload, event.position)
           ::outbox.found_event;
END $$;

-- Returns an event; no row if it is neither in the log nor in outbox.delivery. Fast for ids that
-- outbox.enqueue() made; others make it read the whole log.
CREATE FUNCTION outbox.find_event(event_id uuid)
RETURNS SETOF outbox.found_event
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT f.* FROM outbox_internal.event_of_id($1) AS e CROSS JOIN LATERAL outbox_internal.found(e) AS f;
END $$;

-- Returns events that match all arguments that are given, the latest first. Reads the log backwards
-- until it has `limit` events, or comes to events that are older than `since`, by their occurred_at and by
-- their ids.
CREATE FUNCTION outbox.find_events(
    aggregate_type text        DEFAULT NULL,
    aggregate_id   text        DEFAULT NULL,
    since          timestamptz DEFAULT NULL,
    type           text        DEFAULT NULL,
    key            text        DEFAULT NULL,
    "limit"        integer     DEFAULT 100)
RETURNS SETOF outbox.found_event
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    at_once CONSTANT bigint := 4096; -- blocks
    segment record;
    found   bigint := 0; -- so far
    rows    bigint;
    low     bigint;
    high    bigint;
    latest  timestamptz;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    -- The latest segment first: the current one, and then those before it in the ring.
    FOR segment IN
        SELECT r.number
          FROM outbox.ring AS r, (SELECT c.number FROM outbox.ring AS c WHERE c.current) AS current
         ORDER BY (current.number - r.number + 4) % 4
    LOOP
        high := pg_relation_size(format('outbox.event_%s', segment.number)::regclass) / current_setting('block_size')::integer;
        WHILE high > 0 AND found < $6 LOOP
            low := greatest(high - at_once, 0);
            RETURN QUERY EXECUTE format(
                'SELECT f.*
                   FROM (SELECT e::outbox.event AS event
                           FROM outbox.event_%s AS e
                          WHERE e.ctid >= $7 AND e.ctid < $8
                            AND ($1 IS NULL OR e.aggregate_type = $1) AND ($2 IS NULL OR e.aggregate_id = $2)
                            AND ($3 IS NULL OR e.occurred_at >= $3)
                            AND ($4 IS NULL OR e.event_type = $4) AND ($5 IS NULL OR e.ordering_key = $5)
                          ORDER BY e.position DESC LIMIT $6) AS e
                  CROSS JOIN LATERAL outbox_internal.found(e.event) AS f
                  ORDER BY f.position DESC', segment.number)
                USING $1, $2, $3, $4, $5, $6 - found, format('(%s,0)', low)::tid, format('(%s,0)', high)::tid;
            GET DIAGNOSTICS rows = ROW_COUNT;
            found := found + rows;
            high := low;
            -- A few blocks stand for those before them.
            EXECUTE format('SELECT max(greatest(e.occurred_at, outbox_internal.time_of_id(e.event_id)))
                              FROM outbox.event_%s AS e WHERE e.ctid >= $1 AND e.ctid < $2', segment.number)
               INTO latest USING format('(%s,0)', low)::tid, format('(%s,0)', low + 16)::tid;
            EXIT WHEN latest < since;
        END LOOP;
    END LOOP;
END $$;
