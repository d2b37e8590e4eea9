-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

-- What each right consists of: functions, and views with the functions they need, of the schemas inbox and
-- inbox_internal, by name. A new one that is not for its owner alone is added here, and to
-- tests/system/test_privileges.py. `read` has what a processor calls, which works as the reader.
CREATE FUNCTION inbox_internal.parts_of_right(right_to text)
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
COMMENT ON FUNCTION inbox_internal.parts_of_right(text) IS 'the objects that a right gives the use of';

CREATE FUNCTION inbox_internal.privileges_of_right(right_to text, OUT privilege text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'EXECUTE', 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc AS p
     WHERE p.pronamespace IN ('inbox'::regnamespace, 'inbox_internal'::regnamespace)
       AND p.proname = ANY (inbox_internal.parts_of_right(right_to))
    UNION ALL
    SELECT 'SELECT', 'TABLE ' || c.oid::regclass
      FROM pg_class AS c
     WHERE c.relnamespace = 'inbox'::regnamespace AND c.relname = ANY (inbox_internal.parts_of_right(right_to))
       AND c.relkind IN ('r', 'v');
END;
COMMENT ON FUNCTION inbox_internal.privileges_of_right(text) IS 'the privileges that make up a right';

-- Where a role may do something. USAGE on a schema comes with the first privilege on something in it, and goes
-- with the last.
CREATE FUNCTION inbox_internal.schemas_used_by(role regrole)
RETURNS SETOF name
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT n.nspname
      FROM pg_namespace AS n
     WHERE n.nspname IN ('inbox', 'inbox_internal')
       AND (EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS acl
                     WHERE p.pronamespace = n.oid AND acl.grantee = role)
            OR EXISTS (SELECT FROM pg_class AS c, aclexplode(c.relacl) AS acl
                        WHERE c.relnamespace = n.oid AND acl.grantee = role));
END;
COMMENT ON FUNCTION inbox_internal.schemas_used_by(regrole) IS 'the schemas in which a role has privileges';

CREATE FUNCTION inbox_internal.grant_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE; -- or else "tuple concurrently updated"
    FOR part IN SELECT * FROM inbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('GRANT %s ON %s TO %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT inbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.grant_right(regrole, text) IS 'gives a role the privileges of a right';

CREATE FUNCTION inbox_internal.revoke_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE; -- or else "tuple concurrently updated"
    FOR part IN SELECT * FROM inbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('REVOKE %s ON %s FROM %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT unnest('{inbox,inbox_internal}'::name[]) EXCEPT SELECT inbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION inbox_internal.revoke_right(regrole, text) IS 'takes the privileges of a right from a role';

CREATE FUNCTION inbox.grant_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.grant_send(regrole) IS 'lets a role put events into the inbox';

CREATE FUNCTION inbox.revoke_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'send');
END;
COMMENT ON FUNCTION inbox.revoke_send(regrole) IS 'takes the right to put events into the inbox from a role';

CREATE FUNCTION inbox.grant_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.grant_read(regrole) IS 'lets a role subscribe handlers';

CREATE FUNCTION inbox.revoke_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'read');
END;
COMMENT ON FUNCTION inbox.revoke_read(regrole) IS 'takes the right to subscribe handlers from a role';

CREATE FUNCTION inbox.grant_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.grant_consume(regrole) IS 'lets a role consume events in its own processes';

CREATE FUNCTION inbox.revoke_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'consume');
END;
COMMENT ON FUNCTION inbox.revoke_consume(regrole) IS 'takes the right to consume events from a role';

CREATE FUNCTION inbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.grant_operate(regrole) IS 'lets a role decide about events that failed';

CREATE FUNCTION inbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.revoke_operate(regrole) IS 'takes the right to decide about events that failed from a role';

CREATE FUNCTION inbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION inbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';
