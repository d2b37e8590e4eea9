-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

-- What each right consists of: functions, views and types of this schema, by name. A new one that
-- is not for its owner alone is added here, and to tests/system/test_privileges.py.
CREATE FUNCTION outbox.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'produce' THEN ARRAY['enqueue', 'new_event']
             WHEN 'capture' THEN ARRAY['capture', 'uncapture', 'captures', 'capture_condition', -- and what these call
                                       'save_captured', 'forget_captured', 'check_captured', 'qualify_condition',
                                       'capture_truncate', 'check_capturable', 'check_choice', 'check_moves', 'add_capture_triggers',
                                       'drop_capture_triggers', 'captured_tree', 'event_type_of', 'row_key_of', 'columns_of',
                                       'set_capture_fire', 'trigger_state', 'has_capture_triggers',
                                       'backfill', 'add_backfill', 'pause_backfill', 'resume_backfill', 'cancel_backfill',
                                       'backfill_progress', 'backfill_waits_for']
             WHEN 'operate' THEN ARRAY['pause', 'resume', 'seek', 'replay', 'cancel_replay', 'redrive', 'discard',
                                       'event_status', 'receipt', 'operation', 'replay_progress', 'dead_letter', 'blocked_key',
                                       'held_keys', 'first_of_key', 'check_destination', 'pause_backfill', 'resume_backfill',
                                       'cancel_backfill', 'backfill_progress', 'backfill_waits_for']
             WHEN 'fetch' THEN ARRAY['fetch', 'ack', 'nack', 'extend', 'release']
             -- the views, and the functions they call on behalf of whoever reads them
             WHEN 'monitor' THEN ARRAY['status', 'segment', 'lease', 'health', 'metrics',
                                       'workers', 'absent_workers', 'oldest_after', 'segment_held_by',
                                       'backfill_progress', 'backfill_waits_for']
           END;
END;
COMMENT ON FUNCTION outbox.parts_of_right(text) IS 'internal: the objects that a right gives the use of';

CREATE FUNCTION outbox.privileges_of_right(right_to text, OUT privilege text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'EXECUTE', 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc AS p
     WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = ANY (outbox.parts_of_right(right_to))
    UNION ALL
    SELECT 'SELECT', 'TABLE ' || c.oid::regclass
      FROM pg_class AS c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (outbox.parts_of_right(right_to))
       AND c.relkind IN ('r', 'v')
    UNION ALL
    SELECT 'USAGE', 'TYPE ' || c.reltype::regtype
      FROM pg_class AS c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (outbox.parts_of_right(right_to))
       AND c.relkind = 'c';
END;
COMMENT ON FUNCTION outbox.privileges_of_right(text) IS 'internal: the privileges that make up a right';

CREATE FUNCTION outbox.grant_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT * FROM outbox.privileges_of_right(right_to) LOOP
        EXECUTE format('GRANT %s ON %s TO %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', pg_get_userbyid(role));
END $$;
COMMENT ON FUNCTION outbox.grant_right(regrole, text) IS 'internal: gives a role the privileges of a right';

-- USAGE on the schema goes with the last privilege on something in it.
CREATE FUNCTION outbox.revoke_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT * FROM outbox.privileges_of_right(right_to) LOOP
        EXECUTE format('REVOKE %s ON %s FROM %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS acl
                    WHERE p.pronamespace = 'outbox'::regnamespace AND acl.grantee = role
                   UNION ALL
                   SELECT FROM pg_class AS c, aclexplode(c.relacl) AS acl
                    WHERE c.relnamespace = 'outbox'::regnamespace AND acl.grantee = role) THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA outbox FROM %I', pg_get_userbyid(role));
    END IF;
END $$;
COMMENT ON FUNCTION outbox.revoke_right(regrole, text) IS 'internal: takes the privileges of a right from a role';

-- Lets a role enqueue events of topics that match one of the patterns ('video.*, user.events'). Granted
-- again, the new patterns take the place of the old. Errors: 22023 a pattern is empty; 42704 there is
-- no such role.
CREATE FUNCTION outbox.grant_produce(role regrole, topics text DEFAULT '*')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.grant_right(role, 'produce');
    INSERT INTO outbox.producer AS p (role, topics) VALUES (grant_produce.role, grant_produce.topics)
        ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE
           SET topics = excluded.topics, granted_by = excluded.granted_by, granted_at = excluded.granted_at;
END;
COMMENT ON FUNCTION outbox.grant_produce(regrole, text) IS 'lets a role enqueue events of some topics';

CREATE FUNCTION outbox.revoke_produce(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.revoke_right(role, 'produce');
    -- and those that were dropped
    DELETE FROM outbox.producer AS p
     WHERE p.role = revoke_produce.role OR p.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r);
END;
COMMENT ON FUNCTION outbox.revoke_produce(regrole) IS 'takes the right to enqueue events from a role';

CREATE FUNCTION outbox.grant_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.grant_right(role, 'fetch');
END;
COMMENT ON FUNCTION outbox.grant_fetch(regrole) IS 'lets a role fetch from pull destinations that it has USAGE on';

CREATE FUNCTION outbox.revoke_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.revoke_right(role, 'fetch');
END;
COMMENT ON FUNCTION outbox.revoke_fetch(regrole) IS 'takes that right from a role';

CREATE FUNCTION outbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.grant_operate(regrole) IS 'lets a role operate destinations';

CREATE FUNCTION outbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.revoke_operate(regrole) IS 'takes the right to operate destinations from a role';

CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION outbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';

-- Lets a role capture tables that it owns.
CREATE FUNCTION outbox.grant_capture(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.grant_right(role, 'capture');
END;
COMMENT ON FUNCTION outbox.grant_capture(regrole) IS 'lets a role capture its tables';

CREATE FUNCTION outbox.revoke_capture(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.revoke_right(role, 'capture');
END;
COMMENT ON FUNCTION outbox.revoke_capture(regrole) IS 'takes the right to capture tables from a role';
