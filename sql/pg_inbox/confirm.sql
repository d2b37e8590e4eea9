-- Whose rights handlers have is a row of inbox.consumer, and what they are one of inbox.subscription. Who owns
-- these tables could write any; and when they are restored from a dump, or taken over (REASSIGN OWNED), they
-- belong to somebody who may be allowed more. So the server runs handlers only as a role that has confirmed
-- them, and that is kept where only the role itself can write, or somebody who could become it: in a setting of the role in
-- this database (pg_db_role_setting), as a list of tokens, one per subscription:
--
--     ALTER ROLE … IN DATABASE … SET inbox.confirmed = '<hash of consumer>:<hash of event type and handler>,…'
--
-- It is not in a dump of the database (but pg_dump --create and pg_dumpall write settings of roles).
-- bgworker/keeper/consumers.cpp looks for the first hash before it starts a processor, and the processor
-- asks confirmed_subscriptions().
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
COMMENT ON VIEW inbox_internal.confirmation IS 'which subscriptions the role of their consumer has confirmed';

-- Of consumers of exactly the caller: it is as the caller that they run.
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
COMMENT ON FUNCTION inbox.own_subscriptions(inbox_internal.caller) IS
    'the handlers that run, or would run, with one''s own rights, and whether one has confirmed them';

-- Adds to what the caller has confirmed, and forgets what is no subscription of it any more. As the caller, and
-- so it can write for nobody else. Whoever calls this has locked inbox.subscription.
--
-- Without pg_outbox the setting does not exist, and only superusers can make it; nor are there processors.
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
COMMENT ON FUNCTION inbox_internal.save_confirmation(text[]) IS 'remembers what a role has confirmed';

CREATE FUNCTION inbox_internal.lock_subscriptions()
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox_internal.refuse_restricted();
    LOCK TABLE inbox.subscription IN SHARE ROW EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION inbox_internal.lock_subscriptions() IS 'has those who subscribe and confirm wait for each other';

-- Says that the handlers of a consumer are to run with the caller's rights, and which these are. Needed after
-- a restore, or when the consumer was given to the caller; subscribe() confirms what it subscribes.
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
COMMENT ON FUNCTION inbox.confirm(text) IS 'has the handlers of a consumer run with one''s own rights';
