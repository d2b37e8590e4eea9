-- Relays outside the server: what the program outbox-relay calls. Each call is one statement and one
-- transaction, so it works through poolers, and nothing is held while the relay uses the network.
--
-- A destination is served by the relay that cursor.relay names, as long as the row of that relay in
-- outbox.relay is valid. A relay renews its row with outbox_internal.relay_beat(). cursor.lease is
-- the token under which it writes: a relay that takes a destination over makes a new one, and every
-- function that writes compares it under the lock of the cursor. So a relay that was replaced
-- settles nothing. The token is a secret: roles that may relay call these functions with any
-- number, also those of destinations that they do not serve. The outcome of such a function is
--
--   ok     done
--   busy   another session has the lock, usually an operator; try again
--   lost   the token has changed, the destination is gone, or the server has been recovered
--
-- The server answers some commits before they are on disk, so a crash or a failover may undo what a
-- relay has been told. After that, the relay must not write what it has in memory, and behind a
-- pooler it may not notice the crash. So outbox.relay_lease is unlogged: recovery empties it, and
-- every relay has to take its destinations again.
--
-- The worker of a destination inside the server also takes it with such a token, and writes with the
-- same functions. It needs no row in outbox.relay: it ends with the server.
--
-- A relay with a session of its own also holds the advisory lock (outbox_internal.relay_locks(),
-- number of the destination) in it. Another relay that gets this lock knows that the session has
-- ended, and does not wait for the end of the lease.
--
-- The advisory lock with the number 0 is the wake lock. A relay that has nothing to do holds it
-- while it sleeps. Enqueues try to share it (outbox_internal.wake_outside()); one that cannot sends
-- a notification, and one that can keeps it until its transaction ends. So no relay goes to sleep
-- while there is a transaction whose events it would not be told of.

CREATE TABLE outbox.relay (
    id           uuid        PRIMARY KEY,
    name         text        NOT NULL,
    version      text        NOT NULL,
    direct       boolean     NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz NOT NULL,
    identity     text,
    leased_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.relay IS 'processes of outbox-relay that serve this database';
COMMENT ON COLUMN outbox.relay.id IS 'random id of the process; see outbox.cursor.relay';
COMMENT ON COLUMN outbox.relay.name IS 'name that it was given, or host and process id';
COMMENT ON COLUMN outbox.relay.version IS 'version of the program';
COMMENT ON COLUMN outbox.relay.direct IS 'false if a pooler is in between, so that it cannot hold locks of sessions';
COMMENT ON COLUMN outbox.relay.started_at IS 'when it was first seen';
COMMENT ON COLUMN outbox.relay.leased_until IS 'until when it may serve destinations, unless it renews the lease';
COMMENT ON COLUMN outbox.relay.identity IS 'identity that it delivers with: its own, or that of the server; see outbox.installation';
COMMENT ON COLUMN outbox.relay.leased_at IS 'when it renewed the lease';

CREATE UNLOGGED TABLE outbox.relay_lease (
    number integer PRIMARY KEY,
    lease  bigint  NOT NULL
);
COMMENT ON TABLE outbox.relay_lease IS 'destinations that relays have taken since the server was recovered; a crash empties it';
COMMENT ON COLUMN outbox.relay_lease.number IS 'number of the destination';
COMMENT ON COLUMN outbox.relay_lease.lease IS 'token of the relay that took it last, see outbox.cursor.lease';

-- Not unlogged, which a standby could not read.
CREATE TABLE outbox.relay_status (
    number           integer     PRIMARY KEY,
    relay            uuid        NOT NULL,
    state            text        NOT NULL,
    state_since      timestamptz NOT NULL,
    delivered        bigint,
    failures         bigint,
    unsettled        bigint,
    held_keys        bigint,
    read_to          xid8,
    oldest_unsettled timestamptz,
    settled_position bigint,
    latency_p50      interval,
    latency_p99      interval,
    last_error       text,
    last_error_at    timestamptz,
    throttled        bigint,
    request_limit    double precision,
    suspects         bigint,
    lanes_down       bigint,
    round_trip_p50   interval,
    round_trip_p99   interval,
    client_queue     bigint,
    connects         bigint,
    disconnects      bigint,
    failing_since    timestamptz,
    next_attempt_at  timestamptz,
    latency_buckets  bigint[],
    latency_sum      double precision,
    reported_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.relay_status IS 'figures of relays outside the server; columns as in outbox.workers()';
COMMENT ON COLUMN outbox.relay_status.number IS 'number of the destination';
COMMENT ON COLUMN outbox.relay_status.relay IS 'process that reported them';
COMMENT ON COLUMN outbox.relay_status.reported_at IS 'when they were reported';

-- Returns the class of the advisory locks of relays outside the server.
CREATE FUNCTION outbox_internal.relay_locks()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT @{lock_class};
END;

-- Tells relays outside the server that an operator, or a change of a destination, wants their
-- attention.
CREATE FUNCTION outbox_internal.tell_relays()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_notify('outbox_wake', 'operate')
     WHERE EXISTS (SELECT FROM outbox.relay AS r WHERE r.leased_until > clock_timestamp() AND r.direct);
END;

-- ------------------------------------------------------------------------------------------------
-- Leases
-- ------------------------------------------------------------------------------------------------

-- Returns whether a destination has no relay outside the server: its relay is gone, or has not
-- renewed its lease. The lease of a relay inside the server does not count.
CREATE FUNCTION outbox_internal.is_free(cursor outbox.cursor)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NOT EXISTS (SELECT FROM outbox.relay AS r WHERE r.id = cursor.relay AND r.leased_until > clock_timestamp())
        OR cursor.relay_locks
           AND NOT EXISTS (SELECT FROM pg_locks AS l
                            WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                              AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                              AND l.classid::bigint = outbox_internal.relay_locks() AND l.objid::bigint = cursor.number);
END;

-- After the clock was set back, leases that seem to begin later begin now. So a relay that is gone keeps
-- its destinations no longer than its lease.
CREATE FUNCTION outbox_internal.bound_relays()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH ahead AS MATERIALIZED (
        SELECT r.id, clock_timestamp() AS now FROM outbox.relay AS r WHERE r.leased_at > clock_timestamp() FOR UPDATE SKIP LOCKED
    )
    UPDATE outbox.relay AS r SET leased_at = a.now, leased_until = a.now + (r.leased_until - r.leased_at)
      FROM ahead AS a
     WHERE r.id = a.id;
END;

-- Makes room for one more process of outbox-relay. Ids are random, so a role that may deliver could
-- make rows without end.
-- Errors: 53400 there are too many.
CREATE FUNCTION outbox_internal.make_room_for_relay()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT integer := 1000;
BEGIN
    IF (SELECT count(*) FROM outbox.relay) < most THEN
        RETURN;
    END IF;
    DELETE FROM outbox.relay AS r WHERE r.leased_until < clock_timestamp();
    IF (SELECT count(*) FROM outbox.relay) >= most THEN
        RAISE EXCEPTION 'too many processes of outbox-relay serve this database'
            USING ERRCODE = 'configuration_limit_exceeded', DETAIL = format('%s of them have a lease.', most),
                  HINT = 'outbox.relay shows them. Try again when their leases have ended.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.make_room_for_relay() IS 'limits the rows of outbox.relay';

-- Renews the lease of a relay outside the server, and returns what the relay has to know.
--
--   configuration  changes when settings or destinations may have changed
--   resting        the wake lock is held, by this session or by another relay that sleeps
--   holds_lock     by this session
--   free           numbers of destinations that no relay serves
--   lost           those of `held` whose token has changed
--   work           those of `idle` that have events after their frontier, or retries that are due
--   paused         those of `held` that an operator has paused
--   resumed        of each of `held`, outbox.cursor.resumed
--   copy           what the database is a copy of, so that nothing is delivered; NULL if it is none
--
-- `rest` asks for the wake lock; it must be false for a relay that holds it.
CREATE FUNCTION outbox_internal.relay_beat(
    id        uuid,
    name      text,
    version   text,
    lease     interval,
    direct    boolean,
    held      integer[],
    leases    bigint[],
    idle      integer[],
    frontiers text[],
    rest      boolean,
    identity  text DEFAULT '',
    OUT configuration text,
    OUT resting       boolean,
    OUT holds_lock    boolean,
    OUT free          integer[],
    OUT lost          integer[],
    OUT work          integer[],
    OUT paused        integer[],
    OUT resumed       bigint[],
    OUT copy          text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    now     CONSTANT timestamptz := clock_timestamp();
    sender  CONSTANT text := left(coalesce(nullif(relay_beat.identity, ''), outbox_internal.own_identity(), ''), 1000);
BEGIN
    PERFORM outbox_internal.check_lease_time(lease);
    PERFORM outbox_internal.bound_relays();
    IF NOT EXISTS (SELECT FROM outbox.relay AS r WHERE r.id = relay_beat.id) THEN
        PERFORM outbox_internal.make_room_for_relay();
    END IF;
    copy := outbox_internal.recognize(sender, external => true);
    INSERT INTO outbox.relay AS r (id, name, version, direct, leased_until, leased_at, identity)
    VALUES (relay_beat.id, left(relay_beat.name, 1000), left(relay_beat.version, 1000), relay_beat.direct, now + lease, now, sender)
        ON CONFLICT ON CONSTRAINT relay_pkey DO UPDATE
       SET leased_until = excluded.leased_until, leased_at = excluded.leased_at, direct = excluded.direct, identity = excluded.identity;
    holds_lock := rest AND pg_try_advisory_lock(outbox_internal.relay_locks(), @{wake_lock});
    resting := holds_lock OR rest AND EXISTS (
        SELECT FROM pg_locks AS l
         WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ExclusiveLock'
           AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
           AND l.classid::bigint = outbox_internal.relay_locks() AND l.objid = @{wake_lock});
    -- Statements from here on see what had committed when the lock was taken.
    SELECT md5(coalesce((SELECT string_agg(d::text, E'\n' ORDER BY d.number) FROM outbox_internal.relay_destinations() AS d), '')
               || coalesce((SELECT string_agg(s::text, E'\n' ORDER BY s.name) FROM outbox_internal.relay_settings() AS s), ''))
      INTO configuration;
    SELECT array_agg(c.number) FILTER (WHERE CASE WHEN c.relay = relay_beat.id THEN c.number <> ALL (held) -- it was given up
                                                  ELSE outbox_internal.is_free(c) END),
           array_agg(c.number) FILTER (WHERE c.paused AND c.number = ANY (held))
      INTO free, paused
      FROM outbox.cursor AS c
      JOIN outbox.destination AS d ON d.name = c.destination AND d.external;
    resumed := ARRAY(SELECT coalesce((SELECT c.resumed FROM outbox.cursor AS c WHERE c.number = h.number), 0)
                       FROM unnest(held) WITH ORDINALITY AS h(number, place) ORDER BY h.place);
    IF copy IS NOT NULL THEN
        free := NULL;
        lost := held;
        RETURN;
    END IF;
    SELECT array_agg(h.number) INTO lost
      FROM unnest(held, leases) AS h(number, lease)
     WHERE NOT EXISTS (SELECT FROM outbox.cursor AS c JOIN outbox.relay_lease AS t USING (number, lease)
                        WHERE c.number = h.number AND c.lease = h.lease AND c.relay = relay_beat.id);
    SELECT array_agg(i.number) INTO work
      FROM unnest(idle, frontiers) AS i(number, frontier)
     WHERE EXISTS (SELECT FROM outbox_internal.window_events(i.frontier::pg_snapshot, pg_current_snapshot()))
        OR EXISTS (SELECT FROM outbox.cursor AS c
                    WHERE c.number = i.number AND outbox_internal.next_retry(c.destination) <= 0);
END $$;

-- Gives up the wake lock of a relay outside the server, which ends its rest. Relays that rest
-- without it, because this one had it, are notified: from now on enqueues send no notification,
-- unless another relay takes it.
CREATE FUNCTION outbox_internal.relay_wake(id uuid)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_advisory_unlock(outbox_internal.relay_locks(), @{wake_lock});
    SELECT pg_notify('outbox_wake', 'rest')
     WHERE EXISTS (SELECT FROM outbox.relay AS r WHERE r.id <> $1 AND r.leased_until > clock_timestamp() AND r.direct);
END;

-- Locks a destination for the relay that has its token, and returns its row.
CREATE FUNCTION outbox_internal.relay_lock(number integer, lease bigint, OUT outcome text, OUT destination name)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE outbox.cursor, outbox.delivery IN ROW EXCLUSIVE MODE; -- as take_control() does
    SELECT 'ok', c.destination INTO outcome, destination
      FROM outbox.cursor AS c JOIN outbox.relay_lease AS t USING (number, lease)
     WHERE c.number = relay_lock.number AND c.lease = relay_lock.lease
       FOR UPDATE OF c SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE WHEN EXISTS (SELECT FROM outbox.cursor AS c JOIN outbox.relay_lease AS t USING (number, lease)
                                      WHERE c.number = relay_lock.number AND c.lease = relay_lock.lease)
                        THEN 'busy' ELSE 'lost' END;
    END IF;
END $$;

-- Makes a random token for a relay that takes a destination, so that an earlier relay can write no more, and
-- returns what the relay must know. The caller has the lock of the cursor.
-- Errors: 22004 a value of the cursor is missing.
CREATE FUNCTION outbox_internal.next_lease(
    INOUT number    integer,
    OUT lease           bigint,
    OUT done            text,
    OUT upto            text,
    OUT "position"      bigint,
    OUT foreign_cluster boolean,
    OUT live_after      bigint,
    OUT published       bigint,
    OUT failures        bigint,
    OUT failing_since   bigint,
    OUT resumed         bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing text;
BEGIN
    UPDATE outbox.cursor AS u SET lease = ('x' || right(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint
     WHERE u.number = next_lease.number
    RETURNING u.lease, u.done::text, u.upto::text, u.position,
              u.system_identifier <> (SELECT s.system_identifier FROM pg_control_system() AS s), greatest(u.live_after, 0),
              greatest(u.published, 0), greatest(u.failures, 0), outbox_internal.unix_micros(u.failing_since),
              u.resumed
         INTO lease, done, upto, "position", foreign_cluster, live_after, published, failures, failing_since, resumed;
    -- The owner of the table may have dropped its constraints.
    SELECT v.name INTO missing
      FROM outbox.cursor AS c
     CROSS JOIN LATERAL (VALUES ('done', c.done IS NULL), ('position', c.position IS NULL),
                                ('system_identifier', c.system_identifier IS NULL), ('paused', c.paused IS NULL),
                                ('resumed', c.resumed IS NULL)) AS v(name, is_missing)
     WHERE c.number = next_lease.number AND v.is_missing
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'null value in column "%" of outbox.cursor', missing USING ERRCODE = 'null_value_not_allowed';
    END IF;
    INSERT INTO outbox.relay_lease AS t (number, lease) VALUES (next_lease.number, next_lease.lease)
        ON CONFLICT ON CONSTRAINT relay_lease_pkey DO UPDATE SET lease = excluded.lease;
END $$;
COMMENT ON FUNCTION outbox_internal.next_lease(integer) IS 'makes a token of a destination, for the relay that takes it';

-- Makes a relay outside the server take a destination that is free, or that it serves already under
-- an older token. The token is NULL if it is not free. Error 55P03: another session has the lock,
-- usually that of an operator.
CREATE FUNCTION outbox_internal.relay_take(
    id     uuid,
    number integer,
    direct boolean,
    OUT lease           bigint,
    OUT done            text,
    OUT upto            text,
    OUT "position"      bigint,
    OUT foreign_cluster boolean,
    OUT live_after      bigint,
    OUT published       bigint,
    OUT failures        bigint,
    OUT failing_since   bigint,
    OUT resumed         bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before outbox.cursor;
    locked boolean := false;
    ours   boolean;
BEGIN
    IF NOT outbox_internal.is_at_home() -- outbox_internal.maintain() comes first
       OR outbox_internal.copy_of((SELECT coalesce(r.identity, '') FROM outbox.relay AS r WHERE r.id = relay_take.id), external => true) IS NOT NULL THEN
        RETURN;
    END IF;
    BEGIN
        SELECT c.* INTO before FROM outbox.cursor AS c WHERE c.number = relay_take.number FOR UPDATE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'destination number % is locked', number
            USING ERRCODE = 'lock_not_available', HINT = 'An operator has it; try again.';
    END;
    IF NOT FOUND OR NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = before.destination AND d.external)
       OR NOT EXISTS (SELECT FROM outbox.relay AS r WHERE r.id = relay_take.id AND r.leased_until > clock_timestamp()) THEN
        RETURN;
    END IF;
    ours := before.relay IS NOT DISTINCT FROM id;
    IF NOT ours AND NOT outbox_internal.is_free(before) THEN
        RETURN;
    END IF;
    IF direct AND NOT (ours AND before.relay_locks) THEN
        locked := pg_try_advisory_lock(outbox_internal.relay_locks(), number);
    END IF;
    UPDATE outbox.cursor AS u
       SET relay = relay_take.id, relay_locks = locked OR ours AND u.relay_locks,
           server = (SELECT d.server FROM outbox.destination AS d WHERE d.name = u.destination)
     WHERE u.number = relay_take.number;
    SELECT t.lease, t.done, t.upto, t.position, t.foreign_cluster, t.live_after, t.published, t.failures, t.failing_since, t.resumed
      INTO lease, done, upto, "position", foreign_cluster, live_after, published, failures, failing_since, resumed
      FROM outbox_internal.next_lease(relay_take.number) AS t;
END $$;

-- Returns what a relay outside the server must know before it reads: positions of events in
-- outbox.delivery that the cursor has not passed (all of them if `done` is NULL), keys that are
-- held, and whether it is paused.
CREATE FUNCTION outbox_internal.relay_begin(
    number integer,
    lease  bigint,
    done   text,
    OUT outcome   text,
    OUT recorded  bigint[],
    OUT held_keys text[],
    OUT paused    boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    target name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome <> 'ok' THEN
        RETURN;
    END IF;
    PERFORM outbox_internal.unlock_all(target);
    SELECT array_agg(d.position ORDER BY d.position) INTO recorded
      FROM outbox.delivery AS d
     WHERE d.destination = target AND (done IS NULL OR NOT pg_visible_in_snapshot(d.xid, done::pg_snapshot));
    held_keys := ARRAY(SELECT outbox_internal.held_keys(target, @{max_held_keys}));
    SELECT c.paused INTO paused FROM outbox.cursor AS c WHERE c.number = relay_begin.number;
END $$;

-- Returns the decisions of operators, for a relay outside the server.
CREATE FUNCTION outbox_internal.relay_follow(
    number integer,
    lease  bigint,
    OUT outcome   text,
    OUT held_keys text[],
    OUT paused    boolean,
    OUT resumed   bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    target name;
BEGIN
    SELECT c.destination, c.paused, c.resumed INTO target, paused, resumed
      FROM outbox.cursor AS c JOIN outbox.relay_lease AS t USING (number, lease)
     WHERE c.number = relay_follow.number AND c.lease = relay_follow.lease;
    outcome := CASE WHEN FOUND THEN 'ok' ELSE 'lost' END;
    held_keys := ARRAY(SELECT outbox_internal.held_keys(target, @{max_held_keys}));
END $$;

-- Gives up all destinations of a relay that ends, so that others need not wait.
CREATE FUNCTION outbox_internal.relay_leave(id uuid)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.cursor AS c SET relay = NULL, relay_locks = false WHERE c.relay = $1;
    DELETE FROM outbox.relay_status AS s WHERE s.relay = $1;
    -- This also removes rows of relays that ended without notice.
    DELETE FROM outbox.relay AS r WHERE r.id = $1 OR r.leased_until < clock_timestamp() - interval '1 day';
    DELETE FROM outbox.relay_lease AS t WHERE NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.number = t.number);
    SELECT outbox_internal.tell_relays();
END;

-- ------------------------------------------------------------------------------------------------
-- Reading
-- ------------------------------------------------------------------------------------------------

-- Sessions keep plans. One that was made while a segment was empty would scan it as a whole when it
-- is full, so functions that look into the log use its index, whatever the planner estimates; and
-- at the estimated cost of such a plan, JIT would compile it.

-- A relay must not look on from where it was before a crash: transactions that the crash undid are
-- replaced by others with the same numbers, which it would pass over.
CREATE FUNCTION outbox_internal.refuse_after_crash()
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the server has been recovered since the relay took the destination'
        USING ERRCODE = 'crash_shutdown', HINT = 'Take the destination again.';
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_after_crash() IS 'raises an error, for a relay that was at work before the server was recovered';

-- No event may leave before its transaction is on disk. With synchronous_commit = off it may be
-- visible before. Another commit or the WAL writer flushes it soon; otherwise the commit of this
-- transaction does.
CREATE FUNCTION outbox_internal.flush_commits()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seen CONSTANT pg_lsn := pg_current_wal_insert_lsn();
BEGIN
    -- Behind the header of a page the position is that of no record.
    FOR attempt IN 1..2 LOOP
        IF pg_current_wal_flush_lsn() >= seen - 40 THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    PERFORM set_config('synchronous_commit', 'local', true);
    PERFORM pg_logical_emit_message(true, 'pg_outbox', ''); -- a commit that writes nothing flushes nothing
END $$;
COMMENT ON FUNCTION outbox_internal.flush_commits() IS 'makes sure that what is visible will be on disk when the transaction has committed';

-- Looks for new events, for a relay outside the server: in the window from a snapshot to now, see
-- window.sql. The first row has only the first columns:
--
--   window_end     end of the window; NULL if the destination has to wait (outbox_internal.shards_hold())
--   found          number of its events, of all destinations; max_events + 1 if there are more, or if
--                  those that the destination selects have more than four megabytes
--   last_position  highest position of these
--
-- If `found` is at most max_events, the events that the destination selects follow, in order of
-- position. Otherwise relay_entries() tells where they are. Events that are in outbox.delivery are
-- not left out.
CREATE FUNCTION outbox_internal.relay_look(
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
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    since    CONSTANT pg_snapshot := from_snapshot;
    before    CONSTANT pg_snapshot := coalesce(settled, '1:1:');
    at_most   CONSTANT integer := max_events + 1;
    max_bytes CONSTANT integer := 4194304;
    now       CONSTANT pg_snapshot := pg_current_snapshot();
    returned bigint;
BEGIN
    PERFORM outbox_internal.refuse_after_crash() WHERE NOT EXISTS (SELECT FROM outbox.relay_lease AS t WHERE t.number = $1);
    IF outbox_internal.shards_hold((SELECT c.destination FROM outbox.cursor AS c WHERE c.number = $1)) THEN
        RETURN QUERY
        SELECT NULL, NULL::bigint, NULL::bigint,
               NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid,
               NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea;
        RETURN;
    END IF;
    RETURN QUERY
    WITH event AS MATERIALIZED (
        SELECT e.position, e.xid, e.occurred_at, e.event_id, e.version, e.schema_version, e.source_event_id, e.topic,
               e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key, e.content_type, e.headers, e.payload,
               e.topic LIKE ANY (patterns) AND (e.only_to IS NULL OR e.only_to = $1) AS selected
          FROM outbox_internal.window_events(since, now, settled => before, settled_position => $5) AS e
         LIMIT at_most
    ), size AS MATERIALIZED (
        SELECT CASE WHEN sum(octet_length(e.payload)) FILTER (WHERE e.selected) > max_bytes THEN at_most ELSE count(*) END AS found,
               max(e.position) AS last_position
          FROM event AS e
    )
    SELECT now::text, s.found, s.last_position,
           NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid,
           NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea
      FROM size AS s
    UNION ALL
    (SELECT NULL, NULL, NULL, e.position, e.xid, e.occurred_at, e.event_id, e.version, e.schema_version, e.source_event_id,
            e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key, e.content_type, e.headers, e.payload
       FROM event AS e
      WHERE e.selected AND (SELECT s.found FROM size AS s) < at_most
      ORDER BY e.position);
    GET DIAGNOSTICS returned = ROW_COUNT;
    IF returned > 1 THEN
        PERFORM outbox_internal.flush_commits();
    END IF;
END $$;

-- Looks for new events of many destinations that had none, for a relay outside the server. For each
-- frontier it looks at the window since then, and tells which of the destinations that stand there
-- select an event of it. If there are more than max_events, none is looked at, and all destinations
-- count. Pattern i is of the destination pattern_of[i].
CREATE FUNCTION outbox_internal.relay_probe(
    numbers    integer[],
    frontiers  text[],
    patterns   text[],
    pattern_of integer[],
    max_events integer)
RETURNS TABLE (
    frontier      text,
    window_end    text,
    found         bigint,
    last_position bigint,
    wanted        integer[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    at_most CONSTANT integer := max_events + 1;
BEGIN
    PERFORM outbox_internal.refuse_after_crash()
      FROM unnest(numbers) AS n(number)
     WHERE NOT EXISTS (SELECT FROM outbox.relay_lease AS t WHERE t.number = n.number);
    RETURN QUERY
    SELECT f.frontier, pg_current_snapshot()::text, w.found, w.last_position,
           ARRAY(SELECT d.number
                   FROM unnest(numbers, frontiers) AS d(number, frontier)
                  WHERE d.frontier = f.frontier
                    AND (w.found = at_most
                         OR EXISTS (SELECT FROM unnest(w.topics, w.only_to) AS e(topic, only_to)
                                      JOIN unnest(patterns, pattern_of) AS p(pattern, number)
                                        ON p.number = d.number AND e.topic LIKE p.pattern
                                     WHERE e.only_to IS NULL OR e.only_to = d.number)))
      FROM (SELECT DISTINCT u.frontier FROM unnest(frontiers) AS u(frontier)) AS f
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(t.events), 0)::bigint AS found, max(t.last_position) AS last_position,
                  array_agg(t.topic) AS topics, array_agg(t.only_to) AS only_to
             FROM (SELECT e.topic, e.only_to, count(*) AS events, max(e.position) AS last_position
                     FROM (SELECT w.topic, w.only_to, w.position
                             FROM outbox_internal.window_events(f.frontier::pg_snapshot, pg_current_snapshot()) AS w
                            LIMIT at_most) AS e
                    GROUP BY e.topic, e.only_to) AS t) AS w;
END $$;

-- Tells a relay outside the server where the events of a large window are. Of the next events above
-- a position, at most max_entries, it returns those that the destination selects, in order of
-- position. All events up to `last_position` have been looked at; `complete` says that the window
-- has no more.
--
-- A call reads those rows only whose positions lie in a range that has about max_entries events. The
-- index passes over the others.
CREATE FUNCTION outbox_internal.relay_entries(
    number           integer,
    patterns         text[],
    from_snapshot    text,
    window_end       text,
    settled          text,
    settled_position bigint,
    after            bigint,
    max_entries      integer,
    OUT segments      smallint[],
    OUT places        tid[],
    OUT positions     bigint[],
    OUT last_position bigint,
    OUT complete      boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET work_mem = '64MB'
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    since      pg_snapshot := from_snapshot;
    till       CONSTANT pg_snapshot := window_end;
    before     CONSTANT pg_snapshot := coalesce(settled, '1:1:');
    all_topics CONSTANT boolean := '%' = ANY (patterns);
    low        record;
    reach      bigint := max_entries;
    upto       bigint;
    found      bigint;
BEGIN
    PERFORM outbox_internal.refuse_after_crash() WHERE NOT EXISTS (SELECT FROM outbox.relay_lease AS t WHERE t.number = $1);
    -- The first transaction of each segment with an event above `after`: those before it are done with.
    SELECT min(e.xid::text::bigint) AS xid, min(e.position) AS position INTO low
      FROM ((SELECT e.xid, e.position FROM outbox.event_0 AS e
              WHERE e.xid >= pg_snapshot_xmax(since) AND e.position > after ORDER BY e.xid, e.position LIMIT 1)
            UNION ALL
            (SELECT e.xid, e.position FROM outbox.event_1 AS e
              WHERE e.xid >= pg_snapshot_xmax(since) AND e.position > after ORDER BY e.xid, e.position LIMIT 1)
            UNION ALL
            (SELECT e.xid, e.position FROM outbox.event_2 AS e
              WHERE e.xid >= pg_snapshot_xmax(since) AND e.position > after ORDER BY e.xid, e.position LIMIT 1)
            UNION ALL
            (SELECT e.xid, e.position FROM outbox.event_3 AS e
              WHERE e.xid >= pg_snapshot_xmax(since) AND e.position > after ORDER BY e.xid, e.position LIMIT 1)) AS e;
    IF low.xid IS NOT NULL THEN
        since := format('%s:%s:%s', pg_snapshot_xmin(since), low.xid, split_part(since::text, ':', 3));
    END IF;
    LOOP
        upto := coalesce(greatest(after, low.position - 1) + reach, 9223372036854775807);
        SELECT array_agg(e.segment) FILTER (WHERE e.selected), array_agg(e.place) FILTER (WHERE e.selected),
               array_agg(e.position) FILTER (WHERE e.selected), max(e.position), count(*)
          INTO segments, places, positions, last_position, found
          FROM (SELECT w.segment, w.place, w.position,
                       (all_topics OR w.topic LIKE ANY (patterns))
                       AND (w.only_to IS NULL OR w.only_to = relay_entries.number) AS selected
                  FROM outbox_internal.window_events(since, till, after, upto, settled => before,
                                                     settled_position => relay_entries.settled_position) AS w
                 ORDER BY w.position
                 LIMIT max_entries) AS e;
        complete := found < max_entries AND NOT EXISTS (
            SELECT FROM outbox_internal.window_events(since, till, upto, settled => before,
                                                      settled_position => relay_entries.settled_position));
        EXIT WHEN complete OR found > max_entries / 8;
        reach := reach * 8; -- few positions of the range belong to the window
    END LOOP;
    IF found < max_entries AND NOT complete THEN
        last_position := upto;
    END IF;
    IF positions IS NOT NULL THEN
        PERFORM outbox_internal.flush_commits();
    END IF;
END $$;

-- Returns the rows of the log at these places, which had these positions, in order of position.
-- Raises an error if one is not there: VACUUM FULL, CLUSTER and the like put rows at other places, and
-- the segment of a destination that does not hold the log may have been emptied.
CREATE FUNCTION outbox_internal.relay_rows(segment integer, places tid[], positions bigint[])
RETURNS SETOF outbox.event
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    found bigint;
BEGIN
    CASE segment
        WHEN 0 THEN RETURN QUERY SELECT e.* FROM outbox.event_0 AS e
                                  WHERE e.ctid = ANY (places) AND e.position IN (SELECT unnest(positions)) ORDER BY e.position;
        WHEN 1 THEN RETURN QUERY SELECT e.* FROM outbox.event_1 AS e
                                  WHERE e.ctid = ANY (places) AND e.position IN (SELECT unnest(positions)) ORDER BY e.position;
        WHEN 2 THEN RETURN QUERY SELECT e.* FROM outbox.event_2 AS e
                                  WHERE e.ctid = ANY (places) AND e.position IN (SELECT unnest(positions)) ORDER BY e.position;
        WHEN 3 THEN RETURN QUERY SELECT e.* FROM outbox.event_3 AS e
                                  WHERE e.ctid = ANY (places) AND e.position IN (SELECT unnest(positions)) ORDER BY e.position;
    END CASE;
    GET DIAGNOSTICS found = ROW_COUNT;
    IF found <> cardinality(positions) THEN
        RAISE EXCEPTION 'the log was rewritten while it was read' USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'The relay looks again where its events are.';
    END IF;
END $$;

-- ------------------------------------------------------------------------------------------------
-- Writing
-- ------------------------------------------------------------------------------------------------

-- Pauses a destination that has said that it is gone.
CREATE FUNCTION outbox_internal.relay_pause(number integer, lease bigint, why text)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome text;
    target  name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome = 'ok' THEN
        PERFORM outbox_internal.pause_gone(target, left(why, 1000));
    END IF;
    RETURN outcome;
END $$;

-- Saves the cursor of a relay with its counters, unless `done` is NULL, and its
-- receipts. Removes transactions that the cursor has passed: of line i the numbers from firsts[i]
-- up to lasts[i]. `durable`: it is on disk when the call returns.
CREATE FUNCTION outbox_internal.relay_save(
    number      integer,
    lease       bigint,
    done        text,
    upto        text,
    "position"  bigint,
    durable     boolean,
    event_ids   uuid[],
    positions   bigint[],
    times       double precision[],
    message_ids text[],
    firsts      bigint[],
    lasts       bigint[],
    published   bigint,
    failures    bigint,
    failing_since bigint)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT bigint := 9007199254740991; -- others add to these counters
    outcome text;
    target  name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome <> 'ok' THEN
        RETURN outcome;
    END IF;
    -- The receipt of an event must be there before the cursor passes the event.
    IF cardinality(positions) > 0 THEN
        PERFORM outbox_internal.add_receipts(target, event_ids, positions, times, message_ids);
    END IF;
    IF done IS NOT NULL THEN
        UPDATE outbox.cursor AS c
           SET done = relay_save.done::pg_snapshot, upto = relay_save.upto::pg_snapshot, position = relay_save.position,
               system_identifier = s.system_identifier, published = greatest(least(relay_save.published, most), 0), failures = greatest(least(relay_save.failures, most), 0),
               failing_since = to_timestamp(nullif(relay_save.failing_since, 0) / 1000000.0::double precision),
               saved_at = clock_timestamp()
          FROM pg_control_system() AS s
         WHERE c.number = relay_save.number;
        PERFORM outbox_internal.forget_transactions(target, (p.line - 1)::integer, p.first, p.last)
           FROM unnest(firsts, lasts) WITH ORDINALITY AS p(first, last, line)
          WHERE p.last > p.first;
        PERFORM outbox_internal.wake_keeper();
    END IF;
    PERFORM set_config('synchronous_commit', CASE WHEN durable THEN 'local' ELSE 'off' END, true);
    RETURN outcome;
END $$;

-- Records the outcome of events in trouble. Arrays of one kind
-- belong together. `settled_from` and `committed` are those of settle_retries(), or NULL. Returns
-- the keys that are free now, how often each of the refused events has failed, and which are dead
-- letters.
CREATE FUNCTION outbox_internal.relay_record(
    number             integer,
    lease              bigint,
    token              uuid,
    moved_xids         xid8[],
    moved_positions    bigint[],
    released_xids      xid8[],
    released_positions bigint[],
    released_errors    text[],
    released_steps     integer[],
    refused_xids       xid8[],
    refused_positions  bigint[],
    refused_errors     text[],
    refused_permanent  boolean[],
    parked_xids        xid8[],
    parked_positions   bigint[],
    confirmed          bigint[],
    unsent             bigint[],
    keys               text[],
    settled_from       bigint[],
    committed          bigint[],
    OUT outcome          text,
    OUT freed_keys       text[],
    OUT failed_positions bigint[],
    OUT failed_attempts  integer[],
    OUT failed_dead      boolean[],
    OUT next_retry       double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    target name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome <> 'ok' THEN
        RETURN;
    END IF;
    -- First those that may have ended meanwhile and were read from the log once more.
    IF cardinality(moved_positions) > 0 THEN
        PERFORM outbox_internal.move_events(target, token, moved_xids, moved_positions);
    END IF;
    IF cardinality(released_positions) > 0 THEN
        PERFORM outbox_internal.release_events(target, released_xids, released_positions, released_errors, released_steps);
    END IF;
    IF cardinality(refused_positions) > 0 THEN
        SELECT array_agg(f.position), array_agg(f.attempts), array_agg(f.state = 'DEAD')
          INTO failed_positions, failed_attempts, failed_dead
          FROM outbox_internal.fail_events(target, refused_xids, refused_positions, refused_errors, refused_permanent) AS f;
    END IF;
    IF cardinality(parked_positions) > 0 THEN
        PERFORM outbox_internal.park_events(target, parked_xids, parked_positions);
    END IF;
    IF cardinality(confirmed) > 0 THEN
        PERFORM outbox_internal.settle_events(target, token, confirmed);
    END IF;
    IF cardinality(unsent) > 0 THEN
        PERFORM outbox_internal.unlock_events(target, token, unsent);
    END IF;
    freed_keys := ARRAY(SELECT outbox_internal.promote(target, keys));
    IF committed IS NOT NULL THEN
        PERFORM outbox_internal.settle_retries(target, settled_from, committed);
    END IF;
    next_retry := outbox_internal.next_retry(target);
    PERFORM set_config('synchronous_commit', 'off', true);
END $$;

-- Takes retries that are due, for a relay outside the server. With `hurry`, up to that many events
-- that waited for the end of an outage become due first. The first row has only the first columns;
-- `hurried` is the number of events that became due.
CREATE FUNCTION outbox_internal.relay_retries(
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
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
    locked  record;
    target  name;
    hastened bigint := 0;
    claimed outbox.delivery[];
BEGIN
    SELECT * INTO locked FROM outbox_internal.relay_lock($1, $2);
    IF locked.outcome <> 'ok' THEN
        RETURN QUERY SELECT locked.outcome, NULL::double precision, NULL::bigint, NULL::integer, NULL::boolean, NULL::boolean,
           NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid,
           NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea;
        RETURN;
    END IF;
    target := locked.destination;
    IF hurry > 0 THEN
        hastened := outbox_internal.hurry_events(target, hurry);
    END IF;
    SELECT array_agg(d) INTO claimed FROM outbox_internal.claim_due(target, token, NULL, max_events, max_bytes) AS d;
    RETURN QUERY
    SELECT locked.outcome, outbox_internal.next_retry(target), hastened, NULL::integer, NULL::boolean, NULL::boolean,
           NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::uuid, NULL::bigint, NULL::integer, NULL::uuid,
           NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::bytea
    UNION ALL
    (SELECT NULL, NULL, NULL, d.attempts,
            d.attempts > 0 OR d.ordering_key <> '' AND coalesce(
                (SELECT before.attempts > 0 FROM outbox.delivery AS before
                  WHERE before.destination = target AND before.ordering_key = d.ordering_key
                    AND before.ordering_key <> '' AND before.state <> 'DISCARDED'
                    AND before.position < d.position ORDER BY before.position DESC LIMIT 1), false),
            d.operation IS NOT NULL,
            d.position, d.xid, d.occurred_at, d.event_id, d.version, d.schema_version, d.source_event_id,
            d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key, d.content_type, d.headers, d.payload
       FROM unnest(claimed) AS d
      ORDER BY d.position);
    PERFORM set_config('synchronous_commit', 'off', true);
END $$;

-- ------------------------------------------------------------------------------------------------
-- Exactly once: see transaction.sql
-- ------------------------------------------------------------------------------------------------

-- Applies what a destination knows of its transactions, for a relay outside the server.
CREATE FUNCTION outbox_internal.relay_recover(
    number    integer,
    lease     bigint,
    done      text,
    committed bigint[],
    OUT outcome   text,
    OUT doubtful  bigint,
    OUT unknown   bigint,
    OUT recorded  bigint[],
    OUT held_keys text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome <> 'ok' THEN
        RETURN;
    END IF;
    SELECT r.doubtful, r.unknown INTO doubtful, unknown FROM outbox_internal.recover_transactions(target, committed) AS r;
    SELECT b.recorded, b.held_keys INTO recorded, held_keys FROM outbox_internal.relay_begin(number, lease, done) AS b;
    recorded := ARRAY(SELECT p FROM unnest(recorded) AS p
                      UNION SELECT p FROM outbox_internal.delivered_positions(target) AS p
                      ORDER BY 1);
END $$;

-- The row is on disk when the call returns, also on the disks of synchronous standbys.
CREATE FUNCTION outbox_internal.relay_note(
    number     integer,
    lease      bigint,
    line       integer,
    transaction_number bigint,
    of_log     text,
    of_retries text)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome text;
    target  name;
BEGIN
    SELECT l.outcome, l.destination INTO outcome, target FROM outbox_internal.relay_lock(number, lease) AS l;
    IF outcome = 'ok' THEN
        PERFORM outbox_internal.note_transaction(target, line, transaction_number, of_log::int8multirange, of_retries::int8multirange);
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN outcome;
END $$;
COMMENT ON FUNCTION outbox_internal.relay_note(integer, bigint, integer, bigint, text, text) IS
    'records which events a transaction has, for a relay';

-- ------------------------------------------------------------------------------------------------
-- State
-- ------------------------------------------------------------------------------------------------

-- Refuses figures that no relay can have. Views compute with them, for all destinations together.
-- Times have the range of outbox.event.occurred_at, and counts are exact in JSON.
-- Errors: 22023 a figure is missing or out of range.
CREATE FUNCTION outbox_internal.check_figures(figures jsonb)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first   CONSTANT timestamptz := '0001-01-01 00:00:00+00';
    last    CONSTANT timestamptz := '9999-12-31 23:59:59+00';
    longest CONSTANT interval    := interval '10000 years';
    most    CONSTANT bigint      := 9007199254740991;
    wrong   record;
BEGIN
    SELECT f.number, v.name INTO wrong
      FROM jsonb_populate_recordset(NULL::outbox.relay_status, figures) AS f
     CROSS JOIN LATERAL (VALUES
               ('number', f.number IS NOT NULL),
               ('state', coalesce(f.state IN ('starting', 'idle', 'delivering', 'throttled', 'backing off', 'paused',
                                              'misconfigured', 'stopped'), false)),
               ('state_since', coalesce(f.state_since BETWEEN first AND last, false)),
               ('oldest_unsettled', f.oldest_unsettled BETWEEN first AND last),
               ('last_error_at', f.last_error_at BETWEEN first AND last),
               ('failing_since', f.failing_since BETWEEN first AND last),
               ('next_attempt_at', f.next_attempt_at BETWEEN first AND last),
               ('delivered', f.delivered BETWEEN 0 AND most),
               ('failures', f.failures BETWEEN 0 AND most),
               ('unsettled', f.unsettled BETWEEN 0 AND most),
               ('held_keys', f.held_keys BETWEEN 0 AND most),
               ('settled_position', f.settled_position >= 0),
               ('throttled', f.throttled BETWEEN 0 AND most),
               ('request_limit', f.request_limit BETWEEN 0 AND most),
               ('suspects', f.suspects BETWEEN 0 AND most),
               ('lanes_down', f.lanes_down BETWEEN 0 AND most),
               ('client_queue', f.client_queue BETWEEN 0 AND most),
               ('connects', f.connects BETWEEN 0 AND most),
               ('disconnects', f.disconnects BETWEEN 0 AND most),
               ('latency_p50', f.latency_p50 BETWEEN interval '0' AND longest),
               ('latency_p99', f.latency_p99 BETWEEN interval '0' AND longest),
               ('round_trip_p50', f.round_trip_p50 BETWEEN interval '0' AND longest),
               ('round_trip_p99', f.round_trip_p99 BETWEEN interval '0' AND longest),
               ('latency_buckets', outbox_internal.are_buckets(f.latency_buckets) AND f.latency_buckets[cardinality(f.latency_buckets)] <= most),
               ('latency_sum', f.latency_sum BETWEEN 0 AND 1e24),
               ('last_error', octet_length(f.last_error) <= 10000)
           ) AS v(name, is_right)
     WHERE NOT v.is_right
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'invalid report of a relay'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('"%s" of destination number %s is missing or out of range.', wrong.name, coalesce(wrong.number::text, '(null)')),
                  HINT = 'Use an outbox-relay of the same version as pg_outbox.';
    END IF;
END $$;

-- `figures` is an array of objects with the columns of outbox.relay_status. Those of destinations that the
-- relay does not serve are left out.
-- Errors: 22023 a figure is missing or out of range.
CREATE FUNCTION outbox_internal.relay_report(id uuid, figures jsonb)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.check_figures(figures);
    SELECT set_config('synchronous_commit', 'off', true);
    DELETE FROM outbox.relay_status AS s
     USING jsonb_populate_recordset(NULL::outbox.relay_status, figures) AS f, outbox.cursor AS c
     WHERE s.number = f.number AND c.number = f.number AND c.relay = $1;
    INSERT INTO outbox.relay_status
    SELECT f.number, $1, f.state, f.state_since, f.delivered, f.failures, f.unsettled, f.held_keys, f.read_to, f.oldest_unsettled,
           f.settled_position, f.latency_p50, f.latency_p99, f.last_error, f.last_error_at, f.throttled, f.request_limit,
           f.suspects, f.lanes_down, f.round_trip_p50, f.round_trip_p99, f.client_queue, f.connects, f.disconnects,
           f.failing_since, f.next_attempt_at, f.latency_buckets, f.latency_sum, clock_timestamp()
      FROM jsonb_populate_recordset(NULL::outbox.relay_status, figures) AS f
     WHERE EXISTS (SELECT FROM outbox.cursor AS c WHERE c.number = f.number AND c.relay = $1)
        ON CONFLICT DO NOTHING;
END;
COMMENT ON FUNCTION outbox_internal.relay_report(uuid, jsonb) IS 'stores figures of a relay outside the server';

-- Does what is due for the log where no keeper does, and returns the seconds until it wants to be
-- called again; NULL if it need not be called. Several relays may call it.
CREATE FUNCTION outbox_internal.relay_maintain()
RETURNS double precision
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.maintain();
END;
