-- What a sink with endpoints asks the database, by way of its relay: see endpoint.sql and
-- lib/core/endpoints.hpp.
--
-- A question is an object with these members, all optional but `place`. It is executed in this order:
--
--   known      snapshot of the last answer
--   place      the place in the log up to which events were handed to the sink, as in outbox.cursor:
--              {"done": "<pg_snapshot>", "upto": "<pg_snapshot>", "position": 123}
--   fall_back  [{"endpoint": "acme", "xids": [..], "positions": [..]}]: endpoints that are behind from now
--              on, and the events up to `place` that they lack, in order
--   settled    [{"endpoint": "acme", "positions": [..]}]
--   refused    [{"endpoint": "acme", "xid": 1, "position": 2, "error": "..", "permanent": false}]
--   failing    [{"endpoint": "acme", "since": <microseconds since 1970, or null if it works>, "error": "..",
--              "next_attempt": <microseconds since 1970>}]
--   gone       [{"endpoint": "acme", "error": ".."}]: endpoints to be paused
--   fetch      ["acme", ..]: endpoints that are behind and have no event in the sink
--   max_events, max_bytes   limits of the events that are returned, for all endpoints together
--
-- Rows of the answer, in this order:
--
--   known     snapshot: to be `known` of the next question; count: number of endpoints
--   endpoint  one that has changed since `known`, or any one without `known`, but no more than a relay has room
--             for, and one. snapshot: what it has while
--             it is live. due_in: if it has events in outbox.delivery that will be sent again. A live one
--             has such after outbox.redrive() or outbox.replay(), and has to fall back. xid: the
--             transaction that has changed it, or has decided about its events
--   event     one for each event that was fetched, in the order in which they are sent
--   fetched   follows the events of each endpoint in `fetch`. If there are none: snapshot, if it has caught
--             up and is live from now on, or else due_in: 0 to ask again, NULL to wait for an operator.
--
-- What was fetched stays where it is until it is named in `settled` or `refused`. So a question
-- whose answer was lost is asked again; doing the same a second time does no harm.
--
-- Names of endpoints that do not exist are passed over: they may have just been deleted.

-- Returns whether a snapshot is later than another one of this cluster. Of two with the same xmax, the
-- later one has fewer transactions in progress.
CREATE FUNCTION outbox_internal.is_later(snapshot pg_snapshot, other pg_snapshot)
RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN pg_snapshot_xmax(snapshot) <> pg_snapshot_xmax(other) THEN pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(other)
                ELSE (SELECT count(*) FROM pg_snapshot_xip(snapshot)) < (SELECT count(*) FROM pg_snapshot_xip(other)) END;
END;

-- Returns the texts of a JSON array.
CREATE FUNCTION outbox_internal.texts_of(list jsonb)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT ARRAY(SELECT t.value FROM jsonb_array_elements_text(list) WITH ORDINALITY AS t(value, number) ORDER BY t.number);
END;

-- ------------------------------------------------------------------------------------------------
-- Facts that the sink tells
-- ------------------------------------------------------------------------------------------------

-- Makes batches of events that an endpoint lacks, behind those that it has.
CREATE FUNCTION outbox_internal.add_copies(endpoint name, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH copy AS (
        SELECT u.xid, u.place, u.number, (u.number - 1) / 100 AS hundreds
          FROM unnest($2, $3) WITH ORDINALITY AS u(xid, place, number)
    ), batch AS (
        SELECT copy.hundreds, array_agg(copy.xid ORDER BY copy.number) AS xids, array_agg(copy.place ORDER BY copy.number) AS positions
          FROM copy GROUP BY copy.hundreds
    ), made AS (
        INSERT INTO outbox.batch (destination, lane, number, xids, positions, oldest)
        SELECT $1, 0, c.next_batch + b.hundreds, b.xids, b.positions,
               (SELECT e.occurred_at FROM outbox.event AS e WHERE e.xid = b.xids[1] AND e.position = b.positions[1] LIMIT 1)
          FROM outbox.cursor AS c CROSS JOIN batch AS b
         WHERE c.destination = $1
        RETURNING 1
    )
    UPDATE outbox.cursor AS c
       SET next_batch = c.next_batch + (SELECT count(*) FROM made), published = c.published + cardinality($3)
     WHERE c.destination = $1 AND cardinality($3) > 0;
END $$;

-- Makes a cursor for an endpoint in trouble: it is behind from now on. Events of transactions that
-- had finished in `since`, and events that were handed to the sink, count as settled for it; the
-- sink says which of these it lacks. An endpoint that is behind already is left alone, because the
-- question may have been asked before. No destination has the number 0, and no relay the token, so
-- relays of destinations never take the cursor for theirs.
CREATE FUNCTION outbox_internal.fall_back(server name, endpoint name, place jsonb, since pg_snapshot)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place_done  CONSTANT pg_snapshot := place ->> 'done';
    place_upto  CONSTANT pg_snapshot := place ->> 'upto';
    this_system CONSTANT bigint      := system_identifier FROM pg_control_system();
    other_system         bigint; -- after pg_upgrade: see outbox_internal.read_on()
BEGIN
    IF EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = endpoint) THEN
        RETURN false;
    END IF;
    SELECT c.system_identifier INTO other_system
      FROM outbox.cursor AS c
     WHERE c.destination = fall_back.server AND c.system_identifier <> this_system AND place ->> 'done' = '1:1:';
    INSERT INTO outbox.cursor (destination, number, server, done, upto, position, system_identifier, lease, saved_at,
                               lanes, first_batch, next_batch)
    VALUES (endpoint, 0, 0,
            CASE WHEN outbox_internal.is_later(since, place_done) THEN since ELSE place_done END,
            CASE WHEN outbox_internal.is_later(since, place_upto) THEN NULL ELSE place_upto END,
            (place ->> 'position')::bigint, this_system, -4611686018427387904, clock_timestamp(), 1, 1, 1);
    IF other_system IS NOT NULL THEN
        UPDATE outbox.cursor AS c SET system_identifier = other_system WHERE c.destination = endpoint;
    END IF;
    RETURN true;
END $$;

-- Takes events out of the batches of an endpoint. Usually they are in the first ones.
CREATE FUNCTION outbox_internal.take_out(endpoint name, positions bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing bigint[] := positions;
    batch   outbox.batch;
BEGIN
    FOR batch IN
        SELECT b.* FROM outbox.batch AS b
         WHERE b.destination = endpoint AND b.lane = 0
           AND b.number >= (SELECT c.first_batch FROM outbox.cursor AS c WHERE c.destination = endpoint)
         ORDER BY b.number
    LOOP
        EXIT WHEN missing = '{}';
        CONTINUE WHEN NOT batch.positions && missing;
        IF batch.positions <@ missing THEN
            DELETE FROM outbox.batch AS b WHERE b.destination = endpoint AND b.lane = 0 AND b.number = batch.number;
        ELSE
            UPDATE outbox.batch AS b
               SET (xids, positions) = (
                       SELECT CASE WHEN batch.xids IS NOT NULL THEN array_agg(e.xid ORDER BY e.number) END,
                              array_agg(e.place ORDER BY e.number)
                         FROM unnest(batch.xids, batch.positions) WITH ORDINALITY AS e(xid, place, number)
                        WHERE e.place <> ALL (missing)),
                   taken = 0
             WHERE b.destination = endpoint AND b.lane = 0 AND b.number = batch.number;
        END IF;
        missing := ARRAY(SELECT m FROM unnest(missing) AS m WHERE m <> ALL (batch.positions));
    END LOOP;
END $$;

-- Records that an endpoint has confirmed events.
CREATE FUNCTION outbox_internal.settle_copies(endpoint name, positions bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    settled bigint[];
    keys    text[];
BEGIN
    WITH gone AS (
        DELETE FROM outbox.delivery AS d
         WHERE d.destination = endpoint AND d.position = ANY (settle_copies.positions) AND d.state <> 'DISCARDED'
        RETURNING d.position, d.ordering_key
    )
    SELECT array_agg(g.position), array_agg(DISTINCT g.ordering_key) INTO settled, keys FROM gone AS g;
    PERFORM outbox_internal.take_out(endpoint, positions);
    PERFORM outbox_internal.promote(endpoint, keys);
END $$;

-- Records that an endpoint has refused events. Those behind them stay in batches, and are parked when
-- they are fetched.
CREATE FUNCTION outbox_internal.refuse_copies(
    endpoint name, xids xid8[], positions bigint[], errors text[], permanent boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.take_out(endpoint, positions);
    PERFORM outbox_internal.refuse_events(endpoint, xids, positions, errors, permanent);
END $$;

-- Pauses an endpoint that has said that it is gone, or that cannot be served. Does nothing while a
-- transaction has the row: the endpoint will say so again.
CREATE FUNCTION outbox_internal.pause_endpoint(server name, name name, why text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE outbox.endpoint AS e SET paused = true
     WHERE (e.server, e.name) IN (SELECT f.server, f.name FROM outbox.endpoint AS f
                                   WHERE f.server = pause_endpoint.server AND f.name = pause_endpoint.name AND NOT f.paused
                                     FOR UPDATE SKIP LOCKED);
    IF FOUND THEN
        INSERT INTO outbox.operation (requested_by, destination, action, why)
        VALUES (current_user, server || '/' || name, 'pause', left(why, 1000));
    END IF;
END $$;

-- Returns a time that is given in microseconds since 1970.
CREATE FUNCTION outbox_internal.unix_time(micros text)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_timestamp(least(greatest(micros::numeric, 0), 253370764800000000) / 1000000.0); -- until the year 9999
END;

-- Returns the items of a list that name endpoints of a destination, in order.
CREATE FUNCTION outbox_internal.items_of(server name, list jsonb)
RETURNS TABLE (endpoint name, name name, item jsonb)
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (e.server || '/' || e.name)::name, e.name, l.item
      FROM jsonb_array_elements(list) WITH ORDINALITY AS l(item, number)
      JOIN outbox.endpoint AS e ON e.server = $1 AND e.name = (l.item ->> 'endpoint')::name
     ORDER BY l.number;
END $$;

-- Records which endpoints fail.
CREATE FUNCTION outbox_internal.note_failing(server name, list jsonb)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.endpoint_state AS s (destination, known, failing_since, last_error, next_attempt_at)
    SELECT DISTINCT ON (i.endpoint) i.endpoint, true, f.since, left(i.item ->> 'error', 1000),
           CASE WHEN f.since IS NOT NULL THEN outbox_internal.unix_time(i.item ->> 'next_attempt') END
      FROM outbox_internal.items_of(server, list) WITH ORDINALITY AS i(endpoint, name, item, number)
     CROSS JOIN LATERAL (SELECT outbox_internal.unix_time(i.item ->> 'since')) AS f(since)
     ORDER BY i.endpoint, i.number DESC
        ON CONFLICT (destination) DO UPDATE
       SET failing_since = excluded.failing_since, next_attempt_at = excluded.next_attempt_at,
           last_error = coalesce(nullif(excluded.last_error, ''), s.last_error);
END;

-- Does what a question of a sink says about its endpoints.
CREATE FUNCTION outbox_internal.tell_endpoints(server name, question jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    i record;
BEGIN
    FOR i IN
        SELECT t.*, s.since FROM outbox_internal.items_of(server, question -> 'fall_back') AS t
          LEFT JOIN outbox.endpoint_state AS s ON s.destination = t.endpoint
    LOOP
        IF outbox_internal.fall_back(server, i.endpoint, question -> 'place', i.since) THEN
            PERFORM outbox_internal.add_copies(i.endpoint, outbox_internal.texts_of(i.item -> 'xids')::xid8[],
                                               outbox_internal.texts_of(i.item -> 'positions')::bigint[]);
        END IF;
    END LOOP;
    FOR i IN SELECT * FROM outbox_internal.items_of(server, question -> 'settled') LOOP
        PERFORM outbox_internal.settle_copies(i.endpoint, outbox_internal.texts_of(i.item -> 'positions')::bigint[]);
    END LOOP;
    FOR i IN
        SELECT t.endpoint, array_agg((t.item ->> 'xid')::xid8) AS xids, array_agg((t.item ->> 'position')::bigint) AS positions,
               array_agg(coalesce(left(t.item ->> 'error', 10000), '')) AS errors,
               array_agg(coalesce((t.item ->> 'permanent')::boolean, false)) AS permanent
          FROM outbox_internal.items_of(server, question -> 'refused') AS t
         GROUP BY t.endpoint
    LOOP
        PERFORM outbox_internal.refuse_copies(i.endpoint, i.xids, i.positions, i.errors, i.permanent);
    END LOOP;
    IF question ? 'failing' THEN
        PERFORM outbox_internal.note_failing(server, question -> 'failing');
    END IF;
    FOR i IN SELECT * FROM outbox_internal.items_of(server, question -> 'gone') LOOP
        PERFORM outbox_internal.pause_endpoint(server, i.name, 'it is gone: ' || coalesce(i.item ->> 'error', ''));
    END LOOP;
END $$;

-- ------------------------------------------------------------------------------------------------
-- Answers to the sink
-- ------------------------------------------------------------------------------------------------

-- A new endpoint gets what committed after its row was inserted. If some of these events have been
-- handed to the sink, which did not know the endpoint, then the endpoint begins behind. Rows of one
-- statement have the same snapshot, and there may be thousands.
CREATE FUNCTION outbox_internal.begin_endpoints(server name, place jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    handed_over CONSTANT pg_snapshot := coalesce(place ->> 'upto', place ->> 'done');
    fresh       record;
    topics      text[]; -- of the events that were handed over
BEGIN
    FOR fresh IN
        SELECT s.since::text::pg_snapshot AS since, array_agg(s.destination) AS endpoints
          FROM outbox.endpoint_state AS s
         WHERE NOT s.known AND s.destination > (server || '/')::name AND s.destination < (server || '0')::name
         GROUP BY s.since::text
    LOOP
        UPDATE outbox.endpoint_state AS s SET known = true WHERE s.destination = ANY (fresh.endpoints);
        CONTINUE WHEN outbox_internal.is_later(handed_over, fresh.since) IS NOT TRUE;
        SELECT CASE WHEN count(*) < 10000 THEN coalesce(array_agg(DISTINCT w.topic), '{}') END INTO topics
          FROM (SELECT e.topic FROM outbox_internal.window_events(fresh.since, outbox_internal.finished_by_now()) AS e LIMIT 10000) AS w;
        CONTINUE WHEN topics = '{}';
        INSERT INTO outbox.cursor (destination, number, server, done, position, system_identifier, lease, saved_at,
                                   lanes, first_batch, next_batch)
        SELECT n.endpoint, 0, 0, fresh.since, (place ->> 'position')::bigint, c.system_identifier, -4611686018427387904, clock_timestamp(), 1, 1, 1
          FROM unnest(fresh.endpoints) AS n(endpoint)
         CROSS JOIN (SELECT system_identifier FROM pg_control_system() OFFSET 0) AS c
         WHERE NOT EXISTS (SELECT FROM outbox.cursor AS o WHERE o.destination = n.endpoint)
           AND (topics IS NULL
                OR EXISTS (SELECT FROM unnest(topics) AS t(topic)
                            WHERE t.topic LIKE ANY (outbox_internal.endpoint_patterns(n.endpoint))));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.begin_endpoints(name, jsonb) IS 'lets new endpoints begin with what committed after they were inserted';

-- Returns the first batch of an endpoint.
CREATE FUNCTION outbox_internal.first_batch(endpoint name)
RETURNS outbox.batch
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT b.* FROM outbox.batch AS b
     WHERE b.destination = endpoint AND b.lane = 0
       AND b.number >= (SELECT c.first_batch FROM outbox.cursor AS c WHERE c.destination = endpoint)
     ORDER BY b.number
     LIMIT 1;
END;

-- Returns whether events of an endpoint wait in outbox.delivery, for their time, for others or for
-- a decision. The first row of a key has a time, unless it is a dead letter that blocks.
CREATE FUNCTION outbox_internal.has_trouble(endpoint name)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = endpoint AND d.next_retry_at IS NOT NULL)
        OR EXISTS (SELECT FROM outbox.delivery AS d
                    WHERE d.destination = endpoint AND d.state IN ('PENDING', 'RETRY') AND d.operation IS NULL)
        OR outbox_internal.destination_option(endpoint, 'on_dead_letter') = 'block'
           AND EXISTS (SELECT FROM outbox.delivery AS d
                        WHERE d.destination = endpoint AND d.state = 'DEAD' AND d.ordering_key <> '');
END;

-- Returns those of some topics that an endpoint does not take any more, by its row or by the option of its
-- destination. Events that wait for it were selected when they were read, perhaps by other patterns.
CREATE FUNCTION outbox_internal.unwanted_topics(endpoint name, topics text[])
RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    patterns    CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(endpoint, 'topics'));
    of_endpoint CONSTANT text[] := outbox_internal.endpoint_patterns(endpoint);
BEGIN
    RETURN ARRAY(SELECT t.topic FROM unnest(topics) AS t(topic)
                  WHERE NOT (t.topic LIKE ANY (patterns) AND t.topic LIKE ANY (of_endpoint)));
END $$;

-- Gives up events of unwanted topics that wait in a batch.
CREATE FUNCTION outbox_internal.drop_unwanted(batch outbox.batch)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    unwanted text[];
    gone     bigint[];
BEGIN
    batch.taken := cardinality(batch.positions);
    unwanted := outbox_internal.unwanted_topics(
        batch.destination, ARRAY(SELECT DISTINCT e.topic FROM outbox_internal.events_of(batch) AS e));
    IF unwanted = '{}' THEN
        RETURN batch;
    END IF;
    gone := ARRAY(SELECT e.position FROM outbox_internal.events_of(batch) AS e WHERE e.topic = ANY (unwanted));
    PERFORM outbox_internal.count_trouble(batch.destination, -cardinality(gone), 0);
    RETURN outbox_internal.take_out_of(batch, gone);
END $$;
COMMENT ON FUNCTION outbox_internal.drop_unwanted(outbox.batch) IS 'gives up what an endpoint does not want any more';

-- Gives up those of some events in outbox.delivery that are of unwanted topics. Returns true if there
-- were any.
CREATE FUNCTION outbox_internal.drop_unwanted(endpoint name, positions bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    unwanted text[];
BEGIN
    unwanted := outbox_internal.unwanted_topics(endpoint, ARRAY(
        SELECT DISTINCT d.topic FROM outbox.delivery AS d
         WHERE d.destination = endpoint AND d.position = ANY (drop_unwanted.positions)));
    IF unwanted = '{}' THEN
        RETURN false;
    END IF;
    PERFORM outbox_internal.settle_copies(endpoint, ARRAY(
        SELECT d.position FROM outbox.delivery AS d
         WHERE d.destination = endpoint AND d.position = ANY (drop_unwanted.positions) AND d.topic = ANY (unwanted)));
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox_internal.drop_unwanted(name, bigint[]) IS 'gives up what an endpoint does not want any more';

-- Refuses those of some events that are unreadable: see readable.sql. Returns true if there were any.
CREATE FUNCTION outbox_internal.refuse_unreadable(endpoint name, xids xid8[], positions bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bad CONSTANT record := outbox_internal.unreadable_events(endpoint, xids, positions);
BEGIN
    IF bad.positions IS NULL THEN
        RETURN false;
    END IF;
    PERFORM outbox_internal.refuse_copies(endpoint, bad.xids, bad.positions, bad.errors, bad.permanent);
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_unreadable(name, xid8[], bigint[]) IS 'refuses unreadable events of an endpoint';

-- Chooses the next events of an endpoint that is behind: those at `positions` of outbox.delivery,
-- or those of `batch`. If there are none, `caught_up` or `due_in` says why. Events are read on from
-- the log until `deadline`, but at least once: the lock of the destination is held meanwhile.
-- `was_read` is true if they may have just come from the log; otherwise they were handed to the
-- sink before.
CREATE FUNCTION outbox_internal.pick_copies(
    endpoint   name,
    max_events integer,
    max_bytes  bigint,
    deadline   timestamptz,
    OUT positions bigint[],
    OUT batch     outbox.batch,
    OUT bytes     bigint,
    OUT was_read  boolean,
    OUT caught_up pg_snapshot,
    OUT due_in    double precision)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found bigint;
    fits  bigint;
BEGIN
    bytes := 0;
    was_read := false;
    LOOP
        positions := outbox_internal.due_events(endpoint, true, max_events, max_bytes);
        EXIT WHEN positions IS NULL
               OR NOT outbox_internal.drop_unwanted(endpoint, positions)
                  AND NOT outbox_internal.refuse_unreadable(endpoint, NULL, positions);
        IF clock_timestamp() >= deadline THEN
            positions := NULL;
            due_in := 0;
            RETURN;
        END IF;
    END LOOP;
    IF positions IS NOT NULL THEN
        was_read := true; -- by a replay
        SELECT sum(200 + coalesce(octet_length(d.payload), 0)) INTO bytes
          FROM outbox.delivery AS d WHERE d.destination = endpoint AND d.position = ANY (pick_copies.positions);
        RETURN;
    END IF;
    LOOP
        batch := outbox_internal.first_batch(endpoint);
        IF batch.number IS NULL THEN
            IF was_read AND clock_timestamp() >= deadline THEN
                due_in := 0;
                RETURN;
            END IF;
            was_read := true;
            CONTINUE WHEN outbox_internal.read_on(endpoint);
            EXIT;
        END IF;
        batch := outbox_internal.drop_unwanted(batch);
        IF batch.taken = 0 OR outbox_internal.refuse_unreadable(endpoint, batch.xids, batch.positions) THEN
            PERFORM outbox_internal.end_lease(batch, false);
            IF clock_timestamp() >= deadline THEN
                batch := NULL;
                due_in := 0;
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        batch.taken := least(cardinality(batch.positions), max_events);
        SELECT count(*), count(*) FILTER (WHERE s.number = 1 OR s.bytes <= max_bytes),
               coalesce(max(s.bytes) FILTER (WHERE s.number = 1 OR s.bytes <= max_bytes), 0)
          INTO found, fits, bytes
          FROM (SELECT b.number, sum(e.size) OVER (ORDER BY b.number) AS bytes
                  FROM unnest(batch.xids[:batch.taken], batch.positions[:batch.taken]) WITH ORDINALITY AS b(xid, place, number)
                 CROSS JOIN LATERAL (SELECT 200 + coalesce(octet_length(e.payload), 0) AS size FROM outbox.event AS e
                                      WHERE e.xid = b.xid AND e.position = b.place LIMIT 1) AS e) AS s;
        IF found <> batch.taken THEN
            RAISE WARNING 'events of endpoint "%" are missing in the log', endpoint
                USING ERRCODE = 'data_corrupted', DETAIL = format('Of batch %s, %s of %s were found.', batch.number, found, batch.taken);
            PERFORM outbox_internal.pause_endpoint(outbox_internal.server_of(endpoint), split_part(endpoint::text, '/', 2)::name,
                                                   'events are missing in the log');
            batch := NULL;
            bytes := 0;
            RETURN;
        END IF;
        batch.taken := fits;
        batch := outbox_internal.park_held(batch);
        IF batch.taken > 0 THEN
            RETURN;
        END IF;
        PERFORM outbox_internal.end_lease(batch, false);
    END LOOP;
    batch := NULL;
    bytes := 0;
    IF outbox_internal.has_trouble(endpoint) THEN
        due_in := outbox_internal.next_retry(endpoint);
        RETURN;
    END IF;
    DELETE FROM outbox.cursor AS c WHERE c.destination = endpoint RETURNING c.done INTO caught_up;
    UPDATE outbox.endpoint_state AS s SET since = caught_up WHERE s.destination = endpoint;
END $$;

-- Locks the cursor of an endpoint, if it has one. Returns how the endpoint can be fetched for:
-- 'behind', 'live', 'paused' or 'locked', by the keeper.
CREATE FUNCTION outbox_internal.lock_endpoint(server name, name name)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    endpoint CONSTANT name := server || '/' || name;
BEGIN
    IF (SELECT e.paused FROM outbox.endpoint AS e WHERE e.server = lock_endpoint.server AND e.name = lock_endpoint.name) THEN
        RETURN 'paused';
    END IF;
    PERFORM FROM outbox.cursor AS c WHERE c.destination = endpoint FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN -- it holds the log again if it was detached
        UPDATE outbox.cursor AS c SET detached_at = NULL, paused = false
         WHERE c.destination = endpoint AND c.detached_at IS NOT NULL;
        RETURN 'behind';
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = endpoint) THEN 'locked' ELSE 'live' END;
END $$;

-- Answers a question of a sink with endpoints. The caller has locked the cursor of the destination.
CREATE FUNCTION outbox_internal.ask_endpoints(destination name, question jsonb)
RETURNS TABLE (
    outcome         text,
    kind            text,
    endpoint        name,
    url             text,
    topics          text,
    secret_name     text,
    paused          boolean,
    behind          boolean,
    snapshot        text,
    count           bigint,
    due_in          double precision,
    attempts        integer,
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
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    told        CONSTANT pg_snapshot := question ->> 'known';
    events_left integer     := coalesce((question ->> 'max_events')::integer, 100);
    bytes_left  bigint      := coalesce((question ->> 'max_bytes')::bigint, 4194304);
    low         CONSTANT name := destination || '/';
    high        CONSTANT name := destination || '0'; -- behind all names that begin with low
    deadline    timestamptz;
    any_fetched boolean := false;
    wanted      name;
    state       text;
    picked      record;
    any_read    boolean := false;
BEGIN
    PERFORM outbox_internal.check_isolation('endpoints cannot be asked about');
    outcome := 'ok';
    PERFORM outbox_internal.tell_endpoints(destination, question);
    PERFORM outbox_internal.begin_endpoints(destination, question -> 'place');
    IF told IS NULL THEN -- the relay has just started, and options may have changed which rows hold a key
        PERFORM outbox_internal.unlock_all(c.destination)
           FROM outbox.cursor AS c
          WHERE c.destination > low AND c.destination < high AND c.number = 0
            AND EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = c.destination);
    END IF;

    -- What commits between these two statements is told once more the next time.
    kind := 'known';
    snapshot := outbox_internal.finished_by_now();
    SELECT count(*) INTO count FROM outbox.endpoint AS e WHERE e.server = $1;
    RETURN NEXT;
    RETURN QUERY
    SELECT 'ok', 'endpoint', e.name, e.url, e.topics, coalesce(e.secret_name, e.name::text), e.paused,
           EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = n.endpoint),
           s.since::text, NULL::bigint,
           outbox_internal.next_retry(n.endpoint),
           NULL::integer, NULL::bigint, e.changed_by, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid,
           NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea
      FROM outbox.endpoint AS e
     CROSS JOIN LATERAL (SELECT (e.server || '/' || e.name)::name) AS n(endpoint)
      LEFT JOIN outbox.endpoint_state AS s ON s.destination = n.endpoint
     WHERE e.server = $1
       AND e.changed_by >= coalesce(pg_snapshot_xmin(told), '0') AND (told IS NULL OR NOT pg_visible_in_snapshot(e.changed_by, told))
     ORDER BY CASE WHEN told IS NULL THEN e.name END -- so that a relay without room for all keeps the same ones
     LIMIT 50001; -- one more than EndpointDirectory has room for, and than outbox_internal.add_to_total() allows

    IF EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination > low AND b.destination < high AND b.xids IS NULL) THEN
        PERFORM outbox_internal.find_restored_batches(destination);
    END IF;
    deadline := clock_timestamp() + interval '200 milliseconds';
    count := NULL;
    FOR wanted IN
        SELECT e.name FROM unnest(outbox_internal.texts_of(question -> 'fetch')) WITH ORDINALITY AS f(name, number)
          JOIN outbox.endpoint AS e ON e.server = $1 AND e.name = f.name::name
         ORDER BY f.number
    LOOP
        kind := 'fetched';
        endpoint := wanted;
        snapshot := NULL;
        due_in := NULL;
        state := CASE WHEN bytes_left <= 0 OR any_fetched AND clock_timestamp() >= deadline THEN 'later'
                      ELSE outbox_internal.lock_endpoint($1, wanted) END;
        any_fetched := any_fetched OR state = 'behind';
        IF state = 'live' THEN
            SELECT coalesce(s.since::text, '1:1:') INTO snapshot FROM outbox.endpoint_state AS s WHERE s.destination = ($1 || '/' || wanted)::name;
            snapshot := coalesce(snapshot, '1:1:');
        ELSIF state = 'locked' THEN
            due_in := 1;
        ELSIF state = 'later' THEN
            due_in := 0;
        ELSIF state = 'behind' THEN
            SELECT * INTO picked
              FROM outbox_internal.pick_copies(($1 || '/' || wanted)::name, greatest(events_left, 1), bytes_left, deadline);
            RETURN QUERY
            SELECT 'ok', 'event', wanted, NULL::text, NULL::text, NULL::text, NULL::boolean, NULL::boolean, NULL::text, NULL::bigint,
                   NULL::double precision, d.attempts, d.position, d.xid, d.occurred_at, d.event_id, d.version, d.schema_version, d.source_event_id,
                   d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key, d.content_type, d.headers, d.payload
              FROM outbox.delivery AS d
             WHERE d.destination = ($1 || '/' || wanted)::name AND d.position = ANY (picked.positions)
             ORDER BY d.position;
            IF (picked.batch).number IS NOT NULL THEN
                RETURN QUERY
                SELECT 'ok', 'event', wanted, NULL::text, NULL::text, NULL::text, NULL::boolean, NULL::boolean, NULL::text, NULL::bigint,
                       NULL::double precision, 0, e.position, e.xid, e.occurred_at, e.event_id, e.version, e.schema_version, e.source_event_id,
                       e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key, e.content_type, e.headers, e.payload
                  FROM unnest((picked.batch).xids[:(picked.batch).taken], (picked.batch).positions[:(picked.batch).taken])
                       WITH ORDINALITY AS b(xid, place, number)
                 CROSS JOIN LATERAL (SELECT * FROM outbox.event AS f WHERE f.xid = b.xid AND f.position = b.place LIMIT 1) AS e
                 ORDER BY b.number;
            END IF;
            events_left := events_left - coalesce(cardinality(picked.positions), (picked.batch).taken, 0);
            bytes_left := bytes_left - picked.bytes;
            any_read := any_read OR picked.bytes > 0 AND picked.was_read;
            snapshot := picked.caught_up;
            due_in := picked.due_in;
        END IF;
        RETURN NEXT;
    END LOOP;

    -- An event must not leave before its transaction is on disk. Transactions of events that the
    -- sink has had before are. The lock of the cursor has written a record, so this commit flushes
    -- everything before it. A crash can lose the rest of what was done here; then events arrive
    -- twice.
    IF NOT any_read THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
END $$;

-- The first row has only the column outcome if that is not 'ok'.
CREATE FUNCTION outbox_internal.relay_endpoints(number integer, lease bigint, question jsonb)
RETURNS TABLE (
    outcome         text,
    kind            text,
    endpoint        name,
    url             text,
    topics          text,
    secret_name     text,
    paused          boolean,
    behind          boolean,
    snapshot        text,
    count           bigint,
    due_in          double precision,
    attempts        integer,
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
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    target name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome = 'ok' THEN
        RETURN QUERY SELECT * FROM outbox_internal.ask_endpoints(target, question);
    ELSE
        RETURN NEXT;
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.relay_endpoints(integer, bigint, jsonb) IS 'answers a question of a sink with endpoints, for a relay outside the server';
