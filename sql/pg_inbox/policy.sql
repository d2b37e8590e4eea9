-- Policy of a consumer for events that fail.

-- Returns the pause after this number of failed attempts: a random part of retry_base, then of
-- twice that, and so on up to retry_max.
CREATE FUNCTION inbox_internal.retry_delay(policy inbox.consumer, attempts integer)
RETURNS interval
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT make_interval(secs => random() * least(extract(epoch FROM (policy).retry_max)::double precision,
                                                  extract(epoch FROM (policy).retry_base)::double precision
                                                      * 2::double precision ^ least(attempts - 1, 60)));
END;

-- Returns when a failed event may be tried again. An event that seems to have failed later than now is due:
-- the clock has been set back, and the event must not wait for as long.
CREATE FUNCTION inbox_internal.due_at(failure inbox.waiting)
RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN CASE WHEN (failure).last_failed_at > clock_timestamp() THEN '-infinity' ELSE (failure).next_attempt_at END;

-- Changes when failed events of a consumer are retried, and what a dead letter does to its key.
-- Values that are NULL stay as they are. Waiting events keep the time of their next attempt.
CREATE FUNCTION inbox.set_policy(
    consumer       text,
    max_attempts   integer  DEFAULT NULL,
    retry_base     interval DEFAULT NULL,
    retry_max      interval DEFAULT NULL,
    on_dead_letter text     DEFAULT NULL,
    caller         inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer := inbox_internal.own_consumer(consumer, caller);
    before inbox.consumer;
    policy inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    SELECT c.* INTO STRICT before FROM inbox.consumer AS c WHERE c.id = own_id FOR NO KEY UPDATE;
    policy := before;
    policy.max_attempts := coalesce($2, before.max_attempts);
    policy.retry_base := coalesce($3, before.retry_base);
    policy.retry_max := coalesce($4, before.retry_max);
    policy.on_dead_letter := coalesce($5, before.on_dead_letter);
    IF policy = before THEN
        RETURN;
    END IF;
    IF policy.max_attempts < 1 THEN
        RAISE EXCEPTION 'max_attempts must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    ELSIF policy.retry_base <= interval '0' THEN
        RAISE EXCEPTION 'retry_base must be greater than zero' USING ERRCODE = 'invalid_parameter_value';
    ELSIF policy.retry_max < policy.retry_base THEN
        RAISE EXCEPTION 'retry_max must be at least retry_base'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('They would be %s and %s.', policy.retry_max, policy.retry_base);
    ELSIF policy.on_dead_letter NOT IN ('release', 'block') THEN
        RAISE EXCEPTION 'on_dead_letter must be "release" or "block", not "%"', policy.on_dead_letter
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    UPDATE inbox.consumer AS c
       SET max_attempts = policy.max_attempts, retry_base = policy.retry_base,
           retry_max = policy.retry_max, on_dead_letter = policy.on_dead_letter
     WHERE c.id = own_id;
    INSERT INTO inbox.operation (role, consumer, operation, details)
        VALUES (caller, consumer, 'set policy', jsonb_strip_nulls(jsonb_build_object(
                    'max_attempts', $2, 'retry_base', $3, 'retry_max', $4, 'on_dead_letter', $5)));
    PERFORM inbox_internal.wake('messages'); -- blocked messages may go on
END $$;
