-- Cursors of destinations: how far each one has delivered. There is one row per destination. Only
-- its relay updates it, at most every outbox.cursor_flush_interval. It has no index on purpose: the
-- relay finds its row by ctid, which costs the same however many dead versions a held snapshot
-- keeps alive.
--
-- Here and in outbox.delivery a destination is identified by its name. Names last through dumps,
-- copies and pg_upgrade, and OIDs do not. The event triggers below follow servers that are renamed
-- or dropped.
CREATE SEQUENCE outbox.destination_number AS integer;
COMMENT ON SEQUENCE outbox.destination_number IS 'numbers of destinations';
SELECT pg_extension_config_dump('outbox.destination_number', '');

CREATE TABLE outbox.cursor (
    destination       name        NOT NULL,
    number            integer     NOT NULL DEFAULT nextval('outbox.destination_number'),
    server            oid         NOT NULL,
    done              pg_snapshot NOT NULL,
    upto              pg_snapshot,
    position          bigint      NOT NULL,
    system_identifier bigint      NOT NULL,
    lease             bigint      NOT NULL,
    saved_at          timestamptz NOT NULL,
    paused            boolean     NOT NULL DEFAULT false,
    detached_at       timestamptz,
    inserted_by       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    dumped_done       pg_snapshot,
    dumped_upto       pg_snapshot,
    lanes             integer,
    first_batch       bigint,
    next_batch        bigint
);
COMMENT ON TABLE outbox.cursor IS 'cursors of destinations: which events they have settled';
COMMENT ON COLUMN outbox.cursor.destination IS 'name of the foreign server, or default for outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.number IS 'number of the destination, which never changes; see outbox.event.only_to';
COMMENT ON COLUMN outbox.cursor.server IS 'OID of the foreign server when the relay started; 0 for outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.done IS 'events of all transactions that had finished in this snapshot are settled';
COMMENT ON COLUMN outbox.cursor.upto IS 'end of a window whose events up to position are settled as well; null if none';
COMMENT ON COLUMN outbox.cursor.position IS 'highest settled position';
COMMENT ON COLUMN outbox.cursor.system_identifier IS 'the cluster to which the transactions of the snapshots belong';
COMMENT ON COLUMN outbox.cursor.lease IS 'token of the relay that may settle; a new relay takes a new one';
COMMENT ON COLUMN outbox.cursor.saved_at IS 'when the row was written';
COMMENT ON COLUMN outbox.cursor.paused IS 'true if nothing is delivered until outbox.resume()';
COMMENT ON COLUMN outbox.cursor.detached_at IS 'time since which it does not hold the log, see outbox.on_full_log; null if it does';
COMMENT ON COLUMN outbox.cursor.inserted_by IS 'transaction that inserted the row, to detect a row restored from a dump';
COMMENT ON COLUMN outbox.cursor.dumped_done IS 'value of done in a restored dump, or null; see restore.sql';
COMMENT ON COLUMN outbox.cursor.dumped_upto IS 'value of upto in a restored dump, or null';
COMMENT ON COLUMN outbox.cursor.lanes IS 'number of lanes of a pull destination when batches were made';
-- A search for the first batch of a lane starts at first_batch, so that it skips dead rows that an
-- old snapshot keeps.
COMMENT ON COLUMN outbox.cursor.first_batch IS 'lower bound of the batch numbers of a pull destination';
COMMENT ON COLUMN outbox.cursor.next_batch IS 'number of the next batch of a pull destination';

SELECT pg_extension_config_dump('outbox.cursor', '');

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
COMMENT ON FUNCTION outbox_internal.is_destination(oid) IS 'returns whether a foreign server is a destination';

-- 'default' is the name for outbox.default_destination, whose cursor no server may take over.
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
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_server_name(oid) IS 'refuses the name of outbox.default_destination';

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
BEGIN
    UPDATE outbox.cursor AS c
       SET server = s.oid
      FROM pg_foreign_server AS s
     WHERE s.srvname = c.destination AND s.oid <> c.server AND outbox_internal.is_destination(s.oid);
END
$$;
COMMENT ON FUNCTION outbox_internal.note_servers() IS 'records which server each cursor belongs to';

CREATE EVENT TRIGGER outbox_note_servers ON ddl_command_start
    WHEN tag IN ('ALTER SERVER', 'DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.note_servers();
ALTER EVENT TRIGGER outbox_note_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_note_servers IS 'records which server each cursor belongs to';

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
        UPDATE outbox.cursor SET destination = renamed.new, lease = lease + 1 WHERE destination = renamed.old;
        UPDATE outbox.delivery SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.batch SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.transaction SET destination = renamed.new WHERE destination = renamed.old;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_renamed_servers() IS 'renames the rows of a destination';

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
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_dropped_servers() IS 'removes the rows of a destination';

CREATE EVENT TRIGGER outbox_follow_dropped_servers ON sql_drop
    WHEN tag IN ('DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.follow_dropped_servers();
ALTER EVENT TRIGGER outbox_follow_dropped_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_servers IS 'removes the rows of a destination';
