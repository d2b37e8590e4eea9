-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

-- Which topics a right is for. Granted again, the new ones take the place of the old.
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
COMMENT ON FUNCTION outbox_internal.set_topics(regrole, text, text, boolean, name) IS 'notes which topics a right is for';

CREATE FUNCTION outbox_internal.forget_topics(role regrole, right_to text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- What is captured already stays so, and keeps its topics.
    DELETE FROM outbox.producer AS p
     WHERE p.role = forget_topics.role AND p.right_to = forget_topics.right_to
       AND NOT (p.right_to = 'capture'
                AND EXISTS (SELECT FROM outbox.captured AS c JOIN pg_class AS r ON r.oid = c.relation
                             WHERE pg_has_role(r.relowner, p.role, 'USAGE')));
    UPDATE outbox.producer AS p SET follows = false WHERE p.role = forget_topics.role;
    DELETE FROM outbox.producer AS p WHERE p.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r); -- dropped ones
END;
COMMENT ON FUNCTION outbox_internal.forget_topics(regrole, text) IS 'forgets which topics a right was for';

-- Lets a role enqueue events of topics that match one of the patterns ('video.*, user.events'). Granted
-- again, the new patterns take the place of the old. Errors: 22023 a pattern is empty; 42704 there is
-- no such role.
CREATE FUNCTION outbox.grant_produce(role regrole, topics text DEFAULT '*', caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'produce');
    SELECT outbox_internal.set_topics(role, 'produce', topics, false, caller);
    UPDATE outbox.producer AS p SET topics = grant_produce.topics WHERE p.role = grant_produce.role AND p.follows;
END;
COMMENT ON FUNCTION outbox.grant_produce(regrole, text, outbox_internal.caller) IS 'lets a role enqueue events of some topics';

CREATE FUNCTION outbox.revoke_produce(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'produce');
    SELECT outbox_internal.forget_topics(role, 'produce');
END;
COMMENT ON FUNCTION outbox.revoke_produce(regrole) IS 'takes the right to enqueue events from a role';

-- From foreign servers that it has USAGE on; with the destination 'default' also from outbox.default_destination,
-- if that is a pull destination. Errors: 22023 another destination, which takes a GRANT USAGE.
CREATE FUNCTION outbox.grant_fetch(role regrole, destination name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF destination <> 'default' THEN
        RAISE EXCEPTION 'the right to fetch from destination "%" is granted on its foreign server', destination
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('GRANT USAGE ON FOREIGN SERVER %I TO %s;', destination, role);
    END IF;
    PERFORM outbox_internal.grant_right(role, 'fetch');
    IF destination = 'default' THEN
        PERFORM outbox_internal.grant_right(role, 'fetch default');
    END IF;
END $$;
COMMENT ON FUNCTION outbox.grant_fetch(regrole, name) IS 'lets a role fetch from pull destinations that it has USAGE on';

CREATE FUNCTION outbox.revoke_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'fetch');
    SELECT outbox_internal.revoke_right(role, 'fetch default');
END;
COMMENT ON FUNCTION outbox.revoke_fetch(regrole) IS 'takes that right from a role';

CREATE FUNCTION outbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.grant_operate(regrole) IS 'lets a role operate destinations';

CREATE FUNCTION outbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.revoke_operate(regrole) IS 'takes the right to operate destinations from a role';

CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION outbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';

-- Lets a role capture tables that it owns, and produce events of topics that match one of the patterns from
-- them. Without patterns: those of outbox.grant_produce(), be it called before or after; without these all.
-- What is revoked of one of the two rights leaves the topics of the other as they are. Errors as for
-- outbox.grant_produce().
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
COMMENT ON FUNCTION outbox.grant_capture(regrole, text, outbox_internal.caller) IS 'lets a role capture its tables';

CREATE FUNCTION outbox.revoke_capture(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'capture');
    SELECT outbox_internal.forget_topics(role, 'capture');
END;
COMMENT ON FUNCTION outbox.revoke_capture(regrole) IS 'takes the right to capture tables from a role';
