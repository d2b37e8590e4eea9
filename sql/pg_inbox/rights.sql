-- Rights that can be granted. Each is a set of privileges. A caller of these functions needs only
-- EXECUTE on them; a role that has it may grant the right to others.

-- Lets a role put events into the inbox.
CREATE FUNCTION inbox.grant_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'send');
END;

-- Revokes the right to put events into the inbox.
CREATE FUNCTION inbox.revoke_send(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'send');
END;

-- Lets a role subscribe handlers.
CREATE FUNCTION inbox.grant_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'read');
END;

-- Revokes the right to subscribe handlers.
CREATE FUNCTION inbox.revoke_read(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'read');
END;

-- Lets a role consume events in its own processes.
CREATE FUNCTION inbox.grant_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'consume');
END;

-- Revokes the right to consume events in its own processes.
CREATE FUNCTION inbox.revoke_consume(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'consume');
END;

-- Lets a role decide about failed events.
CREATE FUNCTION inbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'operate');
END;

-- Revokes the right to decide about failed events.
CREATE FUNCTION inbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'operate');
END;

-- Lets a role read the health, status and figures of consumers.
CREATE FUNCTION inbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'monitor');
END;

-- Revokes the right to read the health, status and figures of consumers.
CREATE FUNCTION inbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'monitor');
END;

-- Two transactions cannot change privileges of one object at the same time: the second one would
-- fail.
CREATE FUNCTION inbox_internal.lock_rights()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE';
COMMENT ON FUNCTION inbox_internal.lock_rights() IS 'lets one transaction at a time change rights';
