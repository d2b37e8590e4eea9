-- Has a function handle the events of a consumer whose type matches a pattern ('Video*').
--
-- The function takes one argument of type inbox.message; what it returns is ignored. It runs with the
-- rights of the role that subscribes, in one transaction with the bookkeeping: what it does is done
-- exactly once, and when it fails nothing of it is. All handlers of a consumer belong to one role,
-- which must be allowed to log in. Messages whose type matches no subscription of the consumer are
-- passed over; so subscribe all handlers of a consumer in one transaction.
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
    PERFORM inbox.add_subscription(consumer, event_type, handler, current_user);
END $$;
COMMENT ON FUNCTION inbox.subscribe(text, text, regproc) IS
    'has a function handle the events of a consumer whose type matches a pattern';

CREATE FUNCTION inbox.add_subscription(consumer text, event_type text, handler regproc, for_role name)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    receiver   integer := inbox.consumer_id(consumer);
    subscriber inbox.consumer;
BEGIN
    IF NOT pg_has_role(session_user, for_role, 'MEMBER') THEN
        RAISE EXCEPTION 'must be a member of role "%" to subscribe for it', for_role
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.rolname = for_role) THEN
        RAISE EXCEPTION 'role "%" cannot log in, and so cannot process messages', for_role
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Subscribe as a role that has LOGIN.';
    END IF;

    SELECT * INTO STRICT subscriber FROM inbox.consumer AS c WHERE c.id = receiver FOR UPDATE;
    IF subscriber.role <> for_role AND subscriber.subscriptions > 0 THEN
        RAISE EXCEPTION 'consumer "%" belongs to role "%"', consumer, subscriber.role
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Subscribe as that role, or choose another consumer.';
    END IF;
    INSERT INTO inbox.subscription (consumer_id, event_type, handler)
        SELECT subscriber.id, add_subscription.event_type,
               format('%I.%I', p.pronamespace::regnamespace, p.proname)
          FROM pg_proc AS p WHERE p.oid = add_subscription.handler
        ON CONFLICT DO NOTHING;
    PERFORM inbox.count_subscriptions(subscriber.id, for_role);
END $$;
COMMENT ON FUNCTION inbox.add_subscription(text, text, regproc, name) IS 'internal: see inbox.subscribe()';

-- Ends a subscription. Messages that have arrived wait until the consumer has another one.
CREATE FUNCTION inbox.unsubscribe(consumer text, event_type text, handler regproc)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscriber inbox.consumer;
BEGIN
    SELECT * INTO subscriber FROM inbox.consumer AS c
     WHERE c.name = unsubscribe.consumer FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" does not exist', consumer USING ERRCODE = 'undefined_object';
    END IF;
    IF NOT pg_has_role(session_user, subscriber.role, 'MEMBER') THEN
        RAISE EXCEPTION 'consumer "%" belongs to role "%"', consumer, subscriber.role
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    DELETE FROM inbox.subscription AS s
     USING pg_proc AS p
     WHERE s.consumer_id = subscriber.id AND s.event_type = unsubscribe.event_type
       AND p.oid = unsubscribe.handler
       AND s.handler = format('%I.%I', p.pronamespace::regnamespace, p.proname);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer "%" has no subscription of % to "%"', consumer, handler, event_type
            USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM inbox.count_subscriptions(subscriber.id, subscriber.role);
END $$;
COMMENT ON FUNCTION inbox.unsubscribe(text, text, regproc) IS 'ends a subscription';

-- With the caller's rights, for whoever may call this decides as whom handlers run: the two above.
CREATE FUNCTION inbox.count_subscriptions(consumer_id integer, for_role name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE inbox.consumer AS c
       SET role = for_role,
           subscriptions = (SELECT count(*) FROM inbox.subscription AS s WHERE s.consumer_id = c.id)
     WHERE c.id = count_subscriptions.consumer_id;
    -- Heard by pg_outbox when the server has it loaded: the keeper starts or ends the processor.
    PERFORM set_config('inbox.wake', 'subscriptions', true);
END $$;
COMMENT ON FUNCTION inbox.count_subscriptions(integer, name) IS 'internal: see inbox.subscribe()';
