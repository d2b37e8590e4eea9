-- Functions for operators: pause, resume, seek, replay, and decisions about dead letters. Each one
-- records its decision in outbox.operation, in the same transaction.
--
-- They are safe against each other and against relays and fetchers, because all of them lock the
-- destination's row of outbox.cursor first; pull.sql has the order of locks. A relay never waits
-- for that lock: while an operator keeps a transaction open, the relay goes on delivering and saves
-- its progress later.

CREATE SEQUENCE outbox.operation_id AS bigint;
COMMENT ON SEQUENCE outbox.operation_id IS 'ids of operations';

CREATE TABLE outbox.operation (
    id            bigint      PRIMARY KEY DEFAULT nextval('outbox.operation_id'),
    requested_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    requested_by  name        NOT NULL,
    destination   name        NOT NULL,
    action        text        NOT NULL,
    from_position bigint,
    to_position   bigint,
    events        bigint,
    selection     jsonb,
    why           text
);
COMMENT ON TABLE outbox.operation IS 'operations on destinations, and the roles that requested them';
COMMENT ON COLUMN outbox.operation.id IS 'number of the operation, in the order of requests';
COMMENT ON COLUMN outbox.operation.requested_at IS 'when it was requested';
COMMENT ON COLUMN outbox.operation.requested_by IS 'the role whose rights the request was made with';
COMMENT ON COLUMN outbox.operation.destination IS 'name of the destination or endpoint, which follows a rename; * for all';
COMMENT ON COLUMN outbox.operation.action IS 'pause, resume, seek, replay, cancel replay, redrive, discard, backfill, pause backfill, resume backfill, cancel backfill, skip shard, claim identity; detach and set aside are by the keeper, and pause of a destination or endpoint that is gone by its relay';
COMMENT ON COLUMN outbox.operation.from_position IS 'highest settled position before a seek or detach';
COMMENT ON COLUMN outbox.operation.to_position IS 'position of a seek; events above it are delivered';
COMMENT ON COLUMN outbox.operation.events IS 'number of events concerned';
COMMENT ON COLUMN outbox.operation.selection IS 'arguments that selected the events';
COMMENT ON COLUMN outbox.operation.why IS 'reason that was given; null if none';

CREATE VIEW outbox.operations AS
SELECT o.id, o.requested_at, o.requested_by, o.destination, o.action, o.from_position, o.to_position, o.events,
       outbox_internal.for_client(o.selection) AS selection,
       outbox_internal.for_client(o.why) AS why
  FROM outbox.operation AS o;
COMMENT ON VIEW outbox.operations IS
    'outbox.operation, with texts escaped that have no form in the client_encoding of the session';

-- Locks a destination for an operator until the transaction ends, and returns its cursor. For an
-- endpoint that is the cursor of its destination, and the relay will look at the endpoint.
-- Errors: 42704 there is no such destination or endpoint; 55P03 it is being set up.
CREATE FUNCTION outbox_internal.take_control(destination name)
RETURNS outbox.cursor
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_server CONSTANT name := outbox_internal.server_of(destination);
    cursor              outbox.cursor;
BEGIN
    -- In the order in which DDL locks: a table before its indexes.
    LOCK TABLE outbox.cursor, outbox.delivery IN ROW EXCLUSIVE MODE;
    PERFORM outbox_internal.check_exists(destination);
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = own_server FOR UPDATE;
    IF NOT FOUND THEN  -- outbox.default_destination gets a cursor when its relay starts
        RAISE EXCEPTION 'destination "%" is being set up', destination
            USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    IF own_server <> destination AND NOT outbox_internal.touch_endpoint(destination) THEN -- it was deleted meanwhile
        PERFORM outbox_internal.check_exists(destination);
    END IF;
    PERFORM outbox_internal.wake_relays();
    PERFORM outbox_internal.tell_relays();
    RETURN cursor;
END $$;

-- ---------------------------------------------------------------------------------------------
-- Pause and resume
-- ---------------------------------------------------------------------------------------------

-- An endpoint is paused in its own row, and its cursor says only whether it is detached.
CREATE FUNCTION outbox_internal.set_paused(destination name, paused boolean, caller name, why text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cursor CONSTANT outbox.cursor := outbox_internal.take_control(destination);
BEGIN
    -- A detached destination starts over: its relay or fetchers may hold places of events that are
    -- gone.
    UPDATE outbox.cursor AS c
       SET paused = $2 AND c.number <> 0, detached_at = NULL, lease = c.lease + (c.detached_at IS NOT NULL)::integer,
           resumed = c.resumed + (NOT $2)::integer
     WHERE c.destination = $1;
    UPDATE outbox.endpoint AS e SET paused = $2
     WHERE cursor.destination <> $1 AND e.server = cursor.destination AND e.name = split_part($1::text, '/', 2)::name;
    INSERT INTO outbox.operation (requested_by, destination, action, from_position, why)
    VALUES (caller, destination, CASE WHEN paused THEN 'pause' ELSE 'resume' END, cursor.position, nullif(why, ''));
END $$;
COMMENT ON FUNCTION outbox_internal.set_paused(name, boolean, name, text) IS 'pauses or resumes a destination';

-- Stops delivering to a destination. Requests in flight are finished. Events remain in the log.
CREATE FUNCTION outbox.pause(destination name, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.set_paused(destination, true, caller, why);
END;

-- Resumes delivering to a destination. One that is not paused is tried at once, however long it was to be
-- left alone after a failure.
CREATE FUNCTION outbox.resume(destination name, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.set_paused(destination, false, caller, why);
END;

-- Pauses a destination that has said that it is gone, such as with HTTP 410, for its relay. The
-- caller has locked the cursor.
CREATE FUNCTION outbox_internal.pause_gone(destination name, why text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH paused AS (
        UPDATE outbox.cursor AS c SET paused = true WHERE c.destination = $1 AND NOT c.paused
        RETURNING c.position
    )
    INSERT INTO outbox.operation (requested_by, destination, action, from_position, why)
    SELECT current_user, $1, 'pause', paused.position, 'it is gone: ' || $2 FROM paused;
END;

-- Estimates the bytes of events that a destination holds, in the log and in outbox.delivery: its
-- share of some pages of each segment, times the size of the segment.
CREATE FUNCTION outbox_internal.bytes_held(holder outbox.cursor)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pages   CONSTANT integer := 2000;
    topics  CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(holder.destination, 'topics'));
    segment record;
    part    double precision;
    bytes   double precision;
BEGIN
    SELECT coalesce(sum(200 + octet_length(d.payload)), 0) INTO bytes
      FROM outbox.delivery AS d WHERE d.destination = holder.destination;
    FOR segment IN SELECT s.number, s.size FROM outbox.segment AS s WHERE holder.destination = ANY (s.held_by) LOOP
        EXECUTE format(
            'SELECT sum(200 + octet_length(e.payload)) FILTER (WHERE %s)::double precision / sum(200 + octet_length(e.payload))
               FROM outbox.event_%s AS e TABLESAMPLE SYSTEM (%s) REPEATABLE (0)',
            outbox_internal.held_condition() || ' AND e.topic LIKE ANY ($7)', segment.number,
            least(100, 100.0 * pages * current_setting('block_size')::integer
                       / greatest(pg_relation_size(format('outbox.event_%s', segment.number)::regclass), 1)))
            INTO part USING holder.destination, topics, outbox_internal.destination_number(holder.destination), holder.done, holder.upto,
                            holder.position, outbox_internal.endpoint_patterns(holder.destination);
        bytes := bytes + coalesce(part, 0) * segment.size;
    END LOOP;
    RETURN bytes;
END $$;

-- Copies the events that a destination holds of a segment into outbox.delivery, from where they are
-- delivered in order. To keep that order, earlier events in other segments are copied too. Events
-- under a lease of a fetcher stay. The caller has locked the cursor.
CREATE FUNCTION outbox_internal.set_aside(holder outbox.cursor, segment integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    last  bigint;
    batch outbox.batch;
    moved bigint := 0;
BEGIN
    EXECUTE format('SELECT max(e.position) FROM outbox.event_%s AS e', segment) INTO last;
    FOR batch IN
        SELECT b.* FROM outbox.batch AS b
         WHERE b.destination = holder.destination AND b.xids IS NOT NULL AND b.positions[1] <= last
           AND (b.token IS NULL OR b.locked_until < clock_timestamp())
         ORDER BY b.lane, b.number
           FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM outbox_internal.park_events(holder.destination, array_agg(o.xid), array_agg(o.place))
           FROM unnest(batch.xids, batch.positions) AS o(xid, place) WHERE o.place <= last;
        moved := moved + (SELECT count(*) FROM unnest(batch.positions) AS o WHERE o <= last);
        batch.taken := 0;
        batch := outbox_internal.take_out_of(batch, ARRAY(SELECT o FROM unnest(batch.positions) AS o WHERE o <= last));
        PERFORM outbox_internal.end_lease(batch, true);
    END LOOP;
    PERFORM outbox_internal.count_trouble(holder.destination, -moved, 0);
    EXECUTE format(
        'WITH copied AS (
            INSERT INTO outbox.delivery
            SELECT e.*, $1, ''PENDING'' FROM outbox.event AS e WHERE e.position <= $7 AND %s
                ON CONFLICT DO NOTHING
            RETURNING 1
         )
         SELECT $8 + count(*) FROM copied', outbox_internal.held_condition())
        INTO moved
       USING holder.destination, outbox_internal.topic_patterns(outbox_internal.destination_option(holder.destination, 'topics')),
             holder.number, holder.done, holder.upto, holder.position, last, moved;
    UPDATE outbox.delivery AS d SET next_retry_at = clock_timestamp()
     WHERE d.destination = holder.destination AND d.ordering_key = '' AND d.state = 'PENDING' AND d.next_retry_at IS NULL;
    PERFORM outbox_internal.promote(holder.destination, ARRAY(
        SELECT DISTINCT d.ordering_key FROM outbox.delivery AS d
         WHERE d.destination = holder.destination AND d.state = 'PENDING' AND d.ordering_key <> ''));
    RETURN moved;
END $$;

-- Copies the events that an endpoint has not settled to outbox.delivery, so that it holds nothing
-- of the log.
CREATE FUNCTION outbox_internal.set_aside_endpoint(endpoint name)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    batch outbox.batch;
    moved bigint := 0;
BEGIN
    IF EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = endpoint AND b.xids IS NULL) THEN
        PERFORM outbox_internal.find_restored_batches(outbox_internal.server_of(endpoint));
    END IF;
    LOOP
        FOR batch IN SELECT b.* FROM outbox.batch AS b WHERE b.destination = endpoint ORDER BY b.lane, b.number LOOP
            PERFORM outbox_internal.park_events(endpoint, batch.xids, batch.positions);
            moved := moved + cardinality(batch.positions);
        END LOOP;
        PERFORM outbox_internal.drop_batches(endpoint);
        EXIT WHEN NOT outbox_internal.read_on(endpoint);
    END LOOP;
    UPDATE outbox.delivery AS d SET next_retry_at = clock_timestamp()
     WHERE d.destination = endpoint AND d.ordering_key = '' AND d.state = 'PENDING' AND d.next_retry_at IS NULL;
    PERFORM outbox_internal.promote(endpoint, ARRAY(
        SELECT DISTINCT d.ordering_key FROM outbox.delivery AS d
         WHERE d.destination = endpoint AND d.state = 'PENDING' AND d.ordering_key <> ''));
    RETURN moved;
END $$;

-- Detaches a destination from the log.
CREATE FUNCTION outbox_internal.detach(holder outbox.cursor)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Events that fetchers have not settled go back to the log.
    UPDATE outbox.cursor AS c
       SET paused = true, detached_at = clock_timestamp(), lease = c.lease + 1,
           done = CASE WHEN open.position IS NULL THEN c.done ELSE '1:1:' END,
           upto = CASE WHEN open.position IS NULL THEN c.upto ELSE coalesce(c.upto, c.done) END,
           position = coalesce(open.position - 1, c.position)
      FROM (SELECT min(b.positions[1]) FROM outbox.batch AS b WHERE b.destination = holder.destination) AS open(position)
     WHERE c.destination = holder.destination;
    PERFORM outbox_internal.drop_batches(holder.destination);
    UPDATE outbox.endpoint AS e SET paused = true
     WHERE holder.number = 0 AND e.server = split_part(holder.destination::text, '/', 1)::name
       AND e.name = split_part(holder.destination::text, '/', 2)::name;
    INSERT INTO outbox.operation (requested_by, destination, action, from_position)
    VALUES (current_user, holder.destination, 'detach', holder.position);
    PERFORM outbox_internal.wake_relays();
    PERFORM outbox_internal.tell_relays();
END $$;

-- Locks the destination of an endpoint, which is the lock of all its endpoints, unless another session
-- has it.
CREATE FUNCTION outbox_internal.try_lock_server(holder outbox.cursor)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF holder.number <> 0 THEN
        RETURN true;
    END IF;
    PERFORM FROM outbox.cursor AS c WHERE c.destination = outbox_internal.server_of(holder.destination) FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- The keeper calls this when the log has outgrown outbox.max_log_size and outbox.on_full_log is
-- 'detach'. Of the destinations that hold the oldest segment, it detaches and pauses the one whose
-- own events are the largest part of the log, if they are at least half of the limit. If there is
-- none, events of other destinations fill the log: then the events held in that segment are copied
-- to outbox.delivery, and no destination loses any. Returns NULL if no destination was detached, or
-- if another session has locked it. Endpoints count as destinations; of these, the fifty that are
-- furthest behind are looked at.
CREATE FUNCTION outbox_internal.detach_last()
RETURNS name
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most_bytes CONSTANT bigint := pg_size_bytes(outbox_internal.setting('max_log_size')) / 2;
    oldest     record;
    holder     outbox.cursor;
    moved      bigint;
BEGIN
    SELECT s.number, s.held_by INTO oldest
      FROM outbox.segment AS s
     WHERE NOT s.current AND s.held_by <> '{}'
     ORDER BY s.since
     LIMIT 1;
    WITH held AS MATERIALIZED (
        SELECT o.destination, outbox_internal.bytes_held(o) AS bytes
          FROM outbox.cursor AS o
         WHERE o.destination = ANY (oldest.held_by) AND o.number <> 0
            OR o.destination = ANY (ARRAY(SELECT n.destination FROM outbox.cursor AS n
                                           WHERE n.destination = ANY (oldest.held_by) AND n.number = 0
                                           ORDER BY pg_snapshot_xmax(n.done) LIMIT 50))
    )
    SELECT c.* INTO holder
      FROM held AS h
      JOIN outbox.cursor AS c ON c.destination = h.destination
     WHERE h.bytes >= most_bytes
     ORDER BY h.bytes DESC
     LIMIT 1
       FOR UPDATE OF c SKIP LOCKED;
    IF FOUND AND outbox_internal.try_lock_server(holder) THEN
        PERFORM outbox_internal.detach(holder);
        RETURN holder.destination;
    END IF;
    FOR holder IN
        SELECT c.* FROM outbox.cursor AS c
         WHERE c.destination = ANY (oldest.held_by)
           AND c.system_identifier = (SELECT system_identifier FROM pg_control_system())
           FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN NOT outbox_internal.try_lock_server(holder);
        moved := CASE WHEN holder.number = 0 THEN outbox_internal.set_aside_endpoint(holder.destination)
                      ELSE outbox_internal.set_aside(holder, oldest.number) END;
        IF moved > 0 THEN
            UPDATE outbox.cursor AS c SET lease = c.lease + 1 WHERE c.destination = holder.destination;
            INSERT INTO outbox.operation (requested_by, destination, action, events)
            VALUES (current_user, holder.destination, 'set aside', moved);
            PERFORM outbox_internal.wake_relays();
            PERFORM outbox_internal.tell_relays();
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.detach_last() IS 'makes room in a log that is too large';

-- ---------------------------------------------------------------------------------------------
-- Seek
-- ---------------------------------------------------------------------------------------------

-- Positions in the cursors mean nothing before outbox_internal.come_home(), which would undo a
-- decision.
CREATE FUNCTION outbox_internal.check_at_home()
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT outbox_internal.is_at_home() THEN
        RAISE EXCEPTION 'the log was restored from another cluster, and is not adapted to this one yet'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'outbox-relay does that when it starts; or call outbox_internal.come_home() as the owner of pg_outbox.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_at_home() IS 'refuses to go on with a log that is not adapted to this cluster';

-- Waits until the cursor of a destination says what its relay has settled by now. A relay saves it
-- every outbox.cursor_flush_interval; after two seconds, or if the transaction sees no later commits,
-- the saved cursor has to do.
CREATE FUNCTION outbox_internal.await_saved_cursor(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    settled CONSTANT bigint := (SELECT r.settled_position FROM outbox_internal.destination_relay AS r WHERE r.destination = $1);
BEGIN
    FOR attempt IN 1..100 LOOP
        EXIT WHEN current_setting('transaction_isolation') <> 'read committed'
               OR NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = $1 AND c.position < settled);
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$;

-- Returns the cursor that says what a destination or endpoint has settled: that of the destination for
-- an endpoint that is live. Nothing is settled if the cursor is of another cluster. The caller has
-- locked the destination.
CREATE FUNCTION outbox_internal.cursor_of(destination name)
RETURNS outbox.cursor
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_server CONSTANT name := outbox_internal.server_of(destination);
    cursor              outbox.cursor;
BEGIN
    SELECT c.* INTO cursor FROM outbox.cursor AS c
     WHERE c.destination IN ($1, own_server) ORDER BY c.destination = $1 DESC LIMIT 1;
    IF cursor.system_identifier <> (SELECT s.system_identifier FROM pg_control_system() AS s) THEN
        cursor.done := '1:1:';
        cursor.upto := NULL;
    END IF;
    RETURN cursor;
END $$;

-- Returns whether a destination that goes from one cursor to another passes over events that it has not
-- settled.
CREATE FUNCTION outbox_internal.skips_events(before outbox.cursor, after outbox.cursor)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    patterns CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(before.destination, 'topics'));
BEGIN
    RETURN EXISTS (SELECT FROM outbox.event AS e
                    WHERE (e.xid >= pg_snapshot_xmax(before.done) OR e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(before.done))))
                      AND outbox_internal.is_settled(after, e.xid, e.position) AND NOT outbox_internal.is_settled(before, e.xid, e.position)
                      AND e.topic LIKE ANY (patterns) AND (e.only_to IS NULL OR e.only_to = before.number)
                      AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = before.destination AND d.position = e.position))
        OR EXISTS (SELECT FROM outbox.batch AS b CROSS JOIN LATERAL unnest(b.xids, b.positions) AS o(xid, place)
                    WHERE b.destination = before.destination AND outbox_internal.is_settled(after, o.xid, o.place));
END $$;

-- Moves the cursor of a destination. Events of transactions that had finished in `done` count as
-- settled from now on, and so do those up to the position whose transactions had finished in
-- `upto`. All others are delivered, again or for the first time. Events in outbox.delivery stay
-- there. The segments are locked, so that none is emptied before the commit.
-- Errors: 22023 no reason is given, and events would never be delivered.
CREATE FUNCTION outbox_internal.move_cursor(
    destination name, done pg_snapshot, upto pg_snapshot, "position" bigint, caller name, why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before outbox.cursor;
    after  outbox.cursor;
BEGIN
    IF coalesce(why, '') = '' THEN
        PERFORM outbox_internal.await_saved_cursor(destination);
    END IF;
    before := outbox_internal.take_control(destination);
    IF "position" IS NULL THEN
        RAISE EXCEPTION 'the place to go to must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF outbox_internal.has_endpoints(before.destination) THEN
        RAISE EXCEPTION 'cannot seek: "%" has endpoints, which are at different places of the log', before.destination
            USING ERRCODE = 'feature_not_supported',
                  HINT = format('Deliver events to an endpoint once more with outbox.replay(%L).', before.destination || '/...');
    END IF;
    PERFORM outbox_internal.check_at_home();
    LOCK TABLE outbox.event IN ACCESS SHARE MODE;
    after := before;
    after.done := done;
    after.upto := upto;
    after.position := "position";
    IF coalesce(why, '') = '' AND outbox_internal.skips_events(outbox_internal.cursor_of(destination), after) THEN
        RAISE EXCEPTION 'a reason must be given'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('Events that destination "%s" has not settled would never be delivered.', destination),
                  HINT = 'Use why => ''...''.';
    END IF;
    PERFORM outbox_internal.drop_batches(destination);
    -- What was delivered is delivered again.
    UPDATE outbox.transaction AS t SET positions = '{}', retries = '{}' WHERE t.destination = $1;
    UPDATE outbox.cursor AS c
       SET done = $2, upto = $3, position = $4, lease = c.lease + 1, saved_at = clock_timestamp(),
           live_after = greatest(c.live_after, c.position),
           system_identifier = s.system_identifier
      FROM pg_control_system() AS s
     WHERE c.destination = $1;
    -- A copy of an event that is to be delivered again stands for it from now on.
    UPDATE outbox.delivery AS d SET operation = NULL
     WHERE d.destination = $1 AND d.operation IS NOT NULL AND NOT outbox_internal.is_settled(after, d.xid, d.position);
    INSERT INTO outbox.operation (requested_by, destination, action, from_position, to_position, why)
    VALUES (caller, destination, 'seek', before.position, $4, nullif(why, ''));
    RETURN $4;
END $$;

-- Delivers the events above a position, again or for the first time, and no others. Returns the
-- position. A reason must be given if events are passed over that the destination has not settled.
-- Errors: 22023 no reason is given.
CREATE FUNCTION outbox.seek(
    destination name, "position" bigint, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.move_cursor(destination, '1:1:', pg_current_snapshot(), $2, caller, why);
END;

-- Delivers the events since a time, again or for the first time. They occurred at that time or
-- later (occurred_at), or are behind the first of these. Reads the whole log. Returns the position
-- that was found. A reason must be given as for a position.
-- Errors: 22023 no reason is given.
CREATE FUNCTION outbox.seek(
    destination name, since timestamptz, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox.seek(destination,
                       CASE WHEN since IS NOT NULL
                            THEN coalesce((SELECT min(e.position) - 1 FROM outbox.event AS e WHERE e.occurred_at >= since),
                                          (SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END FROM outbox.event_position AS p))
                       END,
                       why, caller);
END;

-- Moves a destination to the beginning or end of the log, a position or a time. Targets are
-- 'beginning' for everything in the log, 'end' for events that commit from now on, or a position or
-- a time as above. A reason must be given as for a position.
-- Errors: 22007 the target is none of these; 22023 no reason is given.
CREATE FUNCTION outbox.seek(
    destination name, target text, why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF target = 'beginning' THEN
        RETURN outbox_internal.move_cursor(destination, '1:1:', NULL, 0, caller, why);
    ELSIF target = 'end' THEN
        RETURN outbox_internal.move_cursor(destination, outbox_internal.finished_by_now(), NULL,
                                  (SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END FROM outbox.event_position AS p),
                                  caller, why);
    ELSIF target ~ '^\d{1,18}$' THEN
        RETURN outbox.seek(destination, target::bigint, why, caller);
    END IF;
    RETURN outbox.seek(destination, target::timestamptz, why, caller);
EXCEPTION
    WHEN invalid_datetime_format OR datetime_field_overflow THEN
        RAISE EXCEPTION 'cannot seek to "%"', target
            USING ERRCODE = 'invalid_datetime_format', HINT = 'Write "beginning", "end", a position or a time.';
END $$;

-- ---------------------------------------------------------------------------------------------
-- Replay
-- ---------------------------------------------------------------------------------------------

-- Delivers a selection of the events that the destination has settled once more, before later events
-- of their keys, and without moving the cursor. All arguments must match; NULL matches everything.
-- Events that it has not settled are delivered anyway, and a notice has their number. Copies of the
-- others wait in outbox.delivery, so the log can move on meanwhile. Returns the id of the operation;
-- the view outbox.replay_progress shows its progress.
CREATE FUNCTION outbox.replay(
    destination    name,
    since          timestamptz DEFAULT NULL,
    until          timestamptz DEFAULT NULL,
    topic          text        DEFAULT NULL,
    aggregate_type text        DEFAULT NULL,
    aggregate_id   text        DEFAULT NULL,
    event_type     text        DEFAULT NULL,
    ordering_key   text        DEFAULT NULL,
    event_ids      uuid[]      DEFAULT NULL,
    why            text        DEFAULT NULL,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    id          CONSTANT bigint  := nextval('outbox.operation_id');
    patterns    CONSTANT text[]  := outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics'));
    of_endpoint CONSTANT text[]  := outbox_internal.endpoint_patterns(destination);
    own_number  CONSTANT integer := outbox_internal.destination_number(destination);
    cursor      outbox.cursor;
    keys        text[];
    count       bigint;
    unsettled   bigint;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.await_saved_cursor(outbox_internal.server_of(destination));
    PERFORM outbox_internal.take_control(destination);
    IF outbox_internal.has_endpoints(destination) THEN
        RAISE EXCEPTION 'cannot replay to all endpoints of "%" at once', destination
            USING ERRCODE = 'feature_not_supported',
                  HINT = format('Use SELECT outbox.replay(server || ''/'' || name) FROM outbox.endpoint WHERE server = %L ...;', destination);
    END IF;
    PERFORM outbox_internal.check_at_home();
    cursor := outbox_internal.cursor_of(destination);
    -- The copy of an event that is not settled would stand for the event: the relay takes what is in
    -- outbox.delivery for settled, and outbox.cancel_replay() would remove it.
    WITH selection AS NOT MATERIALIZED (
        SELECT e.*
          FROM outbox.event AS e
         WHERE e.topic LIKE ANY (patterns) AND e.topic LIKE ANY (of_endpoint)
           AND (e.only_to IS NULL OR e.only_to = own_number)
           AND ($2 IS NULL OR e.occurred_at >= $2) AND ($3 IS NULL OR e.occurred_at < $3)
           AND ($4 IS NULL OR e.topic LIKE ANY (outbox_internal.topic_patterns($4)))
           AND ($5 IS NULL OR e.aggregate_type = $5) AND ($6 IS NULL OR e.aggregate_id = $6)
           AND ($7 IS NULL OR e.event_type = $7) AND ($8 IS NULL OR e.ordering_key = $8)
           AND ($9 IS NULL OR e.event_id = ANY ($9))
    ), batched AS MATERIALIZED (
        SELECT unnest(b.positions) AS place FROM outbox.batch AS b WHERE b.destination = $1
    ), copied AS (
        INSERT INTO outbox.delivery AS d
        SELECT e.*, $1, 'PENDING', 0, CASE WHEN e.ordering_key = '' THEN clock_timestamp() END,
               NULL, NULL, NULL, NULL, NULL, NULL, id
          FROM selection AS e
         WHERE outbox_internal.is_settled(cursor, e.xid, e.position)
           AND NOT EXISTS (SELECT FROM batched AS b WHERE b.place = e.position)
            ON CONFLICT DO NOTHING  -- it is there already, as a retry or a dead letter
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT c.ordering_key),
           (SELECT count(*) FROM selection AS e
             WHERE NOT outbox_internal.is_settled(cursor, e.xid, e.position)
                OR EXISTS (SELECT FROM batched AS b WHERE b.place = e.position))
      INTO count, keys, unsettled
      FROM copied AS c;
    IF unsettled > 0 THEN
        RAISE NOTICE 'events that destination "%" has not settled are not replayed: %', destination, unsettled
            USING DETAIL = 'The saved cursor has not passed them. Those that were not delivered yet come anyway.';
    END IF;
    PERFORM outbox_internal.promote(destination, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (id, requested_by, destination, action, events, why, selection)
    VALUES (id, caller, $1, 'replay', count, nullif(why, ''), jsonb_strip_nulls(jsonb_build_object(
        'since', $2, 'until', $3, 'topic', $4, 'aggregate_type', $5, 'aggregate_id', $6,
        'event_type', $7, 'ordering_key', $8, 'event_ids', $9)));
    RETURN id;
END $$;

CREATE VIEW outbox.replay_progress AS
SELECT o.id, o.destination, o.requested_at, o.requested_by, o.events,
       count(d.position) FILTER (WHERE d.state <> 'DEAD') AS waiting,
       count(d.position) FILTER (WHERE d.state = 'DEAD') AS dead
  FROM outbox.operation AS o
  LEFT JOIN outbox.delivery AS d ON d.operation = o.id AND d.state <> 'DISCARDED'
 WHERE o.action = 'replay'
 GROUP BY o.id;
COMMENT ON VIEW outbox.replay_progress IS 'progress of replays';
COMMENT ON COLUMN outbox.replay_progress.id IS 'as outbox.replay() returned it';
COMMENT ON COLUMN outbox.replay_progress.destination IS 'destination of the replay';
COMMENT ON COLUMN outbox.replay_progress.requested_at IS 'when it was requested';
COMMENT ON COLUMN outbox.replay_progress.requested_by IS 'the role that requested it';
COMMENT ON COLUMN outbox.replay_progress.events IS 'number of selected events';
COMMENT ON COLUMN outbox.replay_progress.waiting IS 'number of them still to be delivered';
COMMENT ON COLUMN outbox.replay_progress.dead IS 'number of them that became dead letters';

-- Gives up those events of a replay that are neither delivered nor in flight. Returns their number.
-- Errors: 42704 there is no such replay.
CREATE FUNCTION outbox.cancel_replay(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target name;
    keys   text[];
    count  bigint;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT o.destination INTO target FROM outbox.operation AS o WHERE o.id = $1 AND o.action = 'replay';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'replay % does not exist', id
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.replay_progress lists all replays.';
    END IF;
    PERFORM outbox_internal.take_control(target);
    WITH given_up AS (
        DELETE FROM outbox.delivery AS d
         WHERE d.operation = $1 AND d.state IN ('PENDING', 'RETRY') AND d.lock_token IS NULL
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT g.ordering_key) INTO count, keys FROM given_up AS g;
    PERFORM outbox_internal.promote(target, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (requested_by, destination, action, events, selection)
    VALUES (caller, target, 'cancel replay', count, jsonb_build_object('replay', $1));
    RETURN count;
END $$;

-- ---------------------------------------------------------------------------------------------
-- Dead letters
-- ---------------------------------------------------------------------------------------------

CREATE VIEW outbox.dead_letter WITH (security_barrier) AS
SELECT d.destination, d.event_id,
       outbox_internal.for_client(d.topic) AS topic,
       outbox_internal.for_client(d.aggregate_type) AS aggregate_type,
       outbox_internal.for_client(d.aggregate_id) AS aggregate_id,
       outbox_internal.for_client(d.event_type) AS event_type,
       d.version,
       outbox_internal.for_client(d.ordering_key) AS ordering_key,
       d.occurred_at, d.attempts, d.first_failed_at, d.last_failed_at,
       outbox_internal.for_client(d.last_error) AS last_error,
       outbox_internal.for_client(d.content_type) AS content_type,
       outbox_internal.for_client(d.headers) AS headers,
       d.payload, d.position,
       outbox_internal.for_client(outbox.payload_text(d.content_type, d.payload)) AS payload_text,
       outbox_internal.for_client(outbox.payload_jsonb(d.content_type, d.payload)) AS payload_jsonb,
       NOT outbox_internal.has_form(
           concat_ws(E'\n', d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key, d.last_error, d.content_type, d.headers),
           pg_client_encoding()) AS escaped
  FROM outbox.delivery AS d
 WHERE d.state = 'DEAD';
COMMENT ON VIEW outbox.dead_letter IS 'events that wait for outbox.redrive() or outbox.discard()';
COMMENT ON COLUMN outbox.dead_letter.payload_text IS 'the payload if it is text or JSON';
COMMENT ON COLUMN outbox.dead_letter.payload_jsonb IS 'the payload if it is JSON';
COMMENT ON COLUMN outbox.dead_letter.escaped IS
    'true if a text has no form in the client_encoding of the session: such texts are shown with bytes in octal, headers as a string';

CREATE VIEW outbox.blocked_key AS
SELECT first.destination, outbox_internal.for_client(first.ordering_key) AS ordering_key,
       first.event_id, first.state, first.attempts, first.next_retry_at, outbox_internal.for_client(first.last_error) AS last_error,
       coalesce(first.first_failed_at, first.occurred_at) AS since,
       (SELECT count(*)
          FROM outbox.delivery AS d
         WHERE d.destination = first.destination AND d.ordering_key = first.ordering_key AND d.ordering_key <> ''
           AND d.position > first.position AND d.state <> 'DISCARDED' AND d.state <> 'DEAD') AS waiting
  FROM (SELECT d.name FROM outbox.destination AS d
        UNION ALL
        SELECT c.destination FROM outbox.cursor AS c WHERE c.number = 0) AS t -- endpoints that are behind
 CROSS JOIN LATERAL outbox_internal.blocked_keys(t.name, @{max_held_keys}) AS key
 CROSS JOIN LATERAL outbox_internal.first_of_key(t.name, key) AS first;
COMMENT ON VIEW outbox.blocked_key IS 'ordering keys whose later events wait, with the reason';
COMMENT ON COLUMN outbox.blocked_key.destination IS 'the destination of these events';
COMMENT ON COLUMN outbox.blocked_key.ordering_key IS 'the ordering key';
COMMENT ON COLUMN outbox.blocked_key.event_id IS 'the event that holds it';
COMMENT ON COLUMN outbox.blocked_key.state IS 'RETRY if it will be tried again, DEAD if it waits for a decision, PENDING if it is its turn';
COMMENT ON COLUMN outbox.blocked_key.attempts IS 'number of times that it was refused';
COMMENT ON COLUMN outbox.blocked_key.next_retry_at IS 'time of the next attempt';
COMMENT ON COLUMN outbox.blocked_key.last_error IS 'error of the last attempt';
COMMENT ON COLUMN outbox.blocked_key.since IS 'when it was first refused';
COMMENT ON COLUMN outbox.blocked_key.waiting IS 'number of events that wait behind it';

-- Redrives or discards the dead letters that match all arguments; NULL matches everything.
CREATE FUNCTION outbox_internal.decide_on_dead_letters(
    action text, destination name, event_ids uuid[], topic text, aggregate_type text, aggregate_id text,
    event_type text, ordering_key text, error text, caller name, why text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    keys  text[];
    count bigint;
BEGIN
    PERFORM outbox_internal.take_control(destination);
    WITH decided AS (
        UPDATE outbox.delivery AS d
           SET state = CASE action WHEN 'redrive' THEN 'RETRY' ELSE 'DISCARDED' END,
               attempts = CASE action WHEN 'redrive' THEN 0 ELSE d.attempts END,
               next_retry_at = CASE action WHEN 'redrive' THEN clock_timestamp() END,
               headers = CASE action WHEN 'redrive' THEN d.headers END,
               payload = CASE action WHEN 'redrive' THEN d.payload END
         WHERE d.destination = $2 AND d.state = 'DEAD'
           AND ($3 IS NULL OR d.event_id = ANY ($3)) AND ($4 IS NULL OR d.topic LIKE ANY (outbox_internal.topic_patterns($4)))
           AND ($5 IS NULL OR d.aggregate_type = $5) AND ($6 IS NULL OR d.aggregate_id = $6)
           AND ($7 IS NULL OR d.event_type = $7) AND ($8 IS NULL OR d.ordering_key = $8)
           AND ($9 IS NULL OR d.last_error LIKE $9)
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT d.ordering_key) INTO count, keys FROM decided AS d;
    -- A discarded event is remembered as long as others of its transaction may be decided on, or
    -- the cursor may meet it again.
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $2 AND d.state = 'DISCARDED' AND d.last_failed_at < clock_timestamp() - interval '30 days';
    PERFORM outbox_internal.promote(destination, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (requested_by, destination, action, events, why, selection)
    VALUES (caller, $2, action, count, nullif(why, ''), jsonb_strip_nulls(jsonb_build_object(
        'event_ids', $3, 'topic', $4, 'aggregate_type', $5, 'aggregate_id', $6,
        'event_type', $7, 'ordering_key', $8, 'error', $9)));
    RETURN count;
END $$;

-- Delivers dead letters again, with all their attempts. All arguments must match; without any, all
-- dead letters are taken. `topic` takes patterns as destinations do, `error` a pattern of LIKE.
-- Returns their number.
CREATE FUNCTION outbox.redrive(
    destination    name,
    event_ids      uuid[] DEFAULT NULL,
    topic          text   DEFAULT NULL,
    aggregate_type text   DEFAULT NULL,
    aggregate_id   text   DEFAULT NULL,
    event_type     text   DEFAULT NULL,
    ordering_key   text   DEFAULT NULL,
    error          text   DEFAULT NULL,
    why            text   DEFAULT NULL,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.decide_on_dead_letters('redrive', $1, $2, $3, $4, $5, $6, $7, $8, caller, why);
END;

-- Delivers a dead letter again, for one id, as text or uuid. PostgreSQL takes a literal for text,
-- so a literal of an array comes here as well.
CREATE FUNCTION outbox.redrive(destination name, event_id text)
RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT outbox.redrive(destination, event_ids => CASE WHEN event_id IS NULL OR event_id LIKE '{%' THEN event_id::uuid[]
                                                   ELSE ARRAY[event_id::uuid] END);
END;

-- Delivers a dead letter again.
CREATE FUNCTION outbox.redrive(destination name, event_id uuid)
RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT outbox.redrive(destination, event_ids => ARRAY[event_id]);
END;

-- Gives up dead letters; events that wait behind them follow. Arguments are as for
-- outbox.redrive(), but at least one of them, or `everything`, must select the events, and a reason
-- must be given.
-- Errors: 22023 nothing is selected, or no reason is given.
CREATE FUNCTION outbox.discard(
    destination    name,
    event_ids      uuid[]  DEFAULT NULL,
    topic          text    DEFAULT NULL,
    aggregate_type text    DEFAULT NULL,
    aggregate_id   text    DEFAULT NULL,
    event_type     text    DEFAULT NULL,
    ordering_key   text    DEFAULT NULL,
    error          text    DEFAULT NULL,
    why            text    DEFAULT NULL,
    everything     boolean DEFAULT false,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF num_nonnulls($2, $3, $4, $5, $6, $7, $8) = 0 AND everything IS NOT TRUE THEN
        RAISE EXCEPTION 'a condition must be given'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use event_ids, another condition, or everything => true.';
    ELSIF coalesce(why, '') = '' THEN
        RAISE EXCEPTION 'a reason must be given' USING ERRCODE = 'invalid_parameter_value', HINT = 'Use why => ''...''.';
    END IF;
    RETURN outbox_internal.decide_on_dead_letters('discard', $1, $2, $3, $4, $5, $6, $7, $8, caller, why);
END $$;
