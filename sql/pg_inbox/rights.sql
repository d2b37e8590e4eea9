-- Rights that can be granted. Each is a set of privileges. A caller of these functions needs only
-- EXECUTE on them; a role that has it may grant the right to others.

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
COMMENT ON FUNCTION inbox.revoke_send(regrole) IS 'revokes the right to put events into the inbox';

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
COMMENT ON FUNCTION inbox.revoke_read(regrole) IS 'revokes the right to subscribe handlers';

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
COMMENT ON FUNCTION inbox.revoke_consume(regrole) IS 'revokes the right to consume events in its own processes';

CREATE FUNCTION inbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.grant_operate(regrole) IS 'lets a role decide about failed events';

CREATE FUNCTION inbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION inbox.revoke_operate(regrole) IS 'revokes the right to decide about failed events';

CREATE FUNCTION inbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.grant_monitor(regrole) IS 'lets a role read the health, status and figures of consumers';

CREATE FUNCTION inbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT inbox_internal.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION inbox.revoke_monitor(regrole) IS 'revokes the right to read the health, status and figures of consumers';
