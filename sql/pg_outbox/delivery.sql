-- Events in trouble at a destination. A healthy event never gets here.
--
--   PENDING     waits behind an earlier event of its ordering key, or for its turn in a replay
--   RETRY       has failed and waits for its next attempt
--   DEAD        is a dead letter: it has used up its attempts or was refused for good, and waits for
--               a decision
--   DISCARDED   an operator gave it up; the row is kept until the cursor has passed the event
--
-- A row is a full copy of its event, so that the log can move on. While the cursor has not passed the
-- event, the row stands for it: the relay passes it over in the log. So a replay, which may be
-- cancelled, inserts only events that are settled. Its rows have an `operation`, and no figure of what
-- is to be delivered counts them. Rows hold their key: while a key
-- has a PENDING or RETRY row (or, with on_dead_letter 'block', a DEAD one), its later events are
-- put behind it. Only the first such row of a key has a next_retry_at. A transaction that removes a
-- row gives the next one its turn (outbox_internal.promote). All of this happens under the lock of
-- the destination's row of outbox.cursor, so that no event is put behind a row that is just being
-- removed.
--
-- The columns of the event come first, as in outbox.event; extension/log/log.hpp relies on that.
CREATE TABLE outbox.delivery (
    LIKE outbox.event INCLUDING COMMENTS,
    destination     name        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('PENDING', 'RETRY', 'DEAD', 'DISCARDED')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_retry_at   timestamptz,
    lock_token      uuid,
    locked_at       timestamptz,
    locked_until    timestamptz,
    last_error      text,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    operation       bigint,
    PRIMARY KEY (destination, position)
);
COMMENT ON TABLE outbox.delivery IS 'events in trouble: retries, dead letters, and events that wait behind them';
COMMENT ON COLUMN outbox.delivery.destination IS 'the destination of the event';
COMMENT ON COLUMN outbox.delivery.state IS 'PENDING, RETRY, DEAD or DISCARDED';
COMMENT ON COLUMN outbox.delivery.attempts IS 'number of times that the destination refused it';
COMMENT ON COLUMN outbox.delivery.next_retry_at IS 'not sent before this time; null if it waits for another event';
COMMENT ON COLUMN outbox.delivery.lock_token IS 'token under which it is being delivered, or null';
COMMENT ON COLUMN outbox.delivery.locked_at IS 'when lock_token was set';
COMMENT ON COLUMN outbox.delivery.locked_until IS 'end of a fetcher''s lease; null if a relay delivers it';
COMMENT ON COLUMN outbox.delivery.last_error IS 'error of the last attempt';
COMMENT ON COLUMN outbox.delivery.first_failed_at IS 'when the first attempt failed';
COMMENT ON COLUMN outbox.delivery.last_failed_at IS 'when the last attempt failed';
COMMENT ON COLUMN outbox.delivery.operation IS 'id of the replay whose copy it is, of an event that the destination had settled before; null if it is the event itself';

CREATE INDEX delivery_key ON outbox.delivery (destination, ordering_key, position)
    WHERE state <> 'DISCARDED' AND ordering_key <> '';
COMMENT ON INDEX outbox.delivery_key IS 'finds what holds a key';
CREATE INDEX delivery_due ON outbox.delivery (destination, next_retry_at)
    WHERE next_retry_at IS NOT NULL;
COMMENT ON INDEX outbox.delivery_due IS 'finds what is due';

CREATE INDEX delivery_failed ON outbox.delivery (state, destination) WHERE state IN ('DEAD', 'RETRY');
COMMENT ON INDEX outbox.delivery_failed IS 'counts retries and dead letters';
CREATE INDEX delivery_open ON outbox.delivery (destination, position)
    WHERE state IN ('PENDING', 'RETRY') AND operation IS NULL;
COMMENT ON INDEX outbox.delivery_open IS 'finds the oldest event in trouble, and counts them';
CREATE INDEX delivery_operation ON outbox.delivery (operation) WHERE operation IS NOT NULL;
COMMENT ON INDEX outbox.delivery_operation IS 'finds the events of a replay';

-- This table grows and shrinks faster than its statistics, and a plan made while it was empty lives
-- on in a relay. So statements also name their rows by destination and `position = ANY (...)`, even
-- where a join implies that. Otherwise a plan may read all rows of the destination.

-- Returns an option that is a duration.
CREATE FUNCTION outbox_internal.option_as_interval(destination name, option text)
RETURNS interval
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- As in all options, a number without a unit is in milliseconds.
    SELECT (CASE WHEN value ~ E'^\\s*\\d+\\s*$' THEN value || 'ms' ELSE value END)::interval
      FROM outbox_internal.destination_option(destination, option) AS value;
END;

-- Returns the pause of a failed event before its next attempt: exponential back-off with full
-- jitter.
CREATE FUNCTION outbox_internal.retry_delay(destination name, attempts integer)
RETURNS interval
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- Computed in seconds, because an interval would overflow before least() limits it.
    SELECT make_interval(secs => random() * least(
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_max'))::double precision,
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_base'))::double precision
                   * 2::double precision ^ least(greatest(attempts, 1) - 1, 60)));
END;

-- Makes retries due that are further away than the longest pause: the clock was ahead when they failed, and
-- has been set back. So no retry waits longer than that.
CREATE FUNCTION outbox_internal.bound_retries(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    latest timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = $1 AND d.next_retry_at > now) THEN
        RETURN;
    END IF;
    latest := now + outbox_internal.option_as_interval(destination, 'retry_max');
    UPDATE outbox.delivery AS d
       SET next_retry_at = now
     WHERE d.destination = $1
       AND d.position = ANY (ARRAY(SELECT f.position FROM outbox.delivery AS f
                                    WHERE f.destination = $1 AND f.next_retry_at > latest
                                    LIMIT 1000 FOR UPDATE SKIP LOCKED));
END $$;

-- Returns the seconds until the next retry of a destination is due; NULL if there is none. One that
-- bound_retries() will make due counts as due.
CREATE FUNCTION outbox_internal.next_retry(destination name)
RETURNS double precision
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    first  timestamptz;
    latest timestamptz;
BEGIN
    SELECT d.next_retry_at INTO first
      FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.next_retry_at IS NOT NULL AND d.lock_token IS NULL
     ORDER BY d.next_retry_at
     LIMIT 1;
    IF first > now THEN
        latest := now + outbox_internal.option_as_interval(destination, 'retry_max');
        IF NOT EXISTS (SELECT FROM outbox.delivery AS d
                        WHERE d.destination = $1 AND d.next_retry_at > latest AND d.lock_token IS NULL) THEN
            RETURN least(extract(epoch FROM first - now), 3600);
        END IF;
    END IF;
    RETURN CASE WHEN first IS NOT NULL THEN 0 END;
END $$;

-- Returns the first row of outbox.delivery that holds a key, which is the one whose turn it is. No
-- row if the key is free.
CREATE FUNCTION outbox_internal.first_of_key(destination name, ordering_key text)
RETURNS SETOF outbox.delivery
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.*
      FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.ordering_key = $2 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
       -- In a subquery the option is looked up once, not for each dead letter of the key.
       AND (d.state <> 'DEAD' OR (SELECT outbox_internal.destination_option($1, 'on_dead_letter')) = 'block')
     ORDER BY d.position
     LIMIT 1;
END;

-- Gives the first row of each key its turn, and returns the keys that no row holds any more. Relays
-- know no key that is unreadable: see readable.sql.
CREATE FUNCTION outbox_internal.promote(destination name, keys text[])
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET next_retry_at = clock_timestamp()
      FROM (SELECT DISTINCT key FROM unnest(keys) AS key WHERE key <> '') AS k,
           LATERAL outbox_internal.first_of_key($1, k.key) AS first
     WHERE d.destination = $1 AND d.position = first.position
       AND first.state = 'PENDING' AND first.next_retry_at IS NULL;
    -- Most keys of a long line are the same.
    WITH touched AS MATERIALIZED (SELECT DISTINCT key FROM unnest(keys) AS key WHERE key <> '')
    SELECT key
      FROM touched
     WHERE NOT EXISTS (SELECT FROM outbox_internal.first_of_key($1, key)) AND outbox_internal.is_readable(key);
END;

-- Returns the first row of outbox.delivery of each key that is held. It skips from key to key in
-- the index, however many rows each has.
CREATE FUNCTION outbox_internal.first_of_keys(
    destination name,
    at_most     integer,
    OUT ordering_key  text,
    OUT "position"    bigint,
    OUT state         text,
    OUT next_retry_at timestamptz)
RETURNS SETOF record
LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH RECURSIVE dead_letter AS MATERIALIZED (
        SELECT outbox_internal.destination_option($1, 'on_dead_letter') = 'block' AS holds
    ), key AS (
        (SELECT d.ordering_key, d.position, d.state, d.next_retry_at
           FROM outbox.delivery AS d
          WHERE d.destination = $1 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
            AND (d.state <> 'DEAD' OR (SELECT holds FROM dead_letter))
          ORDER BY d.ordering_key, d.position LIMIT 1)
        UNION ALL
        SELECT next.*
          FROM key
         CROSS JOIN LATERAL (SELECT d.ordering_key, d.position, d.state, d.next_retry_at
                               FROM outbox.delivery AS d
                              WHERE d.destination = $1 AND d.ordering_key > key.ordering_key
                                AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
                                AND (d.state <> 'DEAD' OR (SELECT holds FROM dead_letter))
                              ORDER BY d.ordering_key, d.position LIMIT 1) AS next
    )
    SELECT key.ordering_key, key.position, key.state, key.next_retry_at FROM key LIMIT at_most;
END;

-- Returns the keys that rows of outbox.delivery hold.
CREATE FUNCTION outbox_internal.blocked_keys(destination name, at_most integer)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT first.ordering_key FROM outbox_internal.first_of_keys($1, at_most) AS first;
END;

-- Returns these keys as relays know them: without unreadable ones.
CREATE FUNCTION outbox_internal.held_keys(destination name, at_most integer)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT key FROM outbox_internal.blocked_keys($1, at_most) AS key WHERE outbox_internal.is_readable(key);
END;

-- Records that a destination refused events, as retries or dead letters. Those that are not here
-- yet are copied from the log.
CREATE FUNCTION outbox_internal.fail_events(
    destination name,
    xids        xid8[],
    positions   bigint[],
    errors      text[],
    permanent   boolean[],
    OUT "position" bigint,
    OUT state    text,
    OUT attempts integer)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    max_attempts CONSTANT integer NOT NULL := outbox_internal.destination_option(destination, 'max_attempts');
    now          CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO outbox.delivery
    SELECT e.*, $1, 'PENDING'
      FROM unnest(xids, positions) AS failed(xid, place)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = failed.xid AND e.position = failed.place LIMIT 1) AS e
        ON CONFLICT DO NOTHING;

    RETURN QUERY
    UPDATE outbox.delivery AS d
       SET attempts = d.attempts + 1,
           state = CASE WHEN dies THEN 'DEAD' ELSE 'RETRY' END,
           next_retry_at = CASE WHEN NOT dies THEN now + outbox_internal.retry_delay($1, d.attempts + 1) END,
           lock_token = NULL,
           locked_at = NULL,
           locked_until = NULL,
           last_error = failed.error,
           first_failed_at = coalesce(d.first_failed_at, now),
           last_failed_at = now
      FROM (SELECT f.place, f.error, f.permanent OR b.attempts + 1 >= max_attempts AS dies
              FROM unnest(positions, errors, permanent) AS f(place, error, permanent)
              JOIN outbox.delivery AS b ON b.destination = $1 AND b.position = f.place
             WHERE b.state IN ('PENDING', 'RETRY') AND b.position = ANY (positions)) AS failed
     WHERE d.destination = $1 AND d.position = failed.place AND d.position = ANY (positions)
    RETURNING d.position, d.state, d.attempts;

    -- A relay promotes the keys that it knows, but no unreadable one.
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM outbox_internal.promote($1, array_agg(d.ordering_key))
           FROM outbox.delivery AS d
          WHERE d.destination = $1 AND d.position = ANY (positions) AND NOT outbox_internal.is_readable(d.ordering_key);
    END IF;
END $$;

-- Returns those of some events that have no form in UTF-8, as fail_events() takes them. `xids` is NULL
-- for events in outbox.delivery.
CREATE FUNCTION outbox_internal.unreadable_events(
    destination     name,
    INOUT xids      xid8[],
    INOUT positions bigint[],
    OUT errors      text[],
    OUT permanent   boolean[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF getdatabaseencoding() = 'UTF8' THEN
        positions := NULL;
        RETURN;
    END IF;
    SELECT array_agg(e.xid), array_agg(e.position), array_agg(e.fault), array_agg(true) INTO xids, positions, errors, permanent
      FROM unnest($2, $3) AS u(xid, place)
     CROSS JOIN LATERAL (
        SELECT f.xid, f.position, outbox_internal.fault_of(f.topic, f.aggregate_type, f.aggregate_id, f.event_type, f.ordering_key,
                                                           f.content_type, f.headers) AS fault
          FROM (SELECT d.xid, d.position, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key,
                       d.content_type, d.headers
                  FROM outbox.delivery AS d WHERE d.destination = $1 AND d.position = u.place
                UNION ALL
                SELECT l.xid, l.position, l.topic, l.aggregate_type, l.aggregate_id, l.event_type, l.ordering_key,
                       l.content_type, l.headers
                  FROM outbox.event AS l WHERE l.xid = u.xid AND l.position = u.place
                 LIMIT 1) AS f) AS e
     WHERE e.fault IS NOT NULL;
END $$;

-- Puts these events behind others of their keys.
CREATE FUNCTION outbox_internal.park_events(destination name, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.delivery
    SELECT e.*, $1, 'PENDING'
      FROM unnest(xids, positions) AS parked(xid, place)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = parked.xid AND e.position = parked.place LIMIT 1) AS e
        ON CONFLICT DO NOTHING;
END;

-- Makes events wait without counting an attempt: their destination or lane is down, or they were in
-- the way of others. With `steps`, an event waits as long as one that was refused that number of
-- times.
CREATE FUNCTION outbox_internal.release_events(
    destination name,
    xids        xid8[],
    positions   bigint[],
    errors      text[],
    steps       integer[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.park_events($1, xids, positions);
    UPDATE outbox.delivery AS d
       SET state = 'RETRY',
           next_retry_at = clock_timestamp() + outbox_internal.retry_delay($1, released.step),
           lock_token = NULL,
           locked_at = NULL,
           locked_until = NULL,
           last_error = released.error,
           first_failed_at = coalesce(d.first_failed_at, clock_timestamp()),
           last_failed_at = clock_timestamp()
      FROM unnest(positions, errors, steps) AS released(place, error, step)
     WHERE d.destination = $1 AND d.position = released.place AND d.position = ANY (positions)
       AND d.state IN ('PENDING', 'RETRY');
END;

-- Takes over events that are being delivered: they are in outbox.delivery from now on, claimed
-- under the token.
CREATE FUNCTION outbox_internal.move_events(destination name, token uuid, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.park_events($1, xids, positions);
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = clock_timestamp(), locked_until = NULL,
           -- An event without a key waits for no other. It is due at once if the relay dies before
           -- it knows the outcome.
           next_retry_at = CASE WHEN d.ordering_key = '' THEN clock_timestamp() ELSE d.next_retry_at END
     WHERE d.destination = $1 AND d.position = ANY (positions);
END;

-- Makes events due that waited for a destination or lane that works again. Returns their number, at
-- most at_most.
CREATE FUNCTION outbox_internal.hurry_events(destination name, at_most integer)
RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH hurried AS (
        UPDATE outbox.delivery AS d
           SET next_retry_at = clock_timestamp()
          FROM (SELECT w.position
                  FROM outbox.delivery AS w
                 WHERE w.destination = $1 AND w.next_retry_at > clock_timestamp() AND w.state = 'RETRY'
                   AND w.attempts = 0
                 LIMIT at_most) AS waiting
         WHERE d.destination = $1 AND d.position = waiting.position
        RETURNING 1
    )
    SELECT count(*) FROM hurried;
END;

-- Returns the positions of due events. These are rows whose turn has come, each with the rows right
-- behind it, up to a row that is being delivered: an earlier one may have come back by a replay or
-- after a crash. A relay takes failed rows alone, and only a few rows of a key after a dead letter:
-- otherwise it would take the waiting rows and give them back again and again. Returns at most
-- max_bytes of payload, but at least one row; NULL if there is none. Locks the rows that are first.
CREATE FUNCTION outbox_internal.due_events(
    destination  name,
    for_relay    boolean,
    max_events   integer,
    max_bytes    bigint)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now   timestamptz;
    taken bigint[];
BEGIN
    PERFORM outbox_internal.bound_retries(destination);
    now := clock_timestamp();
    WITH due AS (
        SELECT d.position, d.ordering_key, d.next_retry_at, coalesce(octet_length(d.payload), 0) AS bytes,
               CASE WHEN d.ordering_key = '' OR for_relay AND d.attempts > 0 THEN 0
                    WHEN for_relay AND (SELECT b.attempts > 0
                              FROM outbox.delivery AS b
                             WHERE b.destination = $1 AND b.ordering_key = d.ordering_key AND b.position < d.position
                               AND b.state <> 'DISCARDED' AND b.ordering_key <> ''
                             ORDER BY b.position DESC
                             LIMIT 1) THEN 10
                    ELSE 100 END AS followers
          FROM outbox.delivery AS d
         WHERE d.destination = $1 AND d.next_retry_at <= now
           AND (d.lock_token IS NULL OR d.locked_until < now)
           AND (d.ordering_key = ''
                OR d.position = (SELECT f.position FROM outbox_internal.first_of_key($1, d.ordering_key) AS f))
         ORDER BY d.next_retry_at, d.position
         LIMIT max_events
           FOR UPDATE OF d SKIP LOCKED
    ), wanted AS (
        SELECT due.position, due.bytes, due.next_retry_at, due.position AS head FROM due
        UNION ALL
        SELECT follower.position, follower.bytes, due.next_retry_at, due.position
          FROM due
         CROSS JOIN LATERAL (
            SELECT f.position, coalesce(octet_length(f.payload), 0) AS bytes,
                   bool_or(f.state <> 'PENDING' OR f.lock_token IS NOT NULL AND coalesce(f.locked_until >= now, true))
                       OVER (ORDER BY f.position) AS stopped
              FROM (SELECT b.*
                      FROM outbox.delivery AS b
                     WHERE b.destination = $1 AND b.ordering_key = due.ordering_key AND b.position > due.position
                       AND b.state <> 'DISCARDED' AND b.ordering_key <> ''
                     ORDER BY b.position
                     LIMIT due.followers) AS f) AS follower
         WHERE NOT follower.stopped
    ), numbered AS (
        SELECT w.position, row_number() OVER w AS number, sum(w.bytes) OVER w AS bytes
          FROM wanted AS w
        WINDOW w AS (ORDER BY w.next_retry_at, w.head, w.position)
    )
    SELECT array_agg(n.position) INTO taken
      FROM numbered AS n
     WHERE n.number = 1 OR n.number <= max_events AND n.bytes <= max_bytes;
    RETURN taken;
END $$;

-- Takes due events in trouble under a token.
CREATE FUNCTION outbox_internal.claim_due(
    destination  name,
    token        uuid,
    locked_until timestamptz,
    max_events   integer,
    max_bytes    bigint)
RETURNS SETOF outbox.delivery
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    taken CONSTANT bigint[]    := outbox_internal.due_events(destination, locked_until IS NULL, max_events, max_bytes);
BEGIN
    IF taken IS NULL THEN
        RETURN;
    END IF;

    RETURN QUERY
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = now, locked_until = $3
     WHERE d.destination = $1 AND d.position = ANY (taken) AND d.state IN ('PENDING', 'RETRY')
       AND (d.lock_token IS NULL OR d.locked_until < now)
    RETURNING d.*;
END $$;

-- Removes events from outbox.delivery that were claimed under the token and that the destination
-- has confirmed. Returns their keys, to be promoted.
CREATE FUNCTION outbox_internal.settle_events(destination name, token uuid, positions bigint[])
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token
    RETURNING d.ordering_key;
END;

-- Gives back rows that an earlier relay had claimed, and gives the first row of each key its turn.
-- A changed option may have changed which rows hold a key.
CREATE FUNCTION outbox_internal.unlock_all(destination name)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.lock_token IS NOT NULL;
    UPDATE outbox.delivery AS d
       SET next_retry_at = clock_timestamp()
      FROM outbox_internal.first_of_keys($1, @{max_held_keys}) AS first
     WHERE d.destination = $1 AND d.position = first.position
       AND first.state = 'PENDING' AND first.next_retry_at IS NULL;
END;

-- Gives back events that were claimed and not sent.
CREATE FUNCTION outbox_internal.unlock_events(destination name, token uuid, positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token;
END;
