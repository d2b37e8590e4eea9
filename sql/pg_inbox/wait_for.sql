-- Read your writes: waits until one's own changes elsewhere have arrived here. The session polls,
-- at first after 2 ms, later every 100 ms, and holds a snapshot meanwhile.

-- Returns when the wait must end. Refuses arguments and transactions that make no sense.
CREATE FUNCTION inbox_internal.wait_until(timeout interval)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF timeout IS NULL OR timeout < interval '0' OR timeout > interval '1 hour' THEN
        RAISE EXCEPTION 'timeout must be between zero and one hour' USING ERRCODE = 'invalid_parameter_value';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a % transaction cannot see what it waits for',
                        upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Use READ COMMITTED, or wait before the transaction begins.';
    END IF;
    RETURN clock_timestamp() + timeout;
END $$;

-- Sleeps before the next look, for inbox.wait_for(). Returns false if it is too late.
CREATE FUNCTION inbox_internal.wait_on(pause double precision, deadline timestamptz)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remaining double precision := extract(epoch FROM deadline - clock_timestamp());
BEGIN
    IF remaining <= 0 THEN
        RETURN false;
    END IF;
    PERFORM pg_sleep(least(pause, remaining));
    RETURN true;
END $$;

-- Waits until a row of a projection has this version or a higher one, or was removed with one.
-- Returns false if that did not happen before the timeout. The key has a member for each column of
-- the projection's key.
CREATE FUNCTION inbox.wait_for(
    projection     regclass,
    key            jsonb,
    version        anycompatible,
    version_column text DEFAULT 'version',
    timeout        interval DEFAULT '5 seconds')
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    deadline  timestamptz := inbox_internal.wait_until(timeout);
    pause     double precision := 0.002;
    data      jsonb;
    keys      text[];
    p         record;
    k         record;
    statement text;
BEGIN
    IF jsonb_typeof(key) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'key must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    data := key || jsonb_build_object(version_column, version);
    keys := ARRAY(SELECT jsonb_object_keys(key));
    p := inbox_internal.row_parts(projection, keys, version_column, data, true);
    k := inbox_internal.key_parts(projection, keys, version_column, data);
    statement := concat('SELECT EXISTS (SELECT FROM ', projection, ' AS stored WHERE ', p.same_key, ' AND ', p.older, ' IS FALSE) '
                        'OR EXISTS (SELECT FROM pg_catalog.jsonb_to_recordset(inbox_internal.tombstones(', projection::oid, ', ', k.hash, ')) '
                                   'AS removed(key pg_catalog.jsonb, version pg_catalog.text) '
                                   'WHERE ', k.was_removed, ' AND ', k.was_older, ' IS FALSE) FROM ', p.given);
    WHILE NOT inbox_internal.run(statement, data) LOOP
        IF NOT inbox_internal.wait_on(pause, deadline) THEN
            RETURN false;
        END IF;
        pause := least(pause * 1.5, 0.1);
    END LOOP;
    RETURN true;
END $$;

-- Waits until a consumer has applied an event. Returns false if that did not happen before the
-- timeout. Error 55000: the event is a dead letter, and waits for a decision.
CREATE FUNCTION inbox.wait_for(consumer text, event_id uuid, timeout interval DEFAULT '5 seconds')
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    deadline timestamptz := inbox_internal.wait_until(timeout);
    pause    double precision := 0.002;
    known_id integer := (SELECT c.id FROM inbox.consumer AS c WHERE c.name = consumer);
BEGIN
    IF known_id IS NULL THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer
            USING ERRCODE = 'undefined_object', HINT = 'The view inbox.status lists all consumers.';
    END IF;
    LOOP
        IF EXISTS (SELECT FROM inbox.dead_message AS d
                    WHERE d.consumer_id = known_id AND d.event_id = wait_for.event_id) THEN
            RAISE EXCEPTION 'event % is a dead letter of consumer "%"', event_id, consumer
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'See inbox.dead_letter, inbox.redrive() and inbox.discard().';
        ELSIF inbox_internal.applied_at(known_id, event_id) IS NOT NULL THEN
            RETURN true;
        ELSIF NOT inbox_internal.wait_on(pause, deadline) THEN
            RETURN false;
        END IF;
        pause := least(pause * 1.5, 0.1);
    END LOOP;
END $$;
