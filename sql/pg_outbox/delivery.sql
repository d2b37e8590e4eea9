-- Events in trouble at a destination. A healthy event never gets here.
--
--   PENDING     waits behind an earlier event of its ordering key, or for its turn in a replay
--   RELEASED    has failed and waits for its next attempt
--   DEAD        has used up its attempts or was refused for good: a dead letter, waits for a person
--   DISCARDED   a person decided against it; kept until the cursor has passed it
--
-- A row is a full copy of its event, so that the log can move on. Rows hold their key: while a key
-- has a PENDING or RELEASED row (or, with on_dead_letter 'block', a DEAD one), its later events are put
-- behind it. Of each key only the first such row has a next_retry_at; whoever takes a row away gives
-- the next one its turn (outbox_internal.promote). All of this happens under the lock of the destination's
-- row of outbox.cursor, so that nobody puts an event behind a row that is just being taken away.
--
-- The columns of the event come first, as in outbox.event: extension/log/log.hpp counts on it.
CREATE TABLE outbox.delivery (
    LIKE outbox.event INCLUDING COMMENTS,
    destination     name        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('PENDING', 'RELEASED', 'DEAD', 'DISCARDED')),
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
COMMENT ON TABLE outbox.delivery IS 'events in trouble: retries, dead letters, and what waits behind them';
COMMENT ON COLUMN outbox.delivery.destination IS 'where the event is to be delivered';
COMMENT ON COLUMN outbox.delivery.state IS 'PENDING, RELEASED, DEAD or DISCARDED';
COMMENT ON COLUMN outbox.delivery.attempts IS 'how often the destination refused it';
COMMENT ON COLUMN outbox.delivery.next_retry_at IS 'not sent before; NULL: not before something else is settled';
COMMENT ON COLUMN outbox.delivery.lock_token IS 'it is being delivered under this token; NULL: it is not';
COMMENT ON COLUMN outbox.delivery.locked_at IS 'since when';
COMMENT ON COLUMN outbox.delivery.locked_until IS 'then the lease of a fetcher ends; NULL: a relay has it';
COMMENT ON COLUMN outbox.delivery.last_error IS 'why the last attempt failed';
COMMENT ON COLUMN outbox.delivery.first_failed_at IS 'when the first attempt failed';
COMMENT ON COLUMN outbox.delivery.last_failed_at IS 'when the last attempt failed';
COMMENT ON COLUMN outbox.delivery.operation IS 'the replay that put it here; see outbox.operation';

CREATE INDEX delivery_key ON outbox.delivery (destination, ordering_key, position)
    WHERE state <> 'DISCARDED' AND ordering_key <> '';
COMMENT ON INDEX outbox.delivery_key IS 'finds what holds a key';
CREATE INDEX delivery_due ON outbox.delivery (destination, next_retry_at)
    WHERE next_retry_at IS NOT NULL;
COMMENT ON INDEX outbox.delivery_due IS 'finds what is due';

CREATE INDEX delivery_failed ON outbox.delivery (state, destination) WHERE state IN ('DEAD', 'RELEASED');
COMMENT ON INDEX outbox.delivery_failed IS 'counts retries and dead letters';
CREATE INDEX delivery_operation ON outbox.delivery (operation) WHERE operation IS NOT NULL;
COMMENT ON INDEX outbox.delivery_operation IS 'finds the events of a replay';

SELECT pg_extension_config_dump('outbox.delivery', '');

-- This table grows and shrinks faster than its statistics follow, and a plan made while it was empty lives
-- on in a relay. So statements name the rows they mean by destination and `position = ANY (...)`, although
-- a join says as much: else they may be found by looking at all rows of the destination.

-- An option of a destination, or else the setting of the same name.
CREATE FUNCTION outbox_internal.destination_option(destination name, option text)
RETURNS text
LANGUAGE c STABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_destination_option';
COMMENT ON FUNCTION outbox_internal.destination_option(name, text) IS 'an option of a destination, or its default';

CREATE FUNCTION outbox_internal.option_as_interval(destination name, option text)
RETURNS interval
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- As in all options, a bare number is milliseconds.
    SELECT (CASE WHEN value ~ '^\s*\d+\s*$' THEN value || 'ms' ELSE value END)::interval
      FROM outbox_internal.destination_option(destination, option) AS value;
END;
COMMENT ON FUNCTION outbox_internal.option_as_interval(name, text) IS 'an option that is a duration';

-- How long a failed event waits for its next attempt: exponential back-off with full jitter.
CREATE FUNCTION outbox_internal.retry_delay(destination name, attempts integer)
RETURNS interval
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- In seconds: an interval would overflow before least() looks at it.
    SELECT make_interval(secs => random() * least(
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_max'))::double precision,
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_base'))::double precision
                   * 2::double precision ^ least(greatest(attempts, 1) - 1, 60)));
END;
COMMENT ON FUNCTION outbox_internal.retry_delay(name, integer) IS 'how long a failed event waits for its next attempt';

-- The first row that holds the key: the one whose turn it is. No row: the key is free.
CREATE FUNCTION outbox_internal.first_of_key(destination name, ordering_key text)
RETURNS SETOF outbox.delivery
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.*
      FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.ordering_key = $2 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
       -- In a subquery it is looked up once, not for each dead letter of the key.
       AND (d.state <> 'DEAD' OR (SELECT outbox_internal.destination_option($1, 'on_dead_letter')) = 'block')
     ORDER BY d.position
     LIMIT 1;
END;
COMMENT ON FUNCTION outbox_internal.first_of_key(name, text) IS 'the row of outbox.delivery that holds a key';

-- Gives the first row of each key its turn, and returns the keys that nothing holds any more.
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
    SELECT DISTINCT key
      FROM unnest(keys) AS key
     WHERE key <> '' AND NOT EXISTS (SELECT FROM outbox_internal.first_of_key($1, key));
END;
COMMENT ON FUNCTION outbox_internal.promote(name, text[]) IS 'gives what waits behind settled events its turn';

-- Keys that something holds.
CREATE FUNCTION outbox_internal.held_keys(destination name, at_most integer)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE key AS (  -- from key to key by the index, however many rows each has
        (SELECT d.ordering_key
           FROM outbox.delivery AS d
          WHERE d.destination = $1 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
          ORDER BY d.ordering_key LIMIT 1)
        UNION ALL
        SELECT (SELECT d.ordering_key
                  FROM outbox.delivery AS d
                 WHERE d.destination = $1 AND d.ordering_key > key.ordering_key
                   AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
                 ORDER BY d.ordering_key LIMIT 1)
          FROM key
         WHERE key.ordering_key IS NOT NULL
    )
    SELECT key.ordering_key
      FROM key
     WHERE key.ordering_key IS NOT NULL
       AND EXISTS (SELECT FROM outbox_internal.first_of_key($1, key.ordering_key))
     LIMIT at_most;
END;
COMMENT ON FUNCTION outbox_internal.held_keys(name, integer) IS 'the keys that events in trouble hold';

-- The destination refused these events. Those that are not here yet are copied from the log.
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
           state = CASE WHEN dies THEN 'DEAD' ELSE 'RELEASED' END,
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
             WHERE b.state IN ('PENDING', 'RELEASED') AND b.position = ANY (positions)) AS failed
     WHERE d.destination = $1 AND d.position = failed.place AND d.position = ANY (positions)
    RETURNING d.position, d.state, d.attempts;
END $$;
COMMENT ON FUNCTION outbox_internal.fail_events(name, xid8[], bigint[], text[], boolean[]) IS
    'makes refused events retries or dead letters';

-- These events wait behind others of their keys.
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
COMMENT ON FUNCTION outbox_internal.park_events(name, xid8[], bigint[]) IS
    'puts events behind others of their keys';

-- These events have to wait, through no fault of their own: what they are for is down, or they are in the
-- way of others. No attempt is charged. `steps`: they wait as an event does that was refused so often.
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
       SET state = 'RELEASED',
           next_retry_at = clock_timestamp() + outbox_internal.retry_delay($1, released.step),
           lock_token = NULL,
           locked_at = NULL,
           locked_until = NULL,
           last_error = released.error,
           first_failed_at = coalesce(d.first_failed_at, clock_timestamp()),
           last_failed_at = clock_timestamp()
      FROM unnest(positions, errors, steps) AS released(place, error, step)
     WHERE d.destination = $1 AND d.position = released.place AND d.position = ANY (positions)
       AND d.state IN ('PENDING', 'RELEASED');
END;
COMMENT ON FUNCTION outbox_internal.release_events(name, xid8[], bigint[], text[], integer[]) IS
    'makes events wait that are not at fault';

-- These events are on their way, and stand here from now on, claimed under the token.
CREATE FUNCTION outbox_internal.move_events(destination name, token uuid, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.park_events($1, xids, positions);
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = clock_timestamp(), locked_until = NULL,
           -- Without a key it waits for nothing, should the relay die before it hears of it.
           next_retry_at = CASE WHEN d.ordering_key = '' THEN clock_timestamp() ELSE d.next_retry_at END
     WHERE d.destination = $1 AND d.position = ANY (positions);
END;
COMMENT ON FUNCTION outbox_internal.move_events(name, uuid, xid8[], bigint[]) IS
    'takes events over that are on their way';

-- What was down works again: events that waited for it are due. Returns how many, at most so many.
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
                 WHERE w.destination = $1 AND w.next_retry_at > clock_timestamp() AND w.state = 'RELEASED'
                   AND w.attempts = 0
                 LIMIT at_most) AS waiting
         WHERE d.destination = $1 AND d.position = waiting.position
        RETURNING 1
    )
    SELECT count(*) FROM hurried;
END;
COMMENT ON FUNCTION outbox_internal.hurry_events(name, integer) IS
    'makes events due that waited for what was down';

-- Takes what is due under a token: rows whose turn has come, each with what waits right behind it, up to
-- a row that is on its way: one before it may have come back, by a replay or after a crash. A relay takes what
-- has failed alone, and only a few of a key whose event before is a dead letter: what waits behind would be
-- taken and given back again and again. No more than max_bytes of payload altogether, but at least one row.
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
    taken bigint[];
BEGIN
    WITH due AS (
        SELECT d.position, d.ordering_key, d.next_retry_at, coalesce(octet_length(d.payload), 0) AS bytes,
               CASE WHEN d.ordering_key = '' OR $3 IS NULL AND d.attempts > 0 THEN 0
                    WHEN $3 IS NULL AND (SELECT b.attempts > 0
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

    RETURN QUERY
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = now, locked_until = $3
     WHERE d.destination = $1 AND d.position = ANY (taken) AND d.state IN ('PENDING', 'RELEASED')
       AND (d.lock_token IS NULL OR d.locked_until < now)
    RETURNING d.*;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_due(name, uuid, timestamptz, integer, bigint) IS
    'takes events in trouble that are due under a token';

-- The destination has confirmed these events, which were claimed under the token. Returns their keys,
-- which are to be promoted.
CREATE FUNCTION outbox_internal.settle_events(destination name, token uuid, positions bigint[])
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token
    RETURNING d.ordering_key;
END;
COMMENT ON FUNCTION outbox_internal.settle_events(name, uuid, bigint[]) IS
    'takes confirmed events out of outbox.delivery';

-- Gives back what an earlier relay had claimed, and sees to it that no key waits for nothing: an option
-- may have changed what holds one.
CREATE FUNCTION outbox_internal.unlock_all(destination name)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.lock_token IS NOT NULL;
    SELECT outbox_internal.promote($1, ARRAY(SELECT outbox_internal.held_keys($1, 100000)));
END;
COMMENT ON FUNCTION outbox_internal.unlock_all(name) IS 'what is in trouble, as a relay finds it when it starts';

-- Gives back what was claimed and not sent.
CREATE FUNCTION outbox_internal.unlock_events(destination name, token uuid, positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token;
END;
COMMENT ON FUNCTION outbox_internal.unlock_events(name, uuid, bigint[]) IS 'gives back what was claimed and not sent';
