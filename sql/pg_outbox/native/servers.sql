-- Cursors follow the foreign servers of their destinations.

-- Returns whether a server of a DDL command is a destination. A server of another wrapper may have
-- any name, even that of a cursor.
CREATE FUNCTION outbox_internal.is_destination(server oid)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT
                     FROM pg_foreign_server AS s
                     JOIN pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
                    WHERE s.oid = server AND w.fdwname = 'pg_outbox');
END;

-- 'default' is the name for outbox.default_destination. No server may take over its cursor, or that
-- of an endpoint.
CREATE FUNCTION outbox_internal.check_server_name(server oid)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox_internal.is_destination(server)
       AND EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.oid = server AND s.srvname = 'default') THEN
        RAISE EXCEPTION 'a destination cannot be called "default"'
            USING ERRCODE = 'reserved_name',
                  DETAIL = 'It is the name of outbox.default_destination.',
                  HINT = 'Give the foreign server another name.';
    ELSIF outbox_internal.is_destination(server)
          AND EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.oid = server AND outbox_internal.is_endpoint(s.srvname)) THEN
        RAISE EXCEPTION 'there is an endpoint with the name of the foreign server'
            USING ERRCODE = 'duplicate_object', HINT = 'Give the foreign server another name.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_server_name(oid) IS 'refuses the name of outbox.default_destination, and names of endpoints';

-- Warns if the server has too few background workers for what is known to need one. A relay without
-- one would not start, and nothing but the log and outbox.health() would say so.
CREATE FUNCTION outbox_internal.warn_of_few_workers(server oid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present CONSTANT integer := current_setting('max_worker_processes');
    needed  integer;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.server = $1 AND NOT d.pull AND NOT d.external)
       OR EXISTS (SELECT FROM outbox.workers() AS w WHERE w.kind = 'relay' AND w.object = $1) THEN
        RETURN;
    END IF;
    needed := outbox_internal.workers_needed(ARRAY(SELECT d.server FROM outbox.destination AS d WHERE NOT d.pull AND NOT d.external));
    IF needed > present THEN
        RAISE WARNING 'max_worker_processes is %, but % background workers are needed', present, needed
            USING ERRCODE = 'configuration_limit_exceeded',
                  DETAIL = 'Each database, destination, consumer with handlers and running backfill needs one, and so do other extensions. '
                           'Workers without room wait; see outbox.health().',
                  HINT = format('Set max_worker_processes to %s or more and restart the server. Parallel queries and outbox.check_destination() take workers as well.',
                                needed);
    END IF;
END $$;

-- Warns if a new or altered destination cannot deliver anything.
CREATE FUNCTION outbox_internal.warn_of_server(server oid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.warn_of_few_workers(server);
    PERFORM outbox_internal.warn_of_unknown_topics(d.name) FROM outbox.destination AS d WHERE d.server = $1;
END $$;

-- A destination has a cursor from its creation. So one that starts at the end of the log gets all
-- later commits, however long its relay takes to start.
CREATE FUNCTION outbox_internal.start_cursor()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_server_name(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
    INSERT INTO outbox.cursor
        (destination, server, done, position, system_identifier, lease, saved_at)
    SELECT s.srvname, s.oid,
           CASE WHEN 'start=end' = ANY (s.srvoptions) THEN pg_current_snapshot() ELSE '1:1:' END, 0, c.system_identifier, 0, clock_timestamp()
      FROM pg_event_trigger_ddl_commands() AS command
      JOIN pg_foreign_server AS s ON s.oid = command.objid
     CROSS JOIN pg_control_system() AS c
     WHERE command.classid = 'pg_foreign_server'::regclass
       AND outbox_internal.is_destination(s.oid)
       AND NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = s.srvname); -- restored
    PERFORM outbox_internal.warn_of_server(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
END
$$;
COMMENT ON FUNCTION outbox_internal.start_cursor() IS 'creates the cursor of a destination';

CREATE EVENT TRIGGER outbox_start_cursor ON ddl_command_end WHEN tag IN ('CREATE SERVER')
    EXECUTE FUNCTION outbox_internal.start_cursor();
ALTER EVENT TRIGGER outbox_start_cursor ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_start_cursor IS 'creates the cursor of a destination';

-- A renamed destination keeps its cursor and its events in trouble. Only the OID tells which server
-- is renamed or dropped, so the OIDs are updated before the command. The relay with the old name
-- loses its lease, so that it can write nothing under that name.
CREATE FUNCTION outbox_internal.note_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known record;
BEGIN
    FOR known IN
        SELECT c.destination, s.oid AS server
          FROM outbox.cursor AS c
          JOIN pg_foreign_server AS s ON s.srvname = c.destination
         WHERE s.oid <> c.server AND outbox_internal.is_destination(s.oid)
    LOOP
        PERFORM outbox_internal.keep_fetchers_out(known.destination);
        UPDATE outbox.cursor AS c SET server = known.server WHERE c.destination = known.destination;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.note_servers() IS 'records which server each cursor belongs to';

CREATE EVENT TRIGGER outbox_note_servers ON ddl_command_start
    WHEN tag IN ('ALTER SERVER', 'DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.note_servers();
ALTER EVENT TRIGGER outbox_note_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_note_servers IS 'records which server each cursor belongs to';

-- Renames the rows of a destination.
CREATE FUNCTION outbox_internal.follow_renamed_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    renamed record;
BEGIN
    PERFORM outbox_internal.check_server_name(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
    FOR renamed IN
        SELECT c.destination AS old, s.srvname AS new
          FROM pg_event_trigger_ddl_commands() AS command
          JOIN pg_foreign_server AS s ON s.oid = command.objid
          JOIN outbox.cursor AS c ON c.server = s.oid AND c.destination <> s.srvname
         WHERE command.classid = 'pg_foreign_server'::regclass AND outbox_internal.is_destination(s.oid)
    LOOP
        PERFORM outbox_internal.keep_fetchers_out(renamed.old);
        UPDATE outbox.cursor SET destination = renamed.new, lease = lease + 1 WHERE destination = renamed.old;
        UPDATE outbox.delivery SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.batch SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.transaction SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.expression SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.operation SET destination = renamed.new WHERE destination = renamed.old;
        PERFORM outbox_internal.rename_endpoints(renamed.old, renamed.new);
    END LOOP;
    PERFORM outbox_internal.check_keeps_endpoints(s.srvname)
       FROM pg_event_trigger_ddl_commands() AS command
       JOIN pg_foreign_server AS s ON s.oid = command.objid
      WHERE command.classid = 'pg_foreign_server'::regclass AND outbox_internal.is_destination(s.oid);
END
$$;

CREATE EVENT TRIGGER outbox_follow_renamed_servers ON ddl_command_end WHEN tag IN ('ALTER SERVER')
    EXECUTE FUNCTION outbox_internal.follow_renamed_servers();
ALTER EVENT TRIGGER outbox_follow_renamed_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_renamed_servers IS 'renames the rows of a destination';

-- Removes the rows of a dropped destination. They are found by the OID of the server, because a
-- dropped server does not show which wrapper it had.
CREATE FUNCTION outbox_internal.follow_dropped_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dropped name;
BEGIN
    FOR dropped IN
        SELECT c.destination
          FROM pg_event_trigger_dropped_objects() AS o
          JOIN outbox.cursor AS c ON c.server = o.objid AND c.destination = o.object_name
         WHERE o.classid = 'pg_foreign_server'::regclass
    LOOP
        DELETE FROM outbox.cursor WHERE destination = dropped;
        DELETE FROM outbox.delivery WHERE destination = dropped;
        DELETE FROM outbox.batch WHERE destination = dropped;
        DELETE FROM outbox.transaction WHERE destination = dropped;
        DELETE FROM outbox.expression WHERE destination = dropped;
        DELETE FROM outbox.endpoint WHERE server = dropped;
    END LOOP;
END
$$;

CREATE EVENT TRIGGER outbox_follow_dropped_servers ON sql_drop
    WHEN tag IN ('DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.follow_dropped_servers();
ALTER EVENT TRIGGER outbox_follow_dropped_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_servers IS 'removes the rows of a destination';

-- The cursor is ahead of the events in batches. So they move to outbox.delivery, where the relay
-- finds them.
CREATE FUNCTION outbox_internal.leave_pull()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_behind name;
BEGIN
    FOR left_behind IN
        SELECT DISTINCT d.name
          FROM pg_event_trigger_ddl_commands() AS command
          JOIN outbox.destination AS d ON d.server = command.objid
         WHERE command.classid = 'pg_foreign_server'::regclass AND NOT d.pull
    LOOP
        -- Locked before batches are looked for, because a fetcher may be making the first ones.
        PERFORM outbox_internal.keep_fetchers_out(left_behind);
        CONTINUE WHEN NOT EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = left_behind);
        PERFORM outbox_internal.find_restored_batches(left_behind);
        PERFORM outbox_internal.park_events(left_behind, b.xids, b.positions) FROM outbox.batch AS b WHERE b.destination = left_behind;
        PERFORM outbox_internal.drop_batches(left_behind);
        UPDATE outbox.delivery AS w SET next_retry_at = clock_timestamp()
         WHERE w.destination = left_behind AND w.ordering_key = '' AND w.state = 'PENDING' AND w.next_retry_at IS NULL;
        PERFORM outbox_internal.promote(left_behind, ARRAY(SELECT DISTINCT w.ordering_key FROM outbox.delivery AS w
                                              WHERE w.destination = left_behind AND w.state = 'PENDING'));
    END LOOP;
    PERFORM outbox_internal.warn_of_server(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
END $$;
COMMENT ON FUNCTION outbox_internal.leave_pull() IS 'hands events that fetchers have not settled to a relay';

CREATE EVENT TRIGGER outbox_leave_pull ON ddl_command_end WHEN tag IN ('ALTER SERVER')
    EXECUTE FUNCTION outbox_internal.leave_pull();
ALTER EVENT TRIGGER outbox_leave_pull ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_leave_pull IS 'hands events that fetchers have not settled to a relay';
