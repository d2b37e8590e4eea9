-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

-- What each right consists of: functions, and views with the functions they need, of this schema, by
-- name. A new one that is not for its owner alone is added here, and to
-- tests/system/test_privileges.py. `read` has what a processor calls, which works as the reader.
CREATE FUNCTION inbox.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'send' THEN ARRAY['receive']
             WHEN 'read' THEN ARRAY['subscribe', 'add_subscription', 'unsubscribe', 'confirm', 'own_subscriptions',
                                    'save_confirmation', 'lock_subscriptions', 'confirmed_subscriptions', 'json', 'waiting_keys',
                                    'is_own', 'next_messages', 'next_attempt', 'process', 'take', 'record_failure',
                                    'save_progress', 'set_policy', 'dead_letter']
             WHEN 'consume' THEN ARRAY['version', 'begin_event', 'begin_events', 'was_applied',
                                       'save_offset', 'load_offset', 'confirm_reset',
                                       'fail_event', 'end_failure', 'claim', 'complete', 'fail', 'extend', 'release',
                                       'set_policy', 'dead_letter', 'waiting_keys', 'is_own']
             WHEN 'operate' THEN ARRAY['redrive', 'discard', 'reset_offset', 'forget', 'set_window', 'prune', 'give_consumer',
                                       'dead_letter', 'waiting_keys', 'is_own', 'operation']
             WHEN 'monitor' THEN ARRAY['version', 'status', 'is_own', 'lag', 'health', 'offsets']
           END
           -- Whoever applies events, in the server or in processes of his own.
           || CASE WHEN right_to IN ('read', 'consume')
                THEN ARRAY['apply', 'remove', 'row_parts', 'check_row', 'check_key', 'run', 'tombstone_version',
                           'removed_version', 'lock_removal', 'leave_tombstone', 'wait_for', 'wait_until', 'wait_on',
                           'prune']
              END;
END;
COMMENT ON FUNCTION inbox.parts_of_right(text) IS 'internal: the objects that a right gives the use of';

CREATE FUNCTION inbox.privileges_of_right(right_to text, OUT privilege text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'EXECUTE', 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc AS p
     WHERE p.pronamespace = 'inbox'::regnamespace AND p.proname = ANY (inbox.parts_of_right(right_to))
    UNION ALL
    SELECT 'SELECT', 'TABLE ' || c.oid::regclass
      FROM pg_class AS c
     WHERE c.relnamespace = 'inbox'::regnamespace AND c.relname = ANY (inbox.parts_of_right(right_to))
       AND c.relkind IN ('r', 'v');
END;
COMMENT ON FUNCTION inbox.privileges_of_right(text) IS 'internal: the privileges that make up a right';

CREATE FUNCTION inbox.grant_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part record;
BEGIN
    LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE; -- or else "tuple concurrently updated"
    FOR part IN SELECT * FROM inbox.privileges_of_right(right_to) LOOP
        EXECUTE format('GRANT %s ON %s TO %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA inbox TO %I', pg_get_userbyid(role));
END $$;
COMMENT ON FUNCTION inbox.grant_right(regrole, text) IS 'internal: gives a role the privileges of a right';

-- USAGE on the schema goes with the last privilege on something in it.
CREATE FUNCTION inbox.revoke_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part record;
BEGIN
    LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE; -- or else "tuple concurrently updated"
    FOR part IN SELECT * FROM inbox.privileges_of_right(right_to) LOOP
        EXECUTE format('REVOKE %s ON %s FROM %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS acl
                    WHERE p.pronamespace = 'inbox'::regnamespace AND acl.grantee = role
                   UNION ALL
                   SELECT FROM pg_class AS c, aclexplode(c.relacl) AS acl
                    WHERE c.relnamespace = 'inbox'::regnamespace AND acl.grantee = role) THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA inbox FROM %I', pg_get_userbyid(role));
    END IF;
END $$;
COMMENT ON FUNCTION inbox.revoke_right(regrole, text) IS 'internal: takes the privileges of a right from a role';

CREATE FUNCTION inbox.grant_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.grant_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.grant_send(regrole) IS 'lets a role put events into the inbox';

CREATE FUNCTION inbox.revoke_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.revoke_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.revoke_send(regrole) IS 'takes the right to put events into the inbox from a role';

CREATE FUNCTION inbox.grant_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.grant_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.grant_read(regrole) IS 'lets a role subscribe handlers';

CREATE FUNCTION inbox.revoke_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.revoke_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.revoke_read(regrole) IS 'takes the right to subscribe handlers from a role';

CREATE FUNCTION inbox.grant_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.grant_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.grant_consume(regrole) IS 'lets a role consume events in its own processes';

CREATE FUNCTION inbox.revoke_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.revoke_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.revoke_consume(regrole) IS 'takes the right to consume events from a role';

CREATE FUNCTION inbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.grant_operate(regrole) IS 'lets a role decide about events that failed';

CREATE FUNCTION inbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.revoke_operate(regrole) IS 'takes the right to decide about events that failed from a role';

CREATE FUNCTION inbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION inbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';
