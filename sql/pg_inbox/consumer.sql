-- Consumers are made by the first message, subscription or event. A process that claims messages must
-- not make one, because a misspelt name would claim nothing for ever.

-- Returns the consumer as which the caller acts; an error if it does not exist.
CREATE FUNCTION inbox_internal.known_consumer(consumer text, caller inbox_internal.caller)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF consumer <> '' AND NOT EXISTS (SELECT FROM inbox.consumer AS c WHERE c.name = known_consumer.consumer) THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer
            USING ERRCODE = 'undefined_object',
                  HINT = 'The view inbox.status lists all consumers. A new one is made by its first message, or by inbox.create_consumer().';
    END IF;
    RETURN inbox_internal.own_consumer(consumer, caller);
END $$;

-- Makes a consumer of the calling role; returns false if it exists already.
CREATE FUNCTION inbox.create_consumer(consumer text, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_new CONSTANT boolean := NOT EXISTS (SELECT FROM inbox.consumer AS c WHERE c.name = create_consumer.consumer);
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    PERFORM inbox_internal.own_consumer(consumer, caller);
    RETURN is_new;
END $$;

-- Drops a consumer: its offsets, figures and remembered ids, and with discard_messages its messages
-- and dead letters. What is sent to it later makes a new one.
--
-- Transactions that store messages wait until this one ends. It does not wait long for those that
-- have stored or processed some, because others would wait behind it.
CREATE FUNCTION inbox.drop_consumer(
    consumer         text,
    why              text,
    discard_messages boolean DEFAULT false,
    caller           inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
DECLARE
    known_id CONSTANT integer := inbox_internal.take_control(consumer);
    dropped  record;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    SELECT * INTO STRICT dropped FROM inbox.status AS s WHERE s.consumer = drop_consumer.consumer;
    IF dropped.subscriptions > 0 THEN
        RAISE EXCEPTION 'consumer "%" has subscriptions', consumer
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'End them with inbox.unsubscribe().';
    ELSIF dropped.claimed > 0 THEN
        RAISE EXCEPTION 'messages of consumer "%" are claimed', consumer
            USING ERRCODE = 'object_in_use',
                  HINT = 'Stop its processes, and wait until their leases have ended.';
    ELSIF (dropped.pending_at_most > 0 OR dropped.dead_letters > 0) AND discard_messages IS NOT TRUE THEN
        RAISE EXCEPTION 'messages of consumer "%" are not processed', consumer
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('There are at most %s messages, and %s dead letters.', dropped.pending_at_most, dropped.dead_letters),
                  HINT = 'Use discard_messages => true to remove them for good.';
    END IF;
    PERFORM inbox_internal.note_operation(caller, consumer, 'drop', why, jsonb_build_object(
        'role', dropped.role, 'messages_at_most', dropped.pending_at_most, 'dead_letters', dropped.dead_letters));
    DELETE FROM inbox.processed AS p WHERE p.consumer_id = known_id;
    LOCK TABLE inbox.message IN SHARE ROW EXCLUSIVE MODE;
    IF discard_messages IS NOT TRUE AND EXISTS (SELECT FROM inbox.message AS m WHERE m.consumer_id = known_id) THEN
        RAISE EXCEPTION 'messages of consumer "%" have just come', consumer
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'First stop its senders.';
    END IF;
    DELETE FROM inbox.claimed AS c WHERE c.consumer_id = known_id;
    DELETE FROM inbox.message AS m WHERE m.consumer_id = known_id;
    DELETE FROM inbox.waiting AS w WHERE w.consumer_id = known_id;
    DELETE FROM inbox.dead_message AS d WHERE d.consumer_id = known_id;
    DELETE FROM inbox.progress AS p WHERE p.consumer_id = known_id;
    DELETE FROM inbox.progress_change AS c WHERE c.consumer_id = known_id;
    DELETE FROM inbox.consumer AS c WHERE c.id = known_id;
EXCEPTION
    WHEN lock_not_available THEN
        RAISE EXCEPTION 'consumer "%" cannot be dropped now', consumer
            USING ERRCODE = 'lock_not_available',
                  DETAIL = 'Open transactions have stored or processed messages.',
                  HINT = 'Try again when they have ended.';
END $$;
