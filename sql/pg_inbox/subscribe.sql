-- Makes a function handle the events of a consumer whose type matches a pattern ('Video*').
--
-- The function takes one argument of type inbox.message; its result is ignored. It runs with the
-- rights of the subscribing role, in one transaction with the bookkeeping: its effects happen
-- exactly once, and none is left if it fails. All handlers of a consumer belong to one role, that
-- of the consumer, which needs LOGIN. Messages whose type matches no subscription of the consumer
-- are dropped; so subscribe all handlers of a consumer in one transaction.
CREATE FUNCTION inbox.subscribe(consumer text, event_type text, handler regproc)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(event_type, '') = '' THEN
        RAISE EXCEPTION 'event_type must not be empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ''*'' for all events.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_proc AS p
                    WHERE p.oid = handler AND p.prokind = 'f' AND p.pronargs = 1
                      AND p.proargtypes[0] = 'inbox.message'::regtype) THEN
        RAISE EXCEPTION 'function % cannot handle messages', handler
            USING ERRCODE = 'invalid_function_definition',
                  HINT = 'A handler is a function of one argument of type inbox.message.';
    END IF;
    IF NOT has_function_privilege(handler, 'EXECUTE') THEN
        RAISE EXCEPTION 'permission denied for function %', handler
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM inbox_internal.save_confirmation(inbox_internal.add_subscription(consumer, event_type, handler));
END $$;

-- Returns the name by which the processor calls a handler. It is stored and compared, so it must not
-- depend on the session.
CREATE FUNCTION inbox_internal.name_of_handler(handler regproc)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
BEGIN ATOMIC
    SELECT format('%I.%I', n.nspname, p.proname)
      FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = handler;
END;

-- Adds a subscription for inbox.subscribe(), and returns the token that confirms it.
CREATE FUNCTION inbox_internal.add_subscription(
    consumer   text,
    event_type text,
    handler    regproc,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    receiver   integer;
    subscriber inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    IF NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.rolname = caller) THEN
        RAISE EXCEPTION 'role "%" cannot log in, and so cannot process messages', caller
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Subscribe as a role that has LOGIN.';
    END IF;

    -- Callers run one after the other: save_confirmation() writes to one row of a catalog, where a
    -- second writer would fail.
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
    receiver := inbox_internal.own_consumer(consumer, caller);
    SELECT * INTO STRICT subscriber FROM inbox.consumer AS c WHERE c.id = receiver FOR UPDATE;
    IF subscriber.role <> caller THEN
        PERFORM inbox_internal.refuse_owner(consumer, subscriber.role);
    END IF;
    INSERT INTO inbox.subscription (consumer_id, event_type, handler)
        VALUES (subscriber.id, add_subscription.event_type, inbox_internal.name_of_handler(add_subscription.handler))
        ON CONFLICT DO NOTHING;
    PERFORM inbox_internal.count_subscriptions(subscriber.id);
    INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at) VALUES (subscriber.id, 0, 0, clock_timestamp())
        ON CONFLICT DO NOTHING;
    RETURN ARRAY(SELECT c.token FROM inbox_internal.confirmation AS c
                  WHERE c.consumer_id = subscriber.id AND c.event_type = add_subscription.event_type
                    AND c.handler = inbox_internal.name_of_handler(add_subscription.handler));
END $$;

-- Ends a subscription. If it was the last one, messages wait until the consumer has another.
CREATE FUNCTION inbox.unsubscribe(
    consumer   text,
    event_type text,
    handler    regproc,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscriber inbox.consumer;
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO subscriber FROM inbox.consumer AS c
     WHERE c.name = unsubscribe.consumer FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer USING ERRCODE = 'undefined_object';
    END IF;
    IF pg_has_role(caller, to_regrole(quote_ident(subscriber.role)), 'MEMBER') IS NOT TRUE THEN
        PERFORM inbox_internal.refuse_owner(consumer, subscriber.role);
    END IF;
    DELETE FROM inbox.subscription AS s
     WHERE s.consumer_id = subscriber.id AND s.event_type = unsubscribe.event_type
       AND s.handler = inbox_internal.name_of_handler(unsubscribe.handler);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no subscription of % to "%"', consumer, handler, event_type
            USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM inbox_internal.count_subscriptions(subscriber.id);
END $$;

-- Updates the number of subscriptions of a consumer with the caller's rights, for the two functions
-- above.
CREATE FUNCTION inbox_internal.count_subscriptions(consumer_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The trigger of the table makes pg_outbox start or end the processor.
    UPDATE inbox.consumer AS c
       SET subscriptions = (SELECT count(*) FROM inbox.subscription AS s WHERE s.consumer_id = c.id)
     WHERE c.id = count_subscriptions.consumer_id;
END $$;

-- Gives a consumer to another role, with all its messages. Its handlers would then run with the
-- rights of that role, so they wait until the role confirms them: inbox.confirm().
CREATE FUNCTION inbox.give_consumer(
    consumer text,
    role     regrole,
    why      text,
    caller   inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id  CONSTANT integer := inbox_internal.take_control(consumer);
    new_owner CONSTANT name := (SELECT r.rolname FROM pg_roles AS r WHERE r.oid = give_consumer.role);
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    IF new_owner IS NULL THEN
        RAISE EXCEPTION 'role must exist' USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM inbox_internal.note_operation(caller, consumer, 'give', why, jsonb_build_object(
        'from', (SELECT c.role FROM inbox.consumer AS c WHERE c.id = known_id), 'to', new_owner));
    UPDATE inbox.consumer AS c SET role = new_owner WHERE c.id = known_id;
END $$;
