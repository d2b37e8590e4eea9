-- Rights that can be granted. Each is a set of privileges. A caller of these functions needs only
-- EXECUTE on them; a role that has it may grant the right to others.

-- Sets the topics of a right. If it is granted again, the new topics replace the old.
CREATE FUNCTION outbox_internal.set_topics(role regrole, right_to text, topics text, follows boolean, caller name)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.producer AS p (role, topics, granted_by, right_to, follows)
    VALUES (set_topics.role, set_topics.topics, caller, set_topics.right_to, set_topics.follows)
        ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE
           SET topics = excluded.topics, follows = excluded.follows,
               granted_by = excluded.granted_by, granted_at = excluded.granted_at;
END;

-- Removes the topics of a right.
CREATE FUNCTION outbox_internal.forget_topics(role regrole, right_to text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- Captured tables stay captured, and keep their topics.
    DELETE FROM outbox.producer AS p
     WHERE p.role = forget_topics.role AND p.right_to = forget_topics.right_to
       AND NOT (p.right_to = 'capture'
                AND EXISTS (SELECT FROM outbox.captured AS c JOIN pg_class AS r ON r.oid = c.relation
                             WHERE pg_has_role(r.relowner, p.role, 'USAGE')));
    UPDATE outbox.producer AS p SET follows = false WHERE p.role = forget_topics.role;
    DELETE FROM outbox.producer AS p WHERE p.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r); -- dropped roles
END;

-- Lets a role enqueue events of topics that match one of the patterns ('video.*, user.events'). If
-- it is granted again, the new patterns replace the old. Errors: 22023 a pattern is empty; 42704
-- there is no such role.
CREATE FUNCTION outbox.grant_produce(role regrole, topics text DEFAULT '*', caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'produce');
    SELECT outbox_internal.set_topics(role, 'produce', topics, false, caller);
    UPDATE outbox.producer AS p SET topics = grant_produce.topics WHERE p.role = grant_produce.role AND p.follows;
END;

-- Revokes the right to enqueue events.
CREATE FUNCTION outbox.revoke_produce(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'produce');
    SELECT outbox_internal.forget_topics(role, 'produce');
END;

-- Lets a role operate destinations.
CREATE FUNCTION outbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'operate');
END;

-- Revokes the right to operate destinations.
CREATE FUNCTION outbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'operate');
END;

-- Lets a role read the health, status and figures of destinations.
CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'monitor');
END;

-- Revokes the right to read the health, status and figures of destinations.
CREATE FUNCTION outbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'monitor');
END;

-- Lets a role capture tables that it owns, and produce events of topics that match one of the
-- patterns from them. Without patterns it uses those of outbox.grant_produce(), called before or
-- after; without these, all topics. Revoking one of the two rights does not change the topics of
-- the other. Errors as for outbox.grant_produce().
CREATE FUNCTION outbox.grant_capture(role regrole, topics text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'capture');
    SELECT outbox_internal.set_topics(role, 'capture',
                             coalesce(topics, (SELECT p.topics FROM outbox.producer AS p
                                                WHERE p.role = grant_capture.role AND p.right_to = 'produce'), '*'),
                             topics IS NULL, caller);
END;

-- Revokes the right to capture tables.
CREATE FUNCTION outbox.revoke_capture(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'capture');
    SELECT outbox_internal.forget_topics(role, 'capture');
END;

-- Lets a role deliver events from outside the server, with outbox-relay. The role reads all events,
-- and the options and credentials of destinations whose relay is outside the server.
CREATE FUNCTION outbox.grant_relay(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'relay');
END;

-- Revokes the right to deliver events from outside the server.
CREATE FUNCTION outbox.revoke_relay(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'relay');
END;

-- Two transactions cannot change privileges of one object at the same time: the second one would
-- fail.
CREATE FUNCTION outbox_internal.lock_rights()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    LOCK TABLE outbox.producer IN SHARE UPDATE EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_rights() IS 'lets one transaction at a time change rights';
