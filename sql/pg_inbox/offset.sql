-- Offsets of consumers in the subscriptions that they read. An offset is saved in the transaction
-- of the effects, so it is never ahead of them.

-- Saves the offset of a consumer, unless a later one is saved. Returns false, and writes nothing,
-- if the saved offset is the same or later, or if it has been reset and the consumer has not gone
-- there yet. `incarnation` is by what the source recognizes the topic, stream or queue that
-- message_id belongs to: one that was made again begins its ids again.
CREATE FUNCTION inbox.save_offset(
    consumer     text,
    subscription text,
    message_id   text,
    publish_time timestamptz,
    updated_by   text DEFAULT NULL,
    incarnation  text DEFAULT '',
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer;
    saver  text    := coalesce(updated_by, concat_ws(' ', nullif(current_setting('application_name'), ''),
                                                     pg_backend_pid()));
    lag    numeric := CASE WHEN isfinite(publish_time) THEN 1000 * extract(epoch FROM clock_timestamp() - publish_time) END;
BEGIN
    IF publish_time IS NULL THEN
        RAISE EXCEPTION 'publish_time must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF lag IS NULL THEN
        RAISE EXCEPTION 'publish_time must not be infinite' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, to_regrole(quote_ident(c.role)), 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    BEGIN
        LOCK TABLE inbox.offset_reset IN ROW SHARE MODE NOWAIT;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN false;
    END;
    INSERT INTO inbox.consumer_offset AS o
               (consumer_id, subscription, slot, message_id, publish_time, lag_ms, updated_by, incarnation)
        SELECT own_id, save_offset.subscription, hashtext(saver) & 31, save_offset.message_id,
               save_offset.publish_time, greatest(lag, 0), saver, coalesce(save_offset.incarnation, '')
         WHERE NOT EXISTS (SELECT FROM inbox.offset_reset AS r
                            WHERE r.consumer_id = own_id AND r.subscription = save_offset.subscription)
           AND NOT EXISTS (SELECT FROM inbox.consumer_offset AS saved
                            WHERE saved.consumer_id = own_id
                              AND saved.subscription = save_offset.subscription
                              AND saved.publish_time >= save_offset.publish_time)
        ON CONFLICT ON CONSTRAINT consumer_offset_pkey DO UPDATE
           SET message_id = excluded.message_id,
               publish_time = excluded.publish_time,
               lag_ms = excluded.lag_ms,
               updated_at = excluded.updated_at,
               updated_by = excluded.updated_by,
               incarnation = excluded.incarnation
         WHERE o.publish_time < excluded.publish_time;
    RETURN FOUND;
END $$;

-- Returns the offset of a consumer, or its pending reset; NULLs if none was saved yet. If reset_id
-- is not NULL, message_id and publish_time say where the consumer must go: seek there, then call
-- confirm_reset().
CREATE FUNCTION inbox.load_offset(
    consumer     text,
    subscription text,
    caller       inbox_internal.caller DEFAULT CURRENT_USER,
    OUT message_id   text,
    OUT publish_time timestamptz,
    OUT lag_ms       bigint,
    OUT updated_at   timestamptz,
    OUT updated_by   text,
    OUT reset_id     bigint,
    OUT incarnation  text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.own_consumer(consumer, caller);
BEGIN
    SELECT coalesce(r.message_id, o.message_id), coalesce(r.publish_time, o.publish_time),
           o.lag_ms, o.updated_at, o.updated_by, r.reset_id, CASE WHEN r.reset_id IS NULL THEN o.incarnation END
      INTO load_offset.message_id, load_offset.publish_time,
           load_offset.lag_ms, load_offset.updated_at, load_offset.updated_by, load_offset.reset_id, load_offset.incarnation
      FROM (SELECT * FROM inbox.consumer_offset AS saved
             WHERE saved.consumer_id = own_id AND saved.subscription = load_offset.subscription
             ORDER BY saved.publish_time DESC LIMIT 1) AS o
      FULL JOIN (SELECT * FROM inbox.offset_reset AS pending
                  WHERE pending.consumer_id = own_id
                    AND pending.subscription = load_offset.subscription) AS r ON true;
END $$;

-- Makes a consumer continue from another time. The consumer does so when its process learns of it;
-- until then nothing is saved. A later reset replaces one that was not carried out. Events that
-- were applied already are not applied again: see inbox.forget().
CREATE FUNCTION inbox.reset_offset(
    consumer     text,
    subscription text,
    publish_time timestamptz,
    why          text,
    message_id   text DEFAULT '',
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.take_control(consumer);
    new_id   bigint;
BEGIN
    IF publish_time IS NULL THEN
        RAISE EXCEPTION 'publish_time must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    LOCK TABLE inbox.offset_reset IN EXCLUSIVE MODE;
    new_id := inbox_internal.note_operation(caller, consumer, 'reset offset', why, jsonb_build_object(
        'subscription', subscription,
        'from', (SELECT jsonb_build_object('publish_time', o.publish_time, 'message_id', o.message_id)
                   FROM inbox.consumer_offset AS o
                  WHERE o.consumer_id = own_id AND o.subscription = reset_offset.subscription
                  ORDER BY o.publish_time DESC LIMIT 1),
        'to', jsonb_build_object('publish_time', publish_time, 'message_id', message_id)));
    INSERT INTO inbox.offset_reset AS r (consumer_id, subscription, reset_id, message_id, publish_time)
        VALUES (own_id, reset_offset.subscription, new_id, coalesce(reset_offset.message_id, ''),
                reset_offset.publish_time)
        ON CONFLICT ON CONSTRAINT offset_reset_pkey DO UPDATE
           SET reset_id = excluded.reset_id,
               message_id = excluded.message_id,
               publish_time = excluded.publish_time;
    RETURN new_id;
END $$;

-- Confirms that a consumer has carried out a reset. Call it when the consumer has gone where the
-- reset sent it: from here on its offset is saved again. Returns false if there is no such reset,
-- or if a later one has replaced it.
CREATE FUNCTION inbox.confirm_reset(
    consumer     text,
    subscription text,
    reset_id     bigint,
    updated_by   text DEFAULT NULL,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id integer := inbox_internal.own_consumer(consumer, caller);
    reset  inbox.offset_reset;
BEGIN
    DELETE FROM inbox.offset_reset AS r
     WHERE r.consumer_id = own_id AND r.subscription = confirm_reset.subscription
       AND r.reset_id = confirm_reset.reset_id
     RETURNING r.* INTO reset;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM inbox.consumer_offset AS o
     WHERE o.consumer_id = own_id AND o.subscription = confirm_reset.subscription;
    PERFORM inbox.save_offset(consumer, subscription, reset.message_id, reset.publish_time, updated_by, caller => caller);
    RETURN true;
END $$;

-- Records an operation, its role and its reason.
CREATE FUNCTION inbox_internal.note_operation(caller inbox_internal.caller, consumer text, operation text, why text, details jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_id bigint;
BEGIN
    IF coalesce(btrim(why), '') = '' THEN
        RAISE EXCEPTION 'why must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'It is kept in inbox.operation.';
    END IF;
    INSERT INTO inbox.operation (role, consumer, operation, details, why)
        VALUES (caller, note_operation.consumer, note_operation.operation, note_operation.details,
                note_operation.why)
        RETURNING id INTO new_id;
    RETURN new_id;
END $$;

CREATE VIEW inbox.operations AS
SELECT o.id, o.at, o.role, o.consumer, o.operation,
       inbox_internal.for_client(o.details) AS details,
       inbox_internal.for_client(o.why) AS why
  FROM inbox.operation AS o;
COMMENT ON VIEW inbox.operations IS
    'inbox.operation, with texts escaped that have no form in the client_encoding of the session';

CREATE VIEW inbox.offsets AS
SELECT c.name AS consumer,
       inbox_internal.for_client(subscription) AS subscription,
       inbox_internal.for_client(o.message_id) AS message_id,
       o.publish_time,
       o.lag_ms,
       o.updated_at,
       inbox_internal.for_client(o.updated_by) AS updated_by,
       clock_timestamp() - o.updated_at AS idle,
       r.reset_id IS NOT NULL AS reset_pending,
       inbox_internal.for_client(o.incarnation) AS incarnation
  FROM (SELECT DISTINCT ON (saved.consumer_id, saved.subscription) saved.*
          FROM inbox.consumer_offset AS saved
         ORDER BY saved.consumer_id, saved.subscription, saved.publish_time DESC) AS o
  FULL JOIN inbox.offset_reset AS r USING (consumer_id, subscription)
  JOIN inbox.consumer AS c ON c.id = consumer_id;
COMMENT ON VIEW inbox.offsets IS 'offsets of consumers';
COMMENT ON COLUMN inbox.offsets.lag_ms IS 'milliseconds from publish_time to when it was saved';
COMMENT ON COLUMN inbox.offsets.idle IS 'time since the last save';
COMMENT ON COLUMN inbox.offsets.reset_pending IS 'true if it was reset, and the consumer has not gone there yet';
COMMENT ON COLUMN inbox.offsets.incarnation IS 'by what the source recognizes the topic, stream or queue that message_id belongs to';
