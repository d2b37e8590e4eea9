-- Confirmation of handlers. The role that handlers run as is in inbox.consumer, and the handlers
-- are in inbox.subscription. The owner of these tables could write any role and any handler. After
-- a restore, or REASSIGN OWNED, the tables may belong to another role. So the server runs handlers
-- only as a role that has confirmed them. The confirmation is stored where only the role itself can
-- write, or a role that could become it: in a setting of the role in this database
-- (pg_db_role_setting), as a list of tokens, one per subscription:
--
--     ALTER ROLE ... IN DATABASE ... SET inbox.confirmed = '<hash of consumer>:<hash of event type and handler>,...'
--
-- pg_dump does not write settings of roles, except with --create; pg_dumpall does.
-- bgworker/keeper/consumers.cpp looks for the first hash before it starts a processor, and the
-- processor calls confirmed_subscriptions().
CREATE VIEW inbox_internal.confirmation AS
SELECT s.*, s.token = ANY (saved.tokens) IS TRUE AS confirmed
  FROM (SELECT c.id AS consumer_id, c.name AS consumer, c.role, s.number, s.event_type, s.handler,
               left(encode(sha256(convert_to(c.name, getdatabaseencoding())), 'hex'), 32) || ':'
                   || left(encode(sha256(convert_to(format('%L %L', s.event_type, s.handler), getdatabaseencoding())), 'hex'), 32)
                   AS token
          FROM inbox.consumer AS c
          JOIN inbox.subscription AS s ON s.consumer_id = c.id) AS s
  LEFT JOIN LATERAL (SELECT string_to_array(substr(option, 17), ',') AS tokens
                       FROM pg_db_role_setting AS d
                       JOIN pg_roles AS r ON r.oid = d.setrole
                       JOIN pg_database AS b ON b.oid = d.setdatabase,
                            unnest(d.setconfig) AS option
                      WHERE b.datname = current_database() AND r.rolname = s.role
                        AND starts_with(option, 'inbox.confirmed=')
                      LIMIT 1) AS saved ON true;
COMMENT ON VIEW inbox_internal.confirmation IS 'subscriptions that the role of their consumer has confirmed';

-- Lists the handlers that run as the calling role, and whether the role has confirmed them. They
-- belong to consumers of exactly this role.
CREATE FUNCTION inbox.own_subscriptions(
    caller inbox_internal.caller DEFAULT CURRENT_USER,
    OUT consumer   text,
    OUT event_type text,
    OUT handler    text,
    OUT token      text,
    OUT confirmed  boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT c.consumer, c.event_type, c.handler, c.token, c.confirmed
          FROM inbox_internal.confirmation AS c WHERE c.role = caller
         ORDER BY c.consumer, c.number;
END $$;

-- Stores the confirmations of a role: adds the subscriptions that the caller has confirmed, and
-- removes those that do not exist any more. It runs with the rights of the caller, so it can only
-- write for the caller. The caller must have locked inbox.subscription.
--
-- Without pg_outbox the setting is unknown to the server, and only superusers can set it. Then
-- there are no processors either.
CREATE FUNCTION inbox_internal.save_confirmation(tokens text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %I SET inbox.confirmed = %L', current_database(),
                   (SELECT string_agg(DISTINCT s.token, ',') FROM inbox.own_subscriptions() AS s
                     WHERE s.confirmed OR s.token = ANY (tokens)));
    PERFORM inbox_internal.wake('subscriptions'), inbox_internal.wake('messages');
EXCEPTION
    WHEN insufficient_privilege THEN
        NULL;
END $$;

-- Makes calls that subscribe or confirm wait for each other.
CREATE FUNCTION inbox_internal.lock_subscriptions()
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
END $$;

-- Confirms that the handlers of a consumer run with the caller's rights, and returns these
-- handlers. Needed after a restore, or after the consumer was given to the caller. subscribe()
-- confirms its own subscription.
CREATE FUNCTION inbox.confirm(consumer text, OUT event_type text, OUT handler text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.lock_subscriptions();
    IF NOT EXISTS (SELECT FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer) THEN
        RAISE EXCEPTION 'role "%" has no consumer "%" with subscriptions', current_user, confirm.consumer
            USING ERRCODE = 'undefined_object', HINT = 'Only the role of the consumer itself can confirm. Use SET ROLE.';
    END IF;
    PERFORM inbox_internal.save_confirmation(ARRAY(SELECT s.token FROM inbox.own_subscriptions() AS s
                                           WHERE s.consumer = confirm.consumer));
    IF EXISTS (SELECT FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer AND NOT s.confirmed) THEN
        RAISE EXCEPTION 'the confirmation cannot be saved'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Nothing is processed in the server unless pg_outbox is in shared_preload_libraries.';
    END IF;
    RETURN QUERY SELECT s.event_type, s.handler FROM inbox.own_subscriptions() AS s WHERE s.consumer = confirm.consumer;
END $$;
