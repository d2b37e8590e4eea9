-- Pull destinations: a relay outside the server takes events with outbox.fetch(), sends them on,
-- and reports the result with outbox.ack() and outbox.nack().
--
-- Events are dealt out to lanes by ordering key, and cut into batches. Only the first batch of a
-- lane is handed out, to one fetcher at a time. So the order of a key holds for any number of
-- fetchers. A batch has the positions of its events in the log; a healthy event costs nothing else.
-- A fetcher that finds an empty lane reads the next window of the log, as a relay does
-- (docs/architecture/log.md), under the lock of the destination's row of outbox.cursor. In that row
-- `done` then covers events that are settled or in a batch.
--
-- A refused event moves to outbox.delivery, together with the events of its key that were handed
-- out with it. So they stay in order there, whatever becomes of the lease.
--
-- Locks are taken in this order: the destination's row of outbox.cursor, batches, rows of
-- outbox.delivery. Operators, the keeper and event triggers take the row FOR UPDATE before they write
-- it: an UPDATE alone would not wait for those who share it. Fetchers share it (FOR KEY SHARE) before
-- they touch a batch, so none of those comes between. To read on, or to
-- change which rows hold keys, one fetcher at a time also takes it FOR NO KEY UPDATE. That fetcher
-- waits for no batch: it has its own, and skips those of others.
--
-- Counters cost no write of their own. The fetcher that reads on adds the events that it puts into
-- batches to `published` of the cursor, and the view takes off those still in batches. Only events in
-- trouble, which leave their batch for outbox.delivery, write the cursor once more.
--
-- Everything here needs READ COMMITTED, because what is read under a lock must not be older than
-- the lock.
CREATE TABLE outbox.batch (
    destination  name     NOT NULL,
    lane         integer  NOT NULL,
    number       bigint   NOT NULL,
    xids         xid8[],
    positions    bigint[] NOT NULL,
    oldest       timestamptz,
    taken        integer  NOT NULL DEFAULT 0,
    retries      bigint[] NOT NULL DEFAULT '{}',
    token        uuid,
    locked_until timestamptz,
    fetched_at   timestamptz,
    fetched_by   text,
    inserted_by  xid8     NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (destination, lane, number)
);
COMMENT ON TABLE outbox.batch IS 'events that pull destinations have not settled';
COMMENT ON COLUMN outbox.batch.destination IS 'the destination of the events';
COMMENT ON COLUMN outbox.batch.lane IS 'lane, whose batches are fetched one after the other; -1 for events in trouble only';
COMMENT ON COLUMN outbox.batch.number IS 'order of the batches';
COMMENT ON COLUMN outbox.batch.xids IS 'transactions of its events in the log, in order; null after a restore, until they are found by position';
COMMENT ON COLUMN outbox.batch.positions IS 'positions of its events in the log, in order';
COMMENT ON COLUMN outbox.batch.oldest IS 'occurred_at of its oldest event';
COMMENT ON COLUMN outbox.batch.taken IS 'number of events under the lease, from the first on';
COMMENT ON COLUMN outbox.batch.retries IS 'positions of events in outbox.delivery that are also under the lease';
COMMENT ON COLUMN outbox.batch.token IS 'token of the lease; null if it can be fetched';
COMMENT ON COLUMN outbox.batch.locked_until IS 'when the lease ends';
COMMENT ON COLUMN outbox.batch.fetched_at IS 'when the lease began, or was prolonged last';
COMMENT ON COLUMN outbox.batch.fetched_by IS 'role, application_name and address of the fetcher';
COMMENT ON COLUMN outbox.batch.inserted_by IS 'transaction that inserted the row, to detect a row restored from a dump';

CREATE UNIQUE INDEX batch_token ON outbox.batch (token) WHERE token IS NOT NULL;
COMMENT ON INDEX outbox.batch_token IS 'finds the batch of a lease';
CREATE INDEX batch_restored ON outbox.batch (destination) WHERE xids IS NULL;
COMMENT ON INDEX outbox.batch_restored IS 'finds restored batches';

-- Positions stay valid in a restore, transactions do not: see restore.sql.
CREATE FUNCTION outbox_internal.adopt_batch()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.positions = '{}' THEN  -- retries only, which are in outbox.delivery
        RETURN NULL;
    END IF;
    NEW.xids := NULL;
    NEW.inserted_by := pg_current_xact_id();
    NEW.taken := 0;
    NEW.retries := '{}';
    NEW.token := NULL;
    NEW.locked_until := NULL;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION outbox_internal.adopt_batch() IS 'adapts a restored batch to this database';

CREATE TRIGGER adopt_batch BEFORE INSERT ON outbox.batch
    FOR EACH ROW WHEN (NEW.inserted_by <> pg_current_xact_id()) EXECUTE FUNCTION outbox_internal.adopt_batch();
ALTER TABLE outbox.batch ENABLE ALWAYS TRIGGER adopt_batch;
COMMENT ON TRIGGER adopt_batch ON outbox.batch IS 'adapts a restored batch to this database';

CREATE VIEW outbox.lease AS
SELECT b.destination, b.lane, b.fetched_by, b.fetched_at, b.locked_until,
       b.taken + pg_catalog.cardinality(b.retries) AS events
  FROM outbox.batch AS b
 WHERE b.locked_until > pg_catalog.clock_timestamp();
COMMENT ON VIEW outbox.lease IS 'leases of fetchers on events that are not settled yet';
COMMENT ON COLUMN outbox.lease.destination IS 'the destination of the events';
COMMENT ON COLUMN outbox.lease.lane IS 'the lane that waits for it; -1 if the events were in trouble';
COMMENT ON COLUMN outbox.lease.fetched_by IS 'role, application_name and address of the fetcher';
COMMENT ON COLUMN outbox.lease.fetched_at IS 'when the lease began, or was prolonged last';
COMMENT ON COLUMN outbox.lease.locked_until IS 'when the lease ends, and others may fetch the events';
COMMENT ON COLUMN outbox.lease.events IS 'number of events left under the lease';

-- ------------------------------------------------------------------------------------------------
-- Batches from the log
-- ------------------------------------------------------------------------------------------------

-- The current transaction has not finished, though it sees what it has written.
CREATE FUNCTION outbox_internal.finished_by_now()
RETURNS pg_snapshot
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
             WHEN pg_visible_in_snapshot(own, now)
             THEN format('%s:%s:%s', least(own, pg_snapshot_xmin(now)), pg_snapshot_xmax(now),
                         (SELECT string_agg(xip::text, ',' ORDER BY xip)
                            FROM (SELECT pg_snapshot_xip(now) UNION ALL SELECT own) AS open(xip)))::pg_snapshot
             ELSE now
           END
      FROM (SELECT pg_current_snapshot(), pg_current_xact_id()) AS transaction(now, own);
END;
COMMENT ON FUNCTION outbox_internal.finished_by_now() IS 'snapshot in which the current transaction is in progress';

-- Returns the option `topics` as patterns of LIKE.
CREATE FUNCTION outbox_internal.topic_patterns(topics text)
RETURNS text[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(replace(replace(replace(replace(btrim(topic, E' \t\r\n'), E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'),
                             '*', '%'))
      FROM string_to_table(coalesce(topics, '*'), ',') AS topic;
END;

-- Makes batches of the events in a part of a window: see window.sql. `settled` is NULL if it is of
-- another cluster.
CREATE FUNCTION outbox_internal.make_batches(
    destination      name,
    from_snapshot    pg_snapshot,
    to_snapshot      pg_snapshot,
    after            bigint,
    upto             bigint,
    settled          pg_snapshot,
    settled_position bigint,
    lanes            integer,
    first_number     bigint,
    OUT events        bigint,
    OUT last_position bigint,
    OUT batches       bigint,
    OUT dealt         bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    patterns    CONSTANT text[]  := outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics'));
    of_endpoint CONSTANT text[] := outbox_internal.endpoint_patterns(destination);
    own_number  CONSTANT integer := outbox_internal.destination_number(destination);
BEGIN
    WITH found AS (
        SELECT * FROM outbox_internal.window_events(from_snapshot, to_snapshot, after, $5, settled, settled_position)
    ), dealt AS (
        -- Unordered events go to a lane in groups of a hundred, so that they share batches.
        SELECT xid, position, occurred_at, bytes,
               (CASE ordering_key
                  WHEN '' THEN position / 100
                  ELSE hashtextextended(ordering_key, 0) & 9223372036854775807
                END % lanes)::integer AS lane
          FROM found
         WHERE topic LIKE ANY (patterns) AND topic LIKE ANY (of_endpoint) AND (only_to IS NULL OR only_to = own_number)
    ), cut AS (
        SELECT xid, position, occurred_at, lane,
               (row_number() OVER w - 1) / 100 AS hundreds,
               sum(coalesce(bytes, 0)) OVER w / 4194304 AS megabytes
          FROM dealt
        WINDOW w AS (PARTITION BY lane ORDER BY position)
    ), made AS (
        INSERT INTO outbox.batch (destination, lane, number, xids, positions, oldest)
        SELECT $1, lane, first_number - 1 + row_number() OVER (ORDER BY min(position)),
               array_agg(xid ORDER BY position), array_agg(position ORDER BY position), min(occurred_at)
          FROM cut
         GROUP BY lane, hundreds, megabytes
        RETURNING cardinality(positions) AS events
    )
    SELECT f.events, f.last_position, m.batches, m.dealt
      INTO events, last_position, batches, dealt
      FROM (SELECT count(*) AS events, max(position) AS last_position FROM found) AS f,
           (SELECT count(*) AS batches, coalesce(sum(events), 0) AS dealt FROM made) AS m;
END $$;

-- Creates the cursor of a destination that has none, unless it was renamed or dropped meanwhile: another may
-- soon have that name, and a cursor of its own.
CREATE FUNCTION outbox_internal.make_cursor(destination name, server oid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        LOCK TABLE outbox.cursor IN SHARE UPDATE EXCLUSIVE MODE NOWAIT; -- keeps out others that do the same
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    INSERT INTO outbox.cursor (destination, server, done, position, system_identifier, lease, saved_at,
                               lanes, first_batch, next_batch)
    SELECT $1, $2, '1:1:', 0, system_identifier, 0, clock_timestamp(), known.lanes, known.first_batch, known.next_batch
      FROM pg_control_system()
     CROSS JOIN (SELECT max(b.lane) + 1, min(b.number), max(b.number) + 1
                   FROM outbox.batch AS b WHERE b.destination = $1) AS known(lanes, first_batch, next_batch)
     WHERE NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = $1)
       AND EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = $1 AND d.server = $2);
END $$;

-- Returns the lowest position in a window above a given one.
CREATE FUNCTION outbox_internal.next_position(from_snapshot pg_snapshot, to_snapshot pg_snapshot, after bigint)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(w.position) FROM outbox_internal.window_events(from_snapshot, to_snapshot, after) AS w;
END;

-- Makes batches of the next events in the log. Returns true if the caller should look again,
-- because there are new batches or more to read.
--
-- A large window is read in parts, by position. Meanwhile the cursor says, as that of a relay does:
-- of the window that ends with `upto`, events up to `position` are done.
CREATE FUNCTION outbox_internal.read_on(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    part_size CONSTANT bigint := 200000;
    wanted    CONSTANT integer := CASE WHEN outbox_internal.is_endpoint(destination) THEN '1'
                                       ELSE coalesce(outbox_internal.destination_option(destination, 'lanes'),
                                                     (SELECT o.default_value FROM outbox.destination_options() AS o
                                                       WHERE o.sink = 'pull' AND o.option = 'lanes')) END;
    nothing   CONSTANT pg_snapshot := '1:1:';
    c         outbox.cursor;
    foreign_  boolean;
    first     bigint;
    free      boolean;
    target    pg_snapshot;
    last      bigint;
    part_end  bigint;
    complete  boolean;
    made      record;
BEGIN
    SELECT * INTO c FROM outbox.cursor AS c WHERE c.destination = $1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false; -- another session is reading
    END IF;
    foreign_ := c.system_identifier <> (SELECT system_identifier FROM pg_control_system());

    SELECT min(b.number), count(b.number) < coalesce(c.lanes, 0)
      INTO first, free
      FROM generate_series(0, c.lanes - 1) AS l(lane)
     CROSS JOIN LATERAL (SELECT number FROM outbox.batch AS b
                          WHERE b.destination = $1 AND b.lane = l.lane AND b.number >= c.first_batch
                          ORDER BY number LIMIT 1) AS b;
    -- Nothing is read while every lane has a batch. With another number of lanes, or another hash
    -- function, batches of one key could be in two lanes; so all batches must be settled first.
    IF first IS NOT NULL AND (NOT free OR c.lanes <> wanted OR foreign_) THEN
        RETURN false;
    END IF;

    target := CASE WHEN c.upto IS NULL OR foreign_ THEN outbox_internal.finished_by_now() ELSE c.upto END;
    IF c.upto IS NULL AND outbox_internal.shards_hold(destination) THEN
        RETURN false;
    END IF;
    SELECT last_value INTO last FROM outbox.event_position;
    part_end := CASE WHEN foreign_ THEN last ELSE c.position + part_size END;
    complete := part_end >= last;
    LOOP
        made := outbox_internal.make_batches(
            destination,
            CASE WHEN foreign_ THEN nothing ELSE c.done END, target,
            CASE WHEN foreign_ OR c.upto IS NULL THEN 0 ELSE c.position END, part_end,
            CASE WHEN foreign_ THEN coalesce(c.upto, c.done) ELSE nothing END, c.position,
            wanted, coalesce(c.next_batch, 1));
        EXIT WHEN made.events > 0 OR complete;
        part_end := outbox_internal.next_position(c.done, target, part_end) + part_size - 1; -- skips a gap where the log was emptied
        complete := part_end IS NULL;
        EXIT WHEN complete;
    END LOOP;
    IF complete AND made.events = 0 AND c.upto IS NULL AND NOT foreign_ THEN
        RETURN false;
    END IF;
    UPDATE outbox.cursor AS u
       SET server = coalesce((SELECT d.server FROM outbox.destination AS d WHERE d.name = $1), 0), -- may have changed by a restore
           done = CASE WHEN complete THEN target ELSE c.done END,
           upto = CASE WHEN NOT complete THEN target END,
           position = greatest(c.position, CASE WHEN complete THEN made.last_position ELSE part_end END),
           system_identifier = CASE WHEN foreign_ THEN (SELECT system_identifier FROM pg_control_system())
                                    ELSE c.system_identifier END,
           lease = c.lease + 1, -- a relay may still be running
           saved_at = clock_timestamp(),
           lanes = wanted,
           first_batch = coalesce(first, c.next_batch, 1),
           next_batch = coalesce(c.next_batch, 1) + made.batches,
           published = c.published + made.dealt
     WHERE u.destination = $1;
    PERFORM outbox_internal.wake_keeper();
    -- Another window may follow a window that was read in parts.
    RETURN made.batches > 0 OR NOT complete OR (c.upto IS NOT NULL AND NOT foreign_);
END $$;

-- ------------------------------------------------------------------------------------------------
-- Fetching
-- ------------------------------------------------------------------------------------------------

-- Call it before other rows of a destination are locked. Returns false if there is no cursor of
-- this name, or no longer.
CREATE FUNCTION outbox_internal.share_cursor(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.cursor AS c WHERE c.destination = $1 FOR KEY SHARE;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION outbox_internal.share_cursor(name) IS 'keeps operators out while a fetcher works';

-- Returns the role, application_name and address of a fetcher.
CREATE FUNCTION outbox_internal.fetcher(caller name)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT concat_ws(' ', caller, nullif(current_setting('application_name'), ''), host(inet_client_addr()));
END;

-- Finds the events of restored batches. Runs after a restore, and reads the whole log once. Finds
-- events of all endpoints of the destination as well.
CREATE FUNCTION outbox_internal.find_restored_batches(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on
SET enable_hashjoin = on
AS $$
BEGIN
    PERFORM outbox_internal.lock_cursor(destination);
    UPDATE outbox.batch AS b
       SET xids = found.xids
      FROM (SELECT r.destination, r.lane, r.number, array_agg(e.xid ORDER BY place.number) AS xids
              FROM outbox.batch AS r
             CROSS JOIN LATERAL unnest(r.positions) WITH ORDINALITY AS place(position, number)
              JOIN outbox.event AS e ON e.position = place.position
             WHERE (r.destination = $1 OR r.destination > ($1 || '/')::name AND r.destination < ($1 || '0')::name)
               AND r.xids IS NULL
             GROUP BY r.destination, r.lane, r.number) AS found
     WHERE b.destination = found.destination AND b.lane = found.lane AND b.number = found.number;
END $$;

-- Takes the first batch of a lane under a token, but of none of the lanes in `except_lanes`. If another
-- session has locked or leased it, the whole lane is skipped, not only its first batch.
CREATE FUNCTION outbox_internal.claim_batch(
    destination name, token uuid, locked_until timestamptz, max_events integer, except_lanes integer[], caller name)
RETURNS SETOF outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now         CONSTANT timestamptz := clock_timestamp();
    lanes       integer;
    first_batch bigint;
    head        record;
BEGIN
    SELECT c.lanes, c.first_batch INTO lanes, first_batch FROM outbox.cursor AS c WHERE c.destination = $1;
    -- In one statement with the lock below, a planner without statistics would look into all lanes for each
    -- batch.
    FOR head IN
        SELECT b.lane, b.number
          FROM generate_series(0, lanes - 1) AS l(lane)
         CROSS JOIN LATERAL (SELECT b.lane, b.number, b.token, b.locked_until
                               FROM outbox.batch AS b
                              WHERE b.destination = $1 AND b.lane = l.lane AND b.number >= first_batch
                              ORDER BY b.number LIMIT 1) AS b
         WHERE (b.token IS NULL OR b.locked_until < now) AND l.lane <> ALL (except_lanes)
         ORDER BY b.number
    LOOP
        PERFORM FROM outbox.batch AS b
          WHERE b.destination = $1 AND b.lane = head.lane AND b.number = head.number
            AND (b.token IS NULL OR b.locked_until < now)
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        RETURN QUERY
        UPDATE outbox.batch AS b
           SET token = $2, locked_until = $3, fetched_at = now, fetched_by = outbox_internal.fetcher(caller),
               taken = least(cardinality(b.positions), max_events), retries = '{}'
         WHERE b.destination = $1 AND b.lane = head.lane AND b.number = head.number
        RETURNING b.*;
        RETURN;
    END LOOP;
END $$;

-- Returns the events of a batch that are under its lease.
CREATE FUNCTION outbox_internal.events_of(batch outbox.batch)
RETURNS SETOF outbox.event
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT e.*
      FROM unnest(batch.xids[:batch.taken], batch.positions[:batch.taken])
           WITH ORDINALITY AS b(xid, place, number)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = b.xid AND e.position = b.place LIMIT 1) AS e
     ORDER BY b.number;
END;

-- Removes events from a batch.
CREATE FUNCTION outbox_internal.take_out_of(batch outbox.batch, gone bigint[])
RETURNS outbox.batch
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.batch AS b
       SET xids = left_over.xids, positions = left_over.positions, taken = left_over.taken
      FROM (SELECT coalesce(array_agg(e.xid ORDER BY e.number), '{}'),
                   coalesce(array_agg(e.place ORDER BY e.number), '{}'),
                   count(*) FILTER (WHERE e.number <= batch.taken)
              FROM unnest(batch.xids, batch.positions) WITH ORDINALITY AS e(xid, place, number)
             WHERE e.place <> ALL (gone)) AS left_over(xids, positions, taken)
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number
    RETURNING b.*;
END;

-- Ends the lease of a batch. Its events have been settled, or with handed_back not.
CREATE FUNCTION outbox_internal.end_lease(batch outbox.batch, handed_back boolean)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.batch AS b
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number
       AND cardinality(b.positions) <= CASE WHEN handed_back THEN 0 ELSE b.taken END;
    UPDATE outbox.batch AS b
       SET xids      = CASE WHEN handed_back THEN b.xids ELSE b.xids[b.taken + 1:] END,
           positions = CASE WHEN handed_back THEN b.positions ELSE b.positions[b.taken + 1:] END,
           taken = 0, retries = '{}', token = NULL, locked_until = NULL, fetched_at = NULL, fetched_by = NULL
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number;
END;

-- Waits for fetchers, and keeps them out until the transaction ends.
CREATE FUNCTION outbox_internal.keep_fetchers_out(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.cursor AS c WHERE c.destination = $1 FOR UPDATE;
END $$;

-- Keeps other fetchers from changing what holds keys.
CREATE FUNCTION outbox_internal.lock_cursor(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.cursor AS c WHERE c.destination = $1 FOR NO KEY UPDATE;
    RETURN FOUND;
END $$;

-- Counts events of a pull destination that have left their batch for outbox.delivery (negative), or
-- were settled there, and failed attempts. The cursor is locked.
CREATE FUNCTION outbox_internal.count_trouble(destination name, published bigint, failures bigint)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.cursor AS c SET published = c.published + $2, failures = c.failures + $3
     WHERE c.destination = $1 AND ($2 <> 0 OR $3 <> 0);
END;

-- Removes batches whose events go back to the log or to outbox.delivery.
CREATE FUNCTION outbox_internal.drop_batches(destination name)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.count_trouble($1, (-sum(cardinality(b.positions)))::bigint, 0)
      FROM outbox.batch AS b WHERE b.destination = $1
    HAVING count(*) > 0;
    DELETE FROM outbox.batch AS b WHERE b.destination = $1;
END;

-- Puts events of a batch behind the events that hold their keys.
CREATE FUNCTION outbox_internal.park_held(batch outbox.batch)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held record;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = batch.destination)
       OR NOT EXISTS (SELECT FROM outbox_internal.events_of(batch) AS e, outbox_internal.first_of_key(batch.destination, e.ordering_key))
    THEN
        RETURN batch;
    END IF;
    PERFORM outbox_internal.lock_cursor(batch.destination);
    SELECT array_agg(e.xid) AS xids, array_agg(e.position) AS positions, array_agg(e.ordering_key) AS keys
      INTO held
      FROM outbox_internal.events_of(batch) AS e
     WHERE EXISTS (SELECT FROM outbox_internal.first_of_key(batch.destination, e.ordering_key));
    IF held.positions IS NULL THEN
        RETURN batch;
    END IF;
    PERFORM outbox_internal.park_events(batch.destination, held.xids, held.positions);
    PERFORM outbox_internal.count_trouble(batch.destination, -cardinality(held.positions), 0);
    PERFORM outbox_internal.promote(batch.destination, held.keys); -- an event that came late may be the first now
    RETURN outbox_internal.take_out_of(batch, held.positions);
END $$;

-- Records that events were refused, and lets go on what waits behind those that hold no key. The cursor is
-- locked; the caller counts.
CREATE FUNCTION outbox_internal.refuse_events(
    destination name, xids xid8[], positions bigint[], errors text[], permanent boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.fail_events(destination, xids, positions, errors, permanent);
    PERFORM outbox_internal.promote(destination, ARRAY(
        SELECT DISTINCT d.ordering_key FROM outbox.delivery AS d
         WHERE d.destination = refuse_events.destination AND d.position = ANY (refuse_events.positions)));
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_events(name, xid8[], bigint[], text[], boolean[]) IS 'records that events were refused';

-- Takes unreadable events out of a batch: see readable.sql.
CREATE FUNCTION outbox_internal.refuse_unreadable(batch outbox.batch)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bad CONSTANT record := outbox_internal.unreadable_events(
        batch.destination, batch.xids[:batch.taken], batch.positions[:batch.taken]);
BEGIN
    IF bad.positions IS NULL THEN
        RETURN batch;
    END IF;
    PERFORM outbox_internal.lock_cursor(batch.destination);
    PERFORM outbox_internal.refuse_events(batch.destination, bad.xids, bad.positions, bad.errors, bad.permanent);
    PERFORM outbox_internal.count_trouble(batch.destination, -cardinality(bad.positions), cardinality(bad.positions));
    RETURN outbox_internal.take_out_of(batch, bad.positions);
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_unreadable(outbox.batch) IS 'takes unreadable events out of a batch';

-- Takes due events in trouble under a token.
CREATE FUNCTION outbox_internal.claim_retries(
    destination name, token uuid, locked_until timestamptz, max_events integer, caller name)
RETURNS SETOF outbox.delivery
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now     timestamptz;
    claimed bigint[];
    bad     record;
BEGIN
    PERFORM outbox_internal.bound_retries(destination);
    now := clock_timestamp();
    IF NOT EXISTS (SELECT FROM outbox.delivery AS d
                    WHERE d.destination = $1 AND d.next_retry_at <= now
                      AND (d.lock_token IS NULL OR d.locked_until < now)) THEN
        RETURN;
    END IF;
    IF NOT outbox_internal.lock_cursor(destination) THEN
        RETURN; -- there is no cursor yet
    END IF;
    DELETE FROM outbox.batch AS b
     WHERE b.ctid = ANY (ARRAY(SELECT o.ctid FROM outbox.batch AS o
                                WHERE o.destination = $1 AND o.lane = -1 AND o.locked_until < now
                                  FOR UPDATE SKIP LOCKED));
    LOOP
        claimed := ARRAY(SELECT d.position FROM outbox_internal.claim_due($1, $2, $3, max_events, 4194304) AS d);
        IF cardinality(claimed) = 0 THEN
            RETURN;
        END IF;
        bad := outbox_internal.unreadable_events(destination, NULL, claimed);
        EXIT WHEN bad.positions IS NULL;
        PERFORM outbox_internal.unlock_events(destination, token, claimed); -- a dead letter may hold their keys
        PERFORM outbox_internal.refuse_events(destination, bad.xids, bad.positions, bad.errors, bad.permanent);
        PERFORM outbox_internal.count_trouble(destination, 0, cardinality(bad.positions));
    END LOOP;
    UPDATE outbox.cursor AS c SET next_batch = coalesce(c.next_batch, 1) + 1 WHERE c.destination = $1;
    INSERT INTO outbox.batch
        (destination, lane, number, xids, positions, retries, token, locked_until, fetched_at, fetched_by)
    SELECT $1, -1, c.next_batch - 1, '{}', '{}', claimed, $2, $3, now,
           outbox_internal.fetcher(caller)
      FROM outbox.cursor AS c
     WHERE c.destination = $1;
    RETURN QUERY
    SELECT d.* FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (claimed)
     ORDER BY d.position;
END $$;

-- After the clock was set back, leases that seem to begin later begin now. So a fetcher that is gone keeps
-- its events no longer than its lease. The cursor is shared.
CREATE FUNCTION outbox_internal.bound_leases(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    batch outbox.batch;
BEGIN
    FOR batch IN
        SELECT b.* FROM outbox.batch AS b WHERE b.destination = $1 AND b.fetched_at > now FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE outbox.batch AS b
           SET fetched_at = now, locked_until = now + (b.locked_until - b.fetched_at)
         WHERE b.token = batch.token
        RETURNING b.* INTO batch;
        UPDATE outbox.delivery AS d SET locked_at = batch.fetched_at, locked_until = batch.locked_until
         WHERE d.destination = batch.destination AND d.position = ANY (batch.retries) AND d.lock_token = batch.token;
    END LOOP;
END $$;

-- Plans are kept, and must be good for tables that were empty when they were made: they use indexes
-- only, and JIT compilation is off because its cost estimates are not realistic.
CREATE FUNCTION outbox.fetch(
    destination name,
    max_events  integer DEFAULT 100,
    lease       interval DEFAULT '30 seconds',
    caller      outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS TABLE (
    token           uuid,
    attempts        integer,
    "position"      bigint,
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
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    server    CONSTANT oid := outbox_internal.check_fetcher(destination, caller);
    new_token CONSTANT uuid := gen_random_uuid();
    batch     outbox.batch;
    held      integer[] := '{}';
    parked    integer := 0;
    count     bigint;
BEGIN
    PERFORM outbox_internal.check_isolation('events cannot be fetched or settled');
    PERFORM outbox_internal.check_lease_time(lease);
    IF max_events IS NULL OR max_events < 1 THEN
        RAISE EXCEPTION 'max_events must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The commit of this transaction flushes the transactions of the events, which may have been
    -- asynchronous.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    IF outbox_internal.copy_of(outbox_internal.own_identity(), external => false) IS NOT NULL THEN
        RETURN;
    ELSIF NOT outbox_internal.share_cursor(destination) THEN
        PERFORM outbox_internal.make_cursor(destination, server);
    ELSIF (SELECT c.paused FROM outbox.cursor AS c WHERE c.destination = $1) THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = $1 AND b.xids IS NULL) THEN
        PERFORM outbox_internal.find_restored_batches(destination);
    END IF;
    PERFORM outbox_internal.bound_leases(destination);

    RETURN QUERY
    SELECT new_token, d.attempts, d.position, d.occurred_at, d.event_id, d.version, d.schema_version,
           d.source_event_id, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key,
           d.content_type, d.headers, d.payload
      FROM outbox_internal.claim_retries(destination, new_token, clock_timestamp() + lease, max_events, caller) AS d;
    IF FOUND THEN
        RETURN;
    END IF;

    -- After a batch of held keys only, other lanes and the log come first. So a long line behind a key
    -- delays no others, and a call ends although it is not all of the line.
    LOOP
        SELECT * INTO batch
          FROM outbox_internal.claim_batch(destination, new_token, clock_timestamp() + lease, max_events, held, caller);
        IF NOT FOUND THEN
            CONTINUE WHEN outbox_internal.read_on(destination);
            IF held = '{}' OR parked >= 50 THEN
                RETURN;
            END IF;
            held := '{}';
            CONTINUE;
        END IF;
        batch := outbox_internal.park_held(outbox_internal.refuse_unreadable(batch));
        EXIT WHEN batch.taken > 0;
        PERFORM outbox_internal.end_lease(batch, false);
        held := held || batch.lane;
        parked := parked + 1;
    END LOOP;

    RETURN QUERY
    SELECT new_token, 0, e.position, e.occurred_at, e.event_id, e.version, e.schema_version,
           e.source_event_id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key,
           e.content_type, e.headers, e.payload
      FROM outbox_internal.events_of(batch) AS e;
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count <> batch.taken THEN
        RAISE EXCEPTION 'events of destination "%" are missing in the log', destination
            USING ERRCODE = 'data_corrupted',
                  DETAIL = format('Of batch %s, %s of %s were found.', batch.number, count, batch.taken);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.fetch(name, integer, interval, outbox_internal.caller) IS
    'takes the next events of a pull destination under a lease; commit before using them';

-- ------------------------------------------------------------------------------------------------
-- Settling
-- ------------------------------------------------------------------------------------------------

-- Returns the batch of a lease, and locks it, or raises an error if the lease has ended. With
-- with_cursor it also locks the cursor, for events in trouble.
CREATE FUNCTION outbox_internal.lock_lease(token uuid, with_cursor boolean)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch outbox.batch;
BEGIN
    PERFORM outbox_internal.refuse_restricted(); -- for all functions that settle
    PERFORM outbox_internal.check_isolation('events cannot be fetched or settled');
    PERFORM outbox_internal.wake_keeper();
    LOOP
        SELECT * INTO batch FROM outbox.batch AS b WHERE b.token = $1;
        EXIT WHEN NOT FOUND OR outbox_internal.share_cursor(batch.destination); -- repeat if it was renamed during the wait
    END LOOP;
    SELECT * INTO batch FROM outbox.batch AS b WHERE b.token = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % is not known', token
            USING ERRCODE = 'OL001',
                  DETAIL = 'It was settled or given back, or it ended and its events were fetched again.';
    END IF;
    IF with_cursor OR cardinality(batch.retries) > 0 THEN
        PERFORM outbox_internal.lock_cursor(batch.destination);
    END IF;
    IF batch.locked_until <= clock_timestamp() THEN
        RAISE EXCEPTION 'lease % has ended', token
            USING ERRCODE = 'OL001',
                  DETAIL = format('It ended at %s.', batch.locked_until),
                  HINT = 'Ask outbox.fetch() for a longer lease, or prolong it with outbox.extend().';
    END IF;
    RETURN batch;
END $$;

-- Settles events fetched under a token and not refused; returns their number.
CREATE FUNCTION outbox.ack(token uuid)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    batch CONSTANT outbox.batch := outbox_internal.lock_lease(token, false);
BEGIN
    IF outbox_internal.destination_option(batch.destination, 'receipts') = 'on' THEN
        PERFORM outbox_internal.add_receipts(batch.destination, array_agg(e.event_id), array_agg(e.position),
                                    array_agg(extract(epoch FROM clock_timestamp())::double precision), array_agg(''::text))
           FROM (SELECT b.event_id, b.position FROM outbox_internal.events_of(batch) AS b
                 UNION ALL
                 SELECT d.event_id, d.position FROM outbox.delivery AS d
                  WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)) AS e;
    END IF;
    IF cardinality(batch.retries) > 0 THEN
        PERFORM outbox_internal.count_trouble(batch.destination, cardinality(batch.retries), 0);
        PERFORM outbox_internal.promote(batch.destination, ARRAY(SELECT outbox_internal.settle_events(batch.destination, token, batch.retries)));
    END IF;
    PERFORM outbox_internal.end_lease(batch, false);
    RETURN batch.taken + cardinality(batch.retries);
END $$;

-- Moves an event that is under a lease to outbox.delivery, still under the lease, with all other
-- events of its key in the batch.
CREATE FUNCTION outbox_internal.move_key(batch outbox.batch, failed bigint)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moved record;
BEGIN
    SELECT array_agg(e.xid) AS xids, array_agg(e.position) AS positions INTO moved
      FROM outbox_internal.events_of(batch) AS e
      JOIN outbox_internal.events_of(batch) AS f ON f.position = failed
     WHERE e.position = f.position OR e.ordering_key = f.ordering_key AND f.ordering_key <> '';
    PERFORM outbox_internal.park_events(batch.destination, moved.xids, moved.positions);
    UPDATE outbox.delivery AS d
       SET lock_token = batch.token, locked_at = batch.fetched_at, locked_until = batch.locked_until
     WHERE d.destination = batch.destination AND d.position = ANY (moved.positions);
    batch := outbox_internal.take_out_of(batch, moved.positions);
    batch.retries := batch.retries || moved.positions;
    RETURN batch;
END $$;

-- Reports a refused event, and returns the events of the lease that must not be sent any more,
-- because they wait behind it.
CREATE FUNCTION outbox.nack(token uuid, event_id uuid, error text, permanent boolean DEFAULT false)
RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    batch  outbox.batch := outbox_internal.lock_lease(token, true);
    place  bigint;
    failed outbox.delivery;
    behind bigint[] := '{}';
    moved  bigint := 0;
BEGIN
    SELECT e.position INTO place FROM outbox_internal.events_of(batch) AS e WHERE e.event_id = $2;
    IF FOUND THEN
        moved := cardinality(batch.positions);
        batch := outbox_internal.move_key(batch, place);
        moved := moved - cardinality(batch.positions);
    END IF;
    SELECT * INTO failed FROM outbox.delivery AS d
     WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)
       AND d.lock_token = $1 AND d.event_id = $2;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'event % is not under lease %', event_id, token
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It may have been refused before, or may wait behind another event.';
    END IF;

    PERFORM outbox_internal.count_trouble(batch.destination, -moved, 1);
    SELECT f.state INTO failed.state
      FROM outbox_internal.fail_events(batch.destination, ARRAY[failed.xid], ARRAY[failed.position],
                              ARRAY[coalesce(error, '')], ARRAY[coalesce(permanent, false)]) AS f;
    IF failed.state = 'RETRY' OR outbox_internal.destination_option(batch.destination, 'on_dead_letter') = 'block' THEN
        behind := ARRAY(SELECT d.position FROM outbox.delivery AS d
                         WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)
                           AND d.ordering_key = failed.ordering_key AND d.ordering_key <> ''
                           AND d.position > failed.position AND d.lock_token = $1);
        PERFORM outbox_internal.unlock_events(batch.destination, token, behind);
    END IF;
    PERFORM outbox_internal.promote(batch.destination, ARRAY[failed.ordering_key]);
    UPDATE outbox.batch AS b
       SET retries = ARRAY(SELECT r FROM unnest(batch.retries) AS r WHERE r <> ALL (behind || failed.position))
     WHERE b.token = $1;
    RETURN QUERY
    SELECT d.event_id FROM outbox.delivery AS d
     WHERE d.destination = batch.destination AND d.position = ANY (behind)
     ORDER BY d.position;
END $$;

-- Prolongs a lease from now on; returns its new end.
CREATE FUNCTION outbox.extend(token uuid, lease interval DEFAULT '30 seconds')
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    batch   outbox.batch;
    now     CONSTANT timestamptz := clock_timestamp();
    new_end CONSTANT timestamptz := now + lease;
BEGIN
    PERFORM outbox_internal.check_lease_time(lease);
    batch := outbox_internal.lock_lease(token, false);
    UPDATE outbox.batch AS b SET fetched_at = now, locked_until = new_end WHERE b.token = $1;
    UPDATE outbox.delivery AS d SET locked_at = now, locked_until = new_end
     WHERE d.destination = batch.destination AND d.position = ANY (batch.retries) AND d.lock_token = $1;
    RETURN new_end;
END $$;

-- Gives back events fetched under a token; returns their number.
CREATE FUNCTION outbox.release(token uuid)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    batch CONSTANT outbox.batch := outbox_internal.lock_lease(token, false);
BEGIN
    PERFORM outbox_internal.unlock_events(batch.destination, token, batch.retries);
    PERFORM outbox_internal.end_lease(batch, true);
    RETURN batch.taken + cardinality(batch.retries);
END $$;
